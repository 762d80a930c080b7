//! One thing at a time.

use thinwire_volume::{IoFlags, Op, Volume};

use super::super::*;
use super::disk::SECTOR;
use super::made::BLOCK;
use super::world::*;

const SIZE: u64 = 16 * BLOCK;
const FUA: IoFlags = IoFlags {
    fua: true,
    no_hole: false,
    one_extent: false,
    for_patch: false,
    verified: false,
    uncached: false,
    meta: false,
};

/// What is there when the pool is opened again, without a crash.
fn reopen(world: World) -> World {
    let World { setup, clock, data, metadata, pool, open, mut model, .. } = world;
    drop((pool, open));
    model.values_mut().for_each(|known| {
        assert!(known.deleted.is_none());
    });
    let mut world = World::over(setup, data, metadata, clock);
    world.model = model;
    world
}

#[test]
fn what_was_written_and_flushed_is_there_later() {
    let mut world = World::new(Setup::default());
    let volume = world.create(SIZE);
    world.open_volume(volume);
    world.write(volume, 3, 7);
    world.write(volume, 64, 16);
    world.wait();
    world.read_all(volume);
    world.flush(volume);
    world.ask(volume, Op::Write, FUA, 20, 2);
    world.wait();
    let mut world = reopen(world);
    world.read_all(volume);
    assert!(world.reads > 0);
    world.is_right();
    let report = world.pool.report();
    assert_eq!(report.volumes[0].mapped_bytes, 5 * BLOCK);
    assert_eq!(report.data_used_bytes, 5 * BLOCK);
    world.rest();
    assert_eq!(world.check(), []);
}

#[test]
fn snapshots_and_clones_keep_what_was_there() {
    let mut world = World::new(Setup::default());
    let volume = world.create(SIZE);
    world.open_volume(volume);
    world.write(volume, 0, 24);
    world.wait();
    let snapshot = world.snapshot(volume);
    world.write(volume, 4, 8);
    world.ask(volume, Op::Discard, IoFlags::default(), 16, 8);
    world.wait();
    let (name, incarnation) = (world.name(), world.incarnation());
    let done = world.run(PoolOp::Clone { volume: snapshot, name, incarnation, at: 5 });
    let Some(PoolDone::Created { volume: clone }) = done else { panic!("{done:?}") };
    world.open_volume(clone);
    world.write(clone, 1, 1);
    world.wait();
    for volume in [volume, snapshot, clone] {
        world.read_all(volume);
    }
    world.is_right();
    world.rest();
    assert_eq!(world.check(), []);
    let measured = [volume, snapshot, clone].map(|volume| world.run(PoolOp::Measure { volume }));
    let of = |own, shared| {
        Some(PoolDone::Measured { own_bytes: own * BLOCK, shared_bytes: shared * BLOCK })
    };
    // The snapshot and the clone share two blocks; each has what it had before the others copied theirs, or its copy.
    assert_eq!(measured, [of(2, 0), of(1, 2), of(1, 2)]);
    assert_eq!(
        world.pool.report().volumes.iter().map(|volume| volume.mapped_bytes / BLOCK).sum::<u64>(),
        2 + 3 + 3
    );
}

#[test]
fn what_is_deleted_comes_back() {
    let mut world = World::new(Setup::default());
    let volume = world.create(SIZE);
    world.open_volume(volume);
    world.write(volume, 0, 100);
    world.wait();
    let snapshot = world.snapshot(volume);
    world.write(volume, 0, 16);
    world.wait();
    assert_eq!(world.run(PoolOp::Delete { volume }), None);
    assert_eq!(world.op_errors.pop(), Some(PoolError::IsOpen { volume }));
    world.open.clear();
    assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    world.read_all(snapshot);
    world.is_right();
    world.open.clear();
    world.run(PoolOp::Delete { volume: snapshot });
    world.rest();
    let report = world.pool.report();
    assert_eq!((report.data_used_bytes, report.volumes.len()), (0, 0));
    assert_eq!(world.check(), []);
    let discarded: u64 = world.data.discards().iter().map(|(_, len)| len / BLOCK).sum();
    assert_eq!(discarded, 15, "each block once");
}

#[test]
fn a_rollback_is_another_content() {
    rolled_back(PoolCanary::None);
}

/// Rule 23: who remembers writes would send them again.
#[test]
#[should_panic(expected = "it is known by another")]
fn a_rollback_that_nobody_notices_is_found() {
    rolled_back(PoolCanary::KeepsIncarnation);
}

