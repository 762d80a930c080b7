//! A sparse volume in memory. Reads hand out the store's own pages; writes replace pages that
//! somebody still reads.

use std::collections::VecDeque;

use thinwire_buffer::{PAGE_BYTES, Pool, SegList, Segment};

use super::{EXTENTS_MAX, IO_BYTES_MAX, push_extent};
use crate::{
    Completion, ErrorKind, Extent, Features, Geometry, Identity, Io, Op, Volume, WriterRecord,
};

/// Pages in a leaf of the page table: 2 MiB of content.
const LEAF_PAGES: usize = 512;
const LEAF_BYTES: u64 = (LEAF_PAGES * PAGE_BYTES) as u64;

const PAGE: u64 = PAGE_BYTES as u64;

/// So many I/Os come in a turn before a list of them must grow.
const IOS_USUAL: usize = 64;

/// Bytes of writes that wait to be done together: as many pages as are worth to be waited for at once, and no
/// more of whose memory they are.
const WRITES_TOGETHER: u64 = 16 * PAGE;

/// Pages, or leaves without any, that one block status looks at: whoever wants to know more asks again.
const LOOKS_MAX: usize = 1024;

/// Pages that one poll lets go of: each gives memory back, and a discard may be of all there are.
const FREED_PER_POLL: usize = 1024;
/// And a write that takes new memory: more than it takes, which is a page and perhaps a leaf.
const FREED_PER_PAGE: usize = LEAF_WEIGHT + 2;
/// A leaf itself is worth so many pages.
const LEAF_WEIGHT: usize = size_of::<[Option<Segment>; LEAF_PAGES]>().div_ceil(PAGE_BYTES);

type Leaf = Box<[Option<Segment>; LEAF_PAGES]>;

/// A volume in memory, of pages of 4 KiB that exist once they are written.
///
/// A read costs no copy: its completion shares the pages. A write costs one copy, into the page if
/// nobody shares it, else into a fresh one, so that bytes that were read never change under whoever
/// still sends them. Durability ends with the process, so a flush has nothing to do; the
/// incarnation given to [`MemoryStore::new`] must be another in every life of the process.
///
/// Allocates when a page or a leaf (2 MiB of content) is first touched, not when either is
/// written again. What is zeroed or discarded reads so at once; its memory goes back a little with each
/// later poll, and faster than writes take new memory, so that there is never more than the volume is
/// long. A store that nobody polls keeps the rest.
pub struct MemoryStore {
    geometry: Geometry,
    identity: Identity,
    leaves: Vec<Option<Leaf>>,
    /// Leaves that were zeroed whole, and are let go of a few pages at a time.
    gone: VecDeque<Leaf>,
    /// Of the first of them, those below this are.
    gone_pages: usize,
    zeroes: Segment,
    pool: Pool,
    /// Reads that the next poll answers, and writes that it does if not so many come before that they are
    /// [done together](WRITES_TOGETHER): random pages lie in cold memory, and are fetched for all of them at once.
    waiting: Vec<Io>,
    /// Of the writes among them.
    waiting_bytes: u64,
    ready: Vec<Completion>,
    copied_bytes: u64,
    writer: WriterRecord,
}

