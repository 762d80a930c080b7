//! Range locks with first-come-first-served fairness.

/// A lock that is held or waited for.
struct Lock {
    start: u64,
    end: u64,
    /// A shared lock waits for exclusive ones that overlap this: its own range, and those of the waiting
    /// shared locks that it must not overtake. Whatever they wait for, it waits for.
    behind: (u64, u64),
    exclusive: bool,
    /// Order of arrival.
    arrival: u64,
    /// Locks that it waits for ([`Lock::waits_for`]); granted at zero.
    blockers: u32,
    owner: u32,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether it is granted only after `other` is released.
    fn waits_for(&self, other: &Lock) -> bool {
        other.arrival < self.arrival
            && if self.exclusive {
                self.overlaps(other)
            } else {
                other.exclusive && self.behind.0 < other.end && other.start < self.behind.1
            }
    }

    /// It must not overtake this one, which waits: so it waits for the same.
    fn stay_behind(&mut self, other: &Lock) {
        if !self.exclusive && !other.exclusive && other.blockers > 0 && self.overlaps(other) {
            self.behind.0 = self.behind.0.min(other.behind.0);
            self.behind.1 = self.behind.1.max(other.behind.1);
        }
    }
}

/// Locks on ranges of bytes, granted in order of arrival where they overlap. Shared locks are held
/// together; an exclusive one waits until everything that overlaps it and arrived earlier is
/// released, and everything that arrives later and overlaps waits for it. While nobody holds or wants
/// an exclusive lock, taking and releasing one costs constant time; else it is linear in the number of
/// locks. Who holds one releases it; nothing is released by being dropped.
#[derive(Default)]
pub struct RangeLocks {
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
    pub(crate) broken: bool,
}

impl RangeLocks {
    /// Asks for `[start, end)` on behalf of `owner`, a small number that holds no other lock.
    /// Returns true if it is granted at once; else a later [`RangeLocks::release`] grants it.
    pub fn acquire(&mut self, owner: u32, start: u64, end: u64, exclusive: bool) -> bool {
        self.arrivals += 1;
        let (behind, arrival) = ((start, end), self.arrivals);
        let mut lock = Lock { start, end, behind, exclusive, arrival, blockers: 0, owner };
        if (exclusive || self.exclusive_count > 0) && !self.broken {
            self.locks.iter().for_each(|other| lock.stay_behind(other));
            let earlier = self.locks.iter().filter(|other| lock.waits_for(other));
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

    /// Whether a shared lock on `[start, end)` would be granted at once: what need not go there now goes elsewhere.
    pub fn is_free(&self, start: u64, end: u64) -> bool {
        if self.exclusive_count == 0 || self.broken {
            return true;
        }
        let (behind, arrival) = ((start, end), self.arrivals + 1);
        let (exclusive, blockers, owner) = (false, 0, u32::MAX);
        let mut lock = Lock { start, end, behind, exclusive, arrival, blockers, owner };
        self.locks.iter().for_each(|other| lock.stay_behind(other));
        !self.locks.iter().any(|other| lock.waits_for(other))
    }

    /// Gives up `owner`'s lock and appends to `out` the owners whose turn it is now, in their
    /// order of arrival.
    pub fn release(&mut self, owner: u32, out: &mut Vec<u32>) {
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
        for other in self.locks.iter_mut().filter(|other| other.blockers > 0) {
            if other.waits_for(&lock) {
                other.blockers -= 1;
                if other.blockers == 0 {
                    self.granted.push((other.arrival, other.owner));
                }
            }
        }
        self.waiting_count -= self.granted.len();
        self.granted.sort_unstable();
        out.extend(self.granted.drain(..).map(|(_, owner)| owner));
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

    /// Whatever comes in whatever order: nothing is granted over what it must not be held beside or
    /// overtake, and all are granted in the end.
    #[test]
    fn random_locks_are_fair_and_all_granted() {
        for seed in 1..2000u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut below = |most: u64| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 33) % most
            };
            let mut locks = RangeLocks::default();
            // In order of arrival: owner, range, exclusive, granted.
            let mut all: Vec<(u32, u64, u64, bool, bool)> = Vec::new();
            for step in 0..200 {
                let owner = (0..16).find(|o| all.iter().all(|l| l.0 != *o));
                let mut granted = Vec::new();
                if let Some(owner) = owner.filter(|_| step < 150 && below(2) == 0) {
                    let (start, exclusive) = (below(20), below(3) == 0);
                    let end = start + 1 + below(8);
                    let is_free = locks.is_free(start, end);
                    let at_once = locks.acquire(owner, start, end, exclusive);
                    assert!(exclusive || at_once == is_free, "seed {seed}, step {step}");
                    all.push((owner, start, end, exclusive, false));
                    granted.extend(at_once.then_some(owner));
                } else if let Some(at) = all.iter().position(|l| l.4) {
                    locks.release(all.remove(at).0, &mut granted);
                }
                for owner in granted {
                    let at = all.iter().position(|l| l.0 == owner).expect("it is there");
                    let (_, start, end, exclusive, before) = all[at];
                    all[at].4 = true;
                    assert!(!before, "granted twice");
                    let over = |l: &&(u32, u64, u64, bool, bool)| l.1 < end && start < l.2;
                    for earlier in all[..at].iter().filter(over) {
                        assert!(earlier.4 && !earlier.3 && !exclusive, "seed {seed}, step {step}");
                    }
                }
            }
            while let Some(at) = all.iter().position(|l| l.4) {
                let mut granted = Vec::new();
                locks.release(all.remove(at).0, &mut granted);
                all.iter_mut().filter(|l| granted.contains(&l.0)).for_each(|l| l.4 = true);
            }
            assert!(all.is_empty(), "seed {seed}: {all:?} wait for ever");
            assert_eq!((locks.exclusive_count, locks.waiting_count), (0, 0));
        }
    }
}
