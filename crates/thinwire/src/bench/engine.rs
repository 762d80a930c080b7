//! The loop of a benchmark: keeps every job's I/Os outstanding, takes their completions, counts.
//! Jobs share one thread and one volume. Nothing allocates once all slots have been used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use thinwire_buffer::{Pool, SegList, Segment};
use thinwire_volume::{Completion, ErrorKind, Io, IoError, Op};

use super::ledger::{CheckOutcome, Ledger};
use super::plan::{BenchPlan, SplitMix, Stream};
use crate::control::BatchStatus;
use crate::error::{Failure, Outcome};
use crate::open::{OpenVolume, VolumeHealth, Wait};
use crate::signals::Signals;

/// Latencies beyond an hour are recorded as an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// A volume on which this many I/Os failed is not worth measuring further.
const ERRORS_MAX: u64 = 1000;

/// More complaints than these are not shown.
const COMPLAINTS_MAX: usize = 10;

/// After a signal, what is outstanding gets this long.
const DRAIN: Duration = Duration::from_secs(2);

/// How often signals and progress are looked at.
const GLANCE: Duration = Duration::from_millis(100);

/// When busy, try this many neighbours of a block with an outstanding I/O (`--verify`).
const NEIGHBOURS_MAX: u64 = 64;

/// Ends all threads of a benchmark early.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on nothing new is started.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct Tally {
    /// I/Os that succeeded.
    pub ios: u64,
    /// Reads among them.
    pub reads: u64,
    /// I/Os that failed, blocks that were wrong, and I/Os given up after a signal.
    pub errors: u64,
    /// From submission to completion, in nanoseconds, of the I/Os that succeeded.
    pub latency_ns: Histogram<u64>,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
    /// CPU time of the whole process in that time.
    pub cpu: Duration,
    /// Reads that were checked and found right.
    pub verified: u64,
    /// Sentences about the first errors.
    pub complaints: Vec<String>,
    /// A signal ended it early.
    pub interrupted: bool,
    /// Levels of the batching policy, looked at ten times a second; 0 where none is one level.
    pub level_sum: u64,
    /// How often.
    pub looks: u64,
    /// The last of them.
    pub level_last: u64,
    /// How requests shared frames, at the end.
    pub batch: Option<BatchStatus>,
    /// Payload bytes that the volume copied meanwhile, in this process.
    pub copied_bytes: u64,
    /// With [`BenchPlan::stamps`]: sums, modulo 2^64, of the times on the stage clock at which I/Os
    /// were issued, and at which their completions were seen.
    pub issued_ns: u64,
    /// The latter.
    pub seen_ns: u64,
    /// Figures over time, if the plan asks for them.
    pub timeline: Vec<Snapshot>,
}

/// What was counted up to a time.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// Since the start.
    pub time: Duration,
    /// I/Os that had succeeded.
    pub ios: u64,
    /// The batching policy's level.
    pub level: u64,
}

impl Tally {
    /// Nothing counted yet. Allocates all it will ever need.
    pub fn new() -> Self {
        Tally {
            ios: 0,
            reads: 0,
            errors: 0,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid bounds"),
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            verified: 0,
            complaints: Vec::with_capacity(COMPLAINTS_MAX),
            interrupted: false,
            level_sum: 0,
            looks: 0,
            level_last: 0,
            batch: None,
            copied_bytes: 0,
            issued_ns: 0,
            seen_ns: 0,
            timeline: Vec::new(),
        }
    }

    /// Adds what another thread counted at the same time.
    pub fn merge(&mut self, other: &Tally) {
        self.ios += other.ios;
        self.reads += other.reads;
        self.errors += other.errors;
        self.latency_ns += &other.latency_ns;
        self.elapsed = self.elapsed.max(other.elapsed);
        // Each thread has measured the CPU time of the whole process.
        self.cpu = self.cpu.max(other.cpu);
        self.verified += other.verified;
        self.complaints.extend_from_slice(&other.complaints);
        self.complaints.truncate(COMPLAINTS_MAX);
        self.interrupted |= other.interrupted;
        self.level_sum += other.level_sum;
        self.looks += other.looks;
        self.copied_bytes += other.copied_bytes;
        if let (Some(batch), Some(more)) = (&mut self.batch, &other.batch) {
            batch.requests += more.requests;
            batch.frames += more.frames;
        }
        for (sample, more) in self.timeline.iter_mut().zip(&other.timeline) {
            sample.ios += more.ios;
        }
    }