impl MemoryStore {
    /// An empty volume of `bytes` bytes, a multiple of `block_bytes` (512 or 4096), with pages from
    /// `pool`.
    ///
    /// # Panics
    /// If it is not a multiple: the caller checks what users give.
    pub fn new(bytes: u64, block_bytes: u32, identity: Identity, pool: &Pool) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(u64::from(block_bytes)));
        assert!((PAGE_BYTES as u64).is_multiple_of(u64::from(block_bytes)));
        let leaves = usize::try_from(bytes.div_ceil(LEAF_BYTES)).expect("fits the address space");
        MemoryStore {
            geometry: Geometry {
                bytes,
                block_bytes,
                preferred_bytes: PAGE_BYTES as u32,
                io_bytes_max: IO_BYTES_MAX,
                features: Features {
                    read_only: false,
                    discard: true,
                    write_zeroes: true,
                    block_status: true,
                },
            },
            identity,
            leaves: std::iter::repeat_with(|| None).take(leaves).collect(),
            gone: VecDeque::new(),
            gone_pages: 0,
            zeroes: Pool::new(0).get_zeroed(PAGE_BYTES).freeze(),
            pool: pool.clone(),
            waiting: Vec::with_capacity(IOS_USUAL),
            waiting_bytes: 0,
            ready: Vec::with_capacity(IOS_USUAL),
            copied_bytes: 0,
            writer: WriterRecord::default(),
        }
    }

    fn page(&self, page: u64) -> Option<&Segment> {
        let leaf = self.leaves[(page / LEAF_PAGES as u64) as usize].as_ref()?;
        leaf[page as usize % LEAF_PAGES].as_ref()
    }

    fn page_slot(&mut self, page: u64) -> &mut Option<Segment> {
        let leaf = &mut self.leaves[(page / LEAF_PAGES as u64) as usize];
        let leaf = leaf.get_or_insert_with(|| Box::new([const { None }; LEAF_PAGES]));
        &mut leaf[page as usize % LEAF_PAGES]
    }

    fn read(&self, offset: u64, len: u64) -> SegList {
        let mut data = SegList::new();
        for part in Parts::of(offset, len) {
            let page = self.page(part.page).unwrap_or(&self.zeroes);
            data.push(page.slice(part.start, part.len));
        }
        data
    }

    /// Fetches what is known of the pages that all waiting reads will share and waiting writes change.
    fn touch(&self) {
        for io in &self.waiting {
            for page in io.offset / PAGE..(io.offset + io.len).div_ceil(PAGE) {
                if let Some(page) = self.page(page) {
                    page.touch();
                }
            }
        }
    }

    /// Does what waits, in order.
    fn perform_waiting(&mut self) {
        if self.waiting.len() > 1 {
            self.touch();
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut ready = std::mem::take(&mut self.ready);
        ready.extend(waiting.drain(..).map(|io| self.perform(io)));
        (self.waiting, self.waiting_bytes, self.ready) = (waiting, 0, ready);
    }

    /// Makes the part of a page writable and hands it to `fill`. A page that somebody shares is
    /// replaced: what of it is not part of the change moves over.
    fn change(&mut self, part: Part, fill: impl FnOnce(&mut [u8])) {
        let end = part.start + part.len;
        let slot = self.page_slot(part.page);
        if let Some(page) = slot.as_mut().and_then(|page| page.try_make_mut()) {
            fill(&mut page[part.start..end]);
            return;
        }
        self.free(FREED_PER_PAGE);
        let mut fresh = self.pool.get_loose();
        let slot = self.page_slot(part.page);
        let mut kept = 0;
        match slot {
            Some(old) => {
                fresh[..part.start].copy_from_slice(&old[..part.start]);
                fresh[end..].copy_from_slice(&old[end..]);
                kept = PAGE_BYTES - part.len;
            }
            None => {
                fresh[..part.start].fill(0);
                fresh[end..].fill(0);
            }
        }
        fill(&mut fresh[part.start..end]);
        *slot = Some(fresh.freeze());
        self.copied_bytes += kept as u64;
    }

    fn write(&mut self, offset: u64, data: &SegList) {
        let mut at = offset;
        for segment in data.iter() {
            let mut taken = 0;
            for part in Parts::of(at, segment.len() as u64) {
                let bytes = &segment[taken..taken + part.len];
                self.change(part, |place| place.copy_from_slice(bytes));
                taken += part.len;
            }
            at += segment.len() as u64;
            self.copied_bytes += segment.len() as u64;
        }
    }

    /// Zeroes a range: whole pages are let go, and whole leaves without looking at their pages.
    fn zero(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let leaf = (at / LEAF_BYTES) as usize;
            let leaf_end = (leaf as u64 + 1) * LEAF_BYTES;
            let is_whole = at % LEAF_BYTES == 0 && leaf_end.min(self.geometry.bytes) <= end;
            let leaf_end = leaf_end.min(end);
            if is_whole {
                self.gone.extend(self.leaves[leaf].take());
            } else if self.leaves[leaf].is_some() {
                for part in Parts::of(at, leaf_end - at) {
                    if part.len == PAGE_BYTES {
                        *self.page_slot(part.page) = None;
                    } else if self.page(part.page).is_some() {
                        self.change(part, |place| place.fill(0));
                    }
                }
            }
            at = leaf_end;
        }
    }

    /// Lets go of so many pages, at most, of what was zeroed.
    fn free(&mut self, most: usize) {
        let mut left = most;
        while let Some(leaf) = self.gone.front_mut() {
            for slot in &mut leaf[self.gone_pages..] {
                if left == 0 {
                    return;
                }
                left -= usize::from(slot.take().is_some());
                self.gone_pages += 1;
            }
            if left == 0 {
                return;
            }
            left = left.saturating_sub(LEAF_WEIGHT);
            self.gone_pages = 0;
            self.gone.pop_front();
        }
    }

    fn status(&self, offset: u64, len: u64, one_extent: bool, extents: &mut Vec<Extent>) {
        let end = offset + len;
        let (mut at, mut looks) = (offset, 0);
        while at < end
            && looks < LOOKS_MAX
            && extents.len() <= EXTENTS_MAX
            && !(one_extent && extents.len() > 1)
        {
            let (next, hole) = if self.leaves[(at / LEAF_BYTES) as usize].is_none() {
                ((at / LEAF_BYTES + 1) * LEAF_BYTES, true)
            } else {
                let page = at / PAGE_BYTES as u64;
                ((page + 1) * PAGE_BYTES as u64, self.page(page).is_none())
            };
            let next = next.min(end);
            push_extent(extents, Extent { len: next - at, hole, zero: hole });
            (at, looks) = (next, looks + 1);
        }
        extents.truncate(if one_extent { 1 } else { EXTENTS_MAX });
    }

    /// Does one thing, now.
    fn perform(&mut self, io: Io) -> Completion {
        let mut completion = Completion::new(io.token, Ok(()));
        match io.op {
            Op::Read => completion.data = self.read(io.offset, io.len),
            Op::Write => self.write(io.offset, &io.data),
            Op::Discard | Op::WriteZeroes => self.zero(io.offset, io.len),
            Op::Flush => {}
            Op::BlockStatus => {
                self.status(io.offset, io.len, io.flags.one_extent, &mut completion.extents);
            }
            // The record lives as long as the content.
            Op::LoadWriter => completion.data = self.writer.to_data(&self.pool),
            Op::StoreWriter => match WriterRecord::from_data(&io.data) {
                Some(record) => self.writer = record,
                None => completion.result = Err(io.error(ErrorKind::Invalid, "memory")),
            },
            Op::Cut => completion.result = Err(io.error(ErrorKind::Unsupported, "memory")),
        }
        completion
    }
}

