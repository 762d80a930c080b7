//! Writes of one export that overlap, in the order in which they came.
//!
//! A volume may carry out what is outstanding together in any order, so the later of two that overlap waits, and a read for the
//! writes that came before it: who begins anew at a station sees what its former self has under way here. A write that
//! was received before another that was taken in already is stale: a client has asked for it again since, or given it up.

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::Time;

/// Writes of which it is remembered when they were received.
const REMEMBERED: usize = 1024;
/// Times of arrival are measured as exactly as this: within it, what is taken first came first.
const EXACT: Duration = Duration::from_millis(1);

/// A write that is outstanding or waits, or a read that waits: of which party, in which of its slots, and where it is, in
/// sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    party: usize,
    slot: u16,
    start: u64,
    end: u64,
    is_write: bool,
    /// A volume may have it.
    has_begun: bool,
}

impl Entry {
    fn is_write_in(&self, start: u64, end: u64) -> bool {
        self.is_write && self.start < end && start < self.end
    }
}

/// A write that was taken in, and when it had been received.
#[derive(Clone, Copy, Debug)]
struct Received {
    at: Time,
    start: u64,
    end: u64,
}

/// All of one export, oldest first.
#[derive(Debug)]
pub(super) struct Order {
    entries: Vec<Entry>,
    received: VecDeque<Received>,
    /// When the latest of them was received, and the latest of those that are forgotten.
    latest: Time,
    forgotten: Time,
}

impl Order {
    pub fn new() -> Self {
        Order {
            entries: Vec::new(),
            received: VecDeque::with_capacity(REMEMBERED),
            latest: Time::ZERO,
            forgotten: Time::ZERO,
        }
    }

    /// Whether a write that was received at `at` comes too late: one that overlaps it, and was received later, has been
    /// taken in, or may have been.
    pub fn is_stale(&self, at: Time, start: u64, end: u64) -> bool {
        let at = at + EXACT;
        if at >= self.latest {
            return false;
        }
        let overtook = |r: &Received| r.start < end && start < r.end && at < r.at;
        at < self.forgotten || self.received.iter().any(overtook)
    }

    /// Takes note of a write that was received at `at`. True if it may begin now.
    pub fn add(&mut self, at: Time, party: usize, slot: u16, start: u64, end: u64) -> bool {
        if self.received.len() == REMEMBERED
            && let Some(oldest) = self.received.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest.at);
        }
        self.received.push_back(Received { at, start, end });
        self.latest = self.latest.max(at);
        let has_begun = !self.entries.iter().any(|e| e.is_write_in(start, end));
        self.entries.push(Entry { party, slot, start, end, is_write: true, has_begun });
        has_begun
    }

    /// Takes note of a read, unless it may begin now. True if it may.
    pub fn add_read(&mut self, party: usize, slot: u16, start: u64, end: u64) -> bool {
        let has_begun = !self.entries.iter().any(|e| e.is_write_in(start, end));
        if !has_begun {
            self.entries.push(Entry { party, slot, start, end, is_write: false, has_begun });
        }
        has_begun
    }

    /// One has ended, or is given up. Calls `begin` with each that may begin now.
    pub fn remove(&mut self, party: usize, slot: u16, mut begin: impl FnMut(usize, u16)) {
        let is = |e: &Entry| (e.party, e.slot) == (party, slot);
        let Some(at) = self.entries.iter().position(is) else { return };
        let gone = self.entries.remove(at);
        for at in 0..self.entries.len() {
            let e = self.entries[at];
            let waited_for_it = !e.has_begun && gone.is_write_in(e.start, e.end);
            let is_free = |before: &[Entry]| !before.iter().any(|b| b.is_write_in(e.start, e.end));
            if waited_for_it && is_free(&self.entries[..at]) {
                self.entries[at].has_begun = true;
                begin(e.party, e.slot);
            }
        }
        // Nobody waits for a read.
        self.entries.retain(|e| e.is_write || !e.has_begun);
    }

    /// A party is gone: what a volume has of its ends by itself.
    pub fn forget(&mut self, party: usize) {
        self.entries.retain(|e| e.party != party);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_overlap_begin_one_after_the_other() {
        let (mut order, now) = (Order::new(), Time(5));
        assert!(order.add(now, 1, 0, 0, 8));
        assert!(!order.add(now, 1, 1, 4, 12), "it overlaps the first");
        assert!(!order.add(now, 2, 0, 8, 16), "and this one that which waits");
        assert!(order.add(now, 2, 1, 16, 24));
        let mut begun = Vec::new();
        order.remove(1, 0, |party, slot| begun.push((party, slot)));
        assert_eq!(begun, [(1, 1)]);
        begun.clear();
        order.remove(1, 1, |party, slot| begun.push((party, slot)));
        assert_eq!(begun, [(2, 0)]);
        order.remove(2, 1, |_, _| panic!("nobody waits for it"));
    }

    #[test]
    fn a_read_waits_for_writes_before_it_and_nobody_for_a_read() {
        let (mut order, now) = (Order::new(), Time(5));
        assert!(order.add_read(1, 0, 0, 8), "nothing is there");
        assert!(order.add(now, 1, 1, 0, 8));
        assert!(!order.add_read(2, 0, 4, 12) && order.add_read(2, 1, 8, 12));
        assert!(order.add(now, 1, 2, 8, 16), "a read waits there, and no write");
        let mut begun = Vec::new();
        order.remove(1, 1, |party, slot| begun.push((party, slot)));
        assert_eq!(begun, [(2, 0)]);
        order.remove(1, 2, |_, _| panic!("nobody waits for it"));
        assert!(order.entries.is_empty());
    }

    #[test]
    fn a_write_that_was_received_before_one_that_it_overlaps_is_stale() {
        let ms = |n: u64| Time(n * 1_000_000);
        let mut order = Order::new();
        order.add(ms(100), 1, 0, 8, 16);
        assert!(order.is_stale(ms(90), 15, 17) && !order.is_stale(ms(90), 16, 17));
        assert!(!order.is_stale(ms(100), 8, 16), "at the same time");
        assert!(!order.is_stale(ms(99), 8, 16), "as exactly as times are known");
        assert!(!order.is_stale(ms(110), 8, 16));
        // Of those that are forgotten only the time is known.
        (0..REMEMBERED as u64).for_each(|n| _ = order.add(ms(200 + n), 1, 0, 1000, 1001));
        assert!(order.is_stale(ms(90), 500, 501));
        assert!(!order.is_stale(ms(150), 500, 501));
    }
}
