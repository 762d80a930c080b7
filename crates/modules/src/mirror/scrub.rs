//! Scrubs, and what does not fit its sum: of each block of a range all legs in sync are asked, for verified bytes, under the lock of what is read, and
//! those that fail get what another one has (rule 20). Only a block that a leg gives as verified is a source; where legs have no sums each has its word, and where these
//! differ nobody knows whose is right: that is told, and nothing is written.
//!
//! A block that no leg has verified, and some has unverified, is as a crash has left it: it is read from the first of these, and nothing is copied.

use std::collections::VecDeque;

use thinwire_buffer::{SegList, Time};
use thinwire_volume::{Completion, ErrorKind, Io, IoFlags, Op, ScrubReport, VolumeEvent};

use super::opening::Phase;
use super::serve::lowest;
use super::{Job, LegState, Mirror, MirrorCanary, NAME, Task, bits};

/// Bytes that are read of each leg at once, at most, and how many such ranges are under way.
pub(super) const SCRUB_BYTES: u64 = 128 << 10;
const SCRUBS_MAX: usize = 4;
/// What is judged and mended as one.
const BLOCK: u64 = 4096;
/// So many are looked at because somebody has met them, at once, and so many that were mended are kept in mind.
const LOOKS_MAX: u32 = 8;
const MENDED_MAX: usize = 32;

#[derive(Default)]
pub(super) struct Scrubbing {
    pub report: ScrubReport,
    /// All before is read, as labels are to say, while a scrub goes on; one that is cut off goes on with the next opening.
    pub noted: Option<u64>,
    /// Where one goes on that was cut off.
    pub resumes: Option<u64>,
    /// What is to be begun next, and where what is under way begins, in bytes.
    pub next: u64,
    pub under_way: Vec<u64>,
    /// Blocks that were written again at a leg since it was opened.
    pub mended: u64,
    /// The last of them, with their legs: one that is bad again there is a fault of that leg.
    last_mended: VecDeque<(u64, u8)>,
    /// Looks that nobody waits for.
    looks: u32,
    /// Regions that were open when a crash came, and of which users have read since then what the leg has that was chosen: what another one
    /// has there may be older.
    shown: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// All legs are asked for verified bytes of all of it, or of a block.
    Ask,
    /// No leg has them: who has others?
    AskAnything,
    /// Legs that failed are being written.
    Mend,
}

/// Half of so many bytes, in whole blocks, and not less than one.
fn half(bytes: u64) -> u64 {
    (bytes / BLOCK / 2 * BLOCK).max(BLOCK)
}

/// A range of which all legs are read.
pub(super) struct Look {
    /// A user's read that all legs have failed, some of them for a sum: it gets what comes of this.
    read: Option<u32>,
    /// Of a scrub; else somebody has met a block that does not fit.
    pub is_scrub: bool,
    /// Of a resync that has met one: these legs get all of it.
    targets: u8,
    /// Some of it no leg has.
    has_gap: bool,
    /// Nobody waits for it.
    is_mere: bool,
    step: Step,
    /// What is being looked at: all of it, or some, or a block.
    at: u64,
    len: u64,
    /// It is a block that did not fit: what follows may be like it.
    is_bad: bool,
    /// Something from there to here does not fit.
    bad_until: u64,
    /// What each leg has.
    data: [SegList; super::LEGS_MAX],
    /// Legs that have no verified bytes of the block.
    lacking: u8,
    /// Legs that are being written since they had something else.
    mending: u8,
    /// What the user gets.
    answer: SegList,
}

impl Look {
    fn new(offset: u64, len: u64) -> Self {
        Look {
            read: None,
            is_scrub: false,
            targets: 0,
            has_gap: false,
            is_mere: false,
            step: Step::Ask,
            at: offset,
            len: len.min(BLOCK),
            is_bad: false,
            bad_until: offset,
            data: Default::default(),
            lacking: 0,
            mending: 0,
            answer: SegList::new(),
        }
    }

    /// What is outstanding of it takes bytes of a leg that count.
    pub fn reads(&self) -> bool {
        self.step != Step::Mend
    }

    /// A leg has answered.
    pub fn put(&mut self, leg: usize, data: SegList) {
        self.data[leg] = data;
    }
}

