//! Frames that are lost, doubled and late, of this life of a client and of one before: each rule of docs/ebd.md against
//! them is a test.

mod common;

use std::time::Duration;

use common::{BYTES, Fate, World, stamp};
use thinwire_ebd::ClientConfig;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Op};
use thinwire_wire::ebd::{EbdForm, Operation};

const FORMS: [EbdForm; 2] = [EbdForm::Ideal, EbdForm::Implemented];

#[test]
fn frames_are_lost_doubled_and_late_and_nothing_is_wrong() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        let mut state = 12345u64;
        world.judge = Box::new(move |_, _| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match (state >> 40) % 50 {
                0 | 1 => Fate::Lost,
                2 => Fate::Twice(Duration::from_millis((state >> 20) % 300)),
                3 => Fate::Late(Duration::from_millis((state >> 20) % 30)),
                _ => Fate::Arrives,
            }
        });
        let mut versions = [0u8; 64];
        for round in 1..=40u8 {
            let mut tokens = Vec::new();
            for at in (0..64).filter(|at| (at * 7 + usize::from(round)) % 5 == 0) {
                versions[at] = round;
                let data = stamp(at as u64 * 8, 8, round);
                tokens.push(world.submit(client, Op::Write, at as u64 * 8, &data));
            }
            for token in tokens {
                world.wait(token).unwrap();
            }
            if round % 9 == 0 {
                world.flush(client).unwrap();
            }
        }
        for (at, &version) in versions.iter().enumerate().filter(|(_, version)| **version > 0) {
            let expected = stamp(at as u64 * 8, 8, version);
            assert_eq!(world.read(client, at as u64 * 8, 4096).unwrap(), expected, "{form:?} {at}");
        }
        assert!(world.client(client).report().repeated > 0);
    }
}

/// A write is sent twice, the second is answered, and the first lands behind a later one, unless that waits.
#[test]
fn the_late_write() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        let mut count = 0;
        world.judge = Box::new(move |frame, by_server| {
            let is_it = !by_server && frame.operation.is_write();
            count += u32::from(is_it);
            match is_it && count == 1 {
                true => Fate::Late(Duration::from_millis(900)),
                false => Fate::Arrives,
            }
        });
        world.write(client, 8, &stamp(8, 8, 1)).unwrap();
        world.write(client, 8, &stamp(8, 8, 2)).unwrap();
        world.pass(Duration::from_secs(2));
        assert_eq!(world.read(client, 8, 4096).unwrap(), stamp(8, 8, 2), "{form:?}");
    }
}

/// The answer to a write is late, its server forgets the client, and the write that is sent again is lost: the late answer is not
/// for that one.
#[test]
fn the_answer_that_fits_a_request_of_before() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        world.write(client, 64, &stamp(64, 8, 1)).unwrap();
        let mut count = 0;
        world.judge = Box::new(move |frame, by_server| {
            if frame.operation != Operation::Write || frame.sector != 0 {
                return Fate::Arrives;
            }
            count += 1;
            match (by_server, count) {
                // The first answer, then the next that is asked.
                (true, 2) => Fate::Late(Duration::from_millis(30)),
                (false, 3) => Fate::Lost,
                _ => Fate::Arrives,
            }
        });
        let token = world.submit(client, Op::Write, 0, &stamp(0, 8, 1));
        world.pass(Duration::from_millis(2));
        let lost = common::store(&world.pool);
        world.restart(Some(lost));
        // Something has it hear of that.
        let other = world.submit(client, Op::Read, 640, &[0; 512]);
        world.wait(other).unwrap();
        world.wait(token).unwrap();
        world.flush(client).unwrap();
        assert_eq!(world.read(client, 0, 4096).unwrap(), stamp(0, 8, 1), "{form:?}");
    }
}

