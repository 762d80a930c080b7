//! [`PoolOp`]: what is done to volumes as a whole. Each is one change of the trees, made when its volume is quiet, and has ended
//! when a commit has made it durable.

mod changes;
mod cuts;
mod measure;
mod reaping;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{CutAct, CutOrder, ErrorKind, KeptWriter, VolumeEvent};

use self::cuts::Asked;
use self::measure::Measure;
use super::commit::Stopped;
use super::opening::Phase;
use super::{Core, PoolCanary};
use crate::meta::tree::{TreeFault, TreeStop};

/// So long writers are held for what is under way of others; then nothing is cut.
const HOLD_MAX: Duration = Duration::from_secs(10);
/// Nodes of deleted volumes that are given back between two polls: while somebody uses the pool, and while nobody does.
const REAPED_MAX: [u32; 2] = [2, 16];

/// Counts operations, from 1 on since the pool was opened.
pub type OpNumber = u64;

/// Something to be done to a volume. Names have 1 to [`VOLUME_NAME_BYTES_MAX`](super::VOLUME_NAME_BYTES_MAX) bytes without control characters, each
/// once in the pool; an `incarnation` is a random number that was never used before; `at` is now, in seconds since 1970, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are what their names say, in the words above")]
pub enum PoolOp {
    /// A new volume of so many bytes, a multiple of 4096, all zero.
    Create { name: String, bytes: u64, incarnation: u64, at: u64 },
    /// What a volume is now, read-only. Writes wait while those under way end.
    Snapshot { volume: u64, name: String, incarnation: u64, at: u64 },
    /// What a volume or a snapshot is now, to be written. Likewise.
    Clone { volume: u64, name: String, incarnation: u64, at: u64 },
    /// A volume is again what it was when that snapshot of it was taken; its size stays. It must not be open; whoever remembers
    /// something of it finds another incarnation (rule 23).
    RollBack { volume: u64, to: u64, incarnation: u64 },
    /// A volume is no more. It must not be open. Its blocks come back in small steps, later.
    Delete { volume: u64 },
    /// A volume is larger from now on: so many bytes, a multiple of 4096.
    Resize { volume: u64, bytes: u64 },
    /// A volume is called otherwise.
    Rename { volume: u64, name: String },
    /// How much room a volume has for itself: what comes back if it is deleted.
    Measure { volume: u64 },
    /// What an [`Op::Cut`](thinwire_volume::Op::Cut) asks for. One that is taken has ended once no later write is in it.
    Cut { volume: u64, order: CutOrder },
    /// What an [`Op::StoreWriter`](thinwire_volume::Op::StoreWriter) asks for: a volume has that writer as an export.
    StoreWriter { volume: u64, kept: Box<KeptWriter> },
}

/// What an operation has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolDone {
    /// There is a new volume.
    Created {
        /// Its number.
        volume: u64,
    },
    /// That was it.
    Done,
    /// How a volume is made up, at about the same time.
    Measured {
        /// Bytes of blocks that nobody else refers to.
        own_bytes: u64,
        /// Bytes of the others.
        shared_bytes: u64,
    },
}

