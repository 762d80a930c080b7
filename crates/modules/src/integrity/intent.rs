//! Which regions are open, on record: durably before the first write of each, and not any more once all that was written there is
//! flushed. One batch of blocks of the bitmap is under way at a time; what is to be opened meanwhile goes with the next one, so many writes share
//! it, and no opening meets a closing of its block.
//!
//! Of each block there are two copies, written by turns: what a crash tears, or the disk spoils, is not the only one.

use std::time::Duration;

use super::*;
use crate::write_intent::bitmap::{
    BLOCK_BYTES, BlockImage, BlockName, REGIONS_EACH, decode, encode,
};

/// That of the newest copy of a block that nobody has written since it was made.
pub(super) const MADE_NUMBER: u64 = 2;
/// What could not be written, and nobody waits for, is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Closing {
    /// It is in use.
    #[default]
    No,
    /// What users have asked for, and what it does by itself, ends.
    Asked,
    /// All is being flushed.
    Flushing,
    /// The record is being written.
    Clearing,
    /// What the end needs has failed so; something is still under way below.
    Failed(ErrorKind),
    /// Nothing is under way, nor will be; regions are left open if something went wrong.
    Done(Option<ErrorKind>),
}

/// A block of the bitmap that is being read.
struct Finding {
    block: u32,
    pending: u32,
    best: Option<(u64, Vec<u8>)>,
    error: Option<ErrorKind>,
    errors: u32,
}

pub(super) struct Intent {
    /// Writes that wait for their regions, in the order in which they came.
    waiting: Vec<u32>,
    /// Blocks that are being written, and what went wrong.
    pending: u32,
    error: Option<ErrorKind>,
    retry_at: Time,
    /// A flush is under way, so that regions can be closed.
    is_closing: bool,
    /// Of each block, that of the newest copy.
    numbers: Vec<u64>,
    finding: Option<Finding>,
    image: Box<BlockImage>,
}

impl Intent {
    pub fn new(blocks: usize) -> Self {
        Intent {
            waiting: Vec::new(),
            pending: 0,
            error: None,
            retry_at: Time::ZERO,
            is_closing: false,
            numbers: vec![0; blocks],
            finding: None,
            image: Box::new([0; BLOCK_BYTES]),
        }
    }

    /// The number of the newest copy of a block.
    #[cfg(test)]
    pub fn number_of(&self, block: usize) -> u64 {
        self.numbers[block]
    }

    /// There are so many blocks by now, of which new ones are as they were made.
    pub fn grow(&mut self, blocks: usize) {
        self.numbers.resize(blocks, MADE_NUMBER);
    }

    /// A write waits until its regions are open.
    pub fn wait(&mut self, id: u32) {
        self.waiting.push(id);
    }
}

impl Integrity {
    fn name(&self, index: u32) -> BlockName {
        BlockName { whole: self.whole, index, region_shift: self.region_shift }
    }

    /// Reads both copies of a block of the bitmap.
    pub(super) fn find_bits(&mut self, block: u32) {
        let finding = Finding { block, pending: 2, best: None, error: None, errors: 0 };
        self.intent.finding = Some(finding);
        for number in 0..2 {
            let io = Io::new(0, Op::Read, SumLayout::bitmap_at(block, number), BLOCK);
            self.hand_down(io, Flight::Find { number });
        }
    }

    /// A copy was read, or not. Of two that cannot be gone by, all regions count as open.
    pub(super) fn on_find(&mut self, copy: u64, completion: Completion) {
        let Some(mut finding) = self.intent.finding.take() else { return };
        finding.pending -= 1;
        match completion.result {
            Ok(()) => {
                let mut image = [0; BLOCK_BYTES];
                completion.data.copy_to(&mut image);
                let says = decode(&image, self.name(finding.block));
                // One that belongs into the other place was misdirected.
                if let Some((regions, number)) = says.filter(|(_, number)| number % 2 == copy)
                    && finding.best.as_ref().is_none_or(|(best, _)| *best < number)
                {
                    finding.best = Some((number, regions.to_vec()));
                }
            }
            Err(error) => {
                finding.errors += 1;
                finding.error = Some(error.kind);
            }
        }
        if finding.pending > 0 {
            self.intent.finding = Some(finding);
            return;
        }
        if let Some(kind) = finding.error.filter(|_| finding.errors == 2) {
            return self.stop(kind);
        }
        let first = finding.block * REGIONS_EACH as u32;
        // The one that cannot be read may be the newer one, and say of more regions that they were written.
        let is_known = finding.errors == 0;
        for region in first..self.regions.count().min(first + REGIONS_EACH as u32) {
            let best = finding.best.as_ref().filter(|_| is_known);
            let says = best.map(|(_, all)| all[(region - first) as usize]);
            let is_forgotten = self.canary == IntegrityCanary::Forgetful;
            let is_in_doubt = says != Some(0) && !is_forgotten;
            self.regions.load(region, u8::from(is_in_doubt), says.unwrap_or(u8::MAX));
        }
        self.intent.numbers[finding.block as usize] = finding.best.map_or(0, |(number, _)| number);
        match finding.block + 1 < self.regions.blocks() {
            true => self.find_bits(finding.block + 1),
            false => {
                self.is_open = true;
                while let Some(io) = self.queue.pop_front() {
                    self.submit_now(io);
                }
            }
        }
    }

