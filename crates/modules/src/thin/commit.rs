//! When what was changed becomes durable, what waits for that, and what becomes of blocks that a commit has freed.

use std::collections::VecDeque;

use thinwire_buffer::Time;
use thinwire_volume::{ErrorKind, Io, Op, VolumeEvent};

use super::drive::Sub;
use super::jobs::Stage;
use super::opening::Phase;
use super::ops::PoolError;
use super::rows::VolumeRow;
use super::writers::Writer;
use super::{Core, ENDS, Entry, PoolCanary, PoolHead, tell_all};
use crate::meta::tree::{TreeFault, TreePointer, TreeStop};

/// So many discards are under way at most.
pub(super) const DISCARDS_MAX: u32 = 4;
/// Most bytes of one of them.
pub(super) const DISCARD_BYTES_MAX: u64 = 64 << 20;

/// Why nothing is changed any more.
pub(super) struct Stopped {
    pub kind: ErrorKind,
    pub why: String,
}

impl Stopped {
    /// What an operation is told.
    pub fn error(&self) -> PoolError {
        PoolError::Stopped { kind: self.kind, why: self.why.clone() }
    }
}

/// Commits, counted from 1 on since the pool was opened.
pub(super) struct Commits {
    /// What is changed now is made durable by this one.
    open: u64,
    under_way: Option<u64>,
    durable: u64,
    /// Somebody waits for the next one.
    pub is_wanted: bool,
    /// Since when something waits for it.
    since: Option<Time>,
    pub stopped: Option<Stopped>,
    /// What volumes were like before what is open changed them, and before what is under way did; none if they were not there.
    undo_open: Vec<(u64, Option<VolumeRow>)>,
    undo_under_way: Vec<(u64, Option<VolumeRow>)>,
    /// How often data was lost that may have been mapped.
    pub losses: u32,
    /// Runs of blocks that durable commits have freed and that are to be discarded: the first, and how many.
    freed: VecDeque<(u64, u64)>,
    /// How many blocks are in these runs, and being discarded.
    pub freed_blocks: u64,
    discarding: u32,
    blocks: Vec<u64>,
    /// I/Os that are given blocks, and those that wait to be.
    pub provisioning: u32,
    pub queue: VecDeque<u32>,
}

impl Commits {
    /// Somebody waits for it to go on, or for what follows.
    pub fn waits(&self) -> bool {
        let is_asked = self.is_wanted || self.under_way.is_some() || !self.queue.is_empty();
        is_asked || !self.freed.is_empty() || self.discarding > 0
    }

    pub fn new() -> Self {
        Commits {
            open: 1,
            under_way: None,
            durable: 0,
            is_wanted: false,
            since: None,
            stopped: None,
            undo_open: Vec::new(),
            undo_under_way: Vec::new(),
            losses: 0,
            freed: VecDeque::new(),
            freed_blocks: 0,
            discarding: 0,
            blocks: Vec::new(),
            provisioning: 0,
            queue: VecDeque::new(),
        }
    }

    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    pub fn is_durable(&self, commit: u64) -> bool {
        commit <= self.durable
    }

    /// The one that has what is changed now.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Blocks are being discarded, or are about to be.
    pub fn is_discarding(&self) -> bool {
        self.discarding > 0 || !self.freed.is_empty()
    }

    /// Blocks that are given to nobody are to be discarded.
    pub fn discard(&mut self, first: u64, count: u64) {
        self.freed.push_back((first, count));
        self.freed_blocks += count;
    }

    /// Something was changed.
    pub fn on_change(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }
}

impl Core {
    /// A volume is like that from now on.
    pub(super) fn set_row(&mut self, volume: u64, row: VolumeRow) {
        let commit = self.commits.open;
        let entry = self.entries.get_mut(&volume).expect("it is there");
        if entry.changed_in != commit {
            self.commits.undo_open.push((volume, Some(entry.row)));
        }
        let keeps = row.kept != entry.row.kept;
        (entry.row, entry.changed_in) = (row, commit);
        if keeps {
            self.count_kept();
        }
        self.commits.on_change(self.now);
    }

    /// A volume is there from now on.
    pub(super) fn add_row(&mut self, volume: u64, row: VolumeRow, name: String) {
        let open = self.commits.open;
        self.commits.undo_open.push((volume, None));
        let writer = Writer::None;
        let entry = Entry { row, name, slot: None, changed_in: open, added_in: open, writer };
        self.entries.insert(volume, entry);
        self.count_kept();
        self.commits.on_change(self.now);
    }

