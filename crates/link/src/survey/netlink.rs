//! Questions to the kernel over netlink: what the driver of an interface can do with XDP, and which
//! program is attached to it. (`Documentation/netlink/specs/netdev.yaml` and `rt-link.yaml` of the
//! kernel have the numbers.)

use std::io;
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendFlags};

use crate::sys;

/// What a driver can do, as the kernel lists it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// Runs programs.
    pub(super) native: bool,
    /// Programs may redirect frames to sockets.
    pub(super) redirect: bool,
    /// Frames reach sockets without a copy.
    pub(super) zero_copy: bool,
    /// Frames may have several buffers.
    pub(super) fragments: bool,
    /// So many, without a copy.
    pub(super) zero_copy_pieces: u32,
}

const ROUTE: libc::c_int = 0;
const GENERIC: libc::c_int = 16;
const HEADER_BYTES: usize = 16;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const DEVICE_GET: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_XDP_FEATURES: u16 = 3;
const DEVICE_ZERO_COPY_PIECES: u16 = 4;
const LINK_GET: u16 = 18;
const LINK_LOWER: u16 = 5;
const LINK_INFO: u16 = 18;
const LINK_INFO_KIND: u16 = 1;
const LINK_XDP: u16 = 43;
const LINK_XDP_PROGRAM: u16 = 4;
/// Attribute types may carry two flags.
const TYPE_MASK: u16 = 0x3fff;

/// What the driver of an interface can do. Fails on kernels before 6.3, which do not tell.
pub(super) fn features(index: u32) -> io::Result<Features> {
    let family = ask(GENERIC, CONTROL, &[CONTROL_GET_FAMILY, 2, 0, 0], FAMILY_NAME, b"netdev\0")?;
    let id = attribute(&family[4..], FAMILY_ID).and_then(number).ok_or_else(unasked)? as u16;
    let device = ask(GENERIC, id, &[DEVICE_GET, 1, 0, 0], DEVICE_INDEX, &index.to_ne_bytes())?;
    let device = &device[4..];
    let bits = attribute(device, DEVICE_XDP_FEATURES).and_then(number).ok_or_else(unasked)?;
    let has = |bit: u32| bits >> bit & 1 != 0;
    Ok(Features {
        native: has(0),
        redirect: has(1),
        zero_copy: has(3),
        fragments: has(5),
        zero_copy_pieces: attribute(device, DEVICE_ZERO_COPY_PIECES)
            .and_then(number)
            .map_or(1, |pieces| pieces as u32),
    })
}

/// The number of the program that is attached to an interface, if there is one.
pub(super) fn attached_program(index: u32) -> io::Result<Option<u32>> {
    let link = link(index)?;
    let xdp = attribute(&link, LINK_XDP).unwrap_or_default();
    Ok(attribute(xdp, LINK_XDP_PROGRAM).and_then(number).map(|id| id as u32).filter(|&id| id != 0))
}

/// The number of the interface that this one is a VLAN of, if it is one.
pub(super) fn vlan_of(index: u32) -> io::Result<Option<u32>> {
    Ok(lower_of_vlan(&link(index)?))
}

fn lower_of_vlan(link: &[u8]) -> Option<u32> {
    let kind = attribute(attribute(link, LINK_INFO)?, LINK_INFO_KIND)?;
    let lower = attribute(link, LINK_LOWER).and_then(number)?;
    (kind == b"vlan\0").then_some(lower as u32)
}

/// The attributes of an interface.
fn link(index: u32) -> io::Result<Vec<u8>> {
    // struct ifinfomsg: family, padding, type, index, flags, change.
    let mut about = [0; 16];
    about[4..8].copy_from_slice(&index.to_ne_bytes());
    // An attribute is not needed; the name of none is the shortest.
    let mut link = ask(ROUTE, LINK_GET, &about, 0, &[])?;
    Ok(link.split_off(about.len().min(link.len())))
}

fn unasked() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel answered something else")
}

