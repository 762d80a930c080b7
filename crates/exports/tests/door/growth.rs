//! Volumes that grow, or whose image is cut, and who is told.

use super::*;

/// Whoever polls a volume hears of what has happened to it, whether or not anything ends.
#[test]
fn growth_is_told_while_an_io_hangs() {
    let (mut exports, puppets) = puppets(2);
    let mut users = Dialect::default();
    let reader = exports.open_read(1, 1);
    submit(&mut exports, 1, reader.pass, Io::new(0, Op::Read, 0, 512)).unwrap();
    puppets[1].tell(VolumeEvent::Resized { bytes: 16384 });
    assert!(poll(&mut exports).is_empty());
    exports.settle(AT, &mut users);
    assert_eq!(users.resized, [(1, reader.pass, 16384)]);
}

#[test]
fn an_export_whose_image_was_cut_is_told_of_as_such() {
    let (mut exports, puppets) = puppets(2);
    let reader = exports.open_read(1, 1);
    submit(&mut exports, 1, reader.pass, Io::new(0, Op::Read, 0, 512)).unwrap();
    puppets[1].tell(VolumeEvent::Shrunk);
    assert!(poll(&mut exports).is_empty());
    exports.settle(AT, &mut Dialect::default());
    let cut: Vec<_> = exports.reports().iter().map(|report| report.has_shrunk).collect();
    assert_eq!(cut, [false, true]);
}

#[test]
fn growth_is_told_once_to_all_who_have_it_open_and_are_not_fenced() {
    let pool = Pool::new(0);
    let mut exports = Exports::new(ExportsConfig::default(), 7, &Pool::new(0));
    let mut store = FileStore::new(MemDisk::new(BYTES, 512, 1), 512, &pool).unwrap();
    store.disk_mut().grow(2 * BYTES);
    exports.add(ExportConfig { name: "disk".into(), volume: Box::new(store), read_only: false });
    let mut users = Dialect::default();
    let reader = exports.open_read(1, 0);
    let fenced = grant(&mut exports, &mut users, 2, false);
    let writer = grant(&mut exports, &mut users, 3, true);
    assert_eq!(users.fenced, [(2, fenced.pass)]);
    assert_eq!((reader.geometry.bytes, writer.geometry.bytes), (BYTES, BYTES));
    let beyond = || Io { offset: BYTES, ..write(&pool, 5) };
    assert_eq!(submit(&mut exports, 3, writer.pass, beyond()), Err(ErrorKind::Invalid));
    assert!(exports.deadline(AT) <= AT, "it looks at once");
    let mut polled = 0;
    while users.resized.is_empty() {
        exports.refresh(AT);
        // A descriptor tells, of a disk that has one.
        exports.disk_ready();
        assert!(poll(&mut exports).is_empty());
        exports.settle(AT, &mut users);
        polled += 1;
        assert!(polled < 100, "nobody is told");
    }
    assert_eq!(users.resized, [(1, reader.pass, 2 * BYTES), (3, writer.pass, 2 * BYTES)]);
    assert_eq!(submit(&mut exports, 3, writer.pass, beyond()), Ok(()));
    assert_eq!(exports.open_read(4, 0).geometry.bytes, 2 * BYTES);
    exports.take_release();
    exports.take_started();
    // The next look is a second later.
    assert_eq!(exports.deadline(AT), AT + std::time::Duration::from_secs(1));
    exports.refresh(exports.deadline(AT));
    exports.disk_ready();
    while poll(&mut exports).is_empty() {}
    exports.settle(AT, &mut users);
    assert_eq!(users.resized.len(), 2);
}

#[test]
fn nobody_looks_again_where_nothing_can_grow() {
    let mut exports = Exports::new(ExportsConfig::default(), 7, &Pool::new(0));
    let volume = Box::new(thinwire_volume::stores::NullStore::new(BYTES, 512));
    exports.add(ExportConfig { name: "null".into(), volume, read_only: false });
    settle(&mut exports, &mut Dialect::default());
    exports.take_started();
    exports.refresh(AT);
    assert_eq!(exports.deadline(AT), Time::NEVER);
}
