//! Page-aligned memory in size classes, recycled without allocation.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};

use crate::{Lent, Segment};

/// Alignment and granularity of all pooled memory. Direct disk I/O needs 512 on most devices and
/// 4096 on some, so everything starts on a page.
pub const PAGE_BYTES: usize = 4096;

/// Classes of 1, 2, 4 ... 1024 pages: 4 KiB to 4 MiB.
const ALIGNED_COUNT: usize = 11;

/// The class of [`Pool::get_loose`]: 4 KiB without alignment.
const LOOSE: usize = ALIGNED_COUNT;

/// Classes of [`Pool::get_small`]: 512, 1024 and 2048 bytes.
const SMALL: usize = LOOSE + 1;
const SMALL_COUNT: usize = 3;
const SMALL_BYTES: usize = 512;

const CLASS_COUNT: usize = SMALL + SMALL_COUNT;

/// Size of the buffers of a class.
const fn class_bytes(class: usize) -> usize {
    match class {
        LOOSE => PAGE_BYTES,
        SMALL.. => SMALL_BYTES << (class - SMALL),
        _ => PAGE_BYTES << class,
    }
}

/// What their addresses are multiples of.
const fn class_align(class: usize) -> usize {
    match class {
        LOOSE => 1,
        SMALL.. => SMALL_BYTES,
        _ => PAGE_BYTES,
    }
}

/// The smallest class of aligned buffers that hold so much.
fn class_for(len: usize) -> usize {
    len.div_ceil(PAGE_BYTES).max(1).next_power_of_two().trailing_zeros() as usize
}

/// One piece of memory. Held through `Rc`: a strong count of one means a single owner.
pub(crate) enum Inner {
    Pooled(Pooled),
    Lent(Box<dyn Lent>),
}

/// A piece of a pool's memory.
pub(crate) struct Pooled {
    /// Longer than the class by its alignment, so that an aligned part of the class's size fits;
    /// loose memory is exactly as long as its class.
    memory: Box<[u8]>,
    /// The aligned part, of the class's size.
    start: usize,
    end: usize,
    class: usize,
    home: Weak<Shared>,
    /// Handed out to a link, for what it receives.
    is_received: Cell<bool>,
}

impl Pooled {
    fn new(class: usize, home: Weak<Shared>) -> Self {
        let is_received = Cell::new(false);
        if class == LOOSE {
            let memory = vec![0; PAGE_BYTES].into();
            return Pooled { memory, start: 0, end: PAGE_BYTES, class, home, is_received };
        }
        let align = class_align(class);
        let memory: Box<[u8]> = vec![0; class_bytes(class) + align].into();
        let start = (memory.as_ptr() as usize).wrapping_neg() % align;
        Pooled { memory, start, end: start + class_bytes(class), class, home, is_received }
    }
}

impl Inner {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Inner::Pooled(p) => &p.memory[p.start..p.end],
            Inner::Lent(lent) => lent.bytes(),
        }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Inner::Pooled(p) => &mut p.memory[p.start..p.end],
            Inner::Lent(lent) => lent.bytes_mut(),
        }
    }

    /// Back to where it came from, if that still exists and has room; else freed.
    #[inline]
    pub(crate) fn recycle(this: Rc<Inner>) {
        debug_assert_eq!(Rc::strong_count(&this), 1);
        match &*this {
            Inner::Pooled(pooled) => {
                if let Some(home) = pooled.home.upgrade() {
                    home.take_back(this);
                }
            }
            Inner::Lent(lent) => {
                if let Some(lender) = lent.lender() {
                    let len = lent.bytes().len();
                    lender.take_back(Buf { inner: Some(this), len });
                }
            }
        }
    }
}

/// Pooled memory on its way from one thread's pool to another's. See [`Segment::into_memory`] and
/// [`Pool::adopt`].
#[derive(Debug)]
pub struct Memory {
    memory: Box<[u8]>,
    start: usize,
    class: usize,
}

