//! One type for both ways of reaching a disk.

use std::fmt;
use std::os::fd::RawFd;

use thinwire_volume::{Disk, DiskDone, DiskInfo, DiskOp, SyncScope};

use super::real::RealDisk;
use super::threads::Threads;
use super::uring::Uring;

/// An open disk: through io_uring or through threads. Belongs to the thread that opened it.
///
/// Dropping it waits for what the kernel still does with its memory, and lets go of the lock.
pub struct AnyDisk(Way);

enum Way {
    Uring(Box<RealDisk<Uring>>),
    Threads(Box<RealDisk<Threads>>),
}

/// Calls the same on whichever disk it is.
macro_rules! either {
    ($self:expr, $disk:ident => $call:expr) => {
        match $self {
            Way::Uring($disk) => $call,
            Way::Threads($disk) => $call,
        }
    };
}

impl AnyDisk {
    pub(super) fn uring(disk: RealDisk<Uring>) -> Self {
        AnyDisk(Way::Uring(Box::new(disk)))
    }

    pub(super) fn threads(disk: RealDisk<Threads>) -> Self {
        AnyDisk(Way::Threads(Box::new(disk)))
    }

    /// Readable when [`Disk::poll`] has something to take in. Valid as long as the disk; disks of one
    /// thread may share it. A sleep on it (epoll_wait) may also end with EINTR when a completion arrives;
    /// poll the disk then, too.
    pub fn fd(&self) -> RawFd {
        either!(&self.0, disk => disk.fd())
    }

    /// `io_uring` or `threads`: for status.
    pub fn backend(&self) -> &'static str {
        match self.0 {
            Way::Uring(_) => "io_uring",
            Way::Threads(_) => "threads",
        }
    }
}

impl fmt::Debug for AnyDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, info) = either!(&self.0, disk => (&disk.common.path, &disk.info));
        write!(f, "{} through {}: {info:?}", path.display(), self.backend())
    }
}

impl Disk for AnyDisk {
    fn info(&self) -> DiskInfo {
        either!(&self.0, disk => disk.info())
    }

    fn refresh(&mut self, block_bytes: u32) -> u64 {
        either!(&mut self.0, disk => disk.refresh(block_bytes))
    }

    fn has_shrunk(&self) -> bool {
        either!(&self.0, disk => disk.has_shrunk())
    }

    fn may_copy(&mut self, bytes: u64) -> bool {
        either!(&mut self.0, disk => disk.may_copy(bytes))
    }

    fn submit(&mut self, op: DiskOp) {
        either!(&mut self.0, disk => disk.submit(op));
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        either!(&mut self.0, disk => disk.poll(done));
    }

    fn wake_soon(&mut self) {
        either!(&mut self.0, disk => disk.wake_soon());
    }

    fn sync_scope(&self) -> SyncScope {
        either!(&self.0, disk => disk.sync_scope())
    }
}
