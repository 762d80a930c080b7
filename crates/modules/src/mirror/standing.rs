//! What becomes of a leg that fails, or loses what it had; and the end of the whole.

use thinwire_buffer::SegList;
use thinwire_volume::{Completion, ErrorKind, IoError, Slab, VolumeEvent};

use super::jobs::Whose;
use super::legs::Leg;
use super::{LegState, Mirror, MirrorCanary, NAME, Task, bits};

impl Mirror {
    /// Takes what has happened to a leg, before what it has completed.
    pub(super) fn look_at_events(&mut self, leg: usize) {
        let Some(at) = &mut self.legs[leg] else { return };
        if at.volume.events() == at.events {
            return;
        }
        let mut news = Vec::new();
        at.volume.poll_events(&mut news);
        self.is_stirred = true;
        // Also what nobody need know counts: a count that goes back would hide what comes next.
        let events = at.volume.events();
        let more = events.wrapping_sub(std::mem::replace(&mut at.events, events));
        self.news_count = self.news_count.wrapping_add(more);
        for event in news {
            match event {
                VolumeEvent::Lost => self.on_loss(leg),
                // A leg that has grown has no place for that here.
                VolumeEvent::Resized { .. } | VolumeEvent::Unreachable { .. } => {}
                // No write there succeeds any more, and some of what it had is gone: on record while nobody waits for that.
                VolumeEvent::Shrunk if !self.config.read_only => self.drop_if_spare(leg, false),
                VolumeEvent::Shrunk => {}
                // Whoever keeps what was read has heard of the count.
                VolumeEvent::Stale => {}
                // Who has one leg has them all, or is about to (rule 18).
                VolumeEvent::Fenced { .. } => {
                    self.stop(ErrorKind::Fenced);
                    self.news.push(event);
                }
                VolumeEvent::Leg { .. } | VolumeEvent::BadBlock { .. } => self.news.push(event),
                // Others may have what this leg has not.
                VolumeEvent::Unverified { .. } => self.news.push(event),
            }
        }
    }

    /// A leg may have lost what it had not flushed. If another has it, this one is resynced, and nobody need know.
    pub(super) fn on_loss(&mut self, leg: usize) {
        let bit = 1 << leg;
        if self.active & bit == 0 {
            return;
        }
        if self.in_sync == bit {
            self.news.push(VolumeEvent::Lost);
            let others = self.regions.all() & !bit;
            self.regions.add_stale_where_open(others);
            // They may have what is gone here, and are not to tell another truth.
            return bits(self.record.promoting).for_each(|leg| self.demote(leg));
        }
        self.regions.add_stale_where_open(bit);
        self.alike &= !bit;
        self.forget_copies(leg);
        self.demote(leg);
    }

    /// A flush that nobody has asked for has failed: what it should have covered may be gone, and no flush of a user would say so.
    pub(super) fn tell_loss(&mut self) {
        if self.canary != MirrorCanary::QuietLoss {
            self.news.insert(0, VolumeEvent::Lost);
            self.news_count = self.news_count.wrapping_add(1);
        }
    }

    /// What an error says of more than of what was asked for, whatever that was: a label, or what nobody waits for any more.
    pub(super) fn on_last_word(&mut self, leg: usize, result: Result<(), IoError>) {
        match result.map_err(|error| error.kind) {
            // Another writer has it: nothing may be written any more, to any leg.
            Err(ErrorKind::Fenced) => self.stop(ErrorKind::Fenced),
            // One that was dropped before it said so is not to be copied to, either.
            Err(ErrorKind::ContentChanged) => match self.state.legs[leg] {
                LegState::Behind { at } if self.is_given_up(leg) => {
                    self.state.legs[leg] = LegState::Failed { at };
                    self.record.want();
                }
                _ => self.drop_if_spare(leg, true),
            },
            _ => {}
        }
    }

    /// Nothing is done with a leg, nor about to be.
    pub(super) fn is_given_up(&self, leg: usize) -> bool {
        (self.active | self.record.joining) >> leg & 1 == 0
    }

    /// Legs that something is done with. One that was dropped may never answer again, and nobody waits for it.
    pub(super) fn used_legs(&self) -> impl Iterator<Item = &Leg> {
        let legs = self.legs.iter().enumerate();
        let used = legs.filter(|(leg, _)| self.config.read_only || !self.is_given_up(*leg));
        used.filter_map(|(_, at)| at.as_ref())
    }

    /// Drops a leg that cannot be used, if there is another.
    pub(super) fn drop_if_spare(&mut self, leg: usize, has_failed: bool) {
        let bit = 1 << leg;
        if self.in_sync & !bit != 0 {
            self.drop_leg(leg, has_failed);
        }
    }

