//! [`TreeFault`] and [`TreeStop`]: why a tree does not say what it was asked.

use std::fmt;

use thinwire_volume::{ErrorKind, IoError};

use super::{LEVEL_MAX, TreePointer};
use crate::meta::LabelError;

/// What is wrong with a node, or with what names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// Its address is none that there is.
    Outside,
    /// Reading it failed.
    Unread(IoError),
    /// All zero: never written, or its write was lost.
    Zero,
    /// It does not begin as a node does.
    Foreign,
    /// The sum is not that of its bytes: a torn write, or bytes that changed since.
    Checksum {
        /// The sum that it says.
        says: u32,
        /// The sum of what is there.
        has: u32,
    },
    /// Intact, of another version of the format.
    Version {
        /// The one that it says.
        version: u16,
    },
    /// Intact, of another whole.
    Whole {
        /// The one that it says.
        says: [u8; 16],
    },
    /// Intact, and belongs elsewhere: a misdirected write.
    Address {
        /// The one that it says.
        says: u64,
    },
    /// Intact, and not what is looked for: the write of that was lost, or the node was given out twice.
    Generation {
        /// The one that it says.
        says: u64,
        /// The one that is looked for.
        wants: u64,
    },
    /// Intact, and not where a node of its level belongs. So does a cycle show.
    Level {
        /// The one that it says.
        says: u8,
        /// The one that belongs there.
        wants: u8,
    },
    /// Intact, and of a tree of another kind.
    Kind {
        /// The one that it says.
        says: u8,
    },
    /// Intact, and yet a field has a value that it cannot have.
    Malformed {
        /// The field, as `docs/format.md` calls it.
        field: &'static str,
    },
    /// Intact, and yet a key is not above the one before it.
    Order {
        /// Its row.
        row: usize,
    },
    /// Intact, and yet it names a node that cannot be below it.
    Pointer {
        /// The row.
        row: usize,
        /// What it names.
        at: TreePointer,
    },
    /// Intact, and yet it has a key that belongs elsewhere.
    Range {
        /// The key.
        key: u64,
    },
    /// Intact, and yet a value is none of its kind.
    Value {
        /// Its row.
        row: usize,
    },
    /// It would be higher than trees can be.
    Deep,
    /// It is in use, and its reference count says that it is not, or has no such value.
    Count {
        /// What it says.
        says: i64,
    },
}

/// What is wrong in a tree, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeFault {
    /// A node.
    Node {
        /// What trees of its kind are for.
        tree: &'static str,
        /// Its address, in nodes.
        node: u64,
        /// What is wrong with it.
        fault: NodeFault,
    },
    /// The count of a block has a value that it cannot have.
    BlockCount {
        /// The block.
        block: u64,
        /// What it says.
        says: i64,
    },
    /// A node could not be written: the commit has failed, and what was committed before it stands.
    Unwritten(IoError),
    /// The data could not be made durable: likewise.
    Unflushed(IoError),
    /// The label could not be written: likewise, or this commit is found, if it says [`LabelError::Unwritten`].
    Label(LabelError),
    /// The user has given up, because what was not durable may have been lost: likewise.
    Lost,
    /// No node was left for a commit, by counts that are wrong: likewise.
    NoReserve,
    /// The state in the label cannot be gone by.
    State {
        /// A sentence whose subject is the state.
        why: &'static str,
    },
}

/// Why something was not done. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeStop {
    /// Something is being read or written: again after the next turn that [says so](super::TreeNews::came).
    Wait,
    /// The transaction is full, or the space that is left is free only after it: again after the next commit.
    Commit,
    /// No node is free, or those that are are kept for commits and for what gives back.
    NoNodes,
    /// No block is free.
    NoBlocks,
    /// Never, as things are.
    Fault(TreeFault),
}

impl TreeFault {
    /// It may be gone when that is tried again: a node was not read, and nothing is known of it.
    pub fn may_pass(&self) -> bool {
        matches!(self, TreeFault::Node { fault: NodeFault::Unread(_), .. })
    }

    /// What an I/O comes to that needed it: of what the volume below has refused for good, such as that another has it, what that says.
    pub fn kind(&self) -> ErrorKind {
        let below = match self {
            TreeFault::Node { fault: NodeFault::Unread(error), .. }
            | TreeFault::Unflushed(error)
            | TreeFault::Unwritten(error) => error.kind,
            _ => ErrorKind::Io,
        };
        match below {
            ErrorKind::Fenced | ErrorKind::ContentChanged => below,
            _ => ErrorKind::Io,
        }
    }

