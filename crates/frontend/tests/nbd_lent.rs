//! Who is slow to read what it asked for does not keep the memory of the links that it came by.

mod nbd_common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nbd_common::client::{info_data, option_bytes, request_bytes};
use nbd_common::{Backing, Served, config, volume};
use thinwire_buffer::{Pool, Time};
use thinwire_frontend::Face;
use thinwire_frontend::nbd::NbdFace;
use thinwire_frontend::nbd::proto::option;
use thinwire_volume::{Io, Op, Volume};

const READ: u16 = 0;
/// What one client may keep, and what all of them together.
const CLIENT_BYTES: usize = 4 << 20;
const FACE_BYTES: usize = 8 << 20;
/// Data in a frame, which pins a buffer of 8 KiB.
const FRAME_BYTES: usize = 5 << 10;
const LEN: usize = 256 << 10;
/// Far more than a turn takes.
const LONG: usize = 8 << 20;
/// What a turn may copy, and by how much what belongs together may exceed it.
const TURN_BYTES: usize = (256 << 10) + (128 << 10);
const START: Time = Time(1_000_000_000);

/// What is there.
fn byte_at(at: usize) -> u8 {
    ((at / 512 + 1) * 40_503 / 256) as u8
}

/// A face over a volume whose reads are answered in frames of a link, and its clients.
struct Scene {
    face: NbdFace,
    volume: Served,
    pool: Pool,
    clients: Vec<UnixStream>,
}

impl Scene {
    fn new(clients: usize) -> Self {
        let pool = Pool::new(256 << 20);
        let mut volume = volume(Backing::Memory, 64 << 20, &pool);
        let pattern: Vec<u8> = (0..LONG).map(byte_at).collect();
        let mut io = Io::new(0, Op::Write, 0, LONG as u64);
        pattern.chunks(LEN).for_each(|part| io.data.push(pool.copy_of(part).freeze()));
        volume.submit(io);
        volume.poll(&mut Vec::new());
        volume.inner_mut().lends = Some(FRAME_BYTES);
        let face = NbdFace::bind(config(), pool.clone()).unwrap();
        let mut scene = Scene { face, volume, pool, clients: Vec::new() };
        let hello =
            [&3u32.to_be_bytes()[..], &option_bytes(option::GO, &info_data("", &[]))].concat();
        for number in 0..clients {
            let mut client = UnixStream::connect(scene.face.path()).unwrap();
            client.set_nonblocking(true).unwrap();
            client.write_all(&hello).unwrap();
            scene.clients.push(client);
            scene.rest();
            assert_eq!(scene.hear(number).len(), 18 + 32 + 20);
        }
        scene
    }

    fn ask(&mut self, number: usize, count: usize) {
        let requests =
            (0..count as u64).flat_map(|cookie| request_bytes(0, READ, cookie, 0, LEN as u32));
        self.clients[number].write_all(&requests.collect::<Vec<_>>()).unwrap();
    }

    /// Turns until nothing happens any more.
    fn rest(&mut self) {
        for _ in 0..4 {
            while self.face.turn(&mut self.volume).unwrap() {}
        }
    }

    /// What there is for a client to read.
    fn hear(&mut self, number: usize) -> Vec<u8> {
        let (mut got, mut sip) = (Vec::new(), vec![0; 1 << 20]);
        while let Ok(len @ 1..) = self.clients[number].read(&mut sip) {
            got.extend_from_slice(&sip[..len]);
        }
        got
    }

    /// All that was asked for comes, and is what is there.
    fn hear_all(&mut self, number: usize, count: usize) {
        self.hear_all_of(number, count, LEN);
    }

    /// The same, of answers so long.
    fn hear_all_of(&mut self, number: usize, count: usize, len: usize) {
        let mut got = Vec::new();
        while got.len() < count * (16 + len) {
            self.rest();
            let more = self.hear(number);
            assert!(!more.is_empty(), "{} bytes and no more", got.len());
            got.extend(more);
        }
        assert_eq!(got.len(), count * (16 + len));
        let right = |data: &[u8]| data.iter().enumerate().all(|(at, &byte)| byte == byte_at(at));
        assert!(got.chunks(16 + len).all(|reply| right(&reply[16..])));
    }

    /// Turns until nobody wants one more. None of them copies more than it may.
    fn rest_in_short_turns(&mut self) {
        loop {
            let before = self.given_back();
            let is_spent = self.face.turn(&mut self.volume).unwrap();
            let copied = self.given_back() - before;
            assert!(copied <= TURN_BYTES, "{copied} bytes are copied in a turn");
            if !is_spent {
                return;
            }
        }
    }

