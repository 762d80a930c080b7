//! The mirror (RAID-1): 2 to 8 volumes, its *legs*, that hold the same bytes. What they hold besides data is in
//! `docs/format.md`, "The mirror": [`MirrorState`] in the label of each, and write-intent bitmaps behind that.
//!
//! [`decide()`] says, of what the labels say, whether it can be served and from which legs; [`Mirror`] serves it. Each
//! of its files keeps a few of the rules that keep data:
//!
//! * `intent` sets the bits of a region durably before it is written, and clears them late (rules 1 and 2).
//! * `reads` asks one leg, and another if that fails; `serve` writes to all legs, and judges what some of them have failed; what overlaps waits, so that all legs take it in
//!   one order.
//! * `record` makes durable how the legs stand before anything is completed that depends on it (rules 3 and 6).
//! * `opening` chooses one leg for what was open at a crash (rule 4), and takes legs in.
//! * `closing` ends it in order; `cuts` has all legs make a snapshot, or none (rule 13).
//! * `keeper` gives up those that were dropped as a whole, and has them back (rule 22).
//! * `standing` drops legs that fail, and has those copied to that have lost something; `lateness` those that do not answer.
//! * `resync` copies what legs lack, under the lock of what it copies (rule 5), and what one leg could not read.
//! * `growth` has it become as large as its legs have become (rule 24); `removal` has a leg less, `addition` one more, `replacement` the first once the
//!   second is in sync; `desk` is by which that is asked for.
//! * `work` says how fast that goes, and whether it does, and keeps that in the labels; `writer` keeps there who may write the whole as an export.
//! * `scrub` reads all legs, and writes again what does not fit the sum that a leg keeps, from one that does (rule 20); `progress` says how far it is.
//!
//! What a leg may do wrong: fail an I/O (it is dropped, or what it could not read is written again), lose what it has not
//! flushed (it says so, or a crash does: it is resynced), never answer (it is dropped when time has passed), be fenced
//! (the mirror stops). What it may not do is lie: a leg that serves wrong bytes is not found out here, but by
//! a volume with sums ([`Integrity`](crate::Integrity)) that the leg is.
//! It is opened with labels only, by [`Mirror::open`].

mod addition;
mod canary;
mod closing;
mod config;
mod cuts;
mod decide;
mod desk;
mod found;
mod growth;
mod intent;
mod jobs;
mod keeper;
mod lateness;
mod legs;
mod look;
mod opening;
mod progress;
mod reads;
mod record;
mod removal;
mod replacement;
mod report;
mod resync;
mod row;
mod scrub;
mod serve;
mod standing;
mod state;
mod steady;
#[cfg(test)]
pub(crate) mod tests;
mod work;
mod writer;

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{
    CacheReport, Completion, ErrorKind, Geometry, Identity, Io, IoError, LegStanding, MirrorReport,
    Op, RangeLocks, Scrub, Slab, Token, Volume, VolumeEvent, Work,
};

use self::addition::Addition;
use self::closing::Closing;
use self::desk::DeskEnd;
use self::growth::Growth;
use self::intent::Intent;
use self::jobs::{Job, Sub, Task, Whose};
use self::lateness::{Kind, Watch};
use self::legs::Leg;
use self::opening::Phase;
use self::record::Record;
use self::replacement::Replacement;
use self::resync::Resync;
use self::scrub::Scrubbing;
use self::writer::Writer;
use crate::meta::LabelPart;
use crate::pace::Pace;
use crate::write_intent::regions::{Regions, bits};
use crate::write_intent::{bitmap, regions};

pub use bitmap::{BITMAP_BYTES, region_shift};
pub use canary::MirrorCanary;
pub use config::{DrawGeneration, MirrorConfig};
pub use decide::{LegChange, OpeningPlan, OpeningRefusal, OpeningWish, ResyncExtent, decide};
pub use desk::{LegNeeds, MirrorAnswer, MirrorAsk, MirrorAskError, MirrorDesk, MirrorDone, NewLeg};
pub use found::{FoundMirror, find_mirror};
pub use keeper::{LegKeeper, LegsInUse};
pub use legs::MirrorLeg;
pub use look::{SeenBitmap, bitmap_bytes, look_at_bitmap};
pub use opening::MirrorError;
pub(crate) use row::MODULE;
pub use row::{BITMAP_OFFSET, LEG_TIMEOUT, MIRROR_DATA_START};
pub use state::{Generation, LeftAt, LegState, MirrorState, NO_GENERATION, StateFault};

/// Most legs that a mirror has.
pub const LEGS_MAX: usize = 8;
/// The token of the labels of each leg: no other I/O there has it.
pub const LEG_LABEL_TOKEN: Token = Token::MAX;

