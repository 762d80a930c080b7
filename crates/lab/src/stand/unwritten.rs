//! How much of a file system's data may wait to be written: as much as memory is small, not as much as this machine has.

use std::path::PathBuf;

use crate::error::{Outcome, failed};

/// A limit of one device. Taken away when it is dropped.
pub struct Unwritten(PathBuf);

impl Unwritten {
    /// At most so many bytes for a device. Fails where the kernel has no such limits, and says so.
    pub fn limit(device: &str, bytes: u64) -> Outcome<Self> {
        let folder =
            PathBuf::from(format!("/sys/block/{}/bdi", device.trim_start_matches("/dev/")));
        let limit = Unwritten(folder);
        for (file, text) in [("max_bytes", bytes.to_string()), ("strict_limit", "1".into())] {
            let path = limit.0.join(file);
            std::fs::write(&path, text).map_err(failed(format!(
                "cannot limit what is not written yet by {}",
                path.display()
            )))?;
        }
        Ok(limit)
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        for (file, text) in [("strict_limit", "0"), ("max_ratio", "100")] {
            let _ = std::fs::write(self.0.join(file), text);
        }
    }
}