impl Volume for MemoryStore {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry.check(&io) == Ok(()), "{io:?}");
        match io.op {
            Op::Read => self.waiting.push(io),
            Op::Write => {
                self.waiting_bytes += io.len;
                self.waiting.push(io);
                // What they bring is kept no longer than that.
                if self.waiting_bytes >= WRITES_TOGETHER {
                    self.perform_waiting();
                }
            }
            _ => {
                if self.waiting_bytes > 0 {
                    self.perform_waiting();
                }
                let completion = self.perform(io);
                self.ready.push(completion);
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.free(FREED_PER_POLL);
        self.perform_waiting();
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

/// A part of one page.
#[derive(Clone, Copy)]
struct Part {
    page: u64,
    start: usize,
    len: usize,
}

/// Cuts a range at page borders.
struct Parts {
    at: u64,
    end: u64,
}

impl Parts {
    fn of(offset: u64, len: u64) -> Self {
        Parts { at: offset, end: offset + len }
    }
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.at == self.end {
            return None;
        }
        let start = (self.at % PAGE_BYTES as u64) as usize;
        let len = (PAGE_BYTES - start).min((self.end - self.at) as usize);
        let part = Part { page: self.at / PAGE_BYTES as u64, start, len };
        self.at += len as u64;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoFlags;

    const ID: Identity = Identity { identity: [1; 16], incarnation: 7 };

    fn run(store: &mut MemoryStore, io: Io) -> Completion {
        store.submit(io);
        let mut done = Vec::new();
        store.poll(&mut done);
        assert_eq!(done.len(), 1);
        done.pop().unwrap()
    }

    fn write(store: &mut MemoryStore, pool: &Pool, offset: u64, bytes: &[u8]) {
        let mut io = Io::new(0, Op::Write, offset, bytes.len() as u64);
        io.data = SegList::of(pool.copy_of(bytes).freeze());
        run(store, io).result.unwrap();
    }

    #[test]
    fn what_was_read_never_changes_under_the_reader() {
        let pool = Pool::new(1 << 20);
        let mut store = MemoryStore::new(1 << 30, 512, ID, &pool);
        write(&mut store, &pool, 4096, &[1; 4096]);
        let read = run(&mut store, Io::new(1, Op::Read, 4096, 4096));
        write(&mut store, &pool, 4608, &[2; 512]);
        assert_eq!(read.data.to_vec(), vec![1; 4096]);
        let mut expected = vec![1; 4096];
        expected[512..1024].fill(2);
        assert_eq!(run(&mut store, Io::new(2, Op::Read, 4096, 4096)).data.to_vec(), expected);
        run(&mut store, Io::new(3, Op::Discard, 4096, 4096));
        assert_eq!(read.data.to_vec(), vec![1; 4096]);
    }

    /// However many come between two polls; and in the order of their coming, also beside what is done at once.
    #[test]
    fn what_writes_bring_is_kept_for_no_more_than_are_done_together() {
        let pages = 50;
        let (pool, theirs) = (Pool::new(1 << 20), Pool::new(0));
        let mut store = MemoryStore::new(1 << 20, 512, ID, &pool);
        for page in 0..pages {
            let mut io = Io::new(page, Op::Write, page * PAGE, PAGE);
            io.data = SegList::of(theirs.copy_of(&[7; PAGE_BYTES]).freeze());
            store.submit(io);
            assert!(theirs.stats().live_bytes < WRITES_TOGETHER as usize);
        }
        assert!(theirs.stats().live_bytes > 0, "some wait");
        store.submit(Io::new(pages, Op::Discard, (pages - 1) * PAGE, PAGE));
        assert_eq!((store.outstanding(), theirs.stats().live_bytes), (pages as usize + 1, 0));
        let mut done = Vec::new();
        store.poll(&mut done);
        assert!(done.iter().map(|completion| completion.token).eq(0..=pages));
        let first = run(&mut store, Io::new(0, Op::Read, 0, PAGE)).data.to_vec();
        let last = run(&mut store, Io::new(0, Op::Read, (pages - 1) * PAGE, PAGE)).data.to_vec();
        assert_eq!((first, last), (vec![7; PAGE_BYTES], vec![0; PAGE_BYTES]));
    }

    #[test]
    fn it_conforms() {
        for (seed, block) in [(1, 512), (2, 4096)] {
            let pool = Pool::new(4 << 20);
            let mut store = MemoryStore::new(3 << 20, block, ID, &pool);
            let report = crate::testing::exercise(&mut store, &mut || {}, seed, 3000);
            assert!(report.ios > 3000);
        }
    }

    #[test]
    fn reads_share_pages_and_writes_go_in_place_when_nobody_reads() {
        let pool = Pool::new(1 << 20);
        let mut store = MemoryStore::new(1 << 20, 512, ID, &pool);
        write(&mut store, &pool, 0, &[1; 4096]);
        let copied = store.copied_bytes();
        let first = run(&mut store, Io::new(1, Op::Read, 0, 4096)).data;
        assert_eq!(store.copied_bytes(), copied);
        let at = first.as_slice()[0].as_ptr();
        drop(first);
        write(&mut store, &pool, 512, &[2; 512]);
        assert_eq!(store.copied_bytes(), copied + 512);
        let again = run(&mut store, Io::new(1, Op::Read, 0, 4096)).data;
        assert_eq!(again.as_slice()[0].as_ptr(), at);
        // Now somebody reads: the page moves, and the unchanged part is copied and counted.
        write(&mut store, &pool, 512, &[3; 512]);
        assert_eq!(store.copied_bytes(), copied + 512 + 4096);
    }

    #[test]
    fn warm_it_asks_the_pool_for_nothing_new() {
        let pool = Pool::new(1 << 20);
        let mut store = MemoryStore::new(8 << 20, 512, ID, &pool);
        for round in 0..3u8 {
            for page in 0..8 {
                write(&mut store, &pool, page * 4096, &[round; 4096]);
                let held = run(&mut store, Io::new(1, Op::Read, page * 4096, 4096));
                write(&mut store, &pool, page * 4096, &[round + 100; 4096]);
                drop(held);
            }
            if round > 0 {
                continue;
            }
            pool.warm(4096, 4);
        }
        let allocations = pool.stats().allocations;
        for page in 0..8 {
            write(&mut store, &pool, page * 4096, &[9; 4096]);
        }
        assert_eq!(pool.stats().allocations, allocations);
    }

    #[test]
    fn discarded_pages_go_back_and_show_as_holes() {
        let pool = Pool::new(0);
        let mut store = MemoryStore::new(64 << 20, 512, ID, &pool);
        write(&mut store, &pool, 4 << 20, &[5; 3 * 4096]);
        assert_eq!(pool.stats().live_bytes, 3 * 4096);
        run(&mut store, Io::new(0, Op::Discard, (4 << 20) + 512, 2 * 4096));
        // One whole page went; parts of two were zeroed.
        assert_eq!(pool.stats().live_bytes, 2 * 4096);
        let data = run(&mut store, Io::new(0, Op::Read, 4 << 20, 3 * 4096)).data.to_vec();
        let mut expected = vec![5; 3 * 4096];
        expected[512..512 + 2 * 4096].fill(0);
        assert_eq!(data, expected);
        let hole = |len| Extent { len, hole: true, zero: true };
        let data = |len| Extent { len, hole: false, zero: false };
        let status = run(&mut store, Io::new(0, Op::BlockStatus, 512, (64 << 20) - 512));
        assert_eq!(
            status.extents,
            [
                hole((4 << 20) - 512),
                data(4096),
                hole(4096),
                data(4096),
                hole((60 << 20) - 3 * 4096)
            ]
        );
        let mut one = Io::new(0, Op::BlockStatus, 4 << 20, 1 << 20);
        one.flags = IoFlags { one_extent: true, ..IoFlags::default() };
        assert_eq!(run(&mut store, one).extents, [data(4096)]);
        run(&mut store, Io::new(0, Op::WriteZeroes, 0, 64 << 20));
        assert_eq!(pool.stats().live_bytes, 0);
    }

    /// Whoever asks about gigabytes, which is anybody, holds up nobody by it.
    #[test]
    fn a_block_status_looks_at_so_many_pages_and_can_be_asked_on() {
        let pool = Pool::new(0);
        let mut store = MemoryStore::new(1 << 40, 512, ID, &pool);
        let data = (8 << 20) + 4096;
        for at in (0..data).step_by(PAGE_BYTES) {
            write(&mut store, &pool, at, &[5; PAGE_BYTES]);
        }
        let looks = |extents: &[Extent]| {
            let of = |e: &Extent| e.len.div_ceil(if e.hole { LEAF_BYTES } else { PAGE });
            extents.iter().map(of).sum::<u64>()
        };
        let (mut at, mut asked, mut known) = (0, 0, Vec::new());
        while at < 4 << 30 {
            let io = Io::new(0, Op::BlockStatus, at, (4 << 30) - at);
            let extents = run(&mut store, io).extents;
            assert!((1..=LOOKS_MAX as u64).contains(&looks(&extents)), "{extents:?}");
            for extent in extents {
                at += extent.len;
                push_extent(&mut known, extent);
            }
            asked += 1;
        }
        let hole = Extent { len: (4 << 30) - data, hole: true, zero: true };
        assert_eq!(known, [Extent { len: data, hole: false, zero: false }, hole]);
        assert!(asked <= 6, "{asked}");
    }

    /// Memory of what is discarded goes back a little at a time, whatever is looked at or written meanwhile.
    #[test]
    fn a_discard_of_many_pages_is_seen_at_once_and_freed_in_many_polls() {
        const LEAVES: u64 = 12;
        let bytes = LEAVES * LEAF_BYTES + 4096;
        let pool = Pool::new(0);
        let mut store = MemoryStore::new(bytes, 512, ID, &pool);
        let fill = |store: &mut MemoryStore| {
            for at in (0..bytes).step_by(PAGE_BYTES) {
                write(store, &pool, at, &[5; PAGE_BYTES]);
            }
        };
        let live = || pool.stats().live_bytes / PAGE_BYTES;
        fill(&mut store);
        let full = live();
        assert_eq!(full as u64, bytes / PAGE);
        // All but a block at the beginning, the end in the middle of a leaf.
        store.submit(Io::new(0, Op::Discard, 512, bytes - 512));
        assert!(live() > full - LEAF_PAGES, "only the pages of the first leaf, which stays");
        let zeroes = |store: &mut MemoryStore, at| {
            store.submit(Io::new(1, Op::Read, at, 4096));
            store.read(at, 4096).iter().all(|segment| segment.iter().all(|&byte| byte == 0))
        };
        assert!(zeroes(&mut store, LEAF_BYTES) && zeroes(&mut store, bytes - 4096));
        let (mut polls, mut done) = (0, Vec::new());
        while live() > 1 {
            let before = live();
            store.poll(&mut done);
            assert!((1..=FREED_PER_POLL).contains(&(before - live())));
            polls += 1;
        }
        assert_eq!((polls, done.len(), store.outstanding()), (6, 3, 0));
        // Who writes faster than it is polled never has more than the volume is long.
        drop(done);
        fill(&mut store);
        store.submit(Io::new(0, Op::WriteZeroes, 0, bytes));
        assert_eq!(live(), full);
        const LONG: u64 = 8 * PAGE;
        let long = |at| {
            let mut io = Io::new(0, Op::Write, at, LONG.min(bytes - at));
            io.data = SegList::of(Pool::new(0).get_zeroed(io.len as usize).freeze());
            io
        };
        for at in (0..bytes).step_by(LONG as usize) {
            store.submit(long(at));
            assert!(live() <= full);
        }
        assert!(store.gone.is_empty());
        for _ in 0..100 {
            for at in (0..bytes).step_by(LEAF_BYTES as usize) {
                store.submit(long(at));
            }
            store.submit(Io::new(0, Op::Discard, 0, bytes));
            let all = live() + LEAF_WEIGHT * store.gone.len();
            assert!(all <= full + LEAF_WEIGHT * (LEAVES as usize + 1));
        }
    }
}
