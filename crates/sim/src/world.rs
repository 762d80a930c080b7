//! All machines, the wire between them, and time.
//!
//! Order of calls: build with [`World::new`], [`World::add_server`], [`World::add_export`],
//! [`World::add_client`]; start processes; then [`World::step`] or [`World::run_until`] as long as
//! wanted. Whatever a client is told is checked as it is told; the first broken promise is the
//! error of the step.
//!
//! * `time.rs`: how time goes on, and everybody with it
//! * `figures.rs`: what a world says of itself

mod figures;
mod time;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::{SimNet, StationConfig, Verdict, WireConfig};
use thinwire_target::{Target, TargetConfig};
use thinwire_volume::Op;

use crate::client::{Client, End, Workload};
use crate::composed::Composed;
use crate::coverage::Coverage;
use crate::dialect::DialectUser;
use crate::export::{Export, RECORD_BYTES, Store};
use crate::forger::{Forger, ForgerStats};
use crate::juggler::Juggler;
use crate::keys::WorldKeys;
use crate::machine::Machine;
use crate::medium::{MediumConfig, MediumHandle};
use crate::model::Range;
use crate::sealed::SealWatch;
use crate::server::{Crash, Server};
use crate::trace::Trace;
use crate::tree::{Branch, TreeLeaf, TreeStore};
use crate::ways::Ways;

/// One millisecond in the unit of the world's time.
pub const MS: u64 = 1_000_000;
/// One second.
pub const SECOND: u64 = 1_000 * MS;

/// No server: a tree of a client's own.
pub const NOBODY: usize = usize::MAX;

/// A machine of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimHost {
    /// A server, by its index.
    Server(usize),
    /// A client, by its index.
    Client(usize),
    /// A juggler, by its index.
    Juggler(usize),
    /// A user of another protocol, by its index.
    Dialect(usize),
    /// A host that composes a volume, by its index.
    Composer(usize),
}

/// A whole system under one virtual time: wire, machines, exports, and what is checked of them.
pub struct World {
    /// Now, in ns.
    pub now: u64,
    /// The wire.
    pub net: SimNet,
    /// Machines with targets.
    pub servers: Vec<Server>,
    /// What they export.
    pub exports: Vec<Export>,
    /// Machines with initiators.
    pub clients: Vec<Client>,
    /// Machines with clients of other protocols.
    pub dialect_users: Vec<DialectUser>,
    /// Machines with initiators that have several exports in one session.
    pub jugglers: Vec<Juggler>,
    /// What has been exercised.
    pub coverage: Coverage,
    /// What has happened so far, in order.
    pub trace: Trace,
    /// Longest delay between something being due and its process running, in ns.
    pub lag_ns: u64,
    /// Runs of clients that ended since the last look, with how.
    pub ended: Vec<(usize, End)>,
    /// Runs of users of other protocols that ended since the last look.
    pub dialect_ended: Vec<usize>,
    /// Jugglers that ended in order since the last look.
    pub put_down: Vec<usize>,
    /// Servers that died by themselves since the last look.
    pub died: Vec<usize>,
    /// A volume that is composed of disks, and who may have it, in a world that is about that.
    pub composed: Option<Composed>,
    /// Its keys, if it has some.
    pub keys: Option<WorldKeys>,
    /// What is sealed with them.
    pub seals: Option<Rc<RefCell<SealWatch>>>,
    /// When keys and signs of life are looked at next.
    keys_at: u64,
    pub(crate) clock: Rc<Cell<u64>>,
    pub(crate) rng: Rng,
    ways: Ways,
    /// The last number that was given to a run.
    pub(crate) runs: u32,
    /// Servers that wait for the lock, and since when their start is wanted.
    starting: Vec<(usize, u64)>,
}

impl World {
    /// An empty world at time 0. `prints` writes what happens to stderr.
    pub fn new(seed: u64, wire: WireConfig, prints: bool) -> Self {
        let mut rng = Rng::new(seed);
        let net = SimNet::new(rng.bits(), wire);
        let clock = Rc::new(Cell::new(0));
        let ways = Ways::of(&net, clock.clone());
        World {
            now: 0,
            net,
            servers: Vec::new(),
            exports: Vec::new(),
            clients: Vec::new(),
            dialect_users: Vec::new(),
            jugglers: Vec::new(),
            coverage: Coverage::default(),
            trace: Trace::new(prints),
            lag_ns: 0,
            ended: Vec::new(),
            dialect_ended: Vec::new(),
            put_down: Vec::new(),
            died: Vec::new(),
            composed: None,
            keys: None,
            seals: None,
            keys_at: 0,
            clock,
            rng,
            ways,
            runs: 0,
            starting: Vec::new(),
        }
    }

