//! Exactly once: each slot remembers its last use, so that a repeated request is answered and never
//! executed again (`docs/protocol.md`, "Slots"; NFSv4.1 sessions).

use std::cmp::Ordering;

use thinwire_buffer::{Pool, RxFrame, SegList, Segment};
use thinwire_proto::{
    Arrived, Content, DropReason, Item, Pieces, UNITS_MAX, UnitMap, sequence_order,
};
use thinwire_wire::{
    AttachRefused, Clocks, Complete, Data, OpCode, Request, Reset, ResetDone, SUM_BYTES, SUMS_MAX,
    Sums, UNIT_BYTES,
};

use crate::answers::{Answer, Answers};
use crate::requests::brings_data;
use crate::together::GroupId;

/// The longest read or write: what a [`UnitMap`] can keep track of.
pub(crate) const REQUEST_BYTES_MAX: usize = UNITS_MAX * UNIT_BYTES;

/// Memory that received payloads may keep alive before they are copied out of their frames: a
/// small payload pins a whole frame, or a whole train of them.
pub(crate) const PINNED_BYTES_MAX: usize = 24 << 20;

/// Storage of a list of pieces that is not worth giving back.
const PIECES_FEW: usize = 16;

/// Where a use of a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Never used.
    Free,
    /// Its request or its data is on the way.
    Receiving,
    /// The store has it.
    Executing,
    /// Completed; the completion is kept.
    Done,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub sequence: u32,
    pub state: State,
    pub request: Option<Request>,
    /// Bytes of credit that this use holds.
    pub charged: u64,
    /// Received data, and which units are there.
    pieces: Pieces,
    units: UnitMap,
    /// Storage of `pieces` that counts for the session.
    pieces_counted: usize,
    /// Bytes in `pieces` while the request has not arrived.
    unrequested: u64,
    /// Data beyond what the request names has come. It is not kept.
    excess: bool,
    /// Data to send, kept until it is acknowledged: rule 1.
    out: SegList,
    out_bytes: u32,
    /// Of a write the sums that came for it, of what was read those that go with it.
    pub sums: Segment,
    complete: Option<Complete>,
    pub reset: bool,
    /// Requests that its completion waits for.
    pub group: Option<GroupId>,
}

impl Slot {
    fn new() -> Self {
        Slot {
            sequence: 0,
            state: State::Free,
            request: None,
            charged: 0,
            pieces: Pieces::default(),
            units: UnitMap::default(),
            pieces_counted: 0,
            unrequested: 0,
            excess: false,
            out: SegList::new(),
            out_bytes: 0,
            sums: Segment::NOTHING,
            complete: None,
            reset: false,
            group: None,
        }
    }

    /// The next use, once the last has [ended](Slot::end_use).
    fn begin(&mut self, sequence: u32) {
        self.sequence = sequence;
        self.state = State::Receiving;
        self.request = None;
        self.pieces.clear();
        self.units.clear();
        self.excess = false;
        self.sums = Segment::NOTHING;
        self.complete = None;
        self.reset = false;
    }

    /// Nothing of its last use is needed any more. Returns the credit that it held.
    fn end_use(&mut self) -> u64 {
        if !self.out.is_empty() {
            self.out = SegList::new();
        }
        self.out_bytes = 0;
        std::mem::take(&mut self.charged)
    }

    /// All data of a write is there, or more than that has come.
    pub fn is_whole(&self, length: u32) -> bool {
        self.excess || self.units.count() >= UnitMap::units(length as usize)
    }

    /// True if data lies beyond what the request names.
    pub fn has_excess(&self, length: u32) -> bool {
        self.excess || self.pieces.end() > length as usize
    }

    /// Bytes of data that this use may bring: what its credit covers, once that is known.
    fn data_bytes_max(&self) -> usize {
        match &self.request {
            Some(request) if brings_data(request.op) => request.length as usize,
            Some(_) => 0,
            None => REQUEST_BYTES_MAX,
        }
    }

