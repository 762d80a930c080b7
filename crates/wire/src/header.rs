//! The fixed header of every frame (`docs/protocol.md`, "Frame header").

use alloc::vec::Vec;

use crate::FrameError;

/// The protocol version this crate speaks.
pub const VERSION: u8 = 2;

/// Length of the frame header in bytes.
pub const HEADER_BYTES: usize = 72;

/// Where payload starts in frames that this implementation sends: receivers place a frame so that
/// this offset falls on a page border.
pub const DATA_OFFSET: usize = 192;

/// The longest frame there can be.
pub const FRAME_BYTES_MAX: usize = 65_535;

/// Every path carries frames of this size, or it is not a path.
pub const BASE_FRAME_BYTES_MIN: usize = 1_232;

const _: () = assert!(DATA_OFFSET <= 192 && HEADER_BYTES < DATA_OFFSET);

/// Bits of [`Header::flags`].
pub mod flags {
    /// The acknowledgement fields are valid.
    pub const ACK: u16 = 1 << 0;
    /// The credit fields are valid.
    pub const CREDIT: u16 = 1 << 1;
    /// All bits that this version knows.
    pub const KNOWN: u16 = ACK | CREDIT;
}

/// What kind of frame this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Messages of an established session.
    Session = 1,
    /// An initiator asks for a session.
    Hello = 2,
    /// A target grants one.
    Welcome = 3,
    /// A target declines.
    Refuse = 4,
    /// Who is there?
    Discover = 5,
    /// A target answers.
    Offer = 6,
    /// Does this path carry a frame of this size?
    Probe = 7,
    /// It does: the answer to a PROBE, not padded.
    ProbeReply = 8,
    /// The session id of your frame means nothing here.
    UnknownSession = 9,
    /// A target asks the sender of a HELLO to show that it receives.
    Retry = 10,
}

impl Kind {
    pub(crate) fn from_number(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Session,
            2 => Kind::Hello,
            3 => Kind::Welcome,
            4 => Kind::Refuse,
            5 => Kind::Discover,
            6 => Kind::Offer,
            7 => Kind::Probe,
            8 => Kind::ProbeReply,
            9 => Kind::UnknownSession,
            10 => Kind::Retry,
            _ => return None,
        })
    }
}

/// The header's values, checked.
///
/// ```text
///  0        1        2                 4                 6
/// +--------+--------+-----------------+-----------------+-----------------+
/// |version | kind   | flags           | length          | data offset     |
/// +--------+--------+-----------------+-----------------+-----------------+  8
/// | session (of the receiver)                                            |
/// +-----------------------------------+-----------------------------------+ 16
/// | checksum (CRC32C)                 | epoch                             |
/// +-----------------------------------+-----------------------------------+ 24
/// | packet number                                                         |
/// +--------+--------+-----------------+-----------------+-----------------+ 32
/// | path   |ack path| ack delay (4us) | messages end    | reserved        |
/// +--------+--------+-----------------+-----------------+-----------------+ 40
/// | ack largest                                                           |
/// +-----------------------------------------------------------------------+ 48
/// | ack bitmap (bit i: largest - 1 - i was received)                      |
/// +-----------------------------------+-----------------------------------+ 56
/// | credit slots                      | reserved                          |
/// +-----------------------------------+-----------------------------------+ 64
/// | credit bytes                                                          |
/// +-----------------------------------------------------------------------+ 72
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What kind of frame.
    pub kind: Kind,
    /// See [`flags`].
    pub flags: u16,
    /// Bytes of the whole frame, without what the link padded.
    pub length: u16,
    /// Where the payload starts; equals `length` if there is none.
    pub data_offset: u16,
    /// Where the messages end.
    pub messages_end: u16,
    /// The id that the receiver chose for the session; 0 before there is one.
    pub session: u64,
    /// Which life of the session.
    pub epoch: u32,
    /// Per path, direction and epoch; never reused. 0 in frames outside a session.
    pub packet_number: u64,
    /// The path this frame travels on.
    pub path: u8,
    /// The path that the acknowledgement is about.
    pub ack_path: u8,
    /// How long the largest received frame waited for this acknowledgement, in units of 4 us,
    /// saturating.
    pub ack_delay: u16,
    /// Largest packet number received on `ack_path`.
    pub ack_largest: u64,
    /// Bit `i` set: `ack_largest - 1 - i` was received.
    pub ack_bitmap: u64,
    /// Running total of requests that the receiver of this frame may have sent since the session
    /// began.
    pub credit_slots: u32,
    /// Running total of data bytes, likewise.
    pub credit_bytes: u64,
}

