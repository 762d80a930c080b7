//! [`Qos`]: a volume of which only so much is taken in a second.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Geometry, Io, Layer, Op, Volume};

use crate::{
    Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, ModuleOption, OptionUnit,
    Options, common_geometry,
};

/// What is saved up at most while nobody wants anything, unless it is said.
const BURST_MS: u64 = 100;

const fn iops(name: &'static str, help: &'static str) -> ModuleOption {
    ModuleOption {
        name,
        help,
        bounds: 1..=1_000_000_000,
        multiple_of: 1,
        unit: OptionUnit::IosPerSecond,
    }
}

const fn bandwidth(name: &'static str, help: &'static str) -> ModuleOption {
    ModuleOption {
        name,
        help,
        bounds: 512..=1 << 50,
        multiple_of: 1,
        unit: OptionUnit::BytesPerSecond,
    }
}

const IOPS: ModuleOption = iops("iops", "I/Os in a second (any number)");
const READ_IOPS: ModuleOption = iops("read_iops", "those that read");
const WRITE_IOPS: ModuleOption = iops("write_iops", "those that write");
const BANDWIDTH: ModuleOption = bandwidth("bandwidth", "bytes in a second (any number)");
const READ_BANDWIDTH: ModuleOption = bandwidth("read_bandwidth", "those that are read");
const WRITE_BANDWIDTH: ModuleOption = bandwidth("write_bandwidth", "those that are written");
const BURST: ModuleOption = ModuleOption {
    name: "burst_ms",
    help: "what is saved up at most, in ms of a limit (100)",
    bounds: 1..=600_000,
    multiple_of: 1,
    unit: OptionUnit::Milliseconds,
};

pub(super) const MODULE: Module = Module {
    name: Whole::NAME,
    help: "a volume of which only so much is taken in a second",
    children: 1..=1,
    options: &[IOPS, READ_IOPS, WRITE_IOPS, BANDWIDTH, READ_BANDWIDTH, WRITE_BANDWIDTH, BURST],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| {
        let limits = QosLimits::of(options);
        let whole = Whole::over(children)?;
        Ok(match limits.is_unlimited() {
            // Nothing is in between, not even a question.
            true => Box::new(whole),
            false => Box::new(Qos::limit(whole, &limits)),
        })
    },
};

/// Of reads, of writes, or of both together; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosLimit {
    /// I/Os in a second.
    pub iops: u64,
    /// Bytes in a second.
    pub bandwidth: u64,
}

/// What of a volume is taken in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosLimits {
    /// Reads and writes together.
    pub all: QosLimit,
    /// Reads, and block status.
    pub reads: QosLimit,
    /// Writes, discards and write-zeroes.
    pub writes: QosLimit,
    /// What was not used so long may be used at once, later.
    pub burst: Duration,
}

impl Default for QosLimits {
    fn default() -> Self {
        let none = QosLimit::default();
        let burst = Duration::from_millis(BURST_MS);
        QosLimits { all: none, reads: none, writes: none, burst }
    }
}

impl QosLimits {
    fn of(options: &Options) -> Self {
        let limit = |iops, bandwidth| QosLimit {
            iops: options.get(iops).unwrap_or(0),
            bandwidth: options.get(bandwidth).unwrap_or(0),
        };
        QosLimits {
            all: limit(&IOPS, &BANDWIDTH),
            reads: limit(&READ_IOPS, &READ_BANDWIDTH),
            writes: limit(&WRITE_IOPS, &WRITE_BANDWIDTH),
            burst: Duration::from_millis(options.get(&BURST).unwrap_or(BURST_MS)),
        }
    }

    /// There is none.
    pub fn is_unlimited(&self) -> bool {
        [self.all, self.reads, self.writes] == [QosLimit::default(); 3]
    }
}

/// A volume of which only so much is taken in a second; the rest waits here, in the order in which it was submitted: reads among
/// reads, writes among writes, and of both the older one, as far as the limits of both let it go. So it is bounded by what is submitted.
///
/// Each limit is a token bucket, which is full after `burst` without I/O. What has no data (discards, write-zeroes, block status) counts as one
/// I/O of no bytes. An I/O starts when no bucket is empty, however long it is: what it takes more than there was is owed, and the next
/// one waits for that too. A flush waits for nothing: it covers what has completed, which what waits here has not.
///
/// To be told the time ([`Volume::turn`]): between two of these nothing is filled. Allocates when more waits than ever before, and else never.
pub struct Qos {
    below: Composite<Whole>,
    all: Buckets,
    ways: [Way; 2],
    burst: Duration,
    /// The last that was told; none before the first time, when all buckets are full.
    now: Option<Time>,
    /// Counts I/Os that had to wait.
    waited: u64,
}

/// One direction.
struct Way {
    buckets: Buckets,
    /// With their numbers among all that had to wait.
    waiting: VecDeque<(u64, Io)>,
}

const READS: usize = 0;
const WRITES: usize = 1;

impl Qos {
    /// Over the only volume of `children`.
    ///
    /// # Errors
    /// It is not the only one, or takes less in an I/O than one of its blocks.
    pub fn new(children: Vec<Box<dyn Volume>>, limits: &QosLimits) -> Result<Self, ModuleError> {
        Ok(Qos::limit(Whole::over(Child::all(children))?, limits))
    }

    fn limit(below: Composite<Whole>, limits: &QosLimits) -> Self {
        let way = |limit| Way { buckets: Buckets::new(limit), waiting: VecDeque::new() };
        Qos {
            below,
            all: Buckets::new(limits.all),
            ways: [way(limits.reads), way(limits.writes)],
            burst: limits.burst,
            now: None,
            waited: 0,
        }
    }

