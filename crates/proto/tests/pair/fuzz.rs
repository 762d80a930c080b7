//! Two honest ends and somebody on the way, in any order: frames are dropped, held back, repeated, changed, cut,
//! spliced, reflected and brought over from another session; time jumps. What was said arrives as it was said, and
//! all of it once the wire is good again. With keys nothing forged changes anything; without, a peer that lies in
//! well-formed frames makes nobody panic and nobody keep more than the bounds.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Pool, RxFrame, SegList};
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_proto::{Batching, DropReason, Item, RekeyLimits, Sealed, SessionCanary, SipRng};
use thinwire_seal::Suite;
use thinwire_wire::{
    AckRanges, Complete, Credit, DATA_OFFSET, DataHeader, Feedback, FrameError, HEADER_BYTES,
    Header, Kind, Ping, Probe, ProbeReply, Ranges, Request, flags,
};

use crate::keys::state;
use crate::stage::{Fate, Pair, addr, resealed};

/// Bytes of one transfer, at most.
const TRANSFER_MAX: usize = 64 << 10;
/// Transfers of one side, at most.
const TRANSFERS_MAX: u16 = 6;
/// What a session has in flight, whatever its peer says.
const ITEMS_MAX: usize = 16 << 10;

/// What a side has said so far.
#[derive(Default)]
struct Said {
    numbers: u32,
    transfers: Vec<u32>,
}

struct Stage {
    p: Pair,
    links: usize,
    keyed: bool,
    said: [Said; 2],
    fates: Rc<RefCell<VecDeque<Fate>>>,
    /// Of another session, with keys of its own.
    foreign: Vec<Vec<u8>>,
}

impl Stage {
    fn new(choices: &mut Choices<'_>, canary: SessionCanary) -> Self {
        let (links, limit) = (1 + choices.below(3), *choices.of(&[1500, 4000, 9000]));
        let suite = choices.below(5).checked_sub(1).map(|at| Suite::ALL[at]);
        let limits =
            RekeyLimits { frames: *choices.of(&[u64::MAX, 40, 8]), ..RekeyLimits::default() };
        let pair = |entropy: u8| {
            let pair = Pair::planted(canary, links, limit, Batching::default());
            match suite {
                Some(suite) => pair.keyed(entropy, suite, limits),
                None => pair,
            }
        };
        let mut other = pair(33);
        other.say(0, 1..4);
        other.say(1, 1..4);
        other.run(Duration::from_millis(5));
        let foreign = other.sent.into_iter().map(|(_, _, bytes)| bytes).collect();
        let mut p = pair(9);
        let fates = Rc::<RefCell<VecDeque<Fate>>>::default();
        let next = fates.clone();
        p.judge(move |_| next.borrow_mut().pop_front().unwrap_or(Fate::Pass));
        Stage { p, links, keyed: suite.is_some(), said: Default::default(), fates, foreign }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let side = choices.below(2);
        match choices.below(12) {
            0 => {
                let (from, count) = (self.said[side].numbers, 1 + choices.below(8) as u32);
                self.p.say(side, from..from + count);
                self.said[side].numbers += count;
            }
            1 | 2 if self.said[side].transfers.len() < usize::from(TRANSFERS_MAX) => {
                let length = 512 * (1 + choices.below(TRANSFER_MAX / 512)) as u32;
                let slot = self.said[side].transfers.len() as u16;
                self.p.transfer(side, slot, length);
                self.said[side].transfers.push(length);
            }
            3 | 4 => {
                for _ in 0..1 + choices.below(40) {
                    let late = Duration::from_micros(choices.number() % 100_000);
                    let fate = *choices.of(&[
                        Fate::Drop,
                        Fate::Drop,
                        Fate::Late(late),
                        Fate::Twice(late),
                        Fate::Pass,
                    ]);
                    self.fates.borrow_mut().push_back(fate);
                }
            }
            5 | 6 => self.p.run(Duration::from_micros(1 + choices.number() % 2_000)),
            7 => self.p.run(Duration::from_millis(1 + choices.number() % 3_000)),
            8 => self.replay(choices),
            _ => self.forge(choices),
        }
        for session in &self.p.sessions {
            assert!(session.in_flight_items() <= ITEMS_MAX && !session.is_overrun());
        }
    }

