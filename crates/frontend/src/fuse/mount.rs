//! Putting a FUSE file in its place and taking it away: the placeholder that is covered, the
//! mount(2) call, and what a killed attachment left behind.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use super::error::FuseError;
use super::mountinfo::{MountEntry, mounts_of};

/// The type under which our mounts appear.
pub const FSTYPE: &str = "fuse.thinwire";

/// Permission bits of the empty files that we make to mount over. No bit but the sticky one, which
/// nobody sets on a plain file: so a placeholder is known as ours, even after a kill -9.
const PLACEHOLDER_MODE: u32 = 0o1000;

/// How long a mount may take to answer a stat before it counts as alive but slow.
const ALIVE_WAIT: Duration = Duration::from_secs(2);

/// A file mounted over `path`. Dropping it does nothing: see [`Mounted::unmount`].
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    /// Device number of the mount: only that one is ever unmounted.
    dev: String,
}

/// What to mount.
pub struct MountOptions<'a> {
    /// Type and permission bits of the file.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The name that `mount` and `findmnt` show as the source.
    pub source: &'a str,
    /// No writes.
    pub read_only: bool,
    /// Users other than the owner get past the kernel's first gate.
    pub allow_other: bool,
}

/// Opens the FUSE device, non-blocking.
pub fn open_device() -> Result<OwnedFd, FuseError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open("/dev/fuse", flags, Mode::empty()) {
        Ok(fd) => Ok(fd),
        Err(Errno::NOENT) => Err(FuseError::NoDevice),
        Err(Errno::NODEV | Errno::NXIO) => Err(FuseError::NoKernelSupport),
        Err(Errno::PERM | Errno::ACCESS) => {
            Err(FuseError::NoPrivilege { what: "opening", path: PathBuf::from("/dev/fuse") })
        }
        Err(e) => Err(FuseError::system("cannot open", "/dev/fuse")(e.into())),
    }
}

/// Mounts `device` over `path`, which must not exist or be an empty regular file. The mount sends
/// its first request at once and serves nobody before it is answered; this call does not wait for it.
pub fn mount(
    device: &OwnedFd,
    path: &Path,
    options: &MountOptions<'_>,
) -> Result<Mounted, FuseError> {
    let path = free_place(path)?;
    prepare_place(&path)?;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        options.mode,
        options.uid,
        options.gid,
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = std::ffi::CString::new(data).expect("no zero byte");
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    let source = options.source.replace(',', "_");
    if let Err(e) = rustix::mount::mount(source.as_str(), &path, FSTYPE, flags, data.as_c_str()) {
        remove_placeholder(&path);
        return Err(match e {
            Errno::PERM | Errno::ACCESS => {
                FuseError::NoPrivilege { what: "mounting a file at", path }
            }
            Errno::NODEV => FuseError::NoKernelSupport,
            e => FuseError::system("cannot mount a file at", path)(e.into()),
        });
    }
    match mount_at(&path) {
        Ok(Some(entry)) => Ok(Mounted { path, dev: entry.dev }),
        other => {
            let _ = rustix::mount::unmount(&path, UnmountFlags::DETACH);
            remove_placeholder(&path);
            let missing = io::Error::other("the new mount is not in /proc/self/mountinfo");
            Err(other.err().unwrap_or(FuseError::system("cannot find", path)(missing)))
        }
    }
}

/// Whether [`mount`] would be refused now, as far as that can be told without making anything.
///
/// # Errors
/// Its own.
pub fn check_place(path: &Path) -> Result<(), FuseError> {
    let path = free_place(path)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    match fs::symlink_metadata(&path) {
        Ok(found) => refuse_occupied(&path, &found)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let may_make = rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK);
            may_make.map_err(|e| FuseError::system("cannot create", &path)(e.into()))?;
        }
        Err(e) => return Err(FuseError::system("cannot look at", &path)(e)),
    }
    // Who cannot learn what it may tries.
    match rustix::thread::capabilities(None) {
        Ok(ours) if !ours.effective.contains(CapabilitySet::SYS_ADMIN) => {
            Err(FuseError::NoPrivilege { what: "mounting a file at", path })
        }
        _ => Ok(()),
    }
}

