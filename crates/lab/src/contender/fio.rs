//! fio, which drives NBD servers by its nbd engine, and files and devices by direct I/O.

use std::time::Duration;

use serde::Deserialize;

use super::{patience, strs, words};
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::load::MIX;
use crate::point::{Load, Pattern};
use crate::stand::{Laboratory, Network, Side, VOLUME_MIB};

/// What fio is pointed at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    /// An NBD server, by its URI.
    Nbd(String),
    /// A file or a device, by its path, with direct I/O.
    Path(String),
}

impl Aim {
    fn flags(&self) -> Vec<String> {
        match self {
            Aim::Nbd(uri) => words!["--ioengine=nbd", format!("--uri={uri}")],
            Aim::Path(path) => {
                words!["--ioengine=libaio", "--direct=1", format!("--filename={path}")]
            }
        }
    }
}

/// Runs a load on the initiator's side; also returns how many I/Os it did. CPU times but the
/// client's are the caller's to add.
pub fn run(
    lab: &Laboratory,
    network: &Network,
    aim: &Aim,
    load: &Load,
    seconds: f64,
) -> Outcome<(Figures, f64)> {
    run_on(lab, network, Side::Initiator(1), aim, load, seconds, &[])
}

/// The same on another side, and with further flags.
pub fn run_on(
    lab: &Laboratory,
    network: &Network,
    side: Side,
    aim: &Aim,
    load: &Load,
    seconds: f64,
    more: &[String],
) -> Outcome<(Figures, f64)> {
    let mut argv = words!["fio", "--name=lab"];
    argv.extend(aim.flags());
    argv.extend(words![
        format!("--rw={}", load.pattern.word()),
        format!("--bs={}", load.block),
        format!("--iodepth={}", load.depth),
        format!("--numjobs={}", load.jobs),
        "--group_reporting",
        "--time_based",
        // Without a unit it would take whole seconds.
        format!("--runtime={}ms", (seconds * 1e3).round()),
        format!("--size={VOLUME_MIB}m"),
        "--thread",
        "--norandommap",
        "--randrepeat=0",
        "--lat_percentiles=1",
        "--clat_percentiles=0",
        "--output-format=json",
    ]);
    if load.pattern.is_mixed() {
        argv.push(format!("--rwmixread={MIX}"));
    }
    argv.extend(more.iter().cloned());
    let process = network.start(side, &strs(&argv))?;
    let (text, _) = process.finish(lab, patience(seconds))?;
    parse(&text, load.pattern)
}

/// The same in a file of a mounted file system, through the page cache, one at a time: what is in order goes through the
/// whole file once, what is written is on the disk at the end. `prefix`: words before the command.
pub fn run_in_file(
    lab: &Laboratory,
    network: &Network,
    prefix: &[String],
    [path, mib]: [&str; 2],
    load: &Load,
    seconds: f64,
) -> Outcome<(Figures, f64)> {
    let mut argv = prefix.to_vec();
    argv.extend(words!["fio", "--name=lab", "--ioengine=psync", "--thread", "--group_reporting"]);
    argv.extend(words![
        format!("--filename={path}"),
        format!("--size={mib}m"),
        format!("--rw={}", load.pattern.word()),
        format!("--bs={}", load.block),
        format!("--numjobs={}", load.jobs),
        "--randrepeat=0",
        "--lat_percentiles=1",
        "--clat_percentiles=0",
        "--output-format=json",
    ]);
    if !load.pattern.reads() {
        argv.extend(words!["--end_fsync=1", "--overwrite=1"]);
    }
    if matches!(load.pattern, Pattern::RandRead | Pattern::RandWrite) {
        let runtime = format!("--runtime={}ms", (seconds * 1e3).round());
        argv.extend(words!["--time_based", "--norandommap", runtime]);
    }
    let process = network.start(Side::Initiator(1), &strs(&argv))?;
    let (text, _) = process.finish(lab, patience(seconds) + WHOLE_FILE)?;
    parse(&text, load.pattern)
}

/// How long a whole file may take.
const WHOLE_FILE: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    error: i64,
    read: Direction,
    write: Direction,
    usr_cpu: f64,
    sys_cpu: f64,
    job_runtime: f64,
}

