//! Overlapping random byte ranges over a volume that completes in random order, against a model;
//! and each rule of the module on its own.

use super::*;
use crate::stores::MemoryStore;
use crate::testing::{SplitMix64, exercise};
use crate::{ErrorKind, Features, IoFlags};

/// Blocks in memory. Each I/O takes effect at a random moment and completes at a later random one.
struct Slow {
    bytes: Vec<u8>,
    geometry: Geometry,
    pool: Pool,
    rng: SplitMix64,
    waiting: Vec<Io>,
    effective: Vec<Completion>,
    /// Everything that was submitted: operation, offset, length, flags.
    seen: Vec<(Op, u64, u64, IoFlags)>,
    /// Fail what touches this byte, for this operation.
    bad: Option<(Op, u64)>,
    /// Effect and completion at the next poll, in order.
    prompt: bool,
}

impl Slow {
    fn new(blocks: u64, block_bytes: u32, io_blocks_max: u32, seed: u64) -> Self {
        let features =
            Features { read_only: false, discard: true, write_zeroes: true, block_status: true };
        Slow {
            bytes: vec![0; (blocks * u64::from(block_bytes)) as usize],
            geometry: Geometry {
                bytes: blocks * u64::from(block_bytes),
                block_bytes,
                preferred_bytes: 4096,
                io_bytes_max: io_blocks_max * block_bytes,
                features,
            },
            pool: Pool::new(16 << 20),
            rng: SplitMix64::new(seed),
            waiting: Vec::new(),
            effective: Vec::new(),
            seen: Vec::new(),
            bad: None,
            prompt: false,
        }
    }

