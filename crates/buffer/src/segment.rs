//! Shared windows into buffers. Lists of them are in `seg_list.rs`.

use std::hint::black_box;
use std::ops::Deref;
use std::rc::Rc;

use crate::Buf;
use crate::pool::{Inner, Memory};

/// A shared, read-only window into pooled memory. Cheap to clone; the memory returns to its pool
/// with the last clone.
pub struct Segment {
    inner: Option<Rc<Inner>>,
    offset: u32,
    len: u32,
}

impl Segment {
    /// Stands for none: it is empty, and has no memory.
    pub const NOTHING: Segment = Segment { inner: None, offset: 0, len: 0 };

    pub(crate) fn whole(inner: Rc<Inner>, len: usize) -> Self {
        Segment { inner: Some(inner), offset: 0, len: len as u32 }
    }

    /// The window `[offset, offset + len)` of this window.
    ///
    /// # Panics
    /// If it does not lie within: callers have checked lengths that came from outside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Segment {
        assert!(offset + len <= self.len as usize, "slice outside its segment");
        Segment { inner: self.inner.clone(), offset: self.offset + offset as u32, len: len as u32 }
    }

    /// Bytes of the window. Known without a look at the memory.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size of the memory that this segment keeps alive, which may be far more than its length.
    pub fn pinned_bytes(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.bytes().len())
    }

    /// Whether the memory is a link's, filled with what it received ([`Pool::for_received`](crate::Pool::for_received)),
    /// or lent.
    pub fn is_received(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.is_received())
    }

    /// Whether both are windows into the same memory.
    pub fn shares_memory(&self, other: &Segment) -> bool {
        match (&self.inner, &other.inner) {
            (Some(this), Some(other)) => Rc::ptr_eq(this, other),
            _ => false,
        }
    }

    /// Where in the memory this window begins.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Whether the memory is not a pool's.
    pub fn is_lent(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.is_lent())
    }

    /// The memory itself, to be sent to another thread, if it is a pool's and no other segment
    /// shares it; else the segment back.
    pub fn into_memory(mut self) -> Result<Memory, Segment> {
        if !self.is_unique() || self.is_lent() {
            return Err(self);
        }
        Ok(Inner::into_memory(self.inner.take().expect("live")))
    }

    /// Loads what cloning this segment will change. Many segments that are not in the processor's
    /// cache are waited for together when each is touched before the first is cloned, and one after
    /// another otherwise.
    #[inline]
    pub fn touch(&self) {
        if let Some(inner) = &self.inner {
            black_box(Rc::strong_count(inner));
            black_box(inner.is_lent());
        }
    }

    #[inline(never)]
    fn let_go(&mut self) {
        if let Some(inner) = self.inner.take()
            && Rc::strong_count(&inner) == 1
        {
            Inner::recycle(inner);
        }
    }

    /// True if no other segment shares the memory.
    pub fn is_unique(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| Rc::strong_count(inner) == 1)
    }

    /// The window, writable, if no other segment shares the memory. This is how a store changes a
    /// page in place that nobody is reading.
    pub fn try_make_mut(&mut self) -> Option<&mut [u8]> {
        let inner = Rc::get_mut(self.inner.as_mut()?)?;
        let start = self.offset as usize;
        Some(&mut inner.bytes_mut()[start..start + self.len as usize])
    }

    /// The buffer itself, writable again, if this is its only segment and covers it from its
    /// start; else the segment back.
    pub fn try_into_buf(mut self) -> Result<Buf, Segment> {
        if self.is_unique() && self.offset == 0 {
            let inner = self.inner.take().expect("live");
            Ok(Buf::from_unique(inner, self.len as usize))
        } else {
            Err(self)
        }
    }
}

impl Clone for Segment {
    #[inline]
    fn clone(&self) -> Self {
        Segment { inner: self.inner.clone(), offset: self.offset, len: self.len }
    }
}

impl Deref for Segment {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let start = self.offset as usize;
        match &self.inner {
            Some(inner) => &inner.bytes()[start..start + self.len as usize],
            None => &[],
        }
    }
}

impl Drop for Segment {
    /// Most that are dropped are nothing any more: no call for those.
    #[inline]
    fn drop(&mut self) {
        if self.inner.is_some() {
            self.let_go();
        }
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({}+{})", self.offset, self.len)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pool, Segment};

    #[test]
    fn nothing_has_no_bytes() {
        assert_eq!(&Segment::NOTHING[..], b"");
        assert_eq!(&Segment::NOTHING.clone()[..], b"");
    }

    #[test]
    fn only_an_unshared_segment_can_be_written() {
        let pool = Pool::new(1 << 20);
        let mut segment = pool.copy_of(b"abcdef").freeze().slice(2, 3);
        let reader = segment.clone();
        assert!(segment.try_make_mut().is_none());
        assert_eq!(&reader[..], b"cde");
        drop(reader);
        segment.try_make_mut().unwrap().copy_from_slice(b"CDE");
        assert_eq!(&segment[..], b"CDE");
    }

    #[test]
    fn a_unique_segment_is_a_buffer_again() {
        let pool = Pool::new(1 << 20);
        let segment = pool.copy_of(b"xyz").freeze();
        let other = segment.clone();
        let segment = segment.try_into_buf().unwrap_err();
        drop(other);
        assert_eq!(&segment.try_into_buf().unwrap()[..], b"xyz");
    }
}
