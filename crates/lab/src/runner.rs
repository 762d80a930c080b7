//! Measuring a plan: contenders in turns, each run stored as it is done, progress on stderr.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::contender::{Abilities, Contender, set_up, set_up_key};
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::plan::{Entry, Form, Group, run_seconds, set_up_seconds};
use crate::point::Point;
use crate::stand::Laboratory;
use crate::store::{Run, SampleStore};

/// What of a plan is measured, and how.
#[derive(Clone, Debug)]
pub struct Choice {
    /// How much.
    pub form: Form,
    /// Only points whose names hold all of these words.
    pub only: Vec<String>,
    /// Rounds of every point, instead of the plan's.
    pub rounds: Option<u32>,
    /// Seconds of every run, instead of the plan's.
    pub seconds: Option<f64>,
}

impl Choice {
    /// The plan with the rounds and seconds that were chosen: what figures are taken from.
    pub fn told(&self, groups: &[Group]) -> Vec<Group> {
        let mut told = groups.to_vec();
        for entry in told.iter_mut().flat_map(|group| &mut group.entries) {
            entry.seconds = self.seconds.unwrap_or(entry.seconds);
            if let Some(rounds) = self.rounds {
                entry.full = rounds;
                entry.quick = if entry.quick > 0 { rounds } else { 0 };
            }
        }
        told
    }

    /// What of it is measured: without what was not chosen.
    pub fn of(&self, groups: &[Group]) -> Vec<Group> {
        let mut chosen = self.told(groups);
        for group in &mut chosen {
            let (wire, load) = (group.wire, group.load);
            group.entries.retain(|entry| {
                let name = Point { wire, load, subject: entry.subject }.to_string();
                self.only.iter().all(|word| name.contains(&word[..])) && entry.rounds(self.form) > 0
            });
        }
        chosen.retain(|group| !group.entries.is_empty());
        chosen
    }
}

/// Measures what the store does not hold yet, round by round: of a round that is not whole, every
/// subject is measured, so that what is compared was measured in turns. A round that would end after
/// `deadline` is left out, and shorter ones are measured instead; if all are too long, that is an error
/// which says how long the shortest takes.
pub fn measure(
    lab: &Laboratory,
    abilities: &Abilities,
    store: &mut SampleStore,
    groups: &[Group],
    form: Form,
    deadline: Option<Instant>,
) -> Outcome {
    let mut progress = Progress::new(groups, form, store);
    if progress.left.is_zero() {
        return Ok(());
    }
    let mut limit = Limit::new(deadline);
    let mut standing = Standing::new(lab, abilities);
    for group in groups {
        standing.keep(group);
        for round in 0..group.rounds(form) {
            let mut turns = group.turns(form, round);
            if store.is_whole(&turns, round) {
                continue;
            }
            // Half a round would have to be measured again.
            if !limit.allows(standing.round_seconds(&turns)) {
                continue;
            }
            let mut refused = Vec::new();
            for (point, entry) in &turns {
                if let Err(why) = standing.set_up(point)? {
                    refused.push(*point);
                    let run = Run { round, visit: 0, seconds: entry.seconds };
                    let found = Err(why);
                    progress.done(point, entry, round, &found);
                    store.put(point, run, found)?;
                }
            }
            turns.retain(|(point, _)| !refused.contains(point));
            if store.is_whole(&turns, round) {
                turns.iter().for_each(|(point, entry)| progress.skip(point, entry, round));
                continue;
            }
            let visit = store.next_visit();
            for (point, entry) in &turns {
                if limit.is_over() {
                    return limit.end();
                }
                let found = run(standing.contender(point), point, entry, lab)?;
                if found.is_err() {
                    standing.forget(point);
                }
                progress.done(point, entry, round, &found);
                store.put(point, Run { round, visit, seconds: entry.seconds }, found)?;
            }
        }
    }
    limit.end()
}

/// Until when is measured.
struct Limit {
    deadline: Option<Instant>,
    /// Whether any round was in time.
    begun: bool,
    /// Seconds of the shortest round that was not.
    left_out: Option<f64>,
}

impl Limit {
    fn new(deadline: Option<Instant>) -> Self {
        Limit { deadline, begun: false, left_out: None }
    }

    /// Whether a round of so many seconds would end in time.
    fn allows(&mut self, seconds: f64) -> bool {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let fits = self.deadline.is_none_or(|deadline| end <= deadline);
        match fits {
            true => self.begun = true,
            false => self.left_out = Some(self.left_out.map_or(seconds, |s| s.min(seconds))),
        }
        fits
    }

