//! Exports that are taken away while others are served.

use super::*;

/// All that is under way ends, then it is synced once and given out; its place is the next one's, in which nothing of
/// it is left.
#[test]
fn an_export_leaves_when_nothing_of_it_is_under_way() {
    let (mut exports, puppets) = puppets(2);
    let mut users = Dialect::default();
    let writer = grant(&mut exports, &mut users, 1, false);
    let reader = exports.open_read(2, 0);
    let other = exports.open_read(3, 1);
    let io = || Io::new(0, Op::Read, 0, 512);
    submit(&mut exports, 1, writer.pass, write(&Pool::new(0), 1)).unwrap();
    submit(&mut exports, 2, reader.pass, io()).unwrap();
    let begun = puppets[0].take();
    [1, 2].into_iter().for_each(|session| exports.end_session(session, AT));
    exports.leave(0);
    assert_eq!((exports.find("p0"), exports.find("p1")), (None, Some(1)));
    assert_eq!(exports.reports().len(), 1);
    for io in &begun {
        settle(&mut exports, &mut users);
        assert!(puppets[0].take().is_empty() && !exports.has_gone(), "{io:?} is in the volume");
        puppets[0].succeed(io);
        assert_eq!(poll(&mut exports).len(), 1);
    }
    settle(&mut exports, &mut users);
    let sync = puppets[0].take_one();
    assert_eq!(sync.op, Op::Flush);
    assert!(!exports.has_gone() && exports.leaving().eq(["p0"]) && exports.is_at_work());
    puppets[0].succeed(&sync);
    settle(&mut exports, &mut users);
    let (opening, volume) = exports.take_gone().unwrap();
    assert_eq!((opening.name.as_str(), volume.outstanding()), ("p0", 0));
    assert!(exports.take_gone().is_none() && exports.leaving().next().is_none());

    // Meanwhile the other goes on, and another of the same name has the place.
    submit(&mut exports, 3, other.pass, io()).unwrap();
    puppets[1].succeed(&puppets[1].take_one());
    assert_eq!(poll(&mut exports).len(), 1);
    let next = Puppet::new(9, Puppet::GEOMETRY);
    add_puppet(&mut exports, 0, &next);
    assert_eq!(exports.find("p0"), Some(0));
    assert_eq!(exports.admit(1, writer.pass).unwrap_err(), NoEntry::NoPass);
    exports.heard(1, AT);
    let again = grant(&mut exports, &mut users, 4, false);
    submit(&mut exports, 4, again.pass, write(&Pool::new(0), 2)).unwrap();
    assert_ne!(again.verifier, writer.verifier);
    assert_eq!((next.take().len(), puppets[0].take().len()), (1, 0));
}

/// Who is being recorded as the writer is, though nobody is told; and a sync that fails keeps nobody.
#[test]
fn what_is_being_recorded_is_recorded_before_an_export_leaves() {
    let (mut exports, _) = door(MemDisk::new(BYTES, 512, 1));
    let mut users = Dialect::default();
    settle(&mut exports, &mut users);
    claim(&mut exports, 1, false).unwrap();
    exports.settle(AT, &mut users);
    users.gone.push(1);
    exports.end_session(1, AT);
    exports.leave(0);
    settle(&mut exports, &mut users);
    let (_, volume) = exports.take_gone().expect("it has ended");
    assert!(users.granted.is_empty());
    let again = ExportConfig { name: "disk".into(), volume, read_only: false };
    assert_eq!(exports.add(again), 0);
    settle(&mut exports, &mut users);
    let report = &exports.reports()[0];
    assert_eq!(report.writer.as_ref().unwrap().name, "user 1");

    let (mut exports, puppets) = puppets(1);
    exports.leave(0);
    settle(&mut exports, &mut users);
    puppets[0].fail(&puppets[0].take_one());
    settle(&mut exports, &mut users);
    assert!(exports.take_gone().is_some());
    assert!(exports.take_note().unwrap().contains("p0"));
}

/// Found by seed 11469: the sessions that wanted an export are ended with it, but not those of a dead run of which
/// nobody knows yet what it wants.
#[test]
fn a_late_attach_to_an_export_that_came_back_fences_nobody() {
    let (mut exports, puppets) = puppets(1);
    let mut users = Dialect::default();
    let now = User { session: 41, number: 41, ..user(1) };
    let mut ask = |exports: &mut Exports, user: &User, resumes| {
        let claim = WriteClaim { user, transaction: 1, export: 0, resumes, takes_over: false };
        exports.claim(AT, claim)?;
        settle(exports, &mut users);
        Ok::<_, Denied>(users.granted.last().unwrap().1)
    };
    let granted = ask(&mut exports, &now, None).unwrap();
    exports.end_session(41, AT);
    exports.leave(0);
    settle(&mut exports, &mut Dialect::default());
    puppets[0].succeed(&puppets[0].take_one());
    settle(&mut exports, &mut Dialect::default());
    let (ExportOpening { name, .. }, volume) = exports.take_gone().unwrap();
    exports.add(ExportConfig { name, volume, read_only: false });
    settle(&mut exports, &mut Dialect::default());
    let denied = ask(&mut exports, &user(1), None).unwrap_err();
    assert_eq!(denied.why, Denial::Busy);
    assert!(denied.text.contains("a later session"), "{}", denied.text);
    let again = User { session: 42, number: 42, ..now };
    let resumed = ask(&mut exports, &again, Some(granted.writer_generation)).unwrap();
    assert_eq!(resumed.writer_generation, granted.writer_generation);
}

/// One reload has put another volume under its name, while the former still ends.
#[test]
fn what_an_export_knew_goes_to_the_one_that_has_its_name_already() {
    let (mut exports, puppets) = puppets(1);
    let mut users = Dialect::default();
    let former = grant(&mut exports, &mut users, 9, false);
    exports.end_session(9, AT);
    exports.leave(0);
    settle(&mut exports, &mut users);
    let next = Puppet::new(9, Puppet::GEOMETRY);
    add_puppet(&mut exports, 0, &next);
    puppets[0].succeed(&puppets[0].take_one());
    settle(&mut exports, &mut users);
    assert!(exports.take_gone().is_some());
    let late = User { session: 4, number: 4, ..user(9) };
    let export = exports.find("p0").unwrap();
    let claim =
        WriteClaim { user: &late, transaction: 1, export, resumes: None, takes_over: false };
    let denied = exports.claim(AT, claim).unwrap_err();
    assert!(denied.text.contains("a later session"), "{}", denied.text);
    assert_eq!(former.writer_generation, 1);
}

/// A volume that has nobody's I/O may be at work all the same.
#[test]
fn an_export_stays_until_its_volume_is_at_rest() {
    let (mut exports, puppets) = puppets(1);
    let mut users = Dialect::default();
    puppets[0].be_busy(true);
    exports.leave(0);
    settle(&mut exports, &mut users);
    assert!(puppets[0].take().is_empty() && !exports.has_gone(), "before its last sync");
    puppets[0].be_busy(false);
    settle(&mut exports, &mut users);
    let sync = puppets[0].take_one();
    puppets[0].be_busy(true);
    puppets[0].succeed(&sync);
    settle(&mut exports, &mut users);
    assert!(!exports.has_gone() && exports.take_gone().is_none(), "and behind it");
    puppets[0].be_busy(false);
    assert!(exports.has_gone() && exports.take_gone().is_some());
}
