//! Round-trip estimation after RFC 9002, section 5.

use std::time::Duration;

use crate::Time;

/// Timers finer than this would fire for nothing: a sleeping thread wakes up about this late.
pub(crate) const GRANULARITY: Duration = Duration::from_micros(300);
/// How long an acknowledgement may be held back (our side promises it, the peer counts on it).
pub(crate) const ACK_DELAY_MAX: Duration = Duration::from_micros(400);
/// Before the first sample: as if on a slow switch.
const INITIAL: Duration = Duration::from_millis(20);

/// An estimate older than this says nothing about the path any more.
const AGE_MAX: Duration = Duration::from_millis(250);

/// The estimate of one path.
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    pub smoothed: Duration,
    pub variation: Duration,
    pub latest: Duration,
    /// When the last sample was taken; none before the first.
    sampled_at: Option<Time>,
    /// What follows from these: asked for far more often than they change.
    probe_timeout: Duration,
}

impl Default for Rtt {
    fn default() -> Self {
        let (smoothed, variation) = (INITIAL, INITIAL / 2);
        let probe_timeout = probe_timeout(smoothed, variation);
        Rtt { smoothed, variation, latest: INITIAL, sampled_at: None, probe_timeout }
    }
}

impl Rtt {
    /// A sample: from sending to having the acknowledgement in hand, the peer's delay included.
    /// Unlike RFC 9002 nothing is subtracted: on a switch the ends, not the network, take most of
    /// the time, and a timer that does not allow for it fires for nothing.
    pub fn sample(&mut self, now: Time, rtt: Duration) {
        let rtt = rtt.max(Duration::from_micros(1));
        self.latest = rtt;
        let was_old = self.is_old(now);
        if self.sampled_at.replace(now).is_none() {
            self.variation = rtt / 2;
        }
        if was_old {
            // The doubt that there was stays: a timer that fires too early helps nobody.
            self.smoothed = rtt;
            self.variation = self.variation.max(rtt / 2);
        } else {
            let (known_ns, new_ns) = (ns(self.smoothed), ns(rtt));
            let variation_ns = mean(ns(self.variation), 3, known_ns.abs_diff(new_ns));
            let smoothed_ns = mean(known_ns, 7, new_ns);
            self.variation = Duration::from_nanos(variation_ns);
            self.smoothed = Duration::from_nanos(smoothed_ns);
            self.probe_timeout = probe_timeout_of(smoothed_ns, variation_ns);
            return;
        }
        self.probe_timeout = probe_timeout(self.smoothed, self.variation);
    }

    /// The path was away, or is new: what was known of it is forgotten, and this is the first sample.
    pub fn restart(&mut self, now: Time, rtt: Duration) {
        *self = Rtt::default();
        self.sample(now, rtt);
    }

    /// Nothing has been sampled for so long that the path may well be another by now.
    pub fn is_old(&self, now: Time) -> bool {
        self.sampled_at.is_none_or(|at| now.since(at) > AGE_MAX)
    }

    /// After how long without an answer to ask again.
    pub fn probe_timeout(&self) -> Duration {
        self.probe_timeout
    }

    /// How much later than its successor's a frame's acknowledgement may come.
    pub fn time_threshold(&self) -> Duration {
        (self.smoothed.max(self.latest) * 9 / 8).max(GRANULARITY)
    }
}

fn probe_timeout(smoothed: Duration, variation: Duration) -> Duration {
    probe_timeout_of(ns(smoothed), ns(variation))
}

fn probe_timeout_of(smoothed_ns: u64, variation_ns: u64) -> Duration {
    let slack_ns = (variation_ns * 4).max(ns(GRANULARITY));
    Duration::from_nanos(smoothed_ns + slack_ns + ns(ACK_DELAY_MAX))
}

/// Arithmetic in nanoseconds spares divisions.
const fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Of what is known, which counts so many times, and of what is new.
fn mean(known_ns: u64, times: u64, new_ns: u64) -> u64 {
    (known_ns * times + new_ns) / (times + 1)
}
