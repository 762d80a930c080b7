//! Garbage and damaged streams: whatever a client sends, the face neither panics nor hangs, lets go
//! of everything once the client is gone, and serves others as before.

mod nbd_common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nbd_common::client::{context_data, info_data, option_bytes, request_bytes};
use nbd_common::{Backing, Served, config, volume};
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::nbd::NbdFace;
use thinwire_frontend::nbd::proto::{OPTION_MAGIC, option};
use thinwire_volume::Volume;
use thinwire_volume::testing::SplitMix64;

const BYTES: u64 = 1 << 20;
/// More turns than any stream here needs, by far.
const TURNS_MAX: usize = 20_000;

/// A face and its volume, turned by hand.
struct Subject {
    face: NbdFace,
    volume: Served,
    pool: Pool,
}

impl Subject {
    fn new(backing: Backing) -> Self {
        let pool = Pool::new(64 << 20);
        let volume = volume(backing, BYTES, &pool);
        let mut config = config();
        config.limits.connection_requests_max = 16;
        config.limits.connection_bytes_max = 256 << 10;
        Subject { face: NbdFace::bind(config, pool.clone()).unwrap(), volume, pool }
    }

    /// Plays one stream to it, in pieces cut at random, and leaves.
    fn play(&mut self, stream: &[u8], rng: &mut SplitMix64) -> Result<(), String> {
        let mut socket = UnixStream::connect(self.face.path()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let mut sink = vec![0; 1 << 16];
        let reads = !rng.one_in(4);
        let mut turns = 0;
        let mut stuck = 0;
        // A client that does not read may be left unread, too; it leaves then.
        while sent < stream.len() && stuck < 50 {
            let most = 1 << rng.below(17);
            let piece = 1 + rng.below(most) as usize;
            let end = (sent + piece).min(stream.len());
            stuck += 1;
            match socket.write(&stream[sent..end]) {
                Ok(len) => (sent, stuck) = (sent + len, 0),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            self.turn(&mut turns)?;
            while reads && matches!(socket.read(&mut sink), Ok(1..)) {
                stuck = 0;
                self.turn(&mut turns)?;
            }
        }
        if rng.one_in(2) {
            let _ = socket.shutdown(std::net::Shutdown::Write);
            for _ in 0..rng.below(50) {
                self.turn(&mut turns)?;
                let _ = socket.read(&mut sink);
            }
        }
        drop(socket);
        while self.face.connections() > 0 || self.face.outstanding() > 0 {
            self.turn(&mut turns)?;
        }
        match (self.face.held_bytes(), self.volume.outstanding()) {
            (0, 0) => Ok(()),
            left => Err(format!("bytes held and I/Os outstanding afterwards: {left:?}")),
        }
    }

    fn turn(&mut self, turns: &mut usize) -> Result<(), String> {
        *turns += 1;
        if *turns > TURNS_MAX {
            return Err("a hang".into());
        }
        self.face.turn(&mut self.volume).map(|_| ()).map_err(|error| error.to_string())
    }

    /// An honest client gets its due.
    fn check(&mut self, rng: &mut SplitMix64) -> Result<(), String> {
        let mut socket = UnixStream::connect(self.face.path()).unwrap();
        let text = rng.next().to_be_bytes();
        let stream = [
            &3u32.to_be_bytes()[..],
            &option_bytes(option::GO, &info_data("", &[])),
            &request_bytes(0, 1, 1, 11, 8),
            &text,
            &request_bytes(0, 3, 2, 0, 0),
        ]
        .concat();
        socket.write_all(&stream).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut turns = 0;
        let mut got = Vec::new();
        let mut sink = [0; 4096];
        // The greeting, the export's description and ACK, then the replies.
        let before = 18 + 32 + 20;
        let mut asked = false;
        while got.len() < before + 32 + 24 {
            self.turn(&mut turns)?;
            if let Ok(len) = socket.read(&mut sink) {
                got.extend_from_slice(&sink[..len]);
            }
            if got.len() >= before + 32 && !asked {
                socket.write_all(&request_bytes(0, 0, 3, 11, 8)).unwrap();
                asked = true;
            }
        }
        if got[got.len() - 8..] != text {
            return Err("an honest client reads other bytes than it wrote".into());
        }
        drop(socket);
        while self.face.connections() > 0 {
            self.turn(&mut turns)?;
        }
        Ok(())
    }
}

/// A valid stream of both phases, as pieces that each mean something.
fn valid(rng: &mut SplitMix64) -> Vec<Vec<u8>> {
    let mut pieces = vec![(rng.below(2) as u32 * 2 + 1).to_be_bytes().to_vec()];
    for _ in 0..rng.below(6) {
        let name = ["", "disk0", "other"][rng.below(3) as usize];
        let kinds: Vec<u16> = (0..rng.below(5)).map(|kind| kind as u16).collect();
        pieces.push(match rng.below(6) {
            0 => option_bytes(option::LIST, b""),
            1 => option_bytes(option::INFO, &info_data(name, &kinds)),
            2 => option_bytes(option::STRUCTURED_REPLY, b""),
            3 => option_bytes(option::LIST_META_CONTEXT, &context_data(name, &["base:"])),
            4 => option_bytes(option::SET_META_CONTEXT, &context_data(name, &["base:allocation"])),
            _ => option_bytes(rng.below(14) as u32, &vec![7; rng.below(40_000) as usize]),
        });
    }
    pieces.push(match rng.below(4) {
        0 => option_bytes(option::EXPORT_NAME, b"disk0"),
        _ => option_bytes(option::GO, &info_data("disk0", &[3])),
    });
    for cookie in 0..rng.below(60) {
        let command = rng.below(8) as u16;
        let offset = rng.below(BYTES);
        let most = [100, 20_000, 200_000][rng.below(3) as usize];
        let len = 1 + rng.below(most);
        let len = if rng.one_in(10) { len } else { len.min(BYTES - offset) };
        let flags = if rng.one_in(4) { 1 << rng.below(6) } else { 0 };
        let mut bytes = request_bytes(flags, command, cookie, offset, len as u32);
        if command == 1 {
            bytes.resize(bytes.len() + len as usize, cookie as u8);
        }
        if command != 2 || rng.one_in(5) {
            pieces.push(bytes);
        }
    }
    pieces
}

/// A stream: garbage, or something valid that was damaged.
fn stream(rng: &mut SplitMix64) -> Vec<u8> {
    let mut pieces = valid(rng);
    match rng.below(8) {
        0 => return (0..rng.below(5000)).map(|_| rng.next() as u8).collect(),
        // Valid as it is.
        1 => {}
        // Garbage after a valid beginning.
        2 => {
            pieces.truncate(1 + rng.below(pieces.len() as u64) as usize);
            pieces.push((0..rng.below(500)).map(|_| rng.next() as u8).collect());
        }
        // Pieces missing, doubled, swapped.
        3 => {
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(pieces.len() as u64) as usize;
                let other = rng.below(pieces.len() as u64) as usize;
                match rng.below(3) {
                    0 if pieces.len() > 1 => _ = pieces.remove(at),
                    1 => pieces.insert(at, pieces[other].clone()),
                    _ => pieces.swap(at, other),
                }
            }
        }
        // Fields changed: near the start of a piece, where they matter.
        _ => {
            for _ in 0..1 + rng.below(5) {
                let at = rng.below(pieces.len() as u64) as usize;
                let bound = (pieces[at].len() as u64).min(40);
                let byte = &mut pieces[at][rng.below(bound) as usize];
                *byte = match rng.below(3) {
                    0 => 0xff,
                    1 => *byte ^ (1 << rng.below(8)),
                    _ => rng.next() as u8,
                };
            }
        }
    }
    let mut bytes = pieces.concat();
    if rng.one_in(6) {
        bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
    }
    bytes
}

/// Runs seeds until one fails: panics, or is told so.
fn fuzz(
    seeds: std::ops::Range<u64>,
    mut play: impl FnMut(&[u8], &mut SplitMix64) -> Result<(), String>,
) -> Result<(), String> {
    for seed in seeds {
        let mut rng = SplitMix64::new(seed);
        let bytes = stream(&mut rng);
        match catch_unwind(AssertUnwindSafe(|| play(&bytes, &mut rng))) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Err(format!("seed {seed}: {why}")),
            Err(_) => return Err(format!("seed {seed}: a panic")),
        }
    }
    Ok(())
}

