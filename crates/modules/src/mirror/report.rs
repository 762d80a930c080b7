//! What a mirror says of itself.

use thinwire_volume::{LegAbsence, LegReport, LegStanding, MirrorReport, VolumeEvent};

use super::opening::Phase;
use super::{LegState, Mirror, NO_GENERATION};

impl Mirror {
    /// How each leg stands, and how many bytes it lacks at most.
    pub fn legs(&self) -> impl Iterator<Item = (LegState, u64)> {
        let region_bytes = 1 << self.state.region_shift;
        let of = move |(leg, state): (usize, &LegState)| {
            // Its bits do not say so yet, or nobody has kept them.
            let knows_nothing =
                matches!(state, LegState::Behind { at } if *at == NO_GENERATION.into());
            let lacks = match knows_nothing || self.resync.full >> leg & 1 == 1 {
                true => self.geometry.bytes,
                false => u64::from(self.regions.stale_count(leg)) * region_bytes,
            };
            (*state, lacks)
        };
        self.state.legs.iter().enumerate().map(of)
    }

    /// Why it goes without a leg, if whoever brings it knows.
    fn absence(&self, leg: usize) -> LegAbsence {
        let keeper = self.config.keeper.as_ref().filter(|_| self.is_given_up(leg));
        keeper.map_or_else(LegAbsence::default, |keeper| keeper.absence(leg))
    }

    fn standing(&self, leg: usize, state: LegState) -> LegStanding {
        match state {
            _ if self.record.joining >> leg & 1 == 1 => LegStanding::Resyncing,
            LegState::InSync if self.in_sync >> leg & 1 == 1 => LegStanding::InSync,
            // It has all data, and a crash would not leave it so: that is not on record yet.
            LegState::InSync => LegStanding::Resyncing,
            LegState::Resyncing { .. } if self.active >> leg & 1 == 1 => LegStanding::Resyncing,
            LegState::Behind { .. } | LegState::Resyncing { .. } => LegStanding::Behind,
            LegState::Failed { .. } => LegStanding::Failed,
            LegState::Removed { .. } => LegStanding::Removed,
        }
    }

    /// Legs that stand otherwise than was told are told of. How all stand at first is known to whoever opens.
    pub(super) fn tell_standings(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        for leg in 0..self.legs.len() {
            let standing = self.standing(leg, self.state.legs[leg]);
            let told = self.told[leg].replace(standing);
            if told.is_some_and(|told| told != standing) {
                self.news.push(VolumeEvent::Leg { leg: leg as u8, standing, of: None });
                self.news_count = self.news_count.wrapping_add(1);
            }
        }
    }

    /// How it stands, for people. A leg that is about to be copied to counts as such.
    pub fn report(&self) -> MirrorReport {
        let report = |(leg, (state, lacks)): (usize, (LegState, u64))| LegReport {
            standing: self.standing(leg, state),
            lacks,
            absence: self.absence(leg),
            replaces: self.replaces(leg),
        };
        MirrorReport {
            is_open: self.phase == Phase::Serving,
            has_stopped: self.stopped.is_some(),
            is_held_up: self.record.is_given_up(self.now) || self.resync.is_held_up(self.now),
            mended: self.scrub.mended,
            copied: self.resync.copied_bytes,
            grows: self.grows(),
            legs: self.legs().enumerate().map(report).collect(),
        }
    }
}
