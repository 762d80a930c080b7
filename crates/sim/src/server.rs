//! A target on its machine, and the exports it has.

use thinwire_buffer::{Pool, TxBatch};
use thinwire_link::fault::FaultConfig;
use thinwire_proto::{DropReason, Time};
use thinwire_target::{ExportConfig, Target, TargetConfig};
use thinwire_volume::stores::{FileStore, MemoryStore, Writeback};
use thinwire_volume::{Identity, Volume};
use thinwire_wire::FrameError;

use crate::coverage::Coverage;
use crate::machine::Machine;
use crate::medium::MediumHandle;
use crate::model::Model;

/// Where an export's content is.
#[derive(Clone)]
pub enum Store {
    /// In the target's memory: gone with the process.
    Memory,
    /// On a disk.
    File(MediumHandle),
    /// On a disk under a write-back cache of so many bytes.
    Writeback(MediumHandle, usize),
}

/// An export and everything the checker knows of it.
pub struct Export {
    /// Its name.
    pub name: String,
    /// Which server has it.
    pub server: usize,
    /// Size in bytes.
    pub bytes: u64,
    /// Logical block.
    pub block_bytes: u32,
    /// Where its content is.
    pub store: Store,
    /// Offered for reading only.
    pub read_only: bool,
    /// What may be read, one for each incarnation (memory stores begin anew).
    pub models: Vec<Model>,
    /// How many clients write to it, one at a time.
    pub writers: usize,
    /// The store may fail operations.
    pub may_fail: bool,
    /// Moments at which the process lost something, besides those of the medium.
    upheavals: u64,
}

impl Export {
    /// An export of zeroes.
    pub fn new(name: String, server: usize, bytes: u64, block_bytes: u32, store: Store) -> Self {
        let models = match store {
            Store::Memory => Vec::new(),
            _ => vec![Model::new(&name, bytes)],
        };
        Export {
            name,
            server,
            bytes,
            block_bytes,
            store,
            read_only: false,
            models,
            writers: 0,
            may_fail: false,
            upheavals: 0,
        }
    }

    /// The medium, if there is one.
    pub fn medium(&self) -> Option<&MediumHandle> {
        match &self.store {
            Store::Memory => None,
            Store::File(medium) | Store::Writeback(medium, _) => Some(medium),
        }
    }

    /// A writer was granted it under this generation, durably. What a target keeps in memory only
    /// cannot be seen.
    pub fn was_granted(&self, generation: u64, holder: &[u8; 16]) -> bool {
        let Some(medium) = self.medium() else { return true };
        medium.commits().iter().any(|c| c.generation == generation && c.holder == *holder)
    }

    /// Somebody was granted it after the writer of this generation, durably, heard or not.
    pub fn was_fenced(&self, generation: u64) -> bool {
        let Some(medium) = self.medium() else { return true };
        medium.commits().iter().any(|c| c.generation > generation)
    }

    /// Counts the moments at which the store may have lost something.
    pub fn life(&self) -> u64 {
        self.upheavals + self.medium().map_or(0, MediumHandle::upheavals)
    }

    /// Which model belongs to an incarnation.
    pub fn model_at(&self, incarnation: u64) -> usize {
        match self.store {
            Store::Memory => incarnation as usize - 1,
            _ => 0,
        }
    }

    fn open(&mut self, index: usize, ignores_lock: bool, pool: &Pool) -> Box<dyn Volume> {
        match &self.store {
            Store::Memory => {
                self.models.push(Model::new(&self.name, self.bytes));
                let incarnation = self.models.len() as u64;
                let identity = Identity { identity: [index as u8 + 1; 16], incarnation };
                Box::new(MemoryStore::new(self.bytes, self.block_bytes, identity, pool))
            }
            Store::File(medium) => {
                let disk = if ignores_lock { medium.open_without_lock() } else { medium.open() };
                Box::new(FileStore::new(disk, self.block_bytes, pool).expect("it fits"))
            }
            Store::Writeback(medium, bytes_max) => {
                let disk = if ignores_lock { medium.open_without_lock() } else { medium.open() };
                let file = FileStore::new(disk, self.block_bytes, pool);
                Box::new(Writeback::new(file.expect("it fits"), *bytes_max, pool))
            }
        }
    }
}

/// How a target ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// kill -9: what it had submitted to its disks still lands.
    Kill,
    /// The machine loses power: unflushed writes are kept, lost or torn.
    Power,
}