/// An answer comes twice: that is no sign that both frames of the write have landed.
#[test]
fn the_late_write_whose_answer_is_doubled() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        let mut count = 0;
        world.judge = Box::new(move |frame, by_server| {
            if !frame.operation.is_write() {
                return Fate::Arrives;
            }
            count += u32::from(!by_server);
            match (by_server, count) {
                (false, 1) => Fate::Late(Duration::from_millis(900)),
                (true, 2) => Fate::Twice(Duration::from_millis(1)),
                _ => Fate::Arrives,
            }
        });
        world.write(client, 8, &stamp(8, 8, 1)).unwrap();
        world.pass(Duration::from_millis(5));
        world.write(client, 8, &stamp(8, 8, 2)).unwrap();
        world.pass(Duration::from_secs(2));
        assert_eq!(world.read(client, 8, 4096).unwrap(), stamp(8, 8, 2), "{form:?}");
    }
}

/// What a server said of the content of before, to the client of before, comes when the next client shakes hands again: it has not
/// become another device.
#[test]
fn the_answer_to_a_handshake_of_before() {
    let mut world = World::new(EbdForm::Implemented);
    world.judge = Box::new(|frame, by_server| match frame.operation {
        Operation::Handshake if by_server => Fate::Twice(Duration::from_millis(1500)),
        _ => Fate::Arrives,
    });
    let first = world.open(1);
    world.judge = Box::new(|_, _| Fate::Arrives);
    world.client(first).abort();
    let identity = Identity { identity: [7; 16], incarnation: 2 };
    let other = MemoryStore::new(BYTES, 512, identity, &world.pool);
    world.restart(Some(Box::new(other)));
    let config = ClientConfig { take_over: true, seed: 99, ..world.config(1) };
    let second = world.add(config);
    world.until(1, |world| world.client(second).is_open());
    // It is not let in again before the late frame has come.
    world.judge = Box::new(|frame, by_server| match frame.operation {
        Operation::Handshake if !by_server => Fate::Lost,
        _ => Fate::Arrives,
    });
    world.restart(None);
    let token = world.submit(second, Op::Read, 0, &[0; 4096]);
    world.pass(Duration::from_millis(2000));
    assert_eq!(world.client(second).report().late, 1, "it was in time for nothing");
    world.judge = Box::new(|_, _| Fate::Arrives);
    world.wait(token).unwrap();
}

/// A client asks twice, and the answer to its first asking comes after the server has begun anew, with another content: it is not
/// taken for that to its second, by which it would be held to what is no longer there.
#[test]
fn the_answer_to_an_earlier_asking() {
    for form in [EbdForm::Ideal, EbdForm::Implemented] {
        let mut world = World::new(form);
        let mut answers = 0;
        world.judge = Box::new(move |frame, by_server| match frame.operation {
            Operation::Handshake if by_server => {
                answers += 1;
                match answers {
                    1 => Fate::Late(Duration::from_millis(300)),
                    _ => Fate::Lost,
                }
            }
            _ => Fate::Arrives,
        });
        let config = ClientConfig { read_only: true, ..world.config(1) };
        let client = world.add(config);
        world.until(5, |world| world.client(client).report().frames > 0);
        world.pass(Duration::from_millis(100));
        let identity = Identity { identity: [7; 16], incarnation: 2 };
        let other = MemoryStore::new(BYTES, 512, identity, &world.pool);
        world.restart(Some(Box::new(other)));
        world.pass(Duration::from_millis(500));
        assert_eq!(world.client(client).report().late, 1, "{form:?}: it was in time for nothing");
        world.judge = Box::new(|_, _| Fate::Arrives);
        world.until(5, |world| world.client(client).is_open());
        assert_eq!(world.read(client, 0, 4096).unwrap(), [0; 4096]);
    }
}

/// A way takes longer than what a handshake is asked again after: then that becomes longer, too.
#[test]
fn a_way_that_is_longer_than_the_pause_between_two_askings() {
    for form in [EbdForm::Ideal, EbdForm::Implemented] {
        let mut world = World::new(form);
        world.judge = Box::new(|_, _| Fate::Late(Duration::from_millis(700)));
        let config = ClientConfig { read_only: true, ..world.config(1) };
        let client = world.add(config);
        world.until(30, |world| world.client(client).is_open());
    }
}

