//! Figures 5, 6 and 7: batching policies over 4 KiB requests outstanding, without and with data
//! batching.

use super::{Experiment, NONE, Section, Table, largest, of_echo, utilisation, utilisation_mark};
use crate::document::document;
use crate::draw::{Drawing, Line, Lines, Mark, Scale};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Settings, Subject, Wire};
use crate::view::View;

/// The policies compared: the document's, i10's and ours.
pub const POLICIES: [&str; 7] =
    ["none", "static:2", "static:8", "static:64", "tyche", "doorbell", "backlog"];
const PATTERNS: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];
/// Requests outstanding of each of the document's threads.
const DEPTH: u32 = 4;
const JOBS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The loads of these figures: one request, to see what waiting for company costs, then the
/// document's.
pub fn loads(pattern: Pattern) -> impl Iterator<Item = Load> {
    std::iter::once(Load::new(pattern, 4096, 1)).chain(stated(pattern))
}

/// The document's loads: what it states is about them.
fn stated(pattern: Pattern) -> impl Iterator<Item = Load> {
    JOBS.into_iter().map(move |jobs| Load::new(pattern, 4096, DEPTH).jobs(jobs))
}

/// A policy as a subject.
pub fn policy(name: &'static str, data: bool) -> Subject {
    let data_batch = Some(if data { "on" } else { "off" });
    Subject::with(Carrier::Packet, Settings { batch: Some(name), data_batch, ..Settings::DEFAULT })
}

/// The point of a policy under a load.
pub fn point(load: Load, name: &'static str, data: bool) -> Point {
    Point { wire: Wire::TEN_GIGABIT, load, subject: policy(name, data) }
}

/// A bare echo: the limit that the others are held against.
const ECHO: Subject = Subject::echo(Carrier::Packet, false);

fn with_data(experiment: Experiment) -> bool {
    experiment == Experiment::Fig7
}

pub fn plan(experiment: Experiment) -> Vec<Group> {
    let data = with_data(experiment);
    let mut groups = Vec::new();
    for pattern in PATTERNS {
        for load in loads(pattern) {
            let mut group = Group::new(Wire::TEN_GIGABIT, load);
            for name in POLICIES {
                let quick = u32::from(in_quick(&load, name, data));
                // An interval of a second, ten of them before it tries its neighbours: shorter runs
                // would never see it do that. It takes longer than all others together, which get a
                // round more: bars take the furthest ahead of them at the worst of all loads.
                let (seconds, full) = if name == "tyche" { (14.0, 3) } else { (0.8, 4) };
                group = group.with(policy(name, data), seconds, full, quick);
            }
            groups.push(group.with(ECHO, 0.8, 3, 0));
        }
    }
    groups
}

fn in_quick(load: &Load, name: &str, data: bool) -> bool {
    let outstanding = load.outstanding();
    match (load.pattern, name) {
        (Pattern::RandRead, "tyche") => {
            matches!((outstanding, data), (512, true) | (128, false))
        }
        (Pattern::RandRead, "none" | "backlog") => matches!(outstanding, 1 | 32 | 128 | 512),
        (Pattern::RandRead, "static:8") => matches!(outstanding, 4 | 32 | 128 | 512) && data,
        (Pattern::RandWrite, "none" | "backlog") => outstanding == 128 && data,
        _ => false,
    }
}

