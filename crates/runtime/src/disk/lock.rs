//! The lock that keeps two writers apart.
//!
//! Dead processes still write (`docs/protocol.md`, "Rules that keep data", rule 2): a killed process's
//! io_uring goes on writing. Its lock lives on the same open file description as its I/O, so it is gone only when that I/O is done; a
//! successor waits for it here.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Stat, flock, fstat, major, minor};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::{DiskOpenError, DiskOptions};

/// How often a taken lock is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// Takes the lock of an open file: shared for readers, exclusive for writers. Waits as `options` say;
/// says so through `notify` once.
pub(super) fn acquire(
    file: &File,
    path: &Path,
    options: &DiskOptions,
    notify: &mut dyn FnMut(&str),
) -> Result<(), DiskOpenError> {
    let operation = if options.read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    retry(
        path,
        options,
        notify,
        || fstat(file).map(|stat| holder(&stat)),
        || flock(file, operation),
    )
    .map_err(|error| match error {
        DiskOpenError::Os { path, source, .. } => DiskOpenError::NoLocks { path, source },
        other => other,
    })
}

/// Tries `attempt` until it is no longer refused because somebody else has the file.
pub(super) fn retry<T>(
    path: &Path,
    options: &DiskOptions,
    notify: &mut dyn FnMut(&str),
    holder: impl Fn() -> Result<String, Errno>,
    mut attempt: impl FnMut() -> Result<T, Errno>,
) -> Result<T, DiskOpenError> {
    let (begin, wait) = (Instant::now(), options.wait_lock);
    let mut told = false;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(Errno::AGAIN | Errno::BUSY) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => {
                let path = path.to_owned();
                return Err(DiskOpenError::Os { path, what: "lock it", source: errno.into() });
            }
        }
        let waited = begin.elapsed();
        if waited >= wait {
            let holder = holder().unwrap_or_else(|_| "another process".into());
            return Err(DiskOpenError::Busy { path: path.to_owned(), holder, waited });
        }
        if !told {
            told = true;
            let holder = holder().unwrap_or_else(|_| "another process".into());
            notify(&format!(
                "{}: is in use by {holder}; waiting up to {} s for it",
                path.display(),
                wait.as_secs()
            ));
        }
        if nap(RETRY.min(wait - waited), options.stop.as_deref()) {
            let holder = holder().unwrap_or_else(|_| "another process".into());
            return Err(DiskOpenError::Interrupted { path: path.to_owned(), holder });
        }
    }
}

/// Sleeps for so long, or until `stop` is readable; true if it is.
fn nap(time: Duration, stop: Option<&OwnedFd>) -> bool {
    let Some(stop) = stop else {
        std::thread::sleep(time);
        return false;
    };
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
}

/// How often /proc/locks is read before a holder counts as not to be found.
const LOOKS: usize = 5;

/// All that /proc/locks tells, in as few reads as the kernel allows: each goes on by counting lines, and
/// misses one when another lock is let go of in between.
fn locks() -> io::Result<String> {
    let mut file = File::open("/proc/locks")?;
    let (mut all, mut page) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut page)? {
            0 => return Ok(String::from_utf8_lossy(&all).into_owned()),
            len => all.extend_from_slice(&page[..len]),
        }
    }
}

/// Who holds a lock on this file: `process 123 (thinwire)`, or this process itself, as far as /proc/locks tells.
fn holder(stat: &Stat) -> String {
    let look = |_| {
        let locks = locks().unwrap_or_default();
        find_holder(&locks, major(stat.st_dev), minor(stat.st_dev), stat.st_ino)
    };
    match (0..LOOKS).find_map(look) {
        Some(pid) if pid == std::process::id() => "this process itself".into(),
        Some(pid) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end()),
            Err(_) => format!("process {pid} (gone; its last I/O is not finished yet)"),
        },
        None => "another process".into(),
    }
}

/// The first process with a flock on that inode. A line of /proc/locks:
/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:131 0 EOF`, the device in hexadecimal.
fn find_holder(locks: &str, major: u32, minor: u32, inode: u64) -> Option<u32> {
    let wanted = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // Lines with an arrow are those who wait.
        (words.next()? == "FLOCK").then_some(())?;
        let pid = words.nth(2)?;
        (words.next()? == wanted).then_some(())?;
        pid.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_not_told_as_another() {
        let path = std::env::temp_dir().join(format!("thinwire-own-lock-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(holder(&fstat(&file).unwrap()), "this process itself");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_holder_is_found_among_others() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:131 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:00:132 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 13 fe:10:131 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 fe:10:131 0 EOF\n";
        assert_eq!(find_holder(locks, 0xfe, 0, 132), Some(12));
        assert_eq!(find_holder(locks, 0xfe, 0x10, 131), Some(13));
        assert_eq!(find_holder(locks, 0xfe, 0, 131), None);
        assert_eq!(find_holder("garbage\n\n1: FLOCK", 0xfe, 0, 131), None);
    }
}
