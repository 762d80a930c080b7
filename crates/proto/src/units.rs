//! The arithmetic of slots: which parts of a request's data are there, which use of a slot is later.

use std::cmp::Ordering;

use thinwire_wire::UNIT_BYTES;

/// The longest request in units: 1 MiB.
pub const UNITS_MAX: usize = 2048;

/// Which units of [`UNIT_BYTES`] of one use of a slot are there. Rule 1: what is there is never
/// placed again.
#[derive(Clone, Debug)]
pub struct UnitMap {
    words: [u64; UNITS_MAX / 64],
    set: usize,
}

impl Default for UnitMap {
    fn default() -> Self {
        UnitMap { words: [0; UNITS_MAX / 64], set: 0 }
    }
}

impl UnitMap {
    /// How many units `bytes` take.
    pub fn units(bytes: usize) -> usize {
        bytes.div_ceil(UNIT_BYTES)
    }

    /// Nothing is there any more.
    pub fn clear(&mut self) {
        if self.set != 0 {
            self.words.fill(0);
            self.set = 0;
        }
    }

    /// How many units are there.
    pub fn count(&self) -> usize {
        self.set
    }

    /// Whether one unit is there.
    pub fn contains(&self, unit: usize) -> bool {
        self.words[unit / 64] >> (unit % 64) & 1 != 0
    }

    /// How many units of `[offset, offset + len)` bytes are not there. Bounds as for
    /// [`UnitMap::mark`].
    pub fn missing(&self, offset: usize, len: usize) -> usize {
        let units = offset / UNIT_BYTES..Self::units(offset + len);
        units.filter(|&unit| !self.contains(unit)).count()
    }

    /// Marks the units of `[offset, offset + len)` bytes and calls `missing(from, to)` with the
    /// byte range of each run that was not there before. `offset` is a multiple of the unit; the
    /// last unit may be short. Returns how many units are new.
    ///
    /// # Panics
    /// If the range lies outside the map: callers check it at the gate.
    pub fn mark(
        &mut self,
        offset: usize,
        len: usize,
        mut missing: impl FnMut(usize, usize),
    ) -> usize {
        let end = offset + len;
        let (first, last) = (offset / UNIT_BYTES, Self::units(end));
        assert!(offset % UNIT_BYTES == 0 && last <= UNITS_MAX);
        let before = self.set;
        let mut unit = first;
        while unit < last {
            if self.contains(unit) {
                unit += 1;
                continue;
            }
            let start = unit;
            while unit < last && !self.contains(unit) {
                self.words[unit / 64] |= 1 << (unit % 64);
                self.set += 1;
                unit += 1;
            }
            missing(start * UNIT_BYTES, (unit * UNIT_BYTES).min(end));
        }
        self.set - before
    }
}

/// Compares two sequence numbers of a slot, which wrap.
pub fn sequence_order(a: u32, b: u32) -> Ordering {
    (a.wrapping_sub(b) as i32).cmp(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_runs_are_reported() {
        let mut map = UnitMap::default();
        let mut runs = vec![];
        assert_eq!(map.mark(1024, 1024, |a, b| runs.push((a, b))), 2);
        assert_eq!(map.missing(0, 4000), 6);
        assert_eq!(map.mark(0, 4096, |a, b| runs.push((a, b))), 6);
        assert_eq!(map.missing(512, 1000), 0);
        assert_eq!(map.mark(512, 1000, |a, b| runs.push((a, b))), 0);
        assert_eq!(runs, [(1024, 2048), (0, 1024), (2048, 4096)]);
        map.clear();
        assert_eq!((map.count(), map.contains(3)), (0, false));
    }

    #[test]
    fn sequences_wrap() {
        assert_eq!(sequence_order(3, 3), Ordering::Equal);
        assert_eq!(sequence_order(0, u32::MAX), Ordering::Greater);
        assert_eq!(sequence_order(u32::MAX - 5, 7), Ordering::Less);
    }
}
