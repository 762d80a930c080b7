//! `thinwire-sim`: runs seeds, and replays one.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use thinwire_sim::{
    Canary, Coverage, Enumerated, RunReport, Story, enumerate, has_spread, has_tree, run_story,
};

/// Runs whole simulated systems, each drawn from a seed, and checks every promise.
///
/// A failure names the seed and the commit: together they repeat the run exactly.
#[derive(Parser)]
#[command(name = "thinwire-sim", version)]
struct Args {
    /// Run the seeds from A up to, but not including, B.
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Of these, only the seeds whose world has a tree of volumes: a gateway, or a client of one.
    #[arg(long, requires = "seeds")]
    trees: bool,
    /// Of these, only the seeds in whose world targets have exports on all of their shards.
    #[arg(long, requires = "seeds", conflicts_with = "trees")]
    spread: bool,
    /// Run all of them in worlds about this: `ebd` or `aoe`, whose exports are offered in that protocol, too; `volumes`, with a volume
    /// composed of disks.
    #[arg(long, value_name = "STORY", value_parser = ["ebd", "aoe", "volumes"])]
    story: Option<String>,
    /// The same as --story volumes.
    #[arg(long, conflicts_with_all = ["story", "trees", "spread"])]
    volumes: bool,
    /// In place of worlds, try every crash of short workloads over volumes of disks of one machine, each with every subset of a few
    /// unflushed writes lost, and each of them torn.
    #[arg(long, requires = "volumes")]
    enumerate: bool,
    /// Run one seed.
    #[arg(long, value_name = "S", required_unless_present = "seeds")]
    seed: Option<u64>,
    /// Threads that share the seeds.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Print what happens (with --seed).
    #[arg(short, long)]
    verbose: bool,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let parts = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((a, b)) if a < b => Ok(a..b),
        _ => Err("expected A..B with A below B, for example 0..2000".into()),
    }
}

thread_local! {
    /// Where the last panic of this thread was.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a seed; a panic of the system under test is a failure like any other.
fn run(seed: u64, story: Story, prints: bool) -> Result<RunReport, String> {
    let run = || run_story(seed, story, Canary::None, prints);
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(violation)) => Err(violation.0),
        Err(_) => Err(PANIC.with_borrow(|text| format!("panic: {text}"))),
    }
}

/// The commit this was built from, or the one checked out where it runs.
fn commit() -> String {
    if let Some(commit) = option_env!("THINWIRE_COMMIT") {
        return commit.to_string();
    }
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let commit = output.ok().filter(|o| o.status.success());
    commit
        .map_or_else(|| "unknown".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_string())
}

