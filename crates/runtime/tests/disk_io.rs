//! Real files and devices as volumes: content, holes, full and shrunk disks.

mod common;

use std::fs::OpenOptions as FsOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use common::{Dir, Store, backends, open_disk, wait, way, ways};
use thinwire_buffer::Pool;
use thinwire_runtime::disk::DiskOptions;
use thinwire_volume::stores::{FileStore, Writeback};
use thinwire_volume::testing::{Overlap, exercise, exercise_with};
use thinwire_volume::{ErrorKind, Io, IoFlags, Op, VolumeEvent, load_writer, store_writer};

const MIB: u64 = 1 << 20;

#[test]
fn files_conform() {
    let dir = Dir::new();
    for backend in backends() {
        for (seed, block_bytes, direct) in
            [(1, 512, true), (2, 4096, true), (3, 512, false), (4, 4096, false)]
        {
            let path = dir.image(&format!("{backend:?}-{seed}"), 5 * MIB);
            let options = DiskOptions { backend, block_bytes, direct, ..dir.options() };
            let direct = open_disk(&path, &options).unwrap().direct;
            let mut store = Store::open(&path, &options);
            let fd = store.fd;
            let overlap = if direct { Overlap::Whole } else { Overlap::Torn };
            let wait = &mut || wait(fd);
            let report = exercise_with(&mut *store.volume, wait, seed, 1200, overlap);
            assert!(report.ios > 1200 && report.blocks_checked > 1000, "{report:?}");
        }
    }
}

#[test]
fn a_write_back_cache_over_a_file_conforms_and_loses_what_was_not_flushed() {
    let dir = Dir::new();
    let path = dir.image("image", 4 * MIB);
    let pool = Pool::new(16 << 20);
    let opened = open_disk(&path, &dir.options()).unwrap();
    let fd = opened.disk.fd();
    let file = FileStore::new(opened.disk, 512, &pool).unwrap();
    let mut cache = Writeback::new(file, 0, &pool);
    exercise(&mut cache, &mut || wait(fd), 5, 800);
    let mut store = Store { volume: Box::new(cache), fd };
    store.write(0, &[1; 4096]).result.unwrap();
    store.simple(Op::Flush, 0, 0).result.unwrap();
    store.write(0, &[2; 4096]).result.unwrap();
    assert_eq!(store.read(0, 4096), [2; 4096]);
    drop(store);
    assert_eq!(Store::open(&path, &dir.options()).read(0, 4096), [1; 4096]);
}

#[test]
fn more_than_the_kernel_is_given_at_once_all_completes() {
    let dir = Dir::new();
    for options in ways(&dir) {
        let path = dir.image(&way(&options), 8 * MIB);
        let mut store = Store::open(&path, &options);
        let bytes: Vec<u8> = (0..8 * MIB).map(|at| (at / 4096) as u8).collect();
        for (at, part) in (0..).step_by(MIB as usize).zip(bytes.chunks(MIB as usize)) {
            store.write(at, part).result.unwrap();
        }
        for page in 0..2000 {
            store.volume.submit(Io::new(page, Op::Read, page * 4096, 4096));
        }
        let (mut done, mut seen) = (Vec::new(), 0);
        while store.volume.outstanding() > 0 {
            store.volume.poll(&mut done);
            for completion in done.drain(..) {
                completion.result.unwrap();
                assert_eq!(completion.data.to_vec(), [completion.token as u8; 4096]);
                seen += 1;
            }
            if store.volume.outstanding() > 0 {
                wait(store.fd);
            }
        }
        assert_eq!(seen, 2000);
    }
}

#[test]
fn dropping_a_disk_waits_for_the_kernel_and_frees_the_lock() {
    let dir = Dir::new();
    for options in ways(&dir) {
        let path = dir.image(&way(&options), 64 * MIB);
        for round in 0..20 {
            let mut store = Store::open(&path, &options);
            for at in 0..40 {
                store.volume.submit(Io::new(at, Op::WriteZeroes, at * MIB, MIB));
                store.volume.submit(Io::new(100 + at, Op::Read, at * MIB, MIB));
            }
            if round % 2 == 0 {
                store.volume.poll(&mut Vec::new());
            }
        }
        Store::open(&path, &options);
    }
}

