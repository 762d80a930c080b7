//! Tests of the benchmark's loop, on a memory volume that can be told to misbehave.

use super::*;
use crate::bench::BenchReport;
use crate::bench::plan::tests::plan;
use crate::cli::BenchPattern;
use crate::testing::{MemoryVolume, Mischief};

const EACH: [BenchPattern; 6] = [
    BenchPattern::RandRead,
    BenchPattern::RandWrite,
    BenchPattern::Read,
    BenchPattern::Write,
    BenchPattern::RandRw,
    BenchPattern::Rw,
];

fn run(plan: BenchPlan, open: &mut MemoryVolume) -> Tally {
    let engine = Engine::new(plan, &open.pool().clone(), 7);
    engine.run(open, &Stop::default(), None, &mut |_, _| {}).unwrap()
}

#[test]
fn every_pattern_runs_clean_and_counts() {
    for rw in EACH {
        for verify in [false, true] {
            let mut open = MemoryVolume::new(1 << 20, 512);
            let plan = BenchPlan { verify, ..plan(rw) };
            let tally = run(plan, &mut open);
            assert_eq!((tally.errors, tally.interrupted), (0, false), "{:?}", tally.complaints);
            assert!(tally.ios > 0 && tally.latency_ns.len() == tally.ios);
            match rw {
                BenchPattern::RandRead | BenchPattern::Read => assert_eq!(tally.reads, tally.ios),
                BenchPattern::RandWrite | BenchPattern::Write => assert_eq!(tally.reads, 0),
                BenchPattern::RandRw | BenchPattern::Rw => {
                    assert!(tally.reads > 0 && tally.reads < tally.ios)
                }
            }
            assert_eq!(tally.verified > 0, verify && plan.writes());
            assert_eq!(open.flushes() > 0, plan.writes());
            assert!(open.outstanding_most() <= plan.outstanding_max());
            assert!(open.outstanding_most() > 8, "depth was not reached");
        }
    }
}

#[test]
fn lies_of_a_volume_are_found() {
    for mischief in [Mischief::LoseWrites, Mischief::SwapBlocks, Mischief::FlipBits] {
        let mut open = MemoryVolume::new(1 << 20, 512);
        open.mischief = mischief;
        let tally = run(plan(BenchPattern::RandRw), &mut open);
        assert!(tally.errors > 0, "{mischief:?}");
        assert!(failure(&tally).unwrap().message.contains("expected generation"), "{mischief:?}");
    }
}

#[test]
fn failed_ios_are_counted_and_too_many_end_it() {
    let mut open = MemoryVolume::new(1 << 20, 512);
    open.mischief = Mischief::FailSome;
    let tally = run(plan(BenchPattern::RandRead), &mut open);
    assert!(tally.errors > 0 && tally.ios > 0);
    assert!(tally.complaints.len() <= COMPLAINTS_MAX);
    let mut open = MemoryVolume::new(1 << 20, 512);
    open.mischief = Mischief::FailAll;
    let slow = BenchPlan { runtime: Duration::from_secs(3600), ..plan(BenchPattern::RandWrite) };
    let tally = run(slow, &mut open);
    assert!(tally.errors >= ERRORS_MAX && tally.ios == 0);
}

#[test]
fn a_stop_ends_it_and_what_never_completes_is_given_up() {
    let mut open = MemoryVolume::new(1 << 20, 512);
    let long = BenchPlan { runtime: Duration::from_secs(3600), ..plan(BenchPattern::RandRead) };
    let stop = Stop::default();
    let engine = Engine::new(long, &open.pool().clone(), 7);
    let tally = engine.run(&mut open, &stop, None, &mut |_, _| stop.stop()).unwrap();
    assert!(tally.interrupted && tally.errors == 0);

    let mut open = MemoryVolume::new(1 << 20, 512);
    open.mischief = Mischief::NeverComplete;
    let stop = Stop::default();
    let engine = Engine::new(long, &open.pool().clone(), 7);
    let tally = engine.run(&mut open, &stop, None, &mut |_, _| stop.stop()).unwrap();
    assert_eq!((tally.errors, tally.ios), (16, 0));
}

#[test]
fn more_slots_than_blocks_do_not_hang() {
    let mut open = MemoryVolume::new(1 << 20, 512);
    let tight = BenchPlan { blocks: 3, jobs: 2, ..plan(BenchPattern::RandRw) };
    let tally = run(tight, &mut open);
    assert!(tally.errors == 0 && tally.verified > 0, "{:?}", tally.complaints);
}

#[test]
fn steady_state_takes_no_new_memory_from_the_pool() {
    let mut open = MemoryVolume::new(1 << 20, 512);
    open.pool().warm(4096, 600);
    let before = open.pool().stats().allocations;
    let tally = run(plan(BenchPattern::RandRw), &mut open);
    assert!(tally.ios > 1000 || tally.ios > 0);
    // One for the noise, which is made before the first I/O.
    assert!(open.pool().stats().allocations <= before + 1);
}

#[test]
fn the_report_has_the_fixed_fields() {
    let mut open = MemoryVolume::new(1 << 20, 512);
    let plan = plan(BenchPattern::RandWrite);
    let tally = run(plan, &mut open);
    let report = BenchReport::new("memory:1048576".into(), &plan, plan.jobs, &tally);
    let json = serde_json::to_value(&report).unwrap();
    for field in ["schema", "uri", "iops", "mib_per_s", "cpu_us_per_io", "errors", "runtime_s"] {
        assert!(!json[field].is_null(), "{field}");
    }
    for field in ["mean", "p50", "p99", "p999", "max"] {
        assert!(json["latency_us"][field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert_eq!((json["rw"].as_str(), json["bs"].as_u64()), (Some("randwrite"), Some(4096)));
    // Those of the volume: this one copies what is written.
    assert_eq!(json["copied_bytes"].as_u64(), Some(tally.ios * 4096));
    let rate = json["mib_per_s"].as_f64().unwrap() / json["iops"].as_f64().unwrap();
    assert!((rate - 4096.0 / 1048576.0).abs() < 1e-4);
    assert!(report.text().contains("reads verified"));
}
