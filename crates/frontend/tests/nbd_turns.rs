//! A turn is bounded, whoever asks for how much; the next goes on where it stopped, and nothing is left lying.

mod nbd_common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use nbd_common::client::{info_data, option_bytes, request_bytes};
use nbd_common::{Backing, Served, config, volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::nbd::NbdFace;
use thinwire_frontend::nbd::proto::option;
use thinwire_volume::Volume as _;

const READ: u16 = 0;
const WRITE: u16 = 1;
/// What a turn takes in or gives out: requests or answers, and bytes.
const TURN_ITEMS: usize = 64;
const TURN_BYTES: usize = 256 << 10;
/// What belongs together may exceed a turn by so many.
const EXCESS_BYTES: usize = TURN_BYTES / 2;

/// A face over a volume in memory, and its clients.
struct Scene {
    face: NbdFace,
    volume: Served,
    clients: Vec<UnixStream>,
}

impl Scene {
    fn new(clients: usize) -> Self {
        let pool = Pool::new(256 << 20);
        let volume = volume(Backing::Memory, 64 << 20, &pool);
        let face = NbdFace::bind(config(), pool).unwrap();
        let mut scene = Scene { face, volume, clients: Vec::new() };
        (0..clients).for_each(|_| scene.come());
        scene
    }

    /// One more client, which has chosen the export.
    fn come(&mut self) {
        let hello =
            [&3u32.to_be_bytes()[..], &option_bytes(option::GO, &info_data("", &[]))].concat();
        let mut client = UnixStream::connect(self.face.path()).unwrap();
        client.set_nonblocking(true).unwrap();
        client.write_all(&hello).unwrap();
        self.clients.push(client);
        self.rest();
        // The greeting, the export's description and ACK.
        assert_eq!(self.hear().last(), Some(&(18 + 32 + 20)));
    }

    /// Client `number` asks for so much as often as that, in one piece.
    fn ask(&mut self, number: usize, count: usize, len: u32) {
        let requests = (0..count as u64).flat_map(|cookie| request_bytes(0, READ, cookie, 0, len));
        self.say(number, &requests.collect::<Vec<_>>());
    }

    fn say(&mut self, number: usize, bytes: &[u8]) {
        self.clients[number].write_all(bytes).unwrap();
    }

    /// One turn, which is not the last: the face wants another one, or hears of one.
    fn turn(&mut self) {
        assert!(self.face.turn(&mut self.volume).unwrap() || !self.is_quiet());
    }

    /// One turn, perhaps the last.
    fn turn_any(&mut self) {
        self.face.turn(&mut self.volume).unwrap();
    }

    /// Nobody has anything to say to the face.
    fn is_quiet(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.face.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 0
    }

    /// Turns as a shard gives them, until nobody wants one.
    fn rest(&mut self) {
        loop {
            while self.face.turn(&mut self.volume).unwrap() {}
            if self.is_quiet() {
                return;
            }
        }
    }

    /// How many bytes have come to each client.
    fn hear(&mut self) -> Vec<usize> {
        let mut sink = vec![0; 1 << 20];
        let mut all = |client: &mut UnixStream| {
            std::iter::from_fn(|| client.read(&mut sink).ok().filter(|&len| len > 0)).sum()
        };
        self.clients.iter_mut().map(&mut all).collect()
    }

    fn hold(&mut self, held: bool) {
        self.volume.inner_mut().held = held;
    }
}

/// All that a client has sent is taken ahead in one call, and epoll has nothing more to say.
#[test]
fn what_was_taken_ahead_is_acted_on_in_later_turns() {
    let mut scene = Scene::new(1);
    scene.hold(true);
    scene.ask(0, 250, 512);
    for taken in [TURN_ITEMS, 2 * TURN_ITEMS, 3 * TURN_ITEMS] {
        scene.turn();
        // Reads of 512 bytes count for a little, too.
        assert!((taken * 9 / 10..=taken).contains(&scene.face.outstanding()));
    }
    scene.rest();
    assert_eq!(scene.face.outstanding(), 250);
    scene.hold(false);
    scene.rest();
    assert_eq!(scene.hear(), [250 * (16 + 512)]);
}

#[test]
fn many_clients_share_the_turns_and_each_has_its_own() {
    let (clients, each) = (20, 200);
    let mut scene = Scene::new(clients);
    (0..clients).for_each(|number| scene.ask(number, each, 1));
    let mut heard = vec![0; clients];
    for turn in 1..=clients {
        scene.turn();
        let now = scene.hear();
        assert!(now.iter().sum::<usize>() <= TURN_ITEMS * 17, "turn {turn}: {now:?}");
        heard.iter_mut().zip(now).for_each(|(all, now)| *all += now);
    }
    assert!(heard.iter().all(|&bytes| bytes > 0), "everybody had a turn: {heard:?}");
    scene.rest();
    heard.iter_mut().zip(scene.hear()).for_each(|(all, now)| *all += now);
    assert_eq!(heard, vec![each * 17; clients]);
}

#[test]
fn long_writes_of_many_clients_are_taken_in_over_several_turns() {
    let (clients, len) = (12, 64 << 10);
    let mut scene = Scene::new(clients);
    scene.hold(true);
    let write = [&request_bytes(0, WRITE, 1, 0, len as u32)[..], &vec![7; len]].concat();
    (0..clients).for_each(|number| scene.say(number, &write));
    for turn in 1..=2 {
        scene.turn();
        let taken = scene.face.outstanding();
        let most = turn * (TURN_BYTES + EXCESS_BYTES) / len;
        assert!(taken > 0 && taken <= most, "turn {turn}: {taken} writes");
    }
    scene.rest();
    assert_eq!(scene.face.outstanding(), clients);
    scene.hold(false);
    scene.rest();
    assert_eq!(scene.hear(), vec![16; clients]);
}

/// Its last byte spends what was left of the turn, and is all that the write has waited for.
#[test]
fn a_payload_that_ends_with_a_turn_is_written_in_it() {
    let mut scene = Scene::new(2);
    scene.hold(true);
    let (others, item) = (40, request_bytes(0, READ, 0, 0, 1).len() + TURN_BYTES / TURN_ITEMS);
    scene.ask(0, others, 1);
    let len = TURN_BYTES - (others + 1) * item;
    scene.say(1, &[&request_bytes(0, WRITE, 1, 0, len as u32)[..], &vec![7; len]].concat());
    scene.turn();
    assert_eq!(scene.face.outstanding(), others + 1);
    scene.hold(false);
    scene.rest();
    assert_eq!(scene.hear(), [others * 17, 16]);
}

#[test]
fn long_answers_of_many_clients_go_out_over_several_turns() {
    let (clients, len) = (12, 64 << 10);
    let mut scene = Scene::new(clients);
    scene.hold(true);
    (0..clients).for_each(|number| scene.ask(number, 1, len as u32));
    scene.rest();
    assert_eq!(scene.face.outstanding(), clients);
    scene.hold(false);
    let mut heard = vec![0; clients];
    for turn in 1..=3 {
        scene.turn();
        let now = scene.hear();
        assert!(now.iter().sum::<usize>() <= TURN_BYTES + EXCESS_BYTES, "turn {turn}: {now:?}");
        heard.iter_mut().zip(now).for_each(|(all, now)| *all += now);
    }
    assert!(heard.iter().sum::<usize>() > 2 * TURN_BYTES, "turns are used: {heard:?}");
    scene.rest();
    heard.iter_mut().zip(scene.hear()).for_each(|(all, now)| *all += now);
    assert_eq!(heard, vec![16 + len; clients]);
}

/// A turn's end cuts neither answers nor payloads of usual lengths: the rest would cost two system calls more.
#[test]
fn what_belongs_together_is_in_one_turn() {
    let len = 128 << 10;
    let mut scene = Scene::new(1);
    scene.hold(true);
    scene.ask(0, 4, len as u32);
    scene.rest();
    scene.hold(false);
    for turn in 1..=2 {
        scene.turn_any();
        assert_eq!(scene.hear(), [2 * (16 + len)], "turn {turn}");
    }
    scene.rest();
    assert_eq!(scene.hear(), [0]);
    // What a client's socket takes in one piece.
    let len = 96 << 10;
    scene.hold(true);
    let write = [&request_bytes(0, WRITE, 1, 0, len as u32)[..], &vec![7; len]].concat();
    let reads = 30;
    scene.ask(0, reads, 1);
    scene.say(0, &write);
    scene.turn_any();
    assert_eq!(scene.face.outstanding(), reads + 1);
    scene.hold(false);
    scene.rest();
    assert_eq!(scene.hear(), [reads * 17 + 16]);
}

/// However long it is.
#[test]
fn an_answer_longer_than_a_turn_goes_out_over_several() {
    let (len, reply) = (1 << 20, (1 << 20) + 16);
    let mut scene = Scene::new(1);
    scene.ask(0, 1, len);
    let mut heard = 0;
    while heard < reply {
        scene.turn_any();
        let now = scene.hear()[0];
        assert!(now <= TURN_BYTES + EXCESS_BYTES, "{now} bytes in a turn");
        heard += now;
    }
    assert_eq!(heard, reply);
}

#[test]
fn completions_are_answered_over_several_turns() {
    let mut scene = Scene::new(1);
    scene.hold(true);
    scene.ask(0, 250, 1);
    scene.rest();
    scene.hold(false);
    for turn in 1..=3 {
        scene.turn();
        assert_eq!(scene.face.outstanding(), 250 - turn * TURN_ITEMS);
    }
    scene.rest();
    assert_eq!((scene.face.outstanding(), scene.hear()), (0, vec![250 * 17]));
}

/// Thousands may be done at once: what there is not effort for waits as it is, and nothing is put behind it.
#[test]
fn no_more_completions_are_asked_for_before_all_are_answered() {
    let mut scene = Scene::new(2);
    scene.hold(true);
    scene.ask(0, 100, 1);
    scene.rest();
    scene.hold(false);
    // Done as soon as they are submitted, behind the first 64 answers.
    scene.ask(1, 20, 1);
    scene.turn();
    assert_eq!((scene.face.outstanding(), scene.volume.outstanding()), (36 + 20, 20));
    scene.rest();
    assert_eq!(scene.hear(), [100 * 17, 20 * 17]);
}

/// With one request at a time a turn more is what the next one waits for, or another processor's time.
#[test]
fn a_turn_after_which_nothing_is_left_wants_no_other() {
    let mut scene = Scene::new(1);
    for len in [1, 128 << 10] {
        scene.hold(true);
        scene.ask(0, 1, len);
        assert!(!scene.face.turn(&mut scene.volume).unwrap());
        assert_eq!(scene.face.outstanding(), 1);
        assert!(scene.is_quiet());
        scene.hold(false);
        assert!(!scene.face.turn(&mut scene.volume).unwrap());
        assert_eq!(scene.hear(), [16 + len as usize]);
        assert!(scene.is_quiet());
    }
}

/// Only the head of the next one is taken ahead.
#[test]
fn long_writes_one_behind_the_other_are_not_copied() {
    let (mut scene, len) = (Scene::new(1), 32 << 10);
    let write = [&request_bytes(0, WRITE, 1, 0, len as u32)[..], &vec![7; len]].concat();
    let mut copied = 0;
    for round in 0..4 {
        scene.say(0, &write.repeat(4));
        scene.rest();
        // Who has done other things until now is not known to go on so.
        if round == 0 {
            copied = scene.face.stats().copied_bytes;
        }
    }
    assert_eq!(scene.face.stats().copied_bytes - copied, 0);
    assert_eq!(scene.hear(), [16 * 16]);
}

/// Between reads a write's payload goes straight to its place, too, but for what came with its head.
#[test]
fn long_writes_between_reads_are_not_copied() {
    let (mut scene, len) = (Scene::new(1), 64 << 10);
    let write = [&request_bytes(0, WRITE, 1, 0, len as u32)[..], &vec![7; len]].concat();
    let read = request_bytes(0, READ, 2, 0, 1);
    scene.say(0, &write);
    scene.rest();
    let copied = scene.face.stats().copied_bytes;
    for _ in 0..4 {
        scene.say(0, &read);
        scene.rest();
        scene.say(0, &write);
        scene.rest();
    }
    let copied = scene.face.stats().copied_bytes - copied;
    assert!(copied <= 4 * 512, "{copied} bytes");
    assert_eq!(scene.hear(), [5 * 16 + 4 * 17]);
}

/// Whose socket is read first, without asking who else has something to say.
#[test]
fn who_never_stops_keeps_nobody_out() {
    let mut scene = Scene::new(1);
    let newcomer = UnixStream::connect(scene.face.path()).unwrap();
    let mut turns = 0;
    while scene.face.connections() == 1 {
        scene.ask(0, 1, 1);
        scene.turn_any();
        assert_eq!(scene.hear(), [17]);
        turns += 1;
        assert!(turns <= 20, "nobody opens");
    }
    drop(newcomer);
}

/// It is gone while the face looks at its socket first, and another one comes to its place.
#[test]
fn the_only_client_may_go_and_another_come() {
    let mut scene = Scene::new(1);
    for round in 0..3 {
        scene.ask(0, 1, 1);
        scene.rest();
        assert_eq!(scene.hear(), [17], "round {round}");
        scene.clients.clear();
        scene.rest();
        assert_eq!(scene.face.connections(), 0);
        scene.come();
    }
}
