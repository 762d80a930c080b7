//! Rule 10: the receiver of a session chooses its id, with its shard in it, at a fixed offset.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_link::sim::{StationConfig, Verdict, WireConfig};
use thinwire_sim::client::Workload;
use thinwire_sim::model::Range;
use thinwire_sim::server::Store;
use thinwire_sim::world::{SECOND, World};
use thinwire_target::TargetConfig;
use thinwire_volume::Op;

/// Where a packet filter looks for the shard: the first byte of the session id.
const SHARD_AT: usize = 8;

#[test]
fn rule_10_the_session_id_carries_the_shard() {
    let mut world = World::new(3, WireConfig::default(), false);
    let mut stations = Vec::new();
    for shard in 0..3 {
        let config = TargetConfig {
            node: format!("node{shard}"),
            insecure: true,
            ..TargetConfig::default()
        };
        let server = world.add_server(1, StationConfig::default(), config, None);
        world.add_export(server, 1 << 20, 512, Store::Memory);
        world.start_server(server);
        stations.push(world.servers[server].machine.stations[0]);
    }
    let seen: Rc<RefCell<Vec<u8>>> = Rc::default();
    let record = seen.clone();
    world.set_judge(move |_, to, bytes| {
        // Sessions, and probes of sessions.
        let in_session = matches!(bytes[1], 1 | 7 | 8);
        if let Some(shard) = stations.iter().position(|&station| station == to)
            && in_session
        {
            assert_eq!(usize::from(bytes[SHARD_AT]), shard);
            record.borrow_mut().push(bytes[SHARD_AT]);
        }
        Verdict::Pass
    });
    for export in 0..3 {
        let client = world.add_client(1, StationConfig::default(), export, Workload::NONE);
        world.start_client(client);
    }
    world.run_until("attached", 5 * SECOND, |w| w.clients.iter().all(|c| c.is_open)).unwrap();
    for client in 0..3 {
        world.submit(client, Op::Write, Range { first: 0, count: 64 }, false);
    }
    let done = |w: &World| w.clients.iter().all(|c| c.outstanding() == 0);
    world.run_until("written", 5 * SECOND, done).unwrap();
    for shard in 0..3 {
        assert!(seen.borrow().iter().filter(|&&s| s == shard).count() > 4);
    }
}
