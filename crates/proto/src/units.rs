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
    /// Words from here on are zero.
    end: usize,
}

impl Default for UnitMap {
    fn default() -> Self {
        UnitMap { words: [0; UNITS_MAX / 64], set: 0, end: 0 }
    }
}

impl UnitMap {
    /// How many units `bytes` take.
    pub fn units(bytes: usize) -> usize {
        bytes.div_ceil(UNIT_BYTES)
    }

    /// Nothing is there any more.
    pub fn clear(&mut self) {
        match self.end {
            // Short requests, without a call.
            0 | 1 => self.words[0] = 0,
            end => self.words[..end].fill(0),
        }
        (self.set, self.end) = (0, 0);
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
        let (mut unit, last) = (offset / UNIT_BYTES, Self::units(offset + len));
        let mut missing = 0;
        while unit < last {
            let (mask, next) = mask_from(unit, last);
            missing += (mask & !self.words[unit / 64]).count_ones() as usize;
            unit = next;
        }
        missing
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
        self.end = self.end.max(last.div_ceil(64));
        if first < last && first / 64 == (last - 1) / 64 {
            // Most often all of it is in one word, and none of it is there.
            let (mask, _) = mask_from(first, last);
            let word = &mut self.words[first / 64];
            if *word & mask == 0 {
                *word |= mask;
                self.set += last - first;
                missing(offset, end);
                return last - first;
            }
        }
        let before = self.set;
        // A run of missing units that may go on in the next word.
        let mut run = None;
        let mut unit = first;
        while unit < last {
            let (mask, next) = mask_from(unit, last);
            let word = &mut self.words[unit / 64];
            let mut new = mask & !*word;
            *word |= mask;
            self.set += new.count_ones() as usize;
            let base = unit / 64 * 64;
            if new == mask {
                run.get_or_insert(unit);
                unit = next;
                continue;
            }
            if let Some(start) = run.take() {
                if new >> (unit % 64) & 1 == 1 {
                    // The run that came out of the word before goes on for a while.
                    let end = base + (!(new >> (unit % 64))).trailing_zeros() as usize + unit % 64;
                    missing(start * UNIT_BYTES, end * UNIT_BYTES);
                    new &= !0 << (end % 64);
                } else {
                    missing(start * UNIT_BYTES, unit * UNIT_BYTES);
                }
            }
            while new != 0 {
                let from = new.trailing_zeros() as usize;
                let to = from + (!(new >> from)).trailing_zeros() as usize;
                if base + to == next && next < last {
                    run = Some(base + from);
                    break;
                }
                missing((base + from) * UNIT_BYTES, ((base + to) * UNIT_BYTES).min(end));
                new = if to < 64 { new & (!0 << to) } else { 0 };
            }
            unit = next;
        }
        if let Some(start) = run {
            missing(start * UNIT_BYTES, end);
        }
        self.set - before
    }
}

/// The units of `unit..last` that are in the word of `unit`, as bits of it, and the first that is not.
#[inline]
fn mask_from(unit: usize, last: usize) -> (u64, usize) {
    let next = (unit / 64 * 64 + 64).min(last);
    (!0 >> (64 - (next - unit)) << (unit % 64), next)
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

    /// Beside a map of one flag a unit, over all that ranges can do at the borders of words.
    #[test]
    fn runs_are_those_of_a_plain_map() {
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % below) as usize
        };
        let mut map = UnitMap::default();
        let mut plain = vec![false; UNITS_MAX];
        for _ in 0..20_000 {
            let long = [3, 70, 200, 2048][draw(4)];
            let from = draw((UNITS_MAX - 1) as u64);
            let bytes = 1 + draw((long * UNIT_BYTES) as u64);
            let bytes = bytes.min((UNITS_MAX - from) * UNIT_BYTES);
            let (offset, end) = (from * UNIT_BYTES, from * UNIT_BYTES + bytes);
            let units = from..end.div_ceil(UNIT_BYTES);
            let mut runs: Vec<(usize, usize)> = Vec::new();
            for unit in units.clone().filter(|&unit| !plain[unit]) {
                let place = (unit * UNIT_BYTES, ((unit + 1) * UNIT_BYTES).min(end));
                match runs.last_mut().filter(|run| run.1 == place.0) {
                    Some(run) => run.1 = place.1,
                    None => runs.push(place),
                }
            }
            let missing = units.clone().filter(|&unit| !plain[unit]).count();
            assert_eq!(map.missing(offset, bytes), missing);
            let mut found = Vec::new();
            assert_eq!(map.mark(offset, bytes, |a, b| found.push((a, b))), missing);
            assert_eq!(found, runs);
            units.for_each(|unit| plain[unit] = true);
            assert_eq!(map.count(), plain.iter().filter(|&&is| is).count());
            if draw(6) == 0 {
                map.clear();
                plain.fill(false);
                assert!(map.words.iter().all(|&word| word == 0));
            }
        }
    }

    #[test]
    fn sequences_wrap() {
        assert_eq!(sequence_order(3, 3), Ordering::Equal);
        assert_eq!(sequence_order(0, u32::MAX), Ordering::Greater);
        assert_eq!(sequence_order(u32::MAX - 5, 7), Ordering::Less);
    }
}
