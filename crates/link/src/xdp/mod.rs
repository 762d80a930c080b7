//! The `xdp` link: Ethernet frames through AF_XDP, which takes them from the driver before the
//! kernel has made anything of them.
//!
//! A small program at the interface redirects the frames of this link, and no others, to sockets of
//! its own, one for each receive queue; they arrive in memory shared with the kernel and stay there
//! until whoever has the payload is done with it. Frames that others on the interface want, too
//! (greetings, discovery, everything to the group), cannot be taken away from them: those pass, and
//! come through a [`PacketLink`] inside, as does everything when the interface was made anew. So any
//! number of packet links work beside one xdp link, and only one xdp link is possible.
//!
//! Frames are copied into shared memory to be sent. In *copy mode* the kernel copies once more, each
//! way; in *zero-copy mode*, which needs a driver that can, it does not.

mod assembler;
mod attached;
mod bpf;
pub(crate) mod holder;
mod program;
mod queue;
mod ring;
mod socket;
mod umem;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use thinwire_buffer::{Addr, LinkInfo, Pool, Room, RxBatch, TxBatch, TxFrame};

use crate::error::LinkOpenError;
use crate::ethernet::ethernet_header;
use crate::packet::{PacketConfig, PacketLink};
use crate::{Link, LinkStats, Outgoing, Sources};
use attached::Attached;
use bpf::AttachMode;
use program::Taken;
use queue::Queue;
use socket::Sizes;

/// The receive path before the sockets (256 frames on veth) is shared with everybody and overflows
/// silently.
const FRAMES_MAX: u32 = 192;
/// The inner link is looked at only so often while frames come through the rings, and then first: a
/// look costs a system call.
const LOOKS_ONE_IN: u32 = 16;
/// Frames taken from it at once: few come that way, and each place keeps a buffer ready.
const INNER_FRAMES_MAX: usize = 16;

/// In how many pieces the largest frame of this MTU arrives.
pub(crate) fn chunks_of(mtu: usize) -> u32 {
    queue::chunks_of(mtu, 14)
}

/// How to open an [`XdpLink`].
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The interface and what is received on it, as for a packet link. Its buffers are those of the
    /// link inside.
    pub packet: PacketConfig,
    /// Entries of the receive ring of each queue: frames of up to 3,776 bytes take one, others one
    /// for each 3,790 bytes begun. A power of two, default 512: 170 frames of MTU 9000. Each costs 4
    /// KiB of locked memory, and all of it is used in turn: with four times as many a bulk read takes
    /// a tenth more CPU time, because the memory is in no cache any more. Not shared out among the
    /// queues, since an adapter that cannot hash our EtherType puts every frame on the same one.
    pub rx_ring: u32,
    /// Chunks, of all queues together, that may be lent out (to stores that write from them) before
    /// frames are copied. Default 1536: 6 MiB. Each costs 4 KiB of locked memory.
    pub rx_lent: u32,
    /// Entries of the transmit ring: frames take one for each 4 KiB begun. A power of two, default
    /// 1024. Each costs 4 KiB of locked memory.
    pub tx_ring: u32,
}

impl XdpConfig {
    /// Defaults for an interface.
    pub fn new(ifname: impl Into<String>) -> Self {
        XdpConfig { packet: PacketConfig::new(ifname), rx_ring: 512, rx_lent: 1536, tx_ring: 1024 }
    }

    /// For one of so many queues. Only the first one sends.
    fn sizes(&self, queue: u32, queues: u32, frame_chunks: u32) -> Sizes {
        let rx = self.rx_ring.max(4 * frame_chunks).next_power_of_two();
        let tx = if queue == 0 { self.tx_ring.next_power_of_two() } else { 1 };
        Sizes { rx, tx, rx_chunks: rx + self.rx_lent / queues }
    }

    /// What a link on the interface with this station address takes.
    fn taken(&self, mac: [u8; 6]) -> Taken<'_> {
        let PacketConfig { ethertype, vlan, ref steering, .. } = self.packet;
        Taken { mac, ethertype, vlan, steering }
    }
}

/// An interface opened for Thinwire's frames, past the kernel's network stack.
///
/// Goes on when the interface goes down: frames are dropped and counted until it is up again. When
/// it was removed and made anew under the same name, it goes on as a packet link does.
pub struct XdpLink {
    attached: Option<Attached>,
    packet: PacketLink,
    name: String,
    config: XdpConfig,
    /// Waits for all descriptors at once.
    all: OwnedFd,
    room: Room,
    looks: u32,
    /// The queue whose frames are taken first, the next time.
    first: usize,
    stats: LinkStats,
    /// Drops of sockets that are closed.
    dropped_before: u64,
}

