//! A wrapper that writes every frame sent and received to a capture file that tcpdump and Wireshark
//! open.
//!
//! Links hand over frames without the headers below; the wrapper makes them up from the addresses,
//! so that the capture looks like one taken on the wire. Sent frames are captured as they are given
//! to the link, whether or not the kernel takes them.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, LinkInfo, Pool, RxBatch, TxBatch};

use crate::packet::{ETHERTYPE_DEFAULT, GROUP_MAC};
use crate::udp::{GROUP_V4, GROUP_V6, PORT_DEFAULT};
use crate::{ClockSource, Link, LinkSpec, LinkStats, Outgoing, Sources};

/// pcap with times in ns, in the byte order of this machine.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
/// Longest frame with all its headers; nothing is cut.
const SNAP_BYTES: u32 = 262_144;
/// What is collected before it is written.
const BUFFER_BYTES: usize = 1 << 20;

/// A capture file. One may serve all links of a shard: see [`PcapFile::create`].
///
/// If writing fails (a full disk), capturing ends and the links go on; [`PcapFile::error`] tells.
pub struct PcapFile {
    out: Box<dyn Write>,
    clock: ClockSource,
    is_dirty: bool,
    error: Option<io::Error>,
    frames: u64,
    headers: Vec<u8>,
}

/// A capture file as its links share it.
pub type SharedPcap = Rc<RefCell<PcapFile>>;

impl PcapFile {
    /// Makes or overwrites the file. `clock` gives ns since 1970: see [`wall_clock`].
    pub fn create(path: &Path, clock: ClockSource) -> io::Result<SharedPcap> {
        PcapFile::write_to(File::create(path)?, clock)
    }

    /// Captures into anything that takes bytes.
    pub fn write_to(out: impl Write + 'static, clock: ClockSource) -> io::Result<SharedPcap> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
        out.write_all(&MAGIC_NANOSECONDS.to_ne_bytes())?;
        out.write_all(&2u16.to_ne_bytes())?;
        out.write_all(&4u16.to_ne_bytes())?;
        // Time zone and precision: always zero.
        out.write_all(&[0; 8])?;
        out.write_all(&SNAP_BYTES.to_ne_bytes())?;
        out.write_all(&LINKTYPE_ETHERNET.to_ne_bytes())?;
        out.flush()?;
        Ok(Rc::new(RefCell::new(PcapFile {
            out: Box::new(out),
            clock,
            is_dirty: false,
            error: None,
            frames: 0,
            headers: Vec::with_capacity(64),
        })))
    }

    /// How many frames were captured.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Why capturing ended, if it did.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Writes out what is buffered. Links do so when they are idle, and at their end.
    pub fn flush(&mut self) {
        if self.is_dirty && self.error.is_none() {
            self.error = self.out.flush().err();
            self.is_dirty = false;
        }
    }

    /// Appends one frame of the pieces `parts`, seen at `at_ns`, with the headers of `wire`.
    fn capture<'a>(
        &mut self,
        wire: &PcapWire,
        (from, to): (Addr, Addr),
        at_ns: u64,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        if self.error.is_some() {
            return;
        }
        let bytes: usize = parts.clone().map(<[u8]>::len).sum();
        self.headers.clear();
        wire.headers(from, to, bytes, parts.clone(), &mut self.headers);
        let total = (self.headers.len() + bytes) as u32;
        let mut write = || {
            let stamp = [at_ns / 1_000_000_000, at_ns % 1_000_000_000].map(|part| part as u32);
            for word in [stamp[0], stamp[1], total, total] {
                self.out.write_all(&word.to_ne_bytes())?;
            }
            self.out.write_all(&self.headers)?;
            parts.clone().try_for_each(|part| self.out.write_all(part))
        };
        match write() {
            Ok(()) => {
                self.frames += 1;
                self.is_dirty = true;
            }
            Err(e) => self.error = Some(e),
        }
    }
}

impl Drop for PcapFile {
    fn drop(&mut self) {
        self.flush();
    }
}

