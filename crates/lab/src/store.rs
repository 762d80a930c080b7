//! What was measured, kept as it is measured: one JSON object a line, appended, so that a run that is
//! interrupted or killed loses nothing but the run under way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Outcome, failed};
use crate::figures::Figures;
use crate::plan::Entry;
use crate::point::Point;

/// Version of the file's format.
const SCHEMA: u32 = 2;

/// One run of a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Which round of the point it is, from 0.
    pub round: u32,
    /// In which visit to its group: one pass through a round, in which all subjects had their turns
    /// one after the other. From 1; a round that is measured anew is another visit.
    pub visit: u64,
    /// How long was measured.
    pub seconds: f64,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Which one it was.
    pub run: Run,
    /// What was found.
    pub figures: Figures,
}

/// A line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    schema: u32,
    point: String,
    #[serde(flatten)]
    run: Run,
    build: String,
    machine: String,
    /// Seconds since 1970.
    time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    figures: Option<Figures>,
    /// Why there are no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// What is known of a point.
#[derive(Debug, Default)]
struct Known {
    /// The samples of each round by their visits: who shares a point with others is measured with each
    /// of them.
    rounds: BTreeMap<u32, BTreeMap<u64, Sample>>,
    /// Why rounds have none, as far as it is known.
    failures: BTreeMap<u32, String>,
}

/// All that this build measured on this machine.
pub struct SampleStore {
    path: PathBuf,
    file: File,
    build: String,
    machine: String,
    known: BTreeMap<String, Known>,
    /// Lines of other builds or machines: kept in the file, not used.
    foreign: usize,
    /// When the oldest and newest sample used were taken, in seconds since 1970.
    span: Option<(u64, u64)>,
    /// The number of the last visit.
    visits: u64,
}

impl SampleStore {
    /// Opens or makes `FOLDER/samples.jsonl`. Lines of another build or machine are left alone.
    pub fn open(folder: &Path, build: &str, machine: &str) -> Outcome<Self> {
        std::fs::create_dir_all(folder)
            .map_err(failed(format!("cannot make the folder {}", folder.display())))?;
        let path = folder.join("samples.jsonl");
        let open = || OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = open().map_err(failed(format!("cannot open {}", path.display())))?;
        let mut store = SampleStore {
            file,
            build: build.into(),
            machine: machine.into(),
            known: BTreeMap::new(),
            foreign: 0,
            span: None,
            visits: 0,
            path,
        };
        store.load()?;
        Ok(store)
    }

    fn load(&mut self) -> Outcome {
        let path = self.path.clone();
        let read = |e| failed(format!("cannot read {}", path.display()))(e);
        let mut whole = true;
        for line in BufReader::new(File::open(&path).map_err(read)?).split(b'\n') {
            // A run that was killed while it wrote left half a line; what it measured is lost.
            let line = line.map_err(read)?;
            match serde_json::from_slice::<Line>(&line) {
                Ok(line) => {
                    whole = true;
                    self.take(line);
                }
                Err(_) => whole = line.is_empty(),
            }
        }
        if !whole {
            let ended = self.file.write_all(b"\n");
            ended.map_err(failed(format!("cannot write to {}", self.path.display())))?;
        }
        Ok(())
    }

    fn take(&mut self, line: Line) {
        if (line.schema, &line.build, &line.machine) != (SCHEMA, &self.build, &self.machine) {
            self.foreign += 1;
            return;
        }
        self.visits = self.visits.max(line.run.visit);
        let known = self.known.entry(line.point).or_default();
        match (line.figures, line.missing) {
            (Some(figures), _) => {
                known.failures.remove(&line.run.round);
                let visits = known.rounds.entry(line.run.round).or_default();
                visits.insert(line.run.visit, Sample { run: line.run, figures });
                let (from, to) = self.span.unwrap_or((line.time, line.time));
                self.span = Some((from.min(line.time), to.max(line.time)));
            }
            (None, why) => {
                known.failures.insert(line.run.round, why.unwrap_or_default());
            }
        }
    }

    /// A number for a visit that begins now.
    pub fn next_visit(&self) -> u64 {
        self.visits + 1
    }

    /// Whether all these have figures of a round, from one visit, each of a run as long as its entry
    /// says or longer.
    pub fn is_whole(&self, turns: &[(Point, Entry)], round: u32) -> bool {
        let visits = |(point, entry): &(Point, Entry)| -> BTreeSet<u64> {
            let of_round = self.samples(point).filter(|sample| sample.run.round == round);
            let long = of_round.filter(|sample| sample.run.seconds >= entry.seconds);
            long.map(|sample| sample.run.visit).collect()
        };
        let common = turns.iter().map(visits).reduce(|a, b| &a & &b);
        common.is_none_or(|common| !common.is_empty())
    }

    /// The samples of a point in the order of the rounds, those of a round in that of the visits; none if
    /// it was not measured.
    pub fn samples(&self, point: &Point) -> impl Iterator<Item = &Sample> {
        let known = self.known.get(&point.to_string()).into_iter();
        known.flat_map(|known| known.rounds.values().flat_map(BTreeMap::values))
    }

    /// Why a round of a point has no sample, if that is known.
    pub fn failure(&self, point: &Point, round: u32) -> Option<&str> {
        self.known.get(&point.to_string())?.failures.get(&round).map(String::as_str)
    }

