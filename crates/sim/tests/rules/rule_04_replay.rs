//! Rule 4: what a flush acknowledged is durable, and a restart of the target is invisible.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_initiator::{Phase, TargetName};
use thinwire_link::sim::Verdict;
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::server::Crash;
use thinwire_sim::world::{MS, SECOND, SimHost};
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::{Frame, Message};

use crate::scene::{Scene, at, ms};

#[test]
fn rule_04_unflushed_writes_are_sent_again_before_anything_else() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    assert_eq!(s.flush(), Ok(()));
    s.write(at(4, 8));
    s.run(Op::WriteZeroes, at(6, 2)).unwrap();
    s.run(Op::Discard, at(20, 8)).unwrap();
    s.restart(Crash::Power);
    s.read(at(0, 32));
    assert_eq!(s.stats(0).replayed, 3);
    assert_eq!(s.flush(), Ok(()));
    s.restart(Crash::Power);
    s.read(at(0, 32));
    assert_eq!(s.stats(0).replayed, 3, "what was flushed is not kept");
    s.end();
}

#[test]
fn rule_04_a_flush_that_ran_after_the_loss_does_not_vouch() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    let flush = s.submit(0, Op::Flush, at(0, 0));
    s.restart(Crash::Power);
    assert_eq!(s.outcome(0, flush).result, Ok(()));
    assert_eq!(s.stats(0).replayed, 1);
    s.end();
}

#[test]
fn rule_04_a_failed_flush_changes_the_verifier() {
    let mut s = Scene::new().with_client();
    for round in 0..20 {
        s.write(at(round, 8));
        s.medium.set_flush_failure(1.0);
        assert_eq!(s.flush(), Err(ErrorKind::Io));
        s.medium.set_flush_failure(0.0);
        s.read(at(0, 40));
        assert_eq!(s.flush(), Ok(()));
    }
    assert!(s.stats(0).replayed >= 20);
    s.end();
}

/// Somebody else's flush failed: the first the writer hears of it is the answer to a read.
#[test]
fn rule_04_a_read_tells_that_unflushed_writes_are_gone() {
    let mut s = Scene::new().with_client();
    let reader = s.client();
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    for round in 0..10 {
        s.write(at(round, 8));
        s.medium.set_flush_failure(1.0);
        let flush = s.submit(reader, Op::Flush, at(0, 0));
        assert_eq!(s.outcome(reader, flush).result, Err(ErrorKind::Io));
        s.medium.set_flush_failure(0.0);
        s.read(at(0, 40));
    }
    s.end();
}

/// A list of extents is made while it is asked for: in a turn that has not yet heard of the flush
/// that had failed before.
#[test]
fn rule_04_a_block_status_tells_that_unflushed_writes_are_gone() {
    for seed in 0..10 {
        let mut s = Scene::seeded(seed).with_client();
        let reader = s.client();
        s.world.clients[reader].config.read_only = true;
        s.attach(reader);
        s.write(at(0, 8));
        s.medium.set_latency(1_000_000, 1_000_000);
        s.medium.set_flush_failure(1.0);
        let flush = s.submit(reader, Op::Flush, at(0, 0));
        let medium = s.medium.clone();
        s.until("it runs", move |_| medium.in_flight() == 1);
        s.world.freeze(SimHost::Server(0), s.world.now + 5 * MS);
        let status = s.submit(0, Op::BlockStatus, at(0, 8));
        s.pass(ms(4));
        s.medium.set_flush_failure(0.0);
        assert_eq!(s.outcome(0, status).result, Ok(()));
        assert_eq!(s.stats(0).replayed, 1);
        assert_eq!(s.outcome(reader, flush).result, Err(ErrorKind::Io));
        s.end();
    }
}

/// The older of two writes must not be replayed over the newer, which was on its way when the loss
/// became known.
#[test]
fn rule_04_a_write_that_completes_during_a_replay_is_replayed_too() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    let second = s.slow_write(at(0, 8), ms(20));
    s.medium.set_flush_failure(1.0);
    assert_eq!(s.flush(), Err(ErrorKind::Io));
    s.medium.set_flush_failure(0.0);
    assert_eq!(s.outcome(0, second).result, Ok(()));
    s.read(at(0, 8));
    s.end();
}

