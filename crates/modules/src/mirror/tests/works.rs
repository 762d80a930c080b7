//! Copies and scrubs that pause, go at another pace, or are tried again because somebody says so (`work.rs`).

use std::rc::Rc;

use thinwire_volume::{LegStanding, Work, WorkPace};

use super::disk::{BLOCK, Disk, at};
use super::world::{DATA_BYTES, Order, World, differ, formatted, state};
use super::*;
use LegState::{Behind, InSync};

const PAUSED: WorkPace = WorkPace { is_paused: true, percent: 50 };
const ALL: u64 = 2 << 20;

/// A leg lacks everything, and there is something in each range that is copied as one.
fn lacking() -> World {
    let behind = state(9, &[InSync, Behind { at: [8; 16].into() }]);
    let old = state(8, &[InSync; 2]);
    let mut contents = vec![formatted(0, &behind, [0b10; 2]), formatted(1, &old, [0; 2])];
    for block in places() {
        contents[0].insert(block, Rc::from(&[block as u8 | 1; 4096][..]));
    }
    let mut world = World::open(contents, Order::Turns, 1);
    world.is_recording = false;
    world
}

fn places() -> impl Iterator<Item = u64> {
    let first = MIRROR_DATA_START / BLOCK;
    (first + 9..first + DATA_BYTES / BLOCK).step_by(32)
}

/// How many of these the other leg has.
fn copied(world: &World) -> usize {
    let contents: Vec<_> = world.disks.iter().map(Disk::content).collect();
    places().filter(|place| at(&contents[0], *place) == at(&contents[1], *place)).count()
}

fn lacks(world: &World) -> u64 {
    world.mirror.legs().map(|(_, lacks)| lacks).max().unwrap()
}

#[test]
fn what_is_paused_copies_nothing_and_users_do_not_notice() {
    let mut world = lacking();
    world.mirror.set_pace(PAUSED);
    world.pass(60);
    assert_eq!((lacks(&world), world.mirror.left()), (ALL, ALL));
    let report = world.mirror.mirror().unwrap();
    let standings: Vec<_> = report.legs.iter().map(|leg| leg.standing).collect();
    assert_eq!(standings, [LegStanding::InSync, LegStanding::Resyncing]);
    assert!(!report.is_settled() && !report.is_held_up);
    // Nobody has to tell it the time for what does not go on.
    assert_eq!(world.mirror.next_copy(), Time::NEVER);
    for block in 0..8 {
        world.write(block, 1, block as u8, false);
        world.wait();
    }
    world.pass(60);
    assert_eq!((lacks(&world), world.errors), (ALL, 0));
    world.mirror.set_pace(WorkPace::default());
    world.heal().unwrap();
    assert_eq!((differ(&world.disks), world.mirror.left()), (None, 0));
}

/// At every moment of a resync: it stops there, what is under way ends, and nothing of what was copied is taken for more than it is, neither
/// by who goes on nor behind a crash, when it is paused as before.
#[test]
fn it_pauses_at_any_moment_and_loses_nothing_by_that() {
    let (mut halfway, mut nth) = (0, 0);
    loop {
        let mut world = lacking();
        for _ in 0..nth {
            world.turn();
            if !world.step() {
                world.now = world.now + Duration::from_millis(250);
            }
        }
        world.mirror.set_pace(PAUSED);
        world.pass(30);
        let (left, stands) = (lacks(&world), copied(&world));
        let queued: usize = world.disks.iter().map(Disk::queued).sum();
        assert_eq!(queued, 0, "{nth}: what was under way has ended");
        world.write(0, 2, 77, false);
        world.write(SMALL, 1, 78, false);
        world.flush();
        world.wait();
        world.pass(30);
        assert_eq!(copied(&world), stands, "{nth}");
        halfway += usize::from((1..places().count()).contains(&stands));
        let contents = world.disks.iter().map(Disk::content).collect();
        let mut again = World::open(contents, Order::Turns, 1);
        again.is_recording = false;
        again.pass(3);
        assert_eq!(again.mirror.pace(), PAUSED, "{nth}");
        again.mirror.set_pace(WorkPace::default());
        again.heal().unwrap();
        for world in [&mut world, &mut again] {
            world.mirror.set_pace(WorkPace::default());
            world.heal().unwrap();
            assert_eq!(differ(&world.disks), None, "{nth}");
        }
        nth += 1;
        if left == 0 {
            break;
        }
    }
    assert!(halfway >= 5, "{halfway} of {nth}");
}

