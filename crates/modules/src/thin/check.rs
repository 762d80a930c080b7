//! [`PoolCheck`]: looks at all that a pool has in its trees, and says what is wrong, and what that costs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;

use super::rows::{Mapping, ROOT_KINDS, VolumeRow};
use super::{Core, ThinPool};
use crate::meta::tree::{TreeCheck, TreeFault, TreeFinding, TreeStop};

/// What is wrong with a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolFinding {
    /// Something in the trees, of no volume in particular; or reference counts that are wrong.
    Trees(TreeFinding),
    /// Some of a volume cannot be read.
    Lost {
        /// Its number.
        volume: u64,
        /// Its name.
        name: String,
        /// Which bytes of it.
        bytes: Range<u64>,
        /// What is wrong.
        fault: TreeFault,
    },
    /// A volume says that it has another number of blocks than it has.
    Mapped {
        /// Its number.
        volume: u64,
        /// By its row.
        says: u64,
        /// By its tree.
        has: u64,
    },
    /// A volume has a block behind its end.
    Beyond {
        /// Its number.
        volume: u64,
        /// The block.
        block: u64,
    },
    /// A block was mapped later than the pool says that it is.
    Time {
        /// The volume's number.
        volume: u64,
        /// The block.
        block: u64,
        /// When it was mapped.
        time: u64,
    },
    /// A block that a volume would write where it is, as nobody else's, is another's, too: each may read there what the other has written.
    Overlap {
        /// The block of the data.
        block: u64,
        /// All volumes that have it, by their numbers.
        volumes: Vec<u64>,
    },
    /// A volume has no name, or that of another.
    Name {
        /// Its number.
        volume: u64,
        /// Its name.
        name: String,
    },
    /// What is there of the writer of a volume is no record, or the volume cannot be read.
    Writer {
        /// Its number.
        volume: u64,
    },
    /// There is a record of the writer of a volume that is no more.
    LeftWriter {
        /// Its number.
        volume: u64,
    },
    /// The pool would give the number of a volume to another one.
    Number {
        /// The number.
        volume: u64,
    },
}

impl fmt::Display for PoolFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolFinding::Trees(finding) => finding.fmt(f),
            PoolFinding::Lost { volume, name, bytes, fault } => write!(
                f,
                "volume {volume} ({name:?}) has lost bytes {} to {}: {fault}",
                bytes.start, bytes.end
            ),
            PoolFinding::Mapped { volume, says, has } => {
                write!(f, "volume {volume} says that it has {says} blocks, and has {has}")
            }
            PoolFinding::Beyond { volume, block } => {
                write!(f, "volume {volume} has block {block}, which is behind its end")
            }
            PoolFinding::Time { volume, block, time } => {
                write!(f, "block {block} of volume {volume} was mapped at {time}, which is to come")
            }
            PoolFinding::Overlap { block, volumes } => {
                let volumes: Vec<_> = volumes.iter().map(u64::to_string).collect();
                write!(
                    f,
                    "data block {block} is that of more than one (volumes {}), and was written as if it were of one: what is read there may be another's",
                    volumes.join(", ")
                )
            }
            PoolFinding::Name { volume, name } => {
                write!(f, "volume {volume} has no name, or that of another: {name:?}")
            }
            PoolFinding::Writer { volume } => write!(
                f,
                "who may write volume {volume} as an export is no record, or that volume cannot be read: nobody is let in to write it so; a clone of it begins without one"
            ),
            PoolFinding::LeftWriter { volume } => write!(
                f,
                "who may write volume {volume} as an export is on record, and there is no such volume: nobody goes by that"
            ),
            PoolFinding::Number { volume } => {
                write!(f, "volume {volume} has a number that the next one would get")
            }
        }
    }
}

/// Where a check is.
enum Stage {
    Trees(Box<TreeCheck>),
    /// Names and numbers.
    Table,
    /// The blocks of that volume or of the next one, from that block on, and how many there were.
    Blocks {
        volume: u64,
        from: u64,
        has: u64,
    },
    /// Likewise: who has blocks that are more than one's.
    Sharers {
        volume: u64,
        from: u64,
    },
    Done,
}

