//! [`Step`]: how far a cut is, and [`Hold`]: who waits meanwhile.

use thinwire_volume::Op;

use super::{CutError, KnownCut};
use crate::meta::LabelError;

/// Who is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hold {
    Nobody,
    /// Whoever flushes: what its own flush comes to is not known, and one that is done beside it may miss what that has lost.
    Flushes,
    /// Whoever changes something, or flushes.
    Changes,
    All,
}

impl Hold {
    pub(super) fn holds(self, op: Op) -> bool {
        match self {
            Hold::Nobody => false,
            Hold::Flushes => op == Op::Flush,
            Hold::Changes => op.is_write() || op == Op::Flush,
            Hold::All => true,
        }
    }
}

/// What is under way.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Nothing,
    /// Parts are told how an earlier one has ended.
    Settle,
    /// Whether all parts know cuts, and answer.
    Probe,
    Announce,
    Drain,
    Flush,
    Take,
    Ensure,
    Record,
    Keep,
    /// The label is to say again that there is no such cut, since it could not be told otherwise.
    Retract(LabelError),
    Undo(CutError),
    Drop,
    List(Vec<KnownCut>),
}
