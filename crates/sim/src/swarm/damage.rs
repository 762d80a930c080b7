//! Worlds whose attachments have their data checked end to end, and in most of these memory and links that alter it.
//! Drawn apart, so that all else is as it would be without.

use thinwire_link::rng::Rng;

use super::{Story, has_tree, pick};
use crate::damage::{BadBuffers, Damage};
use crate::world::{MS, SECOND, World};

/// Which share of the worlds has integrity.
const SHARE: f64 = 0.15;
/// Of these, the share in which something is altered. Not where somebody does not ask for integrity.
const DAMAGED: f64 = 0.8;

fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x0064_616d_6167_6521);
    dice.chance(SHARE).then_some(dice)
}

/// Whether somebody asks for integrity in the world of this seed.
pub(super) fn has_integrity(seed: u64) -> bool {
    dice(seed).is_some()
}

/// Whether data may be altered in the world of this seed.
pub fn has_damage(seed: u64) -> bool {
    dice(seed).is_some() && {
        let (world, _) = super::build(seed, Story::Swarm, &mut Rng::new(seed), false);
        world.clients.iter().any(|client| client.buffers.is_some())
    }
}

/// Makes a world such a one, if this is its seed.
pub(super) fn spoil(seed: u64, world: &mut World) {
    let Some(mut dice) = dice(seed) else { return };
    for client in &mut world.clients {
        client.config.integrity = true;
    }
    for server in &mut world.servers {
        server.leaf_settings.config.integrity = dice.chance(0.5);
    }
    if has_tree(seed) || !world.jugglers.is_empty() || !dice.chance(DAMAGED) {
        return;
    }
    // Errors may be due anywhere.
    world.exports.iter_mut().for_each(|export| export.may_fail = true);
    let share = pick(&mut dice, &[0.002, 0.01, 0.05]);
    for client in &mut world.clients {
        // Lists of extents have no sums.
        client.workload.statuses = 0;
        let most = pick(&mut dice, &[1_000, 100_000, 10 * MS, 2 * SECOND]);
        client.buffers = Some(BadBuffers::new(Rng::new(dice.bits()), share, (1, most)));
    }
    for machine in world.machines_mut() {
        machine.damage = Some(Damage::new(Rng::new(dice.bits()), share));
    }
}
