//! For whom a device is reserved: Reserve/Release on the rule that there is one writer (`docs/aoe.md`, "Writers").
//!
//! The record of who writes an export is the truth about a reservation: whoever a device is reserved for is its writer there.
//! The list of their addresses is kept beside it, before it can come into force; a server that begins anew finds it there if
//! the record says so.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_exports::{Denial, DialectDesk, RecordedWriter};
use thinwire_wire::aoe::{ErrorCode, Header, Reservation, ReserveCommand};

use super::parties::{Mac, Sender, Who};
use super::writers::reserved_writer;
use super::{AoeServer, Device};
use crate::AoeCanary;

/// How soon it is looked whether a list has been kept, and for how long.
const KEPT_LOOK: Duration = Duration::from_millis(1);
const KEPT_PATIENCE: Duration = Duration::from_secs(5);
/// How soon a record that cannot be read is read again.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);

/// A change of whom a device is reserved for: it is in force once the door has granted the export to them, or has on record that
/// its writer has ended.
pub(super) struct Reserving {
    pub from: Sender,
    pub header: Header,
    pub command: ReserveCommand,
    pub since: Time,
    /// Nobody, if it is released.
    pub list: Vec<Mac>,
    /// Which is granted it, or ends. None while the list is being kept.
    pub party: Option<usize>,
    /// Of a release: who is to be on record no more.
    pub ends: [u8; 16],
    /// Whoever that is has been let go of.
    pub has_ended: bool,
}

impl Reserving {
    /// It waits for this party.
    pub fn is_of(&self, party: usize) -> bool {
        self.party == Some(party) && !self.has_ended
    }
}

impl AoeServer {
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
                self.settle(now, at, desk);
            }
            match &self.devices[at].reserving {
                Some(reserving) if reserving.has_ended => self.end_release(now, at, desk),
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

    /// What is on record of the writer of a device's export; `None` if there is no such export. What cannot be read is read again.
    pub(super) fn on_record(
        &mut self,
        now: Time,
        at: usize,
        desk: &mut dyn DialectDesk,
    ) -> Option<RecordedWriter> {
        let device = &mut self.devices[at];
        let export = desk.exports().find(&device.offer.export)?;
        let on_record = desk.exports().writer_on_record(export);
        if on_record == RecordedWriter::Unread && now >= device.reads_again_at {
            device.reads_again_at = now + UNREAD_PAUSE;
            desk.exports().is_writer_known(export);
        }
        Some(on_record)
    }

    /// The same, if nobody waits to be granted the export, so that it is not just about to be another.
    pub(super) fn on_record_alone(
        &mut self,
        now: Time,
        at: usize,
        desk: &mut dyn DialectDesk,
    ) -> Option<RecordedWriter> {
        let on_record = self.on_record(now, at, desk)?;
        let export = desk.exports().find(&self.devices[at].offer.export)?;
        Some(match desk.exports().is_claimed(export) {
            true => RecordedWriter::Undecided,
            false => on_record,
        })
    }

    fn go_on_reserving(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        let Device { offer, reserving, .. } = &self.devices[at];
        let is_late = reserving.as_ref().is_some_and(|r| now.since(r.since) > KEPT_PATIENCE);
        let is_kept = self.keeper.as_ref().is_none_or(|keeper| keeper.is_kept(offer.device));
        let is_kept = is_kept || self.canary == AoeCanary::ListNotKept;
        // Of one who is just being granted it nothing is taken over that nobody has asked for.
        let on_record = self.on_record_alone(now, at, desk);
        let is_known = matches!(on_record, Some(RecordedWriter::Writer(_)));
        let may = is_kept && (is_known || self.is_read_only(at, desk));
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
    pub(super) fn install(&mut self, at: usize, reserving: Reserving) {
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

    pub(super) fn not_reserved(&mut self, at: usize, reserving: Reserving, why: Denial) {
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

    pub(super) fn set_reserved(&mut self, at: usize, list: Vec<Mac>) {
        let kept = &mut self.devices[at].offer.kept;
        if kept.reserved != list || !kept.reserving.is_empty() {
            (kept.reserved, kept.reserving) = (list, Vec::new());
            self.keep(at);
        }
    }

    pub(super) fn set_reserving(&mut self, at: usize, list: Vec<Mac>) {
        let reserving = &mut self.devices[at].offer.kept.reserving;
        if *reserving != list {
            *reserving = list;
            self.keep(at);
        }
    }

    /// Sees which of the lists that were kept is in force: that of those who are on record as the writer. False if that is
    /// not known yet.
    pub(super) fn settle(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) -> bool {
        let is_read_only = self.is_read_only(at, desk);
        let writer = match self.on_record_alone(now, at, desk) {
            Some(RecordedWriter::Writer(writer)) => writer,
            Some(_) if is_read_only => None,
            _ => return false,
        };
        let device = &self.devices[at].offer;
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

    fn is_read_only(&self, at: usize, desk: &mut dyn DialectDesk) -> bool {
        let export = desk.exports().find(&self.devices[at].offer.export);
        export.is_some_and(|export| desk.exports().is_read_only(export))
    }

    /// An export is being taken away: another that comes under its name has a record of its own.
    pub(super) fn unsettle(&mut self, export: usize, desk: &mut dyn DialectDesk) {
        for device in &mut self.devices {
            if desk.exports().find(&device.offer.export).is_none_or(|at| at == export) {
                // Whose list was being kept asks again.
                device.reserving.take_if(|reserving| reserving.party.is_none());
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
        if self.devices[at].is_settled || self.settle(now, at, desk) {
            return true;
        }
        self.stats.undecided += 1;
        if self.on_record(now, at, desk) == Some(RecordedWriter::Unread) && self.may_answer(now) {
            self.refuse(from, header, at, ErrorCode::DeviceUnavailable);
        }
        false
    }

    pub(super) fn say_reserved(
        &mut self,
        at: usize,
        to: Sender,
        header: &Header,
        command: ReserveCommand,
    ) {
        let header = header.answer(self.devices[at].offer.device);
        let out = self.ports[to.port].out.push(to.addr);
        header.put(&mut out.head);
        Reservation::new(command, &self.devices[at].offer.kept.reserved).put(&mut out.head);
    }
}
