//! One open file, and the ring that each shard has on it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use thinwire_buffer::SegList;
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, Geometry, Identity, Io, Volume, VolumeEvent};

/// It has so many.
pub const BLOCKS: u64 = 16;

/// One file, open once: what all rings write, what is durable of it, and the error of a sync, which the
/// kernel tells once.
pub struct File {
    pub cached: [u64; BLOCKS as usize],
    pub durable: [u64; BLOCKS as usize],
    pub has_failed: bool,
    /// Blocks to which a write is under way: of two the order would not be known.
    pub busy: BTreeSet<u64>,
    pub record: SegList,
    /// Which all volumes hear of.
    pub losses: u64,
}

/// What one shard has of it.
#[derive(Default)]
pub struct Ring {
    /// With the generation under which a write was begun, and its version.
    pub flying: Vec<Flight>,
    pub ready: Vec<Completion>,
    pub told_losses: u64,
    pub outstanding: usize,
}

pub struct Flight {
    pub io: Io,
    pub generation: u64,
    pub version: u64,
}

/// The file by the ring of one shard, and the generation and version of the write that is being submitted.
pub struct RingVolume(pub Rc<RefCell<File>>, pub Rc<RefCell<Ring>>, pub Rc<RefCell<(u64, u64)>>);

impl Volume for RingVolume {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: BLOCKS * 512, ..Puppet::GEOMETRY }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        assert!(!io.flags.fua, "the owner syncs");
        let (generation, version) = *self.2.borrow();
        let mut ring = self.1.borrow_mut();
        ring.outstanding += 1;
        ring.flying.push(Flight { io, generation, version });
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut ring = self.1.borrow_mut();
        ring.outstanding -= ring.ready.len();
        done.append(&mut ring.ready);
    }

    fn outstanding(&self) -> usize {
        self.1.borrow().outstanding
    }

    fn events(&self) -> u64 {
        self.0.borrow().losses
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let losses = self.0.borrow().losses;
        let told = std::mem::replace(&mut self.1.borrow_mut().told_losses, losses);
        events.extend((told < losses).then_some(VolumeEvent::Lost));
    }
}
