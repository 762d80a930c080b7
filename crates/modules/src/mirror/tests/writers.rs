//! Who may write the mirror as an export, in its labels: behind every crash the last record that was told of is found, or a later one, and never half of two; and never that of
//! a leg that was dropped.

use thinwire_volume::{KeptWriter, LeafGeneration, WriterRecord};

use super::aftermath::fates;
use super::changes::{contents, open_of, standing_of, wish};
use super::disk::Content;
use super::world::*;
use super::*;
use crate::meta::LABEL_LEAVES_MAX;

/// One that says the same in all its fields.
fn kept(generation: u64) -> KeptWriter {
    let record = WriterRecord::new(generation, [generation as u8; 16], &format!("n{generation}"));
    let record = WriterRecord { idle: 40 + generation as u32, ..record };
    let leaf = |leaf: u8| LeafGeneration { leaf: [leaf; 16], generation };
    KeptWriter { record, leaves: Some((1..=generation as u8).map(leaf).collect()) }
}

fn open(contents: &[Option<Content>], canary: MirrorCanary) -> Result<World, String> {
    open_of(DISK_BYTES, contents, wish(None, true), canary)
}

fn clean(legs: usize) -> Vec<Option<Content>> {
    (0..legs).map(|leg| Some(formatted(leg, &state(9, &vec![InSync; legs]), [0, 0]))).collect()
}

/// What is found there is as it was told, or as it was asked for.
fn check(world: &mut World, (told, asked): (u64, u64)) -> Result<(), String> {
    let found = world.load();
    let generation = found.record.generation;
    match generation {
        _ if found != kept(generation) && !found.is_none() => Err(format!("a mixture: {found:?}")),
        _ if generation < told => Err(format!("{generation} is found, and {told} was told of")),
        _ if generation > asked => Err(format!("{generation} is found, and not asked for")),
        _ => Ok(()),
    }
}

/// All crashes while records are stored beside writes; the leg `failing` fails from the second on. How many crashes there were.
fn explore(
    legs: usize,
    (failing, order): (Option<usize>, Order),
    canary: MirrorCanary,
) -> Result<usize, String> {
    let mut world = open(&clean(legs), MirrorCanary::None)?;
    world.mirror.set_canary(canary);
    world.set_order(order);
    world.is_recording = true;
    world.pass(1);
    let mut lost_from = usize::MAX;
    for generation in 1..=3 {
        if let Some(leg) = failing.filter(|_| generation == 2) {
            lost_from = world.moments.len();
            world.disks[leg].fail(Some(ErrorKind::Io));
        }
        world.store(&kept(generation));
        if generation == 3 {
            world.write(SMALL, 2, 3, false);
        }
        world.wait();
    }
    world.pass(1);
    let (mut rng, mut count) = (SplitMix64::new(7), 0);
    for (nth, moment) in world.moments.iter().enumerate() {
        for fates in fates(&moment.disks, &mut rng, 8) {
            let disks = moment.disks.iter().zip(&fates);
            let after: Vec<_> = disks.map(|(disk, fates)| Some(disk.after(fates))).collect();
            let mut world = open(&after, canary)?;
            check(&mut world, moment.records)?;
            // What was found once stays.
            let found = world.load();
            let again = open(&contents(&world), canary)?.load();
            if found.record.generation != again.record.generation {
                return Err(format!("{found:?} is found, and then {again:?}"));
            }
            count += 1;
            // Each leg has it, as long as none was dropped.
            for leg in (0..legs).filter(|_| nth < lost_from) {
                let mut alone: Vec<Option<Content>> = vec![None; legs];
                alone[leg] = after[leg].clone();
                check(&mut open(&alone, canary)?, moment.records)
                    .map_err(|why| format!("leg {leg} alone: {why}"))?;
                count += 1;
            }
        }
    }
    Ok(count)
}

#[test]
fn behind_every_crash_the_record_that_was_told_of_is_found() {
    let mut count = 0;
    for legs in [2, 3] {
        for order in [Order::Turns, Order::Last(0), Order::Last(1), Order::Random] {
            for failing in [None, Some(0), Some(1)] {
                let explored = explore(legs, (failing, order), MirrorCanary::None);
                count +=
                    explored.unwrap_or_else(|why| panic!("{legs} {order:?} {failing:?} {why}"));
            }
        }
    }
    assert!(count > 5_000, "{count}");
}

