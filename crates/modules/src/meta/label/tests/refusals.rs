//! What is no label, and what is said of it.

use super::*;

/// A label with these bytes at that place is refused so.
#[track_caller]
fn refused(at: usize, bytes: &[u8], says: &str) {
    refused_of(&labelled(), at, bytes, says);
}

#[track_caller]
fn refused_of(image: &LabelImage, at: usize, bytes: &[u8], says: &str) {
    let fault = Label::decode(&with(image, at, bytes)).unwrap_err();
    assert_eq!(fault.to_string(), says, "{fault:?}");
}

/// A stripe of three parts, this one the last, with an option.
fn labelled() -> LabelImage {
    let mut label = sample("stripe", 3);
    label.options.set(label.module.option("chunk").unwrap(), 4096);
    *label.encode().unwrap()
}

#[track_caller]
fn malformed(at: usize, bytes: &[u8], field: &str, why: &str) {
    refused(at, bytes, &format!("says what no label can: its field `{field}` {why}"));
}

#[test]
fn what_is_no_label_is_told_apart() {
    assert_eq!(Label::decode(&[0; LABEL_BYTES]), Err(LabelFault::Zero));
    assert_eq!(LabelFault::Zero.to_string(), "is all zero");
    let mut image = [0; LABEL_BYTES];
    image[LABEL_BYTES - 1] = 1;
    let fault = Label::decode(&image).unwrap_err();
    assert_eq!(fault.to_string(), "begins with 00 00 00 00 00 00 00 00, as no label does");
    let mut image = labelled();
    image[100] ^= 1;
    let fault = Label::decode(&image).unwrap_err().to_string();
    assert!(fault.starts_with("has the checksum 0x"), "{fault}");
    assert!(fault.ends_with("its write was cut off, or its bytes have changed since"), "{fault}");
}

#[test]
fn what_newer_programs_write_is_not_damage() {
    for (at, bytes, says) in [
        (
            VERSION.at,
            &[2, 1][..],
            "is of version 258 of the format, and this program knows 1: use the thinwire that wrote it, or a newer one",
        ),
        (
            VERSION.at,
            &[0],
            "is of version 0 of the format, and this program knows 1: use the thinwire that wrote it, or a newer one",
        ),
        (
            INCOMPATIBLE.at,
            &[5],
            "has incompatible features that this program does not know (bits 0x5): use the thinwire that wrote it, or a newer one",
        ),
    ] {
        refused(at, bytes, says);
        assert!(Label::decode(&with(&labelled(), at, bytes)).unwrap_err().is_newer());
    }
    let known: Vec<_> = Module::all().map(|module| module.name).collect();
    let known = known.join(", ");
    for (bytes, name) in [(&b"tripe\0"[..], "tripe"), (&[255], "\u{fffd}tripe")] {
        let end = "use the thinwire that wrote it, or a newer one";
        let says = format!("is of the module \"{name}\", and this program knows {known}: {end}");
        refused(super::super::MODULE.at, bytes, &says);
        let image = with(&labelled(), super::super::MODULE.at, bytes);
        assert!(Label::decode(&image).unwrap_err().is_newer());
    }
    assert!(!Label::decode(&with(&labelled(), ROLE.at, &[9])).unwrap_err().is_newer());
}

