//! CRC32C over scattered frames (`docs/protocol.md`, "Frame header").

use thinwire_buffer::TxFrame;
use thinwire_wire::{FrameError, checksum_split};

/// Fills in the checksum of a frame whose header has been written.
pub fn seal(frame: &mut TxFrame) {
    let mut crc = crc32c::crc32c(&frame.head[..16]);
    crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc = crc32c::crc32c_append(crc, &frame.head[20..]);
    for segment in frame.data.iter() {
        crc = crc32c::crc32c_append(crc, segment);
    }
    frame.head[16..20].copy_from_slice(&crc.to_be_bytes());
}

/// Checks the checksum of a received frame, which may have padding behind it.
pub fn verify(frame: &[u8]) -> Result<(), FrameError> {
    let (field, before, after) = checksum_split(frame).ok_or(FrameError::Truncated)?;
    let mut crc = crc32c::crc32c(before);
    crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc = crc32c::crc32c_append(crc, after);
    if crc == field { Ok(()) } else { Err(FrameError::Checksum) }
}