impl Mirror {
    /// Goes on with a scrub, as far as the pace allows.
    pub(super) fn step_scrub(&mut self) -> bool {
        let is_free = self.phase == Phase::Serving && !self.record.is_changing();
        let is_ending = self.is_ending();
        let Scrubbing { report, next, under_way, .. } = &mut self.scrub;
        if !report.is_running {
            return false;
        }
        if is_ending {
            // Who opens it next goes on.
            self.scrub.noted = Some(self.scrub.report.position);
            self.stop_scrub();
            return true;
        }
        let left = self.geometry.bytes - *next;
        if !is_free || under_way.len() == SCRUBS_MAX || left == 0 {
            return false;
        }
        let most = SCRUB_BYTES.min(self.geometry.io_bytes_max.into());
        let (offset, len) = (*next, most.min(left));
        if !self.pace.take(len, self.outstanding > self.ready.len(), self.now) {
            return false;
        }
        *next += len;
        under_way.push(offset);
        self.scrub.report.unread_legs |= self.unread(offset, len);
        self.look(offset, len, None, true);
        true
    }

    /// What lies there did not fit the sum that a leg keeps of it.
    pub(super) fn mend(&mut self, offset: u64, len: u64) {
        // Who meets it next sees to it.
        if self.scrub.looks < LOOKS_MAX {
            self.scrub.looks += 1;
            self.look(offset, len, None, false);
        }
    }

    /// The same, where no leg could answer a user.
    pub(super) fn mend_for(&mut self, read: u32) {
        if std::mem::take(&mut self.jobs.get_mut(read).is_locked) {
            self.unlock(read);
        }
        let Io { offset, len, .. } = self.jobs.get_mut(read).io;
        self.look(offset, len, Some(read), false);
    }

    fn look(&mut self, offset: u64, len: u64, read: Option<u32>, is_scrub: bool) {
        let look = Look {
            read,
            is_scrub,
            is_mere: read.is_none() && !is_scrub,
            len: if is_scrub { len } else { len.min(BLOCK) },
            ..Look::new(offset, len)
        };
        let id = self.new_job(Task::Look(Box::new(look)), Io::new(0, Op::Read, offset, len));
        let is_locked = self.canary != MirrorCanary::NoLookLock;
        if !is_locked || self.locks.acquire(id, offset, offset + len, true) {
            self.ask_all(id);
        }
    }

    /// A copy, which holds its range, has met what does not fit: each block of it is looked for at all legs.
    pub(super) fn look_for_copy(&mut self, id: u32, targets: u8) {
        let Io { offset, len, .. } = self.jobs.get_mut(id).io;
        let look = match self.canary == MirrorCanary::BlockByBlock {
            true => Look { targets, ..Look::new(offset, len) },
            false => Look { targets, len, ..Look::new(offset, len) },
        };
        self.jobs.get_mut(id).task = Task::Look(Box::new(look));
        self.ask_all(id);
    }

    /// Legs that have what lies there, as far as is known.
    fn holders(&self, at: u64, len: u64) -> u8 {
        if !self.config.read_only {
            return self.in_sync;
        }
        // What was open at a crash one leg has.
        let touched = self.regions.of(at, len);
        self.in_sync & !touched.fold(0, |legs, region| legs | self.regions.stale(region))
    }

    /// Others that do for what those cannot give: they are being copied to, and have got all of that by now, or never lacked it; or it was open
    /// when a crash came, and what any leg has of it nobody has been promised another thing.
    fn spares(&self, at: u64, len: u64) -> u8 {
        if self.canary == MirrorCanary::UnverifiedSource {
            return 0;
        }
        let touched = self.regions.of(at, len);
        let lacks = |region| self.regions.stale(region) & !self.regions.copied(region);
        let lacking = touched.fold(0, |legs, region| legs | lacks(region));
        let is_shown = |region: u32| self.scrub.shown.get(region as usize) == Some(&true);
        let forgets = self.canary == MirrorCanary::ForgetsWhatWasRead;
        let alike = match self.regions.of(at, len).any(is_shown) && !forgets {
            true => 0,
            false => self.alike,
        };
        self.active & !self.holders(at, len) & (alike | !lacking)
    }

    /// A user has read that from a leg in sync.
    pub(super) fn on_shown(&mut self, at: u64, len: u64) {
        if self.alike == 0 {
            return;
        }
        self.scrub.shown.resize(self.regions.count() as usize, false);
        for region in self.regions.of(at, len) {
            self.scrub.shown[region as usize] |= self.regions.stale(region) & self.alike != 0;
        }
    }