/// A server gives out the index of a client that it had forgotten: who has it from before proves nothing by it.
#[test]
fn anothers_index() {
    let mut world = World::new(EbdForm::Implemented);
    let first = world.open(1);
    world.write(first, 0, &stamp(0, 8, 1)).unwrap();
    let index_of = |world: &World, minor: u8| {
        world.seen.iter().rev().find_map(|(by_server, frame, _)| match frame.tag {
            thinwire_wire::ebd::Tag::Implemented { client, index, .. }
                if *by_server && client == minor && frame.operation == Operation::Handshake =>
            {
                Some(index)
            }
            _ => None,
        })
    };
    let first_index = index_of(&world, 1);
    // The same indices are given again, to others.
    world.seed_back();
    world.restart(None);
    let second = {
        let config = thinwire_ebd::ClientConfig { read_only: true, ..world.config(2) };
        world.add(config)
    };
    world.until(5, |world| world.client(second).is_open());
    assert_eq!(index_of(&world, 2), first_index, "the same index");
    assert_eq!(world.read(first, 0, 4096).unwrap(), stamp(0, 8, 1));
    assert_eq!(world.client(first).report().handshakes, 2, "it was told that it is not known");
}

/// A client dies while its write is in the store, and another takes its place: the handshake is answered when that write has
/// landed, so that it does not land on what the new one writes.
#[test]
fn handshake_over_ones_own_shadow() {
    for form in FORMS {
        let (mut world, gate, _) = World::slow(form, true);
        let client = world.open(1);
        world.write(client, 64, &stamp(64, 8, 1)).unwrap();
        gate.set(false);
        world.submit(client, Op::Write, 0, &stamp(0, 8, 1));
        world.pass(Duration::from_millis(20));
        let config = world.config(1);
        world.add(config);
        world.pass(Duration::from_millis(500));
        assert!(!world.client(client).is_open(), "{form:?}: the write of before is in the store");
        gate.set(true);
        world.until(5, |world| world.client(client).is_open());
        world.write(client, 0, &stamp(0, 8, 2)).unwrap();
        world.pass(Duration::from_secs(1));
        assert_eq!(world.read(client, 0, 4096).unwrap(), stamp(0, 8, 2), "{form:?}");
    }
}

/// A client dies, and its successor is known by the same minor: a write of before that comes late has the index of before.
#[test]
fn a_late_write_of_a_life_before() {
    let mut world = World::new(EbdForm::Implemented);
    let client = world.open(1);
    world.judge =
        Box::new(move |frame, by_server| match !by_server && frame.operation.is_write() {
            true => Fate::Late(Duration::from_millis(700)),
            false => Fate::Arrives,
        });
    world.submit(client, Op::Write, 0, &stamp(0, 8, 1));
    world.turn();
    world.judge = Box::new(|_, _| Fate::Arrives);
    let client = world.open(1);
    world.write(client, 0, &stamp(0, 8, 2)).unwrap();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.read(client, 0, 4096).unwrap(), stamp(0, 8, 2));
}

/// A HANDSHAKE comes a second time, behind a loss that its client has not been told of, and its server may not have seen: it does
/// not bring the client in again, as if it knew.
#[test]
fn a_late_handshake_hides_no_loss() {
    for is_seen in [true, false] {
        let (mut world, _, losses) = World::slow(EbdForm::Ideal, true);
        world.pass(Duration::from_secs(3));
        world.judge = Box::new(|frame, by_server| {
            match !by_server && frame.operation == thinwire_wire::ebd::Operation::Handshake {
                true => Fate::Twice(Duration::from_millis(900)),
                false => Fate::Arrives,
            }
        });
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        // Nothing that its server says reaches it while the loss is seen, and the frame comes.
        world.judge = Box::new(|_, by_server| if by_server { Fate::Lost } else { Fate::Arrives });
        losses.set(1);
        let token = is_seen.then(|| world.submit(client, Op::Read, 8, &[0; 4096]));
        world.pass(Duration::from_millis(1100));
        world.judge = Box::new(|_, _| Fate::Arrives);
        let token = token.unwrap_or_else(|| world.submit(client, Op::Read, 8, &[0; 4096]));
        world.wait(token).unwrap();
        assert_eq!(world.client(client).report().handshakes, 2, "it was told ({is_seen})");
    }
}
