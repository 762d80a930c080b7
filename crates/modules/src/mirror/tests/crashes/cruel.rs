//! Crashes after zeroes, over legs that hang or fail in parts, of mirrors that were not whole, and far away on large ones.

use super::super::disk::at;
use super::*;

const LABELS: (u64, u64) = (0, BITMAP_OFFSET);
const BITS: (u64, u64) = (BITMAP_OFFSET, MIRROR_DATA_START);
const DATA: (u64, u64) = (MIRROR_DATA_START, DISK_BYTES);

/// What zeroes is written like any other.
#[test]
fn zeroes_are_there_after_any_crash() {
    let acts = vec![
        Write(SMALL, 3, 1),
        Wait,
        Flush,
        Zero(SMALL, 2),
        Wait,
        Discard(SMALL + 1, 2),
        Write(SMALL + 2, 1, 2),
        Wait,
        Flush,
        Wait,
        Discard(SMALL, 1),
        Fail(1),
        Zero(SMALL + 2, 1),
        Wait,
    ];
    holds([acts], 1000);
}

/// A leg hangs, is dropped, does late what it was given, and comes back.
#[test]
fn a_leg_that_hangs_and_does_it_late_takes_nothing_with_it() {
    let acts = |leg, steps| {
        vec![
            Write(SMALL, 1, 1),
            Wait,
            Hang(leg, true),
            Write(SMALL, 1, 2),
            Flush,
            Wait,
            Write(SMALL, 1, 3),
            Wait,
            Flush,
            Wait,
            Hang(leg, false),
            Steps(steps),
            Back(leg),
            Tick,
            Write(SMALL + 1, 1, 4),
            Wait,
        ]
    };
    holds([acts(0, 0), acts(1, 2)], 1000);
}

/// A part of a leg cannot be written any more.
#[test]
fn a_leg_that_takes_some_writes_takes_nothing_with_it() {
    let acts = |leg, part| {
        vec![
            Write(SMALL, 1, 1),
            Wait,
            Flush,
            Wait,
            Bad(leg, Some(part)),
            Write(0, 1, 2),
            Write(SMALL, 1, 2),
            Wait,
            Flush,
            Wait,
            Pass(3),
            Bad(leg, None),
            Back(leg),
            Tick,
        ]
    };
    let parts = [LABELS, BITS, DATA];
    holds(parts.into_iter().flat_map(|part| [acts(0, part), acts(1, part)]), 1000);
}

/// A leg does not take the bits of a region that is about to be written.
fn takes_no_bits(leg: usize) -> Vec<Act> {
    vec![Write(0, 1, 1), Wait, Bad(leg, Some(BITS)), Write(SMALL, 1, 2), Wait, Flush, Wait]
}

/// Who is opened alone behind that knows of all that another one may have.
#[test]
fn a_leg_that_takes_no_bits_is_behind_before_others_have_the_data() {
    holds([takes_no_bits(0), takes_no_bits(1)], 300);
}

/// Rule 1.
#[test]
fn data_before_a_leg_without_its_bits_is_on_record_is_found() {
    let acts = [takes_no_bits(0), takes_no_bits(1)];
    is_found(acts, MirrorCanary::SendsBeforeRecord, "legs differ");
}

/// A leg goes, and is back as another attachment, while the other one has not answered for the bits that both were given.
fn is_back_before_the_bits(steps: usize) -> Vec<Act> {
    vec![
        Write(0, 1, 1),
        Wait,
        Hang(0, true),
        Write(SMALL, 1, 2),
        Leave(1),
        Steps(steps),
        Turn,
        Back(1),
        Hang(0, false),
        Wait,
        Flush,
        Wait,
    ]
}

/// A leg loses the bits that it answers for.
fn loses_the_bits(leg: usize) -> Vec<Act> {
    vec![Write(0, 1, 1), Wait, Write(SMALL, 1, 2), LoseBeside(leg), Wait, Flush, Wait]
}

#[test]
fn bits_count_when_no_leg_is_about_to_be_behind() {
    holds((1..4).map(is_back_before_the_bits), 300);
    holds([0, 1].map(loses_the_bits), 300);
}

