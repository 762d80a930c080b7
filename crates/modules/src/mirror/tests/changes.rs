//! Mirrors to which a leg is added, and from which one is removed: at every crash in between there are all legs of before, or all of behind, and whatever was
//! promised; and who was away meanwhile fits in when it is back.

use thinwire_volume::Identity;
use thinwire_volume::testing::SplitMix64;

use super::aftermath::{check_promise, fates, look};
use super::disk::{Content, Disk};
use super::world::*;
use super::*;
use crate::meta::{FoundLabel, LabelPart, SeenPart};
use LegState::{Behind, InSync, Removed, Resyncing};

const ADD: LegChange = LegChange::Add(LabelPart { uuid: [0x12; 16], bytes: DATA_BYTES });

pub(super) fn wish(change: Option<LegChange>, degraded: bool) -> OpeningWish {
    OpeningWish { degraded, from: None, change }
}

fn clean(legs: usize) -> Vec<Option<Content>> {
    (0..legs).map(|leg| Some(formatted(leg, &state(9, &vec![InSync; legs]), [0, 0]))).collect()
}

/// What is there, and what the labels make of it, in whatever order.
struct Seen {
    whole: FoundMirror,
    disks: Vec<Disk>,
    legs: Vec<Option<MirrorLeg>>,
}

fn find(contents: &[Option<Content>]) -> Result<Seen, String> {
    find_on(DISK_BYTES, contents)
}

/// On disks of so many bytes.
fn find_on(bytes: u64, contents: &[Option<Content>]) -> Result<Seen, String> {
    let there: Vec<_> = contents.iter().flatten().cloned().collect();
    let disks: Vec<_> = there.into_iter().map(|content| Disk::new(bytes, content)).collect();
    let legs: Vec<_> = disks.iter().map(leg).collect();
    let seen = |leg: &Option<MirrorLeg>| {
        let label = leg.as_ref()?.label.clone();
        let found = FoundLabel { label, passed_over: None };
        Some(SeenPart { found: Ok(Finding::Label(Box::new(found))), content: Identity::default() })
    };
    let seen: Vec<_> = legs.iter().map(seen).collect();
    let whole = find_mirror(&seen).map_err(|e| e.describe(&|place| format!("disk {place}")))?;
    Ok(Seen { whole, disks, legs })
}

fn open(
    contents: &[Option<Content>],
    wish: OpeningWish,
    canary: MirrorCanary,
) -> Result<World, String> {
    open_of(DISK_BYTES, contents, wish, canary)
}

/// As a program opens it, on disks of so many bytes.
pub(super) fn open_of(
    bytes: u64,
    contents: &[Option<Content>],
    wish: OpeningWish,
    canary: MirrorCanary,
) -> Result<World, String> {
    let Seen { whole, disks, legs: mut found } = find_on(bytes, contents)?;
    let legs = whole.places.iter().enumerate().map(|(leg, place)| {
        let at = found[(*place)?].take()?;
        Some(MirrorLeg { label: whole.label(leg, at.label.clone()), ..at })
    });
    let config = MirrorConfig { wish, ..config(false) };
    let mut mirror = Mirror::open(legs.collect(), config).map_err(|e| e.to_string())?;
    mirror.canary = canary;
    let mut world = World::new(mirror, disks, Order::Turns, 5);
    world.is_recording = false;
    Ok(world)
}

pub(super) fn contents(world: &World) -> Vec<Option<Content>> {
    world.disks.iter().map(|disk| Some(disk.content())).collect()
}

pub(super) fn standing_of(world: &World) -> Vec<LegState> {
    world.mirror.legs().map(|(state, _)| state).collect()
}

/// It comes up as promised, whether one of its legs is there or all, and heals: how many legs it has.
fn survives(
    moment: &Moment,
    after: &[Option<Content>],
    canary: MirrorCanary,
) -> Result<usize, String> {
    for missing in 0..after.len() {
        let mut some = after.to_vec();
        some[missing] = None;
        if let Ok(mut world) = open(&some, wish(None, false), canary) {
            let seen = look(&mut world)?;
            check_promise(moment, &seen).map_err(|why| format!("without leg {missing}: {why}"))?;
        }
    }
    let mut world = open(after, wish(None, false), canary)?;
    let seen = look(&mut world)?;
    check_promise(moment, &seen)?;
    world.heal()?;
    let stands = standing_of(&world);
    let kept: Vec<_> = (0..world.disks.len()).filter(|leg| stands[*leg] == InSync).collect();
    let disks: Vec<_> = kept.iter().map(|leg| world.disks[*leg].clone()).collect();
    match differ(&disks) {
        Some(block) => Err(format!("legs differ in block {block}")),
        None => Ok(stands.len() + stands.iter().filter(|s| matches!(s, Removed { .. })).count()),
    }
}

