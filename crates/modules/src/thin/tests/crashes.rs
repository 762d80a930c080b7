//! Crashes at every moment of short random workloads, with many subsets of what was not flushed lost or torn on both parts. What comes up
//! is what was promised, each sector by who wrote it; a check finds nothing. Planted faults are found by the same.

use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Io, IoFlags, Op};

use super::super::*;
use super::disk::{Clock, Content, Disk, NOBODYS, SECTOR};
use super::made::{BLOCK, METADATA};
use super::model::Known;
use super::random::{living, step};
use super::world::*;
use crate::meta::tree::{TreeCanary, TreeState};
use crate::meta::{LABEL_AREA_BYTES, LABEL_OFFSETS};

/// What a crash leaves of a write that is torn: sectors, as bits.
const TORN: [u8; 4] = [0x01, 0xfe, 0x0f, 0xaa];
/// Of so many writes each subset is lost.
const SUBSETS_OF: usize = 6;

/// Fates of the writes that may be lost, of data and of metadata.
pub(super) type Fates = [Vec<u8>; 2];

/// What a crash is taken to do: all subsets of a few writes; of many the ends, those of the last few, and some at random.
pub(super) fn fates(doubts: [usize; 2], random: &mut SplitMix64) -> Vec<Fates> {
    let [data, metadata] = doubts;
    let all = data + metadata;
    let of = |bits: &dyn Fn(usize) -> u8| -> Fates {
        [(0..data).map(bits).collect(), (data..all).map(bits).collect()]
    };
    let mut fates = Vec::new();
    if all <= SUBSETS_OF {
        for set in 0..1_u32 << all {
            fates.push(of(&|at| if set >> at & 1 == 1 { 0xff } else { 0 }));
        }
    } else {
        for side in [0_u8, 0xff] {
            fates.push(of(&|_| side));
            fates.push(of(&|at| if at < data { side } else { !side }));
            // All but the last ones of the metadata, where the label is.
            let last = all - metadata.min(2);
            fates.push(of(&|at| if at < last { side } else { !side }));
        }
        for _ in 0..4 {
            let bits = random.next();
            fates.push(of(&|at| if bits >> (at % 64) & 1 == 1 { 0xff } else { 0 }));
        }
    }
    // Each of a few is torn; of many some, and the last one, which often is the label.
    let some = random.below(all.max(1) as u64) as usize;
    for torn in (0..all).filter(|at| all <= SUBSETS_OF || *at == some || at + 1 == all) {
        let left = TORN[random.below(4) as usize];
        fates.push(of(&|at| if at == torn { left } else { 0xff }));
    }
    fates
}

pub(super) fn come_up(
    setup: &Setup,
    data: Content,
    metadata: Content,
    read_only: bool,
) -> Result<World, String> {
    let clock = Clock::default();
    let setup =
        Setup { is_prompt: true, read_only, cache_nodes: 4096, open_nodes_max: 2048, ..*setup };
    let [blocks, nodes] = setup.grown.unwrap_or([setup.blocks, METADATA]);
    let bytes = LABEL_AREA_BYTES + blocks * BLOCK;
    let data = Disk::new(bytes, data, NOBODYS, &clock, setup.seed);
    let metadata = Disk::new(LABEL_AREA_BYTES + nodes, metadata, 0, &clock, setup.seed + 7);
    World::try_over(setup, data, metadata, clock)
}

/// What all of a volume says, sector by sector.
fn says(world: &mut World, volume: u64) -> Result<Vec<u64>, String> {
    let mut handle = world.pool.open_volume(volume).map_err(|error| error.to_string())?;
    let mut says = Vec::new();
    let bytes = handle.geometry().bytes;
    handle.submit(Io::new(1, Op::Read, 0, bytes));
    let mut done = Vec::new();
    for _ in 0..1000 {
        handle.poll(&mut done);
        let Some(completion) = done.pop() else { continue };
        completion.result.map_err(|error| format!("volume {volume}: {error}"))?;
        for sector in completion.data.to_vec().chunks(SECTOR as usize) {
            let stamp = u64::from_le_bytes(sector[..8].try_into().unwrap());
            let is_whole = sector.chunks(8).all(|word| word == &sector[..8]);
            says.push(if is_whole { stamp } else { u64::MAX });
        }
        return Ok(says);
    }
    Err(format!("volume {volume}: a read does not end"))
}

