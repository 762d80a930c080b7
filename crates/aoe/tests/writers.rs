//! Who may write, for whom a device is reserved, and what becomes of that.

mod common;

use std::time::Duration;

use common::{DEVICE, RESERVED, Told, World, mac, offer, stamp, station};
use thinwire_aoe::{AoeClientConfig, AoeKept, AoeOffer};
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::aoe::{
    AoeCommand, AtaCommand, Body, ErrorCode, Reservation, ReserveCommand, ShelfSlot, ata_error,
};

use ReserveCommand::{ForceSet, Read, Set};

/// How Reserve/Release is refused while the device is not to be had.
const UNAVAILABLE: u8 = ErrorCode::DeviceUnavailable as u8;

#[test]
fn each_station_is_a_writer_of_its_own() {
    let mut world = World::new();
    assert!(world.raw_read(station(2), 0).is_done());
    assert!(world.raw_write(station(1), 0, 1).is_done());
    assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
    assert_eq!(world.raw_read(station(2), 0), Told::Done(stamp(0, 8, 1)));
    assert!(world.raw_write(station(1), 8, 1).is_done());
}

/// It says nothing for longer than any lease, and the target begins anew: nobody else may write.
#[test]
fn the_writer_who_is_silent() {
    let mut world = World::new();
    assert!(world.raw_write(station(1), 0, 1).is_done());
    world.pass(Duration::from_secs(40));
    assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
    world.crash();
    assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
    world.pass(Duration::from_secs(40));
    assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
    assert!(world.raw_write(station(1), 8, 3).is_done());
    assert_eq!(world.raw_read(station(2), 0), Told::Done(stamp(0, 8, 1)));
}

/// Linux writes from all of its interfaces.
#[test]
fn stations_of_an_offer_are_one_writer() {
    let stations = vec![station(1), station(2)];
    let mut world = World::with(vec![AoeOffer { stations, ..offer(false) }]);
    assert!(world.raw_write(station(1), 0, 1).is_done());
    assert!(world.raw_write(station(2), 8, 1).is_done());
    assert_eq!(world.raw_read(station(3), 0), Told::Nothing);
    assert_eq!(world.stats().masked, 1);
    world.crash();
    assert!(world.raw_write(station(2), 0, 2).is_done());
    // Others that are named when it begins anew are the same writer.
    world.offers[0].stations = vec![station(2), station(3)];
    world.crash();
    assert!(world.raw_write(station(3), 0, 3).is_done());
}

#[test]
fn those_for_whom_a_device_is_reserved_are_one_writer() {
    let mut world = World::new();
    let both = [mac(1), mac(2)];
    assert_eq!(world.reserve(station(1), Read, &[]), Some(Ok(Vec::new())));
    assert_eq!(world.reserve(station(1), Set, &both), Some(Ok(both.to_vec())));
    assert!(world.raw_write(station(1), 0, 1).is_done());
    assert!(world.raw_write(station(2), 8, 1).is_done());
    // Whoever is not in the list does no I/O at all, and does not change it.
    assert_eq!(world.raw_read(station(3), 0), RESERVED);
    assert_eq!(world.raw_write(station(3), 0, 3), RESERVED);
    assert_eq!(world.reserve(station(3), Set, &[mac(3)]), Some(Err(6)));
    assert_eq!(world.reserve(station(3), Set, &[]), Some(Err(6)));
    assert_eq!(world.reserve(station(3), Read, &[]), Some(Ok(both.to_vec())));
    // The same again is answered as before, in whatever order.
    assert_eq!(world.reserve(station(2), Set, &[mac(2), mac(1)]), Some(Ok(both.to_vec())));
    // Unless it is forced.
    assert_eq!(world.reserve(station(3), ForceSet, &[mac(3)]), Some(Ok(vec![mac(3)])));
    assert_eq!(world.raw_write(station(1), 0, 4), RESERVED);
    assert!(world.raw_write(station(3), 8, 5).is_done());
    assert_eq!(world.raw_read(station(3), 0), Told::Done(stamp(0, 8, 1)));
}

