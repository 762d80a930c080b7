//! [`CrashDisk`]: a disk in memory that does at once what it is given, until the power of all disks goes. What was not flushed by then is
//! there, or lost, or half of it is, as whoever enumerates crashes decides.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Completion, ErrorKind, Features, Geometry, Identity, Io, Op, Volume};

use crate::stamp::SECTOR_BYTES;

const BLOCK_BYTES: usize = 4096;
const SECTORS_EACH: usize = BLOCK_BYTES / SECTOR_BYTES;

/// Blocks of 4096 bytes by their numbers; all others are zero.
pub type DiskContent = BTreeMap<u64, Rc<[u8; BLOCK_BYTES]>>;

/// What a crash does to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Lost,
    Kept,
    /// The first half of its sectors is there.
    First,
    /// The second.
    Second,
}

/// So many things are done by disks until the power goes. All disks of a machine share it.
#[derive(Clone)]
pub struct Countdown(Rc<Cell<u64>>);

impl Countdown {
    /// The power goes with the `nth` thing that would change something, which is done or not.
    pub fn new(nth: u64) -> Self {
        Countdown(Rc::new(Cell::new(nth)))
    }

    /// It never goes.
    pub fn never() -> Self {
        Countdown::new(u64::MAX)
    }

    /// It has gone.
    pub fn is_over(&self) -> bool {
        self.0.get() == 0
    }

    fn count(&self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// A write that no flush has covered.
#[derive(Clone)]
struct Unflushed {
    first_sector: usize,
    bytes: Vec<u8>,
    /// Sectors that what is durable has been written over since.
    gone: Vec<bool>,
}

struct Inner {
    number: usize,
    bytes: u64,
    durable: DiskContent,
    unflushed: Vec<Unflushed>,
    ready: Vec<Completion>,
    outstanding: usize,
    countdown: Countdown,
    /// A discard does nothing; else it writes zeroes.
    keeps_discarded: bool,
    /// Nothing succeeds any more.
    fails: bool,
    pool: Pool,
}

/// A handle of one.
#[derive(Clone)]
pub struct CrashDisk(Rc<RefCell<Inner>>);

impl CrashDisk {
    /// The disk of this number, which holds this, durably.
    pub fn new(number: usize, bytes: u64, durable: DiskContent, countdown: &Countdown) -> Self {
        CrashDisk(Rc::new(RefCell::new(Inner {
            number,
            bytes,
            durable,
            unflushed: Vec::new(),
            ready: Vec::new(),
            outstanding: 0,
            countdown: countdown.clone(),
            keeps_discarded: false,
            fails: false,
            pool: Pool::new(0),
        })))
    }

    /// What is discarded stays as it is from now on.
    pub fn keep_discarded(&self) {
        self.0.borrow_mut().keeps_discarded = true;
    }

    /// All that it is given fails from now on, and is done, or half done, or not.
    pub fn fail(&self) {
        self.0.borrow_mut().fails = true;
    }

    /// Nothing that it is given succeeds any more.
    pub fn is_failing(&self) -> bool {
        self.0.borrow().fails
    }

    /// How many writes a crash may undo.
    pub fn unflushed(&self) -> usize {
        self.0.borrow().unflushed.len()
    }

    /// What is left after a crash that does this to them.
    pub fn after(&self, fates: &[Fate]) -> DiskContent {
        let inner = self.0.borrow();
        let mut content = inner.durable.clone();
        for (write, fate) in inner.unflushed.iter().zip(fates) {
            let half = write.gone.len() / 2;
            let is_kept = |nth: usize| match fate {
                Fate::Lost => false,
                Fate::Kept => true,
                Fate::First => nth < half,
                Fate::Second => nth >= half,
            };
            write.put(&mut content, is_kept);
        }
        content
    }

    /// What reads see.
    pub fn content(&self) -> DiskContent {
        self.after(&vec![Fate::Kept; self.unflushed()])
    }
}

impl Unflushed {
    fn put(&self, content: &mut DiskContent, is_kept: impl Fn(usize) -> bool) {
        for (nth, sector) in self.bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            if !is_kept(nth) || self.gone[nth] {
                continue;
            }
            let at = self.first_sector + nth;
            let block = (at / SECTORS_EACH) as u64;
            let from = at % SECTORS_EACH * SECTOR_BYTES;
            let is_zero = sector.iter().all(|byte| *byte == 0);
            if is_zero && !content.contains_key(&block) {
                continue;
            }
            let bytes = content.entry(block).or_insert_with(|| Rc::new([0; BLOCK_BYTES]));
            Rc::make_mut(bytes)[from..from + SECTOR_BYTES].copy_from_slice(sector);
        }
    }

    fn sectors(&self) -> std::ops::Range<usize> {
        self.first_sector..self.first_sector + self.gone.len()
    }
}

impl Inner {
    /// The last write is durable, over what was not.
    fn settle_last(&mut self) {
        let Some(last) = self.unflushed.pop() else { return };
        last.put(&mut self.durable, |_| true);
        for earlier in &mut self.unflushed {
            let first = earlier.first_sector;
            for sector in last.sectors() {
                if earlier.sectors().contains(&sector) {
                    earlier.gone[sector - first] = true;
                }
            }
        }
    }

    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let (offset, end) = (offset as usize, (offset + len) as usize);
        let mut bytes = vec![0; end - offset];
        let blocks = (offset / BLOCK_BYTES) as u64..=((end - 1) / BLOCK_BYTES) as u64;
        for (&block, found) in self.durable.range(blocks) {
            let start = block as usize * BLOCK_BYTES;
            let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
            bytes[from - offset..to - offset].copy_from_slice(&found[from - start..to - start]);
        }
        for write in &self.unflushed {
            let start = write.first_sector * SECTOR_BYTES;
            for (nth, sector) in write.bytes.chunks_exact(SECTOR_BYTES).enumerate() {
                let at = start + nth * SECTOR_BYTES;
                if (offset..end).contains(&at) && !write.gone[nth] {
                    bytes[at - offset..at - offset + SECTOR_BYTES].copy_from_slice(sector);
                }
            }
        }
        bytes
    }
}

