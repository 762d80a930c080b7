//! The server: clients in front of the door of a target, on one link (`docs/ebd.md`).
//!
//! * `clients.rs`: who is there, and what each has outstanding
//! * `shaking.rs`: handshakes, and who may write
//! * `requests.rs`: reads, writes and flushes
//! * `order.rs`: writes of one export that overlap, in the order in which they came

mod clients;
mod order;
mod requests;
mod shaking;

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::{Addr, LinkInfo, RxFrame, SegList, Time, TxBatch};
use thinwire_exports::{
    Denied, Dialect, DialectDesk, Done, Granted, InitiatorRun, Pass, Refused, Users, Wish,
};
use thinwire_wire::ebd::{EbdError, EbdForm, Frame, NakReason, Operation, Tag};

use self::clients::{Client, Clients, Key};
pub use self::clients::{content_of, writer_of};
use self::order::Order;
pub use self::shaking::writer_identity;
use crate::{EbdCanary, LIFETIME};

/// How often a server tells the door that its clients live: silence says nothing of them.
const HEARD: Duration = Duration::from_millis(500);

/// A device that a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EbdOffer {
    /// First half of its number.
    pub major: u8,
    /// Second half.
    pub minor: u8,
    /// The export.
    pub export: String,
    /// Stations that may use it; everybody if there are none. A mask, no protection.
    pub stations: Vec<Addr>,
}

/// What a server does.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Which form it speaks.
    pub form: EbdForm,
    /// Its devices: no two of the same number.
    pub offers: Vec<EbdOffer>,
    /// Tells this life of it from others: indices of clients begin behind it.
    pub seed: u64,
    /// A fault of its own.
    pub canary: EbdCanary,
}

/// What a server has counted. Each reason why a frame was dropped has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Requests given to the door.
    pub requests: u64,
    /// Frames too short for a header, or a payload shorter than their length says.
    pub truncated: u64,
    /// Frames that are of no operation, or that only servers send.
    pub unknown_type: u64,
    /// Requests beyond the credit.
    pub beyond_credit: u64,
    /// Requests that came again while they were at work.
    pub repeated: u64,
    /// Requests of clients that shake hands anew, and wait for what they had asked for.
    pub shaking: u64,
    /// Handshakes that came while it was not known who the writer on record is.
    pub undecided: u64,
    /// Frames of stations that may not use the device, or that name none.
    pub masked: u64,
    /// Requests that were refused, or failed.
    pub naks: u64,
    /// Clients that were forgotten, since something may be lost.
    pub forgotten: u64,
    /// Bytes of answers in the memory that they were read into, and of writes in that they came in.
    pub bytes: u64,
}

/// The devices of one link, and the clients that have them. A guest of a target, on its thread.
pub struct EbdServer {
    config: ServerConfig,
    info: LinkInfo,
    clients: Clients,
    /// By offer.
    orders: Vec<Order>,
    /// Writes that were done, for [`EbdCanary::AnswersOnce`].
    done_once: Vec<(Key, Tag, u32)>,
    /// Frames that go out with this turn.
    out: TxBatch,
    /// Requests that came in this turn and want a WACK: session, slot, and which use of it.
    owed: Vec<(u64, u16, u32)>,
    /// Sessions whose end is being recorded.
    ending: Vec<u64>,
    /// Clients of which something is to be done at the end of the turn.
    due: VecDeque<usize>,
    heard_at: Time,
    transactions: u32,
    numbers: u64,
    is_stopping: bool,
    /// In the idealised form no HANDSHAKE that came before that is looked at: `None` before the first turn.
    deaf_until: Option<Time>,
    stats: ServerStats,
}

impl EbdServer {
    /// A server on a link of which it knows this much.
    pub fn new(config: ServerConfig, info: LinkInfo) -> Self {
        let orders = config.offers.iter().map(|_| Order::default()).collect();
        let clients = Clients::new(config.seed);
        EbdServer {
            config,
            info,
            clients,
            orders,
            done_once: Vec::new(),
            out: TxBatch::new(),
            owed: Vec::new(),
            ending: Vec::new(),
            due: VecDeque::new(),
            heard_at: Time::ZERO,
            transactions: 0,
            numbers: 0,
            is_stopping: false,
            deaf_until: None,
            stats: ServerStats::default(),
        }
    }