/// Verifies every node, every reference and every count of a pool, and that all of it is within its bounds. A state machine over a pool
/// that is [ready](ThinPool::is_ready) and in which nothing happens meanwhile: no volume is open, nothing waits for a commit.
/// [`PoolCheck::step`] until [`PoolCheck::is_done`].
pub struct PoolCheck {
    stage: Stage,
    found: VecDeque<PoolFinding>,
    /// How often blocks are referred to, where that is not what their counts say.
    walked: BTreeMap<u64, u64>,
    /// Who has blocks that somebody takes for nobody else's, and are not.
    overlaps: BTreeMap<u64, BTreeSet<u64>>,
    /// Counts cannot be read, which was told.
    is_blind: bool,
}

impl PoolCheck {
    /// Of a pool that is idle. `window` is how many reference counts are in memory at a time, of 4 bytes each; there are as many passes as
    /// that takes.
    ///
    /// # Panics
    /// If something waits for a commit, or is on its way.
    pub fn new(pool: &ThinPool, window: usize) -> Self {
        let core = pool.0.borrow();
        let trees = TreeCheck::new(&core.trees, ROOT_KINDS, window);
        PoolCheck {
            stage: Stage::Trees(Box::new(trees)),
            found: VecDeque::new(),
            walked: BTreeMap::new(),
            overlaps: BTreeMap::new(),
            is_blind: false,
        }
    }

    /// All was looked at, and all findings were told.
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done) && self.found.is_empty()
    }

    /// Goes on by a step, which looks at a node, or compares some counts: what is wrong, if that has come to light. False beside it: poll the
    /// pool, and come again.
    pub fn step(&mut self, pool: &ThinPool) -> (Option<PoolFinding>, bool) {
        if let Some(found) = self.found.pop_front() {
            return (Some(found), true);
        }
        let core = &mut *pool.0.borrow_mut();
        let came_on = match self.go_on(core) {
            Ok(()) => true,
            Err(TreeStop::Wait) => false,
            // It was told where it is.
            Err(_) => true,
        };
        (self.found.pop_front(), came_on)
    }

    fn go_on(&mut self, core: &mut Core) -> Result<(), TreeStop> {
        match &mut self.stage {
            Stage::Trees(check) => {
                if check.is_done() {
                    self.stage = Stage::Table;
                    return Ok(());
                }
                let finding = check.step(&mut core.trees)?;
                if let Some(TreeFinding::BlockCount { block, has, .. }) = finding {
                    self.walked.insert(block, has);
                }
                self.found.extend(finding.map(|finding| place(core, finding)));
            }
            Stage::Table => {
                self.look_at_table(core);
                self.stage = Stage::Blocks { volume: 0, from: 0, has: 0 };
            }
            &mut Stage::Blocks { volume, from, has } => {
                self.look_at_blocks(core, volume, from, has)?
            }
            &mut Stage::Sharers { volume, from } => self.look_at_sharers(core, volume, from)?,
            Stage::Done => {}
        }
        Ok(())
    }

    fn look_at_table(&mut self, core: &Core) {
        let odd = core.odd_writers.iter();
        self.found.extend(odd.map(|&volume| match core.is_no_more(volume) {
            true => PoolFinding::LeftWriter { volume },
            false => PoolFinding::Writer { volume },
        }));
        let mut names = BTreeSet::new();
        for (&volume, entry) in &core.entries {
            if entry.name.is_empty() || !names.insert(&entry.name) {
                self.found.push_back(PoolFinding::Name { volume, name: entry.name.clone() });
            }
            if volume == 0 || volume >= core.head.next_volume {
                self.found.push_back(PoolFinding::Number { volume });
            }
        }
    }

    fn look_at_blocks(
        &mut self,
        core: &mut Core,
        volume: u64,
        from: u64,
        mut has: u64,
    ) -> Result<(), TreeStop> {
        let Some((&at, entry)) = core.entries.range(volume..).next() else {
            self.stage = match self.overlaps.is_empty() {
                true => Stage::Done,
                false => Stage::Sharers { volume: 0, from: 0 },
            };
            return Ok(());
        };
        let (volume, row) = (at, entry.row);
        let mut found = Vec::<(u64, Mapping)>::new();
        let next = match core.trees.rows(row.blocks(), from..=u64::MAX, &mut found) {
            Err(TreeStop::Wait) => return Err(TreeStop::Wait),
            Ok(next) => next,
            // Of a volume that is damaged no more is said.
            Err(_) => {
                self.stage = Stage::Blocks { volume: volume + 1, from: 0, has: 0 };
                return Ok(());
            }
        };
        let end = row.bytes.div_ceil(core.head.block_bytes());
        let is_own = |mapping: &Mapping| mapping.time >= row.shared_before;
        let overlaps = match !self.is_blind && found.iter().any(|(_, mapping)| is_own(mapping)) {
            true => self.find_overlaps(core, &row, &found)?,
            false => Vec::new(),
        };
        for block in overlaps {
            self.overlaps.entry(block).or_default().insert(volume);
        }
        for (block, mapping) in found {
            has += 1;
            if block >= end {
                self.found.push_back(PoolFinding::Beyond { volume, block });
            }
            if mapping.time > core.head.time {
                self.found.push_back(PoolFinding::Time { volume, block, time: mapping.time });
            }
        }
        self.stage = match next {
            Some(from) => Stage::Blocks { volume, from, has },
            None => {
                if has != row.mapped {
                    self.found.push_back(PoolFinding::Mapped { volume, says: row.mapped, has });
                }
                Stage::Blocks { volume: volume + 1, from: 0, has: 0 }
            }
        };
        Ok(())
    }
}

