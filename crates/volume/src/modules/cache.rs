//! [`Cache`]: what was read of a volume, kept in memory, for whoever reads it again. What may be in it, and
//! when, is in `docs/design.md`, "Hot data".
//!
//! Pages of 4 KiB, filled by reads. A page is always what the volume below would answer, or it is not given
//! to anybody:
//!
//! * what a change that is not complete touches is read below, and not kept;
//! * a write that has succeeded, and beside which nothing else touched its range, is put into the pages that
//!   are there; any other change drops them, and so does one that failed;
//! * a read is kept unless a change touched it meanwhile;
//! * whatever may make the volume below another than it was drops all: a failed flush or durable write, a
//!   loss, a growth, an operation of the writer record. What was read or written then is not kept either.
//!
//! So it is of use only where nobody else changes the volume below.

mod changes;
mod cursor;
mod ghost;
mod pages;
#[cfg(test)]
mod tests;

use thinwire_buffer::{PAGE_BYTES, SegList};

use self::changes::Changes;
use self::cursor::Cursor;
use self::pages::Pages;
use super::slab::Slab;
use crate::{Completion, Geometry, Identity, Io, Op, Token, Volume, VolumeEvent};

const PAGE: u64 = PAGE_BYTES as u64;

/// How often one poll goes back to the volume below with what its own completions go on with.
const ROUNDS_MAX: u32 = 2;

/// Of a read that waits beside others, so many pages are fetched into the processor's cache beforehand.
const TOUCHED_MAX: u64 = 8;

/// A fault planted in a cache, which the simulator must find (`docs/design.md`). No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheCanary {
    /// None: the cache as it is.
    #[default]
    None,
    /// What is written is published before the volume below has taken it.
    PublishedEarly,
}

/// What a cache holds and did, for status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// The memory that it may take, in bytes.
    pub bytes: u64,
    /// Content that it could answer from now, in bytes.
    pub used: u64,
    /// Reads answered from it.
    pub hits: u64,
    /// Reads that had to go to the volume below.
    pub misses: u64,
}

/// A volume with what was read of it in memory. Identity, shape and writer record are those of the volume
/// below.
///
/// A read of which all is there completes at once, with the cache's own pages, by reference; a page that is
/// changed while somebody still reads it moves. Allocates when it holds more pages than ever before, and
/// else never.
pub struct Cache {
    below: Box<dyn Volume>,
    pages: Pages,
    changes: Changes,
    flights: Slab<Flight>,
    /// Reads that the next poll answers or hands down: their pages lie in cold memory, and are fetched for all of
    /// them at once.
    reads: Vec<Io>,
    below_done: Vec<Completion>,
    outstanding: usize,
    /// What has happened below, as far as the pages know.
    events: u64,
    hits: u64,
    misses: u64,
    copied_bytes: u64,
    canary: CacheCanary,
}

/// An I/O below.
struct Flight {
    token: Token,
    op: Op,
    fua: bool,
    offset: u64,
    len: u64,
    kind: Kind,
}

enum Kind {
    /// Nothing is kept of it.
    Plain,
    /// A read, of whole pages if it can be, by its number among [`Changes`].
    Fill { start: u64, len: u64, number: u64 },
    /// A change, by its number. `data` goes into the pages that it was written over, if there were any.
    Change { number: u64, data: SegList },
}

impl Cache {
    /// Over `below`, in at most `bytes` bytes of memory, what is kept about the pages counted.
    ///
    /// # Panics
    /// If that is less than [`Cache::BYTES_MIN`]: whoever lets users choose checks it.
    pub fn new(below: Box<dyn Volume>, bytes: u64) -> Self {
        assert!(bytes >= Self::BYTES_MIN, "a cache of {bytes} bytes");
        debug_assert!(PAGE.is_multiple_of(u64::from(below.geometry().block_bytes)));
        Cache {
            events: below.events(),
            below,
            pages: Pages::new(bytes),
            changes: Changes::new(),
            flights: Slab::new(),
            reads: Vec::new(),
            below_done: Vec::new(),
            outstanding: 0,
            hits: 0,
            misses: 0,
            copied_bytes: 0,
            canary: CacheCanary::None,
        }
    }

