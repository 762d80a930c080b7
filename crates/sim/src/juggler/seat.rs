//! One of a juggler's exports: attached, fenced, detached, and attached again.

use thinwire_proto::Item;
use thinwire_volume::Identity;
use thinwire_wire::{Attached, Detach, Message, Status, attach_flags};

use super::desk::Ask;
use super::{Around, Juggler};
use crate::export::{Export, Store};
use crate::model::Violation;
use crate::swarm::pick;
use crate::world::{MS, SECOND};

/// Where it stands in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// Not attached; it is asked for then.
    Out { until: u64 },
    /// Asked for, with this transaction.
    Asked(u32),
    /// Attached.
    In,
    /// It is about to be detached: once nothing of it is outstanding, and, if so, it has been flushed.
    Leaving { flushes: bool },
    /// Detached, with this transaction, which was not confirmed.
    Detaching(u32),
}

/// One of its exports.
pub(super) struct Seat {
    pub export: usize,
    pub read_only: bool,
    /// The next attach takes over.
    pub take_over: bool,
    pub stands: Stands,
    pub handle: (u32, u32),
    /// The run that writes through it, 0 if none does: it has ended, or reads only.
    pub run: u32,
    pub content: usize,
    pub generation: u64,
    pub verifier: u64,
    pub block_bytes: usize,
    pub io_bytes_max: usize,
    /// Requests of it that are not answered.
    pub outstanding: usize,
    /// Everything it was told is durable, and it has written nothing since.
    pub is_clean: bool,
    /// It was detached in this session.
    pub was_left: bool,
    /// It is to be flushed once.
    pub owes_flush: bool,
}

impl Seat {
    pub fn new(export: usize, read_only: bool) -> Self {
        Seat {
            export,
            read_only,
            take_over: false,
            stands: Stands::Out { until: 0 },
            handle: (0, 0),
            run: 0,
            content: 0,
            generation: 0,
            verifier: 0,
            block_bytes: 512,
            io_bytes_max: 0,
            outstanding: 0,
            is_clean: true,
            was_left: false,
            owes_flush: false,
        }
    }

    /// I/O may be sent through it.
    pub fn is_open(&self) -> bool {
        self.stands == Stands::In
    }

    /// Neither attached nor about to be.
    pub fn is_out(&self) -> bool {
        matches!(self.stands, Stands::Out { .. })
    }

    /// Its handle is one that the target has given and not got back.
    pub fn is_at_table(&self) -> bool {
        matches!(self.stands, Stands::In | Stands::Leaving { .. } | Stands::Detaching(_))
    }

    /// When it is asked for.
    pub fn asks_at(&self) -> Option<u64> {
        if let Stands::Out { until } = self.stands { Some(until) } else { None }
    }

    /// Its run ends as if the process had died.
    pub fn end_run(&mut self, exports: &mut [Export]) {
        let run = std::mem::take(&mut self.run);
        if run != 0 {
            exports[self.export].models[self.content].run_ended(run);
        }
    }

    pub fn describe(&self) -> String {
        let Seat { export, stands, outstanding, generation, .. } = self;
        format!("export {export} {stands:?} with {outstanding}, generation {generation}")
    }
}

impl Juggler {
    /// Asks for what it has not, and goes on with what it leaves.
    pub(super) fn act(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        for at in 0..self.seats.len() {
            if self.is_closing && self.seats[at].is_open() {
                self.seats[at].stands = Stands::Leaving { flushes: true };
            }
            match self.seats[at].stands {
                Stands::Out { until } if until <= around.now && !self.is_closing => {
                    self.ask(at, around);
                }
                Stands::Leaving { flushes } if self.seats[at].outstanding == 0 => {
                    let seat = &self.seats[at];
                    if flushes && seat.run != 0 && !seat.is_clean {
                        self.flush(at, around);
                    } else {
                        self.detach(at, around);
                    }
                }
                _ => {}
            }
        }
        for at in 0..self.seats.len() {
            let seat = &self.seats[at];
            if seat.owes_flush && seat.is_open() && self.desk.has_free() && self.has_credit() {
                self.seats[at].owes_flush = false;
                self.flush(at, around);
            }
        }
        while self.wants_more(around.now) {
            self.submit_one(around);
        }
        Ok(())
    }

    fn ask(&mut self, at: usize, around: &mut Around<'_>) {
        let takes_over = !self.is_calm && self.rng.chance(0.1);
        let seat = &mut self.seats[at];
        let takes_over = std::mem::take(&mut seat.take_over) || takes_over;
        let flags = match (seat.read_only, takes_over && !self.is_calm) {
            (true, _) => attach_flags::READ_ONLY,
            (false, true) => attach_flags::TAKE_OVER,
            (false, false) => 0,
        };
        around.coverage.take_overs += u64::from(flags == attach_flags::TAKE_OVER);
        let transaction = self.desk.next_transaction();
        let export = around.exports[seat.export].name.clone();
        (around.note)("asks for", seat.export as u64);
        self.desk.asks.push(Ask { transaction, flags, export, since: around.now });
        seat.stands = Stands::Asked(transaction);
        self.hand.session.as_mut().expect("in session").send(Item::Attach(transaction));
    }

