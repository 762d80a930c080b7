//! What happens to whom, and when: events drawn one after the other. What ends them, and what was planned beforehand, is in
//! `later.rs`.

mod later;

use std::collections::BTreeMap;

use thinwire_link::rng::Rng;
use thinwire_link::sim::FaultRates;

pub(crate) use self::later::Later;
use crate::damage::{BadBuffers, Damage};
use crate::forger::Forger;
use crate::keys::Holder;
use crate::medium::MediumHandle;
use crate::model::Violation;
use crate::server::Crash;
use crate::stranger::Stranger;
use crate::swarm::{SwarmPlan, pick};
use crate::world::{MS, SECOND, SimHost, World};

/// How many kinds of events there are.
pub const EVENTS: usize = 16;
/// A target that is killed in a turn gets so many calls of it, at most: more than most turns have.
const STEPS_MAX: u64 = 8;
/// One of them: the power of a server fails.
pub const POWER: usize = 0;
/// One of them: a server is killed.
pub const KILL: usize = 1;
/// Those of them that happen to a client.
const TOUCHES_CLIENT: [usize; 6] = [4, 5, 6, 7, TAKE_OVER, LATE_ATTACH];
/// One of them: another client takes an export over.
pub const TAKE_OVER: usize = 8;
/// One of them: an attach arrives when its run has died.
pub const LATE_ATTACH: usize = 13;

/// The rest of the story.
pub struct Chaos {
    rng: Rng,
    plan: SwarmPlan,
    later: BTreeMap<(u64, u64), Later>,
    count: u64,
    /// A crash that waits, for a while, until the server's disks are busy.
    ambush: Option<Ambush>,
    /// What becomes of images while no target serves them: share of restarts, and its dice.
    changes: f64,
    /// Weight of take-overs that wait for a slow store while their victim comes back.
    contests: u64,
    dice: Rng,
    growth: Rng,
    key_dice: Rng,
    stranger: Option<Stranger>,
}

#[derive(Clone, Copy)]
struct Ambush {
    server: usize,
    how: Crash,
    until: u64,
    patience: u64,
}

impl Chaos {
    /// Draws from `rng` what `plan` allows, and from `dice` what becomes of images and who contests
    /// them.
    pub fn new(rng: Rng, plan: SwarmPlan, mut dice: Rng) -> Self {
        let changes = pick(&mut dice, &[0.0, 0.0, 0.2, 0.6]);
        let contests = if dice.chance(0.5) { 0 } else { dice.between(4, 16) };
        let (later, count) = (BTreeMap::new(), 0);
        let (ambush, stranger, growth, key_dice) = (None, None, Rng::new(0), Rng::new(1));
        Chaos {
            rng,
            plan,
            later,
            count,
            ambush,
            changes,
            contests,
            dice,
            growth,
            key_dice,
            stranger,
        }
    }

    /// Lets things go wrong until the plan's time is over.
    pub fn run(&mut self, world: &mut World) -> Result<(), Violation> {
        let end = world.now + self.plan.duration_ns;
        let mut next_event = world.now + self.gap();
        while world.now < end {
            let due = self.later.keys().next().map_or(u64::MAX, |&(at, _)| at);
            world.step(end.min(due).min(next_event).max(world.now + 1))?;
            while let Some(entry) = self.later.first_entry()
                && entry.key().0 <= world.now
            {
                let what = entry.remove();
                self.finish(world, what);
            }
            self.restart_ended(world);
            self.spring_ambush(world);
            if world.now >= next_event {
                next_event = world.now + self.gap();
                self.event(world);
            }
        }
        Ok(())
    }

