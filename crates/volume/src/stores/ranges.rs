//! What happened last to each range of a volume: a map of ranges that never overlap.

use std::collections::BTreeMap;

use thinwire_buffer::Segment;

/// What a range became.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// These bytes, as long as the range.
    Data(Segment),
    /// Zeroes.
    Zeroes {
        /// Allocated ones.
        no_hole: bool,
    },
    /// Nothing that anybody needs; shown as zeroes.
    Discard,
}

impl Effect {
    fn part(&self, start: u64, len: u64) -> Effect {
        match self {
            Effect::Data(segment) => Effect::Data(segment.slice(start as usize, len as usize)),
            other => other.clone(),
        }
    }
}

/// A range with its effect.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub offset: u64,
    pub len: u64,
    pub effect: Effect,
}

/// What an entry is taken to cost besides its data.
const ENTRY_BYTES: usize = 128;

/// The newest effect on each range.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    map: BTreeMap<u64, (u64, Effect)>,
    data_bytes: usize,
}

impl Ranges {
    /// Roughly the memory that all of it takes.
    pub fn cost_bytes(&self) -> usize {
        self.data_bytes + self.map.len() * ENTRY_BYTES
    }

    /// Replaces whatever the range had.
    pub fn insert(&mut self, piece: Piece) {
        self.cut(piece.offset, piece.len);
        self.put(piece);
    }

    /// The parts of the entries that lie in the range, in order.
    pub fn within(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
        let end = offset + len;
        let first = self.map.range(..=offset).next_back().map_or(offset, |(&start, _)| start);
        self.map.range(first..end).filter_map(move |(&start, (len, effect))| {
            let from = start.max(offset);
            let to = (start + len).min(end);
            (from < to).then(|| Piece {
                offset: from,
                len: to - from,
                effect: effect.part(from - start, to - from),
            })
        })
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = Piece> + '_ {
        self.within(0, u64::MAX)
    }

    fn put(&mut self, piece: Piece) {
        if let Effect::Data(segment) = &piece.effect {
            debug_assert_eq!(segment.len() as u64, piece.len);
            self.data_bytes += segment.len();
        }
        self.map.insert(piece.offset, (piece.len, piece.effect));
    }

    /// Forgets the range; entries that reach into it keep their other parts.
    fn cut(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        loop {
            let Some((&start, (len, _))) = self.map.range(..end).next_back() else { return };
            if start + len <= offset {
                return;
            }
            let (len, effect) = self.map.remove(&start).expect("just found");
            if let Effect::Data(segment) = &effect {
                self.data_bytes -= segment.len();
            }
            if start + len > end {
                let part = effect.part(end - start, start + len - end);
                self.put(Piece { offset: end, len: start + len - end, effect: part });
            }
            if start < offset {
                let part = effect.part(0, offset - start);
                self.put(Piece { offset: start, len: offset - start, effect: part });
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::Pool;

    use super::*;
    use crate::testing::SplitMix64;

    /// Against a plain array of what each unit became.
    #[test]
    fn it_agrees_with_an_array() {
        const UNITS: usize = 64;
        let pool = Pool::new(1 << 20);
        for seed in 0..50 {
            let mut rng = SplitMix64::new(seed);
            let mut ranges = Ranges::default();
            let mut model: [Option<u8>; UNITS] = [None; UNITS];
            for step in 0..100u8 {
                let offset = rng.below(UNITS as u64);
                let len = 1 + rng.below(UNITS as u64 - offset);
                let (effect, value) = match rng.below(3) {
                    0 => (Effect::Discard, 0),
                    1 => (Effect::Zeroes { no_hole: false }, 0),
                    _ => {
                        let bytes: Vec<u8> = (0..len).map(|i| step ^ (offset + i) as u8).collect();
                        (Effect::Data(pool.copy_of(&bytes).freeze()), 1)
                    }
                };
                for at in offset..offset + len {
                    model[at as usize] = Some(if value == 0 { 0 } else { step ^ at as u8 });
                }
                ranges.insert(Piece { offset, len, effect });
                let from = rng.below(UNITS as u64);
                let count = 1 + rng.below(UNITS as u64 - from);
                let mut seen: [Option<u8>; UNITS] = [None; UNITS];
                let mut last = from;
                for piece in ranges.within(from, count) {
                    assert!(piece.offset >= last && piece.offset + piece.len <= from + count);
                    last = piece.offset + piece.len;
                    for i in 0..piece.len {
                        seen[(piece.offset + i) as usize] = Some(match &piece.effect {
                            Effect::Data(segment) => segment[i as usize],
                            _ => 0,
                        });
                    }
                }
                let range = from as usize..(from + count) as usize;
                assert_eq!(seen[range.clone()], model[range], "seed {seed} step {step}");
            }
            let data: u64 = ranges
                .iter()
                .filter(|piece| matches!(piece.effect, Effect::Data(_)))
                .map(|piece| piece.len)
                .sum();
            assert_eq!(ranges.data_bytes as u64, data);
        }
    }
}
