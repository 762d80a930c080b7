//! A generator of bytes nobody can guess, from a seed that its owner draws.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::key::hmac_sha256;

/// The same seed gives the same bytes, which is what the simulator needs; without the seed they
/// cannot be told from random ones. What was drawn cannot be found from what is kept: each draw of 32
/// bytes is HMAC-SHA256(seed, 1), and then HMAC-SHA256(seed, 0) takes the seed's place.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Random {
    seed: [u8; 32],
}

impl Random {
    /// From 32 bytes of entropy, or of a simulator's; whoever calls it wipes what they copied it from.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed }
    }

    /// One of several that have the same entropy: by a label that no other has.
    pub fn derived(entropy: &[u8; 32], label: &[u8]) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        hmac_sha256(entropy, label, &mut seed);
        Self { seed: *seed }
    }

    /// Fills `out`, with a draw for each 32 bytes that it begins.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(32) {
            chunk.copy_from_slice(&self.draw()[..chunk.len()]);
        }
    }

    /// One draw.
    pub fn draw(&mut self) -> Zeroizing<[u8; 32]> {
        let mut drawn = Zeroizing::new([0; 32]);
        let mut next = Zeroizing::new([0; 32]);
        hmac_sha256(&self.seed, &[1], &mut drawn);
        hmac_sha256(&self.seed, &[0], &mut next);
        self.seed.copy_from_slice(&*next);
        drawn
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's `hmac` and `hashlib`, for the seed 0, 1, 2 ... 31.
    const FIRST: &str = "9b4c8120a4823a95f47cde17a244f4507244ee6e3957d1fab9fa29b44d3829b7";
    const SECOND: &str = "d7604e032697a057eebb59e4051a011f04edd1c84d6c45bdddc512fb98283574";

    fn seed() -> [u8; 32] {
        std::array::from_fn(|i| i as u8)
    }

    #[test]
    fn labels_and_entropy_make_others() {
        let first = |entropy: [u8; 32], label: &[u8]| *Random::derived(&entropy, label).draw();
        assert_eq!(first(seed(), b"a"), first(seed(), b"a"));
        assert_ne!(first(seed(), b"a"), first(seed(), b"b"));
        assert_ne!(first(seed(), b"a"), first([1; 32], b"a"));
        assert_ne!(first(seed(), b""), *Random::new(seed()).draw());
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_draws_are_those_of_another_implementation() {
        let mut random = Random::new(seed());
        assert_eq!(hex(&*random.draw()), FIRST);
        assert_eq!(hex(&*random.draw()), SECOND);
    }

    #[test]
    fn filling_takes_a_draw_for_each_32_bytes_begun() {
        let mut bytes = [0; 33];
        let mut random = Random::new(seed());
        random.fill(&mut bytes);
        assert_eq!(hex(&bytes), FIRST.to_string() + &SECOND[..2]);
        let mut beside = Random::new(seed());
        beside.draw();
        beside.draw();
        assert_eq!(random.draw(), beside.draw(), "the rest of a draw is not kept");
        random.fill(&mut []);
        assert_eq!(random.draw(), beside.draw(), "nothing takes no draw");
    }

    #[test]
    fn another_seed_gives_other_bytes_and_debug_tells_none() {
        let mut other = seed();
        other[31] ^= 1;
        assert_ne!(Random::new(seed()).draw(), Random::new(other).draw());
        assert_eq!(format!("{:?}", Random::new(seed())), "Random(..)");
    }
}
