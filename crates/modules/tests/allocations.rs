//! Each module over memory: once warm its I/Os allocate nothing, whatever they are, but for the answer to a block status, which is a list. What a
//! pool allocates for blocks that it gives out, takes back or commits is bounded.

mod counting;
mod made;

use std::time::Duration;

use counting::allocations;
use made::Maker;
use thinwire_buffer::{Pool, SegList, Time};
use thinwire_modules::{Child, KEEPING_MODULES, MODULES, Module, Options};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, Identity, Io, IoFlags, Op, Volume};

const DEPTH: u64 = 8;
const PART_BYTES: u64 = 24 << 20;
/// I/Os go to so many bytes at the start: more than two regions of a mirror.
const AREA_BYTES: u64 = 4 << 20;
const THIN_BYTES: u64 = 8 << 20;
const ROUNDS: u64 = 400;
/// Until every list has been as long as it gets: regions open and close at other moments each time.
const WARM_ROUNDS: u64 = 3 * ROUNDS;

/// What is done in turn: an operation, and whether it is durable by itself.
type Mix = &'static [(Op, bool)];

const ALL: Mix = &[
    (Op::Write, false),
    (Op::Read, false),
    (Op::Write, true),
    (Op::WriteZeroes, false),
    (Op::Read, false),
    (Op::Flush, false),
    (Op::Write, false),
    (Op::Discard, false),
    (Op::WriteZeroes, true),
    (Op::Discard, true),
    (Op::Read, false),
];
/// What changes no mapping of a pool.
const MAPPED: Mix = &[(Op::Write, false), (Op::Read, false), (Op::Write, true), (Op::Flush, false)];
const READS: Mix = &[(Op::Read, false), (Op::Flush, false)];
const STATUSES: Mix = &[(Op::BlockStatus, false)];

struct Stage {
    volume: Box<dyn Volume>,
    now: Time,
    payload: SegList,
    done: Vec<Completion>,
    round: u64,
}

impl Stage {
    /// The module over memory.
    fn new(module: &'static Module, told: &[(&str, u64)], len: usize) -> Self {
        let pool = Pool::new(64 << 20);
        pool.warm(len, 32);
        let mut maker = Maker::new(7, &pool);
        let mut options = Options::default();
        for (name, value) in told {
            assert!(options.set(module.option(name).unwrap_or_else(|e| panic!("{e}")), *value));
        }
        let count = (*module.children.start()).max(2).min(*module.children.end());
        let store = || -> Box<dyn Volume> {
            Box::new(MemoryStore::new(PART_BYTES, 512, Identity::default(), &pool))
        };
        let parts: Vec<_> = (0..count).map(|_| store()).collect();
        let volume = match module.keeps {
            Some(_) => maker.keeping(module, parts, &options, THIN_BYTES),
            None => {
                let built = module.open_over(Child::all(parts), &options);
                built.unwrap_or_else(|e| panic!("{e}"))
            }
        };
        let payload = SegList::of(pool.copy_of(&vec![7; len]).freeze());
        Stage { volume, now: maker.now, payload, done: Vec::with_capacity(64), round: 0 }
    }

    /// So many rounds of I/Os of a mix, several at a time, none of which overlap.
    fn rounds(&mut self, mix: Mix, count: u64) {
        let len = self.payload.bytes() as u64;
        let places = AREA_BYTES / len;
        for _ in 0..count {
            self.round += 1;
            let first = self.round * 37 * DEPTH; // Odd: comes by all places.
            for at in 0..DEPTH {
                let (op, fua) = mix[((self.round + at) % mix.len() as u64) as usize];
                let mut io = match op {
                    Op::Flush => Io::new(at, op, 0, 0),
                    _ => Io::new(at, op, (first + at) % places * len, len),
                };
                io.flags.fua = fua;
                if op == Op::Write {
                    io.data = self.payload.clone();
                }
                self.volume.submit(io);
            }
            let mut ended = 0;
            while ended < DEPTH {
                self.now = self.now + Duration::from_millis(1);
                self.volume.turn(self.now);
                self.volume.poll(&mut self.done);
                for completion in self.done.drain(..) {
                    completion.result.unwrap_or_else(|e| panic!("{e}"));
                    ended += 1;
                }
            }
        }
        // What is done when nobody asks for anything, too.
        for _ in 0..20 {
            self.now = self.now + Duration::from_millis(300);
            self.volume.turn(self.now);
            self.volume.poll(&mut self.done);
        }
    }

    /// Allocations of so many rounds, once warm.
    fn counted(&mut self, mix: Mix) -> u64 {
        SegList::warm(64, 64);
        if mix.contains(&(Op::Write, false)) {
            // What stores take for pages is theirs: all are there at once once.
            self.rounds(&[(Op::Write, false)], AREA_BYTES / (self.payload.bytes() as u64 * DEPTH));
        }
        self.rounds(mix, WARM_ROUNDS);
        let before = allocations();
        self.rounds(mix, ROUNDS);
        allocations() - before
    }
}

#[test]
fn io_of_each_module_allocates_nothing_once_warm() {
    let mut wrong = Vec::new();
    let write_back: &[(&str, u64)] = &[("size", 2 << 20), ("write_back", 4 << 20)];
    let told = |module: &Module| -> Vec<&[(&str, u64)]> {
        match module.name {
            "cache" => vec![&[("size", 2 << 20)], write_back],
            "qos" => vec![&[], &[("iops", 5_000)]],
            _ => vec![&[]],
        }
    };
    for module in MODULES.iter().chain(KEEPING_MODULES) {
        for (told, len) in told(module).into_iter().flat_map(|told| [(told, 4096), (told, 65536)]) {
            let mut stage = Stage::new(module, told, len);
            let mix = match module.name {
                "readonly" => READS,
                "thin" => {
                    // All of it is mapped.
                    let flags = IoFlags { no_hole: true, ..IoFlags::default() };
                    let all = Io { flags, ..Io::new(1, Op::WriteZeroes, 0, THIN_BYTES) };
                    stage.volume.submit(all);
                    while stage.done.is_empty() {
                        stage.volume.poll(&mut stage.done);
                    }
                    stage.done.clear();
                    MAPPED
                }
                _ => ALL,
            };
            let count = stage.counted(mix);
            println!("{module:?} {told:?}, I/Os of {len} bytes: {count} allocations");
            if count > 0 {
                wrong.push((module, told, len, count));
            }
            // A list for each, and one that it is made of, level by level.
            let (ios, count) = (ROUNDS * DEPTH, stage.counted(STATUSES));
            println!("  {count} of {ios} block statuses");
            assert!(count <= 4 * ios, "{module:?}: {count} of {ios} block statuses");
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What gives blocks out and takes them back changes nodes of trees, each in memory of its own, and a commit writes them: so many for each I/O, however long
/// that goes on.
#[test]
fn what_changes_mappings_allocates_a_bounded_amount() {
    for len in [4096, 65536] {
        let mut stage = Stage::new(Module::find("thin").unwrap(), &[], len);
        let ios = ROUNDS * DEPTH;
        let (first, second) = (stage.counted(ALL), stage.counted(ALL));
        println!("I/Os of {len} bytes: {first}, then {second} allocations for {ios}");
        assert!(first <= 8 * ios && second <= first + first / 8, "{first}, {second} of {ios}");
    }
}
