//! The long form of an acknowledgement (`docs/protocol.md`, "Acknowledgement and loss").

use alloc::vec::Vec;

use crate::FrameError;
use crate::field::{Field, Reader, put_variable};

/// Most ranges in an ACK.
pub const ACK_RANGES_MAX: usize = 32;

/// Further acknowledged ranges of a path, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRanges {
    /// Which path.
    pub path: u8,
    /// Units of 4 us between the arrival of the largest and this message.
    pub delay: u16,
    /// How many of `ranges` count.
    pub count: u8,
    /// First and last packet number of each range, inclusive.
    pub ranges: [(u64, u64); ACK_RANGES_MAX],
}

impl AckRanges {
    /// The message type number.
    pub const TYPE: u8 = 0x04;

    /// Length on the wire for `count` ranges.
    pub const fn bytes(count: usize) -> usize {
        8 + 16 * count
    }

    /// The ranges that count.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges[..self.count as usize]
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.path.put(out);
            self.count.put(out);
            self.delay.put(out);
            for &(first, last) in self.ranges() {
                first.put(out);
                last.put(out);
            }
        });
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let (path, count, delay) = (r.get()?, r.get::<u8>()?, r.get()?);
        if count == 0 || count as usize > ACK_RANGES_MAX {
            return Err(FrameError::MessageValue);
        }
        let mut ranges = [(0, 0); ACK_RANGES_MAX];
        let mut below = u64::MAX;
        for range in &mut ranges[..count as usize] {
            let (first, last): (u64, u64) = (r.get()?, r.get()?);
            if first > last || last >= below {
                return Err(FrameError::MessageValue);
            }
            below = first;
            *range = (first, last);
        }
        r.end()?;
        Ok(AckRanges { path, delay, count, ranges })
    }
}
