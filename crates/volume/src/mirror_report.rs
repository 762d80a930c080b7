//! What a volume that is a mirror says of itself.

use std::time::Duration;

/// How a mirror stands, for status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorReport {
    /// It has read what its legs lack, and has on record how they stand.
    pub is_open: bool,
    /// It has stopped for good: another has a leg, or none is left that can go on.
    pub has_stopped: bool,
    /// What is left to be copied cannot be, for now: it could not be read or written, or no leg takes what is to be on record. It is
    /// tried again.
    pub is_held_up: bool,
    /// Blocks that did not fit the sum of a leg, or could not be read there, and were written again from another since it was opened: as
    /// many as legs had.
    pub mended: u64,
    /// Bytes that were copied to legs since it was opened, of each.
    pub copied: u64,
    /// It is growing: how many bytes of that are zeroed on all legs, and how many are to be.
    pub grows: Option<(u64, u64)>,
    /// Of each leg.
    pub legs: Vec<LegReport>,
}

/// How a leg of a mirror stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegReport {
    /// What becomes of it.
    pub standing: LegStanding,
    /// How much it lacks at most, in bytes.
    pub lacks: u64,
    /// Of one that the mirror goes without: why it is not back.
    pub absence: LegAbsence,
    /// The leg, counted from 0, that goes as soon as this one has all data.
    pub replaces: Option<usize>,
}

/// Why a leg is not there, as far as whoever brings it back knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegAbsence {
    /// In how long it is tried again; `None` if it is being tried, or never is.
    pub retry_in: Option<Duration>,
    /// What is wrong there, as it was told last; empty if there is nothing to tell.
    pub why: String,
}

/// What becomes of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegStanding {
    /// It has all data.
    InSync,
    /// It is being copied to.
    Resyncing,
    /// It was dropped, or is not there.
    Behind,
    /// It has other content than it had: it is not used.
    Failed,
    /// It is no leg any more.
    Removed,
}

impl LegStanding {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            LegStanding::InSync => "in sync",
            LegStanding::Resyncing => "resyncing",
            LegStanding::Behind => "behind",
            LegStanding::Failed => "failed",
            LegStanding::Removed => "removed",
        }
    }

    /// What has become of it, for people: a predicate.
    pub fn news(self) -> &'static str {
        match self {
            LegStanding::InSync => "is in sync",
            LegStanding::Resyncing => "is being copied to",
            LegStanding::Behind => {
                "is behind: it does not answer, or fails; it gets what it lacks when it is back, or the mirror is opened again"
            }
            LegStanding::Failed => {
                "has other content than it had: it is not used, nor written over; `thinwire volume replace` puts another volume, or this one, in its place"
            }
            LegStanding::Removed => "was removed: it is no leg any more",
        }
    }
}

impl MirrorReport {
    /// Nothing is being copied, nor about to be.
    pub fn is_settled(&self) -> bool {
        let is_copied_to = |leg: &LegReport| leg.standing == LegStanding::Resyncing;
        self.has_stopped || self.is_open && !self.legs.iter().any(is_copied_to)
    }
}
