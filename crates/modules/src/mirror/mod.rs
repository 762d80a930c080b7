//! The mirror (RAID-1): 2 to 8 volumes that hold the same bytes. What its legs hold besides data is in `docs/format.md`, "The
//! mirror": [`MirrorState`] in the label of each, and write-intent bitmaps behind that. [`decide`] says, of what the
//! labels say, whether it can be served and from which legs.

#[cfg_attr(not(test), allow(dead_code, reason = "written by what comes next"))]
mod bitmap;
mod decide;
mod state;

pub use bitmap::{BITMAP_BYTES, BITMAP_OFFSET, MIRROR_DATA_START, region_shift};
pub use decide::{OpeningPlan, OpeningRefusal, ResyncExtent, decide};
pub use state::{Generation, LegState, MirrorState, StateFault};

/// Most legs that a mirror has.
pub const LEGS_MAX: usize = 8;
