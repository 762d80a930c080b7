//! Which packet numbers of a path have arrived (`docs/protocol.md`, "Acknowledgement and loss").

use crate::DropReason;

/// How far back duplicates are told from news: the replay window (rule 6).
const WINDOW: u64 = 4096;
/// A number this far ahead of the largest is not from an honest peer.
const AHEAD_MAX: u64 = 1 << 32;
/// One more than the window's length in words: it seldom begins at a border.
const WORDS: usize = (WINDOW / 64) as usize + 1;

/// What [`Received::insert`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Never seen; the largest so far and just one above the last.
    InOrder,
    /// Never seen, but it leaves or fills a gap.
    OutOfOrder,
    /// Seen before.
    Duplicate,
    /// Below the window: cannot be told from a duplicate.
    TooOld,
    /// Absurdly far ahead.
    TooFarAhead,
}

impl Arrival {
    /// The same as a verdict on the frame.
    pub(crate) fn news(self) -> Result<Self, DropReason> {
        match self {
            Arrival::InOrder | Arrival::OutOfOrder => Ok(self),
            Arrival::Duplicate => Err(DropReason::Duplicate),
            Arrival::TooOld => Err(DropReason::TooOld),
            Arrival::TooFarAhead => Err(DropReason::TooFarAhead),
        }
    }
}

/// The received packet numbers of one path: numbers start at 1.
#[derive(Clone, Debug)]
pub struct Received {
    largest: u64,
    /// Bit `n % 64` of word `n / 64 % WORDS`, for the numbers of the window.
    words: [u64; WORDS],
}

impl Default for Received {
    fn default() -> Self {
        Received { largest: 0, words: [0; WORDS] }
    }
}

impl Received {
    /// Largest number received, 0 before the first.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// Whether [`Received::insert`] would take a number, without taking note of it.
    #[inline]
    pub(crate) fn look(&self, number: u64) -> Result<(), DropReason> {
        if number > self.largest.saturating_add(AHEAD_MAX) {
            Err(DropReason::TooFarAhead)
        } else if number == 0 || number + WINDOW <= self.largest {
            Err(DropReason::TooOld)
        } else if self.contains(number) {
            Err(DropReason::Duplicate)
        } else {
            Ok(())
        }
    }

    /// Takes note of a number.
    pub fn insert(&mut self, number: u64) -> Arrival {
        if number > self.largest.saturating_add(AHEAD_MAX) {
            return Arrival::TooFarAhead;
        }
        if number == 0 || number + WINDOW <= self.largest {
            return Arrival::TooOld;
        }
        let verdict = if number > self.largest {
            let (old, new) = (self.largest / 64, number / 64);
            for word in (old + 1..=new).take(WORDS) {
                self.words[(word % WORDS as u64) as usize] = 0;
            }
            if new - old >= WORDS as u64 {
                self.words.fill(0);
            }
            let next = number == self.largest + 1;
            self.largest = number;
            if next { Arrival::InOrder } else { Arrival::OutOfOrder }
        } else if self.contains(number) {
            return Arrival::Duplicate;
        } else {
            Arrival::OutOfOrder
        };
        self.words[(number / 64 % WORDS as u64) as usize] |= 1 << (number % 64);
        verdict
    }

    /// Whether a number of the window was received.
    pub fn contains(&self, number: u64) -> bool {
        number != 0
            && number <= self.largest
            && number + WINDOW > self.largest
            && self.words[(number / 64 % WORDS as u64) as usize] >> (number % 64) & 1 != 0
    }

    /// The bitmap below the largest: bit `i` is number `largest - 1 - i`.
    pub fn bitmap(&self) -> u64 {
        // Numbers `largest - 64 ..= largest - 1` lie in two neighbouring words of the ring. Number
        // `largest - 1` is to become bit 0, the one below it bit 1: the order is reversed.
        let Some(last) = self.largest.checked_sub(1) else { return 0 };
        let word = |n: u64| self.words[(n % WORDS as u64) as usize];
        let (high, shift) = (last / 64, last % 64);
        let mut bits = word(high) << (63 - shift);
        if shift < 63 && high > 0 {
            bits |= word(high - 1) >> (shift + 1);
        }
        bits.reverse_bits()
    }

