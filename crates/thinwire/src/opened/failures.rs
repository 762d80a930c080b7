//! I/Os that fail in a tree are told with where that was: an error that reaches whoever began the I/O has its range and the kind of what failed, and
//! nobody sees from that which of several it was.

use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_modules::Meter;
use thinwire_volume::{ErrorKind, IoError};

use super::outline::{OutlineNode, children_of};
use super::place::FailedAt;

/// Of one volume no more than one line in so long.
const QUIET: Duration = Duration::from_secs(10);

/// What was told of a volume.
struct Told {
    of: Rc<Meter>,
    at: Instant,
    /// How many of its I/Os had failed by then.
    failed: u64,
}

/// What was told of a tree.
#[derive(Default)]
pub(super) struct Failures {
    told: Vec<Told>,
    /// Who uses the tree may tell its user of a failure: lines wait for that until the next turn.
    is_awaited: bool,
    waiting: Vec<(Rc<Meter>, String)>,
}

impl Failures {
    /// Whether who uses the tree [may tell](Failures::heard) of failures.
    pub fn await_user(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
    }

    /// Tells of what has failed since the last time.
    #[inline]
    pub fn tell(&mut self, outline: &[OutlineNode]) {
        if !self.waiting.is_empty() {
            self.tell_waiting();
        }
        let has_failed = |node: &OutlineNode| node.meter.as_ref().is_some_and(|m| m.has_failed());
        if outline.iter().any(has_failed) {
            self.waiting = self.lines(outline, Instant::now());
            if !self.is_awaited {
                self.tell_waiting();
            }
        }
    }

    /// Tells of all that has failed: nobody else will.
    pub fn tell_all(&mut self, outline: &[OutlineNode]) {
        self.await_user(false);
        self.tell(outline);
    }

    #[cold]
    fn tell_waiting(&mut self) {
        self.waiting.drain(..).for_each(|(_, line)| tracing::warn!("{line}"));
    }

    /// The user was told of what has failed in the last of these, which all above it have failed by.
    pub fn heard(&mut self, way: &[Rc<Meter>], now: Instant) {
        way.iter().for_each(|meter| _ = meter.take_failure());
        self.waiting.retain(|(of, _)| !way.iter().any(|meter| Rc::ptr_eq(of, meter)));
        if let Some(last) = way.last() {
            self.note(last, now);
        }
    }

    #[cold]
    fn lines(&mut self, outline: &[OutlineNode], now: Instant) -> Vec<(Rc<Meter>, String)> {
        let take = |node: &OutlineNode| node.meter.as_ref().and_then(|meter| meter.take_failure());
        let failed: Vec<Option<IoError>> = outline.iter().map(take).collect();
        let mut lines = Vec::new();
        for (at, error) in failed.iter().enumerate() {
            let (Some(error), Some(meter)) = (error, &outline[at].meter) else { continue };
            // What is above it has failed by that; and some things are asked to find out what there is.
            let is_first = !children_of(outline, at).into_iter().any(|of| failed[of].is_some());
            // What a pool stands on is told of where the pool is.
            let is_own = outline[at].pool.is_none() || error.module == outline[at].kind;
            if is_first && is_own && error.kind != ErrorKind::Unsupported {
                let told = || FailedAt::of(outline, at, error);
                lines.extend(self.line(meter, told, now).map(|line| (meter.clone(), line)));
            }
        }
        lines
    }

    /// What is told, unless something was a moment ago.
    fn line(
        &mut self,
        meter: &Rc<Meter>,
        told: impl FnOnce() -> FailedAt,
        now: Instant,
    ) -> Option<String> {
        let since = self.note(meter, now)?;
        let told = told();
        let others = match since {
            0 | 1 => String::new(),
            others => format!("; with it {others} since the last was told"),
        };
        Some(format!("{told}{others}"))
    }

