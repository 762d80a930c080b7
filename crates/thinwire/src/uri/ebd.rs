//! Devices of an EBD server as users name them: `ebd://MAC/MAJOR.MINOR?link=eth1&form=ideal&block=4096`
//! (`docs/ebd.md`).

use std::fmt;

use thinwire_link::{LinkSpec, RawKind};
use thinwire_wire::ebd::{ETHERTYPE_DEFAULT, EbdForm};

use super::remote::decode;
use crate::size::parse_mac;

/// The largest block, in bytes: what a length of 8 bits counts in sectors, twice in the least credit of the idealised
/// form, as a power of two.
const BLOCK_BYTES_MAX: u32 = 32 << 10;

/// A device that a server of EBD has, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EbdSpec {
    /// The server's station.
    pub station: [u8; 6],
    /// The device there.
    pub major: u8,
    /// The device there.
    pub minor: u8,
    /// Where its frames come and go.
    pub link: LinkSpec,
    /// Which form is spoken.
    pub form: EbdForm,
    /// The block to ask for, in bytes; else what the link carries.
    pub block_bytes: Option<u32>,
    /// The URI as it was typed: how it is shown.
    text: String,
}

/// A device as a user names it: `MAJOR.MINOR`.
pub(crate) fn parse_device(text: &str) -> Option<(u8, u8)> {
    let number = |text: &str| text.parse::<u8>().ok();
    text.split_once('.').and_then(|(a, b)| Some((number(a)?, number(b)?)))
}

/// The link on which another protocol is spoken, of an interface.
pub(crate) fn plain_link(ifname: String, ethertype: u16) -> LinkSpec {
    LinkSpec::Raw { kind: RawKind::Packet, ifname, vlan: None, ethertype }
}

/// The interface that a user names for another protocol.
pub(crate) fn parse_plain_interface(protocol: &str, text: &str) -> Result<String, String> {
    if text.contains([':', ',']) {
        return Err(format!(
            "`{text}`: {protocol} is spoken on an Ethernet interface through the kernel's packet sockets, so give its name \
             alone, as in eth1"
        ));
    }
    let link: Result<LinkSpec, _> = format!("packet:{text}").parse();
    match link {
        Ok(LinkSpec::Raw { ifname, .. }) => Ok(ifname),
        Ok(_) => unreachable!("packet: is raw"),
        Err(error) => Err(error.to_string()),
    }
}

/// An EtherType, in hexadecimal digits.
pub(crate) fn parse_ethertype(value: &str) -> Result<u16, String> {
    let link: Result<LinkSpec, _> = format!("packet:x,ethertype={value}").parse();
    match link {
        Ok(LinkSpec::Raw { ethertype, .. }) => Ok(ethertype),
        _ => Err(format!(
            "ethertype={value} is not a hexadecimal number from 0600 to ffff other than 8100"
        )),
    }
}

/// From what follows `ebd://`. `text` is the whole URI.
pub(super) fn parse_ebd(text: &str, rest: &str) -> Result<EbdSpec, String> {
    if let Some(at) = rest.find('#') {
        return Err(format!("`{}`: a fragment means nothing here", &rest[at..]));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (station, device) = place.split_once('/').unwrap_or((place, ""));
    let Some(mac) = parse_mac(station) else {
        return Err(format!(
            "`{station}` is no Ethernet address with dashes, as in 02-00-00-00-00-02; EBD knows no names"
        ));
    };
    if mac[0] & 1 != 0 {
        return Err(format!("`{station}`: a multicast address is no server"));
    }
    let Some((major, minor)) = parse_device(device) else {
        return Err(format!(
            "`{device}` is no device: MAJOR.MINOR follows the address, each from 0 to 255, as in \
             ebd://02-00-00-00-00-02/3.1"
        ));
    };
    let (mut ifname, mut ethertype, mut form, mut block_bytes) = (None, None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decode(key)?, decode(value)?);
        let is_first = match key.as_str() {
            "link" => ifname.replace(parse_plain_interface("EBD", &value)?).is_none(),
            "ethertype" => ethertype.replace(parse_ethertype(&value)?).is_none(),
            "form" => form.replace(parse_form(&value)?).is_none(),
            "block" => block_bytes.replace(parse_block(&value)?).is_none(),
            _ => {
                return Err(format!(
                    "unknown parameter `{key}`; known are `link`, `form`, `block` and `ethertype`"
                ));
            }
        };
        if !is_first {
            return Err(format!("`{pair}`: {key} is given twice"));
        }
    }
    let Some(ifname) = ifname else {
        return Err("no link is named; say which interface leads there, as in ?link=eth1".into());
    };
    Ok(EbdSpec {
        station: mac,
        major,
        minor,
        link: plain_link(ifname, ethertype.unwrap_or(ETHERTYPE_DEFAULT)),
        form: form.unwrap_or(EbdForm::Implemented),
        block_bytes,
        text: text.to_owned(),
    })
}

