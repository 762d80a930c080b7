//! The `packet` link: Ethernet frames through AF_PACKET.
//!
//! We receive on a socket of kind `SOCK_DGRAM`: the kernel removes the Ethernet header, so a frame
//! starts exactly where we want it in its buffer. And it removes 802.1Q tags before a socket sees
//! the frame, whether or not the interface does that in hardware.
//!
//! We send on one of kind `SOCK_RAW` and write the header ourselves: only there can be said how much
//! of a frame goes into one piece of kernel memory ([`Envelope`]), and it is bound to its interface,
//! so that the kernel need not look it up for each frame.

mod config;
mod heard;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxBatch, TxBatch, TxFrame};

use crate::bpf::{self, STEERING_FILTERS_MAX, SteeringFilter};
use crate::changes::Changes;
use crate::error::LinkOpenError;
use crate::ethernet::{Envelope, one_piece_max};
use crate::mmsg::{PIECES_MAX, RxSlots, TxSlots};
use crate::room;
use crate::sys::{self, Interface};
use crate::{FRAME_BYTES_MIN, Link, LinkStats, Outgoing, Sources};
pub use config::PacketConfig;
use heard::{DoorSocket, take};

/// The EtherType used unless another is configured: "local experimental 1" of IEEE 802.
pub const ETHERTYPE_DEFAULT: u16 = 0x88b5;

/// The multicast group that discovery questions go to: locally administered, group bit set, then
/// `TW` in ASCII and the group's number. Not reserved anywhere; bridges flood it.
pub const GROUP_MAC: [u8; 6] = [0x03, 0x54, 0x57, 0x00, 0x00, 0x01];
/// Every station: the group of a protocol that has none of its own.
pub const BROADCAST_MAC: [u8; 6] = [0xff; 6];

/// A socket option that libc lacks.
const PACKET_VNET_HDR: libc::c_int = 15;
/// Most messages in one system call, each way.
const BATCH_FRAMES: usize = 64;
/// Memory that waiting receive buffers may take: bounds the batch where frames are huge.
const BATCH_BYTES: usize = 4 << 20;
/// Every byte an Ethernet payload can have, whatever the MTU says.
const FRAME_BYTES_MAX: usize = 65535;
/// How often a send call tries again, in all, when the kernel's queue is full. Each time it spins
/// for about a microsecond: as long as a 10 Gb/s wire takes for a kilobyte.
const RETRIES_PER_SEND: u32 = 16;

/// A changed station address (a bond that fails over, a machine that moves) is noticed after this
/// long, in which nothing that we send can be answered.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks at the interface at most so often because its queue is full.
const LOOK_IF_FULL: Duration = Duration::from_millis(5);

/// An interface opened for Thinwire's frames.
///
/// Goes on when the interface goes down: frames are dropped and counted until it is up again, also
/// when it was removed and made anew under the same name. Until then it listens to what becomes of
/// interfaces ([`Link::sources`]), so that it hears again without sending anything.
pub struct PacketLink {
    socket: OwnedFd,
    /// There if steering tells frames that anybody may send from others.
    door: Option<DoorSocket>,
    /// Sends, and receives nothing.
    sender: OwnedFd,
    name: String,
    config: PacketConfig,
    interface: Interface,
    looked_at: Instant,
    /// The interface is down or gone, or has no carrier.
    is_cut_off: bool,
    /// The interface is not the one that was opened, but one made later.
    is_remade: bool,
    /// Listens while cut off. `None` where that is forbidden (a sandbox without AF_NETLINK): then a
    /// new interface is found with the next frame to send.
    changes: Option<Changes>,
    /// Of the MTU at the time of opening: receive buffers are made for it.
    frame_bytes: FrameSizes,
    granted: u32,
    room: Room,
    tx: TxSlots,
    rx: RxSlots,
    /// Of the frame in each of the slots to send.
    envelopes: Box<[Envelope; BATCH_FRAMES]>,
    /// Frames up to this size, with their header, are taken in as one piece.
    one_piece_max: usize,
    stats: LinkStats,
    /// Drops the kernel told us about; reading its counter clears it.
    rx_dropped: Cell<u64>,
}

