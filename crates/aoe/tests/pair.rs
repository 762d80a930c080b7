//! A server and clients: what is written is read, over a good wire and over bad ones.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{BYTES, DEVICE, Fate, SERVER, SharedStore, World, offer, stamp};
use thinwire_aoe::{AoeClientConfig, AoeClientState};
use thinwire_buffer::Addr;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{ErrorKind, Identity, Op, Volume};

#[test]
fn a_client_finds_its_device_reads_and_writes() {
    let mut world = World::new();
    let client = world.open(1);
    assert_eq!(world.client(client).geometry().bytes, BYTES);
    let report = world.client(client).report();
    // 9000 octets hold 17 sectors behind 22, and the room of the link 64 requests.
    assert_eq!((report.server, report.frame_sectors, report.window), (Some(SERVER), 17, 64));
    let data = stamp(8, 100, 1);
    world.write(client, 8, &data).unwrap();
    assert_eq!(world.read(client, 8, data.len()).unwrap(), data);
    assert_eq!(world.read(client, 107, 512).unwrap(), stamp(107, 1, 1));
    assert_eq!(world.read(client, 0, 4096).unwrap(), vec![0; 4096]);
    let last = BYTES / 512 - 1;
    world.write(client, last, &stamp(last, 1, 2)).unwrap();
    assert_eq!(world.read(client, last, 512).unwrap(), stamp(last, 1, 2));
    world.flush(client).unwrap();
    assert_eq!((&world.client_notes, &world.notes), (&Vec::new(), &Vec::new()));
    world.client(client).close();
    world.until(1, |world| world.client(client).is_closed());
}

/// A client that is there before its server hears it announce itself.
#[test]
fn a_server_announces_itself() {
    let mut world = World::new();
    let announced = world.seen.iter().find(|seen| seen.header.is_response).expect("it says so");
    assert_eq!((announced.to, announced.header.device), (Addr::Group, DEVICE));
    world.pass(Duration::from_millis(1));
    world.judge = Box::new(|seen| match seen.to == Addr::Group && seen.from != SERVER {
        true => Fate::Lost,
        false => Fate::Arrives,
    });
    let config = world.config(1);
    let client = world.add(1, config);
    world.pass(Duration::from_secs(2));
    assert!(!world.client(client).is_open(), "it is not heard");
    world.crash();
    world.until(5, |world| world.client(client).is_open());
}

#[test]
fn frames_are_lost_doubled_and_late_and_nothing_is_wrong() {
    for cached in [false, true] {
        let mut world = World::with(vec![offer(cached)]);
        let client = world.open(1);
        let mut state = 12345u64;
        world.judge = Box::new(move |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match (state >> 40) % 50 {
                0 | 1 => Fate::Lost,
                2 => Fate::Twice(Duration::from_millis((state >> 20) % 300)),
                3 => Fate::Late(Duration::from_millis((state >> 20) % 300)),
                _ => Fate::Arrives,
            }
        });
        // A write that the network doubles may land behind the next to the same place, and no client of AoE can see that: so
        // each round waits for the doubles of the one before.
        let mut versions = [0u8; 64];
        for round in 1..=40u8 {
            let mut tokens = Vec::new();
            for at in (0..64).filter(|at| (at * 7 + usize::from(round)) % 5 == 0) {
                versions[at] = round;
                let data = stamp(at as u64 * 24, 24, round);
                tokens.push(world.submit(client, Op::Write, at as u64 * 24, &data));
            }
            for token in tokens {
                world.wait(token).unwrap();
            }
            world.pass(Duration::from_millis(400));
        }
        for (at, &version) in versions.iter().enumerate().filter(|(_, version)| **version > 0) {
            let expected = stamp(at as u64 * 24, 24, version);
            let read = world.read(client, at as u64 * 24, expected.len()).unwrap();
            assert!(read == expected, "{at} of version {version}");
        }
        assert!(world.client(client).report().repeated > 0);
        let asked = world.seen.iter().filter(|seen| seen.from == client);
        let tags: BTreeSet<u32> = asked.clone().map(|seen| seen.header.tag).collect();
        assert_eq!(tags.len(), asked.count(), "each frame has a tag of its own");
    }
}

