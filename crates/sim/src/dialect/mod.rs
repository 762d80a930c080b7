//! Users of other protocols beside those of Thinwire's own: lanes of a server on which its exports are offered so, and
//! the shipped clients with a workload, every answer of which is checked against the model of its export.
//!
//! Here is a user's life. `client.rs` is what it runs; `ebd.rs` and `aoe.rs` what is one protocol's alone. What it submits, and how
//! that is judged, is in `io.rs`; what happens to it in `events.rs`, reservations apart in `reserving.rs`; `stage.rs` is
//! its part of the world.

mod aoe;
mod client;
mod ebd;
mod events;
mod io;
mod reserving;
mod stage;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_buffer::{Addr, Pool, TxBatch};
use thinwire_ebd::writer_identity;
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::SimNet;
use thinwire_proto::Time;
use thinwire_volume::{Closing, Completion, ErrorKind};
use thinwire_wire::ebd::{EbdForm, NakReason};

pub use self::aoe::AoeLane;
use self::aoe::Late;
use self::client::Client;
pub use self::client::{AoeSettings, DialectSettings};
pub use self::ebd::EbdLane;
pub use self::events::DialectEvent;
use self::io::Pending;
pub use self::reserving::For;
use crate::client::Workload;
use crate::coverage::Coverage;
use crate::export::Export;
use crate::machine::Machine;
use crate::model::Violation;

/// The protocols of its stations on the simulated wire.
pub const EBD: u8 = 1;
/// And those of AoE.
pub const AOE: u8 = 2;
/// The first half of all devices of EBD.
const MAJOR: u8 = 3;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectEnd {
    /// It was not let in.
    Refused(Option<NakReason>),
    /// It failed for good.
    Failed(ErrorKind),
    /// It was closed.
    Closed,
}

/// A machine with a client of another protocol.
pub struct DialectUser {
    /// What it is called in traces.
    pub name: String,
    /// Its link.
    pub machine: Machine,
    /// Which server it talks to.
    pub server: usize,
    /// Which export it uses.
    pub export: usize,
    /// Settings for its next start.
    pub settings: DialectSettings,
    /// It will not write.
    pub read_only: bool,
    /// It takes over when it starts next.
    pub take_over: bool,
    /// Faults of its link, if it is wrapped.
    pub faults: Option<FaultConfig>,
    /// What it does. Discards, zeroes and statuses are not among it.
    pub workload: Workload,
    client: Option<Client>,
    /// Number of its present run, unique in the world.
    run: u32,
    /// All that it has had: to a server of AoE they are one writer.
    runs: Vec<u32>,
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
    /// When something was answered last, or the oldest of what is not was asked.
    answered_at: u64,
    /// It flushes when nothing else is outstanding.
    owes_flush: bool,
    handshakes: u64,
    /// What was asked for lately, by runs of AoE.
    late: Vec<Late>,
    /// Moments at which its store may have lost something, as far as it has looked.
    upheavals: u64,
    done: Vec<Completion>,
    rng: Rng,
    pool: Pool,
}

