//! Legs that do not answer: one that has said nothing for `leg_timeout` is dropped while another is in sync, and all that have died by then with it, so that
//! nobody waits for one after the other. What died while nothing was asked of it is known only by being asked: so as long as one leg says nothing, the
//! others are asked for something, too.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{Io, IoFlags, Op};

use super::bitmap::BLOCK_BYTES;
use super::opening::Phase;
use super::{BITMAP_OFFSET, LATE_TIMES, LEGS_MAX, Mirror, MirrorCanary, TURN_MAX, Task, bits};

/// When a leg has said nothing for so long, a part of the timeout and no more than that, others that have nothing to do are asked, and each time again.
const PROBE_PART: u32 = 20;
const PROBE_MAX: Duration = Duration::from_millis(250);
/// Legs of which one is late that many of these before the other are late together.
const TOGETHER: u32 = 2;

/// Who drives a mirror and tells it no time submits any number of I/Os between two turns.
const UNTIMED_MAX: usize = 1024;

/// What a leg is asked for: what it answers of one says nothing of the other, as a disk that reads from memory and writes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read = 0,
    Change = 1,
}

impl Kind {
    pub fn of(op: Op) -> Self {
        match op {
            Op::Read | Op::BlockStatus => Kind::Read,
            _ => Kind::Change,
        }
    }
}

/// How long is waited for legs.
struct Patience {
    timeout: Duration,
    /// When each has completed something last, of each kind.
    answered: [[Time; 2]; LEGS_MAX],
    /// What its labels have taken by now of the change that is being put on record.
    spent: [Duration; LEGS_MAX],
}

impl Patience {
    /// Until when a leg has to answer what was submitted at that time; without a kind, its label.
    fn ends(&self, leg: usize, kind: Option<Kind>, since: Time) -> Time {
        match kind {
            Some(kind) => {
                let answered = since.max(self.answered[leg][kind as usize]) + self.timeout;
                answered.min(since + self.timeout * LATE_TIMES)
            }
            // All I/O waits for it, and for all labels of a change it has as long as for one.
            None => since + self.timeout.saturating_sub(self.spent[leg]),
        }
    }

    fn probe_after(&self) -> Duration {
        probe_after(self.timeout)
    }
}

/// How long a leg has said nothing before others are asked.
fn probe_after(timeout: Duration) -> Duration {
    (timeout / PROBE_PART).min(PROBE_MAX)
}

/// What was seen of that last, so that not each turn looks at all that is outstanding.
pub(super) struct Watch {
    /// What was submitted since the last turn: each becomes timed by the next.
    untimed: Vec<u32>,
    /// Before that, by [`Mirror::counted`], nobody can be late, nor is to be asked: answers only put it off.
    until: Time,
    /// For these legs in sync and active.
    legs: (u8, u8),
}

impl Watch {
    /// Nothing was seen.
    pub fn new() -> Self {
        Watch { untimed: Vec::new(), until: Time::ZERO, legs: (0, 0) }
    }

    /// Something was submitted.
    #[inline]
    pub fn add(&mut self, sub: u32) {
        match self.untimed.len() < UNTIMED_MAX {
            true => self.untimed.push(sub),
            // All are looked at.
            false => self.until = Time::ZERO,
        }
    }
}

/// What is waited for.
struct Waits {
    /// When legs are dropped that have not answered by then; never if none may be.
    until: Time,
    /// Since when the one that has said nothing for longest has not, of those.
    silent: Time,
    /// Legs of which something is waited for.
    asked: u8,
}

impl Mirror {
    /// Begins to time what was submitted since the last turn, and sees whether a leg has not answered for long: it is dropped
    /// if the next poll does not have its answer, either. When the next may have.
    pub(super) fn time_answers(&mut self) -> Time {
        let now = self.counted;
        self.begin_timing();
        let legs = (self.in_sync, self.active);
        // How long labels may take depends on what they have taken by now.
        let is_labelled = self.legs.iter().flatten().any(|leg| leg.label_since.is_some());
        self.is_late = false;
        if is_labelled || self.watch.legs != legs || self.watch.until <= now {
            let patience = self.patience();
            let Waits { until, silent, asked } = self.waits(&patience);
            self.is_late = until <= now;
            let next = until.min(self.probe(silent, asked, patience.probe_after()));
            (self.watch.until, self.watch.legs) = (next, legs);
        } else if self.legs.iter().flatten().all(|leg| leg.outstanding == 0) {
            self.watch.until = Time::NEVER;
        }
        self.next_look()
    }

