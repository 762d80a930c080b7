//! A volume on a local disk as its face has it, with a workload; every answer is checked.
//!
//! What may be lost is told by flushes alone. The disk's failures say what may be gone from when on, whoever
//! has heard of it; what the store has told says which flushes may fail for it. Between the two a lie in
//! either direction is seen: a flush that succeeds over what is gone, and one that fails for nothing.

use std::collections::{BTreeMap, BTreeSet};

use thinwire_buffer::{Pool, SegList};
use thinwire_link::rng::Rng;
use thinwire_volume::stores::FileStore;
use thinwire_volume::{
    Completion, ErrorKind, Io, IoError, IoFlags, Op, Owing, OwingCanary, Unaligned, Volume,
};

use super::store::{Heard, WatchedStore};
use super::{LocalCanary, LocalDisk};
use crate::client::Workload;
use crate::coverage::Coverage;
use crate::medium::{MediumHandle, SimDisk};
use crate::model::{ContentLife, Model, ModelEffect, Range, Ticket, Violation};
use crate::stamp::SECTOR_BYTES;
use crate::trace::Trace;

/// The module whose errors are those of what tells of losses.
const TELLS: &str = "loss";

/// As a face has it.
type LocalVolume = Owing<Unaligned<WatchedStore<FileStore<SimDisk>>>>;

enum Expectation {
    Effect { version: u64, fua: bool },
    Read(Ticket),
    Flush((u64, u64)),
}

struct Pending {
    kind: Expectation,
    range: Range,
    /// When it was submitted: flushes of its disk that had failed, and losses that were heard of.
    failures: (u64, u64),
}

/// Which flushes may fail since something was lost, by what the store has told.
#[derive(Default)]
struct Debts {
    heard: Heard,
    seen: u64,
    has_written: bool,
    owes: bool,
    /// I/Os that were outstanding when a loss was heard of.
    doomed: BTreeSet<u64>,
}

/// A user of one disk.
pub(super) struct LocalUser {
    name: String,
    pub(super) medium: MediumHandle,
    disk: LocalDisk,
    canary: Option<LocalCanary>,
    rng: Rng,
    pool: Pool,
    volume: Option<LocalVolume>,
    model: Model,
    run: u32,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    submitted: u64,
    pause_until: u64,
    turn_at: Option<u64>,
    /// It has something to do, whatever its disk does.
    is_dirty: bool,
    debts: Debts,
    upheavals_seen: u64,
    /// Nothing fails any more, and all that has failed was told.
    is_well: bool,
    done: Vec<Completion>,
}

impl LocalUser {
    pub fn new(
        name: String,
        medium: MediumHandle,
        disk: LocalDisk,
        canary: Option<LocalCanary>,
        rng: Rng,
    ) -> Self {
        LocalUser {
            model: Model::new(&name, disk.config.bytes),
            name,
            medium,
            disk,
            canary,
            rng,
            pool: Pool::new(8 << 20),
            volume: None,
            run: 0,
            pending: BTreeMap::new(),
            next_token: 1,
            submitted: 0,
            pause_until: 0,
            turn_at: None,
            is_dirty: false,
            debts: Debts::default(),
            upheavals_seen: 0,
            is_well: false,
            done: Vec::new(),
        }
    }

    pub fn runs(&self) -> bool {
        self.volume.is_some()
    }

    /// A process opens the disk.
    pub fn start(&mut self, run: u32) {
        self.debts = Debts::default();
        let (watched, told) = match self.canary {
            None => (None, OwingCanary::None),
            Some(LocalCanary::Owing(planted)) => (None, planted),
            Some(LocalCanary::Store(planted)) => (Some(planted), OwingCanary::None),
        };
        let store = FileStore::new(self.medium.open(), self.disk.block_bytes, &self.pool);
        let store = WatchedStore::new(store.expect("it fits"), self.debts.heard.clone(), watched);
        let whole = Unaligned::new(store, self.pool.clone());
        self.volume = Some(Owing::new(whole, false).with_canary(told));
        self.run = run;
        assert!(self.model.run_started(run, run.into()));
        self.upheavals_seen = self.medium.upheavals();
        self.is_dirty = true;
    }

