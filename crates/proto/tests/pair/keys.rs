//! What keys change, and what nobody without them can do (`docs/protocol.md`, "Frame header", "Keys").

use std::time::Duration;

use thinwire_proto::{DropReason, RekeyLimits, SipRng};
use thinwire_seal::Suite;
use thinwire_wire::{FrameError, Header, PUBLIC_BYTES};

use crate::stage::{Fate, Pair, addr, pattern};

const FORGED: DropReason = DropReason::Frame(FrameError::Forged);

fn keyed(suite: Suite) -> Pair {
    Pair::with_keys(1, 9000, suite, RekeyLimits::default())
}

/// All that a peer can change of a session, and others must not.
pub fn state(p: &Pair, side: usize) -> String {
    let session = &p.sessions[side];
    let (grant, deadline) = (session.peer_grant(), session.deadline(p.now));
    let paths: Vec<_> = session.path_reports().collect();
    let heard = (session.last_heard(), session.queued(), session.in_flight_items());
    format!(
        "{:?} {grant:?} {deadline:?} {paths:?} {heard:?} {:?}",
        session.stats(),
        p.sides[side].heard
    )
}

#[test]
fn every_suite_carries_everything_over_a_bad_wire() {
    for (seed, suite) in (0..).zip(Suite::ALL) {
        let mut rng = SipRng::new(seed);
        let mut p = keyed(suite);
        p.judge(move |_| match rng.below(10) {
            0 | 1 => Fate::Drop,
            2 => Fate::Twice(Duration::from_micros(rng.below(2000))),
            3 => Fate::Late(Duration::from_micros(rng.below(2000))),
            _ => Fate::Pass,
        });
        p.say(0, 1..101);
        p.transfer(0, 3, 1 << 20);
        p.transfer(1, 4, 1 << 20);
        let all = |p: &Pair| p.arrived(1, 3) == 1 << 20 && p.arrived(0, 4) == 1 << 20;
        p.until("arriving", all);
        assert!(p.drops.contains(&DropReason::Duplicate), "{suite}");
        assert!(!p.drops.contains(&FORGED), "{suite}");
        let headers = p.sent.iter().map(|(_, _, bytes)| Header::parse(bytes, bytes.len()).unwrap());
        assert!(headers.clone().all(|h| h.suite == suite.number()), "{suite}");
    }
}

#[test]
fn what_hides_shows_nothing_and_what_only_authenticates_shows_it() {
    for suite in Suite::ALL {
        let mut p = keyed(suite);
        p.transfer(0, 3, 64 << 10);
        p.until("arriving", |p| p.arrived(1, 3) == 64 << 10);
        let piece = pattern(512, 16);
        let shows = |bytes: &[u8]| bytes.windows(piece.len()).any(|window| window == piece);
        assert_eq!(p.sent.iter().any(|(_, _, bytes)| shows(bytes)), !suite.hides(), "{suite}");
    }
}

/// A pair that has talked, and frames of the initiator's that the target has not seen.
fn with_unseen_frames(suite: Suite) -> (Pair, Vec<Vec<u8>>) {
    let mut p = keyed(suite);
    p.say(0, 1..4);
    p.until("hearing", |p| p.sides[1].heard.len() == 3);
    p.run(Duration::from_millis(50));
    p.judge(|sent| if sent.side == 0 { Fate::Drop } else { Fate::Pass });
    let before = p.sent.len();
    p.say(0, 4..6);
    p.transfer(0, 3, 8192);
    p.run(Duration::from_micros(100));
    let unseen = p.sent[before..].iter().filter(|(side, _, _)| *side == 0);
    let unseen: Vec<_> = unseen.map(|(_, _, bytes)| bytes.clone()).collect();
    assert!(unseen.iter().any(|bytes| bytes.len() > 4096));
    (p, unseen)
}

