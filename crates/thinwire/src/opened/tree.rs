//! [`Tree`]: a volume, and what is at its bottom.

use std::cell::RefCell;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_runtime::disk::{DiskOptions, HeldLeaf, UnusedGrant, UnusedGrants};
use thinwire_runtime::serve::{Awaited, OpenedLeaf, Tended};
use thinwire_volume::{Port, Volume};

use super::build::Build;
use super::ends::{end, end_remotes, remotes};
use super::grants::Grants;
use super::returning::Returning;
use crate::aoe::AoeLeaf;
use crate::ebd::EbdLeaf;
use crate::error::{Failure, FailureKind, Outcome};
use crate::host::Host;
use crate::labelled::Opening;
use crate::local::LocalLeaf;
use crate::network::{Interrupt, NetworkLeaf, wait_open};
use crate::open::{ATTACH_PATIENCE, Ending, Unheard, VolumeHealth, VolumeOptions, Wait};
use crate::remote::RemoteLeaf;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

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
    pub(super) leaves: Vec<Leaf>,
    /// Those that come back when they were away.
    pub(super) returning: Returning,
    /// What was written down of their grants, as [`VolumeOptions::is_served`] says.
    unused: Vec<Option<UnusedGrant>>,
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
            let failure = match Self::try_open(host, spec, options, disk_options.clone(), signals) {
                Err(failure) => failure,
                opened => return opened,
            };
            let may_change = matches!(failure.kind, FailureKind::Absent | FailureKind::Busy);
            let may_lack = spec.leaves_that_may_lack().contains(&true);
            if options.patience.is_some() || !may_change || !may_lack {
                return Err(failure);
            }
            if failure.message != told {
                tracing::warn!("waiting: {failure}");
                told = failure.message;
            }
            let interrupt = Interrupt { signals, stop: disk_options.stop.as_deref() };
            let until = Instant::now() + TRY_AGAIN_AFTER;
            while Instant::now() < until {
                host.turn(Wait::Until(until.min(Instant::now() + NAP)))?;
                if interrupt.has_come() {
                    return Err(Failure::failed(format!("opening {spec} was interrupted")));
                }
            }
        }
    }

    fn try_open(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        disk_options: DiskOptions,
        signals: Option<&Signals>,
    ) -> Outcome<Self> {
        let twice = |why| Failure::failed(format!("cannot open {spec}: {why}"));
        spec.refuse_twins().map_err(twice)?;
        let mut leaves = Vec::new();
        let mut ports = Vec::new();
        let mut grants = Grants::new(options, &disk_options);
        let place = options.is_served.then(|| UnusedGrants::new(&disk_options.state_dir));
        let mut returning = Returning::new(host, options, place);
        let stop = disk_options.stop.clone();
        let opened = Self::open_leaves(
            host,
            spec,
            options,
            disk_options,
            signals,
            (&mut leaves, &mut grants),
        )
        .and_then(|()| {
            let opening = Opening {
                interrupt: Interrupt { signals, stop: stop.as_deref() },
                until: options.patience.map(|patience| Instant::now() + patience),
                // What is written down of grants is by their place.
                in_order: options.is_served,
                read_only: options.read_only,
                wish: options.wish,
                pool: options.pool.as_ref(),
            };
            let (opening, leaves, ports, returning) =
                (&opening, &leaves[..], &mut ports, &mut returning);
            Build { host, opening, leaves, taken: 0, ports, returning }.volume(spec)
        });
        match opened {
            Ok(volume) => {
                grants.keep(&leaves);
                Ok(Tree { volume, leaves, returning, unused: grants.into_unused(), ports })
            }
            Err(failure) => {
                // Those that are open are let go of in order; local ones that nobody has written are put
                // back as they were.
                let mut remotes = remotes(&mut leaves);
                let hurry = options.hurry.as_deref();
                let _ = end_remotes(host, &mut remotes, is_not_granted, hurry);
                Err(failure)
            }
        }
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
        // Who waits for ever waits for what there has to be, and for nobody who writes there.
        let patience = options.patience.or(Some(ATTACH_PATIENCE));
        let are_read = spec.leaves_that_are_read();
        let each = |at: usize| VolumeOptions {
            patience: if may_lack[at] { patience } else { options.patience },
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
        let fd = |leaf: &Leaf| match leaf {
            Leaf::Local(leaf) => leaf.fd(),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        };
        self.leaves.iter().filter_map(fd).collect()
    }

    /// Whether all I/O on its files and devices of this machine is direct; `None` if it has none.
    pub fn direct(&self) -> Option<bool> {
        let direct = |leaf: &Leaf| match leaf {
            Leaf::Local(leaf) => leaf.direct(),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        };
        self.leaves.iter().filter_map(direct).reduce(|one, other| one && other)
    }

    /// Which of its files and devices of this machine have something to answer; `None` if it has none.
    pub fn awaited(&self) -> Option<Awaited> {
        let awaited = |leaf: &Leaf| match leaf {
            Leaf::Local(leaf) => Some(leaf.awaited()),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        };
        let all: Vec<_> = self.leaves.iter().filter_map(awaited).collect();
        (!all.is_empty()).then(|| -> Awaited {
            Box::new(move |_| all.iter().filter_map(|awaited| awaited()).collect())
        })
    }

    /// What it stands on at other targets.
    pub fn remote_leaves(&self) -> Vec<OpenedLeaf> {
        remote_leaves(&self.leaves)
    }

    /// Its leaves, in order, and what was written down of their grants; they are called as in `spec`.
    pub fn held_leaves(&self, spec: &VolumeSpec) -> Vec<HeldLeaf> {
        let held = |(leaf, unused): (&VolumeSpec, &Option<UnusedGrant>)| HeldLeaf {
            name: leaf.to_string(),
            unused: unused.clone(),
        };
        spec.leaves().into_iter().zip(&self.unused).map(held).collect()
    }

    /// Some of its legs come back by themselves.
    pub fn has_comers(&self) -> bool {
        !self.returning.is_empty()
    }

    /// The volume; what goes on with its legs that come back, after each turn; and what ends its leaves in order once nobody uses
    /// it any more, giving that up when `hurry` is readable. That is told whether anybody could use it.
    pub fn into_parts(
        self,
        host: &Host,
        hurry: Option<Arc<OwnedFd>>,
    ) -> (Box<dyn Volume>, Tend, impl FnOnce(bool) -> Outcome<Unheard> + use<>) {
        let (leaves, host) = (Rc::new(RefCell::new(self.leaves)), host.clone());
        let returning = Rc::new(RefCell::new(self.returning));
        let tend: Tend = {
            let (leaves, returning) = (leaves.clone(), returning.clone());
            Box::new(move || {
                let leaves = &mut *leaves.borrow_mut();
                let tended = returning.borrow_mut().tend(leaves);
                let leaves = tended.has_changed.then(|| remote_leaves(leaves));
                Tended { ports: tended.ports, leaves }
            })
        };
        let end = move |was_served| {
            let ending = if was_served { Ending::Orderly } else { Ending::Unused };
            let unheard = returning.replace(Returning::none(&host)).into_unheard();
            end(&host, &mut leaves.borrow_mut(), ending, hurry.as_deref())
                .map(|others| others.and(unheard))
        };
        (self.volume.boxed(), tend, end)
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

/// The attachments among leaves.
fn remote_leaves(leaves: &[Leaf]) -> Vec<OpenedLeaf> {
    let opened = |leaf: &Leaf| match leaf {
        Leaf::Remote(leaf) => leaf.opened(),
        Leaf::Local(_) | Leaf::Absent(_) => Vec::new(),
    };
    leaves.iter().flat_map(opened).collect()
}
