//! The Wireshark dissector (`tools/wireshark/thinwire.lua`) on captures made of golden and of
//! damaged frames: it shows every field at its place, and agrees with the gate about what a receiver
//! refuses, and why.

mod common;

use common::capture::{Tshark, UDP_PORT, ethernet, fields_of_pdml, udp, vlan};
use common::fields::{self, with_each_message};
use common::random::Random;
use common::stock::Stock;
use common::{frame, frame_with, length, lua, samples, seal, unsealed};
use thinwire_wire::*;

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;

/// Fields that several messages share carry no message's name.
const SHARED: [&str; 9] = [
    "slot",
    "sequence",
    "attachment",
    "generation",
    "transaction",
    "nonce",
    "status",
    "verifier",
    "cookie",
];

fn golden(name: &str) -> Vec<u8> {
    samples::frames().into_iter().find(|(n, _)| *n == name).expect("a frame of that name").1
}

/// Damages a frame and repairs its checksum.
fn damaged(name: &str, damage: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = golden(name);
    damage(&mut bytes);
    seal(&mut bytes);
    bytes
}

/// Why a receiver refuses a frame, or nothing.
fn verdict(bytes: &[u8]) -> &'static str {
    // What a key hides is not looked at without it.
    if let Ok(header) = Header::parse(bytes, bytes.len())
        && header.suite != SUITE_CRC32C
    {
        return "";
    }
    unsealed(bytes).map_or_else(FrameError::name, |_| "")
}

/// What is a table in the code is one in the script, and says the same.
#[test]
fn its_tables_are_those_of_the_code() {
    let source = lua::source();
    let screaming = |name: String| {
        let spaced =
            name.chars().flat_map(|c| c.is_uppercase().then_some('_').into_iter().chain([c]));
        spaced.skip(1).collect::<String>().to_uppercase()
    };
    let same = |table: &str, code: Vec<(u64, String)>| {
        assert_eq!(lua::names(&source, table), code.into_iter().collect(), "{table}");
    };
    same("KINDS", Kind::ALL.iter().map(|k| (*k as u64, screaming(format!("{k:?}")))).collect());
    let operation = |op: &OpCode| (*op as u64, screaming(format!("{op:?}")));
    same("OPERATIONS", OpCode::ALL.iter().map(operation).collect());
    same(
        "STATUSES",
        Status::ALL.iter().map(|s| (*s as u64, screaming(format!("{s:?}")))).collect(),
    );
    let code = |(name, code): &(&str, u8)| (u64::from(*code), name.to_string());
    same("CLOCK_KINDS", clock_kind::ALL.iter().map(code).collect());
    let event = |(name, code): &(&str, u16)| (u64::from(*code), name.to_string());
    same("EVENTS", event_code::ALL.iter().map(event).collect());
    for (table, all) in [
        ("OP_FLAGS", op_flags::ALL),
        ("ATTACH_FLAGS", attach_flags::ALL),
        ("FEATURES", feature::ALL),
    ] {
        assert_eq!(lua::bits(&source, table), all.iter().map(code).collect(), "{table}");
    }
    let rows = lua::messages(&source);
    assert_eq!(rows.len(), MESSAGES.len());
    for (row, (number, name, kind, size)) in MESSAGES.iter().zip(rows) {
        let known = [(row.kind as u8).to_string(), screaming(format!("{:?}", row.kind))];
        assert!(known.contains(&kind), "{name}: {kind}");
        let bytes = if row.bytes == 0 { "nil".to_string() } else { row.bytes.to_string() };
        assert_eq!((row.number, row.name, bytes), (number, name.as_str(), size));
    }
}

#[test]
fn every_field_of_every_message_is_shown() {
    let Some(tshark) = Tshark::find("fields") else { return };
    let (mut packets, mut expected) = (Vec::new(), Vec::new());
    with_each_message(|row, message, bytes| {
        let payload = match message {
            Message::Data(d) => samples::payload(d.length as usize),
            _ => vec![],
        };
        let bytes = frame(Header::new(message.kind()), bytes, &payload);
        let packet = ethernet(&bytes);
        let parsed = packet[ETHERNET..].to_vec();
        let parsed = Frame::parse(&parsed).unwrap();
        let message = parsed.messages().next().unwrap();
        expected.push((row.name.to_lowercase(), fields::of(&message)));
        packets.push(packet);
    });
    let text = tshark.run(&packets, usize::MAX, &["-T", "pdml"]);
    let shown = fields_of_pdml(&text);
    assert_eq!(shown.len(), packets.len());
    for ((message, fields), (shown, packet)) in expected.iter().zip(shown.iter().zip(&packets)) {
        let mut after = ETHERNET + HEADER_BYTES + 3;
        for (name, value) in fields {
            let Some(value) = value else { continue };
            let full = if SHARED.contains(name) {
                format!("thinwire.{name}")
            } else {
                format!("thinwire.{message}.{name}")
            };
            let field = shown.iter().find(|f| f.name == full);
            let field = field.unwrap_or_else(|| panic!("{message}: {full} is shown"));
            assert_eq!(field.value, *value, "{full}");
            assert_eq!(packet[field.at..field.at + value.len()], *value, "{full}");
            assert!(field.at > after, "{full} stands behind the field before it");
            after = field.at;
        }
        assert!(shown.iter().all(|f| f.name != "thinwire.refused"), "{message} is well formed");
    }
}

