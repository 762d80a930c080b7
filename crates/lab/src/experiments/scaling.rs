//! Scaling: requests outstanding, initiators, links, shards.

use super::{Section, Table, of_echo, utilisation};
use crate::draw::{Drawing, Lines, Scale};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Settings, Subject, Wire};
use crate::view::View;

const CARRIERS: [Carrier; 2] = [Carrier::Packet, Carrier::Udp];
/// Requests outstanding of one job.
pub const DEPTHS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const INITIATORS: [u32; 4] = [1, 2, 4, 8];
const LINKS: [u32; 4] = [1, 2, 3, 4];
const SHARDS: [u32; 3] = [1, 2, 4];
/// On each initiator.
const SMALL: Load = Load::new(Pattern::RandRead, 4096, 32);
const LARGE: Load = Load::new(Pattern::Read, 131_072, 16);
/// Of each of several links.
const LINK_MBIT: u32 = 1000;

fn depth_subjects() -> impl Iterator<Item = Subject> {
    [Carrier::Packet, Carrier::Udp, Carrier::Xdp]
        .map(Subject::thinwire)
        .into_iter()
        .chain(CARRIERS.map(|carrier| Subject::echo(carrier, false)))
        .chain([Subject::Nbdkit])
}

fn depth_point(depth: u32, subject: Subject) -> Point {
    Point { wire: Wire::FREE, load: Load::new(Pattern::RandRead, 4096, depth), subject }
}

fn initiators_point(initiators: u32, carrier: Carrier) -> Point {
    Point {
        wire: Wire { initiators, ..Wire::FREE },
        load: SMALL,
        subject: Subject::thinwire(carrier),
    }
}

fn links_point(links: u32, load: Load, carrier: Carrier) -> Point {
    let wire = Wire { links, mbit: Some(LINK_MBIT), ..Wire::FREE };
    Point { wire, load, subject: Subject::thinwire(carrier) }
}

fn shards_point(shards: u32, carrier: Carrier) -> Point {
    let wire = Wire { initiators: 4, ..Wire::FREE };
    Point {
        wire,
        load: SMALL,
        subject: Subject::with(carrier, Settings { shards, ..Settings::DEFAULT }),
    }
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for depth in DEPTHS {
        let group = Group::new(Wire::FREE, Load::new(Pattern::RandRead, 4096, depth));
        groups.push(depth_subjects().fold(group, |group, subject| {
            let first = subject == Subject::thinwire(Carrier::Packet) || subject == Subject::Nbdkit;
            let quick = u32::from(first && matches!(depth, 1 | 8 | 32 | 128 | 512));
            group.with(subject, 1.5, 3, quick)
        }));
    }
    let group = |points: [Point; 2], quick: u32| {
        let group = Group::new(points[0].wire, points[0].load);
        points.iter().fold(group, |group, point| group.with(point.subject, 1.5, 2, quick))
    };
    for initiators in INITIATORS {
        let quick = u32::from(matches!(initiators, 1 | 4));
        groups.push(group(CARRIERS.map(|c| initiators_point(initiators, c)), quick));
    }
    for links in LINKS {
        for load in [SMALL, LARGE] {
            let quick = u32::from(links < 3 && load == SMALL);
            groups.push(group(CARRIERS.map(|c| links_point(links, load, c)), quick));
        }
    }
    for shards in SHARDS {
        groups.push(group(CARRIERS.map(|c| shards_point(shards, c)), 0));
    }
    groups
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Scaling",
        &[
            "Throughput and CPU as more is asked: requests outstanding, initiators (each with an export and 32 \
             requests of its own), links of one session (each shaped to 1 Gb/s), shards of a target with four \
             initiators. All sides, and the switch, share the processors of one machine: beyond their number, \
             more of anything cannot mean more throughput.",
        ],
    );
    let depths = |title: &str, y: &str, of: fn(&Figures) -> f64| Lines {
        title: title.into(),
        x_name: "requests outstanding".into(),
        y_name: y.into(),
        scale: Scale::Log2,
        lines: depth_subjects()
            .map(|subject| {
                let points = DEPTHS.map(|depth| (f64::from(depth), depth_point(depth, subject)));
                view.line(subject.title(), points, |_, f| Some(of(f)))
            })
            .collect(),
        marks: Vec::new(),
    };
    let title = "Random 4 KiB reads over requests outstanding";
    section.drawings.push(("depth".into(), Drawing::Lines(depths(title, "IOPS", |f| f.iops))));
    let title = "CPU of both sides over requests outstanding";
    let cpu = depths(title, "us an I/O", Figures::cpu_us);
    section.drawings.push(("depth-cpu".into(), Drawing::Lines(cpu)));
    section.tables.push(shares(view));

    let over = |title: &str, x: &str, xs: &[u32], of: &dyn Fn(u32, Carrier) -> Point| Lines {
        title: title.into(),
        x_name: x.into(),
        y_name: "IOPS".into(),
        scale: Scale::Log2,
        lines: CARRIERS
            .iter()
            .map(|&carrier| {
                let points = xs.iter().map(|&x| (f64::from(x), of(x, carrier)));
                view.line(Subject::thinwire(carrier).title(), points, |_, f| Some(f.iops))
            })
            .collect(),
        marks: Vec::new(),
    };
    let lines = over(
        "Initiators on one target, 4 KiB random reads in all",
        "initiators",
        &INITIATORS,
        &initiators_point,
    );
    section.drawings.push(("initiators".into(), Drawing::Lines(lines)));
    for (load, name) in [(SMALL, "4k"), (LARGE, "128k")] {
        let lines = Lines {
            title: format!("Links of 1 Gb/s in one session, {} KiB reads", load.block / 1024),
            x_name: "links".into(),
            y_name: "utilisation of all links, %".into(),
            scale: Scale::Linear,
            lines: CARRIERS
                .iter()
                .map(|&carrier| {
                    let title = Subject::thinwire(carrier).title();
                    let points =
                        LINKS.map(|links| (f64::from(links), links_point(links, load, carrier)));
                    view.line(title, points, |point, f| utilisation(&point.wire, f))
                })
                .collect(),
            marks: Vec::new(),
        };
        section.drawings.push((format!("links-{name}"), Drawing::Lines(lines)));
    }
    let lines = over(
        "Shards of a target with four initiators, 4 KiB random reads",
        "shards",
        &SHARDS,
        &shards_point,
    );
    section.drawings.push(("shards".into(), Drawing::Lines(lines)));
    section
}

/// How much of their echoes the carriers reach.
fn shares(view: &View) -> Table {
    let header = ["outstanding", "packet", "udp"];
    let mut table = Table::new("Random 4 KiB reads: share of the bare echo's IOPS, %", &header);
    for depth in DEPTHS {
        let cells =
            CARRIERS.map(|carrier| of_echo(view, &depth_point(depth, Subject::thinwire(carrier))));
        table.rows.push([depth.to_string()].into_iter().chain(cells).collect());
    }
    table
}
