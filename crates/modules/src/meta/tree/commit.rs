//! A commit: counts go into their maps, data is flushed, nodes are written, flushed, and then the label says where the roots are
//! (`docs/format.md`, "A commit"). From the moment on when the counts are in the maps, the next transaction is open.

use thinwire_buffer::SegList;
use thinwire_volume::{Completion, Io, Op, Volume};

use super::cache::{Slot, Standing};
use super::change::Purpose;
use super::counts::Of;
use super::node::NODE_BYTES;
use super::{
    NodeFault, TREE_IOS_MAX, TREE_ROOTS, TreeCanary, TreeChange, TreeFault, TreeNews, TreePointer,
    TreeState, TreeStop, Trees,
};
use crate::meta::{LabelError, LabelOutcome};

/// So many rows go into the maps in one turn.
const ROWS_EACH_TURN: usize = 64;

/// So many reads of the maps may fail in a commit before that fails.
const SETTLE_TRIES: u32 = 16;

/// What a node I/O is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeIo {
    Read(u64),
    Write,
}

#[derive(Default)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// Counts go into the maps: nothing else changes.
    Settling,
    /// Data is flushed, and nodes are written, at the same time.
    Writing(Writing),
    /// A flush, and the label.
    Labelling(Writing),
}

pub(super) struct Writing {
    state: TreeState,
    /// Nodes that are not submitted yet, the lowest last; and how many are under way.
    left: Vec<u64>,
    under_way: usize,
    flush: Flush,
    is_labelled: bool,
    error: Option<TreeFault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Wanted,
    UnderWay,
    Done,
}

impl Trees {
    /// All but the label of a commit is durable, and that is being written: it may be there whatever is lost from now on.
    pub fn is_labelling(&self) -> bool {
        matches!(self.phase, Phase::Labelling(_))
    }

    pub(super) fn is_settling(&self) -> bool {
        matches!(self.phase, Phase::Settling)
    }

    pub(super) fn is_reading(&self, node: u64) -> bool {
        self.ios.contains(&Some(NodeIo::Read(node)))
    }

