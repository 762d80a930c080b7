//! What is kept for a peer that does not acknowledge (`docs/protocol.md`, "Bounds").

use std::time::Duration;

use thinwire_proto::{Item, Session};

use crate::stage::{BASE, Fate, Pair};

const ITEMS_MAX: usize = 16_384;

/// However much there is to send and whatever the windows allow, so much is in flight; the rest waits,
/// and all of it arrives once the peer is heard again.
#[test]
fn what_is_in_flight_is_bounded() {
    for links in [1, 16] {
        let mut p = Pair::new(links, BASE);
        // The windows grow.
        p.transfer(0, 1, 4 << 20);
        p.until("arriving", |p| p.arrived(1, 1) == 4 << 20);
        p.run(Duration::from_secs(1));
        p.judge(|sent| if sent.side == 1 && sent.bytes[1] == 1 { Fate::Drop } else { Fate::Pass });
        let said = 24_000;
        let mut most = 0;
        p.say(0, 1..said + 1);
        for _ in 0..4_000 {
            p.run(Duration::from_millis(1));
            most = most.max(p.sessions[0].in_flight_items());
        }
        assert!(most <= ITEMS_MAX, "{most} items in flight on {links} paths");
        assert!(most > 5_000, "{most} items in flight on {links} paths: the bound is not reached");
        assert!(p.sessions[0].queued() + most > said as usize - ITEMS_MAX);
        p.judge(|_| Fate::Pass);
        p.until("hearing", |p| {
            let heard: std::collections::BTreeSet<_> = p.sides[1].heard.iter().collect();
            heard.len() == said as usize
        });
    }
}

/// A session that cannot send says when too much waits; it drops nothing.
#[test]
fn a_queue_that_is_too_long_is_told() {
    let mut p = Pair::new(1, BASE);
    p.judge(|_| Fate::Drop);
    let say = |p: &mut Pair, count: u32| {
        (0..count).for_each(|n| p.sessions[0].send(Item::Attach(n)));
        p.run(Duration::from_millis(1));
    };
    say(&mut p, 20_000);
    assert!(!p.sessions[0].is_overrun());
    let before = p.sessions[0].queued();
    say(&mut p, 20_000);
    assert!(p.sessions[0].is_overrun());
    assert!(p.sessions[0].queued() >= before + 19_000);
}

/// The bound in bytes that the document tells: less than 4 MiB for what a session knows, payloads and
/// what its owner keeps not counted.
#[test]
fn a_session_is_small() {
    const { assert!(Session::BYTES_MAX < 4 << 20) };
}
