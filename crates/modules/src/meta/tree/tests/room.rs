//! Parts that run full (rule 14), caches that are small, and what is given back.

use super::model::step;
use super::world::{KINDS, Mapping, Plain, Setup, World};
use super::*;
use crate::meta::tree::cache::Standing;

/// Deletes all that there is, and gives it back.
fn delete_all(world: &mut World) {
    for id in world.model.keys().copied().collect::<Vec<_>>() {
        world.delete(id).unwrap();
    }
    while world.reap().unwrap() {}
    world.commit_now().unwrap();
    assert_eq!(world.check(1 << 16), []);
    let TreeState { nodes, blocks, doomed, .. } = *world.trees.committed();
    assert_eq!((blocks.used, doomed), (0, TreePointer::NONE));
    // The map of nodes counts itself; that of blocks has no rows.
    assert_eq!((nodes.used, blocks.map_nodes), (nodes.map_nodes, 0));
}

/// Writes until no node is left, then deletes all.
fn fill(seeds: std::ops::Range<u64>, canary: TreeCanary) {
    for seed in seeds {
        let setup = Setup {
            seed,
            nodes: 900 + 60 * seed,
            blocks: 100_000,
            rows_max: Some(4),
            open_nodes_max: 200,
            canary,
            ..Setup::default()
        };
        let mut world = World::new(setup);
        let mut id = world.create().unwrap();
        // Keys far apart, so that each takes a row of its own in the map, too.
        let stop = loop {
            let key = world.random.next();
            let done = match world.random.below(20) {
                0 => world.share(id).map(|new| id = new),
                _ => world.write(id, key),
            };
            if let Err(stop) = done {
                break stop;
            }
        };
        assert_eq!(stop, TreeStop::NoNodes);
        // What may not find room does not begin; all else goes on.
        assert_eq!(world.write(id, 1), Err(TreeStop::NoNodes));
        assert_eq!(world.dump().unwrap(), world.model);
        world.commit_now().unwrap();
        assert_eq!(world.write(id, 1), Err(TreeStop::NoNodes));
        assert_eq!(world.check(1 << 16), []);
        let keys: Vec<u64> = world.model[&id].keys().copied().collect();
        for key in keys.into_iter().take(10) {
            world.remove(id, key).unwrap();
            world.commit_now().unwrap();
        }
        delete_all(&mut world);
        let id = world.create().unwrap();
        (0..100).for_each(|key| world.write(id, key).unwrap());
        world.commit_now().unwrap();
        assert_eq!(world.dump().unwrap(), world.model);
    }
}

#[test]
fn without_nodes_commits_and_deletions_go_on() {
    fill(0..6, TreeCanary::None);
}

#[test]
#[should_panic = "the commit does not end"]
fn a_look_into_a_map_that_is_being_changed_is_found() {
    fill(0..6, TreeCanary::LooksInChangingMap);
}

#[test]
fn without_blocks_the_rest_goes_on_and_what_is_given_back_is_found() {
    let mut world = World::new(Setup { blocks: 100, ..Setup::default() });
    let id = world.create().unwrap();
    (0..100).for_each(|key| world.write(id, key).unwrap());
    assert_eq!(world.write(id, 100), Err(TreeStop::NoBlocks));
    assert_eq!(world.trees.free()[1], 0);
    world.remove(id, 7).unwrap();
    // Free only after a commit, which the attempt makes.
    let before = world.trees.committed().generation;
    world.write(id, 100).unwrap();
    assert!(world.trees.committed().generation > before);
    assert_eq!(world.write(id, 101), Err(TreeStop::NoBlocks));
    world.remove_range(id, 0, 49).unwrap();
    (200..249).for_each(|key| world.write(id, key).unwrap());
    world.commit_now().unwrap();
    assert_eq!(world.dump().unwrap(), world.model);
    delete_all(&mut world);
}

