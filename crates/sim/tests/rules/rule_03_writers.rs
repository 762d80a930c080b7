//! Rule 3: who may come back, and who may not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_link::sim::Verdict;
use thinwire_sim::client::End;
use thinwire_sim::model::{ModelEffect, Range};
use thinwire_sim::server::Crash;
use thinwire_sim::world::{SECOND, SimHost};
use thinwire_volume::stores::FileStore;
use thinwire_volume::{
    ErrorKind, Grant, GrantError, Io, Op, Volume, WriterRecord, load_writer, store_writer,
};
use thinwire_wire::{Frame, Message, Status};

use crate::scene::{LateAttach, Scene, at, ms};

fn take_over(s: &mut Scene, client: usize) {
    s.world.clients[client].config.take_over = true;
    s.attach(client);
}

#[test]
fn rule_03_a_fenced_writer_does_not_replay() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.write(at(0, 8));
    // A is away while the target restarts and B takes over.
    s.set_reach(0, false);
    s.restart(Crash::Power);
    take_over(&mut s, b);
    let token = s.submit(b, Op::Write, at(0, 8));
    assert_eq!(s.outcome(b, token).result, Ok(()));
    s.set_reach(0, true);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
    let token = s.submit(b, Op::Read, at(0, 8));
    assert_eq!(s.outcome(b, token).result, Ok(()));
    s.end();
}

/// The server is killed, and a command on its machine writes the image, as one of the model's runs.
fn write_locally(s: &mut Scene, range: Range, takes_generation: bool) {
    const RUN: u32 = 1000;
    const LOCAL: [u8; 16] = [0x10; 16];
    s.world.exports[0].writers += 1;
    s.world.crash_server(0, Crash::Kill);
    s.pass(ms(1000));
    let mut store = FileStore::new(s.medium.open_at_once(), 512, &Pool::new(0)).expect("it fits");
    let before = load_writer(&mut store).unwrap();
    let grant = takes_generation.then(|| {
        let refused = Grant::take(&mut store, LOCAL, "local", false).unwrap_err();
        assert_eq!(refused, GrantError::Held(before));
        Grant::take(&mut store, LOCAL, "local", true).unwrap()
    });
    let model = &mut s.world.exports[0].models[0];
    assert!(model.run_started(RUN, before.generation + 1));
    s.medium.fence(RUN, false);
    let version = model.begin_write(RUN, range, ModelEffect::Data);
    let mut buf = Pool::new(0).get(range.count * 512);
    model.fill(RUN, range, version, &mut buf);
    let (first, bytes) = (range.first as u64 * 512, buf.len() as u64);
    let data = SegList::of(buf.freeze());
    for io in [Io { data, ..Io::new(1, Op::Write, first, bytes) }, Io::new(2, Op::Flush, 0, 0)] {
        store.submit(io);
        let mut done = Vec::new();
        while done.is_empty() {
            s.pass(ms(1));
            store.poll(&mut done);
        }
        assert_eq!(done[0].result, Ok(()));
    }
    let model = &mut s.world.exports[0].models[0];
    model.end_write(RUN, range, version, true, true);
    model.run_detached(RUN).unwrap();
    if let Some(grant) = grant {
        grant.release(&mut store).unwrap();
    }
}

#[test]
fn rule_03_who_writes_the_image_itself_fences_its_writer() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    write_locally(&mut s, at(0, 4), true);
    s.world.start_server(0);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
    // It has ended in order: the next writer needs no leave.
    let b = s.client();
    s.attach(b);
    let token = s.submit(b, Op::Read, at(0, 8));
    assert_eq!(s.outcome(b, token).result, Ok(()));
    s.end();
}

/// The canary: without a generation the writer replays over it, and the checker sees that.
#[test]
fn rule_03_who_writes_the_image_without_a_generation_is_written_over() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    write_locally(&mut s, at(0, 4), false);
    s.world.start_server(0);
    let seen = s.world.run_until("its replay", 60 * SECOND, |_| false).unwrap_err().0;
    assert!(seen.contains("by run 1, after run 1000 had been granted"), "{seen}");
}

#[test]
fn rule_03_a_frozen_writer_wakes_up_fenced_and_stays_so() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.write(at(0, 8));
    let mut pending: Vec<_> = (0..8).map(|n| s.submit(0, Op::Write, at(n * 8, 8))).collect();
    s.world.freeze(SimHost::Client(0), s.world.now + 3 * SECOND);
    take_over(&mut s, b);
    let token = s.submit(b, Op::Write, at(0, 64));
    assert_eq!(s.outcome(b, token).result, Ok(()));
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
    pending.retain(|&token| s.outcome(0, token).result != Err(ErrorKind::Fenced));
    assert!(pending.is_empty());
    let token = s.submit(b, Op::Read, at(0, 64));
    assert_eq!(s.outcome(b, token).result, Ok(()));
    s.end();
}

