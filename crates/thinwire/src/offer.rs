//! What a target offers in another protocol than its own: `ebd:IFACE/MAJOR.MINOR=EXPORT[,form=ideal|implemented]
//! [,ethertype=0xNNNN][,initiator=MAC]...,insecure` (`docs/ebd.md`), or `aoe:IFACE/SHELF.SLOT=EXPORT[,durable|cached]
//! [,initiator=MAC]...,insecure` (`docs/aoe.md`).

use std::fmt;
use std::str::FromStr;

use thinwire_buffer::Addr;
use thinwire_link::LinkSpec;
use thinwire_wire::aoe::{ETHER_TYPE, ShelfSlot};
use thinwire_wire::ebd::{ETHERTYPE_DEFAULT, EbdForm, SECTORS_MAX};

use crate::error::ParseError;
use crate::export::ExportSpec;
use crate::size::parse_mac;
use crate::uri::{
    VolumeSpec, parse_device, parse_ethertype, parse_plain_interface, parse_shelf_slot, plain_link,
};

/// How an offer is typed.
const FORMS: &str = "an offer is ebd:IFACE/MAJOR.MINOR=EXPORT,insecure or aoe:IFACE/SHELF.SLOT=EXPORT,insecure, as in \
                     ebd:eth1/3.1=disk0,insecure";

/// An export that clients of another protocol may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferSpec {
    /// Where its frames come and go.
    pub ifname: String,
    /// What is spoken, and what the export is called in it.
    pub protocol: OfferProtocol,
    /// The export.
    pub export: String,
    /// Stations that may use it; everybody if there are none. A mask, no protection.
    pub stations: Vec<[u8; 6]>,
}

/// What is spoken, and as which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferProtocol {
    /// The Ethernet Block Device.
    Ebd {
        /// The EtherType of its frames.
        ethertype: u16,
        /// Which of the two forms.
        form: EbdForm,
        /// The device, as clients know it.
        major: u8,
        /// The device, as clients know it.
        minor: u8,
    },
    /// ATA over Ethernet.
    Aoe {
        /// The device, as clients know it.
        device: ShelfSlot,
        /// Writes are answered before they are on the medium.
        cached: bool,
    },
}

impl OfferProtocol {
    /// What people call it.
    pub fn name(&self) -> &'static str {
        match self {
            OfferProtocol::Ebd { .. } => "EBD",
            OfferProtocol::Aoe { .. } => "AoE",
        }
    }

    /// What it cannot promise to its clients, beside keys (`docs/dialects.md`): a sentence each.
    pub fn not_promised(&self) -> Vec<&'static str> {
        let mut all = vec![
            "a write that comes late, or that the network doubles, may land over a later one",
            "bits that change between memory and disk are not found",
            "a writer that falls silent keeps the export until it ends or another takes over",
        ];
        match self {
            OfferProtocol::Ebd { .. } => {}
            OfferProtocol::Aoe { cached: false, .. } => {
                all.push("a fenced writer is known as such only while this target lives");
            }
            OfferProtocol::Aoe { cached: true, .. } => {
                all.push("a fenced writer is known as such only while this target lives");
                all.push("what was answered and not flushed is lost with this target, and nobody is told");
            }
        }
        all
    }

    fn ethertype(&self) -> u16 {
        match *self {
            OfferProtocol::Ebd { ethertype, .. } => ethertype,
            OfferProtocol::Aoe { .. } => ETHER_TYPE,
        }
    }

    /// The device as it is typed.
    fn device(&self) -> String {
        match self {
            OfferProtocol::Ebd { major, minor, .. } => format!("{major}.{minor}"),
            OfferProtocol::Aoe { device, .. } => device.to_string(),
        }
    }

    /// An option that only this protocol has. False if it has none of this name.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match (self, name, value) {
            (OfferProtocol::Ebd { form, .. }, "form", "ideal") => *form = EbdForm::Ideal,
            (OfferProtocol::Ebd { form, .. }, "form", "implemented") => {
                *form = EbdForm::Implemented;
            }
            (OfferProtocol::Ebd { ethertype, .. }, "ethertype", value) => {
                *ethertype = parse_ethertype(value)?;
            }
            (OfferProtocol::Aoe { cached, .. }, "durable", "") => *cached = false,
            (OfferProtocol::Aoe { cached, .. }, "cached", "") => *cached = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The options that it has.
    fn known(&self) -> &'static str {
        match self {
            OfferProtocol::Ebd { .. } => {
                "form=ideal, form=implemented, ethertype=0xNNNN, initiator=MAC and insecure"
            }
            OfferProtocol::Aoe { .. } => "durable, cached, initiator=MAC and insecure",
        }
    }
}

