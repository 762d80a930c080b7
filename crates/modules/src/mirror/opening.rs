//! Opening: what the bitmaps of the legs say is read, one leg is chosen for what was open at a crash (rule 4), and legs that
//! lack something are taken in, then and later (rules 16, 22 and 25 are those of whoever brings them).

use std::fmt;

use super::bitmap::{BLOCK_BYTES, BlockImage, BlockName, REGIONS_EACH, decode, region_shift};
use super::decide::hex;
use super::desk::LegNeeds;
use super::serve::lowest;
use super::*;
use crate::meta::{Label, LabelError, LabelPart, Labels};
use crate::{Child, IdentityHash, ModuleError, common_geometry};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Bitmaps are being read.
    Loading,
    /// What they and the labels say is being put on record.
    Starting,
    Serving,
}

/// Why legs make no mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorError {
    /// By what their labels say, it may not be served.
    Refused(OpeningRefusal),
    /// They do not fit together, or one does not fit.
    Unfit(ModuleError),
    /// There is not one for each of 2 to 8.
    Count {
        /// How many there are, missing ones among them.
        legs: usize,
    },
}

impl fmt::Display for MirrorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MirrorError::Refused(refusal) => write!(f, "mirror: {refusal}"),
            MirrorError::Unfit(error) => error.fmt(f),
            MirrorError::Count { legs } => {
                write!(f, "mirror takes 2 to {LEGS_MAX} volumes, not {legs}")
            }
        }
    }
}

impl std::error::Error for MirrorError {}

/// What the label of a leg says of the mirror, if it fits.
fn state_of(leg: usize, at: &MirrorLeg) -> Result<MirrorState, MirrorError> {
    let unfit = |why: String| MirrorError::Unfit(ModuleError::of_child(NAME, leg, why));
    let state = MirrorState::decode(&at.label.state).map_err(|fault| unfit(fault.to_string()))?;
    let Geometry { bytes, block_bytes, io_bytes_max, .. } = at.volume.geometry();
    let label = &at.label;
    let why = if usize::from(label.role) != leg {
        format!("is leg {} by its label", label.role)
    } else if label.data_start < MIRROR_DATA_START {
        format!(
            "has data from {} on, where its bitmaps end at {MIRROR_DATA_START}",
            label.data_start
        )
    } else if label.part().bytes < label.whole_bytes || bytes < label.data_start + label.whole_bytes
    {
        format!(
            "has room for {} bytes of data, and its label says {}: make it as large as it was",
            bytes.saturating_sub(label.data_start).min(label.part().bytes),
            label.whole_bytes
        )
    } else if state.region_shift < region_shift(label.whole_bytes) {
        "has regions that are too small for its bitmaps".into()
    } else if state.block_shift != 0 && block_bytes > 1 << state.block_shift {
        format!(
            "has blocks of {block_bytes} bytes, and the mirror was made with blocks of {}: use another volume",
            1 << state.block_shift
        )
    } else if block_bytes as usize > BLOCK_BYTES || (io_bytes_max as usize) < BLOCK_BYTES {
        format!("does not take {BLOCK_BYTES} bytes in one I/O")
    } else {
        return Ok(state);
    };
    Err(unfit(why))
}

/// Whether a leg that is used can be written.
fn check_writable(leg: usize, at: &MirrorLeg) -> Result<(), MirrorError> {
    let unfit = |why: String| Err(MirrorError::Unfit(ModuleError::of_child(NAME, leg, why)));
    if !at.label.may_write() {
        let unknown = at.label.features.read_only_compatible;
        return unfit(LabelError::ReadOnly { unknown }.to_string());
    }
    match at.volume.geometry().features.read_only {
        true => unfit(
            "is read-only: open the mirror for reading, or give a leg that may be written".into(),
        ),
        false => Ok(()),
    }
}

