//! What users see: volumes through the faces of `thinwire attach`, beside those who offer a disk over the
//! network, too, and beside `thinwire bench`, which has no face.

use super::bars::{Bar, at_least, at_most, count, free};
use super::{NONE, Section, Table, of_echo, size};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, FaceKind, Load, Pattern, Point, Subject, Wire};
use crate::stats::Spread;
use crate::view::View;

const CARRIERS: [Carrier; 2] = [Carrier::Packet, Carrier::Udp];
const ONE: [Load; 2] =
    [Load::new(Pattern::RandRead, 4096, 1), Load::new(Pattern::RandWrite, 4096, 1)];
const SMALL: [Load; 2] =
    [Load::new(Pattern::RandRead, 4096, 32), Load::new(Pattern::RandWrite, 4096, 32)];
const LARGE: [Load; 2] =
    [Load::new(Pattern::Read, 131_072, 8), Load::new(Pattern::Write, 131_072, 8)];
/// Without a face, beside the echo.
const MANY: [Load; 2] =
    [Load::new(Pattern::RandRead, 4096, 128), Load::new(Pattern::RandWrite, 4096, 128)];
/// Four connections.
const FOUR: Load = SMALL[0].jobs(4);

/// Of a run.
const SECONDS: f64 = 1.0;
/// In the full form.
const ROUNDS: u32 = 7;

const fn face(face: FaceKind, carrier: Carrier) -> Subject {
    Subject::Face { face, carrier }
}

fn loads() -> impl Iterator<Item = Load> {
    ONE.into_iter().chain(SMALL).chain(LARGE)
}

/// Who is compared, in the order of the table.
fn subjects(load: Load) -> Vec<Subject> {
    let mut all = Vec::new();
    for carrier in CARRIERS {
        all.push(Subject::echo(carrier, false));
        all.push(Subject::thinwire(carrier));
        all.extend(
            [FaceKind::Nbd, FaceKind::Block, FaceKind::File].map(|door| face(door, carrier)),
        );
    }
    all.extend([Subject::Nbdkit, Subject::QemuNbd]);
    // iscsi-perf only reads.
    if load.pattern.reads() {
        all.push(Subject::Tgt);
    }
    all.extend([Subject::FaceAlone, Subject::NbdkitAlone]);
    all
}

/// Whether the quick form measures it: reads with many outstanding; of large ones, of which each subject
/// would be set up for one run, those of the faces that bars are about most.
fn is_quick(load: Load, subject: Subject) -> bool {
    let small = load == SMALL[0];
    match subject {
        Subject::Face { face: FaceKind::Nbd, .. } => small || load == LARGE[0],
        Subject::Face { face: FaceKind::Block, carrier: Carrier::Packet } => {
            small || load == LARGE[0]
        }
        Subject::Face { carrier: Carrier::Udp, .. } => false,
        Subject::Thinwire { .. } | Subject::Echo { .. } | Subject::Nbdkit => {
            small || load == LARGE[0]
        }
        _ => small,
    }
}

pub fn plan() -> Vec<Group> {
    let mut groups: Vec<Group> = loads()
        .map(|load| {
            subjects(load).into_iter().fold(Group::new(Wire::FREE, load), |group, subject| {
                let quick = u32::from(is_quick(load, subject));
                group.with(subject, SECONDS, ROUNDS, quick)
            })
        })
        .collect();
    let four =
        [face(FaceKind::Nbd, Carrier::Packet), face(FaceKind::Nbd, Carrier::Udp), Subject::Nbdkit];
    let group = Group::new(Wire::FREE, FOUR);
    groups.push(four.into_iter().fold(group, |g, s| g.with(s, SECONDS, ROUNDS, 0)));
    let without = CARRIERS
        .into_iter()
        .flat_map(|carrier| [Subject::thinwire(carrier), Subject::echo(carrier, false)]);
    groups.extend(MANY.map(|load| {
        let group = Group::new(Wire::FREE, load);
        without.clone().fold(group, |g, s| g.with(s, SECONDS, ROUNDS, 0))
    }));
    groups
}

/// With whom a subject is compared: who is without a network with who is, too.
fn peer(subject: Subject) -> Subject {
    match subject {
        Subject::FaceAlone | Subject::NbdkitAlone => Subject::NbdkitAlone,
        _ => Subject::Nbdkit,
    }
}

