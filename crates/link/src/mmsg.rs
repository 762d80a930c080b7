//! Preallocated message arrays for `sendmmsg` and `recvmmsg`. Warm, a call costs work in
//! proportion to the frames it moves, and allocates nothing.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thinwire_buffer::{Buf, Pool};

use crate::sys;

/// Room for one control message, aligned as the kernel wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 64;

/// A frame that seems to have waited for longer was stamped by another clock.
const WAITED_MAX: Duration = Duration::from_secs(5);

/// Slots of the first receive call. Who greets waits for its answer while their memory is touched for the first time.
const FIRST_SLOTS: usize = 4;

/// More pieces than this in one message are refused by the kernel (`IOV_MAX`).
pub(crate) const PIECES_MAX: usize = 1024;

fn empty_iov() -> libc::iovec {
    libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }
}

fn empty_msg() -> libc::mmsghdr {
    // SAFETY: mmsghdr is plain data for which zero is valid: a message of nothing.
    unsafe { mem::zeroed() }
}

/// Messages being put together for one `sendmmsg`.
pub(crate) struct TxSlots {
    msgs: Vec<libc::mmsghdr>,
    names: Vec<libc::sockaddr_storage>,
    iovs: Vec<libc::iovec>,
    controls: Vec<Control>,
    /// Messages begun.
    len: usize,
    /// Pieces used by all of them.
    iovs_used: usize,
    /// First piece of the message begun last.
    iov_first: usize,
}