    /// Fills `out` with the received ranges from the largest down; returns how many.
    pub fn ranges(&self, out: &mut [(u64, u64)]) -> usize {
        let mut count = 0;
        let mut number = self.largest;
        let lowest = self.largest.saturating_sub(WINDOW - 1).max(1);
        while count < out.len() && number >= lowest && number > 0 {
            if !self.contains(number) {
                number -= 1;
                continue;
            }
            let last = number;
            while number > lowest && self.contains(number - 1) {
                number -= 1;
            }
            out[count] = (number, last);
            count += 1;
            number -= 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_expected_and_future_numbers() {
        let mut r = Received::default();
        assert_eq!(r.insert(0), Arrival::TooOld);
        assert_eq!(r.insert(1), Arrival::InOrder);
        assert_eq!(r.insert(2), Arrival::InOrder);
        assert_eq!(r.insert(2), Arrival::Duplicate);
        assert_eq!(r.insert(70), Arrival::OutOfOrder);
        assert_eq!(r.insert(69), Arrival::OutOfOrder);
        assert_eq!(r.insert(1), Arrival::Duplicate);
        assert_eq!(r.insert(70 + 4096), Arrival::OutOfOrder);
        assert_eq!(r.insert(70), Arrival::TooOld);
        assert_eq!(r.insert(71), Arrival::OutOfOrder, "lowest of the window");
        assert_eq!(r.insert(u64::MAX), Arrival::TooFarAhead);
        assert_eq!(r.insert(1_000_000), Arrival::OutOfOrder);
        assert!(!r.contains(71) && !r.contains(999_999) && r.contains(1_000_000));
    }

    /// The window is 4096 numbers long, the largest included (rule 6): in literal numbers, so that
    /// a shorter one is found out. At its border, and wherever that lies in a word.
    #[test]
    fn the_window_ends_at_4096_numbers() {
        for largest in 9_984..=10_112u64 {
            let mut r = Received::default();
            for n in (1..largest).step_by(2).chain([largest]) {
                assert_ne!(r.insert(n), Arrival::TooOld);
            }
            // An odd number has been received, an even one has not.
            for n in [largest - 4098, largest - 4097, largest - 4096] {
                assert_eq!(r.insert(n), Arrival::TooOld, "{n} below {largest}");
            }
            for n in [largest - 4095, largest - 4094, largest - 65, largest - 64, largest - 63] {
                let is_news = n.is_multiple_of(2);
                let expected = if is_news { Arrival::OutOfOrder } else { Arrival::Duplicate };
                assert_eq!((r.contains(n), r.insert(n)), (!is_news, expected), "{n} of {largest}");
                assert_eq!(r.insert(n), Arrival::Duplicate, "{n} of {largest}");
            }
        }
    }

    /// Every number of the window is remembered, wherever its borders lie.
    #[test]
    fn nothing_of_the_window_is_taken_twice() {
        for last in 4090..4300 {
            let mut r = Received::default();
            assert!((1..=last).all(|n| r.insert(n) == Arrival::InOrder));
            for n in 1..=last {
                let expected =
                    if n + WINDOW <= last { Arrival::TooOld } else { Arrival::Duplicate };
                assert_eq!(r.insert(n), expected, "{n} of {last}");
            }
        }
    }

    #[test]
    fn bitmap_and_ranges_agree_with_a_set() {
        let mut rng = crate::SipRng::new(7);
        let mut r = Received::default();
        let mut set = std::collections::BTreeSet::new();
        for _ in 0..5_000 {
            let number = (r.largest() + 1 + rng.below(4)).saturating_sub(rng.below(50)).max(1);
            let news = set.insert(number);
            let verdict = r.insert(number);
            assert_eq!(news, matches!(verdict, Arrival::InOrder | Arrival::OutOfOrder));
            for i in 0..64 {
                let n = r.largest().saturating_sub(1 + i);
                assert_eq!(r.bitmap() >> i & 1 == 1, n > 0 && set.contains(&n), "{n}");
            }
        }
        let mut ranges = [(0, 0); 32];
        let count = r.ranges(&mut ranges);
        for w in ranges[..count].windows(2) {
            assert!(w[1].1 + 1 < w[0].0);
            assert!((w[1].1 + 1..w[0].0).all(|n| !set.contains(&n)));
        }
        assert!(ranges[..count].iter().all(|&(a, b)| (a..=b).all(|n| set.contains(&n))));
    }
}