impl Mirror {
    /// Over these legs, in the order of their roles, none where one is missing. Nothing is written before it is polled; what
    /// is submitted waits until it is open.
    ///
    /// # Errors
    /// They do not fit, or may not be served: see [`decide()`].
    pub fn open(
        legs: Vec<Option<MirrorLeg>>,
        mut config: MirrorConfig,
    ) -> Result<Self, MirrorError> {
        let count = legs.len();
        if !(2..=LEGS_MAX).contains(&count) {
            return Err(MirrorError::Count { legs: count });
        }
        let mut seen = Vec::with_capacity(count);
        for (leg, at) in legs.iter().enumerate() {
            seen.push(at.as_ref().map(|at| state_of(leg, at)).transpose()?);
        }
        let mut plan = decide(&seen, config.wish).map_err(MirrorError::Refused)?;
        if plan.forgets {
            // Who remembers some of it is not to take this for that (rule 23).
            plan.state.incarnation = config.generations.draw();
        }
        let mut parts = match legs.iter().flatten().next() {
            Some(leg) => leg.label.parts.clone(),
            None => Vec::new(),
        };
        if let Some(LegChange::Add(part)) = config.wish.change {
            parts.push(part);
        }
        // What each says of the size, and has room for.
        let size = |at: &MirrorLeg| {
            let room = at.volume.geometry().bytes.saturating_sub(at.label.data_start);
            (at.label.whole_bytes, room)
        };
        let sizes: Vec<_> = legs.iter().map(|at| at.as_ref().map(size)).collect();
        let (mut volumes, mut rest) = (Vec::new(), Vec::new());
        for (leg, at) in legs.into_iter().enumerate() {
            let is_used = plan.current >> leg & 1 == 1
                || (!config.read_only && plan.resync.iter().any(|(copied, _)| *copied == leg));
            if let Some(at) = at.as_ref().filter(|_| is_used && !config.read_only) {
                check_writable(leg, at)?;
            }
            rest.push(at.filter(|_| is_used).map(|MirrorLeg { volume, labels, label }| {
                volumes.push(volume);
                (labels, label)
            }));
        }
        let volumes = Child::all(volumes);
        let geometry = common_geometry(NAME, &volumes).map_err(MirrorError::Unfit)?;
        // As large as the newest says: others may not know yet that it has grown.
        let says = |(own, at): (&Option<MirrorState>, &Option<(u64, u64)>)| {
            let is_newest = own.as_ref()?.generation == plan.recorded.generation;
            at.filter(|_| is_newest).map(|(bytes, _)| bytes)
        };
        let mut said = seen.iter().zip(&sizes).filter_map(says);
        let bytes = said.next();
        if said.any(|other| Some(other) != bytes) {
            let why = "has legs of one generation that say different sizes of it";
            return Err(MirrorError::Unfit(ModuleError::new(NAME, why)));
        }
        drop(said);
        let bytes = bytes.or(sizes.iter().flatten().map(|(bytes, _)| *bytes).max());
        for (leg, at) in sizes.iter().enumerate() {
            let is_used = plan.current >> leg & 1 == 1 || rest[leg].is_some();
            if let (true, Some((_, room)), Some(bytes)) = (is_used, at, bytes)
                && *room < bytes
            {
                let why = format!(
                    "has no room for {bytes} bytes of data, and the mirror has grown to that: make it larger"
                );
                return Err(MirrorError::Unfit(ModuleError::of_child(NAME, leg, why)));
            }
        }
        let mut volumes = volumes.into_iter().map(|child| child.volume);
        let mut legs = Vec::with_capacity(count);
        for (at, own) in rest.into_iter().zip(seen) {
            legs.push(at.zip(own).zip_with_next(&mut volumes));
        }
        // One that is added is not there yet.
        legs.resize_with(plan.state.legs.len(), || None);
        let geometry = Geometry { bytes: bytes.unwrap_or(0), ..geometry };
        let mut mirror = Mirror::over((legs, parts), geometry, plan.state, plan.current, config)?;
        mirror.recorded = plan.recorded;
        mirror.record.is_off = mirror.config.read_only;
        if !mirror.config.read_only {
            let leads = bits(mirror.in_sync).find_map(|leg| mirror.legs[leg].as_ref());
            let note = leads.and_then(|leg| leg.label.work);
            mirror.take_up(note);
        }
        let resync = if mirror.config.read_only { Vec::new() } else { plan.resync };
        for (leg, extent) in resync {
            mirror.record.joining |= 1 << leg;
            mirror.resync.full |= u8::from(extent == ResyncExtent::Full) << leg;
        }
        mirror.load();
        Ok(mirror)
    }

