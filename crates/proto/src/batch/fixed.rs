//! A fixed number of requests: the document's static version (section VI-D), and how `tyche` sends
//! at the level that it has chosen.

use std::time::Duration;

use super::{Policy, SMALL_BYTES, Waiting};
use crate::Time;

/// The document's `max_delay`.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(5);

/// See [`super::BatchPolicy::Static`].
#[derive(Debug)]
pub(super) struct Fixed {
    level: usize,
}

impl Fixed {
    pub fn new(level: usize) -> Self {
        Fixed { level }
    }
}

/// How many of those that wait go now, in whole batches of `level`; all if the first has waited for
/// `delay`.
pub(super) fn whole_batches(now: Time, waiting: Waiting, level: usize, delay: Duration) -> usize {
    if now >= waiting.oldest + delay {
        return waiting.requests;
    }
    waiting.requests - waiting.requests % level
}

impl Policy for Fixed {
    fn holds(&self, bytes: u64) -> bool {
        bytes <= SMALL_BYTES
    }

    fn release(&mut self, now: Time, waiting: Waiting) -> usize {
        whole_batches(now, waiting, self.level, DELAY_MAX)
    }

    fn deadline(&self, waiting: Waiting) -> Time {
        waiting.oldest + DELAY_MAX
    }

    fn frame_max(&self) -> usize {
        self.level
    }

    fn level(&self) -> usize {
        self.level
    }
}
