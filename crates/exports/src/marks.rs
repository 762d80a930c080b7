//! [`Marks`]: which exports have something to be done. A turn has hundreds to choose from and looks at those.

/// A set of exports, by index, in order. Takes memory when it meets the largest for the first time, and never
/// again.
#[derive(Default)]
pub(crate) struct Marks {
    words: Vec<u64>,
    count: usize,
}

impl Marks {
    const BITS: usize = u64::BITS as usize;

    #[inline]
    pub fn insert(&mut self, export: usize) {
        let (word, bit) = (export / Self::BITS, 1 << (export % Self::BITS));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.count += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    #[inline]
    pub fn remove(&mut self, export: usize) {
        let (word, bit) = (export / Self::BITS, 1 << (export % Self::BITS));
        if let Some(word) = self.words.get_mut(word) {
            self.count -= usize::from(*word & bit != 0);
            *word &= !bit;
        }
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }

    pub fn contains(&self, export: usize) -> bool {
        self.next(export) == Some(export)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first of them that is not below `export`.
    #[inline]
    pub fn next(&self, export: usize) -> Option<usize> {
        let mut word = export / Self::BITS;
        let mut bits = self.words.get(word)? & (u64::MAX << (export % Self::BITS));
        while bits == 0 {
            word += 1;
            bits = *self.words.get(word)?;
        }
        Some(word * Self::BITS + bits.trailing_zeros() as usize)
    }

    /// All of them, lowest first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.next(0), |export| self.next(export + 1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn marks_are_a_set_in_order() {
        let (mut marks, mut set) = (Marks::default(), BTreeSet::new());
        let mut random = 1u64;
        for _ in 0..5000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (export, what) = ((random >> 33) as usize % 200, random >> 60);
            match what {
                0..8 => {
                    marks.insert(export);
                    set.insert(export);
                }
                8..15 => {
                    marks.remove(export);
                    set.remove(&export);
                }
                _ if export < 10 => {
                    marks.clear();
                    set.clear();
                }
                _ => {}
            }
            assert!(marks.iter().eq(set.iter().copied()));
            assert_eq!(marks.next(export), set.range(export..).next().copied());
            assert_eq!(marks.contains(export), set.contains(&export));
            assert_eq!(marks.is_empty(), set.is_empty());
        }
    }
}
