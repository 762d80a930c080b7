//! A link that receives into memory of its own, a region of chunks, as AF_XDP does: what arrives is lent, and a chunk
//! receives the next frame when nobody refers to the last any more.
//!
//! Memory that is shared never changes in safe code, so a chunk that is used again too early shows what a kernel would
//! have written over it by having its references look elsewhere from then on.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use thinwire_buffer::{
    Buf, Lender, Lent, LinkInfo, PAGE_BYTES, Pool, RxBatch, RxFrame, SegList, TxBatch,
};
use thinwire_link::{HEAD_BYTES, Link, LinkStats, Outgoing, Sources};

/// Where a frame begins in its chunk: its payload is at a page border, as disks need it.
const START: usize = PAGE_BYTES - HEAD_BYTES;

/// How the links of a machine lend.
#[derive(Clone, Copy, Debug)]
pub struct LendingConfig {
    /// Chunks of each link: as many frames can be referred to at once. Others are copied.
    pub chunks: usize,
    /// A fault: with none left the one that has been lent longest receives the next frame.
    pub reuses_early: bool,
}

/// What links have lent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LendingStats {
    /// Frames.
    pub lent: u64,
    /// Frames that found no chunk, and are a pool's.
    pub short: u64,
}

/// Bytes that begin at a page border.
#[derive(Default)]
struct Paged {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Paged {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE_BYTES];
        let start = (memory.as_ptr() as usize).wrapping_neg() % PAGE_BYTES;
        Paged { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// What has been written over a chunk while it was lent.
type Over = Rc<OnceCell<Paged>>;

/// A chunk that is lent.
struct Chunk {
    own: Paged,
    over: Over,
    region: Weak<Region>,
    is_back: Cell<bool>,
}

impl Lent for Chunk {
    fn bytes(&self) -> &[u8] {
        self.over.get().unwrap_or(&self.own).bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.own.bytes_mut()
    }

    /// It is given back once; what was written over is another frame's.
    fn lender(&self) -> Option<Rc<dyn Lender>> {
        let is_gone = self.is_back.replace(true) || self.over.get().is_some();
        if is_gone { None } else { Some(self.region.upgrade()?) }
    }
}

/// The chunks of a link.
struct Region {
    chunks: usize,
    free: Cell<usize>,
    stats: Cell<LendingStats>,
}

impl Lender for Region {
    /// The memory itself is made anew for each frame.
    fn take_back(&self, _: Buf) {
        self.free.set(self.free.get() + 1);
    }
}

/// What a machine sees of the regions of its links.
#[derive(Clone)]
pub struct RegionView(Rc<Region>);

impl RegionView {
    /// What it has lent.
    pub fn stats(&self) -> LendingStats {
        self.0.stats.get()
    }

    /// Chunks that somebody refers to.
    pub fn lent(&self) -> usize {
        self.0.chunks - self.0.free.get()
    }
}

/// The link.
pub struct LendingLink {
    below: Box<dyn Link>,
    region: Rc<Region>,
    reuses_early: bool,
    /// What is lent, oldest first, and with which call; kept where chunks are used early.
    lent: RefCell<VecDeque<(u64, Over, usize)>>,
    calls: u64,
    arrived: RxBatch,
}

impl LendingLink {
    /// Over another.
    pub fn new(below: Box<dyn Link>, config: LendingConfig) -> Self {
        let (chunks, stats) = (config.chunks, Cell::default());
        let region = Rc::new(Region { chunks, free: Cell::new(chunks), stats });
        let (reuses_early, lent) = (config.reuses_early, RefCell::default());
        LendingLink { below, region, reuses_early, lent, calls: 0, arrived: RxBatch::new() }
    }

    /// Its region, to be looked at.
    pub fn region(&self) -> RegionView {
        RegionView(self.region.clone())
    }

    /// The frame in a chunk, cut as it came; as it is if there is none.
    fn lend(&mut self, frame: RxFrame) -> RxFrame {
        let mut stats = self.region.stats.get();
        let free = self.region.free.get();
        let len = START + frame.len();
        let is_there = match free {
            0 => self.reuses_early && self.write_over(&frame),
            _ => {
                self.region.free.set(free - 1);
                true
            }
        };
        stats.lent += u64::from(is_there);
        stats.short += u64::from(!is_there);
        self.region.stats.set(stats);
        if !is_there {
            return frame;
        }
        let mut own = Paged::new(len);
        frame.copy_to(0, &mut own.bytes_mut()[START..]);
        let over = Over::default();
        if self.reuses_early {
            self.lent.borrow_mut().push_back((self.calls, over.clone(), len));
        }
        let region = Rc::downgrade(&self.region);
        let whole =
            Buf::lent(Box::new(Chunk { own, over, region, is_back: Cell::new(false) })).freeze();
        let mut at = START;
        let mut cut = |len: usize| {
            at += len;
            whole.slice(at - len, len)
        };
        let bytes = cut(frame.bytes.len());
        let mut rest = SegList::new();
        frame.rest.iter().for_each(|piece| rest.push(cut(piece.len())));
        RxFrame { bytes, rest, ..frame }
    }

    /// The oldest that is lent, and was not only just now, receives this frame, whoever refers to it.
    fn write_over(&self, frame: &RxFrame) -> bool {
        let lent = &mut *self.lent.borrow_mut();
        // Nobody refers to these any more.
        lent.retain(|(_, over, _)| Rc::strong_count(over) > 1);
        if lent.front().is_none_or(|(call, ..)| *call == self.calls) {
            return false;
        }
        let Some((_, over, len)) = lent.pop_front() else { return false };
        let mut bytes = Paged::new(len);
        let received = frame.len().min(len - START);
        frame.joined(&Pool::new(0)).bytes[..received]
            .iter()
            .zip(&mut bytes.bytes_mut()[START..])
            .for_each(|(from, to)| *to = *from);
        over.set(bytes).is_ok()
    }
}

impl Link for LendingLink {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn info(&self) -> LinkInfo {
        self.below.info()
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        self.below.send(batch)
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let mut arrived = std::mem::take(&mut self.arrived);
        let count = self.below.recv(pool, max, &mut arrived)?;
        self.calls += 1;
        out.extend(arrived.drain(..).map(|frame| self.lend(frame)));
        self.arrived = arrived;
        Ok(count)
    }

    fn sources(&self) -> Sources<'_> {
        self.below.sources()
    }

    fn due_in(&mut self) -> Option<Duration> {
        self.below.due_in()
    }

    fn stats(&self) -> LinkStats {
        self.below.stats()
    }
}
