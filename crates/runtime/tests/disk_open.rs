//! What a path turns out to be: locks, identity, writer records, and what bad input gets.

mod common;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Dir, Store, at_once, open_disk};
use thinwire_buffer::Pool;
use thinwire_runtime::disk::{AnyDisk, DiskOpenError, DiskOptions, open};
use thinwire_volume::stores::FileStore;
use thinwire_volume::{Disk, ErrorKind, Volume, WriterRecord, load_writer, store_writer};

fn identity(path: &Path, options: &DiskOptions) -> [u8; 16] {
    open_disk(path, options).unwrap().disk.info().identity.identity
}

fn refusal(path: &Path, options: &DiskOptions) -> String {
    open_disk(path, options).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_a_volume_is_refused_with_a_remedy() {
    let dir = Dir::new();
    let options = dir.options();
    let missing = refusal(&dir.path().join("none"), &options);
    assert!(missing.contains("none: no such file") && missing.contains("truncate -s"), "{missing}");
    assert!(refusal(dir.path(), &options).contains("is a directory"));
    assert!(refusal(Path::new("/dev/null"), &options).contains("is a character device"));
    let empty = refusal(&dir.image("empty", 0), &options);
    assert!(empty.contains("is empty"), "{empty}");
    let odd = refusal(&dir.image("odd", 10_000), &options);
    assert!(odd.contains("10000 bytes") && odd.contains("512 bytes"), "{odd}");
    assert!(odd.contains("truncate -s 10240"), "{odd}");
    let large = DiskOptions { block_bytes: 4096, ..dir.options() };
    let odd = refusal(&dir.image("odd4", 4096 + 512), &large);
    assert!(odd.contains("4608 bytes") && odd.contains("4096 bytes"), "{odd}");
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(refusal(&pipe, &options).contains("is a pipe"));
}

#[test]
fn one_writer_or_many_readers() {
    let dir = Dir::new();
    let path = dir.image("image", 1 << 20);
    let reader = DiskOptions { read_only: true, ..dir.options() };
    let writer = dir.options();
    let first = open_disk(&path, &writer).unwrap();
    for options in [&reader, &writer] {
        let busy = refusal(&path, &at_once(options));
        assert!(busy.contains("in use by this process itself"), "{busy}");
    }
    drop(first);
    let readers = [open_disk(&path, &reader).unwrap(), open_disk(&path, &reader).unwrap()];
    assert!(matches!(open_disk(&path, &at_once(&writer)), Err(DiskOpenError::Busy { .. })));
    drop(readers);
    open_disk(&path, &writer).unwrap();
}

/// Dead processes still write (rule 2): the lock must be on the descriptor that does the I/O.
#[test]
fn the_lock_is_on_the_only_descriptor() {
    let dir = Dir::new();
    let path = dir.image("image", 1 << 20).canonicalize().unwrap();
    let opened = open_disk(&path, &dir.options()).unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        if std::fs::read_link(entry.path()).is_ok_and(|target| target == path) {
            let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
            found.push(std::fs::read_to_string(info).unwrap());
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("FLOCK") && found[0].contains("WRITE"), "{}", found[0]);
    drop(opened);
}

#[test]
fn a_starting_target_waits_for_its_killed_predecessor() {
    let dir = Dir::new();
    let path = dir.image("image", 1 << 20);
    let mut holder = Command::new("flock");
    holder.args(["-x", "-F"]).arg(&path).args(["sh", "-c", "echo held; exec sleep 60"]);
    let mut holder = holder.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(holder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "held\n");
    let options = DiskOptions { wait_lock: Duration::from_secs(60), ..dir.options() };
    let mut told = Vec::new();
    let opened = open(&path, &options, &mut |text| {
        told.push(text.to_owned());
        holder.kill().unwrap();
        holder.wait().unwrap();
    });
    opened.unwrap();
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("waiting up to 60 s"), "{}", told[0]);
    assert!(told[0].contains(&format!("process {}", holder.id())), "{}", told[0]);
}

