//! What a gateway remembers of its leaves beside its record, whom it fences for that, and somebody who writes one
//! of them while it is down, under a writer generation of that leaf (rule 3).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::Pool;
use thinwire_link::rng::Rng;
use thinwire_volume::stores::FileStore;
use thinwire_volume::{
    Disk, DiskDone, DiskOp, DiskOpKind, Grant, HeldGrant, LeafGeneration, RecordPlace, WriterRecord,
};

use crate::export::{Export, Store};
use crate::gateway::attached_as;
use crate::keys::known_as;
use crate::medium::{EIO, MediumHandle, SimDisk};
use crate::model::{ModelEffect, Range};
use crate::notes::Notes;
use crate::server::{Crash, Server};
use crate::stamp::SECTOR_BYTES;
use crate::tree::{TreeLeaf, TreeStore};
use crate::world::World;

/// What a gateway remembers of an export's leaves beside its record, and what is checked of that.
#[derive(Debug, Default)]
pub struct LeafMemory {
    /// Grants that it has not used.
    pub notes: Notes,
    /// Those of its own disks, until it serves.
    own: BTreeMap<usize, Grant>,
    /// Generations to which its record was raised, or may have been.
    raised: Vec<u64>,
    /// Of those, the ones for which nobody else had a leaf, which it could not know.
    in_vain: u64,
    breach: Option<String>,
}

/// Where the record of a leaf is, and who its gateway is there.
type LeafRecord = (MediumHandle, [u8; 16]);

impl LeafMemory {
    /// It is another export's from now on, of some of the same leaves.
    pub fn begin_anew(&mut self) {
        self.raised = Vec::new();
    }

    /// Whether it has fenced a writer of this generation, for somebody who had a leaf; `commits` are its
    /// records that became durable.
    pub fn has_fenced(&self, generation: u64, commits: &[WriterRecord]) -> bool {
        let is_raised = |c: &WriterRecord| !c.is_held() && self.raised.contains(&c.generation);
        commits.iter().any(|c| c.generation > generation && is_raised(c))
    }

    /// How often it has fenced whoever was the writer.
    pub fn raised(&self) -> u64 {
        self.raised.len() as u64
    }

    /// How often of those nobody else had a leaf, which it could not know.
    pub fn raised_in_vain(&self) -> u64 {
        self.in_vain
    }

    /// How it has fenced somebody for nothing though it knew better, or would fence nobody for what was used, if
    /// it has.
    pub fn breach(&self) -> Option<String> {
        self.breach.clone().or_else(|| self.notes.breach())
    }

    /// The process has ended.
    pub(crate) fn crash(&mut self, how: Crash) {
        self.own.clear();
        self.notes.crash(how);
    }

    /// The record is to be raised `to` this, since `others` may have been granted those leaves behind the
    /// generations `found`.
    fn raise(&mut self, to: u64, others: &[usize], found: &[u64], leaves: &[Option<LeafRecord>]) {
        if self.raised.last() == Some(&to) {
            return;
        }
        self.raised.push(to);
        let held = self.notes.held(leaves.len());
        let mut is_in_vain = true;
        for &leaf in others {
            let (medium, me) = leaves[leaf].as_ref().expect("memory has no record");
            let gap = found[leaf] + 1..held[leaf].generation;
            let mut had = medium.commits();
            had.retain(|c| c.is_held() && gap.contains(&c.generation));
            is_in_vain &= had.iter().all(|c| c.holder == *me);
            // One of its own that is written down as unused is no gap; nor is one of anybody who has only had it, as its target knows that
            // has granted them all. Strangers are no users of a target, and guests do not write.
            let granted = medium.commits_since_read();
            let is_noted =
                |c: &WriterRecord| c.holder == *me && self.notes.has_noted(leaf, c.generation);
            if had.iter().all(is_noted)
                || (!medium.has_users() && had.iter().all(|c| granted.contains(c)))
            {
                let text =
                    format!("the gateway fences its writer for leaf {leaf}, which nobody had");
                self.breach.get_or_insert(text);
            }
        }
        self.in_vain += u64::from(is_in_vain);
    }
}

/// The place of a gateway's record: a disk for that and the generations of its leaves, and its notes.
pub(crate) struct TreeRecord {
    disk: SimDisk,
    memory: Rc<RefCell<LeafMemory>>,
    leaves: Vec<Option<LeafRecord>>,
    found: Vec<u64>,
    /// To be told of with the next record, which makes the grants of now used ones.
    next: Option<Vec<usize>>,
}

impl TreeRecord {
    /// That of an export with this number.
    pub fn new(number: usize, tree: &TreeStore) -> Self {
        let record = |(leaf, found): (usize, &TreeLeaf)| {
            let holder = match found {
                TreeLeaf::Memory { .. } => return None,
                TreeLeaf::File(_) => GATEWAY,
                TreeLeaf::Remote { .. } => known_as(tree.holder, attached_as(number, leaf)),
            };
            found.medium().map(|medium| (medium.clone(), holder))
        };
        TreeRecord {
            disk: tree.record.open(),
            memory: tree.memory.clone(),
            leaves: tree.leaves.iter().enumerate().map(record).collect(),
            found: Vec::new(),
            next: None,
        }
    }
}