    /// Whether a round took so much longer than it should that it has to be left half done.
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() > deadline)
    }

    /// Says what became of it.
    fn end(&self) -> Outcome {
        match self.left_out {
            Some(seconds) if !self.begun => {
                // What is set up before the first round takes a while, too.
                let minutes = ((seconds + 5.0) / 6.0).ceil() / 10.0;
                Err(LabError::Usage(format!(
                    "no round of what is left fits into --minutes: the shortest takes {seconds:.0} s; give \
                     --minutes {minutes} at least, or --draw what is stored"
                )))
            }
            None if !self.is_over() => Ok(()),
            _ => {
                eprintln!("lab: the time is over; the same command goes on from here");
                Ok(())
            }
        }
    }
}

/// Who is set up.
struct Standing<'l> {
    lab: &'l Laboratory<'l>,
    abilities: &'l Abilities,
    contenders: BTreeMap<String, Box<dyn Contender + 'l>>,
    /// Who could not be set up, and why: under the next load it would be the same.
    refused: BTreeMap<String, String>,
}

impl<'l> Standing<'l> {
    fn new(lab: &'l Laboratory<'l>, abilities: &'l Abilities) -> Self {
        Standing { lab, abilities, contenders: BTreeMap::new(), refused: BTreeMap::new() }
    }

    /// Takes down whom a group does not measure.
    fn keep(&mut self, group: &Group) {
        let keys: BTreeSet<String> = group.points().map(|(point, _)| set_up_key(&point)).collect();
        self.contenders.retain(|key, _| keys.contains(key));
    }

    /// Seconds that a round takes, with setting up who does not stand yet.
    fn round_seconds(&self, turns: &[(Point, Entry)]) -> f64 {
        let one = |(point, entry): &(Point, Entry)| {
            let stands = self.contenders.contains_key(&set_up_key(point));
            run_seconds(point, entry) + if stands { 0.0 } else { set_up_seconds(&point.subject) }
        };
        turns.iter().map(one).sum()
    }

    /// Sets a point's subject up unless it stands. The inner error is why it cannot be.
    fn set_up(&mut self, point: &Point) -> Outcome<Result<(), String>> {
        let key = set_up_key(point);
        if let Some(why) = self.refused.get(&key) {
            return Ok(Err(why.clone()));
        }
        if self.contenders.contains_key(&key) {
            return Ok(Ok(()));
        }
        match set_up(self.lab, self.abilities, point) {
            Ok(contender) => drop(self.contenders.insert(key, contender)),
            Err(LabError::Interrupted) => return Err(LabError::Interrupted),
            Err(e) => {
                self.refused.insert(key, e.to_string());
                return Ok(Err(e.to_string()));
            }
        }
        Ok(Ok(()))
    }

    /// The subject of a point that was set up.
    fn contender(&mut self, point: &Point) -> &mut (dyn Contender + 'l) {
        &mut **self.contenders.get_mut(&set_up_key(point)).expect("set up before its round")
    }

    /// It failed, and may be in whatever state: the next round gets a new one.
    fn forget(&mut self, point: &Point) {
        self.contenders.remove(&set_up_key(point));
    }
}

/// One run. The inner error is the contender's, the outer one ends everything.
fn run(
    contender: &mut dyn Contender,
    point: &Point,
    entry: &Entry,
    lab: &Laboratory,
) -> Outcome<Result<Figures, String>> {
    lab.check()?;
    // What the last run left in queues and caches settles.
    std::thread::sleep(Duration::from_millis(100));
    match contender.measure(&point.load, entry.seconds) {
        Ok(figures) => Ok(Ok(figures)),
        Err(LabError::Interrupted) => Err(LabError::Interrupted),
        Err(_) if (lab.check()).is_err() => Err(LabError::Interrupted),
        Err(e) => Ok(Err(e.to_string())),
    }
}

/// Points done of all, and the time that is left.
struct Progress {
    all: usize,
    done: usize,
    left: Duration,
    started: Instant,
    /// The plan's estimate of what was done so far.
    estimated: Duration,
}

impl Progress {
    fn new(groups: &[Group], form: Form, store: &SampleStore) -> Self {
        let mut progress = Progress {
            all: 0,
            done: 0,
            left: Duration::ZERO,
            started: Instant::now(),
            estimated: Duration::ZERO,
        };
        for group in groups {
            for round in 0..group.rounds(form) {
                let turns = group.turns(form, round);
                progress.all += turns.len();
                match store.is_whole(&turns, round) {
                    true => progress.done += turns.len(),
                    false => {
                        let times =
                            turns.iter().map(|(point, entry)| estimate(point, entry, round));
                        progress.left += times.sum::<Duration>();
                    }
                }
            }
        }
        if !progress.left.is_zero() {
            eprintln!(
                "lab: {} runs, {} of them stored already, about {}",
                progress.all,
                progress.done,
                minutes(progress.left)
            );
        }
        progress
    }

