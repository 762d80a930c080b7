//! Outstanding requests: the initiator's side of the slots (`docs/protocol.md`, "Slots"). How they stand in frames is
//! in `slots/outgoing.rs`.

mod outgoing;

use thinwire_buffer::{Buf, Pool, RxFrame, SegList, Segment};
use thinwire_proto::{Arrived, DropReason, Pieces, UnitMap};
use thinwire_volume::{IoFlags, Op, Token};
use thinwire_wire::{Complete, Data, Sums, UNIT_BYTES};

use crate::ranges::{Range, Ranges};

pub(crate) use self::outgoing::Outgoing;

/// On whose behalf a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The volume's user, with its token.
    User(Token),
    /// The replay of this entry of the log.
    Replay(u64),
    /// The flush that the bound of the retained set, or a detach, asks for.
    Flush,
}

/// An I/O that waits for a slot, or has one.
#[derive(Debug)]
pub(crate) struct Pending {
    pub owner: Owner,
    pub op: Op,
    pub flags: IoFlags,
    pub offset: u64,
    pub len: u64,
    pub data: SegList,
    /// On an attachment with integrity: of a write the sums of its data, made when it was taken in; of a read those
    /// that came.
    pub sums: Segment,
    /// It is made once more, since what came did not fit its sums.
    pub is_second: bool,
}

impl Pending {
    /// An I/O of nothing.
    pub fn new(owner: Owner, op: Op) -> Self {
        Pending {
            owner,
            op,
            flags: IoFlags::default(),
            offset: 0,
            len: 0,
            data: SegList::new(),
            sums: Segment::NOTHING,
            is_second: false,
        }
    }

    /// It is made again: a read without the sums of an earlier answer.
    pub fn forget_answer(&mut self) {
        if self.op == Op::Read {
            self.sums = Segment::NOTHING;
        }
    }

    /// True if the two must not be outstanding together (rule 5).
    pub fn conflicts(&self, other: &Pending) -> bool {
        self.range().conflicts(other.range())
    }

    fn range(&self) -> Range {
        match self.op {
            Op::Flush | Op::BlockStatus => Range::NOTHING,
            // One whose user was told an error may yet be done: the next one, which may take it back, has to come behind that.
            Op::Cut => Range::CUTS,
            op => Range { start: self.offset, end: self.offset + self.len, changes: op.is_write() },
        }
    }
}

/// Where a slot stands.
#[derive(Debug)]
pub(crate) enum State {
    Idle,
    Active,
    /// Its user has been told an error; the range stays locked until the target confirms that
    /// nothing more will happen.
    GivenUp,
}

/// What a flush covers, if it succeeds: taken when it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The entries of the log below this,
    pub number: u64,
    /// unless a replay has begun since: it writes them again behind the flush.
    pub replays: u64,
}

/// Where the data of an answer goes.
#[derive(Debug)]
pub(crate) enum Place {
    /// There is none.
    Nowhere,
    /// All of it is copied into one piece of memory.
    Whole(Buf),
    /// It stays in the memory that it arrives in, as long as the links can spare that and it comes in
    /// few pieces. So many bytes.
    Lent(usize),
    /// Nobody waits for these bytes any more. What comes is noted, and not kept.
    Nobody(usize),
}

/// A read that comes in more pieces than this is copied into one: whoever passes it on walks over
/// them, and each keeps a frame alive. 1 MiB in full frames of MTU 9000 fits.
const PIECES_MAX: usize = 160;

impl Place {
    fn bytes(&self) -> usize {
        match self {
            Place::Nowhere => 0,
            Place::Whole(buf) => buf.len(),
            Place::Lent(bytes) | Place::Nobody(bytes) => *bytes,
        }
    }
}

/// The data of an answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// In one piece of memory, which is ours.
    Whole(Buf),
    /// As it came.
    Lent(SegList),
}

pub(crate) struct Slot {
    pub sequence: u32,
    pub state: State,
    pub io: Option<Pending>,
    place: Place,
    /// What has come, if it is lent.
    pieces: Pieces,
    units: UnitMap,
    complete: Option<Complete>,
    /// It is not finished without them, if it succeeds.
    wants_sums: bool,
    /// With a flush: what it covers.
    pub mark: Mark,
    /// Where it stands among those in use, if it does.
    at: u16,
}

