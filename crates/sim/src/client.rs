//! An initiator with a workload: every answer is checked against the model of its export.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_initiator::{AttachError, Initiator, InitiatorConfig, InitiatorStats};
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::SimNet;
use thinwire_proto::{DropReason, Notice, Time};
use thinwire_volume::{Completion, ErrorKind, Io, IoFlags, Op, Volume};
use thinwire_wire::{FrameError, Status};

use crate::coverage::Coverage;
use crate::machine::Machine;
use crate::model::{Effect, Range, Ticket, Violation};
use crate::server::{Export, Store};
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
    /// I/Os fall into the first so many sectors half of the time.
    pub hot_sectors: usize,
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
        hot_sectors: 64,
        pauses: 0.0,
        pause_ns_max: 1,
    };
}

/// What the completion of an I/O is checked against.
enum Kind {
    Effect {
        version: u64,
        effect: Effect,
        fua: bool,
    },
    Read(Ticket),
    Status(Ticket),
    Flush((u64, u64)),
    /// A write through a read-only attachment.
    Forbidden,
}

struct Pending {
    kind: Kind,
    range: Range,
    submitted_at: u64,
}

/// How an I/O of a scripted test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which I/O.
    pub token: u64,
    /// Success, or why not.
    pub result: Result<(), ErrorKind>,
    /// The bytes of a read.
    pub data: Vec<u8>,
}

/// How a run of the initiator ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The first attach was refused.
    Refused(Status),
    /// It failed for good.
    Failed(ErrorKind),
    /// It was closed.
    Closed,
}

/// A machine for an initiator.
pub struct Client {
    /// What it is called in traces.
    pub name: String,
    /// Its links.
    pub machine: Machine,
    /// The process, if it runs.
    pub initiator: Option<Initiator>,
    /// Settings for its next start.
    pub config: InitiatorConfig,
    /// Which export it uses.
    pub export: usize,
    /// Faults of its links, if they are wrapped.
    pub faults: Option<FaultConfig>,
    /// What it does.
    pub workload: Workload,
    /// Number of its present run, unique in the world.
    pub run: u32,
    /// The run has been granted its export.
    pub is_open: bool,
    /// Outcomes are kept in `log` for a scripted test.
    pub keeps_log: bool,
    /// See `keeps_log`.
    pub log: Vec<Outcome>,
    rng: Rng,
    pool: Pool,
    incarnation: u64,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    submitted: u64,
    pause_until: u64,
    closing: bool,
    aborted: bool,
    failures_seen: u64,
    done: Vec<Completion>,
}

impl Client {
    /// A machine on which nothing runs yet.
    pub fn new(
        name: String,
        stations: Vec<u32>,
        config: InitiatorConfig,
        export: usize,
        workload: Workload,
        rng: Rng,
    ) -> Self {
        Client {
            name,
            machine: Machine::new(stations),
            initiator: None,
            config,
            export,
            faults: None,
            workload,
            run: 0,
            is_open: false,
            keeps_log: false,
            log: Vec::new(),
            rng,
            pool: Pool::new(8 << 20),
            incarnation: 0,
            pending: BTreeMap::new(),
            next_token: 1,
            submitted: 0,
            pause_until: 0,
            closing: false,
            aborted: false,
            failures_seen: 0,
            done: Vec::new(),
        }
    }

    /// Starts a run of the initiator.
    pub fn start(&mut self, now: u64, run: u32, seed: u64, net: &SimNet, clock: &Rc<Cell<u64>>) {
        assert!(self.initiator.is_none() && self.pending.is_empty());
        let params = self.machine.open_links(net, self.faults.as_ref(), clock);
        let config = InitiatorConfig { instance: seed, ..self.config.clone() };
        let pool = self.pool.clone();
        self.initiator = Some(Initiator::new(Time(now), config, params, pool, seed));
        self.run = run;
        self.is_open = false;
        self.closing = false;
        self.aborted = false;
        self.failures_seen = 0;
        self.machine.frozen_until = 0;
    }

    /// The process is gone at once.
    pub fn crash(&mut self, export: &mut Export, coverage: &mut Coverage) {
        let Some(initiator) = self.initiator.take() else { return };
        harvest(&initiator, coverage);
        self.pending.clear();
        self.machine.deadline = u64::MAX;
        if self.is_open && !self.config.read_only {
            let model = export.model_at(self.incarnation);
            export.models[model].run_ended(self.run);
        }
        self.is_open = false;
    }

