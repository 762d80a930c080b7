//! Users' I/Os: to which legs they go, and how they end of what those have done.

use thinwire_volume::{Completion, ErrorKind, Io, IoError, Op};

use super::{Job, Mirror, MirrorCanary, NAME, Task, bits};

/// Zeroes are written in pieces of so many bytes, one after the other: a leg answers in time for each, and for what else it is
/// asked meanwhile, however many they are. Few in tests, whose disks are small.
pub(super) const ZEROES_MAX: u64 = if cfg!(test) { 256 << 10 } else { 8 << 20 };

/// Where legs may differ after all of them have failed something.
#[derive(Clone, Copy)]
pub(super) enum Doubt {
    /// In these bytes.
    Range { offset: u64, len: u64 },
    /// In all that was written lately.
    Open,
}

impl Mirror {
    /// Begins what a user has asked for.
    #[inline]
    pub(super) fn begin(&mut self, io: Io) {
        self.pace.on_use(io.len, self.now);
        match io.op {
            // What is to end is waited for as a job is.
            Op::Read | Op::BlockStatus if !self.is_ending() && self.ask_once(&io) => {}
            Op::Read | Op::BlockStatus => {
                let id = self.new_job(Task::User, io);
                if !self.ask(id) {
                    self.ripe.push_back(id);
                }
            }
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let (offset, end) = (io.offset, io.offset + io.len);
                let id = self.new_job(Task::User, io);
                if self.locks.acquire(id, offset, end, true) {
                    self.begin_write(id);
                }
            }
            // There is nothing to flush.
            Op::Flush if self.config.read_only => {
                self.ready.push(Completion::new(io.token, Ok(())));
            }
            Op::Flush => {
                let id = self.new_job(Task::User, io);
                self.send_flush(id);
            }
            Op::Cut => self.begin_cut(io),
            Op::LoadWriter => self.load_writer(&io),
            Op::StoreWriter => self.store_writer(io),
        }
    }

    /// A read that has waited for writes holds its range, for as long as it takes.
    fn begin_read(&mut self, id: u32) {
        if !self.ask(id) {
            self.ripe.push_back(id);
        }
    }

    /// As [`Mirror::send`], with a range of the data.
    #[inline]
    pub(super) fn send_data(&mut self, leg: usize, id: u32, mut io: Io) {
        io.offset += self.legs[leg].as_ref().map_or(0, |leg| leg.label.data_start);
        self.send(leg, id, io);
    }

    /// A write holds its range: its regions are opened first.
    pub(super) fn begin_write(&mut self, id: u32) {
        let Io { offset, len, .. } = self.jobs.get_mut(id).io;
        let mut may_go = true;
        for region in self.regions.of(offset, len) {
            let readers = match self.regions.is_quiet(region) {
                true => self.readers(region),
                false => 0,
            };
            may_go &= self.regions.begin_write(region, readers);
        }
        let overtakes = match self.canary {
            MirrorCanary::IntentAfterData => true,
            MirrorCanary::ClearOvertakesSet => self.intent.is_writing(),
            _ => false,
        };
        match may_go || overtakes {
            true => self.send_write(id),
            false => self.intent.wait(id),
        }
    }

    /// A write goes to all legs that get what is written, or the next piece of it: the bits that tell of it are durable there.
    pub(super) fn send_write(&mut self, id: u32) {
        let (active, job) = (self.active, self.jobs.get_mut(id));
        let Io { op, flags, mut offset, mut len, .. } = job.io;
        let data = std::mem::take(&mut job.io.data);
        let sent = job.sent;
        // All legs read the same afterwards, which a discard does not promise.
        let op = if op == Op::Discard { Op::WriteZeroes } else { op };
        job.sent = if op == Op::WriteZeroes { len.min(sent + ZEROES_MAX) } else { len };
        let to_send = job.sent - sent;
        let lacking = self.regions.all() & !active;
        // All of it is open: legs that are dropped later lack it by that.
        if lacking != 0 && sent == 0 {
            for region in self.regions.of(offset, len) {
                self.regions.add_stale(region, lacking);
            }
        }
        (offset, len) = (offset + sent, to_send);
        for leg in bits(active) {
            let data = data.clone();
            self.send_data(leg, id, Io { flags, data, ..Io::new(0, op, offset, len) });
        }
    }

    /// Sends a flush to all legs that get what is written, so that what succeeds is durable on each leg that will be in sync.
    pub(super) fn send_flush(&mut self, id: u32) {
        for leg in bits(self.active) {
            self.send(leg, id, Io::new(0, Op::Flush, 0, 0));
        }
    }

    /// What a user has asked for has ended at all legs.
    pub(super) fn finish_user(&mut self, id: u32) {
        match self.jobs.get_mut(id).io.op {
            Op::Read | Op::BlockStatus => self.finish_read(id),
            Op::Cut => self.finish_cut(id),
            Op::Flush => {
                let Some(job) = self.jobs.remove(id.into()) else { return };
                let result = self.judge(job.ok, job.failed, job.error, Doubt::Open);
                self.tell(&job.io, Completion::new(job.io.token, result));
            }
            _ => self.finish_write(id),
        }
    }

    fn finish_write(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        if job.sent < job.io.len && job.ok & self.in_sync != 0 {
            let failed = job.failed & self.active;
            (job.ok, job.failed, job.unable, job.error) = (0, 0, 0, None);
            job.bad = 0;
            bits(failed).for_each(|leg| self.drop_if_spare(leg, false));
            return self.send_write(id);
        }
        let Some(job) = self.jobs.remove(id.into()) else { return };
        let Io { token, offset, len, .. } = job.io;
        let result = self.judge(job.ok, job.failed, job.error, Doubt::Range { offset, len });
        self.end_write(id, offset, len);
        if matches!(job.task, Task::User) {
            self.tell(&job.io, Completion::new(token, result));
        }
    }

    /// A write is over, however: its regions may be closed later, and others get its range.
    pub(super) fn end_write(&mut self, id: u32, offset: u64, len: u64) {
        for region in self.regions.of(offset, len) {
            self.regions.end_write(region, self.now);
        }
        self.unlock(id);
    }

    /// Lets in who waited for a range.
    pub(super) fn unlock(&mut self, id: u32) {
        let mut granted = std::mem::take(&mut self.granted);
        self.locks.release(id, &mut granted);
        for next in granted.drain(..) {
            let job = self.jobs.get_mut(next);
            match job.task {
                Task::Copy(_) => self.begin_copy(next),
                Task::Look(_) => self.ask_all(next),
                _ if job.is_locked => self.begin_read(next),
                _ => self.begin_write(next),
            }
        }
        self.granted = granted;
    }

    /// A planted fault: the first leg completes a write.
    pub(super) fn tell_early(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        if matches!(job.task, Task::User) && job.io.op.is_write() {
            job.task = Task::Told;
            let io = Io::new(job.io.token, job.io.op, job.io.offset, job.io.len);
            self.tell(&io, Completion::new(io.token, Ok(())));
        }
    }

    fn finish_read(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        if job.ok == 0 && self.ask(id) {
            return;
        }
        let job = self.jobs.get_mut(id);
        if job.ok == 0 && job.bad & self.in_sync != 0 && job.io.op == Op::Read {
            // Each block of it another one may have.
            return self.mend_for(id);
        }
        let Some(job) = self.jobs.remove(id.into()) else { return };
        if job.is_locked {
            self.unlock(id);
        }
        let Io { token, op, offset, len, .. } = job.io;
        if job.ok == 0 {
            let error = job.error.unwrap_or(job.io.error(ErrorKind::Io, NAME));
            return self.tell(&job.io, Completion::new(token, Err(error)));
        }
        self.on_shown(offset, len);
        let now = self.now;
        if job.bad & self.in_sync != 0 && !self.config.read_only {
            self.mend(offset, len);
        }
        // What another leg has served is written where it could not be read.
        for leg in bits(job.failed & !job.unable & !job.bad & self.in_sync) {
            let is_bad = self.legs[leg].as_mut().is_some_and(|leg| leg.on_read_error(now));
            match is_bad {
                true => self.drop_if_spare(leg, false),
                false if op == Op::Read && !self.config.read_only => self.repair(leg, offset, len),
                false => {}
            }
        }
        let completion = Completion::new(token, Ok(()));
        let Job { io, data, extents, .. } = job;
        self.tell(&io, Completion { data, extents, ..completion });
    }

    /// Tells how an I/O has ended, once what it depends on is on record.
    pub(super) fn tell(&mut self, io: &Io, completion: Completion) {
        let is_early = self.canary == MirrorCanary::CompletionBeforeRecord;
        if self.record.is_stuck() {
            // Nobody waits for a leg that takes nothing, but for so long.
            return match io.op {
                Op::Read | Op::BlockStatus => self.put_ready(completion),
                _ if self.record.is_given_up(self.now) => {
                    let error = io.error(ErrorKind::Io, NAME);
                    self.put_ready(Completion::new(completion.token, Err(error)));
                }
                _ => self.held.push((io.error(ErrorKind::Io, NAME), completion)),
            };
        }
        match self.record.is_changing() && !is_early {
            true => self.held.push((io.error(ErrorKind::Io, NAME), completion)),
            false => self.put_ready(completion),
        }
    }

    pub(super) fn put_ready(&mut self, completion: Completion) {
        if self.canary != MirrorCanary::IdleBetween {
            self.pace.on_end();
        }
        match completion.result {
            // What else comes with it may have seen the loss.
            Err(error) if error.op == Op::Flush => self.ready.insert(0, completion),
            _ => self.ready.push(completion),
        }
    }

    /// How something ends that went to several legs. If a leg in sync has done it, those that have not are dropped; if none
    /// has, one of them is the truth from now on, and the others are resynced from it.
    ///
    /// # Errors
    /// No leg in sync has done it.
    pub(super) fn judge(
        &mut self,
        ok: u8,
        failed: u8,
        error: Option<IoError>,
        doubt: Doubt,
    ) -> Result<(), IoError> {
        let Some(error) = error else { return Ok(()) };
        if ok & self.in_sync != 0 {
            bits(failed & self.active).for_each(|leg| self.drop_if_spare(leg, false));
            return Ok(());
        }
        let others = self.regions.all() & !lowest(self.in_sync);
        match doubt {
            Doubt::Open => self.regions.add_stale_where_open(others),
            Doubt::Range { offset, len } => {
                for region in self.regions.of(offset, len) {
                    self.regions.add_stale(region, others);
                }
            }
        }
        let in_sync = self.in_sync | self.record.promoting;
        bits(in_sync & others).for_each(|leg| self.demote(leg));
        Err(error)
    }
}

/// The first of these legs, as a bit.
pub(super) fn lowest(legs: u8) -> u8 {
    legs & legs.wrapping_neg()
}
