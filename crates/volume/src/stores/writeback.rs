//! A volume that forgets what was not flushed: it makes loss happen, to prove that replay mends it.

use std::collections::{HashMap, VecDeque};

use thinwire_buffer::{Pool, SegList, Segment};

use super::push_extent;
use super::ranges::{Effect, Piece, Ranges};
use crate::{Completion, Extent, Io, IoError, Layer, Op, Token, Volume};

/// I/Os that a round keeps outstanding on the inner volume.
const ROUND_IOS_MAX: usize = 64;

/// A volatile write cache over another volume: for tests, behind the export option `writeback`.
///
/// Writes, discards and write-zeroes complete at once and stay in memory. A flush, and a write
/// with FUA, first move everything that was completed before into the inner volume and flush that.
/// What was not flushed is lost with the process (or with this value).
///
/// The memory is bounded: a write that would exceed the bound first waits until the rest has been
/// moved down.
///
/// Order: effects live in two layers. `top` takes new ones. A *round* moves the whole of `top` to
/// `pushing` and writes that to the inner volume; only one round runs at a time, so that the inner
/// volume never has two overlapping writes outstanding. A read sees `top` over `pushing` over the
/// inner volume, as both layers were when it was submitted: what a round takes away meanwhile is
/// still in the snapshot.
pub struct Writeback<V> {
    inner: V,
    pool: Pool,
    bytes_max: usize,
    top: Ranges,
    pushing: Ranges,
    round: Option<Round>,
    /// Flushes and FUA writes that the next round serves.
    waiting: Vec<Waiter>,
    /// Writes for which there was no room, in order.
    held: VecDeque<Io>,
    below: HashMap<Token, Below>,
    next_token: Token,
    zeroes: Segment,
    ready: Vec<Completion>,
    inner_done: Vec<Completion>,
    outstanding: usize,
    copied_bytes: u64,
}

/// Who waits for durability.
struct Waiter {
    token: Token,
    op: Op,
    offset: u64,
    len: u64,
}

/// One move of everything down to the inner volume.
struct Round {
    queue: VecDeque<Piece>,
    running: usize,
    flushing: bool,
    error: Option<IoError>,
    waiters: Vec<Waiter>,
}

/// What an I/O on the inner volume is for.
enum Below {
    /// Answers this read or block status, with what the layers had over it.
    Answer { token: Token, op: Op, offset: u64, len: u64, one_extent: bool, over: Ranges },
    /// Belongs to the round.
    Push,
}

impl<V: Volume> Writeback<V> {
    /// A cache of at most about `bytes_max` bytes (at least one longest write) in memory of `pool`.
    pub fn new(inner: V, bytes_max: usize, pool: &Pool) -> Self {
        Writeback {
            bytes_max: bytes_max.max(2 * inner.geometry().io_bytes_max as usize),
            inner,
            pool: pool.clone(),
            top: Ranges::default(),
            pushing: Ranges::default(),
            round: None,
            waiting: Vec::new(),
            held: VecDeque::new(),
            below: HashMap::new(),
            next_token: 0,
            zeroes: Pool::new(0).get_zeroed(64 << 10).freeze(),
            ready: Vec::new(),
            inner_done: Vec::new(),
            outstanding: 0,
            copied_bytes: 0,
        }
    }

    /// Bytes that a crash at this moment would lose.
    pub fn unflushed_bytes(&self) -> usize {
        self.top.iter().chain(self.pushing.iter()).map(|piece| piece.len as usize).sum()
    }

    /// The volume below, without what was not flushed: what a crash leaves behind.
    pub fn crash(self) -> V {
        self.inner
    }

    fn has_room(&self, io: &Io) -> bool {
        let used = self.top.cost_bytes() + self.pushing.cost_bytes();
        used == 0 || used + io.data.bytes() <= self.bytes_max
    }

