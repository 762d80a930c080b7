//! Lock files: each is held (flock) as long as something lives, and only its owner can open it, so
//! nobody else can hold it.
//!
//! A lock file is removed when it is let go. Those of processes that were killed stay until the next
//! one takes or sweeps them. Claims and removals in one folder happen one at a time, under the lock of
//! a guard file, so that a file that is removed is never one that somebody is just about to hold.
//!
//! A lock file that others may open, as earlier versions made them, cannot be trusted even after its
//! mode is mended: a stranger may have it open. It is replaced by another as soon as none of this
//! user's processes has it open, whoever holds the old one.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::folder::Folder;

/// Its owner alone may open a lock.
const LOCK_MODE: u32 = 0o600;
/// Claims in a folder are made under this lock. No attachment can have such a name.
pub const GUARD: &str = ".claim.lock";
/// A claim takes microseconds.
const GUARD_PATIENCE: Duration = Duration::from_secs(5);
/// How often is looked whether a lock is free.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A lock that is held. Dropping it removes the file and lets go.
#[derive(Debug)]
pub struct Lock {
    folder: Folder,
    name: String,
    file: File,
}

impl Lock {
    /// Lets go but leaves the file, as a killed process does.
    #[cfg(test)]
    pub fn abandon(mut self) {
        // Without a name there is nothing to remove.
        self.name.clear();
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is held, nobody else removes or replaces it.
        if matches!(self.folder.is(&self.name, &self.file), Ok(true)) {
            let _ = self.folder.remove(&self.name);
        }
    }
}

