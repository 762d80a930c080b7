//! A client that reads from front to back, and writes what it is about to read.

use thinwire_link::rng::Rng;
use thinwire_volume::Op;

use crate::model::Range;

/// Where somebody reads on.
#[derive(Clone, Debug)]
pub struct ReadingOn {
    /// The share of its reads that go on.
    pub share: f64,
    /// Dice of their own: who does not read on does all that it did before there was such a thing.
    pub dice: Rng,
    /// Its next block.
    pub next: usize,
    /// How far ahead of that is written, in blocks.
    pub ahead: u64,
}

/// Blocks of the longest such read.
const BLOCKS_MAX: u64 = 16;
/// How seldom it stops and begins elsewhere.
const STOPS: f64 = 0.02;

impl ReadingOn {
    /// Changes where a drawn I/O goes, of a volume of `all` blocks of so many sectors.
    pub(super) fn lead(&mut self, op: Op, drawn: Range, block: usize, all: usize) -> Range {
        let range = |first: usize, count: usize| {
            let first = first.min(all - 1);
            Range { first: first * block, count: count.clamp(1, all - first) * block }
        };
        if op == Op::Read && self.dice.chance(self.share) {
            if self.next >= all || self.dice.chance(STOPS) {
                self.next = self.dice.below(all as u64) as usize;
            }
            let read = range(self.next, self.dice.between(1, BLOCKS_MAX) as usize);
            self.next += read.count / block;
            return read;
        }
        if op.is_write() && self.dice.chance(self.share / 2.0) {
            let ahead = self.dice.below(self.ahead) as usize;
            return range(self.next + ahead, drawn.count / block);
        }
        drawn
    }
}
