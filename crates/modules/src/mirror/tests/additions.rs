//! Legs that are added while their mirror is used: at every crash there is a row for the new leg or there is none, whoever was told finds it, and the leg counts only when it
//! has all that was promised.

use std::rc::Rc;

use thinwire_volume::testing::SplitMix64;

use super::aftermath::{check_promise, fates, look};
use super::changes::{contents, open_of, standing_of, wish};
use super::disk::{BLOCK, Content, Disk};
use super::removals::ended;
use super::world::*;
use super::*;
use crate::meta::{LABEL_OFFSETS, Label, LabelPart};
use LegState::{Behind, InSync, Removed};

const UUID: [u8; 16] = [0x12; 16];
const ADD: MirrorAsk = MirrorAsk::Add { uuid: UUID, leg: None, only_look: false };

pub(super) fn open(contents: &[Option<Content>], canary: MirrorCanary) -> Result<World, String> {
    open_of(DISK_BYTES, contents, wish(None, false), canary)
}

pub(super) fn legs(count: usize) -> Vec<Option<Content>> {
    (0..count).map(|leg| Some(formatted(leg, &state(9, &vec![InSync; count]), [0, 0]))).collect()
}

/// Asks for it, and waits until that has ended: what the new part is to say.
pub(super) fn add(world: &mut World) -> Result<Label, MirrorAskError> {
    world.mirror.desk().ask(ADD);
    ended(world).map(|done| done.leg.expect("it comes with a label").label)
}

/// A part that has got that label, and has other bytes behind it.
pub(super) fn part(label: &Label) -> Disk {
    let mut content = Content::new();
    let mut parts = label.parts.clone();
    let role = usize::from(label.role);
    parts[role] = LabelPart { bytes: DATA_BYTES, ..parts[role] };
    for generation in [2, 3] {
        let label = Label {
            generation,
            parts: parts.clone(),
            data_start: MIRROR_DATA_START,
            ..label.clone()
        };
        let offset = LABEL_OFFSETS[(generation % 2) as usize];
        content.insert(offset / BLOCK, Rc::from(&label.encode().unwrap()[..]));
    }
    for block in MIRROR_DATA_START / BLOCK..DISK_BYTES / BLOCK {
        content.insert(block, Rc::from(&[0xee; BLOCK as usize][..]));
    }
    Disk::new(DISK_BYTES, content)
}

/// It comes as what it is.
pub(super) fn bring(world: &mut World, disk: Disk) {
    let new = leg(&disk).expect("it has a label");
    let number = usize::from(new.label.role);
    // Disks stand in the order of the legs.
    match world.disks.get_mut(number) {
        Some(place) => *place = disk,
        None => world.disks.push(disk),
    }
    assert!(number < world.disks.len());
    world.mirror.return_leg(number, new).unwrap_or_else(|e| panic!("{e}"));
}

/// A crash that left this: how many legs there are.
fn survives(
    moment: &Moment,
    after: &[Option<Content>],
    canary: MirrorCanary,
) -> Result<usize, String> {
    // Without some of them, whatever is said: what is served is all that was promised.
    for there in 1..1_u32 << after.len() {
        let some = (0..).zip(after).map(|(leg, at)| at.clone().filter(|_| there >> leg & 1 == 1));
        let some: Vec<_> = some.collect();
        if let Ok(mut world) = open_of(DISK_BYTES, &some, wish(None, true), canary) {
            let seen = look(&mut world)?;
            check_promise(moment, &seen).map_err(|why| format!("of {there:b}: {why}"))?;
        }
    }
    let mut world = open(after, canary)?;
    check_promise(moment, &look(&mut world)?)?;
    world.turn();
    let count = standing_of(&world).len();
    world.heal()?;
    match differ(&world.disks) {
        Some(block) => Err(format!("legs differ in block {block}")),
        None => Ok(count),
    }
}

/// While somebody writes, or when nobody has for long: so no region is open, and nothing but the bits of the new leg has it copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Writes,
    Nobody,
}

