//! What operations do to the two images, and when. What they do to the writer record is in `records.rs`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use thinwire_link::rng::Rng;
use thinwire_volume::{DiskDone, DiskOp, DiskOpKind, Extent, SyncDomain};

use super::growth::Sizes;
use super::records::{Records, is_record};
use super::rings::Ring;
use super::watch::Fence;
use super::{MediumConfig, MediumStats};
use crate::stamp::SECTOR_BYTES;

/// An operation that takes so long is slow.
pub(super) const SLOW_NS: u64 = 1_000_000_000;
pub(crate) const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

/// How a sync fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncFailure {
    /// An earlier write-back failed in the background: it is told of that, and loses nothing more.
    Writeback,
    /// It loses what it was to save.
    Own,
    /// The device loses its whole cache, of which all suffer that lie on it.
    Device,
}

/// An effect that is not durable yet.
pub(super) struct Unflushed {
    pub number: u64,
    pub sector: usize,
    /// Whole sectors.
    pub bytes: Vec<u8>,
}

/// What one device is, whatever lies on it: a cache that can be lost as a whole.
#[derive(Debug)]
pub struct Device {
    /// What the target's stores know of it.
    pub(super) domain: Arc<SyncDomain>,
    /// Flushes of its cache that failed.
    failures: Cell<u64>,
    /// Those of them that the process that uses it has heard of, and those that one of its threads can
    /// hear of at once: the others wait until it has.
    heard: Cell<u64>,
    told: RefCell<BTreeMap<usize, u64>>,
}

impl Device {
    /// One that works.
    pub fn new() -> Rc<Self> {
        let domain = SyncDomain::new();
        Rc::new(Device {
            domain,
            failures: Cell::new(0),
            heard: Cell::new(0),
            told: RefCell::default(),
        })
    }

    /// Those of which a thread knows, or will before it knows of anything later.
    fn known_to(&self, thread: usize) -> u64 {
        self.told.borrow().get(&thread).map_or(0, |&told| told).max(self.heard.get())
    }

    /// Flushes of its cache that failed so far.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }
}

/// An operation on its way.
pub(super) struct Flight {
    pub owner: u32,
    /// Which of its process's rings has it.
    pub ring: usize,
    pub op: DiskOp,
    pub submitted_at: u64,
    pub effect_at: u64,
    pub done_at: u64,
    /// Effects below this were complete when it was submitted (flush).
    pub mark: u64,
    pub result: Option<Result<(), i32>>,
    /// It is a sync that has lost what it was to save, so that reads may see it already.
    pub has_lost: bool,
    /// It takes no time.
    pub at_once: bool,
}

impl Flight {
    pub fn next_at(&self) -> u64 {
        if self.result.is_some() { self.done_at } else { self.effect_at }
    }

    fn is_failed_sync(&self) -> bool {
        let is_sync =
            matches!(self.op.kind, DiskOpKind::Flush | DiskOpKind::Write { fua: true, .. });
        // Of a record's failures only those of the device are felt by the content.
        let is_sync = is_sync || (is_record(&self.op.kind) && self.has_lost);
        is_sync && matches!(self.result, Some(Err(_)))
    }
}

/// It changes something, and so lands although its process is dead.
pub(super) fn changes(kind: &DiskOpKind) -> bool {
    !matches!(kind, DiskOpKind::Read(_) | DiskOpKind::BlockStatus(_) | DiskOpKind::LoadWriter(_))
}

