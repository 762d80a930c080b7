//! A whole initiator in front of whoever says that it is a target: it answers what it was asked rightly, nearly
//! rightly or not at all, again, out of order, and says what nobody asked. Every I/O ends at most once, with as much
//! as was asked for, memory has a bound, and who has a key opens nothing to somebody without.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use thinwire_buffer::{
    Addr, FrameSizes, LinkInfo, Pool, Room, RxFrame, SegList, Time, TxBatch, TxFrame,
};
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_initiator::{Initiator, InitiatorConfig, InitiatorKey, TargetName, WhenAway};
use thinwire_proto::seal;
use thinwire_seal::Key;
use thinwire_volume::{ErrorKind, Io, Op, Volume};
use thinwire_wire::{
    Addresses, AttachRefused, Attached, Bye, Clocks, Complete, Credit, DATA_OFFSET, DataHeader,
    Detached, Event, Feedback, Frame, HEADER_BYTES, Header, KeyedAnswer, Kind, Message, Offer,
    OfferedExports, OpCode, Ping, Probe, ProbeReply, Refuse, ResetDone, Retry, UnknownSession,
    Welcome, flags,
};

/// All data is this.
const BYTE: u8 = 0x5a;
/// Bytes of data in a frame, at most.
const DATA_MAX: u32 = 4096;
/// What is retained, at most, but for the last write.
const RETAINED_BYTES_MAX: usize = 256 << 10;
/// Slots that a target has, if it does not lie about that.
const SLOTS: u16 = 16;
/// The longest I/O.
const IO_BYTES_MAX: usize = 64 * 4096;

/// What was heard last of each kind: what an answer has to fit.
#[derive(Default)]
struct Heard {
    nonce: u64,
    /// The id on frames to the initiator.
    session: u64,
    transaction: u32,
    /// Slot, sequence, operation and length of requests.
    requests: Vec<(u16, u32, u8, u32)>,
    /// All of them, with their sessions.
    known: BTreeSet<(u64, u16, u32)>,
    probe: Option<(Header, u64)>,
    /// The largest packet number.
    number: u64,
}

struct Stage {
    initiator: Initiator,
    is_keyed: bool,
    pool: Pool,
    batch: TxBatch,
    now: Time,
    heard: Heard,
    /// As the liar has welcomed to it last.
    epoch: u32,
    number: u64,
    /// I/Os that have not ended, with how long they are.
    asked: BTreeMap<u64, (Op, u64)>,
    tokens: u64,
    /// Requests that were heard, by session: those of which nobody has said yet that they have succeeded, and how many
    /// of the others. And reads and writes that have.
    unsaid: BTreeSet<(u64, u16, u32)>,
    said: u64,
    /// Of which somebody has said so who has not heard them, and may have guessed right: they wait to be sent.
    foretold: BTreeSet<(u64, u16, u32)>,
    done: u64,
}

/// A value: the right one, mostly.
fn near(choices: &mut Choices<'_>, right: u64) -> u64 {
    match choices.below(64) {
        0 => choices.number(),
        1 => right.wrapping_add(1),
        2 => right.wrapping_sub(1),
        _ => right,
    }
}

const SIZES: FrameSizes = FrameSizes { base: 1500, max: 9000 };

impl Stage {
    fn new(choices: &mut Choices<'_>) -> Self {
        let room = Room { frames: 256, bytes: 1 << 20 };
        let info = LinkInfo { addr: Addr::Sim(1), frame_bytes: SIZES, room };
        let target = if choices.flag() {
            TargetName::Node("n".into())
        } else {
            TargetName::Address(Addr::Sim(2))
        };
        let mut config = InitiatorConfig::new(target, "disk0");
        config.initiator = [7; 16];
        let is_keyed = choices.below(4) == 0;
        config.insecure = !is_keyed;
        config.key = is_keyed
            .then(|| InitiatorKey::new(Key::from_bytes([5; 32]).expect("not zeroes"), [6; 32]));
        (config.read_only, config.take_over, config.wait) =
            (choices.flag(), choices.flag(), choices.flag());
        if choices.flag() {
            config.when_away = WhenAway::FailAfter(Duration::from_secs(2));
        }
        config.retained_bytes_max = RETAINED_BYTES_MAX;
        let (pool, now) = (Pool::new(8 << 20), Time(1_000_000));
        let initiator = Initiator::new(now, config, vec![info], pool.clone(), choices.long());
        let (batch, heard, asked) = (TxBatch::new(), Heard::default(), BTreeMap::new());
        Stage {
            initiator,
            is_keyed,
            pool,
            batch,
            now,
            heard,
            epoch: 1,
            number: 0,
            asked,
            tokens: 0,
            unsaid: BTreeSet::new(),
            said: 0,
            foretold: BTreeSet::new(),
            done: 0,
        }
    }