    pub(crate) fn stations(&self, links: usize, station: StationConfig) -> Vec<u32> {
        (0..links).map(|_| self.net.station(station).number()).collect()
    }

    /// A machine for a target; [`World::start_server`] starts it.
    pub fn add_server(
        &mut self,
        links: usize,
        station: StationConfig,
        config: TargetConfig,
        faults: Option<FaultConfig>,
    ) -> usize {
        let stations = self.stations(links, station);
        self.servers.push(Server::new(stations, config, faults));
        self.servers.len() - 1
    }

    /// An export of a server that has not been started yet.
    pub fn add_export(
        &mut self,
        server: usize,
        bytes: u64,
        block_bytes: u32,
        store: Store,
    ) -> usize {
        let index = self.exports.len();
        let export = Export::new(format!("disk{index}"), server, bytes, block_bytes, store);
        self.exports.push(export);
        index
    }

    /// An export of a server that is made of its disks and of exports of others; its record is kept on a
    /// disk of its own. Those exports are nobody else's from now on. With [`NOBODY`] as the server, a
    /// client stands on it itself.
    pub fn add_tree(&mut self, server: usize, shape: Branch, leaves: Vec<TreeLeaf>) -> usize {
        let mut block_bytes = 512;
        for leaf in &leaves {
            if let TreeLeaf::Remote { export, .. } = leaf {
                let leaf = &mut self.exports[*export];
                leaf.is_leaf = true;
                block_bytes = block_bytes.max(leaf.block_bytes);
            }
        }
        let config = MediumConfig { bytes: RECORD_BYTES, ..MediumConfig::default() };
        let identity = [0xc0 | self.exports.len() as u8; 16];
        let record = MediumHandle::new(self.exports.len() as u64, identity, config);
        let mut tree = TreeStore {
            shape,
            leaves,
            block_bytes,
            bytes_drawn: 0,
            record,
            holder: None,
            memory: Rc::default(),
            unasked: false,
            unflushed: None,
        };
        tree.bytes_drawn = tree.bytes();
        let (bytes, store) = (tree.bytes_drawn, Store::Tree(Box::new(tree)));
        self.add_export(server, bytes, block_bytes, store)
    }

    /// An export of another server, as a leaf of a tree.
    pub fn remote_leaf(&self, export: usize) -> TreeLeaf {
        let e = &self.exports[export];
        TreeLeaf::Remote {
            export,
            node: self.servers[e.server].config.node.clone(),
            name: e.name.clone(),
            medium: e.medium().expect("what is on a disk").clone(),
        }
    }

    /// A machine for an initiator of an export, with an identity of its own;
    /// [`World::start_client`] starts it. The server is found by its name.
    pub fn add_client(
        &mut self,
        links: usize,
        station: StationConfig,
        export: usize,
        workload: Workload,
    ) -> usize {
        let stations = self.stations(links, station);
        let index = self.clients.len();
        let e = &self.exports[export];
        let node = self.servers.get(e.server).map(|server| server.config.node.clone());
        let node = node.unwrap_or_default();
        let mut config = InitiatorConfig::new(TargetName::Node(node), e.name.clone());
        config.insecure = true;
        config.initiator = [index as u8 + 0x11; 16];
        config.name = format!("client{index}");
        let rng = Rng::new(self.rng.bits());
        let name = config.name.clone();
        self.clients.push(Client::new(name, stations, config, export, workload, rng));
        index
    }

    /// Starts a server's process as soon as the locks of its exports are free.
    pub fn start_server(&mut self, server: usize) {
        if !self.servers[server].runs() && self.starting.iter().all(|&(other, _)| other != server) {
            self.starting.push((server, self.now));
            self.start_servers();
        }
    }

    fn start_servers(&mut self) {
        let waiting = std::mem::take(&mut self.starting);
        for (index, since) in waiting {
            let server = &mut self.servers[index];
            if server.locked_until(index, &self.exports) > self.now {
                self.starting.push((index, since));
                continue;
            }
            self.coverage.lock_waits += u64::from(self.now > since);
            let seed = self.rng.bits();
            let coverage = &mut self.coverage;
            server.start(index, &mut self.exports, &self.net, &self.clock, seed, coverage);
            let mine = self.exports.iter_mut().filter(|e| e.server == index);
            mine.for_each(|export| export.is_there_again(self.now));
            self.trace.note(self.now, &format!("server{index}"), "starts", seed);
        }
    }

