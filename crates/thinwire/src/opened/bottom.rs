//! [`Bottom`]: what is at the bottom of an open volume, its own and what it shares with others.

use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Instant;

use thinwire_modules::Meter;
use thinwire_modules::meta::ReaderFence;
use thinwire_runtime::serve::{Awaited, OpenedLeaf};
use thinwire_volume::HeldGrant;

use super::commons::OpenCommon;
use super::ends::{self, Going};
use super::failures::Failures;
use super::outline::OutlineNode;
use super::returning::{Returned, Returning};
use super::tree::Leaf;
use crate::control::LeafStatus;
use crate::error::{Failure, Outcome};
use crate::health::Together;
use crate::host::Host;
use crate::network::NetworkLeaf;
use crate::open::{Ending, OnRecord, Unheard, VolumeHealth};
use crate::uri::VolumeSpec;

/// Why a volume is read no more.
const OVERTAKEN: &str = "somebody else has opened it for writing since it was opened here to be read, and whoever reads beside a writer may read what is old, \
     or another volume's: all reads fail from now on. Detach it, and attach it anew once nobody writes it, or read it where it is used (an attachment, or the \
     export of a gateway) or a snapshot of it";

/// Leaves, and what brings some of them back; pools of which the volume has volumes, and disks of which it has slices, that others may have
/// open, too.
pub(super) struct Bottom {
    /// Those that come back when they were away. Before the leaves: labels of some of them are being read, perhaps.
    pub returning: Returning,
    pub leaves: Vec<Leaf>,
    /// Each ends with the last who has it.
    pub commons: Vec<Rc<OpenCommon>>,
    /// How often what each of them stands on had changed when this was told last: several have a pool, and any of them has it go on.
    pub seen: Vec<u64>,
    /// Volumes of pools, and disks, that are not there, and why not: a mirror above goes without.
    pub lacking: Vec<(VolumeSpec, Failure)>,
    /// What stands on it.
    pub outline: Vec<OutlineNode>,
    pub failures: Failures,
    /// What of it is only read, by name: until somebody else opens that for writing.
    pub readers: Vec<(String, ReaderFence)>,
}

impl Bottom {
    /// Goes on with what comes back.
    #[inline]
    pub fn tend(&mut self) -> Returned {
        self.failures.tell(&self.outline);
        for (name, fence) in &self.readers {
            if fence.take_closed() {
                tracing::error!("{name}: {OVERTAKEN}");
            }
        }
        let mut tended = self.returning.tend(&mut self.leaves);
        if self.returning.wants_some() {
            self.bring_new(&mut tended);
        }
        self.on_risen(&std::mem::take(&mut tended.risen));
        self.seen.resize(self.commons.len(), 0);
        for (open, seen) in self.commons.iter().zip(&mut self.seen) {
            let of_common = open.tend();
            tended.ports.extend(of_common.ports);
            tended.fds.extend(of_common.fds);
            tended.has_changed |= std::mem::replace(seen, open.changes()) != open.changes();
        }
        tended
    }

    /// Whether who uses it [may tell](Bottom::heard) its user of what fails.
    pub fn await_user(&mut self, is_awaited: bool) {
        self.failures.await_user(is_awaited);
        self.commons.iter().for_each(|open| open.bottom().await_user(is_awaited));
    }

    /// The user was told of what has failed at the end of this way.
    pub fn heard(&mut self, way: &[Rc<Meter>]) {
        self.failures.heard(way, Instant::now());
        self.commons.iter().for_each(|open| open.bottom().heard(way));
    }

    /// Something of it comes back by itself, or may be added.
    pub fn has_comers(&self) -> bool {
        !self.returning.is_empty() || self.commons.iter().any(|open| open.bottom().has_comers())
    }

    /// Calls this for each of its leaves, with whether the volume goes without that now.
    pub fn each(&self, act: &mut dyn FnMut(&Leaf, bool)) {
        for (at, leaf) in self.leaves.iter().enumerate() {
            act(leaf, self.returning.is_without(at));
        }
        self.commons.iter().for_each(|open| open.bottom().each(act));
    }

    fn gather<T>(&self, mut of: impl FnMut(&Leaf) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        self.each(&mut |leaf, _| found.extend(of(leaf)));
        found
    }

    /// How many leaves there are.
    pub fn count(&self) -> usize {
        self.gather(|_| Some(())).len()
    }

    /// Something of it is reached over links.
    pub fn has_remote(&self) -> bool {
        let is_remote = |leaf: &Leaf| matches!(leaf, Leaf::Remote(_));
        self.leaves.iter().any(is_remote)
            || self.commons.iter().any(|open| open.bottom().has_remote())
    }

