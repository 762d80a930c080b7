//! Volumes of volumes of volumes: 1,000 random trees of all modules, with random options, over stores of all kinds. Each must do what every volume
//! does; and where one of it is read-only, all that stands on that refuses to change it, and nothing changes it.

mod made;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use made::Maker;
use thinwire_buffer::{Pool, SegList, Time};
use thinwire_modules::meta::LABEL_AREA_BYTES;
use thinwire_modules::mirror::MIRROR_DATA_START;
use thinwire_modules::thin::METADATA_BYTES_LEAST;
use thinwire_modules::{
    Child, KEEPING_MODULES, Layout, Lie, MODULES, Module, Options, Readonly, Slice,
};
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, SplitMix64, exercise, finish};
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Layer, Op, Volume};

const TREES: u64 = 1000;
/// I/Os of each: few, as there are many trees.
const STEPS: usize = 250;
const CHILDREN_MAX: usize = 3;
/// No volume is smaller, whatever is cut off it: the smallest chunk.
const LEAST_BYTES: u64 = 4096;
/// A tree has no more of those that keep something on their parts: each takes some MiB.
const KEEPING_MAX: usize = 4;
/// What a volume with sums has in front of its data: its label, the bitmaps, and a block of sums that is not full.
const SUMS_BYTES: u64 = LABEL_AREA_BYTES + (1 << 20);
const THIN_BLOCKS: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// The modules that trees are made of which can be written: one that nobody can change makes the whole tree such a one.
fn modules() -> Vec<&'static Module> {
    let written = MODULES.iter().filter(|module| module.name != Readonly::NAME);
    written.chain(KEEPING_MODULES).collect()
}

/// One tree, and what it looks like.
struct Grower {
    seed: u64,
    rng: SplitMix64,
    pool: Pool,
    maker: Maker,
    /// All sizes and offsets are multiples of it: 512 if all blocks are.
    unit: u64,
    shape: String,
    leaves: usize,
    modules: Vec<&'static str>,
    /// Of each so many writes a leaf loses one; none if they are honest.
    lies: Option<u64>,
}

