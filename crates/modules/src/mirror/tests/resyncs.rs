//! Resyncs that something stands in the way of, and legs that come back by themselves.

use std::cell::RefCell;
use std::rc::Rc;

use super::disk::Disk;
use super::world::{Order, SMALL, World, config, differ, formatted, leg, state};
use thinwire_volume::LegAbsence;

use super::*;
use LegState::{Behind, InSync};

fn three() -> World {
    let contents = (0..3).map(|leg| formatted(leg, &state(9, &[InSync; 3]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world
}

/// Somebody writes into the region that is being copied, and a leg is away that is not copied to.
#[test]
fn a_resync_ends_beside_a_writer_when_another_leg_is_away() {
    let mut world = three();
    for disk in [2, 1] {
        world.disks[disk].fail(Some(ErrorKind::NoSpace));
        world.write(disk as u64, 1, 1, false);
        world.wait();
    }
    world.pass(1);
    world.bring_back(1);
    let mut count = 0_u8;
    while standing(&world)[1] != InSync {
        count += 1;
        assert!(count < 200, "it never ends");
        world.write(3, 1, count, false);
        world.wait();
        world.turn();
        world.now = world.now + Duration::from_millis(25);
        world.turn();
        world.steps(3);
    }
    assert!(matches!(standing(&world)[2], Behind { .. }));
    world.bring_back(2);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}

/// What cannot be read is passed over, and tried again when the rest is there for good.
#[test]
fn a_block_that_cannot_be_read_holds_up_its_region_only() {
    let behind = state(9, &[InSync, Behind { at: [8; 16].into() }]);
    let old = state(8, &[InSync; 2]);
    let contents = vec![formatted(0, &behind, [0b10; 2]), formatted(1, &old, [0; 2])];
    let mut world = World::open(contents, Order::Turns, 1);
    world.is_recording = false;
    world.disks[0].fail_block(Some(MIRROR_DATA_START / 4096));
    world.pass(4);
    let lacks: Vec<_> = world.mirror.legs().map(|(_, bytes)| bytes).collect();
    assert_eq!(lacks, [0, 1 << 20], "the second region is there, and flushed");
    assert!(world.mirror.report().is_held_up);
    let reads = |world: &mut World| {
        world.turn();
        let count = world.disks[0].queued();
        while world.step() {}
        count
    };
    assert_eq!(reads(&mut world), 0, "not again at once");
    world.now = world.now + Duration::from_secs(2);
    assert_ne!(reads(&mut world), 0);
    let copied = world.mirror.report().copied;
    world.write(SMALL, 1, 1, false);
    world.disks[0].fail_block(None);
    world.heal().unwrap();
    assert_eq!((differ(&world.disks), world.errors), (None, 0));
    assert!(!world.mirror.report().is_held_up);
    assert_eq!(world.mirror.report().copied - copied, 1 << 20, "that region, and no other");
}

/// What a keeper has done: which legs it was given, and how they were taken.
#[derive(Default)]
struct Kept {
    given: Vec<usize>,
    taken: Vec<Result<(), String>>,
    /// They are there again.
    is_back: bool,
    /// One of them is, with other content.
    failed: Option<usize>,
    /// How the legs stood last, each time that was another.
    seen: Vec<LegsInUse>,
    /// How often it was told that the mirror has stopped.
    stopped: usize,
}

/// Keeps the second of these.
struct Keeper {
    disks: Vec<Disk>,
    kept: Rc<RefCell<Kept>>,
}

impl LegKeeper for Keeper {
    fn keeps(&self, leg: usize) -> bool {
        leg == 1
    }

    fn give_up(&mut self, leg: usize, _: Box<dyn Volume>) {
        self.disks[leg].abandon();
        self.kept.borrow_mut().given.push(leg);
    }

    fn awaits(&self) -> bool {
        let kept = self.kept.borrow();
        kept.given.len() > kept.taken.len()
    }

    fn take(&mut self) -> Option<(usize, MirrorLeg)> {
        let is_back = self.kept.borrow().is_back;
        (is_back && self.awaits()).then(|| (1, leg(&self.disks[1]).unwrap()))
    }

    fn taken(&mut self, leg: usize, result: Result<(), MirrorError>) {
        assert_eq!(leg, 1);
        self.kept.borrow_mut().taken.push(result.map_err(|error| error.to_string()));
    }

    fn look(&mut self, legs: LegsInUse) {
        let seen = &mut self.kept.borrow_mut().seen;
        if seen.last() != Some(&legs) {
            seen.push(legs);
        }
    }

    fn stop(&mut self) {
        self.kept.borrow_mut().stopped += 1;
    }

    fn take_failed(&mut self) -> Option<usize> {
        self.kept.borrow_mut().failed.take()
    }

    fn absence(&self, leg: usize) -> LegAbsence {
        LegAbsence { retry_in: None, why: format!("leg {leg} is gone") }
    }
}

/// A mirror of so many legs, and what keeps the second of them.
fn with_keeper(legs: usize) -> (World, Rc<RefCell<Kept>>) {
    let state = state(9, &vec![InSync; legs]);
    let contents = (0..legs).map(|leg| formatted(leg, &state, [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    let kept = Rc::new(RefCell::new(Kept::default()));
    let keeper = Keeper { disks: world.disks.clone(), kept: kept.clone() };
    world.mirror.config.keeper = Some(Box::new(keeper));
    (world, kept)
}

/// Again and again, also in the middle of being copied to; one that nobody keeps stays away.
#[test]
fn a_leg_that_is_kept_comes_back_by_itself() {
    let (mut world, kept) = with_keeper(3);
    world.disks[2].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 1, false);
    world.wait();
    for round in 1..=3 {
        world.disks[1].fail(Some(ErrorKind::Away));
        world.write(SMALL + 1, 1, round, false);
        world.write(0, 1, round, false);
        world.wait();
        world.turn();
        let is_behind = matches!(standing(&world)[1], Behind { .. });
        assert!(is_behind, "{:?}", standing(&world));
        assert_eq!(kept.borrow().given, vec![1; usize::from(round)]);
        let wish = world.mirror.turn(world.now).since(world.now);
        assert!(wish <= Duration::from_millis(200), "it is to be told when to look: {wish:?}");
        world.disks[1].fail(None);
        kept.borrow_mut().is_back = true;
        world.now = world.now + Duration::from_millis(200);
        world.turn();
        world.steps(if round == 1 { 3 } else { 400 });
        kept.borrow_mut().is_back = false;
        assert_eq!(kept.borrow().taken, vec![Ok(()); usize::from(round)]);
    }
    world.pass(5);
    assert_eq!(standing(&world)[1], InSync);
    assert_eq!(differ(&world.disks[..2]), None);
    assert!(matches!(standing(&world)[2], Behind { .. }) && world.errors == 0);
}

/// Rule 18: what is back when the mirror has been fenced is not taken, and whoever brings it is told.
#[test]
fn a_mirror_that_was_fenced_takes_no_leg_back() {
    let (mut world, kept) = with_keeper(2);
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.turn();
    assert_eq!(kept.borrow().given, [1]);
    world.disks[0].fail(Some(ErrorKind::Fenced));
    world.write(SMALL, 1, 2, false);
    world.wait();
    assert_eq!(world.mirror.stopped, Some(ErrorKind::Fenced));
    world.disks[1].fail(None);
    kept.borrow_mut().is_back = true;
    world.pass(5);
    let kept = kept.borrow();
    assert_eq!((&kept.taken[..], kept.stopped), (&[][..], 1));
}

/// One that holds something else is refused, and not asked for again.
#[test]
fn a_leg_that_does_not_fit_is_refused_when_it_comes_back() {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    let kept = Rc::new(RefCell::new(Kept { is_back: true, ..Kept::default() }));
    let apart = state(20, &[Behind { at: [5; 16].into() }, InSync]);
    let other = Disk::new(world::DISK_BYTES, formatted(1, &apart, [0, 0]));
    let disks = vec![world.disks[0].clone(), other];
    world.mirror.config.keeper = Some(Box::new(Keeper { disks, kept: kept.clone() }));
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.pass(1);
    let taken = kept.borrow().taken.clone();
    let [Err(why)] = &taken[..] else { panic!("{taken:?}") };
    assert!(why.contains("apart"), "{why}");
    assert_eq!(world.errors, 0);
}

/// Also one that was found to be something else, and never written again.
#[test]
fn what_comes_in_the_place_of_a_leg_gets_all() {
    for stands in [InSync, Behind { at: [8; 16].into() }, LegState::Failed { at: [8; 16].into() }] {
        let on_record = state(9, &[InSync, stands]);
        let source = Disk::new(world::DISK_BYTES, formatted(0, &on_record, [0; 2]));
        let wish = OpeningWish { degraded: true, from: None, change: Some(LegChange::GiveUp(1)) };
        let legs = vec![leg(&source), None];
        let mirror = Mirror::open(legs, MirrorConfig { wish, ..config(false) }).unwrap();
        let mut world = World::new(mirror, vec![source.clone(), source.clone()], Order::Turns, 1);
        world.is_recording = false;
        world.write(SMALL + 1, 1, 7, false);
        world.pass(5);
        let known = MirrorState::decode(&leg(&source).unwrap().label.state).unwrap();
        assert_eq!(known.legs[1], Behind { at: NO_GENERATION.into() }, "{stands:?}");
        let new = known.of_replacement(1, [0xc0; 16]);
        let contents = vec![source.content(), formatted(1, &new, [0; 2])];
        let mut world = World::open(contents, Order::Turns, 1);
        world.is_recording = false;
        world.write(3, 1, 5, false);
        world.heal().unwrap();
        assert_eq!((differ(&world.disks), world.errors), (None, 0), "{stands:?}");
        world.read(SMALL + 1);
        world.wait();
        assert_eq!(world.reads[0].1[0], 7);
    }
}

/// A mirror whose second leg is away, and given up to whoever keeps it.
fn without_the_second() -> (World, Rc<RefCell<Kept>>) {
    let (mut world, kept) = with_keeper(2);
    world.pass(1);
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.pass(1);
    assert_eq!(kept.borrow().given, [1]);
    world.disks[1].fail(None);
    (world, kept)
}

/// Events that tell of the second leg that it is failed, and how it stands on record.
fn failed_on_record(canary: MirrorCanary) -> (usize, LegState) {
    let (mut world, kept) = without_the_second();
    world.mirror.set_canary(canary);
    let mut events = Vec::new();
    for _ in 0..3 {
        kept.borrow_mut().failed = Some(1);
        world.pass(1);
        world.mirror.poll_events(&mut events);
    }
    let failed = VolumeEvent::Leg { leg: 1, standing: LegStanding::Failed, of: None };
    let known = MirrorState::decode(&leg(&world.disks[0]).unwrap().label.state).unwrap();
    (events.iter().filter(|event| **event == failed).count(), known.legs[1])
}

/// Rule 16: it is told of once, and on record: also who opens the mirror again with it does not copy to it.
#[test]
fn a_leg_that_is_back_with_other_content_is_failed() {
    let (told, known) = failed_on_record(MirrorCanary::None);
    assert!(told == 1 && matches!(known, LegState::Failed { .. }), "{told}, {known:?}");
    let (told, known) = failed_on_record(MirrorCanary::FailsNobody);
    assert!(told == 0 && matches!(known, Behind { .. }), "{told}, {known:?}");
}

/// One that is in use, or is no leg, is not failed by what its keeper says.
#[test]
fn only_a_leg_that_was_given_up_is_failed() {
    let (mut world, kept) = without_the_second();
    for leg in [0, 2] {
        kept.borrow_mut().failed = Some(leg);
        world.pass(1);
    }
    kept.borrow_mut().is_back = true;
    world.pass(5);
    kept.borrow_mut().failed = Some(1);
    world.pass(1);
    assert_eq!(standing(&world), [InSync; 2]);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}

/// Whoever brings legs knows which the mirror goes without, and the mirror says what that one knows.
#[test]
fn who_brings_legs_is_told_how_they_stand() {
    let (mut world, kept) = without_the_second();
    let of = |in_sync, used, out| LegsInUse { in_sync, used, out, removed: 0 };
    let why = |world: &World, leg: usize| world.mirror.report().legs[leg].absence.why.clone();
    assert_eq!(kept.borrow().seen, [of(0b11, 0b11, 0), of(0b01, 0b01, 0)]);
    assert_eq!([why(&world, 0), why(&world, 1)], ["", "leg 1 is gone"]);
    kept.borrow_mut().is_back = true;
    world.pass(5);
    let seen = kept.borrow().seen.clone();
    assert_eq!(seen[2..], [of(0b01, 0b11, 0), of(0b11, 0b11, 0)]);
    assert_eq!(why(&world, 1), "");
    kept.borrow_mut().is_back = false;
    world.disks[1].fail(Some(ErrorKind::ContentChanged));
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.pass(1);
    assert_eq!(kept.borrow().seen.last(), Some(&of(0b01, 0b01, 0b10)));
}

/// A removed leg is out once that is on record.
#[test]
fn a_leg_that_is_removed_while_it_is_away_is_out() {
    let (mut world, kept) = with_keeper(3);
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.pass(1);
    world.mirror.desk().ask(MirrorAsk::Remove(1));
    world.turn();
    assert_eq!(kept.borrow().seen.last().unwrap().out, 0, "it is not on record");
    world.pass(1);
    assert_eq!(kept.borrow().seen.last().unwrap().out, 0b10);
}

/// Each is named with what was promised and what is there.
#[test]
fn what_does_not_fit_a_mirror_in_use_is_said() {
    let (mut world, _) = without_the_second();
    let known = world.disks[1].content();
    let mut refusal =
        |disk: Disk| world.mirror.return_leg(1, leg(&disk).unwrap()).unwrap_err().to_string();
    let other = Disk::new(world::DISK_BYTES, formatted(0, &state(9, &[InSync; 2]), [0, 0]));
    let says = refusal(other);
    for id in ["10101010", "11111111"] {
        assert!(says.contains(id), "{says}");
    }
    let disk = Disk::new(world::DISK_BYTES, known);
    disk.be_read_only();
    let says = refusal(disk);
    assert!(says.contains("volume 1, counted from 0, is read-only"), "{says}");
}

/// A write that found no room on any leg, which all have said before they did anything, and what becomes of the legs while they are full.
fn full_legs(canary: MirrorCanary) -> (World, String) {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.mirror.set_canary(canary);
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.pass(4);
    world.disks.iter().for_each(|disk| disk.be_full(true));
    world.write(SMALL, 1, 2, false);
    world.wait();
    assert_eq!(world.errors, 1);
    world.pass(10);
    let letters = letters(&world);
    (world, letters)
}

/// Rule 14: nobody is to be dropped because of what it has already.
#[test]
fn legs_without_room_stay_in_sync() {
    let (mut world, letters) = full_legs(MirrorCanary::None);
    assert_eq!(letters, "SS");
    world.disks.iter().for_each(|disk| disk.be_full(false));
    world.write(SMALL, 1, 3, false);
    world.wait();
    assert_eq!((world.errors, differ(&world.disks)), (1, None));
    let (_, letters) = full_legs(MirrorCanary::CopiesWhatIsAlike);
    assert_eq!(letters, "SB");
}

/// What one leg has and the other has no room for it lacks.
#[test]
fn a_leg_without_room_for_what_it_lacks_is_dropped() {
    let (mut world, letters) = full_legs(MirrorCanary::None);
    assert_eq!(letters, "SS");
    world.disks[0].be_full(false);
    world.write(SMALL, 1, 4, false);
    world.wait();
    assert_eq!((world.errors, &*super::letters(&world)), (1, "SB"));
    world.bring_back(1);
    world.pass(10);
    assert_eq!(super::letters(&world), "SB", "it still has no room");
    world.disks[1].be_full(false);
    world.bring_back(1);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}

/// What is zero takes no room on the leg that is copied to, whatever that had there; what only seems to be is written.
#[test]
fn zeroes_are_left_out_of_what_is_copied() {
    let copy_bytes = 128 << 10;
    let behind = state(9, &[InSync, Behind { at: [8; 16].into() }]);
    let mut content = formatted(0, &behind, [0b10, 0]);
    // The last byte of the second copy alone is not zero; and the first one of the fourth.
    for (block, at) in [(2 * copy_bytes / 4096 - 1, 4095), (3 * copy_bytes / 4096, 0)] {
        let mut bytes = [0; 4096];
        bytes[at] = 1;
        content.insert(MIRROR_DATA_START / 4096 + block, Rc::from(&bytes[..]));
    }
    let mut old = formatted(1, &state(8, &[InSync; 2]), [0; 2]);
    for block in 0..256 {
        old.insert(MIRROR_DATA_START / 4096 + block, Rc::from(&[7; 4096][..]));
    }
    let mut world = World::open(vec![content, old], Order::Turns, 1);
    world.is_recording = false;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..500 {
        for op in [Op::Write, Op::WriteZeroes] {
            let of_data = |(offset, _): &(u64, u64)| *offset >= MIRROR_DATA_START;
            let queued = world.disks[1].queued_of(op).into_iter().filter(of_data);
            seen.extend(
                queued.map(|(offset, len)| (offset - MIRROR_DATA_START, len, op == Op::Write)),
            );
        }
        world.turn();
        world.step();
    }
    let wanted: Vec<_> =
        (0..8).map(|nth| (nth * copy_bytes, copy_bytes, matches!(nth, 1 | 3))).collect();
    assert_eq!(Vec::from_iter(seen), wanted);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}
