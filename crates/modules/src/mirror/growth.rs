//! Growth: the mirror becomes as large as its legs have become, all at once and on record (rule 24). What it grows by is zeroed on
//! all legs first, and flushed, so that they are alike there, and nobody reads what stood there before.
//!
//! The new size comes with a new generation, and not with what announces that: so of labels that a crash leaves, those with the larger size
//! are known to be the newer.

use thinwire_buffer::{SegList, Time};
use thinwire_volume::{ErrorKind, Geometry, Io, Op, VolumeEvent};

use super::desk::{MirrorAnswer, MirrorAsk, MirrorAskError, MirrorDone, failed};
use super::opening::Phase;
use super::serve::{Doubt, ZEROES_MAX};
use super::{LegState, Mirror, MirrorCanary, NAME, Task, bits};
use crate::write_intent::bitmap::REGIONS_MAX;

/// Zeroes are written in pieces of so many bytes where they have to be sent.
const PAYLOAD_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Nothing,
    /// From there on all is still to be zeroed.
    Zeroing { at: u64 },
    /// It is being flushed.
    Flushing,
    /// It is being put on record: with the generation that is drawn next.
    Recording,
    /// That is being written.
    Written,
}

#[derive(Default)]
pub(super) struct Growth {
    step: Step,
    /// Its size then, in bytes.
    to: u64,
    /// Legs that are zeroed.
    legs: u8,
    /// A job of its is under way.
    is_out: bool,
}

impl Mirror {
    /// Begins with what is asked for.
    pub(super) fn hear_asks(&mut self) {
        if self.phase != Phase::Serving || self.is_ending() {
            return;
        }
        while self.step_replacement() {}
        while let Some(ask) = self.desk.begin() {
            let begun = match ask {
                MirrorAsk::Replace { leg, by } => self.begin_replacement(leg, by).inspect(|()| {
                    self.desk.end(Ok(MirrorDone::of(self.geometry.bytes)));
                }),
                MirrorAsk::Grow => self.begin_growth().inspect(|()| self.desk.grows(true)),
                MirrorAsk::Remove(leg) => self.begin_removal(leg),
                MirrorAsk::Add { uuid, leg, only_look } => {
                    self.begin_addition(uuid, leg, only_look)
                }
            };
            if let Err(error) = begun {
                self.desk.end(Err(error));
            }
        }
    }

    /// All legs that were not removed.
    pub(super) fn described(&self) -> u8 {
        let is_one = |leg: &usize| !matches!(self.state.legs[*leg], LegState::Removed { .. });
        (0..self.state.legs.len()).filter(is_one).fold(0, |legs, leg| legs | 1 << leg)
    }

    fn begin_growth(&mut self) -> Result<(), MirrorAskError> {
        if self.geometry.features.read_only {
            return Err(MirrorAskError::ReadOnly);
        }
        let missing = self.described() & !self.in_sync;
        if let Some(leg) = bits(missing).next() {
            return Err(MirrorAskError::NotInSync { leg });
        }
        let block = u64::from(self.geometry.block_bytes);
        let room = |leg: usize| {
            let Some(at) = &self.legs[leg] else { return 0 };
            at.volume.geometry().bytes.saturating_sub(at.label.data_start) / block * block
        };
        let rooms = bits(self.in_sync).map(|leg| (room(leg), leg));
        let (room, leg) = rooms.min().expect("one leg is in sync");
        let most = REGIONS_MAX << self.state.region_shift;
        let to = room.min(most / block * block);
        if to <= self.geometry.bytes {
            return Err(match room > self.geometry.bytes {
                true => MirrorAskError::Bitmaps { bytes: self.geometry.bytes },
                false => MirrorAskError::NoRoom { leg },
            });
        }
        (self.growth.to, self.growth.legs) = (to, self.in_sync);
        self.growth.step = Step::Zeroing { at: self.geometry.bytes };
        if self.canary == MirrorCanary::GrowsUnzeroed {
            self.record_growth();
        }
        Ok(())
    }

    /// Goes on with it, if it can.
    pub(super) fn step_growth(&mut self) -> bool {
        let Growth { step, is_out, .. } = self.growth;
        if is_out || !matches!(step, Step::Zeroing { .. } | Step::Flushing) {
            return false;
        }
        if self.is_ending() {
            self.end_growth(Err(MirrorAskError::Closed));
            return true;
        }
        if self.growth.legs != self.in_sync {
            self.end_growth(Err(MirrorAskError::Dropped));
            return true;
        }
        let Step::Zeroing { at } = step else {
            self.record_growth();
            return true;
        };
        match self.growth.to - at {
            0 => {
                self.growth.step = Step::Flushing;
                self.growth.is_out = true;
                let id = self.new_job(Task::Grow, Io::new(0, Op::Flush, 0, 0));
                self.send_flush(id);
                true
            }
            left => self.zero(at, left),
        }
    }

