//! What legs, clocks and crashes do to a mirror, one by one.

use super::disk::{Disk, Fate};
use super::world::{DISK_BYTES, Order, SMALL, World, config, differ, formatted, leg, state};
use super::*;
use LegState::{Behind, Failed, InSync, Resyncing};

/// A leg that lacks something by what another one says is not the truth, whatever its label says.
#[test]
fn a_leg_that_lacks_something_is_not_the_truth() {
    let open = |bits: [[u8; 2]; 2]| {
        let of = |leg: usize| {
            let mut content = formatted(leg, &state(9, &[InSync; 2]), bits[leg]);
            let block = MIRROR_DATA_START / 4096 + SMALL;
            content.insert(block, vec![leg as u8 + 1; 4096].into());
            content
        };
        let mut world = World::open((0..2).map(of).collect(), Order::Turns, 1);
        world.is_recording = false;
        world.read(SMALL);
        world.wait();
        world
    };
    let mut world = open([[0, 0], [0, 0b01]]);
    assert_eq!(world.reads[0].1[0], 2);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
    // Where a region was open, any may be.
    assert_eq!(open([[0, 0b11], [0b11, 0]]).reads[0].1[0], 1);
    // If none is, none is served.
    assert_eq!(open([[0b10, 0], [0, 0b01]]).errors, 1);
}

/// The bits of a leg are clear on all legs before it is in sync.
#[test]
fn a_leg_is_in_sync_when_its_bits_say_so() {
    let behind = state(9, &[InSync, Behind { at: [8; 16].into() }]);
    let old = state(8, &[InSync; 2]);
    let contents = vec![formatted(0, &behind, [0, 0b10]), formatted(1, &old, [0, 0])];
    let mut world = World::open(contents, Order::Last(1), 1);
    world.heal().unwrap();
    let mut count = 0;
    for moment in &world.moments {
        let fates: Vec<_> =
            moment.disks.iter().map(|disk| vec![Fate::Lost; disk.doubts()]).collect();
        let contents: Vec<_> =
            moment.disks.iter().zip(&fates).map(|(disk, fates)| disk.after(fates)).collect();
        let says = leg(&Disk::new(DISK_BYTES, contents[0].clone())).unwrap().label.state;
        if MirrorState::decode(&says).unwrap().legs == [InSync; 2] {
            for content in contents {
                assert_eq!(content[&(BITMAP_OFFSET / 4096)][64..66], [0, 0]);
                count += 1;
            }
        }
    }
    assert!(count > 4, "{count}");
}

/// Time in which nobody looked does not count for what a leg has not answered: neither before the mirror was told of it, nor
/// when nothing was asked, nor when the process stood still.
#[test]
fn no_leg_is_late_when_nobody_has_looked() {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    let answer = |world: &mut World| {
        while world.step() {}
        world.turn();
        assert_eq!(standing(world), [InSync; 2]);
    };
    let hours = Duration::from_secs(7200);
    // It is opened late in the life of a process.
    world.now = world.now + hours;
    world.write(SMALL, 1, 1, false);
    world.turn();
    answer(&mut world);
    world.pass(9);
    // Nothing was asked.
    world.now = world.now + hours;
    world.write(SMALL, 1, 2, false);
    world.turn();
    answer(&mut world);
    // It stood still, and answers came meanwhile; also if the time was up but for that.
    for seconds in [0, 4] {
        world.write(SMALL, 1, 3, false);
        world.turn();
        for _ in 0..seconds {
            world.now = world.now + Duration::from_secs(1);
            world.turn();
        }
        world.disks.iter().for_each(|disk| (0..disk.queued()).for_each(|_| disk.execute(0)));
        world.now = world.now + hours;
        world.turn();
        answer(&mut world);
    }
    assert_eq!(world.errors, 0);
}

/// A leg that answers other things is slow for what it is given, and not gone: it has longer for each, and not for ever.
#[test]
fn a_leg_that_answers_has_longer() {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.write(0, 1, 1, false);
    world.write(SMALL, 1, 1, false);
    world.wait();
    // One write is the first in the queue of leg 1, and is never done; others behind it are.
    world.write(0, 1, 2, false);
    let mut seconds = 0;
    while standing(&world) == [InSync; 2] {
        world.write(SMALL, 1, 3, false);
        world.turn();
        while world.disks[0].is_busy() {
            world.disks[0].execute(0);
            world.turn();
        }
        while world.disks[1].queued() > 1 {
            world.disks[1].execute(1);
            world.turn();
        }
        world.now = world.now + Duration::from_secs(1);
        world.turn();
        seconds += 1;
        assert!(seconds < 60, "it is never dropped");
    }
    assert!((19..=22).contains(&seconds), "four times 5 s, and a turn each way: {seconds}");
}

