//! [`Disk`]: a leg whose cache is lost in a crash. What was submitted to it is on it, or not, or half, until a flush that began
//! behind its end has ended, or it was durable by itself.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{
    Completion, ErrorKind, Extent, Features, Geometry, Identity, Io, Op, Volume, VolumeEvent,
};

pub const BLOCK: u64 = 4096;
const SECTORS: usize = 8;

type Block = Rc<[u8]>;

/// Blocks by their numbers; the others are zero.
pub type Content = BTreeMap<u64, Block>;

/// A write that a crash may undo, or tear.
#[derive(Clone)]
struct Doubt {
    number: u64,
    first: u64,
    /// None where it was overwritten by what is durable.
    blocks: Vec<Option<Block>>,
    /// How much had been submitted when it ended.
    ended: Option<u64>,
    has_failed: bool,
    /// A flush that should have covered it has failed: no other one does, and it is gone when the power is.
    is_forgotten: bool,
}

/// What a crash does to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Lost,
    Kept,
    /// Of each block, and of the blocks, the first half is there.
    First,
    /// The second.
    Second,
}

/// What a disk is at a moment.
#[derive(Clone)]
pub struct Snapshot {
    durable: Content,
    doubts: Vec<Doubt>,
}

impl Snapshot {
    pub fn doubts(&self) -> usize {
        self.doubts.len()
    }

    /// What is left after a crash, that does this to its writes.
    pub fn after(&self, fates: &[Fate]) -> Content {
        let mut content = self.durable.clone();
        for (doubt, fate) in self.doubts.iter().zip(fates) {
            for (number, new) in (doubt.first..).zip(&doubt.blocks) {
                let Some(new) = new else { continue };
                let mut block = at(&content, number).to_vec();
                for sector in 0..SECTORS {
                    let is_kept = match fate {
                        Fate::Lost => false,
                        Fate::Kept => true,
                        Fate::First => sector < SECTORS / 2,
                        Fate::Second => sector >= SECTORS / 2,
                    };
                    let range = sector * 512..(sector + 1) * 512;
                    if is_kept {
                        block[range.clone()].copy_from_slice(&new[range]);
                    }
                }
                content.insert(number, block.into());
            }
        }
        content
    }
}

thread_local!(static ZERO: Block = Rc::new([0; BLOCK as usize]));

pub fn at(content: &Content, number: u64) -> Block {
    content.get(&number).cloned().unwrap_or_else(|| ZERO.with(Rc::clone))
}

struct Inner {
    bytes: u64,
    durable: Content,
    doubts: Vec<Doubt>,
    /// Outstanding, with the number of what had ended when it was submitted.
    queue: Vec<(u64, Io)>,
    ready: Vec<Completion>,
    numbers: u64,
    outstanding: usize,
    writes: usize,
    /// Does at once what is submitted.
    is_prompt: bool,
    fails: Option<ErrorKind>,
    fails_reads: bool,
    fails_flushes: bool,
    /// What was submitted before this one as durable is answered, and gone.
    forgets_before: u64,
    /// No write of data finds room, and none is done; what is said to be metadata does.
    is_full: bool,
    /// Nothing that changes these bytes succeeds, from the first to behind the last.
    bad_writes: Option<(u64, u64)>,
    /// No read of this one succeeds.
    bad_block: Option<u64>,
    /// Of these it says that they do not fit their sums, until they are written again.
    rotten: BTreeSet<u64>,
    /// It says that it knows what holds data, and whether it does.
    claims_status: bool,
    knows_status: bool,
    is_read_only: bool,
    /// The blocks that it says it has.
    block_bytes: u32,
    /// What it is given it does not do before it is given up, or hangs no more.
    hangs: bool,
    losses: u64,
    news: Vec<VolumeEvent>,
}

/// A handle of one.
#[derive(Clone)]
pub struct Disk(Rc<RefCell<Inner>>);

impl Disk {
    pub fn new(bytes: u64, durable: Content) -> Self {
        Disk(Rc::new(RefCell::new(Inner {
            bytes,
            durable,
            doubts: Vec::new(),
            queue: Vec::new(),
            ready: Vec::new(),
            numbers: 0,
            outstanding: 0,
            writes: 0,
            is_prompt: false,
            fails: None,
            fails_reads: false,
            fails_flushes: false,
            forgets_before: 0,
            is_full: false,
            bad_writes: None,
            bad_block: None,
            rotten: BTreeSet::new(),
            claims_status: false,
            knows_status: false,
            is_read_only: false,
            block_bytes: BLOCK as u32,
            hangs: false,
            losses: 0,
            news: Vec::new(),
        })))
    }

