//! What a client does to its volume, drawn or by hand.

use thinwire_buffer::{SegList, Segment};
use thinwire_link::rng::Rng;
use thinwire_volume::{Io, IoFlags, Op};

use super::Client;
use super::verdict::{Expectation, Pending};
use crate::coverage::Coverage;
use crate::export::Export;
use crate::model::{ModelEffect, Range};
use crate::stamp::SECTOR_BYTES;

/// What a client does to its volume. Weights are relative.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// I/Os outstanding at once.
    pub depth: usize,
    /// I/Os in all; no more after them.
    pub budget: u64,
    /// Weight of reads.
    pub reads: u64,
    /// Weight of writes.
    pub writes: u64,
    /// Weight of flushes.
    pub flushes: u64,
    /// Weight of discards.
    pub discards: u64,
    /// Weight of write-zeroes.
    pub zeroes: u64,
    /// Weight of block status.
    pub statuses: u64,
    /// Share of writes, discards and write-zeroes that are durable at once.
    pub fua: f64,
    /// Sectors of the longest I/O.
    pub sectors_max: usize,
    /// Share of I/Os that fall into the hot place.
    pub hot: f64,
    /// Sectors of that.
    pub hot_sectors: usize,
    /// The first of them.
    pub hot_first: usize,
    /// Share of I/Os after which it pauses.
    pub pauses: f64,
    /// Longest pause, in ns.
    pub pause_ns_max: u64,
}

impl Workload {
    /// Nothing by itself: for scripted tests.
    pub const NONE: Workload = Workload {
        depth: 0,
        budget: 0,
        reads: 1,
        writes: 1,
        flushes: 0,
        discards: 0,
        zeroes: 0,
        statuses: 0,
        fua: 0.0,
        sectors_max: 8,
        hot: 0.5,
        hot_sectors: 64,
        hot_first: 0,
        pauses: 0.0,
        pause_ns_max: 1,
    };
}

