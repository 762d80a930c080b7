//! What keys cost: the same loads without a key, encrypted, and only authenticated, beside NBD servers with TLS.

use super::bars::{Bar, at_least, count, free};
use super::faces::{HEADER, cells, named};
use super::{NONE, Section, Table};
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, NbdServer, Pattern, Protection, Settings, Subject, Wire};
use crate::view::View;

const CARRIERS: [Carrier; 2] = [Carrier::Packet, Carrier::Udp];
const MANY: Load = Load::new(Pattern::RandRead, 4096, 128);
const SMALL: Load = Load::new(Pattern::RandRead, 4096, 32);
/// For servers that have a thread for each connection.
const FOUR: Load = SMALL.jobs(4);
const LARGE: [Load; 2] =
    [Load::new(Pattern::Read, 131_072, 8), Load::new(Pattern::Write, 131_072, 8)];

/// Of a run.
const SECONDS: f64 = 1.5;
/// In the full form.
const ROUNDS: u32 = 5;

/// `None`: without a key.
const PROTECTIONS: [Option<Protection>; 3] =
    [None, Some(Protection::Encrypted), Some(Protection::Authenticated)];
const SERVERS: [NbdServer; 2] = [NbdServer::Nbdkit, NbdServer::QemuNbd];

const fn ours(carrier: Carrier, protection: Option<Protection>) -> Subject {
    Subject::with(carrier, Settings { protection, ..Settings::DEFAULT })
}

const fn encrypted(carrier: Carrier) -> Subject {
    ours(carrier, Some(Protection::Encrypted))
}

const fn with_tls(server: NbdServer) -> Subject {
    Subject::Copied { server, tls: true }
}

/// Who is compared, in the order of the table.
fn subjects(load: Load) -> Vec<Subject> {
    let own = CARRIERS.into_iter().flat_map(|c| PROTECTIONS.map(|protection| ours(c, protection)));
    if load.handshakes {
        return own.collect();
    }
    let peers =
        SERVERS.into_iter().flat_map(|s| [Subject::Copied { server: s, tls: false }, with_tls(s)]);
    own.chain(peers).collect()
}

fn loads() -> impl Iterator<Item = Load> {
    [MANY, SMALL, FOUR].into_iter().chain(LARGE).chain([Load::HANDSHAKES])
}

/// Whether the quick form measures it.
fn is_quick(load: Load, subject: Subject) -> bool {
    load == MANY && (PROTECTIONS.into_iter().any(|p| subject == ours(Carrier::Packet, p)))
}

pub fn plan() -> Vec<Group> {
    let group = |load| {
        subjects(load).into_iter().fold(Group::new(Wire::FREE, load), |group, subject| {
            let quick = u32::from(is_quick(load, subject));
            group.with(subject, SECONDS, ROUNDS, quick)
        })
    };
    loads().map(group).collect()
}

