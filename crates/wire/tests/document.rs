//! `docs/protocol.md` against the code: offsets, widths, numbers and names in its tables are what the
//! crate writes. The document is normative and the code is what runs; this keeps them one.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{fields, fields::with_each_message, samples};
use thinwire_wire::*;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");

/// A table with the headings above it.
struct Table {
    section: String,
    subsection: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

struct Document {
    text: String,
    sections: Vec<String>,
    subsections: Vec<String>,
    tables: Vec<Table>,
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().trim_matches('`').to_string()).collect()
}

fn read() -> Document {
    let text = std::fs::read_to_string(DOCUMENT).expect("the protocol document is there");
    let (mut sections, mut subsections, mut tables) = (vec![], vec![], Vec::<Table>::new());
    let mut in_table = false;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push(title.to_string());
            subsections.push(String::new());
        } else if let Some(title) = line.strip_prefix("### ") {
            subsections.push(title.to_string());
        } else if line.starts_with("|---") {
            // The line under a table's head.
        } else if line.starts_with('|') {
            if in_table {
                tables.last_mut().expect("begun").rows.push(cells(line));
            } else {
                in_table = true;
                tables.push(Table {
                    section: sections.last().cloned().unwrap_or_default(),
                    subsection: subsections.last().cloned().unwrap_or_default(),
                    columns: cells(line),
                    rows: vec![],
                });
            }
            continue;
        }
        in_table &= line.starts_with("|---");
    }
    subsections.retain(|title| !title.is_empty());
    Document { text, sections, subsections, tables }
}

impl Document {
    /// The only table of that section with that column.
    fn table(&self, section: &str, column: &str) -> &Table {
        let mut found = self
            .tables
            .iter()
            .filter(|t| t.section == section && t.columns.iter().any(|c| c == column));
        let table = found.next().unwrap_or_else(|| panic!("{section} has a table of {column}"));
        assert!(found.next().is_none(), "{section} has one table of {column}");
        table
    }

    /// The sentence under the title of a message.
    fn sentence(&self, title: &str) -> &str {
        let start = self.text.find(&format!("### {title}\n")).expect("it is there");
        self.text[start..].lines().nth(2).expect("a sentence follows")
    }

    /// Number and name, the first two cells of each row.
    fn numbered(&self, section: &str, column: &str) -> BTreeMap<u64, String> {
        let rows = &self.table(section, column).rows;
        rows.iter().map(|row| (row[0].parse().expect("a number"), row[1].clone())).collect()
    }
}

/// `ProbeReply` as `PROBE_REPLY`.
fn screaming(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_uppercase());
    }
    out
}

#[test]
fn the_sections_that_code_cites_are_there() {
    let document = read();
    for title in [
        "Carrier",
        "Frame header",
        "Frame kinds",
        "Messages",
        "Refused frames",
        "Handshake",
        "Addresses",
        "Discovery",
        "Paths and probing",
        "Acknowledgement and loss",
        "Congestion",
        "Slots",
        "Credits",
        "Attachments",
        "Writer generations",
        "Restart and replay",
        "Shutdown",
        "Rules that keep data",
    ] {
        assert!(document.sections.iter().any(|s| s == title), "{title}");
    }
}

/// A field of the header by its name: sets all its bits.
type Setter = fn(&mut Header, &mut Feedback);

#[test]
fn header_fields_are_where_the_document_says() {
    let fields: BTreeMap<&str, Setter> = BTreeMap::from([
        ("kind", (|h, _| h.kind = Kind::Hello) as Setter),
        ("suite", |h, _| h.suite = u8::MAX),
        ("key_phase", |h, _| h.key_phase = u8::MAX),
        ("length", |h, _| h.length = u16::MAX),
        ("data_offset", |h, _| h.data_offset = u16::MAX),
        ("session", |h, _| h.session = u64::MAX),
        ("packet_number", |h, _| h.packet_number = u64::MAX),
        ("epoch", |h, _| h.epoch = u32::MAX),
        ("messages_end", |h, _| h.messages_end = u16::MAX),
        ("path", |h, _| h.path = u8::MAX),
        ("flags", |_, f| f.flags = u8::MAX),
        ("ack_path", |_, f| f.ack_path = u8::MAX),
        ("ack_delay", |_, f| f.ack_delay = u16::MAX),
        ("credit_slots", |_, f| f.credit_slots = u32::MAX),
        ("ack_largest", |_, f| f.ack_largest = u64::MAX),
        ("ack_bitmap", |_, f| f.ack_bitmap = u64::MAX),
        ("credit_bytes", |_, f| f.credit_bytes = u64::MAX),
    ]);
    let write = |header: &Header, feedback: &Feedback| {
        let mut out = vec![0xee; HEADER_BYTES];
        header.write(&mut out);
        feedback.write(&mut out);
        out
    };
    let fresh = || (Header::new(Kind::Session), Feedback::default());
    let blank = write(&fresh().0, &fresh().1);
    let (mut header, mut feedback) = fresh();
    fields.values().for_each(|set| set(&mut header, &mut feedback));
    let full = write(&header, &feedback);

    let document = read();
    let mut at = 0;
    let mut named = BTreeSet::new();
    for row in &document.table("Frame header", "field").rows {
        let (offset, width): (usize, usize) = (row[0].parse().unwrap(), row[1].parse().unwrap());
        assert_eq!(offset, at, "{}: no gap, no overlap", row[2]);
        at += width;
        match row[2].as_str() {
            "version" => assert_eq!((width, full[offset]), (1, VERSION)),
            "tag" => assert_eq!((offset, width, at), (TAG_AT, TAG_BYTES, PUBLIC_BYTES)),
            "reserved" => {
                assert!(full[offset..at].iter().all(|&b| b == 0), "at {offset}");
            }
            name => {
                let set = fields.get(name).unwrap_or_else(|| panic!("the code has no {name}"));
                let (mut header, mut feedback) = fresh();
                set(&mut header, &mut feedback);
                let bytes = write(&header, &feedback);
                let changed: Vec<usize> =
                    (0..HEADER_BYTES).filter(|&i| bytes[i] != blank[i]).collect();
                assert_eq!(changed, (offset..at).collect::<Vec<_>>(), "{name}");
                named.insert(name.to_string());
            }
        }
    }
    assert_eq!(at, HEADER_BYTES);
    assert_eq!(named.len(), fields.len(), "the document misses fields");
}

