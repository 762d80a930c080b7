//! Two sessions, a wire between them, and a virtual clock. Side 0 is the initiator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, Pool, Room, RxFrame, SegList, TxBatch, TxFrame};
use thinwire_proto::{
    Batching, Content, DropReason, Item, PathReport, RekeyLimits, Role, Sealed, Session,
    SessionCanary, SessionConfig, SessionKeys, Time, seal,
};
use thinwire_seal::{Key, Random, Suite, greeted};
use thinwire_wire::{
    Attach, Frame, HEADER_BYTES, Header, Kind, Message, OpCode, Request, TAG_AT, TAG_BYTES,
};

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Drop,
    /// Arrives so much later than it would have.
    Late(Duration),
    /// Arrives, and once more so much later.
    Twice(Duration),
}

/// A frame on its way, as a judge sees it.
pub struct Sent<'a> {
    pub now: Time,
    /// Side that sent it.
    pub side: usize,
    pub link: usize,
    pub bytes: &'a [u8],
}

impl Sent<'_> {
    pub fn has(&self, wanted: impl Fn(&Message<'_>) -> bool) -> bool {
        Frame::parse(self.bytes).is_ok_and(|f| f.messages().any(|m| wanted(&m)))
    }
}

/// What one side has to say, and has heard.
#[derive(Default)]
pub struct Side {
    /// Transactions of the ATTACH messages that arrived, in order.
    pub heard: Vec<u32>,
    /// Slots of the REQUEST messages that arrived, in order.
    pub requested: Vec<u16>,
    /// Bytes of DATA that arrived, by slot and offset, with how often.
    pub data: BTreeMap<(u16, u32), (u32, u32)>,
    pub acked: Vec<Item>,
    /// What DATA is cut from.
    source: Option<SegList>,
}

impl Content for Side {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        match item {
            Item::Attach(transaction) => {
                Attach { transaction, flags: 0, writer_generation: 0, export: "disk" }.emit(out);
            }
            Item::Request { slot, sequence } => Request {
                slot,
                op: OpCode::Write as u8,
                op_flags: 0,
                sequence,
                attachment: 1,
                generation: 1,
                address: 0,
                length: 4096,
            }
            .emit(out),
            _ => return false,
        }
        true
    }

    fn payload(&mut self, _: u16, _: u32, offset: u32, length: u32, out: &mut SegList) -> bool {
        let source = self.source.as_ref().expect("a test that sends data");
        source.slice_into(offset as usize, length as usize, out);
        true
    }

    fn acked(&mut self, item: Item) {
        self.acked.push(item);
    }
}

struct Flight {
    to: usize,
    link: usize,
    bytes: Vec<u8>,
}

type Judge = Box<dyn FnMut(&Sent<'_>) -> Fate>;

pub struct Pair {
    pub now: Time,
    pub sessions: [Session; 2],
    pub sides: [Side; 2],
    pub drops: Vec<DropReason>,
    pub latency: Duration,
    /// Everything that was sent, for tests that replay it.
    pub sent: Vec<(usize, usize, Vec<u8>)>,
    pub frames: u64,
    /// Requests of which each side has sent the last piece.
    pub last_pieces: [usize; 2],
    judge: Judge,
    flights: BTreeMap<(Time, u64), Flight>,
    batches: [Vec<TxBatch>; 2],
    limit: usize,
    /// Side, key phase, path and number of what was sealed with a key: each once.
    spent: BTreeSet<(usize, u8, u8, u64)>,
}

pub const BASE: usize = 1500;

pub fn addr(side: usize, link: usize) -> Addr {
    Addr::Sim((side * 100 + link) as u32)
}

/// What is sent at `offset` of a transfer.
pub fn pattern(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|at| (at / 512 * 7 + at % 512 * 3) as u8).collect()
}

