//! The frames of EBD (`docs/ebd.md`) against the bytes kept in `tests/golden/ebd`, in both forms, and anything else
//! that may arrive in their place.

mod common;

use std::collections::BTreeSet;

use common::hex;
use proptest::prelude::*;
use thinwire_wire::ebd::{
    EbdError, EbdForm, EbdState, Frame, HandshakeAnswer, HandshakeAsk, NakReason, Operation, Tag,
};

const FORMS: [EbdForm; 2] = [EbdForm::Ideal, EbdForm::Implemented];

fn tag(form: EbdForm) -> Tag {
    match form {
        EbdForm::Ideal => Tag::Ideal { identifier: 0x5a, major: 3, minor: 1 },
        EbdForm::Implemented => {
            Tag::Implemented { client: 2, index: 9, handle: 0x0a0b_0c0d, reserved: 0 }
        }
    }
}

fn request(form: EbdForm, operation: Operation, length: u8, sector: u32) -> Frame {
    let wants_wack = form == EbdForm::Implemented && operation != Operation::End;
    Frame { operation, is_answer: false, wants_wack, tag: tag(form), credit: 0, length, sector }
}

/// All that either side says, with a payload of 16 octets where there is one.
fn frames(form: EbdForm) -> Vec<(&'static str, Frame, Vec<u8>)> {
    use Operation::*;
    let block: Vec<u8> = (0..16).collect();
    let read = request(form, Read, 16, 0x0102_0304);
    let write = request(form, Write, 8, 4096);
    let sync = request(form, SyncWrite, 1, 4097);
    let flush = request(form, Flush, 0, 7);
    let state = EbdState { content: 0x1122, writer: 3 };
    let ask = HandshakeAsk {
        major: 3,
        minor: 1,
        block_bytes: 4096,
        writes: true,
        takes_over: false,
        state: EbdState::default(),
        number: if form == EbdForm::Ideal { 0 } else { 0x2345 },
    };
    let answer = HandshakeAnswer {
        sectors: 2_097_152,
        request_sectors: 127,
        block_bytes: 4096,
        credit: 254,
        state,
        latency_us: 250,
        number: ask.number,
    };
    let with = |(frame, payload, len): (Frame, [u8; 12], usize)| (frame, payload[..len].to_vec());
    let shake = with(ask.frame(form, 0x5a));
    let again = with(HandshakeAsk { takes_over: true, state, ..ask }.frame(form, 0x5a));
    let shaken = with(answer.frame(&shake.0, 9));
    let unasked = |operation, credit| Frame {
        operation,
        is_answer: true,
        wants_wack: false,
        tag: tag(form),
        credit,
        length: 0,
        sector: 0,
    };
    let mut all = vec![
        ("handshake", shake.0, shake.1),
        ("handshake-again", again.0, again.1),
        ("handshake-answer", shaken.0, shaken.1),
        ("read", read, Vec::new()),
        ("read-answer", read.answer(Read, 200, 8, 0x0102_030c), block.clone()),
        ("write", write, block.clone()),
        ("write-answer", write.answer(Write, 200, 8, 4096), Vec::new()),
        ("sync-write", sync, block),
        ("sync-write-answer", sync.answer(SyncWrite, 200, 1, 4097), Vec::new()),
        ("flush", flush, Vec::new()),
        ("flush-answer", flush.answer(Flush, 200, 0, 7), Vec::new()),
        ("end", request(form, End, 0, 0), Vec::new()),
        ("shutdown", unasked(Shutdown, 0), Vec::new()),
        ("congestion", unasked(Congestion, 16), Vec::new()),
        ("nak-unknown", read.nak(NakReason::Unknown, 0, 0x0102_0304), Vec::new()),
        ("nak-media", read.nak(NakReason::Media, 200, 0x0102_030c), Vec::new()),
    ];
    if form == EbdForm::Implemented {
        all.push(("wack", read.answer(Wack, 184, 16, 0x0102_0304), Vec::new()));
    }
    all
}

