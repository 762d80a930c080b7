//! For every reason a frame can be refused for: frames that are refused for exactly that reason.
//! Each case is a good frame with one thing wrong (`docs/protocol.md`, "Refused frames").

mod common;

use common::{frame, samples};
use std::collections::BTreeSet;
use thinwire_wire::*;

/// An empty frame of version 1, whose header had 72 bytes and its checksum elsewhere.
fn of_version_1() -> Vec<u8> {
    let mut frame = vec![0; 72];
    frame[..8].copy_from_slice(&[1, 1, 0, 0, 0, 72, 0, 72]);
    frame[36..38].copy_from_slice(&[0, 72]);
    frame
}

/// What is done to a good frame.
type Damage = fn(&mut Vec<u8>);

/// The good frame of that name.
fn good(name: &str) -> Vec<u8> {
    samples::frames().into_iter().find(|(n, _)| *n == name).expect("a frame of that name").1
}

fn put16(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn get16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Where the first message starts, and a few offsets in messages that are used below.
const M: usize = HEADER_BYTES;

/// Appends bytes to a frame without payload, as messages.
fn append(frame: &mut Vec<u8>, bytes: &[u8]) {
    frame.extend_from_slice(bytes);
    let end = frame.len() as u16;
    for at in [4, 6, 28] {
        put16(frame, at, end);
    }
}

/// A frame around one message, of the kind the message belongs to.
fn around(name: &str) -> Vec<u8> {
    let kind = samples::messages().iter().find(|(n, _)| *n == name).map(|(_, m)| m.kind());
    let kind = kind.expect("a message of that name");
    frame(Header::new(kind), &samples::bytes_of(name), &[])
}

#[test]
fn every_header_fault_has_its_reason() {
    use FrameError as E;
    let table: &[(&str, &str, Damage, E)] = &[
        ("empty", "session-all", |f| f.clear(), E::Truncated),
        ("one byte short of a header", "session-all", |f| f.truncate(79), E::Truncated),
        ("cut in the messages", "session-all", |f| f.truncate(100), E::Truncated),
        ("cut in the payload", "session-write", |f| f.truncate(703), E::Truncated),
        (
            "length beyond what came",
            "ping",
            |f| {
                let n = get16(f, 4) + 1;
                put16(f, 4, n)
            },
            E::Truncated,
        ),
        ("version 0", "session-all", |f| f[0] = 0, E::Version),
        ("version 1", "session-all", |f| f[0] = 1, E::Version),
        ("version 3", "session-all", |f| f[0] = 3, E::Version),
        ("a whole frame of version 1", "session-all", |f| *f = of_version_1(), E::Version),
        ("kind 0", "session-all", |f| f[1] = 0, E::Kind),
        ("kind 13", "session-all", |f| f[1] = 13, E::Kind),
        ("kind 255", "session-all", |f| f[1] = 255, E::Kind),
        ("suite 5", "session-all", |f| f[2] = 5, E::Suite),
        ("a key outside a session", "hello", |f| f[2] = 1, E::Suite),
        ("suite 255", "hello", |f| f[2] = 255, E::Suite),
        ("a key phase without a key", "session-all", |f| f[3] = 1, E::Reserved),
        ("reserved at 31", "session-all", |f| f[31] = 1, E::Reserved),
        ("packet number outside a session", "hello", |f| f[23] = 1, E::Reserved),
        ("epoch outside a session", "offer", |f| f[24] = 1, E::Reserved),
        ("path outside a session", "unknown-session", |f| f[30] = 1, E::Reserved),
        ("flag 2", "session-all", |f| f[48] |= 4, E::Reserved),
        ("flag 7", "session-all", |f| f[48] |= 0x80, E::Reserved),
        ("acknowledgement in a probe", "probe", |f| f[48] = 1, E::Reserved),
        ("credit in a greeting", "hello", |f| f[48] = 2, E::Reserved),
        ("ack path without flag", "session-write", |f| f[49] = 1, E::Reserved),
        ("ack delay without flag", "session-write", |f| f[51] = 1, E::Reserved),
        ("credit slots without flag", "session-write", |f| f[55] = 1, E::Reserved),
        ("ack largest without flag", "session-write", |f| f[63] = 1, E::Reserved),
        ("ack bitmap without flag", "session-write", |f| f[71] = 1, E::Reserved),
        ("credit bytes without flag", "session-write", |f| f[79] = 1, E::Reserved),
        (
            "bitmap below packet number 0",
            "session-write",
            |f| {
                f[48] = 1;
                f[63] = 3;
                f[71] = 8
            },
            E::Reserved,
        ),
        ("length below a header", "session-empty", |f| put16(f, 4, 79), E::Layout),
        ("messages end in the header", "session-write", |f| put16(f, 28, 79), E::Layout),
        (
            "messages end behind the payload's start",
            "session-write",
            |f| put16(f, 28, 196),
            E::Layout,
        ),
        ("data offset behind the end", "session-write", |f| put16(f, 6, 705), E::Layout),
        (
            "gap without payload",
            "session-all",
            |f| {
                let n = get16(f, 28) - 4;
                put16(f, 28, n)
            },
            E::Layout,
        ),
    ];
    let mut reasons = BTreeSet::new();
    for (what, name, damage, reason) in table {
        let mut bytes = if *name == "ping" { around("ping") } else { good(name) };
        assert!(Frame::parse(&bytes).is_ok(), "{what}: the undamaged frame is good");
        damage(&mut bytes);
        assert_eq!(Frame::parse(&bytes).err(), Some(*reason), "{what}");
        reasons.insert(*reason);
    }
    assert_eq!(
        reasons,
        BTreeSet::from([E::Truncated, E::Version, E::Kind, E::Suite, E::Reserved, E::Layout])
    );
}

#[test]
fn every_message_fault_has_its_reason() {
    use FrameError as E;
    // Offsets of fields are those of the tables in docs/protocol.md, behind M.
    let table: &[(&str, &str, Damage, E)] = &[
        ("message of 0 bytes", "ping", |f| put16(f, M + 2, 0), E::MessageLength),
        ("message of 3 bytes", "ping", |f| put16(f, M + 2, 3), E::MessageLength),
        ("message over the end", "ping", |f| put16(f, M + 2, 8), E::MessageLength),
        ("message of odd length", "request", |f| put16(f, M + 2, 31), E::MessageLength),
        ("request too short", "request", |f| put16(f, M + 2, 28), E::MessageLength),
        ("half a message header", "ping", |f| append(f, &[9, 0]), E::MessageLength),
        (
            "data too long",
            "ping",
            |f| append(f, &[2, 0, 0, 24].iter().chain(&[0; 20]).copied().collect::<Vec<_>>()),
            E::MessageLength,
        ),
        ("text over the end", "attach", |f| f[M + 20] = 9, E::MessageLength),
        ("text too short for its message", "attach", |f| f[M + 20] = 0, E::MessageLength),
        ("ack ranges fewer than counted", "ack-ranges", |f| f[M + 5] = 3, E::MessageLength),
        ("ack ranges more than counted", "ack-ranges", |f| f[M + 5] = 1, E::MessageLength),
        ("sums fewer than counted", "sums", |f| put16(f, M + 6, 4), E::MessageLength),
        ("sums more than counted", "sums", |f| put16(f, M + 6, 2), E::MessageLength),
        ("addresses more than counted", "welcome", |f| f[M + 56] = 2, E::MessageLength),
        ("names fewer than counted", "offer", |f| f[M + 39] = 1, E::MessageLength),
        ("unknown type", "ping", |f| f[M] = 0x7f, E::MessageUnknown),
        ("type 0", "ping", |f| f[M] = 0, E::MessageUnknown),
        (
            "handshake in a session",
            "ping",
            |f| append(f, &samples::bytes_of("hello")),
            E::MessageMisplaced,
        ),
        (
            "session message in a handshake",
            "hello",
            |f| append(f, &[9, 0, 0, 4]),
            E::MessageMisplaced,
        ),
        (
            "two handshakes",
            "hello",
            |f| append(f, &samples::bytes_of("hello")),
            E::MessageMisplaced,
        ),
        ("answer in a question", "hello", |f| f[1] = 3, E::MessageMisplaced),
        ("unknown message flag", "ping", |f| f[M + 1] = 2, E::Reserved),
        ("known type marked skippable", "ping", |f| f[M + 1] = 1, E::Reserved),
        ("unknown request flag", "request", |f| f[M + 7] |= 0x10, E::Reserved),
        ("unknown attach flag", "attach", |f| f[M + 8] |= 0x10, E::Reserved),
        ("attach, reserved", "attach", |f| f[M + 11] = 1, E::Reserved),
        ("unknown feature", "attached", |f| f[M + 76] |= 0x40, E::Reserved),
        ("attach refused, reserved", "attach-refused", |f| f[M + 11] = 1, E::Reserved),
        ("unknown security of a hello", "hello", |f| f[M + 46] = 2, E::Reserved),
        ("hello of a member too many", "hello", |f| f[M + 47] = 16, E::MessageValue),
        ("attached, reserved", "attached", |f| f[M + 77] = 1, E::Reserved),
        ("padding of a text", "attach", |f| f[M + 27] = 1, E::Reserved),
        ("hello without session id", "hello", |f| f[M + 12..M + 20].fill(0), E::MessageValue),
        ("hello with frames too small", "hello", |f| put16(f, M + 44, 1231), E::MessageValue),
        ("retry without a cookie", "retry", |f| f[M + 12..M + 20].fill(0), E::MessageValue),
        ("welcome without session id", "welcome", |f| f[M + 12..M + 20].fill(0), E::MessageValue),
        ("welcome with frames too small", "welcome", |f| put16(f, M + 34, 1231), E::MessageValue),
        ("welcome without slots", "welcome", |f| put16(f, M + 32, 0), E::MessageValue),
        (
            "welcome with tiny requests",
            "welcome",
            |f| f[M + 36..M + 40].copy_from_slice(&511u32.to_be_bytes()),
            E::MessageValue,
        ),
        ("too many addresses", "welcome", |f| f[M + 56] = 17, E::MessageValue),
        ("unknown address family", "welcome", |f| f[M + 57] = 9, E::MessageValue),
        ("control character", "attach", |f| f[M + 21] = 0x07, E::MessageValue),
        ("not UTF-8", "attach", |f| f[M + 21] = 0xff, E::MessageValue),
        ("no ack range", "ack-ranges", |f| f[M + 5] = 0, E::MessageValue),
        ("33 ack ranges", "ack-ranges", |f| f[M + 5] = 33, E::MessageValue),
        ("no sum", "sums", |f| put16(f, M + 6, 0), E::MessageValue),
        ("258 sums", "sums", |f| put16(f, M + 6, 258), E::MessageValue),
        ("range backwards", "ack-ranges", |f| f[M + 15] = 0xff, E::MessageValue),
        ("ranges out of order", "ack-ranges", |f| f[M + 24] = 0x7f, E::MessageValue),
        ("block of 1024", "attached", |f| put16(f, M + 18, 1024), E::MessageValue),
        ("size no multiple of the block", "attached", |f| put16(f, M + 34, 512), E::MessageValue),
        (
            "requests below a block",
            "attached",
            |f| f[M + 24..M + 28].copy_from_slice(&512u32.to_be_bytes()),
            E::MessageValue,
        ),
        ("requests of odd size", "attached", |f| put16(f, M + 26, 512), E::MessageValue),
    ];
    let mut reasons = BTreeSet::new();
    for (what, name, damage, reason) in table {
        let mut bytes = around(name);
        assert!(Frame::parse(&bytes).is_ok(), "{what}: the undamaged frame is good");
        damage(&mut bytes);
        assert_eq!(Frame::parse(&bytes).err(), Some(*reason), "{what}");
        reasons.insert(*reason);
    }
    let expected =
        [E::MessageLength, E::MessageUnknown, E::MessageMisplaced, E::MessageValue, E::Reserved];
    assert_eq!(reasons, BTreeSet::from(expected));
}

#[test]
fn every_payload_fault_has_its_reason() {
    use FrameError as E;
    // session-write holds REQUEST (32 bytes), then DATA of 512 bytes at offset 0, its length at
    // M + 32 + 16.
    let length_at = M + 32 + 16;
    type DamageAt = fn(&mut Vec<u8>, usize);
    let table: &[(&str, &str, DamageAt, E)] = &[
        ("data of 0 bytes", "session-write", |f, at| f[at..at + 4].fill(0), E::MessageValue),
        ("more data than payload", "session-write", |f, at| put16(f, at + 2, 1024), E::Payload),
        ("2^32 - 1 bytes of data", "session-write", |f, at| f[at..at + 4].fill(0xff), E::Payload),
        ("less data than payload", "session-write", |f, at| put16(f, at + 2, 508), E::Payload),
        ("reserved field of data", "session-write", |f, at| f[at - 10] = 1, E::Reserved),
        ("payload without data", "session-write", |f, _| put16(f, 28, (M + 32) as u16), E::Payload),
        (
            "payload behind a handshake",
            "hello",
            |f, _| {
                f.extend([0; 4]);
                let n = f.len() as u16;
                put16(f, 4, n)
            },
            E::Payload,
        ),
        (
            "payload behind a probe's answer",
            "probe-reply",
            |f, _| {
                f.extend([0; 4]);
                let n = f.len() as u16;
                put16(f, 4, n)
            },
            E::Payload,
        ),
        (
            "no message in a handshake",
            "hello",
            |f, _| {
                f.truncate(M);
                for at in [4, 6, 28] {
                    put16(f, at, M as u16)
                }
            },
            E::MessageMisplaced,
        ),
    ];
    for (what, name, damage, reason) in table {
        let mut bytes = good(name);
        assert!(Frame::parse(&bytes).is_ok(), "{what}: the undamaged frame is good");
        damage(&mut bytes, length_at);
        assert_eq!(Frame::parse(&bytes).err(), Some(*reason), "{what}");
    }
}

/// `Checksum` is found by whoever unseals: any change of one bit is, unless the public part is refused for
/// it before.
#[test]
fn the_tag_sees_every_bit() {
    let bytes = good("session-write");
    assert!(common::unsealed(&bytes).is_ok());
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let is_public = bit / 8 < TAG_AT && Header::parse(&damaged, damaged.len()).is_err();
        let refused = common::unsealed(&damaged).err();
        assert!(refused == Some(FrameError::Checksum) || is_public && refused.is_some(), "{bit}");
    }
}

