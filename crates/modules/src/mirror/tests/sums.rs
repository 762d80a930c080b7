//! Over legs that keep sums: what one of them cannot give another one does, and gives it to that (rule 20). And what a scrub finds, with sums and
//! without.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::finish;
use thinwire_volume::{IoFlags, Layer, ScrubReport};

use super::super::*;
use super::disk::Disk;
use super::world::*;
use crate::meta::{Finding, LabelOutcome, Labels};
use crate::observed::Observed;
use crate::{
    Cache, CacheCanary, Child, Integrity, IntegrityConfig, IntegrityState, Options, SumLayout,
    SumMaking, TEST_MODULES,
};
use LegState::InSync;

const BLOCK: u64 = 4096;
/// What of a part lies before the data of the mirror's leg.
const PART_BYTES: u64 = (1 << 20) + 2 * BLOCK + DISK_BYTES;

/// A leg that keeps sums, over a store, by way of which a test spoils it.
struct SumLeg {
    store: Observed,
    /// The UUID in its sums.
    whole: [u8; 16],
}

impl SumLeg {
    fn new(leg: usize) -> Self {
        let store = MemoryStore::new(PART_BYTES, 512, Identity::default(), &Pool::new(0));
        let this = SumLeg { store: Observed::new(store), whole: [leg as u8 + 1; 16] };
        let mut making = SumMaking::new(1, &Pool::new(0), this.whole, 0, PART_BYTES);
        let made = (0..100).find_map(|_| making.turn(&mut this.store.clone()));
        assert_eq!(made, Some(Ok(())));
        let mut volume = this.open(Box::new(this.store.clone()));
        for (number, block) in formatted(leg, &state(9, &[InSync; 2]), [0, 0]) {
            let mut io = Io::new(1, Op::Write, number * BLOCK, BLOCK);
            io.data = SegList::of(Pool::new(0).copy_of(&block).freeze());
            assert_eq!(finish(&mut volume, &mut || {}, io).result, Ok(()));
        }
        wind_up(&mut volume);
        this
    }

    fn open(&self, part: Box<dyn Volume>) -> Integrity {
        let bytes = SumLayout::of(PART_BYTES).bytes;
        assert_eq!(bytes, DISK_BYTES);
        let part = Child::all(vec![part]).remove(0);
        let config = IntegrityConfig::new(&Pool::new(1 << 20));
        Integrity::open(part, IntegrityState::new(bytes), self.whole, config).unwrap()
    }

    /// Over something that lies about what it writes of the mirror's data, or of the second block of sums.
    fn lying(&self, seed: u64) -> Box<dyn Volume> {
        let sums = (1 << 20) + BLOCK;
        let (from, to) = match seed % 3 {
            0 => (sums, sums + BLOCK),
            _ => (SumLeg::place(0), PART_BYTES),
        };
        let module = TEST_MODULES.iter().find(|module| module.name == "lie").unwrap();
        let mut options = Options::default();
        for (name, value) in [
            ("lost", 9),
            ("misdirected", 9),
            ("flipped", 9),
            ("from", from),
            ("to", to),
            ("seed", seed),
        ] {
            assert!(options.set(module.option(name).unwrap(), value));
        }
        module.open(vec![Box::new(self.store.clone())], &options).unwrap()
    }

    /// Where a block of the mirror's data stands in the store.
    fn place(block: u64) -> u64 {
        SumLayout::of(PART_BYTES).data_offset + MIRROR_DATA_START + block * BLOCK
    }

    fn read(&self, block: u64) -> Vec<u8> {
        let io = Io::new(1, Op::Read, SumLeg::place(block), BLOCK);
        finish(&mut self.store.clone(), &mut || {}, io).data.to_vec()
    }

    fn put(&self, block: u64, bytes: &[u8]) {
        let mut io = Io::new(1, Op::Write, SumLeg::place(block), BLOCK);
        io.data = SegList::of(Pool::new(0).copy_of(bytes).freeze());
        assert_eq!(finish(&mut self.store.clone(), &mut || {}, io).result, Ok(()));
    }

