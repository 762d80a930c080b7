//! Exports of targets as users name them: `tw://NODE/EXPORT?link=eth1&mtu=9000`,
//! `tw+udp://HOST[:PORT]/EXPORT`.

use std::fmt;
use std::net::Ipv6Addr;

use thinwire_initiator::MEMBERS_MAX;
use thinwire_link::LinkSpec;
use thinwire_link::udp::PORT_DEFAULT as UDP_PORT;

use crate::size::{check_name, parse_mac};

/// The parameters a `tw` URI may have.
const PARAMETERS: [&str; 5] = ["link", "key", "mtu", "members", "integrity"];

/// The smallest and the largest MTU of any carrier (`docs/protocol.md`, "Carrier"; the base of
/// UDP is 1280).
const MTU_MIN: u32 = 1280;
const MTU_MAX: u32 = 65535;

/// An export of a target, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSpec {
    /// Whom to ask.
    pub node: NodeAddress,
    /// The export's name there.
    pub export: String,
    /// The links to use, all of them at once. Empty only for [`NodeAddress::Udp`], where any local
    /// address will do.
    pub links: Vec<LinkSpec>,
    /// The key to show there, a path or a name; else that of the command.
    pub key: Option<String>,
    /// Never use frames for more than this MTU, in bytes.
    pub mtu: Option<u32>,
    /// Sessions that the attachment has side by side, 1 to [`MEMBERS_MAX`].
    pub members: u8,
    /// Data is checked end to end. Default: not.
    pub integrity: Option<bool>,
    /// The URI as it was typed: how it is shown.
    text: String,
}

/// How the target is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeAddress {
    /// By its node name: discovered.
    Name(String),
    /// By its Ethernet address.
    Mac([u8; 6]),
    /// By a host name or IP address (IPv6 without brackets) and a UDP port.
    Udp {
        /// Host name or address, not yet resolved.
        host: String,
        /// UDP port.
        port: u16,
    },
}

/// From what follows `tw://`, or with `udp` `tw+udp://`. `text` is the whole URI.
pub(super) fn parse_remote(text: &str, rest: &str, udp: bool) -> Result<RemoteSpec, String> {
    if let Some(at) = rest.find('#') {
        return Err(format!("`{}`: a fragment means nothing here (write # as %23)", &rest[at..]));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, export) = place.split_once('/').unwrap_or((place, ""));
    let node = if udp { parse_host(authority)? } else { parse_node(authority)? };
    if export.is_empty() {
        return Err("the export is missing; it follows the node as /EXPORT".into());
    }
    let export = decode(export)?;
    check_name("export name", &export).map_err(|e| e.to_string())?;
    let (links, text) = (Vec::new(), text.to_owned());
    let (key, mtu, members, integrity) = (None, None, 0, None);
    let mut spec = RemoteSpec { node, export, links, key, mtu, members, integrity, text };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        parse_parameter(pair, &mut spec)?;
    }
    spec.members = spec.members.max(1);
    if udp && let Some(link) = spec.links.iter().find(|link| !matches!(link, LinkSpec::Udp { .. }))
    {
        return Err(format!(
            "`link={link}`: tw+udp goes over UDP links only, as in link=udp:10.0.0.1"
        ));
    }
    if !udp && spec.links.is_empty() {
        return Err("no link is named; say which interface leads there, as in ?link=eth1".into());
    }
    Ok(spec)
}

fn parse_parameter(pair: &str, spec: &mut RemoteSpec) -> Result<(), String> {
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    let (key, value) = (decode(key)?, decode(value)?);
    match key.as_str() {
        "link" => {
            let link: LinkSpec =
                value.parse().map_err(|e: thinwire_link::SpecError| e.to_string())?;
            if spec.links.iter().any(|other| other.medium() == link.medium()) {
                return Err(format!("`{pair}`: this link is given twice"));
            }
            spec.links.push(link);
        }
        "key" => {
            if spec.key.is_some() {
                return Err(format!("`{pair}`: key is given twice"));
            }
            if value.is_empty() {
                return Err(format!("`{pair}`: give the path of a key, or its name"));
            }
            spec.key = Some(value);
        }
        "mtu" => {
            if spec.mtu.is_some() {
                return Err(format!("`{pair}`: mtu is given twice"));
            }
            let mtu = value.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
            let why = || format!("`{pair}`: mtu must be a number from {MTU_MIN} to {MTU_MAX}");
            spec.mtu = Some(mtu.ok_or_else(why)?);
        }
        "members" => {
            if spec.members > 0 {
                return Err(format!("`{pair}`: members is given twice"));
            }
            let members = value.parse().ok().filter(|members| (1..=MEMBERS_MAX).contains(members));
            let why = || {
                format!(
                    "`{pair}`: members must be a number from 1 to {MEMBERS_MAX}: one session for each shard \
                     that the target spreads the export over"
                )
            };
            spec.members = members.ok_or_else(why)?;
        }
        "integrity" => {
            if spec.integrity.is_some() {
                return Err(format!("`{pair}`: integrity is given twice"));
            }
            spec.integrity = Some(match value.as_str() {
                "on" => true,
                "off" => false,
                _ => return Err(format!("`{pair}`: integrity must be on or off")),
            });
        }
        _ => {
            let known = PARAMETERS.map(|p| format!("`{p}`"));
            let [others @ .., last] = &known;
            let others = others.join(", ");
            return Err(format!("unknown parameter `{key}`; known are {others} and {last}"));
        }
    }
    Ok(())
}

