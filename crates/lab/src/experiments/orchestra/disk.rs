//! Figure 2.7: one disk where it is, beside memory over the network, one request outstanding.

use super::{cell, client_cpu, mb_per_s, pattern_title, stated};
use crate::composed::ComposedSubject;
use crate::experiments::bars::{Bar, at_most};
use crate::experiments::{NONE, Section, Table, size};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const SIZES: [u32; 5] = [512, 1024, 4096, 16_384, 131_072];
const PATTERNS: [Pattern; 3] = [Pattern::Read, Pattern::Write, Pattern::Mixed];
/// The document's, and jumbo frames.
const WIRES: [Wire; 2] = [
    Wire { mbit: Some(1000), mtu: 1500, ..Wire::FREE },
    Wire { mbit: Some(1000), mtu: 9000, ..Wire::FREE },
];
const DISK: Subject = Subject::Composed(ComposedSubject::OneDisk);
const MEMORY: Subject = Subject::thinwire(Carrier::Packet);

/// Of a run.
const SECONDS: f64 = 1.0;
const ROUNDS: u32 = 2;

fn point(wire: Wire, pattern: Pattern, block: u32, subject: Subject) -> Point {
    Point { wire, load: Load::new(pattern, block, 1), subject }
}

fn subjects(wire: Wire, pattern: Pattern) -> Vec<Subject> {
    let mut all = vec![MEMORY];
    // iscsi-perf only reads.
    if pattern.reads() {
        all.push(Subject::Tgt);
    }
    if wire == WIRES[0] {
        all.insert(0, DISK);
    }
    all
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for wire in WIRES {
        for pattern in PATTERNS {
            for block in SIZES {
                let quick = u32::from(is_quick(wire, pattern, block));
                let group = Group::new(wire, Load::new(pattern, block, 1));
                let all = subjects(wire, pattern);
                groups.push(
                    all.into_iter()
                        .fold(group, |group, subject| group.with(subject, SECONDS, ROUNDS, quick)),
                );
            }
        }
    }
    groups
}

/// Whether the quick form measures it: with jumbo frames what bars are about.
fn is_quick(wire: Wire, pattern: Pattern, block: u32) -> bool {
    match wire == WIRES[0] {
        true => matches!(block, 512 | 16_384 | 131_072) && pattern != Pattern::Mixed,
        false => JUDGED.contains(&block) && pattern.reads(),
    }
}

/// Whose CPU bars are about.
const JUDGED: [u32; 2] = [16_384, 131_072];

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for block in JUDGED {
        let text = format!(
            "{} {}, one outstanding, MTU 9000: CPU of the initiator an I/O, over tgt's",
            size(block),
            pattern_title(Pattern::Read)
        );
        let pair = [MEMORY, Subject::Tgt].map(|s| point(WIRES[1], Pattern::Read, block, s));
        bars.push(at_most(0.5, |f| f.cpu_client_us).bar(view, text, pair, &[]));
    }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        &format!("Figure 2.7: {}", stated::shows("2.7")),
        &[
            "One I/O outstanding. The disk is a file in memory under qos, 45 MB/s read and 20 MB/s written, used by thinwire bench \
             where it is; the memory is a store of a target, over packet on a link of 1 Gb/s; tgt serves an image in memory, driven \
             by iscsi-perf, which only reads and tells no latency of its own. A disk's seeks, and so what a mix of reads and writes \
             costs it, are not modelled. CPU is that of the client's process, which over packet spins while it waits for an answer \
             that is soon to come.",
        ],
    );
    let header = [
        "MTU",
        "pattern",
        "I/O",
        "subject",
        "MB/s",
        "mean, us",
        "CPU of the client, %",
        "us an I/O: client + server",
    ];
    let mut table = Table::new("One outstanding", &header);
    for wire in WIRES {
        for pattern in PATTERNS {
            for block in SIZES {
                for subject in subjects(wire, pattern) {
                    let point = point(wire, pattern, block, subject);
                    let mtu = if subject == DISK { NONE.to_owned() } else { wire.mtu.to_string() };
                    table.rows.push(vec![
                        mtu,
                        pattern_title(pattern).into(),
                        size(block),
                        subject.title(),
                        cell(view.spread(&point, mb_per_s), 1),
                        cell(view.spread(&point, |f| f.mean_us), 1),
                        cell(view.spread(&point, client_cpu), 0),
                        view.last(&point).map_or(NONE.into(), Figures::cpu_shown),
                    ]);
                }
            }
        }
    }
    section.tables.push(table);
    section.tables.push(stated::table("2.7", &ours(view)));
    section.tables.push(super::bars_table("What the initiator may take", |own| bars(view, own)));
    section
}

fn ours(view: &View) -> Vec<(&'static str, String)> {
    let of = |subject, pattern, block, figure: fn(&Figures) -> f64, unit: &str| {
        let found = view.spread(&point(WIRES[0], pattern, block, subject), figure);
        found.map_or(NONE.into(), |s| format!("{} {unit}", s.show(1)))
    };
    let disk = |pattern| of(DISK, pattern, 131_072, mb_per_s, "MB/s");
    let memory = |pattern, block, figure, unit: &str| of(MEMORY, pattern, block, figure, unit);
    vec![
        ("2.7.disk.read", disk(Pattern::Read)),
        ("2.7.disk.write", disk(Pattern::Write)),
        ("2.7.disk.mix", disk(Pattern::Mixed) + ", seeks not modelled"),
        ("2.7.controller", "a limit of five disks together in what follows".into()),
        ("2.7.ram", memory(Pattern::Read, 16_384, mb_per_s, "MB/s")),
        ("2.7.ram.cpu", memory(Pattern::Read, 16_384, client_cpu, "%")),
        ("2.7.cpu.read", memory(Pattern::Read, 1024, client_cpu, "% at 1 KiB")),
        ("2.7.cpu.write", memory(Pattern::Write, 1024, client_cpu, "% at 1 KiB")),
        ("2.7.latency", memory(Pattern::Read, 512, |f| f.mean_us, "us")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn the_initiators_cpu_is_judged_by_tgts() {
        let folder = folder("orchestra-disk");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for (wire, block, ours) in
            [(WIRES[1], 16_384, 50.0), (WIRES[1], 131_072, 51.0), (WIRES[0], 16_384, 50.0)]
        {
            for (subject, cpu_client_us) in [(MEMORY, ours), (Subject::Tgt, 100.0)] {
                let figures =
                    Figures { iops: 1000.0, cpu_client_us, mib_per_s: 50.0, ..Figures::default() };
                let run = Run { round: 0, visit: 1, seconds: SECONDS };
                store.put(&point(wire, Pattern::Read, block, subject), run, Ok(figures)).unwrap();
            }
        }
        let view = View::new(&store, &plan(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        let verdicts: Vec<String> = all.iter().map(Bar::verdict).collect();
        assert_eq!(verdicts, ["met", "missed"]);
        let ours = ours(&view);
        let of = |id: &str| &ours.iter().find(|(own, _)| *own == id).unwrap().1[..];
        assert_eq!((of("2.7.ram"), of("2.7.ram.cpu")), ("52.4 MB/s", "5.0 %"));
        assert_eq!(of("2.7.latency"), NONE);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
