//! [`WriteBack`]: a volume whose writes end in memory, and go down later.
//!
//! What is written is kept in blocks of 4 KiB, sector by sector, until the volume below has it. It is never given up before that:
//!
//! * a **flush** goes down when all that had been completed before it has gone down and is complete there (rule 21 of
//!   `docs/design.md`, "Writes that end in memory");
//! * what is **durable by itself** goes down as it is, and so do discards, zeroes, and what is longer than a part of the room. Such a change
//!   waits for what is being written below where it lies, and holds up what is written there, so that no two changes of one place are
//!   below at a time. What is here of its range is dropped when it has succeeded, and is as good as ever if it has not. Before a **discard**, which
//!   may do nothing, it is written below as zeroes, as far as that is soon done and there is room; what is not stays, and goes down later: a discard leaves what
//!   was there, or zeroes;
//! * a **read** has what is here over what is below, as it was when the read was submitted, and a block status tells it as data;
//! * what **fails** to go down stays here, as the oldest of all: a flush that covers it fails, and every later one has it tried again. Nothing
//!   is lost by that, as long as this lives. Writes for which there is no room fail then, too, since none is being made;
//! * where the volume below will **never** take it (another has taken it over, or it is another volume by now), all is given up, which is
//!   told as a loss.
//!
//! It goes down with a flush, when half of the room is taken, after [`AGE_MAX`], when anything happens to the volume below, and when
//! it is wound up. Writes for which there is no room wait in their order, and hold no lock meanwhile: so room is made whatever waits.

mod blocks;
mod canary;
mod change;
mod over;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use thinwire_buffer::{PAGE_BYTES, Pool, Time};
use thinwire_volume::{
    CacheReport, Completion, ErrorKind, Geometry, Identity, Io, IoError, MirrorReport, Op,
    RangeLocks, Scrub, Slab, Token, Volume, VolumeEvent, Work,
};

use self::blocks::{Batch, Blocks};
pub use self::canary::WriteBackCanary;
use self::over::Ask;

const PAGE: u64 = PAGE_BYTES as u64;
const SECTOR: u64 = 512;

/// So many writes of its own are below at a time, each of so many bytes, at most: together of one part in
/// [`GOING_PARTS`] of the memory.
const DOWN_IOS_MAX: usize = 32;
const DOWN_BYTES_MAX: u64 = 128 << 10;

const GOING_PARTS: u64 = 4;

/// What reads are given of it is kept to be used again up to so much.
const COPIES_BYTES: u64 = 1 << 20;

/// What was written goes down after so long, if it can.
pub const AGE_MAX: Duration = Duration::from_secs(5);
/// Where some of it could not, that is tried again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What is longer than one part in so many of the room goes down as it is.
const LONG_PARTS: u64 = 4;

/// How often one poll goes on with what it has led to: stores that complete at once would never let it end.
const ROUNDS_MAX: usize = 64;

/// A volume over one other, with its content and identity, that needs to be told the time.
///
/// Bounded: what is written has its room, of three quarters of the memory; what is being written below while it is written again
/// is there twice, and has the rest. Allocates when more is outstanding than ever before, for block status, and else never.
pub struct WriteBack {
    below: Box<dyn Volume>,
    blocks: Blocks,
    /// What is held shared goes down from here; what goes down as it is is held alone.
    locks: RangeLocks,
    requests: Slab<Request>,
    /// Writes for which there was no room, in their order.
    held: VecDeque<Io>,
    /// Flushes that wait for what they cover, in their order: their tokens, and the last epoch of that.
    flushes: VecDeque<(Token, u64)>,
    /// The present one: each flush begins another.
    epoch: u64,
    /// Up to that epoch all goes down, though no flush wants it.
    urged: Option<u64>,
    /// Writes of its own that are below; and so many pages, in bytes, of so many at most.
    down: usize,
    down_bytes: u64,
    down_bytes_max: u64,
    /// The earliest epoch of each of them.
    down_epochs: Vec<(u32, u64)>,
    /// Some could not go down: why, and when that was.
    stuck: Option<(IoError, Time)>,
    /// It is time to try the oldest once more.
    tries: bool,
    /// Something has happened below: until a change that went there later has succeeded, as they are numbered, nothing ends here.
    suspects: Option<u64>,
    /// The number of the next change that goes down.
    changes: u64,
    /// The volume below takes nothing any more: all goes down as it is, and is refused there.
    over: bool,
    ending: Ending,
    now: Time,
    /// What has happened below, as far as is known here.
    events: u64,
    losses: u64,
    losses_told: u64,
    outstanding: usize,
    /// Something was submitted below.
    has_sent: bool,
    /// The last poll ended before all that it had led to.
    has_more: bool,
    ready: Vec<Completion>,
    inbox: Vec<Completion>,
    granted: Vec<u32>,
    spare: Vec<Vec<(u64, u64)>>,
    /// For what reads are given.
    copies: Pool,
    copied_bytes: u64,
    canary: WriteBackCanary,
}

