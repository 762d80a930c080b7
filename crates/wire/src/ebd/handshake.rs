//! What a handshake says. The idealised form says some of it in a payload, the implemented form in fields that have
//! another meaning elsewhere.

use super::form::{EbdForm, Operation};
use super::frame::{Frame, Tag};

/// The client wants to write: the answer comes once it may. A flag of the request of a handshake.
const WRITES: u16 = 1 << 0;
/// Whoever else may write is to lose that. A flag, beside [`WRITES`].
const TAKES_OVER: u16 = 1 << 1;

/// Bits of the field of the block size that have it: no frame has more blocks than 255 sectors. The others number the
/// handshake.
const BLOCK_BITS: u32 = 17;

/// Bytes of the payload of a handshake of the idealised form, at most.
const PAYLOAD_BYTES: usize = 12;

/// Which content a device has, and which writer: what a client shows when it comes back, to be told if either is
/// another. 32 bits of both, none of which is zero for one that was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EbdState {
    /// Of the content.
    pub content: u16,
    /// Of the grant to write that is in force; zero before the first one, and in the request of a client that had none.
    pub writer: u16,
}

impl EbdState {
    fn from_word(word: u32) -> Self {
        EbdState { content: word as u16, writer: (word >> 16) as u16 }
    }

    fn to_word(self) -> u32 {
        u32::from(self.content) | u32::from(self.writer) << 16
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeAsk {
    /// The device.
    pub major: u8,
    /// The device.
    pub minor: u8,
    /// The block size that it wants, in bytes.
    pub block_bytes: u32,
    /// It wants to write from now on. Who does not say so may write all the same, if it is the first writer or the one
    /// on record when its first write comes.
    pub writes: bool,
    /// Whoever else may write is to lose that.
    pub takes_over: bool,
    /// What it was told last; zeroes if it comes for the first time.
    pub state: EbdState,
    /// By which the client tells its answer from those of before, in the implemented form: below
    /// [`HandshakeAsk::NUMBERS`]. The idealised form has the identifier for that.
    pub number: u16,
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeAnswer {
    /// Sectors of the device.
    pub sectors: u32,
    /// Sectors that a request may ask for.
    pub request_sectors: u8,
    /// The block size, in bytes: what was asked for, or less.
    pub block_bytes: u32,
    /// See [`Frame::credit`].
    pub credit: u16,
    /// What the device is now.
    pub state: EbdState,
    /// How long the server takes for a request, in microseconds, as far as it knows: in the idealised form only.
    pub latency_us: u32,
    /// That of the handshake that it answers.
    pub number: u16,
}

impl HandshakeAsk {
    /// So many numbers there are.
    pub const NUMBERS: u16 = 1 << (u32::BITS - BLOCK_BITS);

    /// The frame, and its payload. `own` is the identifier, in the implemented form the client's minor.
    pub fn frame(&self, form: EbdForm, own: u8) -> (Frame, [u8; PAYLOAD_BYTES], usize) {
        let flags =
            if self.writes { WRITES } else { 0 } | if self.takes_over { TAKES_OVER } else { 0 };
        let (major, minor, state) = (self.major, self.minor, self.state.to_word());
        let mut payload = [0; PAYLOAD_BYTES];
        let (tag, sector, len) = match form {
            EbdForm::Ideal => {
                payload[..4].copy_from_slice(&self.block_bytes.to_le_bytes());
                payload[4..8].copy_from_slice(&state.to_le_bytes());
                (Tag::Ideal { identifier: own, major, minor }, 0, 8)
            }
            EbdForm::Implemented => {
                let handle = numbered(self.block_bytes, self.number);
                let tag = Tag::Implemented { client: own, index: minor, handle, reserved: state };
                (tag, u32::from(major), 0)
            }
        };
        let frame = Frame {
            operation: Operation::Handshake,
            is_answer: false,
            wants_wack: false,
            tag,
            credit: flags,
            length: 0,
            sector,
        };
        (frame, payload, len)
    }

    /// What a handshake asks for; `None` if its payload is not there.
    pub fn of(frame: &Frame, payload: &[u8]) -> Option<Self> {
        let (writes, takes_over) = (frame.credit & WRITES != 0, frame.credit & TAKES_OVER != 0);
        let (major, minor, (block_bytes, number), state) = match frame.tag {
            Tag::Ideal { major, minor, .. } => {
                // A peer of the document alone says a block size and nothing else; what a link pads is zero.
                let state = word(payload, 4).unwrap_or_default();
                (major, minor, (word(payload, 0)?, 0), state)
            }
            Tag::Implemented { index, handle, reserved, .. } => {
                (frame.sector as u8, index, of_numbered(handle), reserved)
            }
        };
        let state = EbdState::from_word(state);
        Some(HandshakeAsk { major, minor, block_bytes, writes, takes_over, state, number })
    }
}

impl HandshakeAnswer {
    /// The frame that answers `request`, and its payload. `index` is the client's at the server, in the implemented
    /// form.
    pub fn frame(&self, request: &Frame, index: u8) -> (Frame, [u8; PAYLOAD_BYTES], usize) {
        let mut payload = [0; PAYLOAD_BYTES];
        let (state, block) = (self.state.to_word(), self.block_bytes);
        let (tag, len) = match request.tag {
            tag @ Tag::Ideal { .. } => {
                payload[..4].copy_from_slice(&block.to_le_bytes());
                payload[4..8].copy_from_slice(&state.to_le_bytes());
                payload[8..].copy_from_slice(&self.latency_us.to_le_bytes());
                (tag, PAYLOAD_BYTES)
            }
            Tag::Implemented { client, .. } => {
                let handle = numbered(block, self.number);
                (Tag::Implemented { client, index, handle, reserved: state }, 0)
            }
        };
        let frame = Frame { tag, ..*request };
        let length = self.request_sectors;
        (frame.answer(Operation::Handshake, self.credit, length, self.sectors), payload, len)
    }

    /// What the answer to a handshake says, and the client's index at the server (zero in the idealised form); `None`
    /// if its payload is not there.
    pub fn of(frame: &Frame, payload: &[u8]) -> Option<(Self, u8)> {
        let ((block_bytes, number), state, latency_us, index) = match frame.tag {
            Tag::Ideal { .. } => {
                let state = word(payload, 4).unwrap_or_default();
                ((word(payload, 0)?, 0), state, word(payload, 8).unwrap_or_default(), 0)
            }
            Tag::Implemented { index, handle, reserved, .. } => {
                (of_numbered(handle), reserved, 0, index)
            }
        };
        let answer = HandshakeAnswer {
            sectors: frame.sector,
            request_sectors: frame.length,
            block_bytes,
            credit: frame.credit,
            state: EbdState::from_word(state),
            latency_us,
            number,
        };
        Some((answer, index))
    }
}

/// A block size, and the number of a handshake.
fn numbered(block_bytes: u32, number: u16) -> u32 {
    debug_assert!(block_bytes < 1 << BLOCK_BITS && number < HandshakeAsk::NUMBERS);
    block_bytes | u32::from(number) << BLOCK_BITS
}

fn of_numbered(word: u32) -> (u32, u16) {
    (word & ((1 << BLOCK_BITS) - 1), (word >> BLOCK_BITS) as u16)
}

fn word(payload: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*payload.get(at..)?.first_chunk()?))
}
