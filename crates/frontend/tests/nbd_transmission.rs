//! Requests legal and illegal, clients that leave, stall or stop reading.

mod nbd_common;

use std::io::Write;
use std::task::Poll;

use nbd_common::client::{Client, request_bytes};
use nbd_common::{Backing, Server, config};
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::nbd::{NbdConfig, NbdFace, NbdLimits};
use thinwire_volume::ErrorKind;
use thinwire_volume::testing::SplitMix64;

const BYTES: u64 = 64 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;
const FUA: u16 = 1;

fn server() -> Server {
    Server::start(config(), Backing::Memory, BYTES)
}

#[test]
fn illegal_requests_are_refused_and_the_connection_lives() {
    let server = server();
    let (inval, nospc) = (22, 28);
    for structured in [false, true] {
        let mut client = Client::open(&server.path, structured);
        let mut cookie = 100;
        for (flags, command, offset, len, error) in [
            (0, READ, BYTES, 1, inval),
            (0, READ, BYTES - 1, 2, inval),
            (0, READ, u64::MAX, 2, inval),
            (0, READ, 0, 0, inval),
            (0, READ, 0, (32 << 20) + 1, inval),
            (0, READ, 0, u32::MAX, inval),
            (1 << 1, READ, 0, 1, inval),
            (1 << 2, READ, 0, 1, if structured { 0 } else { inval }),
            (1 << 15, READ, 0, 1, inval),
            (0, WRITE, BYTES - 1, 2, nospc),
            (0, WRITE, u64::MAX - 5, 9, nospc),
            (0, WRITE, 0, 0, inval),
            (0, WRITE, 0, (32 << 20) + 1, inval),
            (1 << 5, WRITE, 0, 77, inval),
            (0, FLUSH, 1, 0, inval),
            (0, FLUSH, 0, 1, inval),
            (1 << 1, FLUSH, 0, 0, inval),
            (FUA, FLUSH, 0, 0, 0),
            (0, TRIM, 0, 0, inval),
            (0, TRIM, 0, u32::MAX, inval),
            (1 << 4, TRIM, 0, 1, inval),
            (0, ZEROES, BYTES, 1, nospc),
            (1 << 4, ZEROES, 0, 1, inval),
            (0, STATUS, BYTES, 1, inval),
            (0, STATUS, 0, 0, inval),
            (1 << 3, STATUS, 0, 512, if structured { 0 } else { inval }),
            (0, 5, 0, 1, inval),
            (0, 8, 0, 1, inval),
            (0, 0xffff, 0, 1, inval),
        ] {
            cookie += 1;
            client.request(flags, command, cookie, offset, len);
            if command == WRITE {
                // In pieces, as requests it must not be mistaken for.
                let junk = request_bytes(0, DISC, 0, 0, 0).repeat(40_000);
                let mut left = len as usize;
                while left > 0 {
                    let part = left.min(junk.len());
                    client.say(&junk[..part]);
                    left -= part;
                }
            }
            let answer = client.answer(len as usize);
            assert_eq!((answer.cookie, answer.error), (cookie, error), "{flags} {command} {len}");
            assert_eq!(structured && error != 0, error != 0 && !answer.data.is_empty());
        }
        client.request(0, WRITE, 1, BYTES - 3, 3);
        client.say(b"end");
        assert_eq!(client.answer(0).error, 0);
        client.request(0, READ, 2, BYTES - 3, 3);
        assert_eq!(client.answer(3).data, b"end");
        client.say(&[0x25, 0x60, 0x95, 0x14]);
        client.say(&[0; 24]);
        assert!(client.is_closed());
    }
    assert_eq!(server.stats().connections_broken, 2);
}

