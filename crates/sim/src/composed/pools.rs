//! [`PoolStore`]: a volume of a pool as a server has it, which it exports: opened when the server starts, over disks of its own.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_buffer::{Pool, Time};
use thinwire_link::rng::Rng;
use thinwire_modules::thin::{PoolCanary, PoolDone, PoolOp, PoolReport, ThinPool};
use thinwire_volume::stores::FileStore;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Volume, VolumeEvent};

use super::at_rest::AtRest;
use super::growing::{Growing, GrowingScene, GrowingSettings, NotGrown};
use super::shape::VolumeShape;
use crate::medium::MediumHandle;
use crate::model::Violation;

/// While it is being opened it is looked after so often, in ns.
const GROWING_NS: u64 = 1_000_000;
/// Blocks of its disks, in bytes.
const BLOCK_BYTES: u32 = 512;

/// A volume of a pool, and the disks of that.
#[derive(Clone)]
pub struct PoolStore {
    /// The pool over its disks, data and metadata.
    pub shape: VolumeShape,
    /// Those.
    pub media: [MediumHandle; 2],
    /// Where its writer record is.
    pub record: MediumHandle,
    /// What the volume is.
    pub geometry: Geometry,
    /// By what it is known.
    pub identity: Identity,
    /// Entropy of those who open it.
    dice: Rc<RefCell<Rng>>,
}

impl PoolStore {
    /// A new one.
    ///
    /// # Panics
    /// If the disks do not fit its shape.
    pub fn make(
        shape: VolumeShape,
        media: [MediumHandle; 2],
        record: MediumHandle,
        seed: u64,
    ) -> Self {
        let on = PoolStore::disks(&media);
        let mut at_rest = AtRest::new(&on, seed);
        at_rest.make(&shape);
        let (volume, _) = at_rest.open(&shape).unwrap_or_else(|e| panic!("{e:?}"));
        let (geometry, identity) = (volume.geometry(), volume.identity());
        at_rest.end(volume).unwrap_or_else(|v| panic!("{}", v.0));
        drop(at_rest);
        let dice = Rc::new(RefCell::new(Rng::new(seed ^ 0x706f_6f6c)));
        PoolStore { shape, media, record, geometry, identity, dice }
    }

    fn disks(media: &[MediumHandle; 2]) -> Vec<(MediumHandle, u32)> {
        media.iter().map(|medium| (medium.clone(), BLOCK_BYTES)).collect()
    }

    /// Its disks, and that of its record.
    pub fn own_media(&self) -> impl Iterator<Item = &MediumHandle> {
        self.media.iter().chain([&self.record])
    }

    /// The volume, while nobody else has it and each I/O of its disks is done at once; and the pool.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_at_rest(&self) -> Result<(Box<dyn Volume>, ThinPool), NotGrown> {
        let (on, seed) = (PoolStore::disks(&self.media), self.dice.borrow_mut().bits());
        let (volume, thin) = AtRest::new(&on, seed).open(&self.shape)?;
        Ok((volume, thin.expect("it is one of a pool")))
    }

    /// The pool alone, likewise.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_pool(&self) -> Result<ThinPool, NotGrown> {
        let (on, seed) = (PoolStore::disks(&self.media), self.dice.borrow_mut().bits());
        AtRest::new(&on, seed).open_pool(&self.shape)
    }

    /// Changes the pool, while nobody has it. What the volume is known by then is known here, too.
    ///
    /// # Errors
    /// It cannot be opened, or it cannot be done.
    pub fn change(
        &mut self,
        planted: PoolCanary,
        op: impl FnOnce(&PoolReport) -> PoolOp,
    ) -> Result<PoolDone, Violation> {
        let (on, seed) = (PoolStore::disks(&self.media), self.dice.borrow_mut().bits());
        let mut at_rest = AtRest::new(&on, seed);
        at_rest.settings.pool_canary = planted;
        let done = at_rest.change_pool(&self.shape, op)?;
        let opened = at_rest.open(&self.shape);
        let (volume, _) = opened.map_err(|e| Violation(format!("a pool at rest: {e:?}")))?;
        self.identity = volume.identity();
        at_rest.end(volume)?;
        Ok(done)
    }

    /// All bytes of the volume, while nobody has it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn image(&self) -> Result<Vec<u8>, Violation> {
        let (on, seed) = (PoolStore::disks(&self.media), self.dice.borrow_mut().bits());
        let mut at_rest = AtRest::new(&on, seed);
        let opened = at_rest.open(&self.shape);
        let (mut volume, _) = opened.map_err(|e| Violation(format!("a pool at rest: {e:?}")))?;
        let image = at_rest.read_all(&mut *volume)?;
        at_rest.end(volume)?;
        Ok(image)
    }

    /// Looks at everything that the pool keeps.
    ///
    /// # Errors
    /// It cannot be opened, or something is wrong with it.
    pub fn check(&self, seed: u64) -> Result<(), Violation> {
        AtRest::new(&PoolStore::disks(&self.media), seed).check_pool(&self.shape)
    }

    /// The volume, for a process that starts now.
    pub fn open(&self, pool: &Pool) -> PoolVolume {
        let disk = |medium: &MediumHandle| {
            let store = FileStore::new(medium.open(), BLOCK_BYTES, pool);
            Some(Box::new(store.expect("it fits")) as Box<dyn Volume>)
        };
        PoolVolume {
            is: (self.geometry, self.identity),
            state: State::Growing(Box::new(Growing::new(&self.shape))),
            disks: [disk(&self.media[0]), disk(&self.media[1])],
            pool: pool.clone(),
            dice: Rng::new(self.dice.borrow_mut().bits()),
            queue: Vec::new(),
            refused: Vec::new(),
            now: Time::ZERO,
        }
    }
}

