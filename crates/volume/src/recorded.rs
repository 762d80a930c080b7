//! What a target serves that is made of other volumes, with its writer record, which that keeps itself ([`KeptBy`]), or which is kept elsewhere.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Pool, Time};

use crate::disk::error_kind;
use crate::leaves::{HeldGrant, LeafGeneration, are_same, granted_to_others, to_remember};
use crate::{
    Completion, Disk, DiskDone, DiskOp, DiskOpKind, ErrorKind, Io, IoError, KeptWriter, Layer, Op,
    Token, Volume, WriterRecord,
};

/// Where a writer record is kept, apart from the content that it is of, and with it the generations
/// under which the leaves of the volume are held. Never blocks.
pub trait RecordPlace {
    /// Takes a [`DiskOpKind::LoadWriter`] or [`DiskOpKind::StoreWriter`].
    fn submit(&mut self, op: DiskOp);

    /// Appends those that have ended.
    fn poll(&mut self, done: &mut Vec<DiskDone>);

    /// The generations that the last [`DiskOpKind::LoadWriter`] has found; empty if there were none.
    fn remembered(&self) -> Vec<LeafGeneration>;

    /// These are stored with the next record, in one step or behind it, and stay with later ones. Once they
    /// are durable it forgets what it knows of unused grants, before that record counts as stored; and
    /// tells somebody that of the leaves with the numbers `others` somebody else may have been the writer. Records are kept here again from
    /// then on, if they were given up.
    fn remember(&mut self, generations: Vec<LeafGeneration>, others: Vec<usize>);

    /// The volume itself keeps the record from now on, and the next one to be stored is durable there, with its generations: what there is of it here goes, and so does what it
    /// knows of unused grants.
    fn give_up(&mut self) {}

    /// How the leaves are held by now could not be stored when they had changed, which is tried again; or is stored after that. To be told to somebody, each once.
    fn on_leaves(&mut self, stored: Result<(), IoError>) {
        let _ = stored;
    }
}

/// A disk, for a volume that has no leaves with records: it keeps a record alone.
impl<D: Disk> RecordPlace for D {
    fn submit(&mut self, op: DiskOp) {
        Disk::submit(self, op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        Disk::poll(self, done);
    }

    fn remembered(&self) -> Vec<LeafGeneration> {
        Vec::new()
    }

    fn remember(&mut self, generations: Vec<LeafGeneration>, _: Vec<usize>) {
        assert!(generations.is_empty(), "a disk has no place for the generations of leaves");
    }
}

/// Who keeps a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// The place beside the volume.
    Place,
    /// The volume itself, as long as it can ([`KeptWriter`]). What the place has from before is taken over, once. A record that the volume refuses as
    /// [`ErrorKind::Unsupported`], since it has no room for so many leaves, goes to the place, and what the volume keeps goes away before that counts as
    /// stored: as long as the volume keeps something, that counts, and what the place has does not. So does one that a volume which keeps none refuses as
    /// [`ErrorKind::NoSpace`].
    Volume,
}

/// The leaves of a volume that is served, for whoever has some come and go meanwhile. A handle.
#[derive(Clone, Debug, Default)]
pub struct HeldLeaves(Rc<RefCell<Option<Vec<HeldGrant>>>>);

impl HeldLeaves {
    /// They are held like this from now on, all of them: that is remembered soon, be it that nobody asks for the record.
    pub fn set(&self, held: Vec<HeldGrant>) {
        *self.0.borrow_mut() = Some(held);
    }
}

/// Of what it stores for itself below, or in the place: nobody above has such a token.
const OWN_TOKEN: Token = Token::MAX - 2;

/// How soon leaves are stored again that could not be.
const RETRY: Duration = Duration::from_secs(1);

/// A record on its way.
struct Storing {
    token: Token,
    record: WriterRecord,
    step: Step,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is stored where records are kept.
    Store,
    /// In the place, since the volume has no room for it.
    InPlace,
    /// It is there, and the one that the volume keeps goes.
    Clear,
    /// The volume keeps it, and the one in the place goes.
    GiveUp,
}