/// All crashes of that change, while somebody writes: the numbers that were met.
fn explore(
    before: &[Option<Content>],
    change: Option<LegChange>,
    canary: MirrorCanary,
) -> Result<(Vec<usize>, usize), String> {
    let mut world = open(before, wish(change, false), canary)?;
    world.is_recording = true;
    world.note();
    world.write(SMALL, 2, 3, false);
    world.wait();
    world.flush();
    world.wait();
    world.write(SMALL + 1, 1, 4, true);
    world.wait();
    world.pass(5);
    let (mut rng, mut met, mut count) = (SplitMix64::new(3), Vec::new(), 0);
    for moment in &world.moments {
        for fates in fates(&moment.disks, &mut rng, 64) {
            let disks = moment.disks.iter().zip(&fates);
            let after: Vec<_> = disks.map(|(disk, fates)| Some(disk.after(fates))).collect();
            met.push(survives(moment, &after, canary)?);
            count += 1;
        }
    }
    met.sort_unstable();
    met.dedup();
    Ok((met, count))
}

#[test]
fn a_leg_is_added_at_once_or_not_at_all() {
    let (met, count) = explore(&clean(2), Some(ADD), MirrorCanary::None).unwrap();
    assert_eq!(met, [2, 3]);
    assert!(count > 80, "only {count}");
}

#[test]
fn a_leg_is_removed_at_once_or_not_at_all() {
    for leg in 0..3 {
        let change = Some(LegChange::Remove(leg));
        let (met, count) = explore(&clean(3), change, MirrorCanary::None).unwrap();
        assert_eq!(met, [3, 4], "leg {leg}");
        assert!(count > 80, "only {count}");
    }
}

/// A new leg, as `volume add` makes it behind that.
fn with_new_leg(world: &World) -> Vec<Option<Content>> {
    let known = leg(&world.disks[0]).unwrap().label;
    let known = MirrorState::decode(&known.state).unwrap();
    assert_eq!(known.legs[2], Behind { at: NO_GENERATION.into() });
    let mut all = contents(world);
    all.push(Some(formatted(2, &known.of_replacement(2, [0xc0; 16]), [0; 2])));
    all
}

fn added() -> Vec<Option<Content>> {
    let mut world = open(&clean(2), wish(Some(ADD), false), MirrorCanary::None).unwrap();
    for block in [5, 100] {
        world.write(block, 1, 9, false);
    }
    world.wait();
    world.heal().unwrap();
    with_new_leg(&world)
}

/// Until the last flush of its resync it has no say (rule 6): at each crash it is copied to, and never believed.
#[test]
fn an_added_leg_counts_when_it_has_all() {
    let (met, count) = explore(&added(), None, MirrorCanary::None).unwrap();
    assert_eq!(met, [3]);
    assert!(count > 80, "only {count}");
    let why = explore(&added(), None, MirrorCanary::InSyncBeforeFlush).unwrap_err();
    assert!(why.contains("legs differ") || why.contains("reads as"), "{why}");
}

/// One that was away when another was added knows of fewer legs; it gets what it lacks, and no more, at the next opening or while the mirror is in use.
#[test]
fn who_was_away_when_a_leg_was_added_fits_in() {
    let mut world = open(&clean(2), wish(None, false), MirrorCanary::None).unwrap();
    world.write(0, 1, 1, false);
    world.wait();
    world.pass(5);
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 2, false);
    world.wait();
    world.pass(5);
    let away = Some(world.disks[1].content());
    let alone = [Some(world.disks[0].content()), None];
    let mut world = open(&alone, wish(Some(ADD), false), MirrorCanary::None).unwrap();
    world.write(SMALL + 1, 1, 3, false);
    world.wait();
    world.heal().unwrap();
    assert_eq!(standing_of(&world).len(), 3);
    let one = Some(world.disks[0].content());
    // As it is in use.
    let back = Disk::new(DISK_BYTES, away.clone().unwrap());
    world.mirror.return_leg(1, leg(&back).unwrap()).unwrap();
    world.disks.push(back);
    let lacks = |world: &World| world.mirror.legs().map(|(_, lacks)| lacks).collect::<Vec<_>>();
    world.turn();
    assert_eq!(lacks(&world)[1], 1 << 20, "the region that was written");
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
    // At the next opening, in any order.
    for order in [[0, 1], [1, 0]] {
        let all = [&one, &away];
        let mut world =
            open(&order.map(|at| all[at].clone()), wish(None, false), MirrorCanary::None).unwrap();
        world.turn();
        world.steps(3);
        assert!(lacks(&world)[1] <= 1 << 20, "{:?}", lacks(&world));
        world.heal().unwrap();
        assert_eq!((differ(&world.disks), standing_of(&world).len()), (None, 3));
    }
}

