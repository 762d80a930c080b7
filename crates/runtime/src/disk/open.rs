//! Opening a path as a disk.

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    FallocateFlags, Mode, OFlags, SeekFrom, fallocate, ioctl_blksszget, major, minor, seek,
};
use rustix::io::Errno;
use thinwire_buffer::Pool;
use thinwire_volume::stores::{FileStore, FileStoreError};
use thinwire_volume::{DiskInfo, Identity, Volume};

use super::any::AnyDisk;
use super::common::{Common, Parts};
use super::letting_go::LettingGo;
use super::real::{RealDisk, Role};
use super::threads::Threads;
use super::uring::Uring;
use super::writer::{Content, WriterStore};
use super::{DiskOpenError, align, domain, identity, lock};
use crate::confine::as_starter;

/// Who makes the system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring, or threads where it is refused.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// A few threads.
    Threads,
}

/// How to open a disk. `Default` is right for most.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Without write access, and with a lock that other readers share. Default: false.
    pub read_only: bool,
    /// Logical block: 512 or 4096 bytes. Default: 512. Where direct I/O needs larger units than
    /// this, it is left off, and every byte goes through the page cache.
    pub block_bytes: u32,
    /// Direct I/O where it can be had. Default: true. Without it all goes through the kernel's page
    /// cache: reads of what is there are faster, writes are in it until a flush, and the machine's
    /// memory fills with what it serves.
    pub direct: bool,
    /// How long to wait for the lock, for example of a killed predecessor whose last I/O is not
    /// finished. Default: 30 s.
    pub wait_lock: Duration,
    /// Ends that wait when it is readable: a descriptor of signals, say. Default: none.
    pub stop: Option<Arc<OwnedFd>>,
    /// Where the writer records of block devices, and of files without extended attributes, are
    /// kept. Default: `/var/lib/thinwire`. Made when needed.
    pub state_dir: PathBuf,
    /// Who makes the system calls. Default: io_uring, or threads where it is refused.
    pub backend: Backend,
}

impl Default for DiskOptions {
    fn default() -> Self {
        DiskOptions {
            read_only: false,
            block_bytes: 512,
            direct: true,
            wait_lock: Duration::from_secs(30),
            stop: None,
            state_dir: PathBuf::from("/var/lib/thinwire"),
            backend: Backend::Auto,
        }
    }
}

/// A disk, ready for a store.
#[derive(Debug)]
pub struct OpenedDisk {
    /// The disk. It belongs to the thread that opened it.
    pub disk: AnyDisk,
    /// I/O goes to the device directly.
    pub direct: bool,
    /// What the user should know: why I/O is not direct, or threads do it.
    pub notes: Vec<String>,
}

/// Opens a regular file or block device, locks it, and learns what it is like. May block for
/// [`DiskOptions::wait_lock`]; `notify` gets one sentence for the user when it begins to wait.
///
/// The lock is on the very descriptor that does the I/O; it goes when the disk is dropped, or, when
/// the process dies, when the last of its I/O has ended.
pub fn open(
    path: &Path,
    options: &DiskOptions,
    notify: &mut dyn FnMut(&str),
) -> Result<OpenedDisk, DiskOpenError> {
    let mut notes = Vec::new();
    let common = open_common(path, options, &mut notes, notify)?;
    let direct = common.is_direct();
    let disk = with_backend(Arc::new(common), Role::Owner, options.backend, &mut notes)?;
    Ok(OpenedDisk { disk, direct, notes })
}

