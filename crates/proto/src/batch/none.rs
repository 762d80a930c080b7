//! No batching: what the others are measured against.

use super::{Policy, Waiting};
use crate::Time;

/// See [`super::BatchPolicy::None`].
#[derive(Debug)]
pub(super) struct None;

impl Policy for None {
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
        1
    }

    fn level(&self) -> usize {
        1
    }
}
