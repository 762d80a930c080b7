//! Worlds with a volume that hosts compose of disks: their seeds repeat, and planted faults are found. Those that need a rarer moment are
//! found by the rooms of mirrors and pools, which try all moments.

mod known;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thinwire_modules::WriteBackCanary;
use thinwire_modules::cuts::CutCanary;
use thinwire_modules::mirror::MirrorCanary;
use thinwire_modules::thin::PoolCanary;
use thinwire_sim::{Canary, Story, enumerate, run_story};

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..12 {
        let run = || run_story(seed, Story::Volumes, Canary::None, false);
        let first = run().unwrap_or_else(|v| panic!("{seed}: {}", v.0));
        assert_eq!(first, run().unwrap(), "seed {seed}");
    }
}

/// The snapshots of whoever has the volume are not over when somebody ends who never had it.
#[test]
fn a_cut_is_not_over_with_the_run_of_another() {
    run_story(5129, Story::Volumes, Canary::None, false).unwrap_or_else(|v| panic!("{}", v.0));
}

/// Until a leg has told that it lost something, reads of blocks that are written over one another may go to and fro between the legs.
#[test]
fn a_leg_that_has_not_told_of_a_loss_yet_reads_as_before_it() {
    run_story(8145, Story::Volumes, Canary::None, false).unwrap_or_else(|v| panic!("{}", v.0));
}

/// Such moments are few: what is written at once is judged nearly always.
#[test]
fn orders_of_writes_are_judged() {
    let (mut judged, mut in_doubt) = (0, 0);
    for seed in 0..100 {
        let report = run_story(seed, Story::Volumes, Canary::None, false)
            .unwrap_or_else(|v| panic!("{seed}: {}", v.0));
        judged += report.coverage.orders_judged;
        in_doubt += report.coverage.orders_in_doubt;
    }
    println!("{judged} judged, {in_doubt} in doubt");
    assert!(judged > 1000 && in_doubt * 10 < judged, "{judged} judged, {in_doubt} in doubt");
}

/// A leg with sums over a slow wire is looked through behind a crash, also while a mirror is opened with it: it is in sync all the same. Nor
/// is one dropped for ever whose wire loses a tenth of all frames.
#[test]
fn a_leg_over_a_slow_wire_comes_back() {
    for seed in [5413, 6600, 9941] {
        run_story(seed, Story::Volumes, Canary::None, false)
            .unwrap_or_else(|v| panic!("{seed}: {}", v.0));
    }
}

/// A planted fault is found within so many seeds.
#[track_caller]
fn found(canary: Canary, most: u64) {
    let passes = |seed: u64, canary| {
        let run = || run_story(seed, Story::Volumes, canary, false);
        matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(_)))
    };
    let at = known::first("volumes", canary, 0..most, |seed| !passes(seed, canary));
    let Some(seed) = at else { panic!("{canary:?}: not found within {most} seeds") };
    assert!(passes(seed, Canary::None), "seed {seed} fails without it, too");
    println!("{canary:?} is found by seed {seed}");
}

#[test]
fn canary_that_completes_after_one_leg_is_found() {
    found(Canary::Mirror(MirrorCanary::OneLegCompletes), 300);
}

#[test]
fn canary_that_closes_without_a_flush_is_found() {
    found(Canary::Mirror(MirrorCanary::CloseWithoutFlush), 300);
}

#[test]
fn canary_that_copies_over_writes_is_found() {
    found(Canary::Mirror(MirrorCanary::NoRangeLock), 100);
}

#[test]
fn canary_that_reads_any_leg_behind_a_crash_is_found() {
    found(Canary::Mirror(MirrorCanary::TwoTruths), 300);
}

#[test]
fn canary_that_calls_a_write_durable_whose_map_is_not_is_found() {
    found(Canary::Pool(PoolCanary::FuaWithoutMap), 150);
}

#[test]
fn canary_that_flushes_without_a_commit_is_found() {
    found(Canary::Pool(PoolCanary::FlushWithoutCommit), 100);
}

#[test]
fn canary_that_leaves_half_a_new_block_is_found() {
    found(Canary::Pool(PoolCanary::HalfANewBlock), 100);
}

#[test]
fn canary_that_writes_over_what_a_snapshot_has_is_found() {
    found(Canary::Pool(PoolCanary::SharedInPlace), 100);
}

#[test]
fn canary_that_gives_back_what_others_have_is_found() {
    found(Canary::Pool(PoolCanary::DeletesShared), 100);
}

/// Who deletes a snapshot is told before that is durable, and it is there once more behind a crash.
#[test]
fn canary_whose_deleted_snapshots_come_back_is_found() {
    found(Canary::Pool(PoolCanary::DeleteToldEarly), 300);
}

/// W1 is acknowledged on one part, then W2 on another, and the snapshot has W2 only.
#[test]
fn canary_that_cuts_without_a_hold_is_found() {
    found(Canary::Cut(CutCanary::NoHold), 700);
}