/// The tables above and the reasons found elsewhere are all there are.
#[test]
fn every_reason_has_a_name_of_its_own() {
    let names: BTreeSet<&str> = FrameError::ALL.iter().map(|e| e.name()).collect();
    assert_eq!(names.len(), FrameError::ALL.len());
    assert!(FrameError::ALL.iter().all(|e| e.to_string() == e.name()));
}

#[test]
fn skippable_messages_are_skipped_and_others_are_not() {
    let bytes = good("session-skip");
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.messages().collect::<Vec<_>>(), [Message::Ping(Ping {})]);
    let mut strict = bytes.clone();
    strict[M + 1] = 0;
    assert_eq!(Frame::parse(&strict).err(), Some(FrameError::MessageUnknown));
}

/// Values that a session or the target answers, not the gate: they pass.
#[test]
fn values_with_an_answer_of_their_own_pass_the_gate() {
    let table: &[(&str, &str, Damage)] = &[
        ("unknown operation", "request", |f| f[M + 6] = 0xee),
        ("unknown status", "complete", |f| f[M + 6] = 0xee),
        ("unknown event", "event", |f| f[M + 4] = 0xee),
        ("slot out of range", "reset", |f| f[M + 4] = 0xff),
    ];
    for (what, name, damage) in table {
        let mut bytes = around(name);
        damage(&mut bytes);
        assert!(Frame::parse(&bytes).is_ok(), "{what}");
    }
}
