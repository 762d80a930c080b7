//! Who may write, and for whom a device is reserved: Reserve/Release on the rule that there is one writer
//! (`docs/aoe.md`, "Writers").

use std::time::Duration;

use thinwire_buffer::{Addr, Time};
use thinwire_exports::{Denial, Denied, DialectDesk, Granted, InitiatorRun, User, WriteClaim};
use thinwire_wire::aoe::{
    ErrorCode, Header, RefusedBy, Reservation, ReserveCommand, SECTOR_BYTES, ShelfSlot, ata_error,
};

use super::AoeServer;
use super::parties::{Mac, Party, Sender, Stage, Who, Writing, mac_of};

/// A party that has asked for nothing for so long, and does not write, makes room for another.
const SILENT: Duration = Duration::from_secs(5);

/// A change of whom a device is reserved for: it is in force once the door has granted the export to them, or has on record that
/// its writer has ended.
pub(super) struct Reserving {
    from: Sender,
    header: Header,
    command: ReserveCommand,
    list: Vec<Mac>,
    /// Which is granted it, or ends.
    pub party: usize,
}

impl AoeServer {
    /// As which party a station uses a device.
    pub(super) fn who(&self, at: usize, from: Sender) -> Who {
        let offer = &self.devices[at].offer;
        match (offer.kept.reserved.is_empty(), offer.stations.is_empty()) {
            (false, _) => Who::Reserved,
            (true, false) => Who::Stations,
            (true, true) => Who::One(from.mac()),
        }
    }

    /// A party that is not known. `None` if there is no room, or no such export.
    pub(super) fn take_in(
        &mut self,
        now: Time,
        at: usize,
        who: Who,
        from: Sender,
        desk: &mut dyn DialectDesk,
    ) -> Option<usize> {
        let Some(export) = desk.exports().find(&self.devices[at].offer.export) else {
            self.stats.absent += 1;
            return None;
        };
        let mut seat = desk.seat(now, from.addr);
        if seat.is_err() && self.make_room(now, desk) {
            seat = desk.seat(now, from.addr);
        }
        let Ok(session) = seat else {
            self.stats.beyond_room += 1;
            return None;
        };
        let granted = desk.exports().open_read(session, export);
        if granted.geometry.block_bytes > SECTOR_BYTES as u32 {
            desk.leave(session, now);
            return None;
        }
        let mut party = Party::new(at, who, export, session, granted.pass);
        (party.identity, party.heard) = (granted.identity, now);
        party.sectors = granted.geometry.bytes / SECTOR_BYTES as u64;
        Some(self.parties.add(party))
    }

    /// Forgets the party that has been silent for longest, if it does not write.
    fn make_room(&mut self, now: Time, desk: &mut dyn DialectDesk) -> bool {
        let may_go = |party: &&Party| {
            party.writing == Writing::No && party.is_idle() && now.since(party.heard) > SILENT
        };
        let silent = self.parties.iter().filter(may_go).min_by_key(|party| party.heard);
        let Some(at) = silent.and_then(|party| self.parties.of_session(party.session)) else {
            return false;
        };
        self.forget(now, at, desk);
        true
    }

    /// Asks the door to let a party write.
    pub(super) fn claim(
        &mut self,
        now: Time,
        at: usize,
        (id, name): ([u8; 16], String),
        takes_over: bool,
        desk: &mut dyn DialectDesk,
    ) -> Result<(), Denial> {
        self.transactions = self.transactions.wrapping_add(1);
        self.numbers = now.0.max(self.numbers + 1);
        let (transaction, number) = (self.transactions, self.numbers);
        let party = self.parties.get_mut(at);
        let run = InitiatorRun { initiator: id, instance: number };
        let session = party.session;
        let user = User { session, number, run, member: 0, is_leased: false, name };
        let export = party.export;
        let claim = WriteClaim { user: &user, transaction, export, resumes: None, takes_over };
        match desk.exports().claim(now, claim) {
            Ok(()) => party.writing = Writing::Asked(transaction),
            Err(denied) => return Err(denied.why),
        }
        Ok(())
    }

    /// Who a party is to the door, for all its life and that of others after it.
    pub(super) fn identity(&self, at: usize) -> ([u8; 16], String) {
        let Party { offer, who, .. } = *self.parties.get(at);
        self.identity_of(offer, who, &self.devices[offer].offer.kept.reserved)
    }

    fn identity_of(&self, at: usize, who: Who, reserved: &[Mac]) -> ([u8; 16], String) {
        let device = self.devices[at].offer.device;
        match who {
            Who::One(mac) => {
                (station_writer(device, Addr::Mac(mac)), format!("aoe {}", Addr::Mac(mac)))
            }
            // Whichever they are: they may be told otherwise when the target begins anew.
            Who::Stations => (writer(device, 2, [0; 8]), format!("aoe initiators of {device}")),
            Who::Reserved => {
                let names: Vec<String> =
                    reserved.iter().map(|&mac| Addr::Mac(mac).to_string()).collect();
                (reserved_writer(device, reserved), format!("aoe {}", names.join(" ")))
            }
        }
    }

