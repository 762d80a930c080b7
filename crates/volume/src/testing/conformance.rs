//! What every volume must do, as a seeded exercise: random I/Os, many at once and overlapping,
//! checked against everything that each block may hold.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use thinwire_buffer::{Pool, SegList};

use super::SplitMix64;
use crate::{Completion, ErrorKind, Geometry, Io, Op, Token, Volume, WriterRecord};

/// The exercise stays within this much of the volume's start.
const AREA_BYTES: u64 = 2 << 20;
/// The smallest block.
const SECTOR_BYTES: u32 = 512;
/// I/Os outstanding at once.
const DEPTH: usize = 12;
/// An I/O may take so long at least.
const PATIENCE: Duration = Duration::from_secs(60);
/// Reads whose bytes are kept and looked at again later.
const KEPT: usize = 6;

/// What an exercise did.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConformanceReport {
    /// I/Os that succeeded.
    pub ios: u64,
    /// Blocks compared.
    pub blocks_checked: u64,
    /// I/Os that were outstanding together with an overlapping write.
    pub overlaps: u64,
}

/// Content that a block may have: that of one write.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Names the write; 0 for zeroes.
    stamp: u64,
    submitted: u64,
    /// When it completed; `u64::MAX` while it is outstanding.
    completed: u64,
    /// A discard: it may have had no effect.
    weak: bool,
}

struct Outstanding {
    op: Op,
    first: usize,
    count: usize,
    submitted: u64,
    stamp: u64,
}

/// What a read may see of a block that is written at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The block of one of the writes, or of before. Memory and direct I/O do this.
    Whole,
    /// Words of several of them. The page cache does this: it copies without a lock. No harm comes
    /// of it, since initiators never have a write outstanding together with an overlapping request.
    Torn,
}

struct Exercise<'a> {
    volume: &'a mut dyn Volume,
    wait: &'a mut dyn FnMut(),
    geometry: Geometry,
    overlap: Overlap,
    pool: Pool,
    rng: SplitMix64,
    clock: u64,
    blocks: Vec<Vec<Candidate>>,
    outstanding: HashMap<Token, Outstanding>,
    kept: VecDeque<(SegList, Vec<u8>)>,
    done: Vec<Completion>,
    report: ConformanceReport,
}

/// Zeroes the start of the volume, then does about `steps` random I/Os there, many at once, and
/// panics at the first thing that no correct volume does. `wait` is called when nothing is ready:
/// it may sleep, or drive what the volume stands on.
pub fn exercise(
    volume: &mut dyn Volume,
    wait: &mut dyn FnMut(),
    seed: u64,
    steps: usize,
) -> ConformanceReport {
    exercise_with(volume, wait, seed, steps, Overlap::Whole)
}

/// As [`exercise`], for volumes that promise less to reads that overlap writes.
pub fn exercise_with(
    volume: &mut dyn Volume,
    wait: &mut dyn FnMut(),
    seed: u64,
    steps: usize,
    overlap: Overlap,
) -> ConformanceReport {
    let mut geometry = volume.geometry();
    // Where any byte can be addressed, blocks are what is asked for: who takes less tests that itself.
    geometry.block_bytes = geometry.block_bytes.max(SECTOR_BYTES);
    let count = (geometry.bytes.min(AREA_BYTES) / u64::from(geometry.block_bytes)) as usize;
    let mut exercise = Exercise {
        volume,
        wait,
        geometry,
        overlap,
        pool: Pool::new(16 << 20),
        rng: SplitMix64::new(seed),
        clock: 1,
        blocks: vec![Vec::new(); count],
        outstanding: HashMap::new(),
        kept: VecDeque::new(),
        done: Vec::new(),
        report: ConformanceReport::default(),
    };
    check_record(&mut *exercise.volume, &mut *exercise.wait);
    exercise.submit(Op::WriteZeroes, 0, count, true);
    exercise.drain(0);
    for step in 0..steps {
        exercise.step();
        exercise.drain(DEPTH - 1);
        if step % 300 == 299 {
            exercise.settle();
        }
    }
    exercise.settle();
    assert_eq!(exercise.volume.outstanding(), 0);
    exercise.report
}