/// The real place of `path`, at which no attachment has its file.
fn free_place(path: &Path) -> Result<PathBuf, FuseError> {
    let path = real_place(path)?;
    match mount_at(&path)? {
        None => Ok(path),
        Some(_) => Err(FuseError::Occupied {
            path,
            what: "is served by another attachment",
            remedy: "detach that one first, or choose another path",
        }),
    }
}

impl Mounted {
    /// Where the file is, with the links in its directory resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts and removes the placeholder. With `lazy` even while the file is open: it disappears
    /// from its place at once and is freed with its last user. Idempotent; asks nothing of the
    /// file system itself, so the thread that serves it may call this.
    ///
    /// # Errors
    /// EBUSY if the file is open and not `lazy`.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        let still_ours = mounts_of("self")?.iter().any(|m| self.is(m));
        if still_ours {
            let mut flags = UnmountFlags::NOFOLLOW;
            if lazy {
                flags |= UnmountFlags::DETACH;
            }
            rustix::mount::unmount(&self.path, flags)?;
        }
        remove_placeholder(&self.path);
        Ok(())
    }

    fn is(&self, entry: &MountEntry) -> bool {
        entry.dev == self.dev && entry.point == self.path && entry.fstype == FSTYPE
    }
}

/// Removes what a killed attachment left at `path`: a mount whose server is gone, and the empty
/// file under it. Says what was removed, or `None` if there was nothing.
///
/// Waits up to two seconds for an answer of a mount that is there; so not for the thread that
/// serves it.
///
/// # Errors
/// [`FuseError::Occupied`] if an attachment that lives has its file there.
pub fn clean_stale(path: &Path) -> Result<Option<String>, FuseError> {
    let Ok(path) = real_place(path) else {
        return Ok(None);
    };
    let mut report = None;
    while mount_at(&path)?.is_some() {
        if is_alive(&path) {
            return Err(FuseError::Occupied {
                path,
                what: "is served by another attachment",
                remedy: "detach that one first, or choose another path",
            });
        }
        rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
            .map_err(|e| FuseError::system("cannot unmount the dead file", &path)(e.into()))?;
        report = Some(format!(
            "unmounted {}, which an attachment that was killed had left behind",
            path.display()
        ));
    }
    if remove_placeholder(&path) && report.is_none() {
        report = Some(format!(
            "removed {}, an empty file that an attachment that was killed had left behind",
            path.display()
        ));
    }
    Ok(report)
}

/// True unless the server of the mount at `path` is known to be gone.
pub fn is_alive(path: &Path) -> bool {
    let (tell, answer) = mpsc::channel();
    let path = path.to_owned();
    // A server that is stopped never answers; then this thread waits with it, harmlessly.
    std::thread::spawn(move || {
        let errno = fs::metadata(path).err().and_then(|e| e.raw_os_error());
        let _ = tell.send(errno);
    });
    match answer.recv_timeout(ALIVE_WAIT) {
        Ok(Some(errno)) => errno != libc::ENOTCONN && errno != libc::ECONNABORTED,
        Ok(None) | Err(_) => true,
    }
}

/// The uppermost mount of ours at `path`.
pub fn mount_at(path: &Path) -> Result<Option<MountEntry>, FuseError> {
    let mounts =
        mounts_of("self").map_err(FuseError::system("cannot read", "/proc/self/mountinfo"))?;
    Ok(mounts.into_iter().rev().find(|m| m.point == path && m.fstype == FSTYPE))
}

