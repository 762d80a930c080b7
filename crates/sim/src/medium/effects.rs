//! What operations do to the two images, and when; and what no shipped code may ask of a disk.

use thinwire_link::rng::Rng;
use thinwire_volume::{DiskDone, DiskOp, DiskOpKind, WriterRecord};

use super::{MediumConfig, MediumStats};
use crate::stamp::{SECTOR_BYTES, Seen, look};

pub(super) const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

/// An effect that is not durable yet.
pub(super) struct Unflushed {
    pub number: u64,
    pub sector: usize,
    /// Whole sectors.
    pub bytes: Vec<u8>,
}

/// An operation on its way.
pub(super) struct Flight {
    pub owner: u32,
    pub op: DiskOp,
    pub effect_at: u64,
    pub done_at: u64,
    /// Effects below this were complete when it was submitted (flush).
    pub mark: u64,
    pub result: Option<Result<(), i32>>,
}

impl Flight {
    pub fn next_at(&self) -> u64 {
        if self.result.is_some() { self.done_at } else { self.effect_at }
    }
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
    pub ready: Vec<DiskDone>,
    pub owner: u32,
    pub writer: WriterRecord,
    /// Writes stamped by another run than this are a breach of the fence; 0: none are.
    pub granted_run: u32,
    pub breach: Option<String>,
    pub failures_off: bool,
    /// Counts moments at which unflushed effects may have been lost.
    pub upheavals: u64,
    pub stats: MediumStats,
}

impl Medium {
    pub fn advance(&mut self, now: u64) {
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

    pub fn chance(&mut self, rate: f64) -> bool {
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

    pub fn power_failure(&mut self) {
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
    pub fn watch_overlap(&mut self, owner: u32, op: &DiskOp) {
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
