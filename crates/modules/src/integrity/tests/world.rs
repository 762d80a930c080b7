//! [`World`]: a volume with sums over a disk that does what is submitted in an order that a seed decides, with a user, who knows what was
//! promised, and a record of all moments at which a crash could come.

use std::time::Duration;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Completion, IoFlags, Token, VolumeEvent};

use super::super::*;
use crate::mirror::tests::disk::{Content, Disk, Snapshot};

pub const WHOLE: [u8; 16] = *b"UUID of a whole!";
/// Three regions, the last of four blocks.
pub const DATA_BYTES: u64 = (4 << 20) + 4 * BLOCK;
pub const PART_BYTES: u64 = (1 << 20) + 3 * BLOCK + DATA_BYTES;
/// The first block of the second region, and of the last.
pub const SECOND: u64 = 512;
pub const LAST: u64 = 1024;

pub fn config(cache_blocks: u64) -> IntegrityConfig {
    let cache_bytes = cache_blocks * BLOCK;
    IntegrityConfig { cache_bytes, ..IntegrityConfig::new(&Pool::new(1 << 20)) }
}

/// A part that is made.
pub fn made(bytes: u64) -> Content {
    let disk = Disk::new(bytes, Content::new());
    disk.be_prompt(true);
    let mut making = SumMaking::new(7, &Pool::new(0), WHOLE, 0, bytes);
    let made = (0..100).find_map(|_| making.turn(&mut disk.clone()));
    assert_eq!(made, Some(Ok(())));
    disk.content()
}

pub fn open_with(disk: &Disk, config: IntegrityConfig) -> Integrity {
    let bytes = disk.geometry().bytes;
    open_part(disk, bytes, IntegrityState::new(SumLayout::of(bytes).bytes), config)
}

/// Over so many bytes of that, by what its label says.
pub fn open_part(
    disk: &Disk,
    bytes: u64,
    state: IntegrityState,
    config: IntegrityConfig,
) -> Integrity {
    let part = Child::within(Box::new(disk.clone()), 0, bytes).unwrap();
    Integrity::open(part, state, WHOLE, config).unwrap_or_else(|e| panic!("{e}"))
}

/// What a user wrote: what a block may hold.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub block: u64,
    pub stamp: u8,
    submitted: u64,
    /// `u64::MAX` before, and if it has failed.
    completed: u64,
    is_durable: bool,
}

/// A moment at which a crash could come.
pub struct Moment {
    pub disk: Snapshot,
    pub written: Vec<Written>,
}

impl Moment {
    /// What a sector of that block may hold after a crash.
    pub fn allows(&self, block: u64, stamp: u8) -> bool {
        let of = || self.written.iter().filter(|write| write.block == block);
        let is_gone =
            |completed: u64| of().any(|write| write.is_durable && write.submitted > completed);
        // Zeroes are there before all.
        (stamp == 0 && !is_gone(0))
            || of().any(|write| write.stamp == stamp && !is_gone(write.completed))
    }

    /// All that was written there is there for good.
    pub fn is_settled(&self, block: u64) -> bool {
        self.written.iter().filter(|write| write.block == block).all(|write| write.is_durable)
    }
}

pub struct World {
    pub volume: Integrity,
    pub disk: Disk,
    pub now: Time,
    /// It does not do the first of what it was given, but any.
    is_random: bool,
    rng: SplitMix64,
    clock: u64,
    pub written: Vec<Written>,
    waits: Vec<(Token, Op, Vec<usize>, u64)>,
    pub moments: Vec<Moment>,
    pub is_recording: bool,
    pub ends: Vec<Completion>,
    pub news: Vec<VolumeEvent>,
    tokens: Token,
}

impl World {
    pub fn over(content: Content) -> Self {
        World::with(content, IntegrityCanary::None, None)
    }

    /// In any order that this seed decides.
    pub fn with(content: Content, canary: IntegrityCanary, seed: Option<u64>) -> Self {
        let disk = Disk::new(PART_BYTES, content);
        let mut volume = open_with(&disk, config(2));
        volume.canary = canary;
        World::of(disk, volume, seed)
    }

    /// Over that disk.
    pub fn of(disk: Disk, volume: Integrity, seed: Option<u64>) -> Self {
        World {
            volume,
            disk,
            now: Time::ZERO + Duration::from_secs(1),
            is_random: seed.is_some(),
            rng: SplitMix64::new(seed.unwrap_or(0)),
            clock: 0,
            written: Vec::new(),
            waits: Vec::new(),
            moments: Vec::new(),
            is_recording: false,
            ends: Vec::new(),
            news: Vec::new(),
            tokens: 0,
        }
    }

    /// A crash could come now.
    pub fn note(&mut self) {
        if self.is_recording {
            let (disk, written) = (self.disk.snapshot(), self.written.clone());
            self.moments.push(Moment { disk, written });
        }
    }

    pub fn submit(&mut self, mut io: Io, stamp: u8) {
        self.tokens += 1;
        self.clock += 1;
        io.token = self.tokens;
        let mut writes = Vec::new();
        if io.op.is_write() {
            for block in io.offset / BLOCK..(io.offset + io.len) / BLOCK {
                writes.push(self.written.len());
                let (submitted, completed) = (self.clock, u64::MAX);
                let is_durable = false;
                self.written.push(Written { block, stamp, submitted, completed, is_durable });
            }
        }
        if io.flags.fua {
            writes.push(usize::MAX);
        }
        self.waits.push((io.token, io.op, writes, self.clock));
        self.volume.submit(io);
        self.note();
        self.poll();
    }

