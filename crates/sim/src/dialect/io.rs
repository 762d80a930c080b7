//! What a user of another protocol reads and writes, and how the answers are judged.

use thinwire_buffer::SegList;
use thinwire_volume::{Completion, ErrorKind, Io, Op};

use super::{DialectSettings, DialectUser};
use crate::coverage::Coverage;
use crate::export::Export;
use crate::model::{ModelEffect, Range, Ticket, Violation};
use crate::stamp::SECTOR_BYTES;

/// What the completion of an I/O is checked against.
enum Expectation {
    /// And what its store had gone through when it was submitted, and the grant that it stood under then: what refuses it may
    /// come behind another. 0 until there is one.
    Write {
        version: u64,
        fua: bool,
        upheavals: u64,
        generation: u64,
    },
    /// And under which generation the export was written then.
    Read(Ticket, u64),
    Flush((u64, u64)),
}

pub(super) struct Pending {
    kind: Expectation,
    range: Range,
    /// Its store could fail when it was asked for. What has failed of it is told when all of it has ended, by when the store
    /// may be well.
    may_fail: bool,
}

impl Pending {
    /// Of a write: where, and under which version.
    pub(super) fn write(&self) -> Option<(Range, u64)> {
        match self.kind {
            Expectation::Write { version, .. } => Some((self.range, version)),
            _ => None,
        }
    }

    /// Its user has been granted the export.
    pub(super) fn granted(&mut self, now: u64) {
        if let Expectation::Write { generation: generation @ 0, .. } = &mut self.kind {
            *generation = now;
        }
    }
}

impl DialectUser {
    pub(super) fn wants_more(&self, now: u64) -> bool {
        let is_usable = self.client.as_ref().is_some_and(|client| client.failure().is_none());
        let may = self.is_open && is_usable && !self.is_closing;
        let flushes = self.owes_flush && self.pending.is_empty();
        let goes_on = self.submitted < self.workload.budget
            && self.pending.len() < self.workload.depth
            && now >= self.pause_until;
        may && (flushes || goes_on)
    }

    /// One more I/O, drawn.
    pub(super) fn submit_random(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        note: &mut dyn FnMut(&str, u64),
    ) {
        let w = self.workload;
        if self.pending.is_empty() {
            self.answered_at = now;
        }
        if self.owes_flush && self.pending.is_empty() {
            self.owes_flush = false;
            let nothing = Range { first: 0, count: 0 };
            return self.submit(Op::Flush, nothing, false, export, coverage);
        }
        self.submitted += 1;
        let writes = if self.read_only { 0 } else { w.writes };
        let drawn = self.rng.below(w.reads + writes + w.flushes);
        let op = match drawn {
            drawn if drawn < w.reads => Op::Read,
            drawn if drawn < w.reads + writes => Op::Write,
            _ => Op::Flush,
        };
        let geometry = self.client.as_ref().expect("it runs").geometry();
        let all = geometry.bytes as usize / SECTOR_BYTES;
        let span = if self.rng.chance(w.hot) { w.hot_sectors.clamp(1, all) } else { all };
        let first = self.rng.below(span as u64) as usize;
        let most = w.sectors_max.min(geometry.io_bytes_max as usize / SECTOR_BYTES);
        let longest = most.clamp(1, all - first);
        let longest = if self.rng.chance(0.8) { longest.min(16) } else { longest };
        let count = self.rng.between(1, longest as u64) as usize;
        let range = Range { first, count };
        if self.rng.chance(w.pauses) {
            self.pause_until = now + self.rng.between(1, w.pause_ns_max);
        }
        let fua = op == Op::Write && self.rng.chance(w.fua);
        note(["reads", "writes", "flushes"][op as usize % 3], (first as u64) << 16 | count as u64);
        self.submit(op, range, fua, export, coverage);
    }

    fn submit(
        &mut self,
        op: Op,
        range: Range,
        fua: bool,
        export: &mut Export,
        coverage: &mut Coverage,
    ) {
        let token = self.next_token;
        self.next_token += 1;
        let len = range.count * SECTOR_BYTES;
        let mut io = Io::new(token, op, (range.first * SECTOR_BYTES) as u64, len as u64);
        io.flags.fua = fua;
        let life = export.life();
        let model = &mut export.models[self.content];
        let kind = match op {
            Op::Read => {
                // Of AoE: unless it waits for its turn.
                let is_writer = self.aoe_writer().is_none() || model.run() == self.run;
                let run = (!self.read_only && is_writer).then_some(self.run);
                Expectation::Read(model.begin_read(run, range, life), model.generation())
            }
            Op::Flush => {
                (io.offset, io.len) = (0, 0);
                Expectation::Flush(model.begin_flush())
            }
            _ => {
                let version = model.begin_write(self.run, range, ModelEffect::Data);
                let mut buf = self.pool.get(len);
                model.fill(self.run, range, version, &mut buf);
                io.data = SegList::of(buf.freeze());
                let (upheavals, generation) = (life.upheavals, self.generation);
                Expectation::Write { version, fua, upheavals, generation }
            }
        };
        match self.settings {
            DialectSettings::Ebd(_) => coverage.ebd_requests += 1,
            DialectSettings::Aoe(_) => coverage.aoe_requests += 1,
        }
        let may_fail = export.error_is_due();
        self.pending.insert(token, Pending { kind, range, may_fail });
        self.client.as_mut().expect("it runs").submit(io);
        self.machine.dirty = true;
    }

