//! One file with several rings: one lock, one size, one record.

mod common;

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Dir, Store, backends, open_disk, ways};
use thinwire_buffer::{Pool, SegList};
use thinwire_runtime::disk::{DiskOpenError, DiskOptions, SpreadDisk};
use thinwire_volume::testing::offers_growth;
use thinwire_volume::{
    Completion, ErrorKind, Io, IoFlags, Op, Volume, VolumeEvent, WriterRecord, load_writer,
    store_writer,
};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// One of these tests after the other: they share a file system, and so what one has fail.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set_len(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

fn spread(path: &Path, options: &DiskOptions) -> SpreadDisk {
    SpreadDisk::open(path, options, &mut |_| {}).unwrap()
}

fn owner(disk: &SpreadDisk) -> Store {
    let opened = disk.owner(&Pool::new(16 << 20), &mut |_| {}).unwrap();
    Store { volume: opened.volume, fd: opened.fd }
}

fn branch(disk: &SpreadDisk) -> Store {
    let opened = disk.branch(&Pool::new(16 << 20)).unwrap();
    Store { volume: opened.volume, fd: opened.fd }
}

/// Does something on a branch, on a thread of its own.
fn at_branch<R: Send>(disk: &SpreadDisk, act: impl FnOnce(&mut Store) -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(|| act(&mut branch(disk))).join().unwrap())
}

fn is_busy(path: &Path, options: &DiskOptions) -> bool {
    matches!(open_disk(path, &common::at_once(options)), Err(DiskOpenError::Busy { .. }))
}

/// A file of 1 MiB.
fn on_each_backend(test: impl Fn(&Path, &DiskOptions)) {
    let _turn = turn();
    for backend in backends() {
        let dir = Dir::new();
        let options = DiskOptions { backend, block_bytes: 4096, ..dir.options() };
        test(&dir.image("image", MIB), &options);
    }
}

fn error(completion: &Completion) -> Option<ErrorKind> {
    completion.result.as_ref().err().map(|error| error.kind)
}

#[test]
fn what_one_ring_writes_the_others_read() {
    let _turn = turn();
    let dir = Dir::new();
    for options in ways(&dir) {
        let path = dir.image(&common::way(&options), MIB);
        let disk = spread(&path, &options);
        let mut own = owner(&disk);
        assert_eq!(own.write(0, &[1; 8192]).result, Ok(()));
        let identity = own.volume.identity();
        at_branch(&disk, |branch| {
            assert_eq!(branch.volume.identity(), identity);
            assert_eq!(branch.read(0, 8192), [1; 8192]);
            assert_eq!(branch.write(BLOCK, &[2; 4096]).result, Ok(()));
            assert_eq!(branch.simple(Op::WriteZeroes, 2 * BLOCK, BLOCK).result, Ok(()));
            assert_eq!(branch.simple(Op::Discard, 3 * BLOCK, BLOCK).result, Ok(()));
            assert!(!branch.simple(Op::BlockStatus, 0, MIB).extents.is_empty());
        });
        assert_eq!(own.simple(Op::Flush, 0, 0).result, Ok(()));
        assert_eq!(own.read(0, 8192), [[1; 4096], [2; 4096]].concat());
        assert_eq!(own.volume.events(), 0, "nothing was lost");
    }
}

/// One descriptor, one lock, which goes with the last that uses it.
#[test]
fn a_second_opener_is_refused_until_all_rings_are_gone() {
    on_each_backend(|path, options| {
        let disk = spread(path, options);
        assert!(is_busy(path, options), "nobody has a ring yet");
        let (own, second) = (owner(&disk), branch(&disk));
        drop(disk);
        let path = path.canonicalize().unwrap();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = descriptors.map(|entry| std::fs::read_link(entry.unwrap().path()));
        assert_eq!(links.filter(|link| link.as_ref().is_ok_and(|to| *to == path)).count(), 1);
        drop(own);
        assert!(is_busy(&path, options), "a branch is left");
        drop(second);
        let again = spread(&path, options);
        let (own, second) = (owner(&again), branch(&again));
        drop((again, second));
        assert!(is_busy(&path, options), "the owner is left");
        drop(own);
        assert!(open_disk(&path, options).is_ok());
    });
}

