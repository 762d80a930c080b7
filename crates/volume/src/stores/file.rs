//! A volume on a [`Disk`]: a file or a block device.

mod growth;

use std::collections::VecDeque;

use thinwire_buffer::{Pool, SegList, Segment};

use self::growth::Growth;
use super::{IO_BYTES_MAX, push_extent};
use crate::disk::{REFUSED, error_kind, is_unsupported};
use crate::{
    Completion, Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, ErrorKind, Extent, Features,
    Geometry, Identity, Io, IoError, IoFlags, Op, SyncMark, SyncScope, Token, Volume, VolumeEvent,
    WriterRecord,
};

/// The name under which errors of this store appear.
const MODULE: &str = "file";

/// Written zeroes go out of one buffer of this size, used many times over.
const ZERO_BYTES: usize = 64 << 10;

/// How often one poll goes back to the disk with what its own completions go on with: a disk that is prompt
/// would have a long write-zeroes done before anybody else has a turn.
const ROUNDS_MAX: u32 = 2;

/// Room for this many I/Os is there from the start: how many complete together is a matter of luck,
/// and luck must not allocate.
const IOS_USUAL: usize = 256;

/// Why a disk cannot be a volume of the wanted shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileStoreError {
    /// The size is not a multiple of the logical block.
    #[error(
        "its size, {bytes} bytes, is not a multiple of the logical block of {block_bytes} bytes \
         (nearest sizes: {smaller} and {larger})",
        smaller = .bytes / u64::from(*.block_bytes) * u64::from(*.block_bytes),
        larger = .bytes.div_ceil(u64::from(*.block_bytes)) * u64::from(*.block_bytes)
    )]
    OddSize {
        /// Bytes of the disk.
        bytes: u64,
        /// The wanted block.
        block_bytes: u32,
    },
    /// There is nothing in it.
    #[error("it is empty")]
    Empty,
    /// The disk cannot address single blocks; the opener should have taken buffered I/O.
    #[error("it takes I/O in units of {align_bytes} bytes only, blocks are {block_bytes} bytes")]
    Alignment {
        /// What the disk needs.
        align_bytes: u32,
        /// The wanted block.
        block_bytes: u32,
    },
}

/// What an I/O still has to do on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The only operation, or the last.
    Last,
    /// A hole is being punched for a write-zeroes or a discard.
    Punch,
    /// A range is being zeroed by the file system.
    ZeroRange,
    /// Zeroes are being written; this many bytes are done after the running operation.
    Written(u64),
    /// Nobody's I/O: the disk has grown to the size in `len`, which is being made durable.
    Grown,
}

/// An I/O that is on the disk.
#[derive(Clone, Copy, Debug)]
struct Running {
    token: Token,
    op: Op,
    flags: IoFlags,
    offset: u64,
    len: u64,
    step: Step,
    /// The running operation is a sync that began then.
    sync: Option<SyncMark>,
}

impl Running {
    fn of(io: &Io, step: Step) -> Self {
        let Io { token, op, flags, offset, len, .. } = *io;
        Running { token, op, flags, offset, len, step, sync: None }
    }

    fn error(&self, kind: ErrorKind) -> IoError {
        let module = if self.op.is_record() { "writer record" } else { MODULE };
        IoError { kind, op: self.op, offset: self.offset, len: self.len, module }
    }
}

/// A sync that succeeded, and is not told yet.
#[derive(Debug)]
enum Held {
    /// Of somebody's I/O.
    Io(Completion),
    /// Of this size.
    Growth(u64),
}

/// A volume on a [`Disk`].
///
/// * Reads go into a pool buffer, which the completion shares.
/// * Writes go from the submitter's segments where their addresses and lengths suit the disk; the
///   others through one copy, which is counted.
/// * A discard punches a hole. Where the disk turns out unable, it succeeds without effect.
/// * Write-zeroes punches a hole unless forbidden; else has the range zeroed; else writes zeroes.
/// * A flush is one fdatasync. If it fails, or a durable write or a record does, what was completed
///   before may be lost, here and in all volumes of the same [`SyncScope`]: [`VolumeEvent::Lost`] says
///   so before anything else is completed. A flush or durable write that succeeded beside a sync of
///   another volume there is told when that one has ended, too.
/// * What the disk grows by is offered once it is durable and remembered: a size that a crash takes back
///   would be other content to whoever has been told of it, and so would one that is cut off, and grows
///   again.
///
/// Allocates nothing once as many I/Os were outstanding as ever will be.
pub struct FileStore<D> {
    disk: D,
    info: DiskInfo,
    geometry: Geometry,
    pool: Pool,
    zeroes: Option<Segment>,
    running: Vec<Option<Running>>,
    free: Vec<usize>,
    ready: Vec<Completion>,
    scope: SyncScope,
    /// Syncs that succeeded, and when that was heard: told when the scope is settled.
    held: VecDeque<(SyncMark, Held)>,
    /// Writes that the disk cannot take as they are, until it has time for a copy.
    unaligned: VecDeque<(Running, SegList)>,
    disk_done: Vec<DiskDone>,
    /// The disk was given something since this was last cleared.
    started: bool,
    copied_bytes: u64,
    growth: Growth,
    /// What [`Volume::poll_events`] has told of.
    losses_told: u64,
}

