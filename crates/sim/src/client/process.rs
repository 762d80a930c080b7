//! What runs on a client's machine: an initiator, and perhaps the module that faces put on top of it.

use std::ops::{Deref, DerefMut};

use thinwire_buffer::Pool;
use thinwire_initiator::Initiator;
use thinwire_volume::{Completion, Io, Unaligned, Volume};

use crate::stamp::SECTOR_BYTES;

/// What users of an initiator see of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Top {
    /// The initiator itself: I/O is in its blocks.
    #[default]
    Blocks,
    /// Any range of sectors, however long, as through a face.
    AnyRange,
    /// That without the locks that it needs: what its test would find.
    AnyRangeUnlocked,
}

/// An initiator, which it stands for, and how I/O reaches it.
pub enum ClientProcess {
    /// [`Top::Blocks`].
    Blocks(Box<Initiator>),
    /// [`Top::AnyRange`].
    AnyRange(Box<Unaligned<Initiator>>),
}

impl ClientProcess {
    /// Puts on top what is wanted.
    pub(super) fn new(initiator: Initiator, top: Top, pool: &Pool) -> Self {
        match top {
            Top::Blocks => ClientProcess::Blocks(Box::new(initiator)),
            Top::AnyRange => {
                ClientProcess::AnyRange(Box::new(Unaligned::new(initiator, pool.clone())))
            }
            Top::AnyRangeUnlocked => {
                let module = Unaligned::new(initiator, pool.clone());
                ClientProcess::AnyRange(Box::new(module.without_locks()))
            }
        }
    }

    /// Submits an I/O from the top.
    pub(super) fn submit(&mut self, io: Io) {
        match self {
            ClientProcess::Blocks(initiator) => initiator.submit(io),
            ClientProcess::AnyRange(module) => module.submit(io),
        }
    }

    /// Completions at the top.
    pub(super) fn poll(&mut self, done: &mut Vec<Completion>) {
        match self {
            ClientProcess::Blocks(initiator) => initiator.poll(done),
            ClientProcess::AnyRange(module) => module.poll(done),
        }
    }

    /// See [`Top::AnyRange`].
    pub(super) fn takes_any_range(&self) -> bool {
        matches!(self, ClientProcess::AnyRange(_))
    }

    /// The sectors that I/O at the top has to be a multiple of, and those of the blocks below.
    pub(super) fn block_sectors(&self) -> (usize, usize) {
        let below = self.geometry().block_bytes as usize / SECTOR_BYTES;
        (if self.takes_any_range() { 1 } else { below }, below)
    }
}

impl Deref for ClientProcess {
    type Target = Initiator;

    fn deref(&self) -> &Initiator {
        match self {
            ClientProcess::Blocks(initiator) => initiator,
            ClientProcess::AnyRange(module) => module.inner(),
        }
    }
}

impl DerefMut for ClientProcess {
    fn deref_mut(&mut self) -> &mut Initiator {
        match self {
            ClientProcess::Blocks(initiator) => initiator,
            ClientProcess::AnyRange(module) => module.inner_mut(),
        }
    }
}
