//! [`TreeChange`]: what happens to trees as one, or not at all; nodes that may be changed, and those that have to be copied first.

use super::cache::{Slot, Standing};
use super::counts::{Delta, Of};
use super::look::Bounds;
use super::node::{HEAD_BYTES, NODE_BYTES, Node};
use super::{
    LEVEL_MAX, NodeFault, TreeCanary, TreeFault, TreeKind, TreePointer, TreeRefers, TreeSpace,
    TreeStop, Trees,
};

/// So many nodes one change takes at most, but for shared ones that it copies the children of.
const CHANGE_NODES: u64 = 4 * (LEVEL_MAX as u64 + 1);

/// Most rows of a leaf whose values refer to something.
const LEAF_ROWS_MAX: usize = (NODE_BYTES - HEAD_BYTES) / 16;

/// How to take back a step of a change.
pub(super) enum Undo {
    /// The node was like that before, or not in memory.
    Node {
        address: u64,
        before: Option<Slot>,
    },
    Count {
        of: Of,
        at: u64,
        before: Option<Delta>,
    },
    Held {
        of: Of,
        at: u64,
    },
    Taken {
        of: Of,
        at: u64,
    },
    /// It was reserved.
    Reserved {
        block: u64,
    },
}

/// What is small enough to be kept as a whole.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    pub spaces: [(TreeSpace, u64, bool); 2],
    doomed: TreePointer,
    /// The transaction had changes already.
    has_counts: bool,
}

/// What a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Taking,
    /// Likewise, of what room is kept for ([`Trees::keep_nodes`]).
    TakingKept,
    GivingBack,
    /// Likewise, by whoever nobody waits for.
    Background,
}

/// Changes of trees that are all made, by [`TreeChange::apply`], or none: whatever stops one of its steps, or if it is dropped.
/// What it reads are the trees with its own changes. See [`Trees::change`].
pub struct TreeChange<'a> {
    pub(super) trees: &'a mut Trees,
}

impl TreeChange<'_> {
    /// All was done: the next commit has it.
    ///
    /// # Errors
    /// Nothing of it was done, because the commit would not find room for what it adds to the maps: [`TreeStop::Commit`], or
    /// [`TreeStop::NoNodes`] if none before it makes more room.
    pub fn apply(self) -> Result<(), TreeStop> {
        self.trees.check_reserve()?;
        self.trees.forget_undo();
        Ok(())
    }

    /// As [`TreeChange::apply`], for what a commit does with what is reserved for it.
    pub(super) fn settle(self) {
        self.trees.forget_undo();
    }
}

impl Drop for TreeChange<'_> {
    fn drop(&mut self) {
        self.trees.take_back();
    }
}

impl Trees {
    /// So many free nodes the commit may take for the maps, whatever is in them, if so many counts of nodes and of blocks change:
    /// each node of a map at most once, and those that become two.
    fn nodes_to_settle(&self, [of_nodes, of_blocks]: [u64; 2]) -> u64 {
        let [map_of_nodes, map_of_blocks] =
            [&self.nodes, &self.blocks].map(|space| space.state.map_nodes);
        if self.canary == TreeCanary::KeepsTooLittle {
            return map_of_nodes + of_blocks.min(map_of_blocks) + of_blocks / 16 + 16;
        }
        // A count has a row, and another one if it is high, each below nodes of its own.
        let moved = map_of_nodes + (4 * of_blocks).min(map_of_blocks);
        let split = of_nodes.min(map_of_nodes) + of_blocks.min(map_of_blocks);
        moved + split + (of_nodes + of_blocks) / 16 + 16
    }

    /// Counts that change by now, and so many more.
    fn counts_with(&self, more: u64) -> [u64; 2] {
        [&self.nodes, &self.blocks].map(|space| space.deltas.len() as u64 + more)
    }

    /// So many nodes are kept for commits and for what gives back, if so many counts change.
    fn nodes_kept(&self, counts: [u64; 2]) -> u64 {
        4 * (self.nodes_to_settle(counts) + 2 * CHANGE_NODES)
    }

    /// So many nodes are kept for commits and for what gives back: of the others changes take.
    pub fn reserved(&self) -> u64 {
        let kept = self.nodes_kept([self.counts_of_change(); 2]) + self.kept_nodes;
        kept.min(self.nodes.state.total)
    }

    /// So many counts one change of a user's changes: what leaves refer to that are copied, or given back.
    fn counts_of_change(&self) -> u64 {
        match self.canary {
            TreeCanary::KeepsTooLittle => 0,
            _ => 2 * self.rows_max(LEAF_ROWS_MAX) as u64,
        }
    }

    /// Whether the commit finds room for all that was changed.
    fn check_reserve(&self) -> Result<(), TreeStop> {
        if self.nodes.free() >= self.nodes_to_settle(self.counts_with(0))
            || self.canary == TreeCanary::KeepsTooLittle
        {
            return Ok(());
        }
        let Before { spaces: [(.., gave_back), _], has_counts, .. } = self.before;
        let comes = gave_back || has_counts || !self.nodes.held.is_empty();
        Err(if comes { TreeStop::Commit } else { TreeStop::NoNodes })
    }