/// The name under which its own errors appear.
const NAME: &str = "mirror";
/// A leg that answers other things, as over a link that is slow for what it is given, has so many times its
/// [`leg_timeout`](MirrorConfig::leg_timeout) for each.
pub const LATE_TIMES: u32 = 4;
/// So much of what passes between two turns counts for a leg that does not answer.
const TURN_MAX: Duration = Duration::from_secs(1);
/// A poll that is never done would starve others: what is left comes with the next.
const ROUNDS_MAX: usize = 16;

/// A mirror over its legs. Reads go to the leg with the least expected delay; what changes something goes to all, and is
/// completed when all have done it or are on record as behind. A discard writes zeroes, so that all legs read the same.
///
/// It wants to know the time ([`Volume::turn`]): without, no bit is cleared, no leg that hangs is dropped. Polls and submissions
/// bring up new moments, of which the next turn tells: who drives it and is about to sleep tells it the time once more, behind the
/// last of them, and sleeps no longer than that says.
///
/// Beside a write that is outstanding a region is read from one leg, so that no read sees old bytes after another has seen new
/// ones. [`Mirror::close`] ends it in order.
pub struct Mirror {
    geometry: Geometry,
    identity: Identity,
    whole: [u8; 16],
    /// Its size by the labels.
    bytes: u64,
    legs: Vec<Option<Leg>>,
    /// What their labels say of all parts, in the order of the legs.
    parts: Vec<LabelPart>,
    /// How the legs stand, as it is to be on record; and as it is, or is being written, in the labels of all legs in sync.
    state: MirrorState,
    recorded: MirrorState,
    /// Legs that have all data and are read.
    in_sync: u8,
    /// Those, and others that get what is written.
    active: u8,
    /// Legs that had all data when a crash came: where a region was open they may have what the one that was chosen has not.
    alike: u8,
    phase: Phase,
    record: Record,
    writer: Writer,
    regions: Regions,
    intent: Intent,
    resync: Resync,
    pace: Pace,
    scrub: Scrubbing,
    growth: Growth,
    /// A leg was removed, and that is not on record yet.
    removing: bool,
    addition: Addition,
    replacement: Replacement,
    desk: DeskEnd,
    config: MirrorConfig,
    subs: Slab<Sub>,
    jobs: Slab<Job>,
    /// Jobs of which no part is outstanding.
    ripe: VecDeque<u32>,
    locks: RangeLocks,
    granted: Vec<u32>,
    /// Users' I/Os that wait for the opening.
    queue: VecDeque<Io>,
    /// Completions that wait for the record, and that wait for nothing.
    held: Vec<(IoError, Completion)>,
    ready: Vec<Completion>,
    inbox: Vec<Completion>,
    orphaned: Vec<u32>,
    /// Users' I/Os that were submitted, and not polled.
    outstanding: usize,
    closing: Closing,
    /// Why nothing is done any more.
    stopped: Option<ErrorKind>,
    news: Vec<VolumeEvent>,
    /// How legs stand as far as that was told; `None` before it is known.
    told: [Option<LegStanding>; LEGS_MAX],
    news_count: u64,
    now: Time,
    /// The first that it was told; [`Time::NEVER`] before that.
    begun: Time,
    /// What has passed for legs that are to answer: of each turn no more than a second, since nobody looks while a process
    /// stands still.
    counted: Time,
    /// A leg is late unless the next poll has its answer.
    is_late: bool,
    watch: Watch,
    reads: u64,
    /// Something was submitted below since that was polled.
    has_sent: bool,
    /// Something has happened since it was last seen to what there is to do.
    is_stirred: bool,
    /// Until then turns behind which only reads have come have nothing else to see.
    steady_until: Time,
    /// How many reads the last turn has seen.
    steady_reads: u64,
    canary: MirrorCanary,
}

impl Mirror {
    /// By which it is asked for something.
    pub fn desk(&self) -> MirrorDesk {
        self.desk.desk.clone()
    }

    /// Hands an I/O to a leg, for a job. Its range is of that leg.
    #[inline]
    fn send(&mut self, leg: usize, job: u32, mut io: Io) {
        let (kind, since, is_orphan) = (Kind::of(io.op), Time::NEVER, false);
        let is_telling = self.is_telling(leg, &io);
        // What is durable when it is completed leaves nothing to a flush.
        let leaves = match io.op {
            Op::Flush => is_telling.then_some(false),
            op => (op.is_write() && !io.flags.fua).then_some(true),
        };
        let Some(to) = &mut self.legs[leg] else { unreachable!("it is active") };
        let (leg, whose) = (leg as u8, Whose::Job(job));
        let sub = self.subs.insert(Sub { leg, whose, kind, since, is_orphan, is_telling, leaves });
        self.watch.add(sub);
        io.token = sub.into();
        to.outstanding += 1;
        self.jobs.get_mut(job).pending += 1;
        to.volume.submit(io);
        self.has_sent = true;
    }

