//! [`CutVolume`]: holds writers, has parts make their snapshots, and puts on record what came of that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_volume::{
    CUT_BYTES, Completion, CutAct, CutOrder, ErrorKind, Io, IoError, Layer, Op, Token, Volume,
};

use super::record::CutRecord;
use super::steps::{Hold, Step};
use super::{
    CutAsk, CutCanary, CutError, CutNumber, CutResult, Cutter, Desk, HOLD_MAX, KnownCut, NAME,
    RETRY_AFTER,
};
use crate::meta::LabelError;

/// That of its own I/Os below: no user's has it.
const OWN_TOKEN: Token = Token::MAX - 1;

/// A volume that can be cut as one. See the [module](super).
pub struct CutVolume {
    below: Box<dyn Volume>,
    record: CutRecord,
    desk: Rc<RefCell<Desk>>,
    pool: Pool,
    canary: CutCanary,
    pub(super) step: Step,
    pub(super) ask: Option<(CutNumber, CutAsk)>,
    /// What parts have yet to be told, all of them.
    owes: Option<CutOrder>,
    /// They were, without being asked, and not all have heard it.
    has_tried: bool,
    /// When they are told again.
    retry_at: Time,
    /// Something above it keeps what it has told its users is written.
    is_buffered: bool,
    /// Why nothing can be cut before it was opened again.
    doubt: Option<LabelError>,
    pub(super) hold: Hold,
    waiting: VecDeque<Io>,
    /// When changes go on, whatever has come.
    until: Time,
    is_late: bool,
    /// An I/O of its own is below; or has ended.
    is_out: bool,
    came: Option<Result<SegList, IoError>>,
    /// Its own flush has failed: the next one of a user tells that.
    debt: Option<IoError>,
    ready: Vec<Completion>,
    now: Time,
}

impl CutVolume {
    /// Over the volume on top of what is cut, whose first part is the [`Recorder`] of that record. Memory for orders is from `pool`.
    pub fn new(below: Box<dyn Volume>, record: CutRecord, pool: &Pool) -> (Self, Cutter) {
        let (cut, begun) = record.says();
        let owes = match begun {
            0 => None,
            begun if begun == cut => Some(CutOrder::of_known(CutAct::Keep, cut)),
            begun => Some(CutOrder::of_known(CutAct::Drop, begun)),
        };
        let desk = Rc::new(RefCell::new(Desk::default()));
        let volume = CutVolume {
            below,
            record,
            desk: desk.clone(),
            pool: pool.clone(),
            canary: CutCanary::None,
            step: Step::Nothing,
            ask: None,
            owes,
            has_tried: false,
            retry_at: Time::NEVER,
            is_buffered: false,
            doubt: None,
            hold: Hold::Nobody,
            waiting: VecDeque::new(),
            until: Time::NEVER,
            is_late: false,
            is_out: false,
            came: None,
            debt: None,
            ready: Vec::new(),
            now: Time::ZERO,
        };
        (volume, Cutter(desk))
    }

    /// Something above it, in memory, acknowledges writes before they come here, in whatever order: of those no cut is one moment, and none is taken.
    pub fn set_buffered(&mut self) {
        self.is_buffered = true;
    }

    /// Plants a fault, which tests must find.
    pub fn set_canary(&mut self, canary: CutCanary) {
        self.canary = canary;
        if canary == CutCanary::HalvesStay {
            self.owes = None;
        }
    }

    #[cfg(test)]
    pub(super) fn hold_until(&mut self, until: Time) {
        self.until = until;
    }

    /// It has told parts this, and knows nothing of what came of it.
    #[cfg(test)]
    pub(super) fn owe(&mut self, order: CutOrder) {
        self.order(&order);
        self.owes = Some(order);
    }

    fn send(&mut self, io: Io) {
        debug_assert!(!self.is_out && self.came.is_none());
        self.is_out = true;
        self.below.submit(io);
    }

    fn order(&mut self, order: &CutOrder) {
        let io = order.io(OWN_TOKEN, &self.pool);
        self.send(io);
    }

    fn order_to(&mut self, act: CutAct) {
        let id = self.id();
        self.order(&CutOrder::of_known(act, id));
    }

    /// Of what is asked for.
    fn id(&self) -> u64 {
        match &self.ask {
            Some((_, CutAsk::Take { id, .. } | CutAsk::Drop { id })) => *id,
            _ => unreachable!("a cut is asked for"),
        }
    }

    /// Those who waited go on.
    fn release(&mut self) {
        self.release_to(Hold::Nobody);
    }