/// The metadata with the newer one of two labels gone bad, and since when what was told to be durable may be gone by that; none if there are
/// no two.
fn rot(world: &World, time: u64, metadata: &Content) -> Option<(Content, u64)> {
    let zero = super::disk::sector_of(0);
    let first = LABEL_OFFSETS.map(|offset| offset / SECTOR);
    let labels = first.map(|first| {
        let sectors = (first..first + 8).map(|at| metadata.get(&at).unwrap_or(&zero));
        let bytes: Vec<u8> = sectors.flat_map(|sector| sector.iter().copied()).collect();
        Label::decode(bytes[..].try_into().expect("eight sectors")).ok()
    });
    let [Some(a), Some(b)] = labels else { return None };
    let newer = usize::from(a.generation < b.generation);
    // Between the two phases of an opening each part is known by its newest label only.
    if [&a, &b][newer].next_opening != [0; 16] {
        return None;
    }
    let [older, newest] = if newer == 1 { [a, b] } else { [b, a] }
        .map(|label| TreeState::decode(&label.state).expect("it is the pool's").0);
    let mut metadata = metadata.clone();
    let at = first[newer] + 1;
    let mut bytes = *metadata[&at];
    bytes[100] ^= 1;
    metadata.insert(at, std::rc::Rc::new(bytes));
    // By whatever the older one lacks.
    let mut later = world.commits.iter().filter(|(of, _)| *of > older.generation);
    let since = match newest.has_trees_of(&older) {
        true => time,
        false => later.next().map_or(time, |(_, at)| time.min(*at)),
    };
    Some((metadata, since))
}

/// Whether a volume has to be there at that time, and whether it may.
fn presence(known: &Known, time: u64, since: u64) -> (bool, bool) {
    let first = known.lives.values().map(|(when, _)| *when).min_by_key(|when| when.begun);
    let first = first.expect("it lives");
    let is_by = |at: Option<u64>| at.is_some_and(|at| at <= since);
    let may_be_gone = known.deleted.is_some_and(|when| when.begun <= time);
    let is_gone = known.deleted.is_some_and(|when| is_by(when.ended));
    (is_by(first.ended) && !may_be_gone, first.begun <= time && !is_gone)
}

/// What was found is what was promised; else what is wrong. What was told to be durable since then may be gone.
fn judge(
    world: &World,
    (time, since): (u64, u64),
    data: Content,
    metadata: Content,
) -> Result<(), String> {
    let mut found = come_up(&world.setup, data, metadata, true)?;
    let findings = found.check();
    if let Some(finding) = findings.first() {
        return Err(format!("checked: {finding}"));
    }
    let there = found.pool.report().volumes;
    for (&volume, known) in &world.model {
        let (must, may) = presence(known, time, since);
        let is_there = there.iter().any(|report| report.volume == volume);
        if must && !is_there || !may && is_there {
            return Err(format!("volume {volume} is there: {is_there}"));
        }
    }
    for report in there {
        let volume = report.volume;
        let Some(known) = world.model.get(&volume) else {
            return Err(format!("volume {volume} comes from nowhere"));
        };
        let Some((when, life)) = known.lives.get(&report.incarnation) else {
            return Err(format!("volume {volume} has an unknown life"));
        };
        let is_old = known.lives.values().any(|(later, _)| {
            later.begun > when.begun && later.ended.is_some_and(|ended| ended <= since)
        });
        if is_old || when.begun > time {
            return Err(format!("volume {volume} has a life of another time"));
        }
        for (sector, stamp) in says(&mut found, volume)?.into_iter().enumerate() {
            let may = life.left(sector, time, since);
            if !may.contains(&stamp) {
                return Err(format!(
                    "volume {volume}, sector {sector} says {stamp:x}, not {may:x?}"
                ));
            }
        }
    }
    Ok(())
}

/// Somebody comes after a crash, writes, and deletes: what is there stays, and everything comes back.
fn go_on(world: &World, data: Content, metadata: Content) -> Result<(), String> {
    let mut found = come_up(&world.setup, data, metadata, false)?;
    let volumes: Vec<u64> = found.pool.report().volumes.iter().map(|of| of.volume).collect();
    let mut before = Vec::new();
    for &volume in &volumes {
        before.push(says(&mut found, volume)?);
    }
    (found.names, found.incarnations) = (1 << 32, 1 << 32);
    let new = found.create(12 * BLOCK);
    found.open_volume(new);
    for first in (0..96).step_by(24) {
        found.ask(
            new,
            Op::Write,
            IoFlags { fua: first == 24, ..IoFlags::default() },
            first + 1,
            20,
        );
    }
    found.wait();
    for (&volume, before) in volumes.iter().zip(before) {
        if says(&mut found, volume)? != before {
            return Err(format!("volume {volume} has changed behind the crash"));
        }
    }
    found.open.clear();
    for volume in volumes.into_iter().chain([new]) {
        if found.run(PoolOp::Delete { volume }) != Some(PoolDone::Done) {
            return Err(format!("volume {volume} cannot be deleted: {:?}", found.op_errors));
        }
    }
    found.rest();
    let used = found.pool.report().data_used_bytes;
    match found.check().first() {
        Some(finding) => Err(format!("checked later: {finding}")),
        None if used > 0 => Err(format!("{used} bytes do not come back")),
        None => Ok(()),
    }
}