#[test]
fn who_releases_lets_others_write() {
    let mut world = World::new();
    assert_eq!(world.reserve(station(1), Set, &[mac(1)]), Some(Ok(vec![mac(1)])));
    assert!(world.raw_write(station(1), 0, 1).is_done());
    assert_eq!(world.reserve(station(1), Set, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(2), 0, 2).is_done());
    // A station that has reserved nothing has the device by its writes, and gives it back so.
    assert_eq!(world.raw_write(station(1), 0, 3), RESERVED);
    assert_eq!(world.reserve(station(1), Set, &[]), Some(Ok(Vec::new())));
    assert_eq!(world.raw_write(station(1), 0, 3), RESERVED);
    assert_eq!(world.reserve(station(2), Set, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(1), 0, 3).is_done());
    // Or it is made to.
    assert_eq!(world.reserve(station(2), ForceSet, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(2), 0, 4).is_done());
    // Released is on record.
    assert_eq!(world.reserve(station(2), Set, &[]), Some(Ok(Vec::new())));
    world.crash();
    assert!(world.raw_write(station(1), 0, 5).is_done());
}

#[test]
fn nobody_reserves_what_another_writes() {
    let mut world = World::new();
    assert!(world.raw_write(station(1), 0, 1).is_done());
    assert_eq!(world.reserve(station(2), Set, &[mac(2)]), Some(Err(6)));
    assert_eq!(world.reserve(station(2), Read, &[]), Some(Ok(Vec::new())), "it is not taken");
    assert!(world.raw_write(station(1), 0, 2).is_done());
    // The writer shares what it has, and passes it on.
    let both = [mac(1), mac(2)];
    assert_eq!(world.reserve(station(1), Set, &both), Some(Ok(both.to_vec())));
    assert!(world.raw_write(station(2), 0, 3).is_done());
    assert!(world.raw_write(station(1), 0, 4).is_done());
    assert_eq!(world.reserve(station(2), Set, &[mac(3)]), Some(Ok(vec![mac(3)])));
    assert_eq!(world.raw_write(station(1), 0, 5), RESERVED);
    assert!(world.raw_write(station(3), 8, 5).is_done());
    assert_eq!(world.raw_read(station(3), 0), Told::Done(stamp(0, 8, 4)));
}

/// A list that was kept is in force when the target begins anew; one that was not is the same writer once it is set.
#[test]
fn a_reservation_behind_a_restart() {
    let both = [mac(1), mac(2)];
    let mut world = World::new();
    assert_eq!(world.reserve(station(1), Set, &both), Some(Ok(both.to_vec())));
    assert!(world.raw_write(station(1), 0, 1).is_done());
    world.crash();
    assert_eq!(world.raw_write(station(3), 0, 3), RESERVED);
    assert!(world.raw_write(station(2), 0, 2).is_done());
    // Nobody has kept it.
    world.kept.0.borrow_mut().get_mut(&DEVICE).expect("it was kept").reserved.clear();
    world.crash();
    assert_eq!(world.raw_write(station(1), 0, 3), RESERVED, "it is another writer");
    assert_eq!(world.reserve(station(2), Set, &both), Some(Ok(both.to_vec())));
    assert!(world.raw_write(station(1), 0, 4).is_done());
}

/// Who is on record from a former life of the target is released as if it had been heard in this one.
#[test]
fn a_release_behind_a_restart() {
    let mut world = World::new();
    assert_eq!(world.reserve(station(1), Set, &[mac(1)]), Some(Ok(vec![mac(1)])));
    world.crash();
    assert_eq!(world.reserve(station(1), Set, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(2), 0, 2).is_done(), "nobody is on record");
    world.crash();
    assert_eq!(
        world.reserve(station(1), Set, &[]),
        Some(Ok(Vec::new())),
        "there is nothing of its"
    );
    assert_eq!(world.raw_write(station(1), 0, 3), RESERVED);
    assert_eq!(world.reserve(station(2), Set, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(1), 0, 3).is_done());
    world.crash();
    assert_eq!(world.reserve(station(2), ForceSet, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(2), 0, 4).is_done());
}

