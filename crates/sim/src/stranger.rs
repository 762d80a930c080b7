//! A station that speaks the protocol and means nothing by it: it opens sessions of its own and sends
//! random valid messages and probes in them, in any state, now and then with a payload that is none of theirs,
//! acknowledges what was never sent, or nothing at all.
//! It reads nobody else's frames, and asks for nothing but reading, which it may.

use thinwire_buffer::{Addr, Pool, RxBatch, TxBatch, TxFrame};
use thinwire_initiator::InitiatorKey;
use thinwire_link::Link;
use thinwire_link::rng::Rng;
use thinwire_link::sim::{SimLink, SimNet, StationConfig};
use thinwire_proto::{outside_frame, seal};
use thinwire_seal::Sealer;
use thinwire_wire::{
    AskClocks, Attach, Bye, Complete, Credit, DATA_OFFSET, DataHeader, Detach, Detached, Feedback,
    Frame, Header, Hello, KeyedAnswer, Kind, Message, PUBLIC_BYTES, Ping, Probe, ProbeReply,
    Request, Reset, ResetDone, TAG_AT, Welcome, attach_flags, flags,
};

use crate::keyed_hand::{KeyedGreeting, Speaker};
use crate::swarm::pick;

/// A session that it was welcomed to.
struct Opened {
    at: Addr,
    session: u64,
    epoch: u32,
    number: u64,
    /// There with a key.
    sealer: Option<Sealer>,
}

impl Opened {
    /// Names suite and key phase in a header.
    fn stamp(&self, header: &mut Header) {
        if let Some(sealer) = &self.sealer {
            (header.suite, header.key_phase) = (sealer.suite().number(), sealer.phase());
        }
    }

    /// Seals a frame that is written.
    fn seal(&self, header: &Header, frame: &mut TxFrame) {
        let Some(sealer) = &self.sealer else { return seal(frame) };
        let (public, body) = frame.head.split_at_mut(PUBLIC_BYTES);
        let (open, tag) = public.split_at_mut(TAG_AT);
        tag.copy_from_slice(&sealer.seal(header.path, header.packet_number, open, body));
    }
}

/// A station that says random valid messages in sessions of its own.
pub struct Stranger {
    link: SimLink,
    batch: TxBatch,
    pool: Pool,
    rng: Rng,
    opened: Vec<Opened>,
    /// It greets with a key.
    speaker: Option<Speaker>,
    /// Greetings that may be answered, by their nonces.
    asked: Vec<(u64, KeyedGreeting)>,
    /// The last cookie of each target.
    cookies: Vec<(Addr, u64)>,
    nonce: u64,
    acknowledges: bool,
}

impl Stranger {
    /// A station on this wire.
    pub fn new(net: &SimNet, mut rng: Rng) -> Self {
        Stranger {
            link: net.station(StationConfig::default()),
            batch: TxBatch::new(),
            pool: Pool::new(1 << 20),
            opened: Vec::new(),
            speaker: None,
            asked: Vec::new(),
            cookies: Vec::new(),
            nonce: 0,
            acknowledges: rng.chance(0.5),
            rng,
        }
    }

    /// The same with a key.
    pub fn with_key(self, key: Option<InitiatorKey>) -> Self {
        Stranger { speaker: key.map(Speaker::new), ..self }
    }

    /// Greets a target, and sends so many frames in each session that it has. Returns how many.
    pub fn speak(&mut self, target: u32, frames: u64) -> u64 {
        self.listen();
        self.greet(Addr::Sim(target));
        for at in 0..self.opened.len() {
            (0..frames).for_each(|_| self.frame(at));
        }
        let sent = self.batch.len() as u64;
        self.link.send(&mut self.batch).expect("simulated links do not fail");
        sent
    }