pub fn section(experiment: Experiment, view: &View) -> Section {
    let data = with_data(experiment);
    let intro = "Random 4 KiB reads and writes over one link of 10 Gb/s, MTU 9000, by 1 to 128 streams with 4 \
                 requests outstanding each (the document's are threads), and one with 1.";
    let (title, text) = match experiment {
        Experiment::Fig5 => (
            "Figure 5: batching policies, link utilisation",
            "Each block has a frame of its own (--data-batch off). The document: the dynamic level is ahead of \
             no batching by up to 44.2 % (reads) and 49.5 % (writes), by 28.1 % and 35.8 % at 32 outstanding, \
             and at most 8.6 % behind the best static level; static levels do badly at few outstanding, where \
             they wait for their delay.",
        ),
        Experiment::Fig6 => (
            "Figure 6: batching policies, level",
            "How many requests really shared a frame, on average over a run, and beside it the level that the \
             dynamic policy had chosen: how many it waits for. The document: for reads the dynamic level \
             grows with what is outstanding, for writes it is constant up to 256 outstanding and then \
             starts to grow. How the level changes over time is with Figure 8.",
        ),
        _ => (
            "Figure 7: batching policies with data batching, link utilisation",
            "Two blocks of 4 KiB share a frame of 8 KiB (--data-batch on). The document: the dynamic level is \
             ahead of no batching by up to 56.9 % (reads) and 53 % (writes).",
        ),
    };
    let mut section = Section::new(title, &[intro, text]);
    for pattern in PATTERNS {
        let side = if pattern.reads() { "reads" } else { "writes" };
        let points = |name: &'static str| {
            loads(pattern).map(move |load| (f64::from(load.outstanding()), point(load, name, data)))
        };
        let line = |name: &'static str| {
            view.line(name, points(name), |_, f| match experiment {
                Experiment::Fig6 => f.batch.as_ref().map(|batch| batch.requests_per_frame),
                _ => utilisation(&Wire::TEN_GIGABIT, f),
            })
        };
        let mut lines: Vec<Line> = POLICIES.into_iter().map(line).collect();
        if experiment == Experiment::Fig6 {
            lines.push(view.line("tyche, level chosen", points("tyche"), |_, f| level(f)));
        }
        let lines = Lines {
            title: format!("Random {side} of 4 KiB"),
            x_name: "requests outstanding".into(),
            y_name: match experiment {
                Experiment::Fig6 => "requests in a frame".into(),
                _ => "link utilisation, %".into(),
            },
            scale: Scale::Log2,
            lines,
            marks: marks(experiment, side),
        };
        section.drawings.push((side.into(), Drawing::Lines(lines)));
        if experiment != Experiment::Fig6 {
            section.tables.push(gains(experiment, view, pattern, side, data));
        }
    }
    section.tables.push(match experiment {
        Experiment::Fig6 => {
            Table::statements(&[("fig6.writes.rise", rise(view, Pattern::RandWrite, data))])
        }
        _ => statements(experiment, view, data),
    });
    section
}

/// The level that the policy had chosen, on average over the run.
fn level(figures: &Figures) -> Option<f64> {
    figures.batch.as_ref().map(|batch| batch.level_mean)
}

/// Up to how many outstanding the dynamic level stays within a quarter of what it is at the document's
/// fewest; `None` unless it was measured at every number of the document's.
fn rise(view: &View, pattern: Pattern, data: bool) -> Option<f64> {
    let of = |load| view.spread_of_some(&point(load, "tyche", data), level).map(|s| s.median);
    let levels: Option<Vec<(u32, f64)>> =
        stated(pattern).map(|load| Some((load.outstanding(), of(load)?))).collect();
    rise_of(&levels?)
}

/// Of levels by outstanding requests.
fn rise_of(levels: &[(u32, f64)]) -> Option<f64> {
    let first = levels.first()?.1;
    let constant = levels.iter().take_while(|(_, level)| *level <= first * 1.25);
    constant.last().map(|(outstanding, _)| f64::from(*outstanding))
}

/// What the document says of its dynamic level, and what ours does: ratios within rounds, medians over
/// them, at the document's loads.
fn statements(experiment: Experiment, view: &View, data: bool) -> Table {
    let mut rows = Vec::new();
    let name = experiment.name();
    let ahead = |load: Load, a, b| {
        let ratio = view.ratio(&point(load, a, data), &point(load, b, data), |f| f.iops);
        ratio.map(|s| (s.median - 1.0) * 100.0)
    };
    for pattern in PATTERNS {
        let side = if pattern.reads() { "reads" } else { "writes" };
        let gain = |load| ahead(load, "tyche", "none");
        let filled = |load: Load| {
            let of = |f: &Figures| utilisation(&Wire::TEN_GIGABIT, f);
            view.spread_of_some(&point(load, "tyche", data), of).map(|s| s.median)
        };
        rows.push((format!("{name}.{side}.gain"), largest(stated(pattern).filter_map(gain))));
        if experiment == Experiment::Fig5 {
            let load = stated(pattern).find(|load| load.outstanding() == 32);
            rows.push((format!("fig5.{side}.gain.32"), load.and_then(gain)));
        }
        rows.push((format!("{name}.{side}.max"), largest(stated(pattern).filter_map(filled))));
    }
    if experiment == Experiment::Fig5 {
        let static_ones =
            |load| ["static:2", "static:8", "static:64"].map(|name| ahead(load, name, "tyche"));
        let all = PATTERNS.into_iter().flat_map(stated).flat_map(static_ones).flatten();
        rows.push(("fig5.static_over_dynamic".to_owned(), largest(all)));
    }
    if experiment == Experiment::Fig7 {
        let all = PATTERNS.into_iter().flat_map(stated).map(|load| point(load, "tyche", data));
        let iops = all.filter_map(|point| view.spread(&point, |f| f.iops)).map(|s| s.median);
        rows.push(("iops.max".to_owned(), largest(iops)));
        let line = Wire::TEN_GIGABIT.bytes_per_s().map(|bytes| bytes / 4096.0);
        rows.push(("iops.link".to_owned(), line));
    }
    let rows: Vec<_> = rows.iter().map(|(id, ours)| (&id[..], *ours)).collect();
    Table::statements(&rows)
}

