//! Reads, writes and flushes: from a frame to the door, and the answers.

use thinwire_buffer::{RxFrame, SegList, Time};
use thinwire_exports::{DialectDesk, Done, NoEntry, Refused, Submitted, Wish};
use thinwire_volume::{ErrorKind, Io, Op};
use thinwire_wire::ebd::{EbdForm, Frame, NakReason, Operation};

use super::clients::{Slot, Stage, Writing};
use super::{EbdCanary, EbdServer};

/// The longest request, in sectors, of the implemented form: more would be one long answer after the other. The
/// document found that 8 are enough (3.1.2).
const REQUEST_SECTORS: u8 = 128;

/// The longest request that a server takes, in sectors.
pub(super) fn request_sectors(form: EbdForm) -> u8 {
    form.request_sectors_max().min(REQUEST_SECTORS)
}

pub(super) fn reason_of(kind: ErrorKind) -> NakReason {
    match kind {
        ErrorKind::Invalid => NakReason::Range,
        ErrorKind::NoSpace => NakReason::NoSpace,
        ErrorKind::ReadOnly => NakReason::ReadOnly,
        _ => NakReason::Media,
    }
}

impl EbdServer {
    pub(super) fn on_request(
        &mut self,
        now: Time,
        at: usize,
        frame: &Frame,
        rx: &RxFrame,
        desk: &mut dyn DialectDesk,
    ) {
        let credit = self.credit();
        let (form, header) = (self.config.form, self.config.form.header_bytes());
        let client = self.clients.get_mut(at);
        let from = client.key.from;
        if client.asks.is_some() {
            return self.stats.shaking += 1;
        }
        client.shaken = None;
        let (is_write, sectors) = (frame.operation.is_write(), u64::from(frame.length));
        let longest = match is_write {
            true => client.block_bytes / 512,
            false => u32::from(request_sectors(form)),
        };
        let is_flush = frame.operation == Operation::Flush;
        let end = u64::from(frame.sector) + sectors;
        let fits = sectors > 0 && u32::from(frame.length) <= longest && end <= client.sectors;
        if !is_flush && !fits {
            return self.nak(from, frame, NakReason::Range, frame.sector);
        }
        let bytes = sectors as usize * 512;
        if is_write && rx.len() < header + bytes {
            return self.stats.truncated += 1;
        }
        if self.config.canary == EbdCanary::AnswersOnce && is_write {
            let it = (client.key, frame.tag, frame.sector);
            if self.done_once.contains(&it) {
                let answer = frame.answer(frame.operation, credit, frame.length, frame.sector);
                return self.say(from, &answer, SegList::new());
            }
            self.done_once.push(it);
        }
        let client = self.clients.get_mut(at);
        // A write is done again, behind what is outstanding there: it may be another under the same number.
        let is_repeated = client.has(frame);
        if is_repeated {
            self.stats.repeated += 1;
            self.show_life(at, frame, credit);
        }
        if is_repeated && !is_write {
            return;
        }
        let client = self.clients.get_mut(at);
        client.credit = client.credit.max(credit);
        if client.asked + u32::from(frame.length) > u32::from(client.credit) {
            return self.stats.beyond_credit += 1;
        }
        if is_write && client.writing == Writing::Fenced {
            return self.nak(from, frame, NakReason::Fenced, frame.sector);
        }
        let (op, offset) = match frame.operation {
            Operation::Read => (Op::Read, u64::from(frame.sector) * 512),
            Operation::Flush => (Op::Flush, 0),
            _ => (Op::Write, u64::from(frame.sector) * 512),
        };
        let mut io = Io::new(0, op, offset, if is_flush { 0 } else { bytes as u64 });
        io.flags.fua = frame.operation == Operation::SyncWrite;
        if is_write {
            rx.slice(header, bytes, |piece| io.data.push(piece));
        }
        if client.backlog.len() > usize::from(client.credit) {
            // Flushes, which no credit counts.
            return self.stats.beyond_credit += 1;
        }
        if is_write && is_repeated && client.renew_waiting(frame, &mut io) {
            return;
        }
        client.wait_for_slot(*frame, io);
        let taken = self.take_from_backlog(now, at, desk);
        if frame.wants_wack && !is_repeated {
            let slots = &self.clients.get(at).slots;
            match taken.filter(|&slot| slots[usize::from(slot)].request == *frame) {
                Some(slot) => self.owe_wack(at, slot, credit),
                None => self.wack(at, frame, credit),
            }
        }
    }