    fn turn(&mut self) {
        self.initiator.turn(self.now, std::slice::from_mut(&mut self.batch));
        for frame in self.batch.frames() {
            let bytes = [frame.head.clone(), frame.data.to_vec()].concat();
            assert!(bytes.len() <= SIZES.max, "a frame of {} bytes", bytes.len());
            let Ok(frame) = Frame::parse(&bytes) else {
                assert!(self.is_keyed, "an initiator without a key sends what anybody can read");
                continue;
            };
            let header = *frame.header();
            self.heard.number = self.heard.number.max(header.packet_number);
            for message in frame.messages() {
                match message {
                    Message::Hello(hello) => {
                        (self.heard.nonce, self.heard.session) = (hello.nonce, hello.session)
                    }
                    Message::KeyedHello(hello) => {
                        (self.heard.nonce, self.heard.session) = (hello.nonce, hello.session)
                    }
                    Message::Discover(discover) => {
                        (self.heard.nonce, self.heard.session) = (discover.nonce, discover.session);
                    }
                    Message::Attach(attach) => self.heard.transaction = attach.transaction,
                    Message::Detach(detach) => self.heard.transaction = detach.transaction,
                    Message::Probe(probe) => self.heard.probe = Some((header, probe.token)),
                    Message::Request(r) => {
                        let request = (self.heard.session, r.slot, r.sequence);
                        if self.heard.known.insert(request) && !self.foretold.contains(&request) {
                            self.unsaid.insert(request);
                        }
                        self.heard.requests.push((r.slot, r.sequence, r.op, r.length))
                    }
                    _ => {}
                }
            }
        }
        self.batch.clear();
        let many = self.heard.requests.len().saturating_sub(32);
        self.heard.requests.drain(..many);
        let mut done = Vec::new();
        self.initiator.poll(&mut done);
        for completion in done {
            let (op, len) = self.asked.remove(&completion.token).expect("each ends once");
            self.done += u64::from(completion.result.is_ok() && matches!(op, Op::Read | Op::Write));
            match completion.result {
                Ok(()) if op == Op::Read => {
                    let data = completion.data.to_vec();
                    assert_eq!(data.len() as u64, len);
                    assert!(data.iter().all(|&byte| byte == BYTE), "what nobody has sent");
                    REACHED.count("read");
                }
                Ok(()) if op == Op::Write => REACHED.count("written"),
                Ok(()) => REACHED.count("done"),
                Err(error) => {
                    let what = if error.kind == ErrorKind::Fenced { "fenced" } else { "failed" };
                    REACHED.count(what);
                }
            }
        }
        let said = self.said + self.foretold.len() as u64;
        assert!(self.done <= said, "{} have succeeded, {said} were said to", self.done);
        assert!(self.initiator.outstanding() >= self.asked.len());
        while self.initiator.take_notice().is_some() {}
        let _ = self.initiator.report(self.now);
        let asked: u64 = self.asked.values().map(|&(_, len)| len).sum();
        let most = 2 * (asked as usize + RETAINED_BYTES_MAX + IO_BYTES_MAX);
        assert!(self.pool.stats().live_bytes <= most, "{:?}, {most}", self.pool.stats());
        assert!(
            !(self.is_keyed && self.initiator.is_open()),
            "it has opened to somebody without its key"
        );
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(14) {
            0 => self.now = self.now + Duration::from_micros(1 + choices.number() % 5_000),
            1 => self.now = self.now + Duration::from_millis(1 + choices.number() % 5_000),
            2 | 3 if self.initiator.is_open() && self.asked.len() < 200 => self.ask(choices),
            4 if choices.below(32) == 0 => match choices.flag() {
                true => self.initiator.close(),
                false => self.initiator.abort(),
            },
            5 => self.deliver_outside(choices),
            // What comes next in a good attach.
            6 if !self.initiator.is_open() => {
                self.welcome(choices);
                self.turn();
                self.session(choices, Some(0));
            }
            6..=10 => self.serve(choices),
            _ => self.session(choices, None),
        }
        self.turn();
    }

