//! Opening trees: from the label of their part, without reading a node.

use super::*;

impl Trees {
    /// The trees of a part, by its newest label, with `labels` that have read it; and what the user keeps beside them. A part
    /// of a new whole has a label with [`TreeState::new`].
    ///
    /// # Errors
    /// [`TreeFault::State`]: the label says what cannot be.
    ///
    /// # Panics
    /// If the table of kinds has two of one number, or one of the engine's.
    pub fn open(
        labels: Labels,
        label: Label,
        config: TreesConfig,
    ) -> Result<(Self, Vec<u8>), TreeFault> {
        for (at, kind) in config.kinds.iter().enumerate() {
            let is_free = config.kinds[..at].iter().all(|other| other.number != kind.number);
            assert!(kind.number >= TREE_KIND_FIRST && is_free, "trees of {}", kind.name);
        }
        let (state, rest) = TreeState::decode(&label.state)?;
        let rest = rest.to_vec();
        if state.nodes.total > label.part().bytes / NODE_BYTES as u64 {
            return Err(TreeFault::State { why: "has more nodes than the part has room for" });
        }
        // More than anybody will come to from there on.
        if state.generation > u64::MAX >> 1 {
            return Err(TreeFault::State { why: "has had the last commit there can be" });
        }
        // What that one refers to may be free by this one.
        let older = labels.older_state().and_then(|older| TreeState::decode(older).ok());
        let is_in_both = older.is_none_or(|(older, _)| older.has_trees_of(&state));
        let trees = Trees {
            is_in_both,
            has_older: !is_in_both,
            canary: TreeCanary::default(),
            rows_max: None,
            committed: state,
            generation: state.generation + 1,
            nodes_total: state.nodes.total,
            kept_nodes: 0,
            nodes: Space::new(state.nodes),
            blocks: Space::new(state.blocks),
            doomed: state.doomed,
            passed_over: BTreeSet::new(),
            cache: Cache::new(config.cache_nodes),
            wanted: VecDeque::new(),
            ios: (0..TREE_IOS_MAX).map(|_| None).collect(),
            phase: Phase::default(),
            settle_tries: 0,
            failed: None,
            are_lent: false,
            has_lost: false,
            news: TreeNews::default(),
            roots: state.roots,
            rest: rest.clone(),
            given_back: Vec::new(),
            change: 0,
            undo: Vec::new(),
            before: Before::default(),
            scan: Vec::new(),
            config,
            labels,
            label,
        };
        Ok((trees, rest))
    }
}
