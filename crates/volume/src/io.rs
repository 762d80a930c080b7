//! The one interface of everything with blocks.

use std::fmt;

use thinwire_buffer::{SegList, Time};

use crate::{CacheReport, CutOrder, ErrorKind, IoError, MirrorReport, Scrub, VolumeEvent, Work};

/// Chosen by the submitter, unique among its outstanding I/Os, returned in the [`Completion`].
pub type Token = u64;

/// What an [`Io`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read `len` bytes; the completion's `data` holds them.
    Read,
    /// Write `data`, which is `len` bytes long.
    Write,
    /// Make every write that completed before this was submitted durable. The range is ignored.
    Flush,
    /// The content of the range is no longer needed; it may read as anything that was there, or as zeroes; from what stands
    /// encrypted also as noise.
    Discard,
    /// The range reads as zeroes from now on.
    WriteZeroes,
    /// Which parts of the range hold data; the completion's `extents` say.
    BlockStatus,
    /// Who may write, as stored, durably, beside the content: the completion's `data` is a
    /// [`WriterRecord`](crate::WriterRecord). For whoever serves the volume, not for users of it: no
    /// gate lets it in. The range is ignored.
    ///
    /// Fails if the record cannot be read or made durable: then nobody may be granted the right to
    /// write. A volume that keeps no record fails with [`ErrorKind::Unsupported`].
    LoadWriter,
    /// Store who may write: `data` is the record; durable, where the content is, once it completes.
    /// Volumes whose content does not survive the process have nothing to make durable. If it fails,
    /// either record may be found. To change one see [`RecordChange`](crate::RecordChange), which
    /// knows what a failure leaves behind. Otherwise as [`Op::LoadWriter`].
    StoreWriter,
    /// Something about a snapshot of the whole volume that is one of several, cut as one: `data` is a
    /// [`CutOrder`](crate::CutOrder), at offset 0. For whoever holds the writes of all of them, by their users' leave. A volume of
    /// several passes it to all, and fails if one does; one that has no snapshots fails with [`ErrorKind::Unsupported`].
    Cut,
}

impl Op {
    /// True for operations that change content, which `Volume`s must not reorder around a flush
    /// that was submitted after they completed.
    pub fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }

    /// True for those of the writer record.
    #[inline]
    pub fn is_record(self) -> bool {
        matches!(self, Op::LoadWriter | Op::StoreWriter)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write zeroes",
            Op::BlockStatus => "block status",
            Op::LoadWriter => "load writer",
            Op::StoreWriter => "store writer",
            Op::Cut => "cut",
        })
    }
}

/// Modifiers of an [`Io`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoFlags {
    /// Durable before it completes (writes, discards, write-zeroes).
    pub fua: bool,
    /// Write-zeroes must allocate: do not punch a hole.
    pub no_hole: bool,
    /// Block status may stop after one extent.
    pub one_extent: bool,
    /// A part of what is read will be changed, and all of it written: a volume that keeps completed
    /// writes to send them again puts them over what it reads, which may have been lost since.
    pub for_patch: bool,
    /// A read that somebody else can answer, too: what may be as it was written, but cannot be told to be, is not good
    /// enough, and fails with [`ErrorKind::BadSum`]. Without effect where no sums are kept.
    pub verified: bool,
    /// A read for which what is in memory does not do, since it asks what stands on the parts: scrubs, and labels that another may
    /// have written. What was written and is not down yet still counts. No frame carries it: a target's own cache
    /// answers what it has.
    pub uncached: bool,
    /// A write of what a volume on top keeps for itself, as labels and bitmaps are: without it nothing can be opened, closed or given
    /// back. Whoever gives out room keeps some for such writes. Without effect elsewhere, and with other operations.
    pub meta: bool,
}

/// One I/O. Handed over by value: the volume owns `data` until (for writes, a remote volume may
/// keep sharing it after) completion.
#[derive(Debug)]
pub struct Io {
    /// Comes back in the completion.
    pub token: Token,
    /// What to do.
    pub op: Op,
    /// Whether it must be durable when it completes, and the like.
    pub flags: IoFlags,
    /// First byte, a multiple of the logical block.
    pub offset: u64,
    /// Bytes, a multiple of the logical block, not zero except for a flush.
    pub len: u64,
    /// The payload of a write or a cut; empty otherwise.
    pub data: SegList,
    /// Who asked, of those that use a volume together without telling each other of errors: the connections
    /// of a face. What stands on top of a tree tells them apart ([`Owing`](crate::Owing)), nothing
    /// below does. Zero where there is one.
    pub user: u8,
}