/// Whoever is asked when to come again is not kept busy by the last leg that hangs.
#[test]
fn the_last_leg_may_take_its_time() {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.disks[1].fail(Some(ErrorKind::Away));
    world.read(0);
    world.wait();
    world.pass(3);
    world.read(SMALL);
    for _ in 0..20 {
        world.turn();
        world.now = world.now + Duration::from_secs(1);
    }
    assert_eq!(world.mirror.turn(world.now), Time::NEVER);
    world.wait();
    assert_eq!(world.errors, 0);
}

fn three() -> World {
    let contents = (0..3).map(|leg| formatted(leg, &state(9, &[InSync; 3]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.write(SMALL, 1, 1, false);
    world.wait();
    world
}

/// Where labels are, and not much else.
const LABELS: (u64, u64) = (0, 1 << 20);

fn two() -> World {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.write(SMALL, 1, 1, false);
    world.wait();
    world
}

/// Legs that know what holds data, or claim to.
fn two_with_status(knows: [bool; 2]) -> World {
    let disks: Vec<_> = (0..2)
        .map(|leg| Disk::new(DISK_BYTES, formatted(leg, &state(9, &[InSync; 2]), [0, 0])))
        .collect();
    disks.iter().zip(knows).for_each(|(disk, knows)| disk.claim_status(true, knows));
    let mirror = Mirror::open(disks.iter().map(leg).collect(), config(false)).unwrap();
    let mut world = World::new(mirror, disks, Order::Turns, 1);
    world.is_recording = false;
    world
}

/// What a leg does not do at all is no fault of its blocks.
#[test]
fn what_a_leg_does_not_support_is_no_read_error() {
    let mut world = two_with_status([false, true]);
    world.turn();
    world.steps(4);
    for token in 1000..1060 {
        world.mirror.submit(Io::new(token, Op::BlockStatus, 0, 4096));
        let mut done = Vec::new();
        while done.is_empty() {
            world.disks.iter().for_each(|disk| (0..disk.queued()).for_each(|_| disk.execute(0)));
            world.mirror.poll(&mut done);
        }
        assert_eq!((done[0].result, done[0].extents.len()), (Ok(()), 1));
    }
    assert_eq!(standing(&world), [InSync; 2]);
}

/// What the mirror has promised every leg can do.
#[test]
fn a_leg_that_can_do_less_is_not_taken_back() {
    let mut world = two_with_status([true, true]);
    world.disks[1].fail(Some(ErrorKind::Away));
    world.write(SMALL, 1, 1, false);
    world.wait();
    world.disks[1].fail(None);
    world.disks[1].claim_status(false, false);
    world.mirror.give_up_leg(1).unwrap();
    world.disks[1].abandon();
    let refused = world.mirror.return_leg(1, leg(&world.disks[1]).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("cannot say what holds data"), "{refused}");
    world.disks[1].claim_status(true, true);
    world.mirror.return_leg(1, leg(&world.disks[1]).unwrap()).unwrap();
}

/// Does all that disks have to do, but for the first thing that one of them has.
fn all_but_first(world: &mut World, slow: usize) {
    for _ in 0..200 {
        for (at, disk) in world.disks.iter().enumerate() {
            let kept = usize::from(at == slow);
            (kept..disk.queued()).for_each(|_| disk.execute(kept));
        }
        world.turn();
    }
}

/// A write that a leg has not done by the time it was dropped does not drop it again when it is back.
#[test]
fn a_leg_that_is_back_is_not_dropped_by_what_was_before() {
    let mut world = two();
    world.write(SMALL, 1, 2, false);
    world.disks[1].fail(Some(ErrorKind::Away));
    all_but_first(&mut world, 0);
    assert!(matches!(standing(&world)[1], Behind { .. }));
    world.bring_back(1);
    all_but_first(&mut world, 0);
    assert!(matches!(standing(&world)[1], Resyncing { .. }), "{:?}", standing(&world));
    world.disks[0].execute(0);
    world.turn();
    assert!(matches!(standing(&world)[1], Resyncing { .. }), "{:?}", standing(&world));
    world.heal().unwrap();
    assert_eq!((differ(&world.disks), world.errors), (None, 0));
}

/// Who is fenced when a label is written is fenced.
#[test]
fn a_label_that_is_fenced_stops_the_mirror() {
    let mut world = two();
    world.disks[1].fail(Some(ErrorKind::NoSpace));
    world.write(SMALL, 1, 2, false);
    while world.disks[0].writes() == 0
        || world.mirror.legs[0].as_ref().unwrap().label_since.is_none()
    {
        assert!(world.step());
    }
    world.disks[0].fail(Some(ErrorKind::Fenced));
    world.wait();
    assert_eq!((world.mirror.stopped, world.errors), (Some(ErrorKind::Fenced), 1));
}

/// Nor is one with other content written any more that says so by a label.
#[test]
fn a_label_on_other_content_fails_the_leg() {
    let contents = (0..3).map(|leg| formatted(leg, &state(9, &[InSync; 3]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world.disks[2].fail(Some(ErrorKind::NoSpace));
    world.write(SMALL, 1, 2, false);
    while world.mirror.legs[1].as_ref().unwrap().label_since.is_none() {
        world.turn();
        assert!(world.step());
    }
    world.disks[1].fail(Some(ErrorKind::ContentChanged));
    world.wait();
    assert!(matches!(standing(&world)[1], Failed { .. }), "{:?}", standing(&world));
    assert_eq!(world.errors, 0);
}

/// What a leg says that was dropped already.
#[test]
fn the_last_word_of_a_leg_counts() {
    for kind in [ErrorKind::Fenced, ErrorKind::ContentChanged, ErrorKind::Io] {
        let mut world = two();
        world.write(SMALL, 1, 2, false);
        for _ in 0..7 {
            (0..world.disks[0].queued()).for_each(|_| world.disks[0].execute(0));
            world.now = world.now + Duration::from_secs(1);
            world.turn();
        }
        assert!(matches!(standing(&world)[1], Behind { .. }));
        world.disks[1].fail(Some(kind));
        world.disks[1].execute(0);
        world.turn();
        let stopped = (kind == ErrorKind::Fenced).then_some(kind);
        assert_eq!(world.mirror.stopped, stopped);
        let is_failed = matches!(standing(&world)[1], Failed { .. });
        assert_eq!(is_failed, kind == ErrorKind::ContentChanged);
    }
}

/// Many zeroes take long, and no leg is dropped for that; one that fails them half-way is.
#[test]
fn zeroes_are_written_in_pieces() {
    for fails in [false, true] {
        let mut world = two();
        (0..4).for_each(|nth| world.write(nth * 64, 1, 7, false));
        world.wait();
        world.zero(0, 256, Op::WriteZeroes);
        for piece in 0..4 {
            for disk in &world.disks {
                let len = 256 << 10;
                let one = (MIRROR_DATA_START + piece * len, len);
                assert_eq!(disk.queued_of(Op::WriteZeroes), [one]);
            }
            for _ in 0..4 {
                world.turn();
                world.now = world.now + Duration::from_secs(1);
            }
            world.disks.iter().for_each(|disk| (0..disk.queued()).for_each(|_| disk.execute(0)));
            world.turn();
            if fails && piece == 1 {
                break;
            }
        }
        if fails {
            world.disks[1].fail(Some(ErrorKind::NoSpace));
        }
        world.wait();
        assert_eq!(world.errors, 0);
        assert_eq!(standing(&world)[1] == InSync, !fails);
        if fails {
            world.bring_back(1);
        }
        world.heal().unwrap();
        (0..4).for_each(|nth| world.read(nth * 64));
        world.wait();
        assert!(world.reads.iter().all(|(_, bytes)| bytes.iter().all(|byte| *byte == 0)));
        assert_eq!((differ(&world.disks), world.reads.len()), (None, 4));
    }
}

/// A leg that is dropped while its label is written has one of two, and either is known.
#[test]
fn a_leg_that_is_dropped_in_the_middle_of_a_label_gets_what_its_bitmap_says() {
    for is_written in [false, true] {
        let mut world = three();
        world.disks[0].fail(Some(ErrorKind::NoSpace));
        world.write(SMALL, 1, 2, false);
        let is_drawing = |world: &World| {
            let leg = world.mirror.legs[1].as_ref().unwrap();
            leg.or == world.mirror.state.generation && leg.label_since.is_some()
        };
        while !is_drawing(&world) {
            world.turn();
            assert!(world.step());
        }
        // The flush before it.
        world.disks[1].execute(0);
        world.turn();
        assert_eq!(world.disks[1].queued_of(Op::Write).len(), 1);
        for _ in 0..9 {
            world.now = world.now + Duration::from_secs(1);
            (0..world.disks[2].queued()).for_each(|_| world.disks[2].execute(0));
            world.turn();
        }
        assert_eq!(letters(&world), "BBS");
        world.disks[0].fail(None);
        if !is_written {
            world.disks[1].fail(Some(ErrorKind::Io));
            world.disks[1].execute(0);
            world.disks[1].lose();
        }
        world.bring_back(1);
        let lacks = world.mirror.legs().nth(1).unwrap().1;
        assert_eq!(lacks, 1 << 20, "the region that was written, and no more");
        world.bring_back(0);
        world.heal().unwrap();
        assert_eq!((differ(&world.disks), world.errors), (None, 0));
    }
}

/// A leg that now and then cannot read a block is no bad leg.
#[test]
fn read_errors_are_forgotten_with_time() {
    let mut world = two();
    world.disks[0].fail_reads(true);
    let mut reads = 0;
    for minutes in 0..300 {
        world.now = world.now + Duration::from_secs(61);
        world.turn();
        // Until the leg that fails was asked.
        let errors = world.disks[0].writes();
        while world.disks[0].writes() == errors && reads < 20_000 {
            world.read(SMALL);
            world.wait();
            world.wait();
            reads += 1;
        }
        assert_eq!(letters(&world), "SS", "after {minutes} minutes");
    }
    for _ in 0..5000 {
        world.read(SMALL);
        world.wait();
    }
    assert_eq!((letters(&world), world.errors), ("BS".into(), 0), "too many at once");
}

/// What a flush by which regions are to be closed does not cover is lost, and no flush of a user would say so.
#[test]
fn a_flush_of_its_own_that_fails_is_a_loss() {
    for canary in [MirrorCanary::None, MirrorCanary::QuietLoss] {
        let mut world = two();
        world.mirror.canary = canary;
        world.mirror.poll_events(&mut Vec::new());
        world.disks.iter().for_each(|disk| disk.fail_flushes(true));
        world.pass(3);
        let mut news = Vec::new();
        world.mirror.poll_events(&mut news);
        assert_eq!(
            news.first() == Some(&VolumeEvent::Lost),
            canary == MirrorCanary::None,
            "{news:?}"
        );
        world.disks.iter().for_each(|disk| disk.fail_flushes(false));
        world.heal().unwrap();
        assert_eq!(differ(&world.disks), None);
    }
}

/// The last leg in sync takes no label: reads are served, writes and flushes wait for it, and fail in the end; when it does
/// again, all goes on.
#[test]
fn the_last_leg_may_fail_its_label_for_a_while() {
    for seconds in [3, 30] {
        let mut world = two();
        world.disks[1].fail(Some(ErrorKind::NoSpace));
        world.disks[0].fail_writes_in(Some(LABELS));
        world.write(SMALL, 1, 2, false);
        world.pass(1);
        world.write(0, 1, 3, false);
        world.flush();
        for _ in 0..seconds {
            let before = world.reads.len();
            world.read(SMALL);
            world.pass(1);
            assert_eq!((world.reads.len(), world.mirror.stopped), (before + 1, None));
        }
        let has_failed = seconds > 10;
        let ends = if has_failed { (3, 0) } else { (0, 3) };
        assert_eq!((world.errors, world.mirror.outstanding()), ends);
        if has_failed {
            world.write(SMALL, 1, 4, false);
            world.flush();
            world.pass(2);
            assert_eq!((world.errors, world.mirror.outstanding()), (5, 0), "nobody waits again");
        }
        let errors = world.errors;
        world.disks[0].fail_writes_in(None);
        world.pass(2);
        world.write(SMALL, 1, 5, false);
        world.flush();
        world.wait();
        assert_eq!((world.errors, &*letters(&world)), (errors, "SB"));
        world.bring_back(1);
        world.heal().unwrap();
        assert_eq!(differ(&world.disks), None);
    }
}

/// Nor does a mirror that is being opened end by that; a crash later all is as it was.
#[test]
fn legs_may_fail_the_labels_of_an_opening_for_a_while() {
    let contents = (0..2).map(|leg| formatted(leg, &state(9, &[InSync; 2]), [0, 0b11]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.disks.iter().for_each(|disk| disk.fail_writes_in(Some(LABELS)));
    world.write(SMALL, 1, 1, false);
    world.pass(15);
    assert_eq!((world.errors, world.mirror.outstanding()), (1, 0));
    world.disks.iter().for_each(|disk| disk.fail_writes_in(None));
    world.pass(2);
    world.write(SMALL, 1, 2, false);
    world.heal().unwrap();
    assert_eq!((world.errors, differ(&world.disks)), (1, None));
}
