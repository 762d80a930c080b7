//! A client and a server, in both forms: what passes, what is refused, servers that begin anew or are away, and disks that
//! lose something or take long.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use common::{Fate, World, stamp};
use thinwire_volume::{ErrorKind, Op, Volume};
use thinwire_wire::ebd::{EbdForm, Operation};

const FORMS: [EbdForm; 2] = [EbdForm::Ideal, EbdForm::Implemented];

#[test]
fn what_is_written_is_read() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        let geometry = world.client(client).geometry();
        assert_eq!((geometry.bytes, geometry.block_bytes), (common::BYTES, 512));
        let largest = geometry.io_bytes_max as usize;
        for (sector, len) in [(0, 4096), (100, 512), (7, 1536), (8, largest), (2040, 4096)] {
            let data = stamp(sector, len / 512, 1);
            world.write(client, sector, &data).unwrap();
            assert_eq!(world.read(client, sector, len).unwrap(), data, "{form:?} {sector} {len}");
        }
        world.flush(client).unwrap();
        let token = world.submit_with(client, Op::Write, 9, &stamp(9, 1, 2), true);
        world.wait(token).unwrap();
        assert_eq!(world.read(client, 9, 512).unwrap(), stamp(9, 1, 2));
        assert!(world.seen.iter().any(|(_, f, _)| f.operation == Operation::SyncWrite));
        assert_eq!(world.client(client).report().repeated, 0);
        world.client(client).close();
        world.until(5, |world| world.client(client).is_closed());
    }
}

/// Figures 3, 4, 7 and 8 of the document.
#[test]
fn exchanges_are_those_of_the_document() {
    use Operation::{Read, Wack, Write};
    for form in FORMS {
        let (mut world, gate, _) = World::slow(form, false);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        let exchange = |world: &mut World| -> Vec<(Operation, bool, u8, u32)> {
            let seen = std::mem::take(&mut world.seen);
            seen.iter().map(|(s, f, _)| (f.operation, *s, f.length, f.sector)).collect()
        };
        exchange(&mut world);
        world.read(client, 16, 3 * 4096).unwrap();
        let mut read = vec![(Read, false, 24, 16)];
        read.extend((form == EbdForm::Implemented).then_some((Wack, true, 24, 16)));
        read.extend([(Read, true, 8, 16), (Read, true, 8, 24), (Read, true, 8, 32)]);
        assert_eq!(exchange(&mut world), read, "{form:?}");
        gate.set(false);
        let writing = world.submit(client, Op::Write, 16, &stamp(16, 16, 1));
        world.pass(Duration::from_millis(1));
        let mut write = vec![(Write, false, 8, 16), (Write, false, 8, 24)];
        write.extend((form == EbdForm::Implemented).then_some((Wack, true, 8, 16)));
        assert_eq!(exchange(&mut world), write, "{form:?}");
        gate.set(true);
        world.wait(writing).unwrap();
        let mut answers = exchange(&mut world);
        answers.retain(|(operation, is_answer, ..)| *is_answer && *operation == Write);
        assert_eq!(answers[..2], [(Write, true, 8, 16), (Write, true, 8, 24)], "{form:?}");
        // The answer comes at once, and says what a WACK would say.
        world.write(client, 16, &stamp(16, 8, 1)).unwrap();
        world.read(client, 16, 4096).unwrap();
        let asked = |(operation, length): (Operation, u8)| {
            [(operation, false, length, 16), (operation, true, length, 16)]
        };
        let short = [(Write, 8), (Read, 8)].map(asked).concat();
        assert_eq!(exchange(&mut world), short, "{form:?}");
    }
}

/// Figure 10: only what is missing is asked for again.
#[test]
fn only_blocks_that_are_missing_are_asked_for_again() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        let data = stamp(64, 32, 3);
        world.write(client, 64, &data).unwrap();
        let mut lost = 0;
        world.judge = Box::new(move |frame, by_server| {
            let is_it = by_server && frame.operation == Operation::Read && frame.sector == 72;
            lost += u32::from(is_it);
            if is_it && lost == 1 { Fate::Lost } else { Fate::Arrives }
        });
        world.seen.clear();
        assert_eq!(world.read(client, 64, 32 * 512).unwrap(), data);
        let asked = |(by_server, f, _): &(bool, thinwire_wire::ebd::Frame, usize)| {
            (!by_server && f.operation == Operation::Read).then_some((f.sector, f.length))
        };
        let asked: Vec<_> = world.seen.iter().filter_map(asked).collect();
        assert_eq!(asked, [(64, 32), (72, 8)], "{form:?}");
    }
}

