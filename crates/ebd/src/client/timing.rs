//! When a request that was not answered is sent again (`docs/ebd.md`, "Loss").

use std::time::Duration;

/// Bounds of both timeouts.
const LOWER: Duration = Duration::from_millis(50);
const UPPER: Duration = Duration::from_secs(2);
/// How often a request is sent again before its server counts as away.
pub(super) const TRIES_MAX: u32 = 4;

/// A timeout that follows what it is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout(Duration);

impl Timeout {
    /// From the round trip of a handshake, and what the server says that it takes.
    pub fn new(round_trip: Duration, latency: Duration) -> Self {
        Timeout((round_trip + latency).clamp(LOWER, UPPER))
    }

    /// TO = (TO + latency) / 2 within its bounds (3.1.5).
    pub fn on_answer(&mut self, latency: Duration) {
        self.0 = ((self.0 + latency) / 2).clamp(LOWER, UPPER);
    }

    /// What was answered has been answered once more: it was sent again too soon.
    pub fn on_needless(&mut self) {
        self.0 = (2 * self.0).min(UPPER);
    }

    /// For the try after so many, while the server gives `credit` of what it gave first (2.6).
    pub fn after(&self, tries: u32, credit: u16, first: u16) -> Duration {
        let scaled = self.0 * u32::from(first.max(1)) / u32::from(credit.max(1));
        (scaled.clamp(LOWER, UPPER) * 2u32.pow(tries.min(TRIES_MAX))).min(2 * UPPER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_follows_within_its_bounds_and_grows_as_credit_falls() {
        let ms = Duration::from_millis;
        let mut timeout = Timeout::new(ms(1), ms(0));
        assert_eq!(timeout.after(0, 100, 100), ms(50));
        timeout.on_answer(ms(350));
        assert_eq!(timeout.after(0, 100, 100), ms(200));
        assert_eq!(timeout.after(0, 50, 100), ms(400));
        assert_eq!(timeout.after(1, 100, 100), ms(400));
        assert_eq!(timeout.after(0, 0, 100), UPPER);
        timeout.on_needless();
        assert_eq!(timeout.after(0, 100, 100), ms(400));
        (0..20).for_each(|_| timeout.on_answer(ms(60_000)));
        assert_eq!(timeout.after(0, 100, 100), UPPER);
        (0..20).for_each(|_| timeout.on_answer(ms(0)));
        assert_eq!(timeout.after(0, 100, 100), LOWER);
    }
}