impl OfferSpec {
    /// The link that it is spoken on.
    pub fn link(&self) -> LinkSpec {
        plain_link(self.ifname.clone(), self.protocol.ethertype())
    }

    /// Whether it goes together with the exports that there are, and with another offer.
    pub fn check(&self, exports: &[ExportSpec], others: &[OfferSpec]) -> Result<(), ParseError> {
        let wrong = |why: String| Err(ParseError::new(self.to_string(), why));
        let protocol = self.protocol.name();
        let Some(export) = exports.iter().find(|export| export.name == self.export) else {
            return wrong(format!("there is no export `{}`", self.export));
        };
        if export.block_bytes != 512 {
            return wrong(format!(
                "export `{}` has blocks of {} bytes, and {protocol} counts sectors of 512",
                self.export, export.block_bytes
            ));
        }
        if let VolumeSpec::Memory(bytes) | VolumeSpec::Null(bytes) = export.volume
            && let OfferProtocol::Ebd { .. } = self.protocol
            && bytes / 512 > SECTORS_MAX
        {
            return wrong(format!(
                "export `{}` is larger than 2 TiB, which EBD cannot say",
                self.export
            ));
        }
        let is_port = |other: &&OfferSpec| match (self.protocol, other.protocol) {
            (OfferProtocol::Aoe { device: own, .. }, OfferProtocol::Aoe { device, .. }) => {
                own == device && other.link() != self.link()
            }
            _ => false,
        };
        for other in others.iter().filter(is_port) {
            let masks = [self, other].map(|offer| offer.stations.is_empty());
            if (&other.export, other.protocol) != (&self.export, self.protocol)
                || masks[0] != masks[1]
            {
                return wrong(format!(
                    "`{other}` is the same device on another interface, so the export must be the same, both durable or cached, \
                     and both with initiator= or neither"
                ));
            }
        }
        for other in others.iter().filter(|other| other.link() == self.link()) {
            if other.protocol.name() != protocol {
                return wrong(format!(
                    "`{other}` speaks {} under the same EtherType: give that another (ethertype=0xNNNN)",
                    other.protocol.name()
                ));
            }
            if other.protocol.device() == self.protocol.device() {
                return wrong(format!("its device number is that of `{other}`"));
            }
            if let (OfferProtocol::Ebd { form, .. }, OfferProtocol::Ebd { form: others, .. }) =
                (self.protocol, other.protocol)
                && form != others
            {
                return wrong(format!(
                    "`{other}` speaks the other form under the same EtherType: give one of them another \
                     (ethertype=0xNNNN)"
                ));
            }
        }
        Ok(())
    }
}

/// What an offer begins with: the protocol, and the device in it.
fn parse_protocol(scheme: &str, device: &str) -> Result<OfferProtocol, String> {
    let ethertype = ETHERTYPE_DEFAULT;
    match scheme {
        "ebd" => match parse_device(device) {
            Some((major, minor)) => {
                Ok(OfferProtocol::Ebd { ethertype, form: EbdForm::Implemented, major, minor })
            }
            None => Err(format!("`{device}` is no device: give MAJOR.MINOR, each from 0 to 255")),
        },
        _ => Ok(OfferProtocol::Aoe { device: parse_shelf_slot(device)?, cached: false }),
    }
}