#[derive(Debug, Deserialize)]
struct Direction {
    total_ios: f64,
    iops: f64,
    bw_bytes: f64,
    lat_ns: Latency,
}

#[derive(Debug, Deserialize)]
struct Latency {
    mean: f64,
    #[serde(default)]
    max: Option<f64>,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

/// Of a mixed pattern rates are those of both ways, latencies means over them; percentiles are of the slower way.
fn parse(text: &str, pattern: Pattern) -> Outcome<(Figures, f64)> {
    // What precedes the JSON are remarks.
    let json = &text[text.find('{').unwrap_or(0)..];
    let output: Output = serde_json::from_str(json)
        .map_err(|e| LabError::Failed(format!("fio's output is not understood: {e}")))?;
    let job = output.jobs.first().ok_or_else(|| LabError::Failed("fio ran no job".into()))?;
    let sides: Vec<&Direction> = match pattern {
        pattern if pattern.is_mixed() => vec![&job.read, &job.write],
        pattern if pattern.reads() => vec![&job.read],
        _ => vec![&job.write],
    };
    let sum = |of: fn(&Direction) -> f64| sides.iter().map(|side| of(side)).sum::<f64>();
    let ios = sum(|side| side.total_ios);
    if job.error != 0 || ios == 0.0 {
        return Err(LabError::Failed(format!("fio: error {}, {ios} I/Os", job.error)));
    }
    let slowest = |of: &dyn Fn(&Direction) -> Option<f64>| {
        sides.iter().filter_map(|side| of(side)).reduce(f64::max).map(|ns| ns / 1e3)
    };
    let at = |name: &str| slowest(&|side| side.lat_ns.percentile.get(name).copied());
    let figures = Figures {
        iops: sum(|side| side.iops),
        mib_per_s: sum(|side| side.bw_bytes) / f64::from(1 << 20),
        mean_us: sum(|side| side.lat_ns.mean * side.total_ios) / ios / 1e3,
        p50_us: at("50.000000"),
        p99_us: at("99.000000"),
        max_us: slowest(&|side| side.lat_ns.max),
        // Shares of the time of all jobs together, which is in milliseconds.
        cpu_client_us: (job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime * 1e3 / ios,
        ..Figures::default()
    };
    Ok((figures, ios))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_devices_are_used_directly() {
        let of = |aim: Aim| aim.flags().join(" ");
        assert_eq!(of(Aim::Nbd("nbd://x/".into())), "--ioengine=nbd --uri=nbd://x/");
        let path = of(Aim::Path("/dev/loop0".into()));
        assert!(path.contains("--direct=1") && path.ends_with("--filename=/dev/loop0"), "{path}");
    }

    #[test]
    fn what_fio_prints_is_understood() {
        let side = |ios: u32| {
            format!(
                r#"{{"total_ios":{ios},"iops":{ios}.5,"bw_bytes":4194304,"lat_ns":{{"mean":65000.0,
                "percentile":{{"50.000000":60000,"99.000000":90000}}}}}}"#
            )
        };
        let text = format!(
            r#"fio: a remark
            {{"jobs":[{{"error":0,"job_runtime":2000,"usr_cpu":10.0,"sys_cpu":15.0,
            "read":{},"write":{}}}]}}"#,
            side(1000),
            side(0)
        );
        let (figures, ios) = parse(&text, Pattern::Read).unwrap();
        assert_eq!((ios, figures.iops, figures.mib_per_s), (1000.0, 1000.5, 4.0));
        assert_eq!((figures.mean_us, figures.p99_us), (65.0, Some(90.0)));
        assert_eq!(figures.cpu_client_us, 500.0, "a quarter of 2 s for 1000 I/Os");
        assert!(parse(&text, Pattern::Write).is_err(), "no I/Os");
        let mixed =
            text.replace("\"total_ios\":0,\"iops\":0.5", "\"total_ios\":1000,\"iops\":500.5");
        let (figures, ios) = parse(&mixed, Pattern::Mixed).unwrap();
        assert_eq!((ios, figures.iops, figures.mib_per_s), (2000.0, 1501.0, 8.0));
        assert_eq!((figures.mean_us, figures.cpu_client_us), (65.0, 250.0));
        assert!(parse("Killed", Pattern::Read).is_err());
    }
}
