//! Which I/O may start, and what its end means (`docs/protocol.md`, "Credits", "Restart and replay").

use thinwire_proto::{Item, Session};
use thinwire_volume::{CUT_BYTES, ErrorKind, Op};
use thinwire_wire::Status;

use super::Initiator;
use crate::durability::Flushed;
use crate::slots::{Answer, Finished, Mark, Owner, Pending, Place};

/// Room for a list of extents: what fits the smallest frame.
const EXTENT_LIST_BYTES: usize = 1024;

impl Initiator {
    /// Starts what may start. Called once per turn. Replay comes before everything else.
    pub(super) fn pump(&mut self) {
        if !self.is_attached() {
            return;
        }
        let Some(grant) = self.association.session().map(Session::peer_grant) else { return };
        while let Some(io) = self.durability.next_replay() {
            if self.requests.conflicts(&io) || !self.requests.can_start(&io, grant) {
                return;
            }
            self.durability.replay_started(io.offset + io.len);
            self.start(io);
        }
        if self.durability.is_replaying() {
            return;
        }
        if let Some(io) = self.durability.next_flush(self.now, self.is_last())
            && self.requests.can_start(&io, grant)
        {
            self.durability.flush_started();
            self.start(io);
        }
        let holds_writes = self.durability.is_full();
        let mut at = 0;
        while let Some(io) = self.requests.next(&mut at, grant, holds_writes) {
            self.start(io);
        }
    }

    /// Who flushes while the target is away, and has nothing that a restart could lose, waits for nobody: all that was
    /// acknowledged to it is durable.
    pub(super) fn flush_nothing(&mut self) {
        let is_open = self.attachment.is_open();
        if is_open && self.durability.is_clean() && !self.durability.owes() {
            self.requests.complete_flushes();
        }
    }

    /// All that is left before a detach is what is retained.
    pub(super) fn is_last(&self) -> bool {
        self.closing.is_under_way() && self.requests.is_quiet(false)
    }

    fn start(&mut self, io: Pending) {
        let is_spare = self.pool.stats().received_bytes <= self.config.lent_bytes_max;
        let place = match io.op {
            // Some of it will be changed, or the links need their memory.
            Op::Read if io.flags.for_patch || !is_spare => {
                Place::Whole(self.pool.get(io.len as usize))
            }
            Op::Read => Place::Lent(io.len as usize),
            Op::BlockStatus => Place::Whole(self.pool.get(EXTENT_LIST_BYTES)),
            Op::Cut => Place::Whole(self.pool.get(CUT_BYTES)),
            _ => Place::Nowhere,
        };
        let (op, bytes) = (io.op, io.len);
        let (slot, sequence) = self.requests.start(io, place, self.durability.mark());
        let session = self.association.session_mut().expect("attached");
        let request = Item::Request { slot, sequence };
        let data = Item::Data { slot, sequence, offset: 0, length: bytes as u32 };
        match op {
            Op::Read => session.send_batched(self.now, [Some(request), None], bytes),
            Op::Write | Op::Cut => {
                session.send_batched(self.now, [Some(request), Some(data)], bytes);
            }
            _ => session.send(request),
        }
    }

    pub(super) fn on_finished(&mut self, finished: Finished) {
        let Finished { io, complete, data, mark } = finished;
        let is_users = matches!(io.owner, Owner::User(_));
        let status = Status::from_number(complete.status);
        match status {
            Status::Fenced => {
                if is_users {
                    self.requests.complete(&io, Err(ErrorKind::Fenced));
                }
                return self.die(ErrorKind::Fenced);
            }
            Status::NoAttachment => {
                // The target has dropped the attachment: ask for it again, then send this again.
                // A replay begins anew with the next session, and so does a forced flush.
                if is_users {
                    self.requests.put_back(io);
                }
                return self.reattach();
            }
            _ => {}
        }
        let result = result_of(status);
        if let (Op::Read | Op::Write | Op::Cut, Some(session)) =
            (io.op, self.association.session_mut())
        {
            session.on_completed(self.now, io.len);
        }
        if status == Status::Altered && io.op == Op::Write {
            return self.on_altered_write(io, complete.verifier, mark);
        }
        match io.op {
            Op::Flush => self.on_flush_finished(io, complete.verifier, mark, result),
            op if op.is_write() => self.on_write_finished(io, complete.verifier, mark, result),
            _ if !self.durability.on_read(complete.verifier, result.is_ok()) => {
                self.requests.put_back(io);
            }
            // What is said twice is done once: it was sent again above if it has to be.
            Op::Cut => self.requests.complete_cut(&io, data, result),
            _ if result.is_err() => self.requests.complete(&io, result),
            Op::Read if self.config.integrity && !self.is_as_read(&io, &data) => {
                self.on_altered_read(io);
            }
            _ => {
                let mut data = data;
                if let (Op::Read, true, Some(Answer::Whole(buf))) =
                    (io.op, io.flags.for_patch, &mut data)
                {
                    self.durability.lay_over(io.offset, buf);
                }
                let block = self.attachment.content().map_or(512, |c| c.geometry.block_bytes);
                self.requests.complete_read(&io, data, u64::from(block));
            }
        }
    }

    fn on_write_finished(
        &mut self,
        io: Pending,
        verifier: u64,
        mark: Mark,
        result: Result<(), ErrorKind>,
    ) {
        if let Owner::Replay(number) = io.owner {
            return self.durability.on_replayed(number, mark, verifier, result.is_ok());
        }
        self.requests.complete(&io, result);
        if result.is_ok() {
            self.durability.on_effect(io, verifier);
        }
    }

    fn on_flush_finished(
        &mut self,
        io: Pending,
        verifier: u64,
        mark: Mark,
        result: Result<(), ErrorKind>,
    ) {
        let is_forced = io.owner == Owner::Flush;
        let is_last = self.is_last();
        let is_heard = !is_forced || is_last;
        let flushed =
            self.durability.on_flush(self.now, is_forced, mark, verifier, result, is_heard);
        match flushed {
            Flushed::Again if is_forced => {}
            Flushed::Again => self.requests.put_back(io),
            Flushed::Told(result) if !is_forced => self.requests.complete(&io, result),
            Flushed::Told(Ok(())) => {}
            // What waits for it fails, up to the bound nothing does.
            Flushed::Told(Err(kind)) if is_last => {
                self.closing.tell(kind);
                self.durability.forget();
            }
            Flushed::Told(Err(kind)) if self.durability.is_full() => {
                self.requests.fail_writes(kind);
            }
            Flushed::Told(Err(_)) => {}
        }
    }
}

fn result_of(status: Status) -> Result<(), ErrorKind> {
    Err(match status {
        Status::Ok => return Ok(()),
        Status::Invalid => ErrorKind::Invalid,
        Status::NoSpace => ErrorKind::NoSpace,
        Status::ReadOnly => ErrorKind::ReadOnly,
        Status::Unsupported => ErrorKind::Unsupported,
        Status::Fenced => ErrorKind::Fenced,
        Status::ShuttingDown => ErrorKind::ShuttingDown,
        Status::Altered => ErrorKind::Altered,
        _ => ErrorKind::Io,
    })
}