pub(super) struct Medium {
    pub config: MediumConfig,
    pub rng: Rng,
    pub now: u64,
    pub durable: Vec<u8>,
    /// For each sector: the number of the effect that is durable there.
    pub durable_number: Vec<u64>,
    pub current: Vec<u8>,
    pub unflushed: Vec<Unflushed>,
    pub next_number: u64,
    pub flights: Vec<Flight>,
    /// Until when it is at work on what it was given, for each operation that it does at a time.
    pub busy_until: Vec<u64>,
    /// Since when, and until when, it had operations that are slow, each within a second of the one before.
    pub slow: (u64, u64),
    /// What each thread of its process that has it waits for.
    pub rings: Vec<Ring>,
    /// Which of them is used for all that is for the whole file, and the size that it made durable last.
    pub owner_ring: usize,
    pub size_offered: u64,
    pub owner: u32,
    pub device: Rc<Device>,
    /// Which thread of its process has it.
    pub thread: usize,
    /// Failures of the device that have taken their toll here, and that show.
    pub device_seen: (u64, u64),
    pub records: Records,
    /// Write-backs that failed in the background; whether any description has told of the last; and
    /// up to which the description that the content is served through has.
    pub writeback_errors: u64,
    pub writeback_seen: bool,
    pub content_seen: u64,
    pub sizes: Sizes,
    pub fence: Fence,
    pub breach: Option<String>,
    pub failures_off: bool,
    /// A flush of this process has failed, and it goes on failing.
    pub is_failing: bool,
    /// So many writes fail now.
    pub sick_writes: u64,
    /// Counts moments at which unflushed effects may have been lost.
    pub upheavals: u64,
    /// Of those, the ones at which reads saw it before anybody was told.
    pub losses: u64,
    /// Syncs that have lost something, that have ended, and of whose end the process has heard.
    pub failed_syncs: (u64, u64, u64),
    pub stats: MediumStats,
}

impl Medium {
    /// When it has time for another operation, which then takes so long: it is over at the time returned.
    pub fn occupy(&mut self, takes_ns: u64) -> u64 {
        if self.config.wide == 0 {
            return self.now + takes_ns;
        }
        self.busy_until.resize(self.config.wide, 0);
        let first = self.busy_until.iter_mut().min().expect("it does one at a time at least");
        *first = self.now.max(*first) + takes_ns;
        *first
    }

    /// Something will have taken from one moment to another.
    pub fn note_slow(&mut self, from: u64, to: u64) {
        if to - from >= SLOW_NS {
            let (since, until) = self.slow;
            let since = if from <= until + SLOW_NS { since } else { from };
            self.slow = (since, until.max(to));
        }
    }

    pub fn advance(&mut self, now: u64) {
        // Nobody may ask it for what is in a cache above: it is lost all the same once somebody was told.
        if self.config.is_cached && self.device.heard.get() > self.device_seen.1 {
            self.follow_device();
        }
        assert!(now >= self.now);
        self.now = now;
        self.rings.iter_mut().for_each(|ring| ring.wake(now));
        loop {
            let due = self.flights.iter().enumerate().filter(|(_, f)| f.next_at() <= now);
            let Some((at, _)) = due.min_by_key(|(_, f)| f.next_at()) else { break };
            if self.flights[at].result.is_none() {
                self.take_effect(at);
                if self.flights[at].done_at > self.flights[at].effect_at {
                    continue;
                }
            }
            let f = self.flights.swap_remove(at);
            if f.is_failed_sync() {
                self.failed_syncs.1 += u64::from(f.has_lost);
                self.tell_losses(f.owner != self.owner, f.ring);
            }
            if f.owner == self.owner {
                let result = f.result.expect("it took effect");
                let done = DiskDone { token: f.op.token, result, kind: f.op.kind };
                self.rings[f.ring].ready.push(done);
            } else {
                self.stats.landed_late += 1;
            }
        }
    }

    pub fn chance(&mut self, rate: f64) -> bool {
        !self.failures_off && self.rng.chance(rate)
    }

