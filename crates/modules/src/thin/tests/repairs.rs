//! Pools that a check has found something wrong with are put right, and nothing that serves is touched.

use thinwire_volume::Op;

use super::super::*;
use super::disk::{Clock, Content, Disk, NOBODYS, SECTOR};
use super::made::{BLOCK, METADATA, check};
use super::world::*;
use crate::meta::LABEL_AREA_BYTES;
use crate::meta::tree::TreeFinding;

/// A volume, a snapshot of it, and another one.
fn made() -> (World, [u64; 3]) {
    let mut world = World::new(Setup { blocks: 900, ..Setup::default() });
    let a = world.create(300 * BLOCK);
    world.open_volume(a);
    for first in (0..300 * 8).step_by(200) {
        world.write(a, first, 200);
        world.wait();
    }
    let b = world.snapshot(a);
    world.write(a, 0, 8);
    let c = world.create(200 * BLOCK);
    world.open_volume(c);
    world.write(c, 0, 1600);
    world.wait();
    world.rest();
    (world, [a, b, c])
}

/// Makes counts wrong.
fn recount(world: &mut World, findings: &[TreeFinding]) {
    {
        let core = &mut *world.pool.0.borrow_mut();
        let mut change = core.trees.change_to_free().unwrap();
        for finding in findings {
            assert_eq!(change.recount(finding), Ok(true));
        }
        change.apply().unwrap();
        core.commits.on_change(core.now);
    }
    world.rest();
}

/// The pool of a world, opened again to be repaired, with some of its metadata damaged.
fn again(world: World, damaged: &[u64], repairs: bool) -> World {
    let clock: Clock = world.clock.clone();
    let bytes = LABEL_AREA_BYTES + world.setup.blocks * BLOCK;
    let mut metadata: Content = world.metadata.content();
    for node in damaged {
        let at = (LABEL_AREA_BYTES / SECTOR) + node * 8;
        let mut sector = *metadata[&at];
        sector[100] ^= 4;
        metadata.insert(at, std::rc::Rc::new(sector));
    }
    let data = Disk::new(bytes, world.data.content(), NOBODYS, &clock, 1);
    let metadata = Disk::new(LABEL_AREA_BYTES + METADATA, metadata, 0, &clock, 1);
    let (model, setup) = (world.model, Setup { repairs, ..world.setup });
    let mut next = World::over(setup, data, metadata, clock);
    (next.names, next.incarnations) = (world.names, world.incarnations);
    next.model = model;
    next
}

/// What is left after it was repaired as often as that finds something, and how much was done.
pub(super) fn repair(pool: &ThinPool) -> (Vec<PoolFinding>, u64) {
    let mut done = 0;
    for _ in 0..8 {
        let found = check(pool);
        let mut repair = PoolRepair::new(&found);
        while !repair.is_done() {
            if !repair.step(pool).unwrap() {
                pool.poll();
            }
        }
        while !pool.is_idle() {
            pool.commit();
            pool.poll();
        }
        done += repair.done();
        if repair.done() == 0 {
            return (found, done);
        }
    }
    panic!("it finds more and more");
}

fn blocks_of(world: &World, volume: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        let rows = {
            let core = &mut *world.pool.0.borrow_mut();
            let blocks = core.entries[&volume].row.blocks();
            core.trees.rows(blocks, from..=u64::MAX, &mut found)
        };
        match rows {
            Ok(rows) => next = rows,
            Err(stop) => {
                assert_eq!(stop, crate::meta::tree::TreeStop::Wait);
                world.pool.poll();
            }
        }
    }
    found.into_iter().map(|(_, mapping): (u64, rows::Mapping)| mapping.block).collect()
}

