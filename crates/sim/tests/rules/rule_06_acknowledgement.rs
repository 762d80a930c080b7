//! Rule 6: acknowledgements name what arrived, and lost ones do no harm.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_link::sim::{FaultRates, Verdict};
use thinwire_sim::world::SimHost;
use thinwire_volume::Op;
use thinwire_wire::{Frame, Kind, Message};

use crate::scene::{Scene, at, ms};

/// Hundreds of frames without a single acknowledgement getting back.
#[test]
fn rule_06_acknowledgements_are_lost_for_a_while() {
    let mut s = Scene::new().with_client();
    let tokens: Vec<_> = (0..4).map(|n| s.submit(0, Op::Write, at(n * 500, 500))).collect();
    s.pass(std::time::Duration::from_micros(300));
    s.world.set_way(SimHost::Server(0), SimHost::Client(0), false);
    s.pass(ms(250));
    s.world.set_way(SimHost::Server(0), SimHost::Client(0), true);
    for token in tokens {
        s.outcome(0, token).result.unwrap();
    }
    s.read(at(0, 2000));
    assert_eq!(s.world.target(0).stats().requests, 5);
    s.end();
}

/// Every third frame is lost, both ways: holes everywhere, more than 64 numbers in the air.
#[test]
fn rule_06_holes_are_mended_one_by_one() {
    let mut s = Scene::with(1, |c| c.credit_bytes = 8 << 20).with_client();
    let count = Rc::new(Cell::new(0u32));
    s.world.set_judge(move |_, _, _| {
        count.set(count.get() + 1);
        if count.get() % 3 == 0 { Verdict::Drop } else { Verdict::Pass }
    });
    let tokens: Vec<_> = (0..4)
        .flat_map(|n| [(Op::Write, n), (Op::Read, n)])
        .map(|(op, n)| s.submit(0, op, at(n * 500, 500)))
        .collect();
    for token in tokens {
        s.outcome(0, token).result.unwrap();
    }
    assert_eq!(s.world.target(0).stats().requests, 8);
    s.world.clear_judge();
    s.end();
}

#[test]
fn rule_06_duplicates_and_disorder_change_nothing() {
    let mut s = Scene::new().with_client();
    s.world.net.set_faults(FaultRates { dup: 0.5, reorder: 0.5, ..FaultRates::default() });
    for n in 0..50 {
        s.write(at(n * 7, 20));
        s.read(at(n * 7, 20));
    }
    assert_eq!(s.world.target(0).stats().requests, 100);
    s.end();
}

/// A duplicate is acknowledged at once, for its acknowledgement may have been lost; but a duplicate
/// of what asks for none is not, or two ends would answer each other for ever.
#[test]
fn rule_06_a_repeated_acknowledgement_is_not_answered() {
    let mut s = Scene::new().with_client();
    let count = Rc::new(Cell::new(0u32));
    let repeated = count.clone();
    s.world.set_judge(move |_, _, bytes| {
        let acknowledges = Frame::parse(bytes).is_ok_and(|f| {
            f.header().kind == Kind::Session
                && f.messages().all(|m| matches!(m, Message::AckRanges(_)))
        });
        if !acknowledges {
            return Verdict::Pass;
        }
        repeated.set(repeated.get() + 1);
        Verdict::Repeat(50_000)
    });
    for n in 0..4 {
        s.write(at(n * 500, 500));
        s.read(at(n * 500, 500));
    }
    s.pass(ms(100));
    let before = count.get();
    assert!((1..200).contains(&before), "{before} acknowledgements");
    s.pass(ms(1000));
    assert_eq!(count.get(), before, "of what?");
    s.end();
}