#[test]
fn kinds_have_the_numbers_that_the_document_says() {
    let code: BTreeMap<u64, String> =
        Kind::ALL.iter().map(|k| (*k as u64, screaming(&format!("{k:?}")))).collect();
    let document = read();
    assert_eq!(document.numbered("Frame kinds", "kind"), code);
    // Every kind but SESSION has one message, which its name tells.
    for row in &document.table("Frame kinds", "kind").rows {
        let of_kind = |m: &&MessageRow| m.kind as u64 == row[0].parse::<u64>().unwrap();
        let messages: Vec<&str> = MESSAGES.iter().filter(of_kind).map(|m| m.name).collect();
        assert!(messages == [row[1].as_str()] || row[1] == "SESSION", "{row:?}: {messages:?}");
        assert!(row[1] == "SESSION" || row[3].contains(&format!("exactly one {}", row[1])));
    }
}

#[test]
fn messages_are_laid_out_as_the_document_says() {
    let document = read();
    let mut titles = BTreeSet::new();
    with_each_message(|known, message, bytes| {
        let title = format!("0x{:02x} {}", bytes[0], known.name);
        assert!(document.subsections.contains(&title), "{title} is documented");
        assert_eq!(known.bytes, if known.bytes == 0 { 0 } else { bytes.len() }, "{title}");
        titles.insert(title.clone());
        let table = document.tables.iter().find(|t| t.subsection == title);
        let rows = table.map_or(&[][..], |t| &t.rows);
        let mut expected = fields::of(message).into_iter();
        let mut at = 4;
        for row in rows {
            let field = row[2].as_str();
            let place = row[0].parse::<usize>().ok().zip(row[1].parse::<usize>().ok());
            if let Ok(offset) = row[0].parse::<usize>() {
                assert_eq!(offset, at, "{title}: {field} follows without a gap");
            }
            if field == "reserved" {
                let (offset, width) = place.expect("reserved fields are fixed");
                assert!(bytes[offset..offset + width].iter().all(|&b| b == 0), "{title}");
                at += width;
                continue;
            }
            let (known, value) = expected.next().unwrap_or_else(|| panic!("{title}: {field}?"));
            assert_eq!(known, field, "{title}");
            if let (Some((offset, width)), Some(value)) = (place, value) {
                assert_eq!(bytes[offset..offset + width], value, "{title}: {field}");
                at += width;
            }
        }
        assert_eq!(expected.next(), None, "{title}: a field is not documented");
        let sentence = document.sentence(&title);
        check_size(known, sentence, at, bytes);
        let told = match known.sender {
            Sender::Initiator => "Initiator to ",
            Sender::Target => "Target to ",
            Sender::Both => "Both ways",
        };
        assert!(sentence.starts_with(told), "{title}: {told:?}");
    });
    // 0x0b-like titles in the document and nothing else.
    let documented: BTreeSet<String> = document.subsections.iter().cloned().collect();
    assert_eq!(documented, titles);
    assert_eq!(documented.len(), MESSAGES.len());
}

/// The size in the sentence under the title, where there is one: in that of a message of fixed size there is.
fn check_size(known: &MessageRow, sentence: &str, at: usize, bytes: &[u8]) {
    let words: Vec<&str> = sentence.split([' ', ',']).filter(|w| !w.is_empty()).collect();
    let size = words.windows(2).find(|w| matches!(w[1], "bytes" | "bytes:"));
    let size = size.and_then(|w| w[0].parse::<usize>().ok());
    if known.number == AckRanges::TYPE {
        assert_eq!((size, bytes.len()), (Some(AckRanges::bytes(0)), AckRanges::bytes(2)));
    } else if known.number == Sums::TYPE {
        assert_eq!((size, bytes.len()), (Some(Sums::bytes(0)), Sums::bytes(3)));
    } else if known.bytes > 0 {
        assert_eq!((size, at), (Some(known.bytes), known.bytes), "{}", known.name);
    }
}

