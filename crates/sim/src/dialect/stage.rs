//! Users of EBD in their world.

use thinwire_buffer::Addr;
use thinwire_ebd::{ClientConfig, EbdCanary};
use thinwire_link::rng::Rng;
use thinwire_link::sim::StationConfig;
use thinwire_wire::ebd::EbdForm;

use super::{EbdEnd, EbdLane, EbdUser, MAJOR, PROTOCOL};
use crate::client::Workload;
use crate::export::Store;
use crate::model::Violation;
use crate::world::World;

impl World {
    /// Which exports of a server may be offered in EBD: on a disk of its own, in blocks of 512 bytes. None of one that has
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
        let station = StationConfig { protocol: PROTOCOL, ..station };
        let station = self.net.station(station).number();
        let exports = exports.iter().map(|&at| self.exports[at].name.clone()).collect();
        self.servers[server].ebd =
            Some(EbdLane { station, form, exports, canary: EbdCanary::None });
    }

    /// A machine for a user of an export that its server offers; [`World::start_ebd`] starts it.
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
        let index = self.ebd_users.len();
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
        let station = self.net.station(StationConfig { protocol: PROTOCOL, ..station }).number();
        let rng = Rng::new(self.rng.bits());
        let place = (server, export);
        self.ebd_users.push(EbdUser::new((name, station), place, config, workload, rng));
        index
    }

    /// Starts a run of a user.
    pub fn start_ebd(&mut self, user: usize) {
        let u = &mut self.ebd_users[user];
        if !u.is_running() {
            self.runs += 1;
            self.trace.note(self.now, &u.name, "starts run", u64::from(self.runs));
            u.start(self.now, self.runs, self.rng.bits(), &self.net, &self.clock);
        }
    }

    /// Ends a user's process at once.
    pub fn crash_ebd(&mut self, user: usize) {
        let u = &mut self.ebd_users[user];
        if u.is_running() {
            self.coverage.client_crashes += 1;
            self.trace.note(self.now, &u.name, "crashes", 0);
            u.crash(&mut self.exports, &mut self.coverage);
        }
    }

    /// All users that have something to do do it.
    pub(crate) fn turn_ebd_users(&mut self) -> Result<(), Violation> {
        for (index, user) in self.ebd_users.iter_mut().enumerate() {
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
                    EbdEnd::Refused(_) => self.coverage.ebd_refused += 1,
                    EbdEnd::Failed(_) => self.coverage.ebd_failed += 1,
                    EbdEnd::Closed => {}
                }
                self.ebd_ended.push(index);
            }
        }
        Ok(())
    }
}
