//! An initiator with a workload: every answer is checked against the model of its export.
//!
//! Here is its life, from start to end. What runs is in `process.rs`, what it submits in `workload.rs`,
//! how answers are judged in `verdict.rs`.

mod holding;
mod members;
mod process;
mod reading;
mod verdict;
mod workload;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::Pool;
use thinwire_initiator::{InitiatorConfig, InitiatorStats};
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::SimNet;
use thinwire_node::NodeCanary;
use thinwire_proto::{DropReason, Time};
use thinwire_volume::{Completion, ErrorKind, Op};
use thinwire_wire::{FrameError, Status};

use self::members::is_for;
use self::verdict::Pending;
use self::workload::op_name;
use crate::aim::{Aims, Victim};
use crate::coverage::Coverage;
use crate::damage::BadBuffers;
use crate::export::Export;
use crate::keys::{Holder, entropy, known_as};
use crate::machine::Machine;
use crate::model::{Range, Violation};
use crate::server::{Crash, harvest_drops};
use crate::transitions::Change;
use crate::tree::TreeStore;

pub use self::holding::Holding;
pub use self::members::MemberCut;
pub use self::process::{ClientProcess, Top};
pub use self::reading::ReadingOn;
pub use self::workload::Workload;

/// How an I/O of a scripted test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoOutcome {
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
    /// It was killed with a change of its state.
    Killed,
}

/// A machine for an initiator.
pub struct Client {
    /// What it is called in traces.
    pub name: String,
    /// Its links.
    pub machine: Machine,
    /// The process, if it runs.
    pub initiator: Option<ClientProcess>,
    /// What its next start puts on top of the initiator.
    pub top: Top,
    /// A fault in its next node.
    pub node_canary: NodeCanary,
    /// Members that its next start has, 1 if it is an attachment as ever.
    pub members: u8,
    /// When frames of one of them alone are lost.
    pub cuts: Vec<MemberCut>,
    /// Settings for its next start.
    pub config: InitiatorConfig,
    /// Which key is its own, in a world with keys.
    pub holder: Option<Holder>,
    /// Which export it uses.
    pub export: usize,
    /// Faults of its links, if they are wrapped.
    pub faults: Option<FaultConfig>,
    /// What it does.
    pub workload: Workload,
    /// It reads on, if it does.
    pub reading: Option<ReadingOn>,
    /// Buffers of its writes go bad, if they do.
    pub buffers: Option<BadBuffers>,
    /// It keeps what it has read, if it does.
    pub holding: Option<Holding>,
    /// Crashes that wait for changes of its state.
    pub aims: Aims,
    /// Its target is to crash with this change, which has just happened.
    pub target_dies: Option<(Change, Crash)>,
    /// Number of its present run, unique in the world.
    pub run: u32,
    /// The run has been granted its export.
    pub is_open: bool,
    /// It takes a leaf of a tree away from its gateway, now and then, and does nothing there.
    pub is_guest: bool,
    /// Outcomes are kept in `log` for a scripted test.
    pub keeps_log: bool,
    /// See `keeps_log`.
    pub log: Vec<IoOutcome>,
    rng: Rng,
    pool: Pool,
    /// Which of the export's contents it was told of.
    content: usize,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    submitted: u64,
    pause_until: u64,
    closing: bool,
    aborted: bool,
    last_flush: LastFlush,
    failures_seen: u64,
    answered_at: u64,
    done: Vec<Completion>,
}

