//! Rule 12, greetings: who may be greeted, what ends by it and what does not, and keys that come and go.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use thinwire_initiator::{InitiatorCanary, Phase};
use thinwire_link::sim::Verdict;
use thinwire_proto::{DropReason, Item, Time};
use thinwire_seal::Suite;
use thinwire_sim::client::End;
use thinwire_sim::keys::{Holder, KeyEvent};
use thinwire_sim::server::Crash;
use thinwire_target::TargetCanary;
use thinwire_volume::Op;
use thinwire_wire::{
    Frame, Header, Kind, Message, Offer, OfferedExports, Refuse, Retry, Status, UnknownSession,
};

use crate::forged::{frame, throw};
use crate::keyed::{ALICE, ALICE_NEXT, BOB, Silent, of_kind};
use crate::scene::{Scene, at, ms};

#[test]
fn rule_12_a_greeting_that_comes_again_gets_identical_bytes() {
    let mut s = Scene::keyed(Suite::Aes128Gcm);
    let client = s.keyed_client(ALICE);
    let tap = s.tap();
    s.attach(client);
    let station = s.world.clients[client].machine.stations[0];
    let greeting = of_kind(&tap, Kind::KeyedHello).pop().expect("it has greeted");
    for round in 0..8 {
        throw(&mut s, station, &greeting.bytes);
        // One or more in a turn; in the session, and while it is used.
        if round % 3 == 0 {
            s.write(at(0, 8));
        }
    }
    s.pass(ms(5));
    let answers = of_kind(&tap, Kind::KeyedAnswer);
    let different: BTreeSet<_> = answers.iter().map(|answer| &answer.bytes).collect();
    assert_eq!((answers.len(), different.len()), (9, 1));
    assert_eq!(s.world.target(0).sessions().len(), 1);
    assert_eq!(s.stats(client).sessions, 1);
    s.end();
}

/// Played back when its session is over: somebody is promised a session that nobody can use, and nothing ends
/// by it.
#[test]
fn rule_12_a_greeting_that_is_played_back_ends_nothing() {
    let mut s = Scene::keyed(Suite::Aes128Gcm);
    let client = s.keyed_client(ALICE);
    let tap = s.tap();
    s.attach(client);
    s.world.clients[client].close();
    s.pass(ms(100));
    s.attach(client);
    let station = s.world.clients[client].machine.stations[0];
    let used = s.world.target(0).sessions();
    for greeting in of_kind(&tap, Kind::KeyedHello) {
        throw(&mut s, station, &greeting.bytes);
        s.pass(ms(1));
    }
    assert!(s.world.target(0).promised() > 0, "the former run's opens another");
    let paths = |sessions: &[thinwire_target::SessionReport]| sessions.len();
    assert_eq!(paths(&s.world.target(0).sessions()), paths(&used));
    s.write(at(0, 8));
    s.pass(ms(6000));
    assert_eq!((s.world.target(0).promised(), s.stats(client).sessions), (0, 1));
    s.end();
}

/// Two sessions of one run, the first in use: whether it ends when the second is greeted for. It must end with
/// the first frame that is sealed in the second.
fn ends_at_a_greeting(canary: TargetCanary) -> bool {
    let mut s = Scene::keyed_with(Suite::Aes128Gcm, 1, u64::MAX, |config| config.canary = canary);
    let mut first = s.keyed_hand(ALICE, 3, 1);
    let say = |hand: &mut thinwire_sim::hand::Hand| {
        hand.session.as_mut().expect("it is in session").send(Item::Ping);
    };
    say(&mut first);
    s.turn(&mut first, &mut Silent);
    assert_eq!(s.world.target(0).session_count(), 1);
    let mut second = s.keyed_hand(ALICE, 3, 2);
    assert!(second.session.is_some(), "it was welcomed");
    if s.world.target(0).session_count() == 0 {
        return true;
    }
    assert_eq!(s.world.target(0).promised(), 1);
    // The first goes on.
    say(&mut first);
    let heard = s.world.target(0).sessions()[0].last_heard;
    s.turn(&mut first, &mut Silent);
    assert!(s.world.target(0).sessions()[0].last_heard > heard);
    say(&mut second);
    let before = s.world.target(0).stats().drops.get(DropReason::UnknownSession);
    s.turn(&mut second, &mut Silent);
    assert_eq!((s.world.target(0).session_count(), s.world.target(0).promised()), (1, 0));
    say(&mut first);
    first.send(Time(s.world.now), &mut Silent);
    s.pass(ms(1));
    assert!(s.world.target(0).stats().drops.get(DropReason::UnknownSession) > before, "it is over");
    false
}