#[test]
fn no_stream_harms_the_face() {
    for (backing, seeds) in [(Backing::Memory, 0..3000), (Backing::SlowFile, 3000..4000)] {
        let mut subject = Subject::new(backing);
        let mut count = 0;
        let idle = subject.pool.stats().live_bytes;
        fuzz(seeds, |bytes, rng| {
            subject.play(bytes, rng)?;
            count += 1;
            if count % 50 == 0 {
                subject.check(rng)?;
            }
            Ok(())
        })
        .unwrap();
        let stats = subject.face.stats();
        // The streams got far enough to mean something, and were not all refused at the door.
        assert!(stats.requests > 5000 && stats.requests_refused > 1000, "{stats:?}");
        assert!(stats.connections_broken > 300 && stats.pauses > 100, "{stats:?}");
        assert!(stats.completions_dropped > 0, "{stats:?}");
        // What the volume itself holds is all that stays.
        if backing == Backing::SlowFile {
            assert_eq!(subject.pool.stats().live_bytes, idle);
        }
    }
}

/// A server that trusts lengths is found out by the same streams: it panics.
#[test]
fn canary_a_trusting_parser_is_caught() {
    let trusting = |bytes: &[u8], _: &mut SplitMix64| {
        let mut at = 4;
        while let Some(header) = bytes.get(at..at + 16) {
            if header[..8] != OPTION_MAGIC.to_be_bytes() {
                break;
            }
            let len = u32::from_be_bytes(header[12..].try_into().unwrap()) as usize;
            let data = &bytes[at + 16..at + 16 + len];
            if header[11] == 7 {
                let name = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
                let _ = &data[4..4 + name];
            }
            at += 16 + len;
        }
        Ok(())
    };
    let found = fuzz(0..300, trusting).unwrap_err();
    assert!(found.ends_with("a panic"), "{found}");
}

/// And one that never lets go of a connection is found out, too.
#[test]
fn canary_a_server_that_hangs_is_caught() {
    let mut subject = Subject::new(Backing::Memory);
    subject.volume.inner_mut().held = true;
    let found = fuzz(0..300, |bytes, rng| subject.play(bytes, rng)).unwrap_err();
    assert!(found.ends_with("a hang"), "{found}");
}
