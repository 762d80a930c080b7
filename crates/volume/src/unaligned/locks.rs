//! Range locks with first-come-first-served fairness.

/// A lock that is held or waited for.
struct Lock {
    start: u64,
    end: u64,
    exclusive: bool,
    /// Order of arrival.
    arrival: u64,
    /// Locks that arrived earlier and that it waits for; granted at zero.
    blockers: u32,
    owner: u32,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn conflicts(&self, other: &Lock) -> bool {
        (self.exclusive || other.exclusive) && self.overlaps(other)
    }

    /// Whether a lock that arrives now waits for `self`. Shared beside shared waits as well, until
    /// the first of them is granted: it must not overtake it.
    fn delays(&self, new: &Lock) -> bool {
        self.overlaps(new) && (self.exclusive || new.exclusive || self.blockers > 0)
    }
}

/// Locks on ranges of bytes, granted in order of arrival where they overlap. Shared locks are held
/// together; an exclusive one waits until everything that overlaps it and arrived earlier is
/// released, and everything that arrives later and overlaps waits for it. While nobody holds or wants
/// an exclusive lock, taking and releasing one costs constant time; else it is linear in the number of
/// locks.
#[derive(Default)]
pub(super) struct RangeLocks {
    /// Held and waiting, in no order.
    locks: Vec<Lock>,
    /// Position in `locks` by owner.
    place: Vec<u32>,
    exclusive_count: usize,
    waiting_count: usize,
    arrivals: u64,
    /// Arrivals and owners of those a release grants; kept for its storage.
    granted: Vec<(u64, u32)>,
    /// Grants everything, to show that the tests and the simulator would notice.
    pub(super) broken: bool,
}

impl RangeLocks {
    /// Asks for `[start, end)` on behalf of `owner`, a small number that holds no other lock.
    /// Returns true if it is granted at once; else a later [`RangeLocks::release`] grants it.
    pub(super) fn acquire(&mut self, owner: u32, start: u64, end: u64, exclusive: bool) -> bool {
        self.arrivals += 1;
        let mut lock = Lock { start, end, exclusive, arrival: self.arrivals, blockers: 0, owner };
        if (exclusive || self.exclusive_count > 0) && !self.broken {
            let earlier = self.locks.iter().filter(|other| other.delays(&lock));
            lock.blockers = earlier.count() as u32;
        }
        let granted = lock.blockers == 0;
        self.exclusive_count += usize::from(exclusive);
        self.waiting_count += usize::from(!granted);
        if self.place.len() <= owner as usize {
            self.place.resize(owner as usize + 1, u32::MAX);
        }
        self.place[owner as usize] = self.locks.len() as u32;
        self.locks.push(lock);
        granted
    }

    /// Gives up `owner`'s lock and appends to `out` the owners whose turn it is now, in their
    /// order of arrival.
    pub(super) fn release(&mut self, owner: u32, out: &mut Vec<u32>) {
        let place = std::mem::replace(&mut self.place[owner as usize], u32::MAX) as usize;
        let lock = self.locks.swap_remove(place);
        debug_assert!(lock.owner == owner && lock.blockers == 0);
        if let Some(moved) = self.locks.get(place) {
            self.place[moved.owner as usize] = place as u32;
        }
        self.exclusive_count -= usize::from(lock.exclusive);
        if self.waiting_count == 0 {
            return;
        }
        // A held lock's conflicts all arrived later, or it would not be held: each counted it.
        self.unblock(|other| other.conflicts(&lock));
        // Those that wait for a shared lock only until it is granted.
        let mut seen = 0;
        while let Some(&(arrival, owner)) = self.granted.get(seen) {
            seen += 1;
            let granted = &self.locks[self.place[owner as usize] as usize];
            let (start, end, exclusive) = (granted.start, granted.end, granted.exclusive);
            if !exclusive {
                self.unblock(|other| {
                    let later = other.arrival > arrival && !other.exclusive;
                    later && start < other.end && other.start < end
                });
            }
        }
        self.waiting_count -= self.granted.len();
        self.granted.sort_unstable();
        out.extend(self.granted.drain(..).map(|(_, owner)| owner));
    }

    /// Takes one blocker from each of these that waits, and notes who is granted by that.
    fn unblock(&mut self, concerns: impl Fn(&Lock) -> bool) {
        for other in self.locks.iter_mut().filter(|other| other.blockers > 0) {
            if concerns(other) {
                other.blockers -= 1;
                if other.blockers == 0 {
                    self.granted.push((other.arrival, other.owner));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_overlap_wait_in_order() {
        let mut locks = RangeLocks::default();
        let mut out = Vec::new();
        assert!(locks.acquire(0, 0, 10, false));
        assert!(locks.acquire(1, 5, 15, false), "shared beside shared");
        assert!(!locks.acquire(2, 8, 9, true), "exclusive waits for both");
        assert!(!locks.acquire(3, 0, 10, false), "later shared does not overtake it");
        assert!(locks.acquire(4, 10, 20, false), "beside, not over");
        assert!(!locks.acquire(5, 8, 12, true));
        locks.release(0, &mut out);
        assert_eq!(out, []);
        locks.release(1, &mut out);
        assert_eq!(out, [2]);
        out.clear();
        locks.release(4, &mut out);
        assert_eq!(out, []);
        locks.release(2, &mut out);
        assert_eq!(out, [3]);
        out.clear();
        locks.release(3, &mut out);
        assert_eq!(out, [5]);
        out.clear();
        locks.release(5, &mut out);
        assert_eq!(out, []);
        assert_eq!((locks.exclusive_count, locks.waiting_count, locks.locks.len()), (0, 0, 0));
    }

    #[test]
    fn shared_does_not_overtake_shared_that_waits() {
        let mut locks = RangeLocks::default();
        let mut out = Vec::new();
        assert!(locks.acquire(0, 0, 10, true));
        assert!(!locks.acquire(1, 5, 20, false));
        assert!(!locks.acquire(2, 15, 30, false), "behind the one that waits");
        assert!(!locks.acquire(3, 25, 40, false), "and behind that one");
        assert!(!locks.acquire(4, 30, 40, true));
        assert!(locks.acquire(5, 50, 60, false));
        locks.release(0, &mut out);
        assert_eq!(out, [1, 2, 3], "all of them together, in order");
        out.clear();
        locks.release(1, &mut out);
        locks.release(2, &mut out);
        assert_eq!(out, []);
        locks.release(3, &mut out);
        assert_eq!(out, [4]);
        locks.release(4, &mut out);
        locks.release(5, &mut out);
        assert_eq!((locks.exclusive_count, locks.waiting_count, locks.locks.len()), (0, 0, 0));
    }

    #[test]
    fn one_release_grants_in_order_of_arrival() {
        let mut locks = RangeLocks::default();
        assert!(locks.acquire(9, 0, 100, true));
        for owner in [4, 7, 1, 3] {
            let at = u64::from(owner) * 10;
            assert!(!locks.acquire(owner, at, at + 10, owner % 2 == 1));
        }
        let mut out = Vec::new();
        locks.release(9, &mut out);
        assert_eq!(out, [4, 7, 1, 3]);
    }
}
