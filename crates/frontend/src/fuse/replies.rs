//! Replies, which leave together. The device takes one with each write, so several are as many writes, made
//! in one system call by a ring of io_uring: since the device is non-blocking, the kernel makes each of them
//! in that very call. A single one is written as ever, and so are all where io_uring is refused.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use thinwire_buffer::{Pool, SegList};
use zerocopy::IntoBytes;

use super::abi::{AttrOut, OutHeader};

/// Replies that are kept. A turn has as many, more or less: the others leave earlier.
const SLOTS: usize = 64;

/// The longest reply to anything but a read.
const BODY_BYTES_MAX: usize = size_of::<AttrOut>();

/// Data in more pieces than this is copied into one. 1 MiB in full frames of MTU 9000 fits.
const DATA_PIECES_MAX: usize = 160;

/// With header and body.
const PIECES_MAX: usize = DATA_PIECES_MAX + 2;

/// What replies usually consist of, all together.
const PIECES_USUAL: usize = 16 * SLOTS;

/// How often one call goes back to a kernel that did not take everything. What is left goes with the next.
const TRIES: usize = 8;

/// What a reply is made of.
#[derive(Debug)]
struct Slot {
    header: OutHeader,
    body: [u8; BODY_BYTES_MAX],
    body_len: usize,
    data: SegList,
}

impl Slot {
    const fn new(header: OutHeader, data: SegList) -> Self {
        Slot { header, body: [0; BODY_BYTES_MAX], body_len: 0, data }
    }

    const fn empty() -> Self {
        Slot::new(OutHeader { len: 0, error: 0, unique: 0 }, SegList::new())
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let heads = [self.header.as_bytes(), &self.body[..self.body_len]];
        let data = self.data.iter().map(|segment| &segment[..]);
        heads.into_iter().chain(data).filter(|piece| !piece.is_empty())
    }
}

/// See the [module](self). Belongs to one thread.
pub struct Replies {
    /// `None` where it is refused.
    ring: Option<IoUring>,
    /// Never moved. The kernel reads one until its write has ended.
    slots: Box<[Slot]>,
    free: Vec<usize>,
    /// To be sent, in order.
    queued: Vec<usize>,
    /// Entries of the ring that have not ended.
    sent: usize,
    /// Of what was sent last. The kernel copies them when it takes an entry.
    pieces: Vec<libc::iovec>,
    pool: Pool,
    /// System calls made.
    #[cfg(test)]
    calls: usize,
}

impl Replies {
    /// None yet.
    pub fn new(pool: Pool) -> Self {
        let ring = build().inspect_err(|e| tracing::debug!("FUSE replies go one by one: {e}"));
        Replies {
            ring: ring.ok(),
            slots: (0..SLOTS).map(|_| Slot::empty()).collect(),
            free: (0..SLOTS).rev().collect(),
            queued: Vec::with_capacity(SLOTS),
            sent: 0,
            pieces: Vec::with_capacity(PIECES_USUAL),
            pool,
            #[cfg(test)]
            calls: 0,
        }
    }