    /// Its process ends at once, alone or with the machine.
    pub fn end(&mut self, power: bool) {
        match power {
            true => self.medium.power_failure(),
            false => self.medium.kill(),
        }
        self.volume = None;
        self.pending.clear();
        self.model.run_ended(self.run);
        self.turn_at = None;
    }

    /// What the disk may have lost is in doubt from now on, though nobody has heard of it.
    pub fn look_for_losses(&mut self) {
        let upheavals = self.medium.upheavals() + self.medium.stats().writeback_failures;
        if std::mem::replace(&mut self.upheavals_seen, upheavals) != upheavals {
            self.model.doubt(self.run);
        }
    }

    /// When it, which runs, may have something to do.
    pub fn next_time(&self, now: u64) -> u64 {
        let disk = self.medium.next_event().unwrap_or(u64::MAX);
        let wants = if self.may_submit() { self.pause_until.max(now + 1) } else { u64::MAX };
        let at_once = if self.is_due(now) { now + 1 } else { u64::MAX };
        disk.min(self.turn_at.unwrap_or(wants.min(at_once)))
    }

    fn is_due(&self, now: u64) -> bool {
        self.is_dirty || self.medium.is_ready() || (self.may_submit() && now >= self.pause_until)
    }

    fn may_submit(&self) -> bool {
        let w = &self.disk.workload;
        self.submitted < w.budget && self.pending.len() < w.depth
    }

    /// One turn of its loop, if it is time.
    pub fn turn(
        &mut self,
        now: u64,
        lag: u64,
        coverage: &mut Coverage,
        trace: &mut Trace,
    ) -> Result<(), Violation> {
        if !self.runs() || (self.turn_at.is_none() && !self.is_due(now)) {
            return Ok(());
        }
        let rng = &mut self.rng;
        if *self.turn_at.get_or_insert_with(|| now + rng.between(lag / 8, lag)) > now {
            return Ok(());
        }
        self.turn_at = None;
        self.is_dirty = false;
        self.look(now, coverage, trace)?;
        while self.may_submit() && now >= self.pause_until {
            self.submit_random(now, coverage, trace);
        }
        // What is done at once.
        self.look(now, coverage, trace)
    }

    /// Takes in completions, and what is told of losses before them.
    fn look(
        &mut self,
        now: u64,
        coverage: &mut Coverage,
        trace: &mut Trace,
    ) -> Result<(), Violation> {
        let volume = self.volume.as_mut().expect("it runs");
        let mut done = std::mem::take(&mut self.done);
        volume.poll(&mut done);
        volume.poll_events(&mut Vec::new());
        // A disk follows its device when it is looked at.
        self.look_for_losses();
        self.hear(coverage);
        self.is_dirty |= !done.is_empty();
        for completion in done.drain(..) {
            let code = completion.result.map_or_else(|e| e.kind as u64 + 1, |()| 0);
            trace.note(now, &self.name, "completed", completion.token << 8 | code);
            self.check(completion, coverage)?;
        }
        self.done = done;
        Ok(())
    }

    /// A loss that was heard of dooms what is outstanding: see [`Owing`].
    fn hear(&mut self, coverage: &mut Coverage) {
        let heard = self.debts.heard.get();
        let news = heard - std::mem::replace(&mut self.debts.seen, heard);
        coverage.local_losses += news;
        if news > 0 && self.debts.has_written {
            self.debts.owes = true;
            self.debts.doomed.extend(self.pending.keys());
        }
    }

