//! Table 2.2, Figures 2.13 and 2.14: queries of TPC-H over the document's storage nodes. One set of runs, three looks at it.

use super::{bars_table, cell, stated};
use crate::composed::{ComposedSubject, Nodes, Program, Speed};
use crate::experiments::bars::{Bar, at_most};
use crate::experiments::{Experiment, NONE, Section, Table};
use crate::figures::{Figures, ProgramFigures};
use crate::plan::Group;
use crate::point::{Load, Point, Subject, Wire};
use crate::view::View;

const GIGABIT: Wire = Wire { mbit: Some(1000), mtu: 1500, ..Wire::FREE };
const GIGABIT_JUMBO: Wire = Wire { mtu: 9000, ..GIGABIT };
/// What bars are about is the first.
const WIRES: [Wire; 2] = [GIGABIT_JUMBO, GIGABIT];

const NODES: [Nodes; 5] =
    [Nodes::Direct, Nodes::OneCached, Nodes::One, Nodes::ThreeCached, Nodes::Three];
/// Those of the quick form: one that does little else than read everything, and one with a join.
const QUICK: [u8; 2] = [6, 14];
/// For which the document gives a time by itself: over one node the least and the most, over three the least.
const LEAST: u8 = 8;
const MOST: u8 = 6;
const SHORTER: u8 = 14;

/// A run ends with its query: how long it is measured is not asked.
const SECONDS: f64 = 1.0;
const ROUNDS: u32 = 2;
/// On the document's link.
const FEW: u32 = 1;

fn queries() -> impl Iterator<Item = u8> {
    stated::document().queries.iter().map(|row| row.query)
}

fn point(wire: Wire, query: u8, nodes: Nodes) -> Point {
    let subject = Subject::Composed(ComposedSubject::Nodes { nodes, speed: Speed::Document });
    Point { wire, load: Load::program(Program::Query(query)), subject }
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for wire in WIRES {
        for query in queries() {
            let quick = u32::from(wire == WIRES[0] && QUICK.contains(&query));
            let rounds = if wire == WIRES[0] { ROUNDS } else { FEW };
            let group = Group::new(wire, Load::program(Program::Query(query)));
            groups.push(NODES.into_iter().fold(group, |group, nodes| {
                group.with(point(wire, query, nodes).subject, SECONDS, rounds, quick)
            }));
        }
    }
    groups
}

/// What a query took, in seconds.
fn seconds(figures: &Figures) -> f64 {
    figures.program.as_ref().map_or(f64::NAN, |program| program.seconds)
}

/// All of a wire with these nodes, with their names.
pub fn points(wire: Wire, nodes: Nodes) -> Vec<(String, Point)> {
    queries().map(|query| (format!("q{query}"), point(wire, query, nodes))).collect()
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for query in queries() {
        let text = format!("TPC-H q{query}, one node, MTU 9000: time over direct");
        let pair = [Nodes::OneCached, Nodes::Direct].map(|n| point(WIRES[0], query, n));
        bars.push(at_most(1.1, seconds).bar(view, text, pair, &[]));
    }
}

pub fn section(experiment: Experiment, view: &View) -> Section {
    let (item, what) = match experiment {
        Experiment::OrchestraTable22 => ("table2.2", "Table 2.2"),
        Experiment::Orchestra213 => ("2.13", "Figure 2.13"),
        _ => ("2.14", "Figure 2.14"),
    };
    let mut section = Section::new(
        &format!("{what}: {}", stated::shows(item)),
        &[
            "The tables of TPC-H at scale 0.3 (the crate tpchgen), in Debian's sqlite3 with indices on keys, where the document has 10 GB in \
             MySQL: only ratios are compared. The database is a file in ext4 on the block device of thinwire attach --block, over the \
             same disks and nodes as Postmark's. The program and what the kernel keeps of the file for it have 32 MiB, nodes with a \
             cache as much each; before each query the file system is mounted anew, so that nothing of it is in the program's \
             memory, while a node keeps what it has, as the document's nodes do.",
            "Times are of one sqlite3 from its start to its end. Ratios are taken within a round.",
        ],
    );
    match experiment {
        Experiment::OrchestraTable22 => section.tables.push(direct(view)),
        Experiment::Orchestra213 => {
            section.tables.extend(WIRES.map(|wire| relative(view, wire)));
            section.tables.push(stated::table("2.13", &of_relative(view)));
            section.tables.push(bars_table("How long queries may take", |own| bars(view, own)));
        }
        _ => {
            section.tables.extend(WIRES.map(|wire| breakdown(view, wire)));
            section.tables.push(stated::table("2.14", &of_breakdown(view)));
        }
    }
    section
}

