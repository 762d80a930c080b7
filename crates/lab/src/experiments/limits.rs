//! Limits: an echo with an empty protocol, and the same bytes copied in memory; what Thinwire does as a
//! fraction of them.

use super::{NONE, Section, Table, size};
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Subject, Wire};
use crate::view::View;

const CARRIERS: [Carrier; 3] = [Carrier::Packet, Carrier::Udp, Carrier::Xdp];

fn loads() -> impl Iterator<Item = Load> {
    [
        Load::new(Pattern::RandRead, 4096, 1),
        Load::new(Pattern::RandRead, 4096, 32),
        Load::new(Pattern::RandWrite, 4096, 32),
        Load::new(Pattern::RandRead, 4096, 128),
        Load::new(Pattern::RandWrite, 4096, 128),
        Load::new(Pattern::Read, 131_072, 8),
        Load::new(Pattern::Write, 131_072, 8),
    ]
    .into_iter()
}

pub fn plan() -> Vec<Group> {
    let group = |load: Load| {
        let mut group = Group::new(Wire::FREE, load);
        for carrier in CARRIERS {
            let quick = u32::from(carrier != Carrier::Xdp && load.outstanding() == 32);
            group = group.with(Subject::thinwire(carrier), 1.5, 3, quick).with(
                Subject::echo(carrier, false),
                1.5,
                3,
                quick,
            );
        }
        group.with(Subject::MemoryCopy, 0.5, 3, 1)
    };
    loads().map(group).collect()
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Limits",
        &[
            "What the link allows when the protocol is empty: frames of the same sizes there and back, random \
             blocks, one copy at the receiver, nothing else. Many requests share a frame; small blocks travel two to \
             a frame of 8 KiB, large ones in several, over every carrier. Below it, how fast one thread copies such blocks within memory. More than 100 % of the echo is possible: it has no \
             flow control and no idea when to wait.",
        ],
    );
    let header =
        ["load", "subject", "IOPS", "MiB/s", "mean, us", "of its echo, %", "of the memory copy, %"];
    let mut table = Table::new("Results as a fraction of their limits", &header);
    for load in loads() {
        let point = |subject| Point { wire: Wire::FREE, load, subject };
        let copy = point(Subject::MemoryCopy);
        let title = format!(
            "{} {}, {} outstanding",
            load.pattern.word(),
            size(load.block),
            load.outstanding()
        );
        let mut subjects = Vec::new();
        for carrier in CARRIERS {
            let echo = point(Subject::echo(carrier, false));
            subjects.push((point(Subject::thinwire(carrier)), Some(echo)));
            subjects.push((echo, None));
        }
        subjects.push((copy, None));
        for (point, echo) in subjects {
            let show = |of: fn(&crate::figures::Figures) -> f64, digits| {
                view.spread(&point, of).map_or(NONE.into(), |s| s.show(digits))
            };
            let share = |limit: &Point| {
                let ratio = view.ratio(&point, limit, |f| f.iops);
                ratio.map_or(NONE.into(), |s| s.times(100.0).show(1))
            };
            table.rows.push(vec![
                title.clone(),
                point.subject.title(),
                show(|f| f.iops, 0),
                show(|f| f.mib_per_s, 0),
                show(|f| f.mean_us, 1),
                echo.map_or(NONE.into(), |echo| share(&echo)),
                if point == copy { NONE.into() } else { share(&copy) },
            ]);
        }
    }
    section.tables.push(table);
    section
}
