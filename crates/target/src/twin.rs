//! Two live processes with one identity (containers that share a network, copies of a machine): the
//! second must not take an export over from the first without a word (`docs/protocol.md`,
//! "Attachments"). Who comes back after a crash has the same identity, too, so the first is asked
//! whether it still lives.

use std::time::Duration;

use thinwire_proto::{Item, Time};

use crate::house::{House, PendingAttach};
use crate::peer::Peer;

/// A holder that has not answered in this time is gone. What comes back after a crash waits for it;
/// a process that stands still for as long is taken over by its successor.
const PATIENCE: Duration = Duration::from_millis(500);
/// Twins of one holder that are remembered.
const TWINS_MAX: usize = 8;

/// What an attach that may be a twin's knows of the present holder.
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
    /// It has answered: this attach is a twin's.
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

impl House {
    /// Looks whether another run of the initiator that this attach is of holds the export, and lives.
    /// To be called when it is the next to be granted: the holder is the one in force then.
    pub fn look_for_twin(
        &mut self,
        now: Time,
        at: usize,
        peers: &mut [Option<Box<Peer>>],
    ) -> Pulse {
        let p = &mut self.pending[at];
        if p.twin == Twin::Cleared {
            return Pulse::None;
        }
        let holder = self.exports[p.export].holder.as_mut();
        let holder = holder.filter(|h| h.initiator == p.initiator && h.instance != p.instance);
        let Some(holder) = holder else {
            p.twin = Twin::Cleared;
            return Pulse::None;
        };
        let run = (holder.initiator, holder.instance);
        let mut sessions = peers.iter_mut().flatten();
        let mut living = sessions.by_ref().filter(|peer| (peer.initiator, peer.instance) == run);
        match p.twin {
            Twin::Asked(instance, since) if instance == holder.instance => {
                // What it had sent before says nothing: it must answer what it is sent from here on.
                if living.any(|peer| peer.session.answered_since(since)) {
                    holder.twins.truncate(TWINS_MAX - 1);
                    holder.twins.insert(0, p.instance);
                    return Pulse::Alive;
                }
                if now < since + PATIENCE {
                    return Pulse::Unknown;
                }
                p.twin = Twin::Cleared;
                Pulse::None
            }
            _ => {
                let mut asked = 0;
                for peer in living {
                    peer.session.ask(now);
                    // Sent again until it is acknowledged, which is an answer, too.
                    peer.session.send(Item::Ping);
                    asked += 1;
                }
                if asked == 0 {
                    p.twin = Twin::Cleared;
                    return Pulse::None;
                }
                p.twin = Twin::Asked(holder.instance, now);
                Pulse::Unknown
            }
        }
    }

    /// What the second of the two is told: it fits an explanation with the longest names.
    pub fn twin_refusal(&self, p: &PendingAttach) -> String {
        let name = &self.exports[p.export].name;
        format!(
            "export {name} is held by a process with the same identity ({}), which is alive",
            p.name
        )
    }
}
