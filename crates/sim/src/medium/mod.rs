//! A disk that forgets what was not flushed, and the process-side handle on it.
//!
//! The [`Medium`] outlives the target that uses it. It has two images: what is durable, and what
//! reads see. A write takes effect at a moment of its own between submission and completion, stays
//! volatile until a flush submitted later (or its own FUA) makes it durable, and may be kept, lost
//! or torn at sectors when the power fails. When only the process dies (kill -9), what it had
//! submitted still lands for a while, and the lock is released only then (rule 2).
//!
//! Here is what it is like, and what the world does to it. What operations do to the images is in
//! `effects.rs`, what becomes of its writer record in `records.rs`, how it grows in `growth.rs`, what
//! operations must never do in `watch.rs`, the process's side in `disk.rs`, and what is different where several
//! threads of a process have it in `rings.rs`.

mod disk;
mod effects;
mod growth;
mod records;
mod rings;
#[cfg(test)]
mod tests;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_link::rng::Rng;
use thinwire_volume::Identity;

pub use self::disk::SimDisk;
pub use self::effects::Device;
pub(crate) use self::effects::EIO;
use self::effects::{Flight, Medium, changes};
use self::growth::Sizes;
pub use self::records::RecordFate;
use self::records::Records;
use self::rings::Ring;
use self::watch::Fence;
use crate::stamp::SECTOR_BYTES;

/// What a medium is like. Rates are probabilities of each operation.
#[derive(Clone, Copy, Debug)]
pub struct MediumConfig {
    /// Size, a multiple of 4096.
    pub bytes: u64,
    /// Least and most time of an operation, in ns.
    pub latency_ns: (u64, u64),
    /// It does so many operations at a time; the others wait for one of them. 0: all that there are.
    pub wide: usize,
    /// Operations that take 100 times as long.
    pub slow: f64,
    /// How much longer it takes to tell of one that has taken effect, in ns, at most.
    pub tells_late_ns: u64,
    /// Flushes that fail, losing what they were to save.
    pub flush_failure: f64,
    /// Writes that fail with EIO, a part of them done.
    pub write_failure: f64,
    /// Writes that find no space, nothing of them done.
    pub no_space: f64,
    /// After a power failure so many writes fail at most, nothing of them done: those by which what was
    /// lost is sent again.
    pub sick_writes: u64,
    /// Reads that fail with EIO.
    pub read_failure: f64,
    /// Writer records whose sync fails. They stay, and may be durable.
    pub record_failure: f64,
    /// Writer records over whose storing the process dies, before or after any step of it.
    pub record_crash: f64,
    /// Of the failed syncs, those that lose the cache of the whole device.
    pub device_failure: f64,
    /// Writes that are lost in the background; the next sync says so.
    pub writeback_failure: f64,
    /// Reads go to the device itself: what it has lost they see at once. Else it shows when somebody
    /// is told, as through a page cache.
    pub read_directly: bool,
    /// How much longer a sync that fails may take to say so, in ns.
    pub failure_takes_ns: u64,
    /// A record's sync goes through the content's description, and takes its errors away: what rule
    /// 4 forbids.
    pub record_shares_description: bool,
    /// That it was cut is not remembered: what "Identity and incarnation" in `docs/design.md` forbids.
    pub forgets_cuts: bool,
    /// A process that was told of a failed flush is told so by all later ones: a debt that nobody takes away.
    pub goes_on_failing: bool,
    /// Where several threads of a process have it, the lock and a power failure know of one of them only.
    pub forgets_rings: bool,
    /// What is read of it stays in its target's memory: a writer may patch a block as it was read before the
    /// grant, by anybody.
    pub is_cached: bool,
    /// Holes can be punched.
    pub punch_hole: bool,
    /// Ranges can be zeroed.
    pub zero_range: bool,
    /// How much later than planned an operation of a killed process may land, in ns.
    pub lands_late_ns: u64,
}

impl Default for MediumConfig {
    fn default() -> Self {
        MediumConfig {
            bytes: 1 << 20,
            latency_ns: (20_000, 200_000),
            wide: 0,
            slow: 0.0,
            tells_late_ns: 0,
            flush_failure: 0.0,
            write_failure: 0.0,
            no_space: 0.0,
            sick_writes: 0,
            read_failure: 0.0,
            record_failure: 0.0,
            record_crash: 0.0,
            device_failure: 0.0,
            writeback_failure: 0.0,
            read_directly: false,
            failure_takes_ns: 0,
            record_shares_description: false,
            forgets_cuts: false,
            goes_on_failing: false,
            forgets_rings: false,
            is_cached: false,
            punch_hole: true,
            zero_range: true,
            lands_late_ns: 0,
        }
    }
}

impl MediumConfig {
    /// The same, and nothing fails.
    pub fn without_failures(self) -> Self {
        MediumConfig {
            flush_failure: 0.0,
            write_failure: 0.0,
            no_space: 0.0,
            sick_writes: 0,
            read_failure: 0.0,
            record_failure: 0.0,
            record_crash: 0.0,
            writeback_failure: 0.0,
            ..self
        }
    }
}

