//! Worlds whose targets keep in memory what was read of their disks.

use thinwire_link::rng::Rng;

use super::pick;
use crate::world::World;

/// Which share of the worlds has caches.
const SHARE: f64 = 0.25;

/// Gives a cache to most exports of one disk, if this is the seed of such a world: of all that lies on the disk,
/// or of a part, so that pages go. The others are as they would be if there were none.
pub(super) fn keep(seed: u64, world: &mut World) {
    let mut dice = Rng::new(seed ^ 0x6361_6368_6573);
    if !dice.chance(SHARE) {
        return;
    }
    for export in &mut world.exports {
        let bytes = pick(&mut dice, &[1 << 20, 1 << 20, 8 << 20]);
        let has_one = dice.chance(0.8);
        let Some(medium) = export.medium() else { continue };
        medium.configure(|config| config.is_cached = has_one);
        export.cache = has_one.then_some(bytes);
    }
}
