//! What a mirror does beside its users is in its labels: who opens it behind an end, or a crash, goes on like that.

use thinwire_volume::{Scrub, Work, WorkPace};

use super::super::bitmap::{BLOCK_BYTES, BlockName, encode};
use super::super::progress::NOTE_EACH;
use super::aftermath::fates;
use super::world::{
    DATA_BYTES, Order, WHOLE, WIDE_BYTES, World, differ, formatted, formatted_wide, state,
};
use super::*;
use LegState::{Behind, InSync};

const TWENTY: WorkPace = WorkPace { is_paused: true, percent: 20 };

fn clean(legs: usize) -> World {
    let states = vec![InSync; legs];
    let contents = (0..legs).map(|leg| formatted(leg, &state(9, &states), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.pass(3);
    world
}

fn again(world: &World) -> World {
    let contents = world.disks.iter().map(Disk::content).collect();
    let mut again = World::open(contents, Order::Turns, 1);
    again.is_recording = false;
    again
}

/// Until the scrub is somewhere in the middle, and no more than that is under way.
fn to_the_middle(world: &mut World) -> u64 {
    world.mirror.begin_scrub(0);
    while world.mirror.scrub_report().position < NOTE_EACH {
        world.turn();
        world.step();
    }
    world.mirror.scrub_report().position
}

#[test]
fn who_opens_it_anew_goes_on_where_it_was() {
    let mut world = clean(2);
    let generations = world.mirror.state.history.len();
    let position = to_the_middle(&mut world);
    world.mirror.set_pace(TWENTY);
    world.pass(2);
    assert_eq!(world.mirror.state.history.len(), generations, "that is no new generation");
    let stands = world.mirror.scrub_report().position;
    let mut killed = again(&world);
    killed.pass(5);
    let report = killed.mirror.scrub_report();
    assert_eq!((killed.mirror.pace(), report.is_running), (TWENTY, true));
    assert!(report.position <= stands && stands - report.position < NOTE_EACH + NOTE_EACH);
    assert!(report.from >= position - NOTE_EACH && position >= NOTE_EACH, "{report:?}");
    // Ended in order it is known to the byte.
    world.mirror.close();
    world.pass(5);
    assert_eq!(world.mirror.closed(), Some(Ok(())));
    let mut ended = again(&world);
    ended.pass(5);
    assert_eq!(ended.mirror.scrub_report().from, stands);
    ended.mirror.set_pace(WorkPace::default());
    ended.pass(30);
    let report = ended.mirror.scrub_report();
    assert!(!report.is_running && report.position == DATA_BYTES, "{report:?}");
    // All is as usual from then on, and labels are as they always were.
    let after = again(&ended);
    assert!(after.mirror.legs.iter().flatten().all(|leg| leg.label.work.is_none()));
    assert!(!after.mirror.scrub_report().is_running);
    assert_eq!(after.mirror.pace(), WorkPace::default());
}

#[test]
fn what_somebody_has_ended_does_not_go_on() {
    let mut world = clean(2);
    to_the_middle(&mut world);
    world.mirror.end_scrub();
    world.pass(2);
    let mut ended = again(&world);
    ended.pass(5);
    assert_eq!(ended.mirror.scrub_report().number, 0);
    // Who asks for one from another place gets that, and no other, also before it is open.
    to_the_middle(&mut world);
    world.pass(0);
    let mut other = again(&world);
    other.mirror.begin_scrub(0);
    other.pass(30);
    let report = other.mirror.scrub_report();
    assert_eq!((report.from, report.number, report.is_running), (0, 1, false));
}

/// Of each moment of a scrub beside a writer, pauses and legs that come and go: whatever a crash leaves, nothing is passed over that was not read,
/// and what was on record stays; and legs agree in the end.
fn explore(canary: MirrorCanary) -> Result<usize, String> {
    let (mut count, mut rng) = (0, SplitMix64::new(7));
    let mut world = clean(3);
    world.mirror.set_canary(canary);
    world.mirror.begin_scrub(0);
    for nth in 0..700_u64 {
        match nth {
            150 => world.write(2, 3, 5, false),
            250 => world.mirror.set_pace(TWENTY),
            300 => world.mirror.set_pace(WorkPace { is_paused: false, ..TWENTY }),
            320 => world.disks[2].fail(Some(ErrorKind::Away)),
            360 if world.is_dropped(2) => world.bring_back(2),
            450 => world.flush(),
            _ => {}
        }
        world.turn();
        // Labels are written before anything is read.
        let is_label = |io: &Io| io.op != Op::Read && io.offset < BITMAP_OFFSET;
        let label = |disk: &Disk| Some((disk.clone(), disk.first_queued(is_label)?));
        match world.disks.iter().filter(|disk| disk.is_busy()).find_map(label) {
            Some((disk, first)) => disk.execute(first),
            None if world.step() => {}
            None => world.now = world.now + Duration::from_millis(25),
        }
        if nth % 50 == 0 && !world.mirror.scrub_report().is_running {
            world.mirror.begin_scrub(0);
        }
        let report = world.mirror.scrub_report();
        if nth % 3 != 0 {
            continue;
        }
        let (disks, is_quiet): (Vec<_>, _) = (
            world.disks.iter().map(Disk::snapshot).collect(),
            !world.mirror.record.is_writing() && !world.mirror.record.is_changing(),
        );
        for fates in fates(&disks, &mut rng, 1) {
            let contents = disks.iter().zip(&fates).map(|(disk, fates)| disk.after(fates));
            let mut after = World::open(contents.collect(), Order::Turns, 1);
            after.is_recording = false;
            after.turn();
            let pace = after.mirror.pace();
            after.pass(1);
            let found = after.mirror.scrub_report();
            count += 1;
            let why = |what: &str| Err(format!("{nth}: {what}: {report:?}, then {found:?}"));
            if found.number != 0 && report.is_running && found.from > report.position {
                return why("what was not read is passed over");
            }
            if is_quiet && report.is_running {
                if pace != world.mirror.pace() {
                    return why("another pace");
                }
                let back = report.position.saturating_sub(found.from);
                if found.number == 0 || back > NOTE_EACH + (512 << 10) {
                    return why("it is not where it was");
                }
            }
            after.mirror.set_pace(WorkPace::default());
            after.heal()?;
            if let Some(block) = differ(&after.disks) {
                return why(&format!("block {block} differs"));
            }
        }
    }
    Ok(count)
}

#[test]
fn no_crash_takes_back_what_is_on_record_or_passes_over_anything() {
    let count = explore(MirrorCanary::None).unwrap();
    println!("{count} crashes");
    assert!(count > 200, "{count}");
    let found = explore(MirrorCanary::ForgetsWork).unwrap_err();
    assert!(found.contains("not where it was") || found.contains("pace"), "{found}");
    let found = explore(MirrorCanary::NotesAhead).unwrap_err();
    assert!(found.contains("passed over"), "{found}");
}

/// A leg lacks four regions, and each leg does one thing in a second.
fn slow() -> World {
    let behind = state(9, &[InSync, Behind { at: [8; 16].into() }]);
    let old = state(8, &[InSync; 2]);
    let mut source = formatted_wide(0, &behind);
    let mut image = [0; BLOCK_BYTES];
    image[64..68].copy_from_slice(&[0b10; 4]);
    encode(&mut image, BlockName { whole: WHOLE, index: 0, region_shift: 20 }, 1);
    source.insert(BITMAP_OFFSET / 4096, std::rc::Rc::from(&image[..]));
    let contents = vec![source, formatted_wide(1, &old)];
    let mut world = World::open_of(MIRROR_DATA_START + WIDE_BYTES, contents, Order::Turns, 1);
    world.is_recording = false;
    world
}

fn second(world: &mut World) {
    world.turn();
    world.disks.iter().filter(|disk| disk.queued() > 0).for_each(|disk| disk.execute(0));
    world.turn();
    world.now = world.now + Duration::from_secs(1);
}

fn lacks(world: &World) -> u64 {
    world.mirror.legs().map(|(_, lacks)| lacks).max().unwrap() >> 20
}

/// What was copied counts some seconds later, also by what a crash leaves.
#[test]
fn a_resync_that_is_cut_off_goes_on_where_it_was() {
    let fell_to = |canary: MirrorCanary| {
        let mut world = slow();
        world.mirror.set_canary(canary);
        let mut least = 4;
        for _ in 0..400 {
            second(&mut world);
            if standing(&world) == [InSync; 2] {
                break;
            }
            least = if lacks(&world) > 0 { least.min(lacks(&world)) } else { least };
        }
        assert_eq!(standing(&world), [InSync; 2]);
        least
    };
    assert!(fell_to(MirrorCanary::None) < 4);
    assert_eq!(fell_to(MirrorCanary::SettlesLate), 4, "the planted fault begins anew");
}

/// Nor is anything of it lost by an end in order.
#[test]
fn what_was_copied_is_kept_by_an_end_in_order() {
    let after_end = |canary: MirrorCanary| {
        let mut world = slow();
        world.mirror.set_canary(canary);
        while world.mirror.resync.copied_bytes < (1 << 20) + (256 << 10) {
            second(&mut world);
        }
        world.mirror.close();
        for _ in 0..60 {
            second(&mut world);
        }
        assert_eq!(world.mirror.closed(), Some(Ok(())));
        let contents = world.disks.iter().map(Disk::content).collect();
        let mut again = World::open_of(MIRROR_DATA_START + WIDE_BYTES, contents, Order::Turns, 1);
        again.is_recording = false;
        again.mirror.set_pace(TWENTY);
        again.pass(3);
        lacks(&again)
    };
    assert_eq!(after_end(MirrorCanary::None), 3);
    assert_eq!(after_end(MirrorCanary::SettlesLate), 4, "the planted fault begins anew");
}
