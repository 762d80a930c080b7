//! Mirrors that are closed, and driven by nothing but what they say of time.

use super::aftermath::fates;
use super::disk::{Content, Disk};
use super::world::{Order, SMALL, World, differ, formatted, state};
use super::*;
use LegState::InSync;

fn clean(legs: usize) -> Vec<Content> {
    (0..legs).map(|leg| formatted(leg, &state(9, &vec![InSync; legs]), [0, 0])).collect()
}

fn close(world: &mut World) -> Result<(), IoError> {
    world.mirror.close();
    for _ in 0..10_000 {
        world.turn();
        if let Some(result) = world.mirror.closed() {
            assert!(world.disks.iter().all(|disk| disk.queued() == 0), "nothing is under way");
            return result;
        }
        if !world.step() {
            world.now = world.now + Duration::from_millis(10);
        }
    }
    panic!("it never ends");
}

/// Closed with this planted, and power fails then: what a leg has lost, and no bit tells of.
fn closes(canary: MirrorCanary, nth: u64) -> Result<(), String> {
    let mut world = World::open(clean(2), Order::Turns, nth);
    world.mirror.canary = canary;
    world.is_recording = false;
    world.write(SMALL, 1, 1, false);
    world.write(0, 2, 2, false);
    world.steps(nth as usize);
    close(&mut world).unwrap();
    let mut rng = SplitMix64::new(nth);
    let snapshots: Vec<_> = world.disks.iter().map(Disk::snapshot).collect();
    for fates in fates(&snapshots, &mut rng, 16) {
        let disks = snapshots.iter().zip(&fates);
        let contents: Vec<_> = disks.map(|(disk, fates)| disk.after(fates)).collect();
        let mut again = World::open(contents, Order::Turns, 1);
        again.is_recording = false;
        again.read(SMALL);
        again.wait();
        if again.mirror.legs().any(|(state, lacks)| (state, lacks) != (InSync, 0)) {
            return Err("it is resynced".into());
        }
        if again.reads[0].1[0] != 1 {
            return Err("what was written is gone".into());
        }
        if let Some(block) = differ(&again.disks) {
            return Err(format!("legs differ in block {block}"));
        }
    }
    Ok(())
}

/// It waits for a read that came before it was open.
#[test]
fn a_read_that_came_early_is_waited_for() {
    for fails in [false, true] {
        let mut world = World::open(clean(2), Order::Turns, 1);
        world.is_recording = false;
        world.read(SMALL);
        assert_eq!(world.reads.len(), 0);
        world.disks.iter().for_each(|disk| disk.fail_reads(fails));
        close(&mut world).unwrap();
        assert_eq!((world.waiting(), world.errors > 0), (0, fails));
    }
}

#[test]
fn what_was_closed_is_opened_without_a_resync() {
    (0..20).for_each(|nth| closes(MirrorCanary::None, nth).unwrap());
    let found = (0..20).find_map(|nth| closes(MirrorCanary::CloseWithoutFlush, nth).err());
    assert!(found.is_some_and(|why| why.contains("gone") || why.contains("differ")));
}

/// Nothing is taken any more, what was has ended; and what cannot be flushed stays open.
#[test]
fn what_cannot_be_flushed_is_left_open() {
    let mut world = World::open(clean(2), Order::Turns, 1);
    world.is_recording = false;
    world.write(SMALL, 1, 1, false);
    world.mirror.close();
    world.write(0, 1, 1, false);
    assert_eq!(world.errors, 1, "it is being closed");
    while world.mirror.outstanding() > 0 {
        world.turn();
        world.step();
    }
    assert_eq!(world.errors, 1, "what was there has ended");
    world.disks.iter().for_each(|disk| disk.fail(Some(ErrorKind::Io)));
    close(&mut world).unwrap_err();
    let contents: Vec<_> = world.disks.iter().map(Disk::content).collect();
    let mut again = World::open(contents, Order::Turns, 1);
    again.read(SMALL);
    again.wait();
    assert_eq!(letters(&again), "SR");
}

