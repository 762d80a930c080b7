//! Reference counts of nodes and of blocks: a map of each, which is a tree of the same kind, and what the open transaction adds
//! (`docs/format.md`, "Maps").
//!
//! Changes are kept beside the map, and go into it when a commit begins, row by row. So a change of a map, which
//! takes and gives back nodes itself, never meets itself half done; and many changes of one row are one.

use std::collections::{BTreeMap, BTreeSet};

use super::change::Undo;
use super::look::Bounds;
use super::{
    BLOCK_MAP, NODE_MAP, NodeFault, TreeCanary, TreeFault, TreeKind, TreePointer, TreeSpace,
    TreeStop, Trees,
};

/// Of so many things one row of a map has the counts.
pub(super) const EACH_ROW: u64 = 64;
/// A count from this on has a row of its own.
const HIGH: u64 = 3;
const COUNT_MAX: i64 = u32::MAX as i64;
/// Set in the key of the row of a high count, whose other bits say of what.
pub(super) const HIGH_KEY: u64 = 1 << 63;
pub(super) const ROW_BYTES: usize = 16;
/// So many rows are looked at in one attempt to find something free.
const SCAN_ROWS: u64 = 2048;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Nodes,
    Blocks,
}

impl Of {
    pub fn map(self) -> &'static TreeKind {
        match self {
            Of::Nodes => &NODE_MAP,
            Of::Blocks => &BLOCK_MAP,
        }
    }
}

/// What the open transaction does to one count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delta {
    pub change: i64,
    /// What the map says, once it was looked up.
    base: Option<u64>,
    /// It was free, and was given out.
    is_fresh: bool,
}

const FRESH: Delta = Delta { change: 1, base: Some(0), is_fresh: true };

/// The counts of nodes, or of blocks.
pub(super) struct Space {
    /// As the map has it.
    pub state: TreeSpace,
    /// The map of the last commit that has begun to write: it does not change, so something free can be looked for in it while the map
    /// itself is being changed.
    pub frozen: TreePointer,
    pub deltas: BTreeMap<u64, Delta>,
    /// What was given out since, by the map; while that is brought up to date.
    pub taken: BTreeSet<u64>,
    /// So many were given out, and the map does not know yet.
    pub fresh: u64,
    /// Free by the map, and not to be given out: the label before the newest still refers to them, or the user has not given them back.
    pub held: BTreeSet<u64>,
    /// Those that the commit under way frees; and those that the last one has freed, which are kept until the next one is durable.
    pub freed: Vec<u64>,
    pub kept: Vec<u64>,
    /// The open transaction gives back something.
    pub gives_back: bool,
    /// Where to look for something free, and how many rows were looked at since something was found.
    cursor: u64,
    scanned: u64,
    /// Why some of the map was left out since then.
    unread: Option<TreeFault>,
}

impl Space {
    pub fn new(state: TreeSpace) -> Self {
        Space {
            state,
            frozen: state.map,
            deltas: BTreeMap::new(),
            taken: BTreeSet::new(),
            fresh: 0,
            held: BTreeSet::new(),
            freed: Vec::new(),
            kept: Vec::new(),
            gives_back: false,
            cursor: 0,
            scanned: 0,
            unread: None,
        }
    }

    /// So many can be given out.
    pub fn free(&self) -> u64 {
        let taken = self.state.used + self.fresh + self.held.len() as u64;
        self.state.total.saturating_sub(taken)
    }
}

pub(super) fn bits(row: &[u8; ROW_BYTES], at: u64) -> u64 {
    let at = at % EACH_ROW;
    u64::from(row[(at / 4) as usize] >> (2 * (at % 4)) & 3)
}

fn set_bits(row: &mut [u8; ROW_BYTES], at: u64, bits: u64) {
    let at = at % EACH_ROW;
    let (byte, shift) = (&mut row[(at / 4) as usize], 2 * (at % 4));
    *byte = *byte & !(3 << shift) | (bits as u8) << shift;
}