    /// How those are that the volume uses: nobody waits for a leg that its mirror has dropped.
    pub fn health(&self) -> VolumeHealth {
        let mut together = Together::default();
        self.each(&mut |leaf, is_coming| {
            if !is_coming {
                together.add(leaf.health());
            }
        });
        together.into_health()
    }

    /// Of those that are reached over links.
    pub fn statuses(&self) -> Vec<LeafStatus> {
        let of = |leaf: &Leaf| match leaf {
            Leaf::Remote(leaf) => Some(NetworkLeaf::status(&**leaf)),
            Leaf::Local(_) | Leaf::Absent(_) => None,
        };
        self.gather(of).into_iter().flatten().collect()
    }

    /// Under which generations its leaves are held by now, all of them but those that came and went.
    pub fn held(&self) -> Vec<HeldGrant> {
        let of = |leaf: &Leaf| match leaf.granted() {
            Some((identity, grant)) => HeldGrant { leaf: identity.identity, grant },
            None => HeldGrant::default(),
        };
        let own = self.leaves.iter().enumerate();
        let own = own.filter(|(at, _)| !self.returning.has_removed(*at));
        let mut found: Vec<_> = own.map(|(_, leaf)| of(leaf)).collect();
        self.commons.iter().for_each(|open| found.extend(open.bottom().held()));
        found
    }

    /// Whether their writers would stay on record.
    pub fn on_record(&self) -> Vec<OnRecord> {
        self.gather(|leaf| leaf.local().map(|leaf| leaf.on_record()))
    }

    /// What stands on it is made of others.
    pub fn is_made_of_others(&self) -> bool {
        self.outline.iter().any(|node| node.meter.is_some())
    }

    /// Readable when something local has completions.
    pub fn fds(&self) -> Vec<RawFd> {
        self.gather(|leaf| leaf.local()?.fd())
    }

    /// Whether all I/O on its files and devices of this machine is direct; `None` if it has none.
    pub fn direct(&self) -> Option<bool> {
        let found = self.gather(|leaf| leaf.local()?.direct());
        found.into_iter().reduce(|one, other| one && other)
    }

    /// Which of its files and devices of this machine have something to answer; `None` if it has none.
    pub fn awaited(&self) -> Option<Awaited> {
        let all = self.gather(|leaf| leaf.local().map(|leaf| leaf.awaited()));
        (!all.is_empty()).then(|| -> Awaited {
            Box::new(move |_| all.iter().filter_map(|awaited| awaited()).collect())
        })
    }

    /// What it stands on at other targets.
    pub fn remote_leaves(&self) -> Vec<OpenedLeaf> {
        let of = |leaf: &Leaf| match leaf {
            Leaf::Remote(leaf) => Some(leaf.opened()),
            Leaf::Local(_) | Leaf::Absent(_) => None,
        };
        self.gather(of).into_iter().flatten().collect()
    }

    /// Ends all of it that nobody else has, as [`end_together`]. Nothing comes back any more.
    pub fn end(
        &mut self,
        host: &Host,
        ending: Ending,
        hurry: Option<&OwnedFd>,
    ) -> Outcome<Unheard> {
        end_together(host, vec![(self, ending)], hurry)
    }

    /// Nothing of it comes back any more; what that has left behind unheard. Appends what those pools stand on that nobody else
    /// has: it ends with this.
    fn leave(
        &mut self,
        host: &Host,
        ending: Ending,
        below: &mut Vec<(Bottom, Ending)>,
    ) -> Vec<String> {
        self.failures.tell_all(&self.outline);
        for (at, leaf) in self.leaves.iter().enumerate() {
            if let (true, Some(leaf)) = (self.returning.is_without(at), leaf.local()) {
                leaf.go_without();
            }
        }
        let none = Returning::none(host);
        let mut unheard = std::mem::replace(&mut self.returning, none).into_unheard();
        for open in self.commons.drain(..) {
            if let Some((mut bottom, ending)) = open.let_go(ending) {
                unheard.extend(bottom.leave(host, ending, below));
                below.push((bottom, ending));
            }
        }
        unheard
    }
}

/// Ends what is at the bottom of several volumes, all leaves at the same time, as [`ends::end`].
pub(super) fn end_together(
    host: &Host,
    mut bottoms: Vec<(&mut Bottom, Ending)>,
    hurry: Option<&OwnedFd>,
) -> Outcome<Unheard> {
    let (mut below, mut unheard) = (Vec::new(), Vec::new());
    for (bottom, ending) in &mut bottoms {
        unheard.extend(bottom.leave(host, *ending, &mut below));
    }
    let all = bottoms.into_iter().chain(below.iter_mut().map(|(bottom, ending)| (bottom, *ending)));
    let mut going: Vec<Going<'_>> =
        all.map(|(bottom, ending)| (&mut bottom.leaves[..], ending)).collect();
    ends::end(host, &mut going, hurry).map(|others| others.and(unheard))
}
