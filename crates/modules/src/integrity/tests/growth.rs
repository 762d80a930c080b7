//! Parts that grow: nothing that is there moves, what comes is zeroes that fit, and whoever is cut off meanwhile finds what was there.

use thinwire_volume::testing::{Puppet, SplitMix64};

use super::super::layout::Span;
use super::super::making::GrowingCanary;
use super::super::*;
use super::world::*;
use crate::mirror::tests::disk::{Content, Disk};
use crate::mirror::tests::fates;
use crate::write_intent::bitmap::REGIONS_EACH;

/// Where it stands on the part.
fn place(spans: &[Span], offset: u64) -> u64 {
    match spans.iter().find(|span| (span.from..span.upto).contains(&offset)) {
        Some(span) => span.at + (offset - span.from),
        None => {
            assert!(spans.is_empty(), "{offset} stands nowhere");
            offset
        }
    }
}

/// Where the sums of each block of them stand, and where each block of data does.
fn places(part_bytes: u64, state: &IntegrityState) -> [Vec<u64>; 2] {
    let (layout, spans) = (SumLayout::of(part_bytes), SumLayout::spans(part_bytes, state));
    let sums = (0..layout.bytes.div_ceil(SUMMED_BYTES)).map(SumLayout::sums_at);
    let data = (0..layout.bytes / BLOCK).map(|block| layout.data_offset + block * BLOCK);
    [sums.map(|at| place(&spans, at)).collect(), data.map(|at| place(&spans, at)).collect()]
}

#[test]
fn nothing_moves_and_no_two_things_stand_in_one_place() {
    let mut random = SplitMix64::new(7);
    for _ in 0..40 {
        let mut part = (1 << 20) + (2 + random.below(3000)) * BLOCK + 512 * random.below(8);
        let mut state = IntegrityState::new(SumLayout::of(part).bytes);
        let mut before = places(part, &state);
        for _ in 0..1 + random.below(6) {
            let most = if random.one_in(3) { 4 } else { 2000 };
            let more = 1 + random.below(most);
            let room = part + more * BLOCK;
            let Ok((grown, next)) = state.grow(part, room) else {
                assert_eq!(SumLayout::of(part).bytes, SumLayout::of(room).bytes);
                continue;
            };
            assert_eq!(next, room / BLOCK * BLOCK);
            let after = places(next, &grown);
            for (before, after) in before.iter().zip(&after) {
                assert!(after.starts_with(before), "it has moved");
            }
            let mut all: Vec<u64> = after.concat();
            all.sort_unstable();
            assert!(all.windows(2).all(|two| two[0] + BLOCK <= two[1]), "two in one place");
            assert!(all[0] >= 1 << 20 && all[all.len() - 1] + BLOCK <= next);
            let bytes = SumLayout::of(next).bytes;
            assert_eq!(IntegrityState::decode(&grown.encode(), bytes), Ok(grown));
            // The first of two labels that say so, if there is no second.
            let was = SumLayout::of(part).bytes;
            assert_eq!(IntegrityState::decode(&grown.encode(), was), Ok(state));
            (part, state, before) = (next, grown, after);
        }
    }
}

#[test]
fn what_cannot_grow_says_why() {
    let part = (1 << 20) + 100 * BLOCK;
    let mut state = IntegrityState::new(SumLayout::of(part).bytes);
    assert_eq!(state.grow(part, part + BLOCK - 512), Err(SumGrowthError::NoRoom));
    let mut bytes = part;
    for _ in 0..SUM_GROWTHS_MAX {
        (state, bytes) = state.grow(bytes, bytes + 2 * BLOCK).unwrap();
    }
    assert_eq!(state.grow(bytes, bytes + 2 * BLOCK), Err(SumGrowthError::TooOften));
    assert!(state.encode().len() <= crate::meta::LABEL_STATE_BYTES_MAX);
    // As far as its bitmap tells of regions, of 2 MiB here.
    let small = IntegrityState::new(1 << 30);
    let (grown, most) = small.grow(part, 4 << 40).unwrap();
    let bytes = SumLayout::of(most).bytes;
    assert_eq!(bytes, 516_096 << 21);
    assert_eq!(IntegrityState::decode(&grown.encode(), bytes), Ok(grown));
    assert_eq!(grown.grow(most, 4 << 40), Err(SumGrowthError::NoRegions));
    // What cannot be.
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut state = grown.encode();
        change(&mut state);
        IntegrityState::decode(&state, bytes).expect_err("it cannot be").to_string()
    };
    assert!(refused(&|state| state[2] = 0).contains("too much"));
    assert!(refused(&|state| state.truncate(8)).contains("too much"));
    assert!(refused(&|state| state[0] = 1).contains("zeroes"));
    assert!(refused(&|state| state[8] += 1).contains("sizes"));
    assert!(refused(&|state| state[15] = 1).contains("sizes"));
}

pub const GROWN_BYTES: u64 = PART_BYTES + (5 << 20) + 3 * BLOCK;

/// A part with something written to it, and behind it what somebody else has left there.
pub fn used() -> Content {
    let mut world = World::over(made(PART_BYTES));
    for (block, stamp) in [(0, 1), (SECOND, 2), (LAST + 3, 3)] {
        world.write(block, 1, stamp, false);
    }
    world.succeed();
    let mut content = world.close();
    for block in PART_BYTES / BLOCK..GROWN_BYTES / BLOCK {
        content.insert(block, [0xee; BLOCK as usize].into());
    }
    content
}

