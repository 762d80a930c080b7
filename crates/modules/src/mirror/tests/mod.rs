//! The mirror over disks that do as they are told, and over disks that crash.

mod additions;
mod aftermath;
mod beside;
mod changes;
mod closings;
mod crashes;
mod cuts;
pub(crate) mod disk;
mod faults;
mod golden;
mod growths;
mod kept;
mod openings;
mod pauses;
mod reading;
mod removals;
mod replacements;
mod resyncs;
mod scrubs;
mod steady;
mod sums;
mod works;
pub(crate) mod world;
mod writers;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::{SplitMix64, exercise, finish};

pub(crate) use self::aftermath::fates;
use self::disk::Disk;
use self::world::{DISK_BYTES, Order, SMALL, World, config, differ, formatted, leg, state};
use super::*;
use crate::meta::{Finding, LabelOutcome, Labels};
use LegState::{Behind, InSync, Resyncing};

/// Over two legs, with time that passes whenever nothing is ready, it does what every volume does; and legs agree in the end.
#[test]
fn it_conforms_over_disks_in_any_order() {
    for seed in 1..5 {
        let legs = if seed % 2 == 0 { 3 } else { 2 };
        let states = vec![InSync; legs];
        let contents = (0..legs).map(|leg| formatted(leg, &state(9, &states), [0, 0])).collect();
        let mut world = World::open(contents, Order::Random, seed);
        world.is_recording = false;
        let disks = world.disks.clone();
        let (mut now, mut next) = (Time::ZERO, 0);
        let World { mirror, .. } = &mut world;
        let mut wait = || {
            next += 1;
            let disk = &disks[next % disks.len()];
            if disk.queued() > 0 {
                disk.execute((next / 7) % disk.queued());
            }
        };
        let mut timed = Timed { mirror, now: &mut now };
        let report = exercise(&mut timed, &mut wait, seed, 1500);
        assert!(report.ios > 1500 && report.overlaps > 100, "{report:?}");
        world.heal().unwrap();
        assert_eq!(differ(&world.disks), None);
    }
}

/// Over stores that answer at once, and know what holds data.
#[test]
fn it_conforms_over_stores() {
    let both = state(9, &[InSync; 2]);
    let legs = (0..2).map(|leg| {
        let pool = Pool::new(8 << 20);
        let mut volume = MemoryStore::new(DISK_BYTES, 4096, Identity::default(), &pool);
        for (number, block) in formatted(leg, &both, [0, 0]) {
            let data = SegList::of(pool.copy_of(&block).freeze());
            let io = Io { data, ..Io::new(1, Op::Write, number * 4096, 4096) };
            assert_eq!(finish(&mut volume, &mut || {}, io).result, Ok(()));
        }
        let mut labels = Labels::new(LEG_LABEL_TOKEN, &pool);
        labels.read(&mut volume).unwrap();
        match (0..3).find_map(|_| labels.turn(&mut volume)) {
            Some(LabelOutcome::Read(Ok(Finding::Label(found)))) => {
                Some(MirrorLeg { volume: Box::new(volume), labels, label: found.label })
            }
            other => panic!("{other:?}"),
        }
    });
    let mut mirror = Mirror::open(legs.collect(), config(false)).unwrap();
    assert!(mirror.geometry().features.block_status);
    let mut now = Time::ZERO;
    let mut timed = Timed { mirror: &mut mirror, now: &mut now };
    let report = exercise(&mut timed, &mut || {}, 3, 2000);
    assert!(report.ios > 2000 && report.blocks_checked > 1000, "{report:?}");
    assert_eq!(mirror.legs().map(|(state, _)| state).collect::<Vec<_>>(), [InSync; 2]);
}

/// Tells it the time whenever it is polled.
struct Timed<'a> {
    mirror: &'a mut Mirror,
    now: &'a mut Time,
}

impl Volume for Timed<'_> {
    fn geometry(&self) -> Geometry {
        self.mirror.geometry()
    }

    fn identity(&self) -> Identity {
        self.mirror.identity()
    }

    fn submit(&mut self, io: Io) {
        self.mirror.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        *self.now = *self.now + Duration::from_millis(10);
        self.mirror.turn(*self.now);
        self.mirror.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.mirror.outstanding()
    }
}

fn two(bits: [u8; 2]) -> World {
    let state = state(9, &[InSync; 2]);
    let mut world =
        World::open((0..2).map(|leg| formatted(leg, &state, bits)).collect(), Order::Turns, 1);
    world.is_recording = false;
    world.read(0);
    world.wait();
    world.reads.clear();
    world
}