    /// Takes a write, discard or write-zeroes into the top layer.
    fn admit(&mut self, io: Io) {
        let effect = match io.op {
            Op::Discard => Effect::Discard,
            Op::WriteZeroes => Effect::Zeroes { no_hole: io.flags.no_hole },
            _ => {
                // A copy: the segments may be small parts of large frames, and would pin them.
                let mut copy = self.pool.get(io.data.bytes());
                io.data.copy_to(&mut copy);
                self.copied_bytes += copy.len() as u64;
                Effect::Data(copy.freeze())
            }
        };
        self.top.insert(Piece { offset: io.offset, len: io.len, effect });
        if io.flags.fua {
            self.wait(&io);
        } else {
            self.ready.push(Completion::new(io.token, Ok(())));
        }
    }

    fn wait(&mut self, io: &Io) {
        self.waiting.push(Waiter { token: io.token, op: io.op, offset: io.offset, len: io.len });
    }

    /// What both layers have over a range now.
    fn snapshot(&self, offset: u64, len: u64) -> Ranges {
        let mut over = Ranges::default();
        for piece in self.pushing.within(offset, len).chain(self.top.within(offset, len)) {
            over.insert(piece);
        }
        over
    }

    fn ask(&mut self, io: Io) {
        let over = self.snapshot(io.offset, io.len);
        let covered: u64 = over.iter().map(|piece| piece.len).sum();
        if io.op == Op::Read && covered == io.len {
            let mut completion = Completion::new(io.token, Ok(()));
            self.lay_over(&over, io.offset, io.len, &SegList::new(), &mut completion.data);
            self.ready.push(completion);
            return;
        }
        let below = Below::Answer {
            token: io.token,
            op: io.op,
            offset: io.offset,
            len: io.len,
            one_extent: io.flags.one_extent,
            over,
        };
        self.send_down(below, io);
    }

    fn send_down(&mut self, below: Below, mut io: Io) {
        io.token = self.next_token;
        self.next_token += 1;
        self.below.insert(io.token, below);
        self.inner.submit(io);
    }

    /// The bytes of a read: the layers' where they have any, else the inner volume's.
    fn lay_over(&self, over: &Ranges, offset: u64, len: u64, under: &SegList, out: &mut SegList) {
        let mut at = offset;
        for piece in over.iter() {
            under.slice_into((at - offset) as usize, (piece.offset - at) as usize, out);
            match piece.effect {
                Effect::Data(segment) => out.push(segment),
                Effect::Zeroes { .. } | Effect::Discard => {
                    let mut left = piece.len as usize;
                    while left > 0 {
                        let part = left.min(self.zeroes.len());
                        out.push(self.zeroes.slice(0, part));
                        left -= part;
                    }
                }
            }
            at = piece.offset + piece.len;
        }
        under.slice_into((at - offset) as usize, (offset + len - at) as usize, out);
    }

    /// Starts a round if somebody needs one, and keeps the running one going.
    fn advance(&mut self) {
        loop {
            let Some(round) = &mut self.round else {
                if self.waiting.is_empty() && self.held.is_empty() {
                    return;
                }
                self.pushing = std::mem::take(&mut self.top);
                self.round = Some(Round {
                    queue: self.pushing.iter().collect(),
                    running: 0,
                    flushing: false,
                    error: None,
                    waiters: std::mem::take(&mut self.waiting),
                });
                continue;
            };
            if round.error.is_some() {
                round.queue.clear();
            }
            if round.running < ROUND_IOS_MAX
                && let Some(piece) = round.queue.pop_front()
            {
                round.running += 1;
                let io = push_io(piece);
                self.send_down(Below::Push, io);
                continue;
            }
            if round.running > 0 {
                return;
            }
            if !round.flushing && !round.waiters.is_empty() && round.error.is_none() {
                round.flushing = true;
                round.running = 1;
                self.send_down(Below::Push, Io::new(0, Op::Flush, 0, 0));
                return;
            }
            self.end_round();
        }
    }

