//! The checker: what every sector of one export may hold, from what its clients were told.
//!
//! Each write, discard and write-zeroes gets a version, in the order of submission, which is the
//! order in which a remote volume lets overlapping ones take effect. What is promised:
//!
//! * A read sees, in every sector, the newest version that the same run had submitted before it and
//!   that succeeded, or one of unknown outcome that is newer still; never one submitted later.
//! * What a flush, FUA or an orderly detach has saved is *durable*: nothing older is ever seen
//!   again, by anybody, whatever crashes.
//!
//! A run that ends without order (crash, fenced) is promised nothing but that. An effect whose
//! outcome is unknown may be seen until something newer is known to be written. Between two reads
//! of a run, without anything that may lose data, an old run's sector must not change: nothing of
//! a fenced writer lands after the grant.

mod cuts;
mod doubt;
mod runs;
#[cfg(test)]
mod tests;

pub use self::cuts::Ack;

use crate::stamp::{SECTOR_BYTES, Seen, look, stamp};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

type Check = Result<(), Violation>;

/// What an effect leaves in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelEffect {
    /// A stamp with its version.
    Data,
    /// Zeroes.
    Zeroes,
    /// What was there, or zeroes.
    Discard,
}

/// How far an effect is known to have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not answered yet.
    Open,
    /// Nor this, and its store has lost something since it was submitted.
    Doubtful,
    /// Acknowledged.
    Done,
    /// Failed, or its run ended: it may have happened, or may not.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Its place in the order of submission.
    version: u64,
    /// What is in its bytes: the same, unless it had to wait for its turn.
    stamp: u64,
    effect: ModelEffect,
    state: State,
    run: u32,
}

#[derive(Clone, Debug, Default)]
struct Sector {
    /// In order of version.
    history: Vec<Entry>,
    durable: u64,
    /// What a read saw, and the life of the store in which it did.
    observed: Option<(u64, u64)>,
    /// The last run that wrote what it holds once more, with its neighbours, and in which life.
    patched: (u32, u64),
}

/// A range of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First sector.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Range {
    fn iter(self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }

    /// They have sectors in common.
    pub fn overlaps(self, other: Range) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }

    /// The blocks of so many sectors that it touches.
    pub fn widened(self, block: usize) -> Range {
        let first = self.first / block * block;
        Range { first, count: (self.first + self.count).next_multiple_of(block) - first }
    }
}

/// What may have become of a content until a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentLife {
    /// Counts the moments at which its store may have lost something.
    pub upheavals: u64,
    /// Counts those at which reads saw that before the target could have heard of it.
    pub losses: u64,
    /// The target has not heard of the last of them.
    pub in_doubt: bool,
}

impl ContentLife {
    /// A read that began at this moment and ended at that may have missed what was lost by then: the
    /// one moment that no verifier covers (`docs/protocol.md`, "Restart and replay").
    fn excuses_until(self, end: ContentLife) -> bool {
        self.in_doubt || self.losses != end.losses
    }
}

/// What a read needs to remember until it completes.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Versions up to this were submitted before.
    before: u64,
    /// The run that reads, if it is the writer.
    run: Option<u32>,
    life: ContentLife,
    /// What was durable in each sector at submission.
    durables: Vec<u64>,
    /// What has to be seen of each sector, at least.
    floors: Vec<u64>,
}

impl Ticket {
    /// Whoever reads was not the writer all the time that it took.
    pub fn forget_writer(&mut self) {
        self.run = None;
    }

    /// Forgets the first `count` sectors.
    pub fn skip(&mut self, count: usize) {
        self.durables.drain(..count.min(self.durables.len()));
        self.floors.drain(..count.min(self.floors.len()));
    }
}

/// One content (an export in one incarnation).
#[derive(Debug)]
pub struct Model {
    name: String,
    sectors: Vec<Sector>,
    last_version: u64,
    run: u32,
    /// The writer generation of that run.
    generation: u64,
    /// Acknowledged, not yet flushed effects of the present run, in order of completion.
    unflushed: Vec<(Range, u64)>,
    /// How many of them were dropped in front by flushes.
    unflushed_base: u64,
    /// A replay failed: a flush must say so before one succeeds. The mark below which no flush
    /// counts.
    owed: Option<u64>,
    flush_count: u64,
    /// How often reads saw a loss before the target heard of it, and the last version before that.
    losses: (u64, u64),
    /// What was acknowledged while somebody takes a snapshot.
    acks: Option<Vec<Ack>>,
}