    /// It turned out that it need not be measured.
    fn skip(&mut self, point: &Point, entry: &Entry, round: u32) {
        self.done += 1;
        self.left = self.left.saturating_sub(estimate(point, entry, round));
    }

    fn done(&mut self, point: &Point, entry: &Entry, round: u32, found: &Result<Figures, String>) {
        let estimate = estimate(point, entry, round);
        self.done += 1;
        self.left = self.left.saturating_sub(estimate);
        self.estimated += estimate;
        // As the estimates have turned out so far.
        let pace = self.started.elapsed().as_secs_f64() / self.estimated.as_secs_f64().max(1e-3);
        let said = match found {
            Ok(f) => format!(
                "{:>8.0} IOPS {:>6.0} MiB/s {:>8.1} us  CPU {} us",
                f.iops,
                f.mib_per_s,
                f.mean_us,
                f.cpu_shown()
            ),
            Err(why) => why.clone(),
        };
        eprintln!(
            "{:>4}/{} {:>7} left  {point} #{}  {said}",
            self.done,
            self.all,
            minutes(self.left.mul_f64(pace.clamp(0.1, 10.0))),
            round + 1
        );
    }
}

fn estimate(point: &Point, entry: &Entry, round: u32) -> Duration {
    let set_up = if round == 0 { set_up_seconds(&point.subject) / 3.0 } else { 0.0 };
    Duration::from_secs_f64(run_seconds(point, entry) + set_up)
}

fn minutes(time: Duration) -> String {
    match time.as_secs() {
        s if s < 90 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Carrier, Load, Pattern, Subject, Wire};

    fn groups() -> Vec<Group> {
        let group = |depth| {
            Group::new(Wire::FREE, Load::new(Pattern::RandRead, 4096, depth))
                .with(Subject::thinwire(Carrier::Packet), 2.0, 3, 1)
                .with(Subject::Nbdkit, 2.0, 3, 0)
        };
        vec![group(1), group(32)]
    }

    #[test]
    fn a_choice_narrows_the_plan() {
        let all = Choice { form: Form::Full, only: vec![], rounds: None, seconds: None };
        let count =
            |choice: &Choice| choice.of(&groups()).iter().map(|g| g.entries.len()).sum::<usize>();
        assert_eq!(count(&all), 4);
        assert_eq!(count(&Choice { form: Form::Quick, ..all.clone() }), 2);
        let only = |words: &[&str]| words.iter().map(|w| w.to_string()).collect();
        assert_eq!(count(&Choice { only: only(&["nbdkit"]), ..all.clone() }), 2);
        assert_eq!(count(&Choice { only: only(&["nbdkit", "1x32"]), ..all.clone() }), 1);
        assert_eq!(count(&Choice { only: only(&["nothing"]), ..all.clone() }), 0);
        let short = Choice { rounds: Some(1), seconds: Some(0.3), ..all }.of(&groups());
        assert!(short.iter().flat_map(|g| &g.entries).all(|e| e.full == 1 && e.seconds == 0.3));
        let told =
            Choice { form: Form::Quick, only: only(&["nothing"]), rounds: Some(2), seconds: None };
        let quick: Vec<u32> =
            told.told(&groups()).iter().flat_map(|g| &g.entries).map(|e| e.quick).collect();
        assert_eq!(
            quick,
            [2, 0, 2, 0],
            "all of the plan, and of the quick form no more than it had"
        );
    }

    #[test]
    fn rounds_that_are_too_long_are_left_out() {
        let within = |seconds| Some(Instant::now() + Duration::from_secs(seconds));
        let mut limit = Limit::new(within(60));
        assert!(!limit.allows(175.0) && !limit.allows(100.0) && !limit.allows(120.0));
        let said = limit.end().unwrap_err().to_string();
        assert!(said.contains("takes 100 s; give --minutes 1.8 at least"), "{said}");
        assert!(limit.allows(30.0), "a shorter one is measured");
        assert!(!limit.is_over() && limit.end().is_ok());
        assert!(!Limit::new(within(0)).allows(0.1));
        let mut unbounded = Limit::new(None);
        assert!(unbounded.allows(1e6) && !unbounded.is_over() && unbounded.end().is_ok());
    }

    #[test]
    fn times_are_short() {
        assert_eq!(minutes(Duration::from_secs(89)), "89 s");
        assert_eq!(minutes(Duration::from_secs(121)), "3 min");
    }
}
