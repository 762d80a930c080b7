//! What frames that come late could do, and what is kept against it (`docs/ebd.md`, "Loss").

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_wire::ebd::Tag;

/// No frame is longer on its way, as far as a client knows.
pub(super) const LIFETIME: Duration = Duration::from_secs(2);

/// Which pairs of identifier and sector may still be answered: of the idealised form, which has 256 identifiers.
#[derive(Debug)]
pub(super) struct Pairs {
    /// By identifier, what it was used for, and until when: in the order of that.
    uses: Vec<VecDeque<(Time, u32, u32)>>,
    next: u8,
}

impl Pairs {
    pub fn new() -> Self {
        Pairs { uses: vec![VecDeque::new(); 256], next: 0 }
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
                return Some(self.next);
            }
        }
        None
    }

    /// A request under an identifier was sent last at `sent`, and is over.
    pub fn end(&mut self, sent: Time, identifier: u8, start: u32, end: u32) {
        self.uses[usize::from(identifier)].push_back((sent + LIFETIME, start, end));
    }
}

/// A range over which a write that went out more than once may still land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Late {
    tag: Tag,
    start: u32,
    end: u32,
    /// Frames of it whose answers have not come.
    missing: u32,
    until: Time,
}

/// Ranges that are not written for a while.
#[derive(Debug, Default)]
pub(super) struct Quarantine(Vec<Late>);

impl Quarantine {
    /// A write is over of which so many frames have not been answered; the last was sent at `sent`.
    pub fn add(&mut self, sent: Time, tag: Tag, (start, end): (u32, u32), missing: u32) {
        if missing > 0 {
            self.0.push(Late { tag, start, end, missing, until: sent + LIFETIME });
        }
    }

    /// An answer has come that nobody waits for.
    pub fn on_answer(&mut self, tag: Tag, sector: u32) {
        let is = |late: &&mut Late| late.tag == tag && (late.start..late.end).contains(&sector);
        if let Some(late) = self.0.iter_mut().find(is) {
            late.missing -= 1;
        }
        self.0.retain(|late| late.missing > 0);
    }

    /// Whether sectors from `start` to `end` may be written now.
    pub fn allows(&mut self, now: Time, start: u32, end: u32) -> bool {
        self.0.retain(|late| late.until > now);
        !self.0.iter().any(|late| late.start < end && start < late.end)
    }

    /// When the next of them ends.
    pub fn until(&self) -> Time {
        self.0.iter().map(|late| late.until).min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag = Tag::Ideal { identifier: 1, major: 0, minor: 0 };

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
        quarantine.add(now, TAG, (8, 16), 0);
        assert!(quarantine.allows(now, 8, 16), "all of it was answered");
        quarantine.add(now, TAG, (8, 16), 2);
        assert!(!quarantine.allows(now, 15, 17) && quarantine.allows(now, 16, 17));
        quarantine.on_answer(TAG, 8);
        assert!(!quarantine.allows(now, 8, 9));
        quarantine.on_answer(TAG, 20);
        quarantine.on_answer(TAG, 15);
        assert!(quarantine.allows(now, 8, 9));
        quarantine.add(now, TAG, (8, 16), 1);
        assert_eq!(quarantine.until(), now + LIFETIME);
        assert!(quarantine.allows(now + LIFETIME, 8, 9));
    }
}