    /// Nothing is under way: no commit, and no I/O.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.ios.iter().all(Option::is_none)
    }

    /// A [turn](Trees::turn) has nothing to do.
    #[inline]
    pub fn is_turned(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.wanted.is_empty() && !self.news.came
    }

    /// Both copies of the label say what is there, or the older one is gone. Else what the last commit has freed is kept for who finds the older
    /// one, until another commit is durable, of whatever.
    pub fn is_in_both(&self) -> bool {
        self.is_in_both
    }

    /// Nodes, and blocks, that are in use no more, and are free once commits are durable that need no other change.
    pub fn kept(&self) -> [u64; 2] {
        [&self.nodes, &self.blocks].map(|space| (space.freed.len() + space.kept.len()) as u64)
    }

    /// There is something that a commit would make durable.
    pub fn has_changes(&self) -> bool {
        self.cache.count(Standing::Open) > 0
            || !self.nodes.deltas.is_empty()
            || !self.blocks.deltas.is_empty()
            || self.nodes.state.total != self.committed.nodes.total
            || self.blocks.state.total != self.committed.blocks.total
    }

    /// Begins to commit all changes that were applied, with these roots, and with what the user keeps beside them. How it ends is
    /// said by a later [turn](Trees::turn): then all of it is durable, and all data that had completed when it began to write.
    /// Before, new changes have to wait only while counts go into the maps; from then on they belong to the next commit.
    ///
    /// # Errors
    /// [`TreeStop::Wait`]: another one is under way. [`TreeStop::Fault`]: one has failed, and none will be made any more.
    pub fn commit(
        &mut self,
        roots: [TreePointer; TREE_ROOTS],
        rest: &[u8],
    ) -> Result<(), TreeStop> {
        if let Some(failed) = &self.failed {
            return Err(TreeStop::Fault(failed.clone()));
        }
        if !matches!(self.phase, Phase::Idle) || self.are_lent {
            return Err(TreeStop::Wait);
        }
        self.phase = Phase::Settling;
        self.settle_tries = 0;
        self.roots = roots;
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        Ok(())
    }

    /// Goes on with whatever can, and submits what that takes; never waits. To be called after anything was stopped by
    /// [`TreeStop::Wait`], after a commit has begun, and after completions were handed in; and again at once while
    /// [`TreeNews::came`] is true, once what waits was tried again.
    pub fn turn(&mut self, part: &mut dyn Volume, data: &mut dyn Volume) -> TreeNews {
        if self.is_settling() {
            self.settle();
        }
        self.step_commit(part, data);
        while !self.wanted.is_empty()
            && let Some(free) = self.ios.iter().position(Option::is_none)
            && let Some(node) = self.wanted.pop_front()
        {
            self.submit(free, NodeIo::Read(node), node, SegList::new(), part);
        }
        let news = std::mem::take(&mut self.news);
        if news.came {
            self.cache.begin_round();
        }
        news
    }

    /// Whether [`Trees::on_completion`] is to be told of that completion of the part.
    pub fn is_mine(&self, completion: &Completion) -> bool {
        self.labels.is_mine(completion) || self.io_of(completion).is_some()
    }

    /// Whether [`Trees::on_data_completion`] is to be told of that completion of the volume that holds the data.
    pub fn is_mine_of_data(&self, completion: &Completion) -> bool {
        let Phase::Writing(writing) = &self.phase else { return false };
        writing.flush == Flush::UnderWay && completion.token == self.config.token
    }

    /// Takes a completion of the part that [is its own](Trees::is_mine).
    pub fn on_completion(&mut self, completion: Completion, part: &mut dyn Volume) {
        if self.labels.is_mine(&completion) {
            // After a loss nothing more is written, least of all a label.
            if self.has_lost {
                return;
            }
            if let Some(LabelOutcome::Written(written)) =
                self.labels.on_completion(completion, part)
            {
                self.on_label(written.map(|_| ()));
            }
            return;
        }
        let Some(index) = self.io_of(&completion) else { return };
        match self.ios[index].take() {
            Some(NodeIo::Read(node)) => self.on_read(node, completion),
            Some(NodeIo::Write) => {
                let Phase::Writing(writing) = &mut self.phase else { return };
                writing.under_way -= 1;
                if let Err(error) = completion.result {
                    writing.error.get_or_insert(TreeFault::Unwritten(error));
                }
            }
            None => {}
        }
    }

    /// Takes a completion of the data that [is its own](Trees::is_mine_of_data).
    pub fn on_data_completion(&mut self, completion: Completion) {
        let Phase::Writing(writing) = &mut self.phase else { return };
        writing.flush = Flush::Done;
        if let Err(error) = completion.result {
            writing.error.get_or_insert(TreeFault::Unflushed(error));
        }
    }

    fn io_of(&self, completion: &Completion) -> Option<usize> {
        let index = completion.token.checked_sub(self.config.token)?;
        let index = usize::try_from(index).ok()?;
        self.ios.get(index)?.as_ref().map(|_| index)
    }

    fn submit(
        &mut self,
        index: usize,
        io: NodeIo,
        node: u64,
        data: SegList,
        part: &mut dyn Volume,
    ) {
        self.ios[index] = Some(io);
        let op = if io == NodeIo::Write { Op::Write } else { Op::Read };
        let offset = self.label.data_start + node * NODE_BYTES as u64;
        let token = self.config.token + index as u64;
        part.submit(Io { data, ..Io::new(token, op, offset, NODE_BYTES as u64) });
    }

    fn on_read(&mut self, node: u64, completion: Completion) {
        self.news.came = true;
        if self.cache.get(node).is_some() {
            // It was given out meanwhile.
            return;
        }
        let mut memory = self.cache.memory();
        let checked = match completion.result {
            Ok(()) => {
                completion.data.copy_to(memory.bytes_mut());
                memory.check(self.place(node))
            }
            Err(error) => Err(NodeFault::Unread(error)),
        };
        match checked {
            Ok(()) => _ = self.cache.put(node, Slot::new(memory, Standing::Clean, 0)),
            Err(fault) => {
                self.cache.give_back(memory);
                self.cache.put_fault(node, fault);
            }
        }
    }

    /// Brings some rows of counts into their maps, each as one change.
    fn settle(&mut self) {
        for _ in 0..ROWS_EACH_TURN {
            self.begin_change();
            let change = TreeChange { trees: self };
            match change.trees.settle_row() {
                Ok(true) => change.settle(),
                Ok(false) => {
                    change.settle();
                    self.freeze();
                    return;
                }
                Err(TreeStop::Wait) => return,
                // What could not be read for once is tried again, a few times.
                Err(TreeStop::Fault(fault))
                    if fault.may_pass()
                        && change.trees.settle_tries < SETTLE_TRIES
                        && change.trees.canary != TreeCanary::SettlesOnce =>
                {
                    change.trees.settle_tries += 1;
                    change.trees.news.came = true;
                    return;
                }
                Err(TreeStop::Fault(fault)) => {
                    drop(change);
                    self.fail(fault);
                    return;
                }
                // The reserve is there so that this does not happen.
                Err(_) => {
                    drop(change);
                    self.fail(TreeFault::NoReserve);
                    return;
                }
            }
        }
        self.news.came = true;
    }

    /// What was changed belongs to the commit from now on, and the next transaction is open.
    fn freeze(&mut self) {
        let state = TreeState {
            generation: self.generation,
            nodes: self.nodes.state,
            blocks: self.blocks.state,
            doomed: self.doomed,
            roots: self.roots,
        };
        let left = self.cache.restand(Standing::Open, Standing::Written);
        self.generation += 1;
        for of in [Of::Nodes, Of::Blocks] {
            let space = self.space(of);
            space.gives_back = false;
            space.taken.clear();
            space.frozen = space.state.map;
        }
        let flush = match self.canary {
            TreeCanary::CommitsBeforeData => Flush::Done,
            _ => Flush::Wanted,
        };
        let writing = Writing { state, left, under_way: 0, flush, is_labelled: false, error: None };
        self.phase = Phase::Writing(writing);
        // Who wants to change something need not wait for the end of it.
        self.news.came = true;
        self.news.opened = self.canary != TreeCanary::OpensSilently;
    }

    fn step_commit(&mut self, part: &mut dyn Volume, data: &mut dyn Volume) {
        let Phase::Writing(writing) = &mut self.phase else { return };
        if self.canary == TreeCanary::LabelsBeforeNodes && !writing.is_labelled {
            return self.write_label(part);
        }
        if writing.flush == Flush::Wanted {
            writing.flush = Flush::UnderWay;
            data.submit(Io::new(self.config.token, Op::Flush, 0, 0));
        }
        // Half of the I/Os are for whoever looks something up.
        while let Phase::Writing(writing) = &mut self.phase
            && writing.error.is_none()
            && writing.under_way < TREE_IOS_MAX / 2
            && let Some(index) = self.ios.iter().position(Option::is_none)
            && let Some(node) = writing.left.pop()
        {
            writing.under_way += 1;
            let slot = self.cache.get_mut(node).expect("it is to be written");
            slot.node.seal();
            let image = SegList::of(self.config.pool.copy_of(slot.node.bytes()).freeze());
            self.submit(index, NodeIo::Write, node, image, part);
        }
        let Phase::Writing(writing) = &mut self.phase else { return };
        if writing.under_way > 0 || writing.flush == Flush::UnderWay {
            return;
        }
        if let Some(error) = writing.error.take() {
            return self.fail(error);
        }
        if !writing.left.is_empty() {
            return;
        }
        match writing.is_labelled {
            true => self.finish(),
            false => self.write_label(part),
        }
    }

    /// With all that it refers to written: this flushes it first.
    fn write_label(&mut self, part: &mut dyn Volume) {
        let Phase::Writing(writing) = std::mem::take(&mut self.phase) else { return };
        self.label.state = writing.state.encode(&self.rest);
        self.phase = Phase::Labelling(writing);
        if let Err(error) = self.labels.write(&self.label, part) {
            self.on_label(Err(error));
        }
    }

    fn on_label(&mut self, written: Result<(), LabelError>) {
        let Phase::Labelling(mut writing) = std::mem::take(&mut self.phase) else { return };
        match written {
            Err(error) => self.fail(TreeFault::Label(error)),
            Ok(()) => {
                writing.is_labelled = true;
                let is_written = writing.left.is_empty();
                self.phase = Phase::Writing(writing);
                if is_written {
                    self.finish();
                }
            }
        }
    }

    fn finish(&mut self) {
        let Phase::Writing(writing) = std::mem::take(&mut self.phase) else { return };
        self.cache.restand(Standing::Written, Standing::Clean);
        for of in [Of::Nodes, Of::Blocks] {
            // If the new label rots, the one before it is found, which has what this commit has freed.
            let space = self.space(of);
            std::mem::swap(&mut space.freed, &mut space.kept);
            let mut freed = std::mem::take(&mut space.freed);
            if of == Of::Blocks && self.config.keeps_freed {
                self.given_back.append(&mut freed);
            }
            let held = &mut self.space(of).held;
            freed.iter().for_each(|at| _ = held.remove(at));
            freed.clear();
            self.space(of).freed = freed;
        }
        self.is_in_both = writing.state.has_trees_of(&self.committed);
        self.has_older = false;
        self.committed = writing.state;
        self.news.came = true;
        self.news.committed = Some(Ok(writing.state.generation));
    }

    /// The user knows of a loss: what completed on the part, or of the data, may be gone. No commit is made any more, and one that is under way
    /// does not go on; if its label is being written already, this commit is found or the one before.
    pub fn stop_at_loss(&mut self) {
        self.has_lost = true;
        if self.failed.is_none() {
            self.fail(TreeFault::Lost);
        }
    }

    /// No commit is made any more.
    fn fail(&mut self, fault: TreeFault) {
        self.phase = Phase::Idle;
        self.failed = Some(fault.clone());
        self.news.came = true;
        self.news.committed = Some(Err(fault));
    }
}