#[test]
fn the_header_is_shown() {
    let Some(tshark) = Tshark::find("header") else { return };
    let bytes = golden("session-empty");
    let text = tshark.run(&[ethernet(&bytes)], usize::MAX, &["-T", "pdml"]);
    let shown = fields_of_pdml(&text).remove(0);
    let places = [
        ("version", 0, 1),
        ("kind", 1, 1),
        ("suite", 2, 1),
        ("key_phase", 3, 1),
        ("length", 4, 2),
        ("data_offset", 6, 2),
        ("session", 8, 8),
        ("packet_number", 16, 8),
        ("epoch", 24, 4),
        ("messages_end", 28, 2),
        ("path", 30, 1),
        ("tag", TAG_AT, TAG_BYTES),
        ("flags", 48, 1),
        ("ack_path", 49, 1),
        ("ack_delay", 50, 2),
        ("credit_slots", 52, 4),
        ("ack_largest", 56, 8),
        ("ack_bitmap", 64, 8),
        ("credit_bytes", 72, 8),
    ];
    for (name, at, width) in places {
        let full = format!("thinwire.{name}");
        let field = shown.iter().find(|f| f.name == full);
        let field = field.unwrap_or_else(|| panic!("{full} is shown"));
        assert_eq!(field.at, ETHERNET + at, "{full}");
        assert_eq!(field.value, bytes[at..at + width], "{full}");
    }
}

#[test]
fn all_carriers_are_recognised() {
    let Some(tshark) = Tshark::find("carriers") else { return };
    let bytes = golden("session-write");
    let packets = [
        ethernet(&bytes),
        vlan(7, &bytes),
        udp(50_000, UDP_PORT, &bytes),
        udp(UDP_PORT, 50_000, &bytes),
        udp(50_000, 50_001, &bytes),
    ];
    let rows = tshark.columns(&packets, &["_ws.col.Protocol", "thinwire.request.op", "vlan.id"]);
    let thinwire = |vlan: &str| vec!["Thinwire".to_string(), "2".into(), vlan.into()];
    assert_eq!(rows[0], thinwire(""));
    assert_eq!(rows[1], thinwire("7"));
    assert_eq!(rows[2], thinwire(""));
    assert_eq!(rows[3], thinwire(""));
    assert_eq!(rows[4][0], "UDP", "other ports are somebody else's");
}

#[test]
fn other_ports_and_types_can_be_set() {
    let Some(tshark) = Tshark::find("settings") else { return };
    let bytes = golden("session-write");
    let mut packet = ethernet(&bytes);
    packet[12..14].copy_from_slice(&0x88b6u16.to_be_bytes());
    let packets = [packet, udp(50_000, 4000, &bytes)];
    let settings = ["-o", "thinwire.ethertype:34998", "-o", "thinwire.udp_port:4000"];
    let print = ["-T", "fields", "-e", "thinwire.kind"];
    let text = tshark.run(&packets, usize::MAX, &[&settings[..], &print].concat());
    assert_eq!(text, "1\n1\n");
    assert_eq!(tshark.run(&packets, usize::MAX, &print), "\n\n");
}

#[test]
fn the_summary_tells_the_frame() {
    let Some(tshark) = Tshark::find("summary") else { return };
    let mut data = Vec::new();
    DataHeader { slot: 3, sequence: 5, offset: 512, length: 1024 }.emit(&mut data);
    Complete { slot: 3, status: 0, sequence: 5, verifier: 1, length: 1536 }.emit(&mut data);
    let header = Header { session: 1, packet_number: 9, path: 1, ..Header::new(Kind::Session) };
    let feedback = Feedback { flags: flags::ACK, ack_largest: 70, ..Feedback::default() };
    let frames = [
        frame_with(header, feedback, &data, &samples::payload(1024)),
        golden("hello"),
        golden("welcome"),
        golden("refuse"),
        golden("discover"),
        golden("offer"),
        golden("probe"),
        golden("unknown-session"),
        golden("session-skip"),
        damaged("session-skip", |f| f[HEADER_BYTES + 1] = 0),
    ];
    let rows = tshark.columns(&frames.map(|f| ethernet(&f)), &["_ws.col.Info"]);
    let expected = [
        "SESSION #9 path 1 ack 0#70 | DATA 3:5 512+1024; COMPLETE 3:5 OK",
        "HELLO laptop asks for node1/disk0",
        "WELCOME epoch 168496141, 384 slots",
        "REFUSE INSECURE this target demands keys",
        "DISCOVER everybody",
        "OFFER by node1, 3 exports: disk0 scratch",
        "PROBE #10 path 1 1400 bytes",
        "UNKNOWN_SESSION 0102030405060708",
        "SESSION #9 path 0 | PING",
        "refused: message-unknown | SESSION #9 path 0",
    ];
    assert_eq!(rows.concat(), expected);
}

