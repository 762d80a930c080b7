//! When to spin instead of sleeping (`docs/design.md`, "When to sleep"): the whole decision, which is told
//! times and knows no clock.
//!
//! Three things are learnt, each as a quantile, so that what is rare and long, such as some milliseconds that a
//! hypervisor took, weighs no more than what is rare: the time from going idle to the next event, what nine in
//! ten of these times stay below, and how long frames wait for a thread that sleeps. The first two are learnt apart
//! for what is expected: a client may take its time though the network answers at once. It spins if an event
//! mostly comes while that costs less than sleeping, as long as nine in ten need, once after each
//! event. Spinning is for a processor that nobody else wants: if somebody else ran while it yielded,
//! it sleeps for a while, and ever longer while it finds somebody each time.

mod gaps;
mod quantile;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thinwire_proto::Time;

use self::gaps::Gaps;
pub(crate) use self::gaps::Next;
use self::quantile::Quantile;

/// Longest spin, and the gap above which spinning does not pay, where waking up costs what it should: about
/// four times what waking up both sides of a round trip costs.
const SPIN_MAX: Duration = Duration::from_micros(200);
/// The same where waking up takes longer than that, since halting processors are given away.
const LATE_SPIN_MAX: Duration = Duration::from_millis(2);
/// The least that it spins for, if it does.
const SPIN_MIN: Duration = Duration::from_micros(30);
/// What waking up costs, about. Where events come more often than that, sleeping costs more than
/// spinning.
const WAKE_UP: Duration = Duration::from_micros(25);
/// Where the network takes longer for a round trip, a wake-up does not show: frames wait in a queue
/// there, a slow link's, and a processor that spins would only wait for it.
const NETWORK_TIME_MAX: Duration = Duration::from_micros(500);
/// A yield that took longer was not spent here: twice a wake-up, which is what spinning is to save.
const AWAY: Duration = Duration::from_micros(50);
/// As what a round of a spin that took longer counts: it was short but for that.
const ROUND: Duration = Duration::from_micros(5);
/// When somebody else wants the processor it sleeps for so many times as long as that one had it.
const HOLD_FIRST: u32 = 8;
/// But not for less than this.
const HOLD_MIN: Duration = Duration::from_millis(1);
/// And for so many times as long as before if trying again was not worth it: if the wake-ups that it has saved
/// since are less than what it loses now.
const HOLD_GROWTH: u32 = 4;
/// At most for so many times as long as that one had it. Each side of a round trip loses by its tries, and both
/// together are to lose less than a hundredth: so it is up to 4 ms, beyond which [`HOLD_MAX`] is less than that.
const HOLD_TIMES: u32 = 256;
/// And not for longer than this, so that it is back soon: each try then costs what it took out of a second.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// When to spin instead of sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Never.
    Off,
    /// For a short time, as long as that pays and nobody else wants the processor.
    #[default]
    On,
    /// Always: it never sleeps, and takes all of a processor that nobody else wants.
    Always,
}

impl fmt::Display for Spin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spin::Off => "off",
            Spin::On => "on",
            Spin::Always => "always",
        })
    }
}

impl FromStr for Spin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Spin::Off),
            "on" => Ok(Spin::On),
            "always" => Ok(Spin::Always),
            _ => Err(format!("`{text}`: give on, off or always")),
        }
    }
}

/// How often a spin begins with a look at who else ran, at most.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// Where frames are expected, or there is work, a look at all descriptors comes after so many rounds.
const ROUNDS_PER_LOOK: u32 = 4;
/// And after this time, however few rounds that were.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// A time in which nothing comes.
#[derive(Clone, Copy, Debug)]
struct Idle {
    /// What was expected when it began.
    next: Next,
    since: Time,
    /// The part of it that has been spun, on the processor.
    spun: Duration,
    /// The part of it in which it spun, but others had the processor, or the machine stood still.
    away: Duration,
}

/// What ended it, until it is known how long that had waited.
#[derive(Clone, Copy, Debug)]
struct Found {
    idle: Idle,
    at: Time,
    has_slept: bool,
}

/// Decides for one thread. Allocates nothing, and asks nobody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spinner {
    mode: Spin,
    gaps: Gaps,
    /// How long frames have waited for the end of a sleep.
    wake_up: Quantile,
    idle: Option<Idle>,
    found: Option<Found>,
    /// How long the spin that runs goes on, of time on the processor since the idleness began.
    budget: Duration,
    held_until: Time,
    hold: Duration,
    /// What spinning has saved since it was last held.
    saved: Duration,
    /// How often others had been given the processor when that was last looked at, and when.
    switches: u64,
    asked_at: Time,
    /// When all descriptors were looked at the last time, and the rounds since.
    looked_at: Time,
    rounds: u32,
}

impl Spinner {
    /// Begins as one for whom spinning pays.
    pub fn new() -> Self {
        Spinner {
            mode: Spin::On,
            gaps: Gaps::new(SPIN_MAX / 2, SPIN_MAX),
            wake_up: Quantile::median(WAKE_UP),
            idle: None,
            found: None,
            budget: Duration::ZERO,
            held_until: Time::ZERO,
            hold: HOLD_MIN,
            saved: HOLD_MAX,
            switches: 0,
            asked_at: Time::ZERO,
            looked_at: Time::ZERO,
            rounds: 0,
        }
    }

    /// Default: [`Spin::On`].
    pub fn set_mode(&mut self, mode: Spin) {
        self.mode = mode;
    }

    /// Always: nothing but a timer or an event ends a spin.
    pub fn is_endless(&self) -> bool {
        self.mode == Spin::Always
    }

