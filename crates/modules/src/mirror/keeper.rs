//! Legs that come back while the mirror is in use (rule 22): [`LegKeeper`], and when it is asked; and those that come back with other
//! content (rule 16).

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{LegAbsence, Volume};

use super::opening::Phase;
use super::{LegState, Mirror, MirrorCanary, MirrorError, MirrorLeg, NO_GENERATION};

/// How often is looked whether a leg is back.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How the legs of a mirror stand for whoever brings them, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegsInUse {
    /// They have all data.
    pub in_sync: u8,
    /// Something is done with them, or about to be; the mirror goes without all others.
    pub used: u8,
    /// They do not come back: they are no legs any more, which is on record, or have other content than they had.
    pub out: u8,
    /// Those of them that are no legs any more.
    pub removed: u8,
}

/// Who gives a mirror back the legs that it has dropped, or that were missing when it was opened. Asked by the turns of the mirror, so
/// it does not wait: what takes time is done between them.
pub trait LegKeeper {
    /// Whether it can bring back this leg, which the mirror has.
    fn keeps(&self, leg: usize) -> bool;

    /// A leg that it keeps was dropped, and nothing is done with it any more. What is outstanding there is nobody's, and may still take
    /// effect: it comes back when that is over.
    fn give_up(&mut self, leg: usize, volume: Box<dyn Volume>);

    /// The same of a leg that was removed, and does not come back.
    fn let_go(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let _ = (leg, volume);
    }

    /// Some leg may come back.
    fn awaits(&self) -> bool;

    /// A leg that is back, and which one that is: its content is the one that its label was written on, the mirror has found out the
    /// rest.
    fn take(&mut self) -> Option<(usize, MirrorLeg)>;

    /// How what it has brought was taken.
    ///
    /// # Errors
    /// It was not, and is gone.
    fn taken(&mut self, leg: usize, result: Result<(), MirrorError>);

    /// How the legs stand: in each turn, before anything else.
    fn look(&mut self, legs: LegsInUse) {
        let _ = legs;
    }

    /// A leg that is there with other content than it had: what was lost of it does not come back (rule 16). Each is told once.
    fn take_failed(&mut self) -> Option<usize> {
        None
    }

    /// The mirror has stopped (rule 18): it takes nothing any more, and what was about to come is let go of, without a write. Told once.
    fn stop(&mut self) {}

    /// Why this leg, which the mirror goes without, is not back.
    fn absence(&self, leg: usize) -> LegAbsence {
        let _ = leg;
        LegAbsence::default()
    }
}

impl Mirror {
    /// Gives up what was dropped, and takes what is back. When to look again.
    pub(super) fn step_keeper(&mut self) -> Time {
        let Some(mut keeper) = self.config.keeper.take() else { return Time::NEVER };
        let mut next = Time::NEVER;
        if self.phase == Phase::Serving {
            keeper.look(self.legs_in_use());
        }
        // One that is about to end has no use for them.
        if self.phase == Phase::Serving && !self.is_ending() && !self.config.read_only {
            for leg in 0..self.legs.len() {
                // One with other content is not what was lost (rule 16).
                let stands = self.state.legs[leg];
                let is_removed = matches!(stands, LegState::Removed { .. });
                let may_return = !is_removed && !matches!(stands, LegState::Failed { .. });
                if (may_return || (is_removed && !self.removing))
                    && self.is_given_up(leg)
                    && keeper.keeps(leg)
                    && let Some(volume) = self.give_up_leg(leg)
                {
                    match is_removed {
                        true => keeper.let_go(leg, volume),
                        false => keeper.give_up(leg, volume),
                    }
                }
            }
            while let Some(leg) = keeper.take_failed() {
                self.fail_given_up(leg);
            }
            while let Some((leg, back)) = keeper.take() {
                keeper.taken(leg, self.return_leg(leg, back));
            }
            if keeper.awaits() {
                next = self.now + LOOK_EVERY;
            }
        }
        self.config.keeper = Some(keeper);
        next
    }

    fn legs_in_use(&self) -> LegsInUse {
        let is_out = |state: &LegState| match state {
            LegState::Removed { .. } => !self.removing,
            LegState::Failed { .. } => true,
            LegState::InSync | LegState::Behind { .. } | LegState::Resyncing { .. } => false,
        };
        let legs = self.state.legs.iter().enumerate();
        let (mut out, mut removed) = (0, 0);
        for (leg, state) in legs.filter(|(_, state)| is_out(state)) {
            out |= 1 << leg;
            removed |= u8::from(matches!(state, LegState::Removed { .. })) << leg;
        }
        let used = self.active | self.record.joining;
        LegsInUse { in_sync: self.in_sync, used, out, removed }
    }

    /// A leg that was given up, or was missing, has other content than it had: that is on record from now on, and nothing is written there.
    fn fail_given_up(&mut self, leg: usize) {
        let is_there = self.legs.get(leg).is_none_or(Option::is_some);
        if is_there || !self.is_given_up(leg) || self.canary == MirrorCanary::FailsNobody {
            return;
        }
        if let LegState::Behind { at } | LegState::Resyncing { at } = self.state.legs[leg]
            // What it has not got yet it cannot have lost.
            && at != NO_GENERATION.into()
        {
            self.state.legs[leg] = LegState::Failed { at };
            self.record.want();
        }
    }
}
