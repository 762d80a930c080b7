//! Attachments over the same interface share its link and its flush: what a turn sends to three targets leaves in one system call.

mod pair;

use std::time::{Duration, Instant};

use pair::enter_cable;
use thinwire_buffer::{Pool, SegList};
use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_link::{Link, LinkOptions, LinkSpec, LinkStats};
use thinwire_node::PartId;
use thinwire_runtime::remote::begin_attach;
use thinwire_runtime::serve::{OpenedExport, TargetShard};
use thinwire_runtime::shard::Shard;
use thinwire_target::{ExportConfig, TargetConfig};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Io, Op};

const NAMES: [&str; 3] = ["one", "two", "three"];
const VOLUME_BYTES: u64 = 1 << 20;
/// That nothing happens for so long is a failure, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn link(spec: &str) -> Box<dyn Link> {
    spec.parse::<LinkSpec>().unwrap().open_with(&LinkOptions::default()).unwrap()
}

/// Three exports, each attached by an initiator of its own with a session of its own, over one link.
struct Three {
    target: TargetShard,
    shard: Shard,
    initiators: Vec<PartId<Initiator>>,
}

impl Three {
    fn new(target_link: Box<dyn Link>, initiator_link: Box<dyn Link>) -> Self {
        let address = TargetName::Address(target_link.info().addr);
        let (config, pool) = (
            TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() },
            Pool::new(64 << 20),
        );
        let mut target = TargetShard::new(config, vec![target_link], 0, pool.clone()).unwrap();
        for (nth, name) in NAMES.into_iter().enumerate() {
            let identity = Identity { identity: [nth as u8 + 1; 16], incarnation: 1 };
            let volume = Box::new(MemoryStore::new(VOLUME_BYTES, 512, identity, &pool));
            let export = ExportConfig { name: name.into(), volume, read_only: false };
            target.add_export(OpenedExport::new(export, None)).unwrap();
        }
        let mut shard = Shard::new(vec![initiator_link], Pool::new(64 << 20)).unwrap();
        let attach = |name| {
            let mut config = InitiatorConfig::new(address.clone(), name);
            config.insecure = true;
            begin_attach(&mut shard, config, vec![0])
        };
        let initiators = NAMES.map(attach).to_vec();
        let mut three = Three { target, shard, initiators };
        three.turn_until(|three| three.initiators.iter().all(|id| three.shard.get(*id).is_open()));
        // Paths learn what frames they carry; late acknowledgements arrive.
        let begun = Instant::now();
        three.turn_until(|_| begun.elapsed() > Duration::from_millis(300));
        three
    }

    fn turn(&mut self) {
        self.shard.turn(Some(Duration::ZERO)).unwrap();
        self.target.run_turns(1, Duration::ZERO).unwrap();
    }

    fn turn_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "it does not come to that");
            self.turn();
        }
    }

    fn sent(&self) -> LinkStats {
        self.shard.links().stats(0)
    }

    /// Gives each of them an I/O, turns once, and waits for all. How many calls and frames that turn has sent.
    fn one_turn(&mut self, op: Op, len: u64) -> (u64, u64) {
        for id in self.initiators.clone() {
            let mut io = Io::new(1, op, 0, len);
            if op == Op::Write {
                io.data = SegList::of(self.shard.pool().get_zeroed(len as usize).freeze());
            }
            self.shard.node().volume(id).submit(io);
        }
        let before = self.sent();
        self.shard.turn(Some(Duration::ZERO)).unwrap();
        let after = self.sent();
        let mut done = Vec::new();
        for id in self.initiators.clone() {
            self.turn_until(|three| three.shard.get(id).has_completions());
            self.shard.node().volume(id).poll(&mut done);
        }
        assert_eq!(done.len(), NAMES.len());
        done.drain(..).for_each(|completion| completion.result.unwrap());
        (after.tx_calls - before.tx_calls, after.tx_frames - before.tx_frames)
    }
}

#[test]
fn a_turn_towards_three_targets_is_one_call() {
    if !enter_cable(9000) {
        return;
    }
    let mut three = Three::new(link("packet:left"), link("packet:right"));
    for (op, len, frames_min) in
        [(Op::Read, 4096, 3), (Op::Write, 4096, 3), (Op::Write, 64 << 10, 24), (Op::Flush, 0, 3)]
    {
        for nth in 0..20 {
            let (calls, frames) = three.one_turn(op, len);
            assert!(frames >= frames_min, "{op:?} {len}, {nth}: {frames} frames were sent");
            assert_eq!(calls, 1, "{op:?} {len}, {nth}: {frames} frames left in so many calls");
        }
    }
}
