//! I/Os in the volumes: who is let in, which flushes go together, and what an answer vouches for
//! (`docs/protocol.md`, "Restart and replay"; rules 4 and 13).

use thinwire_volume::{Completion, ErrorKind, Io, IoError, Op};

use crate::exports::{DoorCanary, Exports, SPREAD_NEWS, VOLUME_NEWS};
use crate::leaving::LAST_SYNC_TOKEN;
use crate::record::RECORD_TOKEN;
use crate::spread::SYNC_TOKEN;
use crate::twin::Twin;
use crate::users::{NoEntry, Pass};

/// How often a volume is polled in one turn, at most.
const POLLS_PER_TURN: usize = 4;

/// What a user wants back with the completion of an I/O. The door looks at nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoTicket {
    /// The session that it was for, which may have ended.
    pub session: u64,
    /// Where the user keeps that.
    pub place: u32,
    /// Which of its requests.
    pub number: u64,
}

/// Leave to submit one I/O, under a pass that was good when it was shown.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    pass: usize,
    export: usize,
}

/// An I/O in a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingIo {
    ticket: IoTicket,
    pub pass: usize,
    pub op: Op,
    /// It is durable once completed.
    pub fua: bool,
    /// The export's verifier when it was given to the volume. A plain write may have an older one, if nobody
    /// has asked the volume since what was lost: then it is sent again for nothing.
    pub verifier: u64,
    offset: u64,
    len: u64,
}

impl PendingIo {
    /// Its end in a volume that somebody else has by now.
    pub fn fenced(&self) -> IoError {
        let PendingIo { op, offset, len, .. } = *self;
        IoError { kind: ErrorKind::Fenced, op, offset, len, module: "exports" }
    }
}

impl Permit {
    /// The index of the export that it is for: see [`Exports::find`].
    #[inline]
    pub fn export(&self) -> usize {
        self.export
    }
}

impl Exports {
    /// Shows a pass for one I/O.
    ///
    /// # Errors
    /// See [`NoEntry`]. Nothing is kept of an I/O that waits.
    #[inline]
    pub fn admit(&self, session: u64, pass: Pass) -> Result<Permit, NoEntry> {
        let at = self.find_pass(session, pass).ok_or(NoEntry::NoPass)?;
        let state = &self.passes[at];
        if self.config.canary == DoorCanary::DoorSkipped {
            return Ok(Permit { pass: at, export: state.export });
        }
        if state.fenced {
            return Err(NoEntry::Fenced);
        }
        if !state.read_only && self.is_held_back(state.export, session) {
            return Err(NoEntry::Waits);
        }
        Ok(Permit { pass: at, export: state.export })
    }

    /// Another session is about to be granted `export`: its present writers' new I/Os wait, so that
    /// the volume runs dry of them. So they do while it is not known who the writer is.
    #[inline]
    fn is_held_back(&self, export: usize, session: u64) -> bool {
        let e = &self.exports[export];
        (e.claims > 0 && self.is_claimed_from(export, session)) || e.record.is_in_doubt()
    }

    fn is_claimed_from(&self, export: usize, session: u64) -> bool {
        // What it is granted under another pass is behind all that it has asked for under this one.
        self.claims.iter().any(|claim| {
            claim.export == export
                && claim.twin == Twin::Cleared
                && (claim.user.session != session || claim.is_recording)
        })
    }

    /// Gives an I/O to the volume. `on_entry` is called with the present verifier once nothing
    /// speaks against it, before the volume has it. The I/O's token is the door's.
    ///
    /// # Errors
    /// The pass, or the shape and abilities of the volume, do not allow it. The I/O is dropped.
    #[inline]
    pub fn submit(
        &mut self,
        permit: Permit,
        mut io: Io,
        ticket: IoTicket,
        on_entry: impl FnOnce(u64),
    ) -> Result<(), ErrorKind> {
        let Permit { pass, export } = permit;
        // Elsewhere it would sync nothing, but a failure under it would be taken for a failed sync: whoever
        // may only read could then change the verifier at will.
        io.flags.fua &= io.op.is_write();
        if (io.op.is_write() || io.op == Op::Cut) && self.passes[pass].read_only {
            return Err(ErrorKind::ReadOnly);
        }
        let fua = io.flags.fua;
        if fua {
            // What was lost before it comes puts it in no doubt.
            self.check_events(export);
        }
        let e = &mut self.exports[export];
        e.volume.geometry().check(&io)?;
        self.passes[pass].outstanding += 1;
        e.writers_outstanding += usize::from(!self.passes[pass].read_only);
        if io.op.is_write() || io.op == Op::Cut {
            e.written = e.writer.generation;
        }
        self.stats.ios += 1;
        let verifier = e.verifier;
        let Io { op, offset, len, .. } = io;
        let pending = Some(PendingIo { ticket, pass, op, fua, verifier, offset, len });
        let at = match self.ios_free.pop() {
            Some(at) => {
                self.ios[at] = pending;
                at
            }
            None => {
                self.ios.push(pending);
                self.ios.len() - 1
            }
        };
        io.token = at as u64;
        on_entry(verifier);
        if self.has_fenced() && self.is_fenced(export) {
            // It ends with the others.
            return Ok(());
        }
        self.to_poll.insert(export);
        if fua || op == Op::Flush {
            self.submit_syncing(export, io);
        } else {
            self.exports[export].volume.submit(io);
        }
        Ok(())
    }

