//! Files and devices that grow while they are open.

mod common;

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Dir, Store, backends, run};
use thinwire_runtime::disk::DiskOptions;
use thinwire_volume::testing::offers_growth;
use thinwire_volume::{
    Disk, ErrorKind, Identity, Op, Volume, VolumeEvent, WriterRecord, load_writer, store_writer,
};

const MIB: u64 = 1 << 20;

fn cut(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// For what may have nothing to wait for.
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// A file of 1 MiB, which is opened in blocks of 4096 bytes.
fn on_each_backend(test: impl Fn(&Path, &DiskOptions)) {
    for backend in backends() {
        let dir = Dir::new();
        let options = DiskOptions { backend, block_bytes: 4096, ..dir.options() };
        test(&dir.image("image", MIB), &options);
    }
}

#[test]
fn a_file_that_grows_is_offered_larger_and_may_not_shrink_below_that() {
    on_each_backend(|path, options| {
        let mut store = Store::open(path, options);
        assert!(store.volume.refresh());
        assert_eq!(store.volume.events(), 0);
        // What is no whole block comes and goes unnoticed.
        cut(path, 2 * MIB + 2048);
        offers_growth(&mut *store.volume, &mut pause, 2 * MIB);
        cut(path, 2 * MIB);
        assert!(store.volume.refresh());
        assert_eq!(store.write(2 * MIB - 4096, &[1; 4096]).result, Ok(()));
        // Larger than it was at first, and smaller than was told.
        cut(path, MIB + 4096);
        assert!(store.volume.refresh());
        let mut events = vec![];
        store.volume.poll_events(&mut events);
        let told = (&events[..], store.volume.geometry().bytes);
        assert_eq!(told, (&[VolumeEvent::Shrunk][..], 2 * MIB));
        assert_eq!(store.write(0, &[1; 4096]).result.unwrap_err().kind, ErrorKind::Io);
        cut(path, 4 * MIB);
        store.volume.refresh();
        (0..100).for_each(|_| {
            store.volume.poll(&mut vec![]);
            pause();
        });
        assert_eq!(store.volume.geometry().bytes, 2 * MIB, "what was there is gone");
    });
}

/// A client that was away all the time would go on with what it has written, and find zeroes.
#[test]
fn a_file_that_was_cut_is_another_life_of_it_although_it_grows_again() {
    on_each_backend(|path, options| {
        let open = || Store::open(path, options);
        let mut store = open();
        store_writer(&mut *store.volume, WriterRecord::new(1, [7; 16], "node1")).unwrap();
        let first = store.volume.identity();
        let life = |volume: &dyn Volume| {
            let Identity { identity, incarnation } = volume.identity();
            assert_eq!(identity, first.identity);
            incarnation - first.incarnation
        };
        // It grows while it is open, is cut while it is not, but not below its first size.
        cut(path, 3 * MIB);
        offers_growth(&mut *store.volume, &mut pause, 3 * MIB);
        drop(store);
        assert_eq!(life(&*open().volume), 0);
        cut(path, 2 * MIB);
        assert_eq!(life(&*open().volume), 1);
        cut(path, 4 * MIB);
        let mut store = open();
        assert_eq!(life(&*store.volume), 1);
        // It is cut while it is open, and is as large again before that process ends.
        cut(path, 2 * MIB);
        store.volume.refresh();
        cut(path, 4 * MIB);
        drop(store);
        let mut store = open();
        assert_eq!(life(&*store.volume), 2);
        let record = load_writer(&mut *store.volume).unwrap();
        assert_eq!((record.generation, record.name.as_str()), (1, "node1"));
    });
}

/// Zeroes have come where flushed data was: nobody may take them for it.
#[test]
fn what_was_cut_off_a_file_stays_gone_although_it_grows_again() {
    on_each_backend(|path, options| {
        let mut store = Store::open(path, options);
        assert_eq!(store.write(0, &[1; 8192]).result, Ok(()));
        store.simple(Op::Flush, 0, 0).result.unwrap();
        for (smaller, larger) in [(512 << 10, MIB), (4096, 4 * MIB)] {
            cut(path, smaller);
            store.volume.refresh();
            cut(path, larger);
            store.volume.refresh();
            assert_eq!(store.read(0, 4096), [1; 4096], "what was never cut off is as it was");
            let gone = store.simple(Op::Read, smaller, 4096).result;
            assert_eq!(gone.map_err(|e| e.kind), Err(ErrorKind::Io), "zeroes behind {smaller}");
        }
    });
}

#[test]
fn a_reader_sees_it_too() {
    let dir = Dir::new();
    let path = dir.image("image", MIB);
    let options = DiskOptions { read_only: true, ..dir.options() };
    let mut store = Store::open(&path, &options);
    cut(&path, 3 * MIB);
    store.volume.refresh();
    let mut events = vec![];
    for _ in 0..5000 {
        store.volume.poll(&mut vec![]);
        store.volume.poll_events(&mut events);
        if !events.is_empty() {
            break;
        }
        pause();
    }
    assert_eq!(events, [VolumeEvent::Resized { bytes: 3 * MIB }]);
    assert_eq!(store.read(2 * MIB, 4096), [0; 4096]);
}

struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["-d", &self.0]);
    }
}

#[test]
fn a_device_that_grows_is_offered_larger() {
    let dir = Dir::new();
    let image = dir.image("image", 6 * MIB);
    let made = Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        return eprintln!("no loop device to be had: devices are not tested");
    };
    let node = Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned());
    let node = &node.0;
    let mut store = Store::open(Path::new(node), &dir.options());
    let identity = store.volume.identity();
    assert!(store.volume.refresh());
    cut(&image, 8 * MIB);
    assert!(run("losetup", &["-c", node]));
    offers_growth(&mut *store.volume, &mut pause, 8 * MIB);
    drop(store);
    // Opened again, it is the same volume.
    let disk = common::open_disk(Path::new(node), &dir.options()).unwrap().disk;
    assert_eq!((disk.info().identity, disk.info().bytes), (identity, 8 * MIB));
}
