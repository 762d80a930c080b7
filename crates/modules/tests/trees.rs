//! Volumes of volumes of volumes: 1,000 random trees of those modules that need no labels (`linear`, `slice`, `stripe`, `qos` and `cache`), with random
//! options, over stores of all kinds. Each must do what every volume does.

use std::time::Duration;

use thinwire_buffer::{Pool, Time};
use thinwire_modules::{Child, Layout, MODULES, Module, Options, Readonly};
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, SplitMix64, exercise};
use thinwire_volume::{Completion, Identity, Io, Layer, Volume};

const TREES: u64 = 1000;
/// I/Os of each: few, as there are many trees.
const STEPS: usize = 250;
const CHILDREN_MAX: usize = 3;
/// No volume is smaller, whatever is cut off it: the smallest chunk.
const LEAST_BYTES: u64 = 4096;

/// The modules that trees are made of: one that nobody can change has its own tests, and would make the whole tree such a one.
fn modules() -> Vec<&'static Module> {
    MODULES.iter().filter(|module| module.name != Readonly::NAME).collect()
}

/// One tree, and what it looks like.
struct Grower {
    seed: u64,
    rng: SplitMix64,
    pool: Pool,
    /// All sizes and offsets are multiples of it: 512 if all blocks are.
    unit: u64,
    shape: String,
    leaves: usize,
    modules: Vec<&'static str>,
}

impl Grower {
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let unit = if rng.one_in(2) { 512 } else { 4096 };
        let pool = Pool::new(8 << 20);
        Grower { seed, rng, pool, unit, shape: String::new(), leaves: 0, modules: Vec::new() }
    }

    /// One from `least` to `most`, a multiple of `unit`, as both are.
    fn between(&mut self, least: u64, most: u64, unit: u64) -> u64 {
        least + self.rng.below((most - least) / unit + 1) * unit
    }

    fn leaf(&mut self) -> Box<dyn Volume> {
        self.leaves += 1;
        let bytes = self.between(2 * LEAST_BYTES, 160 << 10, self.unit);
        let block = if self.unit == 512 || self.rng.one_in(2) { 512 } else { 4096 };
        let (in_memory, seed) = (self.rng.one_in(2), self.rng.next());
        let kind = if in_memory { "memory" } else { "file" };
        self.shape += &format!("{kind}:{bytes}/{block}");
        match in_memory {
            true => Box::new(MemoryStore::new(bytes, block, Identity::default(), &self.pool)),
            false => {
                let align = if block == 512 || self.rng.one_in(2) { 512 } else { 4096 };
                let store = FileStore::new(MemDisk::new(bytes, align, seed), block, &self.pool);
                Box::new(store.unwrap_or_else(|e| panic!("{e:?}")))
            }
        }
    }

    /// A module with so many levels of them below itself; with none it is a leaf.
    fn tree(&mut self, levels: usize) -> Box<dyn Volume> {
        if levels == 0 {
            return self.leaf();
        }
        let modules = modules();
        let module = modules[self.rng.below(modules.len() as u64) as usize];
        self.modules.push(module.name);
        self.shape += &format!("{}:[", module.name);
        let most = CHILDREN_MAX.min(*module.children.end());
        let least = *module.children.start();
        let count = self.between(least as u64, most as u64, 1);
        // One is as deep as it is said, the others are anything.
        let deep = self.rng.below(count);
        let mut children = Vec::new();
        for nth in 0..count {
            let levels =
                if nth == deep { levels - 1 } else { self.rng.below(levels as u64) as usize };
            let child = self.tree(levels);
            children.push(self.child(child));
            self.shape += if nth + 1 < count { "," } else { "]" };
        }
        let options = self.options(module, &children);
        let said: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !said.is_empty() {
            self.shape += &format!("?{}", said.join("&"));
        }
        let volume = module.open_over(children, &options).unwrap_or_else(|e| panic!("{e}"));
        assert!(volume.geometry().bytes >= LEAST_BYTES);
        volume
    }

    /// All of it, or some.
    fn child(&mut self, volume: Box<dyn Volume>) -> Child {
        let units = (volume.geometry().bytes - LEAST_BYTES) / self.unit;
        if !self.rng.one_in(6) {
            return Child::all(vec![volume]).remove(0);
        }
        let start = self.between(0, units * self.unit, self.unit);
        let more = units * self.unit - start;
        let bytes = LEAST_BYTES + self.between(0, more, self.unit);
        self.shape += &format!("({start}+{bytes})");
        Child::within(volume, start, bytes).unwrap_or_else(|why| panic!("it {why}"))
    }

    /// Anything that it can be told over these.
    fn options(&mut self, module: &Module, children: &[Child]) -> Options {
        let smallest = children.iter().map(|child| child.geometry().bytes).min().unwrap_or(0);
        let (mut options, mut offset) = (Options::default(), 0);
        for option in module.options {
            let value = match option.name {
                "chunk" if smallest >= 64 << 10 && self.rng.one_in(4) => None,
                "chunk" => Some(self.between(4096, smallest / 4096 * 4096, 4096)),
                // Of a cache: some that hold all, and some that do not.
                "size" if module.name == "cache" => {
                    Some(*option.bounds.start() + self.rng.below(1 << 17))
                }
                "write_back" if self.rng.one_in(2) => None,
                "write_back" => Some(*option.bounds.start() + self.rng.below(1 << 20)),
                "max_age_ms" if self.rng.one_in(2) => None,
                "max_age_ms" => Some(1 + self.rng.below(100)),
                "offset" | "size" if self.rng.one_in(3) => None,
                "offset" => {
                    let units = (smallest - LEAST_BYTES) / self.unit;
                    offset = self.between(0, units * self.unit, self.unit);
                    Some(offset)
                }
                "size" => {
                    let units = (smallest - offset - LEAST_BYTES) / self.unit;
                    Some(self.between(LEAST_BYTES, LEAST_BYTES + units * self.unit, self.unit))
                }
                // Seldom what nobody would wait for, in time that passes by a millisecond for each poll.
                "iops" | "read_iops" | "write_iops" if self.rng.one_in(4) => {
                    Some(1 + self.rng.below(20_000))
                }
                "bandwidth" | "read_bandwidth" | "write_bandwidth" if self.rng.one_in(4) => {
                    Some((1 << 20) + self.rng.below(1 << 27))
                }
                "burst_ms" if self.rng.one_in(2) => Some(1 + self.rng.below(1000)),
                "iops" | "read_iops" | "write_iops" | "burst_ms" => None,
                "bandwidth" | "read_bandwidth" | "write_bandwidth" => None,
                other => panic!("say here what values `{other}` of {module:?} can have"),
            };
            if let Some(value) = value {
                assert_eq!(option.check(value), Ok(()), "{}", option.name);
                assert!(options.set(option, value));
            }
        }
        options
    }
}

