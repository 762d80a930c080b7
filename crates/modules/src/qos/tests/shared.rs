//! Several volumes that draw on one budget, and limits that become others: how much is taken in all, who gets what, and that nothing is lost, overtaken or held up.

mod directions;

use std::collections::VecDeque;

use super::*;

/// Volumes of one budget, each with what is below it, and what each wants.
struct Several {
    budget: QosBudget,
    volumes: Vec<(Qos, Puppet)>,
    rng: SplitMix64,
    now: Time,
    /// What each has had.
    ios: Vec<u64>,
    bytes: Vec<u64>,
    /// By volume and direction: places that were given, and those that were seen below.
    given: Vec<[u64; 2]>,
    seen: Vec<[u64; 2]>,
    /// When those were submitted that were not seen yet, and how long one had to wait at most.
    began: Vec<[VecDeque<Time>; 2]>,
    longest: Vec<[Duration; 2]>,
    /// Each is told the time that often at least.
    step: Duration,
}

impl Several {
    fn new(limits: QosLimits, count: usize, canary: QosCanary) -> Self {
        let budget = QosBudget::new(limits);
        budget.set_canary(canary);
        let volume = |_| {
            let puppet = Puppet::new(1, SHAPE);
            let children = Child::all(Puppet::boxed(std::slice::from_ref(&puppet)));
            (Qos::over(children, &budget).unwrap_or_else(|e| panic!("{e}")), puppet)
        };
        let volumes = (0..count).map(volume).collect();
        let (ios, bytes) = (vec![0; count], vec![0; count]);
        let (given, seen) = (vec![[0; 2]; count], vec![[0; 2]; count]);
        let (began, longest) = (vec![Default::default(); count], vec![Default::default(); count]);
        let (rng, now, step) = (SplitMix64::new(11), Time(1 << 50), MS);
        Several { budget, volumes, rng, now, ios, bytes, given, seen, began, longest, step }
    }

    fn submit(&mut self, volume: usize, op: Op, len: u64) {
        let way = usize::from(op.is_write());
        let mut io = io(0, op, len);
        // Tokens below are others: it is known by its place.
        io.offset = self.given[volume][way] % 1000 * (1 << 20);
        self.given[volume][way] += 1;
        self.began[volume][way].push_back(self.now);
        self.volumes[volume].0.submit(io);
    }

    /// Each is told the time, in any order; what goes down completes at once. When somebody wants to be told it next.
    fn turn(&mut self) -> Result<Time, String> {
        let (first, count) =
            (self.rng.below(self.volumes.len() as u64) as usize, self.volumes.len());
        let mut next = Time::NEVER;
        for nth in 0..count {
            let at = (first + nth) % count;
            let (volume, puppet) = &mut self.volumes[at];
            next = next.min(volume.turn(self.now));
            for io in puppet.take() {
                let way = usize::from(io.op.is_write());
                if io.offset != self.seen[at][way] % 1000 * (1 << 20) {
                    return Err(format!("volume {at}: {} out of order", io.op));
                }
                self.seen[at][way] += 1;
                let began = self.began[at][way].pop_front().ok_or("nobody wanted it")?;
                self.longest[at][way] = self.longest[at][way].max(self.now.since(began));
                self.ios[at] += 1;
                self.bytes[at] += io.len;
                puppet.succeed(&io);
            }
            volume.poll(&mut Vec::new());
        }
        Ok(next)
    }

    /// So long each wants as many I/Os of its kind at once as is said, from that moment on.
    fn run(&mut self, wants: &[(Op, u64, usize)], time: Duration) -> Result<(), String> {
        let wants = wants.iter().enumerate();
        let wants: Vec<_> = wants.map(|(at, &(op, len, depth))| (at, op, len, depth)).collect();
        self.run_some(&wants, time)
    }

    /// The same of some of them, of which one may want both to read and to write.
    fn run_some(
        &mut self,
        wants: &[(usize, Op, u64, usize)],
        time: Duration,
    ) -> Result<(), String> {
        let end = self.now + time;
        while self.now < end {
            for &(at, op, len, depth) in wants {
                while self.began[at][usize::from(op.is_write())].len() < depth {
                    self.submit(at, op, len);
                }
            }
            let next = self.turn()?;
            let late = Duration::from_nanos(self.rng.below(300_000));
            self.now = next.min(self.now + self.step).max(self.now) + late;
        }
        Ok(())
    }
}

fn rate(bandwidth: u64) -> QosLimits {
    QosLimits { all: of(0, bandwidth), ..QosLimits::default() }
}