    /// The same, of one that syncs.
    fn submit_syncing(&mut self, export: usize, io: Io) {
        let e = &mut self.exports[export];
        if !e.role.is_plain() {
            self.submit_spread(export, io);
        } else if io.op != Op::Flush {
            e.volume.submit(io);
        } else if e.flush_running {
            e.flush_waiting.push(io.token);
        } else {
            e.flush_running = true;
            e.volume.submit(io);
        }
    }

    /// A descriptor of a volume is readable, or something has happened to one: the next poll polls all of
    /// them, also those that have nothing outstanding, since it stays readable until then.
    pub fn disk_ready(&mut self) {
        for export in 0..self.exports.len() {
            if !self.is_fenced(export) {
                self.to_poll.insert(export);
            }
        }
    }

    /// Takes what the volumes have completed: `deliver` is called for each I/O with its ticket, what
    /// it was, the export's verifier as far as this I/O goes, and the completion, whose token means
    /// nothing.
    ///
    /// A verifier that differs from an earlier one says that writes in between may be lost unless they
    /// were flushed. A write reports the one under which it was started, a flush the one under
    /// which it ended: so neither can vouch for data that a failed flush in between has lost. A read
    /// that may have missed such data says so, too.
    #[inline]
    pub fn poll(&mut self, mut deliver: impl FnMut(IoTicket, Op, u64, &mut Completion)) {
        let mut done = std::mem::take(&mut self.done);
        let mut ends = std::mem::take(&mut self.done_ends);
        // A completion may start a flush that waited for it: that must reach the disk in this turn,
        // since nothing else may wake us. Otherwise one poll is all: a disk that has more asks for the next turn.
        for _ in 0..POLLS_PER_TURN {
            self.goes_on = false;
            self.poll_volumes(&mut done, &mut ends);
            // A sync that failed in one volume may have lost what others hold: all are heard before
            // anybody is answered. Whoever was polled may have grown, too, though nothing has ended.
            let is_late = self.config.canary == DoorCanary::VerifierAfterAnswer && !done.is_empty();
            if self.news != 0 && !is_late {
                if self.news & VOLUME_NEWS != 0 {
                    self.check_all_events();
                }
                if self.news & SPREAD_NEWS != 0 {
                    self.poll_spread(&mut done, &mut ends, &mut deliver);
                }
            }
            let mut at = 0;
            for (export, end) in ends.drain(..) {
                let mut ended = done[at..end].iter_mut();
                while let Some(completion) = ended.next() {
                    if completion.token & RECORD_TOKEN != 0 {
                        if self.on_own(completion) {
                            // A sync has failed, so what is behind it may have missed something.
                            ended.by_ref().for_each(|later| self.keep(export, later));
                        }
                        continue;
                    }
                    self.on_completion(export, completion, &mut deliver);
                }
                at = end;
            }
            if is_late {
                self.check_all_events();
            }
            done.clear();
            if !self.goes_on {
                break;
            }
        }
        // What the last of these polls has begun reaches its disk by another.
        self.started |= self.goes_on;
        (self.done, self.done_ends) = (done, ends);
    }

    /// Takes what has ended in the volumes to poll, and notes whether anything has happened to one.
    #[inline]
    fn poll_volumes(&mut self, done: &mut Vec<Completion>, ends: &mut Vec<(usize, usize)>) {
        let mut next = 0;
        while let Some(export) = self.to_poll.next(next) {
            next = export + 1;
            let (e, before) = (&mut self.exports[export], done.len());
            e.volume.poll(done);
            self.news |= u8::from(e.volume.events() != e.events) * VOLUME_NEWS;
            if e.volume.outstanding() == 0 {
                self.to_poll.remove(export);
            }
            if done.len() > before {
                ends.push((export, done.len()));
            }
        }
    }

    #[inline]
    fn on_completion(
        &mut self,
        export: usize,
        completion: &mut Completion,
        deliver: &mut impl FnMut(IoTicket, Op, u64, &mut Completion),
    ) {
        let io = self.take_io(completion.token);
        if io.fua || io.op == Op::Flush {
            return self.on_syncing_completion(export, io, completion, deliver);
        }
        self.deliver(export, &io, completion, deliver);
    }

    /// The same, of one that syncs.
    fn on_syncing_completion(
        &mut self,
        export: usize,
        io: PendingIo,
        completion: &mut Completion,
        deliver: &mut impl FnMut(IoTicket, Op, u64, &mut Completion),
    ) {
        let is_flush = io.op == Op::Flush;
        if !self.exports[export].role.is_plain() {
            if completion.result.is_ok() && !is_flush {
                // It has ended in the volume of this shard only.
                self.keep_io(completion.token, io);
                return self.sync(export, completion.token);
            }
            return self.deliver(export, &io, completion, deliver);
        }
        if completion.result.is_err() && self.config.canary != DoorCanary::SameVerifier {
            // fdatasync fails once and then succeeds with the data gone (rule 4). Stores flush for
            // FUA, too, and lose what others have written with it.
            self.change_verifier(export);
        }
        if !is_flush {
            return self.deliver(export, &io, completion, deliver);
        }
        let mut riders = std::mem::take(&mut self.exports[export].flush_riders);
        for token in riders.drain(..) {
            let rider = self.take_io(token);
            let mut own = Completion::new(token, completion.result);
            self.deliver(export, &rider, &mut own, deliver);
        }
        self.deliver(export, &io, completion, deliver);
        self.start_waiting_flush(export, riders);
    }