    fn listen(&mut self) {
        let mut frames = RxBatch::new();
        self.link.recv(&self.pool, 512, &mut frames).expect("simulated links do not fail");
        for rx in frames.drain(..) {
            let Ok(frame) = Frame::parse(&rx.bytes) else { continue };
            match frame.messages().next() {
                Some(Message::Welcome(w)) => self.welcomed(rx.from, &w, None),
                Some(Message::KeyedAnswer(answer)) => self.answered(rx.from, &answer),
                Some(Message::Retry(retry)) => {
                    self.cookies.retain(|&(from, _)| from != rx.from);
                    self.cookies.push((rx.from, retry.cookie));
                }
                _ => {}
            }
        }
        // The older ones are left behind.
        let many = self.opened.len().saturating_sub(4);
        self.opened.drain(..many);
    }

    fn welcomed(&mut self, at: Addr, w: &Welcome<'_>, sealer: Option<Sealer>) {
        let (session, epoch) = (w.session, w.epoch);
        self.opened.push(Opened { at, session, epoch, number: 0, sealer });
    }

    fn answered(&mut self, from: Addr, answer: &KeyedAnswer<'_>) {
        let Some((_, greeting)) = self.asked.iter_mut().find(|(nonce, _)| *nonce == answer.nonce)
        else {
            return;
        };
        let Ok((Some(suite), opened)) = greeting.open(answer) else { return };
        if let Ok(Message::Welcome(w)) = Message::alone(opened.message()) {
            let sealer = opened.seals(suite).sealer;
            self.welcomed(from, &w, Some(sealer));
        }
    }

    fn greet(&mut self, to: Addr) {
        self.nonce += 1;
        let hello = Hello {
            nonce: self.nonce,
            session: 1 << 63 | self.nonce,
            initiator: [0x80 | self.link.number() as u8; 16],
            instance: self.rng.below(3),
            frame_bytes_max: pick(&mut self.rng, &[1280, 1500, 9000]),
            security: 1,
            member: 0,
            room_frames: pick(&mut self.rng, &[0, 1, u32::MAX]),
            room_bytes: pick(&mut self.rng, &[0, 1, u32::MAX]),
            cookie: self.cookies.iter().find(|(at, _)| *at == to).map_or(0, |&(_, cookie)| cookie),
            node: "",
            export: "disk0",
            name: "stranger",
        };
        let Some(speaker) = &mut self.speaker else {
            let header = Header::new(Kind::Hello);
            return outside_frame(&mut self.batch, to, header, 0, |out| hello.emit(out));
        };
        let greeting = speaker.greet(&hello);
        outside_frame(&mut self.batch, to, Header::new(Kind::KeyedHello), 0, |out| {
            out.extend_from_slice(greeting.message());
        });
        self.asked.push((self.nonce, greeting));
        let many = self.asked.len().saturating_sub(4);
        self.asked.drain(..many);
    }

    /// A question on any path, or the answer to one that was not asked; its number may have been used.
    fn probe(&mut self, at: usize) {
        let (rng, opened) = (&mut self.rng, &mut self.opened[at]);
        opened.number += pick(rng, &[0, 1, 1, 5000]);
        let kind = pick(rng, &[Kind::Probe, Kind::Probe, Kind::ProbeReply]);
        let mut header = Header::new(kind);
        (header.session, header.epoch) = (opened.session, opened.epoch);
        header.path = pick(rng, &[0, 0, 1, 7, u8::MAX]);
        header.packet_number = pick(rng, &[0, opened.number, opened.number, u64::MAX]);
        let (token, room_frames) = (rng.below(3), pick(rng, &[0, 1, u32::MAX]));
        let room_bytes = pick(rng, &[0, 1, u32::MAX]);
        let pad_to = pick(rng, &[0, 600, 1500]);
        let frame = self.batch.push(opened.at);
        Header::reserve(&mut frame.head);
        match kind {
            Kind::Probe => Probe { token, room_frames, room_bytes }.emit(&mut frame.head),
            _ => ProbeReply { token, room_frames, room_bytes }.emit(&mut frame.head),
        }
        let end = frame.head.len() as u16;
        (header.messages_end, header.data_offset) = (end, end);
        if kind == Kind::Probe && frame.head.len() < pad_to {
            frame.head.resize(pad_to, 0);
        }
        header.length = frame.head.len() as u16;
        opened.stamp(&mut header);
        header.write(&mut frame.head);
        opened.seal(&header, frame);
    }

