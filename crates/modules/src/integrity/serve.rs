//! Users' I/Os, and reads of the volume itself: sums first, then data; what is read is compared.

use thinwire_volume::stores::{EXTENTS_MAX, push_extent};

use super::sums::{Entry, Standing};
use super::*;

/// How a block fits its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is what was written last, as far as anybody can know.
    Good,
    /// It is what was there before, in a region that was open at a crash.
    Older,
    /// It is neither, in such a region.
    Unverified,
    /// It is something else.
    Bad,
}

impl Integrity {
    /// Begins what a user has asked for.
    #[inline]
    pub(super) fn begin(&mut self, io: Io) {
        self.pace.on_use(io.len, self.now);
        match io.op {
            Op::Flush => {
                let id = self.new_job(Task::User, io);
                self.send_flush(id);
            }
            // Sums are in it, as they stand on the part, with what is on record as open: what a crash leaves of a moment at which nobody writes.
            Op::Cut => {
                let (data, len) = (io.data.clone(), io.len);
                let id = self.new_job(Task::User, io);
                let job = self.jobs.get_mut(id);
                (job.stage, job.pending) = (Stage::Data, 1);
                self.hand_down(Io { data, ..Io::new(0, Op::Cut, 0, len) }, Flight::Job(id));
            }
            Op::LoadWriter | Op::StoreWriter => {
                let error = io.error(ErrorKind::Unsupported, NAME);
                self.ready.push(Completion::new(io.token, Err(error)));
            }
            _ => {
                let id = self.new_job(Task::User, io);
                self.lock(id);
            }
        }
    }

    pub(super) fn send_flush(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        (job.stage, job.pending) = (Stage::Data, 1);
        self.hand_down(Io::new(0, Op::Flush, 0, 0), Flight::Job(id));
    }

    /// Begins a job once it has its range.
    pub(super) fn lock(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let Io { op, offset, len, .. } = job.io;
        job.is_locked = self.canary != IntegrityCanary::NoRangeLock;
        if !job.is_locked || self.locks.acquire(id, offset, offset + len, op.is_write()) {
            self.begin_segment(id);
        }
    }

    /// The next segment of a job, which holds its range.
    fn begin_segment(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let longest = SEGMENT_SUMS as u64 * SUMMED_BYTES;
        job.len = match job.io.op {
            // They are not longer than what goes below at once.
            Op::Read | Op::Write => job.io.len,
            _ => longest.min(job.io.offset + job.io.len - job.at),
        };
        let (at, len) = (job.at, job.len);
        match job.io.op.is_write() {
            true => self.open_regions(id, at, len),
            false => self.begin_read(id),
        }
    }

    /// A write goes on once its regions are on record as open.
    fn open_regions(&mut self, id: u32, at: u64, len: u64) {
        let mut is_open = true;
        for region in self.regions.of(at, len) {
            is_open &= self.regions.begin_write(region, 0);
            self.on_region_written(region);
        }
        match is_open || self.canary == IntegrityCanary::NoOpenRegion {
            true => self.load_for_write(id),
            false => self.intent.wait(id),
        }
    }

    /// A write, whose regions are open, needs its sums.
    pub(super) fn load_for_write(&mut self, id: u32) {
        self.jobs.get_mut(id).stage = Stage::Loading;
        self.pin_sums(id);
        let job = self.jobs.get_mut(id);
        if job.pending == 0 {
            self.ripe.push_back(id);
        }
    }

    fn begin_read(&mut self, id: u32) {
        self.pin_sums(id);
        let job = self.jobs.get_mut(id);
        (job.stage, job.pending) = (Stage::Data, job.pending + 1);
        job.data_offset = self.layout.data_offset;
        let offset = job.at + job.data_offset;
        let io = Io { flags: job.io.flags, ..Io::new(0, job.io.op, offset, job.len) };
        self.hand_down(io, Flight::Job(id));
    }

