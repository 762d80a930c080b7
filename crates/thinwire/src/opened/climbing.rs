//! [`Chain`]: a leg of a mirror that is modules of one part each, over one export of a target, or a disk of this machine; and [`Climb`], by which such a leg that is
//! back, or new, is made, from that leaf up to what the mirror stands on, a step at a time.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use thinwire_modules::Child;
use thinwire_modules::meta::{
    Assembly, BESIDE_TOKEN, Finding, Label, LabelError, LabelOutcome, Labels, SeenPart,
    WholeOpening,
};
use thinwire_modules::mirror::LEG_LABEL_TOKEN;
use thinwire_volume::{Token, Volume};

use super::outline::{Meters, Outline, working_whole};
use super::place::TreePlace;
use crate::budgets::{NodeBudget, open_over};
use crate::growth::WholeDesk;
use crate::host::Host;
use crate::labelled::{OnPart, OpenedWhole, begin_opening, build, examine};
use crate::pool::PoolName;
use crate::uri::{RemoteSpec, VolumeSpec};

/// Such a leg, as it is described.
pub(super) struct Chain {
    pub leaf: VolumeSpec,
    /// What goes to the leaf is counted where it was, which stands there in the outline.
    meters: Option<Meters>,
    node: usize,
    /// The modules over it, from the lowest on.
    levels: Vec<Level>,
}

struct Level {
    spec: VolumeSpec,
    meters: Option<Meters>,
    /// Where it stands in the outline.
    node: usize,
    /// What its part says it is a part of: nothing is written where another is (rule 16). None as long as it was not there.
    whole: Option<[u8; 16]>,
    /// Something above tells its users that writes are done which are in memory yet.
    is_buffered: bool,
    /// What it draws on, also when it is made anew.
    budget: Option<NodeBudget>,
    /// Where it is, for what tells of its I/Os.
    place: TreePlace,
}

impl Level {
    fn kind(&self) -> &'static str {
        match &self.spec {
            VolumeSpec::Over { module, .. } => module.name,
            _ => unreachable!("it is a module"),
        }
    }
}

/// A volume of the outline that is there again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Risen {
    /// Where it stands there.
    pub node: usize,
    /// Of one that works for itself.
    pub whole: Option<[u8; 16]>,
}

/// Why a leg cannot be made of what is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClimbError {
    /// It could not be read or written: that may pass.
    Failed(String),
    /// It does not fit its description, or cannot be gone by.
    Unfit(String),
    /// What stood there is not there any more (rule 16), but this.
    Other(String),
}

impl fmt::Display for ClimbError {
    /// A sentence whose subject is the leg.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClimbError::Failed(why) | ClimbError::Unfit(why) => f.write_str(why),
            ClimbError::Other(what) => write!(f, "what is there {what}"),
        }
    }
}

impl Chain {
    /// What it stands on, if it can be brought while its mirror is in use.
    pub fn leaf_of(spec: &VolumeSpec) -> Option<&VolumeSpec> {
        match spec {
            VolumeSpec::Remote(_) | VolumeSpec::Path(_) => Some(spec),
            VolumeSpec::Over { module, children, .. }
                if children.len() == 1
                    && !module.has_volumes()
                    && !module.is_mirror()
                    && spec.cut().is_none() =>
            {
                Self::leaf_of(&children[0])
            }
            _ => None,
        }
    }

    /// The leg that this describes, whose leaf is that one of the tree; none if it is anything else. `is_buffered`: something above it buffers writes.
    pub fn of(
        spec: &VolumeSpec,
        leaf: usize,
        outline: &Outline,
        is_buffered: bool,
    ) -> Option<Self> {
        Self::leaf_of(spec)?;
        let (mut levels, mut at, mut is_buffered) = (Vec::new(), spec, is_buffered);
        while let VolumeSpec::Over { children, .. } = at {
            levels.push((at.clone(), is_buffered));
            is_buffered |= at.buffers_writes();
            at = &children[0];
        }
        let bottom = outline.node_of_leaf(leaf)?;
        let level = |(above, (spec, is_buffered)): (usize, (VolumeSpec, bool))| {
            // Right above what it is made of.
            let node = bottom.checked_sub(above + 1)?;
            let (meters, whole) = (outline.meters(node), outline.labelled(node));
            let (budget, place) = (outline.budget(node), outline.place(node));
            Some(Level { spec, meters, node, whole, is_buffered, budget, place })
        };
        let levels = levels.into_iter().rev().enumerate().map(level).collect::<Option<_>>()?;
        let (leaf, meters, node) = (at.clone(), outline.meters(bottom), bottom);
        Some(Chain { leaf, meters, node, levels })
    }