    fn check(&mut self, completion: Completion, coverage: &mut Coverage) -> Result<(), Violation> {
        let token = completion.token;
        let Some(Pending { kind, range, failures }) = self.pending.remove(&token) else {
            return Err(self.violation(format!("I/O {token} was completed twice")));
        };
        let is_doomed = self.debts.doomed.remove(&token);
        let ok = completion.result.is_ok();
        if let Err(error) = completion.result {
            self.check_error(error, &kind, is_doomed, failures)?;
            coverage.errors += 1;
            coverage.local_told += u64::from(error.module == TELLS);
        }
        match kind {
            Expectation::Effect { version, fua, .. } => {
                coverage.local_writes += u64::from(ok);
                // Of one that is done in parts a part may have failed, and another not.
                self.debts.owes |= is_doomed && !fua;
                self.model.end_write(self.run, range, version, ok, fua);
            }
            Expectation::Flush(mark) => {
                coverage.flushes += u64::from(ok);
                self.model.end_flush(self.run, mark, ok).map_err(|v| self.violation(v.0))?;
                let has_told = completion.result.is_err_and(|error| error.module == TELLS);
                if has_told {
                    self.model.give_up_unflushed(self.run);
                }
            }
            Expectation::Read(ticket) if ok => {
                coverage.reads_checked += 1;
                let (data, life) = (completion.data.to_vec(), self.life());
                let checked = self.model.end_read(&ticket, range, &data, life);
                checked.map_err(|v| self.violation(v.0))?;
            }
            Expectation::Read(_) => {}
        }
        Ok(())
    }

    /// Whether an error was due.
    fn check_error(
        &mut self,
        error: IoError,
        kind: &Expectation,
        is_doomed: bool,
        failures: (u64, u64),
    ) -> Result<(), Violation> {
        let config = self.medium.config();
        let has_failed = self.flush_failures() > failures.0;
        let has_lost = self.debts.heard.get() > failures.1;
        let is_due = match (kind, error.kind) {
            (Expectation::Flush(_), ErrorKind::Io) if error.module == TELLS => {
                std::mem::take(&mut self.debts.owes) || is_doomed
            }
            (Expectation::Flush(_), ErrorKind::Io) => has_failed,
            // One that is durable with a sync behind it fails with others' syncs, too.
            (Expectation::Effect { fua, .. }, ErrorKind::Io) => {
                config.write_failure > 0.0 || (*fua && (has_failed || has_lost))
            }
            (Expectation::Effect { .. }, ErrorKind::NoSpace) => config.no_space > 0.0,
            _ => false,
        };
        if is_due && !self.is_well {
            return Ok(());
        }
        let what = match kind {
            Expectation::Flush(_) => "a flush",
            Expectation::Read(_) => "a read",
            Expectation::Effect { .. } => "a write",
        };
        Err(self.violation(format!("{what} failed for nothing: {error}")))
    }

    fn flush_failures(&self) -> u64 {
        self.medium.stats().flush_failures
    }

    fn life(&self) -> ContentLife {
        let upheavals = self.medium.upheavals() + self.medium.stats().writeback_failures;
        ContentLife { upheavals, ..ContentLife::default() }
    }

    fn submit_random(&mut self, now: u64, coverage: &mut Coverage, trace: &mut Trace) {
        let Workload { reads, writes, flushes, discards, zeroes, fua, .. } = self.disk.workload;
        let (hot, hot_sectors, sectors_max) = (
            self.disk.workload.hot,
            self.disk.workload.hot_sectors,
            self.disk.workload.sectors_max,
        );
        let weights = [
            (Op::Read, "reads", reads),
            (Op::Write, "writes", writes),
            (Op::Flush, "flushes", flushes),
            (Op::Discard, "discards", discards),
            (Op::WriteZeroes, "zeroes", zeroes),
        ];
        let mut left = self.rng.below(weights.iter().map(|(.., weight)| weight).sum());
        let mut chosen = (Op::Read, "reads");
        for (op, name, weight) in weights {
            if left < weight {
                chosen = (op, name);
                break;
            }
            left -= weight;
        }
        let (op, name) = chosen;
        let all = self.model.sectors();
        let span = if self.rng.chance(hot) { hot_sectors.clamp(1, all) } else { all };
        let first = self.rng.below(span as u64) as usize;
        let longest = sectors_max.clamp(1, all - first);
        let longest = if self.rng.chance(0.9) { longest.min(16) } else { longest };
        let count = self.rng.between(1, longest as u64) as usize;
        let fua = op.is_write() && self.rng.chance(fua);
        let range = Range { first, count };
        if op != Op::Flush && self.meets_another(op, range) {
            // No order is promised to what is outstanding together. Its turn comes when that is answered.
            self.pause_until = now + 1_000;
            return;
        }
        let token = self.submit(op, range, fua, coverage);
        let place = (range.first as u64) << 16 | range.count as u64;
        trace.note(now, &self.name, name, token << 40 | place);
        if self.rng.chance(self.disk.workload.pauses) {
            self.pause_until = now + self.rng.between(1, self.disk.workload.pause_ns_max);
        }
    }

