//! Openings, one after the other: each is known by all legs before anybody writes, so that an old copy of a leg is found out
//! (rule 25), and a crash in the middle of one drops nobody.

use super::aftermath::fates;
use super::disk::{Content, Disk};
use super::world::{DISK_BYTES, Order, SMALL, World, differ, formatted, leg, state};
use super::*;
use LegState::InSync;

fn clean() -> Vec<Content> {
    (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0])).collect()
}

fn open(contents: &[Content], canary: MirrorCanary) -> World {
    let mut world = World::open(contents.to_vec(), Order::Turns, 1);
    world.mirror.canary = canary;
    world.is_recording = false;
    world
}

fn contents(world: &World) -> Vec<Content> {
    world.disks.iter().map(Disk::content).collect()
}

/// Opens it, writes this, and leaves nothing open.
fn session(contents_before: &[Content], canary: MirrorCanary, stamp: u8) -> Vec<Content> {
    let mut world = open(contents_before, canary);
    world.write(SMALL, 1, stamp, false);
    world.wait();
    world.heal().unwrap();
    contents(&world)
}

/// What is read when leg 1 is as it was two, or more, sessions ago.
fn with_an_old_copy(canary: MirrorCanary, sessions: u8) -> Result<(), String> {
    let mut now = session(&clean(), canary, 1);
    let old = now[1].clone();
    for stamp in 0..sessions {
        now = session(&now, canary, 2 + stamp);
    }
    now[1] = old;
    let mut world = open(&now, canary);
    world.mirror.turn(world.now);
    let lacks: u64 = world.mirror.legs().map(|(_, bytes)| bytes).sum();
    for _ in 0..9 {
        world.read(SMALL);
        world.wait();
    }
    if world.reads.iter().any(|(_, bytes)| bytes[0] != 1 + sessions) {
        return Err("its old bytes are read".into());
    }
    world.heal()?;
    match differ(&world.disks) {
        Some(block) => Err(format!("legs differ in block {block}, which {lacks} do not cover")),
        None => Ok(()),
    }
}

#[test]
fn an_old_copy_of_a_leg_is_copied_whole() {
    for sessions in [1, 2, 30] {
        with_an_old_copy(MirrorCanary::None, sessions).unwrap();
    }
    let found = with_an_old_copy(MirrorCanary::QuietOpening, 1).unwrap_err();
    assert!(found.contains("legs differ"), "{found}");
}

/// A leg that was half copied is closed, copied on, and then put back as it was when it was half copied.
fn with_an_old_half(canary: MirrorCanary) -> Result<(), String> {
    let says = [InSync, LegState::Resyncing { at: [3; 16].into() }];
    let mut start = vec![
        formatted(0, &state(9, &says), [0b10, 0b10]),
        formatted(1, &state(3, &says), [0b10, 0b10]),
    ];
    for block in [0, SMALL] {
        start[0].insert(MIRROR_DATA_START / 4096 + block, vec![8; 4096].into());
    }
    let mut world = open(&start, canary);
    let join = |world: &mut World| {
        while world.mirror.active != 0b11 || world.mirror.record.is_changing() {
            world.turn();
            assert!(world.step());
        }
    };
    join(&mut world);
    let start = contents(&world);
    let (half, mut sources) = (start[1].clone(), Vec::new());
    let mut world = open(&start, canary);
    join(&mut world);
    while standing(&world)[1] != InSync {
        world.turn();
        match world.step() {
            true => sources.push(world.disks[0].content()),
            false => world.now = world.now + Duration::from_millis(10),
        }
    }
    for source in sources {
        let mut world = open(&[source, half.clone()], canary);
        world.heal()?;
        if let Some(block) = differ(&world.disks) {
            return Err(format!("legs differ in block {block}"));
        }
    }
    Ok(())
}

#[test]
fn an_old_half_of_a_copy_is_copied_whole() {
    with_an_old_half(MirrorCanary::None).unwrap();
    let found = with_an_old_half(MirrorCanary::MarkWithoutName).unwrap_err();
    assert!(found.contains("legs differ"), "{found}");
}

/// A crash at any moment of an opening: both legs had all data, and no more than what was open is copied.
fn crashes_of_an_opening(canary: MirrorCanary) -> Result<usize, String> {
    let start = session(&clean(), MirrorCanary::None, 1);
    let mut world = open(&start, canary);
    world.is_recording = true;
    world.read(SMALL);
    world.wait();
    let (mut rng, mut count) = (SplitMix64::new(1), 0);
    for moment in &world.moments {
        for fates in fates(&moment.disks, &mut rng, 64) {
            let disks = moment.disks.iter().zip(&fates);
            let contents: Vec<_> = disks.map(|(disk, fates)| disk.after(fates)).collect();
            let seen = contents.iter().map(|content| {
                let leg = leg(&Disk::new(DISK_BYTES, content.clone())).unwrap();
                Some(MirrorState::decode(&leg.label.state).unwrap())
            });
            let plan = decide(&seen.collect::<Vec<_>>(), false).map_err(|e| e.to_string())?;
            if (plan.current, plan.forgets) != (0b11, false) {
                return Err(format!("after {fates:?} a leg is taken for old: {plan:?}"));
            }
            // And once more, in the middle of the next.
            let mut again = open(&contents, canary);
            again.steps(count % 9);
            let moment: Vec<_> = again.disks.iter().map(Disk::content).collect();
            let mut last = open(&moment, canary);
            last.turn();
            if last.mirror.legs().any(|(state, _)| state != InSync) {
                return Err("after a second crash a leg is taken for old".into());
            }
            count += 1;
        }
    }
    Ok(count)
}

#[test]
fn a_crash_in_an_opening_drops_nobody() {
    let count = crashes_of_an_opening(MirrorCanary::None).unwrap();
    assert!(count > 20, "only {count} crashes");
    let found = crashes_of_an_opening(MirrorCanary::SinglePhase).unwrap_err();
    assert!(found.contains("taken for old"), "{found}");
}
