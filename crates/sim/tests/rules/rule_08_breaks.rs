//! Rule 8: a session outlives its paths, and every request executes once in it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_link::sim::{FaultRates, Verdict};
use thinwire_sim::server::Crash;
use thinwire_volume::Op;
use thinwire_wire::{Frame, Kind, Message};

use crate::scene::{Scene, at, ms};

#[test]
fn rule_08_a_session_resumes_when_all_paths_break() {
    for moment in 0..20 {
        let mut s = Scene::with(2, |_| {}).with_client();
        let tokens: Vec<_> = (0..16)
            .map(|n| s.submit(0, if n % 2 == 0 { Op::Write } else { Op::Read }, at(n * 64, 60)))
            .collect();
        s.pass(Duration::from_micros(moment * 50));
        s.set_reach(0, false);
        s.pass(ms(2000));
        s.set_reach(0, true);
        for token in tokens {
            s.outcome(0, token).result.unwrap();
        }
        assert_eq!(s.stats(0).sessions, 1);
        assert_eq!(s.world.target(0).stats().requests, 16);
        s.end();
    }
}

#[test]
fn rule_08_one_link_after_the_other_breaks_and_returns() {
    let mut s = Scene::with(2, |_| {}).with_client();
    for round in 0..6 {
        let station = s.world.clients[0].machine.stations[round % 2];
        s.world.net.set_up(station, false);
        for n in 0..20 {
            s.write(at(n * 16, 16));
        }
        s.world.net.set_up(station, true);
        s.pass(ms(1500));
    }
    s.read(at(0, 320));
    assert_eq!(s.stats(0).sessions, 1);
    let report = s.world.initiator(0).report(thinwire_proto::Time(s.world.now));
    assert!(report.paths.iter().all(|p| p.state == thinwire_proto::PathState::Active));
    s.end();
}

#[test]
fn rule_08_reads_execute_once_too() {
    let mut s = Scene::new().with_client();
    s.world.net.set_faults(FaultRates { loss: 0.1, dup: 0.1, reorder: 0.2, corrupt: 0.01 });
    for n in 0..100 {
        s.read(at(n * 8, 8 + n));
    }
    assert_eq!(s.world.target(0).stats().requests, 100);
    s.end();
}

#[test]
fn rule_08_requests_are_issued_again_after_a_restart() {
    for moment in 0..20 {
        let mut s = Scene::new().with_client();
        let ops = [Op::Write, Op::Read, Op::WriteZeroes, Op::Discard, Op::Flush, Op::BlockStatus];
        let tokens: Vec<_> = (0..18).map(|n| s.submit(0, ops[n % 6], at(n / 2 * 64, 60))).collect();
        s.pass(Duration::from_micros(moment * 30));
        s.restart(if moment % 2 == 0 { Crash::Kill } else { Crash::Power });
        for token in tokens {
            s.outcome(0, token).result.unwrap();
        }
        s.read(at(0, 600));
        s.end();
    }
}

/// However long all paths were cut, as long as the target remembers: the session resumes, and
/// neither is a request executed twice nor the session replaced afterwards.
#[test]
fn rule_08_a_long_outage_ends_with_the_same_session() {
    for outage in (2900..7000).step_by(130) {
        let mut s = Scene::with(2, |_| {}).with_client();
        s.medium.set_latency(5_000_000, 5_000_000);
        let tokens: Vec<_> = (0..16).map(|n| s.submit(0, Op::Write, at(n * 64, 60))).collect();
        s.pass(ms(4));
        s.set_reach(0, false);
        s.pass(ms(outage));
        s.set_reach(0, true);
        for token in tokens {
            s.outcome(0, token).result.unwrap();
        }
        s.pass(ms(2000));
        let executed = s.world.target(0).stats().requests;
        assert_eq!((s.stats(0).sessions, executed), (1, 16), "cut for {outage} ms");
        s.end();
    }
}

/// A frame of a session that was left behind before it was used arrives when its successor is in use.
#[test]
fn rule_08_a_late_frame_of_an_abandoned_session_ends_nothing() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    let (there, back) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    s.world.set_judge(move |_, to, bytes| {
        let Ok(frame) = Frame::parse(bytes) else { return Verdict::Pass };
        let header = frame.header();
        if let (Some(Message::Hello(hello)), 0) = (frame.messages().next(), back.get()) {
            back.set(hello.session);
        }
        if !header.kind.is_numbered() {
            return Verdict::Pass;
        }
        // Nothing gets through in the first session, but what it says arrives in the end.
        let first = if to == server { &there } else { &back };
        if first.get() == 0 {
            first.set(header.session);
        }
        match (first.get() == header.session, to == server, header.kind) {
            (true, true, Kind::Session) => Verdict::Delay(4_300_000_000),
            (true, ..) => Verdict::Drop,
            _ => Verdict::Pass,
        }
    });
    s.world.start_client(client);
    s.until("attached", move |w| w.clients[client].is_open);
    s.write(at(0, 8));
    assert_eq!(s.stats(0).sessions, 2);
    s.pass(ms(2000));
    s.write(at(8, 8));
    assert_eq!((s.stats(0).sessions, s.world.target(0).sessions().len()), (2, 1));
    s.end();
}
