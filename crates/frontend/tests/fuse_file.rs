//! A volume as a file: what real programs do with it, and how it goes away. Needs root.

mod support;

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::shard::{drive, drive_any};
use support::volume::MemoryVolume;
use support::{Scratch, Served, eventually, mounts_below, sh, try_sh};
use thinwire_buffer::Pool;
use thinwire_frontend::fuse::{FuseConfig, FuseFace, clean_stale};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Unaligned, Volume};

const MIB: u64 = 1 << 20;

/// Serves PATH BYTES, and `ro` or `others`, or `blocks`: a volume of blocks of 4096 bytes.
#[test]
fn child() {
    support::child(|words| {
        let pool = Pool::new(64 << 20);
        let mut volume = MemoryVolume::new(words[1].parse().unwrap(), false, pool.clone());
        let config = FuseConfig {
            path: words[0].into(),
            source: "memory:test,1".to_owned(),
            geometry: volume.geometry(),
            read_only: words[2..].contains(&"ro"),
            allow_other: words[2..].contains(&"others"),
        };
        if words[2..].contains(&"blocks") {
            let store = MemoryStore::new(volume.geometry().bytes, 4096, Identity::default(), &pool);
            let mut volume = Unaligned::new(store, pool.clone());
            let config = FuseConfig { geometry: volume.geometry(), ..config };
            let mut face = FuseFace::mount(config, pool)?;
            println!("= serving");
            return drive_any(&mut face, &mut volume);
        }
        let mut face = FuseFace::mount(config, pool)?;
        println!("= serving");
        drive(&mut face, &mut volume)
    });
}

fn mount_with(path: &Path, bytes: u64, option: &str) -> Served {
    Served::start(&[path.to_str().unwrap(), &bytes.to_string(), option]).unwrap()
}

fn mount(path: &Path, bytes: u64) -> Served {
    mount_with(path, bytes, "")
}

fn open(path: &Path) -> fs::File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn the_path_is_the_disk() {
    let scratch = Scratch::new("path");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, 8 * MIB);
    assert_eq!(shard.ask("ready"), format!("ok {}", disk.display()));
    let seen = fs::metadata(&disk).unwrap();
    assert!(seen.is_file());
    assert_eq!((seen.len(), seen.mode() & 0o777), (8 * MIB, 0o600));
    let mut file = open(&disk);
    file.write_all_at(b"hello", 4094).unwrap();
    let mut back = [0; 9];
    file.read_exact_at(&mut back, 4092).unwrap();
    assert_eq!(&back, b"\0\0hello\0\0");
    // The end of a disk.
    assert_eq!(file.read_at(&mut back, 8 * MIB - 3).unwrap(), 3);
    assert_eq!(file.read_at(&mut back, 8 * MIB).unwrap(), 0);
    assert_eq!(file.write_at(&back, 8 * MIB - 3).unwrap(), 3);
    let full = file.write_at(&back, 8 * MIB).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 8 * MIB);
    drop(file);
    eventually("closed", || shard.ask("busy") == "no");
    assert_eq!(shard.ask("close"), "ok");
    assert!(!disk.exists());
}

/// There is no share of the links' memory for a file, as there is for slow NBD clients: the kernel takes each reply
/// whole, when it is sent, and has room for it.
#[test]
fn nothing_that_is_read_is_kept_for_a_program_that_is_stopped() {
    let scratch = Scratch::new("stopped");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, 8 * MIB);
    shard.ask("hold");
    let reader = |skip: &u64| {
        let words = ["bs=1M", "count=1", "iflag=direct", "of=/dev/null", "status=none"];
        let from = [format!("if={}", disk.display()), format!("skip={skip}")];
        Command::new("dd").args(words).args(from).spawn().unwrap()
    };
    let mut readers: Vec<_> = [0, 2, 4, 6].iter().map(reader).collect();
    eventually("asked", || shard.counts().outstanding == 4);
    let send =
        |signal| readers.iter().for_each(|one| kill_process(Pid::from_child(one), signal).unwrap());
    send(Signal::STOP);
    shard.ask("release");
    eventually("answered", || shard.counts().outstanding == 0);
    eventually("let go of", || shard.ask("lent") == "0");
    let state = |pid| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // A signal takes effect when its program runs next, which the reply has just made it able to.
    eventually("stopped", || readers.iter().all(|one| state(one.id()).contains(" T ")));
    send(Signal::CONT);
    assert!(readers.iter_mut().all(|one| one.wait().unwrap().success()));
    shard.ask("close");
}

