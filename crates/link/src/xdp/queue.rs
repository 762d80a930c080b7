//! One receive queue of an interface, and the socket that has it: frames in chunks, in and out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, PAGE_BYTES, Pool, RxBatch, RxFrame, SegList, TxFrame};

use super::bpf::AttachMode;
use super::socket::{self, Rings, Sizes};
use super::umem::{CHUNK_BYTES, Region};
use crate::{HEAD_BYTES, LinkStats};

/// What the kernel leaves free before each received piece, besides what we ask for
/// (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;
/// Payload is to begin here in the first chunk of a frame: at a multiple of 512, which direct disk
/// I/O needs.
const PAYLOAD_AT: usize = 512;
/// The longest frame.
const FRAME_BYTES_MAX: usize = 65535;
/// Where a copied frame starts in its buffer, so that what follows its head is on a page border.
const START: usize = PAGE_BYTES - HEAD_BYTES;
/// How often in all a send call tries again when the kernel takes nothing, each time after about a
/// microsecond.
const RETRIES_PER_SEND: u32 = 16;

/// What we ask the kernel to leave free, so that the payload of a frame, behind link header and
/// head, begins at [`PAYLOAD_AT`].
fn headroom(header_bytes: usize) -> usize {
    PAYLOAD_AT - KERNEL_HEADROOM - HEAD_BYTES - header_bytes
}

/// How many chunks a received frame of `frame_bytes` takes.
pub(super) fn chunks_of(frame_bytes: usize, header_bytes: usize) -> u32 {
    let piece_max = CHUNK_BYTES - KERNEL_HEADROOM - headroom(header_bytes);
    (frame_bytes + header_bytes).div_ceil(piece_max) as u32
}

/// A socket on a queue.
pub(super) struct Queue {
    socket: OwnedFd,
    rings: Rings,
    region: Rc<Region>,
    header_bytes: usize,
    /// Chunks that may be lent out at once; beyond that frames are copied.
    lent_max: u32,
    /// Chunks to send from that the kernel does not have.
    tx_free: Vec<u32>,
    is_zero_copy: bool,
}

