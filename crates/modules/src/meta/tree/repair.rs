//! What a check has found and can be put right without losing anything: counts, and what damage has kept of deleted trees.

use super::counts::Of;
use super::doom::{Doomed, FIRST_UNREADABLE, LEVEL_SHIFT};
use super::{DOOMED, TreeChange, TreeFinding, TreePointer, TreeStop, TreeValue, Trees};

impl Trees {
    /// These maps are empty from now on, of which `old` are nodes. Only a commit behind [`Trees::put_count`] of all counts may follow: the maps
    /// say that all is free.
    pub(super) fn begin_maps(&mut self, makes: [bool; 2], old: Vec<u64>) -> Result<(), TreeStop> {
        self.begin_change();
        for node in old {
            match makes[Of::Nodes as usize] {
                // The last commit has it, as far as it can be read.
                true if self.nodes.held.insert(node) => self.nodes.freed.push(node),
                true => {}
                false => self.add(Of::Nodes, node, -1)?,
            }
        }
        for of in [Of::Nodes, Of::Blocks] {
            if makes[of as usize] {
                let space = self.space(of);
                (space.state.map, space.frozen) = (TreePointer::NONE, TreePointer::NONE);
                (space.state.map_nodes, space.state.used) = (0, 0);
            }
        }
        self.forget_undo();
        Ok(())
    }

    /// What so many refer to, by a map that is made anew.
    pub(super) fn put_count(&mut self, of: Of, at: u64, count: u64) {
        if count > 0 {
            self.begin_change();
            self.count_anew(of, at, count);
            self.forget_undo();
        }
    }
}

impl Trees {
    /// What that doomed node refers to cannot be read.
    fn is_unreadable(&mut self, key: u64) -> Result<bool, TreeStop> {
        let mut value = [0; Doomed::BYTES];
        self.find(&DOOMED, self.doomed, key, &mut value)?;
        let Some(Doomed { at, kind }) = Doomed::take(&value) else { return Ok(false) };
        match self.held_by(kind, (key >> LEVEL_SHIFT) as u8, at) {
            Ok(_) => Ok(false),
            Err(TreeStop::Fault(_)) => Ok(true),
            Err(stop) => Err(stop),
        }
    }
}

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

    /// Forgets one of the nodes of deleted trees that cannot be read, whether that was found out before or not: from then on it, and all that only it referred
    /// to, has too high a count. False if there is none. `from` is 0 at first, and kept by the caller for the next call.
    ///
    /// # Errors
    /// As [`Trees::lookup`](super::Trees::lookup).
    pub fn forget_unreadable(&mut self, from: &mut u64) -> Result<bool, TreeStop> {
        let trees = &mut *self.trees;
        while let Some(key) = trees.first(&DOOMED, trees.doomed, *from)? {
            if key >= FIRST_UNREADABLE || trees.is_unreadable(key)? {
                (trees.doomed, _) = trees.remove_bytes(&DOOMED, trees.doomed, key)?;
                return Ok(true);
            }
            *from = key + 1;
        }
        Ok(false)
    }
}
