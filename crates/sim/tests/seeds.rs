//! Seeds repeat exactly, and broken builds are found out.

use std::panic::{AssertUnwindSafe, catch_unwind};

use thinwire_sim::{Canary, run_seed};

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..40 {
        let first =
            run_seed(seed, Canary::None, false).unwrap_or_else(|v| panic!("{seed}: {}", v.0));
        let second = run_seed(seed, Canary::None, false).unwrap();
        assert_eq!(first, second, "seed {seed}");
    }
}

/// How many of the first seeds a checker needs to find a broken build; none if it does not.
fn seeds_until_found(canary: Canary, most: u64) -> Option<u64> {
    let caught = |seed: &u64| {
        // An assertion of the system itself counts as well.
        let result = catch_unwind(AssertUnwindSafe(|| run_seed(*seed, canary, false)));
        !matches!(result, Ok(Ok(_)))
    };
    (0..most).find(caught)
}

#[test]
fn canary_without_duplicate_detection_is_found() {
    assert!(seeds_until_found(Canary::NoDuplicateDetection, 300).is_some());
}

#[test]
fn canary_without_replay_is_found() {
    assert!(seeds_until_found(Canary::NoReplay, 100).is_some());
}

#[test]
fn canary_that_completes_early_is_found() {
    assert!(seeds_until_found(Canary::EarlyCompletion, 100).is_some());
}
