//! Reading what was open at a crash, and everything when somebody asks for that: region by region, beside users.

use std::time::Duration;

use thinwire_volume::ScrubReport;

use super::serve::Fit;
use super::sums::Entry;
use super::*;

/// Bytes that are read at once, at most, and how many such reads are outstanding.
pub(super) const CHECK_BYTES: u64 = 128 << 10;
const CHECKS_MAX: u32 = 4;
/// After so many regions what was found good is flushed, and they are closed.
const SETTLE_EACH: usize = 64;
/// Or after so long, so that who is cut off again and again gets on all the same.
const SETTLE_AFTER: Duration = Duration::from_secs(5);
/// What could not be read is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What became of something that was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// It is not there any more, as whoever reads sees.
    Lost,
    /// A flush has failed: it may be read for as long as the power stays, and no later flush writes it.
    Unflushed,
}

/// A region that is being read.
struct Region {
    number: u32,
    /// What of it is still to be begun, in bytes.
    at: u64,
    end: u64,
    /// What could not be read at once, and is read block by block.
    again: Vec<(u64, u64)>,
    reads: u32,
    is_of_scrub: bool,
    /// What is read of it is written again.
    rewrites: bool,
    /// Somebody begins anew: it does not count.
    is_void: bool,
    /// Some of it could not be told to be good: it stays as it is.
    is_doubtful: bool,
}

#[derive(Default)]
pub(super) struct Check {
    current: Option<Region>,
    /// The region that a scrub comes to next.
    next: Option<u32>,
    report: ScrubReport,
    /// Regions of which all blocks fit, and that are not flushed.
    good: Vec<u32>,
    is_settling: bool,
    /// Since when the first of them is.
    good_since: Time,
    /// Regions that hold what a flush has failed to cover.
    unflushed: Vec<u32>,
    pub retry_at: Time,
    /// Regions in doubt that were passed over, each with whether it was written since: then it may be as it should be.
    passed: Vec<(u32, bool)>,
    /// Blocks of regions that were open at a crash, which nobody was told of yet.
    unverified: u64,
}

impl Integrity {
    /// Goes on with what is to be read, as far as the pace allows.
    pub(super) fn step_check(&mut self) -> bool {
        if self.closing != Closing::No || self.stopped.is_some() {
            self.end_scrub();
            // What is under way ends; the rest comes with the next opening.
            return self.check.current.is_some() && self.end_region();
        }
        if self.check.is_settling {
            return false;
        }
        if self.check.current.is_some() {
            return self.check_on() || self.end_region();
        }
        if let Some(number) = self.check.next {
            self.begin_region(number, true);
            return true;
        }
        if self.config.read_only || self.check.retry_at > self.now {
            return false;
        }
        let is_old = self.now >= self.check.good_since + SETTLE_AFTER;
        let is_full = self.check.good.len() >= SETTLE_EACH || !self.check.good.is_empty() && is_old;
        let next = if is_full { None } else { self.regions.next_uncopied(1) };
        if let Some(number) = next {
            self.begin_region(number, false);
            return true;
        }
        if self.check.unverified > 0 && !is_full {
            let blocks = std::mem::take(&mut self.check.unverified);
            self.tell(VolumeEvent::Unverified { blocks, of: None });
        }
        if self.check.good.is_empty() {
            return false;
        }
        self.check.is_settling = true;
        let id = self.new_job(Task::Settle, Io::new(0, Op::Flush, 0, 0));
        self.send_flush(id);
        true
    }

    fn begin_region(&mut self, number: u32, is_of_scrub: bool) {
        self.regions.watch(number);
        let (at, end) = self.regions.place(number);
        self.check.current = Some(Region {
            number,
            at,
            end,
            again: Vec::new(),
            reads: 0,
            is_of_scrub,
            rewrites: self.check.unflushed.contains(&number) && !self.config.read_only,
            is_void: false,
            is_doubtful: false,
        });
    }

    /// Begins the next read of the region.
    fn check_on(&mut self) -> bool {
        let Some(region) = &mut self.check.current else { return false };
        if region.reads == CHECKS_MAX || region.is_void {
            return false;
        }
        let most = CHECK_BYTES.min(u64::from(self.geometry.io_bytes_max));
        let (offset, len) = match region.again.last() {
            Some(&(at, _)) => (at, BLOCK),
            None if region.at < region.end => (region.at, most.min(region.end - region.at)),
            None => return false,
        };
        if self.growth.waits_first() && self.canary != IntegrityCanary::ChecksFirst
            || !self.pace.take(len, self.outstanding > self.ready.len(), self.now)
        {
            return false;
        }
        self.growth.let_go_first();
        match region.again.last_mut() {
            Some((at, end)) => {
                *at += len;
                if at == end {
                    region.again.pop();
                }
            }
            None => region.at += len,
        }
        region.reads += 1;
        let mut io = Io::new(0, Op::Read, offset, len);
        io.flags.uncached = true;
        let id = self.new_job(Task::Check, io);
        self.lock(id);
        true
    }

