//! Rule 3, below the target: a record that cannot be stored, and a crash at each step of storing it.

use std::time::Duration;

use thinwire_sim::client::End;
use thinwire_sim::medium::RecordFate::{self, Dies, Failed, Stored};
use thinwire_sim::server::Crash;
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::Status;

use crate::scene::{Scene, at, ms};

/// A has unflushed writes, and B asks to take over.
fn contested(fates: impl IntoIterator<Item = RecordFate>) -> (Scene, usize) {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.write(at(0, 8));
    s.medium.script_records(fates);
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    (s, b)
}

#[test]
fn rule_03_a_refused_take_over_fences_nobody_after_a_restart() {
    for durable in [false, true] {
        for how in [Crash::Kill, Crash::Power] {
            // The record cannot be stored at all; or the new one cannot, and the old one is put back.
            for fates in [vec![Failed(durable)], vec![Stored, Failed(durable), Stored]] {
                let (mut s, b) = contested(fates);
                assert_eq!(s.until_ended(b), End::Refused(Status::Io));
                s.restart(how);
                s.write(at(4, 8));
                s.read(at(0, 16));
                assert_eq!(s.flush(), Ok(()));
                s.end();
            }
        }
    }
}

/// Neither the new record nor the old one can be made durable: nobody writes, nobody is told no, and
/// nobody is fenced until the old one is.
#[test]
fn rule_03_while_a_record_is_not_resolved_nobody_writes_and_nobody_is_refused() {
    let (mut s, b) = contested([Stored, Failed(true), Failed(true), Failed(false), Stored]);
    s.pass(ms(500));
    let waits = s.submit(0, Op::Write, at(4, 8));
    s.pass(ms(1000));
    assert!(s.world.clients[0].log.is_empty(), "A waits");
    assert!(s.world.clients[b].initiator.is_some() && !s.world.clients[b].is_open, "so does B");
    // Tried again every second; the second time it succeeds.
    assert_eq!(s.outcome(0, waits).result, Ok(()));
    assert_eq!(s.until_ended(b), End::Refused(Status::Io));
    assert_eq!(s.world.target(0).stats().fenced, 0);
    s.end();
}

/// The target dies at each step. A durable record is the grant, though B never heard of it; else A
/// goes on.
#[test]
fn rule_03_a_crash_over_a_record_leaves_the_old_writer_or_a_grant() {
    let crashes: [(&[RecordFate], bool); 6] = [
        (&[Dies(false)], false),
        (&[Dies(true)], false),
        (&[Stored, Dies(false)], false),
        (&[Stored, Dies(true)], true),
        (&[Stored, Failed(true), Dies(false)], true),
        (&[Stored, Failed(true), Dies(true)], false),
    ];
    for (fates, is_granted) in crashes {
        let (mut s, b) = contested(fates.iter().copied());
        s.until("the target died", |w| !w.servers[0].runs());
        s.world.crash_client(b);
        s.world.start_server(0);
        let token = s.submit(0, Op::Write, at(4, 8));
        let expected = if is_granted { Err(ErrorKind::Fenced) } else { Ok(()) };
        assert_eq!(s.outcome(0, token).result, expected, "{fates:?}");
        if !is_granted {
            s.read(at(0, 16));
            s.end();
        }
    }
}

/// The record cannot be read when the target starts: readers are served, a writer is told why, and the
/// one on record goes on once it can be.
#[test]
fn rule_03_a_record_that_cannot_be_read_refuses_writers() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    s.medium.set_record_failure(1.0);
    s.restart(Crash::Kill);
    let reader = s.client();
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    let other = s.client();
    s.world.clients[other].config.take_over = true;
    s.world.start_client(other);
    assert_eq!(s.until_ended(other), End::Refused(Status::Io));
    s.medium.set_record_failure(0.0);
    s.write(at(4, 8));
    s.read(at(0, 16));
    s.world.crash_client(reader);
    s.end();
}

/// B's grant waits until A's write has left the store. A comes back in a new session meanwhile, and
/// the grant comes to nothing.
#[test]
fn rule_03_a_grant_that_waits_holds_a_resume_back_and_does_not_fence() {
    let mut s = Scene::with(1, |c| c.session_timeout = Duration::from_secs(2)).with_client();
    let b = s.client();
    s.write(at(0, 8));
    s.slow_write(at(8, 8), ms(9000));
    s.medium.script_records([Failed(false)]);
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    s.pass(ms(200));
    s.set_reach(0, false);
    s.until("A is forgotten", |w| w.target(0).sessions().len() == 1);
    s.set_reach(0, true);
    s.until("A is back", |w| w.target(0).sessions().len() == 2);
    s.pass(ms(2000));
    assert!(!s.world.clients[b].is_open, "B still waits");
    assert_eq!(s.until_ended(b), End::Refused(Status::Io));
    s.write(at(4, 8));
    s.read(at(0, 16));
    assert_eq!(s.world.target(0).stats().fenced, 0);
    s.end();
}
