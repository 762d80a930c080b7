//! The `udp` link: frames as UDP datagrams. Needs no privilege, passes routers, and is the fastest
//! way over virtual networks: a train of frames crosses the kernel in one piece (GSO and GRO).
//!
//! A link listens to its address, and (if it is asked to) to the discovery group on a second socket,
//! because a socket bound to one address does not hear a group.

mod route;
mod rx;
mod tx;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxBatch, TxBatch};

use crate::door::{DOOR_BUFFER_BYTES, Door};
use crate::error::LinkOpenError;
use crate::{FRAME_BYTES_MIN, Link, LinkStats, Outgoing, ShardSteering, Sources, bpf, room, sys};
use route::Route;
use rx::Receiver;
use tx::Sender;

/// The port that targets listen to.
pub const PORT_DEFAULT: u16 = 34997;

/// The IPv4 discovery group: in the block for use within one organisation, `TW` in ASCII.
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 84, 87, 1);

/// The IPv6 discovery group: not permanently assigned, of this network only.
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x5457, 1);

/// What passes everywhere: the smallest IPv6 MTU less its headers.
const FRAME_BYTES_BASE: usize = 1280 - 48;

/// How to open a [`UdpLink`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Address to listen to and to send from. Port 0 takes a free one. The wildcard address
    /// listens to all interfaces; answers then leave with the source that routing chooses.
    pub bind: SocketAddr,
    /// Port of the discovery group, default 34997: where group frames go to and are heard.
    pub group_port: u16,
    /// Whether to hear the discovery group; default: yes if `bind` names a port, as targets do.
    pub group_listen: bool,
    /// Receive buffer to ask for, in bytes; default 4 MiB. The kernel grants up to twice that with
    /// CAP_NET_ADMIN, else up to twice `net.core.rmem_max`. It is memory only while frames wait.
    pub rcvbuf_bytes: u32,
    /// Send buffer to ask for, in bytes; default 4 MiB. What does not fit waits in the batch.
    pub sndbuf_bytes: u32,
    /// If several links, one a shard, are to share the address: which of them this is. They must be
    /// opened in the order of their numbers, and closed together. Without effect on port 0 (each
    /// shard has an address of its own then). Only shard 0 hears the group.
    pub shard: Option<ShardSteering>,
    /// Send trains (GSO) where the kernel can; default true. For comparison only.
    pub gso: bool,
    /// Receive trains (GRO) where the kernel can; default true. For comparison only.
    pub gro: bool,
}

impl UdpConfig {
    /// Defaults for an address.
    pub fn new(bind: SocketAddr) -> Self {
        UdpConfig {
            bind,
            group_port: PORT_DEFAULT,
            group_listen: bind.port() != 0,
            rcvbuf_bytes: 4 << 20,
            sndbuf_bytes: 4 << 20,
            shard: None,
            gso: true,
            gro: true,
        }
    }
}

/// A UDP socket opened for Thinwire's frames.
pub struct UdpLink {
    socket: OwnedFd,
    /// Shard 0 of a target has one, which hears what names no session.
    door_socket: Option<OwnedFd>,
    group_socket: Option<OwnedFd>,
    name: String,
    local: SocketAddr,
    hears_group: bool,
    /// Of the MTU of the interface that owns the address, less the headers; for the wildcard address
    /// of the smallest MTU among the interfaces it stands for. At most 61632: one buffer.
    frame_bytes: FrameSizes,
    asked: u32,
    granted: u32,
    room: Room,
    sender: Sender,
    receiver: Receiver,
    door_receiver: Option<Receiver>,
    group_receiver: Option<Receiver>,
    /// There if one of those two is.
    door: Option<Door>,
    rx_calls: u64,
}

