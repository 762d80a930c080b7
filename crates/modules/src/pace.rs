//! [`Pace`]: how fast copies and scrubs go beside users: so much of what those get as [`WorkPace`] says, and all of a volume that nobody
//! uses.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::WorkPace;

/// Nobody uses a volume that has done nothing for so long.
pub(crate) const IDLE_AFTER: Duration = Duration::from_millis(20);
/// No more is saved up, in bytes.
const CREDIT_MAX: u64 = 4 << 20;

pub(crate) struct Pace {
    last_use: Time,
    /// It was used since the time was told last, and nobody knows how late.
    is_fresh: bool,
    /// Bytes that may be copied though somebody uses it.
    credit: u64,
    wish: WorkPace,
}

impl Pace {
    pub fn new() -> Self {
        Pace { last_use: Time::ZERO, is_fresh: false, credit: 0, wish: WorkPace::default() }
    }

    /// What is asked for.
    pub fn wish(&self) -> WorkPace {
        self.wish
    }

    /// That holds from now on: what was saved up by another is gone.
    pub fn set(&mut self, wish: WorkPace) {
        (self.wish, self.credit) = (wish, 0);
    }

    /// A user was given so many bytes.
    #[inline]
    pub fn on_use(&mut self, bytes: u64, now: Time) {
        (self.last_use, self.is_fresh) = (now, true);
        let share = bytes * u64::from(self.wish.percent) / 100;
        self.credit = CREDIT_MAX.min(self.credit + share);
    }

    /// A user was answered: who does one thing after the other is there, however long each takes.
    #[inline]
    pub fn on_end(&mut self) {
        self.is_fresh = true;
    }

    /// By now it is so late.
    #[inline]
    pub fn on_time(&mut self, now: Time) {
        if std::mem::take(&mut self.is_fresh) {
            self.last_use = now;
        }
    }

    /// Whether so many bytes may be copied now; they are, if so. `is_used`: somebody waits for something.
    pub fn take(&mut self, bytes: u64, is_used: bool, now: Time) -> bool {
        if self.wish.is_paused {
            return false;
        }
        if self.credit >= bytes {
            self.credit -= bytes;
            return true;
        }
        !is_used && !self.is_fresh && now >= self.idle_at()
    }

    /// When nobody will have used it for long, if nobody does; never if nothing may be copied then, either.
    pub fn idle_at(&self) -> Time {
        if self.wish.is_paused {
            return Time::NEVER;
        }
        match self.last_use {
            Time::ZERO => Time::ZERO,
            last => last + IDLE_AFTER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn users_get_twice_as_much_and_nobody_leaves_all() {
        let mut pace = Pace::new();
        let start = Time::ZERO + MS;
        assert!(pace.take(1 << 30, false, Time::ZERO), "nobody has used it yet");
        pace.on_use(8192, start);
        assert!(pace.take(4096, true, start), "half of it");
        assert!(!pace.take(1, true, start), "and no more");
        assert!(!pace.take(1, false, start + MS * 19), "somebody may come back at once");
        assert!(!pace.take(1, true, start + MS * 20), "who waits uses it");
        pace.on_time(start);
        assert!(pace.take(1 << 30, false, start + MS * 20));
        (0..100).for_each(|_| pace.on_use(1 << 20, start));
        assert!(!pace.take(CREDIT_MAX + 1, true, start), "not all that was ever used");
        assert!(pace.take(CREDIT_MAX, true, start));
    }

    /// Each thing takes 300 ms, and is asked for when the last one is over.
    #[test]
    fn who_is_slow_and_comes_back_at_once_is_there() {
        let mut pace = Pace::new();
        for nth in 0..10 {
            let start = Time::ZERO + MS * 300 * nth;
            pace.on_use(0, start);
            pace.on_time(start + MS);
            pace.on_end();
            assert!(!pace.take(1, false, start + MS), "it is later than was told by then");
            let end = start + MS * 299;
            pace.on_time(end);
            assert!(!pace.take(1, false, end) && !pace.take(1, false, end + MS * 19));
            assert!(pace.take(1, false, end + MS * 20));
        }
    }

    #[test]
    fn others_get_another_share_and_who_is_paused_nothing() {
        let mut pace = Pace::new();
        let start = Time::ZERO + MS;
        pace.set(WorkPace { percent: 10, ..WorkPace::default() });
        pace.on_use(40960, start);
        assert!(pace.take(4096, true, start) && !pace.take(1, true, start), "a tenth");
        pace.on_use(40960, start);
        pace.set(WorkPace { is_paused: true, ..pace.wish() });
        assert_eq!(pace.idle_at(), Time::NEVER);
        assert!(!pace.take(1, true, start) && !pace.take(1, false, start + MS * 900));
        pace.set(WorkPace { is_paused: false, ..pace.wish() });
        pace.on_time(start);
        assert!(!pace.take(1, true, start), "what was used before it was paused is gone");
        assert!(pace.take(1 << 30, false, start + MS * 20), "all of an idle one");
        pace.set(WorkPace { percent: 100, ..pace.wish() });
        pace.on_use(4096, start);
        assert!(pace.take(4096, true, start) && !pace.take(1, true, start));
    }
}