    /// Legs that are to hold all data, and of which a scrub reads nothing there.
    fn unread(&self, at: u64, len: u64) -> u8 {
        let is_leg = |leg: &usize| !matches!(self.state.legs[*leg], LegState::Removed { .. });
        let legs = (0..self.state.legs.len()).filter(is_leg);
        legs.fold(0, |legs, leg| legs | 1 << leg) & !self.holders(at, len)
    }

    /// All legs are asked for what is looked at, whose range is held.
    pub(super) fn ask_all(&mut self, id: u32) {
        let Job { task: Task::Look(look), ok, failed, error, .. } = self.jobs.get_mut(id) else {
            return;
        };
        (*ok, *failed, *error, look.step, look.lacking) = (0, 0, None, Step::Ask, 0);
        let (at, len) = (look.at, look.len);
        let verified = self.canary != MirrorCanary::UnverifiedSource;
        let legs = self.holders(at, len) | self.spares(at, len);
        if legs == 0 {
            return self.ripe.push_back(id);
        }
        // Nobody has better than the only one: what is not verified is copied as it is, and only what is bad is not.
        let Job { task: Task::Look(look), .. } = self.jobs.get_mut(id) else { return };
        let is_alone = legs.is_power_of_two() && look.targets != 0 && len > BLOCK;
        // Where some of it is bad that is told each time that it is met so.
        let is_alone = is_alone && at >= look.bad_until;
        if is_alone && self.canary != MirrorCanary::BlockByBlock {
            (look.step, look.lacking) = (Step::AskAnything, legs);
            return self.send_look(id, legs, false);
        }
        self.send_look(id, legs, verified);
    }

    /// What stands on them, and not what is in memory there.
    fn send_look(&mut self, id: u32, legs: u8, verified: bool) {
        let flags = IoFlags { verified, uncached: true, ..IoFlags::default() };
        let Job { task: Task::Look(look), .. } = self.jobs.get_mut(id) else { return };
        let (at, len) = (look.at, look.len);
        for leg in bits(legs) {
            self.send_data(leg, id, Io { flags, ..Io::new(0, Op::Read, at, len) });
        }
    }

    /// All legs have answered, or were written.
    pub(super) fn finish_look(&mut self, id: u32) {
        let Task::Look(look) = &self.jobs.get_mut(id).task else { return };
        let (at, len, read, step) = (look.at, look.len, look.read, look.step);
        let active = self.active;
        let (holders, spares) = (self.holders(at, len), self.spares(at, len));
        let asked = if step == Step::Mend { active } else { holders | spares };
        // Who reads may have asked for nothing else than what fits.
        let must_fit = read.is_some_and(|read| self.jobs.get_mut(read).io.flags.verified);
        let Job { task: Task::Look(look), ok, failed, error, .. } = self.jobs.get_mut(id) else {
            return;
        };
        let (good, bad) = (*ok & asked, *failed & asked);
        let first_of = |legs: u8| lowest(if legs & holders != 0 { legs & holders } else { legs });
        match step {
            Step::Ask if bad != 0 && len > BLOCK => self.look_closer(id),
            // Nor is it known yet which block of it is the one.
            Step::AskAnything if good == 0 && len > BLOCK => self.look_closer(id),
            Step::Ask if good == 0 => {
                look.is_bad = true;
                look.step = Step::AskAnything;
                look.lacking = bad;
                (*ok, *failed) = (0, 0);
                let first = error.take();
                match bad {
                    0 => self.judge_block(id, 0, 0),
                    _ => {
                        *error = first;
                        match must_fit && self.canary != MirrorCanary::UnverifiedSource {
                            true => self.judge_block(id, 0, 0),
                            false => self.send_look(id, first_of(bad), false),
                        }
                    }
                }
            }
            Step::Ask => {
                look.is_bad = bad != 0;
                self.judge_block(id, good, bad);
            }
            Step::AskAnything if good == 0 => {
                // The next one of them.
                look.lacking &= !bad;
                let next = first_of(look.lacking & asked);
                match next {
                    0 => self.judge_block(id, 0, 0),
                    _ => self.send_look(id, next, false),
                }
            }
            Step::AskAnything => {
                if look.read.is_some() {
                    look.answer
                        .append(std::mem::take(&mut look.data[bits(good).next().unwrap_or(0)]));
                }
                let targets = look.targets & active & !good;
                if look.is_scrub {
                    self.scrub.report.unverified += 1;
                    self.scrub.report.add_place(at);
                }
                match (targets, bits(good).next()) {
                    (1.., Some(source)) => self.mend_block(id, source, 0, targets),
                    _ => self.go_on_behind(id, len),
                }
            }
            Step::Mend => {
                let (mended, is_scrub) =
                    (u64::from((good & look.mending).count_ones()), look.is_scrub);
                let legs = good & look.mending;
                bits(bad).for_each(|leg| self.drop_if_spare(leg, false));
                if mended != 0 {
                    self.scrub.mended += mended;
                    self.on_mended(at, legs);
                    if is_scrub {
                        self.scrub.report.repaired += mended;
                    }
                    self.tell_of_block(at, true);
                }
                self.go_on_behind(id, len);
            }
        }
    }

