//! Who uses a composed volume: what it submits, and how it judges what it is told.

use std::collections::BTreeMap;

use thinwire_buffer::{Pool, SegList};
use thinwire_link::rng::Rng;
use thinwire_volume::{Completion, ErrorKind, Io, IoFlags, Op, Volume};

use crate::client::Workload;
use crate::coverage::Coverage;
use crate::model::{ContentLife, Model, ModelEffect, Range, Ticket, Violation};
use crate::stamp::SECTOR_BYTES;

/// What the completion of an I/O is checked against.
enum Expectation {
    Effect {
        version: u64,
        effect: ModelEffect,
        fua: bool,
    },
    Read(Ticket),
    Status(Ticket),
    Flush((u64, u64)),
    /// Of what is written over one another: when it was submitted, of all that happens there.
    Wild(u64),
}

/// What was read of a sector: the value, and when that was submitted and completed.
type Sighting = (u64, u64, u64);

struct Pending {
    kind: Expectation,
    range: Range,
    submitted_at: u64,
    /// A loss was told of since it was submitted.
    is_in_doubt: bool,
}

/// What there is to check with.
pub struct UserScene<'a> {
    /// Now, in ns.
    pub now: u64,
    /// What the volume may hold.
    pub model: &'a mut Model,
    /// What may have become of its disks.
    pub life: ContentLife,
    /// What is counted.
    pub coverage: &'a mut Coverage,
    /// Errors that are due.
    pub due: DueErrors,
    /// It is in a pool, whose host knows by itself where nothing is: one that another has fenced, and that has not heard of it, may
    /// still say so.
    pub is_thin: bool,
}

/// Which errors somebody may be told.
#[derive(Clone, Copy, Debug, Default)]
pub struct DueErrors {
    /// Another host has the disks by now.
    pub fenced: bool,
    /// There may be no room left.
    pub full: bool,
    /// Disks fail.
    pub io: bool,
}

/// A user of a volume, for as long as one run of its host.
pub struct VolumeUser {
    /// What it does.
    pub workload: Workload,
    /// So many sectors at the end are written whatever else is under way there: what they hold is not checked, but that all legs of
    /// mirrors hold the same. Elsewhere nothing overlaps, since modules may take such I/Os in any order.
    pub wild_sectors: usize,
    run: u32,
    rng: Rng,
    pool: Pool,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    submitted: u64,
    pause_until: u64,
    /// The next sector to be read, by whoever reads everything.
    sweep: Option<usize>,
    /// It has been told that it is fenced.
    is_fenced: bool,
    failed_flush: bool,
    /// Counts what happens where things are written over one another.
    clock: u64,
    /// What was read there, of each sector, since nothing could be lost.
    seen: Vec<Vec<Sighting>>,
    seen_in: u64,
    /// The first sector where things are written over one another.
    wild_begins: usize,
    /// It reads this, one after the other, so many times: somebody writes it just now.
    probe: Option<(Range, u32)>,
    probe_token: u64,
    /// A snapshot is being taken: until it is there it writes one small thing after the other, so many more, and so many of them together.
    hurry: (u32, usize),
}

/// So many are written in a hurry, at most.
const HURRY_MAX: u64 = 120;

/// So much is remembered of what was read of a sector.
const SIGHTINGS_MAX: usize = 12;

impl VolumeUser {
    /// One that does this.
    pub fn new(workload: Workload, wild_sectors: usize, seed: u64) -> Self {
        VolumeUser {
            workload,
            wild_sectors,
            run: 0,
            rng: Rng::new(seed),
            pool: Pool::new(8 << 20),
            pending: BTreeMap::new(),
            next_token: 1,
            submitted: 0,
            pause_until: 0,
            sweep: None,
            is_fenced: false,
            failed_flush: false,
            clock: 0,
            seen: vec![Vec::new(); wild_sectors],
            seen_in: 0,
            wild_begins: usize::MAX,
            probe: None,
            probe_token: 0,
            hurry: (0, 0),
        }
    }

