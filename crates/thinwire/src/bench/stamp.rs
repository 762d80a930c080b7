//! What `--verify` writes, so that a block read back tells where it belongs and how old it is.
//!
//! Every 512 bytes, the smallest piece that a disk writes as one, look like this (little endian):
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `TWBENCH1` |
//! | 8..16 | its byte offset in the volume |
//! | 16..20 | generation: how often this run has written this block |
//! | 20..24 | run: which run wrote it |
//! | 24..28 | CRC32C of everything else |
//! | 28..512 | noise that depends on the above |

use super::plan::SplitMix;

/// Bytes that carry one stamp.
pub const UNIT_BYTES: usize = 512;

const MAGIC: [u8; 8] = *b"TWBENCH1";
const NOISE_AT: usize = 28;

/// What the stamp of a unit says, or should say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Byte offset in the volume of the unit.
    pub offset: u64,
    /// How often this run has written the block.
    pub generation: u32,
    /// Which run wrote it.
    pub run: u32,
}

/// What was found in place of the stamp that should be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitContent {
    /// A sound stamp, but another.
    Other(Stamp),
    /// It begins like a stamp, but its checksum is wrong.
    Torn,
    /// All bytes are zero.
    Zeroes,
    /// Something that this program did not write.
    Foreign,
}

/// Stamps a whole I/O that goes to `stamp.offset`.
pub fn stamp(bytes: &mut [u8], stamp: Stamp) {
    for (at, unit) in bytes.chunks_exact_mut(UNIT_BYTES).enumerate() {
        stamp_unit(unit, Stamp { offset: stamp.offset + (at * UNIT_BYTES) as u64, ..stamp });
    }
}

fn stamp_unit(unit: &mut [u8], stamp: Stamp) {
    unit[..8].copy_from_slice(&MAGIC);
    unit[8..16].copy_from_slice(&stamp.offset.to_le_bytes());
    unit[16..20].copy_from_slice(&stamp.generation.to_le_bytes());
    unit[20..24].copy_from_slice(&stamp.run.to_le_bytes());
    let seed = stamp.offset ^ (u64::from(stamp.generation) << 32 | u64::from(stamp.run));
    let mut noise = SplitMix::new(seed);
    let mut words = unit[NOISE_AT..].chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&noise.bits().to_le_bytes());
    }
    let rest = words.into_remainder();
    let last = noise.bits().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
    let crc = checksum(unit);
    unit[24..28].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(unit: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&unit[..24]), &unit[NOISE_AT..])
}

/// Reads what is in a unit.
pub fn read(unit: &[u8]) -> UnitContent {
    let word = |at: usize| u32::from_le_bytes(unit[at..at + 4].try_into().expect("four bytes"));
    if unit[..8] != MAGIC {
        let zeroes = unit.iter().all(|byte| *byte == 0);
        return if zeroes { UnitContent::Zeroes } else { UnitContent::Foreign };
    }
    if word(24) != checksum(unit) {
        return UnitContent::Torn;
    }
    UnitContent::Other(Stamp {
        offset: u64::from_le_bytes(unit[8..16].try_into().expect("eight bytes")),
        generation: word(16),
        run: word(20),
    })
}

/// Says what is wrong with a unit at `offset` whose block this run has written `generation` times.
pub fn explain(expected: Stamp, found: UnitContent) -> String {
    let what = match found {
        UnitContent::Torn => "a stamp with a wrong checksum".to_owned(),
        UnitContent::Zeroes => "zeroes".to_owned(),
        UnitContent::Foreign => "bytes that no bench wrote".to_owned(),
        UnitContent::Other(stamp) if stamp.offset != expected.offset => {
            format!("the data of offset {} (generation {})", stamp.offset, stamp.generation)
        }
        UnitContent::Other(stamp) if stamp.run != expected.run => {
            "what an earlier run wrote".to_owned()
        }
        UnitContent::Other(stamp) => format!("generation {} of this run", stamp.generation),
    };
    format!(
        "at byte {}: expected generation {} of this run, found {what}",
        expected.offset, expected.generation
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_tells_where_and_when() {
        let wrote = Stamp { offset: 4096, generation: 3, run: 9 };
        let mut bytes = vec![0; 1024];
        assert_eq!(read(&bytes[..512]), UnitContent::Zeroes);
        stamp(&mut bytes, wrote);
        assert_eq!(read(&bytes[..512]), UnitContent::Other(wrote));
        assert_eq!(read(&bytes[512..]), UnitContent::Other(Stamp { offset: 4608, ..wrote }));
        for at in [12, 17, 21, 25, 28, 511] {
            let mut broken = bytes.clone();
            broken[at] ^= 1;
            assert_eq!(read(&broken[..512]), UnitContent::Torn, "{at}");
        }
        bytes[0] = b'x';
        assert_eq!(read(&bytes[..512]), UnitContent::Foreign);
    }

    #[test]
    fn mistakes_are_explained() {
        let expected = Stamp { offset: 4096, generation: 3, run: 9 };
        for (found, named) in [
            (UnitContent::Other(Stamp { generation: 2, ..expected }), "generation 2 of this run"),
            (UnitContent::Other(Stamp { offset: 0, ..expected }), "offset 0"),
            (UnitContent::Other(Stamp { run: 1, ..expected }), "earlier run"),
            (UnitContent::Zeroes, "zeroes"),
            (UnitContent::Torn, "checksum"),
            (UnitContent::Foreign, "no bench"),
        ] {
            let text = explain(expected, found);
            assert!(text.contains(named) && text.contains("4096"), "{text}");
        }
    }
}
