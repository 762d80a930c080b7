//! The writer record of an export, as far as it may fail and takes time: reading it, changing it, putting
//! it back (`docs/protocol.md`, "Writer generations"; rule 3). Nobody waits for it here: each step is
//! an I/O of the volume, and what must not be decided meanwhile waits as a claim.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{
    ChangeError, Completion, ErrorKind, Io, IoError, Op, RecordChange, WriterRecord,
};

use crate::exports::{DoorCanary, Exports};
use crate::holder::{Holder, Member};
use crate::spread::Word;
use crate::users::{Denial, Denied, Pass, Users};

/// How soon a record that could not be put back is tried again: a sync that fails may take long, and
/// whoever waits has a disk that does not work anyway.
const RETRY: Duration = Duration::from_secs(1);

/// Tokens of I/Os of the record have this bit, and the index of the export; those of users have not.
pub(crate) const RECORD_TOKEN: u64 = 1 << 63;

/// Whether what is stored is known to be [`Export::writer`](crate::exports::Export::writer), and what
/// is being done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// It is, durably.
    Settled,
    /// It is being read.
    Reading,
    /// It could not be read when it was last tried: nobody may write.
    Unread(IoError),
    /// It is being changed for the first claim.
    Changing(RecordChange),
    /// It is being stored that the writer has ended.
    Releasing,
    /// A change of it failed, and so did putting it back: either may be found after a crash. Nobody
    /// is served as a writer, fenced or told no until that succeeds; tried again at that time, once it
    /// is known.
    Unresolved(Option<Time>),
    /// The same, and it is being tried again.
    Settling,
    /// This is a branch: its owner knows, and writers are held back.
    Held,
}

impl RecordState {
    /// When it must be looked at again.
    pub fn due(self) -> Option<Time> {
        match self {
            RecordState::Unresolved(retry) => Some(retry.unwrap_or(Time::ZERO)),
            _ => None,
        }
    }

    /// It is not known who the writer is.
    #[inline]
    pub fn is_in_doubt(self) -> bool {
        matches!(self, RecordState::Unresolved(_) | RecordState::Settling | RecordState::Held)
    }

    /// Who may write next cannot be said, and will be soon.
    pub fn is_on_its_way(self) -> bool {
        matches!(self, RecordState::Reading | RecordState::Releasing)
    }
}

/// What is known of who is on record as the writer of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedWriter {
    /// This one, durably, or nobody.
    Writer(Option<[u8; 16]>),
    /// It is being found out, or changed.
    Undecided,
    /// It could not be read.
    Unread,
}

/// A writer that has closed its pass, and of whom the record does not say so yet.
#[derive(Clone, Debug)]
pub(crate) struct Closing {
    pub session: u64,
    /// Where that is, if not on this shard.
    pub shard: Option<u8>,
    pub pass: Pass,
    pub transaction: u32,
    pub export: usize,
    /// Of that pass: the number of its [`Grant`](crate::holder::Grant).
    pub grant: u64,
    pub is_storing: bool,
}

impl Exports {
    pub(crate) fn read_record(&mut self, export: usize) {
        self.exports[export].record = RecordState::Reading;
        let io = Io::new(RECORD_TOKEN | export as u64, Op::LoadWriter, 0, 0);
        self.submit_record(export, io);
    }

    fn store_record(&mut self, export: usize, state: RecordState, record: WriterRecord) {
        self.exports[export].record = state;
        let io = record.to_io(RECORD_TOKEN | export as u64, &self.pool);
        self.submit_record(export, io);
    }

    fn submit_record(&mut self, export: usize, io: Io) {
        // Nobody else would have it polled.
        (self.started, self.goes_on) = (true, true);
        if !self.is_fenced(export) {
            self.to_poll.insert(export);
            self.exports[export].volume.submit(io);
        }
    }

    /// Begins to make `new` the record in force: [`Export::changed`](crate::exports::Export::changed)
    /// says how that has ended.
    pub(crate) fn change_record(&mut self, export: usize, new: WriterRecord) {
        let e = &mut self.exports[export];
        let mut old = e.writer;
        if self.config.canary == DoorCanary::RecordLost || (old == new && !e.may_be_released) {
            (e.writer, e.changed) = (new, Some(Ok(())));
            return;
        }
        if self.config.canary == DoorCanary::RecordInOneStep {
            old = new;
        }
        let change = RecordChange::new(old, new);
        self.store_record(export, RecordState::Changing(change), change.next());
    }

