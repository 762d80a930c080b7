//! A target, a client and somebody on the way whom choices lead: frames are lost, held back, repeated, changed, cut
//! and sent again in anybody's name, with the right checksum where there is a key; processes die, ways are cut, time
//! jumps. The simulator's model judges every answer; in the end all I/O is answered and the image is as it was
//! told. And a whole target before a peer who says anything that is well-formed, beside an honest client.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_link::sim::Verdict;
use thinwire_proto::Time;
use thinwire_seal::Suite;
use thinwire_sim::hand::Hand;
use thinwire_sim::server::Crash;
use thinwire_target::SessionReport;
use thinwire_volume::Op;
use thinwire_wire::{
    AskClocks, Attach, Bye, Complete, Credit, DATA_OFFSET, DataHeader, Detach, Detached, Feedback,
    Frame, HEADER_BYTES, Header, Kind, Message, OpCode, Ping, Probe, ProbeReply, Request, Reset,
    ResetDone, TAG_AT, TAG_BYTES, attach_flags, flags,
};

use crate::forged::throw;
use crate::keyed::{ALICE, Silent, Tapped};
use crate::scene::{Scene, at, ms};

/// Frames that somebody on the way remembers.
const SEEN_MAX: usize = 400;
/// Steps of one world.
const STEPS_MAX: usize = 60;

struct Way {
    seen: VecDeque<Tapped>,
    verdicts: VecDeque<Verdict>,
}

/// All frames go by him.
fn way(s: &mut Scene) -> Rc<RefCell<Way>> {
    let way = Rc::new(RefCell::new(Way { seen: VecDeque::new(), verdicts: VecDeque::new() }));
    let on = way.clone();
    s.world.set_judge(move |from, to, bytes| {
        let mut on = on.borrow_mut();
        if on.seen.len() == SEEN_MAX {
            on.seen.pop_front();
        }
        on.seen.push_back(Tapped { from, to, bytes: bytes.to_vec() });
        on.verdicts.pop_front().unwrap_or(Verdict::Pass)
    });
    way
}

fn pick(way: &Rc<RefCell<Way>>, choices: &mut Choices<'_>) -> Option<Tapped> {
    let way = way.borrow();
    let back = choices.below(way.seen.len().max(1));
    way.seen.iter().rev().nth(back).cloned()
}

fn verdicts(way: &Rc<RefCell<Way>>, choices: &mut Choices<'_>) {
    for _ in 0..1 + choices.below(30) {
        let late = choices.number() % 200_000_000;
        let all = [
            Verdict::Drop,
            Verdict::Drop,
            Verdict::Delay(late),
            Verdict::Repeat(late),
            Verdict::Pass,
        ];
        way.borrow_mut().verdicts.push_back(*choices.of(&all));
    }
}

/// A frame of which somebody without the key has changed something, and its checksum if there is a key.
fn changed(frame: &mut Tapped, other: Option<Tapped>, is_keyed: bool, choices: &mut Choices<'_>) {
    let bytes = &mut frame.bytes;
    for _ in 0..1 + choices.below(2) {
        match choices.below(5) {
            0 => {
                let at = choices.below(bytes.len().max(1));
                bytes[at] ^= 1 << choices.below(8);
            }
            1 => bytes.truncate(HEADER_BYTES.max(choices.below(bytes.len().max(1)))),
            2 => {
                let at = choices.below(HEADER_BYTES.min(bytes.len()));
                let new = choices.bytes(8);
                bytes[at..].iter_mut().zip(new).for_each(|(byte, new)| *byte = *new);
            }
            3 => bytes.extend_from_slice(choices.bytes(16)),
            _ => {
                let Some(other) = &other else { continue };
                let at = choices.below(bytes.len().min(other.bytes.len()).max(1));
                bytes.truncate(at);
                bytes.extend_from_slice(&other.bytes[at..]);
            }
        }
    }
    if is_keyed && choices.flag() && bytes.len() >= HEADER_BYTES {
        resealed(bytes);
    }
}