    /// Those go on who are not held any more.
    fn release_to(&mut self, hold: Hold) {
        self.hold = hold;
        self.until = Time::NEVER;
        for _ in 0..self.waiting.len() {
            let Some(io) = self.waiting.pop_front() else { return };
            match hold.holds(io.op) {
                true => self.waiting.push_back(io),
                false => self.pass_on(io),
            }
        }
    }

    fn pass_on(&mut self, io: Io) {
        if io.op == Op::Flush
            && let Some(error) = self.debt.take()
        {
            let error = IoError { module: error.module, ..io.error(error.kind, NAME) };
            return self.ready.push(Completion::new(io.token, Err(error)));
        }
        self.below.submit(io);
    }

    fn end(&mut self, result: CutResult) {
        let Some((number, _)) = self.ask.take() else { return };
        self.step = Step::Nothing;
        self.record.set_cutting(false);
        let desk = &mut *self.desk.borrow_mut();
        desk.is_busy = false;
        desk.ended.push((number, result));
    }

    /// Does what can be done now. True if something was begun below.
    fn advance(&mut self) -> bool {
        let mut has_begun = false;
        loop {
            let step = std::mem::replace(&mut self.step, Step::Nothing);
            match self.step(step) {
                // It waits for what is below.
                (step, false) => {
                    self.step = step;
                    return has_begun;
                }
                (step, true) => {
                    self.step = step;
                    has_begun = true;
                }
            }
        }
    }

    /// What comes next, and whether that is something else.
    fn step(&mut self, step: Step) -> (Step, bool) {
        match step {
            Step::Nothing => self.begin(),
            Step::Announce | Step::Record | Step::Retract(_) => match self.record.take_ended() {
                None => (step, false),
                Some(written) => (self.on_written(&step, written), true),
            },
            Step::Drain => match (self.is_late, self.below.outstanding()) {
                (true, _) => {
                    self.release();
                    // Nobody was told anything.
                    self.owes = None;
                    (self.ended(Err(CutError::Late)), true)
                }
                (false, out) if out > 0 && self.canary != CutCanary::NoDrain => (step, false),
                (false, _) => {
                    if self.hold == Hold::All {
                        self.hold = Hold::Changes;
                    }
                    self.send(Io::new(OWN_TOKEN, Op::Flush, 0, 0));
                    (Step::Flush, true)
                }
            },
            step => match self.came.take() {
                None => {
                    // Whoever does not answer holds nobody any longer.
                    let least = match step {
                        Step::Flush if self.canary != CutCanary::FlushBesideFlush => Hold::Flushes,
                        _ => Hold::Nobody,
                    };
                    if self.is_late && self.hold > least {
                        self.release_to(least);
                        return (step, true);
                    }
                    (step, false)
                }
                Some(came) => (self.on_came(step, came), true),
            },
        }
    }

    fn ended(&mut self, result: CutResult) -> Step {
        self.end(result);
        Step::Nothing
    }

    fn begin(&mut self) -> (Step, bool) {
        if self.ask.is_none() {
            let desk = &mut *self.desk.borrow_mut();
            self.ask = desk.asks.pop_front();
            desk.is_busy = self.ask.is_some();
        }
        if let Some(error) = self.doubt.clone().filter(|_| self.ask.is_some()) {
            return (self.ended(Err(CutError::InDoubt(error))), true);
        }
        // What is about to go is not told of.
        let is_tried = self.owes.is_none() || self.has_tried;
        if let (Some((_, CutAsk::List)), true) = (&self.ask, is_tried) {
            self.order_next("");
            return (Step::List(Vec::new()), true);
        }
        if self.is_buffered && matches!(self.ask, Some((_, CutAsk::Take { .. }))) {
            return (self.ended(Err(CutError::Buffered)), true);
        }
        if self.ask.is_some() && self.below.geometry().features.read_only {
            return (self.ended(Err(CutError::ReadOnly)), true);
        }
        match &self.owes {
            Some(order) if self.ask.is_some() || !self.has_tried => {
                let order = order.clone();
                self.has_tried = true;
                self.order(&order);
                (Step::Settle, true)
            }
            _ if self.ask.is_none() => (Step::Nothing, false),
            _ => {
                // There is none of that, unless it is to go.
                self.order_to(match self.ask {
                    Some((_, CutAsk::Take { .. })) => CutAct::Drop,
                    _ => CutAct::Ensure,
                });
                (Step::Probe, true)
            }
        }
    }

    fn order_next(&mut self, behind: &str) {
        let (act, name) = (CutAct::Next, behind.to_owned());
        self.order(&CutOrder { act, id: 0, at: 0, name });
    }

    fn announce(&mut self) {
        let (cut, _) = self.record.says();
        let id = self.id();
        self.record.set_cutting(true);
        // Of one that is dropped nothing says any more that it is there.
        self.record.write((if cut == id { 0 } else { cut }, id));
    }