    fn spoil(&self, block: u64) {
        let mut bytes = self.read(block);
        bytes[99] ^= 16;
        self.put(block, &bytes);
    }
}

fn wind_up(volume: &mut dyn Volume) {
    let mut now = Time::ZERO + Duration::from_secs(1);
    volume.wind_up();
    for _ in 0..1000 {
        now = now + Duration::from_millis(100);
        volume.turn(now);
        volume.poll(&mut Vec::new());
        if volume.is_wound_up() {
            return;
        }
    }
    panic!("it never ends");
}

/// Ends without a word: nobody hears of what the stores were still asked for.
fn kill(mirror: Mirror, legs: &[SumLeg]) {
    drop(mirror);
    legs.iter().for_each(|leg| leg.store.clone().poll(&mut Vec::new()));
}

fn mirror_over(volumes: Vec<Box<dyn Volume>>) -> Mirror {
    let leg = |mut volume: Box<dyn Volume>| {
        let mut labels = Labels::new(LEG_LABEL_TOKEN, &Pool::new(0));
        labels.read(&mut *volume).unwrap();
        let found = (0..9).find_map(|_| labels.turn(&mut *volume));
        let Some(LabelOutcome::Read(Ok(Finding::Label(found)))) = found else {
            panic!("{found:?}");
        };
        Some(MirrorLeg { volume, labels, label: found.label })
    };
    Mirror::open(volumes.into_iter().map(leg).collect(), config(false)).unwrap()
}

fn legs() -> [SumLeg; 2] {
    [0, 1].map(SumLeg::new)
}

fn mirror(legs: &[SumLeg]) -> Mirror {
    let over =
        |leg: &SumLeg| -> Box<dyn Volume> { Box::new(leg.open(Box::new(leg.store.clone()))) };
    mirror_over(legs.iter().map(over).collect())
}

fn write(mirror: &mut Mirror, block: u64, stamp: u8) {
    let mut io = Io::new(1, Op::Write, block * BLOCK, BLOCK);
    io.data = SegList::of(Pool::new(0).copy_of(&[stamp; 4096]).freeze());
    assert_eq!(finish(mirror, &mut || {}, io).result, Ok(()));
}

fn read(mirror: &mut Mirror, block: u64, count: u64) -> Result<Vec<u8>, IoError> {
    let io = Io::new(1, Op::Read, block * BLOCK, count * BLOCK);
    let end = finish(mirror, &mut || {}, io);
    assert!(end.result.is_ok() || end.data.is_empty());
    end.result.map(|()| end.data.to_vec())
}

fn scrub(mirror: &mut Mirror) -> ScrubReport {
    mirror.begin_scrub(0);
    let mut now = mirror.now + Duration::from_secs(1);
    for _ in 0..100_000 {
        now = now + Duration::from_millis(50);
        mirror.turn(now);
        mirror.poll(&mut Vec::new());
        if !mirror.scrub_report().is_running {
            return mirror.scrub_report();
        }
    }
    panic!("it never ends: {:?}", mirror.scrub_report());
}

fn news(mirror: &mut Mirror) -> Vec<VolumeEvent> {
    let mut news = Vec::new();
    mirror.poll_events(&mut news);
    news.retain(|event| !matches!(event, VolumeEvent::Leg { .. }));
    news
}

#[test]
fn what_one_leg_cannot_give_another_does_and_gives_it_to_that() {
    for spoiled in [0, 1] {
        let legs = legs();
        let mut mirror = mirror(&legs);
        write(&mut mirror, 5, 7);
        legs[spoiled].spoil(5);
        // Each leg is asked now and then.
        for _ in 0..200 {
            assert!(read(&mut mirror, 4, 3).unwrap()[4096..8192] == [7; 4096]);
        }
        assert_eq!(legs[spoiled].read(5), [7; 4096], "it was written again");
        let event = VolumeEvent::BadBlock { offset: 5 * BLOCK, is_mended: true, of: None };
        assert_eq!((mirror.report().mended, &news(&mut mirror)[..]), (1, &[event][..]));
        assert!(mirror.legs().all(|(state, _)| state == InSync), "no leg is dropped for that");
    }
}

