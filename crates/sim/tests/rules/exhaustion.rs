//! Peers that ask and do not listen (`docs/protocol.md`, "Bounds"): what is acknowledged is answered or
//! the session ends, and nobody else is concerned.

use thinwire_buffer::{Addr, Pool, RxBatch, SegList, TxBatch};
use thinwire_link::Link;
use thinwire_link::sim::{SimLink, StationConfig};
use thinwire_proto::{
    Batching, Content, DropReason, Item, LinkParams, Role, Room, Session, SessionConfig, Time,
    outside_frame, seal,
};
use thinwire_sim::machine::link_params;
use thinwire_wire::{
    Detach, Frame, Header, Hello, Kind, Message, OpCode, Ping, Probe, ProbeReply, Request,
};

use crate::scene::{Scene, at, ms};

const ID: u64 = 1 << 63 | 1;

/// Has nothing to say that its session does not say by itself.
struct Nothing;

impl Content for Nothing {
    fn emit(&mut self, _: Item, _: &mut Vec<u8>) -> bool {
        false
    }
    fn payload(&mut self, _: u16, _: u32, _: u32, _: u32, _: &mut SegList) -> bool {
        false
    }
    fn acked(&mut self, _: Item) {}
}

/// An initiator by hand.
struct Hand {
    link: SimLink,
    params: LinkParams,
    room: Room,
    target: Addr,
    batch: [TxBatch; 1],
    pool: Pool,
    /// The target's id of the session, and its epoch; `None` when it does not know it any more.
    welcome: Option<(u64, u32)>,
    number: u64,
    /// It listens, by the shipped state machine; without it, it only answers probes.
    session: Option<Session>,
    detached: Vec<u32>,
}

impl Hand {
    fn new(s: &mut Scene, name: u8, room: Room) -> Self {
        let link = s.world.net.station(StationConfig::default());
        let mut hand = Hand {
            params: link_params(&link),
            room,
            target: Addr::Sim(s.world.servers[0].stations()[0]),
            link,
            batch: [TxBatch::new()],
            pool: Pool::new(1 << 20),
            welcome: None,
            number: 0,
            session: None,
            detached: Vec::new(),
        };
        hand.greet(s, name, 0);
        assert!(hand.welcome.is_some(), "it was not welcomed");
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
            room_frames: self.room.frames,
            room_bytes: self.room.bytes,
            cookie,
            node: "node",
            export: "disk0",
            name: "by hand",
        };
        let header = Header::new(Kind::Hello);
        outside_frame(&mut self.batch[0], self.target, header, 0, |out| hello.emit(out));
        if let Some(cookie) = self.turn(s) {
            self.greet(s, name, cookie);
        }
    }

    fn listen(&mut self, now: Time) {
        let (remote_id, epoch) = self.welcome.expect("welcomed");
        let config = SessionConfig {
            role: Role::Initiator,
            local_id: ID,
            remote_id,
            epoch,
            seed: 1,
            batching: Batching::default(),
        };
        let p = self.params;
        let mut session = Session::new(now, config, self.room);
        session.add_path(now, 0, self.target, Some(p.room), p.frame_bytes_base, p.frame_bytes_max);
        self.session = Some(session);
    }

    /// A frame of the session, `gap` numbers behind the last, that acknowledges nothing.
    fn say(&mut self, gap: u64, messages: impl FnOnce(&mut Vec<u8>)) {
        self.number += 1 + gap;
        let Some((id, epoch)) = self.welcome else { return };
        let frame = self.batch[0].push(self.target);
        Header::reserve(&mut frame.head);
        messages(&mut frame.head);
        let end = frame.head.len() as u16;
        let mut header = Header::new(Kind::Session);
        (header.session, header.epoch, header.packet_number) = (id, epoch, self.number);
        (header.messages_end, header.data_offset, header.length) = (end, end, end);
        header.write(&mut frame.head);
        seal(frame);
    }

    /// Sends what waits, gives it a moment, and takes in what came. Returns the cookie with which the
    /// target wants to be greeted, if it does.
    fn turn(&mut self, s: &mut Scene) -> Option<u64> {
        let now = Time(s.world.now);
        if let Some(session) = &mut self.session {
            session.on_time(now);
            session.transmit(now, &mut Nothing, &mut self.batch);
        }
        self.link.send(&mut self.batch[0]).expect("simulated links do not fail");
        s.pass(ms(1));
        let mut frames = RxBatch::new();
        self.link.recv(&self.pool, 4096, &mut frames).expect("simulated links do not fail");
        let now = Time(s.world.now);
        for rx in frames.drain(..) {
            let frame = Frame::parse(&rx.bytes).expect("a good frame");
            let header = frame.header();
            match (frame.messages().next(), &mut self.session) {
                (Some(Message::Retry(retry)), _) => return Some(retry.cookie),
                (Some(Message::Welcome(w)), _) => self.welcome = Some((w.session, w.epoch)),
                (Some(Message::UnknownSession(_)), _) => self.welcome = None,
                (Some(Message::Probe(Probe { token, size, .. })), _) => {
                    let (id, epoch) = self.welcome.expect("welcomed");
                    let mut reply = Header::new(Kind::ProbeReply);
                    (reply.session, reply.epoch, reply.path) = (id, epoch, header.path);
                    let Room { frames: room_frames, bytes: room_bytes } = self.room;
                    let reserved = Default::default();
                    let message = ProbeReply { token, size, reserved, room_frames, room_bytes };
                    outside_frame(&mut self.batch[0], self.target, reply, 0, |o| message.emit(o));
                }
                (_, Some(session)) if header.kind == Kind::Session => {
                    session
                        .accept(now, 0, rx.from, rx.waited, &frame, &mut Nothing)
                        .expect("accepted");
                    for message in frame.messages() {
                        if let Message::Detached(d) = message {
                            self.detached.push(d.transaction);
                        } else {
                            session.on_message(now, &message, &mut Nothing);
                        }
                    }
                }
                _ => {}
            }
        }
        None
    }
}

