//! Every crash of a short workload on a volume that a seed composes of disks of one machine: before and behind each thing that a disk is
//! told to change, from the opening to the end, with each subset of the writes that were not flushed lost, and each of them torn. What comes up
//! is what was promised, reads the same before and after it is made whole, and is whole then.

mod apart;

use thinwire_link::rng::Rng;
use thinwire_modules::mirror::MIRROR_DATA_START;
use thinwire_modules::thin::{OpNumber, PoolOp, ThinPool};
use thinwire_volume::{Completion, ErrorKind, Io, Op, Volume, WorkPace};

use self::apart::Failing;
use super::at_rest::AtRest;
use super::crash_disk::{Countdown, CrashDisk, DiskContent, Fate};
use super::growing::{GrowingSettings, NotGrown};
use super::promises::{Act, Promised, Waiting, acts, with_cuts, with_discards};
use super::shape::THIN_NAME;
use super::{VolumeShape, draw, have_all_legs};
use crate::model::Violation;
use crate::run::Canary;
use crate::stamp::SECTOR_BYTES;
use crate::swarm::pick;

pub(super) const BLOCK: u64 = 4096;
const SECTORS_EACH: usize = BLOCK as usize / SECTOR_BYTES;
/// Of so many writes each subset is lost; of more, so many are drawn, and the others are all lost or all kept.
const SUBSETS_OF: usize = 6;
/// Of so many crashes one is followed until all is whole.
const HEALED_EACH: u64 = 8;
/// Of so many one is opened with some legs of a mirror alone.
const APART_EACH: u64 = 16;

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enumerated {
    /// Moments at which the power went.
    pub moments: u64,
    /// Ways in which what was not flushed then was lost.
    pub crashes: u64,
    /// Of these, the ones that were followed until all was whole.
    pub healed: u64,
    /// The ones that were opened with some legs of a mirror alone.
    pub apart: u64,
}

/// A workload.
struct Script {
    shape: VolumeShape,
    sizes: Vec<u64>,
    acts: Vec<Act>,
    /// The blocks that are looked at.
    blocks: Vec<u64>,
    settings: GrowingSettings,
    /// A discard does nothing on any disk.
    keeps_discarded: bool,
    failing: Option<Failing>,
    seed: u64,
}

