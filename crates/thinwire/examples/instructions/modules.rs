//! The same of a module over memory, without a network: what it adds is what the row of `memory` has not.

use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Pool, SegList, Segment, Time};
use thinwire_modules::meta::{Label, LabelOutcome, Labels, NewPart, NewWhole, label_parts};
use thinwire_modules::mirror::{
    DrawGeneration, Generation, LEG_LABEL_TOKEN, Mirror, MirrorConfig, MirrorLeg, MirrorState,
    OpeningWish,
};
use thinwire_modules::thin::{NewPool, POOL_LABEL_TOKEN, PoolConfig, PoolOp, PoolPart, ThinPool};
use thinwire_modules::{
    CRYPT_SEALED_BYTES, Child, Crypt, CryptState, Integrity, IntegrityConfig, IntegrityState,
    Metered, Module, Options, SumMaking,
};
use thinwire_runtime::stages::StageClocks;
use thinwire_runtime::xts::Aes256Xts;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, Identity, Io, IoFlags, Op, Token, Volume};

use super::BLOCK_BYTES;

/// What is used of each.
const BYTES: u64 = 4 << 20;
/// Of each part.
const PART_BYTES: u64 = 24 << 20;
const BLOCK_OF_POOL: u32 = 64 << 10;
const WHOLE: [u8; 16] = [9; 16];
/// Between two polls.
const TURN: Duration = Duration::from_micros(20);

/// The same ones each time.
struct Counted(u8);

impl DrawGeneration for Counted {
    fn draw(&mut self) -> Generation {
        self.0 += 1;
        [self.0; 16]
    }
}

/// A volume that is driven as whoever stands on it drives it.
pub struct Driven {
    volume: Box<dyn Volume>,
    is_timed: bool,
    now: Time,
}

impl Driven {
    /// The module of that name; `memory` for none, `write-back` for a cache that takes writes in.
    pub fn new(name: &str, pool: &Pool) -> Self {
        Driven::of(match name {
            "memory" => store(pool),
            // What stands over each volume of a tree, for whoever looks.
            "meter" => metered(store(pool)),
            "write-back" => over("cache", &[("write_back", 16 << 20)], vec![store(pool)]),
            "mirror" => mirror(pool),
            "thin" => thin(pool),
            "crypt" => crypt(pool),
            "integrity" => integrity(pool),
            // Of limits that hold back nothing.
            "qos" => over(name, &[("iops", 1_000_000_000)], vec![store(pool)]),
            "linear" | "stripe" => over(name, &[], vec![store(pool), store(pool)]),
            _ => over(name, &[], vec![store(pool)]),
        })
    }

    fn of(volume: Box<dyn Volume>) -> Self {
        Driven { is_timed: volume.is_timed(), volume, now: Time(1 << 40) }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.now = self.now + TURN;
        if self.is_timed {
            self.volume.turn(self.now);
        }
        self.volume.poll(done);
        if self.is_timed {
            self.volume.turn(self.now);
        }
    }

    fn finish(&mut self, io: Io) {
        let mut done = Vec::new();
        self.volume.submit(io);
        while done.is_empty() {
            self.poll(&mut done);
        }
        done.remove(0).result.expect("memory fails nothing");
    }

    /// All of what is used has been written, and is on record.
    pub fn warm(&mut self, content: &Segment) {
        for at in (0..BYTES).step_by(BLOCK_BYTES as usize) {
            // What nobody can change has what it stands on.
            if self.volume.geometry().features.read_only {
                return;
            }
            let data = SegList::of(content.clone());
            self.finish(Io { data, ..Io::new(1, Op::Write, at, BLOCK_BYTES) });
        }
        self.finish(Io::new(1, Op::Flush, 0, 0));
    }

    /// I/Os of 4 KiB at random, so many of them outstanding.
    pub fn run(&mut self, op: Op, count: u64, depth: u64, content: &Segment) {
        let (mut submitted, mut completed) = (0, 0);
        let mut done = Vec::with_capacity(2 * depth as usize);
        let mut state = 1u64;
        while completed < count {
            while submitted < count && submitted - completed < depth {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let offset = (state >> 33) % (BYTES / BLOCK_BYTES) * BLOCK_BYTES;
                let mut io = Io::new(submitted, op, offset, BLOCK_BYTES);
                if op == Op::Write {
                    io.data = SegList::of(content.clone());
                }
                self.volume.submit(io);
                submitted += 1;
            }
            self.poll(&mut done);
            for completion in done.drain(..) {
                completion.result.expect("memory fails nothing");
                completed += 1;
            }
        }
    }
}

fn store(pool: &Pool) -> Box<dyn Volume> {
    Box::new(MemoryStore::new(PART_BYTES, 512, Identity::default(), pool))
}

/// A clock for stages that does not run.
fn metered(below: Box<dyn Volume>) -> Box<dyn Volume> {
    let clock = Rc::new(StageClocks::new());
    Box::new(Metered::new(below, Rc::default(), Some(Rc::default()), Some(clock)))
}

fn module(name: &str) -> &'static Module {
    Module::find(name).unwrap_or_else(|| panic!("there is no module {name}"))
}

fn over(name: &str, said: &[(&str, u64)], parts: Vec<Box<dyn Volume>>) -> Box<dyn Volume> {
    let mut options = Options::default();
    for (option, value) in said {
        options.set(module(name).option(option).expect("it has that"), *value);
    }
    module(name).open(parts, &options).expect("it fits")
}

