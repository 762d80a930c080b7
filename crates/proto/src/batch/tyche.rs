//! The batch level that follows the throughput (Gonzalez-Ferez and Bilas, section VI-A).

use std::time::Duration;

use super::fixed::{DELAY_MAX, whole_batches};
use super::{BatchPolicy, Policy, SMALL_BYTES, Waiting};
use crate::Time;

/// A change of the throughput by less than this is none.
const THRESHOLD: f64 = 0.03;
/// After so many intervals without a change the neighbours of the level are tried.
const UNCHANGED_MAX: u32 = 10;

/// Settings of [`BatchPolicy::Tyche`]. The defaults are the document's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TycheConfig {
    /// How long the throughput is measured before the level is looked at. Default 1 s.
    pub interval: Duration,
    /// The most requests of a batch. Default 64. Bound: 1 to [`BatchPolicy::LEVEL_MAX`]; a number
    /// beyond counts as the nearest within.
    pub level_max: u16,
    /// The longest that the first request of a batch waits. Default 5 ms.
    pub delay_max: Duration,
}

impl Default for TycheConfig {
    fn default() -> Self {
        TycheConfig {
            interval: Duration::from_secs(1),
            level_max: BatchPolicy::LEVEL_MAX,
            delay_max: DELAY_MAX,
        }
    }
}

/// What the present interval is for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Purpose {
    /// The formulas decide.
    Adjusting,
    /// The level below `home` is being tried; `home` gave the throughput `at_home`.
    TryingLower { home: usize, at_home: f64 },
    /// The level above is, and the one below gave `lower`.
    TryingHigher { home: usize, at_home: f64, lower: f64 },
}

/// See [`BatchPolicy::Tyche`].
#[derive(Debug)]
pub(super) struct Tyche {
    config: TycheConfig,
    level: usize,
    purpose: Purpose,
    /// The interval that runs: since when, bytes completed in it, what waited at each look.
    since: Option<Time>,
    bytes: u64,
    looks: u64,
    waiting_sum: u64,
    /// Throughput of the interval before, in bytes a second.
    before: Option<f64>,
    /// Intervals in a row that left the level as it was.
    unchanged: u32,
}

impl Tyche {
    pub fn new(config: TycheConfig) -> Self {
        Tyche {
            config,
            level: 1,
            purpose: Purpose::Adjusting,
            since: None,
            bytes: 0,
            looks: 0,
            waiting_sum: 0,
            before: None,
            unchanged: 0,
        }
    }

    fn level_max(&self) -> usize {
        usize::from(self.config.level_max)
    }

    /// Ends the interval if it is over.
    fn on_time(&mut self, now: Time) {
        let since = *self.since.get_or_insert(now);
        let length = now.since(since);
        if length < self.config.interval {
            return;
        }
        let throughput = self.bytes as f64 / length.as_secs_f64();
        let waiting = self.waiting_sum as f64 / self.looks.max(1) as f64;
        // Of an interval that went on because nothing was asked for, nothing can be learned.
        let idle = self.bytes == 0 || length > self.config.interval * 2;
        self.since = Some(now);
        (self.bytes, self.looks, self.waiting_sum) = (0, 0, 0);
        if idle {
            if let Purpose::TryingLower { home, .. } | Purpose::TryingHigher { home, .. } =
                self.purpose
            {
                self.level = home;
            }
            (self.purpose, self.before, self.unchanged) = (Purpose::Adjusting, None, 0);
            return;
        }
        match self.purpose {
            Purpose::Adjusting => self.adjust(throughput, waiting),
            Purpose::TryingLower { home, at_home } => {
                self.purpose = Purpose::TryingHigher { home, at_home, lower: throughput };
                self.level = (home + 1).min(self.level_max());
            }
            Purpose::TryingHigher { home, at_home, lower } => {
                self.settle(home, at_home, lower, throughput);
            }
        }
    }

    fn adjust(&mut self, throughput: f64, waiting: f64) {
        let level = self.level as f64;
        let next = match self.before.map(|before| throughput / before - 1.0) {
            Some(gain) if gain > THRESHOLD => (level + waiting.min(self.level_max() as f64)) / 2.0,
            Some(gain) if gain < -THRESHOLD => (1.0 + waiting.min(level)) / 2.0,
            _ => level,
        };
        let next = (next.round() as usize).clamp(1, self.level_max());
        self.before = Some(throughput);
        self.unchanged = if next == self.level { self.unchanged + 1 } else { 0 };
        self.level = next;
        if self.unchanged >= UNCHANGED_MAX {
            self.unchanged = 0;
            self.purpose = Purpose::TryingLower { home: self.level, at_home: throughput };
            self.level = (self.level - 1).max(1);
        }
    }

    /// Both neighbours have been tried: the better one is taken if it is better than home, and
    /// adjusting starts again from there. Its gain is news to the formula only where that moves on
    /// in the same direction, which is up.
    fn settle(&mut self, home: usize, at_home: f64, lower: f64, higher: f64) {
        let (level, best) = if lower > higher {
            ((home - 1).max(1), lower)
        } else {
            ((home + 1).min(self.level_max()), higher)
        };
        self.purpose = Purpose::Adjusting;
        let gains = best > at_home * (1.0 + THRESHOLD);
        self.level = if gains { level } else { home };
        self.before = Some(if self.level < home { best } else { at_home });
    }
}

