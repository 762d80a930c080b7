//! Writes and what else changes something: into memory, or down as it is.

use thinwire_buffer::SegList;
use thinwire_volume::{ErrorKind, Io, IoError, Op};

use super::{DOWN_BYTES_MAX, LONG_PARTS, Request, Through, WriteBack, WriteBackCanary};

/// So many runs are zeroed before a discard, one after the other: it does not take longer the more is here of its range.
const ZEROED_MAX: u32 = 32;

impl WriteBack {
    /// Whether a change goes down as it is.
    fn goes_through(&self, io: &Io) -> bool {
        let is_durable = io.flags.fua && self.canary != WriteBackCanary::DurableInMemory;
        let is_long = io.len > self.blocks.bytes_max() / LONG_PARTS;
        is_durable || io.op != Op::Write || is_long || self.is_in_doubt()
    }

    /// Nothing ends here now: what is below takes nothing any more, or may be so.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.over || self.suspects.is_some()
    }

    pub(super) fn change(&mut self, io: Io) {
        if self.goes_through(&io) {
            return self.begin_through(io);
        }
        match self.held.is_empty() {
            true => self.begin_write(io),
            false => self.held.push_back(io),
        }
    }

    /// Waits until nothing is being written below where it lies, and goes down.
    fn begin_through(&mut self, io: Io) {
        let (token, op, start, end) = (io.token, io.op, io.offset, io.offset + io.len);
        let is_locked = self.canary != WriteBackCanary::NoLock;
        let waits = Some(io);
        let (number, zeroes, zeroes_left) = (0, None, ZEROED_MAX);
        #[rustfmt::skip]
        let through = Through { token, op, start, end, waits, is_locked, number, zeroes, zeroes_left };
        let owner = self.requests.insert(Request::Through(through));
        if !is_locked || self.locks.acquire(owner, start, end, true) {
            self.go_through(owner);
        }
    }

    fn go_through(&mut self, owner: u32) {
        let next = self.number_change();
        let geometry = self.below.geometry();
        let Request::Through(through) = self.requests.get_mut(owner) else { return };
        through.number = next;
        let (start, end) = (through.start, through.end);
        let zeroes = through.op == Op::Discard && through.zeroes_left > 0;
        if zeroes && !self.canary.leaves_discarded() {
            through.zeroes_left -= 1;
            through.zeroes = self.blocks.dirty_run(start, end);
        }
        let io = match &mut through.zeroes {
            Some(run) => {
                let mut io = Io::new(0, Op::WriteZeroes, run.start, run.end - run.start);
                if !geometry.features.write_zeroes {
                    io.len = io.len.min(DOWN_BYTES_MAX).min(geometry.io_bytes_max.into());
                    run.end = run.start + io.len;
                    let zeroes = self.copies.get_zeroed(io.len as usize).freeze();
                    (io.op, io.data) = (Op::Write, SegList::of(zeroes));
                }
                Some(io)
            }
            None => through.waits.take(),
        };
        if let Some(io) = io {
            self.has_sent = true;
            self.below.submit(Io { token: owner.into(), ..io });
        }
    }

    /// Some of what is discarded is zero below, which was here only: of what a discard does nothing to, the bytes that were there before
    /// would come back otherwise. Where there is no room for zeroes the discard, which may make some, goes on without (rule 14): what is here stays.
    /// False if it was no such write, or it failed for another reason.
    pub(super) fn has_zeroed(&mut self, owner: u32, result: Result<(), IoError>) -> bool {
        let needs_room = self.canary == WriteBackCanary::DiscardNeedsRoom;
        let is_full = result.is_err_and(|error| error.kind == ErrorKind::NoSpace && !needs_room);
        let Request::Through(through) = self.requests.get_mut(owner) else { return false };
        if through.zeroes.is_none() || result.is_err() && !is_full {
            return false;
        }
        let (Some(run), number) = (through.zeroes.take(), through.number) else { return false };
        match is_full {
            true => through.zeroes_left = 0,
            false => self.blocks.drop_range(run.start, run.end),
        }
        self.trust(number, result);
        self.go_through(owner);
        true
    }

    /// Takes a write in once nothing is below that goes over its range.
    fn begin_write(&mut self, io: Io) {
        let (start, end) = (io.offset, io.offset + io.len);
        let owner = self.requests.insert(Request::Write(io));
        if self.locks.acquire(owner, start, end, false) {
            self.take_in(owner);
        }
    }

    /// Its turn has come: it is taken in, or held until there is room.
    fn take_in(&mut self, owner: u32) {
        let request = self.requests.remove(owner.into());
        let Some(Request::Write(io)) = request else { return };
        let is_kept = self.canary == WriteBackCanary::HeldKeepsLock
            && self.blocks.has_room(io.offset, io.offset + io.len) == Some(false);
        if !is_kept {
            self.locks.release(owner, &mut self.granted);
        }
        if self.is_in_doubt() {
            return self.begin_through(io);
        }
        match self.blocks.has_room(io.offset, io.offset + io.len) {
            None => self.begin_through(io),
            Some(false) => {
                // It is tried once more to make some.
                self.stuck = None;
                self.held.push_back(io);
            }
            Some(true) => {
                self.copied_bytes += io.len;
                self.blocks.put(io.offset, &io.data, self.epoch, self.now);
                self.tell(io.token, Ok(()));
            }
        }
    }

    /// Those whose turn has come to have their locks.
    pub(super) fn go_on(&mut self) {
        let mut at = 0;
        while let Some(&owner) = self.granted.get(at) {
            at += 1;
            match self.requests.get_mut(owner) {
                Request::Write(_) => self.take_in(owner),
                _ => self.go_through(owner),
            }
        }
        self.granted.clear();
    }

    /// Writes for which there is room by now; where none will be made, they fail.
    pub(super) fn admit_held(&mut self) {
        while let Some(io) = self.held.front() {
            let has_room = self.blocks.has_room(io.offset, io.offset + io.len) != Some(false);
            match (has_room || self.over, self.stuck) {
                (true, _) => {
                    if let Some(io) = self.held.pop_front() {
                        match self.over {
                            true => self.begin_through(io),
                            false => self.begin_write(io),
                        }
                    }
                    self.go_on();
                }
                (false, Some((error, _))) if self.down == 0 => return self.fail_held(error),
                _ => return,
            }
        }
    }
}