    /// What is to be done where these legs have verified bytes, and these do not.
    fn judge_block(&mut self, id: u32, good: u8, bad: u8) {
        let may_write = !self.config.read_only;
        let guesses = self.canary == MirrorCanary::RepairsByGuess;
        let active = self.active;
        let Task::Look(look) = &self.jobs.get_mut(id).task else { return };
        let (at, len) = (look.at, look.len);
        let holding = good & self.holders(at, len);
        let Job { task: Task::Look(look), io, error, .. } = self.jobs.get_mut(id) else {
            return;
        };
        let is_scrub = look.is_scrub;
        let Some(source) = bits(holding).next().or(bits(good).next()) else {
            // No leg has it. Who reads it is told where it is.
            let lost = Io::new(io.token, Op::Read, at, len.min(BLOCK));
            let kind = error.map_or(ErrorKind::Io, |error| error.kind);
            let module = error.map_or(NAME, |error| error.module);
            *error = Some(lost.error(kind, module));
            let is_told = kind == ErrorKind::BadSum;
            let read = look.read;
            look.has_gap = true;
            if is_scrub {
                self.scrub.report.bad += 1;
                self.scrub.report.add_place(at);
            }
            if is_told {
                self.tell_of_block(at, false);
            }
            return match read {
                Some(_) => self.end_look(id, false),
                None => self.go_on_behind(id, BLOCK),
            };
        };
        let mut differing = Vec::new();
        let one = look.data[source].to_vec();
        for leg in bits(holding & !(1 << source)) {
            let other = look.data[leg].to_vec();
            let blocks = one.chunks(BLOCK as usize).zip(other.chunks(BLOCK as usize));
            differing.extend((0..).zip(blocks).filter(|(_, (a, b))| a != b).map(|(nth, _)| nth));
        }
        differing.sort_unstable();
        differing.dedup();
        if look.read.is_some() {
            look.answer.append(look.data[source].clone());
        }
        let (bad, differing) = match guesses && !differing.is_empty() {
            true => (holding & !(1 << source), Vec::new()),
            false => (bad, differing),
        };
        let mends = bad != 0 && differing.is_empty() && may_write;
        let targets = look.targets & active & !(1 << source);
        if is_scrub {
            let report = &mut self.scrub.report;
            report.checked_bytes += len;
            report.differing += differing.len() as u64;
            differing.iter().for_each(|nth| report.add_place(at + nth * BLOCK));
            if bad != 0 && !mends && differing.is_empty() {
                report.bad += 1;
                report.add_place(at);
            }
        }
        match if mends { bad } else { 0 } | targets {
            0 => self.go_on_behind(id, len),
            _ => self.mend_block(id, source, if mends { bad } else { 0 }, targets),
        }
    }

    /// Writes what one leg has to those that had something else, and to those that get all of it.
    fn mend_block(&mut self, id: u32, source: usize, mending: u8, targets: u8) {
        let Job { task: Task::Look(look), ok, failed, .. } = self.jobs.get_mut(id) else { return };
        (*ok, *failed, look.step, look.mending) = (0, 0, Step::Mend, mending);
        let (at, len, data) = (look.at, look.len, look.data[source].clone());
        for leg in bits(mending | targets) {
            let data = data.clone();
            self.send_data(leg, id, Io { data, ..Io::new(0, Op::Write, at, len) });
        }
    }

