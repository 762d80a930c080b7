//! What a killed attachment leaves of its ublk device: a number that nobody serves, and a device in the driver behind it.

use std::path::Path;

use super::super::error::BlockError;
use super::abi::state;
use super::control::{Control, PATH, devices};

/// By which the devices of an attachment are known, in a field of the driver that is the server's own.
pub fn mark_of(run_dir: &Path, name: &str) -> u64 {
    const OURS: u64 = 0x7477 << 48;
    // FNV-1a, over what an attachment is called on this machine.
    let bytes = run_dir.as_os_str().as_encoded_bytes().iter().chain([&0]).chain(name.as_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    OURS | hash >> 16
}

/// Takes away the devices that an attachment of this name left behind.
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
    let mark = mark_of(run_dir, name);
    for number in left {
        let Ok(info) = control.info(number) else { continue };
        if info.mark != mark {
            continue;
        }
        if info.state != state::DEAD && is_alive(info.process) {
            return Err(BlockError::InUse(format!(
                "an attachment called {name} is alive, in process {}; detach it first or choose another name",
                info.process
            )));
        }
        let what = format!("cannot take away the dead device of ublk {number} by {PATH}");
        let _ = control.stop(number);
        control.delete(number).map_err(BlockError::system(what))?;
        report.push(format!(
            "took /dev/ublkb{number} away, which an attachment that was killed had left behind"
        ));
    }
    Ok(report)
}

fn is_alive(process: i32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_attachments_apart() {
        let mark = mark_of(Path::new("/run/thinwire"), "disk0");
        assert_eq!(mark >> 48, 0x7477);
        for (dir, name) in
            [("/run/thinwire", "disk1"), ("/run/other", "disk0"), ("/run", "thinwire/disk0")]
        {
            assert_ne!(mark_of(Path::new(dir), name), mark, "{dir} {name}");
        }
    }
}
