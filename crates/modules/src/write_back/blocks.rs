//! What was written and is not on the volume below: blocks of 4 KiB, of which some sectors are here.

use std::ops::Range;

use thinwire_buffer::{PAGE_BYTES, Pool, SegList, Segment, Time};

use super::{PAGE, SECTOR};
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
    /// Its neighbours among those that have something to go down.
    newer: u32,
    older: u32,
    /// That have not been handed down as they are now.
    dirty: Sectors,
    /// That are being written below. Those of both are here.
    going: Sectors,
    /// The epoch of the first that is dirty.
    epoch: u64,
    /// When that came.
    since: Time,
}

/// What is to be written below.
pub(super) struct Batch {
    pub start: u64,
    pub data: SegList,
    /// The earliest of its blocks.
    pub epoch: u64,
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
        let most = (bytes / BLOCK_COST_BYTES).clamp(2, u64::from(NONE) / 2) as usize;
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

    /// More than this part of the room, of 4, has something to go down.
    pub fn is_fuller_than(&self, quarters: usize) -> bool {
        self.dirty * 4 > self.most * quarters
    }

    /// Of the oldest that has something to go down: its epoch, and since when.
    pub fn oldest(&self) -> Option<(u64, Time)> {
        let block = self.blocks.get(self.oldest as usize)?;
        Some((block.epoch, block.since))
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
            let block = &mut self.blocks[at as usize];
            let (fresh, was_dirty) = (sectors(page, from, to), block.dirty != 0);
            block.dirty |= fresh;
            if !was_dirty {
                (block.epoch, block.since) = (epoch, now);
                self.enqueue(at);
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
            newer: NONE,
            older: NONE,
            dirty: 0,
            going: 0,
            epoch: 0,
            since: Time::ZERO,
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
        let Block { page, next, dirty, going, .. } = self.blocks[at as usize];
        if dirty | going != 0 {
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
    fn enqueue(&mut self, at: u32) {
        self.dirty += 1;
        let before = std::mem::replace(&mut self.newest, at);
        match before {
            NONE => self.oldest = at,
            before => self.blocks[before as usize].newer = at,
        }
        let block = &mut self.blocks[at as usize];
        (block.older, block.newer) = (before, NONE);
    }

    /// As the oldest.
    fn enqueue_first(&mut self, at: u32) {
        self.dirty += 1;
        let before = std::mem::replace(&mut self.oldest, at);
        match before {
            NONE => self.newest = at,
            before => self.blocks[before as usize].older = at,
        }
        let block = &mut self.blocks[at as usize];
        (block.older, block.newer) = (NONE, before);
    }

    fn dequeue(&mut self, at: u32) {
        self.dirty -= 1;
        let Block { newer, older, .. } = self.blocks[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
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
            let mut bits = (block.dirty | block.going) & sectors(page, start, end);
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
        let mut at = self.oldest;
        for _ in 0..LOOKED_AT_MAX {
            let block = self.blocks.get(at as usize)?;
            let (bits, page) = (block.dirty & !block.going, block.page);
            if bits != 0 {
                let run = first_run(bits);
                let (from, to) = (page * PAGE + run.start * SECTOR, page * PAGE + run.end * SECTOR);
                if is_free(from, to) {
                    return Some(self.take_from(at, from..to, most, is_free));
                }
            }
            at = block.newer;
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
        let mut batch = Batch { start: first.start, data: SegList::new(), epoch: u64::MAX };
        let (mut at, mut run) = (at, first);
        loop {
            self.take(at, run.clone(), &mut batch);
            let next = run.end;
            let Some(behind) = self.find(next / PAGE).filter(|_| next.is_multiple_of(PAGE)) else {
                break;
            };
            let block = &self.blocks[behind as usize];
            let bits = block.dirty & !block.going;
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
        batch.epoch = batch.epoch.min(block.epoch);
        block.dirty &= !bits;
        block.going |= bits;
        if block.dirty == 0 {
            self.dequeue(at);
        }
    }

    /// What went down is there, or it is dirty as before, and older than all else.
    pub fn end(&mut self, start: u64, end: u64, is_there: bool, now: Time) {
        for page in pages(start, end) {
            let at = self.find(page).expect("it is going");
            let block = &mut self.blocks[at as usize];
            let bits = sectors(page, start, end);
            debug_assert!(block.going & bits == bits, "block {page} has not gone");
            block.going &= !bits;
            if !is_there {
                let was_dirty = block.dirty != 0;
                block.dirty |= bits;
                (block.epoch, block.since) = (0, now);
                if was_dirty {
                    self.dequeue(at);
                }
                self.enqueue_first(at);
            }
            self.release_if_clean(at);
        }
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
        let block = &mut self.blocks[at as usize];
        let bits = sectors(block.page, start, end);
        let was_dirty = block.dirty != 0;
        block.dirty &= !bits;
        if was_dirty && block.dirty == 0 {
            self.dequeue(at);
        }
        self.release_if_clean(at);
    }

    /// Gives up all that is not being written. True if there was any.
    pub fn abandon(&mut self) -> bool {
        let had_any = self.oldest != NONE;
        while self.oldest != NONE {
            let at = self.oldest;
            let block = &mut self.blocks[at as usize];
            block.dirty = 0;
            self.dequeue(at);
            self.release_if_clean(at);
        }
        had_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_a_page_are_those_that_a_range_touches() {
        assert_eq!(sectors(0, 0, 4096), 0xff);
        assert_eq!(sectors(1, 0, 1 << 20), 0xff);
        assert_eq!(sectors(1, 4096 + 512, 4096 + 1536), 0b110);
        assert_eq!(sectors(2, 0, 8192 + 512), 1);
        assert_eq!(first_run(0b0110_1100), 2..4);
        assert_eq!(first_run(0xff), 0..8);
    }

    #[test]
    fn what_lies_together_goes_together_and_what_is_going_waits() {
        let pool = Pool::new(0);
        let mut blocks = Blocks::new(1 << 20);
        let put = |blocks: &mut Blocks, start, len, epoch| {
            let data = SegList::of(pool.copy_of(&vec![epoch as u8; len]).freeze());
            blocks.put(start, &data, epoch, Time(epoch));
        };
        put(&mut blocks, 8192, 4096, 1);
        put(&mut blocks, 512, 1024, 2);
        put(&mut blocks, 12288, 2048, 3);
        assert_eq!((blocks.oldest(), blocks.used_bytes()), (Some((1, Time(1))), 12288));
        let all = |_, _| true;
        let batch = blocks.take_oldest(1 << 20, all).unwrap();
        assert_eq!((batch.start, batch.data.bytes(), batch.epoch), (8192, 6144, 1));
        // Written again meanwhile, in other memory.
        put(&mut blocks, 8192, 512, 4);
        assert_eq!(batch.data.to_vec()[..4096], [1; 4096]);
        let next = blocks.take_oldest(1 << 20, all).unwrap();
        assert_eq!((next.start, next.data.to_vec()), (512, vec![2; 1024]));
        assert!(blocks.take_oldest(1 << 20, all).is_none(), "the rest is going");
        blocks.end(8192, 8192 + 6144, true, Time(9));
        assert_eq!(blocks.used_bytes(), 8192, "one is dirty again, one is going");
        // What has failed is the oldest of all.
        blocks.end(512, 1536, false, Time(9));
        assert_eq!(blocks.oldest(), Some((0, Time(9))));
        assert!(blocks.take_oldest(1 << 20, |start, _| start > 4096).unwrap().start == 8192);
        blocks.drop_range(0, 1024);
        let left = blocks.take_oldest(1 << 20, all).unwrap();
        assert_eq!((left.start, left.data.bytes()), (1024, 512));
        blocks.end(1024, 1536, true, Time(9));
        blocks.end(8192, 8704, true, Time(9));
        assert!(blocks.is_empty() && blocks.oldest().is_none());
    }

    #[test]
    fn of_many_on_one_place_few_are_taken() {
        let mut blocks = Blocks::new(1 << 20);
        let place = blocks.place(0);
        let same: Vec<u64> =
            (0..).filter(|page| blocks.place(*page) == place).take(CHAIN_MAX + 1).collect();
        let data = SegList::of(Pool::new(0).get_zeroed(PAGE_BYTES).freeze());
        for page in &same[..CHAIN_MAX] {
            assert_eq!(blocks.has_room(page * PAGE, (page + 1) * PAGE), Some(true));
            blocks.put(page * PAGE, &data, 1, Time(0));
        }
        let page = same[CHAIN_MAX];
        assert_eq!(blocks.has_room(page * PAGE, (page + 1) * PAGE), None);
    }
}