    /// Data is lost that may have been mapped since the last commit. What such a block has now may be another volume's (rule 9), so that all
    /// volumes are as of that commit again: it has all of its nodes, and nobody was given the blocks that it maps.
    fn go_back(&mut self) {
        if self.canary == PoolCanary::ReadsWhatWasLost {
            return;
        }
        self.commits.losses += 1;
        let mut undo = std::mem::take(&mut self.commits.undo_open);
        if !self.trees.is_labelling() {
            undo.splice(..0, self.commits.undo_under_way.drain(..));
        }
        for (volume, before) in undo.drain(..).rev() {
            match (self.entries.get_mut(&volume), before) {
                (Some(entry), Some(row)) => entry.row = row,
                // Nobody has it open.
                (Some(_), None) => _ = self.entries.remove(&volume),
                (None, _) => {}
            }
        }
        self.count_kept();
    }

    /// Something of that volume is not durable, beside data.
    pub(super) fn is_changed(&self, volume: u64) -> bool {
        self.entries.get(&volume).is_some_and(|entry| entry.changed_in > self.commits.durable)
    }

    /// A job has to be durable: a flush, or what was done with FUA. All that has completed of its volume becomes so.
    pub(super) fn sync(&mut self, id: u32) {
        self.unlock(id);
        self.end_writing(id);
        let job = self.jobs.get_mut(id);
        job.stage = Stage::Wait;
        let changed = self.entries.get(&job.volume).map_or(0, |entry| entry.changed_in);
        let is_changed = changed > self.commits.durable;
        if self.config.read_only {
            return self.finish(id);
        }
        if let Some(stopped) = &self.commits.stopped {
            let kind = stopped.kind;
            return self.fail(id, kind);
        }
        let is_blind = self.canary == PoolCanary::FlushWithoutCommit;
        job.commit = if is_changed && !is_blind { changed } else { 0 };
        if job.commit == self.commits.open {
            // That one has yet to begin, and flushes the data then.
            self.commits.is_wanted = true;
            return self.look_at_sync(id);
        }
        job.pending += 1;
        let token = self.subs.insert(Sub::Flush { job: id }).into();
        self.has_sent = true;
        self.data.submit(Io::new(token, Op::Flush, 0, 0));
    }

    /// Ends a job that has to be durable, if it is.
    pub(super) fn look_at_sync(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        if job.error.is_some() {
            return self.finish(id);
        }
        if let Some(stopped) = &self.commits.stopped {
            let kind = stopped.kind;
            return self.fail(id, kind);
        }
        match job.commit > self.commits.durable {
            true => self.syncing.push(id),
            false => self.finish(id),
        }
    }

    /// Begins a commit, if one is due.
    pub(super) fn step_commit(&mut self) {
        let commits = &mut self.commits;
        // Labels are written by one at a time.
        let is_free =
            commits.under_way.is_none() && commits.stopped.is_none() && self.growth.is_idle();
        let is_due =
            commits.since.is_some_and(|since| self.now >= since + self.config.commit_after);
        if !is_free || self.phase != Phase::Serving || !(commits.is_wanted || is_due) {
            return;
        }
        let roots = [self.volumes.at, self.names.at, self.writers.at, TreePointer::NONE];
        let ended = if self.marks_end { self.trees.label_mut().openings } else { 0 };
        let untrimmed = match ended {
            0 => 0,
            _ => self.trim.next.map_or(0, |next| next + 1),
        };
        let has_writers = !self.writers.at.is_none();
        let head = PoolHead { ended, untrimmed, has_writers, ..self.head };
        match self.trees.commit(roots, &head.encode()) {
            Ok(()) => {
                self.ends_left = match std::mem::take(&mut self.marks_end) {
                    true => self.ends_left - 1,
                    false => ENDS,
                };
                let commits = &mut self.commits;
                commits.under_way = Some(commits.open);
                commits.undo_under_way.clear();
                std::mem::swap(&mut commits.undo_under_way, &mut commits.undo_open);
                commits.open += 1;
                (commits.is_wanted, commits.since) = (false, None);
            }
            Err(TreeStop::Fault(fault)) => self.stop(fault.kind(), fault.to_string()),
            Err(_) => {}
        }
    }