    /// A snapshot was begun: what is written here and there meanwhile shows whether it is of one moment.
    pub fn hurry(&mut self) {
        self.hurry = (self.rng.between(1, HURRY_MAX) as u32, self.rng.between(1, 3) as usize);
    }

    /// It has ended.
    pub fn calm_down(&mut self) {
        self.hurry = (0, 0);
    }

    /// Another run of its host begins.
    pub fn begin(&mut self, run: u32) {
        self.run = run;
        self.pending.clear();
        self.is_fenced = false;
        self.failed_flush = false;
        self.seen.iter_mut().for_each(Vec::clear);
        self.probe = None;
        self.calm_down();
    }

    /// I/Os that are not answered.
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// What has this token changes something, or makes it durable.
    pub fn is_change(&self, token: u64) -> bool {
        let kind = self.pending.get(&token).map(|pending| &pending.kind);
        matches!(kind, Some(Expectation::Effect { .. } | Expectation::Flush(_)))
    }

    /// It waits for something that changes something.
    pub fn has_changes(&self) -> bool {
        let changes = |p: &Pending| matches!(p.kind, Expectation::Effect { .. });
        self.pending.values().any(changes)
    }

    /// It has heard that another has the volume.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// The last flush has failed.
    pub fn has_failed_to_flush(&self) -> bool {
        self.failed_flush
    }

    /// It will not submit anything by itself any more, and waits for nothing.
    pub fn is_done(&self) -> bool {
        self.pending.is_empty()
            && self.sweep.is_none()
            && self.probe.is_none()
            && self.submitted >= self.workload.budget
    }

    /// Lets it submit so many more.
    pub fn add_budget(&mut self, count: u64) {
        self.workload.budget = self.submitted + count;
    }

    /// It reads all of the volume, from the beginning.
    pub fn read_all(&mut self) {
        self.sweep = Some(0);
    }

    /// When it goes on by itself.
    pub fn wakes_at(&self) -> u64 {
        match self.submitted < self.workload.budget && self.pending.len() < self.workload.depth {
            true => self.pause_until,
            false => u64::MAX,
        }
    }

    /// What it waits for.
    pub fn describe(&self) -> String {
        let oldest = self.pending.iter().next().map(|(token, p)| (*token, p.submitted_at));
        let left = self.workload.budget.saturating_sub(self.submitted);
        let count = self.pending.len();
        format!("{count} I/Os are outstanding, the oldest of them {oldest:?}, {left} to come")
    }

    /// Submits what it wants to have done now.
    pub fn submit_more(
        &mut self,
        volume: &mut dyn Volume,
        scene: &mut UserScene<'_>,
        trace: &mut dyn FnMut(&str, u64),
    ) {
        while let Some(first) = self.sweep
            && self.pending.len() < 4
        {
            let geometry = volume.geometry();
            let all = self.checked_sectors(volume);
            let most = (geometry.io_bytes_max as usize / SECTOR_BYTES).min(128);
            let count = most.min(all - first);
            if count > 0 {
                self.submit(Op::Read, Range { first, count }, false, volume, scene);
            }
            self.sweep = (first + count < all).then_some(first + count);
        }
        if let Some((range, left)) = self.probe
            && !self.pending.contains_key(&self.probe_token)
        {
            self.probe = (left > 1).then_some((range, left - 1));
            self.probe_token = self.submit(Op::Read, range, false, volume, scene);
        }
        while let (1.., depth) = self.hurry
            && self.pending.len() < depth
            && !self.is_fenced
        {
            self.hurry.0 -= 1;
            let Some(range) = self.draw_anywhere(volume) else { continue };
            let token = self.submit(Op::Write, range, false, volume, scene);
            trace("hurries", token << 40 | (range.first as u64) << 16 | range.count as u64);
        }
        while self.submitted < self.workload.budget
            && self.pending.len() < self.workload.depth
            && scene.now >= self.pause_until
            && !self.is_fenced
        {
            self.submitted += 1;
            if self.rng.chance(self.workload.pauses) {
                self.pause_until = scene.now + self.rng.between(1, self.workload.pause_ns_max);
            }
            let Some((op, range, fua)) = self.draw(volume) else { continue };
            let token = self.submit(op, range, fua, volume, scene);
            let place = (range.first as u64) << 16 | range.count as u64;
            trace(op_name(op), token << 40 | place);
        }
    }

