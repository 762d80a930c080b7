//! Rule 9: credits are absolute, and a grant that nobody is told of is none.

use thinwire_volume::Op;

use crate::scene::{Scene, at};

/// Reads give their credit back when their data is acknowledged: nothing else goes out then that
/// could tell it.
#[test]
fn rule_09_credit_that_came_back_is_told() {
    for credit_bytes in [1 << 20, 3 << 19, 2 << 20] {
        let mut s = Scene::with(1, |c| c.credit_bytes = credit_bytes).with_client();
        for round in 0..40 {
            let op = if round % 3 == 0 { Op::Write } else { Op::Read };
            let blocks = [2048, 1, 700, 1900][round % 4];
            s.run(op, at(0, blocks)).unwrap();
        }
        s.end();
    }
}

#[test]
fn rule_09_a_request_waits_for_credit_for_all_of_it() {
    let mut s = Scene::with(1, |c| {
        c.credit_bytes = 1 << 20;
        c.slots = 3;
    })
    .with_client();
    let tokens: Vec<_> = (0..64)
        .map(|n| {
            let op = if n % 2 == 0 { Op::Write } else { Op::Read };
            s.submit(0, op, at(n * 16, 32 + (n % 7) * 128))
        })
        .take(60)
        .collect();
    for token in tokens {
        s.outcome(0, token).result.unwrap();
    }
    let target = s.world.target(0).stats();
    assert_eq!(target.drops.get(thinwire_proto::DropReason::Overload), 0);
    s.end();
}
