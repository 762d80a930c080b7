//! Rule 5: overlapping requests are never outstanding together.

use std::time::Duration;

use thinwire_initiator::WhenAway;
use thinwire_link::sim::Verdict;
use thinwire_sim::server::Crash;
use thinwire_sim::world::MS;
use thinwire_volume::{ErrorKind, Op};

use crate::scene::{Scene, at, ms};

/// The disk does what it has in any order, so it must not have both (the medium watches).
#[test]
fn rule_05_overlapping_ios_take_effect_in_the_order_of_submission() {
    let mut s = Scene::new().with_client();
    s.medium.set_latency(10_000, 3_000_000);
    let mut tokens = Vec::new();
    for n in 0..60 {
        let op = [Op::Write, Op::Read, Op::Write, Op::WriteZeroes, Op::Read][n % 5];
        tokens.push(s.submit(0, op, at(n * 5 % 40, 1 + n % 23)));
    }
    s.restart(Crash::Power);
    for token in tokens {
        s.outcome(0, token).result.unwrap();
    }
    s.read(at(0, 64));
    s.end();
}

/// A write that was given up may still be on its way: its range stays locked until the target has
/// confirmed that nothing comes of it any more.
#[test]
fn rule_05_a_given_up_request_keeps_its_range() {
    for late_ms in [400, 700, 1500, 2500] {
        let mut s = Scene::new();
        let client = s.client();
        s.world.clients[client].config.when_away = WhenAway::FailAfter(ms(200));
        s.attach(client);
        s.write(at(0, 8));
        let station = s.world.clients[client].machine.stations[0];
        // Everything the client sends arrives late, nothing gets back.
        s.world.set_judge(move |from, _, _| {
            if from == station { Verdict::Delay(late_ms * MS) } else { Verdict::Drop }
        });
        let first = s.submit(0, Op::Write, at(0, 8));
        assert_eq!(s.outcome(0, first).result, Err(ErrorKind::Away));
        s.world.clear_judge();
        s.until("back", |w| {
            let r = w.initiator(0).report(thinwire_proto::Time(w.now));
            r.phase == thinwire_initiator::Phase::Attached
        });
        s.write(at(0, 8));
        s.pass(Duration::from_secs(4));
        s.read(at(0, 8));
        s.end();
    }
}
