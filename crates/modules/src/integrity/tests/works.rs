//! Checks and scrubs that pause because somebody says so (`work.rs`).

use std::time::Duration;

use thinwire_volume::{Work, WorkPace};

use super::super::*;
use super::world::*;

/// A crash has left everything open that was written.
fn open_at_a_crash() -> World {
    let mut world = World::over(made(PART_BYTES));
    for block in [0, SECOND] {
        world.write(block, 2, 7, false);
    }
    world.flush();
    world.wait();
    let content = world.disk.content();
    World::over(content)
}

#[test]
fn what_is_paused_reads_nothing_for_itself() {
    let mut world = open_at_a_crash();
    world.volume.set_pace(WorkPace { is_paused: true, percent: 50 });
    world.pass(60);
    let left = world.volume.left();
    assert!(left >= 2 << 21, "{left} bytes are open");
    world.volume.begin_scrub(0);
    world.pass(60);
    let stands = world.volume.scrub_report();
    assert_eq!((stands.is_running, stands.checked_bytes), (true, 0));
    // Users do not notice.
    world.write(1, 1, 9, false);
    assert_eq!(world.read(1, 1, false).unwrap()[0], 9);
    world.volume.set_pace(WorkPace::default());
    world.pass(60);
    assert_eq!(world.volume.left(), 0);
    let ended = world.volume.scrub_report();
    assert!(!ended.is_running && ended.is_clean() && ended.checked_bytes == DATA_BYTES);
    world.volume.set_pace(WorkPace { is_paused: true, percent: 50 });
    world.close();
}

/// A crash has left a block that fits nothing: its region is passed over, until somebody writes it.
#[test]
fn what_was_passed_over_is_read_again_once_it_is_written() {
    let mut world = open_at_a_crash();
    let content = world.disk.content();
    for canary in [IntegrityCanary::None, IntegrityCanary::PassesOverForGood] {
        let mut content = content.clone();
        change(&mut content, place_of(0), |bytes| bytes[5] ^= 1);
        world = World::with(content, canary, None);
        world.pass(60);
        let left = world.volume.left();
        assert!(left > 0, "it is in doubt");
        // Elsewhere in it: it is read once more, and stays as it was.
        world.write(1, 1, 8, false);
        world.flush();
        world.pass(60);
        assert_eq!(world.volume.left(), left);
        world.write(0, 1, 9, false);
        world.flush();
        world.pass(60);
        let is_planted = canary != IntegrityCanary::None;
        assert_eq!(world.volume.left(), if is_planted { left } else { 0 });
    }
}

/// Each read takes 300 ms, and the next is asked for when it is over: what is looked through behind a crash does not get in between.
#[test]
fn who_does_one_thing_after_the_other_is_not_behind_what_is_looked_through() {
    for canary in [IntegrityCanary::None, IntegrityCanary::IdleBetween] {
        let content = open_at_a_crash().disk.content();
        let mut world = World::with(content, canary, None);
        // Nobody has used it yet, and may at once.
        let mut nth = 0;
        while nth < 10 {
            let io = Io::new(0, Op::Read, (LAST + nth % 4) * BLOCK, BLOCK);
            world.submit(io, 0);
            let before = world.ends.len();
            while world.ends.len() == before {
                world.turn();
                world.now = world.now + Duration::from_millis(300);
                assert!(world.step(), "it is being read");
            }
            nth += 1;
        }
        let own = world.disk.queued_of(Op::Read);
        let is_planted = canary != IntegrityCanary::None;
        assert_eq!(!own.is_empty(), is_planted, "{canary:?}: {own:?}");
        world.turn();
        world.now = world.now + Duration::from_millis(20);
        world.turn();
        assert!(!world.disk.queued_of(Op::Read).is_empty(), "nobody uses it");
    }
}
