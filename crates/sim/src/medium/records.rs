//! The writer record of a medium: what a process stores, what survives, and who may be told what of it.

use std::collections::VecDeque;

use thinwire_volume::{DiskOpKind, WriterRecord};

use super::MediumHandle;
use super::effects::{EIO, Medium, SyncFailure};

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
    matches!(kind, DiskOpKind::LoadWriter(_) | DiskOpKind::StoreWriter(_))
}

/// The record, and what is known of those that were stored.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// As a process reads it, and as it survives a power failure.
    current: WriterRecord,
    durable: WriterRecord,
    /// Those that became durable by a success that somebody was told of, in order.
    commits: Vec<WriterRecord>,
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
        self.current = self.durable;
    }

    /// What dies with the process.
    pub fn forget_process(&mut self) {
        self.dies = false;
        // Who is told no by the next process is told so of what that one could not read or store.
        self.failed.clear();
    }
}

impl Medium {
    /// The process reads the record, and makes it durable.
    pub fn load_record(&mut self) -> Result<WriterRecord, i32> {
        self.sync_record()?;
        if self.records.denied.contains(&self.records.current) {
            let record = self.records.current;
            self.breach.get_or_insert_with(|| {
                format!("{} was told no, and is the writer after a restart", record.name.as_str())
            });
        }
        // What a former life could not make durable is the grant now, whoever is refused from here on.
        self.records.failed.retain(|record| *record != self.records.current);
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
        if stored.is_err() && !self.records.dies && self.records.commits.last() != Some(&record) {
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
                    (self.records.current, self.records.durable) = (record, record);
                }
                return Err(EIO);
            }
            Some(fate) => {
                self.records.current = record;
                if fate != RecordFate::Failed(false) {
                    self.records.durable = record;
                }
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
        self.records.current = record;
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
            self.records.durable = self.records.current;
            if !self.records.dies && self.records.commits.last() != Some(&self.records.current) {
                self.records.commits.push(self.records.current);
            }
            return Ok(());
        }
        self.stats.record_failures += 1;
        if self.rng.chance(0.5) {
            self.records.durable = self.records.current;
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
        self.records.current = record;
        if self.rng.chance(0.5) {
            self.records.durable = record;
        }
    }
}

impl MediumHandle {
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
}