/// A ratio of two figures of the same rounds that may be different ones.
fn ratio(
    view: &View,
    [a, b]: [&Point; 2],
    [of_a, of_b]: [fn(&Figures) -> f64; 2],
) -> Option<Spread> {
    view.together([a, b], |[a, b]| of_a(a) / of_b(b))
}

fn cpu_of_face(figures: &Figures) -> f64 {
    figures.cpu_face_us.unwrap_or(f64::NAN)
}

fn p99_over_p50(figures: &Figures) -> f64 {
    match (figures.p99_us, figures.p50_us) {
        (Some(p99), Some(p50)) => p99 / p50,
        _ => f64::NAN,
    }
}

/// `4 KiB randread, 32 outstanding`.
pub fn named(load: Load) -> String {
    let (block, word) = (size(load.block), load.pattern.word());
    match load.jobs {
        1 => format!("{block} {word}, {} outstanding", load.depth),
        jobs => format!("{block} {word}, {jobs} connections, {} outstanding on each", load.depth),
    }
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    beside_nbdkit(view, bars);
    beside_native(view, bars);
    block_and_file(view, bars);
    beside_the_echo(view, bars);
}

fn beside_nbdkit(view: &View, bars: &mut Vec<Bar>) {
    for carrier in CARRIERS {
        let word = carrier.word();
        let mut push = |load: Load, wanted: super::bars::Wanted, what: &str| {
            let pair = [free(load, face(FaceKind::Nbd, carrier)), free(load, Subject::Nbdkit)];
            let text = format!("NBD face, {}, {word}: {what} over nbdkit's", named(load));
            bars.push(wanted.bar(view, text, pair, &[]));
        };
        let large = if carrier == Carrier::Udp { 1.3 } else { 1.0 };
        LARGE.into_iter().for_each(|l| push(l, at_least(large, |f| f.mib_per_s), "MiB/s"));
        SMALL.into_iter().for_each(|l| push(l, at_least(1.2, |f| f.iops), "IOPS"));
        push(FOUR, at_least(1.3, |f| f.iops), "IOPS");
        ONE.into_iter().for_each(|l| push(l, at_most(0.7, |f| f.mean_us), "mean latency"));
    }
    for (loads, least) in [(LARGE, 1.3), (SMALL, 1.5)] {
        for load in loads {
            let pair = [free(load, Subject::FaceAlone), free(load, Subject::NbdkitAlone)];
            let text = format!("NBD face alone, {}: IOPS over nbdkit's", named(load));
            bars.push(at_least(least, |f| f.iops).bar(view, text, pair, &[]));
        }
    }
}

/// What the attachment's process costs beside that of `bench`.
fn beside_native(view: &View, bars: &mut Vec<Bar>) {
    for carrier in CARRIERS {
        for (loads, most) in [(SMALL, 2.0), (LARGE, 1.5)] {
            for load in loads {
                let ours = free(load, face(FaceKind::Nbd, carrier));
                let native = free(load, Subject::thinwire(carrier));
                let word = carrier.word();
                let median = |point: &Point, of: fn(&Figures) -> f64| {
                    view.spread(point, of).map_or(NONE.into(), |s| format!("{:.1}", s.median))
                };
                let [there, points] = count(view, [ours, native]);
                bars.push(Bar {
                    text: format!(
                        "NBD face, {}, {word}: CPU of its process an I/O, over that of bench",
                        named(load)
                    ),
                    wanted: most,
                    at_least: false,
                    measured: ratio(view, [&ours, &native], [cpu_of_face, |f| f.cpu_client_us]),
                    figures: format!(
                        "{} to {} us",
                        median(&ours, cpu_of_face),
                        median(&native, |f| f.cpu_client_us)
                    ),
                    there,
                    points,
                });
            }
        }
    }
}