/// Tries every crash of the workload of a seed.
///
/// # Errors
/// A promise was broken.
pub fn enumerate(seed: u64, canary: Canary) -> Result<Enumerated, Violation> {
    let mut rng = Rng::new(seed ^ 0x656e_756d_6572_6174);
    let bytes = pick(&mut rng, &[64 << 10, 256 << 10]);
    let (shape, sizes) = draw::small_shape(bytes, &mut rng);
    // Drawn apart, so that all other workloads are what they were.
    let shape = draw::kept(shape, 0.3, &mut Rng::new(seed ^ 0x6361_6368_6573_2121));
    let mut sizes = sizes;
    let of_dress = &mut Rng::new(seed ^ 0x6472_6573_7365_6421);
    let shape = draw::dressed(shape, &mut sizes, 0.2, of_dress);
    let of_discards = &mut Rng::new(seed ^ 0x6b65_6570_7321_2121);
    let keeps_discarded = of_discards.chance(0.5);
    let (shape, sizes) = match of_discards.chance(0.1) {
        true => draw::bare_cache(bytes, of_discards),
        false => (shape, sizes),
    };
    let mut settings = GrowingSettings::default();
    match canary {
        Canary::Mirror(planted) => settings.mirror_canary = planted,
        Canary::Pool(planted) => settings.pool_canary = planted,
        Canary::WriteBack(planted) => settings.write_back_canary = planted,
        Canary::GoesAlone => settings.goes_alone = true,
        _ => {}
    }
    let never = Countdown::never();
    let disk =
        |(number, bytes): (usize, &u64)| CrashDisk::new(number, *bytes, DiskContent::new(), &never);
    let disks: Vec<_> = sizes.iter().enumerate().map(disk).collect();
    let mut at_rest = AtRest::over(over(&disks), rng.bits());
    at_rest.make(&shape);
    if shape.has("crypt") {
        at_rest.clear(&shape);
    }
    // What new mirrors copy at first is behind them.
    let opened = at_rest.open(&shape).map_err(not_opened)?;
    let (mut volume, _thin) = opened;
    let blocks = volume.geometry().bytes / BLOCK;
    wait_for_legs(&mut at_rest, &mut *volume)?;
    at_rest.end(volume)?;
    drop(at_rest);
    let start: Vec<_> = disks.iter().map(CrashDisk::content).collect();
    let acts = acts(blocks, &mut rng);
    let mut looked_at = vec![0, blocks - 1];
    for act in &acts {
        if let Act::Write(first, count, ..) | Act::Zero(first, count) = *act {
            looked_at.extend(first..first + count);
        }
    }
    let is_thin = shape.top().is_some_and(|top| top.has_volumes());
    // What is discarded of an encrypted volume reads as noise.
    let acts = match shape.has("crypt") && !is_thin {
        true => acts,
        false => with_discards(acts, blocks, seed),
    };
    let acts = if is_thin { with_cuts(acts, seed) } else { acts };
    looked_at.sort_unstable();
    looked_at.dedup();
    let of_failing = &mut Rng::new(seed ^ 0x6661_696c_696e_6721);
    let failing = Failing::drawn(&shape, acts.len(), of_failing);
    let blocks = looked_at;
    let script = Script { shape, sizes, acts, blocks, settings, keeps_discarded, failing, seed };
    let mut found = Enumerated::default();
    for nth in 1.. {
        let (disks, promised) = script.play(&start, nth)?;
        found.moments += 1;
        let is_whole = !promised.1;
        let told = |violation: Violation, fates: &[Vec<Fate>]| {
            let shape = &script.shape;
            Violation(format!(
                "the power goes with the change number {nth}, {fates:?}: {}; {shape:?}: {:?}, {:?}",
                violation.0, script.acts, script.failing
            ))
        };
        for fates in all_fates(&disks, &mut rng) {
            let contents: Vec<_> =
                disks.iter().zip(&fates).map(|(disk, fates)| disk.after(fates)).collect();
            found.crashes += 1;
            let heals = is_whole || found.crashes.is_multiple_of(HEALED_EACH);
            found.healed += u64::from(heals);
            if is_whole || found.crashes.is_multiple_of(APART_EACH) {
                let has_failed = disks.iter().any(CrashDisk::is_failing);
                let looked = script.look_apart(&contents, (&promised.0, has_failed), found.crashes);
                found.apart += u64::from(looked.map_err(|v| told(v, &fates))?);
            }
            script
                .look(contents, &promised.0, heals, found.crashes)
                .map_err(|v| told(v, &fates))?;
        }
        if is_whole {
            break;
        }
    }
    Ok(found)
}

/// Gives those disks.
fn over(
    disks: &[CrashDisk],
) -> impl FnMut(usize, &thinwire_buffer::Pool) -> Box<dyn Volume> + use<> {
    let disks = disks.to_vec();
    move |number, _| Box::new(disks[number].clone())
}

/// What a crash may do to what was not flushed on each disk.
fn all_fates(disks: &[CrashDisk], rng: &mut Rng) -> Vec<Vec<Vec<Fate>>> {
    let counts: Vec<_> = disks.iter().map(CrashDisk::unflushed).collect();
    let count: usize = counts.iter().sum();
    let mut all = Vec::new();
    let mut choose = |fate: &dyn Fn(usize) -> Fate| {
        let mut nth = 0;
        let mut of = |count: &usize| {
            let from = nth;
            nth += count;
            (from..nth).map(fate).collect::<Vec<_>>()
        };
        all.push(counts.iter().map(&mut of).collect::<Vec<_>>());
    };
    // The last ones are those that others may depend on, which are not done either.
    let mut drawn: Vec<usize> = (0..count).collect();
    while drawn.len() > SUBSETS_OF {
        let gone = rng.below(drawn.len() as u64) as usize;
        drawn.remove(gone);
    }
    let rests = if count > SUBSETS_OF { vec![Fate::Lost, Fate::Kept] } else { vec![Fate::Lost] };
    for subset in 0_u64..1 << drawn.len() {
        for rest in &rests {
            choose(&|nth| match drawn.iter().position(|at| *at == nth) {
                Some(at) if subset >> at & 1 == 1 => Fate::Kept,
                Some(_) => Fate::Lost,
                None => *rest,
            });
        }
    }
    for torn in &drawn {
        for half in [Fate::First, Fate::Second] {
            for rest in [Fate::Lost, Fate::Kept] {
                choose(&|nth| if nth == *torn { half } else { rest });
            }
        }
    }
    all
}

