//! A volume as a block device: file systems on it, and how it goes away. Needs root.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::shard::drive;
use support::volume::MemoryVolume;
use support::{Scratch, Served, eventually, mounts_below, sh, try_sh};
use thinwire_buffer::Pool;
use thinwire_frontend::block::{
    BlockBackend, BlockConfig, attach, choose_block_backend, clean_stale,
};
use thinwire_volume::Volume;

const MIB: u64 = 1 << 20;

/// Serves RUN_DIR BYTES BLOCK, and `ro` or `deaf` (the shard never turns).
#[test]
fn child() {
    support::child(|words| {
        let pool = Pool::new(64 << 20);
        let mut volume = MemoryVolume::new(words[1].parse().unwrap(), false, pool.clone());
        let config = BlockConfig {
            run_dir: words[0].into(),
            name: "disk0".to_owned(),
            source: "memory:test".to_owned(),
            geometry: volume.geometry(),
            block_bytes: words[2].parse().unwrap(),
            read_only: words[3..].contains(&"ro"),
            is_carrying: false,
        };
        let mut face = attach(Some(BlockBackend::Loop), config, pool)?;
        println!("= serving");
        if words[3..].contains(&"deaf") {
            std::io::stdin().read_to_end(&mut Vec::new())?;
            return Ok(());
        }
        drive(&mut *face, &mut volume)
    });
}

/// A device and its node.
struct Disk {
    served: Served,
    node: String,
}

impl Disk {
    fn attach(scratch: &Scratch, bytes: u64) -> Disk {
        Disk::attach_with(scratch, bytes, "512", "")
    }

    fn attach_with(scratch: &Scratch, bytes: u64, block: &str, option: &str) -> Disk {
        let dir = scratch.dir().to_str().unwrap();
        let served = Served::start(&[dir, &bytes.to_string(), block, option]).unwrap();
        let ready = served.ask("ready");
        let node = ready.strip_prefix("ok ").unwrap_or_else(|| panic!("{ready}")).to_owned();
        assert!(node.starts_with("/dev/loop"), "{node}");
        Disk { served, node }
    }

    /// A file of the device under /sys/block.
    fn sysfs(&self, name: &str) -> String {
        let node = self.node.trim_start_matches("/dev/");
        fs::read_to_string(format!("/sys/block/{node}/{name}")).unwrap().trim().to_owned()
    }

    fn detach(&self, scratch: &Scratch) {
        eventually("not busy", || self.served.ask("busy") == "no");
        assert_eq!(self.served.ask("close"), "ok");
        assert_nothing_left(scratch, &self.node);
    }
}

/// Bound to a file of this test, in its place or (after force) out of it.
fn is_bound(scratch: &Scratch, node: &str) -> bool {
    let name = node.trim_start_matches("/dev/");
    match fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")) {
        Ok(file) => Path::new(&file).starts_with(scratch.dir()) || file.lines().next() == Some("/"),
        Err(_) => false,
    }
}

/// Whether a process has `path` open.
fn has_open(pid: u32, path: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.map(|file| fs::read_link(file.path())).any(|to| to.is_ok_and(|to| to == path))
}

fn assert_nothing_left(scratch: &Scratch, node: &str) {
    assert!(!is_bound(scratch, node), "{}", sh("losetup -l"));
    assert_eq!(mounts_below(scratch.dir()), Vec::<PathBuf>::new());
    assert!(!scratch.path("disk0.disk").exists());
}

