//! Modules that keep something on their parts, made and opened over any volumes as whoever creates one does it: for tests of trees.

use std::time::Duration;

use thinwire_buffer::{Pool, Time};
use thinwire_modules::meta::{
    Finding, Label, LabelOutcome, Labels, MadePart, NewPart, NewWhole, WholeMaking, label_parts,
};
use thinwire_modules::mirror::{
    DrawGeneration, Generation, LEG_LABEL_TOKEN, Mirror, MirrorConfig, MirrorLeg, MirrorState,
    OpeningWish,
};
use thinwire_modules::thin::{
    NewPool, POOL_LABEL_TOKEN, PoolConfig, PoolOp, PoolPart, ThinPool, block_bytes,
};
use thinwire_modules::{
    CRYPT_SEALED_BYTES, Child, Crypt, CryptState, Integrity, IntegrityConfig, IntegrityState,
    Module, Options, SumLayout, SumMaking, XtsCipher,
};
use thinwire_volume::Volume;
use thinwire_volume::testing::SplitMix64;

/// Of a clock that goes on by a millisecond each time, so many are more than anything takes.
const TURNS_MAX: usize = 1_000_000;

/// Who makes and opens them.
pub struct Maker {
    pub rng: SplitMix64,
    pub pool: Pool,
    pub now: Time,
}

impl Maker {
    pub fn new(seed: u64, pool: &Pool) -> Self {
        Maker { rng: SplitMix64::new(seed), pool: pool.clone(), now: Time(1 << 40) }
    }

    /// Lets time pass until it says so.
    pub fn wait<T>(
        &mut self,
        volume: &mut dyn Volume,
        mut ended: impl FnMut(&mut dyn Volume) -> Option<T>,
    ) -> T {
        for _ in 0..TURNS_MAX {
            self.now = self.now + Duration::from_millis(1);
            volume.turn(self.now);
            if let Some(ended) = ended(volume) {
                return ended;
            }
        }
        panic!("it never ends");
    }

    /// Puts such a module over parts on which nothing is: of a pool a volume of so many bytes.
    pub fn keeping(
        &mut self,
        module: &'static Module,
        mut parts: Vec<Box<dyn Volume>>,
        options: &Options,
        thin_bytes: u64,
    ) -> Box<dyn Volume> {
        let whole = draw(&mut self.rng);
        self.label(module, &mut parts, options, whole);
        let token = match module.name {
            "mirror" => LEG_LABEL_TOKEN,
            "thin" => POOL_LABEL_TOKEN,
            _ => 0,
        };
        let mut labels = Vec::new();
        for part in &mut parts {
            let (labels_of, found) = self.read(&mut **part, token);
            let Finding::Label(found) = found else { panic!("it has just got one") };
            labels.push((labels_of, found.label));
        }
        let mut parts = parts.into_iter().zip(labels);
        match module.name {
            "mirror" => {
                let leg = |(volume, (labels, label))| Some(MirrorLeg { volume, labels, label });
                let config = MirrorConfig {
                    generations: Box::new(Generations(SplitMix64::new(self.rng.next()))),
                    pool: self.pool.clone(),
                    wish: OpeningWish::default(),
                    read_only: false,
                    opened_at: 0,
                    leg_timeout: Duration::from_secs(60),
                    keeper: None,
                };
                let mirror = Mirror::open(parts.map(leg).collect(), config);
                Box::new(mirror.unwrap_or_else(|e| panic!("{e}")))
            }
            "thin" => {
                let mut part = || {
                    let (volume, (labels, label)) = parts.next().expect("there are two");
                    PoolPart { volume, labels, label }
                };
                let (data, metadata) = (part(), part());
                self.thin(data, metadata, thin_bytes)
            }
            "crypt" => {
                let (volume, (_, label)) = parts.next().expect("there is one");
                let state = CryptState::decode(&label.state).unwrap_or_else(|e| panic!("{e}"));
                let crypt =
                    Crypt::open(data_of(volume, &label), Box::new(Mask), &state, whole, &self.pool);
                Box::new(crypt.unwrap_or_else(|e| panic!("{e}")))
            }
            "integrity" => {
                let (volume, (_, label)) = parts.next().expect("there is one");
                let state = IntegrityState::decode(&label.state, label.whole_bytes);
                let state = state.unwrap_or_else(|e| panic!("{e}"));
                // Little enough that sums have to go, in some.
                let cache_bytes = if self.rng.one_in(2) { 4096 } else { 1 << 20 };
                let config = IntegrityConfig { cache_bytes, ..IntegrityConfig::new(&self.pool) };
                let sums = Integrity::open(data_of(volume, &label), state, whole, config);
                Box::new(sums.unwrap_or_else(|e| panic!("{e}")))
            }
            other => panic!("say here how {other} is opened"),
        }
    }

    fn read(&mut self, part: &mut dyn Volume, token: u64) -> (Labels, Finding) {
        let mut labels = Labels::new(token, &self.pool);
        labels.read(part).unwrap_or_else(|e| panic!("{e}"));
        let found = self.wait(part, |part| match labels.turn(part)? {
            LabelOutcome::Read(found) => Some(found),
            other => panic!("{other:?}"),
        });
        (labels, found.unwrap_or_else(|e| panic!("{e}")))
    }

