//! How far a scrub is, from its beginning to its end: as labels say it, too, so that one that was cut off goes on.

use thinwire_volume::{Scrub, ScrubReport};

use super::scrub::{SCRUB_BYTES, Scrubbing};
use super::{Mirror, NAME, Task};

/// After so many bytes it is put on record how far a scrub is. Few in tests, whose disks are small.
pub(super) const NOTE_EACH: u64 = if cfg!(test) { 256 << 10 } else { 1 << 30 };

impl Scrubbing {
    /// As far as is to be on record.
    pub fn noted(&self) -> Option<u64> {
        self.noted
    }

    /// One was cut off there.
    pub fn take_up(&mut self, from: Option<u64>) {
        (self.noted, self.resumes) = (from, from);
    }

    /// What is to be on record is as old as may be, or it is over.
    pub fn note(&mut self, is_ahead: bool) {
        let at = if is_ahead { self.next } else { self.report.position };
        let due = self.noted.is_none_or(|noted| at.saturating_sub(noted) >= NOTE_EACH);
        self.noted = match self.report.is_running {
            true if due => Some(at),
            true => self.noted,
            false => None,
        };
    }

    /// The mirror has grown: what is being scrubbed ends there.
    pub fn extend(&mut self, bytes: u64) {
        if self.report.is_running {
            self.report.bytes = bytes;
        }
    }
}

impl Mirror {
    pub(super) fn start_scrub(&mut self, from: u64) {
        let bytes = self.geometry.bytes;
        let position = from.min(bytes) / SCRUB_BYTES * SCRUB_BYTES;
        self.stop_scrub();
        self.scrub.report = ScrubReport {
            module: NAME,
            // Who goes on from the end has nothing left to read.
            is_running: position < bytes,
            number: self.scrub.report.number + 1,
            from: position,
            position,
            bytes,
            ..ScrubReport::default()
        };
        self.scrub.next = position;
        (self.scrub.noted, self.scrub.resumes) = (None, None);
        self.scrub.note(false);
        if self.stopped.is_some() {
            self.fail_scrub();
        }
    }

    /// One that was cut off goes on.
    pub(super) fn resume_scrub(&mut self) {
        if let Some(from) = self.scrub.resumes.take() {
            self.start_scrub(from);
        }
    }

    pub(super) fn stop_scrub(&mut self) {
        self.scrub.report.is_running = false;
        // What is under way ends, and counts for nobody.
        self.scrub.under_way.clear();
        for (_, job) in self.jobs.iter_mut() {
            if let Task::Look(look) = &mut job.task {
                look.is_scrub = false;
            }
        }
    }
}

impl Scrub for Mirror {
    fn begin_scrub(&mut self, from: u64) {
        self.start_scrub(from);
        self.settle();
    }

    fn end_scrub(&mut self) {
        self.stop_scrub();
        (self.scrub.noted, self.scrub.resumes) = (None, None);
        self.settle();
    }

    fn scrub_report(&self) -> ScrubReport {
        ScrubReport { module: NAME, bytes: self.geometry.bytes, ..self.scrub.report.clone() }
    }
}
