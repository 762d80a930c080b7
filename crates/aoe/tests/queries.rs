//! Config strings, masks, requests to all, other servers of a device, and storms.

mod common;

use std::time::Duration;

use common::{
    DEVICE, RESERVED, SERVER, Seen, Told, World, add, delete, mac, offer, stamp, station,
};
use thinwire_aoe::{AoeKept, AoeOffer};
use thinwire_buffer::Addr;
use thinwire_wire::aoe::{
    AoeCommand, AtaCommand, Body, ConfigCommand, ConfigQuery, ErrorCode, MaskCommand, ShelfSlot,
};

use ConfigCommand::{Exact, ForceSet, Prefix, Read, Set};

/// What the config string is, or why it is not told; `None` if nothing was said.
fn query(world: &mut World, command: ConfigCommand, config: &[u8]) -> Option<Result<String, u8>> {
    let body = Body::Query(ConfigQuery::request(command, config));
    let frame = world.request(AoeCommand::QueryConfig, &body);
    world.ask(station(9), &frame).pop().map(|answer| match answer.body() {
        Body::Query(told) => {
            assert_eq!((told.buffers, told.sectors_max, told.version), (64, 17, 1));
            assert_eq!(told.command, command);
            Ok(String::from_utf8(told.config.to_vec()).unwrap())
        }
        _ => Err(answer.header.error),
    })
}

#[test]
fn a_config_string_is_told_compared_and_set() {
    let mut world = World::new();
    let said = |text: &str| Some(Ok(text.to_owned()));
    assert_eq!(query(&mut world, Read, b""), said(""));
    assert_eq!(query(&mut world, Exact, b""), said(""));
    assert_eq!(query(&mut world, Exact, b"blue"), None);
    assert_eq!(query(&mut world, Set, b"blue moon"), said("blue moon"));
    assert_eq!(query(&mut world, Exact, b"blue moon"), said("blue moon"));
    assert_eq!(query(&mut world, Exact, b"blue"), None);
    assert_eq!(query(&mut world, Prefix, b"blue"), said("blue moon"));
    assert_eq!(query(&mut world, Prefix, b"moon"), None);
    // The answer to it was lost: it is no other string.
    assert_eq!(query(&mut world, Set, b"blue moon"), said("blue moon"));
    assert_eq!(query(&mut world, Set, b"red"), Some(Err(ErrorCode::ConfigPresent as u8)));
    assert_eq!(query(&mut world, Read, b""), said("blue moon"));
    assert_eq!(query(&mut world, ForceSet, b"red"), said("red"));
    let longest = "x".repeat(1024);
    assert_eq!(query(&mut world, ForceSet, longest.as_bytes()), said(&longest));
    // It is kept, and found again.
    assert_eq!(query(&mut world, ForceSet, b"kept"), said("kept"));
    world.crash();
    assert_eq!(query(&mut world, Read, b""), said("kept"));
    assert_eq!(world.server.borrow().kept(DEVICE).unwrap().config, b"kept");
}

#[test]
fn stations_that_are_not_in_the_list_are_not_heard() {
    let mut world = World::new();
    use MaskCommand::{Edit, Read};
    assert_eq!(world.mask(station(1), Read, &[]), Some(Ok(Vec::new())));
    let told = world.mask(station(1), Edit, &[add(mac(1)), add(mac(2)), add(mac(1))]);
    assert_eq!(told, Some(Ok(vec![mac(1), mac(2)])));
    assert_eq!(world.raw_read(station(3), 0), Told::Nothing);
    assert_eq!(world.mask(station(3), Edit, &[add(mac(3))]), None);
    assert_eq!(world.stats().masked, 2);
    assert!(world.raw_read(station(2), 0).is_done());
    // An edit that stops has done what stands before.
    let told =
        world.mask(station(1), Edit, &[delete(mac(2)), [0, 7, 0, 0, 0, 0, 0, 0], add(mac(3))]);
    assert_eq!(told, Some(Err((2, 1))));
    assert_eq!(world.raw_read(station(2), 0), Told::Nothing);
    world.crash();
    assert_eq!(world.mask(station(1), Read, &[]), Some(Ok(vec![mac(1)])));
    let many: Vec<[u8; 8]> = (0..=254).map(|at| add([2, 9, 9, 9, 9, at])).collect();
    assert_eq!(world.mask(station(1), Edit, &many), Some(Err((3, 254))));
    let none: Vec<[u8; 8]> =
        (0..=253).map(|at| delete([2, 9, 9, 9, 9, at])).chain([delete(mac(1))]).collect();
    assert_eq!(world.mask(station(1), Edit, &none), Some(Ok(Vec::new())));
    assert!(world.raw_read(station(2), 0).is_done());
}

