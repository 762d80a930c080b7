//! Worlds whose targets have exports taken away by a reload and brought back, while others are served and everything
//! else goes wrong. Drawn apart, so that all else is as it would be without.

use thinwire_link::rng::Rng;

use super::pick;
use crate::world::{MS, SECOND, World};

/// Which share of the worlds is like that.
const SHARE: f64 = 0.2;
/// How often an export goes, at most.
const TIMES_MAX: u64 = 4;

fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x6162_7365_6e63_6573);
    dice.chance(SHARE).then_some(dice)
}

/// Whether exports may be taken away in the world of this seed.
pub fn has_absences(seed: u64) -> bool {
    dice(seed).is_some()
}

/// Which exports go when, and for how long.
pub(crate) fn plan_absences(seed: u64, world: &World, duration_ns: u64) -> Vec<(u64, usize, u64)> {
    let Some(mut dice) = dice(seed) else { return Vec::new() };
    let mut planned = Vec::new();
    for (at, _) in world.exports.iter().enumerate().filter(|(_, export)| export.can_leave()) {
        for _ in 0..dice.below(TIMES_MAX + 1) {
            let most = pick(&mut dice, &[1, 20 * MS, SECOND, 5 * SECOND]);
            let (when, away) = (dice.between(0, duration_ns), dice.between(0, most));
            planned.push((when, at, away));
        }
    }
    planned
}
