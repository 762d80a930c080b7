//! What status is told of the writers of an export.

use super::*;

#[test]
fn a_report_says_who_holds_an_export_and_until_when() {
    let (mut exports, pool) = door(MemDisk::new(BYTES, 512, 1));
    let mut users = Dialect::default();
    let report = |exports: &Exports| exports.reports().remove(0);
    // It is not known who may write before that has been read.
    assert_eq!(report(&exports).record, RecordReport::Reading);
    settle(&mut exports, &mut users);
    let new = report(&exports);
    assert_eq!((new.generation, new.record, new.losses), (0, RecordReport::Settled, 0));
    assert!(new.writer.is_none());
    let reader = exports.open_read(9, 0);
    let granted = grant(&mut exports, &mut users, 1, false);
    let lease = ExportsConfig::default().lease;
    let writer = report(&exports).writer.unwrap();
    assert_eq!((writer.name.as_str(), writer.attached), ("user 1", true));
    assert_eq!((writer.last_heard, writer.lease_end), (Some(AT), Some(AT + lease)));
    // Its session ends without a word; a reader's says nothing of a writer.
    let later = AT + lease;
    exports.end_session(1, later);
    let writer = report(&exports).writer.unwrap();
    assert_eq!((writer.attached, writer.last_heard), (false, Some(later)));
    assert_eq!(report(&exports).generation, granted.writer_generation);
    exports.close(9, reader.pass, 1);
    // The next life of the node has only the record.
    let mut volume = FileStore::new(MemDisk::new(BYTES, 512, 1), 512, &pool).unwrap();
    store_writer(&mut volume, WriterRecord::new(5, [1; 16], "user 1")).unwrap();
    let mut exports = Exports::new(ExportsConfig::default(), 7, &pool);
    let volume = Box::new(volume);
    exports.add(ExportConfig { name: "disk".into(), volume, read_only: false });
    settle(&mut exports, &mut users);
    let writer = report(&exports).writer.unwrap();
    assert_eq!((writer.name.as_str(), writer.attached), ("user 1", false));
    assert_eq!((writer.last_heard, writer.lease_end), (None, None));
    let granted = grant(&mut exports, &mut users, 1, false);
    exports.close(1, granted.pass, 1);
    exports.settle(AT, &mut users);
    assert_eq!(report(&exports).record, RecordReport::Changing);
    settle(&mut exports, &mut users);
    assert_eq!(report(&exports).record, RecordReport::Settled);
    assert!(report(&exports).writer.is_none());
}

#[test]
fn a_report_says_since_when_a_writer_holds_an_export() {
    let mut users = Dialect::default();
    let (mut exports, pool) = door(MemDisk::new(BYTES, 512, 1));
    let since = |exports: &Exports| exports.reports().remove(0).writer.unwrap().since;
    let claim_as = |exports: &mut Exports, users: &mut Dialect, who, session, resumes, now| {
        let user = User { session, number: session, ..user(who) };
        let claim =
            WriteClaim { user: &user, transaction: 1, export: 0, resumes, takes_over: false };
        exports.claim(now, claim).unwrap();
        for _ in 0..100 {
            exports.settle(now, users);
            exports.poll(|_, _, _, _| panic!("no I/O of a user"));
        }
        let (granted_to, granted) = *users.granted.last().unwrap();
        assert_eq!(granted_to, session);
        Some(granted.writer_generation)
    };
    let claim = |exports: &mut Exports, users: &mut Dialect, session, resumes, now| {
        claim_as(exports, users, 1, session, resumes, now)
    };
    let [later, last] = [1, 2].map(|s| AT + std::time::Duration::from_secs(s));
    let generation = claim(&mut exports, &mut users, 1, None, AT);
    assert_eq!(since(&exports), Some(AT));
    // It comes back in another session, and goes on.
    exports.end_session(1, later);
    assert_eq!(since(&exports), Some(AT));
    assert_eq!(claim(&mut exports, &mut users, 2, generation, later), generation);
    assert_eq!(since(&exports), Some(AT));
    // Its successor does not.
    let generation = claim(&mut exports, &mut users, 3, None, last);
    assert_eq!(since(&exports), Some(last));
    // Nor who ends in order, and does not hear that it has.
    let pass = users.granted.last().unwrap().1.pass;
    exports.close(3, pass, 1);
    settle(&mut exports, &mut users);
    let evening = last + std::time::Duration::from_secs(60);
    assert_eq!(claim(&mut exports, &mut users, 4, generation, evening), generation);
    assert_eq!(since(&exports), Some(evening));
    // Whoever else has had it under that generation since.
    let mut last = 4;
    for who in (2..=70).chain([1]) {
        exports.close(last, users.granted.last().unwrap().1.pass, 1);
        settle(&mut exports, &mut users);
        last = 100 + u64::from(who);
        claim_as(&mut exports, &mut users, who, last, generation, evening);
        assert_eq!(since(&exports), Some(evening), "{who}");
    }
    // In the next life of the node it is as it says: since before.
    let mut volume = FileStore::new(MemDisk::new(BYTES, 512, 1), 512, &pool).unwrap();
    let record = WriterRecord::new(generation.unwrap(), [1; 16], "user 1");
    store_writer(&mut volume, record).unwrap();
    let mut exports = Exports::new(ExportsConfig::default(), 7, &pool);
    let volume = Box::new(volume);
    exports.add(ExportConfig { name: "disk".into(), volume, read_only: false });
    settle(&mut exports, &mut users);
    assert_eq!(since(&exports), None);
    claim(&mut exports, &mut users, 4, generation, AT);
    assert_eq!(since(&exports), None);
    claim(&mut exports, &mut users, 5, None, later);
    assert_eq!(since(&exports), Some(later));
}

/// As of a protocol whose clients say nothing when they have nothing to do.
#[test]
fn a_writer_without_a_lease_keeps_what_it_has_however_silent() {
    for is_leased in [true, false] {
        let (mut exports, _pool) = door(MemDisk::new(BYTES, 512, 1));
        let mut users = Dialect::default();
        settle(&mut exports, &mut users);
        let silent = User { is_leased, ..user(1) };
        let claim =
            |user| WriteClaim { user, transaction: 1, export: 0, resumes: None, takes_over: false };
        exports.claim(AT, claim(&silent)).unwrap();
        settle(&mut exports, &mut users);
        let writer = exports.reports().remove(0).writer.unwrap();
        assert_eq!(writer.lease_end.is_some(), is_leased);
        // Nobody has said that it was heard: the node itself stood still.
        let later = AT + 10 * ExportsConfig::default().lease;
        let other = user(2);
        let denied = exports.claim(later, claim(&other)).and_then(|()| {
            exports.settle(later, &mut users);
            users.denied.pop().map_or(Ok(()), |(_, denied)| Err(denied))
        });
        match (is_leased, denied) {
            (true, Ok(())) => {}
            (false, Err(denied)) => {
                assert_eq!(denied.why, Denial::Busy);
                assert!(denied.text.contains("until it ends"), "{}", denied.text);
            }
            (_, other) => panic!("{is_leased}: {other:?}"),
        }
    }
}
