//! Rule 12: what keys need holds without them, too: within an epoch a path's packet number is never used
//! twice in a direction, whatever kind of frame has it, nor a path's number for another path. With keys it
//! is in `rule_12_sealing.rs`, `rule_12_forgeries.rs` and `rule_12_greetings.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use thinwire_link::sim::{FaultRates, Verdict};
use thinwire_proto::DropReason;
use thinwire_sim::server::Crash;
use thinwire_wire::{Frame, Kind};

use crate::forged::{probe, throw};
use crate::scene::{Scene, at, ms};

#[derive(Default)]
struct Seen {
    probes: u32,
    numbers: BTreeSet<(u64, u32, u8, u64)>,
    ways: BTreeMap<(u64, u32, u8), (u32, u32)>,
}

#[test]
fn rule_12_numbers_are_never_reused() {
    let mut s = Scene::with(2, |_| {});
    let seen: Rc<RefCell<Seen>> = Rc::default();
    let record = seen.clone();
    s.world.set_judge(move |from, to, bytes| {
        let Ok(frame) = Frame::parse(bytes) else { panic!("a frame that its receiver refuses") };
        let h = frame.header();
        if h.kind.is_numbered() {
            let mut seen = record.borrow_mut();
            seen.probes += u32::from(h.kind != Kind::Session);
            let news = seen.numbers.insert((h.session, h.epoch, h.path, h.packet_number));
            assert!(news, "packet {} of path {} again", h.packet_number, h.path);
            let way = *seen.ways.entry((h.session, h.epoch, h.path)).or_insert((from, to));
            assert_eq!(way, (from, to), "path {} is another one", h.path);
        }
        Verdict::Pass
    });
    let client = s.client();
    s.attach(client);
    s.world.net.set_faults(FaultRates { loss: 0.05, dup: 0.05, reorder: 0.1, corrupt: 0.01 });
    for round in 0..10 {
        for n in 0..10 {
            s.write(at(n * 50, 50));
            s.read(at(n * 50, 50));
        }
        match round % 4 {
            0 => s.restart(Crash::Kill),
            1 => {
                s.set_reach(0, false);
                s.pass(ms(1200));
                s.set_reach(0, true);
            }
            2 => {
                s.world.crash_client(0);
                s.attach(0);
            }
            _ => s.pass(ms(2500)),
        }
    }
    assert!(seen.borrow().numbers.len() > 2000 && seen.borrow().ways.len() > 6);
    assert!(seen.borrow().probes > 100, "{} probes and answers", seen.borrow().probes);
    s.end();
}

/// Frames that somebody has recorded: probes, answers and their session.
type Recorded = Rc<RefCell<Vec<Vec<u8>>>>;

/// A client that is attached, and what it asked and answered on its path.
fn recorded(s: &mut Scene) -> (usize, Recorded) {
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    let frames = Recorded::default();
    let record = frames.clone();
    s.world.set_judge(move |_, to, bytes| {
        let kind = Frame::parse(bytes).expect("a good frame").header().kind;
        if to == server && matches!(kind, Kind::Probe | Kind::ProbeReply) {
            record.borrow_mut().push(bytes.to_vec());
        }
        Verdict::Pass
    });
    s.attach(client);
    s.pass(ms(500));
    (client, frames)
}

/// It would keep the lease of a writer who is gone, and paths, alive for ever.
#[test]
fn rule_12_a_probe_that_is_played_back_is_no_sign_of_life() {
    let mut s = Scene::new();
    let (client, frames) = recorded(&mut s);
    let station = s.world.clients[client].machine.stations[0];
    s.world.crash_client(client);
    s.pass(ms(5000));
    let heard = s.world.target(0).sessions()[0].last_heard;
    let duplicates = |s: &Scene| s.world.target(0).stats().drops.get(DropReason::Duplicate);
    let (before, frames) = (duplicates(&s), frames.take());
    let is_of = |kind| move |f: &&Vec<u8>| f[1] == kind as u8;
    let count = |kind| frames.iter().filter(is_of(kind)).count();
    assert!(count(Kind::Probe) > 0 && count(Kind::ProbeReply) > 0, "both were recorded");
    let answered = Rc::new(RefCell::new(0));
    let seen = answered.clone();
    s.world.set_judge(move |_, to, _| {
        *seen.borrow_mut() += u32::from(to == station);
        Verdict::Pass
    });
    frames.iter().for_each(|frame| throw(&mut s, station, frame));
    s.pass(ms(10));
    assert_eq!(s.world.target(0).sessions()[0].last_heard, heard);
    assert_eq!(duplicates(&s), before + frames.len() as u64);
    // One after the other is asked and taken: the target's own questions go on as they would.
    assert!(*answered.borrow() <= 1, "{} frames for what was played back", answered.borrow());
}

/// A session of its own begins with numbers of its own: what was recorded before is of another.
#[test]
fn rule_12_a_probe_of_another_epoch_means_nothing() {
    let mut s = Scene::new();
    let (client, frames) = recorded(&mut s);
    let station = s.world.clients[client].machine.stations[0];
    let header = *Frame::parse(&frames.borrow()[0]).unwrap().header();
    let old = probe(header.session, header.epoch.wrapping_sub(1), 0, 1 << 20, 1500);
    let heard = s.world.target(0).sessions()[0].last_heard;
    s.pass(ms(1));
    throw(&mut s, station, &old);
    assert_eq!(s.world.target(0).sessions()[0].last_heard, heard);
    assert_eq!(s.world.target(0).stats().drops.get(DropReason::Epoch), 1);
    // The target begins anew: nobody knows the session.
    s.restart(Crash::Kill);
    s.write(at(0, 8));
    let unknown = |s: &Scene| s.world.target(0).stats().drops.get(DropReason::UnknownSession);
    let (before, frames) = (unknown(&s), frames.take());
    let ours = |f: &&Vec<u8>| Frame::parse(f).unwrap().header().epoch == header.epoch;
    let old: Vec<_> = frames.iter().filter(ours).collect();
    old.iter().for_each(|frame| throw(&mut s, station, frame));
    assert_eq!(unknown(&s), before + old.len() as u64);
    s.end();
}

/// A number that could be taken on no path opens none.
#[test]
fn rule_12_a_probe_without_a_good_number_opens_no_path() {
    let mut s = Scene::new();
    let (client, frames) = recorded(&mut s);
    let station = s.world.clients[client].machine.stations[0];
    let header = *Frame::parse(&frames.borrow()[0]).unwrap().header();
    let paths = |s: &Scene| s.world.target(0).sessions()[0].paths.len();
    let before = paths(&s);
    for number in [0, (1 << 32) + 1, u64::MAX] {
        throw(&mut s, station, &probe(header.session, header.epoch, 9, number, 100));
        assert_eq!(paths(&s), before, "number {number}");
    }
    throw(&mut s, station, &probe(header.session, header.epoch, 9, 1 << 32, 100));
    assert_eq!(paths(&s), before + 1);
    s.end();
}