    /// Nothing is done with a leg any more: it lacks what is open, and all that is written from now on. What it had
    /// outstanding has failed there, however it ends.
    pub(super) fn drop_leg(&mut self, leg: usize, has_failed: bool) {
        let bit = 1 << leg;
        debug_assert!(self.in_sync & !bit != 0, "the last leg in sync");
        if self.is_given_up(leg) {
            return;
        }
        let Some(at) = &mut self.legs[leg] else { return };
        let left = at.left_at();
        at.label_since = None;
        if self.record.joining & !self.record.announced & bit != 0 {
            // Nothing is kept of what it lacks yet: it is on record as it was.
            return self.record.forget(leg);
        }
        self.in_sync &= !bit;
        self.forget_zeroed(leg);
        self.active &= !bit;
        self.alike &= !bit;
        self.regions.forget_reader(leg);
        self.record.forget(leg);
        self.state.legs[leg] = match has_failed {
            true => LegState::Failed { at: left },
            false => LegState::Behind { at: left },
        };
        self.record.want();
        self.regions.add_stale_where_open(bit);
        self.forget_copies(leg);
        self.orphan(leg, false);
    }

    /// What a leg has outstanding has failed there, however it ends; or only what it reads.
    pub(super) fn orphan(&mut self, leg: usize, only_reads: bool) {
        self.keep_reads(1 << leg);
        let mut orphaned = std::mem::take(&mut self.orphaned);
        for (_, sub) in self.subs.iter_mut() {
            let is_its = usize::from(sub.leg) == leg && !sub.is_orphan;
            if let Whose::Job(job) = sub.whose
                && is_its
                && (!only_reads || self.jobs.get_mut(job).is_read())
            {
                sub.is_orphan = true;
                orphaned.push(job);
            }
        }
        let bit = 1 << leg;
        for id in orphaned.drain(..) {
            let job = self.jobs.get_mut(id);
            let error = job.io.error(ErrorKind::Away, NAME);
            // Not by way of what may drop it again.
            job.pending -= 1;
            job.failed |= bit;
            job.ok &= !bit;
            _ = job.error.get_or_insert(error);
            if job.pending == 0 {
                self.ripe.push_back(id);
            }
        }
        self.orphaned = orphaned;
    }

    /// A leg in sync is not: others have what it lacks. It gets what is written all the same.
    pub(super) fn demote(&mut self, leg: usize) {
        let bit = 1 << leg;
        let Some(at) = &self.legs[leg] else { return };
        if (self.in_sync | self.record.promoting) & bit == 0 {
            return;
        }
        debug_assert!(self.in_sync & !bit != 0, "the last leg in sync");
        let left = at.left_at();
        self.in_sync &= !bit;
        self.forget_zeroed(leg);
        self.regions.forget_reader(leg);
        self.record.promoting &= !bit;
        self.state.legs[leg] = LegState::Resyncing { at: left };
        self.record.want();
        self.regions.look_again();
        // What it is about to answer may not be the truth any more: another one is asked.
        self.orphan(leg, true);
    }

    /// Everything ends here: what is outstanding, and what comes.
    pub(super) fn stop(&mut self, kind: ErrorKind) {
        if kind == ErrorKind::Fenced && self.canary == MirrorCanary::GoesOnFenced {
            return;
        }
        if self.stopped.replace(kind).is_some() {
            return;
        }
        self.keep_reads(u8::MAX);
        self.subs.iter_mut().for_each(|(_, sub)| sub.is_orphan = true);
        // Nor is a label written on.
        self.legs.iter_mut().flatten().for_each(|leg| leg.label_since = None);
        self.fail_waiting_ios(kind);
        for (_, job) in self.jobs.iter_mut() {
            if matches!(job.task, Task::User) {
                let error = job.io.error(kind, NAME);
                self.ready.push(Completion::new(job.io.token, Err(error)));
            }
        }
        self.jobs = Slab::new();
        self.ripe.clear();
        self.desk.close();
        self.fail_scrub();
    }

    /// Who waits for the record, or for the opening, hears that it does not come.
    pub(super) fn fail_waiting_ios(&mut self, kind: ErrorKind) {
        for (error, mut completion) in self.held.drain(..) {
            completion.result = completion.result.and(Err(IoError { kind, ..error }));
            (completion.data, completion.extents) = (SegList::new(), Vec::new());
            self.ready.push(completion);
        }
        for io in self.queue.drain(..).chain(self.writer.take_all()) {
            self.ready.push(Completion::new(io.token, Err(io.error(kind, NAME))));
        }
    }
}
