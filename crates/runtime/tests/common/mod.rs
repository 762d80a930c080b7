//! What the tests of disks share.
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thinwire_buffer::{Pool, SegList};
use thinwire_runtime::disk::{
    Backend, DiskOpenError, DiskOptions, OpenedDisk, OpenedStore, open, open_store,
};
use thinwire_volume::testing::finish;
use thinwire_volume::{Completion, Io, Op, Volume};

/// A directory of its own on the file system of the build, removed when dropped.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("disk-{}-{number}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A sparse file of that size.
    pub fn image(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// Options that keep state in this directory. They wait for a lock: until it executes its program, a
    /// process that another test starts has all descriptors of this one, and so holds what this test has let
    /// go of.
    pub fn options(&self) -> DiskOptions {
        DiskOptions {
            wait_lock: Duration::from_secs(60),
            state_dir: self.0.join("state"),
            ..DiskOptions::default()
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The same for whoever expects that somebody holds the lock.
pub fn at_once(options: &DiskOptions) -> DiskOptions {
    DiskOptions { wait_lock: Duration::ZERO, ..options.clone() }
}

/// A volume on a path, and the descriptor that announces its completions.
pub struct Store {
    pub volume: Box<dyn Volume>,
    pub fd: RawFd,
}

/// Both ways of reaching a disk; one if io_uring is refused here.
pub fn backends() -> Vec<Backend> {
    let dir = Dir::new();
    let options = DiskOptions { backend: Backend::Uring, ..dir.options() };
    match open(&dir.image("probe", 4096), &options, &mut |_| {}) {
        Ok(_) => vec![Backend::Uring, Backend::Threads],
        Err(DiskOpenError::NoUring { source }) => {
            eprintln!("io_uring is refused here ({source}): only threads are tested");
            vec![Backend::Threads]
        }
        Err(other) => panic!("{other}"),
    }
}

/// Both ways of reaching a disk, each directly and through the page cache.
pub fn ways(dir: &Dir) -> Vec<DiskOptions> {
    let of = |backend| [true, false].map(|direct| DiskOptions { backend, direct, ..dir.options() });
    backends().into_iter().flat_map(of).collect()
}

/// What tells one of the [`ways`] from the others.
pub fn way(options: &DiskOptions) -> String {
    format!("{:?}-{}", options.backend, if options.direct { "direct" } else { "buffered" })
}

pub fn open_disk(path: &Path, options: &DiskOptions) -> Result<OpenedDisk, DiskOpenError> {
    open(path, options, &mut |_| {})
}

impl Store {
    pub fn open(path: &Path, options: &DiskOptions) -> Self {
        let pool = Pool::new(16 << 20);
        let OpenedStore { volume, fd, .. } = open_store(path, options, &pool, &mut |_| {}).unwrap();
        Store { volume, fd }
    }

    pub fn run(&mut self, io: Io) -> Completion {
        let fd = self.fd;
        finish(&mut *self.volume, &mut || wait(fd), io)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Completion {
        let data = SegList::of(Pool::new(0).copy_of(bytes).freeze());
        self.run(Io { data, ..Io::new(1, Op::Write, offset, bytes.len() as u64) })
    }

    pub fn read(&mut self, offset: u64, len: u64) -> Vec<u8> {
        let completion = self.run(Io::new(2, Op::Read, offset, len));
        completion.result.unwrap();
        completion.data.to_vec()
    }

    pub fn simple(&mut self, op: Op, offset: u64, len: u64) -> Completion {
        self.run(Io::new(3, op, offset, len))
    }
}

/// Sleeps until the descriptor is readable. That it never is would be a lost wake-up.
pub fn wait(fd: RawFd) {
    // SAFETY: the store that owns the descriptor outlives this call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let count = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(count, 1, "nothing announced a completion");
}

/// Whether a program succeeds.
pub fn run(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// Whether a file system of this type can be mounted; says why not.
pub fn can_mount(system: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap();
    let can =
        rustix::process::geteuid().is_root() && known.split_whitespace().any(|word| word == system);
    if !can {
        eprintln!("{system}: not tested, only root can, and only where the kernel has it");
    }
    can
}

/// Makes a file system on an image or a device.
pub fn make_file_system(system: &str, place: &str) {
    make_file_system_with(system, &[], place);
}

/// And with these options.
pub fn make_file_system_with(system: &str, options: &[&str], place: &str) {
    let quiet: &[&str] = if system == "ext4" { &["-q", "-F"] } else { &["-q"] };
    let made = run(&format!("mkfs.{system}"), &[quiet, options, &[place]].concat());
    assert!(made, "mkfs.{system} fails or is missing: scripts/setup.sh --test installs it");
}
