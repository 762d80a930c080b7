//! What a seed draws: the shape of the world and how bad it is. Swarm testing: each seed leaves
//! out most of what can go wrong, so that the rest gets to happen in every combination.

mod absences;
mod aims;
mod caches;
mod damage;
mod dialects;
mod disks;
mod keys;
mod lending;
mod narrow;
mod patches;
mod spread;
mod trees;

pub use self::absences::has_absences;
pub(crate) use self::absences::plan_absences;
pub(crate) use self::aims::aim_at_the_end;
pub use self::caches::has_cache;
pub use self::damage::has_damage;
pub use self::dialects::Story;
pub(crate) use self::dialects::plan_dialects;
pub use self::disks::run_local_disks;
pub use self::keys::has_keys;
pub(crate) use self::keys::plan_keys;
pub use self::lending::has_lending_links;
pub use self::narrow::has_narrow_links;
pub use self::spread::has_spread;
pub(crate) use self::spread::plan_freezes;
pub use self::trees::has_tree;

use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_initiator::{InitiatorConfig, TargetName, WhenAway};
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::{FaultRates, StationConfig, WireConfig};
use thinwire_proto::{BatchPolicy, Batching, TycheConfig};
use thinwire_target::TargetConfig;

use crate::client::{Top, Workload};
use crate::export::{Export, Store};
use crate::medium::{Device, MediumConfig, MediumHandle};
use crate::world::{MS, SECOND, World};

/// One of `choices`.
pub fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

/// What a run is like, besides the world itself.
#[derive(Clone, Debug)]
pub struct SwarmPlan {
    /// How long things go wrong, in ns.
    pub duration_ns: u64,
    /// What goes wrong on the wire all that time.
    pub faults: FaultRates,
    /// Weights of the events of `chaos.rs`.
    pub weights: [u64; crate::chaos::EVENTS],
    /// Mean time between two events, in ns.
    pub gap_ns: u64,
}

fn rates(rng: &mut Rng) -> FaultRates {
    let mut rate = |most: f64| {
        if rng.chance(0.5) {
            return 0.0;
        }
        most * pick(rng, &[0.05, 0.2, 0.5, 1.0])
    };
    FaultRates { loss: rate(0.1), dup: rate(0.1), reorder: rate(0.2), corrupt: rate(0.03) }
}

/// What a world is drawn from first.
pub(crate) struct Ground {
    pub world: World,
    pub machines: Machines,
    /// What goes wrong on the wire.
    pub faults: FaultRates,
    duration_ns: u64,
    servers: usize,
}

/// What all machines of a world have in common.
pub(crate) struct Machines {
    /// Links of a machine, and what each is like.
    pub links: usize,
    pub station: StationConfig,
    /// The wrapper of links that makes faults, if there is one.
    pub wrapped: Option<FaultConfig>,
    pub counters_high: bool,
    pub burst: usize,
}

impl Machines {
    pub fn add_server(&self, world: &mut World, node: String, rng: &mut Rng) {
        let config = target(node, self.counters_high, rng);
        let server = world.add_server(self.links, self.station, config, self.wrapped);
        world.servers[server].shards[0].machine.burst = self.burst;
    }

    fn add_client(
        &self,
        world: &mut World,
        export: usize,
        read_only: bool,
        workload: Workload,
        rng: &mut Rng,
    ) -> usize {
        let client = world.add_client(self.links, self.station, export, workload);
        let c = &mut world.clients[client];
        c.faults = self.wrapped;
        c.config.read_only = read_only;
        c.machine.burst = self.burst;
        initiator(&mut c.config, self.counters_high, rng);
        client
    }
}

