//! [`ThinVolume`]: a volume of a pool, for whoever uses it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use thinwire_buffer::Time;
use thinwire_volume::{
    CacheReport, Completion, Features, Geometry, Identity, Io, MirrorReport, Op, RangeLocks, Scrub,
    Volume, VolumeEvent, Work,
};

use super::ops::PoolError;
use super::rows::{RowCut, VolumeRow};
use super::{Core, IO_BYTES_MAX, NAME, ThinPool};
use crate::IdentityHash;
use crate::cuts::identity_of_cut;

/// What is kept of an open volume.
pub(super) struct Slot {
    pub volume: u64,
    pub geometry: Geometry,
    pub identity: Identity,
    /// By blocks of the volume.
    pub locks: RangeLocks,
    /// Blocks of the volume that had metadata of what stands on it since it was opened, and for which room is kept.
    pub metadata: Vec<u64>,
    /// Jobs that have not ended, and those of them that change something.
    pub jobs: u32,
    pub writers: u32,
    /// The volume is about to be cut: what changes something waits.
    pub is_held: bool,
    pub waiting: VecDeque<Io>,
    pub done: Vec<Completion>,
    pub outstanding: usize,
    news: Vec<VolumeEvent>,
    pub news_count: u64,
    /// The handle is gone.
    pub is_closed: bool,
    /// Its user ends in order.
    winds_up: bool,
}

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeWay {
    /// Nobody writes it by this handle, even if the pool may be written.
    Read,
    /// Also to be written, unless it is a snapshot, or the pool is open to be read.
    Write,
}

impl Slot {
    /// Something has happened: of one kind the last says all, and a loss comes first.
    pub fn tell(&mut self, event: VolumeEvent) {
        let kind = std::mem::discriminant(&event);
        let is_leg = matches!(event, VolumeEvent::Leg { .. });
        self.news.retain(|other| is_leg || std::mem::discriminant(other) != kind);
        let at = if event == VolumeEvent::Lost { 0 } else { self.news.len() };
        self.news.insert(at, event);
        self.news_count = self.news_count.wrapping_add(1);
    }

    /// Its volume, if its user is to be told that there is something to poll, which is about to come.
    #[inline]
    pub fn wakes(&self) -> Option<u64> {
        (self.done.is_empty() && !self.is_closed).then_some(self.volume)
    }

    /// The next poll has it.
    #[inline]
    pub fn put_ready(&mut self, completion: Completion) {
        if self.is_closed {
            return;
        }
        match completion.result {
            // What else comes with it may have seen the loss.
            Err(error) if error.op == Op::Flush => self.done.insert(0, completion),
            _ => self.done.push(completion),
        }
    }
}

/// A volume of a pool. A handle: what is outstanding when it is dropped ends, and nobody hears of it; then the volume is open no
/// more. The writer record is not kept here: whoever serves it keeps it elsewhere, under its identity.
pub struct ThinVolume {
    core: Rc<RefCell<Core>>,
    slot: u32,
}

/// A pool, as long as it is open: this does not keep it.
#[derive(Clone)]
pub struct ThinPoolRef(Weak<RefCell<Core>>);

impl ThinPoolRef {
    /// The pool, if it is still open.
    pub fn pool(&self) -> Option<ThinPool> {
        self.0.upgrade().map(ThinPool)
    }

    /// It is not open any more.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl ThinPool {
    /// A handle that does not keep it.
    pub fn downgrade(&self) -> ThinPoolRef {
        ThinPoolRef(Rc::downgrade(&self.0))
    }

    /// Opens a volume, which has that number, to be written if it can be.
    ///
    /// # Errors
    /// The pool is not [ready](ThinPool::is_ready), nor is that volume, until it is durable; there is no such volume, or it is open, or of a cut that is not
    /// known to be whole.
    pub fn open_volume(&self, volume: u64) -> Result<ThinVolume, PoolError> {
        self.open_volume_to(volume, VolumeWay::Write)
    }

    /// The same, in that way.
    ///
    /// # Errors
    /// As [`ThinPool::open_volume`].
    pub fn open_volume_to(&self, volume: u64, way: VolumeWay) -> Result<ThinVolume, PoolError> {
        let core = &mut *self.0.borrow_mut();
        core.check_ready()?;
        let below = core.data.geometry();
        let entry = core.entries.get_mut(&volume).ok_or(PoolError::NoVolume { volume })?;
        if !core.commits.is_durable(entry.added_in) {
            // Where data is lost, it is not there any more, or another.
            return Err(match core.commits.stopped.as_ref() {
                Some(stopped) => stopped.error(),
                None => PoolError::NotReady,
            });
        }
        if entry.slot.is_some() {
            return Err(PoolError::IsOpen { volume });
        }
        let row = entry.row;
        if row.cut == RowCut::Undecided {
            return Err(PoolError::Undecided { volume });
        }
        let is_stopped = core.config.read_only || row.is_read_only || way == VolumeWay::Read;
        let block = below.block_bytes;
        let longest = below.io_bytes_max.min(IO_BYTES_MAX);
        let geometry = Geometry {
            bytes: row.bytes / u64::from(block) * u64::from(block),
            block_bytes: block,
            preferred_bytes: 1 << core.head.block_shift,
            io_bytes_max: longest / block * block,
            features: Features {
                read_only: is_stopped,
                discard: true,
                write_zeroes: true,
                block_status: true,
            },
        };
        let slot = core.slots.insert(Slot {
            volume,
            geometry,
            identity: identity_of(core.whole, volume, &row),
            locks: RangeLocks::default(),
            metadata: Vec::new(),
            jobs: 0,
            writers: 0,
            is_held: false,
            waiting: VecDeque::new(),
            done: Vec::new(),
            outstanding: 0,
            news: Vec::new(),
            news_count: 0,
            is_closed: false,
            winds_up: false,
        });
        entry.slot = Some(slot);
        Ok(ThinVolume { core: self.0.clone(), slot })
    }
}

