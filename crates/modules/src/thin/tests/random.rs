//! Random I/O and operations over disks that do things in any order, and fail, against the model.

use thinwire_volume::{ErrorKind, IoFlags, Op};

use super::super::*;
use super::made::{BLOCK, METADATA};
use super::world::*;

const SIZE: u64 = 12 * BLOCK;
const SECTORS: u64 = SIZE / 512;

pub fn tight(seed: u64) -> Setup {
    Setup {
        seed,
        metadata: METADATA,
        blocks: 24 + seed % 3 * 16,
        is_prompt: seed.is_multiple_of(4),
        cache_nodes: 4,
        open_nodes_max: 12 + seed as usize % 3 * 40,
        rows_max: (seed % 3 > 0).then_some(4),
        read_only: false,
        repairs: false,
        grown: None,
    }
}

fn flags(world: &mut World) -> IoFlags {
    IoFlags { fua: world.random.one_in(6), no_hole: world.random.one_in(3), ..IoFlags::default() }
}

/// Asks a volume for something.
pub fn ask(world: &mut World, volume: u64, is_alone: bool) {
    let pick = world.random.below(100);
    let first = world.random.below(SECTORS);
    let most = if world.random.one_in(4) { 40 } else { 10 };
    let mut count = 1 + world.random.below(most).min(SECTORS - first - 1);
    let mut first = first;
    if world.random.one_in(4) {
        // Whole blocks.
        first = first / 8 * 8;
        count = count.next_multiple_of(8).min(SECTORS - first);
    }
    let op = match pick {
        0..=44 => Op::Write,
        45..=69 => Op::Read,
        70..=77 => Op::Discard,
        78..=85 => Op::WriteZeroes,
        86..=89 => Op::BlockStatus,
        _ => Op::Flush,
    };
    let op = match world.model[&volume].is_read_only && op.is_write() {
        true => Op::Read,
        false => op,
    };
    if is_alone && op != Op::Flush && world.is_busy(volume, first, count) {
        return;
    }
    let flags = if op.is_write() { flags(world) } else { IoFlags::default() };
    let flags = IoFlags { no_hole: flags.no_hole && op == Op::WriteZeroes, ..flags };
    world.ask(volume, op, flags, first, count);
}

pub fn living(world: &World) -> Vec<u64> {
    let lives = world.model.iter().filter(|(_, known)| known.deleted.is_none());
    lives.map(|(&volume, _)| volume).collect()
}

fn pick(world: &mut World, among: &[u64]) -> u64 {
    among[world.random.below(among.len() as u64) as usize]
}

/// Begins an operation, if none is under way.
pub fn operate(world: &mut World, volumes_max: usize) {
    let volumes = living(world);
    if world.has_op() || volumes.is_empty() {
        return;
    }
    let volume = pick(world, &volumes);
    let (name, incarnation, at) = (world.name(), world.incarnation(), 7);
    let is_room = volumes.len() < volumes_max;
    let op = match world.random.below(10) {
        0..=2 if is_room => PoolOp::Snapshot { volume, name, incarnation, at },
        3..=4 if is_room => PoolOp::Clone { volume, name, incarnation, at },
        5 if is_room => PoolOp::Create { name, bytes: SIZE, incarnation, at },
        6 => PoolOp::Rename { volume, name },
        7 => PoolOp::Measure { volume },
        // Those that need a volume that nobody has open.
        pick if !world.has_asked(volume) => {
            let is_its = |of: &&u64| {
                let known = &world.model[of];
                known.is_read_only && known.origin == volume
            };
            let to = volumes.iter().find(is_its).copied();
            match to {
                _ if pick >= 9 && volumes.len() > 1 => {
                    world.close(volume);
                    PoolOp::Delete { volume }
                }
                Some(to) => {
                    world.close(volume);
                    PoolOp::RollBack { volume, to, incarnation }
                }
                None => {
                    let bytes = world.model[&volume].bytes + BLOCK / 2 * 2;
                    match world.model[&volume].is_read_only {
                        true => return,
                        false => PoolOp::Resize { volume, bytes },
                    }
                }
            }
        }
        _ => return,
    };
    world.begin(op);
}

