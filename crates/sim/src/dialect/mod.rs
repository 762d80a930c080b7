//! Users of EBD beside those of Thinwire's own protocol: a lane of a server on which its exports are offered so, and
//! the shipped client with a workload, every answer of which is checked against the model of its export.
//!
//! Here is its life. What it submits, and how that is judged, is in `io.rs`; what happens to it in
//! `events.rs`; `stage.rs` is its part of the world.

mod events;
mod io;
mod stage;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::{Addr, LinkInfo, Pool, TxBatch};
use thinwire_ebd::{
    ClientConfig, ClientState, EbdCanary, EbdClient, EbdOffer, EbdServer, ServerConfig, content_of,
    writer_identity, writer_of,
};
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::SimNet;
use thinwire_proto::Time;
use thinwire_volume::{Closing, Completion, ErrorKind, Part, Volume};
use thinwire_wire::ebd::{EbdForm, NakReason};

pub use self::events::EbdEvent;
use self::io::Pending;
use crate::client::Workload;
use crate::coverage::Coverage;
use crate::export::{Export, Store};
use crate::machine::Machine;
use crate::model::Violation;

/// The protocol of its stations on the simulated wire.
pub const PROTOCOL: u8 = 1;
/// The first half of all devices.
const MAJOR: u8 = 3;

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

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EbdEnd {
    /// It was not let in.
    Refused(Option<NakReason>),
    /// It failed for good.
    Failed(ErrorKind),
    /// It was closed.
    Closed,
}

/// A machine with a client of EBD.
pub struct EbdUser {
    /// What it is called in traces.
    pub name: String,
    /// Its link.
    pub machine: Machine,
    /// Which server it talks to.
    pub server: usize,
    /// Which export it uses.
    pub export: usize,
    /// Settings for its next start.
    pub config: ClientConfig,
    /// Faults of its link, if it is wrapped.
    pub faults: Option<FaultConfig>,
    /// What it does. Discards, zeroes and statuses are not among it.
    pub workload: Workload,
    client: Option<EbdClient>,
    /// Number of its present run, unique in the world.
    run: u32,
    is_open: bool,
    is_closing: bool,
    was_aborted: bool,
    /// Which of the export's contents it was told of, and the grant that it writes under.
    content: usize,
    generation: u64,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    submitted: u64,
    pause_until: u64,
    /// It flushes when nothing else is outstanding.
    owes_flush: bool,
    handshakes: u64,
    done: Vec<Completion>,
    rng: Rng,
    pool: Pool,
}

impl EbdUser {
    /// A machine on which nothing runs yet.
    pub fn new(
        (name, station): (String, u32),
        (server, export): (usize, usize),
        config: ClientConfig,
        workload: Workload,
        rng: Rng,
    ) -> Self {
        EbdUser {
            name,
            machine: Machine::new(vec![station]),
            server,
            export,
            config,
            faults: None,
            workload,
            client: None,
            run: 0,
            is_open: false,
            is_closing: false,
            was_aborted: false,
            content: 0,
            generation: 0,
            pending: BTreeMap::new(),
            next_token: 1,
            submitted: 0,
            pause_until: 0,
            owes_flush: false,
            handshakes: 0,
            done: Vec::new(),
            rng,
            pool: Pool::new(4 << 20),
        }
    }

    /// Its process is there.
    pub fn is_running(&self) -> bool {
        self.client.is_some()
    }

    /// Who it is in the record of who writes.
    pub fn known_as(&self) -> [u8; 16] {
        let device = match self.config.form {
            EbdForm::Ideal => (self.config.major, self.config.minor),
            EbdForm::Implemented => (self.config.client, 0),
        };
        writer_identity(self.config.form, Addr::Sim(self.machine.stations[0]), device)
    }

    /// Starts a run of it.
    pub fn start(&mut self, now: u64, run: u32, seed: u64, net: &SimNet, clock: &Rc<Cell<u64>>) {
        assert!(self.client.is_none() && self.pending.is_empty());
        self.machine.foreign = Some(self.machine.stations[0]);
        let infos = self.machine.open_links(net, self.faults.as_ref(), clock);
        let config = ClientConfig { seed, ..self.config.clone() };
        self.client = Some(EbdClient::new(Time(now), config, infos[0]));
        (self.run, self.is_open, self.is_closing) = (run, false, false);
        (self.was_aborted, self.handshakes) = (false, 0);
        self.machine.frozen_until = 0;
    }