impl Policy for Tyche {
    fn holds(&self, bytes: u64) -> bool {
        bytes <= SMALL_BYTES
    }

    fn release(&mut self, now: Time, waiting: Waiting) -> usize {
        self.looks += 1;
        self.waiting_sum += waiting.requests as u64;
        self.on_time(now);
        whole_batches(now, waiting, self.level, self.config.delay_max)
    }

    fn deadline(&self, waiting: Waiting) -> Time {
        waiting.oldest + self.config.delay_max
    }

    fn frame_max(&self) -> usize {
        self.level
    }

    fn on_completed(&mut self, now: Time, bytes: u64) {
        self.bytes += bytes;
        self.on_time(now);
    }

    fn level(&self) -> usize {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one interval of the given throughput (bytes in it) with so many waiting at each look,
    /// and returns the level after it.
    struct Bench {
        tyche: Tyche,
        now: Time,
    }

    impl Bench {
        fn new() -> Self {
            let mut bench = Bench { tyche: Tyche::new(TycheConfig::default()), now: Time(7) };
            bench.tyche.on_completed(bench.now, 0);
            bench
        }

        fn interval(&mut self, bytes: u64, waiting: usize) -> usize {
            let half = Duration::from_millis(500);
            let waiting = Waiting { requests: waiting, bytes: 0, oldest: self.now + half };
            self.tyche.release(self.now + half, waiting);
            self.now = self.now + half * 2;
            self.tyche.on_completed(self.now, bytes);
            self.tyche.level()
        }
    }

    #[test]
    fn a_gain_moves_half_way_to_what_waits() {
        let mut bench = Bench::new();
        assert_eq!(bench.interval(1000, 30), 1); // nothing to compare with
        assert_eq!(bench.interval(1100, 30), 16); // (1 + 30) / 2
        assert_eq!(bench.interval(1200, 100), 40); // (16 + min(100, 64)) / 2
    }

    #[test]
    fn a_loss_falls_to_the_middle_of_one_and_the_smaller() {
        let mut bench = Bench::new();
        bench.interval(1000, 63);
        assert_eq!(bench.interval(1100, 63), 32);
        assert_eq!(bench.interval(1000, 9), 5); // (1 + min(9, 32)) / 2
        assert_eq!(bench.interval(900, 60), 3); // (1 + min(60, 5)) / 2
    }

    #[test]
    fn three_per_cent_is_no_change() {
        let mut bench = Bench::new();
        bench.interval(1000, 63);
        bench.interval(2000, 63);
        assert_eq!(bench.interval(2059, 63), 32);
        assert_eq!(bench.interval(2000, 63), 32);
    }

    /// Brings it to level 32 with a throughput of 2000, and keeps it there until it probes.
    fn until_probe() -> Bench {
        let mut bench = Bench::new();
        bench.interval(1000, 63);
        assert_eq!(bench.interval(2000, 63), 32);
        for _ in 0..9 {
            assert_eq!(bench.interval(2000, 63), 32);
        }
        // The tenth unchanged interval: the next one tries the level below.
        assert_eq!(bench.interval(2000, 63), 31);
        bench
    }

    #[test]
    fn ten_unchanged_intervals_lead_to_a_probe_that_may_find_nothing() {
        let mut bench = until_probe();
        assert_eq!(bench.interval(2010, 63), 33); // the level above is next
        assert_eq!(bench.interval(2010, 63), 32); // no gain: home
        for _ in 0..9 {
            assert_eq!(bench.interval(2000, 63), 32);
        }
        assert_eq!(bench.interval(2000, 63), 31);
    }

    #[test]
    fn a_neighbour_that_gains_is_where_adjusting_starts_again() {
        let mut bench = until_probe();
        bench.interval(2000, 63);
        assert_eq!(bench.interval(2100, 63), 33);
        // The gain over home is still news to the formula.
        assert_eq!(bench.interval(2100, 63), 48);
        let mut bench = until_probe();
        bench.interval(2100, 63);
        assert_eq!(bench.interval(2000, 63), 31);
        // That of the level below must not send it up again; what comes after is a change as any.
        assert_eq!(bench.interval(2100, 63), 31);
        assert_eq!(bench.interval(2200, 63), 47);
    }

    #[test]
    fn an_idle_interval_teaches_nothing() {
        let mut bench = Bench::new();
        bench.interval(1000, 63);
        assert_eq!(bench.interval(2000, 63), 32);
        assert_eq!(bench.interval(0, 63), 32);
        assert_eq!(bench.interval(4000, 63), 32);
        // Nor does one after which nobody looked for a long time.
        bench.now = bench.now + Duration::from_secs(60);
        bench.tyche.on_completed(bench.now, 50);
        assert_eq!(bench.interval(4000, 63), 32);
    }

    #[test]
    fn one_at_a_time_stays_at_one() {
        let mut bench = Bench::new();
        for bytes in [1000, 2000, 1000, 3000, 4000, 4000] {
            assert_eq!(bench.interval(bytes, 1), 1);
        }
    }
}
