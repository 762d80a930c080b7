//! [`TreeState`]: what a label says of the trees of its part (`docs/format.md`, "The state of trees").

use super::{TreeFault, TreePointer};
use crate::meta::LABEL_STATE_BYTES_MAX;

/// So many trees of the user's have their root in the state.
pub const TREE_ROOTS: usize = 4;
/// Bytes of the state: what a user keeps with it stands behind.
pub const TREE_STATE_BYTES: usize = 176;

const STATE_VERSION: u8 = 1;
/// Most nodes, and blocks: the other keys of a map are those of high counts, and those of doomed nodes have a level.
pub(super) const SPACE_MAX: u64 = 1 << 56;

const _: () = assert!(TREE_STATE_BYTES == 64 + 16 * (3 + TREE_ROOTS));
const _: () = assert!(TREE_STATE_BYTES <= LABEL_STATE_BYTES_MAX);

/// How much there is of what trees are made of, or give out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSpace {
    /// How many there are, the one of address 0 included.
    pub total: u64,
    /// How many of them have a count that is not 0.
    pub used: u64,
    /// Nodes of its map.
    pub map_nodes: u64,
    /// The map: what has which count.
    pub map: TreePointer,
}

/// What a commit says. Small: a commit replaces it as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeState {
    /// Of the commit: counts commits, from 1 on. 0 if there was none.
    pub generation: u64,
    /// The nodes themselves. Node 0 is never used.
    pub nodes: TreeSpace,
    /// The blocks of the user's data.
    pub blocks: TreeSpace,
    /// Nodes of deleted trees whose references are still to be given back.
    pub doomed: TreePointer,
    /// Roots of the user's trees.
    pub roots: [TreePointer; TREE_ROOTS],
}

impl TreeState {
    /// Of a part that has so many nodes, and gives out so many blocks, and on which nothing is yet. So a new part needs no node.
    pub fn new(nodes: u64, blocks: u64) -> Self {
        TreeState {
            generation: 0,
            nodes: TreeSpace { total: nodes, ..TreeSpace::default() },
            blocks: TreeSpace { total: blocks, ..TreeSpace::default() },
            doomed: TreePointer::NONE,
            roots: [TreePointer::NONE; TREE_ROOTS],
        }
    }

    /// Both are of the same trees, whichever commit says so.
    pub fn has_trees_of(&self, other: &TreeState) -> bool {
        *self == TreeState { generation: self.generation, ..*other }
    }

    /// It as bytes for a label, with what the user keeps there.
    pub fn encode(&self, rest: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 8];
        out[0] = STATE_VERSION;
        let TreeState { generation, nodes, blocks, .. } = self;
        for number in [
            generation,
            &nodes.total,
            &nodes.used,
            &nodes.map_nodes,
            &blocks.total,
            &blocks.used,
            &blocks.map_nodes,
        ] {
            out.extend(number.to_le_bytes());
        }
        for root in self.all_roots() {
            out.extend(root.to_bytes());
        }
        out.extend(rest);
        out
    }

    /// What these bytes say, and what the user keeps behind.
    ///
    /// # Errors
    /// [`TreeFault::State`]: they say what cannot be, or are of another version; nothing of them was believed.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), TreeFault> {
        let fault = |why| Err(TreeFault::State { why });
        let Some((bytes, rest)) = bytes.split_at_checked(TREE_STATE_BYTES) else {
            return fault("is too short");
        };
        if bytes[0] != STATE_VERSION {
            return fault("is of another version: use the program that wrote it");
        }
        if bytes[1..8] != [0; 7] {
            return fault("has bytes where none has a meaning");
        }
        let number = |index: usize| {
            u64::from_le_bytes(bytes[8 + 8 * index..16 + 8 * index].try_into().expect("8 bytes"))
        };
        let root = |index: usize| TreePointer::from_bytes(&bytes[64 + 16 * index..][..16]);
        let space = |index: usize, map: usize| TreeSpace {
            total: number(index),
            used: number(index + 1),
            map_nodes: number(index + 2),
            map: root(map),
        };
        let state = TreeState {
            generation: number(0),
            nodes: space(1, 0),
            blocks: space(4, 1),
            doomed: root(2),
            roots: std::array::from_fn(|at| root(3 + at)),
        };
        let (nodes, blocks) = (state.nodes, state.blocks);
        if nodes.total > SPACE_MAX || blocks.total > SPACE_MAX {
            return fault("counts more nodes or blocks than there can be");
        }
        if nodes.used > nodes.total || blocks.used > blocks.total {
            return fault("has more nodes or blocks in use than there are");
        }
        if nodes.map_nodes > nodes.used || blocks.map_nodes > nodes.used {
            return fault("has maps of more nodes than are in use");
        }
        let is_wrong = |root: &TreePointer| {
            *root != TreePointer::NONE
                && (root.node == 0
                    || root.node >= nodes.total
                    || root.generation == 0
                    || root.generation > state.generation)
        };
        if state.all_roots().iter().any(is_wrong) {
            return fault("names a root that cannot be");
        }
        Ok((state, rest))
    }

    fn all_roots(&self) -> [TreePointer; 3 + TREE_ROOTS] {
        let mut roots = [TreePointer::NONE; 3 + TREE_ROOTS];
        roots[..3].copy_from_slice(&[self.nodes.map, self.blocks.map, self.doomed]);
        roots[3..].copy_from_slice(&self.roots);
        roots
    }
}
