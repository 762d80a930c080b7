//! A file that somebody makes larger: its size, like its content, survives a power failure only once it
//! has been synced.

use super::MediumHandle;
use super::effects::Medium;
use crate::stamp::SECTOR_BYTES;

/// The sizes of a medium.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// What a power failure leaves, at least.
    pub durable: u64,
    /// Larger ones that are not durable yet, and the number of the effect that each is.
    pending: Vec<(u64, u64)>,
}

impl Sizes {
    pub fn new(bytes: u64) -> Self {
        Sizes { durable: bytes, pending: Vec::new() }
    }

    /// A sync has saved what has a number below `mark`.
    pub fn settle(&mut self, mark: u64) {
        let saved = self.pending.iter().filter(|(number, _)| *number < mark);
        self.durable = saved.map(|&(_, bytes)| bytes).fold(self.durable, u64::max);
        self.pending.retain(|(number, _)| *number >= mark);
    }
}

impl Medium {
    fn resize(&mut self, bytes: u64) {
        self.config.bytes = bytes;
        self.durable.resize(bytes as usize, 0);
        self.current.resize(bytes as usize, 0);
        self.durable_number.resize(bytes as usize / SECTOR_BYTES, 0);
    }

    fn grow(&mut self, bytes: u64) {
        assert!(bytes > self.config.bytes && bytes.is_multiple_of(4096));
        self.resize(bytes);
        self.sizes.pending.push((self.next_number, bytes));
        self.next_number += 1;
    }

    /// The power has failed: sizes that were not durable are kept or lost.
    pub(super) fn forget_growth(&mut self) {
        if !self.sizes.pending.is_empty() {
            if self.rng.chance(0.5) {
                self.sizes.settle(u64::MAX);
            }
            self.sizes.pending.clear();
            self.resize(self.sizes.durable);
        }
    }
}

impl MediumHandle {
    /// Somebody makes it so large, whoever has it.
    pub fn grow(&self, bytes: u64) {
        self.medium.borrow_mut().grow(bytes);
    }

    /// Its size now, and the one that a power failure leaves.
    pub fn sizes(&self) -> (u64, u64) {
        let m = self.medium.borrow();
        (m.config.bytes, m.sizes.durable)
    }
}
