//! [`World`]: a whole of volumes of several pools, each on disks of its own, and writers who write here and there by turns.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Pool as Memory, SegList, Time};
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Completion, Io, Layer, Op, Volume};

use super::super::*;
use crate::meta::{
    Finding, LABEL_AREA_BYTES, Label, LabelFeatures, LabelOutcome, LabelPart, Labels,
};
use crate::thin::tests::disk::{Clock, Content, Disk, NOBODYS, SECTOR, sector_of};
use crate::thin::tests::made::{BLOCK, METADATA, labels, make, open};
use crate::thin::{PoolConfig, PoolOp, ThinPool};
use crate::{Child, Options};

/// Bytes of data of each part.
pub const PART_BYTES: u64 = 4 * BLOCK;
/// Writers who go from part to part, each with a sector of its own in both.
pub const CHAINS: usize = 2;
/// The one behind those writes over the border of the two parts.
pub const BORDER: usize = CHAINS;
const BLOCKS: u64 = 320;
/// The first volume of each pool.
const VOLUME: u64 = 1;

/// What stands on the disks of a pool: data and metadata.
pub type Image = [Content; 2];

/// A part that is far away: what is submitted comes there later, each for itself.
struct Far {
    below: Box<dyn Volume>,
    on_its_way: Vec<Io>,
    random: SplitMix64,
    is_near: Rc<Cell<bool>>,
}

impl Layer for Far {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    fn take(&mut self, io: Io) {
        self.on_its_way.push(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let is_near = self.is_near.get();
        let random = &mut self.random;
        for io in self.on_its_way.extract_if(.., |_| is_near || random.one_in(3)) {
            self.below.submit(io);
        }
        self.below.poll(done);
    }

