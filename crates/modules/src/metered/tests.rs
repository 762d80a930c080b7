//! What a meter counts is what was done, and how long it took.

use thinwire_volume::testing::Puppet;
use thinwire_volume::{Identity, LegStanding};

use super::*;

const MS: Duration = Duration::from_millis(1);
const START: Time = Time(1 << 40);

fn metered(puppet: &Puppet) -> (Metered, Rc<Meter>) {
    let meter = Rc::new(Meter::default());
    (Metered::new(Box::new(puppet.clone()), meter.clone(), None, None), meter)
}

/// A turn, as whoever drives it takes one.
fn turn(volume: &mut Metered, now: Time, done: &mut Vec<Completion>) -> Time {
    volume.turn(now);
    volume.poll(done);
    volume.turn(now)
}

#[test]
fn it_is_what_it_stands_on_and_counts_what_goes_there() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (mut volume, meter) = metered(&puppet);
    let identity: Identity = puppet.identity();
    assert_eq!((volume.geometry(), volume.identity()), (Puppet::GEOMETRY, identity));
    let mut done = Vec::new();
    let ops = [Op::Read, Op::WriteZeroes, Op::Discard, Op::Flush, Op::BlockStatus];
    for (token, op) in (1..).zip(ops) {
        let len = if op == Op::Flush { 0 } else { 1024 };
        volume.submit(Io::new(token, op, 0, len));
    }
    assert_eq!(volume.outstanding(), 5);
    let ios = puppet.take();
    puppet.fail(&ios[0]);
    ios[1..].iter().for_each(|io| puppet.succeed(io));
    volume.poll(&mut done);
    assert_eq!(done.iter().map(|one| one.token).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let expected = MeterReport {
        reads: 1,
        read_bytes: 1024,
        writes: 2,
        flushes: 1,
        completed: 5,
        failed: 1,
        ..MeterReport::default()
    };
    assert_eq!(meter.report(), expected);
}

/// Whoever shows it does not ask the volume.
#[test]
fn it_is_as_large_as_the_volume_has_become() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (mut volume, meter) = metered(&puppet);
    assert_eq!(meter.bytes(), Puppet::GEOMETRY.bytes);
    let larger = 2 * Puppet::GEOMETRY.bytes;
    puppet.tell(VolumeEvent::Resized { bytes: larger });
    volume.poll_events(&mut Vec::new());
    assert_eq!((volume.geometry().bytes, meter.bytes()), (larger, larger));
    // What stands there later, as a leg that is back, need not be as large.
    let _again =
        Metered::new(Box::new(Puppet::new(2, Puppet::GEOMETRY)), meter.clone(), None, None);
    assert_eq!(meter.bytes(), Puppet::GEOMETRY.bytes);
}

/// Two overlap: 30 ms of one and 10 ms of the other are 40 ms, whichever came first.
#[test]
fn how_long_they_take_is_the_sum_over_all() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (mut volume, meter) = metered(&puppet);
    let mut done = Vec::new();
    assert_eq!(turn(&mut volume, START, &mut done), Time::NEVER, "nobody uses it");
    let start = START + 1000 * METER_WINDOW;
    turn(&mut volume, start, &mut done);
    volume.submit(Io::new(1, Op::Read, 0, 512));
    turn(&mut volume, start, &mut done);
    volume.turn(start + 20 * MS);
    volume.submit(Io::new(2, Op::Read, 512, 512));
    let ios = puppet.take();
    ios.iter().for_each(|io| puppet.succeed(io));
    assert_eq!(turn(&mut volume, start + 30 * MS, &mut done), start + METER_WINDOW);
    assert_eq!((done.len(), meter.report().busy_ns), (2, 40_000_000));
    // What was not used meanwhile takes nothing.
    turn(&mut volume, start + 60 * MS, &mut done);
    assert_eq!(meter.report().busy_ns, 40_000_000);
    assert_eq!(meter.report().recent, MeterRates::default(), "the second is not over");
    turn(&mut volume, start + METER_WINDOW, &mut done);
    let recent = meter.report().recent;
    assert_eq!((recent.read_iops, recent.read_bandwidth, recent.write_iops), (2, 1024, 0));
    assert_eq!(recent.latency_ns, 20_000_000);
    // A second later nobody has used it for one, and it need not be told any more.
    assert_eq!(turn(&mut volume, start + 2 * METER_WINDOW, &mut done), Time::NEVER);
    assert_eq!(meter.report().recent, MeterRates::default());
}

#[test]
fn what_never_completes_takes_time_all_the_same() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (mut volume, meter) = metered(&puppet);
    volume.submit(Io::new(1, Op::Read, 0, 512));
    let mut done = Vec::new();
    // Nobody knows how long it was there before.
    turn(&mut volume, START, &mut done);
    assert_eq!(meter.report().busy_ns, 0);
    for second in 1..=3 {
        turn(&mut volume, START + second * METER_WINDOW, &mut done);
        assert_eq!(meter.report().busy_ns, u64::from(second) * 1_000_000_000);
    }
    assert_eq!(meter.report().recent.latency_ns, 0, "nothing has completed");
}