fn resealed(bytes: &mut [u8]) {
    bytes[TAG_AT..][..TAG_BYTES].fill(0);
    let mut frame = thinwire_buffer::TxFrame {
        to: thinwire_buffer::Addr::Group,
        head: bytes.to_vec(),
        data: thinwire_buffer::SegList::new(),
        is_outside: false,
    };
    thinwire_proto::seal(&mut frame);
    bytes.copy_from_slice(&frame.head);
}

/// Whether something was.
fn submit(s: &mut Scene, client: usize, choices: &mut Choices<'_>) -> bool {
    let c = &s.world.clients[client];
    if c.initiator.is_none() || !c.is_open || c.outstanding() > 40 {
        return false;
    }
    let op = *choices.of(&[
        Op::Write,
        Op::Write,
        Op::Read,
        Op::Read,
        Op::Flush,
        Op::WriteZeroes,
        Op::Discard,
    ]);
    let range = match op {
        Op::Flush => at(0, 0),
        _ => {
            let first = choices.below(2000);
            at(first, 1 + choices.below(47).min(2047 - first))
        }
    };
    let fua = op == Op::Write && choices.below(4) == 0;
    s.world.submit(client, op, range, fua);
    true
}

static WORLDS: Reached = Reached::new();

fn play_world(choices: &mut Choices<'_>) {
    let suite = choices.below(6).checked_sub(2).map(|at| Suite::ALL[at]);
    let (links, frames) = (1 + choices.below(2), *choices.of(&[u64::MAX, 60]));
    let (mut s, client) = match suite {
        Some(suite) => {
            let mut s = Scene::keyed_with(suite, links, frames, |_| {});
            let client = s.keyed_client(ALICE);
            (s, client)
        }
        None => {
            let mut s = Scene::with(links, |_| {});
            let client = s.client();
            (s, client)
        }
    };
    let way = way(&mut s);
    s.attach(client);
    for _ in 0..STEPS_MAX {
        if choices.is_empty() {
            break;
        }
        match choices.below(14) {
            0..=3 => {
                if submit(&mut s, client, choices) {
                    WORLDS.count("submitted");
                }
            }
            4 => verdicts(&way, choices),
            5 | 6 => s.pass(Duration::from_micros(1 + choices.number() % 3_000)),
            7 => s.pass(ms(1 + choices.number() % 2_500)),
            8 => {
                let Some(frame) = pick(&way, choices) else { continue };
                let from = if choices.below(4) == 0 { frame.to } else { frame.from };
                let to = if choices.below(8) == 0 { frame.from } else { frame.to };
                s.world.net.forge(from, to, &frame.bytes);
                WORLDS.count("replayed");
            }
            9 | 10 => {
                let (Some(mut frame), other) = (pick(&way, choices), pick(&way, choices)) else {
                    continue;
                };
                changed(&mut frame, other, suite.is_some(), choices);
                s.world.net.forge(frame.from, frame.to, &frame.bytes);
                WORLDS.count("forged");
            }
            11 if choices.below(3) == 0 => {
                s.restart(*choices.of(&[Crash::Kill, Crash::Power]));
                WORLDS.count("restarted");
            }
            12 => s.set_reach(client, choices.flag()),
            13 if choices.below(3) == 0 => {
                s.world.crash_client(client);
                s.pass(ms(choices.number() % 500));
                s.world.start_client(client);
                WORLDS.count("client restarted");
            }
            _ => s.pass(Duration::from_micros(200)),
        }
    }
    way.borrow_mut().verdicts.clear();
    s.set_reach(client, true);
    s.until("open again", |w| w.clients[client].is_open);
    s.until("answered", |w| w.clients[client].outstanding() == 0);
    WORLDS.count("answered");
    s.end();
}

#[test]
fn fuzz_world() {
    fuzz!("world", 60, 200, play_world);
    WORLDS.expect(&[
        "submitted",
        "replayed",
        "forged",
        "restarted",
        "client restarted",
        "answered",
    ]);
}

/// Of which a liar speaks.
const EXPORTS: [&str; 3] = ["disk0", "disk0", "nowhere"];

