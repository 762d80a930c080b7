//! What runs on a client's machine: an initiator, and perhaps the module that faces put on top of it.

use std::ops::{Deref, DerefMut};

use thinwire_buffer::{LinkInfo, Pool};
use thinwire_initiator::Initiator;
use thinwire_node::{Lane, Node, PartId};
use thinwire_volume::{Completion, Io, Port, Unaligned, Volume};

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

/// A node with an initiator, which it stands for, and how I/O reaches it.
pub struct ClientProcess {
    node: Node,
    initiator: PartId<Initiator>,
    top: Top,
    /// What stands on the initiator, if anything does, once that is open.
    module: Option<Unaligned<Port>>,
    pool: Pool,
}

impl ClientProcess {
    /// Puts on top what is wanted.
    pub(super) fn new(initiator: Initiator, links: Vec<LinkInfo>, top: Top, pool: &Pool) -> Self {
        let all = (0..links.len()).collect();
        let mut node = Node::new(links);
        let initiator = node.add(initiator, all, &Lane::ALL);
        ClientProcess { node, initiator, top, module: None, pool: pool.clone() }
    }

    /// The node, for whoever drives it.
    pub(super) fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// The module, once there can be one.
    fn module(&mut self) -> Option<&mut Unaligned<Port>> {
        if self.module.is_none() && self.top != Top::Blocks && self.is_open() {
            let module = Unaligned::new(self.node.port(self.initiator), self.pool.clone());
            let is_locked = self.top == Top::AnyRange;
            self.module = Some(if is_locked { module } else { module.without_locks() });
        }
        self.module.as_mut()
    }

    /// Submits an I/O from the top.
    pub(super) fn submit(&mut self, io: Io) {
        match self.module() {
            Some(module) => module.submit(io),
            None => self.node.volume(self.initiator).submit(io),
        }
    }

    /// Completions at the top.
    pub(super) fn poll(&mut self, done: &mut Vec<Completion>) {
        match self.module() {
            Some(module) => module.poll(done),
            None => self.node.volume(self.initiator).poll(done),
        }
    }

    /// The module has I/Os below it.
    pub(super) fn is_settling(&self) -> bool {
        self.module.as_ref().is_some_and(|module| module.inner().outstanding() > 0)
    }

    /// See [`Top::AnyRange`].
    pub(super) fn takes_any_range(&self) -> bool {
        self.top != Top::Blocks
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
        self.node.get(self.initiator).expect("it is never removed")
    }
}

impl DerefMut for ClientProcess {
    fn deref_mut(&mut self) -> &mut Initiator {
        self.node.get_mut(self.initiator).expect("it is never removed")
    }
}
