//! [`World`]: a pool on two disks, with whatever is open of it, beside a model of all volumes.

mod ops;

use std::collections::BTreeMap;

use thinwire_buffer::{Pool as Memory, Time};
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Completion, ErrorKind, Io, IoFlags, Op, Volume, VolumeEvent};

use super::super::*;
use super::disk::{Clock, Content, Disk, SECTOR};
use super::made::{BLOCK, METADATA, check, labelled, labels, make, open, open_labelled};
use super::model::{Life, Model};
use crate::meta::LABEL_AREA_BYTES;

/// How a world is made.
#[derive(Clone)]
pub struct Setup {
    pub seed: u64,
    pub blocks: u64,
    /// Bytes of data of the metadata part.
    pub metadata: u64,
    pub is_prompt: bool,
    pub cache_nodes: usize,
    pub open_nodes_max: usize,
    pub read_only: bool,
    pub repairs: bool,
    /// Rows of a node, if fewer than there is room for.
    pub rows_max: Option<usize>,
    /// Both parts have labels of their own, and will have grown to so many blocks, and bytes of metadata.
    pub grown: Option<[u64; 2]>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            blocks: 64,
            metadata: METADATA,
            is_prompt: true,
            cache_nodes: 4096,
            open_nodes_max: 2048,
            read_only: false,
            repairs: false,
            rows_max: None,
            grown: None,
        }
    }
}

/// An I/O of a test.
#[derive(Clone)]
struct Asked {
    volume: u64,
    life: u64,
    op: Op,
    flags: IoFlags,
    first: u64,
    count: u64,
    submitted: u64,
}

