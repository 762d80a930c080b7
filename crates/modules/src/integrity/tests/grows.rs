//! Parts that grow while they are used, with their labels: at every crash a volume has the size of before or that of behind, what was promised is there, and all
//! fits its sums, whatever somebody has left where it grows to.

use std::time::Duration;

use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Identity, WorkPace};

use super::super::*;
use super::growth::{GROWN_BYTES, used};
use super::world::*;
use crate::meta::{
    BESIDE_TOKEN, Finding, GrowthCanary, GrowthError, LABEL_AREA_BYTES, LABEL_OFFSETS, Label,
    LabelOutcome, LabelWork, LabelledPart, Labels, NewPart, NewWhole, PartFence, SeenPart,
    WholeGrowth, assemble, label_parts,
};
use crate::mirror::tests::disk::{Content, Disk, Fate};
use crate::mirror::tests::fates;
use crate::write_intent::bitmap::{BLOCK_BYTES, BlockName, REGIONS_EACH, encode};
use crate::{Module, Options};

const START: u64 = LABEL_AREA_BYTES;
/// The first block that comes.
const NEW: u64 = DATA_BYTES / BLOCK;

fn large() -> u64 {
    SumLayout::of(GROWN_BYTES).bytes
}

/// What a disk holds whose part has that, and so many bytes by its label.
fn labelled(part: Content, part_bytes: u64) -> Content {
    let (module, options) = (Module::find(NAME).unwrap(), &Options::default());
    let new = NewPart { uuid: [1; 16], content: Identity::default(), bytes: START + part_bytes };
    assert_eq!(new.data_bytes(module), part_bytes);
    let bytes = SumLayout::of(part_bytes).bytes;
    let whole = NewWhole { name: "sums", uuid: WHOLE, module, options, bytes };
    let mut label = label_parts(&whole, &[new]).unwrap().remove(0);
    label.state = IntegrityState::new(bytes).encode();
    let moved = part.into_iter().map(|(block, bytes)| (START / BLOCK + block, bytes));
    let mut content: Content = moved.collect();
    for (offset, generation) in LABEL_OFFSETS.into_iter().zip(2..) {
        let image = Label { generation, ..label.clone() }.encode().unwrap();
        content.insert(offset / BLOCK, image[..].into());
    }
    content
}

/// A volume that is open for writing, and what has it grow.
struct InUse {
    world: World,
    growth: WholeGrowth,
    /// It was being scrubbed when it was larger at once.
    was_scrubbing: bool,
}

fn open(
    bytes: u64,
    content: Content,
    canary: IntegrityCanary,
    seed: Option<u64>,
) -> Result<InUse, String> {
    let disk = Disk::new(bytes, content);
    disk.be_prompt(true);
    let mut labels = Labels::new(BESIDE_TOKEN, &Pool::new(0));
    labels.read(&mut disk.clone()).unwrap();
    let mut turns = std::iter::repeat_with(|| labels.turn(&mut disk.clone())).take(3).flatten();
    let Some(LabelOutcome::Read(found)) = turns.next() else { panic!("it is not read") };
    drop(turns);
    let seen = SeenPart { found, content: Identity::default() };
    let whole = assemble(std::slice::from_ref(&seen)).map_err(|e| format!("{e:?}"))?;
    let Ok(Finding::Label(found)) = seen.found else { panic!("it has a label") };
    let state = IntegrityState::decode(&found.label.state, whole.bytes);
    let state = state.map_err(|fault| fault.to_string())?;
    disk.be_prompt(false);
    let (part, door) = LabelledPart::new(Box::new(disk.clone()), PartFence::default());
    let at = &whole.parts[0];
    let part = Child::within(Box::new(part), at.data_start, at.data_bytes)?;
    let part = part.made_with(at.made_bytes).beside(door.clone());
    let mut volume =
        Integrity::open(part, state, WHOLE, config(2)).map_err(|error| error.to_string())?;
    volume.canary = canary;
    let growth = WholeGrowth::new(whole, vec![door], vec![(labels, found.label)], None);
    Ok(InUse { world: World::of(disk, volume, seed), growth, was_scrubbing: false })
}

/// The volume of [`used`] on a disk that has more, by whatever is left there.
fn in_use(canary: IntegrityCanary, seed: Option<u64>) -> InUse {
    open(START + GROWN_BYTES, labelled(used(), PART_BYTES), canary, seed).unwrap()
}

