//! [`Integrity`]: a volume that finds out when its part gives back something else than what was written there (`docs/format.md`, "A volume
//! with sums"). Opened with labels only.
//!
//! Of each block of 4096 bytes two sums are kept side by side, CRC32C of its bytes, its number and the UUID of the whole: that of
//! what was written last, and of what was there before. So what was lost, misdirected or changed on the way to the disk or there does not fit,
//! as does what belongs to another volume.
//!
//! **The order of a write.** The region that it lies in is on record as open, durably, before anything of it is written (`intent`): that costs
//! nothing where somebody wrote lately. Then the block of sums is written, with the new sum beside the old one; when that
//! has completed, the data; when that has, the write is complete. Nobody waits for a flush. Writes that change the same block of sums share its next write: one
//! is under way at a time. A flush goes down as it is, and covers both. A region is closed when nothing was written there for two seconds,
//! in batches: what was written has completed, a flush that began behind that has succeeded, and then the record is written.
//!
//! **What a crash leaves.** If only this program ends, each block fits one of its two sums, but one that is torn. If what was not flushed is lost, a block
//! may fit neither: its data is newer or older than both sums are. In a region that was open such a block is *unverified*: it is counted, and
//! read all the same, since nothing is known to be wrong with it, by whoever has no better one; a mirror above asks for
//! [verified](thinwire_volume::IoFlags::verified) bytes first, and gets none. In all other regions only the newer sum counts, and a block that does not fit fails
//! with [`ErrorKind::BadSum`], which names it. No such block is ever given to anybody.
//!
//! What was open at a crash is looked through behind that, beside users (`check`): at the opening would hold them up for as long as it takes to read all that was
//! open, and only when it is read would leave the old sums valid for good. A region of which all blocks fit is closed, one with unverified blocks
//! stays open until those are written again. What fails while it is open leaves its region in the same doubt, as does a loss below.
//!
//! A discard writes zeroes, since what it leaves behind otherwise fits no sum.

mod check;
mod growth;
mod intent;
mod layout;
mod look;
mod making;
mod serve;
mod sums;
#[cfg(test)]
mod tests;
mod under;
mod work;

use std::collections::VecDeque;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_volume::{
    CacheReport, Completion, ErrorKind, Extent, Features, Geometry, Identity, Io, IoError,
    MirrorReport, Op, RangeLocks, Scrub, Slab, Volume, VolumeEvent, Work,
};

use self::check::{Check, Gone};
use self::growth::Growth;
use self::intent::{Closing, Intent};
use self::layout::{BLOCK, SEGMENT_SUMS, SUMMED_BYTES, Summer};
use self::sums::Sums;
use self::under::Under;
use crate::meta::PartDoor;
use crate::pace::Pace;
use crate::write_intent::regions::Regions;
use crate::{Child, Composite, IdentityHash, ModuleError, common_geometry};

pub(crate) use layout::MODULE;
pub use layout::{IntegrityFault, IntegrityState, SUM_GROWTHS_MAX, SumGrowthError, SumLayout};
pub use look::{SUM_BITMAP_OFFSETS, SeenSums, look_at_sums, sum_bitmap_bytes};
pub use making::{SumGrowing, SumMaking};

/// The name under which its own errors appear.
const NAME: &str = "integrity";
/// A poll that is never done would starve others: what is left comes with the next.
const ROUNDS_MAX: usize = 16;
/// So much that has happened is kept for who asks late.
const NEWS_MAX: usize = 64;

/// How a volume with sums is opened.
pub struct IntegrityConfig {
    /// Memory for blocks of sums and of the bitmap.
    pub pool: Pool,
    /// So many bytes of sums are kept in memory, at least those that are in use: each 4 KiB of them are of 2 MiB of data. Default: 8 MiB.
    pub cache_bytes: u64,
    /// Nothing is written: neither data nor what tells of it.
    pub read_only: bool,
}

impl IntegrityConfig {
    /// As is usual.
    pub fn new(pool: &Pool) -> Self {
        IntegrityConfig { pool: pool.clone(), cache_bytes: 8 << 20, read_only: false }
    }
}

