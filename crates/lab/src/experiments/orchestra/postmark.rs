//! Table 2.1, Figures 2.11 and 2.12: Postmark over the document's storage nodes. One set of runs, three looks at it.

use super::stated::{self, PostmarkRow};
use super::{bars_table, cell};
use crate::composed::{ComposedSubject, Nodes, Program, Speed};
use crate::experiments::bars::{Bar, at_least};
use crate::experiments::{Experiment, NONE, Section, Table};
use crate::figures::{Figures, ProgramFigures};
use crate::plan::Group;
use crate::point::{Load, Point, Subject, Wire};
use crate::view::View;

pub const GIGABIT: Wire = Wire { mbit: Some(1000), mtu: 1500, ..Wire::FREE };
pub const GIGABIT_JUMBO: Wire = Wire { mtu: 9000, ..GIGABIT };
const FREE_JUMBO: Wire = Wire { mbit: None, ..GIGABIT_JUMBO };

const NODES: [Nodes; 5] =
    [Nodes::Direct, Nodes::OneCached, Nodes::One, Nodes::ThreeCached, Nodes::Three];
const FREE_NODES: [Nodes; 3] = [Nodes::Direct, Nodes::One, Nodes::Three];
/// A tenth of the document's inputs, with a tenth of its memory.
const TENTHS: [[u32; 2]; 4] = [[5000, 5000], [5000, 10_000], [10_000, 10_000], [10_000, 20_000]];
/// Those of the quick form.
const QUICK: [[u32; 2]; 2] = [TENTHS[0], TENTHS[3]];

/// A run ends with its program: how long it is measured is not asked.
const SECONDS: f64 = 1.0;
/// Of the tenths.
const ROUNDS: u32 = 2;

fn load([files, transactions]: [u32; 2]) -> Load {
    Load::program(Program::Postmark { files, transactions })
}

fn subject(nodes: Nodes, speed: Speed) -> Subject {
    Subject::Composed(ComposedSubject::Nodes { nodes, speed })
}

/// The document's, in its order.
fn wholes() -> Vec<[u32; 2]> {
    stated::document().postmark.iter().map(|row| [row.files, row.transactions]).collect()
}

/// What is measured on a wire.
fn inputs(wire: Wire) -> Vec<[u32; 2]> {
    match wire {
        GIGABIT => TENTHS.into_iter().chain(wholes()).collect(),
        GIGABIT_JUMBO => TENTHS.into(),
        _ => QUICK.into(),
    }
}

fn subjects(wire: Wire) -> Vec<Subject> {
    match wire.mbit {
        Some(_) => NODES.map(|n| subject(n, Speed::Document)).into(),
        None => FREE_NODES.map(|n| subject(n, Speed::Unlimited)).into(),
    }
}

const WIRES: [Wire; 3] = [GIGABIT, GIGABIT_JUMBO, FREE_JUMBO];

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for wire in WIRES {
        for input in inputs(wire) {
            let load = load(input);
            let is_whole = load.program.is_some_and(Program::is_whole);
            let rounds = if is_whole { 1 } else { ROUNDS };
            let quick = u32::from(wire == GIGABIT_JUMBO && QUICK.contains(&input));
            let group = Group::new(wire, load);
            groups.push(
                subjects(wire)
                    .into_iter()
                    .fold(group, |group, subject| group.with(subject, SECONDS, rounds, quick)),
            );
        }
    }
    groups
}

/// `5k/10k`: files and transactions.
fn named([files, transactions]: [u32; 2]) -> String {
    format!("{}k/{}k", files / 1000, transactions / 1000)
}

fn point(wire: Wire, input: [u32; 2], nodes: Nodes) -> Point {
    let speed = if wire.mbit.is_some() { Speed::Document } else { Speed::Unlimited };
    Point { wire, load: load(input), subject: subject(nodes, speed) }
}

/// All of a wire with these nodes, with their names.
pub fn points(wire: Wire, nodes: Nodes) -> Vec<(String, Point)> {
    inputs(wire).into_iter().map(|input| (named(input), point(wire, input, nodes))).collect()
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for (nodes, least) in [(Nodes::OneCached, 0.9), (Nodes::ThreeCached, 1.4)] {
        for input in TENTHS {
            let text = format!(
                "Postmark {}, {} of a cache each for reads, MTU 9000: transactions a second over direct",
                named(input),
                nodes.title()
            );
            let pair = [nodes, Nodes::Direct].map(|n| point(GIGABIT_JUMBO, input, n));
            bars.push(at_least(least, |f| f.iops).bar(view, text, pair, &[]));
        }
    }
}

