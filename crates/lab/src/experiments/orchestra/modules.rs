//! What each kind of volume costs, beside the bare export.

use super::bars_table;
use crate::composed::{ComposedSubject, Made};
use crate::experiments::bars::{Bar, at_least, at_most, count, free};
use crate::experiments::faces::{HEADER, cells, named};
use crate::experiments::{NONE, Section, Table};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Load, Pattern, Subject, Wire};
use crate::view::View;

const LOADS: [Load; 2] =
    [Load::new(Pattern::RandRead, 4096, 32), Load::new(Pattern::RandWrite, 4096, 32)];

/// In the order of the table. `Memory` and `File` are bare.
const MADE: [Made; 11] = [
    Made::Memory,
    Made::Linear,
    Made::Slice,
    Made::Stripe,
    Made::Qos,
    Made::Cache,
    Made::File,
    Made::Mirror,
    Made::Thin,
    Made::Integrity,
    Made::Crypt,
];

/// Of a run.
const SECONDS: f64 = 1.0;
/// In the full form.
const ROUNDS: u32 = 9;
/// In the quick form.
const QUICK_ROUNDS: u32 = 3;
/// Of those that no bar is about.
const LOCAL_ROUNDS: u32 = 3;

const fn exported(made: Made) -> Subject {
    Subject::Composed(ComposedSubject::Export(made))
}

const fn here(made: Made) -> Subject {
    Subject::Composed(ComposedSubject::Here(made))
}

/// All of them are over files where they are local.
fn local() -> impl Iterator<Item = Made> {
    MADE.into_iter().filter(|made| *made != Made::Memory)
}

pub fn plan() -> Vec<Group> {
    let group = |load: Load| {
        let group = MADE.into_iter().fold(Group::new(Wire::FREE, load), |group, made| {
            group.with(exported(made), SECONDS, ROUNDS, QUICK_ROUNDS)
        });
        local().fold(group, |group, made| group.with(here(made), SECONDS, LOCAL_ROUNDS, 1))
    };
    LOADS.map(group).into()
}

/// The least part of the bare export's rate that is wanted.
fn least(made: Made, load: Load) -> Option<f64> {
    Some(match made {
        Made::Linear | Made::Slice | Made::Stripe | Made::Qos => 0.97,
        Made::Mirror if load.pattern.reads() => 0.95,
        Made::Mirror => 0.45,
        Made::Thin => 0.9,
        Made::Integrity => 0.6,
        _ => return None,
    })
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for made in MADE {
        for load in LOADS {
            let pair = [exported(made), exported(made.bare())].map(|subject| free(load, subject));
            let text = format!("{}, {}: ", made.word(), named(load));
            if let Some(least) = least(made, load) {
                let text = text + "IOPS over the bare export's";
                bars.push(at_least(least, |f| f.iops).bar(view, text, pair, &[]));
            } else if made == Made::Crypt {
                bars.push(encrypted(view, text, load));
            } else if made == Made::Cache && load.pattern.reads() {
                let text = text + "time of a hit, 1 / IOPS, over that of a remote one";
                bars.push(at_most(0.2, |f| 1e6 / f.iops).bar(view, text, pair, &[]));
            }
        }
    }
}

/// What encryption adds to the server's CPU, as a rate of a core that does nothing else.
fn encrypted(view: &View, text: String, load: Load) -> Bar {
    let pair = [exported(Made::Crypt), exported(Made::File)].map(|subject| free(load, subject));
    let [there, points] = count(view, pair);
    let block = f64::from(load.block);
    let of = |point| view.spread(point, |f| f.cpu_server_us).map(|s| format!("{:.2}", s.median));
    let [crypt, bare] = [&pair[0], &pair[1]].map(|point| of(point).unwrap_or(NONE.into()));
    Bar {
        text: text
            + "GiB a second of a core, by what the server's CPU takes beyond the bare export's",
        wanted: 1.5,
        at_least: true,
        measured: view
            .together([&pair[0], &pair[1]], |[crypt, bare]| gib_a_core(block, crypt, bare)),
        figures: format!("{crypt} less {bare} us an I/O"),
        there,
        points,
    }
}

