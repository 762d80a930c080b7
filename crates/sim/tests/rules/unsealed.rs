//! What is not unsealed is not acted on: frames that name a session, a path and the next number, and whose
//! tag does not fit, change nothing on either side but a counter (`docs/protocol.md`, "Frame header").

use std::cell::Cell;
use std::rc::Rc;

use thinwire_link::sim::Verdict;
use thinwire_proto::{DropReason, Drops, Time};
use thinwire_target::TargetCanary;
use thinwire_wire::{Frame, FrameError, Kind, TAG_AT};

use crate::forged::{Flooder, hello, ping, probe, received, throw};
use crate::scene::{Scene, at, ms};

/// A number that no frame of a test has had.
const NEXT: u64 = 1 << 20;
const DAMAGED: DropReason = DropReason::Frame(FrameError::Checksum);

/// All that can be seen of a target, but for what it has dropped.
pub fn target(s: &Scene) -> String {
    let target = s.world.target(0);
    let mut stats = target.stats();
    stats.drops = Drops::default();
    let (sessions, exports, promised) = (target.sessions(), target.exports(), target.promised());
    format!("{sessions:?} {exports:?} {promised} {stats:?}")
}

/// Likewise of an initiator.
pub fn initiator(s: &Scene, client: usize) -> String {
    let initiator = s.world.clients[client].initiator.as_ref().expect("it runs");
    let mut report = initiator.report(Time(s.world.now));
    report.stats.drops = Drops::default();
    format!("{report:?}")
}

/// A bit of the tag, of the sealed part of the header, and of the last byte.
fn damaged(frame: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let places = [TAG_AT, TAG_AT + 15, 48, 56, frame.len() - 1];
    places
        .map(|at| {
            let mut bytes = frame.to_vec();
            bytes[at] ^= 1;
            bytes
        })
        .into_iter()
}

/// What the last SESSION frames said: the session ids of target and initiator, and the epoch.
#[derive(Clone, Copy, Default)]
struct Seen {
    target: u64,
    initiator: u64,
    epoch: u32,
}

/// A client that is attached, and what its session is called.
fn watched(s: &mut Scene) -> (usize, Seen) {
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    let seen = Rc::new(Cell::new(Seen::default()));
    let record = seen.clone();
    s.world.set_judge(move |_, to, bytes| {
        let header = *Frame::parse(bytes).expect("a good frame").header();
        if header.kind == Kind::Session {
            let mut seen = record.get();
            let id = if to == server { &mut seen.target } else { &mut seen.initiator };
            *id = header.session;
            record.set(Seen { epoch: header.epoch, ..seen });
        }
        Verdict::Pass
    });
    s.attach(client);
    s.write(at(0, 8));
    s.pass(ms(300));
    (client, seen.get())
}

#[test]
fn a_target_acts_on_nothing_that_is_not_unsealed() {
    let mut s = Scene::new();
    let (client, Seen { target: id, epoch, .. }) = watched(&mut s);
    let station = s.world.clients[client].machine.stations[0];
    let frames = [
        ping(id, epoch, 0, NEXT),
        probe(id, epoch, 0, NEXT + 1, 1500),
        // It would open a path.
        probe(id, epoch, 9, 1, 100),
        hello(1, 0),
    ];
    let before = target(&s);
    for bytes in frames.iter().flat_map(|frame| damaged(frame)) {
        throw(&mut s, station, &bytes);
        assert_eq!(target(&s), before, "{bytes:02x?}");
    }
    assert_eq!(s.world.target(0).stats().drops.get(DAMAGED), 20);
    // Had they been unsealed, it would have shown.
    for frame in &frames[..3] {
        let before = target(&s);
        s.pass(ms(1));
        throw(&mut s, station, frame);
        assert_ne!(target(&s), before);
    }
}

#[test]
fn an_initiator_acts_on_nothing_that_is_not_unsealed() {
    let mut s = Scene::new();
    let (client, Seen { initiator: id, epoch, .. }) = watched(&mut s);
    let server = s.world.servers[0].stations()[0];
    let frames = [ping(id, epoch, 0, NEXT), probe(id, epoch, 0, NEXT + 1, 1500)];
    let (before, now) = (initiator(&s, client), Time(s.world.now));
    for bytes in frames.iter().flat_map(|frame| damaged(frame)) {
        let it = s.world.clients[client].initiator.as_mut().expect("it runs");
        it.on_frame(now, 0, &mut received(server, &bytes));
        assert_eq!(initiator(&s, client), before, "{bytes:02x?}");
    }
    let it = s.world.clients[client].initiator.as_mut().expect("it runs");
    it.on_frame(now, 0, &mut received(server, &frames[0]));
    assert_ne!(initiator(&s, client), before, "had it been unsealed");
}

/// A session that was promised is made by the first frame of it that is unsealed: whether a target with this
/// fault made it for one that is not.
fn is_made_unsealed(canary: TargetCanary) -> bool {
    let mut s = Scene::with(1, |config| config.canary = canary);
    let mut flooder = Flooder::new(&mut s);
    flooder.open(&mut s, 1, false);
    let (session, epoch) = flooder.welcomes.borrow()[0];
    let frame = ping(session, epoch, 0, 1);
    let before = target(&s);
    for bytes in damaged(&frame) {
        throw(&mut s, flooder.station, &bytes);
        if target(&s) != before {
            return true;
        }
    }
    throw(&mut s, flooder.station, &frame);
    assert_eq!(s.world.target(0).sessions().len(), 1, "the frame itself is good");
    false
}

#[test]
fn a_promised_session_is_not_made_for_what_is_not_unsealed() {
    assert!(!is_made_unsealed(TargetCanary::None));
}

#[test]
fn canary_that_makes_sessions_unsealed_is_found() {
    assert!(is_made_unsealed(TargetCanary::MadeUnsealed));
}
