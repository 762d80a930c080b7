//! What is said to a mirror of its copies and scrubs while it is in use: that they pause, or how fast they go. That is in the labels of its legs in sync, and
//! how far a scrub is: who opens it next goes on like that.

use thinwire_volume::{LegStanding, MirrorReport, Work, WorkPace};

use super::{Mirror, MirrorCanary};
use crate::meta::LabelWork;

impl Mirror {
    /// What labels are to say of that; none if all is as usual.
    pub(super) fn work_note(&self) -> Option<LabelWork> {
        let note = LabelWork { pace: self.pace.wish(), scrubbed_to: self.scrub.noted() };
        let says_it = self.canary != MirrorCanary::ForgetsWork;
        (note != LabelWork::default() && says_it).then_some(note)
    }

    /// Goes on like that.
    pub(super) fn take_up(&mut self, note: Option<LabelWork>) {
        self.record.noted = note;
        let LabelWork { pace, scrubbed_to } = note.unwrap_or_default();
        self.pace.set(pace);
        self.scrub.take_up(scrubbed_to);
    }
}

impl Work for Mirror {
    fn whole(&self) -> [u8; 16] {
        self.whole
    }

    fn pace(&self) -> WorkPace {
        self.pace.wish()
    }

    fn set_pace(&mut self, pace: WorkPace) {
        self.pace.set(pace);
        self.settle();
    }

    fn try_now(&mut self) {
        self.resync.retry_at = self.resync.retry_at.min(self.now);
        self.settle();
    }

    fn left(&self) -> u64 {
        let report = self.report();
        let copied_to = report.legs.iter().filter(|leg| leg.standing == LegStanding::Resyncing);
        copied_to.map(|leg| leg.lacks).max().unwrap_or(0)
    }

    fn mirror(&self) -> Option<MirrorReport> {
        Some(self.report())
    }
}
