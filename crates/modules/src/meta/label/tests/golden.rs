//! Labels of each module against the images kept in `tests/golden/labels`, and fields against the tables of
//! `docs/format.md`. `THINWIRE_BLESS=1` writes the images anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;
use crate::{Crypt, CryptState, Integrity, IntegrityState};

/// One of each module, and what else can look another way.
fn images() -> Vec<(&'static str, Label)> {
    let [linear, readonly, mut qos, mut slice, mut stripe, mut top] =
        [("linear", 3), ("readonly", 1), ("qos", 1), ("slice", 1), ("stripe", 4), ("linear", 1)]
            .map(|(module, parts)| sample(module, parts));
    // What is shared with others has never stood in a label.
    let kept = qos.module.options.iter().filter(|option| option.name != "share");
    for (nth, option) in (1..).zip(kept) {
        qos.options.set(option, 1000 * nth);
    }
    slice.options.set(slice.module.option("offset").unwrap(), 4096);
    slice.options.set(slice.module.option("size").unwrap(), MIB);
    slice.whole_bytes = MIB;
    stripe.options.set(stripe.module.option("chunk").unwrap(), 128 << 10);
    stripe.role = 2;
    top.name = "ü".repeat(32);
    top.next_opening = [0x5a; 16];
    let record = WriterRecord::new(0x1122_3344_5566_7788, [0xd0; 16], "node1");
    top.writer = Some(KeptWriter { record, leaves: None });
    let mut over_leaves = sample("stripe", 2);
    (over_leaves.role, over_leaves.state) = (0, vec![7; 30]);
    let leaf = |leaf: u8| LeafGeneration {
        leaf: [leaf; 16],
        generation: 0x0102_0304_0506_0700 + u64::from(leaf),
    };
    let leaves = Some(vec![leaf(0xe1), LeafGeneration::default(), leaf(0xe3)]);
    over_leaves.writer = Some(KeptWriter { record, leaves });
    let mut idle = sample("linear", 2);
    idle.role = 0;
    let record = WriterRecord { idle: 0x0102_0304, ..record };
    idle.writer = Some(KeptWriter { record, leaves: None });
    let mut crypt = sample("crypt", 1);
    crypt.options.set(crypt.module.option("block").unwrap(), 512);
    let sealed = std::array::from_fn(|at| 0x80 + at as u8);
    crypt.state = CryptState::new(512, *b"key's id", *b"random nonce", sealed).encode();
    let mut cache = sample("cache", 1);
    for (nth, option) in (1..).zip(cache.module.options) {
        cache.options.set(option, nth << 20);
    }
    let mut integrity = sample("integrity", 1);
    integrity.state = IntegrityState::new(integrity.whole_bytes).encode();
    let mut cut = sample("stripe", 3);
    (cut.role, cut.cut, cut.cut_begun) = (0, 0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    let mut grown = sample("stripe", 2);
    grown.made_bytes = Some(5 * MIB);
    let mut works = sample("linear", 2);
    works.work = Some(LabelWork {
        pace: WorkPace { is_paused: true, percent: 20 },
        scrubbed_to: Some(0x0102_0304_0506_0708),
    });
    let mut kept = sample("linear", 2);
    kept.state = (1..=41).collect();
    vec![
        ("linear", linear),
        ("readonly", readonly),
        ("qos", qos),
        ("cache", cache),
        ("crypt", crypt),
        ("integrity", integrity),
        ("with-state", kept),
        ("with-cut", cut),
        ("grown", grown),
        ("with-work", works),
        ("slice", slice),
        ("stripe", stripe),
        ("with-writer", top),
        ("with-leaves", over_leaves),
        ("with-idle", idle),
    ]
}

/// Rows of 16 bytes, but those that are all zero.
fn to_hex(image: &LabelImage) -> String {
    let mut out = String::new();
    for (row, line) in image.chunks(16).enumerate().filter(|(_, line)| **line != [0; 16]) {
        out += &format!("{:04x} ", row * 16);
        line.iter().for_each(|byte| out += &format!(" {byte:02x}"));
        out.push('\n');
    }
    out
}

fn from_hex(text: &str) -> LabelImage {
    let mut image = [0; LABEL_BYTES];
    for line in text.lines() {
        let (at, bytes) = line.split_once(' ').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (byte, place) in bytes.split_whitespace().zip(&mut image[at..]) {
            *place = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    image
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

#[test]
fn images_are_those_that_are_kept() {
    let folder = root().join("tests/golden/labels");
    let name = |name: &str| format!("{name}.hex");
    if std::env::var_os("THINWIRE_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (of, label) in images() {
            std::fs::write(folder.join(name(of)), to_hex(&label.encode().unwrap())).unwrap();
        }
    }
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name());
    let found: BTreeSet<_> = files.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(found, images().iter().map(|(of, _)| name(of)).collect());
    for (of, label) in images() {
        let kept = std::fs::read_to_string(folder.join(name(of))).unwrap();
        let image = label.encode().unwrap();
        assert_eq!(to_hex(&image), kept, "{of}: the format has changed");
        assert_eq!(Label::decode(&from_hex(&kept)), Ok(label), "{of}");
    }
    let modules = images().iter().map(|(_, label)| label.module.name).collect::<BTreeSet<_>>();
    // Of mirrors and pools there is no label here; what pools keep has images of its own (`golden/thin`).
    let all = MODULES.iter().map(|module| module.name).chain([Crypt::NAME, Integrity::NAME]);
    assert_eq!(modules, all.collect(), "one of each module");
}

/// Rows of the table of the document that begins with this row, as cells.
fn table(first: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join("../../docs/format.md")).unwrap();
    let at = text.find(first).unwrap_or_else(|| panic!("no row {first}"));
    let rows = text[at..].lines().take_while(|line| line.starts_with('|'));
    let cells =
        |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().into()).collect();
    rows.map(cells).collect()
}

