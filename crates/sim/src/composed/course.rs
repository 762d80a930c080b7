//! The course of a run with a composed volume: build, let things go wrong, heal, and see whether every promise was kept.

use thinwire_link::rng::Rng;
use thinwire_modules::mirror::MIRROR_DATA_START;

use super::at_rest::AtRest;
use super::changes::{LegChanges, LegWish};
use super::chaos::VolumeChaos;
use super::scrubbing::Rot;
use super::{Composed, PoolStore, VolumeShape, draw};
use crate::model::Violation;
use crate::run::{Canary, RunReport};
use crate::server::Crash;
use crate::world::{SECOND, World};

/// All is well again this long after nothing goes wrong any more.
const HEALED_NS: u64 = 120 * SECOND;
/// What is open and lacks something is opened anew after so long.
const REOPENED_NS: u64 = 30 * SECOND;
/// Whoever was refused tries again after so long.
const RETRY_NS: u64 = SECOND / 2;

/// Runs a seed in a world with a composed volume. `prints` writes what happens to stderr.
///
/// # Errors
/// A promise was broken.
pub fn run_volumes(seed: u64, canary: Canary, prints: bool) -> Result<RunReport, Violation> {
    let (mut world, plan) = draw::build(seed, prints);
    for host in &mut composed(&mut world).hosts {
        match canary {
            Canary::Mirror(planted) => host.settings.mirror_canary = planted,
            Canary::Pool(planted) => host.settings.pool_canary = planted,
            Canary::WriteBack(planted) => host.settings.write_back_canary = planted,
            Canary::Cut(planted) => host.settings.cut_canary = planted,
            Canary::Initiator(planted) => host.config.canary = planted,
            _ => {}
        }
    }
    if prints {
        world.describe_settings();
        let volume = &composed(&mut world).volume;
        eprintln!("{:?}\n{plan:?}", volume.shape);
        for (number, disk) in volume.disks.iter().enumerate() {
            let export = disk.export.as_ref().map(|export| &export.node);
            eprintln!("disk {number}: {:?} of {export:?}", disk.medium);
        }
    }
    for server in 0..world.servers.len() {
        world.start_server(server);
    }
    for host in 0..composed(&mut world).hosts.len() {
        world.start_host(host, false);
    }
    let of_scrubs = Rng::new(seed ^ 0x7363_7275_6273_2121);
    let changes = composed(&mut world).volume.changes.as_ref();
    let of_changes = changes.map(|_| Rng::new(seed ^ 0x6c65_6773_2121));
    let rng = Rng::new(seed ^ 0x6368_616f_7321);
    let mut chaos = VolumeChaos::new(plan, rng, of_scrubs, of_changes);
    if canary == Canary::SumsRot {
        chaos.of_rot = Some(Rng::new(seed ^ 0x726f_7473_2121));
    }
    chaos.run(&mut world)?;
    world.trace.note(world.now, "world", "heals", 0);
    chaos.heal(&mut world);
    world.composed.iter_mut().for_each(|composed| {
        composed.ended.clear();
        composed.volume.cuts.to_take = 0;
        composed.volume.cuts.to_delete = 0;
        composed.volume.changes.iter_mut().for_each(|changes| changes.is_over = true);
        composed.hosts[0].user.add_budget(20);
        composed.hosts.iter_mut().for_each(|host| host.ambush = None);
        // However slow the wire is.
        composed.hosts[0].patience_ns = composed.hosts[0].patience_ns.max(6 * SECOND);
        composed.hosts[0].machine.dirty = true;
    });
    until_well(&mut world)?;
    read_all(&mut world)?;
    end(&mut world)?;
    look_at_rest(&mut world, seed)?;
    // What was saved is found by whoever comes next.
    for server in 0..world.servers.len() {
        world.start_server(server);
    }
    until_well(&mut world)?;
    read_all(&mut world)?;
    end(&mut world)?;
    scrub_what_rots(&mut world, seed)?;
    roll_back(&mut world, seed, canary)?;
    Ok(RunReport { coverage: world.figures(), trace_hash: world.trace_hash() })
}

fn composed(world: &mut World) -> &mut Composed {
    world.composed.as_mut().expect("it is about that")
}

