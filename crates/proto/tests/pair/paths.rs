//! Several paths: probing, failing over, coming back, and the frame sizes they carry.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_proto::{Notice, PathState};

use crate::stage::{BASE, Fate, Pair};

fn notices(p: &mut Pair) -> Vec<Notice> {
    std::iter::from_fn(|| p.sessions[0].take_notice()).collect()
}

#[test]
fn a_second_path_is_probed_and_used() {
    let mut p = Pair::new(2, 9000);
    p.run(Duration::from_millis(200));
    assert_eq!(p.sessions[0].active_paths(), 2);
    assert_eq!(p.sessions[1].active_paths(), 2, "the target learns of it");
    p.transfer(0, 1, 4 << 20);
    p.until("arriving", |p| p.arrived(1, 1) == 4 << 20);
    for id in 0..2 {
        let frames = p.path(0, id).frames_sent;
        assert!(frames > 50, "path {id} carried {frames}");
    }
}

#[test]
fn a_dead_path_s_information_moves_to_the_other_and_it_returns() {
    let mut p = Pair::new(2, 9000);
    p.run(Duration::from_millis(200));
    let cut = Rc::new(Cell::new(true));
    let is_cut = cut.clone();
    p.judge(move |sent| if sent.link == 0 && is_cut.get() { Fate::Drop } else { Fate::Pass });
    p.transfer(0, 1, 2 << 20);
    let before = p.now;
    p.until("arriving", |p| p.arrived(1, 1) == 2 << 20);
    assert!(p.now.since(before) < Duration::from_secs(1), "{:?}", p.now.since(before));
    p.until("noticing", |p| p.path(0, 0).state == PathState::Dead);
    assert!(notices(&mut p).contains(&Notice::PathDown(0)));
    cut.set(false);
    p.until("returning", |p| p.path(0, 0).state == PathState::Active);
    assert!(notices(&mut p).contains(&Notice::PathUp(0)));
    p.transfer(0, 2, 4 << 20);
    let carried = p.path(0, 0).frames_sent;
    p.until("arriving", |p| p.arrived(1, 2) == 4 << 20);
    assert!(p.path(0, 0).frames_sent > carried + 20, "it is used again");
}

/// With so little to send that either path would do, the slower is left alone, but not for good.
#[test]
fn a_path_that_was_slow_once_is_tried_again() {
    let mut p = Pair::new(2, 9000);
    p.run(Duration::from_millis(200));
    let slow = Rc::new(Cell::new(true));
    let is_slow = slow.clone();
    p.judge(move |sent| match sent.link == 1 && is_slow.get() {
        true => Fate::Late(Duration::from_millis(4)),
        false => Fate::Pass,
    });
    // One at a time, both ways.
    let mut said = 0;
    let mut chat = |p: &mut Pair, time: Duration| {
        let end = p.now + time;
        while p.now < end {
            said += 1;
            p.say(0, said..said + 1);
            p.say(1, said..said + 1);
            p.run(Duration::from_millis(1));
        }
    };
    chat(&mut p, Duration::from_secs(1));
    let carried = |p: &Pair, side| p.path(side, 1).frames_sent;
    let before = [carried(&p, 0), carried(&p, 1)];
    chat(&mut p, Duration::from_secs(2));
    let while_slow = [carried(&p, 0) - before[0], carried(&p, 1) - before[1]];
    slow.set(false);
    // It is the faster one from now on.
    p.judge(
        |sent| if sent.link == 0 { Fate::Late(Duration::from_micros(100)) } else { Fate::Pass },
    );
    chat(&mut p, Duration::from_secs(1));
    let before = [carried(&p, 0), carried(&p, 1)];
    chat(&mut p, Duration::from_secs(2));
    for side in 0..2 {
        assert!((1..20).contains(&while_slow[side]), "slow: {while_slow:?} of 2000");
        let since = carried(&p, side) - before[side];
        assert!(since > 1900, "side {side}: fast, but only {since} of 2000");
    }
}

#[test]
fn when_all_paths_break_what_waits_is_sent_afterwards() {
    let mut p = Pair::new(2, 9000);
    p.run(Duration::from_millis(200));
    p.judge(|_| Fate::Drop);
    p.say(0, 1..101);
    p.transfer(1, 4, 1 << 20);
    p.run(Duration::from_secs(5));
    assert!(!p.sessions[0].is_connected() && p.sides[1].heard.is_empty());
    p.judge(|_| Fate::Pass);
    p.until("hearing", |p| p.sides[1].heard.len() >= 100 && p.arrived(0, 4) == 1 << 20);
}

