//! [`Growing`]: from disks to the volume on top of them, as whoever opens one does it, step by step and without waiting.

use std::time::Duration;

use thinwire_buffer::{Pool, Time};
use thinwire_link::rng::Rng;
use thinwire_modules::cuts::{CUT_LABEL_TOKEN, CutCanary, CutVolume, Cutter, Recorder};
use thinwire_modules::meta::{
    Assembly, Finding, Label, LabelError, LabelOutcome, Labels, SeenPart, WholeOpening, assemble,
};
use thinwire_modules::mirror::{
    DrawGeneration, Generation, LEG_LABEL_TOKEN, LegKeeper, Mirror, MirrorCanary, MirrorConfig,
    MirrorDesk, MirrorLeg, OpeningWish, find_mirror,
};
use thinwire_modules::thin::{POOL_LABEL_TOKEN, PoolCanary, PoolConfig, PoolPart, ThinPool};
use thinwire_modules::{
    Child, Crypt, CryptState, Integrity, IntegrityConfig, IntegrityState, WriteBack,
    WriteBackCanary, XtsCipher,
};
use thinwire_volume::stores::NullStore;
use thinwire_volume::{ErrorKind, Io, Op, Volume, Work, WorkPace};

use super::shape::{THIN_NAME, VolumeOver, VolumeShape};

/// The legs of a mirror that is being opened, for whoever brings back those that are not in it.
pub struct FoundLegs<'a> {
    /// How it is described.
    pub parts: &'a [VolumeShape],
    /// Of each leg which of these parts it is, if it was found.
    pub places: &'a [Option<usize>],
    /// Of each leg whether it is in it.
    pub used: &'a [bool],
}

/// Gives the keeper of a mirror; none if nothing of it comes back.
pub type KeeperOf<'a> = dyn FnMut(&FoundLegs<'_>) -> Option<Box<dyn LegKeeper>> + 'a;

/// What a volume grows on.
pub struct GrowingScene<'a> {
    /// Now.
    pub now: Time,
    /// Memory of the process.
    pub pool: &'a Pool,
    /// Its entropy.
    pub dice: &'a mut Rng,
    /// What there is for a disk; none if that is not there.
    pub disk: &'a mut dyn FnMut(usize) -> Option<Box<dyn Volume>>,
    /// Who brings back the legs of a mirror.
    pub keeper: &'a mut KeeperOf<'a>,
    /// By what the mirrors are asked for something, each with the disks below it.
    pub desks: &'a mut Vec<(Vec<usize>, MirrorDesk)>,
    /// Pools that were opened, for whoever changes them.
    pub thins: &'a mut Vec<ThinPool>,
    /// Who takes snapshots of all of it as one, if that can be done.
    pub cutter: &'a mut Option<Cutter>,
    /// How long is waited for what, and which faults are planted.
    pub settings: GrowingSettings,
}

/// How volumes are opened.
#[derive(Clone, Copy, Debug)]
pub struct GrowingSettings {
    /// A leg that has not answered for so long is dropped.
    pub leg_timeout: Duration,
    /// Likewise a part whose label is to be read: who opens a mirror does not wait longer for one.
    pub label_timeout: Duration,
    /// Nothing is copied in mirrors before somebody says so.
    pub is_paused: bool,
    /// What is wanted of a mirror of it. Of all others nothing is.
    pub wish: Option<(MirrorAt, OpeningWish)>,
    /// Faults to plant: of all mirrors it is wanted that legs may be missing.
    pub goes_alone: bool,
    /// One of theirs.
    pub mirror_canary: MirrorCanary,
    /// Likewise in pools.
    pub pool_canary: PoolCanary,
    /// Likewise in what keeps writes in memory.
    pub write_back_canary: WriteBackCanary,
    /// Likewise where snapshots are taken of several as one.
    pub cut_canary: CutCanary,
}

/// Which mirror of a volume: by the first of the disks below it, and how many those are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorAt(usize, usize);

impl MirrorAt {
    /// The one over these disks, at least two.
    pub fn of(disks: &[usize]) -> Self {
        MirrorAt(disks[0], disks.len())
    }
}

impl Default for GrowingSettings {
    fn default() -> Self {
        GrowingSettings {
            leg_timeout: Duration::from_secs(5),
            label_timeout: Duration::from_secs(5),
            is_paused: false,
            wish: None,
            goes_alone: false,
            mirror_canary: MirrorCanary::default(),
            pool_canary: PoolCanary::default(),
            write_back_canary: WriteBackCanary::default(),
            cut_canary: CutCanary::default(),
        }
    }
}

