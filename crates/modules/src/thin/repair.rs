//! [`PoolRepair`]: puts right what a check has found, as far as nothing is lost by it.

use std::collections::VecDeque;

use thinwire_volume::ErrorKind;

use super::check::PoolFinding;
use super::ops::PoolError;
use super::rows::{ROOT_KINDS, TIME_MAX};
use super::{Core, ThinPool};
use crate::meta::tree::{TreeCheck, TreeFault, TreeFinding, TreeStop};

/// Reference counts in memory at a time, of 4 bytes each, while a map is made anew.
const WINDOW: usize = 4 << 20;

/// Gives back what counts have kept for nothing, and sees to it that nothing is given out that is in use, nor written by more than one: counts of nodes and blocks,
/// how many blocks a volume has, what damage has kept of volumes that were deleted, records of their writers, blocks that more than one takes for its own, and maps of counts that are damaged themselves. A state machine over a pool in which nothing else
/// happens, opened [for this](super::PoolConfig::repairs): [`PoolRepair::step`] until [`PoolRepair::is_done`], a commit, and another check, which may find
/// more: what a damaged node of a deleted volume referred to comes to light when that is forgotten.
pub struct PoolRepair {
    left: VecDeque<PoolFinding>,
    forgets: bool,
    forgets_from: u64,
    is_done: bool,
    done: u64,
    /// Maps of counts that are made anew, of nodes and of blocks, and what does that.
    maps: [bool; 2],
    making: Option<Box<TreeCheck>>,
    /// The time that was drawn for volumes that have blocks in common.
    shared_before: Option<u64>,
    /// The pool, while some of what is in use is still free by its count, and some of that was put right: a commit would take it.
    half: Option<ThinPool>,
}

/// It is in use, and free by its count: whoever takes it destroys it.
fn is_urgent(finding: &PoolFinding) -> bool {
    matches!(
        finding,
        PoolFinding::Trees(
            TreeFinding::NodeCount { says: 0, .. } | TreeFinding::BlockCount { says: 0, .. }
        )
    )
}

/// It is damage of that map of counts.
fn of_map(finding: &PoolFinding) -> Option<usize> {
    match finding {
        PoolFinding::Trees(finding) => finding.of_map(),
        _ => None,
    }
}

impl PoolRepair {
    /// Of all that a check of the pool as it is now has found.
    pub fn new(found: &[PoolFinding]) -> Self {
        let can = |finding: &&PoolFinding| Self::can(finding);
        let mut left: Vec<_> = found.iter().filter(can).cloned().collect();
        left.sort_by_key(|finding| !is_urgent(finding));
        // Only damage keeps what was deleted.
        let is_damage = |finding: &PoolFinding| {
            matches!(finding, PoolFinding::Trees(TreeFinding::Damaged { .. }))
        };
        let forgets = found.iter().any(is_damage);
        let mut maps = [false; 2];
        for map in found.iter().filter_map(of_map) {
            maps[map] = true;
        }
        // All that refers to something has to be known.
        let is_lost = |finding: &PoolFinding| {
            matches!(finding, PoolFinding::Lost { .. })
                || is_damage(finding) && of_map(finding).is_none()
        };
        if found.iter().any(is_lost) {
            maps = [false; 2];
        }
        if maps != [false; 2] {
            // By what is counted anew.
            left.retain(|finding| !matches!(finding, PoolFinding::Trees(_)));
        }
        // Of what cannot be read nothing is put right one by one.
        left.retain(|finding| of_map(finding).is_none());
        PoolRepair {
            left: left.into(),
            forgets,
            forgets_from: 0,
            is_done: false,
            done: 0,
            maps,
            making: None,
            shared_before: None,
            half: None,
        }
    }

    /// Whether that can be put right; of damaged maps of counts if nothing else is damaged; of an [overlap](PoolFinding::Overlap) only that no more is written there, which does not bring back
    /// what was.
    pub fn can(finding: &PoolFinding) -> bool {
        matches!(
            finding,
            PoolFinding::Trees(TreeFinding::NodeCount { .. } | TreeFinding::BlockCount { .. })
                | PoolFinding::Mapped { .. }
                | PoolFinding::Overlap { .. }
                | PoolFinding::LeftWriter { .. }
        ) || of_map(finding).is_some()
    }

    /// There is nothing left to do, but for a commit.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// How much was put right.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Goes on by a step. False: poll the pool, and come again.
    ///
    /// # Errors
    /// It cannot go on: what was done is done, unless some of what is in use is still free by its count; then nothing of it is kept.
    pub fn step(&mut self, pool: &ThinPool) -> Result<bool, PoolError> {
        let stepped = self.step_once(pool);
        let is_urgent = self.done > 0 && self.left.front().is_some_and(is_urgent);
        let is_half = is_urgent || self.making.is_some();
        self.half = is_half.then(|| pool.clone());
        stepped
    }

