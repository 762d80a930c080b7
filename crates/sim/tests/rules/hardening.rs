//! What peers that are careless or hostile are refused.

use std::cell::Cell;

use thinwire_buffer::{RxFrame, SegList};
use thinwire_link::sim::Verdict;
use thinwire_proto::{Content, Item, Time};
use thinwire_sim::client::End;
use thinwire_sim::hand::{Desk, Hand};
use thinwire_sim::world::SECOND;
use thinwire_volume::Op;
use thinwire_wire::{Attach, Frame, Message, Status, attach_flags};

use crate::scene::{Scene, at};

/// Zeroes stand for nobody in the writer's record: whoever is called so could not be told from
/// anybody else.
#[test]
fn an_initiator_without_an_identity_is_refused() {
    let mut s = Scene::new();
    let client = s.client();
    s.world.clients[client].config.initiator = [0; 16];
    s.world.start_client(client);
    assert_eq!(s.until_ended(client), End::Refused(Status::Invalid));
    assert!(s.world.target(0).sessions().is_empty());
    s.end();
}

/// Every attach is of the scene's export, for reading unless it writes. Transactions and how they
/// were answered, in order.
#[derive(Default)]
struct Asking {
    writes: bool,
    answers: Vec<(u32, Status)>,
}

impl Content for Asking {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        let Item::Attach(transaction) = item else { return false };
        let flags = if self.writes { 0 } else { attach_flags::READ_ONLY };
        Attach { transaction, flags, writer_generation: 0, export: "disk0" }.emit(out);
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
            Message::Attached(a) => self.answers.push((a.transaction, Status::Ok)),
            Message::AttachRefused(r) => {
                self.answers.push((r.transaction, Status::from_number(r.status)));
            }
            _ => {}
        }
    }
}

/// An initiator by hand, that asks for more than the shipped one does.
fn by_hand(s: &mut Scene, name: u8) -> Hand {
    s.hand(name, &mut Asking::default(), |_| {})
}

fn ask(s: &mut Scene, hand: &mut Hand, transaction: u32) -> Status {
    let mut desk = Asking::default();
    hand.session.as_mut().expect("welcomed").send(Item::Attach(transaction));
    s.turn(hand, &mut desk);
    let answer = desk.answers.pop().expect("an answer");
    assert_eq!((answer.0, desk.answers.len()), (transaction, 0));
    answer.1
}

/// Attachments are memory of the target, and nobody pays credit for them.
#[test]
fn a_session_has_so_many_attachments_and_no_more() {
    let mut s = Scene::new().with_client();
    let mut hand = by_hand(&mut s, 0x77);
    for transaction in 1..=64 {
        assert_eq!(ask(&mut s, &mut hand, transaction), Status::Ok, "attach {transaction}");
    }
    for transaction in 65..=80 {
        assert_eq!(ask(&mut s, &mut hand, transaction), Status::TooMany, "attach {transaction}");
    }
    // Nobody else is concerned.
    let mut other = by_hand(&mut s, 0x78);
    assert_eq!(ask(&mut s, &mut other, 1), Status::Ok);
    s.run(Op::Write, at(0, 8)).unwrap();
    s.end();
}

/// A question is asked again when its answer may have been lost: also the one that took the last
/// place.
#[test]
fn the_last_attach_is_answered_again_as_before() {
    let mut s = Scene::new();
    let mut hand = by_hand(&mut s, 0x77);
    for transaction in 1..=64 {
        assert_eq!(ask(&mut s, &mut hand, transaction), Status::Ok, "attach {transaction}");
    }
    assert_eq!(ask(&mut s, &mut hand, 64), Status::Ok);
    assert_eq!(ask(&mut s, &mut hand, 65), Status::TooMany);
    assert_eq!(ask(&mut s, &mut hand, 64), Status::Ok);
    assert_eq!(s.world.target(0).sessions()[0].exports.len(), 64);
}

/// A question arrives once more after so many others that its answer is not kept any more: it is not
/// a new one. Executed, it would fence the attachment that its session has now.
#[test]
fn a_question_that_comes_very_late_is_not_executed() {
    let mut s = Scene::new();
    let mut desk = Asking { writes: true, ..Asking::default() };
    let mut hand = by_hand(&mut s, 0x77);
    let first = Cell::new(true);
    s.world.set_judge(move |_, _, bytes| {
        let is_attach = Frame::parse(bytes)
            .is_ok_and(|frame| frame.messages().any(|m| matches!(m, Message::Attach(_))));
        if is_attach && first.take() { Verdict::Delay(SECOND) } else { Verdict::Pass }
    });
    // It is sent again, answered, and forgotten.
    for transaction in 1..=40 {
        hand.session.as_mut().expect("welcomed").send(Item::Attach(transaction));
        while !desk.answers.contains(&(transaction, Status::Ok)) {
            s.turn(&mut hand, &mut desk);
        }
    }
    desk.answers.clear();
    assert!(s.world.now < SECOND, "the first is still on its way");
    let generation = |s: &Scene| s.medium.commits().last().map(|commit| commit.generation);
    let before = generation(&s);
    for _ in 0..2000 {
        s.turn(&mut hand, &mut desk);
    }
    assert_eq!(generation(&s), before);
    assert_eq!(desk.answers.last(), Some(&(1, Status::Busy)));
}