#[test]
fn numbers_are_what_the_document_says() {
    let document = read();
    let numbered = |column: &str| document.numbered("Numbers", column);

    let operations = OpCode::ALL.iter().map(|op| (*op as u64, screaming(&format!("{op:?}"))));
    assert_eq!(numbered("operation"), operations.collect());
    let statuses = Status::ALL.iter().map(|s| (*s as u64, screaming(&format!("{s:?}"))));
    assert_eq!(numbered("status"), statuses.collect());
    assert_eq!(Status::from_number(u16::MAX), Status::Io, "what is not known");

    let bits = |all: &[(&str, u8)]| -> BTreeMap<u64, String> {
        all.iter().map(|(name, bit)| (bit.trailing_zeros().into(), name.to_string())).collect()
    };
    assert_eq!(numbered("operation flag"), bits(op_flags::ALL));
    assert_eq!(numbered("attach flag"), bits(attach_flags::ALL));
    assert_eq!(numbered("feature"), bits(feature::ALL));

    let codes = |all: &mut dyn Iterator<Item = (&str, u64)>| -> BTreeMap<u64, String> {
        all.map(|(name, code)| (code, name.to_string())).collect()
    };
    let mut events = event_code::ALL.iter().map(|(name, code)| (*name, u64::from(*code)));
    assert_eq!(numbered("event"), codes(&mut events));
    let mut kinds = clock_kind::ALL.iter().map(|(name, code)| (*name, u64::from(*code)));
    assert_eq!(numbered("clock kind"), codes(&mut kinds));
}

#[test]
fn address_families_are_what_the_document_says() {
    let document = read();
    let table = document.table("Numbers", "family");
    let families = [
        ("MAC", Address::Mac([9; 6])),
        ("V4", Address::V4([9; 4], 9)),
        ("V6", Address::V6([9; 16], 9)),
        ("SIM", Address::Sim(9)),
    ];
    assert_eq!(table.rows.len(), families.len());
    let (_, Message::Welcome(welcome)) =
        *samples::messages().iter().find(|(name, _)| *name == "welcome").unwrap()
    else {
        panic!("a WELCOME")
    };
    for (row, (name, address)) in table.rows.iter().zip(families) {
        let mut bytes = Vec::new();
        let addresses = [address];
        Welcome { addresses: Addresses::new(&addresses), ..welcome }.emit(&mut bytes);
        // Behind the count.
        let family = bytes[57];
        // "4 of IPv4 address, 2 of UDP port": the numbers outside of words add up.
        let width: usize =
            row[2].split([' ', ':', ',']).filter_map(|word| word.parse::<usize>().ok()).sum();
        assert_eq!((row[0].as_str(), row[1].as_str()), (family.to_string().as_str(), name));
        assert_eq!(bytes.len(), (58 + width).next_multiple_of(4), "{name}");
    }
}

#[test]
fn reasons_are_what_the_document_says() {
    let document = read();
    let tables: Vec<&Table> =
        document.tables.iter().filter(|t| t.section == "Refused frames").collect();
    let names: Vec<&str> = tables[0].rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, FrameError::ALL.map(FrameError::name));
    // The reasons named in the tables of fields exist.
    let known: BTreeSet<&str> = document
        .tables
        .iter()
        .filter(|t| t.section == "Refused frames")
        .flat_map(|t| t.rows.iter().map(|row| row[0].as_str()))
        .collect();
    for piece in document.text.split("efused as `").skip(1) {
        let name = piece.split('`').next().unwrap();
        assert!(known.contains(name), "{name} is a reason");
    }
}

#[test]
fn limits_are_what_the_document_says() {
    let text = read().text.replace('\n', " ");
    for sentence in [
        format!("A *name* is a text of at most {NAME_BYTES_MAX} bytes"),
        format!("an *explanation* of at most {TEXT_BYTES_MAX}."),
        format!("No frame is longer than {FRAME_BYTES_MAX} bytes"),
        format!("A frame is a header of {HEADER_BYTES} bytes"),
        format!("sends frames with payload at a data offset of {DATA_OFFSET}"),
        format!("ranges, 1 to {ACK_RANGES_MAX};"),
        format!("pieces, 1 to {SUMS_MAX};"),
        format!("stand side by side, 0 to {};", MEMBERS_MAX - 1),
        format!("number of addresses, 0 to {WELCOME_ADDRESSES_MAX};"),
        format!("largest frame that its link carries, {BASE_FRAME_BYTES_MIN} and up"),
        format!("longest READ or WRITE in bytes, {UNIT_BYTES} and up"),
        format!("a multiple of {UNIT_BYTES}; else dropped as `range`"),
        format!("The Thinwire protocol, version {VERSION}"),
    ] {
        assert!(text.contains(&sentence), "{sentence}");
    }
}
