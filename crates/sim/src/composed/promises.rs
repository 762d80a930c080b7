//! What the user of an enumerated workload does, and what is promised to it of that: by then, and in its snapshots.

use thinwire_buffer::SegList;
use thinwire_link::rng::Rng;
use thinwire_volume::{Io, Op, Token};

use super::at_rest::AtRest;
use super::enumerate::BLOCK;
use crate::swarm::pick;

/// I/Os of a workload.
const ACTS: u64 = 12;

#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// So many blocks from this on, all bytes of which are the stamp; durable by itself, or not.
    Write(u64, u64, u8, bool),
    Zero(u64, u64),
    /// Likewise; durable by itself, or not.
    Discard(u64, u64, bool),
    Read(u64),
    Flush,
    /// A snapshot is begun, and the oldest one is deleted.
    Cut,
    Uncut,
    /// Until all of that has ended.
    Wait,
    /// Long enough for what is done when nobody writes.
    Rest,
}

/// What was written to a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    block: u64,
    stamp: u8,
    submitted: u64,
    /// `u64::MAX` before.
    completed: u64,
    is_durable: bool,
    /// It may have done nothing, as a discard may.
    is_weak: bool,
}

/// A snapshot.
#[derive(Clone, Debug)]
struct Cut {
    name: String,
    begun: u64,
    /// When it was told of; `u64::MAX` before.
    told: u64,
    /// It is being deleted, or was.
    goes: bool,
    /// It was told to be deleted, or to be refused.
    is_not: bool,
}

/// What a user was promised.
#[derive(Clone, Debug, Default)]
pub(super) struct Promised {
    written: Vec<Written>,
    clock: u64,
    cuts: Vec<Cut>,
}

impl Promised {
    fn of(&self, block: u64) -> impl Iterator<Item = &Written> {
        self.written.iter().filter(move |write| write.block == block)
    }

    /// All that was written to a block.
    pub fn written(&self, block: u64) -> Vec<&Written> {
        self.of(block).collect()
    }

    /// Whether a sector of that block may hold this after a crash.
    pub fn allows(&self, block: u64, stamp: u8) -> bool {
        let is_gone = |completed: u64| {
            self.of(block).any(|of| of.is_durable && !of.is_weak && of.submitted > completed)
        };
        (stamp == 0 && !is_gone(0))
            || self.of(block).any(|write| write.stamp == stamp && !is_gone(write.completed))
    }

    /// Whether a sector of that block in that snapshot may: what was acknowledged before that was begun is in it, and nothing that came
    /// after it was told.
    pub fn allows_in(&self, name: &str, block: u64, stamp: u8) -> bool {
        let Some(cut) = self.cuts.iter().find(|cut| cut.name == name) else { return true };
        let is_gone = |completed: u64| {
            let covers =
                |of: &Written| of.completed < cut.begun && !of.is_weak && of.submitted > completed;
            self.of(block).any(covers)
        };
        let may = |write: &Written| {
            write.stamp == stamp && write.submitted < cut.told && !is_gone(write.completed)
        };
        (stamp == 0 && !is_gone(0)) || self.of(block).any(may)
    }

    /// There may be any, and whether there has to be: by their names.
    pub fn cuts(&self) -> impl Iterator<Item = (String, bool)> {
        let there = self.cuts.iter().filter(|cut| !cut.is_not);
        there.map(|cut| (cut.name.clone(), cut.told < u64::MAX && !cut.goes))
    }

    /// That snapshot was told to be deleted, or to be refused.
    pub fn is_told_gone(&self, name: &str) -> bool {
        self.cuts.iter().any(|cut| cut.is_not && cut.name == name)
    }

    /// Snapshots were taken.
    pub fn has_cuts(&self) -> bool {
        !self.cuts.is_empty()
    }

    /// Its place and its name.
    pub fn begin_cut(&mut self) -> (usize, String) {
        self.clock += 1;
        let (at, begun, told) = (self.cuts.len(), self.clock, u64::MAX);
        let name = format!("cut{at}");
        self.cuts.push(Cut { name: name.clone(), begun, told, goes: false, is_not: false });
        (at, name)
    }

    /// Of the oldest one that is there.
    pub fn begin_uncut(&mut self) -> Option<(usize, String)> {
        let at = self.cuts.iter().position(|cut| cut.told < u64::MAX && !cut.goes)?;
        self.cuts[at].goes = true;
        Some((at, self.cuts[at].name.clone()))
    }

    /// It was taken or deleted, or was not.
    pub fn end_cut(&mut self, at: usize, is_done: bool) {
        self.clock += 1;
        let cut = &mut self.cuts[at];
        match cut.goes {
            true => cut.is_not |= is_done,
            false if is_done => cut.told = self.clock,
            false => cut.is_not = true,
        }
    }
}

