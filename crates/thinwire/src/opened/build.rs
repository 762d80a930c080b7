//! From leaves that are open to the volume on top of them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use thinwire_modules::cuts::OfCut;
use thinwire_modules::meta::{ReaderFence, WatchedPart};
use thinwire_modules::{Child, Dealt, Module};
use thinwire_volume::{ByteClaim, Port, Volume};

use super::commons::OpenCommon;
use super::fit::unfit;
use super::grants::{HolderName, Notes};
use super::outline::Outline;
use super::returning::Returning;
use super::tree::{Leaf, Root};
use crate::budgets::open_over;
use crate::cuts::{take_as_legs, take_as_parts};
use crate::error::{Failure, FailureKind, Outcome};
use crate::growth::WholeDesk;
use crate::host::Host;
use crate::labelled::{Opening, check_key, come_to_rest, open_whole};
use crate::mirrored::open_mirror;
use crate::network::NetworkLeaf;
use crate::pool::{PoolName, open_pool, open_volume_of_pool};
use crate::uri::VolumeSpec;

/// Puts volumes on these leaves, which are taken in order.
pub(super) struct Build<'a> {
    pub host: &'a Host,
    pub opening: &'a Opening<'a>,
    pub leaves: &'a [Leaf],
    /// What others may stand on, too: pools, files and devices that are open, and what of such is not there.
    pub commons: (&'a [Rc<OpenCommon>], &'a [(VolumeSpec, Failure)]),
    /// By what name it has something of those, and where that is written down, if it is.
    pub holder: (&'a HolderName, Option<&'a Notes>),
    /// So many of them have been taken.
    pub taken: usize,
    /// Of those at other targets, by number.
    pub ports: &'a mut Vec<usize>,
    pub returning: &'a mut Returning,
    pub outline: &'a mut Outline,
    /// Snapshots are put together: which cut they are of, once that is known.
    pub cut: Option<Rc<Cell<u64>>>,
    /// What is only read, and what stops that once somebody else writes.
    pub readers: &'a mut Vec<(String, ReaderFence)>,
    /// Something above tells its users that writes are done which are in memory yet.
    pub is_buffered: bool,
}

