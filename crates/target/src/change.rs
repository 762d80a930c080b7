//! What changes while a target serves, besides its keys: limits, and exports that come and go
//! (`docs/security.md`, "Limits"; `docs/design.md`, "Exports that come and go").

use thinwire_exports::ExportOpening;
use thinwire_volume::Volume;

use crate::{Limits, Target};

impl Target {
    /// Other limits hold from now on. What is there stays, whatever it takes, and may come back to what it has
    /// attached: who comes new finds as much less room.
    pub fn set_limits(&mut self, limits: Limits) {
        self.house.config.limits = limits;
    }

    /// Takes an export of this shard away: sessions that have it open, or wait for it, end. Their initiators greet
    /// again, and are told that it is not there; nobody else is disturbed. What is under way in its volume ends by
    /// itself, and then [`Target::take_gone`] has that.
    ///
    /// Returns how many sessions were ended.
    ///
    /// # Panics
    /// If there is no export of this name, or other shards have it, too.
    pub fn remove_export(&mut self, name: &str) -> usize {
        let export = self.house.exports.find(name).expect("an export of this target");
        let ended = self.end_sessions_of(export, name);
        self.offered_names.retain(|offered| offered != name);
        self.house.exports.leave(export);
        ended
    }

    /// Ends the sessions that have an export open, or wait for it; how many.
    pub(crate) fn end_sessions_of(&mut self, export: usize, name: &str) -> usize {
        let mut ended = 0;
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_deref() else { continue };
            let session = peer.session.local_id();
            if self.house.exports.names_wanted(session).any(|wanted| wanted == name) {
                self.end(index);
                ended += 1;
            }
        }
        ended + self.remove_from_guests(export)
    }

    /// There is an export of this name on this shard.
    pub fn has_export(&self, name: &str) -> bool {
        self.house.exports.find(name).is_some()
    }

    /// Exports that were taken away, and have something under way.
    pub fn leaving(&self) -> impl Iterator<Item = &str> {
        self.house.exports.leaving()
    }

    /// The next export that was taken away and has nothing under way any more, and its volume, synced. What is left
    /// of it is the caller's.
    pub fn take_gone(&mut self) -> Option<(ExportOpening, Box<dyn Volume>)> {
        self.house.exports.take_gone()
    }
}
