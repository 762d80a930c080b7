//! What a juggler reads and writes, and how the answers are judged.

use thinwire_buffer::SegList;
use thinwire_proto::{Item, Time, UnitMap};
use thinwire_wire::{Complete, Status};

use super::desk::{Expectation, Use};
use super::seat::{Seat, Stands};
use super::{Around, Juggler};
use crate::model::{ModelEffect, Range, Violation};
use crate::stamp::SECTOR_BYTES;

impl Juggler {
    pub(super) fn wants_more(&self, now: u64) -> bool {
        self.in_session
            && !self.is_closing
            && self.submitted < self.workload.budget
            && self.desk.outstanding().count() < self.workload.depth
            && self.desk.has_free()
            && now >= self.pause_until
            && self.seats.iter().any(Seat::is_open)
            && self.has_credit()
    }

    /// For the longest that it may ask for.
    pub(super) fn has_credit(&self) -> bool {
        let Some(session) = &self.hand.session else { return false };
        let (slots, bytes) = session.peer_grant();
        let longest = (self.workload.sectors_max * SECTOR_BYTES) as u64;
        slots.wrapping_sub(self.desk.used.0) as i32 > 0 && self.desk.used.1 + longest <= bytes
    }

    /// One more I/O, drawn; or it leaves an export.
    pub(super) fn submit_one(&mut self, around: &mut Around<'_>) {
        self.submitted += 1;
        let open: Vec<usize> =
            (0..self.seats.len()).filter(|&at| self.seats[at].is_open()).collect();
        let at = open[self.rng.below(open.len() as u64) as usize];
        if self.rng.chance(self.leaves) {
            let flushes = self.rng.chance(0.7);
            self.seats[at].stands = Stands::Leaving { flushes };
            self.hand.machine.dirty = true;
            return;
        }
        let w = self.workload;
        let seat = &self.seats[at];
        let writes = if seat.read_only { 0 } else { w.writes };
        let drawn = self.rng.below(w.reads + writes + w.flushes);
        if drawn >= w.reads + writes {
            return self.flush(at, around);
        }
        let is_write = drawn >= w.reads;
        let block = seat.block_bytes / SECTOR_BYTES;
        let all = around.exports[seat.export].contents[seat.content].bytes as usize
            / SECTOR_BYTES
            / block;
        let span = if self.rng.chance(0.5) { (w.hot_sectors / block).clamp(1, all) } else { all };
        let first = self.rng.below(span as u64) as usize;
        let most = w.sectors_max.min(seat.io_bytes_max / SECTOR_BYTES);
        let longest = (most / block).clamp(1, all - first);
        let longest = if self.rng.chance(0.7) { longest.min(8) } else { longest };
        let count = self.rng.between(1, longest as u64) as usize;
        let range = Range { first: first * block, count: count * block };
        if self.rng.chance(w.pauses) {
            self.pause_until = around.now + self.rng.between(1, w.pause_ns_max);
        }
        // What overlaps must not be outstanding together.
        if self.desk.outstanding().any(|one| one.conflicts(at, range, is_write)) {
            return;
        }
        let fua = is_write && self.rng.chance(w.fua);
        if is_write { self.write(at, range, fua, around) } else { self.read(at, range, around) }
    }

    fn write(&mut self, at: usize, range: Range, fua: bool, around: &mut Around<'_>) {
        let seat = &mut self.seats[at];
        seat.is_clean = false;
        let run = seat.run;
        let model = &mut around.exports[seat.export].models[seat.content];
        let version = model.begin_write(run, range, ModelEffect::Data);
        let mut buf = self.pool.get(range.count * SECTOR_BYTES);
        model.fill(run, range, version, &mut buf);
        self.request(
            at,
            Expectation::Write(version),
            range,
            fua,
            SegList::of(buf.freeze()),
            around,
        );
    }

    fn read(&mut self, at: usize, range: Range, around: &mut Around<'_>) {
        let seat = &self.seats[at];
        let export = &around.exports[seat.export];
        let life = export.life();
        let run = (!seat.read_only).then_some(seat.run);
        let ticket = export.models[seat.content].begin_read(run, range, life);
        self.request(at, Expectation::Read(ticket), range, false, SegList::new(), around);
    }

    pub(super) fn flush(&mut self, at: usize, around: &mut Around<'_>) {
        if !self.desk.has_free() || !self.has_credit() {
            return;
        }
        let is_write = |one: &Use| one.seat == at && matches!(one.kind, Expectation::Write(_));
        let is_clean = !self.desk.outstanding().any(is_write);
        let seat = &mut self.seats[at];
        // Unless it fails, or something is written behind it.
        seat.is_clean = is_clean;
        let mark = around.exports[seat.export].models[seat.content].begin_flush();
        let nothing = Range { first: 0, count: 0 };
        self.request(at, Expectation::Flush(mark), nothing, false, SegList::new(), around);
    }

