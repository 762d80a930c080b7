//! One request that is on its way: the blocks that it is about, and which of them have been answered.

use thinwire_buffer::{SegList, Time};
use thinwire_volume::{Op, Token};
use thinwire_wire::ebd::{Frame, Operation, Tag};

/// On whose behalf a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The volume's user.
    User(Token),
    /// A write that was answered and not flushed, sent again.
    Replay,
    /// The client, which asks for a flush of its own.
    Own,
}

/// What is to be asked.
#[derive(Debug)]
pub(super) struct Pending {
    pub owner: Owner,
    pub op: Op,
    pub is_durable: bool,
    /// In sectors; none for a flush.
    pub start: u32,
    pub end: u32,
    pub data: SegList,
}

impl Pending {
    /// Two that must not be on their way together.
    pub fn conflicts(&self, other: &Pending) -> bool {
        let overlap = self.start < other.end && other.start < self.end;
        overlap && (self.op == Op::Write || other.op == Op::Write)
    }

    pub fn operation(&self) -> Operation {
        match (self.op, self.is_durable) {
            (Op::Read, _) => Operation::Read,
            (Op::Flush, _) => Operation::Flush,
            (_, true) => Operation::SyncWrite,
            (_, false) => Operation::Write,
        }
    }
}

/// One that was sent.
#[derive(Debug)]
pub(super) struct Request {
    pub pending: Pending,
    pub tag: Tag,
    /// A flush's number, in place of a sector.
    pub number: u32,
    /// Sectors of a block.
    block: u32,
    /// By block, those that are missing.
    missing: u128,
    /// By block, data of a read.
    pieces: Vec<SegList>,
    /// Frames that ask for a block and have not been answered.
    pub unanswered: u32,
    pub sent: Time,
    pub first_sent: Time,
    /// When a block that was missing was answered last.
    pub answered: Time,
    /// How often it was sent again since the server said anything of it.
    pub tries: u32,
    /// It was sent again at all: what an answer took says nothing.
    pub is_repeated: bool,
    /// The server has forgotten it, or may have.
    pub to_send_again: bool,
    /// The server has said that it is there.
    pub is_acknowledged: bool,
    /// Entries of the log below this are covered by it, if it is a flush.
    pub mark: u64,
}

/// Blocks that a request has at most.
pub(super) const BLOCKS_MAX: u32 = u128::BITS;

impl Request {
    pub fn new(pending: Pending, tag: Tag, number: u32, block: u32, now: Time, mark: u64) -> Self {
        let blocks = match pending.op {
            Op::Flush => 1,
            _ => (pending.end - pending.start).div_ceil(block),
        };
        debug_assert!((1..=BLOCKS_MAX).contains(&blocks));
        let missing = u128::MAX >> (BLOCKS_MAX - blocks);
        let pieces = match pending.op {
            Op::Read => vec![SegList::new(); blocks as usize],
            _ => Vec::new(),
        };
        Request {
            pending,
            tag,
            number,
            block,
            missing,
            pieces,
            unanswered: 0,
            sent: now,
            first_sent: now,
            answered: Time::ZERO,
            tries: 0,
            is_repeated: false,
            to_send_again: false,
            is_acknowledged: false,
            mark,
        }
    }

    pub fn is_done(&self) -> bool {
        self.missing == 0
    }

    pub fn sectors(&self) -> u32 {
        self.pending.end - self.pending.start
    }

    /// The sectors of a block.
    fn extent(&self, block: u32) -> (u32, u32) {
        let from = self.pending.start + block * self.block;
        (from, self.pending.end.min(from.saturating_add(self.block)))
    }

