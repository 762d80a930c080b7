//! `thinwire bench`.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use thinwire_proto::StageSums;
use thinwire_runtime::stages;
use thinwire_wire::clock_kind;

use crate::bench::{self, Cell, Engine, Plan, Report, Run, Stop, Tally, failure};
use crate::cli::{BenchArgs, Breakdown, Pattern};
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::open::{OpenOptions, OpenVolume, open_volume};
use crate::output;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// The sizes of the document's tables.
const BREAKDOWN_SIZES: [u64; 4] = [4 << 10, 8 << 10, 64 << 10, 128 << 10];

/// Measures, prints the report, fails if any I/O failed.
pub fn run(args: &BenchArgs) -> Outcome {
    if let Some(wanted) = args.breakdown {
        return break_down(args, wanted);
    }
    let reads_only = matches!(args.rw, Pattern::RandRead | Pattern::Read);
    let shards = args.wire.shards.unwrap_or(1).min(args.jobs);
    if shards > 1 && !reads_only {
        return Err(Failure::usage(format!(
            "--shards {shards}: each shard is an attachment of its own, and a volume has one writer; \
             patterns that write need --shards 1"
        )));
    }
    if !reads_only {
        refuse_in_use(&args.volume, "writing to it")?;
    }
    let signals =
        Signals::catch().map_err(|e| Failure::failed(format!("cannot take over signals: {e}")))?;
    let stop = Stop::default();
    // Tells the stamps of this run from those of others.
    let run = run_number();
    let (plan, tally) = if shards == 1 {
        measure(args, args.jobs, args.seed, run, &stop, Some(&signals))?
    } else {
        std::thread::scope(|scope| {
            let stop = &stop;
            let share = |n: u32| args.jobs / shards + u32::from(n < args.jobs % shards);
            let seed = |n: u32| args.seed.wrapping_add(u64::from(n) << 32);
            let others: Vec<_> = (1..shards)
                .map(|n| scope.spawn(move || measure(args, share(n), seed(n), run, stop, None)))
                .collect();
            let mut first = measure(args, share(0), seed(0), run, stop, Some(&signals));
            if first.is_err() {
                stop.stop();
            }
            for other in others {
                let other = other.join().unwrap_or_else(|_| Err(Failure::failed("a shard died")));
                match (&mut first, other) {
                    (Ok((_, tally)), Ok((_, more))) => tally.merge(&more),
                    (Ok(_), Err(e)) => first = Err(e),
                    (Err(_), _) => {}
                }
            }
            first
        })?
    };
    let report = Report::new(args.volume.to_string(), &plan, args.jobs, &tally);
    if args.json {
        output::say_json(&report)?;
    } else {
        output::say(&report.text())?;
    }
    // The first is in the failure itself.
    for complaint in tally.complaints.iter().skip(1) {
        output::complain(complaint);
    }
    failure(&tally).map_or(Ok(()), Err)
}

