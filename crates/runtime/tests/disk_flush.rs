//! What a failed flush of a device's cache puts in doubt on real file systems. Writes succeed, and where
//! the file system needs nothing but the flush, it harms nothing and is told to whoever asked for it
//! only: the kernel lets the next flush of every file succeed, also of those whose writes were lost.
//!
//! A file system whose own log or tree met the failure says more, each in its way: xfs shuts down and
//! btrfs turns read-only, at once. ext4 aborts its journal, of which an fdatasync of overwritten blocks
//! hears nothing (seen on 6.18) until something else needs the journal.

mod common;
mod device;

use std::fs::File;
use std::path::{Path, PathBuf};

use common::{Dir, Store, can_mount, make_file_system, open_disk, run};
use device::{Device, MOUNT_POINT};
use thinwire_runtime::disk::{DiskOpenError, DiskOptions};
use thinwire_volume::{ErrorKind, Op, WriterRecord, load_writer, store_writer};

const SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

const IMAGE_BYTES: usize = 1 << 20;

/// A file system on a device whose flushes can fail. Only root can mount one.
struct Stage {
    dir: PathBuf,
    device: Device,
}

impl Stage {
    /// `None` if the kernel does not have it.
    fn new(system: &str, test: &str) -> Option<Self> {
        if !can_mount(system) {
            return None;
        }
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("flush-{system}-{test}-{}", std::process::id()));
        let device = Device::new(&dir);
        let stage = Stage { dir, device };
        make_file_system(system, stage.device.node());
        // No commit by the clock, while flushes fail: it would abort the journal.
        let options = if system == "ext4" { "commit=300" } else { "rw" };
        let (node, place) = (stage.device.node(), stage.mount_point());
        assert!(run("mount", &["-t", system, "-o", options, node, &place]));
        Some(stage)
    }

    fn mount_point(&self) -> String {
        self.dir.join(MOUNT_POINT).to_str().unwrap().to_owned()
    }

    /// A store on a new image, on that file system or beside it, every block of it written and flushed.
    fn store(&self, name: &str, direct: bool) -> Store {
        let path = self.dir.join(name);
        File::create(&path).unwrap().set_len(IMAGE_BYTES as u64).unwrap();
        let state_dir = self.dir.join("state");
        let options = DiskOptions { direct, state_dir, ..DiskOptions::default() };
        let mut store = Store::open(&path, &options);
        overwrite(&mut store, 1);
        flush(&mut store).unwrap();
        store
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.device.mend();
        run("umount", &["-l", &self.mount_point()]);
    }
}

/// Two images on one such file system, and one elsewhere. The stores go before what they lie on.
struct Scene {
    first: Store,
    second: Store,
    elsewhere: Store,
    stage: Stage,
}

impl Scene {
    /// Everything is durable, the first image's record too.
    fn new(system: &str, test: &str) -> Option<Self> {
        Scene::with(system, test, true)
    }

    fn with(system: &str, test: &str, direct: bool) -> Option<Self> {
        let stage = Stage::new(system, test)?;
        let [mut first, second] =
            ["first", "second"].map(|name| stage.store(&format!("{MOUNT_POINT}/{name}"), direct));
        let elsewhere = stage.store("elsewhere", direct);
        store_writer(&mut *first.volume, record(1)).unwrap();
        assert!(run("sync", &["-f", &stage.mount_point()]));
        Some(Scene { first, second, elsewhere, stage })
    }

    fn losses(&self) -> [u64; 3] {
        [&self.first, &self.second, &self.elsewhere].map(|store| store.volume.events())
    }

    /// Does something while the device fails its flushes; returns its result, and whether the device was
    /// asked for a flush.
    fn while_failing<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> (T, bool) {
        let before = self.stage.device.fail_flushes();
        let result = act(self);
        let after = self.stage.device.mend().expect("the device is there");
        (result, after > before)
    }

    /// It counts for what lies on the device, and for nothing else.
    fn assert_counted(&self, before: [u64; 3], what: &str) {
        let after = self.losses();
        assert!(after[0] > before[0], "{what}: not counted for the first");
        assert!(after[1] > before[1], "{what}: not counted for the second");
        assert_eq!(after[2], before[2], "{what}: counted elsewhere");
    }
}

fn record(generation: u64) -> WriterRecord {
    WriterRecord::new(generation, [1; 16], "a")
}

/// Writes to blocks that are there: they need nothing of the file system but a time stamp.
fn overwrite(store: &mut Store, byte: u8) {
    store.write(0, &vec![byte; IMAGE_BYTES]).result.unwrap();
}

fn flush(store: &mut Store) -> Result<(), ErrorKind> {
    store.simple(Op::Flush, 0, 0).result.map_err(|error| error.kind)
}

