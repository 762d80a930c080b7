//! Many trees, written, shared, cut and deleted at random, against maps in memory.

use super::world::{Model, Setup, World};
use super::*;

/// One step at random. What fails for want of room is no fault.
pub fn step(world: &mut World, keys: u64) {
    let ids: Vec<u64> = world.model.keys().copied().collect();
    let pick = world.random.below(100);
    let id = match ids.is_empty() {
        true => 0,
        false => ids[world.random.below(ids.len() as u64) as usize],
    };
    let key = world.random.below(keys);
    let done = match pick {
        _ if ids.is_empty() => world.create().map(|_| ()),
        0..=1 if ids.len() < 12 => world.create().map(|_| ()),
        2..=5 if ids.len() < 12 => world.share(id).map(|_| ()),
        6..=7 if ids.len() > 3 => world.delete(id),
        8..=17 => world.remove(id, key),
        18..=20 => {
            let to = key + world.random.below(keys / 4 + 1);
            world.remove_range(id, key, to)
        }
        21..=24 => world.reap().map(|_| ()),
        25..=26 => match world.begin_commit() {
            Err(TreeStop::Wait) => Ok(()),
            other => other,
        },
        27..=30 => {
            world.turn();
            Ok(())
        }
        31..=40 => {
            // A run.
            let len = world.random.below(20);
            (key..key + len).try_for_each(|key| world.write(id, key))
        }
        _ => world.write(id, key),
    };
    match done {
        Ok(()) | Err(TreeStop::NoBlocks | TreeStop::NoNodes) => {}
        Err(stop) => panic!("{stop}"),
    }
}

fn check_all(world: &mut World) {
    assert_eq!(world.dump().unwrap(), world.model);
    world.commit_now().unwrap();
    assert_eq!(world.check(1000), []);
    assert_eq!(world.dump().unwrap(), world.model);
}

/// Without a crash, and without what was not committed.
fn reopen(world: World, model: Model) -> World {
    let World { setup, part, data, .. } = world;
    World::open(setup, part, data, model)
}

fn play(setup: Setup, steps: usize, keys: u64) -> World {
    let mut world = World::new(setup);
    for at in 0..steps {
        step(&mut world, keys);
        if at % (steps / 4) == 0 {
            check_all(&mut world);
        }
    }
    check_all(&mut world);
    let model = world.model.clone();
    let mut world = reopen(world, model);
    check_all(&mut world);
    world
}

/// So small that all is used again and again, and that much is refused.
fn tight(seed: u64) -> Setup {
    let rows_max = Some(4 + seed as usize % 5);
    let (nodes, blocks) = (600 + seed % 7 * 60, 100 + seed % 5 * 50);
    Setup { seed, rows_max, nodes, blocks, is_prompt: seed.is_multiple_of(3), ..Setup::default() }
}

#[test]
fn trees_are_what_maps_in_memory_are() {
    for seed in 0..20 {
        let setup = Setup { seed, rows_max: Some(4 + seed as usize % 5), ..Setup::default() };
        play(setup, 400, 300);
    }
}

#[test]
fn so_they_are_where_there_is_little_room() {
    (0..40).for_each(|seed| _ = play(tight(seed), 600, 120));
}

#[test]
fn so_they_are_with_whole_nodes() {
    for seed in 0..4 {
        play(Setup { seed, ..Setup::default() }, 3_000, 20_000);
    }
}