    pub(super) fn check(
        &mut self,
        now: u64,
        completion: Completion,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let token = completion.token;
        let Some(Pending { kind, range, may_fail }) = self.pending.remove(&token) else {
            return Err(self.violation(format!("I/O {token} was completed twice")));
        };
        if let Err(error) = completion.result {
            let wrote_under = match kind {
                Expectation::Write { generation, .. } => Some(generation),
                _ => None,
            };
            let was_due = may_fail && matches!(error.kind, ErrorKind::Io | ErrorKind::NoSpace);
            if !was_due && !self.error_is_due(error.kind, wrote_under, export) {
                return Err(self.violation(format!("an I/O failed: {}", error.kind.describe())));
            }
            match self.settings {
                DialectSettings::Ebd(_) => coverage.ebd_errors += 1,
                DialectSettings::Aoe(_) => coverage.aoe_errors += 1,
            }
        }
        let (ok, life) = (completion.result.is_ok(), export.life());
        let (of_aoe, is_durable, flushes) = match &self.settings {
            DialectSettings::Ebd(_) => (false, false, true),
            DialectSettings::Aoe(aoe) => (true, aoe.is_durable, aoe.config.flushes),
        };
        let (mine, its) = (u64::from(ok && of_aoe), u64::from(ok && !of_aoe));
        if let (true, Expectation::Write { version, .. }) = (of_aoe, &kind) {
            self.add_late(now, range, *version);
            if ok {
                self.is_over(range, *version);
            }
            if ok && self.generation == 0 {
                let text = "a write was done of one who has never been on record as the writer";
                return Err(self.violation(text.into()));
            }
        }
        let model = &mut export.models[self.content];
        let judged = match kind {
            Expectation::Write { version, fua, upheavals, .. } => {
                coverage.ebd_writes += its;
                coverage.aoe_writes += mine;
                // Of AoE nothing is told that is lost before it is flushed.
                let is_there = ok && (!of_aoe || is_durable || upheavals == life.upheavals);
                let saved = if of_aoe { is_durable } else { fua };
                model.end_write(self.run, range, version, is_there, saved);
                Ok(())
            }
            // One that answers flushes by itself says something only if all is durable.
            Expectation::Flush(mark) if !self.read_only && (flushes || is_durable) => {
                coverage.ebd_flushes += its;
                coverage.aoe_flushes += mine;
                model.end_flush(self.run, mark, ok)
            }
            Expectation::Read(mut ticket, generation) if ok => {
                // Of AoE nobody is told who has it meanwhile, and reads go on.
                if of_aoe && model.generation() != generation {
                    ticket.forget_writer();
                }
                coverage.ebd_reads += its;
                coverage.aoe_reads += mine;
                model.end_read(&ticket, range, &completion.data.to_vec(), life)
            }
            Expectation::Flush(_) | Expectation::Read(..) => Ok(()),
        };
        judged.map_err(|v| self.violation(v.0))
    }

    /// Whether it had to come to this: for a write, that was asked for under the grant `wrote_under`.
    pub(super) fn error_is_due(
        &self,
        kind: ErrorKind,
        wrote_under: Option<u64>,
        export: &Export,
    ) -> bool {
        match kind {
            ErrorKind::Away => !self.settings.waits(),
            ErrorKind::Fenced => {
                let me = self.known_as();
                !self.read_only && export.was_fenced(self.content, self.generation, &me)
            }
            // A drive of AoE cannot be written any more.
            ErrorKind::Unsupported => {
                let mine = self.writers();
                let was_fenced =
                    |under| export.was_taken_over_by_others(self.content, under, &mine);
                !self.read_only && !mine.is_empty() && wrote_under.is_some_and(was_fenced)
            }
            ErrorKind::ContentChanged => export.is_gone(self.content),
            ErrorKind::Io | ErrorKind::NoSpace => export.error_is_due(),
            ErrorKind::ShuttingDown => self.is_closing,
            _ => false,
        }
    }
}