/// How far it has been wound up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Not,
    /// All goes down.
    Drains,
    /// It is being flushed.
    Flushes,
    /// The volume below is being wound up.
    Below,
}

/// What waits for a lock, or is below, where its index is its token.
enum Request {
    /// A write that waits for what lies over its range.
    Write(Io),
    /// A change that goes down as it is; first it waits.
    Through(Through),
    /// A read or block status, over which something is laid.
    Ask(Ask),
    /// A read over which nothing is laid, a flush, or an operation of the writer record.
    Plain { token: Token },
    /// Blocks.
    Down { start: u64, end: u64, since: Time, number: u64 },
    /// The last flush.
    Last,
}

struct Through {
    token: Token,
    op: Op,
    start: u64,
    end: u64,
    waits: Option<Io>,
    is_locked: bool,
    number: u64,
    /// Of a discard: what is being zeroed first, and how much more may be.
    zeroes: Option<Range<u64>>,
    zeroes_left: u32,
}

/// What the pages of a range take, in bytes.
fn pages_of(start: u64, end: u64) -> u64 {
    (end.div_ceil(PAGE) - start / PAGE) * PAGE
}

impl WriteBack {
    /// Over `below`, in so many bytes of memory, what is kept about what is written counted.
    ///
    /// # Panics
    /// If that is less than [`WriteBack::BYTES_MIN`]: whoever lets users choose checks it.
    pub fn new(below: Box<dyn Volume>, bytes: u64) -> Self {
        assert!(bytes >= Self::BYTES_MIN, "room for {bytes} bytes");
        Self::over(below, bytes)
    }

    fn over(below: Box<dyn Volume>, bytes: u64) -> Self {
        debug_assert!(PAGE.is_multiple_of(u64::from(below.geometry().block_bytes)));
        let down_bytes_max = bytes / GOING_PARTS;
        WriteBack {
            events: below.events(),
            below,
            blocks: Blocks::new(bytes - down_bytes_max),
            locks: RangeLocks::default(),
            requests: Slab::new(),
            held: VecDeque::new(),
            flushes: VecDeque::new(),
            epoch: 1,
            urged: None,
            down: 0,
            down_bytes: 0,
            down_bytes_max,
            down_epochs: Vec::with_capacity(DOWN_IOS_MAX),
            stuck: None,
            tries: false,
            suspects: None,
            changes: 0,
            over: false,
            ending: Ending::Not,
            now: Time::ZERO,
            losses: 0,
            losses_told: 0,
            outstanding: 0,
            has_sent: false,
            has_more: false,
            ready: Vec::new(),
            inbox: Vec::new(),
            granted: Vec::new(),
            spare: Vec::new(),
            copies: Pool::new(COPIES_BYTES as usize),
            copied_bytes: 0,
            canary: WriteBackCanary::None,
        }
    }

    /// The smallest room, in bytes.
    pub const BYTES_MIN: u64 = 1 << 20;

