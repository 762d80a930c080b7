//! Who is there: DISCOVER and OFFER (`docs/protocol.md`, "Discovery").

use alloc::string::String;
use core::fmt;

use crate::field::{Codec, Field, Name, Out, Reader, message};
use crate::{FrameError, NAME_BYTES_MAX};

message! {
    /// To the group: who is there?
    Discover<'a> = 0x28 {
        /// Echoed in the answer.
        nonce: u64,
        /// The session id to answer to: one in the lane of who asks; 0 if it has none.
        session: u64,
        /// Index of the first export wanted, for targets whose list does not fit one frame.
        first: u16,
        /// Longest random delay before the answer, in milliseconds.
        spread_ms: u16,
        /// What the target gave to this address (OFFER), unchanged; 0 for nothing.
        cookie: u64,
        /// Only the node of this name, or everybody if empty.
        node: &'a str as Name,
    }
}

/// Names of exports: a list to send, or the bytes of a received one, so that a message stays small enough
/// to be handed around by value.
#[derive(Clone, Copy)]
pub struct OfferedExports<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    List(&'a [String]),
    Wire { count: u16, bytes: &'a [u8] },
}

impl<'a> OfferedExports<'a> {
    /// As many of the first names as an OFFER of `bytes_max` bytes has room for, `node` in it.
    pub fn fitting(names: &'a [String], node: &str, bytes_max: usize) -> Self {
        let fixed = Offer::FIXED_BYTES + node.len().min(NAME_BYTES_MAX);
        let mut left = bytes_max.saturating_sub(fixed);
        let fits = |name: &&String| {
            let bytes = 1 + name.len().min(NAME_BYTES_MAX);
            let rest = left.checked_sub(bytes);
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let count = names.iter().take(usize::from(u16::MAX)).take_while(fits).count();
        OfferedExports(Source::List(&names[..count]))
    }

    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let (list, count, bytes) = match self.0 {
            Source::List(list) => (list, 0, &[][..]),
            Source::Wire { count, bytes } => (&[][..], count, bytes),
        };
        let mut r = Reader(bytes);
        let parsed = (0..count).map_while(move |_| r.text(NAME_BYTES_MAX).ok());
        list.iter().map(String::as_str).chain(parsed)
    }
}

impl PartialEq for OfferedExports<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for OfferedExports<'_> {}

impl fmt::Debug for OfferedExports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Field<'a> for OfferedExports<'a> {
    const BYTES: Option<usize> = None;

    fn get(r: &mut Reader<'a>) -> Result<Self, FrameError> {
        let count = r.get()?;
        let bytes = r.0;
        for _ in 0..count {
            r.text(NAME_BYTES_MAX)?;
        }
        Ok(OfferedExports(Source::Wire { count, bytes: &bytes[..bytes.len() - r.0.len()] }))
    }

    fn put(self, out: &mut impl Out) {
        (self.iter().count() as u16).put(out);
        for name in self.iter() {
            Name::put(name, out);
        }
    }
}

message! {
    /// A target's answer to a DISCOVER.
    Offer<'a> = 0x29 {
        /// From the DISCOVER.
        nonce: u64,
        /// Which process of the target.
        instance: u64,
        /// How many exports there are in all.
        total: u16,
        /// Index of the first one named here.
        first: u16,
        /// To be given back unchanged, with a HELLO or the next DISCOVER, from the same address.
        cookie: u64,
        /// The target's node name.
        node: &'a str as Name,
        /// Names of exports, from `first` on.
        exports: OfferedExports<'a>,
    }
}

impl Offer<'_> {
    /// Bytes of an OFFER without the letters of its node's name and without exports, and of padding.
    const FIXED_BYTES: usize = 4 + 8 + 8 + 2 + 2 + 8 + 1 + 2 + 3;
}
