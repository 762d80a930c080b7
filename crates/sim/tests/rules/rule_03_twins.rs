//! Rule 3 among processes that present one identity: containers on one network, copies of a machine.

use thinwire_link::sim::Verdict;
use thinwire_sim::client::End;
use thinwire_sim::world::{SECOND, SimHost};
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::{Frame, Message, Status};

use crate::scene::{LateAttach, Scene, at, ms};

fn with_twin() -> (Scene, usize) {
    let mut s = Scene::new().with_client();
    let twin = s.client();
    s.world.clients[twin].config.initiator = s.world.clients[0].config.initiator;
    (s, twin)
}

/// The second live process of an identity takes nothing over without saying so.
#[test]
fn rule_03_a_twin_of_a_living_writer_is_refused() {
    let (mut s, twin) = with_twin();
    s.write(at(0, 8));
    let told = s.hear_refusal();
    s.world.start_client(twin);
    assert_eq!(s.until_ended(twin), End::Refused(Status::Busy));
    assert!(told.borrow().contains("same identity"), "{}", told.borrow());
    s.write(at(4, 8));
    s.read(at(0, 16));
    let stats = s.world.target(0).stats();
    assert_eq!((stats.fenced, stats.twins), (0, 1));
    s.end();
}

/// While it is found out whether the first lives, the first is served.
#[test]
fn rule_03_a_writer_is_served_while_it_is_asked_whether_it_lives() {
    let (mut s, twin) = with_twin();
    // What asks it is late, and all else arrives.
    let station = s.world.clients[0].machine.stations[0];
    s.world.set_judge(move |_, to, bytes| {
        let asks = |m| matches!(m, Message::Ping(_) | Message::Probe(_));
        let asks = Frame::parse(bytes).is_ok_and(|frame| frame.messages().any(asks));
        if to == station && asks { Verdict::Delay(450_000_000) } else { Verdict::Pass }
    });
    s.world.start_client(twin);
    s.pass(ms(300));
    let before = s.world.now;
    s.write(at(0, 8));
    let took = s.world.now - before;
    assert!(took < 50_000_000, "it took {took} ns");
    assert_eq!(s.until_ended(twin), End::Refused(Status::Busy));
    assert_eq!(s.world.target(0).stats().fenced, 0);
    s.end();
}

/// And however late all that is sent to it.
#[test]
fn rule_03_a_writer_that_answers_late_is_alive_and_is_served() {
    for delay in [10, 60, 80, 150, 300, 400] {
        let (mut s, twin) = with_twin();
        // The questions, and all else, reach it late.
        let station = s.world.clients[0].machine.stations[0];
        s.world.set_judge(move |_, to, _| {
            if to == station { Verdict::Delay(delay * 1_000_000) } else { Verdict::Pass }
        });
        s.pass(ms(1000));
        s.world.start_client(twin);
        for nth in 0..2 {
            s.write(at(nth * 4, 8));
        }
        assert_eq!(s.until_ended(twin), End::Refused(Status::Busy), "late by {delay} ms");
        let stats = s.world.target(0).stats();
        assert_eq!((stats.fenced, stats.twins), (0, 1), "late by {delay} ms");
        s.end();
    }
}

/// The first has not been granted the export yet when its twin asks: the holder is the one in force when
/// it is the twin's turn.
#[test]
fn rule_03_a_twin_behind_a_grant_that_waits_is_refused() {
    let mut s = Scene::new().with_client();
    let (a, b) = (s.client(), s.client());
    s.world.clients[b].config.initiator = s.world.clients[a].config.initiator;
    s.slow_write(at(0, 8), ms(400));
    s.world.clients[a].config.take_over = true;
    s.world.start_client(a);
    s.pass(ms(50));
    s.world.start_client(b);
    assert_eq!(s.until_ended(b), End::Refused(Status::Busy));
    let token = s.submit(a, Op::Write, at(0, 8));
    assert_eq!(s.outcome(a, token).result, Ok(()));
    assert_eq!(s.world.target(0).stats().twins, 1);
}

/// Once it is known to be a twin it is a stranger: an outage of the first is not enough.
#[test]
fn rule_03_a_twin_that_keeps_asking_waits_for_the_lease_like_others() {
    let (mut s, twin) = with_twin();
    s.write(at(0, 8));
    s.world.clients[twin].config.wait = true;
    s.world.start_client(twin);
    s.pass(ms(2000));
    s.set_reach(0, false);
    s.pass(ms(1500));
    s.set_reach(0, true);
    s.pass(ms(2000));
    s.write(at(4, 8));
    s.read(at(0, 16));
    assert_eq!(s.world.target(0).stats().fenced, 0);
    s.world.clients[twin].abort();
    s.end();
}

/// Who is asked and stands still is taken over, and fenced when it wakes up.
#[test]
fn rule_03_a_twin_of_a_frozen_writer_fences_it() {
    let (mut s, twin) = with_twin();
    s.write(at(0, 8));
    s.world.freeze(SimHost::Client(0), s.world.now + 3 * SECOND);
    s.world.start_client(twin);
    s.until("attached", move |w| w.clients[twin].is_open);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
}

/// A person may overrule that; the first is told at once.
#[test]
fn rule_03_a_twin_that_takes_over_fences_the_first_and_tells_it() {
    let (mut s, twin) = with_twin();
    s.write(at(0, 8));
    s.world.clients[twin].config.take_over = true;
    s.attach(twin);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
    let token = s.submit(twin, Op::Write, at(0, 8));
    assert_eq!(s.outcome(twin, token).result, Ok(()));
}

/// The attach of a run that died arrives while the next run waits for a sign of the first: it is not
/// granted behind it, which would fence the only one that lives.
#[test]
fn rule_03_a_late_attach_behind_a_waiting_twin_fences_nobody() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    s.world.crash_client(0);
    // Otherwise the question to the twin would refuse it.
    s.world.clients[0].config.take_over = true;
    let late = LateAttach::of(&mut s, 0, 200_000_000);
    s.world.clients[0].config.take_over = false;
    s.world.start_client(0);
    late.until_refused(&mut s);
    assert!(!s.world.clients[0].is_open, "refused at once, not when the next run was granted it");
    s.until("attached", |w| w.clients[0].is_open);
    s.pass(ms(1500));
    s.write(at(4, 8));
    s.read(at(0, 16));
    assert_eq!(s.world.target(0).stats().fenced, 1, "the first, which is dead");
    s.end();
}