/// A clock of ns since 1970.
pub fn wall_clock() -> ClockSource {
    Box::new(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| since.as_nanos() as u64)
    })
}

/// What the made-up headers say beyond the addresses.
#[derive(Clone, Debug)]
pub struct PcapWire {
    /// EtherType of raw frames.
    pub ethertype: u16,
    /// 802.1Q VLAN id of raw frames.
    pub vlan: Option<u16>,
    /// Station address of the group.
    pub group: [u8; 6],
    /// UDP port of the group.
    pub group_port: u16,
}

impl Default for PcapWire {
    fn default() -> Self {
        PcapWire {
            ethertype: ETHERTYPE_DEFAULT,
            vlan: None,
            group: GROUP_MAC,
            group_port: PORT_DEFAULT,
        }
    }
}

impl PcapWire {
    /// What fits a link that was opened from `spec`.
    pub fn of(spec: &LinkSpec) -> Self {
        match spec {
            LinkSpec::Raw { vlan, ethertype, .. } => {
                PcapWire { vlan: *vlan, ethertype: *ethertype, ..PcapWire::default() }
            }
            LinkSpec::Udp { .. } => PcapWire::default(),
        }
    }

    fn headers<'a>(
        &self,
        from: Addr,
        to: Addr,
        bytes: usize,
        parts: impl Iterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) {
        match (self.endpoint(from, to), self.endpoint(to, from)) {
            (Some(from), Some(to)) => udp_headers(from, to, bytes, parts, out),
            _ => {
                out.extend_from_slice(&self.station(to));
                out.extend_from_slice(&self.station(from));
                if let Some(vlan) = self.vlan {
                    out.extend_from_slice(&[0x81, 0x00]);
                    out.extend_from_slice(&vlan.to_be_bytes());
                }
                out.extend_from_slice(&self.ethertype.to_be_bytes());
            }
        }
    }

    fn station(&self, addr: Addr) -> [u8; 6] {
        match addr {
            Addr::Mac(mac) => mac,
            Addr::Group => self.group,
            Addr::Sim(n) => sim_station(n),
            Addr::Udp(addr) => ip_station(addr.ip()),
        }
    }

    /// The UDP endpoint, where `other` tells the group's family.
    fn endpoint(&self, addr: Addr, other: Addr) -> Option<SocketAddr> {
        match (addr, other) {
            (Addr::Udp(addr), _) => Some(addr),
            (Addr::Group, Addr::Udp(other)) => {
                let ip = if other.is_ipv4() { GROUP_V4.into() } else { GROUP_V6.into() };
                Some(SocketAddr::new(ip, self.group_port))
            }
            _ => None,
        }
    }
}

/// A locally administered address for a station that has none: `S`, then its number.
fn sim_station(n: u32) -> [u8; 6] {
    let [a, b, c, d] = n.to_be_bytes();
    [0x02, b'S', a, b, c, d]
}

/// The same for an internet address (of an IPv6 one the last part); groups have theirs by rule.
fn ip_station(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            if ip.is_multicast() { [1, 0, 0x5e, b & 0x7f, c, d] } else { [2, b'4', a, b, c, d] }
        }
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            if ip.is_multicast() { [0x33, 0x33, a, b, c, d] } else { [2, b'6', a, b, c, d] }
        }
    }
}

