//! What was measured, kept as it is measured: one JSON object a line, appended, so that a run that is
//! interrupted or killed loses nothing but the run under way.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Outcome, failed};
use crate::figures::Figures;
use crate::point::Point;

/// Version of the file's format.
const SCHEMA: u32 = 1;

/// A line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    schema: u32,
    point: String,
    round: u32,
    seconds: f64,
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
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Figures by round.
    pub rounds: BTreeMap<u32, Figures>,
    /// How long each round was measured, in seconds.
    seconds: BTreeMap<u32, f64>,
    /// Why there are none, as far as it is known.
    pub missing: Option<String>,
}

/// All that this build measured on this machine.
pub struct Store {
    path: PathBuf,
    file: File,
    build: String,
    machine: String,
    known: BTreeMap<String, Known>,
    /// Lines of other builds or machines: kept in the file, not used.
    foreign: usize,
    /// When the oldest and newest sample used were taken, in seconds since 1970.
    span: Option<(u64, u64)>,
}

impl Store {
    /// Opens or makes `FOLDER/samples.jsonl`. Lines of another build or machine are left alone.
    pub fn open(folder: &Path, build: &str, machine: &str) -> Outcome<Self> {
        std::fs::create_dir_all(folder)
            .map_err(failed(format!("cannot make the folder {}", folder.display())))?;
        let path = folder.join("samples.jsonl");
        let open = || OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = open().map_err(failed(format!("cannot open {}", path.display())))?;
        let mut store = Store {
            file,
            build: build.into(),
            machine: machine.into(),
            known: BTreeMap::new(),
            foreign: 0,
            span: None,
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
        let known = self.known.entry(line.point).or_default();
        match line.figures {
            Some(figures) => {
                known.missing = None;
                known.rounds.insert(line.round, figures);
                known.seconds.insert(line.round, line.seconds);
                let (from, to) = self.span.unwrap_or((line.time, line.time));
                self.span = Some((from.min(line.time), to.max(line.time)));
            }
            None => known.missing = line.missing,
        }
    }

    /// Whether a round of a point is there that took as long as this, or longer.
    pub fn has(&self, point: &Point, round: u32, seconds: f64) -> bool {
        let stored = self.get(point).and_then(|known| known.seconds.get(&round));
        stored.is_some_and(|&stored| stored >= seconds)
    }

    /// What is known of a point.
    pub fn get(&self, point: &Point) -> Option<&Known> {
        self.known.get(&point.to_string())
    }

    /// Figures of a point by round; none if it was not measured.
    pub fn rounds(&self, point: &Point) -> impl Iterator<Item = (u32, &Figures)> {
        self.get(point).into_iter().flat_map(|known| known.rounds.iter().map(|(n, f)| (*n, f)))
    }

    /// Keeps what a round came to, on disk before it returns.
    pub fn put(
        &mut self,
        point: &Point,
        round: u32,
        seconds: f64,
        found: Result<Figures, String>,
    ) -> Outcome {
        let (figures, missing) = match found {
            Ok(figures) => (Some(figures), None),
            Err(why) => (None, Some(why)),
        };
        let line = Line {
            schema: SCHEMA,
            point: point.to_string(),
            round,
            seconds,
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

    #[test]
    fn what_was_stored_is_there_again() {
        let folder = folder("again");
        let mut store = Store::open(&folder, "b1", "m").unwrap();
        store.put(&point(1), 0, 1.0, Ok(figures(5.0))).unwrap();
        store.put(&point(2), 0, 1.0, Err("no such link".into())).unwrap();
        let again = Store::open(&folder, "b1", "m").unwrap();
        assert!(!again.has(&point(1), 0, 2.0), "not as long as that");
        assert!(
            again.has(&point(1), 0, 1.0)
                && !again.has(&point(1), 1, 1.0)
                && !again.has(&point(2), 0, 1.0)
        );
        assert_eq!(again.rounds(&point(1)).next(), Some((0, &figures(5.0))));
        assert_eq!(again.get(&point(2)).unwrap().missing.as_deref(), Some("no such link"));
        assert!(again.span().is_some());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn another_build_measures_anew() {
        let folder = folder("build");
        Store::open(&folder, "b1", "m").unwrap().put(&point(1), 0, 1.0, Ok(figures(5.0))).unwrap();
        for (build, machine) in [("b2", "m"), ("b1", "other")] {
            let other = Store::open(&folder, build, machine).unwrap();
            assert!(!other.has(&point(1), 0, 1.0) && other.foreign() == 1);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn half_a_line_is_lost_and_spoils_nothing() {
        let folder = folder("half");
        let mut store = Store::open(&folder, "b", "m").unwrap();
        store.put(&point(1), 0, 1.0, Ok(figures(5.0))).unwrap();
        store.file.write_all(b"{\"schema\":1,\"point\":\"x").unwrap();
        let mut again = Store::open(&folder, "b", "m").unwrap();
        again.put(&point(1), 1, 1.0, Ok(figures(6.0))).unwrap();
        let third = Store::open(&folder, "b", "m").unwrap();
        assert!(third.has(&point(1), 0, 1.0) && third.has(&point(1), 1, 1.0));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