    /// How many sectors hold what is known.
    fn checked_sectors(&self, volume: &dyn Volume) -> usize {
        (volume.geometry().bytes as usize / SECTOR_BYTES).saturating_sub(self.wild_sectors)
    }

    /// A few blocks somewhere, of which nothing is under way.
    fn draw_anywhere(&mut self, volume: &dyn Volume) -> Option<Range> {
        let block = volume.geometry().block_bytes as usize / SECTOR_BYTES;
        let all = self.checked_sectors(volume) / block;
        let count = self.rng.between(1, 4.min(all as u64)) as usize;
        let first = self.rng.below((all - count + 1) as u64) as usize;
        let range = Range { first: first * block, count: count * block };
        let is_free = !self.pending.values().any(|p| p.range.overlaps(range));
        is_free.then_some(range)
    }

    /// The next thing to do, unless it would overlap what may not be.
    fn draw(&mut self, volume: &dyn Volume) -> Option<(Op, Range, bool)> {
        let w = self.workload;
        let geometry = volume.geometry();
        let weights = [
            (Op::Read, w.reads),
            (Op::Write, w.writes),
            (Op::Flush, w.flushes),
            (Op::Discard, if geometry.features.discard { w.discards } else { 0 }),
            (Op::WriteZeroes, if geometry.features.write_zeroes { w.zeroes } else { 0 }),
            (Op::BlockStatus, if geometry.features.block_status { w.statuses } else { 0 }),
        ];
        let mut left = self.rng.below(weights.iter().map(|(_, weight)| weight).sum());
        let mut op = Op::Read;
        for (candidate, weight) in weights {
            if left < weight {
                op = candidate;
                break;
            }
            left -= weight;
        }
        let block = geometry.block_bytes as usize / SECTOR_BYTES;
        // What is discarded may change by itself.
        let is_wild = self.wild_sectors > 0 && op != Op::Discard && self.rng.chance(0.2);
        let checked = self.checked_sectors(volume);
        let (begin, all) = match is_wild {
            true => (checked.div_ceil(block), self.wild_sectors / block),
            false => (0, checked / block),
        };
        let hot = (w.hot_sectors / block).clamp(1, all);
        let (from, span) = if self.rng.chance(w.hot) {
            ((w.hot_first / block).min(all - hot), hot)
        } else {
            (0, all)
        };
        let first = from + self.rng.below(span as u64) as usize;
        let most = (geometry.io_bytes_max as usize / SECTOR_BYTES).min(w.sectors_max) / block;
        let longest = most.clamp(1, all - first);
        let longest = if self.rng.chance(0.9) { longest.min(16) } else { longest };
        let count = self.rng.between(1, longest as u64) as usize;
        let range = Range { first: (begin + first) * block, count: count * block };
        let fua = op.is_write() && self.rng.chance(w.fua);
        if op == Op::Flush {
            return Some((op, Range { first: 0, count: 0 }, false));
        }
        let changes = |kind: &Expectation| matches!(kind, Expectation::Effect { .. });
        let collides = |p: &Pending| p.range.overlaps(range) && (op.is_write() || changes(&p.kind));
        if is_wild && op == Op::Write && self.probe.is_none() && self.rng.chance(0.5) {
            self.probe = Some((Range { count: block, ..range }, 12));
        }
        let is_free = is_wild || !self.pending.values().any(collides);
        is_free.then_some((op, range, fua))
    }

