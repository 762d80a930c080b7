//! Looking into trees: each attempt sees one state of them, and what it lacks is asked for.

use super::counts::Of;
use super::node::Node;
use super::{NodeFault, TreeFault, TreeKind, TreePointer, TreeStop, Trees, VALUE_BYTES_MAX};

/// Bytes of any value.
pub(super) type ValueBytes = [u8; VALUE_BYTES_MAX];

/// Which keys may stand below a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub low: u64,
    pub high: u64,
}

impl Bounds {
    pub const ALL: Bounds = Bounds { low: 0, high: u64::MAX };

    /// Those of what is below a row of a node with these.
    pub fn of_row(self, node: &Node, row: usize) -> Self {
        let is_last = row + 1 == node.rows();
        let high = if is_last { self.high } else { node.key(row + 1) - 1 };
        Bounds { low: node.key(row), high }
    }

    /// Whether all keys of a node are within.
    pub fn check(self, node: &Node) -> Result<(), NodeFault> {
        match node.ends() {
            Some((first, _)) if first < self.low => Err(NodeFault::Range { key: first }),
            Some((_, last)) if last > self.high => Err(NodeFault::Range { key: last }),
            _ => Ok(()),
        }
    }
}

/// Whether a node is the one that is named, of a tree of that kind.
fn check_fit(
    node: &Node,
    kind: &TreeKind,
    at: TreePointer,
    level: Option<u8>,
) -> Result<(), NodeFault> {
    let says = node.generation();
    if says != at.generation {
        return Err(NodeFault::Generation { says, wants: at.generation });
    }
    let is_kind = node.level() > 0 || node.value_bytes() == usize::from(kind.value_bytes);
    if node.kind() != kind.number || !is_kind {
        return Err(NodeFault::Kind { says: node.kind() });
    }
    match level {
        Some(wants) if wants != node.level() => Err(NodeFault::Level { says: node.level(), wants }),
        _ => Ok(()),
    }
}

impl Trees {
    /// The node that is named, of a tree of that kind; with its level, unless it is a root.
    pub(super) fn fetch(
        &mut self,
        kind: &TreeKind,
        at: TreePointer,
        level: Option<u8>,
        bounds: Bounds,
    ) -> Result<&Node, TreeStop> {
        let fault = |fault| TreeStop::Fault(TreeFault::node(kind.name, at.node, fault));
        match self.cache.get(at.node) {
            Some(slot) => {
                check_fit(&slot.node, kind, at, level).map_err(fault)?;
                bounds.check(&slot.node).map_err(fault)?;
                Ok(&slot.node)
            }
            None if at.node == 0 || at.node >= self.nodes_total => Err(fault(NodeFault::Outside)),
            None => match self.cache.fault(at.node) {
                Some(known) => Err(fault(known.clone())),
                None => {
                    if !self.wanted.contains(&at.node) && !self.is_reading(at.node) {
                        self.wanted.push_back(at.node);
                    }
                    Err(TreeStop::Wait)
                }
            },
        }
    }

    /// Copies the value of that key, if there is one: the node and the row that have it.
    pub(super) fn find(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        key: u64,
        value: &mut [u8],
    ) -> Result<Option<(u64, usize)>, TreeStop> {
        if root.is_none() {
            return Ok(None);
        }
        let (mut at, mut level, mut bounds) = (root, None, Bounds::ALL);
        loop {
            let node = self.fetch(kind, at, level, bounds)?;
            if node.level() == 0 {
                let Ok(row) = node.find(key) else { return Ok(None) };
                value.copy_from_slice(node.value(row));
                return Ok(Some((at.node, row)));
            }
            let Some(row) = node.find_below(key) else { return Ok(None) };
            level = Some(node.level() - 1);
            bounds = bounds.of_row(node, row);
            at = node.pointer(row);
        }
    }

    /// Shows the rows of one leaf from that key on, in order: of the leaf that it belongs to, so there may be none. Says with which
    /// key the next leaf begins, if there is one.
    pub(super) fn leaf(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        from: u64,
        show: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Option<u64>, TreeStop> {
        self.leaf_within(kind, root, from, show).map_err(|(stop, _)| stop)
    }

    /// As [`Trees::leaf`]; what stops it comes with the keys that are below the node in question.
    pub(super) fn leaf_within(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        from: u64,
        show: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Option<u64>, (TreeStop, Bounds)> {
        if root.is_none() {
            return Ok(None);
        }
        let (mut at, mut level, mut bounds) = (root, None, Bounds::ALL);
        loop {
            let node = self.fetch(kind, at, level, bounds).map_err(|stop| (stop, bounds))?;
            if node.level() == 0 {
                let (Ok(first) | Err(first)) = node.find(from);
                (first..node.rows()).for_each(|row| show(node.key(row), node.value(row)));
                return Ok(bounds.high.checked_add(1));
            }
            let row = node.find_below(from).unwrap_or(0);
            level = Some(node.level() - 1);
            bounds = bounds.of_row(node, row);
            at = node.pointer(row);
        }
    }

    /// The last key below the highest node on the way to that key that other trees have, too; none if there is no such node.
    pub(super) fn shared_end(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        key: u64,
    ) -> Result<Option<u64>, TreeStop> {
        if root.is_none() {
            return Ok(None);
        }
        let (mut at, mut level, mut bounds) = (root, None, Bounds::ALL);
        loop {
            if self.count(Of::Nodes, at.node)? > 1 {
                return Ok(Some(bounds.high));
            }
            let node = self.fetch(kind, at, level, bounds)?;
            if node.level() == 0 {
                return Ok(None);
            }
            let row = node.find_below(key).unwrap_or(0);
            level = Some(node.level() - 1);
            bounds = bounds.of_row(node, row);
            at = node.pointer(row);
        }
    }

    /// The first key from that one on.
    pub(super) fn first(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        from: u64,
    ) -> Result<Option<u64>, TreeStop> {
        let mut next = Some(from);
        // The second leaf has keys, if there is one.
        while let Some(from) = next {
            let mut first = None;
            next = self.leaf(kind, root, from, &mut |key, _| _ = first.get_or_insert(key))?;
            if first.is_some() {
                return Ok(first);
            }
        }
        Ok(None)
    }
}
