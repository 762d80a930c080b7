//! Sending: consecutive frames to one peer and of one size leave as a train, in one piece.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use thinwire_buffer::{Addr, TxFrame};

use super::route::Route;
use super::rx::TRAIN_BYTES_MAX;
use crate::mmsg::{PIECES_MAX, TxSlots};
use crate::{LinkStats, sys};

/// The kernel takes no more frames in a train (`UDP_MAX_SEGMENTS` before Linux 6.8).
const TRAIN_FRAMES_MAX: usize = 64;
/// Most messages (trains or lone frames) in one system call.
const BATCH_MESSAGES: usize = 64;
/// How often a send call tries again, in all, when the socket's buffer is full.
const RETRIES_PER_SEND: u32 = 16;

/// Frames of a batch that make one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Train {
    first: usize,
    count: usize,
}

/// What became of a frame that was sent by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Sent,
    Dropped,
    /// The kernel would block.
    Waits,
}

/// The sending half of the link.
pub(super) struct Sender {
    slots: TxSlots,
    trains: Vec<Train>,
    /// Trains that the kernel refused are sent again from here, frame by frame.
    singles: TxSlots,
    group: SocketAddr,
    route: Route,
    gso: bool,
    pub(super) stats: LinkStats,
}

impl Sender {
    pub(super) fn new(group: SocketAddr, route: Route, gso: bool) -> Self {
        Sender {
            slots: TxSlots::new(BATCH_MESSAGES, 4 * PIECES_MAX),
            trains: Vec::with_capacity(BATCH_MESSAGES),
            singles: TxSlots::new(TRAIN_FRAMES_MAX, 2 * PIECES_MAX),
            group,
            route,
            gso,
            stats: LinkStats::default(),
        }
    }

    pub(super) fn sends_trains(&self) -> bool {
        self.gso
    }

