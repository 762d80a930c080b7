//! Worlds in which exports are offered in AoE (`docs/aoe.md`): their seeds repeat, and planted faults are found.

mod known;

use std::panic::{AssertUnwindSafe, catch_unwind};

use thinwire_aoe::AoeCanary;
use thinwire_sim::{Canary, Story, run_story};

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..20 {
        let run = || run_story(seed, Story::Aoe, Canary::None, false);
        let first = run().unwrap_or_else(|v| panic!("{seed}: {}", v.0));
        assert_eq!(first, run().unwrap(), "seed {seed}");
    }
}

/// A planted fault is found within so many seeds.
#[track_caller]
fn found(planted: AoeCanary, most: u64) {
    let passes = |seed: u64, canary| {
        let run = || run_story(seed, Story::Aoe, canary, false);
        matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(_)))
    };
    let at = known::first("aoe", planted, 0..most, |seed| !passes(seed, Canary::Aoe(planted)));
    let Some(seed) = at else { panic!("{planted:?}: not found within {most} seeds") };
    assert!(passes(seed, Canary::None), "seed {seed} fails without it, too");
    println!("{planted:?}: seed {seed}");
}

#[test]
fn canary_without_quarantine_is_found() {
    found(AoeCanary::NoQuarantine, 2000);
}

#[test]
fn canary_that_writes_at_once_is_found() {
    found(AoeCanary::NotQuiet, 1000);
}

#[test]
fn canary_that_calls_cached_durable_is_found() {
    found(AoeCanary::CachedCalledDurable, 300);
}

#[test]
fn canary_without_an_order_is_found() {
    found(AoeCanary::OrderIgnored, 1000);
}

#[test]
fn canary_that_skips_exports_is_found() {
    found(AoeCanary::ExportsSkipped, 300);
}

#[test]
fn canary_that_keeps_no_list_is_found() {
    found(AoeCanary::ListNotKept, 2000);
}
