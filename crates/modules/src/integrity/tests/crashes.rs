//! Crashes at every moment of short workloads, with each subset of a few unflushed writes lost or torn. What comes up is what was promised; what was
//! flushed fits its sum; no block fails, since nothing has spoiled any. Planted faults are found by the same.

use thinwire_volume::testing::SplitMix64;

use super::super::*;
use super::world::*;
use crate::mirror::tests::fates;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// So many blocks from this on, all bytes being the stamp.
    Write(u64, u64, u8),
    Durable(u64, u8),
    Flush,
    Wait,
    /// So many things are done by the disk.
    Steps(usize),
    /// Seconds.
    Pass(u64),
    Zero(u64, u64),
    Discard(u64, u64),
    Lose,
    /// Some of it, as this decides.
    LoseSome(u64),
    /// Nothing succeeds, or everything.
    Fail(bool),
}

use Act::{Discard, Durable, Fail, Flush, Lose, LoseSome, Pass, Steps, Wait, Write, Zero};

/// What workloads write.
const BLOCKS: [u64; 6] = [0, SECOND - 1, SECOND, SECOND + 1, LAST, LAST + 1];

fn writes() -> Vec<Act> {
    vec![
        Write(SECOND, 1, 1),
        Write(LAST, 2, 2),
        Wait,
        Flush,
        Wait,
        Write(SECOND, 2, 3),
        Wait,
        Write(SECOND, 1, 4),
        Flush,
        Write(0, 1, 5),
        Wait,
    ]
}

fn overlaps() -> Vec<Act> {
    vec![
        Write(SECOND - 1, 3, 1),
        Write(SECOND, 2, 2),
        Write(SECOND - 1, 2, 3),
        Steps(7),
        Durable(SECOND, 4),
        Wait,
        Flush,
        Write(SECOND, 1, 5),
        Wait,
    ]
}

/// Something is written so many steps after its region began to be closed.
fn closes(steps: usize) -> Vec<Act> {
    vec![
        Write(SECOND, 1, 1),
        Wait,
        Pass(2),
        Steps(steps),
        Write(SECOND + 1, 1, 2),
        Write(0, 1, 3),
        Wait,
        Pass(5),
        Write(SECOND, 1, 4),
        Wait,
    ]
}

fn zeroes() -> Vec<Act> {
    vec![
        Write(SECOND - 1, 3, 1),
        Wait,
        Flush,
        Wait,
        Zero(SECOND, 2),
        Wait,
        Discard(SECOND - 1, 1),
        Flush,
        Wait,
        Write(SECOND, 1, 2),
        Zero(0, LAST),
        Wait,
    ]
}

fn fails() -> Vec<Act> {
    vec![
        Write(SECOND, 1, 1),
        Wait,
        Flush,
        Wait,
        Write(SECOND, 1, 2),
        Steps(1),
        Fail(true),
        Wait,
        Fail(false),
        Write(SECOND + 1, 1, 3),
        Wait,
        Lose,
        Write(SECOND, 1, 4),
        Wait,
        Flush,
        Wait,
        Pass(4),
    ]
}

/// Some of what was written is lost, of data and of sums; and again while that is looked at, and when it was and is not flushed.
fn losses(seed: u64) -> Vec<Act> {
    vec![
        Write(SECOND, 2, 1),
        Write(LAST, 2, 2),
        Wait,
        Flush,
        Wait,
        Write(SECOND, 1, 3),
        Write(LAST, 2, 4),
        Wait,
        Write(SECOND, 2, 5),
        Wait,
        LoseSome(seed),
        Steps(seed as usize % 9 * 3),
        Write(LAST, 1, 6),
        Wait,
        LoseSome(seed + 100),
        Pass(1),
        LoseSome(seed + 200),
        Pass(4),
    ]
}

/// A flush fails: what it should have covered is read as if it were there.
fn failed_flush() -> Vec<Act> {
    vec![
        Write(SECOND, 2, 1),
        Wait,
        Flush,
        Wait,
        Write(SECOND, 2, 2),
        Wait,
        Write(SECOND, 1, 3),
        Wait,
        Flush,
        Fail(true),
        Wait,
        Fail(false),
        Pass(5),
        Flush,
        Wait,
    ]
}

fn play(acts: &[Act], world: &mut World) {
    for &act in acts {
        match act {
            Write(block, count, stamp) => world.write(block, count, stamp, false),
            Durable(block, stamp) => world.write(block, 1, stamp, true),
            Flush => world.flush(),
            Wait => world.wait(),
            Steps(count) => world.steps(count),
            Pass(seconds) => world.pass(seconds),
            Zero(block, count) => world.zero(block, count, Op::WriteZeroes),
            Discard(block, count) => world.zero(block, count, Op::Discard),
            Lose => world.lose(),
            LoseSome(seed) => world.lose_some(seed),
            Fail(fails) => world.disk.fail(fails.then_some(ErrorKind::Io)),
        }
        world.note();
    }
}

/// What comes up is as it was promised.
fn look(moment: &Moment, world: &mut World) -> Result<u64, String> {
    let mut unverified = 0;
    for block in BLOCKS {
        let bytes = world.read(block, 1, false).map_err(|e| format!("block {block}: {e}"))?;
        for sector in bytes.chunks(512) {
            let is_one = sector.iter().all(|byte| *byte == sector[0]);
            if !is_one || !moment.allows(block, sector[0]) {
                return Err(format!("block {block} reads as {}", sector[0]));
            }
        }
        let is_verified = world.read(block, 1, true).is_ok();
        if !is_verified && moment.is_settled(block) {
            return Err(format!("block {block} was flushed, and fits no sum"));
        }
        unverified += u64::from(!is_verified);
    }
    Ok(unverified)
}