impl InUse {
    fn bytes(&self) -> u64 {
        self.world.volume.geometry().bytes
    }

    /// One thing is done, and heard of.
    fn step(&mut self) -> Option<Result<u64, GrowthError>> {
        let before = (self.bytes(), self.world.volume.scrub_report().is_running);
        self.world.turn();
        self.was_scrubbing |= before.1 && self.bytes() > before.0;
        if !self.world.step() {
            self.world.now = self.world.now + Duration::from_millis(50);
        }
        self.growth.turn_growth()
    }

    /// Until it has ended.
    fn ended(&mut self) -> Result<u64, GrowthError> {
        let ended = (0..5000).find_map(|_| self.step()).expect("it ends");
        self.step();
        ended
    }

    /// Until the last of the labels with which it grows is what the disk does next.
    fn until_last_label(&mut self) {
        let is_label = |io: &Io| io.op == Op::Write && io.offset < START;
        // The one that was read, once more, and those of both phases of an opening.
        for left in (0..3).rev() {
            loop {
                self.world.turn();
                if self.world.disk.first_queued(is_label) == Some(0) {
                    break;
                }
                assert_eq!(self.step(), None, "it has not ended");
            }
            if left > 0 {
                assert_eq!(self.step(), None, "it has not ended");
            }
        }
    }

    /// All of what was there, and of what has come, reads as it was, and fits.
    fn look(&mut self) -> Result<(), String> {
        for (block, stamp) in [(0, 1), (LAST + 3, 3), (NEW, 0), (NEW + 700, 0)] {
            let read = self.world.read(block, 1, true);
            let read = read.map_err(|error| format!("block {block}: {error}"))?;
            if read.iter().any(|byte| *byte != stamp) {
                return Err(format!("block {block} reads as {}", read[0]));
            }
        }
        let report = self.world.scrub();
        match (report.bad, report.checked_bytes == self.bytes()) {
            (0, true) => Ok(()),
            _ => Err(format!("{report:?}")),
        }
    }
}

/// What workloads write, and some that they do not.
fn blocks() -> Vec<u64> {
    let end = large() / BLOCK;
    vec![0, SECOND, SECOND + 1, LAST + 3, NEW - 1, NEW, NEW + 5, NEW + 700, end - 2, end - 1]
}

/// What is there after a crash: its size.
fn survives(moment: &Moment, content: Content, is_told: bool) -> Result<u64, String> {
    let mut used = open(START + GROWN_BYTES, content, IntegrityCanary::None, None)?;
    let bytes = used.bytes();
    if bytes != large() && (bytes != DATA_BYTES || is_told) {
        return Err(format!("it has {bytes} bytes"));
    }
    for block in blocks().into_iter().filter(|block| block * BLOCK < bytes) {
        let before = match block {
            0 => 1,
            SECOND => 2,
            _ if block == LAST + 3 => 3,
            _ => 0,
        };
        let read = used.world.read(block, 1, false);
        let read = read.map_err(|error| format!("block {block}: {error}"))?;
        for sector in read.chunks(512) {
            let stamp = sector[0];
            let is_allowed = match stamp == before {
                true => moment.allows(block, 0) || moment.allows(block, stamp),
                false => stamp != 0 && moment.allows(block, stamp),
            };
            if sector.iter().any(|byte| *byte != stamp) || !is_allowed {
                return Err(format!("block {block} reads as {stamp}"));
            }
        }
    }
    Ok(bytes)
}

/// All crashes of a growth beside somebody who writes, in the order that a seed decides: the sizes that were met, and how many.
fn explore(
    canary: IntegrityCanary,
    offers: GrowthCanary,
    seed: Option<u64>,
) -> Result<(Vec<u64>, usize), String> {
    let mut used = in_use(canary, seed);
    used.growth.set_canary(offers);
    used.world.is_recording = true;
    used.growth.begin([7; 16]).unwrap();
    let (mut told, mut ended) = (None, None);
    for nth in 0..1000 {
        if nth % 6 == 0 && nth < 60 {
            used.world.write(SECOND + nth / 6 % 2, 1, 10 + nth as u8, nth % 4 == 0);
        }
        ended = ended.or(used.step());
        if used.bytes() > DATA_BYTES && told.is_none() {
            told = Some(used.world.moments.len());
            used.world.write(NEW - 1, 2, 100, true);
            used.world.write(large() / BLOCK - 1, 1, 101, true);
        }
        if ended.is_some() && told.is_some() {
            break;
        }
    }
    let (told, ended) = (told.expect("it is larger"), ended.expect("it ends"));
    ended.map_err(|error| error.to_string())?;
    used.world.wait();
    used.world.write(NEW + 5, 1, 102, false);
    used.world.write(NEW, 1, 103, false);
    used.world.wait();
    used.world.flush();
    used.world.wait();
    used.world.pass(5);
    let (mut random, mut met, mut count) = (SplitMix64::new(3), Vec::new(), 0);
    for (nth, moment) in used.world.moments.iter().enumerate() {
        for fates in fates(std::slice::from_ref(&moment.disk), &mut random, 4) {
            let content = moment.disk.after(&fates[0]);
            met.push(survives(moment, content, nth >= told).map_err(|e| format!("{nth}: {e}"))?);
            count += 1;
        }
    }
    met.sort_unstable();
    met.dedup();
    Ok((met, count))
}

