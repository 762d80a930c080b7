//! Legs that are removed while their mirror is used: at every crash the leg is one or it is none, whoever was told that it is none finds it so, and what was promised is there
//! without it.

use thinwire_volume::testing::SplitMix64;

use super::aftermath::{check_promise, fates, look};
use super::changes::{contents, open_of, standing_of, wish};
use super::disk::Content;
use super::world::*;
use super::*;
use LegState::Removed;

fn open(contents: &[Option<Content>], canary: MirrorCanary) -> Result<World, String> {
    open_of(DISK_BYTES, contents, wish(None, false), canary)
}

fn legs(count: usize) -> Vec<Option<Content>> {
    (0..count).map(|leg| Some(formatted(leg, &state(9, &vec![InSync; count]), [0, 0]))).collect()
}

/// Until what was asked for has ended.
pub(super) fn ended(world: &mut World) -> MirrorAnswer {
    let desk = world.mirror.desk();
    let (mut ended, end) = (Vec::new(), world.now + Duration::from_secs(60));
    loop {
        desk.poll_ended(&mut ended);
        if let Some((_, answer)) = ended.pop() {
            return answer;
        }
        world.turn();
        if !world.step() {
            world.now = world.now + Duration::from_millis(50);
            assert!(world.now < end, "it never ends");
        }
    }
}

fn is_removed(world: &World, leg: usize) -> bool {
    matches!(standing_of(world)[leg], Removed { .. })
}

/// All crashes of a removal while somebody writes: whether the leg was one behind each.
fn explore(leg: usize, canary: MirrorCanary) -> Result<Vec<bool>, String> {
    let mut world = open(&legs(3), canary)?;
    world.is_recording = true;
    world.note();
    world.write(SMALL, 2, 3, false);
    world.turn();
    world.steps(2);
    world.mirror.desk().ask(MirrorAsk::Remove(leg));
    world.write(SMALL + 1, 1, 4, true);
    assert_eq!(ended(&mut world), Ok(MirrorDone::of(DATA_BYTES)));
    let told = world.moments.len();
    world.note();
    world.write(SMALL + 2, 1, 5, true);
    world.wait();
    world.pass(5);
    let (mut rng, mut met) = (SplitMix64::new(3), Vec::new());
    for (nth, moment) in world.moments.iter().enumerate() {
        for fates in fates(&moment.disks, &mut rng, 16) {
            let disks = moment.disks.iter().zip(&fates);
            let after: Vec<_> = disks.map(|(disk, fates)| Some(disk.after(fates))).collect();
            // The removed one alone is never served once somebody was told.
            let mut alone: Vec<Option<Content>> = vec![None; 3];
            alone[leg] = after[leg].clone();
            if nth >= told && open(&alone, canary).is_ok() {
                return Err("the removed leg is served alone".into());
            }
            let mut world = open(&after, canary)?;
            check_promise(moment, &look(&mut world)?)?;
            world.turn();
            if nth >= told && !is_removed(&world, leg) {
                return Err("it is a leg again".into());
            }
            world.heal()?;
            let stands = is_removed(&world, leg);
            let kept = (0..3).filter(|other| !stands || *other != leg);
            let disks: Vec<_> = kept.map(|leg| world.disks[leg].clone()).collect();
            if let Some(block) = differ(&disks) {
                return Err(format!("legs differ in block {block}"));
            }
            met.push(stands);
        }
    }
    met.sort_unstable();
    met.dedup();
    Ok(met)
}

#[test]
fn a_leg_goes_at_once_or_not_at_all() {
    for leg in 0..3 {
        assert_eq!(explore(leg, MirrorCanary::None), Ok(vec![false, true]), "leg {leg}");
    }
}

/// Rule 3.
#[test]
fn a_removal_that_is_told_before_it_is_on_record_is_found() {
    let why = explore(1, MirrorCanary::RemovalToldEarly).unwrap_err();
    assert!(why.contains("again") || why.contains("alone"), "{why}");
}

#[test]
fn what_cannot_go_is_told_of() {
    let mut world = open(&legs(2), MirrorCanary::None).unwrap();
    world.is_recording = false;
    let ask = |world: &mut World, leg| {
        world.mirror.desk().ask(MirrorAsk::Remove(leg));
        ended(world)
    };
    assert_eq!(ask(&mut world, 1), Err(MirrorAskError::Two));
    assert_eq!(ask(&mut world, 7), Err(MirrorAskError::NoLeg { leg: 7 }));
    let mut world = open(&legs(3), MirrorCanary::None).unwrap();
    world.is_recording = false;
    for leg in [0, 1] {
        world.disks[leg].fail(Some(ErrorKind::Away));
    }
    world.write(0, 1, 1, false);
    world.wait();
    assert_eq!(ask(&mut world, 2), Err(MirrorAskError::LastInSync { leg: 2 }));
    // One that is behind goes, and then there are two.
    assert_eq!(ask(&mut world, 0), Ok(MirrorDone::of(DATA_BYTES)));
    assert!(is_removed(&world, 0));
    assert_eq!(ask(&mut world, 0), Err(MirrorAskError::NoLeg { leg: 0 }));
    world.write(SMALL, 1, 2, false);
    world.wait();
    let removed = world.disks[0].content();
    world.mirror.close();
    world.pass(3);
    assert_eq!(world.disks[0].content(), removed, "nothing is written there");
    let world = open(&contents(&world), MirrorCanary::None).unwrap();
    assert!(is_removed(&world, 0));
}

/// Rule 22: it is given up as a whole, and what it still answers is nobody's.
#[test]
fn what_is_outstanding_on_it_is_nobodys() {
    let mut world = open(&legs(3), MirrorCanary::None).unwrap();
    world.is_recording = false;
    world.write(0, 1, 1, false);
    world.wait();
    world.disks[1].hang(true);
    world.write(0, 1, 2, false);
    world.mirror.desk().ask(MirrorAsk::Remove(1));
    assert_eq!(ended(&mut world), Ok(MirrorDone::of(DATA_BYTES)));
    world.wait();
    assert_eq!(world.errors, 0);
    assert!(world.mirror.give_up_leg(1).is_some());
    world.disks[1].hang(false);
    world.write(0, 1, 3, false);
    world.wait();
    let disks = [world.disks[0].clone(), world.disks[2].clone()];
    assert_eq!(differ(&disks), None);
}