impl<D: Disk> FileStore<D> {
    /// A volume of blocks of `block_bytes` (512 or 4096) on `disk`, reading into memory of `pool`.
    pub fn new(disk: D, block_bytes: u32, pool: &Pool) -> Result<Self, FileStoreError> {
        let info = disk.info();
        if info.bytes == 0 {
            return Err(FileStoreError::Empty);
        }
        if !info.bytes.is_multiple_of(u64::from(block_bytes)) {
            return Err(FileStoreError::OddSize { bytes: info.bytes, block_bytes });
        }
        if info.align_bytes > block_bytes {
            return Err(FileStoreError::Alignment { align_bytes: info.align_bytes, block_bytes });
        }
        let scope = disk.sync_scope();
        Ok(FileStore {
            info,
            geometry: Geometry {
                bytes: info.bytes,
                block_bytes,
                preferred_bytes: 4096,
                io_bytes_max: IO_BYTES_MAX,
                features: Features {
                    read_only: info.read_only,
                    discard: info.punch_hole && !info.read_only,
                    write_zeroes: !info.read_only,
                    block_status: true,
                },
            },
            pool: pool.clone(),
            zeroes: None,
            running: Vec::with_capacity(IOS_USUAL),
            free: Vec::with_capacity(IOS_USUAL),
            ready: Vec::with_capacity(IOS_USUAL),
            losses_told: scope.losses(),
            scope,
            held: VecDeque::with_capacity(IOS_USUAL),
            unaligned: VecDeque::with_capacity(IOS_USUAL),
            disk_done: Vec::with_capacity(IOS_USUAL),
            started: false,
            copied_bytes: 0,
            growth: Growth::new(info.bytes),
            disk,
        })
    }

    /// The disk underneath.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// The disk underneath, for whoever drives it.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Starts an operation on the whole range.
    fn start(&mut self, running: Running, kind: DiskOpKind) {
        self.start_part(running, running.offset, running.len, kind);
    }