    /// Everything ends that goes wrong.
    pub fn heal(&mut self, world: &mut World) {
        for client in &mut world.clients {
            client.cuts.clear();
            client.aims.clear();
        }
        while let Some((_, what)) = self.later.pop_first() {
            self.finish(world, what);
        }
        world.restore_keys();
        world.with_forger(Forger::heal);
        world.machines_mut().filter_map(|m| m.damage.as_mut()).for_each(Damage::rest);
        let buffers = world.clients.iter_mut().filter_map(|client| client.buffers.as_mut());
        buffers.for_each(BadBuffers::rest);
        world.open_all_ways();
        world.net.set_faults(FaultRates::default());
        for export in &world.exports {
            export.own_media().for_each(MediumHandle::end_failures);
            if let Some(tree) = export.tree() {
                tree.memory.borrow_mut().notes.end_failures();
            }
        }
        for server in 0..world.servers.len() {
            let machine = &mut world.servers[server];
            machine.freeze(0);
            machine.all_stations().for_each(|station| world.net.set_up(station, true));
            world.start_server(server);
        }
        for client in 0..world.clients.len() {
            let machine = &mut world.clients[client].machine;
            machine.frozen_until = 0;
            machine.stations.iter().for_each(|&station| world.net.set_up(station, true));
            if world.clients[client].is_guest {
                world.clients[client].close();
                continue;
            }
            world.clients[client].config.take_over = false;
            world.start_client(client);
        }
        for juggler in 0..world.jugglers.len() {
            let machine = &mut world.jugglers[juggler].hand.machine;
            machine.frozen_until = 0;
            machine.stations.iter().for_each(|&station| world.net.set_up(station, true));
            world.jugglers[juggler].is_calm = true;
            world.start_juggler(juggler);
        }
        for user in 0..world.dialect_users.len() {
            let machine = &mut world.dialect_users[user].machine;
            machine.frozen_until = 0;
            world.net.set_up(machine.stations[0], true);
            world.dialect_users[user].take_over = false;
            world.start_dialect(user);
        }
    }

    fn gap(&mut self) -> u64 {
        self.rng.between(1, 2 * self.plan.gap_ns)
    }

    fn a_while(&mut self) -> u64 {
        let scale = pick(&mut self.rng, &[5 * MS, 100 * MS, SECOND, 4 * SECOND]);
        self.rng.between(scale / 4, scale)
    }

    /// Whoever has failed, was refused or was killed with a change of its state tries again, perhaps harder.
    fn restart_ended(&mut self, world: &mut World) {
        while let Some(server) = world.died.pop() {
            let at = world.now + self.a_while();
            self.later(at, Later::StartServer(server));
        }
        while let Some((client, _)) = world.ended.pop() {
            if world.clients[client].is_guest {
                continue;
            }
            let at = world.now + self.a_while();
            let take_over = self.rng.chance(0.2);
            self.later(at, Later::StartClient(client, take_over));
        }
        while let Some(user) = world.dialect_ended.pop() {
            let at = world.now + self.a_while();
            let take_over = self.rng.chance(0.2) && !world.dialect_users[user].read_only;
            self.later(at, Later::StartDialect(user, take_over));
        }
        while let Some(juggler) = world.put_down.pop() {
            let at = world.now + self.a_while();
            self.later(at, Later::StartJuggler(juggler));
        }
    }

    fn event(&mut self, world: &mut World) {
        let weights = || self.plan.weights.iter().chain([&self.contests]);
        let total: u64 = weights().sum();
        if total == 0 {
            return;
        }
        let mut left = self.rng.below(total);
        let kind = weights().position(|&weight| {
            let found = left < weight;
            left = left.saturating_sub(weight);
            found
        });
        let server = self.rng.below(world.servers.len() as u64) as usize;
        let client = self.rng.below(world.clients.len() as u64) as usize;
        let until = world.now + self.a_while();
        let kind = kind.expect("the sum of the weights");
        if self.dice.chance(0.3) && self.disturb(world, kind, until) {
            return;
        }
        if world.clients[client].is_guest && (TOUCHES_CLIENT.contains(&kind)) {
            return self.invite(world, client, until);
        }
        match kind {
            POWER => self.server_ends(world, server, Crash::Power, until),
            KILL => self.server_ends(world, server, Crash::Kill, until),
            2 => {
                world.shut_down_server(server, 500 * MS);
                self.later(until, Later::StartServer(server));
            }
            3 => world.freeze(SimHost::Server(server), until),
            4 => {
                world.crash_client(client);
                self.later(until, Later::StartClient(client, false));
            }
            5 => world.freeze(SimHost::Client(client), until),
            6 => world.clients[client].close(),
            7 => world.clients[client].abort(),
            TAKE_OVER => self.take_over(world, client),
            9 | 10 => self.partition(world, server, SimHost::Client(client), until),
            11 => {
                let host = if self.rng.chance(0.5) {
                    SimHost::Server(server)
                } else {
                    SimHost::Client(client)
                };
                let station = pick(&mut self.rng, &world.stations_of(host));
                world.trace.note(world.now, "link", "goes down", u64::from(station));
                world.net.set_up(station, false);
                world.coverage.link_cuts += 1;
                self.later(until, Later::LinkUp(station));
            }
            12 => {
                let loss = pick(&mut self.rng, &[0.05, 0.3, 0.7]);
                let rates = FaultRates { loss, dup: 0.1, reorder: 0.3, corrupt: 0.02 };
                world.trace.note(world.now, "wire", "gets worse", (loss * 100.0) as u64);
                world.net.set_faults(rates);
                self.later(until, Later::Faults);
                // Who spoils a wire may have listened, too.
                let late_ns = pick(&mut self.dice, &[MS, 50 * MS, SECOND, 5 * SECOND]);
                world.play_back_probes(until - world.now, late_ns);
            }
            LATE_ATTACH => self.delay_attach(world, client),
            14 => self.hear_nonsense(world, server),
            EVENTS => self.contest(world),
            _ => {
                let before = world.net.wire().transit_bytes_max;
                let limit = pick(&mut self.rng, &[1500, 1500, 4400]);
                world.trace.note(world.now, "wire", "carries only", limit as u64);
                world.net.set_wire(|wire| wire.transit_bytes_max = limit);
                self.later(until, Later::FrameLimit(before.max(9000)));
            }
        }
    }

