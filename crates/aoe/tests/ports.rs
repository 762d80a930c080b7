//! One device on two links: its parties, its reservation and the order of its writes are the same on both.

mod common;

use std::time::Duration;

use common::{DEVICE, FIRST_ONLY, RESERVED, SECOND, Told, World, mac, offer, stamp, station};
use thinwire_aoe::AoeOffer;
use thinwire_buffer::Addr;
use thinwire_wire::aoe::{AtaCommand, ReserveCommand, ShelfSlot};

const MS: Duration = Duration::from_millis(1);

/// What the server answers on its second link.
fn told_there(world: &mut World, from: Addr, bytes: &[u8]) -> Told {
    let before = world.seen.len();
    world.receive_on(1, from, bytes, Duration::ZERO);
    world.pass(20 * MS);
    let seen = world.seen[before..].iter().filter(|seen| seen.to == from);
    let answers: Vec<_> = seen.cloned().collect();
    assert!(answers.iter().all(|seen| seen.from == SECOND), "it is answered where it came");
    Told::of(&answers)
}

#[test]
fn a_device_is_on_both_links() {
    let mut world = World::new();
    let said = |seen: &&common::Seen| seen.to == Addr::Group && seen.header.is_response;
    let announced: Vec<Addr> = world.seen.iter().filter(said).map(|seen| seen.from).collect();
    assert_eq!(announced, [common::SERVER, SECOND]);
    let write = world.ata(AtaCommand::WriteSectorsExt, 8, 8, &stamp(8, 8, 1));
    assert!(told_there(&mut world, station(1), &write).is_done());
    assert_eq!(world.raw_read(station(2), 8), Told::Done(stamp(8, 8, 1)));
    // There is one writer, wherever it is.
    assert_eq!(world.raw_write(station(2), 8, 2), RESERVED);
    // That it hears itself is no other server.
    let announced = world.seen.iter().find(said).expect("just seen").bytes.clone();
    world.receive_on(1, common::SERVER, &announced, Duration::ZERO);
    assert_eq!((world.stats().rivals, world.notes.len()), (0, 0));
}

#[test]
fn a_device_is_where_it_is_offered() {
    let device = ShelfSlot::new(7, FIRST_ONLY);
    let mut world = World::with(vec![offer(false), AoeOffer { device, ..offer(false) }]);
    let announced = |seen: &&common::Seen| seen.from == SECOND && seen.header.device == device;
    assert_eq!(world.seen.iter().filter(announced).count(), 0);
    let mut read = world.ata(AtaCommand::ReadSectorsExt, 0, 8, &[]);
    assert!(told_there(&mut world, station(1), &read).is_done());
    read[4] = FIRST_ONLY;
    assert_eq!(told_there(&mut world, station(1), &read), Told::Nothing);
    assert_eq!(world.stats().absent, 1);
    assert!(world.told(station(1), &read).is_done());
}

/// Linux writes from all of its interfaces, to all ports of a device.
#[test]
fn one_writer_by_two_links() {
    let stations = vec![station(1), station(2)];
    let mut world = World::with(vec![AoeOffer { stations, ..offer(false) }]);
    for version in 1..5 {
        assert!(world.raw_write(station(1), 0, version).is_done());
        let write = world.ata(AtaCommand::WriteSectorsExt, 8, 8, &stamp(8, 8, version));
        assert!(told_there(&mut world, station(2), &write).is_done());
    }
    let mut world = World::new();
    let both = [mac(1), mac(2)];
    assert_eq!(world.reserve(station(1), ReserveCommand::Set, &both), Some(Ok(both.to_vec())));
    for version in 1..5 {
        assert!(world.raw_write(station(1), 0, version).is_done());
        let write = world.ata(AtaCommand::WriteSectorsExt, 8, 8, &stamp(8, 8, version));
        assert!(told_there(&mut world, station(2), &write).is_done());
    }
    let read = world.ata(AtaCommand::ReadSectorsExt, 8, 8, &[]);
    assert_eq!(told_there(&mut world, station(3), &read), RESERVED);
}

/// Version 1 lies in the queue of one link while it is written again and version 2 after it, by the other: it was received
/// before, and is dropped.
#[test]
fn the_late_write_by_the_other_link() {
    let mut world = World::new();
    let first = world.ata(AtaCommand::WriteSectorsExt, 8, 8, &stamp(8, 8, 1));
    assert!(world.told(station(1), &first).is_done());
    assert!(world.raw_write(station(1), 8, 2).is_done());
    world.pass(100 * MS);
    world.receive_on(1, station(1), &first, 130 * MS);
    world.pass(20 * MS);
    assert_eq!(world.stats().stale, 1);
    assert_eq!(world.raw_read(station(1), 8), Told::Done(stamp(8, 8, 2)));
    assert_eq!(world.server.borrow().kept(DEVICE).map(|kept| kept.reserved.len()), Some(0));
}

/// Each waits for the other, whichever link it came by, and is answered where it came.
#[test]
fn writes_that_overlap_by_two_links() {
    let (mut world, gate, _) = World::slow(vec![offer(false)]);
    assert!(world.raw_write(station(1), 64, 1).is_done());
    gate.set(false);
    for (link, version) in [(0, 1), (1, 2), (0, 3)] {
        let write = world.ata(AtaCommand::WriteSectorsExt, 8, 8, &stamp(8, 8, version));
        world.receive_on(link, station(1), &write, Duration::ZERO);
    }
    let before = world.seen.len();
    gate.set(true);
    world.wake();
    world.pass(20 * MS);
    let from: Vec<Addr> = world.seen[before..].iter().map(|seen| seen.from).collect();
    assert_eq!(from, [common::SERVER, SECOND, common::SERVER]);
    assert_eq!(world.raw_read(station(1), 8), Told::Done(stamp(8, 8, 3)));
}