    fn start_part(&mut self, mut running: Running, offset: u64, len: u64, kind: DiskOpKind) {
        self.started = true;
        let is_sync = matches!(kind, DiskOpKind::Flush | DiskOpKind::Write { fua: true, .. });
        running.sync = is_sync.then(|| self.scope.begin());
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.running.push(None);
                self.running.len() - 1
            }
        };
        self.running[slot] = Some(running);
        self.disk.submit(DiskOp { token: slot as Token, offset, len, kind });
    }

    /// The disk can take this segment as it is.
    fn fits(&self, segment: &Segment) -> bool {
        let align = self.info.align_bytes as usize;
        (segment.as_ptr() as usize).is_multiple_of(align) && segment.len().is_multiple_of(align)
    }

    /// Starts the writes that wait to be copied, as many as the disk has time for in this turn.
    fn start_copied(&mut self) {
        while let Some((running, _)) = self.unaligned.front()
            && self.disk.may_copy(running.len)
            && let Some((running, data)) = self.unaligned.pop_front()
        {
            let data = self.aligned(data);
            self.start(running, DiskOpKind::Write { data, fua: running.flags.fua });
        }
    }

    /// The segments themselves where the disk can take them; each run of others, with as many behind
    /// it as make it a whole number of blocks, as a copy in one aligned buffer.
    fn aligned(&mut self, data: SegList) -> SegList {
        let align = self.info.align_bytes as usize;
        let mut out = SegList::new();
        // Where the payload, and in it the run to be copied, has been walked to.
        let (mut at, mut run) = (0, 0usize);
        for segment in data.iter() {
            if run.is_multiple_of(align) && self.fits(segment) {
                self.push_copy(&data, at, run, &mut out);
                out.push(segment.clone());
                at += run + segment.len();
                run = 0;
            } else {
                run += segment.len();
            }
        }
        self.push_copy(&data, at, run, &mut out);
        out
    }

    /// Appends a copy of the window `[offset, offset + len)` of `data` to `out`, and counts it.
    fn push_copy(&mut self, data: &SegList, offset: usize, len: usize, out: &mut SegList) {
        if len == 0 {
            return;
        }
        let mut window = SegList::new();
        data.slice_into(offset, len, &mut window);
        let mut copy = self.pool.get(len);
        window.copy_to(&mut copy);
        self.copied_bytes += len as u64;
        out.push(copy.freeze());
    }

    /// How this write-zeroes or discard begins.
    fn first_step(&self, running: &Running) -> Step {
        if running.op == Op::Discard || (self.info.punch_hole && !running.flags.no_hole) {
            Step::Punch
        } else if self.info.zero_range {
            Step::ZeroRange
        } else {
            Step::Written(0)
        }
    }

    /// Starts the next operation of a write-zeroes or discard.
    fn enter_step(&mut self, mut running: Running, step: Step) {
        running.step = step;
        match step {
            Step::Punch => self.start(running, DiskOpKind::PunchHole),
            Step::ZeroRange => self.start(running, DiskOpKind::ZeroRange),
            Step::Last => self.start(running, DiskOpKind::Flush),
            Step::Grown => self.start(running, DiskOpKind::KeepSize),
            Step::Written(before) => {
                let piece = (running.len - before).min(u64::from(IO_BYTES_MAX));
                running.step = Step::Written(before + piece);
                let data = self.zero_list(piece as usize);
                let kind = DiskOpKind::Write { data, fua: running.flags.fua };
                self.start_part(running, running.offset + before, piece, kind);
            }
        }
    }

    fn zero_list(&mut self, mut len: usize) -> SegList {
        let pool = &self.pool;
        let zeroes = self.zeroes.get_or_insert_with(|| pool.get_zeroed(ZERO_BYTES).freeze());
        let mut list = SegList::new();
        while len > 0 {
            let part = len.min(ZERO_BYTES);
            list.push(zeroes.slice(0, part));
            len -= part;
        }
        list
    }

    /// Takes in the end of a disk operation: the I/O is done, or goes on.
    fn finish(&mut self, done: DiskDone) {
        let slot = done.token as usize;
        let running = self.running[slot].take().expect("the disk returns each token once");
        self.free.push(slot);
        if let Some(mark) = running.sync {
            match done.result {
                Err(REFUSED) => self.scope.end_refused(mark),
                result => self.scope.end(mark, result.is_err()),
            }
        }
        let unable = matches!(done.result, Err(errno) if is_unsupported(errno));
        match (running.step, done.result) {
            (Step::Grown, Ok(())) => {
                self.held.push_back((SyncMark::now(), Held::Growth(running.len)));
            }
            (Step::Grown, Err(_)) => self.growth.end(false),
            (Step::Punch, _) if unable => {
                self.info.punch_hole = false;
                if running.op == Op::Discard {
                    self.ready.push(Completion::new(running.token, Ok(())));
                } else {
                    let step = self.first_step(&running);
                    self.enter_step(running, step);
                }
            }
            (Step::ZeroRange, _) if unable => {
                self.info.zero_range = false;
                self.enter_step(running, Step::Written(0));
            }
            (_, Err(errno)) => {
                let error = running.error(error_kind(errno));
                self.ready.push(Completion::new(running.token, Err(error)));
            }
            (Step::Punch | Step::ZeroRange, Ok(())) if running.flags.fua => {
                self.enter_step(running, Step::Last);
            }
            (Step::Written(bytes), Ok(())) if bytes < running.len => {
                self.enter_step(running, Step::Written(bytes));
            }
            (_, Ok(())) => {
                let mut completion = Completion::new(running.token, Ok(()));
                if running.sync.is_some() {
                    self.held.push_back((SyncMark::now(), Held::Io(completion)));
                    return;
                }
                match done.kind {
                    DiskOpKind::Read(buf) => completion.data = SegList::of(buf.freeze()),
                    DiskOpKind::BlockStatus(runs) => {
                        let block = u64::from(self.geometry.block_bytes);
                        completion.extents = whole_blocks(&runs, running.len, block);
                        if running.flags.one_extent {
                            completion.extents.truncate(1);
                        }
                    }
                    DiskOpKind::LoadWriter(record) => completion.data = record.to_data(&self.pool),
                    _ => {}
                }
                self.ready.push(completion);
            }
        }
    }

    /// Tells of the syncs beside which none runs any more that might have failed before them.
    fn release_held(&mut self) {
        while let Some((mark, _)) = self.held.front()
            && self.scope.is_settled(*mark)
        {
            match self.held.pop_front().map(|(_, held)| held) {
                Some(Held::Io(completion)) => self.ready.push(completion),
                Some(Held::Growth(bytes)) => {
                    self.growth.end(true);
                    self.geometry.bytes = bytes;
                }
                None => {}
            }
        }
    }
}

