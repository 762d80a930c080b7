//! Keys between one target and its initiators on one wire: who gets in, and what nobody else brings about
//! (`docs/protocol.md`, "Keys"; `docs/security.md`).

use std::time::Duration;

use thinwire_buffer::{RxBatch, SegList, TxBatch};
use thinwire_initiator::{Discovery, InitiatorKey, Phase};
use thinwire_link::Link;
use thinwire_link::sim::{FaultRates, StationConfig};
use thinwire_proto::{DropReason, RekeyLimits, Time, outside_frame};
use thinwire_seal::{Suite, Suites};
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_target::{Access, ExportConfig, TargetKeys};
use thinwire_volume::stores::FileStore;
use thinwire_volume::testing::exercise;
use thinwire_volume::{Io, Op, Volume};
use thinwire_wire::{
    Frame, FrameError, Header, Kind, Message, Offer, OfferedExports, Refuse, Status, Welcome,
};

#[path = "keys/net.rs"]
mod net;

use net::*;

#[test]
fn a_disk_behind_a_key_is_a_disk_and_shows_nothing() {
    for suite in Suite::ALL {
        let suites = Suites(1 << (suite.number() - 1));
        let faults = FaultRates { loss: 0.02, dup: 0.02, ..FaultRates::default() };
        let mut net = Net::new(Some(TargetKeys { suites, ..target_keys() }), faults);
        let mut config = net.config(Some(1), "secret-disk");
        config.key.as_mut().unwrap().suites = Suites::here(!suite.hides());
        let host = net.add(config);
        net.until("attaching", |net| net.hosts[host].initiator.is_open());
        let text = b"what lies on the disk".repeat(200);
        let bytes = [&text[..], &vec![0; 8192 - text.len()]].concat();
        net.write(host, 4096, &bytes).unwrap();
        assert_eq!(net.read(host, 4096, 8192), bytes, "{suite}");
        net.io(host, Io::new(3, Op::Flush, 0, 0)).result.unwrap();
        let key = net.target.sessions()[0].key.clone().unwrap();
        let told = (&*key.principal, key.key, key.suite);
        assert_eq!(told, ("alice", self::key(1).id(), suite));
        for secret in SECRETS {
            let shows = |bytes: &[u8]| bytes.windows(secret.len()).any(|window| window == secret);
            let shown = net.sent.iter().any(|(_, bytes)| shows(bytes));
            // Names stand in greetings and attaches; what only is authenticated shows the latter.
            assert_eq!(shown, !suite.hides() && secret != SECRETS[1], "{suite}: {secret:?}");
        }
    }
}

#[test]
fn without_a_good_key_nothing_is_had() {
    for (key_number, reason) in [(None, DropReason::Insecure), (Some(9), DropReason::UnknownKey)] {
        let mut net = Net::new(Some(target_keys()), FaultRates::default());
        let host = net.add(net.config(key_number, "secret-disk"));
        net.run(Duration::from_secs(20));
        assert!(!net.hosts[host].initiator.is_open());
        assert!(net.drops(reason) > 0, "{reason:?}");
        assert_eq!((net.target.session_count(), net.target.promised()), (0, 0));
        assert_eq!(net.target.stats().requests, 0);
        let named = net.sent.iter().filter(|(by_target, _)| *by_target);
        let secret = SECRETS[0];
        let shows = |bytes: &[u8]| bytes.windows(secret.len()).any(|window| window == secret);
        assert!(!named.clone().any(|(_, bytes)| shows(bytes)), "not even named");
        match key_number {
            // Who has no key can only believe what it is told.
            None => {
                let (status, text) = net.refusal(host).unwrap();
                assert_eq!(status, Status::Insecure);
                assert!(text.contains("--key"), "{text}");
            }
            // Who has one believes nobody, and goes on; a person is told what was said.
            Some(_) => {
                assert_eq!(net.refusal(host), None);
                let hint = net.hosts[host].initiator.hint().unwrap();
                assert!(hint.contains("does not know key"), "{hint}");
            }
        }
    }
}

