//! Reads beside a write that is outstanding: once one has seen new bytes, none sees old ones.

use super::world::{Order, SMALL, World, differ, formatted, state};
use super::*;
use LegState::InSync;

fn two(canary: MirrorCanary) -> World {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.mirror.canary = canary;
    world.is_recording = false;
    for block in [0, SMALL] {
        world.write(block, 1, 1, false);
    }
    world.wait();
    world
}

/// Legs do what they have to read, and nothing else.
fn only_reads(world: &mut World) {
    while world.disks.iter().any(|disk| disk.execute_one(Op::Read)) {
        world.turn();
    }
}

/// What so many reads see, one after the other, as far as they end by that.
fn seen(world: &mut World, block: u64, count: usize) -> Vec<u8> {
    world.reads.clear();
    for _ in 0..count {
        world.read(block);
        only_reads(world);
    }
    world.reads.iter().map(|(_, bytes)| bytes[0]).collect()
}

fn only_one_has_it(canary: MirrorCanary) -> bool {
    let mut is_one = true;
    for block in [0, SMALL] {
        for ahead in 0..2 {
            let mut world = two(canary);
            world.write(block, 1, 2, false);
            world.disks[ahead].execute_one(Op::Write);
            world.turn();
            let seen = seen(&mut world, block, 200);
            assert_eq!(seen.len(), 200, "none waits");
            is_one &= seen.windows(2).all(|two| two[0] == two[1]);
            world.heal().unwrap();
            assert_eq!(differ(&world.disks), None);
        }
    }
    is_one
}

#[test]
fn beside_a_write_one_leg_is_read() {
    assert!(only_one_has_it(MirrorCanary::None));
    assert!(!only_one_has_it(MirrorCanary::ReadsBesideWrites));
}

/// Reads are spread all the same, by region.
#[test]
fn beside_writes_all_legs_are_read() {
    let mut world = two(MirrorCanary::None);
    world.write(0, 1, 2, false);
    world.write(SMALL, 1, 2, false);
    for block in [0, SMALL] {
        world.read(block);
    }
    let reads = |disk: &Disk| disk.queued_of(Op::Read).len();
    assert_eq!((reads(&world.disks[0]), reads(&world.disks[1])), (1, 1));
    world.wait();
}

fn what_was_read_before(canary: MirrorCanary) -> bool {
    let mut is_one = true;
    for count in 1..=2 {
        let mut world = two(canary);
        (0..count).for_each(|_| world.read(SMALL));
        let asked: Vec<usize> =
            (0..2).filter(|disk| !world.disks[*disk].queued_of(Op::Read).is_empty()).collect();
        world.write(SMALL, 1, 2, false);
        // The write comes before the read there.
        world.disks[asked[0]].execute_one(Op::Write);
        world.disks[asked[0]].execute_one(Op::Read);
        world.turn();
        assert_eq!(world.reads.remove(0).1[0], 2);
        (0..9).for_each(|_| world.read(SMALL));
        // What was read before may see either.
        world.disks.iter().for_each(|disk| _ = count == 2 && disk.execute_one(Op::Read));
        world.turn();
        world.reads.clear();
        only_reads(&mut world);
        is_one &= world.reads.iter().all(|(_, bytes)| bytes[0] == 2);
        world.wait();
        world.heal().unwrap();
    }
    is_one
}

/// What was being read when it began may have seen it, too.
#[test]
fn a_read_that_was_there_before_the_write_counts() {
    assert!(what_was_read_before(MirrorCanary::None));
}

/// The leg that was read has gone: the others are read when they have what that may have shown.
#[test]
fn when_that_leg_is_gone_reads_wait_for_the_write() {
    for gone in 0..2 {
        let mut world = two(MirrorCanary::None);
        let block = [0, SMALL][gone];
        world.write(block, 1, 2, false);
        world.disks[gone].execute_one(Op::Write);
        world.turn();
        assert_eq!(seen(&mut world, block, 3), [2; 3]);
        world.disks[gone].fail(Some(ErrorKind::Away));
        assert_eq!(seen(&mut world, block, 3), []);
        assert_eq!(world.disks[1 - gone].queued_of(Op::Read), []);
        world.wait();
        assert!(world.reads.len() == 3 && world.reads.iter().all(|(_, bytes)| bytes[0] == 2));
        // And nobody waits any more.
        world.write(block, 1, 3, false);
        assert_eq!(seen(&mut world, block, 3), [2; 3]);
        world.wait();
        world.bring_back(gone);
        world.heal().unwrap();
        assert_eq!((differ(&world.disks), world.errors), (None, 0));
    }
}
