//! What frames that come late could do, and what is kept against it (`docs/ebd.md`, "Loss").

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::Time;

use crate::LIFETIME;

/// Which pairs of identifier and sector may still be answered: of the idealised form, which has 256 identifiers.
#[derive(Debug)]
pub(super) struct Pairs {
    /// By identifier, what it was used for, and until when: in the order of that.
    uses: Vec<VecDeque<(Time, u32, u32)>>,
    next: u8,
    /// There was none when it was asked last.
    is_short: bool,
}

impl Pairs {
    pub fn new() -> Self {
        Pairs { uses: vec![VecDeque::new(); 256], next: 0, is_short: false }
    }

    /// An identifier for sectors from `start` to `end` that no answer on its way fits, nor one of `taken`; `None` if there
    /// is none: later there is.
    pub fn give(
        &mut self,
        now: Time,
        (start, end): (u32, u32),
        taken: impl Fn(u8) -> bool,
    ) -> Option<u8> {
        for _ in 0..256 {
            self.next = self.next.wrapping_add(1);
            let uses = &mut self.uses[usize::from(self.next)];
            while uses.front().is_some_and(|&(until, ..)| until <= now) {
                uses.pop_front();
            }
            let may_come = uses.iter().any(|&(_, from, to)| from < end && start < to);
            if !may_come && !taken(self.next) {
                self.is_short = false;
                return Some(self.next);
            }
        }
        self.is_short = true;
        None
    }

    /// When to ask again, if there was none.
    pub fn until(&self, now: Time) -> Time {
        match self.is_short {
            true => now + Duration::from_millis(10),
            false => Time::NEVER,
        }
    }

    /// A request under an identifier was sent last at `sent`, and is over.
    pub fn end(&mut self, sent: Time, identifier: u8, start: u32, end: u32) {
        self.uses[usize::from(identifier)].push_back((sent + LIFETIME, start, end));
    }
}

/// Ranges that are not written for a while: over which a write that went out more than once may still land. Answers lift it for
/// nobody, since a network may double them.
#[derive(Debug, Default)]
pub(super) struct Quarantine(Vec<(Time, u32, u32)>);

impl Quarantine {
    /// A write is over of which a frame has not been answered; the last was sent at `sent`.
    pub fn add(&mut self, sent: Time, start: u32, end: u32) {
        self.0.push((sent + LIFETIME, start, end));
    }

    /// Whether sectors from `start` to `end` may be written now.
    pub fn allows(&mut self, now: Time, start: u32, end: u32) -> bool {
        self.0.retain(|&(until, ..)| until > now);
        !self.0.iter().any(|&(_, from, to)| from < end && start < to)
    }

    /// When the next of them ends.
    pub fn until(&self, now: Time) -> Time {
        let ends = self.0.iter().map(|&(until, ..)| until).filter(|&until| until > now);
        ends.min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_is_used_twice_within_a_lifetime() {
        let (mut pairs, now) = (Pairs::new(), Time(5));
        let later = now + LIFETIME;
        let mut given = Vec::new();
        while let Some(identifier) = pairs.give(now, (8, 16), |_| false) {
            assert!(!given.contains(&identifier));
            given.push(identifier);
            pairs.end(now, identifier, 8, 16);
        }
        assert_eq!(given.len(), 256);
        assert!(pairs.give(now, (15, 17), |_| false).is_none(), "a part of it");
        assert!(pairs.give(now, (16, 24), |_| false).is_some(), "another place");
        assert_eq!(pairs.give(later, (8, 16), |id| id != 7), Some(7), "one that is in use");
    }

    #[test]
    fn nothing_is_written_where_an_earlier_write_may_still_land() {
        let (mut quarantine, now) = (Quarantine::default(), Time(5));
        assert!(quarantine.allows(now, 8, 16));
        quarantine.add(now, 8, 16);
        assert!(!quarantine.allows(now, 15, 17) && quarantine.allows(now, 16, 17));
        assert_eq!(quarantine.until(now), now + LIFETIME);
        assert_eq!(quarantine.until(now + LIFETIME), Time::NEVER);
        assert!(quarantine.allows(now + LIFETIME, 8, 9));
    }
}