impl UdpLink {
    /// Opens a socket on the address. Needs no privilege.
    pub fn open(config: &UdpConfig) -> Result<UdpLink, LinkOpenError> {
        let route = Route::find(config.bind)?;
        if route.mtu < FRAME_BYTES_MIN {
            return Err(LinkOpenError::MtuTooSmall {
                ifname: route.name,
                mtu: route.mtu,
                min: FRAME_BYTES_MIN,
            });
        }
        let socket = new_socket(config.bind)?;
        let fd = socket.as_fd();
        let shard = config.shard.as_ref().filter(|_| config.bind.port() != 0);
        let door_socket = match shard {
            Some(shard) => bind_shard(fd, config.bind, shard)?,
            None => {
                bind(fd, config.bind)?;
                None
            }
        };
        let local =
            sys::local_addr(fd).map_err(LinkOpenError::system("read the socket's address"))?;
        let buffer = |what| LinkOpenError::system(format!("set the {what} buffer of {local}"));
        let granted =
            sys::set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.rcvbuf_bytes)
                .map_err(buffer("receive"))?;
        sys::set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.sndbuf_bytes)
            .map_err(buffer("send"))?;
        // So that time in our own queue is not taken for time on the wire.
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32);
        if config.gro {
            // Where the kernel cannot, frames come one by one.
            let _ = sys::set_option(fd, libc::SOL_UDP, sys::UDP_GRO, &1i32);
        }

        let group_ip: IpAddr = if local.is_ipv4() { GROUP_V4.into() } else { GROUP_V6.into() };
        let group = SocketAddr::new(group_ip, config.group_port);
        route.send_groups_on(fd, 0);
        // One socket on the wildcard address hears the group itself, if the port is the same.
        let is_same = local.ip().is_unspecified() && local.port() == config.group_port;
        let mut group_socket = None;
        let mut hears_group = false;
        let group_listen = config.group_listen && shard.is_none_or(|shard| shard.index == 0);
        if group_listen && is_same {
            // From here on others may listen to the group on the same port. (Before, a second
            // program on our address would have been let in, too.)
            let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32);
            hears_group = route.join(fd, group_ip);
        } else if group_listen {
            // Discovery is a convenience: whoever names the target's address can do without.
            if let Ok(found) = open_group(group) {
                hears_group = route.join(found.as_fd(), group_ip);
                group_socket = hears_group.then_some(found);
            }
        }
        let outside = || [&door_socket, &group_socket].into_iter().flatten().map(AsFd::as_fd);
        let door = outside().next().map(|_| Door::new(outside())).transpose();
        let door = door.map_err(LinkOpenError::system("wait for greetings"))?;
        let headers = if local.is_ipv4() { 28 } else { 48 };
        let frame_bytes_max = (route.mtu - headers).min(rx::FRAME_BYTES_MAX);
        let frame_bytes = FrameSizes { base: FRAME_BYTES_BASE, max: frame_bytes_max };
        let frame_bytes = frame_bytes.at_most(frame_bytes_max);
        Ok(UdpLink {
            name: format!("udp:{local}"),
            asked: config.rcvbuf_bytes,
            granted,
            local,
            hears_group,
            frame_bytes,
            room: room::udp(granted, frame_bytes_max),
            sender: Sender::new(group, route, config.gso),
            receiver: Receiver::of_trains(),
            door_receiver: door_socket.is_some().then(Receiver::of_door),
            group_receiver: group_socket.is_some().then(Receiver::of_door),
            door,
            socket,
            door_socket,
            group_socket,
            rx_calls: 0,
        })
    }

    /// True if discovery questions reach this link.
    pub fn hears_group(&self) -> bool {
        self.hears_group
    }

    /// True as long as trains are sent in one call: until the kernel or an interface refuses.
    pub fn sends_trains(&self) -> bool {
        self.sender.sends_trains()
    }

    /// What the administrator could do to make this link faster, in a sentence; `None` if nothing.
    pub fn advice(&self) -> Option<String> {
        room::advice(&self.name, self.asked, self.granted, self.room)
    }
}

impl Link for UdpLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> LinkInfo {
        let addr = Addr::Udp(self.local);
        LinkInfo { addr, frame_bytes: self.frame_bytes, room: self.room }
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        let Some(door) = &self.door_socket else {
            let result = self.sender.send(self.socket.as_fd(), batch.frames());
            batch.sent(*result.as_ref().unwrap_or(&batch.len()));
            return result.map(|_| Outgoing::default());
        };
        // What goes to somebody who is not there stays in a socket's memory for seconds, until his neighbours have
        // been asked in vain: in that of the door, where nothing else waits.
        let mut result = Ok(Outgoing::default());
        while let Some(is_outside) = batch.frames().first().map(|frame| frame.is_outside) {
            let frames = batch.frames();
            let count = frames.iter().take_while(|frame| frame.is_outside == is_outside).count();
            let fd = if is_outside { door.as_fd() } else { self.socket.as_fd() };
            match self.sender.send(fd, &frames[..count]) {
                Ok(done) if is_outside => {
                    self.sender.stats.tx_dropped += (count - done) as u64;
                    batch.sent(count);
                }
                Ok(done) => {
                    batch.sent(done);
                    if done < count {
                        break;
                    }
                }
                Err(error) => {
                    batch.sent(batch.len());
                    result = Err(error);
                }
            }
        }
        result
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        self.rx_calls += 1;
        let mut frames = self.receiver.recv(self.socket.as_fd(), pool, max, None, out)?;
        let allowed = self.door.as_mut().map_or(0, |door| door.allows(frames == 0));
        if let Some(door) = self.door.as_mut().filter(|_| allowed > 0) {
            let [hello, group] = [&self.door_socket, &self.group_socket].map(Option::as_ref);
            let outside = [(hello, &mut self.door_receiver), (group, &mut self.group_receiver)];
            let mut most = 0;
            for (socket, receiver) in outside {
                if let (Some(socket), Some(receiver)) = (socket, receiver) {
                    let not_from = Some(self.local);
                    let found = receiver.recv(socket.as_fd(), pool, allowed, not_from, out)?;
                    (frames, most) = (frames + found, most.max(found));
                }
            }
            door.looked(most, allowed, [hello, group].into_iter().flatten().map(AsFd::as_fd));
        }
        Ok(frames)
    }

    fn sources(&self) -> Sources<'_> {
        [Some(self.socket.as_fd()), self.door.as_ref().map(Door::bell), None]
    }

    fn due_in(&mut self) -> Option<Duration> {
        self.door.as_ref().and_then(Door::due_in)
    }

    fn stats(&self) -> LinkStats {
        let mut stats = self.sender.stats;
        stats.rx_calls = self.rx_calls;
        self.receiver.add_to(&mut stats, self.socket.as_fd());
        let outside =
            [(&self.door_socket, &self.door_receiver), (&self.group_socket, &self.group_receiver)];
        for (socket, receiver) in outside {
            if let (Some(socket), Some(receiver)) = (socket, receiver) {
                receiver.add_to(&mut stats, socket.as_fd());
            }
        }
        stats
    }
}

