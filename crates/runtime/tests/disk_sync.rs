//! What a failed sync puts in doubt on real file systems, whose device fails: ext4, xfs and btrfs on a
//! loop device, on a memory file system that is full.

mod common;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use common::{Store, backends, can_mount, make_file_system_with, run};
use thinwire_buffer::{Pool, SegList};
use thinwire_runtime::disk::DiskOptions;
use thinwire_volume::{ErrorKind, Io, IoFlags, Op, WriterRecord, load_writer, store_writer};

/// A file system on a device that fails when it is told to. Only root can mount one.
struct Stage {
    dir: PathBuf,
}

impl Stage {
    /// `None` if the kernel or the tools here do not have it.
    fn new(system: &str, test: &str) -> Option<Self> {
        Stage::made(system, test, &[], "loop")
    }

    /// With options of the tool that makes the file system, and of its mount.
    fn made(system: &str, test: &str, make: &[&str], mount: &str) -> Option<Self> {
        if !can_mount(system) {
            return None;
        }
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("sync-{system}-{test}-{}", std::process::id()));
        for folder in ["memory", "system"] {
            std::fs::create_dir_all(dir.join(folder)).unwrap();
        }
        let stage = Stage { dir };
        let memory = stage.path("memory");
        assert!(run("mount", &["-t", "tmpfs", "-o", "size=420m", "none", &memory]));
        let image = stage.path("memory/image");
        File::create(&image).unwrap().set_len(400 << 20).unwrap();
        make_file_system_with(system, make, &image);
        assert!(run("mount", &["-o", mount, &image, &stage.path("system")]));
        Some(stage)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// A sparse image for an export.
    fn image(&self, name: &str) -> PathBuf {
        let path = self.dir.join("system").join(name);
        let file = File::create(&path).unwrap();
        file.set_len(32 << 20).unwrap();
        file.sync_all().unwrap();
        path
    }

    /// The device has no room for anything new from now on.
    fn fail(&self) {
        assert!(run("sync", &["-f", &self.path("system")]));
        let mut filler = File::create(self.dir.join("memory/filler")).unwrap();
        let bytes = vec![7; 1 << 20];
        while filler.write_all(&bytes).is_ok() {}
        let mut rest = File::create(self.dir.join("memory/rest")).unwrap();
        while rest.write_all(&bytes[..4096]).is_ok() {}
    }

    /// Cached and direct I/O alike: what the device refuses is lost in the background at first.
    fn options(&self) -> DiskOptions {
        DiskOptions { direct: false, state_dir: self.dir.join("state"), ..DiskOptions::default() }
    }

