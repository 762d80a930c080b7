//! How long users wait when legs die: for `leg_timeout`, and half a second more behind the last of them, however many they are.

use super::world::{Order, World, formatted, state};
use super::*;
use LegState::InSync;

const TIMEOUT: Duration = Duration::from_secs(5);
/// What the issue of volumes allows.
const PAUSE_MAX: Duration = Duration::from_secs(6);
const STEP: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Reads,
    Writes,
    /// Each write in a region that nobody has written for long.
    ColdWrites,
}

/// A leg, and what becomes of it when.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Dies(usize),
    /// It takes so long for each label.
    SlowLabels(usize, Duration),
}

struct Seen {
    /// Behind the last fault, or where that was later behind its submission.
    longest: Duration,
    /// Generations that were drawn.
    generations: usize,
    letters: String,
}

/// All legs are in sync, and a region is open.
fn written(legs: usize, canary: MirrorCanary) -> World {
    let states = vec![InSync; legs];
    let contents = (0..legs).map(|leg| formatted(leg, &state(9, &states), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.mirror.set_canary(canary);
    world.write(0, 1, 1, false);
    world.wait();
    world
}

/// One user after the other, each with one I/O, for half a minute.
fn watch(legs: usize, how: Use, faults: &[(u64, Fault)], canary: MirrorCanary) -> Seen {
    let mut world = written(legs, canary);
    if how != Use::Writes {
        // Until no region is open, so that nothing is flushed by itself.
        world.pass(6);
    }
    let before = world.mirror.state.history.len();
    let start = world.now;
    let (mut longest, mut submitted) = (Duration::ZERO, world.now);
    let mut last_fault = start;
    let mut slow = Vec::new();
    for nth in 0..3000_u64 {
        let passed = world.now.since(start).as_millis() as u64;
        for (at, fault) in faults {
            if *at / 10 == passed / 10 {
                last_fault = world.now;
                match *fault {
                    Fault::Dies(leg) => world.disks[leg].hang(true),
                    Fault::SlowLabels(leg, by) => slow.push((leg, by, None)),
                }
            }
        }
        if world.waiting() == 0 {
            submitted = world.now;
            match how {
                Use::Reads => world.read(nth % 4),
                Use::Writes => world.write(0, 1, nth as u8, false),
                Use::ColdWrites => world.write(nth % 2 * SMALL, 1, nth as u8, false),
            }
        }
        world.turn();
        for _ in 0..20 {
            for (leg, disk) in world.disks.iter().enumerate() {
                let can_be_done = |io: &Io, slow: &mut [(usize, Duration, Option<Time>)]| {
                    let is_label = io.op.is_write() && io.offset < 1 << 20;
                    let Some((_, by, since)) = slow.iter_mut().find(|(of, ..)| *of == leg) else {
                        return true;
                    };
                    if !is_label {
                        return true;
                    }
                    let since = since.get_or_insert(world.now);
                    world.now.since(*since) >= *by
                };
                while disk.is_busy() {
                    let Some(first) = disk.first_queued(|io| can_be_done(io, &mut slow)) else {
                        break;
                    };
                    let was_label = disk.queued_offsets()[first] < 1 << 20;
                    disk.execute(first);
                    if was_label
                        && let Some((.., since)) = slow.iter_mut().find(|(of, ..)| *of == leg)
                    {
                        *since = None;
                    }
                }
            }
            world.turn();
        }
        if world.waiting() == 0 {
            longest = longest.max(world.now.since(submitted.max(last_fault).min(world.now)));
        }
        world.now = world.now + STEP;
    }
    assert_eq!((world.waiting(), world.errors), (0, 0), "{how:?}");
    let generations = world.mirror.state.history.len() - before;
    Seen { longest, generations, letters: letters(&world) }
}

const USES: [Use; 3] = [Use::Reads, Use::Writes, Use::ColdWrites];

fn all_but(legs: usize, survivor: usize, at: impl Fn(usize) -> u64) -> Vec<(u64, Fault)> {
    let dead = (0..legs).filter(|leg| *leg != survivor);
    dead.enumerate().map(|(nth, leg)| (at(nth), Fault::Dies(leg))).collect()
}

/// All that have died are dropped under one generation.
#[test]
fn legs_that_die_at_once_are_dropped_at_once() {
    let mut dropped = 0;
    for (legs, how) in [2, 3, 4].into_iter().flat_map(|legs| USES.map(|how| (legs, how))) {
        for survivor in 0..legs {
            let faults = all_but(legs, survivor, |_| 1000);
            let seen = watch(legs, how, &faults, MirrorCanary::None);
            assert!(seen.longest <= PAUSE_MAX, "{legs} {how:?} {survivor}: {:?}", seen.longest);
            if how != Use::Reads {
                assert!(seen.longest >= TIMEOUT);
            }
            if seen.longest >= TIMEOUT {
                dropped += 1;
                assert_eq!(seen.generations, 1, "{legs} {how:?} {survivor}");
                let wanted = (0..legs).map(|leg| if leg == survivor { 'S' } else { 'B' });
                assert_eq!(seen.letters, wanted.collect::<String>());
            }
        }
    }
    assert!(dropped > 20, "{dropped}");
}

#[test]
fn legs_that_die_one_after_the_other_hold_nobody_up_for_longer() {
    for (legs, how) in [2, 3, 4].into_iter().flat_map(|legs| USES.map(|how| (legs, how))) {
        for (survivor, apart) in (0..legs).flat_map(|leg| [150, 600, 2000].map(|ms| (leg, ms))) {
            let faults = all_but(legs, survivor, |nth| 1000 + nth as u64 * apart);
            let seen = watch(legs, how, &faults, MirrorCanary::None);
            let why = format!("{legs} {how:?} {survivor} {apart}");
            assert!(seen.longest <= PAUSE_MAX, "{why}: {:?}", seen.longest);
        }
    }
}

/// All are busy when the first is found silent; one of them answers, and dies then.
#[test]
fn a_leg_that_dies_once_it_has_answered_is_dropped_with_the_silent_one() {
    const ANSWER: Duration = Duration::from_millis(600);
    let watch = |canary| {
        let mut world = written(3, canary);
        let start = world.now;
        world.write(0, 1, 2, false);
        let mut has_next = false;
        while world.waiting() > 0 || !has_next {
            let passed = world.now.since(start);
            if world.waiting() == 0 {
                has_next = true;
                world.write(0, 1, 3, false);
            }
            world.turn();
            for _ in 0..20 {
                // The first never answers, the second what it was asked before it died, each of the others late.
                for leg in 1..3 {
                    let is_dead = leg == 1 && passed >= ANSWER + STEP * 2;
                    while !is_dead && passed >= ANSWER && world.disks[leg].is_busy() {
                        world.disks[leg].execute(0);
                    }
                }
                world.turn();
            }
            world.now = world.now + STEP;
            assert!(passed < Duration::from_secs(60));
        }
        world.now.since(start) - ANSWER
    };
    let seen = watch(MirrorCanary::None);
    assert!(seen <= PAUSE_MAX, "{seen:?}");
    let seen = watch(MirrorCanary::ForgetsWhoAnswers);
    assert!(seen > PAUSE_MAX, "{seen:?}");
}

/// A disk reads from memory, and writes no more.
#[test]
fn a_leg_that_only_reads_is_dropped_as_soon() {
    for legs in [2, 3] {
        let watch = |canary| watch_both(legs, canary);
        assert!(watch(MirrorCanary::None) <= PAUSE_MAX);
        assert!(watch(MirrorCanary::AnyAnswerCounts) > PAUSE_MAX * 2);
    }
}

/// A user who writes, and another one who reads.
fn watch_both(legs: usize, canary: MirrorCanary) -> Duration {
    let mut world = written(legs, canary);
    world.write(0, 1, 2, false);
    let start = world.now;
    while world.waiting() > 0 {
        // Reads of the other region, which any leg may do.
        world.read(SMALL);
        world.turn();
        for _ in 0..10 {
            for (leg, disk) in world.disks.iter().enumerate() {
                while let Some(nth) = disk.first_queued(|io| leg != 1 || io.op == Op::Read) {
                    disk.execute(nth);
                }
            }
            world.turn();
        }
        world.now = world.now + STEP;
        assert!(world.now.since(start) < Duration::from_secs(60));
    }
    world.now.since(start)
}

/// Whoever stands for a leg that is away completes a flush that has nothing to do, as it does of an export that cannot be reached.
#[test]
fn a_leg_that_only_flushes_nothing_is_dropped_as_soon() {
    let watch = |canary| {
        let mut world = written(2, canary);
        world.flush();
        world.wait();
        world.write(0, 1, 2, false);
        let (start, mut asked) = (world.now, world.now);
        while world.waiting() > 0 {
            if world.now.since(asked) >= Duration::from_secs(2) {
                asked = world.now;
                world.flush();
            }
            world.turn();
            for (leg, disk) in world.disks.iter().enumerate() {
                while let Some(nth) = disk.first_queued(|io| leg != 1 || io.op == Op::Flush) {
                    disk.execute(nth);
                }
            }
            world.turn();
            world.now = world.now + STEP;
            assert!(world.now.since(start) < Duration::from_secs(60));
        }
        world.now.since(start)
    };
    let seen = watch(MirrorCanary::None);
    assert!(seen <= PAUSE_MAX, "{seen:?}");
    assert!(watch(MirrorCanary::AnyFlushTells) > PAUSE_MAX);
}

/// A flush that failed has left to the next one what it was to flush: who completes that is there.
#[test]
fn the_flush_behind_one_that_failed_tells_of_a_leg() {
    let mut world = written(2, MirrorCanary::None);
    let flush = Io::new(0, Op::Flush, 0, 0);
    world.flush();
    world.wait();
    assert!(!world.mirror.is_telling(0, &flush));
    world.write(0, 1, 2, false);
    world.wait();
    world.disks.iter().for_each(|disk| disk.fail_flushes(true));
    world.flush();
    world.wait();
    assert_eq!(world.errors, 1);
    let left = bits(world.mirror.in_sync).next().expect("the last leg stays");
    assert!(world.mirror.is_telling(left, &flush));
}

/// For all labels of a change a leg has as long as for one.
#[test]
fn labels_of_a_change_take_no_longer_than_the_timeout() {
    let slow = Duration::from_millis(4500);
    let faults = [(1000, Fault::Dies(0)), (1000, Fault::SlowLabels(1, slow))];
    let longest = |canary| watch(3, Use::Writes, &faults, canary).longest;
    let seen = longest(MirrorCanary::None);
    assert!(seen <= PAUSE_MAX + TIMEOUT, "{seen:?}");
    assert!(longest(MirrorCanary::EachLabelAnew) > PAUSE_MAX + slow * 2 - STEP * 200);
}

#[test]
fn who_asks_one_leg_after_the_other_is_found() {
    let three = all_but(3, 2, |_| 1000);
    let chain = all_but(4, 3, |nth| 1000 + nth as u64 * 600);
    for faults in [&three, &chain] {
        let legs = faults.len() + 1;
        let late = USES.map(|how| watch(legs, how, faults, MirrorCanary::OneByOne).longest);
        assert!(late.iter().any(|longest| *longest > PAUSE_MAX), "{late:?}");
    }
}

/// Opens two legs, one of which takes so long for each thing that it is told, and sees how they stand when users are served.
fn opened_over(each: Duration, canary: MirrorCanary) -> (String, Duration) {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.mirror.set_canary(canary);
    let (start, mut since) = (world.now, None);
    while world.mirror.phase != Phase::Serving {
        world.turn();
        while world.disks[0].is_busy() {
            world.disks[0].execute(0);
            world.turn();
        }
        if world.disks[1].is_busy() && world.now.since(*since.get_or_insert(world.now)) >= each {
            world.disks[1].execute(0);
            since = None;
        }
        world.now = world.now + STEP;
        assert!(world.now.since(start) < Duration::from_secs(120), "it is never open");
    }
    (letters(&world), world.now.since(start))
}

/// Nobody is in a hurry while it is being opened: a leg may take as long for each thing as for any I/O, and for all of a label longer. One
/// that says nothing is not waited for.
#[test]
fn an_opening_waits_for_a_leg_that_answers() {
    let slow = Duration::from_millis(3500);
    assert_eq!(opened_over(slow, MirrorCanary::None).0, "SS");
    assert_eq!(opened_over(slow, MirrorCanary::OpensInAHurry).0, "SB");
    let (letters, took) = opened_over(TIMEOUT * 100, MirrorCanary::None);
    assert_eq!(letters, "SB");
    assert!(took <= PAUSE_MAX, "{took:?}");
}