    fn over(
        (legs, parts): (Vec<Option<Leg>>, Vec<LabelPart>),
        geometry: Geometry,
        state: MirrorState,
        current: u8,
        config: MirrorConfig,
    ) -> Result<Self, MirrorError> {
        let unfit = |why: &str| MirrorError::Unfit(ModuleError::new(NAME, why));
        let Some(first) = legs.iter().flatten().next() else {
            return Err(unfit("has no leg to begin with"));
        };
        let (bytes, whole) = (geometry.bytes, first.label.whole);
        if legs.iter().flatten().any(|leg| leg.label.whole != whole) {
            return Err(unfit("has legs of different wholes"));
        }
        let told_bytes = bytes;
        // The same whichever legs are there: one that is not may have larger blocks than those that are.
        let told = if state.block_shift == 0 { 0 } else { 1 << state.block_shift };
        let block_bytes = geometry.block_bytes.max(told);
        let preferred_bytes = geometry.preferred_bytes.max(block_bytes);
        let io_bytes_max = geometry.io_bytes_max / block_bytes * block_bytes;
        let geometry = Geometry { block_bytes, preferred_bytes, io_bytes_max, ..geometry };
        let block = u64::from(block_bytes);
        let mut features = geometry.features;
        features.discard &= features.write_zeroes;
        features.read_only |= config.read_only;
        // Its name stays, whatever becomes of its data.
        let mut name = IdentityHash::new(NAME);
        name.add(&whole);
        let Identity { identity, .. } = name.identity();
        name.add(&state.incarnation);
        let Identity { incarnation, .. } = name.identity();
        // Of whole blocks, so that all that is copied is, too.
        let bytes = bytes / block * block;
        if bytes == 0 {
            return Err(unfit("has less data than a block"));
        }
        let regions = Regions::new(bytes, state.region_shift, legs.len());
        Ok(Mirror {
            geometry: Geometry { bytes, features, ..geometry },
            identity: Identity { identity, incarnation },
            whole,
            bytes: told_bytes,
            legs,
            parts,
            recorded: state.clone(),
            state,
            in_sync: current,
            active: current,
            alike: 0,
            phase: Phase::Loading,
            record: Record::default(),
            writer: Writer::default(),
            regions,
            intent: Intent::default(),
            resync: Resync::default(),
            pace: Pace::new(),
            scrub: Scrubbing::default(),
            growth: Growth::default(),
            removing: false,
            addition: Addition::default(),
            replacement: Replacement::default(),
            desk: DeskEnd::default(),
            config,
            subs: Slab::new(),
            jobs: Slab::new(),
            ripe: VecDeque::new(),
            locks: RangeLocks::default(),
            granted: Vec::new(),
            queue: VecDeque::new(),
            held: Vec::new(),
            ready: Vec::new(),
            inbox: Vec::new(),
            orphaned: Vec::new(),
            outstanding: 0,
            closing: Closing::No,
            stopped: None,
            news: Vec::new(),
            news_count: 0,
            told: [None; LEGS_MAX],
            now: Time::ZERO,
            begun: Time::NEVER,
            counted: Time::ZERO,
            is_late: false,
            watch: Watch::new(),
            reads: 0,
            has_sent: false,
            is_stirred: true,
            steady_until: Time::ZERO,
            steady_reads: 0,
            canary: MirrorCanary::None,
        })
    }

    /// Begins to read the bitmaps of the legs that count.
    fn load(&mut self) {
        self.resync.loaded = vec![0; self.regions.count() as usize];
        let step = self.geometry.io_bytes_max as usize / BLOCK_BYTES;
        for leg in bits(self.in_sync) {
            for block in (0..self.regions.blocks()).step_by(step) {
                let blocks = (self.regions.blocks() - block).min(step as u32);
                let len = u64::from(blocks) * BLOCK_BYTES as u64;
                let offset = BITMAP_OFFSET + u64::from(block) * BLOCK_BYTES as u64;
                let id = self.new_job(Task::Load { leg, block }, Io::new(0, Op::Read, offset, len));
                self.resync.loading += 1;
                self.send(leg, id, Io::new(0, Op::Read, offset, len));
            }
        }
    }