    /// A label was written, or not.
    fn on_written(&mut self, step: &Step, written: Result<(), LabelError>) -> Step {
        let id = self.id();
        let drop = CutOrder::of_known(CutAct::Drop, id);
        match (step, written) {
            (Step::Announce, Err(error)) => self.ended(Err(CutError::Label(error))),
            (Step::Announce, Ok(())) => {
                self.owes = Some(drop);
                if matches!(self.ask, Some((_, CutAsk::Drop { .. }))) {
                    self.order_to(CutAct::Drop);
                    return Step::Drop;
                }
                self.is_late = false;
                self.until = self.now + HOLD_MAX;
                if self.canary != CutCanary::NoHold {
                    self.hold = Hold::All;
                }
                Step::Drain
            }
            (Step::Record, Ok(())) => {
                self.owes = Some(CutOrder::of_known(CutAct::Keep, id));
                if self.canary == CutCanary::EarlyRecord {
                    self.take();
                    return Step::Take;
                }
                self.order_to(CutAct::Keep);
                Step::Keep
            }
            // What stands there now is not known, but one that says no may.
            (Step::Record, Err(error)) => {
                let (cut, _) = self.record.says();
                self.record.write((cut, id));
                Step::Retract(error)
            }
            (Step::Retract(error), Ok(())) => {
                self.order_to(CutAct::Drop);
                Step::Undo(CutError::Label(error.clone()))
            }
            // All parts have it, and nobody is told otherwise before the label was read.
            (_, _) => {
                let error = match step {
                    Step::Retract(error) => error.clone(),
                    _ => LabelError::Unknown,
                };
                self.owes = None;
                self.doubt = Some(error.clone());
                self.ended(Err(CutError::InDoubt(error)))
            }
        }
    }

    fn take(&mut self) {
        let order = match &self.ask {
            Some((_, CutAsk::Take { id, name, at })) => {
                CutOrder { act: CutAct::Take, id: *id, at: *at, name: name.clone() }
            }
            _ => unreachable!("a cut is asked for"),
        };
        self.order(&order);
    }

    /// What was sent below has ended.
    fn on_came(&mut self, step: Step, came: Result<SegList, IoError>) -> Step {
        if let Step::List(known) = step {
            return self.on_next(known, came);
        }
        let came = came.map(|_| ());
        let is_late = self.is_late && self.canary != CutCanary::LateCounts;
        match (step, came) {
            (Step::Settle, came) => {
                let keeps = self.owes.as_ref().is_some_and(|order| order.act == CutAct::Keep);
                match came {
                    Ok(()) => self.owes = None,
                    // Somebody has deleted it there.
                    Err(error) if keeps && error.kind == ErrorKind::Invalid => self.owes = None,
                    // Whoever only asks is told all the same.
                    Err(_) if matches!(self.ask, Some((_, CutAsk::List))) => self.try_later(),
                    Err(error) => {
                        self.try_later();
                        self.end(Err(CutError::Unsettled(error)));
                    }
                }
                Step::Nothing
            }
            // Of one that is to go some parts may have nothing any more.
            (Step::Probe, Err(error))
                if error.kind != ErrorKind::Invalid
                    || matches!(self.ask, Some((_, CutAsk::Take { .. }))) =>
            {
                self.ended(Err(CutError::Part(error)))
            }
            (Step::Probe, _) => {
                self.announce();
                Step::Announce
            }
            (Step::Flush, Err(error)) => {
                self.debt = Some(error);
                self.release();
                self.owes = None;
                self.ended(Err(CutError::Unflushed(error)))
            }
            (Step::Flush, Ok(())) if is_late => {
                self.release();
                self.owes = None;
                self.ended(Err(CutError::Late))
            }
            (Step::Flush, Ok(())) if self.canary == CutCanary::EarlyRecord => {
                let id = self.id();
                self.record.write((id, id));
                Step::Record
            }
            (Step::Flush, Ok(())) => {
                self.take();
                Step::Take
            }
            (Step::Take, came) => {
                self.release();
                let why = match came {
                    Ok(()) if self.canary == CutCanary::EarlyRecord => {
                        self.order_to(CutAct::Keep);
                        return Step::Keep;
                    }
                    Ok(()) if is_late => CutError::Late,
                    Ok(()) if self.canary == CutCanary::NotEnsured => return self.put_on_record(),
                    Ok(()) => {
                        self.order_to(CutAct::Ensure);
                        return Step::Ensure;
                    }
                    Err(_) if is_late => CutError::Late,
                    Err(error) => CutError::Part(error),
                };
                self.undo(why)
            }
            (Step::Ensure, Ok(())) => self.put_on_record(),
            (Step::Ensure, Err(error)) => self.undo(CutError::Part(error)),
            (Step::Keep, came) => {
                // On record it is, and who has not heard so is told later.
                self.has_heard(came.is_ok());
                self.ended(Ok(Vec::new()))
            }
            (Step::Undo(why), came) => {
                self.has_heard(came.is_ok());
                self.ended(Err(why))
            }
            (Step::Drop, came) => {
                self.has_heard(came.is_ok());
                self.ended(came.map_err(CutError::Undropped).map(|()| Vec::new()))
            }
            (step, _) => unreachable!("{step:?} sends nothing"),
        }
    }