    fn take_effect(&mut self, at: usize) {
        self.stats.operations += 1;
        self.follow_device();
        // Taken out, so that the rest of the medium can be changed meanwhile.
        let placeholder = DiskOp { token: 0, offset: 0, len: 0, kind: DiskOpKind::Flush };
        let mut op = std::mem::replace(&mut self.flights[at].op, placeholder);
        let mark = self.flights[at].mark;
        let (from, len) = (op.offset as usize, op.len as usize);
        let config = self.config;
        let lost = self.failed_syncs.0;
        let result = match &mut op.kind {
            DiskOpKind::Read(buf) => {
                if self.chance(config.read_failure) {
                    Err(EIO)
                } else {
                    buf.copy_from_slice(&self.current[from..from + len]);
                    self.fence.was_read(from, buf);
                    Ok(())
                }
            }
            DiskOpKind::Write { data, fua } => {
                let bytes = data.to_vec();
                self.write(from, bytes, *fua)
            }
            DiskOpKind::Flush => self.flush(mark),
            DiskOpKind::PunchHole if !config.punch_hole => Err(EOPNOTSUPP),
            DiskOpKind::ZeroRange if !config.zero_range => Err(EOPNOTSUPP),
            DiskOpKind::PunchHole | DiskOpKind::ZeroRange => self.write(from, vec![0; len], false),
            DiskOpKind::BlockStatus(out) => {
                self.block_status(from, from + len, out);
                Ok(())
            }
            DiskOpKind::LoadWriter(record) => self.load_record().map(|found| **record = found),
            DiskOpKind::StoreWriter(record) if self.flights[at].owner != self.owner => {
                self.land_record(**record);
                Ok(())
            }
            DiskOpKind::StoreWriter(record) => self.store_record(**record),
            DiskOpKind::KeepSize if self.flights[at].owner != self.owner => {
                self.land_size(mark, op.len);
                Ok(())
            }
            DiskOpKind::KeepSize if self.flights[at].ring != self.owner_ring => Ok(()),
            DiskOpKind::KeepSize => self.keep_size(mark, op.len),
        };
        self.flights[at].op = op;
        self.flights[at].result = Some(result);
        self.flights[at].has_lost = self.failed_syncs.0 > lost;
        // A dead process waits for nothing.
        let flight = &self.flights[at];
        if flight.is_failed_sync() && flight.owner == self.owner && !flight.at_once {
            self.flights[at].done_at += self.rng.between(0, config.failure_takes_ns);
            self.note_slow(self.flights[at].submitted_at, self.flights[at].done_at);
        }
    }

    fn write(&mut self, from: usize, mut bytes: Vec<u8>, fua: bool) -> Result<(), i32> {
        let config = self.config;
        self.watch_fence(&bytes);
        if self.chance(config.no_space) {
            self.stats.write_failures += 1;
            return Err(ENOSPC);
        }
        if self.sick_writes > 0 && !self.failures_off {
            self.sick_writes -= 1;
            self.stats.write_failures += 1;
            return Err(EIO);
        }
        let mut result = Ok(());
        if self.chance(config.write_failure) {
            self.stats.write_failures += 1;
            let sectors = (bytes.len() / SECTOR_BYTES) as u64;
            bytes.truncate(self.rng.below(sectors + 1) as usize * SECTOR_BYTES);
            result = Err(EIO);
        }
        self.current[from..from + bytes.len()].copy_from_slice(&bytes);
        let number = self.next_number;
        self.next_number += 1;
        let sector = from / SECTOR_BYTES;
        let effect = Unflushed { number, sector, bytes };
        if fua && result.is_ok() {
            let failure = self.sync_failure();
            if failure.is_some() {
                self.unflushed.push(effect);
                return self.fail_sync(failure, u64::MAX);
            }
            self.settle(&effect, |_| true);
            self.sizes.settle(u64::MAX);
        } else if self.chance(config.writeback_failure) {
            // Reads go on seeing it, and it will never be durable.
            self.stats.sectors_lost += (effect.bytes.len() / SECTOR_BYTES) as u64;
            self.stats.writeback_failures += 1;
            self.writeback_errors += 1;
            self.writeback_seen = false;
        } else {
            self.unflushed.push(effect);
        }
        result
    }

    /// How a sync of the content fails now, if it does.
    fn sync_failure(&mut self) -> Option<SyncFailure> {
        if self.content_seen < self.writeback_errors {
            return Some(SyncFailure::Writeback);
        }
        if !self.chance(self.config.flush_failure) {
            return None;
        }
        let whole = self.rng.chance(self.config.device_failure);
        Some(if whole { SyncFailure::Device } else { SyncFailure::Own })
    }

    /// A sync that was to save the effects below `mark` fails: what it was to save is gone, and the
    /// next one will succeed. What reads see changes when it says so, or at once if they are direct.
    pub fn fail_sync(&mut self, failure: Option<SyncFailure>, mark: u64) -> Result<(), i32> {
        match failure {
            None => return Ok(()),
            Some(SyncFailure::Writeback) => {
                (self.content_seen, self.writeback_seen) = (self.writeback_errors, true);
            }
            Some(SyncFailure::Own) => {
                self.failed_syncs.0 += 1;
                self.lose(mark);
            }
            Some(SyncFailure::Device) => {
                self.failed_syncs.0 += 1;
                self.device.failures.set(self.device.failures.get() + 1);
                self.stats.device_failures += 1;
                self.follow_device();
            }
        }
        self.stats.flush_failures += 1;
        Err(EIO)
    }