/// Opens what any number of rings can share; the rest as [`open`]. What the user should know goes to `notes`.
pub(super) fn open_common(
    path: &Path,
    options: &DiskOptions,
    notes: &mut Vec<String>,
    notify: &mut dyn FnMut(&str),
) -> Result<Common, DiskOpenError> {
    assert!(matches!(options.block_bytes, 512 | 4096), "logical block of 512 or 4096 bytes");
    let os = |what, source| DiskOpenError::Os { path: path.to_owned(), what, source };
    let found = as_starter(|| std::fs::metadata(path));
    check_kind(path, &found.map_err(|error| refused(path, options, error))?)?;
    let file = open_file(path, options, notify)?;
    let metadata = file.metadata().map_err(|error| os("look at it", error))?;
    check_kind(path, &metadata)?;
    let device = metadata.file_type().is_block_device();
    lock::acquire(&file, path, options, notify)?;

    // Whoever is told of a size must find it again after a crash, and it may have been made this long a
    // moment ago. A reader's image may lie where nothing can be synced. Of a device a reader asks nothing: its
    // size is kept by whoever has set it up, and a process that waits for a device's flush cannot be killed.
    let bytes =
        seek(&file, SeekFrom::End(0)).map_err(|error| os("learn its size", error.into()))?;
    if !(device && options.read_only) {
        let _told = LettingGo::of(path);
        match domain::sync_all(&file) {
            Err(error) if !options.read_only => return Err(os("make its size durable", error)),
            _ => {}
        }
    }
    check_size(path, bytes, options.block_bytes)?;
    let (major, minor) = (major(metadata.rdev()), minor(metadata.rdev()));
    if device {
        let sector_bytes =
            ioctl_blksszget(&file).map_err(|error| os("learn its sector size", error.into()))?;
        let block_bytes = options.block_bytes;
        if sector_bytes > block_bytes {
            return Err(DiskOpenError::Sector { path: path.to_owned(), sector_bytes, block_bytes });
        }
    }

    let mut align_bytes = 1;
    if options.direct {
        match align::go_direct(&file, bytes, options.block_bytes) {
            Ok(align) => align_bytes = align,
            Err(why) => {
                notes.push(format!("{}: goes through the page cache: {why}", path.display()))
            }
        }
    }

    let (id, may_grow) = if device {
        identity::of_device(Path::new("/sys/dev/block"), major, minor, bytes)
    } else {
        (as_starter(|| identity::of_file(&file, path, options.read_only))?, true)
    };
    let read_only = options.read_only;
    let scope = as_starter(|| domain::scope_of(&file));
    let content =
        Content { file: &file, path, bytes, device, read_only, identity: &id, scope: &scope };
    let writer = WriterStore::open(&content, &options.state_dir)?;
    let info = DiskInfo {
        bytes,
        align_bytes,
        identity: Identity { identity: id, incarnation: writer.incarnation() },
        read_only: options.read_only,
        punch_hole: !options.read_only
            && if device { device_zeroes(major, minor) } else { file_punches(&file, bytes) },
        zero_range: !options.read_only,
    };
    let (file, path) = (Arc::new(file), path.to_owned());
    Ok(Common::new(Parts { file, path, info, device, may_grow, writer, scope }))
}

/// A disk as a volume.
pub struct OpenedStore {
    /// The volume. It belongs to the thread that opened it.
    pub volume: Box<dyn Volume>,
    /// Readable when [`Volume::poll`] has something to take in; valid as long as the volume.
    pub fd: RawFd,
    /// I/O goes to the device directly.
    pub direct: bool,
}

/// Opens a path as a volume, reading into memory of `pool`. What the user should know of it goes to
/// `notify`.
pub fn open_store(
    path: &Path,
    options: &DiskOptions,
    pool: &Pool,
    notify: &mut dyn FnMut(&str),
) -> Result<OpenedStore, DiskOpenError> {
    let opened = open(path, options, notify)?;
    opened.notes.iter().for_each(|note| notify(note));
    store_on(opened.disk, opened.direct, path, options.block_bytes, pool)
}

/// A volume of blocks of this size on a disk; `path` is for errors.
pub(super) fn store_on(
    disk: AnyDisk,
    direct: bool,
    path: &Path,
    block_bytes: u32,
    pool: &Pool,
) -> Result<OpenedStore, DiskOpenError> {
    let fd = disk.fd();
    let store = FileStore::new(disk, block_bytes, pool).map_err(|error| {
        let path = path.to_owned();
        match error {
            FileStoreError::Empty => DiskOpenError::Empty { path },
            FileStoreError::OddSize { bytes, block_bytes } => {
                DiskOpenError::OddSize { path, bytes, block_bytes }
            }
            FileStoreError::Alignment { align_bytes, block_bytes } => {
                DiskOpenError::Sector { path, sector_bytes: align_bytes, block_bytes }
            }
        }
    })?;
    Ok(OpenedStore { volume: Box::new(store), fd, direct })
}

