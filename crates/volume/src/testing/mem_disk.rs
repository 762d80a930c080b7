//! A disk in memory, for tests of what stands on disks.

use std::collections::VecDeque;

use super::SplitMix64;
use crate::{
    Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, Extent, Identity, SyncScope, Token, WriterRecord,
};

const EOPNOTSUPP: i32 = 95;
const EINVAL: i32 = 22;
const EIO: i32 = 5;

/// A disk in memory. Operations take effect in [`Disk::poll`], a few at a time, in an order drawn
/// from the seed. Misaligned operations fail with EINVAL, as on a real disk.
pub struct MemDisk {
    info: DiskInfo,
    bytes: Vec<u8>,
    /// Which units of 4096 bytes hold data.
    data: Vec<bool>,
    queue: Vec<DiskOp>,
    rng: SplitMix64,
    writer: WriterRecord,
    /// Whether the next records fail; what comes behind them succeeds.
    failing_records: VecDeque<bool>,
    scope: SyncScope,
    failing: Option<i32>,
    /// Claims to be able and is not.
    liar: bool,
    /// The size that it was to remember last.
    pub kept_bytes: u64,
    /// Bytes that may be copied for it still; `None` for any number.
    pub copies_left: Option<u64>,
    /// How often it was asked to wake whoever polls it.
    pub wakes: u64,
    /// What was done, in order: a letter for each operation (r, w, W for FUA, f, p, z, k).
    pub log: String,
}

impl MemDisk {
    /// A disk of zeroes that needs the alignment `align_bytes`.
    pub fn new(bytes: u64, align_bytes: u32, seed: u64) -> Self {
        MemDisk {
            info: DiskInfo {
                bytes,
                align_bytes,
                identity: Identity { identity: [0xd1; 16], incarnation: 0 },
                read_only: false,
                punch_hole: true,
                zero_range: true,
            },
            bytes: vec![0; bytes as usize],
            data: vec![false; bytes.div_ceil(4096) as usize],
            queue: Vec::new(),
            rng: SplitMix64::new(seed),
            writer: WriterRecord::default(),
            kept_bytes: 0,
            failing_records: VecDeque::new(),
            scope: SyncScope::alone(),
            failing: None,
            liar: false,
            copies_left: None,
            wakes: 0,
            log: String::new(),
        }
    }

    /// Claims to punch and to zero, but answers EOPNOTSUPP.
    pub fn lying(mut self) -> Self {
        self.liar = true;
        self
    }

    /// Opened read-only.
    pub fn read_only(mut self) -> Self {
        self.info.read_only = true;
        self
    }

    /// Fails every operation with this errno from now on; `None` for none.
    pub fn fail_with(&mut self, errno: Option<i32>) {
        self.failing = errno;
    }

    /// Shares what it lies on with other volumes.
    pub fn within(mut self, scope: SyncScope) -> Self {
        self.scope = scope;
        self
    }

    /// Whether each of the next records fails. One that fails is there all the same.
    pub fn fail_records(&mut self, failing: impl IntoIterator<Item = bool>) {
        self.failing_records = failing.into_iter().collect();
    }

    /// Somebody makes it so large.
    pub fn grow(&mut self, bytes: u64) {
        self.bytes.resize(bytes as usize, 0);
        self.data.resize(bytes.div_ceil(4096) as usize, false);
    }

