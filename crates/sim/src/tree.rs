//! A volume made of others, as a gateway exports it and a client may stand on it: its shape, what is at
//! its bottom, and where its writer record is kept.

use std::cell::RefCell;
use std::ops::Range as Span;
use std::rc::Rc;

use thinwire_buffer::Pool;
use thinwire_modules::Linear;
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::{Completion, Geometry, Identity, Io, Op, Volume, VolumeEvent};

use crate::keys::Holder;
use crate::leaves::LeafMemory;
use crate::medium::MediumHandle;
use crate::stamp::SECTOR_BYTES;

/// How leaves are put together.
#[derive(Clone, Debug)]
pub enum Branch {
    /// The leaf of this number.
    Leaf(usize),
    /// These, one behind the other.
    Linear(Vec<Branch>),
}

impl Branch {
    /// Leaves from this number on, two for each volume of the lowest of three levels.
    pub fn even() -> Self {
        let pair = |first| Branch::Linear(vec![Branch::Leaf(first), Branch::Leaf(first + 1)]);
        let four = |first| Branch::Linear(vec![pair(first), pair(first + 2)]);
        Branch::Linear(vec![four(0), four(4)])
    }

    /// The same number of levels and leaves, some of them higher than others.
    pub fn uneven() -> Self {
        let leaves = |numbers: Span<usize>| numbers.map(Branch::Leaf);
        let lowest = Branch::Linear(leaves(2..6).collect());
        let middle = Branch::Linear([Branch::Leaf(1), lowest].into());
        Branch::Linear([Branch::Leaf(0), middle].into_iter().chain(leaves(6..8)).collect())
    }

    /// How many modules stand on one another, at most.
    pub fn levels(&self) -> u32 {
        match self {
            Branch::Leaf(_) => 0,
            Branch::Linear(below) => 1 + below.iter().map(Branch::levels).max().unwrap_or(0),
        }
    }
}

/// What is at the bottom.
#[derive(Clone, Debug)]
pub enum TreeLeaf {
    /// Memory of the process: gone with it.
    Memory {
        /// Size in bytes.
        bytes: u64,
    },
    /// A disk of the machine.
    File(MediumHandle),
    /// An export of a server.
    Remote {
        /// Its number in the world.
        export: usize,
        /// The server's name.
        node: String,
        /// The export's name.
        name: String,
        /// Where the content is, on that server.
        medium: MediumHandle,
    },
}

impl TreeLeaf {
    fn sizes(&self) -> (u64, u64) {
        match self {
            TreeLeaf::Memory { bytes } => (*bytes, *bytes),
            TreeLeaf::File(medium) | TreeLeaf::Remote { medium, .. } => medium.sizes(),
        }
    }

    /// Where its content is, wherever that is.
    pub fn medium(&self) -> Option<&MediumHandle> {
        match self {
            TreeLeaf::Memory { .. } => None,
            TreeLeaf::File(medium) | TreeLeaf::Remote { medium, .. } => Some(medium),
        }
    }
}

/// A tree of volumes.
#[derive(Clone)]
pub struct TreeStore {
    /// How they are put together.
    pub shape: Branch,
    /// In the order of their numbers.
    pub leaves: Vec<TreeLeaf>,
    /// Logical block of all that is not remote.
    pub block_bytes: u32,
    /// How large it was at first.
    pub bytes_drawn: u64,
    /// On the machine that serves it: where its writer record is kept.
    pub record: MediumHandle,
    /// Which key that machine greets others with, in a world with keys.
    pub holder: Option<Holder>,
    /// What that process remembers of the leaves besides.
    pub memory: Rc<RefCell<LeafMemory>>,
    /// A fault to plant: nobody asks who has written a leaf.
    pub unasked: bool,
    /// A fault to plant: no flush reaches this leaf.
    pub unflushed: Option<usize>,
}

impl TreeStore {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.sizes().0
    }

    /// Its size now, and the one that is left if all machines lose their power.
    pub fn sizes(&self) -> (u64, u64) {
        let sizes = self.leaves.iter().map(TreeLeaf::sizes);
        sizes.fold((0, 0), |(now, durable), sizes| (now + sizes.0, durable + sizes.1))
    }

    /// Disks of the machine that has it.
    pub fn own_media(&self) -> impl Iterator<Item = &MediumHandle> {
        let own = self.leaves.iter().filter_map(|leaf| match leaf {
            TreeLeaf::File(medium) => Some(medium),
            TreeLeaf::Memory { .. } | TreeLeaf::Remote { .. } => None,
        });
        own.chain([&self.record])
    }

    /// Where its content is, on any machine.
    pub fn content_media(&self) -> impl Iterator<Item = &MediumHandle> {
        self.leaves.iter().filter_map(TreeLeaf::medium)
    }

    /// The sectors of each leaf.
    pub fn places(&self) -> impl Iterator<Item = (&TreeLeaf, Span<usize>)> {
        let mut at = 0;
        self.leaves.iter().map(move |leaf| {
            let first = at;
            at += leaf.sizes().0 as usize / SECTOR_BYTES;
            (leaf, first..at)
        })
    }

    /// It, for a process that starts now, the number of whose life of memory is `incarnation`;
    /// `remote` gives what is attached for a leaf.
    pub fn open(
        &self,
        number: usize,
        incarnation: u64,
        pool: &Pool,
        remote: &mut dyn FnMut(usize) -> Box<dyn Volume>,
    ) -> Box<dyn Volume> {
        let mut leaf = |at: usize| -> Box<dyn Volume> {
            let volume: Box<dyn Volume> = match &self.leaves[at] {
                TreeLeaf::Memory { bytes } => {
                    let identity = [number as u8, at as u8].repeat(8).try_into().expect("16 bytes");
                    let identity = Identity { identity, incarnation };
                    Box::new(MemoryStore::new(*bytes, self.block_bytes, identity, pool))
                }
                TreeLeaf::File(medium) => {
                    let store = FileStore::new(medium.open(), self.block_bytes, pool);
                    Box::new(store.expect("it fits"))
                }
                TreeLeaf::Remote { .. } => remote(at),
            };
            match self.unflushed {
                Some(unflushed) if unflushed == at => Box::new(Unflushed::new(volume)),
                _ => volume,
            }
        };
        build(&self.shape, &mut leaf)
    }
}

fn build(shape: &Branch, leaf: &mut dyn FnMut(usize) -> Box<dyn Volume>) -> Box<dyn Volume> {
    match shape {
        Branch::Leaf(at) => leaf(*at),
        Branch::Linear(children) => {
            let children = children.iter().map(|child| build(child, leaf)).collect();
            Box::new(Linear::new(children).expect("all sizes are multiples of all blocks"))
        }
    }
}

/// A volume that no flush reaches, though all succeed.
struct Unflushed {
    below: Box<dyn Volume>,
    told: Vec<Completion>,
}

impl Unflushed {
    fn new(below: Box<dyn Volume>) -> Self {
        Unflushed { below, told: Vec::new() }
    }
}

impl Volume for Unflushed {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&mut self, io: Io) {
        match io.op {
            Op::Flush => self.told.push(Completion::new(io.token, Ok(()))),
            _ => self.below.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
        done.append(&mut self.told);
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding() + self.told.len()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.below.poll_events(events);
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }
}
