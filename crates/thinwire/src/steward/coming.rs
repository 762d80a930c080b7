//! Exports that a reload adds: what is done before their shard opens them, and there.

use std::path::Path;
use std::sync::mpsc;

use thinwire_buffer::Pool;
use thinwire_runtime::disk;
use thinwire_runtime::serve::OpenedExport;

use super::PREPARE_PATIENCE;
use crate::export::ExportSpec;
use crate::last_resort::paths_of;
use crate::serve::open_added;

/// Syncs what an export is on before its shard opens it, which does the same, and serves others. Not on this thread,
/// which signals are told to: where a sync takes long, whoever asked may ask again when it is over.
pub(super) fn sync_beforehand(export: &ExportSpec) -> Result<(), String> {
    if export.read_only {
        return Ok(());
    }
    let (name, paths) = (&export.name, paths_of(std::iter::once(&export.volume)));
    let (tell, told) = mpsc::channel();
    let sync = move || {
        let result = paths.iter().try_for_each(|path| disk::sync_before(path));
        let _ = tell.send(result);
    };
    let thread = std::thread::Builder::new().name("sync".into()).spawn(sync);
    thread.map_err(|error| format!("export {name}: cannot make a thread: {error}"))?;
    match told.recv_timeout(PREPARE_PATIENCE) {
        Ok(result) => result.map_err(|error| format!("export {name}: cannot be synced: {error}")),
        Err(_) => Err(format!(
            "export {name}: its sync takes longer than {} s: reload again when that is over",
            PREPARE_PATIENCE.as_secs()
        )),
    }
}

/// On the thread of their shard: all or none.
pub(super) fn open_all(
    specs: &[ExportSpec],
    state_dir: &Path,
    pool: &Pool,
) -> Result<Vec<OpenedExport>, String> {
    let mut opened: Vec<OpenedExport> = Vec::new();
    for spec in specs {
        match open_added(spec, state_dir, pool) {
            Ok(export) => opened.push(export),
            Err(failure) => {
                opened.into_iter().for_each(OpenedExport::discard);
                return Err(format!(
                    "{} (a target that serves opens it as the user that it is, with what it has left; a \
                     restart, with the rights of whoever starts it)",
                    failure.message
                ));
            }
        }
    }
    Ok(opened)
}
