//! What is acknowledged stays, whatever the target loses: the retained log, its replay, the verifier
//! that vouches for it, and what a flush may say (`docs/protocol.md`, "Restart and replay"; rules 4
//! and 8).

#[cfg(test)]
mod tests;

use std::time::Duration;

use thinwire_buffer::{Pool, SegList, Segment};
use thinwire_proto::{SumCanary, Time};
use thinwire_volume::{ErrorKind, Op};

use crate::InitiatorConfig;
use crate::config::InitiatorCanary;
use crate::retained::{Effect, LOOKS_PER_TURN, Retained, Standing};
use crate::slots::{Mark, Owner, Pending};

/// How long after a failed forced flush the next may follow.
const FLUSH_RETRY: Duration = Duration::from_secs(1);

/// The state of a replay.
#[derive(Clone, Copy, Debug, Default)]
struct Replay {
    /// The log's entries below this are to be sent again.
    end: u64,
    /// The next one.
    next: u64,
    /// And the byte in it from which on it is to be sent.
    from: u64,
    outstanding: usize,
}

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// To force another flush, after one that failed.
    Flush,
}

/// What becomes of a flush that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// It covers what it was to cover, or has failed.
    Told(Result<(), ErrorKind>),
    /// What it was to cover had been lost before it ran: it is made again, behind a replay.
    Again,
}

/// How much was replayed, and in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub effects: u64,
    pub failures: u64,
}

/// The log and what is known of it. Its states, and what becomes of them:
///
#[doc = include_str!("durability.md")]
///
/// It is full beyond its bounds, and wants a flush at half of them. "Owing" is a loss that the next
/// flush has to tell of.
#[derive(Debug)]
pub(crate) struct Durability {
    retained: Retained,
    /// The target's present verifier, as far as it is known.
    verifier: u64,
    replay: Option<Replay>,
    /// Replays begun so far.
    replays: u64,
    /// How much of the log a replay may still look at in this turn.
    looks: usize,
    /// A request of the replay could not be started: an answer or a credit is waited for.
    is_held: bool,
    /// Something that was acknowledged could not be written again.
    owes: bool,
    /// Whoever needs to know of that hears of it without a flush.
    is_heard: bool,
    /// The attachment has ended with a log that nobody can send again.
    given_up: bool,
    /// The flush that the bound asks for is outstanding.
    forced: bool,
    /// One that failed is not repeated before this.
    forced_after: Time,
    bytes_max: usize,
    entries_max: usize,
    canary: InitiatorCanary,
    sums: SumCanary,
    /// For sums of parts.
    pool: Pool,
    stats: Replayed,
}

impl Durability {
    pub fn new(config: &InitiatorConfig, pool: &Pool) -> Self {
        Durability {
            retained: Retained::new(config.retained_entries_max),
            verifier: 0,
            replay: None,
            replays: 0,
            looks: LOOKS_PER_TURN,
            is_held: false,
            owes: false,
            is_heard: config.losses_are_heard,
            given_up: false,
            forced: false,
            forced_after: Time::ZERO,
            bytes_max: config.retained_bytes_max,
            entries_max: config.retained_entries_max,
            canary: config.canary,
            sums: config.sums,
            pool: pool.clone(),
            stats: Replayed::default(),
        }
    }

    pub fn retained_bytes(&self) -> usize {
        self.retained.bytes()
    }

    pub fn retained_entries(&self) -> usize {
        self.retained.len()
    }

    /// A turn begins: lets go of some of what is not retained any more.
    #[inline]
    pub fn begin_turn(&mut self) {
        self.looks = LOOKS_PER_TURN;
        self.is_held = false;
        self.retained.free();
    }

