//! Rules 2 to 4 where volumes stand on volumes: a gateway, whose tree of eight leaves lies on its own
//! disks and on those of two servers below it, and a client that stands on such a tree itself.

use std::time::Duration;

use thinwire_link::sim::StationConfig;
use thinwire_proto::Time;
use thinwire_sim::client::{End, Workload};
use thinwire_sim::export::Export;
use thinwire_sim::medium::RecordFate;
use thinwire_sim::server::Crash;
use thinwire_sim::tree::Branch;
use thinwire_sim::world::{SECOND, SimHost};
use thinwire_volume::{ErrorKind, Op};

use crate::grove::{ALL, GATEWAY, Grove, LEAF};
use crate::scene::{at, ms};

#[test]
fn rule_04_restarts_below_a_gateway_and_of_it_are_invisible() {
    for shape in [Branch::even(), Branch::uneven()] {
        let mut g = Grove::of(shape, true);
        g.s.write(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        g.s.write(at(LEAF / 2, 7 * LEAF));
        // What the gateway's own attachments kept is sent again by them.
        for server in [0, 1] {
            g.restart(server, Crash::Power);
            g.s.read(ALL);
        }
        assert!([1, 3, 5, 7].map(|leaf| Grove::stats(&g.s.world, leaf).replayed) == [1; 4]);
        assert_eq!(g.s.stats(0).replayed, 0);
        // What died with the gateway is sent again by its client.
        g.restart_all(Crash::Power);
        g.s.read(ALL);
        assert_eq!(g.s.stats(0).replayed, 1);
        g.end_having_raised(0);
    }
}

/// The gateway's export may have lost something: its client sends it, before it believes what it reads.
#[test]
fn rule_04_a_gateway_tells_that_a_leaf_could_not_be_written_again() {
    for leaf in [1, 3, 5, 7] {
        let mut g = Grove::that_lost(leaf);
        g.s.read(Grove::leaf(leaf));
        assert_eq!(g.s.stats(0).replayed, 1, "leaf {leaf}");
        assert_eq!(g.s.flush(), Ok(()), "its client has made good for it");
        g.end();
    }
}

/// As before, and the client flushes first: what it flushes had been lost.
#[test]
fn rule_04_a_flush_through_a_gateway_covers_nothing_that_a_leaf_has_lost() {
    let mut g = Grove::that_lost(3);
    assert_eq!(g.s.flush(), Ok(()));
    assert_eq!(g.s.stats(0).replayed, 1);
    g.end();
}

/// What a leaf has lost puts nothing in doubt that came later.
#[test]
fn rule_04_a_durable_write_behind_a_loss_is_durable() {
    let mut g = Grove::that_lost(3);
    g.s.write_fua(at(LEAF - 4, 8));
    g.s.read(ALL);
    assert_eq!(g.s.stats(0).replayed, 1);
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}

/// A flush that fails in one leaf, wherever that is, has failed; what may have been lost is sent again.
#[test]
fn rule_04_a_flush_that_fails_in_one_leaf_has_failed() {
    for leaf in 0..8 {
        let mut g = Grove::new();
        g.may_fail();
        g.s.write(ALL);
        g.media[leaf].set_flush_failure(1.0);
        assert_eq!(g.s.flush(), Err(ErrorKind::Io), "leaf {leaf}");
        g.media[leaf].set_flush_failure(0.0);
        g.s.read(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        assert!(g.s.stats(0).replayed > 0, "leaf {leaf}");
        g.end();
    }
}

/// The last leaf grows, told by the server that has it: whoever stands on the tree, through a gateway or by
/// itself, knows it in the end, uses it and keeps it. The leaves before it are where they were.
#[test]
fn what_the_last_leaf_grows_by_is_told_used_and_kept() {
    for (shape, by_gateway) in
        [(Branch::even(), true), (Branch::uneven(), true), (Branch::even(), false)]
    {
        let mut g = Grove::of(shape, by_gateway);
        g.s.write(ALL);
        for leaf in [2 * LEAF, 5 * LEAF] {
            g.s.world.grow_tree(g.tree, (leaf * 512) as u64);
            let bytes = ((7 * LEAF + leaf) * 512) as u64;
            g.s.until("its client knows", move |w| {
                w.clients[0].initiator.as_ref().is_some_and(|i| i.known_bytes() == bytes)
            });
            g.s.write(at(8 * LEAF - 4, 8));
            g.s.write(at(7 * LEAF + leaf - 8, 8));
            // Unflushed, it is sent again; the tree is the volume that it was.
            g.restart_all(Crash::Power);
            g.s.read(at(0, 7 * LEAF + leaf));
        }
        assert_eq!(g.s.flush(), Ok(()));
        g.end();
    }
}

/// What another leaf grows by has no place: nothing moves as long as the tree is served, also behind restarts of
/// the servers below. When it is opened again, the leaves behind begin elsewhere: nobody takes it for what it was.
#[test]
fn a_tree_over_another_leaf_that_has_grown_is_another_volume() {
    for (leaf, how) in [(1, Crash::Kill), (2, Crash::Kill), (3, Crash::Power), (6, Crash::Power)] {
        let mut g = Grove::new();
        g.s.write(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        g.s.write(at(LEAF / 2, 7 * LEAF));
        g.media[leaf].grow((2 * LEAF * 512) as u64);
        g.s.pass(ms(3000));
        for below in [0, 1] {
            g.restart(below, how);
            g.s.read(ALL);
            g.s.write(at(LEAF / 2, 7 * LEAF));
        }
        assert_eq!(g.s.flush(), Ok(()));
        let told = g.s.world.clients[0].initiator.as_ref().unwrap().known_bytes();
        assert_eq!(told, (8 * LEAF * 512) as u64, "leaf {leaf}");
        g.restart(GATEWAY, how);
        assert_eq!(g.s.until_ended(0), End::Failed(ErrorKind::ContentChanged), "leaf {leaf}");
    }
}

/// Nobody is told of a size that the server below could lose.
#[test]
fn what_a_leaf_grows_by_is_told_when_it_is_durable_there() {
    for by_gateway in [true, false] {
        let mut g = Grove::of(Branch::even(), by_gateway);
        g.may_fail();
        g.media[7].set_record_failure(1.0);
        g.s.world.grow_tree(g.tree, (3 * LEAF * 512) as u64);
        g.s.pass(ms(3000));
        let known = |g: &Grove| g.s.world.clients[0].initiator.as_ref().unwrap().known_bytes();
        assert_eq!(known(&g), (8 * LEAF * 512) as u64);
        g.media[7].set_record_failure(0.0);
        g.s.world.grow_tree(g.tree, (4 * LEAF * 512) as u64);
        g.s.pass(ms(3000));
        assert_eq!(known(&g), (11 * LEAF * 512) as u64);
        g.s.write(at(10 * LEAF, LEAF));
        g.flush_at_last();
        g.end();
    }
}

/// The gateway dies between any two calls of its node, with writes and a flush on their way through it.
#[test]
fn rule_04_a_gateway_may_die_at_any_step() {
    let mut died = 0;
    for steps in 0..48 {
        let mut g = Grove::new();
        g.s.write(at(LEAF / 2, 4 * LEAF));
        let write = g.s.submit(0, Op::Write, at(3 * LEAF - 4, 2 * LEAF));
        let flush = g.s.submit(0, Op::Flush, at(0, 0));
        // Sooner or later after they have come.
        g.s.pass(Duration::from_micros(20 * (steps % 12)));
        g.s.world.kill_in_turn(GATEWAY, steps as u32 % 16);
        g.s.pass(ms(1));
        died += u32::from(!g.s.world.servers[GATEWAY].runs());
        g.restart(GATEWAY, if steps % 2 == 0 { Crash::Power } else { Crash::Kill });
        assert_eq!(g.s.outcome(0, write).result, Ok(()), "step {steps}");
        assert_eq!(g.s.outcome(0, flush).result, Ok(()), "step {steps}");
        g.s.read(ALL);
        g.s.write(at(3 * LEAF - 2, 4));
        assert_eq!(g.s.flush(), Ok(()));
        g.end();
    }
    assert!(died > 24, "it died in a turn {died} times only");
}

/// The gateway dies over its record, at each step of storing it: the first attach is granted in the end,
/// and the one on record is the writer.
#[test]
fn rule_03_a_gateway_may_die_over_its_record() {
    use RecordFate::{Dies, Failed, Stored};
    for fates in [
        vec![Dies(false)],
        vec![Dies(true)],
        vec![Stored, Dies(false)],
        vec![Stored, Dies(true)],
        vec![Stored, Failed(true), Dies(true)],
        vec![Stored, Failed(false), Failed(false), Dies(false)],
    ] {
        let mut g = Grove::new();
        g.may_fail();
        g.s.write(ALL);
        g.s.world.crash_client(0);
        let tree = g.s.world.exports[g.tree].tree().expect("it is one");
        tree.record.script_records(fates.clone());
        g.s.world.clients[0].config.wait = true;
        g.s.world.start_client(0);
        g.s.until("it dies", |w| w.died.contains(&GATEWAY));
        g.s.world.start_server(GATEWAY);
        g.s.until("attached", |w| w.clients[0].is_open);
        g.s.write(at(0, 3 * LEAF));
        g.flush_at_last();
        g.end();
    }
}

/// Somebody takes a leaf over and writes it, while the gateway serves, or stands still and goes on later: nobody who is with
/// the gateway is told of an error, be it of another leaf, and nothing of it lands anywhere any more. It ends. Started again
/// when the other has gone it fences its client, since somebody else has written (rule 3).
#[test]
fn rule_03_who_takes_a_leaf_over_silences_the_gateway() {
    for stands_still in [false, true] {
        let mut g = Grove::new();
        g.s.write(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        g.s.write(Grove::leaf(5));
        let mut waiting = vec![g.s.slow_write_to(&g.media[5].clone(), at(5 * LEAF, 8), ms(20))];
        let is_it = |e: &Export| e.medium().is_some_and(|m| m.is_same(&g.media[5]));
        let below = g.s.world.exports.iter().position(is_it).expect("it is served");
        g.s.world.exports[below].writers = 2;
        if stands_still {
            let until = g.s.world.now + SECOND;
            g.s.world.freeze(SimHost::Server(GATEWAY), until);
        }
        let thief = g.s.world.add_client(1, StationConfig::default(), below, Workload::NONE);
        g.s.world.clients[thief].keeps_log = true;
        g.s.world.clients[thief].config.take_over = true;
        g.s.attach(thief);
        g.media[5].note_user();
        let stolen = g.s.submit(thief, Op::Write, at(0, LEAF));
        for (op, range) in [
            (Op::Read, at(0, 1)),
            (Op::Read, at(5 * LEAF, 1)),
            (Op::Write, at(0, LEAF)),
            (Op::Write, at(5 * LEAF, 8)),
            (Op::Flush, at(0, 0)),
        ] {
            waiting.push(g.s.submit(0, op, range));
        }
        assert_eq!(g.s.outcome(thief, stolen).result, Ok(()));
        g.s.until("it ends", |w| w.died.contains(&GATEWAY));
        g.s.world.died.clear();
        assert_eq!(g.s.world.coverage.fell_silent, 1);
        g.s.pass(ms(5000));
        let told = |g: &Grove| {
            let log = g.s.world.clients[0].log.iter();
            log.filter(|one| one.result.is_err()).count()
        };
        assert_eq!(told(&g), 0, "stands still: {stands_still}");
        assert!(g.s.world.clients[0].outstanding() > 0, "the leaf is with somebody else");
        g.s.world.clients[thief].close();
        assert_eq!(g.s.until_ended(thief), End::Closed);
        let model = &g.s.world.exports[below].models[0];
        model.check_image(&g.media[5].current()).unwrap_or_else(|v| panic!("{}", v.0));
        g.start_gateway();
        assert_eq!(g.s.until_ended(0), End::Failed(ErrorKind::Fenced));
        let log = &g.s.world.clients[0].log;
        assert!(log.iter().all(|one| matches!(one.result, Ok(()) | Err(ErrorKind::Fenced))));
        assert_eq!(g.raised(), 1);
    }
}

/// A server below is away for longer than anybody would wait: what goes there waits, the rest goes on.
#[test]
fn rule_08_io_for_a_leaf_that_is_away_waits() {
    let mut g = Grove::new();
    g.s.write(ALL);
    g.s.world.crash_server(0, Crash::Power);
    let write = g.s.submit(0, Op::Write, at(LEAF, LEAF));
    g.s.read(at(2 * LEAF, 3 * LEAF));
    g.s.pass(Duration::from_secs(300));
    g.s.write(at(3 * LEAF, LEAF));
    assert_eq!(g.s.world.clients[0].outstanding(), 1);
    g.s.world.start_server(0);
    assert_eq!(g.s.outcome(0, write).result, Ok(()));
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}

/// A gateway that is told to stop lets go of its leaves in order: its successor need not wait for anybody,
/// and nothing is sent again but by its client.
#[test]
fn rule_07_a_gateway_that_stops_lets_its_leaves_go() {
    let mut g = Grove::new();
    g.s.write(ALL);
    g.s.world.shut_down_server(GATEWAY, 3_000_000_000);
    g.s.until("it has stopped", |w| !w.servers[GATEWAY].runs());
    for export in &g.s.world.exports {
        let commits = export.medium().map(|medium| medium.commits());
        let last = commits.as_ref().and_then(|commits| commits.last());
        assert!(last.is_none_or(|record| !record.is_held()), "{last:?}");
    }
    g.s.world.start_server(GATEWAY);
    g.s.read(ALL);
    assert_eq!(g.s.stats(0).replayed, 1);
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}

/// Without a gateway it is the client that hears of it.
#[test]
fn rule_04_a_client_on_a_tree_is_told_what_a_leaf_has_lost() {
    let mut g = Grove::of(Branch::uneven(), false);
    g.may_fail();
    g.s.write(ALL);
    g.restart(0, Crash::Power);
    g.s.read(ALL);
    assert_eq!(g.s.flush(), Ok(()));
    g.s.write(Grove::leaf(2));
    g.media[2].configure(|c| c.write_failure = 1.0);
    g.restart(1, Crash::Power);
    g.s.until("it fails", |w| {
        w.clients[0].initiator.as_ref().expect("it runs").report(Time(w.now)).stats.replay_failures
            > 0
    });
    g.media[2].configure(|c| c.write_failure = 0.0);
    g.s.read(at(3 * LEAF, LEAF));
    assert_eq!(g.s.flush(), Err(ErrorKind::Io), "something was lost");
    g.s.write(Grove::leaf(2));
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}
