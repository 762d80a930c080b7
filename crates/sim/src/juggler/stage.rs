//! Jugglers in their world.

use thinwire_link::rng::Rng;
use thinwire_link::sim::StationConfig;

use super::{Around, Juggler};
use crate::client::Workload;
use crate::model::Violation;
use crate::world::World;

impl World {
    /// A machine for a juggler with these exports of one server, some for reading only;
    /// [`World::start_juggler`] starts it.
    pub fn add_juggler(
        &mut self,
        links: usize,
        station: StationConfig,
        exports: &[(usize, bool)],
        workload: Workload,
    ) -> usize {
        let stations = self.stations(links, station);
        let index = self.jugglers.len();
        let at = self.exports[exports[0].0].server;
        let server = &self.servers[at];
        let place = (at, server.config.node.as_str(), server.stations());
        let rng = Rng::new(self.rng.bits());
        self.jugglers.push(Juggler::new(index, stations, place, exports, workload, rng));
        for &(export, read_only) in exports {
            self.exports[export].writers += usize::from(!read_only);
        }
        index
    }

    /// Starts a run of a juggler.
    pub fn start_juggler(&mut self, juggler: usize) {
        let j = &mut self.jugglers[juggler];
        if !j.is_running() {
            self.trace.note(self.now, &j.name, "starts", 0);
            j.start(self.now, self.rng.bits(), &self.net, &self.clock);
        }
    }

    /// Ends a juggler's process at once.
    pub fn crash_juggler(&mut self, juggler: usize) {
        let j = &mut self.jugglers[juggler];
        if j.is_running() {
            self.coverage.client_crashes += 1;
            self.trace.note(self.now, &j.name, "crashes", 0);
            j.crash(&mut self.exports);
        }
    }

    /// All jugglers that have something to do do it.
    pub(crate) fn turn_jugglers(&mut self) -> Result<(), Violation> {
        for (index, juggler) in self.jugglers.iter_mut().enumerate() {
            let is_running = juggler.is_running();
            let machine = &mut juggler.hand.machine;
            if !is_running || !machine.wakes(self.now, &self.net, false, &mut self.rng, self.lag_ns)
            {
                continue;
            }
            let (now, trace, name) = (self.now, &mut self.trace, juggler.name.clone());
            let mut around = Around {
                now,
                exports: &mut self.exports,
                coverage: &mut self.coverage,
                runs: &mut self.runs,
                note: &mut |what: &str, value: u64| trace.note(now, &name, what, value),
            };
            if juggler.turn(&mut around)? {
                (around.note)("ends", 0);
                self.put_down.push(index);
            }
        }
        Ok(())
    }
}