impl<D: Disk> Volume for FileStore<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.info.identity
    }

    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry.check(&io) == Ok(()), "{io:?}");
        let running = Running::of(&io, Step::Last);
        match io.op {
            Op::Read => {
                let buf = self.pool.get(io.len as usize);
                self.start(running, DiskOpKind::Read(buf));
            }
            Op::Write if io.data.iter().all(|segment| self.fits(segment)) => {
                self.start(running, DiskOpKind::Write { data: io.data, fua: io.flags.fua });
            }
            Op::Write => self.unaligned.push_back((running, io.data)),
            Op::Flush => self.start(running, DiskOpKind::Flush),
            Op::Discard | Op::WriteZeroes => {
                let step = self.first_step(&running);
                self.enter_step(running, step);
            }
            Op::BlockStatus => self.start(running, DiskOpKind::BlockStatus(Vec::new())),
            Op::LoadWriter => self.start(running, DiskOpKind::LoadWriter(Box::default())),
            Op::Cut => {
                let error = running.error(ErrorKind::Unsupported);
                self.ready.push(Completion::new(io.token, Err(error)));
            }
            Op::StoreWriter => match WriterRecord::from_data(&io.data) {
                Some(record) => self.start(running, DiskOpKind::StoreWriter(Box::new(record))),
                None => {
                    let error = running.error(ErrorKind::Invalid);
                    self.ready.push(Completion::new(io.token, Err(error)));
                }
            },
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut disk_done = std::mem::take(&mut self.disk_done);
        for round in 1.. {
            self.start_copied();
            self.disk.poll(&mut disk_done);
            self.started = false;
            for one in disk_done.drain(..) {
                self.finish(one);
            }
            // What an I/O goes on with must reach the kernel in this turn: nobody would wake us.
            if !self.started {
                break;
            }
            if round == ROUNDS_MAX {
                self.disk.wake_soon();
                break;
            }
        }
        self.disk_done = disk_done;
        if !self.held.is_empty() {
            self.release_held();
            if !self.held.is_empty() {
                // The other volume's thread does not know of us.
                self.disk.wake_soon();
            }
        }
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        let started = self.running.len() - self.free.len() + self.unaligned.len();
        let held = self.held.len() + self.ready.len();
        started + held - usize::from(self.growth.is_under_way)
    }

    fn is_at_rest(&self) -> bool {
        self.outstanding() == 0 && !self.growth.is_under_way
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    fn events(&self) -> u64 {
        self.scope.losses() + self.growth.count
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let losses = self.scope.losses();
        if std::mem::replace(&mut self.losses_told, losses) != losses {
            events.push(VolumeEvent::Lost);
        }
        if self.growth.is_news() {
            events.push(VolumeEvent::Resized { bytes: self.geometry.bytes });
        }
        if self.growth.is_cut_news() {
            events.push(VolumeEvent::Shrunk);
        }
    }

    fn refresh(&mut self) -> bool {
        let bytes = self.disk.refresh(self.geometry.block_bytes);
        if self.disk.has_shrunk() {
            self.growth.cut();
        }
        if self.growth.begin(bytes) {
            let nobodys = Io::new(0, Op::Flush, 0, bytes);
            self.enter_step(Running::of(&nobodys, Step::Last), Step::Grown);
        }
        true
    }
}

impl<D> Drop for FileStore<D> {
    /// Nobody will hear how these syncs end.
    fn drop(&mut self) {
        for mark in self.running.iter().flatten().filter_map(|running| running.sync) {
            self.scope.end(mark, true);
        }
    }
}

/// File systems report extents in their own units, which a small logical block may not divide: a
/// block that holds any data counts as data. The answer covers at least one block.
fn whole_blocks(runs: &[Extent], len: u64, block: u64) -> Vec<Extent> {
    let mut extents = Vec::new();
    // The end of what is answered so far, and of the runs looked at, from the start of the range.
    let (mut at, mut end) = (0, 0);
    for run in runs {
        end = (end + run.len).min(len);
        // A hole ends at the last whole block in it, data at the first border after it.
        let border = if run.zero { end / block * block } else { end.next_multiple_of(block) };
        let border = border.min(len);
        if border > at {
            push_extent(&mut extents, Extent { len: border - at, ..*run });
            at = border;
        }
    }
    if extents.is_empty() {
        extents.push(Extent { len: block.min(len), hole: false, zero: false });
    }
    extents
}

#[cfg(test)]
mod tests;
