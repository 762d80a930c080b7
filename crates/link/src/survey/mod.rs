//! What an interface can do for a raw link, and so which one a plain interface name gets.
//!
//! The rule: `xdp` where the driver can hand frames over without a copy, else `packet`. In copy mode
//! AF_XDP copies in the kernel exactly as often as AF_PACKET does, and once more in user space to
//! send; on veth it is the slower of the two.

pub(crate) mod ethtool;
mod netlink;

use thinwire_buffer::Addr;

use crate::error::LinkOpenError;
use crate::packet;
use crate::sys;
use crate::xdp::holder;

/// What can be said about an interface without touching it.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Its name.
    pub ifname: String,
    /// Its station address.
    pub address: Addr,
    /// Its MTU in bytes.
    pub mtu: usize,
    /// Its driver, if it tells.
    pub driver: Option<String>,
    /// How many queues receive.
    pub rx_queues: u32,
    /// What the driver can do with XDP; `None` if the kernel does not tell (before Linux 6.3).
    pub xdp: Option<XdpSupport>,
    /// Who has an XDP program attached to it, in words, if anybody has.
    pub attached: Option<String>,
    /// Whether a process is seen to hold that program. Not so for a moment after it was killed, and
    /// if the program is pinned or was attached by netlink.
    pub is_held: bool,
}

/// What a driver can do with XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpSupport {
    /// The driver runs programs itself and lets them redirect frames. Else the kernel does it
    /// behind the driver ("generic"), which is slower than a packet link.
    pub native: bool,
    /// Frames larger than a page.
    pub fragments: bool,
    /// Frames reach us without a copy.
    pub zero_copy: bool,
    /// In how many pieces at most: see [`Survey::pieces`].
    pub zero_copy_pieces: u32,
}

/// Looks at an interface. Needs no privilege, and sends nothing.
pub fn survey(ifname: &str) -> Result<Survey, LinkOpenError> {
    let interface = packet::look_up(ifname)?;
    let attached = netlink::attached_program(interface.index).ok().flatten();
    let holder = attached.and_then(|_| holder::of_interface(interface.index));
    let describe = |program: u32| match &holder {
        Some(holder) => format!("process {} ({})", holder.pid, holder.name),
        None => format!("program {program}"),
    };
    let support = |features: netlink::Features| XdpSupport {
        native: features.native && features.redirect,
        fragments: features.fragments,
        zero_copy: features.zero_copy,
        zero_copy_pieces: features.zero_copy_pieces,
    };
    Ok(Survey {
        ifname: ifname.into(),
        address: Addr::Mac(interface.mac),
        mtu: interface.mtu,
        driver: ethtool::driver(ifname).ok(),
        rx_queues: ethtool::rx_queues(ifname),
        xdp: netlink::features(interface.index).ok().map(support),
        attached: attached.map(describe),
        is_held: holder.is_some(),
    })
}

/// Whether frames of the link `vlan` (an interface, and a VLAN on it), reach an XDP program on `lower`
/// as if they had no tag: they come over that interface, behind one tag, and the adapter takes it off.
pub(crate) fn hides_vlan(lower: &str, vlan: (&str, Option<u16>)) -> bool {
    let index = |name| sys::interface(name).ok().flatten().map(|interface| interface.index);
    let is_behind_one_tag = match vlan {
        (name, Some(_)) => name == lower,
        (name, None) => {
            let below = index(name).and_then(|index| netlink::vlan_of(index).ok().flatten());
            below.is_some() && below == index(lower)
        }
    };
    is_behind_one_tag && ethtool::takes_tags_off(lower)
}

impl Survey {
    /// In how many pieces (chunks of 4 KiB, less the headroom) an xdp link receives the largest frame.
    pub fn pieces(&self) -> u32 {
        crate::xdp::chunks_of(self.mtu)
    }

    /// Why a plain name does not get an xdp link here; `None` if it does, should it open.
    pub fn against_xdp(&self) -> Option<String> {
        if let Some(holder) = &self.attached {
            return Some(format!("{holder} has attached XDP already, and there is room for one"));
        }
        let driver = self.driver.as_deref().unwrap_or("unknown");
        let Some(xdp) = self.xdp else {
            return Some("this kernel does not tell what the driver can do".into());
        };
        if !xdp.native {
            return Some(format!("driver {driver} cannot redirect frames itself"));
        }
        if !xdp.zero_copy {
            return Some(format!("driver {driver} copies frames, and then packet is faster"));
        }
        if self.pieces() > xdp.zero_copy_pieces {
            return Some(format!(
                "driver {driver} copies frames of more than {} pieces of 4 KiB, an MTU of {} has {}, \
                 and then packet is faster",
                xdp.zero_copy_pieces,
                self.mtu,
                self.pieces()
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_gets_xdp_only_without_copies() {
        let good = Survey {
            ifname: "eth1".into(),
            address: Addr::Mac([2; 6]),
            mtu: 9000,
            driver: Some("mlx5_core".into()),
            rx_queues: 8,
            xdp: Some(XdpSupport {
                native: true,
                fragments: true,
                zero_copy: true,
                zero_copy_pieces: 3,
            }),
            attached: None,
            is_held: false,
        };
        assert_eq!(good.against_xdp(), None);
        let xdp = good.xdp.unwrap();
        for (survey, why) in [
            (Survey { xdp: None, ..good.clone() }, "does not tell"),
            (
                Survey { xdp: Some(XdpSupport { native: false, ..xdp }), ..good.clone() },
                "mlx5_core cannot redirect",
            ),
            (
                Survey { xdp: Some(XdpSupport { zero_copy: false, ..xdp }), ..good.clone() },
                "copies frames, and",
            ),
            (
                Survey { xdp: Some(XdpSupport { zero_copy_pieces: 2, ..xdp }), ..good.clone() },
                "more than 2 pieces of 4 KiB, an MTU of 9000 has 3",
            ),
            (Survey { attached: Some("process 7 (x)".into()), ..good.clone() }, "process 7 (x)"),
        ] {
            let said = survey.against_xdp().unwrap();
            assert!(said.contains(why), "{said}");
        }
    }
}