/// A fault planted in it, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecordedCanary {
    #[default]
    None,
    /// Leaves that could not be stored are not stored before the next record.
    TriesOnce,
    /// What has gone to the place is told of while the volume keeps another.
    LeavesOld,
}

/// A volume and its record. All else is the volume's.
///
/// If somebody else has been granted a leaf since this volume was served last, the record that is loaded is
/// raised first: who was the writer is fenced, and so are its unflushed writes, which are older than what is
/// there (rule 3). Nobody is told what the record says before that and the generations of now are durable.
pub struct Recorded<P> {
    below: Box<dyn Volume>,
    place: P,
    by: KeptBy,
    held: Vec<HeldGrant>,
    /// What has changed of them since.
    changes: HeldLeaves,
    /// They were compared with what was remembered, and are stored; or there is nothing to compare.
    is_settled: bool,
    /// What is remembered of them, with each record.
    now: Vec<LeafGeneration>,
    /// The record, as it is known to be stored.
    current: Option<WriterRecord>,
    /// It is being stored with the leaves of now, for whoever loads.
    settling: Option<(Token, WriterRecord)>,
    /// With this record they may be stored already, though that has failed.
    tried: Option<WriterRecord>,
    /// The volume may keep a record.
    is_below: bool,
    /// There was one in the place when that was asked last.
    is_in_place: bool,
    /// Leaves have changed, and could not be stored with the record: when that is tried again, once the time is known.
    is_behind: bool,
    retry_at: Option<Time>,
    /// Somebody says when leaves change.
    follows: bool,
    /// Records that are being stored.
    storing: Vec<Storing>,
    /// What is below of the record.
    out: Vec<(Token, Op)>,
    /// Operations of the record that have not ended, and those that never began.
    outstanding: usize,
    refused: Vec<Completion>,
    done: Vec<DiskDone>,
    canary: RecordedCanary,
}

impl<P: RecordPlace> Recorded<P> {
    /// With the record in `place`; `held` are the leaves of the volume, all of them. Nothing is read or written yet.
    pub fn new(below: Box<dyn Volume>, place: P, held: Vec<HeldGrant>) -> Self {
        Self::kept_by(KeptBy::Place, below, place, held)
    }

    /// As [`Recorded::new`], of a record that may be kept by the volume itself. One that is only read, and keeps it, is given nothing to keep, however its leaves are held
    /// for others: a snapshot of a pool that is written has no writer.
    pub fn kept_by(by: KeptBy, below: Box<dyn Volume>, place: P, held: Vec<HeldGrant>) -> Self {
        let held = if is_read(by, &*below) { Vec::new() } else { held };
        let is_settled = held.iter().all(|one| one.grant.generation == 0);
        Recorded {
            below,
            place,
            by,
            held,
            changes: HeldLeaves::default(),
            is_settled,
            now: Vec::new(),
            current: None,
            settling: None,
            tried: None,
            is_below: false,
            is_in_place: false,
            is_behind: false,
            retry_at: None,
            follows: false,
            storing: Vec::new(),
            out: Vec::new(),
            outstanding: 0,
            refused: Vec::new(),
            done: Vec::new(),
            canary: RecordedCanary::None,
        }
    }

    /// It will be told by this that its leaves have changed. To be said before anybody uses it.
    pub fn follow(&mut self, leaves: HeldLeaves) {
        if is_read(self.by, &*self.below) {
            return;
        }
        self.changes = leaves;
        self.follows = true;
    }

    /// An I/O of the record.
    #[cold]
    fn submit_record(&mut self, io: &Io) {
        self.outstanding += 1;
        match (io.op, WriterRecord::from_data(&io.data)) {
            (Op::LoadWriter, _) => self.load(io.token, self.by),
            (_, Some(record)) => self.store(io.token, record),
            (_, None) => {
                let error = Err(io.error(ErrorKind::Invalid, NAME));
                self.refused.push(Completion::new(io.token, error));
            }
        }
    }