    /// Ends a server's process at once.
    pub fn crash_server(&mut self, server: usize, how: Crash) {
        self.starting.retain(|&(other, _)| other != server);
        if !self.servers[server].runs() {
            return;
        }
        match how {
            Crash::Kill => self.coverage.kills += 1,
            Crash::Power => self.coverage.power_failures += 1,
        }
        let mut mine = self.exports.iter().filter(|e| e.server == server);
        self.coverage.leaf_crashes += u64::from(mine.clone().any(|e| e.is_leaf));
        self.coverage.gateway_crashes += u64::from(mine.any(|e| e.tree().is_some()));
        self.trace.note(self.now, &format!("server{server}"), "crashes", how as u64);
        self.servers[server].crash(server, how, &mut self.exports, &mut self.coverage);
        self.exports.iter_mut().for_each(Export::follow_medium);
    }

    /// Ends a server's process in the middle of its next turn, after so many of its calls.
    pub fn kill_in_turn(&mut self, server: usize, steps: u32) {
        if self.servers[server].runs() {
            self.trace.note(self.now, &format!("server{server}"), "is to die in", u64::from(steps));
            self.servers[server].die_after(steps);
        }
    }

    /// Servers that a guest has taken a leaf from begin anew, once it has left: nothing else brings it
    /// back.
    pub fn mend_gateways(&mut self) {
        let is_guest = |c: &Client| c.is_guest && c.initiator.is_some();
        if self.clients.iter().any(is_guest) {
            return;
        }
        for server in 0..self.servers.len() {
            if self.servers[server].leaves().any(|leaf| leaf.initiator.failure().is_some()) {
                self.crash_server(server, Crash::Kill);
                self.start_server(server);
            }
        }
    }

    /// Begins the orderly end of a server's process, which takes at most so long.
    pub fn shut_down_server(&mut self, server: usize, within_ns: u64) {
        self.trace.note(self.now, &format!("server{server}"), "shuts down", 0);
        self.servers[server].shut_down(self.now + within_ns);
    }

    /// Starts a run of a client.
    pub fn start_client(&mut self, client: usize) {
        if self.clients[client].initiator.is_some() {
            return;
        }
        self.runs += 1;
        let seed = self.rng.bits();
        let c = &mut self.clients[client];
        self.coverage.take_overs += u64::from(c.config.take_over);
        self.trace.note(self.now, &c.name, "starts run", u64::from(self.runs));
        // One that no server serves is the client's own.
        let export = &self.exports[c.export];
        let tree = export.tree().filter(|_| export.server >= self.servers.len());
        c.start(self.now, self.runs, seed, tree, &self.net, &self.clock);
    }

    /// Ends a client's process at once.
    pub fn crash_client(&mut self, client: usize) {
        let c = &mut self.clients[client];
        if c.initiator.is_some() {
            self.coverage.client_crashes += 1;
            self.trace.note(self.now, &c.name, "crashes", u64::from(c.run));
            c.crash(&mut self.exports[c.export], &mut self.coverage);
        }
    }

    /// Stops a process for a while.
    pub fn freeze(&mut self, host: SimHost, until: u64) {
        let name = self.name(host);
        self.trace.note(self.now, &name, "is frozen", until);
        self.coverage.freezes += 1;
        match host {
            SimHost::Server(at) => self.servers[at].freeze(until),
            SimHost::Client(at) => self.clients[at].machine.frozen_until = until,
            SimHost::Juggler(at) => self.jugglers[at].hand.machine.frozen_until = until,
            SimHost::Dialect(at) => self.dialect_users[at].machine.frozen_until = until,
            SimHost::Composer(at) => {
                let hosts = self.composed.iter_mut().flat_map(|composed| &mut composed.hosts);
                hosts.skip(at).take(1).for_each(|host| host.machine.frozen_until = until);
            }
        }
    }

    fn name(&self, host: SimHost) -> String {
        match host {
            SimHost::Server(at) => format!("server{at}"),
            SimHost::Client(at) => self.clients[at].name.clone(),
            SimHost::Juggler(at) => self.jugglers[at].name.clone(),
            SimHost::Dialect(at) => self.dialect_users[at].name.clone(),
            SimHost::Composer(at) => format!("host{at}"),
        }
    }