    /// The process is gone at once.
    pub fn crash(&mut self, exports: &mut [Export], coverage: &mut Coverage) {
        if let Some(client) = self.client.take() {
            harvest(&client, coverage);
        }
        self.pending.clear();
        self.machine.deadline = u64::MAX;
        if std::mem::take(&mut self.is_open) && !self.config.read_only {
            exports[self.export].models[self.content].run_ended(self.run);
        }
    }

    /// Begins an orderly end.
    pub fn close(&mut self) {
        if let Some(client) = &mut self.client {
            client.close();
            (self.is_closing, self.machine.dirty) = (true, true);
        }
    }

    /// Ends it at once, by force.
    pub fn abort(&mut self) {
        if let Some(client) = &mut self.client {
            client.abort();
            (self.is_closing, self.was_aborted, self.machine.dirty) = (true, true, true);
        }
    }

    /// The server answers it.
    pub fn is_attached(&self) -> bool {
        let state = self.client.as_ref().map(|client| client.report().state);
        self.is_open && state == Some(ClientState::Open)
    }

    /// It writes this export, and may.
    pub fn serves(&self, export: usize) -> bool {
        self.export == export && !self.config.read_only && self.is_attached()
    }

    /// I/Os that are not answered.
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// It will not submit anything by itself any more.
    pub fn is_finished(&self) -> bool {
        self.submitted >= self.workload.budget && !self.owes_flush
    }

    /// Lets it submit so many more.
    pub fn add_budget(&mut self, count: u64) {
        self.workload.budget = self.submitted + count;
        self.machine.dirty = true;
    }

    /// Lets it flush once all else is answered.
    pub fn flush(&mut self) {
        (self.owes_flush, self.machine.dirty) = (true, true);
    }

    /// Nothing is left to be done: it is attached and quiet, or its turn to write has not come while `served`, another,
    /// has it.
    pub fn is_settled(&self, served: impl Fn(usize) -> bool) -> bool {
        match self.is_open {
            true => self.is_attached() && self.is_finished() && self.outstanding() == 0,
            false => !self.config.read_only && served(self.export),
        }
    }

