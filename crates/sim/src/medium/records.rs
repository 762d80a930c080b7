//! The writer record of a medium: what a process stores, what survives, and who may be told what of it.

use std::collections::VecDeque;

use thinwire_volume::{DiskOpKind, SyncScope, WriterRecord};

use super::effects::{EIO, Medium, SyncFailure};
use super::{MediumHandle, SimDisk};

/// What becomes of a record that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFate {
    /// It is durable.
    Stored,
    /// Its sync fails. It is there, and durable if this says so.
    Failed(bool),
    /// The process dies over it. It is there, durably, if this says so.
    Dies(bool),
}

/// An operation of the writer record.
pub(super) fn is_record(kind: &DiskOpKind) -> bool {
    use DiskOpKind::{KeepSize, LoadWriter, StoreWriter};
    matches!(kind, LoadWriter(_) | StoreWriter(_) | KeepSize)
}

/// What stands beside a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kept {
    /// The size that somebody may have been told; 0 before the first opening.
    bytes: u64,
    /// How often the content was found smaller.
    incarnation: u64,
    /// Of a gateway's record: under which generations it held the leaves.
    leaves: Vec<u64>,
}

/// The record, and what is known of those that were stored.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// As a process reads it, and as it survives a power failure.
    current: WriterRecord,
    durable: WriterRecord,
    /// What stands beside them.
    kept: Kept,
    kept_durable: Kept,
    /// Stored with the next record.
    keeps: Kept,
    /// Those that became durable by a success that somebody was told of, in order.
    commits: Vec<WriterRecord>,
    /// How many of them there were when a process read the record last.
    found: usize,
    /// Somebody else than a gateway that stands on it has written through its target.
    has_users: bool,
    /// Those that could not be stored, and those of them whose holder was told so.
    failed: Vec<WriterRecord>,
    denied: Vec<WriterRecord>,
    /// What becomes of the next ones; of later ones chance decides.
    script: VecDeque<RecordFate>,
    /// The process dies before it says another word.
    dies: bool,
}

impl Records {
    pub fn power_failure(&mut self) {
        (self.current, self.kept) = (self.durable, self.kept_durable.clone());
    }

    /// It is what a process finds, durable or not.
    fn put(&mut self, record: WriterRecord, is_durable: bool) {
        (self.current, self.kept) = (record, self.keeps.clone());
        if is_durable {
            self.save();
        }
    }

    /// What a process finds is durable.
    fn save(&mut self) {
        (self.durable, self.kept_durable) = (self.current, self.kept.clone());
    }

    /// What a process that opens a content of so many bytes now makes of what it finds.
    fn found_with(&self, bytes: u64, forgets: bool) -> Kept {
        let is_smaller = self.kept.bytes > bytes && !forgets;
        let incarnation = self.kept.incarnation + u64::from(is_smaller);
        Kept { bytes, incarnation, leaves: self.kept.leaves.clone() }
    }

    /// What dies with the process.
    pub fn forget_process(&mut self) {
        self.dies = false;
        // Who is told no by the next process is told so of what that one could not read or store.
        self.failed.clear();
    }
}

impl Medium {
    /// The process reads the record, and makes it durable; and what could not be remembered beside it when the
    /// content was opened.
    pub fn load_record(&mut self) -> Result<WriterRecord, i32> {
        self.records.keeps.leaves.clone_from(&self.records.kept.leaves);
        if self.records.kept == self.records.keeps {
            self.sync_record()?;
        } else {
            self.try_store_record(self.records.current)?;
        }
        if self.records.denied.contains(&self.records.current) {
            let record = self.records.current;
            self.breach.get_or_insert_with(|| {
                format!("{} was told no, and is the writer after a restart", record.name.as_str())
            });
        }
        // What a former life could not make durable is the grant now, whoever is refused from here on.
        self.records.failed.retain(|record| *record != self.records.current);
        self.records.found = self.records.commits.len();
        Ok(self.records.current)
    }