    /// Requests get the slots that are free, in the order in which they came. The slot of the last.
    pub(super) fn take_from_backlog(
        &mut self,
        now: Time,
        at: usize,
        desk: &mut dyn DialectDesk,
    ) -> Option<u16> {
        let mut taken = None;
        while let Some((request, io)) = self.clients.get_mut(at).next_of_backlog(desk.slots()) {
            taken = self.enter(now, at, (&request, io), desk);
        }
        taken
    }

    /// A request gets a slot, and begins if nothing before it keeps it.
    fn enter(
        &mut self,
        now: Time,
        at: usize,
        (frame, io): (&Frame, Io),
        desk: &mut dyn DialectDesk,
    ) -> Option<u16> {
        let is_write = frame.operation.is_write();
        let client = self.clients.get_mut(at);
        let slot = client.take_slot(*frame, desk.slots())?;
        let (offer, start) = (client.offer, u64::from(frame.sector));
        let entry = &mut client.slots[usize::from(slot)];
        entry.io = Some(io);
        if is_write {
            let end = start + u64::from(frame.length);
            entry.waits_for_order = !self.orders[offer].add(at, slot, start, end);
        }
        if is_write
            && self.clients.get(at).writing == Writing::No
            && let Err(why) = self.claim(now, at, None, false, desk)
        {
            self.end_slot(at, slot, why);
        } else {
            self.begin(now, at, slot, desk);
        }
        Some(slot)
    }

    /// Says that a request is at work, to a client that has asked for it again: where it wants no WACK, or its form has
    /// none, by a credit that has not changed.
    fn show_life(&mut self, at: usize, frame: &Frame, credit: u16) {
        if !frame.wants_wack {
            let to = self.clients.get(at).key.from;
            let alive = frame.answer(Operation::Congestion, credit, 0, 0);
            return self.say(to, &alive, SegList::new());
        }
        self.wack(at, frame, credit);
    }

    /// A new request wants a WACK. Of one block it may be answered before anything is sent, which says the same.
    fn owe_wack(&mut self, at: usize, slot: u16, credit: u16) {
        let client = self.clients.get(at);
        let Slot { stage, number, request, .. } = client.slots[usize::from(slot)];
        match u32::from(request.length) * 512 > client.block_bytes {
            // It was refused.
            _ if stage == Stage::Free => {}
            true => self.wack(at, &request, credit),
            false => self.owed.push((client.session, slot, number)),
        }
    }

    /// Those that are still at work are told so.
    pub(super) fn say_owed(&mut self) {
        let credit = self.credit();
        for (session, slot, number) in std::mem::take(&mut self.owed) {
            let Some(at) = self.clients.of_session(session) else { continue };
            let Slot { stage, number: now, request, .. } =
                self.clients.get(at).slots[usize::from(slot)];
            if stage != Stage::Free && now == number {
                self.wack(at, &request, credit);
            }
        }
    }

    /// Says that a request is here, if the client wants to hear of that.
    fn wack(&mut self, at: usize, frame: &Frame, credit: u16) {
        if frame.wants_wack {
            let to = self.clients.get(at).key.from;
            let wack = frame.answer(Operation::Wack, credit, frame.length, frame.sector);
            self.say(to, &wack, SegList::new());
        }
    }

    /// A request goes to the door, if nothing before it keeps it.
    pub(super) fn begin(&mut self, now: Time, at: usize, slot: u16, desk: &mut dyn DialectDesk) {
        let client = self.clients.get_mut(at);
        let entry = &mut client.slots[usize::from(slot)];
        let is_write = entry.request.operation.is_write();
        if is_write && (entry.waits_for_order || matches!(client.writing, Writing::Asked(_))) {
            entry.stage = Stage::Waits;
            return;
        }
        let Some(wish) = client.wish(slot) else {
            return self.end_slot(at, slot, NakReason::Fenced);
        };
        self.stats.requests += 1;
        let submitted = desk.submit(now, wish);
        let keep = |server: &mut EbdServer, wish: Wish, stage| {
            let entry = &mut server.clients.get_mut(at).slots[usize::from(slot)];
            (entry.io, entry.stage) = (Some(wish.io), stage);
        };
        match submitted {
            Submitted::Begun => {}
            Submitted::InLine(wish) => keep(self, wish, Stage::InLine),
            Submitted::Held(wish) => keep(self, wish, Stage::Held),
            Submitted::Refused(why) => self.end_refused(at, slot, why),
        }
    }

    /// The door has refused what stood in line.
    pub(super) fn refused(&mut self, at: usize, wish: Wish, why: Refused) {
        if why == Refused::Pass(NoEntry::Waits) {
            let entry = &mut self.clients.get_mut(at).slots[usize::from(wish.slot)];
            (entry.io, entry.stage) = (Some(wish.io), Stage::Held);
            return;
        }
        self.end_refused(at, wish.slot, why);
    }