    /// Whether there is room for a change: in memory, and on the part.
    pub(super) fn check_room(&mut self, purpose: Purpose) -> Result<(), TreeStop> {
        if let Some(failed) = &self.failed {
            return Err(TreeStop::Fault(failed.clone()));
        }
        if self.is_settling() {
            return Err(TreeStop::Wait);
        }
        let deltas = self.nodes.deltas.len() + self.blocks.deltas.len();
        let share = if purpose == Purpose::Background { 2 } else { 1 };
        let is_full = self.cache.count(Standing::Open) >= self.config.open_nodes_max / share
            || deltas >= self.config.counts_max / share;
        if is_full {
            return Err(TreeStop::Commit);
        }
        // What is free by the newest label is that of an older one, until another is written.
        if self.has_older {
            return Err(TreeStop::Commit);
        }
        // Whoever gives back has to have room for three commits, since what the first one frees is there only for the fourth.
        let kept = match purpose {
            Purpose::GivingBack | Purpose::Background => {
                self.nodes_to_settle(self.counts_with(0)) + CHANGE_NODES
            }
            Purpose::Taking => {
                self.nodes_kept(self.counts_with(self.counts_of_change())) + self.kept_nodes
            }
            Purpose::TakingKept => self.nodes_kept(self.counts_with(self.counts_of_change())),
        };
        if self.nodes.free() < kept {
            let comes = self.nodes.gives_back || !self.nodes.held.is_empty();
            return Err(if comes { TreeStop::Commit } else { TreeStop::NoNodes });
        }
        Ok(())
    }

    pub(super) fn begin_change(&mut self) {
        debug_assert!(self.undo.is_empty());
        self.change += 1;
        let of = |space: &super::counts::Space| (space.state, space.fresh, space.gives_back);
        let has_counts = !(self.nodes.deltas.is_empty() && self.blocks.deltas.is_empty());
        let spaces = [of(&self.nodes), of(&self.blocks)];
        self.before = Before { spaces, doomed: self.doomed, has_counts };
    }

    pub(super) fn forget_undo(&mut self) {
        for undo in self.undo.drain(..) {
            if let Undo::Node { before: Some(slot), .. } = undo {
                self.cache.give_back(slot.node);
            }
        }
    }

