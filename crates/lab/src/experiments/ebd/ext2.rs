//! A file system on a remote disk, with little memory on both sides.

use super::{NONE, Table, free};
use crate::contender::{CLIENT_MIB, SERVER_MIB};
use crate::experiments::faces::named;
use crate::figures::Figures;
use crate::offered::Ext2Disk;
use crate::plan::Group;
use crate::point::{Load, Pattern, Point, Subject, Wire};
use crate::view::View;

/// A file that fits the server's memory, nearly, and one of 1.5 times that: half of the document's.
pub const FILES_MIB: [u32; 2] = [256, 384];
const ALL: [Ext2Disk; 4] = [Ext2Disk::Native, Ext2Disk::Ebd, Ext2Disk::Nbd, Ext2Disk::Here];
pub const WRITES: Load = Load::new(Pattern::Write, 131_072, 1);
pub const READS: Load = Load::new(Pattern::Read, 131_072, 1);
pub const RANDOM_READS: Load = Load::new(Pattern::RandRead, 8192, 1);
pub const RANDOM_WRITES: Load = Load::new(Pattern::RandWrite, 8192, 1);
const LOADS: [Load; 4] = [WRITES, READS, RANDOM_READS, RANDOM_WRITES];

const SECONDS: f64 = 1.0;
const ROUNDS: u32 = 3;

fn subjects() -> impl Iterator<Item = (Ext2Disk, u32)> {
    FILES_MIB.into_iter().flat_map(|mib| ALL.map(|below| (below, mib)))
}

pub fn plan() -> Vec<Group> {
    let group = |load| {
        let group = Group::new(Wire::FREE, load);
        subjects().fold(group, |group, (below, mib)| {
            group.with(Subject::Ext2 { below, mib }, SECONDS, ROUNDS, 0)
        })
    };
    LOADS.map(group).into()
}

pub fn point(load: Load, below: Ext2Disk, mib: u32) -> Point {
    free(load, Subject::Ext2 { below, mib })
}

/// EBD's figure over that of another.
pub fn over(
    view: &View,
    load: Load,
    mib: u32,
    other: Ext2Disk,
    of: impl Fn(&Figures) -> f64,
) -> String {
    let ratio = view.ratio(&point(load, Ext2Disk::Ebd, mib), &point(load, other, mib), of);
    ratio.map_or(NONE.into(), |s| s.show(2))
}

pub fn table(view: &View) -> Table {
    let title = format!(
        "A file in ext2 (blocks of 4096), one I/O at a time through the client's page cache; the client's program has \
         {CLIENT_MIB} MiB, the server {SERVER_MIB}"
    );
    let header = [
        "load",
        "subject",
        "MiB/s",
        "mean, us",
        "p99, us",
        "slowest, ms",
        "CPU, us an I/O: client + face + server",
        "over nbdkit",
        "over the image here",
    ];
    let mut table = Table::new(title, &header);
    for load in LOADS {
        for (below, mib) in subjects() {
            let point = point(load, below, mib);
            let show = |of: &dyn Fn(&Figures) -> Option<f64>, digits| {
                view.spread_of_some(&point, of).map_or(NONE.into(), |s| s.quartiles(digits))
            };
            let cpu = view.last(&point).map_or(NONE.into(), Figures::cpu_shown);
            let over = |other| match other == below {
                true => NONE.into(),
                false => {
                    let ratio = view.ratio(&point, &self::point(load, other, mib), |f| f.mib_per_s);
                    ratio.map_or(NONE.into(), |s| s.quartiles(2))
                }
            };
            table.rows.push(vec![
                named(load),
                point.subject.title(),
                show(&|f| Some(f.mib_per_s), 0),
                show(&|f| Some(f.mean_us), 0),
                show(&|f| f.p99_us, 0),
                show(&|f| f.max_us.map(|us| us / 1e3), 1),
                cpu,
                over(Ext2Disk::Nbd),
                over(Ext2Disk::Here),
            ]);
        }
    }
    table
}
