//! What a record that cannot be stored means for who comes back, and for who waits meanwhile.

use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_exports::{Denial, ExportConfig, Exports, ExportsConfig, NoEntry, WriteClaim};
use thinwire_volume::stores::FileStore;
use thinwire_volume::testing::MemDisk;
use thinwire_volume::{
    Completion, CutAct, CutOrder, ErrorKind, Io, Op, WriterRecord, store_writer,
};

use super::{AT, BYTES, Dialect, claim, door, grant, poll, puppets, settle, submit, user, write};

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

/// What is on record says it also to another life of the node, which knows nothing of who wrote in the one before.
#[test]
fn who_has_not_written_is_known_behind_a_restart() {
    let nobody = WriterRecord { idle: 2, ..WriterRecord::new(5, [0; 16], "") };
    let held = WriterRecord { idle: 2, ..WriterRecord::new(5, [1; 16], "user 1") };
    for (record, who, resumes, granted) in [
        // The last one has ended in order, and has not written.
        (nobody, 2, None, (6, 2)),
        (held.released(), 2, None, (6, 0)),
        // It is not there, and may have.
        (held, 2, None, (6, 0)),
        (held, 1, None, (6, 0)),
        (held, 1, Some(5), (5, 2)),
    ] {
        let pool = Pool::new(0);
        let mut store = FileStore::new(MemDisk::new(BYTES, 512, 1), 512, &pool).unwrap();
        store_writer(&mut store, record).unwrap();
        let mut exports = Exports::new(ExportsConfig::default(), 7, &pool);
        let volume = Box::new(store);
        exports.add(ExportConfig { name: "disk".into(), volume, read_only: false });
        let (mut users, user) = (Dialect::default(), user(who));
        let takes_over = resumes.is_none();
        let claim = WriteClaim { user: &user, transaction: 1, export: 0, resumes, takes_over };
        exports.claim(AT, claim).unwrap();
        settle(&mut exports, &mut users);
        let (_, told) = users.granted[0];
        assert_eq!((told.writer_generation, told.idle_generations), granted, "{record:?}");
        // It is there no more, and has not written either.
        exports.close(who.into(), told.pass, 5);
        settle(&mut exports, &mut users);
        let next = grant(&mut exports, &mut users, 3, false);
        let more = if resumes.is_some() { 0 } else { told.idle_generations + 1 };
        assert_eq!(next.idle_generations, more, "{record:?}");
    }
}

/// What an initiator does under a generation of its own: only what changes something says that it has written, however it ends.
#[test]
fn what_changes_something_ends_idle_generations() {
    let io = |op| Io::new(0, op, 0, 512);
    let of = |op| match op {
        Op::Write => write(&Pool::new(0), 1),
        Op::Flush => Io::new(0, op, 0, 0),
        Op::Cut => CutOrder::of_known(CutAct::Keep, 7).io(0, &Pool::new(0)),
        _ => io(op),
    };
    for (op, writes) in [
        (Op::Write, true),
        (Op::WriteZeroes, true),
        (Op::Discard, true),
        (Op::Cut, true),
        (Op::Read, false),
        (Op::Flush, false),
    ] {
        let (mut exports, puppets) = puppets(1);
        let mut users = Dialect::default();
        let first = grant(&mut exports, &mut users, 1, false);
        submit(&mut exports, 1, first.pass, of(op)).unwrap();
        let [asked] = puppets[0].take().try_into().unwrap();
        puppets[0]
            .complete(Completion::new(asked.token, Err(asked.error(ErrorKind::Io, "puppet"))));
        assert_eq!(poll(&mut exports).len(), 1);
        exports.close(1, first.pass, 5);
        settle(&mut exports, &mut users);
        let next = grant(&mut exports, &mut users, 2, false);
        let idle = if writes { 0 } else { 1 };
        assert_eq!((next.writer_generation, next.idle_generations), (2, idle), "{op:?}");
    }
}
