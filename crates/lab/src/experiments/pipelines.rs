//! Tables II, III, V and VI: where the time of one request goes, with the document's three pipelines.

use super::{Experiment, NONE, Section, Table, largest, size};
use crate::document::{self, document};
use crate::draw::{Bar, BarGroup, Bars, Drawing};
use crate::figures::{Figures, Stages};
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Settings, Subject, Wire};
use crate::view::View;

const PATTERNS: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];

/// Table II: network thread, block thread, and a thread for completions.
pub const SPLIT: Subject = with(Some("split"), Some("workqueue"));
/// Table V: Tyche-Rec.
pub const SINGLE: Subject = with(Some("single"), Some("workqueue"));
/// Table VI: Tyche-NoWQ, and Thinwire's defaults.
pub const INLINE: Subject = with(None, None);

/// Not of the document's tables: requests handed to another thread, which sends them.
const QUEUE: Subject =
    Subject::with(Carrier::Packet, Settings { submission: Some("queue"), ..Settings::DEFAULT });

const fn with(receive: Option<&'static str>, completion: Option<&'static str>) -> Subject {
    Subject::with(Carrier::Packet, Settings { receive, completion, ..Settings::DEFAULT })
}

/// Names of our rows and of the document's, from the application outwards. Ours that the document
/// has not stand beside nothing.
const ROWS: [(&str, Option<&str>); 13] = [
    ("In/Out", Some("In/Out")),
    ("Ty-IS", Some("Ty-IS")),
    ("Ty-TR", Some("Ty-TR")),
    ("Ty-TS", Some("Ty-TS")),
    ("Ty-IR", Some("Ty-IR")),
    ("CS-WQ", Some("CS-WQ")),
    ("CS-Rec", Some("CS-Rec")),
    ("CS-IRQ", Some("CS-IRQ")),
    ("CS-Out", None),
    ("store", Some("Ramdisk")),
    ("network", Some("Network")),
    ("remainder", None),
    ("clocks", None),
];

/// The context switches that the document counts as Tyche's.
const SWITCHES: [&str; 3] = ["CS-WQ", "CS-Rec", "CS-IRQ"];
/// The rest of Tyche's own path.
const PATH: [&str; 4] = ["Ty-IS", "Ty-TR", "Ty-TS", "Ty-IR"];

/// The point of a pipeline, or of a peer, with one request of this size outstanding.
pub fn point(pattern: Pattern, block: u32, subject: Subject) -> Point {
    Point { wire: Wire::FREE, load: Load::new(pattern, block, 1), subject }
}

/// The point that tells where the time of a pipeline's requests goes.
fn stages_point(pattern: Pattern, subject: Subject) -> Point {
    Point { wire: Wire::FREE, load: Load::stages(pattern), subject }
}

/// The pipelines are measured together, whichever table is asked for: their steps are compared.
pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for pattern in PATTERNS {
        for block in document().sizes {
            // The bars' steps are of 4 KiB.
            let (seconds, full, quick) = if block == 4096 { (1.5, 4, 1) } else { (1.0, 3, 0) };
            let group = Group::new(Wire::FREE, Load::new(pattern, block, 1));
            let group = [SPLIT, SINGLE, INLINE, Subject::Nbdkit]
                .into_iter()
                .fold(group, |group, subject| group.with(subject, seconds, full, quick));
            let rest = [QUEUE, Subject::echo(Carrier::Packet, false)];
            groups.push(
                rest.into_iter().fold(group, |group, subject| group.with(subject, seconds, 3, 0)),
            );
        }
        let group = Group::new(Wire::FREE, Load::stages(pattern));
        // Four sizes, and each of them for both kinds of clocks.
        groups.push(
            [SPLIT, SINGLE, INLINE]
                .into_iter()
                .fold(group, |group, subject| group.with(subject, 4.0, 3, 1)),
        );
    }
    groups
}

pub fn section(experiment: Experiment, view: &View) -> Section {
    let mut section = match experiment {
        Experiment::Table2 => breakdown(
            view,
            SPLIT,
            "II",
            "Table II: receive path split, completion through a work queue",
        ),
        Experiment::Table5 => {
            breakdown(view, SINGLE, "V", "Table V (Tyche-Rec): one thread for the receive path")
        }
        Experiment::Table6 => {
            breakdown(view, INLINE, "VI", "Table VI (Tyche-NoWQ): completions inline, our default")
        }
        _ => totals(view),
    };
    section.tables.extend(stated(experiment, view));
    section
}

