//! Worlds whose targets have two or three shards that serve the same exports together: several initiators of
//! different identities write, take over and read through different shards, syncs fail while others write, letters
//! between shards are late, and one shard stands still while the others go on.

use thinwire_link::rng::Rng;

use super::{Machines, SwarmPlan, add_juggler, has_tree, may_fail, medium, pick, workload};
use crate::chaos;
use crate::client::{MemberCut, Workload};
use crate::export::{Export, Store};
use crate::medium::MediumHandle;
use crate::spread::{SHARDS_MAX, Spreading};
use crate::stamp::SECTOR_BYTES;
use crate::world::{MS, SECOND, World};

/// Which share of the worlds without a tree is like that.
const SHARE: f64 = 0.06;
/// Clients that such an export has, at least.
const CLIENTS: usize = 3;
/// Bytes that lie together at one member.
const CHUNK_BYTES: u64 = 256 << 10;
/// Times at which one member alone hears nothing, at most.
const CUTS_MAX: u64 = 3;
/// Times at which a shard stands still, at most.
const FREEZES_MAX: u64 = 12;

/// The dice of such a world, if this is the seed of one.
fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x0073_6861_7264_7321);
    (dice.chance(SHARE) && !has_tree(seed)).then_some(dice)
}

/// Whether in the world of this seed targets have exports on all of their shards.
pub fn has_spread(seed: u64) -> bool {
    dice(seed).is_some()
}

/// Makes a world such a one, if this is its seed. The others are as they would be if there were none.
pub(super) fn over_shards(seed: u64, world: &mut World, machines: &Machines, plan: &mut SwarmPlan) {
    let Some(mut dice) = dice(seed) else { return };
    let duration_ns = plan.duration_ns;
    // One session has exports of one shard, or such as are on all.
    world.jugglers.clear();
    for server in 0..world.servers.len() {
        let s = &mut world.servers[server];
        s.set_shards(dice.between(2, SHARDS_MAX) as usize);
        s.mail.late_ns_max = pick(&mut dice, &[0, 5_000, 100_000, 2 * MS, 20 * MS, 50 * MS]);
        let (reshards, between) =
            (pick(&mut dice, &[0.0, 0.3, 1.0]), pick(&mut dice, &[0.0, 0.05, 0.3]));
        let slow = (dice.below(SHARDS_MAX) as usize, pick(&mut dice, &[1, 10, 100]));
        s.spreading = Some(Spreading { reshards, between, slow, dice: Rng::new(dice.bits()) });
        let mine = (0..world.exports.len()).filter(|&at| world.exports[at].server == server);
        let mut mine: Vec<usize> = mine.collect();
        if mine.len() > 1 && dice.chance(0.3) {
            // One is on one shard, as ever.
            mine.pop();
        }
        let fails = dice.chance(0.5);
        for &export in &mine {
            spread(&mut world.exports[export], fails, &mut dice);
        }
        if fails {
            // What fails in one may fail for all on the device.
            let all = world.exports.iter_mut().filter(|e| e.server == server);
            all.filter(|e| e.medium().is_some()).for_each(|e| e.may_fail = true);
        }
        for &export in &mine {
            add_clients(world, machines, export, duration_ns, &mut dice);
        }
        for _ in 0..dice.between(1, 2) {
            add_juggler(world, machines, mine.clone(), duration_ns, &mut dice);
        }
        for _ in 0..dice.below(3) {
            add_watcher(world, machines, &mine, duration_ns, &mut dice);
        }
    }
    several_members(seed, world, duration_ns);
    let take_over = &mut plan.weights[chaos::TAKE_OVER];
    *take_over = (*take_over).max(dice.between(0, 6));
}

/// It is a file, of which nothing is kept in memory.
fn spread(export: &mut Export, fails: bool, dice: &mut Rng) {
    export.is_spread = true;
    export.cache = None;
    match &export.store {
        Store::Writeback(medium, _) => export.store = Store::File(medium.clone()),
        Store::Memory => {
            let config = medium(export.bytes, dice);
            let new = MediumHandle::new(dice.bits(), [dice.bits() as u8; 16], config);
            export.may_fail = may_fail(&config);
            export.begin_content(new.identity(), Some(new.clone()), None);
            export.store = Store::File(new);
        }
        Store::File(_) | Store::Tree(_) | Store::Pool(_) => {}
    }
    let medium = export.medium().expect("it is a file");
    medium.configure(|c| {
        c.is_cached = false;
        if dice.chance(0.3) {
            // Much of it is under way when somebody else wants it, or the process dies.
            (c.latency_ns, c.lands_late_ns) = ((MS, 8 * MS), 2 * SECOND);
        }
        // What different rings have been given ends in any order.
        c.tells_late_ns = pick(dice, &[0, 1, 4]) * c.latency_ns.1;
        if fails {
            c.flush_failure = pick(dice, &[0.05, 0.2, 0.4]);
            c.device_failure = pick(dice, &[0.0, 0.5]);
            c.read_directly = dice.chance(0.5);
        }
    });
}