    fn end_refused(&mut self, at: usize, slot: u16, why: Refused) {
        let why = match why {
            Refused::Pass(NoEntry::Fenced) => NakReason::Fenced,
            Refused::Pass(_) => NakReason::Unknown,
            Refused::Io(kind) => reason_of(kind),
        };
        self.end_slot(at, slot, why);
    }

    /// A request is refused, or has failed.
    pub(super) fn end_slot(&mut self, at: usize, slot: u16, why: NakReason) {
        let (request, to) = self.release(at, slot);
        self.nak(to, &request, why, request.sector);
    }

    /// Frees a slot: what waits for its write may go on.
    fn release(&mut self, at: usize, slot: u16) -> (Frame, thinwire_buffer::Addr) {
        let client = self.clients.get_mut(at);
        let (request, to, offer) =
            (client.slots[usize::from(slot)].request, client.key.from, client.offer);
        client.free_slot(slot);
        if request.operation.is_write() {
            let (clients, due) = (&mut self.clients, &mut self.due);
            self.orders[offer].remove(at, slot, |client, slot| {
                clients.get_mut(client).slots[usize::from(slot)].waits_for_order = false;
                clients.get_mut(client).slots[usize::from(slot)].stage = Stage::Ready;
                due.push_back(client);
            });
        }
        self.due.push_back(at);
        (request, to)
    }

    pub(super) fn retry_held(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        for at in self.clients.places() {
            if self.clients.is_at(at) {
                self.begin_all(now, at, Stage::Held, desk);
            }
        }
    }

    /// Requests of a client that stand there go on.
    pub(super) fn begin_all(
        &mut self,
        now: Time,
        at: usize,
        stage: Stage,
        desk: &mut dyn DialectDesk,
    ) {
        for slot in 0..self.clients.get(at).slots.len() {
            if self.clients.get(at).slots[slot].stage == stage {
                self.begin(now, at, slot as u16, desk);
            }
        }
    }

    /// What waits of a client, and no volume has, is given up.
    pub(super) fn drop_waiting(&mut self, at: usize, desk: &mut dyn DialectDesk) {
        self.clients.get_mut(at).drop_backlog();
        for slot in 0..self.clients.get(at).slots.len() {
            let stage = self.clients.get(at).slots[slot].stage;
            if matches!(stage, Stage::Free | Stage::InVolume) {
                continue;
            }
            if stage == Stage::InLine {
                desk.withdraw(self.clients.get(at).session, slot as u16);
            }
            self.release(at, slot as u16);
        }
    }

    /// A volume has done something.
    pub(super) fn completed(&mut self, now: Time, at: usize, done: Done<'_>) {
        let client = self.clients.get(at);
        let Some(entry) = client.slots.get(usize::from(done.slot)) else { return };
        if entry.stage != Stage::InVolume || entry.number != done.number {
            return;
        }
        let is_lost = done.verifier != client.verifier;
        let (is_gone, asks) = (client.is_gone || client.is_unknown, client.asks.is_some());
        let (request, to) = self.release(at, done.slot);
        if is_lost {
            // What was written and not flushed may be gone: all that have the device write it again.
            self.be_deaf(now);
            let client = self.clients.get_mut(at);
            (client.is_unknown, client.shaken) = (true, None);
            if self.config.form == EbdForm::Ideal {
                // It may be of before: who means it asks again.
                client.asks = None;
            }
            self.due.push_back(at);
        }
        if is_gone || asks {
            // Nobody waits for it: it may be that of a former life.
            return;
        }
        if is_lost {
            self.stats.forgotten += 1;
            return self.nak(to, &request, NakReason::Unknown, request.sector);
        }
        if let Err(error) = done.completion.result {
            return self.nak(to, &request, reason_of(error.kind), request.sector);
        }
        let credit = self.credit();
        if request.operation != Operation::Read {
            self.stats.bytes += u64::from(request.length) * 512;
            let answer = request.answer(request.operation, credit, request.length, request.sector);
            return self.say(to, &answer, SegList::new());
        }
        let block = (self.clients.get(at).block_bytes / 512) as u8;
        let data = std::mem::take(&mut done.completion.data);
        self.stats.bytes += data.bytes() as u64;
        let mut from = 0;
        while from < request.length {
            let sectors = block.max(1).min(request.length - from);
            let mut piece = SegList::new();
            data.slice_into(usize::from(from) * 512, usize::from(sectors) * 512, &mut piece);
            let sector = request.sector + u32::from(from);
            let answer = request.answer(Operation::Read, credit, sectors, sector);
            self.say(to, &answer, piece);
            from += sectors;
        }
    }
}
