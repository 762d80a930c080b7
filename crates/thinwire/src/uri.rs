//! Volumes as users name them: a path, `file:PATH`, `memory:SIZE`, `null:SIZE`,
//! `tw://NODE/EXPORT?link=eth1&mtu=9000`, `tw+udp://HOST[:PORT]/EXPORT`, or `linear:[VOLUME,...]` of these.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thinwire_link::LinkSpec;
use thinwire_link::udp::PORT_DEFAULT as UDP_PORT;

use crate::error::ParseError;
use crate::size::{check_name, parse_mac, parse_size};

/// The parameters a `tw` URI may have.
const PARAMETERS: [&str; 2] = ["link", "mtu"];

/// The smallest and the largest MTU of any carrier (`docs/protocol.md`, "Carrier"; the base of
/// UDP is 1280).
const MTU_MIN: u32 = 1280;
const MTU_MAX: u32 = 65535;

/// A volume, as named on the command line or in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSpec {
    /// A file or a block device.
    Path(PathBuf),
    /// Memory of this many bytes, lost with the process.
    Memory(u64),
    /// Reads zeroes, forgets writes; this many bytes.
    Null(u64),
    /// The same, completed by another thread: to measure what that costs.
    Switched(u64),
    /// An export of a target.
    Remote(RemoteSpec),
    /// Volumes one behind the other; at least one.
    Linear(Vec<VolumeSpec>),
}

impl VolumeSpec {
    /// What is at the bottom, in order: the volume itself unless it is made of others.
    pub fn leaves(&self) -> Vec<&VolumeSpec> {
        match self {
            VolumeSpec::Linear(children) => children.iter().flat_map(VolumeSpec::leaves).collect(),
            leaf => vec![leaf],
        }
    }

    /// Exports of targets are part of it.
    pub fn has_remote(&self) -> bool {
        self.leaves().iter().any(|leaf| matches!(leaf, VolumeSpec::Remote(_)))
    }

    /// Changes the paths at the bottom.
    pub fn try_map_paths<E>(
        &mut self,
        map: &impl Fn(&Path) -> Result<PathBuf, E>,
    ) -> Result<(), E> {
        match self {
            VolumeSpec::Path(path) => *path = map(path)?,
            VolumeSpec::Linear(children) => {
                children.iter_mut().try_for_each(|child| child.try_map_paths(map))?;
            }
            _ => {}
        }
        Ok(())
    }
}

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
    /// Never use frames for more than this MTU, in bytes.
    pub mtu: Option<u32>,
    /// The URI as it was typed: how it is shown.
    text: String,
}

/// How the target is named.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl FromStr for VolumeSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = |why: &str| Err(ParseError::new(text, why));
        if text.is_empty() {
            return bad(
                "give a volume: a path, file:PATH, memory:SIZE, null:SIZE, linear:[...] or a tw URI",
            );
        }
        // A colon after a slash belongs to a path.
        let scheme = match text.split_once(':') {
            Some((scheme, rest)) if !scheme.contains('/') => (scheme, rest),
            _ => return Ok(VolumeSpec::Path(text.into())),
        };
        match scheme {
            ("file", "") => bad("the path is missing"),
            ("file", path) => Ok(VolumeSpec::Path(path.into())),
            ("memory", size) => Ok(VolumeSpec::Memory(store_size(text, size)?)),
            ("null", size) => Ok(match size.strip_suffix(",switch") {
                Some(size) => VolumeSpec::Switched(store_size(text, size)?),
                None => VolumeSpec::Null(store_size(text, size)?),
            }),
            ("linear", list) => {
                let Some(list) = list.strip_prefix('[').and_then(|list| list.strip_suffix(']'))
                else {
                    return bad("volumes follow in brackets, as in linear:[/srv/a.img,/srv/b.img]");
                };
                let children = split_commas(list);
                let plain = |child: &&String| !child.starts_with(LIST);
                if let Some(child) = children.iter().filter(plain).find(|c| c.contains(['[', ']']))
                {
                    return bad(&format!(
                        "`{child}`: no bracket can stand in the name of one of them"
                    ));
                }
                let children: Result<_, _> = children.iter().map(|child| child.parse()).collect();
                Ok(VolumeSpec::Linear(children?))
            }
            ("tw" | "tw+udp", rest) => {
                let Some(rest) = rest.strip_prefix("//") else {
                    return bad("`//` must follow the scheme, as in tw://node1/disk0?link=eth1");
                };
                let mut spec = parse_remote(rest, scheme.0 == "tw+udp")
                    .map_err(|e| ParseError::new(text, e))?;
                spec.text = text.to_owned();
                Ok(VolumeSpec::Remote(spec))
            }
            (other, _) => bad(&format!(
                "unknown kind of volume `{other}:`; there are file:PATH, memory:SIZE, null:SIZE, \
                 linear:[VOLUME,...], tw://NODE/EXPORT and tw+udp://HOST/EXPORT (a path with a colon: file:{text})"
            )),
        }
    }
}