    /// A guest takes its leaf, whoever has it.
    fn invite(&mut self, world: &mut World, client: usize, until: u64) {
        if world.clients[client].initiator.is_none() {
            world.clients[client].config.take_over = true;
            world.start_client(client);
            let then = self.a_while();
            self.later(until, Later::EndGuest(client, then));
        }
    }

    /// Such an event, of a juggler if there is one. False if it is no event of initiators.
    fn disturb(&mut self, world: &mut World, kind: usize, until: u64) -> bool {
        let jugglers = world.jugglers.len() as u64;
        if jugglers == 0 {
            return false;
        }
        let at = self.dice.below(jugglers) as usize;
        let host = SimHost::Juggler(at);
        match kind {
            4 => {
                world.crash_juggler(at);
                self.later(until, Later::StartJuggler(at));
            }
            5 => world.freeze(host, until),
            6 => world.jugglers[at].close(),
            TAKE_OVER => take_over_juggling(world, at),
            9 | 10 => self.partition(world, world.jugglers[at].server, host, until),
            LATE_ATTACH => {
                world.crash_juggler(at);
                let (lives_ns, late_ns) = self.late();
                world.delay_attaches(host, lives_ns, late_ns);
                if self.dice.chance(0.5) {
                    world.jugglers[at].take_over();
                }
                world.start_juggler(at);
                self.later(world.now + lives_ns, Later::RestartJuggler(at));
            }
            _ => return false,
        }
        true
    }

    fn server_ends(&mut self, world: &mut World, server: usize, how: Crash, until: u64) {
        // Often at once, so that what the dead process left behind meets its successor.
        let until = if self.rng.chance(0.3) { world.now + MS } else { until };
        let patience = world.now + 200 * MS;
        self.ambush = Some(Ambush { server, how, until, patience });
        self.spring_ambush(world);
    }

    fn spring_ambush(&mut self, world: &mut World) {
        let Some(Ambush { server, how, until, patience }) = self.ambush else { return };
        let mut media = world.exports.iter().filter(|e| e.server == server);
        let is_busy = media.any(|e| e.own_media().any(|medium| medium.in_flight() > 0));
        if is_busy || world.now >= patience {
            self.ambush = None;
            if how == Crash::Kill && self.dice.chance(0.5) {
                // Not between two turns, but in the middle of one. Who dies by itself is started again.
                world.kill_in_turn(server, self.dice.below(STEPS_MAX) as u32);
                return;
            }
            world.crash_server(server, how);
            self.later(until.max(world.now + 1), Later::StartServer(server));
        }
    }

