//! Shared by the tests: sample messages, frames built from them, and the way back from a checked
//! message to bytes.
#![allow(dead_code, reason = "each test binary uses its part")]

use thinwire_wire::*;

pub mod capture;
pub mod fields;
pub mod random;
pub mod samples;
pub mod stock;

/// Appends `message` as its sender would have written it. With [`Message::Data`] this is the
/// header alone; the payload is the caller's.
pub fn emit(message: &Message<'_>, out: &mut Vec<u8>) {
    match message {
        Message::Request(m) => m.emit(out),
        Message::Data(d) => DataHeader {
            slot: d.slot,
            reserved: Default::default(),
            sequence: d.sequence,
            offset: d.offset,
            length: d.length,
        }
        .emit(out),
        Message::Complete(m) => m.emit(out),
        Message::AckRanges(m) => m.emit(out),
        Message::Credit(m) => m.emit(out),
        Message::Reset(m) => m.emit(out),
        Message::ResetDone(m) => m.emit(out),
        Message::Event(m) => m.emit(out),
        Message::Ping(m) => m.emit(out),
        Message::Attach(m) => m.emit(out),
        Message::Attached(m) => m.emit(out),
        Message::AttachRefused(m) => m.emit(out),
        Message::Detach(m) => m.emit(out),
        Message::Detached(m) => m.emit(out),
        Message::Bye(m) => m.emit(out),
        Message::AskClocks(m) => m.emit(out),
        Message::Clocks(m) => m.emit(out),
        Message::Hello(m) => m.emit(out),
        Message::Retry(m) => m.emit(out),
        Message::Welcome(m) => m.emit(out),
        Message::Refuse(m) => m.emit(out),
        Message::UnknownSession(m) => m.emit(out),
        Message::Discover(m) => m.emit(out),
        Message::Offer(m) => {
            let start = out.len();
            let names = m.exports.iter();
            let (first, total) = (m.first, m.total);
            let most = usize::MAX;
            Offer::emit(m.nonce, m.instance, m.node, first, total, m.cookie, names, most, out);
            // This implementation always runs without keys; others may not.
            out[start + OFFER_SECURITY_AT] = m.security;
        }
        Message::Probe(m) => m.emit(out),
        Message::ProbeReply(m) => m.emit(out),
    }
}

/// Where an OFFER has its security byte.
const OFFER_SECURITY_AT: usize = 32;

/// A whole frame with a right checksum: `header`'s lengths are filled in; the payload, if any,
/// starts at [`DATA_OFFSET`] or where the messages end, whichever is later.
pub fn frame(mut header: Header, messages: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Header::reserve(&mut out);
    out.extend_from_slice(messages);
    header.messages_end = out.len() as u16;
    if !payload.is_empty() {
        out.resize(out.len().max(DATA_OFFSET), 0);
    }
    header.data_offset = out.len() as u16;
    out.extend_from_slice(payload);
    header.length = u16::try_from(out.len()).expect("the frame fits its length field");
    header.write(&mut out);
    seal(&mut out);
    out
}

/// Writes the right checksum into a frame.
pub fn seal(frame: &mut [u8]) {
    let (_, before, after) = checksum_split(frame).expect("long enough");
    let sum = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), after);
    frame[16..20].copy_from_slice(&sum.to_be_bytes());
}

/// True if the checksum is right.
pub fn sealed(frame: &[u8]) -> bool {
    let mut copy = frame.to_vec();
    seal(&mut copy);
    copy == frame
}