#[test]
fn rule_12_an_older_session_ends_with_the_first_sealed_frame_of_the_new_one() {
    assert!(!ends_at_a_greeting(TargetCanary::None));
}

#[test]
fn canary_that_ends_a_session_at_a_greeting_is_found() {
    assert!(ends_at_a_greeting(TargetCanary::EndsAtGreeting));
}

/// Whoever greets is answered by somebody without a key, before the target does: whether it gives up.
fn is_talked_out(canary: InitiatorCanary) -> bool {
    let mut s = Scene::keyed(Suite::Aes128Gcm);
    let client = s.keyed_client(ALICE);
    s.world.clients[client].config.canary = canary;
    let (server, asked) = (s.world.servers[0].stations()[0], Rc::new(RefCell::new(Vec::new())));
    let station = s.world.clients[client].machine.stations[0];
    let seen = asked.clone();
    s.world.set_judge(move |_, _, bytes| {
        let parsed = Frame::parse(bytes).ok();
        match parsed.and_then(|frame| frame.messages().next().map(|m| (frame.header().kind, m))) {
            Some((_, Message::KeyedHello(h))) => {
                seen.borrow_mut().push((false, h.nonce, h.session))
            }
            Some((_, Message::Discover(d))) => seen.borrow_mut().push((true, d.nonce, d.session)),
            _ => {}
        }
        Verdict::Pass
    });
    s.world.start_client(client);
    // Offers are gathered for a while before anybody is greeted.
    for _ in 0..40_000 {
        if s.world.run_for(5_000).is_err() || s.world.clients[client].initiator.is_none() {
            return true;
        }
        for (is_question, nonce, session) in asked.take() {
            let header = |kind| Header { session, ..Header::new(kind) };
            if is_question {
                let names: [String; 0] = [];
                let exports = OfferedExports::fitting(&names, "node", 1000);
                let (instance, cookie) = (nonce, nonce | 1);
                let offer =
                    Offer { nonce, instance, total: 0, first: 0, cookie, node: "node", exports };
                let bytes = frame(header(Kind::Offer), 0, |out| offer.emit(out));
                s.world.net.forge(server, station, &bytes);
                s.world.net.forge(server + 500, station, &bytes);
                continue;
            }
            for status in [Status::NotFound, Status::Insecure, Status::UnknownKey] {
                let refuse = Refuse { nonce, status: status as u16, text: "of nobody" };
                let bytes = frame(header(Kind::Refuse), 0, |out| refuse.emit(out));
                s.world.net.forge(server, station, &bytes);
            }
            let retry = Retry { nonce, cookie: nonce | 1 };
            let bytes = frame(header(Kind::Retry), 0, |out| retry.emit(out));
            s.world.net.forge(server, station, &bytes);
        }
    }
    // The forger is gone.
    s.world.clear_judge();
    s.until("attached", |w| w.clients[0].is_open);
    s.end();
    false
}

#[test]
fn rule_12_nothing_that_anybody_can_say_ends_an_attempt() {
    assert!(!is_talked_out(InitiatorCanary::None));
}

#[test]
fn canary_that_believes_a_refusal_of_nobody_is_found() {
    assert!(is_talked_out(InitiatorCanary::BelievesRefusals));
}

