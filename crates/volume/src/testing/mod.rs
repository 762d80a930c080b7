//! For tests, here and in other crates (feature `testing`): a seeded generator, a [`Disk`] in
//! memory that does things in its own order, a volume that does as it is told, and the suite that every
//! volume passes.
//!
//! [`Disk`]: crate::Disk

mod conformance;
mod growth;
mod losses;
mod mem_disk;
mod puppet;

pub use conformance::{ConformanceReport, Overlap, exercise, exercise_with, finish};
pub use growth::offers_growth;
pub use losses::tells_losses;
pub use mem_disk::MemDisk;
pub use puppet::Puppet;

/// A small seeded generator (SplitMix64): the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not zero.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