#[test]
fn numbers_have_their_bounds() {
    malformed(GENERATION.at, &[0; 8], "generation", "is 0, and the first is 1");
    malformed(ROLE.at, &[3, 0], "role", "is 3, counted from 0, of 3 parts");
    malformed(USED.at, &[0, 1], "length", "is 256, and the rows end at 496 of 4096");
    malformed(USED.at, &[255, 255], "length", "is 65535, and the rows end at 496 of 4096");
    malformed(PARTS.at, &[0; 4], "parts", "is 0, and stripe takes 1 or more volumes, not 0");
    malformed(
        PARTS.at,
        &[154, 0, 1, 0],
        "parts",
        "is 154, beside 1 options, and a label has 154 rows for both",
    );
    malformed(
        OPTIONS.at,
        &[255, 255],
        "parts",
        "is 3, beside 65535 options, and a label has 154 rows for both",
    );
    malformed(DATA_START.at, &[0; 8], "data start", "is 0, no multiple of 4096 from 1048576 on");
    malformed(
        DATA_START.at,
        &(LABEL_AREA_BYTES - 4096).to_le_bytes(),
        "data start",
        "is 1044480, no multiple of 4096 from 1048576 on",
    );
    malformed(
        DATA_START.at,
        &(LABEL_AREA_BYTES + 512).to_le_bytes(),
        "data start",
        "is 1049088, no multiple of 4096 from 1048576 on",
    );
    malformed(
        DATA_START.at,
        &(u64::MAX - 4095).to_le_bytes(),
        "data bytes",
        "is 8388608, and no offset reaches so far from 18446744073709547520",
    );
    malformed(
        WHOLE_BYTES.at,
        &(24 * MIB + 512).to_le_bytes(),
        "whole bytes",
        "is 25166336, and all parts together have 25165824",
    );
    malformed(WHOLE_BYTES.at, &[0; 8], "whole bytes", "is 0, no multiple of 512 above 0");
    malformed(WHOLE_BYTES.at, &[1], "whole bytes", "is 25165825, no multiple of 512 above 0");
    malformed(row(1) + PART_BYTES.at, &[0; 8], "data bytes", "is 0, no multiple of 512 above 0");
    malformed(
        STATE_LENGTH.at,
        &[1, 4],
        "state length",
        "is 1025, of 1024 at most, and the rows leave 3600",
    );
    malformed(HAS_WRITER.at, &[2], "has writer", "is 2, neither 0 nor 1");
}

#[test]
fn a_part_that_has_grown_was_smaller() {
    let label = Label { made_bytes: Some(4 * MIB), ..sample("stripe", 3) };
    let image = label.encode().unwrap();
    for (made, why) in [
        (0, "is 0, no multiple of 512 above 0"),
        (513, "is 513, no multiple of 512 above 0"),
        (8 * MIB, "is 8388608, and the part has 8388608 after it has grown"),
    ] {
        let fault = Label::decode(&with(&image, MADE_BYTES.at, &made.to_le_bytes())).unwrap_err();
        assert_eq!(fault, LabelFault::malformed("made bytes", why.to_owned()));
        let label = Label { made_bytes: Some(made), ..label.clone() };
        assert_eq!(label.encode().unwrap_err(), fault);
    }
}

#[test]
fn rows_and_head_agree() {
    malformed(
        PART.at,
        &[0x10; 16],
        "part",
        "is 10101010101010101010101010101010, and in row 2 12121212121212121212121212121212",
    );
    malformed(DATA_BYTES.at, &[0, 2], "data bytes", "is 8389120, and in row 2 8388608");
    malformed(row(0), &[0x11; 16], "part", "11111111111111111111111111111111 names two things");
    malformed(WHOLE.at, &[0x11; 16], "part", "11111111111111111111111111111111 names two things");
    malformed(WHOLE.at, &[0; 16], "whole", "is all zero");
    malformed(row(1), &[0; 16], "part", "is all zero");
}

#[test]
fn names_are_names() {
    malformed(NAME.at, &[0xff], "name", "is not UTF-8");
    malformed(NAME.at, &[0; 4], "name", "has 0 bytes, not 1 to 64");
    malformed(NAME.at, b"\x1b[2J", "name", "has control characters: \"\\u{1b}[2J\"");
    let mut label = sample("linear", 1);
    label.name = "a".repeat(65);
    let fault = label.encode().unwrap_err().to_string();
    assert_eq!(fault, "says what no label can: its field `name` has 65 bytes, not 1 to 64");
    label.name = "a".repeat(64);
    assert!(label.encode().is_ok());
    let record = WriterRecord::new(1, [1; 16], "node1");
    label.writer = Some(KeptWriter { record, leaves: None });
    let image = label.encode().unwrap();
    refused_of(
        &image,
        WRITER_NAME_LENGTH.at,
        &[65],
        "says what no label can: its field `writer name length` is 65, of 64 bytes",
    );
    refused_of(
        &image,
        WRITER_NAME.at,
        &[0xc3, b'a'],
        "says what no label can: its field `writer name` is not UTF-8",
    );
}

