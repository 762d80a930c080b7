//! A disk that forgets what was not flushed, and the process-side handle on it.
//!
//! The [`Medium`] outlives the target that uses it. It has two images: what is durable, and what
//! reads see. A write takes effect at a moment of its own between submission and completion, stays
//! volatile until a flush submitted later (or its own FUA) makes it durable, and may be kept, lost
//! or torn at sectors when the power fails. When only the process dies (kill -9), what it had
//! submitted still lands for a while, and the lock is released only then (rule 2).

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_link::rng::Rng;
use thinwire_volume::{
    Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, Extent, Identity, WriterRecord,
};

use crate::stamp::{SECTOR_BYTES, Seen, look};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

/// What a medium is like. Rates are probabilities of each operation.
#[derive(Clone, Copy, Debug)]
pub struct MediumConfig {
    /// Size, a multiple of 4096.
    pub bytes: u64,
    /// Least and most time of an operation, in ns.
    pub latency_ns: (u64, u64),
    /// Operations that take 100 times as long.
    pub slow: f64,
    /// Flushes that fail, losing what they were to save.
    pub flush_failure: f64,
    /// Writes that fail with EIO, a part of them done.
    pub write_failure: f64,
    /// Writes that find no space, nothing of them done.
    pub no_space: f64,
    /// Reads that fail with EIO.
    pub read_failure: f64,
    /// Writer records that cannot be stored.
    pub record_failure: f64,
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
            slow: 0.0,
            flush_failure: 0.0,
            write_failure: 0.0,
            no_space: 0.0,
            read_failure: 0.0,
            record_failure: 0.0,
            punch_hole: true,
            zero_range: true,
            lands_late_ns: 0,
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
}

/// An effect that is not durable yet.
struct Unflushed {
    number: u64,
    sector: usize,
    /// Whole sectors.
    bytes: Vec<u8>,
}

/// An operation on its way.
struct Flight {
    owner: u32,
    op: DiskOp,
    effect_at: u64,
    done_at: u64,
    /// Effects below this were complete when it was submitted (flush).
    mark: u64,
    result: Option<Result<(), i32>>,
}

impl Flight {
    fn next_at(&self) -> u64 {
        if self.result.is_some() { self.done_at } else { self.effect_at }
    }
}

struct Medium {
    config: MediumConfig,
    rng: Rng,
    now: u64,
    durable: Vec<u8>,
    /// For each sector: the number of the effect that is durable there.
    durable_number: Vec<u64>,
    current: Vec<u8>,
    unflushed: Vec<Unflushed>,
    next_number: u64,
    flights: Vec<Flight>,
    ready: Vec<DiskDone>,
    owner: u32,
    writer: WriterRecord,
    /// Writes stamped by another run than this are a breach of the fence; 0: none are.
    granted_run: u32,
    breach: Option<String>,
    failures_off: bool,
    /// Counts moments at which unflushed effects may have been lost.
    upheavals: u64,
    stats: MediumStats,
}

/// A handle of a medium. Clones are handles of the same one.
#[derive(Clone)]
pub struct MediumHandle {
    medium: Rc<RefCell<Medium>>,
    identity: [u8; 16],
}

