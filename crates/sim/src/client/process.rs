//! What runs on a client's machine: an initiator or, below a tree of volumes, several, and perhaps the
//! module that faces put on top.

use std::ops::{Deref, DerefMut};

use thinwire_buffer::{LinkInfo, Pool};
use thinwire_initiator::{
    AttachError, Initiator, InitiatorConfig, InitiatorReport, Phase, TargetName,
};
use thinwire_link::rng::Rng;
use thinwire_node::{Lane, Node, PartId};
use thinwire_proto::Time;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Unaligned, Volume};

use super::members::Members;
use crate::gateway::LANES;
use crate::stamp::SECTOR_BYTES;
use crate::transitions::{Change, States, Transitions};
use crate::tree::{TreeLeaf, TreeStore};

/// What users of an initiator see of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Top {
    /// The initiator itself: I/O is in its blocks.
    #[default]
    Blocks,
    /// Any range of sectors, however long, as through a face.
    AnyRange,
    /// That without the locks that it needs: what its test would find.
    AnyRangeUnlocked,
}

/// A node with an initiator, which it stands for, and how I/O reaches it. With a tree, one for each
/// leaf: it stands for the first, but for what is said here of all of them.
pub struct ClientProcess {
    pub(super) node: Node,
    pub(super) initiators: Vec<PartId<Initiator>>,
    /// The states of each when it was last looked at.
    states: Vec<States>,
    /// If it has several.
    pub(super) members: Option<Members>,
    tree: Option<TreeStore>,
    top: Top,
    /// The tree, once all of it is open.
    root: Option<Box<dyn Volume>>,
    /// What stands on it or on the initiator, if anything does, once that is open.
    module: Option<Unaligned<Box<dyn Volume>>>,
    /// What it is, if it is a tree that is open.
    shape: Option<(Identity, Geometry)>,
    pool: Pool,
}

impl ClientProcess {
    /// Begins to attach, and puts on top what is wanted.
    pub(super) fn new(
        now: u64,
        config: InitiatorConfig,
        links: Vec<LinkInfo>,
        (top, tree, members): (Top, Option<&TreeStore>, u8),
        pool: &Pool,
        seed: u64,
    ) -> Self {
        let mut process = ClientProcess {
            node: Node::new(links),
            initiators: Vec::new(),
            states: Vec::new(),
            members: None,
            tree: tree.cloned(),
            top,
            root: None,
            module: None,
            shape: None,
            pool: pool.clone(),
        };
        let Some(tree) = tree else {
            if members > 1 {
                process.members = Some(Members::new(members, &config, seed));
                process.add_member(now, 0);
                return process;
            }
            process.attach(now, config, &Lane::ALL, seed);
            return process;
        };
        let mut dice = Rng::new(seed);
        for (number, leaf) in tree.leaves.iter().enumerate() {
            let TreeLeaf::Remote { node, name, .. } = leaf else {
                unreachable!("a client has no disks")
            };
            let mut config = config.clone();
            config.target = TargetName::Node(node.clone());
            config.export = name.clone();
            // Another for each: a server takes two of one run for one that has come back.
            config.initiator[15] = number as u8;
            config.lane = LANES.start() | (dice.bits() as u32 & 0xffff << 8) | number as u32;
            let lane = Lane { sessions: config.lane..=config.lane, outside: true };
            process.attach(now, config, &lane, dice.bits());
        }
        process
    }

