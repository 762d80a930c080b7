//! Crashes at every moment of short workloads: what is found is the last durable commit or a later one, whole, and a check finds
//! nothing (rules 9 and 10). Planted faults are found by the same.

use super::disk::{BLOCK, Block, Clock, Content, Random, TestDisk};
use super::model::step;
use super::world::{Setup, World, part_bytes};
use super::*;
use crate::meta::{LABEL_OFFSETS, Label};

/// What a crash leaves of a write that is torn: sectors, as bits.
const TORN: [u8; 5] = [0x01, 0xfe, 0x0f, 0x80, 0xaa];
/// Of so many writes each subset is lost.
const SUBSETS_OF: usize = 6;

fn small(seed: u64, canary: TreeCanary) -> Setup {
    Setup {
        seed,
        nodes: 1024,
        blocks: 192,
        rows_max: Some(4 + seed as usize % 3),
        canary,
        is_prompt: seed.is_multiple_of(2),
        ..Setup::default()
    }
}

/// A workload on what is there: changes, with commits that go on beside them.
fn work(world: &mut World, steps: usize) {
    for at in 0..steps {
        step(world, 24);
        if at % 5 == 4 {
            let _ = world.begin_commit();
        }
    }
    let _ = world.commit_now();
}

/// What was read of disks where all was well: where the same is read, all is well again.
#[derive(Default)]
struct Known(Vec<(u64, [Reads; 2])>, Vec<(Block, Block)>);

type Reads = Vec<(u64, Option<Block>)>;

impl Known {
    /// The commit that is there, if it is known.
    fn find(&self, part: &Content, data: &Content) -> Option<u64> {
        let is_same = |reads: &Reads, content: &Content| {
            reads.iter().all(|(offset, block)| match (block, content.get(offset)) {
                (Some(block), Some(now)) => std::rc::Rc::ptr_eq(block, now),
                (None, None) => true,
                _ => false,
            })
        };
        let mut known = self.0.iter().rev();
        let found = known.find(|(_, [a, b])| is_same(a, part) && is_same(b, data));
        found.map(|(generation, _)| *generation)
    }
}

/// The part with the newer one of two labels gone bad; none if there are no two.
fn rot(known: &mut Known, part: &Content) -> Option<Content> {
    let labels = LABEL_OFFSETS.map(|offset| {
        let label = part.get(&offset).map(|block| Label::decode(block));
        label.and_then(Result::ok).map(|label| label.generation)
    });
    let offset = LABEL_OFFSETS[usize::from(labels[0]? < labels[1]?)];
    let label = &part[&offset];
    let rotten = match known.1.iter().find(|(of, _)| std::rc::Rc::ptr_eq(of, label)) {
        Some((_, rotten)) => rotten.clone(),
        None => {
            let mut bytes = **label;
            bytes[300] ^= 1;
            known.1.push((label.clone(), std::rc::Rc::new(bytes)));
            known.1.last().expect("it was put there").1.clone()
        }
    };
    let mut part = part.clone();
    part.insert(offset, rotten);
    Some(part)
}

/// What was found is what was promised; else what is wrong. Nothing if the same was found before. With the newest label gone bad that is the commit
/// before the last one.
fn judge(
    known: &mut Known,
    world: &World,
    (time, is_rotten): (u64, bool),
    part: Content,
    data: Content,
) -> Result<Option<World>, String> {
    let told = world.history.durable.iter().filter(|(_, at)| *at <= time);
    let durable = told.map(|(generation, _)| *generation).max().unwrap_or(0);
    let durable = durable.saturating_sub(u64::from(is_rotten));
    let lost = |generation| Err(format!("found commit {generation}, and {durable} was durable"));
    match known.find(&part, &data) {
        Some(generation) if generation >= durable => return Ok(None),
        Some(generation) => return lost(generation),
        None => {}
    }
    let clock = Clock::default();
    let setup = Setup { canary: TreeCanary::None, is_prompt: true, ..world.setup.clone() };
    let mut part = TestDisk::new(part_bytes(setup.nodes), part, &clock, 1);
    let data = TestDisk::new(setup.blocks * BLOCK as u64, data, &clock, 1);
    let trees = super::world::open(&mut part, &setup).map_err(|fault| fault.to_string())?;
    let generation = trees.committed().generation;
    let begun = world.history.begun.iter().rev();
    let model = begun
        .filter(|(_, at, _)| *at <= time)
        .find_map(|(begun, _, model)| (*begun == generation).then(|| model.clone()));
    let Some(model) = model.filter(|_| generation >= durable) else { return lost(generation) };
    let mut found = World::open(setup, part, data, model);
    let says = found.dump().map_err(|stop| format!("damaged: {stop}"))?;
    if says != found.model {
        return Err(format!("commit {generation} says {says:?}, not {:?}", found.model));
    }
    if let Some(finding) = found.check(300).first() {
        return Err(format!("checked: {finding}"));
    }
    if known.0.len() == 16 {
        known.0.remove(0);
    }
    let reads = [&mut found.part, &mut found.data].map(|disk| std::mem::take(&mut disk.reads));
    known.0.push((generation, reads));
    Ok(Some(found))
}