    fn run(&mut self, op: &mut DiskOp) -> Result<(), i32> {
        if let Some(errno) = self.failing.filter(|_| !is_record(&op.kind)) {
            return Err(errno);
        }
        let align = self.info.align_bytes as usize;
        let (at, len) = (op.offset as usize, op.len as usize);
        let odd = |n: usize| !n.is_multiple_of(align);
        let has_range = !matches!(op.kind, DiskOpKind::Flush) && !is_record(&op.kind);
        if has_range && (odd(at) || odd(len)) {
            return Err(EINVAL);
        }
        match &mut op.kind {
            DiskOpKind::Read(buf) => {
                self.log.push('r');
                if odd(buf.as_ptr() as usize) || buf.len() != len {
                    return Err(EINVAL);
                }
                buf.copy_from_slice(&self.bytes[at..at + len]);
            }
            DiskOpKind::Write { data, fua } => {
                self.log.push(if *fua { 'W' } else { 'w' });
                if data.bytes() != len
                    || data.iter().any(|s| odd(s.as_ptr() as usize) || odd(s.len()))
                {
                    return Err(EINVAL);
                }
                data.copy_to(&mut self.bytes[at..at + len]);
                self.data[at / 4096..(at + len).div_ceil(4096)].fill(true);
            }
            DiskOpKind::Flush => self.log.push('f'),
            DiskOpKind::PunchHole | DiskOpKind::ZeroRange if self.liar => return Err(EOPNOTSUPP),
            DiskOpKind::PunchHole => {
                self.log.push('p');
                self.bytes[at..at + len].fill(0);
                let (first, last) = (at.div_ceil(4096), (at + len) / 4096);
                if first < last {
                    self.data[first..last].fill(false);
                }
            }
            DiskOpKind::ZeroRange => {
                self.log.push('z');
                self.bytes[at..at + len].fill(0);
                self.data[at / 4096..(at + len).div_ceil(4096)].fill(true);
            }
            DiskOpKind::BlockStatus(out) => {
                let (mut at, end) = (op.offset, op.offset + op.len);
                while at < end {
                    let next = ((at / 4096 + 1) * 4096).min(end);
                    let hole = !self.data[(at / 4096) as usize];
                    out.push(Extent { len: next - at, hole, zero: hole });
                    at = next;
                }
            }
            DiskOpKind::LoadWriter(record) => **record = self.writer,
            DiskOpKind::StoreWriter(_) | DiskOpKind::KeepSize => {
                match &op.kind {
                    DiskOpKind::StoreWriter(record) => self.writer = **record,
                    _ => {
                        self.log.push('k');
                        self.kept_bytes = op.len;
                    }
                }
                let failed = self.failing_records.pop_front() == Some(true);
                self.scope.end(self.scope.begin(), failed);
                if failed {
                    return Err(EIO);
                }
            }
        }
        Ok(())
    }
}

impl Disk for MemDisk {
    fn info(&self) -> DiskInfo {
        self.info
    }

    fn refresh(&mut self, block_bytes: u32) -> u64 {
        let bytes = self.bytes.len() as u64 / u64::from(block_bytes) * u64::from(block_bytes);
        self.info.bytes = self.info.bytes.max(bytes);
        self.info.bytes
    }

    fn may_copy(&mut self, bytes: u64) -> bool {
        let Some(left) = &mut self.copies_left else { return true };
        let may = *left >= bytes;
        *left -= if may { bytes } else { 0 };
        may
    }

    fn submit(&mut self, op: DiskOp) {
        let twin: Option<Token> =
            self.queue.iter().map(|o| o.token).find(|&token| token == op.token);
        assert_eq!(twin, None, "two outstanding operations with one token");
        self.queue.push(op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        // Mostly nothing: whoever polls until nothing comes must meet outstanding operations.
        let count =
            if self.rng.one_in(3) { self.rng.below(self.queue.len() as u64 + 1) } else { 0 };
        for _ in 0..count {
            let chosen = self.rng.below(self.queue.len() as u64) as usize;
            let mut op = self.queue.swap_remove(chosen);
            let result = self.run(&mut op);
            done.push(DiskDone { token: op.token, result, kind: op.kind });
        }
    }

    fn wake_soon(&mut self) {
        self.wakes += 1;
    }

    fn sync_scope(&self) -> SyncScope {
        self.scope.clone()
    }
}

fn is_record(kind: &DiskOpKind) -> bool {
    use DiskOpKind::{KeepSize, LoadWriter, StoreWriter};
    matches!(kind, LoadWriter(_) | StoreWriter(_) | KeepSize)
}
