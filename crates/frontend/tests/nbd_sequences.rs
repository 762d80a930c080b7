//! Several NBD clients at once, of which each step is a choice: they come, say something of either phase in pieces,
//! rightly or nearly, read or do not, shut a side, go; the volume fails, or holds back what it was asked. The face
//! neither panics nor hangs, keeps nothing of who has gone, and an honest client is served. `nbd_fuzz.rs` plays many
//! more streams, at random, and has the canaries.

mod nbd_common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use nbd_common::client::{context_data, info_data, option_bytes, request_bytes};
use nbd_common::{Backing, Served, config, volume};
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::nbd::NbdFace;
use thinwire_frontend::nbd::proto::option;
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_volume::{ErrorKind, Volume};

const BYTES: u64 = 1 << 20;
/// More turns than anything here needs.
const TURNS_MAX: usize = 20_000;

struct Guest {
    socket: UnixStream,
    /// Said, and not taken by the socket yet.
    unsent: Vec<u8>,
    greeted: bool,
}

struct Stage {
    face: NbdFace,
    volume: Served,
    guests: Vec<Guest>,
}

/// What a client says next, both phases mixed: the server knows in which it is.
fn words(choices: &mut Choices<'_>, guest: &mut Guest) {
    let name = *choices.of(&["disk0", "disk0", "", "other"]);
    let out = &mut guest.unsent;
    if !guest.greeted {
        guest.greeted = true;
        out.extend_from_slice(&choices.of(&[3u32, 3, 3, 1, 0, u32::MAX]).to_be_bytes());
        if choices.below(4) != 0 {
            return;
        }
    }
    let before = out.len();
    match choices.below(12) {
        0 => out.extend(option_bytes(option::LIST, b"")),
        1 => out.extend(option_bytes(option::STRUCTURED_REPLY, b"")),
        2 => out.extend(option_bytes(
            option::SET_META_CONTEXT,
            &context_data(name, &["base:allocation"]),
        )),
        3 => out
            .extend(option_bytes(option::LIST_META_CONTEXT, &context_data(name, &["base:", "x"]))),
        4 => out.extend(option_bytes(option::INFO, &info_data(name, &[choices.short() % 5]))),
        5 => out.extend(option_bytes(option::GO, &info_data(name, &[3]))),
        6 => {
            let length = choices.below(200);
            out.extend(option_bytes(choices.word() % 16, choices.bytes(length)));
        }
        7 => out.extend(option_bytes(option::EXPORT_NAME, name.as_bytes())),
        8 => {
            let length = choices.below(64);
            out.extend_from_slice(choices.bytes(length));
        }
        _ => {
            let command = choices.short() % 9;
            let offset = choices.number() % (BYTES + 4096);
            let length = *choices.of(&[0, 1, 512, 4096, 65_536, 300_000, u32::MAX]);
            let flags = if choices.below(4) == 0 { choices.short() & 63 } else { 0 };
            out.extend(request_bytes(flags, command, choices.long(), offset, length));
            if command == 1 {
                out.resize(out.len() + length.min(400_000) as usize, 0x5a);
            }
        }
    }
    // A byte of it is another.
    if choices.below(8) == 0 && out.len() > before {
        let at = before + choices.below((out.len() - before).min(40));
        out[at] = choices.byte();
    }
}

impl Stage {
    fn new(choices: &mut Choices<'_>) -> Self {
        let pool = Pool::new(8 << 20);
        let backing = if choices.flag() { Backing::SlowFile } else { Backing::Memory };
        let volume = volume(backing, BYTES, &pool);
        let mut config = config();
        config.limits.connection_requests_max = 16;
        config.limits.connection_bytes_max = 256 << 10;
        let face = NbdFace::bind(config, pool).expect("a path of its own");
        Stage { face, volume, guests: Vec::new() }
    }

    fn turn(&mut self) {
        self.face.turn(&mut self.volume).expect("a face that lives");
    }

