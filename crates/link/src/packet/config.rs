//! How a packet link is opened.

use thinwire_buffer::{Addr, PAGE_BYTES};

use super::{ETHERTYPE_DEFAULT, GROUP_MAC};
use crate::HEAD_BYTES;
use crate::bpf::{STEERING_FILTERS_MAX, SteeringFilter};
use crate::error::LinkOpenError;
use crate::ethernet::ETHERTYPE_VLAN;

/// How to open a [`PacketLink`](super::PacketLink).
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The interface, such as `eth1`. It must be an Ethernet interface, up, with an MTU of at least
    /// 1280.
    pub ifname: String,
    /// EtherType of our frames, default 0x88b5; at least 0x0600, and not that of 802.1Q. Both ends
    /// must agree.
    pub ethertype: u16,
    /// 802.1Q VLAN id (1 to 4094) to tag with and listen to; default none. Costs a look at every
    /// frame the interface receives; a VLAN interface of the kernel (`eth1.100`) does not.
    pub vlan: Option<u16>,
    /// Station address of the discovery group, default [`GROUP_MAC`]. Must have the group bit.
    pub group: [u8; 6],
    /// Receive buffer to ask for, in bytes; default 4 MiB. The kernel grants up to twice that with
    /// CAP_NET_ADMIN, else up to twice `net.core.rmem_max`. It is memory only while frames wait.
    pub rcvbuf_bytes: u32,
    /// Send buffer to ask for, in bytes; default 4 MiB. What does not fit waits in the batch.
    pub sndbuf_bytes: u32,
    /// What to receive: frames that any of these accepts; empty (the default) for all.
    pub steering: Vec<SteeringFilter>,
    /// Distance from a received frame's first byte to the next page border, at most a page: where a payload begins.
    /// Default [`HEAD_BYTES`], which is Thinwire's own.
    pub head_bytes: usize,
}

impl PacketConfig {
    /// Defaults for an interface.
    pub fn new(ifname: impl Into<String>) -> Self {
        PacketConfig {
            ifname: ifname.into(),
            ethertype: ETHERTYPE_DEFAULT,
            vlan: None,
            group: GROUP_MAC,
            rcvbuf_bytes: 4 << 20,
            sndbuf_bytes: 4 << 20,
            steering: Vec::new(),
            head_bytes: HEAD_BYTES,
        }
    }

    /// Where a frame starts in its buffer, so that what follows its head is on a page border.
    pub(super) fn start(&self) -> usize {
        PAGE_BYTES - self.head_bytes
    }

    pub(super) fn check(&self) -> Result<(), LinkOpenError> {
        if self.ethertype < 0x0600 || self.ethertype == ETHERTYPE_VLAN {
            return Err(LinkOpenError::OutOfBounds {
                what: "the EtherType",
                value: format!("{:#06x}", self.ethertype),
                bounds: "0x0600 to 0xffff and not 0x8100",
            });
        }
        if let Some(vlan) = self.vlan
            && !(1..=4094).contains(&vlan)
        {
            return Err(LinkOpenError::OutOfBounds {
                what: "the VLAN id",
                value: vlan.to_string(),
                bounds: "1 to 4094",
            });
        }
        if self.group[0] & 1 == 0 {
            return Err(LinkOpenError::OutOfBounds {
                what: "the group address",
                value: Addr::Mac(self.group).to_string(),
                bounds: "a multicast address (odd first byte)",
            });
        }
        if self.steering.len() > STEERING_FILTERS_MAX {
            return Err(LinkOpenError::OutOfBounds {
                what: "the number of steering filters",
                value: self.steering.len().to_string(),
                bounds: "at most 64",
            });
        }
        Ok(())
    }
}