/// Of the lists that were kept that one is in force whose stations are on record.
#[test]
fn the_record_says_which_list_is_in_force() {
    let keep = |world: &World, reserved: &[[u8; 6]], reserving: &[[u8; 6]]| {
        let (reserved, reserving) = (reserved.to_vec(), reserving.to_vec());
        let kept = AoeKept { reserved, reserving, ..AoeKept::default() };
        world.kept.0.borrow_mut().insert(DEVICE, kept);
    };
    let mut world = World::new();
    assert_eq!(world.reserve(station(1), Set, &[mac(1)]), Some(Ok(vec![mac(1)])));
    // Killed before it has said that the list is in force, and before the next one is.
    for (reserved, reserving) in [(mac(2), mac(1)), (mac(1), mac(2))] {
        keep(&world, &[reserved], &[reserving]);
        world.crash();
        assert_eq!(world.reserve(station(3), Read, &[]), Some(Ok(vec![mac(1)])));
        assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
        assert!(world.raw_write(station(1), 0, 1).is_done());
    }
    // The end of it is on record, and nothing else.
    assert_eq!(world.reserve(station(1), Set, &[]), Some(Ok(Vec::new())));
    keep(&world, &[], &[mac(1)]);
    world.crash();
    assert_eq!(world.reserve(station(3), Read, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(2), 0, 2).is_done());
}

/// Nobody is on record before the list is durable, and nobody waits for ever for a folder that takes nothing.
#[test]
fn a_list_comes_into_force_once_it_is_kept() {
    let mut world = World::new();
    world.kept.1.set(true);
    assert_eq!(world.reserve(station(1), Set, &[mac(1)]), None);
    assert_eq!(world.kept.0.borrow()[&DEVICE].reserving, [mac(1)]);
    assert_eq!(world.raw_write(station(1), 0, 1), Told::Nothing, "whoever it will be asks again");
    assert_eq!(world.reserve(station(2), ForceSet, &[mac(2)]), None, "one at a time");
    // Killed now, it is as if nobody had asked.
    world.crash();
    assert_eq!(world.reserve(station(1), Read, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(2), 0, 2).is_done());
    assert_eq!(world.reserve(station(2), Set, &[]), Some(Ok(Vec::new())));
    assert_eq!(world.reserve(station(1), Set, &[mac(1)]), None);
    world.kept.1.set(false);
    world.pass(Duration::from_millis(20));
    assert_eq!(world.reserve(station(2), Read, &[]), Some(Ok(vec![mac(1)])));
    // Or it never is.
    world.kept.1.set(true);
    assert_eq!(world.reserve(station(1), Set, &[mac(1), mac(2)]), None);
    world.pass(Duration::from_secs(6));
    assert_eq!(world.reserve(station(2), Read, &[]), Some(Ok(vec![mac(1)])), "as before");
    assert!(world.kept.0.borrow()[&DEVICE].reserving.is_empty());
    assert!(world.raw_write(station(1), 0, 3).is_done());
}

/// A record that cannot be read is read again: whoever comes first when it can be finds the device as it was.
#[test]
fn a_record_that_cannot_be_read_is_read_again() {
    for is_reserved in [false, true] {
        let (mut world, fails) = World::unrecorded();
        if is_reserved {
            assert_eq!(world.reserve(station(1), Set, &[mac(1)]), Some(Ok(vec![mac(1)])));
        }
        fails.set(Some(Op::LoadWriter));
        world.crash();
        assert_eq!(world.reserve(station(1), Set, &[]), Some(Err(UNAVAILABLE)));
        fails.set(None);
        world.pass(Duration::from_millis(1100));
        if is_reserved {
            // This has it read again, the next finds it.
            world.raw_write(station(2), 0, 2);
            assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
            assert!(world.raw_write(station(1), 0, 1).is_done());
        } else {
            let told = world.reserve(station(1), Set, &[mac(1)]);
            assert!(told.is_none() || told == Some(Ok(vec![mac(1)])), "{told:?}");
            world.pass(Duration::from_millis(20));
            assert_eq!(world.reserve(station(2), Read, &[]), Some(Ok(vec![mac(1)])));
        }
    }
}