    /// Turns until it is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..TURNS_MAX {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("a hang: {what}");
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let at = choices.below(self.guests.len().max(1));
        match choices.below(10) {
            0 if self.guests.len() < 4 => {
                let socket = UnixStream::connect(self.face.path()).expect("it listens");
                socket.set_nonblocking(true).expect("a socket");
                self.guests.push(Guest { socket, unsent: Vec::new(), greeted: false });
                self.turn();
            }
            1..=4 if !self.guests.is_empty() => {
                let guest = &mut self.guests[at];
                if guest.unsent.len() < 1 << 20 {
                    words(choices, guest);
                }
                let length = match choices.below(4) {
                    0 => choices.below(64).min(guest.unsent.len()),
                    _ => guest.unsent.len(),
                };
                if let Ok(length) = guest.socket.write(&guest.unsent[..length]) {
                    guest.unsent.drain(..length);
                }
                self.turn();
            }
            5 if !self.guests.is_empty() => {
                let mut sink = vec![0; 1 << choices.below(18)];
                let heard = self.guests[at].socket.read(&mut sink).unwrap_or(0);
                REACHED.count(if heard > 0 { "heard" } else { "heard nothing" });
            }
            6 if !self.guests.is_empty() && choices.flag() => {
                let _ = self.guests[at]
                    .socket
                    .shutdown(*choices.of(&[Shutdown::Write, Shutdown::Read]));
            }
            7 if !self.guests.is_empty() && choices.flag() => drop(self.guests.swap_remove(at)),
            8 => {
                let volume = self.volume.inner_mut();
                match choices.below(6) {
                    0 => volume.held = true,
                    1 => {
                        volume.fail =
                            Some(*choices.of(&[ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Away]))
                    }
                    2 => volume.lends = Some(1500),
                    _ => (volume.held, volume.fail, volume.lends) = (false, None, None),
                }
            }
            _ => (0..1 + choices.below(8)).for_each(|_| self.turn()),
        }
    }

    /// Everybody goes, and nothing of them stays; then somebody honest comes.
    fn end(mut self) {
        let volume = self.volume.inner_mut();
        (volume.held, volume.fail, volume.lends) = (false, None, None);
        self.guests.clear();
        self.until("letting go", |stage| {
            stage.face.connections() == 0 && stage.volume.outstanding() == 0
        });
        assert_eq!((self.face.held_bytes(), self.face.outstanding()), (0, 0));
        if self.face.stats().requests > 0 {
            REACHED.count("requests");
        }
        let mut socket = UnixStream::connect(self.face.path()).expect("it listens");
        let words = [
            &3u32.to_be_bytes()[..],
            &option_bytes(option::GO, &info_data("", &[])),
            &request_bytes(0, 1, 1, 11, 8),
            b"thinwire",
        ];
        socket.write_all(&words.concat()).expect("it fits");
        socket.set_nonblocking(true).expect("a socket");
        let (mut heard, mut asked) = (Vec::new(), false);
        // The greeting, the export's description and ACK; then two replies.
        let before = 18 + 32 + 20;
        let mut turns = 0;
        while heard.len() < before + 16 + 24 {
            self.turn();
            turns += 1;
            assert!(turns < TURNS_MAX, "an honest client waits for ever");
            let mut sink = [0; 4096];
            if let Ok(length) = socket.read(&mut sink) {
                heard.extend_from_slice(&sink[..length]);
            }
            if heard.len() >= before + 16 && !asked {
                socket.write_all(&request_bytes(0, 0, 3, 11, 8)).expect("it fits");
                asked = true;
            }
        }
        assert_eq!(&heard[heard.len() - 8..], b"thinwire");
        drop(socket);
        self.until("letting go of it", |stage| stage.face.connections() == 0);
        self.face.close(true).expect("it closes");
    }
}

static REACHED: Reached = Reached::new();

fn play(choices: &mut Choices<'_>) {
    let mut stage = Stage::new(choices);
    for _ in 0..150 {
        if choices.is_empty() {
            break;
        }
        stage.step(choices);
    }
    stage.end();
}

#[test]
fn fuzz_nbd() {
    fuzz!("nbd", 400, 400, play);
    REACHED.expect(&["heard", "requests"]);
}
