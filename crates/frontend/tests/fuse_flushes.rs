//! Flushes of a volume as a file, one by one. Alone in its process: a child of another test has all open files until it runs its program,
//! and closing them flushes what was written. Needs root.

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::shard::drive;
use support::volume::MemoryVolume;
use support::{Scratch, Served, sh};
use thinwire_buffer::Pool;
use thinwire_frontend::fuse::{FuseConfig, FuseFace};
use thinwire_volume::Volume;

const MIB: u64 = 1 << 20;

/// Serves PATH BYTES.
#[test]
fn child() {
    support::child(|words| {
        let pool = Pool::new(64 << 20);
        let mut volume = MemoryVolume::new(words[1].parse().unwrap(), false, pool.clone());
        let config = FuseConfig {
            path: words[0].into(),
            source: "memory:test,1".to_owned(),
            geometry: volume.geometry(),
            read_only: false,
            allow_other: false,
        };
        let mut face = FuseFace::mount(config, pool)?;
        println!("= serving");
        drive(&mut face, &mut volume)
    });
}

fn mount(path: &Path, bytes: u64) -> Served {
    Served::start(&[path.to_str().unwrap(), &bytes.to_string()]).unwrap()
}

fn open(path: &Path) -> fs::File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn flushes_and_durable_writes_reach_the_volume() {
    let scratch = Scratch::new("flush");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, MIB);
    let flushes = || shard.counts().flushes;
    let file = open(&disk);
    drop(open(&disk));
    assert_eq!(flushes(), 0, "closing without a write flushes nothing");
    file.write_all_at(b"x", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(flushes(), 1);
    file.sync_all().unwrap();
    assert_eq!(flushes(), 2);
    file.write_all_at(b"y", 0).unwrap();
    drop(file);
    assert_eq!(flushes(), 3, "closing after a write flushes");
    sh(&format!(
        "dd if=/dev/zero of={} bs=4k count=3 oflag=dsync conv=notrunc status=none",
        disk.display()
    ));
    assert_eq!(shard.counts().fua_writes, 3);
}
