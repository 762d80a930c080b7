//! A bare echo over any link: what the wire and the kernel allow when the protocol is empty. It is
//! the limit that results are compared with.
//!
//! What travels is what Thinwire would have to send: small frames with many requests each one way,
//! blocks in frames of `--frame` bytes the other, all requests of a turn together. There is no
//! session, no checksum, no acknowledgement and no loss recovery. The sender takes each block by
//! reference from a random place of its memory, the receiver copies it once, as a memory store and
//! an application's buffer make necessary; memory that is always the same would never leave the
//! processor's cache.

mod client;
mod format;
mod server;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use thinwire_buffer::{Addr, Pool, Segment};
use thinwire_link::{Link, LinkSpec};

use crate::error::LabError;
pub use client::run as client;
pub use server::run as server;

/// Frames taken from the link in a turn.
const FRAMES_PER_CALL: usize = 64;
const MIB: usize = 1 << 20;

/// `thinwire-lab echo server`.
#[derive(clap::Args, Clone, Debug)]
pub struct ServerArgs {
    /// Where to listen: IFACE, packet:IFACE, xdp:IFACE or udp:ADDRESS[:PORT]
    #[arg(long, value_name = "LINK")]
    pub link: LinkSpec,
    /// Memory that blocks are taken from and copied to, in MiB
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub memory: u32,
    /// Sleep at once when nothing is there, instead of spinning for 200 us
    #[arg(long)]
    pub sleep: bool,
}

/// What the client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// Requests go out, blocks come back
    #[default]
    Read,
    /// Blocks go out, completions come back
    Write,
}

/// `thinwire-lab echo client`.
#[derive(clap::Args, Clone, Debug)]
pub struct ClientArgs {
    /// Where to send from: IFACE, packet:IFACE, xdp:IFACE or udp:ADDRESS[:PORT]
    #[arg(long, value_name = "LINK")]
    pub link: LinkSpec,
    /// The server's address: 02-00-00-00-00-02, or 10.0.0.2:34997
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub to: Addr,
    /// Which way the blocks go
    #[arg(long, value_enum, default_value = "read")]
    pub rw: Direction,
    /// Bytes of a block: a multiple of 4096, at most 1 MiB
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = block_bytes)]
    pub bs: u32,
    /// Bytes of blocks in a frame: a multiple of 4096, at most 61440
    #[arg(long, value_name = "BYTES", default_value = "8192", value_parser = frame_bytes)]
    pub frame: u32,
    /// Requests kept outstanding
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub iodepth: u32,
    /// How long, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = crate::times::seconds)]
    pub runtime: f64,
    /// Memory that blocks are taken from, in MiB
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub memory: u32,
    /// Sleep at once when nothing is there, instead of spinning for 200 us
    #[arg(long)]
    pub sleep: bool,
}

/// `02-00-00-00-00-02`, with dashes or colons, or `10.0.0.2:34997`.
fn address(text: &str) -> Result<Addr, String> {
    let parts: Vec<&str> = text.split(['-', ':']).collect();
    let bytes: Option<Vec<u8>> =
        parts.iter().map(|part| u8::from_str_radix(part, 16).ok()).collect();
    if let Some(mac) = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()) {
        return Ok(Addr::Mac(mac));
    }
    let refused = |_| "give an Ethernet address (02-00-00-00-00-02) or IP:PORT".to_owned();
    text.parse().map(Addr::Udp).map_err(refused)
}

fn block_bytes(text: &str) -> Result<u32, String> {
    whole_pages(text, MIB as u32)
}

fn frame_bytes(text: &str) -> Result<u32, String> {
    whole_pages(text, FRAME_BYTES_MAX)
}

fn whole_pages(text: &str, most: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes) if bytes > 0 && bytes <= most && bytes % 4096 == 0 => Ok(bytes),
        _ => Err(format!("give a multiple of 4096, at most {most}")),
    }
}

/// A link that could not be opened, or that broke.
fn broken(link: &LinkSpec) -> impl Fn(String) -> LabError + '_ {
    move |why| LabError::Failed(format!("echo on {link}: {why}"))
}

