//! The text form of a link, as `--link` and `link=` take it.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use crate::fault::{FaultConfig, FaultLink};
use crate::handoff::{HandoffLink, Pipeline};
use crate::packet::{BROADCAST_MAC, ETHERTYPE_DEFAULT, PacketConfig, PacketLink};
use crate::pcap::{PcapLink, PcapWire, SharedPcap};
use crate::survey::hides_vlan;
use crate::udp::{UdpConfig, UdpLink};
use crate::xdp::{XdpConfig, XdpLink};
use crate::{Link, LinkOpenError, ShardSteering, SteeringFilter, best, monotonic_clock, sys};

/// A link that the user asked for:
///
/// * `packet:eth1[,vlan=ID][,ethertype=0xNNNN]`: raw frames on an interface;
/// * `xdp:eth1[,vlan=ID][,ethertype=0xNNNN]`: the same, past the kernel's network stack;
/// * `eth1[,...]`: whichever of the two is faster on that interface ([`mod@crate::survey`]);
/// * `udp:ADDRESS[:PORT]`: UDP, where ADDRESS is one of this machine's (IPv6 with a port goes in
///   brackets; a link-local one names its interface: `udp:fe80::1%eth1`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkSpec {
    /// Raw frames on an interface.
    Raw {
        /// Which of the raw links moves them.
        kind: RawKind,
        /// The interface.
        ifname: String,
        /// 802.1Q VLAN id, if frames are to be tagged.
        vlan: Option<u16>,
        /// EtherType of our frames.
        ethertype: u16,
    },
    /// UDP.
    Udp {
        /// The local address.
        ip: IpAddr,
        /// Scope (interface index) of a link-local IPv6 address, else 0.
        scope: u32,
        /// The local port, if the user chose one: else the side's default.
        port: Option<u16>,
    },
}

/// How raw frames are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawKind {
    /// The faster of the others that works on the interface.
    Best,
    /// AF_PACKET.
    Packet,
    /// AF_XDP.
    Xdp,
}

/// What may be wrapped around a link, and its place among shards.
#[derive(Clone, Default)]
pub struct LinkOptions {
    /// Port of udp links whose text names none: [`crate::udp::PORT_DEFAULT`] on targets; 0, which is
    /// any free one and the default, on initiators.
    pub default_udp_port: u16,
    /// Faults to make. They happen above the capture, which shows what really crossed the wire:
    /// a frame lost in sending is not in it, one lost after it was received is.
    pub fault: Option<FaultConfig>,
    /// Where to capture frames. Several links may share a file.
    pub pcap: Option<SharedPcap>,
    /// This shard, if there are several.
    pub shard: Option<ShardSteering>,
    /// What packet links receive, besides what `shard` says; empty, the default, for everything.
    /// UDP links have a port of their own and need no such thing.
    pub steering: Vec<SteeringFilter>,
    /// Threads that the link gets. None by default. Below capture and faults.
    pub pipeline: Pipeline,
    /// Frames of another protocol than Thinwire's go over it, with heads of so many bytes: then its group is everybody,
    /// and it is a packet link.
    pub foreign_head_bytes: Option<usize>,
}

/// An open link, and what the administrator could do to make it faster, in a sentence, if anything.
pub type Advised = (Box<dyn Link>, Option<String>);

/// Why a text is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "link {text:?}: {why}; a link is an interface (eth1), \
     packet:INTERFACE or xdp:INTERFACE, each with [,vlan=ID][,ethertype=0xNNNN], \
     or udp:ADDRESS[:PORT]"
)]
pub struct SpecError {
    text: String,
    why: String,
}

impl FromStr for LinkSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let fail = |why: String| SpecError { text: text.into(), why };
        match text.split_once(':') {
            Some(("packet", rest)) => raw(RawKind::Packet, rest).map_err(fail),
            Some(("xdp", rest)) => raw(RawKind::Xdp, rest).map_err(fail),
            Some(("udp", rest)) => udp(rest).map_err(fail),
            Some((kind, _)) => Err(fail(format!("unknown kind of link {kind:?}"))),
            None => raw(RawKind::Best, text).map_err(fail),
        }
    }
}

