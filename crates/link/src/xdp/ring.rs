//! The rings that a socket shares with the kernel: one side writes entries and moves `producer`, the
//! other reads them and moves `consumer`. Both numbers only grow, and wrap at 2^32; an entry's place
//! is its number modulo the ring's size, a power of two.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::umem::Mapping;

/// Where the parts of a ring are in its mapping, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) entries: usize,
}

/// An entry of a ring: plain data that the kernel reads or writes.
pub(super) trait Entry: Copy {}
/// Fill and completion rings: an address in the UMEM.
impl Entry for u64 {}
/// Receive and transmit rings.
impl Entry for libc::xdp_desc {}

/// What both sides of a ring have in common.
struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    _mapping: Rc<Mapping>,
}

impl<T: Entry> Ring<T> {
    fn new(mapping: Rc<Mapping>, at: Layout, size: u32) -> Ring<T> {
        assert!(size.is_power_of_two());
        let word = |offset| mapping.at(offset, 4).cast::<AtomicU32>();
        let entries = mapping.at(at.entries, size as usize * size_of::<T>()).cast::<T>();
        assert!(entries.is_aligned() && word(at.producer).is_aligned());
        Ring {
            producer: word(at.producer),
            consumer: word(at.consumer),
            flags: word(at.flags),
            entries,
            size,
            _mapping: mapping,
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: mapped as long as `_mapping` is held, aligned, and changed atomically only.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn place(&self, number: u32) -> NonNull<T> {
        // SAFETY: below `size`, so within the entries, which are mapped.
        unsafe { self.entries.add((number & (self.size - 1)) as usize) }
    }
}

/// Our end of a ring that we write: fill and transmit.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Number of the next entry to write; those from `producer` on are not visible yet.
    next: u32,
}

impl<T: Entry> Producer<T> {
    /// A ring of `size` entries, still empty.
    pub(super) fn new(mapping: Rc<Mapping>, at: Layout, size: u32) -> Self {
        let ring = Ring::new(mapping, at, size);
        let next = ring.producer().load(Ordering::Relaxed);
        Producer { ring, next }
    }

    /// Entries written that the kernel has not consumed.
    pub(super) fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// Entries that can be written now.
    pub(super) fn free(&self) -> u32 {
        self.ring.size - self.pending()
    }

    /// Writes an entry; the kernel sees it after [`Producer::publish`].
    ///
    /// # Panics
    /// If the ring is full (debug builds look): the caller has asked [`Producer::free`].
    pub(super) fn push(&mut self, entry: T) {
        debug_assert!(self.free() > 0);
        // SAFETY: a mapped, aligned place that the kernel has consumed and reads again only after
        // it is published.
        unsafe { self.ring.place(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel all that was written.
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// True if the kernel waits for a system call before it looks at the ring again.
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `Ring::producer`.
        let flags = unsafe { self.ring.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Our end of a ring that we read: receive and completion.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Number of the next entry to read.
    next: u32,
}

impl<T: Entry> Consumer<T> {
    /// A ring of `size` entries.
    pub(super) fn new(mapping: Rc<Mapping>, at: Layout, size: u32) -> Self {
        let ring = Ring::new(mapping, at, size);
        let next = ring.consumer().load(Ordering::Relaxed);
        Consumer { ring, next }
    }

    /// Entries that can be read now.
    pub(super) fn waiting(&self) -> u32 {
        self.ring.producer().load(Ordering::Acquire).wrapping_sub(self.next)
    }

    /// The `at`th entry that waits, below [`Consumer::waiting`].
    pub(super) fn peek(&self, at: u32) -> T {
        // SAFETY: a mapped, aligned place that the kernel has written (the acquiring load in
        // `waiting` saw that) and writes again only after it is released.
        unsafe { self.ring.place(self.next.wrapping_add(at)).read() }
    }

    /// Gives the first `count` places back to the kernel.
    pub(super) fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

    fn both_ends(size: u32, first: u32) -> (Producer<u64>, Consumer<u64>) {
        let mapping = Rc::new(Mapping::anonymous(4096).unwrap());
        for offset in [LAYOUT.producer, LAYOUT.consumer] {
            // SAFETY: four mapped bytes that nobody else has.
            unsafe { mapping.at(offset, 4).cast::<u32>().write(first) };
        }
        (Producer::new(mapping.clone(), LAYOUT, size), Consumer::new(mapping, LAYOUT, size))
    }

    #[test]
    fn entries_come_out_in_order_also_where_numbers_wrap() {
        for first in [0, u32::MAX - 5] {
            let (mut producer, mut consumer) = both_ends(8, first);
            let (mut written, mut read) = (0, 0);
            for round in 0..20 {
                for _ in 0..(round % 8) + 1 {
                    producer.push(written);
                    written += 1;
                }
                assert_eq!(consumer.waiting(), 0, "not published yet");
                producer.publish();
                assert_eq!(u64::from(producer.pending()), written - read);
                let waiting = consumer.waiting();
                for at in 0..waiting {
                    assert_eq!(consumer.peek(at), read);
                    read += 1;
                }
                consumer.release(waiting);
                assert_eq!(producer.free(), 8);
            }
            assert_eq!(read, written);
        }
    }

    #[test]
    fn a_full_ring_has_no_room() {
        let (mut producer, mut consumer) = both_ends(4, 7);
        (0..4).for_each(|entry| producer.push(entry));
        producer.publish();
        assert_eq!((producer.free(), consumer.waiting()), (0, 4));
        consumer.release(1);
        assert_eq!((producer.free(), consumer.peek(0)), (1, 1));
    }
}
