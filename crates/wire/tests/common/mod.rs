//! Shared by the tests: sample messages and frames built from them.
#![allow(dead_code, reason = "each test binary uses its part")]

use thinwire_wire::*;

pub mod capture;
pub mod consistent;
pub mod fields;
pub mod hex;
pub mod lua;
pub mod random;
pub mod samples;
pub mod stock;

/// A whole frame with a right checksum: `header`'s lengths are filled in; the payload, if any,
/// starts at [`DATA_OFFSET`] or where the messages end, whichever is later.
pub fn frame(header: Header, messages: &[u8], payload: &[u8]) -> Vec<u8> {
    frame_with(header, Feedback::default(), messages, payload)
}

/// [`frame`] with something in the sealed part of the header.
pub fn frame_with(
    mut header: Header,
    feedback: Feedback,
    messages: &[u8],
    payload: &[u8],
) -> Vec<u8> {
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
    feedback.write(&mut out);
    seal(&mut out);
    out
}

/// How many bytes of what came are the frame, if there is a header and as much as it says.
pub fn length(frame: &[u8]) -> Option<usize> {
    let length = usize::from(u16::from_be_bytes([*frame.get(4)?, *frame.get(5)?]));
    (HEADER_BYTES..=frame.len()).contains(&length).then_some(length)
}

/// Writes the right tag into a frame.
pub fn seal(frame: &mut [u8]) {
    let tag = &mut frame[TAG_AT..][..TAG_BYTES];
    tag.fill(0);
    let sum = crc32c::crc32c(frame);
    frame[TAG_AT..][..4].copy_from_slice(&sum.to_be_bytes());
}

/// True if the tag is right.
pub fn sealed(frame: &[u8]) -> bool {
    let mut copy = frame.to_vec();
    seal(&mut copy);
    copy == frame
}

/// What a receiver makes of a frame, tag and all.
pub fn unsealed(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
    let header = Header::parse(bytes, bytes.len())?;
    if !sealed(&bytes[..usize::from(header.length)]) {
        return Err(FrameError::Checksum);
    }
    Frame::open(header, bytes)
}
