//! What a seed makes of a world that is about composed volumes: servers with disks, a volume of them, hosts that may have it.

use std::time::Duration;

use thinwire_initiator::{InitiatorConfig, TargetName};
use thinwire_link::rng::Rng;
use thinwire_modules::meta::LABEL_AREA_BYTES;
use thinwire_modules::mirror::MIRROR_DATA_START;
use thinwire_modules::thin::METADATA_BYTES_LEAST;

use super::at_rest::AtRest;
use super::changes::LegChanges;
use super::chaos::ChaosPlan;
use super::cuts::Cuts;
use super::pools::PoolStore;
use super::scrubbing::Scrubbed;
use super::whole_cuts::WholeCuts;
use super::{
    Composed, ComposedDisk, ComposedVolume, DiskExport, VolumeHost, VolumeShape, VolumeUser,
};
use crate::client::Workload;
use crate::export::{RECORD_BYTES, Store};
use crate::medium::{Device, MediumConfig, MediumHandle};
use crate::model::Model;
use crate::swarm::{self, Ground, pick};
use crate::world::{MS, SECOND, World};

/// What a volume with sums has in front of its data, without the sums.
const SUMS_BYTES: u64 = 2 << 20;
const CHUNKS: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];
/// A multiple of the largest block, and few enough that they are written over one another.
pub(super) const WILD_SECTORS: usize = 16;
const THIN_BLOCKS: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];

/// What is copied at a time goes to a target in so many requests.
const REQUESTS_AT_A_TIME: u64 = (512 << 10) / 4096;
/// In worlds in which that takes longer, timeouts of legs are longer.
const HURRY_NS: u64 = 100 * MS;
const SLOW_NS: u64 = 700 * MS;

/// So many of all frames are lost, or as good as lost.
const LOSSY: f64 = 0.08;

/// How long the target with the fewest slots takes for what is copied at a time, at least.
fn at_a_time_ns(world: &World) -> u64 {
    let wire = world.net.wire();
    let round_trip = wire.latency_ns_min + wire.latency_ns_max + 2 * world.lag_ns;
    let slots = world.servers.iter().map(|server| u64::from(server.config.slots)).min();
    let takes = REQUESTS_AT_A_TIME / slots.unwrap_or(1).max(1) * round_trip;
    // Of so many some are lost twice, and each time it takes twice as long until that is found out.
    let is_lossy = wire.faults.loss + wire.faults.corrupt >= LOSSY;
    if is_lossy { takes.max(HURRY_NS) } else { takes }
}

/// A volume of so many bytes on one machine: what it is made of, and how large its disks are.
pub(super) fn small_shape(bytes: u64, rng: &mut Rng) -> (VolumeShape, Vec<u64>) {
    let mut shaper = Shaper { rng, sizes: Vec::new() };
    let shape = match shaper.rng.below(8) {
        0..3 => shaper.thin(bytes, true),
        3 => shaper.crypt(bytes),
        4 => shaper.linear(bytes),
        5 => shaper.stripe(bytes, &mut |shaper, bytes| shaper.mirror(bytes)),
        _ => shaper.mirror(bytes),
    };
    (shape, shaper.sizes)
}

/// One whose writes end in memory, above disks that are no mirrors: these do with a discard what they like.
pub(super) fn bare_cache(bytes: u64, rng: &mut Rng) -> (VolumeShape, Vec<u64>) {
    let mut shaper = Shaper { rng, sizes: Vec::new() };
    let below = match shaper.rng.chance(0.5) {
        true => shaper.disk(bytes),
        false => shaper.stripe(bytes, &mut |shaper, bytes| shaper.disk(bytes)),
    };
    let told = [("size", 1 << 20), ("write_back", 1 << 20)];
    (VolumeShape::over("cache", &told, vec![below]), shaper.sizes)
}

/// Disks, and nothing but a mirror of them.
fn only_mirror(bytes: u64, rng: &mut Rng) -> (VolumeShape, Vec<u64>) {
    let mut shaper = Shaper { rng, sizes: Vec::new() };
    let legs = pick(shaper.rng, &[2, 2, 3]);
    let parts = (0..legs).map(|_| shaper.disk(MIRROR_DATA_START + bytes)).collect();
    (VolumeShape::over("mirror", &[], parts), shaper.sizes)
}

