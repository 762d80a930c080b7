//! Rule 10: the receiver of a session chooses its id, with its shard in it, at a fixed offset.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_link::sim::{StationConfig, Verdict, WireConfig};
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::model::Range;
use thinwire_sim::world::{SECOND, World};
use thinwire_target::TargetConfig;
use thinwire_volume::Op;

/// Where a packet filter looks for the shard: the first byte of the session id.
const SHARD_AT: usize = 8;

#[test]
fn rule_10_the_session_id_carries_the_shard() {
    let mut world = World::new(3, WireConfig::default(), false);
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    let server = world.add_server(1, StationConfig::default(), config, None);
    for _ in 0..3 {
        world.add_export(server, 1 << 20, 512, Store::Memory);
    }
    world.servers[server].set_shards(3);
    world.start_server(server);
    let station = world.servers[server].stations()[0];
    let seen: Rc<RefCell<Vec<u8>>> = Rc::default();
    let record = seen.clone();
    world.set_judge(move |_, to, bytes| {
        // Sessions, and probes of sessions.
        let in_session = matches!(bytes[1], 1 | 7 | 8);
        if to == station && in_session {
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
    for (shard, target) in (0..3).zip(world.servers[server].targets()) {
        assert_eq!(target.sessions().len(), 1, "shard {shard} has the session of its export");
        assert!(seen.borrow().iter().filter(|&&s| s == shard).count() > 4);
    }
    assert_eq!(world.net.stats().unwanted, 0);
    assert_eq!(world.coverage.handed_over, 2, "the first shard keeps what is its own");
}