/// A release is done once the record says so: one that cannot be put there leaves the device as it was.
#[test]
fn a_release_that_cannot_be_recorded_is_refused() {
    let (mut world, fails) = World::unrecorded();
    assert_eq!(world.reserve(station(1), Set, &[mac(1)]), Some(Ok(vec![mac(1)])));
    for restarts in [false, true] {
        if restarts {
            world.crash();
        }
        fails.set(Some(Op::StoreWriter));
        assert_ne!(world.reserve(station(1), Set, &[]), Some(Ok(Vec::new())));
        fails.set(None);
        world.pass(Duration::from_secs(6));
        assert_eq!(world.reserve(station(2), Read, &[]), Some(Ok(vec![mac(1)])), "{restarts}");
        assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
        assert!(world.raw_write(station(1), 0, 1).is_done(), "{restarts}");
    }
    assert_eq!(world.reserve(station(1), Set, &[]), Some(Ok(Vec::new())));
    assert!(world.raw_write(station(2), 0, 2).is_done());
}

/// A write is in the store when another takes over: that is answered once it has landed, so that it does not land on what the
/// new writer writes.
#[test]
fn a_take_over_of_a_writer_whose_write_is_in_the_store() {
    let (mut world, gate, _) = World::slow(vec![offer(false)]);
    assert!(world.raw_write(station(1), 64, 1).is_done());
    gate.set(false);
    assert_eq!(world.raw_write(station(1), 0, 1), Told::Nothing);
    assert_eq!(world.reserve(station(2), ForceSet, &[mac(2)]), None);
    // While that is decided nobody else asks, and the former writer writes nothing.
    assert_eq!(world.reserve(station(3), ForceSet, &[mac(3)]), None);
    assert_eq!(world.stats().undecided, 1);
    assert_eq!(world.raw_write(station(1), 0, 9), Told::Nothing);
    gate.set(true);
    world.wake();
    world.pass(Duration::from_millis(20));
    assert_eq!(world.reserve(station(3), Read, &[]), Some(Ok(vec![mac(2)])));
    assert!(world.raw_write(station(2), 0, 2).is_done());
    world.pass(Duration::from_secs(1));
    assert_eq!(world.raw_read(station(2), 0), Told::Done(stamp(0, 8, 2)));
}

/// Whoever uses the same export as another device, or by another protocol, takes it over: the former writer is told at once that it
/// cannot write, and does not come back by asking.
#[test]
fn the_fenced_who_asks_again() {
    let other = ShelfSlot::new(7, 2);
    let offers = vec![offer(false), AoeOffer { device: other, ..offer(false) }];
    let mut world = World::with(offers);
    assert!(world.raw_write(station(1), 0, 1).is_done());
    let at_other = |mut frame: Vec<u8>| {
        frame[4] = other.slot;
        frame
    };
    let write = world.ata(AtaCommand::WriteSectorsExt, 0, 8, &stamp(0, 8, 2));
    assert_eq!(world.told(station(2), &at_other(write.clone())), RESERVED);
    let macs = [mac(2)];
    let body = Body::Reserve(Reservation::new(ForceSet, &macs));
    let take = world.request(AoeCommand::Reserve, &body);
    assert!(!world.ask_one(station(2), &at_other(take)).header.is_error);
    assert!(world.told(station(2), &at_other(write)).is_done());
    for _ in 0..3 {
        assert_eq!(world.raw_write(station(1), 0, 3), Told::Drive(ata_error::ABRT));
    }
    assert_eq!(world.raw_read(station(1), 0), Told::Done(stamp(0, 8, 2)));
    world.pass(Duration::from_secs(40));
    assert_eq!(world.raw_write(station(1), 0, 3), Told::Drive(ata_error::ABRT));
    assert_eq!(world.reserve(station(1), Set, &[mac(1)]), Some(Err(6)));
    assert_eq!(world.reserve(station(1), ForceSet, &[mac(1)]), Some(Ok(vec![mac(1)])));
    assert!(world.raw_write(station(1), 0, 4).is_done());
}

