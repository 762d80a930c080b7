//! How much is taken in a second of simulated time, in which order, and what waits for nothing.

mod shared;

use thinwire_buffer::{Pool, SegList};

use super::*;
use thinwire_volume::Geometry;
use thinwire_volume::testing::{Puppet, SplitMix64};

const MS: Duration = Duration::from_millis(1);
const SHAPE: Geometry = Geometry { bytes: 1 << 30, ..Puppet::GEOMETRY };

fn over(puppet: &Puppet, limits: QosLimits) -> Qos {
    Qos::new(Puppet::boxed(std::slice::from_ref(puppet)), &limits).unwrap_or_else(|e| panic!("{e}"))
}

fn of(iops: u64, bandwidth: u64) -> QosLimit {
    QosLimit { iops, bandwidth }
}

fn io(token: u64, op: Op, len: u64) -> Io {
    let mut io = Io::new(token, op, 0, len);
    if op == Op::Write {
        io.data = SegList::of(Pool::new(0).get_zeroed(len as usize).freeze());
    }
    io
}

/// What goes down while each kind of I/O is wanted `depth` times at once, for so long; by kind. Time passes as the volume asks for it,
/// but for at most a millisecond, and is told late, as by a machine that has other things to do.
fn taken(limits: QosLimits, kinds: &[(Op, u64)], depth: usize, seconds: u64) -> Vec<u64> {
    let puppet = Puppet::new(1, SHAPE);
    let mut volume = over(&puppet, limits);
    let mut rng = SplitMix64::new(7);
    let start = Time(1 << 50);
    let end = start + Duration::from_secs(seconds);
    let (mut now, mut done, mut counts) = (start, Vec::new(), vec![0; kinds.len()]);
    volume.turn(now);
    for (kind, (op, len)) in kinds.iter().enumerate() {
        (0..depth).for_each(|_| volume.submit(io(kind as u64, *op, *len)));
    }
    while now < end {
        let next = volume.turn(now);
        puppet.take().iter().for_each(|io| puppet.succeed(io));
        volume.poll(&mut done);
        for completion in done.drain(..) {
            let kind = completion.token as usize;
            counts[kind] += 1;
            volume.submit(io(completion.token, kinds[kind].0, kinds[kind].1));
        }
        assert_eq!(volume.outstanding(), depth * kinds.len());
        let late = Duration::from_nanos(rng.below(100_000));
        // What is below takes no longer than that.
        let next = if volume.below.outstanding() > 0 { now } else { next };
        now = next.min(now + MS).max(now) + late;
    }
    counts
}

/// Within 1 % of what is expected.
fn is_near(count: u64, expected: u64) {
    assert!(count.abs_diff(expected) * 100 <= expected, "{count}, where {expected} are expected");
}

#[test]
fn the_rate_is_kept_over_time() {
    let burst = QosLimits::default().burst;
    let with_burst =
        |rate: u64, seconds: u64| rate * seconds + rate * burst.as_millis() as u64 / 1000;
    for iops in [10, 333, 5000, 250_000] {
        let limits = QosLimits { all: of(iops, 0), ..QosLimits::default() };
        let seconds = if iops < 1000 { 100 } else { 10 };
        // So many that they last until it is told the time again.
        let depth = if iops < 10_000 { 32 } else { 512 };
        is_near(taken(limits, &[(Op::Read, 4096)], depth, seconds)[0], with_burst(iops, seconds));
    }
    for (bandwidth, len) in [(1 << 20, 4096), (7_000_001, 512), (100 << 20, 1 << 20)] {
        let limits = QosLimits { all: of(0, bandwidth), ..QosLimits::default() };
        let ios = taken(limits, &[(Op::Write, len)], 8, 20)[0];
        is_near(ios * len, with_burst(bandwidth, 20));
    }
    // Both: the one that is reached first.
    let limits = QosLimits { all: of(1000, 1 << 20), ..QosLimits::default() };
    is_near(taken(limits, &[(Op::Read, 512)], 8, 20)[0], with_burst(1000, 20));
    is_near(taken(limits, &[(Op::Read, 8192)], 8, 20)[0], with_burst(128, 20));
}