/// Makes and holds a lock file; `None` if somebody else holds it for longer than `patience`.
pub fn lock(folder: &Folder, name: &str, patience: Duration) -> io::Result<Option<Lock>> {
    let deadline = Instant::now() + patience;
    loop {
        let guard = guard(folder)?;
        if let Some(file) = take(folder, name)? {
            return Ok(Some(Lock { folder: folder.clone(), name: name.to_owned(), file }));
        }
        drop(guard);
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Removes the lock files that nobody holds.
pub fn sweep(folder: &Folder) -> io::Result<()> {
    let _guard = guard(folder)?;
    for name in folder.names()? {
        if name.ends_with(".lock")
            && name != GUARD
            && let Ok(file) = folder.file(&name, OFlags::RDWR, 0)
            && (hold(&file)? || is_strangers(&file))
            && folder.is(&name, &file)?
        {
            folder.remove(&name)?;
        }
    }
    Ok(())
}

/// Whether somebody holds a lock file, which may be missing.
///
/// # Errors
/// Permission denied, if this user may not look.
pub fn is_held(folder: &Folder, name: &str) -> io::Result<bool> {
    let file = match folder.file(name, OFlags::RDONLY, 0) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(!is_strangers(&file)),
        Err(e) => Err(e.into()),
    }
}

/// The lock under which claims are made and files removed.
fn guard(folder: &Folder) -> io::Result<Lock> {
    let deadline = Instant::now() + GUARD_PATIENCE;
    loop {
        let opened = folder.file(GUARD, OFlags::RDWR | OFlags::CREATE, LOCK_MODE);
        let file = opened.map_err(|e| {
            io::Error::new(e.kind(), format!("{}: {e}", folder.path().join(GUARD).display()))
        })?;
        // Whoever had it before has removed the file, perhaps this very one.
        if hold(&file)? {
            if folder.is(GUARD, &file)? {
                return Ok(Lock { folder: folder.clone(), name: GUARD.to_owned(), file });
            }
        } else if Instant::now() >= deadline {
            let path = folder.path().join(GUARD);
            let why = format!("{} is held by a process that does not let go", path.display());
            return Err(io::Error::other(why));
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Holds a lock file, new or old; `None` if somebody else does. Under the guard.
fn take(folder: &Folder, name: &str) -> io::Result<Option<File>> {
    loop {
        let file = folder.file(name, OFlags::RDWR | OFlags::CREATE, LOCK_MODE)?;
        let held = hold(&file)?;
        if is_loose(&file)? {
            if !held && !is_strangers(&file) {
                return Ok(None);
            }
            folder.remove(name)?;
        } else if !held {
            return Ok(None);
        } else if folder.is(name, &file)? {
            return Ok(Some(file));
        }
        // Replaced, or removed by who held it until now: the next one is another file.
    }
}

/// Tries to hold a lock file.
fn hold(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Others may open it, or might when it was made.
fn is_loose(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.mode() & 0o077 != 0)
}

/// Whether a lock file that is held is held by a stranger only: others may open it, and none of this
/// user's processes has it open. Where that cannot be told, no.
fn is_strangers(file: &File) -> bool {
    matches!(is_loose(file), Ok(true)) && matches!(is_open_here(file), Ok(false))
}

/// Whether another process of this user has the file open.
///
/// # Errors
/// If one does not let us look: a program with capabilities of its own is like that.
fn is_open_here(file: &File) -> io::Result<bool> {
    let wanted = file.metadata()?;
    let (user, myself) = (rustix::process::geteuid().as_raw(), std::process::id());
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        // It may end meanwhile.
        if number.is_none_or(|pid| pid == myself) || user_of(&entry.path()) != Some(user) {
            continue;
        }
        let open = match std::fs::read_dir(entry.path().join("fd")) {
            Ok(open) => open,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(e),
            Err(_) => continue,
        };
        let same =
            |found: std::fs::Metadata| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino());
        if open.flatten().any(|fd| std::fs::metadata(fd.path()).is_ok_and(same)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The effective user of a process, from its folder in /proc, whose own owner may be another.
fn user_of(process: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Way;
    use crate::testing::TempDir;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    const NOW: Duration = Duration::ZERO;
    const STRANGER: u32 = 65534;

    fn folder(temp: &TempDir) -> Folder {
        Folder::open(temp.path(), Way { make: true, by_default: false }).unwrap().unwrap()
    }

    /// A process of some user that holds a lock until it is dropped.
    struct Holder(Child);

    impl Holder {
        fn new(path: &Path, uid: u32) -> Self {
            let mut command = Command::new("flock");
            command.arg("--no-fork").arg(path).args(["sh", "-c", "echo; exec sleep 60"]);
            let mut child = command.uid(uid).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = [0];
            io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            Holder(child)
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_lock_is_its_owner_s_alone_and_goes_when_let_go() {
        let temp = TempDir::new("lock");
        let folder = folder(&temp);
        let held = lock(&folder, "a.lock", NOW).unwrap().unwrap();
        assert_eq!(held.file.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(is_held(&folder, "a.lock").unwrap());
        assert!(lock(&folder, "a.lock", NOW).unwrap().is_none());
        drop(held);
        assert!(!is_held(&folder, "a.lock").unwrap());
        assert!(folder.names().unwrap().is_empty());
    }

    #[test]
    fn what_the_dead_leave_is_swept() {
        let temp = TempDir::new("lock-sweep");
        let folder = folder(&temp);
        let alive = lock(&folder, "alive.lock", NOW).unwrap().unwrap();
        lock(&folder, "dead.lock", NOW).unwrap().unwrap().abandon();
        std::fs::write(temp.path().join("other"), "").unwrap();
        sweep(&folder).unwrap();
        let mut names = folder.names().unwrap();
        names.sort();
        assert_eq!(names, ["alive.lock", "other"]);
        drop(alive);
    }

    #[test]
    fn a_lock_that_others_may_open_is_replaced() {
        let temp = TempDir::new("lock-loose");
        let folder = folder(&temp);
        let path = temp.path().join("a.lock");
        let loose = || {
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            File::open(&path).unwrap()
        };
        let old = loose();
        let held = lock(&folder, "a.lock", NOW).unwrap().unwrap();
        assert_ne!(held.file.metadata().unwrap().ino(), old.metadata().unwrap().ino());
        assert_eq!(held.file.metadata().unwrap().mode() & 0o777, 0o600);
        drop(held);
        // One of ours that holds it, of an earlier version, is left alone.
        loose();
        let us = rustix::process::geteuid().as_raw();
        let ours = Holder::new(&path, us);
        assert!(is_held(&folder, "a.lock").unwrap());
        assert!(lock(&folder, "a.lock", NOW).unwrap().is_none());
        sweep(&folder).unwrap();
        assert!(path.exists());
        drop(ours);
        // A stranger is not.
        if us != 0 {
            return;
        }
        loose();
        let _theirs = Holder::new(&path, STRANGER);
        assert!(!is_held(&folder, "a.lock").unwrap());
        let held = lock(&folder, "a.lock", NOW).unwrap().unwrap();
        assert!(is_held(&folder, "a.lock").unwrap());
        drop(held);
        assert!(folder.names().unwrap().is_empty());
    }

    #[test]
    fn many_claim_at_once_and_one_has_it() {
        let temp = TempDir::new("lock-race");
        let folder = folder(&temp);
        let holders = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        if let Some(held) = lock(&folder, "a.lock", NOW).unwrap() {
                            use std::sync::atomic::Ordering::SeqCst;
                            assert_eq!(holders.fetch_add(1, SeqCst), 0);
                            holders.fetch_sub(1, SeqCst);
                            drop(held);
                        }
                        sweep(&folder).unwrap();
                    }
                });
            }
        });
    }
}