    /// Lets go of data that came before its request and lies beyond it: no credit covers it.
    fn drop_excess(&mut self) {
        let bytes_max = self.data_bytes_max();
        if self.pieces.end() > bytes_max {
            self.excess = true;
            self.pieces.cut_off(bytes_max);
        }
    }

    /// The received data in order.
    pub fn take_data(&mut self) -> SegList {
        self.pieces.take()
    }
}

/// What a request or its data leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// Taken in; look whether the slot is whole.
    Taken,
    /// A repetition of something completed: send the completion again.
    Repeated,
}

/// All slots of a session, and the other things it has to say.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    pub answers: Answers,
    /// Pieces that the longer lists of all slots have storage for between two uses, and the most.
    pieces_storage: usize,
    pieces_storage_max: usize,
    /// Running totals granted to the initiator.
    pub granted_slots: u32,
    pub granted_bytes: u64,
    /// Running total of bytes that requests have taken.
    used_bytes: u64,
    /// Bytes of data that wait for their request: they count against the same credit (rule 9).
    unrequested_bytes: u64,
    pub copied_bytes: u64,
    /// The last answer about the stage clocks.
    pub clocks: Option<Clocks>,
    no_duplicate_detection: bool,
}

impl Slots {
    pub fn new(count: u16, credit_bytes: u64, no_duplicate_detection: bool) -> Self {
        Slots {
            slots: (0..count).map(|_| Slot::new()).collect(),
            answers: Answers::default(),
            pieces_storage: 0,
            pieces_storage_max: pieces_max(credit_bytes),
            granted_slots: u32::from(count),
            granted_bytes: credit_bytes,
            used_bytes: 0,
            unrequested_bytes: 0,
            copied_bytes: 0,
            clocks: None,
            no_duplicate_detection,
        }
    }

    /// Sequences begin behind this one. Before the first request.
    pub fn start_at(&mut self, sequence: u32) {
        self.slots.iter_mut().for_each(|slot| slot.sequence = sequence);
    }

    /// Memory that the slots of a session, and what is kept beside them, hold at most, in bytes;
    /// payloads not counted.
    pub const fn bytes_max(count: u16, credit_bytes: u64) -> usize {
        // As many are kept, twice as many grow, and as many are in the stores.
        let pieces = 4 * pieces_max(credit_bytes) + count as usize * PIECES_FEW;
        let sums = (SUM_BYTES * SUMS_MAX).div_ceil(UNIT_BYTES);
        let sums = count as usize * sums * Pool::SMALL_UNIT_BYTES;
        sums + count as usize * size_of::<Slot>()
            + pieces * Pieces::STORAGE_BYTES
            + Answers::BYTES_MAX
    }

    pub fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    pub fn get(&mut self, slot: u16) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// The gate of slots: is this message for the present use, a new one, or neither?
    fn open(&mut self, slot: u16, sequence: u32) -> Result<Ordering, DropReason> {
        let fresh = self.no_duplicate_detection;
        let s = self.slots.get_mut(slot as usize).ok_or(DropReason::Slot)?;
        match sequence_order(sequence, s.sequence) {
            Ordering::Less => Err(DropReason::LateDuplicate),
            Ordering::Equal if s.state == State::Free => Err(DropReason::Slot),
            // The canary forgets that it has done this before.
            Ordering::Equal if fresh && s.state == State::Done => {
                self.granted_bytes += s.end_use();
                s.begin(sequence);
                Ok(Ordering::Greater)
            }
            Ordering::Equal => Ok(Ordering::Equal),
            Ordering::Greater => {
                let idle = matches!(s.state, State::Free | State::Done);
                if !idle || sequence != s.sequence.wrapping_add(1) {
                    return Err(DropReason::Slot);
                }
                // Reusing a slot acknowledges its last completion, data included.
                self.granted_bytes += s.end_use();
                s.begin(sequence);
                Ok(Ordering::Greater)
            }
        }
    }