impl TxSlots {
    /// Room for `messages`, with together `pieces` pieces (at least [`PIECES_MAX`], so that any
    /// message that may be sent fits into empty slots).
    pub(crate) fn new(messages: usize, pieces: usize) -> Self {
        let pieces = pieces.max(PIECES_MAX);
        TxSlots {
            msgs: vec![empty_msg(); messages],
            names: vec![sys::empty_addr(); messages],
            iovs: vec![empty_iov(); pieces],
            controls: vec![Control([0; CONTROL_BYTES]); messages],
            len: 0,
            iovs_used: 0,
            iov_first: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        (self.len, self.iovs_used, self.iov_first) = (0, 0, 0);
    }

    /// True if a message of `pieces` pieces can be begun.
    pub(crate) fn has_room(&self, pieces: usize) -> bool {
        self.len < self.msgs.len() && self.iovs_used + pieces <= self.iovs.len()
    }

    /// True if the message begun last can grow by `pieces` pieces.
    pub(crate) fn can_grow(&self, pieces: usize) -> bool {
        self.iovs_used + pieces <= self.iovs.len()
            && self.iovs_used - self.iov_first + pieces <= PIECES_MAX
    }

    /// Begins a message; `address` writes where it goes and returns the length of that.
    pub(crate) fn begin(&mut self, address: impl FnOnce(&mut libc::sockaddr_storage) -> u32) {
        let i = self.len;
        let name_len = address(&mut self.names[i]);
        self.iov_first = self.iovs_used;
        let header = &mut self.msgs[i].msg_hdr;
        header.msg_name = (&mut self.names[i] as *mut libc::sockaddr_storage).cast();
        header.msg_namelen = name_len;
        header.msg_control = std::ptr::null_mut();
        header.msg_controllen = 0;
        header.msg_iovlen = 0;
        self.len += 1;
    }

    /// Appends bytes to the message begun last. Only their place is kept.
    pub(crate) fn piece(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.iovs[self.iovs_used] =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        self.iovs_used += 1;
        let header = &mut self.msgs[self.len - 1].msg_hdr;
        header.msg_iov = &mut self.iovs[self.iov_first];
        header.msg_iovlen = (self.iovs_used - self.iov_first) as _;
    }

    /// Makes the message begun last a train of datagrams of `bytes` each (the last may be
    /// shorter).
    pub(crate) fn train_of(&mut self, bytes: u16) {
        let i = self.len - 1;
        let header = &mut self.msgs[i].msg_hdr;
        header.msg_control = self.controls[i].0.as_mut_ptr().cast();
        // SAFETY: only computes a size from a size.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(2) } as _;
        // SAFETY: the control buffer is aligned for cmsghdr, larger than CMSG_SPACE(2), and set as
        // this header's control just above, so the first header and its two data bytes lie in it.
        unsafe {
            let control = libc::CMSG_FIRSTHDR(header);
            (*control).cmsg_level = libc::SOL_UDP;
            (*control).cmsg_type = sys::UDP_SEGMENT;
            (*control).cmsg_len = libc::CMSG_LEN(2) as _;
            libc::CMSG_DATA(control).cast::<u16>().write_unaligned(bytes);
        }
    }

    /// Sends messages `first..`, as many as the kernel takes in one call; returns how many.
    ///
    /// # Safety
    /// All bytes given to [`TxSlots::piece`] since [`TxSlots::clear`] must still be there.
    pub(crate) unsafe fn send(&mut self, fd: BorrowedFd<'_>, first: usize) -> io::Result<usize> {
        // SAFETY: names, pieces and controls point into our own vectors, which never grow, and the
        // pieces to memory that the caller vouches for.
        unsafe { sys::send_many(fd, &mut self.msgs[first..self.len]) }
    }

    /// How many bytes the kernel took of message `i`, which was sent.
    pub(crate) fn sent_bytes(&self, i: usize) -> u64 {
        u64::from(self.msgs[i].msg_len)
    }
}

/// What arrived in one slot.
pub(crate) struct Received {
    /// The memory; data starts at the ring's `start`.
    pub(crate) buf: Buf,
    /// Bytes that arrived, of which at most the buffer's are in `buf`.
    pub(crate) bytes: usize,
    /// True if more arrived than there was room for, and is lost.
    pub(crate) is_truncated: bool,
    /// Segment size if it is a train.
    pub(crate) segment_bytes: Option<usize>,
    /// How long it lay in the kernel.
    pub(crate) waited: Duration,
}

/// Messages waiting to be filled by `recvmmsg`, each with a buffer of its own.
pub(crate) struct RxSlots {
    msgs: Vec<libc::mmsghdr>,
    names: Vec<libc::sockaddr_storage>,
    iovs: Vec<libc::iovec>,
    controls: Vec<Control>,
    bufs: Vec<Option<Buf>>,
    spill: Vec<u8>,
    spill_bytes: usize,
    /// Wall clock at the last receive, as the kernel stamps arrivals.
    received_at: Duration,
    buf_bytes: usize,
    start: usize,
    /// Slots `..spent` gave their buffer away since the last call.
    spent: usize,
    /// Slots `cold..` never had a buffer.
    cold: usize,
    /// Slots in use: twice as many once a call has filled them all.
    in_use: usize,
}

impl RxSlots {
    /// `count` slots with buffers of `buf_bytes`, filled from `start` on. What exceeds a buffer
    /// goes to `spill_bytes` of ordinary memory per slot.
    pub(crate) fn new(count: usize, buf_bytes: usize, start: usize, spill_bytes: usize) -> Self {
        RxSlots {
            msgs: vec![empty_msg(); count],
            names: vec![sys::empty_addr(); count],
            iovs: vec![empty_iov(); 2 * count],
            controls: vec![Control([0; CONTROL_BYTES]); count],
            bufs: (0..count).map(|_| None).collect(),
            spill: vec![0; count * spill_bytes],
            spill_bytes,
            received_at: Duration::ZERO,
            buf_bytes,
            start,
            spent: 0,
            cold: 0,
            in_use: count.min(FIRST_SLOTS),
        }
    }

    /// All are in use from the first call on: whoever asks for so many takes fewer for all that there are.
    pub(crate) fn at_once(self) -> Self {
        RxSlots { in_use: self.count(), ..self }
    }

    pub(crate) fn count(&self) -> usize {
        self.msgs.len()
    }

    fn arm(&mut self, i: usize, pool: &Pool) {
        let buf = self.bufs[i].insert(pool.get(self.buf_bytes));
        let base = buf[self.start..].as_mut_ptr();
        self.iovs[2 * i] =
            libc::iovec { iov_base: base.cast(), iov_len: self.buf_bytes - self.start };
        let mut pieces = 1;
        if self.spill_bytes > 0 {
            let spill = &mut self.spill[i * self.spill_bytes..][..self.spill_bytes];
            self.iovs[2 * i + 1] =
                libc::iovec { iov_base: spill.as_mut_ptr().cast(), iov_len: spill.len() };
            pieces = 2;
        }
        let header = &mut self.msgs[i].msg_hdr;
        header.msg_name = (&mut self.names[i] as *mut libc::sockaddr_storage).cast();
        header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &mut self.iovs[2 * i];
        header.msg_iovlen = pieces as _;
        header.msg_flags = 0;
        header.msg_control = self.controls[i].0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
    }