#[test]
fn the_device_is_what_was_asked_for() {
    for (block, option) in [("512", ""), ("4096", ""), ("512", "ro")] {
        let scratch = Scratch::new("shape");
        let disk = Disk::attach_with(&scratch, 64 * MIB, block, option);
        assert_eq!(disk.sysfs("size"), (64 * MIB / 512).to_string());
        assert_eq!(disk.sysfs("queue/logical_block_size"), block);
        assert_eq!(disk.sysfs("loop/dio"), "1");
        assert_eq!(disk.sysfs("loop/partscan"), "0");
        assert_eq!(disk.sysfs("ro"), if option == "ro" { "1" } else { "0" });
        let write = try_sh(&format!("dd if=/dev/zero of={} bs=4k count=1", disk.node));
        assert_eq!(write.status.success(), option != "ro");
        disk.detach(&scratch);
    }
}

#[test]
fn odd_blocks_are_refused() {
    let scratch = Scratch::new("odd");
    let dir = scratch.dir().to_str().unwrap();
    for (bytes, block) in [("1048576", "1024"), ("1048576", "1"), ("1049088", "4096"), ("0", "512")]
    {
        let error = Served::start(&[dir, bytes, block]).err().unwrap();
        assert!(error.contains("cannot have blocks"), "{error}");
    }
    assert!(choose_block_backend(Some(BlockBackend::Loop)).unwrap().why.contains("loop device"));
}

#[test]
fn what_the_machine_lacks_is_named() {
    let scratch = Scratch::copying_mounts("lacks");
    let spec = [scratch.dir().to_str().unwrap(), "1048576", "512"];
    let without = |what: &str| {
        format!("unshare --mount sh -c 'mount -t tmpfs none /mnt; {what} exec \"$0\" \"$@\"'")
    };
    let keep = |node: &str| format!("cp -a {node} /mnt; mount --bind /mnt /dev;");
    for (command, word) in [
        (without(&keep("/dev/fuse")), "/dev/loop-control does not exist"),
        (without(&keep("/dev/loop-control")), "/dev/fuse: it does not exist"),
        ("setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin".to_owned(), "CAP_SYS_ADMIN"),
        ("setpriv --reuid=65534 --regid=65534 --clear-groups".to_owned(), "CAP_SYS_ADMIN"),
    ] {
        let error = Served::start_under(&command, &spec).err().unwrap();
        assert!(error.contains(word), "{command}: {error}");
    }
    assert_eq!(fs::read_dir(scratch.dir()).unwrap().count(), 0);
}

/// Makes a file system, copies a tree to it, and has it checked by its own tool.
fn carries(name: &str, mkfs: &str, fsck: &str) {
    let scratch = Scratch::new(name);
    let disk = Disk::attach(&scratch, 384 * MIB);
    let (dir, node) = (scratch.dir().display(), &disk.node);
    sh(&format!(
        "mkdir {dir}/tree {dir}/mnt; cd {dir}/tree
         for d in $(seq 20); do mkdir $d; for f in $(seq 25); do
           head -c $((d * f * 97)) /dev/urandom >$d/$f; done; done
         head -c 20M /dev/urandom >big
         {mkfs} {node}; mount {node} {dir}/mnt; cp -a {dir}/tree {dir}/mnt/; umount {dir}/mnt
         {fsck} {node}
         mount {node} {dir}/mnt; diff -r {dir}/tree {dir}/mnt/tree"
    ));
    let before = disk.served.counts();
    assert!(before.flushes > 0);
    // What is deleted and trimmed is given back by the volume.
    // XFS frees the blocks of deleted files in the background; the end of the mount waits for that.
    sh(&format!(
        "rm -r {dir}/mnt/tree; umount {dir}/mnt
         mount {node} {dir}/mnt; fstrim {dir}/mnt; umount {dir}/mnt"
    ));
    let after = disk.served.counts();
    assert!(after.zeroed_bytes > before.zeroed_bytes + 20 * MIB, "{before:?} {after:?}");
    assert!(after.data_grains + 20 * 256 < before.data_grains, "{before:?} {after:?}");
    sh(&format!("{fsck} {node}"));
    disk.detach(&scratch);
}

#[test]
fn it_carries_ext4() {
    carries("ext4", "mkfs.ext4 -q", "fsck.ext4 -fn");
}