/// Rule 24.
#[test]
fn it_grows_at_once_or_not_at_all() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let found = explore(IntegrityCanary::None, GrowthCanary::None, seed);
        let (met, count) = found.unwrap_or_else(|why| panic!("{seed:?}: {why}"));
        println!("{seed:?}: {count} crashes");
        assert_eq!(met, [DATA_BYTES, large()]);
        assert!(count > 300, "only {count}");
    }
}

#[test]
fn a_label_that_comes_before_what_it_tells_of_is_found() {
    let why = explore(IntegrityCanary::GrowsAhead, GrowthCanary::None, None).unwrap_err();
    println!("{why}");
    assert!(why.contains("sum"), "{why}");
}

#[test]
fn a_size_that_comes_before_its_label_is_found() {
    let why = explore(IntegrityCanary::None, GrowthCanary::OffersEarly, None).unwrap_err();
    println!("{why}");
    assert!(why.contains("it has") || why.contains("sum"), "{why}");
}

/// It tells of its size, once, and is the same volume; what comes behind finds the same. Then it grows once more.
#[test]
fn it_tells_of_its_size_and_is_the_same_volume() {
    let mut used = in_use(IntegrityCanary::None, None);
    let (identity, whole) = (used.world.volume.identity(), used.growth.whole().uuid);
    used.growth.begin([7; 16]).unwrap();
    assert_eq!(used.growth.begin([8; 16]), Err(GrowthError::Busy));
    assert_eq!(used.world.volume.grows(), None, "it has not heard");
    used.step();
    let all = GROWN_BYTES - PART_BYTES;
    assert_eq!(used.world.volume.grows().map(|(_, of)| of), Some(all));
    assert_eq!(used.ended(), Ok(large()));
    let told = used.world.news.iter().filter(|event| matches!(event, VolumeEvent::Resized { .. }));
    assert_eq!(told.collect::<Vec<_>>(), [&VolumeEvent::Resized { bytes: large() }]);
    assert_eq!((used.bytes(), used.world.volume.grows()), (large(), None));
    assert_eq!((used.world.volume.identity(), used.growth.whole().uuid), (identity, whole));
    assert_eq!(used.growth.begin([8; 16]), Err(GrowthError::NoRoom));
    used.look().unwrap();
    // Over the border, and by who opens it anew, where it grows by 20 blocks more.
    used.world.write(NEW - 2, 4, 9, false);
    used.world.succeed();
    used.world.zero(NEW, 1, Op::Discard);
    used.world.succeed();
    let content = used.world.close();
    let bytes = START + GROWN_BYTES + 20 * BLOCK;
    let mut used = open(bytes, content, IntegrityCanary::None, None).unwrap();
    assert_eq!((used.bytes(), used.world.volume.identity()), (large(), identity));
    used.growth.begin([9; 16]).unwrap();
    assert_eq!(used.ended(), Ok(SumLayout::of(GROWN_BYTES + 20 * BLOCK).bytes));
    for (block, stamp) in [(NEW - 2, 9), (NEW - 1, 9), (NEW, 0), (NEW + 1, 9), (NEW + 2, 0)] {
        let read = used.world.read(block, 1, true).unwrap();
        assert!(read.iter().all(|byte| *byte == stamp), "block {block} reads as {}", read[0]);
    }
    assert!(used.world.scrub().is_clean());
}