fn marks(experiment: Experiment, side: &str) -> Vec<Mark> {
    let name = experiment.name();
    if experiment == Experiment::Fig6 {
        return Vec::new();
    }
    vec![utilisation_mark(&format!("{name}.{side}.max"), "dynamic, at most", None)]
}

/// How far each policy is ahead of none, beside what the document says of its dynamic level.
fn gains(experiment: Experiment, view: &View, pattern: Pattern, side: &str, data: bool) -> Table {
    let others = &POLICIES[1..];
    let mut header = vec!["outstanding", "none, IOPS"];
    header.extend(others);
    header.extend(["document, dynamic", "backlog of the echo, %"]);
    let mut table = Table::new(format!("Random {side}: IOPS gained over no batching, %"), &header);
    for load in loads(pattern) {
        let base = point(load, "none", data);
        let none =
            view.spread(&base, |f| f.iops).map_or(NONE.into(), |s| format!("{:.0}", s.median));
        let mut row = vec![load.outstanding().to_string(), none];
        for name in others {
            let gain = view.ratio(&point(load, name, data), &base, |f| f.iops);
            row.push(gain.map_or(NONE.into(), |s| format!("{:+.1}", (s.median - 1.0) * 100.0)));
        }
        let stated = match (experiment, load.outstanding()) {
            (Experiment::Fig5, 32) => {
                format!("+{}", document().says(&format!("fig5.{side}.gain.32")))
            }
            (_, 512) => {
                let most = document().says(&format!("{}.{side}.gain", experiment.name()));
                format!("+{most} at most, anywhere")
            }
            _ => NONE.into(),
        };
        row.push(stated);
        row.push(of_echo(view, &point(load, "backlog", data)));
        table.rows.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::BatchFigures;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn what_the_document_states_is_compared_where_it_measured() {
        let folder = folder("batching-stated");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for load in loads(Pattern::RandWrite) {
            // One request: not of the document. Level 1 there would make every other a rise.
            let one = load.outstanding() == 1;
            for round in 0..3u32 {
                for (name, iops) in [("tyche", 3.0), ("none", 2.0), ("static:8", 3.3)] {
                    // A single round is far ahead, and rounds differ by more than policies do.
                    let lucky = if name == "tyche" && round == 1 { 4.0 } else { 1.0 };
                    let level_mean = if one { 1.0 } else { 6.0 };
                    let figures = Figures {
                        iops: iops * lucky * if one { 9.0 } else { 1.0 } / f64::from(round + 1),
                        batch: Some(BatchFigures { level_mean, ..BatchFigures::default() }),
                        ..Figures::default()
                    };
                    let run = Run { round, visit: u64::from(round) + 1, seconds: 60.0 };
                    store.put(&point(load, name, false), run, Ok(figures)).unwrap();
                }
            }
        }
        let plan = Experiment::Fig5.plan();
        let view = View::new(&store, &plan, Form::Full);
        assert_eq!(rise(&view, Pattern::RandWrite, false), Some(512.0));
        let table = statements(Experiment::Fig5, &view, false);
        let ours = |text: &str| {
            let row = table.rows.iter().find(|row| row[0].starts_with(text)).unwrap();
            row[3].clone()
        };
        assert_eq!(ours("Writes, dynamic over no batching, at most"), "50.0 %");
        assert_eq!(ours("What a static level is ahead"), "10.0 %");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_level_rises_after_the_last_place_where_it_is_constant() {
        assert_eq!(rise_of(&[(1, 4.0), (4, 5.0), (8, 3.0), (16, 9.0), (32, 4.0)]), Some(8.0));
        assert_eq!(rise_of(&[(1, 4.0), (512, 4.0)]), Some(512.0));
        assert_eq!(rise_of(&[]), None);
    }
}
