//! [`Pace`]: how fast copies and scrubs go beside users: half of what those get, and all of a volume that nobody uses.

use std::time::Duration;

use thinwire_buffer::Time;

/// Nobody uses a volume that has done nothing for so long.
pub(crate) const IDLE_AFTER: Duration = Duration::from_millis(20);
/// No more is saved up, in bytes.
const CREDIT_MAX: u64 = 4 << 20;

pub(crate) struct Pace {
    last_use: Time,
    /// Bytes that may be copied though somebody uses it.
    credit: u64,
}

impl Pace {
    pub fn new() -> Self {
        Pace { last_use: Time::ZERO, credit: 0 }
    }

    /// A user was given so many bytes.
    #[inline]
    pub fn on_use(&mut self, bytes: u64, now: Time) {
        self.last_use = now;
        self.credit = CREDIT_MAX.min(self.credit + bytes / 2);
    }

    /// Whether so many bytes may be copied now; they are, if so. `is_used`: somebody waits for something.
    pub fn take(&mut self, bytes: u64, is_used: bool, now: Time) -> bool {
        if self.credit >= bytes {
            self.credit -= bytes;
            return true;
        }
        !is_used && now >= self.idle_at()
    }

    /// When nobody will have used it for long, if nobody does.
    pub fn idle_at(&self) -> Time {
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
        assert!(pace.take(1 << 30, false, start + MS * 20));
        (0..100).for_each(|_| pace.on_use(1 << 20, start));
        assert!(!pace.take(CREDIT_MAX + 1, true, start), "not all that was ever used");
        assert!(pace.take(CREDIT_MAX, true, start));
    }
}
