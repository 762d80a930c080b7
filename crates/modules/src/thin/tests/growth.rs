//! Pools whose parts grow while they are used: crashes at every moment of it, and what fails.

use thinwire_volume::ErrorKind;

use super::super::growth::whole_of;
use super::super::rows::BLOCKS_MAX;
use super::super::*;
use super::crashes::explore;
use super::disk::{Disk, NOBODYS};
use super::made::{BLOCK, METADATA, assembled, labels_of};
use super::random::step;
use super::world::*;
use crate::meta::LABEL_AREA_BYTES;

/// Blocks, and bytes of metadata, before and behind.
const BLOCKS: [u64; 2] = [24, 60];
const NODES: [u64; 2] = [METADATA, METADATA + (1 << 20)];

fn setup(seed: u64) -> Setup {
    Setup {
        seed: seed * 3 + seed % 2,
        blocks: BLOCKS[0],
        is_prompt: seed.is_multiple_of(4),
        rows_max: (seed % 2 == 1).then_some(4),
        grown: Some([BLOCKS[1], NODES[1]]),
        ..Setup::default()
    }
}

/// Both parts have grown; the pool has not been told.
fn grow_parts(world: &World) {
    world.data.grow(LABEL_AREA_BYTES + BLOCKS[1] * BLOCK);
    world.metadata.grow(LABEL_AREA_BYTES + NODES[1]);
}

const GROWN: PoolSizes = PoolSizes { data_bytes: BLOCKS[1] * BLOCK, metadata_bytes: NODES[1] };

/// What the labels say by now of the sizes of both parts. Looks at copies: what is under way there is the pool's.
fn said(world: &World) -> Result<Vec<u64>, String> {
    let [data, metadata] = copies(world);
    assembled([&data, &metadata]).map(|whole| whole.sizes().part_bytes)
}

/// Disks with what has been done on both by now.
fn copies(world: &World) -> [Disk; 2] {
    let data = LABEL_AREA_BYTES + BLOCKS[1] * BLOCK;
    [
        Disk::new(data, world.data.content(), NOBODYS, &world.clock, 0),
        Disk::new(LABEL_AREA_BYTES + NODES[1], world.metadata.content(), 0, &world.clock, 7),
    ]
}

/// A workload in the middle of which a pool grows, with a fault from then on: how many crashes, or what is wrong.
fn play(seed: u64, plant: &dyn Fn(&World)) -> Result<usize, String> {
    let mut world = World::new(setup(seed));
    world.create(12 * BLOCK);
    for _ in 0..60 {
        step(&mut world, 6, 3, true);
    }
    world.rest();
    let from = world.clock.get();
    grow_parts(&world);
    plant(&world);
    for _ in 0..8 + seed % 7 {
        step(&mut world, 6, 3, true);
    }
    let before = world.pool.report();
    world.pool.begin_growth([7; 16]).unwrap();
    assert_eq!(world.pool.begin_growth([8; 16]), Err(PoolGrowthError::Busy));
    let (mut ended, mut steps) = (None, 0);
    while ended.is_none() {
        step(&mut world, 6, 5, true);
        world.turn();
        ended = world.pool.poll_growth();
        steps += 1;
        assert!(steps < 5_000, "it does not end");
    }
    assert_eq!(ended, Some(Ok(GROWN)));
    if said(&world)? != [GROWN.data_bytes, GROWN.metadata_bytes] {
        return Err("it was told, and the labels do not say so".into());
    }
    // What it has grown by is given out.
    for _ in 0..60 {
        step(&mut world, 6, 6, true);
    }
    world.wait();
    let report = world.pool.report();
    assert_eq!(report.data_bytes - before.data_bytes, (BLOCKS[1] - BLOCKS[0]) * BLOCK);
    assert_eq!(report.metadata_bytes - before.metadata_bytes, NODES[1] - NODES[0]);
    match world.wrong.take() {
        Some(wrong) => Err(wrong),
        None => explore(&world, from),
    }
}

#[test]
fn a_crash_at_any_moment_leaves_a_pool_of_before_or_behind() {
    let count: usize = (0..6).map(|seed| play(seed, &|_| {}).unwrap()).sum();
    assert!(count > 4_000, "only {count} crashes");
    println!("{count} crashes");
}

#[track_caller]
fn is_found(canary: PoolCanary, says: &str) {
    let plant = |world: &World| world.canary(canary);
    let why = (0..20).find_map(|seed| play(seed, &plant).err()).expect("it was not found");
    assert!(why.contains(says), "{why}");
}