    pub(super) fn granted(&mut self, session: u64, transaction: u32, granted: &Granted) {
        let Some(at) = self.parties.of_session(session) else { return };
        let party = self.parties.get_mut(at);
        if party.writing != Writing::Asked(transaction) {
            return;
        }
        party.sectors = granted.geometry.bytes / SECTOR_BYTES as u64;
        if party.is_gone {
            // Others have taken its place meanwhile.
            (party.writing, party.former) = (Writing::No, Some(granted.pass));
            return self.due.push_back(at);
        }
        party.writing = Writing::Granted(granted.pass);
        let offer = party.offer;
        for entry in &mut party.slots {
            if entry.stage == Stage::Waits && !entry.waits_for_order {
                entry.stage = Stage::Ready;
            }
        }
        self.due.push_back(at);
        if let Some(reserving) = self.devices[offer].reserving.take_if(|r| r.party == at) {
            self.install(offer, reserving);
        }
    }

    pub(super) fn denied(&mut self, session: u64, transaction: u32, denied: &Denied) {
        let Some(at) = self.parties.of_session(session) else { return };
        let party = self.parties.get_mut(at);
        if party.writing != Writing::Asked(transaction) {
            return;
        }
        party.writing = Writing::No;
        let offer = party.offer;
        if let Some(reserving) = self.devices[offer].reserving.take_if(|r| r.party == at) {
            return self.not_reserved(offer, reserving, denied.why);
        }
        for slot in 0..self.parties.get(at).slots.len() {
            let entry = &self.parties.get(at).slots[slot];
            let waits = matches!(entry.stage, Stage::Waits | Stage::Ready);
            if waits && entry.asked.is_write() {
                self.end_slot(at, slot as u16, answer_to(denied.why));
            }
        }
    }

    pub(super) fn on_reserve(
        &mut self,
        now: Time,
        at: usize,
        from: Sender,
        header: &Header,
        asked: &Reservation<'_>,
        desk: &mut dyn DialectDesk,
    ) {
        let command = asked.command;
        let changes = command != ReserveCommand::Read;
        if changes && !self.is_meant(now, at, from, header) || !self.may_answer(now) {
            return;
        }
        if !changes {
            self.stats.queries += 1;
            return self.say_reserved(at, from, header, command);
        }
        if self.is_stopping || self.devices[at].reserving.is_some() {
            // It asks again.
            return self.stats.undecided += 1;
        }
        let reserved = &self.devices[at].offer.kept.reserved;
        let is_listed = reserved.is_empty() || reserved.contains(&from.mac());
        if command == ReserveCommand::Set && !is_listed {
            self.stats.reserved += 1;
            return self.refuse(from, header, at, ErrorCode::Reserved);
        }
        let mut list = asked.macs.to_vec();
        list.sort_unstable();
        list.dedup();
        let reserving = Reserving { from, header: *header, command, list, party: usize::MAX };
        match reserving.list.is_empty() {
            true => self.release_device(at, reserving, desk),
            false => self.reserve(now, at, reserving, desk),
        }
    }

    /// A device is to be reserved: those in the list become its writer, unless another is.
    fn reserve(&mut self, now: Time, at: usize, reserving: Reserving, desk: &mut dyn DialectDesk) {
        let writer = self.parties.writer(at);
        let asker = self.parties.find(at, self.who(at, reserving.from));
        let is_writer = writer
            .is_some_and(|writer| Some(writer) == asker && self.parties.get(writer).may_write());
        let kept = &self.devices[at].offer.kept;
        if is_writer && kept.reserved == reserving.list {
            // The answer to it may have been lost.
            return self.say_reserved(at, reserving.from, &reserving.header, reserving.command);
        }
        let Some(party) = self.take_in(now, at, Who::Reserved, reserving.from, desk) else {
            return self.refuse(
                reserving.from,
                &reserving.header,
                at,
                ErrorCode::DeviceUnavailable,
            );
        };
        let identity = self.identity_of(at, Who::Reserved, &reserving.list);
        // Whoever writes may share that with others, or pass it on.
        let takes_over = is_writer || reserving.command == ReserveCommand::ForceSet;
        let reserving = Reserving { party, ..reserving };
        match self.claim(now, party, identity, takes_over, desk) {
            Ok(()) => self.devices[at].reserving = Some(reserving),
            Err(why) => self.not_reserved(at, reserving, why),
        }
    }

    /// A list is in force: whoever used the device before does it as one of these from now on, or not at all.
    fn install(&mut self, at: usize, reserving: Reserving) {
        let Reserving { from, header, command, list, party } = reserving;
        for other in self.parties.places() {
            if other != party && self.parties.is_at(other) && self.parties.get(other).offer == at {
                self.parties.hide(other);
                self.due.push_back(other);
            }
        }
        self.parties.show(party);
        self.set_reserved(at, list);
        self.say_reserved(at, from, &header, command);
    }

