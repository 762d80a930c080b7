//! Which interfaces an address stands for: their MTU, and the discovery group on them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use crate::error::LinkOpenError;
use crate::sys;

/// Missing in libc for some targets.
pub(super) const IPV6_MULTICAST_ALL: libc::c_int = 29;

/// The interfaces behind a local address.
pub(super) struct Route {
    /// The interface with the smallest MTU.
    pub(super) name: String,
    /// The smallest MTU.
    pub(super) mtu: usize,
    /// Their indexes. One for a proper address; for the wildcard address all that are up and have
    /// an address of the family, without loopback unless there is nothing else.
    interfaces: Vec<u32>,
    is_ipv4: bool,
}

impl Route {
    pub(super) fn find(addr: SocketAddr) -> Result<Route, LinkOpenError> {
        let entries = sys::interface_addrs().map_err(LinkOpenError::system("list interfaces"))?;
        let ip = addr.ip();
        let of_family = |found: &IpAddr| found.is_ipv4() == ip.is_ipv4();
        let mut names: Vec<&str> = Vec::new();
        let wildcard_rounds: &[bool] = if ip.is_unspecified() { &[false, true] } else { &[] };
        for &loopback in wildcard_rounds {
            if names.is_empty() {
                names = entries
                    .iter()
                    .filter(|e| e.is_up && e.is_loopback == loopback)
                    .filter(|e| e.ip.as_ref().is_some_and(of_family))
                    .map(|e| e.name.as_str())
                    .collect();
            }
        }
        if !ip.is_unspecified() {
            // The whole of 127/8 belongs to lo, though it lists one address.
            let scope = if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 };
            let is_owner = |e: &&sys::InterfaceAddr| {
                e.ip == Some(ip) || (ip.is_ipv4() && ip.is_loopback() && e.is_loopback)
            };
            names = entries.iter().filter(is_owner).map(|e| e.name.as_str()).collect();
            // A link-local address may be on several interfaces: the scope says which.
            if scope != 0 {
                names.retain(|n| index_and_mtu(n).is_some_and(|(index, _)| index == scope));
            }
        }
        names.sort_unstable();
        names.dedup();
        let mut found: Vec<(usize, u32, &str)> = Vec::new();
        for name in names {
            if let Some((index, mtu)) = index_and_mtu(name) {
                found.push((mtu, index, name));
            }
        }
        let Some(&(mtu, _, name)) = found.iter().min() else {
            return Err(LinkOpenError::AddressNotLocal { addr, existing: addresses() });
        };
        Ok(Route {
            name: name.to_string(),
            mtu,
            interfaces: found.iter().map(|&(_, index, _)| index).collect(),
            is_ipv4: ip.is_ipv4(),
        })
    }

    /// On how many interfaces a group frame must leave.
    pub(super) fn interface_count(&self) -> usize {
        self.interfaces.len()
    }

    /// Makes the socket's group frames leave on the `i`th interface. If that fails, routing
    /// decides.
    pub(super) fn send_groups_on(&self, fd: BorrowedFd<'_>, i: usize) {
        let index = self.interfaces[i] as libc::c_int;
        let _ = if self.is_ipv4 {
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &mreqn([0; 4], index))
        } else {
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index)
        };
    }

    /// Joins the group on all interfaces; true if that worked on one.
    pub(super) fn join(&self, fd: BorrowedFd<'_>, group: IpAddr) -> bool {
        let mut joined = 0;
        for &index in &self.interfaces {
            let done = match group {
                IpAddr::V4(ip) => {
                    let request = mreqn(ip.octets(), index as libc::c_int);
                    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
                }
                IpAddr::V6(ip) => {
                    let request = libc::ipv6_mreq {
                        ipv6mr_multiaddr: libc::in6_addr { s6_addr: ip.octets() },
                        ipv6mr_interface: index,
                    };
                    sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
                }
            };
            joined += usize::from(done.is_ok());
        }
        joined > 0
    }
}

fn mreqn(group: [u8; 4], index: libc::c_int) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group) },
        imr_address: libc::in_addr { s_addr: u32::from(Ipv4Addr::UNSPECIFIED) },
        imr_ifindex: index,
    }
}

fn index_and_mtu(name: &str) -> Option<(u32, usize)> {
    // An alias (eth0:1) is its interface.
    let name = name.split(':').next().unwrap_or(name);
    let found = sys::interface(name).ok().flatten()?;
    Some((found.index, found.mtu))
}

/// All addresses here, for messages.
pub(super) fn addresses() -> String {
    let all: Vec<String> = sys::interface_addrs()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|e| e.ip.map(|ip| format!("{ip} ({})", e.name)))
        .collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}