impl XdpLink {
    /// Opens the interface. Needs CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW, that no other XDP program
    /// is attached to it, and that so much memory may be locked as [`XdpConfig`] asks for (12 MiB, and
    /// 2 MiB for each further queue, by default): CAP_IPC_LOCK, or RLIMIT_MEMLOCK. May wait for the
    /// kernel to let go of a predecessor: up to 1 s, and up to 2 s for each queue.
    pub fn open(config: &XdpConfig) -> Result<XdpLink, LinkOpenError> {
        let packet = PacketLink::open(&config.packet)?;
        let name = packet.name().replacen("packet:", "xdp:", 1);
        let is_shared = |f: &crate::SteeringFilter| f.is_shared();
        let steering = &config.packet.steering;
        // Who asks only, and takes nothing for itself, needs no program.
        let attached = match !steering.is_empty() && steering.iter().all(is_shared) {
            true => None,
            false => Some(Attached::open(config, &packet)?),
        };
        let all = join(&packet, attached.as_ref())
            .map_err(LinkOpenError::system("wait for several sockets"))?;
        let room = attached.as_ref().map_or(packet.info().room, |a| room(config, a, &packet));
        Ok(XdpLink {
            attached,
            packet,
            name,
            config: config.clone(),
            all,
            room,
            looks: 0,
            first: 0,
            stats: LinkStats::default(),
            dropped_before: 0,
        })
    }

    /// How frames move, in words: `native, copy, 1 queue`.
    pub fn mode(&self) -> String {
        let Some(attached) = &self.attached else { return "as a packet link".into() };
        let mode = match attached.mode {
            AttachMode::Native => "native",
            AttachMode::Generic => "generic",
        };
        let is_zero_copy = attached.queues.iter().all(Queue::is_zero_copy);
        let copy = if is_zero_copy { "zero-copy" } else { "copy" };
        let queues = attached.queues.len();
        format!("{mode}, {copy}, {queues} queue{}", if queues == 1 { "" } else { "s" })
    }

    /// What the administrator could do to make this link faster, in a sentence; `None` if nothing.
    pub fn advice(&self) -> Option<String> {
        self.packet.advice()
    }

    /// Takes notice of what became of the interface.
    fn look_if_due(&mut self) {
        self.packet.look_if_due();
        self.follow();
    }

    /// Follows the inner link, which has looked.
    fn follow(&mut self) {
        let mac = self.packet.interface().mac;
        let Some(attached) = &mut self.attached else { return };
        if self.packet.is_remade() {
            // The sockets belong to the one that is gone.
            self.dropped_before += attached.queues.iter().map(Queue::dropped).sum::<u64>();
            self.attached = None;
        } else if attached.mac != mac && attached.set_mac(&self.config, mac).is_err() {
            // Then frames to the new address come through the inner link.
            attached.mac = mac;
        }
    }

    /// What has come to the inner link.
    fn recv_inside(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let max = if self.attached.is_some() { INNER_FRAMES_MAX.min(max) } else { max };
        let frames = self.packet.recv(pool, max, out)?;
        if self.packet.is_remade() {
            self.follow();
        }
        Ok(frames)
    }

