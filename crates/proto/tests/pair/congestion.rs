//! Windows: they grow, and below one frame they pace.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_proto::SipRng;

use crate::stage::{BASE, Fate, Pair};

#[test]
fn two_per_cent_loss_does_not_close_the_window() {
    let mut rng = SipRng::new(5);
    let mut p = Pair::new(1, 9000);
    p.judge(move |_| if rng.below(50) == 0 { Fate::Drop } else { Fate::Pass });
    p.run(Duration::from_secs(1));
    for slot in 1..6 {
        p.transfer(0, slot, 4 << 20);
        p.until("arriving", |p| p.arrived(1, slot) == 4 << 20);
    }
    assert!(p.path(0, 0).window_bytes >= 32 * 9000, "{}", p.path(0, 0).window_bytes);
}

#[test]
fn a_window_below_one_frame_is_paced_and_recovers() {
    let mut p = Pair::new(1, BASE);
    let loss = Rc::new(Cell::new(80));
    let rate = loss.clone();
    let mut rng = SipRng::new(5);
    p.judge(
        move |sent| {
            if sent.side == 0 && rng.below(100) < rate.get() { Fate::Drop } else { Fate::Pass }
        },
    );
    p.transfer(0, 1, 1 << 20);
    p.until("shrinking", |p| p.path(0, 0).window_bytes < BASE);
    // Less than a frame a round trip goes out, but for what probe timeouts add.
    let (mut frames, mut time) = (0, Duration::ZERO);
    for _ in 0..4000 {
        let (sent, now) = (p.path(0, 0).frames_sent, p.now);
        let is_small = p.path(0, 0).window_bytes < BASE;
        p.step(p.now + Duration::from_millis(1));
        if is_small {
            frames += p.path(0, 0).frames_sent - sent;
            time += p.now.since(now);
        }
    }
    let rounds = time.as_micros() / 100;
    assert!(u128::from(frames) < rounds / 2, "{frames} frames in {rounds} round trips");
    loss.set(0);
    p.until("arriving", |p| p.arrived(1, 1) == 1 << 20);
    assert!(p.path(0, 0).window_bytes >= 8 * BASE);
}

#[test]
fn what_the_peer_has_room_for_bounds_what_is_in_flight() {
    let mut p = Pair::new(1, BASE);
    p.transfer(0, 1, 4 << 20);
    p.until("arriving", |p| p.arrived(1, 1) == 4 << 20);
    p.sessions[1].set_room(thinwire_buffer::Room { frames: 5, bytes: 64 << 10 });
    p.run(Duration::from_millis(20));
    p.transfer(0, 2, 1 << 20);
    let mut most = 0;
    p.until("arriving", |p| {
        most = most.max(p.path(0, 0).in_flight_bytes);
        p.arrived(1, 2) == 1 << 20
    });
    assert!(most <= 5 * BASE, "{most}");
}