/// A fault planted in it, which its tests must find. No flag sets one.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IntegrityCanary {
    #[default]
    None,
    /// Sums and data are written beside the record that their region is open.
    NoOpenRegion,
    /// A region is closed without a flush.
    EarlyClose,
    /// Sums are written with the next write of their block, and no flush writes them.
    LateSums,
    /// What was open at a crash is closed by whoever opens it.
    Forgetful,
    /// What was found good and not flushed stays so behind a loss, and the sums that it fits are not written again.
    TrustsMemory,
    /// What was passed over is not read again, also once it was written.
    PassesOverForGood,
    /// Reads do not wait for writes of the same blocks.
    NoRangeLock,
    /// Who does one thing after the other is gone in between, if each takes long.
    IdleBetween,
    /// What it grows by is said to be ready when that is asked for, and zeroed behind that.
    GrowsAhead,
    /// What was zeroed stays so behind a loss.
    TrustsZeroed,
    /// What comes is not read by a scrub that is in the last region.
    ScrubsWhatWas,
    /// A check takes what users leave before a growth does, however long that waits.
    ChecksFirst,
}

/// What an I/O below is for.
enum Flight {
    /// The data of a job, or a flush.
    Job(u32),
    /// A block of sums is read, or written.
    Load(u32),
    Store(u32),
    /// A copy of a block of the bitmap is read.
    Find {
        number: u64,
    },
    /// A block of the bitmap is written.
    Bits {
        block: u32,
    },
    /// What it grows by is made ready.
    Grow(Op),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// As its [`Io::op`] says.
    User,
    /// Data is read, so that somebody looks at it.
    Check,
    /// A flush, so that regions can be closed that were written before so many writes had ended.
    Close { ended: u64 },
    /// A flush of what was checked.
    Settle,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for its range, or for its regions to be open.
    Waiting,
    /// Of a write: its sums are being read.
    Loading,
    /// They are being written.
    Storing,
    /// The data is under way; of a read, or of a question, the sums, too.
    Data,
}

/// What is done for somebody: a user, or the volume itself.
struct Job {
    task: Task,
    stage: Stage,
    /// Of a user as it came, but for the payload once that was handed down.
    io: Io,
    /// The segment that is under way.
    at: u64,
    len: u64,
    /// Where the data began when some was handed down.
    data_offset: u64,
    /// It needs blocks of sums: those of the segment.
    has_pins: bool,
    /// It holds its range.
    is_locked: bool,
    /// What it waits for below.
    pending: u32,
    /// The first thing that went wrong.
    error: Option<IoError>,
    data: SegList,
    extents: Vec<Extent>,
}

/// A volume that fails, instead of giving back something else than what was written. See the head of this file.
///
/// It wants to know the time ([`Volume::turn`]): without, no region is closed, and nothing is checked.
pub struct Integrity {
    below: Composite<Under>,
    layout: SumLayout,
    geometry: Geometry,
    whole: [u8; 16],
    summer: Summer,
    config: IntegrityConfig,
    is_open: bool,
    regions: Regions,
    region_shift: u8,
    intent: Intent,
    check: Check,
    growth: Growth,
    /// By which it hears that its part has more; none where nobody says so.
    door: Option<PartDoor>,
    pace: Pace,
    sums: Sums,
    flights: Slab<Flight>,
    jobs: Slab<Job>,
    /// Jobs that wait for nothing below any more.
    ripe: VecDeque<u32>,
    locks: RangeLocks,
    granted: Vec<u32>,
    /// Users' I/Os that wait for the opening.
    queue: VecDeque<Io>,
    ready: Vec<Completion>,
    inbox: Vec<Completion>,
    /// Users' I/Os that were submitted, and not polled.
    outstanding: usize,
    closing: Closing,
    /// Why nothing is done any more.
    stopped: Option<ErrorKind>,
    news: Vec<VolumeEvent>,
    news_count: u64,
    /// What the part counted when its events were last taken.
    events: u64,
    now: Time,
    /// Something was submitted below since that was polled.
    has_sent: bool,
    canary: IntegrityCanary,
}

impl Integrity {
    /// What users call it.
    pub const NAME: &'static str = NAME;