fn direct(view: &View) -> Table {
    let mut table = Table::new("Direct", &["query", "document, s", "ours, s"]);
    for row in &stated::document().queries {
        let own = view.spread(&point(GIGABIT, row.query, Nodes::Direct), seconds);
        let own =
            own.or_else(|| view.spread(&point(GIGABIT_JUMBO, row.query, Nodes::Direct), seconds));
        table.rows.push(vec![format!("q{}", row.query), row.seconds.to_string(), cell(own, 2)]);
    }
    table
}

fn relative(view: &View, wire: Wire) -> Table {
    let title = format!("Time relative to direct: links of 1 Gb/s, MTU {}", wire.mtu);
    let mut table = Table::new(title, &["query"]);
    table.header.extend(NODES.into_iter().skip(1).map(|nodes| nodes.title().to_owned()));
    for query in queries() {
        let over = |nodes| {
            let pair = [nodes, Nodes::Direct].map(|n| point(wire, query, n));
            cell(view.ratio(&pair[0], &pair[1], seconds), 2)
        };
        table.rows.push(
            std::iter::once(format!("q{query}"))
                .chain(NODES.into_iter().skip(1).map(over))
                .collect(),
        );
    }
    table
}

fn breakdown(view: &View, wire: Wire) -> Table {
    let title = format!("Where the time goes: links of 1 Gb/s, MTU {}", wire.mtu);
    let header = [
        "query",
        "nodes",
        "s",
        "user, %",
        "system, %",
        "attachment, %",
        "idle, %",
        "I/Os a second at the device",
    ];
    let mut table = Table::new(title, &header);
    for query in queries() {
        for nodes in NODES {
            let own = point(wire, query, nodes);
            let show = |of: fn(&ProgramFigures) -> f64| {
                cell(view.spread_of_some(&own, |f| f.program.as_ref().map(of)), 0)
            };
            table.rows.push(vec![
                format!("q{query}"),
                nodes.title().into(),
                cell(view.spread(&own, seconds), 2),
                show(|p| p.user_s / p.seconds * 100.0),
                show(|p| p.system_s / p.seconds * 100.0),
                show(|p| p.attachment_s / p.seconds * 100.0),
                show(ProgramFigures::idle_percent),
                show(|p| p.device_iops),
            ]);
        }
    }
    table
}

/// Medians of a figure over that of others', of all queries on the document's link.
fn ratios(view: &View, [a, b]: [Nodes; 2], of: fn(&Figures) -> f64) -> Vec<(u8, f64)> {
    let ratio = |query| {
        let pair = [a, b].map(|n| point(GIGABIT, query, n));
        Some((query, view.ratio(&pair[0], &pair[1], of)?.median))
    };
    queries().filter_map(ratio).collect()
}

/// `0.98 (q1) to 1.35 (q6)`.
fn range(all: &[(u8, f64)]) -> String {
    let order = |a: &&(u8, f64), b: &&(u8, f64)| a.1.total_cmp(&b.1);
    match (all.iter().min_by(order), all.iter().max_by(order)) {
        (Some(least), Some(most)) => {
            format!("{:.2} (q{}) to {:.2} (q{})", least.1, least.0, most.1, most.0)
        }
        _ => NONE.into(),
    }
}