/// The target is killed while a client writes: the client asks again, and sees nothing of it.
#[test]
fn a_target_that_begins_anew() {
    let mut world = World::new();
    let client = world.open(1);
    for version in 1..=3 {
        let tokens: Vec<u64> = (0..16u64)
            .map(|at| world.submit(client, Op::Write, at * 8, &stamp(at * 8, 8, version)))
            .collect();
        world.turn();
        world.crash();
        tokens.into_iter().for_each(|token| drop(world.wait(token).unwrap()));
    }
    for at in 0..16 {
        assert_eq!(world.read(client, at * 8, 4096).unwrap(), stamp(at * 8, 8, 3));
    }
}

#[test]
fn a_server_that_is_away() {
    let mut world = World::new();
    let config = AoeClientConfig { fail_after: Some(Duration::from_secs(5)), ..world.config(1) };
    let client = world.open_with(1, config);
    world.judge = Box::new(|_| Fate::Lost);
    let begun = world.now;
    assert_eq!(world.read(client, 0, 512), Err(ErrorKind::Away));
    assert!((5..15).contains(&world.now.since(begun).as_secs()));
    world.judge = Box::new(|_| Fate::Arrives);
    world.until(5, |world| world.client(client).report().state == AoeClientState::Open);
    assert_eq!(world.read(client, 0, 512).unwrap(), vec![0; 512]);
    // One without a limit waits for as long as it takes.
    let patient = world.open(2);
    world.judge = Box::new(|_| Fate::Lost);
    let token = world.submit(patient, Op::Read, 0, &[0; 512]);
    world.pass(Duration::from_secs(30));
    world.judge = Box::new(|_| Fate::Arrives);
    assert_eq!(world.wait(token).unwrap(), vec![0; 512]);
}

/// Its server is away, and what answers then under its number is another drive.
#[test]
fn a_server_that_comes_back_with_another_drive() {
    for (bytes, identity) in [(BYTES, 8), (BYTES / 2, 7), (BYTES, 7)] {
        let mut world = World::new();
        let client = world.open(1);
        world.judge = Box::new(|_| Fate::Lost);
        let token = world.submit(client, Op::Read, 0, &[0; 512]);
        world.pass(Duration::from_secs(5));
        assert_eq!(world.client(client).report().state, AoeClientState::Away);
        let identity = Identity { identity: [identity; 16], incarnation: 1 };
        world.store =
            SharedStore::new(Box::new(MemoryStore::new(bytes, 512, identity, &world.pool)));
        world.crash();
        world.judge = Box::new(|_| Fate::Arrives);
        let is_other = (bytes, identity.identity) != (BYTES, [7; 16]);
        let expected = if is_other { Err(ErrorKind::ContentChanged) } else { Ok(vec![0; 512]) };
        assert_eq!(world.wait(token), expected);
    }
}

/// Several clients want something of one target together: they take turns, and all of them are served.
#[test]
fn clients_that_are_served_in_turns() {
    let mut world = World::new();
    let clients = [world.open(1), world.open(2), world.open(3)];
    world.write(clients[0], 0, &stamp(0, 1024, 1)).unwrap();
    let mut reads = Vec::new();
    let mut writes = Vec::new();
    for at in 0..64u64 {
        for client in clients {
            reads.push((at, world.submit(client, Op::Read, at * 16, &[0; 8192])));
        }
        let data = stamp(1024 + at * 16, 16, 2);
        writes.push(world.submit(clients[0], Op::Write, 1024 + at * 16, &data));
    }
    for (at, token) in reads {
        assert_eq!(world.wait(token).unwrap(), stamp(at * 16, 16, 1));
    }
    writes.into_iter().for_each(|token| drop(world.wait(token).unwrap()));
    assert_eq!(world.read(clients[1], 1024, 524_288).unwrap(), stamp(1024, 1024, 2));
}