    fn load(&mut self, token: Token, from: KeptBy) {
        match from {
            KeptBy::Place => self.ask_place(token, DiskOpKind::LoadWriter(Box::default())),
            KeptBy::Volume => self.ask_below(Io::new(token, Op::LoadWriter, 0, 0)),
        }
    }

    /// With the generations that are remembered by now.
    fn store(&mut self, token: Token, record: WriterRecord) {
        self.storing.push(Storing { token, record, step: Step::Store });
        match self.by {
            KeptBy::Place => self.ask_place(token, DiskOpKind::StoreWriter(Box::new(record))),
            KeptBy::Volume => {
                // Who has not looked knows nothing of leaves.
                let leaves = (self.is_settled || self.settling.is_some()).then(|| self.now.clone());
                self.ask_below(KeptWriter { record, leaves }.to_io(token, &Pool::new(0)));
            }
        }
    }

    fn ask_place(&mut self, token: Token, kind: DiskOpKind) {
        self.place.submit(DiskOp { token, offset: 0, len: 0, kind });
    }

    fn ask_below(&mut self, io: Io) {
        self.out.push((io.token, io.op));
        self.below.submit(io);
    }

    /// Takes out of `done`, from `start` on, what has ended below of the record.
    #[cold]
    fn take_kept(&mut self, start: usize, done: &mut Vec<Completion>) {
        let mut at = start;
        while at < done.len() {
            let is_it = |(token, _): &(Token, Op)| *token == done[at].token;
            let Some(nth) = self.out.iter().position(is_it) else {
                at += 1;
                continue;
            };
            let (token, op) = self.out.swap_remove(nth);
            let Completion { result, data, .. } = done.remove(at);
            let ended = match op {
                Op::LoadWriter => {
                    let bad = failed(op, ErrorKind::Io);
                    let found = result.and_then(|()| KeptWriter::from_data(&data).ok_or(bad));
                    self.on_kept(token, found)
                }
                _ => self.on_stored(token, result),
            };
            if let Some(ended) = ended {
                self.outstanding -= 1;
                done.insert(at, ended);
                at += 1;
            }
        }
    }

    #[cold]
    fn poll_place(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        done.append(&mut self.refused);
        let mut ended = std::mem::take(&mut self.done);
        self.place.poll(&mut ended);
        for DiskDone { token, result, kind } in ended.drain(..) {
            let ended = match kind {
                DiskOpKind::LoadWriter(record) => {
                    let result = result.map_err(|errno| failed(Op::LoadWriter, error_kind(errno)));
                    let leaves = Some(self.place.remembered());
                    self.is_in_place = result.is_ok() && *record != WriterRecord::default();
                    self.on_loaded(token, result.map(|()| KeptWriter { record: *record, leaves }))
                }
                _ => {
                    let result = result.map_err(|errno| failed(Op::StoreWriter, error_kind(errno)));
                    self.on_stored(token, result)
                }
            };
            done.extend(ended);
        }
        self.done = ended;
        self.outstanding -= done.len() - before;
    }

    /// What the volume keeps itself.
    fn on_kept(&mut self, token: Token, found: Result<KeptWriter, IoError>) -> Option<Completion> {
        self.is_below = found.as_ref().is_ok_and(|kept| !kept.is_none());
        match &found {
            // What was kept before it could.
            Ok(kept) if kept.is_none() => self.load(token, KeptBy::Place),
            Err(IoError { kind: ErrorKind::Unsupported, .. }) => {
                self.by = KeptBy::Place;
                self.load(token, KeptBy::Place);
            }
            _ => return self.on_loaded(token, found),
        }
        None
    }

    /// What it is to whoever loads, unless it goes on.
    fn on_loaded(
        &mut self,
        token: Token,
        found: Result<KeptWriter, IoError>,
    ) -> Option<Completion> {
        let kept = match found {
            Ok(kept) => kept,
            Err(error) => return Some(Completion::new(token, Err(error))),
        };
        match self.is_settled {
            true => {
                self.now = kept.leaves.unwrap_or_default();
                Some(self.loaded(token, kept.record))
            }
            false => self.settle(token, kept),
        }
    }