impl Inner {
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self, Inner::Lent(_))
    }

    pub(crate) fn is_received(&self) -> bool {
        match self {
            Inner::Pooled(pooled) => pooled.is_received.get(),
            Inner::Lent(_) => true,
        }
    }

    /// Takes a pool's memory out of the only reference to it; the pool forgets it.
    pub(crate) fn into_memory(this: Rc<Inner>) -> Memory {
        let Inner::Pooled(pooled) = Rc::into_inner(this).expect("one owner") else {
            unreachable!("lent memory stays with its lender");
        };
        let Pooled { memory, start, class, home, is_received, .. } = pooled;
        if let Some(home) = home.upgrade() {
            home.live_bytes.set(home.live_bytes.get() - class_bytes(class));
            home.no_longer_received(&is_received, class_bytes(class));
            home.classes.borrow_mut()[class].made -= 1;
        }
        Memory { memory, start, class }
    }
}

/// The memory of one class.
#[derive(Default)]
struct Class {
    /// Returned and waiting. Has room for all that was made, so that returning never allocates.
    free: Vec<Rc<Inner>>,
    /// How many there are, handed out or free.
    made: usize,
}

struct Shared {
    classes: RefCell<[Class; CLASS_COUNT]>,
    free_bytes: Cell<usize>,
    free_bytes_max: usize,
    live_bytes: Cell<usize>,
    received_bytes: Cell<usize>,
    allocations: Cell<u64>,
}

impl Shared {
    /// It comes back, or is another thread's from now on.
    #[inline]
    fn no_longer_received(&self, is_received: &Cell<bool>, bytes: usize) {
        if is_received.replace(false) {
            self.received_bytes.set(self.received_bytes.get() - bytes);
        }
    }

    fn take_back(&self, inner: Rc<Inner>) {
        let Inner::Pooled(Pooled { class, ref is_received, .. }) = *inner else { return };
        let bytes = class_bytes(class);
        self.live_bytes.set(self.live_bytes.get() - bytes);
        self.no_longer_received(is_received, bytes);
        let class = &mut self.classes.borrow_mut()[class];
        if self.free_bytes.get() + bytes <= self.free_bytes_max {
            self.free_bytes.set(self.free_bytes.get() + bytes);
            class.free.push(inner);
        } else {
            class.made -= 1;
        }
    }
}

/// What a pool holds at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes handed out.
    pub live_bytes: usize,
    /// Those of them that were handed out for what links receive ([`Pool::for_received`]).
    pub received_bytes: usize,
    /// Bytes waiting to be handed out again.
    pub free_bytes: usize,
    /// How often memory had to come from the allocator since the pool was made.
    pub allocations: u64,
}

/// A source of [`Buf`]s. Cloning gives another handle to the same pool. Single-threaded.
#[derive(Clone)]
pub struct Pool {
    shared: Rc<Shared>,
    /// What it hands out counts as received.
    is_for_received: bool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({:?})", self.stats())
    }
}

impl Pool {
    /// The largest single buffer, 4 MiB.
    pub const BUF_BYTES_MAX: usize = class_bytes(ALIGNED_COUNT - 1);

    /// A pool that keeps at most `free_bytes_max` bytes of returned memory; what comes back beyond
    /// that is freed. Allocates nothing yet: see [`Pool::warm`].
    pub fn new(free_bytes_max: usize) -> Self {
        Pool {
            shared: Rc::new(Shared {
                classes: RefCell::new(Default::default()),
                free_bytes: Cell::new(0),
                free_bytes_max,
                live_bytes: Cell::new(0),
                received_bytes: Cell::new(0),
                allocations: Cell::new(0),
            }),
            is_for_received: false,
        }
    }

    /// The same pool, for a link: what it hands out is counted apart until the last segment of it is
    /// dropped, at its true size. Whoever keeps what arrived, instead of a copy, looks at that.
    pub fn for_received(&self) -> Pool {
        Pool { shared: self.shared.clone(), is_for_received: true }
    }

    /// Makes sure that `count` buffers of `len` bytes are free, touching their memory, so that
    /// later [`Pool::get`]s of that size allocate nothing.
    pub fn warm(&self, len: usize, count: usize) {
        let held: Vec<Buf> = (0..count).map(|_| self.get_zeroed(len)).collect();
        drop(held);
    }

