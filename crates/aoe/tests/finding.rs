//! Clients whose server, or the way to it, is not what it was: each mend of the client is a test.

mod common;

use std::time::Duration;

use common::{DEVICE, Fate, SERVER, SharedStore, World, stamp, station};
use thinwire_aoe::{AoeClientConfig, AoeClientState};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{ErrorKind, Identity, Op};
use thinwire_wire::aoe::{AoeCommand, ConfigCommand, ConfigQuery, ErrorCode, Header};

const SECOND: Duration = Duration::from_secs(1);

/// Something on the way carries no long frames: requests become as short as those of the smallest links.
#[test]
fn a_way_that_carries_no_long_frames() {
    let mut world = World::new();
    let client = world.open(1);
    world.judge = Box::new(|seen| if seen.bytes.len() > 4400 { Fate::Lost } else { Fate::Arrives });
    let tokens = [
        (world.submit(client, Op::Write, 8, &stamp(8, 40, 1)), Vec::new()),
        (world.submit(client, Op::Read, 8, &[0; 20_480]), stamp(8, 40, 1)),
        (world.submit(client, Op::Read, 100, &[0; 512]), vec![0; 512]),
    ];
    for (token, data) in tokens {
        assert_eq!(world.wait(token).unwrap(), data);
    }
    assert_eq!(world.client(client).report().frame_sectors, 2);
    let told = |text: &String| text.contains("something on the way carries none of 8726 bytes");
    assert!(world.client_notes.iter().any(told), "{:?}", world.client_notes);
}

/// The same, and nothing is asked for but what is too long.
#[test]
fn a_way_on_which_nothing_else_is_asked_for() {
    let mut world = World::new();
    let client = world.open(1);
    world.judge = Box::new(|seen| if seen.bytes.len() > 4400 { Fate::Lost } else { Fate::Arrives });
    let begun = world.now;
    assert_eq!(world.read(client, 8, 75_264).unwrap(), vec![0; 75_264]);
    assert!(world.now.since(begun) < 20 * SECOND, "{:?}", world.now.since(begun));
}

/// Frames are lost, but not because they are long: they stay so.
#[test]
fn a_way_that_loses_frames_now_and_then() {
    let mut world = World::new();
    let client = world.open(1);
    let mut count = 0u32;
    world.judge = Box::new(move |_| {
        count += 1;
        if count.is_multiple_of(3) { Fate::Lost } else { Fate::Arrives }
    });
    for at in 0..40 {
        world.write(client, at * 17, &stamp(at * 17, 17, 1)).unwrap();
    }
    assert_eq!(world.client(client).report().frame_sectors, 17);
}

/// A station says that it has the device, and goes before it has said how large that is.
#[test]
fn a_server_that_goes_before_it_is_asked_for_its_drive() {
    let mut world = World::new();
    // What it has announced has come.
    world.pass(SECOND / 100);
    world.judge = Box::new(|seen| if seen.header.is_response { Fate::Lost } else { Fate::Arrives });
    let config = world.config(1);
    let client = world.add(1, config);
    let stranger = station(9);
    world.turn();
    // Its answer comes first, and it says nothing more.
    let asked = world.seen.iter().find(|seen| seen.from == client).expect("it asks").header.tag;
    let mut bytes = Vec::new();
    let answer =
        Header::request(common::DEVICE, AoeCommand::QueryConfig, asked).answer(common::DEVICE);
    answer.put(&mut bytes);
    ConfigQuery {
        buffers: 16,
        firmware: 1,
        sectors_max: 17,
        version: 1,
        command: ConfigCommand::Read,
        config: &[],
    }
    .put(&mut bytes);
    world.say_to(client, stranger, &bytes);
    assert_eq!(world.client(client).report().server, Some(stranger));
    world.judge = Box::new(|_| Fate::Arrives);
    world.until(10, |world| world.client(client).is_open());
    assert_eq!(world.client(client).report().server, Some(common::SERVER));
}

/// Another writes: what waits for that fails once it has waited for as long as it may, and what is read is read.
#[test]
fn a_write_that_is_refused_for_too_long() {
    let mut world = World::new();
    let writer = world.open(1);
    world.write(writer, 8, &stamp(8, 8, 1)).unwrap();
    let config = AoeClientConfig { fail_after: Some(5 * SECOND), ..world.config(2) };
    let waiter = world.open_with(2, config);
    let token = world.submit(waiter, Op::Write, 16, &stamp(16, 8, 1));
    let begun = world.now;
    while !world.done.contains_key(&token) {
        assert_eq!(world.read(waiter, 8, 4096).unwrap(), stamp(8, 8, 1));
        assert!(world.now.since(begun) < 8 * SECOND, "it goes on waiting");
        world.pass(SECOND / 10);
    }
    assert_eq!(world.wait(token), Err(ErrorKind::Away));
    let told = |text: &String| text.contains("goes on refusing (reserved)");
    assert!(world.client_notes.iter().any(told), "{:?}", world.client_notes);
    // Nothing is asked any more.
    assert_eq!(world.client(waiter).refusal(), None);
    world.submit(waiter, Op::Write, 32, &stamp(32, 8, 1));
    world.pass(2 * SECOND);
    assert_eq!(world.client(waiter).refusal(), Some(ErrorCode::Reserved));
}

