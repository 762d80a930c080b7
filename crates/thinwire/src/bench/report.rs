//! What a benchmark prints.

use serde::Serialize;

use super::engine::Tally;
use super::plan::BenchPlan;
use crate::rundir::SCHEMA;
use crate::size::show_size;

/// `bench --json`: one object.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Version of this format.
    pub schema: u32,
    /// The volume.
    pub uri: String,
    /// Pattern, as typed.
    pub rw: String,
    /// How many of 100 I/Os of a mixed pattern were to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<u32>,
    /// Bytes an I/O.
    pub bs: u32,
    /// I/Os each job kept outstanding.
    pub iodepth: u32,
    /// Jobs.
    pub jobs: u32,
    /// Of the offsets and the data.
    pub seed: u64,
    /// From the first submission to the last completion.
    pub runtime_s: f64,
    /// I/Os that succeeded.
    pub ios: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second, in units of 2^20.
    pub mib_per_s: f64,
    /// From submission to completion.
    pub latency_us: Latency,
    /// CPU time of this process alone, for each I/O.
    pub cpu_us_per_io: f64,
    /// Payload bytes that the volume copied in this process; what the kernel copies is not known here.
    pub copied_bytes: u64,
    /// I/Os that failed, and blocks that were wrong.
    pub errors: u64,
    /// Whether blocks were stamped and checked.
    pub verify: bool,
    /// Reads that were checked and found right.
    pub verified: u64,
    /// A signal ended it early.
    pub interrupted: bool,
    /// How requests shared frames; null for local volumes, and for those with several remote parts.
    pub batch: Option<BatchReport>,
    /// The figures of one interval after another, with `--timeline`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Interval>,
}

/// How requests shared frames.
#[derive(Clone, Debug, Serialize)]
pub struct BatchReport {
    /// The policy, as `--batch` takes it.
    pub policy: String,
    /// The number of requests that it waited for, on average and at the end.
    pub level_mean: f64,
    /// At the end.
    pub level_last: u64,
    /// Frames that carried requests.
    pub frames: u64,
    /// How many each did, on average.
    pub requests_per_frame: f64,
}

/// An interval of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Interval {
    /// Its end, in seconds since the start.
    pub t: f64,
    /// I/Os a second in it.
    pub iops: f64,
    /// Bytes a second in it, in units of 2^20.
    pub mib_per_s: f64,
    /// The batching policy's level at its end.
    pub level: u64,
}

fn batch(tally: &Tally) -> Option<BatchReport> {
    let seen = tally.batch.as_ref()?;
    Some(BatchReport {
        policy: seen.policy.clone(),
        level_mean: round(tally.level_sum as f64 / tally.looks.max(1) as f64),
        level_last: tally.level_last,
        frames: seen.frames,
        requests_per_frame: round(seen.requests as f64 / seen.frames.max(1) as f64),
    })
}

fn timeline(plan: &BenchPlan, tally: &Tally) -> Vec<Interval> {
    let mut before = (0.0, 0);
    let interval = |sample: &super::engine::Snapshot| {
        let (since, ios) = before;
        let t = sample.time.as_secs_f64();
        before = (t, sample.ios);
        let iops = (sample.ios - ios) as f64 / (t - since);
        Interval {
            t: round(t),
            iops: round(iops),
            mib_per_s: round(iops * f64::from(plan.bs) / f64::from(1 << 20)),
            level: sample.level,
        }
    };
    tally.timeline.iter().map(interval).collect()
}

/// Latencies in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99 of 100 were faster.
    pub p99: f64,
    /// 999 of 1000 were faster.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

impl BenchReport {
    /// From what was counted.
    pub fn new(uri: String, plan: &BenchPlan, jobs: u32, tally: &Tally) -> Self {
        let seconds = tally.elapsed.as_secs_f64();
        let a_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let ios = tally.ios as f64;
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |q: f64| us(tally.latency_ns.value_at_quantile(q));
        BenchReport {
            schema: SCHEMA,
            uri,
            rw: clap::ValueEnum::to_possible_value(&plan.rw).expect("named").get_name().to_owned(),
            mix: plan.rw.is_mixed().then_some(plan.mix),
            bs: plan.bs,
            iodepth: plan.iodepth,
            jobs,
            seed: plan.seed,
            runtime_s: round(seconds),
            ios: tally.ios,
            reads: tally.reads,
            writes: tally.ios - tally.reads,
            iops: round(a_second(ios)),
            mib_per_s: round(a_second(ios * f64::from(plan.bs)) / f64::from(1 << 20)),
            latency_us: Latency {
                mean: round(tally.latency_ns.mean() / 1000.0),
                p50: at(0.5),
                p99: at(0.99),
                p999: at(0.999),
                max: us(tally.latency_ns.max()),
            },
            cpu_us_per_io: round(if tally.ios > 0 {
                tally.cpu.as_secs_f64() * 1e6 / ios
            } else {
                0.0
            }),
            copied_bytes: tally.copied_bytes,
            errors: tally.errors,
            verify: plan.verify,
            verified: tally.verified,
            interrupted: tally.interrupted,
            batch: batch(tally),
            timeline: timeline(plan, tally),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let l = &self.latency_us;
        let mix = self.mix.map_or(String::new(), |reads| format!(" ({reads} % reads)"));
        let mut text = format!(
            "{}\n{}{mix} of {}, {} outstanding in each of {} jobs, {:.1} s\n\
             {:>12.0} IOPS  {:.1} MiB/s  {:.2} us CPU an I/O\n\
             {:>12.1} us mean latency  (p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1})\n\
             {:>12} errors",
            self.uri,
            self.rw,
            show_size(u64::from(self.bs)),
            self.iodepth,
            self.jobs,
            self.runtime_s,
            self.iops,
            self.mib_per_s,
            self.cpu_us_per_io,
            l.mean,
            l.p50,
            l.p99,
            l.p999,
            l.max,
            self.errors,
        );
        if let Some(batch) = &self.batch {
            text += &format!(
                "\n{:>12.1} requests a frame  (policy {}, level {:.1})",
                batch.requests_per_frame, batch.policy, batch.level_mean
            );
        }
        if self.verify {
            text += &match self.writes {
                0 => {
                    "\nnothing was verified: --verify checks what this run wrote, and it only read"
                        .to_owned()
                }
                _ => format!("\n{:>12} reads verified", self.verified),
            };
        }
        text
    }
}

/// Three digits after the point are more than the clock is worth.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
