//! What the stores on a disk need of the machine. The runtime supplies io_uring or a thread pool,
//! the simulator a disk that forgets what was not flushed.

use thinwire_buffer::{Buf, SegList};

use crate::{ErrorKind, Extent, Identity, SyncScope, Token, WriterRecord};

/// A request to the disk under a store. Offsets and lengths are in bytes and multiples of
/// [`DiskInfo::align_bytes`].
#[derive(Debug)]
pub struct DiskOp {
    /// Comes back in the [`DiskDone`].
    pub token: Token,
    /// First byte.
    pub offset: u64,
    /// Bytes; ignored by a flush and by records.
    pub len: u64,
    /// What to do, and the memory for it, which the disk owns until it is done.
    pub kind: DiskOpKind,
}

/// See [`DiskOp`].
#[derive(Debug)]
pub enum DiskOpKind {
    /// Fill the buffer (exactly `len` bytes long).
    Read(Buf),
    /// Write the segments (`len` bytes in all; each aligned in memory and length to
    /// [`DiskInfo::align_bytes`]), durably if `fua`.
    Write {
        /// The payload.
        data: SegList,
        /// Durable before it is done.
        fua: bool,
    },
    /// fdatasync. Never joins one that already runs (rule 13).
    Flush,
    /// Give the range back to the file system; it reads as zeroes.
    PunchHole,
    /// Make the range read as zeroes, allocated.
    ZeroRange,
    /// Which parts of the range hold data: fill the list. Extents start at `offset` and cover at most
    /// `len`.
    BlockStatus(Vec<Extent>),
    /// Read the writer record, which is durable then; no record is generation 0. If it cannot be read,
    /// or made durable, nobody may write. The disk tells its [`SyncScope`] of the syncs in this.
    LoadWriter(Box<WriterRecord>),
    /// Store the writer record; it survives a crash once this is done. After an error either record may
    /// be found, now or after a crash. The disk tells its [`SyncScope`] of the syncs in this.
    StoreWriter(Box<WriterRecord>),
    /// Make the size, which is `len` bytes now, durable, and remember it beside the writer record, if there
    /// is one: found smaller at a later opening, it is another [incarnation](Identity::incarnation) of the
    /// content. The disk tells its [`SyncScope`] of the syncs in this.
    KeepSize,
}

/// How a [`DiskOp`] ended.
#[derive(Debug)]
pub struct DiskDone {
    /// The submitter's token.
    pub token: Token,
    /// Success, or the errno (short reads and writes never surface; a read beyond the end of a shrunk file is EIO, and
    /// what it is not given any more is [`REFUSED`]).
    pub result: Result<(), i32>,
    /// The memory of a read or write, given back.
    pub kind: DiskOpKind,
}

/// What a disk is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Size in bytes.
    pub bytes: u64,
    /// Needed alignment of offsets, lengths and memory: 1, 512 or 4096.
    pub align_bytes: u32,
    /// The name of the content.
    pub identity: Identity,
    /// Opened without write access.
    pub read_only: bool,
    /// `PunchHole` works.
    pub punch_hole: bool,
    /// `ZeroRange` works.
    pub zero_range: bool,
}

/// A disk: one open file or block device, exclusively locked, with direct I/O where possible.
/// Never blocks.
pub trait Disk {
    /// Its size, alignment, identity and abilities.
    fn info(&self) -> DiskInfo;

    /// Its size now, in whole blocks of this many bytes; never less than it was told last, at first by
    /// [`Disk::info`]. Operations reach that far from now on. Control path.
    fn refresh(&mut self, block_bytes: u32) -> u64;

    /// It was found to have become shorter since it was opened.
    fn has_shrunk(&self) -> bool {
        false
    }

    /// Whether so many bytes may be copied for a write before the next [`Disk::poll`]: copying counts as much as
    /// writing. If not, that poll has the descriptor ask for the next turn.
    fn may_copy(&mut self, _bytes: u64) -> bool {
        true
    }

    /// Queues an operation. Operations may complete in any order.
    fn submit(&mut self, op: DiskOp);

    /// Appends finished operations to `done`; sends queued ones to the kernel, as many as keep nobody waiting
    /// for long: for the others its descriptor asks for the next turn. A block status comes behind every sync
    /// that had failed before it was looked at.
    fn poll(&mut self, done: &mut Vec<DiskDone>);

    /// Has whoever sleeps until [`Disk::poll`] has something wake up soon (a fraction of a
    /// millisecond), once, though it has nothing: somebody waits for what no descriptor tells.
    fn wake_soon(&mut self);

    /// What a failed sync here puts in doubt. The same while the disk is open. Syncs that the disk makes
    /// by itself, of records, it tells the scope of; those of its operations whoever submits them does.
    fn sync_scope(&self) -> SyncScope;
}

/// In the place of an errno, of what the disk has not asked of the kernel, since its file has become shorter: larger than any that a kernel
/// answers. No sync has failed that others might have been saved by.
pub const REFUSED: i32 = 1 << 16;

/// The errnos that are told apart, in Linux's numbers (MIPS and SPARC differ in the last three).
mod errno {
    pub const EBADF: i32 = 9;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const ENOSYS: i32 = 38;
    pub const EOPNOTSUPP: i32 = 95;
    pub const EDQUOT: i32 = 122;
}

/// What an errno of the disk means for the I/O.
pub(crate) fn error_kind(errno: i32) -> ErrorKind {
    match errno {
        errno::ENOSPC | errno::EDQUOT => ErrorKind::NoSpace,
        errno::EROFS | errno::EBADF => ErrorKind::ReadOnly,
        // Ranges were checked at the gate, so EINVAL is the medium's fault, too.
        _ => ErrorKind::Io,
    }
}

/// True if the disk says that it has no such operation, rather than that it failed.
pub(crate) fn is_unsupported(errno: i32) -> bool {
    matches!(errno, errno::EOPNOTSUPP | errno::ENOSYS)
}
