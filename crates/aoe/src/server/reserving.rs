//! Who may write, and for whom a device is reserved: Reserve/Release on the rule that there is one writer
//! (`docs/aoe.md`, "Writers").
//!
//! The record of who writes an export is the truth about a reservation: whoever a device is reserved for is its writer there.
//! The list of their addresses is kept beside it, before it can come into force; a server that begins anew finds it there if
//! the record says so.

use std::time::Duration;

use thinwire_buffer::{Addr, Time};
use thinwire_exports::{
    Denial, Denied, DialectDesk, Granted, InitiatorRun, RecordedWriter, User, WriteClaim,
};
use thinwire_wire::aoe::{
    ErrorCode, Header, RefusedBy, Reservation, ReserveCommand, SECTOR_BYTES, ShelfSlot, ata_error,
};

use super::parties::{Mac, Party, Sender, Stage, Who, Writing, mac_of};
use super::{AoeServer, Device};
use crate::AoeCanary;

/// A party that has asked for nothing for so long, and does not write, makes room for another.
const SILENT: Duration = Duration::from_secs(5);

/// How soon it is looked whether a list has been kept, and for how long.
const KEPT_LOOK: Duration = Duration::from_millis(1);
const KEPT_PATIENCE: Duration = Duration::from_secs(5);
/// How soon a record that cannot be read is read again.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);

/// A change of whom a device is reserved for: it is in force once the door has granted the export to them, or has on record that
/// its writer has ended.
pub(super) struct Reserving {
    from: Sender,
    header: Header,
    command: ReserveCommand,
    since: Time,
    /// Nobody, if it is released.
    list: Vec<Mac>,
    /// Which is granted it, or ends. None while the list is being kept.
    pub party: Option<usize>,
    /// Of a release: who is to be on record no more.
    ends: [u8; 16],
    /// Whoever that is has been let go of.
    has_ended: bool,
}