    /// All parts know how it has ended, or are told again.
    fn has_heard(&mut self, all: bool) {
        match all {
            true => self.owes = None,
            false => self.try_later(),
        }
    }

    fn try_later(&mut self) {
        self.has_tried = true;
        self.retry_at = self.now + RETRY_AFTER;
    }

    /// Another one is told of, or none.
    fn on_next(&mut self, mut known: Vec<KnownCut>, came: Result<SegList, IoError>) -> Step {
        let data = match came {
            Ok(data) => data,
            Err(error) => return self.ended(Err(CutError::Part(error))),
        };
        let mut bytes = [0; CUT_BYTES];
        let told = (data.bytes() == CUT_BYTES).then(|| {
            data.copy_to(&mut bytes);
            CutOrder::decode(&bytes)
        });
        match told.flatten() {
            // Whoever tells it is elsewhere, and may tell the same for ever.
            Some(CutOrder { act: CutAct::Keep, id, at, name })
                if known.last().is_none_or(|last| last.name < name) =>
            {
                self.order_next(&name);
                known.push(KnownCut { id, at, name });
                Step::List(known)
            }
            _ => self.ended(Ok(known)),
        }
    }

    fn put_on_record(&mut self) -> Step {
        let id = self.id();
        if self.canary == CutCanary::ToldEarly
            && let Some((number, _)) = &self.ask
        {
            self.desk.borrow_mut().ended.push((*number, Ok(Vec::new())));
        }
        self.record.write((id, id));
        Step::Record
    }

    /// Whatever parts have of it goes again.
    fn undo(&mut self, why: CutError) -> Step {
        if self.canary == CutCanary::HalvesStay {
            self.owes = None;
            return self.ended(Err(why));
        }
        self.order_to(CutAct::Drop);
        Step::Undo(why)
    }

    /// Takes in what its own I/O has come to, of what has ended below.
    fn take_own(&mut self, start: usize, done: &mut Vec<Completion>) {
        if !self.is_out {
            return;
        }
        let own = done[start..].iter().position(|completion| completion.token == OWN_TOKEN);
        if let Some(at) = own {
            self.is_out = false;
            let own = done.remove(start + at);
            self.came = Some(own.result.map(|()| own.data));
        }
    }

    /// There is something to do, or under way.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.step, Step::Nothing)
            || self.owes.is_some() && !self.has_tried
            || !self.desk.borrow().asks.is_empty()
    }
}

impl Drop for CutVolume {
    fn drop(&mut self) {
        let desk = &mut *self.desk.borrow_mut();
        let left = self.ask.take().into_iter().chain(desk.asks.drain(..));
        desk.ended.extend(left.map(|(number, _)| (number, Err(CutError::Closed))));
        (desk.is_busy, desk.is_closed) = (false, true);
    }
}

impl Layer for CutVolume {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        debug_assert_ne!(io.token, OWN_TOKEN);
        if self.hold.holds(io.op) {
            self.waiting.push_back(io);
        } else if self.debt.is_some() {
            self.pass_on(io);
        } else {
            self.below.submit(io);
        }
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        if self.is_busy() {
            self.take_own(start, done);
            // What goes on must be on its way in this poll: nobody would wake us.
            while self.advance() {
                self.below.poll(done);
                self.take_own(start, done);
            }
        }
        done.append(&mut self.ready);
    }

    fn taken(&self) -> usize {
        self.below.outstanding() - usize::from(self.is_out) + self.waiting.len() + self.ready.len()
    }

    fn own_is_timed(&self) -> bool {
        true
    }

    fn own_turn(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        if self.now >= self.until {
            (self.is_late, self.until) = (true, Time::NEVER);
            return now;
        }
        if self.now >= self.retry_at {
            (self.has_tried, self.retry_at) = (false, Time::NEVER);
        }
        let begins = matches!(self.step, Step::Nothing) && self.is_busy();
        if begins { now } else { self.until.min(self.retry_at) }
    }
}
