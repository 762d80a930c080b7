//! A volume on a [`Disk`]: a file or a block device.

use std::collections::VecDeque;

use thinwire_buffer::{Pool, SegList, Segment};

use super::{IO_BYTES_MAX, push_extent};
use crate::{
    Completion, Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, ErrorKind, Extent, Features,
    Geometry, Identity, Io, IoError, IoFlags, Op, SyncMark, SyncScope, Token, Volume, WriterRecord,
};

/// The name under which errors of this store appear.
const MODULE: &str = "file";

/// Written zeroes go out of one buffer of this size, used many times over.
const ZERO_BYTES: usize = 64 << 10;

/// Room for this many I/Os is there from the start: how many complete together is a matter of luck,
/// and luck must not allocate.
const IOS_USUAL: usize = 256;

/// The errnos this store tells apart, in Linux's numbers (MIPS and SPARC differ in the last three).
mod errno {
    pub const EBADF: i32 = 9;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const ENOSYS: i32 = 38;
    pub const EOPNOTSUPP: i32 = 95;
    pub const EDQUOT: i32 = 122;
}

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
enum Stage {
    /// The only operation, or the last.
    Last,
    /// A hole is being punched for a write-zeroes or a discard.
    Punch,
    /// A range is being zeroed by the file system.
    ZeroRange,
    /// Zeroes are being written; this many bytes are done after the running operation.
    Written(u64),
}

/// An I/O that is on the disk.
#[derive(Clone, Copy, Debug)]
struct Running {
    token: Token,
    op: Op,
    flags: IoFlags,
    offset: u64,
    len: u64,
    stage: Stage,
    /// The running operation is a sync that began then.
    sync: Option<SyncMark>,
}

impl Running {
    fn error(&self, kind: ErrorKind) -> IoError {
        IoError { kind, op: self.op, offset: self.offset, len: self.len, module: MODULE }
    }
}