/// Spins for so long after a frame came, longer than any round trip takes on an idle machine; as long
/// as a shard of Thinwire does at most.
const SPIN_MAX: Duration = Duration::from_micros(200);

/// Waits for frames, the last of which came at `last`. Spins, and yields while it does; when that is
/// not wanted, or has not paid, sleeps, for at most 100 ms, since some timers run beside: who spins
/// on a busy machine waits longer for a processor than who is woken.
fn idle(link: &dyn Link, sleeps: bool, last: Instant) {
    match link.sources() {
        [Some(first), second, third] if sleeps || last.elapsed() > SPIN_MAX => {
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let _ = poll(
                &mut [first, second.unwrap_or(first), third.unwrap_or(first)].map(watch),
                Some(&limit),
            );
        }
        _ => std::thread::yield_now(),
    }
}

/// Random numbers good enough to miss the cache: a linear congruential generator, upper bits.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// Memory that blocks are read from, by reference.
struct Library {
    /// Pieces of a MiB, so that no allocation is large.
    pieces: Vec<Segment>,
    dice: Dice,
}

impl Library {
    /// All of it is written, so that every page is really there.
    fn new(mib: u32, pool: &Pool) -> Self {
        let piece = |n: u32| {
            let mut memory = pool.get_zeroed(MIB);
            memory.fill(n as u8 | 1);
            memory.freeze()
        };
        Library { pieces: (0..mib).map(piece).collect(), dice: Dice(1) }
    }

    /// A random block of this many bytes, at most a MiB, beginning at a multiple of 4096.
    fn block(&mut self, bytes: usize) -> Segment {
        let piece = self.dice.below(self.pieces.len());
        let at = self.dice.below((MIB - bytes) / 4096 + 1) * 4096;
        self.pieces[piece].slice(at, bytes)
    }
}

/// Requests whose last frame is late by this much are taken for lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often lost requests are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// The longest that a lost request keeps its slot from others.
pub const LOSS_IDLE: Duration = PATIENCE.saturating_add(LOOK);

/// Most bytes of blocks in a frame: with its headers it fits into an IP packet.
const FRAME_BYTES_MAX: u32 = 61_440;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_kinds() {
        assert_eq!(address("02-00-00-00-01-02"), Ok(Addr::Mac([2, 0, 0, 0, 1, 2])));
        assert_eq!(address("02:00:00:00:01:02"), Ok(Addr::Mac([2, 0, 0, 0, 1, 2])));
        assert!(matches!(address("10.0.0.2:34997"), Ok(Addr::Udp(_))));
        assert!(address("10.0.0.2").is_err() && address("node1").is_err());
    }

    #[test]
    fn blocks_and_frames_are_whole_pages() {
        assert_eq!((block_bytes("4096"), block_bytes("1048576")), (Ok(4096), Ok(1 << 20)));
        assert_eq!(frame_bytes("61440"), Ok(FRAME_BYTES_MAX));
        assert!(frame_bytes("65536").unwrap_err().contains("at most 61440"));
        for text in ["0", "512", "6000", "2097152", "-4096", "x"] {
            assert!(block_bytes(text).is_err() && frame_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_help_names_each_link_and_the_bounds_that_are_kept() {
        let help = |command: clap::Command| {
            let mut command = command;
            command.render_help().to_string()
        };
        let server = help(<ServerArgs as clap::Args>::augment_args(clap::Command::new("server")));
        let client = help(<ClientArgs as clap::Args>::augment_args(clap::Command::new("client")));
        for link in ["packet:IFACE", "xdp:IFACE", "udp:ADDRESS"] {
            assert!(server.contains(link) && client.contains(link), "{link}");
        }
        assert!(client.contains(&format!("at most {FRAME_BYTES_MAX}")), "{client}");
    }

    #[test]
    fn blocks_come_from_everywhere() {
        let mut library = Library::new(4, &Pool::new(8 * MIB));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let block = library.block(4096);
            assert_eq!(block.len(), 4096);
            seen.insert(block.as_ptr() as usize);
        }
        assert!(seen.len() > 150, "{} different places of 1024", seen.len());
        assert_eq!(library.block(MIB).len(), MIB);
    }
}