impl Script {
    /// Plays it over these contents until the power goes with the `nth` change: the disks, what was promised, and whether the power
    /// went before all had ended.
    fn play(
        &self,
        start: &[DiskContent],
        nth: u64,
    ) -> Result<(Vec<CrashDisk>, (Promised, bool)), Violation> {
        let countdown = Countdown::new(nth);
        let disks = self.disks(start, &countdown);
        let mut at_rest = AtRest::over(over(&disks), self.seed);
        at_rest.settings = self.settings;
        at_rest.countdown = countdown.clone();
        let mut promised = Promised::default();
        let played = self.use_it(&mut at_rest, &disks, &mut promised);
        if !countdown.is_over() {
            played?;
        }
        drop(at_rest);
        Ok((disks, (promised, countdown.is_over())))
    }

    fn disks(&self, contents: &[DiskContent], countdown: &Countdown) -> Vec<CrashDisk> {
        let disks = self.sizes.iter().zip(contents).enumerate();
        disks
            .map(|(number, (bytes, content))| {
                let disk = CrashDisk::new(number, *bytes, content.clone(), countdown);
                if self.keeps_discarded {
                    disk.keep_discarded();
                }
                disk
            })
            .collect()
    }

    /// Fails if the power goes.
    fn use_it(
        &self,
        at_rest: &mut AtRest<'_>,
        disks: &[CrashDisk],
        promised: &mut Promised,
    ) -> Result<(), Violation> {
        let opened = at_rest.open(&self.shape);
        let (mut volume, thin) = opened.map_err(not_opened)?;
        let mut waits = Waits { ios: Vec::new(), changes: Vec::new(), thin };
        let fails_before = |nth: usize, at_rest: &AtRest<'_>| {
            let failing = self.failing.as_ref().filter(|of| of.act == nth);
            if let Some(failing) = failing.filter(|_| !at_rest.countdown.is_over()) {
                failing.begin(disks);
            }
        };
        for (token, act) in (1..).zip(&self.acts) {
            fails_before(token as usize - 1, at_rest);
            match *act {
                Act::Wait => wait(at_rest, &mut *volume, promised, &mut waits)?,
                Act::Cut | Act::Uncut => waits.change(matches!(act, Act::Cut), promised),
                Act::Rest => {
                    wait(at_rest, &mut *volume, promised, &mut waits)?;
                    let mut left = 600;
                    at_rest.wait("a rest", &mut *volume, |volume| {
                        volume.poll(&mut Vec::new());
                        left -= 1;
                        left == 0
                    })?;
                }
                _ => {
                    let (io, stamp) = act.io(token, at_rest);
                    waits.ios.push(Waiting::new(&io, stamp, promised));
                    volume.submit(io);
                }
            }
        }
        wait(at_rest, &mut *volume, promised, &mut waits)?;
        fails_before(self.acts.len(), at_rest);
        at_rest.end(volume)?;
        Ok(())
    }

    /// Opens what a crash has left, and looks at it.
    fn look(
        &self,
        contents: Vec<DiskContent>,
        promised: &Promised,
        heals: bool,
        crash: u64,
    ) -> Result<(), Violation> {
        let disks = self.disks(&contents, &Countdown::never());
        let mut at_rest = AtRest::over(over(&disks), self.seed ^ 1);
        at_rest.settings = self.settings;
        // On disks that do all at once a resync is over before anybody reads: what is not copied yet is to be seen, too.
        at_rest.settings.is_paused = (crash / HEALED_EACH).is_multiple_of(2);
        if !heals {
            let opened = at_rest.open(&self.shape);
            let (mut volume, thin) = opened.map_err(not_opened)?;
            self.read_blocks(&mut at_rest, &mut *volume, Some(promised))?;
            return self.read_cuts(&mut at_rest, thin, promised).map(|_| ());
        }
        let found = self.read(&mut at_rest, promised)?;
        drop(at_rest);
        self.check_legs(&disks)?;
        let mut at_rest = AtRest::over(over(&disks), self.seed ^ 2);
        if self.shape.top().is_some_and(|top| top.has_volumes()) {
            at_rest.check_pool(&self.shape)?;
        }
        match self.read(&mut at_rest, promised)? == found {
            true => Ok(()),
            false => Err(Violation("it reads otherwise when it is opened again".into())),
        }
    }

    /// Opens it, reads it, waits until its mirrors are whole, reads it again, and ends it.
    fn read(&self, at_rest: &mut AtRest<'_>, promised: &Promised) -> Result<Vec<u8>, Violation> {
        let opened = at_rest.open(&self.shape);
        let (mut volume, thin) = opened.map_err(not_opened)?;
        let mut found = self.read_blocks(at_rest, &mut *volume, Some(promised))?;
        volume.works(&mut |work| work.set_pace(WorkPace::default()));
        wait_for_legs(at_rest, &mut *volume)?;
        if self.read_blocks(at_rest, &mut *volume, Some(promised))? != found {
            return Err(Violation("it reads otherwise when its mirrors are whole".into()));
        }
        found.extend(self.read_cuts(at_rest, thin, promised)?);
        at_rest.end(volume)?;
        Ok(found)
    }

    /// Snapshots that have to be there are, and each holds what it has to.
    fn read_cuts(
        &self,
        at_rest: &mut AtRest<'_>,
        thin: Option<ThinPool>,
        promised: &Promised,
    ) -> Result<Vec<u8>, Violation> {
        let mut found = Vec::new();
        let Some(thin) = thin else { return Ok(found) };
        let report = thin.report();
        let names = report.volumes.iter().map(|of| &of.name);
        if let Some(name) = names.clone().find(|name| promised.is_told_gone(name)) {
            return Err(Violation(format!("{name} was told not to be there: {promised:?}")));
        }
        for (name, is_sure) in promised.cuts() {
            let Some(of) = report.volumes.iter().find(|of| of.name == name) else {
                match is_sure {
                    true => return Err(Violation(format!("{name} was told to be there"))),
                    false => continue,
                }
            };
            let cut = thin.open_volume(of.volume);
            let mut cut = cut.map_err(|e| Violation(format!("{name}: {e}")))?;
            for &block in &self.blocks {
                let bytes = read_block(at_rest, &mut cut, block)?;
                let wrong = bytes.iter().find(|stamp| !promised.allows_in(&name, block, **stamp));
                if let Some(stamp) = wrong {
                    let all = promised.written(block);
                    return Err(Violation(format!(
                        "block {block} of {name} reads as {stamp}: {all:?}, {promised:?}"
                    )));
                }
                found.extend(bytes);
            }
        }
        Ok(found)
    }

    /// The first byte of each sector that is looked at, which is the same each time.
    fn read_blocks(
        &self,
        at_rest: &mut AtRest<'_>,
        volume: &mut dyn Volume,
        promised: Option<&Promised>,
    ) -> Result<Vec<u8>, Violation> {
        let mut found = Vec::new();
        for &block in &self.blocks {
            let first = read_block(at_rest, volume, block)?;
            if let Some(promised) = promised
                && let Some(stamp) = first.iter().find(|stamp| !promised.allows(block, **stamp))
            {
                let all = promised.written(block);
                return Err(Violation(format!("block {block} reads as {stamp}: {all:?}")));
            }
            let second = read_block(at_rest, volume, block)?;
            if first != second {
                let text = format!("block {block} reads as {first:?}, and then as {second:?}");
                return Err(Violation(text));
            }
            found.extend(first);
        }
        Ok(found)
    }

    /// Legs that are disks hold the same.
    fn check_legs(&self, disks: &[CrashDisk]) -> Result<(), Violation> {
        let first = MIRROR_DATA_START / BLOCK;
        let data = |disk: usize| {
            let mut content = disks[disk].content();
            content.retain(|block, bytes| *block >= first && bytes.iter().any(|byte| *byte != 0));
            content
        };
        let mut differ = None;
        self.shape.walk(&mut |shape| {
            if !shape.top().is_some_and(|top| top.is_mirror()) {
                return;
            }
            let legs: Vec<_> = shape
                .parts()
                .iter()
                .filter_map(|part| match part {
                    VolumeShape::Disk(disk) => Some(*disk),
                    VolumeShape::Over(_) => None,
                })
                .collect();
            for pair in legs.windows(2) {
                if data(pair[0]) != data(pair[1]) {
                    differ = Some(format!("disks {pair:?} are legs of a mirror, and differ"));
                }
            }
        });
        differ.map_or(Ok(()), |text| Err(Violation(text)))
    }
}

