//! Where what stands on the part (`docs/format.md`, "A volume with sums"), what its label says of that, and what a sum is.

use std::fmt;

use thinwire_buffer::SegList;

use super::NAME;
use crate::meta::LABEL_AREA_BYTES;
use crate::write_intent::bitmap::{BITMAP_BYTES, BLOCK_BYTES, REGION_SHIFT_MAX, region_shift};
use crate::{KeptOnParts, Module, ModuleError};

/// Bytes of which there is one sum.
pub(super) const BLOCK: u64 = 4096;
/// Bytes of an entry: the sum of what was written last, and of what was there before.
const ENTRY_BYTES: usize = 8;
/// Blocks of data of which a block of sums tells.
pub(super) const SUMS_EACH: u64 = (BLOCK_BYTES / ENTRY_BYTES) as u64;
/// Bytes of data of which a block of sums tells.
pub(super) const SUMMED_BYTES: u64 = SUMS_EACH * BLOCK;
/// Regions are not smaller: the sums of one are whole blocks, so those of a region that is closed are not written.
const REGION_SHIFT_MIN: u8 = SUMMED_BYTES.trailing_zeros() as u8;

/// Two copies of the bitmap, then the sums.
const SUMS_OFFSET: u64 = 2 * BITMAP_BYTES;

const _: () = assert!(BLOCK_BYTES as u64 == BLOCK && SUMMED_BYTES.is_power_of_two());

/// Its row: it is opened by [`Integrity::open`](super::Integrity::open), and by no list of volumes.
pub(crate) const MODULE: Module = Module {
    name: NAME,
    help: "a volume that finds out when its part changes what was written",
    children: 1..=1,
    options: &[],
    ios_each_max: 2 + SEGMENT_SUMS,
    keeps: Some(KeptOnParts {
        data_start: LABEL_AREA_BYTES,
        bytes: |parts| parts.first().map_or(0, |&(bytes, _)| SumLayout::of(bytes).bytes),
        may_lack: false,
    }),
    build: |_, _| {
        let why = "keeps sums on its part: describe it in a file, and name it as FILE.toml#NAME";
        Err(ModuleError::new(NAME, why))
    },
};

/// Zeroes are written, and blocks told of, in pieces that have so many blocks of sums.
pub(super) const SEGMENT_SUMS: usize = 4;

/// What stands where, in bytes from where the data of the part begins by its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumLayout {
    /// Where the data begins that has sums.
    pub data_offset: u64,
    /// How much of it there is: whole blocks of 4096 bytes. None if there is no room for any.
    pub bytes: u64,
}

impl SumLayout {
    /// On a part that has so many bytes behind its label.
    pub fn of(part_bytes: u64) -> Self {
        let rest = part_bytes.saturating_sub(SUMS_OFFSET) / BLOCK;
        // Of so many blocks and their sums.
        let sums = rest.div_ceil(SUMS_EACH + 1);
        SumLayout { data_offset: SUMS_OFFSET + sums * BLOCK, bytes: (rest - sums) * BLOCK }
    }

    /// Where a block of sums stands.
    pub(super) fn sums_at(number: u64) -> u64 {
        SUMS_OFFSET + number * BLOCK
    }

    /// Where a copy of a block of the bitmap stands, the one of that number.
    pub(super) fn bitmap_at(block: u32, number: u64) -> u64 {
        number % 2 * BITMAP_BYTES + u64::from(block) * BLOCK
    }
}

/// What the label of a volume with sums says besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegrityState {
    /// Regions have two to the power of so many bytes.
    pub(super) region_shift: u8,
}

const VERSION: u8 = 1;
const STATE_BYTES: usize = 8;

impl IntegrityState {
    /// Of a new one, of so many bytes.
    pub fn new(bytes: u64) -> Self {
        IntegrityState { region_shift: region_shift(bytes).max(REGION_SHIFT_MIN) }
    }

    /// Bytes of a region: what is on record as being written, or not, as a whole.
    pub fn region_bytes(&self) -> u64 {
        1 << self.region_shift
    }

    /// It as bytes for a label.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; STATE_BYTES];
        (out[0], out[1]) = (VERSION, self.region_shift);
        out
    }

    /// What these bytes say of one of so many bytes.
    ///
    /// # Errors
    /// They say what cannot be, or are of another version: nothing of them was believed.
    pub fn decode(state: &[u8], bytes: u64) -> Result<Self, IntegrityFault> {
        let fault = |why| Err(IntegrityFault { why });
        if state.first().is_some_and(|version| *version != VERSION) {
            return fault("is of another version: use the program that wrote it");
        }
        let Ok(&[_, region_shift, rest @ ..]) = <&[u8; STATE_BYTES]>::try_from(state) else {
            return fault("has a label that says nothing of its sums, or too much");
        };
        let least = IntegrityState::new(bytes).region_shift;
        if !(least..=REGION_SHIFT_MAX).contains(&region_shift) {
            return fault("has regions of a size that cannot be");
        }
        match rest.iter().all(|byte| *byte == 0) {
            true => Ok(IntegrityState { region_shift }),
            false => fault("has bytes where zeroes belong"),
        }
    }
}

/// Why the label of a volume with sums is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegrityFault {
    why: &'static str,
}

impl fmt::Display for IntegrityFault {
    /// A sentence to stand behind the name of the part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)
    }
}

impl std::error::Error for IntegrityFault {}

/// Makes sums of blocks of one volume.
pub(super) struct Summer {
    whole: [u8; 16],
    /// Of a block of zeroes, before its number.
    zeroes: u32,
    /// A planted fault: all blocks have the same number.
    pub ignores_numbers: bool,
}

impl Summer {
    pub fn new(whole: [u8; 16]) -> Self {
        let zeroes = crc32c::crc32c(&[0; BLOCK as usize]);
        Summer { whole, zeroes, ignores_numbers: false }
    }

    /// The sum of a block, as it stands on the part, from what is the CRC of its bytes. That of zeroes is 0, so a part of zeroes
    /// has sums that fit: the two that this makes of one are each other's.
    pub fn of(&self, number: u64, bytes: u32) -> u32 {
        let mut tail = [0; 24];
        if !self.ignores_numbers {
            tail[..8].copy_from_slice(&number.to_le_bytes());
        }
        tail[8..].copy_from_slice(&self.whole);
        let sum = crc32c::crc32c_append(bytes, &tail);
        let zeroes = crc32c::crc32c_append(self.zeroes, &tail);
        match sum {
            _ if sum == zeroes => 0,
            0 => zeroes,
            _ => sum,
        }
    }

    /// The sums of blocks from that number on, of their bytes, which are whole blocks.
    pub fn each(&self, first: u64, data: &SegList, mut take: impl FnMut(u64, u32)) {
        let (mut number, mut crc, mut left) = (first, 0, BLOCK as usize);
        for segment in data.iter() {
            let mut rest = &segment[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(left));
                crc = crc32c::crc32c_append(crc, now);
                (rest, left) = (later, left - now.len());
                if left == 0 {
                    take(number, self.of(number, crc));
                    (number, crc, left) = (number + 1, 0, BLOCK as usize);
                }
            }
        }
    }
}
