//! Figure 1: how much of the link requests of several sizes fill, by how many are outstanding.

use super::{Section, Table, largest, of_echo, size, utilisation, utilisation_mark};
use crate::draw::{Drawing, Lines, Scale};
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const BLOCKS: [u32; 6] = [4096, 8192, 16384, 32768, 65536, 131_072];
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const SUBJECTS: [Subject; 4] = [
    Subject::thinwire(Carrier::Packet),
    Subject::thinwire(Carrier::Udp),
    Subject::thinwire(Carrier::Xdp),
    Subject::Nbdkit,
];
/// A bare echo: the limit that the others are held against.
const ECHO: Subject = Subject::echo(Carrier::Packet, false);

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for block in BLOCKS {
        for depth in DEPTHS {
            let quick =
                u32::from(matches!(block, 4096 | 131_072) && matches!(depth, 1 | 8 | 32 | 128));
            let mut group =
                Group::new(Wire::TEN_GIGABIT, Load::new(Pattern::RandRead, block, depth));
            for (n, subject) in SUBJECTS.into_iter().enumerate() {
                let quick = if matches!(n, 0 | 3) { quick } else { 0 };
                let full = if n == 2 { 1 } else { 2 };
                group = group.with(subject, 0.8, full, quick);
            }
            groups.push(group.with(ECHO, 0.8, 1, 0));
        }
    }
    groups
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Figure 1: link utilisation over outstanding requests",
        &[
            "Random reads over one link, shaped to 10 Gb/s at the switch, MTU 9000. Utilisation is payload \
             alone over the line rate of 1.25 GB/s. The document takes what its link carries in theory, \
             1.2 GiB/s, for 100 %: its percentages are shown 3 % higher, by our measure, with what is printed \
             beside them. Its figure has no numbers besides the two drawn as dashed lines, and that Tyche \
             fills the link up to five times as well as NBD.",
        ],
    );
    for block in BLOCKS {
        let line = |subject: Subject| {
            let points = DEPTHS.map(|depth| {
                let load = Load::new(Pattern::RandRead, block, depth);
                (f64::from(depth), Point { wire: Wire::TEN_GIGABIT, load, subject })
            });
            view.line(subject.title(), points, |_, f| utilisation(&Wire::TEN_GIGABIT, f))
        };
        let mark = |id: &str| utilisation_mark(id, "at most", None);
        let marks = match block {
            4096 => vec![mark("fig1.4k.max")],
            8192 => vec![mark("fig1.8k.max")],
            _ => vec![],
        };
        let lines = Lines {
            title: format!("Random reads of {}", size(block)),
            x_name: "requests outstanding".into(),
            y_name: "link utilisation, %".into(),
            scale: Scale::Log2,
            lines: SUBJECTS.into_iter().chain([ECHO]).map(line).collect(),
            marks,
        };
        section.drawings.push((format!("{}k", block / 1024), Drawing::Lines(lines)));
    }
    let point = |block, depth, subject| {
        let load = Load::new(Pattern::RandRead, block, depth);
        Point { wire: Wire::TEN_GIGABIT, load, subject }
    };
    let most = |block| {
        let of = |depth| {
            let point = point(block, depth, SUBJECTS[0]);
            view.spread_of_some(&point, |f| utilisation(&Wire::TEN_GIGABIT, f))
        };
        largest(DEPTHS.into_iter().filter_map(of).map(|s| s.median))
    };
    let over_nbd = BLOCKS.into_iter().flat_map(|block| {
        DEPTHS.into_iter().filter_map(move |depth| {
            let [ours, theirs] =
                [SUBJECTS[0], Subject::Nbdkit].map(|subject| point(block, depth, subject));
            view.ratio(&ours, &theirs, |f| f.iops).map(|s| s.median)
        })
    });
    section.tables.push(shares(view));
    section.tables.push(Table::statements(&[
        ("fig1.4k.max", most(4096)),
        ("fig1.8k.max", most(8192)),
        ("fig1.over_nbd", largest(over_nbd)),
    ]));
    section
}

/// How much of the echo the packet link reaches, by size and requests outstanding.
fn shares(view: &View) -> Table {
    let header: Vec<String> =
        std::iter::once("outstanding".to_owned()).chain(BLOCKS.map(size)).collect();
    let title = "Thinwire packet: share of the bare echo's rate, %".into();
    let row = |depth: u32| {
        let cell = |block| {
            let load = Load::new(Pattern::RandRead, block, depth);
            of_echo(view, &Point { wire: Wire::TEN_GIGABIT, load, subject: SUBJECTS[0] })
        };
        std::iter::once(depth.to_string()).chain(BLOCKS.map(cell)).collect()
    };
    Table { title, header, rows: DEPTHS.map(row).into() }
}
