//! Thinwire itself: `thinwire target` on one side, `thinwire bench` on the other.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::{Abilities, Contender, Meter, handshake, patience, strs, words};
use crate::error::{LabError, Outcome};
use crate::figures::{BatchFigures, Figures, Moment, StageFigures, Stages};
use crate::load::MIX;
use crate::point::{Carrier, JOINING, Load, Point, Protection, Settings};
use crate::stand::{Laboratory, Network, Process, Side, VOLUME_MIB};

/// A target with filled volumes, one for each initiator, and initiators that measure them.
pub struct ThinwirePair<'l> {
    lab: &'l Laboratory<'l>,
    carrier: Carrier,
    flags: Vec<String>,
    /// How frames are protected: the same flags on both sides.
    guard: Vec<String>,
    target: Process,
    network: Network<'l>,
}

/// MiB of the further volumes that joining streams use.
const JOINING_MIB: u32 = 64;

/// Points of a timeline in an interval between two streams that join.
const MOMENTS: f64 = 4.0;

impl<'l> ThinwirePair<'l> {
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        abilities: &Abilities,
        point: &Point,
        carrier: Carrier,
        settings: Settings,
    ) -> Outcome<Self> {
        let (wire, joined) = (point.wire, point.load.joined_every_s > 0);
        let (target_flags, flags) = abilities.deal(settings.flags())?;
        for (wanted, flag) in [(joined, "--timeline"), (point.load.stages, "--breakdown")] {
            if wanted && !abilities.bench_has(flag) {
                return Err(LabError::Failed(format!("not available in this build: {flag}")));
            }
        }
        let network = Network::new(lab, wire)?;
        let mut argv = Vec::new();
        let own = wire.initiators;
        for n in 0..own {
            argv.extend(words!["--export", format!("disk{n}=memory:{VOLUME_MIB}M")]);
        }
        for n in 0..if joined { JOINING } else { 0 } {
            argv.extend(words!["--export", format!("disk{}=memory:{JOINING_MIB}M", own + n)]);
        }
        if settings.shards > 0 {
            argv.extend(words!["--shards", settings.shards]);
        }
        argv.extend(target_flags);
        let guard = guard(lab, settings.protection)?;
        let target = serve(lab, &network, carrier, &guard, &argv, &[])?;
        let pair = ThinwirePair { lab, carrier, flags, guard, target, network };
        for n in 1..=own {
            fill(lab, &pair.network, n, &pair.guard, &pair.uri(n, n - 1))?;
        }
        pair.network.shape()?;
        Ok(pair)
    }

    fn uri(&self, initiator: u32, disk: u32) -> String {
        uri(&self.network, self.carrier, initiator, disk)
    }

    /// Starts an initiator, which measures from a time of CLOCK_MONOTONIC on, in seconds, or at once.
    fn bench(
        &self,
        initiator: u32,
        disk: u32,
        load: &Load,
        seconds: f64,
        start_at: Option<f64>,
    ) -> Outcome<Process> {
        let run_dir = self.lab.fresh_path("run");
        let mut argv = words![
            self.lab.executable(),
            "bench",
            self.uri(initiator, disk),
            "--run-dir",
            run_dir.display(),
        ];
        argv.extend(self.guard.iter().cloned());
        argv.extend(bench_flags(load, seconds));
        if let Some(at) = start_at {
            argv.extend(words!["--start-at", format!("{at:.6}")]);
        }
        argv.extend(self.flags.iter().cloned());
        if load.joined_every_s > 0 {
            argv.extend(words!["--timeline", f64::from(load.joined_every_s) / MOMENTS]);
        }
        self.network.start(Side::Initiator(initiator), &strs(&argv))
    }

    /// Where the time goes, for all sizes of the document.
    fn stages(&self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let run_dir = self.lab.fresh_path("run");
        let mut argv = words![
            self.lab.executable(),
            "bench",
            "--json",
            self.uri(1, 0),
            "--breakdown",
            "--rw",
            load.pattern.word(),
            "--runtime",
            seconds,
            "--run-dir",
            run_dir.display()
        ];
        argv.extend(self.guard.iter().chain(&self.flags).cloned());
        let process = self.network.start(Side::Initiator(1), &strs(&argv))?;
        stages(&process.finish(self.lab, patience(seconds))?.0)
    }

    /// All initiators under a load. Rates are added up, so they have to be of the same time: several
    /// begin together. In each further attempt they have longer to attach.
    fn streams(&self, load: &Load, seconds: f64, attempt: u32) -> Outcome<Vec<(f64, Report)>> {
        if load.joined_every_s > 0 {
            return self.joined(load);
        }
        let initiators = self.network.wire().initiators;
        let after = start_after(initiators) * f64::from(attempt);
        let start_at = (initiators > 1).then(|| monotonic() + after);
        let running: Vec<Process> = (1..=initiators)
            .map(|n| self.bench(n, n - 1, load, seconds, start_at))
            .collect::<Outcome<_>>()?;
        // Each of them ends by itself, so that none is left attached.
        let end = |process: Process| process.finish(self.lab, patience(seconds));
        let ends: Vec<Outcome<(String, Duration)>> = running.into_iter().map(end).collect();
        ends.into_iter().map(|end| Ok((0.0, Report::parse(&end?.0)?))).collect()
    }

    /// The load of Figure 8: streams of large I/Os join one of small ones, one by one.
    fn joined(&self, load: &Load) -> Outcome<Vec<(f64, Report)>> {
        let every = f64::from(load.joined_every_s);
        let total = every * f64::from(JOINING + 1);
        let large = Load { block: 131_072, depth: 1, jobs: 1, ..*load };
        let start = Instant::now();
        let mut running = vec![(0.0, self.bench(1, 0, load, total, None)?)];
        for n in 1..=JOINING {
            let at = every * f64::from(n);
            self.lab.until("the next stream's time", patience(every), || {
                Ok((start.elapsed().as_secs_f64() >= at).then_some(()))
            })?;
            running.push((at, self.bench(1, n, &large, total - at, None)?));
        }
        let end = |(at, process): (f64, Process)| {
            Ok((at, Report::parse(&process.finish(self.lab, patience(total))?.0)?))
        };
        running.into_iter().map(end).collect()
    }
}

