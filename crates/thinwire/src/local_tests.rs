//! Local volumes: what they keep, and who may write them.

use super::*;
use crate::cli::WireArgs;
use crate::open::{Ending, OpenVolume, open_volume as open};
use crate::opened::open_on;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use thinwire_buffer::{Pool, SegList};
use thinwire_volume::testing::exercise;
use thinwire_volume::{Geometry, Identity, WriterRecord, load_writer, store_writer};

/// For volumes that need no identity: there is no room for one there.
fn options() -> VolumeOptions {
    VolumeOptions::new(
        crate::keys::Security::default(),
        &WireArgs::default(),
        "/proc/nonexistent".into(),
    )
}

/// An image, and who was its writer before.
struct Image {
    dir: crate::testing::TempDir,
    spec: VolumeSpec,
}

const REMOTE: [u8; 16] = [0xab; 16];

impl Image {
    fn new() -> Self {
        let dir = crate::testing::TempDir::new("local");
        let path = dir.path().join("disk.img");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        Image { dir, spec: VolumeSpec::Path(path) }
    }

    /// What a target leaves that was killed under its writer.
    fn held() -> Self {
        let image = Image::new();
        let record = WriterRecord::new(7, REMOTE, "node1 (pid 7)");
        store_writer(&mut *image.store(), record).unwrap();
        image
    }

    fn store(&self) -> Box<dyn Volume> {
        let VolumeSpec::Path(path) = &self.spec else { unreachable!() };
        disk::open_store(path, &self.disk_options(), &Pool::new(0), &mut |_| {}).unwrap().volume
    }

    fn disk_options(&self) -> disk::DiskOptions {
        let state_dir = self.dir.path().join("state");
        let wait_lock = crate::open::LOCK_PATIENCE;
        disk::DiskOptions { state_dir, wait_lock, ..disk::DiskOptions::default() }
    }

    fn record(&self) -> WriterRecord {
        load_writer(&mut *self.store()).unwrap()
    }

    /// Opens it under a run directory.
    fn open(&self, run: &str, take_over: bool) -> Outcome<Box<dyn OpenVolume>> {
        let run_dir = self.dir.path().join(run);
        let options = VolumeOptions { run_dir, take_over, ..options() };
        open_on(&Host::new()?, &self.spec, &options, self.disk_options(), None)
    }
}

fn write(open: &mut dyn OpenVolume) {
    let mut write = Io::new(1, Op::Write, 4096, 4096);
    write.data = SegList::of(open.pool().copy_of(&[7; 4096]).freeze());
    assert!(io(open, write).result.is_ok());
}

fn io(open: &mut dyn OpenVolume, io: Io) -> Completion {
    crate::bench::one_io(open, io, &mut Vec::new()).unwrap()
}

#[test]
fn memory_remembers_and_null_forgets() {
    for (spec, kept) in [("memory:1M", true), ("null:1M", false)] {
        for any_byte in [false, true] {
            let options = VolumeOptions { any_byte, ..options() };
            let mut open = open(&spec.parse().unwrap(), &options, None).unwrap();
            let geometry = open.volume().geometry();
            assert_eq!(geometry.block_bytes, if any_byte { 1 } else { 512 });
            let mut write = Io::new(1, Op::Write, 512, 512);
            write.data = SegList::of(open.pool().copy_of(&[7; 512]).freeze());
            assert!(io(&mut *open, write).result.is_ok());
            let read = io(&mut *open, Io::new(2, Op::Read, 512, 512));
            assert_eq!(read.data.to_vec()[0] == 7, kept);
            if any_byte {
                assert_eq!(io(&mut *open, Io::new(3, Op::Read, 600, 3)).data.bytes(), 3);
            }
        }
    }
}

/// An opened volume for who only submits and polls: each poll is a turn.
struct Driven(RefCell<Box<dyn OpenVolume>>);

