//! What a session asks for when it makes frames: requests, their data and sums, and the attachment that they are for.

use thinwire_buffer::{Pool, SegList};
use thinwire_proto::{Content, Item, SumCanary, sums_of};
use thinwire_volume::Op;
use thinwire_wire::{OpCode, Request, Reset, Sums, op_flags};

use super::{Pending, Slots, State, charge};
use crate::attachment::Attachment;

/// What a session asks for: the requests, and the attachment that they are for.
pub(crate) struct Outgoing<'a> {
    pub slots: &'a mut Slots,
    pub attachment: &'a Attachment,
}

impl Content for Outgoing<'_> {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        match item {
            Item::Request { slot, sequence } => {
                let s = &self.slots.slots[slot as usize];
                let wanted = s.sequence == sequence && matches!(s.state, State::Active);
                let (Some(io), true, None) = (&s.io, wanted, &s.complete) else { return false };
                let mut flags = 0;
                if io.flags.fua {
                    flags |= op_flags::FUA;
                }
                if io.flags.no_hole {
                    flags |= op_flags::NO_HOLE;
                }
                if io.flags.one_extent {
                    flags |= op_flags::ONE_EXTENT;
                }
                if io.flags.meta {
                    flags |= op_flags::META;
                }
                let (attachment, generation) = self.attachment.handle();
                Request {
                    slot,
                    op: op_code(io.op) as u8,
                    op_flags: flags,
                    sequence,
                    attachment,
                    generation,
                    address: io.offset,
                    length: io.len as u32,
                }
                .emit(out);
                if !io.sums.is_empty() && matches!(io.op, Op::Write | Op::Cut) {
                    emit_sums(slot, sequence, io, self.slots.sums_anew.as_ref(), out);
                }
            }
            Item::Reset { slot, sequence } => {
                let s = &self.slots.slots[slot as usize];
                let wanted = s.sequence == sequence && matches!(s.state, State::GivenUp);
                let (Some(io), true) = (&s.io, wanted) else { return false };
                let length = charge(io) as u32;
                Reset { slot, sequence, length }.emit(out);
            }
            Item::Attach(transaction) => return self.attachment.emit(transaction, out),
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
        let s = &self.slots.slots[slot as usize];
        let wanted = s.sequence == sequence && matches!(s.state, State::Active);
        let (Some(io), true, None) = (&s.io, wanted, &s.complete) else { return false };
        io.data.slice_into(offset as usize, length as usize, out);
        true
    }

    fn acked(&mut self, _: Item) {}
}

/// Behind its REQUEST, and as often: they are lost and sent again together.
fn emit_sums(slot: u16, sequence: u32, io: &Pending, anew: Option<&Pool>, out: &mut Vec<u8>) {
    let data = || io.data.iter().map(|segment| &segment[..]);
    let anew = anew.map(|pool| sums_of(pool, io.offset, io.len, data(), SumCanary::None));
    let sums = anew.as_ref().unwrap_or(&io.sums);
    Sums { slot, sequence, sums }.emit(out);
}

fn op_code(op: Op) -> OpCode {
    match op {
        Op::Read => OpCode::Read,
        Op::Write => OpCode::Write,
        Op::Flush => OpCode::Flush,
        Op::Discard => OpCode::Discard,
        Op::WriteZeroes => OpCode::WriteZeroes,
        Op::BlockStatus => OpCode::BlockStatus,
        Op::Cut => OpCode::Cut,
        Op::LoadWriter | Op::StoreWriter => unreachable!("refused when it was submitted"),
    }
}