#[test]
fn one_bit_anywhere_makes_a_frame_a_forgery_that_changes_nothing() {
    for suite in Suite::ALL {
        let (mut p, unseen) = with_unseen_frames(suite);
        for frame in &unseen {
            let before = state(&p, 1);
            // All of the header, and some of what is behind it.
            for at in (0..PUBLIC_BYTES * 8 + 64)
                .chain((PUBLIC_BYTES * 8 + 64..frame.len() * 8).step_by(997))
            {
                let mut forged = frame.clone();
                forged[at / 8] ^= 1 << (at % 8);
                p.drops.clear();
                p.deliver(1, 0, addr(0, 0), &forged);
                assert_eq!(p.drops.len(), 1, "{suite}: bit {at} is noticed");
                let is_public = at < PUBLIC_BYTES * 8;
                assert!(is_public || p.drops == [FORGED], "{suite}, {at}: {:?}", p.drops);
                assert_eq!(state(&p, 1), before, "{suite}: bit {at} changes nothing");
            }
        }
        // They were good.
        p.drops.clear();
        unseen.iter().for_each(|frame| p.deliver(1, 0, addr(0, 0), frame));
        assert_eq!((p.drops.len(), p.arrived(1, 3)), (0, 8192), "{suite}");
    }
}

#[test]
fn what_came_before_keeps_nothing_alive() {
    let mut p = keyed(Suite::Aes128Gcm);
    p.say(0, 1..30);
    p.transfer(0, 3, 64 << 10);
    p.until("arriving", |p| p.arrived(1, 3) == 64 << 10 && p.sides[1].heard.len() == 29);
    p.run(Duration::from_millis(20));
    let (before, sent) = (state(&p, 1), p.sent.clone());
    p.now = p.now + Duration::from_millis(1);
    p.drops.clear();
    for (_, link, bytes) in sent.iter().filter(|(side, _, _)| *side == 0) {
        p.deliver(1, *link, addr(0, *link), bytes);
    }
    assert!(p.drops.len() > 10 && p.drops.iter().all(|&why| why == DropReason::Duplicate));
    assert_eq!(
        state(&p, 1).replace(&format!("{:?}", p.now), ""),
        before.replace(&format!("{:?}", p.now), "")
    );
}

#[test]
fn ones_own_frames_and_those_of_other_keys_are_forgeries() {
    let mut p = keyed(Suite::ChaCha20Poly1305);
    p.say(0, 1..3);
    p.say(1, 1..3);
    p.judge(|_| Fate::Drop);
    p.run(Duration::from_micros(100));
    let (side, _, bytes) = p.sent[0].clone();
    let session = if side == 0 { 1u64 } else { 2 };
    // Reflected, with the id of the session that it is to be taken for.
    let mut back = bytes.clone();
    back[8..16].copy_from_slice(&session.to_be_bytes());
    p.deliver(side, 0, addr(1 - side, 0), &back);
    assert_eq!(p.drops, [FORGED]);
    // Without a key, or under another suite.
    let mut plain = Pair::new(1, 9000);
    plain.say(side, 1..3);
    plain.judge(|_| Fate::Drop);
    plain.run(Duration::from_micros(100));
    p.drops.clear();
    p.deliver(1 - side, 0, addr(side, 0), &plain.sent[0].2);
    let mut other = bytes;
    other[2] = Suite::Aes128Gcm.number();
    p.deliver(1 - side, 0, addr(side, 0), &other);
    assert_eq!(p.drops, [DropReason::Frame(FrameError::Suite); 2]);
    // And the other way: a session without keys takes nothing that has one.
    plain.drops.clear();
    plain.deliver(1 - side, 0, addr(side, 0), &p.sent[0].2);
    assert_eq!(plain.drops, [DropReason::Frame(FrameError::Suite)]);
}

#[test]
fn keys_change_under_way_and_nothing_stops() {
    for seed in 0..10 {
        let mut rng = SipRng::new(seed);
        let limits = RekeyLimits { frames: 40, ..RekeyLimits::default() };
        let mut p = Pair::with_keys(1, 9000, Suite::Aes128Gcm, limits);
        p.judge(move |_| match rng.below(10) {
            0 => Fate::Drop,
            1 => Fate::Late(Duration::from_micros(rng.below(3000))),
            _ => Fate::Pass,
        });
        for slot in 0..6 {
            p.transfer(0, slot, 1 << 20);
            p.transfer(1, slot, 1 << 20);
            let all = |p: &Pair| (0..2).all(|side| p.arrived(side, slot) == 1 << 20);
            p.until("arriving", all);
            p.run(Duration::from_millis(25));
        }
        for session in &p.sessions {
            assert!(session.keys().unwrap().advances() > 2, "{session:?}");
        }
        assert!(!p.drops.contains(&FORGED), "what is late is opened with the former key");
    }
}

