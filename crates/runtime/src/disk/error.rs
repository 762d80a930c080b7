//! Why a file or device could not be opened as a disk, and what its owner can do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a disk could not be opened. Each message names the path, the cause and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum DiskOpenError {
    /// There is nothing under that name.
    #[error(
        "{}: no such file or device; create an image with: truncate -s 10G {}",
        .path.display(), .path.display()
    )]
    Missing {
        /// The image or device, as its user named it.
        path: PathBuf,
    },
    /// The process may not open it.
    #[error(
        "{}: permission denied when opening it for {}; run as a user who may, or change its mode",
        .path.display(),
        if *.read_only { "reading" } else { "reading and writing (a read-only export needs less)" }
    )]
    Denied {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// What was asked for.
        read_only: bool,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: is {kind}; a volume is a regular file or a block device", .path.display())]
    Kind {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// What it is: `a directory`.
        kind: &'static str,
    },
    /// Size zero.
    #[error(
        "{}: is empty; give it a size with: truncate -s 10G {}", .path.display(), .path.display()
    )]
    Empty {
        /// The image or device, as its user named it.
        path: PathBuf,
    },
    /// Not a multiple of the logical block.
    #[error(
        "{}: its size of {bytes} bytes is not a multiple of the logical block of {block_bytes} \
         bytes; extend it with: truncate -s {larger} {}",
        .path.display(), .path.display(),
        larger = .bytes.next_multiple_of(u64::from(*.block_bytes))
    )]
    OddSize {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The wanted block.
        block_bytes: u32,
    },
    /// The device has larger sectors than the wanted block.
    #[error(
        "{}: the device has sectors of {sector_bytes} bytes, larger than the logical block of \
         {block_bytes} bytes; export it with block={sector_bytes}",
        .path.display()
    )]
    Sector {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// The device's.
        sector_bytes: u32,
        /// The wanted one.
        block_bytes: u32,
    },
    /// The file system or device is read-only.
    #[error(
        "{}: lies on something read-only; export it read-only (option ro)", .path.display()
    )]
    ReadOnly {
        /// The image or device, as its user named it.
        path: PathBuf,
    },
    /// Somebody else has it open and locked.
    #[error(
        "{}: is in use by {holder}; waited {} s for it. Stop that process, or export it read-only \
         on all sides", .path.display(), .waited.as_secs()
    )]
    Busy {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// Who, as far as the kernel tells.
        holder: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The wait for whoever has it was ended.
    #[error("{}: is in use by {holder}; the wait for it was interrupted", .path.display())]
    Interrupted {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// Who, as far as the kernel tells.
        holder: String,
    },
    /// The file system cannot lock files.
    #[error(
        "{}: its file system offers no locks ({source}), so two writers could not be kept apart; \
         put it on another file system", .path.display()
    )]
    NoLocks {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// What flock said.
        source: io::Error,
    },
    /// The stored identity or writer record makes no sense.
    #[error(
        "{}: the stored {what} is damaged; if nobody else needs it, remove it with: {remedy}",
        .path.display()
    )]
    Damaged {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// `identity` or `writer record`.
        what: &'static str,
        /// A command.
        remedy: String,
    },
    /// io_uring was asked for by name and is refused.
    #[error(
        "io_uring is refused here ({source}); allow it (sysctl kernel.io_uring_disabled=0, or the \
         container's seccomp profile) or let threads do the disk I/O"
    )]
    NoUring {
        /// What io_uring_setup said.
        source: io::Error,
    },
    /// Another system call failed.
    #[error("{}: cannot {what}: {source}", .path.display())]
    Os {
        /// The image or device, as its user named it.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl DiskOpenError {
    /// There is no such disk, or none behind its name any more.
    pub fn is_absent(&self) -> bool {
        match self {
            DiskOpenError::Missing { .. } => true,
            DiskOpenError::Os { source, .. } => matches!(
                source.raw_os_error(),
                Some(libc::ENXIO | libc::ENODEV | libc::EIO | libc::ENOMEDIUM)
            ),
            _ => false,
        }
    }
}
