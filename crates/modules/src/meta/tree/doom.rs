//! Deleting trees: a node that nobody holds any more is noted in the tree of doomed nodes, and what it refers to is given back
//! later, a node at a time, across commits and crashes (`docs/format.md`, "Doomed nodes").

use super::change::refers;
use super::counts::Of;
use super::look::Bounds;
use super::{
    DOOMED, NodeFault, TreeFault, TreeKind, TreePointer, TreeRefers, TreeStop, TreeValue, Trees,
};

/// In the place of the level, for nodes that cannot be read.
const UNREADABLE: u64 = 0xff;
pub(super) const LEVEL_SHIFT: u32 = 56;
/// So many nodes are passed over at most, since they cannot be read by now: with more of them all wait.
const PASSED_OVER_MAX: usize = 64;
/// The first key of those that cannot be read.
pub(super) const FIRST_UNREADABLE: u64 = UNREADABLE << LEVEL_SHIFT;

/// A node to which the tree of doomed ones holds the only reference. The key is its level, in the highest byte, and its
/// address: so leaves go first, and few are noted at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doomed {
    pub at: TreePointer,
    pub kind: u8,
}

impl TreeValue for Doomed {
    const BYTES: usize = 24;

    fn put(&self, out: &mut [u8]) {
        out[..16].copy_from_slice(&self.at.to_bytes());
        out[16] = self.kind;
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let is_plain = !bytes[..8].iter().all(|&byte| byte == 0) && bytes[17..] == [0; 7];
        is_plain.then(|| Doomed { at: TreePointer::from_bytes(bytes), kind: bytes[16] })
    }

    fn refers(&self) -> TreeRefers {
        TreeRefers::Tree { kind: self.kind, root: self.at }
    }
}

/// What a step of giving back deleted trees has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeReaped {
    /// There is more to give back.
    pub more: bool,
    /// It came to a node that cannot be read: what that refers to is not given back until somebody repairs the trees.
    pub damaged: Option<TreeFault>,
}

fn key(level: u64, node: u64) -> u64 {
    level << LEVEL_SHIFT | node
}

impl Trees {
    /// One fewer refers to that.
    pub(super) fn release(&mut self, refers: TreeRefers) -> Result<(), TreeStop> {
        match refers {
            TreeRefers::Nothing => Ok(()),
            TreeRefers::Block(block) => self.add(Of::Blocks, block, -1),
            TreeRefers::Tree { root, .. } if root.is_none() => Ok(()),
            TreeRefers::Tree { kind, root } => {
                if self.give_up(kind, root)? {
                    return Ok(());
                }
                let kind = self.kind(kind, root.node)?;
                let level = match self.fetch(kind, root, None, Bounds::ALL) {
                    Ok(node) => u64::from(node.level()),
                    // What could not be read for once is tried again.
                    Err(TreeStop::Fault(fault)) if !fault.may_pass() => UNREADABLE,
                    Err(stop) => return Err(stop),
                };
                self.doom(level, kind.number, root)
            }
        }
    }

    /// One fewer refers to that node, if that is not the last one.
    fn give_up(&mut self, kind: u8, at: TreePointer) -> Result<bool, TreeStop> {
        match self.count(Of::Nodes, at.node)? {
            0 => {
                let kind = self.kind(kind, at.node)?;
                let fault = NodeFault::Count { says: 0 };
                Err(TreeFault::node(kind.name, at.node, fault).into())
            }
            1 => Ok(false),
            _ => self.add(Of::Nodes, at.node, -1).map(|()| true),
        }
    }

    fn doom(&mut self, level: u64, kind: u8, at: TreePointer) -> Result<(), TreeStop> {
        let mut value = [0; Doomed::BYTES];
        Doomed { at, kind }.put(&mut value);
        let (doomed, before) =
            self.insert_bytes(&DOOMED, self.doomed, key(level, at.node), &value)?;
        self.doomed = doomed;
        match before {
            None => Ok(()),
            // It has been given up twice, and was counted once.
            Some(_) => {
                let fault = NodeFault::Count { says: 1 };
                Err(TreeFault::node(DOOMED.name, at.node, fault).into())
            }
        }
    }

    /// There is something to give back of deleted trees, of what could be read so far.
    pub(super) fn first_doomed(&mut self) -> Result<Option<u64>, TreeStop> {
        let mut first = self.first(&DOOMED, self.doomed, 0)?;
        while let Some(key) = first.filter(|key| self.passed_over.contains(key)) {
            first = self.first(&DOOMED, self.doomed, key + 1)?;
        }
        Ok(first.filter(|key| key >> LEVEL_SHIFT != UNREADABLE))
    }

    /// Gives back what one doomed node refers to, and the node. What cannot be read by now is passed over from then on.
    pub(super) fn reap(&mut self) -> Result<TreeReaped, TreeStop> {
        let Some(first) = self.first_doomed()? else {
            return Ok(TreeReaped { more: false, damaged: None });
        };
        let reaped = self.reap_row(first);
        if let Err(TreeStop::Fault(fault)) = &reaped
            && fault.may_pass()
            && self.passed_over.len() < PASSED_OVER_MAX
        {
            self.passed_over.insert(first);
        }
        reaped
    }

    fn reap_row(&mut self, first: u64) -> Result<TreeReaped, TreeStop> {
        let (doomed, value) = self.remove_bytes(&DOOMED, self.doomed, first)?;
        self.doomed = doomed;
        let node = first & ((1 << LEVEL_SHIFT) - 1);
        let value = value.and_then(|value| Doomed::take(&value[..Doomed::BYTES]));
        let fault = || TreeFault::node(DOOMED.name, node, NodeFault::Value { row: 0 });
        let Doomed { at, kind } =
            value.filter(|doomed| doomed.at.node == node).ok_or_else(fault)?;
        let level = (first >> LEVEL_SHIFT) as u8;
        let damaged = match self.held_by(kind, level, at) {
            Ok((kind, held)) => {
                for refers in held {
                    self.release_below(level, refers)?;
                }
                self.free_node(kind, at)?;
                None
            }
            Err(TreeStop::Fault(fault)) if !fault.may_pass() => {
                self.doom(UNREADABLE, kind, at)?;
                Some(fault)
            }
            Err(stop) => return Err(stop),
        };
        Ok(TreeReaped { more: self.first_doomed()?.is_some(), damaged })
    }

    /// What a node refers to, all of it, with its kind.
    pub(super) fn held_by(
        &mut self,
        kind: u8,
        level: u8,
        at: TreePointer,
    ) -> Result<(&'static TreeKind, Vec<TreeRefers>), TreeStop> {
        let kind = self.kind(kind, at.node)?;
        let node = self.fetch(kind, at, Some(level), Bounds::ALL)?;
        let held: Result<Vec<_>, _> =
            (0..node.rows()).map(|row| refers(kind, at.node, node, row)).collect();
        Ok((kind, held?))
    }

    fn release_below(&mut self, level: u8, refers: TreeRefers) -> Result<(), TreeStop> {
        match refers {
            TreeRefers::Tree { kind, root } if level > 0 => {
                if self.give_up(kind, root)? {
                    return Ok(());
                }
                self.doom(u64::from(level) - 1, kind, root)
            }
            refers => self.release(refers),
        }
    }
}
