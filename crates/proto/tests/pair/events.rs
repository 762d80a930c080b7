//! Single frames: past, expected and future numbers, strangers, credits.

use std::time::Duration;

use thinwire_buffer::{Addr, TxFrame};
use thinwire_proto::{DropReason, seal};
use thinwire_wire::{TAG_AT, TAG_BYTES};

use crate::stage::{BASE, Fate, Pair, addr};

/// The newest frame of side 0 that carries a session, changed and sealed anew.
fn forged(p: &Pair, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let newest = p.sent.iter().rev().find(|(side, _, bytes)| *side == 0 && bytes[1] == 1);
    let mut head = newest.expect("something was sent").2.clone();
    change(&mut head);
    head[TAG_AT..][..TAG_BYTES].fill(0);
    let mut frame = TxFrame::new(Addr::Group, head);
    seal(&mut frame);
    frame.head
}

fn numbered(p: &Pair, number: u64) -> Vec<u8> {
    forged(p, |head| head[16..24].copy_from_slice(&number.to_be_bytes()))
}

/// 5000 frames of one item each.
fn long_session() -> Pair {
    let mut p = Pair::new(1, BASE);
    for n in 1..5001 {
        p.say(0, n..n + 1);
        p.run(Duration::from_micros(20));
    }
    p.until("hearing", |p| p.sides[1].heard.len() == 5000);
    p.run(Duration::from_millis(50));
    p.drops.clear();
    p
}

fn throw(p: &mut Pair, bytes: &[u8]) -> Option<DropReason> {
    let heard = p.sides[1].heard.len();
    p.deliver(1, 0, addr(0, 0), bytes);
    let reason = p.drops.pop();
    assert_eq!(p.sides[1].heard.len() == heard, reason.is_some(), "all of it, or nothing");
    reason
}

#[test]
fn past_expected_and_future_packet_numbers() {
    let mut p = long_session();
    let newest = p.sent.iter().rev().find(|(side, _, bytes)| *side == 0 && bytes[1] == 1);
    let newest = u64::from_be_bytes(newest.unwrap().2[16..24].try_into().unwrap());
    assert!(newest >= 5000);
    let frame = forged(&p, |_| {});
    assert_eq!(throw(&mut p, &frame), Some(DropReason::Duplicate));
    for (number, expected) in [
        (0, Some(DropReason::TooOld)),
        (1, Some(DropReason::TooOld)),
        (newest - 4096, Some(DropReason::TooOld)),
        (newest - 4095, Some(DropReason::Duplicate)),
        (newest - 1, Some(DropReason::Duplicate)),
        (newest + (1 << 33), Some(DropReason::TooFarAhead)),
        (u64::MAX, Some(DropReason::TooFarAhead)),
        (newest + 1, None),
        (newest + 100, None),
        (newest + 50, None),
        (newest + 50, Some(DropReason::Duplicate)),
    ] {
        let frame = numbered(&p, number);
        // Only the item of an accepted frame is heard again.
        assert_eq!(throw(&mut p, &frame), expected, "number {number} after {newest}");
    }
}

#[test]
fn frames_of_other_epochs_paths_and_stations_are_refused() {
    let mut p = long_session();
    let other_epoch = forged(&p, |head| head[24..28].copy_from_slice(&8u32.to_be_bytes()));
    assert_eq!(throw(&mut p, &other_epoch), Some(DropReason::Epoch));
    let other_path = forged(&p, |head| head[30] = 3);
    assert_eq!(throw(&mut p, &other_path), Some(DropReason::Path));
    let fresh = numbered(&p, 1 << 20);
    p.deliver(1, 0, addr(0, 9), &fresh);
    assert_eq!(p.drops.pop(), Some(DropReason::Path), "from another station");
    assert_eq!(throw(&mut p, &fresh), None, "and it did no harm");
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_changes_nothing() {
    let mut p = Pair::new(1, BASE);
    p.say(0, 1..2);
    p.say(1, 1..2);
    p.run(Duration::from_millis(50));
    p.judge(|_| Fate::Drop);
    p.say(1, 2..30);
    p.step(p.now + Duration::from_micros(1));
    let before = p.path(1, 0).in_flight_bytes;
    assert!(before > 0);
    let lie = forged(&p, |head| {
        head[16..24].copy_from_slice(&900u64.to_be_bytes());
        head[48] |= 1;
        head[56..64].copy_from_slice(&u64::MAX.to_be_bytes());
        head[64..72].fill(0xff);
    });
    p.deliver(1, 0, addr(0, 0), &lie);
    assert_eq!(p.path(1, 0).in_flight_bytes, before);
    // Nor is anything lost by it.
    p.judge(|_| Fate::Pass);
    p.until("hearing", |p| p.sides[0].heard.len() >= 29);
}

/// A session that has had 2^32 requests goes on: the total of slots wraps, and is compared so.
#[test]
fn a_total_of_slots_wraps() {
    let mut p = Pair::new(1, BASE);
    let before = u32::MAX - 10;
    p.sessions[0].set_peer_grant(before, 1 << 20);
    for slots in [before, 20, 50] {
        p.sessions[1].grant(slots, 1 << 20);
        p.say(1, slots..slots + 1);
        p.run(Duration::from_millis(1));
        assert_eq!(p.sessions[0].peer_grant().0, slots);
    }
}

#[test]
fn credits_are_absolute_and_the_highest_wins() {
    let mut p = Pair::new(1, BASE);
    let mut flip = 0;
    p.judge(move |sent| {
        flip += 1;
        match (sent.side, flip % 4) {
            (1, 0) => Fate::Drop,
            (1, 1) => Fate::Late(Duration::from_millis(3)),
            (1, 2) => Fate::Twice(Duration::from_millis(2)),
            _ => Fate::Pass,
        }
    });
    let mut seen = (0, 0);
    for step in 1..400u32 {
        p.sessions[1].grant(step * 3, u64::from(step) << 19);
        if step % 3 == 0 {
            p.say(1, step..step + 1);
        }
        p.run(Duration::from_micros(100));
        let now = p.sessions[0].peer_grant();
        assert!(now.0 >= seen.0 && now.1 >= seen.1, "{now:?} after {seen:?}");
        seen = now;
    }
    p.run(Duration::from_millis(100));
    let (slots, bytes) = p.sessions[0].peer_grant();
    // What is worth a message of its own has been told: less than 32 slots or a quarter is missing.
    assert!(slots > 399 * 3 - 40 && bytes >= 398 << 19, "{slots} {bytes}");
}

/// What was on its way when the peer died arrives, and says nothing of whether it lives: only what answers something
/// that was sent since does.
#[test]
fn a_frame_from_before_is_no_sign_of_life() {
    let mut p = Pair::new(1, BASE);
    p.say(0, 1..2);
    p.say(1, 1..2);
    p.run(Duration::from_millis(50));
    p.say(0, 2..3);
    p.run(Duration::from_micros(10));
    p.judge(|_| Fate::Drop);
    let then = p.now;
    p.run(Duration::from_millis(1));
    assert_eq!(p.sides[1].heard, [1, 2]);
    let target = &p.sessions[1];
    assert!(target.last_heard() > then && !target.answered_since(then));
    p.judge(|_| Fate::Pass);
    p.sessions[1].ask(p.now);
    p.run(Duration::from_millis(50));
    assert!(p.sessions[1].answered_since(then));
}
