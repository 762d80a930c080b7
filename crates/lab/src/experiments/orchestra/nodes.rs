//! Figures 2.8 to 2.10: the document's storage nodes under the patterns of IOmeter. One set of runs, three looks at it.

use super::{bars_table, cell, client_cpu, mb_per_s, most, pattern_title, stated};
use crate::composed::{ComposedSubject, Nodes, Speed};
use crate::draw::{Drawing, Lines, Scale};
use crate::experiments::bars::{Bar, at_most};
use crate::experiments::{Experiment, NONE, Section, Table, size};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Load, Pattern, Point, Subject, Wire};
use crate::view::View;

/// All patterns; those in order first.
const PATTERNS: [Pattern; 6] = [
    Pattern::Read,
    Pattern::Write,
    Pattern::Mixed,
    Pattern::RandRead,
    Pattern::RandWrite,
    Pattern::RandMixed,
];
const SIZES: [u32; 5] = [512, 4096, 8192, 32_768, 131_072];
/// Of what is in fewer sizes.
const FEW_SIZES: [u32; 2] = [4096, 131_072];
const DEPTHS: [u32; 2] = [16, 1];

const GIGABIT: Wire = Wire { mbit: Some(1000), mtu: 1500, ..Wire::FREE };
const GIGABIT_JUMBO: Wire = Wire { mtu: 9000, ..GIGABIT };
const FREE: Wire = Wire { mbit: None, ..GIGABIT };
const FREE_JUMBO: Wire = Wire { mbit: None, ..GIGABIT_JUMBO };

/// As columns. Those of the document are with a cache in each node.
const NODES: [Nodes; 5] =
    [Nodes::Direct, Nodes::OneCached, Nodes::One, Nodes::ThreeCached, Nodes::Three];
/// The same without limits: a cache in front of memory has nothing to gain.
const FREE_NODES: [Nodes; 3] = [Nodes::Direct, Nodes::One, Nodes::Three];

/// Of a run.
const SECONDS: f64 = 1.2;
const ROUNDS: u32 = 2;

const fn nodes(nodes: Nodes, speed: Speed) -> Subject {
    Subject::Composed(ComposedSubject::Nodes { nodes, speed })
}

fn subjects(wire: Wire, pattern: Pattern) -> Vec<Subject> {
    let mut all: Vec<Subject> = match wire.mbit {
        Some(_) => NODES.map(|n| nodes(n, Speed::Document)).into(),
        None => FREE_NODES.map(|n| nodes(n, Speed::Unlimited)).into(),
    };
    all.push(Subject::Nbdkit);
    // iscsi-perf only reads.
    if pattern.reads() {
        all.push(Subject::Tgt);
    }
    all
}

/// What is measured on which wire: sizes, patterns, outstanding.
fn loads(wire: Wire) -> Vec<Load> {
    let mut all = Vec::new();
    for pattern in PATTERNS {
        for block in SIZES {
            let few = FEW_SIZES.contains(&block);
            if wire == GIGABIT || few {
                all.push(Load::new(pattern, block, DEPTHS[0]));
            }
            if wire == GIGABIT && few {
                all.push(Load::new(pattern, block, DEPTHS[1]));
            }
        }
    }
    all
}

/// Whether the quick form measures it: the patterns in order on the document's link, and what the peers' CPU is compared with.
fn is_quick(wire: Wire, load: Load) -> bool {
    let common = FEW_SIZES.contains(&load.block) && load.depth == DEPTHS[0];
    let in_order =
        !matches!(load.pattern, Pattern::RandRead | Pattern::RandWrite | Pattern::RandMixed);
    common && in_order && (wire == GIGABIT || wire == FREE_JUMBO && load.pattern == Pattern::Read)
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for wire in [GIGABIT, GIGABIT_JUMBO, FREE, FREE_JUMBO] {
        for load in loads(wire) {
            let quick = u32::from(is_quick(wire, load));
            groups.push(
                subjects(wire, load.pattern)
                    .into_iter()
                    .fold(Group::new(wire, load), |group, s| group.with(s, SECONDS, ROUNDS, quick)),
            );
        }
    }
    groups
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for block in FEW_SIZES {
        let load = Load::new(Pattern::Read, block, DEPTHS[0]);
        let text = format!(
            "{} {}, 16 outstanding, one node, no limits, MTU 9000: CPU of the initiator an I/O, over tgt's",
            size(block),
            pattern_title(Pattern::Read)
        );
        let pair = [nodes(Nodes::One, Speed::Unlimited), Subject::Tgt];
        let pair = pair.map(|subject| Point { wire: FREE_JUMBO, load, subject });
        bars.push(at_most(0.5, |f| f.cpu_client_us).bar(view, text, pair, &[]));
    }
}