#[test]
fn rule_03_only_the_recorded_writer_attaches_after_a_restart() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.write(at(0, 8));
    s.world.freeze(SimHost::Client(0), s.world.now + 2 * SECOND);
    s.restart(Crash::Kill);
    s.world.start_client(b);
    assert_eq!(s.until_ended(b), End::Refused(Status::Busy));
    s.read(at(0, 8));
    s.end();
}

/// Two grants that wait for the store at the same time: the first of them is fenced by the second
/// all the same.
#[test]
fn rule_03_two_take_overs_at_once_leave_one_writer() {
    for lag in 0..40 {
        let mut s = Scene::new().with_client();
        let (b, c) = (s.client(), s.client());
        // Both have to wait until this write has left the store.
        s.slow_write(at(0, 8), ms(400));
        for client in [b, c] {
            s.world.clients[client].config.take_over = true;
            s.world.start_client(client);
            s.pass(ms(lag) / 10);
        }
        s.until("both attached", |w| {
            [b, c].iter().all(|&c| w.clients[c].is_open || w.clients[c].initiator.is_none())
        });
        let mut fenced = 0;
        for client in [b, c] {
            if s.world.clients[client].initiator.is_none() {
                fenced += 1;
                continue;
            }
            let token = s.submit(client, Op::Write, at(0, 8));
            fenced += usize::from(s.outcome(client, token).result == Err(ErrorKind::Fenced));
        }
        assert_eq!(fenced, 1);
    }
}

#[test]
fn rule_03_memory_that_began_anew_is_other_content() {
    let mut s = Scene::in_memory().with_client();
    s.write(at(0, 8));
    s.restart(Crash::Kill);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::ContentChanged));
}

#[test]
fn rule_03_memory_that_began_anew_under_other_readers() {
    let mut s = Scene::in_memory().with_client();
    let reader = s.client();
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    s.restart(Crash::Kill);
    assert_eq!(s.until_ended(reader), End::Failed(ErrorKind::ContentChanged));
}

#[test]
fn rule_03_the_same_initiator_takes_over_from_its_former_run_at_once() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    assert_eq!(s.flush(), Ok(()));
    s.write(at(4, 8));
    s.world.crash_client(0);
    let before = s.world.now;
    s.attach(0);
    assert!(s.world.now < before + SECOND);
    s.read(at(0, 16));
    s.end();
}

/// The attach of a run that died waits on the wire while the next run is granted the export.
#[test]
fn rule_03_a_late_attach_of_a_former_run_fences_nobody() {
    let mut s = Scene::new();
    let client = s.client();
    // Otherwise the question to the twin would refuse it.
    s.world.clients[client].config.take_over = true;
    let late = LateAttach::of(&mut s, client, SECOND);
    s.world.clients[client].config.take_over = false;
    s.attach(client);
    s.write(at(0, 8));
    // A grant would wait for this.
    s.medium.set_latency(3 * SECOND, 3 * SECOND);
    let slow = s.submit(client, Op::Write, at(0, 8));
    late.until_refused(&mut s);
    assert_eq!(s.medium.in_flight(), 1, "it was not refused at once");
    s.medium.set_latency(20_000, 200_000);
    assert_eq!(s.outcome(client, slow).result, Ok(()));
    s.write(at(4, 8));
    s.read(at(0, 16));
    assert_eq!(s.world.target(0).stats().fenced, 0);
    s.end();
}

/// B is refused, because the new writer cannot be recorded: A is the writer as before.
#[test]
fn rule_03_a_take_over_that_fails_fences_nobody() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.write(at(0, 8));
    s.medium.set_record_failure(1.0);
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    assert_eq!(s.until_ended(b), End::Refused(Status::Io));
    s.medium.set_record_failure(0.0);
    s.write(at(4, 8));
    s.read(at(0, 16));
    s.end();
}

/// B gives up while its take-over waits for A's write in a slow store.
#[test]
fn rule_03_a_take_over_that_is_given_up_fences_nobody() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    let slow = s.slow_write(at(0, 8), ms(2000));
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    s.pass(ms(200));
    // Held back while B waits, executed when it has gone.
    let next = s.submit(0, Op::Write, at(8, 8));
    s.pass(ms(100));
    assert_eq!(s.world.target(0).stats().requests, 1);
    s.world.clients[b].abort();
    assert_eq!(s.outcome(0, next).result, Ok(()));
    assert_eq!(s.outcome(0, slow).result, Ok(()));
    assert_eq!(s.world.target(0).stats().fenced, 0);
    s.end();
}

