//! Figure 2.15: a client asks for small operations over the link that also carries the storage, more and more of them.

use super::{cell, stated};
use crate::composed::{ComposedSubject, Nodes, Program, Speed};
use crate::draw::{Drawing, Lines, Scale};
use crate::experiments::{NONE, Section, Table};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const GIGABIT: Wire = Wire { mbit: Some(1000), mtu: 1500, ..Wire::FREE };
const NODES: [Nodes; 5] =
    [Nodes::Direct, Nodes::OneCached, Nodes::One, Nodes::ThreeCached, Nodes::Three];
/// Operations a second that are offered. A link of 1 Gb/s carries some 14,000 of them.
const OFFERED: [u32; 8] = [1000, 2000, 4000, 6000, 8000, 10_000, 12_000, 14_000];
/// Of an operation: the size of most of NFS's.
const BYTES: u32 = 8192;
/// A machine is saturated when it does less than this of what it is offered.
const SATURATED: f64 = 0.95;

/// Of a run.
const SECONDS: f64 = 1.5;
const ROUNDS: u32 = 2;

fn load(per_s: u32) -> Load {
    // Deep enough that what is late holds nothing up.
    Load { program: Some(Program::Served(per_s)), ..Load::new(Pattern::RandMixed, BYTES, 256) }
}

fn point(per_s: u32, nodes: Nodes) -> Point {
    let subject = Subject::Composed(ComposedSubject::Nodes { nodes, speed: Speed::Document });
    Point { wire: GIGABIT, load: load(per_s), subject }
}

pub fn plan() -> Vec<Group> {
    let group = |per_s| {
        let quick = u32::from(matches!(per_s, 2000 | 8000));
        NODES.into_iter().fold(Group::new(GIGABIT, load(per_s)), |group, nodes| {
            group.with(point(per_s, nodes).subject, SECONDS, ROUNDS, quick)
        })
    };
    OFFERED.map(group).into()
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        &format!("Figure 2.15: {}", stated::shows("2.15")),
        &[
            "SPEC SFS cannot be had. Here a client asks a machine for 8 KiB at random places, 70 % reads, at random times and so many \
             a second on average, whether or not the last ones are done (fio's nbd engine, 256 outstanding at most), over NBD and \
             TCP. The machine has a volume over the document's disks, where they are, or over one or three nodes, and one link of 1 \
             Gb/s, MTU 1500, for the client and for the nodes. A node's disks have no seeks here, so loads are higher than the \
             document's.",
            "What is offered by whom is saturated who does less than 95 % of it. CPU is that of fio, of the machine's attachment and of \
             the nodes.",
        ],
    );
    let header = [
        "offered, operations/s",
        "nodes",
        "done, operations/s",
        "mean, ms",
        "p99, ms",
        "CPU, us an operation: client + machine + nodes",
    ];
    let mut table = Table::new("By offered load", &header);
    for per_s in OFFERED {
        for nodes in NODES {
            let own = point(per_s, nodes);
            table.rows.push(vec![
                per_s.to_string(),
                nodes.title().into(),
                cell(view.spread(&own, |f| f.iops), 0),
                cell(view.spread(&own, |f| f.mean_us / 1e3), 2),
                cell(view.spread_of_some(&own, |f| f.p99_us.map(|us| us / 1e3)), 2),
                view.last(&own).map_or(NONE.into(), Figures::cpu_shown),
            ]);
        }
    }
    section.tables.push(table);
    for (name, what, of) in [
        ("time", "mean response time, ms", (|f| f.mean_us / 1e3) as fn(&Figures) -> f64),
        ("rate", "operations a second", |f| f.iops),
    ] {
        let line = |nodes: Nodes| {
            let points = OFFERED.map(|per_s| (f64::from(per_s) / 1000.0, point(per_s, nodes)));
            view.line(nodes.title(), points, |_, f| Some(of(f)))
        };
        let lines = Lines {
            title: format!("Offered load: {what}"),
            x_name: "offered, thousand operations a second".into(),
            y_name: what.into(),
            scale: Scale::Log2,
            lines: NODES.map(line).into(),
            marks: Vec::new(),
        };
        section.drawings.push((name.into(), Drawing::Lines(lines)));
    }
    section.tables.push(stated::table("2.15", &ours(view)));
    section
}