    /// One turn of its loop. How the run ended, if it did.
    pub fn turn(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        note: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<EbdEnd>, Violation> {
        let Some(client) = &mut self.client else { return Ok(None) };
        let time = Time(now);
        self.machine.receive(&self.pool, |_, frame| client.on_foreign_frame(time, 0, frame));
        Part::settle(client, time);
        self.look(export, coverage, note)?;
        while self.wants_more(now) {
            self.submit_random(now, export, coverage, note);
        }
        let (mut out, mut effects) = ([TxBatch::new()], Vec::new());
        let client = self.client.as_mut().expect("it runs");
        let mut closing = Closing { now: time, out: &mut out, effects: &mut effects };
        self.machine.deadline = Part::close(client, &mut closing).0;
        let batch = &mut self.machine.batches()[0];
        batch.append(&mut out[0]);
        let sent = self.machine.send_own();
        note("sent", sent);
        self.look(export, coverage, note)?;
        if self.wants_more(now.max(self.pause_until)) {
            self.machine.deadline = self.machine.deadline.min(self.pause_until);
        }
        let end = self.ended(now, export)?;
        if let Some(end) = end {
            self.end(end, export, coverage)?;
        }
        Ok(end)
    }

    /// Sees what has changed, and checks the completions.
    fn look(
        &mut self,
        export: &mut Export,
        coverage: &mut Coverage,
        note: &mut dyn FnMut(&str, u64),
    ) -> Result<(), Violation> {
        let client = self.client.as_mut().expect("it runs");
        while client.take_note().is_some() {}
        let shaken = client.report().handshakes;
        if client.is_open() && shaken > self.handshakes && client.failure().is_none() {
            self.handshakes = shaken;
            let (state, bytes) = (client.state(), client.geometry().bytes);
            let is_it = |c: &crate::export::ExportContent| content_of(&c.identity) == state.content;
            let Some(content) = export.contents.iter().rposition(is_it) else {
                return Err(self.violation(format!("it was told of content {}", state.content)));
            };
            let is_first = !std::mem::replace(&mut self.is_open, true);
            note("shakes hands", u64::from(self.run));
            coverage.ebd_attached += u64::from(is_first);
            coverage.ebd_came_back += u64::from(!is_first);
            self.content = content;
            export.check_size(content, bytes)?;
            if !self.config.read_only {
                self.enter(is_first, state.writer, export)?;
            }
        }
        let client = self.client.as_mut().expect("it runs");
        let mut done = std::mem::take(&mut self.done);
        client.poll(&mut done);
        self.machine.dirty |= !done.is_empty();
        for completion in done.drain(..) {
            note("completed", completion.token << 1 | u64::from(completion.result.is_err()));
            self.check(completion, export, coverage)?;
        }
        self.done = done;
        Ok(())
    }

    /// It has been granted leave to write, under a grant of which it knows a part.
    fn enter(&mut self, is_first: bool, writer: u16, export: &mut Export) -> Result<(), Violation> {
        let me = self.known_as();
        let medium = export.contents[self.content].medium.clone().expect("it is on a disk");
        let is_mine = |c: &&thinwire_volume::WriterRecord| {
            c.holder == me && writer_of(c.generation) == writer
        };
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

    fn ended(&self, now: u64, export: &Export) -> Result<Option<EbdEnd>, Violation> {
        let client = self.client.as_ref().expect("it runs");
        if let Some(kind) = client.failure() {
            if !self.pending.is_empty() {
                return Ok(None);
            }
            if !self.is_open {
                return match client.refusal() {
                    Some(why) if self.refusal_is_due(why, now, export) => {
                        Ok(Some(EbdEnd::Refused(Some(why))))
                    }
                    why => {
                        Err(self.violation(format!("it was refused: {why:?}, {}", kind.describe())))
                    }
                };
            }
            if !self.error_is_due(kind, export) {
                return Err(self.violation(format!("it failed: {}", kind.describe())));
            }
            return Ok(Some(EbdEnd::Failed(kind)));
        }
        Ok(client.is_closed().then_some(EbdEnd::Closed))
    }

    fn refusal_is_due(&self, why: NakReason, now: u64, export: &Export) -> bool {
        match why {
            NakReason::Busy | NakReason::Fenced => !self.config.read_only,
            NakReason::Media => export.error_is_due(),
            NakReason::NoDevice => export.may_be_missed(now),
            // It had been answered before, though not let in.
            NakReason::Changed => export.contents.len() > 1,
            _ => false,
        }
    }

    fn end(
        &mut self,
        end: EbdEnd,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let client = self.client.take().expect("it ran");
        harvest(&client, coverage);
        self.machine.deadline = u64::MAX;
        self.pending.clear();
        if !std::mem::take(&mut self.is_open) || self.config.read_only {
            return Ok(());
        }
        let is_durable = end == EbdEnd::Closed && !self.was_aborted;
        if is_durable && client.report().retained_bytes == 0 {
            coverage.ebd_ended += 1;
            let model = &mut export.models[self.content];
            model.run_detached(self.run).map_err(|v| self.violation(v.0))?;
        } else {
            export.models[self.content].run_ended(self.run);
        }
        Ok(())
    }

    fn violation(&self, text: String) -> Violation {
        Violation(format!("{} (run {}): {text}", self.name, self.run))
    }

    /// Where it stands, for a person.
    pub fn describe(&self) -> String {
        let report = self.client.as_ref().map(EbdClient::report);
        format!("{} (run {}): {report:?}, {} outstanding", self.name, self.run, self.pending.len())
    }
}

/// Adds the figures of a client that ends.
fn harvest(client: &EbdClient, coverage: &mut Coverage) {
    let report = client.report();
    coverage.ebd_repeated += report.repeated;
    coverage.ebd_late += report.late;
}
