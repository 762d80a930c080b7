//! Copies: what legs lack, region by region, and what one leg could not read and another has. Each holds what it copies
//! against users' writes (rule 5). A leg is in sync once all is copied, flushed, and on record (rule 6).

use std::time::Duration;

use thinwire_buffer::{SegList, Time};
use thinwire_volume::{Io, IoFlags, Op};

use super::closing::Closing;
use super::legs::quickest;
use super::opening::Phase;
use super::serve::{Doubt, lowest};
use super::{LegState, Mirror, MirrorCanary, Task, bits};

/// Bytes that are copied at once, at most, and how many such copies are outstanding.
const COPY_BYTES: u64 = 128 << 10;
const COPIES_MAX: u32 = 4;
/// After so many regions what was copied is flushed, and need not be copied again.
const SETTLE_EACH: usize = 64;
/// Or after so long, so that who is cut off again and again gets on all the same.
const SETTLE_AFTER: Duration = Duration::from_secs(5);
/// What could not be read is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A range that is read from one leg, and written to others.
pub(super) struct Copy {
    /// Where it goes.
    targets: u8,
    /// Of a resync; else it is what a target could not read.
    is_resync: bool,
    /// It has been read.
    is_read: bool,
    /// Those that did not take it; of these the ones that had no room and may have the same already; and the one that is asked for that.
    lacks: u8,
    doubtful: u8,
    asked: u8,
    /// What was read, as long as somebody may be asked.
    data: SegList,
}

impl Copy {
    fn new(targets: u8, is_resync: bool) -> Self {
        let (is_read, data) = (false, SegList::new());
        Copy { targets, is_resync, is_read, lacks: 0, doubtful: 0, asked: 0, data }
    }

    /// What is outstanding of it takes bytes of a leg.
    pub fn reads(&self) -> bool {
        !self.is_read || self.asked != 0
    }
}

/// A region that is being copied.
struct Region {
    number: u32,
    /// What of it is still to be begun, in bytes of data.
    at: u64,
    end: u64,
    targets: u8,
    copies: u32,
    has_failed: bool,
}

#[derive(Default)]
pub(super) struct Resync {
    /// What bitmaps said so far, while they are read, and how many reads are outstanding.
    pub loaded: Vec<u8>,
    pub loading: u32,
    /// Legs that are to be copied to as a whole, and whose bits do not say so yet.
    pub full: u8,
    /// Nobody becomes a leg before that batch of bits is through.
    pub waits_for: u64,
    current: Option<Region>,
    /// Regions that were copied, and not flushed.
    copied: Vec<u32>,
    is_settling: bool,
    /// Since when the first of them is.
    copied_since: Time,
    /// Regions were passed over that could not be read: they are tried again once all others are through, and settled.
    has_passed: bool,
    /// Nothing is begun before.
    pub retry_at: Time,
    /// What was written to legs, of each.
    pub copied_bytes: u64,
}

impl Resync {
    /// All is copied but what could not be, which is tried again.
    pub fn is_held_up(&self, now: Time) -> bool {
        self.current.is_none() && self.retry_at > now
    }

    pub fn wait_for(&mut self, batch: u64) {
        self.waits_for = batch;
    }
}

/// Every byte is.
fn is_zero(data: &SegList) -> bool {
    // Each is as the one before it, which is compared fast.
    let of = |bytes: &[u8]| {
        bytes.split_first().is_none_or(|(first, rest)| *first == 0 && rest == &bytes[..rest.len()])
    };
    data.iter().all(|segment| of(segment))
}

impl Mirror {
    /// Goes on with the resync, as far as the pace allows.
    pub(super) fn step_resync(&mut self) -> bool {
        let targets = self.active & !self.in_sync & !self.record.promoting;
        if self.is_ending() {
            // What is under way ends, and what was copied counts; the rest comes with the next opening.
            return match self.resync.current {
                Some(_) => self.end_region(),
                None => self.settle_at_end(),
            };
        }
        let is_free = self.phase == Phase::Serving && !self.record.is_changing();
        if !is_free || self.resync.is_settling || self.resync.retry_at > self.now {
            return false;
        }
        if self.resync.current.is_some() {
            return self.copy_on() || self.end_region();
        }
        if targets == 0 {
            return false;
        }
        let is_old = self.now >= self.resync.copied_since + SETTLE_AFTER;
        let is_old = is_old && self.canary != MirrorCanary::SettlesLate;
        let is_full =
            self.resync.copied.len() >= SETTLE_EACH || !self.resync.copied.is_empty() && is_old;
        let next = if is_full { None } else { self.regions.next_uncopied(targets) };
        if let Some(number) = next {
            let (at, end) = self.regions.place(number);
            let targets = targets & self.regions.stale(number);
            let (copies, has_failed) = (0, false);
            self.resync.current = Some(Region { number, at, end, targets, copies, has_failed });
            return true;
        }
        if !self.resync.copied.is_empty() {
            self.settle_copied();
            return true;
        }
        if self.promote(targets) {
            return true;
        }
        if std::mem::take(&mut self.resync.has_passed) {
            self.resync.retry_at = self.now + RETRY_AFTER;
            self.regions.look_again();
        }
        false
    }

