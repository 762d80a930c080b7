//! Payloads: lists of segments, whose storage is used again.

use std::cell::{Cell, RefCell};

use crate::segment::Segment;

/// Storage comes with room for 8, 16, 32 ... 4096 segments.
const CLASS_COUNT: usize = 10;
const CLASS_0_SEGMENTS: usize = 8;

thread_local! {
    /// Emptied vectors by class, kept so that a payload list costs no allocation once warm.
    static SPARE: RefCell<[Vec<Vec<Segment>>; CLASS_COUNT]> =
        const { RefCell::new([const { Vec::new() }; CLASS_COUNT]) };
}

/// More room for idle segments in a class than this is not worth its memory, 2 MiB. It is 16,384
/// lists of the smallest class: what an attachment keeps for replay, at most.
const SPARE_SEGMENTS_MAX: usize = 128 << 10;

/// So many lists of the smallest class are made room for together.
const NEW_AT_ONCE: usize = 32;

/// The class of storage of exactly this room; `None` for storage that is not ours to recycle.
fn class_of(capacity: usize) -> Option<usize> {
    let class = (capacity / CLASS_0_SEGMENTS).checked_ilog2()? as usize;
    (class < CLASS_COUNT && CLASS_0_SEGMENTS << class == capacity).then_some(class)
}

/// Empty storage of a class.
fn storage(class: usize) -> Vec<Segment> {
    let spare = SPARE.try_with(|spare| spare.borrow_mut()[class].pop());
    spare.ok().flatten().unwrap_or_else(|| new_storage(class))
}

/// Of the smallest class several at once: how many are alive together creeps up for long, one by one.
#[cold]
fn new_storage(class: usize) -> Vec<Segment> {
    if class == 0 {
        let more = (1..NEW_AT_ONCE).map(|_| Vec::with_capacity(CLASS_0_SEGMENTS));
        let _ = SPARE.try_with(|spare| spare.borrow_mut()[0].extend(more));
    }
    Vec::with_capacity(CLASS_0_SEGMENTS << class)
}

/// Takes emptied storage back, if it is worth keeping.
#[inline(never)]
fn recycle(segments: Vec<Segment>) {
    let capacity = segments.capacity();
    let Some(class) = class_of(capacity) else { return };
    // At thread exit the spare lists may be gone already; then the vector is simply freed.
    let _ = SPARE.try_with(|spare| {
        let spare = &mut spare.borrow_mut()[class];
        if (spare.len() + 1) * capacity <= SPARE_SEGMENTS_MAX {
            spare.push(segments);
        }
    });
}

/// Windows of a list of no more segments are looked for from its first.
const FEW_SEGMENTS: usize = 4;

/// Where the segments of a list are.
#[derive(Debug)]
enum Store {
    /// In the list itself: one, or none if it is empty.
    One(Segment),
    /// In storage that is recycled.
    Many(Vec<Segment>),
}

impl Default for Store {
    fn default() -> Self {
        Store::One(Segment::NOTHING)
    }
}

/// A payload: segments in order. One segment takes no storage, that of several is recycled per thread.
#[derive(Debug, Default)]
pub struct SegList {
    store: Store,
    /// Where the last window ended, if there are more than a few: how many segments lie before that, and bytes in them.
    last: Cell<(u32, u32)>,
}
const _: () = assert!(size_of::<SegList>() == size_of::<Vec<Segment>>() + 8);

impl SegList {
    /// An empty list.
    pub const fn new() -> Self {
        SegList { store: Store::One(Segment::NOTHING), last: Cell::new((0, 0)) }
    }

    /// A list of one segment.
    #[inline]
    pub fn of(segment: Segment) -> Self {
        let mut list = SegList::new();
        list.push(segment);
        list
    }

    /// Makes sure that this thread has storage for `count` more lists of up to `segments` segments,
    /// so that as many can be filled without allocating. Those of one need none.
    pub fn warm(segments: usize, count: usize) {
        if segments <= 1 {
            return;
        }
        let class = segments.div_ceil(CLASS_0_SEGMENTS).next_power_of_two().ilog2() as usize;
        for class in 0..=class.min(CLASS_COUNT - 1) {
            let lists: Vec<_> = (0..count).map(|_| storage(class)).collect();
            lists.into_iter().for_each(recycle);
        }
    }

    /// Appends a segment; empty ones are skipped.
    #[inline]
    pub fn push(&mut self, segment: Segment) {
        if segment.is_empty() {
            return;
        }
        match &mut self.store {
            Store::One(place) if place.is_empty() => *place = segment,
            Store::Many(segments) if segments.len() < segments.capacity() => segments.push(segment),
            _ => self.push_growing(segment),
        }
    }

