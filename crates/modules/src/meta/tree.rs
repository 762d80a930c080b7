//! [`Trees`]: what a module keeps on its part beyond what a label has room for: maps of keys to values, as copy-on-write B-trees
//! (`docs/format.md`, "Trees").
//!
//! Made for `thin`: a tree of volumes, and a tree of blocks for each of them, which share nodes after a snapshot. After the trees
//! of dm-thin and btrfs: what a commit has written stays as it is until the next commit is durable, which the label
//! says that names the new roots. So a snapshot is one root more, and after a crash nothing is replayed.
//!
//! *Who asks, tries.* [`Trees::lookup`], [`Trees::rows`] and all steps of a [`TreeChange`] say at once what there is to say, or that a node is
//! missing in memory ([`TreeStop::Wait`]). It is read by the next [`Trees::turn`], and when that says that
//! something [came](TreeNews::came), whoever waits tries again, from the beginning: so each attempt sees one state of all trees. All that
//! wait try again in each such round; then each comes on, whatever the size of the cache, since nodes that were looked at in
//! this round or the one before stay.
//!
//! *Changes.* A [`TreeChange`] is made as a whole or not at all. Its steps take a [`TreeRoot`] and return another one, which counts
//! if the change is [applied](TreeChange::apply). What is applied is in memory until [`Trees::commit`]; that and the
//! turns after it write it down. Changes go on while a commit is being written.
//!
//! *Memory.* At most [`TreesConfig::cache_nodes`] nodes that are on the part, but for those that one round looks at; at most
//! [`TreesConfig::open_nodes_max`] of the open transaction and as many of the commit under way, and what one change adds to them; what
//! counts change by is bounded by [`TreesConfig::counts_max`] likewise. More is not begun before a commit ([`TreeStop::Commit`]).
//!
//! *Room.* Changes that take nodes end while enough are free for those that give back, and those while enough are free for a
//! commit (rule 14). What was freed is given out again when the commit behind the one that frees it is durable (rule 10): until then a label has it, on
//! which one falls back if the newest rots. Such a commit need not change anything ([`Trees::is_in_both`]).
//!
//! *Failures.* A commit that fails is the last: the part has the commit before (or this one, if it is the label that failed), and
//! all changes are refused until the trees are opened anew. Lookups go on to see what was applied. A damaged node stops what needs
//! it, and nothing else; [`TreeCheck`] finds all that are.

mod cache;
mod change;
mod check;
mod commit;
mod counts;
mod doom;
mod fault;
mod grow;
mod image;
mod kind;
mod look;
mod node;
mod open;
mod repair;
mod shrink;
mod state;
#[cfg(test)]
mod tests;
mod trim;
mod users;

use std::collections::{BTreeSet, VecDeque};

use thinwire_buffer::Pool;
use thinwire_volume::Token;

use self::cache::Cache;
use self::change::{Before, Undo};
use self::commit::{NodeIo, Phase};
use self::counts::{ROW_BYTES, Space};
use self::doom::Doomed;
use self::node::NodePlace;
use super::{Label, Labels};

pub use change::TreeChange;
pub use check::{TreeCheck, TreeFinding};
pub use doom::TreeReaped;
pub use fault::{NodeFault, TreeFault, TreeStop};
pub use image::{SeenRows, rows_of_image};
pub use kind::{TREE_KIND_FIRST, TreeKind, TreeRefers, TreeRoot, TreeValue};
pub use node::{LEVEL_MAX, NODE_BYTES, TreePointer, VALUE_BYTES_MAX};
pub use state::{TREE_ROOTS, TREE_STATE_BYTES, TreeSpace, TreeState};

/// So many I/Os of nodes are under way at most.
pub const TREE_IOS_MAX: usize = 32;

/// A row of a map.
#[derive(Clone, Copy)]
struct CountRow([u8; ROW_BYTES]);

impl TreeValue for CountRow {
    const BYTES: usize = ROW_BYTES;

    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(CountRow)
    }
}

static NODE_MAP: TreeKind = TreeKind::of::<CountRow>(1, "nodes in use");
static BLOCK_MAP: TreeKind = TreeKind::of::<CountRow>(2, "blocks in use");
static DOOMED: TreeKind = TreeKind::of::<Doomed>(3, "doomed nodes");

/// How trees are kept. Bounds may be other than when they were kept last.
#[derive(Clone)]
pub struct TreesConfig {
    /// Kinds of the user's trees: all that have ever been on the part.
    pub kinds: &'static [TreeKind],
    /// The first of [`TREE_IOS_MAX`] tokens of the part that nobody else uses; and one of the data, likewise.
    pub token: Token,
    /// For what is written.
    pub pool: Pool,
    /// Nodes of 4 KiB in memory that are on the part, too. Default: 4096.
    pub cache_nodes: usize,
    /// Nodes of a transaction. Default: 2048.
    pub open_nodes_max: usize,
    /// Nodes and blocks whose count one transaction changes. Default: 16384.
    pub counts_max: usize,
    /// Blocks that were freed are handed to the user ([`Trees::take_freed`]), who discards them, before they are given out again.
    /// Default: no.
    pub keeps_freed: bool,
}

