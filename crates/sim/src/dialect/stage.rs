//! Users of other protocols in their world.

use thinwire_aoe::{AoeCanary, AoeClientConfig};
use thinwire_buffer::Addr;
use thinwire_ebd::{ClientConfig, EbdCanary};
use thinwire_link::rng::Rng;
use thinwire_link::sim::StationConfig;
use thinwire_wire::ebd::EbdForm;

use super::{
    AOE, AoeLane, AoeSettings, DialectEnd, DialectSettings, DialectUser, EBD, EbdLane, MAJOR,
};
use crate::client::Workload;
use crate::export::Store;
use crate::model::Violation;
use crate::world::World;

impl World {
    /// Which exports of a server may be offered in other protocols: on a disk of its own, in blocks of 512 bytes. None of one that has
    /// some on all of its shards.
    pub fn offerable(&self, server: usize) -> Vec<usize> {
        if self.servers[server].spreading.is_some() {
            return Vec::new();
        }
        let mine = (0..self.exports.len()).filter(|&at| self.exports[at].server == server);
        let is_fit = |&at: &usize| {
            let e = &self.exports[at];
            let is_kept = matches!(e.store, Store::File(_) | Store::Writeback(..));
            is_kept && e.block_bytes == 512 && !e.is_spread && !e.is_leaf
        };
        mine.filter(is_fit).collect()
    }

    /// Offers these exports of a server in EBD, from its next start on. It has one shard, as targets with offers have.
    pub fn offer_ebd(
        &mut self,
        server: usize,
        form: EbdForm,
        exports: &[usize],
        station: StationConfig,
    ) {
        self.servers[server].set_shards(1);
        let station = StationConfig { protocol: EBD, ..station };
        let station = self.net.station(station).number();
        let exports = exports.iter().map(|&at| self.exports[at].name.clone()).collect();
        self.servers[server].ebd =
            Some(EbdLane { station, form, exports, canary: EbdCanary::None });
    }

    /// A machine for a user of an export that its server offers in EBD; [`World::start_dialect`] starts it.
    pub fn add_ebd_user(
        &mut self,
        export: usize,
        station: StationConfig,
        block_bytes: u32,
        workload: Workload,
    ) -> usize {
        let server = self.exports[export].server;
        let lane = self.servers[server].ebd.as_ref().expect("it offers something");
        let name = &self.exports[export].name;
        let minor = lane.exports.iter().position(|other| other == name).expect("it is offered");
        let index = self.dialect_users.len();
        let name = format!("ebd{index}");
        let config = ClientConfig {
            form: lane.form,
            server: Addr::Sim(lane.station),
            major: MAJOR,
            minor: minor as u8,
            client: index as u8,
            block_bytes,
            read_only: false,
            take_over: false,
            waits: false,
            fail_after: None,
            retained_bytes_max: 4 << 20,
            label: name.clone(),
            seed: 0,
            canary: EbdCanary::None,
        };
        self.add_user(export, name, DialectSettings::Ebd(config), station, workload)
    }

    fn add_user(
        &mut self,
        export: usize,
        name: String,
        settings: DialectSettings,
        station: StationConfig,
        workload: Workload,
    ) -> usize {
        let index = self.dialect_users.len();
        let protocol = match settings {
            DialectSettings::Ebd(_) => EBD,
            DialectSettings::Aoe(_) => AOE,
        };
        let station = self.net.station(StationConfig { protocol, ..station }).number();
        let rng = Rng::new(self.rng.bits());
        let place = (self.exports[export].server, export);
        let user = DialectUser::new((name, station), place, settings, workload, rng);
        self.dialect_users.push(user);
        index
    }