    /// Moves to storage of the next class first.
    #[inline(never)]
    fn push_growing(&mut self, segment: Segment) {
        let mut segments = match std::mem::take(&mut self.store) {
            Store::One(first) => {
                let mut segments = storage(0);
                segments.push(first);
                segments
            }
            Store::Many(mut segments) => match class_of(segments.capacity()) {
                Some(class) if class + 1 < CLASS_COUNT => {
                    let mut larger = storage(class + 1);
                    larger.append(&mut segments);
                    recycle(segments);
                    larger
                }
                // The vector grows by itself beyond the largest class.
                _ => segments,
            },
        };
        segments.push(segment);
        self.store = Store::Many(segments);
    }

    /// Length of the whole payload in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.as_slice().iter().map(|s| s.len()).sum()
    }

    /// True if there is no payload.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Bytes of links' memory that this payload keeps alive, at its true size; of neighbours in one buffer once.
    pub fn received_bytes(&self) -> usize {
        let mut last: Option<&Segment> = None;
        let received = self.as_slice().iter().filter(|segment| segment.is_received());
        let first = received.filter(|segment| {
            last.replace(segment).is_none_or(|last| !last.shares_memory(segment))
        });
        first.map(|segment| segment.pinned_bytes()).sum()
    }

    /// The segments in order.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Segment> {
        self.as_slice().iter()
    }

    /// The segments as a slice.
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        match &self.store {
            Store::One(place) if place.is_empty() => &[],
            Store::One(only) => std::slice::from_ref(only),
            Store::Many(segments) => segments,
        }
    }

    /// Appends the window `[offset, offset + len)` of this payload to `out`, sharing the memory. Windows that are
    /// asked for one behind the other take no more steps than there are segments, all together.
    ///
    /// # Panics
    /// If it does not lie within the payload.
    pub fn slice_into(&self, mut offset: usize, mut len: usize, out: &mut SegList) {
        let segments = self.as_slice();
        if segments.len() > FEW_SEGMENTS {
            return self.slice_of_many(offset, len, out);
        }
        for segment in segments {
            if len == 0 {
                return;
            }
            if offset >= segment.len() {
                offset -= segment.len();
                continue;
            }
            let take = len.min(segment.len() - offset);
            out.push(segment.slice(offset, take));
            offset = 0;
            len -= take;
        }
        assert_eq!(len, 0, "slice outside its payload");
    }

    /// As [`SegList::slice_into`], from where the last window ended if this one does not begin before.
    fn slice_of_many(&self, mut offset: usize, mut len: usize, out: &mut SegList) {
        let ((segments, bytes), all) = (self.last.get(), self.as_slice());
        let (mut at, mut start) = (segments as usize, bytes as usize);
        if offset < start {
            (at, start) = (0, 0);
        }
        while len > 0 {
            let segment = all.get(at).expect("slice outside its payload");
            let end = start + segment.len();
            if offset < end {
                let take = len.min(end - offset);
                out.push(segment.slice(offset - start, take));
                offset += take;
                len -= take;
            }
            if offset >= end {
                (at, start) = (at + 1, end);
            }
        }
        // Beyond 4 GiB it is walked from its first.
        self.last.set(u32::try_from(start).map_or((0, 0), |start| (at as u32, start)));
    }

    /// Moves all segments of `other` to the end of this list.
    pub fn append(&mut self, mut other: SegList) {
        match &mut other.store {
            Store::One(only) => self.push(std::mem::replace(only, Segment::NOTHING)),
            Store::Many(segments) => segments.drain(..).for_each(|segment| self.push(segment)),
        }
    }

    /// Takes the last segment away; `None` if there is none.
    pub fn pop(&mut self) -> Option<Segment> {
        self.last.set((0, 0));
        match &mut self.store {
            Store::One(only) if only.is_empty() => None,
            Store::One(only) => Some(std::mem::replace(only, Segment::NOTHING)),
            Store::Many(segments) => segments.pop(),
        }
    }

    /// Lets go of all segments, and of the storage.
    #[inline(never)]
    fn give_back(&mut self) {
        if let Store::Many(mut segments) = std::mem::take(&mut self.store) {
            segments.clear();
            recycle(segments);
        }
    }

    /// Lets go of all segments; keeps the storage.
    #[inline]
    pub fn clear(&mut self) {
        self.last.set((0, 0));
        match &mut self.store {
            Store::One(only) => *only = Segment::NOTHING,
            Store::Many(segments) => segments.clear(),
        }
    }

    /// Copies the payload to `out`, which must be exactly as long.
    pub fn copy_to(&self, out: &mut [u8]) {
        let mut at = 0;
        for segment in self.iter() {
            out[at..at + segment.len()].copy_from_slice(segment);
            at += segment.len();
        }
        assert_eq!(at, out.len(), "copy of a payload into a place of another size");
    }

    /// The payload as one vector: for tests and control paths.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.bytes()];
        self.copy_to(&mut out);
        out
    }

    /// The only segment, if the payload is in one piece.
    pub fn single(&self) -> Option<&Segment> {
        match self.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}