    /// A step has ended.
    pub(crate) fn on_record(&mut self, token: u64, completion: &mut Completion) {
        let export = (token & !RECORD_TOKEN) as usize;
        // What waits for it is looked at in this turn.
        self.started = true;
        if !self.exports[export].role.is_plain() {
            self.to_tell.insert(export);
        }
        let written = self.written(export);
        if let Err(error) = completion.result {
            self.on_fenced_io(export, &error);
        }
        if self.is_fenced(export) {
            return;
        }
        let e = &mut self.exports[export];
        let result = completion.result;
        let (mut next, mut note) = (None, None);
        e.record = match e.record {
            RecordState::Reading => {
                match result.map(|()| WriterRecord::from_data(&completion.data)) {
                    Ok(Some(writer)) => {
                        e.writer = writer;
                        e.written = e.written.max(writer.last_written());
                        RecordState::Settled
                    }
                    Ok(None) => {
                        let io = Io::new(0, Op::LoadWriter, 0, 0);
                        RecordState::Unread(io.error(ErrorKind::Io, "exports"))
                    }
                    Err(error) => RecordState::Unread(error),
                }
            }
            RecordState::Changing(mut change) => {
                let ended = change.on_stored(result);
                e.changed = ended;
                match ended {
                    None => {
                        next = Some(change.next());
                        RecordState::Changing(change)
                    }
                    Some(Ok(())) => {
                        e.writer = change.target();
                        e.may_be_released = false;
                        RecordState::Settled
                    }
                    Some(Err(ChangeError::Refused(_))) => RecordState::Settled,
                    Some(Err(ChangeError::Unresolved(_))) => {
                        self.unresolved.insert(export);
                        RecordState::Unresolved(None)
                    }
                }
            }
            RecordState::Releasing => {
                // If it cannot be stored the export stays with its last writer, who may come back or
                // be taken over: safe, if inconvenient. Whichever of the two is found after a crash
                // lets it come back.
                e.may_be_released = result.is_err();
                if result.is_ok() {
                    e.writer = e.released(written);
                    if let Some(holder) = e.holder.take() {
                        for member in holder.members {
                            self.held.remove(&(member.session, export));
                        }
                    }
                }
                RecordState::Settled
            }
            RecordState::Settling if result.is_ok() => {
                note = Some(format!("export {}: who may write is durable again", e.name));
                RecordState::Settled
            }
            RecordState::Settling => RecordState::Unresolved(None),
            idle @ (RecordState::Settled
            | RecordState::Unread(_)
            | RecordState::Unresolved(_)
            | RecordState::Held) => {
                debug_assert!(false, "nothing was asked of the record");
                idle
            }
        };
        if let Some(text) = note {
            self.note(text);
            // Its present writer goes on.
            self.release = true;
        }
        if let Some(next) = next {
            self.store_record(export, self.exports[export].record, next);
        }
    }

    /// Why nobody may open it to write, if the record is the reason.
    pub(crate) fn record_denial(&self, export: usize) -> Option<Denied> {
        let e = &self.exports[export];
        let name = &e.name;
        match e.record {
            RecordState::Unread(error) => {
                let text = match error.op {
                    // Behind which it would have been read.
                    Op::StoreWriter => format!(
                        "how export {name} holds what it is made of could not be stored: {error}"
                    ),
                    _ => format!("who may write export {name} cannot be read: {error}"),
                };
                Some(Denied::new(Denial::Record, 1, text))
            }
            RecordState::Unresolved(_) | RecordState::Settling => {
                let text = format!(
                    "who may write export {name} could not be made durable, and is being tried again"
                );
                Some(Denied::new(Denial::Busy, 1, text))
            }
            _ => None,
        }
    }

    /// Tries the records again that could not be put back.
    pub(crate) fn retry_records(&mut self, now: Time) {
        let mut next = 0;
        while let Some(export) = self.unresolved.next(next) {
            next = export + 1;
            let e = &mut self.exports[export];
            match e.record {
                RecordState::Unresolved(None) => {
                    e.record = RecordState::Unresolved(Some(now + RETRY));
                }
                RecordState::Unresolved(Some(at)) if now >= at => {
                    let writer = e.writer;
                    self.store_record(export, RecordState::Settling, writer);
                }
                doubt if doubt.is_in_doubt() => {}
                _ => self.unresolved.remove(export),
            }
        }
    }

    /// Has it recorded of writers that they have ended in order, with the last of their members, and tells them.
    pub(crate) fn settle_closings(&mut self, users: &mut dyn Users) {
        let mut at = 0;
        while at < self.closings.len() {
            let Closing { export, grant, is_storing, .. } = self.closings[at];
            let e = &mut self.exports[export];
            if e.role.is_branch() {
                // Its owner tells.
                at += 1;
                continue;
            }
            if e.changed.is_some() {
                // The next grant is on record, and not given yet.
                at += 1;
                continue;
            }
            // It may come behind its initiator's return, also in the same session.
            let holder = e.holder.as_mut().filter(|_| e.writer.is_held());
            let holder =
                holder.filter(|holder| holder.members.iter().any(|m| m.grant.number == grant));
            match (e.record, holder) {
                (RecordState::Changing(_) | RecordState::Releasing, _) => {
                    at += 1;
                    continue;
                }
                // Of this the record says nothing, so it may be in doubt.
                (_, Some(Holder { members, .. })) if members.len() > 1 => {
                    let is = |member: &mut Member| member.grant.number == grant;
                    for left in members.extract_if(.., is) {
                        self.held.remove(&(left.session, export));
                    }
                }
                (RecordState::Settled, Some(_)) if !is_storing => {
                    self.closings[at].is_storing = true;
                    let released = self.exports[export].released(self.written(export));
                    self.store_record(export, RecordState::Releasing, released);
                    at += 1;
                    continue;
                }
                _ => {}
            }
            let Closing { session, shard, transaction, .. } = self.closings.remove(at);
            match shard {
                Some(to) => self.post(export, to, Word::Closed { session, transaction }),
                None => users.on_closed(session, transaction),
            }
        }
    }
}
