//! Scrubs beside users, legs that are dropped meanwhile, and what stands below legs.

use thinwire_volume::{ScrubReport, Work, WorkPace};

use super::disk::{BLOCK, Disk};
use super::world::{DATA_BYTES, Order, SMALL, World, differ, formatted, leg, state};
use super::*;
use LegState::{Behind, InSync};

/// Blocks rot, one at one leg only, while somebody writes beside a scrub that pauses and goes on: what goes wrong.
fn storm(seed: u64, canary: MirrorCanary) -> Option<String> {
    let mut rng = SplitMix64::new(seed);
    let states = [InSync; 2];
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &states), [0, 0])).collect();
    let mut world = World::open(contents, Order::Random, seed);
    world.is_recording = false;
    world.mirror.canary = canary;
    let mut stamps = [0_u8; 4];
    let mut rotten = [None; 4];
    for step in 1..120_u8 {
        let block = rng.below(4) as usize;
        match rng.below(10) {
            // Of what is rotten at one leg the other is the only source.
            0 | 1
                if rotten[block]
                    .is_none_or(|disk: usize| !world.disks[disk].is_rotten(at(block))) =>
            {
                let disk = rng.below(2) as usize;
                let other = &world.disks[1 - disk];
                if !other.is_rotten(at(block)) {
                    world.disks[disk].rot(at(block));
                    rotten[block] = Some(disk);
                }
            }
            2 => world.mirror.begin_scrub(SMALL * BLOCK),
            3 => {
                let is_paused = rng.one_in(2);
                world.mirror.set_pace(WorkPace { is_paused, percent: 100 });
            }
            4 => {
                world.now = world.now + Duration::from_millis(rng.below(200));
                world.turn();
            }
            5 | 6 => {
                world.write(SMALL + block as u64, 1, step, false);
                stamps[block] = step;
            }
            7 => world.read(SMALL + block as u64),
            _ => world.steps(rng.below(8) as usize),
        }
    }
    world.mirror.set_pace(WorkPace::default());
    world.wait();
    world.mirror.begin_scrub(0);
    world.pass(20);
    let report = world.mirror.scrub_report();
    world.reads.clear();
    for (block, stamp) in stamps.iter().enumerate() {
        world.read(SMALL + block as u64);
        world.wait();
        let (_, bytes) = world.reads.pop()?;
        if bytes.iter().any(|byte| byte != stamp) {
            return Some(format!("block {block} reads as {}, not {stamp}", bytes[0]));
        }
    }
    match (report.is_running, differ(&world.disks), world.errors) {
        (false, None, 0) => None,
        (is_running, block, errors) => {
            Some(format!("running {is_running}, differing in {block:?}, {errors} errors"))
        }
    }
}

fn at(block: usize) -> u64 {
    MIRROR_DATA_START / BLOCK + SMALL + block as u64
}

/// Rule 5 of what is written again because it did not fit: without the lock it goes over what a user has written meanwhile.
#[test]
fn what_is_mended_does_not_go_over_what_is_written_meanwhile() {
    for seed in 0..300 {
        if let Some(why) = storm(seed, MirrorCanary::None) {
            panic!("seed {seed}: {why}");
        }
    }
    let found = (0..300).find_map(|seed| storm(seed, MirrorCanary::NoLookLock));
    assert!(found.is_some(), "the planted fault is not found");
}

fn scrubbed(world: &mut World, steps: usize, then: impl FnOnce(&mut World)) -> ScrubReport {
    world.mirror.begin_scrub(0);
    world.turn();
    world.steps(steps);
    assert!(world.mirror.scrub_report().is_running);
    then(world);
    world.pass(20);
    let report = world.mirror.scrub_report();
    assert!(!report.is_running, "{report:?}");
    report
}

/// A leg that was not read for all of it is named, however much of it was read before.
#[test]
fn a_leg_that_is_not_read_is_told() {
    let mut world = two([0, 0]);
    world.pass(5);
    let report = scrubbed(&mut world, 3, |_| ());
    assert_eq!((report.unread_legs, report.checked_bytes, report.number), (0, DATA_BYTES, 1));
    // In the middle.
    let drop = |world: &mut World| {
        world.disks[1].fail(Some(ErrorKind::Io));
        world.write(SMALL, 1, 1, false);
        world.wait();
    };
    let report = scrubbed(&mut world, 3, drop);
    assert_eq!((report.unread_legs, report.bad, report.number, &*letters(&world)), (2, 0, 2, "SB"));
    // And all along.
    let report = scrubbed(&mut world, 0, |_| ());
    assert_eq!(report.unread_legs, 2);
    world.bring_back(1);
    world.heal().unwrap();
    assert_eq!(scrubbed(&mut world, 3, |_| ()).unread_legs, 0);
}

