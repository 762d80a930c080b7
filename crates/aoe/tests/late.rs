//! Frames that come late or again, and stores that lose something: each rule of docs/aoe.md against them is a test.

mod common;

use std::time::Duration;

use common::{Fate, Told, World, offer, stamp, station};
use thinwire_aoe::AoeClientConfig;
use thinwire_volume::stores::Writeback;
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::aoe::{AtaCommand, ata_error};

const MS: Duration = Duration::from_millis(1);

/// A client begins anew, and so do its tags: what it writes under one that it had before is new.
#[test]
fn a_new_write_taken_for_an_old_one() {
    let (mut world, client) = (World::new(), station(1));
    let first = world.ata(AtaCommand::WriteSectorsExt, 8, 8, &stamp(8, 8, 1));
    let mut second = first.clone();
    second.truncate(22);
    second.extend(stamp(8, 8, 2));
    assert!(world.told(client, &first).is_done());
    assert!(world.told(client, &second).is_done());
    assert_eq!(world.raw_read(client, 8), Told::Done(stamp(8, 8, 2)));
    // The same again, in every octet, is done again.
    assert!(world.told(client, &first).is_done());
    assert_eq!(world.raw_read(client, 8), Told::Done(stamp(8, 8, 1)));
}

/// A write is sent twice, the second is answered, and the first lands behind a later one, unless that waits.
#[test]
fn the_late_write() {
    let mut world = World::new();
    let client = world.open(1);
    world.write(client, 64, &stamp(64, 8, 1)).unwrap();
    let mut count = 0;
    world.judge = Box::new(move |seen| {
        count += u32::from(seen.is_write());
        match seen.is_write() && count == 1 {
            true => Fate::Late(900 * MS),
            false => Fate::Arrives,
        }
    });
    world.write(client, 8, &stamp(8, 8, 1)).unwrap();
    let begun = world.now;
    world.write(client, 8, &stamp(8, 8, 2)).unwrap();
    // All frames have been answered by then: it does not wait for a whole lifetime.
    assert!(world.now.since(begun) < 1000 * MS, "{:?}", world.now.since(begun));
    world.pass(2000 * MS);
    assert_eq!(world.read(client, 8, 4096).unwrap(), stamp(8, 8, 2));
}

/// The same, and the first is lost: nothing tells that, so the second waits for as long as a frame may live.
#[test]
fn the_write_that_may_be_late() {
    let mut world = World::new();
    let client = world.open(1);
    let mut count = 0;
    world.judge = Box::new(move |seen| {
        count += u32::from(seen.is_write());
        match seen.is_write() && count == 1 {
            true => Fate::Lost,
            false => Fate::Arrives,
        }
    });
    world.write(client, 8, &stamp(8, 8, 1)).unwrap();
    let begun = world.now;
    world.write(client, 16, &stamp(16, 8, 1)).unwrap();
    assert!(world.now.since(begun) < 10 * MS, "it does not overlap");
    world.write(client, 8, &stamp(8, 8, 2)).unwrap();
    assert!(world.now.since(begun) > 1500 * MS, "{:?}", world.now.since(begun));
}

/// An answer comes twice: that is no sign that both frames of the write have landed.
#[test]
fn the_late_write_whose_answer_is_doubled() {
    let mut world = World::new();
    let client = world.open(1);
    let mut count = 0;
    world.judge = Box::new(move |seen| {
        count += u32::from(seen.is_write());
        let answers = seen.header.is_response && seen.registers.is_some();
        match (seen.is_write(), answers) {
            (true, _) if count == 1 => Fate::Late(900 * MS),
            (_, true) if count == 2 => Fate::Twice(MS),
            _ => Fate::Arrives,
        }
    });
    world.write(client, 8, &stamp(8, 8, 1)).unwrap();
    world.pass(5 * MS);
    world.write(client, 8, &stamp(8, 8, 2)).unwrap();
    world.pass(2000 * MS);
    assert_eq!(world.read(client, 8, 4096).unwrap(), stamp(8, 8, 2));
}

/// A client of others writes version 1, which lies in a queue, and asks again; then version 2. What is taken from the queue then
/// was received before.
#[test]
fn a_write_that_was_received_before_one_that_is_done() {
    let (mut world, client) = (World::new(), station(1));
    let first = world.ata(AtaCommand::WriteSectorsExt, 8, 8, &stamp(8, 8, 1));
    assert!(world.told(client, &first).is_done());
    world.pass(100 * MS);
    assert!(world.raw_write(client, 12, 2).is_done());
    world.pass(100 * MS);
    world.receive(client, &first, 150 * MS);
    assert!(world.said_to(client, 20 * MS).is_empty(), "it is dropped");
    assert_eq!(world.stats().stale, 1);
    assert_eq!(world.raw_read(client, 12), Told::Done(stamp(12, 8, 2)));
    // Elsewhere it is late, and nothing is lost by it.
    let other = world.ata(AtaCommand::WriteSectorsExt, 64, 8, &stamp(64, 8, 1));
    world.receive(client, &other, 150 * MS);
    assert_eq!(Told::of(&world.said_to(client, 20 * MS)), Told::Done(Vec::new()));
    // And asked once more, it is the later one.
    assert!(world.told(client, &first).is_done());
    assert_eq!(world.raw_read(client, 8), Told::Done(stamp(8, 8, 1)));
}

