//! Rule 11: small frames pass, large ones never do.

use std::time::Duration;

use thinwire_proto::Time;
use thinwire_volume::Op;

use crate::scene::{Scene, at};

fn frame_bytes(s: &Scene) -> usize {
    s.world.initiator(0).report(Time(s.world.now)).paths[0].frame_bytes
}

#[test]
fn rule_11_a_switch_that_carries_less_is_found_out() {
    for (carries, used) in [(1500, 1500), (4400, 4288), (usize::MAX, 9000)] {
        let mut s = Scene::new();
        s.world.net.set_wire(|wire| wire.transit_bytes_max = carries);
        let client = s.client();
        s.attach(client);
        s.write(at(0, 2000));
        s.pass(Duration::from_secs(3));
        s.read(at(0, 2000));
        assert_eq!(frame_bytes(&s), used);
        s.end();
    }
}

#[test]
fn rule_11_a_black_hole_drops_to_the_base_size_and_cuts_data_anew() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 2000));
    s.pass(Duration::from_secs(1));
    assert_eq!(frame_bytes(&s), 9000);
    s.world.net.set_wire(|wire| wire.transit_bytes_max = 1500);
    let tokens = [s.submit(0, Op::Write, at(0, 2000)), s.submit(0, Op::Read, at(0, 2000))];
    for token in tokens {
        s.outcome(0, token).result.unwrap();
    }
    assert_eq!((frame_bytes(&s), s.stats(0).sessions), (1500, 1));
    // And the full size is used again once it passes.
    s.world.net.set_wire(|wire| wire.transit_bytes_max = usize::MAX);
    s.pass(Duration::from_secs(90));
    s.write(at(0, 2000));
    assert_eq!(frame_bytes(&s), 9000);
    s.end();
}

/// Lost size probes slow nothing down.
#[test]
fn rule_11_size_probes_are_not_congestion() {
    let mut s = Scene::new();
    s.world.net.set_wire(|wire| wire.transit_bytes_max = 1500);
    let client = s.client();
    s.attach(client);
    s.pass(Duration::from_secs(3));
    let report = s.world.initiator(0).report(Time(s.world.now));
    assert_eq!(report.session.frames_lost, 0);
    assert!(report.paths[0].window_bytes >= 32 * 1500);
    s.end();
}
