//! EBD and AoE: the same exports in several protocols, beside NBD, vblade and the image where it is; and what the document
//! about EBD states (E. Van Hensbergen, F. Rawson, "Revisiting Link-Layer Storage Networking").

mod ext2;
mod statements;

use super::bars::{Bar, at_least, free};
use super::faces::{HEADER, cells, named};
use super::{NONE, Section, Table};
use crate::figures::Copies;
use crate::offered::{Loss, Medium, Protocol};
use crate::plan::Group;
use crate::point::{ImageStore, Load, Pattern, Point, Subject, Wire};
use crate::view::View;

/// Under these the implemented form is judged.
const DEEP: [Load; 2] =
    [Load::new(Pattern::RandRead, 4096, 32), Load::new(Pattern::RandWrite, 4096, 32)];
/// Under these the idealised form is, whose credit has 8 bits.
const HALF: [Load; 2] =
    [Load::new(Pattern::RandRead, 4096, 16), Load::new(Pattern::RandWrite, 4096, 16)];
/// As many bytes outstanding as in 8 of 128 KiB: no request of EBD is so large, and `bench` cuts none.
const LARGE: [Load; 2] =
    [Load::new(Pattern::Read, 32_768, 32), Load::new(Pattern::Write, 32_768, 32)];
/// Reads of 8, 16, 64 and 112 sectors, as many bytes outstanding each time.
const SECTORS: [Load; 4] = [
    Load::new(Pattern::Read, 4096, 128),
    Load::new(Pattern::Read, 8192, 64),
    Load::new(Pattern::Read, 32_768, 16),
    Load::new(Pattern::Read, 57_344, 9),
];

/// With what is lost of it.
const ONE: Load = Load::new(Pattern::RandRead, 4096, 1);

/// Of a run.
const SECONDS: f64 = 1.0;
/// Of those that bars are about.
const ROUNDS: u32 = 5;
/// Of the others.
const FEW: u32 = 3;

const PROTOCOLS: [Protocol; 5] =
    [Protocol::Native, Protocol::Ebd, Protocol::EbdIdeal, Protocol::Ebd1024, Protocol::Aoe];
/// Of images on a disk.
const ON_DISK: [Protocol; 3] = [Protocol::Native, Protocol::Ebd, Protocol::Aoe];
/// What statements are about first of all.
const EBD: Subject = offered(Protocol::Ebd, Medium::Memory);
/// The image where it is.
const HERE: Subject = Subject::Disk { store: ImageStore::Direct, carrier: None };

const fn offered(protocol: Protocol, medium: Medium) -> Subject {
    Subject::Offered { protocol, medium }
}

fn loads() -> impl Iterator<Item = Load> {
    DEEP.into_iter().chain(HALF).chain(LARGE)
}

/// Who is compared, in the order of the table, each with its rounds.
fn subjects(load: Load) -> Vec<(Subject, u32)> {
    let mut all: Vec<(Subject, u32)> =
        PROTOCOLS.map(|protocol| (offered(protocol, Medium::Memory), ROUNDS)).into();
    all.extend([(Subject::Vblade, ROUNDS), (Subject::Nbdkit, ROUNDS)]);
    if HALF.contains(&load) {
        return all;
    }
    all.extend(ON_DISK.map(|protocol| (offered(protocol, Medium::Image), FEW)));
    all.push((HERE, FEW));
    if load.pattern.reads() {
        for medium in [Medium::Fits, Medium::Exceeds] {
            all.extend([(offered(Protocol::Ebd, medium), FEW), (Subject::NbdkitHeld(medium), FEW)]);
        }
    }
    all
}

pub fn plan() -> Vec<Group> {
    let group = |load: Load| {
        subjects(load).into_iter().fold(Group::new(Wire::FREE, load), |group, (subject, full)| {
            group.with(subject, SECONDS, full, 0)
        })
    };
    let sectors = |load| {
        let ours = offered(Protocol::Ebd, Medium::Memory);
        Group::new(Wire::FREE, load).with(ours, SECONDS, FEW, 0)
    };
    let whole = Group::new(Wire::FREE, ONE).with(EBD, SECONDS, FEW, 0);
    let lossy = Loss::ALL.into_iter().fold(whole, |group, loss| {
        group.with(offered(Protocol::EbdLossy(loss), Medium::Memory), SECONDS, FEW, 0)
    });
    let all = loads().map(group).chain(SECTORS.map(sectors)).chain([lossy]);
    all.chain(ext2::plan()).collect()
}