    /// The smallest, in bytes: for less no memory is worth looking up.
    pub const BYTES_MIN: u64 = 1 << 20;

    /// Plants a fault: for tests.
    pub fn set_canary(&mut self, canary: CacheCanary) {
        self.canary = canary;
    }

    /// Hands an I/O down, whose token becomes another there.
    fn hand_down(&mut self, mut io: Io, of: Flight) {
        io.token = self.flights.insert(of).into();
        self.below.submit(io);
    }

    /// Hands down what is no read.
    fn pass_on(&mut self, io: Io) {
        let Io { token, op, offset, len, .. } = io;
        let fua = io.flags.fua;
        let kind = match op.is_write() {
            true => self.begin_change(&io),
            false => Kind::Plain,
        };
        self.hand_down(io, Flight { token, op, fua, offset, len, kind });
    }

    fn begin_change(&mut self, io: &Io) -> Kind {
        let end = io.offset + io.len;
        let number = self.changes.begin(io.offset, end);
        let mut data = SegList::new();
        if io.op == Op::Write && self.pages.has_any(io.offset, end) {
            data = io.data.clone();
            if self.canary == CacheCanary::PublishedEarly {
                self.changes.end(number);
                self.put(io.offset, &data);
            }
        }
        Kind::Change { number, data }
    }

    /// Answers the reads that are all here, and hands the others down.
    fn look_up(&mut self, done: &mut Vec<Completion>) {
        if self.reads.len() > 1 {
            self.reads.iter().for_each(|read| self.pages.touch_index(read.offset / PAGE));
            for read in &self.reads {
                let first = read.offset / PAGE;
                let end = (read.offset + read.len).div_ceil(PAGE).min(first + TOUCHED_MAX);
                (first..end).for_each(|page| self.pages.touch(page));
            }
        }
        let mut reads = std::mem::take(&mut self.reads);
        for read in reads.drain(..) {
            match self.find(read.offset, read.offset + read.len) {
                Some(data) => {
                    self.hits += 1;
                    self.outstanding -= 1;
                    done.push(Completion { data, ..Completion::new(read.token, Ok(())) });
                }
                None => self.miss(read),
            }
        }
        self.reads = reads;
    }

    /// The bytes of a range, if all of them are here and nobody changes them.
    fn find(&mut self, start: u64, end: u64) -> Option<SegList> {
        if self.changes.is_busy(start, end) {
            return None;
        }
        let mut data = SegList::new();
        for page in start / PAGE..end.div_ceil(PAGE) {
            let at = self.pages.find(page)?;
            let (from, to) = (start.max(page * PAGE), end.min((page + 1) * PAGE));
            let memory = self.pages.give(at);
            data.push(memory.slice((from % PAGE) as usize, (to - from) as usize));
        }
        Some(data)
    }

    /// Hands a read down: with the rest of its pages, if nobody changes that and the volume takes it.
    fn miss(&mut self, mut io: Io) {
        self.misses += 1;
        let Io { token, offset, len, .. } = io;
        let geometry = self.below.geometry();
        let end = (offset + len).next_multiple_of(PAGE).min(geometry.bytes);
        let start = offset / PAGE * PAGE;
        let (start, end) = match end - start <= u64::from(geometry.io_bytes_max) {
            true => (start, end),
            false => (offset, offset + len),
        };
        let flight = |kind| Flight { token, op: Op::Read, fua: false, offset, len, kind };
        if self.changes.is_busy(start, end) {
            return self.hand_down(io, flight(Kind::Plain));
        }
        (io.offset, io.len) = (start, end - start);
        let number = self.changes.begin_read(start, end);
        self.hand_down(io, flight(Kind::Fill { start, len: end - start, number }));
    }

    /// Keeps the whole pages of what was read, or was written over pages that are here.
    fn fill(&mut self, start: u64, data: &SegList) {
        let mut bytes = Cursor::new(data);
        let first = start.next_multiple_of(PAGE);
        let end = start + data.bytes() as u64;
        bytes.skip(first.min(end) - start);
        for page in first / PAGE..end / PAGE {
            let kept = self.pages.insert(page, |place| bytes.copy_to(place));
            match kept {
                true => self.copied_bytes += PAGE,
                false => bytes.skip(PAGE),
            }
        }
    }

