//! Crashes at every moment of short workloads, with each subset of a few unflushed writes lost or torn on each leg. What
//! comes up is what was promised, reads tell one truth, and all legs agree in the end. Planted faults are found by the same.

mod cruel;

use std::time::Duration;

use thinwire_volume::testing::SplitMix64;

use super::super::*;
use super::aftermath::{check, fates};
use super::disk::Content;
use super::world::*;
use LegState::InSync;

/// What happens before a crash.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// So many blocks from this on, all bytes being the stamp.
    Write(u64, u64, u8),
    Durable(u64, u8),
    Flush,
    Read(u64),
    /// Until all that was asked for has ended.
    Wait,
    /// So many things are done by disks.
    Steps(usize),
    /// Seconds.
    Pass(u64),
    /// The mirror is told the time, and that a moment has passed.
    Turn,
    Tick,
    Fail(usize),
    Lose(usize),
    /// Together with what it answers as durable at that moment.
    LoseBeside(usize),
    /// It is not there any more, and says so.
    Leave(usize),
    Back(usize),
    /// So many blocks from this on.
    Zero(u64, u64),
    Discard(u64, u64),
    /// It does nothing, or goes on with what is outstanding there, which may come late.
    Hang(usize, bool),
    /// Nothing can be written in a part of it: labels, bits, or data.
    Bad(usize, Option<(u64, u64)>),
}

use Act::{
    Back, Bad, Discard, Durable, Fail, Flush, Hang, Leave, Lose, LoseBeside, Pass, Read, Steps,
    Tick, Turn, Wait, Write, Zero,
};

fn writes() -> Vec<Act> {
    vec![
        Write(SMALL, 1, 1),
        Write(SMALL + 2, 2, 2),
        Wait,
        Flush,
        Wait,
        Write(SMALL, 2, 3),
        Wait,
        Write(SMALL, 1, 4),
        Flush,
        Wait,
    ]
}

fn overlaps() -> Vec<Act> {
    vec![
        Write(SMALL, 2, 1),
        Write(SMALL + 1, 2, 2),
        Write(SMALL, 3, 3),
        Steps(5),
        Durable(SMALL + 1, 4),
        Wait,
        Flush,
        Write(SMALL, 1, 5),
        Wait,
    ]
}

/// Something is written so many steps after its region began to be closed.
fn closes(steps: usize) -> Vec<Act> {
    vec![
        Write(SMALL, 1, 1),
        Wait,
        Pass(2),
        Turn,
        Steps(steps),
        Write(SMALL + 1, 1, 2),
        Write(0, 1, 3),
        Wait,
        Flush,
        Wait,
        Pass(3),
    ]
}

fn fails(leg: usize) -> Vec<Act> {
    vec![
        Write(SMALL, 1, 1),
        Wait,
        Flush,
        Wait,
        Fail(leg),
        Write(SMALL, 1, 2),
        Wait,
        Flush,
        Wait,
        Write(SMALL + 3, 1, 3),
        Wait,
    ]
}

/// A leg comes back, and something is written so many steps after that began to be copied.
fn comes_back(leg: usize, steps: usize) -> Vec<Act> {
    vec![
        Write(SMALL, 1, 1),
        Wait,
        Fail(leg),
        Flush,
        Write(SMALL + 1, 1, 2),
        Wait,
        Flush,
        Wait,
        Back(leg),
        Steps(40),
        Tick,
        Steps(steps),
        Write(SMALL + 1, 1, 3),
        Wait,
        Flush,
        Wait,
        Pass(4),
    ]
}

/// The same, when nobody writes any more.
fn comes_back_late(leg: usize) -> Vec<Act> {
    vec![
        Write(SMALL, 1, 1),
        Wait,
        Fail(leg),
        Write(SMALL + 1, 1, 2),
        Wait,
        Flush,
        Wait,
        Pass(4),
        Back(leg),
        Pass(2),
    ]
}

fn loses(leg: usize) -> Vec<Act> {
    vec![
        Write(SMALL, 1, 1),
        Wait,
        Lose(leg),
        Read(SMALL),
        Wait,
        Flush,
        Wait,
        Write(SMALL, 1, 2),
        Wait,
        Pass(4),
    ]
}

