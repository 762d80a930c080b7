//! What volumes do for themselves beside their users: copies to legs of mirrors that lack something, checks of what a crash has left open, scrubs.

use crate::{MirrorReport, Scrub};

/// How fast that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkPace {
    /// Nothing more is begun. Default: no.
    pub is_paused: bool,
    /// So much of what users get, in percent of bytes, while there are any; whatever this says, all of what nobody uses. 1 to
    /// [`WORK_PERCENT_MAX`]; 50 unless somebody says otherwise: half of it.
    pub percent: u8,
}

/// As much as users get.
pub const WORK_PERCENT_MAX: u8 = 100;

impl Default for WorkPace {
    fn default() -> Self {
        WorkPace { is_paused: false, percent: 50 }
    }
}

/// A volume, or what one is made of, that works for itself. What is said to it here holds as long as it is open.
pub trait Work: Scrub {
    /// The UUID of the whole that it is, by the labels of its parts.
    fn whole(&self) -> [u8; 16];

    /// How fast it works.
    fn pace(&self) -> WorkPace;

    /// It works like that from now on. What is under way ends, whatever this says.
    fn set_pace(&mut self, pace: WorkPace);

    /// What failed, and waits to be tried again, is tried again now.
    fn try_now(&mut self);

    /// Bytes that are left to be copied or checked at most, those of a scrub not among them.
    fn left(&self) -> u64;

    /// How many bytes of what it is growing by are zeroed, of how many; none if it is not growing.
    fn grows(&self) -> Option<(u64, u64)> {
        None
    }

    /// How it stands, if it is a mirror.
    fn mirror(&self) -> Option<MirrorReport> {
        None
    }
}
