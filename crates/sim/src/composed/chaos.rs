//! What goes wrong in a world with a composed volume, and when.

use std::collections::BTreeMap;

use thinwire_link::rng::Rng;
use thinwire_link::sim::FaultRates;

use super::scrubbing::Rot;
use super::{Ambush, AmbushAt, VolumeHost};
use crate::model::Violation;
use crate::server::Crash;
use crate::swarm::pick;
use crate::world::{MS, SECOND, SimHost, World};

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    ServerPower,
    ServerKill,
    ServerStop,
    ServerFreeze,
    HostKill,
    HostPower,
    HostStop,
    HostFreeze,
    TakeOver,
    Partition,
    LinkDown,
    Wire,
    Ambush,
    Blackout,
    PutBack,
    Snapshot,
    Delete,
}

const EVENTS: [Event; 17] = [
    Event::ServerPower,
    Event::ServerKill,
    Event::ServerStop,
    Event::ServerFreeze,
    Event::HostKill,
    Event::HostPower,
    Event::HostStop,
    Event::HostFreeze,
    Event::TakeOver,
    Event::Partition,
    Event::LinkDown,
    Event::Wire,
    Event::Ambush,
    Event::Blackout,
    Event::PutBack,
    Event::Snapshot,
    Event::Delete,
];

/// What a seed has drawn of that.
#[derive(Clone, Debug)]
pub struct ChaosPlan {
    /// How long things go wrong, in ns.
    pub duration_ns: u64,
    faults: FaultRates,
    weights: [u64; EVENTS.len()],
    gap_ns: u64,
    /// Longest that something that ends takes to do so.
    while_ns: u64,
}

impl ChaosPlan {
    /// Each seed leaves most of it out.
    pub fn draw(duration_ns: u64, faults: FaultRates, has_cuts: bool, rng: &mut Rng) -> Self {
        let mut weights = [0; EVENTS.len()];
        for (weight, event) in weights.iter_mut().zip(EVENTS) {
            let is_cut = matches!(event, Event::Snapshot | Event::Delete);
            *weight = match event {
                _ if is_cut && !has_cuts => 0,
                Event::Snapshot => rng.between(2, 8),
                Event::Delete => rng.between(0, 6),
                Event::Ambush | Event::PutBack if rng.chance(0.5) => rng.between(2, 8),
                _ if rng.chance(0.5) => 0,
                Event::ServerPower | Event::ServerKill => rng.between(1, 6),
                _ => rng.between(1, 3),
            };
        }
        let mut gap_ns = pick(rng, &[50 * MS, 200 * MS, 600 * MS, 2 * SECOND]);
        let mut while_ns = pick(rng, &[100 * MS, SECOND, 4 * SECOND, 8 * SECOND]);
        if rng.chance(0.4) {
            // The host stays, and has its mirrors without some legs most of the time.
            for (weight, event) in weights.iter_mut().zip(EVENTS) {
                match event {
                    Event::HostKill
                    | Event::HostPower
                    | Event::HostStop
                    | Event::TakeOver
                    | Event::Ambush
                    | Event::Blackout
                    | Event::PutBack => {
                        *weight = 0;
                    }
                    Event::ServerPower | Event::ServerKill => *weight += 1,
                    _ => {}
                }
            }
            gap_ns = pick(rng, &[300 * MS, 600 * MS]);
            while_ns = pick(rng, &[SECOND, 4 * SECOND]);
        }
        ChaosPlan { duration_ns, faults, weights, gap_ns, while_ns }
    }
}

/// What ends later.
#[derive(Clone, Copy, Debug)]
enum Later {
    StartServer(usize),
    StartHost(usize, bool),
    OpenWay(SimHost, SimHost),
    LinkUp(u32),
    Faults,
}

/// The rest of the story.
pub struct VolumeChaos {
    rng: Rng,
    plan: ChaosPlan,
    later: BTreeMap<(u64, u64), Later>,
    count: u64,
    /// When the next scrub begins beside all that, never in most worlds; and what is drawn for that, apart.
    scrub_at: u64,
    of_scrubs: Rng,
    /// What rots at each of them, if something does.
    pub of_rot: Option<Rng>,
    /// When somebody wishes that the legs of a mirror were others; and what is drawn for that, apart.
    change_at: u64,
    of_changes: Rng,
}