static TARGET: Reached = Reached::new();

/// What a liar has said so far in a session: its last packet number, and which sequence it is at in each of its slots.
#[derive(Default)]
struct Lies {
    number: u64,
    sequences: [u32; 8],
    /// The attachment that was granted last, and its generation.
    granted: (u32, u32),
}

impl Lies {
    /// Takes in what the target has said to this station.
    fn hear(&mut self, station: u32, way: &RefCell<Way>) {
        for frame in way.borrow_mut().seen.drain(..).filter(|frame| frame.to == station) {
            let Ok(frame) = Frame::parse(&frame.bytes) else { continue };
            for message in frame.messages() {
                if let Message::Attached(granted) = message {
                    self.granted = (granted.attachment, granted.generation);
                }
            }
        }
    }
}

/// Appends a message of whatever an initiator, or nobody, would say; the bytes of payload that go with it.
fn message(lies: &mut Lies, choices: &mut Choices<'_>, out: &mut Vec<u8>) -> usize {
    let slot = if choices.below(8) == 0 { choices.short() } else { choices.short() % 8 };
    let present = lies.sequences.get(usize::from(slot)).copied().unwrap_or_default();
    let sequence = match choices.below(8) {
        0 => choices.number() as u32,
        1 => present.wrapping_add(choices.word() % 4),
        _ => present,
    };
    let transaction = choices.word() % 8;
    let (attachment, generation) = match choices.below(8) {
        0 => (choices.word() % 4, choices.word() % 4),
        _ => lies.granted,
    };
    let length = choices.number() as u32;
    match choices.below(15) {
        0..=3 => {
            // Mostly the next one of its slot.
            let sequence = if choices.below(4) == 0 { sequence } else { present.wrapping_add(1) };
            if let Some(present) = lies.sequences.get_mut(usize::from(slot)) {
                *present = sequence;
            }
            let address = match choices.below(4) {
                0 => choices.number(),
                _ => 512 * u64::from(choices.short() % 2048),
            };
            Request {
                slot,
                op: if choices.flag() { OpCode::Read as u8 } else { choices.byte() % 9 },
                op_flags: if choices.below(4) == 0 { choices.byte() & 15 } else { 0 },
                sequence,
                attachment,
                generation,
                address,
                length: *choices.of(&[512, 512, 4096, 1 << 20, length]),
            }
            .emit(out)
        }
        4 | 5 => {
            let (offset, length) =
                (512 * (choices.number() as u32 % 4096), 512 << (choices.byte() & 3));
            DataHeader { slot, sequence, offset, length }.emit(out);
            return length as usize;
        }
        6 => Reset { slot, sequence, length }.emit(out),
        // Who reads is granted what is there; who writes, what is not.
        7 | 8 => Attach {
            transaction,
            flags: attach_flags::READ_ONLY | choices.byte() & attach_flags::KNOWN,
            writer_generation: choices.number(),
            export: choices.of::<&str>(&EXPORTS),
        }
        .emit(out),
        9 => Detach { transaction, attachment, generation }.emit(out),
        10 => {
            let (frames, bytes) = (choices.number() as u32, choices.number() as u32);
            Credit { path: choices.byte() & 3, frames, bytes }.emit(out);
        }
        11 => AskClocks { transaction, kind: choices.byte() & 3 }.emit(out),
        12 => match choices.below(5) {
            0 => Detached { transaction }.emit(out),
            1 => Bye { status: choices.short() }.emit(out),
            2 => ResetDone { slot, sequence }.emit(out),
            _ => {
                Complete { slot, status: choices.short(), sequence, verifier: 0, length }.emit(out)
            }
        },
        _ => Ping {}.emit(out),
    }
    0
}