/// A mirror that cannot be closed in order, since bits cannot be written, is over between two tries of a record.
#[test]
fn whoever_waits_for_a_record_hears_of_the_end() {
    let mut world = open(&clean(2), MirrorCanary::None).unwrap();
    world.is_recording = false;
    world.pass(1);
    world.write(SMALL, 1, 1, false);
    world.store(&kept(1));
    world.turn();
    world.disks.iter().for_each(|disk| disk.fail_writes_in(Some((0, MIRROR_DATA_START))));
    for _ in 0..40 {
        for disk in &world.disks {
            let nth = disk.first_queued(|io| io.offset < BITMAP_OFFSET);
            nth.into_iter().for_each(|nth| disk.execute(nth));
        }
        world.turn();
    }
    world.mirror.close();
    for _ in 0..400 {
        world.turn();
        if !world.step() {
            world.now = world.now + Duration::from_millis(5);
        }
    }
    assert!(
        world.mirror.closed().is_some_and(|ended| ended.is_err()),
        "{:?}",
        world.mirror.closed()
    );
    assert_eq!(world.mirror.outstanding(), 0);
}

#[test]
fn a_record_on_one_leg_only_is_found() {
    let why = explore(2, (None, Order::Turns), MirrorCanary::RecordOnOneLeg).unwrap_err();
    assert!(why.contains("leg 1 alone: "), "{why}");
}

#[test]
fn a_record_that_is_told_before_it_is_there_is_found() {
    let why = explore(2, (None, Order::Turns), MirrorCanary::RecordToldEarly).unwrap_err();
    assert!(why.contains("was told of"), "{why}");
}

/// A leg is away while records are stored, and is back: in which place it is given, and whether the other one is there first.
fn comes_back(leg: usize, canary: MirrorCanary) -> Result<(), String> {
    let mut world = open(&clean(2), MirrorCanary::None)?;
    world.store(&kept(1));
    world.wait();
    world.disks[leg].fail(Some(ErrorKind::Away));
    world.store(&kept(2));
    world.wait();
    assert_eq!((world.errors, world.records.0), (0, 2));
    assert!(world.is_dropped(leg));
    // While nobody has it open.
    let mut again = open(&contents(&world), canary)?;
    check(&mut again, (2, 2))?;
    again.heal()?;
    // While it is in use.
    world.disks[leg].fail(None);
    world.bring_back(leg);
    world.heal()?;
    for world in [world, again] {
        for left in 0..2 {
            let mut alone = contents(&world);
            alone[left] = None;
            check(&mut open(&alone, MirrorCanary::None)?, (2, 2))?;
        }
    }
    Ok(())
}

#[test]
fn a_leg_that_was_away_never_brings_an_older_record() {
    for leg in 0..2 {
        assert_eq!(comes_back(leg, MirrorCanary::None), Ok(()), "leg {leg}");
    }
    let why = comes_back(1, MirrorCanary::RecordOfAnyLeg).unwrap_err();
    assert_eq!(why, "1 is found, and 2 was told of");
}

#[test]
fn a_record_that_no_leg_takes_fails_and_the_next_one_does_not() {
    let mut world = open(&clean(2), MirrorCanary::None).unwrap();
    world.store(&kept(1));
    world.wait();
    world.disks.iter().for_each(|disk| disk.fail(Some(ErrorKind::Io)));
    world.store(&kept(2));
    world.wait();
    assert_eq!((world.errors, world.records.0), (1, 1));
    world.disks.iter().for_each(|disk| disk.fail(None));
    // That is tried again once a second.
    world.pass(3);
    world.store(&kept(3));
    world.wait();
    assert_eq!((world.errors, world.records.0), (1, 3));
    assert_eq!(open(&contents(&world), MirrorCanary::None).unwrap().load(), kept(3));
    // One with more leaves than a label has room for.
    let mut most = kept(4);
    most.leaves = Some(vec![LeafGeneration::default(); LABEL_LEAVES_MAX + 1]);
    world.store(&most);
    world.wait();
    assert_eq!(world.errors, 2);
    most.leaves.as_mut().unwrap().pop();
    world.store(&most);
    world.wait();
    assert_eq!((world.errors, world.load()), (2, most));
}

/// Several at once: they take their turns, and the mirror ends when the last is there.
#[test]
fn records_are_stored_in_the_order_in_which_they_come() {
    let mut world = open(&clean(3), MirrorCanary::None).unwrap();
    world.disks[2].fail(Some(ErrorKind::Io));
    (1..=5).for_each(|generation| world.store(&kept(generation)));
    world.mirror.close();
    world.wait();
    assert_eq!((world.errors, world.records.0), (0, 5));
    world.pass(2);
    assert_eq!(world.mirror.closed(), Some(Ok(())));
    assert!(standing_of(&world)[2].left_at().is_some());
    assert_eq!(open(&contents(&world), MirrorCanary::None).unwrap().load(), kept(5));
}
