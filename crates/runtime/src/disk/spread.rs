//! A file or device opened once for several threads, each with a ring of its own on it.
//!
//! One of them is the *owner*: its disk does all that a disk does. The others are *branches*, which read,
//! write, discard and zero, and nothing else: all syncs are the owner's, one at a time, since two of them on one
//! open file may share one error of the kernel, which tells it once; so is the writer record. There is one lock,
//! on the one descriptor that all use, and it goes with the last of them; of a killed process, with the last
//! I/O of any (`docs/protocol.md`, "Rules that keep data", rule 2). See `docs/design.md`, "Shards and steering".

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use thinwire_buffer::Pool;

use super::common::Common;
use super::open::{open_common, store_on, with_backend};
use super::real::Role;
use super::{Backend, DiskOpenError, DiskOptions, OpenedStore};

/// An open, locked file or block device on which each of several threads may have a store. It goes from thread to
/// thread; the stores stay where they are made. The lock goes when all clones and all stores have gone.
#[derive(Clone)]
pub struct SpreadDisk {
    common: Arc<Common>,
    block_bytes: u32,
    backend: Backend,
}

impl SpreadDisk {
    /// Opens a regular file or block device, as [`open`](super::open) does, for as many rings as will be made.
    ///
    /// # Errors
    /// As of that.
    pub fn open(
        path: &Path,
        options: &DiskOptions,
        notify: &mut dyn FnMut(&str),
    ) -> Result<Self, DiskOpenError> {
        let mut notes = Vec::new();
        let common = Arc::new(open_common(path, options, &mut notes, notify)?);
        notes.iter().for_each(|note| notify(note));
        Ok(SpreadDisk { common, block_bytes: options.block_bytes, backend: options.backend })
    }

    /// As it was opened.
    pub fn path(&self) -> &Path {
        &self.common.path
    }

    /// The volume of the thread that makes all syncs, keeps the writer record and finds growth, reading into
    /// memory of `pool`. There is one. What the user should know of it goes to `notify`.
    ///
    /// # Errors
    /// Neither a ring nor threads can be had, or too few descriptors.
    pub fn owner(
        &self,
        pool: &Pool,
        notify: &mut dyn FnMut(&str),
    ) -> Result<OpenedStore, DiskOpenError> {
        let mut notes = Vec::new();
        let opened = self.store(Role::Owner, pool, &mut notes);
        notes.iter().for_each(|note| notify(note));
        opened
    }

    /// The volume of another thread. Flushes, durable writes and writer records fail there, and count as lost:
    /// they are for the owner. It has the size that the owner has made durable, since it was last
    /// [refreshed](thinwire_volume::Volume::refresh).
    ///
    /// # Errors
    /// As of [`SpreadDisk::owner`].
    pub fn branch(&self, pool: &Pool) -> Result<OpenedStore, DiskOpenError> {
        // The owner says the same.
        self.store(Role::Branch, pool, &mut Vec::new())
    }

    fn store(
        &self,
        role: Role,
        pool: &Pool,
        notes: &mut Vec<String>,
    ) -> Result<OpenedStore, DiskOpenError> {
        let disk = with_backend(self.common.clone(), role, self.backend, notes)?;
        store_on(disk, self.common.is_direct(), &self.common.path, self.block_bytes, pool)
    }
}

impl fmt::Debug for SpreadDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spread: {:?}", self.common.path.display(), self.common.info())
    }
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;