    fn frame(&mut self, at: usize) {
        if self.rng.chance(0.1) {
            return self.probe(at);
        }
        let rng = &mut self.rng;
        let opened = &mut self.opened[at];
        opened.number += pick(rng, &[1, 1, 1, 2, 70, 5000]);
        let frame = self.batch.push(opened.at);
        Header::reserve(&mut frame.head);
        let mut payload = 0;
        for _ in 0..rng.between(1, 4) {
            payload = random_message(rng, &mut frame.head);
            if payload > 0 {
                break;
            }
        }
        if rng.chance(0.05) {
            // More or less than its messages say.
            payload = pick(rng, &[0, 1, 512, payload + 1]);
        }
        let mut header = Header::new(Kind::Session);
        (header.session, header.epoch) = (opened.session, opened.epoch);
        header.packet_number = opened.number;
        let mut feedback = Feedback::default();
        if self.acknowledges {
            feedback.flags |= flags::ACK;
            feedback.ack_largest = pick(rng, &[1, 2, 5, 40, 1 << 33]);
            feedback.ack_bitmap = pick(rng, &[0, 1, u64::MAX]);
            feedback.ack_delay = rng.bits() as u16;
        }
        header.messages_end = frame.head.len() as u16;
        if payload > 0 {
            frame.head.resize(DATA_OFFSET.max(frame.head.len()), 0);
        }
        header.data_offset = frame.head.len() as u16;
        frame.head.resize(frame.head.len() + payload, 0x5a);
        header.length = frame.head.len() as u16;
        opened.stamp(&mut header);
        header.write(&mut frame.head);
        feedback.write(&mut frame.head);
        opened.seal(&header, frame);
    }
}

/// Appends a random message; returns the bytes of payload that go with it.
pub(crate) fn random_message(rng: &mut Rng, out: &mut Vec<u8>) -> usize {
    let slot = pick(rng, &[0, 0, 1, 7, 127, u16::MAX]);
    let sequence = pick(rng, &[0, 1, 1, 2, 3, u32::MAX - 3, u32::MAX]);
    let transaction = rng.below(40) as u32;
    let attachment = rng.below(6) as u32;
    let length = pick(rng, &[0, 1, 512, 4096, 1 << 20, 1 << 20, u32::MAX]);
    match rng.below(14) {
        0..=3 => Request {
            slot,
            op: rng.below(9) as u8,
            op_flags: rng.below(8) as u8,
            sequence,
            attachment,
            generation: rng.bits() as u32,
            address: pick(rng, &[0, 512, 1 << 40, u64::MAX]),
            length,
        }
        .emit(out),
        4 | 5 => {
            let offset = pick(rng, &[0, 512, 1 << 20, u32::MAX]);
            let length = pick(rng, &[512, 1024]);
            DataHeader { slot, sequence, offset, length }.emit(out);
            return length as usize;
        }
        6 => Reset { slot, sequence, length }.emit(out),
        7 | 8 => Attach {
            transaction,
            flags: attach_flags::READ_ONLY,
            writer_generation: rng.bits(),
            export: pick(rng, &["disk0", "disk1", "nowhere", ""]),
        }
        .emit(out),
        9 => {
            let generation = rng.bits() as u32;
            Detach { transaction, attachment, generation }.emit(out);
        }
        10 => {
            let path = pick(rng, &[0, 1, u8::MAX]);
            let (frames, bytes) = (pick(rng, &[0, 1, u32::MAX]), pick(rng, &[0, 1, u32::MAX]));
            Credit { path, frames, bytes }.emit(out);
        }
        11 => AskClocks { transaction, kind: 1 }.emit(out),
        // What a target never receives, and now and then the end.
        12 if rng.chance(0.5) => Detached { transaction }.emit(out),
        12 if rng.chance(0.2) => Bye { status: 0 }.emit(out),
        12 if rng.chance(0.5) => {
            ResetDone { slot, sequence }.emit(out);
        }
        12 => Complete { slot, status: 0, sequence, verifier: 0, length }.emit(out),
        _ => Ping {}.emit(out),
    }
    0
}
