//! A store that is slow, does things in any order, fails and loses; and its users, who must not be able to tell
//! whether there is a cache: whatever they read, the store held at some moment while they waited for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};

use super::super::{Cache, CacheCanary};
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{
    Completion, ErrorKind, Features, Geometry, Identity, Io, Op, Token, Volume, VolumeEvent,
    WriterRecord,
};

const BLOCK: usize = 512;
const BYTES: usize = 256 << 10;
const BLOCKS: usize = BYTES / BLOCK;

/// What a store is like, and everything that was ever in it.
struct Content {
    rng: SplitMix64,
    /// By block: what it holds, since when, and before that, the latest last.
    blocks: Vec<Vec<(u64, u64)>>,
    /// What a failed flush takes away: by block, what it held when that was last durable.
    durable: Vec<u64>,
    moment: u64,
    losses: u64,
}

impl Content {
    fn now(&self, block: usize) -> u64 {
        self.blocks[block].last().expect("it holds something").1
    }

    fn set(&mut self, block: usize, stamp: u64) {
        self.moment += 1;
        let moment = self.moment;
        self.blocks[block].push((moment, stamp));
    }

    /// What is not durable may be lost, by a sync of its own or of somebody else on the device.
    fn lose(&mut self) {
        self.losses += 1;
        for block in 0..BLOCKS {
            if self.rng.one_in(2) && self.now(block) != self.durable[block] {
                self.set(block, self.durable[block]);
            }
        }
    }

    /// Whether it held that at some moment since `begun`.
    fn has_held(&self, block: usize, stamp: u64, begun: u64) -> bool {
        let all = &self.blocks[block];
        let first = all.iter().rposition(|&(since, _)| since <= begun).expect("from the first");
        all[first..].iter().any(|&(_, held)| held == stamp)
    }
}

struct Store {
    content: Rc<RefCell<Content>>,
    pool: Pool,
    waiting: Vec<Io>,
    /// They have taken effect, and are not told.
    ended: Vec<Completion>,
    told: u64,
}

impl Store {
    fn execute(&mut self, io: Io) {
        let content = &mut *self.content.borrow_mut();
        let mut completion = Completion::new(io.token, Ok(()));
        let first = io.offset as usize / BLOCK;
        let count = io.len as usize / BLOCK;
        let fails = content.rng.one_in(8);
        let error = Err(io.error(ErrorKind::Io, "store"));
        // A part of what fails is done.
        let done = if fails && io.op.is_write() {
            content.rng.below(count as u64 + 1) as usize
        } else {
            count
        };
        match io.op {
            Op::Read if fails => completion.result = error,
            Op::Read => {
                let mut bytes = self.pool.get(count * BLOCK);
                for (nth, place) in bytes.chunks_exact_mut(BLOCK).enumerate() {
                    let stamp = content.now(first + nth);
                    place
                        .chunks_exact_mut(8)
                        .for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
                }
                completion.data = SegList::of(bytes.freeze());
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {
                let bytes = io.data.to_vec();
                for nth in 0..done {
                    let stamp = match io.op {
                        Op::Write => {
                            u64::from_le_bytes(bytes[nth * BLOCK..][..8].try_into().unwrap())
                        }
                        _ => 0,
                    };
                    content.set(first + nth, stamp);
                    if io.flags.fua && !fails {
                        content.durable[first + nth] = stamp;
                    }
                }
                if fails {
                    completion.result = error;
                }
            }
            Op::Flush if fails => {
                completion.result = error;
                content.lose();
            }
            Op::Flush => content.durable = (0..BLOCKS).map(|block| content.now(block)).collect(),
            Op::LoadWriter => completion.data = WriterRecord::default().to_data(&self.pool),
            Op::StoreWriter | Op::BlockStatus | Op::Cut => {}
        }
        self.ended.push(completion);
    }
}

impl Volume for Store {
    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: BYTES as u64,
            block_bytes: BLOCK as u32,
            preferred_bytes: 4096,
            io_bytes_max: 64 << 10,
            features: Features {
                read_only: false,
                discard: true,
                write_zeroes: true,
                block_status: false,
            },
        }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        self.waiting.push(io);
    }

    /// A loss of its own shows, and is told, in the same poll: before that moment nobody could know.
    fn poll(&mut self, done: &mut Vec<Completion>) {
        let flushes = |io: &Io| io.op == Op::Flush;
        let steps = self.content.borrow_mut().rng.below(4);
        for _ in 0..steps {
            if self.waiting.is_empty() {
                break;
            }
            let at = self.content.borrow_mut().rng.below(self.waiting.len() as u64) as usize;
            let io = self.waiting.swap_remove(at);
            let is_flush = flushes(&io);
            self.execute(io);
            if is_flush {
                done.extend(self.ended.pop());
            }
        }
        let count = self.content.borrow_mut().rng.below(3) as usize;
        for _ in 0..count.min(self.ended.len()) {
            let at = self.content.borrow_mut().rng.below(self.ended.len() as u64) as usize;
            done.push(self.ended.swap_remove(at));
        }
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.ended.len()
    }

    fn events(&self) -> u64 {
        self.content.borrow().losses
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let losses = self.content.borrow().losses;
        events.extend((self.told..losses).map(|_| VolumeEvent::Lost));
        self.told = losses;
    }
}

