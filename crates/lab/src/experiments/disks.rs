//! Images on a disk: exported directly, through the page cache, with a cache of the target's own, behind
//! a disk with limits; beside the same where the image is, and nbdkit's file plugin.

use super::bars::{Bar, at_least, count, free};
use super::faces::{HEADER, cells, named};
use super::{NONE, Section, Table};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, ImageStore, Load, Pattern, Point, Subject, Wire};
use crate::stand::{LIMIT_IOPS, LIMIT_MIB};
use crate::view::View;

const CARRIERS: [Carrier; 2] = [Carrier::Packet, Carrier::Udp];
const ONE: Load = Load::new(Pattern::RandRead, 4096, 1);
const SMALL: Load = Load::new(Pattern::RandRead, 4096, 32);
const READS: Load = Load::new(Pattern::Read, 131_072, 8);
const WRITES: Load = Load::new(Pattern::Write, 131_072, 8);

/// Of a run.
const SECONDS: f64 = 1.0;
/// In the full form.
const ROUNDS: u32 = 7;

/// Exported.
const fn remote(store: ImageStore, carrier: Carrier) -> Subject {
    Subject::Disk { store, carrier: Some(carrier) }
}

/// Where the image is.
const fn local(store: ImageStore) -> Subject {
    Subject::Disk { store, carrier: None }
}

fn subjects(load: Load) -> Vec<Subject> {
    let mut all = vec![local(ImageStore::Direct)];
    for carrier in CARRIERS {
        all.push(remote(ImageStore::Direct, carrier));
        if load.pattern.reads() {
            all.extend(
                [ImageStore::Buffered, ImageStore::Cache].map(|store| remote(store, carrier)),
            );
            // What the wire alone does.
            all.push(Subject::thinwire(carrier));
        }
    }
    if load.pattern.reads() {
        all.push(Subject::NbdkitFile);
        if load != ONE {
            all.extend([local(ImageStore::Limited), remote(ImageStore::Limited, Carrier::Packet)]);
        }
    }
    all
}

/// Whether the quick form measures it: reads with many outstanding; of large ones only the default.
fn is_quick(load: Load, subject: Subject) -> bool {
    let quick = load == SMALL || load == READS;
    quick
        && match subject {
            Subject::Disk { store: ImageStore::Limited, .. } => false,
            Subject::Disk { carrier: Some(Carrier::Udp), .. } => false,
            Subject::Disk { store, .. } => load == SMALL || store == ImageStore::Direct,
            Subject::NbdkitFile => load == SMALL,
            _ => true,
        }
}

pub fn plan() -> Vec<Group> {
    let group = |load: Load| {
        subjects(load).into_iter().fold(Group::new(Wire::FREE, load), |group, subject| {
            group.with(subject, SECONDS, ROUNDS, u32::from(is_quick(load, subject)))
        })
    };
    [ONE, SMALL, READS, WRITES].map(group).into()
}

/// The one that a subject is compared with where the image is.
fn here(subject: Subject) -> Option<Subject> {
    match subject {
        Subject::Disk { store: ImageStore::Limited, .. } => Some(local(ImageStore::Limited)),
        Subject::Disk { .. } => Some(local(ImageStore::Direct)),
        _ => None,
    }
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    let mut over = |load, [a, b]: [Subject; 2], least, whose: &str| {
        let text = format!("{}, {}: IOPS over {whose}", a.title(), named(load));
        bars.push(at_least(least, |f| f.iops).bar(view, text, [free(load, a), free(load, b)], &[]));
    };
    for carrier in CARRIERS {
        for load in [SMALL, READS, WRITES] {
            let pair = [remote(ImageStore::Direct, carrier), local(ImageStore::Direct)];
            over(load, pair, 0.8, "those of the same image locally");
        }
        for load in [SMALL, READS] {
            let cache = remote(ImageStore::Cache, carrier);
            over(load, [cache, Subject::thinwire(carrier)], 0.9, "the memory export's");
            over(load, [cache, Subject::NbdkitFile], 2.0, "nbdkit file's");
            let buffered = remote(ImageStore::Buffered, carrier);
            over(load, [buffered, Subject::NbdkitFile], 1.5, "nbdkit file's");
        }
    }
    for load in [SMALL, READS] {
        let pair = [remote(ImageStore::Limited, Carrier::Packet), local(ImageStore::Limited)];
        over(load, pair, 0.97, "those of the same disk locally");
    }
    bars.extend(CARRIERS.map(|carrier| added(view, carrier)));
}