fn vectors() -> Vec<(String, Vec<u8>)> {
    let of = |form: EbdForm| {
        frames(form).into_iter().map(move |(name, frame, payload)| {
            let (header, len) = frame.header();
            (format!("{}-{name}.hex", form.name()), [&header[..len], &payload].concat())
        })
    };
    FORMS.into_iter().flat_map(of).collect()
}

#[test]
fn golden_frames_are_what_was_said() {
    let kept = hex::kept("ebd", &vectors());
    let mut seen = BTreeSet::new();
    for form in FORMS {
        for (name, frame, payload) in frames(form) {
            let bytes = &kept[&format!("{}-{name}.hex", form.name())];
            assert_eq!(Frame::parse(bytes), Ok(frame), "{name}");
            assert_eq!(bytes[form.header_bytes()..], payload, "{name}");
            assert_eq!((Frame::form_of(bytes), frame.form()), (Some(form), form));
            seen.insert((form, frame.operation as u8));
        }
    }
    let all = FORMS.iter().flat_map(|&form| Operation::ALL.map(|o| (form, o as u8)));
    let known: BTreeSet<_> =
        all.filter(|of| *of != (EbdForm::Ideal, Operation::Wack as u8)).collect();
    assert_eq!(seen, known, "every operation stands in some golden frame");
}

#[test]
fn what_is_cut_short_is_no_frame() {
    for (name, bytes) in vectors() {
        let header = Frame::parse(&bytes).unwrap().form().header_bytes();
        for len in 0..header {
            assert_eq!(Frame::parse(&bytes[..len]), Err(EbdError::Truncated), "{name}: {len}");
        }
    }
}

/// A handshake of the idealised form says more in its payload than the document wants: who says that much alone is
/// understood.
#[test]
fn handshakes_come_back_as_they_were_said() {
    for form in FORMS {
        let ask = HandshakeAsk {
            major: 200,
            minor: 100,
            block_bytes: 8192,
            writes: true,
            takes_over: true,
            state: EbdState { content: 1, writer: 65535 },
            number: if form == EbdForm::Ideal { 0 } else { HandshakeAsk::NUMBERS - 1 },
        };
        let (frame, payload, len) = ask.frame(form, 7);
        assert_eq!(HandshakeAsk::of(&frame, &payload[..len]), Some(ask));
        let answer = HandshakeAnswer {
            sectors: u32::MAX,
            request_sectors: 127,
            block_bytes: 512,
            credit: 255,
            state: ask.state,
            latency_us: if form == EbdForm::Ideal { 77 } else { 0 },
            number: ask.number,
        };
        let (told, payload, len) = answer.frame(&frame, 13);
        let index = if form == EbdForm::Ideal { 0 } else { 13 };
        assert_eq!(HandshakeAnswer::of(&told, &payload[..len]), Some((answer, index)));
        if form == EbdForm::Ideal {
            let plain = HandshakeAsk { state: EbdState::default(), ..ask };
            assert_eq!(HandshakeAsk::of(&frame, &payload[..3]), None);
            assert_eq!(HandshakeAsk::of(&frame, &8192u32.to_le_bytes()), Some(plain));
            assert_eq!(HandshakeAnswer::of(&told, &[0; 3]), None);
        }
    }
}

/// No octet is a type of both forms, and none of a request that of an answer.
#[test]
fn every_type_has_one_meaning() {
    let mut known = 0;
    for octet in 0..=u8::MAX {
        let mut bytes = [0; 18];
        bytes[0] = octet;
        match Frame::parse(&bytes) {
            Ok(frame) => {
                let (header, _) = frame.header();
                assert_eq!(header[0], octet);
                known += 1;
            }
            Err(error) => assert_eq!(error, EbdError::Type, "{octet:#04x}"),
        }
    }
    // 6 requests and 8 answers; 6 requests with and without a wish for WACK, and 9 answers.
    assert_eq!(known, 6 + 8 + 2 * 6 + 9);
}

