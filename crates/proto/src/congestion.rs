//! The delay-based window of a path: Swift's idea, a target queueing delay in the network. What the
//! two machines take is not counted: the peer reports how long a frame lay in its queues and hands,
//! and the kernel's arrival stamp tells how long the acknowledgement lay in ours. Of what is left
//! the *smallest* of a round decides, so that one late interrupt is not taken for a queue.
//! (`docs/protocol.md`, "Congestion".)

use std::time::Duration;

use crate::Time;

/// Queueing delay a path aims at: long enough to keep a 10 Gb/s port busy with jumbo frames, short
/// enough that a 4 KiB read behind it still feels local.
const QUEUE_TARGET_NS: u64 = 1_000_000;
/// Loss above this share of a round is congestion; below, a bad cable (or a test).
const LOSS_SHARE: f64 = 0.15;
/// Delay alone does not push the window below this many frames: it takes loss to show that a queue
/// is still too long when every sender has only so few in it.
const DELAY_FRAMES_MIN: f64 = 8.0;
/// Strongest decrease in one round.
const DECREASE_MAX: f64 = 0.5;
/// How long the smallest round trip ever seen counts as the path's empty delay.
const BASE_AGE_NS: u64 = 10_000_000_000;

/// A congestion window in bytes. May fall below one frame; the path is paced then.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    bytes: f64,
    growing_fast: bool,
    /// Delays are kept in ns, which are compared far more often than told; the greatest for none.
    base_ns: u64,
    base_next_ns: u64,
    base_since: Time,
    round_end: Time,
    round_min_ns: u64,
    round_acked: u32,
    round_lost: u32,
    round_limited: bool,
}

impl Window {
    pub fn new(frame_bytes: usize) -> Self {
        Window {
            bytes: (frame_bytes * 32) as f64,
            growing_fast: true,
            base_ns: u64::MAX,
            base_next_ns: u64::MAX,
            base_since: Time::ZERO,
            round_end: Time::ZERO,
            round_min_ns: u64::MAX,
            round_acked: 0,
            round_lost: 0,
            round_limited: false,
        }
    }

    /// Bytes that may be in flight.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The smallest delay of the path lately.
    pub fn base(&self) -> Duration {
        match self.base_ns {
            u64::MAX => Duration::MAX,
            ns => Duration::from_nanos(ns),
        }
    }

    /// The sender had more to send than the window allowed.
    pub fn on_limited(&mut self) {
        self.round_limited = true;
    }

    pub fn on_lost(&mut self, frames: u32) {
        self.round_lost += frames;
    }

    /// Frames were acknowledged, the newest of them after `rtt`.
    pub fn on_acked(
        &mut self,
        now: Time,
        frames: u32,
        rtt: Option<Duration>,
        smoothed: Duration,
        frame_bytes: usize,
    ) {
        self.round_acked += frames;
        if let Some(rtt) = rtt {
            let rtt_ns = rtt.as_nanos() as u64;
            self.round_min_ns = self.round_min_ns.min(rtt_ns);
            self.base_ns = self.base_ns.min(rtt_ns);
            self.base_next_ns = self.base_next_ns.min(rtt_ns);
        }
        if now.0.saturating_sub(self.base_since.0) > BASE_AGE_NS {
            self.base_ns = self.base_next_ns;
            self.base_next_ns = u64::MAX;
            self.base_since = now;
        }
        if now < self.round_end || self.round_min_ns == u64::MAX {
            return;
        }
        let frame = frame_bytes as f64;
        let delay_target_ns = self.base_ns.saturating_add(QUEUE_TARGET_NS);
        let share = match self.round_lost {
            0 => 0.0,
            lost => f64::from(lost) / f64::from(self.round_acked + lost),
        };
        let floor = frame * DELAY_FRAMES_MIN;
        let is_small = self.bytes < floor;
        if share > LOSS_SHARE && (self.round_lost > 2 || (is_small && share >= DECREASE_MAX)) {
            self.bytes *= DECREASE_MAX;
            self.growing_fast = false;
        } else if is_small {
            self.bytes = (self.bytes + frame).min(floor);
        } else if self.round_min_ns > delay_target_ns {
            let excess = self.round_min_ns - delay_target_ns;
            let factor = 1.0 - 0.8 * excess as f64 / self.round_min_ns as f64;
            self.bytes = (self.bytes * factor.max(DECREASE_MAX)).max(floor);
            self.growing_fast = false;
        } else if self.round_limited {
            self.bytes += if self.growing_fast { self.bytes } else { frame * 2.0 };
        }
        self.bytes = self.bytes.clamp(frame * 0.05, 64.0 * 1024.0 * 1024.0);
        self.round_end = now + smoothed.max(Duration::from_micros(20));
        self.round_min_ns = u64::MAX;
        self.round_acked = 0;
        self.round_lost = 0;
        self.round_limited = false;
    }

    /// The path is new, or was away: forget what was learnt about its queue.
    pub fn restart(&mut self, frame_bytes: usize) {
        *self = Window::new(frame_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(window: &mut Window, from_us: u64, count: u64, rtt_us: u64, lost: u32) -> u64 {
        let rtt = Duration::from_micros(rtt_us);
        let mut at = from_us;
        for _ in 0..count {
            at += rtt_us + 20;
            window.on_limited();
            window.on_lost(lost);
            window.on_acked(Time(at * 1000), 50, Some(rtt), rtt, 9000);
        }
        at
    }

    #[test]
    fn grows_while_the_queue_is_short_and_shrinks_when_it_is_not() {
        let mut w = Window::new(9000);
        let start = w.bytes();
        let at = rounds(&mut w, 0, 3, 100, 0);
        assert!(w.bytes() >= 4 * start);
        let grown = w.bytes();
        let at = rounds(&mut w, at, 20, 5_000, 0);
        assert!(w.bytes() < grown / 4, "{} {}", w.bytes(), grown);
        assert_eq!(w.bytes(), 8 * 9000);
        // Heavy loss goes on below that, and below one frame.
        rounds(&mut w, at, 8, 5_000, 25);
        assert!(w.bytes() < 9000 && w.bytes() > 0, "{}", w.bytes());
    }

    /// Whatever the delay is, a few frames stay allowed; only loss goes below, and it comes back.
    #[test]
    fn late_wake_ups_do_not_starve_a_path_but_loss_paces_it() {
        let mut w = Window::new(9000);
        let at = rounds(&mut w, 0, 3, 100, 0);
        let at = rounds(&mut w, at, 200, 20_000, 0);
        assert_eq!(w.bytes(), 8 * 9000);
        let at = rounds(&mut w, at, 200, 100, 100);
        assert!(w.bytes() < 9000, "{}", w.bytes());
        rounds(&mut w, at, 10, 20_000, 0);
        assert_eq!(w.bytes(), 8 * 9000);
    }

    #[test]
    fn two_per_cent_loss_is_not_congestion_but_a_third_is() {
        let mut w = Window::new(9000);
        let at = rounds(&mut w, 0, 3, 100, 1);
        let grown = w.bytes();
        assert!(grown > 9000 * 32);
        rounds(&mut w, at, 1, 100, 25);
        assert!(w.bytes() <= grown / 2);
    }
}