/// What one of the figures is about.
struct Look {
    item: &'static str,
    what: &'static str,
    unit: &'static str,
    digits: usize,
    of: fn(&Figures) -> f64,
}

fn look(experiment: Experiment) -> Look {
    match experiment {
        Experiment::Orchestra28 => {
            Look { item: "2.8", what: "Throughput", unit: "MB/s", digits: 1, of: mb_per_s }
        }
        Experiment::Orchestra29 => Look {
            item: "2.9",
            what: "Mean response time",
            unit: "ms",
            digits: 2,
            of: |f| f.mean_us / 1e3,
        },
        _ => Look {
            item: "2.10",
            what: "CPU of the initiator's process",
            unit: "%",
            digits: 0,
            of: client_cpu,
        },
    }
}

pub fn section(experiment: Experiment, view: &View) -> Section {
    let look = look(experiment);
    let mut section = Section::new(
        &format!("Figure {}: {}", look.item, stated::shows(look.item)),
        &[
            "thinwire bench with 16 I/Os outstanding (and one) of a volume over five disks where it is (direct), over a target \
             that has them, and over three targets with five disks each, which the initiator stripes over. A disk is a file in \
             memory under qos, 45 MB/s read and 20 MB/s written; five of them are a stripe of 64 KiB chunks under another qos of \
             120 MB/s, the document's bus. Each side has one link with a port of 1 Gb/s at the switch. The document's nodes have a \
             buffer cache: with it they are called \"one node\" and \"three nodes\", without \"no cache\". Seeks are not modelled, so \
             random patterns tell ratios only. Below: the same on disks and links without limits.",
            "nbdkit (memory plugin, fio's nbd engine) and tgt (an image in memory, iscsi-perf, which only reads) have no such disks: \
             they show what the link and the CPU allow.",
        ],
    );
    for wire in [GIGABIT, GIGABIT_JUMBO, FREE, FREE_JUMBO] {
        section.tables.push(table(view, &look, wire));
    }
    for pattern in [Pattern::Read, Pattern::Write, Pattern::Mixed] {
        section.drawings.push((pattern.word().into(), drawing(view, &look, pattern)));
    }
    let ours = match experiment {
        Experiment::Orchestra28 => of_throughput(view),
        Experiment::Orchestra29 => of_response(view),
        _ => of_cpu(view),
    };
    section.tables.push(stated::table(look.item, &ours));
    if experiment == Experiment::Orchestra29 {
        section.tables.push(percentiles(view));
    }
    if experiment == Experiment::Orchestra210 {
        section.tables.push(bars_table("What the initiator may take", |own| bars(view, own)));
    }
    section
}

/// One row for each load, one column for each subject.
fn table(view: &View, look: &Look, wire: Wire) -> Table {
    let rate =
        if wire.mbit.is_some() { "the document's disks, links of 1 Gb/s" } else { "no limits" };
    let mut table =
        Table::new(format!("{}, {}: {rate}, MTU {}", look.what, look.unit, wire.mtu), &[]);
    let columns = subjects(wire, Pattern::Read);
    table.header = vec!["pattern".into(), "I/O".into(), "outstanding".into()];
    table.header.extend(columns.iter().map(Subject::title));
    for load in loads(wire) {
        let mut row =
            vec![pattern_title(load.pattern).into(), size(load.block), load.depth.to_string()];
        row.extend(columns.iter().map(|&subject| {
            cell(view.spread(&Point { wire, load, subject }, look.of), look.digits)
        }));
        table.rows.push(row);
    }
    table
}