#[test]
fn what_has_grown_is_used_and_is_there_after_a_commit() {
    let setup = Setup { nodes: 700, blocks: 100, rows_max: Some(4), ..Setup::default() };
    let mut world = World::new(setup);
    let id = world.create().unwrap();
    (0..100).for_each(|key| world.write(id, key).unwrap());
    assert_eq!(world.write(id, 100), Err(TreeStop::NoBlocks));
    let (nodes, blocks) = (5_000, 1_000);
    world.part.geometry.bytes = super::world::part_bytes(nodes);
    world.data.geometry.bytes = blocks * NODE_BYTES as u64;
    let label = world.trees.label_mut();
    label.parts[0].bytes = nodes * NODE_BYTES as u64;
    label.whole_bytes = label.parts[0].bytes;
    world.trees.grow(nodes, blocks).unwrap();
    assert!(world.trees.has_changes());
    (100..1_000).for_each(|key| world.write(id, key).unwrap());
    world.commit_now().unwrap();
    assert!(!world.trees.has_changes());
    let World { setup, part, data, model, .. } = world;
    let mut world = World::open(setup, part, data, model);
    assert_eq!(world.trees.committed().nodes.total, nodes);
    assert!(world.trees.free()[0] > 700);
    assert_eq!(world.check(1 << 16), []);
    assert_eq!(world.dump().unwrap(), world.model);
}

#[test]
fn a_freed_block_waits_for_whoever_discards_it() {
    let mut world = World::new(Setup { blocks: 10, ..Setup::default() });
    world.trees.config.keeps_freed = true;
    let id = world.create().unwrap();
    (0..10).for_each(|key| world.write(id, key).unwrap());
    world.commit_now().unwrap();
    world.remove_range(id, 0, 4).unwrap();
    let mut freed = Vec::new();
    world.trees.take_freed(&mut freed);
    assert_eq!(freed, []);
    // Not before the label of before is gone.
    world.commit_now().unwrap();
    world.trees.take_freed(&mut freed);
    assert_eq!(freed, []);
    assert!(!world.trees.has_changes() && !world.trees.is_in_both());
    world.commit_now().unwrap();
    assert!(world.trees.is_in_both());
    world.trees.take_freed(&mut freed);
    assert_eq!(freed.len(), 5);
    assert_eq!(world.write(id, 20), Err(TreeStop::NoBlocks));
    let block = freed.pop().unwrap();
    world.trees.give_out(block);
    world.write(id, 20).unwrap();
    let root = world.all_rows(world.volumes).unwrap()[0].1.root;
    let tree = TreeRoot::<Mapping>::new(&KINDS[1], root);
    let mapping = world.look(|trees| trees.lookup(tree, 20)).unwrap();
    assert_eq!(mapping.map(|mapping| mapping.block), Some(block));
    assert_eq!(world.look(|trees| trees.block_count(block)), Ok(1));
}

#[test]
fn whoever_waits_comes_on_however_small_the_cache_is() {
    for seed in 0..4 {
        let setup = Setup {
            seed,
            rows_max: Some(4),
            cache_nodes: 2,
            open_nodes_max: 60,
            is_prompt: false,
            ..Setup::default()
        };
        let mut world = World::new(setup);
        (0..300).for_each(|_| step(&mut world, 200));
        world.commit_now().unwrap();
        assert_eq!(world.dump().unwrap(), world.model);
        assert_eq!(world.check(1 << 16), []);
        // What is in memory is bounded by what one lookup needs, not by what was ever looked at.
        let clean = world.trees.cache.count(Standing::Clean);
        assert!(clean < 40, "{clean} nodes");
    }
}