    /// What lies in the rings.
    fn recv_from_rings(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> usize {
        let Some(attached) = &mut self.attached else { return 0 };
        self.stats.rx_calls += 1;
        let sends = &mut attached.queues[0];
        // What the kernel could not take has waited long enough: perhaps nothing else is to be
        // sent until it is answered. If it fails, the next send call says so.
        if sends.has_pending() {
            let _ = sends.flush(&mut 0, &mut self.stats);
        }
        let mut frames = 0;
        // In turn, so that one full ring does not keep the others out.
        let (later, sooner) = attached.queues.split_at_mut(self.first);
        for queue in sooner.iter_mut().chain(later) {
            frames += queue.recv(pool, max - frames, out, &mut self.stats);
        }
        self.first = (self.first + 1) % attached.queues.len();
        if frames == 0 {
            // Chunks may have come back.
            attached.queues.iter_mut().for_each(Queue::refill);
        }
        frames
    }

    /// Frames for the first queue's socket; returns how many that dealt with, all unless the kernel
    /// would block.
    fn transmit(&mut self, frames: &[TxFrame]) -> io::Result<usize> {
        let Some(attached) = &mut self.attached else { return Ok(0) };
        let mac = attached.mac;
        let queue = &mut attached.queues[0];
        let PacketConfig { vlan, ethertype, group, .. } = self.config.packet;
        let stats = &mut self.stats;
        let mut retries = Queue::RETRIES;
        // On an interface that is down they stay in the ring, and no more should come to them.
        if queue.has_pending()
            && let Err(error) = queue.flush(&mut retries, stats)
        {
            stats.tx_dropped += frames.len() as u64;
            return Err(error);
        }
        for (i, frame) in frames.iter().enumerate() {
            let to = match frame.to {
                Addr::Mac(mac) => mac,
                Addr::Group => group,
                // An address of another kind of link.
                _ => {
                    stats.tx_dropped += 1;
                    continue;
                }
            };
            let (header, len) = ethernet_header(to, mac, vlan, ethertype);
            let fits = frame.bytes() <= self.packet.info().frame_bytes.max;
            let mut is_loaded = fits && queue.load(&header[..len], frame);
            if fits && !is_loaded {
                if let Err(error) = queue.flush(&mut retries, stats) {
                    stats.tx_dropped += (frames.len() - i) as u64;
                    return Err(error);
                }
                is_loaded = queue.load(&header[..len], frame);
                if !is_loaded {
                    return Ok(i);
                }
            }
            if is_loaded {
                stats.tx_frames += 1;
                stats.tx_bytes += frame.bytes() as u64;
                stats.copied_bytes += frame.data.bytes() as u64;
            } else {
                stats.tx_dropped += 1;
            }
        }
        queue.flush(&mut retries, stats)?;
        Ok(frames.len())
    }
}

fn join(packet: &PacketLink, attached: Option<&Attached>) -> io::Result<OwnedFd> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let queues = attached.iter().flat_map(|a| &a.queues).map(Queue::fd);
    for fd in packet.sources().into_iter().flatten().chain(queues) {
        epoll::add(&all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(all)
}

/// What is sure to fit: into the rings of one queue, since the sender's choice may put all there,
/// and into the inner link.
fn room(config: &XdpConfig, attached: &Attached, packet: &PacketLink) -> Room {
    let frame_bytes_max = packet.info().frame_bytes.max;
    let chunks = queue::chunks_of(frame_bytes_max, config.taken(attached.mac).header_bytes());
    let rx = config.sizes(0, attached.queues.len() as u32, chunks).rx;
    let frames = (rx / chunks).min(FRAMES_MAX).min(packet.info().room.frames);
    Room { frames, bytes: frames * frame_bytes_max as u32 }
}

impl Link for XdpLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> LinkInfo {
        LinkInfo { room: self.room, ..self.packet.info() }
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        self.look_if_due();
        if self.attached.is_none() {
            return self.packet.send(batch);
        }
        let done = self.transmit(batch.frames());
        batch.sent(*done.as_ref().unwrap_or(&batch.len()));
        match done.as_ref().map_err(|e| e.raw_os_error().unwrap_or(0)) {
            Ok(_) => {}
            Err(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => {
                return done.map(|_| Outgoing::default());
            }
            // Down or gone.
            Err(_) => self.packet.look_again(),
        }
        let unsent = self.attached.as_ref().map_or(0, |attached| attached.queues[0].unsent());
        Ok(Outgoing { unsent, ..Outgoing::default() })
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let mut frames = 0;
        self.looks = self.looks.wrapping_add(1);
        // First, so that full rings do not keep greetings out for ever.
        let looks_inside = self.looks % LOOKS_ONE_IN == 0;
        if looks_inside {
            frames += self.recv_inside(pool, max, out)?;
        }
        frames += self.recv_from_rings(pool, max - frames, out);
        if frames == 0 && !looks_inside {
            frames += self.recv_inside(pool, max, out)?;
        }
        if frames == 0
            && let Some(attached) = &mut self.attached
        {
            // Woken for nothing: a socket has an error to tell, which would wake us forever.
            let errors = attached.queues.iter().filter_map(Queue::take_error);
            if errors.count() > 0 {
                self.packet.look_again();
                self.look_if_due();
            }
        }
        Ok(frames)
    }

    /// Looks into the rings, which are memory.
    fn probe(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        match self.attached {
            Some(_) => Ok(self.recv_from_rings(pool, max, out)),
            None => self.recv(pool, max, out),
        }
    }

    fn sources(&self) -> Sources<'_> {
        [Some(self.all.as_fd()), None, None]
    }

    fn due_in(&mut self) -> Option<Duration> {
        self.packet.due_in()
    }

    fn stats(&self) -> LinkStats {
        let (own, inner) = (self.stats, self.packet.stats());
        let dropped: u64 = self.attached.iter().flat_map(|a| &a.queues).map(Queue::dropped).sum();
        LinkStats {
            tx_frames: own.tx_frames + inner.tx_frames,
            tx_bytes: own.tx_bytes + inner.tx_bytes,
            tx_calls: own.tx_calls + inner.tx_calls,
            tx_dropped: own.tx_dropped + inner.tx_dropped,
            rx_frames: own.rx_frames + inner.rx_frames,
            rx_bytes: own.rx_bytes + inner.rx_bytes,
            rx_calls: own.rx_calls + inner.rx_calls,
            rx_dropped: own.rx_dropped + inner.rx_dropped + dropped + self.dropped_before,
            copied_bytes: own.copied_bytes + inner.copied_bytes,
            handoffs: 0,
        }
    }
}