#[test]
fn fields_are_where_the_document_says() {
    let head = [
        MAGIC,
        CHECKSUM,
        VERSION,
        USED,
        INCOMPATIBLE,
        READ_ONLY_COMPATIBLE,
        COMPATIBLE,
        GENERATION,
        super::super::MODULE,
        PART,
        WHOLE,
        NAME,
        OPENING,
        DATA_START,
        DATA_BYTES,
        WHOLE_BYTES,
        ROLE,
        PARTS,
        OPTIONS,
        HAS_WRITER,
        WRITER_NAME_LENGTH,
        CONTENT,
        INCARNATION,
        WRITER_GENERATION,
        WRITER_HOLDER,
        WRITER_NAME,
        NEXT_OPENING,
        OPENINGS,
        WRITER_LEAVES,
        RESERVED,
        WRITER_IDLE,
        STATE_LENGTH,
        RESERVED_BETWEEN,
        CUT,
        CUT_BEGUN,
        MADE_BYTES,
        WORK,
        WORK_PERCENT,
        RESERVED_IN_WORK,
        SCRUBBED_TO,
    ];
    let tables: [(&str, &[Field]); 4] = [
        ("| 0 | 8 | magic |", &head),
        ("| 0 | 16 | part |", &[PART_UUID, PART_BYTES]),
        ("| 0 | 16 | option |", &[OPTION_NAME, OPTION_VALUE]),
        ("| 0 | 16 | leaf |", &[LEAF, LEAF_GENERATION]),
    ];
    for (first, fields) in tables {
        let rows = table(first);
        assert_eq!(rows.len(), fields.len(), "{first}");
        for (row, field) in rows.iter().zip(fields) {
            let here = [field.at.to_string(), field.len.to_string(), field.name.to_owned()];
            assert_eq!(row[..3], here);
        }
    }
    assert!(table("| 0 | 8 | magic |")[0][3].starts_with("54 57 4c 41 42 45 4c 00"));
    assert_eq!(&MAGIC_BYTES, b"\x54\x57\x4c\x41\x42\x45\x4c\x00");
}
