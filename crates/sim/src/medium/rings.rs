//! A medium that several threads of a process have: each has a ring of its own on the one open file, and
//! hears of what that ring was given, in whatever order it ends.
//!
//! What was lost shows when the thread that made the sync has heard of it: the others have nothing to hear it
//! by but what that one tells the [`SyncScope`](thinwire_volume::SyncScope).

use thinwire_volume::{DiskDone, DiskOp, DiskOpKind};

use super::effects::{Flight, Medium, changes};
use super::{MediumHandle, SimDisk};
use crate::world::SECOND;

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
    /// A sync of it that failed has ended, when so many failures of the device were known, and it has not
    /// heard of it.
    pub told: Option<u64>,
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
        let told = own.told.take();
        if !is_shared {
            self.hear_losses();
        } else if let Some(failures) = told {
            self.hear_failures(failures);
        }
    }

    /// Whoever knows of one ring only knows nothing of it: what [`MediumConfig::forgets_rings`](super::MediumConfig)
    /// makes of it.
    pub fn is_forgotten(&self, flight: &Flight) -> bool {
        self.config.forgets_rings && flight.ring != self.owner_ring
    }

    /// These go on although the power has failed.
    pub fn forget_rings(&mut self, forgotten: Vec<Flight>) {
        self.flights = forgotten;
        self.flights.retain(|f| f.result.is_none() && changes(&f.op.kind));
        for flight in &mut self.flights {
            flight.effect_at = self.now + self.rng.between(0, 2 * SECOND);
            flight.done_at = flight.effect_at;
        }
    }

    /// Two syncs of one open file that run together may share one error, and one of them knows nothing of it: where
    /// several threads have the file, they are given to it one at a time.
    pub fn watch_syncs(&mut self, owner: u32, ring: usize, op: &DiskOp) {
        let is_sync = |op: &DiskOp| {
            matches!(op.kind, DiskOpKind::Flush | DiskOpKind::Write { fua: true, .. })
        };
        let runs = |f: &Flight| f.owner == owner && is_sync(&f.op);
        let changes_record =
            matches!(op.kind, DiskOpKind::LoadWriter(_) | DiskOpKind::StoreWriter(_));
        let text = if !self.is_shared() {
            return;
        } else if is_sync(op) && self.flights.iter().any(runs) {
            "the disk was given a sync while it had another of the same open file"
        } else if changes_record && ring != self.owner_ring {
            "another than the owner of a file was to read or store its record"
        } else {
            return;
        };
        self.breach.get_or_insert_with(|| text.into());
    }
}

impl MediumHandle {
    /// The disks for the threads of a process that starts now, one for each, without waiting for the lock: see
    /// [`MediumHandle::open`].
    /// `owner` is the one that is used for all that is for the whole file: syncs, records and sizes.
    pub fn open_rings(&self, count: usize, owner: usize) -> Vec<SimDisk> {
        let m = &mut *self.medium.borrow_mut();
        m.owner += 1;
        (m.owner_ring, m.size_offered) = (owner, m.config.bytes);
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

    /// Nothing that a dead process had asked for is still on its way.
    pub(crate) fn has_no_dead(&self) -> bool {
        let m = self.medium.borrow();
        m.config.forgets_rings || m.flights.is_empty()
    }

    /// The thread that has this of its rings can poll something.
    pub fn is_ring_ready(&self, ring: usize) -> bool {
        self.medium.borrow().rings.get(ring).is_some_and(Ring::is_ready)
    }
}