impl Clone for SegList {
    fn clone(&self) -> Self {
        let mut list = SegList::new();
        self.iter().for_each(|segment| list.push(segment.clone()));
        list
    }
}

impl Drop for SegList {
    #[inline]
    fn drop(&mut self) {
        if matches!(self.store, Store::Many(_)) {
            self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn slices_cross_segment_borders() {
        let pool = Pool::new(1 << 20);
        for parts in
            [&[&b"abc"[..], b"", b"defg", b"hi"][..], &[b"a", b"bcd", b"ef", b"g", b"h", b"i"]]
        {
            let mut list = SegList::new();
            parts.iter().for_each(|part| list.push(pool.copy_of(part).freeze()));
            assert_eq!(list.bytes(), 9);
            let slice = |list: &SegList, from: usize, to: usize| {
                let mut out = SegList::new();
                list.slice_into(from, to - from, &mut out);
                assert_eq!(out.to_vec(), b"abcdefghi"[from..to], "{parts:?}");
            };
            // Each behind each other, whatever came before.
            let windows = || (0..9).flat_map(|from| (from..=9).map(move |to| (from, to)));
            for (before, (from, to)) in
                windows().flat_map(|one| windows().map(move |two| (one, two)))
            {
                slice(&list, before.0, before.1);
                slice(&list, from, to);
            }
        }
    }

    #[test]
    fn the_last_segment_is_taken_away() {
        let pool = Pool::new(1 << 20);
        let mut list = SegList::new();
        (0..20).for_each(|n| list.push(pool.copy_of(&[n]).freeze()));
        for n in (0..20).rev() {
            assert_eq!((list.pop().as_deref(), list.bytes()), (Some(&[n][..]), n.into()));
        }
        assert!(list.pop().is_none() && list.is_empty());
    }

    #[test]
    fn windows_in_order_are_looked_for_where_the_last_one_ended() {
        let pool = Pool::new(1 << 20);
        let mut list = SegList::new();
        (0..100).for_each(|_| list.push(pool.copy_of(&[0; 10]).freeze()));
        let end = |list: &SegList, from, len| {
            let mut out = SegList::new();
            list.slice_into(from, len, &mut out);
            list.last.get()
        };
        assert_eq!(end(&list, 0, 15), (1, 10));
        assert_eq!(end(&list, 15, 15), (3, 30));
        assert_eq!(end(&list, 980, 20), (100, 1000));
        // One that is sent again, and the end, where nothing is.
        assert_eq!(end(&list, 15, 10), (2, 20));
        assert_eq!(end(&list, 990, 10), (100, 1000));
        assert_eq!(end(&list, 1000, 0), (100, 1000));
        // What is there then is another.
        list.clear();
        (0..100).for_each(|_| list.push(pool.copy_of(&[1; 7]).freeze()));
        assert_eq!(end(&list, 693, 7), (100, 700));
    }

    #[test]
    fn a_single_segment_takes_no_storage() {
        let pool = Pool::new(1 << 20);
        let one = pool.copy_of(b"x").freeze();
        let is_within = |list: &SegList| {
            let (here, at) = (std::ptr::from_ref(list).addr(), list.as_slice().as_ptr().addr());
            (here..here + size_of::<SegList>()).contains(&at)
        };
        let mut list = SegList::new();
        assert!(list.is_empty() && list.single().is_none());
        list.push(one.slice(0, 0));
        list.push(one.clone());
        list.push(one.slice(0, 0));
        assert!(is_within(&list) && list.single().is_some() && !one.is_unique());
        let mut all = list.clone();
        all.append(list.clone());
        assert!(!is_within(&all) && (all.bytes(), all.as_slice().len()) == (2, 2));
        list.append(all);
        assert_eq!(list.to_vec(), b"xxx");
        list.clear();
        assert!(list.is_empty() && one.is_unique());
        list.push(one.clone());
        assert!(!is_within(&list), "what a list has it keeps");
        drop(list);
        assert!(SegList::of(one.slice(1, 0)).is_empty() && one.is_unique());
    }

    #[test]
    fn storage_of_every_size_is_used_again() {
        let pool = Pool::new(1 << 20);
        let one = pool.copy_of(b"x").freeze();
        let list_of = |count: usize| {
            let mut list = SegList::new();
            (0..count).for_each(|_| list.push(one.clone()));
            list
        };
        // Two alive at once, one of them beyond the largest class.
        for count in [2, 8, 9, 300, 5000] {
            let lists = [list_of(count), list_of(count)];
            assert!(lists.iter().all(|list| list.bytes() == count));
            let at = lists.each_ref().map(|list| list.as_slice().as_ptr());
            drop(lists);
            let again = [list_of(count), list_of(count)];
            let recycled = again.iter().all(|list| at.contains(&list.as_slice().as_ptr()));
            assert!(recycled || count > CLASS_0_SEGMENTS << (CLASS_COUNT - 1), "{count}");
        }
    }
}