fn raw(kind: RawKind, rest: &str) -> Result<LinkSpec, String> {
    let mut parts = rest.split(',');
    let ifname = parts.next().unwrap_or_default();
    if ifname.is_empty() {
        return Err("the interface is missing".into());
    }
    if ifname.len() > 15 || ifname.contains(|c: char| c == '/' || c.is_whitespace()) {
        return Err(format!("{ifname:?} cannot be the name of an interface"));
    }
    let (mut vlan, mut ethertype) = (None, ETHERTYPE_DEFAULT);
    for part in parts {
        match part.split_once('=') {
            Some(("vlan", value)) => match value.parse() {
                Ok(id @ 1..=4094) => vlan = Some(id),
                _ => return Err(format!("vlan={value} is not a number from 1 to 4094")),
            },
            Some(("ethertype", value)) => {
                let digits = value.strip_prefix("0x").unwrap_or(value);
                match u16::from_str_radix(digits, 16) {
                    Ok(found @ 0x0600..) if found != 0x8100 => ethertype = found,
                    _ => {
                        return Err(format!(
                            "ethertype={value} is not a hexadecimal number from 0600 to ffff \
                             other than 8100"
                        ));
                    }
                }
            }
            _ => return Err(format!("unknown parameter {part:?}")),
        }
    }
    Ok(LinkSpec::Raw { kind, ifname: ifname.into(), vlan, ethertype })
}

fn udp(rest: &str) -> Result<LinkSpec, String> {
    if rest.is_empty() {
        return Err("the address is missing".into());
    }
    // 10.0.0.2, 10.0.0.2:7, fe80::1, fe80::1%eth1, [fe80::1%eth1]:7, [::1]
    let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or("a bracket is not closed")?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(format!("{after:?} after the bracket")),
        }
    } else if rest.matches(':').count() == 1 {
        let (host, port) = rest.split_once(':').expect("just counted");
        (host, Some(port))
    } else {
        (rest, None)
    };
    let port = match port.map(|text| (text, text.parse())) {
        None => None,
        Some((_, Ok(port))) => Some(port),
        Some((text, Err(_))) => return Err(format!("{text:?} is not a port from 0 to 65535")),
    };
    let (host, zone) = match host.split_once('%') {
        Some((host, zone)) => (host, Some(zone)),
        None => (host, None),
    };
    let ip: IpAddr = host.parse().map_err(|_| format!("{host:?} is not an IP address"))?;
    if ip.is_multicast() {
        return Err(format!("{ip} is a multicast address, not one of this machine"));
    }
    let scope = match (ip, zone) {
        (_, None) => 0,
        (IpAddr::V4(_), Some(_)) => return Err("an IPv4 address has no interface".into()),
        (IpAddr::V6(_), Some(zone)) => match zone.parse() {
            Ok(index) => index,
            Err(_) => match sys::interface(zone) {
                Ok(Some(found)) => found.index,
                _ => return Err(format!("there is no interface {zone:?} here")),
            },
        },
    };
    Ok(LinkSpec::Udp { ip, scope, port })
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkSpec::Raw { kind, ifname, vlan, ethertype } => {
                let kind = match kind {
                    RawKind::Best => "",
                    RawKind::Packet => "packet:",
                    RawKind::Xdp => "xdp:",
                };
                write!(f, "{kind}{ifname}")?;
                if let Some(vlan) = vlan {
                    write!(f, ",vlan={vlan}")?;
                }
                if *ethertype != ETHERTYPE_DEFAULT {
                    write!(f, ",ethertype={ethertype:#06x}")?;
                }
                Ok(())
            }
            LinkSpec::Udp { ip, scope, port } => {
                let zone = if *scope == 0 { String::new() } else { format!("%{scope}") };
                match (ip, port) {
                    (IpAddr::V6(ip), Some(port)) => write!(f, "udp:[{ip}{zone}]:{port}"),
                    (ip, Some(port)) => write!(f, "udp:{ip}:{port}"),
                    (ip, None) => write!(f, "udp:{ip}{zone}"),
                }
            }
        }
    }
}