fn breakdown(view: &View, subject: Subject, number: &str, title: &str) -> Section {
    let mut section = Section::new(
        title,
        &[
            "One 4, 8, 64 or 128 KiB request outstanding, over the packet link through the switch, MTU 9000, not \
             shaped. Times are means in microseconds, medians over the rounds; in brackets time of the thread's CPU \
             alone, each with one look at that clock, a system call that may take longer than the row itself: the bracket \
             of the row “clocks” says how long. The document's In/Out and Network rows are calculated as differences, ours are measured, the \
             network each way by the one clock that both sides have; \
             CS-IRQ is the wake-up of the sleeping side. Ours is all in user space, so that the network row \
             holds the kernel's work, too. The remainder is what no stage explains; “clocks” is what the ten looks of one \
             request cost at the clock that measures all time, which is in the rows already.",
        ],
    );
    let table = document().table(number);
    for pattern in PATTERNS {
        let side = if pattern.reads() { "reads" } else { "writes" };
        section.tables.push(rows(view, subject, table, pattern, side));
        let mut groups = Vec::new();
        for (column, block) in document().sizes.into_iter().enumerate() {
            let stages = stages_point(pattern, subject);
            let of = |row: &'static str| {
                view.spread_of_some(&stages, |f| f.stages(block)?.physical_us(row))
            };
            let ours = ROWS.iter().filter(|(row, _)| *row != "clocks");
            let ours = ours.filter_map(|(row, _)| Some(((*row).to_owned(), of(row)?.median)));
            let parts: Vec<_> = ours.collect();
            let total = of("total");
            let theirs = ROWS.iter().filter_map(|(row, their)| {
                let found = table.row((*their)?)?;
                Some(((*row).to_owned(), found.side(pattern.reads())[column]))
            });
            let mut bars = Vec::new();
            if !parts.is_empty() {
                bars.push(Bar {
                    name: "ours".into(),
                    parts,
                    spread: total.map(|s| (s.min, s.max)),
                });
            }
            bars.push(Bar { name: "document".into(), parts: theirs.collect(), spread: None });
            groups.push(BarGroup { name: size(block), bars });
        }
        let title = format!("Random {side}, one outstanding: where the time goes");
        section
            .drawings
            .push((side.into(), Drawing::Bars(Bars { title, y_name: "us".into(), groups })));
    }
    section
}

/// Time of some rows of a 4 KiB request; no number if it was not measured.
fn sum_us(figures: &Figures, rows: &[&str]) -> f64 {
    let sum = |stages: &Stages| rows.iter().map(|row| stages.physical_us(row)).sum::<Option<f64>>();
    figures.stages(4096).and_then(sum).unwrap_or(f64::NAN)
}

/// What the text says of the rows of Table II and of Table VI.
fn stated(experiment: Experiment, view: &View) -> Option<Table> {
    let own = |figures: &Figures| sum_us(figures, &PATH) + sum_us(figures, &SWITCHES);
    let saved = |pattern| {
        let [after, before] = [INLINE, SPLIT].map(|subject| stages_point(pattern, subject));
        view.ratio(&after, &before, own).map(|s| (1.0 - s.median) * 100.0)
    };
    let [reads, writes] = PATTERNS;
    match experiment {
        Experiment::Table2 => {
            let share = |f: &Figures| sum_us(f, &SWITCHES) / sum_us(f, &["total"]) * 100.0;
            let share = view.spread(&stages_point(reads, SPLIT), share);
            Some(Table::statements(&[("context_switch.share", share.map(|s| s.median))]))
        }
        Experiment::Table6 => {
            let host = view.spread(&stages_point(writes, INLINE), own);
            Some(Table::statements(&[
                ("cpu.host", host.map(|s| s.median)),
                ("reads.4k.path", saved(reads)),
                ("writes.4k.path", saved(writes)),
            ]))
        }
        _ => None,
    }
}

/// Two digits, and no sign before a zero.
fn us(time: f64) -> String {
    format!("{:.2}", if time.abs() < 0.005 { 0.0 } else { time })
}

fn rows(
    view: &View,
    subject: Subject,
    table: &document::Table,
    pattern: Pattern,
    side: &str,
) -> Table {
    let mut header = vec!["row".to_owned()];
    for block in document().sizes {
        header.extend([size(block), format!("{}, document", size(block))]);
    }
    let mut shown = Table { title: format!("Random {side}, us"), header, rows: Vec::new() };
    let column = |name: &str, column: usize| {
        table
            .row(name)
            .map_or(NONE.into(), |row| format!("{:.2}", row.side(pattern.reads())[column]))
    };
    for (row, their) in ROWS {
        let mut cells = vec![row.to_owned()];
        for (n, block) in document().sizes.into_iter().enumerate() {
            let point = stages_point(pattern, subject);
            let physical = view.spread_of_some(&point, |f| f.stages(block)?.physical_us(row));
            let alone = view.spread_of_some(&point, |f| match row {
                "clocks" => f.stages(block)?.virtual_clock_us,
                _ => f.stages(block)?.virtual_us(row),
            });
            let bracket = alone.map_or(String::new(), |s| format!(" [{}]", us(s.median)));
            cells.push(physical.map_or(NONE.into(), |s| us(s.median) + &bracket));
            cells.push(their.map_or(NONE.into(), |their| column(their, n)));
        }
        shown.rows.push(cells);
    }
    type Of = fn(&Stages) -> Option<f64>;
    let totals: [(&str, &str, Of, usize); 2] = [
        ("total", "Total", |stages| stages.physical_us("total"), 2),
        ("throughput, MB/s", "Throughput", |stages| Some(stages.mib_per_s * 1.048576), 1),
    ];
    for (name, their, of, digits) in totals {
        let mut cells = vec![name.to_owned()];
        for (n, block) in document().sizes.into_iter().enumerate() {
            let point = stages_point(pattern, subject);
            let ours = view.spread_of_some(&point, |f| of(f.stages(block)?));
            cells.push(ours.map_or(NONE.into(), |s| s.show(digits)));
            cells.push(column(their, n));
        }
        shown.rows.push(cells);
    }
    shown
}