/// A volume on a [`Disk`].
///
/// * Reads go into a pool buffer, which the completion shares.
/// * Writes go from the submitter's segments where their addresses and lengths suit the disk; the
///   others through one copy, which is counted.
/// * A discard punches a hole. Where the disk turns out unable, it succeeds without effect.
/// * Write-zeroes punches a hole unless forbidden; else has the range zeroed; else writes zeroes.
/// * A flush is one fdatasync. If it fails, or a durable write or a record does, what was completed
///   before may be lost, here and in all volumes of the same [`SyncScope`]: [`Volume::losses`] says so
///   before anything else is completed. A flush or durable write that succeeded beside a sync of
///   another volume there is told when that one has ended, too.
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
    /// Answers that needed no waiting for the disk: behind all that it had done before.
    told: Vec<Completion>,
    scope: SyncScope,
    /// Syncs that succeeded, and when that was heard: told when the scope is settled.
    held: VecDeque<(SyncMark, Completion)>,
    disk_done: Vec<DiskDone>,
    /// The disk was given something since this was last cleared.
    started: bool,
    copied_bytes: u64,
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
            told: Vec::new(),
            scope: disk.sync_scope(),
            held: VecDeque::with_capacity(IOS_USUAL),
            disk_done: Vec::with_capacity(IOS_USUAL),
            started: false,
            copied_bytes: 0,
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

    /// The segments themselves where the disk can take them; each run of others, with as many behind
    /// it as make it a whole number of blocks, as a copy in one aligned buffer.
    fn aligned(&mut self, data: SegList) -> SegList {
        let align = self.info.align_bytes as usize;
        let fits = |s: &Segment| {
            (s.as_ptr() as usize).is_multiple_of(align) && s.len().is_multiple_of(align)
        };
        if align == 1 || data.iter().all(fits) {
            return data;
        }
        let mut out = SegList::new();
        // Where the payload, and in it the run to be copied, has been walked to.
        let (mut at, mut run) = (0, 0usize);
        for segment in data.iter() {
            if run.is_multiple_of(align) && fits(segment) {
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
    fn first_stage(&self, running: &Running) -> Stage {
        if running.op == Op::Discard || (self.info.punch_hole && !running.flags.no_hole) {
            Stage::Punch
        } else if self.info.zero_range {
            Stage::ZeroRange
        } else {
            Stage::Written(0)
        }
    }

    /// Starts the next operation of a write-zeroes or discard.
    fn enter_stage(&mut self, mut running: Running, stage: Stage) {
        running.stage = stage;
        match stage {
            Stage::Punch => self.start(running, DiskOpKind::PunchHole),
            Stage::ZeroRange => self.start(running, DiskOpKind::ZeroRange),
            Stage::Last => self.start(running, DiskOpKind::Flush),
            Stage::Written(before) => {
                let piece = (running.len - before).min(u64::from(IO_BYTES_MAX));
                running.stage = Stage::Written(before + piece);
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
            self.scope.end(mark, done.result.is_err());
        }
        let unable = matches!(done.result, Err(errno) if is_unsupported(errno));
        match (running.stage, done.result) {
            (Stage::Punch, _) if unable => {
                self.info.punch_hole = false;
                if running.op == Op::Discard {
                    self.ready.push(Completion::new(running.token, Ok(())));
                } else {
                    let stage = self.first_stage(&running);
                    self.enter_stage(running, stage);
                }
            }
            (Stage::ZeroRange, _) if unable => {
                self.info.zero_range = false;
                self.enter_stage(running, Stage::Written(0));
            }
            (_, Err(errno)) => {
                let error = running.error(error_kind(errno));
                self.ready.push(Completion::new(running.token, Err(error)));
            }
            (Stage::Punch | Stage::ZeroRange, Ok(())) if running.flags.fua => {
                self.enter_stage(running, Stage::Last);
            }
            (Stage::Written(bytes), Ok(())) if bytes < running.len => {
                self.enter_stage(running, Stage::Written(bytes));
            }
            (_, Ok(())) => {
                let mut completion = Completion::new(running.token, Ok(()));
                if running.sync.is_some() {
                    self.held.push_back((SyncMark::now(), completion));
                    return;
                }
                if let DiskOpKind::Read(buf) = done.kind {
                    completion.data = SegList::of(buf.freeze());
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
            self.ready.extend(self.held.pop_front().map(|(_, completion)| completion));
        }
    }

    fn block_status(&mut self, io: &Io) -> Completion {
        let mut runs = Vec::new();
        if let Err(errno) = self.disk.block_status(io.offset, io.len, &mut runs) {
            return Completion::new(io.token, Err(io.error(error_kind(errno), MODULE)));
        }
        let mut completion = Completion::new(io.token, Ok(()));
        completion.extents = whole_blocks(&runs, io.len, u64::from(self.geometry.block_bytes));
        if io.flags.one_extent {
            completion.extents.truncate(1);
        }
        completion
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
        debug_assert_eq!(self.geometry.check(&io), Ok(()));
        let running = Running {
            token: io.token,
            op: io.op,
            flags: io.flags,
            offset: io.offset,
            len: io.len,
            stage: Stage::Last,
            sync: None,
        };
        match io.op {
            Op::Read => {
                let buf = self.pool.get(io.len as usize);
                self.start(running, DiskOpKind::Read(buf));
            }
            Op::Write => {
                let data = self.aligned(io.data);
                self.start(running, DiskOpKind::Write { data, fua: io.flags.fua });
            }
            Op::Flush => self.start(running, DiskOpKind::Flush),
            Op::Discard | Op::WriteZeroes => {
                let stage = self.first_stage(&running);
                self.enter_stage(running, stage);
            }
            Op::BlockStatus => {
                let completion = self.block_status(&io);
                self.told.push(completion);
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut disk_done = std::mem::take(&mut self.disk_done);
        loop {
            self.disk.poll(&mut disk_done);
            self.started = false;
            for one in disk_done.drain(..) {
                self.finish(one);
            }
            // What an I/O goes on with must reach the kernel in this turn: nobody would wake us.
            if !self.started {
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
        // A flush that had failed when they were asked for has changed what they saw, and must be
        // heard of first.
        done.append(&mut self.told);
    }

    fn outstanding(&self) -> usize {
        let held = self.held.len() + self.ready.len() + self.told.len();
        self.running.len() - self.free.len() + held
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    fn losses(&self) -> u64 {
        self.scope.losses()
    }

    fn load_writer(&mut self) -> Result<WriterRecord, IoError> {
        let mark = self.scope.begin();
        let loaded = self.disk.load_writer();
        self.scope.end(mark, loaded.is_err());
        loaded.map_err(|errno| record_error(errno, Op::Read))
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), IoError> {
        let mark = self.scope.begin();
        let stored = self.disk.store_writer(record);
        self.scope.end(mark, stored.is_err());
        stored.map_err(|errno| record_error(errno, Op::Write))
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

fn record_error(errno: i32, op: Op) -> IoError {
    IoError { kind: error_kind(errno), op, offset: 0, len: 0, module: "writer record" }
}

/// What an errno of the disk means for the I/O.
fn error_kind(errno: i32) -> ErrorKind {
    match errno {
        errno::ENOSPC | errno::EDQUOT => ErrorKind::NoSpace,
        errno::EROFS | errno::EBADF => ErrorKind::ReadOnly,
        // Ranges were checked at the gate, so EINVAL is the medium's fault, too.
        _ => ErrorKind::Io,
    }
}

/// True if the disk says that it has no such operation, rather than that it failed.
fn is_unsupported(errno: i32) -> bool {
    matches!(errno, errno::EOPNOTSUPP | errno::ENOSYS)
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
mod tests {
    use super::*;
    use crate::testing::{MemDisk, exercise, finish};

    fn store(disk: MemDisk, block_bytes: u32) -> FileStore<MemDisk> {
        FileStore::new(disk, block_bytes, &Pool::new(16 << 20)).unwrap()
    }

    fn run(store: &mut FileStore<MemDisk>, io: Io) -> Completion {
        finish(store, &mut || {}, io)
    }

    fn write(offset: u64, parts: &[&[u8]], shift: usize) -> Io {
        let pool = Pool::new(0);
        let mut data = SegList::new();
        for part in parts {
            let mut buf = pool.get(shift + part.len());
            buf[shift..].copy_from_slice(part);
            data.push(buf.freeze().slice(shift, part.len()));
        }
        Io { data: data.clone(), ..Io::new(1, Op::Write, offset, data.bytes() as u64) }
    }

    #[test]
    fn it_conforms_on_disks_of_every_alignment() {
        for (seed, align, block) in [(1, 1, 512), (2, 512, 512), (3, 512, 4096), (4, 4096, 4096)] {
            let mut store = store(MemDisk::new(3 << 20, align, seed), block);
            let report = exercise(&mut store, &mut || {}, seed, 2000);
            assert!(report.ios > 2000 && report.overlaps > 100);
            let log = &store.disk().log;
            assert!("rwWfpz".chars().all(|letter| log.contains(letter)));
        }
        let mut store = store(MemDisk::new(3 << 20, 512, 9).lying(), 512);
        exercise(&mut store, &mut || {}, 9, 2000);
    }

    #[test]
    fn only_what_the_disk_cannot_take_is_copied() {
        let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
        run(&mut store, write(0, &[&[1; 512], &[2; 4096]], 0)).result.unwrap();
        run(&mut store, write(8192, &[&[3; 1024]], 512)).result.unwrap();
        assert_eq!(store.copied_bytes(), 0);
        run(&mut store, write(0, &[&[4; 512]], 128)).result.unwrap();
        assert_eq!(store.copied_bytes(), 512);
        run(&mut store, write(0, &[&[5; 100], &[6; 412]], 0)).result.unwrap();
        assert_eq!(store.copied_bytes(), 1024);
        let data = run(&mut store, Io::new(2, Op::Read, 0, 1024)).data.to_vec();
        assert_eq!((data[99], data[100], data[511], data[512]), (5, 6, 6, 2));
        // A jumbo frame in chunks: the first suits the disk, the others only together.
        let whole = vec![7; 3584];
        let io = write(0, &[&whole, &[8; 3790], &[9; 818], &whole, &[8; 512]], 0);
        run(&mut store, io).result.unwrap();
        assert_eq!(store.copied_bytes(), 1024 + 3790 + 818);
        // A run ends with a whole number of blocks, or not at all.
        run(&mut store, write(0, &[&[1; 100], &[2; 512], &[3; 412], &[4; 512]], 0)).result.unwrap();
        assert_eq!(store.copied_bytes(), 1024 + 3790 + 818 + 1024);
        let data = run(&mut store, Io::new(2, Op::Read, 0, 12_288)).data.to_vec();
        let mut expected = [&whole[..], &[8; 3790], &[9; 818], &whole, &[8; 512]].concat();
        expected[..1536]
            .copy_from_slice(&[&[1; 100][..], &[2; 512], &[3; 412], &[4; 512]].concat());
        assert_eq!(data, expected);
    }

    #[test]
    fn durable_zeroes_and_discards_are_flushed() {
        let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
        for (op, no_hole) in
            [(Op::Discard, false), (Op::WriteZeroes, false), (Op::WriteZeroes, true)]
        {
            let flags = IoFlags { fua: true, no_hole, one_extent: false };
            run(&mut store, Io { flags, ..Io::new(1, op, 0, 512) }).result.unwrap();
        }
        assert_eq!(store.disk().log, "pfpfzf");
    }

    #[test]
    fn zeroes_are_written_where_the_disk_cannot_make_them() {
        let mut store = store(MemDisk::new(4 << 20, 512, 1).lying(), 512);
        run(&mut store, write(512, &[&[7; 512]], 0)).result.unwrap();
        let flags = IoFlags { fua: true, ..IoFlags::default() };
        run(&mut store, Io { flags, ..Io::new(1, Op::WriteZeroes, 0, (2 << 20) + 512) })
            .result
            .unwrap();
        assert_eq!(store.disk().log, "wWWW");
        run(&mut store, Io::new(1, Op::Discard, 0, 512)).result.unwrap();
        assert_eq!(run(&mut store, Io::new(1, Op::Read, 0, 4096)).data.to_vec(), vec![0; 4096]);
    }

    #[test]
    fn errors_of_the_disk_become_errors_of_the_io() {
        let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
        for (errno, kind) in [
            (28, ErrorKind::NoSpace),
            (122, ErrorKind::NoSpace),
            (30, ErrorKind::ReadOnly),
            (5, ErrorKind::Io),
            (22, ErrorKind::Io),
        ] {
            store.disk_mut().fail_with(Some(errno));
            let error = run(&mut store, write(512, &[&[7; 512]], 0)).result.unwrap_err();
            assert_eq!(
                (error.kind, error.op, error.offset, error.len),
                (kind, Op::Write, 512, 512)
            );
            assert!(run(&mut store, Io::new(1, Op::Flush, 0, 0)).result.is_err());
            assert!(run(&mut store, Io::new(1, Op::Discard, 0, 512)).result.is_err());
        }
        store.disk_mut().fail_with(None);
        run(&mut store, write(512, &[&[7; 512]], 0)).result.unwrap();
    }

    /// The other volume's sync may have failed in the kernel before this one's did not.
    #[test]
    fn a_sync_that_ran_beside_another_is_told_when_both_have_ended() {
        let scope = SyncScope::alone();
        let fua = IoFlags { fua: true, ..IoFlags::default() };
        for (op, flags) in [(Op::Flush, IoFlags::default()), (Op::Write, fua)] {
            let mut store = store(MemDisk::new(1 << 20, 512, 1).within(scope.clone()), 512);
            let other = scope.begin();
            let mut done = Vec::new();
            store.submit(Io { flags, op, ..write(0, &[&[7; 512]], 0) });
            for _ in 0..1000 {
                store.poll(&mut done);
            }
            assert!(done.is_empty() && store.outstanding() == 1 && store.disk().wakes > 0);
            let before = store.losses();
            scope.end(other, true);
            assert_eq!(store.losses(), before + 1, "known before it is told");
            store.poll(&mut done);
            assert!(done.len() == 1 && done[0].result.is_ok() && store.outstanding() == 0);
        }
        // One that is forgotten holds up nobody, and vouches for nothing.
        let before = scope.losses();
        let mut gone = store(MemDisk::new(1 << 20, 512, 1).within(scope.clone()), 512);
        gone.submit(Io::new(1, Op::Flush, 0, 0));
        drop(gone);
        assert!(scope.is_settled(SyncMark::now()) && scope.losses() == before + 1);
    }

    #[test]
    fn a_failed_sync_of_any_kind_is_a_loss() {
        let mut store = store(MemDisk::new(1 << 20, 512, 1), 512);
        let fua = IoFlags { fua: true, ..IoFlags::default() };
        store.disk_mut().fail_with(Some(5));
        let plain = write(0, &[&[7; 512]], 0);
        assert!(run(&mut store, plain).result.is_err() && store.losses() == 0);
        let durable = Io { flags: fua, ..write(0, &[&[7; 512]], 0) };
        assert!(run(&mut store, durable).result.is_err() && store.losses() == 1);
        assert!(run(&mut store, Io::new(1, Op::Flush, 0, 0)).result.is_err());
        assert_eq!(store.losses(), 2);
        store.disk_mut().fail_records([true]);
        assert!(store.store_writer(WriterRecord::default()).is_err() && store.losses() == 3);
    }

    #[test]
    fn a_disk_of_another_shape_is_refused() {
        let new = |disk, block| FileStore::new(disk, block, &Pool::new(0)).err().unwrap();
        let odd = new(MemDisk::new(10_000, 1, 1), 512).to_string();
        assert!(odd.contains("10000 bytes") && odd.contains("9728 and 10240"), "{odd}");
        assert_eq!(new(MemDisk::new(0, 1, 1), 512), FileStoreError::Empty);
        assert_eq!(
            new(MemDisk::new(8192, 4096, 1), 512),
            FileStoreError::Alignment { align_bytes: 4096, block_bytes: 512 }
        );
        let features = store(MemDisk::new(8192, 512, 1).read_only(), 512).geometry().features;
        assert!(features.read_only && !features.discard && !features.write_zeroes);
    }

    #[test]
    fn extents_end_on_blocks_and_a_block_with_any_data_is_data() {
        let run = |len, hole| Extent { len, hole, zero: hole };
        let runs = [run(100, true), run(600, false), run(4000, true), run(1000, false)];
        // Data from 100 to 700, and from 4700 on.
        assert_eq!(
            whole_blocks(&runs, 5632, 512),
            [run(1024, false), run(3584, true), run(1024, false)]
        );
        assert_eq!(whole_blocks(&[run(512, true)], 512, 512), [run(512, true)]);
        assert_eq!(whole_blocks(&[run(100, true)], 512, 512), [run(512, false)]);
    }
}