    /// It says that it has such blocks.
    pub fn set_block(&self, bytes: u32) {
        self.0.borrow_mut().block_bytes = bytes;
    }

    /// It holds that, durably.
    pub fn set_content(&self, content: Content) {
        self.0.borrow_mut().durable = content;
    }

    pub fn be_prompt(&self, is_prompt: bool) {
        self.0.borrow_mut().is_prompt = is_prompt;
    }

    /// From now on all fails, or nothing.
    pub fn fail(&self, kind: Option<ErrorKind>) {
        self.0.borrow_mut().fails = kind;
    }

    /// From now on reads of data fail, or not.
    pub fn fail_reads(&self, fails: bool) {
        self.0.borrow_mut().fails_reads = fails;
    }

    /// From now on it has room for metadata only, or for all.
    pub fn be_full(&self, is_full: bool) {
        self.0.borrow_mut().is_full = is_full;
    }

    /// From now on flushes fail, or not.
    pub fn fail_flushes(&self, fails: bool) {
        self.0.borrow_mut().fails_flushes = fails;
    }

    /// From now on this block cannot be read, or all can.
    pub fn fail_block(&self, block: Option<u64>) {
        self.0.borrow_mut().bad_block = block;
    }

    /// This block does not fit its sum any more, until it is written again.
    pub fn rot(&self, block: u64) {
        self.0.borrow_mut().rotten.insert(block);
    }

    pub fn is_rotten(&self, block: u64) -> bool {
        self.0.borrow().rotten.contains(&block)
    }

    /// From now on nothing can be written in these bytes, while all else works; or all can.
    pub fn fail_writes_in(&self, range: Option<(u64, u64)>) {
        self.0.borrow_mut().bad_writes = range;
    }

    /// From now on it claims to know what holds data, and does, or not.
    pub fn claim_status(&self, claims: bool, knows: bool) {
        let inner = &mut *self.0.borrow_mut();
        (inner.claims_status, inner.knows_status) = (claims, knows);
    }

    /// From now on it does nothing, or goes on.
    pub fn hang(&self, hangs: bool) {
        self.0.borrow_mut().hangs = hangs;
    }

    /// It has something to do, and does things.
    pub fn is_busy(&self) -> bool {
        self.queued() > 0 && !self.0.borrow().hangs
    }

    /// From now on it says that it may not be written.
    pub fn be_read_only(&self) {
        self.0.borrow_mut().is_read_only = true;
    }

    /// Loses what it has not flushed, and says so.
    pub fn lose(&self) {
        let inner = &mut *self.0.borrow_mut();
        inner.doubts.retain(|doubt| doubt.ended.is_none());
        inner.losses += 1;
        inner.news.push(VolumeEvent::Lost);
    }

    /// The same, and what is to be durable and was submitted by then may be answered as that, and be gone.
    pub fn lose_beside(&self) {
        self.lose();
        let inner = &mut *self.0.borrow_mut();
        inner.forgets_before = inner.numbers + 1;
    }

    /// Says that somebody else has been granted it; what is done there goes well all the same.
    pub fn be_fenced(&self) {
        self.tell(VolumeEvent::Fenced { of: None });
    }

    /// Says this; nothing else is done.
    pub fn tell(&self, event: VolumeEvent) {
        let inner = &mut *self.0.borrow_mut();
        inner.losses += 1;
        inner.news.push(event);
    }

    /// Loses some of it: what is kept is there for good.
    pub fn lose_some(&self, mut keeps: impl FnMut() -> bool) {
        let inner = &mut *self.0.borrow_mut();
        let kept: Vec<u64> = inner.doubts.iter().map(|d| d.number).filter(|_| keeps()).collect();
        inner.settle(|doubt| doubt.ended.is_some() && kept.contains(&doubt.number));
        inner.doubts.retain(|doubt| doubt.ended.is_none());
        inner.losses += 1;
        inner.news.push(VolumeEvent::Lost);
    }

    /// What was submitted and not done.
    pub fn queued(&self) -> usize {
        self.0.borrow().queue.len()
    }

    /// Where and how long what was submitted is, of one kind.
    pub fn queued_of(&self, op: Op) -> Vec<(u64, u64)> {
        let inner = self.0.borrow();
        let of = inner.queue.iter().filter(|(_, io)| io.op == op);
        of.map(|(_, io)| (io.offset, io.len)).collect()
    }