impl VolumeChaos {
    /// Draws what `plan` allows.
    pub fn new(plan: ChaosPlan, rng: Rng, mut of_scrubs: Rng, of_changes: Option<Rng>) -> Self {
        let scrub_at = if of_scrubs.chance(0.3) { 0 } else { u64::MAX };
        let change_at = if of_changes.is_some() { 0 } else { u64::MAX };
        let (later, of_rot, count) = (BTreeMap::new(), None, 0);
        let of_changes = of_changes.unwrap_or_else(|| Rng::new(0));
        VolumeChaos { rng, plan, later, count, scrub_at, of_scrubs, of_rot, change_at, of_changes }
    }

    /// Somebody wishes that the legs of a mirror were others, unless that is being done already.
    fn change(&mut self, world: &mut World) {
        self.change_at = world.now + self.of_changes.between(50 * MS, 1500 * MS);
        world.grow_legs();
        let Some(composed) = &mut world.composed else { return };
        let changes = composed.volume.changes.as_mut();
        let Some(wish) = changes.and_then(|changes| changes.draw(&mut self.of_changes)) else {
            return;
        };
        world.trace.note(world.now, "somebody", &format!("wishes {wish:?}"), 0);
        composed.hosts.iter_mut().for_each(|host| host.machine.dirty = true);
        world.grow_legs();
        let Some(composed) = &mut world.composed else { return };
        if self.of_changes.chance(0.2) {
            let turns = self.of_changes.between(1, 150) as u32;
            let servers = pick(&mut self.of_changes, &[0, 0, u64::MAX]);
            let ambush = Ambush { at: AmbushAt::Change(turns), servers, power: false };
            composed.hosts.iter_mut().for_each(|host| _ = host.ambush.get_or_insert(ambush));
        }
    }

    /// All hosts that have the volume read all of their mirrors, and go on.
    fn scrub(&mut self, world: &mut World) {
        self.scrub_at = world.now + self.of_scrubs.between(100 * MS, 2 * SECOND);
        let begun = world.troubles_of_composed();
        let Some(composed) = &mut world.composed else { return };
        let hosts = composed.hosts.iter_mut().filter(|host| host.is_serving());
        hosts.for_each(|host| host.begin_scrub(true, begun));
        if let Some(rng) = &mut self.of_rot {
            Rot::plant_untold(&composed.volume, rng);
        }
    }

    /// Lets things go wrong until the plan's time is over.
    pub fn run(&mut self, world: &mut World) -> Result<(), Violation> {
        let end = world.now + self.plan.duration_ns;
        let mut next_event = world.now + self.gap();
        while world.now < end {
            let due = self.later.keys().next().map_or(u64::MAX, |&(at, _)| at);
            let planned = self.scrub_at.min(self.change_at);
            world.step(end.min(due).min(next_event).min(planned).max(world.now + 1))?;
            if world.now >= self.scrub_at {
                self.scrub(world);
            }
            if world.now >= self.change_at {
                self.change(world);
            }
            while let Some(entry) = self.later.first_entry()
                && entry.key().0 <= world.now
            {
                let what = entry.remove();
                self.finish(world, what);
            }
            self.restart_ended(world);
            if world.now >= next_event {
                next_event = world.now + self.gap();
                self.event(world);
            }
        }
        Ok(())
    }

    /// Everything ends that goes wrong; of the hosts only one goes on.
    pub fn heal(&mut self, world: &mut World) {
        while let Some((_, what)) = self.later.pop_first() {
            if !matches!(what, Later::StartHost(..)) {
                self.finish(world, what);
            }
        }
        world.open_all_ways();
        for disk in world.composed.iter().flat_map(|composed| &composed.volume.disks) {
            disk.medium.end_failures();
        }
        world.net.set_faults(FaultRates::default());
        for server in 0..world.servers.len() {
            let machine = &mut world.servers[server];
            machine.freeze(0);
            machine.all_stations().for_each(|station| world.net.set_up(station, true));
            world.start_server(server);
        }
        for host in 0..hosts(world) {
            world.freeze(SimHost::Composer(host), 0);
            let stations = world.stations_of(SimHost::Composer(host));
            stations.into_iter().for_each(|station| world.net.set_up(station, true));
            // One that was killed while it waited may be on record for a leg for ever: whoever goes on alone takes over.
            if hosts(world) > 1 {
                world.crash_host(host, Crash::Kill);
            }
        }
    }