/// What the way to a disk adds to its latency, over what the way to memory takes.
fn added(view: &View, carrier: Carrier) -> Bar {
    let subjects = [
        remote(ImageStore::Direct, carrier),
        local(ImageStore::Direct),
        Subject::thinwire(carrier),
    ];
    let all = subjects.map(|subject| free(ONE, subject));
    let [there, points] = count(view, all);
    let median = |point: &Point| {
        view.spread(point, |f| f.mean_us).map_or(NONE.into(), |s| format!("{:.1}", s.median))
    };
    let [far, near, memory] = &all;
    Bar {
        text: format!(
            "{}, {}: latency above the local one, over that of the memory export",
            subjects[0].title(),
            named(ONE)
        ),
        wanted: 1.3,
        at_least: false,
        measured: view.together([far, near, memory], over_the_wire),
        figures: format!("{} less {}, to {} us", median(far), median(near), median(memory)),
        there,
        points,
    }
}

fn over_the_wire([far, near, memory]: [&Figures; 3]) -> f64 {
    (far.mean_us - near.mean_us) / memory.mean_us
}

pub fn section(view: &View) -> Section {
    let limited = format!(
        "\"limited\" is a loop device over such a file, held to {LIMIT_IOPS} I/Os and {LIMIT_MIB} MiB a second each way by \
         a control group in which its user runs."
    );
    let mut section = Section::new(
        "Disks",
        &[
            "Images of 256 MiB of random bytes on the disk that holds the folder of the results, one for each subject: \
             used directly, which is the default, through the page cache (buffered), with a cache of the target's own \
             larger than the image (cache=); beside `thinwire bench` of such an image on its own machine, and nbdkit's \
             file plugin over TCP, which uses the page cache. Those with a cache of either kind have read the whole \
             image once before. ",
            &limited,
            "Medians, in parentheses the quartiles; ratios are taken within a round.",
        ],
    );
    let mut table = Table::new("From a disk", &HEADER);
    table.header.extend(["over local bench".to_owned(), "over nbdkit file".to_owned()]);
    for load in [ONE, SMALL, READS, WRITES] {
        for subject in subjects(load) {
            let point = free(load, subject);
            let over = |other: Option<Subject>| {
                let ratio = other.and_then(|o| view.ratio(&point, &free(load, o), |f| f.iops));
                ratio.map_or(NONE.into(), |s| s.quartiles(2))
            };
            let mut row = cells(view, &point);
            row.extend([over(here(subject)), over(Some(Subject::NbdkitFile))]);
            table.rows.push(row);
        }
    }
    section.tables.push(table);
    let mut own = Vec::new();
    bars(view, &mut own);
    section.tables.push(super::bars::table("What the disks must show", own));
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_wire_adds_is_over_what_it_takes_without_a_disk() {
        let figures = |mean_us| Figures { mean_us, ..Figures::default() };
        let [far, near, memory] = [140.0, 100.0, 20.0].map(figures);
        assert_eq!(over_the_wire([&far, &near, &memory]), 2.0);
        assert_eq!(over_the_wire([&near, &near, &memory]), 0.0);
    }

    #[test]
    fn a_limited_disk_is_compared_with_a_limited_one() {
        assert_eq!(
            here(remote(ImageStore::Limited, Carrier::Packet)),
            Some(local(ImageStore::Limited))
        );
        assert_eq!(here(remote(ImageStore::Cache, Carrier::Udp)), Some(local(ImageStore::Direct)));
        assert_eq!(here(Subject::NbdkitFile), None);
        for group in plan() {
            for subject in group.entries.iter().filter_map(|e| here(e.subject)) {
                assert!(group.entries.iter().any(|e| e.subject == subject), "{}", group.load);
            }
        }
        assert!(
            is_quick(SMALL, local(ImageStore::Direct))
                && !is_quick(WRITES, local(ImageStore::Direct))
        );
    }
}
