//! Handshakes, who may write, and ends.

use std::time::Duration;

use thinwire_buffer::{Addr, RxFrame, SegList, Time};
use thinwire_exports::{
    Denial, Denied, DialectDesk, Granted, InitiatorRun, RecordedWriter, User, WriteClaim,
};
use thinwire_wire::ebd::{
    EbdForm, EbdState, Frame, HandshakeAnswer, HandshakeAsk, NakReason, SECTORS_MAX,
};

use super::clients::{Client, Key, Stage, Writing, content_of, writer_of};
use super::requests::request_sectors;
use super::{EbdCanary, EbdServer};

/// Clients of a server, at most: the implemented form has so many indices.
const CLIENTS_MAX: usize = 250;
/// A client that has asked for nothing for so long, and does not write, makes room for another.
const SILENT: Duration = Duration::from_secs(5);

impl EbdServer {
    pub(super) fn on_handshake(
        &mut self,
        now: Time,
        key: Key,
        frame: &Frame,
        rx: &RxFrame,
        desk: &mut dyn DialectDesk,
    ) {
        if self.is_stopping {
            return;
        }
        if self.is_deaf_to(now - rx.waited) {
            // It asks again.
            return self.stats.undecided += 1;
        }
        let header = frame.form().header_bytes();
        let mut payload = [0; 12];
        let len = rx.len().saturating_sub(header).min(payload.len());
        rx.copy_to(header, &mut payload[..len]);
        let Some(ask) = HandshakeAsk::of(frame, &payload[..len]) else {
            return self.stats.truncated += 1;
        };
        let is_meant =
            |offer: &super::EbdOffer| (offer.major, offer.minor) == (ask.major, ask.minor);
        let Some(offer) = self.config.offers.iter().position(is_meant) else {
            self.stats.masked += 1;
            return self.nak(key.from, frame, NakReason::NoDevice, 0);
        };
        let stations = &self.config.offers[offer].stations;
        let export = desk.exports().find(&self.config.offers[offer].export);
        let (Some(export), true) = (export, stations.is_empty() || stations.contains(&key.from))
        else {
            self.stats.masked += 1;
            return self.nak(key.from, frame, NakReason::NoDevice, 0);
        };
        if ask.block_bytes == 0 || ask.block_bytes % 512 != 0 {
            return self.nak(key.from, frame, NakReason::BlockSize, 0);
        }
        if !desk.exports().is_writer_known(export) {
            // Nothing can be said of grants yet: it asks again.
            return self.stats.undecided += 1;
        }
        if let Some(at) = self.clients.find(key) {
            return self.on_handshake_again(now, at, (*frame, ask), (offer, export), desk);
        }
        self.take_in(now, key, (*frame, ask), (offer, export), desk);
    }

    /// A client that is not known.
    fn take_in(
        &mut self,
        now: Time,
        key: Key,
        asks: (Frame, HandshakeAsk),
        (offer, export): (usize, usize),
        desk: &mut dyn DialectDesk,
    ) {
        if self.clients.iter().count() >= CLIENTS_MAX && !self.make_room(now, desk) {
            return self.nak(key.from, &asks.0, NakReason::TooMany, 0);
        }
        let mut seat = desk.seat(now, key.from);
        if seat.is_err() && self.make_room(now, desk) {
            seat = desk.seat(now, key.from);
        }
        let Ok(session) = seat else {
            return self.nak(key.from, &asks.0, NakReason::TooMany, 0);
        };
        let granted = desk.exports().open_read(session, export);
        let mut client = Client::new(key, offer, export, session, granted.pass);
        client.note(&granted);
        (client.asks, client.heard) = (Some(asks), now);
        let at = self.clients.add(client);
        if granted.geometry.bytes / 512 > SECTORS_MAX || granted.geometry.block_bytes > 512 {
            return self.refuse(now, at, NakReason::NoDevice, desk);
        }
        self.shake(now, at, desk);
    }

    /// Forgets the client that has been silent for longest, if it does not write: it shakes hands when it wants something.
    fn make_room(&mut self, now: Time, desk: &mut dyn DialectDesk) -> bool {
        let may_go = |client: &&Client| {
            client.writing == Writing::No && client.is_idle() && now.since(client.heard) > SILENT
        };
        let silent = self.clients.iter().filter(may_go).min_by_key(|client| client.heard);
        let Some(at) = silent.and_then(|client| self.clients.of_session(client.session)) else {
            return false;
        };
        self.forget(now, at, desk);
        true
    }