/// What a volume is known by; one of a cut by what it was cut of.
fn identity_of(whole: [u8; 16], volume: u64, row: &VolumeRow) -> Identity {
    match row.cut {
        RowCut::No => identity(whole, volume, row.incarnation),
        _ => identity_of_cut(identity(whole, row.origin, 0).identity, row.incarnation),
    }
}

/// The name of a volume is that of its pool, and its number; the incarnation is that of its content.
fn identity(whole: [u8; 16], volume: u64, incarnation: u64) -> Identity {
    let mut name = IdentityHash::new(NAME);
    name.add(&whole);
    name.add(&volume.to_be_bytes());
    Identity { incarnation, ..name.identity() }
}

impl ThinVolume {
    /// Its number in the pool.
    pub fn number(&self) -> u64 {
        self.core.borrow_mut().slots.get_mut(self.slot).volume
    }

    fn with<R>(&self, look: impl FnOnce(&mut Slot) -> R) -> R {
        look(self.core.borrow_mut().slots.get_mut(self.slot))
    }
}

impl Drop for ThinVolume {
    fn drop(&mut self) {
        let core = &mut *self.core.borrow_mut();
        let slot = core.slots.get_mut(self.slot);
        slot.is_closed = true;
        slot.waiting.clear();
        slot.done.clear();
        core.close_if_gone(self.slot);
    }
}

impl Core {
    /// A handle that is gone, and has nothing outstanding, is forgotten.
    pub(super) fn close_if_gone(&mut self, slot: u32) {
        let of = self.slots.get_mut(slot);
        if !of.is_closed || of.jobs > 0 {
            return;
        }
        let volume = of.volume;
        self.slots.remove(slot.into());
        self.ops.forget_hold(slot);
        self.woken.retain(|woken| *woken != volume);
        if let Some(entry) = self.entries.get_mut(&volume) {
            entry.slot = None;
        }
    }
}

impl Volume for ThinVolume {
    fn geometry(&self) -> Geometry {
        self.with(|slot| slot.geometry)
    }

    fn identity(&self) -> Identity {
        self.with(|slot| slot.identity)
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        self.core.borrow_mut().submit(self.slot, io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let core = &mut *self.core.borrow_mut();
        core.drive();
        let slot = core.slots.get_mut(self.slot);
        let volume = slot.volume;
        slot.outstanding -= slot.done.len();
        done.append(&mut slot.done);
        core.woken.retain(|woken| *woken != volume);
    }

    fn outstanding(&self) -> usize {
        self.with(|slot| slot.outstanding)
    }

    fn copied_bytes(&self) -> u64 {
        self.core.borrow().data.copied_bytes()
    }

    fn events(&self) -> u64 {
        let count = self.with(|slot| slot.news_count);
        count.wrapping_add(self.core.borrow().untold_events())
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let core = &mut *self.core.borrow_mut();
        core.look_at_events();
        events.append(&mut core.slots.get_mut(self.slot).news);
    }

    fn is_at_rest(&self) -> bool {
        let core = &mut *self.core.borrow_mut();
        let slot = core.slots.get_mut(self.slot);
        let (is_quiet, this) = (slot.outstanding == 0 && slot.jobs == 0, self.slot);
        // What the pool does is the business of those who stay, if any do.
        if core.slots.iter_mut().any(|(other, slot)| other != this && !slot.is_closed) {
            return is_quiet;
        }
        is_quiet
            && !core.commits.is_under_way()
            && core.data.is_at_rest()
            && core.metadata.is_at_rest()
    }

    /// The pool ends with the last of its open volumes; until then others go on.
    fn wind_up(&mut self) {
        let core = &mut *self.core.borrow_mut();
        let slot = core.slots.get_mut(self.slot);
        slot.winds_up = true;
        let volume = slot.volume;
        // Of one that is closed nobody says so any more.
        if core.slots.iter_mut().all(|(_, slot)| slot.winds_up || slot.is_closed) {
            return core.wind_up();
        }
        if core.is_changed(volume) && !core.commits.is_under_way() {
            core.commits.is_wanted = true;
            core.settle();
        }
    }

    fn is_wound_up(&self) -> bool {
        let core = &mut *self.core.borrow_mut();
        let volume = core.slots.get_mut(self.slot).volume;
        match core.winds_up {
            true => core.is_wound_up(),
            false => core.commits.is_stopped() || !core.is_changed(volume),
        }
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        let core = self.core.borrow();
        core.data.mirrors(found);
        core.metadata.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        let core = self.core.borrow();
        core.data.caches(found);
        core.metadata.caches(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        let core = &mut *self.core.borrow_mut();
        core.data.scrubs(visit);
        core.metadata.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        let core = &mut *self.core.borrow_mut();
        core.data.works(visit);
        core.metadata.works(visit);
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        let core = &mut *self.core.borrow_mut();
        let next = core.turn(now);
        // Also for another handle, whose user may have looked before this one brought it up.
        match core.woken.is_empty() && core.slots.get_mut(self.slot).done.is_empty() {
            true => next,
            false => now,
        }
    }

    fn refresh(&mut self) -> bool {
        let core = &mut *self.core.borrow_mut();
        core.data.refresh() | core.metadata.refresh()
    }
}
