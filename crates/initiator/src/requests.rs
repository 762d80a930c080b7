//! Which request may start, and what a completion means
//! (`docs/protocol.md`, "Credits", "Restart and replay"; rules 4, 5, 8 and 9).

use std::time::Duration;

use thinwire_buffer::SegList;
use thinwire_proto::Item;
use thinwire_volume::{Completion, ErrorKind, Extent, IoError, IoFlags, Op};
use thinwire_wire::Status;

use crate::Initiator;
use crate::config::Canary;
use crate::retained::{Effect, Standing};
use crate::slots::{Finished, Mark, Owner, Pending, charge};
use crate::volume::MODULE;

/// How many waiting I/Os are looked at for one that may start before those ahead of it.
const LOOK_AHEAD: usize = 64;
/// How long after a failed forced flush the next may follow.
const FLUSH_RETRY: Duration = Duration::from_secs(1);
/// Room for a list of extents: what fits the smallest frame.
const EXTENT_LIST_BYTES: usize = 1024;
const EXTENT_BYTES: usize = 16;

/// The state of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replay {
    /// The log's entries below this are to be sent again.
    pub end: u64,
    /// The next one.
    pub next: u64,
    /// And the byte in it from which on it is to be sent.
    pub from: u64,
    pub outstanding: usize,
}

impl Initiator {
    /// Starts what may start. Called once per turn.
    pub(crate) fn pump(&mut self) {
        if !self.is_attached() {
            return;
        }
        if self.replay.is_some() {
            self.pump_replay();
            if self.replay.is_some() {
                return;
            }
        }
        self.force_flush();
        self.pump_waiting();
    }

    /// Replay comes before everything else, in the order of the log.
    fn pump_replay(&mut self) {
        while let Some(mut replay) = self.replay {
            if replay.next >= replay.end {
                if replay.outstanding == 0 {
                    self.replay = None;
                }
                return;
            }
            let number = replay.next;
            let Some((offset, len)) = self.retained.uncovered(number, replay.from) else {
                if replay.from == 0 {
                    self.retained.superseded(number);
                }
                (replay.next, replay.from) = (number + 1, 0);
                self.replay = Some(replay);
                continue;
            };
            let effect = self.retained.get_mut(number).expect("a part of it is uncovered");
            let mut data = SegList::new();
            if !effect.data.is_empty() {
                let skip = (offset - effect.offset) as usize;
                effect.data.slice_into(skip, len as usize, &mut data);
            }
            let (owner, op, flags) = (Owner::Replay(number), effect.op, effect.flags);
            let io = Pending { owner, op, flags, offset, len, data };
            if self.slots.conflicts(&io) || !self.can_start(&io) {
                return;
            }
            if replay.from == 0 {
                let effect = self.retained.get_mut(number).expect("just there");
                effect.standing = Standing::Asked;
                self.stats.replayed += 1;
            }
            self.start(io);
            replay.from = offset + len;
            replay.outstanding += 1;
            self.replay = Some(replay);
        }
    }

    /// The bound of the retained set forces a flush.
    fn force_flush(&mut self) {
        if self.wants_forced_flush() && self.now >= self.forced_flush_after {
            let io = Pending {
                owner: Owner::Flush,
                op: Op::Flush,
                flags: IoFlags::default(),
                offset: 0,
                len: 0,
                data: SegList::new(),
            };
            if self.can_start(&io) {
                self.forced_flush = true;
                self.start(io);
            }
        }
    }