impl Grower {
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let unit = if rng.one_in(2) { 512 } else { 4096 };
        let pool = Pool::new(8 << 20);
        let maker = Maker::new(seed, &pool);
        let (shape, modules) = (String::new(), Vec::new());
        Grower { seed, rng, pool, maker, unit, shape, leaves: 0, modules, lies: None }
    }

    /// One from `least` to `most`, a multiple of `unit`, as both are.
    fn between(&mut self, least: u64, most: u64, unit: u64) -> u64 {
        least + self.rng.below((most - least) / unit + 1) * unit
    }

    /// So large at least.
    fn leaf(&mut self, least: u64) -> Box<dyn Volume> {
        self.leaves += 1;
        let least = least.max(2 * LEAST_BYTES);
        let bytes = self.between(least, least + (152 << 10), self.unit);
        let block = if self.unit == 512 || self.rng.one_in(2) { 512 } else { 4096 };
        let (in_memory, seed) = (self.rng.one_in(2), self.rng.next());
        let kind = if in_memory { "memory" } else { "file" };
        self.shape += &format!("{kind}:{bytes}/{block}");
        let leaf: Box<dyn Volume> = match in_memory {
            true => Box::new(MemoryStore::new(bytes, block, Identity::default(), &self.pool)),
            false => {
                let align = if block == 512 || self.rng.one_in(2) { 512 } else { 4096 };
                let store = FileStore::new(MemDisk::new(bytes, align, seed), block, &self.pool);
                Box::new(store.unwrap_or_else(|e| panic!("{e:?}")))
            }
        };
        let Some(one_in) = self.lies else { return leaf };
        let lie = Module::find(Lie::NAME).expect("it is for tests");
        let mut options = Options::default();
        options.set(lie.option("lost").expect("it can"), one_in);
        lie.open(vec![leaf], &options).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A module of at least so many bytes with so many levels of them below itself; with none it is a leaf.
    fn tree(&mut self, levels: usize, least: u64) -> Box<dyn Volume> {
        if levels == 0 {
            return self.leaf(least);
        }
        let kept = self.modules.iter().filter(|name| keeps(name)).count();
        let modules: Vec<_> = modules()
            .into_iter()
            .filter(|module| module.keeps.is_none() || kept < KEEPING_MAX)
            // Sums are of blocks of 4096 bytes.
            .filter(|module| module.name != "integrity" || self.unit == 4096)
            .collect();
        let module = modules[self.rng.below(modules.len() as u64) as usize];
        self.put(module, levels, least)
    }

    /// That module, likewise.
    fn put(&mut self, module: &'static Module, levels: usize, least: u64) -> Box<dyn Volume> {
        self.modules.push(module.name);
        self.shape += &format!("{}:[", module.name);
        let (options, needs, thin_bytes) = self.needs(module, least);
        let most = CHILDREN_MAX.min(*module.children.end());
        let first = *module.children.start();
        let count = self.between(first as u64, most as u64, 1);
        // One is as deep as it is said, the others are anything.
        let deep = self.rng.below(count);
        let mut volumes = Vec::new();
        for nth in 0..count {
            let levels =
                if nth == deep { levels - 1 } else { self.rng.below(levels as u64) as usize };
            let least = needs[needs.len().min(nth as usize + 1) - 1];
            volumes.push((self.tree(levels, least), least));
            self.shape += if nth + 1 < count { "," } else { "]" };
        }
        if module.keeps.is_some() {
            self.tell(&options);
            let mut parts = Vec::new();
            for (volume, least) in volumes {
                let volume = match module.name {
                    // What is discarded of it reads as noise, and the exercise wants to know what.
                    "crypt" => Box::new(Keeps(volume)),
                    _ => volume,
                };
                assert!(volume.geometry().bytes >= least);
                parts.push(volume);
            }
            self.maker.now = self.maker.now.max(Time(1 << 40));
            let volume = self.maker.keeping(module, parts, &options, thin_bytes);
            assert!(volume.geometry().bytes >= least, "{least}");
            return volume;
        }
        let children: Vec<_> =
            volumes.into_iter().map(|(volume, least)| self.child(volume, least)).collect();
        let options = self.options(module, &children, least);
        self.tell(&options);
        let volume = module.open_over(children, &options).unwrap_or_else(|e| panic!("{e}"));
        assert!(volume.geometry().bytes >= least, "{least}");
        volume
    }

    fn tell(&mut self, options: &Options) {
        let said: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !said.is_empty() {
            self.shape += &format!("?{}", said.join("&"));
        }
    }

    /// What a module that keeps something is told, how large each of its parts has to be at least so that it is, and of a pool how large its volume is.
    fn needs(&mut self, module: &Module, least: u64) -> (Options, Vec<u64>, u64) {
        let mut options = Options::default();
        let least = least.next_multiple_of(4096);
        let (needs, thin_bytes) = match module.name {
            "mirror" => (vec![MIRROR_DATA_START + least], 0),
            "thin" => {
                let block = THIN_BLOCKS[self.rng.below(4) as usize];
                options.set(module.option("block").expect("it can"), block);
                let bytes = self.between(least, least + (64 << 10), 4096);
                // All of it, and what is written before what it takes the place of is given back.
                let room = (bytes.div_ceil(block) + 16) * block;
                (vec![LABEL_AREA_BYTES + room, LABEL_AREA_BYTES + METADATA_BYTES_LEAST], bytes)
            }
            "crypt" => {
                let block = if self.unit == 512 || self.rng.one_in(2) { 512 } else { 4096 };
                options.set(module.option("block").expect("it can"), block);
                (vec![LABEL_AREA_BYTES + least], 0)
            }
            "integrity" => (vec![SUMS_BYTES + 8192 + least + least / 256], 0),
            _ => (vec![least], 0),
        };
        (options, needs.iter().map(|bytes| bytes.next_multiple_of(4096)).collect(), thin_bytes)
    }

    /// All of it, or some.
    fn child(&mut self, volume: Box<dyn Volume>, least: u64) -> Child {
        let units = (volume.geometry().bytes - least) / self.unit;
        if !self.rng.one_in(6) {
            return Child::all(vec![volume]).remove(0);
        }
        let start = self.between(0, units * self.unit, self.unit);
        let more = units * self.unit - start;
        let bytes = least + self.between(0, more, self.unit);
        self.shape += &format!("({start}+{bytes})");
        Child::within(volume, start, bytes).unwrap_or_else(|why| panic!("it {why}"))
    }

    /// Anything that it can be told over these.
    fn options(&mut self, module: &Module, children: &[Child], least: u64) -> Options {
        let count = children.len() as u64;
        let smallest = children.iter().map(|child| child.geometry().bytes).min().unwrap_or(0);
        let (mut options, mut offset) = (Options::default(), 0);
        for option in module.options {
            let value = match option.name {
                "chunk" => {
                    let drawn = match self.rng.one_in(4) {
                        true => None,
                        false => Some(self.between(4096, smallest / 4096 * 4096, 4096)),
                    };
                    let chunk = drawn.unwrap_or(64 << 10);
                    let is_enough = count * (smallest / chunk * chunk) >= least;
                    if is_enough { drawn } else { Some(4096) }
                }
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
                    let units = (smallest - least) / self.unit;
                    offset = self.between(0, units * self.unit, self.unit);
                    Some(offset)
                }
                "size" => {
                    let units = (smallest - offset - least) / self.unit;
                    Some(self.between(least, least + units * self.unit, self.unit))
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
                // Who opens several has those of one number share a budget: by itself a volume does not ask for that.
                "share" => None,
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

/// A module of that name keeps something on its parts.
fn keeps(name: &str) -> bool {
    KEEPING_MODULES.iter().any(|module| module.name == name)
}

/// A volume on which a discard does nothing.
struct Keeps(Box<dyn Volume>);

impl Layer for Keeps {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.0
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.0
    }

    fn take(&mut self, io: Io) {
        match io.op {
            Op::Discard => self.0.submit(Io::new(io.token, Op::Flush, 0, 0)),
            _ => self.0.submit(io),
        }
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.0.poll(done);
    }

    fn taken(&self) -> usize {
        self.0.outstanding()
    }
}

/// Tells which tree it was, if one fails.
impl Drop for Grower {
    fn drop(&mut self) {
        if std::thread::panicking() && self.lies.is_none() {
            eprintln!("seed {}: {}", self.seed, self.shape);
        }
    }
}

/// A tree, in the time that it was made in.
fn grown(grower: &mut Grower) -> Clocked {
    let levels = grower.between(3, 5, 1) as usize;
    let volume = grower.tree(levels, LEAST_BYTES);
    Clocked { volume, now: grower.maker.now }
}

/// It ends in order: nothing is left that it would have to do.
fn wind_up(volume: &mut Clocked) {
    volume.wind_up();
    let mut done = Vec::new();
    let ends = (0..200_000).any(|_| {
        volume.bring(&mut done);
        volume.is_wound_up()
    });
    assert!(ends && done.is_empty(), "it does not end, {done:?}");
}

#[test]
fn random_trees_are_volumes_like_any_other() {
    let mut uses = vec![0; modules().len()];
    let (mut leaves, mut ios, mut checked, mut overlaps) = (0, 0, 0, 0);
    for seed in 0..TREES {
        let mut grower = Grower::new(seed);
        let mut volume = grown(&mut grower);
        let report = exercise(&mut volume, &mut || {}, seed, STEPS);
        assert!(report.ios > STEPS as u64 / 2, "{report:?}");
        wind_up(&mut volume);
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

/// The same trees on leaves that lose some of what they are told: it is found, but where another has it, or nobody reads it.
#[test]
fn leaves_that_lie_are_found() {
    let found = (0..40).filter(|seed| {
        let mut grower = Grower::new(*seed);
        grower.lies = Some(20);
        let tried = AssertUnwindSafe(|| {
            let mut volume = grown(&mut grower);
            exercise(&mut volume, &mut || {}, *seed, STEPS);
        });
        catch_unwind(tried).is_err()
    });
    let found = found.count();
    println!("{found} of 40 are found");
    assert!(found >= 25, "{found}");
}

/// Counts what would change it.
struct Watched(Box<dyn Volume>, Rc<Cell<u64>>);

impl Layer for Watched {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.0
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.0
    }

    fn take(&mut self, io: Io) {
        self.1.set(self.1.get() + u64::from(io.op.is_write()));
        self.0.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.0.poll(done);
    }

    fn taken(&self) -> usize {
        self.0.outstanding()
    }
}

/// All of it.
fn image(volume: &mut Clocked) -> Vec<u8> {
    let Geometry { bytes, io_bytes_max, .. } = volume.geometry();
    let longest = u64::from(io_bytes_max).min(64 << 10);
    let mut image = Vec::new();
    while (image.len() as u64) < bytes {
        let at = image.len() as u64;
        let read = finish(volume, &mut || {}, Io::new(1, Op::Read, at, longest.min(bytes - at)));
        assert_eq!(read.result, Ok(()));
        image.extend(read.data.to_vec());
    }
    image
}

/// A write of any kind of some blocks somewhere, in a volume of that shape.
fn change(shape: &Geometry, rng: &mut SplitMix64, pool: &Pool) -> Io {
    let block = u64::from(shape.block_bytes);
    let blocks = shape.bytes / block;
    let count = 1 + rng.below(blocks.min(8).min(u64::from(shape.io_bytes_max) / block));
    let at = rng.below(blocks - count + 1);
    let op = [Op::Write, Op::WriteZeroes, Op::Discard][rng.below(3) as usize];
    let mut io = Io::new(7, op, at * block, count * block);
    io.flags.fua = rng.one_in(4);
    if op == Op::Write {
        let bytes = vec![rng.next() as u8 | 1; io.len as usize];
        io.data = SegList::of(pool.copy_of(&bytes).freeze());
    }
    io
}

/// Puts one over a tree that holds something, and trees over that, and tries to change it: whoever asks as doors ask is refused, and nothing
/// has changed anywhere.
fn try_to_change(seed: u64, module: &'static str) -> Result<(), String> {
    let (module, changes) = (Module::find(module).expect("there is one"), Rc::default());
    let mut grower = Grower::new(seed);
    let levels = grower.between(1, 3, 1) as usize;
    let volume = grower.tree(levels, LEAST_BYTES);
    let mut below = Clocked { volume, now: grower.maker.now };
    let (mut rng, pool) = (SplitMix64::new(seed), grower.pool.clone());
    for _ in 0..20 {
        let io = change(&below.geometry(), &mut rng, &pool);
        if below.geometry().check(&io) == Ok(()) {
            assert_eq!(finish(&mut below, &mut || {}, io).result, Ok(()));
        }
    }
    let flushed = finish(&mut below, &mut || {}, Io::new(1, Op::Flush, 0, 0));
    assert_eq!(flushed.result, Ok(()));
    let Clocked { volume, now } = below;
    let watched = Box::new(Watched(volume, Rc::clone(&changes)));
    let (mut volume, options) =
        (module.open(vec![watched], &Options::default()), Options::default());
    let plain: Vec<_> = modules().into_iter().filter(|module| module.keeps.is_none()).collect();
    for _ in 0..rng.below(4) {
        let below = volume.unwrap_or_else(|e| panic!("{e}"));
        let module = plain[rng.below(plain.len() as u64) as usize];
        let bytes = below.geometry().bytes;
        let mut children = vec![grower.child(below, bytes)];
        if *module.children.end() > 1 && rng.one_in(2) {
            let leaf = grower.leaf(LEAST_BYTES);
            children.push(grower.child(leaf, LEAST_BYTES));
        }
        let options = match module.name {
            "slice" | "stripe" => grower.options(module, &children, LEAST_BYTES),
            "cache" => grower.options(module, &children, LEAST_BYTES),
            _ => options.clone(),
        };
        volume = module.open_over(children, &options);
    }
    let mut top = Clocked { volume: volume.unwrap_or_else(|e| panic!("{e}")), now };
    let before = image(&mut top);
    let changed_before = changes.get();
    for _ in 0..40 {
        let shape = top.geometry();
        let io = change(&shape, &mut rng, &pool);
        let op = io.op;
        match shape.check(&io) {
            Err(ErrorKind::ReadOnly) => {}
            checked => {
                return Err(format!("a {op} is {checked:?}"));
            }
        }
    }
    assert_eq!(finish(&mut top, &mut || {}, Io::new(1, Op::Flush, 0, 0)).result, Ok(()));
    if image(&mut top) != before {
        return Err("it reads otherwise".into());
    }
    wind_up(&mut top);
    match changes.get() - changed_before {
        0 => Ok(()),
        count => Err(format!("it was changed {count} times")),
    }
}

#[test]
fn what_stands_on_what_is_read_only_changes_nothing() {
    for seed in 0..200 {
        try_to_change(seed, Readonly::NAME).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// The same over one that can be changed.
#[test]
fn what_is_not_read_only_is_found() {
    let found = (0..20).filter(|seed| try_to_change(*seed, Slice::NAME).is_err()).count();
    assert_eq!(found, 20);
}
