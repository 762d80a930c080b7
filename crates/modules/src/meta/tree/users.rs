//! What a user does with trees: lookups, and the steps of a change.

use std::ops::RangeInclusive;

use super::change::Purpose;
use super::counts::{Of, Space};
use super::*;

fn take<V: TreeValue>(kind: &TreeKind, at: (u64, usize), bytes: &[u8]) -> Result<V, TreeStop> {
    let (node, row) = at;
    let fault = || TreeFault::node(kind.name, node, NodeFault::Value { row }).into();
    V::take(bytes).ok_or_else(fault)
}

impl Trees {
    /// The last commit that is durable.
    pub fn committed(&self) -> &TreeState {
        &self.committed
    }

    /// Why a commit has failed, if one has.
    pub fn failed(&self) -> Option<&TreeFault> {
        self.failed.as_ref()
    }

    /// Nodes, and blocks, that can be given out by now.
    pub fn free(&self) -> [u64; 2] {
        // Node 0 is never used.
        [self.nodes.free().saturating_sub(1), self.blocks.free()]
    }

    /// Nodes, and blocks, that there are by now.
    pub fn total(&self) -> [u64; 2] {
        [self.nodes.state.total, self.blocks.state.total]
    }

    /// The value of that key, if there is one. Allocates nothing if the nodes are in memory.
    ///
    /// # Errors
    /// [`TreeStop::Wait`], or a damaged node.
    pub fn lookup<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        key: u64,
    ) -> Result<Option<V>, TreeStop> {
        let mut value = [0; VALUE_BYTES_MAX];
        let value = &mut value[..V::BYTES];
        match self.find(tree.kind, tree.at, key, value)? {
            Some(at) => take(tree.kind, at, value).map(Some),
            None => Ok(None),
        }
    }

    /// Appends keys of that range and their values, in order: those that stand in one leaf, so less than 256, and maybe none. Says
    /// from which key on to go on, if there may be more.
    ///
    /// # Errors
    /// As [`Trees::lookup`]; then nothing was appended.
    pub fn rows<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        keys: RangeInclusive<u64>,
        rows: &mut Vec<(u64, V)>,
    ) -> Result<Option<u64>, TreeStop> {
        let (before, to) = (rows.len(), *keys.end());
        if keys.is_empty() {
            return Ok(None);
        }
        let mut wrong = None;
        let next = self.leaf(tree.kind, tree.at, *keys.start(), &mut |key, bytes| {
            if key > to {
                return;
            }
            match V::take(bytes) {
                Some(value) => rows.push((key, value)),
                None => _ = wrong.get_or_insert(rows.len() - before),
            }
        })?;
        if let Some(row) = wrong {
            rows.truncate(before);
            let fault = NodeFault::Value { row };
            return Err(TreeFault::node(tree.kind.name, tree.at.node, fault).into());
        }
        Ok(next.filter(|next| *next <= to))
    }

    /// As [`Trees::rows`], but only of leaves that no other tree has, too: those of shared ones are left out.
    ///
    /// # Errors
    /// As [`Trees::rows`].
    pub fn own_rows<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        keys: RangeInclusive<u64>,
        rows: &mut Vec<(u64, V)>,
    ) -> Result<Option<u64>, TreeStop> {
        match self.shared_end(tree.kind, tree.at, *keys.start())? {
            None => self.rows(tree, keys, rows),
            Some(last) => Ok(last.checked_add(1).filter(|next| next <= keys.end())),
        }
    }

    /// How many values refer to a block.
    ///
    /// # Errors
    /// As [`Trees::lookup`].
    pub fn block_count(&mut self, block: u64) -> Result<u64, TreeStop> {
        self.count(Of::Blocks, block)
    }

    /// The label that the next commit writes, but for its state and generation: for what else changes, as sizes do.
    pub fn label_mut(&mut self) -> &mut Label {
        &mut self.label
    }

    /// Lends the labels, and the newest, to somebody who writes others that have the same state; no commit begins before they [are back](Trees::take_labels_back). None
    /// while one is under way, or once one has failed.
    pub fn lend_labels(&mut self) -> Option<(Labels, Label)> {
        if !matches!(self.phase, Phase::Idle) || self.failed.is_some() || self.are_lent {
            return None;
        }
        self.are_lent = true;
        // Nothing is written by these.
        let none = Labels::new(Token::MAX, &self.config.pool);
        Some((std::mem::replace(&mut self.labels, none), self.label.clone()))
    }

    /// They are back, with the newest.
    pub fn take_labels_back(&mut self, labels: Labels, label: Label) {
        (self.labels, self.label, self.are_lent) = (labels, label, false);
    }

    /// There are so many nodes and blocks from now on; durably, with all that is put there, from the next commit on. The part has room for
    /// them already, which its [label](Trees::label_mut) has to say with that commit.
    ///
    /// # Errors
    /// [`TreeStop::Wait`] while counts go into the maps.
    ///
    /// # Panics
    /// If there were more.
    pub fn grow(&mut self, nodes: u64, blocks: u64) -> Result<(), TreeStop> {
        if self.is_settling() {
            return Err(TreeStop::Wait);
        }
        for (of, total) in [(Of::Nodes, nodes), (Of::Blocks, blocks)] {
            let state = &mut self.space(of).state;
            assert!((state.total..=state::SPACE_MAX).contains(&total), "it only grows");
            state.total = total;
        }
        self.nodes_total = nodes;
        Ok(())
    }

    /// So many nodes of deleted trees could not be read, and are passed over until [`Trees::try_all_doomed`].
    pub fn passed_over(&self) -> usize {
        self.passed_over.len()
    }

    /// What could not be read of deleted trees is tried again.
    pub fn try_all_doomed(&mut self) {
        self.passed_over.clear();
    }

    /// There are deleted trees to be given back ([`TreeChange::reap`]), beside what is passed over.
    ///
    /// # Errors
    /// As [`Trees::lookup`].
    pub fn has_doomed(&mut self) -> Result<bool, TreeStop> {
        self.first_doomed().map(|first| first.is_some())
    }

    /// Appends the blocks that durable commits have freed, each of them with another one behind it, since the last call, if the configuration says so. They are not
    /// given out before [`Trees::give_out`] says that they may be.
    pub fn take_freed(&mut self, blocks: &mut Vec<u64>) {
        blocks.append(&mut self.given_back);
    }

    /// So many nodes are kept from now on, beside those for commits and for what gives back: changes that take some leave them to
    /// [`Trees::reserve_block_of_kept`], and what the caller does with the block.
    pub fn keep_nodes(&mut self, nodes: u64) {
        self.kept_nodes = nodes;
    }

    /// Blocks are given back that cannot be given out before the next commits.
    pub fn has_blocks_to_come(&self) -> bool {
        let Space { gives_back, freed, kept, .. } = &self.blocks;
        *gives_back || !freed.is_empty() || !kept.is_empty()
    }

    /// A block that is given to nobody else, until a change [takes it](TreeChange::take_reserved), or [`Trees::give_out`] makes it
    /// free again. So its data can be written before anything refers to it, whatever is committed meanwhile; nothing is left of
    /// that after a crash.
    ///
    /// # Errors
    /// As [`TreeChange::take_block`].
    pub fn reserve_block(&mut self) -> Result<u64, TreeStop> {
        self.reserve_block_for(Purpose::Taking)
    }

    /// The same, with [what is kept](Trees::keep_nodes).
    ///
    /// # Errors
    /// As [`Trees::reserve_block`].
    pub fn reserve_block_of_kept(&mut self) -> Result<u64, TreeStop> {
        self.reserve_block_for(Purpose::TakingKept)
    }

    fn reserve_block_for(&mut self, purpose: Purpose) -> Result<u64, TreeStop> {
        self.check_room(purpose)?;
        self.begin_change();
        let taken = TreeChange { trees: self }.take_block();
        let block = taken?;
        self.blocks.held.insert(block);
        Ok(block)
    }

    /// A block that was [handed out as freed](Trees::take_freed), or [reserved](Trees::reserve_block), may be used again.
    pub fn give_out(&mut self, block: u64) {
        self.blocks.held.remove(&block);
    }
}