impl Contender for ThinwirePair<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        if load.stages {
            return self.stages(load, seconds);
        }
        if load.handshakes {
            let meter = Meter::start(Some(&self.target));
            let to = address(&self.network, self.carrier);
            let mut figures =
                handshake::measure(self.lab, &self.network, &self.guard, &to, seconds)?;
            let (cpu_server_us, cpu_machine_us) = meter.stop(figures.iops * seconds);
            (figures.cpu_server_us, figures.cpu_machine_us) = (cpu_server_us, cpu_machine_us);
            return Ok(figures);
        }
        let mut attempt = 1;
        let (meter, reports) = loop {
            let meter = Meter::start(Some(&self.target));
            match self.streams(load, seconds, attempt) {
                Err(e) if attempt < TRIES && was_late(&e) => attempt += 1,
                found => break (meter, found?),
            }
        };
        let ios: f64 = reports.iter().map(|(_, r)| r.ios).sum();
        let (cpu_server_us, cpu_machine_us) = meter.stop(ios);
        let mut figures = together(&reports, ios);
        (figures.cpu_server_us, figures.cpu_machine_us) = (cpu_server_us, cpu_machine_us);
        Ok(figures)
    }
}

/// Attempts at having several initiators begin together.
const TRIES: u32 = 3;

/// What `thinwire bench` says when it is attached only after the time at which it was to begin (a test
/// of its own holds it to these words).
const LATE: &str = "after --start-at";

fn was_late(error: &LabError) -> bool {
    matches!(error, LabError::Failed(why) if why.contains(LATE))
}

/// How long after they are started several initiators begin together, in seconds: all are attached
/// by then.
pub fn start_after(initiators: u32) -> f64 {
    0.3 + 0.1 * f64::from(initiators)
}

/// The time of CLOCK_MONOTONIC, in seconds.
pub fn monotonic() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Without a key.
pub const BARE: &str = "--insecure";

/// How frames are protected, in flags that both sides take: with a key of its own, if with one.
pub fn guard(lab: &Laboratory, protection: Option<Protection>) -> Outcome<Vec<String>> {
    let Some(protection) = protection else { return Ok(words![BARE]) };
    let folder = lab.fresh_path("keys");
    let folder = folder.to_str().expect("our own path");
    let key = lab.run(None, &[lab.executable(), "key", "new", "lab", "--dir", folder], "")?;
    let mut flags = words!["--key", key.trim()];
    if protection == Protection::Authenticated {
        flags.extend(words!["--authenticate-only"]);
    }
    Ok(flags)
}