/// Rule 20: where legs have no sums, a scrub copies what the first has.
#[test]
fn canary_that_repairs_by_guess_is_found() {
    found(Canary::Mirror(MirrorCanary::RepairsByGuess), 60);
}

/// Rule 20: no leg has anything to be repaired that no crash has left there.
#[test]
fn canary_whose_legs_with_sums_rot_is_found() {
    let run = |seed, canary| run_story(seed, Story::Volumes, canary, false);
    // Users may meet it first: it is to be a scrub that tells.
    let is_told = |seed| run(seed, Canary::SumsRot).is_err_and(|v| v.0.contains("a scrub says"));
    let seed = known::first("volumes", Canary::SumsRot, 0..200, is_told).expect("it is found");
    assert!(run(seed, Canary::None).is_ok(), "seed {seed} fails without it, too");
}

/// Rule 6: a leg goes before the one that comes in its place has all data.
#[test]
fn canary_that_replaces_early_is_found() {
    found(Canary::Mirror(MirrorCanary::ReplacesEarly), 300);
}

/// Rule 3: a leg is said to be none, and behind a crash it is not so. That one is said to come before it is on record is found where a mirror's own
/// crashes are enumerated: here it gets its label first, and by then it is.
#[test]
fn canary_that_tells_of_legs_early_is_found() {
    found(Canary::Mirror(MirrorCanary::RemovalToldEarly), 1200);
}

/// Of a leg that was added nobody knows what it lacks.
#[test]
fn canary_that_takes_a_new_leg_for_an_old_one_is_found() {
    found(Canary::Mirror(MirrorCanary::NewLegByBits), 300);
}

/// What a mirror has more is what was on its disks before.
#[test]
fn canary_that_grows_by_what_was_there_is_found() {
    found(Canary::Mirror(MirrorCanary::GrowsUnzeroed), 300);
}

/// Rule 23: what was rolled back is known as before.
#[test]
fn canary_whose_rollback_nobody_notices_is_found() {
    found(Canary::Pool(PoolCanary::KeepsIncarnation), 60);
}

/// A planted fault is found among the crashes of the workloads of these seeds.
#[track_caller]
fn found_by_enumeration(canary: Canary, seeds: Range<u64>) {
    found_to(canary, seeds, "");
}

/// The same, and that is what is said of it.
#[track_caller]
fn found_to(canary: Canary, seeds: Range<u64>, says: &str) {
    let shows = |seed| enumerate(seed, canary).is_err_and(|v| v.0.contains(says));
    let at = known::first("enumerate", canary, seeds.clone(), shows);
    let Some(seed) = at else { panic!("{canary:?}: not found within seeds {seeds:?}") };
    assert!(enumerate(seed, Canary::None).is_ok(), "seed {seed} fails without it, too");
    println!("{canary:?} is found by seed {seed}");
}

/// Those that a world meets too seldom.
#[test]
fn canaries_that_need_one_moment_are_found_by_trying_all() {
    found_by_enumeration(Canary::Mirror(MirrorCanary::IntentAfterData), 0..26);
    found_by_enumeration(Canary::Mirror(MirrorCanary::TwoTruths), 0..20);
    found_by_enumeration(Canary::Mirror(MirrorCanary::ClearOvertakesSet), 0..20);
    found_by_enumeration(Canary::Mirror(MirrorCanary::EarlyClear), 0..60);
    found_by_enumeration(Canary::Pool(PoolCanary::FuaWithoutMap), 0..20);
    found_by_enumeration(Canary::Pool(PoolCanary::FlushWithoutCommit), 0..20);
    // Rule 21.
    found_by_enumeration(Canary::WriteBack(WriteBackCanary::FlushFirst), 0..80);
    found_by_enumeration(Canary::WriteBack(WriteBackCanary::DurableInMemory), 0..20);
}

/// Those that legs which are opened alone behind a crash have to show.
#[test]
fn canaries_of_legs_that_go_are_found_by_trying_all() {
    // Rule 3, by whoever does not ask.
    found_to(Canary::GoesAlone, 0..20, "nobody has asked for that");
    // Rule 7: nobody sees that legs were served apart.
    found_to(Canary::Mirror(MirrorCanary::QuietOpening), 0..20, "served apart");
}

/// Those that take discards and snapshots among what is done.
#[test]
fn canaries_of_discards_and_snapshots_are_found_by_trying_all() {
    // Rules 9 and 10.
    found_by_enumeration(Canary::Pool(PoolCanary::CommitsBeforeData), 0..40);
    found_by_enumeration(Canary::Pool(PoolCanary::ReusesEarly), 0..40);
    // Rule 12.
    found_by_enumeration(Canary::Pool(PoolCanary::SharedInPlace), 0..40);
    found_by_enumeration(Canary::Pool(PoolCanary::DeleteToldEarly), 0..40);
    // Where a discard does nothing below, what was written before comes back.
    found_by_enumeration(Canary::WriteBack(WriteBackCanary::DiscardUncovers), 0..80);
}