impl Slot {
    fn new() -> Self {
        Slot {
            sequence: 0,
            state: State::Idle,
            io: None,
            place: Place::Nowhere,
            pieces: Pieces::default(),
            units: UnitMap::default(),
            complete: None,
            wants_sums: false,
            mark: Mark::default(),
            at: 0,
        }
    }

    /// The target has completed it, and all its data is here, and the sums of that.
    fn is_finished(&self) -> bool {
        let all = |complete: &Complete| UnitMap::units(complete.length as usize);
        let is_whole = |complete: &Complete| self.units.count() >= all(complete);
        self.complete.as_ref().is_some_and(|complete| {
            is_whole(complete) && (!self.wants_sums || self.has_sums(complete))
        })
    }

    /// An answer without data has none.
    fn has_sums(&self, complete: &Complete) -> bool {
        complete.length == 0 || self.io.as_ref().is_some_and(|io| !io.sums.is_empty())
    }
}

/// A request that is finished: its I/O, what the target said, and the data of a read.
pub(crate) struct Finished {
    pub io: Pending,
    pub complete: Complete,
    pub data: Option<Answer>,
    pub mark: Mark,
}

/// All slots of a session.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots that are not idle.
    in_use: Vec<u16>,
    /// What their I/Os touch, in the same order.
    ranges: Ranges,
    pub copied_bytes: u64,
    is_amid_answer: bool,
    /// Reads have sums.
    pub are_checked: bool,
    /// The canary that sends sums of what lies in memory now: it needs memory for them.
    pub sums_anew: Option<Pool>,
}

