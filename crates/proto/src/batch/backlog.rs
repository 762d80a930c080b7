//! All that a turn finds, and as much in a frame as fits. No timer, nothing to tune.

use super::{Policy, Waiting};
use crate::Time;

/// See [`super::BatchPolicy::Backlog`]. The batcher does not even ask it.
#[derive(Debug)]
pub(super) struct Backlog;

impl Policy for Backlog {
    fn holds(&self, _: u64) -> bool {
        false
    }

    fn release(&mut self, _: Time, waiting: Waiting) -> usize {
        waiting.requests
    }

    fn deadline(&self, waiting: Waiting) -> Time {
        waiting.oldest
    }

    fn frame_max(&self) -> usize {
        usize::MAX
    }

    fn level(&self) -> usize {
        1
    }
}
