//! Suite 0: CRC32C over scattered frames, as their tag (`docs/protocol.md`, "Frame header").
//!
//! `crc-fast` takes a quarter of the time of `crc32c` for the two 4 KiB pieces of a jumbo frame
//! (0.2 us against 0.8 us on the reference machine) and no more for small frames; with the slower
//! one the checksum was the largest single cost of a bulk read. The tests of the wire crate use
//! the other, so that the two check each other.

use std::cell::RefCell;

use crc_fast::{CrcAlgorithm, Digest};
use thinwire_buffer::{RxFrame, TxFrame};
use thinwire_wire::{FrameError, HEADER_BYTES, Header, TAG_AT, TAG_BYTES};

thread_local! {
    /// A digest carries 200 bytes of constants: they are copied once a thread, not once a frame.
    static DIGEST: RefCell<Digest> = RefCell::new(Digest::new(CrcAlgorithm::Crc32Iscsi));
}

/// The CRC32C of what `add` adds.
#[inline(always)]
pub(crate) fn crc32c(add: impl FnOnce(&mut Digest)) -> u32 {
    DIGEST.with_borrow_mut(|digest| {
        digest.reset();
        add(digest);
        digest.finalize() as u32
    })
}

/// The tag of what `add` adds.
#[inline(always)]
fn tag_of(add: impl FnOnce(&mut Digest)) -> [u8; TAG_BYTES] {
    let mut tag = [0; TAG_BYTES];
    tag[..4].copy_from_slice(&crc32c(add).to_be_bytes());
    tag
}

/// Seals a frame whose header has just been written, with an empty tag. The frame's head may be changed.
/// Its data may not, since others keep it by reference, but may be replaced: a suite with a key puts the one
/// copy that it makes there.
pub fn seal(frame: &mut TxFrame) {
    debug_assert_eq!(frame.head[TAG_AT..][..TAG_BYTES], [0; TAG_BYTES]);
    let tag = tag_of(|digest| {
        digest.update(&frame.head);
        frame.data.iter().for_each(|segment| digest.update(segment));
    });
    frame.head[TAG_AT..][..TAG_BYTES].copy_from_slice(&tag);
}

/// Whether the tag of a received frame fits, which may have padding behind it and be in pieces.
#[inline]
pub(crate) fn check(header: &Header, rx: &RxFrame) -> Result<(), FrameError> {
    let (head, after) = rx.bytes.split_first_chunk().ok_or(FrameError::Truncated)?;
    let mut head: [u8; HEADER_BYTES] = *head;
    // A copy with an empty tag: one call for it costs less than one for what stands on each side.
    let told: [u8; TAG_BYTES] = head[TAG_AT..][..TAG_BYTES].try_into().expect("as many bytes");
    head[TAG_AT..][..TAG_BYTES].fill(0);
    let tag = tag_of(|digest| {
        digest.update(&head);
        let mut left = usize::from(header.length) - HEADER_BYTES;
        let here = left.min(after.len());
        digest.update(&after[..here]);
        left -= here;
        for segment in rx.rest.iter() {
            let here = left.min(segment.len());
            digest.update(&segment[..here]);
            left -= here;
        }
    });
    if tag == told { Ok(()) } else { Err(FrameError::Checksum) }
}
