//! Deleted volumes of which something can never be read: what is behind them comes back.

use super::super::*;
use super::disk::SECTOR;
use super::made::{BLOCK, check};
use super::world::*;
use crate::meta::LABEL_AREA_BYTES;

/// Keys of the first volume are from there on, and no others.
const FIRST_KEY: u64 = 1000;
/// Blocks of each volume.
const BLOCKS: u64 = 40;

/// Offsets of leaves of trees of blocks, old ones too, whose first key is from there on.
fn leaves(world: &World, from: u64) -> Vec<u64> {
    let content = world.metadata.content();
    let nodes = (LABEL_AREA_BYTES / SECTOR..).step_by(8).take(1024);
    let is_it = |at: &u64| {
        let Some(sector) = content.get(at) else { return false };
        let key = u64::from_le_bytes(sector[64..72].try_into().unwrap());
        sector[..6] == *b"TWTREE" && sector[14] == 0 && sector[15] == 18 && key >= from
    };
    nodes.filter(is_it).map(|at| at * SECTOR).collect()
}

/// Two volumes are deleted, and leaves of the first one cannot be read.
fn two_deleted(plant: PoolCanary) -> World {
    let mut world = World::new(Setup { blocks: 200, rows_max: Some(4), ..Setup::default() });
    let [a, b] = [2 * FIRST_KEY, BLOCKS].map(|blocks| world.create(blocks * BLOCK));
    world.open_volume(a);
    world.open_volume(b);
    world.write(a, FIRST_KEY * 8, BLOCKS * 8);
    world.wait();
    world.write(b, 0, BLOCKS * 8);
    world.wait();
    world.rest();
    world.open.clear();
    world.canary(plant);
    let leaves = leaves(&world, FIRST_KEY);
    assert!(leaves.len() >= 10, "{}", leaves.len());
    world.metadata.fail_reads_of(leaves);
    world.pool.0.borrow_mut().trees.forget_nodes();
    for volume in [a, b] {
        assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    }
    pass(&mut world, 60);
    world
}

/// So many seconds.
fn pass(world: &mut World, seconds: u64) {
    for _ in 0..10 * seconds {
        world.pass(100);
        world.turn();
    }
}

fn events(world: &World) -> Vec<PoolEvent> {
    let mut events = Vec::new();
    world.pool.poll_events(&mut events);
    events.retain(|event| *event == PoolEvent::Unreaped);
    events
}

#[test]
fn what_can_be_read_of_deleted_volumes_comes_back() {
    let mut world = two_deleted(PoolCanary::None);
    let report = world.pool.report();
    assert_eq!(report.data_used_bytes, BLOCKS * BLOCK);
    assert!(report.unreaped.is_some() && !report.is_reaping);
    assert_eq!(events(&world), [PoolEvent::Unreaped]);
    // It is tried again, less and less often, and nobody is told once more.
    let before = world.metadata.failed_reads();
    pass(&mut world, 1000);
    let rounds = (world.metadata.failed_reads() - before) / 10;
    assert!((1..=20).contains(&rounds), "{rounds}");
    assert_eq!(events(&world), []);
    // What is deleted meanwhile does not wait for that.
    let volume = world.create(BLOCK);
    world.open_volume(volume);
    world.write(volume, 0, 8);
    world.wait();
    world.open.clear();
    assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    pass(&mut world, 4);
    assert_eq!(world.pool.report().data_used_bytes, BLOCKS * BLOCK);
    world.metadata.fail_reads_of([]);
    pass(&mut world, 700);
    let report = world.pool.report();
    assert_eq!((report.data_used_bytes, report.unreaped), (0, None));
    assert_eq!(world.check(), []);
}

#[test]
fn one_that_keeps_those_behind_it_is_found() {
    let world = two_deleted(PoolCanary::ReapsInOrder);
    assert_eq!(world.pool.report().data_used_bytes, 2 * BLOCKS * BLOCK);
}

/// A repair gives up what cannot be read, and gives back the rest.
#[test]
fn a_repair_gives_up_what_can_never_be_read() {
    let world = two_deleted(PoolCanary::None);
    let World { setup, clock, data, metadata, pool, open, .. } = world;
    drop((pool, open));
    let setup = Setup { repairs: true, ..setup };
    let world = World::over(setup, data, metadata, clock);
    let mut rounds = 0;
    loop {
        let found = check(&world.pool);
        if found.is_empty() {
            break;
        }
        rounds += 1;
        assert!(rounds < 8, "{found:?}");
        let mut repair = PoolRepair::new(&found);
        while !repair.is_done() {
            if !repair.step(&world.pool).unwrap() {
                world.pool.poll();
            }
        }
        while !world.pool.is_idle() {
            world.pool.commit();
            world.pool.poll();
        }
    }
    assert_eq!(world.pool.report().data_used_bytes, 0);
}
