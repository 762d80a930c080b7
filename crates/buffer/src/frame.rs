//! What links move: frames received and frames to send, in batches.

use std::time::Duration;

use crate::{Addr, Pool, SegList, Segment};

/// A frame that arrived, in one piece or several. It starts at the protocol's version byte (link
/// headers are already cut off) and may be longer than the frame: Ethernet pads.
#[derive(Clone, Debug)]
pub struct RxFrame {
    /// The station that sent it.
    pub from: Addr,
    /// The frame, and possibly padding; its first piece if it is in several.
    pub bytes: Segment,
    /// The pieces behind the first, where a link receives large frames in chunks; else empty.
    pub rest: SegList,
    /// How long it had lain in this machine's queues: time that the receiver spent, not the network.
    /// Without what it lay in the kernel's where the link cannot tell.
    pub waited: Duration,
    /// The part of that between the thread that took it out of the kernel's queue and the one that
    /// has it now. Zero where that is the same thread.
    pub queued: Duration,
}

impl RxFrame {
    /// Bytes of all pieces.
    #[inline]
    pub fn len(&self) -> usize {
        if self.rest.is_empty() { self.bytes.len() } else { self.bytes.len() + self.rest.bytes() }
    }

    /// True if there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.rest.is_empty()
    }

    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Segment> + Clone {
        std::iter::once(&self.bytes).chain(self.rest.iter())
    }

    /// The window `[offset, offset + len)`, sharing the memory, if it lies in the first piece.
    #[inline]
    pub fn slice_of_first(&self, offset: usize, len: usize) -> Option<Segment> {
        (offset + len <= self.bytes.len()).then(|| self.bytes.slice(offset, len))
    }

    /// Gives `take` the pieces of the window `[offset, offset + len)` in order, sharing the memory.
    ///
    /// # Panics
    /// If it does not lie within the frame.
    pub fn slice(&self, offset: usize, len: usize, mut take: impl FnMut(Segment)) {
        self.windows(offset, len, |piece, at, len| take(piece.slice(at, len)));
    }

    /// Copies the bytes from `offset` on to `out`.
    ///
    /// # Panics
    /// If there are fewer than fit.
    #[inline]
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        if let Some(bytes) = self.bytes.get(offset..offset + out.len()) {
            return out.copy_from_slice(bytes);
        }
        let mut done = 0;
        self.windows(offset, out.len(), |piece, at, len| {
            out[done..done + len].copy_from_slice(&piece[at..at + len]);
            done += len;
        });
    }

    /// The frame in one piece, which is a copy of it if it was in several.
    pub fn joined(&self, pool: &Pool) -> RxFrame {
        let (from, waited, queued) = (self.from, self.waited, self.queued);
        let bytes = match self.rest.is_empty() {
            true => self.bytes.clone(),
            false => {
                let mut whole = pool.get(self.len());
                self.copy_to(0, &mut whole);
                whole.freeze()
            }
        };
        RxFrame { from, bytes, rest: SegList::new(), waited, queued }
    }

    /// Walks over the parts of pieces that make up a window.
    fn windows(
        &self,
        mut offset: usize,
        mut len: usize,
        mut take: impl FnMut(&Segment, usize, usize),
    ) {
        for piece in self.pieces() {
            if offset >= piece.len() {
                offset -= piece.len();
                continue;
            }
            let part = len.min(piece.len() - offset);
            take(piece, offset, part);
            (offset, len) = (0, len - part);
            if len == 0 {
                return;
            }
        }
        assert_eq!(len, 0, "window outside its frame");
    }
}

/// Frames in the order of their arrival. Filled by a link, drained by the protocol.
pub type RxBatch = std::collections::VecDeque<RxFrame>;

/// A frame to send: headers in `head`, then the payload segments, in order, without gaps.
#[derive(Debug)]
pub struct TxFrame {
    /// The station to send it to.
    pub to: Addr,
    /// Header bytes, including the padding up to the data offset if there is a payload.
    pub head: Vec<u8>,
    /// Payload by reference. Dropped as soon as the frame is sent or dropped ([`TxBatch::sent`]).
    pub data: SegList,
    /// Of no session: it may be for somebody who is not there, so a link that can has it wait apart from the
    /// others, and drops it before they would wait for it.
    pub is_outside: bool,
}

impl TxFrame {
    /// Without payload, of a session.
    pub fn new(to: Addr, head: Vec<u8>) -> Self {
        TxFrame { to, head, data: SegList::new(), is_outside: false }
    }

    /// Length of the whole frame in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.head.len() + self.data.bytes()
    }
}

/// Bytes of a head that are there from the beginning: who builds frames stays below it on the way of
/// an I/O, so that a head need not grow there.
pub const TX_HEAD_BYTES: usize = 2560;