/// Rule 1.
#[test]
fn bits_that_count_beside_a_record_are_found() {
    let says = "legs differ";
    is_found((1..4).map(is_back_before_the_bits), MirrorCanary::SendsBesideRecord, says);
    is_found([0, 1].map(loses_the_bits), MirrorCanary::SendsBesideRecord, says);
}

/// A leg that lacks something, by bits or of all, and says other things where it does.
fn lacking(says: LegState, own: &MirrorState, bits: u8) -> Vec<Content> {
    let lead = state(9, &[InSync, says]);
    let mut contents = vec![formatted(0, &lead, [bits; 2]), formatted(1, own, [bits; 2])];
    for block in [0, SMALL, SMALL + 3] {
        contents[1].insert(MIRROR_DATA_START / 4096 + block, vec![200; 4096].into());
    }
    contents
}

fn lacking_some() -> Vec<Content> {
    lacking(LegState::Behind { at: [8; 16].into() }, &state(8, &[InSync; 2]), 0b10)
}

fn lacking_all() -> Vec<Content> {
    let at = [3; 16].into();
    let half = state(3, &[InSync, LegState::Resyncing { at }]);
    lacking(LegState::Resyncing { at: [4; 16].into() }, &half, 0)
}

/// What begins degraded, and as one that was just made.
#[test]
fn a_mirror_that_is_not_whole_keeps_what_it_promises() {
    let acts = vec![
        Write(SMALL, 1, 1),
        Wait,
        Flush,
        Wait,
        Tick,
        Steps(25),
        Write(SMALL + 1, 1, 2),
        Durable(0, 3),
        Wait,
        Pass(3),
    ];
    let mut count = 0;
    for start in [lacking_some(), lacking_all()] {
        for (seed, order) in [(1, Order::Random), (2, Order::Last(0)), (3, Order::Last(1))] {
            let none = MirrorCanary::None;
            count += explore(start.clone(), &acts, order, seed, none).unwrap();
        }
        let found = [Order::Turns, Order::Last(1)].into_iter().find_map(|order| {
            explore(start.clone(), &acts, order, 5, MirrorCanary::InSyncBeforeFlush).err()
        });
        assert!(found.is_some_and(|why| why.contains("block")));
    }
    assert!(count > 1000, "only {count} crashes");
}

/// Bits of another block than the first.
fn far_away(canary: MirrorCanary) -> Result<usize, String> {
    let (both, bytes) = (state(9, &[InSync; 2]), MIRROR_DATA_START + WIDE_BYTES);
    let start = (0..2).map(|leg| formatted_wide(leg, &both)).collect();
    let mut world = World::open_of(bytes, start, Order::Random, 4);
    world.mirror.canary = canary;
    play(
        &[
            Write(0, 1, 1),
            Wait,
            Write(FAR, 1, 2),
            Wait,
            Flush,
            Wait,
            Pass(3),
            Write(FAR, 2, 3),
            Wait,
        ],
        &mut world,
    );
    let (mut rng, mut count) = (SplitMix64::new(1), 0);
    for moment in world.moments.iter().step_by(2) {
        for fates in fates(&moment.disks, &mut rng, 8) {
            let disks = moment.disks.iter().zip(&fates);
            let contents = disks.map(|(disk, fates)| disk.after(fates)).collect();
            let mut world = World::open_of(bytes, contents, Order::Turns, 1);
            world.is_recording = false;
            world.heal()?;
            for block in [0, FAR, FAR + 1] {
                world.read(block);
                world.wait();
                let (_, bytes) = world.reads.pop().ok_or("a read fails")?;
                if bytes.iter().any(|stamp| !moment.allows(block, *stamp)) {
                    return Err(format!("block {block} reads as {}", bytes[0]));
                }
                let place = MIRROR_DATA_START / 4096 + block;
                let [one, other] = [0, 1].map(|leg: usize| at(&world.disks[leg].content(), place));
                if one != other {
                    return Err(format!("legs differ in block {block}"));
                }
            }
            count += 1;
        }
    }
    Ok(count)
}

#[test]
fn the_second_block_of_bits_tells_of_what_is_far_away() {
    let count = far_away(MirrorCanary::None).unwrap();
    assert!(count > 100, "only {count} crashes");
    let found = far_away(MirrorCanary::IntentAfterData).unwrap_err();
    assert!(found.contains("legs differ in block 1032192"), "{found}");
}