/// The kernel writes back what a process has left in the page cache, and lets nobody read or write past it.
#[test]
fn what_was_not_flushed_is_what_the_next_one_finds() {
    let dir = Dir::new();
    let options = |direct| DiskOptions { direct, ..dir.options() };
    for (first, next) in [(false, true), (true, false), (false, false)] {
        let path = dir.image(&format!("{first}-{next}"), MIB);
        let mut store = Store::open(&path, &options(first));
        assert_eq!(store.read(0, 8192), [0; 8192]);
        store.write(0, &[1; 4096]).result.unwrap();
        drop(store);
        let mut store = Store::open(&path, &options(next));
        assert_eq!(store.read(0, 4096), [1; 4096], "direct: {first}, then {next}");
        store.write(0, &[2; 512]).result.unwrap();
        drop(store);
        let mut store = Store::open(&path, &options(first));
        assert_eq!(store.read(0, 1024), [[2; 512], [1; 512]].concat());
    }
}

#[test]
fn discards_give_space_back_and_durable_zeroes_keep_it() {
    let dir = Dir::new();
    for options in ways(&dir) {
        let path = dir.image(&way(&options), 8 * MIB);
        let mut store = Store::open(&path, &options);
        let used = || std::fs::metadata(&path).unwrap().blocks() * 512;
        let data = |len, hole| thinwire_volume::Extent { len, hole, zero: hole };
        // What stands beside the content may take a block.
        assert!(used() <= 4096);
        for at in 0..4 {
            store.write(at * MIB, &[7; MIB as usize]).result.unwrap();
        }
        store.simple(Op::Flush, 0, 0).result.unwrap();
        let full = used();
        assert!(full >= 4 * MIB, "{full}");
        assert_eq!(
            store.simple(Op::BlockStatus, 0, 8 * MIB).extents,
            [data(4 * MIB, false), data(4 * MIB, true)]
        );
        store.simple(Op::Discard, MIB, MIB).result.unwrap();
        store.simple(Op::WriteZeroes, 2 * MIB, MIB).result.unwrap();
        assert!(used() <= full - 2 * MIB, "{} of {full}", used());
        assert_eq!(store.read(MIB, MIB), vec![0; MIB as usize]);
        assert_eq!(
            store.simple(Op::BlockStatus, 0, 8 * MIB).extents,
            [data(MIB, false), data(2 * MIB, true), data(MIB, false), data(4 * MIB, true)]
        );
        let mut one = Io::new(1, Op::BlockStatus, 512, 4 * MIB);
        one.flags.one_extent = true;
        assert_eq!(store.run(one).extents, [data(MIB - 512, false)]);
        let flags = IoFlags { no_hole: true, fua: true, ..IoFlags::default() };
        let before = used();
        store.run(Io { flags, ..Io::new(1, Op::WriteZeroes, 3 * MIB, 2 * MIB) }).result.unwrap();
        assert!(used() >= before + MIB, "{} after {before}", used());
        assert_eq!(store.read(3 * MIB, MIB), vec![0; MIB as usize]);
    }
}

#[test]
fn a_file_that_shrinks_fails_what_it_lost_and_every_write() {
    let dir = Dir::new();
    for options in ways(&dir) {
        // Cut at a block, and at an odd place.
        for left in [4 * MIB, 4 * MIB + 777] {
            let path = dir.image(&format!("{}-{left}", way(&options)), 8 * MIB);
            let mut store = Store::open(&path, &options);
            let beside = dir.image(&format!("{}-{left}-beside", way(&options)), MIB);
            let beside = Store::open(&beside, &options);
            let quiet = beside.volume.events();
            store.write(0, &[1; 4096]).result.unwrap();
            store.write(6 * MIB, &[2; 4096]).result.unwrap();
            FsOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
            let failed = |result: Result<(), thinwire_volume::IoError>| {
                assert_eq!(result.unwrap_err().kind, ErrorKind::Io);
            };
            if left == 4 * MIB {
                // Even if nobody has read there yet.
                failed(store.write(6 * MIB, &[3; 4096]).result);
            }
            failed(store.simple(Op::Read, 6 * MIB, 4096).result);
            failed(store.simple(Op::Read, 4 * MIB - 4096, 8192).result);
            failed(store.write(6 * MIB, &[3; 4096]).result);
            failed(store.write(0, &[3; 4096]).result);
            failed(store.simple(Op::Flush, 0, 0).result);
            failed(store.simple(Op::BlockStatus, 0, 8 * MIB).result);
            assert_eq!(store.read(0, 4096), [1; 4096]);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), left);
            // Whoever looks after it is told, once.
            let mut told = Vec::new();
            for _ in 0..2 {
                store.volume.refresh();
                store.volume.poll_events(&mut told);
            }
            assert_eq!(told.iter().filter(|event| **event == VolumeEvent::Shrunk).count(), 1);
            assert!(!told.iter().any(|event| matches!(event, VolumeEvent::Resized { .. })));
            // No sync has failed that others on the same file system go by.
            assert!(told.contains(&VolumeEvent::Lost));
            assert_eq!(beside.volume.events(), quiet, "nothing of that is in doubt");
        }
    }
}

