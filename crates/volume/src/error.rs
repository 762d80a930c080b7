//! Why an I/O failed.

use std::fmt;

use crate::Op;

/// What went wrong, in terms that every layer and every front-end can map to its own codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// The medium failed (EIO).
    Io,
    /// Out of range, unaligned, empty or too long (EINVAL).
    Invalid,
    /// No space left under a sparse store (ENOSPC). The volume lives on.
    NoSpace,
    /// A write to a read-only attachment or volume (EROFS, EPERM over NBD).
    ReadOnly,
    /// The volume has no such operation (EOPNOTSUPP).
    Unsupported,
    /// Another writer took over; final (ESTALE).
    Fenced,
    /// The target was away for longer than the attachment's policy allows (ETIMEDOUT).
    Away,
    /// What answered after a reconnect is not the same content; final (ESTALE).
    ContentChanged,
    /// The request may or may not have taken effect (EIO).
    OutcomeUnknown,
    /// The volume is being closed (ESHUTDOWN).
    ShuttingDown,
    /// The bytes are not those that were sent: memory or a link altered them (EIO).
    Altered,
    /// A block does not fit the sum that is kept of it: its bytes are not those that were written (EIO). The range is that block.
    BadSum,
}

impl ErrorKind {
    /// The sentence a user reads.
    pub fn describe(self) -> &'static str {
        match self {
            ErrorKind::Io => "the medium reported an error",
            ErrorKind::Invalid => "the range is not valid for this volume",
            ErrorKind::NoSpace => "no space left on the store",
            ErrorKind::ReadOnly => "the volume is read-only",
            ErrorKind::Unsupported => "the volume cannot do this",
            ErrorKind::Fenced => "another initiator took this volume over",
            ErrorKind::Away => "the target was away for too long",
            ErrorKind::ContentChanged => {
                "the target came back with other content than this attachment was using"
            }
            ErrorKind::OutcomeUnknown => "it is unknown whether the request took effect",
            ErrorKind::ShuttingDown => "the volume is being closed",
            ErrorKind::Altered => {
                "memory or a link altered the bytes on their way: they do not fit the sums made of them"
            }
            ErrorKind::BadSum => "the block does not fit its sum: it is not what was written there",
        }
    }
}

/// A failed I/O: the operation, the range and the module that failed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// What went wrong.
    pub kind: ErrorKind,
    /// The operation that failed.
    pub op: Op,
    /// First byte of its range.
    pub offset: u64,
    /// Bytes in its range.
    pub len: u64,
    /// The module or store that failed it, for example `file`.
    pub module: &'static str,
}

impl IoError {
    /// What failed and why, without who reported it: for whoever says where that was.
    pub fn describe(&self) -> String {
        let IoError { op, len, offset, kind, .. } = self;
        format!("{op} of {len} bytes at {offset}: {}", kind.describe())
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (reported by {})", self.describe(), self.module)
    }
}

impl std::error::Error for IoError {}