    fn gap(&mut self) -> u64 {
        self.rng.between(1, 2 * self.plan.gap_ns)
    }

    fn a_while(&mut self) -> u64 {
        let scale = pick(&mut self.rng, &[20 * MS, self.plan.while_ns, self.plan.while_ns]);
        self.rng.between(scale / 4, scale)
    }

    fn later(&mut self, at: u64, what: Later) {
        self.count += 1;
        self.later.insert((at, self.count), what);
    }

    fn finish(&mut self, world: &mut World, what: Later) {
        match what {
            Later::StartServer(server) => world.start_server(server),
            Later::StartHost(host, take_over) => {
                if !world.start_host(host, take_over) {
                    self.later(world.now + 5 * MS, what);
                }
            }
            Later::OpenWay(from, to) => world.set_way(from, to, true),
            Later::LinkUp(station) => world.net.set_up(station, true),
            Later::Faults => world.net.set_faults(self.plan.faults),
        }
    }

    fn restart_ended(&mut self, world: &mut World) {
        while let Some(server) = world.died.pop() {
            let at = world.now + self.a_while();
            self.later(at, Later::StartServer(server));
        }
        // Whoever was stopped in order is there again, later.
        for server in 0..world.servers.len() {
            let is_planned = |what: &Later| matches!(what, Later::StartServer(s) if *s == server);
            if !world.servers[server].runs() && !self.later.values().any(is_planned) {
                let at = world.now + self.a_while();
                self.later(at, Later::StartServer(server));
            }
        }
        let ended = world.composed.as_mut().map(|composed| std::mem::take(&mut composed.ended));
        for (host, _) in ended.into_iter().flatten() {
            let at = world.now + self.a_while();
            let take_over = self.rng.chance(0.3);
            self.later(at, Later::StartHost(host, take_over));
        }
    }

