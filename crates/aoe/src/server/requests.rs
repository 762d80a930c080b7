//! ATA commands: from a frame to the door, and the answers.

use thinwire_buffer::{RxFrame, SegList, Time};
use thinwire_exports::{DialectDesk, Done, NoEntry, Refused, Submitted, Wish};
use thinwire_volume::{ErrorKind, Io, IoError, Op};
use thinwire_wire::aoe::{
    AtaIo, AtaRegisters, DATA_OFFSET, Drive, DriveIdentity, ErrorCode, Header, RefusedBy,
    SECTOR_BYTES, ata_error,
};

use super::parties::{Asked, Sender, Stage, Who, Writing};
use super::writers::answer_to;
use super::{AoeCanary, AoeServer};

/// Another was granted the export, and it is not given back: a drive that cannot be written says so at once.
pub(super) const FENCED: RefusedBy = RefusedBy::Drive(ata_error::ABRT);

/// Which requests of a party may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Those that the door has held back.
    Held,
    /// Those before which nothing is any more.
    Ready,
}

/// How a command is answered that a volume has failed.
fn answer_to_error(error: IoError) -> RefusedBy {
    match error.kind {
        ErrorKind::Invalid => RefusedBy::Drive(ata_error::IDNF),
        ErrorKind::ReadOnly | ErrorKind::Unsupported | ErrorKind::Fenced => {
            RefusedBy::Drive(ata_error::ABRT)
        }
        ErrorKind::Away | ErrorKind::OutcomeUnknown | ErrorKind::ShuttingDown => {
            RefusedBy::Server(ErrorCode::DeviceUnavailable)
        }
        // The medium has it, as far as it says, and a sync beside it has failed: written again it is there for sure.
        ErrorKind::Io if error.module == "exports" => {
            RefusedBy::Server(ErrorCode::DeviceUnavailable)
        }
        _ => RefusedBy::Drive(ata_error::UNC),
    }
}

impl AoeServer {
    pub(super) fn on_ata(
        &mut self,
        now: Time,
        at: usize,
        header: &Header,
        registers: AtaRegisters,
        (from, rx): (Sender, &RxFrame),
        desk: &mut dyn DialectDesk,
    ) {
        if self.is_stopping {
            return;
        }
        let reserved = &self.devices[at].offer.kept.reserved;
        if !reserved.is_empty() && !reserved.contains(&from.mac()) {
            self.stats.reserved += 1;
            return self.refuse(from, header, at, ErrorCode::Reserved);
        }
        let who = self.who(at, from);
        let Some(party) = self.party(now, at, who, from, desk) else {
            return self.refuse(from, header, at, ErrorCode::DeviceUnavailable);
        };
        let request_sectors_max = self.request_sectors_max(from.port);
        let known = self.parties.get_mut(party);
        known.heard = now;
        let drive = Drive { sectors: known.sectors, request_sectors_max };
        let ata = match registers.decode(drive, rx.len().saturating_sub(DATA_OFFSET)) {
            Ok(ata) => ata,
            Err(why) => {
                self.stats.commands_refused[why as usize] += 1;
                let asked = Asked { from, header: *header, registers, ata: AtaIo::CheckPower };
                return self.refuse_command(&asked, at, why.by());
            }
        };
        let asked = Asked { from, header: *header, registers, ata };
        match ata {
            AtaIo::Identify => self.identify(party, &asked),
            AtaIo::CheckPower => {
                let header = header.answer(self.devices[at].offer.device);
                self.say_registers(from, &header, registers.awake(), SegList::new());
            }
            AtaIo::Write { .. } if !self.is_meant(now, at, from, header) => {}
            AtaIo::Read { .. } | AtaIo::Write { .. } | AtaIo::Flush => {
                self.on_io(now, party, asked, rx, desk);
            }
        }
    }

    /// The party of this name, which may be new.
    fn party(
        &mut self,
        now: Time,
        at: usize,
        who: Who,
        from: Sender,
        desk: &mut dyn DialectDesk,
    ) -> Option<usize> {
        if let Some(known) = self.parties.find(at, who) {
            return Some(known);
        }
        let new = self.take_in(now, at, who, from, desk)?;
        self.parties.show(new);
        Some(new)
    }

    fn identify(&mut self, party: usize, asked: &Asked) {
        let known = self.parties.get(party);
        let offer = &self.devices[known.offer].offer;
        let serial: String =
            known.identity.identity[..10].iter().map(|byte| format!("{byte:02x}")).collect();
        let identity = DriveIdentity {
            sectors: known.sectors,
            serial: &serial,
            firmware: env!("CARGO_PKG_VERSION"),
            model: &format!("Thinwire {}", offer.export),
            has_write_cache: offer.cached,
        };
        let header = asked.header.answer(offer.device);
        let bytes = identity.to_bytes();
        let registers = asked.registers.done();
        self.say(asked.from, &header, |out| {
            registers.put(out);
            out.extend_from_slice(&bytes);
        });
    }

