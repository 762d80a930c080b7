//! What a killed attachment leaves of its ublk device: a number that nobody serves, and a device in the driver behind it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::super::error::BlockError;
use super::control::{Control, PATH, devices, is_unserved};

/// How long a driver may take that cannot take a device away without waiting for its last user.
const PATIENCE: Duration = Duration::from_secs(2);

/// By which the devices of an attachment are known, in a field of the driver that is the server's own. The driver is one for
/// all containers of a machine: so by the folder itself, not by what that is called in one of them.
pub fn mark_of(run_dir: &Path, name: &str) -> io::Result<u64> {
    let folder = std::fs::metadata(run_dir)?;
    Ok(mark([folder.dev(), folder.ino()], name))
}

fn mark(folder: [u64; 2], name: &str) -> u64 {
    const OURS: u64 = 0x7477 << 48;
    // FNV-1a.
    let folder = folder.map(u64::to_le_bytes);
    let bytes = folder.as_flattened().iter().chain(name.as_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    OURS | hash >> 16
}

/// Takes away the devices that an attachment of this name left behind, and waits for each as long as [`PATIENCE`].
///
/// # Errors
/// One of that name lives.
pub fn clean_stale(run_dir: &Path, name: &str) -> Result<Vec<String>, BlockError> {
    let mut report = Vec::new();
    let left = devices();
    if left.is_empty() {
        return Ok(report);
    }
    // Not ours to look into, so nothing that we left.
    let Ok(mut control) = Control::open() else { return Ok(report) };
    let Ok(mark) = mark_of(run_dir, name) else { return Ok(report) };
    for number in left {
        if control.info(number).ok().is_none_or(|info| info.mark != mark) {
            continue;
        }
        if !is_unserved(number) {
            return Err(BlockError::InUse(format!(
                "an attachment called {name} is alive, with /dev/ublkb{number}; detach it first or choose another name"
            )));
        }
        let left =
            format!("/dev/ublkb{number}, which an attachment that was killed had left behind");
        report.push(match take_away(number) {
            Some(Ok(())) => format!("took away {left}"),
            Some(Err(e)) => format!("cannot take away {left}, by {PATH}: {e}"),
            None => format!("{left}, goes when it is no longer used"),
        });
    }
    Ok(report)
}

/// `None` if that takes its time, and goes on.
fn take_away(number: u32) -> Option<io::Result<()>> {
    let (outbox, answer) = channel();
    std::thread::spawn(move || {
        let gone = Control::open().and_then(|mut control| {
            let _ = control.stop(number);
            control.delete(number)
        });
        let _ = outbox.send(gone);
    });
    answer.recv_timeout(PATIENCE).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_attachments_apart() {
        let one = mark([1, 2], "disk0");
        assert_eq!(one >> 48, 0x7477);
        for (folder, name) in [([1, 2], "disk1"), ([1, 3], "disk0"), ([3, 2], "disk0")] {
            assert_ne!(mark(folder, name), one, "{folder:?} {name}");
        }
        assert!(mark_of(Path::new("/nonexistent-thinwire"), "disk0").is_err());
    }
}