    /// Flushes that came while one was running are served by one new flush together.
    fn start_waiting_flush(&mut self, export: usize, mut riders: Vec<u64>) {
        if self.is_fenced(export) {
            return;
        }
        let e = &mut self.exports[export];
        std::mem::swap(&mut e.flush_waiting, &mut riders);
        e.flush_running = !riders.is_empty();
        if let Some(first) = riders.pop() {
            self.to_poll.insert(export);
            e.volume.submit(Io::new(first, Op::Flush, 0, 0));
            self.goes_on = true;
        }
        e.flush_riders = riders;
    }

    #[inline]
    pub(crate) fn deliver(
        &mut self,
        export: usize,
        io: &PendingIo,
        completion: &mut Completion,
        deliver: &mut impl FnMut(IoTicket, Op, u64, &mut Completion),
    ) {
        let pass = self.passes.on_left(io.pass);
        self.exports[export].writers_outstanding -= usize::from(!pass.read_only);
        // It may be what a claim waits for.
        self.started |= !self.claims.is_empty();
        let present = self.exports[export].verifier;
        let verifier = if io.op.is_write() { io.verifier } else { present };
        // A failed flush that ran beside a FUA operation may have lost its data before its own flush
        // came, which then succeeds: it cannot be called durable.
        let is_doubtful = io.fua
            && io.verifier != present
            && self.config.canary != DoorCanary::FuaBesideFailedFlush;
        if is_doubtful && completion.result.is_ok() {
            let PendingIo { op, offset, len, .. } = *io;
            let error = IoError { kind: ErrorKind::Io, op, offset, len, module: "exports" };
            completion.result = Err(error);
        }
        if completion.result.is_err() || self.has_fenced() {
            self.look_at_failure(export, io, completion);
        }
        deliver(io.ticket, io.op, verifier, completion);
    }

    /// What was fenced answers nobody: what comes out of it, if anything, is of no use to anybody any more.
    #[cold]
    fn look_at_failure(&mut self, export: usize, io: &PendingIo, completion: &mut Completion) {
        if let Err(error) = completion.result {
            self.on_fenced_io(export, &error);
        }
        if self.is_fenced(export) {
            completion.result = Err(io.fenced());
            (completion.data, completion.extents) = Default::default();
        } else if self.config.canary == DoorCanary::FencedTold
            && let Err(error) = &mut completion.result
            && error.kind == ErrorKind::Fenced
        {
            error.kind = ErrorKind::Io;
        }
    }

    #[inline]
    pub(crate) fn take_io(&mut self, token: u64) -> PendingIo {
        let at = token as usize;
        let io = self.ios[at].take().expect("a volume completes what it was given");
        self.ios_free.push(at);
        io
    }

    /// One that has not been answered.
    pub(crate) fn io(&self, token: u64) -> PendingIo {
        self.ios[token as usize].expect("it has not been answered")
    }

    /// Undoes [`Exports::take_io`], if nothing has come between.
    fn keep_io(&mut self, token: u64, io: PendingIo) {
        let at = self.ios_free.pop();
        debug_assert_eq!(at, Some(token as usize));
        self.ios[token as usize] = Some(io);
    }

    /// An I/O of the door itself has ended. True if those behind it, of the same export, may not be answered
    /// yet.
    #[cold]
    pub(crate) fn on_own(&mut self, completion: &mut Completion) -> bool {
        let token = completion.token;
        if token & LAST_SYNC_TOKEN != 0 {
            let export = token & !(RECORD_TOKEN | LAST_SYNC_TOKEN);
            self.on_last_sync(export as usize, completion);
            return false;
        }
        if token & SYNC_TOKEN == 0 {
            self.on_record(token, completion);
            return false;
        }
        let export = (token & !(RECORD_TOKEN | SYNC_TOKEN)) as usize;
        if let Err(error) = completion.result {
            self.on_fenced_io(export, &error);
        }
        if self.is_fenced(export) {
            return false;
        }
        self.on_sync_ended(export, completion.result);
        self.mute.contains(export)
    }

    /// I/Os that had to wait are to be tried again.
    #[inline]
    pub fn take_release(&mut self) -> bool {
        std::mem::take(&mut self.release)
    }

    /// A volume has something outstanding, or is about to.
    #[inline]
    pub fn is_at_work(&self) -> bool {
        !self.closings.is_empty()
            || self.news != 0
            || self.syncs_elsewhere > 0
            || self.to_poll.iter().any(|export| self.exports[export].volume.outstanding() > 0)
    }
}
