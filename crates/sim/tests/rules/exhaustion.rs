//! Peers that ask and do not listen (`docs/protocol.md`, "Bounds"): what is acknowledged is answered or
//! the session ends, and nobody else is concerned.

use thinwire_buffer::{Room, RxFrame, SegList};
use thinwire_proto::{Content, DropReason, Item, Time};
use thinwire_sim::hand::{Desk, Hand};
use thinwire_wire::{Detach, Message, OpCode, Ping, Request};

use crate::scene::{Scene, at};

/// Has nothing to say that its session does not say by itself, and remembers what was detached.
#[derive(Default)]
struct Nothing {
    detached: Vec<u32>,
}

impl Content for Nothing {
    fn emit(&mut self, _: Item, _: &mut Vec<u8>) -> bool {
        false
    }
    fn payload(&mut self, _: u16, _: u32, _: u32, _: u32, _: &mut SegList) -> bool {
        false
    }
    fn acked(&mut self, _: Item) {}
}

impl Desk for Nothing {
    fn hear(&mut self, _: Time, message: &Message<'_>, _: &RxFrame) {
        if let Message::Detached(d) = message {
            self.detached.push(d.transaction);
        }
    }
}

/// It takes in so much; without a session, which listens, it only answers probes.
fn hand(s: &mut Scene, name: u8, room: Room, listens: bool) -> Hand {
    s.hand(name, &mut Nothing::default(), |hand| (hand.room, hand.listens) = (room, listens))
}

fn detach(transaction: u32) -> Detach {
    Detach { transaction, attachment: 1, generation: 1 }
}

/// An initiator that can take in little at a time asks for much: whatever was acknowledged is answered,
/// however long that takes.
#[test]
fn whatever_is_acknowledged_is_answered() {
    let mut s = Scene::new().with_client();
    let mut hand = hand(&mut s, 0x77, Room { frames: 1, bytes: 2048 }, true);
    let mut desk = Nothing::default();
    let asked = 12_000;
    for transaction in 0..asked {
        hand.session.as_mut().unwrap().send(Item::said(Message::Detach(detach(transaction))));
    }
    for _ in 0..4_000 {
        s.turn(&mut hand, &mut desk);
        if desk.detached.len() >= asked as usize {
            break;
        }
    }
    desk.detached.sort_unstable();
    desk.detached.dedup();
    assert_eq!(desk.detached.len(), asked as usize, "some were acknowledged and never answered");
    let drops = s.world.target(0).stats().drops;
    assert_eq!(drops.get(DropReason::Overload) + drops.get(DropReason::Overrun), 0);
    s.write(at(0, 8));
    s.end();
}

/// One that takes nothing in at all is thrown out; the client beside it does not notice.
#[test]
fn a_session_that_too_much_waits_in_ends() {
    let mut s = Scene::new().with_client();
    let room = Room { frames: 1 << 20, bytes: 1 << 30 };
    type Say = fn(&mut Vec<u8>, u32);
    let ways: [Say; 2] = [
        |out, n| detach(n).emit(out),
        |out, _| {
            let request = Request {
                slot: 0,
                op: OpCode::Flush as u8,
                op_flags: 0,
                sequence: 1,
                attachment: 1,
                generation: 1,
                address: 0,
                length: 0,
            };
            request.emit(out);
        },
    ];
    for (way, each) in ways.into_iter().enumerate() {
        let mut hand = hand(&mut s, 0x77 + way as u8, room, false);
        let mut said = 0;
        while hand.welcome.is_some() {
            for _ in 0..16 {
                hand.say(0, |out| (0..40).for_each(|n| each(out, said + n)));
                said += 40;
            }
            s.turn(&mut hand, &mut Nothing::default());
            assert!(said < 400_000, "it goes on, whatever piles up");
        }
        s.write(at(8 * way, 8));
        let drops = s.world.target(0).stats().drops;
        assert_eq!(drops.get(DropReason::Overrun), way as u64 + 1);
        assert_eq!(drops.get(DropReason::Overload), 0, "nothing of a frame is left out");
    }
    assert_eq!(s.stats(0).sessions, 1, "the client beside them went on");
    assert_eq!(s.world.target(0).sessions().len(), 1);
    s.end();
}

/// One question that stays open, and gap after gap behind it: a nuisance, no more.
#[test]
fn gaps_behind_an_open_frame_go_on_for_ever() {
    let mut s = Scene::new().with_client();
    let mut hand = hand(&mut s, 0x77, Room { frames: 1 << 20, bytes: 1 << 30 }, false);
    hand.say(0, |out| detach(1).emit(out));
    for round in 0..2_000 {
        (0..16).for_each(|_| hand.say(1, |out| Ping {}.emit(out)));
        s.turn(&mut hand, &mut Nothing::default());
        if round % 200 == 0 {
            s.write(at(round / 200, 1));
        }
    }
    assert!(hand.welcome.is_some());
    assert_eq!(s.stats(0).sessions, 1);
    s.end();
}
