//! Rule 3, one writer, of an attachment of several members: who lets go of it before all of them are there.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_link::sim::Verdict;
use thinwire_sim::client::End;
use thinwire_sim::world::SECOND;
use thinwire_wire::{Frame, Message};

use crate::scene::{Scene, ms};

/// A client of two members, of which the second is given up when the target has decided and the answer is under way for
/// so long; then somebody else attaches. How long that takes, in ns, from when the first began to end.
fn given_up(answer_ms: u64) -> u64 {
    let mut s = Scene::new();
    let (joins, stranger) = (s.client(), s.client());
    s.world.clients[joins].members = 2;
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    s.world.set_judge(move |_, _, bytes| {
        let Ok(frame) = Frame::parse(bytes) else { return Verdict::Pass };
        if !frame.messages().any(|message| matches!(message, Message::Attached(_))) {
            return Verdict::Pass;
        }
        seen.set(seen.get() + 1);
        match seen.get() {
            2 => Verdict::Delay(ms(answer_ms).as_nanos() as u64),
            _ => Verdict::Pass,
        }
    });
    s.world.start_client(joins);
    let answered = answers.clone();
    s.until("the second is granted", move |_| answered.get() == 2);
    assert!(!s.world.clients[joins].is_open);
    let begun = s.world.now;
    s.world.clients[joins].close();
    let ended = s.until_ended(joins);
    assert!(matches!(ended, End::Closed), "{ended:?}");
    // Refused as long as it is held, and asks again.
    s.world.clients[stranger].config.wait = true;
    s.attach(stranger);
    let taken = s.world.now - begun;
    s.end();
    taken
}

/// The target does not know what of its grant has arrived: whoever gives a join up waits for the answer, and sets the
/// export free.
#[test]
fn a_join_that_is_given_up_before_its_answer_keeps_nothing() {
    for answer_ms in [1, 40, 900] {
        let taken = given_up(answer_ms);
        assert!(taken < 3 * SECOND, "answer after {answer_ms} ms: {taken} ns");
    }
}