    /// Submits an I/O; returns its token.
    pub fn submit(
        &mut self,
        op: Op,
        range: Range,
        fua: bool,
        volume: &mut dyn Volume,
        scene: &mut UserScene<'_>,
    ) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let (offset, len) = ((range.first * SECTOR_BYTES) as u64, range.count * SECTOR_BYTES);
        let mut io = Io::new(token, op, offset, len as u64);
        io.flags = IoFlags { fua: fua && op.is_write(), ..IoFlags::default() };
        let run = Some(self.run);
        let wild_begins = self.checked_sectors(volume);
        let is_wild = op != Op::Flush && range.first >= wild_begins;
        let model = &mut *scene.model;
        let kind = match op {
            _ if is_wild => {
                if op == Op::Write {
                    // What nobody else writes, so that it is seen what comes back.
                    let word = (u64::from(self.run) << 32 | token).to_le_bytes();
                    let bytes = word.repeat(len / word.len());
                    io.data = SegList::of(self.pool.copy_of(&bytes).freeze());
                }
                self.clock += 1;
                self.wild_begins = wild_begins;
                Expectation::Wild(self.clock)
            }
            Op::Read => Expectation::Read(model.begin_read(run, range, scene.life)),
            Op::BlockStatus => Expectation::Status(model.begin_status(run, range, scene.life)),
            Op::Flush => Expectation::Flush(model.begin_flush()),
            Op::Write => {
                let version = model.begin_write(self.run, range, ModelEffect::Data);
                let mut buf = self.pool.get(len);
                model.fill(self.run, range, version, &mut buf);
                io.data = SegList::of(buf.freeze());
                Expectation::Effect { version, effect: ModelEffect::Data, fua }
            }
            Op::Discard | Op::WriteZeroes => {
                let is_discard = op == Op::Discard;
                let effect = if is_discard { ModelEffect::Discard } else { ModelEffect::Zeroes };
                io.flags.no_hole = !is_discard && self.rng.chance(0.3);
                let version = model.begin_write(self.run, range, effect);
                Expectation::Effect { version, effect, fua }
            }
            Op::LoadWriter | Op::StoreWriter | Op::Cut => unreachable!("no user's"),
        };
        let overlaps = |p: &Pending| p.range.overlaps(range);
        scene.coverage.requests += 1;
        scene.coverage.overlaps +=
            u64::from(op != Op::Flush && self.pending.values().any(overlaps));
        let pending = Pending { kind, range, submitted_at: scene.now, is_in_doubt: false };
        self.pending.insert(token, pending);
        volume.submit(io);
        token
    }

    /// The volume has told of a loss: neither what has completed and was not flushed nor what is outstanding can be relied on.
    pub fn on_loss(&mut self, model: &mut Model) {
        model.told_of_loss(self.run);
        self.pending.values_mut().for_each(|pending| pending.is_in_doubt = true);
    }

    /// Checks what has completed.
    ///
    /// # Errors
    /// A promise was broken.
    pub fn take(
        &mut self,
        completion: Completion,
        scene: &mut UserScene<'_>,
    ) -> Result<(), Violation> {
        let token = completion.token;
        let Some(Pending { kind, range, is_in_doubt, .. }) = self.pending.remove(&token) else {
            return Err(Violation(format!("I/O {token} was completed twice")));
        };
        let result = completion.result;
        if let Err(error) = result {
            let is_due = match error.kind {
                ErrorKind::Fenced => scene.due.fenced,
                ErrorKind::NoSpace => scene.due.full || scene.due.io,
                ErrorKind::Io => scene.due.io,
                _ => false,
            };
            if !is_due {
                return Err(Violation(format!("an I/O failed: {error}")));
            }
            self.is_fenced |= error.kind == ErrorKind::Fenced;
            scene.coverage.errors += 1;
        }
        let (ok, model) = (result.is_ok(), &mut *scene.model);
        let is_stale = scene.is_thin && model.run() != self.run;
        match kind {
            Expectation::Read(_) | Expectation::Status(_) if is_stale => {}
            Expectation::Effect { version, effect, fua } => {
                model.end_write(self.run, range, version, ok && !is_in_doubt, fua);
                let counter = match effect {
                    ModelEffect::Data => &mut scene.coverage.writes,
                    ModelEffect::Zeroes => &mut scene.coverage.zeroes,
                    ModelEffect::Discard => &mut scene.coverage.discards,
                };
                *counter += u64::from(ok);
                scene.coverage.fua_writes += u64::from(fua && ok);
            }
            Expectation::Flush(mark) => {
                scene.coverage.flushes += u64::from(ok);
                self.failed_flush = !ok;
                model.end_flush(self.run, mark, ok && !is_in_doubt)?;
                if !ok {
                    model.told_of_loss(self.run);
                }
            }
            Expectation::Read(ticket) if ok => {
                scene.coverage.reads_checked += 1;
                model.end_read(&ticket, range, &completion.data.to_vec(), scene.life)?;
            }
            Expectation::Status(mut ticket) if ok => {
                scene.coverage.statuses += 1;
                let mut at = 0;
                for extent in &completion.extents {
                    let count = extent.len as usize / SECTOR_BYTES;
                    if extent.zero {
                        let range = Range { first: range.first + at, count };
                        model.check_zero(&ticket, range, scene.life)?;
                    }
                    ticket.skip(count);
                    at += count;
                }
                if at == 0 || at > range.count {
                    let text = format!("block status of {range:?} is one of {at} sectors");
                    return Err(Violation(text));
                }
            }
            Expectation::Wild(submitted) if ok && !completion.data.is_empty() => {
                let counter = match scene.life.in_doubt {
                    true => &mut scene.coverage.orders_in_doubt,
                    false => &mut scene.coverage.orders_judged,
                };
                *counter += range.count as u64;
                let data = completion.data.to_vec();
                self.look_at_wild(submitted, range, &data, scene.life)?;
            }
            Expectation::Read(_) | Expectation::Status(_) | Expectation::Wild(_) => {}
        }
        Ok(())
    }
}

