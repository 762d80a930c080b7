//! What is found of the bitmap when it is opened, and what an end in order leaves.

use super::super::*;
use super::world::*;
use crate::mirror::tests::disk::{Content, Disk};

fn stale(content: Content) -> u32 {
    let mut world = World::over(content);
    world.read(0, 1, false).unwrap_or_else(|e| panic!("{e}"));
    let all = (0..world.volume.regions.count()).filter(|at| world.volume.regions.stale(*at) != 0);
    all.fold(0, |all, region| all | 1 << region)
}

fn killed() -> (Content, u64) {
    let mut world = World::over(made(PART_BYTES));
    world.write(SECOND, 1, 1, false);
    world.succeed();
    world.write(LAST, 1, 1, false);
    world.succeed();
    (world.disk.content(), world.volume.intent.number_of(0))
}

#[test]
fn what_was_open_is_in_doubt() {
    assert_eq!(stale(made(PART_BYTES)), 0);
    let (content, number) = killed();
    assert_eq!(stale(content.clone()), 0b110);
    // The newest copy is torn: the one before tells.
    let spoil = |content: &mut Content, number| {
        change(content, SumLayout::bitmap_at(0, number), |bytes| bytes[2048] ^= 1);
    };
    let mut torn = content.clone();
    spoil(&mut torn, number);
    assert_eq!(stale(torn.clone()), 0b010);
    spoil(&mut torn, number + 1);
    assert_eq!(stale(torn), 0b111, "nobody knows");
    // A copy that lies where the other belongs is none.
    let mut astray = content.clone();
    let newest = crate::mirror::tests::disk::at(&content, SumLayout::bitmap_at(0, number) / BLOCK);
    astray.insert(SumLayout::bitmap_at(0, number + 1) / BLOCK, newest);
    spoil(&mut astray, number);
    assert_eq!(stale(astray), 0b111);
}

/// The copy that cannot be read may be the newer one, and say of a region that it is open.
#[test]
fn a_copy_of_the_bitmap_that_cannot_be_read_leaves_all_in_doubt() {
    let (content, number) = killed();
    for number in [number, number + 1] {
        let disk = Disk::new(PART_BYTES, content.clone());
        disk.fail_block(Some(SumLayout::bitmap_at(0, number) / BLOCK));
        disk.be_prompt(true);
        let mut volume = open_with(&disk, config(1));
        volume.poll(&mut Vec::new());
        let stale = (0..volume.regions.count()).filter(|at| volume.regions.stale(*at) != 0);
        assert_eq!(stale.collect::<Vec<_>>(), [0, 1, 2], "{number}");
        volume.wind_up();
    }
}

#[test]
fn a_bitmap_that_cannot_be_read_opens_nothing() {
    let disk = Disk::new(PART_BYTES, made(PART_BYTES));
    disk.fail(Some(ErrorKind::Away));
    disk.be_prompt(true);
    let mut volume = open_with(&disk, config(1));
    volume.submit(Io::new(1, Op::Read, 0, BLOCK));
    let mut done = Vec::new();
    volume.poll(&mut done);
    assert_eq!(done[0].result.map_err(|e| e.kind), Err(ErrorKind::Away));
    volume.wind_up();
    assert!(volume.is_wound_up() && volume.outstanding() == 0);
}

#[test]
fn who_only_reads_writes_nothing() {
    let (content, _) = killed();
    let disk = Disk::new(PART_BYTES, content);
    disk.be_prompt(true);
    let config = IntegrityConfig { read_only: true, ..config(1) };
    let mut volume = open_with(&disk, config);
    assert!(volume.geometry().features.read_only && !volume.geometry().features.discard);
    for second in 1..9 {
        volume.submit(Io::new(second, Op::Read, SECOND * BLOCK, BLOCK));
        volume.turn(Time::ZERO + std::time::Duration::from_secs(second));
        let mut done = Vec::new();
        volume.poll(&mut done);
        assert!(done[0].result.is_ok());
    }
    // Nobody has used it for a second by then.
    for second in [9, 10] {
        volume.turn(Time::ZERO + std::time::Duration::from_secs(second));
    }
    volume.begin_scrub(0);
    (0..100).for_each(|_| volume.poll(&mut Vec::new()));
    assert!(!volume.scrub_report().is_running && volume.scrub_report().is_clean());
    volume.wind_up();
    assert!(volume.is_wound_up());
    assert_eq!(disk.writes(), 0);
}