fn check_kind(path: &Path, metadata: &std::fs::Metadata) -> Result<(), DiskOpenError> {
    let kind = metadata.file_type();
    let kind = if kind.is_file() || kind.is_block_device() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "of an unknown kind"
    };
    Err(DiskOpenError::Kind { path: path.to_owned(), kind })
}

fn check_size(path: &Path, bytes: u64, block_bytes: u32) -> Result<(), DiskOpenError> {
    let path = path.to_owned();
    if bytes == 0 {
        return Err(DiskOpenError::Empty { path });
    }
    if !bytes.is_multiple_of(u64::from(block_bytes)) {
        return Err(DiskOpenError::OddSize { path, bytes, block_bytes });
    }
    Ok(())
}

fn open_file(
    path: &Path,
    options: &DiskOptions,
    notify: &mut dyn FnMut(&str),
) -> Result<File, DiskOpenError> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let found = as_starter(|| std::fs::metadata(path));
    let device = found.is_ok_and(|m| m.file_type().is_block_device());
    if device && !options.read_only {
        // Refused while it is mounted, or part of something else.
        flags |= OFlags::EXCL;
    }
    let holder = || Ok("a mount, a RAID, a volume group or another process".to_owned());
    let attempt = || as_starter(|| rustix::fs::open(path, flags, Mode::empty()));
    match lock::retry(path, options, notify, holder, attempt) {
        Ok(fd) => Ok(File::from(fd)),
        Err(DiskOpenError::Os { source, .. }) => Err(refused(path, options, source)),
        Err(other) => Err(other),
    }
}

fn refused(path: &Path, options: &DiskOptions, source: io::Error) -> DiskOpenError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO) => DiskOpenError::Missing { path },
        Some(libc::EACCES | libc::EPERM) => {
            DiskOpenError::Denied { path, read_only: options.read_only }
        }
        Some(libc::EROFS) => DiskOpenError::ReadOnly { path },
        Some(libc::EISDIR) => DiskOpenError::Kind { path, kind: "a directory" },
        _ => DiskOpenError::Os { path, what: "open it", source },
    }
}

/// Whether holes can be punched: tried beyond the end, where nothing can be lost.
fn file_punches(file: &File, bytes: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let beyond = bytes.next_multiple_of(4096);
    !matches!(
        fallocate(file, mode, beyond, 4096),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV)
    )
}

/// Whether the device can zero a range by itself, which is what punching does on devices.
fn device_zeroes(major: u32, minor: u32) -> bool {
    let own = format!("/sys/dev/block/{major}:{minor}");
    ["queue", "../queue"].iter().any(|queue| {
        std::fs::read_to_string(format!("{own}/{queue}/write_zeroes_max_bytes"))
            .is_ok_and(|text| text.trim().parse().is_ok_and(|bytes: u64| bytes > 0))
    })
}

/// A ring of this thread on what was opened, or threads.
pub(super) fn with_backend(
    common: Arc<Common>,
    role: Role,
    backend: Backend,
    notes: &mut Vec<String>,
) -> Result<AnyDisk, DiskOpenError> {
    let path = common.path.clone();
    if backend != Backend::Threads {
        match Uring::new(&common.file) {
            Ok(uring) => {
                let disk = RealDisk::new(common, role, uring);
                return Ok(AnyDisk::uring(disk.map_err(|source| descriptors(path, source))?));
            }
            Err(source) if backend == Backend::Uring => {
                return Err(DiskOpenError::NoUring { source });
            }
            Err(error) => notes.push(format!(
                "{}: io_uring is refused here ({error}), so threads do the disk I/O, which costs \
                 more CPU; allow it with sysctl kernel.io_uring_disabled=0 or in the container's \
                 seccomp profile",
                path.display()
            )),
        }
    }
    match Threads::new(&common.file) {
        Ok(threads) => {
            let disk = RealDisk::new(common, role, threads);
            Ok(AnyDisk::threads(disk.map_err(|source| descriptors(path, source))?))
        }
        Err(source) => Err(DiskOpenError::Os { path, what: "start threads for its I/O", source }),
    }
}

fn descriptors(path: PathBuf, source: io::Error) -> DiskOpenError {
    DiskOpenError::Os { path, what: "get a descriptor for its records", source }
}