    /// The export that it stands on; none if that is a disk of this machine.
    pub fn remote(&self) -> Option<&RemoteSpec> {
        match &self.leaf {
            VolumeSpec::Remote(remote) => Some(remote),
            _ => None,
        }
    }

    /// So many nodes stand before that one in the outline that did not.
    pub fn shift(&mut self, from: usize, by: usize) {
        let levels = self.levels.iter_mut().map(|level| &mut level.node);
        levels.chain([&mut self.node]).filter(|node| **node >= from).for_each(|node| *node += by);
    }

    /// Nothing of it is written.
    pub fn only_reads(&self) -> bool {
        self.levels.iter().any(|level| level.spec.only_reads())
    }
}

/// How far up a leg is.
pub(super) struct Climb {
    /// What there is, one volume, and how many levels of the leg that has.
    volume: Vec<Box<dyn Volume>>,
    at: usize,
    step: Step,
    /// What has been made.
    risen: Vec<Risen>,
}

enum Step {
    /// Labels are read: of the part that the next level stands on, or, on top, of the leg.
    Reading(Labels),
    /// The next level is opened for writing.
    Drawing(Box<(WholeOpening, Assembly, Option<OnPart>)>),
    /// Nothing is under way.
    Over,
}

/// A leg whose labels have been read.
pub(super) struct Climbed {
    pub volume: Box<dyn Volume>,
    pub labels: Labels,
    pub label: Label,
    pub risen: Vec<Risen>,
}

impl Climb {
    /// Begins with this leaf, which is granted: what its labels say from now on holds (rule 18).
    ///
    /// # Errors
    /// See [`ClimbError`].
    pub fn begin(host: &Host, chain: &Chain, leaf: Box<dyn Volume>) -> Result<Self, ClimbError> {
        let leaf = over(host, chain.meters.as_ref(), leaf);
        let risen = vec![Risen { node: chain.node, whole: None }];
        let mut climb = Climb { volume: vec![leaf], at: 0, step: Step::Over, risen };
        climb.rise(host, chain)?;
        Ok(climb)
    }