/// No list widens what the offer says.
#[test]
fn a_list_of_masks_does_not_widen_an_offer() {
    let kept = AoeKept { masks: vec![mac(1), mac(2)], ..AoeKept::default() };
    let stations = vec![station(1), station(3)];
    let mut world = World::with(vec![AoeOffer { stations, kept, ..offer(false) }]);
    assert!(world.raw_read(station(1), 0).is_done());
    assert_eq!(world.raw_read(station(2), 0), Told::Nothing);
    assert_eq!(world.raw_read(station(3), 0), Told::Nothing);
}

fn to(frame: &[u8], device: ShelfSlot) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[2..4].copy_from_slice(&device.shelf.to_be_bytes());
    frame[4] = device.slot;
    frame
}

#[test]
fn requests_to_all_are_answered_by_each() {
    let devices = [DEVICE, ShelfSlot::new(7, 2), ShelfSlot::new(8, 1)];
    let offers = devices.iter().map(|&device| AoeOffer { device, ..offer(false) }).collect();
    let mut world = World::with(offers);
    let read = Body::Query(ConfigQuery::request(Read, &[]));
    let frame = world.request(AoeCommand::QueryConfig, &read);
    let mut answered = |device: ShelfSlot| {
        let answers = world.ask(station(9), &to(&frame, device));
        answers.iter().map(|seen| seen.header.device).collect::<Vec<_>>()
    };
    assert_eq!(answered(ShelfSlot::ALL), devices);
    assert_eq!(answered(ShelfSlot::new(0xffff, 1)), [devices[0], devices[2]]);
    assert_eq!(answered(ShelfSlot::new(7, 0xff)), devices[..2]);
    assert_eq!(answered(ShelfSlot::new(9, 0xff)), []);
    // What changes something names its device.
    let write = world.ata(AtaCommand::WriteSectorsExt, 0, 8, &stamp(0, 8, 1));
    let set = Body::Query(ConfigQuery::request(ForceSet, b"all"));
    let set = world.request(AoeCommand::QueryConfig, &set);
    for frame in [write, set] {
        let answers = world.ask(station(9), &to(&frame, ShelfSlot::ALL));
        let is_bad = |seen: &Seen| seen.header.code() == Some(ErrorCode::BadArgument);
        assert!(answers.len() == 3 && answers.iter().all(is_bad), "{answers:?}");
    }
    assert_eq!(world.stats().to_all, 6);
    assert_eq!(world.raw_read(station(1), 0), Told::Done(vec![0; 4096]));
    assert_eq!(query(&mut world, Read, b""), Some(Ok(String::new())));
}

/// Somebody else says that it is the device that is here: both are named, once.
#[test]
fn two_servers_of_one_device() {
    let mut world = World::new();
    let before = world.seen.clone();
    let asks = before.iter().find(|seen| !seen.header.is_response).expect("it asks who has it");
    assert_eq!((asks.from, asks.to), (SERVER, Addr::Group));
    let mut answer = asks.bytes.clone();
    answer[0] |= 0x08;
    for _ in 0..3 {
        assert_eq!(world.told(station(7), &answer), Told::Nothing);
    }
    assert_eq!((world.stats().rivals, world.notes.len()), (3, 1), "{:?}", world.notes);
    let note = &world.notes[0];
    assert!(note.contains("7.1") && note.contains("02-00-00-00-01-07"), "{note}");
    assert!(note.contains("02-00-00-00-00-01"), "{note}");
    // A client that uses the one warns of the other.
    let client = world.open(1);
    world.receive(station(7), &answer, Duration::ZERO);
    let mut rx = thinwire_buffer::RxFrame {
        from: station(7),
        bytes: world.pool.copy_of(&answer).freeze(),
        rest: thinwire_buffer::SegList::new(),
        waited: Duration::ZERO,
        queued: Duration::ZERO,
    };
    let now = world.now;
    thinwire_volume::Part::on_frame(world.client(client), now, 0, &mut rx);
    let note = world.client(client).take_note().expect("it says so").1;
    assert!(note.contains("02-00-00-00-01-07") && note.contains("02-00-00-00-00-01"), "{note}");
    assert_eq!(world.client(client).report().rivals, 1);
}

#[test]
fn a_storm_of_queries_is_answered_in_part() {
    let mut world = World::new();
    assert!(world.raw_write(station(1), 0, 1).is_done());
    let read = Body::Query(ConfigQuery::request(Read, &[]));
    let frame = world.request(AoeCommand::QueryConfig, &read);
    let before = world.seen.len();
    for _ in 0..20 {
        (0..500).for_each(|_| world.receive(station(9), &frame, Duration::ZERO));
        world.pass(Duration::from_millis(5));
    }
    let answers = world.seen[before..].iter().filter(|seen| seen.to == station(9)).count();
    // 10,000 in a tenth of a second.
    assert!((250..400).contains(&answers), "{answers}");
    assert_eq!(world.stats().storm + answers as u64, 10_000);
    // Disks are served meanwhile.
    (0..500).for_each(|_| world.receive(station(9), &frame, Duration::ZERO));
    assert!(world.raw_write(station(1), 0, 2).is_done());
    assert_eq!(world.raw_write(station(2), 0, 2), RESERVED);
}