#[test]
fn a_target_without_keys_is_not_talked_to_with_one() {
    let mut net = Net::new(None, FaultRates::default());
    let host = net.add(net.config(Some(1), "secret-disk"));
    net.run(Duration::from_secs(5));
    assert!(!net.hosts[host].initiator.is_open());
    assert!(net.hosts[host].initiator.hint().unwrap().contains("--insecure"));
    assert!(net.drops(DropReason::Insecure) > 0);
    let secret = SECRETS[1];
    let shows = |bytes: &[u8]| bytes.windows(secret.len()).any(|window| window == secret);
    assert!(!net.sent.iter().any(|(_, bytes)| shows(bytes)));
}

#[test]
fn who_encrypts_and_who_only_authenticates_come_to_nothing() {
    for target_hides in [true, false] {
        let suites = Suites::here(!target_hides);
        let mut net = Net::new(Some(TargetKeys { suites, ..target_keys() }), FaultRates::default());
        let mut config = net.config(Some(1), "secret-disk");
        config.key.as_mut().unwrap().suites = Suites::here(target_hides);
        let host = net.add(config);
        net.run(Duration::from_secs(2));
        let (status, text) = net.refusal(host).unwrap();
        assert_eq!(status, Status::Insecure, "{text}");
        assert!(text.contains("--authenticate-only"), "{text}");
    }
}

#[test]
fn rights_are_those_of_the_principal() {
    let access = Access { writers: Some(vec!["alice".into()]), readers: vec!["backup".into()] };
    let keys = TargetKeys { access: vec![("secret-disk".into(), access)], ..target_keys() };
    let mut net = Net::new(Some(keys), FaultRates::default());
    let alice = net.attached(11, "secret-disk");
    net.write(alice, 0, &[1; 512]).unwrap();
    // One that may read.
    let backup = net.add(net.config(Some(3), "secret-disk"));
    let mut config = net.config(Some(3), "secret-disk");
    config.read_only = true;
    let reader = net.add(config);
    // One that may nothing: no more than of an export that is not there.
    let bob = net.add(net.config(Some(2), "secret-disk"));
    let nothing = net.add(net.config(Some(2), "secret-disc"));
    net.until("being told", |net| {
        let told = |host: usize| net.refusal(host).is_some();
        told(backup) && told(bob) && told(nothing) && net.hosts[reader].initiator.is_open()
    });
    let (status, text) = net.refusal(backup).unwrap();
    assert_eq!(status, Status::ReadOnly);
    assert!(text.contains("may only read export secret-disk"), "{text}");
    assert_eq!(net.read(reader, 0, 512), [1; 512]);
    let (refused, missing) = (net.refusal(bob).unwrap(), net.refusal(nothing).unwrap());
    assert_eq!(refused.0, Status::NotFound);
    assert_eq!((refused.0, refused.1.replace("disk", "disc")), missing);
    net.attached(2, "shared");
}

fn discovered(net: &mut Net, key_number: Option<u8>) -> Vec<String> {
    let mut link = net.net.station(StationConfig::default());
    let mut search = Discovery::new(Time(net.now), "", Duration::from_millis(500), 77);
    if let Some(number) = key_number {
        search = search.with_key(InitiatorKey::new(key(number), [number; 32]));
    }
    let limit = net.now + 600_000_000;
    let (mut batch, mut frames) = (TxBatch::new(), RxBatch::new());
    while net.now < limit {
        search.turn(Time(net.now), std::slice::from_mut(&mut batch));
        link.send(&mut batch).unwrap();
        net.step();
        link.recv(&net.pool, 100, &mut frames).unwrap();
        frames.drain(..).for_each(|mut frame| search.on_frame(0, &mut frame));
    }
    let [found] = search.found() else { panic!("{:?}", search.found()) };
    assert_eq!(found.node, NODE);
    assert_eq!(found.is_proved, key_number != Some(9));
    found.exports.clone()
}

