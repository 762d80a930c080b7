//! What is EBD's alone of the life of a user: what a server offers, handshakes, and why one is not let in.

use thinwire_buffer::LinkInfo;
use thinwire_ebd::{EbdCanary, EbdOffer, EbdServer, ServerConfig, content_of, writer_of};
use thinwire_volume::{Volume, WriterRecord};
use thinwire_wire::ebd::{EbdForm, NakReason};

use super::client::Client;
use super::{DialectUser, MAJOR};
use crate::coverage::Coverage;
use crate::export::{Export, ExportContent, Store};
use crate::model::Violation;

/// What a server offers in EBD: on a station of its own, which only those hear who speak it.
pub struct EbdLane {
    /// Its number on the wire.
    pub station: u32,
    /// Which form is spoken.
    pub form: EbdForm,
    /// Names of exports; a device's minor is its place here.
    pub exports: Vec<String>,
    /// A fault in its server.
    pub canary: EbdCanary,
}

impl EbdLane {
    /// The server of a process that starts now.
    pub fn open(&self, info: LinkInfo, seed: u64) -> EbdServer {
        let offer = |(minor, export): (usize, &String)| EbdOffer {
            major: MAJOR,
            minor: minor as u8,
            export: export.clone(),
            stations: Vec::new(),
        };
        let offers = self.exports.iter().enumerate().map(offer).collect();
        EbdServer::new(ServerConfig { form: self.form, offers, seed, canary: self.canary }, info)
    }
}

impl DialectUser {
    /// Sees whether it has shaken hands.
    pub(super) fn look_at_handshakes(
        &mut self,
        export: &mut Export,
        coverage: &mut Coverage,
        note: &mut dyn FnMut(&str, u64),
    ) -> Result<(), Violation> {
        let Some(Client::Ebd(client)) = &self.client else { return Ok(()) };
        let shaken = client.report().handshakes;
        if !client.is_open() || shaken <= self.handshakes || client.failure().is_some() {
            return Ok(());
        }
        let (state, bytes) = (client.state(), client.geometry().bytes);
        self.handshakes = shaken;
        let is_it = |c: &ExportContent| content_of(&c.identity) == state.content;
        let Some(content) = export.contents.iter().rposition(is_it) else {
            return Err(self.violation(format!("it was told of content {}", state.content)));
        };
        let is_first = !std::mem::replace(&mut self.is_open, true);
        note("shakes hands", u64::from(self.run));
        coverage.ebd_attached += u64::from(is_first);
        coverage.ebd_came_back += u64::from(!is_first);
        self.content = content;
        export.check_size(content, bytes)?;
        if self.read_only {
            return Ok(());
        }
        self.enter(is_first, state.writer, export)
    }

    /// It has been granted leave to write, under a grant of which it knows a part.
    fn enter(&mut self, is_first: bool, writer: u16, export: &mut Export) -> Result<(), Violation> {
        let me = self.known_as();
        let medium = export.contents[self.content].medium.clone().expect("it is on a disk");
        let is_mine = |c: &&WriterRecord| c.holder == me && writer_of(c.generation) == writer;
        let commits = medium.commits();
        let Some(grant) = commits.iter().rfind(is_mine) else {
            return Err(self.violation(format!("grant {writer} is not durable")));
        };
        self.generation = grant.generation;
        if !is_first {
            return Ok(());
        }
        let is_writer = export.models[self.content].run_follows(self.run, self.generation);
        if let (true, Store::File(medium)) =
            (is_writer && !export.is_gone(self.content), &export.store)
        {
            medium.fence(self.run, false);
        }
        Ok(())
    }

    /// Whether it had to come to this.
    pub(super) fn refusal_is_due(&self, why: NakReason, now: u64, export: &Export) -> bool {
        match why {
            NakReason::Busy | NakReason::Fenced => !self.read_only,
            NakReason::Media => export.error_is_due(),
            NakReason::NoDevice => export.may_be_missed(now),
            // It had been answered before, though not let in.
            NakReason::Changed => export.contents.len() > 1,
            _ => false,
        }
    }
}