#[test]
fn every_kind_of_error_has_its_number() {
    let server = server();
    let mut client = Client::open(&server.path, true);
    for (kind, errno) in [
        (ErrorKind::Io, 5),
        (ErrorKind::Invalid, 22),
        (ErrorKind::NoSpace, 28),
        (ErrorKind::ReadOnly, 1),
        (ErrorKind::Unsupported, 95),
        (ErrorKind::Fenced, 5),
        (ErrorKind::Away, 5),
        (ErrorKind::ContentChanged, 5),
        (ErrorKind::OutcomeUnknown, 5),
        (ErrorKind::ShuttingDown, 108),
        (ErrorKind::Altered, 5),
        (ErrorKind::BadSum, 5),
    ] {
        server.with(move |_, volume| volume.inner_mut().fail = Some(kind));
        for command in [READ, WRITE, FLUSH, TRIM, ZEROES, STATUS] {
            let len = if command == FLUSH { 0 } else { 1024 };
            client.request(0, command, 9, 0, len);
            if command == WRITE {
                client.say(&[0; 1024]);
            }
            let answer = client.answer(1024);
            assert_eq!((answer.cookie, answer.error), (9, errno), "{kind:?}");
            let text = String::from_utf8(answer.data).unwrap();
            assert!(text.contains(kind.describe()) && text.contains("test"), "{text}");
        }
    }
    server.with(|_, volume| volume.inner_mut().fail = None);
    client.request(0, READ, 9, 0, 10);
    assert_eq!(client.answer(10).error, 0);
    assert_eq!(server.with(|face, _| face.held_bytes()), 0);
}

#[test]
fn long_payloads_arrive_whole_between_short_ones() {
    for backing in [Backing::Memory, Backing::SlowFile] {
        let server = Server::start(config(), backing, BYTES);
        let mut rng = SplitMix64::new(7);
        let mut model = vec![0u8; BYTES as usize];
        let mut client = Client::open(&server.path, true);
        for round in 0..12u64 {
            let mut burst = Vec::new();
            let mut count = 0;
            let mut at = 0;
            while at < BYTES / 2 {
                let most = [40, 5_000, 70_000, 3 << 20][rng.below(4) as usize];
                let len = 1 + rng.below(most) as usize;
                let fill = rng.next() as u8;
                model[at as usize..at as usize + len].fill(fill);
                burst.extend(request_bytes(FUA, WRITE, count, at, len as u32));
                burst.resize(burst.len() + len, fill);
                at += len as u64 + rng.below(3);
                count += 1;
                if burst.len() > 6 << 20 {
                    break;
                }
            }
            // Written by another thread, for the server may pause while nobody reads.
            let mut socket = client.socket.try_clone().unwrap();
            let writer = std::thread::spawn(move || socket.write_all(&burst).unwrap());
            for _ in 0..count {
                assert_eq!(client.answer(0).error, 0);
            }
            writer.join().unwrap();
            let from = rng.below(1 << 20);
            client.request(0, READ, round, from, 32 << 20);
            let answer = client.answer(32 << 20);
            assert!(answer.data == model[from as usize..][..32 << 20], "round {round}");
        }
        client.request(0, DISC, 0, 0, 0);
        assert!(client.is_closed());
    }
}

#[test]
fn block_status_and_zeroes() {
    let server = server();
    let mut client = Client::open(&server.path, true);
    client.request(0, WRITE, 1, 8192, 4096);
    client.say(&[1; 4096]);
    client.answer(0);
    let ask = |client: &mut Client, flags, offset, len| {
        client.request(flags, STATUS, 2, offset, len);
        let data = client.answer(0).data;
        data.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(ask(&mut client, 0, 100, 20_000), [8092, 3, 4096, 0, 20_000 - 8092 - 4096, 3]);
    assert_eq!(ask(&mut client, 1 << 3, 100, 20_000), [8092, 3]);
    assert_eq!(ask(&mut client, 0, 9000, 10), [10, 0]);
    client.request(FUA, ZEROES, 3, 8191, 4098);
    assert_eq!(client.answer(0).error, 0);
    client.request(0, READ, 4, 8192, 4096);
    assert_eq!(client.answer(4096).data, [0; 4096]);
}

/// A flood of reads whose replies nobody takes: memory stays bounded, others are served, and when
/// the client reads again, all its replies are there.
#[test]
fn a_client_that_stops_reading_stops_only_itself() {
    let server = server();
    let mut lazy = Client::open(&server.path, true);
    let mut other = Client::open(&server.path, false);
    let count = 2000u64;
    let len = 1 << 20;
    let mut socket = lazy.socket.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        for cookie in 0..count {
            let offset = cookie % 64 * 512 + 1;
            socket.write_all(&request_bytes(0, READ, cookie, offset, len)).unwrap();
        }
    });
    server.until(|face, _| face.stats().pauses > 0);
    for cookie in 0..100 {
        other.request(0, READ, cookie, 0, 4096);
        assert_eq!(other.answer(4096).cookie, cookie);
        let held = server.with(|face, _| face.held_bytes());
        assert!(held <= (64 << 20) + 4096, "{held} bytes are held");
    }
    let mut seen = vec![false; count as usize];
    for _ in 0..count {
        let answer = lazy.answer(0);
        assert_eq!((answer.error, answer.data.len()), (0, len as usize));
        assert!(!std::mem::replace(&mut seen[answer.cookie as usize], true));
    }
    flood.join().unwrap();
    server.until(|face, _| face.held_bytes() == 0);
}