    /// A holder was told that it could not be recorded.
    pub fn deny(&mut self, holder: &[u8; 16]) {
        let told = self.records.failed.iter().filter(|record| record.holder == *holder);
        self.records.denied.extend(told);
        self.records.failed.retain(|record| record.holder != *holder);
    }

    /// The process replaces the record. One whose sync fails stays, and may be durable.
    pub fn store_record(&mut self, record: WriterRecord) -> Result<(), i32> {
        if self.records.dies {
            return Err(EIO);
        }
        self.records.denied.retain(|denied| *denied != record);
        let stored = self.try_store_record(record);
        if stored.is_ok() {
            // What has failed before has been made good: who is told no later is told of another.
            self.records.failed.retain(|failed| *failed != record);
        }
        // One that was in force before is nobody's new grant: it is stored anew before another, also if that its writer had
        // ended could not be stored, and was made durable all the same with a size.
        if stored.is_err() && !self.records.dies && !self.records.commits.contains(&record) {
            self.records.failed.push(record);
        }
        stored
    }

    fn try_store_record(&mut self, record: WriterRecord) -> Result<(), i32> {
        match self.records.script.pop_front() {
            None => {}
            Some(RecordFate::Dies(stored)) => {
                self.records.dies = true;
                self.stats.record_crashes += 1;
                if stored {
                    self.records.put(record, true);
                }
                return Err(EIO);
            }
            Some(fate) => {
                self.records.put(record, fate != RecordFate::Failed(false));
                if fate == RecordFate::Stored {
                    self.records.commits.push(record);
                    return Ok(());
                }
                self.stats.record_failures += 1;
                return Err(EIO);
            }
        }
        let config = self.config;
        if self.chance(config.record_crash) {
            self.records.dies = true;
            self.stats.record_crashes += 1;
        }
        if self.records.dies && self.rng.chance(0.3) {
            return Err(EIO);
        }
        self.records.put(record, false);
        self.sync_record()?;
        if self.records.dies { Err(EIO) } else { Ok(()) }
    }

    fn sync_record(&mut self) -> Result<(), i32> {
        self.follow_device();
        let config = self.config;
        // A description that was opened for this tells of errors that nobody has been told of.
        let mut pending = self.writeback_errors > self.content_seen && !self.writeback_seen;
        if config.record_shares_description {
            pending = self.writeback_errors > self.content_seen;
            self.content_seen = self.writeback_errors;
        }
        self.writeback_seen |= pending;
        if !pending && !self.chance(config.record_failure) {
            self.records.save();
            if !self.records.dies && self.records.commits.last() != Some(&self.records.current) {
                self.records.commits.push(self.records.current);
            }
            return Ok(());
        }
        self.stats.record_failures += 1;
        if self.rng.chance(0.5) {
            self.records.save();
        }
        if !pending && self.rng.chance(config.device_failure) {
            // The device could not flush its cache, and tells nobody but this caller.
            let _ = self.fail_sync(Some(SyncFailure::Device), u64::MAX);
        }
        Err(EIO)
    }

    /// A record that a dead process was storing: nobody was told of it, and it may be there all the same.
    pub fn land_record(&mut self, record: WriterRecord) {
        if self.rng.chance(0.3) {
            return;
        }
        self.records.denied.retain(|denied| *denied != record);
        let is_durable = self.rng.chance(0.5);
        self.records.put(record, is_durable);
    }

    /// The process opens the content, and has it remember its size, durably. If that fails, nobody writes before
    /// it has been made good; but where the content was ever cut, nobody is let in: the process ends.
    pub fn open_kept(&mut self) {
        let (bytes, forgets) = (self.config.bytes, self.config.forgets_cuts);
        self.records.keeps = self.records.found_with(bytes, forgets);
        // That it was cut may have been remembered by a process that could not make it durable.
        let was_cut = self.records.keeps.incarnation != 0;
        if self.records.kept == self.records.keeps && !was_cut {
            return;
        }
        let scope = SyncScope::new([self.device.domain.clone()]);
        let mark = scope.begin();
        let stored = self.try_store_record(self.records.current);
        scope.end(mark, stored.is_err());
        if stored.is_err() {
            // The process waits for it: so all of it knows what it has lost of others that it has on the device.
            self.failed_syncs.1 = self.failed_syncs.0;
            self.hear_failures(self.device.failures());
            self.stats.opening_failures += 1;
            self.records.dies |= was_cut;
        }
    }

