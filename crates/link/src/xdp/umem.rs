//! The memory that an AF_XDP socket receives into and sends from (UMEM): chunks of one size, which
//! pass between the kernel and us.
//!
//! A chunk that the kernel filled is lent out as a [`Buf`], whose segments travel like those of a
//! pool; when the last is dropped, the chunk is free to be given to the kernel again. All of a
//! chunk's life is one thread's.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use rustix::mm::{MapFlags, ProtFlags};
use thinwire_buffer::{Buf, Lender, Lent, PAGE_BYTES};

/// The largest chunk that the kernel allows, and the one used.
pub(super) const CHUNK_BYTES: usize = PAGE_BYTES;

/// Memory mapped into this process, until it is dropped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Fresh memory of zeroes, page aligned and present.
    pub(super) fn anonymous(len: usize) -> io::Result<Mapping> {
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        Ok(Mapping::of(start, len))
    }

    /// A part of what a descriptor offers.
    pub(super) fn of_file(
        fd: std::os::fd::BorrowedFd<'_>,
        len: usize,
        offset: u64,
    ) -> io::Result<Mapping> {
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: as above.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) }?;
        Ok(Mapping::of(start, len))
    }

    fn of(start: *mut std::ffi::c_void, len: usize) -> Mapping {
        Mapping { start: NonNull::new(start.cast()).expect("mapped"), len }
    }

    /// The address of the byte at `offset`, behind which `bytes` more are mapped.
    ///
    /// # Panics
    /// If they are not.
    pub(super) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset + bytes <= self.len, "outside the mapping");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever points into it holds it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One chunk. Its bytes are read and written through this value only, and only while the kernel
/// does not have the chunk: [`Region`] sees to that.
struct Chunk {
    at: NonNull<u8>,
    region: Weak<Region>,
    /// Keeps the memory where it is for longer than the link may live.
    _mapping: Rc<Mapping>,
}

impl Lent for Chunk {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the chunk is mapped and initialised as long as `_mapping` is held. Nobody writes
        // to it while a reference is alive: we only through `bytes_mut`, and the kernel only while
        // it has the chunk, when nobody has a reference ([`Region::take`], [`Region::write`]).
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), CHUNK_BYTES) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and this is the chunk's only value, exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), CHUNK_BYTES) }
    }

    fn lender(&self) -> Option<Rc<dyn Lender>> {
        Some(self.region.upgrade()?)
    }
}

/// The chunks of one socket: `received` to receive into, and behind them those to send from.
pub(super) struct Region {
    mapping: Rc<Mapping>,
    /// By number; `None` while it is lent out.
    chunks: RefCell<Vec<Option<Buf>>>,
    /// Those to receive into that neither the kernel nor anybody else has.
    free: RefCell<Vec<u32>>,
    received: u32,
    lent: Cell<u32>,
}

impl Region {
    /// Chunks to receive into and to send from. Nobody has any of them yet.
    pub(super) fn new(received: u32, sent: u32) -> io::Result<Rc<Region>> {
        let count = (received + sent) as usize;
        let mapping = Rc::new(Mapping::anonymous(count * CHUNK_BYTES)?);
        Ok(Rc::new_cyclic(|region| {
            let chunk = |number: usize| Chunk {
                at: mapping.at(number * CHUNK_BYTES, CHUNK_BYTES),
                region: region.clone(),
                _mapping: mapping.clone(),
            };
            let chunks = (0..count).map(|n| Some(Buf::lent(Box::new(chunk(n))))).collect();
            Region {
                chunks: RefCell::new(chunks),
                free: RefCell::new((0..received).rev().collect()),
                received,
                lent: Cell::new(0),
                mapping,
            }
        }))
    }

    /// Address and length, as the kernel is told.
    pub(super) fn memory(&self) -> (u64, u64) {
        (self.mapping.start.as_ptr() as u64, self.mapping.len as u64)
    }

    /// How many chunks are lent out.
    pub(super) fn lent(&self) -> u32 {
        self.lent.get()
    }

    /// A free chunk to give to the kernel, which has it until it is taken.
    pub(super) fn pop_free(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// A chunk that the kernel has filled and given back.
    ///
    /// # Panics
    /// If it is lent out already.
    pub(super) fn take(&self, number: u32) -> Buf {
        let buf = self.chunks.borrow_mut()[number as usize].take().expect("the kernel had it");
        self.lent.set(self.lent.get() + 1);
        buf
    }

    /// Writes into a chunk to send from, which the kernel does not have.
    pub(super) fn write(&self, number: u32, offset: usize, bytes: &[u8]) {
        debug_assert!(number >= self.received);
        let mut chunks = self.chunks.borrow_mut();
        let chunk = chunks[number as usize].as_mut().expect("never lent out");
        chunk[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn number_of(&self, buf: &Buf) -> u32 {
        ((buf.as_ptr() as usize - self.mapping.start.as_ptr() as usize) / CHUNK_BYTES) as u32
    }
}

impl Lender for Region {
    fn take_back(&self, mut buf: Buf) {
        let number = self.number_of(&buf);
        buf.set_len(CHUNK_BYTES);
        self.chunks.borrow_mut()[number as usize] = Some(buf);
        self.free.borrow_mut().push(number);
        self.lent.set(self.lent.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_back_with_their_last_segment_also_after_the_region() {
        let region = Region::new(2, 1).unwrap();
        let number = region.pop_free().unwrap();
        let mut chunk = region.take(number);
        chunk[100..104].copy_from_slice(b"data");
        let segment = chunk.freeze().slice(100, 4);
        let other = segment.clone();
        assert_eq!(region.lent(), 1);
        drop(segment);
        assert_eq!((region.lent(), region.pop_free()), (1, Some(1)));
        assert_eq!(region.pop_free(), None);
        drop(other);
        assert_eq!((region.lent(), region.pop_free()), (0, Some(number)));

        let segment = region.take(number).freeze().slice(100, 4);
        drop(region);
        assert_eq!(&segment[..], b"data");
    }

    #[test]
    fn chunks_to_send_from_hold_what_is_written() {
        let region = Region::new(1, 2).unwrap();
        region.write(2, 4090, b"end!!!");
        let at = region.mapping.at(2 * CHUNK_BYTES + 4090, 6);
        // SAFETY: six mapped bytes, to which nobody holds a reference.
        assert_eq!(unsafe { std::slice::from_raw_parts(at.as_ptr(), 6) }, b"end!!!");
    }
}
