//! A disk of the machine: the in-flight table between the [`Disk`] interface and an engine.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use thinwire_volume::{Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, Extent, REFUSED, SyncScope};

use super::allowance::{Allowance, Begun};
use super::common::Common;
use super::engine::{AGAIN, BELL, Engine, PAUSE, SLOTS};
use super::jobs::Jobs;
use super::letting_go::LettingGo;
use super::slots::{InFlight, Step, SystemCall};
use super::window::Window;
use super::worker::worker;
use crate::clock::Clock;

/// How often one poll goes back for what its own completions made possible.
const ROUNDS_MAX: usize = 4;

/// Which of the rings on one open file a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The only one, or the one that makes the syncs, keeps the writer record, and finds growth.
    Owner,
    /// Another: see `spread.rs`.
    Branch,
}

/// One thread's way to an open, locked file or block device.
///
/// At most [`SLOTS`] operations are in the kernel; more wait here, in order. Dropping the disk
/// waits for what is in the kernel, since the memory of it belongs to the kernel till then, forgets
/// what waits, and, if it is the last on its file, lets go of the lock.
pub(super) struct RealDisk<E: Engine> {
    pub common: Arc<Common>,
    pub info: DiskInfo,
    role: Role,
    /// The last size of which something was said.
    told_of: u64,
    engine: E,
    /// Records and block status.
    jobs: Jobs,
    /// The engine waits for their bell.
    listening: bool,
    /// Needed no thread; told behind all that the engine has done.
    told: Vec<DiskDone>,
    slots: Vec<InFlight>,
    free: Vec<u32>,
    backlog: VecDeque<DiskOp>,
    /// Reads that came before what is in the backlog, and wait for the window.
    held: VecDeque<DiskOp>,
    ended: Vec<(u32, i32)>,
    allowance: Allowance,
    /// How many reads may be in the kernel.
    window: Window,
    clock: Clock,
    /// Reads in the kernel, and those that wait besides.
    reads: usize,
    reads_waiting: usize,
    /// Reads that have ended since the window was told, and their bytes.
    reads_ended: (usize, u64),
    /// There was more than this turn allows.
    is_cut_short: bool,
    /// Bytes of writes that have their place in a turn since they were copied.
    paid: u64,
    /// Copies were refused.
    copies_wait: bool,
    /// Some were made in this turn.
    has_copied: bool,
    /// What this turn leaves of the disk's own share is for a copy.
    saves: bool,
    /// The last turn was full of copies, so this one begins with the others.
    copies_yield: bool,
    /// The next turn was asked for: a call of nothing is under way.
    again: bool,
    /// A pause is under way.
    pausing: bool,
    /// The size that is being kept.
    keeping: u64,
}