/// Two at once could share one error of the kernel.
#[test]
fn a_branch_makes_no_syncs_and_knows_no_record() {
    on_each_backend(|path, options| {
        let disk = spread(path, options);
        let mut own = owner(&disk);
        let record = WriterRecord::new(1, [7; 16], "node1");
        store_writer(&mut *own.volume, record).unwrap();
        let mut other = branch(&disk);
        assert_eq!(error(&other.simple(Op::Flush, 0, 0)), Some(ErrorKind::Io));
        let data = SegList::of(Pool::new(0).copy_of(&[1; 4096]).freeze());
        let flags = IoFlags { fua: true, ..IoFlags::default() };
        let durable = Io { data, flags, ..Io::new(1, Op::Write, 0, BLOCK) };
        assert_eq!(error(&other.run(durable)), Some(ErrorKind::Io));
        assert!(own.volume.events() > 0, "whoever asked for that is not safe");
        assert!(store_writer(&mut *other.volume, WriterRecord::new(2, [8; 16], "node2")).is_err());
        assert!(load_writer(&mut *other.volume).is_err());
        assert_eq!(load_writer(&mut *own.volume).unwrap(), record);
        assert_eq!(own.read(0, BLOCK), [0; 4096]);
    });
}

#[test]
fn what_the_owner_has_made_durable_all_rings_offer() {
    on_each_backend(|path, options| {
        let disk = spread(path, options);
        let (mut own, mut other) = (owner(&disk), branch(&disk));
        set_len(path, 2 * MIB);
        for _ in 0..3 {
            assert!(other.volume.refresh());
            other.volume.poll(&mut vec![]);
        }
        assert_eq!(other.volume.geometry().bytes, MIB, "nobody has made that durable");
        offers_growth(&mut *own.volume, &mut pause, 2 * MIB);
        offers_growth(&mut *other.volume, &mut pause, 2 * MIB);
        assert_eq!(other.write(2 * MIB - BLOCK, &[3; 4096]).result, Ok(()));
        assert_eq!(own.read(2 * MIB - BLOCK, BLOCK), [3; 4096]);
        // One that begins now begins with that.
        assert_eq!(branch(&disk).volume.geometry().bytes, 2 * MIB);
    });
}

/// Whichever sees it: none lets a write make it long again, and the next start has another life of it.
#[test]
fn a_cut_that_one_ring_sees_counts_for_all() {
    for seen_by_owner in [true, false] {
        on_each_backend(|path, options| {
            let disk = spread(path, options);
            let (mut own, mut other) = (owner(&disk), branch(&disk));
            store_writer(&mut *own.volume, WriterRecord::new(1, [7; 16], "node1")).unwrap();
            let before = own.volume.identity().incarnation;
            set_len(path, MIB / 2);
            let seer = if seen_by_owner { &mut own } else { &mut other };
            assert!(seer.volume.refresh());
            set_len(path, MIB);
            for store in [&mut own, &mut other] {
                assert_eq!(error(&store.write(0, &[1; 4096])), Some(ErrorKind::Io));
                let gone = store.simple(Op::Read, MIB - BLOCK, BLOCK);
                assert_eq!(error(&gone), Some(ErrorKind::Io), "zeroes that nobody wrote");
                assert!(store.volume.refresh());
                let mut events = vec![];
                store.volume.poll_events(&mut events);
                assert_eq!(events, [VolumeEvent::Shrunk]);
            }
            drop((own, other, disk));
            let again = owner(&spread(path, options));
            assert_eq!(again.volume.identity().incarnation, before + 1, "counted once");
        });
    }
}

/// The memory of its I/O is the kernel's till that has ended; the others' I/O goes on.
#[test]
fn a_ring_that_goes_under_load_takes_nothing_from_the_others() {
    on_each_backend(|path, options| {
        let disk = spread(path, options);
        let mut own = owner(&disk);
        for at in 0..MIB / BLOCK {
            assert_eq!(own.write(at * BLOCK, &[at as u8; 4096]).result, Ok(()));
        }
        let begin = |store: &mut Store, op: Op| {
            for at in 0..64 {
                let block = at * 3 % (MIB / BLOCK);
                let data = match op {
                    Op::Write => SegList::of(Pool::new(0).copy_of(&[block as u8; 4096]).freeze()),
                    _ => SegList::new(),
                };
                store.volume.submit(Io { data, ..Io::new(at, op, block * BLOCK, BLOCK) });
            }
            store.volume.poll(&mut vec![]);
        };
        for op in [Op::Read, Op::Write] {
            begin(&mut own, Op::Read);
            at_branch(&disk, |branch| begin(branch, op));
            let begun = own.volume.outstanding();
            let mut done = vec![];
            while own.volume.outstanding() > 0 {
                common::wait(own.fd);
                own.volume.poll(&mut done);
            }
            assert_eq!(done.len(), begun);
            for one in done {
                let block = one.token * 3 % (MIB / BLOCK);
                assert_eq!(one.data.to_vec(), [block as u8; 4096], "{:?}", one.result);
            }
        }
        assert!(is_busy(path, options));
    });
}