fn parse_form(value: &str) -> Result<EbdForm, String> {
    match value {
        "ideal" => Ok(EbdForm::Ideal),
        "implemented" => Ok(EbdForm::Implemented),
        _ => Err(format!("`form={value}`: form must be ideal or implemented")),
    }
}

fn parse_block(value: &str) -> Result<u32, String> {
    let bytes = crate::size::parse_size(value).ok();
    let fits = |bytes: &u64| *bytes > 0 && bytes % 512 == 0 && *bytes <= BLOCK_BYTES_MAX.into();
    match bytes.filter(fits) {
        Some(bytes) => Ok(bytes as u32),
        None => Err(format!(
            "`block={value}`: a block has a multiple of 512 bytes, up to {BLOCK_BYTES_MAX}; one goes into each frame"
        )),
    }
}

impl EbdSpec {
    /// The block to ask for on a link whose frames carry so many bytes behind the header.
    pub fn block_for(&self, payload_bytes: usize) -> u32 {
        let carried = u32::try_from(payload_bytes).unwrap_or(u32::MAX).clamp(512, BLOCK_BYTES_MAX);
        self.block_bytes.unwrap_or(1 << carried.ilog2())
    }
}

impl fmt::Display for EbdSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uri::VolumeSpec;

    #[test]
    fn devices_of_ebd() {
        let spec = |text: &str| match text.parse() {
            Ok(VolumeSpec::Ebd(spec)) => spec,
            other => panic!("{text}: {other:?}"),
        };
        let plain = spec("ebd://02-00-00-00-00-02/3.1?link=eth1");
        assert_eq!((plain.station, plain.major, plain.minor), ([2, 0, 0, 0, 0, 2], 3, 1));
        assert_eq!(plain.link, "packet:eth1,ethertype=0x88b6".parse().unwrap());
        assert_eq!((plain.form, plain.block_bytes), (EbdForm::Implemented, None));
        assert_eq!(
            [1400, 8982, 65_000, 100].map(|bytes| plain.block_for(bytes)),
            [1024, 8192, 32_768, 512]
        );
        let all = "ebd://02-00-00-00-00-02/0.255?link=eth1&form=ideal&block=4K&ethertype=88b7";
        let all_parsed = spec(all);
        assert_eq!(all_parsed.link, "packet:eth1,ethertype=0x88b7".parse().unwrap());
        assert_eq!((all_parsed.form, all_parsed.block_for(1400)), (EbdForm::Ideal, 4096));
        assert_eq!(all_parsed.to_string(), all);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (rest, named) in [
            ("node1/3.1?link=eth1", "`node1`"),
            ("03-00-00-00-00-02/3.1?link=eth1", "multicast"),
            ("02-00-00-00-00-02?link=eth1", "MAJOR.MINOR"),
            ("02-00-00-00-00-02/3.256?link=eth1", "`3.256`"),
            ("02-00-00-00-00-02/disk0?link=eth1", "`disk0`"),
            ("02-00-00-00-00-02/3.1", "no link"),
            ("02-00-00-00-00-02/3.1?link=udp:10.0.0.1", "packet sockets"),
            ("02-00-00-00-00-02/3.1?link=xdp:eth1", "packet sockets"),
            ("02-00-00-00-00-02/3.1?link=eth1&link=eth2", "twice"),
            ("02-00-00-00-00-02/3.1?link=eth1&form=best", "`form=best`"),
            ("02-00-00-00-00-02/3.1?link=eth1&block=1000", "multiple of 512"),
            ("02-00-00-00-00-02/3.1?link=eth1&block=64K", "up to 32768"),
            ("02-00-00-00-00-02/3.1?link=eth1&mtu=1500", "`mtu`; known are"),
            ("02-00-00-00-00-02/3.1?link=eth1&ethertype=8100", "other than 8100"),
            ("02-00-00-00-00-02/3.1?link=eth1#x", "`#x`"),
        ] {
            let text = format!("ebd://{rest}");
            let error = text.parse::<VolumeSpec>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(&text), "{text}: {error}");
        }
    }
}