#[test]
fn a_credit_that_cannot_be_said_is_the_most() {
    let frame = request(EbdForm::Ideal, Operation::Read, 8, 0).answer(Operation::Read, 4000, 8, 0);
    assert_eq!(Frame::parse(&frame.header().0).unwrap().credit, 255);
}

proptest! {
    #[test]
    fn anything_is_a_frame_that_comes_back_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(frame) = Frame::parse(&bytes) {
            let (header, len) = frame.header();
            prop_assert_eq!(&header[..len], &bytes[..len]);
            let payload = &bytes[len..];
            let _ = (HandshakeAsk::of(&frame, payload), HandshakeAnswer::of(&frame, payload));
        }
    }
}

/// Rows of the table of `docs/ebd.md` whose head begins so, as cells.
fn table(head: &str) -> Vec<Vec<String>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ebd.md");
    let text = std::fs::read_to_string(path).unwrap();
    let at = text.find(&format!("| {head}")).unwrap_or_else(|| panic!("no table {head}"));
    let rows = text[at..].lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    rows.map(cells).collect()
}

#[test]
fn codes_and_reasons_are_those_of_the_document() {
    let types = table("code | operation");
    assert_eq!(types.len(), Operation::ALL.len());
    for (row, operation) in types.iter().zip(Operation::ALL) {
        assert_eq!(row[0], (operation as u8).to_string(), "{row:?}");
        let name = row[1].split(':').next().unwrap().replace('-', "");
        assert_eq!(name.to_lowercase(), format!("{operation:?}").to_lowercase());
        assert_eq!(row[2] == "yes", operation.is_request(), "{row:?}");
        assert_eq!(row[3] == "never", !operation.is_answer(), "{row:?}");
    }
    let reasons = table("number | reason");
    assert_eq!(reasons.len(), NakReason::ALL.len());
    for (row, reason) in reasons.iter().zip(NakReason::ALL) {
        assert_eq!(row[0], (reason as u8).to_string(), "{row:?}");
        assert_eq!(NakReason::from_number(reason as u8), Some(reason));
    }
}

/// Where the document says that a field stands, it stands.
#[test]
fn fields_are_where_the_document_says() {
    let tables = [
        "offset | width | field | meaning |\n|---|---|---|---|\n| 0 | 1 | type | operation and",
        "offset | width | field | meaning |\n|---|---|---|---|\n| 0 | 1 | type | as above",
    ];
    for (form, head) in FORMS.into_iter().zip(tables) {
        let rows = table(head);
        let frame = Frame {
            tag: match form {
                EbdForm::Ideal => Tag::Ideal { identifier: 0x11, major: 0x22, minor: 0x33 },
                EbdForm::Implemented => Tag::Implemented {
                    client: 0x11,
                    index: 0x22,
                    handle: 0x0102_0304,
                    reserved: 0x0506_0708,
                },
            },
            credit: 0x44,
            ..request(form, Operation::Read, 0x55, 0x0a0b_0c0d)
        };
        let (header, len) = frame.header();
        for row in rows {
            let at: usize = row[0].parse().unwrap();
            let width: usize = match row[1].as_str() {
                "" => {
                    assert_eq!((at, row[2].as_str()), (len, "payload"));
                    continue;
                }
                width => width.parse().unwrap(),
            };
            let value =
                header[at..at + width].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
            let expected = match row[2].as_str() {
                "type" => u64::from(header[0]),
                "identifier" | "client minor" => 0x11,
                "major" | "server index" => 0x22,
                "minor" => 0x33,
                "flow control" => 0x44,
                "length" => 0x55,
                "sector" => 0x0a0b_0c0d,
                "request handle" => 0x0102_0304,
                "reserved" => 0x0506_0708,
                other => panic!("{other}"),
            };
            assert_eq!(value, expected, "{form:?} {row:?}");
        }
    }
}