/// Several use it, through different shards.
fn add_clients(
    world: &mut World,
    machines: &Machines,
    export: usize,
    duration_ns: u64,
    dice: &mut Rng,
) {
    let present = world.clients.iter().filter(|client| client.export == export).count();
    for _ in present..CLIENTS {
        let read_only = dice.chance(0.4);
        let budget = dice.between(60, 1000);
        let drawn = workload(dice, budget, duration_ns);
        machines.add_client(world, export, read_only, drawn, dice);
        world.exports[export].writers += usize::from(!read_only);
    }
    let hot_sectors = pick(dice, &[16, 64, 512]);
    for client in world.clients.iter_mut().filter(|client| client.export == export) {
        let flushes = client.workload.flushes.max(2);
        client.workload = Workload { hot: 0.8, hot_sectors, flushes, ..client.workload };
    }
}

/// A juggler that only reads: beside a writer, on whatever shard, so that what one is told another may have been told.
fn add_watcher(
    world: &mut World,
    machines: &Machines,
    exports: &[usize],
    duration_ns: u64,
    dice: &mut Rng,
) {
    let exports: Vec<_> = exports.iter().map(|&at| (at, true)).collect();
    let budget = dice.between(300, 2000);
    let drawn = workload(dice, budget, duration_ns);
    let drawn = Workload { depth: 4, writes: 0, flushes: 0, sectors_max: 8, ..drawn };
    let index = world.add_juggler(machines.links, machines.station, &exports, drawn);
    let juggler = &mut world.jugglers[index];
    juggler.faults = machines.wrapped;
    juggler.hand.counters_high = machines.counters_high;
    juggler.hand.machine.burst = machines.burst;
    juggler.leaves = pick(dice, &[0.005, 0.1, 0.3]);
}

/// Some clients of a spread export have several members, each on a shard of its own, and now and then one of them alone
/// hears nothing. Drawn apart, so that all else is as it would be without.
fn several_members(seed: u64, world: &mut World, duration_ns: u64) {
    let mut dice = Rng::new(seed ^ 0x006d_656d_6265_7273);
    let is_dealt = |e: &Export| e.is_spread && e.bytes >= 4 * CHUNK_BYTES;
    if !world.exports.iter().any(is_dealt) || dice.chance(0.2) {
        return;
    }
    for client in &mut world.clients {
        if !is_dealt(&world.exports[client.export]) {
            continue;
        }
        // What all of them want most lies where chunks of two members meet.
        let border = CHUNK_BYTES as usize / SECTOR_BYTES;
        client.workload.hot_first = border.saturating_sub(client.workload.hot_sectors / 2);
        if dice.chance(0.3) {
            continue;
        }
        client.members = pick(&mut dice, &[2, 2, 3, 4]);
        for _ in 0..dice.below(CUTS_MAX + 1) {
            let from = dice.between(1, duration_ns);
            let longest = pick(&mut dice, &[100 * MS, SECOND, 8 * SECOND]);
            let within = (from, from + dice.between(longest / 4, longest));
            let member = dice.below(u64::from(client.members)) as u8;
            client.cuts.push(MemberCut { within, member });
        }
    }
}

/// When one shard of a server stands still, and for how long: in a run of so many ns, in such a world.
pub(crate) fn plan_freezes(
    seed: u64,
    world: &World,
    within_ns: u64,
) -> Vec<(u64, usize, usize, u64)> {
    let Some(mut dice) = dice(seed).map(|dice| Rng::new(dice.clone().bits() ^ seed)) else {
        return Vec::new();
    };
    let servers = world.servers.len() as u64;
    let freezes = dice.between(0, FREEZES_MAX);
    let mut freeze = |_| {
        let (at, server) = (world.now + dice.between(1, within_ns), dice.below(servers) as usize);
        let shard = dice.below(SHARDS_MAX) as usize;
        let longest = pick(&mut dice, &[MS / 5, 5 * MS, 100 * MS, SECOND]);
        (at, server, shard, dice.between(longest / 4, longest))
    };
    (0..freezes).map(&mut freeze).collect()
}
