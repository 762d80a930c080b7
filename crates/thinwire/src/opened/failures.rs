//! I/Os that fail in a tree are told with where that was: an error that reaches whoever began the I/O has its range and the kind of what failed, and
//! nobody sees from that which of several it was.

use std::time::{Duration, Instant};

use thinwire_volume::{ErrorKind, IoError};

use super::outline::{OutlineNode, path_of};

/// Of one volume no more than one line in so long.
const QUIET: Duration = Duration::from_secs(10);

/// What was told of a volume of the outline.
struct Told {
    node: usize,
    at: Instant,
    /// How many of its I/Os had failed by then.
    failed: u64,
}

/// What was told of a tree.
#[derive(Default)]
pub(super) struct Failures(Vec<Told>);

impl Failures {
    /// Tells of what has failed since the last time.
    #[inline]
    pub fn tell(&mut self, outline: &[OutlineNode]) {
        let has_failed = |node: &OutlineNode| node.meter.as_ref().is_some_and(|m| m.has_failed());
        if outline.iter().any(has_failed) {
            self.lines(outline, Instant::now()).iter().for_each(|line| tracing::warn!("{line}"));
        }
    }

    #[cold]
    fn lines(&mut self, outline: &[OutlineNode], now: Instant) -> Vec<String> {
        let take = |node: &OutlineNode| node.meter.as_ref().and_then(|meter| meter.take_failure());
        let failed: Vec<Option<IoError>> = outline.iter().map(take).collect();
        let mut lines = Vec::new();
        for (at, error) in failed.iter().enumerate() {
            let below =
                (at + 1..outline.len()).take_while(|&of| outline[of].depth > outline[at].depth);
            // What is above it has failed by that; and some things are asked to find out what there is.
            let is_first = !below.into_iter().any(|of| failed[of].is_some());
            if let Some(error) =
                error.filter(|error| is_first && error.kind != ErrorKind::Unsupported)
            {
                lines.extend(self.line(outline, at, &error, now));
            }
        }
        lines
    }

    /// What is told, unless something was a moment ago.
    fn line(
        &mut self,
        outline: &[OutlineNode],
        at: usize,
        error: &IoError,
        now: Instant,
    ) -> Option<String> {
        let node = &outline[at];
        let failed = node.meter.as_ref().map_or(0, |meter| meter.report().failed);
        let before = self.0.iter().position(|told| told.node == at);
        let mut since = 0;
        match before.map(|before| &mut self.0[before]) {
            Some(told) if now < told.at + QUIET => return None,
            Some(told) => {
                since = failed - told.failed;
                (told.at, told.failed) = (now, failed);
            }
            None => self.0.push(Told { node: at, at: now, failed }),
        }
        let leg = node.leg.map_or(String::new(), |leg| format!(" (leg {leg})"));
        let others = match since {
            0 | 1 => String::new(),
            others => format!("; with it {others} since the last was told"),
        };
        Some(format!("{}{leg}: {error}{others}", path_of(outline, at)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use thinwire_volume::{Io, Op};

    use super::*;
    use crate::cli::WireArgs;
    use crate::open::{VolumeOptions, open_volume};

    #[test]
    fn what_fails_is_told_with_where_that_was_and_not_too_often() {
        let options = VolumeOptions::new(
            crate::keys::Security::default(),
            &WireArgs::default(),
            PathBuf::new(),
        );
        let spec = "linear:[memory:64K,slice:[error:[memory:128K]?reads=1]]";
        let mut volume = open_volume(&spec.parse().unwrap(), &options, None).unwrap();
        let mut failures = Failures::default();
        let mut read = |offset| {
            // Without a turn, which would tell of it.
            volume.volume().submit(Io::new(1, Op::Read, offset, 4096));
            let mut done = Vec::new();
            volume.volume().poll(&mut done);
            assert!(done[0].result.is_err());
            volume.outline()
        };
        let start = Instant::now();
        let outline = read(72 << 10);
        let lines = failures.lines(&outline, start);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("linear/slice/error: read of 4096 bytes at 8192: "),
            "{lines:?}"
        );
        for _ in 0..3 {
            read(64 << 10);
            assert_eq!(failures.lines(&outline, start + QUIET / 2), [""; 0]);
        }
        read(64 << 10);
        let lines = failures.lines(&outline, start + QUIET);
        assert!(lines[0].ends_with("; with it 4 since the last was told"), "{lines:?}");
        assert_eq!(failures.lines(&outline, start + QUIET * 3), [""; 0]);
    }
}
