//! Stripes over one, two and three targets; pools and snapshots beside qcow2.

use super::{bars_table, cell};
use crate::composed::{ComposedSubject, Made};
use crate::experiments::bars::{Bar, at_least, free};
use crate::experiments::faces::{HEADER, cells, named};
use crate::experiments::{NONE, Section, Table};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Load, Pattern, Point, Subject, Wire};
use crate::view::View;

/// Each port.
const GIGABIT: Wire = Wire { mbit: Some(1000), ..Wire::FREE };
const LARGE: [Load; 2] =
    [Load::new(Pattern::Read, 131_072, 16), Load::new(Pattern::Write, 131_072, 16)];
const SMALL: [Load; 2] =
    [Load::new(Pattern::RandRead, 4096, 32), Load::new(Pattern::RandWrite, 4096, 32)];
/// With how many times the rate of one target is wanted of them.
const TARGETS: [(u32, Option<f64>); 3] = [(1, None), (2, Some(1.9)), (3, Some(2.8))];

/// Of a run.
const SECONDS: f64 = 1.5;
const ROUNDS: u32 = 5;
/// Beside qcow2, which nobody's bar is about.
const PEER_SECONDS: f64 = 1.0;
const PEER_ROUNDS: u32 = 5;

fn stripe(load: Load, targets: u32) -> Point {
    Point { wire: GIGABIT, load, subject: Subject::Composed(ComposedSubject::Stripe { targets }) }
}

/// Ours, then its peer. Who was just cut is only written to: what is read is as before.
fn pairs(load: Load) -> Vec<[ComposedSubject; 2]> {
    let mut all =
        vec![[ComposedSubject::Export(Made::Thin), ComposedSubject::Qcow2 { snapshot: false }]];
    if !load.pattern.reads() {
        all.push([ComposedSubject::ThinSnapshot, ComposedSubject::Qcow2 { snapshot: true }]);
    }
    all
}

pub fn plan() -> Vec<Group> {
    let stripes = LARGE.map(|load| {
        TARGETS.into_iter().fold(Group::new(GIGABIT, load), |group, (targets, _)| {
            group.with(stripe(load, targets).subject, SECONDS, ROUNDS, 1)
        })
    });
    let peers = SMALL.map(|load| {
        let all = pairs(load).into_iter().flatten();
        all.fold(Group::new(Wire::FREE, load), |group, composed| {
            group.with(Subject::Composed(composed), PEER_SECONDS, PEER_ROUNDS, 1)
        })
    });
    stripes.into_iter().chain(peers).collect()
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for (targets, wanted) in TARGETS {
        let Some(wanted) = wanted else { continue };
        for load in LARGE {
            let text = format!("stripe over {targets} targets, {}: MiB/s over one's", named(load));
            let pair = [stripe(load, targets), stripe(load, 1)];
            bars.push(at_least(wanted, |f| f.mib_per_s).bar(view, text, pair, &[]));
        }
    }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Stripes over targets, and pools beside qcow2",
        &[
            "The first table: an initiator that stripes (chunks of 64 KiB) over files in the memory of one, two and three targets, \
             each on a link of its own whose ports at the switch are shaped to 1 Gb/s both ways, MTU 9000, 128 KiB in order, 16 \
             outstanding. The document's file system has 30, 40 and 50 MB/s reading and 20, 35 and 50 writing over one, two and \
             three nodes of two disks each (3.5).",
            "The second one: a volume of a pool (blocks of 64 KiB), exported over packet and driven by thinwire bench, beside qcow2 \
             (clusters of 64 KiB) behind qemu-nbd, driven by fio's nbd engine; both in memory and written as a whole before. After \
             a snapshot, which is taken before each run, what is written is written elsewhere: a snapshot of ours is taken while the \
             volume is in use, qemu-nbd is stopped for its own. The kernel here has neither md nor dm, so nothing stands beside \
             mirror. Medians, in parentheses the quartiles; ratios are taken within a round.",
        ],
    );
    let header = ["load", "targets", "MB/s", "CPU, us an I/O: client + server", "over one target"];
    let mut table = Table::new("Stripes, each port at 1 Gb/s", &header);
    for load in LARGE {
        for (targets, _) in TARGETS {
            let point = stripe(load, targets);
            let ratio = view.ratio(&point, &stripe(load, 1), |f| f.mib_per_s);
            table.rows.push(vec![
                named(load),
                targets.to_string(),
                cell(view.spread(&point, super::mb_per_s), 1),
                view.last(&point).map_or(NONE.into(), Figures::cpu_shown),
                cell(ratio.filter(|_| targets > 1), 2),
            ]);
        }
    }
    section.tables.push(table);
    section.tables.push(bars_table("What stripes must reach", |own| bars(view, own)));
    let mut table = Table::new("Pools beside qcow2", &HEADER);
    table.header.push("over qcow2".into());
    for load in SMALL {
        for pair in pairs(load) {
            let points = pair.map(|composed| free(load, Subject::Composed(composed)));
            for point in &points {
                let mut row = cells(view, point);
                let ratio = view.ratio(point, &points[1], |f| f.iops);
                row.push(
                    ratio.filter(|_| *point != points[1]).map_or(NONE.into(), |s| s.quartiles(2)),
                );
                table.rows.push(row);
            }
        }
    }
    section.tables.push(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn stripes_are_judged_by_one_target() {
        let folder = folder("orchestra-stripes");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for (targets, read, written) in [(1, 100.0, 100.0), (2, 190.0, 189.0), (3, 279.0, 281.0)] {
            for (load, mib_per_s) in LARGE.into_iter().zip([read, written]) {
                let figures = Figures { mib_per_s, ..Figures::default() };
                let run = Run { round: 0, visit: 1, seconds: SECONDS };
                store.put(&stripe(load, targets), run, Ok(figures)).unwrap();
            }
        }
        let view = View::new(&store, &plan(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        let verdicts: Vec<String> = all.iter().map(Bar::verdict).collect();
        assert_eq!(verdicts, ["met", "missed", "missed", "met"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