/// What happened on a medium so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediumStats {
    /// Operations that took effect.
    pub operations: u64,
    /// Flushes that failed.
    pub flush_failures: u64,
    /// Writes that failed, for lack of space or otherwise.
    pub write_failures: u64,
    /// Unflushed sectors that a power failure kept.
    pub sectors_kept: u64,
    /// Unflushed sectors that a power failure or a failed flush lost.
    pub sectors_lost: u64,
    /// Writes of which a power failure kept some sectors and lost others.
    pub torn: u64,
    /// Operations of a dead process that landed after its death.
    pub landed_late: u64,
    /// Writer records that could not be stored.
    pub record_failures: u64,
    /// Records over whose storing the process died.
    pub record_crashes: u64,
    /// Openings that could not have the content remember its size.
    pub opening_failures: u64,
    /// Failed syncs that lost the cache of the device.
    pub device_failures: u64,
    /// Writes that were lost in the background.
    pub writeback_failures: u64,
}

/// A handle of a medium. Clones are handles of the same one.
#[derive(Clone)]
pub struct MediumHandle {
    medium: Rc<RefCell<Medium>>,
    identity: [u8; 16],
}

impl std::fmt::Debug for MediumHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.config().fmt(f)
    }
}

impl MediumHandle {
    /// A medium of zeroes with this identity, on a device of its own.
    pub fn new(seed: u64, identity: [u8; 16], config: MediumConfig) -> Self {
        MediumHandle::on(Device::new(), seed, identity, config)
    }

    /// One that shares a device with others.
    pub fn on(device: Rc<Device>, seed: u64, identity: [u8; 16], config: MediumConfig) -> Self {
        let bytes = config.bytes as usize;
        assert!(bytes.is_multiple_of(4096));
        let medium = Medium {
            config,
            rng: Rng::new(seed),
            now: 0,
            durable: vec![0; bytes],
            durable_number: vec![0; bytes / SECTOR_BYTES],
            current: vec![0; bytes],
            unflushed: Vec::new(),
            next_number: 1,
            flights: Vec::new(),
            busy_until: Vec::new(),
            slow: (0, 0),
            rings: Vec::new(),
            owner_ring: 0,
            size_offered: config.bytes,
            owner: 0,
            device_seen: (device.failures(), device.failures()),
            device,
            thread: 0,
            records: Records::default(),
            writeback_errors: 0,
            writeback_seen: true,
            content_seen: 0,
            sizes: Sizes::new(config.bytes),
            fence: Fence::default(),
            breach: None,
            failures_off: false,
            is_failing: false,
            sick_writes: 0,
            upheavals: 0,
            losses: 0,
            failed_syncs: (0, 0, 0),
            stats: MediumStats::default(),
        };
        MediumHandle { medium: Rc::new(RefCell::new(medium)), identity }
    }

    /// The disk for a process that starts now.
    ///
    /// # Panics
    /// If an operation of an earlier process is still on its way: see [`MediumHandle::locked_until`].
    pub fn open(&self) -> SimDisk {
        assert!(self.has_no_dead(), "a starting target waits for the lock");
        self.open_without_lock()
    }

    /// The disk for a command that waits for each I/O, while time stands still.
    pub fn open_at_once(&self) -> SimDisk {
        let mut disk = self.open();
        disk.at_once = true;
        disk
    }

    /// As [`MediumHandle::open`], without waiting for the lock: what rule 2 forbids.
    pub fn open_without_lock(&self) -> SimDisk {
        let mut disks = self.open_rings(1, 0);
        disks.pop().expect("as many as were wanted")
    }

    /// The process that uses it has it on this of its threads.
    pub fn set_thread(&self, thread: usize) {
        self.medium.borrow_mut().thread = thread;
    }

    /// A new one of zeroes in its place, on the same device and like it.
    pub fn replaced(&self, seed: u64, identity: [u8; 16], bytes: u64) -> Self {
        let m = self.medium.borrow();
        let config = MediumConfig { bytes, ..m.config };
        let new = MediumHandle::on(m.device.clone(), seed, identity, config);
        new.medium.borrow_mut().failures_off = m.failures_off;
        new
    }

    /// It is cut to so many bytes, while no process has it.
    pub fn shrink(&self, bytes: u64) {
        self.medium.borrow_mut().shrink(bytes as usize);
    }

    /// Somebody who holds the lock writes whole sectors, and syncs them.
    pub fn write_durably(&self, sector: usize, bytes: Vec<u8>) {
        self.medium.borrow_mut().write_durably(sector, bytes);
    }

    /// What tells it from others.
    pub fn identity(&self) -> Identity {
        Identity { identity: self.identity, incarnation: self.incarnation() }
    }

    /// A handle of the same medium.
    pub fn is_same(&self, other: &MediumHandle) -> bool {
        Rc::ptr_eq(&self.medium, &other.medium)
    }

