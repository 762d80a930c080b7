//! The end of a writer: a device is reserved for nobody, or a station gives back what its writes gave it
//! (`docs/aoe.md`, "Writers").

use thinwire_buffer::Time;
use thinwire_exports::{Denial, DialectDesk, RecordedWriter};
use thinwire_wire::aoe::{ErrorCode, ReserveCommand};

use super::AoeServer;
use super::parties::{Party, Who, Writing};
use super::reserving::Reserving;
use super::writers::is_writer_of;

impl AoeServer {
    /// A device is to be reserved for nobody: its writer ends, if it is who asks, or, if that is forced, whoever of the device it
    /// is. One that is on record from a former life of this server is granted the export first. Nobody else's record changes.
    pub(super) fn release_device(
        &mut self,
        now: Time,
        at: usize,
        reserving: Reserving,
        desk: &mut dyn DialectDesk,
    ) {
        let who = self.who(at, reserving.from);
        let is_forced = reserving.command == ReserveCommand::ForceSet;
        let on_record = match self.on_record_alone(now, at, desk) {
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
    pub(super) fn forget_list(&mut self, at: usize, reserving: &Reserving) {
        if let Some(party) = self.parties.find(at, Who::Reserved) {
            self.parties.hide(party);
            self.due.push_back(party);
        }
        self.set_reserved(at, Vec::new());
        self.say_reserved(at, reserving.from, &reserving.header, reserving.command);
    }

    /// Whoever was to end has been let go of. That is on record, unless it could not be put there.
    pub(super) fn end_release(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        let on_record = self.on_record(now, at, desk);
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
}