impl Volume for Driven {
    fn geometry(&self) -> Geometry {
        self.0.borrow_mut().volume().geometry()
    }
    fn identity(&self) -> Identity {
        self.0.borrow_mut().volume().identity()
    }
    fn submit(&mut self, io: Io) {
        self.0.get_mut().volume().submit(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        let open = self.0.get_mut();
        open.turn(Wait::No).unwrap();
        open.volume().poll(done);
    }
    fn outstanding(&self) -> usize {
        self.0.borrow_mut().volume().outstanding()
    }
    fn events(&self) -> u64 {
        self.0.borrow_mut().volume().events()
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.0.get_mut().volume().poll_events(events);
    }
}

#[test]
fn whatever_is_opened_conforms() {
    let image = Image::new();
    let VolumeSpec::Path(path) = &image.spec else { unreachable!() };
    let tree = format!("linear:[{},memory:1M]", path.display());
    for (seed, spec) in (1..).zip(["memory:1M".to_string(), path.display().to_string(), tree]) {
        for any_byte in [false, true] {
            let run_dir = image.dir.path().join("run");
            let options = VolumeOptions { run_dir, any_byte, ..options() };
            let disk = image.disk_options();
            let open = open_on(&Host::new().unwrap(), &spec.parse().unwrap(), &options, disk, None);
            let mut driven = Driven(RefCell::new(open.unwrap()));
            let report = exercise(&mut driven, &mut || {}, seed, 1000);
            assert!(report.ios > 1000 && report.blocks_checked > 500, "{spec}: {report:?}");
            driven.0.into_inner().close(Ending::Orderly).unwrap();
        }
    }
}

#[test]
fn a_file_is_written_through_and_locked() {
    let image = Image::new();
    let mut first = image.open("run", false).unwrap();
    write(&mut *first);
    assert!(io(&mut *first, Io::new(2, Op::Flush, 0, 0)).result.is_ok());
    let bytes = std::fs::read(image.dir.path().join("disk.img")).unwrap();
    assert!(bytes[4096..8192] == [7; 4096] && bytes[..4096] == [0; 4096]);
    let error = image.open("run", true).err().expect("locked").to_string();
    assert!(error.contains("disk.img") && error.contains("in use"), "{error}");
    drop(first);
    assert!(image.open("run", false).is_ok());
}

#[test]
fn a_writer_on_record_is_named_and_fenced_only_on_demand() {
    let image = Image::held();
    let before = image.record();
    let error = image.open("run", false).err().expect("held").to_string();
    for word in ["disk.img", "node1 (pid 7)", "--take-over"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert_eq!(image.record(), before);
    // Readers neither ask nor change anything.
    let reader = VolumeOptions { read_only: true, ..options() };
    open(&image.spec, &reader, None).unwrap().close(Ending::Orderly).unwrap();
    assert_eq!(image.record(), before);

    let mut taken = image.open("run", true).unwrap();
    write(&mut *taken);
    taken.close(Ending::Orderly).unwrap();
    drop(taken);
    assert_eq!(image.record(), WriterRecord::new(8, [0; 16], ""), "released, and fenced");
    assert!(image.open("elsewhere", false).is_ok(), "nobody is on record");
}

#[test]
fn who_has_written_stays_on_record_until_it_ends_in_order() {
    let image = Image::new();
    let mut open = image.open("run", false).unwrap();
    write(&mut *open);
    open.close(Ending::Force).unwrap();
    drop(open);
    let left = image.record();
    assert_eq!(left.generation, 1);
    assert!(left.is_held() && left.name.as_str().contains("(local, pid "), "{left:?}");
    let error = image.open("elsewhere", false).err().expect("held").to_string();
    assert!(error.contains("(local, pid "), "{error}");

    // The next run of the same is no stranger, by whatever path.
    let link = image.dir.path().join("link.img");
    std::os::unix::fs::symlink(image.dir.path().join("disk.img"), &link).unwrap();
    let run_dir = image.dir.path().join("run");
    let again = VolumeOptions { run_dir, any_byte: true, ..options() };
    let mut again = crate::open::open_volume(&VolumeSpec::Path(link), &again, None).unwrap();
    write(&mut *again);
    again.close(Ending::Orderly).unwrap();
    drop(again);
    assert_eq!(image.record(), WriterRecord::new(2, [0; 16], ""));
}

/// A loop device over a file, detached when dropped.
struct Loop(String);

impl Loop {
    /// `None` where there is none to be had.
    fn new(file: &std::path::Path) -> Option<Self> {
        let mut losetup = std::process::Command::new("losetup");
        let made = losetup.args(["-f", "--show"]).arg(file).output().ok()?;
        let device = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        made.status.success().then_some(Loop(device))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A device has no attributes: its record is in the state directory.
#[test]
fn the_writer_of_a_device_is_fenced_only_on_demand() {
    let mut image = Image::new();
    let Some(device) = Loop::new(&image.dir.path().join("disk.img")) else {
        return eprintln!("no loop device to be had: the test of block devices is skipped");
    };
    image.spec = VolumeSpec::Path(device.0.clone().into());
    let before = WriterRecord::new(7, REMOTE, "");
    store_writer(&mut *image.store(), before).unwrap();
    let error = image.open("run", false).err().expect("held").to_string();
    assert!(error.contains(&device.0) && error.contains(&"ab".repeat(16)), "{error}");
    assert_eq!(image.record(), before);
    let mut taken = image.open("run", true).unwrap();
    write(&mut *taken);
    taken.close(Ending::Orderly).unwrap();
    drop(taken);
    assert_eq!(image.record(), WriterRecord::new(8, [0; 16], ""));
    assert_eq!(std::fs::read_dir(image.disk_options().state_dir).unwrap().count(), 1);
}

#[test]
fn without_a_run_directory_each_run_is_a_stranger() {
    let image = Image::new();
    let nowhere = || open(&image.spec, &options(), None);
    let mut first = nowhere().unwrap();
    write(&mut *first);
    drop(first);
    assert!(image.record().is_held());
    let error = nowhere().err().expect("held").to_string();
    assert!(error.contains("(local, pid "), "{error}");
    image.open("run", true).unwrap().close(Ending::Orderly).unwrap();
    nowhere().unwrap().close(Ending::Orderly).unwrap();
    assert!(!image.record().is_held());
}

#[test]
fn who_has_written_nothing_leaves_the_record_as_it_was() {
    let image = Image::held();
    let before = image.record();
    for ending in [Some(Ending::Force), None] {
        let mut open = image.open("run", true).unwrap();
        assert!(io(&mut *open, Io::new(1, Op::Read, 0, 4096)).result.is_ok());
        if let Some(ending) = ending {
            open.close(ending).unwrap();
        }
        drop(open);
        assert_eq!(image.record(), before, "the take-over came to nothing");
    }
    // In order it is what the user asked for.
    image.open("run", true).unwrap().close(Ending::Orderly).unwrap();
    assert_eq!(image.record(), WriterRecord::new(8, [0; 16], ""));
}

/// An opening that comes to nothing has written labels: the one before is not the last that has written, and is not on record again as if it were.
#[test]
fn who_has_written_and_served_nobody_does_not_give_it_back_as_it_was() {
    let image = Image::held();
    let before = image.record();
    let mut open = image.open("run", true).unwrap();
    open.close(Ending::Unused).unwrap();
    drop(open);
    assert_eq!(image.record(), before, "nothing was written");
    let mut open = image.open("run", true).unwrap();
    write(&mut *open);
    open.close(Ending::Unused).unwrap();
    drop(open);
    assert_eq!(image.record(), WriterRecord::new(8, [0; 16], ""));
}

#[test]
fn a_sleep_ends_at_a_watched_descriptor_or_in_time() {
    let mut open = open(&"null:1M".parse().unwrap(), &options(), None).unwrap();
    assert!(!open.turn(Wait::Until(Instant::now() + Duration::from_millis(5))).unwrap());
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    open.watch(reader.as_fd()).unwrap();
    rustix::io::write(&writer, b"x").unwrap();
    assert!(!open.turn(Wait::Forever).unwrap());
}

#[test]
fn read_only_is_in_the_geometry() {
    let options = VolumeOptions { read_only: true, ..options() };
    let mut open = open(&"memory:1M".parse().unwrap(), &options, None).unwrap();
    assert!(open.volume().geometry().features.read_only);
}

#[test]
fn an_end_in_a_hurry_does_not_wait_for_a_disk_that_does_not_answer() {
    let image = Image::new();
    let host = Host::new().unwrap();
    let options = VolumeOptions { run_dir: image.dir.path().join("run"), ..options() };
    let opened = LocalLeaf::open(&host, &image.spec, &options, image.disk_options(), None);
    let leaf = opened.unwrap();
    leaf.keep_grant();
    leaf.wrap(|sound| Box::new(crate::testing::Hangs::new(sound, &Default::default(), usize::MAX)));
    let hurry = crate::steward::bell().unwrap();
    rustix::io::write(&hurry, &1u64.to_ne_bytes()).unwrap();
    let why = LocalLeaf::end_all(&host, &[&leaf], Some(&hurry)).unwrap_err().to_string();
    let VolumeSpec::Path(path) = &image.spec else { unreachable!() };
    assert!(why.contains(&format!("without an answer from {}:", path.display())), "{why}");
    drop(leaf);
    assert!(image.record().is_held(), "what was written last may be lost");
}

/// A leaf of a leg that its mirror goes without, which does not answer, hides nobody else who does not; and holds up nothing by itself.
#[test]
fn a_spare_leaf_that_does_not_answer_is_no_word_of_others() {
    let images = [Image::new(), Image::new()];
    let host = Host::new().unwrap();
    let [spare, sound] = images.each_ref().map(|image| {
        let options = VolumeOptions { run_dir: image.dir.path().join("run"), ..options() };
        let opened = LocalLeaf::open(&host, &image.spec, &options, image.disk_options(), None);
        let leaf = opened.unwrap();
        leaf.keep_grant();
        let hangs = |volume| crate::testing::Hangs::new(volume, &Default::default(), usize::MAX);
        leaf.wrap(|sound| Box::new(hangs(sound)));
        leaf
    });
    spare.go_without();
    let hurry = crate::steward::bell().unwrap();
    rustix::io::write(&hurry, &1u64.to_ne_bytes()).unwrap();
    let why = LocalLeaf::end_all(&host, &[&spare, &sound], Some(&hurry)).unwrap_err().to_string();
    let [unheard, awaited] = images.each_ref().map(|image| image.spec.to_string());
    assert!(why.contains(awaited.trim_start_matches("file:")), "{why}");
    assert!(!why.contains(unheard.trim_start_matches("file:")), "{why}");
    assert_eq!(LocalLeaf::end_all(&host, &[&spare], None), Ok(()), "nobody waits for it alone");
}