fn block_and_file(view: &View, bars: &mut Vec<Bar>) {
    let block = |load| free(load, face(FaceKind::Block, Carrier::Packet));
    let mut absolute = |load: Load, wanted: f64, at_least: bool, of: fn(&Figures) -> f64| {
        let what = if at_least { "IOPS" } else { "mean latency, us" };
        let [there, points] = count(view, [block(load)]);
        bars.push(Bar {
            text: format!("--block, {}, packet: {what}", named(load)),
            wanted,
            at_least,
            measured: view.spread(&block(load), of),
            figures: NONE.into(),
            there,
            points,
        });
    };
    absolute(ONE[0], 45.0, false, |f| f.mean_us);
    absolute(SMALL[0], 110_000.0, true, |f| f.iops);
    absolute(SMALL[1], 80_000.0, true, |f| f.iops);
    for load in LARGE {
        let pair = [block(load), free(load, face(FaceKind::Nbd, Carrier::Packet))];
        let text = format!("--block, {}, packet: MiB/s over the NBD face's", named(load));
        bars.push(at_least(0.6, |f| f.mib_per_s).bar(view, text, pair, &[]));
    }
    for load in SMALL.into_iter().chain(LARGE) {
        let pair = [free(load, face(FaceKind::File, Carrier::Packet)), block(load)];
        let text = format!("--file, {}, packet: IOPS over those of --block", named(load));
        bars.push(at_least(1.0, |f| f.iops).bar(view, text, pair, &[]));
    }
}

/// Without a face, beside the fastest that the link carries.
fn beside_the_echo(view: &View, bars: &mut Vec<Bar>) {
    for carrier in CARRIERS {
        for load in SMALL.into_iter().chain(MANY) {
            let (ours, echo) =
                (free(load, Subject::thinwire(carrier)), free(load, Subject::echo(carrier, false)));
            let least = if load.pattern.reads() { 0.95 } else { 0.9 };
            let text = format!("bench, {}, {}", named(load), carrier.word());
            let over = format!("{text}: IOPS over the echo's, no face");
            bars.push(at_least(least, |f| f.iops).bar(view, over, [ours, echo], &[]));
            let [there, points] = count(view, [ours]);
            bars.push(Bar {
                text: format!("{text}: p99 over the median, no face"),
                wanted: 2.5,
                at_least: false,
                measured: view.spread(&ours, p99_over_p50),
                figures: NONE.into(),
                there,
                points,
            });
        }
    }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Faces",
        &[
            "What a program sees that uses a volume: fio on the initiator's machine, by its nbd engine on the socket of \
             `attach --nbd`, by direct asynchronous I/O on what `attach --block` and `attach --file` make. Beside them \
             bench, which needs no face, the bare echo of the link, and nbdkit, qemu-nbd and tgt over TCP through the \
             same kind of switch; all of them hold the same random bytes in memory. The NBD face alone is an \
             attachment of its own process's memory, beside nbdkit on a unix socket: no network. CPU is that of \
             the client (fio, or bench), of the attachment's process, and of the server; what the kernel's threads do \
             for a loop device is in the column \"machine\" only. Medians, in parentheses the quartiles; ratios are \
             taken within a round.",
        ],
    );
    let mut table = Table::new("Through each face", &HEADER);
    table.header.extend(["over nbdkit".to_owned(), "of its echo, %".to_owned()]);
    for load in loads() {
        for subject in subjects(load) {
            let point = free(load, subject);
            let over = view.ratio(&point, &free(load, peer(subject)), |f| f.iops);
            let mut row = cells(view, &point);
            row.push(over.map_or(NONE.into(), |s| s.quartiles(2)));
            row.push(of_echo(view, &point));
            table.rows.push(row);
        }
    }
    section.tables.push(table);
    let mut own = Vec::new();
    bars(view, &mut own);
    section.tables.push(super::bars::table("What the faces must show", own));
    section
}

/// Heads of [`cells`].
pub const HEADER: [&str; 8] = [
    "load",
    "subject",
    "IOPS",
    "MiB/s",
    "mean, us",
    "p99, us",
    "CPU, us an I/O: client + face + server",
    "machine, us an I/O",
];

