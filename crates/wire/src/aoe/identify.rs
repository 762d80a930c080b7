//! The answer to IDENTIFY DEVICE: 256 words in little-endian order (`docs/aoe.md`, "IDENTIFY DEVICE").

use super::{LBA28_SECTORS_MAX, LBA48_SECTORS_MAX};

/// Octets of the answer.
pub const IDENTIFY_BYTES: usize = 512;

/// Words of text, first and behind the last: two characters each, the first in the upper octet.
const SERIAL: (usize, usize) = (10, 20);
const FIRMWARE: (usize, usize) = (23, 27);
const MODEL: (usize, usize) = (27, 47);

/// In words 83 and 86: 48 bits of address.
const LBA48: u16 = 1 << 10;

/// In words 82 and 85: a write cache.
const WRITE_CACHE: u16 = 1 << 5;

/// In word 255: it holds a checksum.
const CHECKSUM: u8 = 0xa5;

/// The geometry that drives claim: so many heads and sectors on a track, and at most so many cylinders.
const HEADS: u16 = 16;
const TRACK_SECTORS: u16 = 63;
const CYLINDERS_MAX: u64 = 16_383;

/// Words that are the same for all drives of ours; what each says is in the document.
const FIXED: [(usize, u16); 18] = [
    (0, 0x0040),
    (2, 0xc837),
    (3, HEADS),
    (6, TRACK_SECTORS),
    (47, 0x8000),
    (48, 0x4000),
    (49, 0x0200),
    (50, 0x4000),
    (53, 0x0001),
    (55, HEADS),
    (56, TRACK_SECTORS),
    (80, 0x0070),
    (83, 0x7400),
    (84, 0x4000),
    (86, 0x3400),
    (87, 0x4000),
    (106, 0x4000),
    (217, 0x0001),
];

/// What a drive says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveIdentity<'a> {
    /// How many sectors of 512 octets it has; beyond [`LBA48_SECTORS_MAX`] it says that many.
    pub sectors: u64,
    /// At most 20 characters.
    pub serial: &'a str,
    /// At most 8 characters.
    pub firmware: &'a str,
    /// At most 40 characters.
    pub model: &'a str,
    /// Whether what was answered may be lost until it is flushed.
    pub has_write_cache: bool,
}

impl DriveIdentity<'_> {
    /// The answer. Texts are cut where their words end and filled with blanks; of what is not printable ASCII
    /// each character becomes a question mark.
    pub fn to_bytes(&self) -> [u8; IDENTIFY_BYTES] {
        let mut words = [0_u16; IDENTIFY_BYTES / 2];
        for (at, word) in FIXED {
            words[at] = word;
        }
        put_text(&mut words[SERIAL.0..SERIAL.1], self.serial);
        put_text(&mut words[FIRMWARE.0..FIRMWARE.1], self.firmware);
        put_text(&mut words[MODEL.0..MODEL.1], self.model);

        let sectors = self.sectors.min(LBA48_SECTORS_MAX);
        let cylinder_sectors = u64::from(HEADS) * u64::from(TRACK_SECTORS);
        let cylinders = (sectors / cylinder_sectors).min(CYLINDERS_MAX);
        words[1] = cylinders as u16;
        words[54] = cylinders as u16;
        put_number(&mut words[57..59], cylinders * cylinder_sectors);
        put_number(&mut words[60..62], sectors.min(LBA28_SECTORS_MAX));
        put_number(&mut words[100..104], sectors);
        if self.has_write_cache {
            words[82] |= WRITE_CACHE;
            words[85] |= WRITE_CACHE;
        }

        let mut out = [0; IDENTIFY_BYTES];
        for (to, word) in out.chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let [all @ .., mark, checksum] = &mut out;
        *mark = CHECKSUM;
        *checksum = sum(all).wrapping_add(CHECKSUM).wrapping_neg();
        out
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, &byte| sum.wrapping_add(byte))
}

/// The lowest word first.
fn put_number(words: &mut [u16], number: u64) {
    for (at, word) in words.iter_mut().enumerate() {
        *word = (number >> (16 * at)) as u16;
    }
}

fn put_text(words: &mut [u16], text: &str) {
    let printable = |c: char| if matches!(c, ' '..='~') { c as u8 } else { b'?' };
    let mut bytes = text.chars().map(printable).chain(core::iter::repeat(b' '));
    for word in words {
        let mut next = || bytes.next().unwrap_or(b' ');
        *word = u16::from_be_bytes([next(), next()]);
    }
}

/// The answer of a drive, whoever made it.
#[derive(Clone, Copy)]
pub struct IdentifyView<'a>(&'a [u8; IDENTIFY_BYTES]);

impl<'a> IdentifyView<'a> {
    /// What `data` begins with; `None` if it is shorter than [`IDENTIFY_BYTES`].
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        data.first_chunk().map(IdentifyView)
    }

    /// One of 256 words; 0 for any other number.
    pub fn word(&self, at: usize) -> u16 {
        self.0.as_chunks().0.get(at).map_or(0, |&word| u16::from_le_bytes(word))
    }

    /// Whether it takes commands with 48 bits: word 83 says that it can, or word 86 that it does.
    pub fn has_lba48(&self) -> bool {
        (self.word(83) | self.word(86)) & LBA48 != 0
    }

    /// How many sectors of 512 octets it has.
    pub fn sectors(&self) -> u64 {
        let words = if self.has_lba48() { 100..104 } else { 60..62 };
        words.rev().fold(0, |number, at| number << 16 | u64::from(self.word(at)))
    }

    /// Whether it has a write cache that is on.
    pub fn has_write_cache(&self) -> bool {
        self.word(85) & WRITE_CACHE != 0
    }

    /// Its checksum is right, or it has none.
    pub fn is_sound(&self) -> bool {
        self.0[IDENTIFY_BYTES - 2] != CHECKSUM || sum(self.0) == 0
    }

    /// Its serial number, with the blanks behind it.
    pub fn serial(&self) -> [u8; 20] {
        self.text(SERIAL.0)
    }

    /// The version of its firmware, with the blanks behind it.
    pub fn firmware(&self) -> [u8; 8] {
        self.text(FIRMWARE.0)
    }

    /// Its model, with the blanks behind it.
    pub fn model(&self) -> [u8; 40] {
        self.text(MODEL.0)
    }

    fn text<const BYTES: usize>(&self, word: usize) -> [u8; BYTES] {
        core::array::from_fn(|at| self.word(word + at / 2).to_be_bytes()[at % 2])
    }
}