/// How a list of volumes begins.
const LIST: &str = "linear:";

/// Splits at single commas outside of lists of volumes; a doubled one stands for itself, and inside of a
/// list is left to whoever reads that. At least one part.
pub(crate) fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0usize;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        // Brackets mean nothing in the names of files.
        let is_list = parts.last().is_some_and(|part| part.starts_with(LIST));
        match c {
            '[' if is_list || parts.last().is_some_and(|part| part == LIST) => depth += 1,
            ']' if is_list => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == ',' && depth == 0 && chars.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("never empty").push(c);
        }
    }
    parts
}

fn store_size(whole: &str, size: &str) -> Result<u64, ParseError> {
    let bytes = parse_size(size).map_err(|e| ParseError::new(whole, e.to_string()))?;
    if bytes == 0 {
        return Err(ParseError::new(whole, "the size is zero"));
    }
    if bytes % 512 != 0 {
        return Err(ParseError::new(
            whole,
            format!("{bytes} bytes is not a multiple of the block of 512 bytes"),
        ));
    }
    Ok(bytes)
}

/// What follows `tw://` or `tw+udp://`.
fn parse_remote(rest: &str, udp: bool) -> Result<RemoteSpec, String> {
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
    let mut spec = RemoteSpec { node, export, links: Vec::new(), mtu: None, text: String::new() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        parse_parameter(pair, &mut spec)?;
    }
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
        "mtu" => {
            if spec.mtu.is_some() {
                return Err(format!("`{pair}`: mtu is given twice"));
            }
            let mtu = value.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
            let why = || format!("`{pair}`: mtu must be a number from {MTU_MIN} to {MTU_MAX}");
            spec.mtu = Some(mtu.ok_or_else(why)?);
        }
        _ => {
            return Err(format!(
                "unknown parameter `{key}`; known are {}",
                PARAMETERS.map(|p| format!("`{p}`")).join(" and ")
            ));
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
fn decode(text: &str) -> Result<String, String> {
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

impl VolumeSpec {
    /// The export name of a remote volume; else the last part of the path, or the kind of store.
    /// What an attachment is called unless the user says otherwise.
    pub fn short_name(&self) -> String {
        match self {
            VolumeSpec::Path(path) => {
                path.file_name().map_or("disk".into(), |name| name.to_string_lossy().into_owned())
            }
            VolumeSpec::Memory(_) => "memory".into(),
            VolumeSpec::Null(_) | VolumeSpec::Switched(_) => "null".into(),
            VolumeSpec::Remote(remote) => remote.export.clone(),
            VolumeSpec::Linear(_) => "linear".into(),
        }
    }
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeSpec::Path(path) => write!(f, "file:{}", path.display()),
            VolumeSpec::Memory(bytes) => write!(f, "memory:{bytes}"),
            VolumeSpec::Null(bytes) => write!(f, "null:{bytes}"),
            VolumeSpec::Switched(bytes) => write!(f, "null:{bytes},switch"),
            VolumeSpec::Remote(remote) => remote.fmt(f),
            VolumeSpec::Linear(children) => {
                let child = |child: &VolumeSpec| match child {
                    VolumeSpec::Linear(_) => child.to_string(),
                    leaf => leaf.to_string().replace(',', ",,"),
                };
                write!(f, "linear:[{}]", children.iter().map(child).collect::<Vec<_>>().join(","))
            }
        }
    }
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

    fn remote(text: &str) -> RemoteSpec {
        match text.parse() {
            Ok(VolumeSpec::Remote(remote)) => remote,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn local_volumes() {
        let path = |p: &str| Ok(VolumeSpec::Path(p.into()));
        assert_eq!("/srv/disk0.img".parse(), path("/srv/disk0.img"));
        assert_eq!("disk0.img".parse(), path("disk0.img"));
        assert_eq!("./a:b".parse(), path("./a:b"));
        assert_eq!("file:a:b".parse(), path("a:b"));
        assert_eq!("file:/srv/50%.img".parse(), path("/srv/50%.img"));
        assert_eq!("memory:4G".parse(), Ok(VolumeSpec::Memory(4 << 30)));
        assert_eq!("null:512".parse(), Ok(VolumeSpec::Null(512)));
        assert_eq!("null:512,switch".parse(), Ok(VolumeSpec::Switched(512)));
        assert!("null:512,slow".parse::<VolumeSpec>().is_err());
    }

    #[test]
    fn remote_volumes() {
        let spec = remote("tw://node1/disk0?link=eth1&link=packet:eth2&mtu=9000");
        assert_eq!(spec.node, NodeAddress::Name("node1".into()));
        assert_eq!(spec.export, "disk0");
        assert_eq!(spec.links, ["eth1".parse().unwrap(), "packet:eth2".parse().unwrap()]);
        assert_eq!(spec.mtu, Some(9000));
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

    #[test]
    fn shown_as_they_can_be_typed_again() {
        for text in [
            "tw://node1/disk0?link=eth1&link=udp:10.0.0.1:7&mtu=9000",
            "tw://02-00-00-00-00-0a/disk0?link=packet:eth1",
            "tw+udp://10.0.0.2/disk0",
            "tw+udp://[fe80::1]:7/disk0?link=udp:fe80::2",
            "tw+udp://host.example:7/disk0",
            "file:/srv/disk0.img",
            "memory:4096",
            "null:512",
        ] {
            assert_eq!(text.parse::<VolumeSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("", "give a volume"),
            ("file:", "path is missing"),
            ("memory:", "not a size"),
            ("memory:0", "zero"),
            ("memory:100", "multiple"),
            ("null:4Q", "`4Q`"),
            ("nbd://host/x", "`nbd:`"),
            ("tw:node1/disk0", "`//`"),
            ("tw://", "node is missing"),
            ("tw://node1", "export is missing"),
            ("tw://node1/?link=eth1", "export is missing"),
            ("tw://node1/disk0", "no link"),
            ("tw://node1/a/b?link=eth1", "`a/b`"),
            ("tw://node1/disk0?link=", "interface is missing"),
            ("tw://node1/disk0?link=tcp:eth1", "tcp"),
            ("tw://node1/disk0?link=eth1&link=eth1", "twice"),
            ("tw://node1/disk0?link=eth1&link=packet:eth1", "twice"),
            ("tw://node1/disk0?link=eth1&mtu=100", "`mtu=100`"),
            ("tw://node1/disk0?link=eth1&mtu=1500&mtu=9000", "twice"),
            ("tw://node1/disk0?link=eth1&jumbo=1", "`jumbo`; known are `link` and `mtu`"),
            ("tw://node1/disk0?%zz=1", "%zz"),
            ("tw://node1/disk0%?link=eth1", "hexadecimal"),
            ("tw://node1/disk0%0a?link=eth1", "control"),
            ("tw://node1/disk0%ff?link=eth1", "UTF-8"),
            ("tw://node1/disk0?link=eth1#x", "`#x`"),
            ("tw://node1:80/disk0?link=eth1", "tw+udp://"),
            ("tw://03-00-00-00-00-02/disk0?link=eth1", "multicast"),
            ("tw+udp:///disk0", "host is missing"),
            ("tw+udp://::1/disk0", "brackets"),
            ("tw+udp://[::1/disk0", "`]`"),
            ("tw+udp://[::x]/disk0", "`::x`"),
            ("tw+udp://[::1]7/disk0", "`7`"),
            ("tw+udp://h:0/disk0", "`0`"),
            ("tw+udp://h:99999/disk0", "`99999`"),
            ("tw+udp://u@h/disk0", "'@'"),
            ("tw+udp://h/disk0?link=eth1", "`link=eth1`"),
        ] {
            let error = text.parse::<VolumeSpec>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}