/// The same with requests that hold no bytes: their number is bounded.
#[test]
fn small_requests_are_bounded_by_number() {
    let mut config = config();
    config.limits.connection_requests_max = 8;
    let server = Server::start(config, Backing::Memory, BYTES);
    server.with(|_, volume| volume.inner_mut().held = true);
    let mut client = Client::open(&server.path, false);
    for cookie in 0..100 {
        client.request(0, FLUSH, cookie, 0, 0);
    }
    server.until(|face, _| face.outstanding() == 8);
    server.with(|_, volume| volume.inner_mut().held = false);
    for _ in 0..100 {
        assert_eq!(client.answer(0).error, 0);
    }
    assert!(server.stats().pauses > 0);
}

/// Answers that nobody reads are bounded in bytes, too, if the volume makes them or the gate.
#[test]
fn answers_without_payload_are_bounded_in_bytes() {
    const MOST: u64 = 256 << 10;
    let mut config = config();
    config.limits.connection_bytes_max = MOST;
    config.limits.connection_requests_max = 4096;
    let server = Server::start(config, Backing::Memory, BYTES);
    let mut other = Client::open(&server.path, false);
    // As many extents as an answer takes.
    for cookie in 0..2048 {
        other.request(0, WRITE, cookie, cookie * 8192, 1);
        other.say(b"x");
        assert_eq!(other.answer(0).error, 0);
    }
    for (command, len, count) in [(STATUS, 32 << 20, 500u64), (77, 0, 50_000)] {
        let mut lazy = Client::open(&server.path, true);
        let live = |_: &mut NbdFace, volume: &mut nbd_common::Served| {
            volume.inner().pool.stats().live_bytes as u64
        };
        let before = server.with(live);
        let mut socket = lazy.socket.try_clone().unwrap();
        let flood = std::thread::spawn(move || {
            for cookie in 0..count {
                socket.write_all(&request_bytes(0, command, cookie, 0, len)).unwrap();
            }
        });
        server.until(move |face, volume| live(face, volume) > before + MOST / 2);
        for cookie in 0..100 {
            other.request(0, READ, cookie, 0, 1);
            assert_eq!(other.answer(1).data, b"x");
            let held = server.with(|face, _| face.held_bytes());
            assert!(held <= MOST, "{held} bytes are held");
            // What has come of the requests themselves, beside.
            let taken = server.with(live) - before;
            assert!(taken <= MOST + (512 << 10), "{taken} bytes are taken");
        }
        for _ in 0..count {
            let answer = lazy.answer(0);
            assert_eq!(answer.error, if command == STATUS { 0 } else { 22 });
            assert!(command != STATUS || answer.data.len() > 4000, "{}", answer.data.len());
        }
        flood.join().unwrap();
        server.until(|face, _| face.held_bytes() == 0);
    }
}