    /// A REQUEST arrived.
    pub fn on_request(&mut self, request: &Request) -> Result<Intake, DropReason> {
        self.open(request.slot, request.sequence)?;
        let left = self.granted_bytes.saturating_sub(self.used_bytes);
        let s = &mut self.slots[request.slot as usize];
        match s.state {
            State::Receiving if s.request.is_none() => {
                let data_op = request.op == OpCode::Read as u8 || brings_data(request.op);
                let charge = if data_op { u64::from(request.length) } else { 0 };
                if charge > left {
                    return Err(DropReason::Overload);
                }
                s.charged = charge;
                self.used_bytes += charge;
                self.unrequested_bytes -= std::mem::take(&mut s.unrequested);
                s.request = Some(*request);
                s.drop_excess();
                Ok(Intake::Taken)
            }
            State::Done => Ok(Intake::Repeated),
            _ => Err(DropReason::LateDuplicate),
        }
    }

    /// A DATA arrived, perhaps before its request. Only units that are missing are placed, by
    /// reference to the frame.
    pub fn on_data(
        &mut self,
        data: &Data,
        frame: &RxFrame,
        pool: &Pool,
    ) -> Result<Intake, DropReason> {
        let (offset, length) = (data.offset as usize, data.length as usize);
        let unaligned = offset % UNIT_BYTES != 0 || length % UNIT_BYTES != 0;
        if unaligned || offset + length > REQUEST_BYTES_MAX {
            return Err(DropReason::Range);
        }
        self.open(data.slot, data.sequence)?;
        let s = &mut self.slots[data.slot as usize];
        if s.state != State::Receiving {
            return Err(DropReason::LateDuplicate);
        }
        if s.request.is_some() {
            if offset + length > s.data_bytes_max() {
                s.excess = true;
                return Ok(Intake::Taken);
            }
        } else {
            // An honest initiator holds credit for the request that is still on its way. What it sends
            // again, cut in another way, counts once.
            let left = self.granted_bytes.saturating_sub(self.used_bytes);
            let new = || (s.units.missing(offset, length) * UNIT_BYTES) as u64;
            if self.unrequested_bytes + u64::from(data.length) > left
                && self.unrequested_bytes + new() > left
            {
                return Err(DropReason::Overload);
            }
        }
        let copy = (pool.stats().live_bytes > PINNED_BYTES_MAX).then_some(pool);
        let arrived = Arrived { frame, payload_at: data.payload_at, offset };
        let pieces = &mut s.pieces;
        let copied = &mut self.copied_bytes;
        let new = s.units.mark(offset, length, |from, to| {
            pieces.place(arrived, from, to, copy);
            *copied += if copy.is_some() { (to - from) as u64 } else { 0 };
        });
        if new == 0 {
            return Err(DropReason::LateDuplicate);
        }
        if s.request.is_none() {
            let bytes = (new * UNIT_BYTES) as u64;
            s.unrequested += bytes;
            self.unrequested_bytes += bytes;
        }
        Ok(Intake::Taken)
    }

    /// A SUMS arrived, perhaps before its request.
    pub fn on_sums(&mut self, sums: &Sums<'_>, pool: &Pool) -> Result<(), DropReason> {
        self.open(sums.slot, sums.sequence)?;
        let s = &mut self.slots[sums.slot as usize];
        if s.state != State::Receiving || !s.sums.is_empty() {
            return Err(DropReason::LateDuplicate);
        }
        let mut kept = pool.get_small(sums.sums.len());
        kept.copy_from_slice(sums.sums);
        s.sums = kept.freeze();
        Ok(())
    }

    /// A RESET arrived: `true` if it can be confirmed at once, `false` if the store still has it.
    pub fn on_reset(&mut self, reset: &Reset) -> Result<bool, DropReason> {
        self.open(reset.slot, reset.sequence)?;
        let s = &mut self.slots[reset.slot as usize];
        s.reset = true;
        match s.state {
            State::Executing => return Ok(false),
            State::Receiving => {
                // The initiator has counted this request; so must we, and give it back.
                if s.request.is_none() {
                    self.used_bytes += u64::from(reset.length);
                    s.charged = u64::from(reset.length);
                }
                self.unrequested_bytes -= std::mem::take(&mut s.unrequested);
                s.state = State::Done;
                drop_pieces(s, &mut self.pieces_storage, self.pieces_storage_max);
                self.granted_slots = self.granted_slots.wrapping_add(1);
            }
            State::Free | State::Done => {}
        }
        self.finish_use(reset.slot);
        Ok(true)
    }