    fn partition(&mut self, world: &mut World, server: usize, b: SimHost, until: u64) {
        let a = SimHost::Server(server);
        world.coverage.partitions += 1;
        let one_way = self.rng.chance(0.4);
        let first = self.rng.chance(0.5);
        world.coverage.one_way_partitions += u64::from(one_way);
        for (from, to, cut) in [(a, b, !one_way || first), (b, a, !one_way || !first)] {
            if cut {
                world.set_way(from, to, false);
                self.later(until, Later::OpenWay(from, to));
            }
        }
    }

    /// For a while a target gets frames that are well formed and mean nothing.
    fn hear_nonsense(&mut self, world: &mut World, server: usize) {
        for nth in 0..12 {
            self.later(world.now + nth * 7 * MS, Later::Nonsense(server));
        }
    }

    fn speak(&mut self, world: &mut World, server: usize) {
        let rng = &mut self.rng;
        let stranger = self.stranger.get_or_insert_with(|| {
            let keys = world.keys.as_ref();
            let key = keys.and_then(|keys| {
                let own = Holder { principal: keys.stranger?, key: 0 };
                Some(keys.initiator_key(own))
            });
            Stranger::new(&world.net, Rng::new(rng.bits())).with_key(key)
        });
        let station = world.servers[server].stations()[0];
        world.coverage.nonsense += stranger.speak(station, self.rng.between(1, 20));
    }

    /// A writer's requests are slow in its store, another waits for them to take the export over, and
    /// the first is cut off meanwhile and comes back before they are done.
    fn contest(&mut self, world: &mut World) {
        let is_writer = |w: &World, at: usize| !w.clients[at].config.read_only;
        let clients = world.clients.len();
        let first = self.dice.below(clients as u64) as usize;
        let open = (0..clients).map(|nth| (first + nth) % clients);
        let Some(a) = open.clone().find(|&at| is_writer(world, at) && world.clients[at].is_open)
        else {
            return;
        };
        let export = world.clients[a].export;
        let mut others = open.filter(|&at| at != a && world.clients[at].export == export);
        let b = others.find(|&at| is_writer(world, at));
        let juggler = world.jugglers.iter().position(|j| j.writes(export));
        if b.is_none() && juggler.is_none() {
            return;
        }
        let Some(medium) = world.exports[export].medium() else { return };
        let before = medium.config().latency_ns;
        if before.1 >= SECOND {
            return;
        }
        medium.set_latency(4 * SECOND, 6 * SECOND);
        self.later(world.now + 50 * MS, Later::Latency(export, before));
        let (server, until) = (world.exports[export].server, world.now + 3 * SECOND);
        for (from, to) in [
            (SimHost::Server(server), SimHost::Client(a)),
            (SimHost::Client(a), SimHost::Server(server)),
        ] {
            self.later(world.now + 40 * MS, Later::CloseWay(from, to));
            self.later(until, Later::OpenWay(from, to));
        }
        world.coverage.contests += 1;
        if let Some(b) = b {
            self.take_over(world, b);
        } else if let Some(juggler) = juggler {
            take_over_juggling(world, juggler);
        }
    }

    /// A run of a client is started whose attach arrives when it has died, and the next one has been
    /// granted the export. Who takes over asks for no leave of its successor, which is still alive.
    fn delay_attach(&mut self, world: &mut World, client: usize) {
        world.crash_client(client);
        let (lives_ns, late_ns) = self.late();
        world.delay_attaches(SimHost::Client(client), lives_ns, late_ns);
        let config = &mut world.clients[client].config;
        config.take_over = !config.read_only && self.dice.chance(0.5);
        world.start_client(client);
        self.later(world.now + lives_ns, Later::RestartClient(client));
    }

    /// How long a run lives whose attach is late, and how late.
    fn late(&mut self) -> (u64, u64) {
        (self.rng.between(200, 500) * MS, self.rng.between(600, 3000) * MS)
    }

    /// Another client of the same export takes it over; what it had itself is crashed before.
    fn take_over(&mut self, world: &mut World, client: usize) {
        if world.clients[client].config.read_only {
            return;
        }
        world.crash_client(client);
        world.clients[client].config.take_over = true;
        world.start_client(client);
    }
}

/// A juggler takes all its exports over; what it had itself is crashed before.
fn take_over_juggling(world: &mut World, juggler: usize) {
    world.crash_juggler(juggler);
    world.jugglers[juggler].take_over();
    world.start_juggler(juggler);
}