    /// Some of the bitmaps of a leg was read, or not: then others know what it knew, or every bit counts as set.
    pub(super) fn finish_load(&mut self, id: u32, leg: usize, block: u32) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        // What does not fit its sum says nothing, as what is torn; the leg has all else.
        if job.ok == 0 && job.bad == 0 {
            self.drop_if_spare(leg, false);
        }
        let mut bytes = vec![0; job.io.len as usize];
        if job.ok != 0 {
            job.data.copy_to(&mut bytes);
        }
        let (whole, region_shift) = (self.whole, self.state.region_shift);
        for (index, image) in (block..).zip(bytes.chunks(BLOCK_BYTES)) {
            let image: &BlockImage = image.try_into().expect("whole blocks were read");
            let says = decode(image, BlockName { whole, index, region_shift });
            if self.in_sync >> leg & 1 == 0 {
                continue;
            }
            let first = index as usize * REGIONS_EACH;
            let loaded = self.resync.loaded[first..].iter_mut();
            match says {
                Some((regions, number)) => {
                    self.intent.number = self.intent.number.max(number);
                    loaded.zip(regions).for_each(|(all, byte)| *all |= byte);
                }
                None => loaded.take(REGIONS_EACH).for_each(|all| *all = u8::MAX),
            }
        }
        self.resync.loading -= 1;
        if self.resync.loading == 0 {
            self.choose();
        }
    }

    /// What the bitmaps say is known: where a region was open, one leg is the truth. Never one that lacks what another has,
    /// whatever its label says: the bits of a leg are clear before it is in sync.
    fn choose(&mut self) {
        self.take_writer();
        let (current, loaded) = (self.in_sync, std::mem::take(&mut self.resync.loaded));
        let lacking = |byte: &u8| if byte & current == current { 0 } else { byte & current };
        let behind = loaded.iter().fold(0, |legs, byte| legs | lacking(byte));
        if current & !behind == 0 {
            // Each has what another lacks: no mirror writes that.
            return self.stop(ErrorKind::Io);
        }
        let others = current & !lowest(current & !behind);
        self.alike = others & !behind;
        let mut is_unclean = false;
        for (region, byte) in (0..).zip(loaded) {
            let was_open = byte & current != 0;
            is_unclean |= was_open;
            let open = if was_open { others } else { 0 };
            self.regions.load(region, byte & self.regions.all() & !current | open, byte);
        }
        if is_unclean && !self.config.read_only {
            bits(others).for_each(|leg| self.demote(leg));
        }
        // Each opening draws a generation: a leg that does not know of it is an old copy (rule 25).
        if self.canary != MirrorCanary::QuietOpening {
            self.record.want();
        }
        self.phase = Phase::Starting;
    }

    /// Lets users in once all is on record; then takes in legs that are there and get nothing yet.
    pub(super) fn step_opening(&mut self) -> bool {
        if self.record.is_changing() || self.phase == Phase::Loading {
            return false;
        }
        if self.phase == Phase::Starting {
            self.phase = Phase::Serving;
            self.resume_scrub();
            while let Some(io) = self.queue.pop_front() {
                self.begin(io);
            }
            return true;
        }
        let joining = self.record.joining & !self.record.announced;
        if joining == 0 {
            return false;
        }
        let full = joining & self.resync.full;
        self.resync.full &= !full;
        if full != 0 {
            (0..self.regions.count()).for_each(|region| self.regions.add_stale(region, full));
            // Its label may only be trusted once these are durable.
            self.regions.soil_all();
            self.resync.wait_for(self.intent.next_batch());
            return true;
        }
        if !self.intent.is_through(self.resync.waits_for) {
            return false;
        }
        for leg in bits(joining) {
            if let Some(at) = &self.legs[leg] {
                self.state.legs[leg] = LegState::Resyncing { at: at.left_at() };
            }
        }
        self.record.announced |= joining;
        self.record.want();
        true
    }

    /// Gives up a leg that was dropped, as a whole: what it has outstanding is nobody's. None if it is in use, or not there.
    pub fn give_up_leg(&mut self, leg: usize) -> Option<Box<dyn Volume>> {
        if !self.is_given_up(leg) {
            return None;
        }
        let gone = self.legs.get_mut(leg)?.take()?;
        let is_its = |sub: &Sub| usize::from(sub.leg) == leg;
        let its: Vec<u32> =
            self.subs.iter_mut().filter(|(_, sub)| is_its(sub)).map(|(index, _)| index).collect();
        its.into_iter().for_each(|index| _ = self.subs.remove(index.into()));
        let untold = gone.volume.events().wrapping_sub(gone.events);
        self.news_count = self.news_count.wrapping_add(untold);
        Some(gone.volume)
    }

    /// What a leg that comes back cannot do of what the mirror has promised as it is open, if there is any: a sentence whose subject is
    /// the leg.
    fn misfit(&self, at: &MirrorLeg) -> Option<String> {
        let (label, has) = (&at.label, at.volume.geometry());
        let room = has.bytes.saturating_sub(label.data_start);
        let why = if label.whole != self.whole {
            "is of another mirror by its label".into()
        } else if label.whole_bytes > self.bytes {
            // It may not know yet that the mirror has grown, but not more than that.
            format!(
                "says that the mirror has {} bytes, which has {}",
                label.whole_bytes, self.bytes
            )
        } else if room < self.bytes {
            format!(
                "has room for {room} bytes of data, and the mirror has {}: make it larger",
                self.bytes
            )
        } else {
            return LegNeeds::of(&self.geometry).misfit(&has);
        };
        Some(why)
    }

    /// Takes a leg back that was given up, or was missing, or another one in its place: nothing of what was outstanding there
    /// can still arrive (rule 22). It is copied to, and in sync after that.
    ///
    /// # Errors
    /// It does not fit, one is there, or it may not be used: it has other content, or was served apart.
    pub fn return_leg(&mut self, leg: usize, mut at: MirrorLeg) -> Result<(), MirrorError> {
        let unfit = |why: &str| Err(MirrorError::Unfit(ModuleError::of_child(NAME, leg, why)));
        if self.legs.get(leg).is_none_or(Option::is_some) {
            return unfit("is there already, or no leg");
        }
        if self.config.read_only {
            return unfit("is not copied to: the mirror is open for reading");
        }
        let (own, expected) = (at.label.part().uuid, self.parts[leg].uuid);
        if own != expected {
            return unfit(&format!(
                "is the part {} by its label, and that leg is {}: nothing was written there",
                hex(&own),
                hex(&expected)
            ));
        }
        let own = state_of(leg, &at)?.of_legs(self.parts.len());
        at.label.state = own.encode();
        check_writable(leg, &at)?;
        if let Some(why) = self.misfit(&at) {
            return unfit(&why);
        }
        let mut seen = vec![None; self.legs.len()];
        seen[leg] = Some(own.clone());
        let Some(source) = bits(self.in_sync).next() else { return unfit("comes too late") };
        // Whatever is being drawn: no leg that was away has the next generation.
        let mut newest = self.state.clone();
        newest.advance([u8::MAX; 16]);
        seen[source] = Some(newest);
        let wish = OpeningWish { degraded: true, ..OpeningWish::default() };
        let plan = decide(&seen, wish).map_err(MirrorError::Refused)?;
        let Some((_, extent)) = plan.resync.iter().find(|(resynced, _)| *resynced == leg) else {
            return unfit(
                "has other content than it had, or was removed: `thinwire volume replace` puts a volume in its place",
            );
        };
        let is_new = self.addition.take_awaited(leg);
        let is_full =
            *extent == ResyncExtent::Full && !(is_new && self.canary == MirrorCanary::NewLegByBits);
        self.resync.full |= u8::from(is_full) << leg;
        self.record.joining |= 1 << leg;
        self.legs[leg] = Some(Leg::new(at, own));
        // What it had not done when it was dropped it is to get by the resync, and does not drop it again.
        let others = !(1 << leg);
        for (_, job) in self.jobs.iter_mut() {
            (job.ok, job.failed, job.unable) =
                (job.ok & others, job.failed & others, job.unable & others);
            job.bad &= others;
        }
        self.settle();
        Ok(())
    }
}

/// A leg of what was taken apart.
trait ZipWithNext {
    fn zip_with_next(self, volumes: &mut dyn Iterator<Item = Box<dyn Volume>>) -> Option<Leg>;
}

impl ZipWithNext for Option<((Labels, Label), MirrorState)> {
    fn zip_with_next(self, volumes: &mut dyn Iterator<Item = Box<dyn Volume>>) -> Option<Leg> {
        let ((labels, label), own) = self?;
        let volume = volumes.next()?;
        Some(Leg::new(MirrorLeg { volume, labels, label }, own))
    }
}