fn both(view: &View, [cached, plain]: [Nodes; 2], of: fn(&Figures) -> f64) -> String {
    let range = |nodes| range(&ratios(view, [nodes, Nodes::Direct], of));
    format!("of direct: {}; no cache: {}", range(cached), range(plain))
}

const ONE: [Nodes; 2] = [Nodes::OneCached, Nodes::One];
const THREE: [Nodes; 2] = [Nodes::ThreeCached, Nodes::Three];

fn of_relative(view: &View) -> Vec<(&'static str, String)> {
    let all = both(view, THREE, seconds);
    let of = |query: u8, pair| {
        let all = ratios(view, pair, seconds);
        all.into_iter()
            .find(|(own, _)| *own == query)
            .map_or(NONE.into(), |(_, r)| format!("{r:.2}"))
    };
    let one = |query| of(query, [Nodes::OneCached, Nodes::Direct]);
    vec![
        (
            "2.13.x1",
            format!("{}; q{LEAST} {}, q{MOST} {}", both(view, ONE, seconds), one(LEAST), one(MOST)),
        ),
        ("2.13.x3", all.clone()),
        ("2.13.x3.usual", all),
        ("2.13.x3.q14", of(SHORTER, [Nodes::ThreeCached, Nodes::Direct]) + " of direct"),
        ("2.13.nocache", range(&ratios(view, [Nodes::Three, Nodes::ThreeCached], seconds))),
    ]
}

fn of_breakdown(view: &View) -> Vec<(&'static str, String)> {
    let idle = |nodes| {
        let points = queries().map(|query| point(GIGABIT, query, nodes));
        let idle = |f: &Figures| f.program.as_ref().map(ProgramFigures::idle_percent);
        let medians = points.filter_map(|p| view.spread_of_some(&p, idle)).map(|s| s.median);
        medians.reduce(f64::max).map_or(NONE.into(), |most| format!("at most {most:.0} %"))
    };
    vec![
        (
            "2.14.x1.system",
            both(view, ONE, |f| f.program.as_ref().map_or(f64::NAN, |p| p.system_s)),
        ),
        ("2.14.x1.user", both(view, ONE, |f| f.program.as_ref().map_or(f64::NAN, |p| p.user_s))),
        ("2.14.x3", format!("{}; no cache: {}", idle(Nodes::ThreeCached), idle(Nodes::Three))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn queries_are_judged_by_direct_disks() {
        let folder = folder("orchestra-tpch");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let mut put = |wire, query, nodes, seconds: f64| {
            let program =
                ProgramFigures { seconds, user_s: seconds / 2.0, ..ProgramFigures::default() };
            let figures = Figures { program: Some(program), ..Figures::default() };
            let run = Run { round: 0, visit: 1, seconds: SECONDS };
            store.put(&point(wire, query, nodes), run, Ok(figures)).unwrap();
        };
        for (query, one) in [(1, 11.0), (6, 11.1)] {
            for wire in WIRES {
                put(wire, query, Nodes::Direct, 10.0);
                put(wire, query, Nodes::OneCached, one);
            }
        }
        let view = View::new(&store, &plan(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        assert_eq!(all.len(), 10);
        let verdict = |query: u8| {
            let text = format!("TPC-H q{query},");
            all.iter().find(|bar| bar.text.starts_with(&text)).unwrap().verdict()
        };
        assert_eq!([1, 6, 3].map(verdict), ["met", "missed", "not measured"]);
        let said = of_relative(&view);
        assert_eq!(said[0].1, "of direct: 1.10 (q1) to 1.11 (q6); no cache: –; q8 –, q6 1.11");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_the_document_names_is_asked() {
        let all: Vec<u8> = queries().collect();
        for query in QUICK.into_iter().chain([LEAST, MOST, SHORTER]) {
            assert!(all.contains(&query), "q{query}");
        }
    }
}