    fn step_once(&mut self, pool: &ThinPool) -> Result<bool, PoolError> {
        let core = &mut *pool.0.borrow_mut();
        let is_urgent = self.left.front().is_some_and(is_urgent);
        if let Some(stopped) = &core.commits.stopped {
            return Err(stopped.error());
        }
        match self.go_on(core) {
            Ok(()) => Ok(true),
            Err(TreeStop::Wait) => Ok(false),
            Err(TreeStop::Commit) if is_urgent && self.done > 0 => {
                let why = "more is counted as free that is in use than one change has room for";
                Err(PoolError::Stopped { kind: ErrorKind::Io, why: why.into() })
            }
            Err(TreeStop::Commit) => {
                core.commits.is_wanted = true;
                core.settle();
                Ok(false)
            }
            Err(TreeStop::NoNodes | TreeStop::NoBlocks) => Err(PoolError::NoRoom),
            Err(TreeStop::Fault(fault)) => Err(fault.into()),
        }
    }

    fn go_on(&mut self, core: &mut Core) -> Result<(), TreeStop> {
        if self.maps != [false; 2] {
            return self.make_maps(core);
        }
        let Some(finding) = self.left.front() else {
            self.is_done = !self.forgets;
            if self.forgets {
                let mut change = core.trees.change_to_free()?;
                self.forgets = change.forget_unreadable(&mut self.forgets_from)?;
                change.apply()?;
                self.done += u64::from(self.forgets);
                core.commits.on_change(core.now);
            }
            return Ok(());
        };
        match *finding {
            PoolFinding::Trees(ref finding) => {
                let mut change = core.trees.change_to_free()?;
                change.recount(finding)?;
                change.apply()?;
                core.commits.on_change(core.now);
            }
            PoolFinding::Mapped { volume, has, .. } => {
                if let Some(entry) = core.entries.get(&volume) {
                    let mut row = entry.row;
                    row.mapped = has;
                    let mut change = core.trees.change_to_free()?;
                    let (volumes, _) = change.insert(core.volumes, volume, &row)?;
                    change.apply()?;
                    core.volumes = volumes;
                    core.set_row(volume, row);
                }
            }
            PoolFinding::Overlap { ref volumes, .. } => {
                for volume in volumes {
                    Self::share(core, &mut self.shared_before, *volume)?;
                }
            }
            PoolFinding::LeftWriter { volume } => {
                core.forget_writer(volume)?;
                core.commits.on_change(core.now);
            }
            _ => {}
        }
        self.left.pop_front();
        self.done += 1;
        Ok(())
    }
}

impl PoolRepair {
    /// Goes on counting anew what maps say that cannot be read.
    fn make_maps(&mut self, core: &mut Core) -> Result<(), TreeStop> {
        if self.making.is_none() {
            if !core.trees.is_idle() || core.wants_commit() {
                return Err(TreeStop::Commit);
            }
            let making = TreeCheck::making_maps(&core.trees, ROOT_KINDS, WINDOW, self.maps);
            self.making = Some(Box::new(making));
        }
        let Some(making) = &mut self.making else { return Ok(()) };
        match making.step(&mut core.trees)? {
            None if making.is_done() && !making.is_damaged() => {}
            None if making.is_done() => {
                let why = "cannot all be read: check it once more";
                return Err(TreeFault::State { why }.into());
            }
            None => return Ok(()),
            Some(TreeFinding::Damaged { fault, .. }) => return Err(fault.into()),
            Some(_) => {
                let why = "is not what a check has found: check it once more";
                return Err(TreeFault::State { why }.into());
            }
        }
        (self.maps, self.making) = ([false; 2], None);
        self.done += 1;
        core.commits.on_change(core.now);
        core.commits.is_wanted = true;
        Ok(())
    }

    /// A volume takes all that it has for others', too, from now on: what it writes goes to blocks of its own.
    fn share(core: &mut Core, time: &mut Option<u64>, volume: u64) -> Result<(), TreeStop> {
        let Some(mut row) = core.entries.get(&volume).map(|entry| entry.row) else { return Ok(()) };
        let before = time.unwrap_or(core.head.time + 1);
        if row.shared_before >= before {
            return Ok(());
        }
        if before >= TIME_MAX {
            let why = "counts no more snapshots, which a repair of overlaps takes";
            return Err(TreeFault::State { why }.into());
        }
        row.shared_before = before;
        let mut change = core.trees.change_to_free()?;
        let (volumes, _) = change.insert(core.volumes, volume, &row)?;
        change.apply()?;
        core.volumes = volumes;
        core.head.time = before;
        *time = Some(before);
        core.set_row(volume, row);
        Ok(())
    }
}

impl Drop for PoolRepair {
    /// One that ends in the middle of what is urgent, or cannot go on there, leaves the pool as it was: the commit that would make the half
    /// durable takes nodes by counts that are wrong.
    fn drop(&mut self) {
        if let Some(pool) = self.half.take() {
            let why = "a repair has ended half way: nothing of it was kept".into();
            pool.0.borrow_mut().stop(ErrorKind::Io, why);
        }
    }
}