impl Build<'_> {
    /// The volume of this description.
    pub fn volume(&mut self, spec: &VolumeSpec) -> Outcome<Root> {
        let at = self.outline.begin(spec, self.taken);
        let mut built = self.open(spec, at);
        self.outline.end(at, &mut built);
        let Some(meters) = self.outline.meters(at) else { return built };
        built.map(|root| Root::Other(meters.over(self.host, root.boxed())))
    }

    /// The same, which stands at that place in the outline.
    fn open(&mut self, spec: &VolumeSpec, at: usize) -> Outcome<Root> {
        if let VolumeSpec::Share { of, claim } = spec {
            return self.share(of, *claim);
        }
        let VolumeSpec::Over { module, options, children, labels, key, .. } = spec else {
            let leaf = &self.leaves[self.taken];
            self.taken += 1;
            return match leaf {
                Leaf::Absent(failure) => Err(failure.clone()),
                Leaf::Local(leaf) => Ok(Root::Other(Box::new(leaf.volume()))),
                Leaf::Remote(leaf) => of_network(&**leaf, self.ports),
            };
        };
        let budget = self.host.budgets().of(spec)?;
        self.outline.set_budget(at, budget.clone());
        let first = self.taken;
        let (host, opening) = (self.host, self.opening);
        if let Some(name) = spec.inner() {
            let (open, lacking) = self.commons;
            let lacks = |(volume, _): &&(VolumeSpec, _)| volume.is_common_with(spec);
            if let Some((_, failure)) = lacking.iter().find(lacks) {
                return Err(failure.clone());
            }
            let nth = open.iter().position(|pool| pool.is_of(spec));
            let nth = nth.expect("pools are opened first");
            self.outline.is_of_pool(at, nth);
            let open = &open[nth];
            return open_volume_of_pool(open.pool(), name, opening)
                .map(Root::Other)
                .map_err(|e| e.context(format_args!("cannot open {spec}")));
        }
        let below = Opening { read_only: opening.read_only || spec.only_reads(), ..*opening };
        // Nobody changes a snapshot.
        let opening = if spec.cut().is_some() { &below } else { opening };
        if spec.cut().is_some() {
            self.cut = Some(Rc::default());
        }
        if !below.read_only && key.is_some() && children[0].writes_labels() {
            self.check_key(spec, &below)
                .map_err(|e| e.context(format_args!("cannot open {spec}")))?;
        }
        let is_buffered = self.is_buffered || spec.buffers_writes();
        let mut built = Vec::new();
        for child in children {
            let next = self.taken + child.leaves().len();
            let mut build = self.below(&below);
            build.is_buffered = is_buffered;
            built.push(build.volume(child).map(Root::boxed));
            // Also of one that is not there.
            self.taken = next;
        }
        if *labels {
            self.refuse_held((spec, module), &self.leaves[first..self.taken])?;
            // Nobody changes a snapshot.
            if opening.read_only && self.cut.is_none() {
                built = self.watch(spec, built);
            }
        }
        if *labels && module.has_volumes() {
            let built: Outcome<Vec<_>> = built.into_iter().collect();
            let whole = (*module, options);
            let opened = built.and_then(|built| open_pool(host, whole, children, built, opening));
            let (opened, whole, places) =
                opened.map_err(|e| e.context(format_args!("cannot open {spec}")))?;
            self.outline.set_roles(at, &places);
            self.can_grow(spec, WholeDesk::Pool(whole), opening.read_only);
            return Ok(Root::Other(opened));
        }
        if *labels && module.is_mirror() {
            if let Some(cut) = &self.cut {
                built = take_as_legs(host, children, built, opening, cut)
                    .map_err(|e| e.context(format_args!("cannot open {spec}")))?;
            }
            let legs = (&children[..], is_buffered);
            let (leaves, outline) = ((self.leaves, first), (&*self.outline, at));
            let back = self.returning.add(legs, leaves, outline, !opening.read_only);
            let opened = open_mirror(host, options, children, built, opening, back);
            let (mirror, places, desk) =
                opened.map_err(|e| e.context(format_args!("cannot open {spec}")))?;
            self.can_grow(spec, desk, opening.read_only);
            self.outline.set_legs(at, &places);
            return Ok(Root::Other(mirror));
        }
        let built: Outcome<Vec<_>> = built.into_iter().collect();
        if *labels {
            let described = (*module, options, key.as_deref());
            let mut built = built?;
            if let Some(cut) = &self.cut {
                built = take_as_parts(host, children, built, opening, cut)
                    .map_err(|e| e.context(format_args!("cannot open {spec}")))?;
            }
            let cuts = PoolName::of_cuts(spec).map(|name| (name, self.is_buffered));
            let (opened, growth, places) =
                open_whole(host, described, children, (built, cuts, budget), opening)
                    .map_err(|e| e.context(format_args!("cannot open {spec}")))?;
            self.outline.set_roles(at, &places);
            if let Some(growth) = growth {
                self.outline.set_labelled(at, growth.whole().uuid);
                self.can_grow(spec, WholeDesk::Whole(Rc::new(RefCell::new(growth))), false);
            }
            return Ok(Root::Other(match spec.cut().and(self.cut.take()) {
                Some(cut) => Box::new(OfCut::whole(opened, cut.get())),
                None => opened,
            }));
        }
        let parts = Child::all(built?);
        let place = self.outline.place(at);
        open_over(module, parts, options, budget.as_ref(), place)
            .map(Root::Other)
            .map_err(|e| unfit(spec, &e))
    }
}

