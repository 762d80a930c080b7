//! What a server stands on that serves trees: its attachments to other servers, from the first attach,
//! before there is a target, to the last detach, when there is none any more.

use std::ops::RangeInclusive;

use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_link::rng::Rng;
use thinwire_node::{Lane, PartId};
use thinwire_proto::Time;
use thinwire_target::Target;
use thinwire_volume::{ErrorKind, Volume};

use crate::coverage::Coverage;
use crate::export::Export;
use crate::keys::{Holder, entropy};
use crate::medium::MediumHandle;
use crate::server::{Served, Server, ServerShard, harvest_drops};
use crate::tree::TreeLeaf;

/// Upper halves of the ids of the sessions of attachments.
pub(crate) const LANES: RangeInclusive<u32> = 1 << 31..=u32::MAX;
/// How long the orderly end of all attachments may take, as in the command, in ns.
const CLOSE_NS: u64 = 10_000_000_000;

/// Settings of a server's attachments to others.
#[derive(Clone, Debug)]
pub struct LeafSettings {
    /// All but who it is, and what it attaches.
    pub config: InitiatorConfig,
    /// Whoever holds a leaf is fenced.
    pub take_over: bool,
    /// Which key it has there, in a world with keys.
    pub holder: Option<Holder>,
}

impl Default for LeafSettings {
    fn default() -> Self {
        let mut config = InitiatorConfig::new(TargetName::Node(String::new()), "");
        config.insecure = true;
        // As the command has it.
        config.losses_are_heard = true;
        LeafSettings { config, take_over: false, holder: None }
    }
}

/// An attachment to a leaf of a tree.
pub(crate) struct LeafHand {
    /// The export, and its leaf.
    place: (usize, usize),
    initiator: PartId<Initiator>,
    /// It is written down that it has been granted.
    is_noted: bool,
}

/// An attachment to look at.
pub struct LeafView<'a> {
    /// The attachment.
    pub initiator: &'a Initiator,
    /// The leaf's number in its tree.
    pub leaf: usize,
}

impl LeafView<'_> {
    /// Adds the figures of one that ends.
    pub(crate) fn harvest(&self, coverage: &mut Coverage) {
        let stats = self.initiator.report(Time::ZERO).stats;
        coverage.leaf_replayed += stats.replayed;
        coverage.leaf_replay_failures += stats.replay_failures;
        coverage.leaves_fenced += u64::from(self.initiator.failure() == Some(ErrorKind::Fenced));
        harvest_drops(&stats.drops, coverage);
    }
}

/// Whether a server has what its exports stand on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeavesState {
    /// There is nothing to wait for.
    Fine,
    /// All is there: it can serve.
    Complete,
    /// Not all of it is there.
    Incomplete,
    /// This leaf cannot be had: the process ends.
    Refused(String),
}

impl Served {
    /// Has it written down of leaves that they have been granted.
    pub(crate) fn note_grants(&mut self, exports: &[Export]) {
        for hand in self.leaves.iter_mut().filter(|hand| !hand.is_noted) {
            let initiator = self.node.get(hand.initiator).expect("it is never removed");
            if initiator.is_open() {
                let (export, leaf) = hand.place;
                let grant = initiator.report(Time::ZERO).grant();
                let tree = exports[export].tree().expect("it is one");
                tree.memory.borrow_mut().notes.granted(leaf, grant);
                hand.is_noted = true;
            }
        }
    }

    /// The end of what is attached for a leaf of an export, for the target.
    pub(crate) fn port(&mut self, export: usize, leaf: usize) -> Box<dyn Volume> {
        let found = self.leaves.iter().find(|hand| hand.place == (export, leaf));
        let port = self.node.port(found.expect("it was attached").initiator);
        let target = self.target.expect("it is for the target");
        self.node.give_port(port.number(), target);
        Box::new(port)
    }
}

/// Who a server is at a leaf of its export with this number.
pub(crate) fn attached_as(export: usize, leaf: usize) -> [u8; 16] {
    let mut initiator = [0x80 | export as u8; 16];
    initiator[15] = leaf as u8;
    initiator
}