/// A write that the store had and lost, whose completion arrives when the replay of all others has
/// long ended: it is replayed by itself, before anybody reads.
#[test]
fn rule_04_a_completion_told_after_the_replay_is_replayed_too() {
    let mut s = Scene::new().with_client();
    let reader = s.client();
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    s.write(at(0, 8));
    // Its completion does not get through for now.
    let (held, late) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(None)));
    let (is_held, which) = (held.clone(), late.clone());
    let server = s.world.servers[0].stations()[0];
    s.world.set_judge(move |from, _, bytes| {
        let complete = |bytes| {
            Frame::parse(bytes).ok()?.messages().find_map(|m| match m {
                Message::Complete(c) => Some((c.slot, c.sequence)),
                _ => None,
            })
        };
        let Some(now) = complete(bytes).filter(|_| from == server && is_held.get()) else {
            return Verdict::Pass;
        };
        if which.get().is_none() {
            which.set(Some(now));
        }
        if which.get() == Some(now) { Verdict::Drop } else { Verdict::Pass }
    });
    let second = s.submit(0, Op::Write, at(20, 8));
    s.until("the completion was sent", move |_| late.get().is_some());
    s.medium.set_flush_failure(1.0);
    let flush = s.submit(reader, Op::Flush, at(0, 0));
    assert_eq!(s.outcome(reader, flush).result, Err(ErrorKind::Io));
    s.medium.set_flush_failure(0.0);
    s.read(at(100, 8));
    assert_eq!(s.stats(0).replayed, 1, "the first, and the replay has ended");
    held.set(false);
    assert_eq!(s.outcome(0, second).result, Ok(()));
    s.read(at(0, 32));
    assert_eq!(s.stats(0).replayed, 3);
    assert_eq!(s.flush(), Ok(()));
    s.end();
}

/// A flush that the bound forced, and that ends while the attachment closes and other I/O is still
/// outstanding, tells nobody of a failed replay: the detach must.
#[test]
fn rule_04_a_failed_replay_is_told_at_the_latest_by_the_detach() {
    let mut s = Scene::new();
    let client = s.client();
    s.world.clients[client].config.retained_bytes_max = 64 << 10;
    s.attach(client);
    s.write(at(0, 60));
    s.medium.set_no_space(1.0);
    s.restart(Crash::Power);
    s.until("the replay has failed", |w| {
        w.initiator(0).report(thinwire_proto::Time(w.now)).stats.replay_failures == 1
    });
    s.medium.set_no_space(0.0);
    let slow = Duration::from_millis(50).as_nanos() as u64;
    s.medium.set_latency(slow, slow);
    s.submit(0, Op::Read, at(300, 500));
    let medium = s.medium.clone();
    s.until("the store has the read", move |_| medium.in_flight() == 1);
    s.medium.set_latency(slow / 20, slow / 20);
    s.write(at(100, 70));
    s.world.clients[client].close();
    s.until("detached", |w| w.clients[0].initiator.is_none());
}

/// A write with FUA is durable: an older, unflushed one is not replayed over it, not even for a
/// moment in which the initiator may die.
#[test]
fn rule_04_a_replay_never_writes_under_fua() {
    for cut in 0..12 {
        let mut s = Scene::new().with_client();
        s.write(at(0, 16));
        s.write_fua(at(4, 4));
        s.write(at(30, 2));
        s.write_fua(at(0, 2));
        s.restart(Crash::Power);
        let medium = s.medium.clone();
        let before = medium.stats().operations;
        s.world
            .run_until("the replay", 10_000_000_000, move |_| {
                medium.stats().operations >= before + cut
            })
            .ok();
        s.world.crash_client(0);
        s.restart(Crash::Kill);
        s.attach(0);
        s.read(at(0, 32));
        s.end();
    }
}

