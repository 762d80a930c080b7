//! Blocks that are free, for whoever discards what may have been left out when they became so.

use super::counts::{EACH_ROW, Of, ROW_BYTES, bits};
use super::look::Bounds;
use super::{BLOCK_MAP, TreeStop, Trees};

/// So many rows of the map are looked at in one call.
const ROWS: u64 = 256;

impl Trees {
    /// Free blocks that lie together, the first from there on and how many, of so many at most; they are given to nobody until
    /// [`Trees::give_out`]. And from where on to look the next time: up to how many blocks there are. Looks at a bounded number of them, so there may be
    /// none; what cannot be read of the map is left out.
    ///
    /// # Errors
    /// It has to wait, or for a commit; or one has failed.
    pub fn hold_free(
        &mut self,
        from: u64,
        most: u64,
    ) -> Result<(Option<(u64, u64)>, u64), TreeStop> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone().into());
        }
        if self.has_older {
            return Err(TreeStop::Commit);
        }
        if self.is_settling() {
            return Err(TreeStop::Wait);
        }
        let total = self.blocks.state.total;
        let (map, first) = (self.blocks.frozen, from / EACH_ROW);
        let mut leaf = Vec::<(u64, [u8; ROW_BYTES])>::new();
        let next = self.leaf_within(&BLOCK_MAP, map, first, &mut |key, row| {
            leaf.push((key, row.try_into().expect("rows of maps have 16 bytes")));
        });
        let next = match next {
            Ok(next) => next,
            Err((TreeStop::Fault(_), bounds)) if bounds != Bounds::ALL => {
                let end = bounds.high.saturating_add(1).saturating_mul(EACH_ROW);
                return Ok((None, end.min(total)));
            }
            Err((stop, _)) => return Err(stop),
        };
        let end = next.unwrap_or(u64::MAX).min(first + ROWS).saturating_mul(EACH_ROW).min(total);
        let mut rows = leaf.iter().peekable();
        let mut row = [0; ROW_BYTES];
        let (mut run, mut at) = (None, from);
        while at < end {
            if at == from || at.is_multiple_of(EACH_ROW) {
                let key = at / EACH_ROW;
                row = rows.next_if(|(of, _)| *of == key).map_or([0; ROW_BYTES], |(_, row)| *row);
            }
            let space = &self.blocks;
            let is_free = bits(&row, at) == 0
                && !space.deltas.contains_key(&at)
                && !space.taken.contains(&at)
                && !space.held.contains(&at);
            match &mut run {
                Some((_, count)) if is_free && *count < most => *count += 1,
                Some(_) => break,
                None if is_free => run = Some((at, 1)),
                None => {}
            }
            at += 1;
        }
        if let Some((first, count)) = run {
            self.space(Of::Blocks).held.extend(first..first + count);
        }
        Ok((run, at))
    }
}