#[test]
fn it_is_closed_in_the_middle_of_a_scrub() {
    for steps in [0, 1, 3, 5, 8] {
        let mut world = two([0, 0]);
        world.write(SMALL, 1, 1, false);
        world.wait();
        world.pass(1);
        world.mirror.begin_scrub(0);
        world.turn();
        world.steps(steps);
        world.mirror.close();
        world.pass(5);
        assert_eq!(world.mirror.closed(), Some(Ok(())), "{steps}");
        assert!(!world.mirror.scrub_report().is_running);
        let mut again = reopened(&world, &[0, 1]).unwrap();
        again.pass(1);
        assert_eq!((&*letters(&again), differ(&again.disks)), ("SS", None));
    }
}

/// A leg that is not there and is known by nothing lacks all of it.
#[test]
fn what_is_copied_whole_lacks_all() {
    let nothing = Behind { at: NO_GENERATION.into() };
    let disk = Disk::new(world::DISK_BYTES, formatted(0, &state(9, &[InSync, nothing]), [0, 0]));
    let mirror = Mirror::open(vec![leg(&disk), None], config(false)).unwrap();
    assert_eq!(mirror.report().legs[1].lacks, DATA_BYTES);
    let unknown = state(9, &[InSync, Behind { at: [3; 16].into() }]);
    let contents =
        vec![formatted(0, &unknown, [0; 2]), formatted(1, &state(8, &[InSync; 2]), [0; 2])];
    let world = World::open(contents, Order::Turns, 1);
    assert_eq!(world.mirror.report().legs[1].lacks, DATA_BYTES);
}

/// A leg that stands on other volumes.
struct Nested {
    disk: Disk,
    inner: Told,
    sums: Told,
}

#[derive(Default)]
struct Told(ScrubReport);

impl Scrub for Told {
    fn begin_scrub(&mut self, _: u64) {
        self.0.is_running = true;
    }

    fn end_scrub(&mut self) {}

    fn scrub_report(&self) -> ScrubReport {
        self.0.clone()
    }
}

impl Volume for Nested {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn submit(&mut self, io: Io) {
        self.disk.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.disk.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.disk.outstanding()
    }

    fn is_at_rest(&self) -> bool {
        false
    }

    fn is_wound_up(&self) -> bool {
        false
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        visit(&mut self.inner);
        visit(&mut self.sums);
    }
}

fn nested() -> World {
    let disks = [0, 1]
        .map(|leg| Disk::new(world::DISK_BYTES, formatted(leg, &state(9, &[InSync; 2]), [0, 0])));
    let told = |module| Told(ScrubReport { module, ..ScrubReport::default() });
    let over = |(nth, disk): (usize, &Disk)| {
        let at = leg(disk)?;
        let (inner, sums) = (told("mirror"), told("integrity"));
        let volume: Box<dyn Volume> = match nth {
            0 => at.volume,
            _ => Box::new(Nested { disk: disk.clone(), inner, sums }),
        };
        Some(MirrorLeg { volume, ..at })
    };
    let legs = disks.iter().enumerate().map(over).collect();
    let mut world =
        World::new(Mirror::open(legs, config(false)).unwrap(), disks.into(), Order::Turns, 1);
    world.is_recording = false;
    world.pass(5);
    world
}

/// A mirror reads all of its legs, and one below gives each block from one of its own.
#[test]
fn a_mirror_below_a_leg_is_scrubbed_too() {
    let mut world = nested();
    let mut begun = Vec::new();
    world.mirror.scrubs(&mut |scrub| {
        begun.push(scrub.scrub_report().module);
        scrub.begin_scrub(0);
    });
    assert_eq!(begun, ["mirror"; 2]);
    assert!(world.mirror.scrub_report().is_running);
}

/// Who is asked for an end waits for legs that are used, and for none that was dropped: that may never answer again.
#[test]
fn a_leg_that_was_dropped_holds_up_no_end() {
    for is_dropped in [false, true] {
        let mut world = nested();
        if is_dropped {
            world.disks[1].fail(Some(ErrorKind::Away));
            world.write(SMALL, 1, 1, false);
            world.wait();
            world.pass(5);
            assert_eq!(letters(&world), "SB");
        }
        assert_eq!(world.mirror.is_at_rest(), is_dropped);
        world.mirror.wind_up();
        world.pass(5);
        assert_eq!(world.mirror.is_wound_up(), is_dropped);
    }
}
