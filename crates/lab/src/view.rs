//! Looking at what was measured: medians and ratios of points, lines of them.

use std::collections::BTreeMap;

use crate::draw::{Line, Spot};
use crate::figures::Figures;
use crate::plan::{Form, Group};
use crate::point::Point;
use crate::stats::Spread;
use crate::store::{Sample, Store};

/// What was measured, as the experiments' sections read it.
pub struct View<'a> {
    store: &'a Store,
    /// How much was to be measured.
    pub form: Form,
}

impl<'a> View<'a> {
    /// Of a store.
    pub fn new(store: &'a Store, form: Form) -> Self {
        View { store, form }
    }

    /// A figure of a point over its rounds.
    pub fn spread(&self, point: &Point, of: impl Fn(&Figures) -> f64) -> Option<Spread> {
        Spread::of(self.store.samples(point).map(|sample| of(&sample.figures)))
    }

    /// A figure that not every program tells.
    pub fn spread_of_some(
        &self,
        point: &Point,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.store.samples(point).filter_map(|sample| of(&sample.figures)))
    }

    /// A figure of one point over that of another, taken within each visit, where both had their
    /// turns one after the other: a machine that is busy for a while slows both.
    pub fn ratio(&self, a: &Point, b: &Point, of: impl Fn(&Figures) -> f64) -> Option<Spread> {
        let value = |sample: &Sample| (sample.run.visit, of(&sample.figures));
        let others: BTreeMap<u64, f64> = self.store.samples(b).map(value).collect();
        let pair = |(visit, own)| others.get(&visit).map(|other| own / other);
        Spread::of(self.store.samples(a).map(value).filter_map(pair))
    }

    /// The last round's figures of a point.
    pub fn last(&self, point: &Point) -> Option<&'a Figures> {
        self.store.samples(point).last().map(|sample| &sample.figures)
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

    /// What a plan asked for and has no figures, and why: sentences.
    pub fn missing(&self, groups: &[Group]) -> Vec<String> {
        let mut why: BTreeMap<(String, String), usize> = BTreeMap::new();
        let (mut all, mut left) = (0, 0);
        for (point, entry) in groups.iter().flat_map(Group::points) {
            if entry.rounds(self.form) == 0 {
                continue;
            }
            all += 1;
            if self.store.samples(&point).next().is_some() {
                continue;
            }
            match self.store.failure(&point, 0) {
                Some(reason) => {
                    *why.entry((point.subject.title(), reason.into())).or_default() += 1
                }
                None => left += 1,
            }
        }
        let mut said: Vec<String> = why
            .into_iter()
            .map(|((who, reason), points)| format!("{who}: {reason} ({points} of {all} points)"))
            .collect();
        if left > 0 {
            said.push(format!("{left} of {all} points are not measured yet"));
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Load, Pattern, Subject, Wire};
    use crate::store::{Run, tests::folder};

    fn point(subject: Subject) -> Point {
        Point { wire: Wire::FREE, load: Load::new(Pattern::RandRead, 4096, 1), subject }
    }

    #[test]
    fn ratios_pair_what_was_measured_in_turns() {
        let folder = folder("view-ratio");
        let mut store = Store::open(&folder, "b", "m").unwrap();
        let (ours, theirs) = (point(Subject::QemuNbd), point(Subject::Nbdkit));
        // The second visit was interrupted between the two; its other half is another visit.
        for (subject, round, visit, iops) in
            [(ours, 0, 1, 30.0), (theirs, 0, 1, 10.0), (ours, 1, 2, 90.0), (theirs, 1, 3, 10.0)]
        {
            let figures = Figures { iops, ..Figures::default() };
            store.put(&subject, Run { round, visit, seconds: 1.0 }, Ok(figures)).unwrap();
        }
        let view = View::new(&store, Form::Full);
        let ratio = view.ratio(&ours, &theirs, |f| f.iops).unwrap();
        assert_eq!((ratio.median, ratio.rounds), (3.0, 1));
        assert_eq!(view.spread(&ours, |f| f.iops).unwrap().median, 60.0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
