//! No batching: what the others are measured against.

use super::Policy;

/// See [`super::BatchPolicy::None`].
#[derive(Debug)]
pub(super) struct None;

impl Policy for None {
    fn frame_max(&self) -> usize {
        1
    }
}
