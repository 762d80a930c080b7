//! The writer record of an export, as far as it may fail: reading it, changing it, and putting it back
//! (`docs/protocol.md`, "Writer generations"; rule 3).

use std::time::Duration;

use thinwire_proto::Time;
use thinwire_volume::{ChangeError, IoError, WriterRecord, change_writer, settle_writer};
use thinwire_wire::Status;

use crate::TargetCanary;
use crate::house::{Export, House, RecordState};

/// How soon a record that could not be put back is tried again: a sync that fails may take long, and
/// whoever waits has a disk that does not work anyway.
const RETRY: Duration = Duration::from_secs(1);

impl Export {
    /// What the writer on record is called.
    pub fn writer_name(&self) -> Option<&str> {
        let known = self.holder.as_ref().map(|holder| holder.name.as_str());
        known.or_else(|| self.writer.is_held().then(|| self.writer.name.as_str()))
    }
}

impl House {
    /// Makes `new` the record in force.
    pub fn change_writer(
        &mut self,
        now: Time,
        export: usize,
        new: WriterRecord,
    ) -> Result<(), ChangeError> {
        let e = &mut self.exports[export];
        if e.writer == new {
            return Ok(());
        }
        let changed = match self.config.canary {
            TargetCanary::RecordInOneStep => {
                e.volume.store_writer(new).map_err(ChangeError::Refused)
            }
            TargetCanary::RecordLost => Ok(()),
            _ => change_writer(e.volume.as_mut(), e.writer, new),
        };
        match changed {
            Ok(()) => e.writer = new,
            Err(ChangeError::Refused(_)) => {}
            Err(ChangeError::Unresolved(_)) => {
                e.record = RecordState::Unresolved(now + RETRY);
                self.unresolved = true;
            }
        }
        changed
    }

    /// Finds out who the writer is, if that is not known; true if it is now.
    pub fn settle_record(&mut self, now: Time, export: usize) -> bool {
        let e = &mut self.exports[export];
        match e.record {
            RecordState::Settled => return true,
            RecordState::Unread(_) => match e.volume.load_writer() {
                Ok(writer) => e.writer = writer,
                Err(error) => {
                    e.record = RecordState::Unread(error);
                    return false;
                }
            },
            RecordState::Unresolved(at) if now < at => return false,
            RecordState::Unresolved(_) => {
                if settle_writer(e.volume.as_mut(), e.writer).is_err() {
                    e.record = RecordState::Unresolved(now + RETRY);
                    return false;
                }
                let text = format!("export {}: who may write is durable again", e.name);
                self.note(text);
                // Its present writer goes on.
                self.release = true;
            }
        }
        self.exports[export].record = RecordState::Settled;
        true
    }

    /// Why nobody may attach to write, if the record is the reason.
    pub fn record_refusal(&mut self, now: Time, export: usize) -> Option<(Status, String)> {
        if self.settle_record(now, export) {
            return None;
        }
        let e = &self.exports[export];
        Some(match e.record {
            RecordState::Unread(error) => {
                (Status::Io, format!("who may write export {} cannot be read: {error}", e.name))
            }
            _ => {
                let text = format!(
                    "who may write export {} could not be made durable, and is being tried again",
                    e.name
                );
                (Status::Busy, text)
            }
        })
    }

    /// The refusal after a change that failed.
    pub fn change_refusal(&self, export: usize, error: IoError) -> String {
        format!("the writer of {} could not be recorded: {error}", self.exports[export].name)
    }

    /// Tries the records again that could not be put back. Called every turn.
    #[inline]
    pub fn retry_records(&mut self, now: Time) {
        if self.unresolved {
            for export in 0..self.exports.len() {
                self.retry_record(now, export);
            }
            let unresolved = |e: &Export| matches!(e.record, RecordState::Unresolved(_));
            self.unresolved = self.exports.iter().any(unresolved);
        }
    }

    fn retry_record(&mut self, now: Time, export: usize) {
        if matches!(self.exports[export].record, RecordState::Unresolved(_)) {
            self.settle_record(now, export);
        }
    }

    /// When something here is due, at the latest.
    #[inline]
    pub fn deadline(&self, now: Time) -> Time {
        if self.release || self.room_changed {
            return now;
        }
        if self.unresolved || !self.pending.is_empty() {
            return self.next_due();
        }
        Time(u64::MAX)
    }

    fn next_due(&self) -> Time {
        let mut at = Time(u64::MAX);
        for export in &self.exports {
            if let RecordState::Unresolved(retry) = export.record {
                at = at.min(retry);
            }
        }
        for due in self.pending.iter().filter_map(|p| p.twin.due()) {
            at = at.min(due);
        }
        at
    }
}
