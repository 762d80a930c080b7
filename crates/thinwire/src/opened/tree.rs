//! [`Tree`]: a volume, and what is at its bottom.

use std::cell::RefCell;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_runtime::clock::entropy_bytes;
use thinwire_runtime::disk::{DiskOptions, HeldLeaf, UnusedGrant};
use thinwire_runtime::serve::{Awaited, ExportEnd, OpenedLeaf, Tended};
use thinwire_volume::{HeldLeaves, Identity, LeafGrant, Port, Volume};

use super::bottom::{Bottom, end_together};
use super::build::Build;
use super::ends::{end_remotes, remotes};
use super::failures::Failures;
use super::fit;
use super::grants::{Grants, HolderName, Holding, Notes};
use super::outline::{Outline, OutlineNode};
use super::returning::Returning;
use crate::aoe::AoeLeaf;
use crate::ebd::EbdLeaf;
use crate::error::{Failure, FailureKind, Outcome};
use crate::host::Host;
use crate::labelled::Opening;
use crate::local::LocalLeaf;
use crate::memory::MemoryLimit;
use crate::network::{Interrupt, NetworkLeaf, wait_open};
use crate::open::{ATTACH_PATIENCE, Ending, Unheard, VolumeHealth, VolumeOptions, Wait};
use crate::remote::RemoteLeaf;
use crate::signals::Signals;
use crate::uri::{CommonUse, VolumeSpec};

/// Leaves that are attached at the same time: each asks who is there, and every attachment on a link
/// hears all answers.
const AT_ONCE: usize = 32;
/// Who waits for ever tries again after so long, and hears signals as often.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(200);

/// What is at the bottom of an open volume.
pub(super) enum Leaf {
    Local(LocalLeaf),
    Remote(Box<dyn NetworkLeaf>),
    /// It is not there, for this reason, and a mirror above it may go without.
    Absent(Failure),
}

impl Leaf {
    pub fn local(&self) -> Option<&LocalLeaf> {
        match self {
            Leaf::Local(leaf) => Some(leaf),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        }
    }

    /// Which content it is, and what was granted of that, if it was.
    pub fn granted(&self) -> Option<(Identity, LeafGrant)> {
        let granted = match self {
            Leaf::Remote(leaf) if !leaf.is_granted() => return None,
            Leaf::Absent(_) => return None,
            Leaf::Remote(leaf) => leaf.granted(),
            Leaf::Local(leaf) => leaf.granted(),
        };
        Some(granted).filter(|(_, grant)| grant.generation > 0)
    }

    pub fn health(&self) -> VolumeHealth {
        match self {
            Leaf::Local(leaf) => {
                VolumeHealth { may_lose: leaf.has_written(), ..VolumeHealth::local() }
            }
            Leaf::Remote(leaf) => leaf.health(),
            Leaf::Absent(_) => VolumeHealth::local(),
        }
    }
}

/// A volume that was built.
pub(super) enum Root {
    Port(Port),
    Other(Box<dyn Volume>),
}

impl Root {
    pub fn boxed(self) -> Box<dyn Volume> {
        match self {
            Root::Port(port) => Box::new(port),
            Root::Other(volume) => volume,
        }
    }
}

/// A volume, and what is at its bottom.
pub struct Tree {
    /// The volume on top. Let go of before the leaves.
    pub(super) volume: Root,
    pub(super) bottom: Bottom,
    /// What was written down of the grants of its own leaves, as [`VolumeOptions::is_served`] says: of each for all who share it.
    pub(super) unused: Vec<Vec<UnusedGrant>>,
    /// Ports in it, by number.
    pub ports: Vec<usize>,
}