/// Who added a leg alone, and was given up for that, has added none; and of two who went apart somebody takes one.
#[test]
fn the_newest_says_which_legs_there_are() {
    let mut world = open(&clean(2), wish(None, false), MirrorCanary::None).unwrap();
    world.write(0, 1, 1, false);
    world.wait();
    world.mirror.close();
    world.pass(2);
    let [one, two] = [0, 1].map(|disk: usize| Some(world.disks[disk].content()));
    let alone = |content: &Option<Content>, leg: usize, change| {
        let mut both = [None, None];
        both[leg] = content.clone();
        let mut world = open(&both, wish(change, true), MirrorCanary::None).unwrap();
        world.write(SMALL, 1, 10 + leg as u8, false);
        world.wait();
        world.pass(5);
        Some(world.disks[0].content())
    };
    let (added, plain) = (alone(&one, 0, Some(ADD)), alone(&two, 1, None));
    for both in [[&added, &plain], [&plain, &added]] {
        let both = both.map(Clone::clone);
        let why = open(&both, wish(None, false), MirrorCanary::None).err().unwrap();
        assert!(why.contains("apart"), "{why}");
        for from in [0, 1] {
            let wish = OpeningWish { from: Some(from), ..wish(None, false) };
            let mut world = open(&both, wish, MirrorCanary::None).unwrap();
            world.heal().unwrap();
            assert_eq!(differ(&world.disks), None);
            world.read(SMALL);
            world.wait();
            assert_eq!(world.reads[0].1[0], 10 + from as u8);
        }
    }
    // The other one as it was before that is older.
    let mut world = open(&[added, two], wish(None, false), MirrorCanary::None).unwrap();
    world.heal().unwrap();
    assert_eq!((differ(&world.disks), standing_of(&world).len()), (None, 3));
}

#[test]
fn what_was_removed_is_old_for_good_and_its_place_is_free() {
    let mut world =
        open(&clean(3), wish(Some(LegChange::Remove(1)), false), MirrorCanary::None).unwrap();
    world.write(SMALL, 1, 2, false);
    world.wait();
    world.mirror.close();
    world.pass(3);
    let removed = Some(world.disks[1].content());
    let [one, three] = [0, 2].map(|disk: usize| Some(world.disks[disk].content()));
    let mut rest = [one, None, three];
    // More openings than a history has: it is known all the same.
    for nth in 0..40 {
        let mut world = open(&rest, wish(None, false), MirrorCanary::None).unwrap();
        world.write(0, 1, nth, false);
        world.wait();
        world.mirror.close();
        world.pass(3);
        rest = [Some(world.disks[0].content()), None, Some(world.disks[1].content())];
    }
    let with = [rest[0].clone(), removed.clone(), rest[2].clone()];
    let mut world = open(&with, wish(None, false), MirrorCanary::None).unwrap();
    world.write(SMALL, 1, 7, false);
    world.wait();
    world.heal().unwrap();
    assert!(matches!(standing_of(&world)[..], [InSync, Removed { .. }, InSync]));
    assert_eq!(world.disks[1].content(), removed.clone().unwrap(), "nothing is written there");
    let report = world.mirror.report();
    assert_eq!(report.legs[1].standing, thinwire_volume::LegStanding::Removed);
    // The last that has all data is not removed, nor one that there is not.
    for (change, content) in [(LegChange::Remove(0), &rest[0]), (LegChange::Remove(7), &rest[0])] {
        let only = [content.clone(), None, None];
        assert!(open(&only, wish(Some(change), true), MirrorCanary::None).is_err());
    }
    // Another part in its place is copied whole.
    let mut world =
        open(&rest, wish(Some(LegChange::GiveUp(1)), false), MirrorCanary::None).unwrap();
    world.pass(3);
    let known = MirrorState::decode(&leg(&world.disks[0]).unwrap().label.state).unwrap();
    let new = Some(formatted(1, &known.of_replacement(1, [0xc0; 16]), [0; 2]));
    let all = [Some(world.disks[0].content()), new, Some(world.disks[1].content())];
    let mut world = open(&all, wish(None, false), MirrorCanary::None).unwrap();
    world.heal().unwrap();
    assert_eq!((differ(&world.disks), standing_of(&world)), (None, vec![InSync; 3]));
}