/// What was told of the addition, and at which moment.
fn play(world: &mut World, beside: Beside) -> usize {
    world.note();
    world.write(SMALL, 2, 3, false);
    world.wait();
    world.flush();
    world.wait();
    if beside == Beside::Nobody {
        world.pass(4);
        let label = add(world).unwrap();
        let told = world.moments.len();
        world.note();
        bring(world, part(&label));
        world.pass(2);
        return told;
    }
    world.write(SMALL + 1, 1, 4, false);
    world.turn();
    world.steps(2);
    world.mirror.desk().ask(ADD);
    world.write(0, 1, 5, true);
    let label = ended(world).unwrap().leg.expect("it comes with a label").label;
    let told = world.moments.len();
    world.note();
    world.write(SMALL + 2, 1, 6, true);
    world.wait();
    bring(world, part(&label));
    world.note();
    world.write(SMALL + 3, 1, 7, false);
    for stamp in 8..12 {
        world.turn();
        world.steps(3);
        world.write(SMALL + u64::from(stamp % 3), 1, stamp, stamp % 2 == 0);
    }
    world.wait();
    world.pass(6);
    world.write(SMALL, 1, 12, true);
    world.wait();
    told
}

/// All crashes of an addition: how many legs there were behind each.
fn explore(
    order: Order,
    beside: Beside,
    canary: MirrorCanary,
) -> Result<(Vec<usize>, usize), String> {
    let start = legs(2).into_iter().flatten().collect();
    let mut world = World::open(start, order, 7);
    world.mirror.canary = canary;
    let told = play(&mut world, beside);
    if canary == MirrorCanary::None && standing_of(&world) != [InSync; 3] {
        return Err("it is not in sync in the end".into());
    }
    let (mut rng, mut met, mut count) = (SplitMix64::new(3), Vec::new(), 0);
    // Where there are many moments, each third of them.
    let step = if beside == Beside::Writes { 3 } else { 1 };
    for (nth, moment) in world.moments.iter().enumerate().step_by(step) {
        for fates in fates(&moment.disks, &mut rng, 8) {
            let disks = moment.disks.iter().zip(&fates);
            let after: Vec<_> = disks.map(|(disk, fates)| Some(disk.after(fates))).collect();
            let legs =
                survives(moment, &after, canary).map_err(|why| format!("moment {nth}: {why}"))?;
            if nth >= told && legs != 3 {
                return Err("nothing is on record of what was told".into());
            }
            met.push(legs);
            count += 1;
        }
    }
    met.sort_unstable();
    met.dedup();
    Ok((met, count))
}

#[test]
fn a_leg_comes_when_it_has_all_and_not_before() {
    let orders = [Order::Turns, Order::Last(0), Order::Last(2), Order::Random];
    let all = orders.map(|order| [(order, Beside::Writes), (order, Beside::Nobody)]);
    for (order, beside) in all.into_iter().flatten() {
        let (met, count) = explore(order, beside, MirrorCanary::None)
            .unwrap_or_else(|why| panic!("{order:?}: {why}"));
        assert_eq!(met, [2, 3], "{order:?}, {beside:?}");
        assert!(count > 100, "only {count} crashes");
    }
}

#[track_caller]
fn is_found(canary: MirrorCanary, says: &[&str]) {
    let orders = [Order::Turns, Order::Last(0), Order::Last(2), Order::Random];
    let all = orders.map(|order| [(order, Beside::Writes), (order, Beside::Nobody)]);
    let explored = all.into_iter().flatten().map(|(order, beside)| explore(order, beside, canary));
    let found: Vec<_> = explored.filter_map(Result::err).collect();
    assert!(found.iter().any(|why| says.iter().any(|says| why.contains(says))), "{found:?}");
}

/// Rule 3.
#[test]
fn an_addition_that_is_told_before_it_is_on_record_is_found() {
    is_found(MirrorCanary::AdditionToldEarly, &["nothing is on record"]);
}

/// Rule 6.
#[test]
fn a_new_leg_that_counts_before_its_last_flush_is_found() {
    is_found(MirrorCanary::InSyncBeforeFlush, &["block"]);
}

/// Rule 6.
#[test]
fn a_new_leg_of_which_not_all_is_copied_is_found() {
    is_found(MirrorCanary::NewLegByBits, &["block"]);
}

/// Whoever only looks changes nothing, and is told what comes.
#[test]
fn who_looks_changes_nothing() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    world.pass(3);
    let before = contents(&world);
    world.mirror.desk().ask(MirrorAsk::Add { uuid: UUID, leg: None, only_look: true });
    let looked = ended(&mut world).unwrap().leg.unwrap().label;
    world.pass(3);
    assert!(contents(&world) == before && standing_of(&world).len() == 2);
    let label = add(&mut world).unwrap();
    assert_eq!((looked.role, looked.parts, looked.whole), (2, label.parts.clone(), label.whole));
    let state = MirrorState::decode(&label.state).unwrap();
    assert_eq!(state.legs[2], LegState::Resyncing { at: NO_GENERATION.into() });
    assert_eq!(standing_of(&world)[2], Behind { at: NO_GENERATION.into() });
}