impl Tree {
    /// Opens all, or none: what is remote is attached at the same time. Who has all the time there is waits for what a mirror cannot
    /// do without, too.
    pub fn open(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        disk_options: DiskOptions,
        signals: Option<&Signals>,
    ) -> Outcome<Self> {
        let mut told = String::new();
        loop {
            let how = (disk_options.clone(), signals);
            let failure = match Self::open_for(host, spec, options, how, &[]) {
                Err(failure) => failure,
                opened => return opened,
            };
            let may_change = matches!(failure.kind, FailureKind::Absent | FailureKind::Busy);
            let may_lack = spec.leaves_that_may_lack().contains(&true);
            if options.patience.is_some() || !may_change || !(may_lack || has_several(spec)) {
                return Err(failure);
            }
            if failure.message != told {
                tracing::warn!("waiting: {failure}");
                told = failure.message;
            }
            let interrupt = Interrupt { signals, stop: disk_options.stop.as_deref() };
            // Two that let go at the same time do not ask again at the same time.
            let apart = u32::from(entropy_bytes()[0]) * TRY_AGAIN_AFTER / u32::from(u8::MAX);
            let until = Instant::now() + TRY_AGAIN_AFTER + apart;
            while Instant::now() < until {
                host.turn(Wait::Until(until.min(Instant::now() + NAP)))?;
                if interrupt.has_come() {
                    return Err(Failure::failed(format!("opening {spec} was interrupted")));
                }
            }
        }
    }

    /// The same, once; `holders` share what is granted of it, if it is not somebody's alone.
    pub(super) fn open_for(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        (disk_options, signals): (DiskOptions, Option<&Signals>),
        holders: &[Holding],
    ) -> Outcome<Self> {
        let twice = |why| Failure::failed(format!("cannot open {spec}: {why}"));
        spec.refuse_twins().map_err(twice)?;
        spec.refuse_stale_caches(options.read_only).map_err(Failure::usage)?;
        let cache_bytes = spec.cache_bytes();
        if cache_bytes > 0 {
            let checked = MemoryLimit::of_process().check_caches(cache_bytes);
            checked.map_err(|why| Failure::usage(format!("cannot open {spec}: {why}")))?;
        }
        fit::check(spec)?;
        let notes = Notes::of(options, &disk_options, holders);
        let (name, own_notes) = (HolderName::of(spec), notes.clone());
        let mut grants = Grants::new(notes.clone());
        let returning = Returning::new(host, options, &disk_options, notes);
        let (leaves, commons, lacking) = (Vec::new(), Vec::new(), Vec::new());
        let (seen, outline, failures) = (Vec::new(), Vec::new(), Failures::default());
        let readers = Vec::new();
        let mut bottom =
            Bottom { leaves, returning, commons, seen, lacking, outline, failures, readers };
        let (mut ports, mut outline) = (Vec::new(), Outline::default());
        let stop = disk_options.stop.clone();
        let own = spec.over_commons();
        let opened = Self::hold_commons(host, spec, options, (&disk_options, signals), &mut bottom)
            .and_then(|()| {
                let into = (&mut bottom.leaves, &mut grants);
                Self::open_leaves(host, &own, options, disk_options, signals, into)
            })
            .and_then(|()| {
                let opening = Opening {
                    interrupt: Interrupt { signals, stop: stop.as_deref() },
                    until: options.patience.map(|patience| Instant::now() + patience),
                    // What is written down of grants is by their place.
                    in_order: options.is_served,
                    read_only: options.read_only,
                    wish: options.wish,
                    pool: options.pool.as_ref(),
                    growth: options.growth.as_ref(),
                    adopt: options.adopt.as_ref(),
                    rekey: options.rekey.as_ref(),
                };
                let Bottom { leaves, returning, commons, lacking, readers, .. } = &mut bottom;
                let (opening, leaves, ports) = (&opening, &leaves[..], &mut ports);
                let (commons, outline) = ((&commons[..], &lacking[..]), &mut outline);
                let (cut, taken, is_buffered) = (None, 0, false);
                let holder = (&name, own_notes.as_ref());
                #[rustfmt::skip]
                let mut build = Build { host, opening, leaves, commons, holder, taken, ports, returning, outline, cut, readers, is_buffered };
                build.volume(&own)
            });
        match opened {
            Ok(volume) => {
                bottom.outline = outline.into_nodes();
                grants.keep(&bottom.leaves);
                ports.extend(bottom.commons.iter().flat_map(|open| open.ports()));
                Ok(Tree { volume, bottom, unused: grants.into_unused(), ports })
            }
            Err(failure) => {
                // Those that are open are let go of in order; local ones that nobody has written are put
                // back as they were.
                let hurry = options.hurry.as_deref();
                let mut remotes = remotes(&mut bottom.leaves);
                let _ = end_remotes(host, &mut remotes, is_not_granted, hurry);
                let commons = bottom.commons.drain(..);
                let mut gone: Vec<_> =
                    commons.filter_map(|open| open.let_go(Ending::Unused)).collect();
                let gone = gone.iter_mut().map(|(bottom, ending)| (bottom, *ending)).collect();
                let _ = end_together(host, gone, hurry);
                Err(failure)
            }
        }
    }