/// The writer record: kept, or not known at all, or, where nothing is kept, always nobody's. Nobody
/// comes to it through the gate.
fn check_record(volume: &mut dyn Volume, wait: &mut dyn FnMut()) {
    let record = WriterRecord::new(7, [0x5a; 16], "conformance");
    let store = record.to_io(1, &Pool::new(0));
    let load = || Io::new(2, Op::LoadWriter, 0, 0);
    for io in [&store, &load()] {
        assert_eq!(volume.geometry().check(io), Err(ErrorKind::Unsupported), "{}", io.op);
    }
    let before = finish(volume, wait, load());
    let stored = finish(volume, wait, store);
    let after = finish(volume, wait, load());
    let kinds = [&before, &stored, &after].map(|ended| ended.result.map_err(|e| e.kind));
    if kinds == [Err(ErrorKind::Unsupported); 3] {
        return;
    }
    assert_eq!(kinds, [Ok(()); 3]);
    let found = WriterRecord::from_data(&after.data).expect("a record");
    assert!(found == record || found == WriterRecord::default(), "{found:?}");
    if let Some(before) = WriterRecord::from_data(&before.data) {
        assert!(finish(volume, wait, before.to_io(3, &Pool::new(0))).result.is_ok());
    }
}

/// Submits one I/O to an otherwise idle volume and waits for its completion.
pub fn finish(volume: &mut dyn Volume, wait: &mut dyn FnMut(), io: Io) -> Completion {
    let token = io.token;
    volume.submit(io);
    let mut done = Vec::new();
    loop {
        volume.poll(&mut done);
        if let Some(completion) = done.pop() {
            assert_eq!(completion.token, token);
            assert!(done.is_empty());
            return completion;
        }
        wait();
    }
}

