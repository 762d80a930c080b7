//! [`TreeCheck`]: looks at every node, and counts every reference.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;

use super::change::{map_of, refers};
use super::counts::{EACH_ROW, HIGH_KEY, Of};
use super::look::Bounds;
use super::node::u64_of;
use super::*;

/// So many counts are compared in a step.
const COUNTS_EACH_STEP: u64 = 256;
/// What maps are of.
const SPACES: [&str; 2] = ["nodes", "blocks"];
/// So deep trees in trees are followed, in nodes.
const DEPTH_MAX: usize = 64;

/// What is wrong, and what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeFinding {
    /// A node cannot be used, or a row of it.
    Damaged {
        /// Of the nearest tree around that has this one as a value: its key there, as that of a volume.
        within: Option<u64>,
        /// The node and what is wrong.
        fault: TreeFault,
        /// Keys that are lost with it.
        lost: RangeInclusive<u64>,
    },
    /// A node is held by another number of references than its count says: by more, so that it may be overwritten while it is in use; or by
    /// fewer, so that it is never free again. The latter is not looked for where something is damaged.
    NodeCount {
        /// Its address.
        node: u64,
        /// By its count.
        says: u64,
        /// By what was found.
        has: u64,
    },
    /// Likewise of a block.
    BlockCount {
        /// Its number.
        block: u64,
        /// By its count.
        says: u64,
        /// By what was found.
        has: u64,
    },
    /// A map cannot be read here, so what it counts was not compared from there on.
    Uncounted {
        /// Nodes or blocks.
        of: &'static str,
        /// What is wrong.
        fault: TreeFault,
    },
    /// The label says another number of nodes or blocks in use than their map.
    Used {
        /// Nodes or blocks.
        of: &'static str,
        /// By the label.
        says: u64,
        /// By the map.
        has: u64,
    },
}

impl TreeFinding {
    /// It is damage of a map of counts, of nodes (0) or blocks (1), which can be [made anew](TreeCheck::making_maps) if nothing else is damaged.
    pub fn of_map(&self) -> Option<usize> {
        match self {
            TreeFinding::Damaged { fault: TreeFault::Node { tree, .. }, .. } => {
                [NODE_MAP.name, BLOCK_MAP.name].iter().position(|name| name == tree)
            }
            TreeFinding::Uncounted { of, .. } => SPACES.iter().position(|space| space == of),
            _ => None,
        }
    }
}

impl fmt::Display for TreeFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |f: &mut fmt::Formatter<'_>, what: &str, at: u64, says: u64, has: u64| {
            write!(f, "{what} {at} is referred to {has} times, and its reference count is {says}")
        };
        match self {
            TreeFinding::Damaged { within, fault, lost } => {
                if let Some(key) = within {
                    write!(f, "in {key}: ")?;
                }
                write!(f, "{fault}; lost with it: keys {} to {}", lost.start(), lost.end())
            }
            TreeFinding::NodeCount { node, says, has } => count(f, "node", *node, *says, *has),
            TreeFinding::BlockCount { block, says, has } => count(f, "block", *block, *says, *has),
            TreeFinding::Uncounted { of, fault } => {
                write!(f, "reference counts of {of} cannot be compared from here on: {fault}")
            }
            TreeFinding::Used { of, says, has } => {
                write!(f, "the label says that {says} {of} are in use, and their map {has}")
            }
        }
    }
}

/// A node whose rows are being followed.
struct Visit {
    kind: &'static TreeKind,
    at: TreePointer,
    level: Option<u8>,
    bounds: Bounds,
    within: Option<u64>,
    row: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The root that comes next.
    Walk(usize),
    Compare(Of, u64),
    Done,
}

/// Verifies every node that can be reached, and that each is held as often as its count says; likewise blocks. Memory: a bit for each
/// node there is, and eight bytes for each count of a window: there are as many passes over all nodes as
/// windows. A step reads one node at most, or compares 256 counts.
///
/// A state machine over trees that nobody changes meanwhile: [`TreeCheck::step`] until [`TreeCheck::is_done`].
pub struct TreeCheck {
    root_kinds: [u8; TREE_ROOTS],
    window: u64,
    pass: u64,
    stage: Stage,
    seen: Vec<u64>,
    counts: [Vec<u32>; 2],
    /// What is about to be visited, and from where on.
    next: Option<Visit>,
    path: Vec<Visit>,
    found: VecDeque<TreeFinding>,
    is_damaged: bool,
    is_uncounted: [bool; 2],
    used: [u64; 2],
    /// Maps that are made anew, of nodes and of blocks; and what is known of the nodes of the old ones.
    makes: [bool; 2],
    old: Vec<u64>,
}

