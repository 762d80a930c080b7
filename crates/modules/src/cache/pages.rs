//! The pages of a cache: which are there, and which goes when another comes.
//!
//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): what comes enters a small
//! queue, a tenth of all; what has been read twice more when it is the oldest there moves to the main queue, the
//! rest goes, and is remembered by its number alone ([`Ghost`]): if it comes again, it enters the main
//! queue at once. The oldest of the main queue begins anew as often as it was read, three times at most. So what is
//! read once, as by a copy of everything, pushes out nothing that is read again and again; and a hit
//! moves nothing.
//!
//! Nothing here takes time with the size of the whole. Page numbers come from users of the volume, who may choose
//! them so that many fall on one place of the index: then few of them are kept. What is dropped in one go,
//! by a discard of everything or a failed flush, is dropped by regions, whose pages go one by one later.

#[cfg(test)]
mod tests;

use std::hint::black_box;
use std::ops::Range;

use thinwire_buffer::{Buf, PAGE_BYTES, Pool, Segment};

use super::PAGE;
use super::ghost::Ghost;

/// What a page takes: itself, and what is kept about it here, in the pool and by the allocator.
const PAGE_COST_BYTES: u64 = PAGE + 256;

/// One page in so many is memory for copies: of pages that are changed while somebody still reads them.
const COPIES: usize = 32;

/// How many pages may fall on one place of the index. Of a million by chance no ten do.
const CHAIN_MAX: usize = 16;

/// How many pages get another chance for one that comes, at most: if none of these goes, that is not kept.
const CHANCES_MAX: usize = 64;

/// A page counts as read so often at most.
const READS_MAX: u8 = 3;
/// Read so often, the oldest of the small queue moves to the main one.
const CHANCE_READS: u8 = 2;

/// Pages of the volume that are dropped in one go: 256 KiB.
const REGION_PAGES: u64 = 64;
/// Regions are told apart by their number modulo this, at least and at most: else it is one for each page that may be
/// here. From 256 MiB on a cache has one for each 256 KiB of 16 GiB, and a drop takes a step for each at most.
const REGIONS_MIN: usize = 1 << 10;
const REGIONS_MAX: usize = 1 << 16;

/// No entry.
const NONE: u32 = u32::MAX;

/// A page that is here.
struct Entry {
    page: u64,
    /// None of an entry that is free.
    memory: Option<Segment>,
    /// The next on its place of the index, as that has it; or the next that is free.
    next: u32,
    /// Its neighbours in its queue.
    newer: u32,
    older: u32,
    /// That of its region when it came: if that is another now, or older than all, it counts as gone.
    epoch: u64,
    is_main: bool,
    /// It was read ahead, and nobody has asked for it yet.
    is_ahead: bool,
    reads: u8,
}

