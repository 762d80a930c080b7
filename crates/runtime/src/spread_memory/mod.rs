//! A volume in memory that several threads have, each by a store of its own on the same content
//! (`docs/design.md`, "One export, several shards"). No lock is on the way of an I/O: content is shared as words
//! that are read and written whole, each by itself.
//!
//! What a thread reads is copied, since another may write it meanwhile, and bytes that were read never change under
//! whoever still sends them. A [`MemoryStore`](thinwire_volume::stores::MemoryStore), which one thread has,
//! hands out its own pages instead: what is not spread is better kept there.
//!
//! What a turn does is bounded, as of the disks; of what is left the bell tells.

mod content;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use thinwire_buffer::{PAGE_BYTES, Pool, SegList, Segment};
use thinwire_volume::stores::IO_BYTES_MAX;
use thinwire_volume::{
    Completion, ErrorKind, Extent, Features, Geometry, Identity, Io, Op, Token, Volume,
    WriterRecord,
};

use self::content::Content;
use crate::shards::{new_bell, ring};
use crate::turn;

const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes that the polls of one turn copy for reads: a hundred microseconds or two. Writes are copied as they come, and
/// no more of them comes in a turn than its links bring.
const TURN_BYTES_MAX: u64 = 1 << 20;
/// A read or block status costs at least as much as copying so many,
const IO_BYTES_MIN: u64 = PAGE;
/// and a look at a word of marks that is not in the cache, and the extent that is found there, as much as these.
const LOOK_BYTES: u64 = 256;

/// Pages that one turn gives back: each costs the kernel some time, and a discard may be of all there are.
const GIVEN_MAX: u32 = 1024;
/// Calls in which it does, each of which costs more than a page.
const CALLS_MAX: u32 = 64;
/// Words of marks at which it looks for such pages, one behind the other: 4 GiB of content.
const SIFTED_MAX: u32 = 16_384;

/// Words of marks that one block status looks at: 256 MiB of a hole. Whoever wants to know more asks again.
const LOOKS_MAX: u64 = 1024;
/// A block status answers with at most this many extents.
const EXTENTS_MAX: usize = 1024;

/// Memory on which each of several threads may have a store. It goes from thread to thread; the stores stay
/// where they are made. The memory goes when all clones and all stores have gone.
#[derive(Clone)]
pub struct SpreadMemory {
    content: Arc<Content>,
    geometry: Geometry,
    identity: Identity,
}

impl SpreadMemory {
    /// An empty volume of `bytes` bytes, a multiple of `block_bytes` (512 or 4096). Durability ends with the
    /// process: the incarnation in `identity` must be another in every life of it.
    ///
    /// # Errors
    /// There is no room for so much in the address space.
    ///
    /// # Panics
    /// If it is not a multiple: the caller checks what users give.
    pub fn new(bytes: u64, block_bytes: u32, identity: Identity) -> io::Result<Self> {
        assert!(bytes > 0 && bytes.is_multiple_of(u64::from(block_bytes)));
        assert!(PAGE.is_multiple_of(u64::from(block_bytes)));
        let features =
            Features { read_only: false, discard: true, write_zeroes: true, block_status: true };
        let geometry = Geometry {
            bytes,
            block_bytes,
            preferred_bytes: PAGE_BYTES as u32,
            io_bytes_max: IO_BYTES_MAX,
            features,
        };
        Ok(SpreadMemory { content: Arc::new(Content::new(bytes)?), geometry, identity })
    }

    /// The volume of the thread that keeps the writer record, reading into memory of `pool`. There is one.
    ///
    /// # Errors
    /// Too few descriptors.
    pub fn owner(&self, pool: &Pool) -> io::Result<SpreadMemoryStore> {
        self.store(pool, Some(WriterRecord::default()))
    }

    /// The volume of another thread. Writer records fail there: they are for the owner.
    ///
    /// # Errors
    /// As of [`SpreadMemory::owner`].
    pub fn branch(&self, pool: &Pool) -> io::Result<SpreadMemoryStore> {
        self.store(pool, None)
    }

    fn store(&self, pool: &Pool, writer: Option<WriterRecord>) -> io::Result<SpreadMemoryStore> {
        Ok(SpreadMemoryStore {
            shared: self.clone(),
            zeroes: Pool::new(0).get_zeroed(PAGE_BYTES).freeze(),
            pool: pool.clone(),
            writer,
            ready: Vec::new(),
            asked: VecDeque::new(),
            zeroing: VecDeque::new(),
            left: Left::of_a_turn(),
            bell: new_bell()?,
            is_rung: false,
            copied_bytes: 0,
        })
    }
}