impl TreeCheck {
    /// Of trees without open changes. `root_kinds` are the numbers of the kinds of the user's roots, `window` is how many counts are in
    /// memory at a time.
    ///
    /// # Panics
    /// If there are changes that are not committed, or no window.
    pub fn new(trees: &Trees, root_kinds: [u8; TREE_ROOTS], window: usize) -> Self {
        assert!(trees.is_idle() && !trees.has_changes() && window > 0, "nobody changes them");
        let [nodes, blocks] = [&trees.nodes, &trees.blocks].map(|space| space.state.total);
        let counts = |total: u64| vec![0; window.min(usize::try_from(total).unwrap_or(window))];
        TreeCheck {
            root_kinds,
            window: window as u64,
            pass: 0,
            stage: Stage::Walk(0),
            seen: vec![0; usize::try_from(nodes.div_ceil(64)).expect("a bit for each node")],
            counts: [counts(nodes), counts(blocks)],
            next: None,
            path: Vec::new(),
            found: VecDeque::new(),
            is_damaged: false,
            is_uncounted: [false; 2],
            used: [0; 2],
            makes: [false; 2],
            old: Vec::new(),
        }
    }

    /// As [`TreeCheck::new`], to make maps anew that cannot be read, of nodes and of blocks, by what all other trees refer to. Once it is done, and has
    /// found nothing, the next commit writes them; if it finds anything, or ends before, none may be made. In memory: some 64 bytes for each
    /// node, or block, in use.
    ///
    /// # Panics
    /// As there.
    pub fn making_maps(
        trees: &Trees,
        root_kinds: [u8; TREE_ROOTS],
        window: usize,
        makes: [bool; 2],
    ) -> Self {
        TreeCheck { makes, ..Self::new(trees, root_kinds, window) }
    }

    /// A tree of that kind is a map that is made anew.
    fn is_old(&self, kind: &TreeKind) -> bool {
        map_of(kind).is_some_and(|of| self.makes[of as usize])
    }