/// What a user does.
pub(super) fn acts(blocks: u64, rng: &mut Rng) -> Vec<Act> {
    // Few places, so that much is written over.
    let first = rng.below(blocks);
    let mut acts = Vec::new();
    for stamp in 1..=ACTS as u8 {
        let near = (first + rng.below(4)).min(blocks - 1);
        let at = if rng.chance(0.75) { near } else { rng.below(blocks) };
        let count = rng.between(1, 3).min(blocks - at);
        acts.push(match rng.below(16) {
            0..9 => Act::Write(at, count, stamp, rng.chance(0.2)),
            9 => Act::Zero(at, count),
            10 => Act::Read(at),
            11 => Act::Rest,
            _ => Act::Flush,
        });
        if rng.chance(0.6) {
            acts.push(Act::Wait);
        }
    }
    acts.push(Act::Wait);
    acts
}

/// The same, and in half of all workloads some is discarded: what was written, where that lies in thin blocks of any size.
pub(super) fn with_discards(acts: Vec<Act>, blocks: u64, seed: u64) -> Vec<Act> {
    let rng = &mut Rng::new(seed ^ 0x6469_7363_6172_6473);
    if rng.chance(0.5) {
        return acts;
    }
    let mut more = Vec::new();
    for act in acts {
        more.push(act);
        let (Act::Write(first, ..) | Act::Zero(first, _)) = act else { continue };
        if !rng.chance(0.35) {
            continue;
        }
        // Beside the same places nothing is under way: modules may take what is in any order.
        more.push(Act::Wait);
        let count = pick(rng, &[1, 4, 16]).min(blocks);
        let first = (first / count * count).min(blocks - count);
        more.push(Act::Discard(first, count, rng.chance(0.3)));
        if rng.chance(0.7) {
            more.push(Act::Wait);
        }
    }
    more
}

/// The same, and in half of all workloads snapshots are taken beside what is under way, and deleted.
pub(super) fn with_cuts(acts: Vec<Act>, seed: u64) -> Vec<Act> {
    let rng = &mut Rng::new(seed ^ 0x6375_7473_6375_7473);
    if rng.chance(0.5) {
        return acts;
    }
    let (mut more, mut cuts) = (Vec::new(), 0);
    for act in acts {
        let is_write = matches!(act, Act::Write(..));
        more.push(act);
        if is_write && rng.chance(0.35) {
            let deletes = cuts > 0 && rng.chance(0.4);
            cuts += u32::from(!deletes);
            more.push(if deletes { Act::Uncut } else { Act::Cut });
        }
    }
    more
}

impl Act {
    pub fn io(self, token: u64, at_rest: &AtRest<'_>) -> (Io, u8) {
        match self {
            Act::Write(first, count, stamp, fua) => {
                let mut io = Io::new(token, Op::Write, first * BLOCK, count * BLOCK);
                let bytes = vec![stamp; io.len as usize];
                io.data = SegList::of(at_rest.pool().copy_of(&bytes).freeze());
                io.flags.fua = fua;
                (io, stamp)
            }
            Act::Zero(first, count) => {
                (Io::new(token, Op::WriteZeroes, first * BLOCK, count * BLOCK), 0)
            }
            Act::Discard(first, count, fua) => {
                let mut io = Io::new(token, Op::Discard, first * BLOCK, count * BLOCK);
                io.flags.fua = fua;
                (io, 0)
            }
            Act::Read(first) => (Io::new(token, Op::Read, first * BLOCK, BLOCK), 0),
            Act::Flush | Act::Wait | Act::Rest | Act::Cut | Act::Uncut => {
                (Io::new(token, Op::Flush, 0, 0), 0)
            }
        }
    }
}

/// What a user waits for.
pub(super) struct Waiting {
    pub token: Token,
    op: Op,
    submitted: u64,
    fua: bool,
    /// What of the promises it is.
    writes: std::ops::Range<usize>,
}

impl Waiting {
    pub fn new(io: &Io, stamp: u8, promised: &mut Promised) -> Self {
        promised.clock += 1;
        let (submitted, from) = (promised.clock, promised.written.len());
        if io.op.is_write() {
            let is_weak = io.op == Op::Discard;
            for block in io.offset / BLOCK..(io.offset + io.len) / BLOCK {
                let (completed, is_durable) = (u64::MAX, false);
                let write = Written { block, stamp, submitted, completed, is_durable, is_weak };
                promised.written.push(write);
            }
        }
        let (token, op, fua) = (io.token, io.op, io.flags.fua);
        Waiting { token, op, submitted, fua, writes: from..promised.written.len() }
    }

    /// It may be refused where there is no room.
    pub fn may_lack_room(&self) -> bool {
        matches!(self.op, Op::Write | Op::WriteZeroes)
    }

    pub fn end(self, promised: &mut Promised) {
        promised.clock += 1;
        let now = promised.clock;
        if self.op == Op::Flush {
            let covered = |write: &&mut Written| write.completed < self.submitted;
            promised.written.iter_mut().filter(covered).for_each(|write| write.is_durable = true);
        }
        for write in &mut promised.written[self.writes] {
            write.completed = now;
            write.is_durable |= self.fua;
        }
    }
}