fn standing(world: &World) -> Vec<LegState> {
    world.mirror.legs().map(|(state, _)| state).collect()
}

/// The same, a letter each: S in sync, B behind, R resyncing, F failed.
fn letters(world: &World) -> String {
    let letter = |state| match state {
        InSync => 'S',
        Behind { .. } => 'B',
        Resyncing { .. } => 'R',
        LegState::Failed { .. } => 'F',
        LegState::Removed { .. } => '-',
    };
    standing(world).into_iter().map(letter).collect()
}

/// What is warm costs a write for each leg, and nothing else; neither memory nor a copy of the payload.
#[test]
fn a_warm_write_costs_one_write_for_each_leg() {
    let mut world = two([0, 0]);
    world.write(SMALL, 1, 1, false);
    world.wait();
    let data = SegList::of(Pool::new(0).copy_of(&[7; 8192]).freeze());
    let shared = data.clone();
    world.mirror.submit(Io { data, ..Io::new(99, Op::Write, SMALL * 4096, 8192) });
    for disk in &world.disks {
        let queue = disk.take();
        assert_eq!(queue.len(), 1, "{queue:?}");
        assert!(queue[0].data.iter().all(|part| part.shares_memory(&shared.as_slice()[0])));
        assert_eq!((queue[0].op, queue[0].len, queue[0].flags.fua), (Op::Write, 8192, false));
    }
}

/// Neither what tells of regions is written again, nor is anything taken from the pool.
#[test]
fn nothing_is_written_down_once_warm() {
    let mut world = two([0, 0]);
    let counts = |world: &mut World| {
        for nth in 0..64 {
            world.write(SMALL + nth % 4, 1, nth as u8, false);
            world.read(SMALL + (nth + 2) % 4);
            if nth % 8 == 7 {
                world.wait();
            }
        }
        let mirror = &world.mirror;
        let rooms = [mirror.held.capacity(), mirror.ready.capacity(), mirror.granted.capacity()];
        (mirror.intent.number, mirror.config.pool.stats().allocations, rooms)
    };
    let warm = counts(&mut world);
    assert_eq!(counts(&mut world), warm);
    assert_eq!(world.errors, 0);
}

/// Writes that come together share what tells of them.
#[test]
fn cold_writes_share_one_block_of_bits() {
    let mut world = two([0, 0]);
    (0..8).for_each(|nth| world.write(nth / 4 * SMALL + nth % 4, 1, 1, false));
    let mut queue = world.disks[0].take();
    assert_eq!(queue.len(), 1, "the first begins at once: {queue:?}");
    let first = queue.remove(0);
    assert_eq!((first.op, first.offset, first.len), (Op::Write, BITMAP_OFFSET, 4096));
    assert!(first.flags.fua);
    world.disks[0].put(first);
    world.steps(2);
    // Of the first region four writes; the other four wait for the bit of the second.
    let queue = world.disks[0].take();
    let bits = queue.iter().filter(|io| io.offset == BITMAP_OFFSET).count();
    assert_eq!((queue.len(), bits), (5, 1), "{queue:?}");
}

#[test]
fn a_read_that_one_leg_fails_is_served_by_another_and_repaired() {
    let mut world = two([0, 0]);
    world.write(SMALL, 1, 5, false);
    world.wait();
    world.flush();
    world.wait();
    world.disks[0].fail_reads(true);
    for _ in 0..4 {
        world.read(SMALL);
        world.wait();
    }
    assert_eq!(world.errors, 0);
    assert!(world.reads.iter().all(|(_, bytes)| bytes.iter().all(|byte| *byte == 5)));
    assert_eq!(standing(&world), [InSync; 2], "a bad block is no bad leg");
    assert!(world.disks[0].writes() > 2, "what could not be read is written");
    for _ in 0..40 {
        world.read(SMALL);
        world.wait();
    }
    world.wait();
    assert_eq!(letters(&world), "BS", "too many are");
    // Nobody is left to ask.
    world.disks[1].fail_reads(true);
    world.read(SMALL);
    world.wait();
    assert_eq!(world.errors, 1);
}