/// Of what is sent together two frames find room: every request is sent again, and what is answered tells how long that takes.
#[test]
fn where_there_is_little_room_it_goes_on_at_the_pace_of_answers() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        // Answers that come long after they were waited for have it wait long.
        world.judge = Box::new(|_, by_server| match by_server {
            true => Fate::Late(Duration::from_millis(1500)),
            false => Fate::Arrives,
        });
        for _ in 0..2 {
            world.read(client, 0, 4096).unwrap();
            world.pass(Duration::from_secs(4));
        }

        let sent = Rc::new(Cell::new(0));
        let room = sent.clone();
        world.judge = Box::new(move |_, by_server| {
            room.set(room.get() + u32::from(!by_server));
            if by_server || room.get() <= 2 { Fate::Arrives } else { Fate::Lost }
        });
        let begins = world.now;
        let data = stamp(0, 15 * 8, 1);
        let token = world.submit(client, Op::Write, 0, &data);
        world.until(60, |world| {
            sent.set(0);
            world.done.contains_key(&token)
        });
        // Eight rounds, of which the first ones wait as long as that.
        let took = world.now.since(begins);
        assert!(took < Duration::from_secs(6), "{form:?}: {took:?}");
    }
}

#[test]
fn a_server_that_begins_anew_is_given_what_was_not_flushed() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        world.flush(client).unwrap();
        world.write(client, 0, &stamp(0, 8, 2)).unwrap();
        world.write(client, 4, &stamp(4, 8, 3)).unwrap();
        // One that has lost even more than it may.
        let lost = common::store(&world.pool);
        world.restart(Some(lost));
        assert_eq!(world.read(client, 4, 4096).unwrap(), stamp(4, 8, 3), "{form:?}");
        assert_eq!(world.read(client, 0, 2048).unwrap(), stamp(0, 4, 2));
        let report = world.client(client).report();
        assert_eq!(report.handshakes, 2, "{form:?}");
        world.flush(client).unwrap();
        assert_eq!(world.client(client).report().retained_bytes, 0);
    }
}

/// With much on its way, of which all is refused by a server that begins anew, and some of that twice.
#[test]
fn a_server_that_begins_anew_under_load() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        for at in 0..16 {
            world.write(client, at * 8, &stamp(at * 8, 8, 1)).unwrap();
        }
        world.flush(client).unwrap();
        for at in 0..16 {
            world.write(client, at * 8, &stamp(at * 8, 8, 2)).unwrap();
        }
        let write = |world: &mut World, at: u64| {
            world.submit(client, Op::Write, at * 8, &stamp(at * 8, 8, 3))
        };
        let tokens: Vec<u64> = (8..40).map(|at| write(&mut world, at)).collect();
        let lost = common::store(&world.pool);
        world.restart(Some(lost));
        world.judge = Box::new(|frame, _| match frame.operation {
            Operation::Nak => Fate::Twice(Duration::from_millis(3)),
            _ => Fate::Arrives,
        });
        for token in tokens {
            world.wait(token).unwrap();
        }
        world.flush(client).unwrap();
        for at in 0..40 {
            let version = if at < 8 { 2 } else { 3 };
            let expected = stamp(at * 8, 8, version);
            assert_eq!(world.read(client, at * 8, 4096).unwrap(), expected, "{form:?} {at}");
        }
    }
}

#[test]
fn other_content_is_told() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        let other = thinwire_volume::Identity { identity: [7; 16], incarnation: 2 };
        let volume =
            thinwire_volume::stores::MemoryStore::new(common::BYTES, 512, other, &world.pool);
        world.restart(Some(Box::new(volume)));
        assert_eq!(world.read(client, 0, 512), Err(ErrorKind::ContentChanged), "{form:?}");
        assert_eq!(world.client(client).failure(), Some(ErrorKind::ContentChanged));
    }
}

/// A server that is there, and does not shake hands, is away, too: I/O fails when it was said, and an end comes.
#[test]
fn a_server_that_does_not_shake_hands_is_away() {
    for form in FORMS {
        let mut world = World::new(form);
        let config = thinwire_ebd::ClientConfig {
            fail_after: Some(Duration::from_secs(3)),
            ..world.config(1)
        };
        let client = world.add(config);
        world.until(5, |world| world.client(client).is_open());
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        world.restart(None);
        world.judge = Box::new(|frame, by_server| {
            match by_server && frame.operation == Operation::Handshake {
                true => Fate::Lost,
                false => Fate::Arrives,
            }
        });
        assert_eq!(world.read(client, 0, 512), Err(ErrorKind::Away), "{form:?}");
        world.client(client).close();
        world.until(10, |world| world.client(client).is_closed());
    }
}

#[test]
fn a_block_that_does_not_pass_is_halved() {
    for form in FORMS {
        let mut world = World::new(form);
        world.frame_bytes_max = 1500;
        let client = world.open(1);
        assert_eq!(world.client(client).report().block_bytes, 1024, "{form:?}");
        let data = stamp(3, 20, 1);
        world.write(client, 3, &data).unwrap();
        assert_eq!(world.read(client, 3, data.len()).unwrap(), data);
    }
}

#[test]
fn beyond_the_end_is_refused_and_nobody_is_disturbed() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        let last = common::BYTES / 512;
        assert_eq!(world.read(client, last - 1, 1024), Err(ErrorKind::Invalid), "{form:?}");
        assert_eq!(world.write(client, last, &stamp(0, 1, 1)), Err(ErrorKind::Invalid));
        world.write(client, last - 1, &stamp(0, 1, 1)).unwrap();
    }
}