    fn end_round(&mut self) {
        let round = self.round.take().expect("a round runs");
        let pushed = std::mem::take(&mut self.pushing);
        if round.error.is_some() {
            // Nothing is certain to be down there: all of it stays, under what came since.
            let newer = std::mem::replace(&mut self.top, pushed);
            for piece in newer.iter() {
                self.top.insert(piece);
            }
        }
        for waiter in round.waiters {
            let result = match round.error {
                None => Ok(()),
                Some(error) => {
                    Err(IoError { op: waiter.op, offset: waiter.offset, len: waiter.len, ..error })
                }
            };
            self.ready.push(Completion::new(waiter.token, result));
        }
        while let Some(io) = self.held.pop_front() {
            if let Some(error) = round.error {
                // What is in the way cannot be moved down: waiting longer would be for ever.
                let result = Err(io.error(error.kind, error.module));
                self.ready.push(Completion::new(io.token, result));
            } else if self.has_room(&io) {
                self.admit(io);
            } else {
                self.held.push_front(io);
                break;
            }
        }
    }

    fn take_in(&mut self, inner: Completion) {
        match self.below.remove(&inner.token).expect("the inner volume returns each token once") {
            Below::Push => {
                let round = self.round.as_mut().expect("a push belongs to the round");
                round.running -= 1;
                if let Err(error) = inner.result {
                    round.error.get_or_insert(error);
                }
            }
            Below::Answer { token, op, offset, len, one_extent, over } => {
                let mut completion = Completion::new(token, inner.result);
                match (inner.result, op) {
                    (Err(_), _) => {}
                    (Ok(()), Op::LoadWriter | Op::StoreWriter | Op::Cut) => {
                        completion.data = inner.data
                    }
                    (Ok(()), Op::Read) => {
                        self.lay_over(&over, offset, len, &inner.data, &mut completion.data);
                    }
                    (Ok(()), _) => {
                        completion.extents = status_over(&over, offset, &inner.extents);
                        if one_extent {
                            completion.extents.truncate(1);
                        }
                    }
                }
                self.ready.push(completion);
            }
        }
    }
}

impl<V: Volume> Layer for Writeback<V> {
    type Below = V;

    fn below(&self) -> &V {
        &self.inner
    }

    fn below_mut(&mut self) -> &mut V {
        &mut self.inner
    }

    fn take(&mut self, io: Io) {
        self.outstanding += 1;
        match io.op {
            Op::Read | Op::BlockStatus => self.ask(io),
            // What is not flushed is not in a cut, as after a power failure.
            Op::LoadWriter | Op::StoreWriter | Op::Cut => {
                let below = Below::Answer {
                    token: io.token,
                    op: io.op,
                    offset: 0,
                    len: 0,
                    one_extent: false,
                    over: Ranges::default(),
                };
                self.send_down(below, io);
            }
            Op::Flush => self.wait(&io),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                if self.held.is_empty() && self.has_room(&io) {
                    self.admit(io);
                } else {
                    self.held.push_back(io);
                }
            }
        }
        self.advance();
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let mut inner_done = std::mem::take(&mut self.inner_done);
        loop {
            self.inner.poll(&mut inner_done);
            if inner_done.is_empty() {
                break;
            }
            for one in inner_done.drain(..) {
                self.take_in(one);
            }
            self.advance();
        }
        self.inner_done = inner_done;
        self.outstanding -= self.ready.len();
        done.append(&mut self.ready);
    }

    fn taken(&self) -> usize {
        self.outstanding
    }

    fn own_copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

/// The I/O that brings a piece down.
fn push_io(piece: Piece) -> Io {
    let mut io = Io::new(0, Op::WriteZeroes, piece.offset, piece.len);
    match piece.effect {
        Effect::Data(segment) => {
            io.op = Op::Write;
            io.data = SegList::of(segment);
        }
        Effect::Zeroes { no_hole } => io.flags.no_hole = no_hole,
        Effect::Discard => io.op = Op::Discard,
    }
    io
}

