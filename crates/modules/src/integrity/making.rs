//! [`SumMaking`]: a new volume with sums is all zeroes, and so are its sums.

use std::collections::VecDeque;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Geometry, Io, IoError, Op, Token, Volume};

use super::layout::{BLOCK, IntegrityState, SumLayout};
use crate::write_intent::bitmap::{BLOCK_BYTES, BlockName, REGIONS_EACH, encode};

/// Zeroes are written in pieces of so many bytes; of memory, where the part cannot do without.
const ZEROES_BYTES: u64 = 8 << 20;
const ZEROES_SENT: u64 = 256 << 10;

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

impl SumMaking {
    /// Of a part whose data begins at `start` by its label, and has so many bytes; of a whole of that UUID.
    pub fn new(token: Token, pool: &Pool, whole: [u8; 16], start: u64, part_bytes: u64) -> Self {
        let layout = SumLayout::of(part_bytes);
        let region_shift = IntegrityState::new(layout.bytes).region_shift;
        let regions = layout.bytes.div_ceil(1 << region_shift);
        let mut steps = VecDeque::new();
        // Both copies, so that neither is nothing.
        for number in 1..3 {
            for index in 0..regions.div_ceil(REGIONS_EACH as u64) as u32 {
                let mut image = [0; BLOCK_BYTES];
                encode(&mut image, BlockName { whole, index, region_shift }, number);
                let offset = start + SumLayout::bitmap_at(index, number);
                let mut io = Io::new(token, Op::Write, offset, BLOCK);
                io.data = SegList::of(pool.copy_of(&image).freeze());
                steps.push_back(io);
            }
        }
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
            let Some(io) = self.next_zeroes(volume.geometry()).or_else(|| self.steps.pop_front())
            else {
                return Some(Ok(()));
            };
            self.is_under_way = true;
            volume.submit(io);
        }
    }

    fn next_zeroes(&mut self, geometry: Geometry) -> Option<Io> {
        let left = self.end - self.zeroed;
        if left == 0 {
            return None;
        }
        let is_able = geometry.features.write_zeroes;
        let most =
            if is_able { ZEROES_BYTES } else { ZEROES_SENT.min(geometry.io_bytes_max.into()) };
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