    fn loaded(&mut self, token: Token, record: WriterRecord) -> Completion {
        self.current = Some(record);
        let data = record.to_data(&Pool::new(0));
        Completion { data, ..Completion::new(token, Ok(())) }
    }

    fn on_stored(&mut self, token: Token, result: Result<(), IoError>) -> Option<Completion> {
        let nth = self.storing.iter().position(|one| one.token == token)?;
        let Storing { record, step, .. } = self.storing[nth];
        let is_settling = self.settling.is_some_and(|(of, _)| of == token);
        let is_refused = result.is_err_and(|error| error.kind == ErrorKind::Unsupported);
        let has_no_space = result.is_err_and(|error| error.kind == ErrorKind::NoSpace);
        let next = match step {
            // It keeps none, and is full: as before, where there was one before. A first one elsewhere nobody would find who takes this one's place.
            Step::Store
                if self.by == KeptBy::Volume
                    && has_no_space
                    && self.is_in_place
                    && !self.is_below =>
            {
                Some(Step::InPlace)
            }
            Step::Store if self.by == KeptBy::Volume && is_refused => Some(Step::InPlace),
            Step::Store if self.by == KeptBy::Volume => {
                // Be it that this has failed.
                self.is_below = true;
                (is_settling && result.is_ok()).then_some(Step::GiveUp)
            }
            Step::InPlace if self.is_below && self.canary != RecordedCanary::LeavesOld => {
                result.is_ok().then_some(Step::Clear)
            }
            Step::Clear if result.is_ok() => {
                self.is_below = false;
                None
            }
            _ => None,
        };
        let Some(next) = next else {
            self.storing.remove(nth);
            return self.on_end(token, record, result);
        };
        self.storing[nth].step = next;
        match next {
            Step::Clear => self.ask_below(KeptWriter::default().to_io(token, &Pool::new(0))),
            Step::GiveUp => {
                self.place.give_up();
                self.ask_place(token, DiskOpKind::StoreWriter(Box::new(record)));
            }
            Step::Store | Step::InPlace => {
                if !is_settling {
                    self.place.remember(self.now.clone(), Vec::new());
                }
                self.ask_place(token, DiskOpKind::StoreWriter(Box::new(record)));
            }
        }
        None
    }

    /// A record is stored, wherever it is kept, or that has failed: what it is to whoever has asked.
    fn on_end(
        &mut self,
        token: Token,
        record: WriterRecord,
        result: Result<(), IoError>,
    ) -> Option<Completion> {
        if result.is_ok() {
            self.current = Some(record);
        }
        match result {
            // With the leaves of now.
            Ok(()) if std::mem::take(&mut self.is_behind) => self.place.on_leaves(Ok(())),
            Err(error) if token == OWN_TOKEN => {
                self.retry_at = None;
                if !std::mem::replace(&mut self.is_behind, true) {
                    self.place.on_leaves(Err(error));
                }
            }
            _ => {}
        }
        match self.settling {
            _ if token == OWN_TOKEN => None,
            Some((of, _)) if of == token => self.settled(token, result),
            _ => Some(Completion::new(token, result)),
        }
    }

    /// Has the grants of now remembered, with the record that counts from now on.
    fn settle(&mut self, token: Token, found: KeptWriter) -> Option<Completion> {
        let KeptWriter { record: found, leaves: remembered } = found;
        let now = to_remember(remembered.as_deref().unwrap_or_default(), &self.held);
        let is_same = |remembered: &Vec<_>| are_same(remembered, &now);
        // Not all that keep a record keep its idle generations.
        let is_tried = |tried: WriterRecord| WriterRecord { idle: found.idle, ..tried } == found;
        let is_there = self.tried.is_some_and(is_tried) && remembered.as_ref().is_some_and(is_same);
        let others = match &remembered {
            _ if is_there => Vec::new(),
            Some(remembered) => granted_to_others(remembered, &self.held),
            // Somebody has stored that who had all of them.
            None => {
                let held = self.held.iter().enumerate();
                held.filter(|(_, one)| one.grant.generation != 0).map(|(leaf, _)| leaf).collect()
            }
        };
        let raised = match others.is_empty() {
            true => Some(found),
            false => {
                found.generation.checked_add(1).map(|next| WriterRecord::new(next, [0; 16], ""))
            }
        };
        let Some(record) = raised else {
            // The last one is on record: whoever has it cannot be fenced, and must not be let in.
            let error = failed(Op::LoadWriter, ErrorKind::Io);
            return Some(Completion::new(token, Err(error)));
        };
        self.tried = Some(record);
        self.settling = Some((token, record));
        self.now = now.clone();
        self.place.remember(now, others);
        self.store(token, record);
        None
    }