fn udp_headers<'a>(
    from: SocketAddr,
    to: SocketAddr,
    bytes: usize,
    parts: impl Iterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) {
    const UDP: u8 = 17;
    const TTL: u8 = 64;
    out.extend_from_slice(&ip_station(to.ip()));
    out.extend_from_slice(&ip_station(from.ip()));
    let udp_bytes = (8 + bytes).min(65535) as u16;
    let mut udp = [0; 8];
    udp[..2].copy_from_slice(&from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&[0x08, 0x00]);
            let at = out.len();
            let total = udp_bytes.saturating_add(20).to_be_bytes();
            // Version and length, no services; total; no identification, do not fragment.
            out.extend_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0, TTL, UDP, 0, 0]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
            let mut sum = Checksum::default();
            sum.add(&out[at..]);
            out[at + 10..at + 12].copy_from_slice(&sum.value().to_be_bytes());
            // IPv4 allows UDP without a checksum: zero.
        }
        (from, to) => {
            let octets = |ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            out.extend_from_slice(&[0x86, 0xdd]);
            let length = udp_bytes.to_be_bytes();
            out.extend_from_slice(&[0x60, 0, 0, 0, length[0], length[1], UDP, TTL]);
            out.extend_from_slice(&octets(from));
            out.extend_from_slice(&octets(to));
            // IPv6 does not.
            let mut sum = Checksum::default();
            sum.add(&octets(from));
            sum.add(&octets(to));
            sum.add(&[length[0], length[1], 0, UDP]);
            sum.add(&udp);
            parts.for_each(|part| sum.add(part));
            let value = if sum.value() == 0 { 0xffff } else { sum.value() };
            udp[6..].copy_from_slice(&value.to_be_bytes());
        }
    }
    out.extend_from_slice(&udp);
}

/// The internet checksum over pieces of any length.
#[derive(Default)]
struct Checksum {
    sum: u64,
    is_odd: bool,
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.sum += if self.is_odd { u64::from(byte) } else { u64::from(byte) << 8 };
            self.is_odd = !self.is_odd;
        }
    }

    fn value(&self) -> u16 {
        let mut sum = self.sum;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

/// A link whose frames are captured. See the module's text.
pub struct PcapLink<L> {
    inner: L,
    file: SharedPcap,
    wire: PcapWire,
}

impl<L: Link> PcapLink<L> {
    /// Wraps a link.
    pub fn new(inner: L, file: SharedPcap, wire: PcapWire) -> Self {
        PcapLink { inner, file, wire }
    }

    /// The link underneath.
    pub fn inner(&self) -> &L {
        &self.inner
    }
}

impl<L: Link> Link for PcapLink<L> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn info(&self) -> LinkInfo {
        self.inner.info()
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        // What the link could not send before has been captured then.
        let frames = batch.unseen();
        if !frames.is_empty() {
            let file = &mut *self.file.borrow_mut();
            let at_ns = (file.clock)();
            let local = self.inner.info().addr;
            for frame in frames {
                let data = frame.data.iter().map(|segment| &segment[..]);
                let parts = std::iter::once(&frame.head[..]).chain(data);
                file.capture(&self.wire, (local, frame.to), at_ns, parts);
            }
        }
        self.inner.send(batch)
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let before = out.len();
        let count = self.inner.recv(pool, max, out)?;
        let file = &mut *self.file.borrow_mut();
        if count == 0 {
            // Nothing better to do, and perhaps nothing more comes for long.
            file.flush();
            return Ok(0);
        }
        let at_ns = (file.clock)();
        let local = self.inner.info().addr;
        for frame in out.range(before..) {
            let parts = frame.pieces().map(|piece| &piece[..]);
            file.capture(&self.wire, (frame.from, local), at_ns, parts);
        }
        Ok(count)
    }

    fn sources(&self) -> Sources<'_> {
        self.inner.sources()
    }

    fn due_in(&mut self) -> Option<Duration> {
        self.inner.due_in()
    }

    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

impl<L> Drop for PcapLink<L> {
    fn drop(&mut self) {
        self.file.borrow_mut().flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimLink, SimNet, WireConfig};