/// As Linux, a client that may not write goes on asking; when the writer releases the device, it writes.
#[test]
fn a_client_waits_for_the_writer_to_end() {
    let mut world = World::new();
    let (first, second) = (world.open(1), world.open(2));
    world.write(first, 0, &stamp(0, 8, 1)).unwrap();
    let token = world.submit(second, Op::Write, 0, &stamp(0, 8, 2));
    world.pass(Duration::from_secs(3));
    assert!(!world.done.contains_key(&token));
    assert_eq!(world.client(second).refusal(), Some(ErrorCode::Reserved));
    assert_eq!(world.reserve(first, Set, &[]), Some(Ok(Vec::new())));
    world.wait(token).unwrap();
    assert_eq!(world.read(first, 0, 4096).unwrap(), stamp(0, 8, 2));
}

/// Many writes are refused, and asked for again one at a time: reads beside them wait for none of them, and once the device
/// is released all of them are done.
#[test]
fn reads_go_on_beside_writes_that_are_refused() {
    let mut world = World::new();
    let (first, second) = (world.open(1), world.open(2));
    world.write(first, 0, &stamp(0, 8, 1)).unwrap();
    let writes: Vec<u64> = (0..100u64)
        .map(|at| world.submit(second, Op::Write, 64 + at * 8, &stamp(64 + at * 8, 8, 2)))
        .collect();
    world.pass(Duration::from_secs(3));
    assert_eq!(world.client(second).refusal(), Some(ErrorCode::Reserved));
    let (from, before) = (world.now, world.client(second).report());
    for _ in 0..100 {
        assert_eq!(world.read(second, 0, 4096).unwrap(), stamp(0, 8, 1));
    }
    let took = world.now.since(from);
    assert!(took < Duration::from_millis(100), "{took:?}");
    world.pass(Duration::from_secs(2).saturating_sub(took));
    let after = world.client(second).report();
    assert!(after.window >= before.window, "nothing was lost");
    let (again, refused) = (after.repeated - before.repeated, after.refused - before.refused);
    // One in 50 ms at most.
    assert!((2..=41).contains(&again) && refused <= 41, "{again} frames, {refused} refused");
    assert_eq!(world.reserve(first, Set, &[]), Some(Ok(Vec::new())));
    let from = world.now;
    writes.into_iter().for_each(|token| drop(world.wait(token).unwrap()));
    assert!(world.now.since(from) < Duration::from_secs(4), "{:?}", world.now.since(from));
}

/// What waits behind writes that are refused fails with them.
#[test]
fn what_is_refused_for_long_fails_and_so_does_what_waits_behind_it() {
    let mut world = World::new();
    let first = world.open(1);
    let config = world.config(2);
    let second =
        world.open_with(2, AoeClientConfig { fail_after: Some(Duration::from_secs(2)), ..config });
    world.write(first, 0, &stamp(0, 8, 1)).unwrap();
    let from = world.now;
    let writes: Vec<u64> = (0..100u64)
        .map(|at| world.submit(second, Op::Write, 64 + at * 8, &stamp(64 + at * 8, 8, 2)))
        .collect();
    for token in writes {
        assert_eq!(world.wait(token), Err(ErrorKind::Away));
    }
    assert!(world.now.since(from) < Duration::from_millis(2500), "{:?}", world.now.since(from));
    assert_eq!(world.read(second, 0, 4096).unwrap(), stamp(0, 8, 1));
}