/// Sends one question, of a fixed part and an attribute (left out if it is empty), and returns the
/// body of the answer.
fn ask(
    protocol: libc::c_int,
    kind: u16,
    fixed: &[u8],
    attribute: u16,
    value: &[u8],
) -> io::Result<Vec<u8>> {
    let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    let mut question = vec![0; HEADER_BYTES];
    question[4..6].copy_from_slice(&kind.to_ne_bytes());
    question[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    question.extend_from_slice(fixed);
    if !value.is_empty() {
        question.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        question.extend_from_slice(&attribute.to_ne_bytes());
        question.extend_from_slice(value);
        question.resize(question.len().next_multiple_of(4), 0);
    }
    let len = question.len() as u32;
    question[..4].copy_from_slice(&len.to_ne_bytes());
    rustix::net::send(&socket, &question, SendFlags::empty())?;
    // The kernel answers such questions before the call returns.
    let mut answer = vec![0; 64 << 10];
    let (got, _) = rustix::net::recv(socket.as_fd(), &mut answer[..], RecvFlags::empty())?;
    answer.truncate(got);
    let kind = answer.get(4..6).ok_or_else(unasked)?;
    if kind == ERROR.to_ne_bytes() {
        let errno = answer.get(16..20).and_then(number).ok_or_else(unasked)? as i32;
        return Err(io::Error::from_raw_os_error(-errno));
    }
    let body = answer.split_off(HEADER_BYTES.min(answer.len()));
    if body.len() < 4 { Err(unasked()) } else { Ok(body) }
}

/// The value of the first attribute of this type.
fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(&[l0, l1, t0, t1]) = list.first_chunk::<4>() {
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = list.get(4..len)?;
        if u16::from_ne_bytes([t0, t1]) & TYPE_MASK == wanted {
            return Some(value);
        }
        list = list.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// A number of 16, 32 or 64 bits.
fn number(value: &[u8]) -> Option<u64> {
    Some(match value.len() {
        2 => u16::from_ne_bytes(value.try_into().ok()?).into(),
        4 => u32::from_ne_bytes(value.try_into().ok()?).into(),
        8 => u64::from_ne_bytes(value.try_into().ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_damage_ends_the_list() {
        let mut list = vec![5, 0, 1, 0, 9, 0, 0, 0];
        list.extend([8, 0, 3, 0x80, 1, 2, 3, 4]);
        assert_eq!(attribute(&list, 1), Some(&[9][..]));
        assert_eq!(attribute(&list, 3), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&list, 2), None);
        list[8] = 9;
        assert_eq!(attribute(&list, 3), None, "longer than the list");
        list[0] = 3;
        assert_eq!(attribute(&list, 1), None, "shorter than its own head");
    }

    #[test]
    fn a_vlan_is_told_from_others_that_stand_on_an_interface() {
        let link = |kind: &[u8]| {
            let mut link = vec![8, 0, LINK_LOWER as u8, 0, 7, 0, 0, 0];
            let kind_len = 4 + kind.len() as u8;
            link.extend([4 + kind_len.next_multiple_of(4), 0, LINK_INFO as u8, 0]);
            link.extend([kind_len, 0, LINK_INFO_KIND as u8, 0]);
            link.extend(kind);
            link.resize(link.len().next_multiple_of(4), 0);
            link
        };
        assert_eq!(lower_of_vlan(&link(b"vlan\0")), Some(7));
        assert_eq!(lower_of_vlan(&link(b"macvlan\0")), None);
        assert_eq!(lower_of_vlan(&link(b"vlan\0")[..8]), None);
        let lo = sys::interface("lo").unwrap().unwrap();
        assert_eq!(vlan_of(lo.index).unwrap(), None);
    }

    #[test]
    fn loopback_has_no_program() {
        let lo = sys::interface("lo").unwrap().unwrap();
        assert_eq!(attached_program(lo.index).unwrap(), None);
        assert!(attached_program(0x7fff_ffff).is_err());
    }
}
