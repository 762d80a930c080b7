//! `/dev/fuse` itself: requests in, replies out (`replies.rs`), without waiting and without a copy of ours.
//!
//! The kernel fills a request into the pieces of a scattered read one after the other. The first
//! piece takes the two headers of a write, so that its payload starts on a page; the following
//! pieces are pool buffers that double in size (4, 4, 8, 16 ... KiB). A write of any length thus
//! lies in buffers that are together less than twice as large, aligned for direct disk I/O, and
//! goes to the volume as it is.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use thinwire_buffer::{Buf, PAGE_BYTES, Pool, SegList};
use zerocopy::FromBytes;

use super::abi::{InHeader, TransferIn, opcode};
use super::replies::Replies;

/// Headers of a write; every other request spills into the first buffer.
const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<TransferIn>();

/// The longest argument of a request that is not a write.
const ARGS_BYTES: usize = 120;

/// Rungs of the longest ladder: 4, 4, 8 ... 512 KiB for 1 MiB.
const RUNGS_MAX: usize = 9;

/// A request of the kernel.
pub struct FuseRequest {
    /// Operation, number and caller.
    pub header: InHeader,
    args: [u8; ARGS_BYTES],
    args_len: usize,
    /// The payload of a write, page aligned.
    pub data: SegList,
}

impl FuseRequest {
    /// The argument, if the request is long enough to hold it.
    pub fn args<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(&self.args[..self.args_len]).ok().map(|(args, _)| args)
    }
}

/// What a receive found.
pub enum ChannelEvent {
    /// A request.
    Request(FuseRequest),
    /// None waits.
    Empty,
    /// The connection ended: unmounted or aborted.
    Gone,
}

/// The device, and the buffers for the next request.
pub struct Channel {
    fd: OwnedFd,
    pool: Pool,
    rungs: Vec<Buf>,
    replies: Replies,
}

impl Channel {
    /// Wraps an open, mounted, non-blocking `/dev/fuse`. `write_bytes_max` is a power of two of at
    /// least a page and at most 1 MiB.
    pub fn new(fd: OwnedFd, pool: Pool, write_bytes_max: usize) -> Self {
        let rungs = ladder(write_bytes_max).map(|bytes| pool.get(bytes)).collect();
        let replies = Replies::new(pool.clone());
        Channel { fd, pool, rungs, replies }
    }

    /// Takes one request.
    pub fn receive(&mut self) -> io::Result<ChannelEvent> {
        let mut head = [0; HEAD_BYTES];
        let count = 1 + self.rungs.len();
        let len = loop {
            let mut pieces: [IoSliceMut; RUNGS_MAX + 1] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            pieces[0] = IoSliceMut::new(&mut head);
            for (piece, rung) in pieces[1..].iter_mut().zip(&mut self.rungs) {
                *piece = IoSliceMut::new(rung);
            }
            match rustix::io::readv(&self.fd, &mut pieces[..count]) {
                Ok(len) => break len,
                // The kernel took the request back while it was being copied.
                Err(Errno::NOENT | Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(ChannelEvent::Empty),
                Err(Errno::NODEV) => return Ok(ChannelEvent::Gone),
                Err(e) => return Err(e.into()),
            }
        };
        let header = match InHeader::read_from_prefix(&head) {
            Ok((header, _)) if len >= size_of::<InHeader>() && header.len as usize == len => header,
            _ => return Err(io::Error::other("the kernel sent a malformed FUSE request")),
        };
        let spilled = len.saturating_sub(HEAD_BYTES);
        let mut args = [0; ARGS_BYTES];
        let in_head = len.min(HEAD_BYTES) - size_of::<InHeader>();
        args[..in_head].copy_from_slice(&head[size_of::<InHeader>()..][..in_head]);
        let mut args_len = in_head;
        let mut data = SegList::new();
        if header.opcode == opcode::WRITE {
            self.take_payload(spilled, &mut data);
        } else {
            let more = spilled.min(ARGS_BYTES - in_head);
            args[in_head..in_head + more].copy_from_slice(&self.rungs[0][..more]);
            args_len += more;
        }
        Ok(ChannelEvent::Request(FuseRequest { header, args, args_len, data }))
    }

    /// Moves the filled buffers out of the ladder and puts fresh ones in their place.
    fn take_payload(&mut self, mut len: usize, data: &mut SegList) {
        for rung in &mut self.rungs {
            if len == 0 {
                break;
            }
            let mut full = std::mem::replace(rung, self.pool.get(rung.len()));
            let take = len.min(full.len());
            full.set_len(take);
            data.push(full.freeze());
            len -= take;
        }
    }

    /// Answers with a fixed structure, when [`Channel::send`] is called.
    pub fn reply(&mut self, unique: u64, body: &[u8]) {
        self.replies.push(&self.fd, unique, 0, body, SegList::new());
    }

    /// Answers with an error (a positive errno), in the same way.
    pub fn reply_error(&mut self, unique: u64, errno: i32) {
        self.replies.push(&self.fd, unique, -errno, &[], SegList::new());
    }

    /// Answers a read, in the same way.
    pub fn reply_data(&mut self, unique: u64, data: SegList) {
        self.replies.push(&self.fd, unique, 0, &[], data);
    }

    /// Sends what was answered since it was last called. Never waits. False if it is to be called again soon.
    pub fn send(&mut self) -> bool {
        self.replies.send(&self.fd)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Buffer sizes that add up to `bytes`, the first a page, the second too, each next the double.
fn ladder(bytes: usize) -> impl Iterator<Item = usize> {
    assert!(
        bytes.is_power_of_two() && (PAGE_BYTES..=PAGE_BYTES << (RUNGS_MAX - 1)).contains(&bytes)
    );
    let doublings = (bytes / PAGE_BYTES).trailing_zeros();
    std::iter::once(PAGE_BYTES).chain((0..doublings).map(|n| PAGE_BYTES << n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_adds_up() {
        for shift in 0..RUNGS_MAX {
            let bytes = PAGE_BYTES << shift;
            let rungs: Vec<usize> = ladder(bytes).collect();
            assert_eq!(rungs.iter().sum::<usize>(), bytes);
            assert_eq!(rungs.len(), shift + 1);
        }
    }

    #[test]
    fn a_write_is_taken_without_a_copy_and_without_much_waste() {
        let pool = Pool::new(16 << 20);
        let device = std::fs::File::open("/dev/null").unwrap();
        let mut channel = Channel::new(device.into(), pool, 1 << 20);
        for len in [1, 4096, 4097, 65536, 100_000, 1 << 20] {
            let first = channel.rungs[0].as_ptr();
            let mut data = SegList::new();
            channel.take_payload(len, &mut data);
            assert_eq!(data.bytes(), len);
            assert_eq!(data.as_slice()[0].as_ptr(), first);
            let pinned: usize = data.iter().map(|segment| segment.pinned_bytes()).sum();
            assert!(pinned <= 2 * len.next_multiple_of(PAGE_BYTES), "{len} pins {pinned}");
            assert!(data.iter().all(|s| (s.as_ptr() as usize).is_multiple_of(PAGE_BYTES)));
        }
    }
}
