//! Frames out of choices: assembled from messages, or taken from the samples, and then edited where parsers
//! break. What is accepted says the same when it is written again (`common/consistent.rs`). `fuzz.rs` throws more
//! at the same gate, at random, and has the canaries.

mod common;

use std::sync::LazyLock;

use common::consistent::{consistent, real};
use common::samples;
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_wire::*;

struct Samples {
    frames: Vec<Vec<u8>>,
    messages: Vec<Vec<u8>>,
}

static SAMPLES: LazyLock<Samples> = LazyLock::new(|| {
    let messages = samples::message_bytes().into_iter().map(|(_, bytes)| bytes);
    Samples {
        frames: samples::frames().into_iter().map(|(_, bytes)| bytes).collect(),
        messages: messages.chain([samples::skippable()]).collect(),
    }
});

/// A few messages, some with another value in a field, and the payload that they speak of.
fn assembled(choices: &mut Choices<'_>) -> Vec<u8> {
    let (mut messages, mut payload) = (Vec::new(), 0);
    for _ in 0..choices.below(6) {
        let mut message = choices.of(&SAMPLES.messages).clone();
        if message[0] == DataHeader::TYPE {
            let length = 512 * (1 + choices.below(4));
            message[16..20].copy_from_slice(&(length as u32).to_be_bytes());
            payload += length;
        }
        if choices.flag() && message.len() > 4 {
            let at = 4 + choices.below(message.len() - 4);
            message[at] = choices.byte();
        }
        messages.extend_from_slice(&message);
    }
    let (mut header, mut feedback) = (samples::session_header(), samples::feedback());
    if choices.below(4) == 0 {
        let kind = *choices.of(Kind::ALL);
        header = if kind.is_numbered() { Header { kind, ..header } } else { Header::new(kind) };
        feedback = Feedback::default();
    }
    common::frame_with(header, feedback, &messages, &samples::payload(payload))
}

fn edit(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    if bytes.is_empty() {
        return;
    }
    let at = choices.below(bytes.len());
    match choices.below(6) {
        0 => bytes[at] = choices.byte(),
        1 => bytes.truncate(at),
        2 => bytes.extend_from_slice(choices.bytes(16)),
        // A field of the header, or a length.
        3 => {
            let at = choices.below(HEADER_BYTES.min(bytes.len()));
            bytes[at] = choices.byte();
        }
        4 => {
            let at = *choices.of(&[4, 6, 28, HEADER_BYTES + 2, at & !1]);
            if let Some(field) = bytes.get_mut(at..at + 2) {
                let old = u16::from_be_bytes([field[0], field[1]]);
                let new = old.wrapping_add(choices.short());
                field.copy_from_slice(&new.to_be_bytes());
            }
        }
        _ => {
            let end = (at + choices.below(64)).min(bytes.len());
            let piece: Vec<u8> = bytes.drain(at..end).collect();
            let to = choices.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
    }
}

static FRAMES: Reached = Reached::new();

fn play_frame(choices: &mut Choices<'_>) {
    let mut bytes = match choices.below(4) {
        0 => choices.rest().to_vec(),
        1 => choices.of(&SAMPLES.frames).clone(),
        _ => assembled(choices),
    };
    for _ in 0..choices.below(4) {
        edit(&mut bytes, choices);
    }
    match real(&bytes) {
        Ok(parsed) => {
            consistent(&bytes, &parsed).unwrap_or_else(|why| panic!("{why}: {bytes:02x?}"));
            FRAMES.count("accepted");
        }
        Err(error) => FRAMES.count(error.name()),
    }
}

#[test]
fn fuzz_frames() {
    fuzz!("frames", 30_000, 200, play_frame);
    // What only whoever unseals can find is not among them.
    let found = FrameError::ALL.map(FrameError::name);
    let found = found.into_iter().filter(|reason| !["checksum", "forged"].contains(reason));
    FRAMES.expect(&found.chain(["accepted"]).collect::<Vec<_>>());
}

static MESSAGES_READ: Reached = Reached::new();

/// A message alone, as a key seals it: of any type, with a length that fits or not.
fn play_message(choices: &mut Choices<'_>) {
    let mut bytes = match choices.below(3) {
        0 => choices.rest().to_vec(),
        _ => choices.of(&SAMPLES.messages).clone(),
    };
    for _ in 0..choices.below(4) {
        edit(&mut bytes, choices);
    }
    if choices.flag() && bytes.len() >= 4 {
        let length = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
    }
    match Message::alone(&bytes) {
        Ok(message) => {
            let mut again = Vec::new();
            message.emit(&mut again);
            assert_eq!(again, bytes, "{message:?}");
            let mut fields = again[..4].to_vec();
            message.each_field(&mut |_, bytes| fields.extend_from_slice(bytes));
            assert!(fields.len() <= again.len(), "{message:?}");
            MESSAGES_READ.count("accepted");
        }
        Err(error) => MESSAGES_READ.count(error.name()),
    }
}

#[test]
fn fuzz_messages() {
    fuzz!("messages", 30_000, 200, play_message);
    MESSAGES_READ.expect(&[
        "accepted",
        FrameError::MessageLength.name(),
        FrameError::MessageUnknown.name(),
    ]);
}