    fn label(
        &mut self,
        module: &'static Module,
        parts: &mut [Box<dyn Volume>],
        options: &Options,
        uuid: [u8; 16],
    ) {
        let new = parts.iter().map(|part| NewPart {
            uuid: draw(&mut self.rng),
            content: part.identity(),
            bytes: part.geometry().bytes,
        });
        let new: Vec<_> = new.collect();
        let blocks = parts.iter().map(|part| part.geometry().block_bytes);
        let sizes: Vec<_> =
            new.iter().map(|new| new.data_bytes(module)).zip(blocks.clone()).collect();
        let bytes = module.bytes_of(options, &sizes).unwrap_or_else(|e| panic!("{e}"));
        let whole = NewWhole { name: "whole", uuid, module, options, bytes };
        let mut made = label_parts(&whole, &new).unwrap_or_else(|e| panic!("{e}"));
        let mut sums = None;
        match module.name {
            "mirror" => {
                let mut generations = Generations(SplitMix64::new(self.rng.next()));
                let size = (bytes, blocks.max().expect("it has legs"));
                let states = MirrorState::of_new(made.len(), size, 0, &mut generations);
                made.iter_mut().zip(states).for_each(|(label, state)| label.state = state.encode());
            }
            "thin" => {
                let (data_bytes, metadata_bytes) = (made[0].part().bytes, made[1].part().bytes);
                let pool =
                    NewPool { block_bytes: block_bytes(options), data_bytes, metadata_bytes };
                let states = pool.states().unwrap_or_else(|e| panic!("{e}"));
                made.iter_mut().zip(states).for_each(|(label, state)| label.state = state);
            }
            "crypt" => {
                let block = Crypt::block_bytes(options).expect("512 or 4096");
                let state = CryptState::new(block, [1; 8], [2; 12], [3; CRYPT_SEALED_BYTES]);
                made[0].state = state.encode();
            }
            _ => {
                let (start, part_bytes) = (made[0].data_start, made[0].part().bytes);
                assert_eq!(SumLayout::of(part_bytes).bytes, bytes);
                made[0].state = IntegrityState::new(bytes).encode();
                sums = Some(SumMaking::new(0, &self.pool, uuid, start, part_bytes));
            }
        }
        let mut to_make = Vec::new();
        for (part, label) in parts.iter_mut().zip(made) {
            let mut labels = Labels::new(0, &self.pool);
            labels.read(&mut **part).unwrap_or_else(|e| panic!("{e}"));
            // On one that is encrypted there is noise.
            let found = self.wait(&mut **part, |part| labels.turn(part));
            let is_occupied = !matches!(found, LabelOutcome::Read(Ok(Finding::Blank)));
            to_make.push(MadePart { labels, label, is_occupied, marks: Vec::new() });
        }
        let mut making = WholeMaking::new(0, &self.pool, to_make);
        while let Some(at) = making.part() {
            let part = &mut *parts[at];
            if making.is_cleared()
                && let Some(mut sums) = sums.take()
            {
                let made = self.wait(part, |part| sums.turn(part));
                made.unwrap_or_else(|e| panic!("{e}"));
            }
            let made = self.wait(part, |part| making.turn(part));
            made.unwrap_or_else(|e| panic!("{e}"));
        }
    }

    fn thin(&mut self, data: PoolPart, metadata: PoolPart, bytes: u64) -> Box<dyn Volume> {
        let pool = ThinPool::open(data, metadata, PoolConfig::new(&self.pool));
        let pool = pool.unwrap_or_else(|e| panic!("{e}"));
        let create = PoolOp::Create { name: "a".into(), bytes, incarnation: 1, at: 0 };
        let mut ended = Vec::new();
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "the pool makes no volume: {:?}", pool.stopped());
            self.now = self.now + Duration::from_millis(1);
            pool.turn(self.now);
            pool.poll();
            if turn == 0 {
                pool.begin(create.clone());
            }
            pool.poll_ops(&mut ended);
            if let Some((_, ended)) = ended.pop() {
                ended.unwrap_or_else(|e| panic!("{e}"));
                break;
            }
        }
        let number = pool.report().volumes[0].volume;
        let volume = pool.open_volume(number);
        Box::new(volume.unwrap_or_else(|e| panic!("{e}")))
    }
}

/// What a part has for data.
fn data_of(volume: Box<dyn Volume>, label: &Label) -> Child {
    let child = Child::within(volume, label.data_start, label.part().bytes);
    child.unwrap_or_else(|why| panic!("it {why}"))
}

/// A number that nobody has drawn, and not zero.
fn draw(rng: &mut SplitMix64) -> [u8; 16] {
    (u128::from(rng.next()) << 64 | u128::from(rng.next() | 1)).to_le_bytes()
}

struct Generations(SplitMix64);

impl DrawGeneration for Generations {
    fn draw(&mut self) -> Generation {
        draw(&mut self.0)
    }
}

/// What is taken for AES here: each block in another way, and the same way back.
struct Mask;

impl Mask {
    fn apply(block_bytes: usize, first: u64, bytes: &mut [u8]) {
        for (block, bytes) in (first..).zip(bytes.chunks_mut(block_bytes)) {
            let mask = SplitMix64::new(block).next().to_le_bytes();
            for word in bytes.chunks_mut(8) {
                word.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
            }
        }
    }
}

impl XtsCipher for Mask {
    fn encrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        Mask::apply(block_bytes, first, bytes);
    }

    fn decrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        Mask::apply(block_bytes, first, bytes);
    }
}
