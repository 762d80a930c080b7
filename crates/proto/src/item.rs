//! What a session carries: items, which an owner turns into bytes when a frame is built.

use thinwire_buffer::SegList;
use thinwire_wire::Message;

/// A piece of information that must reach the other side. Small and copyable: a record of a sent
/// frame is a list of these, and what was lost is an item to send again, not bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The request of this use of this slot.
    Request {
        /// Number of the slot, from 0.
        slot: u16,
        /// Which use.
        sequence: u32,
    },
    /// A range of the data of this use of this slot. Cut to the frame size when sent.
    Data {
        /// Number of the slot, from 0.
        slot: u16,
        /// Which use.
        sequence: u32,
        /// First byte.
        offset: u32,
        /// Bytes.
        length: u32,
    },
    /// The completion of this use of this slot.
    Complete {
        /// Number of the slot, from 0.
        slot: u16,
        /// Which use.
        sequence: u32,
    },
    /// Give this use of this slot up.
    Reset {
        /// Number of the slot, from 0.
        slot: u16,
        /// Which use.
        sequence: u32,
    },
    /// It is given up.
    ResetDone {
        /// Number of the slot, from 0.
        slot: u16,
        /// Which use.
        sequence: u32,
    },
    /// The attach with this transaction number.
    Attach(u32),
    /// The answer to the attach with this transaction number.
    AttachAnswer(u32),
    /// A small message that is known when it is asked for. Emitted by the item itself.
    Said(Said),
    /// What this side can take in on the path with this id. Emitted by the session itself.
    Credit(u8),
    /// Nothing but an acknowledgement is wanted. Emitted by the session itself.
    Ping,
    /// The answer to the question with this transaction number.
    Clocks(u32),
}

impl Item {
    /// The item that carries `message`: one of at most [`Said::BYTES_MAX`] bytes that does not change
    /// until it has been heard.
    pub fn said(message: Message<'_>) -> Item {
        Item::Said(Said::of(message))
    }
}

/// A small message as its bytes, so that the session need not know which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    bytes: [u8; Said::BYTES_MAX],
}

impl Said {
    /// Longest message in bytes.
    pub const BYTES_MAX: usize = 24;

    fn of(message: Message<'_>) -> Self {
        let mut out = Vec::with_capacity(Self::BYTES_MAX);
        message.emit(&mut out);
        let mut bytes = [0; Self::BYTES_MAX];
        bytes[..out.len()].copy_from_slice(&out);
        Said { bytes }
    }

    /// The message's bytes, as many as it says it has.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(u16::from_be_bytes([self.bytes[2], self.bytes[3]]))]
    }
}

/// What the owner of a session knows about its items.
pub trait Content {
    /// Appends the message of `item` to `out`, or returns false if nobody needs it any more.
    /// Never called with `Data`, nor with what the session or the item itself can emit.
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool;

    /// Appends the payload of a DATA item to `out` by reference, or returns false if nobody needs
    /// it any more. The bytes stay unchanged until the item is acknowledged or unwanted (rule 1).
    fn payload(
        &mut self,
        slot: u16,
        sequence: u32,
        offset: u32,
        length: u32,
        out: &mut SegList,
    ) -> bool;

    /// The other side has taken the item in. May be called more than once for the same
    /// information, and for items that are no longer wanted.
    fn acked(&mut self, item: Item);
}