/// A socket that never fragments, and hears only groups that it joined itself.
fn new_socket(addr: SocketAddr) -> Result<OwnedFd, LinkOpenError> {
    let domain = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sys::socket(domain, libc::SOCK_DGRAM, 0)
        .map_err(LinkOpenError::system("open a UDP socket"))?;
    let set = |level, name, value: i32| {
        sys::set_option(socket.as_fd(), level, name, &value)
            .map_err(LinkOpenError::system("set up a UDP socket"))
    };
    if addr.is_ipv4() {
        set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        set(libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 1)?;
    } else {
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 1)?;
        // Newer than IPv6 itself; without it we hear some frames of others' groups.
        let _ = set(libc::IPPROTO_IPV6, route::IPV6_MULTICAST_ALL, 0);
    }
    Ok(socket)
}

fn bind(fd: BorrowedFd<'_>, addr: SocketAddr) -> Result<(), LinkOpenError> {
    let mut raw = sys::empty_addr();
    let len = sys::to_storage(&addr, &mut raw);
    sys::bind(fd, &raw, len).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => LinkOpenError::AddressInUse {
            addr,
            hint: if addr.ip().is_unspecified() {
                ", or one address instead of all (all of them collide with every other link here)"
            } else {
                ""
            },
        },
        io::ErrorKind::AddrNotAvailable => {
            LinkOpenError::AddressNotLocal { addr, existing: route::addresses() }
        }
        _ => LinkOpenError::system(format!("listen on UDP address {addr}"))(e),
    })
}

/// Joins those that share the address, so that frames are given out by shard number. The first makes a socket
/// besides, which gets what names no session.
fn bind_shard(
    fd: BorrowedFd<'_>,
    addr: SocketAddr,
    shard: &ShardSteering,
) -> Result<Option<OwnedFd>, LinkOpenError> {
    if shard.index == 0 {
        // A second program must not slip in among our shards: is the address free for one alone?
        bind(new_socket(addr)?.as_fd(), addr)?;
    }
    let share = |fd| {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1i32)
            .map_err(LinkOpenError::system("share a UDP port among shards"))
    };
    share(fd)?;
    bind(fd, addr)?;
    let door = match shard.index {
        0 => Some(new_socket(addr)?),
        _ => None,
    };
    if let Some(door) = door.as_ref().map(AsFd::as_fd) {
        share(door)?;
        sys::set_buffer(door, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, DOOR_BUFFER_BYTES)
            .map_err(LinkOpenError::system("set the receive buffer for greetings"))?;
        sys::set_buffer(door, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, DOOR_BUFFER_BYTES)
            .map_err(LinkOpenError::system("set the send buffer for answers to greetings"))?;
        bind(door, addr)?;
    }
    bpf::attach_choice(fd, &mut bpf::choose_program(shard))
        .map_err(LinkOpenError::system("steer frames to shards"))?;
    Ok(door)
}

/// A socket that hears the group, beside those of other links on this host.
fn open_group(group: SocketAddr) -> Result<OwnedFd, LinkOpenError> {
    let socket = new_socket(group)?;
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)
        .map_err(LinkOpenError::system("share the group's port"))?;
    bind(socket.as_fd(), group)?;
    Ok(socket)
}