/// How a growth ends of which the part has lost what was zeroed first; by a flush of a user that fails, or by saying so. And what is read then.
fn loses(canary: IntegrityCanary, is_flush: bool) -> (Result<u64, GrowthError>, InUse) {
    let mut used = in_use(canary, None);
    used.growth.begin([7; 16]).unwrap();
    while used.world.volume.grows().is_none_or(|(zeroed, _)| zeroed < 3 << 20) {
        assert_eq!(used.step(), None);
    }
    if is_flush {
        used.world.disk.fail_flushes(true);
        used.world.flush();
        used.world.wait();
        used.world.disk.fail_flushes(false);
    } else {
        used.world.lose();
    }
    let ended = used.ended();
    (ended, used)
}

#[test]
fn what_is_lost_of_what_was_zeroed_ends_it() {
    for is_flush in [false, true] {
        let (ended, mut used) = loses(IntegrityCanary::None, is_flush);
        assert_eq!((ended, used.bytes()), (Err(GrowthError::Lost), DATA_BYTES));
        used.growth.begin([8; 16]).unwrap();
        assert_eq!(used.ended(), Ok(large()), "the same again");
        used.look().unwrap();
        let (ended, used) = loses(IntegrityCanary::TrustsZeroed, is_flush);
        assert_eq!(ended, Ok(large()));
        let disk = used.world.disk.snapshot();
        let content = disk.after(&vec![Fate::Lost; disk.doubts()]);
        let mut used = open(START + GROWN_BYTES, content, IntegrityCanary::None, None).unwrap();
        let why = used.look().expect_err("it was not found");
        assert!(why.contains("sum") || why.contains("bad: "), "{why}");
    }
}

/// It says what has failed, and is as large as before; the same again begins anew.
#[test]
fn what_cannot_be_zeroed_ends_it() {
    let mut used = in_use(IntegrityCanary::None, None);
    used.world.disk.fail_writes_in(Some((START + PART_BYTES + (2 << 20), START + GROWN_BYTES)));
    used.growth.begin([7; 16]).unwrap();
    let ended = used.ended();
    assert!(
        matches!(ended, Err(GrowthError::Unwritten(error)) if error.op.is_write()),
        "{ended:?}"
    );
    used.world.disk.fail_writes_in(None);
    // Nothing says that what users wrote is there, either.
    used.growth.begin([7; 16]).unwrap();
    while used.world.disk.queued_of(Op::Flush).is_empty() {
        assert_eq!(used.step(), None);
    }
    used.world.news.clear();
    used.world.disk.fail_flushes(true);
    let ended = used.ended();
    assert!(matches!(ended, Err(GrowthError::Unwritten(error)) if error.op == Op::Flush));
    assert!(used.world.news.contains(&VolumeEvent::Lost), "{:?}", used.world.news);
    used.world.disk.fail_flushes(false);
    assert_eq!(used.bytes(), DATA_BYTES);
    used.growth.begin([7; 16]).unwrap();
    assert_eq!(used.ended(), Ok(large()));
    used.look().unwrap();
}

/// Whoever has it end does not wait for that, and nothing is under way behind it.
#[test]
fn who_ends_meanwhile_is_as_large_as_before() {
    let mut used = in_use(IntegrityCanary::None, None);
    used.growth.begin([7; 16]).unwrap();
    while used.world.disk.queued_of(Op::WriteZeroes).is_empty() {
        assert_eq!(used.step(), None);
    }
    used.world.volume.wind_up();
    assert!(!used.world.volume.is_wound_up(), "something is under way");
    assert_eq!(used.ended(), Err(GrowthError::Ended));
    let content = used.world.close();
    let mut used = open(START + GROWN_BYTES, content, IntegrityCanary::None, None).unwrap();
    assert_eq!(used.bytes(), DATA_BYTES);
    used.growth.begin([7; 16]).unwrap();
    assert_eq!(used.ended(), Ok(large()));
    used.look().unwrap();
}

/// The end cannot be written down while something of that kind is under way: it has not ended before that has.
fn cannot_end_beside(used: &mut InUse, op: Op) {
    used.world.write(SECOND, 1, 9, false);
    used.world.volume.wind_up();
    used.world.disk.fail_writes_in(Some((START, START + PART_BYTES)));
    let nth = used.world.disk.first_queued(|io| io.op == Op::Write).expect("its region is opened");
    used.world.disk.execute(nth);
    used.world.turn();
    assert!(!used.world.disk.queued_of(op).is_empty());
    assert!(!used.world.volume.is_wound_up(), "something is under way");
    used.world.disk.fail_writes_in(None);
    used.world.pass(1);
    assert!(used.world.volume.is_wound_up());
    assert!(matches!(used.world.volume.closing, Closing::Done(Some(_))));
}

