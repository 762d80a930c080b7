//! Volumes that are made, opened and looked at while nobody else has their disks and nothing goes wrong: each I/O is done at once.

use std::time::Duration;

use thinwire_buffer::{Pool, Time};
use thinwire_link::rng::Rng;
use thinwire_modules::cuts::{CutAsk, Cutter};
use thinwire_modules::meta::{
    Finding, LabelOutcome, Labels, MadePart, NewPart, NewWhole, WholeMaking, label_parts,
};
use thinwire_modules::mirror::MirrorState;
use thinwire_modules::thin::{
    NewPool, PoolCheck, PoolDone, PoolOp, PoolReport, ThinPool, block_bytes,
};
use thinwire_modules::{CRYPT_SEALED_BYTES, Crypt, CryptState, IntegrityState, SumMaking};
use thinwire_volume::stores::{FileStore, NullStore};
use thinwire_volume::{Io, Op, Volume};

use super::crash_disk::Countdown;
use super::cuts::Cuts;
use super::growing::{Generations, Growing, GrowingScene, GrowingSettings, NotGrown, draw};
use super::shape::{THIN_NAME, VolumeOver, VolumeShape};
use crate::medium::MediumHandle;
use crate::model::{Model, Violation};

/// Turns after which something that waits for nothing must be done.
const TURNS_MAX: usize = 100_000;

/// A volume, and its pool if it has one.
pub type Opened = (Box<dyn Volume>, Option<ThinPool>);

/// What there is for a disk.
type DiskOf<'a> = dyn FnMut(usize, &Pool) -> Box<dyn Volume> + 'a;

/// Disks that nobody else has, and a clock that only goes on when something waits for it.
pub struct AtRest<'a> {
    disk: Box<DiskOf<'a>>,
    pool: Pool,
    dice: Rng,
    now: Time,
    /// How volumes are opened.
    pub settings: GrowingSettings,
    /// When the power goes: nobody waits for what comes behind that.
    pub countdown: Countdown,
    /// Disks that are not there.
    pub away: Vec<usize>,
}

impl<'a> AtRest<'a> {
    /// With these disks, by their numbers, and the blocks of each in bytes.
    pub fn new(disks: &'a [(MediumHandle, u32)], seed: u64) -> Self {
        let open = |number: usize, pool: &Pool| -> Box<dyn Volume> {
            let (medium, block_bytes) = &disks[number];
            let store = FileStore::new(medium.open_at_once(), *block_bytes, pool);
            Box::new(store.expect("it fits"))
        };
        AtRest::over(open, seed)
    }

    /// With what this gives for each disk.
    pub fn over(disk: impl FnMut(usize, &Pool) -> Box<dyn Volume> + 'a, seed: u64) -> Self {
        AtRest {
            disk: Box::new(disk),
            pool: Pool::new(16 << 20),
            dice: Rng::new(seed),
            now: Time(1),
            settings: GrowingSettings::default(),
            countdown: Countdown::never(),
            away: Vec::new(),
        }
    }

    /// Memory for what is written.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Lets a moment pass.
    pub fn pass(&mut self) -> Time {
        self.now = self.now + Duration::from_millis(5);
        self.now
    }