/// The first's flush fails; the second's writes were in the same cache.
#[test]
fn a_failed_device_flush_counts_for_all_on_the_device() {
    let ways = SYSTEMS.map(|system| [(system, "direct", true), (system, "buffered", false)]);
    for (system, way, direct) in ways.into_iter().flatten() {
        let Some(mut scene) = Scene::with(system, way, direct) else { continue };
        let what = format!("{system}, {way}");
        overwrite(&mut scene.first, 2);
        overwrite(&mut scene.second, 2);
        let before = scene.losses();
        let (flushed, asked) = scene.while_failing(|scene| flush(&mut scene.first));
        assert_eq!((flushed, asked), (Err(ErrorKind::Io), true), "{what}");
        scene.assert_counted(before, &what);
        let after = [flush(&mut scene.first), flush(&mut scene.second)];
        match system {
            // The flush belonged to its log of the tree. Whoever was told of that is told again, unless the kernel
            // takes its file for committed by then.
            "btrfs" => assert!(after[1].is_err(), "{what}: {after:?}"),
            _ => assert_eq!(after, [Ok(()); 2], "{what}: more than the flush has failed"),
        }
    }
}

/// A new record, which the file system writes to its log, fails by the flush alone.
#[test]
fn a_record_whose_flush_fails_counts_for_all_on_the_device() {
    for system in SYSTEMS {
        let Some(mut scene) = Scene::new(system, "record") else { continue };
        overwrite(&mut scene.first, 2);
        overwrite(&mut scene.second, 2);
        let before = scene.losses();
        let (stored, asked) =
            scene.while_failing(|scene| store_writer(&mut *scene.first.volume, record(2)));
        assert_eq!((stored.map_err(|error| error.kind), asked), (Err(ErrorKind::Io), true));
        scene.assert_counted(before, system);
        // Nobody is told of success as long as there is none. Later ext4 may let a flush succeed, but
        // that is believed by nobody, since the losses were counted before.
        let (after, _) =
            scene.while_failing(|scene| [&mut scene.first, &mut scene.second].map(flush));
        assert!(after.iter().all(Result::is_err), "{system}: {after:?}");
    }
}

/// A record that is in the log already is made durable once more, when it is read and, by ext4, when the
/// same is stored: nothing but a flush of the device, which takes along what only others had in its
/// cache.
#[test]
fn a_record_without_a_change_may_still_meet_a_failed_flush() {
    let load = |store: &mut Store| load_writer(&mut *store.volume).map(|_| ());
    let store_again = |store: &mut Store| store_writer(&mut *store.volume, record(1));
    type Act = fn(&mut Store) -> Result<(), thinwire_volume::IoError>;
    let cases: [(&str, Act); 4] =
        [("ext4", load), ("xfs", load), ("btrfs", load), ("ext4", store_again)];
    for (nth, (system, act)) in cases.into_iter().enumerate() {
        let Some(mut scene) = Scene::new(system, &format!("again{nth}")) else { continue };
        overwrite(&mut scene.second, 2);
        let before = scene.losses();
        let (done, asked) = scene.while_failing(|scene| act(&mut scene.first));
        let what = format!("{system}, case {nth}");
        if system == "btrfs" {
            // Nothing of this file is to be made durable, and no flush is asked for.
            assert_eq!((done, asked, scene.losses()), (Ok(()), false, before));
        } else {
            assert_eq!((done.map_err(|error| error.kind), asked), (Err(ErrorKind::Io), true));
            scene.assert_counted(before, &what);
        }
        // The kernel has forgotten it, and the file system is whole.
        assert_eq!(flush(&mut scene.second), Ok(()), "{what}");
        store_writer(&mut *scene.first.volume, record(2)).unwrap();
    }
}

/// The record of a block device is a file, which may lie on another one: that one is in doubt.
#[test]
fn a_record_in_the_state_directory_counts_where_that_lies() {
    for system in SYSTEMS {
        let Some(mut scene) = Scene::new(system, "state") else { continue };
        let disk = Device::new(&scene.stage.dir.with_extension("disk"));
        let state_dir = Path::new(&scene.stage.mount_point()).join("state");
        let options = DiskOptions { state_dir, ..DiskOptions::default() };
        let mut store = Store::open(Path::new(disk.node()), &options);
        store_writer(&mut *store.volume, record(1)).unwrap();
        overwrite(&mut scene.second, 2);
        let before = scene.losses();
        let (stored, asked) = scene.while_failing(|_| store_writer(&mut *store.volume, record(2)));
        assert_eq!((stored.map_err(|error| error.kind), asked), (Err(ErrorKind::Io), true));
        scene.assert_counted(before, system);
        assert_eq!(store.volume.events(), 0, "{system}: no sync of its own has failed");
    }
}

/// Its flush may not be answered, and who waits for that cannot be killed. A writer's size is to be durable.
#[test]
fn a_device_is_asked_for_a_flush_when_it_is_opened_to_be_written_and_not_to_be_read() {
    if !can_mount("ext4") {
        return;
    }
    let dir = Dir::new();
    let device = Device::new(&dir.path().join("device"));
    let asked_by = |read_only| {
        let before = device.fail_flushes();
        let options = DiskOptions { read_only, ..dir.options() };
        let opened = open_disk(Path::new(device.node()), &options).map(drop);
        (opened, device.mend().expect("the device is there") - before)
    };
    let (opened, asked) = asked_by(true);
    assert_eq!((opened.map_err(|error| error.to_string()), asked), (Ok(()), 0));
    let (opened, asked) = asked_by(false);
    assert!(matches!(opened, Err(DiskOpenError::Os { .. })) && asked > 0, "{opened:?}, {asked}");
}