impl FromStr for OfferSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = |why: String| ParseError::new(text, why);
        let malformed = || bad(FORMS.to_owned());
        let (scheme, rest) = text.split_once(':').ok_or_else(malformed)?;
        if !matches!(scheme, "ebd" | "aoe") {
            return Err(malformed());
        }
        let mut parts = rest.split(',');
        let first = parts.next().and_then(|first| first.split_once('='));
        let (place, export) = first.ok_or_else(malformed)?;
        let (ifname, device) = place.rsplit_once('/').ok_or_else(malformed)?;
        let protocol = parse_protocol(scheme, device);
        let spoken = if scheme == "ebd" { "EBD" } else { "AoE" };
        let mut offer = OfferSpec {
            ifname: parse_plain_interface(spoken, ifname).map_err(bad)?,
            protocol: protocol.map_err(bad)?,
            export: export.to_owned(),
            stations: Vec::new(),
        };
        let mut is_insecure = false;
        for option in parts {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match (name, value) {
                ("insecure", "") => is_insecure = true,
                ("initiator", value) => match parse_mac(value) {
                    Some(mac) => offer.stations.push(mac),
                    None => {
                        return Err(bad(format!(
                            "`{value}` is no Ethernet address, as in 02-00-00-00-00-01"
                        )));
                    }
                },
                _ if offer.protocol.take(name, value).map_err(bad)? => {}
                _ => {
                    let known = offer.protocol.known();
                    return Err(bad(format!("unknown option `{option}`; known are {known}")));
                }
            }
        }
        if !is_insecure {
            return Err(bad(format!(
                "{spoken} has no keys: whoever can send frames on that network can read and write the export. Say that \
                 this is wanted with `,insecure` at its end"
            )));
        }
        Ok(offer)
    }
}

