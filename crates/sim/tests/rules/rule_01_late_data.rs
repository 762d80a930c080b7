//! Rule 1: data of an earlier use of a slot, and data that is there already, is not placed.

use std::time::Duration;

use thinwire_link::sim::Verdict;
use thinwire_proto::DropReason;
use thinwire_sim::world::MS;
use thinwire_volume::Op;
use thinwire_wire::{Frame, Message};

use crate::scene::{Scene, at, ms};

fn carries_data(bytes: &[u8]) -> bool {
    Frame::parse(bytes)
        .is_ok_and(|frame| frame.messages().any(|m| matches!(m, Message::Data(d) if d.length > 0)))
}

/// A write's frame is slow, is sent again, the write completes, its slot is used anew, and then
/// the frame arrives.
#[test]
fn rule_01_late_data_is_dropped() {
    for links in [1, 2] {
        let mut s = Scene::with(links, |c| c.slots = 1).with_client();
        let mut slowed = 0;
        s.world.set_judge(move |_, _, bytes| {
            if slowed < 3 && carries_data(bytes) {
                slowed += 1;
                return Verdict::Delay(200 * MS);
            }
            Verdict::Pass
        });
        s.write(at(0, 8));
        s.write(at(0, 8));
        s.write(at(0, 8));
        s.pass(ms(500));
        s.read(at(0, 8));
        let drops = s.world.target(0).stats().drops;
        assert!(drops.get(DropReason::LateDuplicate) >= 1, "{links} links");
        assert_eq!(s.world.target(0).stats().requests, 4, "each executed once");
        s.end();
    }
}

/// The same the other way: late data of a read must not fall into the next read's buffer.
#[test]
fn rule_01_late_data_of_a_read_is_dropped() {
    let mut s = Scene::with(1, |c| c.slots = 1).with_client();
    for n in 0..8 {
        s.write(at(n * 8, 8));
    }
    let server = s.world.servers[0].stations()[0];
    let mut seen = 0;
    s.world.set_judge(move |from, _, bytes| {
        if from == server && carries_data(bytes) {
            seen += 1;
            return if seen % 3 == 1 { Verdict::Delay(30 * MS) } else { Verdict::Repeat(5 * MS) };
        }
        Verdict::Pass
    });
    for n in 0..40 {
        s.read(at(n % 8 * 8, 8));
    }
    s.pass(Duration::from_secs(1));
    assert!(s.stats(0).drops.get(DropReason::LateDuplicate) >= 1);
    s.end();
}

/// Data before its request, in any order and twice, makes one write.
#[test]
fn rule_01_data_comes_before_its_request() {
    let mut s = Scene::new().with_client();
    s.world.set_judge(move |_, _, bytes| {
        let is_request = Frame::parse(bytes)
            .is_ok_and(|f| f.messages().any(|m| matches!(m, Message::Request(_))));
        match (is_request, carries_data(bytes)) {
            (true, false) => Verdict::Delay(3 * MS),
            (_, true) => Verdict::Repeat(MS),
            _ => Verdict::Pass,
        }
    });
    let tokens: Vec<_> = (0..10).map(|n| s.submit(0, Op::Write, at(n * 100, 90))).collect();
    for token in tokens {
        s.outcome(0, token).result.unwrap();
    }
    s.read(at(0, 1000));
    s.end();
}
