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
type Setter = fn(&mut Header);

#[test]
fn header_fields_are_where_the_document_says() {
    let fields: BTreeMap<&str, Setter> = BTreeMap::from([
        ("kind", (|h| h.kind = Kind::Hello) as Setter),
        ("flags", |h| h.flags = u16::MAX),
        ("length", |h| h.length = u16::MAX),
        ("data_offset", |h| h.data_offset = u16::MAX),
        ("session", |h| h.session = u64::MAX),
        ("epoch", |h| h.epoch = u32::MAX),
        ("packet_number", |h| h.packet_number = u64::MAX),
        ("path", |h| h.path = u8::MAX),
        ("ack_path", |h| h.ack_path = u8::MAX),
        ("ack_delay", |h| h.ack_delay = u16::MAX),
        ("messages_end", |h| h.messages_end = u16::MAX),
        ("ack_largest", |h| h.ack_largest = u64::MAX),
        ("ack_bitmap", |h| h.ack_bitmap = u64::MAX),
        ("credit_slots", |h| h.credit_slots = u32::MAX),
        ("credit_bytes", |h| h.credit_bytes = u64::MAX),
    ]);
    let write = |header: &Header| {
        let mut out = vec![0xee; HEADER_BYTES];
        header.write(&mut out);
        out
    };
    let blank = write(&Header::new(Kind::Session));
    let mut full = Header::new(Kind::Session);
    fields.values().for_each(|set| set(&mut full));
    let full = write(&full);

    let document = read();
    let mut at = 0;
    let mut named = BTreeSet::new();
    for row in &document.table("Frame header", "field").rows {
        let (offset, width): (usize, usize) = (row[0].parse().unwrap(), row[1].parse().unwrap());
        assert_eq!(offset, at, "{}: no gap, no overlap", row[2]);
        at += width;
        match row[2].as_str() {
            "version" => assert_eq!((width, full[offset]), (1, VERSION)),
            "checksum" => {
                let frame = &samples::frames().swap_remove(0).1;
                let (sum, before, after) = checksum_split(frame).unwrap();
                assert_eq!(frame[offset..at], sum.to_be_bytes());
                assert_eq!((before.len(), frame.len() - after.len()), (offset, at));
            }
            "reserved" => assert!(full[offset..at].iter().all(|&b| b == 0), "at {offset}"),
            name => {
                let set = fields.get(name).unwrap_or_else(|| panic!("the code has no {name}"));
                let mut header = Header::new(Kind::Session);
                set(&mut header);
                let bytes = write(&header);
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
    let kinds = [
        Kind::Session,
        Kind::Hello,
        Kind::Welcome,
        Kind::Refuse,
        Kind::Discover,
        Kind::Offer,
        Kind::Probe,
        Kind::ProbeReply,
        Kind::UnknownSession,
        Kind::Retry,
    ];
    let code: BTreeMap<u64, String> =
        kinds.iter().map(|k| (*k as u64, screaming(&format!("{k:?}")))).collect();
    assert_eq!(read().numbered("Frame kinds", "kind"), code);
}

#[test]
fn messages_are_laid_out_as_the_document_says() {
    let document = read();
    let mut titles = BTreeSet::new();
    with_each_message(|name, message, bytes| {
        let title = format!("0x{:02x} {name}", bytes[0]);
        assert!(document.subsections.contains(&title), "{title} is documented");
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
        check_size(&document, &title, at, bytes);
    });
    // 0x0b-like titles in the document and nothing else.
    let documented: BTreeSet<String> = document.subsections.iter().cloned().collect();
    assert_eq!(documented, titles);
}

/// The size in the sentence under the title, where there is one.
fn check_size(document: &Document, title: &str, at: usize, bytes: &[u8]) {
    let start = document.text.find(&format!("### {title}\n")).expect("found above");
    let sentence = document.text[start..].lines().nth(2).expect("a sentence follows");
    let words: Vec<&str> = sentence.split([' ', ',']).filter(|w| !w.is_empty()).collect();
    let size = words.windows(2).find(|w| matches!(w[1], "bytes" | "bytes:"));
    let Some(size) = size.and_then(|w| w[0].parse::<usize>().ok()) else { return };
    if title.ends_with("ACK_RANGES") {
        assert_eq!((size, bytes.len()), (AckRanges::bytes(0), AckRanges::bytes(2)));
    } else {
        assert_eq!((size, at.next_multiple_of(4)), (bytes.len(), bytes.len()), "{title}");
    }
}

#[test]
fn numbers_are_what_the_document_says() {
    let document = read();
    let numbered = |column: &str| document.numbered("Numbers", column);
    let list = |pairs: &[(u64, &str)]| -> BTreeMap<u64, String> {
        pairs.iter().map(|(n, name)| (*n, name.to_string())).collect()
    };

    let operations = (0..=255u8)
        .filter_map(OpCode::from_number)
        .map(|op| (op as u64, screaming(&format!("{op:?}"))));
    assert_eq!(numbered("operation"), operations.collect());

    // Unknown numbers read as IO: whatever is not IO, and IO itself, is known.
    let statuses = (0..=u16::MAX)
        .map(|n| (n, Status::from_number(n)))
        .filter(|(n, status)| *n == *status as u16)
        .map(|(n, status)| (u64::from(n), screaming(&format!("{status:?}"))));
    assert_eq!(numbered("status"), statuses.collect());

    let bit = |mask: u8| u64::from(mask.trailing_zeros());
    let op_flags = [
        (bit(op_flags::FUA), "FUA"),
        (bit(op_flags::NO_HOLE), "NO_HOLE"),
        (bit(op_flags::ONE_EXTENT), "ONE_EXTENT"),
    ];
    assert_eq!(numbered("operation flag"), list(&op_flags));
    assert_eq!(op_flags::KNOWN.count_ones() as usize, op_flags.len());

    let attach = [
        (bit(attach_flags::READ_ONLY), "READ_ONLY"),
        (bit(attach_flags::TAKE_OVER), "TAKE_OVER"),
        (bit(attach_flags::RESUME), "RESUME"),
    ];
    assert_eq!(numbered("attach flag"), list(&attach));
    assert_eq!(attach_flags::KNOWN.count_ones() as usize, attach.len());

    let features = [
        (bit(feature::READ_ONLY), "READ_ONLY"),
        (bit(feature::DISCARD), "DISCARD"),
        (bit(feature::WRITE_ZEROES), "WRITE_ZEROES"),
        (bit(feature::BLOCK_STATUS), "BLOCK_STATUS"),
    ];
    assert_eq!(numbered("feature"), list(&features));
    assert_eq!(feature::KNOWN.count_ones() as usize, features.len());

    let events = [
        (u64::from(event_code::RESIZE), "RESIZE"),
        (u64::from(event_code::SHUTDOWN), "SHUTDOWN"),
        (u64::from(event_code::FENCED), "FENCED"),
    ];
    assert_eq!(numbered("event"), list(&events));

    let kinds = [
        (u64::from(clock_kind::OFF), "OFF"),
        (u64::from(clock_kind::PHYSICAL), "PHYSICAL"),
        (u64::from(clock_kind::VIRTUAL), "VIRTUAL"),
    ];
    assert_eq!(numbered("clock kind"), list(&kinds));
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
        Welcome { addresses: Addresses::new(&addresses), node: "", ..welcome }.emit(&mut bytes);
        // Behind an empty node name and the count.
        let family = bytes[66];
        // "4 of IPv4 address, 2 of UDP port": the numbers outside of words add up.
        let width: usize =
            row[2].split([' ', ':', ',']).filter_map(|word| word.parse::<usize>().ok()).sum();
        assert_eq!((row[0].as_str(), row[1].as_str()), (family.to_string().as_str(), name));
        assert_eq!(bytes.len(), (67 + width).next_multiple_of(4), "{name}");
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
        format!("number of addresses, 0 to {WELCOME_ADDRESSES_MAX};"),
        format!("largest frame that its link carries, {BASE_FRAME_BYTES_MIN} and up"),
        format!("longest READ or WRITE in bytes, {UNIT_BYTES} and up"),
        format!("a multiple of {UNIT_BYTES}; else dropped as `range`"),
        format!("The Thinwire protocol, version {VERSION}"),
    ] {
        assert!(text.contains(&sentence), "{sentence}");
    }
}