    /// Begins the next copy of the region.
    fn copy_on(&mut self) -> bool {
        let Some(region) = &mut self.resync.current else { return false };
        if region.at == region.end || region.copies == COPIES_MAX || region.has_failed {
            return false;
        }
        let most = COPY_BYTES.min(u64::from(self.geometry.io_bytes_max));
        let (offset, len) = (region.at, most.min(region.end - region.at));
        if !self.pace.take(len, self.outstanding > self.ready.len(), self.now) {
            return false;
        }
        region.at += len;
        region.copies += 1;
        let copy = Copy::new(region.targets, true);
        self.copy(offset, len, copy);
        true
    }

    fn copy(&mut self, offset: u64, len: u64, copy: Copy) {
        let id = self.new_job(Task::Copy(copy), Io::new(0, Op::Read, offset, len));
        let is_locked = self.canary != MirrorCanary::NoRangeLock;
        if !is_locked || self.locks.acquire(id, offset, offset + len, true) {
            self.begin_copy(id);
        }
    }

    /// What a leg could not read is written there, as another has it.
    pub(super) fn repair(&mut self, leg: usize, offset: u64, len: u64) {
        self.copy(offset, len, Copy::new(1 << leg, false));
    }

    /// A copy holds its range: it is read.
    pub(super) fn begin_copy(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let Io { offset, len, .. } = job.io;
        let Task::Copy(copy) = &job.task else { return };
        let among = self.in_sync & !job.failed & !copy.targets;
        match quickest(&self.legs, among, 1) {
            Some(leg) => {
                let mut io = Io::new(0, Op::Read, offset, len);
                // Only if nobody has better it is taken as it is, and that is looked at block by block.
                io.flags.verified = self.canary != MirrorCanary::UnverifiedSource;
                self.send_data(leg, id, io);
            }
            None if job.bad & self.in_sync != 0 && copy.is_resync => {
                let targets = copy.targets;
                self.look_for_copy(id, targets);
            }
            None => self.end_copy(id, false),
        }
    }

    /// A copy was read, or written.
    pub(super) fn finish_copy(&mut self, id: u32) {
        let (active, job) = (self.active, self.jobs.get_mut(id));
        let Io { offset, len, .. } = job.io;
        let (ok, failed) = (job.ok, job.failed);
        let Task::Copy(copy) = &mut job.task else { return };
        let targets = copy.targets & active;
        if copy.is_read && copy.asked == 0 {
            (copy.lacks, copy.doubtful) = (failed, job.full);
            self.resync.copied_bytes += len * u64::from((ok & targets).count_ones());
            return self.end_written(id);
        }
        if copy.is_read {
            let is_alike = ok & copy.asked != 0 && job.data.to_vec() == copy.data.to_vec();
            copy.lacks &= if is_alike { !copy.asked } else { copy.lacks };
            copy.asked = 0;
            return self.end_written(id);
        }
        if ok == 0 {
            // Another one may read it.
            return self.begin_copy(id);
        }
        copy.is_read = true;
        (job.ok, job.failed, job.full) = (0, 0, 0);
        let data = std::mem::take(&mut job.data);
        copy.data = data.clone();
        if targets == 0 {
            return self.end_copy(id, true);
        }
        // A new leg takes no more room than the others do. What could not be read is written as it is, so that the disk finds another place for it.
        let leaves_out = copy.is_resync && self.geometry.features.write_zeroes;
        let op = if leaves_out && is_zero(&data) { Op::WriteZeroes } else { Op::Write };
        for leg in bits(targets) {
            let data = if op == Op::Write { data.clone() } else { SegList::new() };
            self.send_data(leg, id, Io { data, ..Io::new(0, op, offset, len) });
        }
    }

    /// A copy was written, or a leg that had no room for it was asked what it has. Where a write finds no room on any leg all have what they had, and
    /// differ by nothing that would have to be written: a leg that had to take it all the same would be dropped, and stay so as long as its disk is full.
    fn end_written(&mut self, id: u32) {
        let (active, is_blind) = (self.active, self.canary == MirrorCanary::CopiesWhatIsAlike);
        let job = self.jobs.get_mut(id);
        let Io { offset, len, .. } = job.io;
        let Task::Copy(copy) = &mut job.task else { return };
        copy.doubtful &= if is_blind { 0 } else { copy.targets & active };
        let asked = lowest(copy.doubtful);
        if asked != 0 {
            (copy.doubtful, copy.asked) = (copy.doubtful & !asked, asked);
            (job.ok, job.failed, job.data) = (0, 0, SegList::new());
            let flags = IoFlags { verified: true, uncached: true, ..IoFlags::default() };
            let io = Io { flags, ..Io::new(0, Op::Read, offset, len) };
            return self.send_data(asked.trailing_zeros() as usize, id, io);
        }
        let lacks = copy.lacks & copy.targets & active;
        bits(lacks).for_each(|leg| self.drop_if_spare(leg, false));
        self.end_copy(id, true);
    }