/// With the right checksum, if there is room for one.
pub fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < HEADER_BYTES {
        return bytes;
    }
    bytes[TAG_AT..][..TAG_BYTES].fill(0);
    let mut frame = TxFrame::new(Addr::Group, bytes);
    seal(&mut frame);
    frame.head
}

pub fn room() -> Room {
    Room { frames: 4096, bytes: 64 << 20 }
}

impl Pair {
    pub fn new(links: usize, limit: usize) -> Self {
        Pair::with(links, limit, Batching::default())
    }

    pub fn with(links: usize, limit: usize, batching: Batching) -> Self {
        Pair::planted(SessionCanary::None, links, limit, batching)
    }

    /// With a fault in both sessions.
    pub fn planted(canary: SessionCanary, links: usize, limit: usize, batching: Batching) -> Self {
        let config = |role, local_id, remote_id| SessionConfig {
            role,
            local_id,
            remote_id,
            epoch: 7,
            seed: local_id,
            batching,
            canary,
        };
        let now = Time(1_000_000);
        let mut sessions = [
            Session::new(now, config(Role::Initiator, 1, 2), room()),
            Session::new(now, config(Role::Target, 2, 1), room()),
        ];
        let sizes = FrameSizes { base: BASE, max: limit };
        for link in 0..links {
            let known = (link == 0).then_some(room());
            sessions[0].add_path(now, link, addr(1, link), known, sizes);
        }
        sessions[1].add_path(now, 0, addr(0, 0), Some(room()), sizes);
        let batches = || (0..links).map(|_| TxBatch::new()).collect();
        Pair {
            now,
            sessions,
            sides: Default::default(),
            drops: Vec::new(),
            latency: Duration::from_micros(50),
            sent: Vec::new(),
            frames: 0,
            last_pieces: [0; 2],
            judge: Box::new(|_| Fate::Pass),
            flights: BTreeMap::new(),
            batches: [batches(), batches()],
            limit,
            spent: BTreeSet::new(),
        }
    }

    /// With keys of a handshake.
    pub fn with_keys(links: usize, limit: usize, suite: Suite, limits: RekeyLimits) -> Self {
        Pair::new(links, limit).keyed(9, suite, limits)
    }

    /// The same sessions with keys, others for each `entropy`. Before anything is sent.
    pub fn keyed(self, entropy: u8, suite: Suite, limits: RekeyLimits) -> Self {
        let mut pair = self;
        let (key, mut random) = (Key::from_bytes([7; 32]).unwrap(), Random::new([entropy; 32]));
        let mut greeting = thinwire_seal::Greeting::new(&key, b"pair", b"hello", &mut random);
        let greeted = greeted(&key, b"pair", greeting.bytes(), &mut random).unwrap();
        let (answer, theirs) = greeted.answer(b"welcome", suite);
        let ours = greeting.answered(&answer).unwrap().seals(suite);
        for (session, seals) in pair.sessions.iter_mut().zip([ours, theirs]) {
            session.set_keys(SessionKeys::new(pair.now, seals, limits, Pool::new(1 << 20)));
        }
        pair
    }

    pub fn judge(&mut self, judge: impl FnMut(&Sent<'_>) -> Fate + 'static) {
        self.judge = Box::new(judge);
    }

    pub fn path(&self, side: usize, id: u8) -> PathReport {
        self.sessions[side].path_reports().find(|p| p.id == id).expect("there is such a path")
    }

    /// Sends small items with these numbers.
    pub fn say(&mut self, side: usize, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.sessions[side].send(Item::Attach(number));
        }
    }

    /// Requests a write of so many bytes, with its data, when the policy says so.
    pub fn request(&mut self, side: usize, slot: u16, length: u32) {
        let source = Pool::new(0).copy_of(&pattern(0, length as usize)).freeze();
        self.sides[side].source = Some(SegList::of(source));
        let request = Item::Request { slot, sequence: 1 };
        let data = Item::Data { slot, sequence: 1, offset: 0, length };
        let items = [Some(request), Some(data)];
        self.sessions[side].send_batched(self.now, items, u64::from(length));
    }

