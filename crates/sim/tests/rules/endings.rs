//! The orderly end of a target whose shards have an export together, while one of them waits for a sync that only
//! another makes.

use thinwire_link::rng::Rng;
use thinwire_link::sim::{StationConfig, WireConfig};
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::model::Violation;
use thinwire_sim::server::Crash;
use thinwire_sim::spread::Spreading;
use thinwire_sim::world::{MS, SECOND, World};
use thinwire_target::{SpreadConfig, TargetConfig};
use thinwire_volume::Op;

use crate::scene::at;

const SHARDS: u8 = 3;
const SERVER: usize = 0;
const CLIENT: usize = 0;
/// The time that a client waits for anything here.
const PATIENCE: u64 = 10 * SECOND;

fn fine<T>(result: Result<T, Violation>) -> T {
    result.unwrap_or_else(|violation| panic!("{}", violation.0))
}

/// Three shards with one disk, whose owner is the first, and a client of the last. What shards say to one another is
/// under way for so long at most.
fn world(medium: &MediumHandle, late_ns_max: u64) -> World {
    let mut world = World::new(7, WireConfig::default(), std::env::var("TRACE").is_ok());
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    world.add_server(1, StationConfig::default(), config, None);
    world.add_export(SERVER, 1 << 20, 512, Store::File(medium.clone()));
    (world.exports[0].is_spread, world.exports[0].writers) = (true, 1);
    world.servers[SERVER].set_shards(SHARDS.into());
    let (reshards, between, slow) = (0.0, 0.0, (0, 1));
    let spreading = Spreading { reshards, between, slow, dice: Rng::new(1) };
    world.servers[SERVER].spreading = Some(spreading);
    world.servers[SERVER].mail.late_ns_max = late_ns_max;
    world.add_client(1, StationConfig::default(), 0, Workload::NONE);
    let mut identities = (1..).map(|n| [n; 16]);
    let of_last = |id: &[u8; 16]| SpreadConfig::dealt(id, 0, SHARDS) == SHARDS - 1;
    let client = &mut world.clients[CLIENT];
    client.config.initiator = identities.find(of_last).expect("there is one");
    client.keeps_log = true;
    world.start_server(SERVER);
    world.start_client(CLIENT);
    fine(world.run_until("attached", PATIENCE, |w| w.clients[CLIENT].is_open));
    world
}

/// Ends the target in order while the client's flush is under way, to the owner or on its disk, whose operations take as
/// long: the flush is made before the target ends, and nothing else holds that up. The client is answered by the next
/// one, and what was flushed stays.
fn ends_behind_a_flush(late_ns_max: u64, disk_ns: u64) {
    let medium = MediumHandle::new(1, [9; 16], MediumConfig::default());
    let mut world = world(&medium, late_ns_max);
    world.submit(CLIENT, Op::Write, at(0, 32), false);
    fine(world.run_until("a write", PATIENCE, |w| w.clients[CLIENT].log.len() == 1));
    fine(world.run_for(SECOND));
    let (before, made) = (medium.config().latency_ns, medium.stats().operations);
    medium.set_latency(disk_ns, disk_ns);
    world.submit(CLIENT, Op::Flush, at(0, 0), false);
    fine(world.run_for(5 * MS));
    assert_eq!((medium.stats().operations, world.clients[CLIENT].log.len()), (made, 1));
    world.shut_down_server(SERVER, PATIENCE);
    fine(world.run_for(5 * MS));
    assert!(world.servers[SERVER].runs(), "its last sync is not made");
    fine(world.run_until("an end", PATIENCE / 2, |w| !w.servers[SERVER].runs()));
    assert_eq!((medium.stats().operations, medium.in_flight()), (made + 1, 0), "it is made");
    medium.set_latency(before.0, before.1);
    world.start_server(SERVER);
    fine(world.run_until("an answer", PATIENCE, |w| w.clients[CLIENT].log.len() == 2));
    assert_eq!(world.clients[CLIENT].log[1].result, Ok(()));
    world.crash_server(SERVER, Crash::Power);
    world.start_server(SERVER);
    world.submit(CLIENT, Op::Read, at(0, 32), false);
    fine(world.run_until("a read", PATIENCE, |w| w.clients[CLIENT].log.len() == 3));
    assert_eq!(world.clients[CLIENT].log[2].result, Ok(()), "and the model knows its content");
}

/// The owner's disk is at it.
#[test]
fn a_target_ends_behind_a_flush_that_the_owner_makes_for_a_branch() {
    ends_behind_a_flush(0, SECOND);
}

/// The owner has not heard of it, and has nothing to do.
#[test]
fn a_target_ends_behind_a_flush_that_the_owner_has_not_heard_of() {
    ends_behind_a_flush(300 * MS, MS);
}
