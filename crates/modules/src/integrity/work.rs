//! What is said to a volume with sums of its checks and scrubs while it is in use: that they pause, or how fast they go.

use thinwire_volume::{Work, WorkPace};

use super::Integrity;

impl Work for Integrity {
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
        self.check.retry_at = self.check.retry_at.min(self.now);
        self.settle();
    }

    fn grows(&self) -> Option<(u64, u64)> {
        self.growth.progress()
    }

    fn left(&self) -> u64 {
        match self.config.read_only {
            true => 0,
            false => u64::from(self.regions.stale_count(0)) << self.region_shift,
        }
    }
}