fn drawing(view: &View, look: &Look, pattern: Pattern) -> Drawing {
    let line = |subject: Subject| {
        let points = SIZES.map(|block| (f64::from(block) / 1024.0, point(subject, pattern, block)));
        view.line(subject.title(), points, |_, f| Some((look.of)(f)))
    };
    let all = subjects(GIGABIT, pattern);
    Drawing::Lines(Lines {
        title: format!("{}, {}, 16 outstanding, MTU 1500", look.what, pattern_title(pattern)),
        x_name: "KiB of an I/O".into(),
        y_name: look.unit.into(),
        scale: Scale::Log2,
        lines: all.into_iter().map(line).collect(),
        marks: Vec::new(),
    })
}

/// On the document's link, with 16 outstanding.
fn point(subject: Subject, pattern: Pattern, block: u32) -> Point {
    Point { wire: GIGABIT, load: Load::new(pattern, block, DEPTHS[0]), subject }
}

/// The highest median over the sizes, and the size.
fn top(view: &View, n: Nodes, pattern: Pattern, of: fn(&Figures) -> f64) -> Option<(f64, u32)> {
    let points = SIZES.map(|block| point(nodes(n, Speed::Document), pattern, block));
    most(view, &points, of).map(|(point, spread)| (spread.median, point.load.block))
}

fn top_shown(
    view: &View,
    n: Nodes,
    pattern: Pattern,
    of: fn(&Figures) -> f64,
    unit: &str,
) -> String {
    let found = top(view, n, pattern, of);
    found.map_or(NONE.into(), |(value, block)| format!("{value:.1} {unit} at {}", size(block)))
}

/// With a cache in each node, and without.
fn with_and_without(of: impl Fn(Nodes) -> String, [with, without]: [Nodes; 2]) -> String {
    format!("{}; no cache: {}", of(with), of(without))
}

const ONE: [Nodes; 2] = [Nodes::OneCached, Nodes::One];
const THREE: [Nodes; 2] = [Nodes::ThreeCached, Nodes::Three];

fn of_throughput(view: &View) -> Vec<(&'static str, String)> {
    let at = |pattern| move |n| top_shown(view, n, pattern, mb_per_s, "MB/s");
    let size_of = |n| {
        let found = top(view, n, Pattern::Read, mb_per_s);
        found.map_or(NONE.into(), |(_, block)| size(block))
    };
    let random = |n: Nodes| {
        let subject = nodes(n, Speed::Document);
        let [random, ordered] = [Pattern::RandRead, Pattern::Read]
            .map(|p| view.spread(&point(subject, p, 131_072), mb_per_s));
        match (random, ordered) {
            (Some(random), Some(ordered)) => {
                format!("{:.2} of the rate in order", random.median / ordered.median)
            }
            _ => NONE.into(),
        }
    };
    vec![
        ("2.8.direct.read", at(Pattern::Read)(Nodes::Direct)),
        ("2.8.direct.write", at(Pattern::Write)(Nodes::Direct)),
        ("2.8.direct.mix", at(Pattern::Mixed)(Nodes::Direct)),
        ("2.8.x1.most", with_and_without(at(Pattern::Write), ONE)),
        ("2.8.x1.read", with_and_without(at(Pattern::Read), ONE)),
        ("2.8.x1.mix", with_and_without(at(Pattern::Mixed), ONE)),
        (
            "2.8.size",
            format!(
                "reads: direct {}, one node without cache {}",
                size_of(Nodes::Direct),
                size_of(Nodes::One)
            ),
        ),
        ("2.8.x3.write", with_and_without(at(Pattern::Write), THREE)),
        ("2.8.x3.read", with_and_without(at(Pattern::Read), THREE)),
        (
            "2.8.random",
            format!("128 KiB reads, direct: {}; seeks are not modelled", random(Nodes::Direct)),
        ),
    ]
}

/// Response time over the direct one, within a round.
fn over_direct(view: &View, n: Nodes, block: u32) -> String {
    let of = |n| point(nodes(n, Speed::Document), Pattern::Read, block);
    let ratio = view.ratio(&of(n), &of(Nodes::Direct), |f| f.mean_us);
    format!("{} at {}", cell(ratio, 2), size(block))
}