impl PacketLink {
    /// Opens the interface. Needs CAP_NET_RAW.
    pub fn open(config: &PacketConfig) -> Result<PacketLink, LinkOpenError> {
        config.check()?;
        let ifname = config.ifname.clone();
        let interface = look_up(&ifname)?;
        // Protocol 0: nothing arrives before the filter is there and the socket bound, and on the
        // one that sends never.
        let open = |kind| match sys::socket(libc::AF_PACKET, kind, 0) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                Err(LinkOpenError::NoPrivilege { ifname: ifname.clone() })
            }
            opened => opened.map_err(LinkOpenError::system("open a packet socket")),
        };
        let (socket, sender) = (open(libc::SOCK_DGRAM)?, open(libc::SOCK_RAW)?);
        sys::set_option(sender.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)
            .map_err(LinkOpenError::system(format!("prepare to send on {ifname}")))?;
        // Neither is needed for correctness, and old kernels lack the second: the filter and the
        // EtherType already keep our own frames out.
        let _ = sys::set_option(sender.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32);
        let fd = socket.as_fd();
        let _ = sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
        // So that time in our own queue is not taken for time on the wire.
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32);
        let buffer = |what| LinkOpenError::system(format!("set the {what} buffer of {ifname}"));
        let granted =
            sys::set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.rcvbuf_bytes)
                .map_err(buffer("receive"))?;
        let sndbuf = config.sndbuf_bytes;
        sys::set_buffer(sender.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, sndbuf)
            .map_err(buffer("send"))?;
        // What an Ethernet frame carries is our frame. Not 1500 as the base: tunnels and provider
        // networks carry a little less, and whole units of payload fit no better into 1500.
        let frame_bytes_max = interface.mtu.min(FRAME_BYTES_MAX);
        let frame_bytes = FrameSizes { base: FRAME_BYTES_MIN, max: frame_bytes_max };
        let frame_bytes = frame_bytes.at_most(frame_bytes_max);
        // 802.1Q frames and mangled ones may exceed the MTU a little: see them whole.
        let start = config.start();
        let buf_bytes = start + frame_bytes_max + 64;
        let slots = (BATCH_BYTES / buf_bytes).clamp(8, BATCH_FRAMES);
        let name = match config.vlan {
            Some(vlan) => format!("packet:{ifname},vlan={vlan}"),
            None => format!("packet:{ifname}"),
        };
        let is_shared = |filter: &SteeringFilter| filter.is_shared();
        let has_door =
            config.steering.iter().any(is_shared) && !config.steering.iter().all(is_shared);
        let door = match has_door {
            true => Some(
                DoorSocket::open(open(libc::SOCK_DGRAM)?, buf_bytes, start)
                    .map_err(buffer("receive"))?,
            ),
            false => None,
        };
        let mut link = PacketLink {
            door,
            frame_bytes,
            granted,
            room: room::packet(granted, frame_bytes_max),
            tx: TxSlots::new(BATCH_FRAMES, 4 * PIECES_MAX),
            rx: RxSlots::new(slots, buf_bytes, start, 0),
            envelopes: Box::new([Envelope::new([0; 6], [0; 6], None, 0, 0, 0); BATCH_FRAMES]),
            one_piece_max: one_piece_max(),
            socket,
            sender,
            name,
            config: config.clone(),
            interface,
            looked_at: Instant::now(),
            is_cut_off: false,
            is_remade: false,
            changes: Changes::new().ok(),
            stats: LinkStats::default(),
            rx_dropped: Cell::new(0),
        };
        link.attach_filter().map_err(LinkOpenError::system(format!("set a filter on {ifname}")))?;
        link.bind().map_err(LinkOpenError::system(format!("listen on {ifname}")))?;
        Ok(link)
    }

    /// Replaces what this link receives: frames that any of `filters` accepts, all if empty. One
    /// link per shard on the same interface, each with its own filters, shares the load (fan-out by
    /// hash would put our EtherType on one socket). At most [`STEERING_FILTERS_MAX`].
    pub fn set_steering(&mut self, filters: &[SteeringFilter]) -> io::Result<()> {
        if filters.len() > STEERING_FILTERS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.config.steering = filters.to_vec();
        self.attach_filter()
    }

    /// With a door, what others may want, too, goes there.
    fn attach_filter(&mut self) -> io::Result<()> {
        let vlan = self.config.vlan.map(|vlan| (vlan, self.config.ethertype));
        let steering = &self.config.steering;
        let Some(door) = &self.door else {
            return bpf::attach(self.socket.as_fd(), &mut bpf::packet_program(vlan, steering));
        };
        let (shared, own): (Vec<_>, Vec<_>) = steering.iter().partition(|f| f.is_shared());
        for (socket, filters) in [(&door.socket, shared), (&self.socket, own)] {
            // No filter would be all frames.
            let filters = if filters.is_empty() { vec![SteeringFilter::NOTHING] } else { filters };
            bpf::attach(socket.as_fd(), &mut bpf::packet_program(vlan, &filters))?;
        }
        Ok(())
    }

    /// Starts to receive, and joins the group. Also after the interface was made anew.
    fn bind(&mut self) -> io::Result<()> {
        let fd = self.socket.as_fd();
        // Only sockets that listen to everything see tags: see bpf.rs.
        let protocol = match self.config.vlan {
            Some(_) => libc::ETH_P_ALL as u16,
            None => self.config.ethertype,
        };
        let mut at = sys::empty_addr();
        let len = sys::store_addr(&mut at, &whole_interface(&self.interface, protocol));
        sys::bind(fd, &at, len)?;
        if let Some(door) = &self.door {
            sys::bind(door.socket.as_fd(), &at, len)?;
        }
        let len = sys::store_addr(&mut at, &whole_interface(&self.interface, 0));
        sys::bind(self.sender.as_fd(), &at, len)?;
        let mut address = [0; 8];
        address[..6].copy_from_slice(&self.config.group);
        let group = libc::packet_mreq {
            mr_ifindex: self.interface.index as libc::c_int,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address: address,
        };
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &group)
    }

    /// What the administrator could do to make this link faster, in a sentence; `None` if nothing.
    pub fn advice(&self) -> Option<String> {
        room::advice(&self.name, self.config.rcvbuf_bytes, self.granted, self.room)
    }

    /// The interface as it was seen last.
    pub(crate) fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Looks at the interface again if it has not been looked at for a while.
    pub(crate) fn look_if_due(&mut self) {
        if self.looked_at.elapsed() > LOOK_EVERY {
            self.look_again();
        }
    }

    /// True if the interface was removed, and another of its name has taken its place.
    pub(crate) fn is_remade(&self) -> bool {
        self.is_remade
    }

    /// Looks at the interface again. It may have another station address, which we write into every
    /// frame; or it may be gone, and made anew under the same name. Cheap enough to be done whenever
    /// a send fails for such a reason. While the interface is away or down, changes are listened to.
    pub(crate) fn look_again(&mut self) {
        let is_usable = self.look();
        if is_usable != self.is_cut_off {
            return;
        }
        self.set_cut_off(!is_usable);
        // Nobody told what happened before we listened.
        if !is_usable && self.look() {
            self.set_cut_off(false);
        }
    }

    /// True if the interface is there, up and connected, and we are bound to it.
    fn look(&mut self) -> bool {
        self.looked_at = Instant::now();
        let found = sys::interface_by(self.socket.as_fd(), &self.config.ifname);
        let Ok(Some(found)) = found else { return false };
        let is_usable = found.is_up && found.is_running;
        if found.index == self.interface.index && self.is_bound() {
            self.interface.mac = found.mac;
        } else if found.is_ethernet {
            let before = std::mem::replace(&mut self.interface, found);
            if self.bind().is_err() {
                self.interface = before;
                return false;
            }
            self.is_remade = true;
        } else {
            return false;
        }
        is_usable
    }

    /// False once the interface that we were bound to is gone, also if its number is in use again.
    fn is_bound(&self) -> bool {
        let name = sys::name_of(self.socket.as_fd()).ok();
        let bound = name.and_then(|name| sys::link_addr(&name)).map(|name| name.sll_ifindex);
        bound == Some(self.interface.index as libc::c_int)
    }

    fn set_cut_off(&mut self, is_cut_off: bool) {
        self.is_cut_off = is_cut_off;
        if let Some(changes) = &self.changes {
            // Refused, it is as if there were none.
            let _ = changes.listen(is_cut_off);
            if !is_cut_off {
                changes.take();
            }
        }
    }

    /// Puts frames from the start of `frames` into empty slots, a slot for a frame; returns how many.
    /// Drops a frame that no kernel takes if it is the first.
    fn load(&mut self, frames: &[TxFrame]) -> usize {
        self.tx.clear();
        for (i, frame) in frames.iter().enumerate() {
            let segments = frame.data.as_slice();
            let pieces = 2 + segments.len();
            let to = match frame.to {
                Addr::Mac(mac) if pieces <= PIECES_MAX => mac,
                Addr::Group if pieces <= PIECES_MAX => self.config.group,
                // An address of another kind of link, or a frame no kernel takes.
                _ if i == 0 => {
                    self.stats.tx_dropped += 1;
                    return 1;
                }
                _ => return i,
            };
            if !self.tx.has_room(pieces) {
                return i;
            }
            let (from, vlan, ethertype) =
                (self.interface.mac, self.config.vlan, self.config.ethertype);
            let envelope = &mut self.envelopes[self.tx.len()];
            *envelope = Envelope::new(to, from, vlan, ethertype, frame.bytes(), self.one_piece_max);
            self.tx.begin(|_| 0);
            self.tx.piece(envelope.as_bytes());
            self.tx.piece(&frame.head);
            for segment in segments {
                self.tx.piece(segment);
            }
        }
        frames.len()
    }

    /// What a receive call found: `None` for nothing, for now. An error means that the link is unusable.
    fn received(&mut self, got: io::Result<usize>) -> io::Result<Option<usize>> {
        let error = match got {
            Ok(got) => return Ok(Some(got)),
            Err(error) => error,
        };
        match error.raw_os_error().unwrap_or(0) {
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL => return Err(error),
            libc::ENETDOWN | libc::ENXIO | libc::ENODEV => self.look_again(),
            _ => {}
        }
        Ok(None)
    }

    /// Sends what is in the slots; returns how many slots that dealt with, all unless the kernel
    /// would block. Frames that it does not take for another reason are dropped.
    fn flush(&mut self, retries: &mut u32) -> io::Result<usize> {
        let mut at = 0;
        while at < self.tx.len() {
            // SAFETY: the slots were loaded from frames that `send` borrows until it returns, and
            // from `envelopes`, which stay where they are.
            match unsafe { self.tx.send(self.sender.as_fd(), at) } {
                Ok(sent) => {
                    self.stats.tx_calls += 1;
                    self.stats.tx_frames += sent as u64;
                    for i in at..at + sent {
                        self.stats.tx_bytes +=
                            self.tx.sent_bytes(i) - self.envelopes[i].as_bytes().len() as u64;
                    }
                    at += sent;
                }
                Err(e) => match e.raw_os_error().unwrap_or(0) {
                    libc::EINTR => {}
                    libc::EAGAIN | libc::ENOBUFS if *retries > 0 => {
                        *retries -= 1;
                        for _ in 0..50 {
                            std::hint::spin_loop();
                        }
                    }
                    code @ (libc::EAGAIN | libc::ENOBUFS) => {
                        // A full queue, unless the carrier is lost, which has no code of its own.
                        if code == libc::ENOBUFS && self.looked_at.elapsed() > LOOK_IF_FULL {
                            self.look_again();
                        }
                        if !self.is_cut_off {
                            return Ok(at);
                        }
                        self.stats.tx_dropped += (self.tx.len() - at) as u64;
                        break;
                    }
                    libc::ENETDOWN | libc::ENXIO | libc::ENODEV => {
                        self.look_again();
                        self.stats.tx_dropped += (self.tx.len() - at) as u64;
                        break;
                    }
                    libc::EBADF | libc::ENOTSOCK | libc::EFAULT => return Err(e),
                    // This frame's own fault (too large for a shrunk MTU, refused by a rule).
                    _ => {
                        self.stats.tx_dropped += 1;
                        at += 1;
                    }
                },
            }
        }
        Ok(self.tx.len())
    }
}

