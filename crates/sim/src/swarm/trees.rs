//! Worlds with a tree: two servers with disks, and a gateway that serves disks of its own and theirs as
//! one; or a client that stands on theirs itself.

use thinwire_link::rng::Rng;

use super::{
    Ground, Machines, SwarmPlan, durable_workload, initiator, may_fail, medium, pick, plan,
    workload,
};
use crate::chaos::{KILL, POWER};
use crate::client::{Top, Workload};
use crate::export::Store;
use crate::medium::{Device, MediumHandle};
use crate::tree::{Branch, TreeLeaf};
use crate::world::{MS, NOBODY, SECOND, World};

/// Which share of the seeds has one.
const SHARE: f64 = 0.125;
/// Leaves of a tree.
const LEAVES: usize = 8;

/// Whether a seed's world is one of these. The others are as they would be if there were none.
pub fn has_tree(seed: u64) -> bool {
    Rng::new(seed ^ 0x7472_6565).chance(SHARE)
}

/// Builds such a world.
pub(super) fn build(seed: u64, ground: Ground, rng: &mut Rng) -> (World, SwarmPlan) {
    let Ground { mut world, machines, faults, .. } = ground;
    // Each crash takes a while of it.
    let duration_ns = rng.between(2 * SECOND, 10 * SECOND);
    // It stands on the tree itself, all of which is remote then.
    let by_client = rng.chance(0.2);
    let nodes = ["leaves0", "leaves1", "gateway"];
    for node in &nodes[..if by_client { 2 } else { 3 }] {
        machines.add_server(&mut world, node.to_string(), rng);
    }
    let gateway = 2;
    world.servers[0].set_shards(pick(rng, &[1, 1, 2]));
    if let Some(server) = world.servers.get_mut(gateway) {
        let settings = &mut server.leaf_settings;
        initiator(&mut settings.config, machines.counters_high, rng);
        // A server below is not there yet, or still has a former life's attachments.
        settings.config.wait = rng.chance(0.8);
    }
    // In most worlds only one of them fails at anything.
    let fails = [rng.chance(0.35), rng.chance(0.35), rng.chance(0.25)];
    let device = [(); 3].map(|()| rng.chance(0.5).then(Device::new));
    // What happens there is seen soonest.
    let hot_leaf = rng.below(LEAVES as u64) as usize;
    let locals = if by_client { 0 } else { LEAVES / 2 };
    let mut local = locals;
    let mut fails_at_all = false;
    let mut leaves = Vec::new();
    for leaf in 0..LEAVES {
        let is_local = rng.below((LEAVES - leaf) as u64) < local as u64;
        local -= usize::from(is_local);
        // The remote ones take turns.
        let server = if is_local { gateway } else { (leaf - (locals - local)) % 2 };
        let bytes = pick(rng, &[16 << 10, 64 << 10, 64 << 10, 256 << 10]);
        if is_local && rng.chance(0.03) {
            leaves.push(TreeLeaf::Memory { bytes });
            continue;
        }
        let mut config = medium(bytes, rng);
        match fails[server] {
            false => config = config.without_failures(),
            // What is sent again fails now and then.
            true => config.write_failure = pick(rng, &[0.0, 0.05, 0.3]),
        }
        if leaf == hot_leaf {
            config.sick_writes = pick(rng, &[0, 3, 12]);
        }
        fails_at_all |= may_fail(&config);
        let identity = [leaf as u8 + 1; 16];
        let device = device[server].clone().unwrap_or_else(Device::new);
        let medium = MediumHandle::on(device, rng.bits(), identity, config);
        if is_local {
            leaves.push(TreeLeaf::File(medium));
            continue;
        }
        let store = match rng.chance(0.25) {
            true => Store::Writeback(medium, pick(rng, &[0, 64 << 20])),
            false => Store::File(medium),
        };
        let export = world.add_export(server, bytes, pick(rng, &[512, 512, 4096]), store);
        world.exports[export].may_fail = may_fail(&config);
        leaves.push(world.remote_leaf(export));
    }
    let mut shape = if rng.chance(0.5) { Branch::even() } else { Branch::uneven() };
    // Dice of its own: worlds of `linear` alone are what they were.
    let mut dice = Rng::new(seed ^ 0x7368_6170_6573);
    if dice.chance(0.5) {
        let sizes: Vec<u64> = leaves.iter().map(TreeLeaf::bytes).collect();
        shape = Branch::mixed(&sizes, &mut dice);
    }
    let server = if by_client { NOBODY } else { gateway };
    let export = world.add_tree(server, shape, leaves);
    let tree = &mut world.exports[export];
    if let (true, Some(record)) = (fails[gateway], tree.record_medium()) {
        let drawn = medium(record.config().bytes, rng);
        fails_at_all |= may_fail(&drawn);
        record.configure(|c| {
            (c.record_failure, c.record_crash) = (drawn.record_failure, drawn.record_crash)
        });
    }
    tree.may_fail = fails_at_all;
    let places = tree.tree().expect("just added").places();
    let place = places.iter().find(|place| place.leaf == hot_leaf).unwrap_or(&places[0]);
    let writers = if by_client { 1 } else { pick(rng, &[1, 1, 2]) };
    tree.writers = writers as usize;
    let readers = u64::from(!by_client && rng.chance(0.3));
    for nth in 0..writers + readers {
        let budget = rng.between(200, 2000);
        let mut workload = match rng.below(10) {
            0..3 => durable_workload(rng, budget, duration_ns),
            3..7 => busy_workload(rng, budget, duration_ns),
            _ => workload(rng, budget, duration_ns),
        };
        // Around a border, or within the leaf.
        let before = if rng.chance(0.5) { workload.hot_sectors / 2 } else { 0 };
        workload.hot_first = place.first.saturating_sub(before);
        let client = machines.add_client(&mut world, export, nth >= writers, workload, rng);
        let c = &mut world.clients[client];
        if rng.chance(0.4) {
            c.top = Top::AnyRange;
            c.workload.sectors_max = pick(rng, &[8, 64, 512]);
        }
    }
    if !by_client && rng.chance(0.25) {
        add_guest(&mut world, &machines, export, rng);
    }
    let mut plan = plan(duration_ns, faults, rng);
    // Mostly crashes.
    for kind in [POWER, KILL] {
        plan.weights[kind] = rng.between(2, 12);
    }
    plan.gap_ns = pick(rng, &[100 * MS, 300 * MS, 600 * MS, 1500 * MS]);
    spoil_notes(seed, &mut world);
    // Dice of its own, too.
    let mut dice = Rng::new(seed ^ 0x6265_7369_6465);
    if !by_client && dice.chance(0.3) {
        add_beside(&mut world, &machines, gateway, duration_ns, &mut dice);
    }
    (world, plan)
}

