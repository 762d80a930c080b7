//! Devices of AoE servers as users name them: `aoe://SHELF.SLOT?link=eth1&server=MAC&flush=yes` (`docs/aoe.md`).

use std::fmt;

use thinwire_link::LinkSpec;
use thinwire_wire::aoe::{ETHER_TYPE, ShelfSlot};

use super::remote::decode;
use super::{parse_plain_interface, plain_link};
use crate::size::parse_mac;

/// A device that a server of AoE has, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AoeSpec {
    /// The device.
    pub device: ShelfSlot,
    /// The interface that leads there.
    pub ifname: String,
    /// The server's station; whichever says that it has the device if `None`.
    pub station: Option<[u8; 6]>,
    /// It is flushed, which Linux's client never does.
    pub flushes: bool,
    /// The URI as it was typed: how it is shown.
    text: String,
}

/// A device as a user names it: `SHELF.SLOT`, of which the highest numbers mean all.
pub(crate) fn parse_shelf_slot(text: &str) -> Result<ShelfSlot, String> {
    let parsed = text.split_once('.').and_then(|(shelf, slot)| {
        Some(ShelfSlot { shelf: shelf.parse().ok()?, slot: slot.parse().ok()? })
    });
    parsed.filter(|device| device.is_one()).ok_or_else(|| {
        format!("`{text}` is no device: give SHELF.SLOT, from 0 to 65534 and from 0 to 254")
    })
}

/// From what follows `aoe://`. `text` is the whole URI.
pub(super) fn parse_aoe(text: &str, rest: &str) -> Result<AoeSpec, String> {
    if let Some(at) = rest.find('#') {
        return Err(format!("`{}`: a fragment means nothing here", &rest[at..]));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let device = parse_shelf_slot(place)?;
    let (mut ifname, mut station, mut flushes) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decode(key)?, decode(value)?);
        let is_first = match key.as_str() {
            "link" => ifname.replace(parse_plain_interface("AoE", &value)?).is_none(),
            "server" => station.replace(parse_station(&value)?).is_none(),
            "flush" => flushes.replace(parse_flush(&value)?).is_none(),
            _ => {
                return Err(format!(
                    "unknown parameter `{key}`; known are `link`, `server` and `flush`"
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
    let (flushes, text) = (flushes.unwrap_or(false), text.to_owned());
    Ok(AoeSpec { device, ifname, station, flushes, text })
}

impl AoeSpec {
    /// Where its frames come and go.
    pub fn link(&self) -> LinkSpec {
        plain_link(self.ifname.clone(), ETHER_TYPE)
    }
}

fn parse_station(value: &str) -> Result<[u8; 6], String> {
    parse_mac(value).filter(|mac| mac[0] & 1 == 0).ok_or_else(|| {
        format!("`server={value}` is no address of a station, as in 02-00-00-00-00-02")
    })
}

fn parse_flush(value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("`flush={value}`: flush must be yes or no")),
    }
}

impl fmt::Display for AoeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uri::VolumeSpec;

    #[test]
    fn devices_of_aoe() {
        let spec = |text: &str| match text.parse() {
            Ok(VolumeSpec::Aoe(spec)) => spec,
            other => panic!("{text}: {other:?}"),
        };
        let plain = spec("aoe://7.1?link=eth1");
        assert_eq!((plain.device, plain.station), (ShelfSlot::new(7, 1), None));
        assert_eq!(plain.link(), "packet:eth1,ethertype=0x88a2".parse().unwrap());
        assert!(!plain.flushes);
        let all = "aoe://65534.254?link=eth1&server=02-00-00-00-00-02&flush=yes";
        let parsed = spec(all);
        assert_eq!((parsed.station, parsed.flushes), (Some([2, 0, 0, 0, 0, 2]), true));
        assert_eq!(parsed.to_string(), all);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (rest, named) in [
            ("7?link=eth1", "SHELF.SLOT"),
            ("65535.1?link=eth1", "`65535.1`"),
            ("7.255?link=eth1", "`7.255`"),
            ("7.1", "no link"),
            ("7.1?link=udp:10.0.0.1", "AoE is spoken"),
            ("7.1?link=xdp:eth1", "packet sockets"),
            ("7.1?link=eth1&link=eth2", "twice"),
            ("7.1?link=eth1&server=x", "`server=x`"),
            ("7.1?link=eth1&server=03-00-00-00-00-02", "no address of a station"),
            ("7.1?link=eth1&flush=1", "`flush=1`"),
            ("7.1?link=eth1&form=ideal", "`form`; known are"),
            ("7.1?link=eth1#x", "`#x`"),
        ] {
            let text = format!("aoe://{rest}");
            let error = text.parse::<VolumeSpec>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(&text), "{text}: {error}");
        }
        let error = "aoe:7.1".parse::<VolumeSpec>().unwrap_err().to_string();
        assert!(error.contains("aoe://7.1?link=eth1"), "{error}");
    }
}