/// One thread's volume on a [`SpreadMemory`]. Reads and writes cost a copy each; reads and block status are answered as
/// they come, some in each turn. What is zeroed or discarded gives
/// its memory back, a little with each turn, and is complete when all of it has been.
pub struct SpreadMemoryStore {
    shared: SpreadMemory,
    zeroes: Segment,
    pool: Pool,
    /// The record lives as long as the content. None of a branch.
    writer: Option<WriterRecord>,
    ready: Vec<Completion>,
    /// Reads and block status that are to be answered yet, in order.
    asked: VecDeque<Asked>,
    /// What is to be zeroed yet, whole pages of it, in order.
    zeroing: VecDeque<Zeroing>,
    /// Of the turn of the last poll.
    left: Left,
    /// Rung while a poll has left some of either.
    bell: OwnedFd,
    is_rung: bool,
    copied_bytes: u64,
}

#[derive(Clone, Copy)]
enum Question {
    Read,
    Status { one_extent: bool },
}

struct Asked {
    token: Token,
    offset: u64,
    len: u64,
    question: Question,
}

impl Asked {
    /// What it costs of [`TURN_BYTES_MAX`], at most all of it.
    fn cost(&self) -> u64 {
        let bytes = match self.question {
            Question::Read => self.len,
            Question::Status { .. } => looks_max(self.len) * LOOK_BYTES,
        };
        bytes.clamp(IO_BYTES_MIN, TURN_BYTES_MAX)
    }
}

/// How often a block status of so many bytes looks at marks, at most.
fn looks_max(len: u64) -> u64 {
    // Not all need begin with a page.
    (len / PAGE + 2).min(LOOKS_MAX)
}

struct Zeroing {
    token: Token,
    page: u64,
    end: u64,
}

/// What may be done yet in a turn.
struct Left {
    /// Which that is; each poll is one on a thread whose turns nobody counts.
    turn: Option<u64>,
    bytes: u64,
    given: u32,
    calls: u32,
    sifted: u32,
}

impl Left {
    fn of_a_turn() -> Self {
        let turn = turn::number();
        let (bytes, given) = (TURN_BYTES_MAX, GIVEN_MAX);
        Left { turn, bytes, given, calls: CALLS_MAX, sifted: SIFTED_MAX }
    }

    /// There is a poll.
    fn renew(&mut self) {
        if self.turn.is_none() || self.turn != turn::number() {
            *self = Left::of_a_turn();
        }
    }
}