/// In the order in which they came.
struct Queue {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Queue {
    const fn new() -> Self {
        Queue { newest: NONE, oldest: NONE, len: 0 }
    }
}

#[derive(Clone, Copy, Default)]
struct Region {
    /// When it was dropped last, by itself or, if it has been used since, with all.
    epoch: u64,
    /// Pages that are here and count, unless all were dropped later than that.
    pages: u32,
}

pub(super) struct Pages {
    bytes_max: u64,
    entries: Vec<Entry>,
    free: u32,
    /// By the hash of the page, the first of them, and one more.
    index: Box<[u32]>,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    /// Entries, at most, and those in the small queue.
    most: usize,
    small_most: usize,
    /// Memory of pages, in bytes, at most.
    memory_most: usize,
    regions: Box<[Region]>,
    /// Counts drops of regions and of all.
    drops: u64,
    /// What came before this drop is gone.
    epoch: u64,
    /// How often somebody first asked for what was read ahead.
    first_uses: u64,
    used: u64,
    /// Holds the memory of all pages, those included that are gone and that somebody still reads.
    pool: Pool,
}

#[inline]
fn hash(page: u64) -> u64 {
    let mixed = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

/// A range of pages: those before its first whole region, the regions, and the pages behind the last. Less than two
/// regions of pages are in none.
fn parts(pages: Range<u64>) -> [Range<u64>; 3] {
    let Range { start, end } = pages;
    let (first, last) = (start.div_ceil(REGION_PAGES), end / REGION_PAGES);
    match first < last {
        true => [start..first * REGION_PAGES, first..last, last * REGION_PAGES..end],
        false => [start..end, 0..0, end..end],
    }
}

impl Pages {
    /// In so many bytes of memory at most.
    pub fn new(bytes_max: u64) -> Self {
        let count = (bytes_max / PAGE_COST_BYTES).clamp(2, u64::from(NONE) / 2) as usize;
        let most = count - count.div_ceil(COPIES);
        let regions = most.next_power_of_two().clamp(REGIONS_MIN, REGIONS_MAX);
        Pages {
            bytes_max,
            // Room for all of them, which is taken from the machine as it is used.
            entries: Vec::with_capacity(most),
            free: NONE,
            index: vec![0; most.next_power_of_two()].into(),
            small: Queue::new(),
            main: Queue::new(),
            ghost: Ghost::new(most as u32),
            most,
            small_most: most.div_ceil(10),
            regions: vec![Region::default(); regions].into(),
            drops: 0,
            epoch: 0,
            first_uses: 0,
            used: 0,
            memory_most: count * PAGE_BYTES,
            pool: Pool::new(count * PAGE_BYTES),
        }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// What its memory is, for tests.
    #[cfg(test)]
    pub fn pool_stats(&self) -> thinwire_buffer::PoolStats {
        self.pool.stats()
    }

    /// What has come and not been read again, in bytes, at most.
    pub fn small_bytes(&self) -> u64 {
        self.small_most as u64 * PAGE
    }

    /// Content that is here, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used * PAGE
    }

    #[inline]
    fn place(&self, page: u64) -> usize {
        // The upper bits of the product are the mixed ones.
        (hash(page) >> 24) as usize & (self.index.len() - 1)
    }

    /// Loads where the index says what is known of a page.
    #[inline]
    pub fn touch_index(&self, page: u64) {
        black_box(self.index[self.place(page)]);
    }

    /// Loads what giving the page away will change.
    #[inline]
    pub fn touch(&self, page: u64) {
        if let Some(at) = self.find(page)
            && let Some(memory) = &self.entries[at as usize].memory
        {
            memory.touch();
        }
    }

    /// Where the page is, if it is here.
    #[inline]
    pub fn find(&self, page: u64) -> Option<u32> {
        let at = self.find_any(page)?;
        self.counts(&self.entries[at as usize]).then_some(at)
    }

    /// As [`Pages::find`], also if it counts as gone.
    #[inline]
    fn find_any(&self, page: u64) -> Option<u32> {
        let mut at = self.index[self.place(page)];
        while at != 0 {
            let entry = &self.entries[at as usize - 1];
            if entry.page == page {
                return Some(at - 1);
            }
            at = entry.next;
        }
        None
    }

    #[inline]
    fn region_of(&self, page: u64) -> usize {
        (page / REGION_PAGES) as usize & (self.regions.len() - 1)
    }

    /// The region of a page as it is now: nothing is in it if all were dropped since.
    fn region(&mut self, at: usize) -> &mut Region {
        let region = &mut self.regions[at];
        if region.epoch < self.epoch {
            *region = Region { epoch: self.epoch, pages: 0 };
        }
        region
    }

    fn counts(&self, entry: &Entry) -> bool {
        entry.epoch >= self.epoch && self.regions[self.region_of(entry.page)].epoch == entry.epoch
    }

    /// How often somebody has first asked for a page that was read ahead.
    pub fn first_uses(&self) -> u64 {
        self.first_uses
    }

    /// The page found at `at`, for somebody who reads it.
    #[inline]
    pub fn give(&mut self, at: u32) -> &Segment {
        let entry = &mut self.entries[at as usize];
        if entry.is_ahead {
            // As if it had come only now: where it would be then, it will be when it is the oldest.
            entry.is_ahead = false;
            entry.reads = if self.ghost.remove(hash(entry.page)) { CHANCE_READS } else { 0 };
            self.first_uses += 1;
        } else {
            entry.reads = (entry.reads + 1).min(READS_MAX);
        }
        entry.memory.as_ref().expect("it is here")
    }

    /// Whether one of the pages that a range of bytes touches is here.
    pub fn has_any(&self, start: u64, end: u64) -> bool {
        self.used > 0 && (start / PAGE..end.div_ceil(PAGE)).any(|page| self.find(page).is_some())
    }

    /// Keeps a page, filled by `fill`. False if it is here already, or there is no place for it. One that was read
    /// ahead has yet to be asked for: until then it is nothing that was read once.
    pub fn insert(&mut self, page: u64, is_ahead: bool, fill: impl FnOnce(&mut [u8])) -> bool {
        if let Some(at) = self.find_any(page) {
            if self.counts(&self.entries[at as usize]) {
                return false;
            }
            self.release(at);
        }
        if self.chain_len(page) >= CHAIN_MAX {
            return false;
        }
        if self.small.len + self.main.len >= self.most && !self.evict() {
            return false;
        }
        let Some(mut memory) = self.find_room() else { return false };
        fill(&mut memory);
        let is_main = !is_ahead && self.ghost.remove(hash(page));
        let place = self.place(page);
        let region = self.region(self.region_of(page));
        region.pages += 1;
        let epoch = region.epoch;
        self.used += 1;
        let entry = Entry {
            page,
            memory: Some(memory.freeze()),
            next: self.index[place],
            newer: NONE,
            older: NONE,
            epoch,
            is_main,
            is_ahead,
            reads: 0,
        };
        let at = match self.free {
            NONE => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            at => {
                self.free = self.entries[at as usize].next;
                self.entries[at as usize] = entry;
                at
            }
        };
        self.index[place] = at + 1;
        self.enqueue(at);
        true
    }

    fn chain_len(&self, page: u64) -> usize {
        let mut at = self.index[self.place(page)];
        let mut len = 0;
        while at != 0 {
            at = self.entries[at as usize - 1].next;
            len += 1;
        }
        len
    }

    /// Memory for a page; none while others read so many that are gone that there would be too much of it.
    fn new_page(&self) -> Option<Buf> {
        let has_room = self.pool.stats().live_bytes + PAGE_BYTES <= self.memory_most;
        has_room.then(|| self.pool.get_loose())
    }

    /// Memory for a page. Others may read so many that were let go of that some of those here have to go, too;
    /// of which some may be read as well.
    fn find_room(&mut self) -> Option<Buf> {
        for _ in 0..CHANCES_MAX {
            let memory = self.new_page();
            if memory.is_some() || !self.evict() {
                return memory;
            }
        }
        None
    }

    /// Changes a page that is here; if somebody reads it, a copy takes its place. False if it is not here, or
    /// is not any more, since there was no memory for a copy.
    pub fn change(&mut self, page: u64, change: impl FnOnce(&mut [u8])) -> bool {
        let Some(at) = self.find(page) else { return false };
        let memory = self.entries[at as usize].memory.as_mut().expect("it is here");
        if let Some(bytes) = memory.try_make_mut() {
            change(bytes);
            return true;
        }
        let Some(mut copy) = self.new_page() else {
            self.release(at);
            return false;
        };
        let memory = self.entries[at as usize].memory.as_mut().expect("it is here");
        copy.copy_from_slice(memory);
        change(&mut copy);
        *memory = copy.freeze();
        true
    }

    /// These pages are not here any more.
    pub fn drop_range(&mut self, pages: Range<u64>) {
        if self.used == 0 {
            return;
        }
        let [before, regions, behind] = parts(pages);
        self.drop_each(before);
        self.drop_each(behind);
        let count = self.regions.len();
        match regions.end - regions.start >= count as u64 {
            true => self.drop_all(),
            false => regions.for_each(|region| self.drop_region(region as usize & (count - 1))),
        }
    }

    /// Nothing is here any more.
    pub fn drop_all(&mut self) {
        self.drops += 1;
        (self.epoch, self.used) = (self.drops, 0);
    }

    fn drop_region(&mut self, at: usize) {
        let pages = std::mem::take(&mut self.region(at).pages);
        if pages > 0 {
            self.drops += 1;
            self.regions[at].epoch = self.drops;
            self.used -= u64::from(pages);
        }
    }

    /// Of one region or two: a few.
    fn drop_each(&mut self, pages: Range<u64>) {
        for page in pages {
            if let Some(at) = self.find(page) {
                self.release(at);
            }
        }
    }

    /// Makes room for one, if it can: the oldest that has no chance left goes, what counts as gone before all
    /// others.
    fn evict(&mut self) -> bool {
        if self.small.len + self.main.len == 0 {
            return false;
        }
        for _ in 0..CHANCES_MAX {
            let is_gone = |queue: &Queue| {
                queue.oldest != NONE && !self.counts(&self.entries[queue.oldest as usize])
            };
            let from_small = self.small.len > self.small_most || self.main.len == 0;
            let (at, is_gone) = match (is_gone(&self.main), is_gone(&self.small)) {
                (true, _) => (self.main.oldest, true),
                (_, true) => (self.small.oldest, true),
                _ if from_small => (self.small.oldest, false),
                _ => (self.main.oldest, false),
            };
            let Entry { page, is_main, is_ahead, reads, .. } = self.entries[at as usize];
            let chances = if is_main { reads } else { reads.saturating_sub(CHANCE_READS - 1) };
            if is_gone || chances == 0 {
                if !is_gone && !is_main && !is_ahead {
                    self.ghost.insert(hash(page));
                }
                self.release(at);
                return true;
            }
            self.dequeue(at);
            let entry = &mut self.entries[at as usize];
            (entry.reads, entry.is_main) = (if is_main { reads - 1 } else { 0 }, true);
            self.enqueue(at);
        }
        false
    }

    /// An entry becomes free.
    fn release(&mut self, at: u32) {
        self.dequeue(at);
        let (page, next) = (self.entries[at as usize].page, self.entries[at as usize].next);
        let place = self.place(page);
        let mut other = self.index[place];
        if other == at + 1 {
            self.index[place] = next;
        } else {
            while self.entries[other as usize - 1].next != at + 1 {
                other = self.entries[other as usize - 1].next;
            }
            self.entries[other as usize - 1].next = next;
        }
        if self.counts(&self.entries[at as usize]) {
            let region = self.region_of(page);
            self.regions[region].pages -= 1;
            self.used -= 1;
        }
        let entry = &mut self.entries[at as usize];
        entry.memory = None;
        entry.next = self.free;
        self.free = at;
    }

    fn enqueue(&mut self, at: u32) {
        let is_main = self.entries[at as usize].is_main;
        let queue = if is_main { &mut self.main } else { &mut self.small };
        queue.len += 1;
        let before = std::mem::replace(&mut queue.newest, at);
        match before {
            NONE => queue.oldest = at,
            before => self.entries[before as usize].newer = at,
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (before, NONE);
    }

    fn dequeue(&mut self, at: u32) {
        let Entry { newer, older, is_main, .. } = self.entries[at as usize];
        let queue = if is_main { &mut self.main } else { &mut self.small };
        queue.len -= 1;
        match newer {
            NONE => queue.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        let queue = if is_main { &mut self.main } else { &mut self.small };
        match older {
            NONE => queue.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }
}