    fn not_reserved(&mut self, at: usize, reserving: Reserving, why: Denial) {
        if why == Denial::ReadOnly {
            // Nobody writes it.
            return self.install(at, reserving);
        }
        self.parties.hide(reserving.party);
        self.due.push_back(reserving.party);
        let code = match why {
            Denial::Record => ErrorCode::DeviceUnavailable,
            _ => ErrorCode::Reserved,
        };
        self.stats.reserved += u64::from(code == ErrorCode::Reserved);
        self.refuse(reserving.from, &reserving.header, at, code);
    }

    /// A device is to be reserved for nobody: its writer ends, if it is who asks, or whoever it is if that is forced.
    fn release_device(&mut self, at: usize, reserving: Reserving, desk: &mut dyn DialectDesk) {
        let Reserving { from, ref header, command, .. } = reserving;
        let asker = self.parties.find(at, self.who(at, from));
        let is_forced = command == ReserveCommand::ForceSet;
        let writer = self.parties.writer(at).filter(|at| is_forced || Some(*at) == asker);
        if let Some(writer) = writer
            && let Writing::Asked(_) = self.parties.get(writer).writing
        {
            return self.stats.undecided += 1;
        }
        if let Some(former) = self.parties.find(at, Who::Reserved) {
            self.parties.hide(former);
            self.due.push_back(former);
        }
        self.set_reserved(at, Vec::new());
        let Some(writer) = writer else { return self.say_reserved(at, from, header, command) };
        self.parties.hide(writer);
        self.due.push_back(writer);
        self.transactions = self.transactions.wrapping_add(1);
        let (transaction, party) = (self.transactions, self.parties.get_mut(writer));
        let (session, writing) = (party.session, party.writing);
        party.writing = Writing::No;
        let is_closed = match writing {
            Writing::Granted(pass) => desk.exports().close(session, pass, transaction),
            _ => true,
        };
        self.parties.get_mut(writer).is_ending = true;
        self.devices[at].reserving = Some(Reserving { party: writer, ..reserving });
        if is_closed {
            self.released(writer);
        }
    }

    /// That a writer has ended is on record.
    pub(super) fn released(&mut self, party: usize) {
        let offer = self.parties.get(party).offer;
        self.parties.get_mut(party).is_ending = false;
        self.due.push_back(party);
        if let Some(reserving) = self.devices[offer].reserving.take_if(|r| r.party == party) {
            self.say_reserved(offer, reserving.from, &reserving.header, reserving.command);
        }
    }

    fn set_reserved(&mut self, at: usize, list: Vec<Mac>) {
        let reserved = &mut self.devices[at].offer.kept.reserved;
        if *reserved != list {
            *reserved = list;
            self.keep(at);
        }
    }

    fn say_reserved(&mut self, at: usize, to: Sender, header: &Header, command: ReserveCommand) {
        let header = header.answer(self.devices[at].offer.device);
        let out = self.ports[to.port].out.push(to.addr);
        header.put(&mut out.head);
        Reservation::new(command, &self.devices[at].offer.kept.reserved).put(&mut out.head);
    }
}

/// Who a station is on record that writes a device for itself.
pub fn station_writer(device: ShelfSlot, station: Addr) -> [u8; 16] {
    let mut which = [0; 8];
    which[2..].copy_from_slice(&mac_of(station));
    writer(device, 1, which)
}

/// Who those are on record, together, for whom a device is reserved: in order, each once.
pub fn reserved_writer(device: ShelfSlot, macs: &[[u8; 6]]) -> [u8; 16] {
    writer(device, 3, fold(macs).to_be_bytes())
}

fn writer(device: ShelfSlot, kind: u8, which: [u8; 8]) -> [u8; 16] {
    let mut id = [0; 16];
    id[..3].copy_from_slice(b"aoe");
    id[3] = kind;
    id[4..6].copy_from_slice(&device.shelf.to_be_bytes());
    id[6] = device.slot;
    id[8..].copy_from_slice(&which);
    id
}

/// How a write is answered that the door does not let in. What asking again can mend is no answer of the drive.
pub(super) fn answer_to(why: Denial) -> RefusedBy {
    match why {
        Denial::Busy => RefusedBy::Server(ErrorCode::Reserved),
        Denial::Record => RefusedBy::Server(ErrorCode::DeviceUnavailable),
        Denial::ReadOnly | Denial::Fenced => RefusedBy::Drive(ata_error::ABRT),
        Denial::OtherContent => RefusedBy::Drive(ata_error::UNC),
    }
}

/// 64 bits of which stations they are.
fn fold(macs: &[Mac]) -> u64 {
    macs.as_flattened().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
