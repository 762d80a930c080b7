//! Before something is overwritten, is it in use by this machine? Before something is made, is there a place
//! for it?

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::error::{Failure, Outcome};
use crate::leftover::mounts;
use crate::uri::VolumeSpec;

/// Refuses if the volume is a block device that is mounted, is swap, or has something on top of
/// it. The kernel knows: an exclusive open fails. `what` says what was going to be done.
pub fn refuse_in_use(volume: &VolumeSpec, what: &str) -> Outcome {
    volume.leaves().into_iter().try_for_each(|leaf| match leaf {
        VolumeSpec::Path(path) => refuse_path(path, what),
        _ => Ok(()),
    })
}

/// What is said of a path where nothing can be made for want of its folder.
pub fn missing_folder(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let is_missing = matches!(folder.try_exists(), Ok(false));
    let folder = folder.display();
    is_missing
        .then(|| format!("the folder {folder} does not exist; make it with: mkdir -p {folder}"))
}

fn refuse_path(path: &Path, what: &str) -> Outcome {
    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    if !meta.file_type().is_block_device() {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::BUSY) => Err(Failure::failed(format!(
            "{} is in use{}; {what} would destroy what is there",
            path.display(),
            mount_point(meta.rdev()).unwrap_or_default()
        ))),
        _ => Ok(()),
    }
}

/// ` (mounted on /mnt)`, if this process sees where.
fn mount_point(device: u64) -> Option<String> {
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = mounts().ok()?;
    let point = &mounts.iter().find(|mount| mount.device == device)?.point;
    Some(format!(" (mounted on {})", Path::new(point).display()))
}