    /// Begins to time what was submitted since the last turn, as [`Mirror::time_answers`], where there is nothing else to see. None if there may be.
    #[inline]
    pub(super) fn time_reads(&mut self) -> Option<Time> {
        self.begin_timing();
        let is_seen = self.watch.legs == (self.in_sync, self.active);
        (is_seen && self.watch.until > self.counted).then(|| self.next_look())
    }

    /// When may be due what was seen last.
    fn next_look(&self) -> Time {
        match self.watch.until {
            Time::NEVER => Time::NEVER,
            until => self.now + until.since(self.counted).min(TURN_MAX),
        }
    }

    /// What was submitted since the last turn is to be answered from now on.
    fn begin_timing(&mut self) {
        let (now, timeout) = (self.counted, self.config.leg_timeout);
        let mut untimed = std::mem::take(&mut self.watch.untimed);
        if !untimed.is_empty() {
            // Of three legs or more one may be asked sooner.
            let soonest = if self.active.count_ones() > 2 { probe_after(timeout) } else { timeout };
            self.watch.until = self.watch.until.min(now + soonest);
        }
        for sub in untimed.drain(..) {
            // Who has that number by now was submitted no sooner.
            if let Some(sub) = self.subs.find_mut(sub) {
                sub.since = now.min(sub.since);
            }
        }
        self.watch.untimed = untimed;
    }

    /// Drops legs that have not answered for long, nor now that they were polled.
    pub(super) fn drop_late(&mut self) {
        let (patience, now) = (self.patience(), self.counted);
        if self.waits(&patience).until > now {
            return;
        }
        let mut late = 0_u8;
        self.each_wait(|leg, kind, since| {
            late |= u8::from(patience.ends(leg, kind, *since) <= now) << leg;
        });
        bits(late).for_each(|leg| self.drop_if_spare(leg, false));
    }

    fn waits(&mut self, patience: &Patience) -> Waits {
        let (now, in_sync) = (self.counted, self.in_sync);
        let (mut first, mut silent, mut asked) = (Time::NEVER, Time::NEVER, 0);
        self.each_wait(|leg, kind, since| {
            *since = now.min(*since);
            asked |= 1 << leg;
            // The last leg in sync may take as long as it likes.
            if in_sync & !(1 << leg) != 0 {
                first = first.min(patience.ends(leg, kind, *since));
                let [read, changed] = patience.answered[leg];
                silent = silent.min(read.max(changed).max(*since));
            }
        });
        let mut until = first;
        // Nobody has to know before the first is late.
        if first <= now && self.canary != MirrorCanary::OneByOne {
            let together = first + patience.probe_after() * TOGETHER;
            self.each_wait(|leg, kind, since| {
                let ends = patience.ends(leg, kind, *since);
                if in_sync & !(1 << leg) != 0 && ends <= together {
                    until = until.max(ends);
                }
            });
        }
        Waits { until, silent, asked }
    }

    /// What legs are to answer, and since when; of a label there is no kind.
    fn each_wait(&mut self, mut visit: impl FnMut(usize, Option<Kind>, &mut Time)) {
        for (leg, at) in self.legs.iter_mut().enumerate() {
            if let Some(since) = at.as_mut().and_then(|at| at.label_since.as_mut()) {
                visit(leg, None, since);
            }
        }
        for (_, sub) in self.subs.iter_mut().filter(|(_, sub)| !sub.is_orphan) {
            visit(usize::from(sub.leg), Some(sub.kind), &mut sub.since);
        }
    }