    fn detach(&mut self, at: usize, around: &mut Around<'_>) {
        let transaction = self.desk.next_transaction();
        let seat = &mut self.seats[at];
        let (attachment, generation) = seat.handle;
        (around.note)("detaches", seat.export as u64);
        seat.stands = Stands::Detaching(transaction);
        let detach = Detach { transaction, attachment, generation };
        self.hand.session.as_mut().expect("in session").send(Item::said(Message::Detach(detach)));
    }

    /// Who asked with this transaction, and when. The answer to another question comes late.
    fn answered(&mut self, transaction: u32) -> Option<(usize, u64)> {
        let ask = self.desk.asks.iter().position(|ask| ask.transaction == transaction)?;
        let since = self.desk.asks.remove(ask).since;
        let at = self.seats.iter().position(|s| s.stands == Stands::Asked(transaction))?;
        Some((at, since))
    }

    pub(super) fn on_attached(
        &mut self,
        a: &Attached,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let Some((at, since)) = self.answered(a.transaction) else { return Ok(()) };
        let me = self.known_as();
        let seat = &mut self.seats[at];
        let export = &mut around.exports[seat.export];
        let identity = Identity { identity: a.identity, incarnation: a.incarnation };
        let Some(content) = export.content_of(identity, a.bytes) else {
            let text = format!("it was told of {} bytes of {identity:?}: there are none", a.bytes);
            return Err(self.violation(text));
        };
        export.hear_verifier(a.verifier, since, around.now)?;
        (around.note)("attached", seat.export as u64);
        (around.note)("generation", a.writer_generation);
        seat.stands = Stands::In;
        seat.handle = (a.attachment, a.generation);
        seat.content = content;
        seat.generation = a.writer_generation;
        seat.verifier = a.verifier;
        seat.block_bytes = a.block_bytes as usize;
        seat.io_bytes_max = a.io_bytes_max as usize;
        (seat.outstanding, seat.is_clean) = (0, true);
        around.coverage.attached_again += u64::from(seat.was_left);
        if !seat.read_only {
            *around.runs += 1;
            seat.run = *around.runs;
            let is_writer = export.models[content].run_started(seat.run, seat.generation);
            if !export.was_granted(content, seat.generation, &me) {
                let text =
                    format!("it was granted generation {}, which is not durable", seat.generation);
                return Err(self.violation(text));
            }
            let is_there = is_writer && !export.is_gone(content);
            if let (true, Store::File(medium)) = (is_there, &export.store) {
                medium.fence(seat.run, false);
            }
        }
        let open = self.seats.iter().filter(|s| s.is_open()).count();
        if open > 1 && !std::mem::replace(&mut self.had_several, true) {
            around.coverage.several_exports += 1;
        }
        Ok(())
    }

    pub(super) fn on_refused(
        &mut self,
        transaction: u32,
        status: Status,
        text: &str,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let Some((at, _)) = self.answered(transaction) else { return Ok(()) };
        let me = self.known_as();
        let seat = &mut self.seats[at];
        let export = &around.exports[seat.export];
        (around.note)("is refused", seat.export as u64);
        let is_due = match status {
            // Behind so many others, which a target remembers the answers to.
            Status::Busy if text.contains("comes too late") => {
                transaction + 16 <= self.desk.last_transaction()
            }
            Status::Busy => !seat.read_only,
            Status::Io => export.error_is_due() && !seat.read_only,
            Status::NotFound | Status::ReadOnly => export.may_be_missed(around.now),
            _ => false,
        };
        if !is_due {
            return Err(self.violation(format!("it was refused: {text}")));
        }
        // As of a client: see `client/verdict.rs`.
        let is_answer = status == Status::Io && text.contains("could not be recorded");
        if let (true, Some(medium)) = (is_answer, export.medium()) {
            medium.deny(&me);
        }
        let later = self.rng.between(100 * MS, SECOND);
        seat.stands = Stands::Out { until: around.now + later };
        Ok(())
    }

    pub(super) fn on_detached(
        &mut self,
        transaction: u32,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let find = |s: &Seat| s.stands == Stands::Detaching(transaction);
        let Some(at) = self.seats.iter().position(find) else { return Ok(()) };
        let later = pick(&mut self.rng, &[0, 0, 10 * MS, 300 * MS]);
        let seat = &mut self.seats[at];
        (around.note)("detached", seat.export as u64);
        seat.stands = Stands::Out { until: around.now + later };
        seat.was_left = true;
        let run = std::mem::take(&mut seat.run);
        let model = &mut around.exports[seat.export].models[seat.content];
        if run == 0 {
            return Ok(());
        }
        if !seat.is_clean {
            model.run_ended(run);
            return Ok(());
        }
        model.run_detached(run).map_err(|v| self.violation(v.0))
    }

    /// It has heard that it is fenced, by an event or a request that was refused: on this one.
    pub(super) fn on_fenced(
        &mut self,
        at: usize,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let me = self.known_as();
        let seat = &mut self.seats[at];
        let export = &around.exports[seat.export];
        let is_due = !seat.read_only && export.was_taken_over(seat.content, seat.generation, &me);
        (around.note)("is fenced", seat.export as u64);
        if !is_due {
            let text = format!("it was fenced on {}, which nobody took over", export.name);
            return Err(self.violation(text));
        }
        seat.end_run(around.exports);
        if seat.is_open() {
            seat.stands = Stands::Leaving { flushes: false };
        }
        self.fenced_on = Some(at);
        Ok(())
    }
}