    fn event(&mut self, world: &mut World) {
        let total: u64 = self.plan.weights.iter().sum();
        if total == 0 {
            return;
        }
        let mut left = self.rng.below(total);
        let mut event = EVENTS[0];
        for (weight, candidate) in self.plan.weights.iter().zip(EVENTS) {
            if left < *weight {
                event = candidate;
                break;
            }
            left -= weight;
        }
        let server = self.rng.below(world.servers.len() as u64) as usize;
        let host = self.rng.below(hosts(world) as u64) as usize;
        let until = world.now + self.a_while();
        match event {
            Event::ServerPower | Event::ServerKill => {
                let is_power = event == Event::ServerPower;
                world.crash_server(server, if is_power { Crash::Power } else { Crash::Kill });
                self.later(until, Later::StartServer(server));
            }
            Event::ServerStop => {
                if world.servers[server].runs() {
                    world.shut_down_server(server, 500 * MS);
                }
            }
            Event::ServerFreeze => world.freeze(SimHost::Server(server), until),
            Event::HostKill | Event::HostPower => {
                let is_power = event == Event::HostPower;
                world.crash_host(host, if is_power { Crash::Power } else { Crash::Kill });
                let take_over = self.rng.chance(0.3);
                self.later(until, Later::StartHost(host, take_over));
            }
            Event::HostStop => {
                if let Some(composed) = &mut world.composed {
                    composed.hosts[host].close();
                }
            }
            Event::HostFreeze => world.freeze(SimHost::Composer(host), until),
            Event::TakeOver => {
                if hosts(world) > 1 {
                    world.crash_host(host, Crash::Kill);
                    world.start_host(host, true);
                }
            }
            Event::Partition => {
                let (a, b) = (SimHost::Server(server), SimHost::Composer(host));
                world.coverage.partitions += 1;
                let (one_way, first) = (self.rng.chance(0.4), self.rng.chance(0.5));
                for (from, to, cut) in [(a, b, !one_way || first), (b, a, !one_way || !first)] {
                    if cut {
                        world.set_way(from, to, false);
                        self.later(until, Later::OpenWay(from, to));
                    }
                }
            }
            Event::LinkDown => {
                let station = pick(&mut self.rng, &world.stations_of(SimHost::Server(server)));
                world.trace.note(world.now, "link", "goes down", u64::from(station));
                world.net.set_up(station, false);
                world.coverage.link_cuts += 1;
                self.later(until, Later::LinkUp(station));
            }
            Event::Wire => {
                let loss = pick(&mut self.rng, &[0.05, 0.3, 0.7]);
                let rates = FaultRates { loss, dup: 0.1, reorder: 0.3, corrupt: 0.02 };
                world.trace.note(world.now, "wire", "gets worse", (loss * 100.0) as u64);
                world.net.set_faults(rates);
                self.later(until, Later::Faults);
            }
            Event::Ambush => {
                let is_cut = world.composed.iter().any(|composed| composed.volume.shape.is_cut());
                let at = match self.rng.below(11) {
                    ..8 if is_cut => AmbushAt::Cut(self.rng.between(1, 60) as u32),
                    0..3 => AmbushAt::Answer,
                    8..11 => AmbushAt::Write(self.rng.between(2, 12) as u32),
                    3 => AmbushAt::AnswerBehindDrop,
                    4 => AmbushAt::InSync,
                    5 => AmbushAt::End,
                    _ => AmbushAt::Opening(self.rng.between(2, 60) as u32),
                };
                // Some, all, or none of the others.
                let servers = match self.rng.below(3) {
                    0 => 0,
                    1 => self.rng.bits(),
                    _ => u64::MAX,
                };
                let power = self.rng.chance(0.5);
                if let AmbushAt::Opening(_) = at {
                    world.crash_host(host, Crash::Kill);
                    self.later(until, Later::StartHost(host, false));
                }
                let Some(composed) = &mut world.composed else { return };
                composed.hosts[host].ambush = Some(Ambush { at, servers, power });
                if at == AmbushAt::End {
                    composed.hosts[host].close();
                }
            }
            Event::Blackout => {
                world.crash_host(host, Crash::Power);
                self.later(until, Later::StartHost(host, false));
                let all = self.rng.chance(0.5);
                for server in (0..world.servers.len()).filter(|at| all || *at == server) {
                    world.crash_server(server, Crash::Power);
                }
            }
            Event::PutBack => {
                let Some(composed) = &world.composed else { return };
                let Some((leg, _)) = &composed.volume.old_leg else { return };
                let Some(export) = &composed.volume.disks[*leg].export else { return };
                // Who puts back the only leg that has all data has lost it.
                let writer = composed.volume.model.run();
                let knows = |host: &VolumeHost| host.run == writer && host.has_all_legs();
                if !composed.hosts.iter().any(knows) {
                    return;
                }
                let server = world.exports[export.number].server;
                for host in 0..hosts(world) {
                    world.crash_host(host, Crash::Kill);
                    self.later(until, Later::StartHost(host, true));
                }
                world.crash_server(server, Crash::Power);
                world.put_back_leg();
            }
            Event::Snapshot | Event::Delete => {
                let Some(composed) = &mut world.composed else { return };
                let cuts = &mut composed.volume.cuts;
                match event {
                    Event::Snapshot => cuts.to_take += 1,
                    _ => cuts.to_delete += 1,
                }
                composed.hosts.iter_mut().for_each(|host| host.machine.dirty = true);
                // Parts hear of it at moments that are far apart: what goes to one of them is lost at first.
                let is_cut = composed.volume.shape.is_cut();
                if is_cut && event == Event::Snapshot && self.rng.chance(0.5) {
                    let rates = FaultRates { loss: 0.2, ..self.plan.faults };
                    world.net.set_faults(rates);
                    let short = world.now + self.rng.between(20 * MS, 300 * MS);
                    self.later(short, Later::Faults);
                }
            }
        }
    }
}

fn hosts(world: &World) -> usize {
    world.composed.as_ref().map_or(0, |composed| composed.hosts.len())
}