    /// A frame that was sent, as it was, once more, perhaps by another link.
    fn replay(&mut self, choices: &mut Choices<'_>) {
        let Some((side, _, bytes)) = pick(&self.p.sent, choices) else { return };
        let (to, link) = (1 - side, choices.below(self.links));
        self.p.deliver(to, link, addr(side, link), &bytes);
        REACHED.count("replayed");
    }

    /// A frame of which nobody with the key, or the right checksum, has made every byte.
    fn forge(&mut self, choices: &mut Choices<'_>) {
        let Some((side, link, mut bytes)) = pick(&self.p.sent, choices) else { return };
        let to = match choices.below(8) {
            0 => side,
            _ => 1 - side,
        };
        match choices.below(6) {
            0 => {
                let at = choices.below(bytes.len());
                bytes[at] ^= 1 << choices.below(8);
            }
            1 => bytes.truncate(choices.below(bytes.len())),
            2 => {
                let at = choices.below(bytes.len().min(HEADER_BYTES));
                let change = choices.bytes(8);
                for (byte, new) in bytes[at..].iter_mut().zip(change) {
                    *byte = *new;
                }
            }
            3 => {
                let Some((_, _, other)) = pick(&self.p.sent, choices) else { return };
                let at = choices.below(bytes.len().min(other.len()));
                bytes.truncate(at);
                bytes.extend_from_slice(&other[at..]);
            }
            4 => {
                let at = choices.below(self.foreign.len().max(1));
                let Some(foreign) = self.foreign.get(at) else { return };
                // Without keys sessions are told apart by their ids and epochs alone, which are the same here.
                if !self.keyed {
                    return;
                }
                bytes.clone_from(foreign);
            }
            _ => {
                bytes[8..16].copy_from_slice(&self.p.sessions[to].local_id().to_be_bytes());
            }
        }
        if choices.below(4) == 0 && self.keyed {
            // As somebody without a key would.
            bytes = resealed(bytes);
        }
        // Who has the session looks at its id first.
        let Ok(header) = Header::parse(&bytes, bytes.len()) else { return };
        if header.session != self.p.sessions[to].local_id() {
            return;
        }
        // Padding behind a frame is nobody's, and a change may have changed nothing.
        let frame = &bytes[..usize::from(header.length)];
        let is_true = |(_, _, sent): &(usize, usize, Vec<u8>)| sent == frame;
        if self.p.sent.iter().any(is_true) {
            return;
        }
        let (before, drops) = (state(&self.p, to), self.p.drops.len());
        self.p.deliver(to, link, addr(1 - to, link), &bytes);
        assert_eq!(self.p.drops.len(), drops + 1, "a forgery is taken: {bytes:02x?}");
        assert_eq!(state(&self.p, to), before, "a forgery changes something: {bytes:02x?}");
        let why = self.p.drops[drops];
        REACHED.count(if why == DropReason::Frame(FrameError::Forged) {
            "forged"
        } else {
            "refused"
        });
    }

    /// The wire is good again: all that was said has been heard, or will be.
    fn end(mut self) {
        self.fates.borrow_mut().clear();
        for (side, Said { numbers, transfers }) in self.said.iter().enumerate() {
            self.p.until("hearing everything", |p| {
                let heard: std::collections::BTreeSet<_> =
                    p.sides[1 - side].heard.iter().copied().collect();
                assert!(heard.last().is_none_or(|last| last < numbers), "nobody has said that");
                let mut slots = (0..).zip(transfers);
                heard.len() == *numbers as usize
                    && slots.all(|(slot, length)| p.arrived(1 - side, slot) == *length)
            });
            REACHED.count("heard");
        }
    }
}

