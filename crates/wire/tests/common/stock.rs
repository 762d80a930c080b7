//! Frames for fuzzers: good ones, damaged ones, noise.

use super::{random::Random, samples};
use thinwire_wire::*;

/// Where test frames come from.
pub struct Stock {
    frames: Vec<Vec<u8>>,
    messages: Vec<Vec<u8>>,
}

impl Stock {
    /// The samples.
    pub fn new() -> Self {
        let mut messages: Vec<Vec<u8>> =
            samples::message_bytes().into_iter().map(|(_, bytes)| bytes).collect();
        messages.push(samples::skippable());
        Stock { frames: samples::frames().into_iter().map(|(_, b)| b).collect(), messages }
    }

    /// The next frame, good or damaged. Checksums are wrong after damage.
    pub fn next(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes = match random.below(8) {
            0 => {
                let n = random.below(300);
                random.bytes(n)
            }
            1..=3 => random.of(&self.frames).clone(),
            _ => self.assemble(random),
        };
        // Some stay whole: acceptance must be exercised as well as refusal.
        for _ in 0..random.below(4) {
            damage(&mut bytes, random);
        }
        bytes
    }

    /// A frame of random messages, mostly of a session, with payload to match.
    fn assemble(&self, random: &mut Random) -> Vec<u8> {
        let mut messages = Vec::new();
        let mut payload = 0;
        for _ in 0..random.below(6) {
            let mut message = random.of(&self.messages).clone();
            let session = message[0] < 0x20 || message[0] == 0x7f;
            if !session && !random.once_in(20) {
                continue;
            }
            if message[0] == DataHeader::TYPE {
                let length = 512 * (1 + random.below(4));
                message[16..20].copy_from_slice(&(length as u32).to_be_bytes());
                payload += length;
            }
            // Most fields take any value; where one does not, that is a case as well.
            if random.once_in(2) && message.len() > 4 {
                let at = 4 + random.below(message.len() - 4);
                message[at] = random.next() as u8;
            }
            if random.once_in(50) {
                // No type of this version.
                message[0] = 0x60 + random.below(16) as u8;
            }
            messages.extend_from_slice(&message);
        }
        let (mut header, mut feedback) = (samples::session_header(), samples::feedback());
        if random.once_in(20) {
            // Another kind of frame around them, which is good in itself.
            let kind = *random.of(Kind::ALL);
            header = if kind.is_numbered() { Header { kind, ..header } } else { Header::new(kind) };
            feedback = Feedback::default();
        }
        if feedback.flags != 0 && random.once_in(4) {
            feedback.ack_largest = random.below(70) as u64;
            feedback.ack_bitmap = random.next() >> random.below(64);
        }
        super::frame_with(header, feedback, &messages, &samples::payload(payload))
    }
}

/// One change, of the kinds that break parsers.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.extend(std::iter::repeat_n(random.next() as u8, random.below(80))),
        // A header field: lengths, flags, reserved bits, version.
        4 | 5 => {
            let at = random.below(HEADER_BYTES.min(bytes.len()));
            bytes[at] = *random.of(&[0, 1, 2, 3, 4, 79, 80, 81, 0x7f, 0x80, 0xff]);
        }
        // A length or count that lies, near the truth or far from it.
        6 | 7 => {
            let at = *random.of(&[4, 6, 28, HEADER_BYTES + 2, at & !1]);
            if let Some(field) = bytes.get_mut(at..at + 2) {
                let old = u16::from_be_bytes([field[0], field[1]]);
                let near = random.below(16) as u16;
                let new = *random.of(&[
                    0,
                    u16::MAX,
                    old.wrapping_add(near),
                    old.wrapping_sub(near),
                    old.wrapping_add(4),
                    old ^ 0x8000,
                ]);
                field.copy_from_slice(&new.to_be_bytes());
            }
        }
        // A piece taken out or doubled.
        _ => {
            let end = (at + random.below(64)).min(bytes.len());
            let piece: Vec<u8> = bytes.drain(at..end).collect();
            if random.once_in(2) {
                let twice = piece.iter().chain(&piece).copied().collect::<Vec<_>>();
                bytes.splice(at..at, twice);
            }
        }
    }
}
