//! Round-trip estimation after RFC 9002, section 5.

use std::time::Duration;

/// Timers finer than this would fire for nothing: a sleeping thread wakes up about this late.
pub(crate) const GRANULARITY: Duration = Duration::from_micros(300);
/// How long an acknowledgement may be held back (our side promises it, the peer counts on it).
pub(crate) const ACK_DELAY_MAX: Duration = Duration::from_micros(400);
/// Before the first sample: as if on a slow switch.
const INITIAL: Duration = Duration::from_millis(20);

/// The estimate of one path.
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    pub smoothed: Duration,
    pub variation: Duration,
    pub latest: Duration,
    sampled: bool,
}

impl Default for Rtt {
    fn default() -> Self {
        Rtt { smoothed: INITIAL, variation: INITIAL / 2, latest: INITIAL, sampled: false }
    }
}

impl Rtt {
    /// A sample: from sending to having the acknowledgement in hand, the peer's delay included.
    /// Unlike RFC 9002 nothing is subtracted: on a switch the ends, not the network, take most of
    /// the time, and a timer that does not allow for it fires for nothing.
    pub fn sample(&mut self, rtt: Duration) {
        let rtt = rtt.max(Duration::from_micros(1));
        self.latest = rtt;
        if !self.sampled {
            self.sampled = true;
            self.smoothed = rtt;
            self.variation = rtt / 2;
            return;
        }
        let error = self.smoothed.abs_diff(rtt);
        self.variation = (self.variation * 3 + error) / 4;
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
    }

    /// After how long without an answer to ask again.
    pub fn probe_timeout(&self) -> Duration {
        self.smoothed + (self.variation * 4).max(GRANULARITY) + ACK_DELAY_MAX
    }

    /// How much later than its successor's a frame's acknowledgement may come.
    pub fn time_threshold(&self) -> Duration {
        (self.smoothed.max(self.latest) * 9 / 8).max(GRANULARITY)
    }
}