/// A mounted file system of one MiB; `None` where mounting is refused.
struct Tiny(Dir);

impl Tiny {
    fn mount() -> Option<Self> {
        let dir = Dir::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir.path());
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Tiny(dir));
        }
        eprintln!("cannot mount here: the test of a full file system is skipped");
        None
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_fails_that_write_and_serves_on() {
    let Some(tiny) = Tiny::mount() else { return };
    for options in ways(&tiny.0) {
        let path = tiny.0.image(&way(&options), 16 * MIB);
        let mut store = Store::open(&path, &options);
        let mut full_at = None;
        for at in 0..32 {
            let result = store.write(at * 65536, &[9; 65536]).result;
            if let Err(error) = result {
                assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
                full_at = Some(at);
                break;
            }
        }
        let full_at = full_at.expect("16 MiB do not fit into 1 MiB");
        assert_eq!(store.read(0, 65536), [9; 65536]);
        let flags = IoFlags { no_hole: true, ..IoFlags::default() };
        let zeroes = Io { flags, ..Io::new(1, Op::WriteZeroes, 8 * MIB, 4 * MIB) };
        assert_eq!(store.run(zeroes).result.unwrap_err().kind, ErrorKind::NoSpace);
        store.simple(Op::Discard, 0, 16 * MIB).result.unwrap();
        store.write(full_at * 65536, &[8; 65536]).result.unwrap();
        assert_eq!(store.read(full_at * 65536, 65536), [8; 65536]);
        drop(store);
        std::fs::remove_file(&path).unwrap();
    }
}

/// A loop device over a file; `None` where there is none to be had.
struct Loop(String, #[allow(dead_code)] Dir);

impl Loop {
    fn new(bytes: u64) -> Option<Self> {
        let dir = Dir::new();
        let image = dir.image("image", bytes);
        let output = Command::new("losetup").args(["-f", "--show"]).arg(&image).output().ok()?;
        if !output.status.success() {
            eprintln!("no loop device to be had: the test of block devices is skipped");
            return None;
        }
        Some(Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned(), dir))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_block_device_conforms_and_is_taken_by_one() {
    let Some(device) = Loop::new(6 * MIB) else { return };
    let path = Path::new(&device.0);
    let dir = Dir::new();
    for options in ways(&dir) {
        let mut store = Store::open(path, &options);
        let busy = open_disk(path, &common::at_once(&options)).unwrap_err().to_string();
        assert!(busy.contains("is in use by"), "{busy}");
        let (fd, identity) = (store.fd, store.volume.identity());
        assert_eq!(store.volume.geometry().bytes, 6 * MIB);
        let overlap = if options.direct { Overlap::Whole } else { Overlap::Torn };
        exercise_with(&mut *store.volume, &mut || wait(fd), 7, 800, overlap);
        let record = thinwire_volume::WriterRecord::new(4, [5; 16], "");
        store_writer(&mut *store.volume, record).unwrap();
        drop(store);
        let mut store = Store::open(path, &options);
        assert_eq!(store.volume.identity(), identity);
        assert_eq!(load_writer(&mut *store.volume), Ok(record));
    }
    assert_eq!(std::fs::read_dir(dir.options().state_dir).unwrap().count(), 1);
}
