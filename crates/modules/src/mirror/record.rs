//! How the legs stand, on record: a new generation, which all legs in sync are told of first, then have in their labels, before
//! anything is completed that depends on it (rules 3, 4 and 25); then those have it that become so; then legs that are copied
//! to say that they are, each at a generation of its own (rule 6), which is on record in the end.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{Completion, ErrorKind, Op};

use super::opening::Phase;
use super::serve::lowest;
use super::state::{Generation, LegState, MirrorState, NO_GENERATION};
use super::{Mirror, MirrorCanary, NAME, bits};
use crate::meta::{LabelOutcome, LabelWork};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// What is on record is what holds, but for what is wanted.
    #[default]
    Idle,
    /// Labels of legs in sync, and of those that become so, are told what comes: a crash in the next stage leaves some that have
    /// that, and others that know of it.
    Announcing,
    /// Labels of legs in sync are being written.
    InSync,
    /// Those of legs that become so: all others say so by now, and none of them is served without these any more.
    Promoting,
    /// Those of legs that are copied to, and do not say so yet.
    Resyncing,
    /// Labels of legs in sync get what is to be done beside users, which nobody waits for, or who may write the whole, and say the same as before of all else.
    Noting,
}

/// What no leg in sync takes is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Whoever waits for the record fails after so long in which no leg has taken it.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Record {
    /// Nothing is put there: the mirror is open for reading.
    pub is_off: bool,
    is_wanted: bool,
    stage: Stage,
    /// What labels say, or are about to, of what is done beside users.
    pub noted: Option<LabelWork>,
    /// The generation that is being drawn.
    next: Generation,
    /// Legs whose labels are being written, and those where that has failed.
    pending: u8,
    failed: u8,
    /// Legs in sync that have failed theirs, all of them; when they are tried again, and since when that is so.
    stuck: u8,
    retry_at: Time,
    stuck_since: Option<Time>,
    /// Legs that are in sync as soon as their labels say so.
    pub promoting: u8,
    /// Legs that are there, and get nothing yet; of those, the ones that are on record as resyncing, or about to be.
    pub joining: u8,
    pub announced: u8,
}

impl Record {
    /// The legs stand in another way than is on record.
    pub fn want(&mut self) {
        self.is_wanted = !self.is_off;
    }

    /// Completions wait.
    #[inline]
    pub fn is_changing(&self) -> bool {
        self.is_wanted || !matches!(self.stage, Stage::Idle | Stage::Noting)
    }

    /// Labels are being written.
    pub fn is_writing(&self) -> bool {
        self.pending != 0
    }

    /// No leg takes it. Reads do not wait for that: whatever is read is lost only with what nobody could flush.
    pub fn is_stuck(&self) -> bool {
        self.stuck_since.is_some()
    }

    /// Nor has one for so long that nobody waits for it any more.
    pub fn is_given_up(&self, now: Time) -> bool {
        self.stuck_since.is_some_and(|since| since + PATIENCE <= now)
    }

    /// A leg is dropped: nothing of it is waited for.
    pub fn forget(&mut self, leg: usize) {
        let others = !(1 << leg);
        self.pending &= others;
        self.failed &= others;
        self.stuck &= others;
        self.promoting &= others;
        self.joining &= others;
        self.announced &= others;
    }
}

impl Mirror {
    /// Goes on with the record, if it can.
    pub(super) fn step_record(&mut self) -> bool {
        match self.record.stage {
            _ if self.phase == Phase::Loading => false,
            Stage::Idle if self.record.is_wanted => {
                self.begin_record();
                true
            }
            Stage::Idle => self.begin_note(),
            _ if self.record.pending != 0 => false,
            stage if self.record.stuck != 0 => self.try_again(stage),
            stage => {
                self.end_stage(stage);
                true
            }
        }
    }