    pub(super) fn node(tree: &'static str, node: u64, fault: NodeFault) -> Self {
        TreeFault::Node { tree, node, fault }
    }
}

impl From<TreeFault> for TreeStop {
    fn from(fault: TreeFault) -> Self {
        TreeStop::Fault(fault)
    }
}

impl fmt::Display for NodeFault {
    /// What stands behind the name of the node.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeFault::Outside => f.write_str("is named, and there is no such node"),
            NodeFault::Unread(error) => write!(f, "cannot be read: {error}"),
            NodeFault::Zero => f.write_str("is all zero: it was never written"),
            NodeFault::Foreign => f.write_str("begins as no node does"),
            NodeFault::Checksum { says, has } => write!(
                f,
                "has the checksum {says:#010x}, and its bytes make {has:#010x}: its write was cut off, or \
                 its bytes have changed since"
            ),
            NodeFault::Version { version } => write!(f, "is of version {version} of the format"),
            NodeFault::Whole { says } => {
                f.write_str("belongs to the whole ")?;
                says.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            NodeFault::Address { says } => {
                write!(f, "says that it is node {says}: it was written to the wrong place")
            }
            NodeFault::Generation { says, wants } => write!(
                f,
                "is of commit {says}, and the one of commit {wants} belongs there: a write was lost"
            ),
            NodeFault::Level { says, wants } => {
                write!(f, "is of level {says}, and one of level {wants} belongs there")
            }
            NodeFault::Kind { says } => write!(f, "is of a tree of another kind ({says})"),
            NodeFault::Malformed { field } => {
                write!(f, "has a field `{field}` that says what cannot be")
            }
            NodeFault::Order { row } => write!(f, "has a key out of order in row {row}"),
            NodeFault::Pointer { row, at: TreePointer { node, generation } } => write!(
                f,
                "names node {node} of commit {generation} in row {row}, which cannot be below it"
            ),
            NodeFault::Range { key } => {
                write!(f, "has the key {key}, which belongs below another node")
            }
            NodeFault::Value { row } => write!(f, "has a value in row {row} that cannot be"),
            NodeFault::Deep => write!(f, "would have a level above {LEVEL_MAX}"),
            NodeFault::Count { says } => {
                write!(f, "is in use, and its reference count is {says}: check the trees")
            }
        }
    }
}

impl fmt::Display for TreeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeFault::Node { tree, node, fault } => {
                write!(f, "tree of {tree}: node {node} {fault}")
            }
            TreeFault::BlockCount { block, says } => {
                write!(
                    f,
                    "block {block} is in use, and its reference count is {says}: check the trees"
                )
            }
            TreeFault::Unwritten(error) => {
                write!(f, "a node could not be written, and the commit before stands: {error}")
            }
            TreeFault::Unflushed(error) => {
                write!(f, "data could not be made durable, and the commit before stands: {error}")
            }
            TreeFault::Label(error) => write!(f, "the commit was not made: the part {error}"),
            TreeFault::Lost => {
                f.write_str("what was not durable may have been lost, and the commit before stands")
            }
            TreeFault::NoReserve => f.write_str(
                "no node was left for the commit, and the one before stands: check the trees",
            ),
            TreeFault::State { why } => write!(f, "the state of the trees {why}"),
        }
    }
}

impl std::error::Error for TreeFault {}

impl fmt::Display for TreeStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeStop::Wait => f.write_str("it has to wait for an I/O"),
            TreeStop::Commit => f.write_str("it has to wait for a commit"),
            TreeStop::NoNodes => f.write_str("no node is free"),
            TreeStop::NoBlocks => f.write_str("no block is free"),
            TreeStop::Fault(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for TreeStop {}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_volume::Op;

    /// Who is fenced below is told so, and goes elsewhere; all else is damage.
    #[test]
    fn what_was_refused_for_good_below_is_told() {
        let error = |kind| IoError { kind, op: Op::Read, offset: 0, len: 4096, module: "puppet" };
        let unread = |kind| TreeFault::node("mapping", 7, NodeFault::Unread(error(kind))).kind();
        assert_eq!(unread(ErrorKind::Fenced), ErrorKind::Fenced);
        assert_eq!(unread(ErrorKind::Away), ErrorKind::Io);
        assert_eq!(TreeFault::Unwritten(error(ErrorKind::Fenced)).kind(), ErrorKind::Fenced);
        assert_eq!(TreeFault::node("mapping", 7, NodeFault::Zero).kind(), ErrorKind::Io);
    }
}