#[test]
fn bits_texts_and_addresses_are_shown() {
    let Some(tshark) = Tshark::find("values") else { return };
    let packets = ["session-all", "welcome", "hello", "offer"].map(|n| ethernet(&golden(n)));
    let rows = tshark.columns(
        &packets,
        &[
            "thinwire.request.op_flags.fua",
            "thinwire.request.op_flags.no_hole",
            "thinwire.attach.flags.resume",
            "thinwire.attached.features.discard",
            "thinwire.attached.features.read_only",
            "thinwire.attach.export",
            "thinwire.attach_refused.text",
            "thinwire.ack_ranges.last",
            "thinwire.message",
        ],
    );
    let plain = MESSAGES.iter().filter(|m| m.kind == Kind::Session && m.number != Data::TYPE);
    let messages = plain.map(|m| m.name).collect::<Vec<_>>().join(",");
    let true_or_false = |s: &str| s.replace("True", "1").replace("False", "0");
    let bits: Vec<String> = rows[0][..5].iter().map(|s| true_or_false(s)).collect();
    assert_eq!(bits, ["1", "0", "1", "1", "0"]);
    assert_eq!(
        rows[0][5..],
        ["disk0", "held by café", "1234605616436508552,47", &messages].map(str::to_string)
    );
    let rows = tshark.columns(
        &packets,
        &[
            "thinwire.welcome.mac",
            "thinwire.welcome.ipv4",
            "thinwire.welcome.ipv6",
            "thinwire.welcome.port",
            "thinwire.welcome.sim",
            "thinwire.offer.node",
        ],
    );
    let addresses = ["02:11:22:33:44:55", "10.0.0.2", "fe80::2", "34997,34997", "168496141", ""];
    assert_eq!(rows[1], addresses);
    let rows = tshark.columns(&packets, &["thinwire.hello.name", "thinwire.offer.export"]);
    assert_eq!(rows[2], ["laptop", ""]);
    assert_eq!(rows[3], ["", "disk0,scratch"]);
}

#[test]
fn payload_gap_and_padding_are_shown_where_they_are() {
    let Some(tshark) = Tshark::find("places") else { return };
    let bytes = golden("session-read");
    let mut padded = golden("session-skip");
    padded.extend_from_slice(&[0; 20]);
    let text = tshark.run(
        &[ethernet(&bytes), ethernet(&padded), ethernet(&golden("probe"))],
        usize::MAX,
        &["-T", "pdml"],
    );
    let shown = fields_of_pdml(&text);
    let find = |packet: usize, name: &str| -> Vec<(usize, usize)> {
        let all = shown[packet].iter().filter(|f| f.name == format!("thinwire.{name}"));
        all.map(|f| (f.at - ETHERNET, f.value.len())).collect()
    };
    assert_eq!(find(0, "payload"), [(192, 512), (704, 1024)]);
    let end = HEADER_BYTES + 2 * DataHeader::BYTES + Complete::BYTES;
    assert_eq!(find(0, "gap"), [(end, DATA_OFFSET - end)]);
    assert_eq!(find(1, "padding"), [(padded.len() - 20, 20)]);
    assert_eq!(find(2, "probe_padding"), [(100, 1300)]);
    assert!(find(1, "refused").is_empty());
}

/// The start of a long frame is shown, and nothing is called wrong that is only missing.
#[test]
fn captures_that_cut_frames_are_no_errors() {
    let Some(tshark) = Tshark::find("cut") else { return };
    let packets = [ethernet(&golden("session-read"))];
    for snap in [60, 100, 200, 400] {
        let print = ["-T", "fields", "-e", "thinwire.refused", "-e", "_ws.malformed"];
        assert_eq!(tshark.run(&packets, snap, &print), "\t\n", "{snap}");
        let text = tshark.run(&packets, snap, &["-V"]);
        assert!(text.contains("holds only the start of this frame"), "{snap}: {text}");
    }
}