    fn request(
        &mut self,
        at: usize,
        kind: Expectation,
        range: Range,
        fua: bool,
        data: SegList,
        around: &mut Around<'_>,
    ) {
        let seat = &mut self.seats[at];
        seat.outstanding += 1;
        let what = match kind {
            Expectation::Write(_) => "writes",
            Expectation::Read(_) => "reads",
            Expectation::Flush(_) => "flushes",
        };
        let place = (range.first as u64) << 16 | range.count as u64;
        (around.note)(what, (seat.export as u64) << 40 | place);
        let is_write = matches!(kind, Expectation::Write(_));
        let room =
            if matches!(kind, Expectation::Read(_)) { range.count * SECTOR_BYTES } else { 0 };
        let one = Use {
            seat: at,
            handle: seat.handle,
            kind,
            range,
            fua,
            data,
            buf: vec![0; room],
            units: UnitMap::default(),
            complete: None,
            since: around.now,
        };
        let bytes = one.bytes();
        self.desk.used.0 = self.desk.used.0.wrapping_add(1);
        self.desk.used.1 += bytes;
        let (slot, sequence) = self.desk.start(one);
        let request = Item::Request { slot, sequence };
        let data = Item::Data { slot, sequence, offset: 0, length: bytes as u32 };
        let session = self.hand.session.as_mut().expect("in session");
        if bytes == 0 {
            session.send(request);
        } else {
            let items = [Some(request), is_write.then_some(data)];
            session.send_batched(Time(around.now), items, bytes);
        }
    }

    pub(super) fn on_finished(
        &mut self,
        one: Use,
        complete: &Complete,
        around: &mut Around<'_>,
    ) -> Result<(), Violation> {
        let at = one.seat;
        let status = Status::from_number(complete.status);
        (around.note)("completed", (at as u64) << 8 | u64::from(complete.status));
        self.seats[at].outstanding -= 1;
        if let (1.., Some(session)) = (one.bytes(), &mut self.hand.session) {
            session.on_completed(Time(around.now), one.bytes());
        }
        let may_fail = around.exports[self.seats[at].export].error_is_due();
        match status {
            Status::Fenced => return self.on_fenced(at, around),
            Status::Ok => {}
            Status::Io | Status::NoSpace if may_fail => {}
            _ => {
                let text = format!("an I/O failed: {status:?}; {}", self.seats[at].describe());
                return Err(self.violation(text));
            }
        }
        let is_ok = status == Status::Ok;
        if is_ok {
            let others = |s: &Seat| s.is_at_table() && s.handle != one.handle;
            let beside = self.seats.iter().any(others);
            around.coverage.several_io += u64::from(beside);
            around.coverage.fenced_in_part += u64::from(self.fenced_on.is_some_and(|on| on != at));
        }
        let seat = &mut self.seats[at];
        if seat.read_only {
            seat.verifier = complete.verifier;
        }
        // What was acknowledged may be lost, and what it has read may be older.
        let is_sure = complete.verifier == seat.verifier;
        let export = &mut around.exports[seat.export];
        if is_ok {
            export.hear_verifier(complete.verifier, one.since, around.now)?;
        }
        let life = export.life();
        let model = &mut export.models[seat.content];
        let run = seat.run;
        let judged = match one.kind {
            _ if run == 0 && !seat.read_only => Ok(()),
            Expectation::Write(version) => {
                if is_sure || (is_ok && one.fua) {
                    model.end_write(run, one.range, version, is_ok, one.fua);
                }
                Ok(())
            }
            Expectation::Read(ticket) if is_ok && is_sure => {
                let length = (complete.length as usize).min(one.buf.len());
                around.coverage.several_reads += 1;
                model.end_read(&ticket, one.range, &one.buf[..length], life)
            }
            Expectation::Flush(mark) if is_sure && !seat.read_only => {
                model.end_flush(run, mark, is_ok)
            }
            Expectation::Read(_) | Expectation::Flush(_) => Ok(()),
        };
        if !is_sure || !is_ok {
            seat.is_clean = false;
        }
        if !is_sure {
            (around.note)("hears of a loss", seat.export as u64);
            around.coverage.several_lost += 1;
            seat.end_run(around.exports);
            if seat.is_open() || matches!(seat.stands, Stands::Leaving { .. }) {
                seat.stands = Stands::Leaving { flushes: false };
            }
        }
        judged.map_err(|v| self.violation(v.0))
    }
}