impl<E: Engine> RealDisk<E> {
    /// Fails if the process may not have more descriptors.
    pub fn new(common: Arc<Common>, role: Role, engine: E) -> io::Result<Self> {
        let jobs = Jobs::new(worker(common.clone()))?;
        let info = common.info();
        Ok(RealDisk {
            common,
            info,
            role,
            told_of: info.bytes,
            engine,
            jobs,
            listening: false,
            told: Vec::new(),
            slots: (0..SLOTS).map(|_| InFlight::default()).collect(),
            free: (0..SLOTS as u32).rev().collect(),
            backlog: VecDeque::with_capacity(SLOTS),
            held: VecDeque::with_capacity(SLOTS),
            ended: Vec::with_capacity(SLOTS),
            allowance: Allowance::new(),
            window: Window::new(),
            clock: Clock::new(),
            reads: 0,
            reads_waiting: 0,
            reads_ended: (0, 0),
            is_cut_short: false,
            paid: 0,
            copies_wait: false,
            has_copied: false,
            saves: false,
            copies_yield: false,
            again: false,
            pausing: false,
            keeping: 0,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.engine.fd()
    }

    fn start(&mut self, slot: u32) {
        let request = match self.slots[slot as usize].next {
            None => self.slots[slot as usize].request(),
            Some(_) => self.request_joined(slot),
        };
        // SAFETY: the slot owns the memory behind the request and is not touched before the engine
        // returns it; `slots` never grows, and dropping the disk waits for the engine first.
        unsafe { self.engine.start(slot, request) };
    }

    /// The call for reads that continue each other.
    fn request_joined(&mut self, first: u32) -> SystemCall {
        let (mut pieces, mut skip) = self.slots[first as usize].take_pieces();
        let mut at = Some(first);
        while let Some(slot) = at {
            let slot = &mut self.slots[slot as usize];
            slot.push_piece(&mut skip, &mut pieces);
            at = slot.next;
        }
        self.slots[first as usize].request_joined(pieces)
    }

    /// Has the call of a read do those as well that wait behind it and continue it.
    fn join(&mut self, first: u32) {
        let mut last = first;
        while self.reads < self.window.size()
            && let (Some(op), Some(&slot)) = (self.next_waiting(), self.free.last())
            && let Some(joined) = self.slots[first as usize].would_join(op)
        {
            if !self.allowance.take(op.len, !self.saves) {
                self.is_cut_short = true;
                return;
            }
            let Some(op) = self.take_waiting() else { return };
            self.free.pop();
            self.load(slot, op);
            self.slots[last as usize].next = Some(slot);
            self.slots[first as usize].join(joined);
            last = slot;
        }
    }

    /// Looks whether the file still has its size. A write beyond the end of a file that was cut
    /// would make it long again, with zeroes in between that nobody wrote.
    fn check_size(&mut self) {
        if !self.common.device && !self.common.has_shrunk() {
            self.look();
        }
    }

    /// Its size now; nothing if that cannot be told, which is no news.
    fn look(&mut self) -> Option<u64> {
        let seen = self.common.look();
        if seen.is_cut_news {
            self.jobs.cut();
        }
        seen.bytes
    }

    /// What of a larger size is not offered, once for each size.
    fn tell_unoffered(&mut self, bytes: u64, block_bytes: u32) {
        if bytes <= self.info.bytes || std::mem::replace(&mut self.told_of, bytes) == bytes {
            return;
        }
        let (path, offered) = (self.common.path.display(), self.info.bytes);
        if self.common.may_grow {
            tracing::warn!(
                "{path} has {bytes} bytes now, no multiple of the block of {block_bytes}: {offered} are \
                 offered, and the next start will refuse it; make its size a multiple"
            );
        } else {
            tracing::warn!(
                "{path} has {bytes} bytes now, and nothing names this device but its number and size: \
                 {offered} bytes are offered until the next start, when it will be another volume"
            );
        }
    }

    /// Once a size is kept it is offered.
    fn note_kept(&mut self) {
        let is_end = |done: &&DiskDone| matches!(done.kind, DiskOpKind::KeepSize);
        if self.keeping > 0
            && let Some(done) = self.told.iter().find(is_end)
        {
            let kept = std::mem::take(&mut self.keeping);
            if done.result.is_ok() {
                self.common.offer(kept);
            }
        }
    }

    /// Has a block status done, unless it is known at once.
    fn ask(&mut self, op: DiskOp) {
        if !self.common.device {
            self.check_size();
            if !self.common.has_shrunk() {
                return self.jobs.submit(op);
            }
        }
        let DiskOp { token, len, mut kind, .. } = op;
        let mut result = Ok(());
        match &mut kind {
            DiskOpKind::BlockStatus(extents) if self.common.device => {
                extents.push(Extent { len, hole: false, zero: false });
            }
            _ => result = Err(libc::EIO),
        }
        self.told.push(DiskDone { token, result, kind });
    }

    /// It may be another turn than the last time.
    fn begin(&mut self) {
        match self.allowance.begin() {
            Begun::Same => {}
            Begun::New => {
                self.copies_yield = self.has_copied && !self.backlog.is_empty();
                (self.has_copied, self.saves) = (false, false);
                // What did not begin in the turn of its copy has its place in another.
                self.paid = 0;
            }
            // Its shard may have gone in a turn in which it was to wait for the next.
            Begun::Uncounted => (self.copies_yield, self.saves) = (false, false),
        }
    }

    /// Puts reads aside for which the window has no room, so that nothing else waits for them.
    fn hold_reads(&mut self) {
        while self.reads >= self.window.size() && self.backlog.front().is_some_and(is_read) {
            self.held.extend(self.backlog.pop_front());
        }
    }

    fn takes_held(&self) -> bool {
        !self.held.is_empty() && self.reads < self.window.size()
    }

    /// The next that waits.
    fn next_waiting(&self) -> Option<&DiskOp> {
        if self.takes_held() { self.held.front() } else { self.backlog.front() }
    }

    fn take_waiting(&mut self) -> Option<DiskOp> {
        let queue = if self.takes_held() { &mut self.held } else { &mut self.backlog };
        let op = queue.pop_front();
        self.reads_waiting -= usize::from(op.as_ref().is_some_and(is_read));
        op
    }

    fn load(&mut self, slot: u32, op: DiskOp) {
        self.reads += usize::from(is_read(&op));
        self.slots[slot as usize].load(op);
    }

    /// An operation has come back from the kernel.
    fn note_ended(&mut self, op: &DiskOp) {
        if is_read(op) {
            self.reads -= 1;
            self.reads_ended.0 += 1;
            self.reads_ended.1 += op.len;
        }
    }

    /// Tells the window how things stand, where that may have changed.
    fn tell_window(&mut self) {
        let (ended, bytes) = std::mem::take(&mut self.reads_ended);
        let outstanding = self.reads + self.reads_waiting;
        if ended > 0 || outstanding > 0 {
            self.window.see(self.clock.now(), outstanding, ended, bytes);
        }
    }

    /// Gives waiting operations to the engine, as far as there are slots, the window and a turn go.
    fn admit(&mut self, done: &mut Vec<DiskDone>) {
        let writes = |op: &DiskOp| !is_read(op);
        if self.backlog.len() + self.held.len() > self.reads_waiting {
            self.check_size();
        }
        while let Some(&slot) = self.free.last() {
            self.hold_reads();
            let Some(op) = self.next_waiting() else { return };
            if matches!(op.kind, DiskOpKind::Write { .. }) && self.paid >= op.len {
                self.paid -= op.len;
            } else if !self.allowance.take(op.len, !self.saves) {
                self.is_cut_short = true;
                return;
            }
            let Some(op) = self.take_waiting() else { return };
            if self.common.has_shrunk() && writes(&op) {
                let DiskOp { token, kind, .. } = op;
                done.push(DiskDone { token, result: Err(REFUSED), kind });
                continue;
            }
            self.free.pop();
            self.load(slot, op);
            self.join(slot);
            self.start(slot);
        }
    }

    /// Takes in what the engine has finished; true if a call was started anew.
    fn take_in(&mut self, done: &mut Vec<DiskDone>) -> bool {
        let mut again = false;
        let mut ended = std::mem::take(&mut self.ended);
        self.engine.reap(&mut ended);
        for (slot, result) in ended.drain(..) {
            if slot == PAUSE {
                self.pausing = false;
                continue;
            }
            if slot == AGAIN {
                self.again = false;
                continue;
            }
            if slot == BELL {
                // It is to be heard again while a job is left.
                (self.listening, again) = (false, true);
                continue;
            }
            match self.slots[slot as usize].advance(result) {
                Step::Again => {
                    self.start(slot);
                    again = true;
                }
                Step::Apart => {
                    let mut at = Some(slot);
                    while let Some(slot) = at {
                        at = self.slots[slot as usize].part();
                        self.start(slot);
                    }
                    again = true;
                }
                Step::Done(op, result) => {
                    self.free.push(slot);
                    let mut joined = self.slots[slot as usize].part();
                    if result == Err(libc::EIO) && is_read(&op) {
                        self.check_size();
                    }
                    self.note_ended(&op);
                    done.push(DiskDone { token: op.token, result, kind: op.kind });
                    while let Some(slot) = joined {
                        let (op, next) = self.slots[slot as usize].take();
                        self.free.push(slot);
                        self.note_ended(&op);
                        done.push(DiskDone { token: op.token, result, kind: op.kind });
                        joined = next;
                    }
                }
            }
        }
        self.ended = ended;
        again
    }
}

impl<E: Engine> Disk for RealDisk<E> {
    fn info(&self) -> DiskInfo {
        self.info
    }

    /// Does not wait where the size is in memory, as it is of local files and devices.
    fn refresh(&mut self, block_bytes: u32) -> u64 {
        let bytes = self.look();
        if self.role == Role::Branch {
            // The owner has it kept.
            self.info.bytes = self.info.bytes.max(self.common.offered());
            return self.info.bytes;
        }
        let block = u64::from(block_bytes);
        if let (Some(bytes), false) = (bytes, self.common.has_shrunk()) {
            if self.common.may_grow {
                self.info.bytes = self.info.bytes.max(bytes / block * block);
            }
            self.tell_unoffered(bytes, block_bytes);
        }
        self.info.bytes
    }

    fn has_shrunk(&self) -> bool {
        self.common.has_shrunk()
    }

    /// Both for the copy and for the write itself, which would have no room else in the turn that is
    /// full of copies.
    fn may_copy(&mut self, bytes: u64) -> bool {
        self.begin();
        let may = !self.copies_yield && self.allowance.take(2 * bytes, true);
        self.saves |= !may && !self.copies_yield;
        self.paid += if may { bytes } else { 0 };
        self.has_copied |= may;
        self.copies_wait |= !may;
        may
    }

    fn submit(&mut self, op: DiskOp) {
        match op.kind {
            DiskOpKind::BlockStatus(_) => self.ask(op),
            _ if self.role == Role::Branch && is_owners(&op) => {
                let is_kept =
                    matches!(op.kind, DiskOpKind::KeepSize) && op.len <= self.common.offered();
                let DiskOp { token, kind, .. } = op;
                let result = if is_kept { Ok(()) } else { Err(libc::EINVAL) };
                self.told.push(DiskDone { token, result, kind });
            }
            DiskOpKind::StoreWriter(_) if self.info.read_only => {
                let DiskOp { token, kind, .. } = op;
                self.told.push(DiskDone { token, result: Err(libc::EROFS), kind });
            }
            DiskOpKind::LoadWriter(_) | DiskOpKind::StoreWriter(_) | DiskOpKind::KeepSize => {
                if matches!(op.kind, DiskOpKind::KeepSize) {
                    self.keeping = op.len;
                }
                self.jobs.submit(op);
            }
            // What is there by now is not what was.
            DiskOpKind::Read(_) if op.offset.saturating_add(op.len) > self.common.smallest() => {
                let DiskOp { token, kind, .. } = op;
                self.told.push(DiskDone { token, result: Err(libc::EIO), kind });
            }
            _ => {
                self.reads_waiting += usize::from(is_read(&op));
                self.backlog.push_back(op);
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        // A disk is polled as often in a turn as something moves on in its volume, or beside it.
        self.begin();
        self.is_cut_short = std::mem::take(&mut self.copies_wait);
        self.tell_window();
        for round in 0.. {
            self.admit(done);
            if round < ROUNDS_MAX {
                // Before the engine is asked: a sync that had failed when a job was done is heard of
                // first.
                self.jobs.take(&mut self.told);
                self.note_kept();
            }
            if self.jobs.outstanding() > 0 && !std::mem::replace(&mut self.listening, true) {
                // SAFETY: a bell has no memory, only one is waited for, and it outlives the engine.
                unsafe { self.engine.start(BELL, SystemCall::Bell(self.jobs.fd())) };
            }
            self.engine.enter();
            if round == ROUNDS_MAX {
                break;
            }
            let again = self.take_in(done);
            let may_go_on = !self.free.is_empty() && !self.is_cut_short;
            let waiting = self.next_waiting().is_some() && may_go_on;
            if !again && !waiting {
                break;
            }
        }
        if self.reads_ended.0 > 0 && self.reads + self.reads_waiting == 0 {
            // It may not be polled again before something comes.
            self.tell_window();
        }
        if self.is_cut_short && !std::mem::replace(&mut self.again, true) {
            // SAFETY: a call of nothing has no memory, and only one is under way.
            unsafe { self.engine.start(AGAIN, SystemCall::Nothing) };
            self.engine.enter();
        }
        done.append(&mut self.told);
    }

    fn wake_soon(&mut self) {
        if !std::mem::replace(&mut self.pausing, true) {
            // SAFETY: a pause has no memory, and only one is under way.
            unsafe { self.engine.start(PAUSE, SystemCall::Pause) };
            self.engine.enter();
        }
    }

    fn sync_scope(&self) -> SyncScope {
        self.common.scope.clone()
    }
}

impl<E: Engine> Drop for RealDisk<E> {
    fn drop(&mut self) {
        let common = self.common.clone();
        let _told = LettingGo::of(&common.path);
        self.backlog.clear();
        self.held.clear();
        self.jobs.stop();
        self.engine.enter();
        while self.free.len() < self.slots.len() || self.listening {
            self.engine.wait();
            self.take_in(&mut Vec::new());
            self.engine.enter();
        }
    }
}

fn is_read(op: &DiskOp) -> bool {
    matches!(op.kind, DiskOpKind::Read(_))
}

/// What only the owner of a file does: a sync beside another could share one error of the kernel with it.
fn is_owners(op: &DiskOp) -> bool {
    match op.kind {
        DiskOpKind::Write { fua, .. } => fua,
        DiskOpKind::Flush
        | DiskOpKind::LoadWriter(_)
        | DiskOpKind::StoreWriter(_)
        | DiskOpKind::KeepSize => true,
        DiskOpKind::Read(_)
        | DiskOpKind::PunchHole
        | DiskOpKind::ZeroRange
        | DiskOpKind::BlockStatus(_) => false,
    }
}

#[cfg(test)]
#[path = "real_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "joined_tests.rs"]
mod joined_tests;