/// Rule 3, as people see it: who fails is behind, on record, and whoever waited is served.
#[test]
fn a_leg_that_fails_is_dropped_and_the_last_is_not() {
    let mut world = two([0, 0]);
    world.disks[0].fail(Some(ErrorKind::NoSpace));
    world.write(SMALL, 1, 1, false);
    world.wait();
    assert_eq!((world.errors, &*letters(&world)), (0, "BS"));
    world.disks[1].fail(Some(ErrorKind::NoSpace));
    world.write(SMALL, 1, 2, false);
    world.flush();
    world.wait();
    assert_eq!((world.errors, &*letters(&world)), (2, "BS"));
    world.disks[1].fail(None);
    world.write(SMALL, 1, 3, false);
    world.flush();
    world.wait();
    assert_eq!(world.errors, 2, "it goes on when the last leg does");
    world.bring_back(0);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}

/// Where all have failed a write, legs differ: one of them is the truth.
#[test]
fn what_all_legs_fail_is_resynced_from_one() {
    let mut world = two([0, 0]);
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.disks.iter().for_each(|disk| disk.fail(Some(ErrorKind::NoSpace)));
    world.write(SMALL, 1, 2, false);
    world.steps(2);
    world.disks.iter().for_each(|disk| disk.fail(None));
    world.wait();
    assert_eq!((world.errors, &*letters(&world)), (1, "SR"));
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}

#[test]
fn a_leg_that_never_answers_is_dropped_after_its_time() {
    let mut world = two([0, 0]);
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.write(SMALL, 1, 2, false);
    let steps = |world: &mut World| {
        while world.disks[1].queued() > 0 {
            world.disks[1].execute(0);
            world.turn();
        }
    };
    steps(&mut world);
    let begun = world.now;
    for passed in [990, 1980, 2970, 3960, 4950] {
        world.now = begun + Duration::from_millis(passed);
        world.turn();
        steps(&mut world);
        assert_eq!(standing(&world), [InSync; 2]);
    }
    world.now = begun + Duration::from_millis(5001);
    world.turn();
    steps(&mut world);
    assert_eq!(letters(&world), "BS");
    assert_eq!(world.mirror.outstanding(), 0, "whoever waited is served");
    // What comes late is nobody's, and what it was is written again by the resync.
    world.bring_back(0);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}

/// Rule 18: who is fenced at one leg writes to none any more.
#[test]
fn who_is_fenced_at_one_leg_stops() {
    let (written, world) = written_behind_a_fence(MirrorCanary::None, true);
    assert_eq!(world.errors + world.reads.len(), 4);
    assert_eq!((written, standing(&world)), (0, vec![InSync; 2]), "not even a label");
}

/// As soon as a leg says so, though nothing was under way there: what it is that reads it goes well.
#[test]
fn who_hears_of_a_fence_at_one_leg_stops() {
    let (written, world) = written_behind_a_fence(MirrorCanary::None, false);
    assert_eq!(world.errors, 2);
    assert_eq!((written, standing(&world)), (0, vec![InSync; 2]), "not even a label");
}

/// Rule 18.
#[test]
fn a_mirror_that_goes_on_behind_a_fence_is_found() {
    for by_answer in [false, true] {
        let (written, _) = written_behind_a_fence(MirrorCanary::GoesOnFenced, by_answer);
        assert!(written > 0, "nobody would know; by an answer: {by_answer}");
    }
}

/// How much is written, on all legs, when one of them has said that it is fenced: by an answer, or by an event.
fn written_behind_a_fence(canary: MirrorCanary, by_answer: bool) -> (usize, World) {
    let mut world = two([0, 0]);
    world.mirror.canary = canary;
    let writes = |world: &World| world.disks.iter().map(|disk| disk.writes()).sum::<usize>();
    let before;
    if by_answer {
        world.disks[1].fail(Some(ErrorKind::Fenced));
        world.write(SMALL, 1, 1, false);
        world.read(0);
        world.wait();
        before = writes(&world);
    } else {
        world.write(SMALL, 1, 1, false);
        world.wait();
        world.disks[1].be_fenced();
        before = writes(&world);
        world.turn();
        let mut events = Vec::new();
        world.mirror.poll_events(&mut events);
        assert_eq!(events, [VolumeEvent::Fenced { of: None }]);
    }
    world.flush();
    world.write(SMALL, 1, 1, false);
    world.wait();
    // Nor is the bit of what was written cleared.
    world.pass(9);
    (writes(&world) - before, world)
}

