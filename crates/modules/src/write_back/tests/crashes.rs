//! Random workloads on a disk that does its I/Os in any order, fails some, and loses in a crash what was not flushed: what is read is what
//! was written, and at every moment a crash, with each subset of a few unflushed writes lost, leaves what a flush has promised. Planted faults are found
//! by the same.

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::testing::SplitMix64;

use super::*;
use crate::thin::tests::disk::{Clock, Content, Disk, NOBODYS, sector_of};

/// So few that most of what is written lies over something.
const SECTORS: u64 = 40;
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

struct Pending {
    op: Op,
    first: u64,
    count: u64,
    submitted: u64,
    stamp: u64,
}

struct World {
    volume: WriteBack,
    disk: Disk,
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
        let mut volume = WriteBack::new(Box::new(disk.clone()), WriteBack::BYTES_MIN);
        volume.set_canary(canary);
        World {
            volume,
            disk,
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
            }
        }
        self.pending.push((self.next, Pending { op, first, count, submitted, stamp }));
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
                        let change = changes.iter_mut().find(|change| {
                            change.submitted == submitted && change.stamp == pending.stamp
                        });
                        change.expect("it is known").completed = now;
                    }
                }
            }
        }
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
            let has_to_be = |change: &&Change| {
                let is_covered = self
                    .flushes
                    .iter()
                    .any(|(began, ended)| change.completed < *began && *ended <= time);
                is_covered || change.is_durable && change.completed <= time
            };
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

/// How many crashes there were; what was wrong.
fn run(seed: u64, canary: WriteBackCanary) -> Result<u64, String> {
    let mut world = World::new(seed, canary);
    for _ in 0..STEPS {
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
        // `LateOverlay` takes a disk that answers late what it has read early: a puppet.
    ];
    for canary in all {
        let found = (0..300).find_map(|seed| Some((seed, run(seed, canary).err()?)));
        println!("{canary:?}: {found:?}");
        assert!(found.is_some(), "{canary:?} is not found");
    }
}