#[test]
fn what_cannot_end_waits_for_what_is_being_zeroed() {
    let mut used = in_use(IntegrityCanary::None, None);
    used.growth.begin([7; 16]).unwrap();
    while used.world.disk.queued_of(Op::WriteZeroes).is_empty() {
        assert_eq!(used.step(), None);
    }
    cannot_end_beside(&mut used, Op::WriteZeroes);
}

#[test]
fn what_cannot_end_waits_for_users() {
    let mut used = in_use(IntegrityCanary::None, None);
    used.world.read(0, 1, false).unwrap();
    used.world.submit(Io::new(0, Op::Read, 0, BLOCK), 0);
    cannot_end_beside(&mut used, Op::Read);
}

/// A scrub that is under way reads what comes, too, wherever it is: how many were in the middle when that came.
fn scrubs(canary: IntegrityCanary) -> Result<usize, String> {
    let mut met = 0;
    for from in [0, LAST * BLOCK] {
        let mut used = in_use(canary, None);
        used.growth.begin([7; 16]).unwrap();
        used.until_last_label();
        used.world.volume.begin_scrub(from);
        used.ended().unwrap();
        met += usize::from(used.was_scrubbing);
        while used.world.volume.scrub_report().is_running {
            used.step();
        }
        let report = used.world.volume.scrub_report();
        if (report.position, report.checked_bytes) != (large(), large() - from) || report.bad > 0 {
            return Err(format!("{report:?}"));
        }
    }
    Ok(met)
}

#[test]
fn a_scrub_reads_what_comes() {
    assert_eq!(scrubs(IntegrityCanary::None), Ok(2));
    assert!(scrubs(IntegrityCanary::ScrubsWhatWas).is_err(), "it was not found");
}

/// It was through when there was more: nobody has cut it off.
#[test]
fn a_scrub_that_has_ended_read_what_there_was() {
    let mut used = in_use(IntegrityCanary::None, None);
    assert!(used.world.scrub().is_clean());
    used.growth.begin([7; 16]).unwrap();
    assert_eq!(used.ended(), Ok(large()));
    let report = used.world.volume.scrub_report();
    assert_eq!((report.position, report.bytes, used.bytes()), (DATA_BYTES, DATA_BYTES, large()));
}

/// What was under way when it grew is told of by the place that it has, though data begins elsewhere since.
#[test]
fn what_fails_while_it_grows_is_told_of_where_it_is() {
    let mut used = in_use(IntegrityCanary::None, None);
    used.growth.begin([7; 16]).unwrap();
    used.until_last_label();
    used.world.disk.fail_block(Some((START + place_of(SECOND)) / BLOCK));
    used.world.submit(Io::new(0, Op::Read, SECOND * BLOCK, BLOCK), 0);
    assert_eq!(used.ended(), Ok(large()));
    used.world.wait();
    let error = used.world.ends.pop().unwrap().result.unwrap_err();
    assert_eq!((error.offset, error.len), (SECOND * BLOCK, BLOCK));
}

/// While it is paused nothing is zeroed, and its label can be written for others.
#[test]
fn what_is_paused_waits_and_can_be_told_something() {
    let mut used = in_use(IntegrityCanary::None, None);
    let pace = WorkPace { is_paused: true, percent: 50 };
    used.world.volume.set_pace(pace);
    used.growth.begin([7; 16]).unwrap();
    (0..50).for_each(|_| assert_eq!(used.step(), None));
    assert_eq!(used.world.volume.grows().map(|(zeroed, _)| zeroed), Some(0));
    assert_eq!(used.world.disk.writes(), 0);
    let work = LabelWork { pace, scrubbed_to: None };
    used.growth.begin_work([8; 16], Some(work)).unwrap();
    let told = (0..50).find_map(|_| {
        assert_eq!(used.step(), None, "that is for who has begun it");
        used.growth.turn()
    });
    assert_eq!(told, Some(Ok(DATA_BYTES)));
    used.world.volume.set_pace(WorkPace::default());
    // And when all is ready.
    while used.world.volume.grows().is_some() {
        used.world.turn();
        if !used.world.step() {
            used.world.now = used.world.now + Duration::from_millis(50);
        }
    }
    used.growth.begin_work([9; 16], Some(LabelWork { scrubbed_to: Some(5), ..work })).unwrap();
    let told = (0..50).find_map(|_| {
        assert_eq!(used.step(), None, "that is for who has begun it");
        used.growth.turn()
    });
    assert_eq!(told, Some(Ok(DATA_BYTES)));
    assert_eq!(used.ended(), Ok(large()));
    let said = used.growth.label().unwrap().work.and_then(|work| work.scrubbed_to);
    assert_eq!(said, Some(5), "it still says so");
}