/// A machine for a target.
pub struct Server {
    /// Its links.
    pub machine: Machine,
    /// The process, if it runs.
    pub target: Option<Target>,
    /// Settings for its next start.
    pub config: TargetConfig,
    /// Faults of its links, if they are wrapped.
    pub faults: Option<FaultConfig>,
    /// It does not wait for the lock of its files: what rule 2 forbids.
    pub ignores_lock: bool,
    /// It stops at this time at the latest.
    stop_by: Option<u64>,
    pool: Pool,
}

impl Server {
    /// A machine on which nothing runs yet.
    pub fn new(stations: Vec<u32>, config: TargetConfig, faults: Option<FaultConfig>) -> Self {
        Server {
            machine: Machine::new(stations),
            target: None,
            config,
            faults,
            ignores_lock: false,
            stop_by: None,
            pool: Pool::new(16 << 20),
        }
    }

    /// When the locks of its exports are free.
    pub fn locked_until(&self, me: usize, exports: &[Export]) -> u64 {
        if self.ignores_lock {
            return 0;
        }
        let mine = exports.iter().filter(|e| e.server == me);
        mine.filter_map(|e| e.medium()).map(MediumHandle::locked_until).max().unwrap_or(0)
    }

    /// Starts the process; `exports` are all exports, of which it serves those of server `me`.
    pub fn start(
        &mut self,
        me: usize,
        exports: &mut [Export],
        net: &thinwire_link::sim::SimNet,
        clock: &std::rc::Rc<std::cell::Cell<u64>>,
        seed: u64,
    ) {
        assert!(self.target.is_none());
        let params = self.machine.open_links(net, self.faults.as_ref(), clock);
        let shard = me as u8;
        let mut target = Target::new(self.config.clone(), params, shard, self.pool.clone(), seed);
        for (index, export) in exports.iter_mut().enumerate().filter(|(_, e)| e.server == me) {
            let volume = export.open(index, self.ignores_lock, &self.pool);
            let (name, read_only) = (export.name.clone(), export.read_only);
            target.add_export(ExportConfig { name, volume, read_only });
        }
        self.target = Some(target);
        self.stop_by = None;
        self.machine.frozen_until = 0;
    }

    /// Ends the process at once.
    pub fn crash(
        &mut self,
        me: usize,
        how: Crash,
        exports: &mut [Export],
        coverage: &mut Coverage,
    ) {
        let Some(target) = self.target.take() else { return };
        harvest(&target, coverage);
        drop(target);
        for export in exports.iter_mut().filter(|e| e.server == me) {
            export.upheavals += 1;
            match (export.medium(), how) {
                (Some(medium), Crash::Kill) => medium.kill(),
                (Some(medium), Crash::Power) => medium.power_failure(),
                (None, _) => {}
            }
        }
        self.machine.deadline = u64::MAX;
    }

    /// Begins an orderly end, which takes at most until `by`.
    pub fn shut_down(&mut self, by: u64) {
        if let Some(target) = &mut self.target
            && self.stop_by.is_none()
        {
            target.shut_down();
            self.stop_by = Some(by);
            self.machine.dirty = true;
        }
    }

    /// True if the process has ended in order: the caller ends it with [`Server::crash`].
    pub fn has_stopped(&self, now: u64) -> bool {
        let Some(target) = &self.target else { return false };
        self.stop_by.is_some_and(|by| by <= now || target.is_idle())
    }

    /// One turn of its loop. Returns how many frames it sent: none if it dies, as `dies` tells, in the
    /// middle of it.
    pub fn turn(&mut self, now: u64, dies: impl Fn() -> bool) -> u64 {
        let Some(target) = &mut self.target else { return 0 };
        let time = Time(now);
        self.machine.receive(&self.pool, |link, frame| target.on_frame(time, link, frame));
        target.turn(time, self.machine.batches());
        if dies() {
            self.machine.batches().iter_mut().for_each(TxBatch::clear);
            return 0;
        }
        let sent = self.machine.send();
        self.machine.deadline = target.deadline(time).0.min(self.stop_by.unwrap_or(u64::MAX));
        sent
    }
}

/// Adds the figures of a target that ends.
pub fn harvest(target: &Target, coverage: &mut Coverage) {
    let stats = target.stats();
    coverage.repeated += stats.repeated;
    coverage.late_duplicates += stats.drops.get(DropReason::LateDuplicate);
    coverage.duplicate_frames += stats.drops.get(DropReason::Duplicate);
    coverage.damaged_frames += stats.drops.get(DropReason::Frame(FrameError::Checksum));
    coverage.unknown_sessions += stats.drops.get(DropReason::UnknownSession);
}