/// Draws a volume: what it is made of, and how large each disk has to be for that.
struct Shaper<'a> {
    rng: &'a mut Rng,
    sizes: Vec<u64>,
}

impl Shaper<'_> {
    fn disk(&mut self, bytes: u64) -> VolumeShape {
        self.sizes.push(bytes.next_multiple_of(4096));
        VolumeShape::Disk(self.sizes.len() - 1)
    }

    fn mirror(&mut self, bytes: u64) -> VolumeShape {
        let legs = pick(self.rng, &[2, 2, 2, 3]);
        let each = MIRROR_DATA_START + bytes;
        let mut parts: Vec<_> = (1..legs).map(|_| self.leg(each)).collect();
        // A leg that is made of several comes back with the next opening only.
        parts.push(match self.rng.below(6) {
            0 => self.stripe(each, &mut |shaper, bytes| shaper.disk(bytes)),
            _ => self.leg(each),
        });
        VolumeShape::over("mirror", &[], parts)
    }

    fn stripe(
        &mut self,
        bytes: u64,
        part: &mut dyn FnMut(&mut Self, u64) -> VolumeShape,
    ) -> VolumeShape {
        let (chunk, has_labels) = (pick(self.rng, &CHUNKS), self.rng.chance(0.5));
        let start = if has_labels { LABEL_AREA_BYTES } else { 0 };
        let each = start + bytes.div_ceil(2).next_multiple_of(chunk);
        let parts = vec![part(self, each), part(self, each)];
        let shape = VolumeShape::over("stripe", &[("chunk", chunk)], parts);
        if has_labels { shape.labelled() } else { shape }
    }

    fn linear(&mut self, bytes: u64) -> VolumeShape {
        let first = (bytes / 3).next_multiple_of(4096);
        let parts = vec![self.safe(first), self.safe(bytes - first)];
        VolumeShape::over("linear", &[], parts)
    }

    fn crypt(&mut self, bytes: u64) -> VolumeShape {
        let block = pick(self.rng, &[512, 4096]);
        let part = self.safe(LABEL_AREA_BYTES + bytes);
        VolumeShape::over("crypt", &[("block", block)], vec![part])
    }

    /// A disk whose blocks have sums, or one that is plain.
    fn leg(&mut self, bytes: u64) -> VolumeShape {
        if !self.rng.chance(0.15) {
            return self.disk(bytes);
        }
        let part = self.disk(SUMS_BYTES + bytes + bytes / 256);
        VolumeShape::over("integrity", &[], vec![part])
    }

    /// What stands most: mirrors, and what is made of them.
    fn safe(&mut self, bytes: u64) -> VolumeShape {
        match self.rng.below(8) {
            0 => self.disk(bytes),
            1 if self.sizes.len() < 3 => self.crypt(bytes),
            3 => self.leg(bytes),
            2 if self.sizes.len() < 3 => {
                self.stripe(bytes, &mut |shaper, bytes| shaper.mirror(bytes))
            }
            _ => self.mirror(bytes),
        }
    }

    fn thin(&mut self, bytes: u64, has_room: bool) -> VolumeShape {
        let block = pick(self.rng, &THIN_BLOCKS);
        let room = if has_room && self.rng.chance(0.6) { 4 * bytes } else { bytes + bytes / 2 };
        let data = self.safe(LABEL_AREA_BYTES + room);
        let metadata = match self.rng.chance(0.6) {
            true => self.mirror(LABEL_AREA_BYTES + METADATA_BYTES_LEAST),
            false => self.disk(LABEL_AREA_BYTES + METADATA_BYTES_LEAST),
        };
        VolumeShape::thin(block, data, metadata, bytes)
    }
}

/// Of each mirror one leg, whose disks fail now and then: what it cannot do another one does.
fn failing_disks(shape: &VolumeShape, rng: &mut Rng) -> Vec<usize> {
    let mut failing = Vec::new();
    shape.walk(&mut |shape| {
        if shape.top().is_some_and(|top| top.is_mirror()) {
            let leg = rng.below(shape.parts().len() as u64) as usize;
            failing.extend(shape.parts()[leg].disks());
        }
    });
    failing
}

