//! Mirrors that grow while they are used: at every crash in between they have the size of before, or that of behind, on all legs; nobody reads what stood there
//! before, and legs are alike there.

use thinwire_volume::testing::SplitMix64;

use super::aftermath::{check_promise, fates, look};
use super::changes::{contents, open_of, standing_of, wish};
use super::disk::{BLOCK, Content, at};
use super::world::*;
use super::*;
use LegState::Removed;

/// Three regions more, the last of two blocks.
const LARGE_BYTES: u64 = DATA_BYTES + (2 << 20) + 2 * BLOCK;
const LARGE_DISK: u64 = MIRROR_DATA_START + LARGE_BYTES;
/// The first block that it grows by, and one far behind that.
const NEW: u64 = DATA_BYTES / BLOCK;
const LAST: u64 = LARGE_BYTES / BLOCK - 1;

/// Legs of before on larger disks, on which something else stands behind.
fn small(legs: usize) -> Vec<Option<Content>> {
    let leg = |leg: usize| {
        let mut content = formatted(leg, &state(9, &vec![InSync; legs]), [0, 0]);
        for block in NEW..=LAST {
            let garbage = [0xe0 + leg as u8; BLOCK as usize];
            content.insert(MIRROR_DATA_START / BLOCK + block, garbage[..].into());
        }
        Some(content)
    };
    (0..legs).map(leg).collect()
}

fn open(contents: &[Option<Content>], canary: MirrorCanary) -> Result<World, String> {
    open_of(LARGE_DISK, contents, wish(None, false), canary)
}

