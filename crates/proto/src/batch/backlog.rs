//! All that a turn finds, and as much in a frame as fits. No timer, nothing to tune.

use super::Policy;

/// See [`super::BatchPolicy::Backlog`]. The batcher asks it nothing on the way of an I/O.
#[derive(Debug)]
pub(super) struct Backlog;

impl Policy for Backlog {
    fn frame_max(&self) -> usize {
        usize::MAX
    }
}
