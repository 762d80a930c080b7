//! Looking at what was measured: medians and ratios of points, lines of them.

use std::collections::BTreeMap;

use crate::draw::{Line, Spot};
use crate::figures::Figures;
use crate::plan::{Form, Group};
use crate::point::Point;
use crate::stats::Spread;
use crate::store::Store;

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
        Spread::of(self.store.rounds(point).map(|(_, figures)| of(figures)))
    }

    /// A figure that not every program tells.
    pub fn spread_of_some(
        &self,
        point: &Point,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.store.rounds(point).filter_map(|(_, figures)| of(figures)))
    }

    /// A figure of one point over that of another, taken within each round: a machine that is busy
    /// for a while slows both.
    pub fn ratio(&self, a: &Point, b: &Point, of: impl Fn(&Figures) -> f64) -> Option<Spread> {
        let others: BTreeMap<u32, f64> = self.store.rounds(b).map(|(n, f)| (n, of(f))).collect();
        Spread::of(
            self.store.rounds(a).filter_map(|(n, f)| others.get(&n).map(|other| of(f) / other)),
        )
    }

    /// The last round's figures of a point.
    pub fn last(&self, point: &Point) -> Option<&'a Figures> {
        self.store.rounds(point).last().map(|(_, figures)| figures)
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
            let known = self.store.get(&point);
            if known.is_some_and(|known| !known.rounds.is_empty()) {
                continue;
            }
            match known.and_then(|known| known.missing.clone()) {
                Some(reason) => *why.entry((point.subject.title(), reason)).or_default() += 1,
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