struct Asked {
    op: Op,
    first: usize,
    count: usize,
    begun: u64,
}

/// Half as many hits as reads, and no read that the store never held meanwhile.
fn run(seed: u64, canary: CacheCanary) -> u64 {
    let content = Rc::new(RefCell::new(Content {
        rng: SplitMix64::new(seed),
        blocks: vec![vec![(0, 0)]; BLOCKS],
        durable: vec![0; BLOCKS],
        moment: 0,
        losses: 0,
    }));
    let pool = Pool::new(4 << 20);
    let (waiting, ended) = (Vec::new(), Vec::new());
    let store = Store { content: content.clone(), pool: pool.clone(), waiting, ended, told: 0 };
    let mut cache = Cache::new(Box::new(store), Cache::BYTES_MIN);
    cache.set_canary(canary);
    if seed % 2 == 1 {
        cache.keep_writes();
    }
    let mut rng = SplitMix64::new(seed ^ 0x5eed);
    let mut asked: HashMap<Token, Asked> = HashMap::new();
    let mut done = Vec::new();
    // Where somebody reads on.
    let mut next = 0;
    for token in 1..3000 {
        let hot = 64;
        let reads_on = rng.one_in(2);
        let count = 1 + rng.below(24) as usize;
        let first = match reads_on {
            true if next + count <= BLOCKS => next,
            true => 0,
            false => rng.below(hot) as usize + if rng.one_in(8) { BLOCKS / 2 } else { 0 },
        };
        let op = match rng.below(40) {
            0 => Op::Flush,
            1 => Op::Discard,
            2 => Op::WriteZeroes,
            3 if rng.one_in(8) => Op::StoreWriter,
            4..=9 => Op::Write,
            _ => Op::Read,
        };
        if reads_on && op == Op::Read {
            next = first + count;
        }
        let (offset, len) = match op {
            Op::Flush | Op::StoreWriter => (0, 0),
            _ => ((first * BLOCK) as u64, (count * BLOCK) as u64),
        };
        let mut io = Io::new(token, op, offset, len);
        io.flags.fua = op.is_write() && rng.one_in(6);
        if op == Op::Write {
            let words = vec![token.to_le_bytes(); count * BLOCK / 8];
            io.data = SegList::of(pool.copy_of(words.as_flattened()).freeze());
        }
        // Between two polls, and told at once to whoever asks.
        if rng.one_in(100) {
            content.borrow_mut().lose();
        }
        let begun = content.borrow().moment;
        asked.insert(token, Asked { op, first, count, begun });
        cache.submit(io);
        let keep = rng.below(12) as usize;
        while asked.len() > keep {
            cache.poll(&mut done);
            for completion in done.drain(..) {
                let asked = asked.remove(&completion.token).expect("one completion for each");
                if asked.op != Op::Read || completion.result.is_err() {
                    continue;
                }
                let bytes = completion.data.to_vec();
                assert_eq!(bytes.len(), asked.count * BLOCK);
                for (nth, block) in bytes.chunks_exact(BLOCK).enumerate() {
                    let number = asked.first + nth;
                    let stamp = u64::from_le_bytes(block[..8].try_into().unwrap());
                    let is_whole = block.chunks_exact(8).all(|word| word == stamp.to_le_bytes());
                    assert!(
                        is_whole && content.borrow().has_held(number, stamp, asked.begun),
                        "seed {seed}: block {number} was read as {stamp}, which it never was"
                    );
                }
            }
            assert_eq!(cache.outstanding(), asked.len());
            content.borrow_mut().moment += 1;
        }
    }
    cache.cache().expect("it is one").hits
}

#[test]
fn nobody_can_tell_that_there_is_a_cache() {
    let hits: u64 = (0..60).map(|seed| run(seed, CacheCanary::None)).sum();
    assert!(hits > 20_000, "{hits} hits say little");
}

#[test]
fn broken_caches_are_found() {
    for canary in [
        CacheCanary::PublishedEarly,
        CacheCanary::AheadUnchecked,
        CacheCanary::LossesUnheard,
        CacheCanary::OverlapsKept,
    ] {
        let is_found = |seed: &u64| catch_unwind(|| run(*seed, canary)).is_err();
        let found = (0..60).find(is_found);
        println!("{canary:?} is found by seed {found:?}");
        assert!(found.is_some(), "{canary:?} survives");
    }
}
