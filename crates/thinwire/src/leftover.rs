//! What an attachment whose process was killed leaves in the system, and how it is taken away.

use std::fmt;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use crate::rundir::Record;
use crate::signals::clear_loop;

/// One thing that outlives a killed process. Recorded before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Leftover {
    /// A unix socket that nobody listens on any more.
    Socket {
        /// Where it is.
        path: PathBuf,
    },
    /// A FUSE mount whose server is gone.
    Mount {
        /// The mount point, a file or a folder.
        path: PathBuf,
    },
    /// A loop device over a file of this folder (its number is the kernel's choice).
    Loop {
        /// The folder or file that backs it.
        backing: PathBuf,
    },
    /// An empty file that was made as a mount point.
    File {
        /// Where it is.
        path: PathBuf,
    },
    /// An empty folder that was made as a mount point.
    Folder {
        /// Where it is.
        path: PathBuf,
    },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leftover::Socket { path } => write!(f, "socket {}", path.display()),
            Leftover::Mount { path } => write!(f, "mount {}", path.display()),
            Leftover::Loop { backing } => write!(f, "loop device over {}", backing.display()),
            Leftover::File { path } => write!(f, "file {}", path.display()),
            Leftover::Folder { path } => write!(f, "folder {}", path.display()),
        }
    }
}

impl Leftover {
    /// Takes it away. `Ok(false)` if it is not there, or is somebody else's now.
    fn remove(&self) -> io::Result<bool> {
        match self {
            Leftover::Socket { path } => remove_socket(path),
            Leftover::Mount { path } => remove_mount(path),
            Leftover::Loop { backing } => remove_loops(backing),
            Leftover::File { path } => match std::fs::symlink_metadata(path) {
                Ok(meta) if meta.is_file() && meta.len() == 0 => gone(std::fs::remove_file(path)),
                Ok(_) => Ok(false),
                Err(e) => gone(Err(e)),
            },
            Leftover::Folder { path } => match std::fs::remove_dir(path) {
                Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
                result => gone(result),
            },
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
            text += &format!("; cleaned up: {}", self.removed.join(", "));
        }
        if !self.failed.is_empty() {
            text += &format!("; could not clean up: {}", self.failed.join(", "));
        }
        text
    }
}

/// Takes away what a dead process left. The caller holds the attachment's claim. Loop devices go
/// before the mounts under them, mounts before their mount points.
pub fn clean(record: &Record) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let mut leftovers: Vec<_> = record.leftovers.iter().collect();
    leftovers.sort_by_key(|leftover| match leftover {
        Leftover::Loop { .. } => 0,
        Leftover::Mount { .. } => 1,
        Leftover::Socket { .. } | Leftover::File { .. } => 2,
        Leftover::Folder { .. } => 3,
    });
    for leftover in leftovers {
        match leftover.remove() {
            Ok(true) => cleaned.removed.push(leftover.to_string()),
            Ok(false) => {}
            Err(e) => cleaned.failed.push(format!("{leftover} ({e})")),
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

fn remove_mount(path: &Path) -> io::Result<bool> {
    let mut removed = false;
    // Several dead ones may lie on top of each other.
    while mounts()?.iter().any(|m| m.point == path && m.kind.starts_with("fuse")) {
        rustix::mount::unmount(path, UnmountFlags::DETACH)?;
        removed = true;
    }
    Ok(removed)
}

fn remove_loops(backing: &Path) -> io::Result<bool> {
    let mut removed = false;
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Ok(false) };
    for device in devices {
        let device = device?;
        let Ok(file) = std::fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        // The kernel marks files it can no longer find.
        let file = file.trim_end_matches('\n').trim_end_matches(" (deleted)");
        if Path::new(file).starts_with(backing) {
            clear_loop(&std::fs::File::open(Path::new("/dev").join(device.file_name()))?)?;
            removed = true;
        }
    }
    Ok(removed)
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
        std::fs::write(at("used"), "data").unwrap();
        std::fs::write(at("point"), "").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let mut record = Record::of_this_process("x", "null:512".into(), "nbd", false);
        record.leftovers = vec![
            Leftover::Folder { path: at("folder") },
            Leftover::File { path: at("point") },
            Leftover::File { path: at("used") },
            Leftover::Socket { path: at("dead") },
            Leftover::Socket { path: at("alive") },
            Leftover::Socket { path: at("missing") },
            Leftover::Mount { path: dir.path().into() },
            Leftover::Loop { backing: dir.path().into() },
        ];
        let cleaned = clean(&record);
        assert_eq!(cleaned.failed, Vec::<String>::new());
        assert_eq!(cleaned.removed.len(), 3, "{cleaned:?}");
        assert!(!at("dead").exists() && !at("point").exists() && !at("folder").exists());
        assert!(at("alive").exists() && at("used").exists());
        assert_eq!(clean(&record), Cleaned::default());
        assert!(cleaned.describe("x").contains("`x`"));
    }
}