/// The volume on that, which has so many bytes and says that.
fn over(content: Content, bytes: u64, state: IntegrityState) -> World {
    let disk = Disk::new(GROWN_BYTES, content);
    let volume = open_part(&disk, bytes, state, config(2));
    World::of(disk, volume, None)
}

/// What was written reads as it was, all else as zeroes, and all of it fits.
fn look(world: &mut World) -> Result<(), String> {
    let blocks = world.volume.geometry().bytes / BLOCK;
    for first in (0..blocks).step_by(100) {
        let count = 100.min(blocks - first);
        let read = world.read(first, count, true).map_err(|e| e.to_string())?;
        for (block, bytes) in (first..).zip(read.chunks(BLOCK as usize)) {
            let stamp = match block {
                0 => 1,
                SECOND => 2,
                _ if block == LAST + 3 => 3,
                _ => 0,
            };
            if bytes.iter().any(|byte| *byte != stamp) {
                return Err(format!("block {block} reads as {}, not {stamp}", bytes[0]));
            }
        }
    }
    let report = world.scrub();
    match report.bad + report.unverified {
        0 => Ok(()),
        _ => Err(format!("{report:?}")),
    }
}

/// Grows, with crashes at each moment; how many.
fn grow(canary: GrowingCanary) -> Result<usize, String> {
    let state = IntegrityState::new(DATA_BYTES);
    let (grown, bytes) = state.grow(PART_BYTES, GROWN_BYTES).unwrap();
    assert_eq!(bytes, GROWN_BYTES);
    let disk = Disk::new(GROWN_BYTES, used());
    let pool = Pool::new(0);
    let sizes = (PART_BYTES, GROWN_BYTES);
    let mut growing = SumGrowing::with((7, &pool), (WHOLE, state), 0, sizes, canary);
    let (mut count, mut random) = (0, SplitMix64::new(1));
    loop {
        let ended = growing.turn(&mut disk.clone());
        let snapshot = disk.snapshot();
        for fates in fates(std::slice::from_ref(&snapshot), &mut random, 8) {
            let mut world = over(snapshot.after(&fates[0]), PART_BYTES, state);
            look(&mut world).map_err(|why| format!("cut off: {why}"))?;
            count += 1;
        }
        if let Some(ended) = ended {
            ended.map_err(|error| error.to_string())?;
            break;
        }
        disk.execute(0);
    }
    // All of that is durable.
    let snapshot = disk.snapshot();
    assert_eq!(snapshot.doubts(), 0);
    let mut world = over(disk.content(), GROWN_BYTES, grown);
    assert_eq!(world.volume.geometry().bytes, SumLayout::of(GROWN_BYTES).bytes);
    look(&mut world)?;
    // Over the border, and at the end; and by who opens it anew.
    let (border, end) = (DATA_BYTES / BLOCK, SumLayout::of(GROWN_BYTES).bytes / BLOCK);
    world.write(border - 2, 40, 9, false);
    world.write(end - 3, 3, 8, true);
    world.zero(border, 2, Op::WriteZeroes);
    world.succeed();
    let mut world = over(world.close(), GROWN_BYTES, grown);
    for (block, stamp) in [(border - 2, 9), (border, 0), (border + 2, 9), (end - 1, 8)] {
        let read = world.read(block, 1, true).map_err(|e| format!("block {block}: {e}"))?;
        assert!(read.iter().all(|byte| *byte == stamp), "block {block} reads as {}", read[0]);
    }
    let report = world.scrub();
    assert_eq!((report.bad, report.unverified), (0, 0));
    Ok(count)
}

#[test]
fn what_comes_is_zeroes_that_fit_and_what_is_there_stays() {
    let count = grow(GrowingCanary::None).unwrap();
    assert!(count >= 8, "only {count} crashes");
}

#[test]
fn what_somebody_has_left_there_is_found() {
    let why = grow(GrowingCanary::KeepsRest).expect_err("it was not found");
    assert!(why.contains("sum"), "{why}");
}

/// Which blocks of the bitmap are written behind the zeroes, as copies and numbers.
fn bits(canary: GrowingCanary) -> Vec<u64> {
    let each = (REGIONS_EACH as u64) << 21;
    let state = IntegrityState::new(each);
    let geometry = Geometry { bytes: 16 << 30, ..Puppet::GEOMETRY };
    let puppet = Puppet::new(1, geometry);
    let (before, behind) = ((1 << 20) + each, (1 << 20) + each + (64 << 20));
    let sizes = (before, behind);
    let pool = Pool::new(0);
    let mut growing = SumGrowing::with((7, &pool), (WHOLE, state), 4096, sizes, canary);
    let (mut written, mut flushed) = (Vec::new(), false);
    while growing.turn(&mut puppet.clone()).is_none() {
        for io in puppet.take() {
            assert!(!flushed, "something comes behind the flush");
            flushed = io.op == Op::Flush;
            if io.op.is_write() && io.offset < 1 << 20 {
                written.push(io.offset - 4096);
            }
            puppet.succeed(&io);
        }
    }
    assert!(flushed);
    written
}

#[test]
fn new_regions_are_said_to_be_closed() {
    let both = [SumLayout::bitmap_at(1, 1), SumLayout::bitmap_at(1, 2)];
    assert_eq!(bits(GrowingCanary::None), both);
    assert_ne!(bits(GrowingCanary::NoBits), both, "it was not found");
}
