//! Rule 12, sealing: a number is spent when a frame is sealed. It is sent as it is, however often a link does
//! not take it, or not at all; keys change under way, and numbers go on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use thinwire_proto::SessionCanary;
use thinwire_seal::Suite;
use thinwire_sim::narrow::{NarrowConfig, OutletCanary};
use thinwire_sim::server::Crash;
use thinwire_volume::Op;

use crate::keyed::{ALICE, BOB};
use crate::scene::{Scene, at, ms};

/// Links that do not take what they are given, for milliseconds.
fn narrow(seed: u64) -> Option<NarrowConfig> {
    let (until_ns, canary) = (u64::MAX, OutletCanary::None);
    Some(NarrowConfig { seed, until_ns, open: 0.3, stuck: 0.02, canary })
}

/// A scene in which all links are narrow, and sessions go to other keys.
fn scene(suite: Suite, canary: SessionCanary) -> Scene {
    let mut s = Scene::keyed_with(suite, 2, 60, |config| config.session = canary);
    for (nth, holder) in [ALICE, BOB].into_iter().enumerate() {
        let client = s.keyed_client(holder);
        let c = &mut s.world.clients[client];
        (c.config.session, c.config.read_only) = (canary, nth > 0);
        c.machine.narrow = narrow(nth as u64);
    }
    s.world.servers[0].shards[0].machine.narrow = narrow(9);
    s.restart(Crash::Kill);
    s
}

/// How something was sealed twice, if it was.
fn sealed_twice(suite: Suite, canary: SessionCanary) -> Option<String> {
    let mut s = scene(suite, canary);
    let seals = s.world.seals.clone().expect("a scene with keys");
    // Links that are given other bytes than those which they did not take are not quiet about it either.
    match catch_unwind(AssertUnwindSafe(|| under_load(&mut s, suite))) {
        Ok(told) => told,
        Err(panic) => match seals.borrow().breach() {
            Some(told) => Some(told.to_owned()),
            None => resume_unwind(panic),
        },
    }
}

fn under_load(s: &mut Scene, suite: Suite) -> Option<String> {
    (0..2).for_each(|client| s.world.start_client(client));
    for round in 0..60 {
        for client in 0..2 {
            if s.world.clients[client].is_open {
                if client == 0 {
                    s.submit(client, Op::Write, at(round * 16, 16));
                }
                s.submit(client, Op::Read, at(0, 64));
            }
        }
        if let Err(violation) = s.world.run_for(30_000_000) {
            return Some(violation.0);
        }
    }
    let seals = s.world.seals.as_ref().expect("a scene with keys").borrow().stats();
    assert!(seals.retried > 100 && seals.rekeys > 10, "{suite}: {seals:?}");
    assert!((0..2).all(|client| s.world.clients[client].is_open));
    None
}

#[test]
fn rule_12_a_number_is_never_sealed_twice() {
    for suite in Suite::ALL {
        assert_eq!(sealed_twice(suite, SessionCanary::None), None, "{suite}");
    }
}

#[test]
fn canary_that_stamps_anew_what_a_link_refused_is_found() {
    for suite in Suite::ALL {
        let told = sealed_twice(suite, SessionCanary::StampedAnew).expect("it is found");
        assert!(told.contains("sealed twice"), "{suite}: {told}");
    }
}

/// Under load that never ends, and with paths that come and go.
#[test]
fn rule_12_keys_change_under_way_and_nothing_stops() {
    for suite in Suite::ALL {
        let mut s = Scene::keyed_with(suite, 2, 40, |_| {});
        let client = s.keyed_client(ALICE);
        s.attach(client);
        for round in 0..12 {
            (0..8).for_each(|n| s.write(at(n * 50, 50)));
            s.read(at(0, 400));
            let station = s.world.clients[client].machine.stations[round % 2];
            s.world.net.set_up(station, round % 3 == 0);
            s.pass(ms(150));
            s.world.net.set_up(station, true);
        }
        let key = s.world.target(0).sessions()[0].key.clone().expect("a session with a key");
        let seals = s.world.seals.as_ref().expect("a scene with keys").borrow().stats();
        assert_eq!(key.suite, suite);
        assert!(key.rekeys > 5 && seals.rekeys > 10, "{suite}: {key:?}, {seals:?}");
        assert_eq!(s.stats(client).sessions, 1, "{suite}");
        s.end();
    }
}
