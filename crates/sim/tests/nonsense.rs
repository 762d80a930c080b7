//! Peers that send well-formed nonsense in sessions of their own: nobody panics, nobody else is
//! concerned, and what they send gets past the gate, so that it is the states that refuse it.

use thinwire_link::rng::Rng;
use thinwire_link::sim::{StationConfig, WireConfig};
use thinwire_proto::DropReason;
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::stranger::Stranger;
use thinwire_sim::world::{MS, SECOND, World};
use thinwire_target::TargetConfig;

#[test]
fn nonsense_is_refused_by_name_and_disturbs_nobody() {
    let mut world = World::new(3, WireConfig::default(), false);
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    let server = world.add_server(1, StationConfig::default(), config, None);
    let medium = MediumHandle::new(3, [9; 16], MediumConfig::default());
    let export = world.add_export(server, 1 << 20, 512, Store::File(medium));
    world.exports[export].writers = 1;
    let workload = Workload {
        depth: 4,
        budget: u64::MAX,
        pauses: 0.3,
        pause_ns_max: 2 * MS,
        ..Workload::NONE
    };
    let client = world.add_client(1, StationConfig::default(), export, workload);
    world.start_server(server);
    world.start_client(client);
    world.run_until("attached", 10 * SECOND, |w| w.clients[client].is_open).unwrap();
    let mut strangers: Vec<_> =
        (0..6).map(|seed| Stranger::new(&world.net, Rng::new(seed))).collect();
    let station = world.servers[server].stations()[0];
    let mut rng = Rng::new(8);
    let mut sent = 0;
    for _ in 0..150 {
        for stranger in &mut strangers {
            sent += stranger.speak(station, rng.between(1, 8));
        }
        world.run_for(rng.between(1, 20) * MS).unwrap_or_else(|v| panic!("{}", v.0));
    }
    let drops = world.target(server).stats().drops;
    let told: Vec<_> = drops.iter().collect();
    let reasons = [
        DropReason::Slot,
        DropReason::Range,
        DropReason::LateDuplicate,
        DropReason::Overload,
        DropReason::Direction,
    ];
    for reason in reasons {
        assert!(drops.get(reason) > 0, "{} never happened: {told:?}", reason.name());
    }
    assert!(sent > 5000, "{sent}");
    assert!(world.coverage.requests > 500, "{}", world.coverage.requests);
    assert_eq!(world.initiator(client).report(thinwire_proto::Time(world.now)).stats.sessions, 1);
    println!("{sent} frames: {told:?}");
}