/// Starts a target on all links of a network, protected so, with further flags, and waits until it serves.
/// `prefix`: words before the command.
pub fn serve(
    lab: &Laboratory,
    network: &Network,
    carrier: Carrier,
    guard: &[String],
    flags: &[String],
    prefix: &[String],
) -> Outcome<Process> {
    serve_in(lab, network, carrier, guard, flags, prefix, &lab.fresh_path("run"))
}

/// The same with a run directory of the caller's choice, where it can be asked for its status.
pub fn serve_in(
    lab: &Laboratory,
    network: &Network,
    carrier: Carrier,
    guard: &[String],
    flags: &[String],
    prefix: &[String],
    run_dir: &Path,
) -> Outcome<Process> {
    let mut argv = prefix.to_vec();
    argv.extend(words![lab.executable(), "target", "--name", "lab"]);
    argv.extend(words!["--run-dir", run_dir.display()]);
    argv.extend(guard.iter().cloned());
    for link in 1..=network.wire().links {
        argv.extend(words!["--link", link_text(network, carrier, Side::Target, link)]);
    }
    argv.extend(flags.iter().cloned());
    let mut target = network.start(Side::Target, &strs(&argv))?;
    target.until_says(lab, "ready ", Duration::from_secs(20))?;
    Ok(target)
}

/// Fills a volume with the random bytes that all volumes hold.
pub fn fill(
    lab: &Laboratory,
    network: &Network,
    initiator: u32,
    guard: &[String],
    uri: &str,
) -> Outcome {
    let blob = lab.blob()?;
    let mut argv = words![lab.executable(), "copy", blob.display(), uri];
    argv.extend(guard.iter().cloned());
    network.run(Side::Initiator(initiator), &strs(&argv), "").map(drop)
}

/// Of the first volume, by the target's address: a name would have to be looked for first.
fn address(network: &Network, carrier: Carrier) -> String {
    match carrier {
        Carrier::Udp => uri(network, carrier, 1, 0),
        raw => {
            let link = link_text(network, raw, Side::Initiator(1), 1);
            format!("tw://{}/disk0?link={link}", network.mac(Side::Target, 1))
        }
    }
}

/// Of a volume, as an initiator names it.
pub fn uri(network: &Network, carrier: Carrier, initiator: u32, disk: u32) -> String {
    let side = Side::Initiator(initiator);
    let text = |link| format!("link={}", link_text(network, carrier, side, link));
    let parameters: Vec<String> = (1..=network.wire().links).map(text).collect();
    match (carrier, &parameters[..]) {
        // One address in the name; the session learns of the others as further links.
        (Carrier::Udp, [_]) => format!("tw+udp://{}/disk{disk}", network.address(Side::Target, 1)),
        (Carrier::Udp, several) => {
            let at = network.address(Side::Target, 1);
            format!("tw+udp://{at}/disk{disk}?{}", several.join("&"))
        }
        (_, several) => format!("tw://lab/disk{disk}?{}", several.join("&")),
    }
}

/// What `thinwire bench` is told of a load.
pub fn bench_flags(load: &Load, seconds: f64) -> Vec<String> {
    let mut flags = words![
        "--json",
        "--rw",
        load.pattern.word(),
        "--bs",
        load.block,
        "--iodepth",
        load.depth,
        "--jobs",
        load.jobs,
        "--runtime",
        seconds,
    ];
    if load.pattern.is_mixed() {
        flags.extend(words!["--mix", MIX]);
    }
    flags
}

/// A link of a side, as `--link` takes it.
pub fn link_text(network: &Network, carrier: Carrier, side: Side, link: u32) -> String {
    match carrier {
        Carrier::Udp => format!("udp:{}", network.address(side, link)),
        raw => format!("{}:eth{link}", raw.word()),
    }
}

/// The fields of `thinwire bench --json` that are used here.
#[derive(Debug, Deserialize)]
struct Report {
    ios: f64,
    iops: f64,
    mib_per_s: f64,
    latency_us: Latency,
    cpu_us_per_io: f64,
    errors: u64,
    #[serde(default)]
    copied_bytes: f64,
    #[serde(default)]
    batch: Option<BatchFigures>,

    #[serde(default)]
    timeline: Vec<Moment>,
}

#[derive(Debug, Deserialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p99: f64,
    #[serde(default)]
    max: Option<f64>,
}

