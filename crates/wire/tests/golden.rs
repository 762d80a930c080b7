//! Every message type and every kind of frame against the bytes kept in `tests/golden`: a change of
//! the format shows as a change of those files. After a deliberate change, run with
//! `THINWIRE_BLESS=1` and look at the difference.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Once;

use common::{samples, sealed};
use thinwire_wire::{Frame, Header, Kind, MESSAGES, Message};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn to_hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (row, line) in bytes.chunks(16).enumerate() {
        out += &format!("{:04x} ", row * 16);
        for byte in line {
            out += &format!(" {byte:02x}");
        }
        out.push('\n');
    }
    out
}

fn from_hex(text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split_whitespace().skip(1))
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits"))
        .collect()
}

/// File name and bytes of everything that is kept.
fn vectors() -> Vec<(String, Vec<u8>)> {
    let messages =
        samples::message_bytes().into_iter().map(|(n, b)| (format!("message-{n}.hex"), b));
    let frames = samples::frames().into_iter().map(|(n, b)| (format!("frame-{n}.hex"), b));
    messages.chain(frames).collect()
}

/// What is kept, after it was written anew if somebody wants that.
fn kept(name: &str) -> String {
    static BLESS: Once = Once::new();
    BLESS.call_once(|| {
        if std::env::var_os("THINWIRE_BLESS").is_some() {
            for (name, bytes) in vectors() {
                std::fs::write(folder().join(name), to_hex(&bytes)).unwrap();
            }
        }
    });
    std::fs::read_to_string(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn bytes_are_the_golden_ones() {
    for (name, bytes) in vectors() {
        let text = kept(&name);
        assert_eq!(to_hex(&bytes), text, "{name}: the format has changed");
        assert_eq!(from_hex(&text), bytes);
    }
}

#[test]
fn no_golden_file_is_left_over() {
    let known: BTreeSet<String> = vectors().into_iter().map(|(name, _)| name).collect();
    let kept: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(kept, known);
}

/// The kept frames, not the ones built here, are what must be understood.
#[test]
fn golden_frames_are_understood() {
    let values = samples::messages();
    let mut kinds = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (name, _) in samples::frames() {
        let bytes = from_hex(&kept(&format!("frame-{name}.hex")));
        assert!(sealed(&bytes), "{name}: checksum");
        let frame = Frame::parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        kinds.insert(frame.header().kind as u8);
        for message in frame.messages() {
            seen.insert(message.number());
            if let Some((_, value)) = values.iter().find(|(_, v)| same_type(v, &message))
                && !matches!(message, Message::Data(_) | Message::Probe(_))
            {
                assert_eq!(*value, message, "{name}");
            }
        }
    }
    assert_eq!(kinds, Kind::ALL.iter().map(|&kind| kind as u8).collect());
    let all: BTreeSet<u8> = MESSAGES.iter().map(|row| row.number).collect();
    assert_eq!(seen, all, "every message type stands in some golden frame");
    let values: BTreeSet<u8> = values.iter().map(|(_, value)| value.number()).collect();
    assert_eq!(values, all, "there is a sample of every message");
}

fn same_type(a: &Message<'_>, b: &Message<'_>) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

#[test]
fn the_header_comes_back_as_it_was_written() {
    let bytes = &samples::frames()[0].1;
    let frame = Frame::parse(bytes).unwrap();
    let header = *frame.header();
    let size = bytes.len() as u16;
    let lengths =
        Header { length: size, data_offset: size, messages_end: size, ..samples::session_header() };
    assert_eq!(header, lengths);
    assert_eq!(header.kind, Kind::Session);
    assert_eq!(*frame.feedback(), samples::feedback());
}

#[test]
fn payloads_follow_each_other_in_the_order_of_their_messages() {
    let frames = samples::frames();
    let bytes = &frames.iter().find(|(name, _)| *name == "session-read").unwrap().1;
    let frame = Frame::parse(bytes).unwrap();
    let places: Vec<(u16, usize, u32)> = frame
        .messages()
        .filter_map(|m| match m {
            Message::Data(d) => Some((d.slot, d.payload_at, d.length)),
            _ => None,
        })
        .collect();
    assert_eq!(places, [(3, 192, 512), (4, 704, 1024)]);
    assert_eq!(bytes[704..1728], samples::payload(1536)[512..]);
}

#[test]
fn padding_behind_a_frame_is_cut_off() {
    for (name, bytes) in samples::frames() {
        let mut padded = bytes.clone();
        padded.extend_from_slice(&[0xaa; 60]);
        let frame = Frame::parse(&padded).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(frame.header().length as usize, bytes.len(), "{name}");
        assert!(frame.messages().eq(Frame::parse(&bytes).unwrap().messages()), "{name}");
    }
}
