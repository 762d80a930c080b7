//! Random workloads, in much room and in little, on a disk that does its I/Os in any order, fails some, loses some of what was not flushed, with a word, or is another's at
//! some time: what is read is what was written, nothing ends well once it is another's, and at every moment a crash, with each subset of a few unflushed writes lost, leaves what a flush has promised. Planted faults are found
//! by the same.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::Owing;
use thinwire_volume::testing::SplitMix64;

use super::*;
use crate::thin::tests::disk::{Clock, Content, Disk, NOBODYS, sector_of};

/// So few that most of what is written lies over something.
const SECTORS: u64 = 64;
const STEPS: usize = 50;
const DEPTH: usize = 6;
/// Of so many writes each subset is lost; of more some, at random.
const SUBSETS_OF: usize = 5;

/// Something that changed a sector, or was to.
struct Change {
    stamp: u64,
    submitted: u64,
    /// When it had succeeded; never if it has not.
    completed: u64,
    is_durable: bool,
}

/// The disk, until it is another's, from when it refuses all.
struct Lent {
    disk: Disk,
    is_gone: Rc<Cell<bool>>,
    refused: Vec<Completion>,
}

impl Volume for Lent {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn submit(&mut self, io: Io) {
        match self.is_gone.get() {
            true => {
                let error = io.error(ErrorKind::Fenced, "lent");
                self.refused.push(Completion::new(io.token, Err(error)));
            }
            false => self.disk.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.disk.poll(done);
        done.append(&mut self.refused);
    }

    fn outstanding(&self) -> usize {
        self.disk.outstanding() + self.refused.len()
    }