impl Server {
    /// Begins to attach what the trees of server `me` stand on.
    pub(crate) fn attach_leaves(
        &mut self,
        me: usize,
        exports: &[Export],
        now: Time,
        dice: &mut Rng,
    ) {
        let mine = || exports.iter().enumerate().filter(|(_, e)| e.server == me);
        let shards = self.serving(mine().count());
        for (nth, (number, export)) in mine().enumerate() {
            if let Some(tree) = export.tree() {
                tree.take_own(&self.pool);
            }
            let leaves = export.tree().into_iter().flat_map(|tree| tree.leaves.iter().enumerate());
            for (leaf, found) in leaves {
                let TreeLeaf::Remote { node: target, name, .. } = found else { continue };
                let LeafSettings { config, take_over, .. } = &self.leaf_settings;
                let mut config = config.clone();
                config.target = TargetName::Node(target.clone());
                config.export = name.clone();
                config.initiator = attached_as(number, leaf);
                config.name = format!("{} leaf {leaf}", self.config.node);
                config.instance = dice.bits();
                config.lane = LANES.start() | (dice.bits() as u32 & 0xffff << 8) | leaf as u32;
                config.take_over = *take_over;
                if let Some(key) = &mut config.key {
                    key.entropy = entropy(dice.bits());
                }
                let lane = Lane { sessions: config.lane..=config.lane, outside: true };
                // Frames of attachments are steered there: see `server.rs`.
                assert_eq!(nth % shards, 0, "a tree is on the first shard");
                let served = self.shards[0].served.as_mut().expect("it has just begun");
                let links = served.node.links().collect::<Vec<_>>();
                let all = (0..links.len()).collect();
                let pool = self.pool.clone();
                let initiator = Initiator::new(now, config, links, pool, dice.bits());
                let initiator = served.node.add(initiator, all, &lane);
                served.leaves.push(LeafHand { place: (number, leaf), initiator, is_noted: false });
            }
        }
    }

    /// Its attachments, while its process runs.
    pub fn leaves(&self) -> impl Iterator<Item = LeafView<'_>> {
        let served = self.shards.iter().filter_map(|shard| shard.served.as_ref());
        served.flat_map(|Served { node, leaves, .. }| {
            leaves.iter().map(|hand| LeafView {
                initiator: node.get(hand.initiator).expect("it is never removed"),
                leaf: hand.place.1,
            })
        })
    }

    /// Whether it can serve now, if it does not yet.
    pub fn look_at_leaves(&self) -> LeavesState {
        let waits = self.shards.iter().any(|shard| shard.runs() && shard.target().is_none());
        if !waits || self.stop_by.is_some() {
            return LeavesState::Fine;
        }
        if let Some(error) = self.leaves().find_map(|leaf| leaf.initiator.first_error()) {
            return LeavesState::Refused(error.to_string());
        }
        match self.leaves().all(|leaf| leaf.initiator.is_open()) {
            true => LeavesState::Complete,
            false => LeavesState::Incomplete,
        }
    }

    /// Lets go of the targets, then of what their exports stood on, in order. True when that is done, or
    /// has taken too long.
    pub(crate) fn has_left(&mut self, now: u64) -> bool {
        if self.leaves().next().is_some() && !self.is_leaving {
            self.is_leaving = true;
            self.shards.iter_mut().for_each(ServerShard::let_go);
            self.stop_by = Some(now + CLOSE_NS);
        }
        let is_over = self.stop_by.is_none_or(|by| by <= now);
        is_over || self.leaves().all(|leaf| leaf.initiator.is_closed())
    }
}

/// What has become of a server's exports since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// They are there as before.
    None,
    /// Some are not, of which somebody else has what they stand on.
    Some,
    /// None is left: the process ends, as the command does.
    All,
}

impl Server {
    /// Lets go at once of what fenced exports stand on, as the runtime does.
    pub(crate) fn let_go_of_fenced(&mut self, me: usize, exports: &mut [Export]) -> Fenced {
        let mut found = Fenced::None;
        for shard in &mut self.shards {
            while let Some(fenced) = shard.target_mut().and_then(Target::take_fenced) {
                found = Fenced::Some;
                // With it go its ports and its disks.
                drop(fenced.volume);
                let is_it = |e: &Export| e.server == me && e.name == fenced.opening.name;
                let number = exports.iter().position(is_it).expect("an export of this server");
                exports[number].upheavals += 1;
                exports[number].own_media().for_each(MediumHandle::kill);
                let Some(Served { node, leaves, .. }) = &mut shard.served else { continue };
                for hand in leaves.iter().filter(|hand| hand.place.0 == number) {
                    node.get_mut(hand.initiator).expect("it is never removed").abort();
                }
                shard.machine.dirty = true;
            }
        }
        let is_left = self.targets().any(|target| !target.exports().is_empty());
        if found != Fenced::None && !is_left { Fenced::All } else { found }
    }
}

impl ServerShard {
    fn let_go(&mut self) {
        let Some(Served { node, target, leaves, .. }) = &mut self.served else { return };
        if let Some(target) = target.take() {
            // With it go the volumes, and their ports.
            drop(node.remove(target));
        }
        for hand in leaves {
            node.get_mut(hand.initiator).expect("it is never removed").close();
        }
        self.machine.dirty = true;
    }
}
