//! Putting a row into a tree. Nodes are split on the way down, so that there is always room for a row above.

use super::look::{Bounds, ValueBytes};
use super::{TreeKind, TreePointer, TreeStop, Trees, VALUE_BYTES_MAX};

impl Trees {
    /// Puts a value there: the root from then on, and what was there before, as it stands.
    pub(super) fn insert_bytes(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        key: u64,
        value: &[u8],
    ) -> Result<(TreePointer, Option<ValueBytes>), TreeStop> {
        if root.is_none() {
            let root = self.new_node(kind, 0)?;
            self.edit(root.node).insert(0, key, value);
            return Ok((root, None));
        }
        self.fetch(kind, root, None, Bounds::ALL)?;
        let mut root = self.own(kind, root)?;
        if self.is_full_for(root.node, key) {
            let node = self.edit(root.node);
            let (level, first) = (node.level(), node.key(0));
            let top = self.new_node(kind, level + 1)?;
            self.edit(top.node).insert(0, first, &root.to_bytes());
            self.split(kind, top.node, 0, key)?;
            root = top;
        }
        let (mut at, mut bounds) = (root, Bounds::ALL);
        loop {
            let node = self.edit(at.node);
            if node.level() == 0 {
                return Ok((root, put(node, key, value)));
            }
            let row = node.find_below(key).unwrap_or_else(|| {
                node.set_key(0, key);
                0
            });
            let (mut below, mut below_bounds) = self.own_below(kind, at.node, row, bounds)?;
            if self.is_full_for(below.node, key) {
                self.split(kind, at.node, row, key)?;
                let row = self.edit(at.node).find_below(key).unwrap_or(0);
                (below, below_bounds) = self.own_below(kind, at.node, row, bounds)?;
            }
            (at, bounds) = (below, below_bounds);
        }
    }

    /// Most rows that a node may have: fewer only in tests, for trees that are high and small.
    pub(super) fn rows_max(&self, capacity: usize) -> usize {
        self.rows_max.map_or(capacity, |most| most.min(capacity))
    }

    /// Whether it has no room for what putting that key below it may take.
    fn is_full_for(&mut self, address: u64, key: u64) -> bool {
        let node = &self.cache.get(address).expect("it is owned").node;
        let is_there = node.level() == 0 && node.find(key).is_ok();
        !is_there && node.rows() >= self.rows_max(node.capacity())
    }

    /// Makes two of a full node, which is owned, as the one above it is: in the middle; or, if the key comes behind all of its rows,
    /// near the end, since then more of the kind are likely to follow.
    fn split(
        &mut self,
        kind: &TreeKind,
        parent: u64,
        row: usize,
        key: u64,
    ) -> Result<(), TreeStop> {
        let left = self.edit(parent).pointer(row);
        let node = self.edit(left.node);
        let (rows, level) = (node.rows(), node.level());
        let at = if key > node.key(rows - 1) { rows - 1 } else { rows / 2 };
        let right = self.new_node(kind, level)?;
        let mut moved = self.cache.memory();
        let node = self.edit(left.node);
        moved.copy_from(node);
        node.remove(at..rows);
        let first = moved.key(at);
        self.edit(right.node).append(&moved, at..rows);
        self.cache.give_back(moved);
        self.edit(parent).insert(row + 1, first, &right.to_bytes());
        Ok(())
    }
}

/// Puts a row into a leaf that has room for it.
fn put(node: &mut super::node::Node, key: u64, value: &[u8]) -> Option<ValueBytes> {
    match node.find(key) {
        Ok(row) => {
            let mut before = [0; VALUE_BYTES_MAX];
            before[..value.len()].copy_from_slice(node.value(row));
            node.set_value(row, value);
            Some(before)
        }
        Err(row) => {
            node.insert(row, key, value);
            None
        }
    }
}