#[test]
fn blocks_that_are_counted_before_the_labels_have_them_are_found() {
    is_found(PoolCanary::CountsEarly, "than the part has room for");
}

#[test]
fn a_commit_with_the_label_of_before_is_found() {
    is_found(PoolCanary::KeepsOldLabel, "no whole");
}

/// Writers that had no room have some when it has grown; what it grows by twice is known by what it was made with.
#[test]
fn a_full_pool_goes_on_when_it_has_grown() {
    let mut world = World::new(Setup { is_prompt: true, ..setup(0) });
    assert_eq!(world.pool.begin_growth([7; 16]), Err(PoolGrowthError::NoRoom));
    let volume = world.create(50 * BLOCK);
    world.open_volume(volume);
    let write = |world: &mut World| {
        for first in (0..50 * 8).step_by(8) {
            world.write(volume, first, 8);
            world.wait();
        }
        world.failed.remove(&ErrorKind::NoSpace).unwrap_or(0)
    };
    assert_eq!(write(&mut world), 50 - BLOCKS[0]);
    // Once by less than all.
    world.data.grow(LABEL_AREA_BYTES + (BLOCKS[0] + 6) * BLOCK);
    let grow = |world: &mut World, id| {
        world.pool.begin_growth([id; 16]).unwrap();
        let mut ended = None;
        (0..1000).for_each(|_| {
            world.turn();
            ended = ended.take().or_else(|| world.pool.poll_growth());
        });
        ended.expect("it ends")
    };
    let sizes = PoolSizes { data_bytes: (BLOCKS[0] + 6) * BLOCK, metadata_bytes: NODES[0] };
    assert_eq!((grow(&mut world, 7), world.pool.sizes()), (Ok(sizes), Some(sizes)));
    assert_eq!(write(&mut world), 50 - BLOCKS[0] - 6);
    grow_parts(&world);
    assert_eq!((grow(&mut world, 8), world.pool.sizes()), (Ok(GROWN), Some(GROWN)));
    assert_eq!(write(&mut world), 0);
    world.flush(volume);
    world.rest();
    world.read_all(volume);
    world.is_right();
    assert_eq!(world.check(), []);
    let whole = assembled([&world.data, &world.metadata]).unwrap();
    let made: Vec<_> = whole.parts.iter().map(|part| part.made_bytes).collect();
    assert_eq!((made, whole.openings), (vec![BLOCKS[0] * BLOCK, NODES[0]], 3));
    assert_eq!(world.pool.begin_growth([9; 16]), Err(PoolGrowthError::NoRoom));
}

/// A label that cannot be written: nothing is changed any more, and whoever opens it finds it as it was, or larger.
#[test]
fn labels_that_cannot_be_written_stop_it() {
    for (of_data, what) in [(true, "write"), (true, "flush"), (false, "write"), (false, "flush")] {
        let mut world = World::new(Setup { is_prompt: true, ..setup(0) });
        let volume = world.create(12 * BLOCK);
        world.open_volume(volume);
        world.write(volume, 0, 8);
        world.flush(volume);
        world.rest();
        grow_parts(&world);
        let disk = if of_data { &world.data } else { &world.metadata };
        disk.fail(what, 1);
        world.pool.begin_growth([7; 16]).unwrap();
        let mut ended = None;
        (0..1000).for_each(|_| {
            world.turn();
            ended = ended.take().or_else(|| world.pool.poll_growth());
        });
        assert!(matches!(ended, Some(Err(PoolGrowthError::Stopped { .. }))), "{what}: {ended:?}");
        assert!(world.pool.stopped().is_some());
        assert!(matches!(world.pool.begin_growth([8; 16]), Err(PoolGrowthError::Stopped { .. })));
        let ([data, metadata], clock) = (copies(&world), world.clock.clone());
        let mut next = World::over(world.setup.clone(), data, metadata, clock);
        next.model = world.model;
        next.open_volume(volume);
        next.read_all(volume);
        next.is_right();
        assert_eq!(next.check(), []);
    }
}

/// Who ends while it grows ends behind that.
#[test]
fn an_end_waits_for_a_growth() {
    let world = World::new(Setup { is_prompt: true, ..setup(0) });
    grow_parts(&world);
    world.pool.begin_growth([7; 16]).unwrap();
    world.pool.wind_up();
    assert!(!world.pool.is_wound_up() && !world.pool.is_idle());
    (0..1000).for_each(|_| world.pool.poll());
    assert_eq!(world.pool.poll_growth(), Some(Ok(GROWN)));
    assert!(world.pool.is_wound_up());
    assert_eq!(said(&world).unwrap(), [GROWN.data_bytes, GROWN.metadata_bytes]);
    let ended = super::made::label_of(&mut copies(&world)[1]);
    assert_eq!(PoolHead::is_at_rest(&ended), Some(true));
}