/// A region stays open as long as it is written, and is closed once, behind a flush.
#[test]
fn a_warm_region_costs_nothing() {
    let mut world = World::over(made(PART_BYTES));
    world.read(0, 1, false).unwrap();
    let ops = |world: &mut World, stamp: u8| {
        world.write(SECOND, 1, stamp, false);
        let mut ops = Vec::new();
        while world.disk.queued() > 0 {
            ops.extend(world.disk.queued_offsets());
            world.step();
        }
        world.succeed();
        ops
    };
    let bits = |ops: &[u64]| ops.iter().filter(|at| **at < 1 << 20).count();
    let first = ops(&mut world, 1);
    assert_eq!(bits(&first), 1, "{first:?}");
    for stamp in 2..20 {
        let warm = ops(&mut world, stamp);
        assert_eq!(warm, [SumLayout::sums_at(1), place_of(SECOND)], "the sum, then the data");
        world.pass(1);
    }
    world.pass(4);
    assert_eq!(world.volume.regions.open_count(), 0);
    assert_eq!(bits(&ops(&mut world, 99)), 1, "it was closed");
}

/// Many writes that change one block of sums have it written once, and again.
#[test]
fn writes_share_the_write_of_their_sums() {
    let mut world = World::over(made(PART_BYTES));
    world.write(SECOND, 1, 1, false);
    world.succeed();
    for at in 0..32 {
        world.write(SECOND + at, 1, 2, false);
    }
    let before = world.disk.writes();
    world.succeed();
    // One of sums is under way already.
    assert_eq!(world.disk.writes() - before, 1 + 32);
}

#[test]
fn what_cannot_be_recorded_fails_and_is_tried_again() {
    let mut world = World::over(made(PART_BYTES));
    world.read(0, 1, false).unwrap();
    world.disk.fail_writes_in(Some((0, 1 << 20)));
    world.write(SECOND, 1, 1, false);
    world.wait();
    let error = world.ends.pop().unwrap().result.unwrap_err();
    assert_eq!((error.kind, error.offset, error.len), (ErrorKind::Io, SECOND * BLOCK, BLOCK));
    assert!(world.read(SECOND, 1, true).is_ok_and(|bytes| bytes[0] == 0));
    world.disk.fail_writes_in(None);
    world.write(SECOND, 1, 2, false);
    world.succeed();
    assert_eq!(world.read(SECOND, 1, true).unwrap()[0], 2);
    assert_eq!(stale(world.close()), 0);
}

/// Sums that cannot be read fail whoever needs them, each time anew.
#[test]
fn sums_that_cannot_be_read_fail_what_needs_them() {
    let mut world = World::over(made(PART_BYTES));
    world.read(0, 1, false).unwrap();
    world.disk.fail_block(Some(SumLayout::sums_at(1) / BLOCK));
    assert_eq!(world.read(SECOND, 1, false).unwrap_err().kind, ErrorKind::Io);
    world.write(SECOND, 1, 2, false);
    world.wait();
    assert!(world.ends.pop().unwrap().result.is_err());
    assert!(world.read(LAST, 1, false).is_ok());
    world.disk.fail_block(None);
    assert!(world.read(SECOND, 1, true).is_ok_and(|bytes| bytes[0] == 0));
}

/// What a flush of its own has failed to cover no flush of a user would say to be lost.
#[test]
fn a_flush_of_its_own_that_fails_is_a_loss() {
    let mut world = World::over(made(PART_BYTES));
    world.write(0, 1, 1, false);
    world.succeed();
    world.disk.fail_flushes(true);
    world.pass(3);
    assert_eq!(world.news.first(), Some(&VolumeEvent::Lost));
    assert_eq!(world.volume.regions.stale_count(0), 1, "it is looked through");
    world.disk.fail_flushes(false);
    world.pass(9);
    assert_eq!(stale(world.close()), 0);
}
