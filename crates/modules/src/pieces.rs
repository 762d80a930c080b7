//! [`Pieces`]: the answers to the parts of one I/O, and how they become one.

use thinwire_buffer::SegList;

use thinwire_volume::stores::{EXTENTS_MAX, push_extent};
use thinwire_volume::{Completion, Extent};

/// In the order of the ranges of the parts.
#[derive(Default)]
pub(super) struct Pieces(Vec<Piece>);

#[derive(Default)]
struct Piece {
    len: u64,
    data: SegList,
    extents: Vec<Extent>,
}

impl Pieces {
    /// Expects the answer to a part of `len` bytes behind the others.
    pub fn push(&mut self, len: u64) {
        self.0.push(Piece { len, ..Piece::default() });
    }

    /// Takes the answer out of a completion, if any is expected.
    pub fn fill(&mut self, piece: usize, completion: &mut Completion) {
        if let Some(piece) = self.0.get_mut(piece) {
            piece.data = std::mem::take(&mut completion.data);
            piece.extents = std::mem::take(&mut completion.extents);
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// What a read got.
    pub fn join_data(&mut self) -> SegList {
        let mut all = SegList::new();
        for piece in self.0.drain(..) {
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
        let mut all = Vec::new();
        for piece in self.0.drain(..) {
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
}