    /// A client begins anew: what it has asked for comes to its end first.
    fn on_handshake_again(
        &mut self,
        now: Time,
        at: usize,
        asks: (Frame, HandshakeAsk),
        (offer, export): (usize, usize),
        desk: &mut dyn DialectDesk,
    ) {
        let client = self.clients.get_mut(at);
        client.heard = now;
        if client.asks.is_none() && client.shaken == Some(asks) {
            // The answer was lost.
            return self.answer(at, asks);
        }
        if (client.offer, client.export) != (offer, export) {
            // The implemented form lets a client name another device: it has done with this one.
            if let Writing::Granted(pass) = client.writing {
                (client.writing, client.former) = (Writing::No, Some(pass));
            }
            self.clients.hide(at);
            self.drop_waiting(at, desk);
            self.due.push_back(at);
            let key = self.clients.get(at).key;
            return self.take_in(now, key, asks, (offer, export), desk);
        }
        client.asks = Some(asks);
        self.drop_waiting(at, desk);
        self.due.push_back(at);
    }

    /// A handshake is decided: nothing of the client is outstanding.
    pub(super) fn shake(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        let client = self.clients.get_mut(at);
        let Some((_, ask)) = client.asks else { return };
        if let Writing::Asked(_) = client.writing {
            return;
        }
        if ask.state.content != 0 && ask.state.content != client.content {
            return self.refuse(now, at, NakReason::Changed, desk);
        }
        let forgets = self.config.canary == EbdCanary::GrantsForgotten;
        let comes_back = ask.state.writer != 0 && !ask.takes_over && !forgets;
        let is_same = ask.state.writer == writer_of(client.generation);
        if comes_back && !is_same && ask.writes {
            return self.refuse(now, at, NakReason::Fenced, desk);
        }
        match client.writing {
            Writing::Fenced if ask.writes && !ask.takes_over => {
                return self.refuse(now, at, NakReason::Fenced, desk);
            }
            Writing::No | Writing::Fenced if ask.writes => {
                if ask.takes_over && !self.names_its_victim(at, ask.state.writer, desk) {
                    return self.refuse(now, at, NakReason::Busy, desk);
                }
                let client = self.clients.get_mut(at);
                client.writing = Writing::No;
                let resumes = (comes_back && is_same).then_some(client.generation);
                if let Err(why) = self.claim(now, at, resumes, ask.takes_over, desk) {
                    self.refuse(now, at, why, desk);
                }
                return;
            }
            _ => {}
        }
        let asks = self.clients.get_mut(at).asks.take().expect("just seen");
        self.answer(at, asks);
    }

    /// Whether who takes over knows from whom: what waited in a switch while another took over does not.
    fn names_its_victim(&self, at: usize, named: u16, desk: &mut dyn DialectDesk) -> bool {
        let client = self.clients.get(at);
        let (me, exports) = (self.identity(at), desk.exports());
        match exports.writer_on_record(client.export) {
            RecordedWriter::Writer(Some(holder)) if holder != me => {
                let is_it = named == writer_of(exports.generation_on_record(client.export));
                is_it && !exports.is_claimed(client.export)
            }
            RecordedWriter::Writer(_) => !exports.is_claimed(client.export),
            RecordedWriter::Unread | RecordedWriter::Undecided => false,
        }
    }

    /// Who a client is to the door.
    fn identity(&self, at: usize) -> [u8; 16] {
        let key = self.clients.get(at).key;
        writer_identity(self.config.form, key.from, key.device)
    }

    /// Asks the door to let a client write.
    pub(super) fn claim(
        &mut self,
        now: Time,
        at: usize,
        resumes: Option<u64>,
        takes_over: bool,
        desk: &mut dyn DialectDesk,
    ) -> Result<(), NakReason> {
        self.transactions = self.transactions.wrapping_add(1);
        self.numbers = now.0.max(self.numbers + 1);
        let (transaction, number) = (self.transactions, self.numbers);
        let run = InitiatorRun { initiator: self.identity(at), instance: number };
        let client = self.clients.get_mut(at);
        let name = format!("ebd {}", client.key.from);
        let session = client.session;
        let user = User { session, number, run, member: 0, is_leased: false, name };
        let export = client.export;
        let claim = WriteClaim { user: &user, transaction, export, resumes, takes_over };
        match desk.exports().claim(now, claim) {
            Ok(()) => client.writing = Writing::Asked(transaction),
            Err(denied) => return Err(reason_of(denied.why)),
        }
        Ok(())
    }

