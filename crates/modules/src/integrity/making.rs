//! [`SumMaking`]: a new volume with sums is all zeroes, and so are its sums; and [`SumGrowing`], which makes the same of what one grows by.

use std::collections::VecDeque;
use std::ops::Range;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Geometry, Io, IoError, Op, Token, Volume};

use super::intent::MADE_NUMBER;
use super::layout::{BLOCK, IntegrityState, SumLayout};
use crate::write_intent::bitmap::{BLOCK_BYTES, BlockName, REGIONS_EACH, encode};

/// In pieces of how many bytes at most zeroes are written.
#[derive(Clone, Copy)]
pub(super) struct ZeroPieces {
    /// Where the part makes zeroes by itself.
    pub named: u64,
    /// Where they are sent from memory.
    pub sent: u64,
}

/// While nobody uses the part.
const PIECES: ZeroPieces = ZeroPieces { named: 8 << 20, sent: 256 << 10 };

/// Zeroes what lies behind the label area of a part, and says that nothing of it is open: to be done before it gets its label. A state
/// machine over a volume that nobody else uses.
pub struct SumMaking {
    pool: Pool,
    token: Token,
    start: u64,
    /// Up to there all is zero.
    zeroed: u64,
    end: u64,
    steps: VecDeque<Io>,
    /// What was submitted last, if that has not ended.
    is_under_way: bool,
}

/// Blocks of the bitmap of so many bytes.
fn bits_of(bytes: u64, region_shift: u8) -> u32 {
    bytes.div_ceil(1 << region_shift).div_ceil(REGIONS_EACH as u64) as u32
}

/// Says in both copies of these blocks of the bitmap that nothing is open, so that neither is nothing.
fn closed_bits(
    (token, pool): (Token, &Pool),
    start: u64,
    (whole, region_shift): ([u8; 16], u8),
    blocks: Range<u32>,
) -> VecDeque<Io> {
    let mut steps = VecDeque::new();
    for number in 1..=MADE_NUMBER {
        for index in blocks.clone() {
            let mut image = [0; BLOCK_BYTES];
            encode(&mut image, BlockName { whole, index, region_shift }, number);
            let offset = start + SumLayout::bitmap_at(index, number);
            let mut io = Io::new(token, Op::Write, offset, BLOCK);
            io.data = SegList::of(pool.copy_of(&image).freeze());
            steps.push_back(io);
        }
    }
    steps
}

/// A fault planted in a growth, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GrowingCanary {
    #[default]
    None,
    /// What was there stays.
    KeepsRest,
    /// Nothing is said of new regions.
    NoBits,
}

/// Zeroes what a part grows by, and says that nothing of it is open: to be done before its label says that it has grown. A state machine over a volume
/// that nobody else uses; beside users the volume with sums does the same by itself. Cut off anywhere, it has changed nothing that the label knows of.
pub struct SumGrowing(SumMaking);

impl SumGrowing {
    /// Of a part whose data begins at `start` by its label, had `part_bytes.0` bytes, and has `part_bytes.1` then ([`IntegrityState::grow`]); of a whole of that
    /// UUID, whose label says that `state`.
    pub fn new(
        (token, pool): (Token, &Pool),
        (whole, state): ([u8; 16], IntegrityState),
        start: u64,
        part_bytes: (u64, u64),
    ) -> Self {
        Self::with((token, pool), (whole, state), start, part_bytes, GrowingCanary::None)
    }

    pub(super) fn with(
        (token, pool): (Token, &Pool),
        (whole, state): ([u8; 16], IntegrityState),
        start: u64,
        (before, behind): (u64, u64),
        canary: GrowingCanary,
    ) -> Self {
        let of = |part_bytes: u64| {
            let SumLayout { data_offset, bytes } = SumLayout::of(part_bytes);
            (start + data_offset + bytes, bits_of(bytes, state.region_shift))
        };
        let ((zeroed, known), (end, blocks)) = (of(before), of(behind));
        let zeroed = if canary == GrowingCanary::KeepsRest { end } else { zeroed };
        let known = if canary == GrowingCanary::NoBits { blocks } else { known };
        let named = (whole, state.region_shift);
        let mut steps = closed_bits((token, pool), start, named, known..blocks);
        steps.push_back(Io::new(token, Op::Flush, 0, 0));
        let pool = pool.clone();
        let is_under_way = false;
        SumGrowing(SumMaking { pool, token, start: zeroed, zeroed, end, steps, is_under_way })
    }

    /// As [`SumMaking::progress`].
    pub fn progress(&self) -> (u64, u64) {
        self.0.progress()
    }

    /// What is to be done next, behind the end of what came before it; nothing once all is done.
    pub(super) fn next(&mut self, geometry: Geometry, pieces: ZeroPieces) -> Option<Io> {
        self.0.next(geometry, pieces)
    }

    /// As [`SumMaking::turn`].
    ///
    /// # Errors
    /// As there.
    pub fn turn(&mut self, volume: &mut dyn Volume) -> Option<Result<(), IoError>> {
        self.0.turn(volume)
    }
}

impl SumMaking {
    /// Of a part whose data begins at `start` by its label, and has so many bytes; of a whole of that UUID.
    pub fn new(token: Token, pool: &Pool, whole: [u8; 16], start: u64, part_bytes: u64) -> Self {
        let layout = SumLayout::of(part_bytes);
        let region_shift = IntegrityState::new(layout.bytes).region_shift;
        let blocks = bits_of(layout.bytes, region_shift);
        let mut steps = closed_bits((token, pool), start, (whole, region_shift), 0..blocks);
        steps.push_back(Io::new(token, Op::Flush, 0, 0));
        let end = start + layout.data_offset + layout.bytes;
        SumMaking {
            pool: pool.clone(),
            token,
            start,
            zeroed: start,
            end,
            steps,
            is_under_way: false,
        }
    }

    /// How far it is, and how far it has to go, in bytes.
    pub fn progress(&self) -> (u64, u64) {
        (self.zeroed - self.start, self.end - self.start)
    }

    /// Polls the volume, and goes on; never waits. Says so when it is through.
    ///
    /// # Errors
    /// Something could not be written: nothing is under way.
    pub fn turn(&mut self, volume: &mut dyn Volume) -> Option<Result<(), IoError>> {
        loop {
            if self.is_under_way {
                let mut done = Vec::new();
                volume.poll(&mut done);
                let completion = done.into_iter().find(|one| one.token == self.token)?;
                self.is_under_way = false;
                if let Err(error) = completion.result {
                    return Some(Err(error));
                }
            }
            let Some(io) = self.next(volume.geometry(), PIECES) else { return Some(Ok(())) };
            self.is_under_way = true;
            volume.submit(io);
        }
    }

    fn next(&mut self, geometry: Geometry, pieces: ZeroPieces) -> Option<Io> {
        self.next_zeroes(geometry, pieces).or_else(|| self.steps.pop_front())
    }

    fn next_zeroes(&mut self, geometry: Geometry, pieces: ZeroPieces) -> Option<Io> {
        let left = self.end - self.zeroed;
        if left == 0 {
            return None;
        }
        let is_able = geometry.features.write_zeroes;
        let most =
            if is_able { pieces.named } else { pieces.sent.min(geometry.io_bytes_max.into()) };
        let len = left.min(most);
        let op = if is_able { Op::WriteZeroes } else { Op::Write };
        let mut io = Io::new(self.token, op, self.zeroed, len);
        if !is_able {
            io.data = SegList::of(self.pool.get_zeroed(len as usize).freeze());
        }
        self.zeroed += len;
        Some(io)
    }
}