impl Queue {
    /// Opens a socket on `queue` of an interface for frames of up to `frame_bytes_max` bytes behind
    /// `header_bytes` of link header. It receives once it is in the map of the program, which is
    /// attached in this mode.
    pub(super) fn open(
        interface: u32,
        queue: u32,
        mode: AttachMode,
        frame_bytes_max: usize,
        header_bytes: usize,
        sizes: Sizes,
    ) -> io::Result<Queue> {
        let region = Region::new(sizes.rx_chunks, sizes.tx)?;
        let (socket, rings) = socket::open(&region, headroom(header_bytes) as u32, sizes)?;
        let is_split = chunks_of(frame_bytes_max, header_bytes) > 1;
        socket::bind(socket.as_fd(), interface, queue, mode, is_split)?;
        let is_zero_copy = socket::is_zero_copy(socket.as_fd());
        if is_zero_copy {
            socket::poll_busily(socket.as_fd());
        }
        let mut queue = Queue {
            socket,
            rings,
            region,
            header_bytes,
            // So many always stay in circulation: what the link promises to have room for.
            lent_max: sizes.rx_chunks - sizes.rx,
            tx_free: (sizes.rx_chunks..sizes.rx_chunks + sizes.tx).collect(),
            is_zero_copy,
        };
        queue.refill();
        Ok(queue)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Gives free chunks to the kernel.
    pub(super) fn refill(&mut self) {
        let fill = &mut self.rings.fill;
        let mut room = fill.free();
        while room > 0
            && let Some(chunk) = self.region.pop_free()
        {
            fill.push(u64::from(chunk) * CHUNK_BYTES as u64);
            room -= 1;
        }
        fill.publish();
        if fill.needs_wakeup() {
            socket::kick_rx(self.socket.as_fd());
        }
    }

    /// Appends up to `max` frames that have arrived; returns how many.
    pub(super) fn recv(
        &mut self,
        pool: &Pool,
        max: usize,
        out: &mut RxBatch,
        stats: &mut LinkStats,
    ) -> usize {
        let waiting = self.rings.rx.waiting();
        let (mut first, mut frames) = (0, 0);
        while frames < max {
            // A frame is whole once its last piece is there.
            let is_last = |at: &u32| self.rings.rx.peek(*at).options & libc::XDP_PKT_CONTD == 0;
            let Some(last) = (first..waiting).find(is_last) else { break };
            let taken = self.take(first, last + 1, pool, stats);
            first = last + 1;
            match taken {
                Some(frame) => {
                    stats.rx_bytes += frame.len() as u64;
                    frames += 1;
                    out.push_back(frame);
                }
                None => stats.rx_dropped += 1,
            }
        }
        if first > 0 {
            self.rings.rx.release(first);
            self.refill();
        }
        stats.rx_frames += frames as u64;
        frames
    }

    /// The frame in the descriptors `first..end`; `None` if it is none.
    fn take(
        &mut self,
        first: u32,
        end: u32,
        pool: &Pool,
        stats: &mut LinkStats,
    ) -> Option<RxFrame> {
        let (rx, region, header) = (&self.rings.rx, &self.region, self.header_bytes);
        let copies = region.lent() + (end - first) > self.lent_max;
        let mut from = None;
        let mut bytes = None;
        let mut rest = SegList::new();
        for at in first..end {
            let desc = rx.peek(at);
            let (chunk, offset) =
                (desc.addr / CHUNK_BYTES as u64, desc.addr as usize % CHUNK_BYTES);
            let piece = region.take(chunk as u32).freeze().slice(offset, desc.len as usize);
            if at > first {
                rest.push(piece);
            } else if piece.len() > header {
                let mut mac = [0; 6];
                mac.copy_from_slice(&piece[6..12]);
                from = Some(Addr::Mac(mac));
                bytes = Some(piece.slice(header, piece.len() - header));
            }
        }
        let frame = RxFrame {
            from: from?,
            bytes: bytes?,
            rest,
            waited: Duration::ZERO,
            queued: Duration::ZERO,
        };
        let len = frame.len();
        if len > FRAME_BYTES_MAX {
            return None;
        }
        if !copies {
            return Some(frame);
        }
        let mut copy = pool.get(START + len);
        frame.copy_to(0, &mut copy[START..]);
        stats.copied_bytes += len as u64;
        let bytes = copy.freeze().slice(START, len);
        Some(RxFrame { bytes, rest: SegList::new(), ..frame })
    }

    /// Copies a frame, `header` first, into chunks for the kernel; false if there is no room now.
    pub(super) fn load(&mut self, header: &[u8], frame: &TxFrame) -> bool {
        let mut left = header.len() + frame.bytes();
        let chunks = left.div_ceil(CHUNK_BYTES);
        // In copy mode the kernel allocates what the first chunk holds in one piece, and whole pages
        // for the others: best for both if the payload, unless that takes a chunk more, has its own.
        let head = header.len() + frame.head.len();
        let is_split =
            chunks > 1 && head <= CHUNK_BYTES && 1 + (left - head).div_ceil(CHUNK_BYTES) == chunks;
        let mut room = if is_split { head } else { CHUNK_BYTES };
        if chunks > self.tx_free.len() || chunks > self.rings.tx.free() as usize {
            return false;
        }
        let pieces = [header, &frame.head].into_iter();
        let mut pieces = pieces.chain(frame.data.iter().map(|segment| &segment[..]));
        let mut piece: &[u8] = &[];
        while left > 0 {
            let chunk = self.tx_free.pop().expect("counted above");
            let len = left.min(room);
            room = CHUNK_BYTES;
            let mut at = 0;
            while at < len {
                if piece.is_empty() {
                    piece = pieces.next().expect("as many bytes as counted");
                    continue;
                }
                let (now, later) = piece.split_at(piece.len().min(len - at));
                self.region.write(chunk, at, now);
                at += now.len();
                piece = later;
            }
            left -= len;
            self.rings.tx.push(libc::xdp_desc {
                addr: u64::from(chunk) * CHUNK_BYTES as u64,
                len: len as u32,
                options: if left > 0 { libc::XDP_PKT_CONTD } else { 0 },
            });
        }
        true
    }

    /// True if frames of an earlier call are still to be sent.
    pub(super) fn has_pending(&self) -> bool {
        self.rings.tx.pending() > 0
    }

    /// Pieces of frames that wait for a call. An adapter that takes them by itself needs none.
    pub(super) fn unsent(&self) -> usize {
        let needs_call = !self.is_zero_copy || self.rings.tx.needs_wakeup();
        if needs_call { self.rings.tx.pending() as usize } else { 0 }
    }

    /// Has the kernel send what was loaded. In copy mode it does so within the call, a few frames
    /// at a time, so it is called until all is gone; what it cannot take now stays in the ring and
    /// goes with the next. `retries` bounds how often it may take nothing. An error means that the
    /// interface is down or gone.
    pub(super) fn flush(&mut self, retries: &mut u32, stats: &mut LinkStats) -> io::Result<()> {
        self.rings.tx.publish();
        loop {
            let before = self.rings.tx.pending();
            if before == 0 || (self.is_zero_copy && !self.rings.tx.needs_wakeup()) {
                break;
            }
            let kicked = socket::kick_tx(self.socket.as_fd());
            stats.tx_calls += 1;
            match kicked.as_ref().map_err(|e| e.raw_os_error().unwrap_or(0)) {
                Ok(()) if self.is_zero_copy => break,
                Ok(()) | Err(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => {}
                // Sent, and dropped on the way by whoever had the next queue.
                Err(libc::EBUSY) => stats.tx_dropped += 1,
                Err(_) => {
                    self.reap();
                    return kicked;
                }
            }
            if self.rings.tx.pending() < before {
                continue;
            }
            if *retries == 0 {
                break;
            }
            *retries -= 1;
            for _ in 0..50 {
                std::hint::spin_loop();
            }
        }
        self.reap();
        Ok(())
    }

    /// How often [`Queue::flush`] may take nothing in one send call.
    pub(super) const RETRIES: u32 = RETRIES_PER_SEND;

    /// Takes chunks back that the kernel has sent.
    fn reap(&mut self) {
        let done = &mut self.rings.completion;
        let count = done.waiting();
        for at in 0..count {
            self.tx_free.push((done.peek(at) / CHUNK_BYTES as u64) as u32);
        }
        done.release(count);
    }

    /// Frames that the kernel dropped for lack of room.
    pub(super) fn dropped(&self) -> u64 {
        socket::dropped(self.socket.as_fd())
    }

    /// True if the socket has met an error: its interface went down or away. Clears it.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        socket::take_error(self.socket.as_fd())
    }
}

const _: () = assert!(KERNEL_HEADROOM + HEAD_BYTES + 18 <= PAYLOAD_AT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_begins_aligned_whatever_the_header() {
        for header in [14, 18] {
            assert_eq!(KERNEL_HEADROOM + headroom(header) + header + HEAD_BYTES, PAYLOAD_AT);
        }
    }

    #[test]
    fn chunks_are_counted_with_their_headroom() {
        // 4096 - 256 - 50 bytes fit into each.
        assert_eq!([1500, 3776, 3777, 9000, 65535].map(|n| chunks_of(n, 14)), [1, 1, 2, 3, 18]);
    }
}