    /// What it has counted.
    pub fn stats(&self) -> ServerStats {
        self.stats
    }

    /// Clients that it knows.
    pub fn client_count(&self) -> usize {
        self.clients.iter().count()
    }

    /// Sends a frame.
    fn say(&mut self, to: Addr, frame: &Frame, data: SegList) {
        let (header, len) = frame.header();
        let out = self.out.push(to);
        out.head.extend_from_slice(&header[..len]);
        out.data = data;
    }

    fn nak(&mut self, to: Addr, request: &Frame, why: NakReason, sector: u32) {
        self.stats.naks += 1;
        let credit = self.credit();
        self.say(to, &request.nak(why, credit, sector), SegList::new());
    }

    /// How many sectors each client may have asked for at one time: what the link can take in, shared, and at least
    /// what two of the largest requests take.
    fn credit(&self) -> u16 {
        let form = self.config.form;
        let clients = self.clients.iter().count().max(1);
        let room = (self.info.room.bytes as usize / clients / 512).min(usize::from(u16::MAX));
        let least = 2 * u16::from(form.request_sectors_max());
        (room as u16).max(least).min(form.credit_max())
    }

    /// Which client a request is of.
    fn key_of(&self, from: Addr, frame: &Frame) -> Key {
        match frame.tag {
            Tag::Ideal { major, minor, .. } => Key { from, device: (major, minor) },
            Tag::Implemented { client, .. } => Key { from, device: (client, 0) },
        }
    }

    fn take(&mut self, now: Time, rx: &mut RxFrame, desk: &mut dyn DialectDesk) {
        let mut head = [0; 18];
        let seen = rx.len().min(head.len());
        rx.copy_to(0, &mut head[..seen]);
        let frame = match Frame::parse(&head[..seen]) {
            Ok(frame) if !frame.is_answer => frame,
            Ok(_) | Err(EbdError::Type) => return self.stats.unknown_type += 1,
            Err(EbdError::Truncated) => return self.stats.truncated += 1,
        };
        if frame.form() != self.config.form {
            return self.nak(rx.from, &frame, NakReason::Form, frame.sector);
        }
        let key = self.key_of(rx.from, &frame);
        if frame.operation == Operation::Handshake {
            return self.on_handshake(now, key, &frame, rx, desk);
        }
        let index = match frame.tag {
            Tag::Ideal { .. } => None,
            Tag::Implemented { index, .. } => Some(index),
        };
        let known = self.clients.find(key).filter(|&at| {
            // The index alone proves nothing, and none was given in another life.
            let ignores_index = self.config.canary == EbdCanary::IndexIgnored;
            index.is_none_or(|index| self.clients.get(at).index == index) || ignores_index
        });
        let Some(at) = known else {
            if frame.operation != Operation::End {
                self.nak(rx.from, &frame, NakReason::Unknown, frame.sector);
            }
            return;
        };
        self.clients.get_mut(at).heard = now;
        match frame.operation {
            _ if self.is_stopping && frame.operation != Operation::End => {}
            operation if self.clients.get(at).is_unknown && operation != Operation::End => {
                self.nak(rx.from, &frame, NakReason::Unknown, frame.sector);
            }
            Operation::End => self.on_end(now, at, desk),
            _ => self.on_request(now, at, &frame, rx, desk),
        }
    }

    /// Something may have been lost that was answered, and clients have to be told. In the idealised form a HANDSHAKE has nothing
    /// by which one of before, that comes late, is told from one of a client that knows.
    fn be_deaf(&mut self, now: Time) {
        self.deaf_until = Some(now + LIFETIME);
    }

    /// Whether a HANDSHAKE that came then may be of before.
    fn is_deaf_to(&self, arrived: Time) -> bool {
        let is_ideal = self.config.form == EbdForm::Ideal;
        is_ideal && self.deaf_until.is_none_or(|until| arrived < until)
    }

    /// Forgets a client: its next request is told so.
    fn forget(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        let Some(client) = self.clients.remove(at) else { return };
        self.orders[client.offer].forget(at);
        desk.leave(client.session, now);
    }
}

impl Users for EbdServer {
    fn is_there(&mut self, session: u64) -> bool {
        self.clients.of_session(session).is_some() || self.ending.contains(&session)
    }