/// Nobody wishes for other legs, or what was begun of that is over.
fn is_settled(composed: &Composed) -> bool {
    composed.volume.changes.as_ref().is_none_or(|changes| changes.wish().is_none())
}

/// A mirror is to grow, and a disk that once could not sync what it has grown by is not offered any larger before its server opens it anew.
fn waits_for_room(composed: &Composed) -> bool {
    let wish = composed.volume.changes.as_ref().and_then(|changes| changes.wish());
    composed.volume.may_fail && matches!(wish, Some((_, LegWish::Grow(_))))
}

/// The first host has the volume, all legs of all mirrors have all data, and nobody waits.
fn until_well(world: &mut World) -> Result<(), Violation> {
    let limit = world.now + HEALED_NS;
    let (mut retry_at, mut reopen_at) = (world.now, world.now + REOPENED_NS);
    while !composed(world).hosts[0].is_well() || !is_settled(composed(world)) {
        if world.now >= limit {
            return Err(world.not_within("recovery", HEALED_NS));
        }
        if world.now >= retry_at {
            retry_at = world.now + RETRY_NS;
            world.grow_legs();
            for server in 0..world.servers.len() {
                world.start_server(server);
            }
            composed(world).ended.clear();
            // Of hosts that were killed nobody else comes back.
            world.start_host(0, true);
        }
        if world.now >= reopen_at {
            // Legs that are made of several, or are its own disks, come back with the next opening.
            reopen_at = world.now + REOPENED_NS;
            composed(world).hosts[0].reopen();
            if waits_for_room(composed(world)) {
                for server in 0..world.servers.len() {
                    if world.exports.iter().any(|of| of.server == server && of.may_fail) {
                        world.shut_down_server(server, SECOND);
                    }
                }
            }
        }
        world.step(limit.min(retry_at).min(reopen_at).max(world.now + 1))?;
    }
    Ok(())
}

fn read_all(world: &mut World) -> Result<(), Violation> {
    composed(world).hosts[0].user.read_all();
    composed(world).hosts[0].machine.dirty = true;
    until_well(world)
}

/// The host lets go of it in order, and all servers end.
fn end(world: &mut World) -> Result<(), Violation> {
    composed(world).hosts[0].close();
    let gone = |w: &World| {
        w.composed.iter().all(|composed| composed.hosts.iter().all(|h| h.process.is_none()))
    };
    world.run_until("detaching", HEALED_NS, gone)?;
    for server in 0..world.servers.len() {
        world.shut_down_server(server, SECOND);
    }
    let has_ended = |w: &World| !w.servers.iter().any(|server| server.runs());
    world.run_until("shutdown", 12 * SECOND, has_ended)?;
    for server in 0..world.servers.len() {
        world.crash_server(server, Crash::Power);
    }
    for export in &world.exports {
        export.own_media().for_each(|medium| medium.power_failure());
    }
    composed(world).volume.own_media().for_each(|medium| medium.power_failure());
    Ok(())
}

/// A block of a leg rots while nobody has the volume, and whoever has it next looks for that.
fn scrub_what_rots(world: &mut World, seed: u64) -> Result<(), Violation> {
    let rng = &mut Rng::new(seed ^ 0x726f_7474_656e_2121);
    if rng.chance(0.5) {
        return Ok(());
    }
    let Some(rot) = Rot::plant(&composed(world).volume, rng) else { return Ok(()) };
    world.trace.note(world.now, "somebody", "lets a block rot", 0);
    for server in 0..world.servers.len() {
        world.start_server(server);
    }
    until_well(world)?;
    let begun = world.troubles_of_composed();
    composed(world).hosts[0].begin_scrub(false, begun);
    let is_over = |w: &World| {
        let host = w.composed.as_ref().map(|composed| &composed.hosts[0]);
        host.is_some_and(|host| host.is_serving() && !host.scrub.is_running)
    };
    world.run_until("a scrub", HEALED_NS, is_over)?;
    let reports = std::mem::take(&mut composed(world).hosts[0].scrub.reports);
    // A leg that was dropped meanwhile is copied to, or from, and nobody has promised anything of what rots in that.
    let is_read = reports.iter().all(|report| report.unread_legs == 0);
    if is_read {
        rot.judge(&reports)?;
    }
    end(world)?;
    if is_read {
        rot.check()?;
        world.coverage.rot_found += 1;
    }
    Ok(())
}

