//! Who may write (`docs/aoe.md`, "Writers"): as which party a station uses a device, how it is granted the export, and who it is
//! on record then.

use std::time::Duration;

use thinwire_buffer::{Addr, Time};
use thinwire_exports::{Denial, Denied, DialectDesk, Granted, InitiatorRun, User, WriteClaim};
use thinwire_wire::aoe::{ErrorCode, RefusedBy, SECTOR_BYTES, ShelfSlot, ata_error};

use super::AoeServer;
use super::parties::{Mac, Party, Sender, Stage, Who, Writing, mac_of};

/// A party that has asked for nothing for so long, and does not write, makes room for another.
const SILENT: Duration = Duration::from_secs(5);

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

    pub(super) fn identity_of(&self, at: usize, who: Who, reserved: &[Mac]) -> ([u8; 16], String) {
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
pub(super) fn is_writer_of(device: ShelfSlot, id: &[u8; 16]) -> bool {
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