    #[derive(Clone, Default)]
    struct Memory(Rc<RefCell<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct FullDisk(u32);

    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 1 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn both_ways_are_captured_and_flushed_when_idle() {
        let net = SimNet::new(1, WireConfig { pads: false, ..WireConfig::default() });
        let memory = Memory::default();
        let file = PcapFile::write_to(memory.clone(), Box::new(|| 1_500_000_007)).unwrap();
        let a = net.station(Default::default());
        let mut a = PcapLink::new(a, file.clone(), PcapWire::default());
        let mut b = net.station(Default::default());
        let pool = Pool::new(1 << 20);
        let mut batch = TxBatch::new();
        let frame = batch.push(b.info().addr);
        frame.head.extend_from_slice(b"head");
        frame.data.push(pool.copy_of(b"data").freeze());
        a.send(&mut batch).unwrap();
        batch.push(a.info().addr).head.extend_from_slice(b"back");
        b.send(&mut batch).unwrap();
        net.advance(1_000_000);
        let mut out = RxBatch::new();
        while a.recv(&pool, 64, &mut out).unwrap() > 0 {}
        let bytes = memory.0.borrow();
        assert_eq!(bytes.len(), 24 + (16 + 14 + 8) + (16 + 14 + 4));
        let first = &bytes[24..];
        assert_eq!(first[..4], 1u32.to_ne_bytes());
        assert_eq!(first[4..8], 500_000_007u32.to_ne_bytes());
        assert_eq!(first[8..12], 22u32.to_ne_bytes());
        assert_eq!(first[16..38], *b"\x02S\0\0\0\x01\x02S\0\0\0\0\x88\xb5headdata");
        assert_eq!(first[38 + 16..][..18], *b"\x02S\0\0\0\0\x02S\0\0\0\x01\x88\xb5back");
        assert_eq!(file.borrow().frames(), 2);
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_link() {
        let net = SimNet::new(1, WireConfig::default());
        let file = PcapFile::write_to(FullDisk(0), wall_clock()).unwrap();
        let a = net.station(Default::default());
        let mut a = PcapLink::new(a, file.clone(), PcapWire::default());
        let mut b = net.station(Default::default());
        let pool = Pool::new(1 << 20);
        let mut batch = TxBatch::new();
        for _ in 0..2 {
            batch.push(b.info().addr).head.extend_from_slice(&[1; 9000]);
            a.send(&mut batch).unwrap();
            a.recv(&pool, 1, &mut RxBatch::new()).unwrap();
        }
        assert_eq!(file.borrow().error().map(io::Error::kind), Some(io::ErrorKind::StorageFull));
        net.advance(1_000_000);
        assert_eq!(b.recv(&pool, 64, &mut RxBatch::new()).unwrap(), 2);
    }

    /// A link that takes two frames a call.
    struct Narrow(SimLink);

    impl Link for Narrow {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn info(&self) -> LinkInfo {
            self.0.info()
        }
        fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
            batch.sent(batch.len().min(2));
            Ok(Outgoing::default())
        }
        fn recv(&mut self, _: &Pool, _: usize, _: &mut RxBatch) -> io::Result<usize> {
            Ok(0)
        }
        fn sources(&self) -> Sources<'_> {
            [None; 3]
        }
        fn due_in(&mut self) -> Option<Duration> {
            None
        }
        fn stats(&self) -> LinkStats {
            self.0.stats()
        }
    }

    #[test]
    fn a_frame_is_captured_once_however_often_its_sending_is_tried() {
        let net = SimNet::new(1, Default::default());
        let file = PcapFile::create(Path::new("/dev/null"), Box::new(|| 0)).unwrap();
        let narrow = Narrow(net.station(Default::default()));
        let mut link = PcapLink::new(narrow, file.clone(), PcapWire::default());
        let mut batch = TxBatch::new();
        for frames in [3, 4, 0, 0] {
            for _ in 0..frames {
                batch.push(Addr::Group).head.push(1);
            }
            link.send(&mut batch).unwrap();
        }
        assert!(batch.is_empty());
        assert_eq!(file.borrow().frames(), 7);
    }

    #[test]
    fn checksums_do_not_depend_on_how_bytes_are_cut() {
        let bytes: Vec<u8> = (0..=200).collect();
        let mut whole = Checksum::default();
        whole.add(&bytes);
        let mut cut = Checksum::default();
        for part in [&bytes[..3], &bytes[3..3], &bytes[3..100], &bytes[100..]] {
            cut.add(part);
        }
        assert_eq!(whole.value(), cut.value());
        // The example of RFC 1071: the sum is ddf2.
        let mut known = Checksum::default();
        known.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(known.value(), !0xddf2);
    }
}
