//! What is not as it was written is found, and its block named.

use thinwire_volume::testing::SplitMix64;

use super::super::*;
use super::world::*;
use crate::mirror::tests::disk::{Content, at};

/// Blocks of a part that was closed in order: each of these was written.
fn written() -> Content {
    let mut world = World::over(made(PART_BYTES));
    for (nth, block) in [0, 1, SECOND, SECOND + 9, LAST].into_iter().enumerate() {
        world.write(block, 1, 0x10 + nth as u8, false);
    }
    world.succeed();
    world.close()
}

#[track_caller]
fn fails_at(world: &mut World, block: u64) {
    let error = world.read(block, 1, false).expect_err("it is not what was written");
    let named = (error.kind, error.offset, error.len, error.module);
    assert_eq!(named, (ErrorKind::BadSum, block * BLOCK, BLOCK, NAME));
    let event = VolumeEvent::BadBlock { offset: block * BLOCK, is_mended: false, of: None };
    assert!(world.news.contains(&event), "{:?}", world.news);
}

#[test]
fn any_bit_of_a_block_or_of_its_sum() {
    let content = written();
    let mut rng = SplitMix64::new(1);
    let sum = SumLayout::sums_at(SECOND / 512);
    for nth in 0..60 {
        let mut content = content.clone();
        match nth % 2 {
            0 => change(&mut content, place_of(SECOND), |bytes| {
                let bit = rng.below(8 * BLOCK);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }),
            _ => change(&mut content, sum, |bytes| {
                let bit = rng.below(32);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }),
        }
        let mut world = World::over(content);
        fails_at(&mut world, SECOND);
        assert!(world.read(SECOND + 9, 1, false).is_ok(), "others are as they were");
        assert!(world.read(SECOND, 10, false).is_err(), "it is found among others");
    }
}

#[test]
fn what_was_lost_or_went_elsewhere() {
    let before = written();
    let mut world = World::over(before.clone());
    world.write(SECOND, 1, 0x77, false);
    world.succeed();
    let after = world.close();
    let (one, other) = (place_of(SECOND) / BLOCK, place_of(SECOND + 1) / BLOCK);
    // The data was lost; or the sum was.
    let mut lost = after.clone();
    lost.insert(one, at(&before, one));
    fails_at(&mut World::over(lost), SECOND);
    let mut lost = after.clone();
    let sums = SumLayout::sums_at(1) / BLOCK;
    lost.insert(sums, at(&before, sums));
    fails_at(&mut World::over(lost), SECOND);
    // It went to the next block, over zeroes; the sums went elsewhere.
    let mut astray = after.clone();
    astray.insert(other, at(&after, one));
    let mut world = World::over(astray);
    fails_at(&mut world, SECOND + 1);
    let mut astray = after.clone();
    astray.insert(SumLayout::sums_at(0) / BLOCK, at(&after, sums));
    let mut world = World::over(astray);
    fails_at(&mut world, 0);
    fails_at(&mut world, 1);
}

/// A block that belongs elsewhere, with the sum that belongs to it, is not taken for the one that belongs there.
#[test]
fn a_block_knows_its_place_and_its_volume() {
    let swap = |content: &mut Content| {
        let (one, other) = (place_of(SECOND) / BLOCK, place_of(SECOND + 9) / BLOCK);
        let [a, b] = [one, other].map(|place| at(content, place));
        content.insert(one, b);
        content.insert(other, a);
        change(content, SumLayout::sums_at(1), |sums| {
            let (left, right) = sums.split_at_mut(72);
            left[..8].swap_with_slice(&mut right[..8]);
        });
    };
    let mut content = written();
    swap(&mut content);
    fails_at(&mut World::over(content), SECOND);
    // The planted fault is found by this.
    let mut world = World::over(made(PART_BYTES));
    world.volume.summer.ignores_numbers = true;
    world.write(SECOND, 1, 1, false);
    world.write(SECOND + 9, 1, 2, false);
    world.succeed();
    let mut content = world.close();
    swap(&mut content);
    let mut world = World::over(content);
    world.volume.summer.ignores_numbers = true;
    assert!(world.read(SECOND, 1, false).is_ok(), "nobody notices");
    let summers = [WHOLE, [7; 16]].map(Summer::new);
    assert_ne!(summers[0].of(5, 99), summers[1].of(5, 99));
}

/// An old sum counts only while its region is open at a crash.
#[test]
fn old_sums_do_not_count() {
    let before = written();
    let mut world = World::over(before.clone());
    world.write(SECOND, 1, 0x77, false);
    world.flush();
    world.succeed();
    // Killed, and the disk has lost one write without saying so.
    let mut open = world.disk.content();
    open.insert(place_of(SECOND) / BLOCK, at(&before, place_of(SECOND) / BLOCK));
    let mut world = World::over(open.clone());
    assert!(world.read(SECOND, 1, true).is_ok_and(|bytes| bytes[0] == 0x12));
    // It is what counts from then on.
    world.pass(3);
    let mut world = World::over(world.close());
    assert!(world.read(SECOND, 1, true).is_ok_and(|bytes| bytes[0] == 0x12));
    // While it is open, and was not at a crash, they do not count either.
    let mut world = World::over(before.clone());
    world.write(SECOND, 1, 0x77, false);
    world.succeed();
    let old = at(&before, place_of(SECOND) / BLOCK);
    let mut io = Io::new(1 << 40, Op::Write, place_of(SECOND), BLOCK);
    io.data = segments(&old);
    world.disk.be_prompt(true);
    world.disk.submit(io);
    world.disk.poll(&mut Vec::new());
    world.disk.be_prompt(false);
    fails_at(&mut world, SECOND);
}

/// Holes are told where the part says so and the sums do, too.
#[test]
fn zeroes_are_told_by_both() {
    let content = written();
    let status = |content: &Content, first: u64, count: u64| {
        let mut world = World::over(content.clone());
        world.disk.claim_status(true, true);
        world.disk.abandon();
        world.volume = open_with(&world.disk, config(2));
        world.submit(Io::new(0, Op::BlockStatus, first * BLOCK, count * BLOCK), 0);
        let questions = loop {
            if let Some(io) = world.disk.take_one_of(Op::BlockStatus) {
                break io;
            }
            assert!(world.step());
        };
        let mut answer = Completion::new(questions.token, Ok(()));
        answer.extents = vec![
            Extent { len: 512, hole: true, zero: true },
            Extent { len: questions.len - 512, hole: false, zero: true },
        ];
        world.disk.answer(answer);
        world.wait();
        world.ends.pop().unwrap().extents
    };
    let [zeroes, data] = [true, false].map(|zero| move |len| Extent { len, hole: false, zero });
    assert_eq!(
        status(&content, SECOND - 1, 12),
        [zeroes(BLOCK), data(BLOCK), zeroes(8 * BLOCK), data(BLOCK), zeroes(BLOCK)]
    );
}