    fn end_copy(&mut self, id: u32, has_read: bool) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        if self.canary != MirrorCanary::NoRangeLock {
            self.unlock(id);
        }
        if let Task::Copy(Copy { is_resync: true, .. }) = job.task {
            self.end_resync_copy(has_read);
        }
    }

    /// A copy of the region that is being copied is over.
    pub(super) fn end_resync_copy(&mut self, is_whole: bool) {
        if let Some(region) = &mut self.resync.current {
            region.copies -= 1;
            region.has_failed |= !is_whole;
        }
    }

    /// The region that was copied has been, if it has.
    fn end_region(&mut self) -> bool {
        let Some(region) = &self.resync.current else { return false };
        let is_cut = self.is_ending() && region.at < region.end;
        let is_through = region.at == region.end || region.has_failed || is_cut;
        if region.copies > 0 || !is_through {
            return false;
        }
        if is_cut {
            // Half of it is none.
        } else if region.has_failed {
            self.resync.has_passed = true;
            self.regions.pass_over(region.number);
        } else if !self.regions.is_spoiled() {
            self.regions.set_copied(region.number, region.targets & self.active);
            if self.resync.copied.is_empty() {
                self.resync.copied_since = self.now;
            }
            self.resync.copied.push(region.number);
        }
        self.resync.current = None;
        true
    }

    /// The same, of one that is closed.
    fn settle_at_end(&mut self) -> bool {
        let is_free = self.phase == Phase::Serving && !self.record.is_changing();
        let any = !self.resync.copied.is_empty() && self.canary != MirrorCanary::SettlesLate;
        if !is_free || !any || self.resync.is_settling || self.closing != Closing::Asked {
            return false;
        }
        self.settle_copied();
        true
    }

    /// Flushes what was copied.
    fn settle_copied(&mut self) {
        let id = self.new_job(Task::Settle, Io::new(0, Op::Flush, 0, 0));
        if self.canary == MirrorCanary::InSyncBeforeFlush {
            self.jobs.remove(id.into());
            return self.forget_copied(true);
        }
        self.resync.is_settling = true;
        self.send_flush(id);
    }

    pub(super) fn finish_settle(&mut self, id: u32) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        self.resync.is_settling = false;
        let is_durable = self.judge(job.ok, job.failed, job.error, Doubt::Open).is_ok();
        self.forget_copied(is_durable);
        if !is_durable {
            self.tell_loss();
            self.resync.retry_at = self.now + RETRY_AFTER;
        }
    }

    /// What a leg got and has not flushed does not count any more.
    pub(super) fn forget_copies(&mut self, leg: usize) {
        let current = self.resync.current.as_ref().map(|region| region.number);
        for &region in self.resync.copied.iter().chain(&current) {
            let lacking = self.regions.stale(region) & 1 << leg;
            if lacking != 0 {
                self.regions.add_stale(region, lacking);
            }
        }
    }

    /// What was copied is there for good, where the leg still is; or it is to be copied again.
    fn forget_copied(&mut self, is_durable: bool) {
        let mut copied = std::mem::take(&mut self.resync.copied);
        for region in copied.drain(..) {
            let legs = self.regions.copied(region);
            match is_durable {
                true => self.regions.remove_stale(region, legs & self.active),
                false => self.regions.add_stale(region, legs),
            }
        }
        self.resync.copied = copied;
        if is_durable && self.regions.is_dirty() {
            // A leg whose bits are set where those of another are clear would not be believed.
            self.resync.wait_for(self.intent.next_batch());
        }
    }

    /// Legs that lack nothing, also by the bitmaps, are in sync once that is on record.
    fn promote(&mut self, targets: u8) -> bool {
        if !self.intent.is_through(self.resync.waits_for) {
            return false;
        }
        let whole = bits(targets).filter(|leg| self.regions.stale_count(*leg) == 0);
        let whole = whole.fold(0_u8, |legs, leg| legs | 1 << leg);
        if whole == 0 {
            return false;
        }
        bits(whole).for_each(|leg| self.state.legs[leg] = LegState::InSync);
        self.record.promoting |= whole;
        self.record.want();
        true
    }

    /// When a copy may go on that waits for time.
    pub(super) fn next_copy(&self) -> Time {
        let has_targets = self.active & !self.in_sync != 0;
        if self.phase != Phase::Serving || !has_targets || self.resync.is_settling {
            return Time::NEVER;
        }
        match &self.resync.current {
            _ if self.resync.retry_at > self.now => self.resync.retry_at,
            Some(region) if region.copies == 0 => {
                let idle = self.pace.idle_at();
                // While somebody waits, what they get lets it go on.
                if idle > self.now { idle } else { Time::NEVER }
            }
            _ => Time::NEVER,
        }
    }
}