fn pick(
    sent: &[(usize, usize, Vec<u8>)],
    choices: &mut Choices<'_>,
) -> Option<(usize, usize, Vec<u8>)> {
    let back = choices.below(sent.len().clamp(1, 200));
    sent.iter().rev().nth(back).cloned()
}

static REACHED: Reached = Reached::new();

fn play(choices: &mut Choices<'_>) {
    play_with(choices, SessionCanary::None);
}

fn play_with(choices: &mut Choices<'_>, canary: SessionCanary) {
    let mut stage = Stage::new(choices, canary);
    for _ in 0..60 {
        if choices.is_empty() {
            break;
        }
        stage.step(choices);
    }
    stage.end();
}

#[test]
fn fuzz_session() {
    fuzz!("session", 600, 200, play);
    REACHED.expect(&["replayed", "forged", "refused", "heard"]);
}

/// A session for which forgeries are signs of life is found by random inputs.
#[test]
fn canary_a_session_that_hears_forgeries_is_caught() {
    let mut rng = SipRng::new(5);
    let finds = |bytes: Vec<u8>| {
        let play = || play_with(&mut Choices::new(&bytes), SessionCanary::HeardUnopened);
        std::panic::catch_unwind(play).is_err()
    };
    let found = (0..300).any(|_| finds((0..200).map(|_| rng.below(256) as u8).collect()));
    assert!(found, "the fuzzer does not see it");
}

static LIES: Reached = Reached::new();

/// Well-formed frames of a peer that lies, beside the honest ones.
fn play_lies(choices: &mut Choices<'_>) {
    let links = 1 + choices.below(2);
    let mut p = Pair::new(links, 1500);
    let mut number = 1 << 20;
    for _ in 0..60 {
        if choices.is_empty() {
            break;
        }
        match choices.below(6) {
            0 => p.say(choices.below(2), 1..4),
            1 => p.transfer(
                choices.below(2),
                choices.short() % 4,
                512 * (1 + choices.below(64)) as u32,
            ),
            2 => quiet_run(&mut p, choices),
            _ => {
                let to = choices.below(2);
                let bytes = lie(&p, to, &mut number, choices);
                take(&mut p, to, choices.below(links), &bytes);
            }
        }
        for session in &p.sessions {
            assert!(session.in_flight_items() <= ITEMS_MAX && session.queued() <= 2 * ITEMS_MAX);
            assert!(session.path_reports().count() <= 16);
        }
    }
}

/// Time goes on, a millisecond at a time; a stage asserts what a liar need not keep, so that frames of the honest
/// ends go nowhere.
fn quiet_run(p: &mut Pair, choices: &mut Choices<'_>) {
    p.judge(|_| Fate::Drop);
    p.run(Duration::from_micros(1 + choices.number() % 20_000));
}