    /// There is more to let go of, or to look at for a replay, in the next turn, without anything that is
    /// waited for.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.retained.is_freeing() || (self.looks == 0 && !self.is_held)
    }

    pub fn stats(&self) -> Replayed {
        self.stats
    }

    /// How often something was lost that had been acknowledged.
    pub fn losses(&self) -> u64 {
        self.stats.failures + u64::from(self.given_up)
    }

    /// Its name in the table.
    pub fn state(&self) -> &'static str {
        match (self.retained.is_empty(), self.replay.is_some(), self.owes) {
            (true, false, false) => "Clean",
            (false, false, false) => "Retaining",
            (_, true, false) => "Replaying",
            (true, false, true) => "Clean, owing",
            (false, false, true) => "Retaining, owing",
            (_, true, true) => "Replaying, owing",
        }
    }

    pub fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Nothing is left that a flush would have to cover.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.retained.is_empty() && self.replay.is_none()
    }

    /// Beyond a bound: writes wait for a flush.
    pub fn is_full(&self) -> bool {
        self.retained.bytes() > self.bytes_max || self.retained.len() > self.entries_max
    }

    /// What a flush that is sent now covers.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark { number: self.retained.mark(), replays: self.replays }
    }

    /// Forgets the log, for good: nothing of it can be written again, so it is lost.
    pub fn clear(&mut self) {
        self.given_up |= !self.retained.is_empty();
        self.retained.clear();
        self.replay = None;
    }

    /// Forgets what is retained: it cannot be made durable, and somebody is told.
    pub fn forget(&mut self) {
        self.retained.clear();
    }

    /// The volume is known, under this verifier.
    pub fn begin(&mut self, verifier: u64) {
        self.verifier = verifier;
    }

    /// Another session: what was outstanding of a replay or a forced flush is not any more.
    pub fn on_session(&mut self) {
        self.forced = false;
        if self.replay.take().is_some() {
            self.start_replay(0);
        }
    }

    /// The verifier that the target has now. A change means that unflushed writes may be lost.
    pub fn on_verifier(&mut self, verifier: u64) {
        self.verifier = verifier;
        if self.retained.all_under(self.retained.mark(), verifier) {
            return;
        }
        if self.canary == InitiatorCanary::NoReplay {
            self.retained.clear();
            return;
        }
        // The whole log, also what was written under the new verifier: an older write must not end
        // up over a newer one.
        self.start_replay(self.replay.map_or(0, |r| r.outstanding));
    }

    /// Sends the log again from its beginning; so many requests of an earlier replay are still
    /// outstanding.
    fn start_replay(&mut self, outstanding: usize) {
        let (end, next) = (self.retained.mark(), self.retained.oldest());
        self.replays += 1;
        self.retained.forget_covers();
        self.replay = Some(Replay { end, next, from: 0, outstanding });
    }

    /// The next request of the replay, in the order of the log, for whoever can start it
    /// ([`Durability::replay_started`]). Ends a replay of which none is left or outstanding. Thousands
    /// of entries may need none: what is too much for this turn is found in the next.
    #[inline]
    pub fn next_replay(&mut self) -> Option<Pending> {
        self.replay?;
        self.retained.lay_covers(&mut self.looks);
        while self.looks > 0 {
            let replay = self.replay.as_mut()?;
            if replay.next >= replay.end {
                if replay.outstanding == 0 {
                    self.replay = None;
                    self.retained.forget_covers();
                }
                return None;
            }
            let number = replay.next;
            let part = self.retained.uncovered(number, replay.from, &mut self.looks);
            let Some((offset, len)) = part else {
                if replay.from == 0 {
                    self.retained.superseded(number);
                }
                (replay.next, replay.from) = (number + 1, 0);
                self.looks = self.looks.saturating_sub(1);
                continue;
            };
            let effect = self.retained.get_mut(number).expect("a part of it is uncovered");
            let mut data = SegList::new();
            if !effect.data.is_empty() {
                let skip = (offset - effect.offset) as usize;
                effect.data.slice_into(skip, len as usize, &mut data);
            }
            let sums = effect.sums_of_part(offset, len, &self.pool, self.sums);
            let (owner, op, flags, is_second) =
                (Owner::Replay(number), effect.op, effect.flags, effect.is_second);
            self.is_held = true;
            return Some(Pending { owner, op, flags, offset, len, data, sums, is_second });
        }
        None
    }

    /// What [`Durability::next_replay`] gave, which ends at this byte, is on its way.
    pub fn replay_started(&mut self, end: u64) {
        self.is_held = false;
        let replay = self.replay.as_mut().expect("it gave one");
        if replay.from == 0 {
            let effect = self.retained.get_mut(replay.next).expect("just there");
            effect.standing = Standing::Asked;
            self.stats.effects += 1;
        }
        replay.from = end;
        replay.outstanding += 1;
    }

    /// A request of a replay did not arrive as it was sent, and what is kept is as it was: the log is sent again from
    /// there on, since what follows may lie over it.
    pub fn replay_again(&mut self, number: u64) {
        let Some(replay) = &mut self.replay else { return };
        replay.outstanding = replay.outstanding.saturating_sub(1);
        let Some(effect) = self.retained.get_mut(number) else { return };
        effect.is_second = true;
        if number <= replay.next {
            (replay.next, replay.from) = (number, 0);
        }
    }

    /// A request of a replay was answered.
    pub fn on_replayed(&mut self, number: u64, mark: Mark, verifier: u64, is_ok: bool) {
        if let Some(replay) = &mut self.replay {
            replay.outstanding = replay.outstanding.saturating_sub(1);
        }
        if !is_ok {
            // The write was acknowledged once and is lost now: the next flush must say so.
            self.owes |= !self.is_heard;
            self.stats.failures += 1;
        }
        // This tells of a change, or is the first to tell under which verifier all of them are now.
        // It must be known: else each further write would seem to tell of a change.
        let news = is_ok && mark.replays == self.replays && verifier != self.verifier;
        if news {
            self.verifier = verifier;
        }
        if let Some(effect) = self.retained.get_mut(number) {
            effect.is_second &= !is_ok;
            effect.replayed(if is_ok { verifier } else { self.verifier });
        }
        if let Some(replay) = self.replay.filter(|_| news)
            && !self.retained.replayed_under(replay.next, verifier)
        {
            // What this replay had sent before is lost again.
            self.start_replay(replay.outstanding);
        }
    }

    /// A write of the user has taken effect, under this verifier.
    #[inline]
    pub fn on_effect(&mut self, io: Pending, verifier: u64) {
        // A durable effect is not kept, but nothing older may be replayed over it.
        if io.flags.fua && self.retained.is_empty() {
            return;
        }
        let Pending { op, flags, offset, len, mut data, mut sums, .. } = io;
        let mut standing = Standing::Done;
        if flags.fua {
            standing = Standing::Durable;
            (data, sums) = (SegList::new(), Segment::NOTHING);
        }
        let is_second = false;
        self.retained.push(Effect {
            op,
            flags,
            offset,
            len,
            data,
            sums,
            verifier,
            standing,
            is_second,
        });
        // A replay that runs goes on to here: older effects that it writes again must not end up over
        // this one.
        match &mut self.replay {
            Some(replay) => replay.end = self.retained.mark(),
            // Told late, under a verifier that is over, and whose replay has ended without it: it may
            // be lost like the others. Or under a new one, and they may be lost.
            None if verifier != self.verifier && self.canary != InitiatorCanary::NoReplay => {
                self.start_replay(0);
            }
            None => {}
        }
    }

    /// A read or a block status was answered under this verifier. False if what it has seen may lack
    /// unflushed writes: they are sent again, then it is made again.
    pub fn on_read(&mut self, verifier: u64, is_ok: bool) -> bool {
        if is_ok && verifier != self.verifier {
            self.on_verifier(verifier);
        }
        self.replay.is_none()
    }

    /// Corrects what was read to be written once more; see [`Retained::lay_over`].
    pub fn lay_over(&mut self, offset: u64, out: &mut [u8]) {
        if self.canary != InitiatorCanary::PatchedAsRead {
            self.retained.lay_over(offset, out);
        }
    }

    /// A flush was answered: a forced one, or the user's. `is_heard`: whoever detaches hears of a
    /// forced one, too.
    pub fn on_flush(
        &mut self,
        now: Time,
        is_forced: bool,
        mark: Mark,
        verifier: u64,
        mut result: Result<(), ErrorKind>,
        is_heard: bool,
    ) -> Flushed {
        let covered =
            mark.replays == self.replays && self.retained.all_under(mark.number, verifier);
        if verifier != self.verifier || !covered {
            self.on_verifier(verifier);
        }
        if is_forced {
            self.forced = false;
        }
        let believes = matches!(self.canary, InitiatorCanary::AnyFlush | InitiatorCanary::NoReplay);
        if result.is_ok() && !covered && !believes {
            return Flushed::Again;
        }
        if result.is_ok() {
            self.retained.flushed(mark.number);
            // Only a flush that somebody hears of may take the bad news away.
            if is_heard && self.take_debt() {
                result = Err(ErrorKind::Io);
            }
        }
        if is_forced && result.is_err() {
            // Every failed flush is followed by a replay of the log: a store that keeps failing must
            // not make that an endless storm.
            self.forced_after = now + FLUSH_RETRY;
        }
        Flushed::Told(result)
    }

    /// Something was lost that nobody has been told of.
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// Whether something was lost that nobody has been told of; from now on somebody has.
    pub fn take_debt(&mut self) -> bool {
        std::mem::take(&mut self.owes)
    }

    /// Enough is retained for a flush, or `is_last`: all of it is to go; and none is under way.
    #[inline]
    pub fn wants_flush(&self, is_last: bool) -> bool {
        let half = self.retained.bytes() > self.bytes_max / 2
            || self.retained.len() > self.entries_max / 2;
        let wanted = half || (is_last && !self.retained.is_empty());
        wanted && !self.forced && self.replay.is_none()
    }

    /// The flush to force now, for whoever can start it ([`Durability::flush_started`]).
    pub fn next_flush(&self, now: Time, is_last: bool) -> Option<Pending> {
        self.armed(is_last).filter(|(_, at)| *at <= now)?;
        Some(Pending::new(Owner::Flush, Op::Flush))
    }

    /// What [`Durability::next_flush`] gave is on its way.
    pub fn flush_started(&mut self) {
        self.forced = true;
    }

    /// What it waits for, and until when.
    #[inline]
    pub fn armed(&self, is_last: bool) -> Option<(Timer, Time)> {
        self.wants_flush(is_last).then_some((Timer::Flush, self.forced_after))
    }
}
