//! Where a frame came from or goes to, in the terms of its link.

use core::fmt;
use core::net::SocketAddr;

/// A link-layer peer. Opaque to the protocol: it is only compared, printed and handed back to the
/// link that produced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Addr {
    /// Everybody on this link who listens to Thinwire's multicast group. Never a source.
    Group,
    /// An Ethernet station (`packet` and `xdp` links).
    Mac([u8; 6]),
    /// A UDP endpoint (`udp` links).
    Udp(SocketAddr),
    /// A station on a simulated wire.
    Sim(u32),
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Group => f.write_str("group"),
            Addr::Mac(m) => write!(
                f,
                "{:02x}-{:02x}-{:02x}-{:02x}-{:02x}-{:02x}",
                m[0], m[1], m[2], m[3], m[4], m[5]
            ),
            Addr::Udp(a) => write!(f, "{a}"),
            Addr::Sim(n) => write!(f, "sim-{n}"),
        }
    }
}
