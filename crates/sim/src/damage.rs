//! Memory and links that alter data behind all checks of frames. What arrives is changed and gets a checksum that
//! fits: so it looks if the memory of either machine altered it before the frame was sealed or after it was
//! unsealed, or an adapter on the way that makes checksums itself. And applications' buffers that go bad once their writes
//! were taken in.
//!
//! Only frames of suite 0 can be sealed again here; buffers go bad in all worlds.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Addr, Buf, Lender, Lent, Pool, RxFrame, SegList, TxFrame};
use thinwire_link::rng::Rng;
use thinwire_proto::{PIECE_BYTES, seal};
use thinwire_wire::{
    Data, Frame, HEADER_BYTES, Header, Kind, OpCode, Request, SUITE_CRC32C, Sums, TAG_AT, TAG_BYTES,
};

use crate::swarm::pick;

/// Where a REQUEST has its operation and its address, and a SUMS its sums (`docs/protocol.md`, "Messages").
const OP_AT: usize = 6;
const ADDRESS_AT: usize = 20;
const SUMS_AT: usize = 12;
/// How far away, in pieces, a misdirected request goes, at most.
const ASTRAY_MAX: u64 = 8;

/// What was altered so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageStats {
    /// Frames of which a bit of the payload was flipped.
    pub bits: u64,
    /// Frames of which two pieces of payload changed places.
    pub swaps: u64,
    /// Requests that went to another address.
    pub places: u64,
    /// Sums of which a bit was flipped.
    pub sums: u64,
}

/// What alters the frames that a machine takes in.
pub struct Damage {
    rng: Rng,
    /// Share of the frames of sessions.
    share: f64,
    /// How many more, at most.
    left: u64,
    stats: DamageStats,
}

/// What can be altered of a frame.
#[derive(Clone, Copy, Debug)]
enum Alteration {
    /// A bit of these bytes.
    Bit(usize, usize),
    /// So many bytes from here and from there.
    Swap(usize, usize, usize),
    /// The address that stands here.
    Place(usize),
    /// A bit of the sums in these bytes.
    Sum(usize, usize),
}

impl Damage {
    /// Alters such a share of the frames of sessions.
    pub fn new(rng: Rng, share: f64) -> Self {
        Damage { rng, share, left: u64::MAX, stats: DamageStats::default() }
    }

    /// Alters every frame of a session that has something to alter, so many of them.
    pub fn of_the_next(rng: Rng, frames: u64) -> Self {
        Damage { left: frames, ..Damage::new(rng, 1.0) }
    }

    /// It does nothing any more.
    pub fn rest(&mut self) {
        self.left = 0;
    }

    /// What it has done.
    pub fn stats(&self) -> DamageStats {
        self.stats
    }

    /// Perhaps alters a frame that has arrived.
    pub fn look(&mut self, pool: &Pool, frame: &mut RxFrame) {
        if self.left == 0 || !self.rng.chance(self.share) {
            return;
        }
        let Ok(header) = Header::parse(&frame.bytes, frame.len()) else { return };
        if header.kind != Kind::Session || header.suite != SUITE_CRC32C {
            return;
        }
        let mut whole = vec![0; frame.len()];
        frame.copy_to(0, &mut whole);
        let length = usize::from(header.length);
        let told: [u8; TAG_BYTES] = whole[TAG_AT..][..TAG_BYTES].try_into().expect("as many");
        // What a wire has damaged stays so.
        if tag_of(&whole[..length]) != told {
            return;
        }
        let possible = alterations(&whole[..length]);
        if possible.is_empty() {
            return;
        }
        self.left -= 1;
        let chosen = pick(&mut self.rng, &possible);
        self.alter(&mut whole, chosen);
        let tag = tag_of(&whole[..length]);
        whole[TAG_AT..][..TAG_BYTES].copy_from_slice(&tag);
        // In the pieces that it came in.
        let mut at = frame.bytes.len();
        let bytes = pool.copy_of(&whole[..at]).freeze();
        let mut rest = SegList::new();
        for piece in frame.rest.iter() {
            rest.push(pool.copy_of(&whole[at..at + piece.len()]).freeze());
            at += piece.len();
        }
        (frame.bytes, frame.rest) = (bytes, rest);
    }

    fn alter(&mut self, whole: &mut [u8], chosen: Alteration) {
        match chosen {
            Alteration::Bit(at, len) => {
                self.flip(&mut whole[at..at + len]);
                self.stats.bits += 1;
            }
            Alteration::Sum(at, len) => {
                self.flip(&mut whole[at..at + len]);
                self.stats.sums += 1;
            }
            Alteration::Swap(here, there, len) => {
                let (before, after) = whole.split_at_mut(there);
                before[here..here + len].swap_with_slice(&mut after[..len]);
                self.stats.swaps += 1;
            }
            Alteration::Place(at) => {
                let place = &mut whole[at..at + 8];
                let address = u64::from_be_bytes((&*place).try_into().expect("eight"));
                let steps = self.rng.between(1, ASTRAY_MAX.min(address / PIECE_BYTES));
                place.copy_from_slice(&(address - steps * PIECE_BYTES).to_be_bytes());
                self.stats.places += 1;
            }
        }
    }