impl Reserving {
    /// It waits for this party.
    pub fn is_of(&self, party: usize) -> bool {
        self.party == Some(party) && !self.has_ended
    }
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
            party.writing == Writing::No
                && party.is_idle()
                && !party.is_ending
                && now.since(party.heard) > SILENT
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
        if self.is_releasing(offer, at) {
            // It has come to end.
            return self.due.push_back(at);
        }
        for entry in &mut self.parties.get_mut(at).slots {
            if entry.stage == Stage::Waits && !entry.waits_for_order {
                entry.stage = Stage::Ready;
            }
        }
        self.due.push_back(at);
        if let Some(reserving) = self.devices[offer].reserving.take_if(|r| r.is_of(at)) {
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
        if let Some(reserving) = self.devices[offer].reserving.take_if(|r| r.is_of(at)) {
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
        let (header, ends, since) = (*header, [0; 16], now);
        let (party, has_ended) = (None, false);
        let reserving = Reserving { from, header, command, since, list, party, ends, has_ended };
        if reserving.list.is_empty() {
            return self.release_device(now, at, reserving, desk);
        }
        if self.is_writer(at, from) && self.devices[at].offer.kept.reserved == reserving.list {
            // The answer to it may have been lost.
            return self.say_reserved(at, from, &header, command);
        }
        self.devices[at].offer.kept.reserving.clone_from(&reserving.list);
        self.devices[at].reserving = Some(reserving);
        self.keep(at);
        self.go_on_reserving(now, at, desk);
    }

    /// A station writes a device, or is one of those who do.
    fn is_writer(&self, at: usize, from: Sender) -> bool {
        let asker = self.parties.find(at, self.who(at, from));
        self.parties
            .writer(at)
            .is_some_and(|writer| Some(writer) == asker && self.parties.get(writer).may_write())
    }

    /// Lists that were kept in a former life may be in force; such as are kept by now may come into it; and a release may be over.
    pub(super) fn look_at_kept(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        for at in 0..self.devices.len() {
            if !self.devices[at].is_settled {
                self.settle(at, desk);
            }
            match &self.devices[at].reserving {
                Some(reserving) if reserving.has_ended => self.end_release(at, desk),
                Some(reserving) if reserving.party.is_none() => {
                    self.go_on_reserving(now, at, desk);
                }
                _ => {}
            }
        }
    }

    /// When that is to be looked at.
    pub(super) fn kept_look(&self, now: Time) -> Time {
        let waits = |device: &Device| {
            device.reserving.as_ref().is_some_and(|r| r.party.is_none() || r.has_ended)
        };
        if self.devices.iter().any(waits) { now + KEPT_LOOK } else { Time::NEVER }
    }

    /// What is on record of the writer of a device's export; `None` if there is no such export.
    fn on_record(&self, at: usize, desk: &mut dyn DialectDesk) -> Option<RecordedWriter> {
        let export = desk.exports().find(&self.devices[at].offer.export)?;
        Some(desk.exports().writer_on_record(export))
    }

    fn go_on_reserving(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        let Device { offer, reserving, .. } = &self.devices[at];
        let is_late = reserving.as_ref().is_some_and(|r| now.since(r.since) > KEPT_PATIENCE);
        let is_kept = self.keeper.as_ref().is_none_or(|keeper| keeper.is_kept(offer.device));
        let is_kept = is_kept || self.canary == AoeCanary::ListNotKept;
        // Of one who is just being granted it nothing is taken over that nobody has asked for.
        let may = is_kept && matches!(self.on_record(at, desk), Some(RecordedWriter::Writer(_)));
        if !may && !is_late {
            return;
        }
        let reserving = self.devices[at].reserving.take().expect("it is under way");
        match may {
            true => self.reserve(now, at, reserving, desk),
            false => self.not_reserved(at, reserving, Denial::Record),
        }
    }

    /// A device is to be reserved: those in the list become its writer, unless another is.
    fn reserve(&mut self, now: Time, at: usize, reserving: Reserving, desk: &mut dyn DialectDesk) {
        let is_writer = self.is_writer(at, reserving.from);
        let Some(party) = self.take_in(now, at, Who::Reserved, reserving.from, desk) else {
            return self.not_reserved(at, reserving, Denial::Record);
        };
        let identity = self.identity_of(at, Who::Reserved, &reserving.list);
        // Whoever writes may share that with others, or pass it on.
        let takes_over = is_writer || reserving.command == ReserveCommand::ForceSet;
        let reserving = Reserving { party: Some(party), ..reserving };
        match self.claim(now, party, identity, takes_over, desk) {
            Ok(()) => self.devices[at].reserving = Some(reserving),
            Err(why) => self.not_reserved(at, reserving, why),
        }
    }

    /// A list is in force: whoever used the device before does it as one of these from now on, or not at all.
    fn install(&mut self, at: usize, reserving: Reserving) {
        let Reserving { from, header, command, list, party, .. } = reserving;
        let party = party.expect("it was granted the export");
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
        if why == Denial::ReadOnly && !reserving.list.is_empty() {
            // Nobody writes it.
            return self.install(at, reserving);
        }
        if let Some(party) = reserving.party {
            self.parties.hide(party);
            self.due.push_back(party);
        }
        if reserving.list.is_empty() && why == Denial::ReadOnly {
            return self.forget_list(at, &reserving);
        }
        // Whom a device is to be released from has it as before.
        self.set_reserving(at, Vec::new());
        let code = match why {
            Denial::Record => ErrorCode::DeviceUnavailable,
            _ => ErrorCode::Reserved,
        };
        self.stats.reserved += u64::from(code == ErrorCode::Reserved);
        self.refuse(reserving.from, &reserving.header, at, code);
    }

    /// A device is to be reserved for nobody: its writer ends, if it is who asks, or, if that is forced, whoever of the device it
    /// is. One that is on record from a former life of this server is granted the export first. Nobody else's record changes.
    fn release_device(
        &mut self,
        now: Time,
        at: usize,
        reserving: Reserving,
        desk: &mut dyn DialectDesk,
    ) {
        let who = self.who(at, reserving.from);
        let is_forced = reserving.command == ReserveCommand::ForceSet;
        let on_record = match self.on_record(at, desk) {
            Some(RecordedWriter::Writer(on_record)) => on_record,
            Some(RecordedWriter::Undecided) => return self.stats.undecided += 1,
            Some(RecordedWriter::Unread) | None => {
                let code = ErrorCode::DeviceUnavailable;
                return self.refuse(reserving.from, &reserving.header, at, code);
            }
        };
        let reserved = self.devices[at].offer.kept.reserved.clone();
        let (asker, _) = self.identity_of(at, self.owner(at, who), &reserved);
        let is_of_device = |id: &[u8; 16]| is_writer_of(self.devices[at].offer.device, id);
        let is_ended = |id: &[u8; 16]| *id == asker || is_forced && is_of_device(id);
        let Some(ends) = on_record.filter(is_ended) else {
            // Another writes, or nobody does: there is nothing to end.
            return self.forget_list(at, &reserving);
        };
        let is_it = |writer: &usize| self.identity(*writer).0 == ends;
        let reserving = Reserving { ends, ..reserving };
        if let Some(writer) = self.parties.writer(at).filter(is_it) {
            if let Writing::Asked(_) = self.parties.get(writer).writing {
                return self.stats.undecided += 1;
            }
            self.devices[at].reserving = Some(Reserving { party: Some(writer), ..reserving });
            return self.end_writer(writer, desk);
        }
        let Some(party) = self.take_in(now, at, who, reserving.from, desk) else {
            return self.not_reserved(at, reserving, Denial::Record);
        };
        let identity = (ends, format!("aoe {}, which releases it", reserving.from.addr));
        let reserving = Reserving { party: Some(party), ..reserving };
        match self.claim(now, party, identity, false, desk) {
            Ok(()) => self.devices[at].reserving = Some(reserving),
            Err(why) => self.not_reserved(at, reserving, why),
        }
    }

    /// As whom a station would be on record: while a device is reserved, only as one of those in the list.
    fn owner(&self, at: usize, who: Who) -> Who {
        match self.devices[at].offer.kept.reserved.is_empty() {
            true => who,
            false => Who::Reserved,
        }
    }

    /// A device is reserved for nobody from now on.
    fn forget_list(&mut self, at: usize, reserving: &Reserving) {
        if let Some(party) = self.parties.find(at, Who::Reserved) {
            self.parties.hide(party);
            self.due.push_back(party);
        }
        self.set_reserved(at, Vec::new());
        self.say_reserved(at, reserving.from, &reserving.header, reserving.command);
    }

    /// Whoever was to end has been let go of. That is on record, unless it could not be put there.
    fn end_release(&mut self, at: usize, desk: &mut dyn DialectDesk) {
        let on_record = self.on_record(at, desk);
        if on_record == Some(RecordedWriter::Undecided) {
            return;
        }
        let Some(reserving) = self.devices[at].reserving.take() else { return };
        match on_record {
            Some(RecordedWriter::Writer(writer)) if writer != Some(reserving.ends) => {
                self.forget_list(at, &reserving);
            }
            _ => {
                let code = ErrorCode::DeviceUnavailable;
                self.refuse(reserving.from, &reserving.header, at, code);
            }
        }
    }

    /// What was granted the export to end is to.
    pub(super) fn ends_now(&self, party: usize) -> bool {
        let Party { offer, writing, is_ending, .. } = self.parties.get(party);
        let may_write = matches!(writing, Writing::Granted(_));
        may_write && !is_ending && self.is_releasing(*offer, party)
    }

    /// A party is there to end.
    pub(super) fn is_releasing(&self, at: usize, party: usize) -> bool {
        let releases = |r: &Reserving| r.is_of(party) && r.list.is_empty();
        self.devices[at].reserving.as_ref().is_some_and(releases)
    }

    pub(super) fn end_writer(&mut self, writer: usize, desk: &mut dyn DialectDesk) {
        self.parties.hide(writer);
        self.due.push_back(writer);
        self.transactions = self.transactions.wrapping_add(1);
        let (transaction, party) = (self.transactions, self.parties.get_mut(writer));
        let (session, writing) = (party.session, party.writing);
        (party.writing, party.is_ending) = (Writing::No, true);
        let is_closed = match writing {
            Writing::Granted(pass) => desk.exports().close(session, pass, transaction),
            _ => true,
        };
        if is_closed {
            self.released(writer);
        }
    }

    /// A writer has ended: that is on record, or could not be put there.
    pub(super) fn released(&mut self, party: usize) {
        let offer = self.parties.get(party).offer;
        self.parties.get_mut(party).is_ending = false;
        self.due.push_back(party);
        let reserving = self.devices[offer].reserving.as_mut();
        if let Some(reserving) = reserving.filter(|r| r.is_of(party)) {
            reserving.has_ended = true;
        }
    }

    fn set_reserved(&mut self, at: usize, list: Vec<Mac>) {
        let kept = &mut self.devices[at].offer.kept;
        if kept.reserved != list || !kept.reserving.is_empty() {
            (kept.reserved, kept.reserving) = (list, Vec::new());
            self.keep(at);
        }
    }

    fn set_reserving(&mut self, at: usize, list: Vec<Mac>) {
        let reserving = &mut self.devices[at].offer.kept.reserving;
        if *reserving != list {
            *reserving = list;
            self.keep(at);
        }
    }

    /// Sees which of the lists that were kept is in force: that of those who are on record as the writer. False if that is
    /// not known yet.
    pub(super) fn settle(&mut self, at: usize, desk: &mut dyn DialectDesk) -> bool {
        let device = &self.devices[at].offer;
        let Some(RecordedWriter::Writer(writer)) = self.on_record(at, desk) else { return false };
        let export = desk.exports().find(&device.export).expect("it has a record");
        let is_read_only = desk.exports().is_read_only(export);
        let is_in_force = |list: &&Vec<Mac>| {
            let names = !list.is_empty() && writer == Some(reserved_writer(device.device, list));
            names || is_read_only && **list == device.kept.reserved
        };
        let lists = [&device.kept.reserving, &device.kept.reserved];
        let list = lists.into_iter().find(is_in_force).cloned().unwrap_or_default();
        self.devices[at].is_settled = true;
        self.set_reserved(at, list);
        true
    }

    /// An export is being taken away: another that comes under its name has a record of its own.
    pub(super) fn unsettle(&mut self, export: usize, desk: &mut dyn DialectDesk) {
        for device in &mut self.devices {
            if desk.exports().find(&device.offer.export).is_none_or(|at| at == export) {
                let kept = &device.offer.kept;
                device.is_settled = kept.reserved.is_empty() && kept.reserving.is_empty();
            }
        }
    }

    /// A request that changes or uses a device comes before it is known for whom that is reserved. True if it is known now.
    pub(super) fn settle_for(
        &mut self,
        now: Time,
        at: usize,
        from: Sender,
        header: &Header,
        desk: &mut dyn DialectDesk,
    ) -> bool {
        if self.devices[at].is_settled || self.settle(at, desk) {
            return true;
        }
        self.stats.undecided += 1;
        if self.on_record(at, desk) == Some(RecordedWriter::Unread) {
            if now >= self.reads_again_at {
                self.reads_again_at = now + UNREAD_PAUSE;
                let export = desk.exports().find(&self.devices[at].offer.export);
                desk.exports().is_writer_known(export.expect("it has a record"));
            }
            self.refuse(from, header, at, ErrorCode::DeviceUnavailable);
        }
        false
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

/// Whether this is any writer of a device.
fn is_writer_of(device: ShelfSlot, id: &[u8; 16]) -> bool {
    let any = writer(device, 0, [0; 8]);
    id[..3] == any[..3] && id[4..7] == any[4..7]
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