    /// Some of it does not fit: which block that is.
    fn look_closer(&mut self, id: u32) {
        let one_by_one = self.canary == MirrorCanary::BlockByBlock;
        let Job { task: Task::Look(look), .. } = self.jobs.get_mut(id) else { return };
        look.bad_until = look.at + look.len;
        look.len = if one_by_one { BLOCK } else { half(look.len) };
        self.ask_all(id);
    }

    /// What comes next, if anything does: twice as much, as long as all fits.
    fn go_on_behind(&mut self, id: u32, len: u64) {
        let one_by_one = self.canary == MirrorCanary::BlockByBlock;
        let Job { task: Task::Look(look), io, .. } = self.jobs.get_mut(id) else { return };
        let end = io.offset + io.len;
        look.at += len;
        if look.at >= end {
            return self.end_look(id, true);
        }
        let was_bad = std::mem::take(&mut look.is_bad);
        let next = match look.bad_until.saturating_sub(look.at) {
            _ if one_by_one => BLOCK,
            0 if was_bad => BLOCK,
            0 => len * 2,
            left => half(left),
        };
        look.len = next.min(end - look.at);
        self.ask_all(id);
    }

    /// A block was written again at these legs. Those where it was not long ago do not keep what they are given, and are not read for ever.
    fn on_mended(&mut self, at: u64, legs: u8) {
        let last = &mut self.scrub.last_mended;
        let again = last.iter().filter(|(block, _)| *block == at);
        let again = again.fold(0, |again, (_, before)| again | before & legs);
        if last.len() == MENDED_MAX {
            last.pop_front();
        }
        last.push_back((at, legs));
        let now = self.now;
        for leg in bits(again) {
            if self.legs[leg].as_mut().is_some_and(|leg| leg.on_read_error(now)) {
                self.drop_if_spare(leg, false);
            }
        }
    }

    fn end_look(&mut self, id: u32, is_whole: bool) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        let Task::Look(look) = job.task else { return };
        // That of a copy has the range of the copy.
        if look.targets != 0 || self.canary != MirrorCanary::NoLookLock {
            self.unlock(id);
        }
        if look.is_mere {
            self.scrub.looks -= 1;
        }
        if look.targets != 0 {
            self.end_resync_copy(is_whole && !look.has_gap);
        }
        if let Some(read) = look.read
            && let Some(of) = self.jobs.remove(read.into())
        {
            let error = match is_whole {
                true => None,
                false => job.error.or(Some(of.io.error(ErrorKind::BadSum, NAME))),
            };
            let mut completion = Completion::new(of.io.token, error.map_or(Ok(()), Err));
            if is_whole {
                completion.data = look.answer;
            }
            self.tell(&of.io, completion);
        }
        if look.is_scrub {
            let unread = self.unread(job.io.offset, job.io.len);
            let Scrubbing { report, next, under_way, .. } = &mut self.scrub;
            report.unread_legs |= unread;
            under_way.retain(|at| *at != job.io.offset);
            if report.is_running {
                report.position = under_way.iter().copied().min().unwrap_or(*next);
                report.is_running = report.position < report.bytes;
                self.scrub.note(self.canary == MirrorCanary::NotesAhead);
            }
        }
    }

    fn tell_of_block(&mut self, offset: u64, is_mended: bool) {
        // Who does not ask is not told of all.
        if self.news.len() < 64 {
            self.news.push(VolumeEvent::BadBlock { offset, is_mended, of: None });
            self.news_count = self.news_count.wrapping_add(1);
        }
    }

    /// It is over: what it has not read is not read.
    pub(super) fn fail_scrub(&mut self) {
        self.scrub.report.has_failed |= std::mem::take(&mut self.scrub.report.is_running);
        self.scrub.under_way.clear();
    }

    /// When a scrub may go on that waits for time.
    pub(super) fn next_scrub(&self) -> Time {
        let Scrubbing { report, next, under_way, .. } = &self.scrub;
        let waits = report.is_running && under_way.is_empty() && *next < report.bytes;
        let idle = self.pace.idle_at();
        // While somebody waits, what they get lets it go on.
        if waits && self.phase == Phase::Serving && idle > self.now { idle } else { Time::NEVER }
    }
}