#[test]
fn it_carries_xfs() {
    carries("xfs", "mkfs.xfs -q", "xfs_repair -n");
}

#[test]
fn discards_and_zeroes_reach_the_volume() {
    let scratch = Scratch::new("discard");
    let disk = Disk::attach(&scratch, 64 * MIB);
    let node = &disk.node;
    sh(&format!("dd if=/dev/urandom of={node} bs=1M count=64 oflag=direct status=none"));
    let full = disk.served.counts();
    assert_eq!(full.data_grains, 64 * 256);
    sh(&format!("blkdiscard -o 16M -l 32M {node}"));
    let holed = disk.served.counts();
    assert_eq!((holed.data_grains, holed.zeroed_bytes), (32 * 256, 32 * MIB));
    assert_eq!(holed.zeroes_no_hole, 0);
    sh(&format!("cmp -n 33554432 -i 16777216:0 {node} /dev/zero"));
    // Zeroing without unmapping must allocate.
    sh(&format!("fallocate -z -o 0 -l 8M {node}"));
    let zeroed = disk.served.counts();
    assert!(zeroed.zeroes_no_hole > 0, "{zeroed:?}");
    assert_eq!(zeroed.data_grains, 32 * 256);
    sh(&format!("cmp -n 8388608 {node} /dev/zero"));
    disk.detach(&scratch);
}

#[test]
fn fio_finds_what_it_wrote() {
    let scratch = Scratch::new("fio");
    let disk = Disk::attach(&scratch, 64 * MIB);
    for (direct, engine) in [(1, "libaio"), (0, "psync")] {
        sh(&format!(
            "cd {}; timeout -s KILL 60 fio --name=t --filename={} --direct={direct} \
             --ioengine={engine} --size=64M --io_size=48M --verify=crc32c --rw=randrw \
             --bsrange=512-1M --iodepth=16 --randseed=7",
            scratch.dir().display(),
            disk.node
        ));
    }
    disk.detach(&scratch);
}

#[test]
fn what_the_page_cache_holds_is_written_before_it_goes() {
    let scratch = Scratch::new("cached");
    let disk = Disk::attach(&scratch, 16 * MIB);
    let mut keep = fs::OpenOptions::new().write(true).open(&disk.node).unwrap();
    keep.write_all(&vec![9; MIB as usize]).unwrap();
    drop(keep);
    disk.detach(&scratch);
    let counts = disk.served.counts();
    assert_eq!(counts.data_grains, 256);
    assert!(counts.flushes > 0);
}