#[test]
fn leaves_are_beside_a_writer_and_have_room() {
    let mut label = sample("linear", 1);
    let leaves = |count| Some(vec![LeafGeneration { leaf: [7; 16], generation: 1 }; count]);
    let room = (LABEL_BYTES - row(1)) / ROW_BYTES;
    let kept = KeptWriter { record: WriterRecord::default(), leaves: leaves(room + 1) };
    label.writer = Some(kept.clone());
    let why = format!("is {}, and there is room for {room}", room + 1);
    let fault = LabelFault::malformed("writer leaves", why);
    assert_eq!(label.encode().unwrap_err(), fault);
    label.writer = Some(KeptWriter { leaves: leaves(room), ..kept });
    let image = label.encode().unwrap();
    let count = (room as u16 + 1).to_le_bytes();
    assert_eq!(Label::decode(&with(&image, WRITER_LEAVES.at, &count)), Err(fault));
    refused_of(
        &image,
        HAS_WRITER.at,
        &[0],
        "says what no label can: its field `has writer` is 0, and it has leaves of one",
    );
}

/// Nor are there idle generations of nobody, or none that are said to be some.
#[test]
fn idle_generations_are_those_of_a_writer() {
    let mut label = sample("linear", 1);
    let record = WriterRecord { idle: 3, ..WriterRecord::new(7, [1; 16], "node1") };
    label.writer = Some(KeptWriter { record, leaves: None });
    let image = label.encode().unwrap();
    let says = "says what no label can: its field";
    let why = format!("{says} `has writer` is 0, and it has idle generations of one");
    refused_of(&image, HAS_WRITER.at, &[0], &why);
    let why = format!("{says} `reserved` has 0x04 at byte 32, where zero belongs");
    refused_of(&image, WRITER_IDLE.at, &[0], &why);
    let why = format!("{says} `reserved` has 0x03 at byte 348, where zero belongs");
    refused_of(&image, COMPATIBLE.at, &[0], &why);
}

#[test]
fn options_are_the_modules() {
    let option = row(3);
    malformed(option, &[0xff], "option", "is not UTF-8");
    malformed(option, b"size\0", "option", "is refused: stripe has no `size`; it has chunk");
    malformed(
        option + OPTION_VALUE.at,
        &[1],
        "option",
        "`chunk` is refused: is a multiple of 4096 bytes, which 4097 is not",
    );
    let mut slice = sample("slice", 1);
    slice.options.set(slice.module.option("offset").unwrap(), 0);
    slice.options.set(slice.module.option("size").unwrap(), 512);
    let image = slice.encode().unwrap();
    let says = "says what no label can: its field `option` `offset` stands behind";
    refused_of(&image, row(2), b"offset", &format!("{says} `offset`: each stands once, in order"));
    let image = with(&image, row(1), b"size\0\0");
    refused_of(&image, row(2), b"offset", &format!("{says} `size`: each stands once, in order"));
    // And what is to be written has none of another module.
    let mut label = sample("linear", 1);
    label.options = slice.options;
    let fault = label.encode().unwrap_err().to_string();
    assert!(
        fault.ends_with("`offset` is refused: linear has no `offset`: it has no options"),
        "{fault}"
    );
}

#[test]
fn an_opening_has_its_number() {
    let zero = "0".repeat(32);
    malformed(OPENING.at, &[0; 16], "openings", &format!("is 3, and the last of them {zero}"));
    let last = "a5".repeat(16);
    malformed(OPENINGS.at, &[0; 8], "openings", &format!("is 0, and the last of them {last}"));
}

#[test]
fn nothing_stands_where_nothing_has_a_meaning() {
    let why = |at: usize| format!("has 0x07 at byte {at}, where zero belongs");
    let (name, module, end) = (NAME.at + 60, super::super::MODULE.at + 15, row(4));
    let writer = [WRITER_NAME_LENGTH.at, WRITER_GENERATION.at, WRITER_HOLDER.at, WRITER_NAME.at];
    let gap = RESERVED_IN_WORK.at;
    for at in [
        WRITER_LEAVES.at,
        WRITER_IDLE.at,
        RESERVED.at,
        RESERVED.end() - 1,
        MADE_BYTES.at,
        gap,
        HEAD_BYTES - 1,
        name,
        module,
        end,
        LABEL_BYTES - 1,
    ]
    .into_iter()
    .chain(writer)
    {
        malformed(at, &[7], "reserved", &why(at));
    }
    // All between the end of the rows and the end of the label.
    malformed(
        USED.at,
        &520_u16.to_le_bytes(),
        "reserved",
        "has 0x08 at byte 14, where zero belongs",
    );
}