impl LinkSpec {
    /// The local socket address of a UDP link, with `default_port` where the user chose none.
    fn socket_addr(ip: IpAddr, scope: u32, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
        }
    }

    /// The medium that the link is on, whatever moves its frames: `eth1`, `packet:eth1` and `xdp:eth1`
    /// have the same.
    pub fn medium(&self) -> String {
        match self {
            LinkSpec::Raw { .. } => {
                let text = self.to_string();
                text.split_once(':').map_or(text.clone(), |(_, medium)| medium.into())
            }
            LinkSpec::Udp { .. } => self.to_string(),
        }
    }

    /// True if an xdp link of this text may take frames that are meant for `other`, a link of the same
    /// process: this one has no VLAN, that one is on a VLAN of the same interface, and the adapter
    /// takes tags off before a program sees a frame.
    pub fn may_rob(&self, other: &LinkSpec) -> bool {
        let LinkSpec::Raw { ifname: lower, vlan: None, ethertype, .. } = self else { return false };
        let LinkSpec::Raw { ifname, vlan, ethertype: theirs, .. } = other else { return false };
        ethertype == theirs && hides_vlan(lower, (ifname, *vlan))
    }

    /// What a raw link of this text is opened with, for those who want to change something.
    pub fn packet_config(&self) -> Option<PacketConfig> {
        let LinkSpec::Raw { ifname, vlan, ethertype, .. } = self else { return None };
        Some(PacketConfig {
            vlan: *vlan,
            ethertype: *ethertype,
            ..PacketConfig::new(ifname.clone())
        })
    }

    /// What a UDP link of this text is opened with. A target's `default_port` is
    /// [`crate::udp::PORT_DEFAULT`], an initiator's is 0: any free one.
    pub fn udp_config(&self, default_port: u16) -> Option<UdpConfig> {
        let LinkSpec::Udp { ip, scope, port } = self else { return None };
        let port = port.unwrap_or(default_port);
        Some(UdpConfig::new(Self::socket_addr(*ip, *scope, port)))
    }

    /// Opens the link, bare.
    pub fn open(&self, default_udp_port: u16) -> Result<Box<dyn Link>, LinkOpenError> {
        self.open_with(&LinkOptions { default_udp_port, ..LinkOptions::default() })
    }

    /// Opens the link with all that the command line offers.
    pub fn open_with(&self, options: &LinkOptions) -> Result<Box<dyn Link>, LinkOpenError> {
        self.open_advised(options).map(|(link, _)| link)
    }

    /// As [`LinkSpec::open_with`], with what the administrator could do to make the link faster.
    pub fn open_advised(&self, options: &LinkOptions) -> Result<Advised, LinkOpenError> {
        let (mut link, advice): Advised = match self {
            LinkSpec::Raw { kind, .. } => {
                let mut config = self.packet_config().expect("it is a raw link");
                let shard = options.shard.as_ref().map_or(&[][..], |shard| &shard.accepts);
                config.steering = [shard, &options.steering].concat();
                let shards = options.shard.as_ref().map_or(1, |shard| shard.count);
                let mut kind = *kind;
                if let Some(head_bytes) = options.foreign_head_bytes {
                    (config.head_bytes, config.group) = (head_bytes, BROADCAST_MAC);
                    kind = RawKind::Packet;
                }
                open_raw(kind, config, shards)?
            }
            LinkSpec::Udp { .. } => {
                let mut config =
                    self.udp_config(options.default_udp_port).expect("it is a udp link");
                config.shard = options.shard.clone();
                let link = UdpLink::open(&config)?;
                let advice = link.advice();
                (Box::new(link), advice)
            }
        };
        if options.pipeline != Pipeline::default() {
            let threaded = HandoffLink::new(link, options.pipeline);
            link =
                Box::new(threaded.map_err(LinkOpenError::system("start the threads of a link"))?);
        }
        if let Some(file) = &options.pcap {
            link = Box::new(PcapLink::new(link, file.clone(), PcapWire::of(self)));
        }
        if let Some(config) = &options.fault {
            link = Box::new(FaultLink::new(link, config, monotonic_clock()));
        }
        Ok((link, advice))
    }
}

