//! Rows of a tree as it stands on a part, for whoever looks at that without opening anything.

use super::node::{Node, NodePlace};
use super::{NODE_BYTES, TreePointer, TreeRoot, TreeState, TreeValue};
use crate::meta::Label;

/// What a tree has, as far as it can be read.
pub struct SeenRows<V> {
    /// By their keys.
    pub rows: Vec<(u64, V)>,
    /// So many nodes cannot be read, or are others than those that are named there.
    pub bad_nodes: u64,
    /// There is more: as many nodes were read as were asked for.
    pub has_more: bool,
}

/// Reads a tree of the part that has this label, whose state that is, of `nodes_max` nodes at most. `read` is given the offset of each in the part, and reads [`NODE_BYTES`] bytes.
///
/// # Errors
/// Those of `read`.
pub fn rows_of_image<V: TreeValue, E>(
    (label, state): (&Label, &TreeState),
    tree: TreeRoot<V>,
    nodes_max: usize,
    read: &mut dyn FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<SeenRows<V>, E> {
    let mut seen = SeenRows { rows: Vec::new(), bad_nodes: 0, has_more: false };
    let (mut left, mut nodes): (Vec<(TreePointer, Option<u8>)>, _) = (vec![(tree.at, None)], 0);
    while let Some((at, level)) = left.pop().filter(|(at, _)| !at.is_none()) {
        if nodes == nodes_max {
            seen.has_more = true;
            break;
        }
        nodes += 1;
        // As the label says, whatever that is: it may lie.
        let offset = at.node.checked_mul(NODE_BYTES as u64);
        let offset = offset.and_then(|offset| offset.checked_add(label.data_start));
        let is_inside = at.node < state.nodes.total;
        let Some(offset) = offset.filter(|offset| is_inside && *offset < label.data_end()) else {
            seen.bad_nodes += 1;
            continue;
        };
        let bytes = read(offset)?;
        let mut node = Node::unchecked();
        let place = NodePlace { whole: label.whole, address: at.node, nodes: state.nodes.total };
        let is_right = <&[u8; NODE_BYTES]>::try_from(&bytes[..]).is_ok_and(|bytes| {
            node.bytes_mut().copy_from_slice(bytes);
            node.check(place).is_ok()
                && (node.kind(), node.generation()) == (tree.kind.number, at.generation)
                && level.is_none_or(|level| level == node.level())
                && (node.level() > 0 || node.value_bytes() == V::BYTES)
        });
        if !is_right {
            seen.bad_nodes += 1;
            continue;
        }
        for row in 0..node.rows() {
            match node.level() {
                0 => seen.rows.extend(V::take(node.value(row)).map(|value| (node.key(row), value))),
                level => left.push((node.pointer(row), Some(level - 1))),
            }
        }
    }
    seen.rows.sort_by_key(|(key, _)| *key);
    Ok(seen)
}
