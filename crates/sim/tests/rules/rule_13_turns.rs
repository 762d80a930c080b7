//! Rule 13: bounded turns, handshakes beside the old session, flushes that share nothing they must
//! not; and the quiet that follows.

use std::time::Duration;

use thinwire_initiator::WhenAway;
use thinwire_sim::server::Crash;
use thinwire_volume::Op;

use crate::scene::{Scene, at, ms};

/// An attachment that has never been open has no I/O to fail, and no timer for it.
#[test]
fn rule_13_waiting_for_a_target_costs_nothing() {
    let mut s = Scene::new();
    let client = s.client();
    s.world.crash_server(0, Crash::Kill);
    let config = &mut s.world.clients[client].config;
    config.when_away = WhenAway::FailAfter(ms(200));
    config.wait = true;
    s.world.start_client(client);
    s.pass(Duration::from_secs(10));
    let turns = s.world.clients[client].machine.turns;
    assert!(turns < 100, "{turns} turns in ten seconds");
    s.world.start_server(0);
    s.until("attached", |w| w.clients[0].is_open);
    s.end();
}

/// Flushes that come while one runs are served by one that starts later.
#[test]
fn rule_13_a_flush_never_joins_a_running_one() {
    let mut s = Scene::new().with_client();
    s.medium.set_latency(5_000_000, 5_000_000);
    let mut tokens = Vec::new();
    for n in 0..10 {
        s.medium.set_latency(100_000, 100_000);
        s.write(at(n * 8, 8));
        s.medium.set_latency(5_000_000, 5_000_000);
        tokens.push(s.submit(0, Op::Flush, at(0, 0)));
        s.pass(ms(2));
    }
    for token in tokens {
        assert_eq!(s.outcome(0, token).result, Ok(()));
    }
    s.restart(Crash::Power);
    s.world.crash_client(0);
    s.attach(0);
    s.read(at(0, 80));
    s.end();
}

/// The target stops while the last flush of a detach is on its way, and comes back.
#[test]
fn rule_13_a_detach_survives_a_restart_of_the_target() {
    for moment in 0..30 {
        let mut s = Scene::new().with_client();
        s.write(at(0, 8));
        s.world.clients[0].close();
        s.pass(Duration::from_micros(moment * 40));
        s.restart(Crash::Kill);
        s.end();
    }
}

#[test]
fn rule_13_a_pair_without_io_hardly_turns() {
    let mut s = Scene::with(2, |_| {}).with_client();
    s.write(at(0, 8));
    s.pass(Duration::from_secs(2));
    let turns = |s: &Scene| (s.world.servers[0].machine.turns, s.world.clients[0].machine.turns);
    let before = turns(&s);
    s.pass(Duration::from_secs(20));
    let after = turns(&s);
    let (server, client) = (after.0 - before.0, after.1 - before.1);
    assert!(server < 100 && client < 100, "{server} and {client} turns in twenty seconds");
}

/// Four paths to nowhere: who is gone is asked less and less often.
#[test]
fn rule_13_an_initiator_that_is_gone_hardly_turns_the_target() {
    let mut s = Scene::with(2, |_| {}).with_client();
    let tokens: Vec<_> = (0..8).map(|n| s.submit(0, Op::Read, at(n * 256, 256))).collect();
    s.pass(Duration::from_micros(300));
    assert!(s.world.clients[0].outstanding() > 0 && !tokens.is_empty());
    s.world.crash_client(0);
    s.pass(Duration::from_secs(15));
    let before = s.world.servers[0].machine.turns;
    s.pass(Duration::from_secs(20));
    let turns = s.world.servers[0].machine.turns - before;
    assert!(turns < 100, "{turns} turns in twenty seconds");
}
