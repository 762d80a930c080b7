//! A request of [`Unaligned`](super::Unaligned): where it stands, and what it makes of blocks.

use thinwire_buffer::{Buf, Pool, SegList};

use crate::{Extent, IoError, Op, Token};

/// Where a request stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Behind another request that holds its blocks.
    Waiting,
    /// Its edge blocks are being read.
    Edges,
    /// The operation itself is being done.
    Main,
}

/// What there is to a request.
#[expect(
    clippy::large_enum_variant,
    reason = "a box for the larger would be an allocation for each of them"
)]
pub(super) enum Place {
    Free,
    /// It is one I/O below, as it was submitted.
    Straight {
        token: Token,
        op: Op,
        len: u64,
    },
    Any(AnyRangeRequest),
}

impl Place {
    pub fn request(&mut self) -> Option<&mut AnyRangeRequest> {
        match self {
            Place::Any(request) => Some(request),
            Place::Free | Place::Straight { .. } => None,
        }
    }
}

/// A submitted request that is not one I/O below, or has to wait.
pub(super) struct AnyRangeRequest {
    pub token: Token,
    pub op: Op,
    pub flags: crate::IoFlags,
    pub offset: u64,
    pub len: u64,
    /// A write's payload until it is passed on; then what a read got in one piece.
    pub data: SegList,
    /// The blocks concerned: `[offset, offset + len)` widened (for a discard, narrowed).
    pub start: u64,
    pub end: u64,
    pub phase: Phase,
    /// I/Os below that are not complete.
    pub pending: u32,
    /// The first thing that went wrong.
    pub error: Option<IoError>,
    /// What the partial first and last blocks held.
    pub edges: [SegList; 2],
    /// A split read's pieces in order; else empty.
    pub pieces: Vec<SegList>,
    pub extents: Vec<Extent>,
}

impl AnyRangeRequest {
    pub fn stop(&self) -> u64 {
        self.offset + self.len
    }

    /// A write whose first or last block is partial.
    pub fn modifies_edges(&self) -> bool {
        matches!(self.op, Op::Write | Op::WriteZeroes)
            && (self.start != self.offset || self.end != self.stop())
    }

    /// First bytes of the partial blocks at the front and at the end, as far as they must be
    /// modified. A single block that is partial at both sides is the front one.
    pub fn edge_blocks(&self, block: u64) -> [Option<u64>; 2] {
        if !self.modifies_edges() {
            return [None, None];
        }
        let front = (self.start != self.offset).then_some(self.start);
        let back = (self.end != self.stop()).then(|| self.end - block);
        [front, if front == back { None } else { back }]
    }

    /// The `edge`th partial block with this request's bytes in place.
    pub fn patched(&self, edge: usize, at: u64, block: u64, pool: &Pool) -> Buf {
        let mut buf = pool.get(block as usize);
        self.edges[edge].copy_to(&mut buf);
        let from = self.offset.max(at);
        let to = self.stop().min(at + block);
        let hole = &mut buf[(from - at) as usize..(to - at) as usize];
        match self.op {
            Op::Write => {
                let mut part = SegList::new();
                self.data.slice_into((from - self.offset) as usize, hole.len(), &mut part);
                part.copy_to(hole);
            }
            _ => hole.fill(0),
        }
        buf
    }
}

/// The bytes a read asked for, out of the blocks that were read.
pub(super) fn gather(request: &mut AnyRangeRequest) -> SegList {
    let mut all = std::mem::take(&mut request.data);
    for piece in request.pieces.drain(..) {
        all.append(piece);
    }
    assert_eq!(all.bytes() as u64, request.end - request.start, "a read of another length");
    if request.end - request.start == request.len {
        return all;
    }
    let mut wanted = SegList::new();
    all.slice_into((request.offset - request.start) as usize, request.len as usize, &mut wanted);
    wanted
}
