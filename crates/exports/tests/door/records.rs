//! What a record that cannot be stored means for who comes back, and for who waits meanwhile.

use std::time::Duration;

use thinwire_exports::{Denial, NoEntry, WriteClaim};
use thinwire_volume::testing::MemDisk;

use super::{AT, BYTES, Dialect, claim, door, grant, settle, user};

/// Either of the two may be found after a crash: the record without a writer would give the export to anybody.
#[test]
fn who_comes_back_after_an_end_that_failed_is_recorded_anew() {
    let mut disk = MemDisk::new(BYTES, 512, 1);
    // What the first claim stores; then the end, and the return.
    disk.fail_records([false, false, true, true]);
    let (mut exports, _) = door(disk);
    let mut users = Dialect::default();
    let first = grant(&mut exports, &mut users, 1, false);
    exports.close(1, first.pass, 5);
    settle(&mut exports, &mut users);
    assert_eq!(users.closed, [1]);
    let user = user(1);
    let resumes = Some(first.writer_generation);
    let again = WriteClaim { user: &user, transaction: 2, export: 0, resumes, takes_over: false };
    exports.claim(AT, again).unwrap();
    settle(&mut exports, &mut users);
    let denied: Vec<_> = users.denied.iter().map(|(who, denied)| (*who, denied.why)).collect();
    assert_eq!((denied, users.granted.len()), (vec![(1, Denial::Record)], 1), "not on record");
    // From here on it can be stored.
    exports.claim(AT, again).unwrap();
    settle(&mut exports, &mut users);
    let (_, granted) = *users.granted.last().unwrap();
    assert_eq!((users.granted.len(), granted.writer_generation), (2, first.writer_generation));
}

/// Nobody else has to ask for something first.
#[test]
fn a_writer_goes_on_as_soon_as_its_record_is_durable_again() {
    let mut disk = MemDisk::new(BYTES, 512, 1);
    // What the first claim stores, and half of a change; then its other half and what was to undo it.
    disk.fail_records([false, false, false, true, true]);
    let (mut exports, _) = door(disk);
    let mut users = Dialect::default();
    let first = grant(&mut exports, &mut users, 1, false);
    claim(&mut exports, 2, true).unwrap();
    settle(&mut exports, &mut users);
    exports.end_session(2, AT);
    users.gone.push(2);
    settle(&mut exports, &mut users);
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Waits, "it is in doubt");
    exports.take_release();
    let mut is_told = false;
    for second in 1..4 {
        exports.settle(AT + Duration::from_secs(second), &mut users);
        settle(&mut exports, &mut users);
        is_told |= exports.take_release();
    }
    assert!(exports.admit(1, first.pass).is_ok());
    assert!(is_told, "what waited is to be tried again");
}
