//! What can go wrong with a block device.

use std::io;

use crate::fuse::FuseError;

/// Why there is no block device, or why it cannot go. The text says what was tried, what happened
/// and what to do.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The file under the device could not be mounted.
    #[error(transparent)]
    Fuse(#[from] FuseError),
    /// There is no `/dev/loop-control`.
    #[error(
        "cannot make a loop device: /dev/loop-control does not exist; load the module (modprobe \
         loop), in a container pass the device in, or use --nbd or --file"
    )]
    NoLoopControl,
    /// There is no `/dev/ublk-control`.
    #[error("the kernel has no ublk: /dev/ublk-control does not exist (modprobe ublk_drv)")]
    NoUblk,
    /// Data cannot be had by reads and writes.
    #[error("the kernel's ublk is too old, Linux 6.5 or later is needed")]
    OldUblk,
    /// The driver did not do it.
    #[error(
        "ublk: {what}: {source}; look whether that is allowed here (root, the module's ublks_max, kernel.io_uring_disabled, in \
         a container /dev/ublk-control and /dev/ublkc*), or say --block=loop"
    )]
    Ublk {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process may not.
    #[error(
        "making a loop device was not permitted ({what}); run as root (CAP_SYS_ADMIN), in a \
         container allow block devices of major 7, or use --nbd"
    )]
    NoPrivilege {
        /// What was refused.
        what: String,
    },
    /// LOOP_CONFIGURE is unknown.
    #[error("this kernel cannot set up a loop device in one step; Linux 5.9 or later is needed")]
    OldKernel,
    /// Direct I/O was asked for and not granted.
    #[error(
        "the loop driver refused direct I/O on {node}, without which a machine short of memory \
         could lock up; use --nbd or --file"
    )]
    NoDirectIo {
        /// The device.
        node: String,
    },
    /// Every device that was free a moment ago was taken by others.
    #[error("no free loop device was left after {tries} tries; detach unused ones (losetup -l)")]
    NoneFree {
        /// How often it was tried.
        tries: u32,
    },
    /// The logical block does not suit.
    #[error("a block device of {bytes} bytes cannot have blocks of {block_bytes} bytes")]
    BadBlock {
        /// The volume's size.
        bytes: u64,
        /// What was asked for.
        block_bytes: u32,
    },
    /// Somebody has it.
    #[error("{0}")]
    InUse(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried, on what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The thread that keeps the device is gone.
    #[error("the thread that keeps {0} has ended")]
    KeeperGone(String),
}

impl BlockError {
    pub(crate) fn ublk(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| BlockError::Ublk { what, source }
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => BlockError::NoPrivilege { what },
            _ => BlockError::System { what, source },
        }
    }
}

impl From<BlockError> for io::Error {
    fn from(error: BlockError) -> Self {
        let kind = match error {
            BlockError::Fuse(fuse) => return fuse.into(),
            BlockError::NoLoopControl
            | BlockError::NoUblk
            | BlockError::OldUblk
            | BlockError::OldKernel
            | BlockError::NoDirectIo { .. } => io::ErrorKind::Unsupported,
            BlockError::NoPrivilege { .. } => io::ErrorKind::PermissionDenied,
            BlockError::NoneFree { .. } | BlockError::InUse(_) => io::ErrorKind::ResourceBusy,
            BlockError::BadBlock { .. } => io::ErrorKind::InvalidInput,
            BlockError::System { ref source, .. } | BlockError::Ublk { ref source, .. } => {
                source.kind()
            }
            BlockError::KeeperGone(_) => io::ErrorKind::BrokenPipe,
        };
        io::Error::new(kind, error)
    }
}
