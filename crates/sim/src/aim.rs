//! Crashes that come with a change of state of an initiator: its own, or that of the target that it talks to. Those
//! that come at any moment seldom meet the short ones.

use crate::server::Crash;
use crate::transitions::Change;

/// Whom it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The initiator: what it was about to send is not sent, if the change came with what it had received.
    Initiator,
    /// The server of its export.
    Target(Crash),
}

/// A crash that waits for a change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AimedCrash {
    /// Which change.
    pub change: Change,
    /// How often it happens before it brings the crash.
    pub spared: u32,
    /// Whom it hits.
    pub victim: Victim,
}

/// Those of a client, in no order; each strikes once.
#[derive(Clone, Debug, Default)]
pub struct Aims {
    waiting: Vec<AimedCrash>,
}

impl Aims {
    /// One more.
    pub fn add(&mut self, aim: AimedCrash) {
        self.waiting.push(aim);
    }

    /// None is left.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// This has happened: whom it hits, if it hits somebody. One at a time.
    pub fn strike(&mut self, change: Change) -> Option<Victim> {
        let mut hit = None;
        for (at, aim) in self.waiting.iter_mut().enumerate().filter(|(_, a)| a.change == change) {
            if aim.spared > 0 {
                aim.spared -= 1;
            } else {
                hit = hit.or(Some(at));
            }
        }
        hit.map(|at| self.waiting.swap_remove(at).victim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_comes_once_and_when_it_is_due() {
        let mut changes = Change::all();
        let (change, other) = (changes.next().unwrap(), changes.next().unwrap());
        let mut aims = Aims::default();
        let target = Victim::Target(Crash::Kill);
        aims.add(AimedCrash { change, spared: 1, victim: Victim::Initiator });
        aims.add(AimedCrash { change, spared: 1, victim: target });
        aims.add(AimedCrash { change: other, spared: 0, victim: Victim::Initiator });
        assert_eq!(aims.strike(change), None);
        assert_eq!(aims.strike(other), Some(Victim::Initiator));
        assert_eq!(aims.strike(other), None);
        let both = [aims.strike(change), aims.strike(change)];
        assert_eq!(both, [Some(Victim::Initiator), Some(target)]);
        assert_eq!(aims.strike(change), None);
    }
}