    /// Blocks of sums of the segment of a job.
    fn sums_of(&mut self, id: u32) -> std::ops::RangeInclusive<u64> {
        let job = self.jobs.get_mut(id);
        job.at / SUMMED_BYTES..=(job.at + job.len - 1) / SUMMED_BYTES
    }

    /// A job needs the sums of its segment, and waits for those that are not here.
    fn pin_sums(&mut self, id: u32) {
        for number in self.sums_of(id) {
            let (at, is_new) = self.sums.pin(number);
            if is_new {
                let mut io = Io::new(0, Op::Read, SumLayout::sums_at(number), BLOCK);
                // A part of it is changed, and the rest written as it was read.
                io.flags.for_patch = true;
                self.hand_down(io, Flight::Load(at));
            }
            let slot = self.sums.slot(at);
            let job = self.jobs.get_mut(id);
            match slot.standing {
                Standing::Here => {}
                Standing::Loading => {
                    slot.loaders.push(id);
                    job.pending += 1;
                }
                Standing::Unread => job.error = Some(job.io.error(ErrorKind::Io, NAME)),
            }
        }
        self.jobs.get_mut(id).has_pins = true;
    }

    fn unpin_sums(&mut self, id: u32) {
        if std::mem::take(&mut self.jobs.get_mut(id).has_pins) {
            for number in self.sums_of(id) {
                self.sums.unpin(number);
            }
        }
    }

    /// A block of sums was read, or not.
    pub(super) fn on_load(&mut self, at: u32, completion: Completion) {
        let slot = self.sums.slot(at);
        match completion.result {
            Ok(()) => {
                completion.data.copy_to(slot.image());
                slot.standing = Standing::Here;
            }
            Err(_) => slot.standing = Standing::Unread,
        }
        let mut loaders = std::mem::take(&mut slot.loaders);
        for id in loaders.drain(..) {
            self.end_part_as(id, completion.result);
        }
        // Keeps what room it has.
        self.sums.slot(at).loaders = loaders;
    }

    /// Puts the sums of what is about to be written beside those of what is there, and has them written.
    fn store_for_write(&mut self, id: u32) {
        let Integrity { sums, summer, jobs, .. } = self;
        let job = jobs.get_mut(id);
        let (first, count) = (job.at / BLOCK, job.len / BLOCK);
        let mut set = |block, now| {
            let old = sums.entry(block);
            if old.now != now {
                sums.set_entry(block, Entry { now, before: old.now });
            }
        };
        match job.io.op {
            Op::Write => summer.each(first, &job.io.data, set),
            // Zeroes.
            _ => (first..first + count).for_each(|block| set(block, 0)),
        }
        self.store_sums(id);
    }

    /// The blocks of sums of a job are written, after what is under way there.
    pub(super) fn store_sums(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let fua = job.io.flags.fua;
        job.stage = Stage::Storing;
        if self.canary == IntegrityCanary::LateSums {
            return self.ripe.push_back(id);
        }
        for number in self.sums_of(id) {
            self.jobs.get_mut(id).pending += 1;
            let at = self.sums.find(number).expect("it is pinned");
            let slot = self.sums.slot(at);
            slot.to_store.push(id);
            slot.is_durable |= fua;
            if !slot.is_storing {
                self.store(at);
            }
        }
    }

    fn store(&mut self, at: u32) {
        let slot = self.sums.slot(at);
        slot.is_storing = true;
        std::mem::swap(&mut slot.storing, &mut slot.to_store);
        let mut io = Io::new(0, Op::Write, SumLayout::sums_at(slot.number), BLOCK);
        io.flags.fua = std::mem::take(&mut slot.is_durable);
        io.data = SegList::of(self.config.pool.copy_of(&slot.image()[..]).freeze());
        self.hand_down(io, Flight::Store(at));
    }

