//! What an attachment whose process was killed leaves in the system, and how it is taken away.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thinwire_frontend::{block, fuse};

use crate::rundir::Record;

/// One thing that outlives a killed process. Recorded before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Leftover {
    /// A unix socket that nobody listens on any more.
    Socket {
        /// Where it is.
        path: PathBuf,
    },
    /// A file mounted through FUSE, whose server is gone, and the empty file under it.
    File {
        /// Where it is.
        path: PathBuf,
    },
    /// A block device: one of ublk, or a loop device and the file under it.
    Device {
        /// Where that file is mounted.
        run_dir: PathBuf,
        /// The attachment's name.
        name: String,
    },
}

impl Leftover {
    /// Takes it away: what was done, a phrase each. Nothing if it is not there, or is somebody
    /// else's now.
    fn remove(&self) -> Result<Vec<String>, String> {
        match self {
            Leftover::Socket { path } => match remove_socket(path) {
                Ok(true) => Ok(vec![format!("removed socket {}", path.display())]),
                Ok(false) => Ok(Vec::new()),
                Err(e) => Err(format!("socket {}: {e}", path.display())),
            },
            Leftover::File { path } => {
                let report = fuse::clean_stale(path).map_err(|e| e.to_string())?;
                Ok(report.into_iter().collect())
            }
            Leftover::Device { run_dir, name } => {
                block::clean_stale(run_dir, name).map_err(|e| e.to_string())
            }
        }
    }
}

/// What [`clean`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// What was taken away.
    pub removed: Vec<String>,
    /// What could not be, and why.
    pub failed: Vec<String>,
}

impl Cleaned {
    /// A sentence for the user.
    pub fn describe(&self, name: &str) -> String {
        let mut text = format!("attachment `{name}` was left by a process that is gone");
        if !self.removed.is_empty() {
            text += &format!("; cleaned up: {}", self.removed.join("; "));
        }
        if !self.failed.is_empty() {
            text += &format!("; could not clean up: {}", self.failed.join("; "));
        }
        text
    }
}

/// Takes away what a dead process left. The caller holds the attachment's claim.
pub fn clean(record: &Record) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for leftover in &record.leftovers {
        match leftover.remove() {
            Ok(removed) => cleaned.removed.extend(removed),
            Err(why) => cleaned.failed.push(why),
        }
    }
    cleaned
}

/// A removal that finds nothing is none.
fn gone(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn remove_socket(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {}
        Ok(_) => return Ok(false),
        Err(e) => return gone(Err(e)),
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => gone(std::fs::remove_file(path)),
        // Somebody listens: it is theirs.
        _ => Ok(false),
    }
}

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the mounted device.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub point: PathBuf,
    /// The kind of file system, for example `ext4` or `fuse.thinwire`.
    pub kind: String,
}

/// All mounts that this process sees.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse_mounts(&std::fs::read_to_string("/proc/self/mountinfo")?))
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    let line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(2);
        let (major, minor) = fields.next()?.split_once(':')?;
        let point = unescape(fields.nth(1)?);
        Some(Mount {
            device: (major.parse().ok()?, minor.parse().ok()?),
            point: point.into(),
            kind: after.split(' ').next()?.to_owned(),
        })
    };
    text.lines().filter_map(line).collect()
}

/// Undoes the kernel's octal escapes (`\040` is a space).
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'\\'
            && let Some(digits) = rest.get(..3)
            && let Some(byte) =
                std::str::from_utf8(digits).ok().and_then(|d| u8::from_str_radix(d, 8).ok())
        {
            out.push(byte);
            rest = &rest[3..];
        } else {
            out.push(*first);
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::os::unix::net::UnixListener;

    #[test]
    fn mountinfo_is_understood() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
                    40 35 0:52 / /run/x rw shared:3 - fuse.thinwire thinwire rw\nnonsense\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].point, Path::new("/mnt 2"));
        assert_eq!((mounts[0].device, mounts[0].kind.as_str()), ((98, 0), "ext3"));
        assert_eq!(mounts[1].kind, "fuse.thinwire");
        assert!(!super::mounts().unwrap().is_empty());
    }

    #[test]
    fn only_what_is_dead_is_removed() {
        let dir = TempDir::new("leftover");
        let at = |name: &str| dir.path().join(name);
        drop(UnixListener::bind(at("dead")).unwrap());
        let _alive = UnixListener::bind(at("alive")).unwrap();
        std::fs::write(at("file"), "data").unwrap();
        let mut record = Record::of_this_process("x", "null:512".into(), "nbd", false);
        record.leftovers = vec![
            Leftover::Socket { path: at("dead") },
            Leftover::Socket { path: at("alive") },
            Leftover::Socket { path: at("file") },
            Leftover::Socket { path: at("missing") },
            Leftover::File { path: at("file") },
            Leftover::File { path: at("missing") },
            Leftover::Device { run_dir: dir.path().into(), name: "x".into() },
        ];
        let cleaned = clean(&record);
        let removed = vec![format!("removed socket {}", at("dead").display())];
        assert_eq!(cleaned, Cleaned { removed, failed: Vec::new() });
        assert!(!at("dead").exists() && at("alive").exists() && at("file").exists());
        assert_eq!(clean(&record), Cleaned::default());
        assert!(cleaned.describe("x").contains("`x`"));
    }
}