    /// Puts what was written into the pages that are here.
    fn put(&mut self, start: u64, data: &SegList) {
        let mut bytes = Cursor::new(data);
        let end = start + data.bytes() as u64;
        let mut at = start;
        while at < end {
            let to = end.min((at / PAGE + 1) * PAGE);
            let len = (to - at) as usize;
            let put = self.pages.change(at / PAGE, |page| {
                let from = (at % PAGE) as usize;
                bytes.copy_to(&mut page[from..from + len]);
            });
            match put {
                true => self.copied_bytes += to - at,
                false => bytes.skip(to - at),
            }
            at = to;
        }
    }

    /// Nothing of what is here, or is being read or written, is to be relied on.
    fn drop_all(&mut self) {
        self.pages.drop_all();
        self.changes.distrust();
    }

    /// Takes in what has happened below.
    fn check_events(&mut self) {
        let events = self.below.events();
        if events != self.events {
            self.events = events;
            self.drop_all();
        }
    }

    /// Takes in how an I/O ended below. True if it is to be polled for again: it goes on.
    fn on_completion(&mut self, mut completion: Completion, done: &mut Vec<Completion>) -> bool {
        let flight = self.flights.remove(completion.token);
        debug_assert!(flight.is_some(), "{} is not outstanding below", completion.token);
        let Some(Flight { token, op, fua, offset, len, kind }) = flight else { return false };
        completion.token = token;
        let failed = completion.result.is_err();
        match kind {
            Kind::Plain => {}
            Kind::Fill { start, len: read_len, number }
                if failed && (start, read_len) != (offset, len) =>
            {
                self.changes.end(number);
                // What nobody asked for may be what cannot be read.
                let kind = Kind::Plain;
                let io = Io::new(0, Op::Read, offset, len);
                self.hand_down(io, Flight { token, op, fua, offset, len, kind });
                return true;
            }
            Kind::Fill { start, len: read_len, number } => {
                if self.changes.end(number) && !failed {
                    self.fill(start, &completion.data);
                }
                if !failed && (start, read_len) != (offset, len) {
                    let mut part = SegList::new();
                    completion.data.slice_into((offset - start) as usize, len as usize, &mut part);
                    completion.data = part;
                }
            }
            Kind::Change { number, .. } if self.canary == CacheCanary::PublishedEarly => {
                self.changes.end(number);
            }
            Kind::Change { number, data } => {
                let end = offset + len;
                // Of two that overlap the first to begin is told, and drops what both have written.
                match self.changes.end(number) && !failed {
                    true if !data.is_empty() => self.put(offset, &data),
                    _ => self.pages.drop_range(offset / PAGE..end.div_ceil(PAGE)),
                }
            }
        }
        // Who is told of it may not find what was there before.
        if op.is_record() || (failed && (op == Op::Flush || fua)) {
            self.drop_all();
        }
        self.outstanding -= 1;
        done.push(completion);
        false
    }
}

impl Volume for Cache {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry().check(&io) == Ok(()), "{io:?}");
        match io.op {
            Op::Read => self.reads.push(io),
            _ => self.pass_on(io),
        }
        self.outstanding += 1;
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        // A loss elsewhere on the device is told of without a poll of this volume.
        self.check_events();
        if !self.reads.is_empty() {
            self.look_up(done);
        }
        let mut below_done = std::mem::take(&mut self.below_done);
        for _ in 0..ROUNDS_MAX {
            self.below.poll(&mut below_done);
            self.check_events();
            let ended = below_done.drain(..);
            let goes_on = ended.fold(false, |any, one| self.on_completion(one, done) | any);
            if !goes_on {
                break;
            }
        }
        self.below_done = below_done;
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes + self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.check_events();
        self.below.poll_events(events);
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }

    fn cache(&self) -> Option<CacheReport> {
        let (bytes, used) = (self.pages.bytes_max(), self.pages.used_bytes());
        Some(CacheReport { bytes, used, hits: self.hits, misses: self.misses })
    }
}
