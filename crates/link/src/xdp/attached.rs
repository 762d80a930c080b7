//! What an xdp link has at its interface: the program, and a socket for each receive queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::bpf::{self, AttachMode};
use super::program::PASS;
use super::queue::{self, Queue};
use super::{XdpConfig, holder};
use crate::Link;
use crate::error::LinkOpenError;
use crate::packet::PacketLink;
use crate::survey::ethtool;

/// What is attached to the interface: the program, and the sockets it feeds.
pub(super) struct Attached {
    // Before the sockets, so that nothing is redirected to one that is gone.
    attachment: OwnedFd,
    map: OwnedFd,
    /// One for each receive queue, in order; the first one sends.
    pub(super) queues: Vec<Queue>,
    pub(super) mode: AttachMode,
    /// The station address whose frames are taken.
    pub(super) mac: [u8; 6],
}

impl Attached {
    /// Takes what `packet` would receive of frames that nobody else wants.
    pub(super) fn open(config: &XdpConfig, packet: &PacketLink) -> Result<Attached, LinkOpenError> {
        let ifname = &config.packet.ifname;
        let interface = packet.interface();
        let taken = config.taken(interface.mac);
        let frame_bytes_max = packet.info().frame_bytes.max;
        let frame_chunks = queue::chunks_of(frame_bytes_max, taken.header_bytes());
        let refused = |what: &str, error: io::Error| refused(ifname, what, &error);
        let count = ethtool::rx_queues(ifname);
        let map = bpf::socket_map(count).map_err(|e| refused("make a map of sockets", e))?;
        let program = bpf::load(&taken.program(map.as_raw_fd(), PASS))
            .map_err(|e| refused("load its program", e))?;
        // First of all: this is where another link in the same place is found out.
        let (attachment, mode) = attach_patiently(&program, ifname, interface.index)?;
        let mut queues = Vec::new();
        for queue in 0..count {
            let sizes = config.sizes(queue, count, frame_chunks);
            let header = taken.header_bytes();
            let opened = Queue::open(interface.index, queue, mode, frame_bytes_max, header, sizes)
                .map_err(|e| refused(&format!("open a socket on queue {queue}"), e))?;
            bpf::set_socket(map.as_fd(), queue, opened.fd())
                .map_err(|e| refused("enter a socket into its map", e))?;
            queues.push(opened);
        }
        Ok(Attached { attachment, map, queues, mode, mac: interface.mac })
    }

    /// Takes what comes for another station address from now on.
    pub(super) fn set_mac(&mut self, config: &XdpConfig, mac: [u8; 6]) -> io::Result<()> {
        let program = bpf::load(&config.taken(mac).program(self.map.as_raw_fd(), PASS))?;
        bpf::replace(self.attachment.as_fd(), program.as_fd())?;
        self.mac = mac;
        Ok(())
    }
}

/// Attaches natively, or where the driver cannot (at all, or at this MTU), behind it.
fn attach(program: &OwnedFd, index: u32) -> io::Result<(OwnedFd, AttachMode)> {
    let attach = |mode| bpf::attach(program.as_fd(), index, mode).map(|link| (link, mode));
    attach(AttachMode::Native).or_else(|error| match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::ENODEV) => Err(error),
        _ => attach(AttachMode::Generic).map_err(|_| error),
    })
}

/// Attaches, and gives a predecessor that was killed a moment to be gone: while it goes, nobody is seen
/// to hold the interface.
fn attach_patiently(
    program: &OwnedFd,
    ifname: &str,
    index: u32,
) -> Result<(OwnedFd, AttachMode), LinkOpenError> {
    let start = Instant::now();
    loop {
        let error = match attach(program, index) {
            Ok(attached) => return Ok(attached),
            Err(error) => error,
        };
        if !matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) {
            return Err(refused(ifname, "attach its program", &error));
        }
        let holder = match holder::of_interface(index) {
            Some(holder) => format!("process {} ({})", holder.pid, holder.name),
            None if start.elapsed() < holder::LEAVE_TIME => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            None => "another program".into(),
        };
        let why = format!("{holder} has attached XDP to it already, and there is room for one");
        return Err(LinkOpenError::XdpRefused { ifname: ifname.into(), why });
    }
}

fn refused(ifname: &str, what: &str, error: &io::Error) -> LinkOpenError {
    LinkOpenError::XdpRefused {
        ifname: ifname.into(),
        why: match error.raw_os_error() {
            Some(libc::EPERM) => {
                format!("cannot {what}: no permission (CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW)")
            }
            // What the kernel says of memory that may not be locked.
            Some(libc::ENOBUFS) => format!(
                "cannot {what}: it needs more locked memory than is allowed (grant CAP_IPC_LOCK, or \
                 raise the limit: LimitMEMLOCK= in a unit, ulimit -l)"
            ),
            _ => format!("cannot {what}: {error}"),
        },
    }
}