/// With whose rate a subject's is compared: the peer's, and that of the native protocol, or the image where it is.
fn beside(subject: Subject) -> [Option<Subject>; 2] {
    match subject {
        Subject::Offered { medium: Medium::Memory, .. } | Subject::Vblade => {
            [Some(Subject::Nbdkit), Some(offered(Protocol::Native, Medium::Memory))]
        }
        Subject::Offered { protocol: Protocol::Native, medium: Medium::Image } => {
            [None, Some(HERE)]
        }
        Subject::Offered { medium: Medium::Image, .. } => {
            [None, Some(offered(Protocol::Native, Medium::Image))]
        }
        Subject::Offered { medium, .. } => [Some(Subject::NbdkitHeld(medium)), None],
        _ => [None, None],
    }
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for (protocol, loads) in [(Protocol::Ebd, DEEP), (Protocol::EbdIdeal, HALF)] {
        for load in loads {
            let ours = offered(protocol, Medium::Memory);
            let native = offered(Protocol::Native, Medium::Memory);
            for (other, least, whose) in
                [(Subject::Nbdkit, 1.3, "nbdkit's"), (native, 0.5, "the native protocol's")]
            {
                let text = format!("{}, {}: IOPS over {whose}", protocol.title(), named(load));
                let pair = [free(load, ours), free(load, other)];
                bars.push(at_least(least, |f| f.iops).bar(view, text, pair, &[]));
            }
        }
    }
    for load in [DEEP[0], LARGE[0]] {
        let text = format!("AoE, {}: IOPS over vblade's through the same client", named(load));
        let pair = [offered(Protocol::Aoe, Medium::Memory), Subject::Vblade].map(|s| free(load, s));
        bars.push(at_least(1.5, |f| f.iops).bar(view, text, pair, &[]));
    }
    for load in DEEP.into_iter().chain(LARGE) {
        for protocol in [Protocol::Ebd, Protocol::Aoe] {
            bars.push(copies(view, load, protocol));
        }
    }
}

/// Copies of a byte, to and from an image that is used directly.
fn copies(view: &View, load: Load, protocol: Protocol) -> Bar {
    let point = free(load, offered(protocol, Medium::Image));
    let measured = view.spread_of_some(&point, |f| f.copies.as_ref().map(Copies::all));
    let each = |of: fn(&Copies) -> f64| {
        let spread = view.spread_of_some(&point, |f| f.copies.as_ref().map(of));
        spread.map_or(NONE.into(), |s| format!("{:.2}", s.median))
    };
    Bar {
        text: format!("{}, image, {}: copies of a byte", protocol.title(), named(load)),
        wanted: if load.pattern.reads() { 1.0 } else { 0.0 },
        at_least: false,
        measured,
        figures: format!("client {}, server {}", each(|c| c.client), each(|c| c.server)),
        there: usize::from(measured.is_some()),
        points: 1,
    }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "EBD and AoE",
        &[
            "The same exports in several protocols: each subject is a target with an export of its own, used by thinwire \
             bench through our client of that protocol, all over packet links and the same kind of switch, MTU 9000. EBD's \
             blocks are 8192 bytes, or 1024, whose frames are those of a link with MTU 1500. vblade serves an image in \
             memory, with 32 buffers instead of its 16, to the same client of AoE; nbdkit (memory plugin) is driven by \
             fio's nbd engine over TCP. Images lie on a disk and are used directly; over AoE they are offered as cached, as \
             all others are. Control groups hold a server's memory for images that fit, and for such of 1.5 times \
             that. The file system of the fourth table is on an attachment's block device, on nbdfuse and a loop device, or on a \
             loop device over an image: its sizes are half of those of the document's section 5.1.",
            "CPU is that of the client and of the server; the column \"machine\" is what all processors did together. \
             Medians, in parentheses the quartiles; ratios are taken within a round, to nbdkit (of the same memory) and \
             to the native protocol (of that, to the image where it is).",
        ],
    );
    let mut table = Table::new("Side by side", &HEADER);
    table.header.extend(["over nbdkit".to_owned(), "over native".to_owned()]);
    for load in loads() {
        for (subject, _) in subjects(load) {
            let point = free(load, subject);
            let mut row = cells(view, &point);
            row.extend(beside(subject).map(|other| {
                let ratio = other.and_then(|o| view.ratio(&point, &free(load, o), |f| f.iops));
                ratio.map_or(NONE.into(), |s| s.quartiles(2))
            }));
            table.rows.push(row);
        }
    }
    section.tables.extend([table, copies_table(view), octets_table(view)]);
    section.tables.extend([ext2::table(view), statements::table(view)]);
    let mut own = Vec::new();
    bars(view, &mut own);
    section.tables.push(super::bars::table("What EBD and AoE must show", own));
    section
}

