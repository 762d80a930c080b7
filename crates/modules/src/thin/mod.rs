//! Thin provisioning: a [`ThinPool`] of blocks, and volumes that take them as they are written, with snapshots and clones, after dm-thin.
//! What stands on its two parts, data and metadata, is in `docs/format.md`, "The pool".
//!
//! *Made*: [`NewPool::states`] says what the labels of both parts say of a new one, of [`THIN_MODULE`]; whoever makes it writes them.
//!
//! *Opened*: whoever opens it reads the labels of both parts, draws an opening ([`WholeOpening`](crate::meta::WholeOpening)) if it is
//! for writing, and hands both to [`ThinPool::open`]. Nothing is read before the pool is polled; [`ThinPool::is_ready`] says when all
//! volumes are known.
//!
//! *Used*: [`ThinPool::open_volume`] gives out a [`ThinVolume`], a [`Volume`] like any other, of which many may be open at once. Whoever polls one,
//! or the pool ([`ThinPool::poll`]), drives all of it; what has completed for another handle waits there, and [`ThinPool::take_woken`] names it.
//! All are [timed](Volume::is_timed); whoever drives none of them has to tell the pool the time ([`ThinPool::turn`]).
//!
//! *Changed*: [`ThinPool::begin`] takes a [`PoolOp`] (create, snapshot, clone, roll back, delete, resize, rename, measure) and gives it a number;
//! [`ThinPool::poll_ops`] says how it has ended: durably, or not at all. They are done in order, each as one change of the trees.
//!
//! Each of its files keeps a few of the rules that keep data:
//!
//! * `mapping` looks where blocks are, and sends reads and writes there by reference.
//! * `provision` gives blocks to what has none, or shares one: the new block is whole before anything maps it (rule 12), and a write that may
//!   not find room fails before it starts (rule 14).
//! * `kept` keeps room for labels of what stands on volumes, so that a tree over a full pool can be opened, and its cuts deleted (rule 14).
//! * `unmap` gives blocks back. Who reads a block has its range locked, so none is given up that is being read.
//! * `commit` makes it durable: flushes and FUA end behind the commit that has their mappings (rule 11), whose data is flushed first
//!   (rule 9, which the trees keep); what a commit has freed is discarded behind the next one, and given out behind that (rule 10).
//! * `trim` discards, behind a crash, what commits before that had freed.
//! * `growth` has both labels say how large the parts are before anything in what they grow by is counted (rule 24).
//! * `writers` keeps who may write each volume as an export, durably before anybody is told (rule 3 of `docs/protocol.md`).
//! * `ops` holds the writes of a volume while it is cut, and has rollbacks change the incarnation (rule 23).
//!
//! *Failures.* After a commit has failed, or a flush of the data, or once the data part is gone, nothing changes any more until the pool is opened anew: whatever would,
//! fails, and each open volume tells [a loss](VolumeEvent::Lost) before anything that has seen it. Reads go on, of what was written; where data may be lost, of
//! what was committed, as behind a power failure (rule 9: a block that was mapped since has what it had from another). A damaged node fails what
//! needs it, and nothing else; [`PoolCheck`] tells what it costs, and [`PoolRepair`] gives back what it has kept for nothing.

mod check;
mod commit;
mod drive;
mod growth;
mod handle;
mod head;
mod jobs;
mod kept;
mod mapping;
mod module;
mod opening;
mod ops;
mod provision;
mod reads;
mod repair;
mod report;
mod rows;
#[cfg(test)]
pub(crate) mod tests;
mod trim;
mod unmap;
mod writers;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Segment, Time};
use thinwire_volume::{Completion, Slab, Token, Volume, VolumeEvent};

use self::commit::Commits;
use self::drive::Sub;
use self::growth::Growth;
use self::handle::Slot;
use self::jobs::Job;
use self::mapping::Run;
use self::opening::Phase;
use self::ops::Ops;
use self::rows::{Mapping, NameRow, VolumeRow, WriterRow};
use self::trim::Trim;
use self::writers::Writer;
use crate::meta::tree::{TreeCanary, TreeFault, TreeRoot, Trees};
use crate::meta::{Label, Labels};