fn totals(view: &View) -> Section {
    let mut section = Section::new(
        "Table III: totals beside NBD",
        &[
            "Total time of a request, one outstanding, in microseconds: Thinwire over the packet link with each of \
             the three pipelines (and one more, which hands requests to a thread that sends them), nbdkit over TCP, the \
             limit (an echo with an empty protocol), and what the document measured of Tyche and NBD. Its two machines had a real network between them; ours is one machine.",
        ],
    );
    let subjects = [
        (SPLIT, "split, work queue"),
        (SINGLE, "single, work queue"),
        (INLINE, "single, inline"),
        (QUEUE, "single, inline, submission queue"),
        (Subject::Nbdkit, "nbdkit"),
        (Subject::echo(Carrier::Packet, false), "echo"),
    ];
    for pattern in PATTERNS {
        let side = if pattern.reads() { "reads" } else { "writes" };
        let header: Vec<String> =
            std::iter::once("us".to_owned()).chain(document().sizes.map(size)).collect();
        let mut table = Table { title: format!("Random {side}"), header, rows: Vec::new() };
        let mut groups: Vec<BarGroup> =
            document().sizes.map(|s| BarGroup { name: size(s), bars: vec![] }).into();
        for (subject, name) in subjects {
            let mut cells = vec![name.to_owned()];
            for (group, block) in groups.iter_mut().zip(document().sizes) {
                let found = view.spread(&point(pattern, block, subject), |f| f.mean_us);
                cells.push(found.map_or(NONE.into(), |s| s.show(1)));
                if let Some(s) = found {
                    let parts = vec![(name.to_owned(), s.median)];
                    group.bars.push(Bar {
                        name: String::new(),
                        parts,
                        spread: Some((s.min, s.max)),
                    });
                }
            }
            table.rows.push(cells);
        }
        for row in &document().table("III").rows {
            let values = row.side(pattern.reads());
            let name = format!("document: {}", row.row);
            let cells = values.iter().map(|value| format!("{value:.1}"));
            table.rows.push(std::iter::once(name.clone()).chain(cells).collect());
            for (group, value) in groups.iter_mut().zip(values) {
                let parts = vec![(name.clone(), *value)];
                group.bars.push(Bar { name: String::new(), parts, spread: None });
            }
        }
        let title = format!("Total of random {side}, one outstanding");
        section
            .drawings
            .push((side.into(), Drawing::Bars(Bars { title, y_name: "us".into(), groups })));
        section.tables.push(table);
    }
    let mut saved = Vec::new();
    for pattern in PATTERNS {
        for (block, size) in document().sizes.into_iter().zip(["4k", "8k", "64k", "128k"]) {
            let side = if pattern.reads() { "reads" } else { "writes" };
            let [after, before] = [INLINE, SPLIT].map(|subject| point(pattern, block, subject));
            let ours = view.ratio(&after, &before, |f| f.mean_us);
            saved.push((format!("{side}.{size}.total"), ours.map(|s| (1.0 - s.median) * 100.0)));
        }
    }
    let cpu = PATTERNS.into_iter().filter_map(|pattern| {
        let [after, before] = [INLINE, SPLIT].map(|subject| point(pattern, 4096, subject));
        view.ratio(&after, &before, Figures::cpu_us).map(|s| (1.0 - s.median) * 100.0)
    });
    saved.push(("cpu.saved".to_owned(), largest(cpu)));
    let saved: Vec<_> = saved.iter().map(|(id, ours)| (&id[..], *ours)).collect();
    section.tables.push(Table::statements(&saved));
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::StageFigures;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn the_row_of_the_clocks_says_what_is_in_each_bracket() {
        let folder = folder("pipelines-clocks");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let stage =
            |row: &str, virtual_us| StageFigures { row: row.into(), physical_us: 0.3, virtual_us };
        let stages = Stages {
            bs: 4096,
            mib_per_s: 50.0,
            virtual_clock_us: Some(0.41),
            rows: vec![stage("Ty-IS", Some(0.6)), stage("network", None), stage("clocks", None)],
        };
        let figures = Figures { breakdown: vec![stages], ..Figures::default() };
        let run = Run { round: 0, visit: 1, seconds: 60.0 };
        store.put(&stages_point(Pattern::RandRead, INLINE), run, Ok(figures)).unwrap();
        let section = section(Experiment::Table6, &View::new(&store, &plan(), Form::Full));
        let cell = |row: &str| {
            let found = section.tables[0].rows.iter().find(|cells| cells[0] == row);
            found.unwrap()[1].clone()
        };
        assert_eq!([cell("Ty-IS"), cell("network")], ["0.30 [0.60]", "0.30"]);
        assert_eq!(cell("clocks"), "0.30 [0.41]");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