#[test]
fn a_server_that_is_away_is_waited_for_or_not() {
    for form in FORMS {
        let mut world = World::new(form);
        let waits = world.open(1);
        let config = thinwire_ebd::ClientConfig {
            fail_after: Some(Duration::from_secs(3)),
            read_only: true,
            ..world.config(2)
        };
        let fails = world.add(config);
        world.until(5, |world| world.client(fails).is_open());
        world.judge = Box::new(|_, _| Fate::Lost);
        let token = world.submit(waits, Op::Write, 0, &stamp(0, 8, 1));
        assert_eq!(world.read(fails, 0, 512), Err(ErrorKind::Away), "{form:?}");
        world.pass(Duration::from_secs(20));
        assert!(!world.done.contains_key(&token));
        world.judge = Box::new(|_, _| Fate::Arrives);
        world.wait(token).unwrap();
        assert_eq!(world.read(fails, 0, 4096).unwrap(), stamp(0, 8, 1));
    }
}

/// Its store says that it has lost something: whoever has written sends it again.
#[test]
fn lost_without_a_restart() {
    for form in FORMS {
        let (mut world, _, losses) = World::slow(form, false);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        losses.set(losses.get() + 1);
        world.flush(client).unwrap();
        let writes = world.seen.iter().filter(|(s, f, _)| !s && f.operation.is_write()).count();
        assert_eq!(writes, 2, "{form:?}: it was sent again");
        assert_eq!(world.client(client).report().handshakes, 2);
    }
}

/// A disk that takes long is no server that is away: shaking hands for it would have the flush begun anew, for ever.
#[test]
fn a_slow_flush_is_waited_for() {
    for form in FORMS {
        let (mut world, gate, _) = World::slow(form, false);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        gate.set(false);
        let flush = world.submit(client, Op::Flush, 0, &[]);
        world.pass(Duration::from_secs(20));
        gate.set(true);
        world.wait(flush).unwrap();
        assert_eq!(world.client(client).report().handshakes, 1, "{form:?}");
    }
}

/// Payloads that are shorter than they say, lengths beyond all bounds, credit overdrawn: a counter each, and others go on.
#[test]
fn nonsense_is_counted_and_disturbs_nobody() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        let mut state = 99u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        for _ in 0..2000 {
            let len = next() % 60;
            let bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
            let from = thinwire_buffer::Addr::Mac([2, 0, 0, 0, 9, next() as u8 % 4]);
            world.receive(from, &bytes);
            if next() % 16 == 0 {
                world.turn();
            }
        }
        world.pass(Duration::from_millis(100));
        assert_eq!(world.read(client, 0, 4096).unwrap(), stamp(0, 8, 1), "{form:?}");
        world.write(client, 0, &stamp(0, 8, 2)).unwrap();
    }
}

/// Whoever asks for more than it was ever given gets no answer for it (2.5.1).
#[test]
fn what_is_beyond_the_credit_is_dropped() {
    let (mut world, gate, _) = World::slow(EbdForm::Ideal, false);
    let from = thinwire_buffer::Addr::Mac([2, 0, 0, 0, 9, 9]);
    let ask = [&[1, 1, 3, 1, 0, 0, 0, 0, 0, 0][..], &4096u32.to_le_bytes()].concat();
    // Until it is known who writes nobody is answered, nor in the first 2 s.
    world.pass(Duration::from_millis(2100));
    world.receive(from, &ask);
    world.pass(Duration::from_millis(1));
    gate.set(false);
    for identifier in 0..10 {
        world.receive(from, &[2, identifier, 3, 1, 0, 127, 0, 0, 0, 0]);
    }
    world.pass(Duration::from_millis(1));
    gate.set(true);
    // Nothing tells that this volume has done something, but that somebody comes.
    world.receive(from, &[0; 10]);
    world.pass(Duration::from_millis(1));
    let answered: std::collections::BTreeSet<u8> = world
        .seen
        .iter()
        .filter(|(by_server, frame, _)| *by_server && frame.operation == Operation::Read)
        .map(|(_, frame, _)| match frame.tag {
            thinwire_wire::ebd::Tag::Ideal { identifier, .. } => identifier,
            _ => unreachable!("it speaks the other form"),
        })
        .collect();
    assert_eq!(answered, [0, 1].into());
}

/// A reload takes the export away and brings it back: nothing that was answered is lost meanwhile.
#[test]
fn a_device_that_is_not_there_for_a_while_is_waited_for() {
    for form in FORMS {
        let mut world = World::new(form);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        let volume = world.take_away();
        let flush = world.submit(client, Op::Flush, 0, &[]);
        world.pass(Duration::from_secs(3));
        assert_eq!(world.client(client).failure(), None, "{form:?}");
        assert!(world.client(client).report().retained_bytes > 0, "it is kept");
        world.bring_back(volume);
        world.wait(flush).unwrap();
        assert_eq!(world.read(client, 0, 4096).unwrap(), stamp(0, 8, 1), "{form:?}");
    }
}
