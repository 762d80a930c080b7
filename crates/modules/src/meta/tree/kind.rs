//! [`TreeKind`]: what stands in the leaves of a tree, and what that refers to; [`TreeRoot`]: a tree, for whoever uses it.

use std::marker::PhantomData;

use super::TreePointer;
use super::node::is_value_bytes;

/// Kinds below this are the engine's own.
pub const TREE_KIND_FIRST: u8 = 16;

/// What a tree maps its keys to.
pub trait TreeValue: Copy {
    /// Bytes of one: a multiple of 8 from 8 to [`VALUE_BYTES_MAX`](super::VALUE_BYTES_MAX).
    const BYTES: usize;

    /// Writes it, into so many bytes, all of them zero.
    fn put(&self, out: &mut [u8]);

    /// What so many bytes say; nothing if they say what cannot be.
    fn take(bytes: &[u8]) -> Option<Self>;

    /// What it holds one reference of.
    fn refers(&self) -> TreeRefers {
        TreeRefers::Nothing
    }
}

impl TreeValue for u64 {
    const BYTES: usize = 8;

    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// What a value holds a reference of: it is counted once for each value in each node that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeRefers {
    /// Nothing that is counted.
    Nothing,
    /// A block of the user's data.
    Block(u64),
    /// A tree.
    Tree {
        /// Number of its kind.
        kind: u8,
        /// Its root; none refers to nothing.
        root: TreePointer,
    },
}

/// A kind of trees. A user has a table of all that there are, which never changes while a part has nodes of them.
pub struct TreeKind {
    /// In each node of such a tree: [`TREE_KIND_FIRST`] or above, and no other's.
    pub number: u8,
    /// What such trees are for, in the plural, as in "tree of volumes".
    pub name: &'static str,
    pub(super) value_bytes: u16,
    pub(super) refers: fn(&[u8]) -> Option<TreeRefers>,
}

impl TreeKind {
    /// Of trees with such values.
    pub const fn of<V: TreeValue>(number: u8, name: &'static str) -> Self {
        assert!(is_value_bytes(V::BYTES), "a value has 8 to 64 bytes");
        TreeKind { number, name, value_bytes: V::BYTES as u16, refers: refers_of::<V> }
    }

    /// The engine's: no node of it is ever shared.
    pub(super) fn is_own(&self) -> bool {
        self.number < TREE_KIND_FIRST
    }
}

fn refers_of<V: TreeValue>(bytes: &[u8]) -> Option<TreeRefers> {
    V::take(bytes).map(|value| value.refers())
}

/// A tree: its root, as it is now. A change returns another one, and then this is none any more; holding one holds a reference of its
/// root, until it is put into another tree, or into the state of a commit, or is deleted.
#[derive(Clone, Copy)]
pub struct TreeRoot<V> {
    pub(super) kind: &'static TreeKind,
    /// Where its root is; none if it is empty.
    pub at: TreePointer,
    values: PhantomData<V>,
}

impl<V: TreeValue> TreeRoot<V> {
    /// The tree of that kind whose root is there.
    ///
    /// # Panics
    /// If trees of that kind have values of another size.
    pub fn new(kind: &'static TreeKind, at: TreePointer) -> Self {
        assert_eq!(usize::from(kind.value_bytes), V::BYTES, "values of trees of {}", kind.name);
        TreeRoot { kind, at, values: PhantomData }
    }

    /// One without keys: it takes no node.
    ///
    /// # Panics
    /// As [`TreeRoot::new`].
    pub fn empty(kind: &'static TreeKind) -> Self {
        Self::new(kind, TreePointer::NONE)
    }

    pub(super) fn at(self, at: TreePointer) -> Self {
        TreeRoot { at, ..self }
    }
}

impl<V> std::fmt::Debug for TreeRoot<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tree of {} at {:?}", self.kind.name, self.at)
    }
}
