//! What was sent arrives, whatever the wire does to frames.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_proto::{DropReason, Item, SipRng};
use thinwire_wire::Message;

use crate::stage::{Fate, Pair};

fn all_heard(p: &Pair, count: usize) -> bool {
    let mut heard = p.sides[1].heard.clone();
    heard.sort_unstable();
    heard.dedup();
    heard.len() == count
}

#[test]
fn everything_arrives_once_and_in_order_on_a_good_wire() {
    let mut p = Pair::new(1, 9000);
    p.say(0, 1..2001);
    p.until("hearing", |p| p.sides[1].heard.len() == 2000);
    p.until("acknowledging", |p| p.sides[0].acked.len() >= 2000);
    assert_eq!(p.sides[1].heard, (1..2001).collect::<Vec<_>>());
    assert_eq!(p.sessions[0].stats().frames_lost, 0);
    assert!(p.drops.is_empty(), "{:?}", p.drops);
    assert!(p.frames < 200, "many items share a frame: {}", p.frames);
}

/// Bursts of more frames than the header of an acknowledgement can name are no loss.
#[test]
fn a_large_window_loses_nothing_on_a_good_wire() {
    for limit in [BASE_ONLY, 9000] {
        let mut p = Pair::new(1, limit);
        for slot in 1..5 {
            p.transfer(0, slot, 4 << 20);
            p.until("arriving", |p| p.arrived(1, slot) == 4 << 20);
        }
        assert_eq!(p.sessions[0].stats().frames_lost, 0);
        assert!(p.path(0, 0).window_bytes > 300 * limit, "{:?}", p.path(0, 0));
    }
}

#[test]
fn loss_duplication_and_disorder_are_mended() {
    for seed in 0..20 {
        let mut rng = SipRng::new(seed);
        let mut p = Pair::new(1, 9000);
        p.judge(move |_| match rng.below(10) {
            0 | 1 => Fate::Drop,
            2 => Fate::Twice(Duration::from_micros(rng.below(2000))),
            3 => Fate::Late(Duration::from_micros(rng.below(2000))),
            _ => Fate::Pass,
        });
        p.say(0, 1..301);
        p.transfer(0, 3, 1 << 20);
        p.until("hearing", |p| all_heard(p, 300) && p.arrived(1, 3) == 1 << 20);
        assert!(p.sessions[0].stats().frames_lost > 0);
        assert!(p.drops.contains(&DropReason::Duplicate));
    }
}

/// The last frame of all is lost: nothing later can show it, only time can.
#[test]
fn a_probe_timeout_finds_a_lost_tail() {
    let mut p = Pair::new(1, BASE_ONLY);
    p.run(Duration::from_secs(1));
    let lost = Rc::new(Cell::new(0));
    let count = lost.clone();
    p.judge(move |sent| {
        if count.get() < 2 && sent.has(|m| matches!(m, Message::Attach(_))) {
            count.set(count.get() + 1);
            return Fate::Drop;
        }
        Fate::Pass
    });
    let before = p.now;
    p.say(0, 1..2);
    p.until("hearing", |p| all_heard(p, 1));
    assert_eq!(lost.get(), 2);
    assert!(p.sessions[0].stats().probe_timeouts >= 2);
    assert!(p.now.since(before) < Duration::from_millis(200), "{:?}", p.now.since(before));
}

const BASE_ONLY: usize = crate::stage::BASE;

#[test]
fn probe_timeouts_back_off() {
    let mut p = Pair::new(1, BASE_ONLY);
    p.say(0, 1..2);
    p.run(Duration::from_secs(1));
    let cut = p.now;
    let before = p.frames;
    p.judge(|sent| if sent.side == 1 { Fate::Drop } else { Fate::Pass });
    p.say(0, 2..3);
    p.run(Duration::from_secs(20));
    let frames = p.frames - before;
    assert!(frames < 150, "{frames} frames to nobody in {:?}", p.now.since(cut));
    // And it is mended when it can be.
    p.judge(|_| Fate::Pass);
    p.until("an acknowledgement", |p| p.sides[0].acked.contains(&Item::Attach(2)));
}

/// No acknowledgement gets through for a while; when one does, its 64 bits are too few for what
/// arrived meanwhile, and the long form tells the rest.
#[test]
fn acknowledgements_reach_further_back_than_the_header() {
    let mut p = Pair::new(1, BASE_ONLY);
    // Let the window grow first.
    p.transfer(0, 1, 4 << 20);
    p.until("growing", |p| p.arrived(1, 1) == 4 << 20);
    p.run(Duration::from_millis(10));
    assert!(p.path(0, 0).window_bytes > 300 * BASE_ONLY, "{:?}", p.path(0, 0));
    let long = Rc::new(Cell::new(0));
    let count = long.clone();
    let open_at = p.now + Duration::from_micros(700);
    p.judge(move |sent| {
        if sent.side == 1 && sent.has(|m| matches!(m, Message::AckRanges(_))) {
            count.set(count.get() + 1);
        }
        if sent.side == 1 && sent.now < open_at { Fate::Drop } else { Fate::Pass }
    });
    p.transfer(0, 2, 400 << 10);
    p.until("arriving", |p| p.arrived(1, 2) == 400 << 10);
    p.until("acknowledging", |p| p.path(0, 0).in_flight_bytes == 0);
    assert!(long.get() > 0, "the long form was used");
    let pieces = &p.sides[1].data;
    let again = pieces.iter().filter(|((slot, _), (_, times))| *slot == 2 && *times > 1).count();
    assert!(again <= 8, "{again} pieces were sent again though they had arrived");
}

/// One machine wakes up late every time (a starved guest, a processor quota): that its timers rest
/// after a stall must not mean that they never fire.
#[test]
fn a_machine_that_is_always_late_sends_again_what_was_lost() {
    for late in [0, 15, 25, 60] {
        let mut p = Pair::new(1, 9000);
        p.say(0, 1..2);
        p.until("hearing", |p| !p.sides[1].heard.is_empty());
        p.run(Duration::from_millis(100));
        let mut lost = false;
        p.judge(move |sent| {
            let is_first = sent.side == 0
                && sent.has(|m| matches!(m, Message::Attach(_)))
                && !std::mem::replace(&mut lost, true);
            if is_first { Fate::Drop } else { Fate::Pass }
        });
        p.say(0, 2..3);
        p.late(Duration::from_millis(late), 40);
        assert!(p.sides[1].heard.contains(&2), "late by {late} ms each time");
    }
}

/// Probe timeouts and dead paths make copies of what waits for an answer: they do not multiply.
#[test]
fn copies_of_one_question_do_not_fill_frames() {
    let mut p = Pair::new(1, 9000);
    for _ in 0..200 {
        p.say(0, 1..2);
    }
    p.until("hearing", |p| !p.sides[1].heard.is_empty());
    p.run(Duration::from_millis(100));
    assert_eq!(p.sides[1].heard, [1], "once in a frame, however often it waits");
}