/// Somebody says all the time that the session is unknown: it goes on.
#[test]
fn rule_12_nobody_without_a_key_ends_a_session() {
    let mut s = Scene::keyed(Suite::Aes128Gcm);
    let client = s.keyed_client(ALICE);
    s.attach(client);
    let (server, station) =
        (s.world.servers[0].stations()[0], s.world.clients[client].machine.stations[0]);
    let session = s.world.initiator(client).report(Time(s.world.now)).target_session;
    let unknown =
        frame(Header::new(Kind::UnknownSession), 0, |out| UnknownSession { session }.emit(out));
    for round in 0..200 {
        s.world.net.forge(server, station, &unknown);
        if round % 20 == 0 {
            s.write(at(round, 8));
        }
        s.pass(ms(10));
    }
    assert_eq!(s.stats(client).sessions, 1);
    s.end();
}

fn take(key: Holder) -> KeyEvent {
    KeyEvent::Take { server: None, key, for_ns: 0 }
}

/// A key is taken away while it is used: whether its session goes on.
fn goes_on_without_its_key(canary: TargetCanary) -> bool {
    let mut s = Scene::keyed_with(Suite::Aes128Gcm, 1, u64::MAX, |config| config.canary = canary);
    let client = s.keyed_client(ALICE);
    s.attach(client);
    s.change_keys(take(ALICE));
    s.world.target(0).session_count() > 0 && s.world.run_for(100_000_000).is_err()
}

#[test]
fn rule_12_a_key_that_is_taken_away_ends_its_sessions() {
    assert!(!goes_on_without_its_key(TargetCanary::None));
}

#[test]
fn canary_that_keeps_sessions_of_a_key_that_is_gone_is_found() {
    assert!(goes_on_without_its_key(TargetCanary::KeysKept));
}

/// A key is taken away and given back: nothing that was promised is lost, and nobody was fenced meanwhile.
#[test]
fn rule_12_who_is_given_its_key_back_goes_on_where_it_was() {
    let mut s = Scene::keyed(Suite::Aes128Gcm);
    let client = s.keyed_client(ALICE);
    s.attach(client);
    s.write(at(0, 40));
    s.change_keys(take(ALICE));
    let token = s.submit(client, Op::Write, at(10, 40));
    s.pass(ms(4000));
    assert_eq!(s.world.initiator(client).report(Time(s.world.now)).phase, Phase::Away);
    s.change_keys(KeyEvent::Give { server: None, key: ALICE });
    assert_eq!(s.outcome(client, token).result, Ok(()));
    s.read(at(0, 60));
    s.flush().expect("a flush");
    assert_eq!(s.world.coverage.fenced, 0);
    s.end();
}

/// A principal's keys are rotated, and its machines come back with the new one: the same writer, at once, whatever
/// the lease, also over a restart of the target; to another it is another.
#[test]
fn rule_12_rotation_fences_nobody() {
    let mut s =
        Scene::keyed_with(Suite::Aes128Gcm, 1, u64::MAX, |config| config.lease = ms(30_000));
    let (client, other) = (s.keyed_client(ALICE), s.keyed_client(BOB));
    s.attach(client);
    s.write(at(0, 40));
    for (from, to) in [(ALICE, ALICE_NEXT), (ALICE_NEXT, ALICE)] {
        s.change_keys(KeyEvent::Give { server: None, key: to });
        s.change_keys(KeyEvent::Switch {
            host: thinwire_sim::world::SimHost::Client(client),
            key: to.key,
        });
        s.change_keys(take(from));
        let since = s.world.now;
        s.until("attached", move |w| w.clients[client].is_open);
        assert!(s.world.now - since < 5_000_000_000, "it waits for no lease");
        s.read(at(0, 40));
        s.write(at(20, 40));
        s.flush().expect("a flush");
        s.restart(Crash::Kill);
        s.read(at(0, 60));
        s.world.start_client(other);
        assert_eq!(s.until_ended(other), End::Refused(Status::Busy));
    }
    assert_eq!(s.world.coverage.fenced, 0);
    s.end();
}