    /// Some of it was read, and its sums; or, in a second round, those were written.
    pub(super) fn finish_check(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let (at, len, stage) = (job.at, job.len, job.stage);
        let (error, data) = (job.error, std::mem::take(&mut job.data));
        let Some(mut region) = self.check.current.take() else { return self.end_job(id) };
        if stage == Stage::Storing {
            region.is_doubtful |= error.is_some();
        } else if error.is_some() && len > BLOCK {
            region.again.push((at, at + len));
        } else if error.is_some() {
            region.is_doubtful = true;
            self.count(&region, at, Fit::Bad);
        } else {
            let (mut older, mut wrong) = (false, Vec::new());
            let Integrity { summer, .. } = &*self;
            let mut found = Vec::new();
            summer.each(at / BLOCK, &data, |block, sum| match self.fit(block, sum) {
                Fit::Good => {}
                Fit::Older => found.push((block, sum)),
                fit => wrong.push((block, fit)),
            });
            for (block, sum) in found {
                // From now on it is what was written last.
                self.sums.set_entry(block, Entry { now: sum, before: sum });
                older = true;
            }
            for (block, fit) in wrong {
                region.is_doubtful = true;
                self.count(&region, block * BLOCK, fit);
            }
            if region.is_of_scrub && !region.is_void {
                self.check.report.checked_bytes += len;
            }
            // What is in memory may be what a loss has taken from the part: it is written before anybody relies on it.
            let is_in_doubt = self.regions.stale(region.number) != 0;
            let stores = older || is_in_doubt && self.canary != IntegrityCanary::TrustsMemory;
            if stores && !self.config.read_only {
                let rewrites = region.rewrites && self.canary != IntegrityCanary::TrustsMemory;
                self.check.current = Some(region);
                self.store_sums(id);
                return if rewrites {
                    self.rewrite(id, data)
                };
            }
        }
        region.reads -= 1;
        self.check.current = Some(region);
        self.end_job(id);
    }

    /// A block is not as it should be.
    fn count(&mut self, region: &Region, offset: u64, fit: Fit) {
        if region.is_void {
            return;
        }
        let report = &mut self.check.report;
        match (fit, region.is_of_scrub) {
            (Fit::Unverified, true) => report.unverified += 1,
            (Fit::Unverified, false) => self.check.unverified += 1,
            (_, true) => report.bad += 1,
            // Who reads it is told.
            (_, false) => {}
        }
        if region.is_of_scrub {
            self.check.report.add_place(offset);
        }
        if fit == Fit::Bad && region.is_of_scrub {
            self.tell(VolumeEvent::BadBlock { offset, is_mended: false, of: None });
        }
    }

    /// The region that was read has been, if it has.
    fn end_region(&mut self) -> bool {
        let Some(region) = &self.check.current else { return false };
        let is_cut = region.is_void || self.closing != Closing::No || self.stopped.is_some();
        let is_through = region.at == region.end && region.again.is_empty();
        if region.reads > 0 || !(is_through || is_cut) {
            return false;
        }
        let Some(region) = self.check.current.take() else { return false };
        if !is_through || region.is_void {
            return true;
        }
        let number = region.number;
        if region.rewrites && !region.is_doubtful && !self.regions.is_spoiled() {
            self.check.unflushed.retain(|unflushed| *unflushed != number);
        }
        if self.regions.stale(number) != 0 && !self.config.read_only {
            if !region.is_doubtful && !self.regions.is_spoiled() {
                self.regions.set_copied(number, 1);
                if self.check.good.is_empty() {
                    self.check.good_since = self.now;
                }
                self.check.good.push(number);
            } else if region.is_doubtful {
                self.regions.pass_over(number);
                self.check.passed.retain(|(passed, _)| *passed != number);
                self.check.passed.push((number, !self.regions.is_quiet(number)));
            }
        }
        if region.is_of_scrub && self.check.report.is_running {
            self.check.report.position = region.end;
            let is_last = number + 1 == self.regions.count();
            self.check.next = if is_last { None } else { Some(number + 1) };
            self.check.report.is_running = !is_last;
            self.check.report.bytes = self.geometry.bytes;
        }
        true
    }

    /// There is more, where so many regions were: who reads the last of them reads on.
    pub(super) fn extend_check(&mut self, regions: u32) {
        if let Some(region) = &mut self.check.current
            && region.number + 1 == regions
        {
            (_, region.end) = self.regions.place(region.number);
        }
    }

