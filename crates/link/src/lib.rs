//! Moving frames: one [`Link`] is one way to put frames on a wire and take them off. Knows no
//! protocol: a frame is bytes with a sender. A link is used by one thread; [`handoff`] can give it more.

mod best;
mod bpf;
mod changes;
mod door;
mod error;
mod ethernet;
pub mod fault;
mod full;
pub mod handoff;
mod mmsg;
pub mod packet;
pub mod pcap;
pub mod raw;
pub mod rng;
mod room;
pub mod sim;
mod spec;
pub mod survey;
mod sys;
pub mod udp;
pub mod xdp;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, RxBatch, TxBatch};

/// Distance from a received frame's first byte to the next page border, so that a payload at this
/// offset (the protocol's data offset) arrives page aligned. At most 192 (`docs/design.md`, "The frame").
pub const HEAD_BYTES: usize = 192;

/// No link is opened that carries less than this: the smallest MTU that IPv6 allows.
pub const FRAME_BYTES_MIN: usize = 1280;

pub use bpf::{STEERING_FILTERS_MAX, ShardSteering, SteeringFilter};
pub use error::LinkOpenError;
pub use ethernet::take_small_pieces;
pub use full::{Outlet, WAITING_FRAMES_MAX};
pub use spec::{Advised, LinkOptions, LinkSpec, RawKind, SpecError};

/// A source of time in ns, for wrappers that need one: injected, so that they work under virtual
/// time, too.
pub type ClockSource = Box<dyn FnMut() -> u64>;

/// A clock that counts from its making and never goes back.
pub fn monotonic_clock() -> ClockSource {
    let start = std::time::Instant::now();
    Box::new(move || start.elapsed().as_nanos() as u64)
}

/// Whoever sleeps until a link has something to do watches all of these, and calls [`Link::recv`] when
/// one is readable: frames wait, or something else is to be looked at. The first is there if any is;
/// links without descriptors (simulated ones) have none.
pub type Sources<'a> = [Option<BorrowedFd<'a>>; 3];

/// One way to move frames. Used by one thread. Nothing here waits.
///
/// This is what all links are, and every one says all of it: a wrapper that forgets what is
/// underneath does not compile. What only some can say besides is said when they are opened
/// ([`LinkSpec::open_advised`]) or in what [`Link::send`] and [`Link::stats`] return.
pub trait Link {
    /// The name for messages: `packet:eth1`, `xdp:eth1`, `udp:10.0.0.2:34997`.
    fn name(&self) -> &str;

    /// What the protocol needs to know of it. Only the address may change while the link is open: its
    /// interface may be given another.
    fn info(&self) -> LinkInfo;

    /// Sends the frames of the batch, in order, in as few system calls as possible, without
    /// blocking: frames stay in the batch if the kernel's queue is full, for a later call. Those that
    /// the kernel does not take for another reason (link down, too large) are dropped, as a wire
    /// would, and counted; the protocol mends the loss. An error means that the link is unusable.
    /// Whoever sends through an [`Outlet`] need not look at what comes back.
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing>;

    /// Appends up to about `max` frames that have arrived (a train may exceed it) and returns how
    /// many. Zero means nothing is there now, or nothing but what anybody may send, which some links look for in
    /// every few calls only: one of the sources is readable until then, or [`Link::due_in`] says when. Memory comes from `pool`, [`HEAD_BYTES`] before a
    /// page border where the kernel allows; or is the link's own, as far as that can be spared.
    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize>;

    /// [`Link::recv`] for whoever spins: looks at what costs no system call, if the link has such a
    /// place, and need not find what is elsewhere ([`Link::sources`] tell of that, too). Right as it is
    /// for wrappers: what they do to frames they do in `recv`.
    fn probe(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        self.recv(pool, max, out)
    }

    /// What to watch while nothing is to be done.
    fn sources(&self) -> Sources<'_>;

    /// How soon to call [`Link::recv`] although none of the sources is readable: zero if that time has
    /// come, `None` if the link holds nothing back.
    fn due_in(&mut self) -> Option<Duration>;

    /// Counters since the link was opened.
    fn stats(&self) -> LinkStats;
}

/// What has become of frames that have left their batch: what [`Link::send`] returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// How much waits in the link itself for a call, in units of its own (it falls as the kernel
    /// takes some). If it is not zero, call again soon, with an empty batch if there is nothing else:
    /// [`Outlet::again_within`].
    pub unsent: usize,
    /// How long, in ns and in all, batches have waited for the thread that sends, if there is one:
    /// those in which requests end ([`TxBatch::last_pieces`]).
    pub handed_over_ns: u64,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames handed to the kernel.
    pub tx_frames: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Send calls that the kernel took.
    pub tx_calls: u64,
    /// Frames that the kernel refused (full queue, link down).
    pub tx_dropped: u64,
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Receive calls.
    pub rx_calls: u64,
    /// Frames the kernel dropped for lack of room, as far as it tells.
    pub rx_dropped: u64,
    /// Payload bytes this link had to copy in user space.
    pub copied_bytes: u64,
    /// Batches of frames that were handed to another thread to be sent.
    pub handoffs: u64,
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn info(&self) -> LinkInfo {
        (**self).info()
    }
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        (**self).send(batch)
    }
    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        (**self).recv(pool, max, out)
    }
    fn probe(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        (**self).probe(pool, max, out)
    }
    fn sources(&self) -> Sources<'_> {
        (**self).sources()
    }
    fn due_in(&mut self) -> Option<Duration> {
        (**self).due_in()
    }
    fn stats(&self) -> LinkStats {
        (**self).stats()
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::{Addr, FrameSizes, Room};

    use super::*;

    /// A link that has three frames where a look costs nothing.
    struct Ring;

    impl Link for Ring {
        fn name(&self) -> &str {
            "ring"
        }
        fn info(&self) -> LinkInfo {
            let frame_bytes = FrameSizes { base: 1280, max: 1500 };
            LinkInfo { addr: Addr::Sim(1), frame_bytes, room: Room { frames: 9, bytes: 9000 } }
        }
        fn send(&mut self, _: &mut TxBatch) -> io::Result<Outgoing> {
            Ok(Outgoing::default())
        }
        fn recv(&mut self, _: &Pool, _: usize, _: &mut RxBatch) -> io::Result<usize> {
            Ok(0)
        }
        fn probe(&mut self, _: &Pool, _: usize, _: &mut RxBatch) -> io::Result<usize> {
            Ok(3)
        }
        fn sources(&self) -> Sources<'_> {
            [None; 3]
        }
        fn due_in(&mut self) -> Option<Duration> {
            None
        }
        fn stats(&self) -> LinkStats {
            LinkStats::default()
        }
    }

    #[test]
    fn a_box_is_probed_as_what_is_in_it() {
        let mut boxed: Box<dyn Link> = Box::new(Ring);
        let found = Link::probe(&mut boxed, &Pool::new(0), 9, &mut RxBatch::new()).unwrap();
        assert_eq!(found, 3);
    }
}