fn open_raw(kind: RawKind, config: PacketConfig, shards: u8) -> Result<Advised, LinkOpenError> {
    match kind {
        RawKind::Packet => {
            let link = PacketLink::open(&config)?;
            let advice = link.advice();
            Ok((Box::new(link), advice))
        }
        RawKind::Best => best::open(config, shards),
        RawKind::Xdp if shards > 1 => Err(LinkOpenError::XdpRefused {
            ifname: config.ifname,
            why: format!("{shards} shards were asked for, and one socket has each of its queues"),
        }),
        RawKind::Xdp => {
            let config = XdpConfig { packet: config, ..XdpConfig::new("") };
            let link = XdpLink::open(&config)?;
            let advice = link.advice();
            Ok((Box::new(link), advice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<LinkSpec, String> {
        text.parse::<LinkSpec>().map_err(|e| e.to_string())
    }

    #[test]
    fn every_form_survives_printing() {
        for (text, printed) in [
            ("eth1", "eth1"),
            ("eth1,vlan=7", "eth1,vlan=7"),
            ("xdp:eth1,vlan=7", "xdp:eth1,vlan=7"),
            ("packet:eth1.100", "packet:eth1.100"),
            ("packet:eth1,vlan=100", "packet:eth1,vlan=100"),
            ("packet:eth1,ethertype=0x88b6,vlan=1", "packet:eth1,vlan=1,ethertype=0x88b6"),
            ("udp:10.0.0.2", "udp:10.0.0.2"),
            ("udp:10.0.0.2:7", "udp:10.0.0.2:7"),
            ("udp:[::1]:7", "udp:[::1]:7"),
            ("udp:[fe80::1%4]:7", "udp:[fe80::1%4]:7"),
            ("udp:::1", "udp:::1"),
            ("udp:fe80::1%4", "udp:fe80::1%4"),
        ] {
            let spec = parse(text).unwrap();
            assert_eq!(spec.to_string(), printed);
            assert_eq!(parse(printed).unwrap(), spec);
        }
    }

    #[test]
    fn errors_name_the_cause_and_the_forms() {
        for (text, cause) in [
            ("", "interface is missing"),
            ("packet:", "interface is missing"),
            ("xdp:", "interface is missing"),
            ("tcp:1.2.3.4", "\"tcp\""),
            ("a-name-that-is-too-long", "cannot be the name"),
            ("eth1,vlan=0", "vlan=0"),
            ("eth1,vlan=4095", "vlan=4095"),
            ("eth1,ethertype=0x8100", "ethertype=0x8100"),
            ("eth1,ethertype=05ff", "ethertype=05ff"),
            ("eth1,speed=9", "\"speed=9\""),
            ("udp:", "address is missing"),
            ("udp:host", "\"host\""),
            ("udp:1.2.3.4:99999", "\"99999\""),
            ("udp:[::1", "bracket"),
            ("udp:[::1]x", "\"x\""),
            ("udp:239.1.1.1", "multicast"),
            ("udp:1.2.3.4%eth0", "no interface"),
            ("udp:fe80::1%nothere", "\"nothere\""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(cause) && error.contains("udp:ADDRESS[:PORT]"), "{error}");
        }
    }

    #[test]
    fn links_on_one_medium_are_told() {
        let medium = |text: &str| parse(text).unwrap().medium();
        for text in ["eth1,vlan=5", "packet:eth1,vlan=5", "xdp:eth1,vlan=5"] {
            assert_eq!(medium(text), "eth1,vlan=5");
        }
        assert_ne!(medium("eth1"), medium("eth1,vlan=5"));
        assert_eq!(medium("udp:[::1]:7"), "udp:[::1]:7");
    }

    #[test]
    fn the_side_chooses_the_port_if_the_user_does_not() {
        let port = |text: &str| parse(text).unwrap().udp_config(9).unwrap().bind.port();
        assert_eq!((port("udp:127.0.0.1"), port("udp:127.0.0.1:0")), (9, 0));
        assert!(parse("eth1").unwrap().udp_config(9).is_none());
    }
}