    /// A buffer of exactly `len` bytes, page aligned, of unspecified (but initialised) content.
    ///
    /// # Panics
    /// If `len` is larger than [`Pool::BUF_BYTES_MAX`]: callers bound sizes at their own gate.
    pub fn get(&self, len: usize) -> Buf {
        assert!(len <= Self::BUF_BYTES_MAX, "buffer of {len} bytes asked of a pool");
        self.take(class_for(len), len)
    }

    /// A buffer of [`PAGE_BYTES`] at no particular address, of unspecified (but initialised)
    /// content. For stores that hold very many: aligned pages cost the allocator twice their size.
    pub fn get_loose(&self) -> Buf {
        self.take(LOOSE, PAGE_BYTES)
    }

    /// A buffer of exactly `len` bytes, of unspecified (but initialised) content, whose address is a
    /// multiple of 512. What is shorter than half a page takes little more memory than it is long:
    /// for pieces of which a stranger decides how many there are.
    ///
    /// # Panics
    /// As [`Pool::get`].
    pub fn get_small(&self, len: usize) -> Buf {
        let units = len.div_ceil(SMALL_BYTES).max(1).next_power_of_two();
        let small = units.trailing_zeros() as usize;
        if small < SMALL_COUNT { self.take(SMALL + small, len) } else { self.get(len) }
    }

    /// What a buffer of [`Pool::get_small`] takes at most for each 512 bytes asked for, in all: the
    /// next power of two, alignment, and what is kept about it.
    pub const SMALL_UNIT_BYTES: usize = 4 * SMALL_BYTES;

    fn take(&self, class: usize, len: usize) -> Buf {
        let bytes = class_bytes(class);
        let recycled = self.shared.classes.borrow_mut()[class].free.pop();
        self.shared.live_bytes.set(self.shared.live_bytes.get() + bytes);
        let inner = match recycled {
            Some(inner) => {
                self.shared.free_bytes.set(self.shared.free_bytes.get() - bytes);
                inner
            }
            None => {
                self.shared.allocations.set(self.shared.allocations.get() + 1);
                let Class { free, made } = &mut self.shared.classes.borrow_mut()[class];
                *made += 1;
                free.reserve(*made);
                Rc::new(Inner::Pooled(Pooled::new(class, Rc::downgrade(&self.shared))))
            }
        };
        self.mark_received(&inner, bytes);
        Buf { inner: Some(inner), len }
    }

    #[inline]
    fn mark_received(&self, inner: &Inner, bytes: usize) {
        if let (true, Inner::Pooled(pooled)) = (self.is_for_received, inner) {
            pooled.is_received.set(true);
            self.shared.received_bytes.set(self.shared.received_bytes.get() + bytes);
        }
    }

    /// Makes memory of another thread's pool this one's: a buffer of all of it, which comes back
    /// here when it is dropped.
    pub fn adopt(&self, memory: Memory) -> Buf {
        let Memory { memory, start, class } = memory;
        let bytes = class_bytes(class);
        self.shared.live_bytes.set(self.shared.live_bytes.get() + bytes);
        let Class { free, made } = &mut self.shared.classes.borrow_mut()[class];
        *made += 1;
        free.reserve(*made);
        let home = Rc::downgrade(&self.shared);
        let is_received = Cell::new(false);
        let pooled = Pooled { memory, start, end: start + bytes, class, home, is_received };
        let inner = Rc::new(Inner::Pooled(pooled));
        self.mark_received(&inner, bytes);
        Buf { inner: Some(inner), len: bytes }
    }

    /// Takes memory for buffers of `len` bytes out of what waits here to be used again, if there is
    /// any, so that another thread's pool can adopt it.
    pub fn give_up(&self, len: usize) -> Option<Memory> {
        let class = class_for(len);
        let inner = self.shared.classes.borrow_mut()[class].free.pop()?;
        let bytes = class_bytes(class);
        self.shared.free_bytes.set(self.shared.free_bytes.get() - bytes);
        self.shared.live_bytes.set(self.shared.live_bytes.get() + bytes);
        Some(Inner::into_memory(inner))
    }