/// What a server has refused is asked again and done; that it refused it once more, or comes late, says nothing any more.
#[test]
fn a_refusal_that_comes_late() {
    let mut world = World::new();
    let client = world.open(1);
    world.write(client, 8, &stamp(8, 8, 1)).unwrap();
    let asked = world.seen.iter().rev().find(|seen| seen.is_write()).expect("it was asked");
    let mut bytes = Vec::new();
    asked.header.refuse(DEVICE, ErrorCode::Reserved).put(&mut bytes);
    world.say_to(client, SERVER, &bytes);
    world.pass(SECOND);
    let report = world.client(client).report();
    assert_eq!((report.late, report.refused), (1, 0));
    assert_eq!(world.client(client).refusal(), None);
}

/// Who ends does not wait for ever for what is refused.
#[test]
fn an_end_while_a_write_is_refused() {
    let mut world = World::new();
    let writer = world.open(1);
    world.write(writer, 8, &stamp(8, 8, 1)).unwrap();
    let waiter = world.open(2);
    let token = world.submit(waiter, Op::Write, 16, &stamp(16, 8, 1));
    world.pass(SECOND);
    world.client(waiter).close();
    world.until(10, |world| world.client(waiter).report().state == AoeClientState::Closed);
    assert_eq!(world.wait(token), Err(ErrorKind::ShuttingDown));
}

/// A station begins anew, and a write of its former self comes late: nothing is written before that can have come.
#[test]
fn the_late_write_of_a_former_self() {
    let mut world = World::new();
    let client = world.open(1);
    world.judge = Box::new(|seen| match seen.is_write() {
        true => Fate::Late(3 * SECOND / 2),
        false => Fate::Arrives,
    });
    world.submit(client, Op::Write, 8, &stamp(8, 8, 1));
    world.turn();
    world.judge = Box::new(|_| Fate::Arrives);
    // It dies, and another begins at its station.
    let client = world.open(1);
    world.write(client, 8, &stamp(8, 8, 2)).unwrap();
    world.pass(4 * SECOND);
    assert_eq!(world.read(client, 8, 4096).unwrap(), stamp(8, 8, 2));
}

/// The server begins anew with another drive, sooner than anybody misses it: it announces itself, and is looked at.
#[test]
fn another_drive_that_is_announced() {
    let mut world = World::new();
    let client = world.open(1);
    world.write(client, 8, &stamp(8, 8, 1)).unwrap();
    world.pass(SECOND);
    let identity = Identity { identity: [8; 16], incarnation: 1 };
    world.store =
        SharedStore::new(Box::new(MemoryStore::new(common::BYTES, 512, identity, &world.pool)));
    world.crash();
    world.pass(SECOND / 10);
    assert_eq!(world.read(client, 8, 4096), Err(ErrorKind::ContentChanged));
}

/// The server announces that it has begun, and goes before it has said what its drive is: I/O fails as if it were away, and
/// who ends does so.
#[test]
fn a_server_that_goes_once_it_has_announced_itself() {
    let mut world = World::new();
    let config = AoeClientConfig { fail_after: Some(5 * SECOND), ..world.config(1) };
    let client = world.open_with(1, config);
    let patient = world.open(2);
    world.pass(SECOND);
    world.crash();
    world.turn();
    world.judge = Box::new(|_| Fate::Lost);
    let token = world.submit(client, Op::Read, 8, &[0; 512]);
    let waits = world.submit(patient, Op::Read, 8, &[0; 512]);
    let begun = world.now;
    assert_eq!(world.wait(token), Err(ErrorKind::Away));
    assert!((4..15).contains(&world.now.since(begun).as_secs()));
    assert_eq!(world.client(client).report().state, AoeClientState::Away);
    world.client(patient).close();
    world.until(10, |world| world.client(patient).report().state == AoeClientState::Closed);
    assert_eq!(world.wait(waits), Err(ErrorKind::ShuttingDown));
}

/// A disk that takes 9 s for everything: what it says in the end is an answer to whatever was asked.
#[test]
fn answers_that_come_late_are_answers() {
    let mut world = World::new();
    let client = world.open(1);
    world.judge = Box::new(|seen| match seen.header.is_response {
        true => Fate::Late(9 * SECOND),
        false => Fate::Arrives,
    });
    let token = world.submit(client, Op::Write, 8, &stamp(8, 8, 1));
    world.until(15, |world| world.done.contains_key(&token));
    assert!(world.wait(token).is_ok());
}
