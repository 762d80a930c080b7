//! Pseudo-random numbers from a seed that the driver supplies.

use crate::siphash::siphash;

/// SipHash of a counter, under the seed: for ids, nonces, probe tokens, jitter. Peers see many of the
/// numbers, and must not find out the others: who knows some of them, but not the seed, cannot tell
/// the next (the seed's 64 bits are all there is to guess).
#[derive(Clone, Debug)]
pub struct SipRng {
    seed: u64,
    count: u64,
}

impl SipRng {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        SipRng { seed, count: 0 }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.count += 1;
        siphash([self.seed, !self.seed], &self.count.to_le_bytes())
    }

    /// A number below `bound` (which is not zero).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}