/// Whether that is about what was to come, in percent.
fn about(what: &str, is: u64, expected: u64, percent: u64) -> Result<(), String> {
    match is.abs_diff(expected) * 100 <= expected * percent {
        true => Ok(()),
        false => Err(format!("{what}: {is}, where {expected} are expected")),
    }
}

const RATE: u64 = 20 << 20;
const SECONDS: u64 = 20;

/// Of volumes that always want something, however much each does and how long its I/Os are.
fn all_want(canary: QosCanary) -> Result<(), String> {
    for kinds in [
        vec![(Op::Write, 65536, 8); 5],
        vec![(Op::Read, 4096, 64), (Op::Write, 65536, 4), (Op::Read, 1 << 20, 2)],
        vec![(Op::Read, 4096, 1), (Op::Read, 4096, 256)],
    ] {
        let mut several = Several::new(rate(RATE), kinds.len(), canary);
        several.run(&kinds, Duration::from_secs(SECONDS))?;
        let all = several.bytes.iter().sum();
        about("in all", all, RATE * SECONDS + RATE / 10, 1)?;
        for bytes in &several.bytes {
            // Who wants one after the other has nothing waiting while that is on its way.
            if kinds.iter().all(|(_, _, depth)| *depth > 1) {
                about("of one", *bytes, all / kinds.len() as u64, 4)?;
            } else if *bytes < all / 20 {
                return Err(format!("it starves: {bytes} of {all}"));
            }
        }
    }
    Ok(())
}

/// One that comes later, or was silent for long, gets what is its own, and no more.
fn one_comes_late(canary: QosCanary) -> Result<(), String> {
    let mut several = Several::new(rate(RATE), 2, canary);
    let (busy, idle) = ((Op::Write, 65536, 8), (Op::Write, 65536, 0));
    several.run(&[busy, idle], Duration::from_secs(SECONDS))?;
    about("alone", several.bytes[0], RATE * SECONDS + RATE / 10, 1)?;
    let before = several.bytes.clone();
    several.run(&[busy, busy], Duration::from_secs(4))?;
    for (bytes, before) in several.bytes.iter().zip(before) {
        about("of both", bytes - before, RATE * 2, 4)?;
    }
    Ok(())
}

/// What was let go of a volume that is not told the time is not overtaken there.
fn one_is_not_told(canary: QosCanary) -> Result<(), String> {
    let mut several =
        Several::new(QosLimits { all: of(1000, 0), burst: MS, ..QosLimits::default() }, 2, canary);
    several.turn()?;
    // The last of them waits.
    (0..3).for_each(|_| several.submit(1, Op::Write, 512));
    several.now = several.now + 20 * MS;
    let now = several.now;
    // The first one is told, and lets go what the other has.
    several.volumes[0].0.turn(now);
    several.submit(1, Op::Write, 512);
    several.now = now + 20 * MS;
    several.turn()?;
    several.now = several.now + 20 * MS;
    several.turn()?;
    match several.seen[1][1] {
        4 => Ok(()),
        other => Err(format!("{other} of 4 went")),
    }
}

#[test]
fn one_budget_bounds_all_and_each_gets_as_much() {
    assert_eq!(all_want(QosCanary::None), Ok(()));
    assert_eq!(one_comes_late(QosCanary::None), Ok(()));
    assert_eq!(one_is_not_told(QosCanary::None), Ok(()));
}

#[test]
fn a_volume_that_is_not_counted_is_found() {
    let why = all_want(QosCanary::CountsOne).unwrap_err();
    assert!(why.contains("in all"), "{why}");
}

#[test]
fn a_volume_that_starves_is_found() {
    let why = all_want(QosCanary::FirstComes).unwrap_err();
    assert!(why.contains("of one") || why.contains("starves"), "{why}");
}

#[test]
fn a_volume_that_takes_what_it_has_not_wanted_before_is_found() {
    let why = one_comes_late(QosCanary::SavesUp).unwrap_err();
    assert!(why.contains("of both"), "{why}");
}

#[test]
fn what_overtakes_is_found() {
    let why = one_is_not_told(QosCanary::Overtakes).unwrap_err();
    assert!(why.contains("out of order"), "{why}");
}

