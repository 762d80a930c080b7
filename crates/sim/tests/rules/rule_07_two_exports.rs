//! Rule 7 in one session that writes two exports: what is fenced is one attachment. The shipped
//! initiator has one export a session, so this one is by hand.

use thinwire_buffer::{Addr, Pool, RxBatch, SegList, TxBatch};
use thinwire_link::Link;
use thinwire_link::sim::{SimLink, StationConfig};
use thinwire_proto::{Batching, Content, Item, Role, Session, SessionConfig, Time, outside_frame};
use thinwire_sim::client::Workload;
use thinwire_sim::machine::link_params;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::server::{Crash, Store};
use thinwire_wire::{
    Attach, Attached, Frame, Header, Hello, Kind, Message, OpCode, Request, Status, event_code,
};

use crate::scene::{Scene, ms};

const ID: u64 = 1 << 63 | 1;
const BYTES: u32 = 4096;
const EXPORTS: [&str; 2] = ["disk0", "disk1"];

/// What it has asked for, and what it was told.
#[derive(Default)]
struct Desk {
    pool: Option<Pool>,
    attached: [Option<Attached>; 2],
    /// By use of slot 0: which export, which byte all over.
    writes: Vec<(usize, u8)>,
    completed: Vec<(u32, Status)>,
    fenced: Vec<u32>,
}

impl Content for Desk {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        match item {
            Item::Attach(transaction) => {
                let export = EXPORTS[transaction as usize - 1];
                Attach { transaction, flags: 0, writer_generation: 0, export }.emit(out);
            }
            Item::Request { slot, sequence } => {
                let (export, _) = self.writes[sequence as usize - 1];
                let a = self.attached[export].as_ref().expect("it is attached");
                let request = Request {
                    slot,
                    op: OpCode::Write as u8,
                    op_flags: 0,
                    sequence,
                    attachment: a.attachment,
                    generation: a.generation,
                    address: 0,
                    length: BYTES,
                };
                request.emit(out);
            }
            _ => return false,
        }
        true
    }

    fn payload(&mut self, _: u16, sequence: u32, at: u32, len: u32, out: &mut SegList) -> bool {
        let (_, byte) = self.writes[sequence as usize - 1];
        let mut buf = self.pool.as_ref().expect("it has one").get(BYTES as usize);
        buf.fill(byte);
        out.push(buf.freeze().slice(at as usize, len as usize));
        true
    }

    fn acked(&mut self, _: Item) {}
}

struct Hand {
    link: SimLink,
    batch: [TxBatch; 1],
    pool: Pool,
    session: Option<Session>,
    desk: Desk,
}

impl Hand {
    fn new(s: &mut Scene) -> Self {
        let link = s.world.net.station(StationConfig::default());
        let pool = Pool::new(1 << 20);
        let desk = Desk { pool: Some(pool.clone()), ..Desk::default() };
        let mut hand = Hand { link, batch: [TxBatch::new()], pool, session: None, desk };
        hand.greet(s, 0);
        assert!(hand.session.is_some(), "it was not welcomed");
        for transaction in [1, 2] {
            hand.session.as_mut().expect("welcomed").send(Item::Attach(transaction));
        }
        (0..20).for_each(|_| hand.turn(s));
        assert!(hand.desk.attached.iter().all(Option::is_some), "it writes both");
        hand
    }

    fn greet(&mut self, s: &mut Scene, cookie: u64) {
        let p = link_params(&self.link);
        let hello = Hello {
            nonce: 5,
            session: ID,
            initiator: [0x77; 16],
            instance: 1,
            frame_bytes_max: p.frame_bytes_max as u16,
            security: 1,
            room_frames: p.room.frames,
            room_bytes: p.room.bytes,
            cookie,
            node: "node",
            export: EXPORTS[0],
            name: "by hand",
        };
        let to = Addr::Sim(s.world.servers[0].stations()[0]);
        outside_frame(&mut self.batch[0], to, Header::new(Kind::Hello), 0, |out| hello.emit(out));
        self.turn(s);
    }

