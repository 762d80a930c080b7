//! [`look_at_sums`]: which regions a part with sums has on record as open, for whoever looks at it by itself.

use super::{IntegrityState, SumLayout};
use crate::meta::Label;
use crate::write_intent::bitmap::{
    BITMAP_BYTES, BLOCK_BYTES, BLOCKS_MAX, BlockImage, BlockName, REGIONS_EACH, decode,
};

/// Where the two copies of its bitmap begin, in bytes from where the data of the part does by its label.
pub const SUM_BITMAP_OFFSETS: [u64; 2] = [0, BITMAP_BYTES];

/// What the bitmap of a part with sums says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenSums {
    /// How many regions there are.
    pub regions: u64,
    /// How many of these were being written, or may have been: a block of theirs that fits no sum is unverified, and not rotten.
    pub open: u64,
    /// Blocks of the bitmap of which no copy is whole: all of their regions count as open.
    pub bad_blocks: u64,
    /// Copies of blocks that are torn, or somebody else's, and of which the other one stands.
    pub torn_copies: u64,
}

impl SumLayout {
    /// How many bytes the label says that there are with sums, and no part of that size has room for; none if it has.
    pub fn missing(label: &Label) -> Option<u64> {
        let room = SumLayout::of(label.part().bytes).bytes;
        label.whole_bytes.checked_sub(room).filter(|missing| *missing > 0)
    }
}

fn regions(label: &Label, state: &IntegrityState) -> u64 {
    label.whole_bytes.div_ceil(state.region_bytes())
}

/// How many bytes each copy of the bitmap takes: those that [`look_at_sums`] looks at.
pub fn sum_bitmap_bytes(label: &Label, state: &IntegrityState) -> u64 {
    let blocks = regions(label, state).div_ceil(REGIONS_EACH as u64).min(BLOCKS_MAX as u64);
    blocks * BLOCK_BYTES as u64
}

/// What these bytes of both copies say, by the part's label and the state in that. What is not given counts as torn. Of blocks that are `unread`, counted from 0,
/// a copy cannot be read, which may be the newer one: all of their regions count as open.
pub fn look_at_sums(
    label: &Label,
    state: &IntegrityState,
    copies: [&[u8]; 2],
    unread: &[usize],
) -> SeenSums {
    let regions = regions(label, state);
    let mut seen = SeenSums { regions, open: 0, bad_blocks: 0, torn_copies: 0 };
    let blocks = sum_bitmap_bytes(label, state) as usize / BLOCK_BYTES;
    for block in 0..blocks {
        let first = (block * REGIONS_EACH) as u64;
        let count = (regions - first).min(REGIONS_EACH as u64) as usize;
        let (whole, region_shift) = (label.whole, state.region_shift);
        let name = BlockName { whole, index: block as u32, region_shift };
        let image = |copy: usize| -> Option<&BlockImage> {
            let bytes = copies[copy].get(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES)?;
            bytes.try_into().ok()
        };
        // One that belongs into the other place was misdirected.
        let said = [0, 1]
            .map(|copy| decode(image(copy)?, name).filter(|(_, number)| number % 2 == copy as u64));
        let never_written =
            |copy: usize| image(copy).is_some_and(|image| *image == [0; BLOCK_BYTES]);
        let torn = (0..2).filter(|&copy| said[copy].is_none() && !never_written(copy)).count();
        match said.into_iter().flatten().max_by_key(|(_, number)| *number) {
            Some((all, _)) => {
                let is_open = |region: &&u8| **region != 0 || unread.contains(&block);
                seen.open += all[..count].iter().filter(is_open).count() as u64;
                seen.torn_copies += torn as u64;
            }
            None => {
                seen.open += count as u64;
                seen.bad_blocks += 1;
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use thinwire_volume::Identity;

    use super::super::NAME;
    use super::*;
    use crate::meta::{NewPart, NewWhole, label_parts};
    use crate::write_intent::bitmap::{encode, regions_mut};
    use crate::{Module, Options};

    fn label(part_bytes: u64) -> Label {
        let (module, options) = (Module::find(NAME).unwrap(), &Options::default());
        let part = NewPart { uuid: [1; 16], content: Identity::default(), bytes: part_bytes };
        let bytes = SumLayout::of(part.data_bytes(module)).bytes;
        let whole = NewWhole { name: "sums", uuid: [9; 16], module, options, bytes };
        label_parts(&whole, &[part]).unwrap().remove(0)
    }

    fn copy(label: &Label, state: &IntegrityState, number: u64, open: &[usize]) -> Vec<u8> {
        let mut image = [0; BLOCK_BYTES];
        open.iter().for_each(|region| regions_mut(&mut image)[*region] = 1);
        let (whole, region_shift) = (label.whole, state.region_shift);
        encode(&mut image, BlockName { whole, index: 0, region_shift }, number);
        image.to_vec()
    }

    #[test]
    fn the_newer_copy_counts_and_what_no_copy_says_is_open() {
        let label = label(64 << 20);
        let state = IntegrityState::new(label.whole_bytes);
        let regions = label.whole_bytes.div_ceil(state.region_bytes());
        let (old, new) = (copy(&label, &state, 6, &[0, 1, 2]), copy(&label, &state, 7, &[3]));
        let seen = |copies: [&[u8]; 2]| look_at_sums(&label, &state, copies, &[]);
        let sound = SeenSums { regions, open: 1, bad_blocks: 0, torn_copies: 0 };
        assert_eq!(seen([&old, &new]), sound);
        let mut torn = new.clone();
        torn[4000] ^= 1;
        let older = SeenSums { open: 3, torn_copies: 1, ..sound };
        assert_eq!(seen([&old, &torn]), older);
        let unread = look_at_sums(&label, &state, [&old, &torn], &[0]);
        assert_eq!(unread, SeenSums { open: regions, torn_copies: 1, ..sound });
        // Never written is not torn.
        let zero = [0; BLOCK_BYTES];
        assert_eq!(seen([&zero, &new]), sound);
        let none = SeenSums { open: regions, bad_blocks: 1, ..sound };
        for copies in [[&zero[..], &torn], [&[], &[]], [&new, &old]] {
            assert_eq!(seen(copies), none, "of the other place, or of none");
        }
    }

    #[test]
    fn more_than_a_part_has_room_for_is_missing() {
        let mut label = label(64 << 20);
        assert_eq!(SumLayout::missing(&label), None);
        label.whole_bytes += 4096;
        assert_eq!(SumLayout::missing(&label), Some(4096));
    }
}