    pub(super) fn granted(&mut self, session: u64, transaction: u32, granted: &Granted) {
        let Some(at) = self.clients.of_session(session) else { return };
        let client = self.clients.get_mut(at);
        if client.writing != Writing::Asked(transaction) {
            return;
        }
        if client.is_gone {
            // It has ended meanwhile.
            (client.writing, client.former) = (Writing::No, Some(granted.pass));
            return self.due.push_back(at);
        }
        client.writing = Writing::Granted(granted.pass);
        client.note(granted);
        self.go_on_with_writes(at);
    }

    pub(super) fn denied(&mut self, session: u64, transaction: u32, denied: &Denied) {
        let Some(at) = self.clients.of_session(session) else { return };
        let client = self.clients.get_mut(at);
        if client.writing != Writing::Asked(transaction) {
            return;
        }
        client.writing = Writing::No;
        let why = reason_of(denied.why);
        if let Some((frame, _)) = client.asks.take() {
            let to = client.key.from;
            self.clients.hide(at);
            self.due.push_back(at);
            return self.nak(to, &frame, why, 0);
        }
        for slot in 0..self.clients.get(at).slots.len() {
            let entry = &self.clients.get(at).slots[slot];
            let waits = matches!(entry.stage, Stage::Waits | Stage::Ready);
            if waits && entry.request.operation.is_write() {
                self.end_slot(at, slot as u16, why);
            }
        }
    }

    fn go_on_with_writes(&mut self, at: usize) {
        for entry in &mut self.clients.get_mut(at).slots {
            if entry.stage == Stage::Waits && !entry.waits_for_order {
                entry.stage = Stage::Ready;
            }
        }
        self.due.push_back(at);
    }

    /// A handshake is refused, and the client not known.
    fn refuse(&mut self, now: Time, at: usize, why: NakReason, desk: &mut dyn DialectDesk) {
        let client = self.clients.get_mut(at);
        let (to, asks, export) = (client.key.from, client.asks.take(), client.export);
        if matches!(client.writing, Writing::Fenced | Writing::Granted(_)) {
            // It stays known as who was fenced, so that it is not taken for another that comes; or goes on to write,
            // since anybody may say that it shakes hands.
        } else if client.is_idle() {
            self.forget(now, at, desk);
        } else {
            self.clients.hide(at);
            self.due.push_back(at);
        }
        if let Some((frame, _)) = asks {
            // Who is to take over has to say so with this.
            let writer = writer_of(desk.exports().generation_on_record(export));
            self.nak(to, &frame, why, if why == NakReason::Busy { writer.into() } else { 0 });
        }
    }

    fn answer(&mut self, at: usize, asks: (Frame, HandshakeAsk)) {
        let credit = self.credit();
        let index = match self.clients.get(at).shaken {
            Some(_) => self.clients.get(at).index,
            None => self.clients.next_index(),
        };
        let header = self.config.form.header_bytes();
        let room = (self.info.frame_bytes.max - header) as u32 / 512 * 512;
        let client = self.clients.get_mut(at);
        let (frame, ask) = asks;
        let mut block_bytes = ask.block_bytes;
        while block_bytes > room.min(u32::from(u8::MAX) * 512) && block_bytes > 512 {
            block_bytes = (block_bytes / 2).next_multiple_of(512);
        }
        (client.index, client.block_bytes, client.credit) = (index, block_bytes, credit);
        (client.shaken, client.is_unknown) = (Some(asks), false);
        let answer = HandshakeAnswer {
            sectors: client.sectors as u32,
            request_sectors: request_sectors(self.config.form),
            block_bytes,
            credit,
            state: EbdState { content: client.content, writer: writer_of(client.generation) },
            latency_us: 0,
            number: ask.number,
        };
        let to = client.key.from;
        let (told, payload, len) = answer.frame(&frame, index);
        self.say(to, &told, SegList::new());
        let out = self.out.frames_mut().last_mut().expect("it was just added");
        out.head.extend_from_slice(&payload[..len]);
    }

