//! Somebody on the way of all frames who has no key: it sees them, keeps some, and sends frames of its own in
//! anybody's name. It plays back, reflects, changes and makes up whatever it likes, at any time. With keys
//! nothing comes of it: no lease and no path lives by it, no session and no attempt ends, nothing is written.
//!
//! It does not keep frames from arriving: wires lose some by themselves.

use std::collections::{BTreeMap, VecDeque};

use thinwire_buffer::{Addr, TxBatch, TxFrame};
use thinwire_link::rng::Rng;
use thinwire_proto::{outside_frame, seal};
use thinwire_wire::{
    Addresses, AttachRefused, Bye, Complete, DATA_OFFSET, Event, Feedback, Frame, HEADER_BYTES,
    Header, KeyedAnswer, KeyedHello, Kind, Message, Offer, OfferedExports, Ping, Probe, ProbeReply,
    Refuse, Retry, SUITE_CRC32C, Status, TAG_AT, TAG_BYTES, UnknownSession, Welcome, event_code,
    flags,
};

use crate::coverage::Coverage;
use crate::stranger::random_message;
use crate::swarm::pick;
use crate::world::{MS, SECOND};

/// What it says in its refusals, by which they are known again.
pub const FORGED_TEXT: &str = "said by nobody who has a key";

/// Kinds of what it does to frames of sessions.
pub const FORGERIES: usize = 9;
/// Frames of each class that it keeps.
const KEPT_MAX: usize = 256;
/// Session ids that it knows.
const IDS_MAX: usize = 1024;
/// Stations from here on do not exist.
const NOWHERE: u32 = 100_000;

/// What somebody on the way is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForgerConfig {
    /// Share of the frames of sessions at which it does something.
    pub share: f64,
    /// Likewise of greetings and their answers.
    pub share_of_greetings: f64,
    /// How it likes each of its kinds of forgeries.
    pub weights: [u64; FORGERIES],
    /// It goes on when all is to heal.
    pub goes_on: bool,
}

/// What it has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgerStats {
    /// Frames of sessions, by the kinds of forgeries.
    pub forgeries: [u64; FORGERIES],
    /// Greetings, and answers to greetings, that it played back, changed or made up.
    pub greetings: u64,
}

/// A frame that it has seen.
#[derive(Clone, Debug)]
struct Seen {
    from: u32,
    to: u32,
    bytes: Vec<u8>,
}

/// A frame that it will send.
#[derive(Debug)]
pub struct ForgedFrame {
    /// The station that it is said to be from.
    pub from: u32,
    /// Where it goes.
    pub to: u32,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// The one on the way.
#[derive(Debug)]
pub struct Forger {
    rng: Rng,
    config: ForgerConfig,
    is_at_rest: bool,
    /// Frames of sessions, and greetings and their answers.
    kept: [VecDeque<Seen>; 2],
    /// The session id on frames to that station, by epoch: the other way of a session has it in common.
    ids: BTreeMap<(u32, u32), u64>,
    pending: BTreeMap<(u64, u64), ForgedFrame>,
    count: u64,
    stats: ForgerStats,
}

/// What a forgery is made of.
type Made = Option<(u32, u32, Vec<u8>)>;

impl Forger {
    /// One that begins at once.
    pub fn new(rng: Rng, config: ForgerConfig) -> Self {
        Forger {
            rng,
            config,
            is_at_rest: false,
            kept: Default::default(),
            ids: BTreeMap::new(),
            pending: BTreeMap::new(),
            count: 0,
            stats: ForgerStats::default(),
        }
    }

    /// All heals: it goes on, if it is one of those that do.
    pub fn heal(&mut self) {
        if !self.config.goes_on {
            self.rest();
        }
    }

    /// It does nothing any more.
    pub fn rest(&mut self) {
        self.is_at_rest = true;
        self.pending.clear();
    }

    /// What it has done so far.
    pub fn stats(&self) -> ForgerStats {
        self.stats
    }

    /// When it sends something next.
    pub fn due(&self) -> Option<u64> {
        self.pending.first_key_value().map(|(&(at, _), _)| at)
    }