#[test]
fn neither_direction_starves_the_other() {
    let limits = QosLimits { all: of(2000, 0), ..QosLimits::default() };
    let [reads, writes] = taken(limits, &[(Op::Read, 4096), (Op::Write, 4096)], 16, 10)[..] else {
        panic!("of two kinds")
    };
    is_near(reads, 10_100);
    is_near(writes, 10_100);
    // Many short ones beside few long ones: each is taken in its turn.
    let limits = QosLimits { all: of(0, 10 << 20), ..QosLimits::default() };
    let kinds = [(Op::Read, 512), (Op::Write, 1 << 20)];
    let [short, long] = taken(limits, &kinds, 4, 60)[..] else { panic!("of two kinds") };
    assert!(short.abs_diff(long) <= 8, "{short} short and {long} long ones");
}

#[test]
fn each_direction_has_limits_of_its_own() {
    let limits = QosLimits { reads: of(100, 0), writes: of(0, 1 << 20), ..QosLimits::default() };
    let [reads, writes] = taken(limits, &[(Op::Read, 4096), (Op::Write, 4096)], 8, 50)[..] else {
        panic!("of two kinds")
    };
    is_near(reads, 5010);
    is_near(writes, 256 * 50 + 25);
    // One that waits for its own limit does not hold up the other.
    let limits = QosLimits { all: of(1000, 0), reads: of(10, 0), ..QosLimits::default() };
    let [reads, writes] = taken(limits, &[(Op::Read, 4096), (Op::Write, 4096)], 8, 50)[..] else {
        panic!("of two kinds")
    };
    is_near(reads, 501);
    is_near(writes, 50_100 - reads);
}

#[test]
fn what_was_not_used_is_used_at_once_and_no_more_than_that() {
    let puppet = Puppet::new(1, SHAPE);
    let burst = Duration::from_millis(50);
    let mut volume = over(&puppet, QosLimits { all: of(1000, 0), burst, ..QosLimits::default() });
    // Also before anybody knows the time.
    (0..60).for_each(|token| volume.submit(io(token, Op::Read, 512)));
    assert_eq!(puppet.take().len(), 51, "what is saved up, and the one that is not paid in full");
    let mut now = Time(1 << 40);
    assert_eq!(volume.turn(now), now + MS);
    now = now + 3 * MS;
    assert_eq!((volume.turn(now), puppet.take().len()), (now, 3), "what was sent is to be polled");
    assert_eq!(volume.turn(now), now + MS);
    // An hour is no more than the burst.
    now = now + Duration::from_secs(3600);
    volume.turn(now);
    (0..60).for_each(|token| volume.submit(io(token, Op::Read, 512)));
    assert_eq!(puppet.take().len(), 51);
}

#[test]
fn what_is_longer_than_the_burst_is_owed() {
    let puppet = Puppet::new(1, SHAPE);
    let burst = Duration::from_millis(1);
    let limits = QosLimits { all: of(0, 1 << 20), burst, ..QosLimits::default() };
    let mut volume = over(&puppet, limits);
    let now = Time(1 << 40);
    volume.turn(now);
    volume.submit(io(1, Op::Write, 1 << 20));
    assert_eq!(puppet.take().len(), 1, "it is never too long");
    volume.submit(io(2, Op::Read, 512));
    let paid = now + Duration::from_secs(1) - burst;
    assert_eq!((volume.turn(now), puppet.take().len()), (now + LOOK_EVERY, 0));
    let soon = paid - MS;
    assert_eq!((volume.turn(soon), puppet.take().len()), (paid, 0));
    assert_eq!((volume.turn(paid), puppet.take().len()), (paid, 1));
    assert_eq!(volume.turn(paid), Time::NEVER, "nobody waits");
}

