//! Looking at what was measured: medians and ratios of points, lines of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::draw::{Line, Spot};
use crate::figures::Figures;
use crate::plan::{Entry, Form, Group};
use crate::point::Point;
use crate::stats::Spread;
use crate::store::{Run, Sample, SampleStore};

/// What was measured of a plan, as the experiments' sections read it. Samples that the plan does not
/// ask for, of further rounds or shorter runs, are not seen.
pub struct View<'a> {
    store: &'a SampleStore,
    form: Form,
    entries: BTreeMap<Point, Entry>,
}

impl<'a> View<'a> {
    /// Of a store: what a plan asks for in a form.
    pub fn new(store: &'a SampleStore, groups: &[Group], form: Form) -> Self {
        let points = groups.iter().flat_map(Group::points);
        View { store, form, entries: points.map(|(point, entry)| (point, *entry)).collect() }
    }

    fn rounds(&self, point: &Point) -> u32 {
        self.entries.get(point).map_or(0, |entry| entry.rounds(self.form))
    }

    /// What counts of a point: of each round the newest.
    fn samples(&self, point: &Point) -> impl Iterator<Item = &'a Sample> {
        let newest: BTreeMap<u32, &Sample> = self.all(point).map(|s| (s.run.round, s)).collect();
        newest.into_values()
    }

    /// The same with those of further visits in the same rounds, beside others.
    fn all(&self, point: &Point) -> impl Iterator<Item = &'a Sample> {
        let rounds = self.rounds(point);
        let seconds = self.entries.get(point).map_or(0.0, |entry| entry.seconds);
        let counts = move |run: &Run| run.round < rounds && run.seconds >= seconds;
        self.store.samples(point).filter(move |sample| counts(&sample.run))
    }

    /// Whether there are figures of a point.
    pub fn has(&self, point: &Point) -> bool {
        self.samples(point).next().is_some()
    }

    /// A figure of a point over its rounds.
    pub fn spread(&self, point: &Point, of: impl Fn(&Figures) -> f64) -> Option<Spread> {
        Spread::of(self.samples(point).map(|sample| of(&sample.figures)))
    }

    /// A figure that not every program tells.
    pub fn spread_of_some(
        &self,
        point: &Point,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.samples(point).filter_map(|sample| of(&sample.figures)))
    }

    /// A figure of one point over that of another, taken within each visit, where both had their
    /// turns one after the other: a machine that is busy for a while slows both.
    pub fn ratio(&self, a: &Point, b: &Point, of: impl Fn(&Figures) -> f64) -> Option<Spread> {
        self.together([a, b], |[a, b]| of(a) / of(b))
    }

    /// What a calculation with figures of several points comes to, over the rounds: for each the newest
    /// visit in which all of them had their turns.
    pub fn together<const N: usize>(
        &self,
        points: [&Point; N],
        of: impl Fn([&Figures; N]) -> f64,
    ) -> Option<Spread> {
        let visits = points.map(|point| {
            let all = self.all(point).map(|sample| (sample.run.visit, sample));
            all.collect::<BTreeMap<u64, &Sample>>()
        });
        let mut rounds: BTreeMap<u32, [&Figures; N]> = BTreeMap::new();
        for (visit, first) in visits.first()? {
            let found = visits.each_ref().map(|all| all.get(visit));
            if found.iter().all(Option::is_some) {
                let figures = found.map(|sample| &sample.expect("all are there").figures);
                rounds.insert(first.run.round, figures);
            }
        }
        Spread::of(rounds.into_values().map(of))
    }

    /// The last round's figures of a point.
    pub fn last(&self, point: &Point) -> Option<&'a Figures> {
        self.samples(point).last().map(|sample| &sample.figures)
    }

    /// A line through points; those that were not measured are left out.
    pub fn line(
        &self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, Point)>,
        of: impl Fn(&Point, &Figures) -> Option<f64>,
    ) -> Line {
        let spot = |(x, point): (f64, Point)| {
            let y = self.spread_of_some(&point, |figures| of(&point, figures))?;
            Some(Spot { x, y })
        };
        Line { name: name.into(), spots: points.into_iter().filter_map(spot).collect() }
    }

    /// Rounds that groups ask for and that have no figures, and why: sentences.
    pub fn missing(&self, groups: &[Group]) -> Vec<String> {
        let mut why: BTreeMap<(String, &str), usize> = BTreeMap::new();
        let (mut all, mut left) = (0, 0);
        for (point, _) in groups.iter().flat_map(Group::points) {
            let there: BTreeSet<u32> =
                self.samples(&point).map(|sample| sample.run.round).collect();
            for round in 0..self.rounds(&point) {
                all += 1;
                if there.contains(&round) {
                    continue;
                }
                match self.store.failure(&point, round) {
                    Some(reason) => *why.entry((point.subject.title(), reason)).or_default() += 1,
                    None => left += 1,
                }
            }
        }
        let mut said: Vec<String> = why
            .into_iter()
            .map(|((who, reason), rounds)| format!("{who}: {reason} ({rounds} of {all} rounds)"))
            .collect();
        if left > 0 {
            said.push(format!("{left} of {all} rounds are not measured yet"));
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Load, Pattern, Subject, Wire};
    use crate::store::tests::folder;

    const LOAD: Load = Load::new(Pattern::RandRead, 4096, 1);

    fn point(subject: Subject) -> Point {
        Point { wire: Wire::FREE, load: LOAD, subject }
    }

    fn group(full: u32, quick: u32) -> Group {
        Group::new(Wire::FREE, LOAD).with(Subject::Nbdkit, 1.0, full, quick).with(
            Subject::QemuNbd,
            1.0,
            full,
            0,
        )
    }

    #[test]
    fn ratios_pair_what_was_measured_in_turns() {
        let folder = folder("view-ratio");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let (ours, theirs) = (point(Subject::QemuNbd), point(Subject::Nbdkit));
        // The second visit was interrupted between the two; its other half is another visit.
        for (subject, round, visit, iops) in
            [(ours, 0, 1, 30.0), (theirs, 0, 1, 10.0), (ours, 1, 2, 90.0), (theirs, 1, 3, 10.0)]
        {
            let figures = Figures { iops, ..Figures::default() };
            store.put(&subject, Run { round, visit, seconds: 1.0 }, Ok(figures)).unwrap();
        }
        let view = View::new(&store, &[group(3, 1)], Form::Full);
        let ratio = view.ratio(&ours, &theirs, |f| f.iops).unwrap();
        assert_eq!((ratio.median, ratio.rounds), (3.0, 1));
        let sum = view.together([&ours, &theirs], |[a, b]| a.iops + b.iops).unwrap();
        assert_eq!((sum.median, sum.rounds), (40.0, 1), "not the halves of two visits");
        assert_eq!(view.together([&ours, &point(Subject::Tgt)], |[a, _]| a.iops), None);
        // One of them has since been measured beside somebody else.
        let figures = Figures { iops: 500.0, ..Figures::default() };
        let run = Run { round: 0, visit: 4, seconds: 1.0 };
        store.put(&theirs, run, Ok(figures)).unwrap();
        let view = View::new(&store, &[group(3, 1)], Form::Full);
        let ratio = view.ratio(&ours, &theirs, |f| f.iops).unwrap();
        assert_eq!((ratio.median, ratio.rounds), (3.0, 1), "of the visit that both have");
        assert_eq!(view.spread(&theirs, |f| f.iops).unwrap().max, 500.0, "by itself, the newest");
        assert_eq!(view.spread(&ours, |f| f.iops).unwrap().median, 60.0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
    #[test]
    fn only_what_the_plan_asks_for_is_seen() {
        let folder = folder("view-plan");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let nbdkit = point(Subject::Nbdkit);
        for (round, seconds, iops) in
            [(0, 1.0, 10.0), (1, 0.1, 70.0), (2, 2.0, 20.0), (3, 1.0, 90.0)]
        {
            let figures = Figures { iops, ..Figures::default() };
            let run = Run { round, visit: u64::from(round) + 1, seconds };
            store.put(&nbdkit, run, Ok(figures)).unwrap();
        }
        let run = Run { round: 0, visit: 1, seconds: 1.0 };
        store.put(&point(Subject::QemuNbd), run, Err("not installed".into())).unwrap();
        let plan = [group(3, 1)];
        let view = View::new(&store, &plan, Form::Full);
        let spread = view.spread(&nbdkit, |f| f.iops).unwrap();
        assert_eq!((spread.min, spread.max, spread.rounds), (10.0, 20.0, 2), "no trials, no more");
        assert_eq!(
            view.missing(&plan),
            ["qemu-nbd, TCP: not installed (1 of 6 rounds)", "3 of 6 rounds are not measured yet"]
        );
        let quick = View::new(&store, &plan, Form::Quick);
        assert_eq!(quick.spread(&nbdkit, |f| f.iops).unwrap().rounds, 1);
        assert!(quick.has(&nbdkit) && !quick.has(&point(Subject::QemuNbd)));
        assert!(quick.missing(&plan).is_empty(), "all that is quick is there");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
