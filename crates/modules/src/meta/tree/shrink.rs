//! Taking rows out of a tree. A node that has become small is joined with one beside it, if both have room in one.

use super::change::refers;
use super::counts::Of;
use super::look::{Bounds, ValueBytes};
use super::{LEVEL_MAX, TreeKind, TreePointer, TreeStop, Trees, VALUE_BYTES_MAX};

/// The nodes from the root on to a leaf, all of them owned: each with the row that leads to the next one.
struct Path {
    nodes: [(TreePointer, usize, Bounds); LEVEL_MAX as usize + 1],
    len: usize,
}

impl Trees {
    /// Takes that key out, if it is there: the root from then on, and what was there.
    pub(super) fn remove_bytes(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        key: u64,
    ) -> Result<(TreePointer, Option<ValueBytes>), TreeStop> {
        let mut value = [0; VALUE_BYTES_MAX];
        let bytes = usize::from(kind.value_bytes);
        if self.find(kind, root, key, &mut value[..bytes])?.is_none() {
            return Ok((root, None));
        }
        let path = self.own_path(kind, root, key)?;
        let (leaf, ..) = path.nodes[path.len - 1];
        let node = self.edit(leaf.node);
        let row = node.find(key).expect("it was found");
        node.remove(row..row + 1);
        Ok((self.join(kind, &path)?, Some(value)))
    }

    /// Takes out keys from `low` to `high`, as many as stand in one leaf, with the references that their values hold: the root from
    /// then on, and the key from which on there may be more.
    pub(super) fn remove_leaf(
        &mut self,
        kind: &TreeKind,
        root: TreePointer,
        low: u64,
        high: u64,
    ) -> Result<(TreePointer, Option<u64>), TreeStop> {
        let first = match self.first(kind, root, low)? {
            Some(first) if first <= high => first,
            _ => return Ok((root, None)),
        };
        let path = self.own_path(kind, root, first)?;
        let (leaf, ..) = path.nodes[path.len - 1];
        let node = self.edit(leaf.node);
        let (Ok(from) | Err(from)) = node.find(first);
        let to = match node.find(high) {
            Ok(row) => row + 1,
            Err(row) => row,
        };
        let next = node.key(to - 1).checked_add(1).filter(|next| *next <= high);
        let mut gone = self.cache.memory();
        gone.copy_from(&self.cache.get(leaf.node).expect("it is owned").node);
        self.edit(leaf.node).remove(from..to);
        let root = self.join(kind, &path)?;
        for row in from..to {
            self.release(refers(kind, leaf.node, &gone, row)?)?;
        }
        self.cache.give_back(gone);
        Ok((root, next))
    }

    fn own_path(&mut self, kind: &TreeKind, root: TreePointer, key: u64) -> Result<Path, TreeStop> {
        self.fetch(kind, root, None, Bounds::ALL)?;
        let (mut at, mut bounds) = (self.own(kind, root)?, Bounds::ALL);
        let mut path = Path { nodes: [(at, 0, bounds); LEVEL_MAX as usize + 1], len: 0 };
        loop {
            let node = self.edit(at.node);
            let row = node.find_below(key).unwrap_or(0);
            let is_leaf = node.level() == 0;
            path.nodes[path.len] = (at, row, bounds);
            path.len += 1;
            if is_leaf {
                return Ok(path);
            }
            (at, bounds) = self.own_below(kind, at.node, row, bounds)?;
        }
    }

    /// Rows were taken out of the leaf at the end of a path: from there upwards, what is empty goes, and what is small is joined.
    /// The root from then on.
    fn join(&mut self, kind: &TreeKind, path: &Path) -> Result<TreePointer, TreeStop> {
        for depth in (1..path.len).rev() {
            let (node, ..) = path.nodes[depth];
            let (parent, row, bounds) = path.nodes[depth - 1];
            let now = self.edit(node.node);
            let (rows, most) = (now.rows(), now.capacity());
            let most = self.rows_max(most);
            if rows == 0 {
                self.edit(parent.node).remove(row..row + 1);
                self.free_node(kind, node)?;
            } else if rows <= most / 3 {
                let left = row.saturating_sub(1);
                self.join_pair(kind, parent.node, left, most, bounds)?;
            }
        }
        let (mut root, ..) = path.nodes[0];
        loop {
            let node = self.edit(root.node);
            let (rows, level) = (node.rows(), node.level());
            if rows > 1 || rows == 1 && level == 0 {
                return Ok(root);
            }
            let below = if rows == 1 { node.pointer(0) } else { TreePointer::NONE };
            self.free_node(kind, root)?;
            // Only what is owned is looked at again: the rest was no smaller before.
            if below.is_none() || below.generation != self.generation {
                return Ok(below);
            }
            if !kind.is_own() && self.count(Of::Nodes, below.node)? > 1 {
                return Ok(below);
            }
            root = below;
        }
    }

    /// Makes one of the nodes below two rows, if it leaves room for more.
    fn join_pair(
        &mut self,
        kind: &TreeKind,
        parent: u64,
        left: usize,
        most: usize,
        bounds: Bounds,
    ) -> Result<(), TreeStop> {
        let right = left + 1;
        if right >= self.edit(parent).rows() {
            return Ok(());
        }
        let mut together = 0;
        for row in [left, right] {
            let node = self.edit(parent);
            let (at, level) = (node.pointer(row), node.level() - 1);
            let bounds = bounds.of_row(node, row);
            together += self.fetch(kind, at, Some(level), bounds)?.rows();
        }
        if together > most - most / 4 {
            return Ok(());
        }
        let (kept, _) = self.own_below(kind, parent, left, bounds)?;
        let (gone, _) = self.own_below(kind, parent, right, bounds)?;
        let mut moved = self.cache.memory();
        moved.copy_from(&self.cache.get(gone.node).expect("it is owned").node);
        let rows = moved.rows();
        self.edit(kept.node).append(&moved, 0..rows);
        self.cache.give_back(moved);
        self.edit(parent).remove(right..right + 1);
        self.free_node(kind, gone)
    }
}