    /// Zeroes the next piece, as far as the pace allows.
    fn zero(&mut self, at: u64, left: u64) -> bool {
        let Geometry { io_bytes_max, features, .. } = self.geometry;
        let (op, most) = match features.write_zeroes {
            true => (Op::WriteZeroes, ZEROES_MAX),
            false => (Op::Write, PAYLOAD_BYTES.min(io_bytes_max.into())),
        };
        let len = left.min(most);
        // A hole costs less than its bytes.
        let costs = len.min(PAYLOAD_BYTES);
        if !self.pace.take(costs, self.outstanding > self.ready.len(), self.now) {
            return false;
        }
        let data = match op {
            Op::Write => SegList::of(self.config.pool.get_zeroed(len as usize).freeze()),
            _ => SegList::new(),
        };
        self.growth.is_out = true;
        let id = self.new_job(Task::Grow, Io::new(0, op, at, len));
        for leg in bits(self.growth.legs) {
            let data = data.clone();
            self.send_data(leg, id, Io { data, ..Io::new(0, op, at, len) });
        }
        true
    }

    /// How much of what it grows by is zeroed, of how much.
    pub(super) fn grows(&self) -> Option<(u64, u64)> {
        let (from, all) = (self.geometry.bytes, self.growth.to.saturating_sub(self.geometry.bytes));
        match self.growth.step {
            Step::Nothing => None,
            Step::Zeroing { at } => Some((at.saturating_sub(from), all)),
            Step::Flushing | Step::Recording | Step::Written => Some((all, all)),
        }
    }

    /// When it may go on that waits for time.
    pub(super) fn next_growth(&self) -> Time {
        match self.growth {
            Growth { step: Step::Zeroing { .. }, is_out: false, .. } => {
                self.pace.idle_at().max(self.now)
            }
            _ => Time::NEVER,
        }
    }

    /// What was zeroed on that leg may be gone, however soon it is in sync again: its resync knows of the old size only.
    pub(super) fn forget_zeroed(&mut self, leg: usize) {
        let is_before = matches!(self.growth.step, Step::Zeroing { .. } | Step::Flushing);
        if is_before && self.canary != MirrorCanary::TrustsZeroed {
            self.growth.legs &= !(1 << leg);
        }
    }

    /// What it grows by is being zeroed.
    #[cfg(test)]
    pub(super) fn is_zeroing(&self) -> bool {
        matches!(self.growth.step, Step::Zeroing { .. })
    }

    /// A piece is zeroed, or all of it flushed.
    pub(super) fn finish_growth(&mut self, id: u32) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        self.growth.is_out = false;
        if job.failed & self.growth.legs != 0 || job.io.op == Op::Flush && job.failed != 0 {
            let otherwise = job.io.error(ErrorKind::Io, NAME);
            // What a flush has not covered may be a user's, too.
            if job.io.op == Op::Flush
                && self.judge(job.ok, job.failed, job.error, Doubt::Open).is_err()
            {
                self.tell_loss();
            }
            return self.end_growth(Err(failed(job.error, otherwise)));
        }
        if let Step::Zeroing { at } = &mut self.growth.step {
            *at += job.io.len;
        }
    }

    fn record_growth(&mut self) {
        self.growth.step = Step::Recording;
        if self.canary == MirrorCanary::GrowsWhenAnnounced {
            self.bytes = self.growth.to;
        }
        self.record.want();
    }

    /// A generation is about to be written: the size comes with it.
    pub(super) fn on_generation(&mut self) {
        if self.growth.step == Step::Recording {
            self.growth.step = Step::Written;
            self.bytes = self.growth.to;
        }
    }

    /// It is on record how the mirror stands.
    pub(super) fn on_record(&mut self) {
        self.end_removal();
        self.end_addition();
        if self.growth.step != Step::Written {
            return;
        }
        let before = self.geometry.bytes;
        self.geometry.bytes = self.growth.to;
        self.scrub.extend(self.growth.to);
        self.regions.grow(self.growth.to);
        // Who was taken in meanwhile may have anything there.
        let others = self.regions.all() & !self.growth.legs;
        for region in self.regions.of(before, self.growth.to - before) {
            self.regions.add_stale(region, others);
        }
        self.news.push(VolumeEvent::Resized { bytes: self.geometry.bytes });
        self.news_count = self.news_count.wrapping_add(1);
        self.end_growth(Ok(MirrorDone::of(self.geometry.bytes)));
    }

    fn end_growth(&mut self, answer: MirrorAnswer) {
        self.growth = Growth::default();
        self.desk.grows(false);
        self.desk.end(answer);
    }
}
