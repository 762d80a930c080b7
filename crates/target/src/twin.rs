//! Two live processes with one identity (containers that share a network, copies of a machine): the
//! second must not take an export over from the first without a word (`docs/protocol.md`,
//! "Attachments"). Who comes back after a crash has the same identity, too, so the first is asked
//! whether it still lives.

use std::time::Duration;

use thinwire_proto::Time;

use crate::house::{House, PendingAttach};
use crate::peer::Peer;

/// A holder that has not answered in this time is gone. What comes back after a crash waits for it;
/// a process that stands still for as long is taken over by its successor.
const PATIENCE: Duration = Duration::from_millis(500);
/// The question is asked again after this, since it or its answer may be lost.
const AGAIN: Duration = Duration::from_millis(120);

/// A holder that is asked whether it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Twin {
    /// Its session.
    session: u64,
    /// When it was asked first, and last.
    asked: Option<(Time, Time)>,
}

/// What is known of it.
pub(crate) enum Pulse {
    /// It may still answer.
    Unknown,
    /// It has answered.
    Alive,
    /// It has not, or its session has ended.
    Gone,
}

impl Twin {
    /// When it must be looked at again.
    pub fn due(&self) -> Option<Time> {
        self.asked.map(|(first, last)| (first + PATIENCE).min(last + AGAIN))
    }

    /// Asks, and looks for the answer.
    pub fn look(&mut self, now: Time, peers: &mut [Option<Box<Peer>>]) -> Pulse {
        let mut living = peers.iter_mut().flatten();
        let Some(peer) = living.find(|peer| peer.session.local_id() == self.session) else {
            return Pulse::Gone;
        };
        let (first, last) = match self.asked {
            // What it had sent before says nothing: it must answer what is asked from here on.
            Some((first, _)) if peer.session.answered_since(first) => return Pulse::Alive,
            Some((first, _)) if now >= first + PATIENCE => return Pulse::Gone,
            Some((first, last)) if now < last + AGAIN => (first, last),
            Some((first, _)) => {
                peer.session.ask(now);
                (first, now)
            }
            None => {
                peer.session.ask(now);
                (now, now)
            }
        };
        self.asked = Some((first, last));
        Pulse::Unknown
    }
}

impl House {
    /// The session in which another run of this initiator holds the export, as far as is known.
    pub fn twin_of(&self, peer: &Peer, export: usize) -> Option<Twin> {
        let holder = self.exports[export].holder.as_ref()?;
        let other = holder.initiator == peer.initiator && holder.instance != peer.instance;
        other.then_some(Twin { session: holder.session, asked: None })
    }

    /// What the second of the two is told.
    pub fn twin_refusal(&self, p: &PendingAttach) -> String {
        format!(
            "export {} is held by another process with the same identity as this one ({}), which is \
             alive: two machines, containers or copies that present one identity cannot both write. \
             Detach it there, give this one another identity (--run-dir), or say --take-over to fence it",
            self.exports[p.export].name, p.name
        )
    }
}