impl Trees {
    /// Begins a change that may take nodes and blocks.
    ///
    /// # Errors
    /// It has to wait, or for a commit; or there is no room ([`TreeStop::NoNodes`]) but what is kept for those that give back.
    pub fn change(&mut self) -> Result<TreeChange<'_>, TreeStop> {
        self.begin(Purpose::Taking)
    }

    /// Begins a change that gives back: deletes trees, or takes keys out of them. It may use what is kept for that.
    ///
    /// # Errors
    /// As [`Trees::change`], when that is used up, too: which takes that trees are not deleted, but
    /// that keys are taken out of ever more shared nodes.
    pub fn change_to_free(&mut self) -> Result<TreeChange<'_>, TreeStop> {
        self.begin(Purpose::GivingBack)
    }

    /// The same in the background: it leaves half of a transaction to those who wait for their turn.
    ///
    /// # Errors
    /// As [`Trees::change_to_free`].
    pub fn change_in_background(&mut self) -> Result<TreeChange<'_>, TreeStop> {
        self.begin(Purpose::Background)
    }

    fn begin(&mut self, purpose: Purpose) -> Result<TreeChange<'_>, TreeStop> {
        self.check_room(purpose)?;
        self.begin_change();
        Ok(TreeChange { trees: self })
    }
}
