//! The file store on disks of every kind.

use super::*;
use crate::store_writer;
use crate::testing::{MemDisk, exercise, finish};

fn store(disk: MemDisk, block_bytes: u32) -> FileStore<MemDisk> {
    FileStore::new(disk, block_bytes, &Pool::new(16 << 20)).unwrap()
}

fn run(store: &mut FileStore<MemDisk>, io: Io) -> Completion {
    finish(store, &mut || {}, io)
}

fn write(offset: u64, parts: &[&[u8]], shift: usize) -> Io {
    let pool = Pool::new(0);
    let mut data = SegList::new();
    for part in parts {
        let mut buf = pool.get(shift + part.len());
        buf[shift..].copy_from_slice(part);
        data.push(buf.freeze().slice(shift, part.len()));
    }
    Io { data: data.clone(), ..Io::new(1, Op::Write, offset, data.bytes() as u64) }
}

#[test]
fn it_conforms_on_disks_of_every_alignment() {
    for (seed, align, block) in [(1, 1, 512), (2, 512, 512), (3, 512, 4096), (4, 4096, 4096)] {
        let mut store = store(MemDisk::new(3 << 20, align, seed), block);
        let report = exercise(&mut store, &mut || {}, seed, 2000);
        assert!(report.ios > 2000 && report.overlaps > 100);
        let log = &store.disk().log;
        assert!("rwWfpz".chars().all(|letter| log.contains(letter)));
    }
    let mut store = store(MemDisk::new(3 << 20, 512, 9).lying(), 512);
    exercise(&mut store, &mut || {}, 9, 2000);
}

#[test]
fn only_what_the_disk_cannot_take_is_copied() {
    let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
    run(&mut store, write(0, &[&[1; 512], &[2; 4096]], 0)).result.unwrap();
    run(&mut store, write(8192, &[&[3; 1024]], 512)).result.unwrap();
    assert_eq!(store.copied_bytes(), 0);
    run(&mut store, write(0, &[&[4; 512]], 128)).result.unwrap();
    assert_eq!(store.copied_bytes(), 512);
    run(&mut store, write(0, &[&[5; 100], &[6; 412]], 0)).result.unwrap();
    assert_eq!(store.copied_bytes(), 1024);
    let data = run(&mut store, Io::new(2, Op::Read, 0, 1024)).data.to_vec();
    assert_eq!((data[99], data[100], data[511], data[512]), (5, 6, 6, 2));
    // A jumbo frame in chunks: the first suits the disk, the others only together.
    let whole = vec![7; 3584];
    let io = write(0, &[&whole, &[8; 3790], &[9; 818], &whole, &[8; 512]], 0);
    run(&mut store, io).result.unwrap();
    assert_eq!(store.copied_bytes(), 1024 + 3790 + 818);
    // A run ends with a whole number of blocks, or not at all.
    run(&mut store, write(0, &[&[1; 100], &[2; 512], &[3; 412], &[4; 512]], 0)).result.unwrap();
    assert_eq!(store.copied_bytes(), 1024 + 3790 + 818 + 1024);
    let data = run(&mut store, Io::new(2, Op::Read, 0, 12_288)).data.to_vec();
    let mut expected = [&whole[..], &[8; 3790], &[9; 818], &whole, &[8; 512]].concat();
    expected[..1536].copy_from_slice(&[&[1; 100][..], &[2; 512], &[3; 412], &[4; 512]].concat());
    assert_eq!(data, expected);
}

#[test]
fn no_more_is_copied_in_a_turn_than_the_disk_allows() {
    let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
    store.disk_mut().copies_left = Some(0);
    for token in 0..8 {
        let io = write(4096 * token, &[&[token as u8 + 1; 4096]], 128);
        store.submit(Io { token, ..io });
    }
    // What needs no copy goes past them.
    store.submit(Io { token: 8, ..write(65_536, &[&[9; 4096]], 0) });
    let mut done = Vec::new();
    for turn in 0..=4 {
        (0..1000).for_each(|_| store.poll(&mut done));
        assert_eq!(store.copied_bytes(), 8192 * turn);
        assert_eq!(
            (done.len(), store.outstanding()),
            (1 + 2 * turn as usize, 8 - 2 * turn as usize)
        );
        store.disk_mut().copies_left = Some(8192 + 4095);
    }
    assert!(done.iter().all(|one| one.result.is_ok()) && done[0].token == 8);
    let data = run(&mut store, Io::new(9, Op::Read, 0, 32_768)).data.to_vec();
    assert!(data.chunks(4096).zip(1..).all(|(block, number)| block == [number; 4096]));
}