/// Why there is no volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotGrown {
    /// Something of it is not there.
    Absent(String),
    /// It may not be opened.
    Refused(String),
}

/// Random numbers of a process.
pub struct Generations(pub Rng);

impl DrawGeneration for Generations {
    fn draw(&mut self) -> Generation {
        draw(&mut self.0)
    }
}

/// A number that nobody has drawn.
pub fn draw(dice: &mut Rng) -> [u8; 16] {
    let mut drawn = [0; 16];
    drawn.chunks_mut(8).for_each(|part| part.copy_from_slice(&dice.bits().to_le_bytes()));
    drawn
}

/// What is taken for AES here: each block in another way, and nothing that a compiler does not see through.
struct SimCipher;

impl SimCipher {
    fn apply(block_bytes: usize, first: u64, bytes: &mut [u8]) {
        for (block, bytes) in (first..).zip(bytes.chunks_mut(block_bytes)) {
            let key = (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (word, bytes) in (1..).zip(bytes.chunks_mut(8)) {
                let mask = (key ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes();
                bytes.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
            }
        }
    }
}

impl XtsCipher for SimCipher {
    fn encrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        SimCipher::apply(block_bytes, first, bytes);
    }

    fn decrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        SimCipher::apply(block_bytes, first, bytes);
    }
}

/// A part of what is growing.
enum Part {
    Growing(Box<Growing>),
    There(Box<dyn Volume>),
    Absent,
}

enum Stage {
    /// Parts are growing.
    Parts,
    /// Their labels are read, until then.
    Reading(Vec<Reader>, Time),
    /// Those of a pool once more, behind its opening; or of what is cut as one.
    ReadingAgain(Assembly, Vec<Reader>),
    /// An opening is drawn.
    Drawing(Assembly, Box<OnPart>, Box<WholeOpening>),
    /// A pool is being read.
    Pool(ThinPool),
}

/// How data stands on the only part of a volume.
enum OnPart {
    /// As it is.
    Plain,
    Encrypted(CryptState),
    Summed(IntegrityState),
}

/// Reads the labels of a part.
struct Reader {
    labels: Labels,
    found: Option<Result<Finding, LabelError>>,
}

impl Reader {
    fn label(self) -> Option<(Labels, Label)> {
        match self.found {
            Some(Ok(Finding::Label(found))) => Some((self.labels, found.label)),
            _ => None,
        }
    }
}

/// A volume that is being opened.
pub struct Growing {
    shape: VolumeShape,
    parts: Vec<Part>,
    stage: Stage,
    /// A pool is opened for none of its volumes.
    is_alone: bool,
}

impl Growing {
    /// Of a volume of this shape: all disks that it will ever have are there.
    pub fn new(shape: &VolumeShape) -> Self {
        let parts =
            shape.parts().iter().map(|part| Part::Growing(Box::new(Growing::new(part)))).collect();
        Growing { shape: shape.clone(), parts, stage: Stage::Parts, is_alone: false }
    }

    /// Of a pool, of which no volume is used: what it ends with holds nothing.
    pub fn pool(shape: &VolumeShape) -> Self {
        Growing { is_alone: true, ..Growing::new(shape) }
    }

