//! One I/O that is on its way, and the pieces in which it is.

use thinwire_buffer::{SegList, Time};
use thinwire_volume::ErrorKind;
use thinwire_wire::aoe::ErrorCode;

use super::Pending;
use super::late::SentFrame;

/// A server refuses a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub since: Time,
    /// When it did last, and why.
    pub last: Time,
    pub code: Option<ErrorCode>,
}

/// What one frame asks for.
#[derive(Debug)]
pub(super) struct Piece {
    pub sector: u64,
    pub sectors: u8,
    /// Under which it went out, each time another, as far as those frames may still be on their way.
    pub frames: Vec<SentFrame>,
    pub first: Time,
    pub sent: Time,
    pub tries: u32,
    /// It was, when it was sent last or once more before: it is one of those that are held ([`Held`](super::held::Held)).
    pub refused: Option<Refusal>,
    /// How often it was not answered while the server said something else, and since when.
    pub ignored: (u32, Time),
    pub is_done: bool,
    /// Of a read.
    pub data: SegList,
}

/// Empty lists, of what was done, for what is to be.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pub pieces: Vec<Vec<Piece>>,
    pub frames: Vec<Vec<SentFrame>>,
}

impl Spare {
    pub fn put_frames(&mut self, mut frames: Vec<SentFrame>) {
        frames.clear();
        self.frames.push(frames);
    }
}

impl Piece {
    pub fn new(sector: u64, sectors: u8, now: Time, spare: &mut Spare) -> Self {
        Piece {
            sector,
            sectors,
            frames: spare.frames.pop().unwrap_or_default(),
            first: now,
            sent: now,
            tries: 0,
            refused: None,
            ignored: (0, Time::ZERO),
            is_done: false,
            data: SegList::new(),
        }
    }

    /// What was sent last was refused, too, or may still be.
    pub fn is_held(&self) -> bool {
        self.refused.is_some_and(|refusal| refusal.last >= self.sent)
    }

    /// Pieces of so many sectors each, of what is from `start` to `end`.
    pub fn cut(
        (start, end): (u64, u64),
        frame_sectors: u8,
        now: Time,
        spare: &mut Spare,
        into: &mut Vec<Piece>,
    ) {
        let mut from = start;
        while from < end {
            let sectors = (end - from).min(u64::from(frame_sectors)) as u8;
            into.push(Piece::new(from, sectors, now, spare));
            from += u64::from(sectors);
        }
    }
}

/// One I/O that is on its way, in pieces.
#[derive(Debug)]
pub(super) struct Request {
    pub pending: Pending,
    pub pieces: Vec<Piece>,
    /// Those from here on have not been sent.
    pub unsent: usize,
    pub error: Option<ErrorKind>,
}

impl Request {
    pub fn new(pending: Pending, frame_sectors: u8, now: Time, spare: &mut Spare) -> Self {
        let mut pieces = spare.pieces.pop().unwrap_or_default();
        Piece::cut((pending.start, pending.end), frame_sectors, now, spare, &mut pieces);
        if pieces.is_empty() {
            // A flush.
            pieces.push(Piece::new(0, 0, now, spare));
        }
        Request { pending, pieces, unsent: 0, error: None }
    }

    /// Since when a server refuses some of it.
    pub fn refused_since(&self) -> Option<Time> {
        self.in_flight().filter_map(|piece| piece.refused).map(|refusal| refusal.since).min()
    }

    /// Those that are on their way.
    pub fn in_flight(&self) -> impl Iterator<Item = &Piece> {
        self.pieces[..self.unsent].iter().filter(|piece| !piece.is_done)
    }
}