fn play(acts: &[Act], world: &mut World) {
    for &act in acts {
        match act {
            Write(block, count, stamp) => world.write(block, count, stamp, false),
            Durable(block, stamp) => world.write(block, 1, stamp, true),
            Flush => world.flush(),
            Read(block) => world.read(block),
            Wait => world.wait(),
            Steps(count) => world.steps(count),
            Pass(seconds) => world.pass(seconds),
            Turn => world.turn(),
            Tick => {
                // As whoever is about to sleep.
                world.turn();
                world.now = world.now + Duration::from_millis(100);
                world.turn();
            }
            Fail(disk) => world.disks[disk].fail(Some(ErrorKind::Io)),
            Lose(disk) => world.disks[disk].lose(),
            LoseBeside(disk) => world.disks[disk].lose_beside(),
            Leave(disk) => world.disks[disk].fail(Some(ErrorKind::Away)),
            Zero(block, count) => world.zero(block, count, Op::WriteZeroes),
            Discard(block, count) => world.zero(block, count, Op::Discard),
            Hang(disk, hangs) => world.disks[disk].hang(hangs),
            Bad(disk, range) => world.disks[disk].fail_writes_in(range),
            // A copy of it may be under way again by now.
            Back(disk) if !world.is_dropped(disk) => {}
            Back(disk) => world.bring_back(disk),
        }
        world.note();
    }
}

/// Workloads that are made up.
const WORKLOADS: u64 = 200;

/// All crashes of these acts.
fn explore(
    start: Vec<Content>,
    acts: &[Act],
    order: Order,
    seed: u64,
    canary: MirrorCanary,
) -> Result<usize, String> {
    let mut world = World::open(start, order, seed);
    world.mirror.canary = canary;
    play(acts, &mut world);
    let (mut rng, mut count) = (SplitMix64::new(seed), 0);
    for (nth, moment) in world.moments.iter().enumerate() {
        // Where there are too many subsets for all, more of them now and then.
        let most = if nth % 8 == 3 { 64 } else { 16 };
        for (which, fates) in fates(&moment.disks, &mut rng, most).into_iter().enumerate() {
            let disks = moment.disks.iter().zip(&fates);
            let contents: Vec<_> = disks.map(|(disk, fates)| disk.after(fates)).collect();
            let again = nth % 8 == 0 && which % 8 == 1;
            let told = |why| format!("{order:?} {seed}, moment {nth}, {fates:?}: {why}");
            count += check(moment, contents, canary, again).map_err(told)?;
        }
    }
    Ok(count)
}

fn clean(legs: usize) -> Vec<Content> {
    let state = state(9, &vec![InSync; legs]);
    (0..legs).map(|leg| formatted(leg, &state, [0, 0])).collect()
}

/// These acts, with each disk the slowest once, and in random orders.
fn all_orders(acts: &[Act], canary: MirrorCanary) -> Result<usize, String> {
    let mut count = 0;
    let orders = [Order::Last(0), Order::Last(1), Order::Turns, Order::Random];
    for (seed, order) in (1..).zip(orders) {
        count += explore(clean(2), acts, order, seed, canary)?;
    }
    Ok(count)
}

#[track_caller]
fn holds(acts: impl IntoIterator<Item = Vec<Act>>, least: usize) {
    let mut count = 0;
    for acts in acts {
        count +=
            all_orders(&acts, MirrorCanary::None).unwrap_or_else(|why| panic!("{acts:?} {why}"));
    }
    assert!(count > least, "only {count} crashes");
}

#[test]
fn what_was_flushed_is_there_after_any_crash() {
    holds([writes()], 1000);
}

#[test]
fn overlapping_writes_end_alike_on_all_legs() {
    holds([overlaps()], 1000);
}

#[test]
fn regions_are_closed_when_all_is_there() {
    holds([0, 2, 3, 5].map(closes), 1000);
}

#[test]
fn a_leg_that_fails_takes_nothing_with_it() {
    holds([0, 1].map(fails), 1000);
}

#[test]
fn a_leg_that_comes_back_is_whole_in_the_end() {
    holds([0, 1].map(comes_back_late), 1000);
    holds([0, 1, 2, 3].map(|steps| comes_back(1, steps)), 1000);
}

#[test]
fn what_one_leg_loses_another_has() {
    holds([0, 1].map(loses), 1000);
}

/// Two of three go, one after the other, and come back.
#[test]
fn three_legs_keep_what_one_of_them_has() {
    let acts = vec![
        Write(SMALL, 1, 1),
        Wait,
        Fail(2),
        Write(SMALL + 1, 1, 2),
        Flush,
        Wait,
        Fail(0),
        Write(SMALL, 1, 3),
        Flush,
        Wait,
        Back(2),
        Pass(3),
        Back(0),
        Tick,
        Write(SMALL + 1, 1, 4),
        Flush,
        Wait,
    ];
    let mut count = 0;
    for (seed, order) in [(1, Order::Random), (2, Order::Last(1))] {
        count += explore(clean(3), &acts, order, seed, MirrorCanary::None).unwrap();
    }
    assert!(count > 1000, "only {count} crashes");
}