impl RecordPlace for TreeRecord {
    fn submit(&mut self, op: DiskOp) {
        if let (DiskOpKind::StoreWriter(record), Some(others)) = (&op.kind, &self.next)
            && !others.is_empty()
        {
            let memory = &mut *self.memory.borrow_mut();
            memory.raise(record.generation, others, &self.found, &self.leaves);
        }
        Disk::submit(&mut self.disk, op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        let before = done.len();
        Disk::poll(&mut self.disk, done);
        for one in done[before..].iter_mut().filter(|one| one.result.is_ok()) {
            match one.kind {
                DiskOpKind::LoadWriter(_) => self.found = self.disk.leaves(),
                // Grants are used from here on: the notes of them go, and not before.
                DiskOpKind::StoreWriter(_) if self.next.is_some() => {
                    match self.memory.borrow_mut().notes.forget() {
                        Ok(()) => self.next = None,
                        Err(()) => one.result = Err(EIO),
                    }
                }
                _ => {}
            }
        }
    }

    fn remembered(&self) -> Vec<LeafGeneration> {
        let of = |(leaf, &generation): (usize, &u64)| LeafGeneration {
            leaf: if generation == 0 { [0; 16] } else { name_of(leaf) },
            generation,
        };
        self.found.iter().enumerate().map(of).collect()
    }

    fn remember(&mut self, generations: Vec<LeafGeneration>, others: Vec<usize>) {
        let of = |leaf: usize| {
            let its = generations.iter().find(|one| one.leaf == name_of(leaf));
            its.map_or(0, |one| one.generation)
        };
        self.disk.keep_leaves((0..self.leaves.len()).map(of).collect());
        self.next = Some(others);
    }
}

/// By which a leaf is known, wherever it is.
fn name_of(leaf: usize) -> [u8; 16] {
    [leaf as u8 + 1; 16]
}

/// Who a gateway is on its own disks, and who is nobody of the world's.
const GATEWAY: [u8; 16] = [0xe0; 16];
const STRANGER: [u8; 16] = [0xed; 16];
/// Runs of strangers have numbers from here on: none of a client's is so high.
const STRANGER_RUNS: u32 = 1 << 29;

/// Has `act` done with the record of a medium that nobody has open.
fn with_record<R>(
    medium: &MediumHandle,
    pool: &Pool,
    act: impl FnOnce(&mut FileStore<SimDisk>) -> R,
) -> R {
    // What records do that fail is shown by targets: here is nobody to try again.
    let drawn = medium.config();
    medium.configure(|c| (c.record_failure, c.record_crash) = (0.0, 0.0));
    let mut store = FileStore::new(medium.open_at_once(), 512, pool).expect("it fits");
    let done = act(&mut store);
    medium.configure(|c| *c = drawn);
    done
}

impl TreeStore {
    /// Takes what is on disks of the gateway itself, whose process begins.
    pub(crate) fn take_own(&self, pool: &Pool) {
        let memory = &mut *self.memory.borrow_mut();
        for (number, leaf) in self.leaves.iter().enumerate() {
            let TreeLeaf::File(medium) = leaf else { continue };
            if memory.notes.dies() {
                return;
            }
            match with_record(medium, pool, |store| Grant::take(store, GATEWAY, "", true)) {
                Ok(grant) => {
                    memory.notes.granted(number, grant.granted());
                    memory.own.insert(number, grant);
                }
                Err(_) => memory.notes.die(),
            }
        }
    }

    /// All is there: what its process has been granted of each leaf, which is used from now on.
    pub(crate) fn begin_to_use(&self) -> Vec<HeldGrant> {
        let memory = &mut *self.memory.borrow_mut();
        memory.own.clear();
        if self.unasked {
            return Vec::new();
        }
        let held = memory.notes.held(self.leaves.len()).into_iter().enumerate();
        let of = |(leaf, grant)| HeldGrant { leaf: name_of(leaf), grant };
        held.map(of)
            .map(|held| if held.grant.generation == 0 { HeldGrant::default() } else { held })
            .collect()
    }

    /// It could not begin. Nobody has used them: they are put back as they were, and before that it is written
    /// down that they were not given.
    pub(crate) fn undo_own(&self, pool: &Pool) {
        let memory = &mut *self.memory.borrow_mut();
        for (number, grant) in std::mem::take(&mut memory.own) {
            let TreeLeaf::File(medium) = &self.leaves[number] else { continue };
            if memory.notes.take_back(number).is_ok() {
                // What could not be put back stays on record, as after a crash.
                let _ = with_record(medium, pool, |store| grant.undo(store));
            }
        }
    }
}

impl Export {
    /// Somebody writes some of a leaf of this tree, which nobody serves.
    fn write_leaf(&mut self, leaf: usize, rng: &mut Rng, pool: &Pool) {
        let Store::Tree(tree) = &self.store else { return };
        let Some(medium) = tree.leaves[leaf].medium().cloned() else { return };
        let mut places = tree.places();
        places.retain(|place| place.leaf == leaf);
        // Where several lie on it, one of them.
        let nth = if places.len() > 1 { rng.below(places.len() as u64) as usize } else { 0 };
        let Some(&place) = places.get(nth) else { return };
        let model = self.models.last_mut().expect("it was open once");
        with_record(&medium, pool, |store| {
            let Ok(grant) = Grant::take(store, STRANGER, "", true) else { return };
            let run = STRANGER_RUNS + grant.generation() as u32;
            model.outsider_came(run);
            for _ in 0..rng.between(2, 6) {
                // Where its clients write most.
                let at = rng.below(place.count.min(32) as u64) as usize;
                let count = rng.between(1, 16.min((place.count - at) as u64)) as usize;
                let first = place.first + at;
                let range = Range { first, count };
                let version = model.begin_write(run, range, ModelEffect::Data);
                let mut bytes = vec![0; count * SECTOR_BYTES];
                model.fill(run, range, version, &mut bytes);
                medium.write_durably(place.from + at, bytes);
                model.end_write(run, range, version, true, true);
            }
            model.run_detached(run).expect("nothing of it was lost");
            grant.release(store).expect("nothing fails");
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