/// Neither a mirror over caches nor sums over one take what is in memory for what stands there.
#[test]
fn a_scrub_finds_what_rots_below_caches() {
    for canary in [CacheCanary::None, CacheCanary::ScrubsAnswered] {
        for is_above in [true, false] {
            let legs = legs();
            let cached = |volume: Box<dyn Volume>| -> Box<dyn Volume> {
                let mut cache = Cache::new(volume, 64 << 20);
                cache.set_canary(canary);
                Box::new(cache)
            };
            let over = |leg: &SumLeg| -> Box<dyn Volume> {
                let store = Box::new(leg.store.clone());
                match is_above {
                    true => cached(Box::new(leg.open(store))),
                    false => Box::new(leg.open(cached(store))),
                }
            };
            let mut mirror = mirror_over(legs.iter().map(over).collect());
            write(&mut mirror, 5, 7);
            // The planted fault keeps what this one reads.
            assert!(scrub(&mut mirror).is_clean());
            legs[1].spoil(5);
            let found = u64::from(canary == CacheCanary::None);
            assert_eq!(scrub(&mut mirror).repaired, found, "{canary:?}, {is_above}");
            assert_eq!(legs[1].read(5) == [7; 4096], found == 1);
        }
    }
}

#[test]
fn each_block_may_come_from_another_leg() {
    let legs = legs();
    let mut mirror = mirror(&legs);
    (0..4).for_each(|block| write(&mut mirror, block, block as u8 + 1));
    legs[0].spoil(1);
    legs[1].spoil(2);
    let all = read(&mut mirror, 0, 4).unwrap();
    assert!(all.chunks(4096).zip(1..).all(|(block, stamp)| block == [stamp; 4096]));
    assert_eq!((legs[0].read(1)[99], legs[1].read(2)[99]), (2, 3));
}

/// Many of them are no reason to drop a leg, as reads that fail are.
#[test]
fn a_leg_is_not_dropped_for_its_sums() {
    let legs = legs();
    let mut mirror = mirror(&legs);
    (0..100).for_each(|block| write(&mut mirror, block, 9));
    (0..100).for_each(|block| legs[(block % 2) as usize].spoil(block));
    for _ in 0..3 {
        (0..100).for_each(|block| assert!(read(&mut mirror, block, 1).unwrap() == [9; 4096]));
    }
    let report = scrub(&mut mirror);
    assert_eq!((report.bad, mirror.report().mended), (0, 100));
    assert!(mirror.legs().all(|(state, _)| state == InSync));
}

/// One that does not keep what it is given is given up in the end.
#[test]
fn a_leg_that_spoils_the_same_block_again_and_again_is_dropped() {
    let legs = legs();
    let mut mirror = mirror(&legs);
    write(&mut mirror, 5, 7);
    let mut times = 0;
    while mirror.in_sync == 3 {
        legs[1].spoil(5);
        let before = mirror.report().mended;
        while mirror.in_sync == 3 && mirror.report().mended == before {
            assert!(read(&mut mirror, 5, 1) == Ok(vec![7; 4096]));
        }
        times += 1;
        assert!(times < 100);
    }
    assert!(times > 10 && mirror.in_sync == 1, "{times}");
}