impl Build<'_> {
    /// These bytes of a file or device that is open for several.
    fn share(&self, of: &VolumeSpec, claim: ByteClaim) -> Outcome<Root> {
        let (open, lacking) = self.commons;
        if let Some((_, failure)) = lacking.iter().find(|(disk, _)| disk.is_common_with(of)) {
            return Err(failure.clone());
        }
        let open = open.iter().find(|open| open.is_of(of)).expect("it was opened first");
        let is_read = claim.is_read || self.opening.read_only;
        open.share(ByteClaim { is_read, ..claim }, self.holder).map(Root::Other)
    }

    /// The same, of what is opened in another way.
    fn below<'b>(&'b mut self, opening: &'b Opening<'b>) -> Build<'b> {
        let Build { host, leaves, commons, taken, ports, returning, outline, cut, readers, .. } =
            self;
        let (commons, taken, cut, is_buffered) = (*commons, *taken, cut.clone(), self.is_buffered);
        let holder = self.holder;
        #[rustfmt::skip]
        let below = Build { host, opening, leaves, commons, holder, taken, ports, returning, outline, cut, readers, is_buffered };
        below
    }

    /// A key that does not fit is found out before anything below is written (rule 19): opening that for writing writes its labels, so that is opened to be
    /// read first. What else is wrong there is left to who opens it in earnest, who may have been told more.
    fn check_key(&mut self, spec: &VolumeSpec, by: &Opening<'_>) -> Outcome {
        let VolumeSpec::Over { children, key: Some(key), .. } = spec else { return Ok(()) };
        let (host, leaves, commons, taken) = (self.host, self.leaves, self.commons, self.taken);
        let reading = Opening { read_only: true, pool: None, growth: None, adopt: None, ..*by };
        let (mut ports, mut outline) = (Vec::new(), Outline::default());
        let (cut, is_buffered, opening) = (None, self.is_buffered, &reading);
        let holder = self.holder;
        let (ports, outline, readers) = (&mut ports, &mut outline, &mut Vec::new());
        let returning = &mut Returning::none(host);
        #[rustfmt::skip]
        let mut build = Build { host, opening, leaves, commons, holder, taken, ports, returning, outline, cut, readers, is_buffered };
        let Ok(below) = build.volume(&children[0]) else { return Ok(()) };
        let below = &mut [below.boxed()];
        let checked = check_key(host, key, &children[0], below, opening);
        // Nothing of it is left on its way, for the next one to find.
        come_to_rest(host, below, opening)?;
        checked
    }

    /// It can be had to grow while it is in use.
    fn can_grow(&self, spec: &VolumeSpec, desk: WholeDesk, is_read: bool) {
        if let (VolumeSpec::Over { node: Some(node), .. }, false) = (spec, is_read) {
            self.host.wholes().add(node.absolute(), desk);
        }
    }

    /// Parts of what is only read: not any more once somebody else has opened that for writing.
    fn watch(
        &mut self,
        spec: &VolumeSpec,
        parts: Vec<Outcome<Box<dyn Volume>>>,
    ) -> Vec<Outcome<Box<dyn Volume>>> {
        let (fence, pool) = (ReaderFence::default(), self.host.pool());
        self.readers.push((spec.to_string(), fence.clone()));
        let watched =
            |part| -> Box<dyn Volume> { Box::new(WatchedPart::new(part, fence.clone(), &pool)) };
        parts.into_iter().map(|part| part.map(watched)).collect()
    }

    /// Whoever writes may have dropped a leg, or be about to give a block to another volume (rule 26).
    fn refuse_held(&self, (spec, module): (&VolumeSpec, &Module), leaves: &[Leaf]) -> Outcome {
        let held = leaves.iter().find_map(|leaf| match leaf {
            Leaf::Remote(leaf) if leaf.is_held() => Some(leaf.uri()),
            _ => None,
        });
        let may_be = |leaf: &&Leaf| matches!(leaf, Leaf::Remote(leaf) if !leaf.tells_of_writers());
        let untold = leaves.iter().find(may_be).filter(|_| self.opening.read_only);
        if let (Some(Leaf::Remote(leaf)), true) =
            (untold, module.is_mirror() || module.has_volumes())
        {
            return Err(Failure::failed(format!(
                "cannot open {spec}: nobody tells here whether {} is being written by somebody else, and whoever reads beside a writer may read \
                 what is old: reach it by tw://, or read it where it is used",
                leaf.uri()
            )));
        }
        match held {
            Some(uri) => Err(Failure {
                kind: FailureKind::Busy,
                message: format!(
                    "cannot open {spec}: {uri} is held by a writer, or was when that one ended without order, and whoever reads beside \
                     it may read what is old: read it where it is used (an attachment, or the export of a gateway), or wait for its \
                     end; if that writer is gone for good, open it for writing with --take-over first"
                ),
            }),
            None => Ok(()),
        }
    }
}

/// The volume of an attachment, of all its members.
pub(super) fn of_network(leaf: &dyn NetworkLeaf, ports: &mut Vec<usize>) -> Outcome<Root> {
    let mut members = leaf.ports();
    ports.extend(members.iter().map(Port::number));
    if members.len() == 1 {
        return Ok(Root::Port(members.remove(0)));
    }
    let boxed = |port| Box::new(port) as Box<dyn Volume>;
    let dealt = Dealt::new(members.into_iter().map(boxed).collect());
    let dealt = dealt.map_err(|e| Failure::failed(format!("cannot attach {}: {e}", leaf.uri())))?;
    Ok(Root::Other(Box::new(dealt)))
}