/// Legs that were served apart after one was removed: that one is none, whichever is taken for the truth. Where only one of them knows of that, whoever is
/// taken says so.
#[test]
fn a_leg_that_was_removed_is_none_also_where_nobody_knows_which_is_right() {
    let after = |all: &[Option<Content>], change, degraded| {
        let mut world = open(all, wish(change, degraded), MirrorCanary::None).unwrap();
        world.write(SMALL, 1, 2, false);
        world.wait();
        world.mirror.close();
        world.pass(3);
        contents(&world)
    };
    let remove = Some(LegChange::Remove(1));
    let all = after(&clean(3), None, false);
    let without = after(&all, remove, false);
    let only = |all: &[Option<Content>], leg: usize| {
        let mut only = vec![None; 3];
        only[leg] = all[leg].clone();
        only
    };
    let apart = |all: &[Option<Content>], changes: [Option<LegChange>; 2]| {
        let [one, other] = [(0, changes[0]), (2, changes[1])]
            .map(|(leg, change)| after(&only(all, leg), change, true).remove(0));
        [one, None, other]
    };
    let described = |all: &[Option<Content>]| {
        let whole = find(all).unwrap().whole;
        let plan = whole.plan(wish(None, false));
        assert!(matches!(plan, Err(OpeningRefusal::SplitBrain { .. })), "{plan:?}");
        [None, Some(0), Some(2)].map(|from| whole.described_for(from))
    };
    let both = apart(&without, [None; 2]);
    assert_eq!(described(&both), [[0, 2]; 3]);
    let whole = find(&both).unwrap().whole;
    assert_eq!(whole.described(), [0, 2]);
    for from in [0, 2] {
        let wish = OpeningWish { from: Some(from), ..wish(None, false) };
        let mut world = open(&both, wish, MirrorCanary::None).unwrap();
        world.heal().unwrap();
        assert!(matches!(standing_of(&world)[..], [InSync, Removed { .. }, InSync]));
    }
    // One of them has removed it by itself.
    let one = apart(&all, [remove, None]);
    assert_eq!(described(&one), [vec![0, 1, 2], vec![0, 2], vec![0, 1, 2]]);
}

/// Two that each added another leg are not put together, whatever else they say; and there is an end to it.
#[test]
fn lists_that_do_not_agree_are_refused() {
    let other = LegChange::Add(LabelPart { uuid: [0x99; 16], bytes: DATA_BYTES });
    let alone = |leg: usize, change| {
        let mut both = clean(2);
        both[1 - leg] = None;
        let mut world = open(&both, wish(Some(change), true), MirrorCanary::None).unwrap();
        world.pass(3);
        Some(world.disks[0].content())
    };
    let both = [alone(0, ADD), alone(1, other)];
    let why = open(&both, wish(None, false), MirrorCanary::None).err().unwrap();
    assert!(why.contains("the list of parts"), "{why}");
    let why = open(&clean(8), wish(Some(ADD), false), MirrorCanary::None).err().unwrap();
    assert!(why.contains("8 legs at most"), "{why}");
}

/// Rules 16 and 25: of a leg that is taken for what its label says, though its content is another, nobody knows how old it is.
#[test]
fn a_leg_that_was_adopted_is_copied_whole_where_another_was_not() {
    let fresh = clean(2);
    for adopted in [&[0][..], &[1], &[0, 1]] {
        let Seen { mut whole, .. } = find(&fresh).unwrap();
        whole.distrust(adopted);
        let plan = whole.plan(wish(None, false)).unwrap();
        match *adopted {
            [leg] => {
                assert_eq!(
                    (plan.current, &plan.resync[..]),
                    (1 << (1 - leg), &[(leg, ResyncExtent::Full)][..])
                );
            }
            // Nobody is left who could know better.
            _ => assert_eq!((plan.current, plan.resync), (0b11, vec![])),
        }
    }
    // Also one that is on record as behind, or being copied to, which else gets what its bits say.
    let left = state(8, &[InSync; 2]);
    for stands in [Behind { at: [8; 16].into() }, Resyncing { at: [8; 16].into() }] {
        let newest = state(9, &[InSync, stands]);
        for own in [InSync, stands] {
            let own = MirrorState { legs: vec![InSync, own], ..left.clone() };
            let say = [(0, &newest), (1, &own)];
            let contents = say.map(|(leg, says)| Some(formatted(leg, says, [0, 0b10])));
            for (adopted, extent) in [(&[][..], ResyncExtent::Bitmap), (&[1], ResyncExtent::Full)] {
                let Seen { mut whole, .. } = find(&contents).unwrap();
                whole.distrust(adopted);
                let plan = whole.plan(wish(None, false)).unwrap();
                assert_eq!((plan.current, plan.resync), (1, vec![(1, extent)]), "{stands:?}");
            }
        }
    }
}
