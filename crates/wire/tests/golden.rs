//! Every message type and every kind of frame against the bytes kept in `tests/golden`: a change of
//! the format shows as a change of those files. After a deliberate change, run with
//! `THINWIRE_BLESS=1` and look at the difference.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use common::{hex, samples, sealed};
use thinwire_wire::{Frame, Header, Kind, MESSAGES, Message};

/// File name and bytes of everything that is kept.
fn vectors() -> Vec<(String, Vec<u8>)> {
    let messages =
        samples::message_bytes().into_iter().map(|(n, b)| (format!("message-{n}.hex"), b));
    let frames = samples::frames().into_iter().map(|(n, b)| (format!("frame-{n}.hex"), b));
    messages.chain(frames).collect()
}

/// What is kept, after it was written anew if somebody wants that.
fn kept() -> &'static BTreeMap<String, Vec<u8>> {
    static KEPT: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    KEPT.get_or_init(|| hex::kept("", &vectors()))
}

#[test]
fn bytes_are_the_golden_ones() {
    assert_eq!(kept().len(), vectors().len());
}

/// The kept frames, not the ones built here, are what must be understood.
#[test]
fn golden_frames_are_understood() {
    let values = samples::messages();
    let mut kinds = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (name, _) in samples::frames() {
        let bytes = &kept()[&format!("frame-{name}.hex")];
        assert!(sealed(bytes), "{name}: checksum");
        let frame = Frame::parse(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
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