    /// The stations of a machine.
    pub fn stations_of(&self, host: SimHost) -> Vec<u32> {
        match host {
            SimHost::Server(at) => self.servers[at].all_stations().collect(),
            SimHost::Client(at) => self.clients[at].machine.stations.clone(),
            SimHost::Juggler(at) => self.jugglers[at].hand.machine.stations.clone(),
            SimHost::Dialect(at) => self.dialect_users[at].machine.stations.clone(),
            SimHost::Composer(at) => {
                let mut hosts = self.composed.iter().flat_map(|composed| &composed.hosts);
                hosts.nth(at).map_or_else(Vec::new, |host| host.machine.stations.clone())
            }
        }
    }

    /// Closes or opens the way from one machine to another, in this direction.
    pub fn set_way(&mut self, from: SimHost, to: SimHost, is_open: bool) {
        self.ways.set_open(&self.stations_of(from), &self.stations_of(to), is_open);
        let what = if is_open { "is reached again" } else { "is cut off" };
        self.trace.note(self.now, &self.name(to), what, 0);
    }

    /// The attaches that an initiator sends from now on, for `within_ns`, arrive `late_ns` later: perhaps
    /// after another run of it was granted its export.
    pub fn delay_attaches(&mut self, host: SimHost, within_ns: u64, late_ns: u64) {
        let stations = self.stations_of(host);
        self.ways.delay_attaches(stations, self.now + within_ns, late_ns);
    }

    /// Probes and their answers that are sent within `within_ns` from now arrive once more, `late_ns` later.
    pub fn play_back_probes(&mut self, within_ns: u64, late_ns: u64) {
        self.ways.play_back_probes(self.now + within_ns, late_ns);
    }

    /// How long the last frame that was delayed or played back is still under way, at most.
    pub fn late_for(&self) -> u64 {
        self.ways.late_until().saturating_sub(self.now)
    }

    /// Somebody is on all ways from now on.
    pub fn set_forger(&mut self, forger: Forger) {
        self.ways.set_forger(forger);
    }

    /// Has it do something, if there is one, and return something of what it is.
    pub fn with_forger<R>(&self, act: impl FnOnce(&mut Forger) -> R) -> Option<R> {
        self.ways.with_forger(act)
    }

    /// What it has done so far.
    pub fn forger_stats(&self) -> ForgerStats {
        self.with_forger(|forger| forger.stats()).unwrap_or_default()
    }

    /// Opens all ways.
    pub fn open_all_ways(&mut self) {
        self.ways.open_all();
    }

    /// Lets a scripted test decide about single frames.
    pub fn set_judge(&mut self, judge: impl FnMut(u32, u32, &[u8]) -> Verdict + 'static) {
        self.ways.set_judge(Some(Box::new(judge)));
    }

    /// Ends that.
    pub fn clear_judge(&mut self) {
        self.ways.set_judge(None);
    }

    /// Submits an I/O by hand; returns its token.
    pub fn submit(&mut self, client: usize, op: Op, range: Range, fua: bool) -> u64 {
        let c = &mut self.clients[client];
        let export = &mut self.exports[c.export];
        c.submit(self.now, op, range, fua, export, &mut self.coverage)
    }

    /// All machines that have links of their own.
    pub fn machines_mut(&mut self) -> impl Iterator<Item = &mut Machine> {
        let servers = self.servers.iter_mut().flat_map(|server| &mut server.shards);
        let hosts = self.composed.iter_mut().flat_map(|composed| &mut composed.hosts);
        (servers.map(|shard| &mut shard.machine))
            .chain(self.clients.iter_mut().map(|client| &mut client.machine))
            .chain(self.jugglers.iter_mut().map(|juggler| &mut juggler.hand.machine))
            .chain(self.dialect_users.iter_mut().map(|user| &mut user.machine))
            .chain(hosts.map(|host| &mut host.machine))
    }

    /// A client's initiator, which runs.
    pub fn initiator(&self, client: usize) -> &Initiator {
        self.clients[client].initiator.as_ref().expect("it runs")
    }

    /// The target of a server's first shard, which runs.
    pub fn target(&self, server: usize) -> &Target {
        self.servers[server].targets().next().expect("it runs")
    }

    fn media(&self) -> impl Iterator<Item = &MediumHandle> {
        let composed = self.composed.iter().flat_map(|composed| composed.volume.own_media());
        self.exports.iter().flat_map(Export::own_media).chain(composed)
    }

    /// A number that differs if anything went differently.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }
}
