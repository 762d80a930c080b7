//! A machine that stands still for a while (its hypervisor gives the time to others) is not a network
//! that loses, swallows or queues.

use thinwire_link::rng::Rng;
use thinwire_link::sim::{StationConfig, WireConfig};
use thinwire_proto::{PathReport, Time};
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::world::{MS, SECOND, SimHost, World};
use thinwire_target::TargetConfig;

/// A busy pair whose hosts send frames of 9000 bytes; the switch carries `transit_bytes_max`. What
/// waits is taken in by so many frames a turn, as a real loop does.
fn pair(transit_bytes_max: usize, depth: usize, burst: usize) -> World {
    let wire = WireConfig { transit_bytes_max, ..WireConfig::default() };
    let mut world = World::new(11, wire, std::env::var("TRACE").is_ok());
    world.lag_ns = 20_000;
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    let server = world.add_server(1, StationConfig::default(), config, None);
    let medium = MediumHandle::new(3, [9; 16], MediumConfig::default());
    let export = world.add_export(server, 1 << 20, 512, Store::File(medium));
    world.exports[export].writers = 1;
    let workload = Workload { depth, budget: u64::MAX, sectors_max: 128, ..Workload::NONE };
    let client = world.add_client(1, StationConfig::default(), export, workload);
    world.servers[server].shards[0].machine.burst = burst;
    world.clients[client].machine.burst = burst;
    world.start_server(server);
    world.start_client(client);
    world.run_for(3 * SECOND / 2).unwrap_or_else(|v| panic!("{}", v.0));
    world
}

fn done(world: &World) -> u64 {
    world.coverage.reads_checked + world.coverage.writes
}

fn paths(world: &World) -> [PathReport; 2] {
    let of_initiator = world.initiator(0).report(Time(world.now)).paths[0].clone();
    [of_initiator, world.target(0).sessions()[0].paths[0].clone()]
}

fn timeouts(world: &World) -> u64 {
    world.initiator(0).report(Time(world.now)).session.probe_timeouts
}

/// I/Os in a time in which nobody stands still.
fn progress(world: &mut World, ns: u64) -> u64 {
    let before = done(world);
    world.run_for(ns).unwrap_or_else(|v| panic!("{}", v.0));
    done(world) - before
}

/// Stalls of 50 to 500 ms on either side, and what is done between them, in every one of these gaps
/// as much as when nobody stands still.
fn stalls(transit_bytes_max: usize, depth: usize, burst: usize, host: Option<SimHost>) {
    let mut world = pair(transit_bytes_max, depth, burst);
    let quiet = progress(&mut world, SECOND / 2);
    let before = paths(&world);
    let mut rng = Rng::new(5);
    for nth in 0..6 {
        let stall = rng.between(50, 500) * MS;
        let either = if rng.chance(0.5) { SimHost::Server(0) } else { SimHost::Client(0) };
        let (asked, host) = (timeouts(&world), host.unwrap_or(either));
        world.freeze(host, world.now + stall);
        world.run_for(stall).unwrap_or_else(|v| panic!("{}", v.0));
        if host == SimHost::Client(0) {
            // The answers lie in its queues, and come before its timers.
            world.run_for(MS / 2).unwrap_or_else(|v| panic!("{}", v.0));
            assert_eq!(timeouts(&world), asked, "timers fired before frames were taken in");
            let rtt = paths(&world)[0].rtt.as_millis();
            assert!(rtt < 5, "{rtt} ms: it takes its own stall for the way of a frame");
        }
        let gap = rng.between(20, 200) * MS;
        let made = progress(&mut world, gap);
        let expected = 2 * quiet * gap / SECOND;
        assert!(
            made * 10 >= expected * 6,
            "stall {nth} of {} ms: {made} of {expected} I/Os in {} ms after it, {:?}",
            stall / MS,
            gap / MS,
            paths(&world)
        );
        for (path, before) in paths(&world).iter().zip(&before) {
            assert_eq!(path.frame_bytes, before.frame_bytes, "black hole, after stall {nth}");
        }
    }
    // What nobody answers for 300 ms is a path that is down, and what is on it is sent again. But
    // who stood still himself has lost nothing.
    if let Some(host) = host {
        let own = usize::from(host == SimHost::Server(0));
        let lost = paths(&world)[own].frames_lost - before[own].frames_lost;
        assert_eq!(lost, 0, "{host:?} stood still and takes that for loss");
    }
    assert!(world.initiator(0).report(Time(world.now)).stats.sessions == 1);
}

const HOSTS: [Option<SimHost>; 3] = [Some(SimHost::Client(0)), Some(SimHost::Server(0)), None];

#[test]
fn stalls_are_no_loss_and_no_black_hole() {
    for (depth, burst) in [(1, 128), (12, 128), (12, 8)] {
        HOSTS.iter().for_each(|&host| stalls(usize::MAX, depth, burst, host));
    }
}

#[test]
fn stalls_are_no_loss_and_no_black_hole_under_a_jumbo_mismatch() {
    for (depth, burst) in [(1, 128), (12, 128), (12, 8)] {
        HOSTS.iter().for_each(|&host| stalls(1500, depth, burst, host));
    }
}

/// The switch begins to carry less while machines stand still now and then: that is found out in the
/// time in which they run.
#[test]
fn a_black_hole_among_stalls_is_found_out() {
    for nth in 0..6 {
        let mut world = pair(usize::MAX, 4, 128);
        assert_eq!(paths(&world)[0].frame_bytes, 9000);
        let mut rng = Rng::new(nth);
        let mut stall = |world: &mut World| {
            let host = if rng.chance(0.5) { SimHost::Server(0) } else { SimHost::Client(0) };
            let ns = rng.between(50, 500) * MS;
            world.freeze(host, world.now + ns);
            world.run_for(ns).unwrap_or_else(|v| panic!("{}", v.0));
        };
        for _ in 0..3 {
            stall(&mut world);
            world.run_for(2 * MS).unwrap();
        }
        world.net.set_wire(|wire| wire.transit_bytes_max = 1500);
        let mut ran = 0;
        let before = done(&world);
        while done(&world) < before + 400 {
            world.run_for(100 * MS).unwrap_or_else(|v| panic!("{}", v.0));
            ran += 100;
            assert!(ran <= 1000, "{nth}: {} I/Os, {:?}", done(&world) - before, paths(&world));
            stall(&mut world);
        }
    }
}
