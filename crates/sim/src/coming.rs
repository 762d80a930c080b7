//! Exports that a reload takes away from a target that serves, and brings back: as its runtime does it, in the same
//! order (`docs/design.md`, "Exports that come and go").

use crate::export::{Export, Store};
use crate::world::{SECOND, World};

/// So long after an export came back somebody may still be told that it is not there.
const LATE_REFUSAL: u64 = 15 * SECOND;

/// Whether a target that runs offers an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// As ever.
    #[default]
    There,
    /// It was taken away, and its volume is still there.
    Leaving {
        /// It comes back as soon as that is gone.
        comes_back: bool,
    },
    /// Nothing of it is left.
    Gone,
}

impl Export {
    /// It can be taken away: it is one store of its target's machine, which one shard has.
    pub fn can_leave(&self) -> bool {
        !self.is_spread && !self.is_leaf && !matches!(self.store, Store::Tree(_) | Store::Pool(_))
    }

    /// Somebody may be told that there is no such export, or none for this key.
    pub fn may_be_missed(&self, now: u64) -> bool {
        now < self.barred_until.max(self.away_until)
    }

    /// Its target offers it from now on.
    pub(crate) fn is_there_again(&mut self, now: u64) {
        self.presence = Presence::There;
        if self.away_until == u64::MAX {
            self.away_until = now + LATE_REFUSAL;
        }
    }
}

impl World {
    /// Takes an export away. False if it cannot be, or is not served now.
    pub fn take_away(&mut self, export: usize) -> bool {
        let e = &mut self.exports[export];
        if e.presence != Presence::There || !e.can_leave() {
            return false;
        }
        let server = &mut self.servers[e.server];
        let Some(target) = server.target_with(&e.name) else { return false };
        self.coverage.sessions_taken_away += target.remove_export(&e.name) as u64;
        self.coverage.exports_taken_away += 1;
        (e.presence, e.away_until) = (Presence::Leaving { comes_back: false }, u64::MAX);
        self.trace.note(self.now, "export", "is taken away", export as u64);
        let server = e.server;
        self.servers[server].tell_of_all(server, &self.exports);
        true
    }

    /// Brings it back, now or once its volume is gone. If its target does not run, it has it when it starts.
    pub fn bring_back(&mut self, export: usize) {
        let e = &mut self.exports[export];
        match &mut e.presence {
            Presence::There => {}
            Presence::Leaving { comes_back } => *comes_back = true,
            Presence::Gone => {
                let server = e.server;
                if self.servers[server].offer_again(export, e) {
                    e.is_there_again(self.now);
                    self.coverage.exports_back += 1;
                    self.trace.note(self.now, "export", "comes back", export as u64);
                    self.servers[server].tell_of_all(server, &self.exports);
                }
            }
        }
    }

    /// Drops the volumes that are left of exports which were taken away.
    pub(crate) fn let_go_of_gone(&mut self) {
        while self.exports.iter().any(|e| matches!(e.presence, Presence::Leaving { .. })) {
            let mut servers = self.servers.iter_mut().enumerate();
            let gone = servers.find_map(|(at, server)| Some((at, server.take_gone()?)));
            let Some((server, (opening, volume))) = gone else { return };
            drop(volume);
            let mut exports = self.exports.iter();
            let gone = exports.position(|e| e.server == server && e.name == opening.name);
            let gone = gone.expect("an export of its server");
            let e = &mut self.exports[gone];
            // With a store that failed to sync something is lost.
            e.upheavals += 1;
            let before = std::mem::replace(&mut e.presence, Presence::Gone);
            if before == (Presence::Leaving { comes_back: true }) {
                self.bring_back(gone);
            }
        }
    }
}