    /// Takes back what was not applied.
    pub(super) fn take_back(&mut self) {
        if self.undo.is_empty() {
            return;
        }
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Node { address, before } => {
                    let now = self.cache.take(address);
                    if let Some(now) = now {
                        self.cache.give_back(now.node);
                    }
                    if let Some(before) = before {
                        self.cache.put(address, before);
                    }
                }
                Undo::Count { of, at, before } => {
                    let deltas = &mut self.space(of).deltas;
                    match before {
                        Some(before) => _ = deltas.insert(at, before),
                        None => _ = deltas.remove(&at),
                    }
                }
                Undo::Held { of, at } => {
                    self.space(of).held.remove(&at);
                    self.space(of).freed.pop();
                }
                Undo::Taken { of, at } => _ = self.space(of).taken.remove(&at),
                Undo::Reserved { block } => _ = self.blocks.held.insert(block),
            }
        }
        let Before { spaces: [nodes, blocks], doomed, .. } = self.before;
        for (of, before) in [(Of::Nodes, nodes), (Of::Blocks, blocks)] {
            let space = self.space(of);
            (space.state, space.fresh, space.gives_back) = before;
        }
        self.doomed = doomed;
    }

    /// A node of the open transaction, to be changed. What it was before is kept.
    pub(super) fn edit(&mut self, address: u64) -> &mut Node {
        let change = self.change;
        let memory = self.cache.memory();
        let slot = self.cache.get_mut(address).expect("it was fetched");
        if slot.saved == change {
            self.cache.give_back(memory);
        } else {
            let mut copy = memory;
            copy.copy_from(&slot.node);
            let before = Slot::new(copy, slot.standing, slot.saved);
            slot.saved = change;
            self.undo.push(Undo::Node { address, before: Some(before) });
        }
        &mut self.cache.get_mut(address).expect("it was there").node
    }

    /// Memory for a node of the open transaction, under a free address; with anything in it.
    fn take_node(&mut self, kind: &TreeKind) -> Result<TreePointer, TreeStop> {
        let node = self.take_free(Of::Nodes)?;
        if let Some(of) = map_of(kind) {
            self.space(of).state.map_nodes += 1;
        }
        let slot = Slot::new(self.cache.memory(), Standing::Open, self.change);
        let before = self.cache.put(node, slot);
        // What is left there of an earlier node is nothing to come back to.
        self.undo.push(Undo::Node { address: node, before: None });
        if let Some(before) = before {
            self.cache.give_back(before.node);
        }
        Ok(TreePointer { node, generation: self.generation })
    }

    /// A new node without rows, of which somebody is about to hold the one reference.
    pub(super) fn new_node(&mut self, kind: &TreeKind, level: u8) -> Result<TreePointer, TreeStop> {
        if level > LEVEL_MAX {
            return Err(TreeFault::node(kind.name, 0, NodeFault::Deep).into());
        }
        let at = self.take_node(kind)?;
        let node = Node::new(self.place(at.node), at, level, kind.number, kind.value_bytes);
        self.cache.get_mut(at.node).expect("it was taken").node.copy_from(&node);
        Ok(at)
    }

    /// Nothing refers to the node any more, which was [owned](Trees::own), and to what it refers something else does.
    pub(super) fn free_node(&mut self, kind: &TreeKind, at: TreePointer) -> Result<(), TreeStop> {
        self.add(Of::Nodes, at.node, -1)?;
        if let Some(of) = map_of(kind) {
            let space = self.space(of);
            space.state.map_nodes = space.state.map_nodes.saturating_sub(1);
        }
        // Of a node that was never written nothing is to be written any more.
        if at.generation == self.generation {
            let before = self.cache.take(at.node);
            self.undo.push(Undo::Node { address: at.node, before });
        }
        Ok(())
    }

    /// The node, which was fetched, as one that can be changed; whoever refers to it has to refer to that one from then on. If
    /// others hold it, too, it is copied, and what it refers to has one more reference; else it is moved, because
    /// what a commit has written stays until the next one is durable.
    pub(super) fn own(
        &mut self,
        kind: &TreeKind,
        at: TreePointer,
    ) -> Result<TreePointer, TreeStop> {
        let count = if kind.is_own() { 1 } else { self.count(Of::Nodes, at.node)? };
        if count == 0 {
            let fault = NodeFault::Count { says: 0 };
            return Err(TreeFault::node(kind.name, at.node, fault).into());
        }
        let is_shared = count > 1;
        let in_place = is_shared && self.canary == TreeCanary::SharedInPlace;
        if at.generation == self.generation && !is_shared || in_place {
            self.edit(at.node);
            self.cache.stand(at.node, Standing::Open);
            return Ok(at);
        }
        let new = self.take_node(kind)?;
        if new.node == at.node {
            // Of the engine's own trees counts are not looked up: this one says that it is free.
            let fault = NodeFault::Count { says: 0 };
            return Err(TreeFault::node(kind.name, at.node, fault).into());
        }
        let mut copy = self.cache.memory();
        copy.copy_from(&self.cache.get(at.node).expect("it was fetched").node);
        copy.rename(new);
        if is_shared && self.canary != TreeCanary::ForgetsAtCopy {
            for row in 0..copy.rows() {
                self.hold(refers(kind, at.node, &copy, row)?)?;
            }
        }
        let slot = self.cache.get_mut(new.node).expect("it was taken");
        let memory = std::mem::replace(&mut slot.node, copy);
        self.cache.give_back(memory);
        self.add(Of::Nodes, at.node, -1)?;
        if let Some(of) = map_of(kind) {
            let space = self.space(of);
            space.state.map_nodes = space.state.map_nodes.saturating_sub(1);
        }
        Ok(new)
    }

    /// The node below that row of one that is owned, as one that is owned, too; and what may stand there.
    pub(super) fn own_below(
        &mut self,
        kind: &TreeKind,
        parent: u64,
        row: usize,
        bounds: Bounds,
    ) -> Result<(TreePointer, Bounds), TreeStop> {
        let node = &self.cache.get(parent).expect("it is owned").node;
        let (at, level) = (node.pointer(row), node.level() - 1);
        let bounds = bounds.of_row(node, row);
        self.fetch(kind, at, Some(level), bounds)?;
        let owned = self.own(kind, at)?;
        if owned != at {
            self.edit(parent).set_value(row, &owned.to_bytes());
        }
        Ok((owned, bounds))
    }

    /// One more refers to that.
    pub(super) fn hold(&mut self, refers: TreeRefers) -> Result<(), TreeStop> {
        match refers {
            TreeRefers::Nothing => Ok(()),
            TreeRefers::Block(block) => self.add(Of::Blocks, block, 1),
            TreeRefers::Tree { root, .. } if root.is_none() => Ok(()),
            TreeRefers::Tree { root, .. } => self.add(Of::Nodes, root.node, 1),
        }
    }
}

/// What a row of a node refers to.
pub(super) fn refers(
    kind: &TreeKind,
    address: u64,
    node: &Node,
    row: usize,
) -> Result<TreeRefers, TreeFault> {
    if node.level() > 0 {
        return Ok(TreeRefers::Tree { kind: kind.number, root: node.pointer(row) });
    }
    let fault = || TreeFault::node(kind.name, address, NodeFault::Value { row });
    (kind.refers)(node.value(row)).ok_or_else(fault)
}

/// What a tree is the map of, if it is one.
pub(super) fn map_of(kind: &TreeKind) -> Option<Of> {
    [Of::Nodes, Of::Blocks].into_iter().find(|of| of.map().number == kind.number)
}