    /// There is no frame that a client must answer.
    fn ask(&mut self, _: Time, _: InitiatorRun) -> bool {
        false
    }

    fn has_answered(&mut self, _: InitiatorRun, _: Time) -> bool {
        false
    }

    fn on_granted(&mut self, session: u64, transaction: u32, granted: &Granted) {
        self.granted(session, transaction, granted);
    }

    fn on_denied(&mut self, session: u64, transaction: u32, denied: Denied) {
        self.denied(session, transaction, &denied);
    }

    fn on_closed(&mut self, session: u64, _: u32) {
        // It is let go of at the end of the turn.
        if let Some(at) = self.clients.of_session(session) {
            self.clients.get_mut(at).is_over = true;
            self.due.push_back(at);
        }
    }

    fn on_fenced(&mut self, session: u64, pass: Pass, _: InitiatorRun, _: u64) {
        let Some(at) = self.clients.of_session(session) else { return };
        self.clients.get_mut(at).on_fenced(pass);
        self.due.push_back(at);
    }

    /// A client hears of the size when it shakes hands.
    fn on_resized(&mut self, _: u64, _: Pass, _: u64) {}
}

impl Dialect for EbdServer {
    fn on_frame(&mut self, now: Time, frame: &mut RxFrame, desk: &mut dyn DialectDesk) {
        self.take(now, frame, desk);
    }

    fn take_from_line(&mut self, session: u64, slot: u16) -> Option<Wish> {
        let at = self.clients.of_session(session)?;
        let wish = self.clients.get_mut(at).take_from_line(slot);
        let is_left = |slot: &clients::Slot| slot.stage == clients::Stage::InLine;
        let entry = self.clients.get(at).slots.get(usize::from(slot));
        if wish.is_none() && entry.is_some_and(is_left) {
            // It may not write any more: others may wait for its turn.
            self.end_slot(at, slot, NakReason::Fenced);
        }
        wish
    }

    fn on_refused(&mut self, _: Time, wish: Wish, why: Refused) {
        if let Some(at) = self.clients.of_session(wish.session) {
            self.refused(at, wish, why);
        }
    }

    fn on_completion(&mut self, now: Time, done: Done<'_>) {
        if let Some(at) = self.clients.of_session(done.session) {
            self.completed(now, at, done);
        }
    }

    fn on_release(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        self.retry_held(now, desk);
    }

    fn on_removed(&mut self, now: Time, export: usize, desk: &mut dyn DialectDesk) {
        self.be_deaf(now);
        for at in self.clients.places() {
            if self.clients.is_at(at) && self.clients.get(at).export == export {
                // What a volume has of it ends by itself.
                self.forget(now, at, desk);
            }
        }
    }

    fn end_turn(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        // Those who were here before it began do not know that it did.
        self.deaf_until.get_or_insert(now + LIFETIME);
        while let Some(at) = self.due.pop_front() {
            self.go_on(now, at, desk);
        }
        if now >= self.heard_at {
            self.heard_at = now + HEARD;
            // Their silence says nothing.
            for client in self.clients.iter().filter(|client| client.may_write()) {
                desk.exports().heard(client.session, now);
            }
        }
    }

    fn transmit(&mut self, _: Time, out: &mut TxBatch) {
        if !self.owed.is_empty() {
            self.say_owed();
        }
        out.append(&mut self.out);
    }

    fn deadline(&self, now: Time) -> Time {
        match (
            self.due.is_empty() && self.out.is_empty() && self.deaf_until.is_some(),
            self.clients.iter().any(Client::may_write),
        ) {
            (false, _) => now,
            (true, true) => self.heard_at,
            (true, false) => Time::NEVER,
        }
    }

    fn shut_down(&mut self) {
        self.is_stopping = true;
        let form = self.config.form;
        let told: Vec<(Addr, Tag)> =
            self.clients.iter().map(|c| (c.key.from, c.tag(form))).collect();
        for (to, tag) in told {
            let frame = Frame {
                operation: Operation::Shutdown,
                is_answer: true,
                wants_wack: false,
                tag,
                credit: 0,
                length: 0,
                sector: 0,
            };
            self.say(to, &frame, SegList::new());
        }
    }

    fn is_idle(&self) -> bool {
        self.out.is_empty() && self.clients.iter().all(Client::is_idle)
    }
}