#[test]
fn its_size_is_fixed_but_truncating_opens_work() {
    let scratch = Scratch::new("size");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, 4 * MIB);
    let file = open(&disk);
    file.set_len(4 * MIB).unwrap();
    for len in [0, MIB, 5 * MIB] {
        assert_eq!(file.set_len(len).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
    file.write_all_at(b"stays", 100).unwrap();
    drop(fs::File::create(&disk).unwrap());
    let mut back = [0; 5];
    file.read_exact_at(&mut back, 100).unwrap();
    assert_eq!(&back, b"stays");
    assert_eq!(fs::metadata(&disk).unwrap().len(), 4 * MIB);
    sh(&format!(
        "head -c 4M /dev/urandom >{0}/img; cp {0}/img {0}/disk0; cmp {0}/img {0}/disk0",
        scratch.dir().display()
    ));
    // It grows with its volume.
    shard.ask(&format!("grow {}", 6 * MIB));
    assert_eq!(fs::metadata(&disk).unwrap().len(), 6 * MIB);
    file.write_all_at(b"more", 5 * MIB).unwrap();
    drop(file);
}

#[test]
fn holes_are_punched_and_found() {
    let scratch = Scratch::new("holes");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, 16 * MIB);
    let at = disk.display();
    let mut file = open(&disk);
    let find = |file: &mut fs::File, from: u64, whence| {
        rustix::fs::seek(
            file,
            match whence {
                "data" => rustix::fs::SeekFrom::Data(from),
                _ => rustix::fs::SeekFrom::Hole(from),
            },
        )
    };
    assert_eq!(find(&mut file, 0, "data"), Err(rustix::io::Errno::NXIO));
    assert_eq!(find(&mut file, 5, "hole"), Ok(5));
    for mib in [3, 5, 7, 9, 11] {
        file.write_all_at(&[7; 8192], mib * MIB).unwrap();
    }
    assert_eq!(find(&mut file, 0, "data"), Ok(3 * MIB));
    assert_eq!(find(&mut file, 3 * MIB, "hole"), Ok(3 * MIB + 8192));
    assert_eq!(find(&mut file, 10 * MIB, "data"), Ok(11 * MIB));
    sh(&format!("fallocate -p -o 11M -l 1M {at}"));
    assert_eq!(find(&mut file, 10 * MIB, "data"), Err(rustix::io::Errno::NXIO));
    let counts = shard.counts();
    assert_eq!((counts.zeroes, counts.zeroes_no_hole, counts.zeroed_bytes), (1, 0, MIB));
    sh(&format!("fallocate -z -o 0 -l 2M {at}"));
    assert_eq!(shard.counts().zeroes_no_hole, 1);
    assert_eq!(find(&mut file, 0, "data"), Ok(0));
    // Promises that cannot be kept are refused: reserving space, shifting, growing.
    for wish in ["-l 1M", "-c -o 0 -l 1M", "-z -o 15M -l 2M"] {
        assert!(!try_sh(&format!("fallocate {wish} {at}")).status.success(), "{wish}");
    }
    drop(file);
}

