//! Rule 13: bounded turns, handshakes beside the old session, flushes that share nothing they must
//! not; and the quiet that follows.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, Pool, RxFrame, SegList, TxBatch};
use thinwire_initiator::WhenAway;
use thinwire_link::sim::{StationConfig, Verdict};
use thinwire_proto::{Time, outside_frame};
use thinwire_sim::client::End;
use thinwire_sim::export::Store;
use thinwire_sim::server::Crash;
use thinwire_sim::world::{MS, SECOND};
use thinwire_volume::Op;
use thinwire_wire::{Frame, Header, Kind, UnknownSession};

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

/// The flush that the bound asks for is due again, and hung requests hold all slots: it waits for one of
/// them, not for the time.
#[test]
fn rule_13_a_flush_without_a_slot_costs_nothing() {
    let mut s = Scene::with(1, |config| config.slots = 4);
    let client = s.client();
    s.world.clients[client].config.retained_entries_max = 4;
    s.attach(client);
    s.medium.set_flush_failure(1.0);
    (0..3).for_each(|n| s.write(at(n * 8, 8)));
    s.pass(ms(500));
    s.medium.set_flush_failure(0.0);
    s.medium.set_latency(5_000_000_000, 5_000_000_000);
    let reads: Vec<_> = (0..4).map(|n| s.submit(0, Op::Read, at(64 + n * 8, 8))).collect();
    let turns = s.world.clients[0].machine.turns;
    s.pass(Duration::from_secs(4));
    let turns = s.world.clients[0].machine.turns - turns;
    assert!(turns < 200, "{turns} turns in four seconds");
    assert_eq!(s.world.initiator(0).report(Time(s.world.now)).retained_entries, 3);
    s.medium.set_latency(20_000, 200_000);
    for read in reads {
        assert_eq!(s.outcome(0, read).result, Ok(()));
    }
    s.pass(ms(500));
    assert_eq!(s.world.initiator(0).report(Time(s.world.now)).retained_entries, 0);
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
    let turns = |s: &Scene| (s.world.servers[0].turns(), s.world.clients[0].machine.turns);
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
    let before = s.world.servers[0].turns();
    s.pass(Duration::from_secs(20));
    let turns = s.world.servers[0].turns() - before;
    assert!(turns < 100, "{turns} turns in twenty seconds");
}

/// Somebody says all the time that the session means nothing: a forger, or another target that hears
/// the same frames. The session goes on, and nothing is executed twice.
#[test]
fn rule_13_unknown_session_ends_no_session_that_lives() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    let id = Rc::new(Cell::new(0));
    let seen = id.clone();
    s.world.set_judge(move |_, to, bytes| {
        if let (true, Ok(frame)) = (to == server, Frame::parse(bytes))
            && frame.header().session != 0
        {
            seen.set(frame.header().session);
        }
        Verdict::Pass
    });
    s.attach(client);
    s.write(at(0, 8));
    let mut batch = TxBatch::new();
    outside_frame(&mut batch, Addr::Group, Header::new(Kind::UnknownSession), 0, |out| {
        UnknownSession { session: id.get() }.emit(out);
    });
    let bytes = Pool::new(0).copy_of(&batch.frames()[0].head).freeze();
    s.medium.set_latency(20_000_000, 20_000_000);
    let tokens: Vec<_> = (0..64).map(|n| s.submit(0, Op::Write, at(n * 8, 8))).collect();
    for round in 0..600 {
        let mut frame = RxFrame {
            from: Addr::Sim(99),
            bytes: bytes.clone(),
            rest: SegList::new(),
            waited: Duration::ZERO,
            queued: Duration::ZERO,
        };
        let now = Time(s.world.now);
        s.world.clients[0].initiator.as_mut().expect("it runs").on_frame(now, 0, &mut frame);
        s.world.clients[0].machine.dirty = true;
        // Also through a pause, in which only probes are answered.
        s.pass(if round < 300 { Duration::from_micros(300) } else { ms(3) });
    }
    for token in tokens {
        s.outcome(0, token).result.unwrap();
    }
    assert_eq!((s.stats(0).sessions, s.world.target(0).stats().requests), (1, 65));
    s.end();
}

/// A target that is restarted while it answers seems to be two, and if that happens in each round
/// of questions, in each.
#[test]
fn rule_13_a_target_that_keeps_restarting_is_one_target() {
    let mut s = Scene::with(2, |_| {});
    let client = s.client();
    // Over the second link it is asked so late that another instance answers.
    let late = s.world.servers[0].stations()[1];
    s.world.set_judge(move |_, to, bytes| {
        let asks = Frame::parse(bytes).is_ok_and(|f| f.header().kind == Kind::Discover);
        if asks && to == late { Verdict::Delay(60 * MS) } else { Verdict::Pass }
    });
    s.world.start_client(client);
    for _ in 0..3 {
        s.pass(ms(40));
        s.restart(Crash::Kill);
        s.pass(ms(110));
    }
    s.until("attached", move |w| w.clients[client].is_open);
    s.write(at(0, 8));
    s.end();
}

#[test]
fn rule_13_two_targets_of_one_name_are_an_error() {
    let mut s = Scene::new();
    let client = s.client();
    let config = s.world.servers[0].config.clone();
    let other = s.world.add_server(1, StationConfig::default(), config, None);
    s.world.add_export(other, 1 << 20, 512, Store::Memory);
    s.world.start_server(other);
    s.world.start_client(client);
    let ends = s.world.run_until("an end", 1000 * MS, |w| w.clients[client].initiator.is_none());
    let text = ends.expect_err("it was attached to one of them").0;
    assert!(text.contains("several targets have that node name"), "{text}");
}

/// With nothing to write back and nobody to tell, a detach ends by itself, and quietly.
#[test]
fn rule_13_a_detach_does_not_wait_for_ever_for_a_target_that_is_gone() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    assert_eq!(s.flush(), Ok(()));
    s.world.crash_server(0, Crash::Kill);
    s.pass(Duration::from_secs(4));
    s.world.clients[0].close();
    let before = (s.world.now, s.world.clients[0].machine.turns);
    assert_eq!(s.until_ended(0), End::Closed);
    let turns = s.world.clients[0].machine.turns - before.1;
    assert!(s.world.now - before.0 < 7 * SECOND && turns < 100, "{turns} turns");
}