    fn flip(&mut self, bytes: &mut [u8]) {
        let at = self.rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << self.rng.below(8);
    }
}

/// The tag of a frame, whatever it says.
fn tag_of(bytes: &[u8]) -> [u8; TAG_BYTES] {
    let mut frame = TxFrame::new(Addr::Group, bytes.to_vec());
    frame.head[TAG_AT..][..TAG_BYTES].fill(0);
    seal(&mut frame);
    frame.head[TAG_AT..][..TAG_BYTES].try_into().expect("as many")
}

/// Everything that can be altered of a frame without making it another kind of mistake.
fn alterations(bytes: &[u8]) -> Vec<Alteration> {
    let mut possible = Vec::new();
    let Ok(frame) = Frame::parse(bytes) else { return possible };
    let mut payloads: Vec<(usize, usize)> = Vec::new();
    let mut payload_at = usize::from(frame.header().data_offset);
    let mut at = HEADER_BYTES;
    while at < usize::from(frame.header().messages_end) {
        let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
        match bytes[at] {
            Request::TYPE => {
                let is_data =
                    [OpCode::Read as u8, OpCode::Write as u8].contains(&bytes[at + OP_AT]);
                let place = at + ADDRESS_AT;
                let address =
                    u64::from_be_bytes(bytes[place..place + 8].try_into().expect("eight"));
                if is_data && address >= PIECE_BYTES {
                    possible.push(Alteration::Place(place));
                }
            }
            Sums::TYPE => possible.push(Alteration::Sum(at + SUMS_AT, length - SUMS_AT)),
            Data::TYPE => {
                let bytes = bytes[at + Data::BYTES - 4..at + Data::BYTES].try_into();
                let bytes = u32::from_be_bytes(bytes.expect("four")) as usize;
                payloads.push((payload_at, bytes));
                payload_at += bytes;
            }
            _ => {}
        }
        at += length;
    }
    let piece = PIECE_BYTES as usize;
    for (nth, &(here, len)) in payloads.iter().enumerate() {
        possible.push(Alteration::Bit(here, len));
        let other = payloads[nth + 1..].iter().find(|&&(_, other)| other == len);
        possible.extend(other.map(|&(there, _)| Alteration::Swap(here, there, len)));
        if len >= 2 * piece {
            possible.push(Alteration::Swap(here, here + piece, piece));
        }
    }
    possible
}

/// Buffers of an application of which some go bad.
pub struct BadBuffers {
    rng: Rng,
    share: f64,
    /// How long after their writes were submitted, in ns, least and most.
    after_ns: (u64, u64),
    /// When which goes bad.
    planned: Vec<(u64, Rc<Cell<bool>>)>,
    is_at_rest: bool,
    /// How many have.
    pub gone_bad: u64,
}

impl BadBuffers {
    /// Such a share of them does, so long after their writes were submitted, at least and at most, in ns; not at once.
    pub fn new(rng: Rng, share: f64, after_ns: (u64, u64)) -> Self {
        let (planned, is_at_rest) = (Vec::new(), false);
        BadBuffers { rng, share, after_ns, planned, is_at_rest, gone_bad: 0 }
    }

    /// None does any more.
    pub fn rest(&mut self) {
        self.is_at_rest = true;
        self.planned.clear();
    }

    /// The buffer of a write that is submitted now, or one that will go bad: later, so that its sums are those of
    /// what was written.
    pub fn give(&mut self, now: u64, buf: Buf) -> Buf {
        if self.is_at_rest || !self.rng.chance(self.share) {
            return buf;
        }
        let is_bad = Rc::<Cell<bool>>::default();
        self.planned
            .push((now + self.rng.between(self.after_ns.0, self.after_ns.1), is_bad.clone()));
        let mut bad = buf.to_vec();
        let at = self.rng.below(bad.len() as u64) as usize;
        bad[at] ^= 1 << self.rng.below(8);
        Buf::lent(Box::new(Shaky { good: buf.to_vec(), bad, is_bad }))
    }

    /// Time goes on.
    pub fn advance(&mut self, now: u64) {
        let gone_bad = &mut self.gone_bad;
        self.planned.retain(|(at, is_bad)| {
            if *at <= now {
                // Of one that nobody refers to any more nothing is seen.
                *gone_bad += u64::from(Rc::strong_count(is_bad) > 1);
                is_bad.set(true);
            }
            *at > now
        });
    }
}

/// Memory that is shared never changes in safe code: what goes bad has its references look elsewhere from then on.
struct Shaky {
    good: Vec<u8>,
    bad: Vec<u8>,
    is_bad: Rc<Cell<bool>>,
}

impl Lent for Shaky {
    fn bytes(&self) -> &[u8] {
        if self.is_bad.get() { &self.bad } else { &self.good }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.good
    }

    fn lender(&self) -> Option<Rc<dyn Lender>> {
        None
    }
}