/// All crashes of a workload from then on: how many, or the first thing that is wrong.
pub(super) fn explore(world: &World, from: u64) -> Result<usize, String> {
    let (mut count, end) = (0, world.clock.get());
    let mut random = SplitMix64::new(world.setup.seed + 77);
    for time in from..=end {
        let doubts = [&world.data, &world.metadata].map(|disk| disk.doubts(time));
        for [data, metadata] in fates(doubts, &mut random) {
            count += 1;
            let told = |why| format!("seed {}, at {time}: {why}", world.setup.seed);
            let (data, metadata) =
                (world.data.after(time, &data), world.metadata.after(time, &metadata));
            judge(world, (time, time), data.clone(), metadata.clone()).map_err(told)?;
            if random.one_in(15) {
                go_on(world, data.clone(), metadata.clone()).map_err(told)?;
            }
            if random.one_in(2) {
                continue;
            }
            let told = |why| {
                format!("seed {}, at {time}, the newest label rotten: {why}", world.setup.seed)
            };
            if let Some((metadata, since)) = rot(world, time, &metadata) {
                judge(world, (time, since), data.clone(), metadata.clone()).map_err(told)?;
                if random.one_in(15) {
                    go_on(world, data, metadata).map_err(told)?;
                }
            }
        }
    }
    Ok(count)
}

fn small(seed: u64) -> Setup {
    Setup {
        seed: seed * 3 + seed % 2,
        blocks: 40 + seed % 3 * 20,
        is_prompt: seed.is_multiple_of(5),
        rows_max: (seed % 2 == 1).then_some(4),
        ..Setup::default()
    }
}

/// A workload on what there is, with a fault from then on.
fn play(seed: u64, steps: usize, plant: &dyn Fn(&World)) -> Result<usize, String> {
    let mut world = World::new(small(seed));
    world.create(12 * BLOCK);
    for _ in 0..80 {
        step(&mut world, 6, 5, true);
    }
    world.rest();
    let from = world.clock.get();
    plant(&world);
    for _ in 0..steps {
        step(&mut world, 6, 6, true);
    }
    world.wait();
    for volume in living(&world) {
        world.read_all(volume);
    }
    if let Some(wrong) = world.wrong {
        return Err(wrong);
    }
    explore(&world, from)
}

#[test]
fn a_crash_at_any_moment_leaves_what_was_promised() {
    let mut count = 0;
    for seed in 0..9 {
        count += play(seed, 120, &|_| {}).unwrap();
    }
    assert!(count > 10_000, "only {count} crashes");
    println!("{count} crashes");
}

/// Where I/Os fail first, and the pool has stopped or goes on.
#[test]
fn so_it_does_where_something_has_failed_before() {
    let (mut count, mut stopped) = (0, 0);
    for seed in 0..8 {
        let mut world = World::new(small(seed));
        world.create(12 * BLOCK);
        for _ in 0..60 {
            step(&mut world, 6, 5, true);
        }
        world.rest();
        let from = world.clock.get();
        let (disk, what) = match seed % 4 {
            0 => (&world.data, "flush"),
            1 => (&world.metadata, "flush"),
            2 => (&world.metadata, "write"),
            _ => (&world.data, "write"),
        };
        disk.fail(what, 6);
        for _ in 0..100 {
            step(&mut world, 6, 6, true);
        }
        world.wait();
        world.is_right();
        stopped += usize::from(world.pool.stopped().is_some());
        count += explore(&world, from).unwrap();
    }
    assert!(count > 5_000 && stopped > 2, "only {count} crashes, {stopped} stopped");
}

#[track_caller]
fn is_found(plant: &dyn Fn(&World), says: &[&str]) {
    let why = (0..60).find_map(|seed| play(seed, 120, plant).err()).expect("it was not found");
    assert!(says.iter().any(|says| why.contains(says)), "{why}");
    println!("found: {why}");
}

const SAYS: &[&str] = &["says", "reads"];

#[test]
fn a_mapping_that_is_committed_before_its_data_is_found() {
    is_found(&|world| world.tree_canary(TreeCanary::CommitsBeforeData), SAYS);
}

#[test]
fn a_mapping_while_its_data_is_being_written_is_found() {
    is_found(&|world| world.canary(PoolCanary::MapsBeforeData), SAYS);
}

#[test]
fn a_block_that_is_reused_too_soon_is_found() {
    is_found(&|world| world.tree_canary(TreeCanary::ReusesEarly), &["says", "reads", "checked"]);
}

/// What one falls back on if the newest label rots has no other volume's bytes, only where what a commit has freed is kept until the next one.
#[test]
fn a_block_that_is_reused_with_its_commit_is_found() {
    is_found(&|world| world.tree_canary(TreeCanary::ReusesAtLabel), &["rotten"]);
}

#[test]
fn fua_without_a_map_is_found() {
    is_found(&|world| world.canary(PoolCanary::FuaWithoutMap), SAYS);
}

#[test]
fn half_a_new_block_is_found() {
    is_found(&|world| world.canary(PoolCanary::HalfANewBlock), SAYS);
}

#[test]
fn a_shared_block_written_in_place_is_found() {
    is_found(&|world| world.canary(PoolCanary::SharedInPlace), SAYS);
}

#[test]
fn a_cut_beside_writes_is_found() {
    is_found(&|world| world.canary(PoolCanary::CutWithoutDrain), SAYS);
}

#[test]
fn a_discard_before_the_commit_is_found() {
    is_found(&|world| world.canary(PoolCanary::EarlyDiscard), SAYS);
}

#[test]
fn a_flush_without_a_commit_is_found() {
    is_found(&|world| world.canary(PoolCanary::FlushWithoutCommit), SAYS);
}