impl Trees {
    pub(super) fn space(&mut self, of: Of) -> &mut Space {
        match of {
            Of::Nodes => &mut self.nodes,
            Of::Blocks => &mut self.blocks,
        }
    }

    /// There is such a thing, and its count cannot be.
    fn wrong_count(&self, of: Of, at: u64, says: i64) -> TreeStop {
        TreeStop::Fault(match of {
            Of::Nodes => TreeFault::node("nodes in use", at, NodeFault::Count { says }),
            Of::Blocks => TreeFault::BlockCount { block: at, says },
        })
    }

    /// What the map says, whatever was changed since.
    pub(super) fn base_count(&mut self, of: Of, at: u64) -> Result<u64, TreeStop> {
        let map = self.space(of).state.map;
        let mut row = [0; ROW_BYTES];
        self.find(of.map(), map, at / EACH_ROW, &mut row)?;
        self.count_of(of, map, &row, at)
    }

    fn count_of(
        &mut self,
        of: Of,
        map: TreePointer,
        row: &[u8; ROW_BYTES],
        at: u64,
    ) -> Result<u64, TreeStop> {
        let low = bits(row, at);
        if low < HIGH {
            return Ok(low);
        }
        let mut high = [0; ROW_BYTES];
        self.find(of.map(), map, HIGH_KEY | at, &mut high)?;
        let [count, rest] = [0, 8].map(|at| super::node::u64_of(&high, at));
        match count {
            HIGH..=0xffff_ffff if rest == 0 => Ok(count),
            _ => Err(self.wrong_count(of, at, count as i64)),
        }
    }

    /// How many hold it, by now.
    pub(super) fn count(&mut self, of: Of, at: u64) -> Result<u64, TreeStop> {
        let delta = self.space(of).deltas.get(&at).copied().unwrap_or_default();
        let base = match delta.base {
            Some(base) => base,
            None => {
                let base = self.base_count(of, at)?;
                // A fact, so nothing is to be undone.
                if let Some(delta) = self.space(of).deltas.get_mut(&at) {
                    delta.base = Some(base);
                }
                base
            }
        };
        let count = base as i64 + delta.change;
        u64::try_from(count).map_err(|_| self.wrong_count(of, at, count))
    }

    /// More hold it from now on, or fewer. Whether the sum can be is seen when it goes into the map.
    pub(super) fn add(&mut self, of: Of, at: u64, change: i64) -> Result<(), TreeStop> {
        if at >= self.space(of).state.total {
            return Err(self.wrong_count(of, at, 0));
        }
        self.change_delta(of, at, |delta| delta.change += change);
        if change < 0 {
            self.space(of).gives_back = true;
        }
        Ok(())
    }

    /// That many hold what the map says is free.
    pub(super) fn count_anew(&mut self, of: Of, at: u64, count: u64) {
        self.space(of).fresh += 1;
        let fresh = Delta { change: count as i64, ..FRESH };
        self.change_delta(of, at, |delta| *delta = fresh);
    }

    fn change_delta(&mut self, of: Of, at: u64, change: impl FnOnce(&mut Delta)) {
        let before = self.space(of).deltas.get(&at).copied();
        self.undo.push(Undo::Count { of, at, before });
        change(self.space(of).deltas.entry(at).or_default());
    }

    fn forget_delta(&mut self, of: Of, at: u64) {
        let before = self.space(of).deltas.remove(&at);
        self.undo.push(Undo::Count { of, at, before });
    }