    /// Sends frames, or drops and counts them; returns how many, all unless the kernel would block.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, frames: &[TxFrame]) -> io::Result<usize> {
        let mut retries = RETRIES_PER_SEND;
        let mut at = 0;
        while at < frames.len() {
            if frames[at].to == Addr::Group && self.route.interface_count() > 1 {
                self.send_everywhere(fd, &frames[at])?;
                at += 1;
                continue;
            }
            let loaded = self.load(&frames[at..]);
            let done = self.flush(fd, &frames[at..at + loaded], &mut retries)?;
            at += done;
            if done < loaded {
                break;
            }
        }
        self.slots.clear();
        self.singles.clear();
        Ok(at)
    }

    /// Groups frames from the start of `frames` into messages; returns how many frames are dealt
    /// with. Stops before a group frame that needs care. Drops a frame that no kernel takes if it is
    /// the first.
    fn load(&mut self, frames: &[TxFrame]) -> usize {
        self.slots.clear();
        self.trains.clear();
        // The train that may grow: where to, its frame size, its bytes so far.
        let mut open: Option<(Addr, usize, usize)> = None;
        for (i, frame) in frames.iter().enumerate() {
            let pieces = 1 + frame.data.as_slice().len();
            let bytes = frame.bytes();
            let to = match frame.to {
                Addr::Udp(to) if pieces <= PIECES_MAX && bytes > 0 => to,
                Addr::Group if self.route.interface_count() > 1 => return i,
                Addr::Group if pieces <= PIECES_MAX && bytes > 0 => self.group,
                // An address of another kind of link, or a frame no kernel takes.
                _ if i == 0 => {
                    self.stats.tx_dropped += 1;
                    return 1;
                }
                _ => return i,
            };
            match (&mut open, self.trains.last_mut()) {
                (Some((peer, size, total)), Some(train))
                    if self.gso
                        && *peer == frame.to
                        && bytes <= *size
                        && *total + bytes <= TRAIN_BYTES_MAX
                        && train.count < TRAIN_FRAMES_MAX
                        && self.slots.can_grow(pieces) =>
                {
                    if train.count == 1 {
                        self.slots.train_of(*size as u16);
                    }
                    train.count += 1;
                    *total += bytes;
                    // A shorter frame is the last of its train.
                    if bytes < *size {
                        open = None;
                    }
                }
                _ => {
                    if !self.slots.has_room(pieces) {
                        return i;
                    }
                    self.slots.begin(|name| sys::to_storage(&to, name));
                    self.trains.push(Train { first: i, count: 1 });
                    open = Some((frame.to, bytes, bytes));
                }
            }
            push_pieces(&mut self.slots, frame);
        }
        frames.len()
    }

    /// Sends what is in the slots, which hold `frames`. Returns how many that dealt with, all unless
    /// the kernel would block.
    fn flush(
        &mut self,
        fd: BorrowedFd<'_>,
        frames: &[TxFrame],
        retries: &mut u32,
    ) -> io::Result<usize> {
        let mut at = 0;
        while at < self.slots.len() {
            // SAFETY: the slots were loaded from `frames`, which are borrowed until we return.
            match unsafe { self.slots.send(fd, at) } {
                Ok(sent) => {
                    self.stats.tx_calls += 1;
                    for i in at..at + sent {
                        self.stats.tx_frames += self.trains[i].count as u64;
                        self.stats.tx_bytes += self.slots.sent_bytes(i);
                    }
                    at += sent;
                }
                Err(e) => {
                    let Train { first, count } = self.trains[at];
                    match e.raw_os_error().unwrap_or(0) {
                        libc::EINTR => {}
                        libc::EAGAIN | libc::ENOBUFS if *retries > 0 => {
                            *retries -= 1;
                            for _ in 0..50 {
                                std::hint::spin_loop();
                            }
                        }
                        libc::EAGAIN | libc::ENOBUFS => return Ok(first),
                        libc::EBADF | libc::ENOTSOCK | libc::EFAULT => return Err(e),
                        // The kernel cannot make trains here (EIO: no checksums in hardware; EINVAL:
                        // too old), or they are too large for the path (EMSGSIZE, and EINVAL on
                        // some kernels). Frame by frame, each gets its own verdict.
                        code @ (libc::EIO | libc::EINVAL | libc::EMSGSIZE) if count > 1 => {
                            let (done, all_sent) =
                                self.send_singly(fd, &frames[first..first + count])?;
                            if code == libc::EIO || (code == libc::EINVAL && all_sent) {
                                self.gso = false;
                            }
                            if done < count {
                                return Ok(first + done);
                            }
                            at += 1;
                        }
                        // Too large, no route, refused by a rule: the wire dropped it.
                        _ => {
                            self.stats.tx_dropped += count as u64;
                            at += 1;
                        }
                    }
                }
            }
        }
        Ok(frames.len())
    }

    /// Sends the frames of a refused train each by itself. Returns with how many it dealt, all
    /// unless the kernel would block, and whether the kernel took all of them.
    fn send_singly(&mut self, fd: BorrowedFd<'_>, frames: &[TxFrame]) -> io::Result<(usize, bool)> {
        let mut all_sent = true;
        for (i, frame) in frames.iter().enumerate() {
            match self.send_one(fd, frame)? {
                Fate::Sent => {}
                Fate::Dropped => all_sent = false,
                Fate::Waits => return Ok((i, false)),
            }
        }
        Ok((frames.len(), all_sent))
    }

    /// Sends a group frame on each of several interfaces. Discovery is rare, and repeats itself: no
    /// need to be fast, or to wait.
    fn send_everywhere(&mut self, fd: BorrowedFd<'_>, frame: &TxFrame) -> io::Result<()> {
        for i in 0..self.route.interface_count() {
            self.route.send_groups_on(fd, i);
            if self.send_one(fd, frame)? == Fate::Waits {
                self.stats.tx_dropped += 1;
            }
        }
        Ok(())
    }

    fn send_one(&mut self, fd: BorrowedFd<'_>, frame: &TxFrame) -> io::Result<Fate> {
        let to = match frame.to {
            Addr::Udp(to) => to,
            _ => self.group,
        };
        self.singles.clear();
        if !self.singles.has_room(1 + frame.data.as_slice().len()) {
            self.stats.tx_dropped += 1;
            return Ok(Fate::Dropped);
        }
        self.singles.begin(|name| sys::to_storage(&to, name));
        push_pieces(&mut self.singles, frame);
        loop {
            // SAFETY: the slot was loaded from `frame`, which is borrowed until we return.
            match unsafe { self.singles.send(fd, 0) } {
                Ok(_) => {
                    self.stats.tx_calls += 1;
                    self.stats.tx_frames += 1;
                    self.stats.tx_bytes += self.singles.sent_bytes(0);
                    return Ok(Fate::Sent);
                }
                Err(e) => match e.raw_os_error().unwrap_or(0) {
                    libc::EINTR => {}
                    libc::EAGAIN | libc::ENOBUFS => return Ok(Fate::Waits),
                    libc::EBADF | libc::ENOTSOCK | libc::EFAULT => return Err(e),
                    _ => {
                        self.stats.tx_dropped += 1;
                        return Ok(Fate::Dropped);
                    }
                },
            }
        }
    }
}

fn push_pieces(slots: &mut TxSlots, frame: &TxFrame) {
    slots.piece(&frame.head);
    for segment in frame.data.as_slice() {
        slots.piece(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_buffer::TxBatch;

    fn trains(sizes: &[(u16, usize)], gso: bool) -> Vec<(usize, usize)> {
        let route = Route::find("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut sender = Sender::new("239.84.87.1:1".parse().unwrap(), route, gso);
        let mut batch = TxBatch::new();
        for &(port, bytes) in sizes {
            batch.push(Addr::Udp(SocketAddr::from(([127, 0, 0, 1], port)))).head.resize(bytes, 0);
        }
        assert_eq!(sender.load(batch.frames()), sizes.len());
        sender.trains.iter().map(|train| (train.first, train.count)).collect()
    }

    #[test]
    fn trains_are_frames_of_one_size_to_one_peer() {
        let sizes = [(1, 900), (1, 900), (1, 500), (1, 500), (2, 500), (2, 600), (2, 600)];
        assert_eq!(trains(&sizes, true), [(0, 3), (3, 1), (4, 1), (5, 2)]);
        assert_eq!(trains(&sizes[..3], false), [(0, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn trains_are_bounded_in_frames_and_bytes() {
        assert_eq!(trains(&[(1, 60); 130], true), [(0, 64), (64, 64), (128, 2)]);
        // Six frames of 8972 bytes fit into a receiver's buffer, seven do not.
        assert_eq!(trains(&[(1, 8972); 8], true), [(0, 6), (6, 2)]);
    }
}