/// The lowest load of which less is done than is offered; `None`: not measured. The inner one: none of these is.
fn saturation(view: &View, nodes: Nodes) -> Option<Option<u32>> {
    let mut measured = false;
    for per_s in OFFERED {
        let Some(done) = view.spread(&point(per_s, nodes), |f| f.iops) else { continue };
        measured = true;
        if done.median < SATURATED * f64::from(per_s) {
            return Some(Some(per_s));
        }
    }
    measured.then_some(None)
}

fn ours(view: &View) -> Vec<(&'static str, String)> {
    let at = |nodes| match saturation(view, nodes) {
        Some(Some(per_s)) => format!("at {per_s} operations/s"),
        Some(None) => "not at these loads".into(),
        None => NONE.into(),
    };
    // Over direct, at loads that saturate neither.
    let time = |nodes| {
        let end = [nodes, Nodes::Direct].map(|n| saturation(view, n).flatten().unwrap_or(u32::MAX));
        let ratios = OFFERED.into_iter().filter(|per_s| end.iter().all(|end| per_s < end));
        let ratios = ratios.filter_map(|per_s| {
            let pair = [nodes, Nodes::Direct].map(|n| point(per_s, n));
            view.ratio(&pair[0], &pair[1], |f| f.mean_us).map(|s| s.median)
        });
        let all: Vec<f64> = ratios.collect();
        match (all.iter().copied().reduce(f64::min), all.iter().copied().reduce(f64::max)) {
            (Some(least), Some(most)) => format!("{least:.2} to {most:.2} of direct"),
            _ => NONE.into(),
        }
    };
    let both = |of: &dyn Fn(Nodes) -> String, [cached, plain]: [Nodes; 2]| {
        format!("{}; no cache: {}", of(cached), of(plain))
    };
    let (one, three) = ([Nodes::OneCached, Nodes::One], [Nodes::ThreeCached, Nodes::Three]);
    vec![
        ("2.15.first", format!("{}", OFFERED[0])),
        ("2.15.direct", at(Nodes::Direct)),
        ("2.15.x1", both(&at, one)),
        ("2.15.x1.time", both(&time, one)),
        ("2.15.x3.time", both(&time, three)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn who_does_less_than_is_offered_is_saturated() {
        let folder = folder("orchestra-served");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for (per_s, nodes, iops, mean_us) in [
            (1000, Nodes::Direct, 1000.0, 100.0),
            (2000, Nodes::Direct, 1950.0, 200.0),
            (4000, Nodes::Direct, 3000.0, 900.0),
            (1000, Nodes::One, 990.0, 130.0),
            (2000, Nodes::One, 1500.0, 700.0),
        ] {
            let figures = Figures { iops, mean_us, ..Figures::default() };
            let run = Run { round: 0, visit: 1, seconds: SECONDS };
            store.put(&point(per_s, nodes), run, Ok(figures)).unwrap();
        }
        let view = View::new(&store, &plan(), Form::Full);
        let of = |nodes| saturation(&view, nodes);
        assert_eq!(of(Nodes::Direct), Some(Some(4000)));
        assert_eq!((of(Nodes::One), of(Nodes::Three)), (Some(Some(2000)), None));
        let said = ours(&view);
        let of = |id: &str| &said.iter().find(|(own, _)| *own == id).unwrap().1[..];
        assert_eq!(of("2.15.direct"), "at 4000 operations/s");
        assert_eq!(of("2.15.x1.time"), "–; no cache: 1.30 to 1.30 of direct");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