    /// Over the data of its part, as its label has it, which says that `state`. `whole` is the UUID in the label. What is submitted
    /// waits until the bitmap is read.
    ///
    /// # Errors
    /// The part has no room, or takes less in an I/O than a block.
    pub fn open(
        part: Child,
        state: IntegrityState,
        whole: [u8; 16],
        config: IntegrityConfig,
    ) -> Result<Self, ModuleError> {
        let children = vec![part];
        let below = common_geometry(NAME, &children)?;
        let part_bytes = children[0].geometry().bytes;
        let layout = SumLayout::of(part_bytes);
        let unfit = |why: String| Err(ModuleError::of_child(NAME, 0, why));
        if layout.bytes == 0 {
            return unfit(format!("has {part_bytes} bytes behind its label, and sums need more"));
        }
        if below.block_bytes as u64 > BLOCK || u64::from(below.io_bytes_max) < BLOCK {
            return unfit(format!("does not take {BLOCK} bytes in one I/O"));
        }
        let Features { read_only, write_zeroes, block_status, .. } = below.features;
        let read_only = read_only || config.read_only;
        let writes_zeroes = write_zeroes && !read_only;
        let geometry = Geometry {
            bytes: layout.bytes,
            block_bytes: BLOCK as u32,
            preferred_bytes: below.preferred_bytes.max(BLOCK as u32),
            io_bytes_max: below.io_bytes_max - below.io_bytes_max % BLOCK as u32,
            features: Features {
                read_only,
                discard: writes_zeroes,
                write_zeroes: writes_zeroes,
                block_status,
            },
        };
        let regions = Regions::new(layout.bytes, state.region_shift, 1);
        let bits = regions.blocks() as usize;
        let mut identity = IdentityHash::new(NAME);
        identity.add(&whole);
        let under = Geometry { bytes: part_bytes, ..below };
        let door = children[0].door();
        let config = IntegrityConfig { read_only, ..config };
        let mut this = Integrity {
            below: Composite::new(
                Under::of(part_bytes, state, door.is_some()),
                under,
                identity,
                children,
            ),
            layout,
            geometry,
            whole,
            summer: Summer::new(whole),
            sums: Sums::new((config.cache_bytes / BLOCK) as usize),
            config,
            is_open: false,
            regions,
            region_shift: state.region_shift,
            intent: Intent::new(bits),
            check: Check::default(),
            growth: Growth::default(),
            door,
            pace: Pace::new(),
            flights: Slab::new(),
            jobs: Slab::new(),
            ripe: VecDeque::new(),
            locks: RangeLocks::default(),
            granted: Vec::new(),
            queue: VecDeque::new(),
            ready: Vec::new(),
            inbox: Vec::new(),
            outstanding: 0,
            closing: Closing::No,
            stopped: None,
            news: Vec::new(),
            news_count: 0,
            events: 0,
            now: Time::ZERO,
            has_sent: false,
            canary: IntegrityCanary::None,
        };
        this.events = this.below.events();
        this.find_bits(0);
        Ok(this)
    }

    /// Hands an I/O down. Its range is of the part.
    #[inline]
    fn hand_down(&mut self, mut io: Io, flight: Flight) {
        io.token = self.flights.insert(flight).into();
        self.below.submit(io);
        self.has_sent = true;
    }

    fn new_job(&mut self, task: Task, io: Io) -> u32 {
        self.jobs.insert(Job {
            task,
            stage: Stage::Waiting,
            at: io.offset,
            len: 0,
            io,
            data_offset: 0,
            has_pins: false,
            is_locked: false,
            pending: 0,
            error: None,
            data: SegList::new(),
            extents: Vec::new(),
        })
    }

    fn on_completion(&mut self, completion: Completion) {
        let flight = self.flights.remove(completion.token);
        debug_assert!(flight.is_some(), "{} is not outstanding below", completion.token);
        let Some(flight) = flight else { return };
        match flight {
            Flight::Job(id) => self.on_job(id, completion),
            Flight::Load(slot) => self.on_load(slot, completion),
            Flight::Store(slot) => self.on_store(slot, completion.result),
            Flight::Find { number } => self.on_find(number, completion),
            Flight::Bits { block } => self.on_bits(block, completion.result),
            Flight::Grow(op) => self.on_zeroed(op, completion.result),
        }
    }

    /// Something of a job has ended below.
    fn end_part(&mut self, id: u32, error: Option<IoError>) {
        let job = self.jobs.get_mut(id);
        job.error = job.error.or(error);
        job.pending -= 1;
        if job.pending == 0 {
            self.ripe.push_back(id);
        }
    }

    /// Does what can be done now.
    fn settle(&mut self) {
        loop {
            self.go_on_with_ripe();
            let is_writing = self.is_open && !self.config.read_only && self.stopped.is_none();
            let goes_on = (is_writing && (self.step_bits() || self.step_close()))
                || (self.is_open && self.step_check())
                || self.step_growth()
                || self.step_closing();
            if !goes_on {
                return;
            }
        }
    }