    /// Opens a volume of this shape; its pool, if it has one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(&mut self, shape: &VolumeShape) -> Result<Opened, NotGrown> {
        self.grow(Growing::new(shape))
    }

    /// Opens a pool of this shape, and none of its volumes.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_pool(&mut self, shape: &VolumeShape) -> Result<ThinPool, NotGrown> {
        let (_, thin) = self.grow(Growing::pool(shape))?;
        Ok(thin.expect("it is a pool"))
    }

    /// Opens a volume of which snapshots are taken as one, and ends it when all of its parts know how the last has ended.
    ///
    /// # Errors
    /// It cannot be opened, or says nothing.
    pub fn settle_cuts(&mut self, shape: &VolumeShape) -> Result<(), Violation> {
        let mut cutter = None;
        let opened = self.grow_with(Growing::new(shape), &mut cutter);
        let (mut volume, _) = opened.map_err(|e| Violation(format!("at rest: {e:?}")))?;
        let cutter = cutter.expect("it can be cut");
        cutter.ask(CutAsk::List);
        let mut ended = Vec::new();
        self.wait("settling a cut", &mut *volume, |volume| {
            volume.poll(&mut Vec::new());
            cutter.poll_ended(&mut ended);
            !ended.is_empty()
        })?;
        match ended.remove(0).1 {
            Ok(_) => self.end(volume),
            Err(error) => Err(Violation(format!("at rest: {error}"))),
        }
    }

    fn grow(&mut self, growing: Growing) -> Result<Opened, NotGrown> {
        self.grow_with(growing, &mut None)
    }

    fn grow_with(
        &mut self,
        mut growing: Growing,
        cutter: &mut Option<Cutter>,
    ) -> Result<Opened, NotGrown> {
        let mut thins = Vec::new();
        for _ in 0..TURNS_MAX {
            let now = self.pass();
            if self.countdown.is_over() {
                return Err(NotGrown::Absent("the power is off".into()));
            }
            let AtRest { disk, pool, dice, settings, away, .. } = self;
            let mut disk = |number: usize| (!away.contains(&number)).then(|| disk(number, pool));
            let mut ground = GrowingScene {
                now,
                pool,
                dice,
                disk: &mut disk,
                keeper: &mut |_| None,
                desks: &mut Vec::new(),
                thins: &mut thins,
                cutter,
                settings: *settings,
            };
            if let Some(volume) = growing.turn(&mut ground)? {
                return Ok((volume, thins.pop()));
            }
        }
        Err(NotGrown::Refused("it is never open".into()))
    }

    /// Lets time pass until it is so.
    pub fn wait(
        &mut self,
        what: &str,
        volume: &mut dyn Volume,
        mut is_so: impl FnMut(&mut dyn Volume) -> bool,
    ) -> Result<(), Violation> {
        for _ in 0..TURNS_MAX {
            if is_so(volume) {
                return Ok(());
            }
            if self.countdown.is_over() {
                return Err(Violation("the power is off".into()));
            }
            let now = self.pass();
            volume.turn(now);
        }
        Err(Violation(format!("at rest: {what}: never")))
    }

    /// Ends a volume in order.
    ///
    /// # Errors
    /// It does not end.
    pub fn end(&mut self, mut volume: Box<dyn Volume>) -> Result<(), Violation> {
        volume.wind_up();
        self.wait("winding up", &mut *volume, |volume| {
            volume.poll(&mut Vec::new());
            volume.is_wound_up()
        })
    }

    /// All bytes of a volume.
    ///
    /// # Errors
    /// Some cannot be read.
    pub fn read_all(&mut self, volume: &mut dyn Volume) -> Result<Vec<u8>, Violation> {
        let geometry = volume.geometry();
        let longest = u64::from(geometry.io_bytes_max.min(64 << 10));
        let mut all = Vec::new();
        while (all.len() as u64) < geometry.bytes {
            let at = all.len() as u64;
            let len = longest.min(geometry.bytes - at);
            volume.submit(Io::new(7, Op::Read, at, len));
            let mut done = Vec::new();
            self.wait("reading", volume, |volume| {
                volume.poll(&mut done);
                !done.is_empty()
            })?;
            let read = done.remove(0);
            read.result.map_err(|e| Violation(format!("at rest: {e}")))?;
            all.extend(read.data.to_vec());
        }
        Ok(all)
    }

    /// Has all of a volume of this shape read as zeroes, where nothing made it so.
    ///
    /// # Panics
    /// If it cannot be opened or written.
    pub fn clear(&mut self, shape: &VolumeShape) {
        let (mut volume, _) = self.open(shape).unwrap_or_else(|e| panic!("{e:?}"));
        let geometry = volume.geometry();
        let longest = u64::from(geometry.io_bytes_max.min(1 << 20));
        let mut at = 0;
        while at < geometry.bytes {
            let len = longest.min(geometry.bytes - at);
            volume.submit(Io::new(7, Op::WriteZeroes, at, len));
            let mut done = Vec::new();
            self.wait("clearing", &mut *volume, |volume| {
                volume.poll(&mut done);
                !done.is_empty()
            })
            .unwrap_or_else(|v| panic!("{}", v.0));
            assert_eq!(done[0].result, Ok(()));
            at += len;
        }
        volume.submit(Io::new(8, Op::Flush, 0, 0));
        let mut done = Vec::new();
        self.wait("flushing", &mut *volume, |volume| {
            volume.poll(&mut done);
            !done.is_empty()
        })
        .unwrap_or_else(|v| panic!("{}", v.0));
        assert_eq!(done[0].result, Ok(()));
        self.end(volume).unwrap_or_else(|v| panic!("{}", v.0));
    }

    /// How large a volume of this shape is, in bytes.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn bytes(&mut self, shape: &VolumeShape) -> u64 {
        let (volume, _) = self.open(shape).unwrap_or_else(|e| panic!("{e:?}"));
        let bytes = volume.geometry().bytes;
        self.end(volume).unwrap_or_else(|v| panic!("{}", v.0));
        bytes
    }

    /// Looks at everything that a pool of this shape keeps.
    ///
    /// # Errors
    /// It cannot be opened, or something is wrong with it.
    pub fn check_pool(&mut self, shape: &VolumeShape) -> Result<(), Violation> {
        let refused = |e| Violation(format!("a pool at rest: {e:?}"));
        let (_, thin) = self.grow(Growing::pool(shape)).map_err(refused)?;
        let thin = thin.expect("it is a pool");
        // What was deleted is given back first.
        self.wait_for_pool("a pool is idle", &thin, ThinPool::is_idle)?;
        let mut check = PoolCheck::new(&thin, 1 << 12);
        let mut findings = Vec::new();
        while !check.is_done() {
            let (found, _) = check.step(&thin);
            findings.extend(found);
            thin.poll();
        }
        if !findings.is_empty() {
            return Err(Violation(format!("the pool is not whole: {findings:?}")));
        }
        self.end_pool(&thin)
    }

    /// Reads all snapshots of a pool of this shape, and holds them to what they have to hold; how many there were.
    ///
    /// # Errors
    /// One that has to be there is not, or one holds something else.
    pub fn check_cuts(
        &mut self,
        shape: &VolumeShape,
        cuts: &mut Cuts,
        model: &Model,
    ) -> Result<u64, Violation> {
        let refused = |e| Violation(format!("a pool at rest: {e:?}"));
        let (_, thin) = self.grow(Growing::pool(shape)).map_err(refused)?;
        let thin = thin.expect("it is a pool");
        cuts.find(0, &thin)?;
        for number in cuts.numbers() {
            let volume = thin.open_volume(number);
            let mut volume = volume.map_err(|e| Violation(format!("snapshot {number}: {e}")))?;
            let image = self.read_all(&mut volume)?;
            cuts.check(number, &image, model)?;
        }
        self.end_pool(&thin)?;
        Ok(cuts.numbers().len() as u64)
    }

    /// Rolls the volume of a pool of this shape back to a snapshot: it is what that is then, and is known by something else (rule 23).
    ///
    /// # Errors
    /// It is not.
    pub fn check_rollback(&mut self, shape: &VolumeShape, to: &str) -> Result<(), Violation> {
        let opened = |e: NotGrown| Violation(format!("behind a rollback: {e:?}"));
        let (volume, _) = self.open(shape).map_err(opened)?;
        let before = volume.identity();
        self.end(volume)?;
        let incarnation = self.dice.bits() | 1;
        self.change_pool(shape, |report| {
            let number = |name: &str| {
                let of = report.volumes.iter().find(|of| of.name == name);
                of.expect("it was looked at").volume
            };
            PoolOp::RollBack { volume: number(THIN_NAME), to: number(to), incarnation }
        })?;
        let (mut volume, thin) = self.open(shape).map_err(opened)?;
        let thin = thin.expect("it is one of a pool");
        let report = thin.report();
        let number = report.volumes.iter().find(|of| of.name == to).expect("it was looked at");
        let cut = thin.open_volume(number.volume);
        let mut cut = cut.map_err(|e| Violation(format!("snapshot {to}: {e}")))?;
        if self.read_all(&mut *volume)? != self.read_all(&mut cut)? {
            return Err(Violation(format!("rolled back to {to} it is something else")));
        }
        if volume.identity().incarnation == before.incarnation {
            return Err(Violation(format!("rolled back to {to} it is known as before")));
        }
        drop(cut);
        self.end(volume)
    }

    fn end_pool(&mut self, thin: &ThinPool) -> Result<(), Violation> {
        thin.wind_up();
        self.wait_for_pool("a pool ends", thin, ThinPool::is_wound_up)
    }

    fn wait_for_pool(
        &mut self,
        what: &str,
        thin: &ThinPool,
        mut is_so: impl FnMut(&ThinPool) -> bool,
    ) -> Result<(), Violation> {
        for _ in 0..TURNS_MAX {
            if is_so(thin) {
                return Ok(());
            }
            thin.turn(self.pass());
            thin.poll();
        }
        Err(Violation(format!("at rest: {what}: never")))
    }

    /// Makes a volume of this shape, all of which is zero: labels bottom up, and the volume of a pool.
    ///
    /// # Panics
    /// If that cannot be: a shape that was drawn fits its disks.
    pub fn make(&mut self, shape: &VolumeShape) {
        let VolumeShape::Over(over) = shape else { return };
        over.parts.iter().for_each(|part| self.make(part));
        if !over.has_labels {
            return;
        }
        let mut parts: Vec<Box<dyn Volume>> = Vec::new();
        for part in &over.parts {
            parts.push(self.open(part).unwrap_or_else(|e| panic!("{e:?}")).0);
        }
        self.label(over, &mut parts);
        for part in parts {
            self.end(part).unwrap_or_else(|v| panic!("{}", v.0));
        }
        if over.module.has_volumes() {
            self.make_thin(shape, over.thin_bytes);
        }
    }

    fn label(&mut self, over: &VolumeOver, parts: &mut [Box<dyn Volume>]) {
        let mut new = |part: &dyn Volume| NewPart {
            uuid: draw(&mut self.dice),
            content: part.identity(),
            bytes: part.geometry().bytes,
        };
        let new: Vec<_> = parts.iter().map(|part| new(&**part)).collect();
        let sizes = parts
            .iter()
            .zip(&new)
            .map(|(part, new)| (new.data_bytes(over.module), part.geometry().block_bytes));
        let bytes = match &over.module.keeps {
            Some(kept) => (kept.bytes)(&sizes.collect::<Vec<_>>()),
            None => {
                let stand_in = |(bytes, block): (u64, u32)| -> Box<dyn Volume> {
                    Box::new(NullStore::new(bytes, block))
                };
                let opened = over.module.open(sizes.map(stand_in).collect(), &over.options);
                opened.expect("it fits").geometry().bytes
            }
        };
        let (module, options, uuid) = (over.module, &over.options, draw(&mut self.dice));
        let whole = NewWhole { name: "whole", uuid, module, options, bytes };
        let mut made = label_parts(&whole, &new).expect("it fits");
        if module.is_mirror() {
            let mut generations = Generations(Rng::new(self.dice.bits()));
            let blocks = parts.iter().map(|part| part.geometry().block_bytes);
            let size = (bytes, blocks.max().expect("it has legs"));
            let states = MirrorState::of_new(made.len(), size, 0, &mut generations);
            made.iter_mut().zip(states).for_each(|(label, state)| label.state = state.encode());
        }
        if module.has_volumes() {
            let (data_bytes, metadata_bytes) = (made[0].part().bytes, made[1].part().bytes);
            let pool = NewPool { block_bytes: block_bytes(options), data_bytes, metadata_bytes };
            let states = pool.states().expect("it fits");
            made.iter_mut().zip(states).for_each(|(label, state)| label.state = state);
        }
        if over.is_crypt() {
            let block = Crypt::block_bytes(options).expect("512 or 4096");
            let state = CryptState::new(block, [1; 8], [2; 12], [3; CRYPT_SEALED_BYTES]);
            made.iter_mut().for_each(|label| label.state = state.encode());
        }
        let mut sums = over.has_sums().then(|| {
            made[0].state = IntegrityState::new(bytes).encode();
            let (start, part_bytes) = (made[0].data_start, made[0].part().bytes);
            SumMaking::new(0, &self.pool, uuid, start, part_bytes)
        });
        let mut to_make = Vec::new();
        for (part, label) in parts.iter_mut().zip(made) {
            let mut labels = Labels::new(0, &self.pool);
            labels.read(&mut **part).expect("it fits");
            let mut found = None;
            self.wait("reading what is there", &mut **part, |part| {
                found = labels.turn(part);
                found.is_some()
            })
            .unwrap_or_else(|v| panic!("{}", v.0));
            // On one that is encrypted there is noise.
            let is_occupied = !matches!(found, Some(LabelOutcome::Read(Ok(Finding::Blank))));
            to_make.push(MadePart { labels, label, is_occupied, marks: Vec::new() });
        }
        let mut making = WholeMaking::new(0, &self.pool, to_make);
        while let Some(at) = making.part() {
            if making.is_cleared()
                && let Some(mut sums) = sums.take()
            {
                let mut zeroed = None;
                self.wait("zeroing", &mut *parts[at], |part| {
                    zeroed = sums.turn(part);
                    zeroed.is_some()
                })
                .unwrap_or_else(|v| panic!("{}", v.0));
                zeroed.expect("it has ended").unwrap_or_else(|e| panic!("{e}"));
            }
            let mut ended = None;
            self.wait("making", &mut *parts[at], |part| {
                ended = making.turn(part);
                ended.is_some()
            })
            .unwrap_or_else(|v| panic!("{}", v.0));
            ended.expect("it has ended").unwrap_or_else(|e| panic!("{e}"));
        }
    }

    /// The volume of a pool.
    fn make_thin(&mut self, shape: &VolumeShape, bytes: u64) {
        let incarnation = self.dice.bits() | 1;
        let create = PoolOp::Create { name: THIN_NAME.into(), bytes, incarnation, at: 0 };
        self.change_pool(shape, |_| create).unwrap_or_else(|v| panic!("{}", v.0));
    }

    /// Changes a pool of which no volume is used.
    ///
    /// # Errors
    /// It cannot be opened, or it cannot be done.
    pub fn change_pool(
        &mut self,
        shape: &VolumeShape,
        op: impl FnOnce(&PoolReport) -> PoolOp,
    ) -> Result<PoolDone, Violation> {
        let wrong = |why: String| Violation(format!("a pool at rest: {why}"));
        let (_, thin) = self.grow(Growing::pool(shape)).map_err(|e| wrong(format!("{e:?}")))?;
        let thin = thin.expect("it is a pool");
        thin.begin(op(&thin.report()));
        let mut ended = Vec::new();
        self.wait_for_pool("a change of a pool", &thin, |thin| {
            thin.poll_ops(&mut ended);
            !ended.is_empty()
        })?;
        let done = ended.remove(0).1.map_err(|e| wrong(e.to_string()))?;
        self.end_pool(&thin)?;
        Ok(done)
    }
}