    fn ask(&mut self, choices: &mut Choices<'_>) {
        let geometry = self.initiator.geometry();
        let block = u64::from(geometry.block_bytes);
        let op = *choices.of(&[
            Op::Read,
            Op::Write,
            Op::Write,
            Op::Flush,
            Op::Discard,
            Op::WriteZeroes,
            Op::BlockStatus,
        ]);
        let blocks = (geometry.bytes / block).max(1);
        let (at, count) = (choices.number() % blocks, 1 + choices.below(64) as u64);
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => (at * block, count * block),
        };
        self.tokens += 1;
        let mut io = Io::new(self.tokens, op, offset, len);
        io.flags.fua = op == Op::Write && choices.flag();
        if op == Op::Write {
            let mut data = self.pool.get(len as usize);
            data.fill(BYTE);
            io.data = SegList::of(data.freeze());
        }
        if geometry.check(&io).is_ok() {
            self.asked.insert(self.tokens, (op, len));
            self.initiator.submit(io);
            REACHED.count("asked");
        }
    }

    fn receive(&mut self, choices: &mut Choices<'_>, head: Vec<u8>) {
        let mut frame = TxFrame { to: Addr::Group, head, data: SegList::new(), is_outside: false };
        seal(&mut frame);
        let from = if choices.below(16) == 0 { Addr::Sim(3) } else { Addr::Sim(2) };
        let (bytes, rest) = (self.pool.copy_of(&frame.head).freeze(), SegList::new());
        let mut rx = RxFrame { from, bytes, rest, waited: Duration::ZERO, queued: Duration::ZERO };
        self.initiator.on_frame(self.now, 0, &mut rx);
    }

    /// A frame of one message, outside of a session.
    fn outside(
        &mut self,
        choices: &mut Choices<'_>,
        kind: Kind,
        session: u64,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut out = vec![0; HEADER_BYTES];
        write(&mut out);
        let end = out.len() as u16;
        let header = Header {
            session,
            length: end,
            data_offset: end,
            messages_end: end,
            ..Header::new(kind)
        };
        header.write(&mut out);
        Feedback::default().write(&mut out);
        self.receive(choices, out);
    }

    fn welcome(&mut self, choices: &mut Choices<'_>) {
        let (nonce, id) = (near(choices, self.heard.nonce), near(choices, self.heard.session));
        self.epoch = near(choices, u64::from(self.epoch)) as u32;
        self.number = 0;
        let welcome = Welcome {
            nonce,
            session: near(choices, 77),
            instance: near(choices, 1),
            epoch: self.epoch,
            slots: near(choices, SLOTS.into()) as u16,
            frame_bytes_max: near(choices, 9000) as u16,
            request_bytes_max: near(choices, 1 << 20) as u32,
            room_frames: near(choices, 256) as u32,
            room_bytes: near(choices, 1 << 20) as u32,
            credit_bytes: near(choices, 4 << 20),
            addresses: Addresses::new(&[]),
        };
        self.outside(choices, Kind::Welcome, id, |out| welcome.emit(out));
    }

    fn deliver_outside(&mut self, choices: &mut Choices<'_>) {
        let (nonce, id) = (near(choices, self.heard.nonce), near(choices, self.heard.session));
        match choices.below(8) {
            0 | 1 => self.welcome(choices),
            2 => {
                let cookie = choices.number();
                self.outside(choices, Kind::Retry, id, |out| Retry { nonce, cookie }.emit(out));
            }
            3 => {
                let (status, text) = (choices.number() as u16, "no");
                self.outside(choices, Kind::Refuse, id, |out| {
                    Refuse { nonce, status, text }.emit(out)
                });
            }
            4 => {
                let session = near(choices, 77);
                self.outside(choices, Kind::UnknownSession, 0, |out| {
                    UnknownSession { session }.emit(out)
                });
            }
            5 => {
                let names = ["disk0".to_owned(), "disk1".to_owned()];
                let (node, exports) = ("n", OfferedExports::fitting(&names, "n", 100));
                let (total, first) = (choices.number() as u16, choices.number() as u16);
                let (instance, cookie) = (near(choices, 1), choices.number());
                let offer = Offer { nonce, instance, total, first, cookie, node, exports };
                self.outside(choices, Kind::Offer, id, |out| offer.emit(out));
            }
            6 => {
                let length = choices.below(200);
                let secret = choices.bytes(length).to_vec();
                self.outside(choices, Kind::KeyedAnswer, id, |out| {
                    KeyedAnswer { nonce, secret: &secret }.emit(out)
                });
            }
            _ => {
                let (header, token) = self.heard.probe.unwrap_or((Header::new(Kind::Probe), 0));
                let kind = if choices.flag() { Kind::ProbeReply } else { Kind::Probe };
                self.number += 1;
                let mut reply = Header::new(kind);
                (reply.session, reply.epoch, reply.path) =
                    (id, self.epoch, near(choices, header.path.into()) as u8);
                reply.packet_number = near(choices, self.number);
                let (token, room) = (near(choices, token), choices.number() as u32);
                let mut out = vec![0; HEADER_BYTES];
                match kind {
                    Kind::Probe => {
                        Probe { token, room_frames: room, room_bytes: room }.emit(&mut out)
                    }
                    _ => ProbeReply { token, room_frames: room, room_bytes: room }.emit(&mut out),
                }
                let end = out.len() as u16;
                (reply.length, reply.data_offset, reply.messages_end) = (end, end, end);
                reply.write(&mut out);
                Feedback::default().write(&mut out);
                self.receive(choices, out);
            }
        }
    }

    /// A frame of the session: with this message, or with any.
    fn session(&mut self, choices: &mut Choices<'_>, wanted: Option<usize>) {
        let mut out = vec![0; HEADER_BYTES];
        let mut payload = 0;
        for nth in 0..1 + choices.below(3) {
            payload += self.message(choices, wanted.filter(|_| nth == 0), &mut out);
        }
        self.send(choices, out, payload);
    }

    /// What a request that was heard is answered with: all data that it asks for, and that it has succeeded.
    fn serve(&mut self, choices: &mut Choices<'_>) {
        let back = choices.below(self.heard.requests.len().max(1));
        let Some(&(slot, sequence, op, length)) = self.heard.requests.iter().rev().nth(back) else {
            return;
        };
        let mut offset = 0;
        while op == OpCode::Read as u8 && offset < length {
            let piece = DATA_MAX.min(length - offset);
            let mut out = vec![0; HEADER_BYTES];
            let data = DataHeader {
                slot,
                sequence,
                offset: near(choices, offset.into()) as u32,
                length: piece,
            };
            data.emit(&mut out);
            self.send(choices, out, piece as usize);
            offset += piece;
        }
        let mut out = vec![0; HEADER_BYTES];
        let verifier = if choices.below(4) == 0 { choices.number() } else { 1 };
        let sent = if op == OpCode::Read as u8 { length } else { 0 };
        let length = near(choices, sent.into()) as u32;
        Complete { slot, status: 0, sequence, verifier, length }.emit(&mut out);
        self.say_done(slot, sequence);
        self.send(choices, out, 0);
    }

    /// Somebody hears that this request has succeeded.
    fn say_done(&mut self, slot: u16, sequence: u32) {
        let request = (self.heard.session, slot, sequence);
        if self.unsaid.remove(&request) {
            self.said += 1;
        } else if !self.heard.known.contains(&request) && slot < SLOTS {
            self.foretold.insert(request);
        }
    }

    /// A frame of the session with these messages behind its header, and so much payload.
    fn send(&mut self, choices: &mut Choices<'_>, mut out: Vec<u8>, payload: usize) {
        self.number += 1 + choices.number() % 3;
        let mut header = Header::new(Kind::Session);
        header.session = near(choices, self.heard.session);
        header.epoch = near(choices, self.epoch.into()) as u32;
        header.packet_number = near(choices, self.number);
        header.path = near(choices, 0) as u8;
        let mut feedback = Feedback::default();
        if choices.below(4) != 0 {
            feedback.flags |= flags::ACK;
            feedback.ack_largest = near(choices, self.heard.number);
            let below = feedback.ack_largest;
            let bits = if choices.flag() { u64::MAX } else { choices.long() };
            feedback.ack_bitmap = if below < 64 { bits & ((1 << below) - 1) } else { bits };
        }
        if choices.below(4) == 0 {
            feedback.flags |= flags::CREDIT;
            (feedback.credit_slots, feedback.credit_bytes) =
                (choices.number() as u32, choices.number());
        }
        header.messages_end = out.len() as u16;
        if payload > 0 {
            out.resize(out.len().max(DATA_OFFSET), 0);
        }
        header.data_offset = out.len() as u16;
        out.resize(out.len() + payload, BYTE);
        header.length = out.len() as u16;
        header.write(&mut out);
        feedback.write(&mut out);
        self.receive(choices, out);
    }

    /// Appends a message; how many bytes of payload go with it.
    fn message(
        &mut self,
        choices: &mut Choices<'_>,
        wanted: Option<usize>,
        out: &mut Vec<u8>,
    ) -> usize {
        let transaction = near(choices, self.heard.transaction.into()) as u32;
        let at = choices.below(self.heard.requests.len().max(1));
        let request = self.heard.requests.get(at).copied().unwrap_or_default();
        let (slot, sequence) =
            (near(choices, request.0.into()) as u16, near(choices, request.1.into()) as u32);
        let (attachment, generation) = (near(choices, 1) as u32, near(choices, 1) as u32);
        match wanted.unwrap_or_else(|| choices.below(13)) {
            0 => {
                let block_bytes = *choices.of(&[512, 4096]);
                Attached {
                    transaction,
                    attachment,
                    generation,
                    block_bytes,
                    preferred_bytes: near(choices, 4096) as u32,
                    io_bytes_max: block_bytes * (1 + near(choices, 255) as u32 % 0x1_0000),
                    bytes: u64::from(block_bytes) * (near(choices, 2048) % (1 << 50)),
                    identity: [near(choices, 9) as u8; 16],
                    incarnation: near(choices, 1),
                    writer_generation: near(choices, 1),
                    idle_generations: near(choices, 1) as u32,
                    verifier: near(choices, 1),
                    features: near(choices, 14) as u8 & 31,
                }
                .emit(out);
            }
            1..=3 => {
                let status = near(choices, 0) as u16;
                let (verifier, length) = (near(choices, 1), near(choices, request.3.into()) as u32);
                if status == 0 {
                    self.say_done(slot, sequence);
                }
                Complete { slot, status, sequence, verifier, length }.emit(out);
            }
            4 | 5 => {
                let units = u64::from(choices.byte());
                let offset = near(choices, 512 * units) as u32;
                let length = *choices.of(&[512, 512, 1024, 4, 4096]);
                DataHeader { slot, sequence, offset, length }.emit(out);
                return length as usize;
            }
            6 => ResetDone { slot, sequence }.emit(out),
            7 => {
                let (code, value) = (choices.below(5) as u16, choices.number());
                Event { code, attachment, generation, value }.emit(out);
            }
            8 => AttachRefused {
                transaction,
                status: choices.number() as u16,
                seconds_left: choices.number() as u32,
                text: "no",
            }
            .emit(out),
            9 => Detached { transaction }.emit(out),
            10 if choices.below(8) == 0 => Bye { status: choices.number() as u16 }.emit(out),
            10 => Ping {}.emit(out),
            11 => {
                let (frames, bytes) = (choices.number() as u32, choices.number() as u32);
                Credit { path: near(choices, 0) as u8, frames, bytes }.emit(out);
            }
            _ => {
                let clock = choices.number();
                Clocks {
                    transaction,
                    clock,
                    requests: clock,
                    arrived: clock,
                    received: clock,
                    taken: clock,
                    submitted: clock,
                    stored: clock,
                    sent: clock,
                    handed_over: clock,
                }
                .emit(out);
            }
        }
        0
    }
}

