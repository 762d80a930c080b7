//! Where what stands on the part (`docs/format.md`, "A volume with sums"), what its label says of that, and what a sum is.

use std::fmt;

use thinwire_buffer::SegList;

use super::NAME;
use crate::meta::LABEL_AREA_BYTES;
use crate::write_intent::bitmap::{
    BITMAP_BYTES, BLOCK_BYTES, REGION_SHIFT_MAX, REGIONS_MAX, region_shift,
};
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

/// What is from here on up to there stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub from: u64,
    pub upto: u64,
    pub at: u64,
}

impl SumLayout {
    /// On a part that has so many bytes behind its label.
    pub fn of(part_bytes: u64) -> Self {
        let rest = part_bytes.saturating_sub(SUMS_OFFSET) / BLOCK;
        // Of so many blocks and their sums.
        let sums = rest.div_ceil(SUMS_EACH + 1);
        SumLayout { data_offset: SUMS_OFFSET + sums * BLOCK, bytes: (rest - sums) * BLOCK }
    }

    /// Where that stands on a part which has grown as this says, and has so many bytes by now: what is at an offset here, as far as where; none if it has not.
    /// Each time it grew, sums and then data of what has come were put behind what was there.
    pub(super) fn spans(part_bytes: u64, state: &IntegrityState) -> Vec<Span> {
        if state.growths().next().is_none() {
            return Vec::new();
        }
        let whole = SumLayout::of(part_bytes);
        let (mut sums, mut data) = (Vec::new(), Vec::new());
        // So many bytes of sums and of data stand before.
        let (mut summed, mut held) = (0, 0);
        for end in state.growths().chain([part_bytes]) {
            let SumLayout { data_offset, bytes } = SumLayout::of(end);
            let at = SUMS_OFFSET + summed + held;
            let more = data_offset - SUMS_OFFSET - summed;
            sums.push(Span { upto: data_offset, at, from: SUMS_OFFSET + summed });
            let from = whole.data_offset + held;
            data.push(Span { upto: whole.data_offset + bytes, at: at + more, from });
            (summed, held) = (summed + more, bytes);
        }
        let bits = Span { from: 0, upto: SUMS_OFFSET, at: 0 };
        [bits].into_iter().chain(sums).chain(data).filter(|span| span.from < span.upto).collect()
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

/// A part grows so often at most.
pub const SUM_GROWTHS_MAX: usize = 32;

/// What the label of a volume with sums says besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegrityState {
    /// Regions have two to the power of so many bytes.
    pub(super) region_shift: u8,
    /// How many bytes the part had each time before it grew; zeroes behind these.
    grown: [u64; SUM_GROWTHS_MAX],
}

const VERSION: u8 = 1;
/// That of a part that has grown, or was about to.
const VERSION_GROWN: u8 = 2;
const STATE_BYTES: usize = 8;

/// Why a volume with sums does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumGrowthError {
    /// The part has no room for a block more.
    NoRoom,
    /// It has grown as often as it can.
    TooOften,
    /// There are as many regions as its bitmap has room for.
    NoRegions,
}

impl fmt::Display for SumGrowthError {
    /// A sentence whose subject is the volume.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SumGrowthError::NoRoom => f.write_str("has no room for a block more"),
            SumGrowthError::TooOften => write!(
                f,
                "has grown {SUM_GROWTHS_MAX} times, and no more can be put on record: make a larger one, and copy all to that"
            ),
            SumGrowthError::NoRegions => write!(
                f,
                "has a bitmap for {REGIONS_MAX} regions, and all of them: make a larger one, whose regions are, and copy all to that"
            ),
        }
    }
}

impl std::error::Error for SumGrowthError {}

impl IntegrityState {
    /// Of a new one, of so many bytes.
    pub fn new(bytes: u64) -> Self {
        let region_shift = region_shift(bytes).max(REGION_SHIFT_MIN);
        IntegrityState { region_shift, grown: [0; SUM_GROWTHS_MAX] }
    }