impl Volume for CrashDisk {
    fn geometry(&self) -> Geometry {
        let (read_only, block_status) = (false, false);
        Geometry {
            bytes: self.0.borrow().bytes,
            block_bytes: SECTOR_BYTES as u32,
            preferred_bytes: BLOCK_BYTES as u32,
            io_bytes_max: 1 << 20,
            features: Features { read_only, discard: true, write_zeroes: true, block_status },
        }
    }

    fn identity(&self) -> Identity {
        Identity { identity: [self.0.borrow().number as u8 + 1; 16], incarnation: 1 }
    }

    fn submit(&mut self, io: Io) {
        let inner = &mut *self.0.borrow_mut();
        inner.outstanding += 1;
        let was_over = inner.countdown.is_over();
        if io.op != Op::Read {
            inner.countdown.count();
        }
        let is_over = inner.countdown.is_over();
        let result = match inner.fails {
            true => Err(io.error(ErrorKind::Io, "a failing disk")),
            false => Ok(()),
        };
        let mut completion = Completion::new(io.token, result);
        match io.op {
            Op::Read | Op::Flush if is_over || inner.fails => {}
            Op::Read => {
                let bytes = inner.read(io.offset, io.len);
                completion.data = SegList::of(inner.pool.copy_of(&bytes).freeze());
            }
            Op::Discard if inner.keeps_discarded => {}
            Op::Flush => {
                for write in std::mem::take(&mut inner.unflushed) {
                    write.put(&mut inner.durable, |_| true);
                }
            }
            // What comes in the same moment as the crash is on its way like the thing it came with.
            _ => {
                let bytes = match io.op {
                    Op::Write => io.data.to_vec(),
                    _ => vec![0; io.len as usize],
                };
                let first_sector = io.offset as usize / SECTOR_BYTES;
                let gone = vec![false; bytes.len() / SECTOR_BYTES];
                inner.unflushed.push(Unflushed { first_sector, bytes, gone });
                if io.flags.fua && !is_over && !inner.fails {
                    inner.settle_last();
                }
            }
        }
        debug_assert!(!was_over || is_over);
        if !is_over {
            inner.ready.push(completion);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let inner = &mut *self.0.borrow_mut();
        inner.outstanding -= inner.ready.len();
        done.append(&mut inner.ready);
    }

    fn outstanding(&self) -> usize {
        self.0.borrow().outstanding
    }
}