enum State {
    Growing(Box<Growing>),
    There(Box<dyn Volume>),
    Failed,
}

/// A volume of a pool in a process that serves it. What is submitted before the pool is open waits.
pub struct PoolVolume {
    is: (Geometry, Identity),
    state: State,
    disks: [Option<Box<dyn Volume>>; 2],
    pool: Pool,
    dice: Rng,
    queue: Vec<Io>,
    refused: Vec<Completion>,
    now: Time,
}

impl PoolVolume {
    fn grow(&mut self) {
        let State::Growing(growing) = &mut self.state else { return };
        let (disks, mut thins) = (&mut self.disks, Vec::new());
        let mut ground = GrowingScene {
            now: self.now,
            pool: &self.pool,
            dice: &mut self.dice,
            disk: &mut |disk| disks[disk].take(),
            keeper: &mut |_| None,
            desks: &mut Vec::new(),
            thins: &mut thins,
            cutter: &mut None,
            settings: GrowingSettings::default(),
        };
        match growing.turn(&mut ground) {
            Ok(None) => {}
            Ok(Some(mut volume)) => {
                self.queue.drain(..).for_each(|io| volume.submit(io));
                self.state = State::There(volume);
            }
            Err(_) => {
                self.state = State::Failed;
                std::mem::take(&mut self.queue).into_iter().for_each(|io| self.refuse(&io));
            }
        }
    }

    fn refuse(&mut self, io: &Io) {
        self.refused.push(Completion::new(io.token, Err(io.error(ErrorKind::Io, "pool"))));
    }

    fn there(&self) -> Option<&dyn Volume> {
        match &self.state {
            State::There(volume) => Some(&**volume),
            _ => None,
        }
    }

    fn there_mut(&mut self) -> Option<&mut dyn Volume> {
        match &mut self.state {
            State::There(volume) => Some(&mut **volume),
            _ => None,
        }
    }
}

impl Volume for PoolVolume {
    fn geometry(&self) -> Geometry {
        self.is.0
    }

    fn identity(&self) -> Identity {
        self.is.1
    }

    fn submit(&mut self, io: Io) {
        match &mut self.state {
            State::Growing(_) => self.queue.push(io),
            State::There(volume) => volume.submit(io),
            State::Failed => self.refuse(&io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.grow();
        done.append(&mut self.refused);
        if let Some(volume) = self.there_mut() {
            volume.poll(done);
        }
    }

    fn outstanding(&self) -> usize {
        self.queue.len()
            + self.refused.len()
            + self.there().map_or(0, |volume| volume.outstanding())
    }

    fn copied_bytes(&self) -> u64 {
        self.there().map_or(0, |volume| volume.copied_bytes())
    }

    fn events(&self) -> u64 {
        self.there().map_or(0, |volume| volume.events())
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        if let Some(volume) = self.there_mut() {
            volume.poll_events(events);
        }
    }

    fn is_at_rest(&self) -> bool {
        self.outstanding() == 0 && self.there().is_none_or(|volume| volume.is_at_rest())
    }

    fn wind_up(&mut self) {
        if let Some(volume) = self.there_mut() {
            volume.wind_up();
        }
    }

    fn is_wound_up(&self) -> bool {
        self.there().is_none_or(|volume| volume.is_wound_up())
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        match &mut self.state {
            State::Growing(_) => Time(now.0 + GROWING_NS),
            State::There(volume) => volume.turn(now),
            State::Failed => Time::NEVER,
        }
    }
}
