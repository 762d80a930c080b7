//! Room for what stands on volumes (rule 14): whoever opens a tree over a volume of the pool, closes it, or deletes a cut of it, writes labels and
//! bitmaps ([`IoFlags::meta`](thinwire_volume::IoFlags::meta)), and behind a snapshot each such block has to be copied once. In a full pool that would be
//! refused, and with it what makes room.
//!
//! So the row of a volume says how many of its blocks have such metadata ([`VolumeRow::kept`]), and as many blocks, and the nodes for their mappings, are
//! kept for each volume that can be written. Whatever else takes a block leaves these; and what would have the blocks copied once more (a
//! snapshot, a clone, a rollback) is done only where all that is kept is there. So what is kept always does: each of these blocks is copied once between two
//! snapshots, and nothing else takes of it.
//!
//! Which blocks that are an open volume learns from such writes. What is written beyond [`KEPT_MAX`] blocks, or while there is no room to keep more,
//! is as any other write.

use thinwire_volume::CutAct;

use super::ops::{OpStop, PoolError, PoolOp};
use super::rows::{KEPT_MAX, VolumeRow};
use super::{Core, PoolCanary};
use crate::meta::tree::TreeStop;

/// Nodes for the mappings of what is kept: so many for each volume, and one for each block. One change makes copies of the nodes between a root and a leaf, in the
/// trees of blocks and of volumes; the next ones of the same volume find them.
const NODES_EACH: u64 = 8;

/// What a volume has kept.
fn of_row(row: &VolumeRow) -> u64 {
    if row.is_read_only { 0 } else { row.kept.into() }
}

impl Core {
    /// Volumes have come, gone or changed: what is kept for all.
    pub(super) fn count_kept(&mut self) {
        let (mut blocks, mut nodes) = (0, 0);
        for kept in self.entries.values().map(|entry| of_row(&entry.row)).filter(|kept| *kept > 0) {
            blocks += kept;
            nodes += NODES_EACH + kept;
        }
        self.kept_blocks = blocks;
        self.trees.keep_nodes(nodes);
    }

    /// A write is looked at: whether it is of metadata, in blocks for which room is kept. Those that are not known yet are, from now on.
    #[cold]
    pub(super) fn note_metadata(&mut self, id: u32) -> Result<(), TreeStop> {
        if self.canary == PoolCanary::KeepsNothing {
            return Ok(());
        }
        let shift = self.head.block_shift;
        let job = self.jobs.get_mut(id);
        let ((first, last), volume, slot) = (job.blocks(shift), job.volume, job.slot);
        for key in first..=last {
            let mut row = self.row_of(volume);
            let known = &self.slots.get_mut(slot).metadata;
            if known.contains(&key) {
                continue;
            }
            if known.len() == usize::from(row.kept) {
                // Where there is no room for that it is a write like any other.
                if row.kept == KEPT_MAX || self.trees.free()[1] <= self.kept_blocks {
                    return Ok(());
                }
                row.kept += 1;
                let mut change = match self.trees.change() {
                    Err(TreeStop::NoNodes) => return Ok(()),
                    change => change?,
                };
                let (volumes, _) = change.insert(self.volumes, volume, &row)?;
                change.apply()?;
                self.volumes = volumes;
                self.set_row(volume, row);
            }
            self.slots.get_mut(slot).metadata.push(key);
        }
        self.jobs.get_mut(id).takes_kept = true;
        Ok(())
    }

    /// A block for a job, which leaves those that are kept for others.
    pub(super) fn take_block(&mut self, id: u32) -> Result<u64, TreeStop> {
        if self.jobs.get_mut(id).takes_kept {
            return self.trees.reserve_block_of_kept();
        }
        if self.kept_blocks > 0 && self.trees.free()[1] <= self.kept_blocks {
            let comes = self.trees.has_blocks_to_come();
            return Err(if comes { TreeStop::Commit } else { TreeStop::NoBlocks });
        }
        self.trees.reserve_block()
    }

    /// Whether all that is kept is there, so that a volume may be shared, or there may be one more of it.
    pub(super) fn check_kept(&mut self, op: &PoolOp) -> Result<(), OpStop> {
        let kept = |volume: &u64| self.entries.get(volume).map_or(0, |entry| entry.row.kept);
        let (of, more) = match op {
            PoolOp::Snapshot { volume, .. } => (kept(volume), 0),
            PoolOp::Cut { volume, order } if order.act == CutAct::Take => (kept(volume), 0),
            PoolOp::Clone { volume, .. } => (kept(volume), kept(volume)),
            PoolOp::RollBack { volume, to, .. } => {
                let next = kept(volume).max(kept(to));
                (next, next - kept(volume))
            }
            _ => (0, 0),
        };
        let needed = self.kept_blocks + u64::from(more);
        if of == 0 || self.trees.free()[1] >= needed || self.canary == PoolCanary::SharesWhatIsKept
        {
            return Ok(());
        }
        match self.trees.has_blocks_to_come() || self.may_come() {
            true => Err(TreeStop::Commit.into()),
            false => Err(PoolError::NoBlocks.into()),
        }
    }
}
