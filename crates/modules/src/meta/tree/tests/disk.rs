//! [`TestDisk`]: a volume that does its I/Os in any order, fails those that it is told to, and remembers all writes, so that everything can be made
//! of them that a crash could leave.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Completion, ErrorKind, Features, Geometry, Identity, Io, Op, Volume};

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;

pub type Block = Rc<[u8; BLOCK]>;
/// Blocks by their offsets in bytes; the others are zero.
pub type Content = BTreeMap<u64, Block>;

/// Numbers that look random.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Time of both disks of a world: counts what happens.
pub type Clock = Rc<Cell<u64>>;

#[derive(Clone)]
struct Written {
    at: u64,
    offset: u64,
    data: Block,
    /// When it became durable.
    durable_at: u64,
    completed: bool,
}

pub struct TestDisk {
    pub geometry: Geometry,
    start: Content,
    now: Content,
    log: Vec<Written>,
    clock: Clock,
    outstanding: Vec<(Io, BTreeSet<usize>, Option<usize>)>,
    /// Does all at once, else some of it in each poll.
    pub is_prompt: bool,
    random: Random,
    /// Counts down with each I/O of a kind; the one that comes to 0 fails, without effect.
    pub fail_write: Option<u64>,
    pub fail_flush: Option<u64>,
    pub fail_reads_of: BTreeSet<u64>,
    /// What was read, and where.
    pub reads: Vec<(u64, Option<Block>)>,
    pub writes: u64,
}

impl TestDisk {
    pub fn new(bytes: u64, start: Content, clock: &Clock, seed: u64) -> Self {
        let features =
            Features { read_only: false, discard: false, write_zeroes: false, block_status: false };
        TestDisk {
            geometry: Geometry {
                bytes,
                block_bytes: 512,
                preferred_bytes: 4096,
                io_bytes_max: 1 << 20,
                features,
            },
            now: start.clone(),
            start,
            log: Vec::new(),
            clock: clock.clone(),
            outstanding: Vec::new(),
            is_prompt: true,
            random: Random(seed),
            fail_write: None,
            fail_flush: None,
            fail_reads_of: BTreeSet::new(),
            reads: Vec::new(),
            writes: 0,
        }
    }

    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    pub fn content(&self) -> &Content {
        &self.now
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn complete(&mut self, io: Io, covers: &BTreeSet<usize>, own: Option<usize>) -> Completion {
        let mut completion = Completion::new(io.token, Ok(()));
        let fails = |left: &mut Option<u64>| match left {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        let mut durable = BTreeSet::new();
        match io.op {
            Op::Read => {
                if self.fail_reads_of.contains(&io.offset) {
                    completion.result = Err(io.error(ErrorKind::Io, "test disk"));
                    return completion;
                }
                let mut bytes = vec![0; io.len as usize];
                for (at, out) in (io.offset..).step_by(BLOCK).zip(bytes.chunks_mut(BLOCK)) {
                    let block = self.now.get(&at);
                    self.reads.push((at, block.cloned()));
                    if let Some(block) = block {
                        out.copy_from_slice(&block[..out.len()]);
                    }
                }
                completion.data = SegList::of(Pool::new(0).copy_of(&bytes).freeze());
            }
            Op::Write => {
                let index = own.expect("it is a write");
                if fails(&mut self.fail_write) {
                    completion.result = Err(io.error(ErrorKind::Io, "test disk"));
                    return completion;
                }
                self.log[index].completed = true;
                if io.flags.fua {
                    durable.insert(index);
                }
                self.writes += 1;
            }
            Op::Flush => {
                if fails(&mut self.fail_flush) {
                    completion.result = Err(io.error(ErrorKind::Io, "test disk"));
                    return completion;
                }
                durable.extend(covers);
            }
            other => panic!("{other}"),
        }
        let now = self.tick();
        for index in durable {
            let written = &mut self.log[index];
            written.durable_at = written.durable_at.min(now);
        }
        completion
    }

    /// All that is written but may be lost at that time, and what is there without it.
    pub fn crash_at(&self, time: u64) -> Crash {
        let before: Vec<_> = self.log.iter().filter(|written| written.at <= time).collect();
        let first = before.iter().position(|written| written.durable_at > time);
        let (sure, rest) = before.split_at(first.unwrap_or(before.len()));
        let mut content = self.start.clone();
        for written in sure {
            content.insert(written.offset, written.data.clone());
        }
        let rest = rest
            .iter()
            .map(|written| (written.offset, written.data.clone(), written.durable_at > time));
        Crash { content, rest: rest.collect() }
    }
}

/// What a crash could leave of a disk.
pub struct Crash {
    content: Content,
    /// Later writes, in order, and whether they may be lost.
    rest: Vec<(u64, Block, bool)>,
}

impl Crash {
    /// So many writes may be lost.
    pub fn doubts(&self) -> usize {
        self.rest.iter().filter(|(_, _, may_go)| *may_go).count()
    }

    /// What is left if of each write that may be lost these sectors are, as bits.
    pub fn with(&self, sectors: impl Fn(usize) -> u8) -> Content {
        let (mut content, mut doubt) = (self.content.clone(), 0);
        for (offset, data, may_go) in &self.rest {
            let left = if *may_go { sectors(doubt) } else { 0xff };
            doubt += usize::from(*may_go);
            match left {
                0 => {}
                0xff => _ = content.insert(*offset, data.clone()),
                left => {
                    let zero = || Rc::new([0; BLOCK]);
                    let block = content.entry(*offset).or_insert_with(zero);
                    let mut torn = **block;
                    for sector in (0..8).filter(|sector| left >> sector & 1 == 1) {
                        let range = sector * SECTOR..(sector + 1) * SECTOR;
                        torn[range.clone()].copy_from_slice(&data[range]);
                    }
                    *block = Rc::new(torn);
                }
            }
        }
        content
    }
}

impl Volume for TestDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        assert_eq!(self.geometry.check(&io), Ok(()));
        let mut own = None;
        if io.op == Op::Write {
            let mut bytes = vec![0; io.len as usize];
            io.data.copy_to(&mut bytes);
            for (offset, bytes) in (io.offset..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
                let data: Block = Rc::new(bytes.try_into().expect("whole blocks"));
                // One that is about to fail may have reached the disk, as any other.
                self.now.insert(offset, data.clone());
                own = Some(self.log.len());
                let at = self.tick();
                let (durable_at, completed) = (u64::MAX, false);
                self.log.push(Written { at, offset, data, durable_at, completed });
            }
        }
        let done = self.log.iter().enumerate().filter(|(_, written)| written.completed);
        let covers = match io.op {
            Op::Flush => done.map(|(index, _)| index).collect(),
            _ => BTreeSet::new(),
        };
        self.outstanding.push((io, covers, own));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut left = Vec::new();
        for (io, covers, own) in std::mem::take(&mut self.outstanding) {
            if self.is_prompt || self.random.below(3) == 0 {
                let completion = self.complete(io, &covers, own);
                done.push(completion);
            } else {
                left.push((io, covers, own));
            }
        }
        self.outstanding.append(&mut left);
    }

    fn outstanding(&self) -> usize {
        self.outstanding.len()
    }
}