impl Slots {
    pub fn new() -> Self {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
            in_use: Vec::new(),
            ranges: Ranges::new(),
            copied_bytes: 0,
            is_amid_answer: false,
            are_checked: false,
            sums_anew: None,
        }
    }

    /// A new session begins with `count` slots, whose sequences begin behind `sequence`. Adds the I/Os
    /// that were outstanding to `orphans`, in no particular order: none of them overlap.
    pub fn restart(&mut self, count: u16, sequence: u32, orphans: &mut Vec<Pending>) {
        for &slot in &self.in_use {
            let s = &mut self.slots[slot as usize];
            if let (State::Active, Some(io)) = (&s.state, s.io.take()) {
                orphans.push(io);
            }
        }
        self.slots.clear();
        self.slots.resize_with(count as usize, || Slot { sequence, ..Slot::new() });
        self.free.clear();
        self.free.extend((0..count).rev());
        self.in_use.clear();
        self.ranges.clear();
    }

    /// The session is gone: what has come in it comes again in the next, as a whole.
    pub fn forget_data(&mut self) {
        for &slot in &self.in_use {
            let s = &mut self.slots[slot as usize];
            s.pieces.clear();
            s.units.clear();
            s.io.iter_mut().for_each(Pending::forget_answer);
        }
    }

    /// None is in use.
    pub fn is_idle(&self) -> bool {
        self.in_use.is_empty()
    }

    /// Nobody waits for any of those that are in use.
    pub fn are_given_up(&self) -> bool {
        self.given_up().count() == self.in_use.len()
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// True if `io` must wait for an outstanding one.
    pub fn conflicts(&self, io: &Pending) -> bool {
        self.ranges.conflict(io.range())
    }

    /// Gives an I/O a slot. The data of its answer goes to `place`.
    pub fn start(&mut self, io: Pending, place: Place, mark: Mark) -> (u16, u32) {
        let slot = self.free.pop().expect("the caller has looked");
        let s = &mut self.slots[slot as usize];
        s.sequence = s.sequence.wrapping_add(1);
        s.state = State::Active;
        self.ranges.push(io.range());
        s.wants_sums = self.are_checked && io.op == Op::Read;
        s.io = Some(io);
        s.place = place;
        s.units.clear();
        s.complete = None;
        s.mark = mark;
        s.at = self.in_use.len() as u16;
        self.in_use.push(slot);
        (slot, s.sequence)
    }

    fn release(&mut self, slot: u16) {
        let s = &mut self.slots[slot as usize];
        s.state = State::Idle;
        s.io = None;
        s.place = Place::Nowhere;
        s.pieces.clear();
        s.complete = None;
        let at = s.at as usize;
        self.in_use.swap_remove(at);
        self.ranges.swap_remove(at);
        if let Some(&moved) = self.in_use.get(at) {
            self.slots[moved as usize].at = at as u16;
        }
        self.free.push(slot);
    }

    fn live(&mut self, slot: u16, sequence: u32) -> Result<&mut Slot, DropReason> {
        let s = self.slots.get_mut(slot as usize).ok_or(DropReason::Slot)?;
        if s.sequence != sequence || matches!(s.state, State::Idle) {
            return Err(DropReason::LateDuplicate);
        }
        Ok(s)
    }

    /// DATA of a read, only units that are missing: kept where it is, or copied into the place where it
    /// belongs. If `is_spare` says no the links need their memory: what was kept moves to such a place, of
    /// `pool`, too. True if the request is finished: then [`Slots::take_finished`] comes next.
    pub fn on_data(
        &mut self,
        data: &Data,
        frame: &RxFrame,
        is_spare: bool,
        pool: &Pool,
    ) -> Result<bool, DropReason> {
        let s = self.live(data.slot, data.sequence)?;
        let (offset, length) = (data.offset as usize, data.length as usize);
        if matches!(s.place, Place::Nowhere) {
            return Err(DropReason::LateDuplicate);
        }
        // Only the end of a list of extents is no multiple of the unit. Elsewhere a short piece
        // would mark a unit as received whose rest is old memory.
        let list = s.io.as_ref().is_some_and(|io| io.op == Op::BlockStatus) && offset == 0;
        let uneven = offset % UNIT_BYTES != 0 || (length % UNIT_BYTES != 0 && !list);
        if uneven || offset + length > s.place.bytes() {
            return Err(DropReason::Range);
        }
        let mut copied = 0;
        if let Place::Lent(bytes) = s.place
            && (!is_spare || s.pieces.count() >= PIECES_MAX)
        {
            let mut whole = pool.get(bytes);
            copied += s.pieces.move_to(&mut whole) as u64;
            s.place = Place::Whole(whole);
        }
        let (place, pieces) = (&mut s.place, &mut s.pieces);
        let arrived = Arrived { frame, payload_at: data.payload_at, offset };
        let new = s.units.mark(offset, length, |from, to| match place {
            Place::Whole(buf) => {
                frame.copy_to(data.payload_at + from - offset, &mut buf[from..to]);
                copied += (to - from) as u64;
            }
            Place::Lent(_) => pieces.place(arrived, from, to, None),
            Place::Nobody(_) | Place::Nowhere => {}
        });
        let is_finished = s.is_finished();
        let missing = UnitMap::units(s.place.bytes()) - s.units.count();
        self.is_amid_answer = !is_finished && missing > new;
        self.copied_bytes += copied;
        if new == 0 { Err(DropReason::LateDuplicate) } else { Ok(is_finished) }
    }

    /// Of the answer whose data came last, more is missing than that brought.
    pub fn is_amid_answer(&self) -> bool {
        self.is_amid_answer
    }

    /// SUMS of a read. As [`Slots::on_data`].
    pub fn on_sums(&mut self, sums: &Sums<'_>, pool: &Pool) -> Result<bool, DropReason> {
        let s = self.live(sums.slot, sums.sequence)?;
        let Some(io) = s.io.as_mut().filter(|io| s.wants_sums && io.sums.is_empty()) else {
            return Err(DropReason::LateDuplicate);
        };
        let mut kept = pool.get_small(sums.sums.len());
        kept.copy_from_slice(sums.sums);
        io.sums = kept.freeze();
        Ok(s.is_finished())
    }

    /// COMPLETE: it is finished once all its data is there. As [`Slots::on_data`].
    pub fn on_complete(&mut self, complete: &Complete) -> Result<bool, DropReason> {
        let s = self.live(complete.slot, complete.sequence)?;
        if s.complete.is_some() {
            return Err(DropReason::LateDuplicate);
        }
        let has_place = !matches!(s.place, Place::Nowhere);
        if has_place && complete.length as usize > s.place.bytes() {
            return Err(DropReason::Range);
        }
        s.complete = Some(*complete);
        Ok(s.is_finished())
    }

    /// Takes what has just been finished out of its slot, which is free from now on. Nothing if its user has been
    /// told an error.
    #[inline(always)]
    pub fn take_finished(&mut self, slot: u16) -> Option<Finished> {
        let s = &mut self.slots[slot as usize];
        let complete = s.complete.expect("it is finished");
        // A list of extents, whose length nobody knew, may have left more open.
        self.is_amid_answer = false;
        let given_up = matches!(s.state, State::GivenUp);
        let io = s.io.take().expect("a live slot has its I/O");
        let data = match std::mem::replace(&mut s.place, Place::Nowhere) {
            Place::Nowhere => None,
            Place::Whole(mut buf) => {
                buf.set_len(complete.length as usize);
                Some(Answer::Whole(buf))
            }
            Place::Lent(_) => Some(Answer::Lent(s.pieces.take())),
            Place::Nobody(_) => None,
        };
        let mark = s.mark;
        self.release(slot);
        (!given_up).then_some(Finished { io, complete, data, mark })
    }

    /// RESET_DONE: nothing more will happen for this use.
    pub fn on_reset_done(&mut self, slot: u16, sequence: u32) -> Result<(), DropReason> {
        let s = self.live(slot, sequence)?;
        if !matches!(s.state, State::GivenUp) {
            return Err(DropReason::Unasked);
        }
        self.release(slot);
        Ok(())
    }

    /// Gives up requests of the user: calls `tell` with each, keeps slots and ranges.
    pub fn give_up(&mut self, which: impl Fn(&Pending) -> bool, mut tell: impl FnMut(&Pending)) {
        for &slot in &self.in_use {
            let s = &mut self.slots[slot as usize];
            let Some(io) = &mut s.io else { continue };
            let is_users = matches!(io.owner, Owner::User(_));
            if matches!(s.state, State::Active) && is_users && which(io) {
                tell(io);
                // It is not sent any more, and who says when the slot is free may be a liar.
                io.data = SegList::new();
                s.state = State::GivenUp;
                s.pieces.clear();
                s.place = match s.place.bytes() {
                    0 => Place::Nowhere,
                    bytes => Place::Nobody(bytes),
                };
            }
        }
    }

    /// Slots whose giving up the target has not confirmed.
    pub fn given_up(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.in_use.iter().filter_map(|&slot| {
            let s = &self.slots[slot as usize];
            matches!(s.state, State::GivenUp).then_some((slot, s.sequence))
        })
    }
}

