//! What can go wrong with a mounted file, and which errno an application sees.

use std::io;
use std::path::PathBuf;

use thinwire_volume::ErrorKind;

/// Why a file could not be mounted, cleaned up or taken away. The text says what was tried, what
/// happened and what to do.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// There is no `/dev/fuse`.
    #[error(
        "cannot open /dev/fuse: it does not exist; load the module (modprobe fuse), or in a \
         container pass the device in (--device /dev/fuse)"
    )]
    NoDevice,
    /// The kernel does not know the file system type.
    #[error("this kernel has no FUSE; load the module (modprobe fuse) or use --nbd")]
    NoKernelSupport,
    /// The process may not mount.
    #[error(
        "{what} {} was not permitted; run as root (CAP_SYS_ADMIN), or use --nbd, which needs no \
         privilege",
        path.display()
    )]
    NoPrivilege {
        /// What was tried.
        what: &'static str,
        /// The path that it was tried on.
        path: PathBuf,
    },
    /// Something is there that must not be covered.
    #[error("{} {what}; {remedy}", path.display())]
    Occupied {
        /// The place asked for.
        path: PathBuf,
        /// What is there.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The volume takes less than a page in one I/O.
    #[error("the volume takes at most {io_bytes_max} bytes an I/O; a file needs at least 4096")]
    SmallIo {
        /// What it takes.
        io_bytes_max: u32,
    },
    /// A system call failed.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// The path that it was tried on.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl FuseError {
    pub(crate) fn system(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| FuseError::System { what, path, source }
    }
}

impl From<FuseError> for io::Error {
    fn from(error: FuseError) -> Self {
        let kind = match &error {
            FuseError::NoDevice | FuseError::NoKernelSupport => io::ErrorKind::Unsupported,
            FuseError::NoPrivilege { .. } => io::ErrorKind::PermissionDenied,
            FuseError::Occupied { .. } => io::ErrorKind::AlreadyExists,
            FuseError::SmallIo { .. } => io::ErrorKind::InvalidInput,
            FuseError::System { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// The errno that an application gets for a failed I/O.
pub fn errno(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::Io | ErrorKind::OutcomeUnknown | ErrorKind::Altered | ErrorKind::BadSum => {
            libc::EIO
        }
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::Fenced | ErrorKind::ContentChanged => libc::ESTALE,
        ErrorKind::Away => libc::ETIMEDOUT,
        ErrorKind::ShuttingDown => libc::ESHUTDOWN,
    }
}
