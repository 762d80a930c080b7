//! Rule 14: room that is kept for labels of what stands on volumes, so that a tree over a full pool can be opened, and its cuts deleted.

use thinwire_volume::{ErrorKind, IoFlags, Op};

use super::super::*;
use super::disk::Clock;
use super::made::BLOCK;
use super::random::{living, step, tight};
use super::world::*;

const META: IoFlags = IoFlags {
    fua: true,
    no_hole: false,
    one_extent: false,
    for_patch: false,
    verified: false,
    uncached: false,
    meta: true,
};
const BLOCKS: u64 = 16;

/// Writes to both blocks of a volume that have labels. How many had no room.
fn write_labels(world: &mut World, volume: u64) -> u64 {
    for first in [1, 9] {
        world.ask(volume, Op::Write, META, first, 2);
        world.wait();
    }
    world.failed.remove(&ErrorKind::NoSpace).unwrap_or(0)
}

/// Writes blocks that were never written until there is no room. How many there were.
fn fill(world: &mut World, volume: u64) -> u64 {
    for key in 2.. {
        world.write(volume, key * 8, 8);
        world.wait();
        if world.failed.remove(&ErrorKind::NoSpace).is_some() {
            return key - 2;
        }
    }
    unreachable!("it is full before")
}

fn take(world: &mut World, volume: u64) -> Result<u64, PoolError> {
    let (name, incarnation) = (world.name(), world.incarnation());
    match world.run(PoolOp::Snapshot { volume, name, incarnation, at: 0 }) {
        Some(PoolDone::Created { volume }) => Ok(volume),
        _ => Err(world.op_errors.pop().unwrap()),
    }
}

/// A pool that is full behind a snapshot of a volume with labels.
fn full(plant: PoolCanary) -> (World, u64, u64) {
    let mut world = World::new(Setup { blocks: BLOCKS, ..Setup::default() });
    world.canary(plant);
    let volume = world.create(40 * BLOCK);
    world.open_volume(volume);
    assert_eq!(write_labels(&mut world, volume), 0);
    fill(&mut world, volume);
    let snapshot = take(&mut world, volume).unwrap();
    (world, volume, snapshot)
}

/// Labels behind a cut of a full pool are written; a cut behind which they could not be is refused; and with the cut that goes all comes back.
#[test]
fn labels_are_written_in_a_full_pool_and_what_makes_room_goes_on() {
    let (mut world, volume, snapshot) = full(PoolCanary::None);
    let report = world.pool.report();
    let room = (BLOCKS - 2) * BLOCK;
    assert_eq!((report.data_used_bytes, report.data_bytes), (room, room));
    world.write(volume, 16, 1);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), Some(1), "it would have to be copied");
    for _ in 0..3 {
        assert_eq!(write_labels(&mut world, volume), 0);
    }
    let error = take(&mut world, volume).unwrap_err();
    assert_eq!(error, PoolError::NoBlocks);
    assert!(error.to_string().contains("delete snapshots"), "{error}");
    // A clone would need as much room once more; a rollback as much as the volume.
    let (name, incarnation) = (world.name(), world.incarnation());
    world.run(PoolOp::Clone { volume: snapshot, name, incarnation, at: 0 });
    assert_eq!(world.op_errors.pop(), Some(PoolError::NoBlocks));
    world.read_all(volume);
    world.read_all(snapshot);
    world.open.remove(&snapshot);
    assert_eq!(world.run(PoolOp::Delete { volume: snapshot }), Some(PoolDone::Done));
    world.write(volume, 16, 1);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), None);
    let snapshot = take(&mut world, volume).unwrap();
    assert_eq!(write_labels(&mut world, volume), 0);
    world.read_all(volume);
    world.read_all(snapshot);
    world.rest();
    world.is_right();
    assert_eq!(world.check(), []);
}

#[test]
fn labels_without_room_of_their_own_are_found() {
    let (mut world, volume, _) = full(PoolCanary::KeepsNothing);
    assert_eq!(write_labels(&mut world, volume), 2);
}

#[test]
fn a_cut_behind_which_labels_have_no_room_is_found() {
    let (mut world, volume, _) = full(PoolCanary::SharesWhatIsKept);
    assert_eq!(write_labels(&mut world, volume), 0);
    take(&mut world, volume).unwrap();
    assert_eq!(write_labels(&mut world, volume), 2);
}

