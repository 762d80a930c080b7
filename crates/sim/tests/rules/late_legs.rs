//! Rule 22 of volumes: a leg that was given up with a write outstanding comes back as a new attachment, which is granted when nothing of the old one is
//! in its store: what it is brought up to is not written over by that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use thinwire_target::DoorCanary;
use thinwire_volume::Op;

use crate::scene::{Scene, at, ms};

/// As whoever brings back a leg does it: the attachment is given up as a whole, and there is a new one under the same name.
fn brought_back(planted: DoorCanary) {
    let mut s = Scene::with(1, |config| config.door = planted).with_client();
    s.write(at(0, 8));
    // The first write is in the store, and takes its time there.
    s.slow_write(at(0, 8), ms(5000));
    s.world.crash_client(0);
    let back = s.client();
    s.world.clients[back].config.initiator = s.world.clients[0].config.initiator;
    s.attach(back);
    // What a resync has brought it up to.
    let copied = s.submit(back, Op::Write, at(0, 8));
    assert_eq!(s.outcome(back, copied).result, Ok(()));
    s.pass(ms(6000));
    let read = s.submit(back, Op::Read, at(0, 8));
    assert_eq!(s.outcome(back, read).result, Ok(()));
    s.end();
}

#[test]
fn rule_22_of_volumes_a_leg_is_back_when_nothing_of_it_is_outstanding() {
    brought_back(DoorCanary::None);
}

#[test]
fn rule_22_of_volumes_a_late_write_of_a_dropped_leg_is_found() {
    let planted = AssertUnwindSafe(|| brought_back(DoorCanary::GrantOverRequests));
    let why = catch_unwind(planted).expect_err("nobody notices");
    let why = why.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(why.contains("was given a write of 4096 bytes at 0 while it had one"), "{why}");
}
