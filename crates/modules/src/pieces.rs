//! [`Pieces`]: the answers to the parts of one I/O, and how they become one.

use thinwire_buffer::SegList;

use thinwire_volume::stores::{EXTENTS_MAX, push_extent};
use thinwire_volume::{Completion, Extent};

#[derive(Default)]
pub(super) struct Pieces {
    /// Of each part, in the order of their first bytes.
    parts: Vec<Piece>,
    /// In what lengths the I/O's bytes were dealt to the parts, round and round; none if each part's lie together.
    dealt: Vec<u64>,
}

#[derive(Default)]
struct Piece {
    len: u64,
    data: SegList,
    extents: Vec<Extent>,
}

impl Pieces {
    /// Expects the answer to a part of `len` bytes behind the others.
    pub fn push(&mut self, len: u64) {
        self.parts.push(Piece { len, ..Piece::default() });
    }

    /// The bytes are dealt to the parts in these lengths.
    pub fn deal(&mut self, lens: impl Iterator<Item = u64>) {
        self.dealt.extend(lens);
    }

    /// Takes the answer out of a completion, if any is expected.
    pub fn fill(&mut self, piece: usize, completion: &mut Completion) {
        if let Some(piece) = self.parts.get_mut(piece) {
            piece.data = std::mem::take(&mut completion.data);
            piece.extents = std::mem::take(&mut completion.extents);
        }
    }

    pub fn clear(&mut self) {
        self.parts.clear();
        self.dealt.clear();
    }

    /// What a read got.
    pub fn join_data(&mut self) -> SegList {
        if !self.dealt.is_empty() {
            return self.join_dealt_data();
        }
        let mut all = SegList::new();
        for piece in self.parts.drain(..) {
            debug_assert_eq!(piece.data.bytes() as u64, piece.len, "a read of another length");
            if all.is_empty() {
                all = piece.data;
            } else {
                all.append(piece.data);
            }
        }
        all
    }

    /// The answers to a block status, up to the first that is shorter than its range.
    pub fn join_extents(&mut self) -> Vec<Extent> {
        if !self.dealt.is_empty() {
            return self.join_dealt_extents();
        }
        let mut all = Vec::new();
        for piece in self.parts.drain(..) {
            let told: u64 = piece.extents.iter().map(|extent| extent.len).sum();
            if all.is_empty() {
                all = piece.extents;
            } else {
                piece.extents.into_iter().for_each(|extent| push_extent(&mut all, extent));
            }
            if told < piece.len || all.len() >= EXTENTS_MAX {
                break;
            }
        }
        all.truncate(EXTENTS_MAX);
        all
    }

    fn join_dealt_data(&mut self) -> SegList {
        let mut all = SegList::new();
        for part in &mut self.parts {
            debug_assert_eq!(part.data.bytes() as u64, part.len, "a read of another length");
            // From here on how much of it has been taken.
            part.len = 0;
        }
        for (&len, turn) in self.dealt.iter().zip((0..self.parts.len()).cycle()) {
            let part = &mut self.parts[turn];
            part.data.slice_into(part.len as usize, len as usize, &mut all);
            part.len += len;
        }
        all
    }

    /// Up to the first byte of which no part tells.
    fn join_dealt_extents(&mut self) -> Vec<Extent> {
        let mut all = Vec::new();
        // Last first, so that they are taken from the end.
        self.parts.iter_mut().for_each(|part| part.extents.reverse());
        for (&len, turn) in self.dealt.iter().zip((0..self.parts.len()).cycle()) {
            let extents = &mut self.parts[turn].extents;
            let mut left = len;
            while left > 0
                && let Some(extent) = extents.last_mut()
            {
                let len = extent.len.min(left);
                push_extent(&mut all, Extent { len, ..*extent });
                (extent.len, left) = (extent.len - len, left - len);
                if extent.len == 0 {
                    extents.pop();
                }
            }
            if left > 0 || all.len() >= EXTENTS_MAX {
                break;
            }
        }
        all.truncate(EXTENTS_MAX);
        all
    }
}
