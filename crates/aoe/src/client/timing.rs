//! When a request that was not answered is sent again, and how many may be on their way: as Linux's driver does it
//! (`docs/aoe.md`, "The client").

use std::time::Duration;

/// Bounds of the timeout.
const LOWER: Duration = Duration::from_millis(50);
const UPPER: Duration = Duration::from_secs(2);
/// Of the first request, of which nothing is known.
const FIRST: Duration = Duration::from_millis(250);

/// A timeout that follows the round trips that it is told, by their mean and how they stray from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrips {
    mean: Option<Duration>,
    deviation: Duration,
}

impl RoundTrips {
    /// A request that was sent once has been answered.
    pub fn on_answer(&mut self, took: Duration) {
        let Some(mean) = self.mean else {
            (self.mean, self.deviation) = (Some(took), took / 2);
            return;
        };
        let off = took.abs_diff(mean);
        self.deviation = (3 * self.deviation + off) / 4;
        self.mean = Some((7 * mean + took) / 8);
    }

    /// For the try after so many.
    pub fn timeout(&self, tries: u32) -> Duration {
        let once = self.mean.map_or(FIRST, |mean| mean + 4 * self.deviation);
        (once.clamp(LOWER, UPPER) * 2u32.pow(tries.min(6))).min(UPPER)
    }
}

/// How many requests may be on their way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    most: u32,
    now: u32,
    answers: u32,
}

impl Window {
    /// Of a server that keeps so many waiting.
    pub fn new(most: u32) -> Self {
        let most = most.max(1);
        Window { most, now: most, answers: 0 }
    }

    pub fn frames(&self) -> u32 {
        self.now
    }

    /// One was answered: after so many as there may be, there may be one more.
    pub fn on_answer(&mut self) {
        self.answers += 1;
        if self.answers >= self.now {
            (self.answers, self.now) = (0, (self.now + 1).min(self.most));
        }
    }

    /// One was lost.
    pub fn on_loss(&mut self) {
        (self.answers, self.now) = (0, (self.now / 2).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_follows_within_its_bounds() {
        let ms = Duration::from_millis;
        let mut trips = RoundTrips::default();
        assert_eq!(trips.timeout(0), FIRST);
        trips.on_answer(ms(1));
        assert_eq!(trips.timeout(0), LOWER);
        assert_eq!((trips.timeout(1), trips.timeout(20)), (2 * LOWER, UPPER));
        (0..50).for_each(|_| trips.on_answer(ms(200)));
        assert!((ms(200)..ms(240)).contains(&trips.timeout(0)), "{trips:?}");
    }

    #[test]
    fn a_window_halves_with_a_loss_and_grows_with_answers() {
        let mut window = Window::new(8);
        window.on_loss();
        assert_eq!(window.frames(), 4);
        (0..4).for_each(|_| window.on_answer());
        assert_eq!(window.frames(), 5);
        (0..8).for_each(|_| window.on_loss());
        assert_eq!(window.frames(), 1);
        (0..100).for_each(|_| window.on_answer());
        assert_eq!(window.frames(), 8);
    }
}