    fn on_io(
        &mut self,
        now: Time,
        at: usize,
        asked: Asked,
        rx: &RxFrame,
        desk: &mut dyn DialectDesk,
    ) {
        let party = self.parties.get(at);
        let (device, writing) = (party.offer, party.writing);
        let (is_write, order) = (asked.is_write(), self.devices[device].order);
        if is_write && writing == Writing::Fenced {
            self.stats.reserved += 1;
            return self.refuse_command(&asked, device, FENCED);
        }
        let (op, start, sectors) = match asked.ata {
            AtaIo::Read { sector, sectors } => (Op::Read, sector, u64::from(sectors)),
            AtaIo::Write { sector, sectors } => (Op::Write, sector, u64::from(sectors)),
            _ => (Op::Flush, 0, 0),
        };
        // Tags tell nothing: they begin anew when a client does. When it came tells whether it is late.
        let arrived = now - rx.waited;
        if is_write && self.orders[order].is_stale(arrived, start, start + sectors) {
            return self.stats.stale += 1;
        }
        let bytes = sectors * SECTOR_BYTES as u64;
        let mut io = Io::new(0, op, start * SECTOR_BYTES as u64, bytes);
        if is_write {
            let is_durable = !self.devices[device].offer.cached;
            io.flags.fua = is_durable && self.canary != AoeCanary::CachedCalledDurable;
            rx.slice(DATA_OFFSET, bytes as usize, |piece| io.data.push(piece));
        }
        if is_write && writing == Writing::No && self.devices[device].reserving.is_some() {
            // Whoever it will be asks again.
            return self.stats.undecided += 1;
        }
        // Before anything else: whoever is refused at once changes nothing for those who may.
        if is_write && writing == Writing::No && self.canary != AoeCanary::ExportsSkipped {
            let (identity, takes_over) = (self.identity(at), false);
            if let Err(why) = self.claim(now, at, identity, takes_over, desk) {
                let by = answer_to(why);
                self.count_reserved(by);
                return self.refuse_command(&asked, device, by);
            }
        }
        let Some(slot) = self.parties.get_mut(at).take_slot(asked, io, desk.slots()) else {
            return self.stats.beyond_room += 1;
        };
        let may_begin = match op {
            _ if self.canary == AoeCanary::OrderIgnored => true,
            Op::Write => self.orders[order].add(arrived, at, slot, start, start + sectors),
            Op::Read => self.orders[order].add_read(at, slot, start, start + sectors),
            _ => true,
        };
        self.parties.get_mut(at).slots[usize::from(slot)].waits_for_order = !may_begin;
        self.begin(now, at, slot, desk);
    }

    /// A request goes to the door, if nothing before it keeps it.
    fn begin(&mut self, now: Time, at: usize, slot: u16, desk: &mut dyn DialectDesk) {
        let party = self.parties.get_mut(at);
        let entry = &mut party.slots[usize::from(slot)];
        let asks = matches!(party.writing, Writing::Asked(_));
        if entry.waits_for_order || entry.asked.is_write() && asks {
            entry.stage = Stage::Waits;
            return;
        }
        let is_unasked = self.canary == AoeCanary::ExportsSkipped;
        let Some(wish) = party.wish(slot, is_unasked) else {
            return self.end_slot(at, slot, FENCED);
        };
        party.slots[usize::from(slot)].written = party.written;
        self.stats.requests += 1;
        let submitted = desk.submit(now, wish);
        let keep = |server: &mut AoeServer, wish: Wish, stage| {
            let entry = &mut server.parties.get_mut(at).slots[usize::from(slot)];
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
            let entry = &mut self.parties.get_mut(at).slots[usize::from(wish.slot)];
            (entry.io, entry.stage) = (Some(wish.io), Stage::Held);
            return;
        }
        self.end_refused(at, wish.slot, why);
    }

    fn end_refused(&mut self, at: usize, slot: u16, why: Refused) {
        let by = match why {
            Refused::Pass(NoEntry::Fenced) => FENCED,
            Refused::Pass(_) => RefusedBy::Server(ErrorCode::DeviceUnavailable),
            Refused::Io(ErrorKind::Invalid) => RefusedBy::Drive(ata_error::IDNF),
            Refused::Io(_) => RefusedBy::Drive(ata_error::ABRT),
        };
        self.end_slot(at, slot, by);
    }