/// What a user waits for.
struct Waits {
    ios: Vec<Waiting>,
    /// Snapshots that are being taken, or deleted, by their places among all.
    changes: Vec<(OpNumber, usize)>,
    thin: Option<ThinPool>,
}

impl Waits {
    /// Begins to take a snapshot, or to delete the oldest.
    fn change(&mut self, takes: bool, promised: &mut Promised) {
        let Some(thin) = &self.thin else { return };
        let report = thin.report();
        let numbered =
            |name: &str| report.volumes.iter().find(|of| of.name == name).map(|of| of.volume);
        let begun = match takes {
            true => {
                let (at, name) = promised.begin_cut();
                let Some(volume) = numbered(THIN_NAME) else { return };
                let incarnation = at as u64 + 7;
                Some((PoolOp::Snapshot { volume, name, incarnation, at: 0 }, at))
            }
            false => promised
                .begin_uncut()
                .and_then(|(at, name)| Some((PoolOp::Delete { volume: numbered(&name)? }, at))),
        };
        if let Some((op, at)) = begun {
            self.changes.push((thin.begin(op), at));
        }
    }

    /// Hears how changes have ended.
    fn hear(&mut self, promised: &mut Promised) {
        let Some(thin) = &self.thin else { return };
        let mut ended = Vec::new();
        thin.poll_ops(&mut ended);
        for (number, result) in ended {
            if let Some(at) = self.changes.iter().position(|(of, _)| *of == number) {
                let (_, cut) = self.changes.swap_remove(at);
                promised.end_cut(cut, result.is_ok());
            }
        }
    }
}