/// Damaged frames of all sorts: the script never fails, and says what the gate says.
#[test]
fn refusals_are_those_of_the_gate() {
    let Some(tshark) = Tshark::find("refusals") else { return };
    let (mut random, stock) = (Random(7), Stock::new());
    let mut frames: Vec<Vec<u8>> = Vec::new();
    while frames.len() < 6000 {
        let mut bytes = stock.next(&mut random);
        if bytes.is_empty() {
            continue;
        }
        // Most get a right checksum, so that what is behind it is looked at.
        if let Some(length) = length(&bytes)
            && !random.once_in(10)
        {
            seal(&mut bytes[..length]);
        }
        frames.push(bytes);
    }
    let packets: Vec<Vec<u8>> = frames
        .iter()
        .enumerate()
        .map(|(i, f)| if i % 2 == 0 { ethernet(f) } else { udp(50_000, UDP_PORT, f) })
        .collect();
    let rows = tshark.columns(
        &packets,
        &["thinwire.refused", "_ws.malformed", "_ws.lua.error", "thinwire.expert.refused"],
    );
    let mut seen = std::collections::BTreeMap::<&str, u32>::new();
    for (bytes, row) in frames.iter().zip(&rows) {
        let expected = verdict(bytes);
        assert_eq!(row[0], expected, "{bytes:02x?}");
        assert_eq!((row[1].as_str(), row[2].as_str()), ("", ""), "{bytes:02x?}");
        assert_eq!(row[3].is_empty(), expected.is_empty(), "{bytes:02x?}");
        *seen.entry(expected).or_default() += 1;
    }
    let all = FrameError::ALL.into_iter().filter(|&e| e != FrameError::Forged);
    for reason in all.map(FrameError::name).chain([""]) {
        assert!(seen.get(reason).is_some_and(|&n| n > 5), "{reason:?} was seen: {seen:?}");
    }
    let text = tshark.run(&packets, usize::MAX, &["-V"]);
    for wrong in ["Lua Error", "Malformed Packet", "Dissector bug"] {
        assert!(!text.contains(wrong), "{wrong}");
    }
}

/// What is a text and what is not, at the edges of UTF-8.
#[test]
fn texts_are_judged_as_the_gate_judges_them() {
    let Some(tshark) = Tshark::find("texts") else { return };
    let texts: [&[u8]; 20] = [
        b"plain",
        b"",
        "é€😀\u{10ffff}\u{ffff}".as_bytes(),
        b"\x1f",
        b"\x7f",
        b"\xc2\x80",
        b"\xc2\x9f",
        b"\xc2\xa0",
        b"\xc1\xbf",
        b"\xdf\xbf",
        b"\xe0\x9f\xbf",
        b"\xe0\xa0\x80",
        b"\xed\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\x80",
        b"\xe2\x82",
        b"\xc3(",
    ];
    let mut frames: Vec<Vec<u8>> = texts.map(refusal).to_vec();
    frames.push(refusal(&[b'x'; TEXT_BYTES_MAX]));
    frames.push(refusal(&[b'x'; TEXT_BYTES_MAX + 1]));
    let packets: Vec<Vec<u8>> = frames.iter().map(|f| ethernet(f)).collect();
    let rows = tshark.columns(&packets, &["thinwire.refused"]);
    let expected: Vec<&str> = frames.iter().map(|f| verdict(f)).collect();
    assert_eq!(rows.concat(), expected);
    assert_eq!(expected.iter().filter(|v| v.is_empty()).count(), 8);
}

/// A REFUSE with any bytes as its text.
fn refusal(text: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    Refuse { nonce: 1, status: 1, text: "" }.emit(&mut message);
    message.truncate(14);
    message.push(text.len() as u8);
    message.extend_from_slice(text);
    message.resize(message.len().next_multiple_of(4), 0);
    let length = message.len() as u16;
    message[2..4].copy_from_slice(&length.to_be_bytes());
    frame(Header::new(Kind::Refuse), &message, &[])
}

/// The filters in the how-to are understood, and find what they say.
#[test]
fn the_filters_of_the_document_work() {
    let Some(tshark) = Tshark::find("filters") else { return };
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wireshark.md");
    let text = std::fs::read_to_string(document).unwrap();
    let filters: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(filter, _)| filter)
        .collect();
    assert!(filters.len() >= 5);
    let mut packets: Vec<Vec<u8>> =
        samples::frames().iter().map(|(_, bytes)| ethernet(bytes)).collect();
    let mut request = Vec::new();
    Complete { slot: 5, status: 1, sequence: 12, verifier: 0, length: 0 }.emit(&mut request);
    packets.push(ethernet(&frame(Header::new(Kind::Session), &request, &[])));
    let mut broken = golden("hello");
    broken[100] ^= 1;
    packets.push(ethernet(&broken));
    for filter in filters {
        let found = tshark.run(&packets, usize::MAX, &["-Y", filter]).lines().count();
        assert!(found > 0 && found < packets.len(), "{filter} finds {found}");
    }
}