/// All crashes of these acts; how many, and how many blocks could not be verified.
fn explore(
    acts: &[Act],
    seed: Option<u64>,
    canary: IntegrityCanary,
) -> Result<(usize, u64), String> {
    let start = made(PART_BYTES);
    let mut world = World::with(start, canary, seed);
    world.is_recording = true;
    play(acts, &mut world);
    let (mut rng, mut count) = (SplitMix64::new(seed.unwrap_or(0)), 0);
    let mut unverified = 0;
    for (nth, moment) in world.moments.iter().enumerate() {
        let most = if nth % 8 == 3 { 64 } else { 8 };
        let disk = std::slice::from_ref(&moment.disk);
        for (which, fates) in fates(disk, &mut rng, most).into_iter().enumerate() {
            let told = |why| format!("{seed:?}, moment {nth}, {fates:?}: {why}");
            let mut after = World::with(moment.disk.after(&fates[0]), canary, None);
            let found = look(moment, &mut after).map_err(told)?;
            unverified += found;
            count += 1;
            if nth % 8 == 0 && which % 4 == 1 || found > 0 && nth % 4 == 0 {
                heal(moment, after, found).map_err(told)?;
            }
        }
    }
    Ok((count, unverified))
}

/// Behind the crash all is looked through: what fits is closed, what does not is known, until it is written again.
fn heal(moment: &Moment, mut world: World, found: u64) -> Result<(), String> {
    world.pass(3);
    let told = world.news.iter().map(|event| match event {
        VolumeEvent::Unverified { blocks, .. } => *blocks,
        other => panic!("{other:?}"),
    });
    // Which of them is not asked: some may lie beside those that were read.
    if told.sum::<u64>() < found {
        return Err("what is not verified was not told".into());
    }
    let mut world = World::over(world.close());
    look(moment, &mut world)?;
    if found == 0 && world.volume.regions.stale_count(0) > 0 {
        return Err("a region is in doubt without need".into());
    }
    for block in BLOCKS {
        world.write(block, 1, 99, false);
        world.wait();
    }
    let report = world.scrub();
    if report.bad > 0 || report.unverified > 0 {
        return Err(format!("{report:?}"));
    }
    world.pass(3);
    let world = World::over(world.close());
    match world.volume.regions.stale_count(0) {
        0 => Ok(()),
        _ => Err("a region is in doubt that was written again".into()),
    }
}

fn workloads() -> Vec<Vec<Act>> {
    let mut all = vec![writes(), overlaps(), zeroes(), fails()];
    all.extend([0, 1, 2, 3].map(closes));
    all.push(failed_flush());
    all.extend((0..3).map(losses));
    all
}

#[test]
fn what_was_flushed_is_there_and_fits_after_any_crash() {
    let (mut count, mut unverified) = (0, 0);
    for acts in workloads() {
        for seed in [None, Some(1), Some(2)] {
            let found = explore(&acts, seed, IntegrityCanary::None);
            let (more, blocks) = found.unwrap_or_else(|why| panic!("{acts:?} {why}"));
            (count, unverified) = (count + more, unverified + blocks);
        }
    }
    println!("{count} crashes, {unverified} blocks that were not verified");
    assert!(count > 5000 && unverified > 100, "{count}, {unverified}");
}

#[test]
fn planted_faults_are_found() {
    for canary in [
        IntegrityCanary::NoOpenRegion,
        IntegrityCanary::EarlyClose,
        IntegrityCanary::LateSums,
        IntegrityCanary::Forgetful,
        IntegrityCanary::TrustsMemory,
    ] {
        let mut all = workloads().into_iter();
        let found = all.find_map(|acts| explore(&acts, None, canary).err());
        println!("{canary:?}: {found:?}");
        assert!(found.is_some(), "{canary:?} was not found");
    }
}

/// How many moments there are, and what is in doubt first where nothing is lost but the program, with that fault in who is killed.
fn killed(canary: IntegrityCanary) -> (usize, Option<String>) {
    let mut world = World::with(made(PART_BYTES), canary, None);
    world.is_recording = true;
    play(&writes(), &mut world);
    play(&overlaps(), &mut world);
    let in_doubt = world.moments.iter().enumerate().find_map(|(nth, moment)| {
        let fates = vec![crate::mirror::tests::disk::Fate::Kept; moment.disk.doubts()];
        let mut after = World::over(moment.disk.after(&fates));
        let mut read = |block| after.read(block, 1, true).err();
        BLOCKS.into_iter().find_map(|block| Some(format!("moment {nth}: {}", read(block)?)))
    });
    (world.moments.len(), in_doubt)
}

/// If nothing is lost but the program, only what is torn fits neither sum.
#[test]
fn who_is_only_killed_leaves_nothing_in_doubt() {
    let (count, in_doubt) = killed(IntegrityCanary::None);
    assert_eq!(in_doubt, None);
    assert!(count > 50, "{count}");
    let (_, in_doubt) = killed(IntegrityCanary::LateSums);
    assert!(in_doubt.is_some(), "sums that stay in memory were not found");
}