/// Why an operation was not done. Nothing of it was, unless a commit has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// The pool is still being read.
    NotReady,
    /// It is open for reading.
    ReadOnly,
    /// There is no such volume.
    NoVolume {
        /// The number.
        volume: u64,
    },
    /// Another volume is called that.
    NameTaken {
        /// The volume that is.
        volume: u64,
    },
    /// Nothing can be called that.
    BadName {
        /// A sentence whose subject is a name.
        why: &'static str,
    },
    /// A volume cannot have that size.
    BadSize {
        /// A sentence whose subject is a volume.
        why: &'static str,
    },
    /// Somebody uses the volume.
    IsOpen {
        /// Its number.
        volume: u64,
    },
    /// It is no snapshot of the volume, or of a snapshot of it.
    NoSnapshot {
        /// What was named.
        volume: u64,
    },
    /// There is no snapshot of that cut.
    NoCut,
    /// It is a snapshot of a cut that is not known to be whole.
    Undecided {
        /// Its number.
        volume: u64,
    },
    /// There is not enough metadata left.
    NoRoom,
    /// There are not enough blocks left for labels, which would have to be copied.
    NoBlocks,
    /// There are as many volumes as there can be.
    TooMany,
    /// There were as many snapshots, clones and rollbacks as there can be.
    NoTime,
    /// Not all volumes are known, so that a new one could take the place or the name of another.
    Damaged(TreeFault),
    /// Writes that were under way have not ended: writers are not held any longer.
    Undrained,
    /// Nothing is changed any more, since a commit or a flush has failed: what was not durable may be lost, this operation too. Or what it takes can be read
    /// here no more, since a part is another's by now, or holds something else.
    Stopped {
        /// How I/Os fail for that.
        kind: ErrorKind,
        /// What has failed.
        why: String,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::NotReady => f.write_str("the pool is still being read, or that volume written: try again soon"),
            PoolError::ReadOnly => f.write_str("the pool is open for reading only"),
            PoolError::NoVolume { volume } => write!(f, "the pool has no volume {volume}"),
            PoolError::NameTaken { volume } => {
                write!(f, "volume {volume} is called that: use another name")
            }
            PoolError::BadName { why } => write!(f, "a name {why}"),
            PoolError::BadSize { why } => write!(f, "a volume {why}"),
            PoolError::IsOpen { volume } => {
                write!(f, "volume {volume} is in use: detach it first")
            }
            PoolError::NoSnapshot { volume } => {
                write!(f, "volume {volume} is no snapshot of that volume")
            }
            PoolError::NoCut => f.write_str("the pool has no snapshot of that cut"),
            PoolError::Undecided { volume } => write!(
                f,
                "volume {volume} is of a cut that may not have come about: open what was cut once for writing, which decides that; or delete it"
            ),
            PoolError::NoRoom => f.write_str(
                "the pool has not enough metadata left: delete snapshots or volumes",
            ),
            PoolError::NoBlocks => f.write_str(
                "the pool has not enough data blocks left: what stands on the volume has labels there, and whoever opens it has to write these, for which room \
                 is kept; delete snapshots or volumes, or discard (fstrim)",
            ),
            PoolError::TooMany => f.write_str("the pool has as many volumes and snapshots as it can have: delete some"),
            PoolError::NoTime => f.write_str(
                "the pool counts snapshots, clones and rollbacks, and has had as many as it can count, 2^28: its volumes serve as before; for more of \
                 these make another pool, and copy volumes to that",
            ),
            PoolError::Damaged(fault) => {
                write!(f, "not all volumes of the pool can be read, so check it first: {fault}")
            }
            PoolError::Undrained => write!(
                f,
                "writes to the volume that were under way have not ended for {} s: try again when its parts answer",
                HOLD_MAX.as_secs()
            ),
            PoolError::Stopped { why, .. } => {
                write!(f, "nothing can be changed until the pool is opened again: {why}")
            }
        }
    }
}

impl std::error::Error for PoolError {}

impl From<TreeFault> for PoolError {
    /// Of what is needed and cannot be read: that is damage, unless the part below is not to be used any more.
    fn from(fault: TreeFault) -> Self {
        match fault.kind() {
            ErrorKind::Io => PoolError::Damaged(fault),
            kind => PoolError::Stopped { kind, why: fault.to_string() },
        }
    }
}

/// Why an operation does not come on.
pub(super) enum OpStop {
    Tree(TreeStop),
    Refused(PoolError),
}

impl From<TreeStop> for OpStop {
    fn from(stop: TreeStop) -> Self {
        OpStop::Tree(stop)
    }
}

impl From<PoolError> for OpStop {
    fn from(error: PoolError) -> Self {
        OpStop::Refused(error)
    }
}

/// An operation that has begun.
struct Current {
    number: OpNumber,
    op: PoolOp,
    /// The handle whose writes wait for it, and since when they do.
    holds: Option<u32>,
    since: Time,
}

/// Operations, and what is done in the background.
pub(super) struct Ops {
    last: OpNumber,
    queue: VecDeque<(OpNumber, PoolOp)>,
    current: Option<Current>,
    /// Done, and to be made durable by that commit.
    pending: Vec<(OpNumber, u64, PoolDone, PoolOp)>,
    measures: VecDeque<Measure>,
    /// Those that were asked for by I/Os.
    asked: Vec<Asked>,
    pub ended: Vec<(OpNumber, Result<PoolDone, PoolError>)>,
    /// Why not all volumes are known.
    pub damaged: Option<TreeFault>,
    read_only: bool,
    /// It waits for the trees, or for a commit.
    is_asleep: bool,
    /// It waits for writes that are under way.
    pub drains: bool,
    /// Deleted volumes are being given back, as far as is known; and that waits.
    reaps: bool,
    reap_sleeps: bool,
    /// Why something does not come back, and when that is tried again.
    pub unreaped: Option<TreeFault>,
    reap_again: Time,
    /// All that is left waits for that; how long it does the next time; and somebody was told of it.
    reap_rests: bool,
    reap_wait: Duration,
    has_told_unreaped: bool,
    /// So much is done in the background before the next poll.
    budget: u32,
}

impl PoolOp {
    /// The volume whose writers have to have ended.
    fn cuts(&self) -> Option<u64> {
        match self {
            PoolOp::Snapshot { volume, .. } | PoolOp::Clone { volume, .. } => Some(*volume),
            PoolOp::Cut { volume, order } if order.act == CutAct::Take => Some(*volume),
            _ => None,
        }
    }
}