/// A block status of the inner volume with the layers laid over it. Ends where the inner one ends.
fn status_over(over: &Ranges, offset: u64, under: &[Extent]) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut at = offset;
    for run in under {
        let end = at + run.len;
        for piece in over.within(at, run.len) {
            push_extent(&mut extents, Extent { len: piece.offset - at, ..*run });
            let (hole, zero) = match piece.effect {
                Effect::Data(_) => (false, false),
                Effect::Zeroes { no_hole } => (!no_hole, true),
                Effect::Discard => (true, true),
            };
            push_extent(&mut extents, Extent { len: piece.len, hole, zero });
            at = piece.offset + piece.len;
        }
        push_extent(&mut extents, Extent { len: end - at, ..*run });
        at = end;
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::{FileStore, MemoryStore};
    use crate::testing::{MemDisk, SplitMix64, exercise, finish};
    use crate::{ErrorKind, Identity};

    const BLOCK: usize = 512;

    fn on_disk(bytes: u64, bytes_max: usize, seed: u64) -> Writeback<FileStore<MemDisk>> {
        let pool = Pool::new(16 << 20);
        let store = FileStore::new(MemDisk::new(bytes, 512, seed), 512, &pool).unwrap();
        Writeback::new(store, bytes_max, &pool)
    }

    fn write(token: Token, block: u64, bytes: &[u8]) -> Io {
        let data = SegList::of(Pool::new(0).copy_of(bytes).freeze());
        Io { data, ..Io::new(token, Op::Write, block * BLOCK as u64, bytes.len() as u64) }
    }

    fn fua(mut io: Io) -> Io {
        io.flags.fua = true;
        io
    }

    fn run(volume: &mut dyn Volume, io: Io) -> Completion {
        finish(volume, &mut || {}, io)
    }

    fn read(volume: &mut dyn Volume, block: u64, len: usize) -> Vec<u8> {
        let io = Io::new(9, Op::Read, block * BLOCK as u64, len as u64);
        let completion = run(volume, io);
        completion.result.unwrap();
        completion.data.to_vec()
    }

    #[test]
    fn it_conforms_over_a_slow_disk_that_reorders() {
        for seed in 0..6 {
            // The smallest bound makes writes wait for room all the time.
            let bytes_max = if seed % 2 == 0 { 0 } else { 64 << 20 };
            let mut volume = on_disk(3 << 20, bytes_max, seed);
            let report = exercise(&mut volume, &mut || {}, seed, 1500);
            assert!(report.ios > 1500 && report.overlaps > 30);
        }
    }

    #[test]
    fn it_conforms_over_memory() {
        let pool = Pool::new(16 << 20);
        let inner = MemoryStore::new(3 << 20, 4096, Identity::default(), &pool);
        exercise(&mut Writeback::new(inner, 0, &pool), &mut || {}, 3, 2000);
    }

    #[test]
    fn what_was_not_flushed_is_lost_and_what_was_is_not() {
        let mut volume = on_disk(1 << 20, 1 << 20, 1);
        run(&mut volume, write(1, 0, &[1; BLOCK]));
        run(&mut volume, Io::new(2, Op::Flush, 0, 0)).result.unwrap();
        run(&mut volume, write(3, 0, &[2; BLOCK]));
        run(&mut volume, write(4, 1, &[3; BLOCK]));
        assert_eq!(read(&mut volume, 0, 2 * BLOCK)[BLOCK - 1..BLOCK + 1], [2, 3]);
        assert_eq!(volume.unflushed_bytes(), 2 * BLOCK);
        let mut left = volume.crash();
        assert_eq!(read(&mut left, 0, BLOCK), [1; BLOCK]);
        assert_eq!(read(&mut left, 1, BLOCK), [0; BLOCK]);
    }

    #[test]
    fn fua_takes_everything_completed_before_it_down() {
        let mut volume = on_disk(1 << 20, 1 << 20, 1);
        run(&mut volume, write(1, 0, &[1; 4 * BLOCK]));
        run(&mut volume, Io::new(2, Op::Discard, BLOCK as u64, BLOCK as u64));
        run(&mut volume, fua(write(3, 2, &[2; BLOCK]))).result.unwrap();
        assert_eq!(volume.unflushed_bytes(), 0);
        let mut left = volume.crash();
        let bytes = read(&mut left, 0, 4 * BLOCK);
        let firsts: Vec<u8> = bytes.chunks(BLOCK).map(|block| block[0]).collect();
        assert_eq!(firsts, [1, 0, 2, 1]);
    }

    /// A flush that arrives while a round runs must not be answered by that round: it covers more.
    #[test]
    fn a_flush_never_joins_a_running_round() {
        for seed in 0..40 {
            let mut rng = SplitMix64::new(seed);
            let mut volume = on_disk(1 << 20, 1 << 20, seed);
            let mut done = Vec::new();
            for value in 1..=20u8 {
                volume.submit(write(u64::from(value), rng.below(4), &[value; BLOCK]));
                volume.submit(Io::new(100 + u64::from(value), Op::Flush, 0, 0));
                let until = rng.below(3);
                (0..until).for_each(|_| volume.poll(&mut done));
            }
            let last = read_all(&mut volume, &mut done);
            // All flushes are answered: all of it is down.
            assert_eq!(read(&mut volume.crash(), 0, 4 * BLOCK), last, "seed {seed}");
        }
    }

    fn read_all(volume: &mut Writeback<FileStore<MemDisk>>, done: &mut Vec<Completion>) -> Vec<u8> {
        while volume.outstanding() > 0 {
            volume.poll(done);
        }
        assert_eq!(done.len(), 40);
        assert!(done.iter().all(|completion| completion.result.is_ok()));
        read(volume, 0, 4 * BLOCK)
    }

    #[test]
    fn a_failed_flush_says_so_and_loses_nothing_yet() {
        let mut volume = on_disk(1 << 20, 1 << 20, 1);
        run(&mut volume, write(1, 0, &[1; BLOCK]));
        volume.inner.disk_mut().fail_with(Some(28));
        let error = run(&mut volume, Io::new(2, Op::Flush, 0, 0)).result.unwrap_err();
        assert_eq!((error.kind, error.op), (ErrorKind::NoSpace, Op::Flush));
        let error = run(&mut volume, fua(write(3, 1, &[2; BLOCK]))).result.unwrap_err();
        assert_eq!((error.op, error.offset), (Op::Write, BLOCK as u64));
        volume.inner.disk_mut().fail_with(None);
        run(&mut volume, Io::new(4, Op::Flush, 0, 0)).result.unwrap();
        assert_eq!(read(&mut volume.crash(), 0, BLOCK), [1; BLOCK]);
    }

    #[test]
    fn writes_beyond_the_bound_fail_when_nothing_can_be_moved_down() {
        let mut volume = on_disk(8 << 20, 0, 1);
        volume.inner.disk_mut().fail_with(Some(5));
        let mut failed = 0;
        for i in 0..6 {
            let io = write(i, i * 2048, &[7; 1 << 20]);
            failed += usize::from(run(&mut volume, io).result.is_err());
        }
        assert!((3..6).contains(&failed), "{failed}");
        assert_eq!(read(&mut volume, 0, BLOCK), [7; BLOCK]);
    }

    #[test]
    fn block_status_shows_what_is_not_down_yet() {
        let mut volume = on_disk(1 << 20, 1 << 20, 1);
        run(&mut volume, write(1, 8, &[1; 4096]));
        run(&mut volume, Io::new(2, Op::Flush, 0, 0)).result.unwrap();
        run(&mut volume, write(3, 16, &[1; 4096]));
        run(&mut volume, Io::new(4, Op::Discard, 4096, 4096));
        let status = run(&mut volume, Io::new(5, Op::BlockStatus, 0, 16384)).extents;
        let extent = |len, hole| Extent { len, hole, zero: hole };
        assert_eq!(status, [extent(8192, true), extent(4096, false), extent(4096, true)]);
    }
}