/// Labels of new parts, with what `state` says of each; none is written.
fn labels(name: &str, parts: &[Box<dyn Volume>]) -> Vec<Label> {
    let new: Vec<_> = (1..)
        .zip(parts)
        .map(|(number, part)| NewPart {
            uuid: [number; 16],
            content: part.identity(),
            bytes: part.geometry().bytes,
        })
        .collect();
    let sizes: Vec<_> = new.iter().map(|new| (new.data_bytes(module(name)), 512)).collect();
    let keeps = module(name).keeps.as_ref().expect("it keeps something");
    let (options, bytes) = (Options::default(), (keeps.bytes)(&sizes));
    let whole =
        NewWhole { name: "whole", uuid: WHOLE, module: module(name), options: &options, bytes };
    label_parts(&whole, &new).expect("it fits")
}

/// Writes a label to its part.
fn label(part: &mut dyn Volume, label: &Label, token: Token, pool: &Pool) -> Labels {
    let mut labels = Labels::new(token, pool);
    labels.read(part).expect("it fits");
    while labels.turn(part).is_none() {}
    labels.write(label, part).expect("it fits");
    let written = std::iter::repeat_with(|| labels.turn(part)).flatten().next();
    assert!(matches!(written, Some(LabelOutcome::Written(Ok(_)))));
    labels
}

fn mirror(pool: &Pool) -> Box<dyn Volume> {
    let parts = vec![store(pool), store(pool)];
    let made = labels("mirror", &parts);
    let mut generations = Counted(0);
    let states = MirrorState::of_new(2, (made[0].whole_bytes, 512), 0, &mut generations);
    let mut legs = Vec::new();
    for ((mut volume, mut made), state) in parts.into_iter().zip(made).zip(states) {
        made.state = state.encode();
        let labels = label(&mut *volume, &made, LEG_LABEL_TOKEN, pool);
        legs.push(Some(MirrorLeg { volume, labels, label: made }));
    }
    let config = MirrorConfig {
        generations: Box::new(generations),
        pool: pool.clone(),
        wish: OpeningWish::default(),
        read_only: false,
        opened_at: 0,
        leg_timeout: Duration::from_secs(5),
        keeper: None,
    };
    let mut driven = Driven::of(Box::new(Mirror::open(legs, config).expect("both are there")));
    // The first is copied to the second.
    while !driven.volume.all_mirrors().iter().all(|mirror| mirror.is_settled()) {
        driven.now = driven.now + Duration::from_millis(1);
        driven.poll(&mut Vec::new());
    }
    driven.volume
}

fn thin(pool: &Pool) -> Box<dyn Volume> {
    let mut parts = vec![store(pool), store(pool)];
    let mut made = labels("thin", &parts);
    let new = NewPool {
        block_bytes: BLOCK_OF_POOL,
        data_bytes: made[0].part().bytes,
        metadata_bytes: made[1].part().bytes,
    };
    let states = new.states().expect("it fits");
    made.iter_mut().zip(states).for_each(|(label, state)| label.state = state);
    let (mut metadata, data) = (parts.remove(1), parts.remove(0));
    let (of_metadata, of_data) = (made.remove(1), made.remove(0));
    let labels = label(&mut *metadata, &of_metadata, POOL_LABEL_TOKEN, pool);
    let unread = Labels::new(POOL_LABEL_TOKEN, pool);
    let data = PoolPart { volume: data, labels: unread, label: of_data };
    let metadata = PoolPart { volume: metadata, labels, label: of_metadata };
    let thin = ThinPool::open(data, metadata, PoolConfig::new(pool)).expect("it fits");
    let mut ended = Vec::new();
    thin.poll();
    thin.begin(PoolOp::Create { name: "a".into(), bytes: BYTES, incarnation: 1, at: 0 });
    while ended.is_empty() {
        thin.poll();
        thin.poll_ops(&mut ended);
    }
    let volume = thin.open_volume(1).expect("it was created");
    let mut driven = Driven::of(Box::new(volume));
    let flags = IoFlags { no_hole: true, ..IoFlags::default() };
    driven.finish(Io { flags, ..Io::new(1, Op::WriteZeroes, 0, BYTES) });
    driven.volume
}

fn crypt(pool: &Pool) -> Box<dyn Volume> {
    let part = Child::all(vec![store(pool)]).remove(0);
    let key = std::array::from_fn(|at| at as u8);
    let cipher = Aes256Xts::new(&key).expect("two different halves");
    let state = CryptState::new(4096, [1; 8], [2; 12], [3; CRYPT_SEALED_BYTES]);
    Box::new(Crypt::open(part, Box::new(cipher), &state, WHOLE, pool).expect("it fits"))
}

fn integrity(pool: &Pool) -> Box<dyn Volume> {
    let mut store = store(pool);
    let mut making = SumMaking::new(1, pool, WHOLE, 0, PART_BYTES);
    let made = std::iter::repeat_with(|| making.turn(&mut *store)).flatten().next();
    assert_eq!(made, Some(Ok(())));
    let state = IntegrityState::new(thinwire_modules::SumLayout::of(PART_BYTES).bytes);
    let part = Child::all(vec![store]).remove(0);
    let config = IntegrityConfig::new(pool);
    Box::new(Integrity::open(part, state, WHOLE, config).expect("it fits"))
}
