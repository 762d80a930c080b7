//! CRC32C over scattered frames (`docs/protocol.md`, "Frame header").
//!
//! `crc-fast` takes a quarter of the time of `crc32c` for the two 4 KiB pieces of a jumbo frame
//! (0.2 us against 0.8 us on the reference machine) and no more for small frames; with the slower
//! one the checksum was the largest single cost of a bulk read. The tests of the wire crate use
//! the other, so that the two check each other.

use crc_fast::{CrcAlgorithm, Digest};
use thinwire_buffer::{SegList, TxFrame};
use thinwire_wire::{FrameError, checksum_split_head};

fn digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

/// Fills in the checksum of a frame whose header has just been written, with zeroes in its place.
pub fn seal(frame: &mut TxFrame) {
    debug_assert_eq!(frame.head[16..20], [0; 4]);
    let mut digest = digest();
    digest.update(&frame.head);
    for segment in frame.data.iter() {
        digest.update(segment);
    }
    frame.head[16..20].copy_from_slice(&(digest.finalize() as u32).to_be_bytes());
}

/// Checks the checksum of a received frame, which may have padding behind it and more pieces, `rest`,
/// than the first.
pub fn verify(first: &[u8], rest: &SegList) -> Result<(), FrameError> {
    let total = first.len() + rest.bytes();
    let (field, before, after, mut behind) =
        checksum_split_head(first, total).ok_or(FrameError::Truncated)?;
    let mut digest = digest();
    digest.update(before);
    digest.update(&[0; 4]);
    digest.update(after);
    for segment in rest.iter() {
        let here = behind.min(segment.len());
        digest.update(&segment[..here]);
        behind -= here;
    }
    if digest.finalize() as u32 == field { Ok(()) } else { Err(FrameError::Checksum) }
}
