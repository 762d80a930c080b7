//! [`Job`]: what a mirror does for somebody, and [`Sub`]: what it has outstanding at a leg for that.

use thinwire_buffer::{SegList, Time};
use thinwire_volume::{Extent, Io, IoError, Op};

use super::lateness::Kind;
use super::reads::AskedOnce;
use super::resync::Copy;
use super::scrub::Look;

/// What an I/O at a leg is for.
pub(super) struct Sub {
    pub leg: u8,
    pub whose: Whose,
    pub kind: Kind,
    /// By [`Mirror::counted`], at the first turn behind its submission; [`Time::NEVER`] before that.
    pub since: Time,
    /// The leg was dropped: nobody waits for it.
    pub is_orphan: bool,
    /// Its answer says that the leg is there.
    pub is_telling: bool,
    /// A flush has something to do once this has succeeded (true), as a write, or failed (false), as the flush before.
    pub leaves: Option<bool>,
}

/// For whom that is.
#[derive(Clone, Copy)]
pub(super) enum Whose {
    Job(u32),
    Read(AskedOnce),
}

/// What is done for somebody: a user, or the mirror itself.
pub(super) struct Job {
    pub task: Task,
    /// Of a user as it came, but for the payload once that was handed down. Of a copy, its range.
    pub io: Io,
    /// It is a read that has its range, or waits for it, because of somebody who writes there.
    pub is_locked: bool,
    /// Of a user's write, so many bytes have been handed down.
    pub sent: u64,
    /// I/Os at legs that have not ended.
    pub pending: u32,
    /// Legs that have done their part, and that have failed some of it.
    pub ok: u8,
    pub failed: u8,
    /// Of those that failed it, the ones that cannot do such a thing: it is no fault of their blocks.
    pub unable: u8,
    /// Of those that failed it, the ones whose bytes do not fit their sums.
    pub bad: u8,
    /// Of those that failed it, the ones that had no room for it.
    pub full: u8,
    /// The first thing that went wrong.
    pub error: Option<IoError>,
    pub data: SegList,
    pub extents: Vec<Extent>,
}

impl Job {
    pub fn new(task: Task, io: Io) -> Self {
        let (ok, failed, unable, bad, full) = (0, 0, 0, 0, 0);
        let (is_locked, sent, pending, error) = (false, 0, 0, None);
        let (data, extents) = (SegList::new(), Vec::new());
        #[rustfmt::skip]
        let job = Job { task, io, is_locked, sent, pending, ok, failed, unable, bad, full, error, data, extents };
        job
    }

    /// What is outstanding of it takes bytes of a leg that count.
    pub fn is_read(&self) -> bool {
        match &self.task {
            Task::User => matches!(self.io.op, Op::Read | Op::BlockStatus),
            Task::Copy(copy) => copy.reads(),
            Task::Look(look) => look.reads(),
            _ => false,
        }
    }
}

pub(super) enum Task {
    /// As its [`Io::op`] says.
    User,
    /// Of a user, completed already: a planted fault.
    Told,
    /// Blocks of bitmaps are written.
    Bits,
    /// A flush, so that regions can be closed that were written before so many writes had ended.
    Close {
        ended: u64,
    },
    Copy(Copy),
    /// All legs are read.
    Look(Box<Look>),
    /// A flush of what was copied.
    Settle,
    /// What it grows by is zeroed, or flushed.
    Grow,
    /// A leg is asked whether it is there.
    Probe,
    /// A part of the bitmaps of a leg is read, from this block on.
    Load {
        leg: usize,
        block: u32,
    },
}
