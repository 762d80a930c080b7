//! What one failed sync puts in doubt: everything that lies on the same file system or device.
//!
//! A kernel reports a failed sync to its caller once, and lets the next one succeed although what the
//! first was to save is gone; a device whose cache could not be flushed says so to nobody else. So a
//! failure counts for every volume of its *domain* ([`SyncScope::losses`]), and a sync is believed only
//! when all syncs of the domain that might have failed before it have told how they ended
//! ([`SyncScope::is_settled`]): that of another volume may have failed in the kernel a moment ago, and
//! taken along what this one was to save, before its own thread has heard of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Syncs that run on a domain together before its list must grow.
const RUNNING_USUAL: usize = 64;

/// A moment, or the sync that began at it: they are numbered in their order, in the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncMark(u64);

impl SyncMark {
    /// Now: behind all syncs that have begun, before all that will.
    pub fn now() -> Self {
        SyncMark(NEXT.fetch_add(1, Ordering::SeqCst))
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A file system, or a device. Shared by all threads that have volumes on it.
#[derive(Debug)]
pub struct SyncDomain {
    losses: AtomicU64,
    /// Taken by syncs only: never on the way of a read or a plain write.
    running: Mutex<Vec<SyncMark>>,
}

impl SyncDomain {
    /// One on which nothing has failed yet.
    pub fn new() -> Arc<Self> {
        let running = Mutex::new(Vec::with_capacity(RUNNING_USUAL));
        Arc::new(SyncDomain { losses: AtomicU64::new(0), running })
    }
}

/// The domains that one volume lies on: its file system, and the devices below that. Clones are of one volume.
#[derive(Clone, Debug)]
pub struct SyncScope {
    domains: Arc<[Arc<SyncDomain>]>,
    /// Syncs of the volume that were not made.
    refused: Arc<AtomicU64>,
}

impl SyncScope {
    /// Of a volume that lies on all these.
    pub fn new(domains: impl IntoIterator<Item = Arc<SyncDomain>>) -> Self {
        SyncScope { domains: domains.into_iter().collect(), refused: Arc::default() }
    }

    /// Of a volume that shares nothing with another.
    pub fn alone() -> Self {
        SyncScope::new([SyncDomain::new()])
    }

    /// A sync begins: call it before the system call is made.
    pub fn begin(&self) -> SyncMark {
        let mark = SyncMark::now();
        for domain in self.domains.iter() {
            domain.running.lock().expect("nobody panics with it").push(mark);
        }
        mark
    }

    /// A sync has ended: call it before anybody is told of anything. What became of one that nobody
    /// will hear of any more is not known, so it has failed.
    pub fn end(&self, mark: SyncMark, failed: bool) {
        for domain in self.domains.iter() {
            if failed {
                domain.losses.fetch_add(1, Ordering::SeqCst);
            }
            let mut running = domain.running.lock().expect("nobody panics with it");
            running.retain(|&other| other != mark);
        }
    }

    /// A sync has ended without having been made, since the volume is not what it was: that says nothing of what else lies there.
    pub fn end_refused(&self, mark: SyncMark) {
        self.refused.fetch_add(1, Ordering::SeqCst);
        self.end(mark, false);
    }

    /// Whether all syncs have ended that had begun before `mark`.
    pub fn is_settled(&self, mark: SyncMark) -> bool {
        let settled = |domain: &Arc<SyncDomain>| {
            let running = domain.running.lock().expect("nobody panics with it");
            running.iter().all(|&other| other > mark)
        };
        self.domains.iter().all(settled)
    }

    /// Counts the failures: whenever it differs from before, completed writes that no flush has
    /// covered may be lost, whoever wrote them.
    pub fn losses(&self) -> u64 {
        let failed = self.domains.iter().map(|domain| domain.losses.load(Ordering::SeqCst));
        failed.sum::<u64>() + self.refused.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_for_all_that_share_a_domain() {
        let [system, disk, other] = [(); 3].map(|()| SyncDomain::new());
        let image = SyncScope::new([system.clone(), disk.clone()]);
        let partition = SyncScope::new([disk]);
        let elsewhere = SyncScope::new([other]);
        let losses = || [&image, &partition, &elsewhere].map(SyncScope::losses);
        let mark = image.begin();
        image.end(mark, false);
        assert_eq!(losses(), [0, 0, 0]);
        let mark = partition.begin();
        partition.end(mark, true);
        assert_eq!(losses(), [1, 1, 0]);
        let mark = image.begin();
        image.end(mark, true);
        assert_eq!(losses(), [3, 2, 0]);
        // What was not made has failed nobody else.
        let mark = partition.begin();
        partition.end_refused(mark);
        assert_eq!(losses(), [3, 3, 0]);
        assert!(image.is_settled(SyncMark::now()));
        assert_eq!(partition.clone().losses(), 3, "it is the volume's, whoever has that open");
    }

    #[test]
    fn a_sync_is_believed_when_all_that_ran_beside_it_have_ended() {
        let (disk, other) = (SyncDomain::new(), SyncDomain::new());
        let [a, b, elsewhere] = [[disk.clone()], [disk], [other]].map(SyncScope::new);
        let (first, second, far) = (a.begin(), b.begin(), elsewhere.begin());
        a.end(first, false);
        let told = SyncMark::now();
        assert!(!a.is_settled(told), "the other may have failed before it");
        // One that begins later took nothing away from it.
        let later = b.begin();
        b.end(second, true);
        assert!(a.is_settled(told) && !a.is_settled(SyncMark::now()));
        b.end(later, false);
        elsewhere.end(far, false);
        assert_eq!(a.losses(), 1);
    }
}