#[test]
fn what_is_counted_wrongly_is_counted_anew() {
    let (mut world, [a, b, c]) = made();
    let (of_a, of_c) = (blocks_of(&world, a), blocks_of(&world, c));
    let used = world.pool.report().data_used_bytes;
    let block = |block, says, has| TreeFinding::BlockCount { block, says, has };
    // The count becomes what the check has supposedly found.
    let wrong = [
        block(of_a[5], 2, 5),
        block(of_c[3], 1, 0),
        block(of_c[4], 1, 0),
        block(890, 0, 1),
        block(891, 0, 7),
    ];
    recount(&mut world, &wrong);
    let found = world.check();
    let right = |of: &TreeFinding| match *of {
        TreeFinding::BlockCount { block, says, has } => {
            PoolFinding::Trees(TreeFinding::BlockCount { block, says: has, has: says })
        }
        ref other => PoolFinding::Trees(other.clone()),
    };
    for wrong in &wrong {
        assert!(found.contains(&right(wrong)), "{wrong:?} is not among {found:?}");
    }
    let world = again(world, &[], true);
    assert_eq!(repair(&world.pool), (vec![], wrong.len() as u64));
    assert_eq!(world.pool.report().data_used_bytes, used);
    let mut world = again(world, &[], false);
    // All that there is to be had goes to somebody who fills it.
    world.open_volume(c);
    world.ask(c, Op::Write, Default::default(), 0, 1600);
    world.wait();
    let full = world.create(600 * BLOCK);
    world.open_volume(full);
    for first in (0..600 * 8).step_by(8) {
        world.write(full, first, 8);
        world.wait();
    }
    for volume in [a, b, c] {
        world.read_all(volume);
    }
    world.is_right();
}

#[test]
fn nodes_that_are_in_use_and_free_by_their_count_are_not_lost_to_the_repair() {
    let (mut world, volumes) = made();
    // All nodes of the last volume, and what its leaves refer to is right.
    let of = blocks_of(&world, volumes[2]);
    assert!(of.len() > 100);
    let root = world.pool.0.borrow().entries[&volumes[2]].row.root.node;
    recount(&mut world, &[TreeFinding::NodeCount { node: root, says: 1, has: 0 }]);
    let mut world = again(world, &[], true);
    assert_eq!(repair(&world.pool).0, vec![]);
    for volume in volumes {
        world.read_all(volume);
    }
    world.is_right();
}

#[test]
fn what_damage_has_kept_of_a_deleted_volume_comes_back() {
    let (world, [a, b, c]) = made();
    let before = world.pool.report().data_used_bytes;
    let root = world.pool.0.borrow().entries[&c].row.root.node;
    let mut world = again(world, &[root], false);
    assert!(
        world
            .check()
            .iter()
            .any(|found| matches!(found, PoolFinding::Lost { volume, .. } if *volume == c))
    );
    // While there is damage, nothing is taken for free.
    assert_eq!(repair(&world.pool).1, 0);
    assert_eq!(world.run(PoolOp::Delete { volume: c }), Some(PoolDone::Done));
    world.rest();
    assert_eq!(world.pool.report().data_used_bytes, before, "nobody knows what it had");
    let mut world = again(world, &[], true);
    let (left, done) = repair(&world.pool);
    assert_eq!(left, vec![]);
    assert!(done > 200, "{done}");
    assert_eq!(world.pool.report().data_used_bytes, before - 200 * BLOCK);
    for volume in [a, b] {
        world.read_all(volume);
    }
    world.is_right();
}

/// A block of one volume is free by its count, another one is given it, and writes it.
fn overlapping() -> (World, [u64; 2], u64) {
    let (mut world, [_, _, c]) = made();
    let block = blocks_of(&world, c)[3];
    recount(&mut world, &[TreeFinding::BlockCount { block, says: 1, has: 0 }]);
    let mut world = again(world, &[], false);
    let other = world.create(600 * BLOCK);
    world.open_volume(other);
    // Until it has that one.
    for first in (0..600 * 8).step_by(8) {
        world.write(other, first, 8);
        world.wait();
        if blocks_of(&world, other).contains(&block) {
            world.rest();
            return (world, [c, other], block);
        }
    }
    panic!("it is given to nobody");
}