static REACHED: Reached = Reached::new();

fn play(choices: &mut Choices<'_>) {
    let mut stage = Stage::new(choices);
    stage.turn();
    for _ in 0..300 {
        if choices.is_empty() {
            break;
        }
        stage.step(choices);
    }
    if stage.initiator.is_open() {
        REACHED.count("open");
    }
    let stats = stage.initiator.report(stage.now).stats;
    stats.drops.iter().for_each(|(reason, _)| REACHED.count(reason));
    if stats.replayed > 0 {
        REACHED.count("replayed");
    }
    // Whatever it was told: it ends, and all that was asked of it with it.
    stage.initiator.abort();
    for _ in 0..100 {
        stage.now = stage.now + Duration::from_millis(100);
        stage.turn();
    }
    assert!(stage.asked.is_empty(), "I/Os that never end: {:?}", stage.asked);
    let pool = stage.pool.clone();
    drop(stage);
    assert_eq!(pool.stats().live_bytes, 0, "somebody keeps it");
}

#[test]
fn fuzz_initiator() {
    fuzz!("initiator", 3_000, 800, play);
    REACHED.expect(&["open", "asked", "read", "written", "done", "failed", "fenced", "replayed"]);
    // What lies about requests is dropped for a reason that has a name.
    REACHED.expect(&["slot", "range", "unasked", "direction", "epoch", "unknown-session"]);
}