impl Report {
    fn parse(text: &str) -> Outcome<Self> {
        let report: Report = serde_json::from_str(text).map_err(|e| {
            LabError::Failed(format!("bench --json is not understood: {e}: {text}"))
        })?;
        match report.errors {
            0 => Ok(report),
            errors => Err(LabError::Failed(format!("bench: {errors} I/Os failed"))),
        }
    }
}

/// `bench --breakdown --json`, as far as it is used here.
#[derive(Debug, Deserialize)]
struct Breakdown {
    #[serde(default)]
    virtual_clock_ns: Option<f64>,
    cells: Vec<Cell>,
}

/// A size.
#[derive(Debug, Deserialize)]
struct Cell {
    bs: u32,
    mib_per_s: f64,
    breakdown: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    row: String,
    physical_us: Time,
    virtual_us: Option<Time>,
}

#[derive(Debug, Deserialize)]
struct Time {
    mean: f64,
}

impl Cell {
    fn stages(self, virtual_clock_ns: Option<f64>) -> Stages {
        let stage = |row: Row| StageFigures {
            row: row.row,
            physical_us: row.physical_us.mean,
            virtual_us: row.virtual_us.map(|time| time.mean),
        };
        let rows = self.breakdown.into_iter().map(stage).collect();
        let virtual_clock_us = virtual_clock_ns.map(|ns| ns / 1000.0);
        Stages { bs: self.bs, mib_per_s: self.mib_per_s, virtual_clock_us, rows }
    }
}

/// What `bench --breakdown --json` printed. Its rate and latency are those of the smallest size.
fn stages(text: &str) -> Outcome<Figures> {
    let found: Breakdown = serde_json::from_str(text).map_err(|e| {
        LabError::Failed(format!("bench --breakdown --json is not understood: {e}: {text}"))
    })?;
    let clock = found.virtual_clock_ns;
    let breakdown: Vec<Stages> = found.cells.into_iter().map(|cell| cell.stages(clock)).collect();
    let smallest = breakdown.iter().min_by_key(|stages| stages.bs);
    let smallest = smallest.ok_or_else(|| LabError::Failed("bench: no breakdown".into()))?;
    Ok(Figures {
        iops: smallest.mib_per_s * f64::from(1 << 20) / f64::from(smallest.bs),
        mib_per_s: smallest.mib_per_s,
        mean_us: smallest.physical_us("total").unwrap_or_default(),
        breakdown,
        ..Figures::default()
    })
}

/// What one `bench --json` printed, and how many I/Os it did.
pub fn one(text: &str) -> Outcome<(Figures, f64)> {
    let report = Report::parse(text)?;
    let ios = report.ios;
    Ok((together(&[(0.0, report)], ios), ios))
}

/// The bytes that the client of one `bench --json` copied.
pub fn copied_by(text: &str) -> Outcome<f64> {
    Ok(Report::parse(text)?.copied_bytes)
}

/// Reports of streams that ran beside each other, each with the time it began at, as one: rates add
/// up, latencies are means over all I/Os, percentiles are those of the slowest stream.
fn together(reports: &[(f64, Report)], ios: f64) -> Figures {
    let weighted = |of: &dyn Fn(&Report) -> f64| {
        reports.iter().map(|(_, r)| of(r) * r.ios).sum::<f64>() / ios.max(1.0)
    };
    let worst = |of: &dyn Fn(&Report) -> f64| reports.iter().map(|(_, r)| of(r)).reduce(f64::max);
    let first = reports.first().map(|(_, report)| report);
    Figures {
        iops: reports.iter().map(|(_, r)| r.iops).sum(),
        mib_per_s: reports.iter().map(|(_, r)| r.mib_per_s).sum(),
        mean_us: weighted(&|r| r.latency_us.mean),
        p50_us: worst(&|r| r.latency_us.p50),
        p99_us: worst(&|r| r.latency_us.p99),
        max_us: reports.iter().filter_map(|(_, r)| r.latency_us.max).reduce(f64::max),
        cpu_client_us: weighted(&|r| r.cpu_us_per_io),
        batch: first.and_then(|r| r.batch.clone()),

        timeline: merged(reports),
        ..Figures::default()
    }
}