    /// What it sends now.
    pub fn take(&mut self, now: u64) -> Option<ForgedFrame> {
        let first = self.pending.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// A frame passes.
    pub fn see(&mut self, now: u64, from: u32, to: u32, bytes: &[u8]) {
        if self.is_at_rest {
            return;
        }
        let Ok(header) = Header::parse(bytes, bytes.len()) else { return };
        let is_numbered = header.kind.is_numbered();
        if is_numbered {
            self.ids.insert((header.epoch, to), header.session);
            if self.ids.len() > IDS_MAX {
                self.ids.pop_first();
            }
        }
        let seen = Seen { from, to, bytes: bytes.to_vec() };
        let share = match is_numbered {
            true => self.config.share,
            false => self.config.share_of_greetings,
        };
        if self.rng.chance(share) {
            match is_numbered {
                true => self.forge(now, &header, &seen),
                false => self.answer(now, &header, &seen),
            }
        }
        // Some stay for long.
        let kept = &mut self.kept[usize::from(!is_numbered)];
        if kept.len() < KEPT_MAX {
            kept.push_back(seen);
        } else if self.rng.chance(0.3) {
            let at = self.rng.below(KEPT_MAX as u64) as usize;
            kept[at] = seen;
        }
    }

    fn send(&mut self, at: u64, (from, to, bytes): (u32, u32, Vec<u8>)) {
        self.count += 1;
        self.pending.insert((at, self.count), ForgedFrame { from, to, bytes });
    }

    /// At once, so that it overtakes, or later.
    fn when(&mut self, now: u64) -> u64 {
        let longest = pick(&mut self.rng, &[0, 0, MS / 10, 10 * MS, SECOND, 6 * SECOND]);
        now + self.rng.between(0, longest)
    }

    /// Does something at the sight of a frame of a session.
    fn forge(&mut self, now: u64, header: &Header, seen: &Seen) {
        let total: u64 = self.config.weights.iter().sum();
        if total == 0 {
            return;
        }
        let mut left = self.rng.below(total);
        let kind = self.config.weights.iter().position(|&weight| {
            let found = left < weight;
            left = left.saturating_sub(weight);
            found
        });
        let kind = kind.expect("the sum of the weights");
        let Seen { from, to, bytes } = seen.clone();
        let made: Made = match kind {
            // As it is: often before it arrives itself.
            0 => Some((from, to, bytes)),
            // One that was kept: of another session, another epoch.
            1 => self.kept(0).map(|old| (old.from, old.to, old.bytes)),
            // To another, or from another.
            2 => {
                let elsewhere = self.elsewhere();
                let is_from = self.rng.chance(0.5);
                Some(if is_from { (elsewhere, to, bytes) } else { (from, elsewhere, bytes) })
            }
            3 => self.reflected(header, seen),
            4 => Some((from, to, self.damaged(bytes))),
            5 => Some((from, to, self.cut(bytes))),
            6 => Some((from, to, self.renumbered(header, bytes))),
            7 => Some((from, to, self.plain(header))),
            _ => {
                // Its session is unknown there.
                let message = UnknownSession { session: header.session };
                let header = Header::new(Kind::UnknownSession);
                Some((to, from, frame(header, |out| message.emit(out))))
            }
        };
        let Some(made) = made else { return };
        self.stats.forgeries[kind] += 1;
        let at = self.when(now);
        self.send(at, made);
    }

    fn kept(&mut self, class: usize) -> Option<Seen> {
        let count = self.kept[class].len() as u64;
        (count > 0).then(|| self.kept[class][self.rng.below(count) as usize].clone())
    }

    /// A station that a frame has come from or gone to, or that is not there.
    fn elsewhere(&mut self) -> u32 {
        let nowhere = NOWHERE + self.rng.below(40) as u32;
        let old = self.kept(0).filter(|_| self.rng.chance(0.7));
        old.map_or(nowhere, |old| if self.rng.chance(0.5) { old.from } else { old.to })
    }

    /// Back to its sender, from its receiver, with the id that the sender wants.
    fn reflected(&mut self, header: &Header, seen: &Seen) -> Made {
        let id = *self.ids.get(&(header.epoch, seen.from))?;
        let mut bytes = seen.bytes.clone();
        let back = Header { session: id, ..*header };
        rewrite(&back, &mut bytes);
        Some((seen.to, seen.from, bytes))
    }

    fn damaged(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        self.rng.damage(&mut bytes);
        bytes
    }

    /// Shorter, and says so or not.
    fn cut(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        let len = self.rng.between(1, bytes.len() as u64) as usize;
        bytes.truncate(len);
        if len >= HEADER_BYTES && self.rng.chance(0.5) {
            bytes[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        }
        bytes
    }

    /// Another number, path, key phase, epoch or suite in front of the same bytes.
    fn renumbered(&mut self, header: &Header, mut bytes: Vec<u8>) -> Vec<u8> {
        let rng = &mut self.rng;
        let mut other = *header;
        match rng.below(6) {
            0 => {
                let ahead = pick(rng, &[1, 1, 2, 64, 5000, 1 << 31]);
                other.packet_number = other.packet_number.wrapping_add(ahead);
            }
            1 => other.path = pick(rng, &[0, 1, 2, 9, u8::MAX]),
            2 | 3 => {
                let phase = pick(rng, &[1, 1, 2, 3, u8::MAX]);
                other.key_phase = other.key_phase.wrapping_add(phase);
                other.packet_number = other.packet_number.wrapping_add(pick(rng, &[0, 1, 2]));
            }
            4 => other.epoch = other.epoch.wrapping_add(pick(rng, &[1, u32::MAX])),
            _ => {
                other.suite = rng.below(5) as u8;
                if other.suite == SUITE_CRC32C {
                    other.key_phase = 0;
                    return mended(&other, bytes);
                }
            }
        }
        rewrite(&other, &mut bytes);
        bytes
    }

    /// A frame without a key that names the session, its epoch and a number that is due.
    fn plain(&mut self, header: &Header) -> Vec<u8> {
        let rng = &mut self.rng;
        let mut plain = Header::new(pick(
            rng,
            &[Kind::Session, Kind::Session, Kind::Session, Kind::Probe, Kind::ProbeReply],
        ));
        (plain.session, plain.epoch, plain.path) = (header.session, header.epoch, header.path);
        plain.packet_number = header.packet_number.wrapping_add(pick(rng, &[0, 1, 1, 2, 40]));
        match plain.kind {
            Kind::Probe => {
                let (room_frames, room_bytes) = (64, 1 << 20);
                let message = Probe { token: rng.bits(), room_frames, room_bytes };
                return frame(plain, |out| message.emit(out));
            }
            Kind::ProbeReply => {
                let (room_frames, room_bytes) = (64, 1 << 20);
                let message = ProbeReply { token: rng.bits(), room_frames, room_bytes };
                return frame(plain, |out| message.emit(out));
            }
            _ => {}
        }
        let mut whole = Vec::new();
        Header::reserve(&mut whole);
        let payload = ending(rng, &mut whole);
        plain.messages_end = whole.len() as u16;
        if payload > 0 {
            whole.resize(DATA_OFFSET.max(whole.len()), 0);
        }
        plain.data_offset = whole.len() as u16;
        whole.resize(whole.len() + payload, 0xee);
        plain.length = whole.len() as u16;
        plain.write(&mut whole);
        let acks = Feedback { flags: flags::ACK, ack_largest: 1, ..Feedback::default() };
        acks.write(&mut whole);
        sealed_plainly(whole)
    }

    /// Does something at the sight of a greeting, or of an answer to one.
    fn answer(&mut self, now: u64, header: &Header, seen: &Seen) {
        let made: Made = match self.rng.below(4) {
            0 => self.kept(1).map(|old| (old.from, old.to, old.bytes)),
            1 => {
                let Seen { from, to, bytes } = seen.clone();
                let mut bytes = self.damaged(bytes);
                // With a checksum that fits: it is the secret that tells.
                if let Ok(header) = Header::parse(&bytes, bytes.len()) {
                    bytes = mended(&header, bytes);
                }
                Some((from, to, bytes))
            }
            _ => self.made_up(header, seen),
        };
        let Some(made) = made else { return };
        self.stats.greetings += 1;
        let at = self.when(now);
        self.send(at, made);
    }

    /// What the other end would say, or nearly what this one did.
    fn made_up(&mut self, header: &Header, seen: &Seen) -> Made {
        let Seen { from, to, bytes } = seen;
        let answer = |kind, session| Header { session, ..Header::new(kind) };
        let parsed = Frame::parse(bytes).ok()?;
        let rng = &mut self.rng;
        let made = match parsed.messages().next()? {
            Message::KeyedHello(hello) => {
                let (nonce, session) = (hello.nonce, hello.session);
                match rng.below(6) {
                    0 | 1 => {
                        let statuses = [
                            Status::Insecure,
                            Status::UnknownKey,
                            Status::NotFound,
                            Status::Fenced,
                            Status::ShuttingDown,
                        ];
                        let status = pick(rng, &statuses) as u16;
                        let refuse = Refuse { nonce, status, text: FORGED_TEXT };
                        (*to, *from, frame(answer(Kind::Refuse, session), |out| refuse.emit(out)))
                    }
                    2 => {
                        let retry = Retry { nonce, cookie: rng.bits().max(1) };
                        (*to, *from, frame(answer(Kind::Retry, session), |out| retry.emit(out)))
                    }
                    3 => {
                        let bytes = frame(answer(Kind::Welcome, session), |out| {
                            welcome(nonce, rng).emit(out);
                        });
                        (*to, *from, bytes)
                    }
                    4 => {
                        let mut secret = vec![0; rng.between(48, 400) as usize];
                        secret.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
                        let keyed = KeyedAnswer { nonce, secret: &secret };
                        let header = answer(Kind::KeyedAnswer, session);
                        (*to, *from, frame(header, |out| keyed.emit(out)))
                    }
                    _ => {
                        // Fewer suites, another cookie, another id.
                        let mut other = hello;
                        match rng.below(3) {
                            0 => other.suites = pick(rng, &[1, 2, 4, 8, 15]),
                            1 => other.cookie = rng.bits(),
                            _ => other.session ^= 1 << rng.below(8),
                        }
                        let bytes = frame(*header, |out| KeyedHello { ..other }.emit(out));
                        (*from, *to, bytes)
                    }
                }
            }
            Message::Discover(discover) => {
                let names: [String; 0] = [];
                let offer = Offer {
                    nonce: discover.nonce,
                    instance: rng.bits(),
                    total: 0,
                    first: 0,
                    cookie: rng.bits().max(1),
                    node: discover.node,
                    exports: OfferedExports::fitting(&names, discover.node, 1000),
                };
                let header = answer(Kind::Offer, discover.session);
                let bytes = frame(header, |out| offer.emit(out));
                // The true one, whose place is asked for, or somebody made up.
                let nowhere = NOWHERE + rng.below(40) as u32;
                (if rng.chance(0.3) { *to } else { nowhere }, *from, bytes)
            }
            _ => return self.reflected(header, seen),
        };
        Some(made)
    }

    /// Adds what it has done.
    pub fn harvest(&self, coverage: &mut Coverage) {
        let [again, old, elsewhere, reflected, bits, cut, renumbered, plain, unknown] =
            self.stats.forgeries;
        coverage.forged_again += again;
        coverage.forged_old += old;
        coverage.forged_elsewhere += elsewhere;
        coverage.forged_reflections += reflected;
        coverage.forged_bits += bits;
        coverage.forged_cuts += cut;
        coverage.forged_headers += renumbered;
        coverage.forged_plain += plain;
        coverage.forged_unknown += unknown;
        coverage.forged_greetings += self.stats.greetings;
    }
}

fn welcome(nonce: u64, rng: &mut Rng) -> Welcome<'static> {
    Welcome {
        nonce,
        session: rng.bits().max(1),
        instance: rng.bits(),
        epoch: rng.bits() as u32,
        slots: 8,
        frame_bytes_max: 1500,
        request_bytes_max: 1 << 20,
        room_frames: 64,
        room_bytes: 1 << 20,
        credit_bytes: 1 << 21,
        addresses: Addresses::new(&[]),
    }
}

/// Appends messages that would end something, or nonsense; returns the bytes of payload behind them.
fn ending(rng: &mut Rng, out: &mut Vec<u8>) -> usize {
    let transaction = rng.below(4) as u32;
    let (slot, sequence) = (rng.below(4) as u16, rng.between(1, 20) as u32);
    match rng.below(6) {
        0 => Bye { status: Status::ShuttingDown as u16 }.emit(out),
        1 => {
            let (attachment, generation) = (rng.below(4) as u32, rng.bits() as u32);
            let value = u64::MAX;
            Event { code: event_code::FENCED, attachment, generation, value }.emit(out);
        }
        2 => {
            let status = Status::Fenced as u16;
            let text = FORGED_TEXT;
            AttachRefused { transaction, status, seconds_left: 0, text }.emit(out);
        }
        3 => {
            let status = pick(rng, &[Status::Ok, Status::Io, Status::Fenced]) as u16;
            Complete { slot, status, sequence, verifier: 7, length: 0 }.emit(out);
        }
        4 => Ping {}.emit(out),
        _ => return random_message(rng, out),
    }
    0
}

/// A frame of one message, outside of all keys.
fn frame(header: Header, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut batch = TxBatch::new();
    outside_frame(&mut batch, Addr::Group, header, 0, body);
    batch.frames()[0].head.clone()
}

/// Puts another header in front, and leaves the tag and all behind it.
fn rewrite(header: &Header, bytes: &mut [u8]) {
    let tag: [u8; TAG_BYTES] = *bytes[TAG_AT..].first_chunk().expect("of a whole header");
    header.write(bytes);
    bytes[TAG_AT..][..TAG_BYTES].copy_from_slice(&tag);
}

/// Puts a header in front, and a checksum that fits.
fn mended(header: &Header, mut bytes: Vec<u8>) -> Vec<u8> {
    let length = usize::from(header.length).clamp(HEADER_BYTES, bytes.len());
    bytes.truncate(length);
    header.write(&mut bytes);
    sealed_plainly(bytes)
}

fn sealed_plainly(head: Vec<u8>) -> Vec<u8> {
    let mut frame = TxFrame::new(Addr::Group, head);
    seal(&mut frame);
    frame.head
}
