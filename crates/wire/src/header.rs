//! The fixed header of every frame (`docs/protocol.md`, "Frame header"): a public part, which steers a
//! frame and finds its session, and a sealed part, which means nothing before the frame is unsealed.

use alloc::vec::Vec;

use crate::numbers::flags;
use crate::{FrameError, Kind};

/// The protocol version this crate speaks.
pub const VERSION: u8 = 2;

/// The suite without a key: a CRC32C as tag.
pub const SUITE_CRC32C: u8 = 0;
/// The highest number of a suite: those from 1 up have a key.
pub const SUITE_MAX: u8 = 4;

/// Length of the public part of the header in bytes, the tag included.
pub const PUBLIC_BYTES: usize = 48;

/// Length of the frame header in bytes.
pub const HEADER_BYTES: usize = 80;

/// Where the tag stands in the header.
pub const TAG_AT: usize = 32;
/// Bytes of the tag.
pub const TAG_BYTES: usize = 16;

/// Where payload starts in frames that this implementation sends: receivers place a frame so that
/// this offset falls on a page border.
pub const DATA_OFFSET: usize = 192;

/// The longest frame there can be.
pub const FRAME_BYTES_MAX: usize = 65_535;

/// Every path carries frames of this size, or it is not a path.
pub const BASE_FRAME_BYTES_MIN: usize = 1_232;

const _: () = {
    assert!(DATA_OFFSET <= 192 && HEADER_BYTES < DATA_OFFSET);
    assert!(TAG_AT + TAG_BYTES == PUBLIC_BYTES && PUBLIC_BYTES < HEADER_BYTES);
};

/// The public part of the header, checked: what may be known of a frame before it is unsealed.
///
/// ```text
///  0        1        2        3        4                 6                 8
/// +--------+--------+--------+--------+-----------------+-----------------+
/// |version | kind   | suite  | phase  | length          | data offset     |
/// +--------+--------+--------+--------+-----------------+-----------------+  8
/// | session (of the receiver)                                             |
/// +-----------------------------------------------------------------------+ 16
/// | packet number                                                         |
/// +-----------------------------------+-----------------+--------+--------+ 24
/// | epoch                             | messages end    | path   | 0      |
/// +-----------------------------------+-----------------+--------+--------+ 32
/// | tag, by the suite (of suite 0: CRC32C, then zeroes)                   |
/// |                                                                       |
/// +--------+--------+-----------------+-----------------------------------+ 48
/// | flags  |ack path| ack delay (4us) | credit slots                      |
/// +--------+--------+-----------------+-----------------------------------+ 56
/// | ack largest                                                           |
/// +-----------------------------------------------------------------------+ 64
/// | ack bitmap (bit i: largest - 1 - i was received)                      |
/// +-----------------------------------------------------------------------+ 72
/// | credit bytes                                                          |
/// +-----------------------------------------------------------------------+ 80
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What kind of frame.
    pub kind: Kind,
    /// How it is sealed: [`SUITE_CRC32C`], or with a key, as only frames of sessions are.
    pub suite: u8,
    /// Which of the keys of the suite; 0 for suite 0.
    pub key_phase: u8,
    /// Bytes of the whole frame, without what the link padded.
    pub length: u16,
    /// Where the payload starts; equals `length` if there is none.
    pub data_offset: u16,
    /// Where the messages end.
    pub messages_end: u16,
    /// The id that the receiver chose for the session, or asked for; 0 if it has not told any.
    pub session: u64,
    /// Which life of the session.
    pub epoch: u32,
    /// Per path, direction and epoch; never reused. 0 in frames outside a session.
    pub packet_number: u64,
    /// The path this frame travels on.
    pub path: u8,
}

impl Header {
    /// A header of the given kind with everything else zero.
    pub fn new(kind: Kind) -> Self {
        Header {
            kind,
            suite: SUITE_CRC32C,
            key_phase: 0,
            length: 0,
            data_offset: 0,
            messages_end: 0,
            session: 0,
            epoch: 0,
            packet_number: 0,
            path: 0,
        }
    }

