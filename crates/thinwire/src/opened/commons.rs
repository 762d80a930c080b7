//! Pools that are open on a host: each once, whoever has volumes of it, until the last of them has let go.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::{Rc, Weak};

use thinwire_modules::thin::ThinPool;
use thinwire_runtime::disk::{DiskOptions, HeldLeaf, UnusedGrant};
use thinwire_volume::Volume;

use super::bottom::Bottom;
use super::grants::Notes;
use super::returning::Returned;
use super::tree::{Root, Tree};
use crate::error::{Failure, FailureKind, Outcome};
use crate::host::Host;
use crate::open::{Ending, VolumeOptions};
use crate::pool::{PoolPlace, PoolTeller};
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// The pools of a host.
#[derive(Default)]
pub struct Pools {
    wanted: RefCell<Vec<Wanted>>,
    open: RefCell<Vec<Weak<OpenPool>>>,
    /// No more are opened.
    is_closed: Cell<bool>,
}

/// Somebody is going to open a volume of a pool.
struct Wanted {
    volume: VolumeSpec,
    /// What that is part of.
    by: String,
    read_only: bool,
    take_over: bool,
}

/// Who stands on a pool and remembers that: its name, and what was written down for it of the grants of the leaves.
struct Holder {
    name: String,
    unused: Vec<Option<UnusedGrant>>,
}

/// A pool, and what is at its bottom.
pub(super) struct OpenPool {
    spec: VolumeSpec,
    pool: ThinPool,
    teller: Rc<PoolTeller>,
    read_only: bool,
    /// The pool as a volume: let go of before what it stands on.
    volume: RefCell<Option<Box<dyn Volume>>>,
    bottom: RefCell<Bottom>,
    holders: RefCell<Vec<Holder>>,
    /// How often other attachments came to be below it.
    changes: Cell<u64>,
    /// Ports in it, by number.
    ports: Vec<usize>,
    /// What those who have let go of it have said of that.
    ending: Cell<Ending>,
}

/// How much is left undone by it: the most of all who had a pool counts.
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

impl Pools {
    /// This is going to be opened here, in that way: a pool is opened once as all who want it need it.
    pub fn want(&self, spec: &VolumeSpec, options: &VolumeOptions) {
        let mut wanted = self.wanted.borrow_mut();
        wanted.extend(spec.pool_uses().into_iter().map(|of| Wanted {
            volume: of.volume.clone(),
            by: spec.to_string(),
            read_only: options.read_only || of.is_read,
            take_over: options.take_over,
        }));
    }

    /// From now on no pool is opened here that is not.
    pub fn close(&self) {
        self.is_closed.set(true);
    }

    /// All pools that are open, as they are named.
    pub fn all(&self) -> Vec<(VolumeSpec, ThinPool)> {
        let open = self.open.borrow();
        open.iter().filter_map(Weak::upgrade).map(|it| (it.spec.clone(), it.pool.clone())).collect()
    }

    fn find(&self, spec: &VolumeSpec) -> Option<Rc<OpenPool>> {
        let mut open = self.open.borrow_mut();
        open.retain(|pool| pool.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).find(|pool| pool.spec.is_of_pool_of(spec))
    }

    /// The pool of a volume of one, which is part of `by`: opened if it is not open yet.
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
    ) -> Outcome<Rc<OpenPool>> {
        if let Some(open) = self.find(volume) {
            return match open.read_only && !options.read_only {
                false => {
                    if let Some(notes) = Notes::of(options, &disk_options, &[by.to_string()]) {
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
        let Some((spec, _)) = volume.pool() else { unreachable!("it is a volume of one") };
        if self.is_closed.get() {
            let why = format!("the pool {spec} is not open here, and none is opened any more");
            return Err(Failure::failed(why));
        }
        let mut options = options.clone();
        let mut holders = Vec::new();
        for wanted in &*self.wanted.borrow() {
            if wanted.volume.is_of_pool_of(volume) {
                options.read_only &= wanted.read_only;
                options.take_over |= wanted.take_over;
                holders.push(wanted.by.clone());
            }
        }
        if !holders.contains(&by.to_string()) {
            holders.push(by.to_string());
        }
        let place = PoolPlace::default();
        options.pool = Some(place.clone());
        let tree = Tree::open_for(host, &spec, &options, (disk_options, signals), &holders)?;
        let Tree { volume, bottom, unused, ports } = tree;
        let Some((pool, teller)) = place.take_told() else {
            unreachable!("it was opened as a pool")
        };
        let holders = holders.into_iter().enumerate().map(|(holder, name)| {
            // Those without a record, and those that are only read, have no grant.
            let unused = unused.iter().map(|of_leaf| of_leaf.get(holder).cloned()).collect();
            Holder { name, unused }
        });
        let open = Rc::new(OpenPool {
            spec,
            pool,
            teller,
            read_only: options.read_only,
            volume: RefCell::new(Some(Root::boxed(volume))),
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

impl OpenPool {
    /// The pool itself.
    pub fn pool(&self) -> &ThinPool {
        &self.pool
    }

    /// Who tells people of it.
    pub fn teller(&self) -> &Rc<PoolTeller> {
        &self.teller
    }

    /// It is the pool of that volume.
    pub fn is_of(&self, volume: &VolumeSpec) -> bool {
        self.spec.is_of_pool_of(volume)
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

    /// Somebody comes who was not known when it was opened, and is to remember under which grants it is: who had them before the present ones is
    /// not known to it.
    fn note(&self, by: &VolumeSpec, notes: &Notes) {
        let (name, over) = (by.to_string(), self.spec.over_pools());
        if self.holders.borrow().iter().any(|holder| holder.name == name) {
            return;
        }
        let bottom = self.bottom();
        let unused = bottom.leaves.iter().zip(over.leaves()).map(|(leaf, spec)| {
            let (identity, generation) = leaf.granted()?;
            notes.granted(&identity.identity, &spec.to_string(), generation).pop()
        });
        let unused = unused.collect();
        self.holders.borrow_mut().push(Holder { name, unused });
    }

    /// Its leaves, in order, and what was written down of their grants for that holder.
    pub fn held_leaves(&self, by: &VolumeSpec) -> Vec<HeldLeaf> {
        let by = by.to_string();
        let holders = self.holders.borrow();
        let holder = holders.iter().find(|holder| holder.name == by);
        let held = |leaf: usize, spec: &VolumeSpec| HeldLeaf {
            name: spec.to_string(),
            unused: holder.and_then(|holder| holder.unused.get(leaf).cloned()?),
        };
        let over = self.spec.over_pools();
        let own = over.leaves();
        let mut found: Vec<_> = own.iter().enumerate().map(|(at, spec)| held(at, spec)).collect();
        for below in &self.bottom().pools {
            found.extend(below.held_leaves(&self.spec));
        }
        found
    }

    /// Somebody needs it no more. To the last one it is given what it stands on, to be ended so.
    pub fn let_go(self: Rc<Self>, ending: Ending) -> Option<(Bottom, Ending)> {
        if severity(ending) > severity(self.ending.get()) {
            self.ending.set(ending);
        }
        let OpenPool { pool, volume, bottom, ending, .. } = Rc::try_unwrap(self).ok()?;
        // With the last handle goes the pool, unless a volume is still there.
        volume.replace(None);
        drop(pool);
        Some((bottom.into_inner(), ending.get()))
    }
}
