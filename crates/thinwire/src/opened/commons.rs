//! What is open on a host once for all who stand on it, until the last of them has let go: pools, for their volumes, and files and devices of
//! this machine, for slices of them.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::{Rc, Weak};

use thinwire_modules::thin::ThinPool;
use thinwire_runtime::disk::{DiskOptions, HeldLeaf, UnusedGrant};
use thinwire_volume::{ByteClaim, Identity, LeafGrant, SharedVolume, Volume};

use super::bottom::Bottom;
use super::grants::{HolderName, Holding, Notes};
use super::returning::Returned;
use super::tree::{Root, Tree};
use crate::error::{Failure, FailureKind, Outcome};
use crate::host::Host;
use crate::open::{Ending, VolumeOptions};
use crate::pool::{PoolPlace, PoolTeller};
use crate::signals::Signals;
use crate::uri::{CommonUse, VolumeSpec};

/// Those of a host.
#[derive(Default)]
pub struct Commons {
    wanted: RefCell<Vec<Wanted>>,
    open: RefCell<Vec<Weak<OpenCommon>>>,
    /// No more are opened.
    is_closed: Cell<bool>,
}

/// Somebody is going to open a volume of a pool, or slices of a file or device.
struct Wanted {
    /// The volume, or the file or device.
    volume: VolumeSpec,
    /// What that is part of, and what that has of it, if it is a file or device.
    holding: Holding,
    read_only: bool,
    take_over: bool,
}

/// Who stands on one of them and remembers that: its name, and what was written down for it of the grants of the leaves.
struct Holder {
    by: HolderName,
    /// It has had something of it: what comes by this name from now on comes again.
    has_come: bool,
    /// It has come to what was open, and others may have had before what it comes to have.
    is_late: bool,
    unused: Vec<Option<UnusedGrant>>,
}

/// What of it several have.
enum What {
    /// Volumes of a pool. The pool as a volume is let go of before what it stands on.
    Pool { pool: ThinPool, teller: Rc<PoolTeller>, volume: Box<dyn Volume> },
    /// Shares of all its bytes.
    Disk(SharedVolume),
}

/// One of them, and what is at its bottom.
pub(super) struct OpenCommon {
    spec: VolumeSpec,
    what: What,
    read_only: bool,
    bottom: RefCell<Bottom>,
    holders: RefCell<Vec<Holder>>,
    /// How often other attachments came to be below it.
    changes: Cell<u64>,
    /// Ports in it, by number.
    ports: Vec<usize>,
    /// What those who have let go of it have said of that.
    ending: Cell<Ending>,
}

/// How much is left undone by it: the most of all who had one counts.
fn severity(ending: Ending) -> u8 {
    match ending {
        Ending::Unused => 0,
        Ending::Orderly => 1,
        Ending::BarAway => 2,
        Ending::AfterLoss => 3,
        Ending::Unfinished => 4,
        Ending::Force => 5,
    }
}

impl Commons {
    /// This is going to be opened here, in that way: what is there once is opened as all who want it need it.
    pub fn want(&self, spec: &VolumeSpec, options: &VolumeOptions) {
        let mut wanted = self.wanted.borrow_mut();
        want_below(spec, (options.read_only, options.take_over), &mut wanted);
    }

    /// From now on nothing is opened here that is not.
    pub fn close(&self) {
        self.is_closed.set(true);
    }

    /// All pools that are open, as they are named.
    pub fn all(&self) -> Vec<(VolumeSpec, ThinPool)> {
        let open = self.open.borrow();
        let pool = |it: Rc<OpenCommon>| match &it.what {
            What::Pool { pool, .. } => Some((it.spec.clone(), pool.clone())),
            What::Disk(_) => None,
        };
        open.iter().filter_map(Weak::upgrade).filter_map(pool).collect()
    }

    /// Nothing is open here so.
    pub fn is_empty(&self) -> bool {
        self.open.borrow().iter().all(|open| open.strong_count() == 0)
    }

    fn find(&self, spec: &VolumeSpec) -> Option<Rc<OpenCommon>> {
        let mut open = self.open.borrow_mut();
        open.retain(|pool| pool.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).find(|open| open.spec.is_common_with(spec))
    }