    /// Where what was submitted begins.
    pub fn queued_offsets(&self) -> Vec<u64> {
        self.0.borrow().queue.iter().map(|(_, io)| io.offset).collect()
    }

    /// Which of it is the first such.
    pub fn first_queued(&self, mut is_it: impl FnMut(&Io) -> bool) -> Option<usize> {
        self.0.borrow().queue.iter().position(|(_, io)| is_it(io))
    }

    /// Takes the first of that kind.
    pub fn take_one_of(&self, op: Op) -> Option<Io> {
        let inner = &mut *self.0.borrow_mut();
        let nth = inner.queue.iter().position(|(_, io)| io.op == op)?;
        Some(inner.queue.remove(nth).1)
    }

    /// The next poll brings this, of what was taken.
    pub fn answer(&self, completion: Completion) {
        self.0.borrow_mut().ready.push(completion);
    }

    /// Takes what was submitted, as it is.
    pub fn take(&self) -> Vec<Io> {
        self.0.borrow_mut().queue.drain(..).map(|(_, io)| io).collect()
    }

    /// Puts the last one that was taken back.
    pub fn put(&self, io: Io) {
        let inner = &mut *self.0.borrow_mut();
        let number = inner.numbers;
        inner.queue.push((number, io));
    }

    /// How many writes were submitted.
    pub fn writes(&self) -> usize {
        self.0.borrow().writes
    }

    /// Does the first, or another one, of what was submitted.
    pub fn execute(&self, nth: usize) {
        let inner = &mut *self.0.borrow_mut();
        let (number, io) = inner.queue.remove(nth);
        inner.execute(number, io);
    }

    /// Does the first of that kind. False if there is none.
    pub fn execute_one(&self, op: Op) -> bool {
        let nth = self.0.borrow().queue.iter().position(|(_, io)| io.op == op);
        nth.into_iter().for_each(|nth| self.execute(nth));
        nth.is_some()
    }

    /// Whoever used it has gone: what that had outstanding has been done, and nobody hears of it.
    pub fn abandon(&self) {
        while self.queued() > 0 {
            self.execute(0);
        }
        let inner = &mut *self.0.borrow_mut();
        inner.ready.clear();
        inner.outstanding = 0;
    }

    pub fn snapshot(&self) -> Snapshot {
        let inner = self.0.borrow();
        Snapshot { durable: inner.durable.clone(), doubts: inner.doubts.clone() }
    }

    /// What reads see.
    pub fn content(&self) -> Content {
        let inner = self.0.borrow();
        let first = |doubt: &Doubt| doubt.first..doubt.first + doubt.blocks.len() as u64;
        let doubted = inner.doubts.iter().flat_map(first);
        let numbers = inner.durable.keys().copied().chain(doubted);
        numbers.map(|number| (number, inner.seen(number))).collect()
    }
}