    fn taken(&self) -> usize {
        self.on_its_way.len() + self.below.outstanding()
    }
}

/// A whole that is open.
pub struct Up {
    pub disks: Vec<[Disk; 2]>,
    pub pools: Vec<ThinPool>,
    pub top: CutVolume,
    pub cuts: Cutter,
    /// All parts are near.
    pub is_near: Rc<Cell<bool>>,
}

/// A whole of two parts, as it was made.
pub fn made() -> Vec<Image> {
    let parts = (0..2).map(|_| {
        let (up, [data, metadata]) =
            pool_over([Content::new(), Content::new()], 0, &Clock::default(), true);
        let bytes = LABEL_AREA_BYTES + PART_BYTES;
        up.begin(PoolOp::Create { name: "v".into(), bytes, incarnation: 1, at: 0 });
        rest(&up);
        let mut volume = up.open_volume(VOLUME).unwrap();
        let mut labels = Labels::new(CUT_LABEL_TOKEN, &Memory::new(0));
        labels.read(&mut volume).unwrap();
        while labels.turn(&mut volume).is_none() {}
        for _ in 0..3 {
            labels.write(&label(), &mut volume).unwrap();
            while labels.turn(&mut volume).is_none() {}
        }
        drop(volume);
        rest(&up);
        [data.content(), metadata.content()]
    });
    parts.collect()
}

/// Of the first part; what the other one says nobody looks at.
pub fn label() -> Label {
    Label {
        generation: 1,
        features: LabelFeatures::default(),
        module: &crate::linear::MODULE,
        options: Options::default(),
        whole: [3; 16],
        name: "whole".into(),
        whole_bytes: 2 * PART_BYTES,
        parts: [4, 5].map(|uuid| LabelPart { uuid: [uuid; 16], bytes: PART_BYTES }).to_vec(),
        role: 0,
        data_start: LABEL_AREA_BYTES,
        opening: [0; 16],
        next_opening: [0; 16],
        openings: 0,
        content: Default::default(),
        writer: None,
        cut: 0,
        cut_begun: 0,
        made_bytes: None,
        work: None,
        state: Vec::new(),
    }
}

fn pool_over(image: Image, seed: u64, clock: &Clock, is_new: bool) -> (ThinPool, [Disk; 2]) {
    let [data, metadata] = image;
    let data = Disk::new(LABEL_AREA_BYTES + BLOCKS * BLOCK, data, NOBODYS, clock, seed);
    let metadata = Disk::new(LABEL_AREA_BYTES + METADATA, metadata, 0, clock, seed + 7);
    let [of_data, of_metadata] = labels(BLOCKS, METADATA);
    if is_new {
        make(&mut metadata.clone(), &of_metadata);
    }
    let config = PoolConfig::new(&Memory::new(1 << 20));
    let pool = open(Box::new(data.clone()), Box::new(metadata.clone()), of_data, config).unwrap();
    while !pool.is_ready() {
        pool.poll();
    }
    (pool, [data, metadata])
}

fn rest(pool: &ThinPool) {
    while !pool.is_idle() {
        pool.commit();
        pool.poll();
    }
}

impl Up {
    /// Over what is there.
    pub fn over(images: Vec<Image>, seed: u64, clock: &Clock, canary: CutCanary) -> Self {
        let (mut disks, mut pools, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let is_near = Rc::new(Cell::new(true));
        for (nth, image) in (0..).zip(images) {
            let (pool, both) = pool_over(image, seed * 3 + nth * 13, clock, false);
            let far = Far {
                below: Box::new(pool.open_volume(VOLUME).unwrap()),
                on_its_way: Vec::new(),
                random: SplitMix64::new(seed * 5 + nth),
                is_near: is_near.clone(),
            };
            parts.push(Box::new(far) as Box<dyn Volume>);
            pools.push(pool);
            disks.push(both);
        }
        let memory = Memory::new(1 << 20);
        let mut labels = Labels::new(CUT_LABEL_TOKEN, &memory);
        labels.read(&mut *parts[0]).unwrap();
        let found = loop {
            if let Some(LabelOutcome::Read(Ok(Finding::Label(found)))) = labels.turn(&mut *parts[0])
            {
                break found;
            }
        };
        let (first, record) = Recorder::new(parts.remove(0), labels, found.label);
        let parts = [Box::new(first) as Box<dyn Volume>].into_iter().chain(parts);
        let within = |part| Child::within(part, LABEL_AREA_BYTES, PART_BYTES).unwrap();
        let whole =
            crate::linear::MODULE.open_over(parts.map(within).collect(), &Options::default());
        let (mut top, cuts) = CutVolume::new(whole.unwrap(), record, &memory);
        top.set_canary(canary);
        Up { disks, pools, top, cuts, is_near }
    }

    /// Until nothing is left to do.
    pub fn settle(&mut self) {
        let mut done = Vec::new();
        for _ in 0..10_000 {
            self.top.turn(Time::ZERO);
            self.top.poll(&mut done);
            if !self.top.is_busy() && self.pools.iter().all(ThinPool::is_idle) {
                return;
            }
            self.pools.iter().for_each(ThinPool::commit);
        }
        panic!("it does not come to rest");
    }

    /// The snapshots of cuts in a pool: their numbers there, which cuts they are of, and whether they are kept.
    pub fn cuts_of(&self, part: usize) -> Vec<(u64, u64, bool)> {
        let volumes = self.pools[part].report().volumes;
        let of_cut =
            volumes.into_iter().filter_map(|of| Some((of.volume, of.incarnation, of.cut?)));
        of_cut.collect()
    }

    /// What sectors of the data say in a snapshot of a part.
    pub fn says(&self, part: usize, snapshot: u64, sectors: &[u64]) -> Vec<u64> {
        let mut volume = self.pools[part].open_volume(snapshot).unwrap();
        let mut done = Vec::new();
        let one = |sector: &u64| {
            volume.submit(Io::new(1, Op::Read, LABEL_AREA_BYTES + sector * SECTOR, SECTOR));
            while done.is_empty() {
                volume.poll(&mut done);
            }
            let completion: Completion = done.remove(0);
            completion.result.unwrap();
            u64::from_le_bytes(completion.data.to_vec()[..8].try_into().unwrap())
        };
        sectors.iter().map(one).collect()
    }
}

/// A cut that was asked for, as its user sees it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub id: u64,
    pub begun: u64,
    /// What each writer had been told of as written by the time it was asked for.
    pub at_least: [u64; CHAINS + 1],
    /// What each had submitted when it ended; all, if it has not.
    pub at_most: [u64; CHAINS + 1],
    /// When that was told, and whether it was done.
    pub told: Option<(u64, bool)>,
    /// When it was asked to go, and when it was told that it has.
    pub dropped: Option<(u64, Option<u64>)>,
}

/// A whole that is written and cut, and what its users know.
pub struct World {
    pub up: Up,
    pub clock: Clock,
    pub seed: u64,
    pub random: SplitMix64,
    pub now: Time,
    tokens: u64,
    /// Of each writer what it writes, and under which token; what it has been told of.
    under_way: [Option<(u64, u64)>; CHAINS + 1],
    pub acknowledged: [u64; CHAINS + 1],
    pub asked: Vec<Asked>,
    numbers: Vec<(CutNumber, u64, bool)>,
    pub errors: Vec<CutError>,
}

impl World {
    pub fn new(seed: u64, canary: CutCanary) -> Self {
        let clock = Clock::default();
        let up = Up::over(made(), seed, &clock, canary);
        for disk in up.disks.iter().flatten() {
            disk.be_prompt(false);
        }
        up.is_near.set(false);
        World {
            up,
            clock,
            seed,
            random: SplitMix64::new(seed + 5),
            now: Time::ZERO,
            tokens: 0,
            under_way: [None; CHAINS + 1],
            acknowledged: [0; CHAINS + 1],
            asked: Vec::new(),
            numbers: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn submitted(&self) -> [u64; CHAINS + 1] {
        std::array::from_fn(|writer| {
            self.under_way[writer].map_or(self.acknowledged[writer], |(what, _)| what)
        })
    }

    /// Each writer goes on that has been told of its last write.
    pub fn write(&mut self) {
        for writer in 0..=CHAINS {
            if self.under_way[writer].is_some() {
                continue;
            }
            let what = self.acknowledged[writer] + 1;
            self.tokens += 1;
            let (first, count) = match writer {
                BORDER => (PART_BYTES / SECTOR - 1, 2),
                // In blocks of their own.
                _ => (what % 2 * PART_BYTES / SECTOR + 8 + 8 * writer as u64, 1),
            };
            let mut io = Io::new(self.tokens, Op::Write, first * SECTOR, count * SECTOR);
            let bytes = sector_of(what)[..].repeat(count as usize);
            io.data = SegList::of(Memory::new(0).copy_of(&bytes).freeze());
            self.under_way[writer] = Some((what, self.tokens));
            self.up.top.submit(io);
        }
    }

    pub fn flush(&mut self) {
        self.tokens += 1;
        self.up.top.submit(Io::new(self.tokens, Op::Flush, 0, 0));
    }

    pub fn take(&mut self) -> u64 {
        let id = 1000 + self.asked.len() as u64;
        let begun = self.tick();
        let number = self.up.cuts.ask(CutAsk::Take { id, name: format!("cut {id}"), at: 0 });
        self.numbers.push((number, id, true));
        let at_least = self.acknowledged;
        let at_most = [u64::MAX; CHAINS + 1];
        self.asked.push(Asked { id, begun, at_least, at_most, told: None, dropped: None });
        id
    }

    pub fn drop_cut(&mut self, id: u64) {
        let now = self.tick();
        let number = self.up.cuts.ask(CutAsk::Drop { id });
        self.numbers.push((number, id, false));
        let asked = self.asked.iter_mut().find(|asked| asked.id == id).unwrap();
        asked.dropped = Some((now, None));
    }

    /// Polls, and takes in what has come.
    pub fn turn(&mut self) {
        let mut done = Vec::new();
        self.up.top.turn(self.now);
        self.up.top.poll(&mut done);
        self.up.top.turn(self.now);
        for completion in done {
            let of = |under_way: &Option<(u64, u64)>| {
                under_way.is_some_and(|(_, token)| token == completion.token)
            };
            if let Some(writer) = self.under_way.iter().position(of) {
                let (what, _) = self.under_way[writer].take().unwrap();
                // Who was told of an error does not know; the next one says more.
                self.acknowledged[writer] = what;
            }
        }
        let mut ended = Vec::new();
        self.up.cuts.poll_ended(&mut ended);
        for (number, result) in ended {
            let now = self.tick();
            let at_most = self.submitted();
            let (_, id, takes) = *self.numbers.iter().find(|(of, ..)| *of == number).unwrap();
            let asked = self.asked.iter_mut().find(|asked| asked.id == id).unwrap();
            match takes {
                true if asked.told.is_none() => {
                    (asked.told, asked.at_most) = (Some((now, result.is_ok())), at_most);
                }
                false if result.is_ok() => {
                    asked.dropped = asked.dropped.map(|(begun, _)| (begun, Some(now)));
                }
                _ => {}
            }
            self.errors.extend(result.err());
        }
    }

    pub fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
    }

    /// All parts answer, and nobody writes any more.
    pub fn wait(&mut self) {
        self.up.disks.iter().flatten().for_each(|disk| disk.hang(None));
        for _ in 0..20_000 {
            self.turn();
            self.pass(10);
            let is_quiet = self.up.top.outstanding() == 0 && self.up.cuts.is_idle();
            if is_quiet && !self.up.top.is_busy() {
                return;
            }
        }
        panic!("seed {}: something hangs: {:?}", self.seed, self.up.top.step);
    }

    /// What is wrong with the cuts in what was found at that time.
    pub fn judge(&self, found: &Up, time: u64) -> Result<(), String> {
        let all = [0, 1].map(|part| found.cuts_of(part));
        for asked in &self.asked {
            let id = asked.id;
            let has = [0, 1].map(|part| all[part].iter().find(|(_, of, _)| *of == id));
            let is_told = asked.told.is_some_and(|(at, done)| done && at <= time);
            let is_refused = asked.told.is_some_and(|(at, done)| !done && at <= time);
            let may_be_gone = asked.dropped.is_some_and(|(begun, _)| begun <= time);
            let is_gone = asked.dropped.is_some_and(|(_, at)| at.is_some_and(|at| at <= time));
            let [Some(first), Some(second)] = has else {
                match has {
                    [None, None] if is_told && !may_be_gone => {
                        return Err(format!("cut {id} was told of, and is not there"));
                    }
                    [None, None] => continue,
                    _ => return Err(format!("cut {id} is there in half")),
                }
            };
            if is_gone || is_refused {
                return Err(format!("cut {id} is there, and should not be"));
            }
            if !(first.2 && second.2) {
                return Err(format!("cut {id} is not decided"));
            }
            let sectors: Vec<u64> = (0..CHAINS as u64).map(|writer| 8 + 8 * writer).collect();
            let even = found.says(0, first.0, &sectors);
            let odd = found.says(1, second.0, &sectors);
            let of = |stamp: u64| if stamp == NOBODYS { 0 } else { stamp };
            for writer in 0..CHAINS {
                let (even, odd) = (of(even[writer]), of(odd[writer]));
                let last = even.max(odd);
                if last > 0 && even.abs_diff(odd) != 1 {
                    return Err(format!("cut {id} is crooked: {even} and {odd}"));
                }
                if !(asked.at_least[writer]..=asked.at_most[writer]).contains(&last) {
                    return Err(format!("cut {id} is of another moment: {last}, {asked:?}"));
                }
            }
            let left = found.says(0, first.0, &[PART_BYTES / SECTOR - 1])[0];
            let right = found.says(1, second.0, &[0])[0];
            if of(left) != of(right) {
                return Err(format!("cut {id} has half a write: {left} and {right}"));
            }
        }
        let known = |id: u64| self.asked.iter().any(|asked| asked.id == id);
        match all.iter().flatten().find(|(_, id, _)| !known(*id)) {
            Some((_, id, _)) => Err(format!("cut {id} comes from nowhere")),
            None => Ok(()),
        }
    }
}
