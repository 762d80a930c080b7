//! Frames of one message: handshake, discovery, probes.

use std::net::{IpAddr, SocketAddr};

use thinwire_buffer::{Addr, TxBatch, TxFrame};
use thinwire_wire::{Address, Header, Kind};

use crate::seal;

/// Adds a frame without a key, with one message, which `body` appends, to `batch`. `pad_to` lengthens it
/// with zeroes (probes only).
pub fn outside_frame(
    batch: &mut TxBatch,
    to: Addr,
    header: Header,
    pad_to: usize,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let (_, frame) = frame_of_one(batch, to, header, pad_to, body);
    frame.is_outside = true;
    seal(frame);
}

/// The same, not sealed yet.
pub(crate) fn frame_of_one(
    batch: &mut TxBatch,
    to: Addr,
    mut header: Header,
    pad_to: usize,
    body: impl FnOnce(&mut Vec<u8>),
) -> (Header, &mut TxFrame) {
    debug_assert!(header.kind != Kind::Session);
    let frame = batch.push(to);
    Header::reserve(&mut frame.head);
    body(&mut frame.head);
    let messages_end = frame.head.len();
    if frame.head.len() < pad_to {
        frame.head.resize(pad_to, 0);
    }
    header.messages_end = messages_end as u16;
    header.data_offset = messages_end as u16;
    header.length = frame.head.len() as u16;
    header.write(&mut frame.head);
    (header, frame)
}

/// A link address as it is written in a WELCOME; `None` for those that mean nothing elsewhere.
pub fn addr_to_wire(addr: Addr) -> Option<Address> {
    Some(match addr {
        Addr::Group => return None,
        Addr::Mac(mac) => Address::Mac(mac),
        Addr::Sim(n) => Address::Sim(n),
        Addr::Udp(at) if at.ip().is_unspecified() => return None,
        Addr::Udp(SocketAddr::V4(at)) => Address::V4(at.ip().octets(), at.port()),
        Addr::Udp(SocketAddr::V6(at)) => Address::V6(at.ip().octets(), at.port()),
    })
}

/// The inverse of [`addr_to_wire`].
pub fn addr_from_wire(address: Address) -> Addr {
    match address {
        Address::Mac(mac) => Addr::Mac(mac),
        Address::Sim(n) => Addr::Sim(n),
        Address::V4(ip, port) => Addr::Udp(SocketAddr::new(IpAddr::from(ip), port)),
        Address::V6(ip, port) => Addr::Udp(SocketAddr::new(IpAddr::from(ip), port)),
    }
}
