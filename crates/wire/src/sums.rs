//! Sums of a request's data, end to end (`docs/protocol.md`, "Integrity").

use alloc::vec::Vec;

use crate::FrameError;
use crate::field::{Body, Field, Out, Reader, value};

/// Most sums of a request: 1 MiB that begins within a piece of 4 KiB.
pub const SUMS_MAX: usize = 257;
/// Bytes of one sum.
pub const SUM_BYTES: usize = 4;
/// What stands before the sums, the four bytes that every message starts with included.
const HEAD_BYTES: usize = 12;

/// Either way: the sums of all data of this use of this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums<'a> {
    /// Number of the slot, from 0.
    pub slot: u16,
    /// Which use of it.
    pub sequence: u32,
    /// [`SUM_BYTES`] for each piece, in order; 1 to [`SUMS_MAX`] pieces.
    pub sums: &'a [u8],
}

impl<'a> Sums<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x12;

    /// Length on the wire for `count` sums.
    pub const fn bytes(count: usize) -> usize {
        HEAD_BYTES + SUM_BYTES * count
    }

    /// Its length varies.
    pub(crate) const BYTES: usize = 0;

    /// How many there are.
    fn count(&self) -> usize {
        self.sums.len() / SUM_BYTES
    }

    /// Appends the message.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        debug_assert!((1..=SUMS_MAX).contains(&self.count()));
        out.add(&[Self::TYPE, 0]);
        (Self::bytes(self.count()) as u16).put(out);
        self.slot.put(out);
        (self.count() as u16).put(out);
        self.sequence.put(out);
        out.add(self.sums);
    }
}

/// By hand, since the sequence stands between the count of the sums and the sums.
impl<'a> Body<'a> for Sums<'a> {
    #[inline]
    fn read(body: &'a [u8], _: usize) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let (slot, count, sequence) = (r.get()?, r.get::<u16>()?, r.get()?);
        value(count != 0 && usize::from(count) <= SUMS_MAX)?;
        let sums = r.take(SUM_BYTES * usize::from(count))?;
        r.end()?;
        Ok(Sums { slot, sequence, sums })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.emit(out);
    }

    fn each_field(&self, see: &mut dyn FnMut(&'static str, &[u8])) {
        see("slot", &self.slot.to_be_bytes());
        see("count", &(self.count() as u16).to_be_bytes());
        see("sequence", &self.sequence.to_be_bytes());
        see("sums", self.sums);
    }
}