    pub fn write(&mut self, block: u64, count: u64, stamp: u8, fua: bool) {
        let mut io = Io::new(0, Op::Write, block * BLOCK, count * BLOCK);
        let bytes = vec![stamp; io.len as usize];
        // In pieces whose borders are those of no block.
        bytes.chunks(3000).for_each(|part| io.data.push(Pool::new(0).copy_of(part).freeze()));
        io.flags.fua = fua;
        self.submit(io, stamp);
    }

    pub fn zero(&mut self, block: u64, count: u64, op: Op) {
        self.submit(Io::new(0, op, block * BLOCK, count * BLOCK), 0);
    }

    pub fn flush(&mut self) {
        self.submit(Io::new(0, Op::Flush, 0, 0), 0);
    }

    /// What somebody reads there.
    pub fn read(&mut self, block: u64, count: u64, verified: bool) -> Result<Vec<u8>, IoError> {
        let flags = IoFlags { verified, ..IoFlags::default() };
        let io = Io { flags, ..Io::new(0, Op::Read, block * BLOCK, count * BLOCK) };
        self.ends.clear();
        self.submit(io, 0);
        self.wait();
        let end = self.ends.pop().expect("it has ended");
        end.result.map(|()| end.data.to_vec())
    }

    /// The disk loses what is not durable, and says so.
    pub fn lose(&mut self) {
        self.disk.lose();
        self.forget_promises();
    }

    /// It loses some of that, as this decides.
    pub fn lose_some(&mut self, seed: u64) {
        let mut rng = SplitMix64::new(seed);
        self.disk.lose_some(|| rng.below(2) == 0);
        self.forget_promises();
    }

    fn forget_promises(&mut self) {
        for write in self.written.iter_mut().filter(|write| !write.is_durable) {
            write.completed = u64::MAX;
        }
    }

    /// Until what was submitted has ended; whether all went well.
    #[track_caller]
    pub fn succeed(&mut self) {
        self.wait();
        let ends: Vec<_> = self.ends.drain(..).map(|end| end.result).collect();
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.volume.poll(&mut done);
        self.volume.poll_events(&mut self.news);
        let is_news = !done.is_empty();
        done.into_iter().for_each(|completion| self.complete(completion));
        if is_news {
            self.note();
        }
    }

    fn complete(&mut self, completion: Completion) {
        self.clock += 1;
        let at = self.waits.iter().position(|wait| wait.0 == completion.token);
        let (_, op, writes, submitted) = self.waits.remove(at.expect("each ends once"));
        if completion.result.is_err() && op == Op::Flush {
            self.forget_promises();
        } else if completion.result.is_ok() && op == Op::Flush {
            let covered = |write: &&mut Written| write.completed < submitted;
            self.written.iter_mut().filter(covered).for_each(|write| write.is_durable = true);
        } else if completion.result.is_ok() {
            let fua = writes.last() == Some(&usize::MAX);
            for &write in writes.iter().filter(|write| **write != usize::MAX) {
                self.written[write].completed = self.clock;
                self.written[write].is_durable |= fua;
            }
        }
        self.ends.push(completion);
    }

    /// The disk does one thing. False if it had nothing to do.
    pub fn step(&mut self) -> bool {
        if !self.disk.is_busy() {
            return false;
        }
        let nth = match self.is_random {
            true => self.rng.below(self.disk.queued() as u64) as usize,
            false => 0,
        };
        self.disk.execute(nth);
        self.note();
        self.poll();
        true
    }

    pub fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| _ = self.step());
    }

    /// Until the user waits for nothing.
    #[track_caller]
    pub fn wait(&mut self) {
        let end = self.now + Duration::from_secs(60);
        while !self.waits.is_empty() {
            self.turn();
            if !self.step() {
                self.now = self.now + Duration::from_millis(100);
                assert!(self.now < end, "{:?} never ends", self.waits);
            }
        }
    }

    pub fn turn(&mut self) {
        self.volume.turn(self.now);
        self.poll();
    }

    /// Time passes, and all that is to be done is.
    pub fn pass(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            self.turn();
            if !self.step() {
                self.now = self.now + Duration::from_millis(250);
            }
        }
    }

    /// Ends in order: what the disk holds then.
    pub fn close(mut self) -> Content {
        self.volume.wind_up();
        for _ in 0..1000 {
            if self.volume.is_wound_up() {
                assert_eq!(self.volume.closing, Closing::Done(None));
                return self.disk.content();
            }
            self.turn();
            if !self.step() {
                self.now = self.now + Duration::from_millis(250);
            }
        }
        panic!("it never ends");
    }

    /// What it says of a scrub of everything.
    pub fn scrub(&mut self) -> thinwire_volume::ScrubReport {
        self.volume.begin_scrub(0);
        for _ in 0..100_000 {
            if !self.volume.scrub_report().is_running {
                return self.volume.scrub_report();
            }
            self.turn();
            if !self.step() {
                self.now = self.now + Duration::from_millis(250);
            }
        }
        panic!("it never ends: {:?}", self.volume.scrub_report());
    }
}

/// Some other bytes of a block on the disk.
pub fn change(content: &mut Content, place: u64, change: impl FnOnce(&mut [u8])) {
    let mut bytes = crate::mirror::tests::disk::at(content, place / BLOCK).to_vec();
    change(&mut bytes);
    content.insert(place / BLOCK, bytes.into());
}

/// Where a block of data stands.
pub fn place_of(block: u64) -> u64 {
    SumLayout::of(PART_BYTES).data_offset + block * BLOCK
}

pub fn segments(bytes: &[u8]) -> SegList {
    SegList::of(Pool::new(0).copy_of(bytes).freeze())
}