/// A leg that becomes shorter takes no write any more: it is behind, on record, before anybody has one for it, unless it is the last.
#[test]
fn a_leg_that_becomes_shorter_is_behind() {
    let mut world = two([0, 0]);
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.disks[1].tell(VolumeEvent::Shrunk);
    world.turn();
    world.pass(3);
    assert_eq!((standing(&world)[0], world.errors), (InSync, 0));
    assert!(matches!(standing(&world)[1], Behind { .. }), "{:?}", standing(&world));
    let kept = leg(&world.disks[0]).unwrap().label.state;
    assert!(matches!(MirrorState::decode(&kept).unwrap().legs[1], Behind { .. }), "on record");
    world.disks[0].tell(VolumeEvent::Shrunk);
    world.turn();
    assert_eq!(standing(&world)[0], InSync, "there is no other");
    world.read(SMALL);
    world.wait();
    assert_eq!((world.reads.len(), world.errors), (1, 0));
}

/// A loss of the last leg is the mirror's.
#[test]
fn a_loss_is_told_if_no_other_leg_has_it() {
    let mut world = two([0, 0]);
    let told = |world: &mut World| {
        let mut events = Vec::new();
        world.mirror.poll_events(&mut events);
        events
    };
    world.disks[0].lose();
    world.turn();
    assert_eq!(told(&mut world), []);
    assert_eq!(letters(&world), "RS");
    let before = world.mirror.events();
    world.disks[1].lose();
    assert!(world.mirror.events() > before, "what was told to nobody counts, too");
    assert_eq!(told(&mut world), [VolumeEvent::Lost]);
    world.heal().unwrap();
}

/// A new leg is copied whole, and one more write later is still in sync.
#[test]
fn a_new_mirror_is_copied_from_its_first_leg() {
    let new = MirrorState::of_new(3, (world::DATA_BYTES, 4096), 0, &mut *config(false).generations);
    assert_eq!(new[1].region_shift, 20);
    let contents: Vec<_> = (0..3)
        .map(|leg| {
            // As a disk is that held something: bitmaps and data are anything.
            let mut content = formatted(leg, &new[leg], [0, 0]);
            if leg == 2 {
                content.insert(BITMAP_OFFSET / 4096, vec![2; 4096].into());
            }
            for block in [0, 7, SMALL, SMALL + 3] {
                content.insert(MIRROR_DATA_START / 4096 + block, vec![leg as u8 + 1; 4096].into());
            }
            content
        })
        .collect();
    let mut world = World::open(contents, Order::Random, 5);
    world.is_recording = false;
    world.read(7);
    world.write(SMALL + 3, 1, 9, false);
    world.wait();
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
    assert_eq!(world.reads[0].1, [1; 4096]);
}

/// What may not be served is refused, and nothing is written.
#[test]
fn what_does_not_fit_is_refused() {
    let open = |states: [&MirrorState; 2], bytes: u64, degraded| {
        let disks: Vec<_> =
            (0..2).map(|leg| Disk::new(bytes, formatted(leg, states[leg], [0, 0]))).collect();
        let legs = disks.iter().map(leg).collect();
        let refused = Mirror::open(legs, config(degraded)).err().map(|e| e.to_string());
        assert!(disks.iter().all(|disk| disk.writes() == 0));
        refused.unwrap_or_default()
    };
    let both = state(9, &[InSync; 2]);
    assert_eq!(open([&both, &both], DISK_BYTES, false), "");
    let apart = state(7, &[Behind { at: [5; 16].into() }, InSync]);
    let says = open([&both, &apart], DISK_BYTES, true);
    assert!(says.starts_with("mirror: legs 0 and 1, counted from 0, were written apart"), "{says}");
    let three = state(9, &[InSync; 3]);
    let says = open([&both, &three], DISK_BYTES, false);
    assert!(says.contains("do not say that they are of one mirror"), "{says}");
    let one = Mirror::open(vec![None], config(true)).err().unwrap();
    assert_eq!(one.to_string(), "mirror takes 2 to 8 volumes, not 1");
}

/// What two legs are after that, opened together, or what is refused.
fn reopened(world: &World, apart: &[usize]) -> Result<World, String> {
    let disks: Vec<_> =
        world.disks.iter().map(|disk| Disk::new(DISK_BYTES, disk.content())).collect();
    let legs = disks.iter().enumerate();
    let legs: Vec<_> =
        legs.map(|(nth, disk)| apart.contains(&nth).then(|| leg(disk)).flatten()).collect();
    let is_degraded = apart.len() < legs.len();
    let mirror = Mirror::open(legs, config(is_degraded)).map_err(|e| e.to_string())?;
    let mut world = World::new(mirror, disks, Order::Turns, 1);
    world.is_recording = false;
    Ok(world)
}