    /// Has open what it does not have for itself: the pools of which it has volumes, and the disks of which it has slices.
    fn hold_commons(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        (disk_options, signals): (&DiskOptions, Option<&Signals>),
        bottom: &mut Bottom,
    ) -> Outcome {
        for CommonUse { volume, is_read, may_lack, place } in spec.merged_uses() {
            let mut options = options.clone();
            options.read_only |= is_read;
            if may_lack {
                options.patience = options.patience.or(Some(ATTACH_PATIENCE));
            }
            let of = (volume, spec);
            let open = host.commons().hold(host, of, &options, disk_options.clone(), signals);
            match open {
                Ok(open) => bottom.commons.push(open),
                Err(failure) if may_lack && failure.kind == FailureKind::Absent => {
                    bottom.lacking.push((volume.clone(), failure));
                }
                Err(failure) if volume.is_store() => {
                    // What is wrong with a name is put right where it stands.
                    return Err(match place {
                        Some(place) => failure.context(place),
                        None => failure,
                    });
                }
                Err(failure) => return Err(failure.context(format_args!("cannot open {volume}"))),
            }
        }
        Ok(())
    }

    fn open_leaves(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        disk_options: DiskOptions,
        signals: Option<&Signals>,
        (leaves, grants): (&mut Vec<Leaf>, &mut Grants),
    ) -> Outcome {
        let stop = disk_options.stop.clone();
        let (all, places) = (spec.leaves(), spec.leaf_places());
        let may_lack = spec.leaves_that_may_lack();
        // Who waits for ever waits for what there has to be, and for nobody who writes there; nor while it has a part of the
        // leaves: another who waits may have the rest, and would wait for these.
        let patience = options.patience.or(Some(ATTACH_PATIENCE));
        let is_bounded = has_several(spec);
        let are_read = spec.leaves_that_are_read();
        let each = |at: usize| VolumeOptions {
            patience: if may_lack[at] || is_bounded { patience } else { options.patience },
            read_only: options.read_only || are_read[at],
            ..options.clone()
        };
        let each: Vec<_> = (0..all.len()).map(each).collect();
        let of = |at: usize| &each[at];
        for specs in all.chunks(AT_ONCE) {
            let first = leaves.len();
            for spec in specs {
                let at = leaves.len();
                leaves.push(match spec {
                    network if network.is_network() => match begin(host, network, of(at)) {
                        Err(e) if may_lack[at] && e.kind == FailureKind::Absent => Leaf::Absent(e),
                        begun => Leaf::Remote(begun?),
                    },
                    store => {
                        let disk_options = disk_options.clone();
                        let opened = LocalLeaf::open(host, store, of(at), disk_options, signals);
                        match opened {
                            Ok(leaf) => Leaf::Local(leaf),
                            Err(e) if may_lack[at] && e.kind == FailureKind::Absent => {
                                Leaf::Absent(e)
                            }
                            // What is wrong with a name is put right where it stands.
                            Err(e) => {
                                return Err(match places[at] {
                                    Some(place) => e.context(place),
                                    None => e,
                                });
                            }
                        }
                    }
                });
                grants.note(leaves, &all);
            }
            let interrupt = Interrupt { signals, stop: stop.as_deref() };
            for at in first..leaves.len() {
                let Leaf::Remote(leaf) = &leaves[at] else { continue };
                let mut note = || grants.note(leaves, &all);
                let how = (of(at), of(at).patience);
                match wait_open(host, &**leaf, how, &interrupt, &mut note) {
                    Err(e) if may_lack[at] && e.kind == FailureKind::Absent => {
                        tracing::warn!("{}", e.message);
                        let absent = std::mem::replace(&mut leaves[at], Leaf::Absent(e));
                        grants.let_go(at);
                        let hurry = options.hurry.as_deref();
                        let mut absent = [absent];
                        let ended =
                            end_remotes(host, &mut remotes(&mut absent), is_not_granted, hurry);
                        if let Err(failure) = ended {
                            tracing::info!("{failure}");
                        }
                        for leaf in remotes(&mut absent) {
                            leaf.take_off();
                        }
                    }
                    opened => opened?,
                }
            }
        }
        Ok(())
    }

