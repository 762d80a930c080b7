//! [`Cache`]: what was read of a volume, kept in memory, for whoever reads it again. What may be in it, and
//! when, is in `docs/design.md`, "Hot data".
//!
//! Pages of 4 KiB, filled by reads, and ahead of them where somebody reads from front to back. A page is always
//! what the volume below would answer, or it is not given to anybody:
//!
//! * what a change that is not complete touches is read below, and not kept;
//! * a write that has succeeded, and beside which nothing else touched its range, is put into the pages that
//!   are there; any other change drops them, and so does one that failed;
//! * a read is kept unless a change touched it meanwhile, whether somebody had asked for it or not, and only as
//!   [verified](thinwire_volume::IoFlags::verified): so it does for whoever wants no less;
//! * who asks [what stands below](thinwire_volume::IoFlags::uncached) is not answered from here, and nothing is kept of that;
//! * whatever may make the volume below another than it was drops all: a failed flush or durable write, a
//!   loss, a growth, an operation of the writer record. What was read or written then is not kept either.
//!
//! So it is of use only where nobody else changes the volume below, or where what somebody else has changed
//! may be seen later: what was read is dropped when it may have become as old as that ([`Cache::set_max_age`]).

mod ahead;
mod changes;
mod cursor;
mod ghost;
mod pages;
mod row;
mod streams;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use thinwire_buffer::{PAGE_BYTES, SegList, Time};

use self::ahead::{Ahead, READ_BYTES_MAX};
use self::changes::Changes;
pub(crate) use self::cursor::Cursor;
use self::pages::Pages;
pub(crate) use self::row::MODULE;
use crate::{Module, Options};
use thinwire_volume::{
    CacheReport, Completion, ErrorKind, Geometry, Io, IoFlags, Layer, Op, Slab, Token, Volume,
};

const PAGE: u64 = PAGE_BYTES as u64;

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
    /// What is read ahead is published though a change touched it meanwhile.
    AheadUnchecked,
    /// What is lost by somebody else, on the same device, drops nothing.
    LossesUnheard,
    /// What was read is given for as long as it is here.
    AgeForgotten,
    /// Who asks what stands below is told what is here.
    ScrubsAnswered,
    /// A write is kept though another change was under way over its range when it began.
    OverlapsKept,
    /// What cannot be told to be as it was written is kept as if it could.
    UnverifiedKept,
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
    ahead: Ahead,
    below_done: Vec<Completion>,
    outstanding: usize,
    /// What has happened below, as far as the pages know.
    events: u64,
    hits: u64,
    misses: u64,
    ahead_bytes: u64,
    copied_bytes: u64,
    /// Whole pages that were written are kept as if they had been read.
    keeps_writes: bool,
    /// Nothing that is here was read longer ago.
    age_max: Option<Duration>,
    /// When all was dropped last for being old.
    young_at: Option<Time>,
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

impl Flight {
    fn read(token: Token, offset: u64, len: u64, kind: Kind) -> Self {
        Flight { token, op: Op::Read, fua: false, offset, len, kind }
    }
}

enum Kind {
    /// Nothing is kept of it.
    Plain,
    /// A verified read, of whole pages if it can be, by its number among [`Changes`]. `flags`: those that were asked for.
    Fill { start: u64, len: u64, number: u64, flags: IoFlags },
    /// A change, by its number. `data` goes into the pages that it was written over, if there were any.
    Change { number: u64, data: SegList },
    /// A read of the flight's range, which nobody has asked for; by its number.
    Ahead { number: u64 },
}

impl Cache {
    /// Over `below`, in at most `bytes` bytes of memory, what is kept about the pages counted.
    ///
    /// # Panics
    /// If that is less than [`Cache::BYTES_MIN`]: whoever lets users choose checks it.
    pub fn new(below: Box<dyn Volume>, bytes: u64) -> Self {
        assert!(bytes >= Self::BYTES_MIN, "a cache of {bytes} bytes");
        debug_assert!(PAGE.is_multiple_of(u64::from(below.geometry().block_bytes)));
        let pages = Pages::new(bytes);
        Cache {
            events: below.events(),
            below,
            ahead: Ahead::new(pages.small_bytes()),
            pages,
            changes: Changes::new(),
            flights: Slab::new(),
            reads: Vec::new(),
            below_done: Vec::new(),
            outstanding: 0,
            hits: 0,
            misses: 0,
            ahead_bytes: 0,
            copied_bytes: 0,
            keeps_writes: false,
            age_max: None,
            young_at: None,
            canary: CacheCanary::None,
        }
    }

    /// Keeps whole pages that were written, too: where they come down late, who reads them soon need not wait for that.
    pub fn keep_writes(&mut self) {
        self.keeps_writes = true;
    }

