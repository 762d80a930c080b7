//! The writer record of an export, as far as it may fail: reading it, changing it, and putting it back
//! (`docs/protocol.md`, "Writer generations"; rule 3).

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{ChangeError, IoError, WriterRecord, change_writer, settle_writer};

use crate::exports::{DoorCanary, Export, Exports};
use crate::users::{Denial, Denied};

/// How soon a record that could not be put back is tried again: a sync that fails may take long, and
/// whoever waits has a disk that does not work anyway.
const RETRY: Duration = Duration::from_secs(1);

/// Whether what is stored is known to be [`Export::writer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// It is, durably.
    Settled,
    /// It could not be read when it was last tried: nobody may write.
    Unread(IoError),
    /// A change of it failed, and so did putting it back: either may be found after a crash. Nobody
    /// is served as a writer, fenced or told no until that succeeds; tried again at that time.
    Unresolved(Time),
}

impl RecordState {
    /// When it must be looked at again.
    pub fn due(self) -> Option<Time> {
        match self {
            RecordState::Unresolved(retry) => Some(retry),
            RecordState::Settled | RecordState::Unread(_) => None,
        }
    }
}

impl Exports {
    /// Makes `new` the record in force.
    pub(crate) fn change_writer(
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
            DoorCanary::RecordInOneStep => e.volume.store_writer(new).map_err(ChangeError::Refused),
            DoorCanary::RecordLost => Ok(()),
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
    pub(crate) fn settle_record(&mut self, now: Time, export: usize) -> bool {
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

    /// Why nobody may open it to write, if the record is the reason.
    pub(crate) fn record_denial(&mut self, now: Time, export: usize) -> Option<Denied> {
        if self.settle_record(now, export) {
            return None;
        }
        let e = &self.exports[export];
        let name = &e.name;
        Some(match e.record {
            RecordState::Unread(error) => {
                let text = format!("who may write export {name} cannot be read: {error}");
                Denied::new(Denial::Record, 1, text)
            }
            _ => {
                let text = format!(
                    "who may write export {name} could not be made durable, and is being tried again"
                );
                Denied::new(Denial::Busy, 1, text)
            }
        })
    }

    /// Tries the records again that could not be put back. Called every turn.
    #[inline]
    pub(crate) fn retry_records(&mut self, now: Time) {
        if self.unresolved {
            for export in 0..self.exports.len() {
                if matches!(self.exports[export].record, RecordState::Unresolved(_)) {
                    self.settle_record(now, export);
                }
            }
            let unresolved = |e: &Export| matches!(e.record, RecordState::Unresolved(_));
            self.unresolved = self.exports.iter().any(unresolved);
        }
    }
}
