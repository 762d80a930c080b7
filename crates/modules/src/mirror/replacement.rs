//! Replacement of a leg while the mirror is in use: another one, which was added for that, comes in its place. Both are legs until the new one has all data and
//! that is on record; only then the old one is removed, as any that is ([`removal`](super::removal)). Until then the old one is read, and written to, as far
//! as it is there. So there are never fewer legs with all data than before, wherever it is cut off (rule 6).
//!
//! Which one goes for which is kept in memory: behind the next opening both are legs as any others, until whoever wanted that asks for it again.

use super::desk::MirrorAskError;
use super::{LEGS_MAX, LegState, Mirror, MirrorCanary};

/// Of each leg that comes in the place of another, which one goes for it.
#[derive(Default)]
pub(super) struct Replacement([Option<u8>; LEGS_MAX]);

impl Mirror {
    /// Has a leg go as soon as another one has all data.
    pub(super) fn begin_replacement(
        &mut self,
        leg: usize,
        by: usize,
    ) -> Result<(), MirrorAskError> {
        if self.config.read_only {
            return Err(MirrorAskError::ReadOnly);
        }
        let is_one = |leg: usize| leg < LEGS_MAX && self.described() >> leg & 1 == 1;
        if let Some(leg) = [leg, by].into_iter().find(|leg| !is_one(*leg)) {
            return Err(MirrorAskError::NoLeg { leg });
        }
        if leg == by {
            return Err(MirrorAskError::HasData { leg });
        }
        // Both are all that it has: none of them could go.
        if self.described().count_ones() == 2 {
            return Err(MirrorAskError::Two);
        }
        self.replacement.0[by] = Some(leg as u8);
        Ok(())
    }

    /// Removes the next leg that another one stands for by now, if nothing else is under way. True: that has begun, or cannot be done and is forgotten.
    pub(super) fn step_replacement(&mut self) -> bool {
        let comes = match self.canary {
            MirrorCanary::ReplacesEarly => self.active,
            _ => self.in_sync,
        };
        let due = |by: &usize| self.replacement.0[*by].is_some() && comes >> by & 1 == 1;
        let Some(by) = (0..self.legs.len()).find(due) else { return false };
        let Some(leg) = self.replacement.0[by] else { return false };
        if !self.desk.begin_own() {
            return false;
        }
        if let Err(why) = self.begin_removal(leg.into()) {
            self.replacement.0[by] = None;
            self.desk.end(Err(why));
        }
        true
    }

    /// A leg was removed, which is on record: who comes in its place next is another, and nobody is waited for that is none.
    pub(super) fn end_replacement(&mut self) {
        for by in 0..self.legs.len() {
            let is_out = |leg: usize| matches!(self.state.legs[leg], LegState::Removed { .. });
            let Some(leg) = self.replacement.0[by] else { continue };
            let is_over = is_out(by) || is_out(leg.into());
            if is_over && self.canary != MirrorCanary::ReplacesWhoeverIsThere {
                self.replacement.0[by] = None;
            }
        }
    }

    /// Which one goes as soon as this one has all data; until that is on record.
    pub(super) fn replaces(&self, by: usize) -> Option<usize> {
        self.replacement.0[by].map(usize::from)
    }
}