const MIB: u64 = 1 << 20;

/// How a pool grows that was made with so many blocks of so many bytes, if its labels say that its parts have that much more data and metadata, and the
/// parts themselves have still more.
fn room(
    (blocks, block_bytes): (u64, u32),
    labels: [u64; 2],
    parts: [u64; 2],
) -> Result<PoolRoom, PoolGrowthError> {
    let [mut data, mut metadata] = labels_of(blocks, block_bytes, METADATA);
    let mut sizes = [blocks * u64::from(block_bytes), METADATA];
    for (size, more) in sizes.iter_mut().zip(labels) {
        *size += more;
    }
    for label in [&mut data, &mut metadata] {
        label.whole_bytes = sizes[0];
        (label.parts[0].bytes, label.parts[1].bytes) = (sizes[0], sizes[1]);
    }
    let volumes = [0, 1].map(|part| (LABEL_AREA_BYTES + sizes[part] + parts[part], 512));
    PoolRoom::find(&whole_of(&data, &metadata), &metadata, &volumes)
}

/// Sizes as they were, and are, in bytes that come to those that it was made with; and whether its labels are to say so first.
fn grown(
    made: (u64, u32),
    before: [u64; 2],
    behind: [u64; 2],
    in_labels: bool,
) -> Result<PoolRoom, PoolGrowthError> {
    let data = made.0 * u64::from(made.1);
    let sizes = |[more, nodes]: [u64; 2]| PoolSizes {
        data_bytes: data + more,
        metadata_bytes: METADATA + nodes,
    };
    let (before, behind) = (sizes(before), sizes(behind));
    let part_bytes = vec![behind.data_bytes, behind.metadata_bytes];
    let whole = crate::meta::WholeSizes { whole_bytes: behind.data_bytes, part_bytes };
    Ok(PoolRoom { before, behind, sizes: in_labels.then_some(whole) })
}

/// What the labels say and no commit counts is what it grows by, whether its parts have still more or not.
#[test]
fn a_growth_that_was_cut_off_behind_the_labels_is_one() {
    let made = (40, 64 << 10);
    let rest = 4096;
    for [data, nodes] in [[MIB, MIB], [MIB, 0], [0, MIB]] {
        let more = [data, nodes];
        assert_eq!(room(made, more, [0, 0]), grown(made, [0, 0], more, false));
        // What is no whole block does not count.
        assert_eq!(room(made, more, [rest, 0]), grown(made, [0, 0], more, false));
        let still = [2 * MIB, 3 * MIB];
        let all = [data + still[0], nodes + still[1]];
        assert_eq!(room(made, more, still), grown(made, [0, 0], all, true));
        assert_eq!(room(made, [0, 0], more), grown(made, [0, 0], more, true));
    }
}

#[test]
fn why_a_pool_does_not_grow_is_said() {
    let made = (40, 64 << 10);
    let less = Err(PoolGrowthError::LessThanABlock { block_bytes: 64 << 10 });
    assert_eq!(room(made, [0, 0], [0, 0]), Err(PoolGrowthError::NoRoom));
    assert_eq!(room(made, [0, 0], [4095, 4095]), Err(PoolGrowthError::NoRoom));
    assert_eq!(room(made, [0, 0], [60 << 10, 0]), less);
    assert_eq!(room(made, [32 << 10, 0], [28 << 10, 0]), less);
    // With what the label has beside its blocks it is one.
    let [before, behind] = [[32 << 10, 0], [64 << 10, 0]];
    assert_eq!(room(made, before, [32 << 10, 0]), grown(made, before, behind, true));
    assert_eq!(room(made, [0, 0], [0, 4096]), grown(made, [0, 0], [0, 4096], true));
    let most = (BLOCKS_MAX, 4096);
    for more in [0, 1 << 30] {
        assert_eq!(room(most, [0, 0], [more, 0]), Err(PoolGrowthError::MostBlocks));
    }
    assert_eq!(room(most, [0, 0], [MIB, MIB]), grown(most, [0, 0], [MIB, MIB], true));
    let last = (BLOCKS_MAX - 1, 4096);
    assert_eq!(room(last, [0, 0], [MIB, 0]), grown(last, [0, 0], [MIB, 0], true));
    assert_eq!(room(last, [MIB, 0], [MIB, 0]), grown(last, [0, 0], [MIB, 0], false));
}