    /// Sends what waits, gives it a moment, and takes in what came.
    fn turn(&mut self, s: &mut Scene) {
        let now = Time(s.world.now);
        if let Some(session) = &mut self.session {
            session.on_time(now);
            session.transmit(now, &mut self.desk, &mut self.batch);
        }
        self.link.send(&mut self.batch[0]).expect("simulated links do not fail");
        s.pass(ms(1));
        let mut frames = RxBatch::new();
        self.link.recv(&self.pool, 512, &mut frames).expect("simulated links do not fail");
        let now = Time(s.world.now);
        for rx in frames.drain(..) {
            let frame = Frame::parse(&rx.bytes).expect("a good frame");
            match frame.messages().next() {
                Some(Message::Retry(retry)) => return self.greet(s, retry.cookie),
                Some(Message::Welcome(welcome)) => {
                    let config = SessionConfig {
                        role: Role::Initiator,
                        local_id: ID,
                        remote_id: welcome.session,
                        epoch: welcome.epoch,
                        seed: 1,
                        batching: Batching::default(),
                    };
                    let p = link_params(&self.link);
                    let mut session = Session::new(now, config, p.room);
                    let (base, most) = (p.frame_bytes_base, p.frame_bytes_max);
                    session.add_path(now, 0, rx.from, Some(p.room), base, most);
                    self.session = Some(session);
                    continue;
                }
                _ if frame.header().kind != Kind::Session => continue,
                _ => {}
            }
            let session = self.session.as_mut().expect("welcomed");
            let desk = &mut self.desk;
            session.accept(now, 0, rx.from, rx.waited, &frame, desk).expect("accepted");
            for message in frame.messages() {
                match message {
                    Message::Attached(a) => {
                        let at = a.transaction as usize - 1;
                        desk.attached[at] = Some(a);
                    }
                    Message::Complete(c) => {
                        desk.completed.push((c.sequence, Status::from_number(c.status)));
                    }
                    Message::Event(e) if e.code == event_code::FENCED => {
                        desk.fenced.push(e.attachment);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Fills the first block of an export with this byte.
    fn write(&mut self, s: &mut Scene, export: usize, byte: u8) -> Status {
        self.desk.writes.push((export, byte));
        let sequence = self.desk.writes.len() as u32;
        let session = self.session.as_mut().expect("welcomed");
        session.send(Item::Request { slot: 0, sequence });
        session.send(Item::Data { slot: 0, sequence, offset: 0, length: BYTES });
        for _ in 0..1000 {
            self.turn(s);
            if let Some(at) = self.desk.completed.iter().position(|(of, _)| *of == sequence) {
                return self.desk.completed.remove(at).1;
            }
        }
        panic!("write {sequence} to export {export} was not answered");
    }
}

/// Another initiator takes one of them over: that one is fenced, in a session that goes on with the
/// other, and the right writes land in the right image.
#[test]
fn rule_07_a_session_that_is_fenced_on_one_export_goes_on_with_the_other() {
    let mut s = Scene::new();
    let second = MediumHandle::new(2, [8; 16], MediumConfig::default());
    s.world.crash_server(0, Crash::Kill);
    let other = s.world.add_export(0, 1 << 20, 512, Store::File(second.clone()));
    s.world.start_server(0);
    let mut hand = Hand::new(&mut s);
    assert_eq!(hand.write(&mut s, 0, 0x10), Status::Ok);
    assert_eq!(hand.write(&mut s, 1, 0x21), Status::Ok);

    let b = s.world.add_client(1, StationConfig::default(), other, Workload::NONE);
    s.world.exports[other].writers = 2;
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    for _ in 0..2000 {
        hand.turn(&mut s);
        if s.world.clients[b].is_open && !hand.desk.fenced.is_empty() {
            break;
        }
    }
    assert!(s.world.clients[b].is_open, "it has taken the second over");
    let lost = hand.desk.attached[1].as_ref().expect("it was attached").attachment;
    assert_eq!(hand.desk.fenced, [lost], "it was told which");
    assert_eq!(hand.write(&mut s, 1, 0x22), Status::Fenced);
    assert_eq!(hand.write(&mut s, 0, 0x13), Status::Ok);
    assert_eq!(s.world.target(0).sessions().len(), 2);

    let block = |medium: &MediumHandle| medium.current()[..BYTES as usize].to_vec();
    assert_eq!(block(&s.medium), vec![0x13; BYTES as usize]);
    assert_eq!(block(&second), vec![0x21; BYTES as usize], "nothing of it after the grant");
}