#[test]
fn the_frame_size_is_what_passes() {
    for (carries, found) in [(65_535, 9000), (9000, 9000), (8999, 8972), (4400, 4288), (1500, 1500)]
    {
        let mut p = Pair::new(1, 9000);
        p.judge(move |sent| if sent.bytes.len() > carries { Fate::Drop } else { Fate::Pass });
        p.run(Duration::from_secs(5));
        assert_eq!(p.path(0, 0).frame_bytes, found, "a wire of {carries}");
        assert_eq!(p.sessions[0].stats().frames_lost, 0, "probes are no loss");
        let warned = notices(&mut p).iter().any(|n| matches!(n, Notice::FrameSize { .. }));
        assert_eq!(warned, found < 9000);
        // Found within the first second; then the search begins anew after 60.
        let retry = p.path(0, 0).full_size_retry.map(|at| at.since(p.now).as_secs());
        assert_eq!(retry.is_some(), found < 9000);
        assert!(retry.is_none_or(|left| (54..60).contains(&left)), "in {retry:?} s");
        p.transfer(0, 1, 1 << 20);
        p.until("arriving", |p| p.arrived(1, 1) == 1 << 20);
    }
}

/// Large probes vanish, and after a pause of a machine each of them is waited for for long: whether
/// anybody is there is asked in between.
#[test]
fn a_search_for_the_frame_size_does_not_hide_that_nobody_is_there() {
    let mut p = Pair::new(1, 65_535);
    p.judge(|sent| if sent.bytes.len() > 1500 { Fate::Drop } else { Fate::Pass });
    p.latency = Duration::from_millis(60);
    p.say(0, 1..2);
    p.until("an acknowledgement", |p| !p.sides[0].acked.is_empty());
    assert!(p.path(0, 0).rtt > Duration::from_millis(100));
    p.latency = Duration::from_micros(50);
    p.run(Duration::from_millis(10));
    assert_eq!(p.path(0, 0).state, PathState::Active);
    p.judge(|_| Fate::Drop);
    p.run(Duration::from_secs(4));
    assert_eq!(p.path(0, 0).state, PathState::Dead);
}

/// Rule 11: small frames pass, large ones vanish.
#[test]
fn a_black_hole_drops_to_the_base_size_and_data_is_cut_anew() {
    let mut p = Pair::new(1, 9000);
    p.run(Duration::from_secs(1));
    assert_eq!(p.path(0, 0).frame_bytes, 9000);
    let hole = Rc::new(Cell::new(true));
    let is_hole = hole.clone();
    p.judge(
        move |sent| {
            if is_hole.get() && sent.bytes.len() > BASE { Fate::Drop } else { Fate::Pass }
        },
    );
    p.transfer(0, 1, 1 << 20);
    p.until("arriving", |p| p.arrived(1, 1) == 1 << 20);
    assert_eq!(p.path(0, 0).frame_bytes, BASE);
    let retry = p.path(0, 0).full_size_retry.expect("tried again");
    assert!(retry.since(p.now) <= Duration::from_secs(10));
    hole.set(false);
    p.run(retry.since(p.now) + Duration::from_secs(1));
    assert_eq!(p.path(0, 0).frame_bytes, 9000, "tried again then");
    assert_eq!(p.path(0, 0).full_size_retry, None);
}

/// Where nobody has shown to receive, a target sends at most three times what came from there, however long it waits
/// (`docs/protocol.md`, "Addresses").
#[test]
fn a_path_that_is_not_proved_gets_little() {
    let mut p = Pair::new(2, BASE);
    let (came, went) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (has_come, has_gone) = (came.clone(), went.clone());
    p.judge(move |sent| match (sent.link, sent.side) {
        (0, _) => Fate::Pass,
        // One question, of somebody who may have lied about where it came from.
        (_, 0) if has_come.get() == 0 => {
            has_come.set(sent.bytes.len());
            Fate::Pass
        }
        (_, side) => {
            has_gone.set(has_gone.get() + side * sent.bytes.len());
            Fate::Drop
        }
    });
    p.run(Duration::from_secs(60));
    assert!((1..=3 * came.get()).contains(&went.get()), "{} for {}", went.get(), came.get());
}
