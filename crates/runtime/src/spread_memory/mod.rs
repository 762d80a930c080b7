//! A volume in memory that several threads have, each by a store of its own on the same content
//! (`docs/design.md`, "One export, several shards"). No lock is on the way of an I/O: content is shared as words
//! that are read and written whole, each by itself.
//!
//! What a thread reads is copied, since another may write it meanwhile, and bytes that were read never change under
//! whoever still sends them. A [`MemoryStore`](thinwire_volume::stores::MemoryStore), which one thread has,
//! hands out its own pages instead: what is not spread is better kept there.

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

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages that one poll gives back: each costs the kernel some time, and a discard may be of all there are.
const GIVEN_PER_POLL: u32 = 1024;
/// Words of marks that one poll, or one block status, looks at: 4 GiB of content.
const LOOKS_MAX: usize = 16_384;
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
            zeroing: VecDeque::new(),
            bell: new_bell()?,
            is_rung: false,
            copied_bytes: 0,
        })
    }
}

/// One thread's volume on a [`SpreadMemory`]. Reads and writes cost a copy each. What is zeroed or discarded gives
/// its memory back, a little with each poll, and is complete when all of it has been.
pub struct SpreadMemoryStore {
    shared: SpreadMemory,
    zeroes: Segment,
    pool: Pool,
    /// The record lives as long as the content. None of a branch.
    writer: Option<WriterRecord>,
    ready: Vec<Completion>,
    /// What is to be zeroed yet, whole pages of it, in order.
    zeroing: VecDeque<Zeroing>,
    /// Rung while a poll has left some of it.
    bell: OwnedFd,
    is_rung: bool,
    copied_bytes: u64,
}

struct Zeroing {
    token: Token,
    page: u64,
    end: u64,
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

    /// Goes on with what is to be zeroed. False if some of it is left.
    fn give_back(&mut self, done: &mut Vec<Completion>) -> bool {
        let (mut given, mut looks) = (0, 0);
        while let Some(Zeroing { token, page, end }) = self.zeroing.front_mut() {
            while *page < *end {
                if given >= GIVEN_PER_POLL || looks == LOOKS_MAX {
                    return false;
                }
                let (held, next) = self.shared.content.give_back(*page, *end);
                (*page, given, looks) = (next, given + held, looks + 1);
            }
            done.push(Completion::new(*token, Ok(())));
            self.zeroing.pop_front();
        }
        true
    }

    fn status(&self, offset: u64, len: u64, one_extent: bool) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        let most = if one_extent { 1 } else { EXTENTS_MAX };
        self.shared.content.begin_read();
        for _ in 0..LOOKS_MAX {
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
        match io.op {
            Op::Read => completion.data = self.read(io.offset, io.len),
            Op::Write => {
                self.shared.content.write(io.offset, &io.data);
                self.copied_bytes += io.len;
            }
            Op::Discard | Op::WriteZeroes => return self.zero(&io),
            Op::Flush => {}
            Op::BlockStatus => {
                completion.extents = self.status(io.offset, io.len, io.flags.one_extent);
            }
            Op::LoadWriter | Op::StoreWriter => self.record(&io, &mut completion),
        }
        self.ready.push(completion);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        if !self.zeroing.is_empty() {
            let is_over = self.give_back(done);
            match (is_over, self.is_rung) {
                (false, false) => ring(&self.bell),
                // Its count is zero again.
                (true, true) => _ = rustix::io::read(&self.bell, &mut [0u8; 8]),
                _ => {}
            }
            self.is_rung = !is_over;
        }
    }

    fn outstanding(&self) -> usize {
        self.ready.len() + self.zeroing.len()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}