    fn meets_another(&self, op: Op, range: Range) -> bool {
        self.pending.values().any(|other| {
            let changes = op.is_write() || matches!(other.kind, Expectation::Effect { .. });
            changes && other.range.overlaps(range)
        })
    }

    fn submit(&mut self, op: Op, range: Range, fua: bool, coverage: &mut Coverage) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.submitted += 1;
        let (offset, len) = ((range.first * SECTOR_BYTES) as u64, range.count * SECTOR_BYTES);
        let mut io = Io::new(token, op, offset, len as u64);
        io.flags = IoFlags { fua, ..IoFlags::default() };
        let (run, life) = (self.run, self.life());
        let kind = match op {
            Op::Read => Expectation::Read(self.model.begin_read(Some(run), range, life)),
            Op::Flush => {
                (io.offset, io.len) = (0, 0);
                Expectation::Flush(self.model.begin_flush())
            }
            _ => {
                let effect = match op {
                    Op::Write => ModelEffect::Data,
                    Op::Discard => ModelEffect::Discard,
                    _ => ModelEffect::Zeroes,
                };
                io.flags.no_hole = op == Op::WriteZeroes && self.rng.chance(0.3);
                let version = self.model.begin_write(run, range, effect);
                self.debts.has_written |= !fua;
                Expectation::Effect { version, fua }
            }
        };
        if let (Op::Write, Expectation::Effect { version, .. }) = (op, &kind) {
            let mut buf = self.pool.get(len);
            self.model.fill(run, range, *version, &mut buf);
            io.data = SegList::of(buf.freeze());
        }
        let block = self.disk.block_bytes as usize / SECTOR_BYTES;
        let blocks = range.widened(block);
        if matches!(op, Op::Write | Op::WriteZeroes) && blocks != range {
            coverage.edges_patched += 1;
            self.model.begin_patch(run, blocks, life);
        }
        coverage.local_ios += 1;
        let failures = (self.flush_failures(), self.debts.heard.get());
        self.pending.insert(token, Pending { kind, range, failures });
        self.volume.as_mut().expect("it runs").submit(io);
        self.is_dirty = true;
        token
    }

    /// Flushes once, if it runs.
    pub fn flush(&mut self) {
        if self.runs() {
            self.submit(Op::Flush, Range { first: 0, count: 0 }, false, &mut Coverage::default());
        }
    }

    /// Lets it submit so many more.
    pub fn add_budget(&mut self, count: u64) {
        self.disk.workload.budget = self.submitted + count;
        self.is_dirty = true;
    }

    /// It runs, has submitted what it may, and all is answered.
    pub fn is_finished(&self) -> bool {
        self.runs() && self.pending.is_empty() && self.submitted >= self.disk.workload.budget
    }

    /// From now on nothing fails.
    pub fn is_well_now(&mut self) {
        self.is_well = true;
    }

    /// How it stands, for a failure.
    pub fn describe(&self) -> String {
        let left = self.disk.workload.budget.saturating_sub(self.submitted);
        format!("{}: {} outstanding, {left} to submit", self.name, self.pending.len())
    }

    /// What was flushed is there.
    pub fn check_image(&self) -> Result<(), Violation> {
        self.model.check_image(&self.medium.durable())
    }

    /// Adds what its disk has seen.
    pub fn harvest(&self, coverage: &mut Coverage) {
        let stats = self.medium.stats();
        coverage.flush_failures += stats.flush_failures;
        coverage.device_failures += stats.device_failures;
        coverage.writeback_failures += stats.writeback_failures;
        coverage.write_failures += stats.write_failures;
    }

    fn violation(&self, text: String) -> Violation {
        Violation(format!("{} (run {}): {text}", self.name, self.run))
    }
}
