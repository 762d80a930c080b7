//! Who may write, who is fenced, and what becomes of a grant.

mod common;

use std::time::Duration;

use common::{Fate, World, stamp};
use thinwire_buffer::Addr;
use thinwire_volume::ErrorKind;
use thinwire_wire::ebd::{EbdForm, NakReason, Operation};

const FORMS: [EbdForm; 2] = [EbdForm::Ideal, EbdForm::Implemented];

/// A client that takes over, and has been let in.
fn takes_over(world: &mut World, nth: u8) -> Addr {
    let config = thinwire_ebd::ClientConfig { take_over: true, ..world.config(nth) };
    let client = world.add(config);
    world.until(5, |world| world.client(client).is_open());
    client
}

/// It was fenced, and takes over again, as the same client: it is granted once, and goes on.
#[test]
fn who_was_fenced_takes_over_again() {
    for form in FORMS {
        let mut world = World::new(form);
        let first = world.open(1);
        world.write(first, 0, &stamp(0, 8, 1)).unwrap();
        let second = takes_over(&mut world, 2);
        world.write(second, 0, &stamp(0, 8, 2)).unwrap();
        let first = takes_over(&mut world, 1);
        world.write(first, 0, &stamp(0, 8, 3)).unwrap();
        assert_eq!(world.write(second, 0, &stamp(0, 8, 4)), Err(ErrorKind::Fenced), "{form:?}");
        world.pass(Duration::from_secs(1));
        assert_eq!(world.read(first, 0, 4096).unwrap(), stamp(0, 8, 3), "{form:?}");
    }
}

/// A take-over waits in a switch, is sent again and granted; another takes over; then the first frame arrives. It ends
/// nobody's grant: it names one of before.
#[test]
fn the_take_over_that_comes_late() {
    for form in FORMS {
        let mut world = World::new(form);
        let first = world.open(1);
        world.write(first, 0, &stamp(0, 8, 1)).unwrap();
        // The one that is granted comes a second time, 3 s later.
        world.judge = Box::new(|frame, by_server| match frame.operation {
            Operation::Handshake if !by_server => Fate::Twice(Duration::from_secs(3)),
            _ => Fate::Arrives,
        });
        let second = takes_over(&mut world, 2);
        world.write(second, 0, &stamp(0, 8, 2)).unwrap();
        world.judge = Box::new(|_, _| Fate::Arrives);
        let third = takes_over(&mut world, 3);
        world.write(third, 0, &stamp(0, 8, 3)).unwrap();
        world.pass(Duration::from_secs(4));
        world.write(third, 0, &stamp(0, 8, 4)).unwrap();
        assert_eq!(world.write(second, 0, &stamp(0, 8, 5)), Err(ErrorKind::Fenced), "{form:?}");
        assert_eq!(world.read(third, 0, 4096).unwrap(), stamp(0, 8, 4), "{form:?}");
    }
}

#[test]
fn one_writes_and_who_takes_over_fences_it() {
    for form in FORMS {
        let mut world = World::new(form);
        let first = world.open(1);
        world.write(first, 0, &stamp(0, 8, 1)).unwrap();
        let reader = {
            let config = thinwire_ebd::ClientConfig { read_only: true, ..world.config(3) };
            world.add(config)
        };
        world.until(5, |world| world.client(reader).is_open());
        assert_eq!(world.read(reader, 0, 4096).unwrap(), stamp(0, 8, 1));
        let config = world.config(2);
        let second = world.add(config);
        world.until(5, |world| world.client(second).failure().is_some());
        assert_eq!(world.client(second).refusal(), Some(NakReason::Busy));
        // Silence says nothing.
        world.pass(Duration::from_secs(40));
        world.write(first, 0, &stamp(0, 8, 2)).unwrap();
        let config = thinwire_ebd::ClientConfig { take_over: true, ..world.config(4) };
        let taker = world.add(config);
        world.until(5, |world| world.client(taker).is_open());
        world.write(taker, 0, &stamp(0, 8, 3)).unwrap();
        assert_eq!(world.write(first, 0, &stamp(0, 8, 4)), Err(ErrorKind::Fenced), "{form:?}");
        assert_eq!(world.read(taker, 0, 4096).unwrap(), stamp(0, 8, 3));
        assert_eq!(world.client(first).failure(), Some(ErrorKind::Fenced));
        // Nor does that of the one that took over say anything.
        world.pass(Duration::from_secs(40));
        let config = world.config(5);
        let third = world.add(config);
        world.until(5, |world| world.client(third).failure().is_some());
        assert_eq!(world.client(third).refusal(), Some(NakReason::Busy), "{form:?}");
        world.write(taker, 0, &stamp(0, 8, 5)).unwrap();
    }
}

/// Its store has lost something, and the client has asked for nothing since: it ends, and the next may write at once.
#[test]
fn who_is_told_that_it_is_not_known_ends_in_order() {
    for form in FORMS {
        let (mut world, _, losses) = World::slow(form, false);
        let client = world.open(1);
        world.write(client, 0, &stamp(0, 8, 1)).unwrap();
        losses.set(1);
        world.read(client, 0, 512).unwrap();
        world.client(client).close();
        world.until(5, |world| world.client(client).is_closed());
        world.pass(Duration::from_millis(10));
        let next = world.open(2);
        world.write(next, 0, &stamp(0, 8, 2)).unwrap();
    }
}

/// Somebody took the device over, and has ended, and the server has begun anew: what the former writer has not flushed is
/// not put over what was written since.
#[test]
fn the_fenced_who_replays() {
    for form in FORMS {
        let mut world = World::new(form);
        let former = world.open(1);
        world.write(former, 0, &stamp(0, 8, 1)).unwrap();
        // It hears nothing of what follows.
        let silent = world.clients.remove(&former).expect("it is there");
        let config = thinwire_ebd::ClientConfig { take_over: true, ..world.config(2) };
        let taker = world.add(config);
        world.until(5, |world| world.client(taker).is_open());
        world.write(taker, 0, &stamp(0, 8, 2)).unwrap();
        world.client(taker).close();
        world.until(5, |world| world.client(taker).is_closed());
        world.pass(Duration::from_millis(10));
        world.restart(None);
        world.clients.insert(former, silent);
        assert_eq!(world.write(former, 8, &stamp(8, 8, 3)), Err(ErrorKind::Fenced), "{form:?}");
        let reader = world.open(3);
        assert_eq!(world.read(reader, 0, 4096).unwrap(), stamp(0, 8, 2), "{form:?}");
        assert_eq!(world.read(reader, 8, 512).unwrap(), vec![0; 512], "{form:?}");
    }
}
