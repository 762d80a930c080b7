//! What a check has found and can be put right without losing anything: counts, and what damage has kept of deleted trees.

use super::counts::Of;
use super::doom::FIRST_UNREADABLE;
use super::{DOOMED, TreeChange, TreeFinding, TreeStop};

impl TreeChange<'_> {
    /// What is held by another number of references than its count says has that count from now on. False if it is another finding.
    ///
    /// The check was of these trees as they are now, and nothing in them is damaged, else what damage hides would count as free. What is in use and
    /// free by its count is to be put right first, and before a commit: that takes free nodes.
    ///
    /// # Errors
    /// As [`Trees::lookup`](super::Trees::lookup).
    pub fn recount(&mut self, finding: &TreeFinding) -> Result<bool, TreeStop> {
        let (of, at, says, has) = match *finding {
            TreeFinding::NodeCount { node, says, has } => (Of::Nodes, node, says, has),
            TreeFinding::BlockCount { block, says, has } => (Of::Blocks, block, says, has),
            _ => return Ok(false),
        };
        let trees = &mut *self.trees;
        match says {
            0 => trees.count_anew(of, at, has),
            _ => trees.add(of, at, has as i64 - says as i64)?,
        }
        Ok(true)
    }

    /// Forgets one of the nodes of deleted trees that cannot be read, for which giving back has stopped: from then on it, and all that only it referred
    /// to, has too high a count. False if there is none.
    ///
    /// # Errors
    /// As [`Trees::lookup`](super::Trees::lookup).
    pub fn forget_unreadable(&mut self) -> Result<bool, TreeStop> {
        let trees = &mut *self.trees;
        let Some(first) = trees.first(&DOOMED, trees.doomed, FIRST_UNREADABLE)? else {
            return Ok(false);
        };
        (trees.doomed, _) = trees.remove_bytes(&DOOMED, trees.doomed, first)?;
        Ok(true)
    }
}