#[test]
fn rule_04_a_failed_replay_fails_the_next_flush() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    s.medium.set_no_space(1.0);
    s.restart(Crash::Power);
    s.until("the replay has failed", |w| {
        w.initiator(0).report(thinwire_proto::Time(w.now)).stats.replay_failures == 1
    });
    s.medium.set_no_space(0.0);
    assert_eq!(s.flush(), Err(ErrorKind::Io));
    assert_eq!(s.flush(), Ok(()));
    s.end();
}

/// The flush that the bound of the retained set asks for is nobody's: it must not swallow the news.
#[test]
fn rule_04_a_forced_flush_does_not_hide_a_failed_replay() {
    let mut s = Scene::new();
    let client = s.client();
    s.world.clients[client].config.retained_bytes_max = 64 << 10;
    s.attach(client);
    s.write(at(0, 8));
    s.medium.set_no_space(1.0);
    s.restart(Crash::Power);
    s.until("the replay has failed", |w| {
        w.initiator(0).report(thinwire_proto::Time(w.now)).stats.replay_failures == 1
    });
    s.medium.set_no_space(0.0);
    for nth in 0..20 {
        s.write(at(100 + nth * 8, 8));
    }
    s.pass(ms(50));
    assert_eq!(s.flush(), Err(ErrorKind::Io));
    assert_eq!(s.flush(), Ok(()));
    s.end();
}

#[test]
fn rule_04_a_detach_does_not_hide_a_failed_replay() {
    let mut s = Scene::new();
    let client = s.client();
    s.world.clients[client].config.retained_bytes_max = 64 << 10;
    s.attach(client);
    s.write(at(0, 8));
    s.medium.set_no_space(1.0);
    s.restart(Crash::Power);
    s.until("the replay has failed", |w| {
        w.initiator(0).report(thinwire_proto::Time(w.now)).stats.replay_failures == 1
    });
    s.medium.set_no_space(0.0);
    // More than half of the bound: a flush that nobody hears of runs.
    s.write(at(100, 80));
    s.until("a forced flush", |w| {
        w.initiator(0).report(thinwire_proto::Time(w.now)).retained_bytes == 0
    });
    s.end();
}

/// A write that durable ones cover whole is not replayed, and nobody waits for it.
#[test]
fn rule_04_what_fua_covers_whole_needs_no_replay() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    s.write(at(20, 1));
    s.write_fua(at(0, 6));
    s.write_fua(at(4, 6));
    s.restart(Crash::Power);
    assert_eq!(s.flush(), Ok(()));
    assert_eq!(s.stats(0).replayed, 1);
    s.end();
}

/// The store makes a discard durable with a flush of its own, which takes others' writes with it
/// when it fails.
#[test]
fn rule_04_a_failed_fua_changes_the_verifier() {
    let mut s = Scene::new().with_client();
    for round in 0..10 {
        s.write(at(round, 8));
        s.medium.set_flush_failure(1.0);
        let token = s.world.submit(0, Op::Discard, at(100, 8), true);
        assert_eq!(s.outcome(0, token).result, Err(ErrorKind::Io));
        s.medium.set_flush_failure(0.0);
        s.read(at(0, 40));
    }
    s.end();
}

/// A flush that was sent before the replay does not cover what the replay has written since, though
/// all of it stands under the same verifier.
#[test]
fn rule_04_a_flush_from_before_the_replay_does_not_vouch_for_it() {
    for seed in 0..10 {
        flush_before_replay(seed);
    }
}

fn flush_before_replay(seed: u64) {
    let mut s = Scene::seeded(seed).with_client();
    s.write(at(0, 8));
    s.medium.set_flush_failure(1.0);
    let first = s.submit(0, Op::Flush, at(0, 0));
    let second = s.submit(0, Op::Flush, at(0, 0));
    let medium = s.medium.clone();
    s.until("the first runs", move |_| medium.in_flight() == 1);
    // The second one takes so long that the replay is over before it ends.
    s.medium.set_latency(50_000_000, 50_000_000);
    assert_eq!(s.outcome(0, first).result, Err(ErrorKind::Io));
    s.medium.set_flush_failure(0.0);
    s.medium.set_latency(20_000, 20_000);
    assert_eq!(s.outcome(0, second).result, Ok(()));
    s.world.crash_client(0);
    s.restart(Crash::Power);
    s.attach(0);
    s.read(at(0, 8));
    s.end();
}

