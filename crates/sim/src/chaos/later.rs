//! What has been put off: planned from the beginning, or the end of something that has happened.

use thinwire_link::rng::Rng;

use super::Chaos;
use crate::dialect::DialectEvent;
use crate::export::Store;
use crate::image::Change;
use crate::keys::KeyEvent;
use crate::world::{SECOND, SimHost, World};

/// What ends later.
#[derive(Clone, Debug)]
pub(crate) enum Later {
    StartServer(usize),
    StartClient(usize, bool),
    RestartClient(usize),
    StartJuggler(usize),
    RestartJuggler(usize),
    OpenWay(SimHost, SimHost),
    CloseWay(SimHost, SimHost),
    Nonsense(usize),
    LinkUp(u32),
    Faults,
    FrameLimit(usize),
    /// A guest leaves, and the gateway that it held up begins anew a while later.
    EndGuest(usize, u64),
    MendGateways,
    Latency(usize, (u64, u64)),
    Grow(usize),
    FreezeShard(usize, usize, u64),
    Keys(KeyEvent),
    /// An export is taken away for so long.
    TakeAway(usize, u64),
    BringBack(usize),
    Dialect(usize, DialectEvent),
    StartDialect(usize, bool),
}

impl Chaos {
    /// These images grow at these times, by what `dice` say.
    pub fn plan_growth(&mut self, planned: Vec<(u64, usize)>, dice: Rng) {
        self.growth = dice;
        for (at, export) in planned {
            self.later(at, Later::Grow(export));
        }
    }

    /// One shard of a server stands still for so long from these times on, the others not.
    pub fn plan_freezes(&mut self, planned: Vec<(u64, usize, usize, u64)>) {
        for (at, server, shard, ns) in planned {
            self.later(at, Later::FreezeShard(server, shard, ns));
        }
    }

    /// This happens to keys.
    pub fn plan_keys(&mut self, planned: Vec<(u64, KeyEvent)>) {
        for (at, event) in planned {
            self.later(at, Later::Keys(event));
        }
    }

    /// This happens to users of other protocols at these times.
    pub fn plan_dialects(&mut self, planned: Vec<(u64, usize, DialectEvent)>) {
        for (at, user, event) in planned {
            self.later(at, Later::Dialect(user, event));
        }
    }

    /// These exports are taken away at these times, for so long.
    pub fn plan_absences(&mut self, planned: Vec<(u64, usize, u64)>) {
        for (at, export, ns) in planned {
            self.later(at, Later::TakeAway(export, ns));
        }
    }

    pub(super) fn later(&mut self, at: u64, what: Later) {
        self.count += 1;
        self.later.insert((at, self.count), what);
    }

    pub(super) fn finish(&mut self, world: &mut World, what: Later) {
        match what {
            Later::StartServer(server) => {
                self.change_images(world, server);
                if world.has_gateway() && self.dice.chance(self.changes) {
                    world.write_leaf(&mut self.dice);
                }
                world.start_server(server);
            }
            Later::StartClient(client, take_over) => {
                if world.clients[client].initiator.is_none() {
                    world.clients[client].config.take_over = take_over;
                    world.start_client(client);
                }
            }
            Later::Nonsense(server) => self.speak(world, server),
            Later::RestartClient(client) => {
                world.crash_client(client);
                world.clients[client].config.take_over = false;
                world.start_client(client);
            }
            Later::StartJuggler(juggler) => world.start_juggler(juggler),
            Later::RestartJuggler(juggler) => {
                world.crash_juggler(juggler);
                world.start_juggler(juggler);
            }
            Later::OpenWay(from, to) => world.set_way(from, to, true),
            Later::CloseWay(from, to) => world.set_way(from, to, false),
            Later::LinkUp(station) => world.net.set_up(station, true),
            Later::Faults => world.net.set_faults(self.plan.faults),
            Later::Latency(export, (least, most)) => {
                world.exports[export].medium().expect("it has one").set_latency(least, most);
            }
            Later::EndGuest(client, then) => {
                world.clients[client].close();
                self.later(world.now + then, Later::MendGateways);
            }
            Later::MendGateways => world.mend_gateways(),
            Later::Grow(export) => world.grow_export(export, &mut self.growth),
            Later::FreezeShard(server, shard, ns) => world.freeze_shard(server, shard, ns),
            Later::Keys(event) => {
                let follows = world.change_keys(event, &mut self.key_dice);
                self.plan_keys(follows);
            }
            Later::TakeAway(export, ns) => {
                if world.take_away(export) {
                    self.later(world.now + ns, Later::BringBack(export));
                }
            }
            Later::BringBack(export) => world.bring_back(export),
            Later::Dialect(user, event) => {
                for (at, later) in world.touch_dialect(user, event) {
                    self.later(at, later);
                }
            }
            Later::StartDialect(user, take_over) => {
                if !world.dialect_users[user].is_running() {
                    world.dialect_users[user].take_over = take_over;
                    world.start_dialect(user);
                }
            }
            Later::FrameLimit(limit) => world.net.set_wire(|wire| wire.transit_bytes_max = limit),
        }
    }

    /// Somebody replaces, cuts or writes the images of a target that is down.
    fn change_images(&mut self, world: &mut World, server: usize) {
        if world.servers[server].runs() {
            return;
        }
        let mut cut = Vec::new();
        for (at, export) in world.exports.iter_mut().enumerate() {
            if export.server != server {
                continue;
            }
            let is_file = matches!(export.store, Store::File(_)) && !export.is_leaf;
            if !is_file || !self.dice.chance(self.changes) {
                continue;
            }
            let change = match self.dice.below(4) {
                0 if !export.keeps_content => Change::Replaced,
                1 if !export.keeps_content => Change::Shrunk,
                _ => Change::Written,
            };
            export.change = Some((change, self.dice.bits()));
            if change == Change::Shrunk && self.growth.chance(0.5) {
                cut.push(at);
            }
        }
        for export in cut {
            let at = world.now + self.growth.between(0, 10 * SECOND);
            self.later(at, Later::Grow(export));
        }
    }
}