/// All connections together are bounded, and nobody starves.
#[test]
fn connections_share_what_memory_there_is() {
    let mut config = config();
    config.limits.bytes_max = 4 << 20;
    let server = Server::start(config, Backing::Memory, BYTES);
    server.with(|_, volume| volume.inner_mut().held = true);
    let mut clients: Vec<_> = (0..6).map(|_| Client::open(&server.path, false)).collect();
    for client in &mut clients {
        for cookie in 0..8 {
            client.request(0, READ, cookie, 0, 1 << 20);
        }
    }
    // Everybody has one, in excess of what there is.
    server.until(|face, _| face.outstanding() >= 6);
    assert!(server.with(|face, _| face.held_bytes()) <= 9 << 20);
    server.with(|_, volume| volume.inner_mut().held = false);
    for client in &mut clients {
        for _ in 0..8 {
            assert_eq!(client.answer(1 << 20).error, 0);
        }
    }
}

#[test]
fn completions_of_clients_that_left_are_dropped() {
    let server = server();
    server.with(|_, volume| volume.inner_mut().held = true);
    let mut client = Client::open(&server.path, true);
    for cookie in 0..50 {
        client.request(0, READ, cookie, 0, 65536);
        client.request(0, WRITE, cookie, 65536 * cookie, 65536);
        client.say(&[3; 65536]);
    }
    server.until(|face, _| face.outstanding() == 100);
    drop(client);
    server.until(|face, _| face.connections() == 0);
    // Another takes the place, and must not get the first one's answers.
    let mut next = Client::open(&server.path, true);
    next.request(0, READ, 7777, 0, 3);
    server.until(|face, _| face.outstanding() == 101);
    server.with(|_, volume| volume.inner_mut().held = false);
    assert_eq!(next.answer(3).cookie, 7777);
    server.until(|face, _| face.outstanding() == 0 && face.held_bytes() == 0);
    assert_eq!(server.stats().completions_dropped, 100);
    // The writes took effect all the same.
    next.request(0, READ, 1, 65536 * 50 - 1, 2);
    assert_eq!(next.answer(2).data, [3, 0]);
}

/// A client that asks, goes, and comes again while the volume is away does not pile its requests up.
#[test]
fn requests_of_clients_that_left_are_bounded() {
    let mut config = config();
    config.limits = NbdLimits { requests_max: 100, ..NbdLimits::default() };
    let server = Server::start(config, Backing::Memory, BYTES);
    server.with(|_, volume| volume.inner_mut().held = true);
    for round in 0..20 {
        let mut client = Client::open(&server.path, true);
        (0..10).for_each(|cookie| client.request(0, FLUSH, cookie, 0, 0));
        server.until(move |face, _| face.outstanding() >= 100.min(10 * (round + 1)));
        drop(client);
        server.until(|face, _| face.connections() == 0);
        assert!(server.with(|face, _| face.outstanding()) <= 100, "round {round}");
    }
    // A new one waits, and is served when the volume is back.
    let mut next = Client::open(&server.path, true);
    next.request(0, READ, 7777, 0, 3);
    server.with(|_, volume| volume.inner_mut().held = false);
    assert_eq!(next.answer(3).cookie, 7777);
}

#[test]
fn an_orderly_end_answers_what_is_outstanding() {
    for half_close in [false, true] {
        let server = server();
        server.with(|_, volume| volume.inner_mut().held = true);
        let mut client = Client::open(&server.path, false);
        client.request(0, WRITE, 1, 0, 4);
        client.say(b"last");
        client.request(0, READ, 2, 0, 4);
        if half_close {
            client.socket.shutdown(std::net::Shutdown::Write).unwrap();
        } else {
            client.request(0, DISC, 3, 0, 0);
        }
        server.until(|face, _| face.outstanding() == 2);
        server.with(|_, volume| volume.inner_mut().held = false);
        let cookies = [client.answer(0).cookie, client.answer(4).cookie];
        assert_eq!(cookies, [1, 2]);
        assert!(client.is_closed());
    }
}