impl PoolCheck {
    /// Blocks of a leaf that its volume would write where they are, and that are others', too: by their number of references, or
    /// because others have the leaf.
    fn find_overlaps(
        &mut self,
        core: &mut Core,
        row: &VolumeRow,
        leaf: &[(u64, Mapping)],
    ) -> Result<Vec<u64>, TreeStop> {
        let first = leaf.first().map_or(0, |(key, _)| *key);
        let mut own = Vec::<(u64, Mapping)>::new();
        match core.trees.own_rows(row.blocks(), first..=first, &mut own) {
            Err(TreeStop::Wait) => return Err(TreeStop::Wait),
            Err(_) => self.is_blind = true,
            Ok(_) => {}
        }
        let mut overlaps = Vec::new();
        for (_, Mapping { block, time }) in leaf {
            if *time < row.shared_before || self.is_blind {
                continue;
            }
            let count = match self.walked.get(block) {
                Some(&count) => Ok(count),
                None => core.trees.block_count(*block),
            };
            match count {
                Err(TreeStop::Wait) => return Err(TreeStop::Wait),
                Ok(count) if count > 1 || own.is_empty() => overlaps.push(*block),
                Ok(_) => {}
                Err(_) => self.is_blind = true,
            }
        }
        Ok(overlaps)
    }

    fn look_at_sharers(&mut self, core: &mut Core, volume: u64, from: u64) -> Result<(), TreeStop> {
        let Some((&volume, entry)) = core.entries.range(volume..).next() else {
            let overlaps = std::mem::take(&mut self.overlaps).into_iter();
            self.found.extend(overlaps.map(|(block, volumes)| {
                let volumes = volumes.into_iter().collect();
                PoolFinding::Overlap { block, volumes }
            }));
            self.stage = Stage::Done;
            return Ok(());
        };
        let mut found = Vec::<(u64, Mapping)>::new();
        let next = match core.trees.rows(entry.row.blocks(), from..=u64::MAX, &mut found) {
            Err(TreeStop::Wait) => return Err(TreeStop::Wait),
            Err(_) => None,
            Ok(next) => next,
        };
        for (_, mapping) in found {
            if let Some(volumes) = self.overlaps.get_mut(&mapping.block) {
                volumes.insert(volume);
            }
        }
        self.stage = match next {
            Some(from) => Stage::Sharers { volume, from },
            None => Stage::Sharers { volume: volume + 1, from: 0 },
        };
        Ok(())
    }
}

/// What is wrong in the trees, as what it costs a volume, where it is that.
fn place(core: &Core, finding: TreeFinding) -> PoolFinding {
    match finding {
        TreeFinding::Damaged { within: Some(volume), fault, lost } => {
            let entry = core.entries.get(&volume);
            let size = entry.map_or(u64::MAX, |entry| entry.row.bytes);
            let byte = |block: u64| block.saturating_mul(core.head.block_bytes()).min(size);
            let bytes = byte(*lost.start())..byte(lost.end().saturating_add(1));
            let name = entry.map_or_else(String::new, |entry| entry.name.clone());
            PoolFinding::Lost { volume, name, bytes, fault }
        }
        finding => PoolFinding::Trees(finding),
    }
}
