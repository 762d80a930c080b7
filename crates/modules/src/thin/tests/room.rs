//! Parts that run full, and grow.

use thinwire_buffer::Time;
use thinwire_volume::ErrorKind;

use super::super::*;
use super::disk::{Clock, Disk, NOBODYS};
use super::made::{BLOCK, METADATA, grow_labels};
use super::world::*;
use crate::meta::LABEL_AREA_BYTES;

/// Takes snapshots and writes behind each until the metadata is full; what was told until then, in percent.
fn fill_metadata(world: &mut World) -> Vec<u64> {
    let volume = world.create(600 * BLOCK);
    world.open_volume(volume);
    let (mut told, mut events) = (Vec::new(), Vec::new());
    for at in 0.. {
        let (name, incarnation) = (world.name(), world.incarnation());
        let done = world.run(PoolOp::Snapshot { volume, name, incarnation, at });
        world.write(volume, at % 600 * 8, 8);
        world.wait();
        world.pool.poll_events(&mut events);
        told.extend(events.drain(..).filter_map(|event| match event {
            PoolEvent::MetadataFull { percent } => Some(percent),
            _ => None,
        }));
        if done.is_none() {
            assert_eq!(world.op_errors.pop(), Some(PoolError::NoRoom));
            return told;
        }
    }
    unreachable!("it is full before");
}

#[test]
fn metadata_that_fills_up_is_told_of_before_it_is_full() {
    let mut world = World::new(Setup { blocks: 3000, ..Setup::default() });
    assert_eq!(fill_metadata(&mut world), [80, 95]);
    let report = world.pool.report();
    assert!(report.metadata_used_bytes * 100 >= report.metadata_bytes * 95, "{report:?}");
    assert!(report.metadata_bytes < METADATA);
}

#[test]
fn a_level_that_counts_what_is_kept_as_room_is_found() {
    let mut world = World::new(Setup { blocks: 3000, ..Setup::default() });
    world.canary(PoolCanary::LevelsOfAll);
    assert_ne!(fill_metadata(&mut world), [80, 95]);
}

/// The pool on parts that have grown by now, as their labels say.
fn grow(world: World, blocks: u64, metadata: u64, read_only: bool) -> World {
    let clock: Clock = world.clock.clone();
    let (data, nodes) = (world.data.content(), world.metadata.content());
    let bytes = LABEL_AREA_BYTES + blocks * BLOCK;
    let data = Disk::new(bytes, data, NOBODYS, &clock, 1);
    let mut nodes = Disk::new(LABEL_AREA_BYTES + metadata, nodes, 0, &clock, 1);
    grow_labels(&mut nodes, [blocks * BLOCK, metadata]);
    let setup = Setup { blocks, metadata, read_only, ..world.setup };
    let mut next = World::over(setup, data, nodes, clock);
    (next.names, next.incarnations) = (world.names, world.incarnations);
    next.model = world.model;
    next
}

#[test]
fn a_pool_whose_parts_have_grown_has_more_room_when_it_is_opened() {
    let mut world = World::new(Setup { blocks: 40, ..Setup::default() });
    let volume = world.create(200 * BLOCK);
    world.open_volume(volume);
    for first in (0..200 * 8).step_by(8) {
        world.write(volume, first, 8);
        world.wait();
    }
    assert_eq!(world.failed.get(&ErrorKind::NoSpace), Some(&160));
    world.flush(volume);
    world.rest();
    world.open.clear();
    // Who only reads it finds what it was.
    let world = grow(world, 120, 2 * METADATA, true);
    assert_eq!(world.pool.report().data_bytes, 40 * BLOCK);
    let kept = METADATA - world.pool.report().metadata_bytes;
    let mut world = grow(world, 120, 2 * METADATA, false);
    let report = world.pool.report();
    assert_eq!(report.data_bytes, 120 * BLOCK);
    assert_eq!(report.metadata_bytes, 2 * METADATA - kept);
    world.open_volume(volume);
    for first in (40 * 8..120 * 8).step_by(8) {
        world.write(volume, first, 8);
    }
    world.wait();
    assert_eq!(world.failed.len(), 0);
    world.read_all(volume);
    world.rest();
    world.is_right();
    assert_eq!(world.check(), []);
    // It is durable, and a second time nothing is left to do.
    world.open.clear();
    let mut world = grow(world, 120, 2 * METADATA, true);
    assert_eq!(world.pool.report().data_bytes, 120 * BLOCK);
    assert_eq!(world.check(), []);
    world.read_all(volume);
    world.is_right();
}

/// A pool counts snapshots, and has told that long before it is at the end.
#[test]
fn snapshots_that_come_to_an_end_are_told_of_and_then_refused() {
    use super::super::rows::TIME_MAX;
    let mut world = World::new(Setup::default());
    let volume = world.create(4 * BLOCK);
    world.rest();
    let told = |world: &World| {
        let mut events = Vec::new();
        world.pool.poll_events(&mut events);
        events
    };
    let at = |world: &World, time: u64| world.pool.0.borrow_mut().head.time = time;
    at(&world, TIME_MAX * 9 / 10 - 2);
    world.snapshot(volume);
    assert_eq!(told(&world), []);
    world.snapshot(volume);
    world.snapshot(volume);
    assert_eq!(told(&world), [PoolEvent::TimeFull { percent: 90 }]);
    at(&world, TIME_MAX - 3);
    assert_eq!(world.pool.report().snapshots_left, 2);
    let snapshot = world.snapshot(volume);
    world.snapshot(volume);
    let back = PoolOp::RollBack { volume, to: snapshot, incarnation: 9 };
    let snapshot = PoolOp::Snapshot { volume, name: "late".into(), incarnation: 8, at: 0 };
    for op in [back, snapshot] {
        assert_eq!(world.run(op), None);
        let error = world.op_errors.pop().unwrap();
        assert_eq!(error, PoolError::NoTime);
        assert!(error.to_string().contains("make another pool"), "{error}");
    }
    assert_eq!(world.pool.report().snapshots_left, 0);
    assert_eq!(told(&world), []);
    // All else goes on, and whoever opens it hears it, too.
    world.open_volume(volume);
    world.write(volume, 0, 32);
    world.flush(volume);
    world.read_all(volume);
    world.is_right();
    world.rest();
    let World { setup, clock, data, metadata, pool, open, .. } = world;
    drop((pool, open));
    let world = World::over(setup, data, metadata, clock);
    world.pool.turn(Time::ZERO);
    assert_eq!(told(&world), [PoolEvent::TimeFull { percent: 90 }]);
    assert_eq!(world.pool.report().snapshots_left, 0);
}
