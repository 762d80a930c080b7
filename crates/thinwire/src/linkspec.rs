//! `--link` and `link=`: which way frames go.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::error::ParseError;

/// The UDP port of Thinwire (DESIGN section 4, Carrier).
pub const UDP_PORT: u16 = 34997;

/// The longest interface name that Linux knows (IFNAMSIZ less its zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// One way to move frames, as the user named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkSpec {
    /// `eth1`: the best raw link on this interface.
    Interface(String),
    /// `packet:eth1`: AF_PACKET on this interface.
    Packet(String),
    /// `xdp:eth1`: AF_XDP on this interface.
    Xdp(String),
    /// `udp:ADDRESS[:PORT]`: a UDP socket bound there; port 0 means any free one. `None` when the
    /// user gave no port: a target then uses [`UDP_PORT`], an initiator any free one.
    Udp(IpAddr, Option<u16>),
}

impl FromStr for LinkSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once(':') {
            None => Ok(LinkSpec::Interface(interface(text, text)?)),
            Some(("packet", name)) => Ok(LinkSpec::Packet(interface(name, text)?)),
            Some(("xdp", name)) => Ok(LinkSpec::Xdp(interface(name, text)?)),
            Some(("udp", address)) => {
                let (ip, port) = parse_udp(address).ok_or_else(|| {
                    ParseError::new(
                        text,
                        "not a UDP link: give the local address, as in udp:10.0.0.1, \
                         udp:10.0.0.1:34997 or udp:[fe80::1]:34997",
                    )
                })?;
                Ok(LinkSpec::Udp(ip, port))
            }
            Some((kind, _)) => Err(ParseError::new(
                text,
                format!(
                    "unknown kind of link `{kind}`; there are packet:IFACE, xdp:IFACE, udp:ADDRESS[:PORT] and plain IFACE"
                ),
            )),
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkSpec::Interface(name) => f.write_str(name),
            LinkSpec::Packet(name) => write!(f, "packet:{name}"),
            LinkSpec::Xdp(name) => write!(f, "xdp:{name}"),
            LinkSpec::Udp(IpAddr::V6(ip), None) => write!(f, "udp:[{ip}]"),
            LinkSpec::Udp(ip, None) => write!(f, "udp:{ip}"),
            LinkSpec::Udp(ip, Some(port)) => write!(f, "udp:{}", SocketAddr::new(*ip, *port)),
        }
    }
}

fn interface(name: &str, whole: &str) -> Result<String, ParseError> {
    let bad = |why: String| Err(ParseError::new(whole, format!("not an interface name: {why}")));
    if name.is_empty() {
        return bad("it is empty".into());
    }
    if name.len() > INTERFACE_BYTES_MAX {
        return bad(format!("longer than {INTERFACE_BYTES_MAX} bytes"));
    }
    if name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
    {
        return bad("Linux does not allow such a name".into());
    }
    Ok(name.to_owned())
}

/// `ADDRESS`, `ADDRESS:PORT`, `[V6]` or `[V6]:PORT`; a bare IPv6 address without port as well.
fn parse_udp(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some((ip, None));
    }
    if let Some(ip) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return Some((IpAddr::V6(ip.parse().ok()?), None));
    }
    let address: SocketAddr = text.parse().ok()?;
    Some((address.ip(), Some(address.port())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_round_trip() {
        for text in [
            "eth1",
            "packet:eth1.100",
            "xdp:enp3s0",
            "udp:10.0.0.1",
            "udp:10.0.0.1:34997",
            "udp:[fe80::1]",
            "udp:[fe80::1]:7",
        ] {
            let spec: LinkSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        assert_eq!("udp:::1".parse(), Ok(LinkSpec::Udp("::1".parse().unwrap(), None)));
    }

    #[test]
    fn bad_links_are_named() {
        for text in [
            "",
            "packet:",
            "tcp:eth1",
            "udp:",
            "udp:host",
            "udp:10.0.0.1:99999",
            "a/b",
            "an-interface-too-long",
            "udp:[::1",
            "eth 1",
        ] {
            let error = text.parse::<LinkSpec>().unwrap_err();
            assert_eq!(error.given, text);
        }
    }
}
