//! A volume made of others, as a gateway exports it and a client may stand on it: its shape, what is at
//! its bottom, and where its writer record is kept.

use std::cell::RefCell;
use std::ops::Range as Span;
use std::rc::Rc;

use thinwire_buffer::{Pool, Time};
use thinwire_link::rng::Rng;
use thinwire_modules::{Linear, Slice, Stripe};
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::{
    CacheReport, Completion, Geometry, Identity, Io, MirrorReport, Op, Volume, VolumeEvent,
};

use crate::keys::Holder;
use crate::leaves::LeafMemory;
use crate::medium::MediumHandle;
use crate::model::Violation;
use crate::stamp::SECTOR_BYTES;

/// How leaves are put together.
#[derive(Clone, Debug)]
pub enum Branch {
    /// The leaf of this number.
    Leaf(usize),
    /// These, one behind the other.
    Linear(Vec<Branch>),
    /// These by turns, so many bytes of each.
    Stripe(u64, Vec<Branch>),
    /// Of one, from this byte on so many.
    Slice(u64, u64, Box<Branch>),
}

/// Where some of a tree lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the leaf.
    pub leaf: usize,
    /// First sector there.
    pub from: usize,
    /// First sector of the tree.
    pub first: usize,
    /// Sectors.
    pub count: usize,
}

/// Bytes of a leaf that lie together: its number, the first of them, and how many.
type Run = (usize, u64, u64);

/// Chunks of stripes, in bytes: no leaf is smaller.
const CHUNKS: [u64; 3] = [4 << 10, 8 << 10, 16 << 10];
/// Slices leave out, and leave, a multiple of this.
const SLICE_STEP: u64 = 16 << 10;

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

    /// Leaves of these sizes, put together by all modules on three levels at least. The last stands at the end of the
    /// whole, so that this grows with it.
    pub fn mixed(sizes: &[u64], dice: &mut Rng) -> Self {
        let last = sizes.len() - 1;
        let level = (0..last).map(Branch::Leaf).collect();
        let lowest = Self::level(level, sizes, dice);
        let middle = Self::level(lowest, sizes, dice);
        Branch::Linear(middle.into_iter().chain([Branch::Leaf(last)]).collect())
    }

    /// Modules over all of these, in their order.
    fn level(below: Vec<Branch>, sizes: &[u64], dice: &mut Rng) -> Vec<Branch> {
        let mut above = Vec::new();
        let mut below = below.into_iter().peekable();
        while below.peek().is_some() {
            let several = |below: &mut dyn Iterator<Item = Branch>, dice: &mut Rng| {
                below.take(dice.between(2, 4) as usize).collect()
            };
            above.push(match dice.below(4) {
                0 => Branch::Linear(several(&mut below, dice)),
                1 | 2 => {
                    let chunk = CHUNKS[dice.below(CHUNKS.len() as u64) as usize];
                    Branch::Stripe(chunk, several(&mut below, dice))
                }
                _ => {
                    let of = below.next().expect("just seen");
                    let bytes: u64 = of.runs(sizes).iter().map(|run| run.2).sum();
                    let from = dice.below((bytes - 1) / SLICE_STEP + 1) * SLICE_STEP;
                    let most = (bytes - from).div_ceil(SLICE_STEP);
                    let size = (dice.between(1, most) * SLICE_STEP).min(bytes - from);
                    Branch::Slice(from, size, Box::new(of))
                }
            });
        }
        above
    }

    /// How many modules stand on one another, at most.
    pub fn levels(&self) -> u32 {
        let highest = |below: &[Branch]| below.iter().map(Branch::levels).max().unwrap_or(0);
        match self {
            Branch::Leaf(_) => 0,
            Branch::Linear(below) | Branch::Stripe(_, below) => 1 + highest(below),
            Branch::Slice(_, _, below) => 1 + below.levels(),
        }
    }

    /// Where its sectors lie, in their order, on leaves of these sizes.
    fn places(&self, sizes: &[u64]) -> Vec<Place> {
        let sectors = |bytes: u64| bytes as usize / SECTOR_BYTES;
        let mut first = 0;
        let place = |(leaf, from, bytes): Run| {
            let place = Place { leaf, from: sectors(from), first, count: sectors(bytes) };
            first += place.count;
            place
        };
        self.runs(sizes).into_iter().map(place).collect()
    }

    /// Where its bytes lie, in their order, on leaves of these sizes.
    fn runs(&self, sizes: &[u64]) -> Vec<Run> {
        match self {
            Branch::Leaf(at) => vec![(*at, 0, sizes[*at])],
            Branch::Linear(below) => below.iter().flat_map(|child| child.runs(sizes)).collect(),
            Branch::Slice(from, size, below) => part(&below.runs(sizes), *from, *size),
            Branch::Stripe(chunk, below) => {
                let below: Vec<_> = below.iter().map(|child| child.runs(sizes)).collect();
                let bytes = |runs: &Vec<Run>| runs.iter().map(|run| run.2).sum::<u64>();
                let rows = below.iter().map(bytes).min().unwrap_or(0) / chunk;
                let row = |row| below.iter().flat_map(move |runs| part(runs, row * chunk, *chunk));
                (0..rows).flat_map(row).collect()
            }
        }
    }
}