impl TreeChange<'_> {
    /// As [`Trees::lookup`], with what this change has done.
    ///
    /// # Errors
    /// As there.
    pub fn lookup<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        key: u64,
    ) -> Result<Option<V>, TreeStop> {
        self.trees.lookup(tree, key)
    }

    /// As [`Trees::rows`], likewise.
    ///
    /// # Errors
    /// As there.
    pub fn rows<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        keys: RangeInclusive<u64>,
        rows: &mut Vec<(u64, V)>,
    ) -> Result<Option<u64>, TreeStop> {
        self.trees.rows(tree, keys, rows)
    }

    /// As [`Trees::block_count`], likewise.
    ///
    /// # Errors
    /// As there.
    pub fn block_count(&mut self, block: u64) -> Result<u64, TreeStop> {
        self.trees.block_count(block)
    }

    /// Puts a value there, with one reference of what it refers to, which the caller holds; the tree from then on, and the value that was
    /// there before, whose reference the caller holds from then on.
    ///
    /// # Errors
    /// See [`TreeStop`]; the change is to be dropped, here and below.
    pub fn insert<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        key: u64,
        value: &V,
    ) -> Result<(TreeRoot<V>, Option<V>), TreeStop> {
        let mut bytes = [0; VALUE_BYTES_MAX];
        value.put(&mut bytes[..V::BYTES]);
        let (at, before) = self.trees.insert_bytes(tree.kind, tree.at, key, &bytes[..V::BYTES])?;
        let before = before.map(|before| take(tree.kind, (at.node, 0), &before[..V::BYTES]));
        Ok((tree.at(at), before.transpose()?))
    }

    /// Takes a key out: the tree from then on, and the value that was there, whose reference the caller holds from then on.
    ///
    /// # Errors
    /// See [`TreeStop`].
    pub fn remove<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        key: u64,
    ) -> Result<(TreeRoot<V>, Option<V>), TreeStop> {
        let (at, before) = self.trees.remove_bytes(tree.kind, tree.at, key)?;
        let before = before.map(|before| take(tree.kind, (at.node, 0), &before[..V::BYTES]));
        Ok((tree.at(at), before.transpose()?))
    }

    /// Takes keys of that range out, the lowest first, as many as stand in one leaf, and gives back what their values refer to: the tree
    /// from then on, and from which key on to go on, if there may be more.
    ///
    /// # Errors
    /// See [`TreeStop`].
    pub fn remove_range<V: TreeValue>(
        &mut self,
        tree: TreeRoot<V>,
        keys: RangeInclusive<u64>,
    ) -> Result<(TreeRoot<V>, Option<u64>), TreeStop> {
        if keys.is_empty() {
            return Ok((tree, None));
        }
        let (low, high) = keys.into_inner();
        let (at, next) = self.trees.remove_leaf(tree.kind, tree.at, low, high)?;
        Ok((tree.at(at), next))
    }

    /// Another tree of the same content: the same root, held twice. What is changed in one of them from then on is not in the other.
    /// Takes the same time whatever the size.
    ///
    /// # Errors
    /// See [`TreeStop`].
    pub fn share<V: TreeValue>(&mut self, tree: TreeRoot<V>) -> Result<TreeRoot<V>, TreeStop> {
        let root = TreeRefers::Tree { kind: tree.kind.number, root: tree.at };
        self.trees.hold(root).map(|()| tree)
    }

    /// Deletes a tree: nobody may use it any more. What it holds alone is given back by [`TreeChange::reap`], later.
    ///
    /// # Errors
    /// See [`TreeStop`].
    pub fn delete<V: TreeValue>(&mut self, tree: TreeRoot<V>) -> Result<(), TreeStop> {
        self.trees.release(TreeRefers::Tree { kind: tree.kind.number, root: tree.at })
    }

    /// Gives back one node of the deleted trees, and one reference of each thing that it refers to.
    ///
    /// # Errors
    /// See [`TreeStop`].
    pub fn reap(&mut self) -> Result<TreeReaped, TreeStop> {
        self.trees.reap()
    }

    /// A block that was free, whose one reference the caller holds.
    ///
    /// # Errors
    /// [`TreeStop::NoBlocks`], or [`TreeStop::Commit`] if some become free with the next commits. Those that the caller has yet to
    /// [give out](Trees::give_out) are not among them.
    pub fn take_block(&mut self) -> Result<u64, TreeStop> {
        // Not what this change gives back: that is taken back with it.
        let (.., gives_back) = self.trees.before.spaces[1];
        let Space { freed, kept, .. } = &self.trees.blocks;
        let comes = gives_back || !freed.is_empty() || !kept.is_empty();
        match self.trees.take_free(Of::Blocks) {
            Err(TreeStop::NoBlocks) if comes => Err(TreeStop::Commit),
            taken => taken,
        }
    }

    /// Takes a block that was [reserved](Trees::reserve_block), whose one reference the caller holds.
    ///
    /// # Panics
    /// If it was not.
    pub fn take_reserved(&mut self, block: u64) {
        self.trees.take_reserved(block);
    }

    /// One more reference of a block, which the caller holds.
    ///
    /// # Errors
    /// See [`TreeStop`].
    pub fn share_block(&mut self, block: u64) -> Result<(), TreeStop> {
        self.trees.hold(TreeRefers::Block(block))
    }

    /// Gives back a reference of a block that the caller holds. If it was the last one, the block is free once that is committed.
    ///
    /// # Errors
    /// See [`TreeStop`].
    pub fn give_back_block(&mut self, block: u64) -> Result<(), TreeStop> {
        self.trees.release(TreeRefers::Block(block))
    }
}