pub use check::{PoolCheck, PoolFinding};
pub use growth::{PoolGrowthError, PoolRoom, PoolSizes};
pub use handle::{ThinPoolRef, ThinVolume, VolumeWay};
pub use head::{
    BLOCK_BYTES_DEFAULT, BLOCK_BYTES_LEAST, BLOCK_BYTES_MOST, METADATA_BYTES_LEAST, NewPool,
    POOL_HEAD_BYTES, PoolHead,
};
pub(crate) use module::MODULE;
pub use module::{THIN_MODULE, block_bytes};
pub use opening::PoolOpenError;
pub use ops::{OpNumber, PoolDone, PoolError, PoolOp};
pub use repair::PoolRepair;
pub use report::{PoolEvent, PoolReport, VolumeReport};
pub use rows::VOLUME_NAME_BYTES_MAX;
pub use writers::{SeenWriters, look_at_writers};

/// The token of the labels of both parts: no other I/O there has it.
pub const POOL_LABEL_TOKEN: Token = Token::MAX;
/// Most volumes, snapshots among them: all are in memory.
pub const VOLUMES_MAX: usize = 65_536;
/// Longest read or write of a volume, in bytes.
pub const IO_BYTES_MAX: u32 = 1 << 20;

/// The name under which its own errors appear.
const NAME: &str = "thin";
/// The first token of the trees on both parts.
const TREE_TOKEN: Token = 1 << 40;
/// Labels that say that a pool has ended: both copies.
const ENDS: u8 = 2;
/// A poll that is never done would starve others: what is left comes with the next.
const ROUNDS_MAX: usize = 16;

/// How a pool is opened.
pub struct PoolConfig {
    /// Memory for nodes, and for zeroes.
    pub pool: thinwire_buffer::Pool,
    /// Nothing is written to either part, and all volumes are read-only. Default: no.
    pub read_only: bool,
    /// It is to be checked and put right: what is deleted is not given back meanwhile. Default: no.
    pub repairs: bool,
    /// What was changed is committed after so long at the latest, if the pool is told the time. Default: 1 s.
    pub commit_after: Duration,
    /// Bounds of the trees ([`TreesConfig`](crate::meta::tree::TreesConfig)): nodes in memory. Default: 4096.
    pub cache_nodes: usize,
    /// Likewise: nodes of one transaction. Default: 2048.
    pub open_nodes_max: usize,
}

impl PoolConfig {
    /// With defaults.
    pub fn new(pool: &thinwire_buffer::Pool) -> Self {
        PoolConfig {
            pool: pool.clone(),
            read_only: false,
            repairs: false,
            commit_after: Duration::from_secs(1),
            cache_nodes: 4096,
            open_nodes_max: 2048,
        }
    }
}

/// A part of a pool: the volume, as a whole, what has read its labels, under [`POOL_LABEL_TOKEN`], and the newest.
pub struct PoolPart {
    /// All of it, labels included.
    pub volume: Box<dyn Volume>,
    /// Which have read it.
    pub labels: Labels,
    /// The one that was found or written last.
    pub label: Label,
}

