//! Where each field of a label stands (`docs/format.md`, "The label"): a test compares that table with this one.

use std::ops::Range;

use super::{LABEL_BYTES, LabelImage};

/// A field of the head, or of a row.
#[derive(Clone, Copy)]
pub(super) struct Field {
    #[cfg_attr(not(test), allow(dead_code, reason = "read by the test of the document"))]
    pub name: &'static str,
    pub at: usize,
    pub len: usize,
}

impl Field {
    const fn first(name: &'static str, len: usize) -> Self {
        Field { name, at: 0, len }
    }

    /// The next one: there are no gaps but those that are reserved by name.
    const fn then(self, name: &'static str, len: usize) -> Self {
        Field { name, at: self.end(), len }
    }

    pub const fn end(self) -> usize {
        self.at + self.len
    }

    /// Where it is, of what begins at `from`.
    pub const fn range(self, from: usize) -> Range<usize> {
        from + self.at..from + self.end()
    }
}

// These four are the same in every version of the format: a reader of any can tell what it does not know.
pub(super) const MAGIC: Field = Field::first("magic", 8);
pub(super) const CHECKSUM: Field = MAGIC.then("checksum", 4);
pub(super) const VERSION: Field = CHECKSUM.then("format version", 2);
pub(super) const USED: Field = VERSION.then("length", 2);

pub(super) const INCOMPATIBLE: Field = USED.then("incompatible features", 8);
pub(super) const READ_ONLY_COMPATIBLE: Field =
    INCOMPATIBLE.then("read-only compatible features", 8);
pub(super) const COMPATIBLE: Field = READ_ONLY_COMPATIBLE.then("compatible features", 8);
pub(super) const GENERATION: Field = COMPATIBLE.then("generation", 8);
pub(super) const MODULE: Field = GENERATION.then("module", 16);
pub(super) const PART: Field = MODULE.then("part", 16);
pub(super) const WHOLE: Field = PART.then("whole", 16);
pub(super) const NAME: Field = WHOLE.then("name", 64);
pub(super) const OPENING: Field = NAME.then("opening", 16);
pub(super) const DATA_START: Field = OPENING.then("data start", 8);
pub(super) const DATA_BYTES: Field = DATA_START.then("data bytes", 8);
pub(super) const WHOLE_BYTES: Field = DATA_BYTES.then("whole bytes", 8);
pub(super) const ROLE: Field = WHOLE_BYTES.then("role", 2);
pub(super) const PARTS: Field = ROLE.then("parts", 2);
pub(super) const OPTIONS: Field = PARTS.then("options", 2);
pub(super) const HAS_WRITER: Field = OPTIONS.then("has writer", 1);
pub(super) const WRITER_NAME_LENGTH: Field = HAS_WRITER.then("writer name length", 1);
pub(super) const CONTENT: Field = WRITER_NAME_LENGTH.then("content identity", 16);
pub(super) const INCARNATION: Field = CONTENT.then("content incarnation", 8);
pub(super) const WRITER_GENERATION: Field = INCARNATION.then("writer generation", 8);
pub(super) const WRITER_HOLDER: Field = WRITER_GENERATION.then("writer holder", 16);
pub(super) const WRITER_NAME: Field = WRITER_HOLDER.then("writer name", 64);
pub(super) const NEXT_OPENING: Field = WRITER_NAME.then("next opening", 16);
pub(super) const OPENINGS: Field = NEXT_OPENING.then("openings", 8);
pub(super) const WRITER_LEAVES: Field = OPENINGS.then("writer leaves", 2);
pub(super) const RESERVED: Field = WRITER_LEAVES.then("reserved", 2);
pub(super) const WRITER_IDLE: Field = RESERVED.then("writer idle", 4);
pub(super) const STATE_LENGTH: Field = WRITER_IDLE.then("state length", 2);
pub(super) const RESERVED_BETWEEN: Field = STATE_LENGTH.then("reserved", 6);
pub(super) const CUT: Field = RESERVED_BETWEEN.then("cut", 8);
pub(super) const CUT_BEGUN: Field = CUT.then("cut begun", 8);
pub(super) const MADE_BYTES: Field = CUT_BEGUN.then("made bytes", 8);
pub(super) const WORK: Field = MADE_BYTES.then("work", 1);
pub(super) const WORK_PERCENT: Field = WORK.then("work percent", 1);
pub(super) const RESERVED_IN_WORK: Field = WORK_PERCENT.then("reserved", 6);
pub(super) const SCRUBBED_TO: Field = RESERVED_IN_WORK.then("scrubbed to", 8);

/// Rows begin here: first those of the parts, then those of the options.
pub(super) const HEAD_BYTES: usize = SCRUBBED_TO.end();

pub(super) const PART_UUID: Field = Field::first("part", 16);
pub(super) const PART_BYTES: Field = PART_UUID.then("data bytes", 8);
pub(super) const OPTION_NAME: Field = Field::first("option", 16);
pub(super) const OPTION_VALUE: Field = OPTION_NAME.then("value", 8);
pub(super) const LEAF: Field = Field::first("leaf", 16);
pub(super) const LEAF_GENERATION: Field = LEAF.then("generation", 8);

/// All rows are as long.
pub(super) const ROW_BYTES: usize = PART_BYTES.end();
pub(super) const ROWS_MAX: usize = (LABEL_BYTES - HEAD_BYTES) / ROW_BYTES;

const _: () = assert!(HEAD_BYTES == 400 && ROW_BYTES == 24 && OPTION_VALUE.end() == ROW_BYTES);
const _: () = assert!(LEAF_GENERATION.end() == ROW_BYTES);
const _: () = assert!(ROWS_MAX == 154 && HEAD_BYTES + ROWS_MAX * ROW_BYTES == LABEL_BYTES);

/// Where a row begins.
pub(super) const fn row(index: usize) -> usize {
    HEAD_BYTES + index * ROW_BYTES
}

/// A field of what begins at `from`: of the head 0, else of a [`row`].
pub(super) fn bytes<const N: usize>(image: &LabelImage, from: usize, field: Field) -> [u8; N] {
    image[field.range(from)].try_into().expect("as long as the field")
}

pub(super) fn u16_of(image: &LabelImage, field: Field) -> u16 {
    u16::from_le_bytes(bytes(image, 0, field))
}

pub(super) fn u64_of(image: &LabelImage, from: usize, field: Field) -> u64 {
    u64::from_le_bytes(bytes(image, from, field))
}

/// Up to the zeroes behind it.
pub(super) fn text(
    image: &LabelImage,
    from: usize,
    field: Field,
) -> Result<&str, std::str::Utf8Error> {
    let bytes = &image[field.range(from)];
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..len])
}

/// As many bytes as it has; the others stay zero.
pub(super) fn put(image: &mut LabelImage, from: usize, field: Field, bytes: &[u8]) {
    image[field.range(from)][..bytes.len()].copy_from_slice(bytes);
}