/// Headers of long writes whose payload never comes hold no memory for it.
#[test]
fn a_stalled_payload_holds_only_what_came() {
    let server = server();
    let mut client = Client::open(&server.path, false);
    client.request(0, WRITE, 1, 0, 32 << 20);
    client.say(&[1; 1000]);
    server.until(|face, _| face.held_bytes() == 32 << 20);
    let live = server.with(|_, volume| volume.inner().pool.stats().live_bytes);
    assert!(live <= 4 << 20, "{live} bytes are live");
    let mut other = Client::open(&server.path, false);
    other.request(0, READ, 2, 0, 1);
    assert_eq!(other.answer(1).data, [0], "an unfinished write has no effect");
    drop(client);
    server.until(|face, _| face.held_bytes() == 0);
}

#[test]
fn connections_are_bounded_and_the_idle_make_room() {
    let mut config = config();
    config.limits = NbdLimits { connections_max: 3, ..NbdLimits::default() };
    let server = Server::start(config, Backing::Memory, BYTES);
    let mut first = Client::haggle(&server.path);
    let mut second = Client::haggle(&server.path);
    let _client = Client::open(&server.path, false);
    let mut fourth = Client::open(&server.path, false);
    assert!(first.is_closed(), "the oldest idle one made room");
    let _fifth = Client::open(&server.path, false);
    assert!(second.is_closed());
    let mut sixth = std::os::unix::net::UnixStream::connect(&server.path).unwrap();
    let n = std::io::Read::read(&mut sixth, &mut [0; 1]);
    assert!(matches!(n, Ok(0) | Err(_)), "nobody with an export is displaced");
    let stats = server.stats();
    assert_eq!((stats.connections_displaced, stats.connections_refused), (2, 1));
    fourth.request(0, READ, 1, 0, 1);
    assert_eq!(fourth.answer(1).error, 0);
}

#[test]
fn closing_respects_clients_unless_forced() {
    let server = server();
    assert_eq!(server.with(|face, _| face.busy()), Poll::Ready(None));
    let _idle = Client::haggle(&server.path);
    let mut client = Client::open(&server.path, false);
    let busy = server.with(|face, _| face.busy());
    assert_eq!(busy, Poll::Ready(Some("1 NBD client is connected".to_owned())));
    server.with(|face, _| face.close(false).unwrap_err());
    server.with(|_, volume| volume.inner_mut().held = true);
    client.request(0, READ, 1, 0, 1);
    server.until(|face, _| face.outstanding() == 1);
    server.with(|face, _| face.close(true).unwrap());
    assert!(client.is_closed());
    assert!(!std::path::Path::new(&server.path).exists());
    server.with(|face, _| face.close(false).unwrap());
}

#[test]
fn several_connections_see_each_others_writes() {
    let server = Server::start(config(), Backing::SlowFile, BYTES);
    let mut clients: Vec<_> = (0..4).map(|_| Client::open(&server.path, true)).collect();
    // All within two blocks: every write is a read-modify-write beside the others'.
    for round in 0..50u8 {
        for (n, client) in clients.iter_mut().enumerate() {
            for part in 0..16u64 {
                client.request(0, WRITE, part, 1000 + part * 400 + n as u64 * 100, 100);
                client.say(&[round * 4 + n as u8; 100]);
            }
        }
        for client in &mut clients {
            for _ in 0..16 {
                assert_eq!(client.answer(0).error, 0);
            }
        }
        let reader = &mut clients[usize::from(round) % 4];
        reader.request(0, READ, 1, 1000, 6400);
        let data = reader.answer(6400).data;
        for (at, &byte) in data.iter().enumerate() {
            assert_eq!(byte, round * 4 + (at / 100 % 4) as u8, "round {round} byte {at}");
        }
    }
}

#[test]
fn a_second_face_on_the_same_socket_is_refused() {
    let server = server();
    let config = NbdConfig::new(format!("unix:{}", server.path).parse().unwrap(), "x");
    let error = NbdFace::bind(config, Pool::new(0)).err().expect("refused").to_string();
    assert!(error.contains("in use by a running process"), "{error}");
    Client::open(&server.path, true);
}

#[test]
fn texts_that_the_protocol_cannot_carry_are_refused() {
    let mut config = config();
    config.name = "x".repeat(4097);
    let error = NbdFace::bind(config, Pool::new(0)).err().expect("refused").to_string();
    assert!(error.contains("name") && error.contains("4097"), "{error}");
}