#[test]
fn users_are_named_and_keep_it() {
    let scratch = Scratch::copying_mounts("users");
    let disk = Disk::attach(&scratch, 64 * MIB);
    let (dir, node) = (scratch.dir().display(), &disk.node);
    sh(&format!("mkfs.ext4 -q {node}; mkdir {dir}/mnt; mount {node} {dir}/mnt"));
    assert_eq!(disk.served.ask("busy"), format!("{node} is mounted on {dir}/mnt"));
    let refused = disk.served.ask("close");
    assert!(refused.starts_with("error ResourceBusy") && refused.contains("/mnt"), "{refused}");
    // It serves on.
    sh(&format!(
        "echo data >{dir}/mnt/file; sync -f {dir}/mnt; umount {dir}/mnt; fsck.ext4 -fn {node}"
    ));
    // A process that has it open, without any claim.
    let mut reader =
        Command::new("sleep").arg("60").stdin(fs::File::open(node).unwrap()).spawn().unwrap();
    // It has its new name a moment after the call that starts it has returned.
    let named = format!("{node} is open in process {} (sleep)", reader.id());
    eventually("named", || disk.served.ask("busy") == named);
    reader.kill().unwrap();
    reader.wait().unwrap();
    // A mount that we do not see.
    let mut hidden = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg(format!("mount {node} {dir}/mnt && echo mounted && exec sleep 60"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    hidden.stdout.take().unwrap().read_exact(&mut [0; 7]).unwrap();
    let busy = disk.served.ask("busy");
    hidden.kill().unwrap();
    hidden.wait().unwrap();
    assert!(busy.contains(&format!("{dir}/mnt in the mount namespace of process")), "{busy}");
    // The file system ends a moment after the last process that could see it.
    eventually("ended", || disk.served.ask("busy") == "no");
    sh(&format!("mkswap -q {node} || mkswap {node} >/dev/null; swapon {node}"));
    let busy = disk.served.ask("busy");
    sh(&format!("swapoff {node}"));
    assert_eq!(busy, format!("{node} is used as swap"));
    disk.detach(&scratch);
}

#[test]
fn it_grows_with_its_volume() {
    let scratch = Scratch::new("grow");
    let disk = Disk::attach(&scratch, 16 * MIB);
    assert_eq!(disk.served.ask(&format!("grow {}", 24 * MIB)), "ok");
    // The next turn takes notice.
    sh(&format!("dd if={} of=/dev/null bs=4k count=1 iflag=direct status=none", disk.node));
    eventually("grown", || disk.sysfs("size") == (24 * MIB / 512).to_string());
    sh(&format!("dd if=/dev/zero of={} bs=1M seek=20 count=4 oflag=direct status=none", disk.node));
    disk.detach(&scratch);
}

#[test]
fn force_ends_io_that_never_completes() {
    let scratch = Scratch::new("force");
    let disk = Disk::attach(&scratch, 16 * MIB);
    disk.served.ask("stuck");
    let mut stuck: Vec<_> = ["if=/dev/zero oflag=direct of", "of=/dev/null iflag=direct if"]
        .iter()
        .map(|how| {
            let script = format!("exec dd {how}={} bs=1M count=1", disk.node);
            Command::new("sh").arg("-c").arg(script).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    // Both have it open (one alone may have several I/Os outstanding): whoever opens it afterwards
    // finds an empty device, whose end is no error.
    let device = Path::new(&disk.node);
    eventually("stuck", || {
        stuck.iter().all(|child| has_open(child.id(), device))
            && disk.served.counts().outstanding > 0
    });
    assert!(disk.served.ask("busy").contains("(dd)"));
    assert_eq!(disk.served.ask("force"), "ok");
    for child in &mut stuck {
        assert!(!child.wait().unwrap().success());
    }
    eventually("unbound", || !is_bound(&scratch, &disk.node));
    assert_nothing_left(&scratch, &disk.node);
}

/// Who drives it sleeps until it says that there is something to see.
#[test]
fn what_it_waits_for_wakes_its_shard() {
    let scratch = Scratch::new("wakes");
    let disk = Disk::attach(&scratch, 16 * MIB);
    eventually("not busy", || disk.served.ask("busy") == "no");
    for _ in 0..3 {
        let user = fs::File::open(&disk.node).unwrap();
        let busy = disk.served.ask("watch busy");
        assert!(busy.starts_with(&format!("{} is open in process", disk.node)), "{busy}");
        drop(user);
    }
    assert_eq!(disk.served.ask("watch force"), "ok");
    eventually("unbound", || !is_bound(&scratch, &disk.node));
    assert_nothing_left(&scratch, &disk.node);
}

#[test]
fn force_leaves_a_dead_device_to_whoever_mounted_it() {
    let scratch = Scratch::new("dead");
    let disk = Disk::attach(&scratch, 64 * MIB);
    let (dir, node) = (scratch.dir().display(), &disk.node);
    sh(&format!(
        "mkfs.ext4 -q {node}; mkdir {dir}/mnt; mount {node} {dir}/mnt; echo x >{dir}/mnt/f"
    ));
    disk.served.ask("stuck");
    // The keeper watches the device for half a second. Nobody waits for that; a question neither.
    assert_eq!(disk.served.ask_once("busy"), "wait");
    assert_eq!(disk.served.ask_once("force"), "wait");
    assert_eq!(disk.served.ask("force"), "ok");
    assert!(!scratch.path("disk0.disk").exists());
    // The mount stays, so that nobody writes into the folder under it by mistake, and fails.
    assert!(!try_sh(&format!("echo y >{dir}/mnt/g; sync -f {dir}/mnt")).status.success());
    assert!(is_bound(&scratch, node));
    assert!(clean_stale(scratch.dir(), "disk0").unwrap().is_empty());
    sh(&format!("umount {dir}/mnt"));
    eventually("unbound", || !is_bound(&scratch, node));
    assert_nothing_left(&scratch, node);
}

#[test]
fn what_a_killed_attachment_leaves_is_cleaned() {
    let scratch = Scratch::new("stale");
    let disk = Disk::attach(&scratch, 64 * MIB);
    let node = disk.node.clone();
    let error = clean_stale(scratch.dir(), "disk0").unwrap_err().to_string();
    assert!(error.contains("is alive"), "{error}");
    disk.served.kill();
    // The device went with the process that kept it.
    eventually("unbound", || !is_bound(&scratch, &node));
    let report = clean_stale(scratch.dir(), "disk0").unwrap();
    assert!(report.len() == 1 && report[0].contains("unmounted"), "{report:?}");
    assert_nothing_left(&scratch, &node);
    assert!(clean_stale(scratch.dir(), "disk0").unwrap().is_empty());

    // One that was mounted when its attachment was killed.
    let disk = Disk::attach(&scratch, 64 * MIB);
    let (dir, node) = (scratch.dir().display(), disk.node.clone());
    sh(&format!("mkfs.ext4 -q {node}; mkdir {dir}/mnt; mount {node} {dir}/mnt"));
    disk.served.kill();
    let report = clean_stale(scratch.dir(), "disk0").unwrap();
    assert_eq!(report.len(), 2, "{report:?}");
    assert!(report[0].contains("no longer used"), "{report:?}");
    sh(&format!("umount {dir}/mnt"));
    eventually("unbound", || !is_bound(&scratch, &node));
    assert_nothing_left(&scratch, &node);
    // The name can be used again.
    Disk::attach(&scratch, 16 * MIB).detach(&scratch);
}

#[test]
fn a_shard_that_never_serves_can_still_be_killed() {
    let scratch = Scratch::new("deaf");
    let dir = scratch.dir().to_str().unwrap();
    // Its keeper waits for a file that nobody serves, in the same process.
    let deaf = Served::start(&[dir, "16777216", "512", "deaf"]).unwrap();
    deaf.kill();
    let report = clean_stale(scratch.dir(), "disk0").unwrap();
    assert!(report[0].contains("unmounted"), "{report:?}");
    assert_eq!(mounts_below(scratch.dir()), Vec::<PathBuf>::new());
    // And one that is dropped in that state.
    let mut deaf = Served::start(&[dir, "16777216", "512", "deaf"]).unwrap();
    assert!(deaf.end_of_input().success());
    assert_eq!(mounts_below(scratch.dir()), Vec::<PathBuf>::new());
}

#[test]
fn unaligned_buffered_writes_are_exact() {
    let scratch = Scratch::new("exact");
    let disk = Disk::attach(&scratch, 16 * MIB);
    let file = fs::OpenOptions::new().read(true).write(true).open(&disk.node).unwrap();
    file.write_all_at(b"across", 4093).unwrap();
    file.sync_all().unwrap();
    drop(file);
    sh(&format!("blockdev --flushbufs {}", disk.node));
    let mut back = [1; 10];
    fs::File::open(&disk.node).unwrap().read_exact_at(&mut back, 4091).unwrap();
    assert_eq!(&back, b"\0\0across\0\0");
    disk.detach(&scratch);
}