    fn begin_record(&mut self) {
        self.record.is_wanted = false;
        let served = self.active | self.record.announced;
        for (leg, at) in self.legs.iter_mut().enumerate() {
            let LegState::Resyncing { at: left } = &mut self.state.legs[leg] else { continue };
            // One that is still to be copied to stays as it is known, or unknown: bits may not tell yet what it lacks.
            let Some(at) = at.as_mut().filter(|_| served >> leg & 1 == 1) else { continue };
            if !at.is_marked && at.or == NO_GENERATION {
                at.or = self.config.generations.draw();
            }
            // By now it may have another label than when it ceased to be in sync.
            *left = at.left_at();
        }
        self.record.next = self.config.generations.draw();
        let told = self.in_sync | self.record.promoting;
        if told.is_power_of_two() || self.canary == MirrorCanary::SinglePhase {
            return self.write_generation();
        }
        self.record.stage = Stage::Announcing;
        self.announce(told);
    }

    /// Puts down who may write the whole, and what is done beside users, if labels do not say it. True if that begins.
    fn begin_note(&mut self) -> bool {
        let is_free = self.phase == Phase::Serving && !self.record.is_off;
        if !is_free || (!self.begin_store() && self.record.noted == self.work_note()) {
            return false;
        }
        self.record.stage = Stage::Noting;
        let legs = match self.canary {
            MirrorCanary::RecordOnOneLeg => lowest(self.in_sync),
            _ => self.in_sync,
        };
        bits(legs).for_each(|leg| self.write_label(leg, self.recorded.clone()));
        true
    }

    fn announce(&mut self, legs: u8) {
        for leg in bits(legs) {
            let Some(at) = &self.legs[leg] else { continue };
            // Where legs in sync differ, because a crash has cut off the last change, all say the later one.
            let says = if self.in_sync >> leg & 1 == 1 { &self.recorded } else { &at.own };
            let says = MirrorState { next: self.record.next, ..says.clone() };
            self.write_label(leg, says);
        }
    }

    fn write_generation(&mut self) {
        self.record.stage = Stage::InSync;
        self.state.advance(self.record.next);
        self.on_generation();
        let passed = self.now.since(self.begun.min(self.now)).as_secs();
        self.state.drawn_at = match self.config.opened_at {
            0 => 0,
            opened => opened.saturating_add(passed),
        };
        self.recorded = self.state.clone();
        self.write_state(self.in_sync);
    }

    /// What no leg has taken is written once more, as it was, also if it is not what is wanted by now: nobody knows whether one has it.
    fn try_again(&mut self, stage: Stage) -> bool {
        if self.record.retry_at > self.now {
            return self.record.is_given_up(self.now) && self.fail_who_waits();
        }
        let legs = std::mem::take(&mut self.record.stuck) & self.in_sync;
        match stage {
            Stage::Announcing => self.announce(legs),
            _ => bits(legs).for_each(|leg| self.write_label(leg, self.recorded.clone())),
        }
        true
    }

    /// Fails what waits for the record, if anything does.
    fn fail_who_waits(&mut self) -> bool {
        let mut any = false;
        for (error, completion) in std::mem::take(&mut self.held) {
            self.put_ready(Completion::new(completion.token, Err(error)));
            any = true;
        }
        while let Some(io) = self.queue.pop_front() {
            self.put_ready(Completion::new(io.token, Err(io.error(ErrorKind::Io, NAME))));
            any = true;
        }
        for io in self.writer.take_waiting() {
            self.put_ready(Completion::new(io.token, Err(io.error(ErrorKind::Io, NAME))));
            any = true;
        }
        any | self.fail_waiting(ErrorKind::Io)
    }

    /// Lets those go that only read.
    fn let_reads_go(&mut self) {
        let (mut held, mut rest) = (std::mem::take(&mut self.held), Vec::new());
        for (error, completion) in held.drain(..) {
            match matches!(error.op, Op::Read | Op::BlockStatus) {
                true => self.put_ready(completion),
                false => rest.push((error, completion)),
            }
        }
        self.held = rest;
    }

    /// When it is to be looked at again.
    pub(super) fn next_record(&self) -> Time {
        match self.record.stuck {
            0 => Time::NEVER,
            _ => self.record.retry_at,
        }
    }

    fn write_state(&mut self, legs: u8) {
        bits(legs).for_each(|leg| self.write_label(leg, self.state.clone()));
    }