    /// The use is completed; `out` is the data to send.
    pub fn complete(&mut self, complete: Complete, out: SegList) {
        let s = &mut self.slots[complete.slot as usize];
        s.state = State::Done;
        drop_pieces(s, &mut self.pieces_storage, self.pieces_storage_max);
        s.out_bytes = out.bytes() as u32;
        s.out = out;
        s.units.clear();
        s.complete = Some(complete);
        if s.out_bytes == 0 {
            self.granted_bytes += std::mem::take(&mut s.charged);
        }
        self.granted_slots = self.granted_slots.wrapping_add(1);
    }

    /// Nothing of the slot's last use is needed any more.
    fn finish_use(&mut self, slot: u16) {
        self.granted_bytes += self.slots[slot as usize].end_use();
    }
}

/// Pieces that the lists of all slots of a session keep storage for. Never more are there than units
/// of data that the credit covers, and a list's storage is at most twice what it holds.
const fn pieces_max(credit_bytes: u64) -> usize {
    2 * (credit_bytes as usize / UNIT_BYTES)
}

/// What a use has received is not needed any more. Its list is kept, unless all of them together have
/// become too long: a peer that fills one slot after the other must not make all of them so.
#[inline]
fn drop_pieces(s: &mut Slot, storage: &mut usize, storage_max: usize) {
    s.pieces.clear();
    if s.pieces.capacity() > PIECES_FEW {
        keep_storage(s, storage, storage_max);
    }
}

#[cold]
fn keep_storage(s: &mut Slot, storage: &mut usize, storage_max: usize) {
    *storage += s.pieces.capacity() - s.pieces_counted;
    s.pieces_counted = s.pieces.capacity();
    if *storage > storage_max {
        *storage -= std::mem::take(&mut s.pieces_counted);
        s.pieces = Pieces::default();
    }
}

impl Content for Slots {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        match item {
            Item::Complete { slot, sequence } => {
                let s = &self.slots[slot as usize];
                match s.complete {
                    Some(complete) if s.sequence == sequence => {
                        complete.emit(out);
                        if !s.sums.is_empty() {
                            Sums { slot, sequence, sums: &s.sums }.emit(out);
                        }
                    }
                    _ => return false,
                }
            }
            Item::Clocks(transaction) => match &self.clocks {
                Some(clocks) if clocks.transaction == transaction => clocks.emit(out),
                _ => return false,
            },
            Item::ResetDone { slot, sequence } => {
                ResetDone { slot, sequence }.emit(out);
            }
            Item::AttachAnswer(transaction) => match self.answers.get(transaction) {
                Some(Answer::Granted(attached)) => attached.emit(out),
                Some(Answer::Refused { transaction, status, seconds_left, text }) => {
                    AttachRefused {
                        transaction: *transaction,
                        status: *status,
                        seconds_left: *seconds_left,
                        text,
                    }
                    .emit(out);
                }
                None => return false,
            },
            _ => return false,
        }
        true
    }

    fn payload(
        &mut self,
        slot: u16,
        sequence: u32,
        offset: u32,
        length: u32,
        out: &mut SegList,
    ) -> bool {
        let s = &self.slots[slot as usize];
        if s.sequence != sequence || offset + length > s.out_bytes {
            return false;
        }
        s.out.slice_into(offset as usize, length as usize, out);
        true
    }

    fn acked(&mut self, item: Item) {
        let (slot, sequence, offset, length) = match item {
            Item::Data { slot, sequence, offset, length } => (slot, sequence, offset, length),
            Item::AttachAnswer(transaction) => {
                self.answers.on_heard(transaction);
                return;
            }
            _ => return,
        };
        let s = &mut self.slots[slot as usize];
        if s.sequence != sequence || s.out_bytes == 0 {
            return;
        }
        s.units.mark(offset as usize, length as usize, |_, _| {});
        if s.units.count() == UnitMap::units(s.out_bytes as usize) {
            self.finish_use(slot);
        }
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
