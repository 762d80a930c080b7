//! What was written and is not on the volume below: blocks of 4 KiB, of which some sectors are here.

#[cfg(test)]
mod tests;

use std::ops::Range;

use thinwire_buffer::{PAGE_BYTES, Pool, SegList, Segment, Time};

use super::{PAGE, SECTOR, WriteBackCanary};
use crate::cache::Cursor;

/// What a block takes: itself, and what is kept about it here, in the pool and by the allocator.
const BLOCK_COST_BYTES: u64 = PAGE + 256;

/// How many blocks may fall on one place of the index: users choose their numbers.
const CHAIN_MAX: usize = 16;

/// Of the oldest so many are looked at for one that can go down.
const LOOKED_AT_MAX: usize = 128;

/// No block.
const NONE: u32 = u32::MAX;

/// Sectors of a block, a bit for each.
type Sectors = u8;

struct Block {
    page: u64,
    /// None of one that is free.
    memory: Option<Segment>,
    /// The next on its place of the index; or the next that is free.
    next: u32,
    /// That have not been handed down as they are now: those of the one half have been so for longer. There are two, so that
    /// what is written later does not hold up a flush that covers only what was there first.
    halves: [Half; 2],
    /// That are being written below. Those of all are here.
    going: Sectors,
}

/// Sectors of a block that are to go down, each in one half only.
#[derive(Clone, Copy)]
struct Half {
    bits: Sectors,
    /// The epoch of the first of them.
    epoch: u64,
    /// When that came.
    since: Time,
    /// Its neighbours among halves that have something to go down, whose epochs rise. Halves are numbered: two for each block.
    newer: u32,
    older: u32,
}

impl Half {
    const EMPTY: Half = Half { bits: 0, epoch: 0, since: Time::ZERO, newer: NONE, older: NONE };
}

impl Block {
    fn dirty(&self) -> Sectors {
        self.halves[0].bits | self.halves[1].bits
    }

    /// The half for which this says so.
    fn half(&self, fits: impl Fn(&Half) -> bool) -> Option<usize> {
        self.halves.iter().position(fits)
    }
}

/// What is to be written below.
pub(super) struct Batch {
    pub start: u64,
    pub data: SegList,
    /// The earliest of its blocks.
    pub epoch: u64,
    /// When the first of it came.
    pub since: Time,
}

pub(super) struct Blocks {
    blocks: Vec<Block>,
    free: u32,
    /// By the hash of the page, the first of them, and one more.
    index: Box<[u32]>,
    newest: u32,
    oldest: u32,
    /// Those that are here, at most, and now.
    most: usize,
    count: usize,
    /// Of these, those that have something to go down.
    dirty: usize,
    pool: Pool,
    pub canary: WriteBackCanary,
}

/// The sectors of a page that a range of bytes touches.
fn sectors(page: u64, start: u64, end: u64) -> Sectors {
    let first = start.max(page * PAGE) - page * PAGE;
    let last = end.min((page + 1) * PAGE) - page * PAGE;
    let mask = |count: u64| ((1u32 << count) - 1) as Sectors;
    mask(last / SECTOR) & !mask(first / SECTOR)
}

/// The first run of bits, as sectors.
fn first_run(bits: Sectors) -> Range<u64> {
    let first = bits.trailing_zeros();
    let len = (bits >> first).trailing_ones();
    u64::from(first)..u64::from(first + len)
}

fn pages(start: u64, end: u64) -> Range<u64> {
    start / PAGE..end.div_ceil(PAGE)
}

impl Blocks {
    /// In so many bytes of memory at most, but for those that are being written below while they are written here: these
    /// are there twice.
    pub fn new(bytes: u64) -> Self {
        let most = (bytes / BLOCK_COST_BYTES).clamp(2, u64::from(NONE) / 4) as usize;
        Blocks {
            // Taken from the machine as it is used.
            blocks: Vec::with_capacity(most),
            free: NONE,
            index: vec![0; most.next_power_of_two()].into(),
            newest: NONE,
            oldest: NONE,
            most,
            count: 0,
            dirty: 0,
            pool: Pool::new(most * PAGE_BYTES),
            canary: WriteBackCanary::None,
        }
    }