    /// Gives nothing any more that was read so long ago: for what others may change meanwhile. All is dropped as often as that, since
    /// one by one would cost each page a time and each hit a look at it. To be said before anybody asks whether it
    /// is timed.
    pub fn set_max_age(&mut self, age: Duration) {
        self.age_max = Some(age);
    }

    /// What a module with these options takes of memory, in bytes; `None` if it is no cache.
    pub fn bytes_of(module: &Module, options: &Options) -> Option<u64> {
        (*module == MODULE).then(|| row::bytes_of(options))
    }

    /// It is told how old what it gives may be.
    pub fn has_max_age(options: &Options) -> bool {
        row::has_max_age(options)
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
        if io.op == Op::Write && (self.keeps_writes || self.pages.has_any(io.offset, end)) {
            data = io.data.clone();
            if self.canary == CacheCanary::PublishedEarly {
                self.changes.end(number);
                self.put(io.offset, &data, self.keeps_writes);
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
            let (start, end) = (read.offset, read.offset + read.len);
            let first_uses = self.pages.first_uses();
            let is_here = self.answer(read, done);
            let lacks = !is_here || self.pages.first_uses() > first_uses;
            if let Some(range) = self.ahead.streams.on_read(start, end, lacks) {
                self.read_ahead(range);
            }
        }
        self.reads = reads;
    }

    /// Answers a read, or has it wait, or hands it down. True if it was here.
    fn answer(&mut self, read: Io, done: &mut Vec<Completion>) -> bool {
        if self.answer_here(&read, done) {
            return true;
        }
        let (start, end) = (read.offset, read.offset + read.len);
        let now = self.changes.next_number();
        match self.ahead.is_coming(start, end, now) && !self.changes.is_busy(start, end) {
            true => self.ahead.wait(read, now),
            false => self.miss(read),
        }
        false
    }

    fn answer_here(&mut self, read: &Io, done: &mut Vec<Completion>) -> bool {
        let Some(data) = self.find(read.offset, read.offset + read.len) else { return false };
        self.hits += 1;
        self.outstanding -= 1;
        done.push(Completion { data, ..Completion::new(read.token, Ok(())) });
        true
    }

    /// Reads what of a range is not here, as far as there is a volume, and nobody waits for it.
    fn read_ahead(&mut self, range: Range<u64>) {
        let Geometry { bytes, io_bytes_max, .. } = self.below.geometry();
        let most = READ_BYTES_MAX.min(u64::from(io_bytes_max)) / PAGE;
        let pages = range.start.div_ceil(PAGE)..range.end.min(bytes) / PAGE;
        let mut at = pages.start;
        while most > 0 && at < pages.end && !self.ahead.is_full() {
            let piece = at..pages.end.min(at + most);
            at = piece.end;
            let lacks = |page: &u64| self.pages.find(*page).is_none();
            let Some(first) = piece.clone().find(lacks) else { continue };
            let last = piece.rev().find(lacks).unwrap_or(first);
            let (start, end) = (first * PAGE, (last + 1) * PAGE);
            let is_busy = self.changes.is_busy(start, end);
            if is_busy || self.ahead.is_coming(start, end, u64::MAX) {
                continue;
            }
            let (number, len) = (self.changes.begin_read(start, end), end - start);
            self.ahead.begin(number, start..end);
            self.ahead_bytes += len;
            let kind = Kind::Ahead { number };
            let flight = Flight::read(0, start, len, kind);
            let mut io = Io::new(0, Op::Read, start, len);
            io.flags.verified = self.canary != CacheCanary::UnverifiedKept;
            self.hand_down(io, flight);
        }
    }

    /// What was read ahead is here, or is not to be had. True if somebody waits, who is answered or goes on below.
    fn end_ahead(&mut self, number: u64, start: u64, completion: &Completion) -> bool {
        self.ahead.end(number);
        let is_clean = self.changes.end_read(number) || self.canary == CacheCanary::AheadUnchecked;
        if is_clean && completion.result.is_ok() {
            self.fill(start, &completion.data, true);
        }
        self.ahead.is_awaited()
    }

    /// Answers those that have waited for what was read ahead, or hands them down.
    fn answer_late(&mut self, done: &mut Vec<Completion>) {
        let mut left = self.ahead.late();
        while let Some(read) = self.ahead.next_late(&mut left) {
            if !self.answer_here(&read, done) {
                self.miss(read);
            }
        }
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
        if self.changes.is_busy(start, end) {
            return self.hand_down(io, Flight::read(token, offset, len, Kind::Plain));
        }
        (io.offset, io.len) = (start, end - start);
        let number = self.changes.begin_read(start, end);
        let kind = Kind::Fill { start, len: end - start, number, flags: io.flags };
        io.flags.verified |= self.canary != CacheCanary::UnverifiedKept;
        self.hand_down(io, Flight::read(token, offset, len, kind));
    }

    /// Keeps the whole pages of what was read, by somebody or ahead.
    fn fill(&mut self, start: u64, data: &SegList, is_ahead: bool) {
        let mut bytes = Cursor::new(data);
        let first = start.next_multiple_of(PAGE);
        let end = start + data.bytes() as u64;
        bytes.skip(first.min(end) - start);
        for page in first / PAGE..end / PAGE {
            let kept = self.pages.insert(page, is_ahead, |place| bytes.copy_to(place));
            match kept {
                true => self.copied_bytes += PAGE,
                false => bytes.skip(PAGE),
            }
        }
    }

    /// Puts what was written into the pages that are here; `is_kept`: and keeps whole pages that are not.
    fn put(&mut self, start: u64, data: &SegList, is_kept: bool) {
        let mut bytes = Cursor::new(data);
        let end = start + data.bytes() as u64;
        let mut at = start;
        while at < end {
            let to = end.min((at / PAGE + 1) * PAGE);
            let len = (to - at) as usize;
            let mut change = |page: &mut [u8]| {
                let from = (at % PAGE) as usize;
                bytes.copy_to(&mut page[from..from + len]);
            };
            let is_page = is_kept && len as u64 == PAGE;
            let put = self.pages.change(at / PAGE, &mut change)
                || is_page && self.pages.insert(at / PAGE, false, &mut change);
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
            if self.canary == CacheCanary::LossesUnheard {
                return;
            }
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
            Kind::Fill { start, len: read_len, number, flags }
                if completion.result.is_err_and(|error| {
                    let is_longer = (start, read_len) != (offset, len);
                    is_longer || error.kind == ErrorKind::BadSum && !flags.verified
                }) =>
            {
                self.changes.end_read(number);
                // What nobody asked for may be what cannot be read, or told to be as it was written.
                let io = Io { flags, ..Io::new(0, Op::Read, offset, len) };
                self.hand_down(io, Flight::read(token, offset, len, Kind::Plain));
                return true;
            }
            Kind::Fill { start, len: read_len, number, .. } => {
                if self.changes.end_read(number) && !failed {
                    self.fill(start, &completion.data, false);
                }
                if !failed && (start, read_len) != (offset, len) {
                    let mut part = SegList::new();
                    completion.data.slice_into((offset - start) as usize, len as usize, &mut part);
                    completion.data = part;
                }
            }
            Kind::Ahead { number } => return self.end_ahead(number, offset, &completion),
            Kind::Change { number, .. } if self.canary == CacheCanary::PublishedEarly => {
                self.changes.end(number);
            }
            Kind::Change { number, data } => {
                let end = offset + len;
                // Of two that overlap the first to begin is told, and drops what both have written.
                // What was there is dropped by the other one then, or has been.
                let is_first =
                    self.changes.is_first(number) || self.canary == CacheCanary::OverlapsKept;
                let is_kept = self.keeps_writes && is_first;
                match self.changes.end(number) && !failed {
                    true if !data.is_empty() => self.put(offset, &data, is_kept),
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

impl Layer for Cache {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.below.geometry().check(&io) == Ok(()), "{io:?}");
        match io.op {
            Op::Read if !io.flags.uncached || self.canary == CacheCanary::ScrubsAnswered => {
                self.reads.push(io);
            }
            _ => self.pass_on(io),
        }
        self.outstanding += 1;
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        // A loss elsewhere on the device is told of without a poll of this volume.
        self.check_events();
        if !self.reads.is_empty() {
            self.look_up(done);
        }
        let mut below_done = std::mem::take(&mut self.below_done);
        // What an I/O goes on with must be on its way in this poll: nobody would wake us. It goes on twice at most:
        // from waiting to a read of whole pages, and to one of its own bytes.
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            self.below.poll(&mut below_done);
            self.check_events();
            for one in below_done.drain(..) {
                goes_on |= self.on_completion(one, done);
            }
            if goes_on {
                self.answer_late(done);
            }
        }
        self.below_done = below_done;
    }

    fn taken(&self) -> usize {
        self.outstanding
    }

    fn own_copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    fn before_events(&mut self) {
        self.check_events();
    }

    fn own_is_timed(&self) -> bool {
        self.age_max.is_some()
    }

    /// Before each poll, so nobody needs to wake it for that.
    fn own_turn(&mut self, now: Time) -> Time {
        if let Some(age) = self.age_max {
            let is_old = now.since(*self.young_at.get_or_insert(now)) >= age;
            if is_old && self.canary != CacheCanary::AgeForgotten {
                self.young_at = Some(now);
                self.drop_all();
            }
        }
        Time::NEVER
    }

    fn own_cache(&self) -> Option<CacheReport> {
        let (bytes, used) = (self.pages.bytes_max(), self.pages.used_bytes());
        Some(CacheReport {
            bytes,
            used,
            dirty: 0,
            hits: self.hits,
            misses: self.misses,
            ahead: self.ahead_bytes,
        })
    }
}