    /// All that is unflushed is lost in the background.
    pub fn fail_writeback(&mut self) {
        self.unflushed.clear();
        self.writeback_errors += 1;
        self.writeback_seen = false;
        self.stats.writeback_failures += 1;
    }

    /// Unflushed effects below `mark` will not become durable any more, most of them.
    fn lose(&mut self, mark: u64) {
        let all = std::mem::take(&mut self.unflushed);
        let (covered, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|e| e.number < mark);
        for effect in &covered {
            if self.rng.chance(0.3) {
                self.settle(effect, |_| true);
            } else {
                self.stats.sectors_lost += (effect.bytes.len() / SECTOR_BYTES) as u64;
            }
        }
        self.unflushed = rest;
        self.upheavals += 1;
        if self.config.read_directly {
            self.losses += 1;
            self.show_losses();
        }
    }

    /// What reads see may be older than what was acknowledged, and the process has not heard of it yet.
    pub fn is_in_doubt(&self) -> bool {
        let (failed, _, heard) = self.failed_syncs;
        let device = self.device.failures.get() > self.device.heard.get();
        self.config.read_directly && (failed > heard || device)
    }

    /// What the failures of the device have done here, whoever met them.
    pub fn follow_device(&mut self) {
        let (failures, told) = (self.device.failures.get(), self.device.known_to(self.thread));
        if self.device_seen.0 < failures {
            self.device_seen.0 = failures;
            self.lose(u64::MAX);
        }
        if self.device_seen.1 < told {
            self.device_seen.1 = told;
            self.show_losses();
        }
    }

    /// A failed sync has ended: what was lost shows, to other threads when the first has `heard` of it.
    /// Between the two there is the moment that no verifier covers (`docs/protocol.md`, "Restart and
    /// replay").
    fn tell_losses(&mut self, heard: bool, ring: usize) {
        let failures = self.device.failures.get();
        if self.is_shared() && !heard {
            // Its other threads know no sooner than those of other media.
            self.rings[ring].told = Some(failures);
            return;
        }
        self.device.told.borrow_mut().insert(self.thread, failures);
        if heard {
            self.hear_losses();
        }
        self.device_seen.1 = failures;
        self.show_losses();
    }

    /// Of this many failures of the device the process has heard.
    pub fn hear_failures(&mut self, failures: u64) {
        self.device.heard.set(self.device.heard.get().max(failures));
        self.failed_syncs.2 = self.failed_syncs.1;
        self.device_seen.1 = self.device_seen.1.max(failures);
        self.show_losses();
    }

    /// The thread has taken in all that it was told of, and says so to the others.
    pub fn hear_losses(&mut self) {
        self.device.heard.set(self.device.known_to(self.thread));
        self.failed_syncs.2 = self.failed_syncs.1;
    }

    fn show_losses(&mut self) {
        self.upheavals += 1;
        self.current.copy_from_slice(&self.durable);
        for effect in &self.unflushed {
            for (nth, bytes) in effect.bytes.chunks_exact(SECTOR_BYTES).enumerate() {
                let sector = effect.sector + nth;
                if self.durable_number[sector] < effect.number {
                    let at = sector * SECTOR_BYTES;
                    self.current[at..at + SECTOR_BYTES].copy_from_slice(bytes);
                }
            }
        }
    }

    fn block_status(&self, from: usize, end: usize, out: &mut Vec<Extent>) {
        let mut at = from;
        while at < end {
            let next = ((at / 4096 + 1) * 4096).min(end);
            let hole = self.current[at / 4096 * 4096..][..4096].iter().all(|&b| b == 0);
            out.push(Extent { len: (next - at) as u64, hole, zero: hole });
            at = next;
        }
    }

