//! How long is waited until caches have written down what they hold: as long as they do.

use std::time::{Duration, Instant};

use thinwire_volume::IoError;

use crate::error::Failure;
use crate::size::show_size;

/// What is left to be written down, and since when it is that much.
pub struct WritingDown {
    left: u64,
    since: Instant,
}

impl WritingDown {
    /// From now on, so many bytes.
    pub fn begin(dirty: u64, now: Instant) -> Self {
        WritingDown { left: dirty, since: now }
    }

    /// So many bytes are left: for how long nothing was written down.
    pub fn stood_still(&mut self, dirty: u64, now: Instant) -> Duration {
        if dirty != self.left {
            *self = Self::begin(dirty, now);
        }
        now.saturating_duration_since(self.since)
    }
}

/// So many bytes are given up: none of them could be written down for so long, the last time for this.
pub fn failed(dirty: u64, waited: Duration, why: Option<&IoError>) -> Failure {
    let why = why.map_or(String::new(), |error| format!(" ({})", error.kind.describe()));
    given_up(dirty, &format!("within {} s{why}", waited.as_secs()))
}

/// So many bytes are given up, since somebody wants that.
pub fn hurried(dirty: u64) -> Failure {
    given_up(dirty, "before it was ended at once")
}

fn given_up(dirty: u64, when: &str) -> Failure {
    let dirty = show_size(dirty);
    Failure::failed(format!(
        "{dirty} that were written into a cache, and that no flush covers, could not be written down {when}: they are lost"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_from_when_something_was_written_down() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut writing_down = WritingDown::begin(8, start);
        let looks = [(1, 8), (9, 8), (10, 7), (12, 7), (19, 4), (28, 4)];
        let stood_still =
            looks.map(|(second, left)| writing_down.stood_still(left, at(second)).as_secs());
        assert_eq!(stood_still, [1, 9, 0, 2, 0, 9]);
    }
}