/// A grant that waits for the store counts as given: the former run of the writer that is being
/// taken over would be granted the export under the same generation otherwise.
#[test]
fn rule_03_who_waits_for_the_store_holds_the_export() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.slow_write(at(0, 8), ms(2000));
    s.world.crash_client(0);
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    s.pass(ms(500));
    assert!(!s.world.clients[b].is_open, "it waits");
    let told = s.hear_refusal();
    s.world.start_client(0);
    assert_eq!(s.until_ended(0), End::Refused(Status::Busy));
    assert!(told.borrow().contains("held by client1"), "{}", told.borrow());
    assert!(!s.world.clients[b].is_open, "it still waits");
    s.until("attached", move |w| w.clients[b].is_open);
    let token = s.submit(b, Op::Write, at(0, 8));
    assert_eq!(s.outcome(b, token).result, Ok(()));
    s.end();
}

/// The target was about to be asked again when it stopped; the session with the next one begins
/// with a question of its own, and the answer to that is slow.
#[test]
fn rule_03_a_retry_meant_for_a_former_session_is_not_sent_in_the_next() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.world.clients[b].config.wait = true;
    // Transactions of the attaches that were sent to each session.
    let asked: Rc<RefCell<BTreeMap<u64, Vec<u32>>>> = Rc::default();
    let refused = Rc::new(Cell::new(0));
    let (record, count) = (asked.clone(), refused.clone());
    let station = s.world.clients[b].machine.stations[0];
    s.world.set_judge(move |from, to, bytes| {
        let Ok(frame) = Frame::parse(bytes) else { return Verdict::Pass };
        for message in frame.messages() {
            match message {
                Message::Attach(attach) if from == station => {
                    let mut asked = record.borrow_mut();
                    let transactions = asked.entry(frame.header().session).or_default();
                    if !transactions.contains(&attach.transaction) {
                        transactions.push(attach.transaction);
                    }
                }
                Message::AttachRefused(_) if to == station => {
                    count.set(count.get() + 1);
                    if record.borrow().len() > 1 {
                        return Verdict::Delay(5 * SECOND);
                    }
                }
                _ => {}
            }
        }
        Verdict::Pass
    });
    s.world.start_client(b);
    s.until("it is refused", move |_| refused.get() == 1);
    s.pass(ms(1));
    s.world.shut_down_server(0, SECOND);
    s.until("it has stopped", |w| !w.servers[0].runs());
    s.world.start_server(0);
    s.pass(ms(1500));
    let asked: Vec<_> = asked.borrow().values().map(Vec::len).collect();
    assert_eq!(asked, [1, 1], "questions in each session");
    s.world.clear_judge();
    s.end();
}

/// It has nothing to write for longer than its lease, and answers all the while.
#[test]
fn rule_03_a_writer_that_lives_keeps_its_lease() {
    let mut s = Scene::with(1, |config| config.lease = ms(3000)).with_client();
    let b = s.client();
    s.pass(ms(10_000));
    s.world.start_client(b);
    assert_eq!(s.until_ended(b), End::Refused(Status::Busy));
    s.write(at(0, 8));
    // One that is silent for as long loses it.
    s.set_reach(0, false);
    s.pass(ms(4000));
    s.attach(b);
    s.set_reach(0, true);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
    s.end();
}

/// After the last generation there is none: whoever asks is told what to do, and the writer goes on.
#[test]
fn rule_03_the_last_generation_has_one_writer() {
    let mut s = Scene::new();
    let (a, b) = (s.client(), s.client());
    s.world.crash_server(0, Crash::Kill);
    s.pass(ms(10));
    let mut store = FileStore::new(s.medium.open_at_once(), 512, &Pool::new(0)).expect("it fits");
    store_writer(&mut store, WriterRecord::new(u64::MAX - 1, [0; 16], "")).unwrap();
    s.world.start_server(0);
    s.attach(a);
    s.write(at(0, 8));
    let told = s.hear_refusal();
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    assert_eq!(s.until_ended(b), End::Refused(Status::Io));
    assert!(told.borrow().contains("generations of export disk0 are at their end"), "{told:?}");
    s.write(at(4, 8));
    s.restart(Crash::Kill);
    s.read(at(0, 16));
    s.end();
}