#[test]
fn names_are_told_to_those_who_may_open_them() {
    let access = Access { writers: Some(vec!["alice".into()]), readers: vec!["backup".into()] };
    let keys = TargetKeys { access: vec![("secret-disk".into(), access)], ..target_keys() };
    let mut net = Net::new(Some(keys.clone()), FaultRates::default());
    assert_eq!(discovered(&mut net, None), [""; 0]);
    assert_eq!(discovered(&mut net, Some(9)), [""; 0]);
    assert_eq!(discovered(&mut net, Some(1)), ["secret-disk", "shared"]);
    assert_eq!(discovered(&mut net, Some(3)), ["secret-disk", "shared"]);
    assert_eq!(discovered(&mut net, Some(2)), ["shared"]);
    let mut net = Net::new(Some(TargetKeys { announces: true, ..keys }), FaultRates::default());
    assert_eq!(discovered(&mut net, None), ["secret-disk", "shared"]);
    let mut net = Net::new(None, FaultRates::default());
    assert_eq!(discovered(&mut net, None), ["secret-disk", "shared"]);
}

#[test]
fn hosts_that_share_a_key_are_two_and_keys_may_change() {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    let first = net.attached(1, "secret-disk");
    net.write(first, 0, &[1; 512]).unwrap();
    // The same key, and another of the same principal, on other hosts.
    let others = [1, 11].map(|number| net.add(net.config(Some(number), "secret-disk")));
    net.until("being told", |net| others.iter().all(|&other| net.refusal(other).is_some()));
    for other in others {
        assert_eq!(net.refusal(other).unwrap().0, Status::Busy);
    }
    // The same identity under the other key of the principal: the same writer, after a restart.
    net.hosts[first].is_dead = true;
    let mut again = net.config(Some(11), "secret-disk");
    (again.initiator, again.instance) = ([1; 16], 2);
    let again = net.add(again);
    net.until("attaching", |net| net.hosts[again].initiator.is_open());
    net.write(again, 0, &[2; 512]).unwrap();
    // The same identity, claimed by another principal, is another.
    let mut thief = net.config(Some(2), "secret-disk");
    (thief.initiator, thief.instance) = ([1; 16], 3);
    let thief = net.add(thief);
    net.until("being told", |net| net.refusal(thief).is_some());
    assert_eq!(net.refusal(thief).unwrap().0, Status::Busy);
}

#[test]
fn a_key_that_is_taken_away_ends_its_sessions_and_no_others() {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    let alice = net.attached(1, "secret-disk");
    let bob = net.attached(2, "shared");
    net.target.set_keys(keys_of(vec![principal("alice", &[11]), principal("bob", &[2])]));
    assert_eq!(net.target.session_count(), 1);
    let sessions =
        |net: &Net, host: usize| net.hosts[host].initiator.report(Time(net.now)).stats.sessions;
    net.write(bob, 0, &[1; 512]).unwrap();
    net.hosts[alice].initiator.submit(Io::new(9, Op::Read, 0, 512));
    net.run(Duration::from_secs(5));
    assert_eq!((sessions(&net, alice), sessions(&net, bob)), (1, 1));
    assert!(net.hosts[alice].done.is_empty(), "it waits");
    let report = net.hosts[alice].initiator.report(Time(net.now));
    assert_eq!(report.phase, Phase::Away);
    assert!(report.hint.is_some_and(|hint| hint.contains("does not know key")));
    assert!(net.drops(DropReason::UnknownKey) > 0);
    // It is given back.
    net.target.set_keys(target_keys());
    net.until("coming back", |net| !net.hosts[alice].done.is_empty());
    assert_eq!(sessions(&net, alice), 2);
    assert_eq!(net.hosts[alice].initiator.hint(), None);
}

