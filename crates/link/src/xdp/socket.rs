//! System calls on an AF_XDP socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use super::bpf::AttachMode;
use super::ring::{Consumer, Layout, Producer};
use super::umem::{CHUNK_BYTES, Mapping, Region};
use crate::sys;

/// Missing in libc: how many frames one call may transmit in copy mode (since Linux 6.17; 32 without).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// How long a queue may seem to be in use after whoever had it has closed it.
const REBIND_TIME: Duration = Duration::from_secs(2);
/// Busy polling, where there is an adapter to poll: for how long, in microseconds, and how many
/// frames at once.
const BUSY_POLL_US: i32 = 20;
const BUSY_POLL_FRAMES: i32 = 64;

/// Sizes, in entries of the rings and in chunks; powers of two, but for the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Fill and receive rings.
    pub(super) rx: u32,
    /// Transmit and completion rings, and as many chunks to send from.
    pub(super) tx: u32,
    /// Chunks to receive into.
    pub(super) rx_chunks: u32,
}

/// The four rings of a socket.
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) rx: Consumer<libc::xdp_desc>,
    pub(super) tx: Producer<libc::xdp_desc>,
    pub(super) completion: Consumer<u64>,
}

/// A socket with memory and rings, not yet bound.
pub(super) fn open(region: &Region, headroom: u32, sizes: Sizes) -> io::Result<(OwnedFd, Rings)> {
    let socket = sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0)?;
    let fd = std::os::fd::AsFd::as_fd(&socket);
    let (addr, len) = region.memory();
    let umem = libc::xdp_umem_reg {
        addr,
        len,
        chunk_size: CHUNK_BYTES as u32,
        headroom,
        flags: 0,
        tx_metadata_len: 0,
    };
    let set = |name, value: u32| sys::set_option(fd, libc::SOL_XDP, name, &value);
    sys::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &umem)?;
    set(libc::XDP_UMEM_FILL_RING, sizes.rx)?;
    set(libc::XDP_UMEM_COMPLETION_RING, sizes.tx)?;
    set(libc::XDP_RX_RING, sizes.rx)?;
    set(libc::XDP_TX_RING, sizes.tx)?;
    let _ = set(XDP_MAX_TX_SKB_BUDGET, sizes.tx);
    // In copy mode frames on their way are charged to the socket.
    let bytes = sizes.tx * CHUNK_BYTES as u32;
    sys::set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)?;
    // Four rings, each with four offsets: receive, transmit, fill, completion.
    let offsets = sys::option_numbers::<16>(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
    let layout = |ring: usize| {
        let at = |part: usize| offsets[4 * ring + part] as usize;
        Layout { producer: at(0), consumer: at(1), entries: at(2), flags: at(3) }
    };
    let map = |ring, entries: u32, entry_bytes: usize, offset| {
        let layout = layout(ring);
        let len = layout.entries + entries as usize * entry_bytes;
        Ok::<_, io::Error>((Rc::new(Mapping::of_file(fd, len, offset)?), layout))
    };
    let (desc, addr) = (size_of::<libc::xdp_desc>(), size_of::<u64>());
    let (rx, rx_at) = map(0, sizes.rx, desc, libc::XDP_PGOFF_RX_RING as u64)?;
    let (tx, tx_at) = map(1, sizes.tx, desc, libc::XDP_PGOFF_TX_RING as u64)?;
    let (fill, fill_at) = map(2, sizes.rx, addr, libc::XDP_UMEM_PGOFF_FILL_RING)?;
    let (done, done_at) = map(3, sizes.tx, addr, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
    let rings = Rings {
        fill: Producer::new(fill, fill_at, sizes.rx),
        rx: Consumer::new(rx, rx_at, sizes.rx),
        tx: Producer::new(tx, tx_at, sizes.tx),
        completion: Consumer::new(done, done_at, sizes.tx),
    };
    Ok((socket, rings))
}

/// Binds to a queue of an interface, where a program is attached in this mode: natively without copies
/// if the driver can, else with. `is_split` says that frames do not fit into one chunk. A queue that
/// its last user has only just closed stays in use for a moment: it is tried again for a bounded time.
pub(super) fn bind(
    fd: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    mode: AttachMode,
    is_split: bool,
) -> io::Result<()> {
    let mut flags = libc::XDP_USE_NEED_WAKEUP;
    // The driver could give its frames to a socket without a copy although it does not run the
    // program: then nobody would redirect any.
    if mode == AttachMode::Generic {
        flags |= libc::XDP_COPY;
    }
    if is_split {
        flags |= libc::XDP_USE_SG;
    }
    let mut addr = sys::empty_addr();
    let len = sys::store_addr(
        &mut addr,
        &libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        },
    );
    let start = Instant::now();
    loop {
        match sys::bind(fd, &addr, len) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < REBIND_TIME => {
                thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

/// Whether the kernel moves frames of this bound socket without copying.
pub(super) fn is_zero_copy(fd: BorrowedFd<'_>) -> bool {
    let flags = sys::option_words::<1>(fd, libc::SOL_XDP, libc::XDP_OPTIONS);
    flags.is_ok_and(|[flags]| flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Lets the system calls that send on this socket, or give it chunks to fill, poll the adapter
/// meanwhile, as far as the kernel allows. Waiting does not poll: epoll looks at the rings only, and
/// who sleeps is woken by the adapter's interrupt as ever. Written to the kernel's
/// `Documentation/networking/af_xdp.rst` and `napi.rst`; never run on an adapter.
pub(super) fn poll_busily(fd: BorrowedFd<'_>) {
    let set = |name, value: i32| sys::set_option(fd, libc::SOL_SOCKET, name, &value);
    if set(libc::SO_PREFER_BUSY_POLL, 1).is_ok() && set(libc::SO_BUSY_POLL, BUSY_POLL_US).is_ok() {
        let _ = set(libc::SO_BUSY_POLL_BUDGET, BUSY_POLL_FRAMES);
    }
}

/// Frames that the kernel could not place: no chunk or no room in the ring.
pub(super) fn dropped(fd: BorrowedFd<'_>) -> u64 {
    // Dropped, invalid, invalid to send, ring full, fill ring empty (among the dropped, too),
    // transmit ring empty.
    let numbers = sys::option_numbers::<6>(fd, libc::SOL_XDP, libc::XDP_STATISTICS);
    numbers.map_or(0, |[dropped, invalid, _, full, _, _]| dropped + invalid + full)
}

/// The error that the socket has met, if any, and clears it.
pub(super) fn take_error(fd: BorrowedFd<'_>) -> Option<io::Error> {
    let [errno] = sys::option_words::<1>(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
    (errno != 0).then(|| io::Error::from_raw_os_error(errno as i32))
}

/// Has the kernel look at the transmit ring.
pub(super) fn kick_tx(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: no bytes are read from the null address.
    let sent =
        unsafe { libc::sendto(fd.as_raw_fd(), std::ptr::null(), 0, flags, std::ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the kernel look at the fill ring.
pub(super) fn kick_rx(fd: BorrowedFd<'_>) {
    let null = std::ptr::null_mut();
    // SAFETY: no bytes are written to the null address. What fails now is tried again with the next
    // frames.
    unsafe {
        libc::recvfrom(fd.as_raw_fd(), null, 0, libc::MSG_DONTWAIT, null.cast(), null.cast())
    };
}