#[test]
fn a_read_only_file_refuses_writes() {
    let scratch = Scratch::new("ro");
    let disk = scratch.path("disk0");
    let _shard = mount_with(&disk, MIB, "ro");
    let refused = OpenOptions::new().write(true).open(&disk).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let mut all = Vec::new();
    fs::File::open(&disk).unwrap().read_to_end(&mut all).unwrap();
    assert_eq!(all, vec![0; MIB as usize]);
}

#[test]
fn only_the_owner_opens_it_unless_told_otherwise() {
    let scratch = Scratch::new("others");
    for (others, name) in [(false, "mine"), (true, "ours")] {
        let disk = scratch.path(name);
        let _shard = mount_with(&disk, MIB, if others { "others" } else { "" });
        let script = format!(
            "setpriv --reuid 65534 --regid 65534 --clear-groups dd if={} \
            of=/dev/null bs=4k count=1 status=none",
            disk.display()
        );
        assert_eq!(try_sh(&script).status.success(), others, "allow_other {others}");
    }
}

#[test]
fn fio_finds_what_it_wrote() {
    let scratch = Scratch::new("fio");
    let disk = scratch.path("disk0");
    let _shard = mount(&disk, 64 * MIB);
    let fio = |direct: u8, engine: &str, extra: &str| {
        sh(&format!(
            "cd {}; timeout -s KILL 60 fio --name=t --filename={} --direct={direct} --ioengine={engine} --size=64M \
             --io_size=48M --verify=crc32c --rw=randrw --bsrange=512-1M --bs_unaligned=1 \
             --iodepth=16 --randseed=7 {extra}",
            scratch.dir().display(),
            disk.display()
        ));
    };
    fio(1, "libaio", "");
    fio(0, "psync", "--numjobs=1");
    fio(1, "libaio", "--numjobs=4 --size=16M --offset_increment=16M --io_size=12M");
}

#[test]
fn bytes_over_blocks_are_exact() {
    let scratch = Scratch::new("blocks");
    let disk = scratch.path("disk0");
    let _shard = mount_with(&disk, 32 * MIB, "blocks");
    sh(&format!(
        "cd {}; timeout -s KILL 60 fio --name=t --filename={} --direct=0 --ioengine=psync \
         --size=32M --io_size=16M --verify=crc32c --rw=randrw --bsrange=512-256k \
         --bs_unaligned=1 --randseed=3 --numjobs=1",
        scratch.dir().display(),
        disk.display()
    ));
    let file = open(&disk);
    file.write_all_at(&[1; 3 * 4096], 4096).unwrap();
    sh(&format!("fallocate -p -o 4100 -l 8200 {}", disk.display()));
    let mut back = [2; 3 * 4096];
    file.read_exact_at(&mut back, 4096).unwrap();
    assert!((0..back.len()).all(|n| back[n] == u8::from(!(4..8204).contains(&n))));
}

#[test]
fn busy_while_open_and_close_refuses() {
    let scratch = Scratch::new("busy");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, MIB);
    assert_eq!(shard.ask("busy"), "no");
    let file = open(&disk);
    assert_eq!(shard.ask("busy"), format!("{} is open", disk.display()));
    let refused = shard.ask("close");
    assert!(refused.starts_with("error ResourceBusy"), "{refused}");
    file.write_all_at(b"still served", 0).unwrap();
    drop(file);
    eventually("closed", || shard.ask("busy") == "no");
    assert_eq!(shard.ask("close"), "ok");
    assert_eq!(mounts_below(scratch.dir()), Vec::<PathBuf>::new());
}

