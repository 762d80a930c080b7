//! Why a link could not be opened: what was tried, what happened, what to do.

use std::io;
use std::net::SocketAddr;

/// A link could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkOpenError {
    /// The interface does not exist in this network namespace.
    #[error("there is no interface {ifname:?} here; there are: {existing}")]
    NoSuchInterface {
        /// What was asked for.
        ifname: String,
        /// The names that exist, joined by commas.
        existing: String,
    },
    /// The interface is administratively down.
    #[error("interface {ifname} is down; bring it up with: ip link set {ifname} up")]
    InterfaceDown {
        /// Its name.
        ifname: String,
    },
    /// The interface carries no Ethernet frames (loopback, tunnels).
    #[error(
        "interface {ifname} is not an Ethernet interface; use udp:ADDRESS with one of its addresses"
    )]
    NotEthernet {
        /// Its name.
        ifname: String,
    },
    /// Raw frames need a capability that the process lacks.
    #[error(
        "no permission for raw frames on {ifname} (CAP_NET_RAW); run as root, or \
         setcap cap_net_raw+ep on the program, or use udp:ADDRESS, which needs none"
    )]
    NoPrivilege {
        /// The interface that was to be opened.
        ifname: String,
    },
    /// The interface's MTU is below what the protocol needs.
    #[error(
        "interface {ifname} has an MTU of {mtu}, at least {min} is needed; \
         set it with: ip link set {ifname} mtu 1500"
    )]
    MtuTooSmall {
        /// Its name.
        ifname: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// The least that works.
        min: usize,
    },
    /// A setting is out of its bounds.
    #[error("{what} is {value}, but must be {bounds}")]
    OutOfBounds {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        bounds: &'static str,
    },
    /// The interface, or its driver, or the kernel cannot do what an xdp link needs; or somebody else
    /// does it there.
    #[error("interface {ifname} cannot carry an xdp link: {why}; use packet:{ifname}")]
    XdpRefused {
        /// Its name.
        ifname: String,
        /// What was refused, and why.
        why: String,
    },
    /// Another program has the UDP port.
    #[error(
        "UDP address {addr} is in use by another program; stop it, or choose another port: \
         udp:ADDRESS:PORT{hint}"
    )]
    AddressInUse {
        /// What was asked for.
        addr: SocketAddr,
        /// More advice, or nothing.
        hint: &'static str,
    },
    /// The address belongs to no interface of this network namespace.
    #[error("{addr} is not an address of this machine; it has: {existing}")]
    AddressNotLocal {
        /// What was asked for.
        addr: SocketAddr,
        /// The addresses that exist, joined by commas.
        existing: String,
    },
    /// The kernel refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried, with its object.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl LinkOpenError {
    /// Wraps a kernel refusal with what was tried.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> LinkOpenError {
        let what = what.into();
        move |source| LinkOpenError::System { what, source }
    }
}