pub fn section(experiment: Experiment, view: &View) -> Section {
    let (item, what) = match experiment {
        Experiment::OrchestraTable21 => ("table2.1", "Table 2.1"),
        Experiment::Orchestra211 => ("2.11", "Figure 2.11"),
        _ => ("2.12", "Figure 2.12"),
    };
    let mut section = Section::new(
        &format!("{what}: {}", stated::shows(item)),
        &[
            "Debian's postmark on ext4, made anew for each run, on the block device of thinwire attach --block over the document's \
             disks where they are (direct), over one target that has them, and over three targets, which the attachment stripes over. \
             \"One node\" and \"three nodes\" have a cache of 512 MiB in each target, for reads only, as the document's nodes have a \
             buffer cache of less than their memory of 512 MB, for writes, too; \"no cache\" has none. The program and what the kernel \
             keeps of files for it have 512 MiB together, of which 40 % may wait to be written. Inputs are those of the document, and tenths of them with a tenth of both \
             memories.",
            "Rates are over the whole time of a run, in which files are made and removed, too: Postmark itself counts whole seconds. \
             Times are in percent of one processor, idle what is left of one; what threads of the kernel do is in none of them. Ratios are taken within a round; one round of the document's inputs.",
        ],
    );
    match experiment {
        Experiment::OrchestraTable21 => section.tables.push(direct(view)),
        Experiment::Orchestra211 => {
            section.tables.extend(WIRES.map(|wire| relative(view, wire)));
            section.tables.push(stated::table("2.11", &of_relative(view)));
            section.tables.push(bars_table("What Postmark must reach", |own| bars(view, own)));
        }
        _ => {
            section.tables.extend(WIRES.map(|wire| breakdown(view, wire)));
            section.tables.push(stated::table("2.12", &of_breakdown(view)));
        }
    }
    section
}

fn of_program(figures: &Figures, of: fn(&ProgramFigures) -> f64) -> f64 {
    figures.program.as_ref().map_or(f64::NAN, of)
}

/// What a program's figures show of a point.
fn shown(view: &View, point: &Point, of: fn(&ProgramFigures) -> f64, digits: usize) -> String {
    cell(view.spread_of_some(point, |f| f.program.as_ref().map(of)), digits)
}

/// Table 2.1, ours beside the document's.
fn direct(view: &View) -> Table {
    let header = [
        "files/transactions",
        "document: Tx/s",
        "read, KB/s",
        "written, KB/s",
        "ours: Tx/s",
        "read, KB/s",
        "written, KB/s",
    ];
    let mut table = Table::new("Direct", &header);
    let mut push = |input, stated: Option<&PostmarkRow>| {
        let point = point(GIGABIT, input, Nodes::Direct);
        let theirs =
            |of: fn(&PostmarkRow) -> f64| stated.map_or(NONE.into(), |r| of(r).to_string());
        table.rows.push(vec![
            named(input),
            theirs(|row| row.tx_per_s),
            theirs(|row| row.read_kb_per_s),
            theirs(|row| row.write_kb_per_s),
            cell(view.spread(&point, |f| f.iops), 0),
            shown(view, &point, |p| p.read_kb_per_s, 0),
            shown(view, &point, |p| p.write_kb_per_s, 0),
        ]);
    };
    for row in &stated::document().postmark {
        push([row.files, row.transactions], Some(row));
    }
    TENTHS.into_iter().for_each(|input| push(input, None));
    table
}

fn title(wire: Wire) -> String {
    match wire.mbit {
        Some(_) => format!("the document's disks, links of 1 Gb/s, MTU {}", wire.mtu),
        None => format!("no limits, MTU {}", wire.mtu),
    }
}

fn columns(wire: Wire) -> Vec<Nodes> {
    if wire.mbit.is_some() { NODES.into() } else { FREE_NODES.into() }
}

fn relative(view: &View, wire: Wire) -> Table {
    let title = format!("Relative to direct: {}", title(wire));
    let header = ["files/transactions", "nodes", "Tx/s", "Tx/s", "read", "written"];
    let mut table = Table::new(title, &header);
    for input in inputs(wire) {
        for nodes in columns(wire) {
            let (own, direct) = (point(wire, input, nodes), point(wire, input, Nodes::Direct));
            let over = |of: &dyn Fn(&Figures) -> f64| cell(view.ratio(&own, &direct, of), 2);
            table.rows.push(vec![
                named(input),
                nodes.title().into(),
                cell(view.spread(&own, |f| f.iops), 0),
                over(&|f| f.iops),
                over(&|f| of_program(f, |p| p.read_kb_per_s)),
                over(&|f| of_program(f, |p| p.write_kb_per_s)),
            ]);
        }
    }
    table
}