impl Inner {
    fn execute(&mut self, number: u64, io: Io) {
        let mut completion = Completion::new(io.token, Ok(()));
        let is_of = |block| (io.offset / BLOCK..(io.offset + io.len) / BLOCK).contains(&block);
        let is_in = |(start, end)| io.offset < end && start < io.offset + io.len;
        let has_failed = self.fails.is_some()
            || (self.fails_reads && io.op == Op::Read && io.offset >= 1536 << 10)
            || (self.fails_flushes && io.op == Op::Flush)
            || (io.op.is_write() && self.bad_writes.is_some_and(is_in))
            || (io.op == Op::Read && self.bad_block.is_some_and(is_of));
        let blocks = io.offset / BLOCK..(io.offset + io.len) / BLOCK;
        let is_rotten = self.rotten.range(blocks.clone()).next().is_some();
        if io.op.is_write() && !has_failed {
            self.rotten.retain(|block| !blocks.contains(block));
        }
        match io.op {
            Op::Write if self.is_full && !io.flags.meta => {
                self.doubts.retain(|doubt| doubt.number != number);
                completion.result = Err(io.error(ErrorKind::NoSpace, "disk"));
            }
            Op::Read if is_rotten && !has_failed => {
                completion.result = Err(io.error(ErrorKind::BadSum, "disk"));
            }
            _ if has_failed => {
                let kind = self.fails.unwrap_or(ErrorKind::Io);
                completion.result = Err(io.error(kind, "disk"));
                let doubt = self.doubts.iter_mut().find(|doubt| doubt.number == number);
                doubt.into_iter().for_each(|doubt| doubt.has_failed = true);
                if io.op == Op::Flush {
                    // It is read until the power goes, and no later flush writes it.
                    let covers = |doubt: &&mut Doubt| doubt.ended.is_some_and(|end| end < number);
                    let covered = self.doubts.iter_mut().filter(covers);
                    covered.for_each(|doubt| doubt.is_forgotten = true);
                }
            }
            Op::Read => {
                let mut data = SegList::new();
                for number in io.offset / BLOCK..(io.offset + io.len) / BLOCK {
                    data.push(Pool::new(0).copy_of(&self.seen(number)).freeze());
                }
                completion.data = data;
            }
            Op::Flush => {
                let covers = |ended: u64| ended < number;
                self.settle(|doubt| !doubt.is_forgotten && doubt.ended.is_some_and(covers));
            }
            Op::Write if io.flags.fua && number < self.forgets_before => {
                self.doubts.retain(|doubt| doubt.number != number);
            }
            Op::Write | Op::WriteZeroes => {
                let now = self.numbers;
                let doubt = self.doubts.iter_mut().find(|doubt| doubt.number == number);
                if let Some(doubt) = doubt {
                    doubt.ended = Some(now);
                }
                if io.flags.fua {
                    self.settle(|doubt| doubt.number == number);
                }
            }
            Op::BlockStatus if self.knows_status => {
                completion.extents = vec![Extent { len: io.len, hole: false, zero: false }];
            }
            Op::BlockStatus => {
                completion.result = Err(io.error(ErrorKind::Unsupported, "disk"));
            }
            other => panic!("{other}"),
        }
        self.ready.push(completion);
    }

    fn seen(&self, number: u64) -> Block {
        let holds = |doubt: &Doubt| {
            let place = usize::try_from(number.checked_sub(doubt.first)?).ok()?;
            doubt.blocks.get(place)?.clone().filter(|_| doubt.ended.is_some())
        };
        match self.doubts.iter().rev().find_map(holds) {
            Some(block) => block,
            None => at(&self.durable, number),
        }
    }

    /// Makes these durable, over what was there before.
    fn settle(&mut self, is_durable: impl Fn(&Doubt) -> bool) {
        let mut left: Vec<Doubt> = Vec::new();
        for doubt in std::mem::take(&mut self.doubts) {
            if !is_durable(&doubt) {
                left.push(doubt);
                continue;
            }
            for (number, block) in (doubt.first..).zip(doubt.blocks) {
                let Some(block) = block else { continue };
                self.durable.insert(number, block);
                // What came before is not written behind it.
                for earlier in &mut left {
                    let place = number.checked_sub(earlier.first).map(|place| place as usize);
                    if (earlier.ended.is_some() || earlier.has_failed)
                        && let Some(place) = place.and_then(|place| earlier.blocks.get_mut(place))
                    {
                        *place = None;
                    }
                }
            }
            left.retain(|doubt| doubt.blocks.iter().any(Option::is_some));
        }
        self.doubts = left;
    }
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        let block_status = self.0.borrow().claims_status;
        let read_only = self.0.borrow().is_read_only;
        let features = Features { read_only, discard: true, write_zeroes: true, block_status };
        Geometry {
            bytes: self.0.borrow().bytes,
            block_bytes: self.0.borrow().block_bytes,
            preferred_bytes: BLOCK as u32,
            io_bytes_max: 1 << 20,
            features,
        }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        assert_eq!(self.geometry().check(&io), Ok(()));
        let inner = &mut *self.0.borrow_mut();
        inner.numbers += 1;
        inner.outstanding += 1;
        let number = inner.numbers;
        if io.op.is_write() {
            inner.writes += 1;
            let bytes = match io.op {
                Op::Write => io.data.to_vec(),
                _ => vec![0; io.len as usize],
            };
            let blocks =
                bytes.chunks(BLOCK as usize).map(|block| Some(Block::from(block))).collect();
            let first = io.offset / BLOCK;
            let (ended, has_failed, is_forgotten) = (None, false, false);
            inner.doubts.push(Doubt { number, first, blocks, ended, has_failed, is_forgotten });
        }
        match inner.is_prompt {
            true => inner.execute(number, io),
            false => inner.queue.push((number, io)),
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

    fn events(&self) -> u64 {
        self.0.borrow().losses
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        events.append(&mut self.0.borrow_mut().news);
    }
}