/// Until all has ended that a user waits for.
fn wait(
    at_rest: &mut AtRest<'_>,
    volume: &mut dyn Volume,
    promised: &mut Promised,
    waits: &mut Waits,
) -> Result<(), Violation> {
    let mut failed = None;
    at_rest.wait("an I/O", volume, |volume| {
        let mut done = Vec::new();
        volume.poll(&mut done);
        for completion in done {
            let at = waits.ios.iter().position(|wait| wait.token == completion.token);
            let Some(at) = at else { continue };
            let waiting = waits.ios.remove(at);
            match completion.result {
                Ok(()) => waiting.end(promised),
                // What snapshots have is not there for writes. All else goes on (rule 14).
                Err(error)
                    if error.kind == ErrorKind::NoSpace
                        && promised.has_cuts()
                        && waiting.may_lack_room() => {}
                Err(error) => failed = Some(error),
            }
        }
        waits.hear(promised);
        waits.ios.is_empty() && waits.changes.is_empty()
    })?;
    failed.map_or(Ok(()), |error| Err(Violation(format!("an I/O failed: {error}"))))
}

fn not_opened(why: NotGrown) -> Violation {
    Violation(format!("it is not opened: {why:?}"))
}

fn wait_for_legs(at_rest: &mut AtRest<'_>, volume: &mut dyn Volume) -> Result<(), Violation> {
    at_rest.wait("its mirrors are whole", volume, |volume| {
        volume.poll(&mut Vec::new());
        have_all_legs(volume)
    })
}

/// The first byte of each of its sectors, which is all of it.
fn read_block(
    at_rest: &mut AtRest<'_>,
    volume: &mut dyn Volume,
    block: u64,
) -> Result<Vec<u8>, Violation> {
    let done = one(at_rest, volume, Io::new(1, Op::Read, block * BLOCK, BLOCK))?;
    done.result.map_err(|e| Violation(format!("block {block}: {e}")))?;
    let bytes = done.data.to_vec();
    let is_torn = |sector: &[u8]| sector.iter().any(|byte| *byte != sector[0]);
    match bytes.chunks(SECTOR_BYTES).find(|sector| is_torn(sector)) {
        None => Ok(bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()),
        Some(sector) => Err(Violation(format!("block {block} has a torn sector: {sector:?}"))),
    }
}

/// Has one I/O done.
fn one(at_rest: &mut AtRest<'_>, volume: &mut dyn Volume, io: Io) -> Result<Completion, Violation> {
    volume.submit(io);
    let mut done = Vec::new();
    at_rest.wait("an I/O", volume, |volume| {
        volume.poll(&mut done);
        !done.is_empty()
    })?;
    Ok(done.remove(0))
}