    /// The process makes the size durable that was there at `mark`, then remembers it.
    pub fn keep_size(&mut self, mark: u64, bytes: u64) -> Result<(), i32> {
        if self.records.dies {
            return Err(EIO);
        }
        self.sync_record()?;
        self.sizes.settle(mark);
        self.records.keeps.bytes = bytes;
        let kept = self.store_record(self.records.current);
        if kept.is_ok() {
            self.size_offered = bytes;
        }
        kept
    }

    /// A dead process was about to do that: how far it came nobody knows.
    pub fn land_size(&mut self, mark: u64, bytes: u64) {
        if self.rng.chance(0.5) {
            return;
        }
        self.sizes.settle(mark);
        // What the process that died was to remember; nobody else has it open.
        let keeps = Kept { bytes, ..self.records.keeps.clone() };
        if self.rng.chance(0.5) {
            self.records.kept = keeps;
            if self.rng.chance(0.5) {
                self.records.save();
            }
        }
    }
}

impl SimDisk {
    /// The generations of leaves that stand beside the record, as a process reads both, durable or not.
    pub fn leaves(&self) -> Vec<u64> {
        self.handle.medium.borrow().records.kept.leaves.clone()
    }

    /// These are stored with the next record, in one step.
    pub fn keep_leaves(&self, generations: Vec<u64>) {
        self.handle.medium.borrow_mut().records.keeps.leaves = generations;
    }
}

impl MediumHandle {
    /// Which life of its content a process finds that opens it now.
    pub(super) fn incarnation(&self) -> u64 {
        let m = self.medium.borrow();
        m.records.found_with(m.config.bytes, m.config.forgets_cuts).incarnation
    }

    /// It was cut, and a power failure leaves nothing that says so. Were it made longer now, nobody could know.
    pub(crate) fn is_cut_in_secret(&self) -> bool {
        let m = self.medium.borrow();
        m.records.kept_durable.bytes > m.config.bytes
    }

    /// Share of writer records that cannot be stored from now on.
    pub fn set_record_failure(&self, rate: f64) {
        self.medium.borrow_mut().config.record_failure = rate;
    }

    /// A client was told that it could not be recorded as the writer: it must not be, after a
    /// restart.
    pub fn deny(&self, holder: &[u8; 16]) {
        self.medium.borrow_mut().deny(holder);
    }

    /// What becomes of the next records that are stored: for scripted tests.
    pub fn script_records(&self, fates: impl IntoIterator<Item = RecordFate>) {
        self.medium.borrow_mut().records.script = fates.into_iter().collect();
    }

    /// The process that uses it dies before it says another word.
    pub fn dies(&self) -> bool {
        self.medium.borrow().records.dies
    }

    /// Records that became durable and that a process could act on, oldest first: each that names a
    /// holder is a grant, heard or not.
    pub fn commits(&self) -> Vec<WriterRecord> {
        self.medium.borrow().records.commits.clone()
    }

    /// Those of them that whoever has read the record last has made itself.
    pub fn commits_since_read(&self) -> Vec<WriterRecord> {
        let records = &self.medium.borrow().records;
        records.commits[records.found..].to_vec()
    }

    /// Somebody else than a gateway that stands on it writes through its target, or has.
    pub fn note_user(&self) {
        self.medium.borrow_mut().records.has_users = true;
    }

    /// Whether that was said.
    pub fn has_users(&self) -> bool {
        self.medium.borrow().records.has_users
    }

    /// The last of them: who is on record.
    pub fn on_record(&self) -> Option<WriterRecord> {
        self.medium.borrow().records.commits.last().copied()
    }
}
