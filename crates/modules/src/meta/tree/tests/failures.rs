//! I/O errors: a commit that fails is the last, and the one before stands.

use super::disk::TestDisk;
use super::model::step;
use super::world::{Setup, World};
use super::*;
use crate::meta::{LABEL_AREA_BYTES, LabelError};

fn prepared(seed: u64, cache_nodes: usize) -> World {
    let setup = Setup { seed, rows_max: Some(4), cache_nodes, nodes: 1024, ..Setup::default() };
    let mut world = World::new(setup);
    (0..60).for_each(|_| step(&mut world, 60));
    world.commit_now().unwrap();
    let id = world.create().unwrap();
    (0..20).for_each(|key| world.write(id, key).unwrap());
    world
}

/// What is there if the machine dies now, with or without what may be lost.
fn reopened(world: &World, left: u8) -> (u64, super::world::Model) {
    let now = world.clock.get();
    let [part, data] = [&world.part, &world.data].map(|disk| {
        let bytes = disk.geometry.bytes;
        TestDisk::new(bytes, disk.crash_at(now).with(|_| left), &Default::default(), 1)
    });
    let mut found = World::open(world.setup.clone(), part, data, Default::default());
    assert_eq!(found.check(1 << 16), []);
    (found.trees.committed().generation, found.dump().unwrap())
}

/// Fails one I/O of a commit; whether that has failed it.
fn fail(arm: impl Fn(&mut World)) -> bool {
    let mut world = prepared(3, 4096);
    let (before, now) = (world.trees.committed().generation, world.model.clone());
    let (_, _, old) = world.history.begun.last().unwrap().clone();
    arm(&mut world);
    match world.commit_now() {
        Ok(()) => {
            assert_eq!(reopened(&world, 0), (before + 1, now));
            return false;
        }
        Err(TreeStop::Fault(fault)) => {
            assert!(!fault.to_string().is_empty());
            assert_eq!(world.trees.failed(), Some(&fault));
            let may_be_new = matches!(fault, TreeFault::Label(LabelError::Unwritten { .. }));
            for left in [0, 0xff] {
                let (generation, found) = reopened(&world, left);
                let is_new = generation == before + 1 && found == now;
                assert!(generation == before && found == old || may_be_new && is_new, "{fault}");
            }
        }
        Err(stop) => panic!("{stop}"),
    }
    // It sticks; what was applied is seen all the same.
    let failed = TreeStop::Fault(world.trees.failed().unwrap().clone());
    assert_eq!(world.trees.change().map(|_| ()), Err(failed.clone()));
    assert_eq!(world.trees.change_to_free().map(|_| ()), Err(failed.clone()));
    assert_eq!(world.begin_commit(), Err(failed));
    assert_eq!(world.dump().unwrap(), world.model);
    true
}

#[test]
fn a_commit_of_which_a_write_fails_is_the_last() {
    let mut at = 0;
    while fail(|world| world.part.fail_write = Some(at)) {
        at += 1;
    }
    // Nodes, and a label.
    assert!(at > 15, "{at} writes");
}

#[test]
fn so_is_one_of_which_a_flush_fails() {
    assert!(fail(|world| world.data.fail_flush = Some(0)));
    assert!(fail(|world| world.part.fail_flush = Some(0)));
    assert!(!fail(|world| world.part.fail_flush = Some(1)));
}

#[test]
fn a_node_that_cannot_be_read_is_named_and_read_again_for_who_asks_again() {
    let mut world = prepared(5, 4096);
    world.commit_now().unwrap();
    let World { setup, part, data, model, .. } = world;
    let mut world = World::open(setup, part, data, model);
    let root = world.volumes.at.node;
    let offset = LABEL_AREA_BYTES + root * NODE_BYTES as u64;
    world.part.fail_reads_of.insert(offset);
    for _ in 0..2 {
        let stop = world.dump().unwrap_err();
        let TreeStop::Fault(TreeFault::Node { tree, node, fault: NodeFault::Unread(_) }) = stop
        else {
            panic!("{stop}")
        };
        assert_eq!((tree, node), ("volumes", root));
    }
    world.part.fail_reads_of.clear();
    assert_eq!(world.dump().unwrap(), world.model);
}