/// Tries every crash of the workloads of these seeds.
fn enumerate_all(seeds: Range<u64>, threads: u32) -> ExitCode {
    let (started, count) = (Instant::now(), seeds.end - seeds.start);
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Enumerated::default()));
    let failure = Mutex::new(None::<(u64, String)>);
    let work = || {
        while failure.lock().expect("nobody panics with it").is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let tried = panic::catch_unwind(|| enumerate(seed, Canary::None));
            let text = match tried {
                Ok(Ok(tried)) => {
                    let mut sum = sum.lock().expect("nobody panics with it");
                    sum.moments += tried.moments;
                    sum.crashes += tried.crashes;
                    sum.healed += tried.healed;
                    sum.apart += tried.apart;
                    eprintln!(
                        "seed {seed}: {} crashes at {} moments",
                        tried.crashes, tried.moments
                    );
                    continue;
                }
                Ok(Err(violation)) => violation.0,
                Err(_) => PANIC.with_borrow(|text| format!("panic: {text}")),
            };
            failure.lock().expect("nobody panics with it").get_or_insert((seed, text));
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    if let Some((seed, text)) = failure.into_inner().expect("all threads have ended") {
        println!("seed {seed} failed at commit {}: {text}", commit());
        println!(
            "repeat it with: cargo run --release -p thinwire-sim -- --volumes --enumerate --seed {seed}"
        );
        return ExitCode::FAILURE;
    }
    let Enumerated { moments, crashes, healed, apart } =
        sum.into_inner().expect("all threads have ended");
    println!(
        "{count} workloads passed in {:.1} s: {crashes} crashes at {moments} moments, {healed} followed until all was whole, {apart} with legs of a mirror alone",
        started.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}

struct Shared {
    next: AtomicU64,
    end: u64,
    wanted: fn(u64) -> bool,
    story: Story,
    done: AtomicU64,
    stop: AtomicBool,
    coverage: Mutex<Coverage>,
    failures: Mutex<Vec<(u64, String)>>,
}

fn work(shared: &Shared) {
    let mut sum = Coverage::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let seed = shared.next.fetch_add(1, Ordering::Relaxed);
        if seed >= shared.end {
            break;
        }
        if !(shared.wanted)(seed) {
            continue;
        }
        match run(seed, shared.story, false) {
            Ok(report) => sum.add(&report.coverage),
            Err(text) => {
                shared.failures.lock().expect("nobody panics with it").push((seed, text));
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
        shared.done.fetch_add(1, Ordering::Relaxed);
    }
    shared.coverage.lock().expect("nobody panics with it").add(&sum);
}

fn run_seeds(
    seeds: Range<u64>,
    story: Story,
    wanted: fn(u64) -> bool,
    all: bool,
    threads: u32,
) -> ExitCode {
    let started = Instant::now();
    let count = seeds.clone().filter(|&seed| wanted(seed)).count() as u64;
    let shared = Shared {
        next: AtomicU64::new(seeds.start),
        end: seeds.end,
        wanted,
        story,
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        coverage: Mutex::default(),
        failures: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&shared))).collect();
        let mut told = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                eprintln!("{} of {count} seeds", shared.done.load(Ordering::Relaxed));
            }
        }
    });
    let failures = shared.failures.into_inner().expect("all threads have ended");
    if let Some((seed, text)) = failures.iter().min() {
        return fail(*seed, story, text);
    }
    let coverage = shared.coverage.into_inner().expect("all threads have ended");
    let counts: Vec<_> = coverage.iter().map(|(name, count)| format!("{name}={count}")).collect();
    println!(
        "{count} seeds passed in {:.1} s: {}",
        started.elapsed().as_secs_f64(),
        counts.join(" ")
    );
    let drops: Vec<_> =
        coverage.drops.all().map(|(name, count)| format!("{name}={count}")).collect();
    println!("dropped: {}", drops.join(" "));
    let changes: Vec<_> =
        coverage.transitions.iter().map(|(name, count)| format!("{name} = {count}")).collect();
    println!("changes of state: {}", changes.join("; "));
    let crashes: Vec<_> =
        coverage.transitions.crashes().map(|(name, count)| format!("{name} = {count}")).collect();
    println!("crashes at changes of state: {}", crashes.join("; "));
    let in_vain = coverage.excused_in_vain(count);
    if !in_vain.is_empty() {
        println!(
            "these seeds exercised what `coverage.rs` says no seed does: {}",
            in_vain.join(", ")
        );
        return ExitCode::FAILURE;
    }
    let missing = match story {
        Story::Volumes => coverage.missing_of_volumes(count),
        _ if all => coverage.missing(count),
        _ => Vec::new(),
    };
    if !missing.is_empty() {
        println!("these seeds never exercised: {}", missing.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn fail(seed: u64, story: Story, text: &str) -> ExitCode {
    let told = story.name().map_or(String::new(), |name| format!(" --story {name}"));
    println!("seed {seed} failed at commit {}: {text}", commit());
    println!("repeat it with: cargo run --release -p thinwire-sim -- --seed {seed}{told} -v");
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let args = Args::parse();
    panic::set_hook(Box::new(|info| {
        PANIC.with_borrow_mut(|text| *text = info.to_string());
    }));
    let asked = if args.volumes { Some("volumes") } else { args.story.as_deref() };
    let is_asked = |story: &Story| story.name() == asked;
    let stories = [Story::Ebd, Story::Aoe, Story::Volumes];
    let story = stories.into_iter().find(is_asked).unwrap_or_default();
    if args.enumerate {
        let one = args.seed.map(|seed| seed..seed + 1);
        let seeds = args.seeds.or(one).expect("one of the two is required");
        return enumerate_all(seeds, args.threads);
    }
    if let Some(seeds) = args.seeds {
        let wanted: fn(u64) -> bool = match (args.trees, args.spread) {
            (true, _) => has_tree,
            (false, true) => has_spread,
            (false, false) => |_| true,
        };
        let all = !args.trees && !args.spread && story == Story::Swarm;
        return run_seeds(seeds, story, wanted, all, args.threads);
    }
    let seed = args.seed.expect("one of the two is required");
    match run(seed, story, args.verbose) {
        Ok(report) => {
            for (name, count) in report.coverage.iter().filter(|&(_, count)| count > 0) {
                println!("{name:<24} {count}");
            }
            println!("seed {seed} passed, trace {:016x}", report.trace_hash);
            ExitCode::SUCCESS
        }
        Err(text) => fail(seed, story, &text),
    }
}