/// A fault planted in it, which its tests must find. No flag sets one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolCanary {
    /// None: as it is.
    #[default]
    None,
    /// A FUA write ends when the data is durable.
    FuaWithoutMap,
    /// A flush is one of the data only.
    FlushWithoutCommit,
    /// Of a new block only what was written is written.
    HalfANewBlock,
    /// A shared block is written where it is.
    SharedInPlace,
    /// A snapshot is cut beside writes that are under way.
    CutWithoutDrain,
    /// A block is discarded as soon as it is unmapped.
    EarlyDiscard,
    /// A block is given out while it is being discarded.
    GivesOutEarly,
    /// A read does not lock what it reads.
    ReadsUnlocked,
    /// Who deletes a volume gives back its blocks, whoever else has them.
    DeletesShared,
    /// A new block is mapped while its data is being written.
    MapsBeforeData,
    /// Only one of the two labels says that the pool has ended.
    EndsOnce,
    /// Of a block that a deleted snapshot had the volume makes use before that is durable.
    OwnBeforeDurable,
    /// What cannot be read of a deleted volume is not tried again.
    ReapsOnce,
    /// What cannot be read of one deleted volume keeps those behind it.
    ReapsInOrder,
    /// What is discarded behind a crash may be given out meanwhile.
    TrimsUnheld,
    /// What is kept of the metadata counts as room when levels are told.
    LevelsOfAll,
    /// Behind a loss of data, what was mapped and not committed stays so.
    ReadsWhatWasLost,
    /// What is written of metadata is written as anything else.
    KeepsNothing,
    /// A snapshot is made though what is kept is not there.
    SharesWhatIsKept,
    /// What the parts grow by is counted before their labels say that they have it.
    CountsEarly,
    /// Commits behind a growth write the label of before it.
    KeepsOldLabel,
    /// What was rolled back is known by what it was known by.
    KeepsIncarnation,
    /// A commit does not flush the data.
    CommitsBeforeData,
    /// What a commit frees is given out before that is durable.
    ReusesEarly,
    /// Whoever stores the record of a writer is told before that is durable.
    WriterToldEarly,
    /// A snapshot or clone has the writer of what it is of.
    InheritsWriter,
    /// The record of a deleted volume stays.
    KeepsWriter,
    /// Who deletes a volume is told before that is durable.
    DeleteToldEarly,
    /// First records take what is kept for those that give back.
    FirstWriterTakesKept,
}

/// What is known of a volume.
struct Entry {
    row: VolumeRow,
    name: String,
    /// The handle that it is open with.
    slot: Option<u32>,
    /// The transaction that has changed it last, and the one that it is there by, as what it is known by; 0 if it was there when the pool was opened.
    changed_in: u64,
    added_in: u64,
    /// Who may write it as an export, as was durable last.
    writer: Writer,
}

/// The pool itself, which all handles share.
struct Core {
    config: PoolConfig,
    canary: PoolCanary,
    data: Box<dyn Volume>,
    metadata: Box<dyn Volume>,
    /// What has happened to both is known so far.
    events_seen: [u64; 2],
    whole: [u8; 16],
    data_start: u64,
    trees: Trees,
    head: PoolHead,
    volumes: TreeRoot<VolumeRow>,
    names: TreeRoot<NameRow>,
    writers: TreeRoot<WriterRow>,
    /// Rows of that, while it is read; volumes of which what is there is no record, or that are not there; and why not all of it can be read.
    writers_found: Vec<(u64, WriterRow)>,
    odd_writers: Vec<u64>,
    lost_writers: Option<TreeFault>,
    /// So many free blocks are kept for metadata of what stands on volumes.
    kept_blocks: u64,
    entries: BTreeMap<u64, Entry>,
    phase: Phase,
    slots: Slab<Slot>,
    /// Handles with something to poll, that somebody else has polled up.
    woken: Vec<u64>,
    jobs: Slab<Box<Job>>,
    /// Ended, for their storage.
    #[expect(clippy::vec_box, reason = "they go into the table and out of it without being moved")]
    spare_jobs: Vec<Box<Job>>,
    /// How many there are.
    users_ios: usize,
    subs: Slab<Sub>,
    /// It ends in order; and all that is left are the parts.
    winds_up: bool,
    is_winding_parts: bool,
    /// So many labels have yet to say that it has ended; the next commit does.
    ends_left: u8,
    marks_end: bool,
    /// Jobs that can go on; that wait for the trees; that wait for a commit, or what follows it; that wait to be durable.
    ripe: VecDeque<u32>,
    waiting: Vec<u32>,
    stalled: Vec<u32>,
    syncing: Vec<u32>,
    granted: Vec<u32>,
    inbox: Vec<Completion>,
    /// Where blocks were found, and what becomes of an I/O by that; of whoever looks.
    found: Vec<(u64, Mapping)>,
    runs: Vec<Run>,
    /// A block of zeroes.
    zeroes: Segment,
    commits: Commits,
    trim: Trim,
    growth: Growth,
    ops: Ops,
    report: report::Levels,
    now: Time,
    /// Something was submitted below since that was polled, or there is more to do.
    has_sent: bool,
    /// All was done that there was to do, and since then there were but reads of what is mapped.
    is_calm: bool,
}