/// A point's row.
pub fn cells(view: &View, point: &Point) -> Vec<String> {
    let show = |of: fn(&Figures) -> f64, digits| {
        view.spread(point, of).map_or(NONE.into(), |s| s.quartiles(digits))
    };
    let median = |of: fn(&Figures) -> f64| view.spread(point, of).map(|s| s.median);
    let cpu = match (median(|f| f.cpu_client_us), median(|f| f.cpu_server_us)) {
        (Some(cpu_client_us), Some(cpu_server_us)) => {
            let cpu_face_us = median(cpu_of_face);
            Figures { cpu_client_us, cpu_face_us, cpu_server_us, ..Figures::default() }.cpu_shown()
        }
        _ => NONE.into(),
    };
    vec![
        named(point.load),
        point.subject.title(),
        show(|f| f.iops, 0),
        show(|f| f.mib_per_s, 0),
        show(|f| f.mean_us, 1),
        view.spread_of_some(point, |f| f.p99_us).map_or(NONE.into(), |s| s.quartiles(1)),
        cpu,
        show(|f| f.cpu_machine_us, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::plan_of_all;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn the_process_of_a_face_is_compared_with_bench() {
        let folder = folder("faces-cpu");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let mut put = |point: Point, round: u32, figures| {
            let run = Run { round, visit: u64::from(round) + 1, seconds: 60.0 };
            store.put(&point, run, Ok(figures)).unwrap();
        };
        for round in 0..3 {
            // A busy round is dear for both.
            let times = f64::from(round + 1);
            let client = Figures { cpu_client_us: 4.0 * times, ..Figures::default() };
            put(free(SMALL[0], Subject::thinwire(Carrier::Packet)), round, client);
            let attached = Figures {
                cpu_client_us: 100.0,
                cpu_face_us: Some(10.0 * times),
                cpu_server_us: 7.0,
                iops: 50.0,
                ..Figures::default()
            };
            put(free(SMALL[0], face(FaceKind::Nbd, Carrier::Packet)), round, attached);
        }
        let view = View::new(&store, &plan_of_all(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        let bar = |text: &str| all.iter().find(|bar| bar.text.starts_with(text)).unwrap();
        let cpu = bar("NBD face, 4 KiB randread, 32 outstanding, packet: CPU");
        let spread = cpu.measured.unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (2.5, 2.5, 2.5));
        assert_eq!(cpu.verdict(), "missed", "twice that of bench is the most");
        // Nobody to be compared with: no verdict, rather than a ratio of nothing.
        let rate = bar("NBD face, 4 KiB randread, 32 outstanding, packet: IOPS");
        assert_eq!(rate.verdict(), "not measured");
        let row = cells(&view, &free(SMALL[0], face(FaceKind::Nbd, Carrier::Packet)));
        assert_eq!(row[6], "100.0 + 20.0 + 7.0");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn all_bars_are_of_points_in_the_plan() {
        let folder = folder("faces-plan");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let figures = Figures {
            cpu_client_us: 1.0,
            cpu_face_us: Some(1.0),
            p50_us: Some(1.0),
            p99_us: Some(2.0),
            iops: 1.0,
            mib_per_s: 1.0,
            mean_us: 1.0,
            ..Figures::default()
        };
        for (point, _) in plan().iter().flat_map(Group::points) {
            let run = Run { round: 0, visit: 1, seconds: 60.0 };
            store.put(&point, run, Ok(figures.clone())).unwrap();
        }
        let mut all = Vec::new();
        bars(&View::new(&store, &plan(), Form::Full), &mut all);
        for bar in &all {
            assert!(bar.met().is_some(), "{} cannot be measured by itself", bar.text);
        }
        let rates = all.iter().filter(|bar| bar.wanted > 1000.0);
        assert!(all.len() > 40 && rates.count() == 2);
        let bar = Bar { measured: Spread::of([39_367.63]), ..all[0].clone() };
        assert_eq!((bar.shown(), all[0].shown()), ("39368".into(), "1.000".into()));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_is_compared_with_a_peer_on_the_same_way() {
        assert_eq!(peer(Subject::FaceAlone), Subject::NbdkitAlone);
        assert_eq!(peer(face(FaceKind::Block, Carrier::Udp)), Subject::Nbdkit);
        for group in plan() {
            let has_faces = !MANY.contains(&group.load);
            for entry in group.entries.iter().filter(|_| has_faces) {
                let there = group.entries.iter().any(|e| e.subject == peer(entry.subject));
                assert!(there, "{} has no peer under {}", entry.subject, group.load);
                assert_eq!(entry.full, ROUNDS);
            }
        }
        let quick = |load, subject| is_quick(load, subject);
        assert!(quick(LARGE[0], face(FaceKind::Nbd, Carrier::Udp)));
        assert!(quick(SMALL[0], Subject::FaceAlone) && !quick(LARGE[0], Subject::FaceAlone));
        assert!(
            !quick(SMALL[0], face(FaceKind::File, Carrier::Udp)) && !quick(ONE[0], Subject::Nbdkit)
        );
    }
}