/// Some of what can fail does, now and then.
fn sickly(drawn: MediumConfig, rng: &mut Rng) -> MediumConfig {
    let mut rate = |rates: &[f64]| if rng.chance(0.4) { pick(rng, rates) } else { 0.0 };
    MediumConfig {
        read_failure: rate(&[0.001, 0.02, 0.2]),
        write_failure: rate(&[0.001, 0.02]),
        flush_failure: rate(&[0.02, 0.2]),
        no_space: rate(&[0.01]),
        ..drawn
    }
}

/// So many volumes are read, and most of these written, by way of memory: as a whole, or the data of a pool.
pub(super) fn kept(shape: VolumeShape, chance: f64, rng: &mut Rng) -> VolumeShape {
    if !rng.chance(chance) {
        return shape;
    }
    let mut told = vec![("size", 1 << 20)];
    if rng.chance(0.7) {
        told.push(("write_back", 1 << 20));
    }
    match shape {
        VolumeShape::Over(mut over) if over.module.has_volumes() => {
            let data = over.parts.remove(0);
            over.parts.insert(0, VolumeShape::over("cache", &told, vec![data]));
            VolumeShape::Over(over)
        }
        shape => VolumeShape::over("cache", &told, vec![shape]),
    }
}

/// Of so many volumes one disk is a stretch of a larger one, and of some of these only so much may be asked in a second: as a whole, or of the data of a
/// pool.
pub(super) fn dressed(
    shape: VolumeShape,
    sizes: &mut [u64],
    chance: f64,
    rng: &mut Rng,
) -> VolumeShape {
    if sizes.is_empty() || !rng.chance(chance) {
        return shape;
    }
    let disk = rng.below(sizes.len() as u64) as usize;
    let (offset, size) = (pick(rng, &[4 << 10, 64 << 10, 1 << 20]), sizes[disk]);
    sizes[disk] += offset + pick(rng, &[0, 8 << 10]);
    let shape = shape.replaced(disk, &|part| {
        VolumeShape::over("slice", &[("offset", offset), ("size", size)], vec![part])
    });
    if rng.chance(0.5) {
        return shape;
    }
    let mut told = vec![("iops", pick(rng, &[1_000, 20_000]))];
    if rng.chance(0.5) {
        told.push(("bandwidth", pick(rng, &[16 << 20, 128 << 20])));
    }
    match shape {
        VolumeShape::Over(mut over) if over.module.has_volumes() => {
            let data = over.parts.remove(0);
            over.parts.insert(0, VolumeShape::over("qos", &told, vec![data]));
            VolumeShape::Over(over)
        }
        shape => VolumeShape::over("qos", &told, vec![shape]),
    }
}

/// A volume of a pool, on disks of a server.
fn of_pool(bytes: u64, number: usize, rng: &mut Rng) -> PoolStore {
    let block = pick(rng, &THIN_BLOCKS);
    // Of the smallest blocks there may not be enough for what is written behind snapshots; whoever opens the volume finds room for its labels all the same.
    let times = if block == THIN_BLOCKS[0] { 2 } else { 8 };
    let room = LABEL_AREA_BYTES + times * bytes;
    let sizes = [room, LABEL_AREA_BYTES + METADATA_BYTES_LEAST, RECORD_BYTES];
    let [data, metadata, record] = sizes.map(|bytes| {
        let bytes = bytes.next_multiple_of(4096);
        let mut config = swarm::medium(bytes, rng).without_failures();
        config.latency_ns = config.latency_ns.min((20_000, 200_000));
        config.slow = 0.0;
        MediumHandle::on(Device::new(), rng.bits(), [number as u8 + 1; 16], config)
    });
    let shape = VolumeShape::thin(block, VolumeShape::Disk(0), VolumeShape::Disk(1), bytes);
    PoolStore::make(shape, [data, metadata], record, rng.bits())
}

