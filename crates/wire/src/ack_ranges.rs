//! The long form of an acknowledgement (`docs/protocol.md`, "Acknowledgement and loss").

use alloc::vec::Vec;
use core::fmt;

use crate::FrameError;
use crate::field::{Body, Field, Reader, close_variable, value};

/// Most ranges in an ACK.
pub const ACK_RANGES_MAX: usize = 32;
const RANGE_BYTES: usize = 16;

/// First and last packet number of ranges, inclusive, largest first: a list to send, or the bytes
/// of a received one, so that a message stays small enough to be handed around by value.
#[derive(Clone, Copy)]
pub struct Ranges<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    List(&'a [(u64, u64)]),
    Wire(&'a [u8]),
}

impl<'a> Ranges<'a> {
    /// To send: 1 to [`ACK_RANGES_MAX`] ranges.
    pub fn new(list: &'a [(u64, u64)]) -> Self {
        Ranges(Source::List(list))
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        match self.0 {
            Source::List(list) => list.len(),
            Source::Wire(bytes) => bytes.len() / RANGE_BYTES,
        }
    }

    fn get(&self, nth: usize) -> (u64, u64) {
        match self.0 {
            Source::List(list) => list[nth],
            Source::Wire(bytes) => {
                let mut r = Reader(&bytes[nth * RANGE_BYTES..]);
                // Whole ranges only, see `AckRanges::parse`: there are two numbers here.
                (r.get().unwrap_or(0), r.get().unwrap_or(0))
            }
        }
    }

    /// All ranges, largest first.
    pub fn iter(self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        (0..self.len()).map(move |nth| self.get(nth))
    }
}

impl PartialEq for Ranges<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Ranges<'_> {}

impl fmt::Debug for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Further acknowledged ranges of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRanges<'a> {
    /// Number of the path on which the packets came.
    pub path: u8,
    /// Units of 4 us between the arrival of the largest and this message.
    pub delay: u16,
    /// What was received.
    pub ranges: Ranges<'a>,
}

impl<'a> AckRanges<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x04;

    /// Length on the wire for `count` ranges.
    pub const fn bytes(count: usize) -> usize {
        8 + RANGE_BYTES * count
    }

    /// Its length varies.
    pub(crate) const BYTES: usize = 0;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        debug_assert!((1..=ACK_RANGES_MAX).contains(&self.ranges.len()));
        let start = out.len();
        out.extend_from_slice(&[Self::TYPE, 0, 0, 0]);
        self.path.put(out);
        (self.ranges.len() as u8).put(out);
        self.delay.put(out);
        self.put_ranges(out);
        close_variable(start, out);
    }

    fn put_ranges(&self, out: &mut Vec<u8>) {
        for (first, last) in self.ranges.iter() {
            first.put(out);
            last.put(out);
        }
    }
}

/// By hand, since the delay stands between the count of the ranges and the ranges.
impl<'a> Body<'a> for AckRanges<'a> {
    fn read(body: &'a [u8], _: usize) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let (path, count, delay) = (r.get()?, r.get::<u8>()?, r.get()?);
        value(count != 0 && usize::from(count) <= ACK_RANGES_MAX)?;
        let ranges = Ranges(Source::Wire(r.take(RANGE_BYTES * usize::from(count))?));
        let mut below = u64::MAX;
        for (first, last) in ranges.iter() {
            value(first <= last && last < below)?;
            below = first;
        }
        r.end()?;
        Ok(AckRanges { path, delay, ranges })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.emit(out);
    }

    fn each_field(&self, see: &mut dyn FnMut(&'static str, &[u8])) {
        see("path", &[self.path]);
        see("count", &[self.ranges.len() as u8]);
        see("delay", &self.delay.to_be_bytes());
        let mut ranges = Vec::new();
        self.put_ranges(&mut ranges);
        see("first", &ranges[..8]);
        see("last", &ranges[8..16]);
        see("further ranges", &ranges[16..]);
    }
}
