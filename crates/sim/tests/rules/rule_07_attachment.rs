//! Rule 7: fencing invalidates the handle of an attachment, not the session.

use thinwire_proto::Item;
use thinwire_sim::client::End;
use thinwire_sim::hand::Hand;
use thinwire_sim::world::SECOND;
use thinwire_target::SESSION_NUMBER;
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::{Attached, Bye, Detach, Message, Status};

use crate::requests::{Asker, Asking};
use crate::scene::{Scene, at};

#[test]
fn rule_07_a_fenced_session_is_still_answered() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.write(at(0, 8));
    s.world.clients[b].config.take_over = true;
    s.attach(b);
    assert_eq!(s.world.target(0).sessions().len(), 2);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
    let token = s.submit(b, Op::Write, at(0, 8));
    s.outcome(b, token).result.unwrap();
    s.end();
}

#[test]
fn rule_07_readers_are_not_fenced() {
    let mut s = Scene::new().with_client();
    let (b, reader) = (s.client(), s.client());
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    s.write(at(0, 8));
    s.world.clients[b].config.take_over = true;
    s.attach(b);
    assert_eq!(s.until_ended(0), End::Failed(ErrorKind::Fenced));
    let token = s.submit(reader, Op::Read, at(0, 8));
    s.outcome(reader, token).result.unwrap();
    let token = s.submit(reader, Op::Write, at(0, 8));
    assert_eq!(s.outcome(reader, token).result, Err(ErrorKind::ReadOnly));
    s.end();
}

/// A session ends while its detach is being recorded, and another has its place when it is told: transactions are each
/// session's own.
#[test]
fn rule_07_the_end_of_one_session_is_not_told_to_the_next_in_its_place() {
    let mut s = Scene::new();
    let mut first = Asker::new(&mut s, 0);
    let place = |hand: &Hand| hand.welcome.unwrap().session >> 32 & u64::from(SESSION_NUMBER);
    let before_it = place(&first.hand);
    s.medium.set_latency(SECOND, SECOND);
    let Attached { attachment, generation, .. } = first.desk.attached.unwrap();
    let detach = Detach { transaction: 2, attachment, generation };
    let bye = Bye { status: Status::Ok as u16 };
    for message in [Message::Detach(detach), Message::Bye(bye)] {
        first.hand.session.as_mut().unwrap().send(Item::said(message));
    }
    s.turn(&mut first.hand, &mut first.desk);
    let commits = s.medium.commits().len();
    let mut second = Asking::default();
    let mut hand = s.hand(0x72, &mut second, |_| {});
    assert_eq!(place(&hand), before_it);
    hand.session.as_mut().unwrap().send(Item::Ping);
    (0..8_000).for_each(|_| s.turn(&mut hand, &mut second));
    assert_eq!(s.world.target(0).sessions().len(), 1);
    let told = s.medium.commits();
    assert_eq!((told.len(), told.last().unwrap().is_held()), (commits + 1, false), "free by now");
    assert!(!second.is_detached);
}