    /// Sums of a job were read, or written, or not: its error is one of its own range.
    fn end_part_as(&mut self, id: u32, result: Result<(), IoError>) {
        let io = &self.jobs.get_mut(id).io;
        let of_job = |e: IoError| IoError { module: e.module, ..io.error(e.kind, NAME) };
        let error = result.err().map(of_job);
        self.end_part(id, error);
    }

    /// A block of sums was written, or not: those that waited go on, and the next have it written anew.
    pub(super) fn on_store(&mut self, at: u32, result: Result<(), IoError>) {
        let slot = self.sums.slot(at);
        slot.is_storing = false;
        let mut stored = std::mem::take(&mut slot.storing);
        let has_more = !slot.to_store.is_empty();
        for id in stored.drain(..) {
            self.end_part_as(id, result);
        }
        self.sums.slot(at).storing = stored;
        if has_more {
            self.store(at);
        }
    }

    fn send_write(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        (job.stage, job.pending) = (Stage::Data, 1);
        let op = if job.io.op == Op::Discard { Op::WriteZeroes } else { job.io.op };
        let data = std::mem::take(&mut job.io.data);
        job.data_offset = self.layout.data_offset;
        let offset = job.at + job.data_offset;
        let io = Io { flags: job.io.flags, data, ..Io::new(0, op, offset, job.len) };
        self.hand_down(io, Flight::Job(id));
    }

    /// The data of a job, or a flush, has ended below.
    pub(super) fn on_job(&mut self, id: u32, completion: Completion) {
        let job = self.jobs.get_mut(id);
        // It may have grown since.
        let data_offset = job.data_offset;
        (job.data, job.extents) = (completion.data, completion.extents);
        let error = completion.result.err().map(|error| match error.op {
            Op::Flush | Op::Cut => error,
            // What it calls a write of zeroes was perhaps a discard.
            _ => {
                IoError { op: job.io.op, offset: error.offset.saturating_sub(data_offset), ..error }
            }
        });
        self.end_part(id, error);
    }

    /// A user's job, or a check, waits for nothing below.
    pub(super) fn go_on_with_data(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let (stage, has_failed, op) = (job.stage, job.error.is_some(), job.io.op);
        if job.task == Task::Check {
            return self.finish_check(id);
        }
        match (op, stage) {
            (Op::Read | Op::BlockStatus, _) => self.finish_read(id),
            (Op::Flush, _) => {
                let Some(job) = self.jobs.remove(id.into()) else { return };
                if has_failed {
                    // What it should have covered may be gone.
                    self.doubt_what_is_open(Gone::Unflushed);
                }
                self.put_ready(Completion::new(job.io.token, job.error.map_or(Ok(()), Err)));
            }
            (Op::Cut, _) => {
                let Some(job) = self.jobs.remove(id.into()) else { return };
                let mut completion = Completion::new(job.io.token, job.error.map_or(Ok(()), Err));
                completion.data = if has_failed { SegList::new() } else { job.data };
                self.put_ready(completion);
            }
            (_, Stage::Loading) if !has_failed => self.store_for_write(id),
            (_, Stage::Storing) if !has_failed => self.send_write(id),
            _ => self.end_segment(id),
        }
    }

    /// A segment of a write has ended, however.
    fn end_segment(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let (at, len, stage, has_failed) = (job.at, job.len, job.stage, job.error.is_some());
        for region in self.regions.of(at, len) {
            // Nobody knows what is there by now.
            if has_failed && stage != Stage::Waiting && stage != Stage::Loading {
                self.regions.add_stale(region, 1);
            }
            self.regions.end_write(region, self.now);
        }
        self.unpin_sums(id);
        let job = self.jobs.get_mut(id);
        job.at += len;
        if !has_failed && job.at < job.io.offset + job.io.len {
            return self.begin_segment(id);
        }
        let (token, error) = (job.io.token, job.error);
        self.end_job(id);
        self.put_ready(Completion::new(token, error.map_or(Ok(()), Err)));
    }

