//! What a gateway remembers of its leaves beside its record, and somebody who writes one of them while it is
//! down, under a writer generation of that leaf (rule 3).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::Pool;
use thinwire_link::rng::Rng;
use thinwire_volume::stores::FileStore;
use thinwire_volume::{Disk, DiskDone, DiskOp, DiskOpKind, Grant, LeafGrant, RecordPlace};

use crate::export::{Export, Store};
use crate::medium::{MediumHandle, SimDisk};
use crate::model::{ModelEffect, Range};
use crate::server::Server;
use crate::stamp::SECTOR_BYTES;
use crate::tree::{TreeLeaf, TreeStore};
use crate::world::World;

/// What a gateway keeps durably of an export's leaves.
#[derive(Debug, Default)]
pub struct LeafMemory {
    /// Under which generations it held them.
    generations: Vec<u64>,
    /// Grants that it has not used.
    unused: BTreeMap<usize, LeafGrant>,
    /// Generations to which its record was raised, or may have been.
    raised: Vec<u64>,
}

impl LeafMemory {
    /// A leaf has just been granted to a process.
    pub fn granted(&mut self, leaf: usize, generation: u64) {
        let before = self.unused.get(&leaf).copied();
        self.unused.insert(leaf, LeafGrant::behind(before, generation));
    }

    /// It is another export's from now on, of some of the same leaves.
    pub fn begin_anew(&mut self) {
        (self.generations, self.raised) = (Vec::new(), Vec::new());
    }

    /// Whether it may have fenced a writer of this generation, for somebody who had a leaf.
    pub fn has_fenced(&self, generation: u64) -> bool {
        self.raised.iter().any(|&raised| raised > generation)
    }

    /// How often it has fenced whoever was the writer.
    pub fn raised(&self) -> u64 {
        self.raised.len() as u64
    }
}

/// The place of a gateway's record: a disk for that, and its memory.
pub(crate) struct TreeRecord {
    disk: SimDisk,
    memory: Rc<RefCell<LeafMemory>>,
    found: Vec<u64>,
    /// To be durable behind the next record, and whether that is raised.
    next: Option<(Vec<u64>, bool)>,
}

impl TreeRecord {
    pub fn new(disk: SimDisk, memory: Rc<RefCell<LeafMemory>>) -> Self {
        TreeRecord { disk, memory, found: Vec::new(), next: None }
    }
}

impl RecordPlace for TreeRecord {
    fn submit(&mut self, op: DiskOp) {
        if let (DiskOpKind::StoreWriter(record), Some((_, true))) = (&op.kind, &self.next) {
            self.memory.borrow_mut().raised.push(record.generation);
        }
        Disk::submit(&mut self.disk, op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        let before = done.len();
        Disk::poll(&mut self.disk, done);
        for one in &done[before..] {
            let memory = &mut *self.memory.borrow_mut();
            match (&one.kind, one.result) {
                (DiskOpKind::LoadWriter(_), Ok(())) => self.found = memory.generations.clone(),
                (DiskOpKind::StoreWriter(_), Ok(())) => {
                    if let Some((generations, _)) = self.next.take() {
                        memory.generations = generations;
                        memory.unused.clear();
                    }
                }
                // Both are in one file: where the record is there all the same, so are they.
                (DiskOpKind::StoreWriter(record), Err(_)) => {
                    if let Some((generations, _)) = &self.next
                        && self.disk.has_record(record)
                    {
                        memory.generations.clone_from(generations);
                    }
                }
                _ => {}
            }
        }
    }

    fn remembered(&self) -> Vec<u64> {
        self.found.clone()
    }

    fn remember(&mut self, generations: Vec<u64>, others: Vec<usize>) {
        self.next = Some((generations, !others.is_empty()));
    }
}

/// Who a gateway is on its own disks, and who is nobody of the world's.
const GATEWAY: [u8; 16] = [0xe0; 16];
const STRANGER: [u8; 16] = [0xed; 16];
/// Runs of strangers have numbers from here on: none of a client's is so high.
const STRANGER_RUNS: u32 = 1 << 29;

/// Takes a generation of a medium that nobody has, has `act` done, and releases it if that says so. Returns it.
fn take(
    medium: &MediumHandle,
    holder: [u8; 16],
    pool: &Pool,
    act: impl FnOnce(u64) -> bool,
) -> Option<u64> {
    // What records do that fail is shown by targets: here is nobody to try again.
    let drawn = medium.config();
    medium.configure(|c| (c.record_failure, c.record_crash) = (0.0, 0.0));
    let mut store = FileStore::new(medium.open_at_once(), 512, pool).expect("it fits");
    let grant = Grant::take(&mut store, holder, "", true).ok();
    let generation = grant.as_ref().map(Grant::generation);
    if let Some(grant) = grant
        && act(grant.generation())
    {
        grant.release(&mut store).expect("nothing fails");
    }
    medium.configure(|c| *c = drawn);
    generation
}

impl TreeStore {
    /// What its process has been granted of each leaf.
    pub(crate) fn grants(&self) -> Vec<LeafGrant> {
        let unused = &self.memory.borrow().unused;
        (0..self.leaves.len()).map(|leaf| unused.get(&leaf).copied().unwrap_or_default()).collect()
    }