/// A step at random.
pub fn step(world: &mut World, depth: usize, volumes_max: usize, is_alone: bool) {
    match world.random.below(20) {
        0 => operate(world, volumes_max),
        1..=6 => world.turn(),
        7 => {
            let millis = world.random.below(400);
            world.pass(millis);
        }
        _ if world.outstanding() < depth => {
            let volumes = living(world);
            let volume = pick(world, &volumes);
            if !world.may_open(volume) {
                return;
            }
            world.open_volume(volume);
            ask(world, volume, is_alone);
        }
        _ => world.turn(),
    }
}

/// Reads all, deletes all, and sees that everything comes back.
fn end(world: &mut World) {
    world.wait();
    for volume in living(world) {
        world.read_all(volume);
    }
    world.is_right();
    world.rest();
    assert_eq!(world.check(), [], "seed {}", world.setup.seed);
    world.open.clear();
    for volume in living(world) {
        assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    }
    world.rest();
    let report = world.pool.report();
    assert_eq!(report.data_used_bytes, 0, "seed {}", world.setup.seed);
    assert_eq!(world.check(), []);
}

fn play(setup: Setup, steps: usize) -> World {
    let mut world = World::new(setup);
    world.create(SIZE);
    for _ in 0..steps {
        step(&mut world, 12, 8, false);
        world.is_right();
    }
    end(&mut world);
    world
}

#[test]
fn volumes_are_what_they_are_said_to_be() {
    let (mut done, mut full) = (0, 0);
    let mut begun = std::collections::BTreeMap::new();
    for seed in 0..200 {
        let world = play(tight(seed), 600);
        done += world.done;
        full += world.failed.get(&ErrorKind::NoSpace).copied().unwrap_or(0);
        assert!(world.failed.keys().all(|kind| *kind == ErrorKind::NoSpace), "{:?}", world.failed);
        let is_expected = |error: &PoolError| {
            matches!(
                error,
                PoolError::NoRoom | PoolError::NoSnapshot { .. } | PoolError::IsOpen { .. }
            )
        };
        assert!(world.op_errors.iter().all(is_expected), "{:?}", world.op_errors);
        world.begun.iter().for_each(|(kind, count)| *begun.entry(*kind).or_insert(0) += count);
    }
    assert!(begun.len() == 8 && begun.values().all(|count| *count > 50), "{begun:?}");
    assert!(done > 50_000 && full > 500, "{done} I/Os, {full} of them without space");
}

#[test]
fn so_they_are_with_room() {
    for seed in 0..20 {
        let setup = Setup { blocks: 400, cache_nodes: 4096, open_nodes_max: 2048, ..tight(seed) };
        let world = play(setup, 2_000);
        assert_eq!(world.failed.len(), 0, "{:?}", world.failed);
    }
}

/// What fails, fails; the rest is as it should be.
#[test]
fn reads_and_writes_of_data_that_fail_change_nothing_else() {
    let mut failed = 0;
    for seed in 0..100 {
        let mut world = World::new(Setup { blocks: 60, ..tight(seed) });
        world.create(SIZE);
        for at in 0..500 {
            let one_in = if at % 100 < 50 { 20 } else { 0 };
            world.data.fail("read", one_in);
            world.data.fail("write", one_in);
            step(&mut world, 12, 6, false);
            world.is_right();
        }
        world.data.fail("read", 0);
        world.data.fail("write", 0);
        failed += world.failed.get(&ErrorKind::Io).copied().unwrap_or(0);
        end(&mut world);
    }
    assert!(failed > 500, "only {failed}");
}

