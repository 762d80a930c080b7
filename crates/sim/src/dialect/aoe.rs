//! What is AoE's alone of the life of a user. Nobody is let in or not: a user becomes the writer on record with its first
//! write, and stays it. So what it may see of its writes begins when its server has that on record, whether a run of it
//! lives or not: a frame of one that is dead may be what it takes.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_aoe::{AoeCanary, AoeOffer, AoePort, AoeServer, AoeServerConfig, station_writer};
use thinwire_buffer::{Addr, LinkInfo};
use thinwire_volume::{Volume, WriterRecord};
use thinwire_wire::aoe::{ErrorCode, ShelfSlot};

use super::client::{Client, DialectSettings};
use super::reserving::{BookKeeper, KeptBook, writers_of};
use super::{AoeSettings, DialectUser};
use crate::coverage::Coverage;
use crate::export::{Export, Store};
use crate::model::{Range, Violation};
use crate::world::SECOND;

/// How long what a user has sent may be on its way, or in front of its server, which may wait for its store.
const LATE_NS: u64 = 4 * SECOND;

/// What a server offers in AoE: on a station of its own, which only those hear who speak it.
pub struct AoeLane {
    /// Its number on the wire.
    pub station: u32,
    /// The shelf of its devices.
    pub shelf: u16,
    /// Names of exports, and whether what is answered of them may be in a cache; a device's slot is its place here.
    pub exports: Vec<(String, bool)>,
    /// A fault in its server.
    pub canary: AoeCanary,
    /// What clients have set of its devices.
    kept: Rc<RefCell<KeptBook>>,
}

impl AoeLane {
    /// Of these exports, nothing of which anybody has set.
    pub fn new(station: u32, shelf: u16, exports: Vec<(String, bool)>) -> Self {
        let (canary, kept) = (AoeCanary::None, Rc::default());
        AoeLane { station, shelf, exports, canary, kept }
    }

    /// The number of one of its devices.
    pub fn device(&self, slot: usize) -> ShelfSlot {
        ShelfSlot { shelf: self.shelf, slot: slot as u8 }
    }

    /// The server of a process that starts now, on its one link.
    pub fn open(&self, info: LinkInfo, seed: u64) -> AoePort {
        let mut book = self.kept.borrow_mut();
        let mut offer = |(slot, (export, cached)): (usize, &(String, bool))| AoeOffer {
            device: self.device(slot),
            export: export.clone(),
            stations: Vec::new(),
            cached: *cached,
            kept: book.found(self.device(slot), seed),
        };
        let offers: Vec<AoeOffer> = self.exports.iter().enumerate().map(&mut offer).collect();
        let devices: Vec<ShelfSlot> = offers.iter().map(|offer| offer.device).collect();
        let server = AoeServer::new(AoeServerConfig { offers, seed, canary: self.canary });
        let server = server.kept_by(Box::new(BookKeeper(self.kept.clone())));
        AoePort::new(&Rc::new(RefCell::new(server)), info, &devices)
    }
}

/// A write that a user has asked for: what is in its bytes, and when it can be forgotten.
pub(super) struct Late {
    run: u32,
    range: Range,
    stamp: u64,
    until: u64,
}

impl DialectUser {
    fn aoe(&self) -> Option<&AoeSettings> {
        match &self.settings {
            DialectSettings::Aoe(aoe) => Some(aoe),
            DialectSettings::Ebd(_) => None,
        }
    }

    /// Its device, if it speaks AoE.
    pub(super) fn device(&self) -> Option<ShelfSlot> {
        Some(self.aoe()?.config.device)
    }

    /// Who it is on record while it writes for itself, if it speaks AoE.
    pub(super) fn aoe_writer(&self) -> Option<[u8; 16]> {
        Some(station_writer(self.device()?, Addr::Sim(self.machine.stations[0])))
    }

    /// All that it may be on record as, if it speaks AoE.
    pub(super) fn writers(&self) -> Vec<[u8; 16]> {
        let writers = |device| writers_of(device, self.machine.stations[0]);
        self.device().map(writers).unwrap_or_default()
    }

    /// It is on record as the writer, if it speaks AoE.
    pub(super) fn is_on_record(&self, export: &Export) -> Option<WriterRecord> {
        let all = self.writers();
        export.record_medium()?.on_record().filter(|record| all.contains(&record.holder))
    }

