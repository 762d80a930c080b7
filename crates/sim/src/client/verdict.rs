//! How what a client is told is judged: completions against the model, errors against what was due.

use thinwire_initiator::{AttachError, Initiator, WhenAway};
use thinwire_proto::{Notice, Time};
use thinwire_volume::{Completion, ErrorKind};
use thinwire_wire::Status;

use super::{Client, End, IoOutcome, LastFlush};
use crate::coverage::Coverage;
use crate::export::{Export, Store};
use crate::model::{ModelEffect, Range, Ticket, Violation};
use crate::stamp::SECTOR_BYTES;

/// What the completion of an I/O is checked against.
pub(super) enum Expectation {
    ModelEffect {
        version: u64,
        effect: ModelEffect,
        fua: bool,
    },
    Read(Ticket),
    Status(Ticket),
    Flush((u64, u64)),
    /// A write through a read-only attachment.
    Forbidden,
}

pub(super) struct Pending {
    pub kind: Expectation,
    pub range: Range,
    pub submitted_at: u64,
}

impl Client {
    /// Sees what has changed, and checks the completions.
    pub(super) fn look(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<(), Violation> {
        let me = self.known_as();
        let initiator = self.initiator.as_mut().expect("it runs");
        if !self.is_open && initiator.is_open() && !self.closing {
            self.is_open = true;
            initiator.build();
            if export.tree().is_some() && export.contents.is_empty() {
                // Nobody serves it: it is the client's own.
                export.begin_content(initiator.identity(), None, None);
                coverage.tree_clients += 1;
            }
            let (identity, bytes) = (initiator.identity(), initiator.geometry().bytes);
            let Some(content) = export.content_of(identity, bytes) else {
                let text = format!("it was told of {bytes} bytes of {identity:?}: there are none");
                return Err(self.violation(text));
            };
            self.content = content;
            coverage.attached += 1;
            coverage.members_open += u64::from(initiator.has_members());
            trace("attached", u64::from(self.run));
            trace("generation", initiator.report(Time(now)).writer_generation);
            if !self.config.read_only {
                let generation = initiator.report(Time(now)).writer_generation;
                let is_writer = export.models[content].run_started(self.run, generation);
                if !export.was_granted(content, generation, &me) {
                    let text =
                        format!("it was granted generation {generation}, which is not durable");
                    return Err(self.violation(text));
                }
                let is_there = is_writer && !export.is_gone(content);
                if let (true, Store::File(medium)) = (is_there, &export.store) {
                    medium.fence(self.run, initiator.takes_any_range());
                }
            }
        }
        while let Some(notice) = initiator.take_notice() {
            match notice {
                Notice::PathUp(_) => coverage.paths_up += 1,
                Notice::PathDown(_) => coverage.paths_down += 1,
                Notice::FrameSize { .. } => coverage.frame_size_fallbacks += 1,
            }
        }
        if self.is_open {
            export.check_size(self.content, initiator.known_bytes())?;
        }
        let failures = initiator.report(Time(now)).stats.replay_failures;
        if failures > self.failures_seen {
            self.failures_seen = failures;
            export.models[self.content].replay_failed(self.run);
            if !export.error_is_due() {
                return Err(Violation(format!("{}: a replay failed", self.name)));
            }
        }
        let mut done = std::mem::take(&mut self.done);
        initiator.poll(&mut done);
        if !done.is_empty() {
            self.machine.dirty = true;
            self.answered_at = now;
        }
        for completion in done.drain(..) {
            let code = completion.result.map_or_else(|e| e.kind as u64 + 1, |()| 0);
            trace("completed", completion.token << 8 | code);
            self.check(now, completion, export, coverage)?;
        }
        self.done = done;
        Ok(())
    }

    fn check(
        &mut self,
        now: u64,
        completion: Completion,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let token = completion.token;
        let Some(Pending { kind, range, .. }) = self.pending.remove(&token) else {
            return Err(self.violation(format!("I/O {token} was completed twice")));
        };
        let life = export.life();
        let result = completion.result;
        if self.last_flush == LastFlush::Asked(token) {
            self.last_flush = LastFlush::Answered(result.is_ok());
            self.initiator.as_mut().expect("it runs").close();
        }
        if self.keeps_log {
            let data = completion.data.to_vec();
            self.log.push(IoOutcome { token, result: result.map_err(|e| e.kind), data });
        }
        if let Err(error) = result {
            self.check_error(error.kind, &kind, export, coverage)?;
        }
        let ok = result.is_ok();
        let model = &mut export.models[self.content];
        match kind {
            Expectation::ModelEffect { version, effect, fua } => {
                model.end_write(self.run, range, version, ok, fua);
                if ok {
                    match effect {
                        ModelEffect::Data => coverage.writes += 1,
                        ModelEffect::Zeroes => coverage.zeroes += 1,
                        ModelEffect::Discard => coverage.discards += 1,
                    }
                    coverage.fua_writes += u64::from(fua);
                }
            }
            Expectation::Flush(mark) => {
                coverage.flushes += u64::from(ok);
                if !self.config.read_only {
                    model.end_flush(self.run, mark, ok).map_err(|v| self.violation(v.0))?;
                }
            }
            Expectation::Read(ticket) if ok => {
                coverage.reads_checked += 1;
                coverage.reader_reads += u64::from(self.config.read_only);
                let data = completion.data.to_vec();
                model.end_read(&ticket, range, &data, life).map_err(|v| self.violation(v.0))?;
                if let Some(holding) = &mut self.holding {
                    holding.keep(now, token, completion.data, data);
                }
            }
            Expectation::Status(ticket) if ok => {
                coverage.statuses += 1;
                let mut at = range.first;
                for extent in &completion.extents {
                    let count = extent.len as usize / SECTOR_BYTES;
                    if extent.zero {
                        let before = at - range.first;
                        let mut ticket = ticket.clone();
                        ticket.skip(before);
                        model
                            .check_zero(&ticket, Range { first: at, count }, life)
                            .map_err(|v| self.violation(v.0))?;
                    }
                    at += count;
                }
                if at == range.first || at > range.first + range.count {
                    let text = format!("block status of {range:?} ends at sector {at}");
                    return Err(self.violation(text));
                }
            }
            Expectation::Forbidden if ok => {
                return Err(self.violation("a read-only attachment wrote".into()));
            }
            Expectation::Read(_) | Expectation::Status(_) | Expectation::Forbidden => {}
        }
        Ok(())
    }

    /// Whether an error was due.
    fn check_error(
        &self,
        error: ErrorKind,
        kind: &Expectation,
        export: &Export,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let may_lose = matches!(self.config.when_away, WhenAway::FailAfter(_));
        let is_due = match error {
            ErrorKind::Away => may_lose,
            ErrorKind::Fenced => self.fence_is_due(export),
            ErrorKind::ContentChanged => self.content_is_gone(export),
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::BadSum => export.error_is_due(),
            ErrorKind::Altered => self.config.integrity && export.error_is_due(),
            ErrorKind::ShuttingDown => self.closing,
            ErrorKind::ReadOnly => matches!(kind, Expectation::Forbidden),
            ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::OutcomeUnknown => false,
        };
        if !is_due {
            return Err(self.violation(format!("an I/O failed: {}", error.describe())));
        }
        coverage.errors += 1;
        coverage.away_errors += u64::from(error == ErrorKind::Away);
        coverage.reader_writes_refused += u64::from(error == ErrorKind::ReadOnly);
        Ok(())
    }

    /// Somebody else was granted the export, heard or not.
    fn fence_is_due(&self, export: &Export) -> bool {
        let initiator = self.initiator.as_ref().expect("it runs");
        let generation = initiator.report(Time::ZERO).writer_generation;
        let me = &self.known_as();
        !self.config.read_only && export.was_fenced(self.content, generation, me)
    }

    /// The first member is there, and somebody else has been granted the export since, or its content is gone.
    fn joins_too_late(&self, status: Status, export: &Export) -> bool {
        let process = self.initiator.as_ref().expect("it runs");
        let first: &Initiator = process;
        if !process.has_members() || !first.is_open() {
            return false;
        }
        let generation = process.report(Time::ZERO).writer_generation;
        let content = export.content_of(process.identity(), process.geometry().bytes);
        content.is_some_and(|content| match status {
            Status::Fenced => export.was_fenced(content, generation, &self.known_as()),
            _ => export.is_gone(content),
        })
    }

    fn content_is_gone(&self, export: &Export) -> bool {
        export.is_gone(self.content)
    }

    pub(super) fn ended(&self, now: u64, export: &Export) -> Result<Option<End>, Violation> {
        let initiator = self.initiator.as_ref().expect("it runs");
        if initiator.is_closed() {
            return Ok(Some(End::Closed));
        }
        if let Some(kind) = initiator.failure() {
            if !self.pending.is_empty() {
                if initiator.is_settling() {
                    // The module's own are refused in one more turn.
                    return Ok(None);
                }
                let text = format!("{} I/Os are left after it has failed", self.pending.len());
                return Err(self.violation(text));
            }
            let is_early = !self.is_open && initiator.has_members();
            let is_due = match kind {
                // The first is there, and others are not yet.
                ErrorKind::Fenced | ErrorKind::ContentChanged if is_early => true,
                ErrorKind::Fenced => self.fence_is_due(export),
                ErrorKind::ContentChanged => self.content_is_gone(export),
                _ => false,
            };
            if !is_due {
                return Err(self.violation(format!("it failed: {}", kind.describe())));
            }
            return Ok(Some(End::Failed(kind)));
        }
        match initiator.first_error() {
            Some(AttachError::Refused { status, text, .. }) if !initiator.is_open() => {
                let is_due = match status {
                    Status::Busy => true,
                    Status::Io => export.error_is_due(),
                    Status::NotFound | Status::ReadOnly => export.may_be_missed(now),
                    Status::Invalid => self.config.initiator == [0; 16],
                    Status::Fenced | Status::OtherContent => self.joins_too_late(*status, export),
                    _ => false,
                };
                if !is_due {
                    return Err(self.violation(format!("it was refused: {text}")));
                }
                // A record that cannot be read may be the one that an earlier life of the target has
                // left of this very attach: that is no answer to it.
                let first: &Initiator = initiator;
                let is_first = !initiator.has_members() || first.first_error().is_some();
                let is_answer = *status == Status::Io && text.contains("could not be recorded");
                if let (true, Some(medium)) = (is_answer && is_first, export.record_medium()) {
                    medium.deny(&self.known_as());
                }
                Ok(Some(End::Refused(*status)))
            }
            Some(error) if !initiator.is_open() => {
                Err(self.violation(format!("the first attach failed: {error}")))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn violation(&self, text: String) -> Violation {
        Violation(format!("{} (run {}): {text}", self.name, self.run))
    }
}