    /// Goes on, and never waits: the leg, once it is there.
    ///
    /// # Errors
    /// See [`ClimbError`]: it is to be let go of.
    pub fn turn(&mut self, host: &Host, chain: &mut Chain) -> Option<Result<Climbed, ClimbError>> {
        let now = host.shard().now();
        self.volume.iter_mut().filter(|volume| volume.is_timed()).for_each(|volume| {
            volume.turn(now);
        });
        loop {
            match std::mem::replace(&mut self.step, Step::Over) {
                Step::Over => return None,
                Step::Reading(mut labels) => {
                    let Some(LabelOutcome::Read(read)) = labels.turn(&mut *self.volume[0]) else {
                        self.step = Step::Reading(labels);
                        return None;
                    };
                    let seen = match known(read, &*self.volume[0]) {
                        Ok(seen) => seen,
                        Err(error) => return Some(Err(error)),
                    };
                    if self.at == chain.levels.len() {
                        return Some(self.finish(labels, seen));
                    }
                    if let Err(error) = self.examine(host, chain, labels, seen) {
                        return Some(Err(error));
                    }
                }
                Step::Drawing(mut drawing) => {
                    match drawing.0.turn(&mut self.volume) {
                        None => {
                            self.step = Step::Drawing(drawing);
                            return None;
                        }
                        Some(Err(error)) => {
                            let why =
                                format!("its labels could not be written: it {}", error.error);
                            return Some(Err(ClimbError::Failed(why)));
                        }
                        Some(Ok(())) => {}
                    }
                    let (opening, mut whole, on_part) = *drawing;
                    (whole.opening, whole.openings) = opening.drawn();
                    let written = opening.into_labels();
                    if let Err(error) = self.put_on(host, chain, (whole, on_part, written)) {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    /// The next level may stand there, by what the label says: it is opened for writing, if it can be written.
    fn examine(
        &mut self,
        host: &Host,
        chain: &mut Chain,
        labels: Labels,
        seen: SeenPart,
    ) -> Result<(), ClimbError> {
        let level = &mut chain.levels[self.at];
        let VolumeSpec::Over { module, options, children, key, .. } = &level.spec else {
            unreachable!("it is a module")
        };
        let Some(label) = label_of(&seen) else { unreachable!("it has a label") };
        if level.whole.is_some_and(|whole| whole != label.whole) {
            return Err(ClimbError::Other(format!(
                "is a part of another volume than it was: of {:?}",
                label.name
            )));
        }
        let described = (*module, options, key.as_deref());
        let seen = [seen];
        let known = host.known_keys();
        let (whole, on_part) =
            examine(described, children, &self.volume, &seen, (false, Some(&known)))
                .map_err(|failure| ClimbError::Unfit(failure.message))?;
        level.whole = Some(whole.uuid);
        if self.volume[0].geometry().features.read_only {
            return self.put_on(host, chain, (whole, on_part, Vec::new()));
        }
        let parts = vec![(labels, label)];
        let opening = begin_opening(&whole, (None, None), parts, &mut self.volume);
        self.step = Step::Drawing(Box::new((opening, whole, on_part)));
        Ok(())
    }

    /// The next level stands there, and the climb goes on.
    fn put_on(&mut self, host: &Host, chain: &Chain, whole: OpenedWhole) -> Result<(), ClimbError> {
        let level = &chain.levels[self.at];
        let VolumeSpec::Over { module, options, children, key, node, .. } = &level.spec else {
            unreachable!("it is a module")
        };
        let described = (*module, options, key.as_deref());
        let is_written = !whole.2.is_empty();
        let cuts = PoolName::of_cuts(&level.spec).map(|name| (name, level.is_buffered));
        let below = std::mem::take(&mut self.volume);
        let below = (below, cuts.filter(|_| is_written), level.budget.clone());
        let (volume, growth) = build(host, described, children, below, (whole, !is_written))
            .map_err(|failure| ClimbError::Unfit(failure.message))?;
        if let (Some(growth), Some(node)) = (growth, node) {
            let desk = WholeDesk::Whole(Rc::new(RefCell::new(growth)));
            host.wholes().add(node.absolute(), desk);
        }
        self.stand_on(host, level, volume);
        self.rise(host, chain)
    }

    /// Puts on what has no labels, and begins to read those that come then.
    fn rise(&mut self, host: &Host, chain: &Chain) -> Result<(), ClimbError> {
        while let Some(level) = chain.levels.get(self.at) {
            let VolumeSpec::Over { module, options, labels: false, .. } = &level.spec else {
                return self.read(host, BESIDE_TOKEN);
            };
            let parts = Child::all(std::mem::take(&mut self.volume));
            let (budget, place) = (level.budget.as_ref(), level.place.clone());
            let volume = open_over(module, parts, options, budget, place)
                .map_err(|error| ClimbError::Unfit(error.to_string()))?;
            self.stand_on(host, level, volume);
        }
        self.read(host, LEG_LABEL_TOKEN)
    }

    fn stand_on(&mut self, host: &Host, level: &Level, mut volume: Box<dyn Volume>) {
        let whole = working_whole(level.kind(), &mut *volume);
        self.risen.push(Risen { node: level.node, whole });
        self.volume = vec![over(host, level.meters.as_ref(), volume)];
        self.at += 1;
    }

    fn read(&mut self, host: &Host, token: Token) -> Result<(), ClimbError> {
        let mut labels = Labels::new(token, &host.pool());
        labels.read(&mut *self.volume[0]).map_err(not_known)?;
        self.step = Step::Reading(labels);
        Ok(())
    }

    fn finish(&mut self, labels: Labels, seen: SeenPart) -> Result<Climbed, ClimbError> {
        let Some(label) = label_of(&seen) else { unreachable!("it has a label") };
        let volume = self.volume.remove(0);
        Ok(Climbed { volume, labels, label, risen: std::mem::take(&mut self.risen) })
    }
}

fn over(host: &Host, meters: Option<&Meters>, volume: Box<dyn Volume>) -> Box<dyn Volume> {
    match meters {
        Some(meters) => meters.over(host, volume),
        None => volume,
    }
}

fn label_of(seen: &SeenPart) -> Option<Label> {
    match &seen.found {
        Ok(Finding::Label(found)) => Some(found.label.clone()),
        _ => None,
    }
}

/// What was read, if it is a label of what it stands on (rule 16).
fn known(read: Result<Finding, LabelError>, volume: &dyn Volume) -> Result<SeenPart, ClimbError> {
    let content = volume.identity();
    match &read {
        Ok(Finding::Label(found)) if found.label.content != content => {
            Err(ClimbError::Other(format!(
                "has a label of part {} of {:?} that was written on something else: it is a copy, or was made anew",
                found.label.role, found.label.name
            )))
        }
        Ok(Finding::Blank) => Err(ClimbError::Other("has no label".into())),
        Ok(Finding::Label(_)) => Ok(SeenPart { found: read, content }),
        Err(error) => Err(not_known(error.clone())),
    }
}

fn not_known(error: LabelError) -> ClimbError {
    let why = error.to_string();
    match error {
        LabelError::Unread(_) => ClimbError::Failed(format!("it {why}")),
        LabelError::Foreign(_) => ClimbError::Other(why),
        _ => ClimbError::Unfit(format!("it {why}")),
    }
}

#[cfg(test)]
mod tests;
