//! One link of a server, as a guest of its target. The first of them stands for the server: it is asked for what is decided
//! for all.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, RxFrame, Time, TxBatch};
use thinwire_exports::{
    Denied, Dialect, DialectDesk, Done, Granted, InitiatorRun, Pass, Refused, Users, Wish,
};
use thinwire_wire::aoe::{SECTOR_BYTES, ShelfSlot};

use super::parties::{Party, Stage};
use super::requests::{Again, FENCED};
use super::{AoeServer, Link};

/// How often a server tells the door that its writers live: silence says nothing of them.
const HEARD: Duration = Duration::from_millis(500);

/// A link of a server, a guest of its target. All ports of a server are one target's.
pub struct AoePort {
    server: Rc<RefCell<AoeServer>>,
    port: usize,
}

impl AoePort {
    /// Gives a server one more link, of which it knows this much, for these of its devices.
    pub fn new(server: &Rc<RefCell<AoeServer>>, info: LinkInfo, devices: &[ShelfSlot]) -> Self {
        let port = {
            let mut server = server.borrow_mut();
            let port = server.ports.len();
            server.ports.push(Link { info, out: TxBatch::new(), has_announced: false });
            let its = |offered: &ShelfSlot| devices.contains(offered);
            server
                .devices
                .iter_mut()
                .filter(|device| its(&device.offer.device))
                .for_each(|device| device.ports.push(port));
            port
        };
        AoePort { server: server.clone(), port }
    }

    fn is_first(&self) -> bool {
        self.port == 0
    }
}

impl Users for AoePort {
    fn is_there(&mut self, session: u64) -> bool {
        self.is_first() && self.server.borrow().parties.of_session(session).is_some()
    }

    /// There is no frame that a client must answer.
    fn ask(&mut self, _: Time, _: InitiatorRun) -> bool {
        false
    }

    fn has_answered(&mut self, _: InitiatorRun, _: Time) -> bool {
        false
    }

    fn on_granted(&mut self, session: u64, transaction: u32, granted: &Granted) {
        self.server.borrow_mut().granted(session, transaction, granted);
    }

    fn on_denied(&mut self, session: u64, transaction: u32, denied: Denied) {
        self.server.borrow_mut().denied(session, transaction, &denied);
    }

    fn on_closed(&mut self, session: u64, _: u32) {
        let mut server = self.server.borrow_mut();
        if let Some(at) = server.parties.of_session(session) {
            server.released(at);
        }
    }

    fn on_fenced(&mut self, session: u64, pass: Pass, _: InitiatorRun, _: u64) {
        let mut server = self.server.borrow_mut();
        let Some(at) = server.parties.of_session(session) else { return };
        server.parties.get_mut(at).on_fenced(pass);
        server.due.push_back(at);
        if server.is_releasing(server.parties.get(at).offer, at) {
            // Somebody else is on record.
            server.released(at);
        }
    }

    /// Clients see it when they ask for the drive's identity again.
    fn on_resized(&mut self, session: u64, _: Pass, bytes: u64) {
        let mut server = self.server.borrow_mut();
        if let Some(at) = server.parties.of_session(session) {
            server.parties.get_mut(at).sectors = bytes / SECTOR_BYTES as u64;
        }
    }
}

impl Dialect for AoePort {
    fn on_frame(&mut self, now: Time, frame: &mut RxFrame, desk: &mut dyn DialectDesk) {
        self.server.borrow_mut().take(now, self.port, frame, desk);
    }

    fn take_from_line(&mut self, session: u64, slot: u16) -> Option<Wish> {
        let mut server = self.server.borrow_mut();
        let at = server.parties.of_session(session)?;
        let wish = server.parties.get_mut(at).take_from_line(slot);
        let entry = server.parties.get(at).slots.get(usize::from(slot));
        if wish.is_none() && entry.is_some_and(|slot| slot.stage == Stage::InLine) {
            // It may not write any more: others may wait for its turn.
            server.end_slot(at, slot, FENCED);
        }
        wish
    }

    fn on_refused(&mut self, _: Time, wish: Wish, why: Refused) {
        let mut server = self.server.borrow_mut();
        if let Some(at) = server.parties.of_session(wish.session) {
            server.refused(at, wish, why);
        }
    }

    fn on_completion(&mut self, _: Time, done: Done<'_>) {
        let mut server = self.server.borrow_mut();
        if let Some(at) = server.parties.of_session(done.session) {
            server.completed(at, done);
        }
    }

    fn on_release(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        let mut server = self.server.borrow_mut();
        for at in server.parties.places().filter(|_| self.is_first()) {
            if server.parties.is_at(at) {
                server.begin_all(now, at, Again::Held, desk);
            }
        }
    }

    fn on_removed(&mut self, now: Time, export: usize, desk: &mut dyn DialectDesk) {
        let mut server = self.server.borrow_mut();
        for at in server.parties.places() {
            if server.parties.is_at(at) && server.parties.get(at).export == export {
                // What a volume has of it ends by itself.
                server.forget(now, at, desk);
            }
        }
        server.unsettle(export, desk);
    }

    fn end_turn(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        let mut server = self.server.borrow_mut();
        if !server.ports[self.port].has_announced {
            server.ports[self.port].has_announced = true;
            server.announce(self.port, desk);
        }
        // Frames have come on all links by then.
        while let Some(at) = server.due.pop_front() {
            server.go_on(now, at, desk);
        }
        if self.is_first() {
            server.look_at_kept(now, desk);
        }
        if self.is_first() && now >= server.heard_at {
            server.heard_at = now + HEARD;
            for party in server.parties.iter().filter(|party| party.may_write()) {
                desk.exports().heard(party.session, now);
            }
        }
    }

    fn transmit(&mut self, _: Time, out: &mut TxBatch) {
        out.append(&mut self.server.borrow_mut().ports[self.port].out);
    }

    fn deadline(&self, now: Time) -> Time {
        let server = self.server.borrow();
        let link = &server.ports[self.port];
        let is_due = !server.due.is_empty() || !link.out.is_empty() || !link.has_announced;
        if is_due {
            return now;
        }
        match (self.is_first(), self.is_first() && server.parties.iter().any(Party::may_write)) {
            (true, true) => server.heard_at.min(server.kept_look(now)),
            (true, false) => server.kept_look(now),
            (false, _) => Time::NEVER,
        }
    }

    /// There is no frame that says so: clients ask again until a server answers.
    fn shut_down(&mut self) {
        self.server.borrow_mut().is_stopping = true;
    }

    fn is_idle(&self) -> bool {
        let server = self.server.borrow();
        server.ports[self.port].out.is_empty() && server.parties.iter().all(Party::is_idle)
    }
}