    /// Takes what is on disks of the gateway itself.
    pub(crate) fn take_own(&self, pool: &Pool) {
        for (number, leaf) in self.leaves.iter().enumerate() {
            if let TreeLeaf::File(medium) = leaf
                && let Some(generation) = take(medium, GATEWAY, pool, |_| false)
            {
                self.memory.borrow_mut().granted(number, generation);
            }
        }
    }
}

impl Export {
    /// Somebody writes some of a leaf of this tree, which nobody serves.
    fn write_leaf(&mut self, leaf: usize, rng: &mut Rng, pool: &Pool) {
        let Store::Tree(tree) = &self.store else { return };
        let found = tree.places().nth(leaf).expect("it is one of them");
        let (Some(medium), place) = (found.0.medium().cloned(), found.1.clone()) else { return };
        let model = self.models.last_mut().expect("it was open once");
        take(&medium, STRANGER, pool, |generation| {
            let run = STRANGER_RUNS + generation as u32;
            model.outsider_came(run);
            for _ in 0..rng.between(2, 6) {
                // Where its clients write most.
                let first = place.start + rng.below(place.len().min(32) as u64) as usize;
                let count = rng.between(1, 16.min((place.end - first) as u64)) as usize;
                let range = Range { first, count };
                let version = model.begin_write(run, range, ModelEffect::Data);
                let mut bytes = vec![0; count * SECTOR_BYTES];
                model.fill(run, range, version, &mut bytes);
                medium.write_durably(first - place.start, bytes);
                model.end_write(run, range, version, true, true);
            }
            model.run_detached(run).expect("nothing of it was lost");
            true
        });
    }
}

impl World {
    /// Whether there is a gateway.
    pub fn has_gateway(&self) -> bool {
        self.exports.iter().any(|e| e.tree().is_some() && e.server < self.servers.len())
    }

    /// Somebody writes a leaf of a gateway that is down, if there is one that no server has open.
    pub fn write_leaf(&mut self, dice: &mut Rng) {
        let is_down = |server: usize| self.servers.get(server).is_some_and(|s| !s.runs());
        let is_free = |medium: &MediumHandle| medium.locked_until() <= self.now;
        let is_open_to_all = |leaf: &TreeLeaf| match leaf {
            TreeLeaf::Memory { .. } => false,
            TreeLeaf::File(medium) => is_free(medium),
            TreeLeaf::Remote { export, medium, .. } => {
                let e = &self.exports[*export];
                // What a cache above an image has not written back is not the matter here.
                is_down(e.server) && matches!(e.store, Store::File(_)) && is_free(medium)
            }
        };
        let mut places = Vec::new();
        for (number, export) in self.exports.iter().enumerate() {
            let tree =
                export.tree().filter(|_| is_down(export.server) && !export.models.is_empty());
            let leaves = tree.into_iter().flat_map(|tree| tree.leaves.iter().enumerate());
            let open = leaves.filter(|(_, leaf)| is_open_to_all(leaf));
            places.extend(open.map(|(leaf, _)| (number, leaf)));
        }
        if places.is_empty() {
            return;
        }
        let (export, leaf) = places[dice.below(places.len() as u64) as usize];
        self.trace.note(self.now, "stranger", "writes leaf", leaf as u64);
        self.coverage.leaves_written += 1;
        let pool = self.servers[self.exports[export].server].pool.clone();
        self.exports[export].write_leaf(leaf, dice, &pool);
    }
}

impl Server {
    /// Has it written down of leaves that they have been granted.
    pub(crate) fn note_grants(&mut self, exports: &[Export]) {
        let served = self.shards.iter_mut().filter_map(|shard| shard.served.as_mut());
        served.for_each(|served| served.note_grants(exports));
    }
}