/// Measures the stages of each pattern and size, first of all time, then of processor time.
fn break_down(args: &BenchArgs, wanted: Breakdown) -> Outcome {
    let VolumeSpec::Remote(_) = args.volume else {
        return Err(Failure::usage(format!(
            "--breakdown: {} is a local volume, on whose way nothing is to be told apart",
            args.volume
        )));
    };
    let patterns = match wanted {
        Breakdown::Both => &[Pattern::RandRead, Pattern::RandWrite][..],
        Breakdown::Reads => &[Pattern::RandRead],
        Breakdown::Writes => &[Pattern::RandWrite],
    };
    let signals =
        Signals::catch().map_err(|e| Failure::failed(format!("cannot take over signals: {e}")))?;
    let mut options = OpenOptions::new(args.insecure, &args.wire, args.run_dir.run_dir.clone());
    options.submission = args.submission;
    options.read_only = wanted == Breakdown::Reads;
    let mut open = open_volume(&args.volume, &options, Some(&signals))?;
    open.watch(signals.fd())?;
    let geometry = open.volume().geometry();
    let pool = open.pool().clone();
    let mut table = bench::Breakdown::new(
        args.volume.to_string(),
        [clock_kind::PHYSICAL, clock_kind::VIRTUAL].map(stages::StageClocks::cost_ns),
    );
    let cells: Vec<_> =
        patterns.iter().flat_map(|rw| BREAKDOWN_SIZES.map(|bs| (*rw, bs))).collect();
    // Of what each cell gets, a tenth is for warming up.
    let runtime = args.runtime / (cells.len() as u32 * 2);
    let mut bar = Progress::new(true, args.runtime);
    let mut before = Duration::ZERO;
    for (rw, bs) in cells {
        let plan = |runtime| Plan {
            rw,
            bs: 0,
            iodepth: 1,
            jobs: 1,
            runtime,
            blocks: 0,
            verify: false,
            seed: args.seed,
            timeline: None,
            stamps: true,
        };
        let (warm, plan) = (plan(runtime / 10), plan(runtime * 9 / 10));
        let (warm, plan) =
            (warm.fit(bs, args.size, &geometry)?, plan.fit(bs, args.size, &geometry)?);
        let mut runs = Vec::new();
        for kind in [clock_kind::PHYSICAL, clock_kind::VIRTUAL] {
            let stop = Stop::default();
            let mut run = |plan, open: &mut dyn OpenVolume| -> Outcome<Tally> {
                let engine = Engine::new(plan, &pool, run_number());
                let mut show = |time, ios| bar.show(before + time, ios);
                let tally = engine.run(open, &stop, Some(&signals), &mut show)?;
                failure(&tally).map_or(Ok(tally), Err)
            };
            run(warm, &mut *open)?;
            let at_start = stages_of(&mut *open, kind)?;
            let tally = run(plan, &mut *open)?;
            let at_end = stages_of(&mut *open, kind)?;
            before += runtime;
            runs.push((Run::new(at_start, at_end, &tally)?, tally));
        }
        let [(physical, tally), (cpu, _)] = &runs[..] else { unreachable!("two kinds") };
        table.breakdown.push(Cell::new(&plan, tally, physical, cpu, table.clock_ns));
    }
    bar.end();
    stages_of(&mut *open, clock_kind::OFF)?;
    open.close(false)?;
    if args.json { output::say_json(&table) } else { output::say(&table.text()) }
}

fn stages_of(open: &mut dyn OpenVolume, kind: u8) -> Outcome<[StageSums; 2]> {
    Ok(open.stages(kind)?.expect("a remote volume has stages"))
}

/// One shard: its own attachment of the volume, on this thread.
fn measure(
    args: &BenchArgs,
    jobs: u32,
    seed: u64,
    run: u32,
    stop: &Stop,
    signals: Option<&Signals>,
) -> Outcome<(Plan, Tally)> {
    let mut options = OpenOptions::new(args.insecure, &args.wire, args.run_dir.run_dir.clone());
    options.read_only = matches!(args.rw, Pattern::RandRead | Pattern::Read);
    options.submission = args.submission;
    let mut open = open_volume(&args.volume, &options, signals)?;
    let plan = Plan {
        rw: args.rw,
        bs: 0,
        iodepth: args.iodepth,
        jobs,
        runtime: args.runtime,
        blocks: 0,
        verify: args.verify,
        seed,
        timeline: args.timeline,
        stamps: false,
    }
    .fit(args.bs, args.size, &open.volume().geometry())?;
    if let Some(signals) = signals {
        open.watch(signals.fd())?;
    }
    let pool = open.pool().clone();
    let engine = Engine::new(plan, &pool, run);
    let mut bar = Progress::new(signals.is_some(), args.runtime);
    let tally = engine.run(&mut *open, stop, signals, &mut |time, ios| bar.show(time, ios))?;
    bar.end();
    open.close(tally.interrupted)?;
    Ok((plan, tally))
}

/// A line on the terminal; nothing elsewhere.
struct Progress {
    bar: Option<ProgressBar>,
    last: (Duration, u64),
}

impl Progress {
    fn new(wanted: bool, runtime: Duration) -> Self {
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let style =
                ProgressStyle::with_template("{elapsed} {wide_bar} {msg}").expect("valid template");
            ProgressBar::new(runtime.as_millis() as u64).with_style(style)
        });
        Progress { bar, last: (Duration::ZERO, 0) }
    }

    fn show(&mut self, time: Duration, ios: u64) {
        let Some(bar) = &self.bar else { return };
        let (since, before) = self.last;
        if time < since + Duration::from_millis(400) {
            return;
        }
        let rate = (ios - before) as f64 / (time - since).as_secs_f64();
        bar.set_position(time.as_millis() as u64);
        bar.set_message(format!("{rate:.0} IOPS"));
        self.last = (time, ios);
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Different in every run.
fn run_number() -> u32 {
    let time =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (time.as_nanos() as u32) ^ std::process::id().rotate_left(16)
}
