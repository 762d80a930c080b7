//! Removal of a leg while the mirror is in use: it is dropped, and on record as none, on all others, before whoever asked is told (rule 3). What it had
//! outstanding is nobody's from then on (rule 22).

use super::desk::{MirrorAskError, MirrorDone};
use super::state::{LeftAt, LegState, NO_GENERATION};
use super::{Mirror, MirrorCanary};

impl Mirror {
    pub(super) fn begin_removal(&mut self, leg: usize) -> Result<(), MirrorAskError> {
        if self.config.read_only {
            return Err(MirrorAskError::ReadOnly);
        }
        let (described, bit) = (
            self.described(),
            u32::try_from(leg).ok().and_then(|leg| 1_u8.checked_shl(leg)).unwrap_or(0),
        );
        if described & bit == 0 {
            return Err(MirrorAskError::NoLeg { leg });
        }
        if described.count_ones() == 2 {
            return Err(MirrorAskError::Two);
        }
        if self.in_sync & !bit == 0 {
            return Err(MirrorAskError::LastInSync { leg });
        }
        // As it is known: what is there from now on is old, however long ago that is.
        let known = self.state.legs[leg].left_at();
        let own = self.legs[leg].as_ref().map(|at| at.left_at());
        let on_record = LeftAt { last: self.recorded.generation, or: NO_GENERATION };
        let at = known.or(own).unwrap_or(on_record);
        self.drop_leg(leg, false);
        // Nor does a part come for it, if none has yet.
        self.addition.take_awaited(leg);
        let at = self.state.legs[leg].left_at().unwrap_or(at);
        self.state.legs[leg] = LegState::Removed { at };
        self.removing = true;
        if self.canary == MirrorCanary::RemovalToldEarly {
            self.end_removal();
        }
        self.record.want();
        Ok(())
    }

    /// It is on record.
    pub(super) fn end_removal(&mut self) {
        if std::mem::take(&mut self.removing) {
            self.end_replacement();
            self.desk.end(Ok(MirrorDone::of(self.geometry.bytes)));
        }
    }
}