    /// Sends one transfer of `length` bytes.
    pub fn transfer(&mut self, side: usize, slot: u16, length: u32) {
        let source = &mut self.sides[side].source;
        // Longer ones are still on their way.
        if source.as_ref().is_none_or(|source| source.bytes() < length as usize) {
            *source =
                Some(SegList::of(Pool::new(0).copy_of(&pattern(0, length as usize)).freeze()));
        }
        self.sessions[side].send(Item::Data { slot, sequence: 1, offset: 0, length });
    }

    /// Bytes of a transfer that have arrived, from its beginning without a hole.
    pub fn arrived(&self, side: usize, slot: u16) -> u32 {
        let mut end = 0;
        for (&(of, offset), &(length, _)) in &self.sides[side].data {
            if of == slot && offset <= end {
                end = end.max(offset + length);
            }
        }
        end
    }

    /// Hands a frame to a side.
    pub fn deliver(&mut self, to: usize, link: usize, from: Addr, bytes: &[u8]) {
        if let Err(reason) = self.take(to, link, from, bytes) {
            self.drops.push(reason);
        }
    }

    fn take(&mut self, to: usize, link: usize, from: Addr, bytes: &[u8]) -> Result<(), DropReason> {
        let pool = Pool::new(0);
        let bytes = pool.copy_of(bytes).freeze();
        let (waited, queued) = (Duration::ZERO, Duration::ZERO);
        let mut rx = RxFrame { from, bytes, rest: SegList::new(), waited, queued };
        let sealed = Sealed::look(&mut rx).map_err(DropReason::Frame)?;
        let (session, side) = (&mut self.sessions[to], &mut self.sides[to]);
        let frame = match session.has_keys() {
            true => session.open(self.now, link, sealed, &pool, &mut 0)?,
            false => sealed.unseal(&pool, &mut 0).map_err(DropReason::Frame)?,
        };
        let (now, header) = (self.now, *frame.header());
        match header.kind {
            Kind::Session => {
                session.accept(now, link, &frame, side)?;
                for message in frame.messages() {
                    match message {
                        _ if session.on_message(now, &message, side) => {}
                        Message::Attach(attach) => side.heard.push(attach.transaction),
                        Message::Request(request) => side.requested.push(request.slot),
                        Message::Data(data) => {
                            let mut bytes = vec![0; data.length as usize];
                            frame.rx().copy_to(data.payload_at, &mut bytes);
                            assert!(
                                bytes == pattern(data.offset as usize, bytes.len()),
                                "{data:?}"
                            );
                            let piece = side.data.entry((data.slot, data.offset)).or_insert((0, 0));
                            *piece = (piece.0.max(data.length), piece.1 + 1);
                        }
                        other => panic!("{other:?} was not sent"),
                    }
                }
                Ok(())
            }
            _ => match frame.messages().next() {
                Some(Message::Probe(probe)) => {
                    let sizes = FrameSizes { base: BASE, max: self.limit };
                    session.on_probe(now, link, &frame, &probe, sizes)
                }
                Some(Message::ProbeReply(reply)) => {
                    session.on_probe_reply(now, link, &frame, &reply)
                }
                _ => Err(DropReason::Direction),
            },
        }
    }

    /// One turn of both sides, then on to the next event, at `limit` at the latest.
    pub fn step(&mut self, limit: Time) {
        for side in 0..2 {
            self.sessions[side].on_time(self.now);
            let content = &mut self.sides[side];
            self.sessions[side].transmit(self.now, content, &mut self.batches[side]);
            for link in 0..self.batches[side].len() {
                self.send(side, link);
            }
        }
        let mut next = limit;
        for session in &self.sessions {
            next = next.min(session.deadline(self.now));
        }
        if let Some(&(at, _)) = self.flights.keys().next() {
            next = next.min(at);
        }
        self.now = next.max(self.now + Duration::from_micros(1)).min(limit.max(self.now));
        while let Some(entry) = self.flights.first_entry()
            && entry.key().0 <= self.now
        {
            let Flight { to, link, bytes } = entry.remove();
            self.deliver(to, link, addr(1 - to, link), &bytes);
        }
    }

