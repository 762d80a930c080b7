//! Openings, one after the other: each is known by all legs before anybody writes, so that an old copy of a leg is found out
//! (rule 25), and a crash in the middle of one drops nobody.

use super::aftermath::fates;
use super::disk::{Content, Disk};
use super::world::{DISK_BYTES, Order, SMALL, World, config, differ, formatted, leg, state};
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
            let plan = decide(&seen.collect::<Vec<_>>(), OpeningWish::default())
                .map_err(|e| e.to_string())?;
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

/// Opened with this; none is missing but those that are not in `there`.
fn open_as(contents: &[Content], there: u8, wish: OpeningWish) -> Result<World, String> {
    let disks: Vec<_> =
        contents.iter().map(|content| Disk::new(DISK_BYTES, content.clone())).collect();
    let legs = disks.iter().enumerate();
    let legs = legs.map(|(nth, disk)| if there >> nth & 1 == 1 { leg(disk) } else { None });
    let config = MirrorConfig { wish, ..config(false) };
    let mirror = Mirror::open(legs.collect(), config).map_err(|e| e.to_string())?;
    let mut world = World::new(mirror, disks, Order::Turns, 1);
    world.is_recording = false;
    Ok(world)
}

const DEGRADED: OpeningWish = OpeningWish { degraded: true, from: None, change: None };

/// Served apart, with this in the first block of the second region.
fn served_apart() -> (Vec<Content>, [Identity; 3]) {
    let start = session(&clean(), MirrorCanary::None, 1);
    let mut apart = Vec::new();
    let mut known = [open(&start, MirrorCanary::None).mirror.identity(); 3];
    for nth in 0..2 {
        let mut world = open_as(&start, 1 << nth, DEGRADED).unwrap();
        world.write(SMALL + nth, 1, 5 + nth as u8, false);
        world.write(0, 1, 5 + nth as u8, false);
        world.pass(5);
        known[nth as usize] = world.mirror.identity();
        apart.push(world.disks[nth as usize].content());
    }
    (apart, known)
}

/// Rule 23: who remembers some of it does not take other data for that; and that lasts.
#[test]
fn what_may_be_other_data_is_another_incarnation() {
    let (apart, known) = served_apart();
    let incarnations = known.map(|known| known.incarnation);
    assert!(known.iter().all(|of| of.identity == known[0].identity), "its name stays");
    assert!((0..3).all(|nth| incarnations[nth] != incarnations[(nth + 1) % 3]));
    let again = open_as(&apart, 0b01, OpeningWish::default()).unwrap();
    assert_eq!(again.mirror.identity(), known[0]);
    let taken = open_as(&apart, 0b11, OpeningWish { degraded: false, from: Some(0), change: None })
        .unwrap();
    assert!(!known.contains(&taken.mirror.identity()));
}

/// Rule 7: somebody decides; and a crash at any moment leaves that, or asks again.
#[test]
fn one_that_was_served_apart_is_copied_from_the_one_that_is_taken() {
    let (apart, _) = served_apart();
    let refused = open_as(&apart, 0b11, OpeningWish::default()).err().unwrap();
    assert!(refused.contains("were written apart"), "{refused}");
    for from in 0..2 {
        let wish = OpeningWish { degraded: false, from: Some(from), change: None };
        let mut world = open_as(&apart, 0b11, wish).unwrap();
        world.is_recording = true;
        world.heal().unwrap();
        assert_eq!(differ(&world.disks), None);
        let (mut rng, mut counts) = (SplitMix64::new(1), [0, 0]);
        for moment in world.moments.iter().step_by(3) {
            for fates in fates(&moment.disks, &mut rng, 4) {
                let disks = moment.disks.iter().zip(&fates);
                let contents: Vec<_> = disks.map(|(disk, fates)| disk.after(fates)).collect();
                let opened = open_as(&contents, 0b11, OpeningWish::default());
                let is_known = opened.is_ok();
                let opened = opened.or_else(|_| open_as(&contents, 0b11, wish));
                let mut world = opened.unwrap();
                world.read(0);
                world.wait();
                assert_eq!(world.reads[0].1[0], 5 + from as u8);
                world.heal().unwrap();
                assert_eq!(differ(&world.disks), None);
                counts[usize::from(is_known)] += 1;
            }
        }
        assert!(counts[0] > 0 && counts[1] > 20, "{counts:?}");
    }
}

/// How large its blocks are is a promise to whoever uses it: it does not depend on the legs that are there.
#[test]
fn blocks_are_what_the_mirror_was_made_with() {
    let disks: Vec<_> = (0..2)
        .map(|leg| {
            let content = formatted(leg, &state(9, &[InSync; 2]), [0, 0]);
            Disk::new(DISK_BYTES, content)
        })
        .collect();
    let open = |small: &[usize], present: &[usize], degraded| {
        (0..2).for_each(|leg| disks[leg].set_block(if small.contains(&leg) { 512 } else { 4096 }));
        let legs = (0..2).map(|at| present.contains(&at).then(|| leg(&disks[at]))?);
        Mirror::open(legs.collect(), config(degraded))
    };
    for (small, present) in [(&[0, 1][..], &[0, 1][..]), (&[0], &[0]), (&[0], &[0, 1]), (&[], &[0])]
    {
        let mirror = open(small, present, true).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(mirror.geometry().block_bytes, 4096, "{small:?} {present:?}");
    }
    // One that was made with small ones has them, and takes no leg with others.
    for (at, disk) in disks.iter().enumerate() {
        let made = MirrorState { block_shift: 9, ..state(9, &[InSync; 2]) };
        disk.set_content(formatted(at, &made, [0, 0]));
    }
    let mirror = open(&[0, 1], &[0, 1], false).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(mirror.geometry().block_bytes, 512);
    let Err(error) = open(&[0], &[0, 1], false) else { panic!("leg 1 has larger blocks") };
    assert!(error.to_string().contains("made with blocks of 512"), "{error}");
}