    /// Plants a fault: for tests.
    pub fn set_canary(&mut self, canary: WriteBackCanary) {
        (self.canary, self.blocks.canary) = (canary, canary);
    }

    /// What it takes with so much for what is written, in bytes.
    pub fn bytes_of(bytes: u64) -> u64 {
        bytes.saturating_add(COPIES_BYTES)
    }

    /// What is here and not below, in bytes.
    pub fn dirty_bytes(&self) -> u64 {
        self.blocks.used_bytes()
    }

    fn hand_down(&mut self, mut io: Io, request: Request) {
        io.token = self.requests.insert(request).into();
        self.has_sent = true;
        self.below.submit(io);
    }

    fn tell(&mut self, token: Token, result: Result<(), IoError>) {
        self.ready.push(Completion::new(token, result));
    }

    /// Goes on with whatever can: locks that were granted, writes for which there is room, what is to go down, flushes.
    fn advance(&mut self) {
        self.go_on();
        self.admit_held();
        while self.has_way_down() && self.wants_down() {
            let Self { blocks, locks, below, .. } = self;
            let left = self.down_bytes_max - self.down_bytes;
            let most = DOWN_BYTES_MAX.min(left).min(u64::from(below.geometry().io_bytes_max));
            let ignores = self.canary == WriteBackCanary::BusyIgnored;
            let batch = blocks.take_oldest(most, |start, end| ignores || locks.is_free(start, end));
            let Some(batch) = batch else { break };
            self.write_down(batch);
        }
        self.flush_below();
        self.go_on_ending();
    }

    fn has_way_down(&self) -> bool {
        self.down < DOWN_IOS_MAX && self.down_bytes < self.down_bytes_max
    }

    /// Something is to go down that is not on its way.
    fn wants_down(&self) -> bool {
        let Some((epoch, since)) = self.blocks.oldest() else { return false };
        let wanted = self.flushes.back().map(|(_, epoch)| *epoch).max(self.urged);
        let is_wanted = wanted.is_some_and(|wanted| epoch <= wanted)
            || !self.held.is_empty()
            || self.blocks.is_fuller_than(2)
            || self.ending != Ending::Not
            || self.tries
            || since + AGE_MAX <= self.now;
        self.stuck.is_none() && is_wanted
    }

    fn write_down(&mut self, batch: Batch) {
        let Batch { start, data, epoch, since } = batch;
        let end = start + data.bytes() as u64;
        let number = self.number_change();
        let owner = self.requests.insert(Request::Down { start, end, since, number });
        if self.canary != WriteBackCanary::BusyIgnored {
            let is_free = self.locks.acquire(owner, start, end, false);
            debug_assert!(is_free, "it was looked at");
        }
        self.down += 1;
        self.down_bytes += pages_of(start, end);
        self.down_epochs.push((owner, epoch));
        (self.has_sent, self.tries) = (true, false);
        self.below.submit(Io { data, ..Io::new(owner.into(), Op::Write, start, end - start) });
    }