/// Frames waiting for one link's send call, in order. Emptied frames keep their storage for the next
/// use.
#[derive(Debug, Default)]
pub struct TxBatch {
    frames: Vec<TxFrame>,
    /// Those before have been sent.
    start: usize,
    /// Those before have been looked at.
    seen: usize,
    /// Those behind are storage.
    len: usize,
    lent: bool,
    last_pieces: usize,
}

impl TxBatch {
    /// An empty batch.
    pub const fn new() -> Self {
        TxBatch { frames: Vec::new(), start: 0, seen: 0, len: 0, lent: false, last_pieces: 0 }
    }

    /// Adds an empty frame for `to` and returns it for filling.
    #[inline]
    pub fn push(&mut self, to: Addr) -> &mut TxFrame {
        if self.len == self.frames.len() {
            self.make_room(to);
        }
        let frame = &mut self.frames[self.len];
        debug_assert!(frame.head.is_empty() && frame.data.is_empty());
        frame.to = to;
        frame.is_outside = false;
        self.len += 1;
        frame
    }

    /// Adds a frame as `frame` is, which is left empty, with the storage of what was here.
    pub fn push_moved(&mut self, frame: &mut TxFrame) {
        let moved = self.push(frame.to);
        std::mem::swap(moved, frame);
    }

    /// Moves all frames of `other` here, behind those that are.
    pub fn append(&mut self, other: &mut TxBatch) {
        other.frames_mut().iter_mut().for_each(|frame| self.push_moved(frame));
        other.clear();
    }

    /// A frame's storage behind the last: that of frames that have been sent, if a batch is never
    /// empty and half of it are such, else new.
    #[cold]
    fn make_room(&mut self, to: Addr) {
        if !self.lent && self.start > self.len / 2 {
            self.frames.rotate_left(self.start);
            self.len -= self.start;
            self.seen = self.seen.saturating_sub(self.start);
            self.start = 0;
        } else {
            self.frames.push(TxFrame::new(to, Vec::with_capacity(TX_HEAD_BYTES)));
        }
    }

    /// Takes back the frame pushed last.
    pub fn pop(&mut self) {
        assert!(!self.is_empty());
        self.len -= 1;
        self.seen = self.seen.min(self.len);
        let frame = &mut self.frames[self.len];
        frame.head.clear();
        frame.data.clear();
    }

    /// The frames in order.
    #[inline]
    pub fn frames(&self) -> &[TxFrame] {
        &self.frames[self.start..self.len]
    }

    /// The frames in order, for wrappers that change them.
    pub fn frames_mut(&mut self) -> &mut [TxFrame] {
        &mut self.frames[self.start..self.len]
    }

    /// The frames that this has not returned before, for wrappers that look at each once however
    /// often it is tried to send it.
    pub fn unseen(&mut self) -> &[TxFrame] {
        let from = self.seen.max(self.start);
        self.seen = self.len;
        &self.frames[from..self.len]
    }

