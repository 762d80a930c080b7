//! Three bounds, whichever is reached first: what i10 does for NVMe over TCP (Hwang et al., "TCP is
//! almost RDMA: rearchitecting remote storage I/O with i10").

use std::time::Duration;

use super::{Policy, Waiting};
use crate::Time;

const REQUESTS: usize = 16;
const BYTES: u64 = 64 << 10;
const DELAY: Duration = Duration::from_micros(50);

/// See [`super::BatchPolicy::Doorbell`].
#[derive(Debug)]
pub(super) struct Doorbell;

impl Policy for Doorbell {
    fn holds(&self, _: u64) -> bool {
        true
    }

    fn release(&mut self, now: Time, waiting: Waiting) -> usize {
        let rings =
            waiting.requests >= REQUESTS || waiting.bytes >= BYTES || now >= self.deadline(waiting);
        if rings { waiting.requests } else { 0 }
    }

    fn deadline(&self, waiting: Waiting) -> Time {
        waiting.oldest + DELAY
    }

    fn frame_max(&self) -> usize {
        usize::MAX
    }

    fn level(&self) -> usize {
        REQUESTS
    }
}
