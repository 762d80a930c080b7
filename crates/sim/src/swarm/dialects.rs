//! Worlds in which servers offer some of their exports in EBD, too, beside clients of Thinwire's own protocol, which
//! may want the same. Drawn apart, so that all else is as it would be without.

use std::time::Duration;

use thinwire_link::rng::Rng;
use thinwire_wire::ebd::EbdForm;

use super::damage::has_integrity;
use super::{Machines, SwarmPlan, durable_workload, has_keys, has_tree, pick, workload};
use crate::ebd::EbdEvent;
use crate::world::{MS, SECOND, World};

/// Which share of the worlds that may be like that is.
const SHARE: f64 = 0.5;
/// Longest detour of a frame, in ns: twice that, as of one that is doubled behind a detour, is less than its lifetime
/// (`docs/ebd.md`, "Loss"). Frames that are older than that are what EBD does not promise to survive.
const DETOUR_NS: u64 = 900 * MS;
/// Mean time between two things that happen to a user.
const GAPS: [u64; 4] = [100 * MS, 400 * MS, 1500 * MS, 20 * SECOND];

/// What a world is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Story {
    /// Whatever the seed says.
    #[default]
    Swarm,
    /// Exports offered in EBD, in any case.
    Ebd,
}

impl Story {
    /// Whether the world of this seed has something offered in EBD.
    pub fn has_ebd(self, seed: u64) -> bool {
        let is_drawn = || Rng::new(seed ^ 0x6562_6421).chance(SHARE);
        // An export with keys is offered to nobody who has none; and nothing finds what memory or a link alters.
        self == Story::Ebd
            || !has_keys(seed) && !has_integrity(seed) && !has_tree(seed) && is_drawn()
    }
}

/// Offers exports, and adds their users.
pub(super) fn offer(world: &mut World, machines: &Machines, plan: &SwarmPlan, seed: u64) {
    let mut dice = Rng::new(seed ^ 0x0065_6264_6f66_6621);
    let mut is_offered = false;
    for server in 0..world.servers.len() {
        let mut exports = world.offerable(server);
        exports.truncate(2);
        if exports.is_empty() {
            continue;
        }
        is_offered = true;
        let form = pick(&mut dice, &[EbdForm::Ideal, EbdForm::Implemented]);
        world.offer_ebd(server, form, &exports, machines.station);
        for &export in &exports {
            let writers = pick(&mut dice, &[1, 1, 2]);
            world.exports[export].writers += writers;
            let readers = usize::from(dice.chance(0.3));
            for nth in 0..writers + readers {
                add_user(world, machines, plan, (export, nth >= writers), &mut dice);
            }
        }
    }
    if is_offered {
        world.net.set_wire(|wire| wire.reorder_ns_max = wire.reorder_ns_max.min(DETOUR_NS));
    }
}

fn add_user(
    world: &mut World,
    machines: &Machines,
    plan: &SwarmPlan,
    (export, read_only): (usize, bool),
    dice: &mut Rng,
) {
    let budget = dice.between(60, 1000);
    let drawn = match dice.chance(0.3) {
        true => durable_workload(dice, budget, plan.duration_ns),
        false => workload(dice, budget, plan.duration_ns),
    };
    let block_bytes = pick(dice, &[512, 1024, 4096, 8192]);
    let user = world.add_ebd_user(export, machines.station, block_bytes, drawn);
    let user = &mut world.ebd_users[user];
    user.faults = machines.wrapped;
    user.machine.burst = machines.burst;
    user.config.read_only = read_only;
    user.config.retained_bytes_max = pick(dice, &[16 << 10, 256 << 10, 4 << 20]);
    if dice.chance(0.25) {
        user.config.fail_after = Some(Duration::from_millis(dice.between(300, 4000)));
    }
}

/// What happens to users of EBD, and when.
pub(crate) fn plan_ebd(seed: u64, world: &World, plan: &SwarmPlan) -> Vec<(u64, usize, EbdEvent)> {
    let mut dice = Rng::new(seed ^ 0x0065_6264_706c_616e);
    let mut planned = Vec::new();
    for user in 0..world.ebd_users.len() {
        let gap = pick(&mut dice, &GAPS);
        let mut at = dice.between(1, 2 * gap);
        while at < plan.duration_ns {
            let scale = pick(&mut dice, &[5 * MS, 100 * MS, SECOND, 4 * SECOND]);
            let ns = dice.between(scale / 4, scale);
            let event = match dice.below(7) {
                0 => EbdEvent::Crash(ns),
                1 => EbdEvent::Close,
                2 => EbdEvent::Abort,
                3 => EbdEvent::Freeze(ns),
                4 => EbdEvent::TakeOver,
                5 => EbdEvent::LinkDown(ns),
                _ => EbdEvent::Cut(ns, dice.below(3) as u8),
            };
            planned.push((at, user, event));
            at += dice.between(1, 2 * gap);
        }
    }
    planned
}
