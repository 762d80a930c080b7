//! How a block of a write-intent bitmap stands on a part (`docs/format.md`, "The bitmaps").

/// Bytes that are kept for a bitmap, or for those of all legs of a mirror together.
pub const BITMAP_BYTES: u64 = (BLOCKS_MAX * BLOCK_BYTES) as u64;

/// Bytes of a block: written and read as one.
pub(crate) const BLOCK_BYTES: usize = 4096;
pub(crate) const BLOCKS_MAX: usize = 128;
const HEAD_BYTES: usize = 64;
/// Regions of which a block tells, a byte each.
pub(crate) const REGIONS_EACH: usize = BLOCK_BYTES - HEAD_BYTES;
pub(crate) const REGIONS_MAX: u64 = (REGIONS_EACH * BLOCKS_MAX) as u64;

pub(crate) const REGION_SHIFT_MIN: u8 = 20;
pub(crate) const REGION_SHIFT_MAX: u8 = 46;

const MAGIC: [u8; 8] = *b"TWINTENT";

// A bit of each leg for each region: no leg's bitmap has more than 64 KiB.
const _: () = assert!(REGIONS_MAX <= 8 * (64 << 10));
// No disk is too large.
const _: () = assert!((REGIONS_MAX as u128) << REGION_SHIFT_MAX > u64::MAX as u128);

/// A block, as it stands on a part.
pub(crate) type BlockImage = [u8; BLOCK_BYTES];

/// The smallest regions, as a power of two, of which there are few enough for so many bytes of data.
pub fn region_shift(data_bytes: u64) -> u8 {
    let fits = |shift: &u8| data_bytes.div_ceil(1 << shift) <= REGIONS_MAX;
    (REGION_SHIFT_MIN..REGION_SHIFT_MAX).find(fits).unwrap_or(REGION_SHIFT_MAX)
}

/// What a block is known by, besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockName {
    pub whole: [u8; 16],
    pub index: u32,
    pub region_shift: u8,
}

/// Writes a block: of each region the legs that may lack some of it, a bit each (of a volume without legs the first).
pub(crate) fn encode(image: &mut BlockImage, name: BlockName, number: u64) {
    image[..HEAD_BYTES].fill(0);
    image[..8].copy_from_slice(&MAGIC);
    image[12..16].copy_from_slice(&name.index.to_le_bytes());
    image[16..32].copy_from_slice(&name.whole);
    image[32..40].copy_from_slice(&number.to_le_bytes());
    image[40] = name.region_shift;
    let sum = checksum(image);
    image[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// The bytes of the regions of a block that is about to be written.
pub(crate) fn regions_mut(image: &mut BlockImage) -> &mut [u8] {
    &mut image[HEAD_BYTES..]
}

/// What a block says of its regions, and its number; none if it is torn, misdirected or somebody else's: then nothing is
/// known, and each region may lack something on every leg.
pub(crate) fn decode(image: &BlockImage, name: BlockName) -> Option<(&[u8], u64)> {
    let number = u64::from_le_bytes(image[32..40].try_into().expect("8 bytes"));
    let mut own = *image;
    encode(&mut own, name, number);
    (own == *image).then_some((&image[HEAD_BYTES..], number))
}

fn checksum(image: &BlockImage) -> u32 {
    let before = crc32c::crc32c(&image[..8]);
    let zero = crc32c::crc32c_append(before, &[0; 4]);
    crc32c::crc32c_append(zero, &image[12..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: BlockName = BlockName { whole: [7; 16], index: 3, region_shift: 20 };

    fn sample() -> BlockImage {
        let mut image = [0; BLOCK_BYTES];
        for (at, byte) in (0..).zip(regions_mut(&mut image)) {
            *byte = at as u8;
        }
        encode(&mut image, NAME, 0x0102_0304_0506_0708);
        image
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let image = sample();
        let (regions, number) = decode(&image, NAME).unwrap();
        assert_eq!((regions.len(), number), (REGIONS_EACH, 0x0102_0304_0506_0708));
        assert!(regions.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        // As the document has it.
        assert_eq!(image[..8], *b"TWINTENT");
        assert_eq!((&image[12..16], &image[16..32]), (&[3, 0, 0, 0][..], &[7; 16][..]));
        assert_eq!((image[32], image[39], image[40], image[64], image[65]), (8, 1, 20, 0, 1));
    }

    #[test]
    fn any_other_block_is_none() {
        let image = sample();
        for other in [
            BlockName { whole: [8; 16], ..NAME },
            BlockName { index: 4, ..NAME },
            BlockName { region_shift: 21, ..NAME },
        ] {
            assert_eq!(decode(&image, other), None);
        }
        assert_eq!(decode(&[0; BLOCK_BYTES], NAME), None);
        for bit in 0..BLOCK_BYTES * 8 {
            let mut torn = image;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&torn, NAME), None, "bit {bit}");
        }
        // Any sector of another write of it.
        let mut other = image;
        regions_mut(&mut other).fill(0);
        encode(&mut other, NAME, 2);
        for sectors in 1..255_u8 {
            let mut torn = image;
            for at in (0..BLOCK_BYTES).filter(|at| sectors >> (at / 512) & 1 == 1) {
                torn[at] = other[at];
            }
            assert_eq!(decode(&torn, NAME), None, "sectors {sectors:#x}");
        }
    }

    #[test]
    fn regions_are_as_small_as_their_number_allows() {
        let least = REGIONS_MAX << 20;
        for (bytes, shift) in
            [(512, 20), (least, 20), (least + 512, 21), (least * 16, 24), (u64::MAX, 46)]
        {
            assert_eq!(region_shift(bytes), shift, "{bytes} bytes");
            assert!(bytes.div_ceil(1 << shift) <= REGIONS_MAX);
        }
        assert_eq!(BITMAP_BYTES, 512 << 10);
    }
}