    /// The server is another, or begins anew: nothing that it was asked counts. Blocks that were read stay; those that were
    /// written may be lost, though they were answered.
    pub fn reset(&mut self, tag: Tag, block: u32) {
        if block != self.block {
            let pending = std::mem::replace(
                &mut self.pending,
                Pending {
                    owner: Owner::Own,
                    op: Op::Flush,
                    is_durable: false,
                    start: 0,
                    end: 0,
                    data: SegList::new(),
                },
            );
            let unanswered = self.unanswered;
            *self = Request::new(pending, tag, self.number, block, self.sent, self.mark);
            self.unanswered = unanswered;
        }
        if self.pending.op == Op::Write {
            let blocks = self.sectors().div_ceil(self.block);
            self.missing = u128::MAX >> (BLOCKS_MAX - blocks);
        }
        (self.tag, self.tries, self.is_acknowledged) = (tag, 0, false);
        self.is_repeated = false;
        self.to_send_again = false;
    }

    /// Whether an answer fits: not if it is about none of its blocks, or not whole; and whether it says anything new.
    pub fn on_answer(&mut self, now: Time, frame: &Frame, data: SegList) -> Option<bool> {
        if frame.operation != self.pending.operation() {
            return None;
        }
        let block = match self.pending.op {
            Op::Flush if frame.sector == self.number => 0,
            Op::Flush => return None,
            _ => {
                let at = frame.sector.checked_sub(self.pending.start)?;
                if at % self.block != 0 || frame.sector >= self.pending.end {
                    return None;
                }
                let (from, to) = self.extent(at / self.block);
                if to - from != u32::from(frame.length) {
                    return None;
                }
                at / self.block
            }
        };
        let is_new = self.missing >> block & 1 == 1;
        if is_new {
            self.missing &= !(1 << block);
            // It goes on: what is missing was lost by chance, or for want of room.
            (self.tries, self.answered) = (0, now);
            // One that comes twice is the answer to one frame, as far as anybody knows.
            self.unanswered -= 1;
            if let Some(piece) = self.pieces.get_mut(block as usize) {
                *piece = data;
            }
        }
        Some(is_new)
    }

    /// It is of the client, which sends again what may have been lost.
    pub fn is_replay(&self) -> bool {
        self.pending.owner == Owner::Replay
    }

    /// Calls `send` with each frame that asks for what is missing, for so many sectors at most, and the data that goes with
    /// it.
    pub fn ask(&mut self, wants_wack: bool, most: u32, mut send: impl FnMut(&Frame, SegList)) {
        let operation = self.pending.operation();
        let frame = |wants_wack, length, sector| Frame {
            operation,
            is_answer: false,
            wants_wack,
            tag: self.tag,
            credit: 0,
            length,
            sector,
        };
        let blocks = BLOCKS_MAX - self.missing.leading_zeros();
        let is_missing = |block: u32| block < blocks && self.missing >> block & 1 == 1;
        let (mut block, mut count, mut is_first) = (0, 0, true);
        while block < blocks {
            if !is_missing(block) {
                block += 1;
                continue;
            }
            let (from, mut to) = self.extent(block);
            block += 1;
            count += 1;
            match self.pending.op {
                Op::Flush => send(&frame(wants_wack, 0, self.number), SegList::new()),
                Op::Read => {
                    // One request for all that are behind each other.
                    while is_missing(block) && self.extent(block).1 - from <= most {
                        to = self.extent(block).1;
                        (block, count) = (block + 1, count + 1);
                    }
                    send(&frame(wants_wack, (to - from) as u8, from), SegList::new());
                }
                _ => {
                    let mut data = SegList::new();
                    let at = (from - self.pending.start) as usize * 512;
                    self.pending.data.slice_into(at, (to - from) as usize * 512, &mut data);
                    send(&frame(wants_wack && is_first, (to - from) as u8, from), data);
                }
            }
            is_first = false;
        }
        self.unanswered += count;
    }

    /// The data of a read, in order.
    pub fn take_data(&mut self) -> SegList {
        let mut all = SegList::new();
        self.pieces.drain(..).for_each(|piece| all.append(piece));
        all
    }
}
