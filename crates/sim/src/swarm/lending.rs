//! Worlds whose links receive into memory of their own and lend it, to clients that hold what they have read.

use thinwire_link::rng::Rng;

use super::pick;
use crate::client::Holding;
use crate::lending::LendingConfig;
use crate::world::{MS, SECOND, World};

/// Which share of the worlds has such links.
const SHARE: f64 = 0.15;

/// Whether links of a seed's machines lend.
pub fn has_lending_links(seed: u64) -> bool {
    dice(seed).is_some()
}

fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x6c65_6e74_6c69_6e6b);
    dice.chance(SHARE).then_some(dice)
}

/// Has the links of most machines lend, if this is the seed of such a world, and most clients hold what they read.
pub(super) fn lend(seed: u64, world: &mut World) {
    let Some(mut dice) = dice(seed) else { return };
    for machine in world.machines_mut() {
        let config =
            LendingConfig { chunks: pick(&mut dice, &[4, 32, 256, 4096]), reuses_early: false };
        machine.lending = dice.chance(0.8).then_some(config);
    }
    for client in &mut world.clients {
        let (share, ns_max) =
            (pick(&mut dice, &[0.1, 0.5, 1.0]), pick(&mut dice, &[MS, 50 * MS, SECOND]));
        let holding = Holding::new(share, ns_max, Rng::new(dice.bits()));
        client.holding = dice.chance(0.8).then_some(holding);
    }
}