/// Nor does it wait for ever for legs that take no bits, or no labels.
#[test]
fn what_cannot_be_written_down_ends_the_closing() {
    for range in [(BITMAP_OFFSET, MIRROR_DATA_START), (0, BITMAP_OFFSET)] {
        let mut world = World::open(clean(2), Order::Turns, 1);
        world.is_recording = false;
        world.write(SMALL, 1, 1, false);
        world.wait();
        world.disks.iter().for_each(|disk| disk.fail_writes_in(Some(range)));
        // So that a label is due.
        world.disks[1].lose();
        close(&mut world).unwrap_err();
        assert_eq!(world.mirror.turn(world.now), Time::NEVER);
    }
}

/// In the middle of a resync that stays for the next opening.
#[test]
fn a_resync_goes_on_after_it_was_closed() {
    let says = [InSync, LegState::Behind { at: [8; 16].into() }];
    for steps in 0..40 {
        let mut contents = vec![
            formatted(0, &state(9, &says), [0b10; 2]),
            formatted(1, &state(8, &[InSync; 2]), [0; 2]),
        ];
        for block in [0, 99, SMALL] {
            contents[0].insert(MIRROR_DATA_START / 4096 + block, vec![7; 4096].into());
        }
        let mut world = World::open(contents, Order::Turns, steps);
        world.is_recording = false;
        for _ in 0..steps * 4 {
            world.turn();
            world.step();
        }
        world.write(SMALL + 1, 1, 3, false);
        close(&mut world).unwrap();
        let contents: Vec<_> = world.disks.iter().map(Disk::content).collect();
        let mut again = World::open(contents, Order::Turns, 1);
        again.heal().unwrap();
        assert_eq!(differ(&again.disks), None);
    }
}

/// Whoever drives it polls, tells the time behind that, and sleeps for exactly as long as he was told, if nothing else happens.
fn sleep(world: &mut World, is_done: impl Fn(&World) -> bool) -> Duration {
    let begun = world.now;
    for _ in 0..100_000 {
        world.turn();
        let next = world.mirror.turn(world.now);
        if is_done(world) {
            return world.now.since(begun);
        }
        if !world.step() && next > world.now {
            assert_ne!(next, Time::NEVER, "it sleeps for ever");
            world.now = next;
        }
    }
    panic!("it never ends");
}

#[test]
fn what_comes_up_in_a_poll_is_told_by_the_next_turn() {
    let is_clean = |world: &World| {
        letters(world).chars().all(|letter| letter == 'S')
            && world.mirror.regions.open_count() == 0
            && !world.mirror.regions.is_dirty()
            && !world.mirror.intent.is_writing()
    };
    let mut world = World::open(clean(2), Order::Turns, 1);
    world.is_recording = false;
    world.write(SMALL, 1, 1, false);
    let took = sleep(&mut world, |world| world.mirror.outstanding() == 0 && is_clean(world));
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(3), "{took:?}");
    assert_eq!(world.mirror.turn(world.now), Time::NEVER, "at rest nobody need come");
    // A leg hangs.
    world.write(SMALL, 1, 2, false);
    world.disks[1].hang(true);
    let took = sleep(&mut world, |world| world.mirror.outstanding() == 0);
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(7), "{took:?}");
    assert_eq!(letters(&world), "SB");
    world.disks[1].hang(false);
    world.bring_back(1);
    sleep(&mut world, is_clean);
    assert_eq!(differ(&world.disks), None);
    // The last one takes neither bits nor labels for a while.
    for range in [(BITMAP_OFFSET, MIRROR_DATA_START), (0, BITMAP_OFFSET)] {
        let mut world = World::open(clean(2), Order::Turns, 1);
        world.write(0, 1, 1, false);
        world.wait();
        world.disks.iter().for_each(|disk| disk.fail_writes_in(Some(range)));
        world.disks[1].fail(Some(ErrorKind::NoSpace));
        world.write(SMALL, 1, 1, false);
        sleep(&mut world, |world| world.mirror.outstanding() == 0);
        world.disks.iter().for_each(|disk| disk.fail_writes_in(None));
        sleep(&mut world, |world| !world.mirror.regions.is_dirty() && letters(world) == "SB");
    }
}