impl fmt::Display for OfferSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OfferSpec { ifname, protocol, export, stations } = self;
        let scheme = protocol.name().to_lowercase();
        write!(f, "{scheme}:{ifname}/{}={export}", protocol.device())?;
        match *protocol {
            OfferProtocol::Ebd { ethertype, form, .. } => {
                if form != EbdForm::Implemented {
                    write!(f, ",form={}", form.name())?;
                }
                if ethertype != ETHERTYPE_DEFAULT {
                    write!(f, ",ethertype={ethertype:#06x}")?;
                }
            }
            OfferProtocol::Aoe { cached: true, .. } => f.write_str(",cached")?,
            OfferProtocol::Aoe { cached: false, .. } => {}
        }
        for station in stations {
            write!(f, ",initiator={}", Addr::Mac(*station))?;
        }
        f.write_str(",insecure")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_shown_as_they_can_be_typed_again() {
        for text in [
            "ebd:eth1/3.1=disk0,insecure",
            "ebd:eth1/0.255=disk0,form=ideal,insecure",
            "aoe:eth1/7.1=disk0,insecure",
            "aoe:eth1/65534.254=disk0,cached,initiator=02-00-00-00-00-01,insecure",
            "ebd:eth1.7/3.1=a,ethertype=0x88b7,initiator=02-00-00-00-00-01,initiator=02-00-00-00-00-02,insecure",
        ] {
            assert_eq!(text.parse::<OfferSpec>().unwrap().to_string(), text);
        }
        let durable = "aoe:eth1/7.1=disk0,durable,insecure".parse::<OfferSpec>().unwrap();
        assert_eq!(durable.to_string(), "aoe:eth1/7.1=disk0,insecure");
        assert_eq!(durable.link(), "packet:eth1,ethertype=0x88a2".parse().unwrap());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("disk0", "as in ebd:eth1/3.1=disk0"),
            ("iscsi:eth1/7.1=disk0,insecure", "aoe:IFACE/SHELF.SLOT"),
            ("aoe:eth1=disk0,insecure", "as in ebd:"),
            ("aoe:xdp:eth1/7.1=disk0,insecure", "AoE is spoken"),
            ("aoe:udp:10.0.0.1/7.1=disk0,insecure", "packet sockets"),
            ("aoe:eth1/7=disk0,insecure", "SHELF.SLOT"),
            ("aoe:eth1/65535.1=disk0,insecure", "0 to 65534"),
            ("aoe:eth1/7.255=disk0,insecure", "0 to 254"),
            ("aoe:eth1/7.1=disk0", "AoE has no keys"),
            ("aoe:eth1/7.1=disk0,form=ideal,insecure", "known are durable, cached"),
            ("aoe:eth1/7.1=disk0,ethertype=0x88b7,insecure", "`ethertype=0x88b7`"),
            ("aoe:eth1/7.1=disk0,cached=yes,insecure", "`cached=yes`"),
            ("aoe:eth1/7.1=disk0,initiator=x,insecure", "`x`"),
            ("ebd:eth1/3.1=disk0,cached,insecure", "`cached`"),
            ("ebd:eth1=disk0,insecure", "as in ebd:"),
            ("ebd:udp:10.0.0.1/3.1=disk0,insecure", "packet sockets"),
            ("ebd:xdp:eth1/3.1=disk0,insecure", "packet sockets"),
            ("ebd:/3.1=disk0,insecure", "interface is missing"),
            ("ebd:eth1/3=disk0,insecure", "MAJOR.MINOR"),
            ("ebd:eth1/3.256=disk0,insecure", "`3.256`"),
            ("ebd:eth1/3.1=disk0", "no keys"),
            ("ebd:eth1/3.1=disk0,form=best,insecure", "`form=best`"),
            ("ebd:eth1/3.1=disk0,ethertype=0x8100,insecure", "other than 8100"),
            ("ebd:eth1/3.1=disk0,initiator=x,insecure", "`x`"),
        ] {
            let error = text.parse::<OfferSpec>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn offers_go_together_with_exports_and_others() {
        let exports: Vec<ExportSpec> =
            ["disk0=memory:1M", "other=memory:1M", "big=memory:1M,block=4096"]
                .iter()
                .map(|e| e.parse().unwrap())
                .collect();
        let others: Vec<OfferSpec> = ["ebd:eth1/3.1=disk0,insecure", "aoe:eth1/7.1=disk0,insecure"]
            .iter()
            .map(|offer| offer.parse().unwrap())
            .collect();
        let check = |text: &str| {
            text.parse::<OfferSpec>().unwrap().check(&exports, &others).map_err(|e| e.to_string())
        };
        assert_eq!(check("ebd:eth1/3.2=disk0,insecure"), Ok(()));
        assert_eq!(check("ebd:eth2/3.1=disk0,form=ideal,insecure"), Ok(()));
        assert_eq!(check("aoe:eth1/7.2=disk0,insecure"), Ok(()));
        assert_eq!(check("aoe:eth2/7.1=disk0,insecure"), Ok(()), "another port");
        for (text, named) in [
            ("ebd:eth1/3.1=disk0,insecure", "device number"),
            ("ebd:eth1/3.2=disk0,form=ideal,insecure", "other form"),
            ("ebd:eth1/3.2=disk1,insecure", "no export `disk1`"),
            ("aoe:eth1/7.1=disk0,cached,insecure", "device number"),
            ("aoe:eth2/7.1=disk0,cached,insecure", "on another interface"),
            ("aoe:eth2/7.1=other,insecure", "on another interface"),
            ("aoe:eth2/7.1=disk0,initiator=02-00-00-00-00-01,insecure", "on another interface"),
            ("aoe:eth1/7.2=disk1,insecure", "no export `disk1`"),
            ("aoe:eth1/7.2=big,insecure", "AoE counts sectors"),
            ("ebd:eth1/7.1=disk0,ethertype=0x88a2,insecure", "speaks AoE"),
            ("ebd:eth1/3.2=big,insecure", "4096"),
        ] {
            assert!(check(text).unwrap_err().contains(named), "{text}");
        }
    }
}