impl VolumeUser {
    /// Writes of one sector that are under way together may take effect in any order, but in one: what has been seen to be written over
    /// by another does not come back.
    fn look_at_wild(
        &mut self,
        submitted: u64,
        range: Range,
        data: &[u8],
        life: ContentLife,
    ) -> Result<(), Violation> {
        if self.seen_in != life.upheavals || life.in_doubt {
            // What was lost and is sent again may be seen in any order; and while a disk has lost something and told nobody yet, so may what
            // its leg had, beside what the others have. Which disk that is nobody asks.
            self.seen_in = life.upheavals;
            self.seen.iter_mut().for_each(Vec::clear);
        }
        if life.in_doubt {
            return Ok(());
        }
        self.clock += 1;
        let now = self.clock;
        let first = self.wild_first(range);
        for (nth, sector) in data.chunks_exact(SECTOR_BYTES).enumerate() {
            let value = u64::from_le_bytes(sector[..8].try_into().expect("8 bytes"));
            let seen = &mut self.seen[first + nth];
            let other = seen.iter().filter(|(v, _, ended)| *v != value && *ended < submitted);
            let came_back = other.clone().any(|(_, begun, _)| {
                seen.iter().any(|(v, _, ended)| *v == value && *ended < *begun)
            });
            if value != 0 && came_back {
                let text = format!(
                    "sector {} from the end: {value:x} was read, then another, then {value:x} again: {seen:x?}",
                    self.wild_sectors - first - nth
                );
                return Err(Violation(text));
            }
            seen.push((value, submitted, now));
            if seen.len() > SIGHTINGS_MAX {
                seen.remove(0);
            }
        }
        Ok(())
    }

    /// Which of the sectors that are written over one another is the first of these.
    fn wild_first(&self, range: Range) -> usize {
        range.first - self.wild_begins
    }
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "reads",
        Op::Write => "writes",
        Op::Flush => "flushes",
        Op::Discard => "discards",
        Op::WriteZeroes => "zeroes",
        _ => "asks",
    }
}
