//! What a target makes of requests that no shipped initiator makes (`docs/protocol.md`, "Slots", "Numbers").

use thinwire_buffer::{RxFrame, SegList};
use thinwire_proto::{Content, Item, Time};
use thinwire_sim::hand::{Desk, Hand};
use thinwire_wire::{
    Attach, Attached, Complete, Message, OpCode, Request, Status, attach_flags, op_flags,
};

use crate::scene::{Scene, at};

/// Makes one request at a time, all in one slot, under the last attach.
#[derive(Default)]
pub struct Asking {
    flags: u8,
    request: Option<Request>,
    pub attached: Option<Attached>,
    pub is_detached: bool,
    complete: Option<Complete>,
}

impl Content for Asking {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        match item {
            Item::Attach(transaction) => {
                let flags = self.flags;
                Attach { transaction, flags, writer_generation: 0, export: "disk0" }.emit(out);
            }
            Item::Request { .. } => self.request.expect("it asks").emit(out),
            _ => return false,
        }
        true
    }

    fn payload(&mut self, _: u16, _: u32, _: u32, _: u32, _: &mut SegList) -> bool {
        false
    }

    fn acked(&mut self, _: Item) {}
}

impl Desk for Asking {
    fn hear(&mut self, _: Time, message: &Message<'_>, _: &RxFrame) {
        match message {
            Message::Attached(attached) => self.attached = Some(*attached),
            Message::Complete(complete) => self.complete = Some(*complete),
            Message::Detached(_) => self.is_detached = true,
            _ => {}
        }
    }
}

/// An initiator by hand with an attachment.
pub struct Asker {
    pub hand: Hand,
    pub desk: Asking,
    sequence: u32,
}

impl Asker {
    pub fn new(s: &mut Scene, flags: u8) -> Self {
        let mut desk = Asking { flags, ..Asking::default() };
        let mut hand = s.hand(0x77, &mut desk, |_| {});
        hand.session.as_mut().unwrap().send(Item::Attach(1));
        while desk.attached.is_none() {
            s.turn(&mut hand, &mut desk);
        }
        Asker { hand, desk, sequence: 0 }
    }

    fn ask(&mut self, s: &mut Scene, op: u8, op_flags: u8, address: u64, length: u32) -> Complete {
        let Asker { hand, desk, sequence } = self;
        *sequence += 1;
        let Attached { attachment, generation, .. } = desk.attached.unwrap();
        let (slot, sequence) = (0, *sequence);
        let request =
            Request { slot, op, op_flags, sequence, attachment, generation, address, length };
        (desk.request, desk.complete) = (Some(request), None);
        hand.session.as_mut().unwrap().send(Item::Request { slot, sequence });
        loop {
            s.turn(hand, desk);
            if let Some(complete) = desk.complete {
                assert_eq!(complete.sequence, sequence);
                return complete;
            }
        }
    }

    fn status(&mut self, s: &mut Scene, op: OpCode, address: u64, length: u32) -> Status {
        Status::from_number(self.ask(s, op as u8, 0, address, length).status)
    }
}

/// What fails with FUA may be a failed sync, after which all writers send everything again. No reader may have
/// them do so.
#[test]
fn fua_says_nothing_for_a_read_that_fails() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 8));
    let mut asker = Asker::new(&mut s, attach_flags::READ_ONLY);
    let before = asker.ask(&mut s, OpCode::Read as u8, op_flags::FUA, 0, 512);
    assert_eq!(Status::from_number(before.status), Status::Ok);
    s.medium.configure(|c| c.read_failure = 1.0);
    let failed = asker.ask(&mut s, OpCode::Read as u8, op_flags::FUA, 0, 512);
    assert_eq!(Status::from_number(failed.status), Status::Io);
    s.medium.configure(|c| c.read_failure = 0.0);
    let after = asker.ask(&mut s, OpCode::Read as u8, 0, 0, 512);
    assert_eq!((before.verifier, failed.verifier), (after.verifier, after.verifier));
    assert_eq!(s.flush(), Ok(()));
    assert_eq!(s.stats(0).replayed, 0);
    s.end();
}

/// A volume would not tell a flush of a part from one of all.
#[test]
fn a_flush_has_no_range() {
    let mut s = Scene::new();
    let mut asker = Asker::new(&mut s, attach_flags::READ_ONLY);
    assert_eq!(asker.status(&mut s, OpCode::Flush, 0, 0), Status::Ok);
    assert_eq!(asker.status(&mut s, OpCode::Flush, 0, 512), Status::Invalid);
    assert_eq!(asker.status(&mut s, OpCode::Flush, 512, 0), Status::Invalid);
    assert_eq!(asker.status(&mut s, OpCode::Flush, u64::MAX, u32::MAX), Status::Invalid);
    assert_eq!(asker.status(&mut s, OpCode::Flush, 0, 0), Status::Ok);
}

/// Whoever is refused for two reasons hears of the first: operation, rights, range and data.
#[test]
fn requests_are_checked_in_order() {
    let mut s = Scene::new();
    let (inside, beyond) = ((0, 512), (1 << 40, 513));
    let long = (0, 2 << 20);
    let mut reader = Asker::new(&mut s, attach_flags::READ_ONLY);
    for (address, length) in [inside, beyond, long] {
        let complete = reader.ask(&mut s, 99, 0, address, length);
        assert_eq!(Status::from_number(complete.status), Status::Unsupported);
        for op in [OpCode::Discard, OpCode::WriteZeroes] {
            assert_eq!(reader.status(&mut s, op, address, length), Status::ReadOnly);
        }
    }
    // Too long to be waited for, or its data is missing.
    assert_eq!(reader.status(&mut s, OpCode::Write, 0, 2 << 20), Status::ReadOnly);
    assert_eq!(reader.status(&mut s, OpCode::Write, 0, 0), Status::ReadOnly);
    assert_eq!(reader.status(&mut s, OpCode::Read, 0, 2 << 20), Status::Invalid);
    assert_eq!(reader.status(&mut s, OpCode::Read, 1 << 40, 512), Status::Invalid);
    let mut writer = Asker::new(&mut s, 0);
    assert_eq!(writer.status(&mut s, OpCode::Write, 0, 2 << 20), Status::Invalid);
    assert_eq!(writer.status(&mut s, OpCode::Write, 0, 0), Status::Invalid);
    assert_eq!(writer.status(&mut s, OpCode::Discard, 1 << 40, 513), Status::Invalid);
}