#[test]
fn without_a_good_source_the_read_fails_and_names_the_block() {
    let legs = legs();
    let mut mirror = mirror(&legs);
    (0..4).for_each(|block| write(&mut mirror, block, 7));
    legs.iter().for_each(|leg| leg.spoil(2));
    for _ in 0..3 {
        let error = read(&mut mirror, 0, 4).unwrap_err();
        assert_eq!((error.kind, error.offset, error.len), (ErrorKind::BadSum, 2 * BLOCK, BLOCK));
    }
    assert_eq!(read(&mut mirror, 3, 1), Ok(vec![7; 4096]));
    let report = scrub(&mut mirror);
    assert_eq!((report.bad, report.repaired, &report.places[..]), (1, 0, &[2 * BLOCK][..]));
    assert!(legs.iter().all(|leg| leg.read(2)[99] == 7 ^ 16), "nothing was written over it");
    // Who has it writes it again.
    write(&mut mirror, 2, 8);
    assert_eq!(read(&mut mirror, 0, 4).unwrap()[8192], 8);
    assert!(scrub(&mut mirror).is_clean());
}

#[test]
fn every_lie_is_found_by_a_scrub_and_mended() {
    let (mut repaired, mut lies) = (0, 0);
    for seed in 0..12 {
        let legs = legs();
        let over = |(nth, leg): (usize, &SumLeg)| -> Box<dyn Volume> {
            // The other one is honest: it has all.
            match nth == (seed % 2) as usize {
                true => Box::new(leg.open(leg.lying(seed))),
                false => Box::new(leg.open(Box::new(leg.store.clone()))),
            }
        };
        let mut lied_to = mirror_over(legs.iter().enumerate().map(over).collect());
        let stamp = |block: u64| (block % 250) as u8 + 1;
        // Twice, the second time the other way round, so that no sum is written for the last time with that of the block before it.
        for block in (100..250).chain((100..250).rev()) {
            write(&mut lied_to, block, stamp(block));
        }
        wind_up(&mut lied_to);
        let liar = &legs[(seed % 2) as usize];
        lies += (100..250).filter(|block| liar.read(*block) != [stamp(*block); 4096]).count();
        let mut mirror = mirror(&legs);
        let report = scrub(&mut mirror);
        assert_eq!((report.bad, report.differing), (0, 0), "seed {seed}: {report:?}");
        repaired += report.repaired;
        let second = scrub(&mut mirror);
        assert!(second.is_clean(), "seed {seed}: {second:?}");
        for leg in &legs {
            for block in 100..250 {
                assert!(leg.read(block) == [stamp(block); 4096], "seed {seed}, {block}");
            }
        }
    }
    println!("{lies} blocks were not as they were written, {repaired} were mended");
    assert!(lies > 100 && repaired >= lies as u64, "{lies}, {repaired}");
}

/// Legs without sums: their label areas and bitmaps are those of the others, and what they say nobody knows to be wrong.
fn plain_differ(canary: MirrorCanary) -> (ScrubReport, [u8; 2]) {
    let states = [InSync; 2];
    let disks = [0, 1].map(|leg| Disk::new(DISK_BYTES, formatted(leg, &state(9, &states), [0, 0])));
    let legs = disks.iter().map(leg).collect();
    disks.iter().for_each(|disk| disk.be_prompt(true));
    let mut mirror = Mirror::open(legs, config(false)).unwrap();
    mirror.canary = canary;
    write(&mut mirror, 3, 5);
    let mut io = Io::new(1 << 40, Op::Write, MIRROR_DATA_START + 3 * BLOCK, BLOCK);
    io.data = SegList::of(Pool::new(0).copy_of(&[6; 4096]).freeze());
    let mut disk = disks[1].clone();
    disk.submit(io);
    disk.poll(&mut Vec::new());
    let report = scrub(&mut mirror);
    let first = MIRROR_DATA_START / BLOCK + 3;
    let has = |disk: &Disk| super::disk::at(&disk.content(), first)[0];
    (report, [has(&disks[0]), has(&disks[1])])
}