    /// Room for blocks, in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.most as u64 * PAGE
    }

    /// Blocks that are not all below, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.count as u64 * PAGE
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What they take of memory now, in bytes, with what others still read.
    #[cfg(test)]
    pub fn memory(&self) -> u64 {
        self.pool.stats().live_bytes as u64 + self.count as u64 * (BLOCK_COST_BYTES - PAGE)
    }

    /// More than this part of the room, of 4, has something to go down.
    pub fn is_fuller_than(&self, quarters: usize) -> bool {
        self.dirty * 4 > self.most * quarters
    }

    /// Of the oldest that has something to go down: its epoch, and since when.
    pub fn oldest(&self) -> Option<(u64, Time)> {
        let half = self.half(self.oldest)?;
        Some((half.epoch, half.since))
    }

    fn half(&self, number: u32) -> Option<&Half> {
        let block = self.blocks.get(number as usize / 2)?;
        Some(&block.halves[number as usize % 2])
    }

    fn half_mut(&mut self, number: u32) -> &mut Half {
        &mut self.blocks[number as usize / 2].halves[number as usize % 2]
    }

    fn place(&self, page: u64) -> usize {
        let mixed = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32) as usize >> 8 & (self.index.len() - 1)
    }

    #[inline]
    fn find(&self, page: u64) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let mut at = self.index[self.place(page)];
        while at != 0 {
            let block = &self.blocks[at as usize - 1];
            if block.page == page {
                return Some(at - 1);
            }
            at = block.next;
        }
        None
    }

    fn chain_len(&self, page: u64) -> usize {
        let mut at = self.index[self.place(page)];
        let mut len = 0;
        while at != 0 {
            at = self.blocks[at as usize - 1].next;
            len += 1;
        }
        len
    }

    /// Whether there is room for all blocks of a range that are not here; `None` if there never will be.
    pub fn has_room(&self, start: u64, end: u64) -> Option<bool> {
        let mut lacking = 0;
        for page in pages(start, end) {
            if self.find(page).is_none() {
                lacking += 1;
                if self.chain_len(page) >= CHAIN_MAX {
                    return None;
                }
            }
        }
        Some(self.count + lacking <= self.most)
    }

    /// Takes what is written, for which there is room.
    pub fn put(&mut self, start: u64, data: &SegList, epoch: u64, now: Time) {
        let mut bytes = Cursor::new(data);
        let end = start + data.bytes() as u64;
        for page in pages(start, end) {
            let at = self.find(page).unwrap_or_else(|| self.insert(page));
            let (from, to) = (start.max(page * PAGE), end.min((page + 1) * PAGE));
            let range = (from - page * PAGE) as usize..(to - page * PAGE) as usize;
            bytes.copy_to(&mut self.writable(at)[range]);
            self.mark(at, sectors(page, from, to), epoch, now);
        }
    }

    /// Sectors that were written in this epoch, which is the latest, are to go down: those that were so anyway when they would have.
    fn mark(&mut self, at: u32, fresh: Sectors, epoch: u64, now: Time) {
        let block = &mut self.blocks[at as usize];
        if self.canary == WriteBackCanary::EpochOverwritten {
            block.halves.iter_mut().for_each(|half| half.epoch = epoch);
        }
        let fresh = fresh & !block.dirty();
        if fresh == 0 {
            return;
        }
        let is_later = usize::from(block.halves[0].epoch < block.halves[1].epoch);
        let half = block.half(|half| half.bits != 0 && half.epoch == epoch);
        let half = half.or(block.half(|half| half.bits == 0)).unwrap_or(is_later);
        let of = &mut block.halves[half];
        let is_new = of.bits == 0;
        of.bits |= fresh;
        if is_new {
            (of.epoch, of.since) = (epoch, now);
            self.enqueue(2 * at + half as u32);
        }
    }

    /// Sectors are not to go down any more, or are on their way.
    fn clear(&mut self, at: u32, bits: Sectors) {
        for number in [2 * at, 2 * at + 1] {
            let half = self.half_mut(number);
            let was_dirty = half.bits != 0;
            half.bits &= !bits;
            if was_dirty && half.bits == 0 {
                self.dequeue(number);
            }
        }
    }

    /// The memory of a block, for its bytes to be changed; another if somebody still reads this one.
    fn writable(&mut self, at: u32) -> &mut [u8] {
        let memory = self.blocks[at as usize].memory.as_mut().expect("it is here");
        if memory.try_make_mut().is_none() {
            let mut copy = self.pool.get_loose();
            copy.copy_from_slice(memory);
            *memory = copy.freeze();
        }
        memory.try_make_mut().expect("nobody else has it")
    }

    fn insert(&mut self, page: u64) -> u32 {
        let place = self.place(page);
        let block = Block {
            page,
            memory: Some(self.pool.get_loose().freeze()),
            next: self.index[place],
            halves: [Half::EMPTY; 2],
            going: 0,
        };
        let at = match self.free {
            NONE => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
            at => {
                self.free = self.blocks[at as usize].next;
                self.blocks[at as usize] = block;
                at
            }
        };
        self.index[place] = at + 1;
        self.count += 1;
        at
    }

    /// It is let go of if all of it is below.
    fn release_if_clean(&mut self, at: u32) {
        let block = &self.blocks[at as usize];
        let (page, next) = (block.page, block.next);
        if block.dirty() | block.going != 0 {
            return;
        }
        let place = self.place(page);
        let mut other = self.index[place];
        if other == at + 1 {
            self.index[place] = next;
        } else {
            while self.blocks[other as usize - 1].next != at + 1 {
                other = self.blocks[other as usize - 1].next;
            }
            self.blocks[other as usize - 1].next = next;
        }
        let block = &mut self.blocks[at as usize];
        (block.memory, block.next) = (None, self.free);
        self.free = at;
        self.count -= 1;
    }

    /// As the newest of those that have something to go down.
    fn enqueue(&mut self, number: u32) {
        self.count_dirty(number, 1);
        let before = std::mem::replace(&mut self.newest, number);
        match before {
            NONE => self.oldest = number,
            before => self.half_mut(before).newer = number,
        }
        let half = self.half_mut(number);
        (half.older, half.newer) = (before, NONE);
    }

    /// As the oldest.
    fn enqueue_first(&mut self, number: u32) {
        self.count_dirty(number, 1);
        let before = std::mem::replace(&mut self.oldest, number);
        match before {
            NONE => self.newest = number,
            before => self.half_mut(before).older = number,
        }
        let half = self.half_mut(number);
        (half.older, half.newer) = (NONE, before);
    }

    fn dequeue(&mut self, number: u32) {
        self.count_dirty(number, -1);
        let Half { newer, older, .. } = *self.half_mut(number);
        match newer {
            NONE => self.newest = older,
            newer => self.half_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.half_mut(older).newer = newer,
        }
    }

    /// A half comes or goes: with it its block, if the other one is empty.
    fn count_dirty(&mut self, number: u32, by: isize) {
        if self.half(number ^ 1).is_some_and(|other| other.bits == 0) {
            self.dirty = self.dirty.wrapping_add_signed(by);
        }
    }

    /// The stretches of a range whose bytes are here, in order; neighbours may touch.
    pub fn stretches(&self, start: u64, end: u64, mut each: impl FnMut(u64, &[u8])) {
        if self.count == 0 {
            return;
        }
        for page in pages(start, end) {
            let Some(at) = self.find(page) else { continue };
            let block = &self.blocks[at as usize];
            let going = match self.canary {
                WriteBackCanary::GoingNotRead => 0,
                _ => block.going,
            };
            let mut bits = (block.dirty() | going) & sectors(page, start, end);
            while bits != 0 {
                let run = first_run(bits);
                let memory = block.memory.as_ref().expect("it is here");
                let bytes = (run.start * SECTOR) as usize..(run.end * SECTOR) as usize;
                each(page * PAGE + run.start * SECTOR, &memory[bytes]);
                bits &= !sectors(page, page * PAGE, page * PAGE + run.end * SECTOR);
            }
        }
    }

    /// The oldest that can go down, with what follows it right behind, up to so many bytes. `is_free`: nothing holds up this
    /// range. They count as going from then on.
    pub fn take_oldest(&mut self, most: u64, is_free: impl Fn(u64, u64) -> bool) -> Option<Batch> {
        let mut number = self.oldest;
        for _ in 0..LOOKED_AT_MAX {
            let half = self.half(number)?;
            let block = &self.blocks[number as usize / 2];
            let bits = half.bits & !block.going;
            if bits != 0 {
                // With what lies behind it of the other half.
                let first = u64::from(bits.trailing_zeros());
                let all = (block.dirty() & !block.going) >> first;
                let start = block.page * PAGE + first * SECTOR;
                let run = start..start + u64::from(all.trailing_ones()) * SECTOR;
                if is_free(run.start, run.end) {
                    return Some(self.take_from(number / 2, run, most, is_free));
                }
            }
            number = half.newer;
        }
        None
    }

    fn take_from(
        &mut self,
        at: u32,
        first: Range<u64>,
        most: u64,
        is_free: impl Fn(u64, u64) -> bool,
    ) -> Batch {
        let (start, data) = (first.start, SegList::new());
        let mut batch = Batch { start, data, epoch: u64::MAX, since: Time::NEVER };
        let (mut at, mut run) = (at, first);
        loop {
            self.take(at, run.clone(), &mut batch);
            let next = run.end;
            let Some(behind) = self.find(next / PAGE).filter(|_| next.is_multiple_of(PAGE)) else {
                break;
            };
            let block = &self.blocks[behind as usize];
            let bits = block.dirty() & !block.going;
            // From its first sector on.
            let end = next + u64::from(bits.trailing_ones()) * SECTOR;
            let fits = end - batch.start <= most;
            if end == next || !fits || !is_free(next, end) {
                break;
            }
            (at, run) = (behind, next..end);
        }
        batch
    }

    fn take(&mut self, at: u32, run: Range<u64>, batch: &mut Batch) {
        let block = &mut self.blocks[at as usize];
        let bits = sectors(block.page, run.start, run.end);
        let memory = block.memory.as_ref().expect("it is here");
        let from = (run.start - block.page * PAGE) as usize;
        batch.data.push(memory.slice(from, (run.end - run.start) as usize));
        for half in block.halves.iter().filter(|half| half.bits & bits != 0) {
            batch.epoch = batch.epoch.min(half.epoch);
            batch.since = batch.since.min(half.since);
        }
        block.going |= bits;
        self.clear(at, bits);
    }

    /// What went down is there, or it is dirty as before, since then, and older than all else.
    pub fn end(&mut self, start: u64, end: u64, is_there: bool, since: Time) {
        for page in pages(start, end) {
            let at = self.find(page).expect("it is going");
            let block = &mut self.blocks[at as usize];
            let bits = sectors(page, start, end);
            debug_assert!(block.going & bits == bits, "block {page} has not gone");
            block.going &= !bits;
            if !is_there {
                self.put_back(at, bits, since);
            } else if self.canary == WriteBackCanary::OverwrittenForgotten {
                self.clear(at, bits);
            }
            self.release_if_clean(at);
        }
    }

    /// Sectors that could not go down are the oldest of all, with what was written over them meanwhile.
    fn put_back(&mut self, at: u32, bits: Sectors, since: Time) {
        self.clear(at, bits);
        let block = &self.blocks[at as usize];
        let is_later = usize::from(block.halves[0].epoch < block.halves[1].epoch);
        // The other one is for what is written next.
        let half = block.half(|half| half.bits != 0 && half.epoch == 0);
        let half = half.or(block.half(|half| half.bits == 0)).unwrap_or(1 - is_later);
        let number = 2 * at + half as u32;
        let mut since = since;
        if block.halves[half].bits != 0 {
            since = since.min(block.halves[half].since);
            self.dequeue(number);
        }
        // Who looks at the oldest sees what has waited longest.
        let since = self.oldest().map_or(since, |(_, oldest)| since.min(oldest));
        let of = self.half_mut(number);
        (of.bits, of.epoch, of.since) = (of.bits | bits, 0, since);
        self.enqueue_first(number);
    }

    /// Some of a range that has something to go down, up to where the next does not; none if nothing of it has.
    pub fn dirty_run(&self, start: u64, end: u64) -> Option<Range<u64>> {
        let of = |at: u32| {
            let block = &self.blocks[at as usize];
            let in_it = block.page * PAGE < end && start < (block.page + 1) * PAGE;
            let bits = if in_it { block.dirty() & sectors(block.page, start, end) } else { 0 };
            (bits != 0).then(|| (block.page, first_run(bits)))
        };
        let (page, run) = match (end - start) / PAGE > self.blocks.len() as u64 {
            true => (0..self.blocks.len() as u32).find_map(of),
            false => pages(start, end).find_map(|page| of(self.find(page)?)),
        }?;
        let (from, mut to) = (page * PAGE + run.start * SECTOR, page * PAGE + run.end * SECTOR);
        // With what follows it right behind.
        while to < end && to.is_multiple_of(PAGE) {
            let Some((_, run)) = self.find(to / PAGE).and_then(of) else { break };
            if run.start > 0 {
                break;
            }
            to += run.end * SECTOR;
        }
        Some(from..to)
    }

    /// Nothing of a range is here any more but what is going: other bytes are below by now.
    pub fn drop_range(&mut self, start: u64, end: u64) {
        // Of what has more blocks than are here, those that are.
        if (end - start) / PAGE > self.blocks.len() as u64 {
            for at in 0..self.blocks.len() as u32 {
                let Block { page, ref memory, .. } = self.blocks[at as usize];
                if memory.is_some() && page * PAGE < end && start < (page + 1) * PAGE {
                    self.drop_sectors(at, start, end);
                }
            }
        } else {
            for page in pages(start, end) {
                if let Some(at) = self.find(page) {
                    self.drop_sectors(at, start, end);
                }
            }
        }
    }

    fn drop_sectors(&mut self, at: u32, start: u64, end: u64) {
        let bits = sectors(self.blocks[at as usize].page, start, end);
        self.clear(at, bits);
        self.release_if_clean(at);
    }

    /// Gives up all that is not being written. True if there was any.
    pub fn abandon(&mut self) -> bool {
        let had_any = self.oldest != NONE;
        while self.oldest != NONE {
            let at = self.oldest / 2;
            self.clear(at, Sectors::MAX);
            self.release_if_clean(at);
        }
        had_any
    }
}