#[test]
fn a_long_write_zeroes_takes_a_bounded_part_of_each_turn() {
    let mut store = store(MemDisk::new(64 << 20, 512, 1).lying(), 512);
    let flags = IoFlags { no_hole: true, ..IoFlags::default() };
    let mut most = 0;
    for _ in 0..16 {
        store.submit(Io { flags, ..Io::new(1, Op::WriteZeroes, 0, 64 << 20) });
        let mut done = Vec::new();
        while done.is_empty() {
            let (before, wakes) = (store.disk().log.len(), store.disk().wakes);
            store.poll(&mut done);
            let count = store.disk().log.len() - before;
            assert_eq!(store.disk().wakes > wakes, count == 2 && done.is_empty(), "{count}");
            most = most.max(count);
        }
        done[0].result.unwrap();
    }
    assert_eq!(most, 2);
}

#[test]
fn durable_zeroes_and_discards_are_flushed() {
    let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
    for (op, no_hole) in [(Op::Discard, false), (Op::WriteZeroes, false), (Op::WriteZeroes, true)] {
        let flags = IoFlags { fua: true, no_hole, ..IoFlags::default() };
        run(&mut store, Io { flags, ..Io::new(1, op, 0, 512) }).result.unwrap();
    }
    assert_eq!(store.disk().log, "pfpfzf");
}

#[test]
fn zeroes_are_written_where_the_disk_cannot_make_them() {
    let mut store = store(MemDisk::new(4 << 20, 512, 1).lying(), 512);
    run(&mut store, write(512, &[&[7; 512]], 0)).result.unwrap();
    let flags = IoFlags { fua: true, ..IoFlags::default() };
    run(&mut store, Io { flags, ..Io::new(1, Op::WriteZeroes, 0, (2 << 20) + 512) })
        .result
        .unwrap();
    assert_eq!(store.disk().log, "wWWW");
    run(&mut store, Io::new(1, Op::Discard, 0, 512)).result.unwrap();
    assert_eq!(run(&mut store, Io::new(1, Op::Read, 0, 4096)).data.to_vec(), vec![0; 4096]);
}

#[test]
fn errors_of_the_disk_become_errors_of_the_io() {
    let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
    for (errno, kind) in [
        (28, ErrorKind::NoSpace),
        (122, ErrorKind::NoSpace),
        (30, ErrorKind::ReadOnly),
        (5, ErrorKind::Io),
        (22, ErrorKind::Io),
    ] {
        store.disk_mut().fail_with(Some(errno));
        let error = run(&mut store, write(512, &[&[7; 512]], 0)).result.unwrap_err();
        assert_eq!((error.kind, error.op, error.offset, error.len), (kind, Op::Write, 512, 512));
        assert!(run(&mut store, Io::new(1, Op::Flush, 0, 0)).result.is_err());
        assert!(run(&mut store, Io::new(1, Op::Discard, 0, 512)).result.is_err());
    }
    store.disk_mut().fail_with(None);
    run(&mut store, write(512, &[&[7; 512]], 0)).result.unwrap();
}

/// The other volume's sync may have failed in the kernel before this one's did not.
#[test]
fn a_sync_that_ran_beside_another_is_told_when_both_have_ended() {
    let scope = SyncScope::alone();
    let fua = IoFlags { fua: true, ..IoFlags::default() };
    for (op, flags) in [(Op::Flush, IoFlags::default()), (Op::Write, fua)] {
        let mut store = store(MemDisk::new(1 << 20, 512, 1).within(scope.clone()), 512);
        let other = scope.begin();
        let mut done = Vec::new();
        store.submit(Io { flags, op, ..write(0, &[&[7; 512]], 0) });
        for _ in 0..1000 {
            store.poll(&mut done);
        }
        assert!(done.is_empty() && store.outstanding() == 1 && store.disk().wakes > 0);
        let before = store.events();
        scope.end(other, true);
        assert_eq!(store.events(), before + 1, "known before it is told");
        store.poll(&mut done);
        assert!(done.len() == 1 && done[0].result.is_ok() && store.outstanding() == 0);
    }
    // One that is forgotten holds up nobody, and vouches for nothing.
    let before = scope.losses();
    let mut gone = store(MemDisk::new(1 << 20, 512, 1).within(scope.clone()), 512);
    gone.submit(Io::new(1, Op::Flush, 0, 0));
    drop(gone);
    assert!(scope.is_settled(SyncMark::now()) && scope.losses() == before + 1);
}