/// While a detach waits for what was submitted before it, a failed flush gives nothing up yet.
#[test]
fn rule_04_a_detach_keeps_unflushed_writes_until_the_last_io() {
    for seed in 0..10 {
        let medium = MediumHandle::new(seed, [9; 16], MediumConfig::default());
        let store = Store::File(medium.clone());
        let mut s = Scene::on(1, store, medium, |c| c.slots = 1).with_client();
        s.write(at(0, 8));
        s.medium.set_latency(20_000_000, 20_000_000);
        let reads = [s.submit(0, Op::Read, at(100, 8)), s.submit(0, Op::Read, at(0, 8))];
        let medium = s.medium.clone();
        s.until("the first runs", move |_| medium.in_flight() == 1);
        s.medium.set_latency(20_000, 20_000);
        s.medium.set_flush_failure(1.0);
        s.world.clients[0].close();
        for token in reads {
            s.outcome(0, token).result.unwrap();
        }
    }
}

/// What somebody else's failed flush did is mended by one replay, however many writes follow.
#[test]
fn rule_04_one_change_of_the_verifier_makes_one_replay() {
    let mut s = Scene::new().with_client();
    let reader = s.client();
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    s.write(at(0, 8));
    s.medium.set_flush_failure(1.0);
    let flush = s.submit(reader, Op::Flush, at(0, 0));
    assert_eq!(s.outcome(reader, flush).result, Err(ErrorKind::Io));
    s.medium.set_flush_failure(0.0);
    for n in 1..50 {
        s.write(at(n * 8, 8));
    }
    assert_eq!(s.stats(0).replayed, 2, "the first write, and the one that told of the change");
    s.end();
}

/// Each failed flush is followed by a replay, and the replay by the flush that the bound asks for.
#[test]
fn rule_04_a_forced_flush_that_keeps_failing_makes_no_storm() {
    let mut s = Scene::new();
    let client = s.client();
    s.world.clients[client].config.retained_bytes_max = 64 << 10;
    s.attach(client);
    s.medium.set_flush_failure(1.0);
    s.write(at(0, 70));
    s.pass(Duration::from_secs(5));
    let failed = s.medium.stats().flush_failures;
    let replayed = s.stats(0).replayed;
    assert!((4..=6).contains(&failed), "{failed} flushes in five seconds");
    assert!(replayed <= failed, "{replayed} replays after {failed} flushes");
    s.medium.set_flush_failure(0.0);
    let before = s.world.now;
    s.until("a flush that succeeds", |w| {
        w.initiator(0).report(thinwire_proto::Time(w.now)).retained_bytes == 0
    });
    assert!(s.world.now < before + SECOND + SECOND / 5, "the next one comes by itself");
    s.end();
}

/// Writes that wait for something else than the bound have nothing to do with its flush.
#[test]
fn rule_04_a_failed_forced_flush_fails_no_write_that_it_does_not_hold() {
    let mut s = Scene::with(1, |c| c.slots = 1);
    let client = s.client();
    s.world.clients[client].config.retained_bytes_max = 64 << 10;
    s.attach(client);
    s.medium.set_flush_failure(1.0);
    let tokens =
        [(0, 70), (100, 8), (100, 8)].map(|(n, count)| s.submit(0, Op::Write, at(n, count)));
    for token in tokens {
        assert_eq!(s.outcome(0, token).result, Ok(()));
    }
    assert!(s.medium.stats().flush_failures > 0, "they did not wait beside one");
    s.write(at(200, 60));
    // All of the bound: this one waits for the flush.
    assert_eq!(s.run(Op::Write, at(300, 8)), Err(ErrorKind::Io));
    s.medium.set_flush_failure(0.0);
    s.read(at(0, 310));
    s.end();
}