/// A pool of blocks that has volumes. A handle: clones are the same pool, and volumes keep it. It ends when the last of them is dropped.
#[derive(Clone)]
pub struct ThinPool(Rc<RefCell<Core>>);

impl ThinPool {
    /// Plants a fault, which tests must find.
    pub fn set_canary(&self, canary: PoolCanary) {
        let core = &mut *self.0.borrow_mut();
        core.canary = canary;
        match canary {
            PoolCanary::CommitsBeforeData => core.trees.plant(TreeCanary::CommitsBeforeData),
            PoolCanary::ReusesEarly => core.trees.plant(TreeCanary::ReusesEarly),
            _ => {}
        }
    }

    /// Both are handles of the same pool.
    pub fn is(&self, other: &ThinPool) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// All volumes are known: [`ThinPool::open_volume`] and operations work.
    pub fn is_ready(&self) -> bool {
        self.0.borrow().phase == Phase::Serving
    }

    /// Polls both parts, and does what can be done. For whoever has no volume open; also needed for operations to come on.
    pub fn poll(&self) {
        self.0.borrow_mut().drive();
    }

    /// What time it is, as [`Volume::turn`].
    pub fn turn(&self, now: Time) -> Time {
        self.0.borrow_mut().turn(now)
    }

    /// Appends the numbers of volumes that have completions, brought up by a poll of the pool or of another volume, each once: to be polled.
    pub fn take_woken(&self, volumes: &mut Vec<u64>) {
        volumes.append(&mut self.0.borrow_mut().woken);
    }

    /// Nothing is outstanding, no operation is under way, nothing waits for a commit, and no deleted volume is still being given back.
    pub fn is_idle(&self) -> bool {
        self.0.borrow().is_idle()
    }

    /// What was changed becomes durable now, not when its time has come; [`ThinPool::is_idle`] says when.
    pub fn commit(&self) {
        let core = &mut *self.0.borrow_mut();
        if core.wants_commit() && !core.config.read_only {
            core.commits.is_wanted = true;
            core.settle();
        }
    }

    /// Ends in order, as [`Volume::wind_up`], for whoever has no volume open; deleted volumes that are still being given back are left to
    /// whoever opens it next.
    pub fn wind_up(&self) {
        self.0.borrow_mut().wind_up();
    }

    /// As [`Volume::is_wound_up`].
    pub fn is_wound_up(&self) -> bool {
        self.0.borrow().is_wound_up()
    }

    /// Why nothing is changed any more, if that is so.
    pub fn stopped(&self) -> Option<String> {
        self.0.borrow().commits.stopped.as_ref().map(|why| why.why.clone())
    }

    /// Appends what has happened since the last call.
    pub fn poll_events(&self, events: &mut Vec<PoolEvent>) {
        events.append(&mut self.0.borrow_mut().report.news);
    }

    /// How full it is, and which volumes it has.
    pub fn report(&self) -> PoolReport {
        self.0.borrow_mut().make_report()
    }

    /// [`PoolReport::data_bytes`], without looking at its volumes.
    pub fn data_bytes(&self) -> u64 {
        self.0.borrow().data_bytes()
    }

    /// Begins an operation, behind those that were begun before. Its number is that under which it ends.
    pub fn begin(&self, op: PoolOp) -> OpNumber {
        let core = &mut *self.0.borrow_mut();
        let number = core.ops.push(op);
        core.settle();
        number
    }

    /// Appends operations that have ended, and how: what has been done is durable.
    pub fn poll_ops(&self, ended: &mut Vec<(OpNumber, Result<PoolDone, PoolError>)>) {
        ended.append(&mut self.0.borrow_mut().ops.ended);
    }
}

/// Tells each open volume what has happened to all.
fn tell_all(slots: &mut Slab<Slot>, event: VolumeEvent) {
    for (_, slot) in slots.iter_mut() {
        slot.tell(event.clone());
    }
}
