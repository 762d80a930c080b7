//! Legs that are replaced while their mirror is used: at every crash, and whichever leg is lost with that, all that was promised is there, as it was before; and whoever was told
//! that the old one is none finds it so.

use thinwire_volume::testing::SplitMix64;

use super::additions::{add, bring, legs, open, part};
use super::aftermath::{check_promise, fates, look};
use super::changes::{open_of, standing_of, wish};
use super::disk::Content;
use super::removals::ended;
use super::world::*;
use super::*;
use LegState::{Behind, InSync, Removed};

/// Leg 0 goes for leg 2.
const REPLACE: MirrorAsk = MirrorAsk::Replace { leg: 0, by: 2 };

fn is_removed(world: &World, leg: usize) -> bool {
    matches!(standing_of(world).get(leg), Some(Removed { .. }))
}

/// That is on record, for whoever asks.
fn is_over(world: &World) -> bool {
    world.mirror.report().legs.iter().all(|leg| leg.replaces.is_none())
}

fn replace(world: &mut World) {
    world.mirror.desk().ask(REPLACE);
    assert_eq!(ended(world), Ok(MirrorDone::of(DATA_BYTES)));
}

/// A crash that left this, of a mirror with two legs.
fn survives(
    moment: &Moment,
    after: &[Option<Content>],
    was_told: bool,
    canary: MirrorCanary,
) -> Result<bool, String> {
    // Any of them is lost besides.
    for lost in 0..after.len() {
        let mut some = after.to_vec();
        some[lost] = None;
        let world = open_of(DISK_BYTES, &some, wish(None, true), canary);
        let mut world = world.map_err(|why| format!("nothing is left without {lost}: {why}"))?;
        let seen = look(&mut world).map_err(|why| format!("without {lost}: {why}"))?;
        check_promise(moment, &seen).map_err(|why| format!("without {lost}: {why}"))?;
    }
    let mut world = open(after, canary)?;
    check_promise(moment, &look(&mut world)?)?;
    world.turn();
    if was_told && !is_removed(&world, 0) {
        return Err("it is a leg again".into());
    }
    world.heal()?;
    let is_one = |leg: &usize| !is_removed(&world, *leg);
    let there: Vec<_> = (0..after.len()).filter(is_one).collect();
    let disks: Vec<_> = there.iter().map(|leg| world.disks[*leg].clone()).collect();
    match differ(&disks) {
        Some(block) => Err(format!("legs {there:?} differ in block {block}")),
        None => Ok(is_removed(&world, 0)),
    }
}

/// At which moment the old leg was told to be none.
fn play(world: &mut World, writes: bool, canary: MirrorCanary) -> usize {
    world.note();
    world.write(SMALL, 2, 3, false);
    world.wait();
    world.flush();
    world.wait();
    if !writes {
        world.pass(4);
    }
    let label = add(world).unwrap();
    world.note();
    // An addition is another matter.
    world.mirror.canary = canary;
    bring(world, part(&label));
    replace(world);
    for stamp in 4..12 {
        if writes {
            world.write(SMALL + u64::from(stamp % 4), 1, stamp, stamp % 3 == 0);
        }
        world.turn();
        world.steps(3);
    }
    world.wait();
    for _ in 0..60 {
        if is_over(world) {
            break;
        }
        world.turn();
        if !world.step() {
            world.now = world.now + Duration::from_millis(100);
        }
    }
    for _ in 0..60 {
        if is_over(world) {
            break;
        }
        world.pass(1);
    }
    assert!(is_over(world), "it never ends");
    let told = world.moments.len();
    world.note();
    world.write(SMALL + 1, 1, 240, true);
    world.wait();
    world.pass(3);
    told
}

/// All crashes of a replacement: whether the old leg was one behind each.
fn explore(order: Order, writes: bool, canary: MirrorCanary) -> Result<(Vec<bool>, usize), String> {
    let start = legs(2).into_iter().flatten().collect();
    let mut world = World::open(start, order, 7);
    let told = play(&mut world, writes, canary);
    if canary == MirrorCanary::None
        && (!is_removed(&world, 0) || standing_of(&world)[1..] != [InSync; 2])
    {
        return Err(format!("in the end they stand so: {:?}", standing_of(&world)));
    }
    let (mut rng, mut met, mut count) = (SplitMix64::new(3), Vec::new(), 0);
    let step = if writes { 3 } else { 1 };
    for (nth, moment) in world.moments.iter().enumerate().step_by(step) {
        for fates in fates(&moment.disks, &mut rng, 4) {
            let disks = moment.disks.iter().zip(&fates);
            let after: Vec<_> = disks.map(|(disk, fates)| Some(disk.after(fates))).collect();
            let is_gone = survives(moment, &after, nth >= told, canary)
                .map_err(|why| format!("moment {nth} of {told}: {why}"))?;
            met.push(is_gone);
            count += 1;
        }
    }
    met.sort_unstable();
    met.dedup();
    Ok((met, count))
}

const ORDERS: [Order; 4] = [Order::Turns, Order::Last(0), Order::Last(2), Order::Random];

#[test]
fn there_are_never_fewer_legs_that_have_all() {
    for (order, writes) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let (met, count) = explore(order, writes, MirrorCanary::None)
            .unwrap_or_else(|why| panic!("{order:?}, {writes}: {why}"));
        assert_eq!(met, [false, true], "{order:?}, {writes}");
        assert!(count > 100, "only {count} crashes");
    }
}

