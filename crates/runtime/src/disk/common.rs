//! What all rings on one open file or device share: the file itself, its lock, its size, and its writer
//! record. Usually there is one ring; see `spread.rs` for several.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, SeekFrom, flock, fstat, seek};
use thinwire_volume::{DiskInfo, SyncScope};

use super::writer::WriterStore;

/// No size was seen that is smaller than what was offered.
const NEVER_SHRUNK: u64 = u64::MAX;

/// An open, locked file or block device, for all threads that do its I/O. The lock is on the one descriptor
/// that all of them use, and goes with the last of them.
pub(super) struct Common {
    pub file: Arc<File>,
    pub path: PathBuf,
    /// What it was like when it was opened, but for its size.
    info: DiskInfo,
    /// A block device: it does not become long again by a write beyond its end, and has no holes.
    pub device: bool,
    /// See [`Parts`].
    pub may_grow: bool,
    pub scope: SyncScope,
    /// Looked at by threads that may wait, never by a shard.
    writer: Mutex<WriterStore>,
    /// The size that may have been offered: what was there when it was opened, and growth once it is kept.
    offered: AtomicU64,
    /// The smallest size that it has been seen with since it was found shorter than that.
    smallest: AtomicU64,
}

/// What [`Common::new`] is made of.
pub(super) struct Parts {
    pub file: Arc<File>,
    pub path: PathBuf,
    pub info: DiskInfo,
    pub device: bool,
    /// It is the same volume at the next start, if it has grown until then.
    pub may_grow: bool,
    pub writer: WriterStore,
    pub scope: SyncScope,
}

impl Common {
    /// Of a file whose lock the caller has taken; dropped, it lets go of that.
    pub fn new(parts: Parts) -> Self {
        let Parts { file, path, info, device, may_grow, writer, scope } = parts;
        Common {
            file,
            path,
            info,
            device,
            may_grow,
            scope,
            writer: Mutex::new(writer),
            offered: AtomicU64::new(info.bytes),
            smallest: AtomicU64::new(NEVER_SHRUNK),
        }
    }

    /// What it is like, with the size that is offered now.
    pub fn info(&self) -> DiskInfo {
        DiskInfo { bytes: self.offered(), ..self.info }
    }

    /// I/O goes to the device directly.
    pub fn is_direct(&self) -> bool {
        self.info.align_bytes > 1
    }

    /// The record. May wait for another thread's system calls on it.
    pub fn writer(&self) -> MutexGuard<'_, WriterStore> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size that may have been offered, in bytes.
    pub fn offered(&self) -> u64 {
        self.offered.load(Ordering::Acquire)
    }

    /// So many bytes are durable and remembered: they may be offered.
    pub fn offer(&self, bytes: u64) {
        self.offered.fetch_max(bytes, Ordering::AcqRel);
    }

    /// It was found shorter than was offered. Stays: what was there is gone.
    pub fn has_shrunk(&self) -> bool {
        self.smallest() != NEVER_SHRUNK
    }

    /// The smallest size that it was found with, in bytes; no bound if it was never shorter than was offered.
    pub fn smallest(&self) -> u64 {
        self.smallest.load(Ordering::Relaxed)
    }

    /// Its size now, in bytes; nothing if that cannot be told.
    fn bytes_now(&self) -> Option<u64> {
        match self.device {
            // The size that `fstat` tells of a device is none.
            true => seek(&*self.file, SeekFrom::End(0)).ok(),
            false => fstat(&*self.file).ok().map(|stat| stat.st_size as u64),
        }
    }

    /// Looks how large it is, and whether it has shrunk.
    pub fn look(&self) -> Seen {
        // Before the look: another thread may offer what the file grows by behind it.
        let offered = self.offered();
        let bytes = self.bytes_now();
        Seen { bytes, is_cut_news: bytes.is_some_and(|bytes| self.compare(offered, bytes)) }
    }

    /// Takes note of a size found after so many bytes had been offered; true if this is how it is found that
    /// it was cut. One that was not offered may come and go.
    fn compare(&self, offered: u64, bytes: u64) -> bool {
        if self.device || (bytes >= offered && !self.has_shrunk()) {
            return false;
        }
        let is_news = self.smallest.fetch_min(bytes, Ordering::Relaxed) == NEVER_SHRUNK;
        if is_news {
            tracing::error!(
                path = %self.path.display(),
                bytes_before = offered,
                bytes_now = bytes,
                "the file became shorter while it was served: reads beyond that end and all writes fail \
                 until it is opened again, however long it is by then"
            );
        }
        is_news
    }
}

/// What a look found.
pub(super) struct Seen {
    /// The size, if it could be told.
    pub bytes: Option<u64>,
    /// It was cut, and nobody knew: whoever looked has that remembered beside the record.
    pub is_cut_news: bool,
}

impl Drop for Common {
    /// Whoever has the descriptor still, such as a process between fork and exec, does not keep the lock.
    fn drop(&mut self) {
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}
