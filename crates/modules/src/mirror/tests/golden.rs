//! What stands on a leg against the images kept in `tests/golden/mirror`.

use super::super::bitmap::{BlockName, encode, regions_mut};
use super::super::state::{LeftAt, MirrorState};
use super::super::{LegState, NO_GENERATION};
use crate::tests::golden;

/// Legs that stand in all ways there are.
fn state() -> MirrorState {
    let at = LeftAt { last: [0x21; 16], or: [0x22; 16] };
    MirrorState {
        generation: [0x11; 16],
        next: [0x12; 16],
        incarnation: *b"a life of data!!",
        drawn_at: 1_700_000_000,
        history: (1..=3).map(|nth| [0x30 + nth; 16]).collect(),
        region_shift: 21,
        block_shift: 12,
        legs: vec![
            LegState::InSync,
            LegState::Behind { at },
            LegState::Resyncing { at: NO_GENERATION.into() },
            LegState::Failed { at: [0x23; 16].into() },
            LegState::Removed { at: [0x24; 16].into() },
        ],
    }
}

#[test]
fn images_are_those_that_are_kept() {
    let mut bitmap = [0; 4096];
    for (at, byte) in (0_u8..16).zip(regions_mut(&mut bitmap)) {
        *byte = at;
    }
    let name = BlockName { whole: *b"UUID of a whole!", index: 3, region_shift: 21 };
    encode(&mut bitmap, name, 0x0102_0304_0506_0708);
    let state = state();
    assert_eq!(MirrorState::decode(&state.encode()), Ok(state.clone()));
    golden::are_kept("mirror", &[("state", state.encode()), ("bitmap", bitmap.to_vec())]);
}