#[test]
fn a_file_keeps_its_identity_and_a_copy_gets_its_own() {
    let dir = Dir::new();
    let options = dir.options();
    let path = dir.image("image", 1 << 20);
    let first = identity(&path, &options);
    assert_eq!(identity(&path, &options), first);
    let moved = dir.path().join("moved");
    std::fs::rename(&path, &moved).unwrap();
    assert_eq!(identity(&moved, &options), first);
    assert_eq!(identity(&moved, &DiskOptions { read_only: true, ..dir.options() }), first);
    let copy = |flags: &[&str], name: &str| {
        let to = dir.path().join(name);
        assert!(Command::new("cp").args(flags).arg(&moved).arg(&to).status().unwrap().success());
        identity(&to, &options)
    };
    assert_ne!(copy(&[], "copy"), first);
    // Documented: a copy with all attributes is taken for the same volume.
    assert_eq!(copy(&["-a"], "archive"), first);
}

#[test]
fn a_reader_leaves_no_trace() {
    let dir = Dir::new();
    let path = dir.image("image", 1 << 20);
    let reader = DiskOptions { read_only: true, ..dir.options() };
    let derived = identity(&path, &reader);
    assert_eq!(identity(&path, &reader), derived);
    let other = dir.image("other", 1 << 20);
    assert_ne!(identity(&other, &reader), derived);
    let mut buffer = [0; 64];
    assert!(rustix::fs::getxattr(&path, "user.thinwire.id", &mut buffer).is_err());
    let mut store = Store::open(&path, &reader);
    assert!(store.volume.geometry().features.read_only);
    let error = store_writer(&mut *store.volume, WriterRecord::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadOnly);
}

/// A volume for its record alone.
fn store_of(path: &Path, options: &DiskOptions) -> FileStore<AnyDisk> {
    FileStore::new(open_disk(path, options).unwrap().disk, 512, &Pool::new(0)).unwrap()
}

#[test]
fn the_writer_record_survives_and_damage_is_noticed() {
    let dir = Dir::new();
    let options = dir.options();
    let path = dir.image("image", 1 << 20);
    let mut disk = store_of(&path, &options);
    assert_eq!(load_writer(&mut disk), Ok(WriterRecord::default()));
    let record = WriterRecord::new(3, [9; 16], "node1");
    store_writer(&mut disk, record).unwrap();
    drop(disk);
    assert_eq!(load_writer(&mut store_of(&path, &options)), Ok(record));
    // A newer one in the state directory, from a time when the attribute was refused, counts.
    let id = identity(&path, &options);
    let name: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut bytes = [0; 160];
    let len = rustix::fs::getxattr(&path, "user.thinwire.writer", &mut bytes).unwrap();
    std::fs::create_dir_all(&options.state_dir).unwrap();
    let state_file = options.state_dir.join(format!("writer-{name}"));
    std::fs::write(&state_file, &bytes[..len]).unwrap();
    let newer = WriterRecord::new(4, [8; 16], "");
    let mut disk = store_of(&path, &options);
    store_writer(&mut disk, newer).unwrap();
    drop(disk);
    assert!(!state_file.exists());
    assert_eq!(load_writer(&mut store_of(&path, &options)), Ok(newer));
    let set = |value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.thinwire.writer", value, flags).unwrap();
    };
    for damage in [&bytes[..len - 1], &[0; 64][..], &[0; 40][..]] {
        set(damage);
        let error = refusal(&path, &options);
        assert!(error.contains("setfattr -x user.thinwire.writer"), "{error}");
    }
}

#[test]
fn the_lock_goes_only_when_the_disk_does() {
    let dir = Dir::new();
    let path = dir.image("image", 1 << 20);
    let opened = open_disk(&path, &dir.options()).unwrap();
    // Opening and closing the file otherwise, which would drop a POSIX lock, changes nothing.
    drop(std::fs::File::open(&path).unwrap());
    assert!(open_disk(&path, &at_once(&dir.options())).is_err());
    drop(opened);
    open_disk(&path, &dir.options()).unwrap();
}
