//! Worlds in which exports are offered in EBD (`docs/ebd.md`): their seeds repeat, and planted faults are found.

mod known;

use std::panic::{AssertUnwindSafe, catch_unwind};

use thinwire_ebd::EbdCanary;
use thinwire_sim::{Canary, Story, run_story};

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..20 {
        let run = || run_story(seed, Story::Ebd, Canary::None, false);
        let first = run().unwrap_or_else(|v| panic!("{seed}: {}", v.0));
        assert_eq!(first, run().unwrap(), "seed {seed}");
    }
}

/// A planted fault is found within so many seeds.
#[track_caller]
fn found(canary: Canary, most: u64) {
    let passes = |seed: u64, canary| {
        let run = || run_story(seed, Story::Ebd, canary, false);
        matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(_)))
    };
    let at = known::first("ebd", canary, 0..most, |seed| !passes(seed, canary));
    let Some(seed) = at else { panic!("{canary:?}: not found within {most} seeds") };
    assert!(passes(seed, Canary::None), "seed {seed} fails without it, too");
}

#[test]
fn canary_without_quarantine_is_found() {
    found(Canary::Ebd(EbdCanary::NoQuarantine), 1000);
}

#[test]
fn canary_without_replay_after_a_nak_is_found() {
    found(Canary::Ebd(EbdCanary::NoReplay), 300);
}

#[test]
fn canary_that_answers_a_repeated_tag_once_is_found() {
    found(Canary::Ebd(EbdCanary::AnswersOnce), 1000);
}

#[test]
fn canary_that_forgets_grants_is_found() {
    found(Canary::Ebd(EbdCanary::GrantsForgotten), 1000);
}

#[test]
fn canary_that_believes_any_index_is_found() {
    found(Canary::Ebd(EbdCanary::IndexIgnored), 1000);
}

#[test]
fn canary_that_shakes_hands_over_a_shadow_is_found() {
    found(Canary::Ebd(EbdCanary::ShadowIgnored), 1000);
}