    /// A wait begins at `now`, and a look at all descriptors has found nothing. True if it is to spin. `next` is what
    /// may come; `network_time` says how long the network takes there and back, if something is on the way;
    /// `switches`, how often this thread has lost the processor to another so far.
    pub fn begin(
        &mut self,
        now: Time,
        next: Next,
        network_time: impl FnOnce() -> Option<Duration>,
        switches: impl FnOnce() -> u64,
    ) -> bool {
        self.looked(now);
        match self.mode {
            Spin::Off => return false,
            Spin::On => {}
            Spin::Always => return true,
        }
        self.arrived(Duration::ZERO);
        let new = Idle { next, since: now, spun: Duration::ZERO, away: Duration::ZERO };
        let idle = self.idle.get_or_insert(new);
        // A timer may have had something sent: what comes then is not what was waited for before.
        if idle.next != next {
            *idle = Idle { spun: idle.spun, ..new };
        }
        let spun = idle.spun;
        self.budget = (self.gaps.long(next) * 4).clamp(SPIN_MIN, self.spin_max());
        if spun >= self.budget || now < self.held_until || !self.pays(next, network_time) {
            return false;
        }
        // To ask is a system call, and a spin for one small I/O not much more.
        if now.since(self.asked_at) >= ASK_EVERY {
            (self.switches, self.asked_at) = (switches(), now);
        }
        true
    }

    /// A round of a spin, or a pass of who has work, has come to where it may look at all descriptors, at `now`. True
    /// if it is to: where the next thing comes by a descriptor, always.
    pub fn is_to_look(&mut self, now: Time, next: Next) -> bool {
        self.rounds += 1;
        let is_due = self.rounds >= ROUNDS_PER_LOOK || now.since(self.looked_at) >= LOOK_EVERY;
        let is_to = next == Next::Descriptor || is_due;
        if is_to {
            self.looked(now);
        }
        is_to
    }

    fn looked(&mut self, now: Time) {
        (self.looked_at, self.rounds) = (now, 0);
    }

    /// A yield, or a look that found nothing, took from `from` to `to`. False if somebody else ran meanwhile: there
    /// is nothing to spin for.
    pub fn yielded(&mut self, from: Time, to: Time, switches: impl FnOnce() -> u64) -> bool {
        let took = to.since(from);
        if took < AWAY || self.is_endless() {
            return true;
        }
        if let Some(idle) = &mut self.idle {
            idle.away += took;
        }
        let before = std::mem::replace(&mut self.switches, switches());
        if self.switches == before {
            // Nobody here: the machine stood still, and may do so whether it spins or not.
            return true;
        }
        let was_worth_it = std::mem::take(&mut self.saved) >= took;
        let longer = if was_worth_it { Duration::ZERO } else { self.hold * HOLD_GROWTH };
        let hold = longer.min(took * HOLD_TIMES).max(took * HOLD_FIRST);
        self.hold = hold.clamp(HOLD_MIN, HOLD_MAX);
        self.held_until = to + self.hold;
        false
    }

    /// A round of the spin, a yield and a look, has ended with nothing; it was on the processor from
    /// `from` to `to`. True if there is to be another.
    pub fn goes_on(&mut self, from: Time, to: Time) -> bool {
        match &mut self.idle {
            Some(idle) if self.mode == Spin::On => {
                let took = to.since(from);
                idle.spun += if took < AWAY { took } else { ROUND };
                idle.spun < self.budget
            }
            _ => self.is_endless(),
        }
    }

    /// True while nothing has come since some wait before.
    pub fn is_idle(&self) -> bool {
        self.idle.is_some()
    }

    /// Something has come, seen at `now`.
    pub fn found(&mut self, now: Time, has_slept: bool) {
        self.found = self.idle.take().map(|idle| Found { idle, at: now, has_slept });
        if self.found.is_some() && !has_slept {
            self.saved += WAKE_UP;
        }
    }

    /// What was found was a frame that had waited so long for its receiver by then: when it arrived the gap
    /// was over, whenever this thread got to run. Not called for what tells no such thing.
    pub fn arrived(&mut self, waited: Duration) {
        let Some(Found { idle, at, has_slept }) = self.found.take() else { return };
        let present = at.since(idle.since).saturating_sub(idle.away);
        self.learn(idle.next, (at - waited).since(idle.since).min(present));
        // Who waits for others to leave the processor is not woken up late.
        if has_slept && !waited.is_zero() && at >= self.held_until {
            self.wake_up.see(waited, LATE_SPIN_MAX);
        }
    }

    /// Something is sent at `now`, for which an answer may come: if nothing has come for too long, that is a
    /// gap by itself, and another begins.
    pub fn sent(&mut self, now: Time) {
        let too_long = self.spin_max();
        if let Some(idle) = self.idle.take_if(|idle| now.since(idle.since) > too_long) {
            self.learn(idle.next, now.since(idle.since));
        }
    }

    fn learn(&mut self, next: Next, gap: Duration) {
        self.gaps.see(next, gap, self.spin_max() * 2);
    }

    /// As long as it costs to wake up both sides of a round trip, if that is more than it should be.
    fn spin_max(&self) -> Duration {
        (self.wake_up.get() * 2).clamp(SPIN_MAX, LATE_SPIN_MAX)
    }

    fn pays(&self, next: Next, network_time: impl FnOnce() -> Option<Duration>) -> bool {
        let gap = self.gaps.median(next);
        let shows = || match next {
            Next::Frame => network_time().is_none_or(|time| time <= NETWORK_TIME_MAX),
            Next::Rest => false,
            Next::Descriptor => true,
        };
        gap <= self.spin_max() && (gap <= WAKE_UP || shows())
    }
}

#[cfg(test)]
mod tests;
