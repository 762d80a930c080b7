//! [`MirrorDesk`]: what is asked of a mirror that is in use, and how that has ended.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use thinwire_volume::{ErrorKind, IoError};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorAsk {
    /// It becomes as large as its legs have become: all of them, in sync.
    Grow,
    /// This leg, counted from 0, is none any more, whether it is there or not. It is off the record, durably, before that has ended.
    Remove(usize),
}

/// How it has ended: how many bytes the mirror has by then.
pub type MirrorAnswer = Result<u64, MirrorAskError>;

/// Why it was not done. Unless that is said, nothing of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorAskError {
    /// It is open for reading.
    ReadOnly,
    /// This leg is not there, or not in sync, and all have to be.
    NotInSync {
        /// Counted from 0.
        leg: usize,
    },
    /// Nor is any leg larger than it, or this one is not.
    NoRoom {
        /// Counted from 0.
        leg: usize,
    },
    /// Its bitmaps tell of no more bytes than these.
    Bitmaps {
        /// So many.
        bytes: u64,
    },
    /// There is no such leg.
    NoLeg {
        /// Counted from 0.
        leg: usize,
    },
    /// A mirror has no fewer legs.
    Two,
    /// No other leg has all data.
    LastInSync {
        /// Counted from 0.
        leg: usize,
    },
    /// What it would have grown by could not be zeroed on a leg, or not be flushed.
    Failed(IoError),
    /// A leg was dropped meanwhile.
    Dropped,
    /// The mirror has ended, or stopped, meanwhile: it was done, or it was not.
    Closed,
}

impl fmt::Display for MirrorAskError {
    /// A sentence whose subject is the mirror.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MirrorAskError::ReadOnly => f.write_str("it is open for reading only"),
            MirrorAskError::NotInSync { leg } => write!(
                f,
                "leg {leg} (counted from 0) is not in sync, and all have to be: wait for its resync, bring it back, or remove it first"
            ),
            MirrorAskError::NoRoom { leg } => write!(
                f,
                "leg {leg} (counted from 0) has no room for more, and a mirror is as large as the smallest: make all of them larger first, or put \
                 larger ones in their places (`thinwire volume replace`)"
            ),
            MirrorAskError::Bitmaps { bytes } => write!(
                f,
                "its bitmaps have no room for what {bytes} bytes would be followed by: make a larger mirror, and copy all to that"
            ),
            MirrorAskError::NoLeg { leg } => {
                write!(f, "it has no leg {leg} (counted from 0): `thinwire volume status` shows those that it has")
            }
            MirrorAskError::Two => f.write_str(
                "it has two legs, and a mirror has no fewer: put another disk in the place of that one (`thinwire volume replace`)",
            ),
            MirrorAskError::LastInSync { leg } => write!(
                f,
                "no other leg than {leg} (counted from 0) has all data: wait for the resync of another one"
            ),
            MirrorAskError::Failed(error) => {
                write!(f, "what it would have grown by cannot be written on a leg: {error}")
            }
            MirrorAskError::Dropped => {
                f.write_str("a leg was dropped meanwhile: try again when it is in sync")
            }
            MirrorAskError::Closed => {
                f.write_str("it has ended meanwhile: it was done, or it was not")
            }
        }
    }
}

impl std::error::Error for MirrorAskError {}

#[derive(Default)]
struct Inner {
    last: u64,
    asks: VecDeque<(u64, MirrorAsk)>,
    ended: Vec<(u64, MirrorAnswer)>,
    is_closed: bool,
    is_growing: bool,
}

/// By which a mirror is asked for something. A handle: clones are of the same mirror.
#[derive(Clone, Default)]
pub struct MirrorDesk(Rc<RefCell<Inner>>);

impl MirrorDesk {
    /// Asks for something, which is done behind what was asked before. Its number is that under which it ends.
    pub fn ask(&self, ask: MirrorAsk) -> u64 {
        let inner = &mut *self.0.borrow_mut();
        inner.last += 1;
        let number = inner.last;
        match inner.is_closed {
            true => inner.ended.push((number, Err(MirrorAskError::Closed))),
            false => inner.asks.push_back((number, ask)),
        }
        number
    }

    /// Appends what has ended since the last call, and how.
    pub fn poll_ended(&self, ended: &mut Vec<(u64, MirrorAnswer)>) {
        ended.append(&mut self.0.borrow_mut().ended);
    }

    /// How that of this number has ended, once it has.
    pub fn take_ended(&self, number: u64) -> Option<MirrorAnswer> {
        let ended = &mut self.0.borrow_mut().ended;
        let at = ended.iter().position(|(of, _)| *of == number)?;
        Some(ended.remove(at).1)
    }

    /// It is growing, or about to: what is asked for now begins behind that.
    pub fn is_growing(&self) -> bool {
        let inner = self.0.borrow();
        inner.is_growing || inner.asks.iter().any(|(_, ask)| *ask == MirrorAsk::Grow)
    }

    /// The mirror is gone.
    pub fn is_closed(&self) -> bool {
        self.0.borrow().is_closed
    }
}

/// The mirror's end of it.
#[derive(Default)]
pub(super) struct DeskEnd {
    pub desk: MirrorDesk,
    /// What is under way.
    busy: Option<u64>,
}

impl DeskEnd {
    /// What comes next, if nothing is under way: it is from now on.
    pub fn begin(&mut self) -> Option<MirrorAsk> {
        if self.busy.is_some() {
            return None;
        }
        let (number, ask) = self.desk.0.borrow_mut().asks.pop_front()?;
        self.busy = Some(number);
        Some(ask)
    }

    /// It has begun to grow, or has ended that.
    pub fn grows(&self, grows: bool) {
        self.desk.0.borrow_mut().is_growing = grows;
    }

    /// It has ended.
    pub fn end(&mut self, answer: MirrorAnswer) {
        if let Some(number) = self.busy.take() {
            self.desk.0.borrow_mut().ended.push((number, answer));
        }
    }

    /// Nothing more is done.
    pub fn close(&mut self) {
        self.end(Err(MirrorAskError::Closed));
        let inner = &mut *self.desk.0.borrow_mut();
        let left = inner.asks.drain(..).map(|(number, _)| (number, Err(MirrorAskError::Closed)));
        inner.ended.extend(left);
        (inner.is_closed, inner.is_growing) = (true, false);
    }
}

impl Drop for DeskEnd {
    fn drop(&mut self) {
        self.close();
    }
}

/// Which of both an I/O that has failed leaves.
pub(super) fn failed(error: Option<IoError>, otherwise: IoError) -> MirrorAskError {
    match error.unwrap_or(otherwise) {
        IoError { kind: ErrorKind::Fenced, .. } => MirrorAskError::Closed,
        error => MirrorAskError::Failed(error),
    }
}
