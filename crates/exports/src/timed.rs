//! Time for volumes that wait for other things than their I/Os ([`Volume::is_timed`](thinwire_volume::Volume::is_timed)).

use thinwire_buffer::Time;

use crate::exports::Exports;

/// Exports of such volumes.
pub(crate) struct Timed {
    exports: Vec<usize>,
    /// When the first of them wants to be told again.
    at: Time,
}

impl Timed {
    pub fn new() -> Self {
        Timed { exports: Vec::new(), at: Time::NEVER }
    }

    pub fn add(&mut self, export: usize) {
        self.exports.push(export);
        self.at = Time::ZERO;
    }

    pub fn remove(&mut self, export: usize) {
        self.exports.retain(|&other| other != export);
        if self.exports.is_empty() {
            self.at = Time::NEVER;
        }
    }

    /// When volumes are to be told the time again, at the latest.
    #[inline]
    pub fn at(&self) -> Time {
        self.at
    }
}

impl Exports {
    /// Tells volumes what time it is, if any are timed. To be called in each turn before [`Exports::poll`], and once more at its
    /// end.
    #[inline]
    pub fn tell_time(&mut self, now: Time) {
        if !self.timed.exports.is_empty() {
            self.tell_timed(now);
        }
    }

    /// Has volumes bring in order what they keep for themselves, once nobody is served any more: what is submitted from now on
    /// fails. To be called again and again until it says that all of it is done; else they end as by a crash.
    pub fn wind_up(&mut self, now: Time) -> bool {
        let mut done = Vec::new();
        let mut is_done = true;
        for &export in &self.timed.exports {
            let volume = &mut self.exports[export].volume;
            volume.wind_up();
            volume.turn(now);
            volume.poll(&mut done);
            volume.turn(now);
            is_done &= volume.is_wound_up();
        }
        is_done
    }

    #[cold]
    fn tell_timed(&mut self, now: Time) {
        let mut first = Time::NEVER;
        for &export in &self.timed.exports {
            first = first.min(self.exports[export].volume.turn(now));
            // It may have submitted something of its own, or complete what waited for the time.
            self.to_poll.insert(export);
        }
        self.timed.at = first;
    }
}