fn breakdown(view: &View, wire: Wire) -> Table {
    let title = format!("Where the time goes: {}", title(wire));
    let header = [
        "files/transactions",
        "nodes",
        "user, %",
        "system, %",
        "attachment, %",
        "idle, %",
        "I/Os a second at the device",
    ];
    let mut table = Table::new(title, &header);
    for input in inputs(wire) {
        for nodes in columns(wire) {
            let own = point(wire, input, nodes);
            let show = |of| shown(view, &own, of, 0);
            table.rows.push(vec![
                named(input),
                nodes.title().into(),
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

/// The least and the most over all inputs on the document's link of what a figure is over direct, of medians.
fn range(view: &View, nodes: Nodes, of: impl Fn(&Figures) -> f64 + Copy) -> String {
    let ratio = |input| {
        let pair = [nodes, Nodes::Direct].map(|n| point(GIGABIT, input, n));
        view.ratio(&pair[0], &pair[1], of).map(|s| s.median)
    };
    let all: Vec<f64> = inputs(GIGABIT).into_iter().filter_map(ratio).collect();
    match (all.iter().copied().reduce(f64::min), all.iter().copied().reduce(f64::max)) {
        (Some(least), Some(most)) => format!("{least:.2} to {most:.2} of direct"),
        _ => NONE.into(),
    }
}

fn of_relative(view: &View) -> Vec<(&'static str, String)> {
    let rate = |nodes| range(view, nodes, |f| f.iops);
    let both = |[cached, plain]: [Nodes; 2]| format!("{}; no cache: {}", rate(cached), rate(plain));
    vec![
        ("2.11.x1", both([Nodes::OneCached, Nodes::One])),
        ("2.11.x3", both([Nodes::ThreeCached, Nodes::Three])),
        ("2.11.memory", "no cache at all".into()),
        ("2.11.nocache", rate(Nodes::Three)),
    ]
}

fn of_breakdown(view: &View) -> Vec<(&'static str, String)> {
    let system = |nodes| range(view, nodes, |f| of_program(f, |p| p.system_s));
    let busy = |f: &Figures| of_program(f, |p| 100.0 - p.idle_percent());
    let most = |nodes| {
        let points: Vec<Point> =
            inputs(GIGABIT).into_iter().map(|input| point(GIGABIT, input, nodes)).collect();
        let medians = points.iter().filter_map(|p| view.spread(p, busy)).map(|s| s.median);
        medians.reduce(f64::max).map_or(NONE.into(), |most| format!("at most {most:.0} % busy"))
    };
    vec![
        ("2.12.x1", format!("{}; no cache: {}", system(Nodes::OneCached), system(Nodes::One))),
        ("2.12.x3", format!("{}; no cache: {}", most(Nodes::ThreeCached), most(Nodes::Three))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn nodes_are_judged_by_direct_disks() {
        let folder = folder("orchestra-postmark");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let mut put = |wire, input, nodes, iops: f64, busy: f64| {
            let program = ProgramFigures {
                seconds: 10.0,
                system_s: busy,
                read_kb_per_s: iops,
                ..ProgramFigures::default()
            };
            let figures = Figures { iops, program: Some(program), ..Figures::default() };
            let run = Run { round: 0, visit: 1, seconds: SECONDS };
            store.put(&point(wire, input, nodes), run, Ok(figures)).unwrap();
        };
        for (input, one, three) in [(TENTHS[0], 90.0, 139.0), (TENTHS[3], 89.0, 140.0)] {
            put(GIGABIT_JUMBO, input, Nodes::Direct, 100.0, 5.0);
            put(GIGABIT_JUMBO, input, Nodes::OneCached, one, 4.0);
            put(GIGABIT_JUMBO, input, Nodes::ThreeCached, three, 9.0);
        }
        put(GIGABIT, TENTHS[0], Nodes::Direct, 100.0, 5.0);
        put(GIGABIT, TENTHS[0], Nodes::One, 80.0, 4.0);
        let view = View::new(&store, &plan(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        let verdicts: Vec<String> = all.iter().map(Bar::verdict).collect();
        let open = "not measured".to_owned();
        let met = "met".to_owned();
        let missed = "missed".to_owned();
        assert_eq!(
            verdicts,
            [&met, &open, &open, &missed, &missed, &open, &open, &met].map(String::clone)
        );
        let of = |all: Vec<(&str, String)>, id: &str| {
            all.into_iter().find(|(own, _)| *own == id).unwrap().1
        };
        assert_eq!(of(of_relative(&view), "2.11.x1"), "–; no cache: 0.80 to 0.80 of direct");
        assert_eq!(of(of_breakdown(&view), "2.12.x1"), "–; no cache: 0.80 to 0.80 of direct");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn tenths_are_of_the_documents_inputs() {
        let tenths: Vec<_> = wholes().iter().map(|[f, t]| [f / 10, t / 10]).collect();
        assert_eq!(tenths, TENTHS);
        assert_eq!(named(TENTHS[1]), "5k/10k");
        let program = ProgramFigures {
            seconds: 10.0,
            user_s: 1.0,
            system_s: 2.0,
            attachment_s: 3.0,
            ..ProgramFigures::default()
        };
        assert_eq!(program.idle_percent(), 40.0);
    }
}