    /// Has the kernel write back what is dirty, as it does by itself after a while. Its errors are
    /// told to whoever asks, and kept for those who have not.
    fn write_back(&self) {
        run("sync", &["-f", &self.path("system")]);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.dir.join("memory/filler"));
        for folder in ["system", "memory"] {
            run("umount", &["-l", &self.path(folder)]);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// More than may find room in what the device has already.
fn write_much(store: &mut Store) {
    let bytes = vec![7; 1 << 20];
    for nth in 0..16 {
        store.write(nth << 20, &bytes).result.unwrap();
    }
}

/// Through the page cache, a write that is not to be durable succeeds at once: what has become of it says
/// the next flush. One that is to be durable says so itself.
#[test]
fn a_durable_write_that_the_device_refuses_is_told_at_once() {
    for backend in backends() {
        let Some(stage) = Stage::new("ext4", &format!("durable-{backend:?}")) else { continue };
        let image = stage.image("image");
        let mut store = Store::open(&image, &DiskOptions { backend, ..stage.options() });
        stage.fail();
        let write = |store: &mut Store, nth: u64, fua| {
            let data = SegList::of(Pool::new(0).copy_of(&[7; 1 << 20]).freeze());
            let flags = IoFlags { fua, ..IoFlags::default() };
            store.run(Io { data, flags, ..Io::new(1, Op::Write, nth << 20, 1 << 20) }).result
        };
        let before = store.volume.events();
        for nth in 0..4 {
            write(&mut store, nth, false).unwrap();
        }
        assert_eq!(store.volume.events(), before, "nobody has asked yet");
        let lost = (4..20).find(|&nth| write(&mut store, nth, true).is_err());
        assert!(lost.is_some(), "{backend:?}: 16 MiB are on a device that has no room");
        assert!(store.volume.events() > before, "{backend:?}");
    }
}

const SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// A's write is lost in the background; the writer record of somebody else, which meets the error
/// first, must not take it away.
#[test]
fn a_record_does_not_take_the_error_of_a_write_away() {
    for system in SYSTEMS {
        // With a journal ext4 is read-only by the time of the record, which then fails before its sync.
        let (make, mount): (&[&str], _) = match system {
            "ext4" => (&["-O", "^has_journal"], "loop,errors=continue"),
            _ => (&[], "loop"),
        };
        let Some(stage) = Stage::made(system, "record", make, mount) else { continue };
        let image = stage.image("image");
        let mut store = Store::open(&image, &stage.options());
        let record = load_writer(&mut *store.volume).unwrap();
        let before = store.volume.events();
        stage.fail();
        write_much(&mut store);
        stage.write_back();
        let stored = store_writer(&mut *store.volume, WriterRecord::new(1, [1; 16], "b"));
        let counted = store.volume.events();
        let flushed = store.simple(Op::Flush, 0, 0).result;
        assert_eq!(record.generation, 0);
        assert!(flushed.is_err(), "{system}: the content's own description was told nothing");
        assert!(store.volume.events() > before, "{system}");
        // btrfs cannot be made to fail in the record's sync: it is read-only before.
        if stored.is_err_and(|error| error.kind != ErrorKind::ReadOnly) {
            assert!(counted > before, "{system}: the record counts, too");
        }
    }
}

/// One image's flush fails: the others on that file system are in doubt, those elsewhere are not.
#[test]
fn a_failed_flush_counts_for_all_on_the_file_system() {
    for system in SYSTEMS {
        let Some(stage) = Stage::new(system, "flush") else { continue };
        let [first, second] = ["first", "second"].map(|name| stage.image(name));
        let elsewhere = stage.dir.join("elsewhere");
        File::create(&elsewhere).unwrap().set_len(1 << 20).unwrap();
        let [mut first, second, elsewhere] =
            [first, second, elsewhere].map(|path| Store::open(&path, &stage.options()));
        let losses = [&second, &elsewhere].map(|store| store.volume.events());
        stage.fail();
        write_much(&mut first);
        assert!(first.simple(Op::Flush, 0, 0).result.is_err(), "{system}");
        assert!(second.volume.events() > losses[0], "{system}");
        assert_eq!(elsewhere.volume.events(), losses[1], "{system}");
    }
}

/// A record that finds no space is refused, and not put into the state directory, where it would count
/// beside the old one.
#[test]
fn a_record_that_finds_no_space_goes_nowhere_else() {
    let Some(stage) = Stage::new("ext4", "space") else { return };
    let image = stage.image("image");
    let mut filler = File::create(stage.dir.join("system/filler")).unwrap();
    let bytes = vec![7; 1 << 20];
    while filler.write_all(&bytes).is_ok() {}
    let mut rest = File::create(stage.dir.join("system/rest")).unwrap();
    while rest.write_all(&bytes[..1024]).is_ok() {}
    // There is none yet, held by nobody, that it would only replace.
    let mut store = Store::open(&image, &stage.options());
    let before = store.volume.events();
    let error = store_writer(&mut *store.volume, WriterRecord::new(1, [1; 16], "a")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace);
    assert_eq!(store.volume.events(), before, "no sync has failed");
    assert!(!stage.dir.join("state").exists());
    assert_eq!(load_writer(&mut *store.volume), Ok(WriterRecord::default()));
    drop((filler, rest));
    std::fs::remove_file(stage.dir.join("system/filler")).unwrap();
    store_writer(&mut *store.volume, WriterRecord::new(1, [1; 16], "a")).unwrap();
}
