//! The content of a [`SpreadMemory`](super::SpreadMemory): memory that several threads read and change at once,
//! in words.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use thinwire_buffer::{PAGE_BYTES, SegList};

const WORD: usize = size_of::<u64>();
const PAGE_WORDS: usize = PAGE_BYTES / WORD;
/// Pages that one word of marks is for.
const MARK_PAGES: usize = u64::BITS as usize;

/// Pages of zeroes that exist once they are written, and a mark for each that may hold anything else.
///
/// Every word is read and written whole and by itself, in no order among them: whoever reads what another
/// writes at the same time finds some of the one and some of the other, as on a disk. What has been written
/// before a read began, by whatever way its reader knows that, it finds.
///
/// A mark is set behind a write and cleared before pages are given back, so that what has been written, and not
/// given back since, is always marked. One I/O that gives pages back while another writes there may leave
/// a mark over zeroes, never content without one.
pub(super) struct Content {
    /// Words of the content, then the marks.
    start: NonNull<AtomicU64>,
    pages: usize,
}

// SAFETY: it is the only owner of a mapping, which may be read, written and unmapped by any thread.
unsafe impl Send for Content {}
// SAFETY: what is behind `start` is used as `AtomicU64` only.
unsafe impl Sync for Content {}

impl Content {
    /// So many bytes of zeroes, rounded up to pages.
    ///
    /// # Errors
    /// There is no room for them in the address space of this process.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let none = || io::Error::from(io::ErrorKind::OutOfMemory);
        let pages = usize::try_from(bytes.div_ceil(PAGE_BYTES as u64)).map_err(|_| none())?;
        let len = Self::mapped_bytes(pages).ok_or_else(none)?;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        // A page that is written is to take no more than a page. Kernels without huge pages refuse.
        // SAFETY: changes how the new mapping is filled, not what is there.
        let _ = unsafe { rustix::mm::madvise(start, len, Advice::LinuxNoHugepage) };
        Ok(Content { start: NonNull::new(start.cast()).expect("mapped"), pages })
    }

    fn mapped_bytes(pages: usize) -> Option<usize> {
        pages.checked_mul(PAGE_BYTES)?.checked_add(pages.div_ceil(MARK_PAGES) * WORD)
    }

    /// # Panics
    /// If the range is not of whole words, or not all there.
    fn words(&self, offset: u64, len: usize) -> &[AtomicU64] {
        let (first, count) = (offset as usize / WORD, len / WORD);
        assert!((offset as usize | len).is_multiple_of(WORD), "not of whole words");
        assert!(first + count <= self.pages * PAGE_WORDS, "outside the content");
        // SAFETY: within the mapping, as just checked, which lives as long as `self`, is aligned to pages, and is
        // used as atomic words only. All zeroes is a value of theirs.
        unsafe { std::slice::from_raw_parts(self.start.add(first).as_ptr(), count) }
    }

    fn marks(&self) -> &[AtomicU64] {
        let count = self.pages.div_ceil(MARK_PAGES);
        // SAFETY: they are behind the words of the content, in the same mapping; otherwise as there.
        unsafe {
            std::slice::from_raw_parts(self.start.add(self.pages * PAGE_WORDS).as_ptr(), count)
        }
    }

    /// The marks of the pages from there on, [`MARK_PAGES`] of them from a multiple of that: the page is the
    /// lowest bit.
    fn marks_from(&self, page: u64) -> u64 {
        let page = page as usize;
        self.marks()[page / MARK_PAGES].load(Ordering::Relaxed) >> (page % MARK_PAGES)
    }

    /// Whether that page and those behind it may hold anything but zeroes, or hold none, and how many at least
    /// are so.
    pub fn run(&self, page: u64) -> (bool, u64) {
        let marks = self.marks_from(page);
        let known = MARK_PAGES as u64 - page % MARK_PAGES as u64;
        match marks & 1 {
            1 => (true, u64::from(marks.trailing_ones()).min(known)),
            _ => (false, u64::from(marks.trailing_zeros()).min(known)),
        }
    }

    /// Has all that others have written, and that is known to have been, in what is read from here on.
    pub fn begin_read(&self) {
        fence(Ordering::Acquire);
    }

    /// Copies whole words out.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let words = self.words(offset, out.len());
        for (word, place) in words.iter().zip(out.chunks_exact_mut(WORD)) {
            place.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies so many bytes in, whole words of them whatever the borders of the segments.
    pub fn write(&self, offset: u64, data: &SegList) {
        // So that a mark which another shard has cleared before is seen as cleared.
        fence(Ordering::Acquire);
        let len = data.bytes();
        let mut words = self.words(offset, len);
        let store = |words: &mut &[AtomicU64], bytes: &[u8]| {
            let (now, later) = words.split_at(bytes.len() / WORD);
            for (word, from) in now.iter().zip(bytes.chunks_exact(WORD)) {
                let from = from.try_into().expect("a word");
                word.store(u64::from_ne_bytes(from), Ordering::Relaxed);
            }
            *words = later;
        };
        // What of a word lies in the segments so far.
        let (mut begun, mut filled) = ([0; WORD], 0);
        for segment in data.iter() {
            let mut bytes = &segment[..];
            if filled > 0 {
                let (head, rest) = bytes.split_at((WORD - filled).min(bytes.len()));
                begun[filled..filled + head.len()].copy_from_slice(head);
                (filled, bytes) = (filled + head.len(), rest);
                if filled < WORD {
                    continue;
                }
                store(&mut words, &begun);
            }
            let (whole, rest) = bytes.split_at(bytes.len() / WORD * WORD);
            store(&mut words, whole);
            begun[..rest.len()].copy_from_slice(rest);
            filled = rest.len();
        }
        self.mark(offset, len as u64);
        fence(Ordering::Release);
    }

    fn mark(&self, offset: u64, len: u64) {
        let (mut page, end) =
            (offset / PAGE_BYTES as u64, (offset + len).div_ceil(PAGE_BYTES as u64));
        while page < end {
            let (mask, next) = Self::mask(page, end);
            let marks = &self.marks()[page as usize / MARK_PAGES];
            // Others read them all the while: they are changed as seldom as there is something to change.
            if marks.load(Ordering::Relaxed) & mask != mask {
                marks.fetch_or(mask, Ordering::Relaxed);
            }
            page = next;
        }
    }

    /// The marks of the pages from there to `end`, as far as they are in one word, and the page behind them.
    fn mask(page: u64, end: u64) -> (u64, u64) {
        let shift = page % MARK_PAGES as u64;
        let next = end.min(page - shift + MARK_PAGES as u64);
        let count = next - page;
        (u64::MAX >> (MARK_PAGES as u64 - count) << shift, next)
    }

    /// Makes whole words zero.
    pub fn zero_words(&self, offset: u64, len: u64) {
        for word in self.words(offset, len as usize) {
            word.store(0, Ordering::Relaxed);
        }
        fence(Ordering::Release);
    }

    /// Gives pages back, from `page` on and to `end` at most, as far as one word of marks goes. How many of
    /// them there were, if the kernel was called for any, and the page behind the last.
    pub fn give_back(&self, page: u64, end: u64) -> (Option<u32>, u64) {
        let (mask, next) = Self::mask(page, end);
        let marks = &self.marks()[page as usize / MARK_PAGES];
        // A mark that another shard has set before is seen as set.
        fence(Ordering::Acquire);
        if marks.load(Ordering::Relaxed) & mask == 0 {
            return (None, next);
        }
        let held = marks.fetch_and(!mask, Ordering::Relaxed) & mask;
        let words = self.words(page * PAGE_BYTES as u64, (next - page) as usize * PAGE_BYTES);
        let (start, len) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
        // SAFETY: of a private anonymous mapping of ours these pages become zeroes, which are values of atomic words; nobody
        // holds a reference to anything else there.
        let given = unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontNeed) };
        if given.is_err() {
            // The kernel keeps them.
            self.zero_words(page * PAGE_BYTES as u64, len as u64);
        }
        fence(Ordering::Release);
        (Some(held.count_ones()), next)
    }

    /// Whether the kernel has memory for a page.
    #[cfg(test)]
    pub fn is_resident(&self, page: u64) -> bool {
        let words = self.words(page * PAGE_BYTES as u64, PAGE_BYTES);
        let mut told = 0u8;
        // SAFETY: asks about one page of our mapping, and gets one byte.
        let asked =
            unsafe { libc::mincore(words.as_ptr().cast_mut().cast(), PAGE_BYTES, &mut told) };
        assert_eq!(asked, 0);
        told & 1 == 1
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let len = Self::mapped_bytes(self.pages).expect("it was mapped");
        // SAFETY: the mapping is ours, and whoever points into it borrows `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), len) };
    }
}