/// The node of a `tw://` URI.
fn parse_node(text: &str) -> Result<NodeAddress, String> {
    if text.is_empty() {
        return Err("the node is missing, as in tw://node1/disk0".into());
    }
    let text = decode(text)?;
    if let Some(mac) = parse_mac(&text) {
        if mac[0] & 1 != 0 {
            return Err(format!("`{text}`: a multicast address is no target"));
        }
        return Ok(NodeAddress::Mac(mac));
    }
    if text.contains(':') {
        return Err(format!(
            "`{text}`: a node is a name or an Ethernet address with dashes \
             (02-00-00-00-00-02); for a host and port use tw+udp://"
        ));
    }
    check_name("node name", &text).map_err(|e| e.to_string())?;
    Ok(NodeAddress::Name(text))
}

/// The host and port of a `tw+udp://` URI.
fn parse_host(text: &str) -> Result<NodeAddress, String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(v6) => {
            let (ip, after) =
                v6.split_once(']').ok_or_else(|| format!("`{text}`: `]` is missing"))?;
            ip.parse::<Ipv6Addr>().map_err(|_| format!("`{ip}` is not an IPv6 address"))?;
            let port = match after {
                "" => None,
                _ => Some(
                    after
                        .strip_prefix(':')
                        .ok_or_else(|| format!("`{after}`: only `:PORT` may follow `]`"))?,
                ),
            };
            (ip.to_owned(), port)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(format!("`{text}`: an IPv6 address needs brackets, as in [::1]"));
            }
            Some((host, port)) => (decode(host)?, Some(port)),
            None => (decode(text)?, None),
        },
    };
    if host.is_empty() {
        return Err("the host is missing, as in tw+udp://10.0.0.2/disk0".into());
    }
    if let Some(c) = host.chars().find(|c| !(c.is_ascii_alphanumeric() || ".-_:".contains(*c))) {
        return Err(format!("`{host}`: {c:?} cannot be in a host name"));
    }
    let port = match port {
        None => UDP_PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| format!("`{port}` is not a UDP port (1 to 65535)"))?,
    };
    Ok(NodeAddress::Udp { host, port })
}

/// Undoes percent-encoding. What comes out must be UTF-8 without control characters.
pub(super) fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|b| char::from(*b).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(format!("`{text}`: two hexadecimal digits must follow `%`"));
        };
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    let decoded = String::from_utf8(bytes).map_err(|_| format!("`{text}`: not UTF-8"))?;
    if decoded.chars().any(char::is_control) {
        return Err(format!("`{text}`: contains a control character"));
    }
    Ok(decoded)
}

impl fmt::Display for RemoteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Name(name) => write!(f, "tw://{name}"),
            NodeAddress::Mac(m) => write!(
                f,
                "tw://{:02x}-{:02x}-{:02x}-{:02x}-{:02x}-{:02x}",
                m[0], m[1], m[2], m[3], m[4], m[5]
            ),
            NodeAddress::Udp { host, port } => {
                let port = if *port == UDP_PORT { String::new() } else { format!(":{port}") };
                if host.contains(':') {
                    write!(f, "tw+udp://[{host}]{port}")
                } else {
                    write!(f, "tw+udp://{host}{port}")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uri::VolumeSpec;

    fn remote(text: &str) -> RemoteSpec {
        match text.parse() {
            Ok(VolumeSpec::Remote(remote)) => remote,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_count_of_members_that_cannot_be_is_told_as_a_sentence() {
        for members in ["0", "17", "two", ""] {
            let text = format!("tw://node1/disk0?link=eth1&members={members}");
            let told = text.parse::<VolumeSpec>().unwrap_err().to_string();
            let expected = format!(
                "`{text}`: `members={members}`: members must be a number from 1 to 16: one session for each shard that \
                 the target spreads the export over"
            );
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn remote_volumes() {
        let spec = remote("tw://node1/disk0?link=eth1&link=packet:eth2&mtu=9000");
        assert_eq!(spec.node, NodeAddress::Name("node1".into()));
        assert_eq!(spec.export, "disk0");
        assert_eq!(spec.links, ["eth1".parse().unwrap(), "packet:eth2".parse().unwrap()]);
        assert_eq!((spec.mtu, spec.members), (Some(9000), 1));
        assert_eq!(remote("tw://node1/disk0?members=16&link=eth1").members, 16);
        let integrity = ["", "&integrity=off", "&integrity=on"]
            .map(|said| remote(&format!("tw://node1/disk0?link=eth1{said}")).integrity);
        assert_eq!(integrity, [None, Some(false), Some(true)]);
        assert_eq!(
            remote("tw://02-00-00-00-00-02/d?link=eth1").node,
            NodeAddress::Mac([2, 0, 0, 0, 0, 2])
        );
        let spec = remote("tw://n/%64isk%30?link=eth%31");
        assert_eq!(
            (spec.export.as_str(), &spec.links),
            ("disk0", &remote("tw://n/d?link=eth1").links)
        );
        assert_eq!(
            remote("tw+udp://10.0.0.2/disk0").node,
            NodeAddress::Udp { host: "10.0.0.2".into(), port: UDP_PORT }
        );
        assert_eq!(
            remote("tw+udp://[fe80::1]:7/disk0?link=udp:[fe80::2]").node,
            NodeAddress::Udp { host: "fe80::1".into(), port: 7 }
        );
    }
}
