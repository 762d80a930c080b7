//! Turns between which nothing has happened but reads: what else there is to do, and when, was seen by the one before.

use std::time::Duration;

use thinwire_buffer::Time;

use super::opening::Phase;
use super::{Mirror, MirrorCanary};

/// At most so long is not looked at what changes without the mirror: legs that come back, and who wants something of it.
const STEADY_MAX: Duration = Duration::from_millis(1);

impl Mirror {
    /// Whether this turn has nothing to see but reads that have come since the last one: then when the next one has to be.
    #[inline]
    pub(super) fn pass_steady(&mut self) -> Option<Time> {
        let is_steady = self.now < self.steady_until && !self.is_stirred && !self.is_late;
        // Who has told it the time for another reason wants it to look.
        let reads = self.reads - std::mem::replace(&mut self.steady_reads, self.reads);
        if !is_steady || reads == 0 || self.desk.is_asked() {
            return None;
        }
        let answers = self.time_reads()?;
        let soon = if self.has_sent { self.now } else { Time::NEVER };
        Some(self.steady_until.min(answers).min(soon))
    }

    /// A whole turn has ended, behind which it has something to do by then: until then those are steady behind which only reads come.
    #[inline]
    pub(super) fn begin_steady(&mut self, due: Time) {
        let is_served = self.phase == Phase::Serving && !self.is_ending();
        let is_whole = self.active == self.in_sync && !self.record.is_changing();
        self.steady_reads = self.reads;
        let works = self.scrub.report.is_running || self.grows().is_some();
        self.steady_until = match is_served && is_whole && !works {
            true if self.canary == MirrorCanary::SteadyForever => Time::NEVER,
            true => due.min(self.now + STEADY_MAX),
            false => Time::ZERO,
        };
    }
}