/// Two writes to one place are with the server together, and the store does the later one first if it has both.
#[test]
fn writes_that_overlap_are_done_in_the_order_in_which_they_came() {
    let (mut world, gate, _) = World::slow(vec![offer(false)]);
    let client = station(1);
    assert!(world.raw_write(client, 64, 1).is_done());
    gate.set(false);
    for version in 1..=3 {
        let at = 8 + u64::from(version);
        let write = world.ata(AtaCommand::WriteSectorsExt, at, 8, &stamp(at, 8, version));
        world.receive(client, &write, Duration::ZERO);
    }
    assert!(world.said_to(client, 20 * MS).is_empty());
    gate.set(true);
    world.wake();
    assert_eq!(world.said_to(client, 20 * MS).len(), 3);
    assert_eq!(world.raw_read(client, 11), Told::Done(stamp(11, 8, 3)));
}

/// Over a store that forgets what was not flushed: what is answered as durable is there when the target has died, what is
/// cached is not.
#[test]
fn cached_called_durable() {
    for cached in [false, true] {
        let over = |store, pool: &thinwire_buffer::Pool| -> Box<dyn thinwire_volume::Volume> {
            Box::new(Writeback::new(store, 8 << 20, pool))
        };
        let mut world = World::over(vec![offer(cached)], Box::new(over));
        let client = world.open_with(1, AoeClientConfig { flushes: true, ..world.config(1) });
        // One that does not flush says so, where it matters.
        world.open(2);
        world.pass(MS);
        let says = |note: &String| note.contains("client2") && note.contains("not flushed");
        assert_eq!(world.client_notes.iter().any(says), cached, "{:?}", world.client_notes);
        world.write(client, 0, &stamp(0, 100, 1)).unwrap();
        world.flush(client).unwrap();
        let tokens: Vec<u64> = (0..10)
            .map(|at| world.submit(client, Op::Write, at * 10, &stamp(at * 10, 10, 2)))
            .collect();
        tokens.into_iter().for_each(|token| drop(world.wait(token).unwrap()));
        world.crash();
        let expected = if cached { 1 } else { 2 };
        assert_eq!(world.read(client, 0, 51_200).unwrap(), stamp(0, 100, expected), "{cached}");
    }
}

/// What is to be durable when it ends is flushed, where the drive has a cache; and fails as a write if that does not go.
#[test]
fn forced_through_a_cache() {
    let over = |store, pool: &thinwire_buffer::Pool| -> Box<dyn thinwire_volume::Volume> {
        Box::new(Writeback::new(store, 8 << 20, pool))
    };
    for flushes in [true, false] {
        let mut world = World::over(vec![offer(true)], Box::new(over));
        let client = world.open_with(1, AoeClientConfig { flushes, ..world.config(1) });
        world.force(client, 0, &stamp(0, 100, 1)).unwrap();
        world.crash();
        let seen = world.read(client, 0, 51_200).unwrap();
        assert_eq!(seen == stamp(0, 100, 1), flushes);
    }
}

/// The store says that it has lost something, and the target lives on. Nothing that was answered as durable is in doubt; of what is
/// cached the next flush says so, once.
#[test]
fn lost_without_a_restart() {
    let (mut world, _, losses) = World::slow(vec![offer(true)]);
    let client = station(1);
    assert!(world.raw_write(client, 8, 1).is_done());
    losses.set(1);
    assert_eq!(world.raw_flush(client), Told::Drive(ata_error::UNC));
    assert!(world.raw_flush(client).is_done(), "it is said once");
    assert!(world.raw_write(client, 8, 2).is_done() && world.raw_flush(client).is_done());
    losses.set(2);
    assert!(world.raw_flush(client).is_done(), "nothing had been written since the last");
    assert_eq!(world.stats().lost, 1);

    let (mut world, gate, losses) = World::slow(vec![offer(false)]);
    let client = world.open_with(1, AoeClientConfig { flushes: true, ..world.config(1) });
    world.write(client, 64, &stamp(64, 8, 1)).unwrap();
    gate.set(false);
    let token = world.submit(client, Op::Write, 8, &stamp(8, 8, 1));
    world.pass(5 * MS);
    losses.set(1);
    gate.set(true);
    world.wake();
    // A sync beside it has failed: it is not called durable, and written again.
    world.wait(token).unwrap();
    assert_eq!((world.stats().failed, world.client(client).report().refused), (1, 1));
    world.flush(client).unwrap();
    assert_eq!(world.read(client, 8, 4096).unwrap(), stamp(8, 8, 1));
    assert_eq!(world.read(client, 1 << 40, 512), Err(ErrorKind::Invalid));
}
