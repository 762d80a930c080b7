//! What a target offers in another protocol than its own: `ebd:IFACE/MAJOR.MINOR=EXPORT[,form=ideal|implemented]
//! [,ethertype=0xNNNN][,initiator=MAC]...,insecure` (`docs/ebd.md`).

use std::fmt;
use std::str::FromStr;

use thinwire_link::LinkSpec;
use thinwire_wire::ebd::{ETHERTYPE_DEFAULT, EbdForm, SECTORS_MAX};

use crate::error::ParseError;
use crate::export::ExportSpec;
use crate::size::parse_mac;
use crate::uri::{VolumeSpec, ebd_link, parse_device, parse_ebd_interface, parse_ethertype};

/// An export that clients of EBD may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferSpec {
    /// Where its frames come and go.
    pub ifname: String,
    /// The EtherType of these.
    pub ethertype: u16,
    /// Which of the two forms is spoken.
    pub form: EbdForm,
    /// The device, as clients know it.
    pub major: u8,
    /// The device, as clients know it.
    pub minor: u8,
    /// The export.
    pub export: String,
    /// Stations that may use it; everybody if there are none. A mask, no protection.
    pub stations: Vec<[u8; 6]>,
}

impl OfferSpec {
    /// The link that it is spoken on.
    pub fn link(&self) -> LinkSpec {
        ebd_link(self.ifname.clone(), self.ethertype)
    }

    /// Whether it goes together with the exports that there are, and with another offer.
    pub fn check(&self, exports: &[ExportSpec], others: &[OfferSpec]) -> Result<(), ParseError> {
        let wrong = |why: String| Err(ParseError::new(self.to_string(), why));
        let Some(export) = exports.iter().find(|export| export.name == self.export) else {
            return wrong(format!("there is no export `{}`", self.export));
        };
        if export.block_bytes != 512 {
            return wrong(format!(
                "export `{}` has blocks of {} bytes, and EBD counts sectors of 512",
                self.export, export.block_bytes
            ));
        }
        if let VolumeSpec::Memory(bytes) | VolumeSpec::Null(bytes) = export.volume
            && bytes / 512 > SECTORS_MAX
        {
            return wrong(format!(
                "export `{}` is larger than 2 TiB, which EBD cannot say",
                self.export
            ));
        }
        let same =
            |other: &&OfferSpec| (&other.ifname, other.ethertype) == (&self.ifname, self.ethertype);
        for other in others.iter().filter(same) {
            if (other.major, other.minor) == (self.major, self.minor) {
                return wrong(format!("its device number is that of `{other}`"));
            }
            if other.form != self.form {
                return wrong(format!(
                    "`{other}` speaks the other form under the same EtherType: give one of them another \
                     (ethertype=0xNNNN)"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for OfferSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = |why: String| ParseError::new(text, why);
        let form =
            "an offer is ebd:IFACE/MAJOR.MINOR=EXPORT,insecure, as in ebd:eth1/3.1=disk0,insecure";
        let Some(rest) = text.strip_prefix("ebd:") else {
            return Err(bad(form.to_owned()));
        };
        let mut parts = rest.split(',');
        let (place, export) = parts
            .next()
            .and_then(|first| first.split_once('='))
            .ok_or_else(|| bad(form.to_owned()))?;
        let (ifname, device) = place.rsplit_once('/').ok_or_else(|| bad(form.to_owned()))?;
        let ifname = parse_ebd_interface(ifname).map_err(bad)?;
        let (major, minor) = parse_device(device).ok_or_else(|| {
            bad(format!("`{device}` is no device: give MAJOR.MINOR, each from 0 to 255"))
        })?;
        let mut offer = OfferSpec {
            ifname,
            ethertype: ETHERTYPE_DEFAULT,
            form: EbdForm::Implemented,
            major,
            minor,
            export: export.to_owned(),
            stations: Vec::new(),
        };
        let mut is_insecure = false;
        for option in parts {
            match option.split_once('=').unwrap_or((option, "")) {
                ("insecure", "") => is_insecure = true,
                ("form", "ideal") => offer.form = EbdForm::Ideal,
                ("form", "implemented") => offer.form = EbdForm::Implemented,
                ("ethertype", value) => offer.ethertype = parse_ethertype(value).map_err(bad)?,
                ("initiator", value) => match parse_mac(value) {
                    Some(mac) => offer.stations.push(mac),
                    None => {
                        return Err(bad(format!(
                            "`{value}` is no Ethernet address, as in 02-00-00-00-00-01"
                        )));
                    }
                },
                _ => {
                    return Err(bad(format!(
                        "unknown option `{option}`; known are form=ideal, form=implemented, ethertype=0xNNNN, \
                         initiator=MAC and insecure"
                    )));
                }
            }
        }
        if !is_insecure {
            return Err(bad(
                "EBD has no keys: whoever can send frames on that network can read and write the export. Say that \
                 this is wanted with `,insecure` at its end"
                    .to_owned(),
            ));
        }
        Ok(offer)
    }
}

impl fmt::Display for OfferSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ebd:{}/{}.{}={}", self.ifname, self.major, self.minor, self.export)?;
        if self.form != EbdForm::Implemented {
            write!(f, ",form={}", self.form.name())?;
        }
        if self.ethertype != ETHERTYPE_DEFAULT {
            write!(f, ",ethertype={:#06x}", self.ethertype)?;
        }
        for station in &self.stations {
            write!(f, ",initiator={}", thinwire_buffer::Addr::Mac(*station))?;
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
            "ebd:eth1.7/3.1=a,ethertype=0x88b7,initiator=02-00-00-00-00-01,initiator=02-00-00-00-00-02,insecure",
        ] {
            assert_eq!(text.parse::<OfferSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("disk0", "as in ebd:eth1/3.1=disk0"),
            ("aoe:eth1/7.1=disk0,insecure", "as in ebd:"),
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
        let exports: Vec<ExportSpec> = ["disk0=memory:1M", "big=memory:1M,block=4096"]
            .iter()
            .map(|e| e.parse().unwrap())
            .collect();
        let others: Vec<OfferSpec> = vec!["ebd:eth1/3.1=disk0,insecure".parse().unwrap()];
        let check = |text: &str| {
            text.parse::<OfferSpec>().unwrap().check(&exports, &others).map_err(|e| e.to_string())
        };
        assert_eq!(check("ebd:eth1/3.2=disk0,insecure"), Ok(()));
        assert_eq!(check("ebd:eth2/3.1=disk0,form=ideal,insecure"), Ok(()));
        for (text, named) in [
            ("ebd:eth1/3.1=disk0,insecure", "device number"),
            ("ebd:eth1/3.2=disk0,form=ideal,insecure", "other form"),
            ("ebd:eth1/3.2=disk1,insecure", "no export `disk1`"),
            ("ebd:eth1/3.2=big,insecure", "4096"),
        ] {
            assert!(check(text).unwrap_err().contains(named), "{text}");
        }
    }
}