    /// When the first of those that wait in one direction can go, as it looks now.
    fn ready_at(&self, way: usize) -> Time {
        self.all.ready_at().max(self.ways[way].buckets.ready_at())
    }

    fn charge(&mut self, way: usize, io: &Io) {
        let bytes = if matches!(io.op, Op::Read | Op::Write) { io.len } else { 0 };
        self.all.charge(bytes);
        self.ways[way].buckets.charge(bytes);
    }

    /// The direction whose first goes next, if one can: the older of both.
    fn next_way(&self, now: Time) -> Option<usize> {
        let first = |way: &usize| self.ways[*way].waiting.front().map(|(number, _)| *number);
        let can_go = |way: &usize| first(way).is_some() && self.ready_at(*way) <= now;
        [READS, WRITES].into_iter().filter(can_go).min_by_key(first)
    }
}

impl Layer for Qos {
    type Below = Composite<Whole>;

    fn below(&self) -> &Self::Below {
        &self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        let way = match io.op {
            Op::Read | Op::BlockStatus => READS,
            Op::Write | Op::WriteZeroes | Op::Discard => WRITES,
            Op::Flush | Op::Cut | Op::LoadWriter | Op::StoreWriter => return self.below.submit(io),
        };
        let now = self.now.unwrap_or(Time::ZERO + self.burst);
        if self.ways[way].waiting.is_empty() && self.ready_at(way) <= now {
            self.charge(way, &io);
            return self.below.submit(io);
        }
        self.ways[way].waiting.push_back((self.waited, io));
        self.waited += 1;
    }

    #[inline]
    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
    }

    fn taken(&self) -> usize {
        let waiting: usize = self.ways.iter().map(|way| way.waiting.len()).sum();
        waiting + self.below.outstanding()
    }

    fn own_is_timed(&self) -> bool {
        true
    }

    fn own_turn(&mut self, now: Time) -> Time {
        if self.now.is_none() {
            // What went before anybody knew the time counts from here.
            let start = Time::ZERO + self.burst;
            self.buckets().for_each(|bucket| bucket.move_by(now.since(start), start.since(now)));
        }
        self.now = Some(now);
        let full = now - self.burst;
        self.buckets().for_each(|bucket| bucket.fill(full));
        let mut has_sent = false;
        while let Some(way) = self.next_way(now) {
            let Some((_, io)) = self.ways[way].waiting.pop_front() else { break };
            self.charge(way, &io);
            self.below.submit(io);
            has_sent = true;
        }
        if has_sent {
            return now;
        }
        let waits = |way: &usize| !self.ways[*way].waiting.is_empty();
        let next = [READS, WRITES].into_iter().filter(waits).map(|way| self.ready_at(way));
        next.min().unwrap_or(Time::NEVER)
    }
}

impl Qos {
    fn buckets(&mut self) -> impl Iterator<Item = &mut Bucket> {
        let Qos { all, ways: [reads, writes], .. } = self;
        let all = [all, &mut reads.buckets, &mut writes.buckets];
        all.into_iter().flat_map(|buckets| [&mut buckets.ios, &mut buckets.bytes])
    }
}

/// Those of a limit.
struct Buckets {
    ios: Bucket,
    bytes: Bucket,
}

impl Buckets {
    fn new(limit: QosLimit) -> Self {
        Buckets { ios: Bucket::new(limit.iops), bytes: Bucket::new(limit.bandwidth) }
    }

    fn ready_at(&self) -> Time {
        self.ios.paid_until.max(self.bytes.paid_until)
    }

    fn charge(&mut self, bytes: u64) {
        self.ios.charge(1);
        self.bytes.charge(bytes);
    }
}

/// A token bucket, kept as the time until which what was taken pays for: before that it is empty, and the further that lies back, the more
/// is in it.
struct Bucket {
    /// A second; 0 is as much as anybody wants.
    rate: u64,
    paid_until: Time,
    /// What of a nanosecond is paid besides, as a part of `rate`.
    rest: u64,
}

impl Bucket {
    fn new(rate: u64) -> Self {
        Bucket { rate, paid_until: Time::ZERO, rest: 0 }
    }

    fn charge(&mut self, count: u64) {
        if self.rate == 0 {
            return;
        }
        let (whole, rate) =
            (u128::from(count) * 1_000_000_000 + u128::from(self.rest), u128::from(self.rate));
        self.rest = (whole % rate) as u64;
        let nanos = u64::try_from(whole / rate).unwrap_or(u64::MAX);
        self.paid_until = self.paid_until + Duration::from_nanos(nanos);
    }

    /// It is not fuller than when it was paid until then.
    fn fill(&mut self, full: Time) {
        if self.paid_until < full {
            (self.paid_until, self.rest) = (full, 0);
        }
    }

    fn move_by(&mut self, later: Duration, earlier: Duration) {
        if self.rate > 0 {
            self.paid_until = self.paid_until + later - earlier;
        }
    }
}

/// All of a volume, as it is.
pub struct Whole(());

impl Whole {
    fn over(children: Vec<Child>) -> Result<Composite<Self>, ModuleError> {
        MODULE.check_count(children.len())?;
        let geometry = common_geometry(Self::NAME, &children)?;
        let block = u64::from(geometry.block_bytes);
        let bytes = children[0].geometry().bytes / block * block;
        // Limits make no other volume of it: they may be changed while somebody remembers what it has.
        let identity = IdentityHash::new(Self::NAME);
        Ok(Composite::new(Whole(()), Geometry { bytes, ..geometry }, identity, children))
    }
}

impl Layout for Whole {
    const NAME: &'static str = "qos";

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        below.pass_on(0, io.offset, io);
    }

    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let block = u64::from(whole.block_bytes);
        Some(bytes / block * block)
    }
}
