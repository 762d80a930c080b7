//! A thousand snapshots.

use thinwire_volume::{IoFlags, Op};

use super::super::*;
use super::made::BLOCK;
use super::world::*;

/// Each costs a few nodes, whatever the size of the volume, and all come back, while somebody writes.
#[test]
fn a_thousand_snapshots_are_taken_and_deleted() {
    let mut world = World::new(Setup { blocks: 3000, metadata: 64 << 20, ..Setup::default() });
    let volume = world.create(600 * BLOCK);
    world.open_volume(volume);
    for first in (0..600 * 8).step_by(240) {
        world.write(volume, first, 240);
        world.wait();
    }
    let mut snapshots = Vec::new();
    let mut outstanding = 0;
    for at in 0..1000_u64 {
        let (name, incarnation) = (world.name(), world.incarnation());
        let before = world.op_results.len();
        world.begin(PoolOp::Snapshot { volume, name, incarnation, at });
        world.write(volume, at % 600 * 8, 8);
        while world.has_op() {
            world.turn();
        }
        let Some(PoolDone::Created { volume: snapshot }) = world.op_results.get(before) else {
            panic!("{:?}", world.op_errors)
        };
        snapshots.push(*snapshot);
        outstanding = outstanding.max(world.outstanding());
        // What each of a thousand volumes holds is looked at for some of them only.
        if at % 100 != 0 {
            world.model.remove(snapshot);
        }
    }
    world.wait();
    assert!(outstanding < 10, "writes wait for more than one snapshot: {outstanding}");
    assert_eq!(world.failed.len(), 0, "{:?}", world.failed);
    let report = world.pool.report();
    assert_eq!(report.volumes.len(), 1001);
    // The volume, and a block that was written behind each snapshot.
    assert_eq!(report.data_used_bytes, 1600 * BLOCK);
    let kept: Vec<u64> = snapshots.iter().copied().step_by(100).collect();
    for &snapshot in &kept {
        world.read_all(snapshot);
        world.open.remove(&snapshot);
    }
    world.read_all(volume);
    world.is_right();
    world.rest();
    assert_eq!(world.check(), []);
    for (at, snapshot) in (0..).zip(snapshots) {
        world.begin(PoolOp::Delete { volume: snapshot });
        world.ask(volume, Op::Write, IoFlags::default(), at % 600 * 8 + 2, 3);
        while world.has_op() {
            world.turn();
        }
    }
    assert_eq!(world.op_errors, []);
    world.wait();
    world.rest();
    assert_eq!(world.pool.report().data_used_bytes, 600 * BLOCK);
    assert_eq!(world.check(), []);
    world.read_all(volume);
    world.is_right();
}

/// Nodes that a snapshot takes of the metadata of a volume of so many blocks, at most.
fn nodes_of_snapshots(blocks: u64) -> u64 {
    let setup = Setup { blocks: 5000, rows_max: Some(8), metadata: 64 << 20, ..Setup::default() };
    let mut world = World::new(setup);
    let volume = world.create(blocks * BLOCK);
    world.open_volume(volume);
    for first in (0..blocks * 8).step_by(240) {
        world.write(volume, first, 240.min(blocks * 8 - first));
        world.wait();
    }
    world.rest();
    let used = |world: &World| world.pool.0.borrow().trees.committed().nodes.used;
    let mut most = 0;
    for _ in 0..20 {
        let before = used(&world);
        world.snapshot(volume);
        world.rest();
        most = most.max(used(&world).saturating_sub(before));
    }
    most
}

#[test]
fn a_snapshot_takes_as_many_nodes_of_a_small_volume_as_of_a_large_one() {
    let (small, large) = (nodes_of_snapshots(30), nodes_of_snapshots(3000));
    // A row of a volume, a name, and a count; each may make two nodes of one, and so may those above.
    assert!(large <= small + 2 && large < 12, "{small} and {large} nodes");
}