/// A leg that was served alone is ahead of the other, which gets what it lacks; two that were are refused (rule 7).
#[test]
fn one_served_alone_is_ahead_and_two_are_a_split_brain() {
    let mut world = two([0, 0]);
    world.write(SMALL, 1, 1, false);
    world.flush();
    world.pass(5);
    let mut alone = reopened(&world, &[1]).unwrap();
    alone.write(SMALL + 1, 1, 2, false);
    alone.flush();
    alone.wait();
    assert_eq!(letters(&alone), "BS");
    alone.disks[0] = world.disks[0].clone();
    let mut both = reopened(&alone, &[0, 1]).unwrap();
    both.read(SMALL + 1);
    both.wait();
    assert_eq!(both.reads[0].1, [2; 4096]);
    both.heal().unwrap();
    assert_eq!(differ(&both.disks), None);
    assert!(both.disks[0].writes() < 16, "one region is copied, and no more");

    let mut other = reopened(&world, &[0]).unwrap();
    other.write(SMALL + 2, 1, 3, false);
    other.wait();
    other.disks[1] = alone.disks[1].clone();
    let refused = reopened(&other, &[0, 1]).err().unwrap();
    assert!(refused.contains("were written apart"), "{refused}");
}

/// Rule 16: a leg that says that it has other content is failed, and is not taken back.
#[test]
fn a_leg_with_other_content_is_not_taken_back() {
    let mut world = two([0, 0]);
    world.disks[0].fail(Some(ErrorKind::ContentChanged));
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.turn();
    world.steps(9);
    assert_eq!((world.errors, &*letters(&world)), (0, "FS"));
    world.disks[0].fail(None);
    assert!(world.mirror.give_up_leg(1).is_none(), "it is in use");
    world.mirror.give_up_leg(0).unwrap();
    world.disks[0].abandon();
    let back = leg(&world.disks[0]).unwrap();
    let refused = world.mirror.return_leg(0, back).unwrap_err().to_string();
    assert!(refused.contains("has other content than it had"), "{refused}");
}

/// Legs fail, lose, hang and come back, in the middle of whatever: what was acknowledged is read, and in the end all agree.
#[test]
fn in_any_storm_what_was_written_is_read() {
    let mut seen = [0_usize; 4];
    for seed in 0..150 {
        let mut rng = SplitMix64::new(seed);
        let states = [InSync; 3];
        let contents = (0..3).map(|leg| formatted(leg, &state(9, &states), [0, 0])).collect();
        let mut world = World::open(contents, Order::Random, seed);
        world.is_recording = false;
        // One is always well, so that nothing may be lost.
        let (well, mut stamps) = (rng.below(3) as usize, [0_u8; 4]);
        for step in 1..80_u8 {
            let disk = (well + 1 + rng.below(2) as usize) % 3;
            match rng.below(12) {
                0 => {
                    world.disks[disk].fail(Some(ErrorKind::Io));
                    seen[0] += 1;
                }
                1 if world.disks[disk].queued() == 0 => world.disks[disk].fail(None),
                2 | 3 if world.is_dropped(disk) => {
                    world.bring_back(disk);
                    seen[1] += 1;
                }
                4 if standing(&world)[disk] != InSync || standing(&world)[well] == InSync => {
                    world.disks[disk].lose();
                    seen[2] += 1;
                }
                5 => world.flush(),
                6 => {
                    world.wait();
                    let block = rng.below(4);
                    world.read(SMALL + block);
                    world.wait();
                    let (_, bytes) = world.reads.pop().expect("it was read");
                    let stamp = stamps[block as usize];
                    assert!(bytes.iter().all(|byte| *byte == stamp), "seed {seed}, step {step}");
                    seen[3] += 1;
                }
                7 => {
                    // Not so long that one that is well is taken not to answer.
                    world.now = world.now + Duration::from_millis(rng.below(200));
                    world.turn();
                }
                8 => world.steps(rng.below(20) as usize),
                _ => {
                    let block = rng.below(4);
                    world.write(SMALL + block, 1, step, rng.one_in(4));
                    stamps[block as usize] = step;
                }
            }
        }
        world.wait();
        assert_eq!(world.errors, 0, "seed {seed}");
        for disk in 0..3 {
            world.disks[disk].fail(None);
            world.pass(1);
            if world.is_dropped(disk) {
                world.bring_back(disk);
            }
        }
        world.heal().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        assert_eq!(differ(&world.disks), None, "seed {seed}");
        for (block, stamp) in (SMALL..).zip(stamps) {
            world.read(block);
            world.wait();
            let (_, bytes) = world.reads.pop().expect("it was read");
            assert!(bytes.iter().all(|byte| *byte == stamp), "seed {seed}, block {block}");
        }
    }
    assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
}