    /// How many frames wait.
    pub fn len(&self) -> usize {
        self.len - self.start
    }

    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.len == self.start
    }

    /// The first `count` frames have been sent, or dropped: lets go of their payloads.
    pub fn sent(&mut self, count: usize) {
        assert!(count <= self.len());
        if !self.lent {
            for frame in &mut self.frames[self.start..self.start + count] {
                frame.head.clear();
                frame.data.clear();
            }
        }
        self.start += count;
        if self.start == self.len && !self.lent {
            (self.start, self.seen, self.len, self.last_pieces) = (0, 0, 0, 0);
        }
    }

    /// Drops the last frames, so that at most `count` wait. Returns how many were dropped. Does nothing
    /// while the batch is lent.
    pub fn truncate(&mut self, count: usize) -> usize {
        if self.lent {
            return 0;
        }
        let excess = self.len().saturating_sub(count);
        (0..excess).for_each(|_| self.pop());
        excess
    }

    /// Takes note that the last pieces of so many requests (at a target: completions) are in these
    /// frames.
    #[inline]
    pub fn add_last_pieces(&mut self, count: usize) {
        self.last_pieces += count;
    }

    /// Nothing ends in these frames that anybody measures: what was sent once is sent again.
    pub fn forget_last_pieces(&mut self) {
        self.last_pieces = 0;
    }

    /// How many requests end in these frames: with this batch they have been sent.
    pub fn last_pieces(&self) -> usize {
        self.last_pieces
    }

    /// While a batch is lent, [`TxBatch::clear`] does nothing, and [`TxBatch::sent`] keeps the
    /// payloads: they are counted without atomics, so that a thread that only sends the batch for
    /// another must not let go of them.
    pub fn lend(&mut self, lent: bool) {
        self.lent = lent;
    }

    /// Drops all frames, letting go of their payloads; keeps the storage.
    pub fn clear(&mut self) {
        if self.lent {
            return;
        }
        self.start = 0;
        self.sent(self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_frame_in_pieces_are_those_of_the_whole() {
        let pool = Pool::new(1 << 20);
        let part = |bytes: &[u8]| pool.copy_of(bytes).freeze();
        let mut rest = SegList::of(part(b"defg"));
        rest.push(part(b"hi"));
        let frame = RxFrame {
            from: Addr::Group,
            bytes: part(b"abc"),
            rest,
            waited: Duration::from_micros(9),
            queued: Duration::from_micros(4),
        };
        let whole = b"abcdefghi";
        assert_eq!(frame.len(), whole.len());
        for from in 0..whole.len() {
            for to in from..=whole.len() {
                let mut out = Vec::new();
                frame.slice(from, to - from, |piece| out.extend_from_slice(&piece));
                assert_eq!(out, &whole[from..to]);
                let first = frame.slice_of_first(from, to - from);
                assert_eq!(first.as_deref(), (to <= 3).then_some(&out[..]));
                out.fill(0);
                frame.copy_to(from, &mut out);
                assert_eq!(out, &whole[from..to]);
            }
        }
        let joined = frame.joined(&pool);
        assert!(joined.rest.is_empty());
        assert_eq!(&joined.bytes[..], whole);
        assert_eq!((joined.waited, joined.queued), (frame.waited, frame.queued));
    }

    fn numbers(frames: &[TxFrame]) -> Vec<u8> {
        frames.iter().map(|frame| frame.head[0]).collect()
    }

    #[test]
    fn what_moves_to_another_batch_is_what_it_was() {
        let (mut from, mut to) = (TxBatch::new(), TxBatch::new());
        to.push(Addr::Sim(1)).head.push(1);
        let frame = from.push(Addr::Sim(2));
        frame.head.push(2);
        frame.is_outside = true;
        to.append(&mut from);
        assert!(from.is_empty());
        let seen: Vec<_> = to.frames().iter().map(|f| (f.to, f.head[0], f.is_outside)).collect();
        assert_eq!(seen, [(Addr::Sim(1), 1, false), (Addr::Sim(2), 2, true)]);
        to.clear();
        assert!(!to.push(Addr::Sim(3)).is_outside, "storage that is used again");
    }

    #[test]
    fn a_batch_that_is_never_empty_does_not_grow() {
        let mut batch = TxBatch::new();
        let mut next = 0u8;
        for _ in 0..10_000 {
            while batch.len() < 5 {
                batch.push(Addr::Group).head.push(next);
                next = next.wrapping_add(1);
            }
            batch.sent(2);
            let first = next.wrapping_sub(3);
            assert_eq!(numbers(batch.frames()), [0, 1, 2].map(|i| first.wrapping_add(i)));
        }
        assert!(batch.frames.len() <= 16, "storage for {} frames", batch.frames.len());
    }

    #[test]
    fn every_frame_is_unseen_once() {
        let mut batch = TxBatch::new();
        let push = |batch: &mut TxBatch, numbers: std::ops::Range<u8>| {
            numbers.for_each(|n| batch.push(Addr::Group).head.push(n));
        };
        push(&mut batch, 0..4);
        assert_eq!(numbers(batch.unseen()), [0, 1, 2, 3]);
        assert!(batch.unseen().is_empty());
        batch.sent(2);
        push(&mut batch, 4..6);
        assert_eq!(numbers(batch.unseen()), [4, 5]);
        // What is dropped from the end makes room for others.
        batch.truncate(1);
        push(&mut batch, 6..20);
        batch.sent(3);
        assert_eq!(numbers(batch.unseen()), (8..20).collect::<Vec<_>>());
        batch.clear();
        push(&mut batch, 20..21);
        assert_eq!(numbers(batch.unseen()), [20]);
    }

    #[test]
    fn what_ends_in_a_batch_goes_with_it_and_stays_while_it_is_lent() {
        let mut batch = TxBatch::new();
        batch.push(Addr::Group);
        batch.add_last_pieces(2);
        batch.add_last_pieces(1);
        batch.lend(true);
        batch.clear();
        assert_eq!((batch.len(), batch.last_pieces()), (1, 3));
        batch.forget_last_pieces();
        assert_eq!((batch.len(), batch.last_pieces()), (1, 0));
        batch.add_last_pieces(1);
        batch.lend(false);
        batch.clear();
        assert_eq!((batch.len(), batch.last_pieces()), (0, 0));
    }
}