#[test]
fn a_thousand_snapshots_cost_a_root_each_and_all_comes_back() {
    let mut world = World::new(Setup { nodes: 20_000, blocks: 20_000, ..Setup::default() });
    let id = world.create().unwrap();
    (0..5_000).for_each(|key| world.write(id, key).unwrap());
    world.commit_now().unwrap();
    let used = world.trees.committed().nodes.used;
    let mut snapshots = Vec::new();
    for at in 0..1_000 {
        let open = |world: &World| world.trees.cache.count(Standing::Open);
        let before = open(&world);
        snapshots.push(world.share(id).unwrap());
        // Unless a commit came between.
        assert!(open(&world) <= before + 4, "{} nodes for a snapshot", open(&world) - before);
        world.write(id, at * 5).unwrap();
        if at % 100 == 99 {
            world.commit_now().unwrap();
        }
    }
    // A snapshot of a snapshot.
    let last = world.share(snapshots[500]).unwrap();
    world.write(last, 3).unwrap();
    world.commit_now().unwrap();
    assert_eq!(world.check(1 << 16), []);
    for id in snapshots {
        world.delete(id).unwrap();
    }
    world.delete(last).unwrap();
    let mut steps = 0;
    while world.reap().unwrap() {
        steps += 1;
        if steps % 50 == 0 {
            world.commit_now().unwrap();
        }
    }
    world.commit_now().unwrap();
    assert_eq!(world.check(1 << 16), []);
    assert_eq!(world.trees.committed().blocks.used, 5_000);
    assert!(world.trees.committed().nodes.used <= used + 10);
    assert_eq!(world.dump().unwrap(), world.model);
    delete_all(&mut world);
}

/// Counts of blocks that lie far apart change with two leaves that are copied, two in each node of their map, which become two nodes.
fn copy_scattered_leaves(canary: TreeCanary) {
    const BLOCKS: u64 = 90_000;
    /// Half of the blocks whose rows of high counts fill a node of the map.
    const APART: u64 = 168;
    let setup = Setup { nodes: 3_300, blocks: BLOCKS, canary, ..Setup::default() };
    let mut world = World::new(setup);
    let small = world.create().unwrap();
    // All blocks are in use, and every other one by many.
    for first in (0..BLOCKS).step_by(5_000) {
        let taken = world.run(true, |change, _| {
            for _ in first..(first + 5_000).min(BLOCKS - 4_000) {
                let block = change.take_block()?;
                for _ in 0..block % 2 * 2 {
                    change.share_block(block)?;
                }
            }
            Ok(())
        });
        taken.unwrap();
        world.commit_now().unwrap();
    }
    // Two leaves refer to those that two have, two for each node of the map; two trees have them.
    let leaf = world.run(true, |change, _| {
        let mut tree = TreeRoot::<Plain>::empty(&KINDS[2]);
        for key in 0..500 {
            change.share_block(key * APART)?;
            tree = change.insert(tree, key, &Plain(key * APART))?.0;
        }
        change.share(tree)
    });
    let leaf = leaf.unwrap();
    world.write(small, 0).unwrap();
    world.commit_now().unwrap();
    assert!(world.trees.committed().blocks.map_nodes > 250);
    // As long as there is room for anything, with nothing that a commit has to bring into the maps.
    loop {
        let shared = world.share(small);
        let written = shared.and_then(|_| world.write(small, 0));
        world.commit_now().unwrap();
        if written.is_err() {
            assert_eq!(written, Err(TreeStop::NoNodes));
            break;
        }
    }
    // Who has begun before may end, with what is kept for that; who has no room fails, and nothing else does.
    let copied = world.run(true, |change, _| {
        let one = change.insert(leaf, 0, &Plain(1))?.0;
        Ok(change.insert(one, 499, &Plain(3))?.0)
    });
    assert!(copied.is_ok(), "{copied:?}");
    world.commit_now().unwrap();
    // And what is there can be given back.
    for tree in [leaf, copied.unwrap()] {
        world.run(true, |change, _| change.delete(tree)).unwrap();
        while world.reap().unwrap() {
            world.commit_now().unwrap();
        }
        world.commit_now().unwrap();
    }
}

#[test]
fn what_one_change_adds_to_the_maps_is_kept_for_it() {
    copy_scattered_leaves(TreeCanary::None);
}

#[test]
#[should_panic = "NoReserve"]
fn a_reserve_that_is_too_small_is_found() {
    copy_scattered_leaves(TreeCanary::KeepsTooLittle);
}