    /// Makes those sectors of an effect durable that `keep` chooses, unless something newer is.
    fn settle(&mut self, effect: &Unflushed, mut keep: impl FnMut(usize) -> bool) -> usize {
        let mut kept = 0;
        for (nth, bytes) in effect.bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let sector = effect.sector + nth;
            if keep(nth) && self.durable_number[sector] < effect.number {
                self.durable_number[sector] = effect.number;
                let at = sector * SECTOR_BYTES;
                self.durable[at..at + SECTOR_BYTES].copy_from_slice(bytes);
                kept += 1;
            }
        }
        kept
    }

    /// What lies beyond is gone. Nothing is on its way.
    pub fn shrink(&mut self, bytes: usize) {
        assert!(self.flights.is_empty() && bytes.is_multiple_of(4096));
        let sectors = bytes / SECTOR_BYTES;
        self.config.bytes = bytes as u64;
        self.sizes = Sizes::new(bytes as u64);
        self.durable.truncate(bytes);
        self.current.truncate(bytes);
        self.durable_number.truncate(sectors);
        self.unflushed.retain(|effect| effect.sector < sectors);
        for effect in &mut self.unflushed {
            effect.bytes.truncate((sectors - effect.sector) * SECTOR_BYTES);
        }
    }

    /// Writes and syncs at once, as a process does that is alone with it.
    pub fn write_durably(&mut self, sector: usize, bytes: Vec<u8>) {
        let at = sector * SECTOR_BYTES;
        self.current[at..at + bytes.len()].copy_from_slice(&bytes);
        let number = self.next_number;
        self.next_number += 1;
        self.settle(&Unflushed { number, sector, bytes }, |_| true);
    }

    fn flush(&mut self, mark: u64) -> Result<(), i32> {
        if self.is_failing {
            return Err(EIO);
        }
        let failure = self.sync_failure();
        self.is_failing = self.config.goes_on_failing && failure.is_some();
        if failure.is_some() {
            return self.fail_sync(failure, mark);
        }
        let all = std::mem::take(&mut self.unflushed);
        let (covered, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|e| e.number < mark);
        covered.iter().for_each(|effect| {
            self.settle(effect, |_| true);
        });
        self.unflushed = rest;
        self.sizes.settle(mark);
        Ok(())
    }

    pub fn power_failure(&mut self) {
        self.upheavals += 1;
        if self.config.sick_writes > 0 {
            self.sick_writes = self.rng.below(self.config.sick_writes + 1);
        }
        self.owner += 1;
        let mut effects = std::mem::take(&mut self.unflushed);
        let flights = std::mem::take(&mut self.flights);
        let (flights, forgotten) = flights.into_iter().partition(|f| !self.is_forgotten(f));
        self.forget_rings(forgotten);
        for flight in flights {
            let bytes = match flight.op.kind {
                DiskOpKind::Write { data, .. } if flight.result.is_none() => data.to_vec(),
                DiskOpKind::PunchHole | DiskOpKind::ZeroRange if flight.result.is_none() => {
                    vec![0; flight.op.len as usize]
                }
                DiskOpKind::StoreWriter(record) if flight.result.is_none() => {
                    self.land_record(*record);
                    continue;
                }
                DiskOpKind::KeepSize if flight.result.is_none() => {
                    self.land_size(flight.mark, flight.op.len);
                    continue;
                }
                _ => continue,
            };
            let number = self.next_number;
            self.next_number += 1;
            let sector = flight.op.offset as usize / SECTOR_BYTES;
            effects.push(Unflushed { number, sector, bytes });
        }
        for effect in effects {
            let sectors = effect.bytes.len() / SECTOR_BYTES;
            let fate = self.rng.below(3);
            let mut rng = self.rng.clone();
            let kept = self.settle(&effect, |_| match fate {
                0 => false,
                1 => true,
                _ => rng.chance(0.5),
            });
            self.rng = rng;
            self.stats.sectors_kept += kept as u64;
            self.stats.sectors_lost += (sectors - kept) as u64;
            self.stats.torn += u64::from(kept > 0 && kept < sectors);
        }
        self.forget_growth();
        self.current.copy_from_slice(&self.durable);
        self.records.power_failure();
        self.forget_process();
    }

    /// What dies with the process.
    pub fn forget_process(&mut self) {
        self.records.forget_process();
        self.is_failing = false;
        self.rings.clear();
        // The failures of the device are known to whoever opens it next: all begin anew.
        self.follow_device();
        self.show_losses();
        self.device.heard.set(self.device.failures.get());
        self.device_seen.1 = self.device.failures.get();
        self.failed_syncs = (0, 0, 0);
        // An error that nobody was told of is told to whoever opens the file next.
        self.content_seen =
            if self.writeback_seen { self.writeback_errors } else { self.content_seen };
    }
}