/// One that was cut off: the same leg is told of again, and may be given up.
#[test]
fn what_was_begun_goes_on() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    let first = add(&mut world).unwrap();
    world.mirror.desk().ask(MirrorAsk::Add { uuid: [0x77; 16], leg: None, only_look: false });
    let again = ended(&mut world).unwrap().leg.unwrap().label;
    assert_eq!((first.role, &first.parts), (again.role, &again.parts));
    assert_eq!(standing_of(&world).len(), 3);
    world.mirror.desk().ask(MirrorAsk::Remove(2));
    assert!(ended(&mut world).is_ok());
    assert!(matches!(standing_of(&world)[2], Removed { .. }));
    // Nobody waits for a part any more: a late one is refused, as it would be after the next opening.
    let late = leg(&part(&first)).unwrap();
    assert!(world.mirror.return_leg(2, late).is_err());
    let anew = add(&mut world).unwrap();
    assert_eq!(usize::from(anew.role), 2);
    bring(&mut world, part(&anew));
    world.heal().unwrap();
    assert_eq!(standing_of(&world), [InSync; 3]);
    assert_eq!(differ(&world.disks), None);
}

/// The row outlives a crash, and whoever comes then may fill it by its number. One that has data is not written over.
#[test]
fn a_row_that_is_described_is_filled_by_its_number() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    let first = add(&mut world).unwrap();
    let mut world = open(&contents(&world), MirrorCanary::None).unwrap();
    world.pass(1);
    let ask = |world: &mut World, leg| {
        world.mirror.desk().ask(MirrorAsk::Add { uuid: UUID, leg: Some(leg), only_look: false });
        ended(world).map(|done| done.leg.unwrap().label)
    };
    assert_eq!(ask(&mut world, 1), Err(MirrorAskError::HasData { leg: 1 }));
    assert_eq!(ask(&mut world, 3), Err(MirrorAskError::NoLeg { leg: 3 }));
    let label = ask(&mut world, 2).unwrap();
    assert_eq!(label.parts, first.parts);
    bring(&mut world, part(&label));
    assert_eq!(ask(&mut world, 2), Err(MirrorAskError::HasData { leg: 2 }));
    world.heal().unwrap();
    assert_eq!(standing_of(&world), [InSync; 3]);
    assert_eq!(differ(&world.disks), None);
}

/// The place of a removed leg is free when that is let go of.
#[test]
fn there_is_an_end_to_it() {
    let mut world = open(&legs(8), MirrorCanary::None).unwrap();
    assert_eq!(add(&mut world), Err(MirrorAskError::Full));
    world.mirror.desk().ask(MirrorAsk::Remove(7));
    assert!(ended(&mut world).is_ok());
    assert_eq!(add(&mut world), Err(MirrorAskError::Full));
    assert!(world.mirror.give_up_leg(7).is_some());
    world.disks.pop();
    let label = add(&mut world).unwrap();
    assert_eq!(label.role, 7);
    bring(&mut world, part(&label));
    world.heal().unwrap();
    assert_eq!(standing_of(&world), [InSync; 8]);
    assert_eq!(differ(&world.disks), None);
}

/// What only reads has no leg more, and one that is not fit does not come.
#[test]
fn what_cannot_be_added_is_told_of() {
    let disks: Vec<_> = legs(2).into_iter().flatten().map(|c| Disk::new(DISK_BYTES, c)).collect();
    let config = MirrorConfig { read_only: true, ..config(false) };
    let mirror = Mirror::open(disks.iter().map(leg).collect(), config).unwrap();
    let mut world = World::new(mirror, disks, Order::Turns, 5);
    assert_eq!(add(&mut world), Err(MirrorAskError::ReadOnly));

    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    let label = add(&mut world).unwrap();
    let other = Label {
        parts: label
            .parts
            .iter()
            .map(|part| LabelPart { uuid: [part.uuid[0] + 9; 16], ..*part })
            .collect(),
        ..label.clone()
    };
    let why = world.mirror.return_leg(2, leg(&part(&other)).unwrap()).unwrap_err();
    assert!(why.to_string().contains("nothing was written there"), "{why}");
    // It is waited for all the same.
    bring(&mut world, part(&label));
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}