/// The flush with which the orderly end of a tree begins, from its top: what the leaves have told of a loss
/// may be owed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastFlush {
    /// The end has not begun, or needs none.
    No,
    /// When all else is answered.
    Wanted,
    /// Under this token.
    Asked(u64),
    /// It was answered: had it succeeded?
    Answered(bool),
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
            top: Top::Blocks,
            node_canary: NodeCanary::None,
            members: 1,
            cuts: Vec::new(),
            config,
            holder: None,
            export,
            faults: None,
            workload,
            reading: None,
            buffers: None,
            holding: None,
            aims: Aims::default(),
            target_dies: None,
            run: 0,
            is_open: false,
            is_guest: false,
            keeps_log: false,
            log: Vec::new(),
            rng,
            pool: Pool::new(8 << 20),
            content: 0,
            pending: BTreeMap::new(),
            next_token: 1,
            submitted: 0,
            pause_until: 0,
            closing: false,
            aborted: false,
            last_flush: LastFlush::No,
            failures_seen: 0,
            answered_at: 0,
            done: Vec::new(),
        }
    }

    /// Starts a run of the initiator.
    pub fn start(
        &mut self,
        now: u64,
        run: u32,
        seed: u64,
        tree: Option<&TreeStore>,
        net: &SimNet,
        clock: &Rc<Cell<u64>>,
    ) {
        assert!(self.initiator.is_none() && self.pending.is_empty());
        let params = self.machine.open_links(net, self.faults.as_ref(), clock);
        let mut config = InitiatorConfig { instance: seed, ..self.config.clone() };
        if let Some(key) = &mut config.key {
            key.entropy = entropy(seed);
        }
        let (top, pool) = ((self.top, tree, self.members), &self.pool);
        let mut process = ClientProcess::new(now, config, params, top, pool, seed);
        process.node().set_canary(self.node_canary);
        self.initiator = Some(process);
        self.run = run;
        self.is_open = false;
        self.closing = false;
        self.aborted = false;
        self.last_flush = LastFlush::No;
        self.failures_seen = 0;
        self.machine.frozen_until = 0;
    }

    /// The process is gone at once.
    pub fn crash(&mut self, export: &mut Export, coverage: &mut Coverage) {
        let Some(initiator) = self.initiator.take() else { return };
        self.holding.iter_mut().for_each(Holding::clear);
        harvest(&initiator, self.top, coverage);
        if self.config.counters_high {
            coverage.counters_high += initiator.report(Time::ZERO).stats.sessions;
        }
        self.pending.clear();
        self.machine.deadline = u64::MAX;
        if self.is_open && !self.config.read_only {
            export.models[self.content].run_ended(self.run);
        }
        self.is_open = false;
    }

    /// Begins an orderly end.
    pub fn close(&mut self) {
        let Some(initiator) = &mut self.initiator else { return };
        self.machine.dirty = true;
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        if self.is_open && initiator.is_tree() && !self.config.read_only {
            self.last_flush = LastFlush::Wanted;
        } else {
            initiator.close();
        }
    }

    /// Ends it at once, by force.
    pub fn abort(&mut self) {
        if let Some(initiator) = &mut self.initiator {
            initiator.abort();
            self.closing = true;
            self.aborted = true;
            self.last_flush = LastFlush::No;
            self.machine.dirty = true;
        }
    }

    /// Who it is to its target.
    pub fn known_as(&self) -> [u8; 16] {
        known_as(self.holder, self.config.initiator)
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

    /// When an I/O was answered last.
    pub fn answered_at(&self) -> u64 {
        self.answered_at
    }

    /// One turn of its loop. Returns how the run ended, if it did.
    pub fn turn(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<End>, Violation> {
        let Some(process) = &mut self.initiator else { return Ok(None) };
        self.buffers.iter_mut().for_each(|buffers| buffers.advance(now));
        let time = Time(now);
        let node = process.node();
        let cuts = self.cuts.iter().filter(|cut| (cut.within.0..cut.within.1).contains(&now));
        let cut = cuts.map(|cut| cut.member).next().filter(|_| self.members > 1);
        self.machine.receive(&self.pool, |link, frame| {
            if cut.is_some_and(|member| is_for(&frame.bytes, member)) {
                coverage.members_cut += 1;
                return;
            }
            node.on_frame(time, link, frame);
        });
        node.settle(time);
        if self.has_to_die(coverage) {
            self.crash(export, coverage);
            return Ok(Some(End::Killed));
        }
        self.initiator.as_mut().expect("it runs").follow_members(now);
        self.look_at_held(now, false, coverage)?;
        self.look(now, export, coverage, trace)?;
        while self.wants_more(now) {
            let (token, op, range) = self.submit_random(now, export, coverage);
            let place = (range.first as u64) << 16 | range.count as u64;
            trace(op_name(op), token << 40 | place);
        }
        if self.last_flush == LastFlush::Wanted && self.pending.is_empty() {
            let nothing = Range { first: 0, count: 0 };
            let token = self.submit(now, Op::Flush, nothing, false, export, coverage);
            self.last_flush = LastFlush::Asked(token);
        }
        let node = self.initiator.as_mut().expect("it runs").node();
        node.settle(time);
        node.close(time);
        let frames = self.machine.send(node.out());
        self.machine.deadline = node.deadline().0;
        trace("sent", frames);
        self.look(now, export, coverage, trace)?;
        if self.has_to_die(coverage) {
            self.crash(export, coverage);
            return Ok(Some(End::Killed));
        }
        let process = self.initiator.as_mut().expect("it runs");
        self.machine.dirty |= process.node().has_ios();
        let report = process.report(time);
        let full = report.retained_bytes > self.config.retained_bytes_max
            || report.retained_entries > self.config.retained_entries_max;
        coverage.retained_full += u64::from(full);
        if self.wants_more(now.max(self.pause_until)) {
            self.machine.deadline = self.machine.deadline.min(self.pause_until);
        }
        let end = self.ended(now, export)?;
        if end.is_some() {
            self.end(export, coverage, end == Some(End::Closed))?;
        }
        Ok(end)
    }

    /// Counts how its states have changed since the last look: whether one of the changes is its death.
    fn has_to_die(&mut self, coverage: &mut Coverage) -> bool {
        let process = self.initiator.as_mut().expect("it runs");
        let (mut dies, mut deadly) = (false, Vec::new());
        process.observe(&mut coverage.transitions, |change| {
            let Some(victim) = self.aims.strike(change) else { return };
            match victim {
                Victim::Initiator => {
                    dies = true;
                    deadly.push(change);
                }
                // Of several changes in a look the last.
                Victim::Target(how) => self.target_dies = Some((change, how)),
            }
        });
        deadly.into_iter().for_each(|change| coverage.transitions.note_crash(change));
        dies
    }

    fn end(
        &mut self,
        export: &mut Export,
        coverage: &mut Coverage,
        closed: bool,
    ) -> Result<(), Violation> {
        self.look_at_held(0, true, coverage)?;
        let initiator = self.initiator.take().expect("it ran");
        harvest(&initiator, self.top, coverage);
        if self.config.counters_high {
            coverage.counters_high += initiator.report(Time::ZERO).stats.sessions;
        }
        self.machine.deadline = u64::MAX;
        let was_open = std::mem::take(&mut self.is_open);
        self.pending.clear();
        if !was_open || self.config.read_only {
            return Ok(());
        }
        let is_lost =
            initiator.close_error().is_some() || self.last_flush == LastFlush::Answered(false);
        if closed && !self.aborted && !is_lost {
            coverage.detached += 1;
            export.models[self.content].run_detached(self.run).map_err(|v| self.violation(v.0))?;
        } else {
            coverage.aborted += u64::from(self.aborted);
            export.models[self.content].run_ended(self.run);
        }
        Ok(())
    }
}

/// Adds the figures of an initiator that ends.
fn harvest(initiator: &ClientProcess, top: Top, coverage: &mut Coverage) {
    let stats: InitiatorStats = initiator.report(Time::ZERO).stats;
    coverage.sessions += stats.sessions;
    // Elsewhere blocks that are patched are copied, too.
    if top == Top::Blocks {
        coverage.read_bytes_copied += stats.copied_bytes;
    }
    coverage.replayed += stats.replayed;
    coverage.altered_here += stats.altered.here;
    coverage.altered_reads += stats.altered.reads;
    coverage.altered_failed += stats.altered.failed;
    coverage.replay_failures += stats.replay_failures;
    coverage.late_duplicates += stats.drops.get(DropReason::LateDuplicate);
    coverage.duplicate_frames += stats.drops.get(DropReason::Duplicate);
    coverage.damaged_frames += stats.drops.get(DropReason::Frame(FrameError::Checksum));
    coverage.unknown_sessions += stats.drops.get(DropReason::UnknownSession);
    harvest_drops(&stats.drops, coverage);
}
