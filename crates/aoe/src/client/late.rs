//! Writes that went out more than once and may still land, and what is kept against it (`docs/aoe.md`, "The client").

use std::time::Duration;

use thinwire_buffer::Time;

/// No frame is longer on its way, as far as a client knows.
pub(super) const LIFETIME: Duration = Duration::from_secs(2);

/// A frame, by its tag, and when it was sent.
pub(super) type SentFrame = (u32, Time);

/// Where something may still land.
#[derive(Debug)]
struct Stray {
    start: u64,
    end: u64,
    /// Frames that have not been answered.
    frames: Vec<SentFrame>,
}

impl Stray {
    fn until(&self) -> Time {
        let last = self.frames.iter().map(|&(_, sent)| sent).max();
        last.map_or(Time::ZERO, |sent| sent + LIFETIME)
    }
}

/// Ranges that are not written until all answers to what was sent there have come, or a lifetime has passed. Each frame has a tag
/// of its own, so an answer that comes twice lifts nothing.
#[derive(Debug, Default)]
pub(super) struct Strays(Vec<Stray>);

impl Strays {
    /// A write of sectors from `start` to `end` is over; these frames of it have not been answered.
    pub fn add(&mut self, now: Time, start: u64, end: u64, mut frames: Vec<SentFrame>) {
        frames.retain(|&(_, sent)| sent + LIFETIME > now);
        if !frames.is_empty() {
            self.0.push(Stray { start, end, frames });
        }
    }

    /// An answer that nobody waits for.
    pub fn on_answer(&mut self, tag: u32) {
        self.0.iter_mut().for_each(|stray| stray.frames.retain(|&(known, _)| known != tag));
        self.0.retain(|stray| !stray.frames.is_empty());
    }

    /// Whether sectors from `start` to `end` may be written now.
    pub fn allow(&mut self, now: Time, start: u64, end: u64) -> bool {
        self.0.retain(|stray| stray.until() > now);
        !self.0.iter().any(|stray| stray.start < end && start < stray.end)
    }

    /// When the next of them is given up.
    pub fn until(&self, now: Time) -> Time {
        let ends = self.0.iter().map(Stray::until).filter(|&until| until > now);
        ends.min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_where_an_earlier_write_may_still_land() {
        let (mut strays, now) = (Strays::default(), Time(5));
        strays.add(now, 8, 16, vec![(3, now), (4, now)]);
        assert!(!strays.allow(now, 15, 17) && strays.allow(now, 16, 17));
        strays.on_answer(3);
        strays.on_answer(3);
        assert!(!strays.allow(now, 8, 9), "one answer, twice");
        assert_eq!(strays.until(now), now + LIFETIME);
        strays.on_answer(4);
        assert!(strays.allow(now, 8, 9));
        strays.add(now, 8, 16, vec![(5, now)]);
        assert!(strays.allow(now + LIFETIME, 8, 9), "no frame lives as long");
    }
}