impl Io {
    /// An I/O without payload and flags.
    pub fn new(token: Token, op: Op, offset: u64, len: u64) -> Self {
        let (flags, data) = (IoFlags::default(), SegList::new());
        Io { token, op, flags, offset, len, data, user: 0 }
    }

    /// The error for this I/O.
    pub fn error(&self, kind: ErrorKind, module: &'static str) -> IoError {
        IoError { kind, op: self.op, offset: self.offset, len: self.len, module }
    }
}

/// A run of blocks of one kind, as reported by [`Op::BlockStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes in the run.
    pub len: u64,
    /// Nothing is allocated here.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// How an I/O ended. Exactly one for every [`Io`] submitted.
#[derive(Debug)]
pub struct Completion {
    /// The submitter's token.
    pub token: Token,
    /// Success, or why not.
    pub result: Result<(), IoError>,
    /// The bytes of a successful read (`len` of them), shared with whoever still sends them;
    /// empty otherwise.
    pub data: SegList,
    /// The answer of a successful block status: extents that start at the requested offset, are
    /// not empty, and together cover at least one block and at most the requested range.
    pub extents: Vec<Extent>,
}

impl Completion {
    /// A completion without data.
    pub fn new(token: Token, result: Result<(), IoError>) -> Self {
        Completion { token, result, data: SegList::new(), extents: Vec::new() }
    }
}

/// Which content this is. `identity` names the volume; `incarnation` changes when the same volume
/// starts over with other content (a memory store whose process restarted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// 128 bits that name the volume.
    pub identity: [u8; 16],
    /// Which life of it.
    pub incarnation: u64,
}

/// What a volume can do beyond reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// No writes at all.
    pub read_only: bool,
    /// `Discard` does something.
    pub discard: bool,
    /// `WriteZeroes` is available.
    pub write_zeroes: bool,
    /// `BlockStatus` is available.
    pub block_status: bool,
}

/// Shape and abilities. Constant while the volume is open, but for growth of `bytes`
/// ([`VolumeEvent::Resized`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of `block_bytes`.
    pub bytes: u64,
    /// Logical block: 512 or 4096. Everything is a multiple of it.
    pub block_bytes: u32,
    /// Preferred granularity for good speed (NBD's preferred block size).
    pub preferred_bytes: u32,
    /// The longest read or write in one I/O; longer ones must be split by the submitter.
    pub io_bytes_max: u32,
    /// Abilities.
    pub features: Features,
}

impl Geometry {
    /// The gate: checks operation, range and alignment once. Everything behind it may assert. Users of
    /// a volume come through here, and never to its writer record.
    pub fn check(&self, io: &Io) -> Result<(), ErrorKind> {
        if io.op == Op::Flush {
            return Ok(());
        }
        if (io.op.is_write() || io.op == Op::Cut) && self.features.read_only {
            return Err(ErrorKind::ReadOnly);
        }
        if io.op == Op::Cut {
            let is_order = CutOrder::of(io).is_some();
            return if is_order { Ok(()) } else { Err(ErrorKind::Invalid) };
        }
        let able = match io.op {
            Op::Discard => self.features.discard,
            Op::WriteZeroes => self.features.write_zeroes,
            Op::BlockStatus => self.features.block_status,
            Op::LoadWriter | Op::StoreWriter => false,
            _ => true,
        };
        if !able {
            return Err(ErrorKind::Unsupported);
        }
        let block = u64::from(self.block_bytes);
        let end = io.offset.checked_add(io.len).ok_or(ErrorKind::Invalid)?;
        let long = matches!(io.op, Op::Read | Op::Write) && io.len > u64::from(self.io_bytes_max);
        if io.len == 0
            || !io.offset.is_multiple_of(block)
            || !io.len.is_multiple_of(block)
            || end > self.bytes
            || long
        {
            return Err(ErrorKind::Invalid);
        }
        if io.op == Op::Write && io.data.bytes() as u64 != io.len {
            return Err(ErrorKind::Invalid);
        }
        Ok(())
    }
}

