//! Rule 8: a session outlives its paths, and every request executes once in it.

use std::time::Duration;

use thinwire_link::sim::FaultRates;
use thinwire_sim::server::Crash;
use thinwire_volume::Op;

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