    /// All was looked at, and all findings were told.
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done && self.found.is_empty()
    }

    /// Something of the trees could not be read, so that nothing can be said of counts.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Goes on by a step: what is wrong, if that has come to light.
    ///
    /// # Errors
    /// [`TreeStop::Wait`]: again after the next turn of the trees that says that something came.
    pub fn step(&mut self, trees: &mut Trees) -> Result<Option<TreeFinding>, TreeStop> {
        if let Some(found) = self.found.pop_front() {
            return Ok(Some(found));
        }
        match self.stage {
            Stage::Walk(root) => self.walk(trees, root)?,
            Stage::Compare(of, at) => self.compare(trees, of, at)?,
            Stage::Done => {}
        }
        Ok(self.found.pop_front())
    }

    fn walk(&mut self, trees: &mut Trees, root: usize) -> Result<(), TreeStop> {
        if let Some(visit) = self.next.take() {
            return self.enter(trees, visit);
        }
        if let Some(visit) = self.path.pop() {
            return self.follow(trees, visit);
        }
        let number = self.root_kinds;
        let (kind, at) = match root {
            0 => (NODE_MAP.number, trees.nodes.state.map),
            1 => (BLOCK_MAP.number, trees.blocks.state.map),
            2 => (DOOMED.number, trees.doomed),
            root if root < 3 + TREE_ROOTS => (number[root - 3], trees.committed.roots[root - 3]),
            _ => {
                if self.pass == 0 && self.makes != [false; 2] && !self.is_damaged {
                    trees.begin_maps(self.makes, std::mem::take(&mut self.old))?;
                }
                self.stage = match self.is_damaged && self.makes != [false; 2] {
                    true => Stage::Done,
                    false => Stage::Compare(Of::Nodes, self.pass * self.window),
                };
                return Ok(());
            }
        };
        self.stage = Stage::Walk(root + 1);
        self.refer(trees, kind, at, None);
        Ok(())
    }

    /// Something refers to that tree.
    fn refer(&mut self, trees: &Trees, kind: u8, at: TreePointer, within: Option<u64>) {
        if at.is_none() {
            return;
        }
        match trees.kind(kind, at.node) {
            Ok(kind) => {
                let bounds = Bounds::ALL;
                self.next = Some(Visit { kind, at, level: None, bounds, within, row: 0 });
            }
            Err(TreeStop::Fault(fault)) => self.damaged(within, fault, Bounds::ALL),
            Err(_) => {}
        }
    }

    fn enter(&mut self, trees: &mut Trees, visit: Visit) -> Result<(), TreeStop> {
        let Visit { kind, at, level, bounds, within, .. } = visit;
        match trees.fetch(kind, at, level, bounds) {
            Err(TreeStop::Fault(_)) if self.is_old(kind) => {
                self.old.push(at.node);
                return Ok(());
            }
            Err(TreeStop::Fault(fault)) => {
                self.count(Of::Nodes, at.node);
                self.damaged(within, fault, bounds);
                return Ok(());
            }
            Err(stop) => {
                self.next = Some(visit);
                return Err(stop);
            }
            Ok(_) => {}
        }
        match self.is_old(kind) {
            true => self.old.push(at.node),
            false => self.count(Of::Nodes, at.node),
        }
        let (word, bit) = ((at.node / 64) as usize, 1 << (at.node % 64));
        if self.seen[word] & bit != 0 {
            return Ok(());
        }
        if self.path.len() >= DEPTH_MAX {
            let fault = TreeFault::node(kind.name, at.node, NodeFault::Deep);
            self.damaged(within, fault, bounds);
            return Ok(());
        }
        self.seen[word] |= bit;
        self.path.push(visit);
        Ok(())
    }

    /// Goes through the rows of a node, up to one that leads to another.
    fn follow(&mut self, trees: &mut Trees, mut visit: Visit) -> Result<(), TreeStop> {
        let Visit { kind, at, level, bounds, within, .. } = visit;
        loop {
            let node = match trees.fetch(kind, at, level, bounds) {
                Ok(node) => node,
                Err(TreeStop::Wait) => {
                    self.path.push(visit);
                    return Err(TreeStop::Wait);
                }
                // It was there, and now it is not.
                Err(TreeStop::Fault(_)) if self.is_old(kind) => return Ok(()),
                Err(TreeStop::Fault(fault)) => {
                    self.damaged(within, fault, bounds);
                    return Ok(());
                }
                Err(stop) => return Err(stop),
            };
            let row = visit.row;
            if row == node.rows() {
                return Ok(());
            }
            let (key, here, below) = (node.key(row), node.level(), bounds.of_row(node, row));
            let high = (node.level() == 0).then(|| u64_of(node.value(row), 0));
            let found = refers(kind, at.node, node, row);
            if let (Some(of), Some(high)) = (map_of(kind), high)
                && !self.is_old(kind)
                && let Err(stop) = self.check_map(trees, of, key, high, at)
            {
                self.path.push(visit);
                return Err(stop);
            }
            visit.row += 1;
            match found {
                Err(fault) => self.damaged(within, fault, Bounds { low: key, high: key }),
                Ok(TreeRefers::Nothing) => {}
                Ok(TreeRefers::Block(block)) if block < trees.blocks.state.total => {
                    self.count(Of::Blocks, block);
                }
                Ok(TreeRefers::Block(_)) => {
                    let fault = TreeFault::node(kind.name, at.node, NodeFault::Value { row });
                    self.damaged(within, fault, Bounds { low: key, high: key });
                }
                Ok(TreeRefers::Tree { root, .. }) if here > 0 => {
                    let level = Some(here - 1);
                    self.next =
                        Some(Visit { kind, at: root, level, bounds: below, within, row: 0 });
                }
                Ok(TreeRefers::Tree { kind: below, root }) => {
                    // Of what is deleted the key says nothing to users.
                    let within = (kind.number != DOOMED.number).then_some(key);
                    self.refer(trees, below, root, within);
                }
            }
            if self.next.is_some() {
                self.path.push(visit);
                return Ok(());
            }
        }
    }

    /// A row of a map is about something that there is, and high counts are counts.
    fn check_map(
        &mut self,
        trees: &mut Trees,
        of: Of,
        key: u64,
        high: u64,
        at: TreePointer,
    ) -> Result<(), TreeStop> {
        let total = trees.space(of).state.total;
        let is_right = match key & HIGH_KEY {
            0 => key < total.div_ceil(EACH_ROW),
            _ if key & !HIGH_KEY >= total => false,
            _ => match trees.base_count(of, key & !HIGH_KEY) {
                Ok(count) => count == high,
                Err(TreeStop::Wait) => return Err(TreeStop::Wait),
                // It is told where it is.
                Err(_) => true,
            },
        };
        if !is_right {
            let fault = TreeFault::node(of.map().name, at.node, NodeFault::Range { key });
            self.damaged(None, fault, Bounds { low: key, high: key });
        }
        Ok(())
    }

    fn damaged(&mut self, within: Option<u64>, fault: TreeFault, bounds: Bounds) {
        self.is_damaged = true;
        // Each pass finds it again, but for what cannot be read for once: maps are not made anew without it.
        if self.pass == 0 || self.makes != [false; 2] {
            let lost = bounds.low..=bounds.high;
            self.found.push_back(TreeFinding::Damaged { within, fault, lost });
        }
    }

    fn count(&mut self, of: Of, at: u64) {
        let index = at.checked_sub(self.pass * self.window).and_then(|at| usize::try_from(at).ok());
        if let Some(count) = index.and_then(|index| self.counts[of as usize].get_mut(index)) {
            *count = count.saturating_add(1);
        }
    }

    fn compare(&mut self, trees: &mut Trees, of: Of, from: u64) -> Result<(), TreeStop> {
        let total = trees.space(of).state.total;
        let end = ((self.pass + 1) * self.window).min(total);
        let mut at = from;
        if self.makes != [false; 2] && !self.makes[of as usize] {
            // What is compared is what the next check finds.
            at = end;
        }
        while self.makes[of as usize] && at < end && at < from + COUNTS_EACH_STEP {
            let has = u64::from(self.counts[of as usize][(at - self.pass * self.window) as usize]);
            trees.put_count(of, at, has);
            at += 1;
        }
        while self.makes == [false; 2]
            && at < end
            && at < from + COUNTS_EACH_STEP
            && !self.is_uncounted[of as usize]
        {
            let says = match trees.base_count(of, at) {
                Ok(says) => says,
                Err(TreeStop::Fault(fault)) => {
                    self.is_uncounted[of as usize] = true;
                    self.found.push_back(TreeFinding::Uncounted { of: SPACES[of as usize], fault });
                    break;
                }
                Err(stop) => {
                    self.stage = Stage::Compare(of, at);
                    return Err(stop);
                }
            };
            let has = u64::from(self.counts[of as usize][(at - self.pass * self.window) as usize]);
            self.used[of as usize] += u64::from(says > 0);
            if has > says || has < says && !self.is_damaged {
                self.found.push_back(match of {
                    Of::Nodes => TreeFinding::NodeCount { node: at, says, has },
                    Of::Blocks => TreeFinding::BlockCount { block: at, says, has },
                });
            }
            at += 1;
        }
        self.stage = match of {
            _ if at < end && !self.is_uncounted[of as usize] => Stage::Compare(of, at),
            Of::Nodes => Stage::Compare(Of::Blocks, self.pass * self.window),
            Of::Blocks => self.next_pass(trees),
        };
        Ok(())
    }

    fn next_pass(&mut self, trees: &Trees) -> Stage {
        self.pass += 1;
        let spaces = [&trees.nodes, &trees.blocks].map(|space| space.state);
        if spaces.iter().any(|state| self.pass * self.window < state.total) {
            self.seen.fill(0);
            self.counts.iter_mut().for_each(|counts| counts.fill(0));
            return Stage::Walk(0);
        }
        for ((of, state), (at, has)) in
            SPACES.into_iter().zip(spaces).zip(self.used.into_iter().enumerate())
        {
            if state.used != has && !self.is_uncounted[at] && self.makes == [false; 2] {
                self.found.push_back(TreeFinding::Used { of, says: state.used, has });
            }
        }
        Stage::Done
    }
}
