//! Write intent: the bits of a region are durable on all legs before it is written (rule 1), and are cleared late, when all
//! legs have flushed what was written (rule 2).
//!
//! One batch of blocks is under way at a time: all that are to be written when it begins, to all legs. What is to be
//! set meanwhile goes with the next one, so that many writes share it, and no set meets a clear of its block.

use std::time::Duration;

use thinwire_buffer::{SegList, Time};
use thinwire_volume::{Completion, ErrorKind, Io, Op};

use super::bitmap::{BLOCK_BYTES, BlockImage, BlockName, encode};
use super::opening::Phase;
use super::serve::Doubt;
use super::{BITMAP_OFFSET, Mirror, MirrorCanary, NAME, Task, bits};

/// What could not be written to any leg, and nobody waits for, is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Intent {
    /// Writes that wait for bits, in the order in which they came.
    waiting: Vec<u32>,
    is_writing: bool,
    /// Batches that have begun, and when the next may if nobody waits for it.
    begun: u64,
    /// The last of them that is durable: with it all that was to be written by any before.
    durable: u64,
    retry_at: Time,
    /// All legs are being flushed, so that regions can be closed.
    is_closing: bool,
    /// Of the last block that was written, or read.
    pub number: u64,
    image: Option<Box<BlockImage>>,
}

impl Intent {
    /// A write waits until its bits are durable.
    pub fn wait(&mut self, id: u32) {
        self.waiting.push(id);
    }

    /// The number of the next batch, with all that is to be written by now.
    pub fn next_batch(&self) -> u64 {
        self.begun + 1
    }

    /// Whether that batch was written, or a later one.
    pub fn is_through(&self, batch: u64) -> bool {
        self.durable >= batch
    }

    /// A batch is under way.
    pub fn is_writing(&self) -> bool {
        self.is_writing
    }
}

impl Mirror {
    /// Writes down what is to be written, if nothing is.
    pub(super) fn step_bits(&mut self) -> bool {
        let is_free = !self.intent.is_writing && !self.record.is_changing();
        if !is_free || self.phase != Phase::Serving || !self.regions.is_dirty() {
            return false;
        }
        if self.intent.waiting.is_empty() && self.intent.retry_at > self.now {
            return false;
        }
        self.intent.is_writing = true;
        self.intent.begun += 1;
        let id = self.new_job(Task::Bits, Io::new(0, Op::Write, 0, BLOCK_BYTES as u64));
        let mut image = self.intent.image.take().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
        while let Some(index) = self.regions.take_dirty() {
            self.regions.fill(index, &mut image);
            self.intent.number += 1;
            let (whole, region_shift) = (self.whole, self.state.region_shift);
            encode(&mut image, BlockName { whole, index, region_shift }, self.intent.number);
            let data = SegList::of(self.config.pool.copy_of(&image[..]).freeze());
            let offset = BITMAP_OFFSET + u64::from(index) * BLOCK_BYTES as u64;
            for leg in bits(self.active) {
                let mut io = Io::new(0, Op::Write, offset, BLOCK_BYTES as u64);
                (io.flags.fua, io.flags.meta, io.data) = (true, true, data.clone());
                self.send(leg, id, io);
            }
        }
        self.intent.image = Some(image);
        true
    }

    /// A batch has ended: who waited for it goes on.
    pub(super) fn finish_bits(&mut self, id: u32) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        self.intent.is_writing = false;
        let is_durable = job.ok & self.in_sync != 0;
        // A leg that has not taken it, or may have lost it again, knows nothing of what is written there: before any other has that, it is on record
        // as behind. Else it would be trusted, should it be opened alone after a crash, and what it does not know of would never be copied.
        let has_all = job.failed == 0 && !self.record.is_changing();
        let is_everywhere = match self.canary {
            MirrorCanary::SendsBeforeRecord => true,
            MirrorCanary::SendsBesideRecord => job.failed == 0,
            _ => has_all,
        };
        self.regions.on_written(is_durable && is_everywhere);
        if is_durable {
            bits(job.failed & self.active).for_each(|leg| self.drop_if_spare(leg, false));
        }
        match is_durable && is_everywhere {
            true => self.intent.durable = self.intent.begun,
            // All of it comes with the next one, whose number somebody may wait for already.
            false => self.regions.soil_all(),
        }
        self.send_waiting();
        if !is_durable {
            job.error.into_iter().for_each(|error| self.fail_closing(error));
            self.intent.retry_at = self.now + RETRY_AFTER;
            self.fail_waiting(job.error.map_or(ErrorKind::Io, |error| error.kind));
        }
    }

    /// Sends writes whose bits are durable.
    fn send_waiting(&mut self) {
        let mut waiting = std::mem::take(&mut self.intent.waiting);
        // Others came when the batch was under way.
        waiting.retain(|&id| {
            let Io { offset, len, .. } = self.jobs.get_mut(id).io;
            let may_go = self.regions.of(offset, len).all(|region| self.regions.is_durable(region));
            if may_go {
                self.send_write(id);
            }
            !may_go
        });
        self.intent.waiting = waiting;
    }

    /// A write that has not begun ends so.
    fn fail_write(&mut self, id: u32, kind: ErrorKind) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        let (offset, len) = (job.io.offset, job.io.len);
        self.end_write(id, offset, len);
        self.tell(&job.io, Completion::new(job.io.token, Err(job.io.error(kind, NAME))));
    }

    /// Fails all writes that wait for bits. False if none does.
    pub(super) fn fail_waiting(&mut self, kind: ErrorKind) -> bool {
        let any = !self.intent.waiting.is_empty();
        // Those that wait for their ranges come next.
        while let Some(id) = self.intent.waiting.pop() {
            self.fail_write(id, kind);
        }
        any
    }

    /// Begins to close regions that nobody has written for long: with a flush of all legs.
    pub(super) fn step_close(&mut self) -> bool {
        let is_free = !self.intent.is_closing && !self.record.is_changing();
        let is_free = is_free && !self.is_ending();
        if !is_free || self.phase != Phase::Serving || self.regions.next_close(self.now) > self.now
        {
            return false;
        }
        let ended = self.regions.ended();
        if self.canary == MirrorCanary::EarlyClear {
            self.regions.close(ended, self.now);
            return true;
        }
        self.intent.is_closing = true;
        let id = self.new_job(Task::Close { ended }, Io::new(0, Op::Flush, 0, 0));
        self.send_flush(id);
        true
    }

    pub(super) fn finish_close(&mut self, id: u32, ended: u64) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        self.intent.is_closing = false;
        let result = self.judge(job.ok, job.failed, job.error, Doubt::Open);
        if result.is_err() {
            self.tell_loss();
        }
        if self.finish_closing(ended, result) {
            return;
        }
        if result.is_ok() {
            self.regions.close(ended, self.now);
        } else {
            // Not at once again: what is open is as if it had been written now.
            self.regions.put_off(self.now);
        }
    }

    /// When the first region is to be closed.
    pub(super) fn next_close(&mut self) -> Time {
        let is_closing = self.is_ending();
        if self.record.is_changing() || self.phase != Phase::Serving || is_closing {
            return match self.regions.is_dirty() && self.intent.retry_at > self.now {
                true => self.intent.retry_at,
                false => Time::NEVER,
            };
        }
        let retry = if self.regions.is_dirty() { self.intent.retry_at } else { Time::NEVER };
        let retry = if retry > self.now { retry } else { Time::NEVER };
        match self.intent.is_closing {
            true => retry,
            false => retry.min(self.regions.next_close(self.now)),
        }
    }
}
