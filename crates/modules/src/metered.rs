//! [`Metered`]: a volume whose I/Os are counted, with how long they take, for whoever shows a tree.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{Completion, ErrorKind, Io, IoError, Layer, Op, Volume, VolumeEvent};

/// Over how long what is done in a second is taken.
pub const METER_WINDOW: Duration = Duration::from_secs(1);

/// A clock for stages, of whoever drives the tree: the core has none.
pub trait StageClock {
    /// In ns, if anybody measures: asked at each border, so it must cost nothing if nobody does.
    fn measure(&self) -> Option<u64>;
}

/// What a meter has counted since its volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterReport {
    /// Reads that were submitted.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes, write-zeroes and discards.
    pub writes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// I/Os that have completed, all kinds.
    pub completed: u64,
    /// Those among them that failed.
    pub failed: u64,
    /// How long they took, together, in ns: each from its submission to its completion, as turns go.
    pub busy_ns: u64,
    /// What was done lately.
    pub recent: MeterRates,
}

/// What was done in the last whole [`METER_WINDOW`], or somewhat longer; zero of what nobody used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterRates {
    /// Reads in a second.
    pub read_iops: u64,
    /// Bytes read in a second.
    pub read_bandwidth: u64,
    /// Writes, write-zeroes and discards in a second.
    pub write_iops: u64,
    /// Bytes written in a second.
    pub write_bandwidth: u64,
    /// The mean time of what completed, in ns; 0 if nothing did.
    pub latency_ns: u64,
}

/// What the stage clock has shown at the borders of a volume since it was set back: sums modulo 2^64 of times in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStage {
    /// I/Os that have come out.
    pub ios: u64,
    /// When they went in.
    pub entered: u64,
    /// When they came out.
    pub left: u64,
    /// How long at least one of those below it had something: a sum of durations. Of one I/O at a time, which is when stages follow each other, the rest
    /// is its own.
    pub below: u64,
}

/// What a [`Metered`] counts, for others to look at.
#[derive(Debug, Default)]
pub struct Meter {
    /// Of its volume, as that has said last.
    bytes: Cell<u64>,
    // See [`MeterReport`], each by itself: on the way of an I/O nothing else is touched.
    reads: Cell<u64>,
    read_bytes: Cell<u64>,
    writes: Cell<u64>,
    written_bytes: Cell<u64>,
    flushes: Cell<u64>,
    completed: Cell<u64>,
    failed: Cell<u64>,
    busy_ns: Cell<u64>,
    recent: Cell<MeterRates>,
    /// The first that failed since somebody asked.
    failure: Cell<Option<IoError>>,
    /// The first that failed in the last turn in which one did, and when that was.
    last_failure: Cell<Option<(Time, IoError)>>,
    /// The last that was told; zero before.
    now: Cell<Time>,
    /// When the window began, and what had been counted then.
    since: Cell<Time>,
    before: Cell<MeterReport>,
    stage: Cell<NodeStage>,
    /// What volumes below have, as far as the stage clock has seen, and since when.
    has_below: Cell<u32>,
    below_since: Cell<u64>,
}

#[inline]
fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}

impl Meter {
    /// What it has counted.
    pub fn report(&self) -> MeterReport {
        MeterReport {
            reads: self.reads.get(),
            read_bytes: self.read_bytes.get(),
            writes: self.writes.get(),
            written_bytes: self.written_bytes.get(),
            flushes: self.flushes.get(),
            completed: self.completed.get(),
            failed: self.failed.get(),
            busy_ns: self.busy_ns.get(),
            recent: self.recent.get(),
        }
    }

    /// The size of its volume, as whoever uses that knows it: changes with [`VolumeEvent::Resized`]. 0 before there was one.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Some I/O has failed since [`Meter::take_failure`].
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// The first I/O that has failed since this was asked last, if one has; its range is of this volume.
    #[inline]
    pub fn take_failure(&self) -> Option<IoError> {
        self.failure.take()
    }

    /// The last I/O that has failed, of several in one turn the first, and when that was; none but those that the volume could have done. Its range is of this
    /// volume.
    pub fn last_failure(&self) -> Option<(Time, IoError)> {
        self.last_failure.get()
    }

    /// What the stage clock has shown.
    pub fn stage(&self) -> NodeStage {
        self.stage.get()
    }

    /// Stages begin anew: nothing is outstanding.
    pub fn reset_stage(&self) {
        self.stage.set(NodeStage::default());
        self.has_below.set(0);
    }

    #[inline]
    fn submitted(&self, io: &Io) {
        match io.op {
            Op::Read => {
                add(&self.reads, 1);
                add(&self.read_bytes, io.len);
            }
            Op::Write => {
                add(&self.writes, 1);
                add(&self.written_bytes, io.len);
            }
            Op::WriteZeroes | Op::Discard => add(&self.writes, 1),
            Op::Flush => add(&self.flushes, 1),
            Op::BlockStatus | Op::Cut | Op::LoadWriter | Op::StoreWriter => {}
        }
    }

    #[inline]
    fn completed(&self, done: &[Completion]) {
        add(&self.completed, done.len() as u64);
        let failed = done.iter().filter(|one| one.result.is_err()).count();
        if failed > 0 {
            self.count_failed(done, failed as u64);
        }
    }

    #[cold]
    fn count_failed(&self, done: &[Completion], failed: u64) {
        add(&self.failed, failed);
        if self.failure.get().is_none() {
            self.failure.set(done.iter().find_map(|one| one.result.err()));
        }
        // Some things are asked to find out what there is.
        let is_wrong = |error: &IoError| error.kind != ErrorKind::Unsupported;
        let now = self.now.get();
        if self.last_failure.get().is_none_or(|(at, _)| at != now)
            && let Some(error) = done.iter().find_map(|one| one.result.err().filter(is_wrong))
        {
            self.last_failure.set(Some((now, error)));
        }
    }

