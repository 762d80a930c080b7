//! Worlds whose links take a part of what they are given, or nothing for a while, so that frames wait.

use thinwire_link::rng::Rng;

use super::pick;
use crate::narrow::{NarrowConfig, OutletCanary};
use crate::world::World;

/// Which share of the worlds without a tree has such links.
const SHARE: f64 = 0.2;

/// Whether the links of a seed's machines are narrow.
pub fn has_narrow_links(seed: u64) -> bool {
    dice(seed).is_some() && !super::has_tree(seed)
}

fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x6e61_7272_6f77);
    dice.chance(SHARE).then_some(dice)
}

/// Makes the links of most machines narrow until then, if this is the seed of such a world.
pub(super) fn make_narrow(seed: u64, world: &mut World, until_ns: u64) {
    let Some(mut dice) = dice(seed) else { return };
    let (open, stuck) = (pick(&mut dice, &[0.3, 0.7, 0.9]), pick(&mut dice, &[0.0, 0.02, 0.1]));
    for machine in world.machines_mut() {
        let (seed, canary) = (dice.bits(), OutletCanary::None);
        let config = NarrowConfig { seed, until_ns, open, stuck, canary };
        machine.narrow = dice.chance(0.7).then_some(config);
    }
}
