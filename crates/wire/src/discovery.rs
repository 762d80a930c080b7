//! Who is there: DISCOVER and OFFER (`docs/protocol.md`, "Discovery").

use alloc::vec::Vec;

use crate::field::{Field, Reader, put_text, put_variable};
use crate::{FrameError, NAME_BYTES_MAX};

/// To the group: who is there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discover<'a> {
    /// Echoed in the answer.
    pub nonce: u64,
    /// Index of the first export wanted, for targets whose list does not fit one frame.
    pub first: u16,
    /// Longest random delay before the answer, in milliseconds.
    pub spread_ms: u16,
    /// What the target gave to this address (OFFER), unchanged; 0 for nothing.
    pub cookie: u64,
    /// Only the node of this name, or everybody if empty.
    pub node: &'a str,
}

impl<'a> Discover<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x28;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.nonce.put(out);
            self.first.put(out);
            self.spread_ms.put(out);
            self.cookie.put(out);
            put_text(self.node, NAME_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let discover = Discover {
            nonce: r.get()?,
            first: r.get()?,
            spread_ms: r.get()?,
            cookie: r.get()?,
            node: r.text(NAME_BYTES_MAX)?,
        };
        r.end()?;
        Ok(discover)
    }
}

/// The names in an OFFER. Checked when the offer was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedExports<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> OfferedExports<'a> {
    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut r = Reader(self.bytes);
        (0..self.count).map_while(move |_| r.text(NAME_BYTES_MAX).ok())
    }
}

/// A target's answer to a DISCOVER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// From the DISCOVER.
    pub nonce: u64,
    /// Which process of the target.
    pub instance: u64,
    /// How many exports there are in all.
    pub total: u16,
    /// Index of the first one named here.
    pub first: u16,
    /// To be given back unchanged, with a HELLO or the next DISCOVER, from the same address.
    pub cookie: u64,
    /// Bit 0: it runs without keys.
    pub security: u8,
    /// The target's node name.
    pub node: &'a str,
    /// Names of exports, from `first` on.
    pub exports: OfferedExports<'a>,
}

impl<'a> Offer<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x29;

    /// Appends an offer with as many of `exports` (counted from `first`) as fit `bytes_max`.
    #[expect(clippy::too_many_arguments, reason = "one for each field of the message")]
    pub fn emit<'n>(
        nonce: u64,
        instance: u64,
        node: &str,
        first: u16,
        total: u16,
        cookie: u64,
        exports: impl Iterator<Item = &'n str>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        put_variable(Self::TYPE, out, |out| {
            nonce.put(out);
            instance.put(out);
            total.put(out);
            first.put(out);
            cookie.put(out);
            1u8.put(out);
            put_text(node, NAME_BYTES_MAX, out);
            let count_at = out.len();
            0u16.put(out);
            let mut count = 0u16;
            for name in exports {
                if out.len() - start + 1 + name.len() + 4 > bytes_max {
                    break;
                }
                put_text(name, NAME_BYTES_MAX, out);
                count += 1;
            }
            out[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let nonce = r.get()?;
        let instance = r.get()?;
        let total = r.get()?;
        let first = r.get()?;
        let cookie = r.get()?;
        let security = r.get()?;
        if security > 1 {
            return Err(FrameError::Reserved);
        }
        let node = r.text(NAME_BYTES_MAX)?;
        let count = r.get()?;
        let bytes = r.0;
        for _ in 0..count {
            r.text(NAME_BYTES_MAX)?;
        }
        r.end()?;
        Ok(Offer {
            nonce,
            instance,
            total,
            first,
            cookie,
            security,
            node,
            exports: OfferedExports { count, bytes },
        })
    }
}