/// With it a session has the name and the rights of who had it before.
#[test]
fn a_key_that_is_given_to_another_ends_the_sessions_of_the_first() {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    let alice = net.attached(1, "secret-disk");
    net.attached(2, "shared");
    let (first, second) = (principal("alice", &[11]), principal("bob", &[2, 1]));
    assert_eq!(net.target.set_keys(keys_of(vec![first, second])), 1);
    net.hosts[alice].initiator.submit(Io::new(9, Op::Read, 0, 512));
    net.run(Duration::from_secs(5));
    let names: Vec<_> = net.target.sessions().iter().map(|s| s.key.clone().unwrap()).collect();
    assert!(names.iter().all(|key| &*key.principal == "bob"), "{names:?}");
}

#[test]
fn rights_that_change_are_the_ones_that_hold() {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    let bob = net.attached(2, "secret-disk");
    let other = net.attached(2, "shared");
    let access = Access { writers: Some(vec!["alice".into()]), readers: vec![] };
    let access = vec![("secret-disk".into(), access)];
    net.target.set_keys(TargetKeys { access, ..target_keys() });
    let before = net.target.stats().requests;
    net.hosts[bob].initiator.submit(Io::new(9, Op::Read, 0, 512));
    net.run(Duration::from_secs(3));
    assert_eq!(net.target.stats().requests, before);
    assert!(net.hosts[bob].done.is_empty());
    assert!(
        net.hosts[bob].initiator.hint().is_some_and(|hint| hint.contains("no export secret-disk"))
    );
    net.write(other, 0, &[1; 512]).unwrap();
    net.target.set_keys(target_keys());
    net.until("coming back", |net| !net.hosts[bob].done.is_empty());
    assert_eq!(net.hosts[bob].initiator.hint(), None);
}

/// It was asked for when it might be had, and would be granted when it may not.
#[test]
fn a_right_that_is_gone_is_granted_to_nobody_who_waits() {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    let latency_ns = (1_000_000_000, 1_000_000_000);
    let config = MediumConfig { bytes: 1 << 20, latency_ns, ..MediumConfig::default() };
    let medium = MediumHandle::new(1, [9; 16], config);
    let volume = FileStore::new(medium.open(), 512, &net.pool).unwrap();
    let volume = Box::new(volume);
    net.target.add_export(ExportConfig { name: "slow".into(), volume, read_only: false });
    let bob = net.add(net.config(Some(2), "slow"));
    net.until("asking", |net| net.target.session_count() == 1);
    net.run(Duration::from_millis(100));
    let access = Access { writers: Some(vec!["alice".into()]), readers: vec![] };
    let access = vec![("slow".into(), access)];
    net.target.set_keys(TargetKeys { access, ..target_keys() });
    for _ in 0..300 {
        net.run(Duration::from_millis(20));
        medium.advance(net.now);
        net.target.disk_ready();
        assert!(net.target.sessions().iter().all(|session| session.exports.is_empty()));
    }
    assert!(!net.hosts[bob].initiator.is_open());
    assert_eq!(net.refusal(bob).unwrap().0, Status::NotFound);
}

/// Greetings as they were sent.
fn greetings(net: &Net) -> Vec<Vec<u8>> {
    let all = net.sent.iter().filter(|(by_target, _)| !by_target);
    let is_one =
        |bytes: &&Vec<u8>| Header::parse(bytes, bytes.len()).unwrap().kind == Kind::KeyedHello;
    all.map(|(_, bytes)| bytes).filter(is_one).cloned().collect()
}