    /// Readable when something local has completions.
    pub fn fds(&self) -> Vec<RawFd> {
        self.bottom.fds()
    }

    /// Whether all I/O on its files and devices of this machine is direct; `None` if it has none.
    pub fn direct(&self) -> Option<bool> {
        self.bottom.direct()
    }

    /// Which of its files and devices of this machine have something to answer; `None` if it has none.
    pub fn awaited(&self) -> Option<Awaited> {
        self.bottom.awaited()
    }

    /// What it stands on at other targets.
    pub fn remote_leaves(&self) -> Vec<OpenedLeaf> {
        self.bottom.remote_leaves()
    }

    /// Its leaves, in order, those that it shares last, and what was written down of their grants; they are called as in `spec`.
    pub fn held_leaves(&self, spec: &VolumeSpec) -> Vec<HeldLeaf> {
        let over = spec.over_commons();
        let held = |(leaf, unused): (&VolumeSpec, &Vec<UnusedGrant>)| HeldLeaf {
            name: leaf.to_string(),
            unused: unused.first().cloned(),
        };
        let mut found: Vec<_> = over.leaves().into_iter().zip(&self.unused).map(held).collect();
        for open in &self.bottom.commons {
            found.extend(open.held_leaves(spec));
        }
        found
    }

    /// There is something to do after each turn: some of its legs come back by themselves, or may be added; or what fails in it is told
    /// with its place.
    pub fn is_tended(&self) -> bool {
        self.bottom.has_comers() || self.bottom.is_made_of_others()
    }

    /// Its leaves may be held in another way while it is used: some of its legs come back by themselves, or may be added.
    pub fn leaves_may_change(&self) -> bool {
        self.bottom.has_comers()
    }

    /// The volume; what tells what that is made of; what is done after each turn, if it [has to be](Tree::is_tended); and what ends its leaves in
    /// order once nobody uses it any more, giving that up when `hurry` is readable. That is told how. `held` is told when its leaves are held in another way.
    pub fn into_parts(
        self,
        host: &Host,
        hurry: Option<Arc<OwnedFd>>,
        held: HeldLeaves,
    ) -> (Box<dyn Volume>, TellOutline, Tend, impl FnOnce(ExportEnd) -> Outcome<Unheard> + use<>)
    {
        let (bottom, host) = (Rc::new(RefCell::new(self.bottom)), host.clone());
        let tend: Tend = {
            let bottom = bottom.clone();
            Box::new(move || {
                let bottom = &mut *bottom.borrow_mut();
                let tended = bottom.tend();
                if tended.has_changed {
                    held.set(bottom.held());
                }
                let leaves = tended.has_changed.then(|| bottom.remote_leaves());
                Tended { ports: tended.ports, fds: tended.fds, leaves }
            })
        };
        let tell: TellOutline = {
            let bottom = bottom.clone();
            Rc::new(move || bottom.borrow().outline())
        };
        let end = move |how| {
            let ending = match how {
                ExportEnd::Orderly => Ending::Orderly,
                ExportEnd::Unused => Ending::Unused,
                ExportEnd::Fenced => Ending::Force,
            };
            bottom.borrow_mut().end(&host, ending, hurry.as_deref())
        };
        (self.volume.boxed(), tell, tend, end)
    }
}

/// Begins to attach.
fn begin(host: &Host, spec: &VolumeSpec, options: &VolumeOptions) -> Outcome<Box<dyn NetworkLeaf>> {
    Ok(match spec {
        VolumeSpec::Remote(export) => Box::new(RemoteLeaf::begin(host, export, options)?),
        VolumeSpec::Ebd(device) => Box::new(EbdLeaf::begin(host, device, options)?),
        VolumeSpec::Aoe(device) => Box::new(AoeLeaf::begin(host, device, options)?),
        other => unreachable!("{other} is not reached over links"),
    })
}

fn is_not_granted(leaf: &dyn NetworkLeaf) -> bool {
    !leaf.is_granted()
}

/// See [`Tree::into_parts`].
pub type Tend = Box<dyn FnMut() -> Tended>;

/// See [`Tree::into_parts`].
pub type TellOutline = Rc<dyn Fn() -> Vec<OutlineNode>>;

/// More than one of its leaves is reached over links, and may be granted to another meanwhile.
fn has_several(spec: &VolumeSpec) -> bool {
    spec.leaves().iter().filter(|leaf| leaf.is_network()).count() > 1
}
