//! Worlds whose targets keep in memory what was read of their disks, and read ahead of who reads on.

use thinwire_link::rng::Rng;

use super::pick;
use crate::client::{ReadingOn, Workload};
use crate::world::World;

/// Which share of the worlds has caches.
const SHARE: f64 = 0.25;
/// In which share of these clients read from front to back.
const READ_ON: f64 = 0.5;
/// In which share of these they write no more than half as often as they read.
const MOSTLY_READ: f64 = 0.7;
/// In which share of those without a tree much is lost next door.
const LOSE: f64 = 0.3;

/// The dice of a world with caches, if this is the seed of one.
fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x6361_6368_6573);
    dice.chance(SHARE).then_some(dice)
}

/// Whether the world of this seed has caches.
pub fn has_cache(seed: u64) -> bool {
    dice(seed).is_some()
}

/// Gives a cache to most exports of one disk, if this is the seed of such a world: of all that lies on the disk,
/// or of a part, so that pages go. The others are as they would be if there were none.
pub(super) fn keep(seed: u64, world: &mut World) {
    let Some(mut dice) = dice(seed) else { return };
    for export in &mut world.exports {
        let bytes = pick(&mut dice, &[1 << 20, 1 << 20, 8 << 20]);
        let has_one = dice.chance(0.8);
        let Some(medium) = export.medium() else { continue };
        medium.configure(|config| config.is_cached = has_one);
        export.cache = has_one.then_some(bytes);
    }
    lose_next_door(seed, world);
    read_on(seed, world);
}

/// Syncs fail often, for all that lies on their device, beside readers of what others have written: a writer sends again
/// what was lost, and hides that a cache still has it.
fn lose_next_door(seed: u64, world: &mut World) {
    let mut dice = Rng::new(seed ^ 0x6e65_7874_646f_6f72);
    let has_tree = world.exports.iter().any(|export| export.tree().is_some());
    if has_tree || !dice.chance(LOSE) {
        return;
    }
    for export in &mut world.exports {
        let Some(medium) = export.medium() else { continue };
        medium.configure(|c| {
            c.flush_failure = pick(&mut dice, &[0.1, 0.3]);
            c.device_failure = 1.0;
        });
        export.may_fail = true;
    }
    let mut has_writer = vec![false; world.exports.len()];
    for client in &mut world.clients {
        let is_second = std::mem::replace(&mut has_writer[client.export], true);
        client.config.read_only |= is_second && dice.chance(0.7);
        client.workload = Workload {
            reads: 40,
            writes: 40,
            flushes: 4,
            fua: 0.0,
            hot: 0.9,
            hot_sectors: 64,
            ..client.workload
        };
    }
}

/// Clients read from front to back, and write what is read ahead of them.
fn read_on(seed: u64, world: &mut World) {
    let mut dice = Rng::new(seed ^ 0x0073_7472_6561_6d73);
    if !dice.chance(READ_ON) {
        return;
    }
    // What is read ahead, and what is written meanwhile, ends in any order then.
    for medium in world.exports.iter().filter_map(|export| export.medium()) {
        medium.configure(|c| c.tells_late_ns = pick(&mut dice, &[0, 1, 4]) * c.latency_ns.1);
    }
    let mostly_reads = Rng::new(seed ^ 0x6d6f_7374_6c79).chance(MOSTLY_READ);
    for client in &mut world.clients {
        let share = pick(&mut dice, &[0.0, 0.5, 0.8, 0.95]);
        let (ahead, dice) = (pick(&mut dice, &[8, 24, 64]), Rng::new(dice.bits()));
        client.reading = Some(ReadingOn { share, dice, next: 0, ahead });
        // What is dropped is read ahead once more, also where all would fit.
        let w = &mut client.workload;
        w.zeroes = w.zeroes.max((w.reads + w.writes) / 8);
        w.depth = w.depth.max(4);
        // Who mostly writes repairs what was read ahead in vain before anybody sees it.
        if mostly_reads {
            w.reads = w.reads.max(w.writes * 2);
        }
    }
}