    /// So many have been outstanding since the last turn: what they take together is the sum of that over time (Little's law), so nothing is kept of each.
    fn turn(&self, now: Time, outstanding: usize) -> Time {
        let before = self.now.replace(now);
        if before == Time::ZERO {
            self.since.set(now);
        } else if outstanding > 0 {
            let passed = now.since(before).as_nanos() as u64;
            add(&self.busy_ns, passed.saturating_mul(outstanding as u64));
        }
        if outstanding == 0 && self.is_idle() {
            // The window begins with what comes next.
            self.since.set(now);
            return Time::NEVER;
        }
        let passed = now.since(self.since.get());
        if passed >= METER_WINDOW {
            self.end_window(now, passed);
        }
        self.since.get() + METER_WINDOW
    }

    /// Nothing was done in this window, nor in the last one.
    fn is_idle(&self) -> bool {
        let before = self.before.get();
        self.completed.get() == before.completed && self.recent.get() == MeterRates::default()
    }

    #[cold]
    fn end_window(&self, now: Time, passed: Duration) {
        let counted = self.report();
        self.recent.set(rates(&self.before.get(), &counted, passed));
        self.since.set(now);
        self.before.set(counted);
    }

    /// The stage clock shows this while something goes in.
    fn enter(&self, now: u64, above: Option<&Meter>) {
        let mut stage = self.stage.get();
        stage.entered = stage.entered.wrapping_add(now);
        self.stage.set(stage);
        if let Some(above) = above {
            if above.has_below.get() == 0 {
                above.below_since.set(now);
            }
            above.has_below.set(above.has_below.get() + 1);
        }
    }

    /// And while so many come out.
    fn leave(&self, now: u64, ios: u64, above: Option<&Meter>) {
        let mut stage = self.stage.get();
        stage.ios += ios;
        stage.left = stage.left.wrapping_add(now.wrapping_mul(ios));
        self.stage.set(stage);
        // What had gone in before the clock ran is not counted there.
        if let Some(above) = above.filter(|above| above.has_below.get() > 0) {
            let rest = above.has_below.get().saturating_sub(ios as u32);
            above.has_below.set(rest);
            if rest == 0 {
                let mut stage = above.stage.get();
                let passed = now.wrapping_sub(above.below_since.get());
                stage.below = stage.below.wrapping_add(passed);
                above.stage.set(stage);
            }
        }
    }
}

fn rates(before: &MeterReport, after: &MeterReport, passed: Duration) -> MeterRates {
    let per_second = |before: u64, after: u64| {
        (u128::from(after - before) * 1_000_000_000 / passed.as_nanos().max(1)) as u64
    };
    let completed = after.completed - before.completed;
    MeterRates {
        read_iops: per_second(before.reads, after.reads),
        read_bandwidth: per_second(before.read_bytes, after.read_bytes),
        write_iops: per_second(before.writes, after.writes),
        write_bandwidth: per_second(before.written_bytes, after.written_bytes),
        latency_ns: (after.busy_ns - before.busy_ns).checked_div(completed).unwrap_or(0),
    }
}

/// A volume, a meter of it, and what it is called in its tree. Costs some additions for each I/O and each turn; allocates nothing, and keeps nothing of an I/O.
///
/// It is timed, whatever it stands on, and wants to be told the time again within [`METER_WINDOW`] while anybody uses it.
pub struct Metered {
    below: Box<dyn Volume>,
    meter: Rc<Meter>,
    /// That of what it is a part of.
    above: Option<Rc<Meter>>,
    clock: Option<Rc<dyn StageClock>>,
    path: Option<Rc<str>>,
}

impl Metered {
    /// Counts what goes to `below`, which is a part of what `above` is the meter of.
    pub fn new(
        below: Box<dyn Volume>,
        meter: Rc<Meter>,
        above: Option<Rc<Meter>>,
        clock: Option<Rc<dyn StageClock>>,
    ) -> Self {
        meter.bytes.set(below.geometry().bytes);
        Metered { below, meter, above, clock, path: None }
    }

    /// What happens in it has happened to the volume of that path in the tree, unless one below is named that it happened to.
    pub fn named(self, path: Rc<str>) -> Self {
        Metered { path: Some(path), ..self }
    }

    #[inline]
    fn measure(&self) -> Option<u64> {
        self.clock.as_ref().and_then(|clock| clock.measure())
    }
}

impl Layer for Metered {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        self.meter.submitted(&io);
        if let Some(now) = self.measure() {
            self.meter.enter(now, self.above.as_deref());
        }
        self.below.submit(io);
    }

    #[inline]
    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        if done.len() == start {
            return;
        }
        self.meter.completed(&done[start..]);
        if let Some(now) = self.measure() {
            self.meter.leave(now, (done.len() - start) as u64, self.above.as_deref());
        }
    }

    fn taken(&self) -> usize {
        self.below.outstanding()
    }

    fn on_events(&mut self, events: &mut [VolumeEvent]) {
        self.meter.bytes.set(self.below.geometry().bytes);
        if let Some(path) = &self.path {
            events.iter_mut().for_each(|event| event.name(path));
        }
    }

    fn own_is_timed(&self) -> bool {
        true
    }

    fn own_turn(&mut self, now: Time) -> Time {
        self.meter.turn(now, self.below.outstanding())
    }
}
