//! Cuts: snapshots of all that a volume is made of, taken as one: the volume stands over several pools, here or at targets, and what is
//! taken is one moment of it. Rule 13; what is kept of a cut, and where, is in `docs/format.md`, "Cuts".
//!
//! *Where it stands*: [`CutVolume`] is a layer over the volume on top, the only one that writes to what that is made of; its first part is a
//! [`Recorder`], whose label says which cut there is.
//!
//! *A cut*, asked for by [`Cutter::ask`]: the label says what is begun. Then changes are held back, those under way end, all is flushed, and
//! each part makes its snapshot ([`Op::Cut`]): only then do changes go on. If all of that took longer than [`HOLD_MAX`], or failed anywhere,
//! whatever snapshots there are go again. Else they are made durable, the label says that there is a cut, and each part is told to keep its
//! snapshot, which nobody can use before.
//!
//! *After a crash* the label says what was begun: if it says that there is such a cut, all parts have it, and are told to keep it; else those
//! that have it drop it. That is done when the volume is polled first, and before the next cut.
//!
//! | rule | the sequence without it |
//! |---|---|
//! | changes are held at the top | W1 is acknowledged on one part, then W2 on another: a cut has W2 and not W1 |
//! | those under way end first | a write to two parts is in the snapshot of one, and not in that of the other |
//! | no longer than a second, and what comes late does not count | a part that is away gets its order when it is back, and its snapshot is of then |
//! | who flushes waits for its own flush, however late | that fails behind a flush of a user, which was told that all is durable |
//! | the label behind all parts | power fails while some have a snapshot: half a cut is told of |
//! | all are durable before the label | power fails: the label says that there is a cut, and a part has lost its snapshot |
//! | nobody uses what is not kept | a snapshot of a cut that came to nothing is read before somebody drops it |
//! | what is begun is announced | power fails while some have a snapshot, and nobody ever knows to whom those belong |

mod reading;
mod record;
mod steps;
#[cfg(test)]
mod tests;
mod volume;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use thinwire_volume::{ErrorKind, IoError};

use crate::meta::LabelError;

pub use reading::{OfCut, cut_of, identity_of_cut};
pub use record::{CUT_LABEL_TOKEN, CutRecord, Recorder};
pub use volume::CutVolume;

/// So long changes are held back at most. What takes longer comes to nothing.
pub const HOLD_MAX: Duration = Duration::from_secs(1);
/// Parts that could not be told how a cut has ended are told again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The name under which its own errors appear.
const NAME: &str = "cuts";

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutAsk {
    /// A snapshot of the whole.
    Take {
        /// What identifies it: random, not 0.
        id: u64,
        /// What people call it: 1 to [`CUT_NAME_BYTES_MAX`](thinwire_volume::CUT_NAME_BYTES_MAX) bytes without control characters.
        name: String,
        /// Now, in seconds since 1970; 0 if that is not known.
        at: u64,
    },
    /// That one is no more.
    Drop {
        /// What identifies it.
        id: u64,
    },
    /// Which there are.
    List,
}

/// A cut that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCut {
    /// What identifies it.
    pub id: u64,
    /// When it was taken, in seconds since 1970; 0 if that is not known.
    pub at: u64,
    /// What people call it.
    pub name: String,
}

/// Those that were asked for, in the order of their names; none of anything else that was done. Or why it was not.
pub type CutResult = Result<Vec<KnownCut>, CutError>;