/// In a part of the worlds what a gateway writes down of its grants fails, or it dies over it. Dice of their own:
/// the others stay as they were.
fn spoil_notes(seed: u64, world: &mut World) {
    let mut dice = Rng::new(seed ^ 0x006e_6f74_6573);
    for export in &mut world.exports {
        let Store::Tree(tree) = &export.store else { continue };
        if dice.chance(0.6) {
            continue;
        }
        let (failure, crash) = (pick(&mut dice, &[0.0, 0.05, 0.1]), pick(&mut dice, &[0.01, 0.03]));
        tree.memory.borrow_mut().notes.set_rates(failure, crash, dice.bits());
        // What cannot be forgotten before anybody writes fails whoever attaches.
        export.may_fail |= failure > 0.0;
    }
}

/// Much is written, read again and seldom flushed.
fn busy_workload(rng: &mut Rng, budget: u64, duration_ns: u64) -> Workload {
    let depth = pick(rng, &[8, 24, 48]);
    let hot_sectors = pick(rng, &[16, 32]);
    let drawn = workload(rng, budget, duration_ns);
    Workload {
        depth,
        reads: 60,
        writes: 30,
        flushes: 1,
        fua: 0.0,
        sectors_max: 8,
        hot: 0.97,
        hot_sectors,
        discards: 0,
        zeroes: 0,
        ..drawn
    }
}

/// The gateway has another shard, which serves a disk of its own.
fn add_beside(
    world: &mut World,
    machines: &Machines,
    gateway: usize,
    duration_ns: u64,
    dice: &mut Rng,
) {
    let config = medium(64 << 10, dice).without_failures();
    let identity = [world.exports.len() as u8 + 1; 16];
    let medium = MediumHandle::on(Device::new(), dice.bits(), identity, config);
    let export = world.add_export(gateway, config.bytes, 512, Store::File(medium));
    world.exports[export].writers = 1;
    world.servers[gateway].set_shards(2);
    let budget = dice.between(50, 300);
    let drawn = workload(dice, budget, duration_ns);
    machines.add_client(world, export, false, drawn, dice);
}

/// Somebody who takes a leaf of the tree away for a while.
fn add_guest(world: &mut World, machines: &Machines, tree: usize, rng: &mut Rng) {
    let of_tree = &world.exports[tree].tree().expect("it is one").leaves;
    let remote = |leaf: &TreeLeaf| match leaf {
        TreeLeaf::Remote { export, .. } => Some(*export),
        _ => None,
    };
    let remotes: Vec<usize> = of_tree.iter().filter_map(remote).collect();
    let leaf = pick(rng, &remotes);
    let guest = world.add_client(machines.links, machines.station, leaf, Workload::NONE);
    world.clients[guest].is_guest = true;
    world.exports[leaf].writers = 2;
}