#[track_caller]
fn is_found(canary: MirrorCanary, says: &str) {
    let all = ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]);
    let found: Vec<_> =
        all.filter_map(|(order, writes)| explore(order, writes, canary).err()).collect();
    assert!(found.iter().any(|why| why.contains(says)), "{found:?}");
}

/// Rule 6.
#[test]
fn a_leg_that_goes_before_the_new_one_has_all_is_found() {
    is_found(MirrorCanary::ReplacesEarly, "without");
}

/// Rule 6: the new one is taken for one that has all.
#[test]
fn a_leg_that_goes_before_the_last_flush_of_the_new_one_is_found() {
    is_found(MirrorCanary::InSyncBeforeFlush, "block");
}

/// Rule 3.
#[test]
fn a_leg_that_is_said_to_be_gone_before_that_is_on_record_is_found() {
    is_found(MirrorCanary::RemovalToldEarly, "again");
}

/// The old leg is the only one that has all: it is what is copied from, until the end.
#[test]
fn the_only_one_that_has_all_is_replaced() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    world.write(SMALL, 2, 3, true);
    world.wait();
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 4, true);
    world.wait();
    assert!(world.is_dropped(1));
    let label = add(&mut world).unwrap();
    bring(&mut world, part(&label));
    replace(&mut world);
    for stamp in 5..9 {
        world.write(SMALL + u64::from(stamp % 3), 1, stamp, true);
        world.wait();
    }
    world.pass(6);
    assert!(is_removed(&world, 0) && is_over(&world));
    assert!(matches!(standing_of(&world)[1..], [Behind { .. }, InSync]));
    // It goes on alone, and the other one gets what it lacks from it.
    world.bring_back(1);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks[1..]), None);
    assert_eq!(world.errors, 0);
}

/// One that is not there goes likewise, and not before.
#[test]
fn a_leg_that_is_away_is_replaced() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    world.disks[0].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 4, true);
    world.wait();
    assert!(world.is_dropped(0));
    let label = add(&mut world).unwrap();
    replace(&mut world);
    world.pass(3);
    assert!(!is_removed(&world, 0) && !is_over(&world), "nothing has come");
    bring(&mut world, part(&label));
    world.pass(6);
    assert!(is_removed(&world, 0) && is_over(&world));
    assert_eq!(differ(&world.disks[1..]), None);
}

/// The new one goes again: all is as it was, and the old one stays, whoever comes next.
#[test]
fn it_is_taken_back_by_removing_the_new_one() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    let label = add(&mut world).unwrap();
    bring(&mut world, part(&label));
    world.disks[2].hang(true);
    replace(&mut world);
    assert_eq!(world.mirror.report().legs[2].replaces, Some(0));
    world.mirror.desk().ask(MirrorAsk::Remove(2));
    assert!(ended(&mut world).is_ok());
    assert!(is_over(&world));
    assert!(world.mirror.give_up_leg(2).is_some());
    let label = add(&mut world).unwrap();
    assert_eq!(label.role, 2);
    bring(&mut world, part(&label));
    world.heal().unwrap();
    assert_eq!(standing_of(&world), [InSync; 3]);
}

/// The old leg is removed meanwhile, and another one comes in its place: it is not meant.
fn stays(canary: MirrorCanary) -> bool {
    let mut world = open(&legs(3), canary).unwrap();
    world.disks[2].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 4, true);
    world.wait();
    assert!(world.is_dropped(2));
    replace(&mut world);
    world.mirror.desk().ask(MirrorAsk::Remove(0));
    assert!(ended(&mut world).is_ok());
    assert!(world.mirror.give_up_leg(0).is_some());
    let label = add(&mut world).unwrap();
    assert_eq!(label.role, 0, "it has that place");
    bring(&mut world, part(&label));
    world.bring_back(2);
    world.heal().unwrap();
    world.pass(3);
    standing_of(&world) == [InSync; 3]
}

#[test]
fn who_comes_in_the_place_of_the_old_one_is_not_meant() {
    assert!(stays(MirrorCanary::None));
    assert!(!stays(MirrorCanary::ReplacesWhoeverIsThere));
}

#[test]
fn what_cannot_be_replaced_is_told_of() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    let ask = |world: &mut World, leg, by| {
        world.mirror.desk().ask(MirrorAsk::Replace { leg, by });
        ended(world)
    };
    assert_eq!(ask(&mut world, 2, 0), Err(MirrorAskError::NoLeg { leg: 2 }));
    assert_eq!(ask(&mut world, 0, 2), Err(MirrorAskError::NoLeg { leg: 2 }));
    assert_eq!(ask(&mut world, 1, usize::MAX), Err(MirrorAskError::NoLeg { leg: usize::MAX }));
    assert_eq!(ask(&mut world, 1, 1), Err(MirrorAskError::HasData { leg: 1 }));
    // A mirror has no fewer than two.
    assert_eq!(ask(&mut world, 0, 1), Err(MirrorAskError::Two));
    world.pass(2);
    assert_eq!(standing_of(&world), [InSync; 2]);
    assert!(is_over(&world));
    // What has been in sync for long goes at once.
    let mut world = open(&legs(3), MirrorCanary::None).unwrap();
    replace(&mut world);
    world.pass(2);
    assert!(is_removed(&world, 0) && is_over(&world));
}
