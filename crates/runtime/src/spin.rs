//! When to spin instead of sleeping (`docs/design.md`, "When to sleep"): the whole decision, which is told
//! times and knows no clock.
//!
//! Three things are learnt, each as a quantile, so that what is rare and long, such as some milliseconds that a
//! hypervisor took, weighs no more than what is rare: the time from going idle to the next event, what nine in
//! ten of these times stay below, and how long frames wait for a thread that sleeps. The first two are learnt apart
//! for what is expected: a client may take its time though the network answers at once. It spins if an event
//! mostly comes while that costs less than sleeping, as long as nine in ten need, once after each
//! event. Spinning is for a processor that nobody else wants: if somebody else ran while it yielded,
//! it sleeps for a while.

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
/// When somebody else wants the processor it sleeps for so many times as long as that one had it; twice as long
/// each time that it is found so again.
const HOLD_FIRST: u32 = 8;
/// But not for less than this.
const HOLD_MIN: Duration = Duration::from_millis(1);
/// At most for so many times as long as that one had it: more than is lost by looking again.
const HOLD_TIMES: u32 = 32;
/// And not for longer than this.
const HOLD_MAX: Duration = Duration::from_millis(500);

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
        let Idle { next, spun, .. } = *self.idle.get_or_insert(new);
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
        let is_new = to > self.held_until + 4 * self.hold;
        let hold = if is_new { took * HOLD_FIRST } else { self.hold * 2 };
        self.hold = hold.min(took * HOLD_TIMES).clamp(HOLD_MIN, HOLD_MAX);
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
        let shows = || network_time().is_none_or(|network_time| network_time <= NETWORK_TIME_MAX);
        gap <= self.spin_max() && (gap <= WAKE_UP || next == Next::Descriptor || shows())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// How a wait went.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Wait {
        Spun,
        /// Spun for so long in vain, of its own time, and slept.
        SpunInVain(Duration),
        Slept,
    }

    /// A thread under a clock that a script moves. A yield takes what the script says, each look 1 us.
    struct Script {
        spinner: Spinner,
        now: Time,
        next: Next,
        switches: u64,
        /// What each yield takes, and whether to somebody else.
        yields: (Duration, bool),
        /// The same for one yield only.
        once: Option<(Duration, bool)>,
        /// How late who sleeps gets to run.
        wake_up: Duration,
    }

    impl Script {
        fn new() -> Self {
            let (spinner, now) = (Spinner::new(), Time(1_000_000_000));
            let (yields, wake_up) = ((us(0), false), us(25));
            Script { spinner, now, next: Next::Frame, switches: 3, yields, once: None, wake_up }
        }

        /// A wait for a frame that arrives after `gap`.
        fn wait(&mut self, gap: Duration) -> Wait {
            let arrives = self.now + gap;
            let start = self.now;
            let switches = self.switches;
            let mut away = Duration::ZERO;
            let spins = self.spinner.begin(self.now, self.next, || None, || switches);
            let mut round = self.now;
            loop {
                if !spins {
                    break;
                }
                let (took, to_another) = self.once.take().unwrap_or(self.yields);
                self.now = self.now + took;
                away += took;
                self.switches += u64::from(to_another);
                let (yielded, switches) = (self.now, self.switches);
                let is_mine = self.spinner.yielded(round, yielded, || switches);
                self.now = self.now + us(1);
                if arrives <= self.now {
                    self.spinner.found(yielded, false);
                    self.spinner.arrived(self.now.since(arrives));
                    return Wait::Spun;
                }
                if !self.spinner.goes_on(round, self.now) || !is_mine {
                    break;
                }
                round = self.now;
            }
            let spun = self.now.since(start).saturating_sub(away);
            self.now = arrives.max(self.now) + self.wake_up;
            self.spinner.found(self.now, true);
            self.spinner.arrived(self.now.since(arrives));
            if spins { Wait::SpunInVain(spun) } else { Wait::Slept }
        }

        /// So many waits one after the other: how many of them spun and found something.
        fn spun(&mut self, waits: usize, gap: Duration) -> usize {
            (0..waits).filter(|_| self.wait(gap) == Wait::Spun).count()
        }
    }

    #[test]
    fn what_is_rare_and_long_does_not_end_spinning() {
        let mut thread = Script::new();
        assert_eq!(thread.spun(100, us(15)), 100);
        for stolen in [1, 3, 6] {
            // With nothing to be seen here: it is the other side that stood still.
            assert_eq!(thread.spun(stolen, us(5000)), 0);
            assert_eq!(thread.spun(30, us(15)), 30, "after {stolen} in a row");
        }
        for _ in 0..100 {
            thread.wait(us(5000));
            assert_eq!(thread.spun(2, us(15)), 2, "a third of all");
        }
    }

    #[test]
    fn what_is_mostly_long_ends_it_and_one_pause_costs_one_spin() {
        let mut thread = Script::new();
        assert_eq!(thread.spun(100, us(15)), 100);
        let Wait::SpunInVain(spun) = thread.wait(us(1_000_000)) else { panic!("it did not spin") };
        assert!(spun >= SPIN_MIN && spun <= SPIN_MAX + us(1), "{spun:?}");
        let vain = (0..100).filter(|_| thread.wait(us(5000)) != Wait::Slept).count();
        assert!(vain < 14, "{vain} of 100");
        assert_eq!(thread.wait(us(5000)), Wait::Slept);
    }

    #[test]
    fn it_is_back_within_milliseconds() {
        let mut thread = Script::new();
        thread.spun(1000, us(1_000_000));
        assert_eq!(thread.wait(us(15)), Wait::Slept);
        let again = thread.now;
        while thread.wait(us(15)) != Wait::Spun {}
        assert!(thread.now.since(again) < us(1000), "{:?}", thread.now.since(again));
        // And then it spins long enough for all that comes.
        assert_eq!(thread.spun(1000, us(15)), 1000);
    }

    #[test]
    fn timers_begin_no_spin_of_their_own() {
        let mut spinner = Spinner::new();
        let mut now = Time(1_000_000_000);
        let mut spun = Duration::ZERO;
        for _ in 0..100 {
            if spinner.begin(now, Next::Frame, || None, || 0) {
                spinner.goes_on(now, now + us(40));
                spun += us(40);
            }
            now = now + us(100);
        }
        assert!(spun <= SPIN_MAX, "{spun:?}");
        // Nor do frames that are sent again and again into the void, in the end.
        let begins = |spinner: &mut Spinner, now: &mut Time| {
            spinner.sent(*now);
            *now = *now + us(1000);
            spinner.begin(*now - us(1000), Next::Frame, || None, || 0)
        };
        assert!(begins(&mut spinner, &mut now), "an answer may come");
        let spins = (0..100).filter(|_| begins(&mut spinner, &mut now)).count();
        assert!(spins < 14, "{spins}");
        assert!(!begins(&mut spinner, &mut now));
    }

    #[test]
    fn who_finds_somebody_else_at_work_sleeps_for_a_while() {
        let mut thread = Script::new();
        assert_eq!(thread.spun(100, us(15)), 100);
        let found = thread.now;
        thread.once = Some((us(200), true));
        assert_eq!(thread.wait(us(300)), Wait::SpunInVain(us(1)));
        let mut slept = 0;
        while thread.wait(us(15)) == Wait::Slept {
            slept += 1;
        }
        let held = thread.now.since(found);
        assert!(slept > 10 && held >= HOLD_MIN && held < 2 * HOLD_MIN, "{slept}, {held:?}");
        assert_eq!(thread.spun(100, us(15)), 100);
    }

    #[test]
    fn a_neighbour_who_stays_is_tried_ever_less_often_and_one_who_goes_is_forgotten() {
        let mut thread = Script::new();
        thread.yields = (us(1400), true);
        let (mut tries, start) = (0, thread.now);
        while thread.now.since(start) < Duration::from_secs(1) {
            tries += u32::from(thread.wait(us(15)) != Wait::Slept);
        }
        // A few of them soon, then one in each 32 times as long as it costs.
        assert!(tries > 20 && tries < 32, "{tries}");
        thread.yields = (us(0), false);
        let gone = thread.now;
        while thread.wait(us(15)) != Wait::Spun {}
        assert!(thread.now.since(gone) <= HOLD_TIMES * us(1400) + us(100));
        assert_eq!(thread.spun(20_000, us(15)), 20_000);
        // The next one begins from the beginning.
        thread.once = Some((us(200), true));
        thread.wait(us(300));
        assert_eq!(thread.spinner.hold, us(200) * HOLD_FIRST);
        for (had, most) in [(us(60), us(60) * HOLD_TIMES), (us(100_000), HOLD_MAX)] {
            thread.yields = (had, true);
            (0..20_000).for_each(|_| _ = thread.wait(us(15)));
            assert_eq!(thread.spinner.hold, most);
        }
    }

    #[test]
    fn a_found_frame_does_not_hide_who_ran_before() {
        let mut thread = Script::new();
        thread.once = Some((us(1400), true));
        assert_eq!(thread.wait(us(15)), Wait::Spun, "it came meanwhile");
        assert_eq!(thread.wait(us(15)), Wait::Slept);
    }

    #[test]
    fn who_was_taken_off_with_the_whole_machine_goes_on_and_learns_nothing() {
        let mut thread = Script::new();
        assert_eq!(thread.spun(100, us(15)), 100);
        for _ in 0..1000 {
            thread.once = Some((us(5000), false));
            // Both sides stood still: what arrives does so some time afterwards.
            assert_eq!(thread.wait(us(5015)), Wait::Spun);
        }
        assert!(thread.spinner.gaps.median(Next::Frame) < us(25), "{:?}", thread.spinner.gaps);
        // Also if it was switched while it worked: only what is switched in a spin counts.
        for _ in 0..1000 {
            thread.switches += 1;
            thread.once = Some((us(5000), false));
            assert_eq!(thread.wait(us(5015)), Wait::Spun);
        }
        assert_eq!(thread.spun(100, us(15)), 100);
    }

    #[test]
    fn a_gap_ends_when_the_frame_arrives_and_not_when_its_receiver_runs() {
        let mut thread = Script::new();
        thread.spun(1000, us(1_000_000));
        // Somebody else has the processor, and the sleeper gets it late.
        thread.wake_up = us(3000);
        let held = thread.now + Duration::from_secs(1);
        thread.spinner.held_until = held;
        for _ in 0..20 {
            assert_eq!(thread.wait(us(15)), Wait::Slept);
        }
        assert!(thread.spinner.gaps.median(Next::Frame) < us(25), "{:?}", thread.spinner.gaps);
        assert_eq!(thread.spinner.spin_max(), SPIN_MAX, "whose fault it was is known");
    }

    /// Each halt is answered by somebody taking the processor away: who waits for a sleeper learns long
    /// gaps, and would sleep for ever, too.
    #[test]
    fn two_who_sleep_where_waking_up_is_slow_get_out_of_it() {
        let slow = us(700);
        let mut sides = [Script::new(), Script::new()];
        for side in &mut sides {
            side.wake_up = slow;
            side.spun(100, us(100_000));
            assert_eq!(side.wait(us(100_000)), Wait::Slept);
        }
        // What one waits for is the other's waking up, if that sleeps, and its work.
        let (mut how, mut spun) = ([Wait::Slept; 2], 0);
        let start = sides[0].now;
        for turn in 0..200 {
            let (me, other) = (turn % 2, 1 - turn % 2);
            let gap = if how[other] == Wait::Spun { us(10) } else { us(10) + slow };
            how[me] = sides[me].wait(gap);
            spun = if how[me] == Wait::Spun { spun + 1 } else { 0 };
        }
        assert!(spun > 150, "the last {spun} of 200; {:?}", sides[0].now.since(start));
        let budget = sides[0].spinner.spin_max();
        assert!(budget > slow && budget <= LATE_SPIN_MAX, "{budget:?}");
    }

    #[test]
    fn where_frames_queue_in_the_network_nobody_spins_for_them() {
        let spins_for = |next, gap, network_time| {
            let mut spinner = Spinner::new();
            spinner.gaps = Gaps::new(us(gap), SPIN_MAX);
            spinner.begin(Time(1), next, || Some(us(network_time)), || 0)
        };
        let spins = |gap, network_time| spins_for(Next::Frame, gap, network_time);
        assert!(spins(60, 100) && spins(60, 500));
        assert!(!spins(60, 501));
        assert!(spins(20, 501), "sleeping costs more");
        assert!(!spins(201, 100));
        assert!(spins_for(Next::Descriptor, 60, 501), "a client is not there");
    }

    #[test]
    fn a_client_that_takes_its_time_does_not_end_spinning_for_answers() {
        let mut thread = Script::new();
        let round = |thread: &mut Script, thought| {
            [(Next::Frame, us(15)), (Next::Descriptor, thought)].map(|(next, gap)| {
                thread.next = next;
                thread.wait(gap)
            })
        };
        let slow: Vec<_> = (0..200).map(|_| round(&mut thread, us(5000))).collect();
        assert!(slow.iter().all(|[answer, _]| *answer == Wait::Spun), "{slow:?}");
        assert!(slow[100..].iter().all(|[_, request]| *request == Wait::Slept), "{slow:?}");
        // And one that has become prompt is waited for within milliseconds.
        let again = thread.now;
        while round(&mut thread, us(30)) != [Wait::Spun; 2] {}
        assert!(thread.now.since(again) < us(2000), "{:?}", thread.now.since(again));
    }

    #[test]
    fn descriptors_are_looked_at_now_and_then_and_always_where_one_is_expected() {
        let mut spinner = Spinner::new();
        let mut now = Time(1_000_000_000);
        let mut looks = |next, rounds: usize, each| -> usize {
            spinner.begin(now, next, || None, || 0);
            let mut look = || {
                now = now + each;
                usize::from(spinner.is_to_look(now, next))
            };
            (0..rounds).map(|_| look()).sum()
        };
        assert_eq!(looks(Next::Frame, 400, us(1)), 100);
        assert_eq!(looks(Next::Frame, 3, us(1)), 0);
        assert_eq!(looks(Next::Frame, 3, us(1)), 0, "a wait begins with a look");
        assert_eq!(looks(Next::Frame, 400, us(50)), 200);
        assert_eq!(looks(Next::Frame, 400, us(500)), 400);
        assert_eq!(looks(Next::Descriptor, 400, us(1)), 400);
    }

    #[test]
    fn a_word_is_a_word() {
        let mut spinner = Spinner::new();
        spinner.set_mode(Spin::Off);
        assert!(!spinner.begin(Time(1), Next::Frame, || panic!("asked"), || panic!("asked")));
        spinner.set_mode(Spin::Always);
        // Nothing for ever, a slow network, others at work: all the same to it.
        assert!(spinner.begin(Time(1), Next::Frame, || panic!("asked"), || panic!("asked")));
        assert!(spinner.yielded(Time(1), Time::NEVER, || panic!("asked")));
        assert!(spinner.goes_on(Time(1), Time::NEVER) && spinner.is_endless());
    }

    #[test]
    fn its_state_is_some_numbers() {
        fn is_plain<T: Copy>(_: &T) -> usize {
            size_of::<T>()
        }
        assert!(is_plain(&Spinner::new()) <= 240, "{}", is_plain(&Spinner::new()));
    }

    #[test]
    fn words_for_spinning_are_understood_and_said() {
        for spin in [Spin::Off, Spin::On, Spin::Always] {
            assert_eq!(spin.to_string().parse(), Ok(spin));
        }
        assert!("never".parse::<Spin>().unwrap_err().contains("on, off or always"));
    }
}