impl Exercise<'_> {
    fn step(&mut self) {
        let n = self.blocks.len() as u64;
        let longest = (u64::from(self.geometry.io_bytes_max / self.geometry.block_bytes)).min(n);
        let count = match self.rng.below(20) {
            0 => 1 + self.rng.below(longest),
            1..=5 => 1 + self.rng.below(64.min(n)),
            _ => 1 + self.rng.below(16.min(n)),
        };
        // Half of them in one corner, so that they overlap.
        let last = n - count;
        let reach = if self.rng.one_in(2) { last.min(64) } else { last };
        let first = self.rng.below(reach + 1) as usize;
        let features = self.geometry.features;
        let op = match self.rng.below(20) {
            0 => Op::Flush,
            1 if features.discard => Op::Discard,
            2 | 3 if features.write_zeroes => Op::WriteZeroes,
            4 if features.block_status => Op::BlockStatus,
            5..=11 => Op::Write,
            _ => Op::Read,
        };
        let fua = self.rng.one_in(12);
        self.submit(op, first, count as usize, fua);
    }

    fn submit(&mut self, op: Op, first: usize, count: usize, fua: bool) {
        self.clock += 1;
        let token = self.clock;
        let block = u64::from(self.geometry.block_bytes);
        let mut io = Io::new(token, op, first as u64 * block, count as u64 * block);
        io.flags.fua = fua && op.is_write();
        io.flags.no_hole = op == Op::WriteZeroes && self.rng.one_in(3);
        io.flags.one_extent = op == Op::BlockStatus && self.rng.one_in(2);
        let stamp = if op == Op::Write { token } else { 0 };
        if op == Op::Write {
            io.data = self.payload(stamp, first, count);
        }
        if op == Op::Flush {
            (io.offset, io.len) = (0, 0);
        }
        assert_eq!(self.geometry.check(&io), Ok(()));
        let clash = |o: &Outstanding| {
            (o.op.is_write() || op.is_write())
                && o.op != Op::Flush
                && o.first < first + count
                && first < o.first + o.count
        };
        if op != Op::Flush && self.outstanding.values().any(clash) {
            self.report.overlaps += 1;
        }
        if op.is_write() {
            for candidates in &mut self.blocks[first..first + count] {
                candidates.push(Candidate {
                    stamp,
                    submitted: self.clock,
                    completed: u64::MAX,
                    weak: op == Op::Discard,
                });
            }
        }
        let outstanding = Outstanding { op, first, count, submitted: self.clock, stamp };
        self.outstanding.insert(token, outstanding);
        self.volume.submit(io);
    }

    /// The bytes of a write, cut into segments, some of them at odd addresses.
    fn payload(&mut self, stamp: u64, first: usize, count: usize) -> SegList {
        let block = self.geometry.block_bytes as usize;
        let mut list = SegList::new();
        let mut at = 0;
        while at < count {
            let blocks = 1 + self.rng.below((count - at) as u64) as usize;
            let shift = if self.rng.one_in(6) { 64 } else { 0 };
            let mut buf = self.pool.get(shift + blocks * block);
            for i in 0..blocks {
                let start = shift + i * block;
                fill(&mut buf[start..start + block], stamp, first + at + i);
            }
            list.push(buf.freeze().slice(shift, blocks * block));
            at += blocks;
        }
        list
    }

    /// Takes completions until at most `keep` I/Os are outstanding.
    fn drain(&mut self, keep: usize) {
        // Polls alone tell nothing of a disk of a busy machine, time nothing of one whose time is virtual.
        let (mut idle, start) = (0, Instant::now());
        loop {
            let mut done = std::mem::take(&mut self.done);
            self.volume.poll(&mut done);
            let none = done.is_empty();
            for completion in done.drain(..) {
                self.complete(completion);
            }
            self.done = done;
            assert_eq!(self.volume.outstanding(), self.outstanding.len());
            if self.outstanding.len() <= keep {
                return;
            }
            if none {
                idle += 1;
                let may_wait = idle < 1_000_000 || start.elapsed() < PATIENCE;
                assert!(may_wait, "{} I/Os never complete", self.outstanding.len());
                (self.wait)();
            }
        }
    }

    fn complete(&mut self, completion: Completion) {
        self.clock += 1;
        let io = self.outstanding.remove(&completion.token).expect("one completion for each I/O");
        if let Err(error) = completion.result {
            panic!("{error}");
        }
        self.report.ios += 1;
        assert!(io.op == Op::Read || completion.data.is_empty(), "{} with data", io.op);
        assert!(io.op == Op::BlockStatus || completion.extents.is_empty(), "stray extents");
        match io.op {
            Op::Read => self.check_read(&io, completion.data),
            Op::BlockStatus => self.check_status(&io, &completion),
            Op::LoadWriter | Op::StoreWriter | Op::Cut => unreachable!("not part of the mix"),
            Op::Flush => {}
            Op::Write | Op::Discard | Op::WriteZeroes => self.settle_write(&io),
        }
    }

    /// A completed write rules out what had completed before it was submitted; but only once no
    /// outstanding read is older than its completion.
    fn settle_write(&mut self, io: &Outstanding) {
        let oldest = self.outstanding.values().map(|o| o.submitted).min().unwrap_or(u64::MAX);
        for candidates in &mut self.blocks[io.first..io.first + io.count] {
            for candidate in candidates.iter_mut() {
                if candidate.submitted == io.submitted && candidate.stamp == io.stamp {
                    candidate.completed = self.clock;
                }
            }
            let all = std::mem::take(candidates);
            *candidates = all.iter().filter(|c| possible(c, &all, oldest)).copied().collect();
        }
    }

    fn check_read(&mut self, io: &Outstanding, data: SegList) {
        let block = self.geometry.block_bytes as usize;
        let bytes = data.to_vec();
        assert_eq!(bytes.len(), io.count * block, "length of a read");
        for (i, got) in bytes.chunks(block).enumerate() {
            let number = io.first + i;
            let all = &self.blocks[number];
            let possible = all.iter().filter(|c| possible(c, all, io.submitted));
            let whole = possible.clone().any(|c| holds(got, c.stamp, number));
            let torn = self.overlap == Overlap::Torn
                && possible.clone().any(|c| c.completed > io.submitted)
                && got
                    .chunks_exact(8)
                    .enumerate()
                    .all(|(i, word)| possible.clone().any(|c| word == word_of(c.stamp, number, i)));
            if !whole && !torn {
                panic!(
                    "block {number} reads as {:02x?}..., which none of these wrote: {all:?} \
                     (submitted at {})",
                    &got[..16],
                    io.submitted
                );
            }
            self.report.blocks_checked += 1;
        }
        if self.rng.one_in(4) {
            self.kept.push_back((data, bytes));
            if self.kept.len() > KEPT {
                let (data, bytes) = self.kept.pop_front().expect("just pushed");
                assert!(data.to_vec() == bytes, "bytes changed after they were read");
            }
        }
    }

    fn check_status(&mut self, io: &Outstanding, completion: &Completion) {
        let block = u64::from(self.geometry.block_bytes);
        let mut number = io.first;
        assert!(!completion.extents.is_empty(), "block status without an extent");
        for extent in &completion.extents {
            assert!(extent.len > 0 && extent.len % block == 0, "{extent:?}");
            for _ in 0..extent.len / block {
                assert!(number < io.first + io.count, "block status beyond the range");
                let all = &self.blocks[number];
                let zero = |c: &Candidate| c.stamp == 0 && possible(c, all, io.submitted);
                assert!(!extent.zero || all.iter().any(zero), "block {number} is not zero");
                number += 1;
            }
        }
    }

    /// Waits for everything, reads everything, and holds the volume to what it showed.
    fn settle(&mut self) {
        self.drain(0);
        let block = u64::from(self.geometry.block_bytes);
        let step = (self.geometry.io_bytes_max as usize / block as usize).min(self.blocks.len());
        let mut first = 0;
        while first < self.blocks.len() {
            let count = step.min(self.blocks.len() - first);
            let io = Io::new(0, Op::Read, first as u64 * block, count as u64 * block);
            let data = finish(self.volume, self.wait, io).data.to_vec();
            for (i, got) in data.chunks(block as usize).enumerate() {
                let number = first + i;
                let all = &self.blocks[number];
                let found =
                    all.iter().rfind(|c| possible(c, all, u64::MAX) && holds(got, c.stamp, number));
                let Some(&found) = found else {
                    panic!("block {number} settled as {:02x?}..., not one of {all:?}", &got[..16]);
                };
                self.blocks[number] = vec![Candidate { weak: false, ..found }];
            }
            first += count;
        }
        while let Some((data, bytes)) = self.kept.pop_front() {
            assert!(data.to_vec() == bytes, "bytes changed after they were read");
        }
    }
}

