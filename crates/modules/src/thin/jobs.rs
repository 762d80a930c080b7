//! [`Job`]: what is done for the I/O of a volume, from its submission to its completion, and the order of its steps.

use thinwire_buffer::SegList;
use thinwire_volume::{Completion, ErrorKind, Io, IoError, Op};

use super::provision::Target;
use super::reads::{job_of, owner_of_job};
use super::{Core, NAME, PoolCanary};
use crate::meta::tree::TreeStop;
use crate::pieces::Pieces;

/// How the blocks of an I/O are locked against others of the same volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    No,
    Shared,
    /// For whoever changes where blocks are.
    Exclusive,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has its lock: where are its blocks?
    Look,
    /// Blocks are taken for those that lack one.
    Reserve,
    /// What is around a write in its first and last block is being read.
    Fetch,
    /// Data is being read, or written.
    Move,
    /// New blocks have their data, and get their place.
    Map,
    /// It has to be durable.
    Sync,
    /// It waits for flush and commit.
    Wait,
}

/// What a part of an I/O does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// As its I/O says: reads, block status, flushes.
    Plain,
    /// Writes it, with blocks for all of it.
    Store,
    /// Writes zeroes where there are blocks.
    Blank,
    /// Gives whole blocks back.
    Unmap,
}

pub(super) struct Job {
    pub slot: u32,
    pub volume: u64,
    pub io: Io,
    pub stage: Stage,
    pub held: Held,
    /// It changes something, and counts among the writers of its volume.
    pub is_writer: bool,
    /// I/Os below that have not ended.
    pub pending: u32,
    pub error: Option<IoError>,
    /// The part that is being done: from there on, so many bytes, and how.
    pub at: u64,
    pub len: u64,
    pub act: Act,
    /// New blocks, of the part that is being done.
    pub targets: Vec<Target>,
    /// What stands in the first block before a write, and in the last one behind it.
    pub around: [SegList; 2],
    /// Answers of a read.
    pub data: SegList,
    pub pieces: Pieces,
    /// How often data had been lost when it looked where its blocks are.
    pub losses: u32,
    /// The commit that it waits for; 0 for none.
    pub commit: u64,
    /// What it wrote was durable when it was told to be written.
    pub is_durable: bool,
    /// It is among the few that are given blocks at a time.
    pub is_provisioning: bool,
    /// Room is kept for what it writes.
    pub takes_kept: bool,
}

impl Job {
    #[cold]
    fn unused() -> Box<Self> {
        Box::new(Job {
            slot: 0,
            volume: 0,
            io: Io::new(0, Op::Flush, 0, 0),
            stage: Stage::Look,
            held: Held::No,
            is_writer: false,
            pending: 0,
            error: None,
            at: 0,
            len: 0,
            act: Act::Plain,
            targets: Vec::new(),
            around: [SegList::new(), SegList::new()],
            data: SegList::new(),
            pieces: Pieces::default(),
            losses: 0,
            commit: 0,
            is_durable: false,
            is_provisioning: false,
            takes_kept: false,
        })
    }

    /// Lets go of all data, and keeps the storage of its lists.
    fn empty(&mut self) {
        let [before, behind] = &mut self.around;
        for list in [&mut self.io.data, before, behind, &mut self.data] {
            // Of a read all are, by now.
            if !list.is_empty() {
                *list = SegList::new();
            }
        }
        self.pieces.clear();
        self.targets.clear();
    }

    /// Blocks of the volume that its part touches: the first, and the last.
    pub fn blocks(&self, shift: u8) -> (u64, u64) {
        (self.at >> shift, (self.at + self.len - 1) >> shift)
    }
}

impl Core {
    /// Takes an I/O of a volume.
    pub(super) fn submit(&mut self, slot: u32, io: Io) {
        let to = self.slots.get_mut(slot);
        debug_assert!(io.op.is_record() || to.geometry.check(&io) == Ok(()), "{io:?}");
        to.outstanding += 1;
        self.is_calm &= io.op == Op::Read;
        match io.op {
            Op::Cut => return self.ask_cut(slot, &io),
            Op::LoadWriter | Op::StoreWriter => return self.begin_record(slot, &io),
            _ => {}
        }
        if to.is_held && io.op.is_write() {
            to.waiting.push_back(io);
        } else if io.op != Op::Read || !self.read_at_once(slot, &io) {
            self.begin(slot, io);
        }
        self.settle_jobs();
    }

