//! What peers that are careless or hostile are refused.

use thinwire_buffer::{Addr, Pool, RxBatch, SegList, TxBatch};
use thinwire_link::Link;
use thinwire_link::sim::{SimLink, StationConfig};
use thinwire_proto::{
    Batching, Content, Item, LinkParams, Role, Session, SessionConfig, Time, outside_frame,
};
use thinwire_sim::client::End;
use thinwire_sim::machine::link_params;
use thinwire_volume::Op;
use thinwire_wire::{Attach, Frame, Header, Hello, Kind, Message, Status, attach_flags};

use crate::scene::{Scene, at, ms};

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

/// An initiator by hand, that asks for more than the shipped one does.
struct ByHand {
    link: SimLink,
    params: LinkParams,
    batch: [TxBatch; 1],
    pool: Pool,
    session: Option<Session>,
    /// Transactions and how they were answered, in order.
    answers: Vec<(u32, Status)>,
}

/// Every attach is of the scene's export, for reading.
struct Asking;

impl Content for Asking {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        let Item::Attach(transaction) = item else { return false };
        let flags = attach_flags::READ_ONLY;
        Attach { transaction, flags, writer_generation: 0, export: "disk0" }.emit(out);
        true
    }

    fn payload(&mut self, _: u16, _: u32, _: u32, _: u32, _: &mut SegList) -> bool {
        false
    }

    fn acked(&mut self, _: Item) {}
}

const ID: u64 = 1 << 63 | 1;

impl ByHand {
    /// A station on the wire of the scene, and a session with its target.
    fn new(s: &mut Scene, name: u8) -> Self {
        let link = s.world.net.station(StationConfig::default());
        let mut hand = ByHand {
            params: link_params(&link),
            link,
            batch: [TxBatch::new()],
            pool: Pool::new(1 << 20),
            session: None,
            answers: Vec::new(),
        };
        hand.greet(s, name, 0);
        assert!(hand.session.is_some(), "it was not welcomed");
        hand
    }

    fn greet(&mut self, s: &mut Scene, name: u8, cookie: u64) {
        let hello = Hello {
            nonce: 5,
            session: ID,
            initiator: [name; 16],
            instance: 1,
            frame_bytes_max: self.params.frame_bytes_max as u16,
            security: 1,
            room_frames: self.params.room.frames,
            room_bytes: self.params.room.bytes,
            cookie,
            node: "node",
            export: "disk0",
            name: "by hand",
        };
        let to = Addr::Sim(s.world.servers[0].stations()[0]);
        outside_frame(&mut self.batch[0], to, Header::new(Kind::Hello), 0, |out| hello.emit(out));
        if let Some(cookie) = self.turn(s) {
            self.greet(s, name, cookie);
        }
    }

    /// Sends what waits, gives it a moment, and takes in what came. Returns the cookie with which the
    /// target wants to be greeted, if it does.
    fn turn(&mut self, s: &mut Scene) -> Option<u64> {
        let now = Time(s.world.now);
        if let Some(session) = &mut self.session {
            session.on_time(now);
            session.transmit(now, &mut Asking, &mut self.batch);
        }
        self.link.send(&mut self.batch[0]).expect("simulated links do not fail");
        s.pass(ms(1));
        let mut frames = RxBatch::new();
        self.link.recv(&self.pool, 512, &mut frames).expect("simulated links do not fail");
        let now = Time(s.world.now);
        for rx in frames.drain(..) {
            let frame = Frame::parse(&rx.bytes).expect("a good frame");
            if let Some(Message::Retry(retry)) = frame.messages().next() {
                return Some(retry.cookie);
            }
            if let Some(Message::Welcome(welcome)) = frame.messages().next() {
                let (remote_id, epoch) = (welcome.session, welcome.epoch);
                let role = Role::Initiator;
                let config = SessionConfig {
                    role,
                    local_id: ID,
                    remote_id,
                    epoch,
                    seed: 1,
                    batching: Batching::default(),
                };
                let p = self.params;
                let mut session = Session::new(now, config, p.room);
                let (base, most) = (p.frame_bytes_base, p.frame_bytes_max);
                session.add_path(now, 0, rx.from, Some(p.room), base, most);
                self.session = Some(session);
                continue;
            }
            if frame.header().kind != Kind::Session {
                continue;
            }
            let session = self.session.as_mut().expect("welcomed");
            session.accept(now, 0, rx.from, rx.waited, &frame, &mut Asking).expect("accepted");
            for message in frame.messages() {
                match message {
                    Message::Attached(a) => self.answers.push((a.transaction, Status::Ok)),
                    Message::AttachRefused(r) => {
                        self.answers.push((r.transaction, Status::from_number(r.status)));
                    }
                    _ => {}
                }
            }
        }
        None
    }

    fn ask(&mut self, s: &mut Scene, transaction: u32) -> Status {
        self.session.as_mut().expect("welcomed").send(Item::Attach(transaction));
        self.turn(s);
        let answer = self.answers.pop().expect("an answer");
        assert_eq!((answer.0, self.answers.len()), (transaction, 0));
        answer.1
    }
}

/// Attachments are memory of the target, and nobody pays credit for them.
#[test]
fn a_session_has_so_many_attachments_and_no_more() {
    let mut s = Scene::new().with_client();
    let mut hand = ByHand::new(&mut s, 0x77);
    for transaction in 1..=64 {
        assert_eq!(hand.ask(&mut s, transaction), Status::Ok, "attach {transaction}");
    }
    for transaction in 65..=80 {
        assert_eq!(hand.ask(&mut s, transaction), Status::TooMany, "attach {transaction}");
    }
    // Nobody else is concerned.
    let mut other = ByHand::new(&mut s, 0x78);
    assert_eq!(other.ask(&mut s, 1), Status::Ok);
    s.run(Op::Write, at(0, 8)).unwrap();
    s.end();
}

/// A question is asked again when its answer may have been lost: also the one that took the last
/// place.
#[test]
fn the_last_attach_is_answered_again_as_before() {
    let mut s = Scene::new();
    let mut hand = ByHand::new(&mut s, 0x77);
    for transaction in 1..=64 {
        assert_eq!(hand.ask(&mut s, transaction), Status::Ok, "attach {transaction}");
    }
    assert_eq!(hand.ask(&mut s, 64), Status::Ok);
    assert_eq!(hand.ask(&mut s, 65), Status::TooMany);
    assert_eq!(hand.ask(&mut s, 64), Status::Ok);
    assert_eq!(s.world.target(0).sessions()[0].exports.len(), 64);
}