    /// Sees whether its drive has said what it is.
    pub(super) fn look_at_drive(
        &mut self,
        export: &mut Export,
        coverage: &mut Coverage,
        note: &mut dyn FnMut(&str, u64),
    ) -> Result<(), Violation> {
        let Some(Client::Aoe(client)) = &self.client else { return Ok(()) };
        if self.is_open || !client.is_open() || client.failure().is_some() {
            return Ok(());
        }
        let bytes = client.geometry().bytes;
        note("is open", u64::from(self.run));
        coverage.aoe_attached += 1;
        self.is_open = true;
        export.check_size(self.content, bytes)?;
        self.upheavals = export.life().upheavals;
        // What runs before it have sent, and is there, may go on: no other's does.
        if let Some(record) = self.is_on_record(export).filter(|_| !self.read_only) {
            self.generation = record.generation;
            let is_writer = export.models[self.content].run_follows(self.run, record.generation);
            if let (true, Store::File(medium)) = (is_writer, &export.store) {
                medium.fence_all_but(&self.runs, false);
            }
        }
        Ok(())
    }

    /// Its server, of whose stores one was slow lately from one moment to another, may have it on record since.
    pub(crate) fn look_at_grant(
        &mut self,
        (now, slow): (u64, (u64, u64)),
        export: &mut Export,
        coverage: &mut Coverage,
    ) {
        let Some(record) = self.is_on_record(export) else { return };
        if record.generation <= self.generation {
            return;
        }
        let former = std::mem::replace(&mut self.generation, record.generation);
        self.pending.values_mut().for_each(|pending| pending.granted(record.generation));
        if export.was_taken_over_by_others(self.content, former, &self.writers()) {
            // Of runs before another's only what is on its way can still come.
            self.forget_late(now, slow);
            let is_late = |run| self.late.iter().any(|late| late.run == run);
            let lives = |run: &u32| *run == self.run || is_late(*run);
            self.runs.retain(lives);
        }
        coverage.aoe_granted += 1;
        self.forget_late(now, slow);
        self.late.sort_by_key(|late| late.stamp);
        let model = &mut export.models[self.content];
        let is_new = model.run() != self.run;
        let late = self.late.iter().map(|late| (late.run, late.range, late.stamp));
        let asked = self.pending.values().filter_map(|pending| pending.write());
        model.run_adopts(self.run, record.generation, late, asked);
        // What a cache above it writes back may be others'.
        if let (true, Store::File(medium)) = (is_new, &export.store) {
            medium.fence_all_but(&self.runs, false);
        }
    }

    /// Something may have been lost since the last look, of which it is not told.
    pub(super) fn look_at_losses(&mut self, export: &mut Export) {
        let upheavals = export.life().upheavals;
        let is_cached = self.aoe().is_some_and(|aoe| !aoe.is_durable);
        if is_cached && std::mem::replace(&mut self.upheavals, upheavals) != upheavals {
            export.models[self.content].forget_unflushed(self.run);
        }
    }

    /// A write that it has asked for is over, or its run is: a frame of it may be on its way for a while.
    pub(super) fn add_late(&mut self, now: u64, range: Range, stamp: u64) {
        if self.aoe().is_some() {
            self.late.push(Late { run: self.run, range, stamp, until: now + LATE_NS });
        }
    }

    /// What cannot be on its way any more, nor in front of its server.
    fn forget_late(&mut self, now: u64, (since, until): (u64, u64)) {
        self.late.retain(|late| {
            // It may have been in front of its server when a store became slow.
            let stood = if late.until >= since { until + LATE_NS } else { 0 };
            late.until.max(stood) > now
        });
    }

    /// A write was answered: none of before of that place may come any more.
    pub(super) fn is_over(&mut self, range: Range, stamp: u64) {
        self.late.retain(|late| late.stamp >= stamp || !late.range.overlaps(range));
    }

    /// Its server says that another has the export, so that what it wants to write waits.
    pub(super) fn waits_for_turn(&self) -> bool {
        match &self.client {
            Some(Client::Aoe(client)) => client.refusal() == Some(ErrorCode::Reserved),
            _ => false,
        }
    }
}
