//! Snapshots of all legs, or of none (rule 13).

use thinwire_volume::{Completion, CutAct, ErrorKind};

use super::disk::Disk;
use super::world::{Order, SMALL, World, formatted, state};
use super::*;
use LegState::InSync;

/// A mirror of two legs that are in sync.
fn whole() -> World {
    let of = |leg: usize| formatted(leg, &state(9, &[InSync; 2]), [0, 0]);
    let mut world = World::open((0..2).map(of).collect(), Order::Turns, 1);
    world.is_recording = false;
    world.heal().unwrap();
    world
}

/// The second leg is dropped, over something that is written.
fn drop_second(world: &mut World) {
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 1, false);
    for _ in 0..200 {
        world.turn();
        if world.is_dropped(1) {
            return;
        }
        world.step();
    }
    panic!("it is not dropped");
}

/// A leg that has been told something does that, or fails it.
fn answer(disk: &Disk, kind: Option<ErrorKind>) {
    let io = disk.take_one_of(Op::Cut).expect("it was told");
    let result = kind.map_or(Ok(()), |kind| Err(io.error(kind, "leg")));
    disk.answer(Completion::new(io.token, result));
}

fn told(world: &World) -> [usize; 2] {
    [0, 1].map(|leg| world.disks[leg].queued_of(Op::Cut).len())
}

#[test]
fn all_legs_are_told_and_all_have_to_have_done_it() {
    for act in [CutAct::Take, CutAct::Ensure, CutAct::Keep, CutAct::Drop] {
        let mut world = whole();
        world.order(act);
        assert_eq!(told(&world), [1, 1], "{act:?}");
        answer(&world.disks[1], None);
        world.turn();
        assert_eq!(world.waiting(), 1, "{act:?}: the other one has not ended");
        answer(&world.disks[0], None);
        world.turn();
        assert_eq!((world.waiting(), world.errors), (0, 0), "{act:?}");
        world.order(act);
        answer(&world.disks[1], Some(ErrorKind::Invalid));
        answer(&world.disks[0], None);
        world.turn();
        assert_eq!((world.waiting(), world.errors), (0, 1), "{act:?}");
        assert!(!world.is_dropped(1), "it is no fault of the leg");
    }
}

/// What there is one tells for all.
#[test]
fn one_leg_says_which_there_are() {
    let mut world = whole();
    world.order(CutAct::Next);
    assert_eq!(told(&world), [1, 0]);
    answer(&world.disks[0], None);
    world.turn();
    assert_eq!((world.waiting(), world.errors), (0, 0));
}

/// Where a leg lacks something nothing is done: its snapshot would be of another moment, and of what is decided meanwhile it would not hear.
fn nothing_is_cut_while_a_leg_is_behind(canary: MirrorCanary) -> Result<(), String> {
    let mut world = whole();
    world.mirror.set_canary(canary);
    drop_second(&mut world);
    world.wait();
    for act in [CutAct::Take, CutAct::Keep] {
        world.order(act);
        world.turn();
        if told(&world) != [0, 0] {
            return Err(format!("{act:?}: legs are told: {:?}", told(&world)));
        }
    }
    assert_eq!((world.waiting(), world.errors), (0, 2));
    // It is in sync again.
    world.bring_back(1);
    world.heal()?;
    world.order(CutAct::Take);
    assert_eq!(told(&world), [1, 1]);
    Ok(())
}

#[test]
fn a_mirror_is_cut_as_a_whole() {
    nothing_is_cut_while_a_leg_is_behind(MirrorCanary::None).unwrap();
}

#[test]
fn a_cut_of_what_is_there_is_found() {
    let found = nothing_is_cut_while_a_leg_is_behind(MirrorCanary::CutsWhatIsThere);
    println!("found: {}", found.expect_err("it was not found"));
}

/// A leg that is dropped behind its answer is said to be behind in whatever the others do from then on: the whole is of two moments.
#[test]
fn a_leg_that_is_dropped_meanwhile_fails_it() {
    let mut world = whole();
    world.order(CutAct::Take);
    answer(&world.disks[1], None);
    let other = world.disks[0].take_one_of(Op::Cut).unwrap();
    world.turn();
    drop_second(&mut world);
    world.disks[0].answer(Completion::new(other.token, Ok(())));
    world.wait();
    assert_eq!(world.errors, 1);
}
