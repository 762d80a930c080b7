//! Figure 2.6: what the network carries, by the size of what is sent.

use super::{cell, stated};
use crate::composed::ComposedSubject;
use crate::draw::{Drawing, Lines, Scale};
use crate::experiments::{NONE, Section, Table, size};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const SIZES: [u32; 7] = [64, 256, 1024, 4096, 16_384, 65_536, 131_072];
/// The document's, and jumbo frames.
const WIRES: [Wire; 2] = [
    Wire { mbit: Some(1000), mtu: 1500, ..Wire::FREE },
    Wire { mbit: Some(1000), mtu: 9000, ..Wire::FREE },
];
/// One after the other, and as many as the connection takes.
const DEPTHS: [u32; 2] = [1, 32];
const TCP: Subject = Subject::Composed(ComposedSubject::TcpStream);

/// Of a run.
const SECONDS: f64 = 1.0;
const ROUNDS: u32 = 3;

fn load(block: u32, depth: u32) -> Load {
    Load::new(Pattern::Write, block, depth)
}

/// The echo has blocks of whole pages, in frames of 8 KiB, which a link of 1500 does not carry.
fn subjects(wire: Wire, block: u32) -> Vec<Subject> {
    let mut all = vec![TCP];
    if wire.mtu == 9000 && block.is_multiple_of(4096) {
        all.push(Subject::echo(Carrier::Packet, false));
    }
    all
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for wire in WIRES {
        for block in SIZES {
            for depth in DEPTHS {
                let quick = u32::from(wire.mtu == 1500 && matches!(block, 64 | 4096 | 131_072));
                let group = Group::new(wire, load(block, depth));
                groups.push(
                    subjects(wire, block)
                        .into_iter()
                        .fold(group, |group, subject| group.with(subject, SECONDS, ROUNDS, quick)),
                );
            }
        }
    }
    groups
}

fn mbit_per_s(figures: &Figures) -> f64 {
    figures.bytes_per_s() * 8.0 / 1e6
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        &format!("Figure 2.6: {}", stated::shows("2.6")),
        &[
            "One TCP connection over a link shaped to 1 Gb/s, as ttcp has it: blocks of a size, as many as the connection takes \
             (throughput), or each answered with one byte before the next is sent (latency). Beside it the bare echo over packet, \
             with 32 blocks outstanding and with one, where its frames fit: MTU 9000 and whole pages.",
        ],
    );
    let header = [
        "MTU",
        "bytes",
        "subject",
        "Mbit/s",
        "latency of one, us",
        "CPU, us a block: client + server",
    ];
    let mut table = Table::new("TCP and an empty protocol at 1 Gb/s", &header);
    for wire in WIRES {
        for block in SIZES {
            for subject in subjects(wire, block) {
                let [one, many] =
                    DEPTHS.map(|depth| Point { wire, load: load(block, depth), subject });
                table.rows.push(vec![
                    wire.mtu.to_string(),
                    size(block),
                    subject.title(),
                    cell(view.spread(&many, mbit_per_s), 1),
                    cell(view.spread(&one, |f| f.mean_us), 1),
                    view.last(&many).map_or(NONE.into(), Figures::cpu_shown),
                ]);
            }
        }
    }
    let lines = WIRES.map(|wire| {
        let points = SIZES.map(|block| {
            (f64::from(block), Point { wire, load: load(block, DEPTHS[1]), subject: TCP })
        });
        view.line(format!("TCP, MTU {}", wire.mtu), points, |_, f| Some(mbit_per_s(f)))
    });
    let drawn = Lines {
        title: "TCP throughput at 1 Gb/s".into(),
        x_name: "bytes of a block".into(),
        y_name: "Mbit/s".into(),
        scale: Scale::Log2,
        lines: lines.into(),
        marks: Vec::new(),
    };
    section.drawings.push(("rate".into(), Drawing::Lines(drawn)));
    section.tables.push(table);
    let largest = Point { wire: WIRES[0], load: load(131_072, DEPTHS[1]), subject: TCP };
    let ours = cell(view.spread(&largest, mbit_per_s), 1) + " Mbit/s";
    section.tables.push(stated::table("2.6", &[("2.6.rate", ours)]));
    section
}