pub fn bars(view: &View, bars: &mut Vec<Bar>) {
    for carrier in CARRIERS {
        let word = carrier.word();
        let keeps = if carrier == Carrier::Udp { 0.5 } else { 0.6 };
        for (protection, least) in
            [(Protection::Encrypted, keeps), (Protection::Authenticated, 0.75)]
        {
            let pair = [ours(carrier, Some(protection)), ours(carrier, None)];
            let text = format!(
                "{}, {word}: {} IOPS over those without a key",
                named(MANY),
                protection.word()
            );
            let wanted = at_least(least, |f| f.iops);
            bars.push(wanted.bar(view, text, pair.map(|subject| free(MANY, subject)), &[]));
        }
    }
    let mut absolute =
        |load: Load, carrier: Carrier, what: &str, wanted, at_least, of: fn(&Figures) -> f64| {
            let point = free(load, encrypted(carrier));
            let [there, points] = count(view, [point]);
            let (measured, figures) = (view.spread(&point, of), NONE.into());
            let text = format!("{what}, {}", carrier.word());
            bars.push(Bar { text, wanted, at_least, measured, figures, there, points });
        };
    for carrier in CARRIERS {
        for load in LARGE {
            let what = format!("encrypted {}, MiB/s", named(load));
            absolute(load, carrier, &what, 1.2 * 1024.0, true, |f| f.mib_per_s);
        }
        absolute(Load::HANDSHAKES, carrier, "handshake, us", 2000.0, false, |f| f.mean_us);
    }
    for carrier in CARRIERS {
        for (load, server) in [MANY, FOUR].into_iter().flat_map(|load| SERVERS.map(|s| (load, s))) {
            let pair = [free(load, encrypted(carrier)), free(load, with_tls(server))];
            let text = format!(
                "encrypted {}, {}: IOPS over those of {} with TLS",
                named(load),
                carrier.word(),
                server.word()
            );
            bars.push(at_least(2.5, |f| f.iops).bar(view, text, pair, &[]));
        }
    }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "Keys",
        &[
            "The same loads without a key (`--insecure`), encrypted (`--key`, the default), and authenticated only \
             (`--authenticate-only`). Beside them nbdkit and qemu-nbd over TCP with and without TLS, with a key that \
             both sides have (TLS-PSK); fio's engine cannot be told of one, so these are driven by nbdcopy, a client \
             that their users have: it copies the whole volume to nowhere, or random bytes onto it, in order, in \
             requests of that size, so many of them outstanding on each connection, and tells no latency of its own. \
             All of them hold the same random bytes in memory, so that order makes no difference to a server. CPU is \
             that of the processes of both sides. Medians, in parentheses the quartiles; ratios are taken within a \
             round.",
            "A handshake lasts from the first greeting, sent to the target's address, to the first frame of the session \
             that it opens, by the times in a capture at the initiator: a cookie is asked for and given back, and with \
             keys both sides make theirs.",
        ],
    );
    let mut table = Table::new("With and without", &HEADER);
    table.header.extend(["over no key".to_owned(), "over nbdkit with TLS".to_owned()]);
    for load in loads().filter(|load| !load.handshakes) {
        for subject in subjects(load) {
            let point = free(load, subject);
            let bare = match subject {
                Subject::Thinwire { carrier, .. } => ours(carrier, None),
                Subject::Copied { server, .. } => Subject::Copied { server, tls: false },
                other => other,
            };
            let over = |other| {
                let ratio = view.ratio(&point, &free(load, other), |f| f.iops);
                ratio.map_or(NONE.into(), |spread| spread.quartiles(2))
            };
            let mut row = cells(view, &point);
            row.extend([over(bare), over(with_tls(NbdServer::Nbdkit))]);
            table.rows.push(row);
        }
    }
    section.tables.push(table);
    let header = [
        "subject",
        "handshake, us: mean",
        "median",
        "p99",
        "attached and let go, a second",
        "CPU, us: client + server",
    ];
    let mut table = Table::new("Handshakes", &header);
    for subject in subjects(Load::HANDSHAKES) {
        let point = free(Load::HANDSHAKES, subject);
        let show = |of: fn(&Figures) -> f64| {
            view.spread(&point, of).map_or(NONE.into(), |spread| spread.quartiles(0))
        };
        let some = |of: fn(&Figures) -> Option<f64>| {
            view.spread_of_some(&point, of).map_or(NONE.into(), |spread| spread.quartiles(0))
        };
        table.rows.push(vec![
            subject.title(),
            show(|f| f.mean_us),
            some(|f| f.p50_us),
            some(|f| f.p99_us),
            show(|f| f.iops),
            format!("{} + {}", show(|f| f.cpu_client_us), show(|f| f.cpu_server_us)),
        ]);
    }
    section.tables.push(table);
    let mut own = Vec::new();
    bars(view, &mut own);
    section.tables.push(super::bars::table("What keys may cost", own));
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::plan_of_all;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn each_bar_is_judged_by_its_own_points() {
        let folder = folder("keys");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for group in plan() {
            for (point, entry) in group.points() {
                let iops = match point.subject {
                    Subject::Thinwire { settings: Settings { protection: None, .. }, .. } => 1000.0,
                    Subject::Thinwire { carrier: Carrier::Packet, .. } => 590.0,
                    Subject::Thinwire { .. } => 760.0,
                    _ => 300.0,
                };
                for round in 0..entry.full {
                    let figures =
                        Figures { iops, mib_per_s: 1300.0, mean_us: 900.0, ..Figures::default() };
                    let run = Run { round, visit: u64::from(round) + 1, seconds: entry.seconds };
                    store.put(&point, run, Ok(figures)).unwrap();
                }
            }
        }
        let view = View::new(&store, &plan_of_all(), Form::Full);
        let mut all = Vec::new();
        bars(&view, &mut all);
        let verdict = |bar: &Bar| (bar.text.clone(), bar.met().expect("all is measured"));
        let found: Vec<_> = all.iter().map(verdict).collect();
        let of = |words: &[&str]| -> Vec<bool> {
            let has = |text: &str| words.iter().all(|word| text.contains(word));
            found.iter().filter(|(text, _)| has(text)).map(|&(_, met)| met).collect()
        };
        assert_eq!(of(&["packet: encrypted IOPS"]), [false]);
        assert_eq!(of(&["packet: authenticated IOPS"]), [false]);
        assert_eq!(of(&["udp: encrypted IOPS"]), [true]);
        assert_eq!(of(&["udp: authenticated IOPS"]), [true]);
        assert_eq!(of(&["128 KiB", "MiB/s"]), [true; 4]);
        assert_eq!(of(&["handshake"]), [true; 2]);
        assert_eq!(of(&["with TLS", "packet"]), [false; 4]);
        assert_eq!(of(&["with TLS", "udp"]), [true; 4]);
        assert_eq!(found.len(), 18);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