    /// Begins an I/O that nobody holds back.
    pub(super) fn begin(&mut self, slot: u32, io: Io) {
        let to = self.slots.get_mut(slot);
        let error = if io.op.is_write() || io.op == Op::Flush {
            self.commits.stopped.as_ref().map(|stopped| stopped.kind)
        } else {
            None
        };
        if let Some(kind) = error {
            let error = io.error(kind, NAME);
            self.woken.extend(to.wakes());
            return to.put_ready(Completion::new(io.token, Err(error)));
        }
        let is_writer = io.op.is_write();
        to.writers += u32::from(is_writer);
        to.jobs += 1;
        self.users_ios += 1;
        let volume = to.volume;
        let act = if io.op == Op::Write { Act::Store } else { Act::Plain };
        let (at, len) = (io.offset, io.len);
        let op = io.op;
        let mut job = self.spare_jobs.pop().unwrap_or_else(Job::unused);
        (job.slot, job.volume, job.stage, job.held) = (slot, volume, Stage::Look, Held::No);
        (job.is_writer, job.pending, job.error) = (is_writer, 0, None);
        (job.at, job.len, job.act) = (at, len, act);
        (job.losses, job.commit) = (0, 0);
        (job.is_durable, job.is_provisioning, job.takes_kept) = (false, false, false);
        job.io = io;
        let id = self.jobs.insert(job);
        let goes_on = match op {
            Op::Flush => {
                self.jobs.get_mut(id).stage = Stage::Sync;
                true
            }
            // Looks once, at one state of the trees.
            Op::BlockStatus => true,
            Op::Read if self.canary == PoolCanary::ReadsUnlocked => true,
            Op::Read | Op::Write => self.lock(id, Held::Shared),
            _ => self.lock(id, Held::Exclusive),
        };
        if goes_on {
            self.ripe.push_back(id);
        }
    }

    /// Asks for its blocks. False if it has to wait; then it becomes ripe when it has them.
    pub(super) fn lock(&mut self, id: u32, held: Held) -> bool {
        let shift = self.head.block_shift;
        let job = self.jobs.get_mut(id);
        job.held = held;
        // Of all of the I/O, whatever part is done.
        let (start, end) = (job.io.offset >> shift, (job.io.offset + job.io.len - 1) >> shift);
        let slot = self.slots.get_mut(job.slot);
        slot.locks.acquire(owner_of_job(id), start, end + 1, held == Held::Exclusive)
    }

    /// Lets go of them, so that others come on.
    pub(super) fn unlock(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        if std::mem::replace(&mut job.held, Held::No) == Held::No {
            return;
        }
        self.slots.get_mut(job.slot).locks.release(owner_of_job(id), &mut self.granted);
        self.ripe.extend(self.granted.drain(..).map(job_of));
    }

    /// Does all that jobs can do now.
    pub(super) fn settle_jobs(&mut self) {
        while let Some(id) = self.ripe.pop_front() {
            if let Err(stop) = self.step(id) {
                self.on_stop(id, stop);
            }
        }
    }

    /// Does what comes next for a job.
    #[inline]
    fn step(&mut self, id: u32) -> Result<(), TreeStop> {
        let job = self.jobs.get_mut(id);
        match (job.stage, job.io.op) {
            (Stage::Look, Op::Read) => self.read(id),
            (Stage::Look, Op::BlockStatus) => self.status(id),
            (Stage::Look, Op::Write) => self.write(id),
            (Stage::Look, _) => self.zero(id),
            (Stage::Reserve, _) => self.reserve(id),
            (Stage::Fetch, _) => self.fetched(id),
            (Stage::Move, _) => self.moved(id),
            (Stage::Map, _) => self.map(id),
            (Stage::Sync, _) => {
                self.sync(id);
                Ok(())
            }
            (Stage::Wait, _) => {
                self.look_at_sync(id);
                Ok(())
            }
        }
    }

    /// A job was stopped by the trees.
    fn on_stop(&mut self, id: u32, stop: TreeStop) {
        match stop {
            TreeStop::Wait => self.waiting.push(id),
            TreeStop::Commit => {
                self.commits.is_wanted = true;
                self.stalled.push(id);
            }
            TreeStop::NoNodes | TreeStop::NoBlocks if self.may_come() => self.stalled.push(id),
            TreeStop::NoNodes | TreeStop::NoBlocks => self.fail(id, ErrorKind::NoSpace),
            TreeStop::Fault(fault) => self.fail(id, fault.kind()),
        }
    }

    /// Ends a job, which has nothing outstanding below, with an error of this module.
    pub(super) fn fail(&mut self, id: u32, kind: ErrorKind) {
        let job = self.jobs.get_mut(id);
        let error = job.io.error(kind, NAME);
        job.error.get_or_insert(error);
        self.finish(id);
    }

    /// It no longer changes anything: who wants to cut its volume need not wait for it.
    pub(super) fn end_writing(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        if std::mem::take(&mut job.is_writer) {
            let slot = self.slots.get_mut(job.slot);
            slot.writers -= 1;
            self.ops.drains &= slot.writers > 0 || !slot.is_held;
        }
    }

    /// Ends a job.
    pub(super) fn finish(&mut self, id: u32) {
        self.unlock(id);
        self.end_writing(id);
        self.give_up_targets(id);
        let Some(mut job) = self.jobs.remove(id.into()) else { return };
        let mut completion = Completion::new(job.io.token, job.error.map_or(Ok(()), Err));
        if job.error.is_none() {
            match job.io.op {
                Op::Read => completion.data = std::mem::take(&mut job.data),
                Op::BlockStatus => completion.extents = job.pieces.join_extents(),
                _ => {}
            }
        }
        let of = job.slot;
        job.empty();
        self.spare_jobs.push(job);
        let slot = self.slots.get_mut(of);
        slot.jobs -= 1;
        self.users_ios -= 1;
        self.woken.extend(slot.wakes());
        slot.put_ready(completion);
        self.close_if_gone(of);
    }
}