/// No number where nothing was added.
fn gib_a_core(block: f64, crypt: &Figures, bare: &Figures) -> f64 {
    let added_us = crypt.cpu_server_us - bare.cpu_server_us;
    if added_us > 0.0 { block / (added_us * 1e-6) / f64::from(1 << 30) } else { f64::NAN }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "What volumes cost that are made of others",
        &[
            "4 KiB random I/Os, 32 outstanding, thinwire bench through a switch, MTU 9000, of one export each over packet. What keeps \
             nothing on its parts is over memory of the target, and compared with a bare export of that; what has labels is over \
             files in memory, which outlive the process that makes them, and compared with a bare export of one. All of a volume \
             is written before. The cache is at the initiator, and what is asked of it fits: its reads are hits.",
            "The local ones are thinwire bench of the same volume over files, without a target: no bar is about them. A public \
             abstract (Violin: A Framework for Extensible Block-level Storage, MSST 2005), which is not this document, states \
             \"within 10 % of the corresponding monolithic Linux drivers\" of layers in a kernel.",
            "Medians, in parentheses the quartiles; ratios are taken within a round. CPU is that of both sides.",
        ],
    );
    let mut table = Table::new("Side by side", &HEADER);
    table.header.push("over the bare one".into());
    let mut push = |load: Load, subject: Subject, bare: Subject| {
        let (point, bare) = (free(load, subject), free(load, bare));
        let mut row = cells(view, &point);
        let ratio = view.ratio(&point, &bare, |f| f.iops).filter(|_| point != bare);
        row.push(ratio.map_or(NONE.into(), |s| s.quartiles(2)));
        table.rows.push(row);
    };
    for load in LOADS {
        MADE.into_iter().for_each(|made| push(load, exported(made), exported(made.bare())));
        local().for_each(|made| push(load, here(made), here(Made::File)));
    }
    section.tables.push(table);
    section.tables.push(bars_table("What they may cost", |own| bars(view, own)));
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    fn put(store: &mut SampleStore, load: Load, subject: Subject, iops: f64, server_us: f64) {
        let figures = Figures { iops, cpu_server_us: server_us, ..Figures::default() };
        let run = Run { round: 0, visit: 1, seconds: SECONDS };
        store.put(&free(load, subject), run, Ok(figures)).unwrap();
    }

    #[test]
    fn each_kind_is_judged_by_its_own_bar() {
        let folder = folder("orchestra-modules");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for load in LOADS {
            for (made, iops, server_us) in [
                (Made::Memory, 100_000.0, 3.0),
                (Made::File, 50_000.0, 4.0),
                (Made::Linear, 97_000.0, 3.1),
                (Made::Qos, 96_900.0, 3.1),
                (Made::Mirror, 45_000.0, 9.0),
                (Made::Thin, 45_000.0, 5.0),
                (Made::Integrity, 29_900.0, 7.0),
                // 4096 bytes in 2 us: 1.9 GiB a second; half of that when it writes.
                (Made::Crypt, 30_000.0, if load.pattern.reads() { 6.0 } else { 8.0 }),
                (Made::Cache, 600_000.0, 0.0),
            ] {
                put(&mut store, load, exported(made), iops, server_us);
            }
        }
        let view = View::new(&store, &plan(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        let verdict = |made: &str, load: Load| {
            let text = format!("{made}, {}: ", named(load));
            all.iter().find(|bar| bar.text.starts_with(&text)).map(Bar::verdict)
        };
        let [reads, writes] = LOADS;
        for (made, of_reads, of_writes) in [
            ("linear", "met", "met"),
            ("qos", "missed", "missed"),
            ("slice", "not measured", "not measured"),
            ("mirror", "missed", "met"),
            ("thin", "met", "met"),
            ("integrity", "missed", "missed"),
            ("crypt", "met", "missed"),
        ] {
            let found = [reads, writes].map(|load| verdict(made, load).unwrap());
            assert_eq!(found, [of_reads, of_writes], "{made}");
        }
        assert_eq!(verdict("cache", reads).unwrap(), "met");
        assert_eq!((verdict("cache", writes), verdict("memory", reads)), (None, None));
        assert_eq!(all.len(), 17);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn who_is_compared_is_in_the_same_rounds() {
        for group in plan() {
            let rounds = |subject| {
                group.entries.iter().find(|e| e.subject == subject).map(|e| (e.full, e.quick))
            };
            for made in MADE {
                assert_eq!(rounds(exported(made)), rounds(exported(made.bare())), "{made:?}");
            }
            assert!(local().all(|made| rounds(here(made)) == rounds(here(Made::File))));
        }
        let figures = |cpu_server_us| Figures { cpu_server_us, ..Figures::default() };
        assert!(gib_a_core(4096.0, &figures(3.0), &figures(3.0)).is_nan());
    }
}