/// Why it was not done. Unless that is said, nothing of it is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutError {
    /// The volume cannot be written here.
    ReadOnly,
    /// Something above it acknowledges writes before they come here.
    Buffered,
    /// A part has yet to be told of what came to nothing before, or was done, and cannot be.
    Unsettled(IoError),
    /// The label of the first part could not be written before anything was begun.
    Label(LabelError),
    /// Nor could it be said whether there is a cut: whoever opens the volume next finds out.
    InDoubt(LabelError),
    /// What was under way, the flush or the snapshots took too long.
    Late,
    /// What is to be in it could not be flushed.
    Unflushed(IoError),
    /// The volume was let go of meanwhile: it was done, or it was not.
    Closed,
    /// A part could not do it.
    Part(IoError),
    /// A part could not drop it: others may have, and those that have not do it when the volume is opened the next time.
    Undropped(IoError),
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = |error: &IoError| {
            match error.kind {
            ErrorKind::Unsupported => "one of the parts has no snapshots: each has to be a volume of a pool, or the export of one".to_owned(),
            ErrorKind::Invalid => "one of the parts has something of that name, or that would be longer than 63 bytes there, or something else uses the snapshot".to_owned(),
            ErrorKind::Away => format!("not all parts are there, and of a mirror not all legs are in sync: try again when they are ({error})"),
            _ => error.to_string(),
        }
        };
        match self {
            CutError::ReadOnly => f.write_str("the volume is open for reading only"),
            CutError::Buffered => f.write_str(
                "a cache above it has told its users that writes are done which are in memory yet (`write_back`): detach what is above, and try again",
            ),
            CutError::Unsettled(error) => write!(
                f,
                "not all parts have heard how an earlier one has ended, so nothing was begun: {}",
                why(error)
            ),
            CutError::Label(error) => write!(f, "nothing was begun: the first part {error}"),
            CutError::InDoubt(error) => write!(
                f,
                "it was done or not, which is found out when the volume is opened again: the first part {error}"
            ),
            CutError::Late => write!(
                f,
                "not all parts answered within {} s, and nobody is held for longer: nothing was done; try again when they answer",
                HOLD_MAX.as_secs()
            ),
            CutError::Unflushed(error) => {
                write!(f, "what was written could not be flushed, so nothing was done: {error}")
            }
            CutError::Closed => {
                f.write_str("the volume was closed meanwhile: it was done, or it was not")
            }
            CutError::Part(error) => f.write_str(&why(error)),
            CutError::Undropped(error) => write!(
                f,
                "not all parts could delete it, which they do when the volume is opened the next time that they can: {}",
                why(error)
            ),
        }
    }
}

impl std::error::Error for CutError {}

/// Counts what is asked for, from 1 on.
pub type CutNumber = u64;

/// A fault planted in it, which its tests must find. No flag sets one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutCanary {
    /// None: as it is.
    #[default]
    None,
    /// Nobody is held back.
    NoHold,
    /// What is under way is not waited for.
    NoDrain,
    /// The label says that there is a cut before all parts have taken it.
    EarlyRecord,
    /// Whether the snapshots are durable is not asked.
    NotEnsured,
    /// What some parts have of a cut that came to nothing they keep.
    HalvesStay,
    /// It is told of before it is on record.
    ToldEarly,
    /// What came too late counts all the same.
    LateCounts,
    /// Users flush while its own flush has yet to end, and are told what comes of theirs.
    FlushBesideFlush,
}

#[derive(Default)]
struct Desk {
    last: CutNumber,
    asks: VecDeque<(CutNumber, CutAsk)>,
    /// One of them has begun.
    is_busy: bool,
    /// The volume is gone.
    is_closed: bool,
    ended: Vec<(CutNumber, CutResult)>,
}

/// By which a [`CutVolume`] is asked for cuts. A handle: clones are of the same volume.
#[derive(Clone)]
pub struct Cutter(Rc<RefCell<Desk>>);

impl Cutter {
    /// Asks for something, which is done behind what was asked before. Its number is that under which it ends.
    pub fn ask(&self, ask: CutAsk) -> CutNumber {
        let desk = &mut *self.0.borrow_mut();
        desk.last += 1;
        match desk.is_closed {
            true => desk.ended.push((desk.last, Err(CutError::Closed))),
            false => desk.asks.push_back((desk.last, ask)),
        }
        desk.last
    }

    /// Appends what has ended since the last call, and how.
    pub fn poll_ended(&self, ended: &mut Vec<(CutNumber, CutResult)>) {
        ended.append(&mut self.0.borrow_mut().ended);
    }

    /// The volume is gone, and nothing more is done.
    pub fn is_closed(&self) -> bool {
        self.0.borrow().is_closed
    }

    /// Both are of the same volume.
    pub fn is(&self, other: &Cutter) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Nothing is asked for, or under way.
    pub fn is_idle(&self) -> bool {
        let desk = self.0.borrow();
        desk.asks.is_empty() && !desk.is_busy
    }
}
