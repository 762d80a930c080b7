//! What outstanding requests touch, and whether another would meet one of them (`docs/protocol.md`, rule 5).

/// Changes are looked up by pieces of this many bytes.
const PIECE_BYTES: u64 = 4096;
/// A change of more pieces is not: 1 MiB fits, the longest write.
const PIECES_MAX: u64 = 257;
/// So many counters, for the pieces modulo this number.
const COUNTERS: usize = 1024;

/// What an I/O touches: bytes `[start, end)`, which may be none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub start: u64,
    pub end: u64,
    pub changes: bool,
}

impl Range {
    /// What touches nothing.
    pub const NOTHING: Range = Range { start: 0, end: 0, changes: false };

    /// What is behind the end of any volume: all orders about snapshots meet there, and nothing else.
    pub const CUTS: Range = Range { start: u64::MAX - 1, end: u64::MAX, changes: true };

    /// The two must not be outstanding together.
    #[inline]
    pub fn conflicts(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end && (self.changes | other.changes)
    }

    fn is_read(self) -> bool {
        !self.changes && self.start < self.end
    }

    /// The pieces that it touches, if they are not too many.
    #[inline]
    fn pieces(self) -> Option<std::ops::Range<u64>> {
        let pieces = self.start / PIECE_BYTES..self.end.div_ceil(PIECE_BYTES);
        (pieces.end - pieces.start <= PIECES_MAX).then_some(pieces)
    }
}

/// Those of all outstanding requests, in the order of the slots in use. What conflicts with one of them is found
/// by looking at each; but most I/Os conflict with none, which the counters of the changes tell at once. Reads are
/// not counted: where there are no changes, nothing is to be done for them.
pub(crate) struct Ranges {
    list: Vec<Range>,
    /// How many touch something and change nothing.
    reads: usize,
    /// How many are changes, and how many of these have too many pieces to be counted.
    changes: usize,
    uncounted: usize,
    /// Changes by the pieces that they touch.
    counters: Box<[u16; COUNTERS]>,
}

impl Ranges {
    pub fn new() -> Self {
        let counters = Box::new([0; COUNTERS]);
        Ranges { list: Vec::new(), reads: 0, changes: 0, uncounted: 0, counters }
    }

    pub fn clear(&mut self) {
        self.list.clear();
        (self.reads, self.changes, self.uncounted) = (0, 0, 0);
        self.counters.fill(0);
    }

    /// Adds one behind the others.
    #[inline]
    pub fn push(&mut self, range: Range) {
        self.list.push(range);
        if range.changes {
            self.changes += 1;
            self.count(range, 1);
        } else {
            self.reads += usize::from(range.is_read());
        }
    }

    /// Takes the one at this place out; the last takes its place.
    #[inline]
    pub fn swap_remove(&mut self, at: usize) {
        let range = self.list.swap_remove(at);
        if range.changes {
            self.changes -= 1;
            self.count(range, -1);
        } else {
            self.reads -= usize::from(range.is_read());
        }
    }

    /// Changes the counters of a change by a step. None of them overflows: there are no more slots.
    #[inline]
    fn count(&mut self, change: Range, step: i16) {
        match change.pieces() {
            Some(pieces) => {
                for piece in pieces {
                    let counter = &mut self.counters[piece as usize % COUNTERS];
                    *counter = counter.wrapping_add_signed(step);
                }
            }
            None => self.uncounted = self.uncounted.wrapping_add_signed(step.into()),
        }
    }

    /// One of them must not be outstanding together with this.
    #[inline]
    pub fn conflict(&self, range: Range) -> bool {
        let may_meet = (range.changes && self.reads > 0) || self.may_meet_change(range);
        may_meet && self.list.iter().any(|other| other.conflicts(range))
    }

    /// False if no change touches the range.
    #[inline]
    fn may_meet_change(&self, range: Range) -> bool {
        let is_free = |mut pieces: std::ops::Range<u64>| {
            pieces.all(|piece| self.counters[piece as usize % COUNTERS] == 0)
        };
        self.changes > 0 && (self.uncounted > 0 || !range.pieces().is_some_and(is_free))
    }
}

#[cfg(test)]
mod tests {
    use thinwire_proto::SipRng;

    use super::*;

    /// As if each were looked at, over ranges of all lengths that come and go, at places whose counters are shared.
    #[test]
    fn conflicts_are_those_of_a_plain_list() {
        let mut dice = SipRng::new(1);
        let (mut ranges, mut plain) = (Ranges::new(), Vec::<Range>::new());
        let (mut met, mut skipped) = (0, 0);
        for _ in 0..40_000 {
            let bytes_max = [1, 8, 64, 2048, 4096][dice.below(5) as usize] * 512;
            let start = dice.below(1 << 13) * 512 + dice.below(2) * COUNTERS as u64 * PIECE_BYTES;
            let end = start + (dice.below(bytes_max) / 512 + 1) * 512;
            let range = match dice.below(10) {
                0 => Range::NOTHING,
                kind => Range { start, end, changes: kind < 5 },
            };
            let conflicts = plain.iter().any(|other| other.conflicts(range));
            assert_eq!(ranges.conflict(range), conflicts, "{range:?} beside {plain:?}");
            met += u32::from(conflicts);
            skipped += u32::from(range.changes && !ranges.may_meet_change(range));
            if !conflicts && plain.len() < 40 {
                ranges.push(range);
                plain.push(range);
            } else if !plain.is_empty() {
                let at = dice.below(plain.len() as u64) as usize;
                ranges.swap_remove(at);
                plain.swap_remove(at);
            }
        }
        assert!(met > 1000 && skipped > 1000, "{met} {skipped}");
        (0..plain.len()).rev().for_each(|at| ranges.swap_remove(at));
        assert_eq!((ranges.reads, ranges.changes, ranges.uncounted), (0, 0, 0));
        assert!(ranges.counters.iter().all(|&counter| counter == 0));
        ranges.push(Range { start: 0, end: 512, changes: true });
        ranges.clear();
        assert!(!ranges.may_meet_change(Range { start: 0, end: 512, changes: true }));
    }
}
