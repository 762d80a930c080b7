//! What comes up after a crash, of each of what it may leave: it is as promised, also if a leg comes back later than the others.

use thinwire_volume::testing::SplitMix64;

use super::super::*;
use super::disk::{Content, Disk, Fate, Snapshot};
use super::world::*;

/// What is written after a crash: no workload has it.
const LATE: u8 = 250;

/// How what is not opened is told of.
const REFUSED: &str = "then refused";

/// Blocks that workloads write.
const BLOCKS: [u64; 5] = [0, SMALL, SMALL + 1, SMALL + 2, SMALL + 3];

/// Each subset of the last six writes of each leg kept, as far as they are not too many, and some of each torn.
pub fn fates(disks: &[Snapshot], rng: &mut SplitMix64, most: u64) -> Vec<Vec<Vec<Fate>>> {
    let count: usize = disks.iter().map(Snapshot::doubts).sum();
    let subsets = 1_u64 << count.min(12);
    let mut all = Vec::new();
    let mut choose = |choice: &mut dyn FnMut(usize) -> Fate| {
        let mut nth = 0;
        let mut of = |disk: &Snapshot| {
            let fates = (0..disk.doubts()).map(|_| {
                nth += 1;
                choice(nth - 1)
            });
            fates.collect::<Vec<_>>()
        };
        all.push(disks.iter().map(&mut of).collect());
    };
    if subsets <= most && count <= 12 {
        for subset in 0..subsets {
            let kept = |nth: usize| if subset >> nth & 1 == 1 { Fate::Kept } else { Fate::Lost };
            choose(&mut |nth| kept(nth));
        }
    } else {
        choose(&mut |_| Fate::Lost);
        choose(&mut |_| Fate::Kept);
        for _ in 2..most {
            let subset = rng.next();
            choose(&mut |nth| if subset >> (nth % 64) & 1 == 1 { Fate::Kept } else { Fate::Lost });
        }
    }
    for torn in 0..count {
        for half in [Fate::First, Fate::Second] {
            let subset = rng.next();
            let rest = |nth: usize| {
                if subset >> (nth % 64) & 1 == 1 { Fate::Kept } else { Fate::Lost }
            };
            choose(&mut |nth| if nth == torn { half } else { rest(nth) });
        }
    }
    all
}

/// The sectors that a user reads of all blocks.
pub fn look(world: &mut World) -> Result<Vec<Vec<u8>>, String> {
    world.reads.clear();
    for block in BLOCKS {
        world.read(block);
        world.wait();
    }
    if world.errors > 0 {
        return Err("a read fails".into());
    }
    let mut all = Vec::new();
    for (block, bytes) in world.reads.drain(..) {
        let mut sectors = Vec::new();
        for sector in bytes.chunks(512) {
            if sector.iter().any(|byte| *byte != sector[0]) {
                return Err(format!("block {block} holds a mixture"));
            }
            sectors.push(sector[0]);
        }
        all.push(sectors);
    }
    Ok(all)
}

pub fn check_promise(moment: &Moment, seen: &[Vec<u8>]) -> Result<(), String> {
    for (block, sectors) in BLOCKS.iter().zip(seen) {
        for stamp in sectors {
            if !moment.allows(*block, *stamp) {
                let of: Vec<_> =
                    moment.written.iter().filter(|write| write.block == *block).collect();
                return Err(format!("block {block} reads as {stamp}, of {of:?}"));
            }
        }
    }
    Ok(())
}

fn reopen(
    contents: &[Option<Content>],
    canary: MirrorCanary,
    degraded: bool,
) -> Result<World, MirrorError> {
    let disks: Vec<_> = contents
        .iter()
        .map(|content| Disk::new(DISK_BYTES, content.clone().unwrap_or_default()))
        .collect();
    let legs = contents.iter().zip(&disks);
    let legs = legs.map(|(content, disk)| content.as_ref().and_then(|_| leg(disk))).collect();
    let mut mirror = Mirror::open(legs, config(degraded))?;
    mirror.canary = canary;
    let mut world = World::new(mirror, disks, Order::Turns, 7);
    world.is_recording = false;
    Ok(world)
}

