//! Exports that are taken away while the others are served (`docs/design.md`, "Exports that come and go").
//!
//! [`Exports::leave`] begins it: nobody opens the export any more. What is in its volume ends, so does what is being
//! recorded, as when a node ends in order; then the volume is synced once, and [`Exports::take_gone`] gives it out. Its
//! place is kept, since others are known by theirs, and is the next one's.

use thinwire_volume::{Completion, Io, Op, Volume};

use crate::exports::{DoorCanary, Export, Exports, LEFT_KEPT, LastGrants, Presence};
use crate::opening::ExportOpening;
use crate::record::{RECORD_TOKEN, RecordState};

/// Tokens of the last sync of an export have this bit, besides [`RECORD_TOKEN`], and its index.
pub(crate) const LAST_SYNC_TOKEN: u64 = 1 << 61;

impl Exports {
    /// Takes an export away: to all who look for it, it is not there any more. The caller has ended the sessions that
    /// had it open or waited for it.
    ///
    /// # Panics
    /// If other shards have it, too.
    pub fn leave(&mut self, export: usize) {
        let e = &mut self.exports[export];
        assert!(e.role.is_plain(), "export {} is spread", e.name);
        assert_eq!(e.presence, Presence::There, "export {} leaves twice", e.name);
        e.presence = Presence::Draining;
        self.leaving += 1;
        // Nothing else may come that would have it looked at.
        self.started = true;
    }

    /// Exports that have been taken away, and are not gone.
    pub fn leaving(&self) -> impl Iterator<Item = &str> {
        self.exports.iter().filter(|e| e.presence.is_leaving()).map(|e| e.name.as_str())
    }

    /// Nothing of it is under way any more, nor will be.
    fn may_go(&self, export: &Export) -> bool {
        let at_once = self.config.canary == DoorCanary::LeavesAtOnce;
        export.presence == Presence::Synced && (at_once || export.volume.is_at_rest())
    }

    /// [`Exports::take_gone`] has one.
    #[inline]
    pub fn has_gone(&self) -> bool {
        self.leaving > 0 && self.exports.iter().any(|e| self.may_go(e))
    }

    /// The next export that has been taken away and has nothing under way any more, and its volume.
    pub fn take_gone(&mut self) -> Option<(ExportOpening, Box<dyn Volume>)> {
        if !self.has_gone() {
            return None;
        }
        let export = self.exports.iter().position(|e| self.may_go(e))?;
        self.leaving -= 1;
        Some(self.vacate(export))
    }

    /// An attach that comes late outlives the export that it is for: when that is back, who has it must not be fenced by
    /// a former self. It may be back already, as another volume.
    pub(crate) fn keep_grants(&mut self, name: &str, granted: LastGrants) {
        if let Some(export) = self.find(name) {
            self.exports[export].remember(granted);
        } else if !granted.is_empty() {
            self.left.retain(|(left, _)| left != name);
            if self.left.len() == LEFT_KEPT {
                self.left.pop_front();
            }
            self.left.push_back((name.to_owned(), granted));
        }
    }

    /// A place that an export has left.
    pub(crate) fn vacant(&self) -> Option<usize> {
        self.exports.iter().position(|e| e.presence == Presence::Gone)
    }

    /// Goes on with those that leave.
    #[cold]
    pub(crate) fn settle_leaving(&mut self) {
        let at_once = self.config.canary == DoorCanary::LeavesAtOnce;
        for export in 0..self.exports.len() {
            if self.exports[export].presence == Presence::Draining
                && (at_once || self.is_dry(export))
            {
                self.sync_last(export);
            }
        }
    }

    /// Nothing is under way, and nobody waits for any of it.
    fn is_dry(&self, export: usize) -> bool {
        let e = &self.exports[export];
        let is_idle = matches!(
            e.record,
            RecordState::Settled | RecordState::Unread(_) | RecordState::Unresolved(_)
        );
        let is_its = |pass: usize| self.passes[pass].export == export;
        is_idle
            && e.volume.is_at_rest()
            && e.claims == 0
            && !self.closings.iter().any(|closing| closing.export == export)
            && !self.ios.iter().flatten().any(|io| is_its(io.pass))
    }

    fn sync_last(&mut self, export: usize) {
        // A record that could not be put back is not tried again: that may be under way when the sync has ended.
        self.unresolved.remove(export);
        let e = &mut self.exports[export];
        let at_once = self.config.canary == DoorCanary::LeavesAtOnce;
        if at_once || e.read_only || e.volume.geometry().features.read_only {
            e.presence = Presence::Synced;
            return;
        }
        e.presence = Presence::Syncing;
        let token = RECORD_TOKEN | LAST_SYNC_TOKEN | export as u64;
        e.volume.submit(Io::new(token, Op::Flush, 0, 0));
        self.to_poll.insert(export);
        (self.started, self.goes_on) = (true, true);
    }

    /// That has ended, however.
    pub(crate) fn on_last_sync(&mut self, export: usize, completion: &Completion) {
        if let Err(error) = completion.result {
            self.on_fenced_io(export, &error);
        }
        if self.is_fenced(export) {
            return;
        }
        let e = &mut self.exports[export];
        e.presence = Presence::Synced;
        if let Err(error) = completion.result {
            let name = &e.name;
            let text = format!(
                "export {name}: taken away, and what was written to it last may be lost: {error}"
            );
            self.note(text);
        }
    }
}