pub(crate) fn ground(rng: &mut Rng, prints: bool) -> Ground {
    let faults = if rng.chance(0.25) { FaultRates::default() } else { rates(rng) };
    let latency = pick(rng, &[2_000, 10_000, 10_000, 50_000, 500_000]);
    let wire = WireConfig {
        latency_ns_min: latency,
        latency_ns_max: latency * pick(rng, &[1, 2, 5]),
        port_bytes_per_s: pick(rng, &[0, 125_000_000, 1_250_000_000]),
        port_queue_bytes: pick(rng, &[32 << 10, 256 << 10, 1 << 20]),
        transit_bytes_max: if rng.chance(0.1) {
            pick(rng, &[1500, 4400, 9000])
        } else {
            usize::MAX
        },
        faults,
        // As long as a frame may live: over restarts and take-overs.
        reorder_ns_max: pick(rng, &[50_000, 200_000, 3 * MS, 500 * MS, 5 * SECOND]),
        pads: rng.chance(0.8),
    };
    let mut world = World::new(rng.bits(), wire, prints);
    world.lag_ns = pick(rng, &[0, 2_000, 50_000, 50_000, 1_000_000, 5_000_000]);
    let links = pick(rng, &[1, 1, 1, 2, 2, 3]);
    let station = StationConfig {
        frame_bytes_max: pick(rng, &[1500, 9000, 9000, 9000, 65_535]),
        frame_bytes_base: pick(rng, &[1280, 1500]),
        room_frames: pick(rng, &[8, 32, 256, 256, 1024]),
        // Whole frames; or chunks as AF_XDP has them; or so short that messages are cut.
        piece_bytes_max: pick(rng, &[usize::MAX, usize::MAX, 3776, 700]),
        protocol: 0,
    };
    let wrapped = rng.chance(0.25).then(|| FaultConfig {
        rates: FaultRates { loss: 0.01, dup: 0.01, reorder: 0.02, corrupt: 0.002 },
        delay_ns_min: 0,
        delay_ns_max: pick(rng, &[0, 0, 100_000]),
        seed: rng.bits() >> 8,
    });
    let duration_ns = rng.between(SECOND / 2, 6 * SECOND);
    let servers = pick(rng, &[1, 1, 1, 2]);
    let counters_high = rng.chance(0.2);
    let burst = pick(rng, &[8, 128, 512, 512]);
    let machines = Machines { links, station, wrapped, counters_high, burst };
    Ground { world, machines, faults, duration_ns, servers }
}

/// Builds the world of a seed.
pub fn build(seed: u64, story: Story, rng: &mut Rng, prints: bool) -> (World, SwarmPlan) {
    let ground = ground(rng, prints);
    if has_tree(seed) && story == Story::Swarm {
        let (mut world, plan) = trees::build(seed, ground, rng);
        caches::keep(seed, &mut world);
        lending::lend(seed, &mut world);
        keys::give(seed, &mut world);
        damage::spoil(seed, &mut world);
        aims::aim(seed, &mut world);
        return (world, plan);
    }
    let Ground { mut world, machines, faults, duration_ns, servers } = ground;
    for server in 0..servers {
        machines.add_server(&mut world, format!("node{server}"), rng);
        // All on one device, or each on its own.
        let device = rng.chance(0.5).then(Device::new);
        for _ in 0..pick(rng, &[1, 1, 2, 2, 3, 4]) {
            add_export(&mut world, server, device.clone(), rng);
        }
        // No more of them serve than there are exports.
        world.servers[server].set_shards(pick(rng, &[1, 2, 2, 3]));
        let on_server = |e: &&mut Export| e.server == server && e.medium().is_some();
        let may_fail = world.exports.iter().any(|e| e.server == server && e.may_fail);
        if device.is_some() && may_fail {
            // What fails in one fails for all on the device.
            world.exports.iter_mut().filter(on_server).for_each(|e| e.may_fail = true);
        }
    }
    for export in 0..world.exports.len() {
        let writers = pick(rng, &[1, 1, 2]);
        world.exports[export].writers += writers as usize;
        let readers = u64::from(rng.chance(0.3));
        for nth in 0..writers + readers {
            let budget = rng.between(60, 1000);
            let loses =
                world.exports[export].medium().is_some_and(|m| m.config().flush_failure > 0.0);
            let workload = if loses && rng.chance(0.6) {
                durable_workload(rng, budget, duration_ns)
            } else {
                workload(rng, budget, duration_ns)
            };
            let client = machines.add_client(&mut world, export, nth >= writers, workload, rng);
            let c = &mut world.clients[client];
            if rng.chance(0.25) {
                let away = Duration::from_millis(rng.between(300, 4000));
                c.config.when_away = WhenAway::FailAfter(away);
            }
            if rng.chance(0.1) {
                c.config.frame_bytes_max = Some(1500);
            }
            if rng.chance(0.4) {
                c.top = Top::AnyRange;
                // Longer than one request may be, now and then.
                c.workload.sectors_max = pick(rng, &[8, 64, 512, 3000]);
            }
            if rng.chance(0.2) {
                let server = world.exports[export].server;
                let station = pick(rng, world.servers[server].stations());
                c.config.target = TargetName::Address(Addr::Sim(station));
            }
        }
    }
    for server in 0..world.servers.len() {
        let mine = (0..world.exports.len()).filter(|&at| world.exports[at].server == server);
        // One session has exports of one shard.
        let shards = world.servers[server].serving(mine.clone().count());
        let exports: Vec<usize> = mine.step_by(shards).collect();
        if exports.len() < 2 || rng.chance(0.4) {
            continue;
        }
        add_juggler(&mut world, &machines, exports, duration_ns, rng);
    }
    narrow::make_narrow(seed, &mut world, duration_ns);
    patches::lose_beside(seed, &mut world);
    lend_little(seed, &mut world);
    caches::keep(seed, &mut world);
    let mut plan = plan(duration_ns, faults, rng);
    spread::over_shards(seed, &mut world, &machines, &mut plan);
    lending::lend(seed, &mut world);
    let (ebd, aoe) = story.has_dialects(seed);
    if ebd {
        dialects::offer_ebd(&mut world, &machines, &plan, seed);
    }
    if aoe {
        dialects::offer_aoe(&mut world, &machines, &plan, (seed, story == Story::Aoe));
    }
    if !ebd && !aoe {
        keys::give(seed, &mut world);
        damage::spoil(seed, &mut world);
    }
    aims::aim(seed, &mut world);
    (world, plan)
}