fn of_response(view: &View) -> Vec<(&'static str, String)> {
    let both = |n| FEW_SIZES.map(|block| over_direct(view, n, block)).join(", ");
    let text = |which| format!("reads in order, over direct: {}", with_and_without(both, which));
    vec![("2.9.x1", text(ONE)), ("2.9.x3", text(THREE))]
}

fn of_cpu(view: &View) -> Vec<(&'static str, String)> {
    let at = |n| top_shown(view, n, Pattern::Read, client_cpu, "%");
    let of = |wire| {
        let load = Load::new(Pattern::Read, 131_072, DEPTHS[0]);
        let subject = nodes(Nodes::One, Speed::Document);
        view.spread(&Point { wire, load, subject }, |f| f.cpu_machine_us).map(|s| s.median)
    };
    let jumbo = match (of(GIGABIT), of(GIGABIT_JUMBO)) {
        (Some(common), Some(jumbo)) => format!(
            "CPU of the machine, 128 KiB reads over one node without cache: {:.0} % less",
            (1.0 - jumbo / common) * 100.0
        ),
        _ => NONE.into(),
    };
    vec![
        ("2.10.direct", at(Nodes::Direct)),
        ("2.10.x1", with_and_without(at, ONE)),
        ("2.10.x3", with_and_without(at, THREE)),
        ("2.10.jumbo", jumbo),
    ]
}

/// The mean says little of who waits longest.
fn percentiles(view: &View) -> Table {
    let header = ["pattern", "I/O", "subject", "mean, ms", "p50, ms", "p99, ms"];
    let mut table = Table::new("Response times, 16 outstanding, MTU 1500", &header);
    for pattern in PATTERNS {
        for block in FEW_SIZES {
            for subject in NODES.map(|n| nodes(n, Speed::Document)) {
                let point = point(subject, pattern, block);
                let show = |of: fn(&Figures) -> Option<f64>| {
                    cell(view.spread_of_some(&point, |f| of(f).map(|us| us / 1e3)), 2)
                };
                table.rows.push(vec![
                    pattern_title(pattern).into(),
                    size(block),
                    subject.title(),
                    show(|f| Some(f.mean_us)),
                    show(|f| f.p50_us),
                    show(|f| f.p99_us),
                ]);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn the_most_is_over_all_sizes() {
        let folder = folder("orchestra-nodes");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for (block, mib_per_s, mean_us) in
            [(4096, 90.0, 500.0), (8192, 110.0, 900.0), (131_072, 100.0, 9000.0)]
        {
            for (n, slower) in [(Nodes::Direct, 1.0), (Nodes::One, 2.0)] {
                let figures = Figures {
                    mib_per_s: mib_per_s / slower,
                    mean_us: mean_us * slower,
                    ..Figures::default()
                };
                let run = Run { round: 0, visit: 1, seconds: SECONDS };
                let point = point(nodes(n, Speed::Document), Pattern::Read, block);
                store.put(&point, run, Ok(figures)).unwrap();
            }
        }
        let view = View::new(&store, &plan(), Form::Full);
        let of = |all: Vec<(&str, String)>, id: &str| {
            all.into_iter().find(|(own, _)| *own == id).unwrap().1
        };
        assert_eq!(of(of_throughput(&view), "2.8.direct.read"), "115.3 MB/s at 8 KiB");
        assert_eq!(of(of_throughput(&view), "2.8.x1.read"), "–; no cache: 57.7 MB/s at 8 KiB");
        assert_eq!(
            of(of_response(&view), "2.9.x1"),
            "reads in order, over direct: – at 4 KiB, – at 128 KiB; no cache: 2.00 at 4 KiB, 2.00 at 128 KiB"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn all_that_is_compared_is_in_the_same_rounds() {
        for group in plan() {
            let first = &group.entries[0];
            assert!(group.entries.iter().all(|e| (e.full, e.quick) == (first.full, first.quick)));
        }
    }
}