#[test]
fn without_sums_differences_are_told_and_nothing_is_written() {
    let (report, has) = plain_differ(MirrorCanary::None);
    assert_eq!((report.differing, report.repaired, report.bad), (1, 0, 0));
    assert_eq!((&report.places[..], has), (&[3 * BLOCK][..], [5, 6]));
    let (report, has) = plain_differ(MirrorCanary::RepairsByGuess);
    assert_eq!((report.differing, has), (0, [5, 5]), "the planted fault copies");
}

/// A crash leaves a block unverified at the leg that is chosen, and may at the other.
fn after_a_crash(at_both: bool, canary: MirrorCanary) -> (Mirror, [SumLeg; 2], u8) {
    let legs = legs();
    let mut before = mirror(&legs);
    write(&mut before, 5, 7);
    // While it is open; the disk has half of something that nobody heard of.
    kill(before, &legs);
    legs[0].put(5, &[0x55; 4096]);
    if at_both {
        legs[1].put(5, &[0x66; 4096]);
    }
    let mut mirror = mirror(&legs);
    mirror.canary = canary;
    let mut now = mirror.now;
    for _ in 0..200 {
        now = now + Duration::from_millis(100);
        mirror.turn(now);
        mirror.poll(&mut Vec::new());
    }
    assert!(mirror.legs().all(|(state, _)| state == InSync));
    let stamp = read(&mut mirror, 5, 1).unwrap()[0];
    (mirror, legs, stamp)
}

#[test]
fn what_is_not_verified_is_read_where_nobody_has_better() {
    // What was open at the crash was copied from the first leg, since no other was in sync by then.
    let (mut mirror, legs, stamp) = after_a_crash(true, MirrorCanary::None);
    assert_eq!(stamp, 0x55);
    assert_eq!((legs[0].read(5)[0], legs[1].read(5)[0]), (0x55, 0x55));
    // The other leg has it by a write, so that fits there, and is the source from then on.
    for _ in 0..200 {
        assert_eq!(read(&mut mirror, 5, 1).unwrap()[0], 0x55);
    }
    let report = scrub(&mut mirror);
    assert_eq!((report.bad, report.unverified), (0, 0), "{report:?}");
    assert!(scrub(&mut mirror).is_clean());
    let flags = IoFlags { verified: true, ..IoFlags::default() };
    let io = Io { flags, ..Io::new(1, Op::Read, 5 * BLOCK, BLOCK) };
    assert_eq!(finish(&mut mirror, &mut || {}, io).result, Ok(()));
}

#[test]
fn what_the_chosen_leg_cannot_verify_comes_from_another_that_was_open_with_it() {
    let (mut mirror, legs, stamp) = after_a_crash(false, MirrorCanary::None);
    assert_eq!((stamp, legs[0].read(5)[0], legs[1].read(5)[0]), (7, 7, 7));
    assert_eq!(mirror.report().mended, 1);
    assert!(scrub(&mut mirror).is_clean());
    let (_, legs, stamp) = after_a_crash(false, MirrorCanary::UnverifiedSource);
    assert_eq!((stamp, legs[1].read(5)[0]), (0x55, 0x55), "the planted fault copies it");
}

/// Before its resync has come to it, too; and whoever reads it again reads the same.
#[test]
fn who_reads_it_before_it_is_copied_gets_that_too() {
    let legs = legs();
    let mut before = mirror(&legs);
    (3..6).for_each(|block| write(&mut before, block, 7));
    kill(before, &legs);
    legs[0].put(4, &[0x55; 4096]);
    // Of this one only the other leg can tell that it is not as it was.
    legs[1].put(5, &[0x66; 4096]);
    let mut mirror = mirror(&legs);
    mirror.resync.retry_at = Time::NEVER;
    for _ in 0..50 {
        assert!(read(&mut mirror, 3, 3) == Ok(vec![7; 3 * 4096]));
    }
    assert_eq!(
        (legs[0].read(4)[0], mirror.in_sync),
        (7, 1),
        "nothing is in sync yet but the chosen leg"
    );
}