    /// The pool of a volume of one, or a file or device, which is part of `by`: opened if it is not open yet.
    ///
    /// # Errors
    /// It could not be opened; or it is open to be read only, and this is to write.
    pub(super) fn hold(
        &self,
        host: &Host,
        (volume, by): (&VolumeSpec, &VolumeSpec),
        options: &VolumeOptions,
        disk_options: DiskOptions,
        signals: Option<&Signals>,
    ) -> Outcome<Rc<OpenCommon>> {
        if let Some(open) = self.find(volume) {
            return match open.read_only && !options.read_only {
                false => {
                    let (by, claims) = (HolderName::of(by), by.claims_on(&open.spec));
                    let holding = Holding { by: by.clone(), claims };
                    if let Some(notes) = Notes::of(options, &disk_options, &[holding]) {
                        open.note(by, &notes);
                    }
                    Ok(open)
                }
                true => Err(Failure {
                    kind: FailureKind::Busy,
                    message: format!(
                        "{} is open here to be read only: let go of the volumes of it that are, or open them later",
                        open.spec
                    ),
                }),
            };
        }
        let (spec, is_pool) = match volume.pool() {
            Some((pool, _)) => (pool, true),
            None => (volume.clone(), false),
        };
        if self.is_closed.get() {
            return Err(Failure::failed(match is_pool {
                true => format!("the pool {spec} is not open here, and none is opened any more"),
                false => format!(
                    "{spec} is not open here, and nothing is opened any more of which there are slices"
                ),
            }));
        }
        let mut options = options.clone();
        let mut holders: Vec<Holding> = Vec::new();
        for wanted in &*self.wanted.borrow() {
            if wanted.volume.is_common_with(volume) {
                options.read_only &= wanted.read_only;
                options.take_over |= wanted.take_over;
                if !holders.iter().any(|of| of.by == wanted.holding.by) {
                    holders.push(wanted.holding.clone());
                }
            }
        }
        let own = HolderName::of(by);
        if !holders.iter().any(|of| of.by == own) {
            holders.push(Holding { by: own, claims: by.claims_on(volume) });
        }
        let place = PoolPlace::default();
        options.pool = is_pool.then(|| place.clone());
        let tree = Tree::open_for(host, &spec, &options, (disk_options, signals), &holders)?;
        let Tree { volume, bottom, unused, ports } = tree;
        let volume = Root::boxed(volume);
        let what = match is_pool {
            true => {
                let (pool, teller) = place.take_told().expect("it was opened as a pool");
                What::Pool { pool, teller, volume }
            }
            false => What::Disk(SharedVolume::new(volume)),
        };
        let holders = holders.into_iter().enumerate().map(|(holder, Holding { by, .. })| {
            // Those without a record, and those that are only read, have no grant.
            let unused = unused.iter().map(|of_leaf| of_leaf.get(holder).cloned()).collect();
            Holder { by, has_come: false, is_late: false, unused }
        });
        let open = Rc::new(OpenCommon {
            spec,
            what,
            read_only: options.read_only,
            bottom: RefCell::new(bottom),
            holders: RefCell::new(holders.collect()),
            ports,
            ending: Cell::new(Ending::Unused),
            changes: Cell::new(0),
        });
        self.open.borrow_mut().push(Rc::downgrade(&open));
        Ok(open)
    }
}

impl OpenCommon {
    /// The pool itself, and who tells people of it.
    ///
    /// # Panics
    /// If it is none.
    pub fn pool(&self) -> (&ThinPool, &Rc<PoolTeller>) {
        match &self.what {
            What::Pool { pool, teller, .. } => (pool, teller),
            What::Disk(_) => unreachable!("{} is no pool", self.spec),
        }
    }

    /// These bytes of a file or device, for whoever is called so. If others have had any since it was opened, it is written down first, where that is wanted, that
    /// this one has them now.
    ///
    /// # Errors
    /// Somebody else has some of them, or it cannot be written down.
    ///
    /// # Panics
    /// If it is a pool.
    pub fn share(
        &self,
        claim: ByteClaim,
        (by, notes): (&HolderName, Option<&Notes>),
    ) -> Outcome<Box<dyn Volume>> {
        let What::Disk(disk) = &self.what else { unreachable!("{} is a pool", self.spec) };
        let share = disk.share(claim).map_err(|other| Failure {
            kind: FailureKind::Busy,
            message: format!(
                "{claim} of {} cannot be had: {other} are in use here, or something is outstanding there; let go of that first (an export goes by \
                 one reload, and another comes by the next)",
                self.spec
            ),
        })?;
        let mut holders = self.holders.borrow_mut();
        let Some(holder) = holders.iter_mut().find(|holder| holder.by == *by) else {
            return Ok(Box::new(share));
        };
        if let (Some(notes), true, false) = (notes, holder.is_late, claim.is_read) {
            for (leaf, (identity, grant)) in self.granted() {
                notes.take(&identity.identity, &leaf, (by, claim), grant).map_err(|e| {
                    let why = "that another volume comes to have them cannot be written down";
                    Failure::failed(format!("{claim} of {}: {why}: {e}", self.spec))
                })?;
            }
        }
        holder.has_come = true;
        Ok(Box::new(share))
    }

