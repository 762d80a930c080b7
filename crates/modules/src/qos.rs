//! [`Qos`]: a volume of which only so much is taken in a second.

mod budget;
#[cfg(test)]
mod tests;

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Geometry, Io, Layer, Op, Volume};

pub use self::budget::{QosBudget, QosCanary};
use crate::{
    Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, ModuleOption, OptionUnit,
    Options, common_geometry,
};

/// So often is looked whether something that waits may go.
const LOOK_EVERY: Duration = Duration::from_millis(100);
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
const SHARE: ModuleOption = ModuleOption {
    name: "share",
    help: "those of one number share all limits",
    bounds: 1..=65_535,
    multiple_of: 1,
    unit: OptionUnit::Number,
};

pub(super) const MODULE: Module = Module {
    name: Whole::NAME,
    help: "a volume of which only so much is taken in a second",
    children: 1..=1,
    options: &[
        IOPS,
        READ_IOPS,
        WRITE_IOPS,
        BANDWIDTH,
        READ_BANDWIDTH,
        WRITE_BANDWIDTH,
        BURST,
        SHARE,
    ],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| {
        let limits = QosLimits::of(options);
        let whole = Whole::over(children)?;
        Ok(match limits.is_unlimited() {
            // Nothing is in between, not even a question.
            true => Box::new(whole),
            false => Box::new(Qos::limit(whole, QosBudget::new(limits))),
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

    /// What this option says becomes another: none is no limit, and of the burst what it is unless it is said. Others are none of these.
    pub fn set(&mut self, option: &ModuleOption, value: Option<u64>) {
        let QosLimits { all, reads, writes, burst } = self;
        let limit = match option.name {
            name if name == IOPS.name => &mut all.iops,
            name if name == READ_IOPS.name => &mut reads.iops,
            name if name == WRITE_IOPS.name => &mut writes.iops,
            name if name == BANDWIDTH.name => &mut all.bandwidth,
            name if name == READ_BANDWIDTH.name => &mut reads.bandwidth,
            name if name == WRITE_BANDWIDTH.name => &mut writes.bandwidth,
            name if name == BURST.name => {
                *burst = Duration::from_millis(value.unwrap_or(BURST_MS));
                return;
            }
            _ => return,
        };
        *limit = value.unwrap_or(0);
    }

    /// There is none.
    pub fn is_unlimited(&self) -> bool {
        [self.all, self.reads, self.writes] == [QosLimit::default(); 3]
    }
}

/// A volume of which only so much is taken in a second, alone or together with others that draw on the same [`QosBudget`]; the rest waits there, in the order in which it was submitted:
/// reads among reads, writes among writes, and of both the older one, as far as the limits of both let it go. So it is bounded by what is submitted.
///
/// Each limit is a token bucket, which is full after `burst` without I/O. What has no data (discards, write-zeroes, block status) counts as one
/// I/O of no bytes. An I/O starts when no bucket is empty, however long it is: what it takes more than there was is owed, and the next
/// one waits for that too. A flush waits for nothing: it covers what has completed, which what waits here has not.
///
/// To be told the time ([`Volume::turn`]): between two of these nothing is filled. Allocates when more waits than ever before, and else never.
pub struct Qos {
    below: Composite<Whole>,
    budget: QosBudget,
    member: u32,
}

impl Qos {
    /// Over the only volume of `children`, with a budget of its own.
    ///
    /// # Errors
    /// It is not the only one, or takes less in an I/O than one of its blocks.
    pub fn new(children: Vec<Box<dyn Volume>>, limits: &QosLimits) -> Result<Self, ModuleError> {
        Qos::over(Child::all(children), &QosBudget::new(*limits))
    }

    /// Over the only volume of `children`, which draws on that budget.
    ///
    /// # Errors
    /// As [`Qos::new`].
    pub fn over(children: Vec<Child>, budget: &QosBudget) -> Result<Self, ModuleError> {
        Ok(Qos::limit(Whole::over(children)?, budget.clone()))
    }

    fn limit(below: Composite<Whole>, budget: QosBudget) -> Self {
        let member = budget.join();
        Qos { below, budget, member }
    }

    /// What users call it.
    pub const NAME: &'static str = Whole::NAME;

    /// It says a limit, which may become another while a volume is open.
    pub fn is_limit(option: &ModuleOption) -> bool {
        option.name != SHARE.name
    }

    /// The limits that these options say, and the number of the budget that they share with others that say the same number; none if that is no volume
    /// of this kind.
    pub fn limits_of(module: &Module, options: &Options) -> Option<(QosLimits, Option<u64>)> {
        (*module == MODULE).then(|| (QosLimits::of(options), options.get(&SHARE)))
    }
}

impl Drop for Qos {
    fn drop(&mut self) {
        self.budget.leave(self.member);
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
        if matches!(io.op, Op::Flush | Op::Cut | Op::LoadWriter | Op::StoreWriter) {
            return self.below.submit(io);
        }
        if let Some(io) = self.budget.take(self.member, io) {
            self.below.submit(io);
        }
    }

    #[inline]
    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
    }

    fn taken(&self) -> usize {
        self.budget.held(self.member) + self.below.outstanding()
    }

    fn own_is_timed(&self) -> bool {
        true
    }

    fn own_turn(&mut self, now: Time) -> Time {
        self.budget.turn(now);
        let mut has_sent = false;
        while let Some(io) = self.budget.next_granted(self.member) {
            self.below.submit(io);
            has_sent = true;
        }
        match has_sent {
            true => now,
            // Others may have gone first by then, and other limits may hold long before: it asks again.
            false => match self.budget.ready_at(self.member) {
                Time::NEVER => Time::NEVER,
                ready => ready.min(now + LOOK_EVERY),
            },
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
    const HAS_RECORD_BELOW: bool = true;

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        below.pass_on(0, io.offset, io);
    }

    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let block = u64::from(whole.block_bytes);
        Some(bytes / block * block)
    }
}