/// A frame in the session of the liar.
fn lie(hand: &Hand, lies: &mut Lies, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let welcome = hand.welcome?;
    let kind = *choices.of(&[
        Kind::Session,
        Kind::Session,
        Kind::Session,
        Kind::Session,
        Kind::Probe,
        Kind::ProbeReply,
    ]);
    lies.number += 1 + choices.number() % 50;
    let mut header = Header { session: welcome.session, epoch: welcome.epoch, ..Header::new(kind) };
    header.packet_number = if choices.below(16) == 0 { choices.number() } else { lies.number };
    header.path = if choices.below(16) == 0 { choices.byte() } else { 0 };
    if choices.below(32) == 0 {
        header.epoch = choices.number() as u32;
    }
    let (mut feedback, mut payload, mut out) = (Feedback::default(), 0, vec![0; HEADER_BYTES]);
    let room = choices.number() as u32;
    match kind {
        Kind::Probe => {
            Probe { token: choices.number(), room_frames: room, room_bytes: room }.emit(&mut out)
        }
        Kind::ProbeReply => {
            ProbeReply { token: choices.number(), room_frames: room, room_bytes: room }
                .emit(&mut out)
        }
        _ => {
            for _ in 0..1 + choices.below(4) {
                payload += message(lies, choices, &mut out);
            }
            if choices.flag() {
                feedback.flags = flags::ACK;
                feedback.ack_path = choices.byte() & 1;
                feedback.ack_largest = choices.number();
                let bits = choices.long();
                let below = feedback.ack_largest;
                feedback.ack_bitmap = if below < 64 { bits & ((1 << below) - 1) } else { bits };
            }
        }
    }
    header.messages_end = out.len() as u16;
    if payload > 0 {
        out.resize(out.len().max(DATA_OFFSET), 0);
    }
    header.data_offset = out.len() as u16;
    out.resize(out.len() + payload, 0x5a);
    header.length = out.len() as u16;
    header.write(&mut out);
    feedback.write(&mut out);
    resealed(&mut out);
    Some(out)
}

fn play_target(choices: &mut Choices<'_>) {
    let mut s = Scene::new();
    let client = s.client();
    s.attach(client);
    let way = way(&mut s);
    let mut hand = s.hand(7, &mut Silent, |hand| hand.listens = false);
    let station = hand.machine.stations[0];
    let mut asked = 0;
    let mut lies = Lies::default();
    for _ in 0..4 * STEPS_MAX {
        if choices.is_empty() {
            break;
        }
        match choices.below(8) {
            0 => asked += u64::from(submit(&mut s, client, choices)),
            1 => s.pass(Duration::from_micros(1 + choices.number() % 3_000)),
            2 if choices.below(4) == 0 => s.pass(ms(1 + choices.number() % 1_000)),
            3 if choices.below(8) == 0 => {
                // Another session of it, and the old one left without a word.
                hand.greet(Time(s.world.now));
                for _ in 0..2 {
                    hand.send(Time(s.world.now), &mut Silent);
                    s.pass(ms(1));
                    hand.receive(Time(s.world.now), &mut Silent);
                }
                lies = Lies::default();
                TARGET.count("another session");
            }
            _ => {
                lies.hear(station, &way);
                let Some(bytes) = lie(&hand, &mut lies, choices) else { continue };
                let from = if choices.below(16) == 0 { station + 1 } else { station };
                throw(&mut s, from, &bytes);
                TARGET.count("lied");
            }
        }
    }
    let target = s.world.target(0);
    let has_export = |s: &SessionReport| s.initiator != "client0" && !s.exports.is_empty();
    if target.sessions().iter().any(has_export) {
        TARGET.count("attached");
    }
    if lies.granted != (0, 0) {
        TARGET.count("heard of a grant");
    }
    if target.stats().requests > asked {
        TARGET.count("asked for by the liar");
    }
    let drops = target.stats().drops;
    drops.iter().for_each(|(reason, _)| TARGET.count(reason));
    s.until("answered", |w| w.clients[client].outstanding() == 0);
    TARGET.count("answered");
    s.end();
}

#[test]
fn fuzz_target() {
    fuzz!("target", 400, 1500, play_target);
    TARGET.expect(&[
        "lied",
        "another session",
        "answered",
        "slot",
        "range",
        "attached",
        "asked for by the liar",
    ]);
}