/// A linear array of blocks: a store, a module over volumes, or a remote volume.
///
/// A state machine: [`Volume::submit`] never blocks and [`Volume::poll`] never waits. All calls
/// come from the shard's thread. I/Os that overlap and are outstanding together may take effect in
/// any order; a flush covers the writes that *completed* before it was submitted.
pub trait Volume {
    /// Shape and abilities.
    fn geometry(&self) -> Geometry;

    /// Which content this is.
    fn identity(&self) -> Identity;

    /// Starts an I/O that passed [`Geometry::check`], or one of the writer record. Its completion comes out of a later
    /// [`Volume::poll`] (or the next one, if it was done at once), never out of this call.
    fn submit(&mut self, io: Io);

    /// Appends the completions that are ready to `done`: a flush that failed before what saw the loss.
    /// Cheap when there are none.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// I/Os submitted and not yet completed.
    fn outstanding(&self) -> usize;

    /// Payload bytes that this volume had to copy in user space since it was opened: what status
    /// shows. A volume of volumes adds those below it.
    fn copied_bytes(&self) -> u64 {
        0
    }

    /// Counts what has happened to this volume: looked at after [`Volume::poll`], before its completions
    /// are passed on, and whenever else it may have changed. If it has, [`Volume::poll_events`] comes
    /// first. A volume of volumes adds up those below it.
    fn events(&self) -> u64 {
        0
    }

    /// Appends what has happened since the last call to `events`, a loss before anything else. Only from
    /// then on does a volume of volumes act on what has happened below it.
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let _ = events;
    }

    /// Nothing is on its way, nobody's either, as is what makes growth durable: who drops it waits for no disk.
    fn is_at_rest(&self) -> bool {
        self.outstanding() == 0
    }

    /// Looks whether what it lies on has grown. Never on the way of an I/O: to be called about once a
    /// second by whoever drives the volume, who polls it then, since finding out may take an I/O.
    /// False if there is nothing to look at, now and later.
    fn refresh(&mut self) -> bool {
        false
    }

    /// Nobody submits anything more, and nothing is outstanding: what it keeps for itself is brought in order, so that the next opening
    /// has less to do. To be polled, and told the time, until [`Volume::is_wound_up`]; without it all is as after a crash.
    fn wind_up(&mut self) {}

    /// That has ended, well or not.
    fn is_wound_up(&self) -> bool {
        true
    }

    /// Adds how each mirror stands that it is or is made of.
    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        let _ = found;
    }

    /// The same, as a list.
    fn all_mirrors(&self) -> Vec<MirrorReport> {
        let mut found = Vec::new();
        self.mirrors(&mut found);
        found
    }

    /// It waits for other things than its I/Os, and so has to be told what time it is. Never changes.
    fn is_timed(&self) -> bool {
        false
    }

    /// What time it is: to be said to a volume that [is timed](Volume::is_timed) by whoever drives it, in each turn before the
    /// first [`Volume::poll`] and again behind the last one, and never less than before. Returns when it is to be said again at the
    /// latest, [`Time::NEVER`] if it need not be; what the last call returned counts. May submit I/O below, and asks for `now`
    /// then, since that has to be polled; completes none. A volume of volumes tells all below it, and returns the earliest.
    fn turn(&mut self, now: Time) -> Time {
        let _ = now;
        Time::NEVER
    }

    /// Somebody is there who may submit as this user ([`Io::user`]), and relies from now on on what its flushes say,
    /// though others write. Without effect for a user that is there already, as whoever submits is.
    fn begin_user(&mut self, user: u8) {
        let _ = user;
    }

    /// A user ([`Io::user`]) submits nothing more, or is another one from now on; what it has outstanding ends
    /// as ever.
    fn end_user(&mut self, user: u8) {
        let _ = user;
    }

    /// Shows everything in it that can be scrubbed, the whole before what it is made of.
    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        let _ = visit;
    }

    /// Adds how each cache does that it is or is made of.
    fn caches(&self, found: &mut Vec<CacheReport>) {
        let _ = found;
    }

    /// Shows everything in it that works for itself, the whole before what it is made of.
    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        let _ = visit;
    }

    /// The same of all its caches together, if there are any.
    fn cache(&self) -> Option<CacheReport> {
        let mut found = Vec::new();
        self.caches(&mut found);
        found.into_iter().reduce(CacheReport::and)
    }
}