/// How many I/Os have failed, and how many pools have stopped, where some reads of the metadata fail for a while.
fn read_badly(canary: crate::meta::tree::TreeCanary) -> (u64, u64) {
    let (mut failed, mut stopped) = (0, 0);
    for seed in 0..60 {
        let mut world = World::new(tight(seed));
        world.tree_canary(canary);
        world.create(SIZE);
        for _ in 0..150 {
            step(&mut world, 12, 6, false);
        }
        world.metadata.fail("read", 10);
        for _ in 0..300 {
            step(&mut world, 12, 6, false);
        }
        world.wait();
        world.is_right();
        world.metadata.fail("read", 0);
        failed += world.failed.get(&ErrorKind::Io).copied().unwrap_or(0);
        match world.pool.stopped() {
            Some(_) => stopped += 1,
            // All comes back, too.
            None => end(&mut world),
        }
    }
    (failed, stopped)
}

/// What cannot be read for once fails what needs it, and nothing else; what nobody waits for is tried again.
#[test]
fn metadata_that_is_read_badly_for_a_while_stops_nothing() {
    let (failed, stopped) = read_badly(crate::meta::tree::TreeCanary::None);
    assert!(failed > 100 && stopped == 0, "{failed} failed, {stopped} stopped");
}

#[test]
fn a_commit_that_does_not_read_again_is_found() {
    let (_, stopped) = read_badly(crate::meta::tree::TreeCanary::SettlesOnce);
    assert!(stopped > 0);
}

fn counts(world: &World) -> Vec<(u64, u64)> {
    world.open.iter().map(|(&volume, handle)| (volume, handle.events())).collect()
}

/// A commit or a flush that fails is the last: nothing changes, a loss is told before anything that has seen it, reads go on, of what was
/// written, or of what was durable where data may be lost: never of what a block has from another volume (rule 9).
#[test]
fn after_a_failed_flush_or_commit_nothing_changes() {
    let mut stopped = 0;
    for seed in 0..300 {
        let (wrong, has_stopped) = stop_and_read(seed, PoolCanary::None);
        assert_eq!(wrong, None, "seed {seed}");
        stopped += u32::from(has_stopped);
    }
    assert!(stopped > 160, "only {stopped}");
}

/// What is mapped and not committed is not read behind a loss.
#[test]
fn what_was_lost_is_not_read() {
    let is_found = |seed| stop_and_read(seed, PoolCanary::ReadsWhatWasLost).0.is_some();
    assert!((0..60).any(is_found), "not found");
}

/// What was wrong in a world whose pool stops, if it did.
fn stop_and_read(seed: u64, canary: PoolCanary) -> (Option<String>, bool) {
    let mut world = World::new(Setup { blocks: 60, ..tight(seed) });
    world.canary(canary);
    world.create(SIZE);
    for _ in 0..150 {
        step(&mut world, 12, 6, false);
    }
    world.data.forget_behind_failed_flushes();
    world.metadata.forget_behind_failed_flushes();
    match seed % 5 {
        0 => world.data.fail("flush", 2),
        1 => world.metadata.fail("flush", 2),
        2 => world.metadata.fail("write", 4),
        3 => world.lose_data(),
        _ => world.metadata.lose(),
    }
    let (before, opened) = (counts(&world), world.opened.clone());
    for at in 0..300 {
        step(&mut world, 12, 6, false);
        // After whatever else has stopped it.
        if at == 150 && seed % 3 == 0 {
            world.lose_data();
        }
    }
    world.wait();
    world.data.fail("flush", 0);
    if world.pool.stopped().is_none() {
        return (world.wrong, false);
    }
    for (volume, count) in before {
        if world.opened[&volume] == opened[&volume]
            && let Some(handle) = world.open.get(&volume)
        {
            assert_ne!(handle.events(), count, "seed {seed}: volume {volume} tells nothing");
        }
    }
    let writable = |volume: &u64| !world.model[volume].is_read_only;
    let volume = living(&world).into_iter().find(writable);
    if let Some(volume) = volume.filter(|volume| world.may_open(*volume)) {
        world.open_volume(volume);
        let before = world.failed.clone();
        world.write(volume, 0, 1);
        world.ask(volume, Op::Flush, IoFlags::default(), 0, 0);
        world.wait();
        assert_ne!(world.failed, before, "seed {seed}: it changes something");
    }
    for volume in living(&world) {
        if world.may_open(volume) {
            world.read_all(volume);
        }
    }
    (world.wrong, true)
}