    /// It is the pool of that volume, or that file or device.
    pub fn is_of(&self, volume: &VolumeSpec) -> bool {
        self.spec.is_common_with(volume)
    }

    /// What it stands on.
    pub fn bottom(&self) -> RefMut<'_, Bottom> {
        self.bottom.borrow_mut()
    }

    /// Goes on with what comes back below it: ports and descriptors that are in it from now on.
    pub fn tend(&self) -> Returned {
        let tended = self.bottom().tend();
        self.changes.set(self.changes.get() + u64::from(tended.has_changed));
        tended
    }

    /// How often other attachments came to be below it.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Ports in it, by number.
    pub fn ports(&self) -> &[usize] {
        &self.ports
    }

    /// Somebody comes, who is to remember under which grants it is. Of one that was not known when it was opened nobody here knows who had them
    /// before the present ones; and what others have had of a disk since then may be what this one is to have.
    fn note(&self, by: HolderName, notes: &Notes) {
        let over = self.spec.over_commons();
        let is_disk = matches!(self.what, What::Disk(_));
        let mut holders = self.holders.borrow_mut();
        if let Some(known) = holders.iter().find(|holder| holder.by == by) {
            let is_taken = || {
                let mut granted = self.granted().into_iter();
                granted.any(|(leaf, (identity, grant))| {
                    notes.is_taken(&identity.identity, &leaf, grant)
                })
            };
            // What has had nothing yet is as it was when that was opened, unless others came before.
            if !is_disk || !known.has_come && !is_taken() {
                return;
            }
        }
        let bottom = self.bottom();
        let unused = bottom.leaves.iter().zip(over.leaves()).map(|(leaf, spec)| {
            let (identity, grant) = leaf.granted()?;
            let (identity, leaf) = (&identity.identity, spec.to_string());
            match is_disk {
                true => notes.came_late(identity, &leaf, grant).pop(),
                false => notes.granted(identity, &leaf, grant).pop(),
            }
        });
        let unused = unused.collect();
        // Another one by its name has gone, or is not meant.
        holders.retain(|holder| holder.by.name != by.name);
        holders.push(Holder { by, has_come: false, is_late: is_disk, unused });
    }

    /// What was granted of its leaves, and how these are called.
    fn granted(&self) -> Vec<(String, (Identity, LeafGrant))> {
        let (bottom, over) = (self.bottom(), self.spec.over_commons());
        let leaves = bottom.leaves.iter().zip(over.leaves());
        leaves.filter_map(|(leaf, spec)| Some((spec.to_string(), leaf.granted()?))).collect()
    }

    /// Its leaves, in order, and what was written down of their grants for that holder.
    pub fn held_leaves(&self, by: &VolumeSpec) -> Vec<HeldLeaf> {
        let by = HolderName::of(by);
        let holders = self.holders.borrow();
        let holder = holders.iter().find(|holder| holder.by == by);
        let held = |leaf: usize, spec: &VolumeSpec| HeldLeaf {
            name: spec.to_string(),
            unused: holder.and_then(|holder| holder.unused.get(leaf).cloned()?),
        };
        let over = self.spec.over_commons();
        let own = over.leaves();
        let mut found: Vec<_> = own.iter().enumerate().map(|(at, spec)| held(at, spec)).collect();
        for below in &self.bottom().commons {
            found.extend(below.held_leaves(&self.spec));
        }
        found
    }

    /// Somebody needs it no more. To the last one it is given what it stands on, to be ended so.
    pub fn let_go(self: Rc<Self>, ending: Ending) -> Option<(Bottom, Ending)> {
        if severity(ending) > severity(self.ending.get()) {
            self.ending.set(ending);
        }
        let OpenCommon { what, bottom, ending, .. } = Rc::try_unwrap(self).ok()?;
        // With the last handle it goes, unless a volume of it is still there.
        match what {
            What::Pool { pool, volume, .. } => {
                drop(volume);
                drop(pool);
            }
            What::Disk(disk) => drop(disk),
        }
        Some((bottom.into_inner(), ending.get()))
    }
}

/// What of this is there once, and what of that stands on what else is.
fn want_below(spec: &VolumeSpec, (read_only, take_over): (bool, bool), wanted: &mut Vec<Wanted>) {
    for CommonUse { volume, is_read, .. } in spec.common_uses() {
        let read_only = read_only || is_read;
        let volume = volume.clone();
        let holding = Holding { by: HolderName::of(spec), claims: spec.claims_on(&volume) };
        if let Some((pool, _)) = volume.pool() {
            want_below(&pool, (read_only, take_over), wanted);
        }
        wanted.push(Wanted { volume, holding, read_only, take_over });
    }
}

#[cfg(test)]
mod tests;
