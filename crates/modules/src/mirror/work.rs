//! What is said to a mirror of its copies and scrubs while it is in use: that they pause, or how fast they go.

use thinwire_volume::{LegStanding, MirrorReport, Work, WorkPace};

use super::Mirror;

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
