//! What an initiator makes of cookies, and of answers that anybody could have sent (`docs/protocol.md`,
//! "Addresses").

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use thinwire_buffer::Addr;
use thinwire_initiator::TargetName;
use thinwire_link::sim::{StationConfig, Verdict};
use thinwire_proto::Time;
use thinwire_sim::server::Crash;
use thinwire_wire::{Frame, Header, Kind, Message, Retry, UnknownSession};

use crate::forged::{Flooder, frame, hello, received, sessions, throw};
use crate::scene::{Scene, at, ms};

#[test]
fn a_cookie_is_worth_nothing_at_another_address() {
    let mut s = Scene::new();
    let other = s.world.net.station(StationConfig::default()).number();
    let mut flooder = Flooder::new(&mut s);
    flooder.open(&mut s, 0, false);
    throw(&mut s, other, &hello(1, flooder.cookie.get()));
    s.pass(ms(1));
    assert_eq!(sessions(&s), 0);
    throw(&mut s, flooder.station, &hello(1, flooder.cookie.get()));
    assert_eq!(sessions(&s), 1);
}

/// Kinds of the frames outside sessions between a client and its target, in order.
fn greetings(s: &mut Scene) -> Rc<RefCell<Vec<Kind>>> {
    let kinds = Rc::new(RefCell::new(Vec::new()));
    let seen = kinds.clone();
    s.world.set_judge(move |_, _, bytes| {
        let kind = Frame::parse(bytes).expect("a good frame").header().kind;
        if !matches!(kind, Kind::Session | Kind::Probe | Kind::ProbeReply) {
            seen.borrow_mut().push(kind);
        }
        Verdict::Pass
    });
    kinds
}

/// By name the cookie comes with the offer; by address it takes one more round trip.
#[test]
fn an_honest_attach_takes_at_most_one_more_round_trip() {
    let mut s = Scene::new();
    let client = s.client();
    let kinds = greetings(&mut s);
    s.attach(client);
    let greeted = kinds.take();
    assert_eq!(greeted, [Kind::Discover, Kind::Offer, Kind::Discover, Kind::Hello, Kind::Welcome]);
    s.end();

    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    s.world.clients[client].config.target = TargetName::Address(Addr::Sim(server));
    let kinds = greetings(&mut s);
    s.attach(client);
    assert_eq!(kinds.take(), [Kind::Hello, Kind::Retry, Kind::Hello, Kind::Welcome]);
    s.end();
}

/// The target is started again while an initiator holds a cookie of its last process.
#[test]
fn a_cookie_of_a_former_process_brings_a_new_one() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    s.world.clients[client].config.target = TargetName::Address(Addr::Sim(server));
    let kinds = greetings(&mut s);
    s.world.start_client(client);
    let seen = kinds.clone();
    s.until("a cookie", move |_| seen.borrow().contains(&Kind::Retry));
    s.restart(Crash::Kill);
    s.until("attached", move |w| w.clients[client].is_open);
    let kinds = kinds.take();
    let retries = kinds.iter().filter(|&&kind| kind == Kind::Retry).count();
    assert_eq!((retries, kinds.last()), (2, Some(&Kind::Welcome)), "{kinds:?}");
    s.write(at(0, 8));
    s.end();
}

/// Who has asked once is told once: RETRYs that somebody makes up bring no HELLO each.
#[test]
fn retries_without_end_bring_no_hellos_without_end() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    s.world.clients[client].config.target = TargetName::Address(Addr::Sim(server));
    let hellos = Rc::new(RefCell::new(Vec::new()));
    let seen = hellos.clone();
    s.world.set_judge(move |_, to, bytes| {
        if let Some(Message::Hello(hello)) = Frame::parse(bytes).unwrap().messages().next() {
            seen.borrow_mut().push((hello.nonce, hello.session));
            assert_eq!(to, server);
        }
        Verdict::Drop
    });
    s.world.start_client(client);
    s.pass(ms(10));
    let (nonce, session) = hellos.borrow()[0];
    for cookie in 1..500 {
        let header = Header { session, ..Header::new(Kind::Retry) };
        let retry = frame(header, 0, |out| Retry { nonce, cookie }.emit(out));
        let now = Time(s.world.now);
        let initiator = s.world.clients[client].initiator.as_mut().expect("it runs");
        initiator.on_frame(now, 0, &mut received(server, &retry));
        s.world.clients[client].machine.dirty = true;
        s.pass(ms(1));
    }
    // After 0, 100, 300 and 500 ms, and two more for each.
    assert_eq!(hellos.borrow().len(), 12);
}

/// Anybody can say that a session is unknown: the initiator asks on its paths, but not each time.
#[test]
fn unknown_sessions_without_end_bring_few_questions() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    let (id, probes) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (seen, asked) = (id.clone(), probes.clone());
    s.world.set_judge(move |_, to, bytes| {
        if let (true, Ok(frame)) = (to == server, Frame::parse(bytes)) {
            let header = frame.header();
            seen.set(if header.session == 0 { seen.get() } else { header.session });
            asked.set(asked.get() + u32::from(header.kind == Kind::Probe));
        }
        Verdict::Pass
    });
    s.attach(client);
    s.pass(ms(100));
    probes.set(0);
    let session = id.get();
    let unknown = frame(Header::new(Kind::UnknownSession), 0, |out| {
        UnknownSession { session }.emit(out);
    });
    for _ in 0..1000 {
        let now = Time(s.world.now);
        let initiator = s.world.clients[client].initiator.as_mut().expect("it runs");
        initiator.on_frame(now, 0, &mut received(4711, &unknown));
        s.world.clients[client].machine.dirty = true;
        s.pass(ms(1));
    }
    assert!((5..=12).contains(&probes.get()), "{} questions in a second", probes.get());
    assert_eq!(s.stats(0).sessions, 1);
    s.end();
}
