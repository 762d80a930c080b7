//! What a juggler has asked for and not been told yet: its slots, its attaches, and what it heard.

use thinwire_buffer::{RxFrame, SegList};
use thinwire_proto::{Content, Item, SEQUENCE_HIGH, Time, UnitMap};
use thinwire_wire::{
    Attach, Attached, Complete, Data, Message, OpCode, Request, Status, UNIT_BYTES, event_code,
    op_flags,
};

use crate::hand;
use crate::model::{Range, Ticket};
use crate::stamp::SECTOR_BYTES;

/// What the answer to a request is checked against.
pub(super) enum Expectation {
    Write(u64),
    Read(Ticket),
    Flush((u64, u64)),
}

/// A request that is outstanding.
pub(super) struct Use {
    /// Which of its attachments it is for, and the handle and generation that it had.
    pub seat: usize,
    pub handle: (u32, u32),
    pub kind: Expectation,
    pub range: Range,
    pub fua: bool,
    /// The bytes to write.
    pub data: SegList,
    /// Where the bytes of a read go, and which are there.
    pub buf: Vec<u8>,
    pub units: UnitMap,
    pub complete: Option<Complete>,
    pub since: u64,
}

impl Use {
    /// Bytes of data, either way.
    pub fn bytes(&self) -> u64 {
        (self.range.count * SECTOR_BYTES) as u64
    }

    /// The two must not be outstanding together.
    pub fn conflicts(&self, seat: usize, range: Range, writes: bool) -> bool {
        let overlap = self.range.first < range.first + range.count
            && range.first < self.range.first + self.range.count;
        self.seat == seat && overlap && (writes || matches!(self.kind, Expectation::Write(_)))
    }
}

/// What it was told, in order.
pub(super) enum Heard {
    Attached(Attached),
    Refused { transaction: u32, status: Status, text: String },
    Detached(u32),
    Fenced((u32, u32)),
    Finished(Box<Use>, Complete),
}

#[derive(Default)]
struct Slot {
    sequence: u32,
    present: Option<Box<Use>>,
}

/// An attach that was not answered.
pub(super) struct Ask {
    pub transaction: u32,
    pub flags: u8,
    pub export: String,
    pub since: u64,
}

/// Of one session.
#[derive(Default)]
pub(super) struct Desk {
    slots: Vec<Slot>,
    free: Vec<u16>,
    pub asks: Vec<Ask>,
    pub heard: Vec<Heard>,
    /// Running totals of the credit that was used.
    pub used: (u32, u64),
    pub transaction: u32,
}

impl Desk {
    /// A session begins with so many slots. What was outstanding is forgotten.
    pub fn restart(&mut self, slots: u16, counters_high: bool) {
        let sequence = if counters_high { SEQUENCE_HIGH } else { 0 };
        *self = Desk {
            slots: (0..slots).map(|_| Slot { sequence, present: None }).collect(),
            free: (0..slots).rev().collect(),
            ..Desk::default()
        };
    }

    /// The number of the last question.
    pub fn last_transaction(&self) -> u32 {
        self.transaction
    }

    /// The number of the next question.
    pub fn next_transaction(&mut self) -> u32 {
        self.transaction += 1;
        self.transaction
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives a request a slot.
    pub fn start(&mut self, one: Use) -> (u16, u32) {
        let slot = self.free.pop().expect("the caller has looked");
        let s = &mut self.slots[slot as usize];
        s.sequence = s.sequence.wrapping_add(1);
        s.present = Some(Box::new(one));
        (slot, s.sequence)
    }

    /// All requests that are outstanding.
    pub fn outstanding(&self) -> impl Iterator<Item = &Use> {
        self.slots.iter().filter_map(|s| s.present.as_deref())
    }

    /// The request of this use, if it is outstanding.
    fn live(&mut self, slot: u16, sequence: u32) -> Option<&mut Use> {
        let s = self.slots.get_mut(slot as usize).filter(|s| s.sequence == sequence)?;
        s.present.as_deref_mut()
    }

    fn on_data(&mut self, data: &Data, frame: &RxFrame) {
        let Some(one) = self.live(data.slot, data.sequence) else { return };
        let (offset, length) = (data.offset as usize, data.length as usize);
        let uneven = offset % UNIT_BYTES != 0 || length % UNIT_BYTES != 0;
        if uneven || offset + length > one.buf.len() {
            return;
        }
        let Use { units, buf, .. } = one;
        units.mark(offset, length, |from, to| {
            frame.copy_to(data.payload_at + from - offset, &mut buf[from..to]);
        });
        self.try_finish(data.slot);
    }

    fn on_complete(&mut self, complete: &Complete) {
        let Some(one) = self.live(complete.slot, complete.sequence) else { return };
        one.complete.get_or_insert(*complete);
        self.try_finish(complete.slot);
    }

    fn try_finish(&mut self, slot: u16) {
        let present = &mut self.slots[slot as usize].present;
        let Some(complete) = present.as_ref().and_then(|one| one.complete) else { return };
        let whole =
            |one: &mut Box<Use>| one.units.count() >= UnitMap::units(complete.length as usize);
        if let Some(one) = present.take_if(whole) {
            self.free.push(slot);
            self.heard.push(Heard::Finished(one, complete));
        }
    }
}

impl hand::Desk for Desk {
    fn hear(&mut self, _: Time, message: &Message<'_>, frame: &RxFrame) {
        match message {
            Message::Data(data) => self.on_data(data, frame),
            Message::Complete(complete) => self.on_complete(complete),
            Message::Attached(a) => self.heard.push(Heard::Attached(*a)),
            Message::AttachRefused(r) => self.heard.push(Heard::Refused {
                transaction: r.transaction,
                status: Status::from_number(r.status),
                text: r.text.to_string(),
            }),
            Message::Detached(d) => self.heard.push(Heard::Detached(d.transaction)),
            Message::Event(e) if e.code == event_code::FENCED => {
                self.heard.push(Heard::Fenced((e.attachment, e.generation)));
            }
            _ => {}
        }
    }
}

impl Content for Desk {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        match item {
            Item::Request { slot, sequence } => {
                let Some(one) = self.live(slot, sequence) else { return false };
                if one.complete.is_some() {
                    return false;
                }
                let op = match one.kind {
                    Expectation::Write(_) => OpCode::Write,
                    Expectation::Read(_) => OpCode::Read,
                    Expectation::Flush(_) => OpCode::Flush,
                };
                Request {
                    slot,
                    op: op as u8,
                    op_flags: if one.fua { op_flags::FUA } else { 0 },
                    sequence,
                    attachment: one.handle.0,
                    generation: one.handle.1,
                    address: (one.range.first * SECTOR_BYTES) as u64,
                    length: one.bytes() as u32,
                }
                .emit(out);
            }
            Item::Attach(transaction) => {
                let mut asks = self.asks.iter();
                let Some(ask) = asks.find(|ask| ask.transaction == transaction) else {
                    return false;
                };
                let (flags, export) = (ask.flags, &ask.export);
                Attach { transaction, flags, writer_generation: 0, export }.emit(out);
            }
            _ => return false,
        }
        true
    }

    fn payload(&mut self, slot: u16, sequence: u32, at: u32, len: u32, out: &mut SegList) -> bool {
        let Some(one) = self.live(slot, sequence) else { return false };
        if one.complete.is_some() {
            return false;
        }
        one.data.slice_into(at as usize, len as usize, out);
        true
    }

    fn acked(&mut self, _: Item) {}
}
