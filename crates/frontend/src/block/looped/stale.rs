//! What a killed attachment leaves of its block device, and how it is taken away.

use std::path::Path;

use super::super::disk_file;
use super::super::error::BlockError;
use super::super::usage::who_claims;
use super::device::{bound_to, clear_number, dev_of, is_still_bound, node_of};
use crate::fuse;
use crate::fuse::mount::real_place;

/// Takes away what a killed attachment of this name left: its loop device and the file under it.
/// Says what was found, a line each; nothing if there was nothing.
///
/// A loop device goes by itself with the process that keeps it, unless it is mounted or open. Then
/// it stays, failing all I/O, until its users let go; the report names them.
///
/// Waits up to two seconds for an answer of a mount that is there; so not for the thread that
/// serves it.
///
/// # Errors
/// If an attachment of this name lives.
pub fn clean_stale(run_dir: &Path, name: &str) -> Result<Vec<String>, BlockError> {
    let mut report = Vec::new();
    let Ok(file) = real_place(&disk_file(run_dir, name)) else { return Ok(report) };
    let mounted = fuse::mount::mount_at(&file)?.is_some();
    if mounted && fuse::mount::is_alive(&file) {
        return Err(BlockError::InUse(format!(
            "an attachment called {name} is alive in {}; detach it first or choose another name",
            run_dir.display()
        )));
    }
    for number in bound_to(&file) {
        let node = node_of(number);
        clear_number(number)
            .map_err(BlockError::system(format!("cannot detach the dead loop device {node}")))?;
        report.push(if is_still_bound(number, &file) {
            format!(
                "{}; an attachment that was killed left it behind, I/O fails there, and it goes \
                 when it is no longer used",
                who_claims(&node, &dev_of(number))
            )
        } else {
            format!("detached {node}, which an attachment that was killed had left behind")
        });
    }
    report.extend(fuse::clean_stale(&file)?);
    Ok(report)
}