    /// Writes down what is to be written, if nothing is.
    pub(super) fn step_bits(&mut self) -> bool {
        if self.intent.pending > 0 || !self.regions.is_dirty() {
            return false;
        }
        if self.intent.waiting.is_empty() && self.intent.retry_at > self.now {
            return false;
        }
        while let Some(index) = self.regions.take_dirty() {
            let name = self.name(index);
            let number = self.intent.numbers[index as usize] + 1;
            let image = &mut self.intent.image;
            self.regions.fill(index, image);
            encode(image, name, number);
            let mut io = Io::new(0, Op::Write, SumLayout::bitmap_at(index, number), BLOCK);
            io.data = SegList::of(self.config.pool.copy_of(&image[..]).freeze());
            (io.flags.fua, io.flags.meta) = (true, true);
            self.intent.pending += 1;
            self.hand_down(io, Flight::Bits { block: index });
        }
        true
    }

    /// A block of the bitmap was written, or not; behind the last one whoever waited goes on.
    pub(super) fn on_bits(&mut self, block: u32, result: Result<(), IoError>) {
        match result {
            Ok(()) => self.intent.numbers[block as usize] += 1,
            // The next one goes to the same copy.
            Err(error) => self.intent.error = Some(error.kind),
        }
        self.intent.pending -= 1;
        if self.intent.pending > 0 {
            return;
        }
        let error = self.intent.error.take();
        self.regions.on_written(error.is_none());
        if let Some(kind) = error {
            self.intent.retry_at = self.now + RETRY_AFTER;
            self.regions.soil_all();
            self.fail_closing(kind);
        }
        let mut waiting = std::mem::take(&mut self.intent.waiting);
        for id in waiting.drain(..) {
            let job = self.jobs.get_mut(id);
            let (at, len) = (job.at, job.len);
            let is_open = self.regions.of(at, len).all(|region| self.regions.is_durable(region));
            match error {
                _ if is_open => self.load_for_write(id),
                Some(kind) => self.fail_write(id, kind),
                // It came when the batch was under way.
                None => self.intent.waiting.push(id),
            }
        }
        if self.intent.waiting.is_empty() {
            // Keeps what room it has.
            self.intent.waiting = waiting;
        }
    }

    /// Begins to close regions that nobody has written for long: with a flush.
    pub(super) fn step_close(&mut self) -> bool {
        let is_free = !self.intent.is_closing && self.closing == Closing::No;
        if !is_free || self.regions.next_close(self.now) > self.now {
            return false;
        }
        let ended = self.regions.ended();
        if self.canary == IntegrityCanary::EarlyClose {
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
        let is_last = self.closing == Closing::Flushing;
        match job.error {
            None if is_last => {
                self.regions.close_now(ended);
                self.closing = Closing::Clearing;
            }
            None => {
                self.regions.close(ended, self.now);
                self.look_at_written();
            }
            Some(error) => {
                // What it should have covered may be gone.
                self.on_own_flush_failed();
                self.regions.put_off(self.now);
                self.fail_closing(error.kind);
            }
        }
    }

    /// When the next region is to be closed, or what failed is tried again.
    pub(super) fn next_close(&mut self) -> Time {
        if self.config.read_only || !self.is_open || matches!(self.closing, Closing::Done(_)) {
            return Time::NEVER;
        }
        let is_dirty = self.regions.is_dirty() && self.intent.retry_at > self.now;
        let retry = if is_dirty { self.intent.retry_at } else { Time::NEVER };
        match self.intent.is_closing || self.closing != Closing::No {
            true => retry,
            false => retry.min(self.regions.next_close(self.now)),
        }
    }

    /// Goes on with the end, when nothing else can.
    pub(super) fn step_closing(&mut self) -> bool {
        if matches!(self.closing, Closing::No | Closing::Flushing | Closing::Done(_)) {
            return false;
        }
        // Nor does what failed end beside what is under way below.
        let is_quiet = self.jobs.iter_mut().next().is_none()
            && self.intent.pending == 0
            && !self.growth.is_out();
        if let Closing::Failed(kind) = self.closing {
            return is_quiet && self.end_closing(Some(kind));
        }
        if !is_quiet || !self.is_open {
            return false;
        }
        match self.closing {
            Closing::Asked if self.regions.open_count() > 0 => {
                self.closing = Closing::Flushing;
                let ended = self.regions.ended();
                let id = self.new_job(Task::Close { ended }, Io::new(0, Op::Flush, 0, 0));
                self.send_flush(id);
            }
            _ if self.regions.is_dirty() => return false,
            _ => return self.end_closing(None),
        }
        true
    }

    fn end_closing(&mut self, failed: Option<ErrorKind>) -> bool {
        self.closing = Closing::Done(failed);
        self.below.wind_up();
        true
    }

    /// What the end needs has failed.
    fn fail_closing(&mut self, kind: ErrorKind) {
        if !matches!(self.closing, Closing::No | Closing::Done(_)) {
            self.closing = Closing::Failed(kind);
        }
    }
}