/// True unless a write that was submitted after this one completed, itself completed before `seen`:
/// then only the later one can be there.
fn possible(candidate: &Candidate, all: &[Candidate], seen: u64) -> bool {
    !all.iter()
        .any(|later| !later.weak && candidate.completed < later.submitted && later.completed < seen)
}

/// The content that a write gives a block: every word tells the write, the block and the place.
fn word_of(stamp: u64, number: usize, index: usize) -> [u8; 8] {
    if stamp == 0 {
        return [0; 8];
    }
    let base = SplitMix64::new(stamp.wrapping_mul(0x1_0001) ^ (number as u64) << 40).next();
    base.wrapping_add(index as u64).to_le_bytes()
}

fn fill(place: &mut [u8], stamp: u64, number: usize) {
    for (i, word) in place.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_of(stamp, number, i));
    }
}

fn holds(got: &[u8], stamp: u64, number: usize) -> bool {
    got.chunks_exact(8).enumerate().all(|(i, word)| word == word_of(stamp, number, i))
}

/// A volume with a fault: the exercise must notice.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::MemoryStore;
    use crate::{ErrorKind, Identity, IoError, IoFlags};

    enum Fault {
        None,
        LostWrite,
        HalfWrite,
        StaleZeroes,
        WrongBlock,
        FalseHole,
    }

    struct Faulty {
        inner: MemoryStore,
        fault: Fault,
        count: u64,
    }

    impl Volume for Faulty {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn identity(&self) -> Identity {
            self.inner.identity()
        }
        fn submit(&mut self, mut io: Io) {
            self.count += 1;
            if self.count > 100 {
                match (&self.fault, io.op) {
                    (Fault::LostWrite, Op::Write) => {
                        io.op = Op::Flush;
                        self.count = 0;
                    }
                    (Fault::HalfWrite, Op::Write) if io.len > 512 => {
                        let mut part = SegList::new();
                        io.data.slice_into(0, 512, &mut part);
                        (io.data, io.len, self.count) = (part, 512, 0);
                    }
                    (Fault::StaleZeroes, Op::WriteZeroes) => {
                        io.op = Op::Flush;
                        self.count = 0;
                    }
                    (Fault::WrongBlock, Op::Read) => {
                        io.offset = (io.offset + 512) % (self.geometry().bytes - io.len);
                        self.count = 0;
                    }
                    _ => {}
                }
            }
            self.inner.submit(io);
        }
        fn poll(&mut self, done: &mut Vec<Completion>) {
            self.inner.poll(done);
            if let Fault::FalseHole = self.fault {
                let extents = done.iter_mut().flat_map(|completion| &mut completion.extents);
                extents.for_each(|extent| (extent.hole, extent.zero) = (true, true));
            }
        }
        fn outstanding(&self) -> usize {
            self.inner.outstanding()
        }
    }

    fn run(fault: Fault) {
        let pool = Pool::new(1 << 20);
        let identity = Identity::default();
        let inner = MemoryStore::new(1 << 20, 512, identity, &pool);
        let mut faulty = Faulty { inner, fault, count: 0 };
        let report = exercise(&mut faulty, &mut || {}, 1, 1000);
        assert!(report.ios > 1000 && report.blocks_checked > 1000);
    }

    #[test]
    fn a_correct_volume_passes() {
        run(Fault::None);
    }

    #[test]
    #[should_panic(expected = "block")]
    fn a_lost_write_is_found() {
        run(Fault::LostWrite);
    }

    #[test]
    #[should_panic(expected = "block")]
    fn a_torn_write_is_found() {
        run(Fault::HalfWrite);
    }

    #[test]
    #[should_panic(expected = "block")]
    fn forgotten_zeroes_are_found() {
        run(Fault::StaleZeroes);
    }

    #[test]
    #[should_panic(expected = "block")]
    fn a_read_of_another_block_is_found() {
        run(Fault::WrongBlock);
    }

    #[test]
    #[should_panic(expected = "is not zero")]
    fn a_false_hole_is_found() {
        run(Fault::FalseHole);
    }

    #[test]
    fn an_error_names_what_failed() {
        let io = Io { flags: IoFlags::default(), ..Io::new(1, Op::Read, 512, 1024) };
        let error: IoError = io.error(ErrorKind::Io, "file");
        assert!(error.to_string().starts_with("read of 1024 bytes at 512: "));
    }
}
