//! [`MirrorDesk`]: what is asked of a mirror that is in use, and how that has ended.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use thinwire_volume::{ErrorKind, Geometry, IoError};

use super::LEGS_MAX;
use crate::meta::Label;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorAsk {
    /// It becomes as large as its legs have become: all of them, in sync.
    Grow,
    /// This leg, counted from 0, is none any more, whether it is there or not. It is off the record, durably, before that has ended.
    Remove(usize),
    /// This leg goes, as by [`Remove`](MirrorAsk::Remove), once another one has all data and that is on record. That has ended when it is known: how far it is stands
    /// in the report of the mirror, and either of both may be removed meanwhile, which ends it.
    Replace {
        /// The one that goes, counted from 0.
        leg: usize,
        /// The one that stays, which was added before.
        by: usize,
    },
    /// There is one leg more, which has nothing yet, and whose part is known by this UUID: that is on record, durably, before that has ended. The answer
    /// has the label that the part is to get before it comes ([`Mirror::return_leg`](super::Mirror::return_leg)). Where a row for a leg is there that no part
    /// has come for, or that of a removed one is free, it is that leg, with the UUID that it has.
    Add {
        /// Random.
        uuid: [u8; 16],
        /// This one, counted from 0, whose row is there already and which has nothing yet.
        leg: Option<usize>,
        /// Nothing is changed: the answer says what would be.
        only_look: bool,
    },
}

/// What becomes a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLeg {
    /// What its part is to say: its content and where its data starts, and its own size, are for whoever writes that.
    pub label: Label,
    /// What it has to do besides.
    pub needs: LegNeeds,
}

/// What a leg has to do of what the mirror has promised as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegNeeds {
    /// Bytes of its blocks, at most.
    pub block_bytes: u32,
    /// Bytes in one I/O, at least.
    pub io_bytes_max: u32,
    /// It can write zeroes without getting them; a discard does that, too.
    pub write_zeroes: bool,
    /// It can say what holds data.
    pub block_status: bool,
}

impl LegNeeds {
    /// What a mirror with this geometry has promised.
    pub fn of(geometry: &Geometry) -> Self {
        let Geometry { block_bytes, io_bytes_max, features, .. } = *geometry;
        let (write_zeroes, block_status) = (features.write_zeroes, features.block_status);
        LegNeeds { block_bytes, io_bytes_max, write_zeroes, block_status }
    }

    /// What a volume with this geometry cannot do of that, if there is any: a sentence whose subject is the volume.
    pub fn misfit(&self, has: &Geometry) -> Option<String> {
        let lacks = |one: bool, other: bool| !one && other;
        let why = if has.block_bytes > self.block_bytes {
            format!(
                "has blocks of {} bytes, and the mirror is in use with blocks of {}: open the mirror again with it, or use another volume",
                has.block_bytes, self.block_bytes
            )
        } else if has.io_bytes_max < self.io_bytes_max {
            format!(
                "takes {} bytes in one I/O, and the mirror is in use with {}: open the mirror again with it",
                has.io_bytes_max, self.io_bytes_max
            )
        } else if lacks(has.features.write_zeroes, self.write_zeroes) {
            // A discard writes zeroes, too.
            "cannot write zeroes, as the mirror has promised: open the mirror again with it".into()
        } else if lacks(has.features.block_status, self.block_status) {
            "cannot say what holds data, as the mirror has promised: open the mirror again with it"
                .into()
        } else {
            return None;
        };
        Some(why)
    }
}

/// How a mirror is once something was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorDone {
    /// How many bytes it has.
    pub bytes: u64,
    /// What was added, or would be.
    pub leg: Option<Box<NewLeg>>,
}

impl MirrorDone {
    /// Nothing but that.
    pub fn of(bytes: u64) -> Self {
        MirrorDone { bytes, leg: None }
    }
}

/// How it has ended.
pub type MirrorAnswer = Result<MirrorDone, MirrorAskError>;

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
    /// There is no room for one more leg.
    Full,
    /// There is such a leg, and it has data, or had.
    HasData {
        /// Counted from 0.
        leg: usize,
    },
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
            MirrorAskError::Full => write!(
                f,
                "it has {LEGS_MAX} legs, and no room for more: the place of one that was removed is free once that is let go of, which a disk of this \
                 machine is when the mirror is opened again"
            ),
            MirrorAskError::HasData { leg } => write!(
                f,
                "leg {leg} (counted from 0) is described like that, and has data, or had: it comes back as what it was, or another disk comes in its place \
                 (`thinwire volume replace`)"
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

/// Number of what nobody has asked for.
const OWN: u64 = 0;

/// The mirror's end of it.
#[derive(Default)]
pub(super) struct DeskEnd {
    pub desk: MirrorDesk,
    /// What is under way.
    busy: Option<u64>,
}

impl DeskEnd {
    /// Somebody waits for something.
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.busy.is_some() || !self.desk.0.borrow().asks.is_empty()
    }

    /// What comes next, if nothing is under way: it is from now on.
    pub fn begin(&mut self) -> Option<MirrorAsk> {
        if self.busy.is_some() {
            return None;
        }
        let (number, ask) = self.desk.0.borrow_mut().asks.pop_front()?;
        self.busy = Some(number);
        Some(ask)
    }

    /// Begins something that nobody has asked for, unless something is under way.
    pub fn begin_own(&mut self) -> bool {
        if self.busy.is_some() {
            return false;
        }
        self.busy = Some(OWN);
        true
    }

    /// It has begun to grow, or has ended that.
    pub fn grows(&self, grows: bool) {
        self.desk.0.borrow_mut().is_growing = grows;
    }

    /// It has ended.
    pub fn end(&mut self, answer: MirrorAnswer) {
        if let Some(number) = self.busy.take().filter(|number| *number != OWN) {
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