    /// They are, or that has failed: to whoever loads.
    fn settled(&mut self, token: Token, result: Result<(), IoError>) -> Option<Completion> {
        let (_, record) = self.settling.take_if(|(of, _)| *of == token)?;
        Some(match result {
            Ok(()) => {
                self.is_settled = true;
                self.loaded(token, record)
            }
            // But that is what fails, if it does.
            Err(error) => Completion::new(token, Err(error)),
        })
    }

    /// Nothing of the record is under way, which is this one.
    fn at_rest(&self) -> Option<WriterRecord> {
        let is_free = self.is_settled && self.outstanding == 0 && self.storing.is_empty();
        self.current.filter(|_| is_free)
    }

    /// Has it remembered how the leaves are held by now, with the record that is there, unless that is being changed.
    fn follow_leaves(&mut self) {
        let Some(record) = self.at_rest() else { return };
        let Some(held) = self.changes.0.borrow_mut().take() else { return };
        let now = to_remember(&self.now, &held);
        self.held = held;
        if now != self.now {
            self.now = now;
            self.store_leaves(record);
        }
    }

    fn store_leaves(&mut self, record: WriterRecord) {
        if self.by == KeptBy::Place {
            self.place.remember(self.now.clone(), Vec::new());
        }
        self.store(OWN_TOKEN, record);
    }

    /// Stores leaves again that could not be, when it is time for that. When to look again.
    ///
    /// Meanwhile the record says of some leaf less than was granted: whoever opens the whole next finds that somebody may have written it, and fences the writer, for nothing.
    #[cold]
    fn retry_leaves(&mut self, now: Time) -> Time {
        if self.canary == RecordedCanary::TriesOnce {
            return Time::NEVER;
        }
        let at = *self.retry_at.get_or_insert(now + RETRY);
        match self.at_rest() {
            Some(record) if now >= at => {
                self.store_leaves(record);
                self.retry_at = Some(now + RETRY);
                // What is below is polled.
                now
            }
            // What is being stored has them, too.
            None => now + RETRY,
            Some(_) => at,
        }
    }
}

/// Nothing of a record can be stored in it.
fn is_read(by: KeptBy, volume: &dyn Volume) -> bool {
    by == KeptBy::Volume && volume.geometry().features.read_only
}

const NAME: &str = "writer record";

fn failed(op: Op, kind: ErrorKind) -> IoError {
    Io::new(0, op, 0, 0).error(kind, NAME)
}

impl<P: RecordPlace> Layer for Recorded<P> {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        match io.op.is_record() {
            true => self.submit_record(&io),
            false => self.below.submit(io),
        }
    }

    #[inline]
    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        if !self.out.is_empty() {
            self.take_kept(start, done);
        }
        if self.outstanding > 0 || !self.storing.is_empty() {
            self.poll_place(done);
        } else if self.changes.0.borrow().is_some() {
            self.follow_leaves();
        }
    }

    fn taken(&self) -> usize {
        self.below.outstanding() - self.out.len() + self.outstanding
    }

    fn own_is_timed(&self) -> bool {
        self.follows
    }

    fn own_turn(&mut self, now: Time) -> Time {
        match self.is_behind {
            false => Time::NEVER,
            true => self.retry_leaves(now),
        }
    }
}

#[cfg(test)]
mod tests;
