//! Figure 8: 4 KiB requests of 32 streams, joined one by one by streams of 128 KiB requests.

use super::{NONE, Section, Table, batching, largest, their_utilisation, utilisation_mark};
use crate::document::document;
use crate::draw::{Drawing, Line, Lines, Scale, Spot};
use crate::figures::{Figures, Moment};
use crate::plan::Group;
use crate::point::{Load, Pattern, Point, Wire};
use crate::stats::Spread;
use crate::view::View;

/// Seconds between two streams that join; the document's are 60.
const INTERVAL_S: u32 = 8;
/// Compared with each other; those that batch, with data batching.
const POLICIES: [&str; 3] = ["tyche", "none", "backlog"];
const PATTERNS: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];

fn point(pattern: Pattern, name: &'static str) -> Point {
    let load = Load { joined_every_s: INTERVAL_S, ..Load::new(pattern, 4096, 4).jobs(32) };
    Point { wire: Wire::TEN_GIGABIT, load, subject: batching::policy(name, name != "none") }
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for pattern in PATTERNS {
        let mut group = Group::new(Wire::TEN_GIGABIT, point(pattern, POLICIES[0]).load);
        for name in POLICIES {
            let quick = u32::from(pattern.reads() && name == "tyche");
            // How long it takes follows from the intervals.
            group = group.with(point(pattern, name).subject, 0.0, 1, quick);
        }
        groups.push(group);
    }
    groups
}

fn percent(mib_per_s: f64) -> f64 {
    let line = Wire::TEN_GIGABIT.bytes_per_s().expect("it has a rate");
    mib_per_s * f64::from(1 << 20) / line * 100.0
}

pub fn section(view: &View) -> Section {
    let text = format!(
        "32 streams of 4 KiB requests, 4 outstanding each; every {INTERVAL_S} s (in the document: 60 s) one more \
         stream of 128 KiB requests joins, one outstanding, five in all. Over one link of 10 Gb/s, MTU 9000. The \
         document's streams are threads; ours of 4 KiB share one thread and one volume, and each that joins is a \
         process with an export and a session of its own."
    );
    let mut section = Section::new("Figure 8: two request sizes at once", &[&text]);
    for pattern in PATTERNS {
        let side = if pattern.reads() { "reads" } else { "writes" };
        let line = |name: &'static str| {
            let moments = view.last(&point(pattern, name)).map_or(&[][..], |f| &f.timeline);
            let spot = |m: &Moment| Spread::of([percent(m.mib_per_s)]).map(|y| Spot { x: m.t, y });
            Line { name: name.into(), spots: moments.iter().filter_map(spot).collect() }
        };
        let marks = match pattern.reads() {
            true => vec![
                utilisation_mark("fig8.reads.mean", "dynamic, on average", None),
                utilisation_mark("fig8.reads.none.mean", "no batching, on average", None),
            ],
            false => vec![],
        };
        let lines = Lines {
            title: format!("Random {side} of 4 KiB, joined by {side} of 128 KiB"),
            x_name: "seconds".into(),
            y_name: "link utilisation, %".into(),
            scale: Scale::Linear,
            lines: POLICIES.into_iter().map(line).collect(),
            marks,
        };
        section.drawings.push((side.into(), Drawing::Lines(lines)));
        section
            .drawings
            .push((format!("{side}-level"), Drawing::Lines(levels(view, pattern, side))));
        section.tables.push(table(view, pattern, side));
    }
    let gains = PATTERNS.map(|pattern| gain(view, pattern));
    section
        .tables
        .push(Table::statements(&[("fig8.reads.gain", gains[0]), ("fig8.writes.gain", gains[1])]));
    section
}

/// How many times as much as no batching the dynamic policy moves, in the interval where that is most.
fn gain(view: &View, pattern: Pattern) -> Option<f64> {
    let [ours, none] =
        ["tyche", "none"].map(|name| view.last(&point(pattern, name)).map(|f| &f.timeline));
    let pairs = ours?.iter().zip(none?);
    largest(pairs.map(|(ours, none)| ours.mib_per_s / none.mib_per_s).filter(|r| r.is_finite()))
}

/// The level of the session that the small requests share; that of the other policies never changes.
fn levels(view: &View, pattern: Pattern, side: &str) -> Lines {
    let moments = view.last(&point(pattern, "tyche")).map_or(&[][..], |f| &f.timeline);
    let spot = |m: &Moment| Spread::of([m.level?]).map(|y| Spot { x: m.t, y });
    let spots = moments.iter().filter_map(spot).collect();
    Lines {
        title: format!("Level of the dynamic policy for the 4 KiB {side}, over time"),
        x_name: "seconds".into(),
        y_name: "requests that it waits for".into(),
        scale: Scale::Linear,
        lines: vec![Line { name: "tyche".into(), spots }],
        marks: vec![],
    }
}

fn table(view: &View, pattern: Pattern, side: &str) -> Table {
    let header = [
        "policy",
        "most",
        "mean",
        "document, most (by our measure)",
        "document, mean (by our measure)",
    ];
    let mut table = Table::new(format!("Random {side}: link utilisation, %"), &header);
    for name in POLICIES {
        let all = |f: &Figures| Spread::of(f.timeline.iter().map(|m| percent(m.mib_per_s)));
        let mean = |f: &Figures| {
            f.timeline.iter().map(|m| percent(m.mib_per_s)).sum::<f64>()
                / f.timeline.len().max(1) as f64
        };
        let found = view.last(&point(pattern, name));
        let most = found.and_then(all).map_or(NONE.into(), |s| format!("{:.1}", s.max));
        let mean = found
            .filter(|f| !f.timeline.is_empty())
            .map_or(NONE.into(), |f| format!("{:.1}", mean(f)));
        let says = |id: &str| format!("{:.1}", their_utilisation(document().says(id)));
        let (stated_most, stated_mean) = match (pattern.reads(), name) {
            (true, "tyche") => (says("fig8.reads.max"), says("fig8.reads.mean")),
            (true, "none") => (says("fig8.reads.none.max"), says("fig8.reads.none.mean")),
            _ => (NONE.into(), NONE.into()),
        };
        table.rows.push(vec![name.into(), most, mean, stated_most, stated_mean]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn the_gain_is_that_of_the_best_interval() {
        let folder = folder("mixed-gain");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for (name, rates) in [("tyche", [90.0, 120.0, 80.0]), ("none", [90.0, 40.0, 0.0])] {
            let moment = |mib_per_s| Moment { t: 1.0, iops: 1.0, mib_per_s, level: None };
            let timeline = rates.map(moment).into();
            let figures = Figures { timeline, ..Figures::default() };
            let run = Run { round: 0, visit: 1, seconds: 60.0 };
            store.put(&point(Pattern::RandRead, name), run, Ok(figures)).unwrap();
        }
        let groups = plan();
        let view = View::new(&store, &groups, Form::Full);
        assert_eq!(gain(&view, Pattern::RandRead), Some(3.0));
        assert_eq!(gain(&view, Pattern::RandWrite), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
