//! `thinwire bench`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};

use super::breakdown::break_down;
use crate::bench::{BenchPlan, BenchReport, Engine, Stop, Tally, failure};
use crate::cli::{BenchArgs, BenchPattern, MIX_DEFAULT};
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::open::{Ending, OpenVolume, VolumeOptions, Wait, let_go, let_go_failed, open_volume};
use crate::output;
use crate::signals::Signals;

/// Bytes an I/O, if the user does not say.
const BS_DEFAULT: u64 = 4096;

/// How a user says that nothing is to be written.
pub(super) const READING_FLAG: &str = "--rw randread";

/// Measures, prints the report, fails if any I/O failed.
pub fn run(args: &BenchArgs) -> Outcome {
    if args.breakdown {
        return break_down(args);
    }
    let reads_only = pattern(args).reads_only();
    if let Some(percent) = args.mix
        && !pattern(args).is_mixed()
    {
        return Err(Failure::usage(format!(
            "--mix {percent}: this pattern does not mix; say --rw rw or --rw randrw"
        )));
    }
    if args.take_over && reads_only {
        let why =
            "--take-over: this pattern only reads, and readers disturb no writer; leave it away";
        return Err(Failure::usage(why));
    }
    let shards = args.wire.shards.unwrap_or(1);
    // However many jobs there are to share out.
    if shards > 1 && !reads_only {
        return Err(Failure::usage(format!(
            "--shards {shards}: each shard is an attachment of its own, and a volume has one writer; \
             patterns that write need --shards 1"
        )));
    }
    if !reads_only {
        refuse_in_use(&args.volume, "writing to it")?;
    }
    let shards = shards.min(args.jobs);
    let (signals, _) = catch_signals(2, &[&args.volume])?;
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
    let report = BenchReport::new(args.volume.to_string(), &plan, args.jobs, &tally);
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

/// The pattern to measure.
fn pattern(args: &BenchArgs) -> BenchPattern {
    args.rw.unwrap_or(BenchPattern::RandRead)
}

/// One shard: its own attachment of the volume, on this thread.
fn measure(
    args: &BenchArgs,
    jobs: u32,
    seed: u64,
    run: u32,
    stop: &Stop,
    signals: Option<&Signals>,
) -> Outcome<(BenchPlan, Tally)> {
    let mut options =
        VolumeOptions::new(args.security.read()?, &args.wire, args.run_dir.run_dir.clone());
    options.read_only = pattern(args).reads_only();
    options.take_over = args.take_over;
    options.submission = args.submission;
    options.flags.reading = Some(READING_FLAG);
    options.hurry = signals.and_then(Signals::hurry);
    let mut open = open_volume(&args.volume, &options, signals)?;
    let mut has_written = false;
    match run_plan(args, (jobs, seed, run), stop, signals, &mut *open, &mut has_written) {
        Ok((plan, tally)) => {
            // Interrupted or not: what has come to an end can be ended in order.
            match tally.interrupted && open.volume().outstanding() > 0 {
                true => let_go_failed(&mut *open, has_written),
                false => let_go(&mut *open, Ending::Orderly)?,
            }
            Ok((plan, tally))
        }
        Err(failure) => {
            let_go_failed(&mut *open, has_written);
            Err(failure)
        }
    }
}

/// Makes the plan fit the volume, and runs it; tells whether it has come to write.
fn run_plan(
    args: &BenchArgs,
    (jobs, seed, run): (u32, u64, u32),
    stop: &Stop,
    signals: Option<&Signals>,
    open: &mut dyn OpenVolume,
    has_written: &mut bool,
) -> Outcome<(BenchPlan, Tally)> {
    let plan = BenchPlan {
        rw: pattern(args),
        mix: args.mix.unwrap_or(MIX_DEFAULT),
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
    .fit(args.bs.unwrap_or(BS_DEFAULT), args.size, &open.volume().geometry())?;
    if let Some(signals) = signals {
        open.watch(signals.fd())?;
    }
    let pool = open.pool().clone();
    let engine = Engine::new(plan, &pool, run);
    if let Some(at) = args.start_at {
        start_at(open, at, stop, signals)?;
    }
    let mut bar = Progress::new(signals.is_some(), args.runtime);
    *has_written = plan.writes();
    let tally = engine.run(open, stop, signals, &mut |time, ios| bar.show(time, ios))?;
    bar.end();
    Ok((plan, tally))
}

/// Seconds until a time of CLOCK_MONOTONIC, in seconds.
fn left_until(at: f64) -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    at - (now.tv_sec as f64 + now.tv_nsec as f64 / 1e9)
}

/// Keeps the volume until a time of CLOCK_MONOTONIC, in seconds, or until a signal stops all. Fails if
/// it is past: others began without this one, and rates of different times do not add up.
fn start_at(open: &mut dyn OpenVolume, at: f64, stop: &Stop, signals: Option<&Signals>) -> Outcome {
    let mut left = left_until(at);
    if left <= 0.0 {
        let late = -left * 1000.0;
        let why = format!("attached {late:.0} ms after --start-at; give a later one");
        return Err(Failure::failed(why));
    }
    while left > 0.0 && !stop.is_stopped() {
        open.turn(Wait::Until(Instant::now() + Duration::from_secs_f64(left.min(0.1))))?;
        if signals.is_some_and(|signals| signals.take().is_some()) {
            stop.stop();
        }
        left = left_until(at);
    }
    Ok(())
}

/// A line on the terminal; nothing elsewhere.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    last: (Duration, u64),
}

impl Progress {
    pub fn new(wanted: bool, runtime: Duration) -> Self {
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let style =
                ProgressStyle::with_template("{elapsed} {wide_bar} {msg}").expect("valid template");
            ProgressBar::new(runtime.as_millis() as u64).with_style(style)
        });
        Progress { bar, last: (Duration::ZERO, 0) }
    }

    pub fn show(&mut self, time: Duration, ios: u64) {
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

    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Different in every run.
pub(super) fn run_number() -> u32 {
    let time =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (time.as_nanos() as u32) ^ std::process::id().rotate_left(16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemoryVolume;

    fn now() -> f64 {
        -left_until(0.0)
    }

    #[test]
    fn a_start_is_waited_for_unless_all_is_stopped() {
        let mut open = MemoryVolume::new(1 << 20, 512);
        let (stop, start) = (Stop::default(), Instant::now());
        start_at(&mut open, now() + 0.15, &stop, None).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(140), "{:?}", start.elapsed());
        stop.stop();
        start_at(&mut open, now() + 1e6, &stop, None).unwrap();
    }

    #[test]
    fn a_start_that_is_past_is_an_error() {
        let mut open = MemoryVolume::new(1 << 20, 512);
        let error = start_at(&mut open, now() - 0.25, &Stop::default(), None).unwrap_err();
        let said = &error.message;
        assert!(said.starts_with("attached 25") && said.contains("give a later one"), "{said}");
        assert!(said.contains("after --start-at"), "the laboratory looks for these words");
    }
}