#[test]
fn a_failed_sync_of_any_kind_is_a_loss() {
    let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
    let fua = IoFlags { fua: true, ..IoFlags::default() };
    store.disk_mut().fail_with(Some(5));
    let plain = write(0, &[&[7; 512]], 0);
    assert!(run(&mut store, plain).result.is_err() && store.events() == 0);
    let durable = Io { flags: fua, ..write(0, &[&[7; 512]], 0) };
    assert!(run(&mut store, durable).result.is_err() && store.events() == 1);
    assert!(run(&mut store, Io::new(1, Op::Flush, 0, 0)).result.is_err());
    assert_eq!(store.events(), 2);
    store.disk_mut().fail_records([true]);
    assert!(store_writer(&mut store, WriterRecord::default()).is_err() && store.events() == 3);
}

#[test]
fn a_disk_of_another_shape_is_refused() {
    let new = |disk, block| FileStore::new(disk, block, &Pool::new(0)).err().unwrap();
    let odd = new(MemDisk::new(10_000, 1, 1), 512).to_string();
    assert!(odd.contains("10000 bytes") && odd.contains("9728 and 10240"), "{odd}");
    assert_eq!(new(MemDisk::new(0, 1, 1), 512), FileStoreError::Empty);
    assert_eq!(
        new(MemDisk::new(8192, 4096, 1), 512),
        FileStoreError::Alignment { align_bytes: 4096, block_bytes: 512 }
    );
    let features = store(MemDisk::new(8192, 512, 1).read_only(), 512).geometry().features;
    assert!(features.read_only && !features.discard && !features.write_zeroes);
}

#[test]
fn extents_end_on_blocks_and_a_block_with_any_data_is_data() {
    let run = |len, hole| Extent { len, hole, zero: hole };
    let runs = [run(100, true), run(600, false), run(4000, true), run(1000, false)];
    // Data from 100 to 700, and from 4700 on.
    assert_eq!(
        whole_blocks(&runs, 5632, 512),
        [run(1024, false), run(3584, true), run(1024, false)]
    );
    assert_eq!(whole_blocks(&[run(512, true)], 512, 512), [run(512, true)]);
    assert_eq!(whole_blocks(&[run(100, true)], 512, 512), [run(512, false)]);
}

#[test]
fn growth_is_offered_when_it_is_durable_and_never_if_that_fails() {
    let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
    let (mut done, mut events) = (Vec::new(), Vec::new());
    let polled = |store: &mut FileStore<MemDisk>, done: &mut Vec<Completion>| {
        (0..100).for_each(|_| store.poll(done));
        assert!(done.is_empty());
    };
    assert!(store.refresh());
    polled(&mut store, &mut done);
    assert_eq!((store.events(), store.disk().log.as_str()), (0, ""));
    store.disk_mut().grow(2 << 20);
    store.disk_mut().fail_records([true]);
    store.refresh();
    polled(&mut store, &mut done);
    store.poll_events(&mut events);
    // A sync that failed is a loss, whoever asked for it.
    assert_eq!((&events[..], store.geometry().bytes), (&[VolumeEvent::Lost][..], 1 << 20));
    store.refresh();
    polled(&mut store, &mut done);
    assert_eq!(store.disk().log, "k", "a sync that fails every second would put all in doubt");
    store.disk_mut().grow(3 << 20);
    store.refresh();
    assert_eq!((store.geometry().bytes, store.outstanding()), (1 << 20, 0), "not durable yet");
    polled(&mut store, &mut done);
    let disk = store.disk();
    assert_eq!((store.geometry().bytes, disk.kept_bytes, &*disk.log), (3 << 20, 3 << 20, "kk"));
}

/// The other volume's sync may have lost the size in the kernel before this one's did not.
#[test]
fn growth_that_is_made_durable_beside_another_sync_is_offered_when_both_have_ended() {
    let scope = SyncScope::alone();
    let mut store = store(MemDisk::new(1 << 20, 512, 1).within(scope.clone()), 512);
    let other = scope.begin();
    store.disk_mut().grow(2 << 20);
    store.refresh();
    let mut done = Vec::new();
    (0..1000).for_each(|_| store.poll(&mut done));
    assert_eq!((store.geometry().bytes, store.events(), store.outstanding()), (1 << 20, 0, 0));
    assert!(store.disk().log == "k" && store.disk().wakes > 0);
    scope.end(other, false);
    store.poll(&mut done);
    assert_eq!((store.geometry().bytes, store.events()), (2 << 20, 1));
}

/// Nobody's I/O, but whoever drops the store would wait for it.
#[test]
fn a_store_whose_growth_is_made_durable_is_not_at_rest() {
    for fails in [false, true] {
        let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
        assert!(store.is_at_rest());
        store.disk_mut().grow(2 << 20);
        store.disk_mut().fail_records([fails]);
        store.refresh();
        assert!(store.outstanding() == 0 && !store.is_at_rest());
        (0..100).for_each(|_| store.poll(&mut Vec::new()));
        assert!(store.is_at_rest());
    }
}
