//! [`look_at_bitmap`]: what the bitmap on a leg says, for whoever looks at a leg by itself.

use super::bitmap::{BLOCK_BYTES, BLOCKS_MAX, BlockImage, BlockName, REGIONS_EACH, decode};
use super::{LEGS_MAX, MirrorState};
use crate::meta::Label;

/// What the bitmap on one leg says of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenBitmap {
    /// How many regions there are.
    pub regions: u64,
    /// Of each leg, how many of them it may lack something of.
    pub lacking: Vec<u64>,
    /// Blocks of the bitmap that are torn, or somebody else's: of their regions each leg may lack something.
    pub bad_blocks: u64,
}

/// How many bytes of the leg from [`BITMAP_OFFSET`](super::BITMAP_OFFSET) on its bitmap takes: those that [`look_at_bitmap`] looks at.
pub fn bitmap_bytes(label: &Label, state: &MirrorState) -> u64 {
    regions(label, state).div_ceil(REGIONS_EACH as u64) * BLOCK_BYTES as u64
}

fn regions(label: &Label, state: &MirrorState) -> u64 {
    label.whole_bytes.div_ceil(1 << state.region_shift)
}

/// What these bytes of a leg's bitmap say, by its label and the state in that. What is not given counts as torn.
pub fn look_at_bitmap(label: &Label, state: &MirrorState, bytes: &[u8]) -> SeenBitmap {
    let regions = regions(label, state);
    let mut seen = SeenBitmap { regions, lacking: vec![0; state.legs.len()], bad_blocks: 0 };
    // A label that lies has more than there can be.
    let blocks = regions.div_ceil(REGIONS_EACH as u64).min(BLOCKS_MAX as u64) as usize;
    let mut images = bytes.chunks_exact(BLOCK_BYTES);
    for index in 0..blocks {
        let first = (index * REGIONS_EACH) as u64;
        let count = (regions - first).min(REGIONS_EACH as u64) as usize;
        let (whole, region_shift) = (label.whole, state.region_shift);
        let name = BlockName { whole, index: index as u32, region_shift };
        let image = images.next().and_then(|image| <&BlockImage>::try_from(image).ok());
        let said = image.and_then(|image| decode(image, name)).map(|(said, _)| &said[..count]);
        seen.bad_blocks += u64::from(said.is_none());
        for leg in 0..state.legs.len().min(LEGS_MAX) {
            seen.lacking[leg] += match said {
                Some(said) => said.iter().filter(|legs| *legs >> leg & 1 == 1).count() as u64,
                None => count as u64,
            };
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::super::bitmap::{encode, regions_mut};
    use super::super::{LegState, NO_GENERATION};
    use super::*;
    use crate::mirror::tests::world;

    #[test]
    fn what_a_leg_may_lack_is_counted_and_what_is_torn_is_all() {
        let legs = vec![LegState::InSync; 3];
        let state = MirrorState {
            generation: [1; 16],
            next: NO_GENERATION,
            incarnation: [2; 16],
            drawn_at: 0,
            history: Vec::new(),
            region_shift: 20,
            block_shift: 12,
            legs,
        };
        // Two blocks, of which the second has ten regions.
        let label = world::label(0, &state, ((REGIONS_EACH as u64 + 10) << 20) - 4096);
        assert_eq!(bitmap_bytes(&label, &state), 8192);
        let mut images = [[0; BLOCK_BYTES]; 2];
        for (index, image) in (0..).zip(&mut images) {
            // The last is behind the last region.
            for (region, byte) in [(0, 0b001), (9, 0b101), (10 + index as usize * 4021, 0b010)] {
                regions_mut(image)[region] = byte;
            }
            encode(image, BlockName { whole: label.whole, index, region_shift: 20 }, 7);
        }
        let seen = |bytes: &[u8]| look_at_bitmap(&label, &state, bytes);
        let (regions, all) = (REGIONS_EACH as u64 + 10, images.concat());
        assert_eq!(seen(&all), SeenBitmap { regions, lacking: vec![4, 1, 2], bad_blocks: 0 });
        let mut torn = all.clone();
        torn[BLOCK_BYTES + 4000] ^= 1;
        for bytes in [&torn[..], &all[..BLOCK_BYTES], &all[..BLOCK_BYTES + 5]] {
            let lacking = vec![12, 11, 11];
            assert_eq!(seen(bytes), SeenBitmap { regions, lacking, bad_blocks: 1 });
        }
    }
}