    /// A commit has ended.
    pub(super) fn on_committed(&mut self, committed: Result<u64, TreeFault>) {
        if let Err(fault) = committed {
            let kind = match &fault {
                TreeFault::Unflushed(error) | TreeFault::Unwritten(error) => error.kind,
                _ => ErrorKind::Io,
            };
            return self.stop(kind, fault.to_string());
        }
        if let Some(commit) = self.commits.under_way.take() {
            self.commits.durable = commit;
            self.commits.undo_under_way.clear();
        }
        let mut blocks = std::mem::take(&mut self.commits.blocks);
        self.trees.take_freed(&mut blocks);
        blocks.sort_unstable();
        self.commits.freed_blocks += blocks.len() as u64;
        let most = (DISCARD_BYTES_MAX >> self.head.block_shift).max(1);
        for block in blocks.drain(..) {
            match self.commits.freed.back_mut() {
                Some((first, count)) if *first + *count == block && *count < most => *count += 1,
                _ => self.commits.freed.push_back((block, 1)),
            }
        }
        self.commits.blocks = blocks;
        if !self.trees.is_in_both() {
            // What it has freed comes back with another one.
            self.commits.on_change(self.now);
        }
        self.ripe.extend(self.syncing.drain(..));
        self.wake_stalled();
    }

    /// Something waits for a commit, or for one more.
    pub(super) fn wants_commit(&self) -> bool {
        self.trees.has_changes() || !self.trees.is_in_both()
    }

    /// Whoever waits for room looks again.
    pub(super) fn wake_stalled(&mut self) {
        self.ripe.extend(self.stalled.drain(..));
        self.ops.wake();
    }

    /// Discards what durable commits have freed (rule 10).
    pub(super) fn step_discards(&mut self) {
        let shift = self.head.block_shift;
        while self.commits.discarding < DISCARDS_MAX
            && self.commits.stopped.is_none()
            && let Some((first, count)) = self.commits.freed.pop_front()
        {
            self.commits.discarding += 1;
            let token = self.subs.insert(Sub::Discard { first, count }).into();
            self.has_sent = true;
            let offset = self.data_start + (first << shift);
            self.data.submit(Io::new(token, Op::Discard, offset, count << shift));
            if self.canary == PoolCanary::GivesOutEarly {
                (first..first + count).for_each(|block| self.trees.give_out(block));
            }
        }
    }

    /// Blocks were discarded, or could not be, which changes nothing for whoever gets them.
    pub(super) fn on_discarded(&mut self, first: u64, count: u64) {
        self.commits.discarding -= 1;
        self.commits.freed_blocks -= count;
        if self.canary == PoolCanary::GivesOutEarly {
            return;
        }
        (first..first + count).for_each(|block| self.trees.give_out(block));
        self.wake_stalled();
    }

    /// Discards what was found of a volume: a planted fault.
    pub(super) fn discard_found(&mut self, row: &VolumeRow) {
        if !self.data.geometry().features.discard {
            return;
        }
        let shift = self.head.block_shift;
        let found = std::mem::take(&mut self.found);
        for (_, mapping) in &found {
            if self.is_shared(row, mapping) {
                continue;
            }
            let token = self.subs.insert(Sub::Nothing).into();
            let offset = self.data_start + (mapping.block << shift);
            self.data.submit(Io::new(token, Op::Discard, offset, 1 << shift));
        }
        self.found = found;
    }

    /// The data part has lost what was not durable, or may have.
    pub(super) fn stop_at_data_loss(&mut self, kind: ErrorKind, why: String) {
        self.go_back();
        match self.commits.is_stopped() {
            true => tell_all(&mut self.slots, VolumeEvent::Lost),
            false => self.stop(kind, why),
        }
    }

    /// Nothing is changed any more: what completed and is not durable may be lost.
    pub(super) fn stop(&mut self, kind: ErrorKind, why: String) {
        if self.commits.stopped.is_some() {
            return;
        }
        // What is short of space below is no space of the pool.
        let kind = if kind == ErrorKind::NoSpace { ErrorKind::Io } else { kind };
        self.commits.stopped = Some(Stopped { kind, why });
        self.commits.under_way = None;
        self.trees.stop_at_loss();
        tell_all(&mut self.slots, VolumeEvent::Lost);
        self.ripe.extend(self.syncing.drain(..));
        self.ripe.extend(self.waiting.drain(..));
        self.ripe.extend(self.commits.queue.drain(..));
        self.wake_stalled();
    }

    /// What a job lacks may still come: something is being given back.
    pub(super) fn may_come(&mut self) -> bool {
        self.commits.stopped.is_none()
            && (self.commits.is_discarding()
                || self.ops.is_reaping() && !self.ops.waits_to_reap()
                || self.commits.is_under_way())
    }

    /// When a commit is due by itself.
    pub(super) fn next_commit(&self) -> Time {
        match (self.commits.since, self.commits.is_under_way() || self.commits.is_stopped()) {
            (Some(since), false) => since + self.config.commit_after,
            _ => Time::NEVER,
        }
    }
}