    fn new_job(&mut self, task: Task, io: Io) -> u32 {
        self.jobs.insert(Job::new(task, io))
    }

    /// A leg has completed something.
    fn on_completion(&mut self, leg: usize, mut completion: Completion) {
        let result = completion.result;
        if completion.token == LEG_LABEL_TOKEN {
            self.is_stirred = true;
            self.on_answer(leg, Kind::Change);
            self.on_label_step(leg);
            let Some(at) = &mut self.legs[leg] else { return };
            // Of a leg that was dropped its label is to stay as it is.
            if at.label_since.is_some()
                && let Some(ended) = at.labels.on_completion(completion, &mut *at.volume)
            {
                self.on_label(leg, ended);
            }
            self.has_sent = true;
            return self.on_last_word(leg, result);
        }
        let Some(sub) = self.subs.remove(completion.token) else { return };
        if sub.is_telling {
            self.on_answer(leg, sub.kind);
        }
        let Some(at) = &mut self.legs[leg] else { return };
        at.has_unflushed |= sub.leaves == Some(result.is_ok());
        at.outstanding -= 1;
        if sub.is_orphan {
            self.is_stirred = true;
            return self.on_last_word(leg, result);
        }
        let data_start = at.label.data_start;
        if result.is_ok() && sub.kind == Kind::Read {
            at.on_delay(self.counted.since(sub.since).as_nanos() as u64);
        }
        let id = match sub.whose {
            Whose::Read(read) if result.is_ok() && !self.record.is_changing() => {
                return self.end_read(read, completion);
            }
            Whose::Read(read) => self.jobs.insert(read.into_job()),
            Whose::Job(job) => job,
        };
        let job = self.jobs.get_mut(id);
        match &mut completion.result {
            Ok(()) => {
                match &mut job.task {
                    Task::Look(look) => look.put(leg, completion.data),
                    _ => job.data = completion.data,
                }
                job.extents = completion.extents;
            }
            Err(error) => error.offset = error.offset.saturating_sub(data_start),
        }
        self.is_stirred = true;
        self.on_part(id, leg, completion.result);
    }

    /// A part of a job has ended.
    fn on_part(&mut self, id: u32, leg: usize, result: Result<(), IoError>) {
        let job = self.jobs.get_mut(id);
        job.pending -= 1;
        let bit = 1 << leg;
        match result {
            Ok(()) => job.ok |= bit & !job.failed,
            Err(error) => {
                job.failed |= bit;
                job.ok &= !bit;
                job.unable |= if error.kind == ErrorKind::Unsupported { bit } else { 0 };
                job.bad |= if error.kind == ErrorKind::BadSum { bit } else { 0 };
                job.full |= if error.kind == ErrorKind::NoSpace { bit } else { 0 };
                // What a leg says that was asked in the place of one that was dropped is the reason.
                let is_said = job.error.is_some_and(|said| said.kind != ErrorKind::Away);
                job.error = if is_said { job.error } else { Some(error) };
            }
        }
        if job.pending == 0 {
            self.ripe.push_back(id);
        } else if self.canary == MirrorCanary::OneLegCompletes && result.is_ok() {
            self.tell_early(id);
        }
        match result {
            Err(error) if is_final(error.kind) => self.drop_if_spare(leg, false),
            _ => self.on_last_word(leg, result),
        }
    }

    /// Does what can be done now.
    fn settle(&mut self) {
        (self.is_stirred, self.steady_until) = (false, Time::ZERO);
        while self.stopped.is_none() && !self.is_closed() {
            if let Some(id) = self.ripe.pop_front() {
                self.finish(id);
                continue;
            }
            let is_writing = !self.config.read_only;
            let goes_on = self.step_record()
                || self.step_opening()
                || (is_writing && (self.step_bits() || self.step_close() || self.step_resync()))
                || self.step_growth()
                || self.step_scrub()
                || self.step_closing();
            if !goes_on {
                return;
            }
        }
    }

    /// Of a job no part is outstanding.
    fn finish(&mut self, id: u32) {
        match &self.jobs.get_mut(id).task {
            Task::User | Task::Told => self.finish_user(id),
            Task::Bits => self.finish_bits(id),
            &Task::Close { ended } => self.finish_close(id, ended),
            Task::Copy(_) => self.finish_copy(id),
            Task::Look(_) => self.finish_look(id),
            Task::Settle => self.finish_settle(id),
            Task::Grow => self.finish_growth(id),
            Task::Probe => self.finish_probe(id),
            &Task::Load { leg, block } => self.finish_load(id, leg, block),
        }
    }
}

/// Errors after which a leg is not there.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Away | ErrorKind::OutcomeUnknown | ErrorKind::ShuttingDown)
}

