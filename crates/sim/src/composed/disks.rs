//! [`HostDisks`]: the disks of a composed volume as a host has them, its own and exports of servers.

use std::rc::Rc;

use thinwire_buffer::{LinkInfo, Pool, Time};
use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_link::rng::Rng;
use thinwire_node::{Lane, Node, PartId};
use thinwire_volume::stores::FileStore;
use thinwire_volume::{ErrorKind, Volume};

use super::pools::PoolStore;
use crate::coverage::Coverage;
use crate::gateway::LANES;
use crate::medium::MediumHandle;
use crate::server::harvest_drops;

/// A disk of a composed volume.
#[derive(Clone)]
pub struct ComposedDisk {
    /// Where its content is.
    pub medium: MediumHandle,
    /// Its blocks, in bytes.
    pub block_bytes: u32,
    /// Which export it is, if it is one.
    pub export: Option<DiskExport>,
    /// What its server has there, if that is a volume of a pool; the medium is then that of its data.
    pub pool: Option<PoolStore>,
}

/// An export that is a disk of a composed volume.
#[derive(Clone)]
pub struct DiskExport {
    /// Its number in the world.
    pub number: usize,
    /// Its server's name.
    pub node: String,
    /// Its name.
    pub name: String,
}

/// Its disks, while a process of a host runs.
pub struct HostDisks {
    /// What drives the attachments.
    pub node: Node,
    disks: Vec<ComposedDisk>,
    remote: Rc<[usize]>,
    attached: Vec<Option<PartId<Initiator>>>,
    config: InitiatorConfig,
    pool: Pool,
    dice: Rng,
}

impl HostDisks {
    /// Of these the described ones, for whoever `config` says: none is attached yet.
    pub fn new(
        links: Vec<LinkInfo>,
        (disks, described): (&[ComposedDisk], &[usize]),
        config: InitiatorConfig,
        pool: &Pool,
        seed: u64,
    ) -> Self {
        let is_remote = |disk: &usize| disks[*disk].export.is_some();
        let remote = (0..disks.len()).filter(|disk| described.contains(disk));
        HostDisks {
            remote: remote.filter(is_remote).collect(),
            node: Node::new(links),
            attached: disks.iter().map(|_| None).collect(),
            disks: disks.to_vec(),
            config,
            pool: pool.clone(),
            dice: Rng::new(seed),
        }
    }

    /// Memory of the process.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The numbers of those that are exports, and described, or were attached since.
    pub fn remote(&self) -> impl Iterator<Item = usize> + use<> {
        let remote = self.remote.clone();
        (0..remote.len()).map(move |at| remote[at])
    }

    /// It is an export.
    pub fn is_remote(&self, disk: usize) -> bool {
        self.disks[disk].export.is_some()
    }

    /// Something is attached of it, or being so.
    pub fn is_attached(&self, disk: usize) -> bool {
        self.attached[disk].is_some()
    }

    /// The sum of the generations under which exports are written: each grant raises it.
    pub fn generations(&self) -> u64 {
        let remote = (0..self.disks.len()).filter(|disk| self.is_remote(*disk));
        remote.map(|disk| self.generation(disk)).sum()
    }

    /// Begins to attach one; `takes_over` fences whoever has it in any case.
    pub fn attach(&mut self, now: u64, disk: usize, takes_over: bool) {
        assert!(self.attached[disk].is_none(), "it was taken off");
        if !self.remote.contains(&disk) {
            self.remote = self.remote.iter().copied().chain([disk]).collect();
        }
        let export = self.disks[disk].export.clone().expect("it is an export");
        let mut config = self.config.clone();
        config.target = TargetName::Node(export.node);
        config.export = export.name;
        config.initiator[15] = disk as u8;
        config.take_over |= takes_over;
        config.instance = self.dice.bits();
        config.lane = LANES.start() | (self.dice.bits() as u32 & 0xffff << 8) | disk as u32;
        let lane = Lane { sessions: config.lane..=config.lane, outside: true };
        let links: Vec<LinkInfo> = self.node.links().collect();
        let all = (0..links.len()).collect();
        let seed = self.dice.bits();
        let initiator = Initiator::new(Time(now), config, links, self.pool.clone(), seed);
        self.attached[disk] = Some(self.node.add(initiator, all, &lane));
    }

    fn initiator(&self, disk: usize) -> Option<&Initiator> {
        self.attached[disk].map(|id| self.node.get(id).expect("it was not removed"))
    }

    fn initiator_mut(&mut self, disk: usize) -> Option<&mut Initiator> {
        let id = self.attached[disk]?;
        self.node.get_mut(id)
    }

    /// It is attached, or needs not be.
    pub fn is_open(&self, disk: usize) -> bool {
        !self.is_remote(disk)
            || self.initiator(disk).is_some_and(|i| i.is_open() && i.failure().is_none())
    }

    /// It was refused, or its attachment is dead.
    pub fn has_failed(&self, disk: usize) -> bool {
        let failed = |i: &Initiator| i.first_error().is_some() || i.failure().is_some();
        self.initiator(disk).is_some_and(failed)
    }

    /// Why it was refused.
    pub fn refusal(&self, disk: usize) -> Option<String> {
        let initiator = self.initiator(disk).filter(|i| !i.is_open())?;
        initiator.first_error().map(|error| error.to_string())
    }

    /// Why its attachment is dead.
    pub fn failure(&self, disk: usize) -> Option<ErrorKind> {
        self.initiator(disk)?.failure()
    }

    /// Under which generation it is written; of one that is not attached the last that anybody was granted.
    pub fn generation(&self, disk: usize) -> u64 {
        let open = self.initiator(disk).filter(|i| i.is_open());
        let on_record = || self.disks[disk].medium.on_record().map_or(0, |r| r.generation);
        open.map_or_else(on_record, |i| i.report(Time::ZERO).writer_generation)
    }

    /// The volume of one that is open.
    pub fn open(&mut self, disk: usize) -> Option<Box<dyn Volume>> {
        if !self.is_open(disk) {
            return None;
        }
        let Some(id) = self.attached[disk] else {
            let ComposedDisk { medium, block_bytes, .. } = &self.disks[disk];
            let store = FileStore::new(medium.open(), *block_bytes, &self.pool);
            return Some(Box::new(store.expect("it fits")));
        };
        Some(Box::new(self.node.port(id)))
    }

    /// Ends one at once.
    pub fn abort(&mut self, disk: usize) {
        if let Some(initiator) = self.initiator_mut(disk) {
            initiator.abort();
        }
    }

    /// Ends one in order.
    pub fn close(&mut self, disk: usize) {
        if let Some(initiator) = self.initiator_mut(disk) {
            initiator.close();
        }
    }

    /// Whether it has ended.
    pub fn is_closed(&self, disk: usize) -> bool {
        self.initiator(disk).is_none_or(Initiator::is_closed)
    }

    /// Nothing is left of one that has ended. False if it has not.
    pub fn take_off(&mut self, disk: usize) -> bool {
        if !self.is_closed(disk) {
            return false;
        }
        if let Some(id) = self.attached[disk].take() {
            drop(self.node.remove(id));
        }
        true
    }

    /// Adds the figures of all that are attached.
    pub fn harvest(&self, coverage: &mut Coverage) {
        for disk in 0..self.disks.len() {
            let Some(initiator) = self.initiator(disk) else { continue };
            let stats = initiator.report(Time::ZERO).stats;
            coverage.sessions += stats.sessions;
            coverage.replayed += stats.replayed;
            harvest_drops(&stats.drops, coverage);
        }
    }
}