/// Time that goes on as a test says.
#[derive(Default)]
struct Clock {
    now: Cell<u64>,
    is_on: Cell<bool>,
}

impl Clock {
    fn pass(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }
}

impl StageClock for Clock {
    fn measure(&self) -> Option<u64> {
        self.is_on.get().then(|| self.now.get())
    }
}

/// Two in parallel, as legs of a mirror are: what passes while any of them has something is not the mirror's own, and counts once.
#[test]
fn stages_of_volumes_in_parallel_are_told_apart_from_what_is_over_them() {
    let clock = Rc::new(Clock::default());
    let top = Rc::new(Meter::default());
    let puppets = [1, 2].map(|number| Puppet::new(number, Puppet::GEOMETRY));
    let mut legs = Vec::new();
    for puppet in &puppets {
        let (meter, above) = (Rc::new(Meter::default()), Some(top.clone()));
        let below = Box::new(puppet.clone());
        legs.push((Metered::new(below, meter.clone(), above, Some(clock.clone())), meter));
    }
    let mut done = Vec::new();
    let mut both = |times: [u64; 4]| {
        top.enter(clock.now.get(), None);
        clock.pass(times[0]);
        legs.iter_mut().for_each(|(leg, _)| leg.submit(Io::new(1, Op::WriteZeroes, 0, 512)));
        for (at, (leg, _)) in legs.iter_mut().enumerate() {
            clock.pass(times[1 + at]);
            puppets[at].succeed(&puppets[at].take_one());
            leg.poll(&mut done);
        }
        clock.pass(times[3]);
        top.leave(clock.now.get(), 1, None);
    };
    clock.pass(1 << 50);
    clock.is_on.set(true);
    both([5, 10, 20, 7]);
    both([5, 10, 20, 7]);
    let of = |stage: NodeStage| (stage.ios, stage.left.wrapping_sub(stage.entered), stage.below);
    assert_eq!(of(top.stage()), (2, 2 * 42, 2 * 30));
    assert_eq!(
        legs.iter().map(|(_, meter)| of(meter.stage())).collect::<Vec<_>>(),
        [(2, 20, 0), (2, 60, 0)]
    );
    assert_eq!(done.len(), 4);
}

#[test]
fn a_clock_that_does_not_run_shows_nothing() {
    let clock = Rc::new(Clock::default());
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (meter, top) = (Rc::new(Meter::default()), Rc::new(Meter::default()));
    let below = Box::new(puppet.clone());
    let mut volume = Metered::new(below, meter.clone(), Some(top.clone()), Some(clock.clone()));
    volume.submit(Io::new(1, Op::Read, 0, 512));
    assert_eq!(meter.stage(), NodeStage::default());
    // It is started in the midst of an I/O: that comes out without having gone in, and is set back with all else.
    clock.is_on.set(true);
    puppet.succeed(&puppet.take_one());
    volume.poll(&mut Vec::new());
    assert_eq!((meter.stage().ios, top.stage()), (1, NodeStage::default()));
    meter.reset_stage();
    assert_eq!(meter.stage(), NodeStage::default());
}

/// What happens is told with the path of the lowest that is named; what names nobody goes up as it is.
#[test]
fn what_happens_has_the_path_of_where_it_happened() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let metered = |below: Box<dyn Volume>| Metered::new(below, Rc::default(), None, None);
    let below = metered(Box::new(puppet.clone())).named("top/mirror".into());
    let mut top = metered(Box::new(metered(Box::new(below)))).named("top".into());
    let leg = |of: Option<&str>| VolumeEvent::Leg {
        leg: 1,
        standing: LegStanding::Behind,
        of: of.map(Into::into),
    };
    let bad = |of: Option<&str>| VolumeEvent::BadBlock {
        offset: 4096,
        is_mended: false,
        of: of.map(Into::into),
    };
    for event in [leg(None), bad(None), bad(Some("top/mirror/sums")), VolumeEvent::Lost] {
        puppet.tell(event);
    }
    let mut told = vec![leg(None)];
    top.poll_events(&mut told);
    let path = Some("top/mirror");
    told.sort_by_key(|event| format!("{event:?}"));
    let mut expected =
        vec![leg(None), leg(path), bad(path), bad(Some("top/mirror/sums")), VolumeEvent::Lost];
    expected.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(told, expected);
    let news = leg(path).news_of_legs().unwrap();
    assert!(news.starts_with("leg 1 of mirror top/mirror is behind"), "{news}");
    let news = bad(path).news_of_sums().unwrap();
    assert!(news.starts_with("top/mirror: the block at 4096"), "{news}");
}
