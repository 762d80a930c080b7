//! The decision, under a clock that scripts move.

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
fn the_middle_of_an_answer_is_slept_over_unless_frames_come_faster_than_sleeping_pays() {
    let mut thread = Script::new();
    thread.next = Next::Rest;
    assert_eq!(thread.spun(100, us(72)), 0);
    thread.next = Next::Frame;
    assert_eq!(thread.spun(100, us(72)), 100, "its end, and what is short");
    thread.next = Next::Rest;
    thread.spun(100, us(5));
    assert_eq!(thread.spun(100, us(5)), 100);
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
    let tries_in = |thread: &mut Script, time| {
        let (mut tries, start) = (0, thread.now);
        while thread.now.since(start) < time {
            tries += u32::from(thread.wait(us(15)) != Wait::Slept);
        }
        tries
    };
    // Some of them soon, then one in each 256 times as long as it costs.
    let soon = tries_in(&mut thread, us(250_000));
    assert_eq!(soon, 4);
    let later = tries_in(&mut thread, Duration::from_secs(10));
    assert!((26..=29).contains(&later), "{later}");
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
        (0..200_000).for_each(|_| _ = thread.wait(us(15)));
        assert_eq!(thread.spinner.hold, most);
    }
}

#[test]
fn where_spinning_pays_between_visits_it_is_tried_again_soon() {
    // Each spin saves a wake-up: 100 of them are 2.5 ms, 40 of them 1 ms.
    for (spins, most) in [(100, HOLD_FIRST), (40, HOLD_TIMES)] {
        let mut thread = Script::new();
        for _ in 0..20 {
            thread.once = Some((us(1400), true));
            thread.wait(us(15));
            while thread.wait(us(15)) == Wait::Slept {}
            assert_eq!(thread.spun(spins - 1, us(15)), spins - 1);
        }
        assert_eq!(thread.spinner.hold, us(1400) * most, "after {spins} each");
    }
}

#[test]
fn a_gap_is_of_the_kind_that_was_expected_when_it_ended() {
    let mut thread = Script::new();
    let first = thread.spinner.gaps.median(Next::Descriptor);
    for _ in 0..100 {
        // A client thinks, and a timer has something sent: an answer comes before the client does.
        thread.spinner.begin(thread.now, Next::Descriptor, || None, || 0);
        thread.now = thread.now + us(150);
        thread.spinner.sent(thread.now);
        thread.wait(us(15));
    }
    assert!(thread.spinner.gaps.median(Next::Frame) < us(25), "{:?}", thread.spinner.gaps);
    assert_eq!(thread.spinner.gaps.median(Next::Descriptor), first, "nothing is known of it");
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
    assert!(is_plain(&Spinner::new()) <= 288, "{}", is_plain(&Spinner::new()));
}

#[test]
fn words_for_spinning_are_understood_and_said() {
    for spin in [Spin::Off, Spin::On, Spin::Always] {
        assert_eq!(spin.to_string().parse(), Ok(spin));
    }
    assert!("never".parse::<Spin>().unwrap_err().contains("on, off or always"));
}