impl MediumHandle {
    /// A medium of zeroes with this identity.
    pub fn new(seed: u64, identity: [u8; 16], config: MediumConfig) -> Self {
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
            ready: Vec::new(),
            owner: 0,
            writer: WriterRecord::default(),
            granted_run: 0,
            breach: None,
            failures_off: false,
            upheavals: 0,
            stats: MediumStats::default(),
        };
        MediumHandle { medium: Rc::new(RefCell::new(medium)), identity }
    }

    /// The disk for a process that starts now.
    ///
    /// # Panics
    /// If an operation of an earlier process is still on its way: see [`MediumHandle::locked_until`].
    pub fn open(&self) -> SimDisk {
        let mut m = self.medium.borrow_mut();
        assert!(m.flights.is_empty(), "a starting target waits for the lock");
        m.ready.clear();
        m.owner += 1;
        SimDisk { handle: self.clone(), owner: m.owner }
    }

    /// As [`MediumHandle::open`], without waiting for the lock: what rule 2 forbids.
    pub fn open_without_lock(&self) -> SimDisk {
        let mut m = self.medium.borrow_mut();
        m.owner += 1;
        SimDisk { handle: self.clone(), owner: m.owner }
    }

    /// Time goes on; what is due takes effect, in order.
    pub fn advance(&self, now: u64) {
        self.medium.borrow_mut().advance(now);
    }

    /// When something happens here next.
    pub fn next_event(&self) -> Option<u64> {
        let m = self.medium.borrow();
        m.flights.iter().map(Flight::next_at).min()
    }

    /// The process can poll something.
    pub fn is_ready(&self) -> bool {
        !self.medium.borrow().ready.is_empty()
    }

    /// The process has been killed: what it had submitted still lands, perhaps late.
    pub fn kill(&self) {
        let m = &mut *self.medium.borrow_mut();
        m.owner += 1;
        m.ready.clear();
        let late = m.config.lands_late_ns;
        m.flights.retain(|f| f.result.is_none() && !matches!(f.op.kind, DiskOpKind::Read(_)));
        for flight in &mut m.flights {
            flight.effect_at += m.rng.between(0, late);
            flight.done_at = flight.effect_at;
        }
        m.upheavals += 1;
    }

    /// The power has failed: unflushed effects are kept, lost or torn; nothing lands any more.
    pub fn power_failure(&self) {
        self.medium.borrow_mut().power_failure();
    }

    /// When the last operation of dead processes has landed.
    pub fn locked_until(&self) -> u64 {
        let m = self.medium.borrow();
        let of_dead = m.flights.iter().filter(|f| f.owner != m.owner);
        of_dead.map(|f| f.effect_at + 1).max().unwrap_or(m.now)
    }

    /// From now on writes stamped by another run than `run` are a breach of the fence.
    pub fn fence(&self, run: u32) {
        self.medium.borrow_mut().granted_run = run;
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

    /// Share of writer records that cannot be stored from now on.
    pub fn set_record_failure(&self, rate: f64) {
        self.medium.borrow_mut().config.record_failure = rate;
    }

    /// Makes writes fail for lack of space, always or never: for scripted tests.
    pub fn set_no_space(&self, rate: f64) {
        self.medium.borrow_mut().config.no_space = rate;
    }

    /// Changes how long operations take: for scripted tests.
    pub fn set_latency(&self, least_ns: u64, most_ns: u64) {
        self.medium.borrow_mut().config.latency_ns = (least_ns, most_ns);
    }

    /// Counts the moments at which unflushed effects may have been lost.
    pub fn upheavals(&self) -> u64 {
        self.medium.borrow().upheavals
    }

    /// The durable image.
    pub fn durable(&self) -> Vec<u8> {
        self.medium.borrow().durable.clone()
    }

    /// The image that reads see.
    pub fn current(&self) -> Vec<u8> {
        self.medium.borrow().current.clone()
    }

    /// What it is like.
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

impl Medium {
    fn advance(&mut self, now: u64) {
        assert!(now >= self.now);
        self.now = now;
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
            if f.owner == self.owner {
                let result = f.result.expect("it took effect");
                self.ready.push(DiskDone { token: f.op.token, result, kind: f.op.kind });
            } else {
                self.stats.landed_late += 1;
            }
        }
    }

    fn chance(&mut self, rate: f64) -> bool {
        !self.failures_off && self.rng.chance(rate)
    }

    fn take_effect(&mut self, at: usize) {
        self.stats.operations += 1;
        // Taken out, so that the rest of the medium can be changed meanwhile.
        let placeholder = DiskOp { token: 0, offset: 0, len: 0, kind: DiskOpKind::Flush };
        let mut op = std::mem::replace(&mut self.flights[at].op, placeholder);
        let mark = self.flights[at].mark;
        let (from, len) = (op.offset as usize, op.len as usize);
        let config = self.config;
        let result = match &mut op.kind {
            DiskOpKind::Read(buf) => {
                if self.chance(config.read_failure) {
                    Err(EIO)
                } else {
                    buf.copy_from_slice(&self.current[from..from + len]);
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
        };
        self.flights[at].op = op;
        self.flights[at].result = Some(result);
    }

    fn write(&mut self, from: usize, mut bytes: Vec<u8>, fua: bool) -> Result<(), i32> {
        let config = self.config;
        self.watch_fence(&bytes);
        if self.chance(config.no_space) {
            self.stats.write_failures += 1;
            return Err(ENOSPC);
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
            self.settle(&effect, |_| true);
        } else {
            self.unflushed.push(effect);
        }
        result
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

    fn flush(&mut self, mark: u64) -> Result<(), i32> {
        let fails = self.chance(self.config.flush_failure);
        let all = std::mem::take(&mut self.unflushed);
        let (covered, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|e| e.number < mark);
        for effect in &covered {
            // fdatasync fails once, and what it was to save is gone.
            if fails && !self.rng.chance(0.3) {
                self.stats.sectors_lost += (effect.bytes.len() / SECTOR_BYTES) as u64;
                continue;
            }
            self.settle(effect, |_| true);
        }
        self.unflushed = rest;
        if !fails {
            return Ok(());
        }
        self.stats.flush_failures += 1;
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
        Err(EIO)
    }

    fn power_failure(&mut self) {
        self.upheavals += 1;
        self.owner += 1;
        self.ready.clear();
        let mut effects = std::mem::take(&mut self.unflushed);
        for flight in std::mem::take(&mut self.flights) {
            let bytes = match flight.op.kind {
                DiskOpKind::Write { data, .. } if flight.result.is_none() => data.to_vec(),
                DiskOpKind::PunchHole | DiskOpKind::ZeroRange if flight.result.is_none() => {
                    vec![0; flight.op.len as usize]
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
        self.current.copy_from_slice(&self.durable);
    }

    /// The disk does overlapping operations in any order: two writes are never given to it together
    /// (rule 5).
    fn watch_overlap(&mut self, owner: u32, op: &DiskOp) {
        let writes = |op: &DiskOp| !matches!(op.kind, DiskOpKind::Read(_) | DiskOpKind::Flush);
        let overlaps = |f: &&Flight| {
            f.owner == owner
                && f.result.is_none()
                && writes(&f.op)
                && f.op.offset < op.offset + op.len
                && op.offset < f.op.offset + f.op.len
        };
        if writes(op)
            && let Some(other) = self.flights.iter().find(overlaps)
        {
            self.breach.get_or_insert_with(|| {
                format!(
                    "the disk was given a write of {} bytes at {} while it had one of {} at {}",
                    op.len, op.offset, other.op.len, other.op.offset
                )
            });
        }
    }

    fn watch_fence(&mut self, bytes: &[u8]) {
        if self.granted_run == 0 {
            return;
        }
        for sector in bytes.chunks_exact(SECTOR_BYTES) {
            if let Seen::Stamp { run, version, address } = look(sector)
                && run != self.granted_run
            {
                self.breach.get_or_insert_with(|| {
                    format!(
                        "sector {address} was written with version {version} by run {run}, after \
                         run {} had been granted the export",
                        self.granted_run
                    )
                });
            }
        }
    }
}

/// A process's disk. Dead once the process is: see [`MediumHandle::kill`].
pub struct SimDisk {
    handle: MediumHandle,
    owner: u32,
}

impl Disk for SimDisk {
    fn info(&self) -> DiskInfo {
        let m = self.handle.medium.borrow();
        DiskInfo {
            bytes: m.config.bytes,
            align_bytes: SECTOR_BYTES as u32,
            identity: Identity { identity: self.handle.identity, incarnation: 0 },
            read_only: false,
            punch_hole: true,
            zero_range: true,
        }
    }

    fn submit(&mut self, op: DiskOp) {
        let m = &mut *self.handle.medium.borrow_mut();
        assert_eq!(m.owner, self.owner, "a dead process submits nothing");
        if let DiskOpKind::Write { data, .. } = &op.kind {
            let aligned = |s: &thinwire_buffer::Segment| {
                (s.as_ptr() as usize).is_multiple_of(SECTOR_BYTES)
                    && s.len().is_multiple_of(SECTOR_BYTES)
            };
            assert!(data.iter().all(aligned), "direct I/O needs aligned memory");
        }
        m.watch_overlap(self.owner, &op);
        let (least, most) = m.config.latency_ns;
        let factor = if m.rng.chance(m.config.slow) { 100 } else { 1 };
        let effect_at = m.now + m.rng.between(least, most) * factor;
        // What a failed flush loses is lost when it says so: nobody could be told earlier.
        let is_flush = matches!(op.kind, DiskOpKind::Flush);
        let done_at = effect_at + if is_flush { 0 } else { m.rng.between(0, least.max(1)) };
        let mark = m.next_number;
        m.flights.push(Flight { owner: self.owner, op, effect_at, done_at, mark, result: None });
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        let m = &mut *self.handle.medium.borrow_mut();
        if m.owner == self.owner {
            done.append(&mut m.ready);
        }
    }

    fn block_status(&mut self, offset: u64, len: u64, out: &mut Vec<Extent>) -> Result<(), i32> {
        let m = self.handle.medium.borrow();
        let (mut at, end) = (offset as usize, (offset + len) as usize);
        while at < end {
            let next = ((at / 4096 + 1) * 4096).min(end);
            let hole = m.current[at / 4096 * 4096..][..4096].iter().all(|&b| b == 0);
            out.push(Extent { len: (next - at) as u64, hole, zero: hole });
            at = next;
        }
        Ok(())
    }

    fn load_writer(&mut self) -> WriterRecord {
        self.handle.medium.borrow().writer
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), i32> {
        let m = &mut *self.handle.medium.borrow_mut();
        let rate = m.config.record_failure;
        if m.chance(rate) {
            m.stats.record_failures += 1;
            return Err(EIO);
        }
        m.writer = record;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_buffer::{Pool, SegList};

    fn write(disk: &mut SimDisk, sector: u64, byte: u8, fua: bool) {
        let mut buf = Pool::new(0).get(2 * SECTOR_BYTES);
        buf.fill(byte);
        let data = SegList::of(buf.freeze());
        let (offset, len) = (sector * SECTOR_BYTES as u64, 2 * SECTOR_BYTES as u64);
        let kind = DiskOpKind::Write { data, fua };
        disk.submit(DiskOp { token: 1, offset, len, kind });
    }

    fn flush(disk: &mut SimDisk) {
        disk.submit(DiskOp { token: 2, offset: 0, len: 0, kind: DiskOpKind::Flush });
    }

    fn settle(medium: &MediumHandle) {
        while let Some(at) = medium.next_event() {
            medium.advance(at);
        }
    }

    fn firsts(image: &[u8]) -> Vec<u8> {
        image.chunks(SECTOR_BYTES).take(4).map(|s| s[0]).collect()
    }

    #[test]
    fn only_flushed_effects_are_durable() {
        let medium = MediumHandle::new(1, [1; 16], MediumConfig::default());
        let mut disk = medium.open();
        write(&mut disk, 0, 1, false);
        settle(&medium);
        assert_eq!(
            (firsts(&medium.durable()), firsts(&medium.current())),
            (vec![0; 4], vec![1, 1, 0, 0])
        );
        flush(&mut disk);
        write(&mut disk, 1, 2, false);
        settle(&medium);
        // The write came after the flush was submitted.
        assert_eq!(firsts(&medium.durable()), [1, 1, 0, 0]);
        write(&mut disk, 2, 3, true);
        settle(&medium);
        assert_eq!(firsts(&medium.durable()), [1, 1, 3, 3]);
        flush(&mut disk);
        settle(&medium);
        assert_eq!(firsts(&medium.durable()), [1, 2, 3, 3], "an older effect under a FUA one");
    }

    #[test]
    fn a_power_failure_keeps_loses_and_tears() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let medium = MediumHandle::new(seed, [1; 16], MediumConfig::default());
            let mut disk = medium.open();
            write(&mut disk, 0, 1, false);
            settle(&medium);
            write(&mut disk, 0, 2, false);
            medium.power_failure();
            assert_eq!(medium.durable(), medium.current());
            seen.insert(firsts(&medium.durable())[..2].to_vec());
        }
        assert_eq!(seen.len(), 9, "{seen:?}");
    }

    #[test]
    fn a_failed_flush_loses_what_it_was_to_save_and_the_next_succeeds() {
        let medium = MediumHandle::new(1, [1; 16], MediumConfig::default());
        let mut disk = medium.open();
        let mut lost = 0;
        for round in 1..=20 {
            write(&mut disk, 0, round, false);
            settle(&medium);
            medium.set_flush_failure(1.0);
            flush(&mut disk);
            settle(&medium);
            medium.set_flush_failure(0.0);
            flush(&mut disk);
            settle(&medium);
            lost += u32::from(firsts(&medium.durable())[0] != round);
            assert_eq!(medium.durable(), medium.current());
        }
        assert!(lost > 5, "{lost}");
        let mut done = vec![];
        disk.poll(&mut done);
        assert_eq!(done.iter().filter(|d| d.result == Err(EIO)).count(), done.len() / 3);
    }

    #[test]
    fn a_killed_process_still_writes_and_holds_the_lock() {
        let config = MediumConfig { lands_late_ns: 1_000_000_000, ..MediumConfig::default() };
        let medium = MediumHandle::new(1, [1; 16], config);
        let mut disk = medium.open();
        write(&mut disk, 0, 1, false);
        medium.kill();
        let until = medium.locked_until();
        assert!(until > 0);
        medium.advance(until);
        assert_eq!((firsts(&medium.current())[0], medium.stats().landed_late), (1, 1));
        medium.open();
    }
}