/// Tells the volume the time, before each poll and behind it.
struct Clocked {
    volume: Box<dyn Volume>,
    now: Time,
}

impl Layer for Clocked {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.volume
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.volume
    }

    fn take(&mut self, io: Io) {
        self.volume.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.now = self.now + Duration::from_millis(1);
        self.volume.turn(self.now);
        self.volume.poll(done);
        self.volume.turn(self.now);
    }

    fn taken(&self) -> usize {
        self.volume.outstanding()
    }
}

/// Tells which tree it was, if one fails.
impl Drop for Grower {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}: {}", self.seed, self.shape);
        }
    }
}

#[test]
fn random_trees_are_volumes_like_any_other() {
    let mut uses = vec![0; modules().len()];
    let (mut leaves, mut ios, mut checked, mut overlaps) = (0, 0, 0, 0);
    for seed in 0..TREES {
        let mut grower = Grower::new(seed);
        let levels = grower.between(3, 5, 1) as usize;
        let mut volume = Clocked { volume: grower.tree(levels), now: Time(1 << 40) };
        let report = exercise(&mut volume, &mut || {}, seed, STEPS);
        assert!(report.ios > STEPS as u64 / 2, "{report:?}");
        ios += report.ios;
        checked += report.blocks_checked;
        overlaps += report.overlaps;
        leaves += grower.leaves;
        for (uses, module) in uses.iter_mut().zip(modules()) {
            *uses += grower.modules.iter().filter(|name| **name == module.name).count();
        }
    }
    println!(
        "{leaves} leaves, {uses:?} modules, {ios} I/Os, {overlaps} overlaps, {checked} blocks"
    );
    assert!(uses.iter().all(|uses| *uses > 200), "{uses:?}");
    assert!(
        ios > 200_000 && checked > 800_000 && overlaps > 50_000,
        "{ios}, {checked}, {overlaps}"
    );
}