/// A stripe over volumes of pools of several servers, of which snapshots are taken as one.
fn cut_as_one(
    bytes: u64,
    world: &mut World,
    servers: usize,
    rng: &mut Rng,
) -> (VolumeShape, Vec<ComposedDisk>) {
    let (count, chunk) = (pick(rng, &[2, 2, 3]), pick(rng, &CHUNKS));
    let each =
        (LABEL_AREA_BYTES + bytes.div_ceil(count).next_multiple_of(chunk)).next_multiple_of(4096);
    let first = rng.below(servers as u64) as usize;
    let mut disks = Vec::new();
    for number in 0..count as usize {
        let (pool, server) = (of_pool(each, number, rng), (first + number) % servers);
        let block_bytes = pool.geometry.block_bytes;
        let store = Store::Pool(Box::new(pool.clone()));
        let export = world.add_export(server, pool.geometry.bytes, block_bytes, store);
        world.exports[export].is_leaf = true;
        let (node, name) =
            (world.servers[server].config.node.clone(), world.exports[export].name.clone());
        disks.push(ComposedDisk {
            medium: pool.media[0].clone(),
            block_bytes,
            export: Some(DiskExport { number: export, node, name }),
            pool: Some(pool),
        });
    }
    let parts = (0..disks.len()).map(VolumeShape::Disk).collect();
    (VolumeShape::over("stripe", &[("chunk", chunk)], parts).cut_as_one(), disks)
}

/// Of so many worlds in which that may be the legs of a mirror are changed while it is in use.
const CHANGED: f64 = 0.25;

/// And of so many of these, if it is all of the volume, it grows.
const GROWING: f64 = 0.5;

/// In so many worlds besides, the volume is nothing but a mirror that grows, of disks elsewhere.
const ONLY_GROWING: f64 = 0.08;

/// The mirror whose legs are changed, if there is one, with disks that are to be legs of it.
fn changed(
    (shape, disks): (&VolumeShape, &mut Vec<ComposedDisk>),
    world: &mut World,
    growing: f64,
    rng: &mut Rng,
) -> Option<LegChanges> {
    let may_go = |disk: usize| disks[disk].export.is_some() && disks[disk].pool.is_none();
    let mut changes = LegChanges::of(shape, may_go)?;
    let sizes = changes.disks().map(|(disk, _)| disks[disk].medium.sizes().0);
    let mut bytes = sizes.max().expect("it has legs");
    if shape.top().is_some_and(|top| top.is_mirror()) && rng.chance(growing) {
        bytes = changes.let_grow(bytes);
    }
    for _ in 0..pick(rng, &[1, 2, 2]) {
        let number = disks.len();
        let drawn = swarm::medium(bytes, rng).without_failures();
        let config = MediumConfig {
            latency_ns: drawn.latency_ns.min((20_000, 200_000)),
            slow: 0.0,
            ..drawn
        };
        let identity = [number as u8 + 1; 16];
        let medium = MediumHandle::on(Device::new(), rng.bits(), identity, config);
        let server = rng.below(world.servers.len() as u64) as usize;
        let export = world.add_export(server, bytes, 512, Store::File(medium.clone()));
        world.exports[export].is_leaf = true;
        let node = world.servers[server].config.node.clone();
        let export = DiskExport { number: export, node, name: world.exports[export].name.clone() };
        disks.push(ComposedDisk { medium, block_bytes: 512, export: Some(export), pool: None });
        changes.add_spare(number);
    }
    Some(changes)
}