fn lie(p: &Pair, to: usize, number: &mut u64, choices: &mut Choices<'_>) -> Vec<u8> {
    let session = &p.sessions[to];
    let kind =
        *choices.of(&[Kind::Session, Kind::Session, Kind::Session, Kind::Probe, Kind::ProbeReply]);
    *number += choices.number() % 100;
    let mut header =
        Header { session: session.local_id(), epoch: session.epoch(), ..Header::new(kind) };
    header.packet_number = if choices.below(3) == 0 { choices.number() } else { *number };
    header.path = if choices.below(4) == 0 { choices.byte() } else { 0 };
    let mut feedback = Feedback::default();
    let mut out = vec![0; HEADER_BYTES];
    let (slot, sequence) = (choices.short() % 8, choices.below(3) as u32);
    let mut payload = 0;
    match kind {
        Kind::Probe => {
            let (room_frames, room_bytes) = (choices.number() as u32, choices.number() as u32);
            Probe { token: choices.number(), room_frames, room_bytes }.emit(&mut out);
        }
        Kind::ProbeReply => {
            let (room_frames, room_bytes) = (choices.number() as u32, choices.number() as u32);
            ProbeReply { token: choices.number(), room_frames, room_bytes }.emit(&mut out);
        }
        _ => {
            if choices.flag() {
                feedback.flags |= flags::ACK;
                feedback.ack_path = choices.byte() % 3;
                feedback.ack_largest = choices.number();
                let below = feedback.ack_largest;
                feedback.ack_bitmap =
                    if below < 64 { choices.long() & ((1 << below) - 1) } else { choices.long() };
                feedback.ack_delay = choices.short();
            }
            if choices.flag() {
                feedback.flags |= flags::CREDIT;
                (feedback.credit_slots, feedback.credit_bytes) =
                    (choices.number() as u32, choices.number());
            }
            for _ in 0..choices.below(5) {
                match choices.below(5) {
                    0 => Ping {}.emit(&mut out),
                    1 => {
                        let mut ranges = Vec::new();
                        let mut below = choices.number();
                        for _ in 0..1 + choices.below(8) {
                            let Some(last) = below.checked_sub(choices.number().saturating_add(1))
                            else {
                                break;
                            };
                            let first = last.saturating_sub(choices.number());
                            ranges.push((first, last));
                            below = first;
                        }
                        if !ranges.is_empty() {
                            let ranges = Ranges::new(&ranges);
                            AckRanges { path: choices.byte() % 3, delay: choices.short(), ranges }
                                .emit(&mut out);
                        }
                    }
                    2 => {
                        let (frames, bytes) = (choices.number() as u32, choices.number() as u32);
                        Credit { path: choices.byte() % 3, frames, bytes }.emit(&mut out);
                    }
                    3 => {
                        let status = choices.short();
                        let (verifier, length) = (choices.number(), choices.number() as u32);
                        Complete { slot, status, sequence, verifier, length }.emit(&mut out);
                    }
                    _ => {
                        let length = 512;
                        DataHeader { slot, sequence, offset: choices.number() as u32, length }
                            .emit(&mut out);
                        payload += length as usize;
                        if choices.flag() {
                            let (op, address) = (choices.byte() % 9, choices.number());
                            let (attachment, generation) = (choices.word(), choices.word());
                            let (op_flags, length) = (0, choices.number() as u32);
                            Request {
                                slot,
                                op,
                                op_flags,
                                sequence,
                                attachment,
                                generation,
                                address,
                                length,
                            }
                            .emit(&mut out);
                        }
                    }
                }
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
    resealed(out)
}

/// As the stage takes a frame in, but that nothing is known of what a liar says.
fn take(p: &mut Pair, to: usize, link: usize, bytes: &[u8]) {
    let pool = Pool::new(0);
    let (waited, queued) = (Duration::ZERO, Duration::ZERO);
    let bytes = pool.copy_of(bytes).freeze();
    let mut rx = RxFrame { from: addr(1 - to, link), bytes, rest: SegList::new(), waited, queued };
    let sealed = Sealed::look(&mut rx).expect("it is well-formed");
    let frame = sealed.unseal(&pool, &mut 0).expect("it is well-formed");
    let (now, session, side) = (p.now, &mut p.sessions[to], &mut p.sides[to]);
    let taken = match frame.messages().next() {
        Some(thinwire_wire::Message::Probe(probe)) => {
            let sizes = thinwire_buffer::FrameSizes { base: 1500, max: 1500 };
            session.on_probe(now, link, &frame, &probe, sizes)
        }
        Some(thinwire_wire::Message::ProbeReply(reply)) => {
            session.on_probe_reply(now, link, &frame, &reply)
        }
        _ => session.accept(now, link, &frame, side).map(|()| {
            for message in frame.messages() {
                session.on_message(now, &message, side);
            }
        }),
    };
    match taken {
        Ok(()) => LIES.count("taken"),
        Err(reason) => LIES.count(reason.name()),
    }
    // Items are acknowledged at most once each, and never more than there were.
    let said = side.acked.iter().filter(|item| matches!(item, Item::Attach(_))).count();
    assert!(said <= 3 * 60);
}

#[test]
fn fuzz_lies() {
    fuzz!("lies", 3_000, 300, play_lies);
    LIES.expect(&["taken"]);
}