/// Whether the links of a seed's machines are wrapped in one that makes faults.
pub fn has_wrapped_links(seed: u64) -> bool {
    let (world, _) = build(seed, Story::Swarm, &mut Rng::new(seed), false);
    world.servers.iter().any(|server| server.faults.is_some())
}

/// Some clients may keep little of what arrives alive, or nothing: what they read is copied. Drawn apart, so
/// that all else is as it would be without.
fn lend_little(seed: u64, world: &mut World) {
    let mut dice = Rng::new(seed ^ 0x006c_656e_6473);
    for client in &mut world.clients {
        client.config.lent_bytes_max = pick(&mut dice, &[0, 64 << 10, 16 << 20, 16 << 20]);
    }
}

fn plan(duration_ns: u64, faults: FaultRates, rng: &mut Rng) -> SwarmPlan {
    let mut weights = [0; crate::chaos::EVENTS];
    for weight in &mut weights {
        *weight = if rng.chance(0.5) { 0 } else { rng.between(1, 4) };
    }
    // It shows something only if a successor was granted meanwhile: it has to be tried often.
    weights[crate::chaos::LATE_ATTACH] *= 3;
    let gap_ns = pick(rng, &[100 * MS, 400 * MS, 1500 * MS, 20 * SECOND]);
    SwarmPlan { duration_ns, faults, weights, gap_ns }
}

pub(crate) fn initiator(config: &mut InitiatorConfig, counters_high: bool, rng: &mut Rng) {
    config.wait = rng.chance(0.3);
    config.batching = batching(rng);
    config.counters_high = counters_high;
    config.retained_entries_max = pick(rng, &[4, 32, 16_384, 16_384]);
    config.retained_bytes_max = pick(rng, &[16 << 10, 256 << 10, 32 << 20, 32 << 20]);
}

fn target(node: String, counters_high: bool, rng: &mut Rng) -> TargetConfig {
    TargetConfig {
        node,
        insecure: true,
        slots: pick(rng, &[1, 4, 32, 128]),
        credit_bytes: pick(rng, &[1 << 20, 2 << 20, 8 << 20]),
        lease: Duration::from_secs(pick(rng, &[1, 3, 30])),
        session_timeout: Duration::from_secs(pick(rng, &[2, 10, 120])),
        batching: batching(rng),
        counters_high,
        ..TargetConfig::default()
    }
}

/// It has all of these exports, or all but one, most of them for writing.
fn add_juggler(
    world: &mut World,
    machines: &Machines,
    mut exports: Vec<usize>,
    duration_ns: u64,
    rng: &mut Rng,
) {
    if exports.len() > 2 && rng.chance(0.3) {
        exports.remove(rng.below(exports.len() as u64) as usize);
    }
    let exports: Vec<_> = exports.into_iter().map(|at| (at, rng.chance(0.15))).collect();
    let drawn = workload(rng, 0, duration_ns);
    let budget = rng.between(100, 1500);
    let pauses = pick(rng, &[0.02, 0.1, 0.5]);
    let drawn = Workload {
        budget,
        depth: drawn.depth.max(4),
        flushes: drawn.flushes.max(1),
        sectors_max: pick(rng, &[8, 64, 256]),
        pauses,
        pause_ns_max: (2.0 * duration_ns as f64 / (budget as f64 * pauses)) as u64,
        ..drawn
    };
    let index = world.add_juggler(machines.links, machines.station, &exports, drawn);
    let juggler = &mut world.jugglers[index];
    juggler.faults = machines.wrapped;
    juggler.hand.counters_high = machines.counters_high;
    juggler.hand.machine.burst = machines.burst;
    juggler.leaves = pick(rng, &[0.0, 0.005, 0.05, 0.3]);
    juggler.hand.batching = batching(rng);
}

