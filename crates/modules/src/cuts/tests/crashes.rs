//! Crashes at every moment of short random workloads with cuts, on all disks at once, each with many subsets of what was not flushed lost or
//! torn. Whoever opens the whole then finds cuts that are whole and straight, all that were told of, and no halves. Planted faults are found by
//! the same.

use thinwire_volume::Op;
use thinwire_volume::testing::SplitMix64;

use super::super::*;
use super::world::*;
use crate::thin::tests::disk::Clock;

/// What a crash leaves of a write that is torn: sectors, as bits.
const TORN: [u8; 4] = [0x01, 0xfe, 0x0f, 0xaa];

/// One step of what users do.
fn step(world: &mut World) {
    match world.random.below(40) {
        0..18 => world.write(),
        18..20 => world.flush(),
        20 => {
            if world.up.cuts.is_idle() {
                world.take();
            }
        }
        21 => {
            let told = |asked: &&Asked| {
                asked.told.is_some_and(|(_, done)| done) && asked.dropped.is_none()
            };
            let id = world.asked.iter().find(told).map(|asked| asked.id);
            if let (Some(id), true) = (id, world.random.one_in(2)) {
                world.drop_cut(id);
            }
        }
        22..25 => world.pass(20),
        25 => world.up.disks.iter().flatten().for_each(|disk| disk.hang(None)),
        26 if !world.up.cuts.is_idle() && world.random.one_in(3) => {
            // One does not answer for a while.
            let (part, disk) = (world.random.below(2) as usize, world.random.below(2) as usize);
            world.up.disks[part][disk].hang(Some(Op::Flush));
            (0..4).for_each(|_| world.turn());
            world.pass(1100);
            world.turn();
        }
        _ => world.turn(),
    }
}

/// What a crash leaves, and how: all that was not flushed, none of it, and some at random, one of them torn.
fn images(world: &World, time: u64, random: &mut SplitMix64) -> Vec<Vec<Image>> {
    let disks = &world.up.disks;
    let mut fate = |kind: u64, doubts: usize| -> Vec<u8> {
        let bits = random.next();
        let torn = random.below(doubts.max(1) as u64) as usize;
        let of = |at: usize| match kind {
            0 => 0,
            1 => 0xff,
            2 if at == torn => TORN[bits as usize % 4],
            _ => {
                if bits >> (at % 64) & 1 == 1 {
                    0xff
                } else {
                    0
                }
            }
        };
        (0..doubts).map(of).collect()
    };
    let mut found = Vec::new();
    // Of the two pools each as well.
    for kinds in [[0, 0], [1, 1], [0, 1], [1, 0], [3, 3], [2, 3], [3, 2]] {
        let after = |(part, kind): (usize, u64), fate: &mut dyn FnMut(u64, usize) -> Vec<u8>| {
            [0, 1].map(|disk| {
                let disk = &disks[part][disk];
                disk.after(time, &fate(kind, disk.doubts(time)))
            })
        };
        found.push(vec![after((0, kinds[0]), &mut fate), after((1, kinds[1]), &mut fate)]);
    }
    found
}

/// Something is done to a cut at that time, or was a moment ago.
fn is_telling(world: &World, time: u64) -> bool {
    let end = world.clock.get();
    world.asked.iter().any(|asked| {
        let ended = asked.told.map_or(end, |(at, _)| at + 3);
        let dropped = asked.dropped.map(|(begun, at)| begun..at.map_or(end, |at| at + 3));
        (asked.begun..ended).contains(&time) || dropped.is_some_and(|when| when.contains(&time))
    })
}

/// All crashes of a workload: how many, or the first thing that is wrong.
fn explore(world: &World, canary: CutCanary) -> Result<usize, String> {
    let mut random = SplitMix64::new(world.seed + 77);
    let mut count = 0;
    for time in (0..=world.clock.get()).filter(|time| is_telling(world, *time)) {
        for images in images(world, time, &mut random) {
            count += 1;
            let mut found = Up::over(images, world.seed, &Clock::default(), canary);
            found.settle();
            let told = |why| format!("seed {}, at {time}: {why}", world.seed);
            world.judge(&found, time).map_err(told)?;
        }
    }
    Ok(count)
}

fn play(seed: u64, steps: usize, canary: CutCanary) -> Result<World, String> {
    let mut world = World::new(seed, canary);
    for _ in 0..steps {
        step(&mut world);
    }
    world.wait();
    let time = world.clock.get();
    world.judge(&world.up, time).map_err(|why| format!("seed {seed}, alive: {why}"))?;
    Ok(world)
}

fn count(world: &World) -> (usize, usize) {
    let done = world.asked.iter().filter(|asked| asked.told.is_some_and(|(_, done)| done));
    let late = world.errors.iter().filter(|error| **error == CutError::Late);
    (done.count(), late.count())
}

#[test]
fn a_crash_at_any_moment_leaves_whole_cuts_or_none() {
    let (mut crashes, mut done, mut late) = (0, 0, 0);
    for seed in 0..4 {
        let world = play(seed, 260, CutCanary::None).unwrap();
        crashes += explore(&world, CutCanary::None).unwrap();
        let told = count(&world);
        (done, late) = (done + told.0, late + told.1);
    }
    println!("{crashes} crashes, {done} cuts, {late} too late");
    assert!(crashes > 3_000 && done > 2, "only {crashes} crashes, {done} cuts");
}

#[test]
fn what_a_cut_has_is_of_one_moment() {
    let (mut done, mut late) = (0, 0);
    for seed in 0..30 {
        let told = count(&play(seed, 1200, CutCanary::None).unwrap());
        (done, late) = (done + told.0, late + told.1);
    }
    println!("{done} cuts, {late} too late");
    assert!(done > 60 && late > 10, "only {done} cuts, {late} too late");
}

#[track_caller]
fn is_found(canary: CutCanary, says: &[&str]) {
    let found = (0..60)
        .find_map(|seed| play(seed, 260, canary).and_then(|world| explore(&world, canary)).err());
    let why = found.expect("it was not found");
    assert!(says.iter().any(|says| why.contains(says)), "{why}");
    println!("found: {why}");
}

/// Without a crash.
#[track_caller]
fn is_seen(canary: CutCanary, says: &str) {
    let found = |seed| play(seed, 1200, canary).err().filter(|why| why.contains(says));
    let why = (0..600).find_map(found).expect("it was not found");
    println!("found: {why}");
}

#[test]
fn a_cut_without_hold_is_found() {
    is_seen(CutCanary::NoHold, "crooked");
}

#[test]
fn a_cut_beside_what_is_under_way_is_found() {
    is_seen(CutCanary::NoDrain, "half a write");
}

#[test]
fn a_record_before_all_have_answered_is_found() {
    is_found(CutCanary::EarlyRecord, &["in half", "not there", "half a write"]);
}

#[test]
fn a_record_before_all_is_durable_is_found() {
    is_found(CutCanary::NotEnsured, &["in half"]);
}

#[test]
fn halves_that_stay_are_found() {
    is_found(CutCanary::HalvesStay, &["in half", "not decided", "should not be"]);
}

#[test]
fn a_cut_that_is_told_of_before_it_is_on_record_is_found() {
    is_found(CutCanary::ToldEarly, &["not there"]);
}

#[test]
fn a_cut_that_came_too_late_is_found() {
    is_seen(CutCanary::LateCounts, "crooked");
}