/// Drives it until what was asked for has ended.
fn ended(world: &mut World) -> MirrorAnswer {
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

fn grow(world: &mut World) -> MirrorAnswer {
    world.mirror.desk().ask(MirrorAsk::Grow);
    ended(world)
}

/// What stands in blocks that it has grown by.
fn look_behind(world: &mut World, moment: &Moment) -> Result<(), String> {
    for block in [NEW, NEW + 1, LAST] {
        world.reads.clear();
        world.read(block);
        world.wait();
        let Some((_, bytes)) = world.reads.pop() else { return Err("a read fails".into()) };
        for sector in bytes.chunks(512) {
            if sector.iter().any(|byte| *byte != sector[0]) || !moment.allows(block, sector[0]) {
                return Err(format!("block {block} reads as {}", sector[0]));
            }
        }
    }
    Ok(())
}

/// Its size after a crash, whatever legs are there.
fn survives(
    moment: &Moment,
    after: &[Option<Content>],
    is_told: bool,
    canary: MirrorCanary,
) -> Result<u64, String> {
    let check = |world: &mut World| {
        check_promise(moment, &look(world)?)?;
        let bytes = world.mirror.geometry().bytes;
        match bytes {
            LARGE_BYTES => look_behind(world, moment)?,
            DATA_BYTES if !is_told => {}
            _ => return Err(format!("it has {bytes} bytes")),
        }
        Ok::<_, String>(bytes)
    };
    for missing in 0..after.len() {
        let mut some = after.to_vec();
        some[missing] = None;
        if let Ok(mut world) = open(&some, canary) {
            check(&mut world).map_err(|why| format!("without leg {missing}: {why}"))?;
        }
    }
    let mut world = open(after, canary)?;
    let bytes = check(&mut world)?;
    world.heal()?;
    let disks: Vec<_> = world.disks.iter().map(Disk::content).collect();
    let first = MIRROR_DATA_START / BLOCK;
    let differs = |block: &u64| {
        disks.iter().any(|disk| at(disk, first + block) != at(&disks[0], first + block))
    };
    match (0..bytes / BLOCK).find(differs) {
        Some(block) => Err(format!("legs differ in block {block}")),
        None => Ok(bytes),
    }
}

/// All crashes of a growth, while somebody writes: the sizes that were met, and how many.
fn explore(legs: usize, canary: MirrorCanary) -> Result<(Vec<u64>, usize), String> {
    let mut world = open(&small(legs), canary)?;
    world.is_recording = true;
    world.note();
    world.write(SMALL, 2, 3, false);
    world.mirror.desk().ask(MirrorAsk::Grow);
    world.write(SMALL + 1, 1, 4, true);
    assert_eq!(ended(&mut world), Ok(MirrorDone::of(LARGE_BYTES)));
    let told = world.moments.len();
    world.note();
    assert_eq!(world.mirror.geometry().bytes, LARGE_BYTES);
    world.write(NEW, 1, 5, true);
    world.write(LAST, 1, 6, false);
    world.wait();
    world.flush();
    world.wait();
    world.pass(5);
    let (mut rng, mut met, mut count) = (SplitMix64::new(3), Vec::new(), 0);
    for (nth, moment) in world.moments.iter().enumerate() {
        for fates in fates(&moment.disks, &mut rng, 4) {
            let disks = moment.disks.iter().zip(&fates);
            let after: Vec<_> = disks.map(|(disk, fates)| Some(disk.after(fates))).collect();
            met.push(survives(moment, &after, nth >= told, canary)?);
            count += 1;
        }
    }
    met.sort_unstable();
    met.dedup();
    Ok((met, count))
}

/// Rule 24.
#[test]
fn it_grows_at_once_or_not_at_all() {
    let (met, count) = explore(2, MirrorCanary::None).unwrap();
    assert_eq!(met, [DATA_BYTES, LARGE_BYTES]);
    assert!(count > 80, "only {count}");
}

#[test]
fn what_it_would_grow_by_unzeroed_is_found() {
    let why = explore(2, MirrorCanary::GrowsUnzeroed).unwrap_err();
    assert!(why.contains("reads as") || why.contains("legs differ"), "{why}");
}

#[test]
fn a_size_that_comes_before_its_generation_is_found() {
    let why = explore(2, MirrorCanary::GrowsWhenAnnounced).unwrap_err();
    assert!(why.contains("different sizes"), "{why}");
}

#[test]
fn it_tells_of_its_size_and_is_the_same_mirror() {
    let mut world = open(&small(2), MirrorCanary::None).unwrap();
    world.is_recording = false;
    let before = (world.mirror.identity(), world.mirror.events());
    assert_eq!(grow(&mut world), Ok(MirrorDone::of(LARGE_BYTES)));
    assert!(world.mirror.events() > before.1);
    let mut events = Vec::new();
    world.mirror.poll_events(&mut events);
    assert!(events.contains(&VolumeEvent::Resized { bytes: LARGE_BYTES }), "{events:?}");
    assert_eq!(world.mirror.identity(), before.0);
    // There is no more.
    assert_eq!(grow(&mut world), Err(MirrorAskError::NoRoom { leg: 0 }));
    world.mirror.close();
    world.pass(3);
    let world = open(&contents(&world), MirrorCanary::None).unwrap();
    assert_eq!((world.mirror.geometry().bytes, world.mirror.identity()), (LARGE_BYTES, before.0));
}

/// One that is dropped while it grows fits in when it is back, although its label says less; and so does one that was not told before a crash.
#[test]
fn a_leg_that_was_dropped_meanwhile_fits_in() {
    let mut met = Vec::new();
    for at in (0..140).step_by(3) {
        let mut world = open(&small(2), MirrorCanary::None).unwrap();
        world.is_recording = false;
        world.write(0, 1, 1, false);
        world.wait();
        world.mirror.desk().ask(MirrorAsk::Grow);
        for _ in 0..at {
            world.turn();
            if !world.step() {
                world.now = world.now + Duration::from_millis(50);
            }
        }
        world.disks[1].fail(Some(ErrorKind::Away));
        let grown = ended(&mut world);
        world.write(SMALL, 1, 2, false);
        world.wait();
        world.pass(1);
        if grown.is_ok() {
            world.write(LAST, 1, 3, false);
            world.wait();
        }
        world.pass(1);
        met.push((grown.is_ok(), world.is_dropped(1)));
        if world.is_dropped(1) {
            // While it is in use, and at the next opening.
            let all = contents(&world);
            world.bring_back(1);
            world.heal().unwrap();
            let (written, records) = (world.written.clone(), (0, 0));
            let moment = Moment { disks: Vec::new(), written, records };
            let next = contents(&world);
            survives(&moment, &next, grown.is_ok(), MirrorCanary::None).unwrap();
            survives(&moment, &all, grown.is_ok(), MirrorCanary::None).unwrap();
        }
    }
    for wanted in [(false, true), (true, true)] {
        assert!(met.contains(&wanted), "{wanted:?} of {met:?}");
    }
}

#[test]
fn it_does_not_grow_without_all_of_its_legs_or_beyond_its_bitmaps() {
    let mut all = small(3);
    all[2] = None;
    let wish = OpeningWish { degraded: true, ..wish(None, false) };
    let mut world = open_of(LARGE_DISK, &all, wish, MirrorCanary::None).unwrap();
    world.is_recording = false;
    world.pass(1);
    assert_eq!(grow(&mut world), Err(MirrorAskError::NotInSync { leg: 2 }));
    let mut world =
        open_of(DISK_BYTES + 100, &small(2), super::changes::wish(None, false), MirrorCanary::None)
            .unwrap();
    assert_eq!(grow(&mut world), Err(MirrorAskError::NoRoom { leg: 0 }), "less than a block");
    // Regions of 1 MiB, of which there are 516096.
    let most = 516_096 << 20;
    let mut world = open_of(
        MIRROR_DATA_START + most + BLOCK,
        &small(2),
        super::changes::wish(None, false),
        MirrorCanary::None,
    )
    .unwrap();
    world.is_recording = false;
    for disk in &world.disks {
        disk.be_prompt(true);
    }
    world.mirror.desk().ask(MirrorAsk::Grow);
    // As it is put on record, without zeroing so much.
    world.mirror.canary = MirrorCanary::GrowsUnzeroed;
    assert_eq!(ended(&mut world), Ok(MirrorDone::of(most)));
    assert_eq!(grow(&mut world), Err(MirrorAskError::Bitmaps { bytes: most }));
    assert!(!standing_of(&world).iter().any(|stands| matches!(stands, Removed { .. })));
}

/// How it ends if a leg has lost what was zeroed there, and is in sync again before the next piece is through.
fn loses_what_was_zeroed(canary: MirrorCanary) -> MirrorAnswer {
    let mut world = open(&small(2), canary).unwrap();
    world.pass(1);
    world.mirror.desk().ask(MirrorAsk::Grow);
    while !world.mirror.is_zeroing() {
        world.turn();
        if !world.step() {
            world.now = world.now + Duration::from_millis(50);
        }
    }
    world.mirror.forget_zeroed(1);
    ended(&mut world)
}

#[test]
fn what_a_leg_has_lost_is_not_taken_for_zeroed() {
    assert_eq!(loses_what_was_zeroed(MirrorCanary::None), Err(MirrorAskError::Dropped));
    assert_eq!(loses_what_was_zeroed(MirrorCanary::TrustsZeroed), Ok(MirrorDone::of(LARGE_BYTES)));
}

/// Each answer is told to whoever has asked, whatever else has ended.
#[test]
fn answers_are_told_by_number() {
    let mut world = open(&small(2), MirrorCanary::None).unwrap();
    world.pass(1);
    let desk = world.mirror.desk();
    let grows = desk.ask(MirrorAsk::Grow);
    let removes = [1, 1 << 32].map(|leg| desk.ask(MirrorAsk::Remove(leg)));
    let mut answers = [const { None }; 3];
    while answers[2].is_none() {
        for (answer, number) in answers.iter_mut().zip([grows, removes[0], removes[1]]) {
            *answer = answer.take().or_else(|| desk.take_ended(number));
        }
        world.turn();
        if !world.step() {
            world.now = world.now + Duration::from_millis(50);
        }
    }
    let none = MirrorAskError::NoLeg { leg: 1 << 32 };
    assert_eq!(
        answers,
        [Some(Ok(MirrorDone::of(LARGE_BYTES))), Some(Err(MirrorAskError::Two)), Some(Err(none))]
    );
}

#[test]
fn who_asks_one_that_ends_is_told() {
    let world = open(&small(2), MirrorCanary::None).unwrap();
    let desk = world.mirror.desk();
    desk.ask(MirrorAsk::Grow);
    drop(world);
    let mut ended = Vec::new();
    desk.poll_ended(&mut ended);
    assert_eq!(ended, [(1, Err(MirrorAskError::Closed))]);
    assert!(desk.is_closed());
    assert_eq!(desk.ask(MirrorAsk::Grow), 2);
    desk.poll_ended(&mut ended);
    assert_eq!(ended[1], (2, Err(MirrorAskError::Closed)));
}

/// Who looks at one that grows, paused or not, sees how far it is; and who would remove a leg meanwhile is told that it does.
#[test]
fn it_says_that_it_grows() {
    let mut world = open(&small(2), MirrorCanary::None).unwrap();
    world.pass(1);
    world.mirror.set_pace(thinwire_volume::WorkPace { is_paused: true, percent: 50 });
    let desk = world.mirror.desk();
    assert_eq!((world.mirror.report().grows, desk.is_growing()), (None, false));
    let number = desk.ask(MirrorAsk::Grow);
    assert!(desk.is_growing(), "it is about to");
    world.pass(60);
    let by = LARGE_BYTES - DATA_BYTES;
    assert_eq!((world.mirror.report().grows, desk.is_growing()), (Some((0, by)), true));
    assert_eq!(desk.take_ended(number), None, "it is paused");
    world.mirror.set_pace(thinwire_volume::WorkPace::default());
    world.pass(10);
    assert_eq!(desk.take_ended(number), Some(Ok(MirrorDone::of(LARGE_BYTES))));
    assert_eq!((world.mirror.report().grows, desk.is_growing()), (None, false));
}