fn is_offered(subject: &Subject) -> bool {
    matches!(subject, Subject::Offered { medium: Medium::Memory | Medium::Image, .. })
}

/// What both sides say that they copied.
fn copies_table(view: &View) -> Table {
    let header = ["load", "subject", "client", "server", "both"];
    let mut table = Table::new("Copies of a byte in user space, as both sides count them", &header);
    for load in DEEP.into_iter().chain(LARGE) {
        for subject in subjects(load).into_iter().map(|(s, _)| s).filter(is_offered) {
            let point = free(load, subject);
            let show = |of: fn(&Copies) -> f64| {
                let spread = view.spread_of_some(&point, |f| f.copies.as_ref().map(of));
                spread.map_or(NONE.into(), |s| s.quartiles(3))
            };
            let counts = [show(|c| c.client), show(|c| c.server), show(Copies::all)];
            table.rows.push([vec![named(load), subject.title()], counts.into()].concat());
        }
    }
    table
}

/// Octets of an I/O besides its payload.
fn octets_beside(view: &View, point: &Point) -> Option<f64> {
    let block = f64::from(point.load.block);
    let beside = view.spread_of_some(point, |f| f.traffic.as_ref().map(|t| t.octets - block));
    beside.map(|s| s.median)
}

fn frames(view: &View, point: &Point) -> Option<f64> {
    view.spread_of_some(point, |f| f.traffic.as_ref().map(|t| t.frames)).map(|s| s.median)
}

/// What an I/O takes on the wire.
fn octets_table(view: &View) -> Table {
    let header =
        ["load", "subject", "frames an I/O", "octets beside payload, an I/O", "% of the payload"];
    let title =
        "On the client's link, both ways, as the link counts: TCP's trains are one frame each";
    let mut table = Table::new(title, &header);
    for load in DEEP.into_iter().chain(LARGE) {
        let is_shown = |subject: &Subject| {
            is_offered(subject)
                && !matches!(subject, Subject::Offered { medium: Medium::Image, .. })
                || matches!(subject, Subject::Vblade | Subject::Nbdkit)
        };
        for subject in subjects(load).into_iter().map(|(s, _)| s).filter(is_shown) {
            let point = free(load, subject);
            let (frames, octets) = (frames(view, &point), octets_beside(view, &point));
            let show = |value: Option<f64>, digits: usize| {
                value.map_or(NONE.into(), |v| format!("{v:.digits$}"))
            };
            let share = octets.map(|octets| octets / f64::from(load.block) * 100.0);
            table.rows.push(vec![
                named(load),
                subject.title(),
                show(frames, 2),
                show(octets, 0),
                show(share, 2),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn who_is_compared_is_in_the_same_rounds() {
        for load in loads() {
            let all: Vec<Subject> = subjects(load).into_iter().map(|(s, _)| s).collect();
            for subject in &all {
                for other in beside(*subject).into_iter().flatten() {
                    assert!(all.contains(&other), "{subject} and {other} under {load}");
                }
            }
        }
        let bytes = |load: &Load| f64::from(load.block * load.depth);
        assert!(SECTORS.iter().all(|load| (bytes(load) / bytes(&SECTORS[0]) - 1.0).abs() < 0.02));
    }

    #[test]
    fn copies_have_bars_of_their_own() {
        let folder = folder("ebd-copies");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for (load, client, server) in [(DEEP[0], 0.0, 1.0), (DEEP[1], 0.0, 0.25)] {
            let figures = Figures { copies: Some(Copies { client, server }), ..Figures::default() };
            let run = Run { round: 0, visit: 1, seconds: SECONDS };
            let point = free(load, offered(Protocol::Ebd, Medium::Image));
            store.put(&point, run, Ok(figures)).unwrap();
        }
        let view = View::new(&store, &plan(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        let verdict = |load| {
            let text = format!("EBD, implemented, image, {}: copies", named(load));
            all.iter().find(|bar| bar.text.starts_with(&text)).unwrap().verdict()
        };
        assert_eq!([DEEP[0], DEEP[1], LARGE[0]].map(verdict), ["met", "missed", "not measured"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