    /// Keeps a reply for the next [`Replies::send`]: zero or a negative errno, what it has to say, which is at most
    /// as long as attributes, and the data of a read.
    pub fn push(&mut self, device: &OwnedFd, unique: u64, error: i32, body: &[u8], data: SegList) {
        let mut data = data;
        if data.as_slice().len() > DATA_PIECES_MAX {
            let mut whole = self.pool.get(data.bytes());
            data.copy_to(&mut whole);
            data = SegList::of(whole.freeze());
        }
        let len = (size_of::<OutHeader>() + body.len() + data.bytes()) as u32;
        let header = OutHeader { len, error, unique };
        let mut slot = Slot::new(header, data);
        slot.body_len = body.len();
        slot.body[..body.len()].copy_from_slice(body);
        if self.free.is_empty() {
            self.send(device);
        }
        match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                self.queued.push(at);
            }
            None => self.write(device, &slot),
        }
    }

    /// Sends what is kept. Never waits. False if the kernel did not take all of it: to be called again soon.
    pub fn send(&mut self, device: &OwnedFd) -> bool {
        if self.sent > 0 && !self.submit(device) {
            return false;
        }
        if self.ring.is_none() || self.queued.len() < 2 {
            for nth in 0..self.queued.len() {
                let at = self.queued[nth];
                self.write(device, &self.slots[at]);
                self.release(at);
            }
            self.queued.clear();
            return true;
        }
        self.fill(device);
        self.submit(device)
    }

    /// Puts what is kept into the ring, which has nothing that the kernel did not take.
    fn fill(&mut self, device: &OwnedFd) {
        let Some(ring) = &mut self.ring else { return };
        self.pieces.clear();
        let count = self.queued.iter().map(|&at| self.slots[at].pieces().count()).sum();
        self.pieces.reserve(count);
        for &at in &self.queued {
            let first = self.pieces.len();
            self.pieces.extend(self.slots[at].pieces().map(|piece| libc::iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            }));
            let pieces = &self.pieces[first..];
            let entry = opcode::Writev::new(
                types::Fd(device.as_raw_fd()),
                pieces.as_ptr(),
                pieces.len() as u32,
            );
            // SAFETY: `pieces` has room for all, so it is not moved, and is left alone until the kernel has
            // taken the entry. What they point to stays until the write has ended: slots are not moved, and
            // neither used again nor let go of before that (see `drop`).
            let pushed = unsafe { ring.submission().push(&entry.build().user_data(at as u64)) };
            pushed.expect("it has an entry for each slot");
        }
        self.sent += self.queued.len();
        self.queued.clear();
    }

    /// Has the kernel take what is in the ring, and takes in what has ended. False if some was not taken.
    fn submit(&mut self, device: &OwnedFd) -> bool {
        for _ in 0..TRIES {
            let Some(ring) = &mut self.ring else { return true };
            if ring.submission().is_empty() {
                break;
            }
            #[cfg(test)]
            {
                self.calls += 1;
            }
            let called = ring.submit();
            self.take_in(device);
            match called.map_err(|e| e.raw_os_error()) {
                Ok(_) => {}
                // Interrupted, short of memory for requests, or with ends that wait for room: nothing is lost.
                Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => std::thread::yield_now(),
                Err(e) => panic!("io_uring_enter on a ring of our own: errno {e:?}"),
            }
        }
        self.take_in(device);
        self.ring.as_mut().is_none_or(|ring| ring.submission().is_empty())
    }

    fn take_in(&mut self, device: &OwnedFd) {
        while self.sent > 0 {
            let Some(entry) = self.ring.as_mut().and_then(|ring| ring.completion().next()) else {
                return;
            };
            let at = entry.user_data() as usize;
            self.sent -= 1;
            match entry.result() {
                0.. => {}
                // The kernel would have had this one wait.
                error if [libc::EAGAIN, libc::EINTR].contains(&-error) => {
                    self.write(device, &self.slots[at])
                }
                error => self.refused(device, &self.slots[at], Errno::from_raw_os_error(-error)),
            }
            self.release(at);
        }
    }

    /// Writes one by itself. Never waits.
    fn write(&self, device: &OwnedFd, slot: &Slot) {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let mut count = 0;
        for (to, piece) in pieces.iter_mut().zip(slot.pieces()) {
            *to = IoSlice::new(piece);
            count += 1;
        }
        if let Err(e) = rustix::io::writev(device, &pieces[..count]) {
            self.refused(device, slot, e);
        }
    }

    /// The kernel has not taken one: whoever asked is answered in another way, and does not wait for ever.
    fn refused(&self, device: &OwnedFd, slot: &Slot, error: Errno) {
        // For a list of many pieces it needs memory, before it looks at the reply; for one piece it does not.
        let result = match error {
            Errno::NOMEM => {
                let mut whole = self.pool.get(slot.header.len as usize);
                let mut at = 0;
                for piece in slot.pieces() {
                    whole[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
                rustix::io::write(device, &whole)
            }
            error => Err(error),
        };
        let Err(error) = result else { return };
        if is_unwanted(error) {
            return;
        }
        let (len, unique) = (size_of::<OutHeader>() as u32, slot.header.unique);
        let failed = OutHeader { len, error: -libc::EIO, unique };
        match rustix::io::write(device, failed.as_bytes()) {
            Err(e) if !is_unwanted(e) => {
                tracing::warn!("the kernel takes no FUSE reply: {error}, {e}")
            }
            _ => tracing::warn!("the kernel refused a FUSE reply, whose request fails: {error}"),
        }
    }

    fn release(&mut self, at: usize) {
        self.slots[at].data = SegList::new();
        self.free.push(at);
    }
}

impl Drop for Replies {
    /// Waits for nobody: what the kernel still reads is left to it for good. A device that is non-blocking has
    /// ended all within the call.
    fn drop(&mut self) {
        if self.sent > 0 {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

/// A reply that the kernel no longer wants (interrupted, aborted) is nobody's loss.
fn is_unwanted(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NODEV)
}

/// A ring that works: one may be made where entering it is forbidden.
fn build() -> io::Result<IoUring> {
    let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let entries = SLOTS as u32;
    // All of a call, also behind one that fails (5.18).
    let mut ring = match IoUring::builder().setup_submit_all().build(entries) {
        Err(error) if refused(&error) => IoUring::new(entries),
        other => other,
    }?;
    if !ring.params().is_feature_submit_stable() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: it has no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.expect("it is empty");
    ring.submit_and_wait(1)?;
    ring.completion().for_each(drop);
    Ok(ring)
}

#[cfg(test)]
#[path = "replies_tests.rs"]
mod tests;