    /// Something free, whose count is 1 from now on. Looks at a bounded number of rows; where that was not enough, goes
    /// on from there the next time.
    pub(super) fn take_free(&mut self, of: Of) -> Result<u64, TreeStop> {
        let full = match of {
            Of::Nodes => TreeStop::NoNodes,
            Of::Blocks => TreeStop::NoBlocks,
        };
        let total = self.space(of).state.total;
        let rows = total.div_ceil(EACH_ROW);
        if self.space(of).free() == 0 {
            return Err(full);
        }
        if self.canary == TreeCanary::ReusesAtOnce
            && let Some(at) = self.given_back(of)
        {
            self.change_delta(of, at, |delta| delta.change += 1);
            return Ok(at);
        }
        let reused = match self.canary {
            TreeCanary::ReusesEarly => self.space(of).freed.pop(),
            TreeCanary::ReusesAtLabel => self.space(of).kept.pop(),
            _ => None,
        };
        if let Some(at) = reused {
            self.space(of).held.remove(&at);
            self.space(of).fresh += 1;
            self.change_delta(of, at, |delta| *delta = FRESH);
            return Ok(at);
        }
        let mut looked = 0;
        while looked < SCAN_ROWS {
            if self.space(of).scanned > rows {
                self.space(of).scanned = 0;
                // There may be something where nobody can look.
                return Err(self.space(of).unread.take().map_or(full, TreeStop::Fault));
            }
            let cursor = match self.space(of).cursor {
                cursor if cursor < total => cursor,
                _ => 0,
            };
            let from = cursor / EACH_ROW;
            let map = match self.canary {
                TreeCanary::LooksInChangingMap => self.space(of).state.map,
                _ => self.space(of).frozen,
            };
            let mut leaf = std::mem::take(&mut self.scan);
            leaf.clear();
            let next = self.leaf_within(of.map(), map, from, &mut |key, row| {
                leaf.push((key, row.try_into().expect("rows of maps have 16 bytes")));
            });
            self.scan = leaf;
            let next = match next {
                Ok(next) => next,
                // What is counted elsewhere can be given out.
                Err((TreeStop::Fault(fault), bounds))
                    if bounds != Bounds::ALL && self.canary != TreeCanary::StopsAtDamage =>
                {
                    let end = bounds.high.saturating_add(1).min(rows);
                    let space = self.space(of);
                    space.unread.get_or_insert(fault);
                    space.scanned += end - from;
                    space.cursor = end * EACH_ROW;
                    continue;
                }
                Err((stop, _)) => return Err(stop),
            };
            // Rows that are not there are of what is free.
            let end = next.unwrap_or(rows).min(rows);
            let (found, seen) = self.scan_rows(of, cursor, end);
            let space = self.space(of);
            looked += seen;
            space.scanned += seen;
            space.cursor = found.map_or((from + seen) * EACH_ROW, |at| at + 1);
            if let Some(at) = found {
                (space.scanned, space.unread) = (0, None);
                space.fresh += 1;
                self.change_delta(of, at, |delta| *delta = FRESH);
                return Ok(at);
            }
        }
        self.news.came = true;
        Err(TreeStop::Wait)
    }

    /// A block that is held back for the caller is taken.
    pub(super) fn take_reserved(&mut self, block: u64) {
        assert!(self.blocks.held.remove(&block), "block {block} is not reserved");
        self.undo.push(Undo::Reserved { block });
        self.blocks.fresh += 1;
        self.change_delta(Of::Blocks, block, |delta| *delta = FRESH);
    }

