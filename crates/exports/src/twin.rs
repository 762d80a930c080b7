//! Two live processes with one identity (containers that share a network, copies of a machine): the
//! second must not take an export over from the first without a word (`docs/protocol.md`, "Twins").
//! Who comes back after a crash has the same identity, too, so the first is asked whether it still
//! lives.

use std::time::Duration;

use thinwire_buffer::Time;

use crate::claims::PendingClaim;
use crate::exports::Exports;
use crate::users::{InitiatorRun, Users};

/// A holder that has not answered in this time is gone. What comes back after a crash waits for it;
/// a process that stands still for as long is taken over by its successor.
const PATIENCE: Duration = Duration::from_millis(500);
/// Twins of one holder that are remembered.
const TWINS_MAX: usize = 8;

/// What a claim that may be a twin's knows of the present holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    /// It says that it is the holder, or takes over from whoever is: nobody need be asked.
    Cleared,
    /// Its turn has not come.
    Unasked,
    /// This run of the holder is asked, since then.
    Asked(u64, Time),
}

/// What became of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// It may still answer.
    Unknown,
    /// It has answered: this claim is a twin's.
    Alive,
    /// There is nobody who could.
    None,
}

impl Twin {
    /// When it must be looked at again.
    pub fn due(&self) -> Option<Time> {
        match self {
            Twin::Asked(_, since) => Some(*since + PATIENCE),
            Twin::Cleared | Twin::Unasked => None,
        }
    }
}

impl Exports {
    /// Looks whether another run of the initiator that this claim is of holds the export, and lives.
    /// To be called when it is the next to be granted: the holder is the one in force then.
    pub(crate) fn look_for_twin(&mut self, now: Time, at: usize, users: &mut dyn Users) -> Pulse {
        let claim = &mut self.claims[at];
        if claim.twin == Twin::Cleared {
            return Pulse::None;
        }
        let InitiatorRun { initiator, instance } = claim.user.run;
        let export = claim.export;
        let e = &mut self.exports[export];
        let lives = e.role.lives(claim.twin);
        let holder = e.holder.as_mut();
        let holder = holder.filter(|h| h.run.initiator == initiator && h.run.instance != instance);
        let Some(holder) = holder else {
            claim.twin = Twin::Cleared;
            return Pulse::None;
        };
        match claim.twin {
            Twin::Asked(asked, since) if asked == holder.run.instance => {
                // What it had sent before says nothing: it must answer what it is sent from here on.
                if lives || users.has_answered(holder.run, since) {
                    holder.twins.truncate(TWINS_MAX - 1);
                    holder.twins.insert(0, instance);
                    return Pulse::Alive;
                }
                if now < since + PATIENCE {
                    return Pulse::Unknown;
                }
                claim.twin = Twin::Cleared;
                Pulse::None
            }
            _ => {
                let run = holder.run;
                let is_asked = users.ask(now, run) | self.ask_branches(export, run);
                let claim = &mut self.claims[at];
                if !is_asked {
                    claim.twin = Twin::Cleared;
                    return Pulse::None;
                }
                claim.twin = Twin::Asked(run.instance, now);
                Pulse::Unknown
            }
        }
    }

    /// What the second of the two is told: it fits an explanation with the longest names.
    pub(crate) fn twin_text(&self, claim: &PendingClaim) -> String {
        let name = &self.exports[claim.export].name;
        format!(
            "export {name} is held by a process with the same identity ({}), which is alive",
            claim.user.name
        )
    }
}
