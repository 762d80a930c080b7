//! What happens to the volumes: losses, which change the verifier, and growth, which is told to whoever
//! has the export open (`docs/design.md`, "What happens to a volume").

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::VolumeEvent;

use crate::exports::{DoorCanary, Exports, Presence, VOLUME_NEWS};
use crate::spread::{Role, Word};
use crate::users::{Pass, Users};

/// How often volumes look whether what they lie on has grown: a look at a file costs a system call.
const REFRESH: Duration = Duration::from_secs(1);
/// How many of them in one turn: so many system calls take less than a disk does for one request.
const LOOKS_PER_TURN: usize = 64;
/// When the next of them look, if there are more.
const NEXT_LOOKS: Duration = Duration::from_millis(1);

/// The round in which volumes look whether what they lie on has grown.
pub(crate) struct Refresh {
    /// When the next of them look.
    pub at: Time,
    /// The first that looks then; 0 if a round begins with it.
    next: usize,
    begun: Time,
    /// One that looked in this round may have something to find the next time.
    any: bool,
}

impl Refresh {
    /// Nobody has anything to look at.
    pub fn new() -> Self {
        Refresh { at: Time::NEVER, next: 0, begun: Time::ZERO, any: false }
    }
}

impl Exports {
    /// Takes in what has happened to the volume of an export, if anything has. To be called before anybody
    /// is told of anything that ended since.
    #[inline]
    pub(crate) fn check_events(&mut self, export: usize) {
        let e = &mut self.exports[export];
        let events = e.volume.events();
        if events != e.events {
            e.events = events;
            self.take_events(export);
        }
    }

    /// What happens to one may happen to others that lie on the same: asks all of them.
    #[cold]
    pub(crate) fn check_all_events(&mut self) {
        for export in 0..self.exports.len() {
            if !self.is_fenced(export) {
                self.check_events(export);
            }
        }
        self.news &= !VOLUME_NEWS;
    }

    fn take_events(&mut self, export: usize) {
        // The others may have heard nothing of it yet, and its volume may go on from here.
        self.news |= VOLUME_NEWS;
        self.to_poll.insert(export);
        let mut events = Vec::new();
        self.exports[export].volume.poll_events(&mut events);
        for event in events {
            match event {
                VolumeEvent::Lost => self.on_loss(export),
                VolumeEvent::Shrunk => self.exports[export].has_shrunk = true,
                // Those who use the export keep nothing of it, or hear of it by themselves.
                VolumeEvent::Stale => {}
                VolumeEvent::Resized { .. } => {
                    let e = &mut self.exports[export];
                    e.has_grown = true;
                    self.to_tell.insert(export);
                    if e.role.is_branch() {
                        // What its owner's has grown by meanwhile was not begun: one at a time is taken on.
                        e.volume.refresh();
                    }
                }
                VolumeEvent::Fenced { of } => {
                    let what = of.as_deref().map(|path| format!("{path}, of which it is made,"));
                    self.on_fence(export, what.as_deref().unwrap_or("what it is made of"));
                }
                VolumeEvent::Leg { .. }
                | VolumeEvent::BadBlock { .. }
                | VolumeEvent::Unverified { .. } => {
                    let name = &self.exports[export].name;
                    let news = event.news_of_legs().or(event.news_of_sums()).unwrap_or_default();
                    self.note(format!("export {name}: {news}"));
                }
                VolumeEvent::Unreachable { bytes } => {
                    let name = &self.exports[export].name;
                    self.note(format!(
                        "export {name}: a volume that others lie behind has grown: {bytes} bytes of \
                         it cannot be reached. Opened again, the export would be another volume: make \
                         that one as large as it was before this target is stopped"
                    ));
                }
            }
        }
    }

    /// Completed writes may be lost: a new verifier tells.
    fn on_loss(&mut self, export: usize) {
        self.exports[export].losses += 1;
        let deaf =
            matches!(self.config.canary, DoorCanary::SameVerifier | DoorCanary::LossesUnnoticed);
        if !deaf {
            self.change_verifier(export);
        }
    }

    /// Has the volumes look whether what they lie on has grown, each once a second, a bounded number in one
    /// turn. To be called before [`Exports::poll`], which takes in what comes of it.
    #[inline]
    pub fn refresh(&mut self, now: Time) {
        if now >= self.refresh.at {
            self.refresh_volumes(now);
        }
    }

    /// Nobody looks again if no volume has anything to look at.
    fn refresh_volumes(&mut self, now: Time) {
        let Refresh { at, next, begun, any } = &mut self.refresh;
        if *next == 0 {
            (*begun, *any) = (now, false);
        }
        let count = self.exports.len();
        let end = count.min(*next + LOOKS_PER_TURN);
        for export in *next..end {
            let e = &mut self.exports[export];
            // A branch's looks when its owner's has found some.
            let is_there = e.presence == Presence::There;
            if is_there && !e.role.is_branch() && e.volume.refresh() {
                *any = true;
                // What it finds comes out of a poll.
                self.to_poll.insert(export);
            }
        }
        (*next, *at) = match (end < count, *any) {
            (true, _) => (end, now + NEXT_LOOKS),
            (false, true) => (0, (*begun + REFRESH).max(now + NEXT_LOOKS)),
            (false, false) => (0, Time::NEVER),
        };
    }

    /// Tells what there is to tell of exports: to those who have them open, and to other shards.
    #[cold]
    pub(crate) fn tell(&mut self, now: Time, users: &mut dyn Users) {
        let mut next = 0;
        while let Some(export) = self.to_tell.next(next) {
            next = export + 1;
            if std::mem::take(&mut self.exports[export].has_grown) {
                self.tell_growth(export, users);
            }
            self.tell_untold(export, users);
            let has_more = match self.exports[export].role {
                Role::Plain => false,
                Role::Owner(_) => self.settle_owner(export),
                Role::Branch(_) => self.settle_branch(now, export, users),
            };
            if !has_more {
                self.to_tell.remove(export);
            }
        }
    }

    /// Tells those who have an export open how large it is.
    fn tell_growth(&mut self, export: usize, users: &mut dyn Users) {
        if self.config.canary == DoorCanary::GrowthUntold {
            return;
        }
        self.tell_branches(export, || Word::Grown);
        let bytes = self.exports[export].volume.geometry().bytes;
        for at in self.passes.of_export(export) {
            let state = &self.passes[at];
            if !state.fenced {
                let pass = Pass { number: at as u32 + 1, generation: state.generation };
                users.on_resized(state.session, pass, bytes);
            }
        }
    }
}