/// Whether what one of them writes from now on is read by the other.
fn write_apart(mut world: World, volumes: [u64; 2], block: u64) -> bool {
    let key = |world: &World, of| {
        blocks_of(world, of).iter().position(|at| *at == block).expect("it has it") as u64
    };
    let keys = volumes.map(|volume| key(&world, volume));
    for (volume, key) in volumes.into_iter().zip(keys) {
        world.open_volume(volume);
        world.write(volume, key * 8, 8);
        world.wait();
    }
    for (volume, key) in volumes.into_iter().zip(keys) {
        world.ask(volume, Op::Read, Default::default(), key * 8, 8);
        world.wait();
    }
    world.wrong.is_none()
}

#[test]
fn who_had_a_block_in_common_does_not_write_over_the_other_behind_a_repair() {
    let (mut world, volumes, block) = overlapping();
    let found = world.check();
    let overlap = PoolFinding::Overlap { block, volumes: volumes.to_vec() };
    assert!(found.contains(&overlap), "{found:?}");
    let world = again(world, &[], true);
    assert_eq!(repair(&world.pool).0, []);
    assert!(write_apart(again(world, &[], false), volumes, block));
}

/// Counts alone are not all: as long as both take it for their own, each writes over the other.
#[test]
fn a_repair_that_leaves_two_owners_is_found() {
    let (mut world, volumes, block) = overlapping();
    let is_count = |finding: &PoolFinding| matches!(finding, PoolFinding::Trees(_));
    let counts: Vec<_> = world.check().into_iter().filter(is_count).collect();
    let world = again(world, &[], true);
    let mut repair = PoolRepair::new(&counts);
    while !repair.is_done() {
        if !repair.step(&world.pool).unwrap() {
            world.pool.poll();
        }
    }
    let mut world = again(world_at_rest(world), &[], false);
    let overlap = PoolFinding::Overlap { block, volumes: volumes.to_vec() };
    assert_eq!(world.check(), [overlap]);
    assert!(!write_apart(world, volumes, block));
}

fn world_at_rest(mut world: World) -> World {
    world.rest();
    world
}

/// All nodes of the maps of counts.
fn nodes_of_maps(world: &World) -> Vec<u64> {
    let first = LABEL_AREA_BYTES / SECTOR;
    let content = world.metadata.content();
    let mut nodes = Vec::new();
    for (at, sector) in
        content.iter().filter(|(at, _)| *at >= first && (*at - first).is_multiple_of(8))
    {
        // The kind; it may be one that is not used any more.
        if sector[..6] == *b"TWTREE" && matches!(sector[15], 1 | 2) {
            nodes.push((at - first) / 8);
        }
    }
    nodes
}

#[test]
fn a_damaged_map_of_counts_is_made_anew_from_what_it_counts() {
    let (mut world, volumes) = made();
    let used = world.pool.report().data_used_bytes;
    let mut found = [0; 2];
    for which in 0..4 {
        // Each has moved behind the repair before.
        let state = *world.pool.0.borrow().trees.committed();
        let damaged = match which {
            0 => vec![state.nodes.map.node],
            1 => vec![state.blocks.map.node],
            2 => vec![state.nodes.map.node, state.blocks.map.node],
            _ => nodes_of_maps(&world),
        };
        world = again(world, &damaged, true);
        let before = world.check();
        for finding in &before {
            let PoolFinding::Trees(finding) = finding else { panic!("{finding}") };
            found[finding.of_map().expect("only maps are damaged")] += 1;
        }
        let (left, done) = repair(&world.pool);
        assert_eq!((left, done > 0), (vec![], true), "node {damaged:?}");
        assert_eq!(world.pool.report().data_used_bytes, used);
        world = again(world, &[], false);
        for volume in volumes {
            world.read_all(volume);
        }
        world.is_right();
    }
    assert!(found[0] > 1 && found[1] > 1, "{found:?}");
    // Nobody is given what is in use.
    let full = world.create(600 * BLOCK);
    world.open_volume(full);
    for first in (0..390 * 8).step_by(8) {
        world.write(full, first, 8);
        world.wait();
    }
    for volume in volumes {
        world.read_all(volume);
    }
    world.is_right();
}
