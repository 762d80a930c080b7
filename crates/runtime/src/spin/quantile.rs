//! What most of something stays below, learnt as it comes.

use std::time::Duration;

/// An estimate of a quantile in one number: up by a part of itself when something longer is seen, down by a
/// part when something shorter is, so that it rests where the two balance (the frugal estimate of Ma,
/// Muthukrishnan and Sandler, 2013). How far off what it sees lies does not matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantile {
    /// Below 4 s, as all that it is told of.
    ns: u32,
    /// It falls by its so-manieth part, and rises by its fourth.
    fall: u32,
}

/// Below this no quantile falls, so that its parts stay numbers.
const QUANTILE_MIN: Duration = Duration::from_micros(1);

impl Quantile {
    pub const fn median(first: Duration) -> Self {
        Quantile { ns: first.as_nanos() as u32, fall: 4 }
    }

    pub const fn nine_tenths(first: Duration) -> Self {
        Quantile { ns: first.as_nanos() as u32, fall: 40 }
    }

    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.ns.into())
    }

    /// `most` bounds it, so that it is soon back when all becomes short again.
    pub fn see(&mut self, seen: Duration, most: Duration) {
        self.ns = match seen > self.get() {
            true => (self.ns + self.ns / 4).min(most.as_nanos() as u32),
            false => (self.ns - self.ns / self.fall).max(QUANTILE_MIN.as_nanos() as u32),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn quantiles_rest_where_they_should() {
        for (mut quantile, from, to) in
            [(Quantile::median(us(100)), 400, 700), (Quantile::nine_tenths(us(100)), 800, 960)]
        {
            let (mut state, mut sum) = (1u64, 0);
            for n in 0..30_000u64 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                quantile.see(us((state >> 33) % 1000), us(5000));
                sum += if n < 10_000 { 0 } else { u64::from(quantile.ns) };
            }
            let rests = sum / 20_000_000;
            assert!(rests > from && rests < to, "{rests}");
        }
        let mut quantile = Quantile::median(us(1));
        (0..100).for_each(|_| quantile.see(us(0), us(400)));
        assert_eq!(quantile.get(), QUANTILE_MIN);
        (0..100).for_each(|_| quantile.see(us(9_000_000), us(400)));
        assert_eq!(quantile.get(), us(400));
    }
}