/// Calls `check` with everything that a crash at that time is taken to leave of a part: all subsets of the last few writes, with those before all there
/// or all lost; and each write torn, with the others there.
fn each_crash(
    disk: &TestDisk,
    time: u64,
    check: &mut dyn FnMut(Content) -> Result<(), String>,
) -> Result<(), String> {
    let crash = disk.crash_at(time);
    let doubts = crash.doubts();
    let few = doubts.min(SUBSETS_OF);
    for set in 0..1_u32 << few {
        for before in [0, 0xff] {
            if doubts == few && before == 0 {
                continue;
            }
            let from = doubts - few;
            let sectors = |at: usize| match at.checked_sub(from) {
                None => before,
                Some(at) if set >> at & 1 == 1 => 0xff,
                Some(_) => 0,
            };
            check(crash.with(sectors))?;
        }
    }
    for torn in 0..doubts {
        for left in TORN {
            check(crash.with(|at| if at == torn { left } else { 0xff }))?;
        }
    }
    Ok(())
}

/// All crashes of a workload: how many, or the first thing that is wrong. After some of them somebody goes on.
fn explore(world: &World, from: u64) -> Result<usize, String> {
    let (mut count, end) = (0, world.clock.get());
    let (mut random, mut known) = (Random(world.setup.seed), Known::default());
    for time in from..=end {
        let data = world.data.crash_at(time);
        let sides = [0xff, 0].map(|left| data.with(|_| left));
        // Whatever comes of writes to data matters only together with the roots that are found.
        let sides = if data.doubts() == 0 { &sides[..1] } else { &sides };
        each_crash(&world.part, time, &mut |part| {
            for side in sides {
                count += 1;
                let rotten = rot(&mut known, &part).map(|part| (true, part));
                for (is_rotten, part) in [(false, part.clone())].into_iter().chain(rotten) {
                    let what = if is_rotten { ", the newest label rotten" } else { "" };
                    let told = |why| format!("seed {}, at {time}{what}: {why}", world.setup.seed);
                    let at = (time, is_rotten);
                    let found = judge(&mut known, world, at, part, side.clone());
                    if let Some(found) = found.map_err(told)?
                        && random.below(20) == 0
                    {
                        go_on(found).map_err(told)?;
                    }
                }
            }
            Ok(())
        })?;
    }
    Ok(count)
}

/// Somebody comes after a crash.
fn go_on(mut world: World) -> Result<(), String> {
    work(&mut world, 12);
    let end = world.clock.get();
    let [part, data] = [&world.part, &world.data].map(|disk| disk.crash_at(end).with(|_| 0));
    let mut known = Known::default();
    if let Some(part) = rot(&mut known, &part) {
        judge(&mut known, &world, (end, true), part, data.clone())?;
    }
    judge(&mut known, &world, (end, false), part, data).map(|_| ())
}

fn all(seeds: std::ops::Range<u64>, canary: TreeCanary) -> Result<usize, String> {
    let mut count = 0;
    for seed in seeds {
        // What is there before is not looked at: it was made without the fault.
        let mut world = World::new(small(seed, TreeCanary::None));
        work(&mut world, 40);
        let from = world.clock.get();
        world.trees.canary = canary;
        work(&mut world, 15);
        count += explore(&world, from)?;
    }
    Ok(count)
}

#[test]
fn a_crash_at_any_moment_leaves_a_commit() {
    let count = all(0..8, TreeCanary::None).unwrap();
    assert!(count > 100_000, "only {count} crashes");
}

#[track_caller]
fn is_found(canary: TreeCanary, says: &[&str]) {
    let why = all(0..20, canary).expect_err("it was not found");
    assert!(says.iter().any(|says| why.contains(says)), "{why}");
}

#[test]
fn a_commit_before_its_data_is_found() {
    is_found(TreeCanary::CommitsBeforeData, &["says"]);
}

#[test]
fn a_label_before_its_nodes_is_found() {
    is_found(TreeCanary::LabelsBeforeNodes, &["damaged"]);
}

#[test]
fn what_is_reused_in_one_transaction_is_found() {
    is_found(TreeCanary::ReusesAtOnce, &["damaged", "says"]);
}

#[test]
fn what_is_reused_before_its_commit_is_found() {
    is_found(TreeCanary::ReusesEarly, &["damaged", "says", "checked"]);
}

/// What one falls back on if the newest label rots is whole, only where what a commit has freed is kept until the next one.
#[test]
fn what_is_reused_with_its_commit_is_found() {
    let why = all(0..20, TreeCanary::ReusesAtLabel).expect_err("it was not found");
    assert!(why.contains("rotten"), "{why}");
}

#[test]
fn a_shared_node_written_in_place_is_found() {
    is_found(TreeCanary::SharedInPlace, &["damaged", "says"]);
}

#[test]
fn a_copy_that_counts_nothing_is_found() {
    is_found(TreeCanary::ForgetsAtCopy, &["checked", "says", "damaged"]);
}
