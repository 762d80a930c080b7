//! Worlds in which servers offer some of their exports in other protocols, too, beside clients of Thinwire's own, which
//! may want the same. Drawn apart, so that all else is as it would be without.

use std::time::Duration;

use thinwire_link::rng::Rng;
use thinwire_wire::ebd::EbdForm;

use super::damage::has_integrity;
use super::{Machines, SwarmPlan, durable_workload, has_keys, has_tree, pick, workload};
use crate::client::Workload;
use crate::dialect::{DialectEvent, DialectSettings, For};
use crate::world::{MS, SECOND, World};

/// Which share of the worlds that may be like that has something offered in EBD, and which in AoE.
const SHARE_EBD: f64 = 0.5;
const SHARE_AOE: f64 = 0.2;
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
    /// Exports offered in AoE, in any case, and perhaps in EBD.
    Aoe,
    /// A volume composed of disks, of all modules: `composed/`.
    Volumes,
}

impl Story {
    /// The name by which it is asked for, if it has one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Story::Swarm => None,
            Story::Ebd => Some("ebd"),
            Story::Aoe => Some("aoe"),
            Story::Volumes => Some("volumes"),
        }
    }

    /// Whether the world of this seed has something offered in another protocol: in EBD, in AoE.
    pub fn has_dialects(self, seed: u64) -> (bool, bool) {
        // An export with keys is offered to nobody who has none; and nothing finds what memory or a link alters.
        if self == Story::Swarm && (has_keys(seed) || has_integrity(seed) || has_tree(seed)) {
            return (false, false);
        }
        let ebd = Rng::new(seed ^ 0x6562_6421).chance(SHARE_EBD);
        let aoe = Rng::new(seed ^ 0x616f_6521).chance(SHARE_AOE);
        match self {
            Story::Swarm => (ebd, aoe),
            Story::Ebd => (true, false),
            Story::Aoe => (ebd, true),
            Story::Volumes => (false, false),
        }
    }
}

/// Offers exports in EBD, and adds their users.
pub(super) fn offer_ebd(world: &mut World, machines: &Machines, plan: &SwarmPlan, seed: u64) {
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
                let drawn = draw_workload(&mut dice, plan);
                let block_bytes = pick(&mut dice, &[512, 1024, 4096, 8192]);
                let user = world.add_ebd_user(export, machines.station, block_bytes, drawn);
                settle_user(world, machines, (user, nth >= writers), &mut dice);
            }
        }
    }
    if is_offered {
        bound_detours(world);
    }
}

/// Offers exports in AoE, and adds their users. `alone` if nobody else writes some of them: whoever attaches has an export before
/// a user of AoE has written to it.
pub(super) fn offer_aoe(
    world: &mut World,
    machines: &Machines,
    plan: &SwarmPlan,
    (seed, alone): (u64, bool),
) {
    let mut dice = Rng::new(seed ^ 0x0061_6f65_6f66_6621);
    let mut is_offered = false;
    for server in 0..world.servers.len() {
        let mut exports = world.offerable(server);
        exports.truncate(2);
        if exports.is_empty() {
            continue;
        }
        is_offered = true;
        let devices: Vec<_> = exports.iter().map(|&at| (at, dice.chance(0.3))).collect();
        world.offer_aoe(server, &devices, machines.station);
        for &(export, is_cached) in &devices {
            if dice.chance(0.5) && alone {
                let clients = world.clients.iter_mut().filter(|client| client.export == export);
                clients.for_each(|client| client.config.read_only = true);
            }
            let writers = pick(&mut dice, &[1, 1, 2]);
            world.exports[export].writers += writers;
            let readers = usize::from(dice.chance(0.3));
            for nth in 0..writers + readers {
                let drawn = draw_workload(&mut dice, plan);
                let flushes = dice.chance(if is_cached { 0.7 } else { 0.2 });
                let user = world.add_aoe_user(export, flushes, machines.station, drawn);
                settle_user(world, machines, (user, nth >= writers), &mut dice);
            }
        }
    }
    if is_offered {
        bound_detours(world);
    }
}

fn bound_detours(world: &mut World) {
    world.net.set_wire(|wire| wire.reorder_ns_max = wire.reorder_ns_max.min(DETOUR_NS));
}

fn draw_workload(dice: &mut Rng, plan: &SwarmPlan) -> Workload {
    let budget = dice.between(60, 1000);
    match dice.chance(0.3) {
        true => durable_workload(dice, budget, plan.duration_ns),
        false => workload(dice, budget, plan.duration_ns),
    }
}

/// The rest of what a user is like.
fn settle_user(
    world: &mut World,
    machines: &Machines,
    (user, read_only): (usize, bool),
    dice: &mut Rng,
) {
    let user = &mut world.dialect_users[user];
    user.faults = machines.wrapped;
    user.machine.burst = machines.burst;
    user.read_only = read_only;
    if let DialectSettings::Ebd(config) = &mut user.settings {
        config.retained_bytes_max = pick(dice, &[16 << 10, 256 << 10, 4 << 20]);
    }
    if dice.chance(0.25) {
        user.settings.fails_after(Duration::from_millis(dice.between(300, 4000)));
    }
}

/// What happens to users of other protocols, and when.
pub(crate) fn plan_dialects(
    seed: u64,
    world: &World,
    plan: &SwarmPlan,
) -> Vec<(u64, usize, DialectEvent)> {
    let mut dice = Rng::new(seed ^ 0x0065_6264_706c_616e);
    let mut planned = Vec::new();
    for user in 0..world.dialect_users.len() {
        let gap = pick(&mut dice, &GAPS);
        let is_aoe = matches!(world.dialect_users[user].settings, DialectSettings::Aoe(_));
        let mut at = dice.between(1, 2 * gap);
        while at < plan.duration_ns {
            let scale = pick(&mut dice, &[5 * MS, 100 * MS, SECOND, 4 * SECOND]);
            let ns = dice.between(scale / 4, scale);
            let event = match dice.below(if is_aoe { 9 } else { 7 }) {
                0 => DialectEvent::Crash(ns),
                1 => DialectEvent::Close,
                2 => DialectEvent::Abort,
                3 => DialectEvent::Freeze(ns),
                4 => DialectEvent::TakeOver,
                5 => DialectEvent::LinkDown(ns),
                7 | 8 => DialectEvent::Reserve(pick(&mut dice, &For::ALL), dice.chance(0.3)),
                _ => DialectEvent::Cut(ns, dice.below(3) as u8),
            };
            planned.push((at, user, event));
            at += dice.between(1, 2 * gap);
        }
    }
    planned
}
