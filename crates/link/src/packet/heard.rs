//! What a packet link's sockets have heard, made into frames; and the second of them, the door.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use thinwire_buffer::{Addr, RxBatch, RxFrame, SegList};

use crate::door::{DOOR_BUFFER_BYTES, DOOR_FRAMES, Door};
use crate::mmsg::RxSlots;
use crate::{LinkStats, sys};

/// The socket for frames of no session.
pub(super) struct DoorSocket {
    pub socket: OwnedFd,
    pub rx: RxSlots,
    /// When it is looked at.
    pub door: Door,
}

impl DoorSocket {
    /// Of a socket that is not bound yet.
    pub fn open(socket: OwnedFd, buf_bytes: usize, start: usize) -> io::Result<Self> {
        let fd = socket.as_fd();
        let _ = sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
        sys::set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, DOOR_BUFFER_BYTES)?;
        let rx = RxSlots::new(DOOR_FRAMES, buf_bytes, start, 0).at_once();
        let door = Door::new(std::iter::once(fd))?;
        Ok(DoorSocket { rx, door, socket })
    }
}

/// Makes frames of what a call has put into the first `got` slots, `start` bytes behind their beginning; returns how many.
pub(super) fn take(
    rx: &mut RxSlots,
    got: usize,
    start: usize,
    stats: &mut LinkStats,
    out: &mut RxBatch,
) -> usize {
    let mut frames = 0;
    for i in 0..got {
        let received = rx.take(i);
        let Some(from) = sys::link_addr(rx.name(i)) else { continue };
        if received.is_truncated || received.bytes == 0 {
            stats.rx_dropped += 1;
            continue;
        }
        let mut mac = [0; 6];
        mac.copy_from_slice(&from.sll_addr[..6]);
        let waited = received.waited;
        let bytes = received.buf.freeze().slice(start, received.bytes);
        stats.rx_bytes += received.bytes as u64;
        out.push_back(RxFrame {
            from: Addr::Mac(mac),
            bytes,
            rest: SegList::new(),
            waited,
            queued: Duration::ZERO,
        });
        frames += 1;
    }
    frames
}