fn detach(transaction: u32) -> Detach {
    Detach { transaction, attachment: 1, generation: 1 }
}

/// An initiator that can take in little at a time asks for much: whatever was acknowledged is answered,
/// however long that takes.
#[test]
fn whatever_is_acknowledged_is_answered() {
    let mut s = Scene::new().with_client();
    let mut hand = Hand::new(&mut s, 0x77, Room { frames: 1, bytes: 2048 });
    hand.listen(Time(s.world.now));
    let asked = 12_000;
    for transaction in 0..asked {
        hand.session.as_mut().unwrap().send(Item::Detach(detach(transaction)));
    }
    for _ in 0..4_000 {
        hand.turn(&mut s);
        if hand.detached.len() >= asked as usize {
            break;
        }
    }
    hand.detached.sort_unstable();
    hand.detached.dedup();
    assert_eq!(hand.detached.len(), asked as usize, "some were acknowledged and never answered");
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
        let mut hand = Hand::new(&mut s, 0x77 + way as u8, room);
        let mut said = 0;
        while hand.welcome.is_some() {
            for _ in 0..16 {
                hand.say(0, |out| (0..40).for_each(|n| each(out, said + n)));
                said += 40;
            }
            hand.turn(&mut s);
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
    let mut hand = Hand::new(&mut s, 0x77, Room { frames: 1 << 20, bytes: 1 << 30 });
    hand.say(0, |out| detach(1).emit(out));
    for round in 0..2_000 {
        (0..16).for_each(|_| hand.say(1, |out| Ping {}.emit(out)));
        hand.turn(&mut s);
        if round % 200 == 0 {
            s.write(at(round / 200, 1));
        }
    }
    assert!(hand.welcome.is_some());
    assert_eq!(s.stats(0).sessions, 1);
    s.end();
}