    fn events(&self) -> u64 {
        self.disk.events() + u64::from(self.is_gone.get())
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.disk.poll_events(events);
    }
}

struct Pending {
    op: Op,
    first: u64,
    count: u64,
    submitted: u64,
    /// The disk has lost something since.
    is_doubtful: bool,
}

struct World {
    /// Whose flushes tell what was lost.
    volume: Owing<WriteBack>,
    disk: Disk,
    is_gone: Rc<Cell<bool>>,
    gone_at: u64,
    clock: Clock,
    now: Time,
    random: SplitMix64,
    sectors: Vec<Vec<Change>>,
    /// When each that has succeeded was submitted, and when it ended.
    flushes: Vec<(u64, u64)>,
    pending: Vec<(Token, Pending)>,
    next: Token,
    wrong: Option<String>,
}

impl World {
    fn new(seed: u64, canary: WriteBackCanary) -> Self {
        let clock = Clock::default();
        let disk = Disk::new(1 << 20, Content::new(), NOBODYS, &clock, seed);
        disk.be_prompt(false);
        if seed.is_multiple_of(4) {
            disk.fail("write", 6);
            disk.fail("flush", 8);
        }
        let is_gone = Rc::<Cell<bool>>::default();
        let lent = Lent { disk: disk.clone(), is_gone: is_gone.clone(), refused: Vec::new() };
        let bytes = match seed % 3 {
            0 => WriteBack::BYTES_MIN,
            // Two to eight blocks.
            _ => (2 + seed % 7) * 5900,
        };
        let mut volume = WriteBack::over(Box::new(lent), bytes);
        volume.set_canary(canary);
        World {
            volume: Owing::new(volume, false),
            disk,
            is_gone,
            gone_at: u64::MAX,
            clock,
            now: Time(1),
            random: SplitMix64::new(seed),
            sectors: (0..SECTORS).map(|_| Vec::new()).collect(),
            flushes: Vec::new(),
            pending: Vec::new(),
            next: 0,
            wrong: None,
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn submit(&mut self) {
        let features = self.volume.geometry().features;
        let op = match self.random.below(16) {
            0..8 => Op::Write,
            8..11 => Op::Read,
            11..13 => Op::Flush,
            13 if features.discard => Op::Discard,
            14 if features.write_zeroes => Op::WriteZeroes,
            _ => Op::Write,
        };
        let first = self.random.below(SECTORS);
        let most = if self.random.one_in(3) { 24 } else { 4 };
        let count = 1 + self.random.below(most.min(SECTORS - first));
        let (first, count) = if op == Op::Flush { (0, 0) } else { (first, count) };
        self.next += 1;
        let mut io = Io::new(self.next, op, first * SECTOR, count * SECTOR);
        io.flags.fua = op.is_write() && self.random.one_in(6);
        let stamp = match op {
            Op::WriteZeroes => 0,
            Op::Discard => NOBODYS,
            _ => self.next,
        };
        if op == Op::Write {
            let bytes: Vec<u8> = (0..count).flat_map(|_| sector_of(stamp).to_vec()).collect();
            io.data = SegList::of(Pool::new(0).copy_of(&bytes).freeze());
        }
        let submitted = self.tick();
        if op.is_write() {
            let is_durable = io.flags.fua;
            for sector in first..first + count {
                let change = Change { stamp, submitted, completed: u64::MAX, is_durable };
                self.sectors[sector as usize].push(change);
                if op == Op::Discard {
                    // What was here of it is zero first.
                    let zeroes = Change { stamp: 0, submitted, completed: u64::MAX, is_durable };
                    self.sectors[sector as usize].push(zeroes);
                }
            }
        }
        let is_doubtful = false;
        let pending = Pending { op, first, count, submitted, is_doubtful };
        self.pending.push((self.next, pending));
        self.volume.submit(io);
    }

    fn poll(&mut self) {
        self.now = self.now + Duration::from_millis(400);
        self.volume.turn(self.now);
        let mut done = Vec::new();
        self.volume.poll(&mut done);
        self.volume.turn(self.now);
        for completion in done {
            let at = self.pending.iter().position(|(token, _)| *token == completion.token);
            let (_, pending) = self.pending.swap_remove(at.expect("it is outstanding"));
            let now = self.tick();
            let Pending { op, first, count, submitted, .. } = pending;
            if completion.result.is_err() {
                continue;
            }
            if submitted > self.gone_at {
                let why = format!("{op:?} at {submitted} ends well though the disk is another's");
                self.wrong.get_or_insert(why);
            }
            if op.is_write() && pending.is_doubtful {
                continue;
            }
            match op {
                Op::Flush => self.flushes.push((submitted, now)),
                Op::Read => {
                    let bytes = completion.data.to_vec();
                    for (sector, said) in (first..first + count).zip(bytes.chunks(512)) {
                        let said = u64::from_le_bytes(said[..8].try_into().unwrap());
                        self.check_read(sector, said, submitted, now);
                    }
                }
                _ => {
                    for sector in first..first + count {
                        let changes = &mut self.sectors[sector as usize];
                        let of_it = changes.iter_mut().filter(|of| of.submitted == submitted);
                        of_it.for_each(|change| change.completed = now);
                    }
                }
            }
        }
    }

    /// Some of what was done and is not durable is gone: all of it may be there or not.
    fn lose(&mut self) {
        let now = self.tick();
        for changes in &mut self.sectors {
            for change in changes {
                if !has_to_be(&self.flushes, change, now) {
                    change.completed = u64::MAX;
                }
            }
        }
        self.pending.iter_mut().for_each(|(_, pending)| pending.is_doubtful = true);
        self.disk.lose();
    }

    /// From now on the disk is another's.
    fn lend(&mut self) {
        self.gone_at = self.tick();
        self.is_gone.set(true);
    }

    /// Anything that was asked for before the read ended, and that nothing else has certainly gone over before the read began.
    fn check_read(&mut self, sector: u64, said: u64, began: u64, ended: u64) {
        let changes = &self.sectors[sector as usize];
        let is_over = |change: &Change| {
            changes
                .iter()
                .any(|other| other.completed < began && change.completed < other.submitted)
        };
        let may = changes
            .iter()
            .any(|change| change.stamp == said && change.submitted < ended && !is_over(change));
        let is_blank = said == NOBODYS && changes.iter().all(|change| change.completed >= began);
        if !may && !is_blank {
            let why = format!("a read of sector {sector} at {began} to {ended} says {said:#x}");
            self.wrong.get_or_insert(why);
        }
    }

    /// What may be there after a crash at that time: anything that was asked for, and that nothing goes over that has to be durable.
    fn check_crash(&self, content: &Content, time: u64) -> Result<(), String> {
        for (sector, changes) in (0..).zip(&self.sectors) {
            let has_to_be = |change: &&Change| has_to_be(&self.flushes, change, time);
            let durable: Vec<&Change> = changes.iter().filter(has_to_be).collect();
            let is_over =
                |change: &Change| durable.iter().any(|other| change.completed < other.submitted);
            let said = content
                .get(&sector)
                .map_or(NOBODYS, |sector| u64::from_le_bytes(sector[..8].try_into().unwrap()));
            let may = changes
                .iter()
                .any(|change| change.stamp == said && change.submitted <= time && !is_over(change));
            let is_blank = said == NOBODYS && durable.is_empty();
            if !may && !is_blank {
                return Err(format!("a crash at {time} leaves {said:#x} in sector {sector}"));
            }
        }
        Ok(())
    }

    fn check_crashes(&mut self) -> Result<u64, String> {
        let mut crashes = 0;
        for time in 0..=self.clock.get() {
            let doubts = self.disk.doubts(time);
            let sets: Vec<u64> = match doubts <= SUBSETS_OF {
                true => (0..1 << doubts).collect(),
                false => {
                    let mut sets = vec![0, u64::MAX];
                    sets.extend((0..12).map(|_| self.random.next()));
                    sets
                }
            };
            for set in sets {
                let fates: Vec<u8> = (0..doubts)
                    .map(|at| if set >> (at % 64) & 1 == 1 { 0xff } else { 0 })
                    .collect();
                self.check_crash(&self.disk.after(time, &fates), time)?;
                crashes += 1;
            }
            // One is torn.
            if doubts > 0 {
                let torn = self.random.below(doubts as u64) as usize;
                let fates: Vec<u8> =
                    (0..doubts).map(|at| if at == torn { 0x05 } else { 0xff }).collect();
                self.check_crash(&self.disk.after(time, &fates), time)?;
            }
        }
        Ok(crashes)
    }
}

/// It is durable at that time, by itself or by one of these flushes.
fn has_to_be(flushes: &[(u64, u64)], change: &Change, time: u64) -> bool {
    let covers = |(began, ended): &(u64, u64)| change.completed < *began && *ended <= time;
    flushes.iter().any(covers) || change.is_durable && change.completed <= time
}

/// How many crashes there were; what was wrong.
fn run(seed: u64, canary: WriteBackCanary) -> Result<u64, String> {
    let mut world = World::new(seed, canary);
    for step in 0..STEPS {
        if seed % 5 == 1 && world.random.one_in(15) {
            world.lose();
        }
        if seed % 5 == 2 && step == STEPS * 2 / 3 {
            world.lend();
        }
        if world.pending.len() < DEPTH {
            world.submit();
        }
        for _ in 0..world.random.below(4) {
            world.poll();
        }
    }
    let settle = |world: &mut World, what: &str, is_done: &dyn Fn(&World) -> bool| {
        (0..5000)
            .any(|_| {
                world.poll();
                is_done(world)
            })
            .then_some(())
            .ok_or_else(|| format!("{what} does not end"))
    };
    settle(&mut world, "an I/O", &|world| world.pending.is_empty())?;
    if world.is_gone.get() {
        return match (world.volume.cache().map_or(0, |cache| cache.dirty), world.wrong.take()) {
            (0, None) => world.check_crashes(),
            (_, Some(why)) => Err(why),
            (dirty, None) => Err(format!("{dirty} bytes wait for a disk that is another's")),
        };
    }
    // Nothing fails any more: all of it comes down.
    world.disk.fail("write", 0);
    world.disk.fail("flush", 0);
    let submitted = world.tick();
    world.volume.wind_up();
    settle(&mut world, "the end", &|world| world.volume.is_wound_up())?;
    let now = world.tick();
    world.flushes.push((submitted, now));
    world.check_crash(&world.disk.content(), now)?;
    match world.wrong.take() {
        Some(why) => Err(why),
        None => world.check_crashes(),
    }
}

#[test]
fn whenever_it_crashes_nothing_is_lost_that_was_flushed() {
    let mut crashes = 0;
    for seed in 0..150 {
        crashes +=
            run(seed, WriteBackCanary::None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    println!("{crashes} crashes");
    assert!(crashes > 50_000, "{crashes}");
}

#[test]
fn planted_faults_are_found() {
    let all = [
        WriteBackCanary::FlushFirst,
        WriteBackCanary::DurableInMemory,
        WriteBackCanary::DiscardForgets,
        WriteBackCanary::FailureForgotten,
        WriteBackCanary::NoLock,
        WriteBackCanary::GoingNotRead,
        WriteBackCanary::EpochOverwritten,
        WriteBackCanary::BusyIgnored,
        WriteBackCanary::EndUnflushed,
        WriteBackCanary::FailedThroughCovers,
        WriteBackCanary::OverwrittenForgotten,
        WriteBackCanary::EventsUnheard,
        // `LateOverlay` takes a disk that answers late what it has read early: a puppet.
    ];
    let mut missed = Vec::new();
    for canary in all {
        let found = (0..300).find_map(|seed| Some((seed, run(seed, canary).err()?)));
        println!("{canary:?}: {found:?}");
        missed.extend(found.is_none().then_some(canary));
    }
    assert!(missed.is_empty(), "{missed:?} are not found");
}