    fn number_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes - 1
    }

    /// Flushes below for those whose writes are all there.
    fn flush_below(&mut self) {
        while let Some(&(token, last)) = self.flushes.front() {
            let is_covered = |epoch: u64| epoch <= last;
            let is_left = self.blocks.oldest().is_some_and(|(epoch, _)| is_covered(epoch))
                || self.down_epochs.iter().any(|(_, epoch)| is_covered(*epoch));
            if is_left && self.canary != WriteBackCanary::FlushFirst {
                return;
            }
            self.flushes.pop_front();
            self.hand_down(Io::new(0, Op::Flush, 0, 0), Request::Plain { token });
        }
    }

    /// What was written has ended below.
    fn end_down(&mut self, owner: u32, down: (u64, u64, Time), result: Result<(), IoError>) {
        let (start, end, since) = down;
        self.down -= 1;
        self.down_bytes -= pages_of(start, end);
        let at = self.down_epochs.iter().position(|(other, _)| *other == owner);
        let (_, epoch) = self.down_epochs.swap_remove(at.expect("it was below"));
        let is_there = result.is_ok() || self.canary == WriteBackCanary::FailureForgotten;
        self.blocks.end(start, end, is_there, since);
        if self.canary != WriteBackCanary::BusyIgnored {
            self.locks.release(owner, &mut self.granted);
        }
        if let (Err(error), false) = (result, is_there) {
            let error = IoError { op: Op::Flush, ..error };
            // Those first that were there first.
            for at in (0..self.flushes.len()).rev() {
                if self.flushes[at].1 >= epoch
                    && let Some((token, _)) = self.flushes.remove(at)
                {
                    self.ready.insert(0, Completion::new(token, Err(error)));
                }
            }
            // Others have it tried again.
            if self.flushes.is_empty() {
                self.stuck = Some((error, self.now));
            }
        }
    }

    /// The volume below takes nothing any more.
    fn end_for_good(&mut self, error: IoError) {
        self.over = true;
        let has_lost = self.blocks.abandon() && self.canary != WriteBackCanary::LossUntold;
        self.losses += u64::from(has_lost);
        self.fail_held(error);
    }

    fn fail_held(&mut self, error: IoError) {
        while let Some(io) = self.held.pop_front() {
            self.tell(io.token, Err(io.error(error.kind, error.module)));
        }
    }

    fn on_completion(&mut self, completion: Completion) {
        let owner = completion.token as u32;
        if self.has_zeroed(owner, completion.result) {
            return;
        }
        let request = self.requests.remove(completion.token);
        debug_assert!(request.is_some(), "{owner} is not outstanding below");
        let Some(request) = request else { return };
        let result = completion.result;
        match request {
            Request::Write(_) => debug_assert!(false, "it is not below"),
            Request::Through(Through {
                token, op, start, end, is_locked, number, waits, ..
            }) => {
                let forgets = self.canary == WriteBackCanary::DiscardForgets && op != Op::Write;
                // What is discarded may stay as it was: what is here of it still goes down.
                let stays = op == Op::Discard && self.canary != WriteBackCanary::DiscardUncovers;
                let covers = result.is_ok() && !forgets && !stays;
                let as_told = |error: IoError| match &waits {
                    Some(io) => io.error(error.kind, error.module),
                    None => error,
                };
                let result = result.map_err(as_told);
                if covers || self.canary == WriteBackCanary::FailedThroughCovers {
                    self.blocks.drop_range(start, end);
                }
                self.trust(number, result);
                if is_locked {
                    self.locks.release(owner, &mut self.granted);
                }
                self.tell(token, result);
            }
            Request::Ask(ask) => self.answer(ask, completion),
            Request::Plain { token } => {
                let is_flush = matches!(result, Err(error) if error.op == Op::Flush);
                // Before whatever may have seen what it tells of.
                let at = if is_flush { 0 } else { self.ready.len() };
                self.ready.insert(at, Completion { token, ..completion });
            }
            Request::Down { start, end, since, number } => {
                self.end_down(owner, (start, end, since), result);
                self.trust(number, result);
            }
            Request::Last => {
                self.losses += u64::from(result.is_err());
                self.ending = Ending::Below;
                self.below.wind_up();
                self.has_sent = true;
            }
        }
        if let Err(error) = result
            && matches!(
                error.kind,
                ErrorKind::Fenced | ErrorKind::ContentChanged | ErrorKind::ShuttingDown
            )
        {
            self.end_for_good(error);
        }
    }

    /// Whatever has happened below may be the end of it: then that is to be known here, before anything ends, and not when somebody flushes.
    fn check_events(&mut self) {
        let events = self.below.events();
        if std::mem::replace(&mut self.events, events) == events {
            return;
        }
        self.urged = Some(self.epoch);
        self.epoch += 1;
        if self.canary == WriteBackCanary::EventsUnheard {
            return;
        }
        // What comes of the first try may be told as one more.
        if self.suspects.is_none() {
            self.stuck = None;
        }
        self.suspects = Some(self.changes);
    }

    /// A change has ended below, of that number.
    fn trust(&mut self, number: u64, result: Result<(), IoError>) {
        let is_answer = self.suspects.is_some_and(|first| first <= number);
        if is_answer && result.is_ok() {
            self.suspects = None;
        }
    }

    fn go_on_ending(&mut self) {
        if self.ending == Ending::Drains && self.blocks.is_empty() && self.down == 0 {
            if self.canary == WriteBackCanary::EndUnflushed {
                self.ending = Ending::Below;
                return self.below.wind_up();
            }
            self.ending = Ending::Flushes;
            self.hand_down(Io::new(0, Op::Flush, 0, 0), Request::Last);
        }
    }

    /// When it has something to do, though nobody wants anything.
    fn due(&self) -> Time {
        match (self.blocks.oldest(), self.stuck) {
            (None, _) => Time::NEVER,
            (_, Some((_, since))) => since + AGAIN_AFTER,
            // What can go is on its way, and the rest waits for that.
            _ if self.wants_down() => Time::NEVER,
            (Some((_, since)), None) => since + AGE_MAX,
        }
    }
}