/// Users get twice as much as it takes.
#[test]
fn users_come_first() {
    let mut used = in_use(IntegrityCanary::None, None);
    used.world.read(0, 1, false).unwrap();
    used.growth.begin([7; 16]).unwrap();
    // The time stands still, and somebody always waits for something.
    let mut bytes = 0;
    while used.world.volume.grows().is_none_or(|(zeroed, _)| zeroed < 3 << 20) {
        used.world.submit(Io::new(0, Op::Read, bytes % (1 << 20), 16 * BLOCK), 0);
        used.world.turn();
        used.world.steps(3);
        bytes += 16 * BLOCK;
        assert!(bytes < 64 << 20, "it does not go on");
    }
    // Of each of three pieces of zeroes 128 KiB count.
    assert!(bytes >= 3 * 2 * (128 << 10), "after {bytes}");
    used.world.wait();
    assert_eq!(used.ended(), Ok(large()));
}

/// How much of what it grows by is zeroed, and how much a scrub has read, while somebody always reads, and has got so many bytes.
fn beside_a_scrub(canary: IntegrityCanary) -> (u64, u64) {
    let mut used = in_use(canary, None);
    used.world.read(0, 1, false).unwrap();
    used.growth.begin([7; 16]).unwrap();
    used.world.volume.begin_scrub(0);
    // The time stands still.
    let mut bytes = 0;
    while bytes < 2 << 20 {
        used.world.submit(Io::new(0, Op::Read, bytes % (1 << 20), BLOCK), 0);
        used.world.turn();
        used.world.steps(3);
        bytes += BLOCK;
    }
    let zeroed = used.world.volume.grows().map(|(zeroed, _)| zeroed);
    (zeroed.expect("it has not ended"), used.world.volume.scrub_report().checked_bytes)
}

/// What users leave is for both in turn: half of 2 MiB is eight pieces, of which each gets four.
#[test]
fn it_and_a_scrub_go_on_in_turn() {
    let (zeroed, checked) = beside_a_scrub(IntegrityCanary::None);
    assert!(zeroed >= 3 << 20, "{zeroed}");
    assert!((3 * (128 << 10)..=5 * (128 << 10)).contains(&checked), "{checked}");
    let (zeroed, _) = beside_a_scrub(IntegrityCanary::ChecksFirst);
    assert!(zeroed <= 1 << 20, "it was not found");
}

/// With the regions that come there is a block more of the bitmap: what is open there is so after a crash.
#[test]
fn new_regions_are_on_record_as_all_are() {
    let data = (REGIONS_EACH as u64) << 21;
    let part = (1 << 20) + data / SUMMED_BYTES * BLOCK + data;
    assert_eq!(SumLayout::of(part).bytes, data);
    let mut content = Content::new();
    for number in 1..3 {
        let mut image = [0; BLOCK_BYTES];
        encode(&mut image, BlockName { whole: WHOLE, index: 0, region_shift: 21 }, number);
        content.insert(SumLayout::bitmap_at(0, number) / BLOCK, image[..].into());
    }
    let bytes = START + part + (3 << 20);
    let mut used = open(bytes, labelled(content, part), IntegrityCanary::None, None).unwrap();
    used.growth.begin([7; 16]).unwrap();
    used.ended().unwrap();
    let [first, count] = [data / BLOCK, used.world.volume.regions.count().into()];
    assert_eq!((count, used.world.volume.regions.blocks()), (REGIONS_EACH as u64 + 2, 2));
    used.world.write(first + 1, 1, 5, false);
    used.world.succeed();
    assert!(used.world.volume.intent.number_of(1) > 2, "above those that it was made with");
    // The program is killed.
    let content = used.world.disk.content();
    let mut used = open(bytes, content, IntegrityCanary::None, None).unwrap();
    assert_eq!(used.world.read(first + 1, 1, false).unwrap(), [5; BLOCK as usize]);
    let regions = &used.world.volume.regions;
    let open: Vec<_> = (0..regions.count()).filter(|region| regions.stale(*region) != 0).collect();
    assert_eq!(open, [REGIONS_EACH as u32]);
}