impl TreesConfig {
    /// With defaults.
    pub fn new(kinds: &'static [TreeKind], token: Token, pool: &Pool) -> Self {
        TreesConfig {
            kinds,
            token,
            pool: pool.clone(),
            cache_nodes: 4096,
            open_nodes_max: 2048,
            counts_max: 16384,
            keeps_freed: false,
        }
    }
}

/// What a turn has brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TreeNews {
    /// Something that was waited for is there: whoever was stopped by [`TreeStop::Wait`] or [`TreeStop::Commit`] tries again.
    pub came: bool,
    /// A commit has what was changed, and the next transaction is open: who was stopped since one was full tries again.
    pub opened: bool,
    /// The commit has ended: its generation, or why it failed. Then no other will be made.
    pub committed: Option<Result<u64, TreeFault>>,
}

/// A fault planted in them, which their tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TreeCanary {
    #[default]
    None,
    /// A commit does not flush the data.
    CommitsBeforeData,
    /// Nobody is told that the next transaction is open.
    OpensSilently,
    /// The label is written before the nodes.
    LabelsBeforeNodes,
    /// What the open transaction freed is given out again in it.
    ReusesAtOnce,
    /// What the commit under way frees is given out before that is durable.
    ReusesEarly,
    /// What a commit has freed is given out as soon as that is durable.
    ReusesAtLabel,
    /// What is free is looked for in a map that is being changed.
    LooksInChangingMap,
    /// A shared node is changed where it stands.
    SharedInPlace,
    /// A shared node is copied, and what it refers to is not counted once more.
    ForgetsAtCopy,
    /// A commit fails with the first read of a map that does.
    SettlesOnce,
    /// What is free is not looked for behind a node of a map that cannot be read.
    StopsAtDamage,
    /// What is kept for a commit is not enough for what one change adds to it.
    KeepsTooLittle,
}

/// All trees of a part. A state machine over its labels and nodes: see the [module](self) for how it is driven.
pub struct Trees {
    config: TreesConfig,
    labels: Labels,
    label: Label,
    canary: TreeCanary,
    rows_max: Option<usize>,
    /// The last commit that is durable; the label before it is of the same trees; and that was found like that when they were opened, so that nobody
    /// knows what it has.
    committed: TreeState,
    is_in_both: bool,
    has_older: bool,
    /// Of the open transaction.
    generation: u64,
    nodes_total: u64,
    /// So many the user keeps for changes of its own choice.
    kept_nodes: u64,
    nodes: Space,
    blocks: Space,
    doomed: TreePointer,
    /// Rows of it whose nodes could not be read.
    passed_over: BTreeSet<u64>,
    cache: Cache,
    /// Nodes to be read, and what is under way.
    wanted: VecDeque<u64>,
    ios: Vec<Option<NodeIo>>,
    phase: Phase,
    settle_tries: u32,
    failed: Option<TreeFault>,
    /// Somebody else writes the labels.
    are_lent: bool,
    has_lost: bool,
    news: TreeNews,
    /// What the commit under way says, beside what is known here.
    roots: [TreePointer; TREE_ROOTS],
    rest: Vec<u8>,
    /// Blocks for the user to discard.
    given_back: Vec<u64>,
    /// The change under way: its number, and how to take it back.
    change: u64,
    undo: Vec<Undo>,
    before: Before,
    /// Rows of a map in which something free is looked for.
    scan: Vec<(u64, [u8; ROW_BYTES])>,
}

impl Trees {
    /// Plants a fault, for tests of what stands on trees.
    pub(crate) fn plant(&mut self, canary: TreeCanary) {
        self.canary = canary;
    }

    /// Has nodes take few rows, so that small trees are high.
    #[cfg(test)]
    pub(crate) fn limit_rows(&mut self, most: usize) {
        self.rows_max = Some(most);
    }

    /// Has nodes that are on the part be read again.
    #[cfg(test)]
    pub(crate) fn forget_nodes(&mut self) {
        self.cache.forget_clean();
    }

    fn place(&self, address: u64) -> NodePlace {
        NodePlace { whole: self.label.whole, address, nodes: self.nodes_total }
    }

    /// The kind of that number, which a node refers to.
    fn kind(&self, number: u8, node: u64) -> Result<&'static TreeKind, TreeStop> {
        let own = [&NODE_MAP, &BLOCK_MAP, &DOOMED];
        let kind = own.into_iter().chain(self.config.kinds).find(|kind| kind.number == number);
        let fault = || TreeFault::node("unknown kind", node, NodeFault::Kind { says: number });
        kind.ok_or_else(|| fault().into())
    }
}