    fn lent(&self) -> usize {
        self.pool.stats().received_bytes
    }

    fn given_back(&self) -> usize {
        self.face.stats().given_back_bytes as usize
    }
}

#[test]
fn who_never_reads_keeps_its_share_and_others_work_on() {
    let mut scene = Scene::new(2);
    let count = 100;
    scene.ask(0, count);
    scene.rest();
    // All but what is within its share, and what its socket has taken.
    assert!(scene.lent() <= CLIENT_BYTES, "{} bytes are kept", scene.lent());
    assert!(scene.lent() > CLIENT_BYTES - 2 * LEN, "{} bytes: its share is its own", scene.lent());
    let given_back = scene.given_back();
    assert!(given_back > 100 * LEN - CLIENT_BYTES - (8 << 20), "{given_back} bytes were copied");
    // Who reads is lent what it reads.
    for _ in 0..100 {
        scene.ask(1, 1);
        scene.hear_all(1, 1);
    }
    assert_eq!(scene.given_back(), given_back);
    scene.hear_all(0, count);
    assert_eq!((scene.lent(), scene.given_back()), (0, given_back));
    assert_eq!(scene.face.end_turn(START), Time::NEVER);
}

/// However many there are, and whatever becomes of them.
#[test]
fn those_who_never_read_share_what_a_face_may_keep() {
    let mut scene = Scene::new(6);
    for number in 0..6 {
        scene.ask(number, 40);
        scene.rest();
        assert!(scene.lent() <= FACE_BYTES.min((number + 1) * CLIENT_BYTES));
    }
    assert!(scene.lent() > FACE_BYTES - 4 * LEN);
    // Those who came first keep it.
    scene.clients.drain(..2);
    scene.rest();
    assert_eq!(scene.face.connections(), 4);
    assert!(scene.lent() < 2 * LEN, "{} bytes are kept for those who are gone", scene.lent());
    let given_back = scene.given_back();
    (0..4).for_each(|number| scene.hear_all(number, 40));
    assert_eq!((scene.lent(), scene.given_back()), (0, given_back));
    // What those had who are gone is free again.
    scene.ask(3, 40);
    scene.rest();
    assert!(scene.lent() > CLIENT_BYTES - 2 * LEN, "{} bytes", scene.lent());
}

/// Not only what exceeds a share.
#[test]
fn patience_ends_within_a_second() {
    let mut scene = Scene::new(1);
    let half = Duration::from_millis(500);
    scene.ask(0, 24);
    scene.rest();
    assert!(scene.lent() > 0);
    let (lent, given_back) = (scene.lent(), scene.given_back());
    assert_eq!(scene.face.end_turn(START), START + half);
    assert_eq!(scene.face.end_turn(START + half / 2), START + half);
    assert_eq!(scene.face.end_turn(START + half), START + 2 * half);
    assert_eq!((scene.lent(), scene.given_back()), (lent, given_back), "they may be young");
    // Over several turns again, of which the first comes at once.
    assert_eq!(scene.face.end_turn(START + 2 * half), START + 2 * half);
    assert_eq!(scene.given_back(), given_back);
    scene.rest_in_short_turns();
    assert_eq!(scene.face.end_turn(START + 2 * half), Time::NEVER);
    assert_eq!(scene.lent(), 0);
    assert!(scene.given_back() > given_back);
    scene.hear_all(0, 24);
    // And again, for what comes later.
    scene.ask(0, 24);
    scene.rest();
    assert_eq!(scene.face.end_turn(START + 9 * half), START + 10 * half);
    scene.hear_all(0, 24);
    assert_eq!(scene.face.end_turn(START + 10 * half), Time::NEVER);
}

/// Whoever else has something to do is served between.
#[test]
fn copies_are_made_over_several_turns() {
    let mut scene = Scene::new(2);
    // Of many answers that come at once, and of some that are far longer than a turn.
    let asked = [(0, 100, LEN), (1, 6, LONG)];
    for (number, count, len) in asked {
        scene.volume.inner_mut().held = true;
        let request = |cookie| request_bytes(0, READ, cookie, 0, len as u32);
        let requests: Vec<_> = (0..count as u64).flat_map(request).collect();
        scene.clients[number].write_all(&requests).unwrap();
        scene.rest();
        scene.volume.inner_mut().held = false;
        let before = scene.given_back();
        scene.rest_in_short_turns();
        assert!(scene.given_back() - before > (16 << 20), "something is copied");
        assert!(scene.lent() <= CLIENT_BYTES * (number + 1), "{} bytes are kept", scene.lent());
    }
    for (number, count, len) in asked {
        scene.hear_all_of(number, count, len);
    }
    assert_eq!(scene.lent(), 0);
}