/// Somebody does this and that, while one leg fails, loses and comes back.
fn anything(rng: &mut SplitMix64) -> Vec<Act> {
    let (leg, mut has_failed, mut acts) = (rng.below(2) as usize, false, Vec::new());
    for stamp in 1..16 {
        let block = SMALL + rng.below(3);
        let act = match rng.below(15) {
            12 => Zero(block, 1 + rng.below(2)),
            13 => Discard(block, 1),
            0 if !has_failed => {
                has_failed = true;
                Fail(leg)
            }
            0..=2 if has_failed => {
                has_failed = false;
                // Until it is dropped.
                acts.extend([Flush, Wait, Turn, Wait, Back(leg)]);
                Steps(rng.below(9) as usize)
            }
            3 => Flush,
            4 => Wait,
            5 => Tick,
            6 => Pass(rng.below(4)),
            7 => Durable(block, stamp),
            8 => Steps(rng.below(6) as usize),
            9 if !has_failed => Lose(leg),
            _ => Write(block, 1 + rng.below(2), stamp),
        };
        acts.push(act);
    }
    acts.push(Wait);
    acts
}

#[test]
fn short_workloads_at_random_keep_what_they_promise() {
    let mut count = 0;
    for seed in 0..WORKLOADS {
        let acts = anything(&mut SplitMix64::new(seed));
        let order = if seed % 2 == 0 { Order::Random } else { Order::Last(seed as usize / 2 % 2) };
        let mut world = World::open(clean(2), order, seed);
        play(&acts, &mut world);
        let mut rng = SplitMix64::new(seed);
        let step = world.moments.len().div_ceil(20);
        for (nth, moment) in world.moments.iter().enumerate().step_by(step) {
            for fates in fates(&moment.disks, &mut rng, 4) {
                let disks = moment.disks.iter().zip(&fates);
                let contents: Vec<_> = disks.map(|(disk, fates)| disk.after(fates)).collect();
                let told = |why| format!("{seed} {acts:?}, moment {nth}, {fates:?}: {why}");
                let checked = check(moment, contents, MirrorCanary::None, false);
                count += checked.map_err(told).unwrap();
            }
        }
    }
    assert!(count > 1000, "only {count} crashes");
}

/// Of these acts, in some order, a crash shows it.
#[track_caller]
fn is_found(acts: impl IntoIterator<Item = Vec<Act>>, canary: MirrorCanary, says: &str) {
    let mut others = Vec::new();
    for acts in acts {
        let orders = [Order::Last(0), Order::Last(1), Order::Turns, Order::Random];
        for (seed, order) in (1..).zip(orders) {
            match explore(clean(2), &acts, order, seed, canary) {
                Err(why) if why.contains(says) => return,
                Err(why) => others.push(why),
                Ok(_) => {}
            }
        }
    }
    panic!("{canary:?} is not found: {others:#?}");
}

#[test]
fn one_that_completes_after_one_leg_is_found() {
    is_found([writes()], MirrorCanary::OneLegCompletes, "reads as 0");
}

/// Rule 1.
#[test]
fn intent_after_data_is_found() {
    is_found([writes()], MirrorCanary::IntentAfterData, "legs differ");
}

/// Rule 2.
#[test]
fn bits_that_are_cleared_too_early_are_found() {
    is_found([closes(9)], MirrorCanary::EarlyClear, "legs differ");
}

/// Rule 2.
#[test]
fn a_clear_that_overtakes_a_set_is_found() {
    is_found((0..9).map(closes), MirrorCanary::ClearOvertakesSet, "legs differ");
}

/// Rule 3.
#[test]
fn a_completion_before_the_generation_is_found() {
    is_found([fails(0)], MirrorCanary::CompletionBeforeRecord, "reads as 1");
}

/// Rule 4.
#[test]
fn reads_from_all_legs_after_a_crash_are_found() {
    // As early as somebody has been told another one before the rest is back.
    is_found([writes()], MirrorCanary::TwoTruths, "gone with all legs");
}

/// Rule 5.
#[test]
fn a_resync_over_a_write_is_found() {
    let acts = (0..4).map(|steps| comes_back(1, steps));
    is_found(acts, MirrorCanary::NoRangeLock, "legs differ");
}

/// Rule 6.
#[test]
fn a_leg_in_sync_before_its_last_flush_is_found() {
    is_found([comes_back_late(1)], MirrorCanary::InSyncBeforeFlush, "block 257");
}