/// The volume of a pool becomes a snapshot of it, when nobody comes any more who remembers something else.
fn roll_back(world: &mut World, seed: u64, canary: Canary) -> Result<(), Violation> {
    let volume = &mut composed(world).volume;
    let is_thin = volume.shape.top().is_some_and(|top| top.has_volumes());
    let Some(to) = volume.cuts.last_sure().filter(|_| is_thin).map(str::to_owned) else {
        return Ok(());
    };
    let media: Vec<_> =
        volume.disks.iter().map(|disk| (disk.medium.clone(), disk.block_bytes)).collect();
    let mut at_rest = AtRest::new(&media, seed ^ 0x6261_636b);
    if let Canary::Pool(planted) = canary {
        at_rest.settings.pool_canary = planted;
    }
    at_rest.check_rollback(&volume.shape, &to)?;
    world.coverage.rolled_back += 1;
    Ok(())
}

/// Legs of mirrors hold the same, pools are whole, and snapshots hold what they have to.
fn look_at_rest(world: &mut World, seed: u64) -> Result<(), Violation> {
    let volume = &mut world.composed.as_mut().expect("it is about that").volume;
    let media: Vec<_> =
        volume.disks.iter().map(|disk| (disk.medium.clone(), disk.block_bytes)).collect();
    let mut broken = None;
    // Behind what a mirror has grown to its legs have what was there.
    let may_grow = volume.changes.as_ref().is_some_and(LegChanges::may_grow);
    let most = volume.known.filter(|_| may_grow).map_or(usize::MAX, |(_, bytes)| bytes as usize);
    volume.shape.walk(&mut |shape| {
        if shape.top().is_some_and(|top| top.is_mirror()) {
            broken = broken.take().or_else(|| difference(shape, &media, most));
        }
    });
    if let Some(text) = broken {
        return Err(Violation(text));
    }
    if volume.shape.is_cut() {
        for pool in volume.disks.iter().filter_map(|disk| disk.pool.as_ref()) {
            pool.check(seed)?;
        }
        world.coverage.whole_cuts_checked += volume.check_whole_cuts(seed)?;
        let own = volume.disks.iter().filter_map(|disk| disk.pool.as_ref());
        own.flat_map(PoolStore::own_media).for_each(|medium| medium.power_failure());
        return Ok(());
    }
    let mut at_rest = AtRest::new(&media, seed);
    if volume.shape.top().is_some_and(|top| top.has_volumes()) {
        at_rest.check_pool(&volume.shape)?;
        let checked = at_rest.check_cuts(&volume.shape, &mut volume.cuts, &volume.model)?;
        world.coverage.cuts_checked += checked;
    }
    // None of that is to be found by whoever comes next.
    media.iter().for_each(|(medium, _)| medium.power_failure());
    Ok(())
}

/// Where the legs of a mirror that are disks differ in so many bytes of its data, if they do.
fn difference(
    shape: &VolumeShape,
    media: &[(crate::medium::MediumHandle, u32)],
    most: usize,
) -> Option<String> {
    let disks: Vec<usize> = shape
        .parts()
        .iter()
        .filter_map(|part| match part {
            VolumeShape::Disk(disk) => Some(*disk),
            VolumeShape::Over(_) => None,
        })
        .collect();
    let images: Vec<_> = disks.iter().map(|&disk| media[disk].0.durable()).collect();
    let (first, others) = images.split_first()?;
    for (image, disk) in others.iter().zip(&disks[1..]) {
        let data = |image: &[u8]| image[MIRROR_DATA_START as usize..].to_vec();
        let (one, other) = (data(first), data(image));
        let at = one.iter().zip(&other).take(most).position(|(a, b)| a != b);
        if let Some(at) = at {
            return Some(format!(
                "disks {} and {disk} are legs of a mirror, and differ at byte {at} of its data",
                disks[0]
            ));
        }
    }
    None
}