    /// Time goes on; what is due takes effect, in order.
    pub fn advance(&self, now: u64) {
        self.medium.borrow_mut().advance(now);
    }

    /// When something happens here next.
    pub fn next_event(&self) -> Option<u64> {
        let m = self.medium.borrow();
        m.flights.iter().map(Flight::next_at).chain(m.rings.iter().filter_map(|r| r.wakes_at)).min()
    }

    /// The process can poll something.
    pub fn is_ready(&self) -> bool {
        self.medium.borrow().rings.iter().any(Ring::is_ready)
    }

    /// The process has been killed: what it had submitted still lands, perhaps late.
    pub fn kill(&self) {
        let m = &mut *self.medium.borrow_mut();
        m.owner += 1;
        let late = m.config.lands_late_ns;
        m.flights.retain(|f| f.result.is_none() && changes(&f.op.kind));
        for flight in &mut m.flights {
            flight.effect_at += m.rng.between(0, late);
            flight.done_at = flight.effect_at;
        }
        m.upheavals += 1;
        m.forget_process();
    }

    /// The power has failed: unflushed effects are kept, lost or torn; nothing lands any more.
    pub fn power_failure(&self) {
        self.medium.borrow_mut().power_failure();
    }

    /// The process has died in the middle of a turn: what it would have submitted in the rest of it
    /// it has not.
    pub fn forget_turn(&self) {
        let m = &mut *self.medium.borrow_mut();
        let now = m.now;
        m.flights.retain(|f| f.submitted_at < now || f.owner != m.owner);
    }

    /// When the last operation of dead processes has landed.
    pub fn locked_until(&self) -> u64 {
        let m = self.medium.borrow();
        let of_dead = m.flights.iter().filter(|f| f.owner != m.owner && !m.is_forgotten(f));
        of_dead.map(|f| f.effect_at + 1).max().unwrap_or(m.now)
    }

    /// From now on writes stamped by another run than `run` are a breach of the fence, but for what
    /// a writer who `patches` parts of blocks writes once more as it was read. Of 0 nothing is.
    pub fn fence(&self, run: u32, patches: bool) {
        self.fence_all_but(if run == 0 { &[] } else { std::slice::from_ref(&run) }, patches);
    }

    /// As [`MediumHandle::fence`], for one whose former runs may write on.
    pub fn fence_all_but(&self, runs: &[u32], patches: bool) {
        let m = &mut *self.medium.borrow_mut();
        m.fence.grant(runs, patches, m.config.is_cached);
        if m.config.is_cached {
            m.fence.was_read(0, &m.current);
        }
    }

    /// How the fence was breached, if it was.
    pub fn breach(&self) -> Option<String> {
        self.medium.borrow().breach.clone()
    }

    /// Ends all failures of operations.
    pub fn end_failures(&self) {
        self.medium.borrow_mut().failures_off = true;
    }

    /// Makes the next flushes fail, always or never: for scripted tests.
    pub fn set_flush_failure(&self, rate: f64) {
        self.medium.borrow_mut().config.flush_failure = rate;
    }

    /// Changes what it is like: for scripted tests.
    pub fn configure(&self, change: impl FnOnce(&mut MediumConfig)) {
        change(&mut self.medium.borrow_mut().config);
    }

    /// Makes writes fail for lack of space, always or never: for scripted tests.
    pub fn set_no_space(&self, rate: f64) {
        self.medium.borrow_mut().config.no_space = rate;
    }

    /// Loses all of it that is unflushed, as a write-back that fails in the background; the next
    /// sync through each description says so.
    pub fn fail_writeback(&self) {
        self.medium.borrow_mut().fail_writeback();
    }

    /// Changes how long operations take: for scripted tests.
    pub fn set_latency(&self, least_ns: u64, most_ns: u64) {
        self.medium.borrow_mut().config.latency_ns = (least_ns, most_ns);
    }

    /// Since when, and until when, it had operations last that take a second or more: whoever waits for one may have to as
    /// long.
    pub fn slow(&self) -> (u64, u64) {
        self.medium.borrow().slow
    }

    /// Counts the moments at which unflushed effects may have been lost.
    pub fn upheavals(&self) -> u64 {
        self.medium.borrow().upheavals
    }

    /// Of those, the ones at which reads saw it before anybody was told; and whether this is such a
    /// moment.
    pub fn losses(&self) -> (u64, bool) {
        let m = self.medium.borrow();
        (m.losses, m.is_in_doubt())
    }

    /// The durable image.
    pub fn durable(&self) -> Vec<u8> {
        self.medium.borrow().durable.clone()
    }

    /// The image that reads see.
    pub fn current(&self) -> Vec<u8> {
        self.medium.borrow().current.clone()
    }

    /// Its latencies, and what may go wrong in it.
    pub fn config(&self) -> MediumConfig {
        self.medium.borrow().config
    }

    /// Counters.
    pub fn stats(&self) -> MediumStats {
        self.medium.borrow().stats
    }

    /// Operations on their way.
    pub fn in_flight(&self) -> usize {
        self.medium.borrow().flights.len()
    }
}