    /// Keeps what a run came to: with the kernel before it returns, so that it outlives this
    /// process, though not a power failure.
    pub fn put(&mut self, point: &Point, run: Run, found: Result<Figures, String>) -> Outcome {
        let (figures, missing) = match found {
            Ok(figures) => (Some(figures), None),
            // Asked for again and again, what cannot be set up fails in the same words.
            Err(why) if self.failure(point, run.round) == Some(&why) => return Ok(()),
            Err(why) => (None, Some(why)),
        };
        let line = Line {
            schema: SCHEMA,
            point: point.to_string(),
            run,
            build: self.build.clone(),
            machine: self.machine.clone(),
            time: now(),
            figures,
            missing,
        };
        let mut text = serde_json::to_string(&line).expect("own types are valid JSON");
        text.push('\n');
        self.file
            .write_all(text.as_bytes())
            .map_err(failed(format!("cannot write to {}", self.path.display())))?;
        self.take(line);
        Ok(())
    }

    /// Lines of other builds and machines.
    pub fn foreign(&self) -> usize {
        self.foreign
    }

    /// When the oldest and the newest sample were taken, in seconds since 1970.
    pub fn span(&self) -> Option<(u64, u64)> {
        self.span
    }
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::point::{Carrier, Load, Pattern, Subject, Wire};

    /// A folder of a test's own, empty.
    pub fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("tw-lab-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn point(depth: u32) -> Point {
        let load = Load::new(Pattern::RandRead, 4096, depth);
        Point { wire: Wire::FREE, load, subject: Subject::thinwire(Carrier::Packet) }
    }

    fn figures(iops: f64) -> Figures {
        Figures { iops, ..Figures::default() }
    }

    fn run(round: u32, visit: u64) -> Run {
        Run { round, visit, seconds: 1.0 }
    }

    fn turns(depths: &[u32], seconds: f64) -> Vec<(Point, Entry)> {
        let turn = |&depth: &u32| (point(depth), Entry::new(point(depth).subject, seconds, 3, 1));
        depths.iter().map(turn).collect()
    }

    #[test]
    fn what_was_stored_is_there_again() {
        let folder = folder("again");
        let mut store = SampleStore::open(&folder, "b1", "m").unwrap();
        store.put(&point(1), run(0, 1), Ok(figures(5.0))).unwrap();
        store.put(&point(2), run(0, 1), Err("no such link".into())).unwrap();
        let again = SampleStore::open(&folder, "b1", "m").unwrap();
        assert!(again.is_whole(&turns(&[1], 1.0), 0));
        assert!(!again.is_whole(&turns(&[1], 2.0), 0), "not as long as that");
        assert!(!again.is_whole(&turns(&[1], 1.0), 1) && !again.is_whole(&turns(&[2], 1.0), 0));
        assert_eq!(again.samples(&point(1)).next().unwrap().figures, figures(5.0));
        assert_eq!(again.failure(&point(2), 0), Some("no such link"));
        assert_eq!((again.failure(&point(2), 1), again.failure(&point(1), 0)), (None, None));
        assert!(again.span().is_some() && again.next_visit() == 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_round_is_whole_if_all_had_their_turns_in_one_visit() {
        let folder = folder("whole");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        store.put(&point(1), run(0, 1), Ok(figures(5.0))).unwrap();
        assert!(!store.is_whole(&turns(&[1, 2], 1.0), 0), "half a round");
        store.put(&point(2), run(0, 2), Ok(figures(6.0))).unwrap();
        assert!(!store.is_whole(&turns(&[1, 2], 1.0), 0), "the other half on another day");
        store.put(&point(1), run(0, 2), Ok(figures(7.0))).unwrap();
        assert!(store.is_whole(&turns(&[1, 2], 1.0), 0));
        store.put(&point(1), run(0, 3), Ok(figures(8.0))).unwrap();
        store.put(&point(4), run(0, 3), Ok(figures(9.0))).unwrap();
        assert!(store.is_whole(&turns(&[1, 4], 1.0), 0));
        assert!(store.is_whole(&turns(&[1, 2], 1.0), 0), "with others since, and still whole");
        assert!(!store.is_whole(&turns(&[1, 2, 4], 1.0), 0), "not in one visit");
        assert!(store.is_whole(&[], 0));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_failure_is_told_once_and_forgotten_with_success() {
        let folder = folder("failure");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for _ in 0..3 {
            store.put(&point(1), run(0, 1), Err("not installed".into())).unwrap();
        }
        let lines =
            || std::fs::read_to_string(folder.join("samples.jsonl")).unwrap().lines().count();
        assert_eq!(lines(), 1);
        store.put(&point(1), run(0, 2), Ok(figures(5.0))).unwrap();
        assert_eq!((lines(), store.failure(&point(1), 0)), (2, None));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn another_build_measures_anew() {
        let folder = folder("build");
        let mut store = SampleStore::open(&folder, "b1", "m").unwrap();
        store.put(&point(1), run(0, 1), Ok(figures(5.0))).unwrap();
        for (build, machine) in [("b2", "m"), ("b1", "other")] {
            let other = SampleStore::open(&folder, build, machine).unwrap();
            assert!(!other.is_whole(&turns(&[1], 1.0), 0) && other.foreign() == 1);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn half_a_line_is_lost_and_spoils_nothing() {
        let folder = folder("half");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        store.put(&point(1), run(0, 1), Ok(figures(5.0))).unwrap();
        store.file.write_all(b"{\"schema\":2,\"point\":\"x").unwrap();
        let mut again = SampleStore::open(&folder, "b", "m").unwrap();
        again.put(&point(1), run(1, 2), Ok(figures(6.0))).unwrap();
        let third = SampleStore::open(&folder, "b", "m").unwrap();
        assert_eq!(third.samples(&point(1)).count(), 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