impl Link for PacketLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> LinkInfo {
        let (addr, frame_bytes) = (Addr::Mac(self.interface.mac), self.frame_bytes);
        LinkInfo { addr, frame_bytes, room: self.room }
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        self.look_if_due();
        let mut retries = RETRIES_PER_SEND;
        let mut result = Ok(Outgoing::default());
        while !batch.is_empty() {
            let loaded = self.load(batch.frames());
            let slots = self.tx.len();
            match self.flush(&mut retries) {
                Ok(done) if done == slots => batch.sent(loaded),
                Ok(done) => {
                    batch.sent(done);
                    break;
                }
                Err(error) => {
                    batch.sent(batch.len());
                    result = Err(error);
                }
            }
        }
        self.tx.clear();
        result
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        if self.is_cut_off && self.changes.as_ref().is_some_and(Changes::take) {
            self.look_again();
        }
        self.stats.rx_calls += 1;
        let start = self.config.start();
        let got = self.rx.recv(self.socket.as_fd(), pool, max);
        let mut frames = self
            .received(got)?
            .map_or(0, |got| take(&mut self.rx, got, start, &mut self.stats, out));
        let allowed = self.door.as_mut().map_or(0, |door| door.door.allows(frames == 0));
        if let Some(mut door) = self.door.take_if(|_| allowed > 0) {
            self.stats.rx_calls += 1;
            let got = door.rx.recv(door.socket.as_fd(), pool, allowed);
            let got = self.received(got).map(|got| got.unwrap_or(0));
            if let Ok(got) = got {
                frames += take(&mut door.rx, got, start, &mut self.stats, out);
                door.door.looked(got, allowed, std::iter::once(door.socket.as_fd()));
            }
            self.door = Some(door);
            got?;
        }
        self.stats.rx_frames += frames as u64;
        Ok(frames)
    }

    /// The second is readable when interfaces change while this link waits for its own to return, the third
    /// when somebody is at the door.
    fn sources(&self) -> Sources<'_> {
        let door = self.door.as_ref().map(|door| door.door.bell());
        [Some(self.socket.as_fd()), self.changes.as_ref().map(Changes::fd), door]
    }

    fn due_in(&mut self) -> Option<Duration> {
        self.door.as_ref().and_then(|door| door.door.due_in())
    }

    fn stats(&self) -> LinkStats {
        // Words of tpacket_stats: packets, drops. The kernel clears them when read.
        let counters =
            sys::option_words::<2>(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
        let of_door = self.door.as_ref().map(|door| {
            sys::option_words::<2>(door.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS)
        });
        let of_both = [Some(counters), of_door].into_iter().flatten();
        for [_, dropped] in of_both.flatten() {
            self.rx_dropped.set(self.rx_dropped.get() + u64::from(dropped));
        }
        LinkStats { rx_dropped: self.stats.rx_dropped + self.rx_dropped.get(), ..self.stats }
    }
}

/// The interface of this name, if it can carry frames.
pub(crate) fn look_up(ifname: &str) -> Result<Interface, LinkOpenError> {
    let found = sys::interface(ifname)
        .map_err(LinkOpenError::system(format!("look up interface {ifname}")))?
        .ok_or_else(|| LinkOpenError::NoSuchInterface {
            ifname: ifname.into(),
            existing: sys::interface_names(),
        })?;
    let ifname = || ifname.to_string();
    if !found.is_ethernet {
        return Err(LinkOpenError::NotEthernet { ifname: ifname() });
    }
    if !found.is_up {
        return Err(LinkOpenError::InterfaceDown { ifname: ifname() });
    }
    if found.mtu < FRAME_BYTES_MIN {
        let (mtu, min) = (found.mtu, FRAME_BYTES_MIN);
        return Err(LinkOpenError::MtuTooSmall { ifname: ifname(), mtu, min });
    }
    Ok(found)
}

/// Every station on an interface, for one protocol, in host order; 0: none.
pub(crate) fn whole_interface(interface: &Interface, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface.index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}
