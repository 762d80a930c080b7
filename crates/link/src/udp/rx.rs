//! Receiving: a train arrives in one buffer and is cut into frames that share it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use thinwire_buffer::{Addr, PAGE_BYTES, Pool, RxBatch, RxFrame, SegList, Segment};

use crate::door::DOOR_FRAMES;
use crate::mmsg::{Received, RxSlots};
use crate::{HEAD_BYTES, LinkStats, sys};

/// Where the first frame starts in its buffer: what follows its head is on a page border.
const START: usize = PAGE_BYTES - HEAD_BYTES;
/// One buffer: 16 pages.
const BUF_BYTES: usize = 64 << 10;
/// The most bytes in a train that need no copy at the receiver. Trains we send are no longer.
pub(super) const TRAIN_BYTES_MAX: usize = BUF_BYTES - START;
/// The largest frame: one that fills a buffer. Its payload is 60 KiB.
pub(super) const FRAME_BYTES_MAX: usize = TRAIN_BYTES_MAX;
/// The network may put longer trains together: up to 65535 bytes. What exceeds the buffer goes here
/// and is copied.
const SPILL_BYTES: usize = PAGE_BYTES;
/// Messages in one receive call.
const SLOTS: usize = 16;

/// Buffers of the sockets for what is in no session: greetings and discovery are short.
const DOOR_BUF_BYTES: usize = 2 * PAGE_BYTES;

/// One socket's receiving half.
pub(super) struct Receiver {
    slots: RxSlots,
    capacity: usize,
    /// Frames in a message, lately: how many messages make the wanted number of frames.
    frames_per_message: usize,
    frames: u64,
    bytes: u64,
    dropped: u64,
    copied_bytes: u64,
}

impl Receiver {
    pub(super) fn of_trains() -> Self {
        Receiver::new(RxSlots::new(SLOTS, BUF_BYTES, START, SPILL_BYTES), TRAIN_BYTES_MAX)
    }

    pub(super) fn of_door() -> Self {
        let slots = RxSlots::new(DOOR_FRAMES, DOOR_BUF_BYTES, START, 0).at_once();
        Receiver::new(slots, DOOR_BUF_BYTES - START)
    }

    fn new(slots: RxSlots, capacity: usize) -> Self {
        Receiver {
            slots,
            capacity,
            frames_per_message: 1,
            frames: 0,
            bytes: 0,
            dropped: 0,
            copied_bytes: 0,
        }
    }

    /// Appends about `max` frames to `out`, leaving out those from `not_from`; returns how many.
    pub(super) fn recv(
        &mut self,
        fd: BorrowedFd<'_>,
        pool: &Pool,
        max: usize,
        not_from: Option<SocketAddr>,
        out: &mut RxBatch,
    ) -> io::Result<usize> {
        let mut frames = 0;
        // Usually once. A message without a frame (empty, ours, too long) must not look like an
        // empty socket, but a flood of them must not hold us either.
        for _ in 0..16 {
            let want = max.div_ceil(self.frames_per_message);
            let got = match self.slots.recv(fd, pool, want) {
                Ok(got) => got,
                Err(e) => match e.raw_os_error().unwrap_or(0) {
                    libc::EAGAIN => break,
                    libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL => return Err(e),
                    // What ICMP said about an earlier frame, or a signal: no reason to stop.
                    _ => continue,
                },
            };
            for i in 0..got {
                let received = self.slots.take(i);
                match sys::from_storage(self.slots.name(i)) {
                    Some(from) if Some(from) != not_from => {
                        frames += self.cut(i, from, received, pool, out);
                    }
                    _ => {}
                }
            }
            if frames > 0 {
                self.frames_per_message = (frames / got).max(1);
                break;
            }
        }
        self.frames += frames as u64;
        Ok(frames)
    }

    /// Cuts what arrived in slot `i` into frames.
    fn cut(
        &mut self,
        i: usize,
        from: SocketAddr,
        received: Received,
        pool: &Pool,
        out: &mut RxBatch,
    ) -> usize {
        let Received { buf, bytes, is_truncated, segment_bytes, waited } = received;
        if is_truncated {
            self.dropped += 1;
            return 0;
        }
        self.bytes += bytes as u64;
        let whole = buf.freeze();
        let size = segment_bytes.unwrap_or(bytes).max(1);
        let mut frames = 0;
        let mut at = 0;
        while at < bytes {
            let len = size.min(bytes - at);
            let frame = if at + len <= self.capacity {
                whole.slice(START + at, len)
            } else {
                self.assemble(i, &whole, at, len, pool)
            };
            out.push_back(RxFrame {
                from: Addr::Udp(from),
                bytes: frame,
                rest: SegList::new(),
                waited,
                queued: Duration::ZERO,
            });
            at += len;
            frames += 1;
        }
        frames
    }

    /// A frame that lies in the spill, wholly or in part.
    fn assemble(
        &mut self,
        i: usize,
        whole: &Segment,
        at: usize,
        len: usize,
        pool: &Pool,
    ) -> Segment {
        self.copied_bytes += len as u64;
        let mut copy = pool.get(START + len);
        let in_buf = self.capacity.saturating_sub(at);
        let (head, tail) = copy[START..].split_at_mut(in_buf);
        head.copy_from_slice(&whole[BUF_BYTES - in_buf..]);
        let spilled = at.saturating_sub(self.capacity);
        tail.copy_from_slice(&self.slots.spill(i)[spilled..][..len - in_buf]);
        copy.freeze().slice(START, len)
    }

    /// Adds this socket's counters.
    pub(super) fn add_to(&self, stats: &mut LinkStats, fd: BorrowedFd<'_>) {
        const DROPS: usize = 8;
        let memory = sys::option_words::<9>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO);
        stats.rx_frames += self.frames;
        stats.rx_bytes += self.bytes;
        stats.rx_dropped += self.dropped + memory.map_or(0, |words| u64::from(words[DROPS]));
        stats.copied_bytes += self.copied_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mmsg::TxSlots;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// A train as a foreign sender or an adapter may put it together: as long as UDP allows.
    #[test]
    fn a_train_longer_than_a_buffer_is_received_whole() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_nonblocking(true).unwrap();
        sys::set_option(to.as_fd(), libc::SOL_UDP, sys::UDP_GRO, &1i32).unwrap();
        let bytes: Vec<u8> = (0..65_000u32).map(|i| (i / 3) as u8).collect();
        // The border of the buffer falls into a frame, and between frames.
        for size in [8972, TRAIN_BYTES_MAX / 4] {
            let mut slots = TxSlots::new(1, 1);
            slots.begin(|name| sys::to_storage(&to.local_addr().unwrap(), name));
            slots.piece(&bytes);
            slots.train_of(size as u16);
            // SAFETY: `bytes` outlives the call.
            assert_eq!(unsafe { slots.send(from.as_fd(), 0) }.unwrap(), 1);
            let mut receiver = Receiver::of_trains();
            let mut out = RxBatch::new();
            let pool = Pool::new(1 << 20);
            let count = receiver.recv(to.as_fd(), &pool, 64, None, &mut out).unwrap();
            assert_eq!(count, bytes.len().div_ceil(size));
            let joined: Vec<u8> = out.iter().flat_map(|f| f.bytes.iter().copied()).collect();
            assert!(joined == bytes);
            assert!(out.iter().take(count - 1).all(|f| f.bytes.len() == size));
            // Only what does not lie in the buffer is copied.
            let in_buf = TRAIN_BYTES_MAX / size * size;
            assert_eq!(receiver.copied_bytes, (bytes.len() - in_buf) as u64);
        }
    }
}