    /// Asks legs of which nothing is waited for whether they are there, when another one has said nothing for long. When that is next.
    fn probe(&mut self, silent: Time, asked: u8, after: Duration) -> Time {
        let now = self.counted;
        // Of two it makes no difference.
        let is_of_use = self.active.count_ones() > 2 && self.canary != MirrorCanary::OneByOne;
        let others = self.active & !asked;
        if silent == Time::NEVER || !is_of_use {
            return Time::NEVER;
        }
        if now < silent + after {
            return silent + after;
        }
        if others == 0 && self.canary != MirrorCanary::ForgetsWhoAnswers {
            // Who answers meanwhile has nothing to do then.
            return now + after;
        }
        let mut next = Time::NEVER;
        for leg in bits(others) {
            let Some(at) = &mut self.legs[leg] else { continue };
            let [read, changed] = at.answered;
            // What it has answered since then is as good.
            let due = read.max(changed).max(silent) + after;
            if now < due {
                next = next.min(due);
                continue;
            }
            let flags = IoFlags { uncached: true, ..IoFlags::default() };
            let io = || Io { flags, ..Io::new(0, Op::Read, BITMAP_OFFSET, BLOCK_BYTES as u64) };
            let id = self.new_job(Task::Probe, io());
            self.send(leg, id, io());
        }
        next
    }

    /// A leg is there.
    pub(super) fn finish_probe(&mut self, id: u32) {
        self.jobs.remove(id.into());
    }

    /// Whether what a leg is asked for now says, once it is answered, that the leg is there. A flush behind which nothing was written
    /// does not: whoever stands for a leg that is away completes that.
    #[inline]
    pub(super) fn is_telling(&mut self, leg: usize, io: &Io) -> bool {
        let any_flush = self.canary == MirrorCanary::AnyFlushTells;
        let Some(at) = &mut self.legs[leg] else { return true };
        io.op != Op::Flush || std::mem::take(&mut at.has_unflushed) || any_flush
    }

    /// A leg has completed something that says that it is there.
    #[inline]
    pub(super) fn on_answer(&mut self, leg: usize, kind: Kind) {
        let (now, any) = (self.counted, self.canary == MirrorCanary::AnyAnswerCounts);
        let Some(at) = &mut self.legs[leg] else { return };
        at.answered[kind as usize] = now;
        if any {
            at.answered = [now; 2];
        }
    }

    /// A leg has answered something of its label. While it is being opened that counts as of any other I/O: nobody is in a hurry before
    /// there is a mirror, and a leg that is dropped here is dropped in each opening.
    pub(super) fn on_label_step(&mut self, leg: usize) {
        let is_opening = self.phase != Phase::Serving && self.canary != MirrorCanary::OpensInAHurry;
        let now = self.counted;
        if let Some(since) = self.legs[leg].as_mut().and_then(|leg| leg.label_since.as_mut())
            && is_opening
        {
            *since = now;
        }
    }

    /// A label has taken so long.
    pub(super) fn on_label_answer(&mut self, leg: usize) {
        let is_first = self.phase != Phase::Serving || self.canary == MirrorCanary::EachLabelAnew;
        let now = self.counted;
        let Some(at) = &mut self.legs[leg] else { return };
        // Nobody waits yet for what is being opened.
        if let Some(since) = at.label_since.filter(|_| !is_first) {
            at.label_spent += now.since(since.min(now));
        }
    }

    /// All is on record.
    pub(super) fn forget_label_times(&mut self) {
        self.legs.iter_mut().flatten().for_each(|leg| leg.label_spent = Duration::ZERO);
    }

    fn patience(&self) -> Patience {
        let mut answered = [[Time::ZERO; 2]; LEGS_MAX];
        let mut spent = [Duration::ZERO; LEGS_MAX];
        for (nth, leg) in self.legs.iter().enumerate() {
            if let Some(leg) = leg {
                (answered[nth], spent[nth]) = (leg.answered, leg.label_spent);
            }
        }
        Patience { timeout: self.config.leg_timeout, answered, spent }
    }
}