impl DialectUser {
    /// A machine on which nothing runs yet.
    pub fn new(
        (name, station): (String, u32),
        (server, export): (usize, usize),
        settings: DialectSettings,
        workload: Workload,
        rng: Rng,
    ) -> Self {
        DialectUser {
            name,
            machine: Machine::new(vec![station]),
            server,
            export,
            settings,
            read_only: false,
            take_over: false,
            faults: None,
            workload,
            client: None,
            run: 0,
            runs: Vec::new(),
            is_open: false,
            is_closing: false,
            was_aborted: false,
            content: 0,
            generation: 0,
            pending: BTreeMap::new(),
            next_token: 1,
            submitted: 0,
            pause_until: 0,
            answered_at: 0,
            owes_flush: false,
            handshakes: 0,
            late: Vec::new(),
            upheavals: 0,
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
        let DialectSettings::Ebd(config) = &self.settings else {
            return self.aoe_writer().expect("it speaks either");
        };
        let device = match config.form {
            EbdForm::Ideal => (config.major, config.minor),
            EbdForm::Implemented => (config.client, 0),
        };
        writer_identity(config.form, Addr::Sim(self.machine.stations[0]), device)
    }

    /// Starts a run of it.
    pub fn start(&mut self, now: u64, run: u32, seed: u64, net: &SimNet, clock: &Rc<Cell<u64>>) {
        assert!(self.client.is_none() && self.pending.is_empty());
        self.machine.foreign = vec![self.machine.stations[0]];
        let infos = self.machine.open_links(net, self.faults.as_ref(), clock);
        let how = (self.read_only, self.take_over);
        self.client = Some(Client::new(Time(now), &self.settings, how, seed, infos[0]));
        self.runs.push(run);
        (self.run, self.is_open, self.is_closing) = (run, false, false);
        (self.was_aborted, self.handshakes, self.answered_at) = (false, 0, now);
        self.machine.frozen_until = 0;
    }

    /// The process is gone at once.
    pub fn crash(&mut self, now: u64, exports: &mut [Export], coverage: &mut Coverage) {
        if let Some(client) = self.client.take() {
            harvest(&client, coverage);
        }
        self.drop_pending(now);
        self.machine.deadline = u64::MAX;
        if std::mem::take(&mut self.is_open) && !self.read_only {
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
        self.is_open && self.client.as_ref().is_some_and(Client::is_served)
    }

    /// It writes this export, the one at this place, and may.
    pub fn serves(&self, at: usize, export: &Export) -> bool {
        let is_refused = self.waits_for_turn();
        let may = self.export == at && !self.read_only && self.is_attached() && !is_refused;
        // Of AoE: it is on record, or nothing speaks against it.
        let record = export.record_medium().and_then(|medium| medium.on_record());
        let is_free = || record.is_none_or(|record| record.holder == [0; 16]);
        may && (self.aoe_writer().is_none() || self.is_on_record(export).is_some() || is_free())
    }

    /// I/Os that are not answered.
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// It will not submit anything by itself any more.
    pub fn is_finished(&self) -> bool {
        self.submitted >= self.workload.budget && !self.owes_flush
    }

    /// When something of it was answered last, or it began to wait.
    pub fn answered_at(&self) -> u64 {
        self.answered_at
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
            // Of a device that is reserved it is not even told how large it is.
            _ if self.waits_for_turn() && served(self.export) => true,
            true => self.is_attached() && self.is_finished() && self.outstanding() == 0,
            // AoE refuses nobody.
            false => self.aoe_writer().is_none() && !self.read_only && served(self.export),
        }
    }

    /// One turn of its loop. How the run ended, if it did.
    pub fn turn(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        note: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<DialectEnd>, Violation> {
        let Some(client) = &mut self.client else { return Ok(None) };
        let time = Time(now);
        self.machine.receive(&self.pool, |_, frame| client.on_frame(time, frame));
        client.settle(time);
        self.look(now, export, coverage, note)?;
        while self.wants_more(now) {
            self.submit_random(now, export, coverage, note);
        }
        let (mut out, mut effects) = ([TxBatch::new()], Vec::new());
        let client = self.client.as_mut().expect("it runs");
        let mut closing = Closing { now: time, out: &mut out, effects: &mut effects };
        self.machine.deadline = client.end_turn(&mut closing);
        let batch = &mut self.machine.batches()[0];
        batch.append(&mut out[0]);
        let sent = self.machine.send_own();
        note("sent", sent);
        self.look(now, export, coverage, note)?;
        if self.wants_more(now.max(self.pause_until)) {
            self.machine.deadline = self.machine.deadline.min(self.pause_until);
        }
        let end = self.ended(now, export)?;
        if let Some(end) = end {
            self.end(now, end, export, coverage)?;
        }
        Ok(end)
    }

    /// Sees what has changed, and checks the completions.
    fn look(
        &mut self,
        now: u64,
        export: &mut Export,
        coverage: &mut Coverage,
        note: &mut dyn FnMut(&str, u64),
    ) -> Result<(), Violation> {
        self.client.as_mut().expect("it runs").drop_notes();
        self.look_at_handshakes(export, coverage, note)?;
        self.look_at_drive(export, coverage, note)?;
        self.look_at_losses(export);
        let client = self.client.as_mut().expect("it runs");
        let mut done = std::mem::take(&mut self.done);
        client.poll(&mut done);
        self.machine.dirty |= !done.is_empty();
        for completion in done.drain(..) {
            self.answered_at = now;
            note("completed", completion.token << 1 | u64::from(completion.result.is_err()));
            self.check(now, completion, export, coverage)?;
        }
        self.done = done;
        Ok(())
    }

    fn ended(&self, now: u64, export: &Export) -> Result<Option<DialectEnd>, Violation> {
        let client = self.client.as_ref().expect("it runs");
        if let Some(kind) = client.failure() {
            if !self.pending.is_empty() {
                return Ok(None);
            }
            if !self.is_open {
                let refusal = match client {
                    Client::Ebd(client) => client.refusal(),
                    Client::Aoe(_) => None,
                };
                return match refusal {
                    Some(why) if self.refusal_is_due(why, now, export) => {
                        Ok(Some(DialectEnd::Refused(Some(why))))
                    }
                    why => {
                        Err(self.violation(format!("it was refused: {why:?}, {}", kind.describe())))
                    }
                };
            }
            if !self.error_is_due(kind, Some(self.generation), export) {
                return Err(self.violation(format!("it failed: {}", kind.describe())));
            }
            return Ok(Some(DialectEnd::Failed(kind)));
        }
        Ok(client.is_closed().then_some(DialectEnd::Closed))
    }

    /// What is outstanding ends with its run; a frame of it may be on its way.
    fn drop_pending(&mut self, now: u64) {
        for pending in std::mem::take(&mut self.pending).into_values() {
            if let Some((range, stamp)) = pending.write() {
                self.add_late(now, range, stamp);
            }
        }
    }

    fn end(
        &mut self,
        now: u64,
        end: DialectEnd,
        export: &mut Export,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let client = self.client.take().expect("it ran");
        harvest(&client, coverage);
        self.machine.deadline = u64::MAX;
        self.drop_pending(now);
        if !std::mem::take(&mut self.is_open) || self.read_only {
            return Ok(());
        }
        let is_orderly = end == DialectEnd::Closed && !self.was_aborted;
        // AoE has no frame for that.
        let is_durable = match &client {
            Client::Ebd(client) => is_orderly && client.report().retained_bytes == 0,
            Client::Aoe(_) => false,
        };
        coverage.aoe_ended += u64::from(is_orderly && matches!(client, Client::Aoe(_)));
        if is_durable {
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
        let report = self.client.as_ref().map(Client::describe);
        format!("{} (run {}): {report:?}, {} outstanding", self.name, self.run, self.pending.len())
    }
}

/// Adds the figures of a client that ends.
fn harvest(client: &Client, coverage: &mut Coverage) {
    match client {
        Client::Ebd(client) => {
            let report = client.report();
            coverage.ebd_repeated += report.repeated;
            coverage.ebd_late += report.late;
        }
        Client::Aoe(client) => {
            let report = client.report();
            coverage.aoe_repeated += report.repeated;
            coverage.aoe_late += report.late;
            coverage.aoe_refused += report.refused;
        }
    }
}