fn batching(rng: &mut Rng) -> Batching {
    // Shorter than a user's, so that a run sees many.
    let tyche = TycheConfig { interval: Duration::from_millis(5), ..TycheConfig::default() };
    let policy = match rng.below(8) {
        0 => BatchPolicy::None,
        1 => BatchPolicy::Static(pick(rng, &[1, 2, 8, 64])),
        2 => BatchPolicy::Tyche(tyche),
        3 => BatchPolicy::Doorbell,
        _ => BatchPolicy::Backlog,
    };
    Batching { policy, data: rng.chance(0.8) }
}

/// What a disk of this size is like.
pub(crate) fn medium(bytes: u64, rng: &mut Rng) -> MediumConfig {
    let mut rate = |most: f64| if rng.chance(0.85) { 0.0 } else { most };
    let (flush_failure, write_failure, no_space) = (rate(0.2), rate(0.02), rate(0.05));
    let (read_failure, record_failure) = (rate(0.02), rate(0.3));
    let record_crash = rate(0.3);
    let writeback_failure = if rng.chance(0.3) { pick(rng, &[0.02, 0.2]) } else { 0.0 };
    MediumConfig {
        bytes,
        latency_ns: pick(rng, &[(1_000, 5_000), (20_000, 200_000), (1_000_000, 8_000_000)]),
        wide: 0,
        slow: pick(rng, &[0.0, 0.0, 0.002, 0.02]),
        tells_late_ns: 0,
        flush_failure,
        write_failure,
        no_space,
        sick_writes: 0,
        read_failure,
        record_failure,
        record_crash,
        device_failure: pick(rng, &[0.0, 0.5, 1.0]),
        writeback_failure,
        read_directly: rng.chance(0.5),
        failure_takes_ns: pick(rng, &[0, 10 * MS, 200 * MS]),
        record_shares_description: false,
        forgets_cuts: false,
        goes_on_failing: false,
        forgets_rings: false,
        is_cached: false,
        punch_hole: rng.chance(0.8),
        zero_range: rng.chance(0.8),
        lands_late_ns: pick(rng, &[0, 10 * MS, 2 * SECOND]),
    }
}

/// Whether I/O on it may fail.
fn may_fail(c: &MediumConfig) -> bool {
    let rates = [
        c.flush_failure,
        c.write_failure,
        c.no_space,
        c.read_failure,
        c.record_failure,
        c.writeback_failure,
    ];
    rates.iter().any(|&rate| rate > 0.0) || c.sick_writes > 0
}

fn add_export(world: &mut World, server: usize, device: Option<Rc<Device>>, rng: &mut Rng) {
    let bytes = pick(rng, &[64 << 10, 256 << 10, 1 << 20, 3 << 20]);
    let block_bytes = pick(rng, &[512, 512, 4096]);
    let config = medium(bytes, rng);
    let identity = [world.exports.len() as u8 + 1; 16];
    let device = device.unwrap_or_else(Device::new);
    let medium = MediumHandle::on(device, rng.bits(), identity, config);
    let store = match rng.below(4) {
        0 => Store::Memory,
        1 => Store::Writeback(medium, pick(rng, &[0, 64 << 20])),
        _ => Store::File(medium),
    };
    let may_fail = !matches!(store, Store::Memory) && may_fail(&config);
    let export = world.add_export(server, bytes, block_bytes, store);
    world.exports[export].may_fail = may_fail;
}

/// Much of it is durable at once, beside flushes, which may fail.
fn durable_workload(rng: &mut Rng, budget: u64, duration_ns: u64) -> Workload {
    let drawn = workload(rng, budget, duration_ns);
    let depth = drawn.depth.max(16);
    Workload { depth, zeroes: drawn.writes + drawn.reads, flushes: drawn.writes, fua: 0.6, ..drawn }
}

pub(crate) fn workload(rng: &mut Rng, budget: u64, duration_ns: u64) -> Workload {
    let mut weight = |most: u64| if rng.chance(0.3) { 0 } else { 1 + rng.below(most) };
    let (flushes, discards, zeroes, statuses) = (weight(10), weight(6), weight(6), weight(4));
    let (reads, writes) = (rng.between(5, 60), rng.between(5, 60));
    let pauses = pick(rng, &[0.02, 0.1, 0.5]);
    Workload {
        depth: pick(rng, &[1, 4, 16, 48]),
        budget,
        reads,
        writes,
        flushes,
        discards,
        zeroes,
        statuses,
        fua: pick(rng, &[0.0, 0.1, 0.5]),
        sectors_max: pick(rng, &[8, 64, 512, 2048]),
        hot: 0.5,
        hot_sectors: pick(rng, &[16, 64, 512]),
        hot_first: 0,
        pauses,
        // Spread over the time in which things go wrong.
        pause_ns_max: (2.0 * duration_ns as f64 / (budget as f64 * pauses)) as u64,
    }
}
