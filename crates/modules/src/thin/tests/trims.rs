//! Discards that were missing at a crash are done behind it.

use thinwire_volume::Op;

use super::super::*;
use super::disk::{Clock, Disk, NOBODYS, SECTOR};
use super::made::{BLOCK, METADATA};
use super::world::*;
use crate::meta::LABEL_AREA_BYTES;

const BLOCKS: u64 = 300;

/// A pool of which a crash has cut off the discards of a volume that was deleted; and the volume that is left.
fn cut_off() -> (World, u64) {
    let mut world = World::new(Setup { seed: 5, blocks: BLOCKS, ..Setup::default() });
    let [a, b] = [(); 2].map(|()| world.create(100 * BLOCK));
    for volume in [a, b, a, b] {
        world.open_volume(volume);
        let first = if world.done < 2 { 0 } else { 400 };
        world.write(volume, first, 400);
        world.wait();
    }
    world.rest();
    world.close(a);
    world.data.hang(Some(Op::Discard));
    assert_eq!(world.run(PoolOp::Delete { volume: a }), Some(PoolDone::Done));
    for _ in 0..200 {
        world.pool.commit();
        world.turn();
        world.pass(100);
    }
    assert_eq!(world.pool.report().data_used_bytes, 200 * BLOCK, "it waits for discards");
    (again(world), b)
}

/// The pool of a world that has died, or was let go of.
fn again(world: World) -> World {
    let repairs = world.setup.repairs;
    again_as(world, repairs)
}

fn again_as(world: World, repairs: bool) -> World {
    let clock: Clock = world.clock.clone();
    let bytes = LABEL_AREA_BYTES + BLOCKS * BLOCK;
    let data = Disk::new(bytes, world.data.content(), NOBODYS, &clock, 5);
    let metadata = Disk::new(LABEL_AREA_BYTES + METADATA, world.metadata.content(), 0, &clock, 5);
    let mut next = World::over(Setup { repairs, ..world.setup }, data, metadata, clock);
    (next.names, next.incarnations) = (world.names, world.incarnations);
    next.model = world.model;
    next
}

/// Blocks that hold somebody's bytes.
fn written(world: &World) -> u64 {
    let content = world.data.content();
    let first = LABEL_AREA_BYTES / SECTOR;
    let is_somebodys = |block: &u64| {
        content.get(&(first + block * 8)).is_some_and(|sector| sector[..8] != NOBODYS.to_le_bytes())
    };
    (0..BLOCKS).filter(is_somebodys).count() as u64
}

#[test]
fn what_a_crash_has_kept_from_being_discarded_is_discarded_behind_it() {
    let (mut world, volume) = cut_off();
    assert_eq!(written(&world), 200);
    assert_eq!(world.pool.report().data_used_bytes, 100 * BLOCK);
    for _ in 0..100 {
        world.pass(20);
        world.turn();
    }
    assert_eq!(written(&world), 100);
    let discarded: u64 = world.data.discards().iter().map(|(_, len)| len).sum();
    assert_eq!(discarded, 200 * BLOCK, "what is free, and each once");
    world.read_all(volume);
    world.rest();
    world.is_right();
    assert_eq!(world.pool.report().data_used_bytes, 100 * BLOCK);
    assert_eq!(world.check(), []);
    assert_eq!(world.pool.turn(world.now), Time::NEVER, "nothing is left to do");
}

/// Blocks are written while what is free is slowly discarded.
fn write_beside(plant: PoolCanary) -> Option<String> {
    let (mut world, volume) = cut_off();
    world.canary(plant);
    world.open_volume(volume);
    world.data.hang(Some(Op::Discard));
    let new = world.create(90 * BLOCK);
    world.open_volume(new);
    world.pass(20);
    for first in (0..90 * 8).step_by(80) {
        world.write(new, first, 80);
        for _ in 0..10 {
            world.turn();
            world.pass(20);
        }
    }
    world.data.hang(None);
    world.wait();
    world.rest();
    for volume in [volume, new] {
        world.read_all(volume);
    }
    world.wrong
}

#[test]
fn what_is_being_discarded_is_given_to_nobody() {
    assert_eq!(write_beside(PoolCanary::None), None);
}

#[test]
fn a_block_that_is_given_out_while_it_is_trimmed_is_found() {
    assert!(write_beside(PoolCanary::TrimsUnheld).is_some());
}

/// A pool that ends in order before all was discarded goes on when it is opened again, and then never.
#[test]
fn what_is_left_at_an_end_in_order_is_discarded_later() {
    let (mut world, _) = cut_off();
    for openings in [1, 2] {
        {
            let core = &mut *world.pool.0.borrow_mut();
            let label = core.trees.label_mut();
            (label.opening, label.openings) = ([openings as u8; 16], openings);
        }
        world.pool.wind_up();
        for _ in 0..300 {
            world.turn();
        }
        assert!(world.pool.is_wound_up());
        assert_eq!(written(&world), 200);
        world = again(world);
        let left = world.pool.0.borrow().trim.next;
        assert_eq!(left, Some(0), "opening {openings}");
    }
    for _ in 0..100 {
        world.pass(20);
        world.turn();
    }
    assert_eq!(written(&world), 100);
    {
        let core = &mut *world.pool.0.borrow_mut();
        core.trees.label_mut().openings = 3;
    }
    world.pool.wind_up();
    for _ in 0..300 {
        world.turn();
    }
    let world = again(world);
    assert_eq!(world.pool.0.borrow().trim.next, None);
}

/// Discards that take long are waited for, not asked for.
#[test]
fn a_pool_sleeps_while_it_waits_for_discards() {
    let (mut world, _) = cut_off();
    world.data.hang(Some(Op::Discard));
    for _ in 0..50 {
        world.pass(20);
        world.turn();
        let now = world.now;
        assert!(world.pool.turn(now) > now, "it spins");
    }
    assert!(written(&world) > 100, "some are under way");
    world.data.hang(None);
    for _ in 0..100 {
        world.pass(20);
        world.turn();
    }
    assert_eq!(written(&world), 100);
}

/// What nothing is discarded in leaves it to the next opening.
#[test]
fn a_repair_behind_a_crash_leaves_what_is_to_be_discarded() {
    let (world, _) = cut_off();
    let mut world = again_as(world, true);
    for _ in 0..100 {
        world.pass(20);
        world.turn();
    }
    assert_eq!(written(&world), 200, "nothing is discarded in a repair");
    {
        let core = &mut *world.pool.0.borrow_mut();
        let label = core.trees.label_mut();
        (label.opening, label.openings) = ([1; 16], 1);
    }
    world.pool.wind_up();
    for _ in 0..300 {
        world.turn();
    }
    assert!(world.pool.is_wound_up());
    let mut world = again_as(world, false);
    for _ in 0..100 {
        world.pass(20);
        world.turn();
    }
    assert_eq!(written(&world), 100);
}