/// A frame of the next phase, but one: nobody can make the receiver go on.
#[test]
fn the_next_key_needs_a_frame_that_is_sealed_with_it() {
    let (mut p, unseen) = with_unseen_frames(Suite::Aes128Gcm);
    let before = state(&p, 1);
    for phase in 1..=u8::MAX {
        let mut forged = unseen[0].clone();
        forged[3] = phase;
        p.drops.clear();
        p.deliver(1, 0, addr(0, 0), &forged);
        assert_eq!(p.drops, [FORGED], "phase {phase}");
    }
    assert_eq!(state(&p, 1), before);
    p.drops.clear();
    p.deliver(1, 0, addr(0, 0), &unseen[0]);
    assert!(p.drops.is_empty());
}

#[test]
fn a_former_key_is_forgotten() {
    let limits = RekeyLimits { frames: 30, ..RekeyLimits::default() };
    let mut p = Pair::with_keys(1, 1500, Suite::Aes128Gcm, limits);
    // The first large frame of the first phase comes far too late.
    let mut held = false;
    p.judge(move |sent| {
        if sent.side == 0 && sent.bytes[3] == 0 && sent.bytes.len() > 1000 && !held {
            held = true;
            return Fate::Late(Duration::from_secs(1));
        }
        Fate::Pass
    });
    p.transfer(0, 3, 1 << 20);
    p.until("arriving", |p| p.arrived(1, 3) == 1 << 20);
    p.run(Duration::from_millis(500));
    for number in 0..40 {
        p.say(0, number..number + 1);
        p.run(Duration::from_millis(20));
    }
    assert!(p.drops.iter().all(|&why| why == FORGED || why == DropReason::TooOld), "{:?}", p.drops);
    assert_eq!(p.drops.len(), 1, "{:?}", p.drops);
}

/// That frames of the former key arrive says nothing of the one in use: who went on by it would be two keys ahead
/// of a peer that has seen none.
#[test]
fn what_the_former_key_sealed_confirms_nothing() {
    let limits = RekeyLimits { frames: 30, ..RekeyLimits::default() };
    let mut p = Pair::with_keys(1, 1500, Suite::Aes128Gcm, limits);
    // Of the second key nothing arrives for a while, and of the first late: its acknowledgements come behind
    // the change.
    let until = p.now + Duration::from_secs(2);
    p.judge(move |sent| match (sent.side, sent.bytes[3]) {
        (0, 0) if sent.bytes.len() > 1000 => Fate::Late(Duration::from_millis(60)),
        (0, 1..) if sent.now < until => Fate::Drop,
        _ => Fate::Pass,
    });
    let advances = |p: &Pair| p.sessions[0].keys().unwrap().advances();
    p.say(0, 1..3);
    p.run(Duration::from_millis(5));
    p.transfer(0, 3, 256 << 10);
    p.until("going to the second key", |p| advances(p) == 1);
    for number in 0.. {
        // Something to acknowledge, so that the second key is used often enough.
        p.say(1, number..number + 1);
        p.run(Duration::from_millis(10));
        if p.now >= until {
            break;
        }
        assert_eq!(advances(&p), 1, "at {:?}", p.now);
    }
    p.until("arriving", |p| p.arrived(1, 3) == 256 << 10);
}

#[test]
fn a_day_is_enough_for_a_key_and_silence_for_none() {
    let limits = RekeyLimits { time: Duration::from_secs(1), ..RekeyLimits::default() };
    let mut p = Pair::with_keys(1, 1500, Suite::Aes128Gcm, limits);
    for number in 0..30 {
        p.say(0, number..number + 1);
        p.run(Duration::from_millis(100));
    }
    let advances = |p: &Pair, side: usize| p.sessions[side].keys().unwrap().advances();
    assert!((2..=3).contains(&advances(&p, 0)), "{}", advances(&p, 0));
    // Nothing is acknowledged any more: the peer may not have the key in use.
    p.judge(|_| Fate::Drop);
    let before = advances(&p, 0);
    p.say(0, 50..60);
    p.run(Duration::from_secs(5));
    assert!(advances(&p, 0) <= before + 1, "{} after {before}", advances(&p, 0));
}