    /// Offers these exports of a server in AoE, those that are said to be so as such that may keep in a cache what was
    /// answered, from its next start on. It has one shard.
    pub fn offer_aoe(&mut self, server: usize, exports: &[(usize, bool)], station: StationConfig) {
        self.servers[server].set_shards(1);
        let station = self.net.station(StationConfig { protocol: AOE, ..station }).number();
        for &(at, _) in exports {
            self.exports[at].keeps_content = true;
        }
        let name = |&(at, cached): &(usize, bool)| (self.exports[at].name.clone(), cached);
        let (exports, shelf) = (exports.iter().map(name).collect(), server as u16);
        self.servers[server].aoe = Some(AoeLane::new(station, shelf, exports));
    }

    /// A machine for a user of an export that its server offers in AoE; `flushes` if it asks for flushes.
    pub fn add_aoe_user(
        &mut self,
        export: usize,
        flushes: bool,
        station: StationConfig,
        workload: Workload,
    ) -> usize {
        let lane = self.servers[self.exports[export].server].aoe.as_ref();
        let lane = lane.expect("it offers something");
        let is_it = |(name, _): &(String, bool)| *name == self.exports[export].name;
        let slot = lane.exports.iter().position(is_it).expect("it is offered");
        let name = format!("aoe{}", self.dialect_users.len());
        let config = AoeClientConfig {
            device: lane.device(slot),
            server: None,
            read_only: false,
            flushes,
            fail_after: None,
            seed: 0,
            label: name.clone(),
            canary: AoeCanary::None,
        };
        let settings =
            DialectSettings::Aoe(AoeSettings { config, is_durable: !lane.exports[slot].1 });
        self.add_user(export, name, settings, station, workload)
    }

    /// Whom servers have put on record since the last look.
    pub(crate) fn look_at_grants(&mut self) {
        for user in &mut self.dialect_users {
            // One that is slow keeps its server from others, too, that stand in line behind it.
            let of_server = self.exports.iter().filter(|export| export.server == user.server);
            let slow = of_server.filter_map(|export| Some(export.record_medium()?.slow()));
            let slow = slow.max_by_key(|slow| slow.1).unwrap_or_default();
            let export = &mut self.exports[user.export];
            user.look_at_grant((self.now, slow), export, &mut self.coverage);
        }
    }

    /// Starts a run of a user.
    pub fn start_dialect(&mut self, user: usize) {
        let u = &mut self.dialect_users[user];
        if !u.is_running() {
            self.runs += 1;
            self.trace.note(self.now, &u.name, "starts run", u64::from(self.runs));
            u.start(self.now, self.runs, self.rng.bits(), &self.net, &self.clock);
        }
    }

    /// Ends a user's process at once.
    pub fn crash_dialect(&mut self, user: usize) {
        let u = &mut self.dialect_users[user];
        if u.is_running() {
            self.coverage.client_crashes += 1;
            self.trace.note(self.now, &u.name, "crashes", 0);
            u.crash(self.now, &mut self.exports, &mut self.coverage);
        }
    }

    /// All users that have something to do do it.
    pub(crate) fn turn_dialect_users(&mut self) -> Result<(), Violation> {
        for (index, user) in self.dialect_users.iter_mut().enumerate() {
            let is_running = user.is_running();
            let machine = &mut user.machine;
            if !is_running || !machine.wakes(self.now, &self.net, false, &mut self.rng, self.lag_ns)
            {
                continue;
            }
            let (now, trace, name) = (self.now, &mut self.trace, user.name.clone());
            let mut note = |what: &str, value: u64| trace.note(now, &name, what, value);
            let export = &mut self.exports[user.export];
            let end = user.turn(now, export, &mut self.coverage, &mut note)?;
            if let Some(end) = end {
                note(&format!("ends: {end:?}"), 0);
                match end {
                    DialectEnd::Refused(_) => self.coverage.ebd_refused += 1,
                    DialectEnd::Failed(_) => {
                        let is_ebd = matches!(user.settings, DialectSettings::Ebd(_));
                        self.coverage.ebd_failed += u64::from(is_ebd);
                    }
                    DialectEnd::Closed => {}
                }
                self.dialect_ended.push(index);
            }
        }
        Ok(())
    }
}