    /// A buffer of `len` zero bytes.
    pub fn get_zeroed(&self, len: usize) -> Buf {
        let mut buf = self.get(len);
        buf.fill(0);
        buf
    }

    /// A buffer holding a copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.get(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Figures for status and tests.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            live_bytes: self.shared.live_bytes.get(),
            received_bytes: self.shared.received_bytes.get(),
            free_bytes: self.shared.free_bytes.get(),
            allocations: self.shared.allocations.get(),
        }
    }
}

/// Memory with exactly one owner, page aligned if it is a pool's. Becomes shared and read-only by
/// [`Buf::freeze`]; goes back to where it came from when dropped.
pub struct Buf {
    inner: Option<Rc<Inner>>,
    len: usize,
}

impl Buf {
    /// All of a piece of lent memory. Allocates: a lender makes each once and keeps it.
    pub fn lent(memory: Box<dyn Lent>) -> Self {
        let len = memory.bytes().len();
        Buf { inner: Some(Rc::new(Inner::Lent(memory))), len }
    }

    /// Shortens or (up to [`Buf::capacity`]) lengthens the visible part.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity());
        self.len = len;
    }

    /// How many bytes this buffer's memory has: a pool's size class.
    pub fn capacity(&self) -> usize {
        self.inner.as_ref().expect("live").bytes().len()
    }

    /// Gives up the right to write; the whole visible part becomes a segment. Copies nothing.
    #[inline]
    pub fn freeze(mut self) -> Segment {
        let inner = self.inner.take().expect("live");
        Segment::whole(inner, self.len)
    }

    pub(crate) fn from_unique(inner: Rc<Inner>, len: usize) -> Self {
        debug_assert_eq!(Rc::strong_count(&inner), 1);
        Buf { inner: Some(inner), len }
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.inner.as_ref().expect("live").bytes()[..self.len]
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let inner = Rc::get_mut(self.inner.as_mut().expect("live")).expect("a Buf has one owner");
        &mut inner.bytes_mut()[..self.len]
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            Inner::recycle(inner);
        }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SegList;

    /// It is counted until its last segment is gone, whoever holds that, and at its true size.
    #[test]
    fn what_links_receive_is_counted_apart() {
        let pool = Pool::new(1 << 20);
        let received = pool.for_received();
        let own = pool.get(5000);
        let piece = received.get(9000).freeze().slice(192, 512);
        let mut list = SegList::of(own.freeze());
        assert_eq!(list.received_bytes(), 0);
        (0..2).for_each(|_| list.push(piece.clone()));
        list.push(received.get(100).freeze());
        assert_eq!(list.received_bytes(), 16384 + 4096, "neighbours in one buffer keep it once");
        drop(list);
        let own = pool.get(5000);
        let counts = |pool: &Pool| (pool.stats().live_bytes, pool.stats().received_bytes);
        assert_eq!(counts(&pool), (8192 + 16384, 16384));
        assert_eq!(counts(&pool), counts(&received), "they are one pool");
        let other = piece.clone();
        drop((own, piece));
        assert_eq!(counts(&pool), (16384, 16384));
        drop(other);
        assert_eq!(counts(&pool), (0, 0));
        // The same memory, for somebody else.
        let again = pool.get(9000);
        assert_eq!(counts(&pool), (16384, 0));
        drop(again);
        let memory = received.get(9000).freeze().into_memory().expect("the only one");
        assert_eq!(counts(&pool), (0, 0));
        let adopted = received.adopt(memory);
        assert_eq!(counts(&pool), (16384, 16384));
        drop(adopted);
        assert_eq!(counts(&pool), (0, 0));
    }

    #[test]
    fn memory_is_page_aligned_and_recycled() {
        let pool = Pool::new(1 << 20);
        let first = pool.get(5000);
        assert_eq!(first.as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!((first.len(), first.capacity()), (5000, 8192));
        let at = first.as_ptr();
        drop(first);
        let again = pool.get(8192);
        assert_eq!(again.as_ptr(), at);
        assert_eq!(pool.stats().allocations, 1);
    }

    #[test]
    fn a_segment_keeps_memory_out_of_the_pool() {
        let pool = Pool::new(1 << 20);
        let segment = pool.copy_of(b"hello").freeze();
        let part = segment.slice(1, 3);
        drop(segment);
        let other = pool.get(5);
        assert_eq!(&part[..], b"ell");
        assert_ne!(part.as_ptr() as usize / PAGE_BYTES, other.as_ptr() as usize / PAGE_BYTES);
        drop(part);
        assert_eq!(pool.stats().free_bytes, PAGE_BYTES);
    }

    #[test]
    fn every_class_is_aligned_and_loose_pages_keep_to_themselves() {
        let pool = Pool::new(32 << 20);
        for class in 0..ALIGNED_COUNT {
            let buf = pool.get(PAGE_BYTES << class);
            assert_eq!(buf.as_ptr() as usize % PAGE_BYTES, 0, "class {class}");
            assert_eq!(buf.capacity(), PAGE_BYTES << class);
        }
        let loose = pool.get_loose();
        assert_eq!((loose.len(), loose.capacity()), (PAGE_BYTES, PAGE_BYTES));
        let at = loose.as_ptr();
        drop(loose);
        assert_ne!(pool.get(PAGE_BYTES).as_ptr(), at);
        assert_eq!(pool.get_loose().as_ptr(), at);
    }

    #[test]
    fn small_pieces_take_little_more_than_they_are_long() {
        let pool = Pool::new(1 << 20);
        for (len, capacity) in
            [(1, 512), (512, 512), (513, 1024), (1024, 1024), (1536, 2048), (2049, 4096)]
        {
            let buf = pool.get_small(len);
            assert_eq!((buf.len(), buf.capacity()), (len, capacity));
            assert_eq!(buf.as_ptr() as usize % 512, 0);
            let Some(Inner::Pooled(inner)) = buf.inner.as_deref() else { unreachable!() };
            let whole = inner.memory.len() + size_of::<Inner>() + 2 * size_of::<usize>();
            assert!(whole <= len.div_ceil(512) * Pool::SMALL_UNIT_BYTES, "{len}: {whole}");
        }
        let small = pool.get_small(512);
        assert_eq!(pool.stats().live_bytes, 512);
        drop(small);
        assert_eq!(pool.stats().allocations, 4, "they are used again");
    }

    #[test]
    fn memory_moves_between_the_pools_of_two_threads() {
        let here = Pool::new(1 << 20);
        let segment = here.copy_of(b"across").freeze();
        let other = segment.slice(0, 3);
        let segment = segment.into_memory().unwrap_err();
        assert!(segment.shares_memory(&other));
        drop(other);
        let (at, memory) = (segment.as_ptr() as usize, segment.into_memory().unwrap());
        let stats = PoolStats { allocations: 1, ..PoolStats::default() };
        assert_eq!(here.stats(), stats);
        let memory = std::thread::spawn(move || {
            let there = Pool::new(1 << 20);
            let buf = there.adopt(memory);
            assert_eq!((&buf[..6], buf.len()), (&b"across"[..], PAGE_BYTES));
            drop(buf);
            assert_eq!(there.stats().free_bytes, PAGE_BYTES);
            there.give_up(1).unwrap()
        });
        let memory = memory.join().unwrap();
        assert!(here.give_up(1).is_none());
        drop(here.adopt(memory));
        assert_eq!(here.get(1).as_ptr() as usize, at);
        assert_eq!(here.stats().allocations, 1);
    }

    #[test]
    fn what_exceeds_the_bound_is_freed() {
        let pool = Pool::new(PAGE_BYTES);
        pool.warm(1, 4);
        let stats = pool.stats();
        assert_eq!((stats.free_bytes, stats.live_bytes), (PAGE_BYTES, 0));
    }
}