impl Volume for WriteBack {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry().check(&io) == Ok(()), "{io:?}");
        self.outstanding += 1;
        // It may end here.
        self.check_events();
        match io.op {
            Op::Read | Op::BlockStatus => self.ask(io),
            Op::Flush => {
                // What could not go down is tried again.
                self.stuck = None;
                self.flushes.push_back((io.token, self.epoch));
                self.epoch += 1;
            }
            // Whoever cuts holds all writes, and has flushed before.
            Op::LoadWriter | Op::StoreWriter | Op::Cut => {
                let token = io.token;
                self.hand_down(io, Request::Plain { token });
            }
            Op::Write | Op::Discard | Op::WriteZeroes => self.change(io),
        }
        self.advance();
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.check_events();
        let mut inbox = std::mem::take(&mut self.inbox);
        for _ in 0..ROUNDS_MAX {
            self.has_sent = false;
            self.below.poll(&mut inbox);
            self.check_events();
            inbox.drain(..).for_each(|completion| self.on_completion(completion));
            self.advance();
            if !self.has_sent {
                break;
            }
        }
        self.inbox = inbox;
        self.has_more = self.has_sent;
        self.outstanding -= self.ready.len();
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes + self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.losses + self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.check_events();
        let first = events.len();
        self.below.poll_events(events);
        if std::mem::replace(&mut self.losses_told, self.losses) != self.losses {
            events.insert(first, VolumeEvent::Lost);
        }
    }

    fn is_at_rest(&self) -> bool {
        self.outstanding == 0 && self.down == 0 && self.below.is_at_rest()
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }

    /// All goes down and is flushed, and then the volume below is wound up. What cannot go down is tried again with each call.
    fn wind_up(&mut self) {
        match self.ending {
            Ending::Not | Ending::Drains => {
                let has_nothing = self.geometry().features.read_only;
                self.ending = if has_nothing { Ending::Below } else { Ending::Drains };
                self.stuck = None;
            }
            Ending::Flushes | Ending::Below => {}
        }
        if self.ending == Ending::Below {
            self.below.wind_up();
        }
        self.advance();
    }

    fn is_wound_up(&self) -> bool {
        self.ending == Ending::Below && self.below.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below.mirrors(found);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.below.works(visit);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.below.scrubs(visit);
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        if self.stuck.is_some_and(|(_, since)| since + AGAIN_AFTER <= now) {
            (self.stuck, self.tries) = (None, true);
        }
        self.has_sent = false;
        self.advance();
        // Who was asked for something may tell nobody that it is done.
        let is_asked = self.has_sent || self.has_more || !self.ready.is_empty();
        let below = self.below.turn(now);
        if is_asked { now } else { below.min(self.due()) }
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        let (bytes, dirty) = (self.blocks.bytes_max(), self.blocks.used_bytes());
        found.push(CacheReport { bytes, dirty, ..CacheReport::default() });
        self.below.caches(found);
    }
}
