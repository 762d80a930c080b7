//! Rule 12, forgeries: what somebody on the way without a key plays back, reflects, changes or makes up is no
//! sign of life, and nothing of it is acted on; at most a counter tells of it.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_link::sim::Verdict;
use thinwire_proto::{DropReason, PathState, SessionCanary, Time};
use thinwire_seal::Suite;
use thinwire_volume::Op;
use thinwire_wire::{FrameError, Header, Kind, TAG_AT};

use crate::forged::{ping, probe, received, throw};
use crate::keyed::{ALICE, BOB, NEXT, Tapped, of_sessions, readdressed};
use crate::scene::{Scene, at, ms};
use crate::unsealed::{initiator, target};

const FORGED: DropReason = DropReason::Frame(FrameError::Forged);
const SUITE: DropReason = DropReason::Frame(FrameError::Suite);

/// What can be made of a frame that was seen, and of one of the other direction of its session.
fn forgeries(seen: &Tapped, back: &Tapped) -> Vec<Vec<u8>> {
    let bytes = &seen.bytes;
    let Header { session, epoch, path, packet_number, .. } = seen.header();
    let next = packet_number + NEXT;
    let mut all = vec![
        bytes.clone(),
        // Under a number that is not used, and in later and earlier key phases.
        readdressed(bytes, |h| h.packet_number = next),
        readdressed(bytes, |h| h.epoch = h.epoch.wrapping_add(1)),
        readdressed(bytes, |h| h.path ^= 9),
        // From who receives it.
        readdressed(&back.bytes, |h| (h.session, h.packet_number) = (session, next)),
        // Without a key.
        ping(session, epoch, path, next),
        probe(session, epoch, path, next, 1500),
        probe(session, epoch, 9, 1, 100),
    ];
    for phase in [1, 2, u8::MAX] {
        all.push(readdressed(bytes, |h| {
            (h.key_phase, h.packet_number) = (h.key_phase.wrapping_add(phase), next);
        }));
    }
    for suite in 1..=4 {
        all.push(readdressed(bytes, |h| (h.suite, h.packet_number) = (suite, next)));
    }
    all
}

/// A client that is attached, and the last frames to and from the target.
fn talked(s: &mut Scene) -> (usize, u32, u32, Vec<Tapped>, Vec<Tapped>) {
    let client = s.keyed_client(ALICE);
    let tap = s.tap();
    s.attach(client);
    for n in 0..6 {
        s.write(at(n * 40, 40));
        s.read(at(n * 40, 40));
    }
    s.pass(ms(300));
    let server = s.world.servers[0].stations()[0];
    let station = s.world.clients[client].machine.stations[0];
    let (there, back) = (of_sessions(&tap, server), of_sessions(&tap, station));
    assert!(there.len() > 10 && back.len() > 10, "{} {}", there.len(), back.len());
    (client, server, station, there, back)
}

#[test]
fn rule_12_nothing_forged_or_played_back_changes_a_target() {
    for suite in Suite::ALL {
        let mut s = Scene::keyed(suite);
        let (_, _, station, there, back) = talked(&mut s);
        let before = target(&s);
        for (nth, seen) in there.iter().enumerate() {
            for bytes in forgeries(seen, &back[nth % back.len()]) {
                throw(&mut s, station, &bytes);
                assert_eq!(target(&s), before, "{suite}: {:?}", Header::parse(&bytes, bytes.len()));
            }
        }
        let drops = s.world.target(0).stats().drops;
        for why in [FORGED, SUITE, DropReason::Duplicate, DropReason::Epoch, DropReason::Path] {
            assert!(drops.get(why) > 0, "{suite}: {why:?}");
        }
        s.write(at(0, 8));
        s.end();
    }
}

#[test]
fn rule_12_nothing_forged_or_played_back_changes_an_initiator() {
    for suite in Suite::ALL {
        let mut s = Scene::keyed(suite);
        let (client, server, _, there, back) = talked(&mut s);
        let (before, now) = (initiator(&s, client), Time(s.world.now));
        for (nth, seen) in back.iter().enumerate() {
            for bytes in forgeries(seen, &there[nth % there.len()]) {
                let it = s.world.clients[client].initiator.as_mut().expect("it runs");
                it.on_frame(now, 0, &mut received(server, &bytes));
                assert_eq!(initiator(&s, client), before, "{suite}");
            }
        }
        let drops = s.stats(client).drops;
        assert!(drops.get(FORGED) > 0 && drops.get(DropReason::Duplicate) > 0, "{suite}");
        s.write(at(0, 8));
        s.end();
    }
}