/// So many bytes of them, from this one on.
fn part(runs: &[Run], from: u64, bytes: u64) -> Vec<Run> {
    let (mut at, end, mut found) = (0, from + bytes, Vec::new());
    for &(leaf, first, len) in runs {
        let (start, stop) = (from.max(at), end.min(at + len));
        if start < stop {
            found.push((leaf, first + start - at, stop - start));
        }
        at += len;
    }
    found
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

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.sizes().0
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
        let (now, durable): (Vec<u64>, Vec<u64>) = self.leaves.iter().map(TreeLeaf::sizes).unzip();
        let bytes = |sizes: &[u64]| self.shape.runs(sizes).iter().map(|run| run.2).sum();
        (bytes(&now), bytes(&durable))
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

    /// Where its sectors lie, in their order.
    pub fn places(&self) -> Vec<Place> {
        let sizes: Vec<u64> = self.leaves.iter().map(TreeLeaf::bytes).collect();
        self.shape.places(&sizes)
    }

    /// Nobody has written what no module has a place for, as behind the end of a slice.
    pub fn check_rest(&self) -> Result<(), Violation> {
        let places = self.places();
        for (number, leaf) in self.leaves.iter().enumerate() {
            let Some(mut image) = leaf.medium().map(MediumHandle::durable) else { continue };
            for place in places.iter().filter(|place| place.leaf == number) {
                let end = ((place.from + place.count) * SECTOR_BYTES).min(image.len());
                image[(place.from * SECTOR_BYTES).min(end)..end].fill(0);
            }
            if let Some(at) = image.iter().position(|byte| *byte != 0) {
                let text = format!(
                    "leaf {number} holds something at {at}, where nothing of the tree lies"
                );
                return Err(Violation(text));
            }
        }
        Ok(())
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
    let mut all = |below: &[Branch]| below.iter().map(|child| build(child, leaf)).collect();
    let fits = "all sizes are multiples of all blocks";
    match shape {
        Branch::Leaf(at) => leaf(*at),
        Branch::Linear(below) => Box::new(Linear::new(all(below)).expect(fits)),
        Branch::Stripe(chunk, below) => Box::new(Stripe::new(all(below), *chunk).expect(fits)),
        Branch::Slice(from, size, below) => {
            let below = all(std::slice::from_ref(below));
            Box::new(Slice::new(below, *from, Some(*size)).expect(fits))
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

    fn wind_up(&mut self) {
        self.below.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.below.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.below.caches(found);
    }

    fn is_timed(&self) -> bool {
        self.below.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.below.turn(now)
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::SegList;
    use thinwire_volume::Io;

    use super::*;
    use crate::medium::MediumConfig;

    const SECTOR: u64 = SECTOR_BYTES as u64;

    fn finish(volume: &mut dyn Volume, io: Io) -> SegList {
        volume.submit(io);
        let mut done = Vec::new();
        while done.is_empty() {
            volume.poll(&mut done);
        }
        assert_eq!(done[0].result, Ok(()));
        done.remove(0).data
    }

    /// What a sector of a leaf holds.
    fn sector_of(leaf: usize, at: usize) -> Vec<u8> {
        [leaf as u8, at as u8, (at >> 8) as u8, 7].repeat(SECTOR_BYTES / 4)
    }

    /// What is written in front of a slice, or behind it, is found.
    #[test]
    fn what_no_module_has_a_place_for_is_looked_at() {
        let medium = |number: u8| {
            let config = MediumConfig { bytes: 64 << 10, ..MediumConfig::default() };
            MediumHandle::new(number.into(), [number; 16], config)
        };
        let leaf = medium(1);
        let shape = Branch::Slice(SLICE_STEP, SLICE_STEP, Box::new(Branch::Leaf(0)));
        let tree = TreeStore {
            shape,
            leaves: vec![TreeLeaf::File(leaf.clone())],
            block_bytes: 512,
            bytes_drawn: SLICE_STEP,
            record: medium(2),
            holder: None,
            memory: Rc::default(),
            unasked: false,
            unflushed: None,
        };
        let sectors = SLICE_STEP as usize / SECTOR_BYTES;
        for (at, is_right) in [(sectors, true), (2 * sectors - 1, true), (2 * sectors, false)] {
            leaf.write_durably(at, vec![7; SECTOR_BYTES]);
            assert_eq!(tree.check_rest().is_ok(), is_right, "sector {at}");
        }
    }

    /// The modules of a tree put its sectors where the checks look for them.
    #[test]
    fn a_sector_is_where_it_is_said_to_be() {
        let pool = Pool::new(1 << 20);
        let (mut stripes, mut slices, mut pairs) = (0, 0, 0);
        for seed in 0..100 {
            let mut dice = Rng::new(seed);
            let size = |_| [16 << 10, 64 << 10, 256 << 10][dice.below(3) as usize];
            let sizes: Vec<u64> = (0..8).map(size).collect();
            let shape = Branch::mixed(&sizes, &mut dice);
            assert!(shape.levels() >= 3, "{shape:?}");
            let text = format!("{shape:?}");
            stripes += text.matches("Stripe").count();
            slices += text.matches("Slice").count();
            pairs += text.matches("Stripe(4096, [Stripe").count();
            let mut tree = build(&shape, &mut |leaf| {
                let identity = Identity { identity: [leaf as u8; 16], incarnation: 1 };
                let mut store = MemoryStore::new(sizes[leaf], 512, identity, &pool);
                for at in 0..sizes[leaf] as usize / SECTOR_BYTES {
                    let data = SegList::of(pool.copy_of(&sector_of(leaf, at)).freeze());
                    let io = Io::new(1, Op::Write, at as u64 * SECTOR, SECTOR);
                    finish(&mut store, Io { data, ..io });
                }
                Box::new(store)
            });
            let mut next = 0;
            for place in shape.places(&sizes) {
                assert_eq!(place.first, next);
                next += place.count;
                for at in 0..place.count {
                    let offset = (place.first + at) as u64 * SECTOR;
                    let found = finish(&mut *tree, Io::new(1, Op::Read, offset, SECTOR)).to_vec();
                    assert_eq!(found, sector_of(place.leaf, place.from + at), "{shape:?}");
                }
            }
            assert_eq!(tree.geometry().bytes, next as u64 * SECTOR, "{shape:?}");
        }
        assert!(stripes > 50 && slices > 20 && pairs > 0, "{stripes} {slices} {pairs}");
    }
}