    /// How many bytes the part had each time before it grew, the first time first.
    pub(super) fn growths(&self) -> impl Iterator<Item = u64> + '_ {
        self.grown.iter().copied().take_while(|bytes| *bytes > 0)
    }

    /// What it is when the part, which has so many bytes of data, has `room` for more: and how many it has then.
    ///
    /// # Errors
    /// See [`SumGrowthError`].
    pub fn grow(&self, part_bytes: u64, room: u64) -> Result<(Self, u64), SumGrowthError> {
        let times = self.growths().count();
        let most = u128::from(REGIONS_MAX) << self.region_shift;
        let blocks = u64::try_from(most / u128::from(BLOCK)).unwrap_or(u64::MAX);
        // With their sums.
        let most = (u128::from(blocks) + u128::from(blocks / SUMS_EACH)) * u128::from(BLOCK)
            + u128::from(SUMS_OFFSET);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let next = room.min(most) / BLOCK * BLOCK;
        let bytes = |part_bytes: u64| SumLayout::of(part_bytes).bytes;
        if bytes(room) <= bytes(part_bytes) {
            return Err(SumGrowthError::NoRoom);
        }
        if bytes(next) <= bytes(part_bytes) {
            return Err(SumGrowthError::NoRegions);
        }
        let mut grown = *self;
        *grown.grown.get_mut(times).ok_or(SumGrowthError::TooOften)? = part_bytes / BLOCK * BLOCK;
        Ok((grown, next))
    }

    /// Bytes of a region: what is on record as being written, or not, as a whole.
    pub fn region_bytes(&self) -> u64 {
        1 << self.region_shift
    }

    /// It as bytes for a label.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; STATE_BYTES];
        (out[0], out[1]) = (VERSION, self.region_shift);
        if self.growths().next().is_some() {
            (out[0], out[2]) = (VERSION_GROWN, self.growths().count() as u8);
            self.growths().for_each(|bytes| out.extend(bytes.to_le_bytes()));
        }
        out
    }

    /// What these bytes say of one of so many bytes. Of a growth that did not come about nothing is left.
    ///
    /// # Errors
    /// They say what cannot be, or are of another version: nothing of them was believed.
    pub fn decode(state: &[u8], bytes: u64) -> Result<Self, IntegrityFault> {
        let fault = |why| Err(IntegrityFault { why });
        if state.first().is_some_and(|version| !(VERSION..=VERSION_GROWN).contains(version)) {
            return fault("is of another version: use the program that wrote it");
        }
        let Some((&[version, region_shift, times, rest @ ..], ends)) =
            state.split_first_chunk::<STATE_BYTES>()
        else {
            return fault("has a label that says nothing of its sums, or too much");
        };
        let times = usize::from(times);
        if ends.len() != 8 * times || times > SUM_GROWTHS_MAX {
            return fault("has a label that says nothing of its sums, or too much");
        }
        let mut new = IntegrityState::new(bytes);
        if !(new.region_shift..=REGION_SHIFT_MAX).contains(&region_shift) {
            return fault("has regions of a size that cannot be");
        }
        new.region_shift = region_shift;
        if rest != [0; 5] || (version == VERSION_GROWN) != (times > 0) {
            return fault("has bytes where zeroes belong");
        }
        let mut before = 0;
        for (at, end) in ends.chunks_exact(8).enumerate() {
            let end = u64::from_le_bytes(end.try_into().expect("8 bytes"));
            let made = SumLayout::of(end).bytes;
            let is_last = at + 1 == times;
            if made <= before || made > bytes || made == bytes && !is_last || end % BLOCK != 0 {
                return fault("has grown by sizes that cannot be");
            }
            before = made;
            if made < bytes {
                new.grown[at] = end;
            }
        }
        Ok(new)
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
