//! What users of disks of their own machine are told of losses, and faults planted in that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use thinwire_sim::Coverage;
use thinwire_sim::local::{LocalCanary, StoreCanary};
use thinwire_sim::swarm::run_local_disks;
use thinwire_volume::OwingCanary;

#[test]
fn what_local_disks_lose_is_told_once() {
    let mut sum = Coverage::default();
    for seed in 0..1500 {
        let run = run_local_disks(seed, None, false);
        let Some(report) = run.unwrap_or_else(|v| panic!("seed {seed}: {}", v.0)) else { continue };
        sum.add(&report.coverage);
    }
    let counters = [sum.local_told, sum.local_losses, sum.device_failures, sum.writeback_failures];
    assert!(counters.iter().all(|&count| count > 100), "{sum:?}");
}

#[track_caller]
fn found(canary: LocalCanary, most: u64) {
    let caught = |seed: &u64| {
        let run = catch_unwind(AssertUnwindSafe(|| run_local_disks(*seed, Some(canary), false)));
        !matches!(run, Ok(Ok(_)))
    };
    let seed = (0..most).find(caught);
    assert!(seed.is_some(), "{canary:?} survives {most} seeds");
    println!("{canary:?} is found by seed {seed:?}");
}

#[test]
fn canary_of_a_store_that_forgets_a_loss_is_found() {
    found(LocalCanary::Store(StoreCanary::Forgets), 300);
}

#[test]
fn canary_of_a_store_that_repeats_a_loss_is_found() {
    found(LocalCanary::Store(StoreCanary::Repeats), 300);
}

#[test]
fn canary_that_forgets_what_was_lost_is_found() {
    found(LocalCanary::Owing(OwingCanary::DebtForgotten), 300);
}

#[test]
fn canary_that_takes_a_write_beside_a_loss_for_one_behind_it_is_found() {
    found(LocalCanary::Owing(OwingCanary::WriteBeside), 1000);
}

#[test]
fn canary_that_believes_a_durable_write_beside_a_loss_is_found() {
    found(LocalCanary::Owing(OwingCanary::DurableVouches), 1000);
}

#[test]
fn canary_that_takes_a_failure_of_its_own_for_the_news_is_found() {
    found(LocalCanary::Owing(OwingCanary::PaidByFailure), 1000);
}