    /// A request is refused. Of a party whose place others have taken it is not answered: asked again, it is theirs.
    pub(super) fn end_slot(&mut self, at: usize, slot: u16, by: RefusedBy) {
        let asked = self.release(at, slot);
        self.count_reserved(by);
        let party = self.parties.get(at);
        if !party.is_gone {
            self.refuse_command(&asked, party.offer, by);
        }
    }

    fn count_reserved(&mut self, by: RefusedBy) {
        let is_busy = matches!(by, RefusedBy::Server(ErrorCode::Reserved)) || by == FENCED;
        self.stats.reserved += u64::from(is_busy);
    }

    /// Frees a slot: what waits for its write may go on.
    fn release(&mut self, at: usize, slot: u16) -> Asked {
        let party = self.parties.get_mut(at);
        let entry = &party.slots[usize::from(slot)];
        let (asked, waited, device) = (entry.asked, entry.waits_for_order, party.offer);
        party.free_slot(slot);
        if asked.is_write() || waited {
            let (parties, due) = (&mut self.parties, &mut self.due);
            self.orders[self.devices[device].order].remove(at, slot, |at, slot| {
                let entry = &mut parties.get_mut(at).slots[usize::from(slot)];
                (entry.waits_for_order, entry.stage) = (false, Stage::Ready);
                due.push_back(at);
            });
        }
        self.due.push_back(at);
        asked
    }

    /// Requests of a party that stand there go on.
    pub(super) fn begin_all(
        &mut self,
        now: Time,
        at: usize,
        which: Again,
        desk: &mut dyn DialectDesk,
    ) {
        let stage = match which {
            Again::Held => Stage::Held,
            Again::Ready => Stage::Ready,
        };
        for slot in 0..self.parties.get(at).slots.len() {
            if self.parties.get(at).slots[slot].stage == stage {
                self.begin(now, at, slot as u16, desk);
            }
        }
    }

    /// What waits of a party, and no volume has, is given up.
    pub(super) fn drop_waiting(&mut self, at: usize, desk: &mut dyn DialectDesk) {
        if !self.parties.is_at(at) {
            return;
        }
        for slot in 0..self.parties.get(at).slots.len() {
            let stage = self.parties.get(at).slots[slot].stage;
            if matches!(stage, Stage::Free | Stage::InVolume) {
                continue;
            }
            if stage == Stage::InLine {
                desk.withdraw(self.parties.get(at).session, slot as u16);
            }
            self.release(at, slot as u16);
        }
    }

    /// Does what is to be done of a party at the end of a turn.
    pub(super) fn go_on(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        if !self.parties.is_at(at) {
            return;
        }
        let party = self.parties.get_mut(at);
        if let Some(pass) = party.former.take() {
            desk.exports().close(party.session, pass, 0);
        }
        if self.ends_now(at) {
            return self.end_writer(at, desk);
        }
        if !self.parties.get(at).is_gone {
            return self.begin_all(now, at, Again::Ready, desk);
        }
        self.drop_waiting(at, desk);
        let party = self.parties.get(at);
        let is_undecided = party.is_ending || matches!(party.writing, Writing::Asked(_));
        if party.is_idle() && !is_undecided {
            self.forget(now, at, desk);
        }
    }

    /// A volume has done something.
    pub(super) fn completed(&mut self, at: usize, done: Done<'_>) {
        let Some(entry) = self.parties.get(at).slots.get(usize::from(done.slot)) else { return };
        if entry.stage != Stage::InVolume || entry.number != done.number {
            return;
        }
        let written = entry.written;
        let asked = self.release(at, done.slot);
        let party = self.parties.get_mut(at);
        let device = party.offer;
        if let Err(error) = done.completion.result {
            self.stats.failed += 1;
            return self.refuse_command(&asked, device, answer_to_error(error));
        }
        let offer = &self.devices[device].offer;
        let header = asked.header.answer(offer.device);
        match asked.ata {
            AtaIo::Write { sectors, .. } => {
                self.stats.bytes += u64::from(sectors) * SECTOR_BYTES as u64;
                if offer.cached {
                    party.written += 1;
                    party.unflushed.get_or_insert(done.verifier);
                }
            }
            AtaIo::Flush => {
                let since = party.unflushed.take();
                party.unflushed = (party.written != written).then_some(done.verifier);
                if since.is_some_and(|since| since != done.verifier) {
                    // Some of what it should cover may be gone. It is said once: what is written from here on is not.
                    self.stats.lost += 1;
                    let by = RefusedBy::Drive(ata_error::UNC);
                    return self.refuse_command(&asked, device, by);
                }
            }
            _ => self.stats.bytes += done.completion.data.bytes() as u64,
        }
        let data = std::mem::take(&mut done.completion.data);
        self.say_registers(asked.from, &header, asked.registers.done(), data);
    }
}