/// The first stream's timeline with what the others moved in the same intervals added. Their
/// intervals are as long, and begin with a multiple of them.
fn merged(reports: &[(f64, Report)]) -> Vec<Moment> {
    let Some(((_, first), others)) = reports.split_first() else { return Vec::new() };
    let mut all = first.timeline.clone();
    let step = all.first().map_or(1.0, |moment| moment.t).max(1e-3);
    for (began, report) in others {
        for moment in &report.timeline {
            let at = ((began + moment.t) / step).round() as usize;
            if let Some(sum) = at.checked_sub(1).and_then(|at| all.get_mut(at)) {
                sum.iops += moment.iops;
                sum.mib_per_s += moment.mib_per_s;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ios: f64, mean: f64, timeline: &[(f64, f64)]) -> Report {
        let moment = |&(t, mib_per_s): &(f64, f64)| Moment { t, iops: 1.0, mib_per_s, level: None };
        Report {
            ios,
            iops: ios,
            mib_per_s: ios / 256.0,
            latency_us: Latency { mean, p50: mean, p99: mean * 2.0, max: None },
            cpu_us_per_io: mean / 2.0,
            errors: 0,
            copied_bytes: 0.0,
            batch: None,

            timeline: timeline.iter().map(moment).collect(),
        }
    }

    #[test]
    fn streams_add_up() {
        let reports = [(0.0, report(300.0, 10.0, &[])), (0.0, report(100.0, 50.0, &[]))];
        let figures = together(&reports, 400.0);
        assert_eq!((figures.iops, figures.mean_us), (400.0, 20.0));
        assert_eq!((figures.p99_us, figures.cpu_client_us), (Some(100.0), 10.0));
    }

    #[test]
    fn only_who_was_late_is_asked_again() {
        let ended = |why: &str| was_late(&LabError::Failed(format!("bench ended, exit 1: {why}")));
        assert!(ended("attached 12 ms after --start-at; give a later one"));
        assert!(!ended("no target answers") && !was_late(&LabError::Interrupted));
    }

    #[test]
    fn timelines_add_up_where_they_overlap() {
        let first = report(1.0, 1.0, &[(0.5, 10.0), (1.0, 10.0), (1.5, 10.0), (2.0, 10.0)]);
        let second = report(1.0, 1.0, &[(0.5, 5.0), (1.0, 7.0), (1.5, 9.0)]);
        let merged: Vec<f64> =
            merged(&[(0.0, first), (1.0, second)]).iter().map(|m| m.mib_per_s).collect();
        assert_eq!(merged, [10.0, 10.0, 15.0, 17.0]);
    }

    #[test]
    fn what_bench_prints_is_understood() {
        let text = r#"{"schema":1,"ios":100,"iops":50.5,"mib_per_s":0.2,"errors":0,
            "latency_us":{"mean":1.0,"p50":1,"p99":2,"p999":3,"max":4},"cpu_us_per_io":3.5,"copied_bytes":4096,
            "batch":{"policy":"tyche","level_mean":3.5,"level_last":4,"frames":7,"requests_per_frame":2.5},
            "timeline":[{"t":1.0,"iops":5.0,"mib_per_s":1.0,"level":4}]}"#;
        let figures = together(&[(0.0, Report::parse(text).unwrap())], 100.0);

        assert_eq!(figures.batch.unwrap().level_mean, 3.5);
        assert_eq!((figures.timeline[0].level, figures.max_us), (Some(4.0), Some(4.0)));
        assert_eq!(copied_by(text), Ok(4096.0));
        let text_of_stages = r#"{"schema":1,"clock_ns":28.0,"virtual_clock_ns":410.0,"cells":[{"rw":"randread","bs":4096,"ios":9,
            "mib_per_s":256.0,"breakdown":[{"row":"Ty-IS","physical_us":{"mean":1.5},"virtual_us":null},
            {"row":"total","physical_us":{"mean":15.5},"virtual_us":{"mean":1}}]}]}"#;
        let figures = stages(text_of_stages).unwrap();
        assert_eq!((figures.iops, figures.mean_us), (65536.0, 15.5));
        assert_eq!(figures.stages(4096).unwrap().physical_us("Ty-IS"), Some(1.5));
        assert_eq!(figures.stages(4096).unwrap().virtual_clock_us, Some(0.41));
        assert_eq!(figures.stages(8192), None);
        let failed = text.replace("\"errors\":0", "\"errors\":3");
        assert!(Report::parse(&failed).unwrap_err().to_string().contains("3 I/Os failed"));
    }
}