impl Client {
    /// Submits an I/O; returns its token. `len` in sectors, ignored by a flush.
    pub fn submit(
        &mut self,
        now: u64,
        op: Op,
        range: Range,
        fua: bool,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> u64 {
        let initiator = self.initiator.as_mut().expect("it runs");
        let token = self.next_token;
        self.next_token += 1;
        let (offset, len) = ((range.first * SECTOR_BYTES) as u64, range.count * SECTOR_BYTES);
        let mut io = Io::new(token, op, offset, len as u64);
        io.flags = IoFlags { fua: fua && op.is_write(), ..IoFlags::default() };
        let life = export.life();
        let model = &mut export.models[self.content];
        let reader = self.config.read_only;
        let run = (!reader).then_some(self.run);
        let kind = match op {
            Op::LoadWriter | Op::StoreWriter | Op::Cut => unreachable!("no client's"),
            Op::Read => Expectation::Read(model.begin_read(run, range, life)),
            Op::BlockStatus => Expectation::Status(model.begin_status(run, range, life)),
            Op::Flush => {
                io.len = 0;
                io.offset = 0;
                Expectation::Flush(model.begin_flush())
            }
            Op::Write | Op::Discard | Op::WriteZeroes if reader => Expectation::Forbidden,
            Op::Write => {
                let version = model.begin_write(self.run, range, ModelEffect::Data);
                Expectation::ModelEffect { version, effect: ModelEffect::Data, fua }
            }
            Op::Discard | Op::WriteZeroes => {
                let effect =
                    if op == Op::Discard { ModelEffect::Discard } else { ModelEffect::Zeroes };
                io.flags.no_hole = op == Op::WriteZeroes && self.rng.chance(0.3);
                let version = model.begin_write(self.run, range, effect);
                Expectation::ModelEffect { version, effect, fua }
            }
        };
        if op == Op::Write {
            let mut buf = self.pool.get(len);
            match kind {
                Expectation::ModelEffect { version, .. } => {
                    model.fill(self.run, range, version, &mut buf)
                }
                _ => buf.fill(0xee),
            }
            if let Some(buffers) = &mut self.buffers
                && initiator.takes_in_at_once()
            {
                buf = buffers.give(now, buf);
            }
            io.data = split(buf.freeze(), &mut self.rng);
        }
        if matches!(op, Op::Write | Op::WriteZeroes) && !reader {
            let (top, below) = initiator.block_sectors();
            let blocks = range.widened(below);
            if top < below && blocks != range {
                coverage.edges_patched += 1;
                model.begin_patch(self.run, blocks, life);
            }
        }
        let overlaps = |p: &Pending| {
            p.range.first < range.first + range.count && range.first < p.range.first + p.range.count
        };
        coverage.requests += 1;
        coverage.overlaps += u64::from(op != Op::Flush && self.pending.values().any(overlaps));
        self.pending.insert(token, Pending { kind, range, submitted_at: now });
        self.submitted += 1;
        initiator.submit(io);
        self.machine.dirty = true;
        token
    }

    pub(super) fn submit_random(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> (u64, Op, Range) {
        let w = self.workload;
        let process = self.initiator.as_ref().expect("it runs");
        let features = process.geometry().features;
        // A face refuses it before it comes to the module.
        let is_module = process.takes_any_range() || process.has_members();
        let forbidden = if is_module { 0 } else { w.writes / 16 };
        let weights = [
            (Op::Read, w.reads),
            (Op::Write, if self.config.read_only { forbidden } else { w.writes }),
            (Op::Flush, w.flushes),
            (Op::Discard, if features.discard && !self.config.read_only { w.discards } else { 0 }),
            (Op::WriteZeroes, if self.config.read_only { 0 } else { w.zeroes }),
            (Op::BlockStatus, w.statuses),
        ];
        let mut left = self.rng.below(weights.iter().map(|(_, weight)| weight).sum());
        let mut op = Op::Read;
        for (candidate, weight) in weights {
            if left < weight {
                op = candidate;
                break;
            }
            left -= weight;
        }
        let (block, _) = self.initiator.as_ref().expect("it runs").block_sectors();
        let bytes = self.initiator.as_ref().expect("it runs").known_bytes();
        let all = bytes as usize / SECTOR_BYTES / block;
        let (hot, hot_first) = ((w.hot_sectors / block).clamp(1, all), w.hot_first / block);
        let is_hot = self.rng.chance(w.hot);
        let (from, span) = if is_hot { (hot_first.min(all - hot), hot) } else { (0, all) };
        let first = from + self.rng.below(span as u64) as usize;
        let longest = (w.sectors_max / block).clamp(1, all - first);
        // Mostly short ones, sometimes as long as it goes.
        let longest = if self.rng.chance(0.9) { longest.min(16) } else { longest };
        let count = self.rng.between(1, longest as u64) as usize;
        let mut range = Range { first: first * block, count: count * block };
        if let Some(reading) = &mut self.reading {
            range = reading.lead(op, range, block, all);
        }
        let fua = op.is_write() && self.rng.chance(w.fua);
        let token = self.submit(now, op, range, fua, export, coverage);
        if self.rng.chance(w.pauses) {
            self.pause_until = now + self.rng.between(1, w.pause_ns_max);
        }
        (token, op, range)
    }

    pub(super) fn wants_more(&self, now: u64) -> bool {
        // Of several members one may hear before the others that all is over.
        let is_over = |p: &super::ClientProcess| p.has_members() && p.failure().is_some();
        self.is_open
            && !self.initiator.as_ref().is_some_and(is_over)
            && !self.closing
            && self.submitted < self.workload.budget
            && self.pending.len() < self.workload.depth
            && now >= self.pause_until
    }

    /// It will not submit anything by itself any more.
    pub fn is_finished(&self) -> bool {
        self.submitted >= self.workload.budget
    }

    /// Lets it submit so many more.
    pub fn add_budget(&mut self, count: u64) {
        self.workload.budget = self.submitted + count;
        self.machine.dirty = true;
    }
}

pub(super) fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "reads",
        Op::Write => "writes",
        Op::Flush => "flushes",
        Op::Discard => "discards",
        Op::WriteZeroes => "zeroes",
        Op::BlockStatus => "asks",
        Op::LoadWriter => "loads",
        Op::StoreWriter => "stores",
        Op::Cut => "cuts",
    }
}

/// Cuts a payload into segments at random sectors, as applications' buffers come.
fn split(whole: Segment, rng: &mut Rng) -> SegList {
    let mut list = SegList::new();
    let mut at = 0;
    while at < whole.len() {
        let left = whole.len() - at;
        let take = if rng.chance(0.7) {
            left
        } else {
            rng.between(1, (left / SECTOR_BYTES) as u64) as usize * SECTOR_BYTES
        };
        list.push(whole.slice(at, take));
        at += take;
    }
    list
}