#[test]
fn what_is_paused_is_closed_in_order() {
    for nth in [0, 5, 20, 40, 60] {
        let mut world = lacking();
        world.pass(1);
        world.steps(nth);
        world.mirror.set_pace(PAUSED);
        world.mirror.close();
        let closed = (0..10_000).find_map(|_| {
            world.turn();
            let is_busy = world.step();
            world.now = world.now + Duration::from_millis(if is_busy { 0 } else { 10 });
            world.mirror.closed()
        });
        assert_eq!(closed, Some(Ok(())), "{nth}");
        // It is what it was, and gets the rest when it is open again.
        let lacked = lacks(&world);
        let mut again = reopened(&world, &[0, 1]).unwrap();
        again.mirror.set_pace(PAUSED);
        again.pass(5);
        assert_eq!(lacks(&again), lacked, "{nth}: no region is open");
        again.mirror.set_pace(WorkPace::default());
        again.heal().unwrap();
        assert_eq!(differ(&again.disks), None, "{nth}");
    }
}

/// At any moment of a resync the only leg that has all data does not take what tells of regions: that is written again, whatever waits for it,
/// also if nobody writes any more.
#[test]
fn a_resync_goes_on_behind_bits_that_could_not_be_written() {
    let bitmaps = (BITMAP_OFFSET, MIRROR_DATA_START);
    for (before, steps) in (0..60).flat_map(|before| [2, 6].map(|steps| (before, steps))) {
        let mut world = lacking();
        world.write(0, 1, 1, false);
        world.wait();
        for _ in 0..before {
            world.turn();
            if !world.step() {
                world.now = world.now + Duration::from_millis(250);
            }
        }
        world.disks[0].fail_writes_in(Some(bitmaps));
        for _ in 0..steps {
            world.turn();
            if !world.step() {
                world.now = world.now + Duration::from_millis(250);
            }
        }
        world.disks[0].fail_writes_in(None);
        world.pass(3);
        if world.is_dropped(0) {
            // The other one had all by then.
            world.bring_back(0);
        }
        world.heal().unwrap_or_else(|why| panic!("{before}, {steps}: {why}"));
        assert_eq!(differ(&world.disks), None);
    }
}

/// A tenth of what users get, while somebody always waits for something; and a scrub that pauses stands where it was.
#[test]
fn a_scrub_goes_as_fast_as_is_said() {
    let both = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(both.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.pass(5);
    let beside = |world: &mut World, percent: u8| {
        world.mirror.set_pace(WorkPace { is_paused: false, percent });
        world.write(128, 1, 1, false);
        world.steps(1000);
        world.mirror.begin_scrub(0);
        world.steps(1000);
        assert_eq!(world.mirror.scrub_report().position, 0, "somebody has just used it");
        // Time stands still, and what is written lies behind what is read.
        for nth in 0..64 {
            world.write(128 + nth % 7 * 16, 16, nth as u8, false);
            world.steps(2);
        }
        world.steps(1000);
        world.mirror.scrub_report().position
    };
    let [tenth, twentieth] = [10, 5].map(|percent| beside(&mut world, percent));
    // In whole ranges of 128 KiB.
    assert_eq!([tenth, twentieth], [384 << 10, 128 << 10], "of 4 MiB");
    world.mirror.begin_scrub(0);
    world.mirror.set_pace(PAUSED);
    world.pass(30);
    let stands = world.mirror.scrub_report();
    assert!(stands.is_running && stands.position < DATA_BYTES);
    world.pass(300);
    assert_eq!(world.mirror.scrub_report(), stands);
    world.mirror.set_pace(WorkPace::default());
    world.pass(30);
    let ended = world.mirror.scrub_report();
    assert!(!ended.is_running && ended.is_clean(), "{ended:?}");
}

#[test]
fn what_is_held_up_is_tried_again_when_somebody_says_so() {
    let mut world = lacking();
    world.disks[0].fail_block(Some(MIRROR_DATA_START / 4096));
    world.pass(4);
    assert!(world.mirror.report().is_held_up);
    world.disks[0].fail_block(None);
    world.turn();
    assert_eq!(world.disks[0].queued(), 0, "not at once");
    world.mirror.try_now();
    assert_ne!(world.disks[0].queued(), 0);
    world.heal().unwrap();
}

/// Each read takes 300 ms, and the next is asked for when it is over: copies do not get in between.
#[test]
fn who_does_one_thing_after_the_other_is_not_behind_copies() {
    for canary in [MirrorCanary::None, MirrorCanary::IdleBetween] {
        let mut world = lacking();
        world.mirror.set_canary(canary);
        world.mirror.set_pace(PAUSED);
        world.pass(10);
        let before = copied(&world);
        for nth in 0..10 {
            world.read(nth);
            world.mirror.set_pace(WorkPace::default());
            world.turn();
            while world.waiting() > 0 {
                world.now = world.now + Duration::from_millis(300);
                assert!(world.step(), "it is being read");
            }
            world.turn();
        }
        let reads = |world: &World| world.disks[0].queued_of(Op::Read).len();
        let is_planted = canary != MirrorCanary::None;
        assert_eq!(copied(&world) > before || reads(&world) > 0, is_planted, "{canary:?}");
        if !is_planted {
            world.now = world.now + Duration::from_millis(20);
            world.turn();
            assert_ne!(reads(&world), 0, "nobody uses it");
        }
    }
}