    /// A client ends, in order.
    pub(super) fn on_end(&mut self, _: Time, at: usize, desk: &mut dyn DialectDesk) {
        self.drop_waiting(at, desk);
        self.clients.hide(at);
        let client = self.clients.get_mut(at);
        client.is_ending = true;
        if let Writing::Granted(pass) = client.writing {
            self.transactions = self.transactions.wrapping_add(1);
            let (session, transaction) = (client.session, self.transactions);
            let is_closed = desk.exports().close(session, pass, transaction);
            let client = self.clients.get_mut(at);
            client.is_over = is_closed;
        } else {
            self.clients.get_mut(at).is_over = true;
        }
        self.due.push_back(at);
    }

    /// Does what is to be done of a client at the end of a turn.
    pub(super) fn go_on(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        if !self.clients.is_at(at) {
            return;
        }
        let client = self.clients.get_mut(at);
        if let Some(pass) = client.former.take() {
            desk.exports().close(client.session, pass, 0);
        }
        let client = self.clients.get(at);
        if client.is_gone {
            self.drop_waiting(at, desk);
            let client = self.clients.get(at);
            // That it ends is being recorded.
            let is_closing = client.is_ending && !client.is_over;
            if client.is_idle() && !is_closing {
                self.forget(now, at, desk);
            }
            return;
        }
        if client.is_unknown {
            self.drop_waiting(at, desk);
        }
        let client = self.clients.get(at);
        if client.asks.is_some() {
            let may = client.is_idle() || self.config.canary == EbdCanary::ShadowIgnored;
            if may && self.begin_anew(now, at, desk) {
                self.shake(now, at, desk);
            }
            return;
        }
        self.begin_all(now, at, Stage::Ready, desk);
        self.take_from_backlog(now, at, desk);
    }

    /// Looks anew at the export of a client that shakes hands again. False if it has to ask once more.
    fn begin_anew(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) -> bool {
        let client = self.clients.get_mut(at);
        if client.is_fresh() {
            return true;
        }
        let (session, export, reading) = (client.session, client.export, client.reading);
        desk.exports().close(session, reading, 0);
        let granted = desk.exports().open_read(session, export);
        client.reading = granted.pass;
        // Whatever is decided: only an answer tells the client that it was forgotten.
        let is_lost = granted.verifier != client.verifier && !client.is_unknown;
        client.is_unknown |= is_lost;
        client.note(&granted);
        client.shaken = None;
        if is_lost && self.config.form == EbdForm::Ideal {
            // It may be of before the loss, which it has brought to light.
            self.clients.get_mut(at).asks = None;
            self.be_deaf(now);
            return false;
        }
        true
    }
}

impl Client {
    /// What an export is, as it was opened.
    fn note(&mut self, granted: &Granted) {
        self.generation = granted.writer_generation;
        self.verifier = granted.verifier;
        self.content = content_of(&granted.identity);
        self.sectors = granted.geometry.bytes / 512;
    }

    /// It has asked for nothing since it was taken in.
    fn is_fresh(&self) -> bool {
        self.slots.is_empty() && self.shaken.is_none()
    }
}

/// As whom a client at a station writes, for all its life: in the record of who writes an export. `device` is that of the
/// client's requests in the idealised form; in the implemented form its own minor, and 0.
pub fn writer_identity(form: EbdForm, station: Addr, device: (u8, u8)) -> [u8; 16] {
    let mut id = [0; 16];
    id[..3].copy_from_slice(b"ebd");
    id[3] = 1 + form as u8;
    match station {
        Addr::Mac(mac) => id[4..10].copy_from_slice(&mac),
        Addr::Sim(n) => id[4..8].copy_from_slice(&n.to_be_bytes()),
        Addr::Group | Addr::Udp(_) => {}
    }
    (id[10], id[11]) = device;
    id
}

fn reason_of(why: Denial) -> NakReason {
    match why {
        Denial::Busy => NakReason::Busy,
        Denial::ReadOnly => NakReason::ReadOnly,
        Denial::Fenced => NakReason::Fenced,
        Denial::OtherContent => NakReason::Changed,
        Denial::Record => NakReason::Media,
    }
}
