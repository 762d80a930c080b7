//! Answers that go back together (Gonzalez-Ferez and Bilas, section VI-A), when one of them never comes.

use thinwire_buffer::{RxFrame, SegList};
use thinwire_proto::{BatchPolicy, Content, Item, Time};
use thinwire_sim::hand::Desk;
use thinwire_wire::{Attach, Attached, Message, OpCode, Request, Reset};

use crate::scene::Scene;

const BYTES: u32 = 512;
/// In the first slot it writes, and never sends the data; in the others it reads.
const WRITES: u16 = 0;

#[derive(Default)]
struct HalfSaid {
    attached: Option<Attached>,
    completed: Vec<u16>,
    given_up: Vec<u16>,
}

impl Content for HalfSaid {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        match item {
            Item::Attach(transaction) => {
                Attach { transaction, flags: 0, writer_generation: 0, export: "disk0" }.emit(out);
            }
            Item::Request { slot, sequence } => {
                let Attached { attachment, generation, .. } =
                    self.attached.expect("it is attached");
                let op = if slot == WRITES { OpCode::Write } else { OpCode::Read } as u8;
                let (op_flags, address, length) = (0, 0, BYTES);
                let request = Request {
                    slot,
                    op,
                    op_flags,
                    sequence,
                    attachment,
                    generation,
                    address,
                    length,
                };
                request.emit(out);
            }
            Item::Reset { slot, sequence } => Reset { slot, sequence, length: BYTES }.emit(out),
            _ => return false,
        }
        true
    }

    fn payload(&mut self, _: u16, _: u32, _: u32, _: u32, _: &mut SegList) -> bool {
        false
    }

    fn acked(&mut self, _: Item) {}
}

impl Desk for HalfSaid {
    fn hear(&mut self, _: Time, message: &Message<'_>, _: &RxFrame) {
        match message {
            Message::Attached(attached) => self.attached = Some(*attached),
            Message::Complete(complete) => self.completed.push(complete.slot),
            Message::ResetDone(done) => self.given_up.push(done.slot),
            _ => {}
        }
    }
}

/// The target waits for nothing any more: what it has done is told.
#[test]
fn who_gives_one_request_of_a_frame_up_hears_of_the_others() {
    let mut s = Scene::with(1, |config| config.batching.policy = BatchPolicy::Static(8));
    let mut desk = HalfSaid::default();
    let mut hand = s.hand(0x77, &mut desk, |_| {});
    hand.session.as_mut().unwrap().send(Item::Attach(1));
    while desk.attached.is_none() {
        s.turn(&mut hand, &mut desk);
    }
    let session = hand.session.as_mut().unwrap();
    (0..3).for_each(|slot| session.send(Item::Request { slot, sequence: 1 }));
    (0..50).for_each(|_| s.turn(&mut hand, &mut desk));
    let reads = (s.world.target(0).stats().requests, s.medium.in_flight());
    assert_eq!(reads, (2, 0), "both were done");
    assert_eq!(desk.completed, [], "those of a frame wait for each other");
    hand.session.as_mut().unwrap().send(Item::Reset { slot: WRITES, sequence: 1 });
    (0..50).for_each(|_| s.turn(&mut hand, &mut desk));
    desk.completed.sort();
    assert_eq!((&desk.given_up[..], &desk.completed[..]), (&[WRITES][..], &[1, 2][..]));
}
