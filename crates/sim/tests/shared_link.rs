//! Several attachments on one link of one node: what a target answers to one of them comes to that one, also
//! before it has a session (`docs/protocol.md`, "Frame header").

use thinwire_buffer::{Pool, RxBatch};
use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_link::Link;
use thinwire_link::sim::{SimLink, SimNet, StationConfig, WireConfig};
use thinwire_node::{Lane, Node, PartId};
use thinwire_proto::Time;
use thinwire_target::{ExportConfig, Target, TargetConfig};
use thinwire_volume::stores::NullStore;

const ATTACHMENTS: u32 = 5;

struct Machine {
    node: Node,
    link: SimLink,
}

impl Machine {
    fn new(link: SimLink) -> Self {
        Machine { node: Node::new(vec![link.info()]), link }
    }

    fn turn(&mut self, now: Time, pool: &Pool) {
        let mut frames = RxBatch::new();
        self.link.recv(pool, 1000, &mut frames).expect("simulated links do not fail");
        for mut frame in frames.drain(..) {
            self.node.on_frame(now, 0, &mut frame);
        }
        self.node.settle(now);
        self.node.close(now);
        self.link.send(&mut self.node.out()[0]).expect("simulated links do not fail");
    }
}

/// An attachment of the export with this number on a lane of its own.
fn attachment(machine: &mut Machine, number: u32, pool: &Pool) -> PartId<Initiator> {
    let name = TargetName::Node("thinwire".into());
    let lane = 1 << 31 | number;
    let config = InitiatorConfig {
        insecure: true,
        initiator: [number as u8 + 1; 16],
        lane,
        ..InitiatorConfig::new(name, format!("disk{number}"))
    };
    let infos = vec![machine.link.info()];
    let initiator = Initiator::new(Time(0), config, infos, pool.clone(), u64::from(number));
    let lane = Lane { sessions: lane..=lane, outside: true };
    machine.node.add(initiator, vec![0], &lane)
}

#[test]
fn nobody_hears_an_answer_to_another() {
    let net = SimNet::new(1, WireConfig::default());
    let [mut ours, mut theirs] =
        [1, 2].map(|_| Machine::new(net.station(StationConfig::default())));
    let pool = Pool::new(16 << 20);
    let config = TargetConfig { insecure: true, ..TargetConfig::default() };
    let mut target = Target::new(config, vec![theirs.link.info()], 0, pool.clone(), 9);
    for number in 0..ATTACHMENTS {
        let volume = Box::new(NullStore::new(1 << 20, 512));
        let name = format!("disk{number}");
        target.add_export(ExportConfig { name, volume, read_only: false });
    }
    theirs.node.add(target, vec![0], &Lane::ALL);
    let all: Vec<_> = (0..ATTACHMENTS).map(|n| attachment(&mut ours, n, &pool)).collect();
    let is_open = |ours: &Machine| all.iter().all(|&id| ours.node.get(id).unwrap().is_open());
    let mut now = 0;
    while !is_open(&ours) {
        now += 50_000;
        net.advance(now);
        ours.turn(Time(now), &pool);
        theirs.turn(Time(now), &pool);
        assert!(now < 10_000_000_000, "not all are attached");
    }
    for &id in &all {
        let report = ours.node.get(id).unwrap().report(Time(now));
        let dropped: Vec<_> = report.stats.drops.iter().collect();
        // Everybody hears the questions to the group of all others.
        assert!(dropped.iter().all(|&(name, _)| name == "direction"), "{dropped:?}");
    }
}