    pub(super) fn attach(&mut self, now: u64, config: InitiatorConfig, lane: &Lane, seed: u64) {
        let links: Vec<LinkInfo> = self.node.links().collect();
        let all = (0..links.len()).collect();
        let initiator = Initiator::new(Time(now), config, links, self.pool.clone(), seed);
        self.states.push(initiator.states());
        self.initiators.push(self.node.add(initiator, all, lane));
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Initiator> {
        self.initiators.iter().map(|&id| self.node.get(id).expect("it is never removed"))
    }

    /// Counts how the states of all have changed, and tells `changed` of each change.
    pub(super) fn observe(
        &mut self,
        transitions: &mut Transitions,
        mut changed: impl FnMut(Change),
    ) {
        for (&id, states) in self.initiators.iter().zip(&mut self.states) {
            let initiator = self.node.get(id).expect("it is never removed");
            transitions.observe(states, initiator.states(), &mut changed);
        }
    }

    pub(super) fn for_each(&mut self, mut act: impl FnMut(&mut Initiator)) {
        for &id in &self.initiators {
            act(self.node.get_mut(id).expect("it is never removed"));
        }
    }

    /// The node, for whoever drives it.
    pub(super) fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Puts together what stands on the initiators, once they are open.
    pub(super) fn build(&mut self) {
        if self.root.is_some() || self.module.is_some() || !self.is_open() || self.is_undone() {
            return;
        }
        if self.has_members() {
            let Some(root) = self.deal() else { return };
            self.shape = Some((root.identity(), root.geometry()));
            return self.put_on_top(root);
        }
        let ClientProcess { node, initiators, pool, .. } = self;
        let mut remote = |at: usize| -> Box<dyn Volume> { Box::new(node.port(initiators[at])) };
        let root = match &self.tree {
            Some(tree) => {
                let root = tree.open(0, 0, pool, &mut remote);
                self.shape = Some((root.identity(), root.geometry()));
                root
            }
            None if self.top == Top::Blocks => return,
            None => remote(0),
        };
        self.put_on_top(root);
    }

    fn put_on_top(&mut self, root: Box<dyn Volume>) {
        if self.top == Top::Blocks {
            self.root = Some(root);
            return;
        }
        let module = Unaligned::new(root, self.pool.clone());
        let is_locked = self.top == Top::AnyRange;
        self.module = Some(if is_locked { module } else { module.without_locks() });
    }

    fn volume(&mut self) -> &mut dyn Volume {
        self.build();
        match (&mut self.module, &mut self.root) {
            (Some(module), _) => module,
            (None, Some(root)) => root,
            (None, None) => self.node.volume(self.initiators[0]),
        }
    }

    /// Submits an I/O from the top.
    pub(super) fn submit(&mut self, io: Io) {
        self.volume().submit(io);
    }

    /// Completions at the top.
    pub(super) fn poll(&mut self, done: &mut Vec<Completion>) {
        // While some leaves or members are not open there is nothing to poll.
        if (self.tree.is_none() && !self.has_members()) || (self.is_open() && !self.is_undone()) {
            self.volume().poll(done);
            self.follow_tree();
        }
    }

    /// Takes in what has happened below the tree, as a face does: it may have grown.
    fn follow_tree(&mut self) {
        if self.shape.is_none() {
            return;
        }
        self.volume().poll_events(&mut Vec::new());
        let inner = self.module.as_ref().map(Unaligned::inner).or(self.root.as_ref());
        let geometry = inner.expect("it is open").geometry();
        self.shape = self.shape.map(|(identity, _)| (identity, geometry));
    }

    /// What stands on the initiators has I/Os below it.
    pub(super) fn is_settling(&self) -> bool {
        let module = self.module.as_ref().map(|module| module.inner().outstanding());
        let root = self.root.as_ref().map(|root| root.outstanding());
        module.or(root).is_some_and(|outstanding| outstanding > 0)
    }

    /// How large the volume is, as its user sees it.
    pub fn known_bytes(&self) -> u64 {
        self.module.as_ref().map_or_else(|| self.geometry().bytes, |module| module.geometry().bytes)
    }

    /// What is submitted is the initiator's before its turn ends: nothing is between that may keep it.
    pub(super) fn takes_in_at_once(&self) -> bool {
        self.top == Top::Blocks && self.tree.is_none() && !self.has_members()
    }

    /// See [`Top::AnyRange`].
    pub(super) fn takes_any_range(&self) -> bool {
        self.top != Top::Blocks
    }

    /// The sectors that I/O at the top has to be a multiple of, and those of the blocks below.
    pub(super) fn block_sectors(&self) -> (usize, usize) {
        let below = self.geometry().block_bytes as usize / SECTOR_BYTES;
        (if self.takes_any_range() { 1 } else { below }, below)
    }

    /// It stands on several.
    pub fn is_tree(&self) -> bool {
        self.tree.is_some()
    }

    /// All are open.
    pub fn is_open(&self) -> bool {
        self.is_complete() && self.each().all(Initiator::is_open)
    }

    /// What it is.
    pub fn geometry(&self) -> Geometry {
        self.shape.map_or_else(|| Volume::geometry(&**self), |(_, geometry)| geometry)
    }

    /// Which content.
    pub fn identity(&self) -> Identity {
        self.shape.map_or_else(|| Volume::identity(&**self), |(identity, _)| identity)
    }

    /// All have ended.
    pub fn is_closed(&self) -> bool {
        self.each().all(Initiator::is_closed)
    }

    /// Why one of them is dead.
    pub fn failure(&self) -> Option<ErrorKind> {
        let different = self.is_undone().then_some(ErrorKind::ContentChanged);
        self.each().find_map(Initiator::failure).or(different)
    }

    /// Why one of them could not be attached.
    pub fn first_error(&self) -> Option<&AttachError> {
        self.each().find_map(Initiator::first_error)
    }

    /// What one of them could not make durable.
    pub fn close_error(&self) -> Option<ErrorKind> {
        self.each().find_map(Initiator::close_error)
    }

    /// Begins the orderly end of all.
    pub fn close(&mut self) {
        if self.has_members() {
            return self.close_members();
        }
        self.for_each(Initiator::close);
    }

    /// Ends all at once.
    pub fn abort(&mut self) {
        self.for_each(Initiator::abort);
    }

    /// Where the one stands that is not attached, if there is one.
    pub fn phase(&self) -> Phase {
        let mut phases = self.each().map(Initiator::phase);
        let other = phases.find(|&phase| phase != Phase::Attached);
        other.unwrap_or(if self.is_complete() { Phase::Attached } else { Phase::Connecting })
    }

    /// Figures of all together. Each grant raises the generation, which is the sum of theirs; members have one.
    pub fn report(&self, now: Time) -> InitiatorReport {
        let mut reports = self.each().map(|initiator| initiator.report(now));
        let mut sum = reports.next().expect("there is one");
        for other in reports {
            sum.paths.extend(other.paths);
            sum.outstanding += other.outstanding;
            sum.retained_bytes = sum.retained_bytes.max(other.retained_bytes);
            sum.retained_entries = sum.retained_entries.max(other.retained_entries);
            sum.writer_generation += if self.has_members() { 0 } else { other.writer_generation };
            sum.stats.requests += other.stats.requests;
            sum.stats.replayed += other.stats.replayed;
            sum.stats.replay_failures += other.stats.replay_failures;
            sum.stats.sessions += other.stats.sessions;
            sum.stats.altered.here += other.stats.altered.here;
            sum.stats.altered.reads += other.stats.altered.reads;
            sum.stats.altered.failed += other.stats.altered.failed;
        }
        sum.phase = self.phase();
        sum
    }
}

impl Deref for ClientProcess {
    type Target = Initiator;

    fn deref(&self) -> &Initiator {
        self.node.get(self.initiators[0]).expect("it is never removed")
    }
}

impl DerefMut for ClientProcess {
    fn deref_mut(&mut self) -> &mut Initiator {
        self.node.get_mut(self.initiators[0]).expect("it is never removed")
    }
}