#[test]
fn order_is_kept_in_each_direction() {
    let puppet = Puppet::new(1, SHAPE);
    let mut volume = over(&puppet, QosLimits { all: of(1000, 0), ..QosLimits::default() });
    let (mut now, mut rng) = (Time(1 << 40), SplitMix64::new(3));
    volume.turn(now);
    let (mut given, mut seen) = ([1, 1], [0, 0]);
    let kinds = [
        (Op::Read, 0),
        (Op::BlockStatus, 0),
        (Op::Write, 1),
        (Op::WriteZeroes, 1),
        (Op::Discard, 1),
    ];
    for _ in 0..2000 {
        let (op, way) = kinds[rng.below(5) as usize];
        let mut io = io(0, op, 512);
        // Tokens below are others: it is known by its place.
        io.offset = given[way] * 512;
        given[way] += 1;
        volume.submit(io);
        now = now + Duration::from_micros(rng.below(1900));
        volume.turn(now);
        for io in puppet.take() {
            let way = usize::from(io.op.is_write());
            assert_eq!(io.offset / 512, seen[way] + 1, "{}", io.op);
            seen[way] += 1;
        }
    }
    assert!(seen.iter().all(|&seen| seen > 100), "{seen:?}");
    volume.turn(now + Duration::from_secs(60));
    volume.turn(now + Duration::from_secs(60));
}

#[test]
fn a_flush_waits_for_nothing() {
    let puppet = Puppet::new(1, SHAPE);
    let burst = MS;
    let mut volume = over(&puppet, QosLimits { all: of(1, 0), burst, ..QosLimits::default() });
    let now = Time(1 << 40);
    volume.turn(now);
    (0..3).for_each(|token| volume.submit(io(token, Op::Write, 512)));
    let first = puppet.take_one();
    volume.submit(Io::new(9, Op::Flush, 0, 0));
    let flush = puppet.take_one();
    assert_eq!((flush.op, volume.outstanding()), (Op::Flush, 4));
    puppet.succeed(&flush);
    puppet.succeed(&first);
    let mut done = Vec::new();
    volume.poll(&mut done);
    let tokens: Vec<_> = done.iter().map(|one| one.token).collect();
    assert_eq!((tokens, volume.outstanding()), (vec![9, 0], 2));
    assert!(!volume.is_at_rest(), "somebody waits");
}

#[test]
fn what_has_no_data_is_one_io_of_no_bytes() {
    let puppet = Puppet::new(1, SHAPE);
    let limits = QosLimits { all: of(0, 4096), ..QosLimits::default() };
    let mut volume = over(&puppet, limits);
    volume.turn(Time(1 << 40));
    for token in 0..30 {
        let op = [Op::Discard, Op::WriteZeroes, Op::BlockStatus][token as usize % 3];
        volume.submit(Io::new(token, op, 0, SHAPE.bytes));
    }
    assert_eq!(puppet.take().len(), 30);
}

#[test]
fn without_a_limit_nothing_is_in_between() {
    let puppet = Puppet::new(1, SHAPE);
    let open = |options: &Options| {
        MODULE.open(Puppet::boxed(std::slice::from_ref(&puppet)), options).expect("it fits")
    };
    let mut options = Options::default();
    let mut unlimited = open(&options);
    assert!(!unlimited.is_timed());
    (0..1000).for_each(|token| unlimited.submit(io(token, Op::Read, 4096)));
    assert_eq!(puppet.take().len(), 1000);
    options.set(&BURST, 5);
    assert!(!open(&options).is_timed(), "a burst of nothing");
    for option in [&IOPS, &READ_IOPS, &WRITE_IOPS, &BANDWIDTH, &READ_BANDWIDTH, &WRITE_BANDWIDTH] {
        let mut options = Options::default();
        options.set(option, 1000);
        let limited = open(&options);
        assert!(limited.is_timed(), "{}", option.name);
        assert_eq!(limited.identity(), unlimited.identity(), "limits make no other volume of it");
        assert_eq!(limited.geometry(), unlimited.geometry());
    }
}
