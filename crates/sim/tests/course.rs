//! The course of a run: when all counts as well again.

use std::time::Duration;

use thinwire_initiator::{Phase, WhenAway};
use thinwire_link::sim::{StationConfig, WireConfig};
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::run::{recover, stay_quiet};
use thinwire_sim::server::Crash;
use thinwire_sim::world::{MS, SECOND, World};
use thinwire_target::TargetConfig;

/// The target is away for so long that the I/O of a `fail-after` client fails, until it has used its
/// budget up; it has much to send again when the target is back. It has recovered when that is done.
#[test]
fn a_client_whose_io_failed_for_want_of_a_target_has_not_recovered() {
    let mut world = World::new(7, WireConfig::default(), std::env::var("TRACE").is_ok());
    let config =
        TargetConfig { node: "node".into(), insecure: true, slots: 1, ..TargetConfig::default() };
    let server = world.add_server(1, StationConfig::default(), config, None);
    let slow = MediumConfig { latency_ns: (5 * MS, 8 * MS), ..MediumConfig::default() };
    let medium = MediumHandle::new(1, [9; 16], slow);
    let export = world.add_export(server, 1 << 20, 512, Store::File(medium));
    world.exports[export].writers = 1;
    let workload = Workload { depth: 8, budget: 500, reads: 0, ..Workload::NONE };
    let client = world.add_client(1, StationConfig::default(), export, workload);
    world.clients[client].config.when_away = WhenAway::FailAfter(Duration::from_millis(500));
    world.start_server(server);
    world.start_client(client);
    let phase = |w: &World| w.initiator(client).phase();
    let stays = |v: thinwire_sim::model::Violation| panic!("{}", v.0);
    world.run_for(2 * SECOND).unwrap_or_else(stays);
    assert!(world.coverage.writes > 200, "{}", world.coverage.writes);
    world.crash_server(server, Crash::Power);
    world.run_until("budget", 5 * SECOND, |w| w.clients[client].is_finished()).unwrap();
    assert!(world.coverage.away_errors > 200, "{}", world.coverage.away_errors);
    assert_eq!((phase(&world), world.clients[client].outstanding()), (Phase::Away, 0));

    let writes = world.coverage.writes;
    recover(&mut world).unwrap_or_else(stays);
    assert!(
        world.coverage.writes > writes,
        "only I/O that failed has proved that it has recovered"
    );
    assert_eq!(phase(&world), Phase::Attached);
    assert!(world.initiator(client).report(thinwire_proto::Time(world.now)).stats.replayed > 200);
    stay_quiet(&mut world).unwrap_or_else(stays);
}
