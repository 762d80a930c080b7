//! Frames that arrive at a target from stations that need not have sent them, and a station that greets
//! without end: for the scenarios on what forgers and floods can do.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, Pool, RxFrame, SegList, TxBatch, TxFrame};
use thinwire_link::sim::{StationConfig, Verdict};
use thinwire_proto::{Time, outside_frame, seal};
use thinwire_wire::{Frame, HEADER_BYTES, Header, Hello, Kind, Message, Ping, Probe};

use crate::scene::{Scene, ms};

/// A frame arrives at the target from a station that need not have sent it.
pub fn throw(s: &mut Scene, from: u32, bytes: &[u8]) {
    let now = Time(s.world.now);
    let target = s.world.servers[0].shards[0].target_mut().expect("it runs");
    target.on_frame(now, 0, &mut received(from, bytes));
    s.world.servers[0].wake();
}

pub fn received(from: u32, bytes: &[u8]) -> RxFrame {
    RxFrame {
        from: Addr::Sim(from),
        bytes: Pool::new(0).copy_of(bytes).freeze(),
        rest: SegList::new(),
        waited: Duration::ZERO,
        queued: Duration::ZERO,
    }
}

pub fn frame(header: Header, pad_to: usize, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut batch = TxBatch::new();
    outside_frame(&mut batch, Addr::Group, header, pad_to, body);
    batch.frames()[0].head.clone()
}

pub fn hello(nonce: u64, cookie: u64) -> Vec<u8> {
    let hello = Hello {
        nonce,
        session: 1 << 63 | nonce,
        initiator: [7; 16],
        instance: nonce,
        frame_bytes_max: 9000,
        security: 1,
        member: 0,
        room_frames: 64,
        room_bytes: 1 << 20,
        cookie,
        node: "node",
        export: "disk0",
        name: "forger",
    };
    frame(Header::new(Kind::Hello), 0, |out| hello.emit(out))
}

pub fn probe(session: u64, epoch: u32, path: u8, packet_number: u64, size: usize) -> Vec<u8> {
    let header = Header { session, epoch, path, packet_number, ..Header::new(Kind::Probe) };
    let message = Probe { token: 1, room_frames: 64, room_bytes: 1 << 20 };
    frame(header, size, |out| message.emit(out))
}

/// A frame of a session with a PING in it.
pub fn ping(session: u64, epoch: u32, path: u8, packet_number: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    Ping {}.emit(&mut bytes);
    let end = bytes.len() as u16;
    let header = Header {
        session,
        epoch,
        path,
        packet_number,
        length: end,
        data_offset: end,
        messages_end: end,
        ..Header::new(Kind::Session)
    };
    header.write(&mut bytes);
    let mut frame = TxFrame::new(Addr::Group, bytes);
    seal(&mut frame);
    frame.head
}

/// Sessions that the target has, also those that nobody uses.
pub fn sessions(s: &Scene) -> usize {
    let target = s.world.target(0);
    target.sessions().len() + target.promised()
}

/// A station that receives what it is told, and uses that to do harm.
pub struct Flooder {
    pub station: u32,
    /// The last cookie it was given.
    pub cookie: Rc<Cell<u64>>,
    /// Sessions and epochs of the WELCOMEs.
    pub welcomes: Rc<RefCell<Vec<(u64, u32)>>>,
    pub nonce: u64,
}

impl Flooder {
    /// Replaces the judge.
    pub fn new(s: &mut Scene) -> Self {
        let station = s.world.net.station(StationConfig::default()).number();
        let cookie = Rc::new(Cell::new(0));
        let welcomes = Rc::new(RefCell::new(Vec::new()));
        let (given, welcomed) = (cookie.clone(), welcomes.clone());
        s.world.set_judge(move |_, to, bytes| {
            let frame = Frame::parse(bytes).expect("a good frame");
            match frame.messages().next() {
                Some(Message::Retry(retry)) if to == station => given.set(retry.cookie),
                Some(Message::Welcome(w)) if to == station => {
                    welcomed.borrow_mut().push((w.session, w.epoch));
                }
                _ => {}
            }
            Verdict::Pass
        });
        Flooder { station, cookie, welcomes, nonce: u64::from(station) << 32 }
    }

    pub fn greet(&mut self, s: &mut Scene) {
        self.nonce += 1;
        throw(s, self.station, &hello(self.nonce, self.cookie.get()));
    }

    /// Opens so many sessions, and uses each if `confirms`.
    pub fn open(&mut self, s: &mut Scene, sessions: usize, confirms: bool) {
        self.greet(s);
        s.pass(ms(1));
        assert!(self.cookie.get() != 0 && self.welcomes.borrow().is_empty());
        for nth in 0..sessions {
            self.greet(s);
            if nth % 64 == 63 {
                s.pass(ms(1));
            }
            if confirms {
                self.welcomes.take().iter().for_each(|&(session, epoch)| {
                    throw(s, self.station, &ping(session, epoch, 0, 1));
                });
            }
        }
        s.pass(ms(1));
    }
}
