//! Table IV: two devices that do nothing, one at once and one after a context switch.

use super::{NONE, Section, Table, size};
use crate::document::document;
use crate::draw::{Bar, BarGroup, Bars, Drawing};
use crate::plan::Group;
use crate::point::{Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const PATTERNS: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];

fn point(pattern: Pattern, block: u32, switch: bool) -> Point {
    let load = Load::new(pattern, block, 1);
    Point { wire: Wire::FREE, load, subject: Subject::Null { switch } }
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for pattern in PATTERNS {
        for block in document().sizes {
            let quick = u32::from(block == 4096);
            let group = Group::new(Wire::FREE, Load::new(pattern, block, 1));
            groups.push(
                [false, true].iter().fold(group, |group, &switch| {
                    group.with(Subject::Null { switch }, 0.5, 3, quick)
                }),
            );
        }
    }
    groups
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Table IV: two fake devices",
        &[
            "What reaching a device and coming back costs when the device does nothing: `thinwire bench` on a null \
             volume that completes at once (the document's BD-NCS), and on one that has another thread complete \
             (BD-WCS). One request outstanding. Ours stays in user space, the document's crosses into the \
             kernel and back. A context switch, as stated below, is half of what the second takes longer: to the other \
             thread and back.",
        ],
    );
    for pattern in PATTERNS {
        let side = if pattern.reads() { "reads" } else { "writes" };
        let header =
            ["size", "BD-NCS, ours", "BD-NCS, document", "BD-WCS, ours", "BD-WCS, document"];
        let mut table = Table::new(format!("Random {side}: total, us"), &header);
        let mut groups = Vec::new();
        for (column, block) in document().sizes.into_iter().enumerate() {
            let mut row = vec![size(block)];
            let mut bars = Vec::new();
            for (switch, name) in [(false, "BD-NCS"), (true, "BD-WCS")] {
                let ours = view.spread(&point(pattern, block, switch), |f| f.mean_us);
                let row_of = document().table("IV").row(name).expect("a row of the document");
                let theirs = row_of.side(pattern.reads())[column];
                row.push(ours.map_or(NONE.into(), |s| s.show(2)));
                row.push(format!("{theirs:.2}"));
                let bar = |who: &str, value: f64, spread| Bar {
                    name: String::new(),
                    parts: vec![(format!("{name}, {who}"), value)],
                    spread,
                };
                if let Some(s) = ours {
                    bars.push(bar("ours", s.median, Some((s.min, s.max))));
                }
                bars.push(bar("document", theirs, None));
            }
            table.rows.push(row);
            groups.push(BarGroup { name: size(block), bars });
        }
        let title = format!("Total of random {side} on the two fake devices");
        let bars = Bars { title, y_name: "us".into(), groups };
        section.drawings.push((side.into(), Drawing::Bars(bars)));
        section.tables.push(table);
    }
    let total = |switch| {
        let found = view.spread(&point(Pattern::RandRead, 4096, switch), |f| f.mean_us);
        found.map(|s| s.median)
    };
    let switch = total(true).zip(total(false)).map(|(with, without)| (with - without) / 2.0);
    section
        .tables
        .push(Table::statements(&[("in_out.bd_ncs.4k", total(false)), ("context_switch", switch)]));
    section
}
