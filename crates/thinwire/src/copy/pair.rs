//! Two volumes driven by one thread, and what both loops over them need.

use std::time::{Duration, Instant};

use thinwire_volume::{Completion, Geometry, IoError};

use crate::error::{Failure, Outcome};
use crate::open::{OpenVolume, Wait};
use crate::signals::Signals;

/// Requests in flight at most, on each side.
pub const SLOTS: usize = 32;

/// The longest piece moved at once, in bytes. Also the granularity at which zeroes are found.
pub const PIECE_BYTES_MAX: u64 = 128 << 10;

/// How often signals and progress are looked at.
const GLANCE: Duration = Duration::from_millis(100);

/// What a long loop tells the outside, and hears from it.
pub struct Watch<'a> {
    /// Ends the loop when one comes.
    pub signals: Option<&'a Signals>,
    /// Called now and then with the bytes done.
    pub progress: &'a mut dyn FnMut(u64),
    next: Instant,
}

impl<'a> Watch<'a> {
    /// The first look is soon.
    pub fn new(signals: Option<&'a Signals>, progress: &'a mut dyn FnMut(u64)) -> Self {
        Watch { signals, progress, next: Instant::now() }
    }

    /// A look at the outside, if it is time. Fails when a signal came.
    pub fn glance(&mut self, done: u64) -> Outcome {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + GLANCE;
        (self.progress)(done);
        match self.signals.and_then(Signals::take) {
            Some(_) => Err(Failure::failed("interrupted")),
            None => Ok(()),
        }
    }
}

/// A source and a destination, on one host.
pub struct CopyPair<'a> {
    /// Only read.
    pub source: &'a mut dyn OpenVolume,
    /// Only written, until it is compared.
    pub destination: &'a mut dyn OpenVolume,
    /// Of the source, when the copy began: what it grows by later is not copied.
    pub bytes: u64,
    /// Something was written to the destination, or was to be.
    pub has_written: bool,
}

/// Completions of both sides, by turns.
#[derive(Default)]
pub struct Taken {
    /// Of the source.
    pub source: Vec<Completion>,
    /// Of the destination.
    pub destination: Vec<Completion>,
}

impl CopyPair<'_> {
    /// Geometries of both, checked: the destination can be written and is large enough, and the source ends on one of
    /// its blocks. Also gives the length of a piece.
    pub fn fit(&mut self) -> Outcome<(Geometry, Geometry, u64)> {
        let from = Geometry { bytes: self.bytes, ..self.source.volume().geometry() };
        let to = self.destination.volume().geometry();
        if to.features.read_only {
            return Err(Failure::failed(
                "the destination is read-only: nothing can be copied to it",
            ));
        }
        if to.bytes < from.bytes {
            return Err(Failure::failed(format!(
                "the destination is too small: it has {} bytes, the source {}",
                to.bytes, from.bytes
            )));
        }
        if !from.bytes.is_multiple_of(u64::from(to.block_bytes)) {
            return Err(Failure::failed(format!(
                "the source's {} bytes do not end on a block of the destination ({} bytes)",
                from.bytes, to.block_bytes
            )));
        }
        let align = u64::from(from.block_bytes.max(to.block_bytes));
        let longest =
            u64::from(from.io_bytes_max.min(to.io_bytes_max)).min(PIECE_BYTES_MAX) / align * align;
        Ok((from, to, longest.max(align)))
    }

    /// The failure of an I/O on the source, or else on the destination.
    pub fn io_failure(&mut self, is_source: bool, error: IoError) -> Failure {
        let volume = if is_source { &mut *self.source } else { &mut *self.destination };
        Failure::failed(format!("{}: {}", side(is_source), volume.failed_at(&error)))
    }

    /// Takes completions of both; if there are none, sleeps until there may be, at most until the
    /// next glance. Both are on one host: a turn of either is one of both.
    pub fn take(&mut self, taken: &mut Taken) -> Outcome {
        let until = Instant::now() + GLANCE;
        let is_ready = self.destination.turn(Wait::No)?;
        self.source.turn(if is_ready { Wait::No } else { Wait::Until(until) })?;
        self.source.volume().poll(&mut taken.source);
        self.destination.volume().poll(&mut taken.destination);
        Ok(())
    }
}

/// What users call the source, or else the destination.
pub fn side(is_source: bool) -> &'static str {
    if is_source { "source" } else { "destination" }
}
