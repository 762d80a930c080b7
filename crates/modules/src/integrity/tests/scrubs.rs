//! A scrub finds everything, beside users, and goes on where it was.

use thinwire_buffer::Time;

use super::super::*;
use super::world::*;

fn spoiled(blocks: &[u64]) -> World {
    let mut world = World::over(made(PART_BYTES));
    for block in [0, SECOND, LAST] {
        world.write(block, 2, 7, false);
    }
    world.succeed();
    let mut content = world.close();
    for block in blocks {
        change(&mut content, place_of(*block), |bytes| bytes[17] ^= 4);
    }
    World::over(content)
}

#[test]
fn everything_is_read_and_what_is_wrong_named() {
    let mut world = spoiled(&[]);
    let report = world.scrub();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.checked_bytes, report.position), (DATA_BYTES, DATA_BYTES));
    // Also where nothing was ever written.
    let mut world = spoiled(&[1, SECOND + 100, LAST + 3]);
    let report = world.scrub();
    assert_eq!((report.bad, report.repaired, report.unverified), (3, 0, 0));
    assert_eq!(report.places, [1, SECOND + 100, LAST + 3].map(|block| block * BLOCK));
    assert_eq!(report.module, NAME);
    assert_eq!(world.news.len(), 3);
    // Written again it is as it should be.
    world.write(1, 1, 1, false);
    world.succeed();
    assert_eq!(world.scrub().bad, 2);
}

#[test]
fn what_cannot_be_read_is_counted_block_by_block() {
    let mut world = spoiled(&[]);
    world.disk.fail_block(Some(place_of(SECOND + 5) / BLOCK));
    let report = world.scrub();
    assert_eq!((report.bad, &report.places[..]), (1, &[(SECOND + 5) * BLOCK][..]));
    assert_eq!(report.checked_bytes, DATA_BYTES - BLOCK);
}

#[test]
fn it_goes_on_from_where_it_was() {
    let mut world = spoiled(&[1, LAST]);
    world.volume.begin_scrub(SECOND * BLOCK + 5);
    while world.volume.scrub_report().is_running {
        world.turn();
        world.step();
    }
    let report = world.volume.scrub_report();
    assert_eq!((report.bad, report.checked_bytes), (1, DATA_BYTES - SECOND * BLOCK));
    world.volume.begin_scrub(0);
    while world.volume.scrub_report().position == 0 {
        world.turn();
        world.step();
    }
    world.volume.end_scrub();
    let report = world.volume.scrub_report();
    assert!(!report.is_running && !report.has_failed);
    assert_eq!((report.position, report.bad), (SECOND * BLOCK, 1));
    world.pass(1);
    assert_eq!(world.volume.scrub_report(), report, "it has ended");
    // Begun anew while it goes on, what it has counted so far does not count.
    world.volume.begin_scrub(0);
    world.steps(3);
    world.volume.begin_scrub(0);
    while world.volume.scrub_report().is_running {
        world.turn();
        world.step();
    }
    assert_eq!(world.volume.scrub_report().bad, 2);
}

/// Users get twice as much as it takes.
#[test]
fn users_come_first() {
    let mut world = spoiled(&[]);
    world.read(0, 1, false).unwrap();
    world.volume.begin_scrub(0);
    world.steps(1000);
    let checked = world.volume.scrub_report().checked_bytes;
    // The time stands still, and somebody always waits for something.
    let mut used = 0;
    for nth in 0..120 {
        world.submit(Io::new(0, Op::Read, nth % 7 * BLOCK, 8 * BLOCK), 0);
        world.steps(2);
        used += 8 * BLOCK;
    }
    let more = world.volume.scrub_report().checked_bytes - checked;
    assert!(more <= used / 2 + BLOCK && more > used / 4, "{more} beside {used}");
    assert!(world.volume.scrub_report().is_running);
    world.wait();
    world.pass(10);
    assert!(!world.volume.scrub_report().is_running, "nobody uses it");
}

#[test]
fn the_end_ends_it() {
    let mut world = spoiled(&[]);
    world.read(0, 1, false).unwrap();
    world.volume.begin_scrub(0);
    world.steps(3);
    world.close();
    let mut world = spoiled(&[]);
    world.volume.begin_scrub(0);
    assert_eq!(world.volume.next_check(), Time::NEVER, "it is not open yet");
    world.pass(9);
    assert!(world.volume.scrub_report().is_clean());
}