    /// Writes the public part over the first [`PUBLIC_BYTES`] of `out`, with an empty tag.
    ///
    /// # Panics
    /// If `out` is shorter.
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        let out = out.first_chunk_mut::<PUBLIC_BYTES>().expect("there is room for a header");
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[2] = self.suite;
        out[3] = self.key_phase;
        out[4..6].copy_from_slice(&self.length.to_be_bytes());
        out[6..8].copy_from_slice(&self.data_offset.to_be_bytes());
        out[8..16].copy_from_slice(&self.session.to_be_bytes());
        out[16..24].copy_from_slice(&self.packet_number.to_be_bytes());
        out[24..28].copy_from_slice(&self.epoch.to_be_bytes());
        out[28..30].copy_from_slice(&self.messages_end.to_be_bytes());
        out[30] = self.path;
        out[31..].fill(0);
    }

    /// Reserves the header's place at the start of an empty frame, with nothing in its sealed part.
    pub fn reserve(out: &mut Vec<u8>) {
        debug_assert!(out.is_empty());
        out.resize(HEADER_BYTES, 0);
    }

    /// Checks and reads the public part of a frame that begins with `head` and has `total` bytes, padding
    /// included. What it says may be a lie until the frame is unsealed.
    #[inline]
    pub fn parse(head: &[u8], total: usize) -> Result<Header, FrameError> {
        // Before all else, since the headers of other versions have another length.
        if head.first().is_some_and(|&version| version != VERSION) {
            return Err(FrameError::Version);
        }
        let Some(h) = head.first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Truncated);
        };
        let u16_at = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let u64_at = |at: usize| (u64::from(u32_at(at)) << 32) | u64::from(u32_at(at + 4));
        let header = Header {
            kind: Kind::known(h[1]).ok_or(FrameError::Kind)?,
            suite: h[2],
            key_phase: h[3],
            length: u16_at(4),
            data_offset: u16_at(6),
            session: u64_at(8),
            packet_number: u64_at(16),
            epoch: u32_at(24),
            messages_end: u16_at(28),
            path: h[30],
        };
        // Only who has a session has keys for its frames.
        if header.suite > SUITE_MAX || header.suite != SUITE_CRC32C && !header.kind.is_numbered() {
            return Err(FrameError::Suite);
        }
        let numbers = header.packet_number | u64::from(header.epoch) | u64::from(header.path);
        let phase = if header.suite == SUITE_CRC32C { header.key_phase } else { 0 };
        if phase | h[31] != 0 || (!header.kind.is_numbered() && numbers != 0) {
            return Err(FrameError::Reserved);
        }
        if header.length as usize > total {
            return Err(FrameError::Truncated);
        }
        let ordered = HEADER_BYTES <= header.messages_end as usize
            && header.messages_end <= header.data_offset
            && header.data_offset <= header.length;
        // Without payload all three borders coincide: there is one way to say it.
        let gap_without_payload =
            header.data_offset == header.length && header.messages_end != header.length;
        if !ordered || gap_without_payload {
            return Err(FrameError::Layout);
        }
        Ok(header)
    }
}

/// The sealed part of the header, checked: acknowledgement and credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// See [`flags`].
    pub flags: u8,
    /// The path that the acknowledgement is about.
    pub ack_path: u8,
    /// How long the largest received frame waited for this acknowledgement, in units of 4 us,
    /// saturating.
    pub ack_delay: u16,
    /// Running total of requests that the receiver of this frame may have sent since the session
    /// began.
    pub credit_slots: u32,
    /// Largest packet number received on `ack_path`.
    pub ack_largest: u64,
    /// Bit `i` set: `ack_largest - 1 - i` was received.
    pub ack_bitmap: u64,
    /// Running total of data bytes, likewise.
    pub credit_bytes: u64,
}

impl Feedback {
    /// Writes it behind the public part of the header that `out` begins with.
    ///
    /// # Panics
    /// If `out` is shorter than a header.
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        let out = out.first_chunk_mut::<HEADER_BYTES>().expect("there is room for a header");
        out[48] = self.flags;
        out[49] = self.ack_path;
        out[50..52].copy_from_slice(&self.ack_delay.to_be_bytes());
        out[52..56].copy_from_slice(&self.credit_slots.to_be_bytes());
        out[56..64].copy_from_slice(&self.ack_largest.to_be_bytes());
        out[64..72].copy_from_slice(&self.ack_bitmap.to_be_bytes());
        out[72..80].copy_from_slice(&self.credit_bytes.to_be_bytes());
    }

    /// Checks and reads it from an unsealed header of this kind.
    #[inline]
    pub(crate) fn parse(kind: Kind, head: &[u8]) -> Result<Feedback, FrameError> {
        let h = head.first_chunk::<HEADER_BYTES>().ok_or(FrameError::Truncated)?;
        let u16_at = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let u64_at = |at: usize| (u64::from(u32_at(at)) << 32) | u64::from(u32_at(at + 4));
        let feedback = Feedback {
            flags: h[48],
            ack_path: h[49],
            ack_delay: u16_at(50),
            credit_slots: u32_at(52),
            ack_largest: u64_at(56),
            ack_bitmap: u64_at(64),
            credit_bytes: u64_at(72),
        };
        let Feedback { ack_path, ack_delay, ack_largest, ack_bitmap, .. } = feedback;
        // Fields without their flag are reserved: there is one way to say nothing.
        let known = if kind == Kind::Session { flags::KNOWN } else { 0 };
        let acks = u64::from(ack_path) | u64::from(ack_delay) | ack_largest | ack_bitmap;
        let credits = u64::from(feedback.credit_slots) | feedback.credit_bytes;
        if feedback.flags & !known != 0
            || feedback.flags & flags::ACK == 0 && acks != 0
            || feedback.flags & flags::CREDIT == 0 && credits != 0
        {
            return Err(FrameError::Reserved);
        }
        // There are no packet numbers below zero to acknowledge.
        if ack_largest < 64 && ack_bitmap >> ack_largest != 0 {
            return Err(FrameError::Reserved);
        }
        Ok(feedback)
    }
}