impl Model {
    /// Content of zeroes.
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Model {
            name: name.into(),
            sectors: vec![Sector::default(); bytes as usize / SECTOR_BYTES],
            last_version: 0,
            run: 0,
            generation: 0,
            unflushed: Vec::new(),
            unflushed_base: 0,
            owed: None,
            flush_count: 0,
            losses: (0, 0),
            acks: None,
        }
    }

    /// The content that is left when this one, which nobody uses, is cut to so many bytes.
    pub fn shrunk(&self, bytes: u64) -> Self {
        let mut model = Model::new(&self.name, bytes);
        let count = model.sectors.len();
        model.sectors.clone_from_slice(&self.sectors[..count]);
        model.last_version = self.last_version;
        model.generation = self.generation;
        model.drop_run();
        model
    }

    /// The content that is left when these sectors of this one, which nobody uses, are zeroes again.
    pub fn renewed(&self, new: impl Iterator<Item = std::ops::Range<usize>>) -> Self {
        let mut model = self.shrunk((self.sectors.len() * SECTOR_BYTES) as u64);
        // Generations begin anew with the record.
        model.generation = 0;
        new.for_each(|range| model.sectors[range].fill(Sector::default()));
        model
    }

    /// It has room for so many bytes now.
    pub fn grow(&mut self, bytes: u64) {
        let count = bytes as usize / SECTOR_BYTES;
        self.sectors.resize_with(count.max(self.sectors.len()), Sector::default);
    }

    /// How many sectors there are.
    pub fn sectors(&self) -> usize {
        self.sectors.len()
    }

    /// A write of `run` is submitted: its version, and for data the bytes to write.
    pub fn begin_write(&mut self, run: u32, range: Range, effect: ModelEffect) -> u64 {
        self.last_version += 1;
        let version = self.last_version;
        // One that has been taken over writes nothing any more, whatever it believes.
        if run == self.run {
            for at in range.iter() {
                let entry = Entry { version, stamp: version, effect, state: State::Open, run };
                self.sectors[at].history.push(entry);
            }
        }
        version
    }

    /// A write of `run` that is submitted writes all of these blocks, what is not its own as it was.
    pub fn begin_patch(&mut self, run: u32, blocks: Range, life: ContentLife) {
        if run != self.run {
            return;
        }
        for at in blocks.iter() {
            let patched = &mut self.sectors[at].patched;
            // The first of them is what a later one may be patched with.
            if patched.0 != run {
                *patched = (run, life.upheavals);
            }
        }
    }

    /// To be told before anything that is submitted behind a loss.
    pub fn note_losses(&mut self, life: ContentLife) {
        if self.losses.0 != life.losses {
            self.losses = (life.losses, self.last_version);
        }
    }

    /// The bytes of a write.
    pub fn fill(&self, run: u32, range: Range, version: u64, out: &mut [u8]) {
        for (at, bytes) in range.iter().zip(out.chunks_exact_mut(SECTOR_BYTES)) {
            stamp(bytes, at as u64, run, version);
        }
    }

    /// A write of `run` is answered.
    pub fn end_write(&mut self, run: u32, range: Range, version: u64, ok: bool, fua: bool) {
        if run != self.run {
            return;
        }
        let stamp = version;
        let (mut version, mut leaves) = (version, false);
        for at in range.iter() {
            let sector = &mut self.sectors[at];
            // One that was adopted more than once may have been done each time: the first is what is sure.
            let is_it = |e: &&mut Entry| e.stamp == stamp && e.run == run;
            if let Some(entry) = sector.history.iter_mut().find(is_it) {
                version = entry.version;
                leaves |= entry.effect != ModelEffect::Discard;
                let is_there = ok && entry.state == State::Open;
                entry.state = if is_there { State::Done } else { State::Unknown };
            }
        }
        if ok && leaves {
            self.note_ack(range, version);
        }
        if ok && fua {
            self.raise_durable(range, version);
        } else if ok {
            self.unflushed.push((range, version));
        }
    }

    fn raise_durable(&mut self, range: Range, version: u64) {
        for at in range.iter() {
            let sector = &mut self.sectors[at];
            let entry = sector.history.iter().rfind(|e| e.version == version);
            // A discard promises nothing about what is read.
            if entry.is_some_and(|e| e.effect != ModelEffect::Discard) {
                sector.durable = sector.durable.max(version);
            }
        }
    }

    /// A flush is submitted; returns what it covers, for [`Model::end_flush`].
    pub fn begin_flush(&mut self) -> (u64, u64) {
        self.flush_count += 1;
        (self.unflushed_base + self.unflushed.len() as u64, self.flush_count)
    }

    /// A flush of `run` is answered.
    pub fn end_flush(&mut self, run: u32, mark: (u64, u64), ok: bool) -> Check {
        if run != self.run {
            return Ok(());
        }
        if !ok {
            self.owed = None;
            return Ok(());
        }
        if self.owed.is_some_and(|owed| mark.1 > owed) {
            return self.fail("a flush succeeded though a replay had failed and nobody was told");
        }
        let count = mark.0.saturating_sub(self.unflushed_base) as usize;
        self.unflushed_base += count as u64;
        let covered: Vec<_> = self.unflushed.drain(..count).collect();
        for (range, version) in covered {
            self.raise_durable(range, version);
        }
        Ok(())
    }

    /// The initiator could not write unflushed data again: the next flush must fail, and until
    /// then it is not known what is there.
    pub fn replay_failed(&mut self, run: u32) {
        if run != self.run {
            return;
        }
        self.owed = Some(self.flush_count);
        self.lose_unflushed();
    }

    /// The writer was told that what no flush has covered may be gone.
    pub fn told_of_loss(&mut self, run: u32) {
        if run == self.run {
            self.lose_unflushed();
        }
    }

    fn lose_unflushed(&mut self) {
        self.unflushed_base += self.unflushed.len() as u64;
        for (range, _) in std::mem::take(&mut self.unflushed) {
            for at in range.iter() {
                let sector = &mut self.sectors[at];
                sector.observed = None;
                for entry in &mut sector.history {
                    if entry.state == State::Done && entry.version > sector.durable {
                        entry.state = State::Unknown;
                    }
                }
            }
        }
    }

    /// A read is submitted: by the writer `run`, or by a reader.
    pub fn begin_read(&self, run: Option<u32>, range: Range, life: ContentLife) -> Ticket {
        let durables: Vec<_> = range.iter().map(|at| self.sectors[at].durable).collect();
        Ticket { before: self.last_version, run, life, floors: durables.clone(), durables }
    }

    /// A block status is submitted. It is not ordered with writes that are outstanding: what was
    /// acknowledged before must be seen, what came later may be.
    pub fn begin_status(&self, run: Option<u32>, range: Range, life: ContentLife) -> Ticket {
        let known = |at: usize| {
            let sector = &self.sectors[at];
            let mine = |e: &&Entry| {
                e.state == State::Done && Some(e.run) == run && e.effect != ModelEffect::Discard
            };
            let done = sector.history.iter().rev().find(mine).map_or(0, |e| e.version);
            done.max(sector.durable)
        };
        let floors = range.iter().map(known).collect();
        let durables = range.iter().map(|at| self.sectors[at].durable).collect();
        Ticket { before: self.last_version, run: None, life, durables, floors }
    }

    /// A read is answered with `data`.
    pub fn end_read(
        &mut self,
        ticket: &Ticket,
        range: Range,
        data: &[u8],
        life: ContentLife,
    ) -> Check {
        if data.len() != range.count * SECTOR_BYTES {
            return self.fail(&format!("a read of {range:?} returned {} bytes", data.len()));
        }
        for (nth, (at, bytes)) in range.iter().zip(data.chunks_exact(SECTOR_BYTES)).enumerate() {
            let seen = look(bytes);
            self.check_seen(ticket, nth, at, seen, life)?;
            if let Some(run) = ticket.run
                && run == self.run
            {
                self.observe(ticket, at, seen, life)?;
            }
        }
        Ok(())
    }

    fn check_seen(
        &self,
        ticket: &Ticket,
        nth: usize,
        at: usize,
        seen: Seen,
        life: ContentLife,
    ) -> Check {
        let sector = &self.sectors[at];
        // What was submitted behind the last loss is seen in any case.
        let lost = if ticket.life.excuses_until(life) { self.losses.1 } else { 0 };
        let (floor, ceiling) = match ticket.run {
            Some(run) if run == self.run => {
                let done = sector.history.iter().rev().find(|e| {
                    e.version <= ticket.before
                        && e.state == State::Done
                        && e.run == run
                        && e.effect != ModelEffect::Discard
                });
                // After a failed replay nothing is `Done` above the floor. What became durable
                // meanwhile, submitted later, may be missing: a long read goes down in parts.
                let floor = done.map_or(0, |e| e.version);
                let floor = if floor > lost { floor } else { 0 };
                (floor.max(ticket.floors[nth]), ticket.before)
            }
            // The run has ended meanwhile: only what holds for everybody.
            Some(_) => (0, u64::MAX),
            None => {
                // What was acknowledged when it was submitted may have been lost since, by a
                // replay that failed: the next flush says so.
                let floor = ticket.floors[nth];
                let is_unknown = |e: &Entry| e.version == floor && e.state == State::Unknown;
                let stands = floor > lost && !sector.history.iter().any(is_unknown);
                (if stands { floor } else { ticket.durables[nth] }, u64::MAX)
            }
        };
        if self.allowed(sector, at, seen, floor, ceiling) {
            return Ok(());
        }
        let history: Vec<_> = sector.history.iter().rev().take(12).collect();
        self.fail(&format!(
            "sector {at}: {seen:?} was read, allowed are versions {floor}..={ceiling}; durable \
             is {}; newest first: {history:?}",
            sector.durable
        ))
    }

    fn allowed(&self, sector: &Sector, at: usize, seen: Seen, floor: u64, ceiling: u64) -> bool {
        // What is discarded may read as anything that ever was there.
        let discards = |e: &Entry| {
            e.effect == ModelEffect::Discard && e.version > floor && e.version <= ceiling
        };
        let floor = if sector.history.iter().any(discards) { 0 } else { floor };
        let within = |e: &&Entry| e.version >= floor && e.version <= ceiling;
        match seen {
            Seen::Garbage => false,
            // Zeroes: from before everything, or by an effect that makes them.
            Seen::Zero => {
                floor == 0
                    || sector.history.iter().filter(within).any(|e| e.effect != ModelEffect::Data)
            }
            Seen::Stamp { address, run, version } => {
                let found = sector.history.iter().filter(within);
                address == at as u64
                    && found
                        .filter(|e| e.effect == ModelEffect::Data)
                        .any(|e| e.stamp == version && e.run == run)
            }
        }
    }

    /// A sector that this run has not written does not change under it.
    fn observe(&mut self, ticket: &Ticket, at: usize, seen: Seen, life: ContentLife) -> Check {
        let (life, began) = (life.upheavals, ticket.life.upheavals);
        let run = self.run;
        let sector = &mut self.sectors[at];
        let value = match seen {
            Seen::Stamp { version, .. } => version,
            _ => 0,
        };
        // What was discarded may change by itself (when a cache passes the discard on, say); what was
        // written once more when that is sent again, after the store has lost it.
        let may_change = |e: &Entry| e.run == run || e.effect == ModelEffect::Discard;
        let sent_again = sector.patched.0 == run && sector.patched.1 != life;
        if sent_again || sector.history.iter().any(may_change) || life != began {
            sector.observed = None;
            return Ok(());
        }
        match sector.observed {
            Some((before, then)) if then == life && before != value => {
                let text = format!(
                    "sector {at} changed from version {before} to {value} without being written \
                     by run {run}: an earlier writer is not fenced"
                );
                self.fail(&text)
            }
            _ => {
                sector.observed = Some((value, life));
                Ok(())
            }
        }
    }

    /// Extents that read as zeroes must be able to.
    pub fn check_zero(&self, ticket: &Ticket, range: Range, life: ContentLife) -> Check {
        for (nth, at) in range.iter().enumerate() {
            self.check_seen(ticket, nth, at, Seen::Zero, life)?;
        }
        Ok(())
    }

    /// The newest version that was submitted.
    pub fn last_version(&self) -> u64 {
        self.last_version
    }

    /// The image that is left at the end: everything that was ever flushed is there.
    pub fn check_image(&self, image: &[u8]) -> Check {
        self.check_tail(0, image)
    }

    /// As [`Model::check_image`], of an image that begins with this sector and goes on to the end.
    pub fn check_tail(&self, first: usize, image: &[u8]) -> Check {
        let bytes = (self.sectors.len() - first) * SECTOR_BYTES;
        assert!(image.len() <= bytes);
        // What an image has grown by, and lost again, nobody was told of, and nobody wrote.
        let mut whole = image.to_vec();
        whole.resize(bytes, 0);
        self.check_part(first, &whole)
    }

    /// As [`Model::check_image`], of what is there from this sector on.
    pub fn check_part(&self, first: usize, image: &[u8]) -> Check {
        for (at, bytes) in (first..).zip(image.chunks_exact(SECTOR_BYTES)) {
            let sector = &self.sectors[at];
            let seen = look(bytes);
            if !self.allowed(sector, at, seen, sector.durable, u64::MAX) {
                return self.fail(&format!(
                    "sector {at} of the image holds {seen:?}, but version {} was flushed; {:?}",
                    sector.durable, sector.history
                ));
            }
        }
        Ok(())
    }

    fn fail(&self, text: &str) -> Check {
        Err(Violation(format!("export {}: {text}", self.name)))
    }
}