/// A world, what goes wrong in it, and how long.
pub(super) fn build(seed: u64, prints: bool) -> (World, ChaosPlan) {
    let mut rng = Rng::new(seed ^ 0x766f_6c75_6d65_7321);
    let rng = &mut rng;
    let Ground { mut world, machines, faults, .. } = swarm::ground(rng, prints);
    let duration_ns = rng.between(2 * SECOND, 12 * SECOND);
    let has_own = rng.chance(0.3);
    let hosts = if has_own { 1 } else { pick(rng, &[1, 1, 2]) };
    let servers = pick(rng, &[1, 2, 2, 2, 3, 3, 4]) as usize;
    for server in 0..servers {
        machines.add_server(&mut world, format!("node{server}"), rng);
    }
    let bytes = pick(rng, &[64 << 10, 256 << 10, (1 << 20) + (16 << 10), 3 << 20]);
    let has_cuts = rng.chance(0.7);
    let mut shaper = Shaper { rng, sizes: Vec::new() };
    let shape = match shaper.rng.below(8) {
        0..3 => shaper.thin(bytes, has_cuts),
        3 => shaper.crypt(bytes),
        4 => shaper.linear(bytes),
        5 => shaper.stripe(bytes, &mut |shaper, bytes| shaper.mirror(bytes)),
        _ => shaper.mirror(bytes),
    };
    let sizes = shaper.sizes;
    // Drawn apart, so that all else of a world is as it was.
    let shape = kept(shape, 0.2, &mut Rng::new(seed ^ 0x6361_6368_6573_2121));
    let mut sizes = sizes;
    let shape = dressed(shape, &mut sizes, 0.2, &mut Rng::new(seed ^ 0x6472_6573_7365_6421));
    let of_growth = &mut Rng::new(seed ^ 0x6772_6f77_696e_6721);
    let only_grows = of_growth.chance(ONLY_GROWING);
    let (shape, sizes) = match only_grows {
        true => only_mirror(bytes, of_growth),
        false => (shape, sizes),
    };
    let of_cuts = &mut Rng::new(seed ^ 0x736e_6170_7368_6f74);
    let is_cut = of_cuts.chance(0.12) && !only_grows;
    let (shape, sizes, pools) = match is_cut {
        true => {
            let (shape, pools) = cut_as_one(bytes, &mut world, servers, of_cuts);
            (shape, Vec::new(), pools)
        }
        false => (shape, sizes, Vec::new()),
    };
    let is_thin = shape.top().is_some_and(|top| top.has_volumes());
    let slow = rng.chance(0.3);
    let first_server = rng.below(servers as u64) as usize;
    let failing = if rng.chance(0.4) { failing_disks(&shape, rng) } else { Vec::new() };
    let (mut disks, mut failures) = (pools, Vec::new());
    for (number, bytes) in sizes.into_iter().enumerate() {
        let drawn = swarm::medium(bytes, rng);
        let mut config = drawn.without_failures();
        if !slow {
            config.latency_ns = config.latency_ns.min((20_000, 200_000));
            config.slow = 0.0;
        }
        let identity = [number as u8 + 1; 16];
        let medium = MediumHandle::on(Device::new(), rng.bits(), identity, config);
        let block_bytes = pick(rng, &[512, 512, 4096]);
        let is_own = has_own && rng.chance(0.5) && !only_grows;
        let export = (!is_own).then(|| {
            let server = (first_server + number) % servers;
            let export = world.add_export(server, bytes, block_bytes, Store::File(medium.clone()));
            world.exports[export].is_leaf = true;
            world.exports[export].may_fail = failing.contains(&number);
            let e = &world.exports[export];
            let (node, name) = (world.servers[server].config.node.clone(), e.name.clone());
            DiskExport { number: export, node, name }
        });
        if failing.contains(&number) {
            let MediumConfig { latency_ns, slow, .. } = config;
            failures
                .push((medium.clone(), MediumConfig { latency_ns, slow, ..sickly(drawn, rng) }));
        }
        disks.push(ComposedDisk { medium, block_bytes, export, pool: None });
    }
    // Drawn apart, too.
    let of_changes = &mut Rng::new(seed ^ 0x6368_616e_6765_7321);
    let changes = match (of_changes.chance(CHANGED), only_grows) {
        (_, true) => changed((&shape, &mut disks), &mut world, 1.0, of_changes),
        (true, false) => changed((&shape, &mut disks), &mut world, GROWING, of_changes),
        (false, false) => None,
    };
    let media: Vec<_> = disks.iter().map(|disk| (disk.medium.clone(), disk.block_bytes)).collect();
    let dice = rng.bits();
    let mut at_rest = match is_cut {
        true => AtRest::over(
            |number, _| {
                let pool = disks[number].pool.as_ref().expect("all of them are");
                pool.open_at_rest().unwrap_or_else(|e| panic!("{e:?}")).0
            },
            dice,
        ),
        false => AtRest::new(&media, dice),
    };
    at_rest.make(&shape);
    let shape_is_noisy = shape.has("crypt") && !is_thin;
    if shape_is_noisy {
        at_rest.clear(&shape);
    }
    // A disk is never given two writes of one place; attachments see to that, and a host's own are for users who do.
    let is_all_remote = disks.iter().all(|disk| disk.export.is_some());
    let may_grow = changes.as_ref().is_some_and(LegChanges::may_grow);
    let wild_sectors = if is_all_remote && !may_grow { WILD_SECTORS } else { 0 };
    let model = Model::new("composed", at_rest.bytes(&shape));
    drop(at_rest);
    media.iter().for_each(|(medium, _)| medium.power_failure());
    let of_pools =
        disks.iter().filter_map(|disk| disk.pool.as_ref()).flat_map(PoolStore::own_media);
    of_pools.for_each(|medium| medium.power_failure());
    // Of those that may fail some never do.
    let fails = |config: &MediumConfig| {
        let rates =
            [config.read_failure, config.write_failure, config.flush_failure, config.no_space];
        config.sick_writes > 0
            || config.writeback_failure > 0.0
            || rates.iter().any(|rate| *rate > 0.0)
    };
    let is_failing = |number: &usize| {
        let medium = &disks[*number].medium;
        failures.iter().any(|(failing, config)| failing.is_same(medium) && fails(config))
    };
    let failing = (0..disks.len()).filter(is_failing).collect();
    // Now that it is made.
    for (medium, failing) in &failures {
        medium.configure(|config| *config = *failing);
    }
    let mut cuts = Cuts::default();
    cuts.may_fail = !failures.is_empty();
    let volume = ComposedVolume {
        shape,
        disks,
        model,
        cuts,
        whole_cuts: WholeCuts::default(),
        may_fill: is_thin && has_cuts || is_cut,
        may_fail: !failures.is_empty(),
        failing,
        crashes: 0,
        scrubbed: Scrubbed::default(),
        changes,
        old_leg: None,
        known: None,
    };
    let mut composed = Composed { volume, hosts: Vec::new(), ended: Vec::new(), upheavals: 0 };
    for number in 0..hosts {
        let budget = rng.between(100, 1500);
        let drawn = swarm::workload(rng, budget, duration_ns);
        // What is discarded of an encrypted volume reads as noise.
        let discards = if shape_is_noisy { 0 } else { drawn.discards };
        let mut workload = Workload { hot: 0.7, discards, ..drawn };
        if rng.chance(0.3) {
            // In bursts, between which the bits of mirrors are cleared.
            (workload.pauses, workload.pause_ns_max) = (0.03, 3 * SECOND);
            workload.flushes = workload.flushes.min(1);
        }
        let user = VolumeUser::new(workload, wild_sectors, rng.bits());
        let mut config = InitiatorConfig::new(TargetName::Node(String::new()), "");
        config.insecure = true;
        config.losses_are_heard = true;
        swarm::initiator(&mut config, machines.counters_high, rng);
        config.wait = true;
        config.initiator = [number as u8 + 0x31; 16];
        config.name = format!("host{number}");
        let stations = world.stations(machines.links, machines.station);
        let mut host = VolumeHost::new(config.name.clone(), stations, config, user);
        host.faults = machines.wrapped;
        host.machine.burst = machines.burst;
        // Longer than the slowest wire takes for what is copied at a time, or the slowest disk for anything: who sets less loses the leg
        // whenever something is copied there.
        let quick = match at_a_time_ns(&world) {
            0..HURRY_NS if world.lag_ns <= 50_000 && !slow => 400,
            0..SLOW_NS => 2000,
            _ => 5000,
        };
        let drawn = pick(rng, &[quick, quick, 2000, 5000]).max(quick);
        host.settings.leg_timeout = Duration::from_millis(drawn);
        host.settings.label_timeout = host.settings.leg_timeout;
        host.patience_ns = pick(rng, &[300 * MS, SECOND, 6 * SECOND]);
        composed.hosts.push(host);
    }
    world.composed = Some(composed);
    // One leg of a mirror may be put back as it was long ago.
    let composed = world.composed.as_mut().expect("just put there");
    let mut legs = Vec::new();
    composed.volume.shape.walk(&mut |shape| {
        if shape.top().is_some_and(|top| top.is_mirror())
            && let Some(VolumeShape::Disk(disk)) = shape.parts().first()
        {
            legs.push(*disk);
        }
    });
    legs.retain(|leg| composed.volume.disks[*leg].export.is_some());
    // What such a leg says may be said of another one by now where they come and go.
    let is_changed = composed.volume.changes.is_some();
    if is_changed && !is_thin {
        for host in &mut composed.hosts {
            host.lingers_ns = pick(of_changes, &[0, 20 * MS, 300 * MS, 2 * SECOND]);
        }
    }
    composed.volume.old_leg = legs.first().filter(|_| !is_changed).map(|leg| (*leg, None));
    let plan = ChaosPlan::draw(duration_ns, faults, is_thin && has_cuts || is_cut, rng);
    (world, plan)
}