fn rolled_back(canary: PoolCanary) {
    let mut world = World::new(Setup::default());
    world.pool.set_canary(canary);
    let volume = world.create(SIZE);
    world.open_volume(volume);
    world.write(volume, 0, 20);
    world.wait();
    let snapshot = world.snapshot(volume);
    world.write(volume, 0, 20);
    world.wait();
    let before = world.open[&volume].identity();
    world.open.clear();
    let incarnation = world.incarnation();
    let back = PoolOp::RollBack { volume, to: snapshot, incarnation };
    assert_eq!(world.run(back), Some(PoolDone::Done));
    world.read_all(volume);
    let after = world.open[&volume].identity();
    assert_eq!(before.identity, after.identity);
    assert_ne!(before.incarnation, after.incarnation, "it is known by another");
    world.write(volume, 2, 2);
    world.wait();
    world.read_all(snapshot);
    world.read_all(volume);
    world.is_right();
    world.open.clear();
    let other = world.create(SIZE);
    let incarnation = world.incarnation();
    assert_eq!(world.run(PoolOp::RollBack { volume: other, to: snapshot, incarnation }), None);
    assert_eq!(world.op_errors.pop(), Some(PoolError::NoSnapshot { volume: snapshot }));
}

#[test]
fn a_volume_grows_and_says_so_when_that_is_durable() {
    let mut world = World::new(Setup::default());
    let volume = world.create(SIZE);
    world.open_volume(volume);
    world.begin(PoolOp::Resize { volume, bytes: 2 * SIZE });
    assert_eq!(world.open[&volume].geometry().bytes, SIZE);
    while world.has_op() {
        world.turn();
    }
    assert_eq!(world.open[&volume].geometry().bytes, 2 * SIZE);
    assert_eq!(world.heard, [(volume, VolumeEvent::Resized { bytes: 2 * SIZE })]);
    assert_eq!(world.run(PoolOp::Resize { volume, bytes: SIZE }), None);
    world.write(volume, 2 * SIZE / SECTOR - 3, 3);
    world.wait();
    world.read_all(volume);
    world.is_right();
}

#[test]
fn a_snapshot_of_a_snapshot_outlives_that() {
    let mut world = World::new(Setup::default());
    let volume = world.create(SIZE);
    world.open_volume(volume);
    world.write(volume, 0, 20);
    world.wait();
    let first = world.snapshot(volume);
    let second = world.snapshot(first);
    let (name, incarnation) = (world.name(), world.incarnation());
    let done = world.run(PoolOp::Clone { volume: first, name, incarnation, at: 0 });
    let Some(PoolDone::Created { volume: clone }) = done else { panic!("{done:?}") };
    let of_clone = world.snapshot(clone);
    world.write(volume, 0, 20);
    world.wait();
    world.open.clear();
    for deleted in [first, clone] {
        assert_eq!(world.run(PoolOp::Delete { volume: deleted }), Some(PoolDone::Done));
    }
    let incarnation = world.incarnation();
    let back = PoolOp::RollBack { volume, to: second, incarnation };
    assert_eq!(world.run(back), Some(PoolDone::Done), "{:?}", world.op_errors);
    world.read_all(volume);
    world.is_right();
    world.open.clear();
    // A clone went its own way.
    let incarnation = world.incarnation();
    assert_eq!(world.run(PoolOp::RollBack { volume, to: of_clone, incarnation }), None);
    assert_eq!(world.op_errors.pop(), Some(PoolError::NoSnapshot { volume: of_clone }));
    world.rest();
    assert_eq!(world.check(), []);
}

/// Whether what was deleted comes back although the metadata cannot be read for a while.
fn delete_unread(canary: PoolCanary) -> bool {
    let mut world = World::new(Setup { blocks: 400, rows_max: Some(4), ..Setup::default() });
    let volume = world.create(300 * BLOCK);
    world.open_volume(volume);
    for first in (0..300 * 8).step_by(200) {
        world.write(volume, first, 200);
        world.wait();
    }
    world.rest();
    world.open.clear();
    let mut world = reopen(world);
    world.canary(canary);
    world.begin(PoolOp::Delete { volume });
    while world.has_op() {
        world.turn();
        world.pass(10);
        world.pool.0.borrow_mut().ops.stop_reaping();
    }
    loop {
        world.pool.commit();
        world.turn();
        let trees = &world.pool.0.borrow().trees;
        if trees.is_idle() && !trees.has_changes() {
            break;
        }
    }
    // Some of it is left, and has to be read.
    world.pool.0.borrow_mut().trees.forget_nodes();
    world.metadata.fail("read", 1);
    world.pool.0.borrow_mut().ops.reap_anew();
    for _ in 0..20 {
        world.turn();
        world.pass(300);
    }
    assert!(world.pool.report().unreaped.is_some());
    world.metadata.fail("read", 0);
    for _ in 0..100 {
        world.pass(300);
        world.turn();
    }
    let report = world.pool.report();
    report.data_used_bytes == 0 && !report.is_reaping && report.unreaped.is_none()
}

#[test]
fn what_cannot_be_read_for_a_while_comes_back_later() {
    assert!(delete_unread(PoolCanary::None));
}

#[test]
fn giving_back_that_is_not_tried_again_is_found() {
    assert!(!delete_unread(PoolCanary::ReapsOnce));
}