    fn write_label(&mut self, leg: usize, state: MirrorState) {
        let work = self.work_note();
        let Some(at) = &mut self.legs[leg] else { return };
        (at.label.work, self.record.noted) = (work, work);
        at.label.writer.clone_from(&self.writer.kept);
        if state.generation != at.own.generation {
            at.or = state.generation;
        }
        // As many parts as it says of legs: one is added with the generation, and not with what announces that.
        let mut own = at.label.part();
        // It has the room.
        own.bytes = own.bytes.max(self.bytes);
        at.label.whole_bytes = self.bytes;
        at.label.parts.clear();
        at.label.parts.extend(&self.parts[..state.legs.len()]);
        at.label.parts[leg] = own;
        at.label.state = state.encode();
        match at.labels.write(&at.label, &mut *at.volume) {
            Ok(()) => {
                at.label_since = Some(Time::NEVER);
                self.record.pending |= 1 << leg;
                self.has_sent = true;
            }
            Err(_) => self.record.failed |= 1 << leg,
        }
    }

    /// A label was written, or not.
    pub(super) fn on_label(&mut self, leg: usize, ended: LabelOutcome) {
        self.on_label_answer(leg);
        let Some(at) = &mut self.legs[leg] else { return };
        at.label_since = None;
        self.record.pending &= !(1 << leg);
        let written = match ended {
            LabelOutcome::Written(Ok(_)) => MirrorState::decode(&at.label.state).ok(),
            _ => None,
        };
        match written {
            Some(own) => {
                at.on_own(leg, own);
                self.writer.on_written(leg);
            }
            None => self.record.failed |= 1 << leg,
        }
    }

    fn end_stage(&mut self, stage: Stage) {
        let failed = std::mem::take(&mut self.record.failed);
        if stage == Stage::Noting {
            self.record.stage = Stage::Idle;
            self.forget_label_times();
            // What the last one has not taken comes with its next label.
            bits(failed).for_each(|leg| self.drop_if_spare(leg, false));
            return self.end_store();
        }
        let is_told = matches!(stage, Stage::Announcing | Stage::InSync);
        if is_told && self.in_sync & !failed == 0 {
            // A leg that was to be in sync cannot step in: none that is says so.
            bits(failed & !self.in_sync).for_each(|leg| self.drop_leg(leg, false));
            self.record.stuck = self.in_sync;
            self.record.retry_at = self.now + RETRY_AFTER;
            self.record.stuck_since.get_or_insert(self.now);
            return self.let_reads_go();
        }
        self.record.stuck_since = None;
        bits(failed).for_each(|leg| self.drop_leg(leg, false));
        if self.record.is_wanted {
            self.record.stage = Stage::Idle;
            return;
        }
        match stage {
            Stage::Announcing => self.write_generation(),
            Stage::InSync => {
                self.record.stage = Stage::Promoting;
                self.write_state(self.record.promoting);
            }
            Stage::Promoting => {
                self.record.stage = Stage::Resyncing;
                self.in_sync |= std::mem::take(&mut self.record.promoting);
                let resyncing = (self.active | self.record.announced) & !self.in_sync;
                bits(resyncing).for_each(|leg| self.mark(leg));
            }
            Stage::Resyncing | Stage::Idle | Stage::Noting => self.end_record(),
        }
    }

    /// Has a leg say that it is being copied to, if it does not: with what is on record, so that it knows a source that is old.
    fn mark(&mut self, leg: usize) {
        let Some(at) = &self.legs[leg] else { return };
        if !at.is_marked {
            let mut state = self.state.clone();
            state.advance(at.or);
            if self.canary == MirrorCanary::MarkWithoutName {
                state.generation = at.own.generation;
                return self.write_label(leg, state);
            }
            self.write_label(leg, state);
            // What it had before is no name for it any more, before any of its bits is cleared.
            self.record.want();
        }
    }

    /// It is on record: whoever waited for it goes on.
    fn end_record(&mut self) {
        self.record.stage = Stage::Idle;
        self.forget_label_times();
        self.on_record();
        let joined = std::mem::take(&mut self.record.announced);
        if joined != 0 {
            self.record.joining &= !joined;
            self.active |= joined;
            // They have bitmaps of their own, of which nothing is known.
            self.regions.soil_all();
            self.regions.look_again();
            self.resync.wait_for(self.intent.next_batch());
        }
        let mut held = std::mem::take(&mut self.held);
        held.drain(..).for_each(|(_, completion)| self.put_ready(completion));
        self.held = held;
    }
}