impl Header {
    /// A header of the given kind with everything else zero.
    pub fn new(kind: Kind) -> Self {
        Header {
            kind,
            flags: 0,
            length: 0,
            data_offset: 0,
            messages_end: 0,
            session: 0,
            epoch: 0,
            packet_number: 0,
            path: 0,
            ack_path: 0,
            ack_delay: 0,
            ack_largest: 0,
            ack_bitmap: 0,
            credit_slots: 0,
            credit_bytes: 0,
        }
    }

    /// Writes the header over the first [`HEADER_BYTES`] of `out`, with a zero checksum.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn write(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_BYTES];
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[2..4].copy_from_slice(&self.flags.to_be_bytes());
        out[4..6].copy_from_slice(&self.length.to_be_bytes());
        out[6..8].copy_from_slice(&self.data_offset.to_be_bytes());
        out[8..16].copy_from_slice(&self.session.to_be_bytes());
        out[16..20].fill(0);
        out[20..24].copy_from_slice(&self.epoch.to_be_bytes());
        out[24..32].copy_from_slice(&self.packet_number.to_be_bytes());
        out[32] = self.path;
        out[33] = self.ack_path;
        out[34..36].copy_from_slice(&self.ack_delay.to_be_bytes());
        out[36..38].copy_from_slice(&self.messages_end.to_be_bytes());
        out[38..40].fill(0);
        out[40..48].copy_from_slice(&self.ack_largest.to_be_bytes());
        out[48..56].copy_from_slice(&self.ack_bitmap.to_be_bytes());
        out[56..60].copy_from_slice(&self.credit_slots.to_be_bytes());
        out[60..64].fill(0);
        out[64..72].copy_from_slice(&self.credit_bytes.to_be_bytes());
    }

    /// Reserves the header's place at the start of an empty frame.
    pub fn reserve(out: &mut Vec<u8>) {
        debug_assert!(out.is_empty());
        out.resize(HEADER_BYTES, 0);
    }

    /// Checks and reads the header of a frame that begins with `head` and has `total` bytes,
    /// padding included.
    pub(crate) fn parse(head: &[u8], total: usize) -> Result<Header, FrameError> {
        let Some(h) = head.first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Truncated);
        };
        if h[0] != VERSION {
            return Err(FrameError::Version);
        }
        let u16_at = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let u64_at = |at: usize| (u64::from(u32_at(at)) << 32) | u64::from(u32_at(at + 4));
        let header = Header {
            kind: Kind::from_number(h[1]).ok_or(FrameError::Kind)?,
            flags: u16_at(2),
            length: u16_at(4),
            data_offset: u16_at(6),
            session: u64_at(8),
            epoch: u32_at(20),
            packet_number: u64_at(24),
            path: h[32],
            ack_path: h[33],
            ack_delay: u16_at(34),
            messages_end: u16_at(36),
            ack_largest: u64_at(40),
            ack_bitmap: u64_at(48),
            credit_slots: u32_at(56),
            credit_bytes: u64_at(64),
        };
        if header.flags & !flags::KNOWN != 0 || u16_at(38) != 0 || u32_at(60) != 0 {
            return Err(FrameError::Reserved);
        }
        // Fields without their flag are reserved: there is one way to say nothing.
        if header.flags & flags::ACK == 0 && h[33..36].iter().chain(&h[40..56]).any(|&b| b != 0)
            || header.flags & flags::CREDIT == 0 && h[56..72].iter().any(|&b| b != 0)
        {
            return Err(FrameError::Reserved);
        }
        // There are no packet numbers below zero to acknowledge.
        if header.ack_largest < 64 && header.ack_bitmap >> header.ack_largest != 0 {
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

/// The frame's checksum field and the two ranges of the head that the checksum covers around it:
/// the checksum is CRC32C over the frame's `length` bytes with the field taken as zero.
/// `None` if the frame is too short to have one or its length field exceeds what is there.
pub fn checksum_split(frame: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (field, before, after, _) = checksum_split_head(frame, frame.len())?;
    Some((field, before, after))
}

/// [`checksum_split`] for a frame in pieces that begins with `head` and has `total` bytes, padding
/// included. The last number is how many bytes the checksum covers behind `head`.
#[inline]
pub fn checksum_split_head(head: &[u8], total: usize) -> Option<(u32, &[u8], &[u8], usize)> {
    if head.len() < HEADER_BYTES {
        return None;
    }
    let length = u16::from_be_bytes([head[4], head[5]]) as usize;
    if length < HEADER_BYTES || length > total {
        return None;
    }
    let field = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
    let here = length.min(head.len());
    Some((field, &head[..16], &head[20..here], length - here))
}