    /// Somebody writes in a region.
    #[inline]
    pub(super) fn on_region_written(&mut self, number: u32) {
        for (passed, is_written) in &mut self.check.passed {
            *is_written |= *passed == number;
        }
    }

    /// What was written lately is durable: where that was passed over before it is read again.
    pub(super) fn look_at_written(&mut self) {
        if self.canary == IntegrityCanary::PassesOverForGood {
            return;
        }
        let before = self.check.passed.len();
        self.check.passed.retain(|(_, is_written)| !is_written);
        if self.check.passed.len() < before {
            // All of them are: what was not written is passed over once more.
            self.check.passed.clear();
            self.regions.look_again();
        }
    }

    /// What was good is there for good, and not in doubt any more; or it is read again.
    pub(super) fn finish_settle(&mut self, id: u32) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        self.check.is_settling = false;
        if job.error.is_some() {
            self.on_own_flush_failed();
        }
        let mut good = std::mem::take(&mut self.check.good);
        for region in good.drain(..) {
            // Unless it has come into doubt again.
            let legs = self.regions.copied(region);
            match job.error {
                None => self.regions.remove_stale(region, legs),
                Some(_) => self.regions.add_stale(region, legs),
            }
        }
        if job.error.is_some() {
            self.check.retry_at = self.now + RETRY_AFTER;
        }
        self.check.good = good;
    }

    /// Something that was not flushed may be gone: sums, or data, or what was found good and is not flushed yet.
    pub(super) fn doubt_what_is_open(&mut self, gone: Gone) {
        self.growth.forget_zeroed();
        self.regions.add_stale_where_open(1);
        if self.canary == IntegrityCanary::TrustsMemory {
            return;
        }
        let Check { current, good, unflushed, .. } = &mut self.check;
        let current = current.as_ref().map(|region| region.number);
        for &region in good.iter().chain(&current) {
            if self.regions.stale(region) != 0 {
                self.regions.add_stale(region, 1);
            }
        }
        if gone == Gone::Unflushed {
            unflushed.extend(
                (0..self.regions.count()).filter(|region| self.regions.stale(*region) != 0),
            );
            unflushed.sort_unstable();
            unflushed.dedup();
        }
    }

    /// A flush that nobody has asked for has failed: no flush of a user would say so.
    pub(super) fn on_own_flush_failed(&mut self) {
        self.doubt_what_is_open(Gone::Unflushed);
        self.news.insert(0, VolumeEvent::Lost);
        self.news_count = self.news_count.wrapping_add(1);
    }

    /// Writes what was read of a region once more, while its sums are: it holds its range against who changes it.
    fn rewrite(&mut self, id: u32, data: SegList) {
        let job = self.jobs.get_mut(id);
        job.pending += 1;
        job.data_offset = self.layout.data_offset;
        let offset = job.at + job.data_offset;
        let io = Io { data, ..Io::new(0, Op::Write, offset, job.len) };
        self.hand_down(io, Flight::Job(id));
    }

    /// When something may be read that waits for time.
    pub(super) fn next_check(&self) -> Time {
        match &self.check.current {
            _ if !self.is_open || self.closing != Closing::No => Time::NEVER,
            Some(region) if region.reads == 0 => {
                let idle = self.pace.idle_at();
                // While somebody waits, what they get lets it go on.
                if idle > self.now { idle } else { Time::NEVER }
            }
            _ if self.check.retry_at > self.now => self.check.retry_at,
            _ => Time::NEVER,
        }
    }
}

impl Scrub for Integrity {
    fn begin_scrub(&mut self, from: u64) {
        let bytes = self.geometry.bytes;
        let first = self.regions.of(from.min(bytes - 1), 1).start().to_owned();
        let (position, _) = self.regions.place(first);
        self.check.report = ScrubReport {
            module: NAME,
            is_running: true,
            number: self.check.report.number + 1,
            from: position,
            position,
            bytes,
            ..ScrubReport::default()
        };
        if let Some(region) = &mut self.check.current {
            region.is_void = true;
        }
        self.check.next = Some(first);
        if self.stopped.is_some() {
            self.end_scrub();
        }
        self.settle();
    }

    fn end_scrub(&mut self) {
        if std::mem::take(&mut self.check.report.is_running) {
            self.check.report.has_failed = self.stopped.is_some();
            self.check.report.bytes = self.geometry.bytes;
            self.check.next = None;
            if let Some(region) = &mut self.check.current {
                region.is_void = true;
            }
        }
    }

    fn scrub_report(&self) -> ScrubReport {
        let report = self.check.report.clone();
        // What has ended read what there was by then: who asks once there is more would take it for cut off.
        let has_ended = report.number > 0 && !report.is_running;
        let bytes = if has_ended { report.bytes } else { self.geometry.bytes };
        ScrubReport { module: NAME, bytes, ..report }
    }
}