impl Ops {
    pub fn new(read_only: bool, repairs: bool) -> Self {
        Ops {
            last: 0,
            queue: VecDeque::new(),
            current: None,
            pending: Vec::new(),
            measures: VecDeque::new(),
            asked: Vec::new(),
            ended: Vec::new(),
            damaged: None,
            read_only,
            is_asleep: false,
            drains: false,
            reaps: !read_only && !repairs,
            reap_sleeps: false,
            unreaped: None,
            reap_again: Time::NEVER,
            reap_rests: false,
            reap_wait: reaping::REAP_AGAIN,
            has_told_unreaped: false,
            budget: 0,
        }
    }

    pub fn push(&mut self, op: PoolOp) -> OpNumber {
        self.last += 1;
        self.queue.push_back((self.last, op));
        self.last
    }

    pub fn wake(&mut self) {
        self.is_asleep = false;
        self.reap_sleeps = false;
    }

    /// Something can be done at once.
    pub fn is_awake(&self) -> bool {
        let has_op = self.current.as_ref().map_or(!self.queue.is_empty(), |_| !self.is_asleep);
        has_op && !self.is_asleep && !self.drains || self.wants_background() && self.budget > 0
    }

    /// Something can be done at the next poll.
    pub fn wants_background(&self) -> bool {
        (self.reaps && !self.reap_rests || !self.measures.is_empty()) && !self.reap_sleeps
    }

    /// There is more to give back.
    pub fn reap(&mut self) {
        (self.reaps, self.reap_rests) = (true, false);
    }

    /// What was deleted is left to whoever opens it next.
    pub fn stop_reaping(&mut self) {
        self.reaps = false;
    }

    /// Has it look for something to give back.
    #[cfg(test)]
    pub fn reap_anew(&mut self) {
        self.reap();
        self.reap_sleeps = false;
    }

    /// When writers are not held any longer, or what could not be read is tried again.
    pub fn next_release(&self) -> Time {
        match &self.current {
            Some(current) if self.drains => self.reap_again.min(current.since + HOLD_MAX),
            _ => self.reap_again,
        }
    }

    /// What could not be read is tried again when its time has come: true then.
    pub fn look_at_time(&mut self, now: Time) -> bool {
        let is_time = now >= self.reap_again;
        if is_time {
            (self.reap_again, self.reap_rests) = (Time::NEVER, false);
        }
        is_time
    }

    pub fn is_reaping(&self) -> bool {
        self.reaps
    }

    /// What is left of deleted volumes cannot be read for now: it may never come back.
    pub fn waits_to_reap(&self) -> bool {
        self.reap_rests
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.current.is_none()
            && self.pending.is_empty()
            && self.measures.is_empty()
            && !self.reaps
    }

    /// A handle whose writes were held is gone.
    pub fn forget_hold(&mut self, slot: u32) {
        if let Some(current) = &mut self.current {
            current.holds = current.holds.filter(|held| *held != slot);
        }
    }
}

impl Core {
    /// So much may be done in the background before the next poll.
    pub(super) fn begin_round(&mut self) {
        self.ops.budget = REAPED_MAX[usize::from(self.users_ios == 0)];
    }

    /// Does what operations can do now.
    pub(super) fn step_ops(&mut self) {
        while self.step_opening() {}
        if self.phase != Phase::Serving {
            return;
        }
        self.end_pending();
        while !self.ops.is_asleep && self.step_op() {}
        while self.ops.wants_background() && self.ops.budget > 0 {
            self.ops.budget -= 1;
            self.step_measure();
            self.step_reap();
        }
    }

    /// Operations that are durable by now have ended.
    fn end_pending(&mut self) {
        if self.ops.pending.is_empty() {
            return;
        }
        let stopped = self.commits.stopped.as_ref().map(Stopped::error);
        let mut pending = std::mem::take(&mut self.ops.pending);
        pending.retain(|(number, commit, done, op)| {
            let is_early =
                self.canary == PoolCanary::DeleteToldEarly && matches!(op, PoolOp::Delete { .. });
            let is_durable = is_early || self.commits.is_durable(*commit);
            if !is_durable && stopped.is_none() {
                return true;
            }
            match op {
                PoolOp::Resize { volume, .. } if is_durable => self.tell_size(*volume),
                PoolOp::StoreWriter { volume, kept } if is_durable => {
                    self.on_writer_stored(*volume, kept);
                }
                _ => {}
            }
            let ended = match &stopped {
                Some(error) if !is_durable => Err(error.clone()),
                _ => Ok(*done),
            };
            self.end_op(*number, ended);
            false
        });
        self.ops.pending = pending;
    }