#[test]
fn force_ends_io_that_never_completes() {
    let scratch = Scratch::new("force");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, MIB);
    shard.ask("stuck");
    // Processes, so that what hangs here can be killed together with the server.
    let at = disk.display();
    let scripts = [
        format!("dd if={at} of=/dev/null bs=4k count=1"),
        format!("dd if=/dev/zero of={at} bs=4k count=1 conv=notrunc"),
        format!("dd if=/dev/zero of={at} bs=4k count=1 seek=9 conv=notrunc,fsync"),
    ];
    let mut waiting: Vec<_> = scripts
        .iter()
        .map(|script| {
            Command::new("sh").arg("-c").arg(script).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    eventually("all stuck", || shard.counts().outstanding == 3);
    assert_eq!(shard.ask("force"), "ok");
    assert!(!disk.exists());
    assert_eq!(mounts_below(scratch.dir()), Vec::<PathBuf>::new());
    for child in &mut waiting {
        assert!(!child.wait().unwrap().success());
    }
    assert_eq!(shard.ask("force"), "ok");
}

#[test]
fn killed_attachments_leave_what_is_found_and_cleaned() {
    let scratch = Scratch::new("stale");
    let disk = scratch.path("disk0");
    for open_file in [false, true] {
        let shard = mount(&disk, MIB);
        let file = open_file.then(|| open(&disk));
        shard.kill();
        let error = fs::metadata(&disk).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
        let report = clean_stale(&disk).unwrap().unwrap();
        assert!(report.contains("killed"), "{report}");
        assert!(!disk.exists());
        drop(file);
    }
    assert_eq!(clean_stale(&disk).unwrap(), None);
    assert_eq!(mount(&disk, MIB).ask("close"), "ok");
}

#[test]
fn a_backlog_waits_its_turn() {
    // More outstanding bytes than the face admits: it must stop reading, not fail or spin, and go
    // on when the volume does.
    let scratch = Scratch::new("backlog");
    let disk = scratch.path("disk0");
    let _shard = mount(&disk, 256 * MIB);
    let file = open(&disk);
    let writers: Vec<_> = (0..100u64)
        .map(|n| {
            let file = file.try_clone().unwrap();
            std::thread::spawn(move || file.write_all_at(&vec![n as u8; MIB as usize], n * MIB))
        })
        .collect();
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    let mut back = vec![0; MIB as usize];
    for n in [0, 50, 99u64] {
        file.read_exact_at(&mut back, n * MIB).unwrap();
        assert!(back.iter().all(|&b| b == n as u8));
    }
    drop(file);
}

#[test]
fn unmounting_it_behind_our_back_is_an_error() {
    let scratch = Scratch::new("behind");
    let disk = scratch.path("disk0");
    let shard = mount(&disk, MIB);
    fs::metadata(&disk).unwrap();
    sh(&format!("umount {}", disk.display()));
    // It is there for as long as a namespace has it that somebody else has made meanwhile.
    let mut error = shard.ask("alive");
    let began = Instant::now();
    while error == "yes" && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
        error = shard.ask("alive");
    }
    assert!(error.contains("unmounted by somebody else"), "{error}");
    assert_eq!(shard.ask("close"), "ok");
    assert!(!disk.exists());
}

#[test]
fn a_living_file_is_not_stale() {
    let scratch = Scratch::new("living");
    let disk = scratch.path("disk0");
    assert_eq!(clean_stale(&disk).unwrap(), None);
    let shard = mount(&disk, MIB);
    let error = clean_stale(&disk).unwrap_err().to_string();
    assert!(error.contains("served by another attachment"), "{error}");
    let again = Served::start(&[disk.to_str().unwrap(), "1048576"]).err().unwrap();
    assert!(again.contains("served by another attachment"), "{again}");
    assert_eq!(shard.ask("close"), "ok");
}

#[test]
fn what_is_in_the_way_is_named() {
    let scratch = Scratch::new("way");
    let full = scratch.path("full");
    fs::File::create(&full).unwrap().write_all(b"data").unwrap();
    for (path, word) in [
        (full, "not empty"),
        (scratch.dir().to_owned(), "is a directory"),
        (scratch.path("no/such/dir"), "cannot find the directory"),
    ] {
        let error = Served::start(&[path.to_str().unwrap(), "1048576"]).err().unwrap();
        assert!(error.contains(word), "{error}");
    }
}