    /// Goes on; the volume, once it is there.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn turn(
        &mut self,
        ground: &mut GrowingScene<'_>,
    ) -> Result<Option<Box<dyn Volume>>, NotGrown> {
        let over = match &self.shape {
            VolumeShape::Disk(disk) => {
                let absent = || NotGrown::Absent(format!("disk {disk} is not there"));
                return (ground.disk)(*disk).map(Some).ok_or_else(absent);
            }
            VolumeShape::Over(over) => over.clone(),
        };
        for part in &mut self.parts {
            match part {
                Part::Growing(growing) => match growing.turn(ground) {
                    Ok(None) => {}
                    Ok(Some(volume)) => *part = Part::There(volume),
                    // Also one whose own parts cannot be written: the others have its data.
                    Err(_) if over.module.is_mirror() => *part = Part::Absent,
                    Err(error) => return Err(error),
                },
                Part::There(volume) => _ = volume.turn(ground.now),
                Part::Absent => {}
            }
        }
        match &mut self.stage {
            Stage::Parts => self.begin(&over, ground),
            Stage::Reading(..) => self.read(&over, ground),
            Stage::ReadingAgain(..) if over.is_cut => self.read_cut(&over, ground),
            Stage::ReadingAgain(..) => self.read_pool(ground),
            Stage::Drawing(_, _, opening) => {
                let mut volumes = take_there(&mut self.parts);
                let ended = opening.turn(&mut volumes);
                self.parts = volumes.into_iter().map(Part::There).collect();
                match ended {
                    None => Ok(None),
                    Some(Ok(())) => self.drawn(&over, ground),
                    Some(Err(error)) => Err(NotGrown::Refused(format!("{error:?}"))),
                }
            }
            Stage::Pool(pool) => {
                pool.turn(ground.now);
                pool.poll();
                if let Some(why) = pool.stopped() {
                    return Err(NotGrown::Refused(why));
                }
                if !pool.is_ready() {
                    return Ok(None);
                }
                ground.thins.push(pool.clone());
                if self.is_alone {
                    return Ok(Some(Box::new(NullStore::new(4096, 4096))));
                }
                let report = pool.report();
                let Some(found) = report.volumes.iter().find(|v| v.name == THIN_NAME) else {
                    return Err(NotGrown::Refused("the pool has lost its volume".into()));
                };
                let volume = pool.open_volume(found.volume);
                let volume = volume.map_err(|e| NotGrown::Refused(e.to_string()))?;
                Ok(Some(Box::new(volume)))
            }
        }
    }

    /// Once all parts are there, or known to be absent.
    fn begin(
        &mut self,
        over: &VolumeOver,
        ground: &mut GrowingScene<'_>,
    ) -> Result<Option<Box<dyn Volume>>, NotGrown> {
        for part in &mut self.parts {
            match part {
                Part::Growing(_) => return Ok(None),
                // It may be at work for itself.
                Part::There(volume) => volume.poll(&mut Vec::new()),
                Part::Absent => {}
            }
        }
        if !over.has_labels {
            let mut volumes = take_there(&mut self.parts);
            let planted = ground.settings.write_back_canary;
            if planted != WriteBackCanary::None && over.keeps_writes() {
                let mut volume = WriteBack::new(volumes.remove(0), 1 << 20);
                volume.set_canary(planted);
                return Ok(Some(Box::new(volume)));
            }
            let built = over.module.open(volumes, &over.options);
            return built.map(Some).map_err(|e| NotGrown::Refused(e.to_string()));
        }
        let token = if over.module.is_mirror() { LEG_LABEL_TOKEN } else { 0 };
        let readers = readers(&mut self.parts, token, ground.pool);
        self.stage = Stage::Reading(readers, ground.now + ground.settings.label_timeout);
        Ok(None)
    }

    fn read(
        &mut self,
        over: &VolumeOver,
        ground: &mut GrowingScene<'_>,
    ) -> Result<Option<Box<dyn Volume>>, NotGrown> {
        let Stage::Reading(readers, until) = &mut self.stage else { unreachable!("it reads") };
        let is_late = over.module.is_mirror() && *until <= ground.now;
        if !go_on_reading(&mut self.parts, readers, is_late) {
            return Ok(None);
        }
        let readers = std::mem::take(readers);
        if over.module.is_mirror() {
            return self.mirror(over, readers, ground);
        }
        let seen: Vec<_> = seen(&self.parts, &readers).into_iter().flatten().collect();
        let whole = assemble(&seen).map_err(|e| NotGrown::Refused(format!("{e:?}")))?;
        let parts: Vec<_> = readers.into_iter().filter_map(Reader::label).collect();
        let refused = |why: String| NotGrown::Refused(why);
        let label = &parts[0].1;
        let on_part = if over.is_crypt() {
            let state = CryptState::decode(&label.state);
            OnPart::Encrypted(state.map_err(|e| refused(e.to_string()))?)
        } else if over.has_sums() {
            let state = IntegrityState::decode(&label.state, label.whole_bytes);
            OnPart::Summed(state.map_err(|e| refused(e.to_string()))?)
        } else {
            OnPart::Plain
        };
        let mut opening = WholeOpening::new(&whole, draw(ground.dice), parts);
        let mut volumes = take_there(&mut self.parts);
        opening.begin(&mut volumes);
        self.parts = volumes.into_iter().map(Part::There).collect();
        self.stage = Stage::Drawing(whole, Box::new(on_part), Box::new(opening));
        Ok(None)
    }

    /// The opening is on all parts.
    fn drawn(
        &mut self,
        over: &VolumeOver,
        ground: &mut GrowingScene<'_>,
    ) -> Result<Option<Box<dyn Volume>>, NotGrown> {
        let Stage::Drawing(whole, on_part, _) = std::mem::replace(&mut self.stage, Stage::Parts)
        else {
            unreachable!("it was drawn")
        };
        if over.module.has_volumes() || over.is_cut {
            let token = if over.is_cut { CUT_LABEL_TOKEN } else { POOL_LABEL_TOKEN };
            let readers = readers(&mut self.parts, token, ground.pool);
            self.stage = Stage::ReadingAgain(whole, readers);
            return Ok(None);
        }
        let mut volumes: Vec<_> = take_there(&mut self.parts).into_iter().map(Some).collect();
        let mut parts = Vec::new();
        for part in &whole.parts {
            let volume = volumes[part.place].take().expect("each is one part");
            let child = Child::within(volume, part.data_start, part.data_bytes);
            parts.push(child.map_err(NotGrown::Refused)?.made_with(part.made_bytes));
        }
        let built: Result<Box<dyn Volume>, _> = match *on_part {
            OnPart::Plain => over.module.open_over(parts, &over.options),
            OnPart::Encrypted(state) => {
                let (part, cipher) = (parts.remove(0), Box::new(SimCipher));
                let crypt = Crypt::open(part, cipher, &state, whole.uuid, ground.pool);
                crypt.map(|crypt| Box::new(crypt) as _)
            }
            OnPart::Summed(state) => {
                // Little enough that sums have to go.
                let config =
                    IntegrityConfig { cache_bytes: 16 << 10, ..IntegrityConfig::new(ground.pool) };
                let sums = Integrity::open(parts.remove(0), state, whole.uuid, config);
                sums.map(|sums| Box::new(sums) as _)
            }
        };
        built.map(Some).map_err(|e| NotGrown::Refused(e.to_string()))
    }

    fn read_pool(
        &mut self,
        ground: &mut GrowingScene<'_>,
    ) -> Result<Option<Box<dyn Volume>>, NotGrown> {
        let Stage::ReadingAgain(whole, readers) = &mut self.stage else { unreachable!("it reads") };
        if !go_on_reading(&mut self.parts, readers, false) {
            return Ok(None);
        }
        let labels = std::mem::take(readers).into_iter().map(Reader::label);
        let volumes = take_there(&mut self.parts).into_iter();
        let mut parts: Vec<_> = volumes
            .zip(labels)
            .filter_map(|(volume, at)| {
                at.map(|(labels, label)| Some(PoolPart { volume, labels, label }))
            })
            .collect();
        if parts.len() < whole.parts.len() {
            return Err(NotGrown::Refused("a part of the pool has no label any more".into()));
        }
        let mut of_role = |role: usize| parts[whole.parts[role].place].take().expect("each once");
        let (data, metadata) = (of_role(0), of_role(1));
        let mut config = PoolConfig::new(ground.pool);
        // Little enough that nodes have to go.
        config.cache_nodes = 64;
        config.open_nodes_max = 512;
        let pool = ThinPool::open(data, metadata, config);
        let pool = pool.map_err(|e| NotGrown::Refused(e.to_string()))?;
        pool.set_canary(ground.settings.pool_canary);
        self.stage = Stage::Pool(pool);
        Ok(None)
    }

    /// A whole of which snapshots are taken as one: its first part writes the label.
    fn read_cut(
        &mut self,
        over: &VolumeOver,
        ground: &mut GrowingScene<'_>,
    ) -> Result<Option<Box<dyn Volume>>, NotGrown> {
        let Stage::ReadingAgain(whole, readers) = &mut self.stage else { unreachable!("it reads") };
        if !go_on_reading(&mut self.parts, readers, false) {
            return Ok(None);
        }
        let (mut readers, first) = (std::mem::take(readers), whole.parts[0].place);
        let found = readers.swap_remove(first).label();
        let (labels, label) = found
            .ok_or_else(|| NotGrown::Refused("the first part has no label any more".into()))?;
        let mut volumes = take_there(&mut self.parts);
        let (part, record) = Recorder::new(volumes.remove(first), labels, label);
        volumes.insert(first, Box::new(part));
        let mut volumes: Vec<_> = volumes.into_iter().map(Some).collect();
        let mut parts = Vec::new();
        for part in &whole.parts {
            let volume = volumes[part.place].take().expect("each is one part");
            let child = Child::within(volume, part.data_start, part.data_bytes);
            parts.push(child.map_err(NotGrown::Refused)?);
        }
        let built = over.module.open_over(parts, &over.options);
        let built = built.map_err(|e| NotGrown::Refused(e.to_string()))?;
        let (mut volume, cutter) = CutVolume::new(built, record, ground.pool);
        volume.set_canary(ground.settings.cut_canary);
        *ground.cutter = Some(cutter);
        Ok(Some(Box::new(volume)))
    }

    fn mirror(
        &mut self,
        over: &VolumeOver,
        readers: Vec<Reader>,
        ground: &mut GrowingScene<'_>,
    ) -> Result<Option<Box<dyn Volume>>, NotGrown> {
        let seen = seen(&self.parts, &readers);
        let is_any_absent = self.parts.iter().any(|part| matches!(part, Part::Absent))
            || readers.iter().any(|reader| matches!(reader.found, Some(Err(_)) | None));
        let refused = |why: String| match is_any_absent {
            true => NotGrown::Absent(why),
            false => NotGrown::Refused(why),
        };
        let whole = find_mirror(&seen).map_err(|e| refused(format!("{e:?}")))?;
        let below: Vec<usize> = over.parts.iter().flat_map(VolumeShape::disks).collect();
        let wish = ground.settings.wish.filter(|(at, _)| *at == MirrorAt::of(&below));
        let degraded = ground.settings.goes_alone;
        let unasked = OpeningWish { degraded, ..OpeningWish::default() };
        let wish = wish.map_or(unasked, |(_, wish)| wish);
        let plan = whole.plan(wish).map_err(|e| refused(e.to_string()))?;
        let is_used = |leg: usize| {
            plan.current >> leg & 1 == 1 || plan.resync.iter().any(|(copied, _)| *copied == leg)
        };
        let mut places: Vec<_> = std::mem::take(&mut self.parts)
            .into_iter()
            .zip(readers)
            .map(|(part, reader)| match part {
                Part::There(volume) => {
                    reader.label().map(|(labels, label)| MirrorLeg { volume, labels, label })
                }
                _ => None,
            })
            .collect();
        let legs = whole.places.iter().enumerate().map(|(leg, place)| {
            let at = places[(*place)?].take()?;
            // Others may not know yet of a leg that was added.
            Some(MirrorLeg { label: whole.label(leg, at.label), ..at })
        });
        let legs: Vec<_> = legs.collect();
        let used: Vec<bool> = (0..whole.places.len()).map(is_used).collect();
        let found = FoundLegs { parts: &over.parts, places: &whole.places, used: &used };
        let config = MirrorConfig {
            generations: Box::new(Generations(Rng::new(ground.dice.bits()))),
            pool: ground.pool.clone(),
            wish,
            read_only: false,
            opened_at: 0,
            leg_timeout: ground.settings.leg_timeout,
            keeper: (ground.keeper)(&found),
        };
        let mut mirror = Mirror::open(legs, config).map_err(|e| refused(e.to_string()))?;
        mirror.set_canary(ground.settings.mirror_canary);
        ground.desks.push((below, mirror.desk()));
        if ground.settings.is_paused {
            mirror.set_pace(WorkPace { is_paused: true, ..WorkPace::default() });
        }
        Ok(Some(Box::new(mirror)))
    }
}