    /// A write that has not begun ends so.
    pub(super) fn fail_write(&mut self, id: u32, kind: ErrorKind) {
        let job = self.jobs.get_mut(id);
        job.error = Some(job.io.error(kind, NAME));
        self.end_segment(id);
    }

    /// Nothing of a job is left, and others get its range.
    pub(super) fn end_job(&mut self, id: u32) {
        self.unpin_sums(id);
        let Some(job) = self.jobs.remove(id.into()) else { return };
        if !job.is_locked {
            return;
        }
        let mut granted = std::mem::take(&mut self.granted);
        self.locks.release(id, &mut granted);
        granted.drain(..).for_each(|next| self.begin_segment(next));
        self.granted = granted;
    }

    /// How a block of that sum fits what is kept of it.
    pub(super) fn fit(&self, block: u64, sum: u32) -> Fit {
        let entry = self.sums.entry(block);
        let region = ((block * BLOCK) >> self.region_shift) as u32;
        let is_in_doubt = self.regions.stale(region) != 0;
        match () {
            () if entry.now == sum => Fit::Good,
            () if is_in_doubt && entry.before == sum => Fit::Older,
            () if is_in_doubt => Fit::Unverified,
            () => Fit::Bad,
        }
    }

    fn finish_read(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let is_verified = job.io.flags.verified;
        if job.error.is_none() && job.io.op == Op::BlockStatus {
            self.check_zeroes(id);
        } else if job.error.is_none() {
            let (first, data) = (job.at / BLOCK, std::mem::take(&mut job.data));
            let mut bad = None;
            self.summer.each(first, &data, |block, sum| match self.fit(block, sum) {
                Fit::Good | Fit::Older => {}
                Fit::Unverified if !is_verified => {}
                Fit::Unverified | Fit::Bad => bad = bad.or(Some(block)),
            });
            let job = self.jobs.get_mut(id);
            match bad {
                None => job.data = data,
                Some(block) => {
                    let offset = block * BLOCK;
                    let io = Io::new(0, Op::Read, offset, BLOCK);
                    job.error = Some(io.error(ErrorKind::BadSum, NAME));
                    // Whoever can ask another one tells of it.
                    if !is_verified {
                        self.tell(VolumeEvent::BadBlock { offset, is_mended: false, of: None });
                    }
                }
            }
        }
        let job = self.jobs.get_mut(id);
        let mut completion = Completion::new(job.io.token, job.error.map_or(Ok(()), Err));
        if completion.result.is_ok() {
            completion.data = std::mem::take(&mut job.data);
            completion.extents = std::mem::take(&mut job.extents);
        }
        self.end_job(id);
        self.put_ready(completion);
    }

    /// Of what the part says that it reads as zeroes only that is told where the sums say so, too. What has no hole, or is not told
    /// of to the end of a block, is data.
    fn check_zeroes(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let (mut block, told) = (job.at / BLOCK, std::mem::take(&mut job.extents));
        let mut extents = Vec::new();
        // So much of the block was told, and what it all is.
        let (mut in_block, mut hole, mut zero) = (0, true, true);
        for extent in told {
            let mut left = extent.len;
            while left > 0 && extents.len() < EXTENTS_MAX {
                let now = left.min(BLOCK - in_block);
                (zero, hole) = (zero && extent.zero, hole && extent.hole);
                (left, in_block) = (left - now, in_block + now);
                if in_block == BLOCK {
                    let is_zero = zero && self.fit(block, 0) == Fit::Good;
                    let run = Extent { len: BLOCK, hole: hole && is_zero, zero: is_zero };
                    push_extent(&mut extents, run);
                    (block, in_block, hole, zero) = (block + 1, 0, true, true);
                }
            }
        }
        if extents.is_empty() {
            extents.push(Extent { len: BLOCK, hole: false, zero: false });
        }
        self.jobs.get_mut(id).extents = extents;
    }
}
