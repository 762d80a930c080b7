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

/// Wherever a commit is when its user learns of a loss, what is there later is the commit before, unless its label was under way.
#[test]
fn a_commit_that_is_given_up_stops_where_it_is() {
    let (mut stopped, mut was_told) = (0, false);
    for turns in 0..60 {
        let mut world = prepared(3, 4096);
        world.part.is_prompt = false;
        world.data.is_prompt = false;
        let before = world.trees.committed().generation;
        world.begin_commit().unwrap();
        (0..turns).for_each(|_| _ = world.turn());
        if world.committed.is_some() {
            break;
        }
        world.trees.stop_at_loss();
        let writes = world.part.writes;
        (0..200).for_each(|_| _ = world.turn());
        was_told |= world.committed == Some(Err(TreeFault::Lost));
        assert_eq!(world.trees.failed(), Some(&TreeFault::Lost));
        assert!(world.part.writes <= writes + 32, "it goes on");
        let (generation, _) = reopened(&world, 0xff);
        stopped += usize::from(generation == before);
        assert!(generation <= before + 1);
        // Without what was not durable it is as before.
        assert_eq!(reopened(&world, 0).0 - before, generation - before);
    }
    assert!(stopped > 5 && was_told, "{stopped}");
}

#[test]
fn rows_that_are_a_trees_own_are_told_from_shared_ones() {
    let setup = Setup { rows_max: Some(4), ..Setup::default() };
    let mut world = World::new(setup);
    let id = world.create().unwrap();
    (0..100).for_each(|key| world.write(id, key).unwrap());
    let own = |world: &mut World, id| {
        let volumes = world.volumes;
        let row = world.look(|trees| trees.lookup(volumes, id)).unwrap().unwrap();
        let tree = TreeRoot::<super::world::Mapping>::new(&super::world::KINDS[1], row.root);
        let (mut rows, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            next = world.look(|trees| trees.own_rows(tree, from..=u64::MAX, &mut rows)).unwrap();
        }
        rows.len()
    };
    assert_eq!(own(&mut world, id), 100);
    let other = world.share(id).unwrap();
    assert_eq!([id, other].map(|id| own(&mut world, id)), [0, 0]);
    world.write(id, 50).unwrap();
    // One leaf each was copied on the way.
    let owned = own(&mut world, id);
    assert!((1..=4).contains(&owned), "{owned}");
    assert_eq!(own(&mut world, other), owned);
    world.delete(other).unwrap();
    while world.reap().unwrap() {}
    assert_eq!(own(&mut world, id), 100);
}