    #[inline]
    fn go_on_with_ripe(&mut self) {
        while let Some(id) = self.ripe.pop_front() {
            self.go_on(id);
        }
    }

    /// Of a job nothing is outstanding below.
    fn go_on(&mut self, id: u32) {
        match self.jobs.get_mut(id).task {
            Task::User | Task::Check => self.go_on_with_data(id),
            Task::Close { ended } => self.finish_close(id, ended),
            Task::Settle => self.finish_settle(id),
        }
    }

    fn put_ready(&mut self, completion: Completion) {
        if self.canary != IntegrityCanary::IdleBetween {
            self.pace.on_end();
        }
        match completion.result {
            // What else comes with it may have seen the loss.
            Err(error) if error.op == Op::Flush => self.ready.insert(0, completion),
            _ => self.ready.push(completion),
        }
    }

    /// Nothing is done any more, nor was it ever.
    fn stop(&mut self, kind: ErrorKind) {
        self.stopped = Some(kind);
        self.end_scrub();
        while let Some(io) = self.queue.pop_front() {
            self.ready.push(Completion::new(io.token, Err(io.error(kind, NAME))));
        }
    }

    fn tell(&mut self, event: VolumeEvent) {
        if self.news.len() < NEWS_MAX || event == VolumeEvent::Lost {
            self.news.push(event);
            self.news_count = self.news_count.wrapping_add(1);
        }
    }

    /// Takes what has happened to the part, before what it has completed.
    fn look_at_events(&mut self) {
        let events = self.below.events();
        if events == self.events {
            return;
        }
        let mut news = Vec::new();
        self.below.poll_events(&mut news);
        let events = self.below.events();
        let more = events.wrapping_sub(std::mem::replace(&mut self.events, events));
        self.news_count = self.news_count.wrapping_add(more);
        for event in news {
            if event == VolumeEvent::Lost {
                self.doubt_what_is_open(Gone::Lost);
                self.news.insert(0, event);
            } else if matches!(event, VolumeEvent::Resized { .. }) {
                self.take_in_growth();
            } else if self.news.len() < NEWS_MAX || matches!(event, VolumeEvent::Fenced { .. }) {
                self.news.push(event);
            }
        }
        self.hear_growth();
    }

    fn submit_now(&mut self, io: Io) {
        match (self.stopped, self.is_open) {
            (Some(kind), _) => {
                self.ready.push(Completion::new(io.token, Err(io.error(kind, NAME))))
            }
            (None, true) => self.begin(io),
            (None, false) => self.queue.push_back(io),
        }
    }
}

impl Volume for Integrity {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry.check(&io) == Ok(()), "{io:?}");
        self.outstanding += 1;
        if self.closing != Closing::No {
            let error = io.error(ErrorKind::ShuttingDown, NAME);
            return self.ready.push(Completion::new(io.token, Err(error)));
        }
        self.submit_now(io);
        self.go_on_with_ripe();
        // Nothing else begins with an I/O but the record that its region is open.
        if self.regions.is_dirty() {
            self.settle();
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        for _ in 0..ROUNDS_MAX {
            self.has_sent = false;
            self.below.poll(&mut inbox);
            self.look_at_events();
            inbox.drain(..).for_each(|completion| self.on_completion(completion));
            self.settle();
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
        self.outstanding == 0 && self.below.outstanding() == 0 && self.below.is_at_rest()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.news_count.wrapping_add(self.below.events().wrapping_sub(self.events))
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.look_at_events();
        events.append(&mut self.news);
    }

    fn wind_up(&mut self) {
        if self.closing == Closing::No && !self.config.read_only {
            self.closing = Closing::Asked;
            self.settle();
        }
        if self.config.read_only || self.stopped.is_some() {
            self.below.wind_up();
        }
    }

    fn is_wound_up(&self) -> bool {
        let is_done = self.config.read_only
            || self.stopped.is_some()
            || matches!(self.closing, Closing::Done(_));
        is_done && self.below.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.below.caches(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        visit(self);
        self.below.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        visit(self);
        self.below.works(visit);
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.pace.on_time(self.now);
        let next = self.below.turn(now);
        if self.stopped.is_some() {
            return next;
        }
        self.settle();
        let soon = if self.has_sent { now } else { Time::NEVER };
        next.min(soon).min(self.next_close()).min(self.next_check()).min(self.next_growth())
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }
}