    /// The first that is free from there on, by the rows of a leaf that ends there; and how many rows were looked at.
    fn scan_rows(&mut self, of: Of, from: u64, end: u64) -> (Option<u64>, u64) {
        let leaf = std::mem::take(&mut self.scan);
        let space = self.space(of);
        let (mut rows, mut seen, mut found) = (leaf.iter().peekable(), 0, None);
        'rows: for key in from / EACH_ROW..end {
            seen += 1;
            let row = rows.next_if(|(at, _)| *at == key).map_or([0; ROW_BYTES], |(_, row)| *row);
            let first = from.max(key * EACH_ROW).max(u64::from(of == Of::Nodes));
            let last = (key * EACH_ROW + EACH_ROW).min(space.state.total);
            for at in first..last {
                if bits(&row, at) == 0
                    && !space.deltas.contains_key(&at)
                    && !space.taken.contains(&at)
                    && !space.held.contains(&at)
                {
                    found = Some(at);
                    break 'rows;
                }
            }
            if seen == SCAN_ROWS {
                break;
            }
        }
        self.scan = leaf;
        (found, seen.max(1))
    }

    /// What the open transaction has given back: for the canary.
    fn given_back(&mut self, of: Of) -> Option<u64> {
        let space = self.space(of);
        let all: Vec<_> = space.deltas.iter().filter(|(_, delta)| delta.change < 0).collect();
        let ats: Vec<_> = all.into_iter().map(|(&at, _)| at).collect();
        let is_free = |at: &u64| self.count(of, *at) == Ok(0);
        ats.into_iter().find(is_free)
    }

    /// Brings the changes of one row into its map. False if there are none.
    pub(super) fn settle_row(&mut self) -> Result<bool, TreeStop> {
        let of = if self.blocks.deltas.is_empty() { Of::Nodes } else { Of::Blocks };
        let Some((&first, _)) = self.space(of).deltas.first_key_value() else { return Ok(false) };
        let key = first / EACH_ROW;
        let mut map = self.space(of).state.map;
        let mut row = [0; ROW_BYTES];
        self.find(of.map(), map, key, &mut row)?;
        let before = row;
        let of_row = key * EACH_ROW..(key + 1) * EACH_ROW;
        let deltas = self.space(of).deltas.range(of_row);
        let deltas: Vec<_> = deltas.map(|(&at, &delta)| (at, delta)).collect();
        let mut highs = Vec::new();
        for &(at, delta) in &deltas {
            let was = self.count_of(of, map, &before, at)?;
            let count = was as i64 + delta.change;
            let is_taken = was == 0 && count > 0;
            if !(0..=COUNT_MAX).contains(&count) || is_taken && !delta.is_fresh {
                return Err(self.wrong_count(of, at, count));
            }
            let count = count as u64;
            set_bits(&mut row, at, count.min(HIGH));
            if was.max(count) >= HIGH && was != count {
                highs.push((at, count));
            }
            // It is in no map yet, and must not be given out while the map changes.
            let settled = Delta { change: 0, base: Some(count), is_fresh: false };
            self.change_delta(of, at, |delta| *delta = settled);
            let space = self.space(of);
            space.state.used += u64::from(is_taken);
            // The label may say less than the map, if somebody else has written it.
            space.state.used = space.state.used.saturating_sub(u64::from(was > 0 && count == 0));
            space.fresh -= u64::from(delta.is_fresh);
            if is_taken {
                space.taken.insert(at);
                self.undo.push(Undo::Taken { of, at });
            } else if count == 0 {
                space.held.insert(at);
                space.freed.push(at);
                self.undo.push(Undo::Held { of, at });
            }
        }
        for (at, count) in highs {
            let mut high = [0; ROW_BYTES];
            high[..8].copy_from_slice(&count.to_le_bytes());
            map = match count {
                HIGH.. => self.insert_bytes(of.map(), map, HIGH_KEY | at, &high)?.0,
                _ => self.remove_bytes(of.map(), map, HIGH_KEY | at)?.0,
            };
        }
        if row == [0; ROW_BYTES] {
            if before != row {
                map = self.remove_bytes(of.map(), map, key)?.0;
            }
        } else if before != row {
            map = self.insert_bytes(of.map(), map, key, &row)?.0;
        }
        self.space(of).state.map = map;
        for (at, _) in deltas {
            match self.space(of).deltas.get(&at) {
                Some(Delta { change: 0, .. }) => self.forget_delta(of, at),
                // The map itself has given it back meanwhile.
                _ => self.change_delta(of, at, |delta| delta.base = None),
            }
        }
        Ok(true)
    }
}
