//! Giving blocks back: discards, and zeroes. What is written with zeroes is cut into parts: whole blocks are given back, others are written
//! where they are.

use thinwire_volume::Op;

use super::jobs::{Act, Stage};
use super::{Core, PoolCanary};
use crate::meta::tree::TreeStop;

/// Zeroes that must have blocks are written in parts of so many bytes.
const STORE_BYTES: u64 = 1 << 20;

impl Core {
    /// The part that comes next, of a range that is locked.
    pub(super) fn zero(&mut self, id: u32) -> Result<(), TreeStop> {
        let block = self.head.block_bytes();
        let longest = u64::from(self.data.geometry().io_bytes_max);
        let job = self.jobs.get_mut(id);
        let volume_bytes = self.entries.get(&job.volume).map_or(0, |entry| entry.row.bytes);
        let (at, end) = (job.at, job.io.offset + job.io.len);
        if job.act == Act::Plain {
            // What is behind the end of the volume is nobody's.
            let reach = if end == volume_bytes { end.next_multiple_of(block) } else { end };
            let next = (at & !(block - 1)) + block;
            let (act, upto) = if job.io.op == Op::WriteZeroes && job.io.flags.no_hole {
                // No longer than the data part takes, where blocks lie together.
                let part = STORE_BYTES.min((longest / block * block).max(block));
                (Act::Store, end.min(at / part * part + part))
            } else if at.is_multiple_of(block) && next <= reach {
                (Act::Unmap, end.min(reach & !(block - 1)))
            } else {
                (Act::Blank, end.min(next))
            };
            (job.act, job.len) = (act, upto - at);
        }
        match job.act {
            Act::Unmap => self.unmap(id),
            // Part of a block is not worth a write.
            Act::Blank if job.io.op == Op::Discard => {
                self.next_part(id);
                Ok(())
            }
            _ => self.write(id),
        }
    }

    /// Gives back blocks that stand in one leaf; the others when it comes next.
    fn unmap(&mut self, id: u32) -> Result<(), TreeStop> {
        if let Some(stopped) = &self.commits.stopped {
            let kind = stopped.kind;
            self.fail(id, kind);
            return Ok(());
        }
        let shift = self.head.block_shift;
        let job = self.jobs.get_mut(id);
        let ((first, last), volume) = (job.blocks(shift), job.volume);
        let end = job.at + job.len;
        let mut row = self.entries.get(&volume).expect("it is open").row;
        self.found.clear();
        let next = self.trees.rows(row.blocks(), first..=last, &mut self.found)?;
        let last = next.map_or(last, |next| next - 1);
        if !self.found.is_empty() {
            let mut change = self.trees.change_to_free()?;
            let (mut blocks, mut from) = (row.blocks(), Some(first));
            while let Some(first) = from {
                (blocks, from) = change.remove_range(blocks, first..=last)?;
            }
            row.mapped = row.mapped.saturating_sub(self.found.len() as u64);
            row.root = blocks.at;
            let (volumes, _) = change.insert(self.volumes, volume, &row)?;
            change.apply()?;
            self.volumes = volumes;
            self.set_row(volume, row);
            if self.canary == PoolCanary::EarlyDiscard {
                self.discard_found(&row);
            }
        }
        let job = self.jobs.get_mut(id);
        let upto = end.min((last + 1) << shift);
        if upto < end {
            // Others come in between.
            (job.at, job.len, job.stage) = (upto, end - upto, Stage::Look);
            self.ripe.push_back(id);
            return Ok(());
        }
        job.len = end - job.at;
        self.next_part(id);
        Ok(())
    }
}
