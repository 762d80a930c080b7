//! Rule 7: fencing invalidates the handle of an attachment, not the session.

use thinwire_sim::client::End;
use thinwire_volume::{ErrorKind, Op};

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