    /// Receives up to `want` messages in one call into slots from 0 on, fewer while calls have brought few; returns how
    /// many. Each must be fetched with [`RxSlots::take`], in order, before the next call.
    pub(crate) fn recv(
        &mut self,
        fd: BorrowedFd<'_>,
        pool: &Pool,
        want: usize,
    ) -> io::Result<usize> {
        let want = want.clamp(1, self.in_use);
        for i in 0..self.spent {
            self.arm(i, pool);
        }
        self.spent = 0;
        for i in self.cold..want {
            self.arm(i, pool);
        }
        self.cold = self.cold.max(want);
        // SAFETY: slots ..want were armed above or earlier: their pointers lead into buffers held
        // in `bufs` and into our own vectors, which never grow; no reference to them is alive.
        let got = unsafe { sys::recv_many(fd, &mut self.msgs[..want]) }?;
        if got == self.in_use {
            self.in_use = self.count().min(2 * got);
        }
        self.received_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(got)
    }

    /// Who sent what is in slot `i`.
    pub(crate) fn name(&self, i: usize) -> &libc::sockaddr_storage {
        &self.names[i]
    }

    /// What spilled over from slot `i`'s buffer.
    pub(crate) fn spill(&self, i: usize) -> &[u8] {
        &self.spill[i * self.spill_bytes..][..self.spill_bytes]
    }

    /// Takes the content of slot `i`, which the last receive filled.
    pub(crate) fn take(&mut self, i: usize) -> Received {
        debug_assert_eq!(i, self.spent, "slots are taken in order");
        self.spent = i + 1;
        let header = &self.msgs[i].msg_hdr;
        let about = About::of(header);
        Received {
            buf: self.bufs[i].take().expect("an armed slot has a buffer"),
            bytes: self.msgs[i].msg_len as usize,
            is_truncated: header.msg_flags & libc::MSG_TRUNC != 0,
            segment_bytes: about.segment_bytes,
            // The wall clock may be set while we run: such a frame has waited for nothing.
            waited: about
                .arrived
                .and_then(|at| self.received_at.checked_sub(at))
                .filter(|&waited| waited < WAITED_MAX)
                .unwrap_or_default(),
        }
    }
}

/// What the kernel says about a message besides its bytes.
#[derive(Default)]
struct About {
    /// Segment size of a train put together by GRO.
    segment_bytes: Option<usize>,
    /// When it entered the machine, by the wall clock.
    arrived: Option<Duration>,
}

impl About {
    fn of(header: &libc::msghdr) -> About {
        let mut about = About::default();
        // SAFETY: control pointer and length of `header` are as the kernel left them: within our
        // aligned control buffer, filled with whole control messages.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(header);
            while !control.is_null() {
                let data = libc::CMSG_DATA(control);
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::SOL_UDP, sys::UDP_GRO) => {
                        let bytes = data.cast::<libc::c_int>().read_unaligned();
                        about.segment_bytes =
                            usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
                    }
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        let at = data.cast::<libc::timespec>().read_unaligned();
                        about.arrived = Some(Duration::new(at.tv_sec as u64, at.tv_nsec as u32));
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(header, control);
            }
        }
        about
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn slots_come_into_use_as_calls_fill_them() {
        let (from, to) = UnixDatagram::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let pool = Pool::new(1 << 20);
        let new = || RxSlots::new(16, 512, 0, 0);
        for (mut slots, wanted) in [(new(), [4, 8, 16, 2]), (new().at_once(), [16, 14, 0, 0])] {
            for n in 0..30 {
                from.send(&[n; 100]).unwrap();
            }
            let mut next = 0;
            for wanted in wanted {
                let got = slots.recv(to.as_fd(), &pool, 64).unwrap_or(0);
                assert_eq!(got, wanted);
                for i in 0..got {
                    let Received { buf, bytes, .. } = slots.take(i);
                    assert_eq!((buf[0], bytes), (next, 100));
                    next += 1;
                }
            }
        }
    }
}