/// Bytes of credit that a request takes.
pub(crate) fn charge(io: &Pending) -> u64 {
    if matches!(io.op, Op::Read | Op::Write | Op::Cut) { io.len } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thinwire_buffer::Addr;

    use super::*;

    const LEN: usize = 256 << 10;

    /// A read that is outstanding, whose data stays where it arrives.
    fn reading() -> Slots {
        let mut slots = Slots::new();
        slots.restart(2, 0, &mut Vec::new());
        let io = Pending { len: LEN as u64, ..Pending::new(Owner::User(1), Op::Read) };
        slots.start(io, Place::Lent(LEN), Mark::default());
        slots
    }

    /// A part of its data arrives, in a frame of the links' memory of `pool`.
    fn arrive(slots: &mut Slots, pool: &Pool, offset: usize, length: usize) -> Option<Finished> {
        let bytes: Vec<u8> = (offset..offset + length).map(|at| (at / 512) as u8).collect();
        let bytes = pool.for_received().copy_of(&bytes).freeze();
        let (waited, queued) = (Duration::ZERO, Duration::ZERO);
        let frame = RxFrame { from: Addr::Sim(1), bytes, rest: SegList::new(), waited, queued };
        let (offset, length) = (offset as u32, length as u32);
        let data = Data { slot: 0, sequence: 1, offset, length, payload_at: 0 };
        let is_finished = slots.on_data(&data, &frame, true, pool).unwrap();
        is_finished.then(|| slots.take_finished(0)).flatten()
    }

    fn complete(slots: &mut Slots) -> Option<Finished> {
        let length = LEN as u32;
        let complete = Complete { slot: 0, sequence: 1, status: 0, length, verifier: 1 };
        let is_finished = slots.on_complete(&complete).unwrap();
        is_finished.then(|| slots.take_finished(0)).flatten()
    }

    /// However small the pieces are in which a target sends it.
    #[test]
    fn a_read_in_many_pieces_is_put_together() {
        for (step, is_lent) in [(8192, true), (512, false)] {
            let (pool, mut slots) = (Pool::new(0), reading());
            assert!(complete(&mut slots).is_none(), "its data is not here");
            let mut finished = None;
            for offset in (0..LEN).step_by(step).rev() {
                finished = arrive(&mut slots, &pool, offset, step);
                let received = pool.stats().received_bytes;
                assert!(received <= PIECES_MAX * 8192, "{received} bytes of frames are kept");
            }
            let data = match finished.unwrap().data {
                Some(Answer::Lent(data)) if is_lent => data,
                Some(Answer::Whole(buf)) if !is_lent => SegList::of(buf.freeze()),
                other => panic!("{other:?}"),
            };
            let expected: Vec<u8> = (0..LEN).map(|at| (at / 512) as u8).collect();
            assert!(data.to_vec() == expected);
            assert_eq!(slots.copied_bytes, if is_lent { 0 } else { LEN as u64 });
        }
    }

    #[test]
    fn the_last_frame_of_an_answer_is_not_amid_it() {
        let (pool, mut slots) = (Pool::new(0), reading());
        assert!(!slots.is_amid_answer(), "it has not begun");
        for offset in (0..LEN).step_by(8192) {
            assert!(arrive(&mut slots, &pool, offset, 8192).is_none());
            assert_eq!(slots.is_amid_answer(), offset + 2 * 8192 < LEN, "{offset}");
        }
        let mut slots = reading();
        arrive(&mut slots, &pool, 0, 8192);
        slots
            .on_complete(&Complete { slot: 0, sequence: 1, status: 0, length: 8192, verifier: 1 })
            .unwrap();
        assert!(slots.take_finished(0).is_some() && !slots.is_amid_answer(), "it was short");
    }

    /// A snapshot that nobody waits for any more may yet be made: what is said of it then comes behind that. Others are not in the way.
    #[test]
    fn an_order_that_was_given_up_ends_before_the_next_one() {
        let mut slots = Slots::new();
        slots.restart(2, 0, &mut Vec::new());
        let order = |token| Pending { len: 512, ..Pending::new(Owner::User(token), Op::Cut) };
        let len = 1 << 40;
        let write = Pending { len, ..Pending::new(Owner::User(3), Op::WriteZeroes) };
        slots.start(order(1), Place::Whole(Pool::new(0).get(512)), Mark::default());
        assert!(slots.conflicts(&order(2)) && !slots.conflicts(&write));
        slots.give_up(|_| true, |_| {});
        assert!(slots.conflicts(&order(2)), "it may come behind its end");
        slots.on_reset_done(0, 1).unwrap();
        assert!(!slots.conflicts(&order(2)));
    }

    /// Neither whoever has given up nor a session that is gone keeps frames alive.
    #[test]
    fn what_nobody_waits_for_is_not_kept() {
        let (pool, mut slots) = (Pool::new(0), reading());
        arrive(&mut slots, &pool, 0, 8192);
        assert_eq!(pool.stats().received_bytes, 8192);
        slots.forget_data();
        assert_eq!(pool.stats().received_bytes, 0);
        let mut slots = reading();
        arrive(&mut slots, &pool, 0, 8192);
        slots.give_up(|_| true, |io| assert_eq!(io.len, LEN as u64));
        arrive(&mut slots, &pool, 8192, 8192);
        assert_eq!(pool.stats().received_bytes, 0);
        // The rest only ends the slot.
        arrive(&mut slots, &pool, 16384, LEN - 16384);
        assert!(complete(&mut slots).is_none() && slots.is_idle());
    }
}