/// What is written while one leg is away is there when that one is back.
fn write_and_bring_back(
    world: &mut World,
    missing: usize,
    back: Content,
    canary: MirrorCanary,
    blocks: &[u64],
) -> Result<(), String> {
    for block in blocks {
        world.write(*block, 1, LATE, false);
    }
    world.wait();
    world.flush();
    world.wait();
    if world.errors > 0 {
        return Err("a write fails".into());
    }
    let expected = look(world)?;
    let mut contents: Vec<_> = world.disks.iter().map(|disk| Some(disk.content())).collect();
    contents[missing] = Some(back);
    let mut world = reopen(&contents, canary, false).map_err(|e| format!("{REFUSED}: {e}"))?;
    if look(&mut world)? != expected {
        return Err("what was written then is gone with all legs".into());
    }
    world.heal()?;
    match differ(&world.disks) {
        Some(block) => Err(format!("then legs differ in block {block}")),
        None => Ok(()),
    }
}

/// What comes up after a crash.
pub fn check(
    moment: &Moment,
    contents: Vec<Content>,
    canary: MirrorCanary,
    again: bool,
) -> Result<usize, String> {
    // One leg alone is refused, or is right.
    let mut count = 0;
    for missing in 0..contents.len() {
        let mut some: Vec<_> = contents.iter().cloned().map(Some).collect();
        some[missing] = None;
        let back = contents[missing].clone();
        if let Ok(mut world) = reopen(&some, canary, false) {
            let seen = look(&mut world)?;
            let alone = |why| format!("without leg {missing}: {why}");
            check_promise(moment, &seen).map_err(alone)?;
            let blocks = [0, SMALL + 1];
            write_and_bring_back(&mut world, missing, back, canary, &blocks).map_err(alone)?;
            count += 1;
        } else if let Ok(mut world) = reopen(&some, canary, true) {
            // Somebody has given up the other: what only that one has is gone, and they are alike in the end. Nothing is written by then: what is
            // copied for that would hide what is not.
            let given_up = |why| format!("when leg {missing} was given up: {why}");
            look(&mut world).map_err(given_up)?;
            match write_and_bring_back(&mut world, missing, back, canary, &[]) {
                // That both were served somebody has to decide.
                Err(why) if why.starts_with(REFUSED) => {}
                other => other.map_err(given_up)?,
            }
            count += 1;
        }
    }
    let all: Vec<_> = contents.into_iter().map(Some).collect();
    let mut world = reopen(&all, canary, false).map_err(|e| format!("refused: {e}"))?;
    world.is_recording = again;
    let seen = look(&mut world)?;
    check_promise(moment, &seen)?;
    for _ in 0..2 {
        if look(&mut world)? != seen {
            return Err("reads tell two truths".into());
        }
    }
    let from = world.moments.len();
    world.heal()?;
    if let Some(block) = differ(&world.disks) {
        return Err(format!("legs differ in block {block}"));
    }
    if look(&mut world)? != seen {
        return Err("a resync tells another truth".into());
    }
    count += 1;
    if !again {
        return Ok(count);
    }
    // And once more, at any moment from where somebody has read.
    let mut rng = SplitMix64::new(3);
    let step = (world.moments.len() - from).div_ceil(12).max(1);
    for later in world.moments[from..].iter().step_by(step) {
        for fates in fates(&later.disks, &mut rng, 2) {
            let disks = later.disks.iter().zip(&fates);
            let contents: Vec<_> = disks.map(|(disk, fates)| Some(disk.after(fates))).collect();
            let mut world =
                reopen(&contents, canary, false).map_err(|e| format!("refused: {e}"))?;
            if look(&mut world)? != seen {
                return Err("a second crash tells another truth".into());
            }
            world.heal()?;
            if let Some(block) = differ(&world.disks) {
                return Err(format!("after a second crash legs differ in block {block}"));
            }
            count += 1;
        }
    }
    Ok(count)
}