/// What is kept stands with the volume, also while nothing of it is open; a volume without labels has none, nor has a snapshot.
#[test]
fn what_is_kept_is_known_when_the_pool_is_opened_again() {
    let (mut world, volume, snapshot) = full(PoolCanary::None);
    assert_eq!(world.run(PoolOp::Delete { volume: snapshot }), Some(PoolDone::Done));
    let plain = world.create(8 * BLOCK);
    world.rest();
    world.open.clear();
    let World { setup, clock, data, metadata, model, pool, .. } = world;
    drop(pool);
    let mut world = World::over(setup, data, metadata, Clock::clone(&clock));
    (world.model, world.names, world.incarnations) = (model, 50, 500);
    assert_eq!(world.pool.report().data_bytes, (BLOCKS - 2) * BLOCK);
    world.open_volume(plain);
    world.write(plain, 0, 1);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), Some(1));
    take(&mut world, volume).unwrap();
    world.open_volume(volume);
    assert_eq!(write_labels(&mut world, volume), 0);
    // Of what has none nothing would have to be copied.
    take(&mut world, plain).unwrap();
    world.open.clear();
    for volume in living(&world) {
        assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    }
    world.rest();
    let report = world.pool.report();
    assert_eq!((report.data_used_bytes, report.data_bytes), (0, BLOCKS * BLOCK));
}

/// Blocks for which room is kept are few, whatever is said to be metadata.
#[test]
fn who_calls_everything_a_label_does_not_get_all() {
    let mut world = World::new(Setup { blocks: 200, ..Setup::default() });
    let [greedy, other] = [(); 2].map(|()| world.create(300 * BLOCK));
    world.open_volume(greedy);
    world.open_volume(other);
    assert_eq!(write_labels(&mut world, other), 0);
    for key in 0..300 {
        world.ask(greedy, Op::Write, META, key * 8, 8);
        world.wait();
    }
    assert!(world.failed.remove(&ErrorKind::NoSpace) > Some(90));
    let most = u64::from(rows::KEPT_MAX);
    assert_eq!(world.pool.report().data_bytes, (200 - 2 - most) * BLOCK);
    take(&mut world, other).unwrap();
    take(&mut world, greedy).unwrap();
    for key in 0..300 {
        world.ask(greedy, Op::Write, META, key * 8, 8);
        world.wait();
    }
    world.failed.clear();
    assert_eq!(write_labels(&mut world, other), 0);
}

/// Takes snapshots, and writes behind each, until there is no metadata for more. How many labels could not be written then.
fn without_metadata(plant: PoolCanary) -> u64 {
    let mut world = World::new(Setup { blocks: 3000, ..Setup::default() });
    world.canary(plant);
    let volume = world.create(600 * BLOCK);
    world.open_volume(volume);
    assert_eq!(write_labels(&mut world, volume), 0);
    for at in 2.. {
        let taken = take(&mut world, volume);
        world.write(volume, at % 600 * 8, 8);
        world.wait();
        if let Err(error) = taken {
            assert_eq!(error, PoolError::NoRoom);
            world.failed.clear();
            return write_labels(&mut world, volume);
        }
    }
    unreachable!("it is full before")
}

#[test]
fn labels_are_written_without_metadata() {
    assert_eq!(without_metadata(PoolCanary::None), 0);
    assert_eq!(without_metadata(PoolCanary::KeepsNothing), 2);
}

/// How many labels were written, and how many had no room, of those for which it is kept.
fn at_random(seed: u64, plant: PoolCanary) -> (u64, u64) {
    let mut world = World::new(Setup { blocks: 10 + seed % 12, ..tight(seed) });
    world.canary(plant);
    world.create(40 * BLOCK);
    let mut written = 0;
    for _ in 0..500 {
        step(&mut world, 12, 6, false);
        if !world.random.one_in(4) {
            continue;
        }
        let volumes = living(&world);
        let volume = volumes[world.random.below(volumes.len() as u64) as usize];
        if world.model[&volume].is_read_only || !world.may_open(volume) {
            continue;
        }
        world.open_volume(volume);
        let (key, block) = (world.random.below(3), BLOCK / super::disk::SECTOR);
        let is_known = {
            let core = &mut *world.pool.0.borrow_mut();
            let Entry { slot: Some(slot), row, .. } = core.entries[&volume] else { unreachable!() };
            // With fewer others may have been counted when it was open before.
            row.kept == 3 && core.slots.get_mut(slot).metadata.contains(&key)
        };
        written += u64::from(is_known);
        world.ask(volume, Op::Write, IoFlags { fua: is_known, ..META }, key * block + 1, 2);
    }
    world.wait();
    world.is_right();
    world.rest();
    assert_eq!(world.check(), [], "seed {seed}");
    (written, world.unkept)
}

/// Whatever else is written, cut, cloned, rolled back and deleted.
#[test]
fn labels_always_find_room() {
    let worlds = |plant| {
        (0..60).map(move |seed| at_random(seed, plant)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    let (written, unkept) = worlds(PoolCanary::None);
    assert!(written > 1000, "{written}");
    assert_eq!(unkept, 0);
    assert!(worlds(PoolCanary::SharesWhatIsKept).1 > 100);
}