    fn execute(&mut self, io: Io) -> Completion {
        let mut completion = Completion::new(io.token, Ok(()));
        let range = io.offset as usize..(io.offset + io.len) as usize;
        if self.bad.is_some_and(|(op, at)| op == io.op && range.contains(&(at as usize))) {
            completion.result = Err(io.error(ErrorKind::Io, "slow"));
            return completion;
        }
        match io.op {
            Op::Read => {
                // In two segments, so that nobody relies on one.
                let half = range.len() / 2;
                for part in [&self.bytes[range.clone()][..half], &self.bytes[range][half..]] {
                    completion.data.push(self.pool.copy_of(part).freeze());
                }
            }
            Op::Write => io.data.copy_to(&mut self.bytes[range]),
            Op::Flush => {}
            Op::LoadWriter | Op::StoreWriter | Op::Cut => {
                completion.result = Err(io.error(ErrorKind::Unsupported, "test"));
            }
            Op::Discard | Op::WriteZeroes => self.bytes[range].fill(0),
            Op::BlockStatus => {
                // One extent per block: a block of zeroes is a hole.
                for block in self.bytes[range].chunks(self.geometry.block_bytes as usize) {
                    let zero = block.iter().all(|&b| b == 0);
                    let len = block.len() as u64;
                    completion.extents.push(Extent { len, hole: zero, zero });
                }
            }
        }
        completion
    }
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        self.geometry.check(&io).unwrap_or_else(|kind| panic!("{kind:?}: {io:?}"));
        self.seen.push((io.op, io.offset, io.len, io.flags));
        self.waiting.push(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.prompt {
            for io in std::mem::take(&mut self.waiting) {
                let completion = self.execute(io);
                done.push(completion);
            }
            return;
        }
        for _ in 0..self.rng.below(3) {
            if !self.waiting.is_empty() {
                let at = self.rng.below(self.waiting.len() as u64) as usize;
                let io = self.waiting.swap_remove(at);
                let completion = self.execute(io);
                self.effective.push(completion);
            }
            if !self.effective.is_empty() && self.rng.below(2) == 0 {
                let at = self.rng.below(self.effective.len() as u64) as usize;
                done.push(self.effective.swap_remove(at));
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.effective.len()
    }
}

/// What happened to one byte: a value, when the write was submitted and when it completed, and
/// whether it replaces what was there (a discard only may).
#[derive(Clone, Copy)]
struct Event {
    value: u8,
    submitted: u64,
    completed: u64,
    replaces: bool,
}

/// Every value each byte may have.
struct Model {
    bytes: Vec<Vec<Event>>,
}

impl Model {
    /// A read that ran from `submitted` to `completed` may return `value` for the byte at `at`: it
    /// was written by a write that began before the read's end, and that no other write, complete
    /// before the read began, followed.
    fn allows(&self, at: usize, value: u8, submitted: u64, completed: u64) -> bool {
        let events = &self.bytes[at];
        events.iter().any(|w| {
            w.value == value
                && w.submitted < completed
                && !events.iter().any(|later| {
                    later.replaces && w.completed < later.submitted && later.completed < submitted
                })
        })
    }
}

/// What the test knows of an outstanding request.
struct Sent {
    op: Op,
    offset: u64,
    len: u64,
    submitted: u64,
}

/// Runs one seed; the error says which byte was wrong.
fn run(seed: u64, without_locks: bool) -> Result<(), String> {
    let mut rng = SplitMix64::new(seed);
    let block = [512u32, 4096][rng.below(2) as usize];
    let blocks = 4 + rng.below(8);
    let slow = Slow::new(blocks, block, 1 + rng.below(5) as u32, rng.next());
    let size = slow.geometry.bytes;
    let pool = Pool::new(16 << 20);
    let mut volume = Unaligned::new(slow, pool.clone());
    if without_locks {
        volume = volume.without_locks();
    }
    let first = Event { value: 0, submitted: 0, completed: 0, replaces: true };
    let mut model = Model { bytes: vec![vec![first]; size as usize] };
    let mut sent: Vec<Option<Sent>> = Vec::new();
    let mut done = Vec::new();
    let mut now = 1;
    let total = 150;
    let depth = 1 + rng.below(16) as usize;
    while sent.len() < total || volume.outstanding() > 0 {
        if sent.len() < total && volume.outstanding() < depth && rng.below(3) > 0 {
            let op = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::WriteZeroes]
                .into_iter()
                .chain([Op::Discard, Op::Flush, Op::BlockStatus])
                .nth(rng.below(9) as usize)
                .unwrap();
            let offset = rng.below(size);
            let bound = [40, u64::from(block) * 2, size][rng.below(3) as usize];
            let len = 1 + rng.below(bound.min(size - offset));
            let mut io = Io::new(sent.len() as u64, op, offset, len);
            now += 1;
            let value = 1 + (sent.len() % 255) as u8;
            if op == Op::Write {
                io.data.push(pool.copy_of(&vec![value; len as usize]).freeze());
            }
            if op.is_write() {
                let value = if op == Op::Write { value } else { 0 };
                let replaces = op != Op::Discard;
                let event = Event { value, submitted: now, completed: u64::MAX, replaces };
                for byte in &mut model.bytes[offset as usize..(offset + len) as usize] {
                    byte.push(event);
                }
            }
            sent.push(Some(Sent { op, offset, len, submitted: now }));
            volume.submit(io);
        }
        volume.poll(&mut done);
        for completion in done.drain(..) {
            now += 1;
            let Sent { op, offset, len, submitted } =
                sent[completion.token as usize].take().expect("completed once");
            completion.result.map_err(|error| error.to_string())?;
            let range = offset as usize..(offset + len) as usize;
            if op.is_write() {
                for byte in &mut model.bytes[range.clone()] {
                    let own = byte.iter_mut().find(|event| event.submitted == submitted).unwrap();
                    own.completed = now;
                }
            }
            if op == Op::Read {
                let data = completion.data.to_vec();
                assert_eq!(data.len(), range.len());
                for (at, value) in range.zip(data) {
                    if !model.allows(at, value, submitted, now) {
                        return Err(format!("seed {seed}: byte {at} reads {value}"));
                    }
                }
            } else if op == Op::BlockStatus {
                let covered: u64 = completion.extents.iter().map(|extent| extent.len).sum();
                assert!(covered > 0 && covered <= len);
            }
        }
    }
    if sent.iter().any(Option::is_some) {
        return Err(format!("seed {seed}: a request was never completed"));
    }
    assert_eq!(volume.inner().outstanding(), 0);
    for (at, &value) in volume.inner().bytes.iter().enumerate() {
        if !model.allows(at, value, now + 1, now + 2) {
            return Err(format!("seed {seed}: byte {at} is {value} in the end"));
        }
    }
    Ok(())
}

#[test]
fn random_overlapping_ranges_agree_with_the_model() {
    for seed in 0..400 {
        run(seed, false).unwrap();
    }
}

/// Locks that grant everything must be found out, or the test above proves nothing.
#[test]
fn canary_without_locks_the_model_test_fails() {
    let found = (0..40).filter(|&seed| run(seed, true).is_err()).count();
    assert!(found > 0);
}

/// A prompt volume of 16 blocks of 512 bytes that takes 4 blocks at once, filled with a pattern.
fn prompt() -> Unaligned<Slow> {
    let mut slow = Slow::new(16, 512, 4, 0);
    slow.prompt = true;
    for (at, byte) in slow.bytes.iter_mut().enumerate() {
        *byte = (at / 7) as u8 | 1;
    }
    Unaligned::new(slow, Pool::new(1 << 20))
}

fn complete(volume: &mut Unaligned<Slow>, io: Io) -> Completion {
    volume.inner_mut().seen.clear();
    volume.submit(io);
    let mut done = Vec::new();
    // Once: a request in two phases must not need another nudge when the volume is prompt.
    volume.poll(&mut done);
    assert_eq!((done.len(), volume.outstanding()), (1, 0));
    done.pop().unwrap()
}

fn write(offset: u64, bytes: &[u8]) -> Io {
    let mut io = Io::new(7, Op::Write, offset, bytes.len() as u64);
    io.data.push(Pool::new(0).copy_of(bytes).freeze());
    io
}

#[test]
fn what_is_aligned_passes_unchanged() {
    let mut volume = prompt();
    let bytes = [5; 1024];
    let data = write(512, &bytes).data;
    let at = data.as_slice()[0].as_ptr();
    volume.submit(Io { data, ..Io::new(7, Op::Write, 512, 1024) });
    let below = volume.inner().waiting.first().unwrap();
    assert_eq!((below.offset, below.len), (512, 1024));
    assert_eq!(below.data.as_slice()[0].as_ptr(), at, "the very memory");
    assert_eq!(volume.pool.stats().allocations, 0);
}

#[test]
fn long_io_is_split_and_completed_once() {
    let mut volume = prompt();
    let content = volume.inner().bytes.clone();
    let done = complete(&mut volume, Io::new(1, Op::Read, 0, 8192));
    assert_eq!(done.data.to_vec(), content);
    assert_eq!(volume.inner().seen.len(), 4);
    let done = complete(&mut volume, Io::new(1, Op::Read, 3, 8000));
    assert_eq!(done.data.to_vec(), content[3..8003]);
    let bytes: Vec<u8> = (0..8000).map(|n| (n % 251) as u8).collect();
    complete(&mut volume, write(100, &bytes)).result.unwrap();
    assert_eq!(volume.inner().seen.len(), 2 + 4);
    assert_eq!(volume.inner().bytes[100..8100], bytes);
    assert_eq!(volume.inner().bytes[..100], content[..100]);
    assert_eq!(volume.inner().bytes[8100..], content[8100..]);
}

#[test]
fn long_discards_and_zeroes_go_down_in_gibibytes() {
    const GIB: u64 = 1 << 30;
    for (op, first) in [(Op::Discard, 512), (Op::WriteZeroes, 512)] {
        let mut volume = prompt();
        volume.inner_mut().geometry.bytes = 8 * GIB;
        volume.submit(Io::new(1, op, 512, 4 * GIB - 512));
        let seen: Vec<_> = volume.inner().seen.iter().map(|io| (io.0, io.1, io.2)).collect();
        let expected = [0, 1, 2, 3].map(|n| {
            let len = if n == 3 { GIB - 512 } else { GIB };
            (op, first + n * GIB, len)
        });
        assert_eq!(seen, expected);
    }
}

#[test]
fn every_part_is_as_durable_as_the_whole() {
    for (op, parts) in [(Op::Write, 1), (Op::WriteZeroes, 3)] {
        let mut volume = prompt();
        let mut io = write(500, &[9; 1100]);
        (io.op, io.flags.fua) = (op, true);
        if op == Op::WriteZeroes {
            io.data = SegList::new();
        }
        complete(&mut volume, io).result.unwrap();
        let writes: Vec<_> = volume.inner().seen.iter().filter(|io| io.0.is_write()).collect();
        assert_eq!(writes.len(), parts);
        assert!(writes.iter().all(|io| io.3.fua));
    }
}

#[test]
fn blocks_that_are_patched_are_read_for_that() {
    let is_for_patch = |io: &(Op, u64, u64, IoFlags)| io.3.for_patch;
    for (io, patched) in [(write(500, &[9; 600]), 2), (Io::new(1, Op::Read, 500, 600), 0)] {
        let mut volume = prompt();
        complete(&mut volume, io).result.unwrap();
        let (reads, others): (Vec<_>, Vec<_>) =
            volume.inner().seen.iter().partition(|io| io.0 == Op::Read);
        assert!(!reads.is_empty() && !others.iter().any(is_for_patch));
        assert_eq!(reads.iter().filter(|io| is_for_patch(io)).count(), patched);
    }
}

#[test]
fn zeroes_at_the_edges_and_discards_inside_only() {
    let mut volume = prompt();
    let content = volume.inner().bytes.clone();
    complete(&mut volume, Io::new(1, Op::WriteZeroes, 1000, 3000)).result.unwrap();
    let now = volume.inner().bytes.clone();
    assert!(now[1000..4000].iter().all(|&b| b == 0));
    assert_eq!((&now[..1000], &now[4000..]), (&content[..1000], &content[4000..]));

    let mut volume = prompt();
    complete(&mut volume, Io::new(1, Op::Discard, 1000, 3000)).result.unwrap();
    assert_eq!(volume.inner().seen, [(Op::Discard, 1024, 2560, IoFlags::default())]);
    complete(&mut volume, Io::new(1, Op::Discard, 1025, 1022)).result.unwrap();
    assert_eq!(volume.inner().seen, []);
}

#[test]
fn block_status_is_widened_and_clipped() {
    let mut volume = prompt();
    complete(&mut volume, Io::new(1, Op::WriteZeroes, 512, 512)).result.unwrap();
    let done = complete(&mut volume, Io::new(1, Op::BlockStatus, 500, 600));
    let lens: Vec<_> = done.extents.iter().map(|extent| (extent.len, extent.zero)).collect();
    assert_eq!(lens, [(12, false), (512, true), (76, false)]);
}

#[test]
fn the_first_error_is_the_answer() {
    // The edge that cannot be read, the middle that cannot be written, one piece of a read.
    for (bad, io) in [
        ((Op::Read, 0), write(100, &[1; 600])),
        ((Op::Write, 2048), write(100, &[1; 6000])),
        ((Op::Read, 4096), Io::new(1, Op::Read, 0, 8192)),
        ((Op::WriteZeroes, 1024), Io::new(1, Op::WriteZeroes, 100, 3000)),
    ] {
        let mut volume = prompt();
        volume.inner_mut().bad = Some(bad);
        let done = complete(&mut volume, io);
        let error = done.result.unwrap_err();
        assert_eq!((error.kind, error.op), (ErrorKind::Io, bad.0));
        assert!(done.data.is_empty());
        // And the blocks are free again.
        volume.inner_mut().bad = None;
        complete(&mut volume, write(1, &[3; 8000])).result.unwrap();
    }
}

#[test]
fn nothing_comes_from_the_allocator_once_warm() {
    let mut volume = prompt();
    for round in 0..3 {
        let before = volume.pool.stats().allocations;
        for offset in [1, 600, 1023] {
            complete(&mut volume, write(offset, &[8; 700]));
        }
        assert!(round == 0 || volume.pool.stats().allocations == before);
    }
}

#[test]
fn it_conforms() {
    for (seed, block_bytes) in [(1, 512), (2, 4096)] {
        let pool = Pool::new(8 << 20);
        let store = MemoryStore::new(1 << 20, block_bytes, Identity::default(), &pool);
        let mut volume = Unaligned::new(store, pool);
        let report = exercise(&mut volume, &mut || {}, seed, 2000);
        assert!(report.ios > 2000 && report.blocks_checked > 1000, "{report:?}");
    }
}