    /// Something is told of that volume now: how many of its I/Os have failed since something was, 0 if nothing was before; `None` if that was a moment ago.
    fn note(&mut self, meter: &Rc<Meter>, now: Instant) -> Option<u64> {
        let failed = meter.report().failed;
        match self.told.iter_mut().find(|told| Rc::ptr_eq(&told.of, meter)) {
            Some(told) if now < told.at + QUIET => None,
            Some(told) => {
                let since = failed - told.failed;
                (told.at, told.failed) = (now, failed);
                Some(since)
            }
            None => {
                self.told.push(Told { of: meter.clone(), at: now, failed });
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use thinwire_volume::{Io, Op};

    use super::*;
    use crate::cli::WireArgs;
    use crate::open::{OpenVolume, VolumeOptions, open_volume};
    use crate::opened::place::{first_failing, meters_to};

    fn open(spec: &str) -> Box<dyn OpenVolume> {
        let security = crate::keys::Security::default();
        let options = VolumeOptions::new(security, &WireArgs::default(), PathBuf::new());
        open_volume(&spec.parse().unwrap(), &options, None).unwrap()
    }

    /// A read there, which fails.
    fn read(volume: &mut dyn OpenVolume, offset: u64) -> IoError {
        // Without a turn, which would tell of it.
        volume.volume().submit(Io::new(1, Op::Read, offset, 4096));
        let mut done = Vec::new();
        volume.volume().poll(&mut done);
        done[0].result.unwrap_err()
    }

    const PARTS: &str = "linear:[memory:64K,slice:[error:[memory:128K]?reads=1]]";

    fn told(lines: &[(Rc<Meter>, String)]) -> Vec<&str> {
        lines.iter().map(|(_, line)| &**line).collect()
    }

    #[test]
    fn what_fails_is_told_with_where_that_was_and_not_too_often() {
        let (mut volume, mut failures) = (open(PARTS), Failures::default());
        let start = Instant::now();
        read(&mut *volume, 72 << 10);
        let outline = volume.outline();
        let lines = failures.lines(&outline, start);
        let line =
            "linear part 1, slice, error: read of 4096 bytes at 8192: the medium reported an error";
        assert_eq!(told(&lines), [line]);
        for _ in 0..3 {
            read(&mut *volume, 64 << 10);
            assert_eq!(told(&failures.lines(&outline, start + QUIET / 2)), [""; 0]);
        }
        read(&mut *volume, 64 << 10);
        let lines = failures.lines(&outline, start + QUIET);
        assert!(lines[0].1.ends_with("; with it 4 since the last was told"), "{:?}", lines[0].1);
        assert_eq!(told(&failures.lines(&outline, start + QUIET * 3)), [""; 0]);
    }

    /// Nor by the log, if by who uses the volume: at once, or after the turn in which it was seen.
    #[test]
    fn what_the_user_was_told_is_not_told_again() {
        for is_seen in [false, true] {
            let (mut volume, mut failures) = (open(PARTS), Failures::default());
            failures.await_user(true);
            let error = read(&mut *volume, 64 << 10);
            let outline = volume.outline();
            if is_seen {
                failures.tell(&outline);
                assert_eq!(failures.waiting.len(), 1);
            }
            let (at, _) = first_failing(&outline, &error);
            failures.heard(&meters_to(&outline, at), Instant::now());
            failures.tell(&outline);
            assert!(failures.waiting.is_empty(), "{:?}", told(&failures.waiting));
            // Nor what fails there next.
            read(&mut *volume, 64 << 10);
            failures.tell(&outline);
            assert!(failures.waiting.is_empty(), "{:?}", told(&failures.waiting));
        }
    }

    /// A leg that another stood in for.
    #[test]
    fn what_the_user_was_not_told_is_told_one_turn_later() {
        let (mut volume, mut failures) = (open(PARTS), Failures::default());
        failures.await_user(true);
        read(&mut *volume, 64 << 10);
        let outline = volume.outline();
        failures.tell(&outline);
        assert_eq!(failures.waiting.len(), 1);
        failures.tell(&outline);
        assert!(failures.waiting.is_empty());
        // With nobody to tell of it, at once.
        let mut failures = Failures::default();
        let mut volume = open(PARTS);
        read(&mut *volume, 64 << 10);
        failures.tell(&volume.outline());
        assert!(failures.waiting.is_empty() && failures.told.len() == 1);
    }
}