/// Zeroes are made durable by a flush of their own. A flush beside it that fails first takes them
/// with it, and theirs succeeds: with nothing left to save.
#[test]
fn rule_04_fua_beside_a_failed_flush_is_not_durable() {
    for seed in 0..10 {
        let mut s = Scene::seeded(seed).with_client();
        s.write_fua(at(0, 8));
        let zeroes = s.world.submit(0, Op::WriteZeroes, at(0, 8), true);
        let medium = s.medium.clone();
        let before = medium.stats().operations;
        s.until("they are written", move |_| medium.stats().operations > before);
        s.medium.set_latency(50_000_000, 50_000_000);
        s.pass(ms(5));
        assert_eq!(s.medium.in_flight(), 1, "their flush");
        s.medium.set_latency(20_000, 20_000);
        s.medium.set_flush_failure(1.0);
        assert_eq!(s.flush(), Err(ErrorKind::Io));
        s.medium.set_flush_failure(0.0);
        assert_eq!(s.medium.in_flight(), 1, "their flush");
        assert_eq!(s.outcome(0, zeroes).result, Err(ErrorKind::Io));
        s.read(at(0, 8));
        s.end();
    }
}

/// The target says goodbye, stops and starts again, whatever was under way.
#[test]
fn rule_04_an_orderly_stop_loses_nothing_and_is_short() {
    for moment in 0..20 {
        let mut s = Scene::new().with_client();
        s.write(at(0, 8));
        assert_eq!(s.flush(), Ok(()));
        s.write(at(4, 8));
        let ops = [Op::Write, Op::Read, Op::Flush, Op::WriteZeroes];
        let tokens: Vec<_> = (0..12).map(|n| s.submit(0, ops[n % 4], at(n * 16, 40))).collect();
        s.pass(Duration::from_micros(moment * 30));
        s.world.shut_down_server(0, SECOND);
        s.until("it has stopped", |w| !w.servers[0].runs());
        if moment % 2 == 0 {
            s.medium.power_failure();
        }
        s.world.start_server(0);
        let before = s.world.now;
        for token in tokens {
            assert_eq!(s.outcome(0, token).result, Ok(()));
        }
        s.read(at(0, 240));
        let took = Duration::from_nanos(s.world.now - before);
        assert!(took < ms(400), "back after {took:?}");
        assert_eq!(s.stats(0).sessions, 2);
        s.end();
    }
}

/// What the store has is waited for, and meanwhile nobody is welcomed by a target about to stop:
/// the initiator has been told and looks for it, by its name or at its address.
#[test]
fn rule_04_a_stopping_target_greets_nobody() {
    for by_name in [true, false] {
        let mut s = Scene::new();
        let client = s.client();
        if !by_name {
            let station = s.world.servers[0].stations()[0];
            s.world.clients[client].config.target = TargetName::Address(Addr::Sim(station));
        }
        s.attach(client);
        s.write(at(0, 8));
        s.medium.set_latency(800_000_000, 800_000_000);
        let slow = s.submit(0, Op::Write, at(4, 8));
        let medium = s.medium.clone();
        s.until("the store has it", move |_| medium.in_flight() == 1);
        s.medium.set_latency(20_000, 200_000);
        s.world.shut_down_server(0, 5 * SECOND);
        s.pass(ms(1));
        assert_eq!(s.world.initiator(0).phase(), Phase::Away);
        s.pass(ms(700));
        assert!(s.world.servers[0].runs(), "it waits for the store");
        s.until("it has stopped", |w| !w.servers[0].runs());
        assert_eq!(s.stats(0).sessions, 1);
        s.world.start_server(0);
        assert_eq!(s.outcome(0, slow).result, Ok(()));
        s.read(at(0, 16));
        assert_eq!(s.stats(0).sessions, 2);
        s.end();
    }
}

/// What a durable write failed with is told as it is, though a failed one puts others in doubt.
#[test]
fn rule_04_a_durable_write_without_space_says_so() {
    let mut s = Scene::new().with_client();
    s.medium.set_no_space(1.0);
    for fua in [false, true] {
        let token = s.world.submit(0, Op::Write, at(0, 8), fua);
        assert_eq!(s.outcome(0, token).result, Err(ErrorKind::NoSpace), "FUA {fua}");
    }
    s.medium.set_no_space(0.0);
    s.write_fua(at(0, 8));
    s.end();
}