/// The absolute path with the links of its directory resolved, as mountinfo shows it. The last
/// component is not looked at: it may be a mount that does not answer.
pub fn real_place(path: &Path) -> Result<PathBuf, FuseError> {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    let Some(name) = path.file_name() else {
        return Err(FuseError::Occupied {
            path: path.to_owned(),
            what: "is a directory",
            remedy: "give the path of the file that the disk shall become",
        });
    };
    let parent =
        parent.canonicalize().map_err(FuseError::system("cannot find the directory", parent))?;
    Ok(parent.join(name))
}

/// Makes sure that there is an empty regular file to mount over.
fn prepare_place(path: &Path) -> Result<(), FuseError> {
    let made =
        fs::OpenOptions::new().write(true).create_new(true).mode(PLACEHOLDER_MODE).open(path);
    match made {
        Ok(file) => {
            // The umask never takes the sticky bit, but some file systems refuse it at creation.
            let _ = file.set_permissions(fs::Permissions::from_mode(PLACEHOLDER_MODE));
            return Ok(());
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(FuseError::system("cannot create", path)(e)),
    }
    let found = fs::symlink_metadata(path).map_err(FuseError::system("cannot look at", path))?;
    refuse_occupied(path, &found)
}

/// Only an empty regular file may be covered.
fn refuse_occupied(path: &Path, found: &fs::Metadata) -> Result<(), FuseError> {
    let (what, remedy) = if found.is_dir() {
        ("is a directory", "give the path of the file that the disk shall become")
    } else if found.is_symlink() {
        ("is a symbolic link", "remove it or choose another path")
    } else if !found.is_file() {
        ("exists and is not a regular file", "remove it or choose another path")
    } else if found.len() > 0 {
        ("exists and is not empty", "move it away or choose another path")
    } else {
        return Ok(());
    };
    Err(FuseError::Occupied { path: path.to_owned(), what, remedy })
}

/// Removes the file at `path` if we made it. True if so.
fn remove_placeholder(path: &Path) -> bool {
    // Not while something is mounted there: that could be a living file of somebody else.
    if !matches!(mount_at(path), Ok(None)) {
        return false;
    }
    let ours = fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_file() && found.len() == 0 && found.mode() & 0o7777 == PLACEHOLDER_MODE
    });
    ours && fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("tw-mount-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn only_nothing_or_an_empty_file_is_covered() {
        let dir = scratch("cover");
        let file = dir.join("disk");
        // Who may not mount is told so of a place where one could.
        let check = |path: &Path| match check_place(path) {
            Err(FuseError::NoPrivilege { .. }) => Ok(()),
            other => other.map_err(|e| e.to_string()),
        };
        assert_eq!(check(&file), Ok(()));
        assert!(!file.exists(), "looking makes nothing");
        prepare_place(&file).unwrap();
        prepare_place(&file).unwrap();
        assert_eq!(check(&file), Ok(()));
        assert!(remove_placeholder(&file));
        assert!(!file.exists());
        fs::write(&file, "precious").unwrap();
        let link = dir.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for (place, named) in
            [(&file, "not empty"), (&dir, "is a directory"), (&link, "is a symbolic link")]
        {
            let refusal = prepare_place(place).unwrap_err().to_string();
            assert!(refusal.contains(named), "{refusal}");
            assert_eq!(check(place), Err(refusal));
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_users_empty_file_stays() {
        let dir = scratch("users");
        let file = dir.join("disk");
        fs::write(&file, "").unwrap();
        prepare_place(&file).unwrap();
        assert!(!remove_placeholder(&file));
        assert!(file.exists());
        assert!(clean_stale(&file).unwrap().is_none());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_forgotten_placeholder_is_reported() {
        let dir = scratch("forgotten");
        let file = dir.join("disk");
        prepare_place(&file).unwrap();
        let report = clean_stale(&file).unwrap().unwrap();
        assert!(report.contains("empty file"), "{report}");
        assert!(clean_stale(&file).unwrap().is_none());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = real_place(Path::new("/nonexistent-thinwire/disk")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent-thinwire"), "{error}");
    }
}
