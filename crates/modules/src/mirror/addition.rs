//! Addition of a leg while the mirror is in use: a row for it is on record, on all legs that are written, before whoever asked is told. It has nothing
//! yet, and is known by nothing, so what becomes of it is a matter of [`return_leg`](Mirror::return_leg): the part that is to be it gets the label of the
//! answer, from whoever asked, and comes as a leg that was away. It counts once its resync is flushed, and that is on record (rule 6).

use super::desk::{LegNeeds, MirrorAskError, MirrorDone, NewLeg};
use super::state::{LegState, NO_GENERATION};
use super::{LEGS_MAX, Mirror, MirrorCanary, bits};
use crate::meta::{Label, LabelPart};

/// What is under way, and what it has led to.
#[derive(Default)]
pub(super) struct Addition {
    /// Of this leg the row is being put on record.
    recording: Option<usize>,
    /// Rows that are there, as bits, and no part has come for yet.
    awaited: u8,
}

impl Addition {
    /// A part has come for that leg: whether it was the first.
    pub fn take_awaited(&mut self, leg: usize) -> bool {
        let was = self.awaited;
        self.awaited &= !(1 << leg);
        was != self.awaited
    }
}

impl Mirror {
    /// Which leg the next part is that is added: one whose row is there already, one in the place of a removed one that is let go of, or one more.
    fn next_leg(&self) -> Result<usize, MirrorAskError> {
        let is_free = |leg: &usize| {
            let is_removed = matches!(self.state.legs[*leg], LegState::Removed { .. });
            is_removed && !self.removing && self.legs[*leg].is_none()
        };
        let begun = bits(self.addition.awaited).next();
        let free = || (0..self.legs.len()).find(is_free);
        match begun.or_else(free) {
            Some(leg) => Ok(leg),
            None if self.legs.len() < LEGS_MAX => Ok(self.legs.len()),
            None => Err(MirrorAskError::Full),
        }
    }

    /// Looks which leg comes next, and if that is wanted puts it on record. The part of one more is known by that UUID.
    pub(super) fn begin_addition(
        &mut self,
        uuid: [u8; 16],
        wanted: Option<usize>,
        only_look: bool,
    ) -> Result<(), MirrorAskError> {
        if self.config.read_only || self.geometry.features.read_only {
            return Err(MirrorAskError::ReadOnly);
        }
        let has_nothing =
            |leg: usize| self.state.legs.get(leg) == Some(&nothing()) && self.legs[leg].is_none();
        let leg = match wanted {
            None => self.next_leg()?,
            Some(leg) if leg >= self.legs.len() => return Err(MirrorAskError::NoLeg { leg }),
            Some(leg) if !has_nothing(leg) => return Err(MirrorAskError::HasData { leg }),
            Some(leg) => leg,
        };
        if only_look || wanted.is_some() || self.addition.awaited >> leg & 1 == 1 {
            self.tell_addition(leg, uuid);
            return Ok(());
        }
        if leg == self.legs.len() {
            self.legs.push(None);
            self.parts.push(LabelPart { uuid, bytes: self.bytes });
            self.state.legs.push(nothing());
            self.regions.set_legs(self.legs.len());
        }
        self.state.legs[leg] = nothing();
        self.addition.awaited |= 1 << leg;
        self.addition.recording = Some(leg);
        if self.canary == MirrorCanary::AdditionToldEarly {
            self.end_addition();
        }
        self.record.want();
        Ok(())
    }

    /// It is on record.
    pub(super) fn end_addition(&mut self) {
        if let Some(leg) = self.addition.recording.take() {
            self.tell_addition(leg, self.parts[leg].uuid);
        }
    }

    /// Tells whoever asked what the label of that leg is to be.
    fn tell_addition(&mut self, leg: usize, uuid: [u8; 16]) {
        let label = self.label_of_new(leg, uuid);
        let leg = NewLeg { label, needs: LegNeeds::of(&self.geometry) };
        self.desk.end(Ok(MirrorDone { bytes: self.geometry.bytes, leg: Some(Box::new(leg)) }));
    }

    /// What a part says that has nothing yet, and is to be that leg.
    fn label_of_new(&mut self, leg: usize, uuid: [u8; 16]) -> Label {
        let lead = bits(self.in_sync).find_map(|leg| self.legs[leg].as_ref());
        let lead = lead.expect("one leg is in sync");
        let mut state = self.state.clone();
        let mut parts = self.parts.clone();
        if leg == parts.len() {
            parts.push(LabelPart { uuid, bytes: self.bytes });
            state.legs.push(nothing());
        }
        let state = state.of_replacement(leg, self.config.generations.draw());
        let (role, state) = (leg as u16, state.encode());
        Label { role, parts, state, whole_bytes: self.bytes, work: None, ..lead.label.clone() }
    }
}

/// A leg that has nothing, and is known by nothing.
fn nothing() -> LegState {
    LegState::Behind { at: NO_GENERATION.into() }
}
