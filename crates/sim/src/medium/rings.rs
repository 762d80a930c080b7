//! A medium that several threads of a process have: each has a ring of its own on the one open file, and
//! hears of what that ring was given, in whatever order it ends.
//!
//! What was lost shows when the thread that made the sync has heard of it: the others have nothing to hear it
//! by but what that one tells the [`SyncScope`](thinwire_volume::SyncScope).

use thinwire_volume::{DiskDone, DiskOp, DiskOpKind};

use super::effects::{Flight, Medium};
use super::{MediumHandle, SimDisk};

/// No thread of a process: what a device has lost is known to it only when another has heard of it.
const NO_THREAD: usize = usize::MAX;

/// What one thread waits for.
#[derive(Default)]
pub(super) struct Ring {
    /// What has ended, until it is polled.
    pub ready: Vec<DiskDone>,
    /// It wants to be woken then; it is.
    pub wakes_at: Option<u64>,
    woken: bool,
    /// A sync of it that failed has ended, and it has not heard of it.
    pub is_told: bool,
}

impl Ring {
    /// It is woken if it is time.
    pub fn wake(&mut self, now: u64) {
        self.woken |= self.wakes_at.take_if(|at| *at <= now).is_some();
    }

    /// It can be polled for something.
    pub fn is_ready(&self) -> bool {
        self.woken || !self.ready.is_empty()
    }
}

impl Medium {
    /// Several threads have it.
    pub fn is_shared(&self) -> bool {
        self.rings.len() > 1
    }

    /// A thread polls its ring.
    pub fn take_ready(&mut self, ring: usize, done: &mut Vec<DiskDone>) {
        let is_shared = self.is_shared();
        let own = &mut self.rings[ring];
        done.append(&mut own.ready);
        own.woken = false;
        let is_told = std::mem::take(&mut own.is_told);
        if !is_shared {
            self.hear_losses();
        } else if is_told {
            self.hear_losses();
            self.device_seen.1 = self.device.failures();
            self.show_losses();
        }
    }

    /// Two syncs of one open file that run together may share one error, and one of them knows nothing of it: where
    /// several threads have the file, they are given to it one at a time.
    pub fn watch_syncs(&mut self, owner: u32, op: &DiskOp) {
        let is_sync = |op: &DiskOp| {
            matches!(op.kind, DiskOpKind::Flush | DiskOpKind::Write { fua: true, .. })
        };
        let runs = |f: &Flight| f.owner == owner && is_sync(&f.op);
        if self.is_shared() && is_sync(op) && self.flights.iter().any(runs) {
            let text = "the disk was given a sync while it had another of the same open file";
            self.breach.get_or_insert_with(|| text.into());
        }
    }
}

impl MediumHandle {
    /// The disks for the threads of a process that starts now, one for each, without waiting for the lock: see
    /// [`MediumHandle::open`].
    pub fn open_rings(&self, count: usize) -> Vec<SimDisk> {
        let m = &mut *self.medium.borrow_mut();
        m.owner += 1;
        m.rings = (0..count).map(|_| Ring::default()).collect();
        if m.is_shared() {
            m.thread = NO_THREAD;
        }
        // Whoever opens it syncs it before it is looked at.
        m.sizes.settle(u64::MAX);
        m.open_kept();
        let owner = m.owner;
        let disk = |ring| {
            let handle = self.clone();
            SimDisk { handle, owner, ring, at_once: false, syncs: Vec::new() }
        };
        (0..count).map(disk).collect()
    }

    /// The thread that has this of its rings can poll something.
    pub fn is_ring_ready(&self, ring: usize) -> bool {
        self.medium.borrow().rings.get(ring).is_some_and(Ring::is_ready)
    }
}