/// A leg that is copied to and has a region gives what the only leg in sync cannot.
#[test]
fn a_leg_that_is_copied_to_gives_what_it_has() {
    let legs = legs();
    let mut before = mirror(&legs);
    write(&mut before, 5, 7);
    write(&mut before, SMALL, 8);
    // The first region is closed by now.
    let mut now = before.now;
    for _ in 0..50 {
        now = now + Duration::from_millis(100);
        before.turn(now);
        before.poll(&mut Vec::new());
        if now > Time::ZERO + Duration::from_secs(1) {
            write(&mut before, SMALL, 8);
        }
    }
    kill(before, &legs);
    legs[0].spoil(5);
    let mut mirror = mirror(&legs);
    mirror.resync.retry_at = Time::NEVER;
    assert!(read(&mut mirror, 5, 1) == Ok(vec![7; 4096]));
    assert_eq!((legs[0].read(5)[0], mirror.in_sync), (7, 1));
}

/// Who has asked for what fits gets nothing else, also by way of what has asked in vain.
#[test]
fn what_nobody_has_verified_is_not_given_to_who_asks_for_that() {
    let legs = legs();
    let mut before = mirror(&legs);
    write(&mut before, 5, 7);
    kill(before, &legs);
    legs.iter().for_each(|leg| leg.put(5, &[0x55; 4096]));
    for (canary, fails) in [(MirrorCanary::None, true), (MirrorCanary::UnverifiedSource, false)] {
        let mut mirror = mirror(&legs);
        (mirror.canary, mirror.resync.retry_at) = (canary, Time::NEVER);
        let flags = IoFlags { verified: true, ..IoFlags::default() };
        let io = Io { flags, ..Io::new(1, Op::Read, 5 * BLOCK, BLOCK) };
        let end = finish(&mut mirror, &mut || {}, io);
        match fails {
            true => assert_eq!(end.result.unwrap_err().kind, ErrorKind::BadSum),
            false => assert_eq!(end.result, Ok(())),
        }
        assert_eq!(read(&mut mirror, 5, 1), Ok(vec![0x55; 4096]));
        kill(mirror, &legs);
    }
}

/// A crash leaves a block new at the leg that is chosen, and old at the other, both fitting their sums; what was read of the new one goes bad then.
fn gone_bad(is_read: bool, canary: MirrorCanary) -> Result<Vec<u8>, IoError> {
    let legs = legs();
    let mut before = mirror(&legs);
    write(&mut before, 5, 7);
    kill(before, &legs);
    let mut one = legs[0].open(Box::new(legs[0].store.clone()));
    let mut io = Io::new(1, Op::Write, MIRROR_DATA_START + 5 * BLOCK, BLOCK);
    io.data = SegList::of(Pool::new(0).copy_of(&[8; 4096]).freeze());
    assert_eq!(finish(&mut one, &mut || {}, io).result, Ok(()));
    wind_up(&mut one);
    drop(one);
    let mut mirror = mirror(&legs);
    (mirror.canary, mirror.resync.retry_at) = (canary, Time::NEVER);
    if is_read {
        assert_eq!(read(&mut mirror, 5, 1), Ok(vec![8; 4096]));
    }
    // Each leg has looked by itself at what was open.
    let mut now = mirror.now;
    for _ in 0..200 {
        now = now + Duration::from_millis(100);
        mirror.turn(now);
        (0..4).for_each(|_| mirror.poll(&mut Vec::new()));
    }
    legs[0].spoil(5);
    read(&mut mirror, 5, 1)
}