/// The volumes of parts, all of which are there.
fn take_there(parts: &mut Vec<Part>) -> Vec<Box<dyn Volume>> {
    let there = |part| match part {
        Part::There(volume) => volume,
        _ => unreachable!("all parts are there"),
    };
    std::mem::take(parts).into_iter().map(there).collect()
}

/// Begins to read the labels of all parts that are there.
fn readers(parts: &mut [Part], token: u64, pool: &Pool) -> Vec<Reader> {
    let reader = |part: &mut Part| {
        let mut labels = Labels::new(token, pool);
        let found = match part {
            Part::There(volume) => labels.read(&mut **volume).err().map(Err),
            _ => Some(Err(LabelError::Unknown)),
        };
        Reader { labels, found }
    };
    parts.iter_mut().map(reader).collect()
}

/// Whether all labels were read, or, if it is late, as many as will be.
fn go_on_reading(parts: &mut [Part], readers: &mut [Reader], is_late: bool) -> bool {
    for (part, reader) in parts.iter_mut().zip(readers.iter_mut()) {
        let Part::There(volume) = part else { continue };
        if reader.found.is_some() {
            volume.poll(&mut Vec::new());
            continue;
        }
        if let Some(LabelOutcome::Read(read)) = reader.labels.turn(&mut **volume) {
            reader.found = Some(read);
        } else if is_late {
            let error = Io::new(0, Op::Read, 0, 0).error(ErrorKind::Away, "label");
            reader.found = Some(Err(LabelError::Unread(error)));
        }
    }
    readers.iter().all(|reader| reader.found.is_some())
}

/// What was found on the parts, none where there is nothing.
fn seen(parts: &[Part], readers: &[Reader]) -> Vec<Option<SeenPart>> {
    let seen = |(part, reader): (&Part, &Reader)| match (part, &reader.found) {
        (Part::There(volume), Some(found)) => {
            Some(SeenPart { found: found.clone(), content: volume.identity() })
        }
        _ => None,
    };
    parts.iter().zip(readers).map(seen).collect()
}
