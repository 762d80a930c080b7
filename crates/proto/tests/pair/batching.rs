//! What a policy holds back: when it goes, and when it counts as sent.

use std::time::Duration;

use thinwire_proto::Batching;

use crate::stage::Pair;

/// A pair on a wire that has become quiet.
fn quiet(policy: &str) -> Pair {
    let batching = Batching { policy: policy.parse().unwrap(), data: true };
    let mut p = Pair::with(1, 9000, batching);
    p.run(Duration::from_secs(1));
    p
}

#[test]
fn a_request_counts_as_sent_with_its_last_piece() {
    let mut p = quiet("backlog");
    p.request(0, 1, 1 << 20);
    p.step(p.now + Duration::from_micros(1));
    assert!(p.path(0, 0).in_flight_bytes > 64 << 10, "most of it waits for the window");
    assert_eq!(p.last_pieces, [0, 0]);
    p.until("arriving", |p| p.arrived(1, 1) == 1 << 20);
    assert_eq!(p.last_pieces, [1, 0]);
}

#[test]
fn what_is_held_back_is_not_sent() {
    let mut p = quiet("static:8");
    p.request(0, 1, 512);
    p.run(Duration::from_millis(4));
    assert_eq!(p.last_pieces, [0, 0]);
    p.run(Duration::from_millis(2));
    assert_eq!((p.last_pieces, &p.sides[1].requested[..]), ([1, 0], &[1][..]));
}

#[test]
fn what_is_held_back_goes_when_its_time_is_over_although_nothing_else_happens() {
    for (policy, delay) in
        [("static:8", Duration::from_millis(5)), ("doorbell", Duration::from_micros(50))]
    {
        let mut p = quiet(policy);
        let start = p.now;
        (1..4).for_each(|slot| p.request(0, slot, 512));
        p.until("arriving", |p| p.sides[1].requested.len() == 3);
        assert_eq!(p.now.since(start), delay + p.latency, "{policy}");
    }
}