pub struct World {
    pub setup: Setup,
    pub clock: Clock,
    pub data: Disk,
    pub metadata: Disk,
    pub pool: ThinPool,
    pub open: BTreeMap<u64, ThinVolume>,
    /// How often something was opened, by then.
    pub opened: BTreeMap<u64, usize>,
    pub model: Model,
    pub random: SplitMix64,
    pub now: Time,
    asked: BTreeMap<u64, Asked>,
    tokens: u64,
    /// What has failed, by kind.
    pub failed: BTreeMap<ErrorKind, u64>,
    /// Durable writes of metadata that had no room.
    pub unkept: u64,
    pub done: u64,
    pub reads: u64,
    /// What open volumes have told.
    pub heard: Vec<(u64, VolumeEvent)>,
    /// The operation under way.
    op: Option<(OpNumber, PoolOp, u64, Option<Life>)>,
    pub op_errors: Vec<PoolError>,
    pub op_results: Vec<PoolDone>,
    /// How many operations were begun of each kind.
    pub begun: BTreeMap<&'static str, u64>,
    pub incarnations: u64,
    pub names: u64,
    /// Which commits were durable, and before what.
    pub commits: Vec<(u64, u64)>,
    /// The first thing that was wrong.
    pub wrong: Option<String>,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let clock = Clock::default();
        let bytes = LABEL_AREA_BYTES + setup.blocks * BLOCK;
        let data = Disk::new(bytes, Content::new(), super::disk::NOBODYS, &clock, setup.seed);
        let metadata =
            Disk::new(LABEL_AREA_BYTES + setup.metadata, Content::new(), 0, &clock, setup.seed + 7);
        let [of_data, of_metadata] = labels(setup.blocks, setup.metadata);
        make(&mut metadata.clone(), &of_metadata);
        let data = match setup.grown {
            None => data,
            Some(_) => {
                Disk::new(bytes, labelled(&of_data), super::disk::NOBODYS, &clock, setup.seed)
            }
        };
        Self::over(setup, data, metadata, clock)
    }

    /// Over what is there, of which nothing is known.
    pub fn over(setup: Setup, data: Disk, metadata: Disk, clock: Clock) -> Self {
        Self::try_over(setup, data, metadata, clock).unwrap()
    }

    /// The same; or why they make no pool.
    pub fn try_over(
        setup: Setup,
        data: Disk,
        metadata: Disk,
        clock: Clock,
    ) -> Result<Self, String> {
        let config = PoolConfig {
            cache_nodes: setup.cache_nodes,
            open_nodes_max: setup.open_nodes_max,
            read_only: setup.read_only,
            repairs: setup.repairs,
            ..PoolConfig::new(&Memory::new(1 << 20))
        };
        let [label, _] = labels(setup.blocks, setup.metadata);
        if setup.seed % 5 == 4 {
            data.without_discards();
        }
        let pool = match setup.grown {
            None => open(Box::new(data.clone()), Box::new(metadata.clone()), label, config)
                .map_err(|error| error.to_string()),
            Some(_) => open_labelled([&data, &metadata], config),
        }?;
        if let Some(most) = setup.rows_max {
            pool.0.borrow_mut().trees.limit_rows(most);
        }
        data.be_prompt(setup.is_prompt);
        metadata.be_prompt(setup.is_prompt);
        let world = World {
            clock,
            data,
            metadata,
            pool,
            open: BTreeMap::new(),
            opened: BTreeMap::new(),
            model: Model::new(),
            random: SplitMix64::new(setup.seed + 1),
            now: Time::ZERO,
            asked: BTreeMap::new(),
            tokens: 0,
            failed: BTreeMap::new(),
            unkept: 0,
            done: 0,
            reads: 0,
            heard: Vec::new(),
            op: None,
            op_errors: Vec::new(),
            op_results: Vec::new(),
            begun: BTreeMap::new(),
            incarnations: 100,
            names: 0,
            commits: Vec::new(),
            wrong: None,
            setup,
        };
        for _ in 0..100_000 {
            if world.pool.is_ready() {
                return Ok(world);
            }
            world.pool.poll();
        }
        panic!("the pool does not open");
    }

    pub fn canary(&self, canary: PoolCanary) {
        self.pool.0.borrow_mut().canary = canary;
    }

    pub fn tree_canary(&self, canary: crate::meta::tree::TreeCanary) {
        self.pool.0.borrow_mut().trees.plant(canary);
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    pub fn open_volume(&mut self, volume: u64) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.open.entry(volume) {
            entry.insert(self.pool.open_volume(volume).unwrap());
            *self.opened.entry(volume).or_default() += 1;
        }
    }

    /// Asks for something, in sectors.
    pub fn ask(&mut self, volume: u64, op: Op, flags: IoFlags, first: u64, count: u64) {
        self.tokens += 1;
        let (token, now) = (self.tokens, self.tick());
        self.note_write(volume, now);
        let known = self.model.get_mut(&volume).expect("it is known");
        let life = known.now;
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => (first * SECTOR, count * SECTOR),
        };
        let mut io = Io { flags, ..Io::new(token, op, offset, len) };
        match op {
            Op::Write => {
                let mut bytes = Vec::new();
                for at in first..first + count {
                    let stamp = stamp_of(volume, token, at);
                    bytes.extend_from_slice(&super::disk::sector_of(stamp)[..]);
                }
                // In two pieces, as it may come.
                let cut = (count / 2 * SECTOR) as usize;
                io.data.push(Memory::new(0).copy_of(&bytes[..cut]).freeze());
                io.data.push(Memory::new(0).copy_of(&bytes[cut..]).freeze());
                known.life().write(first, count, |at| stamp_of(volume, token, at), now, false);
            }
            Op::WriteZeroes => known.life().write(first, count, |_| 0, now, false),
            Op::Discard => known.life().write(first, count, |_| 0, now, true),
            _ => {}
        }
        self.asked.insert(token, Asked { volume, life, op, flags, first, count, submitted: now });
        self.open.get_mut(&volume).expect("it is open").submit(io);
    }

    /// What is submitted before a cut begins to hold writes back is in it.
    fn note_write(&mut self, volume: u64, now: u64) {
        self.note_volumes();
        let Some((_, op, begun, _)) = &mut self.op else { return };
        let (PoolOp::Snapshot { volume: of, incarnation, .. }
        | PoolOp::Clone { volume: of, incarnation, .. }) = op
        else {
            return;
        };
        let is_cut = self.model.values().any(|known| known.lives.contains_key(incarnation));
        let core = &mut *self.pool.0.borrow_mut();
        let slot = core.entries.get(&volume).and_then(|entry| entry.slot);
        let is_held = slot.is_some_and(|slot| core.slots.get_mut(slot).is_held);
        if *of == volume && !is_cut && !is_held {
            *begun = now + 1;
        }
    }

    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// Whether something that changes or reads these is under way.
    pub fn is_busy(&self, volume: u64, first: u64, count: u64) -> bool {
        self.asked.values().any(|asked| {
            asked.volume == volume
                && asked.first < first + count
                && first < asked.first + asked.count
        })
    }

    /// Something of that volume is under way.
    pub fn has_asked(&self, volume: u64) -> bool {
        self.asked.values().any(|asked| asked.volume == volume)
    }

    /// It can be opened: no operation that needs it closed is under way.
    pub fn may_open(&self, volume: u64) -> bool {
        let core = self.pool.0.borrow();
        let is_there = |entry: &Entry| core.commits.is_durable(entry.added_in);
        if !core.entries.get(&volume).is_some_and(is_there) {
            return false;
        }
        match &self.op {
            Some((_, PoolOp::Delete { volume: of } | PoolOp::RollBack { volume: of, .. }, ..)) => {
                *of != volume
            }
            _ => true,
        }
    }

    /// Polls one handle, or the pool, and takes in what comes.
    pub fn turn(&mut self) {
        let before = self.clock.get();
        let volumes: Vec<u64> = self.open.keys().copied().collect();
        let nth = self.random.below(volumes.len() as u64 + 1) as usize;
        let mut done = Vec::new();
        match volumes.get(nth) {
            Some(volume) => {
                self.open.get_mut(volume).unwrap().poll(&mut done);
                self.take_done(*volume, &mut done);
            }
            None => self.pool.poll(),
        }
        let mut woken = Vec::new();
        self.pool.take_woken(&mut woken);
        for volume in woken {
            if let Some(handle) = self.open.get_mut(&volume) {
                handle.poll(&mut done);
                self.take_done(volume, &mut done);
            }
        }
        let last = self.pool.0.borrow().trees.committed().generation;
        if self.commits.last().is_none_or(|(generation, _)| *generation < last) {
            self.commits.push((last, before));
        }
        self.take_ops();
        if self.pool.stopped().is_some() {
            self.lose_what_is_closed();
        }
    }

    /// Takes in what has completed, of which some may have been lost by what is told before it.
    fn take_done(&mut self, volume: u64, done: &mut Vec<Completion>) {
        let has_lost = self.hear(volume);
        done.drain(..).for_each(|completion| self.on_completion(volume, completion));
        if has_lost {
            self.model.get_mut(&volume).expect("it is known").life().lose();
        }
    }

    /// Whether an open volume tells a loss: then what its user knows to be done may be gone.
    fn hear(&mut self, volume: u64) -> bool {
        let mut news = Vec::new();
        self.open.get_mut(&volume).expect("it is open").poll_events(&mut news);
        let has_lost = news.contains(&VolumeEvent::Lost);
        self.heard.extend(news.into_iter().map(|event| (volume, event)));
        if has_lost {
            self.model.get_mut(&volume).expect("it is known").life().lose();
        }
        has_lost
    }

    /// Closes a volume.
    pub fn close(&mut self, volume: u64) {
        if self.open.contains_key(&volume) {
            self.hear(volume);
            self.open.remove(&volume);
        }
    }

    /// Of what nobody has open nobody is told.
    fn lose_what_is_closed(&mut self) {
        let closed = self.model.iter_mut().filter(|(volume, _)| !self.open.contains_key(volume));
        closed.for_each(|(_, known)| known.life().lose());
    }

    /// Has the data part lose what it has not flushed.
    pub fn lose_data(&mut self) {
        self.data.lose();
        self.lose_what_is_closed();
    }

    /// Time passes.
    pub fn pass(&mut self, millis: u64) {
        self.now = self.now + std::time::Duration::from_millis(millis);
        self.pool.turn(self.now);
        self.note_volumes();
    }

    fn wrong(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    fn on_completion(&mut self, volume: u64, completion: Completion) {
        let now = self.tick();
        let asked = self.asked.remove(&completion.token).expect("it was asked for once");
        assert_eq!(asked.volume, volume);
        self.done += 1;
        let failed = completion.result.is_err();
        if let Err(error) = completion.result {
            assert_eq!(error.op, if error.op == Op::Flush { Op::Flush } else { error.op });
            *self.failed.entry(error.kind).or_default() += 1;
        }
        let what = (asked.first, asked.count, asked.submitted);
        let known = self.model.get_mut(&volume).expect("it is known");
        let Some((_, life)) = known.lives.get_mut(&asked.life) else { return };
        match asked.op {
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let is_full =
                    matches!(completion.result, Err(error) if error.kind == ErrorKind::NoSpace);
                self.unkept += u64::from(is_full && asked.flags.meta && asked.flags.fua);
                match is_full && asked.op == Op::Write {
                    // It fails before it starts.
                    true => life.forget(what),
                    false => life.end(what, now, asked.flags.fua, failed),
                }
            }
            Op::Flush if !failed => life.flush(asked.submitted, now),
            Op::Read if !failed => {
                self.reads += 1;
                let bytes = completion.data.to_vec();
                assert_eq!(bytes.len() as u64, asked.count * SECTOR);
                let mut wrong = None;
                for (at, sector) in bytes.chunks(SECTOR as usize).enumerate() {
                    let at = asked.first as usize + at;
                    let says = u64::from_le_bytes(sector[..8].try_into().unwrap());
                    let may = life.seen(at, asked.submitted, now);
                    if !may.contains(&says) || sector.chunks(8).any(|word| word != &sector[..8]) {
                        wrong = Some(format!(
                            "volume {volume}, sector {at}: reads {says:x}, not {may:x?}"
                        ));
                    }
                }
                wrong.into_iter().for_each(|why| self.wrong(why));
            }
            Op::BlockStatus if !failed => {
                let mut at = asked.first as usize;
                assert!(!completion.extents.is_empty());
                let mut wrong = None;
                for extent in &completion.extents {
                    let upto = at + (extent.len / SECTOR) as usize;
                    assert!(extent.len > 0 && upto as u64 <= asked.first + asked.count);
                    for sector in at..upto {
                        if extent.zero && !life.seen(sector, asked.submitted, now).contains(&0) {
                            wrong = Some(format!("volume {volume}, sector {sector}: called zero"));
                        }
                    }
                    at = upto;
                }
                wrong.into_iter().for_each(|why| self.wrong(why));
            }
            _ => {}
        }
    }

    /// Until all that was asked for has ended.
    pub fn wait(&mut self) {
        for at in 0..200_000 {
            if self.asked.is_empty() && self.op.is_none() {
                return;
            }
            self.turn();
            if at % 64 == 63 {
                self.pass(100);
            }
        }
        panic!(
            "seed {}: something hangs: {:?}",
            self.setup.seed,
            self.asked.values().map(|asked| asked.op).collect::<Vec<_>>()
        );
    }

    /// Until nothing is left to do, everything durable.
    pub fn rest(&mut self) {
        self.wait();
        for _ in 0..200_000 {
            self.pool.commit();
            if self.pool.is_idle() {
                return;
            }
            self.turn();
            self.pass(100);
        }
        panic!("seed {}: the pool does not come to rest", self.setup.seed);
    }

    pub fn has_op(&self) -> bool {
        self.op.is_some()
    }

    pub fn incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }

    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("volume {}", self.names)
    }

    pub fn create(&mut self, bytes: u64) -> u64 {
        let (name, incarnation) = (self.name(), self.incarnation());
        let done = self.run(PoolOp::Create { name, bytes, incarnation, at: 0 });
        let Some(PoolDone::Created { volume }) = done else { panic!("{:?}", self.op_errors) };
        volume
    }

    pub fn snapshot(&mut self, volume: u64) -> u64 {
        let (name, incarnation) = (self.name(), self.incarnation());
        let done = self.run(PoolOp::Snapshot { volume, name, incarnation, at: 0 });
        let Some(PoolDone::Created { volume }) = done else { panic!("{:?}", self.op_errors) };
        volume
    }

    pub fn write(&mut self, volume: u64, first: u64, count: u64) {
        self.ask(volume, Op::Write, IoFlags::default(), first, count);
    }

    pub fn flush(&mut self, volume: u64) {
        self.ask(volume, Op::Flush, IoFlags::default(), 0, 0);
        self.wait();
    }

    /// Reads all of a volume, and compares.
    pub fn read_all(&mut self, volume: u64) {
        self.open_volume(volume);
        let count = self.model[&volume].bytes / SECTOR;
        for first in (0..count).step_by(512) {
            self.ask(volume, Op::Read, IoFlags::default(), first, 512.min(count - first));
        }
        self.wait();
    }

    /// What a check finds.
    pub fn check(&mut self) -> Vec<PoolFinding> {
        check(&self.pool)
    }

    #[track_caller]
    pub fn is_right(&self) {
        assert_eq!(self.wrong, None, "seed {}", self.setup.seed);
    }
}

/// What a write puts into a sector: another one in each.
pub fn stamp_of(volume: u64, token: u64, sector: u64) -> u64 {
    volume << 48 | token << 16 | sector
}