impl Volume for Mirror {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry.check(&io) == Ok(()), "{io:?}");
        self.outstanding += 1;
        let ending = self.is_ending().then_some(ErrorKind::ShuttingDown);
        if let Some(kind) = self.stopped.or(ending) {
            return self.ready.push(Completion::new(io.token, Err(io.error(kind, NAME))));
        }
        // Nothing but the read itself has changed: what is to be done else the next poll or turn does.
        let is_only_read = matches!(io.op, Op::Read | Op::BlockStatus);
        match self.phase {
            Phase::Serving => self.begin(io),
            _ => self.queue.push_back(io),
        }
        if !is_only_read || !self.ripe.is_empty() {
            self.settle();
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        for _ in 0..ROUNDS_MAX {
            self.has_sent = false;
            for leg in 0..self.legs.len() {
                let Some(at) = &mut self.legs[leg] else { continue };
                at.volume.poll(&mut inbox);
                self.look_at_events(leg);
                if !inbox.is_empty() {
                    inbox.drain(..).for_each(|completion| self.on_completion(leg, completion));
                }
            }
            // Behind reads that have just ended nothing else has, and what time does the next turn sees.
            if self.is_stirred || !self.ripe.is_empty() {
                self.settle();
            }
            if std::mem::take(&mut self.is_late) {
                self.drop_late();
                self.settle();
            }
            if !self.has_sent {
                break;
            }
        }
        self.inbox = inbox;
        self.outstanding -= self.ready.len();
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn is_at_rest(&self) -> bool {
        let is_quiet = |leg: &Leg| leg.label_since.is_none() && leg.volume.is_at_rest();
        self.outstanding == 0 && self.used_legs().all(is_quiet)
    }

    fn copied_bytes(&self) -> u64 {
        self.legs.iter().flatten().map(|leg| leg.volume.copied_bytes()).sum()
    }

    fn events(&self) -> u64 {
        // Of a leg that has not been looked at it is not known yet what they are.
        let of = |leg: &Leg| leg.volume.events().wrapping_sub(leg.events);
        self.legs.iter().flatten().map(of).fold(self.news_count, u64::wrapping_add)
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        (0..self.legs.len()).for_each(|leg| self.look_at_events(leg));
        events.append(&mut self.news);
        self.settle();
    }

    fn wind_up(&mut self) {
        match self.config.read_only {
            false => self.close(),
            true => self.legs.iter_mut().flatten().for_each(|leg| leg.volume.wind_up()),
        }
    }

    fn is_wound_up(&self) -> bool {
        // Who only reads keeps nothing.
        let is_over = self.config.read_only || self.stopped.is_some() || self.closed().is_some();
        is_over && (self.stopped.is_some() || self.used_legs().all(|leg| leg.volume.is_wound_up()))
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        found.push(self.report());
        self.legs.iter().flatten().for_each(|leg| leg.volume.mirrors(found));
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.legs.iter().flatten().for_each(|leg| leg.volume.caches(found));
    }

    /// All of its legs are read by its own, each block of each. What they are made of has no need of another, but for mirrors: those give
    /// each block from one of their legs.
    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        visit(self);
        for leg in self.legs.iter_mut().flatten() {
            leg.volume.scrubs(&mut |scrub| {
                if scrub.scrub_report().module == NAME {
                    visit(scrub);
                }
            });
        }
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        visit(self);
        self.legs.iter_mut().flatten().for_each(|leg| leg.volume.works(visit));
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        self.counted = self.counted + now.since(self.now).min(TURN_MAX);
        self.now = self.now.max(now);
        self.begun = self.begun.min(now);
        self.pace.on_time(self.now);
        let mut next = Time::NEVER;
        for leg in self.legs.iter_mut().flatten() {
            next = next.min(leg.volume.turn(now));
        }
        if self.stopped.is_some() || self.is_closed() {
            if let Some(mut keeper) = self.config.keeper.take_if(|_| self.stopped.is_some()) {
                keeper.stop();
            }
            return next;
        }
        if let Some(due) = self.pass_steady() {
            return next.min(due);
        }
        next = next.min(self.time_answers());
        let keeper = self.step_keeper();
        self.hear_asks();
        self.settle();
        self.tell_standings();
        // What the last poll or this call began has to be polled, and nobody else would say so.
        let soon = if self.has_sent || self.is_late { now } else { Time::NEVER };
        let due = keeper.min(self.next_record()).min(self.next_close());
        let works = self.next_copy().min(self.next_growth()).min(self.next_scrub());
        self.begin_steady(due);
        next.min(soon).min(due).min(works)
    }

    fn refresh(&mut self) -> bool {
        self.legs.iter_mut().flatten().fold(false, |any, leg| leg.volume.refresh() | any)
    }
}
