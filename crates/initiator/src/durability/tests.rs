//! Each event in each state, against the table in the documentation.

use thinwire_volume::IoFlags;

use super::*;
use crate::TargetName;
use crate::snapshot::{Make, check, variant};

const STATES: [Make<Durability>; 6] = [
    ("Clean", clean),
    ("Retaining", retaining),
    ("Replaying", replaying),
    ("Clean, owing", || {
        let mut d = owing();
        forced(&mut d, Ok(()), false);
        d
    }),
    ("Retaining, owing", owing),
    ("Replaying, owing", || {
        let mut d = owing();
        d.on_verifier(3);
        send(&mut d);
        d
    }),
];

fn clean() -> Durability {
    let config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
    let mut d = Durability::new(&config, &Pool::new(0));
    d.begin(1);
    d
}

fn write(fua: bool) -> Pending {
    let flags = IoFlags { fua, ..IoFlags::default() };
    Pending { flags, len: 512, ..Pending::new(Owner::User(1), Op::Write) }
}

fn retaining() -> Durability {
    let mut d = clean();
    d.on_effect(write(false), 1);
    d
}

fn send(d: &mut Durability) -> String {
    let Some(io) = d.next_replay() else { return String::new() };
    d.replay_started(io.offset + io.len);
    "sends".to_owned()
}

/// Its only request is on its way.
fn replaying() -> Durability {
    let mut d = retaining();
    d.on_verifier(2);
    send(&mut d);
    d
}

fn owing() -> Durability {
    let mut d = replaying();
    d.on_replayed(0, d.mark(), 2, false);
    send(&mut d);
    d
}

fn read(d: &mut Durability, verifier: u64) -> String {
    if d.on_read(verifier, true) { String::new() } else { "again".to_owned() }
}

fn flush(d: &mut Durability, verifier: u64, result: Result<(), ErrorKind>) -> String {
    match d.on_flush(Time(0), false, d.mark(), verifier, result, true) {
        Flushed::Told(result) => result.map_or_else(|kind| variant(&kind), |()| "Ok".into()),
        Flushed::Again => "again".to_owned(),
    }
}

fn forced(d: &mut Durability, result: Result<(), ErrorKind>, is_heard: bool) -> String {
    match d.on_flush(Time(0), true, d.mark(), d.verifier, result, is_heard) {
        Flushed::Told(result) => result.map_or_else(|kind| variant(&kind), |()| String::new()),
        Flushed::Again => "again".to_owned(),
    }
}

#[test]
fn it_is_as_documented() {
    check(
        include_str!("../durability.md"),
        &STATES,
        &[
            ("a write is done", |d| {
                d.on_effect(write(false), d.verifier);
                String::new()
            }),
            ("a write is done, under another verifier", |d| {
                d.on_effect(write(false), 9);
                String::new()
            }),
            ("a FUA write is done", |d| {
                d.on_effect(write(true), d.verifier);
                String::new()
            }),
            ("a read is done", |d| read(d, d.verifier)),
            ("a read is done, under another verifier", |d| read(d, 9)),
            ("ATTACHED, under another verifier", |d| {
                d.on_verifier(9);
                String::new()
            }),
            ("a replayed write is done; on it goes", |d| {
                d.on_replayed(0, d.mark(), d.verifier, true);
                send(d)
            }),
            ("the same, under another verifier", |d| {
                d.on_replayed(0, d.mark(), 9, true);
                send(d)
            }),
            ("a replayed write was altered on its way; on it goes", |d| {
                d.replay_again(0);
                send(d)
            }),
            ("a flush is done", |d| flush(d, d.verifier, Ok(()))),
            ("a flush is done, under another verifier", |d| flush(d, 9, Ok(()))),
            ("a flush has failed", |d| flush(d, 9, Err(ErrorKind::Io))),
            ("a forced flush is done", |d| forced(d, Ok(()), false)),
            ("a forced flush is done, before a detach", |d| forced(d, Ok(()), true)),
            ("a forced flush has failed", |d| forced(d, Err(ErrorKind::Io), false)),
            ("what is retained is given up", |d| {
                d.forget();
                String::new()
            }),
            ("another session", |d| {
                d.on_session();
                String::new()
            }),
            ("a detach tells", |d| if d.take_debt() { "Io".into() } else { String::new() }),
            ("it is over", |d| {
                d.clear();
                String::new()
            }),
        ],
        Durability::state,
    );
}

#[test]
fn whoever_hears_of_losses_is_owed_no_flush() {
    for is_heard in [false, true] {
        let mut d = replaying();
        d.is_heard = is_heard;
        d.on_replayed(0, d.mark(), 2, false);
        send(&mut d);
        assert_eq!((d.stats().failures, d.take_debt()), (1, !is_heard));
    }
}

#[test]
fn half_of_the_bound_forces_a_flush_and_a_failed_one_waits() {
    let mut d = clean();
    d.entries_max = 4;
    (0..2).for_each(|_| d.on_effect(write(false), 1));
    assert_eq!((d.armed(false), d.armed(true).is_some()), (None, true));
    d.on_effect(write(false), 1);
    assert!(d.next_flush(Time(5), false).is_some() && !d.is_full());
    d.flush_started();
    assert_eq!(d.armed(false), None, "one is under way");
    let failed = Err(ErrorKind::Io);
    let told = d.on_flush(Time(5), true, d.mark(), 1, failed, false);
    assert_eq!(told, Flushed::Told(failed));
    assert_eq!(d.armed(false), Some((Timer::Flush, Time(5) + FLUSH_RETRY)));
    assert!(d.next_flush(Time(6), false).is_none());
    (0..2).for_each(|_| d.on_effect(write(false), 1));
    assert!(d.is_full());
}