    /// An open volume is larger, durably.
    fn tell_size(&mut self, volume: u64) {
        let Some(entry) = self.entries.get(&volume) else { return };
        let (Some(slot), bytes) = (entry.slot, entry.row.bytes) else { return };
        let slot = self.slots.get_mut(slot);
        let block = u64::from(slot.geometry.block_bytes);
        slot.geometry.bytes = bytes / block * block;
        slot.tell(VolumeEvent::Resized { bytes: slot.geometry.bytes });
    }

    /// Goes on with the operation whose turn it is. True if there may be more to do.
    fn step_op(&mut self) -> bool {
        if self.ops.current.is_none() {
            let Some((number, op)) = self.ops.queue.pop_front() else { return false };
            match op {
                PoolOp::Measure { volume } => {
                    self.ops.measures.push_back(Measure::new(number, volume));
                    return true;
                }
                op => {
                    let (holds, since) = (None, Time::NEVER);
                    self.ops.current = Some(Current { number, op, holds, since });
                }
            }
        }
        let Some(mut current) = self.ops.current.take() else { return false };
        // Nobody is held back for what a commit takes, if that can be known before.
        let mut is_room = match current.op {
            ref op if op.cuts().is_some() => self.trees.change().map(|_| ()),
            _ => Ok(()),
        };
        // Nor for what will be refused.
        let mut allowed = self.check_op().and_then(|()| self.check_cut(&current.op));
        if allowed.is_ok() && is_room.is_ok() && current.op.cuts().is_some() {
            match self.check_kept(&current.op) {
                Ok(()) => {}
                Err(OpStop::Tree(stop)) => is_room = Err(stop),
                Err(OpStop::Refused(error)) => allowed = Err(error),
            }
        }
        let has_to_wait = matches!(is_room, Err(TreeStop::Wait | TreeStop::Commit));
        self.ops.drains = false;
        if !has_to_wait && allowed.is_ok() && !self.is_drained(&mut current) {
            current.since = current.since.min(self.now);
            if self.now < current.since + HOLD_MAX {
                self.ops.drains = true;
                self.ops.current = Some(current);
                return false;
            }
            allowed = Err(PoolError::Undrained);
        }
        let done = match allowed {
            Err(error) => Err(OpStop::Refused(error)),
            Ok(()) if has_to_wait => is_room.map(|()| PoolDone::Done).map_err(OpStop::Tree),
            Ok(()) => self.apply(&current.op),
        };
        let is_through = !matches!(&done, Err(OpStop::Tree(TreeStop::Wait | TreeStop::Commit)));
        // Before its caller is told, with whom the handle may go.
        if is_through && let Some(slot) = current.holds.take() {
            self.release(slot);
        }
        let ended = match done {
            Ok(done) => {
                self.await_commit(current.number, done, current.op);
                None
            }
            Err(OpStop::Tree(TreeStop::Wait)) => {
                self.ops.current = Some(current);
                self.ops.is_asleep = true;
                return false;
            }
            Err(OpStop::Tree(TreeStop::Commit)) => {
                self.commits.is_wanted = true;
                self.ops.current = Some(current);
                self.ops.is_asleep = true;
                return false;
            }
            Err(OpStop::Tree(TreeStop::NoNodes | TreeStop::NoBlocks)) => Some(PoolError::NoRoom),
            Err(OpStop::Tree(TreeStop::Fault(fault))) => Some(fault.into()),
            Err(OpStop::Refused(error)) => Some(error),
        };
        if let Some(error) = ended {
            self.end_op(current.number, Err(error));
        }
        true
    }

    fn check_op(&self) -> Result<(), PoolError> {
        if self.ops.read_only {
            return Err(PoolError::ReadOnly);
        }
        match &self.commits.stopped {
            Some(stopped) => Err(stopped.error()),
            None => Ok(()),
        }
    }

    /// Whoever writes to what is to be cut has ended; until then others wait.
    fn is_drained(&mut self, current: &mut Current) -> bool {
        let Some(volume) = current.op.cuts() else { return true };
        if self.canary == PoolCanary::CutWithoutDrain {
            return true;
        }
        let Some(slot) = self.entries.get(&volume).and_then(|entry| entry.slot) else {
            // Whoever had it open has gone meanwhile.
            current.holds = None;
            return true;
        };
        current.holds = Some(slot);
        let of = self.slots.get_mut(slot);
        of.is_held = true;
        of.writers == 0
    }

    /// Those who waited come on.
    fn release(&mut self, slot: u32) {
        let of = self.slots.get_mut(slot);
        of.is_held = false;
        while let Some(io) = self.slots.get_mut(slot).waiting.pop_front() {
            self.begin(slot, io);
        }
    }
}