    /// Begins an orderly end.
    pub fn close(&mut self) {
        if let Some(initiator) = &mut self.initiator {
            initiator.close();
            self.closing = true;
            self.machine.dirty = true;
        }
    }

    /// Ends it at once, by force.
    pub fn abort(&mut self) {
        if let Some(initiator) = &mut self.initiator {
            initiator.abort();
            self.closing = true;
            self.aborted = true;
            self.machine.dirty = true;
        }
    }

    /// I/Os that are not answered.
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// An orderly or forced end is under way.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// When the oldest I/O that is not answered was submitted.
    pub fn oldest(&self) -> Option<u64> {
        self.pending.values().map(|p| p.submitted_at).min()
    }

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
        let model_index = export.model_at(self.incarnation);
        let model = &mut export.models[model_index];
        let reader = self.config.read_only;
        let run = (!reader).then_some(self.run);
        let kind = match op {
            Op::Read => Kind::Read(model.begin_read(run, range, life)),
            Op::BlockStatus => Kind::Status(model.begin_status(run, range, life)),
            Op::Flush => {
                io.len = 0;
                io.offset = 0;
                Kind::Flush(model.begin_flush())
            }
            Op::Write | Op::Discard | Op::WriteZeroes if reader => Kind::Forbidden,
            Op::Write => {
                let version = model.begin_write(self.run, range, Effect::Data);
                Kind::Effect { version, effect: Effect::Data, fua }
            }
            Op::Discard | Op::WriteZeroes => {
                let effect = if op == Op::Discard { Effect::Discard } else { Effect::Zeroes };
                io.flags.no_hole = op == Op::WriteZeroes && self.rng.chance(0.3);
                let version = model.begin_write(self.run, range, effect);
                Kind::Effect { version, effect, fua }
            }
        };
        if op == Op::Write {
            let mut buf = self.pool.get(len);
            match kind {
                Kind::Effect { version, .. } => model.fill(self.run, range, version, &mut buf),
                _ => buf.fill(0xee),
            }
            io.data = split(buf.freeze(), &mut self.rng);
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

    fn submit_random(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> (u64, Op, Range) {
        let w = self.workload;
        let features = self.initiator.as_ref().expect("it runs").geometry().features;
        let weights = [
            (Op::Read, w.reads),
            (Op::Write, if self.config.read_only { w.writes / 16 } else { w.writes }),
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
        let block = export.block_bytes as usize / SECTOR_BYTES;
        let all = export.bytes as usize / SECTOR_BYTES / block;
        let span = if self.rng.chance(0.5) { (w.hot_sectors / block).clamp(1, all) } else { all };
        let first = self.rng.below(span as u64) as usize;
        let longest = (w.sectors_max / block).clamp(1, all - first);
        // Mostly short ones, sometimes as long as it goes.
        let longest = if self.rng.chance(0.9) { longest.min(16) } else { longest };
        let count = self.rng.between(1, longest as u64) as usize;
        let range = Range { first: first * block, count: count * block };
        let fua = op.is_write() && self.rng.chance(w.fua);
        let token = self.submit(now, op, range, fua, export, coverage);
        if self.rng.chance(w.pauses) {
            self.pause_until = now + self.rng.between(1, w.pause_ns_max);
        }
        (token, op, range)
    }

    fn wants_more(&self, now: u64) -> bool {
        self.is_open
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

    /// One turn of its loop. Returns how the run ended, if it did.
    pub fn turn(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<End>, Violation> {
        let Some(mut initiator) = self.initiator.take() else { return Ok(None) };
        let time = Time(now);
        self.machine.receive(&self.pool, |link, frame| initiator.on_frame(time, link, frame));
        self.initiator = Some(initiator);
        self.look(now, export, coverage, trace)?;
        while self.wants_more(now) {
            let (token, op, range) = self.submit_random(now, export, coverage);
            let place = (range.first as u64) << 16 | range.count as u64;
            trace(op_name(op), token << 40 | place);
        }
        let initiator = self.initiator.as_mut().expect("put back");
        initiator.turn(time, self.machine.batches());
        let frames = self.machine.send();
        trace("sent", frames);
        self.look(now, export, coverage, trace)?;
        let initiator = self.initiator.as_ref().expect("it runs");
        self.machine.deadline = initiator.deadline(time).0;
        if self.wants_more(now.max(self.pause_until)) {
            self.machine.deadline = self.machine.deadline.min(self.pause_until);
        }
        let end = self.ended(export)?;
        if end.is_some() {
            self.end(export, coverage, end == Some(End::Closed))?;
        }
        Ok(end)
    }

    /// Sees what has changed, and checks the completions.
    fn look(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<(), Violation> {
        let initiator = self.initiator.as_mut().expect("it runs");
        if !self.is_open && initiator.is_open() && !self.closing {
            self.is_open = true;
            self.incarnation = initiator.identity().incarnation;
            coverage.attached += 1;
            trace("attached", u64::from(self.run));
            if !self.config.read_only {
                let generation = initiator.report(Time(now)).writer_generation;
                let model = export.model_at(self.incarnation);
                let is_writer = export.models[model].run_started(self.run, generation);
                if let (true, Store::File(medium)) = (is_writer, &export.store) {
                    medium.fence(self.run);
                }
            }
        }
        while let Some(notice) = initiator.take_notice() {
            match notice {
                Notice::PathUp(_) => coverage.paths_up += 1,
                Notice::PathDown(_) => coverage.paths_down += 1,
                Notice::FrameSize { .. } => coverage.frame_size_fallbacks += 1,
            }
        }
        let failures = initiator.report(Time(now)).stats.replay_failures;
        if failures > self.failures_seen {
            self.failures_seen = failures;
            let model = export.model_at(self.incarnation);
            export.models[model].replay_failed(self.run);
            if !export.may_fail {
                return Err(Violation(format!("{}: a replay failed", self.name)));
            }
        }
        let mut done = std::mem::take(&mut self.done);
        initiator.poll(&mut done);
        if !done.is_empty() {
            self.machine.dirty = true;
        }
        for completion in done.drain(..) {
            let code = completion.result.map_or_else(|e| e.kind as u64 + 1, |()| 0);
            trace("completed", completion.token << 8 | code);
            self.check(completion, export, coverage)?;
        }
        self.done = done;
        Ok(())
    }

    fn check(
        &mut self,
        completion: Completion,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let token = completion.token;
        let Some(Pending { kind, range, .. }) = self.pending.remove(&token) else {
            return Err(self.violation(format!("I/O {token} was completed twice")));
        };
        let life = export.life();
        let result = completion.result;
        if self.keeps_log {
            let data = completion.data.to_vec();
            self.log.push(Outcome { token, result: result.map_err(|e| e.kind), data });
        }
        if let Err(error) = result {
            self.check_error(error.kind, &kind, export, coverage)?;
        }
        let ok = result.is_ok();
        let model_index = export.model_at(self.incarnation);
        let model = &mut export.models[model_index];
        match kind {
            Kind::Effect { version, effect, fua } => {
                model.end_write(self.run, range, version, ok, fua);
                if ok {
                    match effect {
                        Effect::Data => coverage.writes += 1,
                        Effect::Zeroes => coverage.zeroes += 1,
                        Effect::Discard => coverage.discards += 1,
                    }
                    coverage.fua_writes += u64::from(fua);
                }
            }
            Kind::Flush(mark) => {
                coverage.flushes += u64::from(ok);
                if !self.config.read_only {
                    model.end_flush(self.run, mark, ok).map_err(|v| self.violation(v.0))?;
                }
            }
            Kind::Read(ticket) if ok => {
                coverage.reads_checked += 1;
                coverage.reader_reads += u64::from(self.config.read_only);
                let data = completion.data.to_vec();
                model.end_read(&ticket, range, &data, life).map_err(|v| self.violation(v.0))?;
            }
            Kind::Status(ticket) if ok => {
                coverage.statuses += 1;
                let mut at = range.first;
                for extent in &completion.extents {
                    let count = extent.len as usize / SECTOR_BYTES;
                    if extent.zero {
                        let before = at - range.first;
                        let mut ticket = ticket.clone();
                        ticket.skip(before);
                        model
                            .check_zero(&ticket, Range { first: at, count })
                            .map_err(|v| self.violation(v.0))?;
                    }
                    at += count;
                }
                if at == range.first || at > range.first + range.count {
                    let text = format!("block status of {range:?} ends at sector {at}");
                    return Err(self.violation(text));
                }
            }
            Kind::Forbidden if ok => {
                return Err(self.violation("a read-only attachment wrote".into()));
            }
            Kind::Read(_) | Kind::Status(_) | Kind::Forbidden => {}
        }
        Ok(())
    }

    /// Whether an error was due.
    fn check_error(
        &self,
        error: ErrorKind,
        kind: &Kind,
        export: &Export,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let may_lose = matches!(self.config.when_away, thinwire_initiator::WhenAway::FailAfter(_));
        let is_due = match error {
            ErrorKind::Away => may_lose,
            ErrorKind::Fenced => export.writers > 1 && !self.config.read_only,
            ErrorKind::ContentChanged => self.content_is_gone(export),
            ErrorKind::Io | ErrorKind::NoSpace => export.may_fail,
            ErrorKind::ShuttingDown => self.closing,
            ErrorKind::ReadOnly => matches!(kind, Kind::Forbidden),
            ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::OutcomeUnknown => false,
        };
        if !is_due {
            return Err(self.violation(format!("an I/O failed: {}", error.describe())));
        }
        coverage.errors += 1;
        coverage.away_errors += u64::from(error == ErrorKind::Away);
        coverage.reader_writes_refused += u64::from(error == ErrorKind::ReadOnly);
        Ok(())
    }

    fn content_is_gone(&self, export: &Export) -> bool {
        matches!(export.store, Store::Memory) && (self.incarnation as usize) < export.models.len()
    }

    fn ended(&self, export: &Export) -> Result<Option<End>, Violation> {
        let initiator = self.initiator.as_ref().expect("it runs");
        if initiator.is_closed() {
            return Ok(Some(End::Closed));
        }
        if let Some(kind) = initiator.failure() {
            if !self.pending.is_empty() {
                let text = format!("{} I/Os are left after it has failed", self.pending.len());
                return Err(self.violation(text));
            }
            let is_due = match kind {
                ErrorKind::Fenced => export.writers > 1,
                ErrorKind::ContentChanged => self.content_is_gone(export),
                _ => false,
            };
            if !is_due {
                return Err(self.violation(format!("it failed: {}", kind.describe())));
            }
            return Ok(Some(End::Failed(kind)));
        }
        match initiator.first_error() {
            Some(AttachError::Refused { status, text, .. }) if !initiator.is_open() => {
                let is_due = match status {
                    Status::Busy => true,
                    Status::Io => export.may_fail,
                    _ => false,
                };
                if !is_due {
                    return Err(self.violation(format!("it was refused: {text}")));
                }
                Ok(Some(End::Refused(*status)))
            }
            Some(error) if !initiator.is_open() => {
                Err(self.violation(format!("the first attach failed: {error}")))
            }
            _ => Ok(None),
        }
    }

    fn end(
        &mut self,
        export: &mut Export,
        coverage: &mut Coverage,
        closed: bool,
    ) -> Result<(), Violation> {
        let initiator = self.initiator.take().expect("it ran");
        harvest(&initiator, coverage);
        self.machine.deadline = u64::MAX;
        let was_open = std::mem::take(&mut self.is_open);
        self.pending.clear();
        if !was_open || self.config.read_only {
            return Ok(());
        }
        let model = export.model_at(self.incarnation);
        if closed && !self.aborted && initiator.close_error().is_none() {
            coverage.detached += 1;
            export.models[model].run_detached(self.run).map_err(|v| self.violation(v.0))?;
        } else {
            coverage.aborted += u64::from(self.aborted);
            export.models[model].run_ended(self.run);
        }
        Ok(())
    }

    fn violation(&self, text: String) -> Violation {
        Violation(format!("{} (run {}): {text}", self.name, self.run))
    }
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "reads",
        Op::Write => "writes",
        Op::Flush => "flushes",
        Op::Discard => "discards",
        Op::WriteZeroes => "zeroes",
        Op::BlockStatus => "asks",
    }
}

/// Cuts a payload into segments at random sectors, as applications' buffers come.
fn split(whole: thinwire_buffer::Segment, rng: &mut Rng) -> SegList {
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

/// Adds the figures of an initiator that ends.
fn harvest(initiator: &Initiator, coverage: &mut Coverage) {
    let stats: InitiatorStats = initiator.report(Time::ZERO).stats;
    coverage.sessions += stats.sessions;
    coverage.replayed += stats.replayed;
    coverage.replay_failures += stats.replay_failures;
    coverage.late_duplicates += stats.drops.get(DropReason::LateDuplicate);
    coverage.duplicate_frames += stats.drops.get(DropReason::Duplicate);
    coverage.damaged_frames += stats.drops.get(DropReason::Frame(FrameError::Checksum));
    coverage.unknown_sessions += stats.drops.get(DropReason::UnknownSession);
}
