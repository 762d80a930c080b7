//! Links: shaped to known rates, with small and large frames, with and without a switch.

use super::{NONE, Section, Table, of_echo, size, utilisation, utilisation_mark};
use crate::draw::{Drawing, Lines, Scale};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const CARRIERS: [Carrier; 3] = [Carrier::Packet, Carrier::Udp, Carrier::Xdp];
const PATTERNS: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];
/// Mb/s.
pub const RATES: [u32; 4] = [1000, 2500, 5000, 10_000];

/// A link of a rate.
pub fn wire(mbit: u32) -> Wire {
    Wire { mbit: Some(mbit), ..Wire::FREE }
}

/// Small requests outstanding, of four jobs together.
pub const OUTSTANDING: [u32; 2] = [128, 512];

/// So many small requests outstanding.
pub fn load(pattern: Pattern, outstanding: u32) -> Load {
    Load::new(pattern, 4096, outstanding / 4).jobs(4)
}

/// Who fills a shaped link: beyond 128 outstanding only those that bars are about.
fn shaped_subjects(outstanding: u32) -> Vec<Subject> {
    let with_echo = |carrier| [Subject::thinwire(carrier), Subject::echo(carrier, false)];
    match outstanding {
        128 => CARRIERS.into_iter().flat_map(with_echo).chain([Subject::Nbdkit]).collect(),
        _ => [Carrier::Packet, Carrier::Udp].into_iter().flat_map(with_echo).collect(),
    }
}

/// Not shaped: frames of a common network, jumbo frames, and a virtual cable instead of a switch.
const OTHERS: [(Wire, &str); 3] = [
    (Wire { mtu: 1500, ..Wire::FREE }, "switch, MTU 1500"),
    (Wire::FREE, "switch, MTU 9000"),
    (Wire { switch: false, ..Wire::FREE }, "virtual cable, MTU 9000"),
];

fn other_loads() -> [Load; 2] {
    [Load::new(Pattern::RandRead, 4096, 32), Load::new(Pattern::Read, 131_072, 8)]
}

fn other_subjects() -> impl Iterator<Item = Subject> {
    CARRIERS.map(Subject::thinwire).into_iter().chain([Subject::Nbdkit])
}

fn in_quick(subject: Subject, mbit: u32) -> bool {
    match subject {
        Subject::Nbdkit => mbit == 1000,
        Subject::Thinwire { carrier, .. } | Subject::Echo { carrier, .. } => {
            carrier != Carrier::Xdp
        }
        _ => false,
    }
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for mbit in RATES {
        for pattern in PATTERNS {
            for outstanding in OUTSTANDING {
                let group = Group::new(wire(mbit), load(pattern, outstanding));
                let quick = outstanding == 128 && pattern.reads() && matches!(mbit, 1000 | 10_000);
                groups.push(shaped_subjects(outstanding).into_iter().fold(
                    group,
                    |group, subject| {
                        let quick = u32::from(quick && in_quick(subject, mbit));
                        group.with(subject, 1.0, 3, quick)
                    },
                ));
            }
        }
    }
    for (wire, _) in OTHERS {
        for load in other_loads() {
            let group = Group::new(wire, load);
            groups.push(
                other_subjects().fold(group, |group, subject| group.with(subject, 1.5, 2, 0)),
            );
        }
    }
    groups
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Links",
        &[
            "4 KiB requests of 4 jobs, 128 and 512 outstanding in all, over one link shaped both ways at the switch (tbf, burst \
             1 MiB), MTU 9000. A slow link is filled by all of them, by nbdkit over TCP too; what that takes of both \
             sides' CPU is in the last column, and at 1 Gb/s a bar. The echo spins while it waits for a slow \
             link; Thinwire sleeps there. Then links that are not shaped: MTU 1500 and 9000, and a virtual cable without a switch.",
        ],
    );
    for pattern in PATTERNS {
        let side = if pattern.reads() { "reads" } else { "writes" };
        let subjects = shaped_subjects(OUTSTANDING[0]);
        let line = |&subject: &Subject| {
            let points = RATES.map(|mbit| {
                let load = load(pattern, OUTSTANDING[0]);
                (f64::from(mbit) / 1000.0, Point { wire: wire(mbit), load, subject })
            });
            view.line(subject.title(), points, |point, f| utilisation(&point.wire, f))
        };
        let lines = Lines {
            title: format!("Random {side} of 4 KiB, 128 outstanding"),
            x_name: "line rate, Gb/s".into(),
            y_name: "link utilisation, %".into(),
            scale: Scale::Log2,
            lines: subjects.iter().map(line).collect(),
            marks: vec![utilisation_mark(
                &format!("fig7.{side}.max"),
                "at 10 Gb/s, at most",
                Some(10.0),
            )],
        };
        section.drawings.push((side.into(), Drawing::Lines(lines)));
        for outstanding in OUTSTANDING {
            section.tables.push(shaped(view, pattern, side, outstanding));
        }
    }
    section.tables.push(others(view));
    section
}

fn shaped(view: &View, pattern: Pattern, side: &str, outstanding: u32) -> Table {
    let header =
        ["rate", "subject", "utilisation, %", "of its echo, %", "CPU of both sides, us an I/O"];
    let title = format!("Random {side} of 4 KiB on shaped links, {outstanding} outstanding");
    let mut table = Table::new(title, &header);
    for mbit in RATES {
        for subject in shaped_subjects(outstanding) {
            let load = load(pattern, outstanding);
            let own = Point { wire: wire(mbit), load, subject };
            let filled = view.spread_of_some(&own, |f| utilisation(&wire(mbit), f));
            table.rows.push(vec![
                format!("{} Gb/s", f64::from(mbit) / 1000.0),
                subject.title(),
                filled.map_or(NONE.into(), |s| s.show(1)),
                of_echo(view, &own),
                view.spread(&own, Figures::cpu_us).map_or(NONE.into(), |s| s.show(1)),
            ]);
        }
    }
    table
}

fn others(view: &View) -> Table {
    let header =
        ["link", "load", "subject", "IOPS", "MiB/s", "mean, us", "CPU of both sides, us an I/O"];
    let mut table = Table::new("Links that are not shaped", &header);
    for (wire, name) in OTHERS {
        for load in other_loads() {
            for subject in other_subjects() {
                let point = Point { wire, load, subject };
                let show = |of: fn(&Figures) -> f64, digits| {
                    view.spread(&point, of).map_or(NONE.into(), |s| s.show(digits))
                };
                table.rows.push(vec![
                    name.into(),
                    format!(
                        "{} {}, {} outstanding",
                        load.pattern.word(),
                        size(load.block),
                        load.outstanding()
                    ),
                    subject.title(),
                    show(|f| f.iops, 0),
                    show(|f| f.mib_per_s, 0),
                    show(|f| f.mean_us, 1),
                    show(Figures::cpu_us, 1),
                ]);
            }
        }
    }
    table
}