impl SpreadMemoryStore {
    /// Readable when [`Volume::poll`] has more to do; valid as long as the volume.
    pub fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn read(&mut self, offset: u64, len: u64) -> SegList {
        let content = &*self.shared.content;
        content.begin_read();
        let mut data = SegList::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (is_held, pages) = content.run(at / PAGE);
            let mut next = ((at / PAGE + pages) * PAGE).min(end);
            if is_held {
                // One buffer for all that is held, wherever marks are kept.
                while next < end
                    && let (true, pages) = content.run(next / PAGE)
                {
                    next = ((next / PAGE + pages) * PAGE).min(end);
                }
                let mut buf = self.pool.get((next - at) as usize);
                content.read(at, &mut buf);
                self.copied_bytes += next - at;
                data.push(buf.freeze());
            } else {
                for start in (at..next).step_by(PAGE_BYTES) {
                    data.push(self.zeroes.slice(0, (next - start).min(PAGE) as usize));
                }
            }
            at = next;
        }
        data
    }

    /// Begins to zero a range. What is not a whole page is zeroed at once.
    fn zero(&mut self, io: &Io) {
        let content = &*self.shared.content;
        let (start, end) = (io.offset, io.offset + io.len);
        let end = if end == self.shared.geometry.bytes { end.next_multiple_of(PAGE) } else { end };
        let (page, last) = (start.div_ceil(PAGE), end / PAGE);
        let words = |from: u64, to: u64| {
            if from < to && content.run(from / PAGE).0 {
                content.zero_words(from, to - from);
            }
        };
        match page <= last {
            true => {
                words(start, page * PAGE);
                words(last * PAGE, end);
            }
            false => words(start, end),
        }
        match page < last {
            true => self.zeroing.push_back(Zeroing { token: io.token, page, end: last }),
            false => self.ready.push(Completion::new(io.token, Ok(()))),
        }
    }

    /// Answers what was asked, as far as a turn goes.
    fn answer(&mut self, done: &mut Vec<Completion>) {
        while let Some(asked) = self.asked.front() {
            let cost = asked.cost();
            if cost > self.left.bytes {
                return;
            }
            self.left.bytes -= cost;
            let Asked { token, offset, len, question } = *asked;
            self.asked.pop_front();
            let mut completion = Completion::new(token, Ok(()));
            match question {
                Question::Read => completion.data = self.read(offset, len),
                Question::Status { one_extent } => {
                    completion.extents = self.status(offset, len, one_extent);
                }
            }
            done.push(completion);
        }
    }

    /// Goes on with what is to be zeroed, as far as a turn goes.
    fn give_back(&mut self, done: &mut Vec<Completion>) {
        let Left { given, calls, sifted, .. } = &mut self.left;
        while let Some(Zeroing { token, page, end }) = self.zeroing.front_mut() {
            while *page < *end {
                if [*given, *calls, *sifted].contains(&0) {
                    return;
                }
                let (held, next) = self.shared.content.give_back(*page, *end);
                if let Some(pages) = held {
                    (*given, *calls) = (given.saturating_sub(pages), *calls - 1);
                }
                (*page, *sifted) = (next, *sifted - 1);
            }
            done.push(Completion::new(*token, Ok(())));
            self.zeroing.pop_front();
        }
    }

    fn status(&self, offset: u64, len: u64, one_extent: bool) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        let most = if one_extent { 1 } else { EXTENTS_MAX };
        self.shared.content.begin_read();
        for _ in 0..looks_max(len) {
            if at == end {
                break;
            }
            let (is_held, pages) = self.shared.content.run(at / PAGE);
            let next = ((at / PAGE + pages) * PAGE).min(end);
            let is_full = extents.len() == most;
            match extents.last_mut() {
                Some(last) if last.hole != is_held => last.len += next - at,
                _ if is_full => break,
                _ => extents.push(Extent { len: next - at, hole: !is_held, zero: !is_held }),
            }
            at = next;
        }
        extents
    }

    fn record(&mut self, io: &Io, completion: &mut Completion) {
        match (&mut self.writer, io.op) {
            (Some(writer), Op::LoadWriter) => completion.data = writer.to_data(&self.pool),
            (Some(writer), _) if let Some(record) = WriterRecord::from_data(&io.data) => {
                *writer = record;
            }
            _ => completion.result = Err(io.error(ErrorKind::Invalid, "memory")),
        }
    }
}

impl Volume for SpreadMemoryStore {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn identity(&self) -> Identity {
        self.shared.identity
    }

    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry().check(&io) == Ok(()), "{io:?}");
        let mut completion = Completion::new(io.token, Ok(()));
        let ask = |question| Asked { token: io.token, offset: io.offset, len: io.len, question };
        match io.op {
            Op::Read => return self.asked.push_back(ask(Question::Read)),
            Op::BlockStatus => {
                let one_extent = io.flags.one_extent;
                return self.asked.push_back(ask(Question::Status { one_extent }));
            }
            Op::Write => {
                self.shared.content.write(io.offset, &io.data);
                self.copied_bytes += io.len;
            }
            Op::Discard | Op::WriteZeroes => return self.zero(&io),
            Op::Flush => {}
            Op::LoadWriter | Op::StoreWriter => self.record(&io, &mut completion),
            Op::Cut => completion.result = Err(io.error(ErrorKind::Unsupported, "memory")),
        }
        self.ready.push(completion);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        if self.asked.is_empty() && self.zeroing.is_empty() {
            return;
        }
        self.left.renew();
        self.answer(done);
        self.give_back(done);
        let is_over = self.asked.is_empty() && self.zeroing.is_empty();
        match (is_over, self.is_rung) {
            (false, false) => ring(&self.bell),
            // Its count is zero again.
            (true, true) => _ = rustix::io::read(&self.bell, &mut [0u8; 8]),
            _ => {}
        }
        self.is_rung = !is_over;
    }

    fn outstanding(&self) -> usize {
        self.ready.len() + self.asked.len() + self.zeroing.len()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}
