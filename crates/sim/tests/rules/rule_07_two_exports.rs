//! Rule 7 in one session that writes two exports: what is fenced is one attachment. The shipped
//! initiator has one export a session, so this one is by hand.

use thinwire_buffer::{Pool, RxFrame, SegList};
use thinwire_link::sim::StationConfig;
use thinwire_proto::{Content, Item, Time};
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::hand::{Desk, Hand};
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::server::Crash;
use thinwire_wire::{Attach, Attached, Message, OpCode, Request, Status, event_code};

use crate::scene::Scene;

const BYTES: u32 = 4096;
const EXPORTS: [&str; 2] = ["disk0", "disk1"];

/// What it has asked for, and what it was told.
#[derive(Default)]
struct Writing {
    pool: Option<Pool>,
    attached: [Option<Attached>; 2],
    /// By use of slot 0: which export, which byte all over.
    writes: Vec<(usize, u8)>,
    completed: Vec<(u32, Status)>,
    fenced: Vec<u32>,
}

impl Content for Writing {
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

impl Desk for Writing {
    fn hear(&mut self, _: Time, message: &Message<'_>, _: &RxFrame) {
        match message {
            Message::Attached(a) => {
                let at = a.transaction as usize - 1;
                self.attached[at] = Some(*a);
            }
            Message::Complete(c) => {
                self.completed.push((c.sequence, Status::from_number(c.status)));
            }
            Message::Event(e) if e.code == event_code::FENCED => {
                self.fenced.push(e.attachment);
            }
            _ => {}
        }
    }
}

/// It writes both exports.
fn writer(s: &mut Scene) -> (Hand, Writing) {
    let mut desk = Writing { pool: Some(Pool::new(1 << 20)), ..Writing::default() };
    let mut hand = s.hand(0x77, &mut desk, |_| {});
    for transaction in [1, 2] {
        hand.session.as_mut().expect("welcomed").send(Item::Attach(transaction));
    }
    (0..20).for_each(|_| s.turn(&mut hand, &mut desk));
    assert!(desk.attached.iter().all(Option::is_some), "it writes both");
    (hand, desk)
}

/// Fills the first block of an export with this byte.
fn write(s: &mut Scene, (hand, desk): &mut (Hand, Writing), export: usize, byte: u8) -> Status {
    desk.writes.push((export, byte));
    let sequence = desk.writes.len() as u32;
    let session = hand.session.as_mut().expect("welcomed");
    session.send(Item::Request { slot: 0, sequence });
    session.send(Item::Data { slot: 0, sequence, offset: 0, length: BYTES });
    for _ in 0..1000 {
        s.turn(hand, desk);
        if let Some(at) = desk.completed.iter().position(|(of, _)| *of == sequence) {
            return desk.completed.remove(at).1;
        }
    }
    panic!("write {sequence} to export {export} was not answered");
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
    let mut hand = writer(&mut s);
    assert_eq!(write(&mut s, &mut hand, 0, 0x10), Status::Ok);
    assert_eq!(write(&mut s, &mut hand, 1, 0x21), Status::Ok);

    let b = s.world.add_client(1, StationConfig::default(), other, Workload::NONE);
    s.world.exports[other].writers = 2;
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    for _ in 0..2000 {
        s.turn(&mut hand.0, &mut hand.1);
        if s.world.clients[b].is_open && !hand.1.fenced.is_empty() {
            break;
        }
    }
    assert!(s.world.clients[b].is_open, "it has taken the second over");
    let lost = hand.1.attached[1].as_ref().expect("it was attached").attachment;
    assert_eq!(hand.1.fenced, [lost], "it was told which");
    assert_eq!(write(&mut s, &mut hand, 1, 0x22), Status::Fenced);
    assert_eq!(write(&mut s, &mut hand, 0, 0x13), Status::Ok);
    assert_eq!(s.world.target(0).sessions().len(), 2);

    let block = |medium: &MediumHandle| medium.current()[..BYTES as usize].to_vec();
    assert_eq!(block(&s.medium), vec![0x13; BYTES as usize]);
    assert_eq!(block(&second), vec![0x21; BYTES as usize], "nothing of it after the grant");
}
