//! Data of one use of a slot, kept in the memory that it arrived in.

use thinwire_buffer::{Pool, RxFrame, SegList, Segment};

/// Where data comes from: a frame, and the place of the message's payload in it.
#[derive(Clone, Copy)]
pub struct Arrived<'a> {
    /// The frame.
    pub frame: &'a RxFrame,
    /// Where in the frame the payload begins, in bytes.
    pub payload_at: usize,
    /// Which byte of the request's data that is.
    pub offset: usize,
}

/// Pieces of received data in order of their offsets. They share the memory of their frames, which
/// may be far more than they are long: whoever keeps them bounds that, and has the rest copied.
/// Storage is kept between two uses.
#[derive(Debug, Default)]
pub struct Pieces {
    list: Vec<(u32, Segment)>,
}

impl Pieces {
    /// Adds the bytes from `from` to `to` of the request's data, none of which are here yet. With `copy`
    /// they are copied into memory of that pool, so that nothing of the frame is kept.
    ///
    /// # Panics
    /// If they are not within the frame.
    #[inline]
    pub fn place(&mut self, arrived: Arrived<'_>, from: usize, to: usize, copy: Option<&Pool>) {
        let Arrived { frame, payload_at, offset } = arrived;
        let (at_frame, len) = (payload_at + from - offset, to - from);
        let mut at = self.list.partition_point(|(o, _)| (*o as usize) < from);
        let whole = match copy {
            Some(pool) => {
                let mut copy = pool.get_small(len);
                frame.copy_to(at_frame, &mut copy);
                Some(copy.freeze())
            }
            None => frame.slice_of_first(at_frame, len),
        };
        if let Some(piece) = whole {
            return self.list.insert(at, (from as u32, piece));
        }
        let mut here = from;
        frame.slice(at_frame, len, |piece| {
            let offset = here as u32;
            here += piece.len();
            self.list.insert(at, (offset, piece));
            at += 1;
        });
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Copies all of them to where they belong in `out`, and lets go of them. Returns how many bytes
    /// that were.
    ///
    /// # Panics
    /// If one ends beyond `out`.
    pub fn move_to(&mut self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for (at, piece) in self.list.drain(..) {
            out[at as usize..at as usize + piece.len()].copy_from_slice(&piece);
            copied += piece.len();
        }
        copied
    }

    /// Where the last piece ends; 0 without one.
    pub fn end(&self) -> usize {
        self.list.last().map_or(0, |(at, piece)| *at as usize + piece.len())
    }

    /// Lets go of those that end beyond `end`.
    pub fn cut_off(&mut self, end: usize) {
        self.list.retain(|(at, piece)| *at as usize + piece.len() <= end);
    }

    /// All of them, in order.
    pub fn take(&mut self) -> SegList {
        let mut data = SegList::new();
        self.list.drain(..).for_each(|(_, piece)| data.push(piece));
        data
    }

    /// Lets go of all.
    #[inline]
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// For how many pieces there is storage.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.list.capacity()
    }

    /// What the storage for one piece takes, in bytes.
    pub const STORAGE_BYTES: usize = size_of::<(u32, Segment)>();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thinwire_buffer::Addr;

    use super::*;

    /// A frame of 100 bytes that count up from `first`, in two pieces.
    fn frame(pool: &Pool, first: u8) -> RxFrame {
        let bytes: Vec<u8> = (first..first + 100).collect();
        let (waited, queued) = (Duration::ZERO, Duration::ZERO);
        let part = |part: &[u8]| pool.copy_of(part).freeze();
        let (bytes, rest) = (part(&bytes[..40]), SegList::of(part(&bytes[40..])));
        RxFrame { from: Addr::Sim(1), bytes, rest, waited, queued }
    }

    #[test]
    fn pieces_come_out_in_order_and_copies_keep_no_frame() {
        let pool = Pool::new(1 << 20);
        let copies = Pool::new(1 << 20);
        let mut pieces = Pieces::default();
        let (early, late) = (frame(&pool, 0), frame(&pool, 100));
        let late = Arrived { frame: &late, payload_at: 10, offset: 90 };
        let early = Arrived { frame: &early, payload_at: 10, offset: 0 };
        pieces.place(late, 100, 180, Some(&copies));
        pieces.place(late, 90, 100, None);
        pieces.place(early, 0, 90, None);
        assert_eq!(pieces.end(), 180);
        assert_eq!(copies.stats().live_bytes, 512);
        let expected: Vec<u8> = (10..100).chain(110..200).collect();
        assert_eq!(pieces.take().to_vec(), expected);
        assert_eq!((pieces.end(), copies.stats().live_bytes), (0, 0));
        pieces.place(late, 100, 180, None);
        pieces.place(early, 10, 40, None);
        assert_eq!(pieces.count(), 4, "both across the end of their frame's first piece");
        let mut out = vec![0; 200];
        assert_eq!((pieces.move_to(&mut out), pieces.count()), (110, 0));
        assert_eq!(out[10..40], expected[10..40]);
        assert_eq!(out[100..180], expected[100..180]);
        pieces.place(early, 20, 30, None);
        pieces.place(early, 30, 50, None);
        pieces.cut_off(45);
        assert_eq!(pieces.end(), 30, "the one across the end of the frame's first piece, too");
    }
}