    /// Looks at the batching policy.
    fn look(&mut self, time: Duration, health: VolumeHealth, note: bool) {
        self.level_last = health.batch.as_ref().map_or(0, |batch| batch.level);
        self.level_sum += self.level_last;
        self.looks += 1;
        if note {
            self.timeline.push(Snapshot { time, ios: self.ios, level: self.level_last });
        }
        self.batch = health.batch;
    }

    fn complain(&mut self, sentence: impl FnOnce() -> String) {
        self.errors += 1;
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(sentence());
        }
    }

    /// The I/O has failed so: where that was is said once.
    fn complain_of(&mut self, error: &IoError, open: &mut dyn OpenVolume) {
        let said = &self.complaints;
        let sentence = (said.len() < COMPLAINTS_MAX).then(|| {
            let failed = open.failed_at(error);
            match said.iter().any(|said| said.starts_with(&failed.place)) {
                true => error.to_string(),
                false => failed.to_string(),
            }
        });
        self.complain(|| sentence.unwrap_or_default());
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

/// One outstanding I/O.
#[derive(Clone, Copy)]
struct OutstandingIo {
    job: u32,
    block: u64,
    generation: u32,
    write: bool,
    started: Instant,
}

/// A benchmark on one thread. See the [module](self).
pub struct Engine {
    plan: BenchPlan,
    streams: Vec<Stream>,
    slots: Vec<OutstandingIo>,
    free: Vec<u32>,
    outstanding: usize,
    done: Vec<Completion>,
    noise: Segment,
    noise_random: SplitMix,
    ledger: Option<Ledger>,
    tally: Tally,
    fatal: bool,
}

impl Engine {
    /// For a plan that [fits](BenchPlan::fit) the volume. `run` tells this run's stamps from
    /// others'.
    pub fn new(plan: BenchPlan, pool: &Pool, run: u32) -> Self {
        let slot_count = plan.outstanding_max();
        let idle = OutstandingIo {
            job: 0,
            block: 0,
            generation: 0,
            write: false,
            started: Instant::now(),
        };
        let mut noise = pool.get((plan.bs as usize * 2).clamp(1 << 20, Pool::BUF_BYTES_MAX));
        let mut noise_random = SplitMix::new(plan.seed ^ u64::from(run));
        for word in noise.chunks_exact_mut(8) {
            word.copy_from_slice(&noise_random.bits().to_le_bytes());
        }
        Engine {
            plan,
            streams: (0..plan.jobs).map(|job| Stream::new(&plan, job)).collect(),
            slots: (0..slot_count)
                .map(|at| OutstandingIo { job: (at % plan.jobs as usize) as u32, ..idle })
                .collect(),
            free: (0..slot_count as u32).rev().collect(),
            outstanding: 0,
            done: Vec::with_capacity(slot_count),
            noise: noise.freeze(),
            noise_random,
            ledger: plan.verify.then(|| Ledger::new(plan.blocks, plan.bs, run)),
            tally: Tally::new(),
            fatal: false,
        }
    }

    /// Runs the plan to its end, then, if it wrote, flushes, and, with `--verify`, reads back all
    /// that it wrote. `glance` is called about ten times a second with the time so far and the
    /// I/Os done. The error is that of a volume that is lost; failed I/Os are counted instead.
    pub fn run(
        mut self,
        open: &mut dyn OpenVolume,
        stop: &Stop,
        signals: Option<&Signals>,
        glance: &mut dyn FnMut(Duration, u64),
    ) -> Outcome<Tally> {
        self.measure(open, stop, signals, glance)?;
        if self.plan.writes() && self.outstanding == 0 && !self.fatal {
            self.flush(open)?;
            if !self.tally.interrupted {
                self.read_back(open, stop, signals)?;
            }
        }
        Ok(self.tally)
    }

    fn measure(
        &mut self,
        open: &mut dyn OpenVolume,
        stop: &Stop,
        signals: Option<&Signals>,
        glance: &mut dyn FnMut(Duration, u64),
    ) -> Outcome {
        let copied_before = open.volume().copied_bytes();
        let cpu_before = cpu_time();
        let start = Instant::now();
        let end = start + self.plan.runtime;
        let mut next_glance = start + GLANCE;
        let mut now = start;
        let mut last = start;
        let mut next_note = self.plan.timeline.map(|step| start + step);
        loop {
            if now >= next_glance {
                next_glance = now + GLANCE;
                heed(signals, stop);
                glance(now - start, self.tally.ios);
                let note = next_note.is_some_and(|at| now >= at);
                if let (true, Some(step)) = (note, self.plan.timeline) {
                    next_note = next_note.map(|at| at + step);
                }
                self.tally.look(now - start, open.health(), note);
            }
            let stopped = stop.is_stopped();
            if now < end && !stopped && !self.fatal {
                self.fill(open);
            } else if self.outstanding == 0 {
                break;
            }
            self.tally.interrupted |= stopped && now < end;
            if stopped && self.give_up(now, last.max(start)) {
                break;
            }
            // Not beyond the next glance, lest a silent target make us deaf.
            open.turn(Wait::Until(next_glance))?;
            let completed = self.take(open);
            now = Instant::now();
            if completed {
                self.settle(now, open);
                last = now;
            }
        }
        self.tally.elapsed = last - start;
        self.tally.look(last - start, open.health(), false);
        self.tally.cpu = cpu_time().saturating_sub(cpu_before);
        self.tally.copied_bytes = open.volume().copied_bytes() - copied_before;
        Ok(())
    }

    /// After a signal: true once what is outstanding has had its time, and counts it as failed.
    fn give_up(&mut self, now: Instant, last: Instant) -> bool {
        if self.outstanding == 0 || now < last + DRAIN {
            return false;
        }
        let count = self.outstanding as u64;
        self.tally.complain(|| format!("{count} I/Os were outstanding when it was interrupted"));
        self.tally.errors += count - 1;
        true
    }

    /// Starts I/Os on all free slots.
    fn fill(&mut self, open: &mut dyn OpenVolume) {
        let mut at = self.free.len();
        while at > 0 {
            at -= 1;
            let token = self.free[at];
            let job = self.slots[token as usize].job;
            let (block, write) = self.streams[job as usize].next();
            let Some(block) = self.reserve(block) else { continue };
            self.free.swap_remove(at);
            self.start(open, token, block, write);
        }
    }

    /// `block`, or with `--verify` the next one that has no I/O outstanding.
    fn reserve(&mut self, block: u64) -> Option<u64> {
        let Some(ledger) = &mut self.ledger else { return Some(block) };
        let blocks = self.plan.blocks;
        (0..NEIGHBOURS_MAX.min(blocks))
            .map(|step| (block + step) % blocks)
            .find(|block| ledger.take(*block))
    }

    fn start(&mut self, open: &mut dyn OpenVolume, token: u32, block: u64, write: bool) {
        if self.plan.stamps {
            self.tally.issued_ns = self.tally.issued_ns.wrapping_add(open.stage_ns());
        }
        let started = Instant::now();
        let bs = u64::from(self.plan.bs);
        let op = if write { Op::Write } else { Op::Read };
        let mut io = Io::new(u64::from(token), op, block * bs, bs);
        let mut generation = 0;
        if write {
            (io.data, generation) = self.payload(open.pool(), block);
        }
        let slot = &mut self.slots[token as usize];
        *slot = OutstandingIo { block, generation, write, started, ..*slot };
        self.outstanding += 1;
        open.volume().submit(io);
    }

    /// What to write: a stamped buffer, or a piece of noise that costs nothing to make.
    fn payload(&mut self, pool: &Pool, block: u64) -> (SegList, u32) {
        let bs = self.plan.bs as usize;
        match &self.ledger {
            Some(ledger) => {
                let mut buf = pool.get(bs);
                let generation = ledger.stamp(block, &mut buf);
                (SegList::of(buf.freeze()), generation)
            }
            None => {
                let places = (self.noise.len() - bs) / 4096 + 1;
                let at = self.noise_random.below(places as u64) as usize * 4096;
                (SegList::of(self.noise.slice(at, bs)), 0)
            }
        }
    }

    /// Takes completions from the volume; true if there were any.
    fn take(&mut self, open: &mut dyn OpenVolume) -> bool {
        open.volume().poll(&mut self.done);
        if self.plan.stamps && !self.done.is_empty() {
            let now = open.stage_ns().wrapping_mul(self.done.len() as u64);
            self.tally.seen_ns = self.tally.seen_ns.wrapping_add(now);
        }
        !self.done.is_empty()
    }

    /// Counts the completions taken and frees their slots.
    fn settle(&mut self, now: Instant, open: &mut dyn OpenVolume) {
        let mut done = std::mem::take(&mut self.done);
        for completion in done.drain(..) {
            let slot = self.slots[completion.token as usize];
            self.outstanding -= 1;
            self.free.push(completion.token as u32);
            let success = self.check(slot, &completion, open);
            if let Some(ledger) = &mut self.ledger {
                ledger.release(slot.block);
            }
            if success {
                self.tally.ios += 1;
                self.tally.reads += u64::from(!slot.write);
                let ns = (now - slot.started).as_nanos() as u64;
                self.tally.latency_ns.saturating_record(ns.max(1));
            }
        }
        self.done = done;
    }

    /// Whether the I/O did what it should; complains if not.
    fn check(
        &mut self,
        slot: OutstandingIo,
        completion: &Completion,
        open: &mut dyn OpenVolume,
    ) -> bool {
        if slot.write
            && let Some(ledger) = &mut self.ledger
        {
            ledger.written(slot.block, slot.generation, completion.result.is_ok());
        }
        if let Err(error) = completion.result {
            self.tally.complain_of(&error, open);
            let last_words = matches!(
                error.kind,
                ErrorKind::Fenced | ErrorKind::ContentChanged | ErrorKind::ShuttingDown
            );
            self.fatal |= last_words || self.tally.errors >= ERRORS_MAX;
            return false;
        }
        if slot.write {
            return true;
        }
        let bs = self.plan.bs as usize;
        let verdict = match &self.ledger {
            Some(ledger) => ledger.check(slot.block, &completion.data),
            None if completion.data.bytes() == bs => CheckOutcome::Unknown,
            None => CheckOutcome::Wrong(format!(
                "the read of {bs} bytes gave {} bytes",
                completion.data.bytes()
            )),
        };
        match verdict {
            CheckOutcome::Right => self.tally.verified += 1,
            CheckOutcome::Unknown => {}
            CheckOutcome::Wrong(why) => {
                self.tally.complain(|| why);
                return false;
            }
        }
        true
    }

    fn flush(&mut self, open: &mut dyn OpenVolume) -> Outcome {
        let result = one_io(open, Io::new(0, Op::Flush, 0, 0), &mut self.done)?.result;
        if let Err(error) = result {
            self.tally.complain_of(&error, open);
        }
        Ok(())
    }

    /// Reads all that this run wrote and checks it; not part of the measurement.
    fn read_back(
        &mut self,
        open: &mut dyn OpenVolume,
        stop: &Stop,
        signals: Option<&Signals>,
    ) -> Outcome {
        if self.ledger.is_none() {
            return Ok(());
        }
        let measured = (self.tally.ios, self.tally.reads, self.tally.latency_ns.clone());
        let mut next = 0;
        let mut next_glance = Instant::now() + GLANCE;
        loop {
            while !stop.is_stopped()
                && !self.fatal
                && let Some(token) = self.free.pop()
            {
                let ledger = self.ledger.as_mut().expect("checked above");
                let Some(block) = ledger.next_known(next) else {
                    self.free.push(token);
                    break;
                };
                ledger.take(block);
                next = block + 1;
                self.start(open, token, block, false);
            }
            if self.outstanding == 0 {
                break;
            }
            open.turn(Wait::Until(next_glance))?;
            let completed = self.take(open);
            let now = Instant::now();
            if completed {
                self.settle(now, open);
            }
            if now >= next_glance {
                next_glance = now + GLANCE;
                heed(signals, stop);
                if stop.is_stopped() {
                    self.tally.interrupted = true;
                    break;
                }
            }
        }
        (self.tally.ios, self.tally.reads, self.tally.latency_ns) = measured;
        Ok(())
    }
}

/// Lets a signal stop all threads.
fn heed(signals: Option<&Signals>, stop: &Stop) {
    if signals.is_some_and(|signals| signals.take().is_some()) {
        stop.stop();
    }
}

/// Submits one I/O to a volume with nothing outstanding and waits for its completion.
pub fn one_io(
    open: &mut dyn OpenVolume,
    io: Io,
    done: &mut Vec<Completion>,
) -> Outcome<Completion> {
    open.volume().submit(io);
    // What is completed as soon as it is submitted, as a flush by a client that has none, is there once it has gone down: no
    // event tells of it any more.
    let mut wait = Wait::No;
    loop {
        open.turn(wait)?;
        open.volume().poll(done);
        if let Some(completion) = done.pop() {
            return Ok(completion);
        }
        wait = Wait::Forever;
    }
}

/// CPU time of this process so far, all threads, user and system.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The failure of a run with failed I/Os; `None` if there were none.
pub fn failure(tally: &Tally) -> Option<Failure> {
    if tally.errors > 0 {
        let first = tally.complaints.first().map_or("", String::as_str);
        Some(Failure::failed(format!("{} I/Os failed; first: {first}", tally.errors)))
    } else if tally.interrupted {
        Some(Failure::failed("interrupted"))
    } else {
        None
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