fn cookie_and_secret(greeting: &[u8]) -> (u64, Vec<u8>) {
    match Frame::parse(greeting).unwrap().messages().next() {
        Some(Message::KeyedHello(hello)) => (hello.cookie, hello.secret.to_vec()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_greeting_is_repeated_bit_by_bit_and_another_cookie_makes_another() {
    let (mut repeated, mut renewed) = (0, 0);
    for seed in 0..20 {
        let faults = FaultRates { loss: 0.8, ..FaultRates::default() };
        let mut net = Net::seeded(seed, Some(target_keys()), faults);
        net.add(net.config(Some(1), "secret-disk"));
        net.run(Duration::from_secs(20));
        let mut by_ephemeral = std::collections::BTreeMap::<Vec<u8>, (u64, Vec<u8>)>::new();
        for greeting in greetings(&net) {
            let (cookie, secret) = cookie_and_secret(&greeting);
            let known = by_ephemeral.insert(secret[..32].to_vec(), (cookie, secret.clone()));
            if let Some(known) = known {
                assert_eq!(known, (cookie, secret), "one ephemeral key, one greeting");
                repeated += 1;
            }
        }
        renewed += by_ephemeral.len().saturating_sub(1);
        same_answers(&net);
    }
    assert!(repeated > 0 && renewed > 0, "{repeated}, {renewed}");
}

/// Each greeting was answered with the same bytes each time.
fn same_answers(net: &Net) {
    let mut answers = std::collections::BTreeMap::<u64, Vec<u8>>::new();
    for (_, bytes) in &net.sent {
        if let Some(Message::KeyedAnswer(answer)) =
            Frame::parse(bytes).ok().and_then(|f| f.messages().next())
        {
            let known = answers.insert(answer.nonce, answer.secret.to_vec());
            assert!(known.is_none_or(|known| known == answer.secret));
        }
    }
}

#[test]
fn greetings_that_are_played_back_open_nothing_that_is_used_and_end_nothing() {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    let host = net.attached(1, "secret-disk");
    net.write(host, 0, &[1; 512]).unwrap();
    let greetings = greetings(&net);
    assert!(!greetings.is_empty());
    let place = net.hosts[host].link.info().addr;
    for round in 0..50 {
        for greeting in &greetings {
            // From its own place, with a cookie that is good for a while.
            let bytes = net.pool.copy_of(greeting).freeze();
            let mut rx = thinwire_buffer::RxFrame {
                from: place,
                bytes,
                rest: SegList::new(),
                waited: Duration::ZERO,
                queued: Duration::ZERO,
            };
            net.target.on_frame(Time(net.now), 0, &mut rx);
        }
        net.run(Duration::from_millis(200));
        assert!(net.target.session_count() <= 1, "round {round}");
    }
    net.write(host, 0, &[2; 512]).unwrap();
    assert_eq!(net.hosts[host].initiator.report(Time(net.now)).stats.sessions, 1);
}

#[test]
fn what_anybody_can_send_ends_no_attempt() {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    // Two more of that name, who have no key.
    let host = net.add(net.config(Some(1), "secret-disk"));
    let to = net.hosts[host].link.info().addr;
    for turn in 0..2000 {
        net.step();
        let asked: Vec<_> =
            net.sent.iter().filter(|(by_target, _)| !by_target).map(|(_, b)| b.clone()).collect();
        let Some(Message::KeyedHello(hello)) = asked.iter().rev().find_map(|bytes| {
            match Frame::parse(bytes).ok()?.messages().next()? {
                Message::KeyedHello(hello) => {
                    Some(Message::KeyedHello(thinwire_wire::KeyedHello {
                        node: "",
                        secret: &[],
                        ..hello
                    }))
                }
                _ => None,
            }
        }) else {
            continue;
        };
        let header = |kind| Header { session: hello.session, ..Header::new(kind) };
        let refuse = Refuse { nonce: hello.nonce, status: Status::NotFound as u16, text: "no" };
        net.forge(to, header(Kind::Refuse), |out| refuse.emit(out));
        let welcome = Welcome {
            nonce: hello.nonce,
            session: 1 + turn,
            instance: turn,
            epoch: 1,
            slots: 1,
            frame_bytes_max: 1500,
            request_bytes_max: 512,
            room_frames: 1,
            room_bytes: 1,
            credit_bytes: 1,
            addresses: thinwire_wire::Addresses::new(&[]),
        };
        net.forge(to, header(Kind::Welcome), |out| welcome.emit(out));
        // As often as it likes, and before the true one.
        for _ in 0..3 {
            let retry = thinwire_wire::Retry { nonce: hello.nonce, cookie: 1 + turn };
            net.forge(to, header(Kind::Retry), |out| retry.emit(out));
        }
        let answer = thinwire_wire::KeyedAnswer { nonce: hello.nonce, secret: &[7; 100] };
        net.forge(to, header(Kind::KeyedAnswer), |out| answer.emit(out));
        if net.hosts[host].initiator.is_open() {
            break;
        }
    }
    net.until("attaching", |net| net.hosts[host].initiator.is_open());
    assert_eq!(net.refusal(host), None);
    let drops = net.hosts[host].initiator.report(Time(net.now)).stats.drops;
    assert!(drops.get(DropReason::Frame(FrameError::Forged)) > 0);
    assert!(drops.get(DropReason::Insecure) > 0);
}

/// Offers of others under the name of the target, who have no key: the target is found all the same.
#[test]
fn forged_offers_make_no_name_ambiguous() {
    attaches_beside_offers_of(|_| 666);
}

/// They seem to be of another target each time.
#[test]
fn forged_offers_do_not_make_one_ask_for_ever() {
    attaches_beside_offers_of(|nth| nth);
}

fn attaches_beside_offers_of(mut instance: impl FnMut(u64) -> u64) {
    let mut net = Net::new(Some(target_keys()), FaultRates::default());
    let host = net.add(net.config(Some(1), "secret-disk"));
    let to = net.hosts[host].link.info().addr;
    let mut forger = net.net.station(StationConfig::default());
    while net.now < 5_000_000_000 {
        net.run(Duration::from_millis(5));
        let asked =
            net.sent.iter().filter(|(by_target, _)| !by_target).rev().find_map(|(_, bytes)| {
                let frame = Frame::parse(bytes).ok()?;
                match frame.messages().next()? {
                    Message::Discover(discover) => Some((discover.nonce, discover.session)),
                    _ => None,
                }
            });
        if let Some((nonce, session)) = asked {
            let names: [String; 0] = [];
            let offer = Offer {
                nonce,
                instance: instance(net.now),
                total: 0,
                first: 0,
                cookie: 5,
                node: NODE,
                exports: OfferedExports::fitting(&names, NODE, 1000),
            };
            let mut batch = TxBatch::new();
            let header = Header { session, ..Header::new(Kind::Offer) };
            outside_frame(&mut batch, to, header, 0, |out| offer.emit(out));
            forger.send(&mut batch).unwrap();
        }
        if net.hosts[host].initiator.is_open() {
            return;
        }
    }
    panic!("never attached: {:?}", net.hosts[host].initiator.first_error());
}

#[test]
fn keys_change_while_a_disk_is_used() {
    let limits = RekeyLimits { frames: 50, ..RekeyLimits::default() };
    let faults = FaultRates { loss: 0.02, dup: 0.02, ..FaultRates::default() };
    let mut net = Net::new(Some(TargetKeys { limits, ..target_keys() }), faults);
    let mut config = net.config(Some(1), "secret-disk");
    config.key.as_mut().unwrap().limits = limits;
    let host = net.add(config);
    net.until("attaching", |net| net.hosts[host].initiator.is_open());
    for round in 0..40u8 {
        let bytes = vec![round; 128 << 10];
        net.write(host, u64::from(round) << 17, &bytes).unwrap();
        assert_eq!(net.read(host, u64::from(round) << 17, 128 << 10), bytes);
        net.run(Duration::from_millis(20));
    }
    let key = net.target.sessions()[0].key.clone().unwrap();
    assert!(key.rekeys > 5, "{key:?}");
    assert_eq!(net.drops(DropReason::Frame(FrameError::Forged)), 0);
    assert_eq!(net.hosts[host].initiator.report(Time(net.now)).stats.sessions, 1);
}

/// The suite of all volumes, through sealed frames.
#[test]
fn it_conforms() {
    let mut net = Net::new(Some(target_keys()), FaultRates { loss: 0.05, ..FaultRates::default() });
    net.attached(1, "secret-disk");
    let report = exercise(&mut net, &mut || {}, 3, 800);
    assert!(report.ios > 800 && report.blocks_checked > 500, "{report:?}");
}