/// Rules 4 and 20: who has read the new one does not read the old one behind that.
#[test]
fn what_was_read_behind_a_crash_is_not_taken_back_by_what_another_leg_has() {
    let error = gone_bad(true, MirrorCanary::None).unwrap_err();
    assert_eq!((error.kind, error.offset), (ErrorKind::BadSum, 5 * BLOCK));
    assert_eq!(gone_bad(false, MirrorCanary::None), Ok(vec![7; 4096]), "nobody knows better");
    let planted = gone_bad(true, MirrorCanary::ForgetsWhatWasRead);
    assert_eq!(planted, Ok(vec![7; 4096]), "the planted fault takes it back");
}

/// A leg of which somebody counts what is read of its data.
struct Counting(Integrity, Rc<Cell<u32>>);

impl Layer for Counting {
    type Below = Integrity;

    fn below(&self) -> &Integrity {
        &self.0
    }

    fn below_mut(&mut self) -> &mut Integrity {
        &mut self.0
    }

    fn take(&mut self, io: Io) {
        let is_read = io.op == Op::Read && io.offset >= MIRROR_DATA_START;
        self.1.set(self.1.get() + u32::from(is_read));
        self.0.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.0.poll(done);
    }

    fn taken(&self) -> usize {
        self.0.outstanding()
    }
}

/// How often legs are read until what was open at a crash is copied, with these blocks not verified, and the other leg of no use if `is_alone`.
fn reads_to_heal(unverified: &[u64], is_alone: bool, canary: MirrorCanary) -> u32 {
    let legs = legs();
    let mut before = mirror(&legs);
    (0..128).for_each(|block| write(&mut before, block, 7));
    kill(before, &legs);
    for leg in &legs {
        unverified.iter().for_each(|block| leg.put(*block, &[0x55; 4096]));
    }
    let count = Rc::new(Cell::new(0));
    let over = |leg: &SumLeg| -> Box<dyn Volume> {
        Box::new(Counting(leg.open(Box::new(leg.store.clone())), count.clone()))
    };
    let mut mirror = mirror_over(legs.iter().map(over).collect());
    mirror.canary = canary;
    mirror.resync.retry_at = Time::NEVER;
    let mut now = mirror.now;
    while mirror.phase != opening::Phase::Serving || mirror.in_sync != 3 {
        now = now + Duration::from_millis(100);
        mirror.turn(now);
        if mirror.phase == opening::Phase::Serving && !mirror.record.is_changing() {
            mirror.alike = if is_alone { 0 } else { mirror.alike };
            mirror.try_now();
        }
        mirror.poll(&mut Vec::new());
        assert!(now < Time::ZERO + Duration::from_secs(600), "it never ends");
    }
    kill(mirror, &legs);
    for block in 0..128 {
        let stamp = if unverified.contains(&block) { 0x55 } else { 7 };
        let found = [0, 1].map(|leg: usize| legs[leg].read(block)[9]);
        assert_eq!(found, [stamp; 2], "{block}");
    }
    count.get()
}

/// What is around a block that does not fit is read in pieces that are as long as may be; and what one leg alone can give in one.
#[test]
fn around_what_is_not_verified_a_resync_reads_long_pieces() {
    let few: Vec<u64> = (0..128).step_by(40).collect();
    let all: Vec<u64> = (0..128).collect();
    let reads = reads_to_heal;
    assert_eq!(reads(&[], false, MirrorCanary::None), 8, "a region of 1 MiB");
    let few_reads = [false, true].map(|alone| reads(&few, alone, MirrorCanary::None));
    let one_by_one = [false, true].map(|alone| reads(&few, alone, MirrorCanary::BlockByBlock));
    println!("{few_reads:?} reads, and {one_by_one:?} block by block");
    assert!(few_reads[0] * 2 < one_by_one[0] && few_reads[1] <= 12, "{few_reads:?} {one_by_one:?}");
    let all_reads = [false, true].map(|alone| reads(&all, alone, MirrorCanary::None));
    let one_by_one = reads(&all, false, MirrorCanary::BlockByBlock);
    assert!(all_reads[0] < one_by_one * 5 / 4 && all_reads[1] <= 12, "{all_reads:?} {one_by_one}");
}
