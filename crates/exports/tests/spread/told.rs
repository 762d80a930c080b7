//! What the sessions of one shard of a world hear of their door.

use std::collections::BTreeSet;

use thinwire_buffer::Time;
use thinwire_exports::{Denied, Granted, InitiatorRun, Pass, Users};

/// What the door of one shard tells its sessions.
#[derive(Default)]
pub struct Told {
    pub granted: Vec<(u64, Granted)>,
    pub denied: Vec<u64>,
    pub fenced: Vec<(u64, Pass)>,
    pub closed: Vec<u64>,
    pub sessions: BTreeSet<u64>,
}

impl Users for Told {
    fn is_there(&mut self, session: u64) -> bool {
        self.sessions.contains(&session)
    }

    fn ask(&mut self, _: Time, _: InitiatorRun) -> bool {
        false
    }

    fn has_answered(&mut self, _: InitiatorRun, _: Time) -> bool {
        false
    }

    fn on_granted(&mut self, session: u64, _: u32, granted: &Granted) {
        self.granted.push((session, *granted));
    }

    fn on_denied(&mut self, session: u64, _: u32, _: Denied) {
        self.denied.push(session);
    }

    fn on_closed(&mut self, session: u64, _: u32) {
        self.closed.push(session);
    }

    fn on_fenced(&mut self, session: u64, pass: Pass, _: InitiatorRun, _: u64) {
        self.fenced.push((session, pass));
    }

    fn on_resized(&mut self, _: u64, _: Pass, _: u64) {}
}