/// A volume that goes takes what waits of it with it, and the others go on.
#[test]
fn a_volume_that_goes_holds_up_nobody() {
    let mut several = Several::new(rate(1 << 20), 3, QosCanary::None);
    several.run(&[(Op::Write, 65536, 8); 3], Duration::from_secs(1)).unwrap();
    assert_eq!((several.budget.volumes(), several.budget.waiting()), (3, 24));
    several.volumes.remove(1);
    for all in [&mut several.given, &mut several.seen] {
        all.remove(1);
    }
    several.began.remove(1);
    assert_eq!((several.budget.volumes(), several.budget.waiting()), (2, 16));
    let before = several.bytes.iter().sum::<u64>();
    several.run(&[(Op::Write, 65536, 8); 2], Duration::from_secs(10)).unwrap();
    let bytes = several.bytes.iter().sum::<u64>() - before;
    assert_eq!(about("the rest", bytes, 10 << 20, 3), Ok(()));
    several.volumes.clear();
    assert_eq!((several.budget.volumes(), several.budget.waiting()), (0, 0));
}

/// Limits that become others while I/Os wait: nothing is lost or overtaken, and each second gets what held in it.
fn limits_change(canary: QosCanary) -> Result<(), String> {
    let mut several = Several::new(rate(RATE), 2, canary);
    let wants = [(Op::Write, 65536, 16), (Op::Read, 4096, 64)];
    several.run(&wants, Duration::from_secs(2))?;
    let mut rng = SplitMix64::new(5);
    for _ in 0..40 {
        let bandwidth = (1 + rng.below(64)) << 20;
        several.budget.set_limits(rate(bandwidth));
        let before = several.bytes.iter().sum::<u64>();
        several.run(&wants, Duration::from_secs(1))?;
        let bytes = several.bytes.iter().sum::<u64>() - before;
        about("in a second", bytes, bandwidth, 8)?;
    }
    // Without a limit what waits goes at once.
    several.budget.set_limits(QosLimits::default());
    let given: u64 = several.given.iter().flatten().sum();
    several.turn()?;
    match several.seen.iter().flatten().sum::<u64>() {
        seen if seen == given => Ok(()),
        seen => Err(format!("{seen} of {given} went")),
    }
}

/// An I/O that is owed for a long time by the old limits.
fn what_waits_for_long(canary: QosCanary) -> Result<(), String> {
    let mut several = Several::new(rate(1024), 1, canary);
    several.turn()?;
    several.submit(0, Op::Write, 1 << 20);
    several.submit(0, Op::Write, 4096);
    let next = several.turn()?;
    if next > several.now + LOOK_EVERY {
        return Err("nobody looks before it is over".into());
    }
    several.budget.set_limits(rate(1 << 20));
    several.now = several.now + Duration::from_millis(990);
    several.turn()?;
    if several.seen[0][1] != 1 {
        return Err("what is owed is forgotten".into());
    }
    several.now = several.now + 20 * MS;
    several.turn()?;
    match several.seen[0][1] {
        2 => Ok(()),
        _ => Err("it waits for the old limits".into()),
    }
}

#[test]
fn other_limits_hold_at_once() {
    assert_eq!(limits_change(QosCanary::None), Ok(()));
    assert_eq!(what_waits_for_long(QosCanary::None), Ok(()));
}

#[test]
fn a_debt_that_stays_is_found() {
    let why = what_waits_for_long(QosCanary::KeepsDebt).unwrap_err();
    assert!(why.contains("old limits"), "{why}");
}

#[test]
fn other_limits_that_come_with_a_gift_are_found() {
    let why = limits_change(QosCanary::FillsUp).unwrap_err();
    assert!(why.contains("in a second"), "{why}");
}

#[test]
fn what_is_lost_when_there_is_no_limit_any_more_is_found() {
    let why = limits_change(QosCanary::Forgets).unwrap_err();
    assert!(why.contains("went"), "{why}");
}

/// From no limit to one, and before anybody knows the time.
#[test]
fn limits_come_and_go() {
    let mut several = Several::new(QosLimits::default(), 1, QosCanary::None);
    (0..1000).for_each(|_| several.submit(0, Op::Read, 4096));
    several.budget.set_limits(QosLimits { all: of(100, 0), ..QosLimits::default() });
    (0..1000).for_each(|_| several.submit(0, Op::Read, 4096));
    several.turn().unwrap();
    assert_eq!(several.seen[0][0], 1001, "nothing is saved up");
    several.now = several.now + Duration::from_secs(1);
    several.turn().unwrap();
    // As much as is saved up at most.
    assert_eq!(several.seen[0][0], 1012);
    assert_eq!(several.budget.limits().all, of(100, 0));
    several.budget.set_limits(QosLimits::default());
    several.turn().unwrap();
    assert_eq!(several.seen[0][0], 2000);
    assert_eq!(several.volumes[0].0.turn(several.now), Time::NEVER);
}
