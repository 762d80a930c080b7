//! What machines with keys seal, and what of that they take in. Looked at where a machine hands frames to its
//! links, which may refuse them for a while, damage them or double them, and where it has them from these.
//!
//! A number of a path is sealed once, whatever becomes of its frame (rule 12), and an ephemeral key is used for
//! one greeting, or one answer. A frame is a sign of life of whoever sealed it when it first comes, and never
//! again.

use std::collections::{BTreeMap, BTreeSet};

use thinwire_buffer::{Addr, RxFrame, TxFrame};
use thinwire_seal::Suite;
use thinwire_wire::{Frame, Header, Kind, Message, SUITE_CRC32C, TAG_AT, TAG_BYTES};

/// One direction of a session: the id that its receiver has given it, and the epoch. There may be another of
/// the same, of another receiver.
type Direction = (u64, u32);
/// A frame of a session: its direction, path and number.
type Place = (Direction, u8, u64);

/// Bytes of an ephemeral key, with which both messages of a handshake begin.
const EPHEMERAL_BYTES: usize = 32;

/// What has been sealed in a world so far.
#[derive(Debug, Default)]
pub struct SealWatch {
    sealed: BTreeMap<Place, Vec<Sealing>>,
    /// Frames that have come to a station, and from where.
    arrived: BTreeSet<(Place, u32, Addr)>,
    /// When a machine last took in something new that another had sealed; each by its first station.
    heard: BTreeMap<(u32, u32), u64>,
    /// The key phase of each direction.
    phases: BTreeMap<(Direction, u32), u8>,
    /// What each ephemeral key was used for.
    greetings: BTreeMap<[u8; EPHEMERAL_BYTES], Vec<u8>>,
    /// The frame that is looked at, in one piece; kept for its storage.
    whole: Vec<u8>,
    stats: SealStats,
    breach: Option<String>,
}

/// A frame that was sealed.
#[derive(Clone, Copy, Debug)]
struct Sealing {
    /// The first station of the machine.
    by: u32,
    to: Addr,
    /// A number that differs if any of its bytes does.
    hash: u64,
    tag: [u8; TAG_BYTES],
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealStats {
    /// Directions of sessions, by the number of their suite less one.
    pub directions: [u64; 4],
    /// Times one of them went to its next key.
    pub rekeys: u64,
    /// Times a sealed frame was tried to send that had been before.
    pub retried: u64,
    /// Greetings and answers that were repeated.
    pub repeated: u64,
    /// Sealed frames that came again.
    pub replayed: u64,
}

impl SealWatch {
    /// A frame is about to be sent, or once more, by the machine of this first station.
    pub fn look(&mut self, by: u32, frame: &TxFrame) {
        let mut whole = std::mem::take(&mut self.whole);
        whole.clear();
        whole.extend_from_slice(&frame.head);
        frame.data.iter().for_each(|segment| whole.extend_from_slice(segment));
        if let Ok(header) = Header::parse(&whole, whole.len()) {
            match header.kind {
                Kind::KeyedHello | Kind::KeyedAnswer => self.look_at_greeting(&whole),
                kind if kind.is_numbered() && header.suite != SUITE_CRC32C => {
                    let tag = *whole[TAG_AT..].first_chunk().expect("a whole header");
                    let to = frame.to;
                    self.look_at_number(&header, Sealing { by, to, hash: hash(&whole), tag });
                }
                _ => {}
            }
        }
        self.whole = whole;
    }

    fn look_at_number(&mut self, header: &Header, sealing: Sealing) {
        let (place, Sealing { by, to, hash, tag }) = (place(header), sealing);
        let all = self.sealed.entry(place).or_default();
        if let Some(before) = all.iter().find(|sealing| (sealing.by, sealing.to) == (by, to)) {
            self.stats.retried += 1;
            // What is only authenticated goes from the buffer of whoever writes, which may go bad behind the seal.
            let is_ours = header.suite != Suite::Aes128Gmac.number();
            if before.tag != tag || (is_ours && before.hash != hash) {
                let (number, path) = (header.packet_number, header.path);
                self.breach.get_or_insert_with(|| {
                    format!("number {number} of path {path} to {to} was sealed twice")
                });
            }
            return;
        }
        all.push(sealing);
        match self.phases.insert((place.0, by), header.key_phase) {
            None => self.stats.directions[usize::from(header.suite) - 1] += 1,
            Some(before) => self.stats.rekeys += u64::from(before != header.key_phase),
        }
    }

    fn look_at_greeting(&mut self, bytes: &[u8]) {
        let Ok(frame) = Frame::parse(bytes) else { return };
        let (secret, whole) = match frame.messages().next() {
            Some(Message::KeyedHello(hello)) => (hello.secret, bytes),
            // Where it goes is what somebody has said who asked again.
            Some(Message::KeyedAnswer(answer)) => (answer.secret, answer.secret),
            _ => return,
        };
        let Some(ephemeral) = secret.first_chunk() else { return };
        let before = self.greetings.insert(*ephemeral, whole.to_vec());
        self.stats.repeated += u64::from(before.is_some());
        if before.is_some_and(|before| before != whole) {
            let text = "an ephemeral key was used for two greetings, or for two answers";
            self.breach.get_or_insert_with(|| text.into());
        }
    }

    /// A frame has come to a station of the machine of this first station.
    pub fn arrived(&mut self, now: u64, machine: u32, station: u32, frame: &RxFrame) {
        let Ok(header) = Header::parse(&frame.bytes, frame.len()) else { return };
        if !header.kind.is_numbered() || header.suite == SUITE_CRC32C {
            return;
        }
        let place = place(&header);
        let Some(all) = self.sealed.get(&place) else { return };
        self.whole.resize(usize::from(header.length), 0);
        frame.copy_to(0, &mut self.whole);
        let hash = hash(&self.whole);
        // Perhaps another station was meant: a new path may be opened by it all the same.
        let Some(sealing) = all.iter().find(|sealing| sealing.hash == hash) else { return };
        if self.arrived.insert((place, station, frame.from)) {
            self.heard.insert((machine, sealing.by), now);
        } else {
            self.stats.replayed += 1;
        }
    }

    /// When a machine last took in something new that another had sealed, both by their first stations.
    pub fn heard(&self, machine: u32, by: u32) -> Option<u64> {
        self.heard.get(&(machine, by)).copied()
    }

    /// What was seen so far.
    pub fn stats(&self) -> SealStats {
        self.stats
    }

    /// How something was sealed twice, if it was.
    pub fn breach(&self) -> Option<&str> {
        self.breach.as_deref()
    }
}

/// Of whole words, since these are many bytes.
fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let step =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.iter().fold(1, |hash, word| step(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| step(hash, u64::from(byte)))
}

fn place(header: &Header) -> Place {
    ((header.session, header.epoch), header.path, header.packet_number)
}