    fn send(&mut self, side: usize, link: usize) {
        let mut batch = std::mem::take(&mut self.batches[side][link]);
        for frame in batch.frames() {
            assert_eq!(frame.to, addr(1 - side, link));
            let mut bytes = frame.head.clone();
            bytes.extend(frame.data.to_vec());
            assert!(bytes.len() <= self.limit, "a frame of {} bytes", bytes.len());
            let header = Header::parse(&bytes, bytes.len()).unwrap();
            if header.suite != 0 {
                let number = (side, header.key_phase, header.path, header.packet_number);
                assert!(self.spent.insert(number), "{number:?} was spent before");
            }
            let sent = Sent { now: self.now, side, link, bytes: &bytes };
            let fate = (self.judge)(&sent);
            self.frames += 1;
            let arrival = self.now + self.latency;
            let times = match fate {
                Fate::Drop => vec![],
                Fate::Pass => vec![arrival],
                Fate::Late(more) => vec![arrival + more],
                Fate::Twice(more) => vec![arrival, arrival + more],
            };
            for (nth, at) in times.into_iter().enumerate() {
                let key = (at, self.frames * 2 + nth as u64);
                self.flights.insert(key, Flight { to: 1 - side, link, bytes: bytes.clone() });
            }
            self.sent.push((side, link, bytes));
        }
        self.last_pieces[side] += batch.last_pieces();
        batch.clear();
        self.batches[side][link] = batch;
    }

    pub fn run(&mut self, time: Duration) {
        let limit = self.now + time;
        while self.now < limit {
            self.step(limit);
        }
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Pair) -> bool) {
        let limit = self.now + Duration::from_secs(60);
        while !done(self) {
            assert!(self.now < limit, "{what} takes for ever: {:?}", self.sessions);
            self.step(limit);
        }
    }

    /// Side 0 is called so much later than it wants, each time; side 1 in time.
    pub fn late(&mut self, late: Duration, calls: usize) {
        let content = &mut self.sides[0];
        self.sessions[0].on_time(self.now);
        self.sessions[0].transmit(self.now, content, &mut self.batches[0]);
        for link in 0..self.batches[0].len() {
            self.send(0, link);
        }
        for _ in 0..calls {
            let due =
                self.sessions[0].deadline(self.now).min(self.now + Duration::from_secs(2)) + late;
            // Meanwhile the other side runs, and frames for side 0 lie in its queue.
            let mut held = Vec::new();
            while self.now < due {
                let content = &mut self.sides[1];
                self.sessions[1].on_time(self.now);
                self.sessions[1].transmit(self.now, content, &mut self.batches[1]);
                for link in 0..self.batches[1].len() {
                    self.send(1, link);
                }
                let mut next = self.sessions[1].deadline(self.now).min(due);
                if let Some(&(at, _)) = self.flights.keys().next() {
                    next = next.min(at);
                }
                self.now = next.max(self.now + Duration::from_micros(1));
                while let Some(entry) = self.flights.first_entry()
                    && entry.key().0 <= self.now
                {
                    let Flight { to, link, bytes } = entry.remove();
                    if to == 0 {
                        held.push((link, bytes));
                    } else {
                        self.deliver(1, link, addr(0, link), &bytes);
                    }
                }
            }
            for (link, bytes) in held {
                self.deliver(0, link, addr(1, link), &bytes);
            }
            let content = &mut self.sides[0];
            self.sessions[0].on_time(self.now);
            self.sessions[0].transmit(self.now, content, &mut self.batches[0]);
            for link in 0..self.batches[0].len() {
                self.send(0, link);
            }
        }
    }
}
