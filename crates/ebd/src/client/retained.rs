//! What was written, answered and not flushed: it is kept, to be sent again should the server lose it (`docs/ebd.md`,
//! "Loss").

use std::collections::BTreeMap;

use thinwire_buffer::SegList;

/// A part of a write, or all of it.
#[derive(Debug)]
struct Piece {
    /// Of the write, in the order of answers.
    number: u64,
    end: u32,
    data: SegList,
}

/// By place: no two of them overlap, since of two writes of a place the later is what is there. So the order in which
/// they are sent again means nothing, and none is put over what came after it.
#[derive(Debug, Default)]
pub(super) struct Retained {
    pieces: BTreeMap<u32, Piece>,
    bytes: usize,
    next: u64,
}

impl Retained {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// A flush that is asked for now covers all that is below this.
    pub fn mark(&self) -> u64 {
        self.next
    }

    /// First sectors of all.
    pub fn starts(&self) -> impl Iterator<Item = u32> + '_ {
        self.pieces.keys().copied()
    }

    /// The piece that begins there: its end, and its data.
    pub fn get(&self, start: u32) -> Option<(u32, &SegList)> {
        self.pieces.get(&start).map(|piece| (piece.end, &piece.data))
    }

    /// The data of a part of what is kept, which one write or the rest of it holds.
    pub fn part(&self, start: u32, end: u32) -> SegList {
        let mut data = SegList::new();
        let holds = self.pieces.range(..=start).next_back().filter(|(_, piece)| piece.end >= end);
        let (&from, piece) = holds.expect("what is asked for is kept");
        let (at, len) = ((start - from) as usize * 512, (end - start) as usize * 512);
        piece.data.slice_into(at, len, &mut data);
        data
    }

    /// A write was answered.
    pub fn add(&mut self, start: u32, end: u32, data: SegList) {
        self.supersede(start, end);
        self.bytes += data.bytes();
        self.pieces.insert(start, Piece { number: self.next, end, data });
        self.next += 1;
    }

    /// Something else is there by now, durably or kept as well.
    pub fn supersede(&mut self, start: u32, end: u32) {
        let before = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.end > start);
        let first = before.map_or(start, |(&from, _)| from);
        let over: Vec<u32> = self.pieces.range(first..end).map(|(&from, _)| from).collect();
        for from in over {
            let piece = self.pieces.remove(&from).expect("just seen");
            self.bytes -= piece.data.bytes();
            self.keep_part(from, &piece, (from, start));
            self.keep_part(from, &piece, (end, piece.end));
        }
    }

    fn keep_part(&mut self, from: u32, piece: &Piece, (start, end): (u32, u32)) {
        if start >= end {
            return;
        }
        let mut data = SegList::new();
        let (at, len) = ((start - from) as usize * 512, (end - start) as usize * 512);
        piece.data.slice_into(at, len, &mut data);
        self.bytes += data.bytes();
        self.pieces.insert(start, Piece { number: piece.number, end, data });
    }

    /// What was answered before this mark is on the medium.
    pub fn flushed(&mut self, mark: u64) {
        let bytes = &mut self.bytes;
        self.pieces.retain(|_, piece| {
            let is_left = piece.number >= mark;
            *bytes -= if is_left { 0 } else { piece.data.bytes() };
            is_left
        });
    }

    /// Nothing is kept any more.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_buffer::Pool;

    fn data(pool: &Pool, sectors: usize, with: u8) -> SegList {
        SegList::of(pool.copy_of(&vec![with; sectors * 512]).freeze())
    }

    /// What is kept, by sector: the first byte of each.
    fn seen(kept: &Retained) -> Vec<(u32, u8)> {
        let sectors = |start: u32| {
            let (end, data) = kept.get(start).expect("it begins there");
            let bytes = data.to_vec();
            assert_eq!(bytes.len(), (end - start) as usize * 512);
            (start..end).map(move |at| (at, bytes[(at - start) as usize * 512])).collect::<Vec<_>>()
        };
        kept.starts().flat_map(sectors).collect()
    }

    #[test]
    fn of_two_writes_of_a_place_the_later_is_kept() {
        let (pool, mut kept) = (Pool::new(1 << 20), Retained::default());
        kept.add(10, 20, data(&pool, 10, 1));
        let first = kept.mark();
        kept.add(14, 16, data(&pool, 2, 2));
        kept.add(18, 24, data(&pool, 6, 3));
        let with = |at: u32| match at {
            14..16 => 2,
            18.. => 3,
            _ => 1,
        };
        assert_eq!(seen(&kept), (10..24).map(|at| (at, with(at))).collect::<Vec<_>>());
        assert_eq!(kept.bytes(), 14 * 512);
        // What is durable is nothing to be kept, and nothing of before is put over it.
        kept.supersede(12, 15);
        assert_eq!(kept.bytes(), 11 * 512);
        assert!(seen(&kept).iter().all(|&(at, _)| !(12..15).contains(&at)));
        kept.flushed(first);
        assert_eq!(seen(&kept), [(15, 2), (18, 3), (19, 3), (20, 3), (21, 3), (22, 3), (23, 3)]);
        kept.flushed(kept.mark());
        assert!(kept.is_empty() && kept.bytes() == 0);
    }
}
