//! What a user would have picked instead, in the same run and over the same switch.

use super::{NONE, Section, Table, of_echo, size};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const SUBJECTS: [Subject; 6] = [
    Subject::thinwire(Carrier::Packet),
    Subject::thinwire(Carrier::Udp),
    Subject::thinwire(Carrier::Xdp),
    Subject::Nbdkit,
    Subject::QemuNbd,
    Subject::Tgt,
];

fn loads() -> [Load; 5] {
    [
        Load::new(Pattern::RandRead, 4096, 1),
        Load::new(Pattern::RandRead, 4096, 32),
        Load::new(Pattern::RandRead, 4096, 32).jobs(4),
        Load::new(Pattern::Read, 131_072, 8),
        Load::new(Pattern::Write, 131_072, 8),
    ]
}

pub fn plan() -> Vec<Group> {
    let group = |load: Load| {
        SUBJECTS.into_iter().fold(Group::new(Wire::FREE, load), |group, subject| {
            // iscsi-perf only reads.
            if subject == Subject::Tgt && !load.pattern.reads() {
                return group;
            }
            let quick = u32::from(load.outstanding() == 32);
            // Nobody's bar is about the other peers.
            let full = if matches!(subject, Subject::QemuNbd | Subject::Tgt) { 2 } else { 3 };
            group.with(subject, 1.5, full, quick)
        })
    };
    let with_echoes = |group: Group| {
        let quick = u32::from(group.load.outstanding() == 32);
        let echoes = [Carrier::Packet, Carrier::Udp].map(|carrier| Subject::echo(carrier, false));
        echoes.into_iter().fold(group, |group, echo| group.with(echo, 1.5, 3, quick))
    };
    loads().into_iter().map(group).map(with_echoes).collect()
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Peers",
        &[
            "All of them hold the same random bytes in memory and are reached through the same kind of switch, one \
             after the other in each round. nbdkit (memory plugin) and qemu-nbd (an image in memory) are driven by \
             fio's nbd engine, one connection a job; tgt by libiscsi's iscsi-perf, which only reads, on one \
             connection, and tells no latency of its own. CPU is that of the processes of both sides; \
             the column \"machine\" is what all processors did together, interrupts and switch included. The \
             last column is the share of what a bare echo over the same link does under the same load.",
        ],
    );
    let header = [
        "load",
        "subject",
        "IOPS",
        "MiB/s",
        "mean, us",
        "p99, us",
        "CPU, us an I/O: client + server",
        "machine, us an I/O",
        "IOPS over nbdkit's",
        "of its echo, %",
    ];
    let mut table = Table::new("Side by side", &header);
    for load in loads() {
        let point = |subject| Point { wire: Wire::FREE, load, subject };
        let title =
            format!("{} {}, {} x {}", load.pattern.word(), size(load.block), load.jobs, load.depth);
        for subject in SUBJECTS {
            let point_of = point(subject);
            let show = |of: fn(&Figures) -> f64, digits| {
                view.spread(&point_of, of).map_or(NONE.into(), |s| s.show(digits))
            };
            let median = |of: fn(&Figures) -> f64| view.spread(&point_of, of).map(|s| s.median);
            let cpu = match (median(|f| f.cpu_client_us), median(|f| f.cpu_server_us)) {
                (Some(client), Some(server)) => format!("{client:.1} + {server:.1}"),
                _ => NONE.into(),
            };
            let over = view.ratio(&point_of, &point(Subject::Nbdkit), |f| f.iops);
            table.rows.push(vec![
                title.clone(),
                subject.title(),
                show(|f| f.iops, 0),
                show(|f| f.mib_per_s, 0),
                show(|f| f.mean_us, 1),
                view.spread_of_some(&point_of, |f| f.p99_us).map_or(NONE.into(), |s| s.show(1)),
                cpu,
                show(|f| f.cpu_machine_us, 1),
                over.map_or(NONE.into(), |s| s.show(2)),
                of_echo(view, &point_of),
            ]);
        }
    }
    section.tables.push(table);
    section
}