/// Frames of a write that the target has not seen: each of their bits is under the tag.
#[test]
fn rule_12_nothing_is_placed_before_its_tag_is_verified() {
    for suite in Suite::ALL {
        let mut s = Scene::keyed(suite);
        let (_, server, station, ..) = talked(&mut s);
        let held: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let keep = held.clone();
        s.world.set_judge(move |_, to, bytes| {
            if to == server {
                keep.borrow_mut().push(bytes.to_vec());
                return Verdict::Drop;
            }
            Verdict::Pass
        });
        let token = s.submit(0, Op::Write, at(100, 16));
        s.pass(ms(1));
        let unseen = held.borrow().clone();
        assert!(
            unseen.iter().any(|bytes| bytes.len() > 16 * 512),
            "{suite}: a write with its data"
        );
        let (before, image) = (target(&s), s.medium.current());
        for bytes in &unseen {
            for at in [TAG_AT, TAG_AT + 15, 48, 79, 150, bytes.len() - 1] {
                let mut forged = bytes.clone();
                let at = at.min(bytes.len() - 1);
                forged[at] ^= 0x10;
                throw(&mut s, station, &forged);
                assert_eq!(target(&s), before, "{suite}: byte {at}");
            }
        }
        assert!(s.medium.current() == image, "{suite}");
        s.world.clear_judge();
        // They were good.
        unseen.iter().for_each(|bytes| throw(&mut s, station, bytes));
        assert_ne!(target(&s), before, "{suite}");
        assert_eq!(s.outcome(0, token).result, Ok(()));
        s.end();
    }
}

/// A writer is gone, and somebody plays back all that it ever said, and changes it: how long it takes until
/// another has the export, in units of 100 ms; none if it does not get it in ten seconds.
fn another_waits(canary: SessionCanary) -> Option<u32> {
    let mut s = Scene::keyed_with(Suite::Aes128Gcm, 1, u64::MAX, |config| {
        config.lease = ms(1000);
        config.session = canary;
    });
    let (client, _, station, there, back) = talked(&mut s);
    s.world.crash_client(client);
    let other = s.keyed_client(BOB);
    s.world.clients[other].config.wait = true;
    s.world.start_client(other);
    for round in 0..100 {
        for (nth, seen) in there.iter().enumerate() {
            throw(&mut s, station, &seen.bytes);
            let forged = &forgeries(seen, &back[nth % back.len()])[1];
            throw(&mut s, station, forged);
        }
        s.world.run_for(100_000_000).ok()?;
        if s.world.clients[other].is_open {
            return Some(round);
        }
    }
    None
}

#[test]
fn rule_12_no_lease_lives_by_what_is_played_back() {
    assert!(another_waits(SessionCanary::None).is_some_and(|rounds| rounds < 40));
}

#[test]
fn canary_that_takes_replays_keeps_a_lease_alive() {
    assert_eq!(another_waits(SessionCanary::ReplaysTaken), None);
}

#[test]
fn canary_that_hears_before_it_opens_keeps_a_lease_alive() {
    assert_eq!(another_waits(SessionCanary::HeardUnopened), None);
}

/// One of two links is cut, and somebody plays back what came over it, and changes it: whether a path over it
/// seems to be alive at the initiator.
fn a_dead_path_lives(canary: SessionCanary) -> bool {
    let mut s = Scene::keyed_with(Suite::ChaCha20Poly1305, 2, u64::MAX, |_| {});
    let client = s.keyed_client(ALICE);
    s.world.clients[client].config.session = canary;
    let tap = s.tap();
    s.attach(client);
    s.write(at(0, 100));
    s.read(at(0, 100));
    s.pass(ms(1000));
    let station = s.world.clients[client].machine.stations[1];
    let seen = of_sessions(&tap, station);
    assert!(seen.len() > 5, "{}", seen.len());
    s.world.net.set_up(station, false);
    for _ in 0..60 {
        for frame in &seen {
            let other = readdressed(&frame.bytes, |h| h.packet_number += NEXT);
            for bytes in [&frame.bytes, &other] {
                let now = Time(s.world.now);
                let it = s.world.clients[client].initiator.as_mut().expect("it runs");
                it.on_frame(now, 1, &mut received(frame.from, bytes));
            }
        }
        s.world.clients[client].machine.dirty = true;
        s.pass(ms(100));
    }
    let report = s.world.initiator(client).report(Time(s.world.now));
    report.paths.iter().any(|path| path.link == 1 && path.state == PathState::Active)
}

#[test]
fn rule_12_no_path_lives_by_what_is_played_back() {
    assert!(!a_dead_path_lives(SessionCanary::None));
}

/// A probe that was seen and never came opens its path; one that came, or was changed, opens none.
#[test]
fn rule_12_a_path_is_opened_by_a_probe_of_the_initiator_alone() {
    let mut s = Scene::keyed(Suite::Aes256Gcm);
    let (client, server, station, there, _) = talked(&mut s);
    let probes: Vec<_> = there.iter().filter(|seen| seen.header().kind == Kind::Probe).collect();
    assert!(!probes.is_empty());
    let paths = |s: &Scene| s.world.target(0).sessions()[0].paths.len();
    let before = paths(&s);
    for seen in probes {
        for path in 1..20 {
            let moved = readdressed(&seen.bytes, |h| (h.path, h.packet_number) = (path, 1));
            throw(&mut s, station, &moved);
            throw(&mut s, station + 77, &moved);
        }
    }
    assert_eq!(paths(&s), before);
    let _ = (client, server);
    s.end();
}