    /// No I/O waits or is outstanding.
    pub(crate) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.slots.in_use.is_empty()
    }

    /// Enough is retained for a flush, and none is under way.
    pub(crate) fn wants_forced_flush(&self) -> bool {
        let half = self.retained.bytes() > self.config.retained_bytes_max / 2
            || self.retained.len() > self.config.retained_entries_max / 2;
        let wanted = half || (self.closing && !self.retained.is_empty() && self.is_quiet());
        wanted && !self.forced_flush && self.is_attached() && self.replay.is_none()
    }

    fn retained_full(&self) -> bool {
        self.retained.bytes() > self.config.retained_bytes_max
            || self.retained.len() > self.config.retained_entries_max
    }

    fn pump_waiting(&mut self) {
        let mut at = 0;
        while at < self.waiting.len().min(LOOK_AHEAD) {
            let io = &self.waiting[at];
            if !self.can_start(io) {
                // Credit is given in order, so that a large request is not starved.
                return;
            }
            let held = io.op.is_write() && self.retained_full();
            let behind = self.waiting.iter().take(at).any(|earlier| earlier.conflicts(io));
            if held || behind || self.slots.conflicts(io) {
                at += 1;
                continue;
            }
            let io = self.waiting.remove(at).expect("in bounds");
            self.start(io);
        }
    }

    fn can_start(&self, io: &Pending) -> bool {
        let Some(session) = &self.session else { return false };
        let (slots, bytes) = session.peer_grant();
        self.slots.has_free()
            && (slots.wrapping_sub(self.used_slots) as i32) > 0
            && self.used_bytes + charge(io) <= bytes
    }

    fn start(&mut self, io: Pending) {
        let buf = match io.op {
            Op::Read => Some(self.pool.get(io.len as usize)),
            Op::BlockStatus => Some(self.pool.get(EXTENT_LIST_BYTES)),
            _ => None,
        };
        self.used_slots = self.used_slots.wrapping_add(1);
        self.used_bytes += charge(&io);
        self.stats.requests += 1;
        let (op, bytes) = (io.op, io.len);
        let mark = Mark { number: self.retained.mark(), replays: self.replays };
        let (slot, sequence) = self.slots.start(io, buf, mark);
        let session = self.session.as_mut().expect("attached");
        let request = Item::Request { slot, sequence };
        let data = Item::Data { slot, sequence, offset: 0, length: bytes as u32 };
        match op {
            Op::Read => session.send_batched(self.now, [Some(request), None], bytes),
            Op::Write => session.send_batched(self.now, [Some(request), Some(data)], bytes),
            _ => session.send(request),
        }
    }

    /// The verifier that the target has now. A change means that unflushed writes may be lost.
    pub(crate) fn on_verifier(&mut self, verifier: u64) {
        self.verifier = verifier;
        if self.retained.all_under(self.retained.mark(), verifier) {
            return;
        }
        if self.config.canary == Canary::NoReplay {
            self.retained.clear();
            return;
        }
        // The whole log, also what was written under the new verifier: an older write must not end
        // up over a newer one.
        self.start_replay(self.replay.map_or(0, |r| r.outstanding));
    }

    /// Sends the log again from its beginning; so many requests of an earlier replay are still
    /// outstanding.
    pub(crate) fn start_replay(&mut self, outstanding: usize) {
        let (end, next) = (self.retained.mark(), self.retained.first());
        self.replays += 1;
        self.replay = Some(Replay { end, next, from: 0, outstanding });
    }

    pub(crate) fn on_finished(&mut self, finished: Finished) {
        let Finished { io, complete, data, mark } = finished;
        let status = Status::from_number(complete.status);
        match status {
            Status::Fenced => return self.fail_one_and_die(io, ErrorKind::Fenced),
            Status::NoAttachment => {
                // The target has dropped the attachment: ask for it again, then send this again.
                // A replay begins anew with the next session, and so does a forced flush.
                if matches!(io.owner, Owner::User(_)) {
                    self.waiting.push_front(io);
                }
                self.reattach();
                return;
            }
            _ => {}
        }
        let result = match kind_of(status) {
            None => Ok(()),
            Some(kind) => Err(kind),
        };
        if let (Op::Read | Op::Write, Some(session)) = (io.op, &mut self.session) {
            session.on_completed(self.now, io.len);
        }
        match io.op {
            Op::Flush => self.on_flush_finished(io, complete.verifier, mark, result),
            op if op.is_write() => self.on_write_finished(io, complete.verifier, mark, result),
            _ => {
                // What it has seen may lack unflushed writes: they are sent again, then it reads
                // again.
                if result.is_ok() && complete.verifier != self.verifier {
                    self.on_verifier(complete.verifier);
                }
                if self.replay.is_some() {
                    self.waiting.push_front(io);
                    return;
                }
                let mut completion = self.completion(&io, result);
                if let (Ok(()), Some(mut buf)) = (result, data) {
                    let patches = io.flags.for_patch && io.op == Op::Read;
                    if patches && self.config.canary != Canary::PatchedAsRead {
                        self.retained.lay_over(io.offset, &mut buf);
                    }
                    if io.op == Op::BlockStatus {
                        let block = self.attached.map_or(512, |a| a.geometry.block_bytes);
                        completion.extents = decode_extents(&buf, io.len, u64::from(block));
                    } else {
                        completion.data = SegList::of(buf.freeze());
                    }
                }
                let short = result.is_ok()
                    && match io.op {
                        Op::Read => completion.data.bytes() as u64 != io.len,
                        _ => completion.extents.is_empty(),
                    };
                if short {
                    completion = self.completion(&io, Err(ErrorKind::Io));
                }
                self.done.push(completion);
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
            if let Some(replay) = &mut self.replay {
                replay.outstanding = replay.outstanding.saturating_sub(1);
            }
            if result.is_err() {
                // The write was acknowledged once and is lost now: the next flush must say so.
                self.replay_failed = true;
                self.stats.replay_failures += 1;
            }
            // This tells of a change, or is the first to tell under which verifier all of them are
            // now. It must be known: else each further write would seem to tell of a change.
            let news = result.is_ok() && mark.replays == self.replays && verifier != self.verifier;
            if news {
                self.verifier = verifier;
            }
            if let Some(effect) = self.retained.get_mut(number) {
                effect.replayed(if result.is_ok() { verifier } else { self.verifier });
            }
            if let Some(replay) = self.replay.filter(|_| news)
                && !self.retained.replayed_under(replay.next, verifier)
            {
                // What this replay had sent before is lost again.
                self.start_replay(replay.outstanding);
            }
            return;
        }
        if result.is_err() {
            let completion = self.completion(&io, result);
            self.done.push(completion);
            return;
        }
        let completion = self.completion(&io, Ok(()));
        // A durable effect is not kept, but nothing older may be replayed over it.
        if !io.flags.fua || !self.retained.is_empty() {
            let Pending { op, flags, offset, len, mut data, .. } = io;
            let mut standing = Standing::Done;
            if flags.fua {
                standing = Standing::Durable;
                data = SegList::new();
            }
            self.retained.push(Effect { op, flags, offset, len, data, verifier, standing });
            // A replay that runs goes on to here: older effects that it writes again must not end
            // up over this one.
            match &mut self.replay {
                Some(replay) => replay.end = self.retained.mark(),
                // Told late, under a verifier that is over, and whose replay has ended without it:
                // it may be lost like the others. Or under a new one, and they may be lost.
                None if verifier != self.verifier && self.config.canary != Canary::NoReplay => {
                    self.start_replay(0);
                }
                None => {}
            }
        }
        self.done.push(completion);
    }

    fn on_flush_finished(
        &mut self,
        io: Pending,
        verifier: u64,
        mark: Mark,
        result: Result<(), ErrorKind>,
    ) {
        let forced = io.owner == Owner::Flush;
        let covered =
            mark.replays == self.replays && self.retained.all_under(mark.number, verifier);
        if verifier != self.verifier || !covered {
            self.on_verifier(verifier);
        }
        if forced {
            self.forced_flush = false;
        }
        let mut result = result;
        if result.is_ok()
            && !covered
            && !matches!(self.config.canary, Canary::AnyFlush | Canary::NoReplay)
        {
            // What it was to cover was lost before it ran: replay, then flush again.
            if !forced {
                self.waiting.push_front(io);
            }
            return;
        }
        if result.is_ok() {
            self.retained.flushed(mark.number);
            // Only a flush that somebody hears of may take the bad news away: a forced one is heard
            // of if it is the last thing before a detach.
            let heard = !forced || (self.closing && self.is_quiet());
            if self.replay_failed && heard {
                self.replay_failed = false;
                result = Err(ErrorKind::Io);
            }
        }
        if !forced {
            let completion = self.completion(&io, result);
            self.done.push(completion);
        } else if let Err(kind) = result {
            // Every failed flush is followed by a replay of the log: a store that keeps failing
            // must not make that an endless storm.
            self.forced_flush_after = self.now + FLUSH_RETRY;
            self.fail_held_writes(kind);
        }
    }

    /// The flush that the bound asked for failed: writes that wait for it fail. Up to the bound none
    /// does.
    fn fail_held_writes(&mut self, kind: ErrorKind) {
        if self.closing && self.is_quiet() {
            self.close_error = Some(kind);
            self.retained.clear();
            return;
        }
        if !self.retained_full() {
            return;
        }
        for _ in 0..self.waiting.len() {
            let io = self.waiting.pop_front().expect("counted");
            if io.op.is_write() {
                let completion = self.completion(&io, Err(kind));
                self.done.push(completion);
            } else {
                self.waiting.push_back(io);
            }
        }
    }

    fn completion(&self, io: &Pending, result: Result<(), ErrorKind>) -> Completion {
        let Owner::User(token) = io.owner else { unreachable!("only users get completions") };
        let (op, offset, len) = (io.op, io.offset, io.len);
        let result = result.map_err(|kind| IoError { kind, op, offset, len, module: MODULE });
        Completion::new(token, result)
    }

    /// Fails everything of the user that waits or is outstanding; the slots keep their ranges.
    pub(crate) fn fail_all(&mut self, kind: ErrorKind) {
        let mut failed = std::mem::take(&mut self.done);
        self.slots.give_up(|io| {
            let Owner::User(token) = io.owner else { return };
            let (op, offset, len) = (io.op, io.offset, io.len);
            let error = IoError { kind, op, offset, len, module: MODULE };
            failed.push(Completion::new(token, Err(error)));
        });
        self.done = failed;
        while let Some(io) = self.waiting.pop_front() {
            if matches!(io.owner, Owner::User(_)) {
                let completion = self.completion(&io, Err(kind));
                self.done.push(completion);
            }
        }
    }

    fn fail_one_and_die(&mut self, io: Pending, kind: ErrorKind) {
        if matches!(io.owner, Owner::User(_)) {
            let completion = self.completion(&io, Err(kind));
            self.done.push(completion);
        }
        self.die(kind);
    }
}

fn kind_of(status: Status) -> Option<ErrorKind> {
    Some(match status {
        Status::Ok => return None,
        Status::Invalid => ErrorKind::Invalid,
        Status::NoSpace => ErrorKind::NoSpace,
        Status::ReadOnly => ErrorKind::ReadOnly,
        Status::Unsupported => ErrorKind::Unsupported,
        Status::Fenced => ErrorKind::Fenced,
        Status::ShuttingDown => ErrorKind::ShuttingDown,
        _ => ErrorKind::Io,
    })
}

/// Extents from the wire, clipped to what was asked; a peer's nonsense yields an empty list.
fn decode_extents(bytes: &[u8], asked: u64, block: u64) -> Vec<Extent> {
    let mut left = asked;
    let mut extents = Vec::with_capacity(bytes.len() / EXTENT_BYTES);
    for entry in bytes.chunks_exact(EXTENT_BYTES) {
        let len = u64::from_be_bytes(entry[..8].try_into().expect("eight bytes")).min(left);
        let flags = entry[11];
        if len == 0 || len % block != 0 {
            break;
        }
        extents.push(Extent { len, hole: flags & 1 != 0, zero: flags & 2 != 0 });
        left -= len;
    }
    extents
}
