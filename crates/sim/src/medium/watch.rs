//! What no shipped code may ask of a disk: two writes of one place at once (rule 5), and writes of a
//! writer after another was granted the export (rules 2 and 3).

use std::collections::BTreeSet;

use thinwire_volume::{DiskOp, DiskOpKind};

use super::effects::{Flight, Medium, changes};
use super::records::is_record;
use crate::stamp::{SECTOR_BYTES, Seen, look};

/// Longest read whose bytes may be written once more, with a part of them changed: a block.
const BLOCK_BYTES_MAX: usize = 4096;

/// Who may write, as far as stamps tell.
#[derive(Default)]
pub(super) struct Fence {
    /// Sectors stamped by other runs are a breach; if it is empty none are.
    granted_runs: Vec<u32>,
    /// Its writer patches parts of blocks.
    patches: bool,
    /// Somebody keeps what is read: then all that was there at the grant counts as read, and reads of any length do.
    is_cached: bool,
    /// Of other runs, what was read since the grant, by sector and version: who patches a part of a
    /// block writes the rest of it as it was.
    read: BTreeSet<(u64, u64)>,
}

impl Fence {
    /// The export has been granted to who had these runs. Who `patches` writes parts of blocks.
    pub fn grant(&mut self, runs: &[u32], patches: bool, is_cached: bool) {
        self.granted_runs = runs.to_vec();
        (self.patches, self.is_cached) = (patches, is_cached);
        self.read.clear();
    }

    /// These bytes, from this one of the image on, were read.
    pub fn was_read(&mut self, from: usize, bytes: &[u8]) {
        if !self.patches || (bytes.len() > BLOCK_BYTES_MAX && !self.is_cached) {
            return;
        }
        for (nth, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            if let Seen::Stamp { run, version, .. } = look(sector)
                && !self.granted_runs.contains(&run)
            {
                self.read.insert(((from / SECTOR_BYTES + nth) as u64, version));
            }
        }
    }

    /// How a write breaches it, if it does.
    fn breach(&self, bytes: &[u8]) -> Option<String> {
        if self.granted_runs.is_empty() {
            return None;
        }
        bytes.chunks_exact(SECTOR_BYTES).find_map(|sector| match look(sector) {
            Seen::Stamp { run, version, address }
                if !self.granted_runs.contains(&run)
                    && !self.read.contains(&(address, version)) =>
            {
                Some(format!(
                    "sector {address} was written with version {version} by run {run}, after \
                     run {} had been granted the export",
                    self.granted_runs.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
                ))
            }
            _ => None,
        })
    }
}

impl Medium {
    /// The disk does overlapping operations in any order: two writes are never given to it together
    /// (rule 5).
    pub fn watch_overlap(&mut self, owner: u32, op: &DiskOp) {
        let writes = |op: &DiskOp| {
            changes(&op.kind) && !is_record(&op.kind) && !matches!(op.kind, DiskOpKind::Flush)
        };
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

    pub fn watch_fence(&mut self, bytes: &[u8]) {
        if let Some(breach) = self.fence.breach(bytes) {
            self.breach.get_or_insert(breach);
        }
    }
}
